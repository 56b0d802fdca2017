/* SPDX-License-Identifier: MIT
 * The tests' own tools, cases/case.h: they catch what they must catch. */
#include "cases/case.h"
#include "cases/models.h"
#include "cases/random.h"
#include "cases/scrub.h"

#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "core/status.h"
#include "test.h"

/* ---- lists ---- */

static tgl_status setup_nothing(case_problem *c) { return TGL_OK; }
static const case_op listed = { .name = "op", .params = "m= n= dtype=bf16 gap=0", .setup = setup_nothing };

static const char *text_at(const char *const *lines, int64_t i)
{
    static char text[CASE_LABEL];
    case_params params;
    if (!CHECK_OK(case_at(&listed, lines, i, &params))) return "";
    case_params_text(&listed, &params, text, sizeof text);
    return text;
}

TEST(lists_expand)
{
    const char *const lines[] = { "m=1,2 n=3 dtype=f32,bf16", "  n=5   m=4 gap=7 ", NULL };
    CHECK_INT(case_count(lines), 5);
    CHECK_TEXT(text_at(lines, 0), "m=1 n=3 dtype=f32");
    CHECK_TEXT(text_at(lines, 1), "m=1 n=3"); /* the default is left out */
    CHECK_TEXT(text_at(lines, 2), "m=2 n=3 dtype=f32");
    CHECK_TEXT(text_at(lines, 3), "m=2 n=3");
    CHECK_TEXT(text_at(lines, 4), "m=4 n=5 gap=7"); /* in the op's order */
    CHECK_INT(case_count(NULL), 0);
}

TEST(bad_lists)
{
    case_params p;
#define AT(line) case_at(&listed, (const char *const[]){ line, NULL }, 0, &p)
    CHECK_FAILS(AT("m=1 n=2 k=3"), TGL_ERR_ARGUMENT, "k: is no parameter of op, want some of m= n= dtype=bf16 gap=0");
    CHECK_FAILS(AT("m=1"), TGL_ERR_ARGUMENT, "n: is not given, want a value");
    CHECK_FAILS(AT("m=1 n="), TGL_ERR_ARGUMENT, "n: is \"\", want a value of 1 to 31 characters");
    CHECK_OK(AT("m=1,,2 n=1")); /* case 0 is fine, case 1 is not */
    CHECK_FAILS(case_at(&listed, (const char *const[]){ "m=1,,2 n=1", NULL }, 1, &p), TGL_ERR_ARGUMENT,
                "m: is \"\", want a value of 1 to 31 characters");
    CHECK_FAILS(case_at(&listed, (const char *const[]){ "m=1 n=1", NULL }, 1, &p), TGL_ERR_ARGUMENT,
                "op: no such case");
    CHECK_FAILS(case_at(&listed, NULL, 0, &p), TGL_ERR_ARGUMENT, "op: no such case");
#undef AT
}

/* ---- formats: known values, then every code there and back ---- */

TEST(known_numbers)
{
    static const struct {
        tgl_dtype dtype;
        unsigned code;
        double value;
    } rows[] = {
        { TGL_BF16, 0x3f80, 1 },        { TGL_BF16, 0xc2f7, -123.5 },
        { TGL_BF16, 0x0001, 0x1p-133 }, { TGL_BF16, 0x7f7f, 0x1.fep127 },
        { TGL_F16, 0x3c00, 1 },         { TGL_F16, 0x7bff, 65504 },
        { TGL_F16, 0x8001, -0x1p-24 },  { TGL_F16, 0x0400, 0x1p-14 },
        { TGL_E4M3, 0x38, 1 },          { TGL_E4M3, 0x7e, 448 },
        { TGL_E4M3, 0x01, 0x1p-9 },     { TGL_E4M3, 0x88, -0x1p-6 },
        { TGL_E5M2, 0x3c, 1 },          { TGL_E5M2, 0x7b, 57344 },
        { TGL_E5M2, 0x01, 0x1p-16 },    { TGL_UE8M0, 127, 1 },
        { TGL_UE8M0, 0, 0x1p-127 },     { TGL_I8, 0x80, -128 },
        { TGL_U8, 0x80, 128 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_THAT(case_decode(rows[i].dtype, &rows[i].code) == rows[i].value, "%s 0x%x is %g, want %g",
                   tgl_dtype_name(rows[i].dtype), rows[i].code, case_decode(rows[i].dtype, &rows[i].code),
                   rows[i].value);
    CHECK(isinf(case_decode(TGL_BF16, &(uint16_t){ 0x7f80 })) && isnan(case_decode(TGL_BF16, &(uint16_t){ 0x7f81 })));
    CHECK(isinf(case_decode(TGL_E5M2, &(uint8_t){ 0xfc })) && isnan(case_decode(TGL_E5M2, &(uint8_t){ 0x7d })));
    CHECK(isnan(case_decode(TGL_E4M3, &(uint8_t){ 0x7f })) && isnan(case_decode(TGL_UE8M0, &(uint8_t){ 255 })));
}

TEST(rounding)
{
    const tgl_dtype dtypes[] = { TGL_F16, TGL_BF16, TGL_E4M3, TGL_E5M2 };
    for (int k = 0; k < 4; k++) {
        const int codes = k < 2 ? 0x8000 : 0x80;
        for (unsigned code = 0; code < (unsigned)codes; code++) {
            unsigned back = 0, between = 0, next = code + 1;
            const double value = case_decode(dtypes[k], &code), above = case_decode(dtypes[k], &next);
            if (isnan(value) || isinf(value)) continue;
            case_encode(dtypes[k], value, &back);
            if (back != code) CHECK_THAT(false, "%s 0x%x came back as 0x%x", tgl_dtype_name(dtypes[k]), code, back);
            if (isnan(above) || isinf(above)) continue;
            case_encode(dtypes[k], (value + above) / 2, &between); /* halfway: to the even code */
            if (between != (code & 1 ? next : code))
                CHECK_THAT(false, "%s 0x%x and a half is 0x%x", tgl_dtype_name(dtypes[k]), code, between);
        }
    }
    unsigned out = 0;
    case_encode(TGL_E4M3, 1e9, &out), CHECK_INT(out, 0x7e); /* saturates */
    case_encode(TGL_E5M2, -INFINITY, &out), CHECK_INT(out, 0xfb);
    case_encode(TGL_F16, 65520, &out), CHECK_INT(out, 0x7c00);
    case_encode(TGL_F16, 65519, &out), CHECK_INT(out, 0x7bff);
    case_encode(TGL_BF16, -1e300, &out), CHECK_INT(out, 0xff80);
    case_encode(TGL_BF16, -0.0, &out), CHECK_INT(out, 0x8000);
    int64_t wide;
    case_encode(TGL_I64, 1e30, &wide), CHECK(wide > INT64_MAX - 2048);
    case_encode(TGL_I64, -3.9, &wide), CHECK_INT(wide, -3);
}

/* ---- comparison ---- */

static case_report report;
static bool same(tgl_dtype dtype, case_compare how, const void *seen, const void *want, int64_t count)
{
    case_tensor t = { .name = "out",
                      .role = CASE_OUT,
                      .dtype = dtype,
                      .ndim = 1,
                      .shape = { count },
                      .strides = { 1 },
                      .compare = how,
                      .slots = count };
    t.element_bytes = tgl_dtype_bits(tgl_dtype_to_dlpack(dtype)) / 8;
    t.storage = t.data = (char *)(uintptr_t)want;
    return case_compare_tensor(&t, seen, &report);
}
#define F(...) ((float[]){ __VA_ARGS__ })
#define U16(...) ((uint16_t[]){ __VA_ARGS__ })

TEST(compare_bits)
{
    const case_compare payload = { .nan_payload = true }, any_nan = { .nan_payload = false };
    CHECK(same(TGL_BF16, payload, U16(1, 0x7fc1), U16(1, 0x7fc1), 2));
    CHECK(!same(TGL_BF16, payload, U16(1, 0x7fc1), U16(1, 0x7fc2), 2));
    CHECK_TEXT(report.text, "out[1]: is 0x7fc1 (nan), want 0x7fc2 (nan); 1 of 2 elements differ");
    CHECK(same(TGL_BF16, any_nan, U16(1, 0x7fc1), U16(1, 0xffc2), 2));
    CHECK(!same(TGL_BF16, any_nan, U16(0x8000), U16(0x0000), 1));
    CHECK_TEXT(report.text, "out[0]: is 0x8000 (-0), want 0x0000 (0); 1 of 1 elements differ");
    CHECK(!same(TGL_BF16, any_nan, U16(0x7f80), U16(0x7fc0), 1));
    CHECK(same(TGL_BF16, any_nan, NULL, NULL, 0));
}

TEST(compare_close)
{
    const case_compare how = { .mode = CASE_CLOSE, .atol = 0.5, .rtol = 0.25 };
    CHECK(same(TGL_F32, how, F(10, 13), F(10, 10), 2));
    CHECK(!same(TGL_F32, how, F(10, 13.1f), F(10, 10), 2));
    CHECK_TEXT(report.text,
               "out[1]: is 0x4151999a (13.1000004), want 0x41200000 (10); 1 of 2 elements differ too much");
    CHECK(same(TGL_F32, how, F(NAN, INFINITY, -INFINITY), F(-NAN, INFINITY, -INFINITY), 3));
    CHECK(!same(TGL_F32, how, F(NAN), F(1), 1) && !same(TGL_F32, how, F(1), F(NAN), 1));
    CHECK(!same(TGL_F32, how, F(INFINITY), F(-INFINITY), 1) && !same(TGL_F32, how, F(3e38f), F(INFINITY), 1));
}

TEST(compare_calc_diff)
{
    /* [1, 2] against [1, 2.01] is 9.96e-6 */
    CHECK(same(TGL_F32, (case_compare){ .mode = CASE_CALC_DIFF, .max = 9.97e-6 }, F(1, 2), F(1, 2.01f), 2));
    CHECK(!same(TGL_F32, (case_compare){ .mode = CASE_CALC_DIFF, .max = 9.95e-6 }, F(1, 2), F(1, 2.01f), 2));
    CHECK(same(TGL_F32, (case_compare){ .mode = CASE_CALC_DIFF, .max = 1e-30 }, F(0, 0), F(0, 0), 2));
    CHECK(!same(TGL_F32, (case_compare){ .mode = CASE_CALC_DIFF, .max = 9 }, F(NAN, 0), F(NAN, 0), 2));
}

TEST(compare_bf16)
{
    const case_compare how = { .mode = CASE_BF16, .ulp = 1, .mismatch = 0.25 };
    const uint16_t want[8] = { 0x3f80, 0x4000, 0xbf80, 0, 0x3f80, 0x4000, 0xbf80, 0 };
    uint16_t seen[8];
    memcpy(seen, want, sizeof seen);
    seen[0]++, seen[1]--, seen[2]++; /* 3 of 8: 1 + 0.25 * 8 */
    CHECK(same(TGL_BF16, how, seen, want, 8));
    seen[4]++;
    CHECK(!same(TGL_BF16, how, seen, want, 8));
    CHECK_TEXT(report.text, "out[0]: is 0x3f81 (1.0078125), want 0x3f80 (1); 4 of 8 elements differ in bits, want 3");
    CHECK(!same(TGL_BF16, how, U16(0x3f82), U16(0x3f80), 1)); /* two steps */
    CHECK(same(TGL_BF16, (case_compare){ .mode = CASE_BF16, .ulp = 1, .atol = 0.02 }, U16(0x3f82), U16(0x3f80), 1));
    CHECK(same(TGL_BF16, how, U16(0x8001), U16(0x0000), 1) && !same(TGL_BF16, how, U16(0x8001), U16(0x0001), 1));
    CHECK(!same(TGL_BF16, how, U16(0x7f80), U16(0x7f7f), 1)); /* infinity is no neighbour */
    CHECK(same(TGL_BF16, how, U16(0xffc0), U16(0x7fc1), 1));
}

/* ---- what case_check catches ---- */

typedef enum {
    RIGHT,
    WRONG_ELEMENT,
    UNWRITTEN,
    BEFORE,
    AFTER,
    GAP,
    INPUT,
    RANDOM,
    FAILS,
    DIRTY_WORKSPACE,
    LONG_WORKSPACE,
    OPEN_ROW
} deed;
static deed now;
static const bool second_row_open[2] = { false, true };

/* out [2, 3] with rows 4 apart is x + 1; y is doubled in place */
static tgl_status setup_copy(case_problem *c)
{
    case_add(c, 0, "x", CASE_IN, case_dtype(c, "dtype"), 2, (int64_t[]){ 2, 3 })->offset = 1;
    /* 1: optional, not given */
    case_tensor *out = case_add(c, 2, "out", CASE_OUT, TGL_U8, 2, (int64_t[]){ 2, 3 });
    out->strides[0] = 4, out->offset = 1;
    if (now == OPEN_ROW) out->open_rows = second_row_open;
    case_tensor *y = case_add(c, 3, "y", CASE_INOUT, TGL_U8, 1, (int64_t[]){ 5 });
    y->strides[0] = -2;
    return TGL_OK;
}

static void oracle_copy(case_problem *c)
{
    for (int64_t i = 0; i < 6; i++) {
        const int64_t index[2] = { i / 3, i % 3 };
        *(uint8_t *)case_element(&c->tensors[2], index) =
            (uint8_t)(*(uint8_t *)case_element(&c->tensors[0], index) + 1);
    }
    for (int64_t i = 0; i < 5; i++) *(uint8_t *)case_element(&c->tensors[3], &i) *= 2;
}

static tgl_status run_copy(const case_arguments *a)
{
    static uint8_t changes;
    uint8_t *x = (uint8_t *)a->arg[0]->data + a->arg[0]->byte_offset,
            *out = (uint8_t *)a->arg[2]->data + a->arg[2]->byte_offset;
    uint8_t *y = (uint8_t *)a->arg[3]->data + a->arg[3]->byte_offset;
    if (a->arg[1]) return tgl_fail(TGL_ERR_INTERNAL, "there is a tensor that was not given");
    if (now == FAILS) return tgl_fail(TGL_ERR_CUDA, "said so");
    for (int i = 0; i < 6; i++)
        if (!(now == UNWRITTEN && i == 4)) out[i / 3 * 4 + i % 3] = (uint8_t)(x[i] + 1);
    for (int i = 0; i < 5; i++) y[-2 * i] = (uint8_t)(2 * y[-2 * i]);
    if (now == WRONG_ELEMENT) out[6] ^= 1;
    if (now == OPEN_ROW) out[4] ^= 1;
    if (now == BEFORE) out[-1] ^= 1;
    if (now == AFTER) out[7 + 4000] ^= 1;
    if (now == GAP) out[3] ^= 1;
    if (now == INPUT) x[2] ^= 1;
    if (now == RANDOM) out[4] = changes++;
    ((uint8_t *)a->workspace)[a->workspace_bytes - 1] = now == DIRTY_WORKSPACE;
    if (now == LONG_WORKSPACE) memset((uint8_t *)a->workspace + a->workspace_bytes, 0, 8);
    return TGL_OK;
}

static size_t workspace_of_copy(const case_arguments *a) { return a->arg[0] ? 100 : 0; }

static int num_calls;
static tgl_status run_and_count(const case_arguments *a)
{
    num_calls++;
    return run_copy(a);
}

/* Scrubbing: a call per pattern. An element that is not written is noticed, whatever it should have been:
 * some pattern is not that. */
TEST(scrubbed)
{
    static const case_op op = { .name = "copy",
                                .params = "dtype=u8",
                                .setup = setup_copy,
                                .run = run_and_count,
                                .oracle = oracle_copy,
                                .workspace = workspace_of_copy };
    static const struct {
        deed what;
        case_result result;
        const char *end;
    } deeds[] = {
        { RIGHT, CASE_PASSED, "" },
        { UNWRITTEN, CASE_FAILED, " (pattern ones)" },
        { GAP, CASE_FAILED, " (pattern ones)" },
        { LONG_WORKSPACE, CASE_FAILED, " (pattern ones)" },
    };
    backend cpu;
    case_params params;
    CHECK_OK(backend_open("cpu", &cpu));
    CHECK_OK(case_at(&op, (const char *const[]){ "", NULL }, 0, &params));
    scrub_set(true);
    for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++) {
        now = deeds[i].what;
        if (now == LONG_WORKSPACE && BACKEND_HAS_ASAN) continue;
        num_calls = 0;
        CHECK_INT(case_check(&op, &params, &cpu, &report), deeds[i].result);
        const size_t n = strlen(report.text), end = strlen(deeds[i].end);
        CHECK_THAT(n >= end && !strcmp(report.text + n - end, deeds[i].end), "%s", report.text);
        CHECK_INT(num_calls, now == RIGHT ? SCRUB_PATTERNS : 1);
    }
    scrub_set(false);
    now = RIGHT;
    num_calls = 0;
    CHECK_INT(case_check(&op, &params, &cpu, &report), CASE_PASSED);
    CHECK_INT(num_calls, 2);
}

TEST(patterns)
{
    bool has_small = false, differs = false;
    for (int64_t b = 0; b < 4096; b += 4) {
        uint32_t word[SCRUB_PATTERNS] = { 0 };
        for (int p = 0; p < SCRUB_PATTERNS; p++)
            for (int i = 0; i < 4; i++) word[p] |= (uint32_t)scrub_byte((scrub_pattern)p, b + i) << 8 * i;
        CHECK(word[SCRUB_ONES] == UINT32_MAX && word[SCRUB_ZEROS] == 0 && word[SCRUB_LARGE] == 0x7f7f7f7f);
        CHECK(word[SCRUB_INDICES] < 64);
        has_small |= word[SCRUB_INDICES] > 0;
        differs |= word[SCRUB_RANDOM] > 64 && word[SCRUB_RANDOM] != UINT32_MAX;
    }
    CHECK(has_small && differs);
}

TEST(check_catches)
{
    static const case_op op = { .name = "copy",
                                .params = "dtype=u8",
                                .setup = setup_copy,
                                .run = run_copy,
                                .oracle = oracle_copy,
                                .workspace = workspace_of_copy };
    static const struct {
        deed what;
        const char *begin;
    } deeds[] = {
        { RIGHT, "" },
        { WRONG_ELEMENT, "out[1, 2]: is 0x" },
        { UNWRITTEN, "out[1, 1]: is 0xff (255), want 0x" },
        { BEFORE, "out: byte -1 before the data changed: is 0xfe, was 0xff" },
        { AFTER, "out: byte 4000 after the data changed: is 0xfe, was 0xff" },
        { GAP, "out: byte 3 between the rows changed: is 0xfe, was 0xff" },
        { INPUT, "x: byte 2 of the input changed: is 0x" },
        { RANDOM, "out[1, 0]: is 0x" },
        { FAILS, "TGL_ERR_CUDA: said so" },
        { DIRTY_WORKSPACE, "workspace: byte 99 of it changed: is 0x01, was 0x00" },
        { LONG_WORKSPACE, "workspace: byte 0 after it changed: is 0x00, was 0x" },
        { OPEN_ROW, "" },
    };
    backend cpu;
    case_params params;
    CHECK_OK(backend_open("cpu", &cpu));
    CHECK_OK(case_at(&op, (const char *const[]){ "", NULL }, 0, &params));
    for (size_t i = 0; i < sizeof deeds / sizeof *deeds; i++) {
        now = deeds[i].what;
        if ((now == AFTER || now == LONG_WORKSPACE) && BACKEND_HAS_ASAN)
            continue; /* which would end the program there */
        const case_result result = case_check(&op, &params, &cpu, &report);
        CHECK_INT(result, *deeds[i].begin ? CASE_FAILED : CASE_PASSED);
        CHECK_THAT(!strncmp(report.text, deeds[i].begin, strlen(deeds[i].begin)) &&
                       (*deeds[i].begin || !report.text[0]),
                   "says \"%s\", want \"%s\"", report.text, deeds[i].begin);
    }
    now = RIGHT;
    CHECK_OK(case_at(&op, (const char *const[]){ "dtype=u9", NULL }, 0, &params));
    CHECK_INT(case_check(&op, &params, &cpu, &report), CASE_FAILED);
    CHECK_TEXT(report.text, "dtype: is \"u9\", want a dtype such as bf16, e4m3, f32, i64");
}

TEST(inputs_come_from_the_name)
{
    const case_op *op = case_find("transpose");
    backend cpu;
    case_params params;
    case_instance *a, *b, *other;
    CHECK_OK(backend_open("cpu", &cpu));
    CHECK_OK(case_at(op, (const char *const[]){ "num_rows=9 num_cols=7 dtype=f32", NULL }, 0, &params));
    REQUIRE(CHECK_OK(case_open(op, &params, &cpu, &a)) && CHECK_OK(case_open(op, &params, &cpu, &b)));
    CHECK_OK(case_at(op, (const char *const[]){ "num_rows=9 num_cols=7 dtype=i32", NULL }, 0, &params));
    REQUIRE(CHECK_OK(case_open(op, &params, &cpu, &other)));
    CHECK_TEXT(a->problem.label, "transpose num_rows=9 num_cols=7 dtype=f32");
    CHECK(!memcmp(a->problem.tensors[0].storage, b->problem.tensors[0].storage, 9 * 7 * 4));
    CHECK(memcmp(a->problem.tensors[0].storage, other->problem.tensors[0].storage, 9 * 7 * 4));
    case_close(a), case_close(b), case_close(other);
}

TEST(words)
{
    static case_problem c = { .params = { 1, { { "m", "half" } } } };
    CHECK(case_is(&c, "m", "half") && !case_is(&c, "m", "hal") && !case_is(&c, "m", "halfway"));
    CHECK_INT(case_word(&c, "m", "half"), 0);
    CHECK_INT(case_word(&c, "m", "packed halfway half gap"), 2);
    CHECK_INT(case_word(&c, "m", "packed hal gap"), -1);
    CHECK_INT(case_word(&c, "m", ""), -1);
    CHECK_OK(case_check_word(&c, "m", "packed half"));
    CHECK_FAILS(case_check_word(&c, "m", "packed gap"), TGL_ERR_ARGUMENT, "m: is \"half\", want one of: packed gap");
}

TEST(models)
{
    const case_model toy = { "toy", "hidden=64 num_topk=8 topk=2" };
    char line[64];
    CHECK(case_model_line(&toy, "n={hidden} k={topk},{num_topk} m=1", line, sizeof line));
    CHECK_TEXT(line, "n=64 k=2,8 m=1");
    CHECK(!case_model_line(&toy, "n={hidden} e={num_experts}", line, sizeof line));
    CHECK(!case_model_line(&toy, "n={hid}", line, sizeof line) && !case_model_line(&toy, "n={}", line, sizeof line));
    CHECK(case_model_named("deepseek-v3") == &case_models[0] && !case_model_named("deepseek"));
}

TEST(every_line_of_every_model) /* is of cases that the op takes */
{
    const case_op *op;
    for (const case_model *model = case_models; model->name; model++) {
        int num_lines = 0;
        for (int i = 0; (op = case_op_at(i)); i++)
            for (const char *const *template = op->models; template && *template; template++) {
                char line[CASE_LABEL];
                case_params params;
                if (!case_model_line(model, *template, line, sizeof line)) continue;
                const char *const lines[] = { line, NULL };
                for (int64_t k = 0; k < case_count(lines); k++)
                    CHECK_THAT(case_at(op, lines, k, &params) == TGL_OK && case_is_legal(op, &params), "%s: %s %s: %s",
                               model->name, op->name, line, tgl_last_error());
                num_lines++;
            }
        CHECK_THAT(num_lines > 15, "%s: has %d lines", model->name, num_lines);
    }
}

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

TEST(every_case_of_every_list) /* can be made; names are unique within a list */
{
    const case_op *op;
    backend cpu;
    CHECK_OK(backend_open("cpu", &cpu));
    for (int i = 0; (op = case_op_at(i)); i++)
        for (int list = 0; list < CASE_NUM_LISTS; list++) {
            const int64_t count = case_count(op->lists[list]);
            char (*labels)[CASE_LABEL] = calloc((size_t)count + 1, CASE_LABEL);
            const bool may_be_empty = list == CASE_SLOW || (list == CASE_KERNELS && op->has_no_kernel);
            CHECK_THAT(count > 0 || may_be_empty, "%s: list %d is empty", op->name, list);
            for (int64_t k = 0; k < count; k++) {
                case_params params;
                case_facts facts;
                if (!CHECK_OK(case_at(op, op->lists[list], k, &params))) continue;
                if (list == CASE_SLOW && !test_slow()) continue; /* counting their bytes takes long */
                if (!CHECK_OK(case_describe(op, &params, &cpu, &facts))) continue;
                strcpy(labels[k], facts.label);
                if (list == CASE_BENCH) CHECK(facts.bytes > 0);
            }
            qsort(labels, (size_t)count, CASE_LABEL, by_text);
            for (int64_t k = 1; k < count; k++)
                CHECK_THAT(!labels[k][0] || strcmp(labels[k - 1], labels[k]), "\"%s\" is there twice", labels[k]);
            free(labels);
        }
}

static bool has_both(const case_params *a, const case_params *b, int i, int j)
{
    return !strcmp(a->item[i].value, b->item[i].value) && !strcmp(a->item[j].value, b->item[j].value);
}

TEST(pairs) /* TEGULA_TEST_SHARE=pairs leaves out no pair of values, and many cases */
{
    static const char *const names[] = { "transpose", "moe_route", "quant_cast_back", "engram_lookup" };
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const case_op *op = case_find(names[k]);
        const char *const *lines = op->lists[CASE_CHECK];
        const int64_t n = case_count(lines);
        case_params *cases = calloc((size_t)n, sizeof *cases);
        bool *is_chosen = choose_share(op, lines, "pairs");
        int64_t num_chosen = 0, num_missing = 0;
        for (int64_t v = 0; v < n; v++) {
            CHECK_OK(case_at(op, lines, v, &cases[v]));
            num_chosen += is_chosen[v];
        }
        for (int64_t v = 0; v < n; v++)
            for (int i = 0; i < cases[v].count; i++)
                for (int j = 0; j < i; j++) {
                    int64_t w = 0;
                    while (w < n && !(is_chosen[w] && has_both(&cases[v], &cases[w], i, j))) w++;
                    num_missing += w == n;
                }
        CHECK_INT(num_missing, 0);
        CHECK_THAT(num_chosen > 0 && num_chosen < n, "%s: %" PRId64 " of %" PRId64, op->name, num_chosen, n);
        free(cases);
        free(is_chosen);
    }
}

TEST(bytes_moved) /* of the specification: 2 * elements * size */
{
    case_params params;
    case_facts facts;
    backend cpu;
    const case_op *op = case_find("batched_transpose");
    CHECK_OK(backend_open("cpu", &cpu));
    CHECK_OK(case_at(op, (const char *const[]){ "num_batches=32 num_rows=8064 num_cols=7168 dtype=bf16", NULL }, 0,
                     &params));
    CHECK_OK(case_describe(op, &params, &cpu, &facts));
    CHECK_INT(facts.bytes, 2 * (int64_t)32 * 8064 * 7168 * 2);
    CHECK_TEXT(facts.label, "batched_transpose num_batches=32 num_rows=8064 num_cols=7168 dtype=bf16");
}
