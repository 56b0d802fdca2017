/* SPDX-License-Identifier: MIT
 * fuzz_ops.c - every op of the case tables, with parameters, values and tensors made from any bytes. A
 * libFuzzer target; without libFuzzer, test_fuzz_ops.c runs the same function.
 *
 * An input is a case as cases/random.c draws it, in which one number may be replaced by any other. Its values
 * are those of the table or any. One thing may be wrong: a tensor's size, stride, dtype, dimensions, address
 * or device, a missing tensor, a workspace too small. Every tensor is an allocation of its own, so that a
 * sanitizer sees a step beyond it. For every call:
 *
 *   - It succeeds, or it fails with a sentence that says what was wanted and has written nothing.
 *   - Its outputs are the oracle's, if nothing is wrong and exp decides nothing.
 *   - Two calls write the same elements with the same bits. Inputs, gaps between rows and the workspace are
 *     unchanged.
 *   - On a CUDA device (the emulated one, as a rule), if tests run on one, status, sentence and outputs are
 *     the same. */
#include <string.h>

#include "cases/random.h"
#include "fuzz.h"

/* Of all tensors, since emulated kernels are slow. One input of 16 may be larger: some kernels are for many
 * tokens. */
enum { MAX_ELEMENTS = 1 << 15, MAX_ELEMENTS_OF_SOME = 1 << 18 };

/* Kernels that may be compiled beside those in the cache; cases that need more are passed over. */
static uint64_t max_compiles = 12;

static struct { int64_t done, refused, no_case, by_oracle, on_device, not_compiled; } inputs;

typedef enum { NOTHING, SIZE, STRIDE, DTYPE, NDIM, MISSING, ADDRESS, DEVICE, WORKSPACE, NUM_FAULTS } fault;

typedef struct {
    const case_op *op;
    case_problem problem;
    fault what;
    int which; /* the tensor that has the fault */
    uint64_t seed;
    enum { AS_TABLED, SMALL, HARD, BITS } values;
    const case_instance *cpu; /* has the wanted outputs; NULL: not known yet */
} input;

/* ---- an input from bytes ---- */

static int64_t take_below(bytes *b, int64_t n)
{
    const unsigned high = take(b);
    return n > 0 ? (int64_t)(high << 8 | take(b)) % n : 0;
}

static uint64_t take_number(void *context)
{
    bytes *b = context;
    const unsigned high = take(b);
    return high << 8 | take(b);
}

/* One number may be replaced, even by one that makes no sense. */
static void take_params(bytes *b, const case_op *op, case_params *params)
{
    static const int numbers[] = { -1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 100, 129 };
    case_draw(op, &(case_source){ take_number, b }, params);
    const unsigned how = take(b);
    char *value = params->item[take(b) % (unsigned)params->count].value, *end;
    strtoll(value, &end, 10);
    if (how % 2 && !*end) snprintf(value, CASE_WORD, "%d", numbers[take(b) % (sizeof numbers / sizeof *numbers)]);
}

/* With apart=1 a case calls two ops; if the second fails, the first has written. */
static bool is_one_op(const case_params *params)
{
    for (int p = 0; p < params->count; p++)
        if (!strcmp(params->item[p].name, "apart")) return !strcmp(params->item[p].value, "0");
    return true;
}

static int64_t max_elements(uint64_t seed) { return seed % 16 ? MAX_ELEMENTS : MAX_ELEMENTS_OF_SOME; }

static bool is_small(const case_problem *c, uint64_t seed)
{
    for (int i = 0; i < c->num_tensors; i++) {
        const case_tensor *t = &c->tensors[i];
        if (t->offset < 0) return false;
        for (int d = 0; t->name && d < t->ndim; d++)
            if (t->shape[d] < 0) return false;
    }
    return case_elements(c) < (double)max_elements(seed);
}

static int num_given(const case_problem *c)
{
    int n = 0;
    for (int i = 0; i < c->num_tensors; i++) n += c->tensors[i].name != NULL;
    return n;
}

/* A table may be in host memory, wherever out is. Without indices there is nothing else to compare out with, nor, of no columns,
 * the table. */
static bool may_be_elsewhere(const input *in, const case_tensor *moved)
{
    if (!in->op->gather) return false;
    bool is_empty = false;
    for (int i = 0; i < in->problem.num_tensors; i++) {
        const case_tensor *t = &in->problem.tensors[i];
        if (t->name && !strcmp(t->name, "indices")) return false;
        for (int d = 0; t->name && t->role == CASE_OUT && d < t->ndim; d++) is_empty |= t->shape[d] == 0;
    }
    return is_empty || moved->role == CASE_OUT;
}

/* Is the fault one for this tensor? A byte is aligned anywhere; without an output some cases run in place; in host memory
 * there is no other device, and an op that copies takes its tensors from anywhere. */
static bool can_fail(const input *in, const case_tensor *t)
{
    switch (in->what) {
    case ADDRESS: return tgl_dtype_bits(tgl_dtype_to_dlpack(t->dtype)) > 8;
    case DEVICE:
        return num_given(&in->problem) > 1 && !t->on_host && !in->op->has_no_kernel && !may_be_elsewhere(in, t);
    case MISSING: return t->role == CASE_IN || !strstr(in->op->params, "in_place");
    default: return true;
    }
}

/* Applies faults that change the tensor's memory; call() applies the others. */
static void take_fault(bytes *b, input *in)
{
    const unsigned what = take(b);
    in->what = what < 160 ? (fault)(what % NUM_FAULTS) : NOTHING;
    in->which = (int)(take(b) % (unsigned)in->problem.num_tensors);
    case_tensor *t = &in->problem.tensors[in->which];
    if (!t->name || !can_fail(in, t)) in->what = NOTHING;
    const int d = t->ndim ? (int)(take(b) % (unsigned)t->ndim) : 0;
    const unsigned by = take(b);
    switch (in->what) {
    case SIZE: t->shape[d] = by % 3 == 0 ? t->shape[d] + 1 : by % 3 == 1 ? t->shape[d] - 1 : by / 3; break;
    case STRIDE: t->strides[d] = by % 2 ? (int)(by / 2) - 8 : t->strides[d] + (by % 4 ? 1 : -1); break;
    case DTYPE: t->dtype = (tgl_dtype)(1u << by % 19); break;
    case NDIM:
        if (by % 2 && t->ndim < CASE_MAX_DIMS) t->shape[t->ndim] = t->strides[t->ndim] = 1, t->ndim++;
        else if (t->ndim) t->ndim--;
        break;
    case MISSING: t->name = NULL; break;
    default: break;
    }
}

/* Do exp or log1p decide how a SwiGLU is rounded, or which of two experts is better? */
static bool has_exp(const input *in)
{
    const bool has_scoring = strstr(in->op->params, "scoring=") != NULL;
    return in->op->has_swiglu || (has_scoring && strcmp(case_text(&in->problem, "scoring"), "identity"));
}

/* Is the oracle right with these values? */
static bool has_oracle(const input *in)
{
    const bool takes_any = !in->op->has_narrow_oracle && !in->op->has_projection;
    return in->what == NOTHING && (takes_any || in->values == AS_TABLED) && !has_exp(in);
}

/* Are outputs the same on every device? The tables have no case that the last bits of exp decide. The
 * emulated device has the host's exp, but not its SwiGLU. */
static bool is_portable(const input *in, const backend *on)
{
    if (in->op->has_swiglu) return in->values == AS_TABLED;
    if (in->op->has_projection) return false;
    return on->is_emulated || !has_exp(in);
}

/* ---- values ---- */

static void put_number(const case_tensor *t, int64_t i, bool is_hard, uint64_t bits)
{
    static const double hard[] = { 0, -0.0, 1, -1, 1e-45, -1e-40, 3e38, -3e38, 448, 0.5, 20, 88, -88, -104 };
    static const uint64_t edges[] = { UINT64_MAX,        1u << 31,  (1u << 31) - 1,
                                      (uint64_t)1 << 32, INT64_MAX, (uint64_t)1 << 63 };
    char *to = t->storage + i * t->element_bytes;
    switch (t->dtype) {
    case TGL_F32:
    case TGL_F16:
    case TGL_BF16:
    case TGL_F64: {
        const double special[] = { (double)__builtin_nanf(""), __builtin_inf(), -__builtin_inf() };
        double value = ((double)(bits >> 40) - (1 << 23)) / (1 << 21);
        if (!is_hard) value = (double)(bits % 9) / 2 - 2; /* equal ones, too */
        else if (bits % 4 == 0) value = hard[bits / 4 % (sizeof hard / sizeof *hard)];
        else if (bits % 16 == 1) value = special[bits / 16 % 3];
        case_encode(t->dtype, value, to);
        break;
    }
    case TGL_BOOL: *to = (char)(bits & 1); break;
    case TGL_I32:
    case TGL_I64: {
        uint64_t value = bits % 37;
        if (bits >> 56 < 16) value = (uint64_t)-1;
        else if (is_hard && bits >> 56 < 64) value = bits % 600;
        else if (is_hard && bits >> 56 < 72) value = edges[bits % (sizeof edges / sizeof *edges)] + value % 2;
        memcpy(to, &value, (size_t)t->element_bytes); /* the lower half is first */
        break;
    }
    default: memcpy(to, (uint64_t[]){ bits, bits }, (size_t)t->element_bytes); break;
    }
}

/* Gives masked and fixed tokens, whose choice nobody uses, logits that are all alike. Masks come before
 * logits. */
static void exclude_tokens(const case_problem *c, case_tensor *logits, uint64_t seed)
{
    const float alike[] = { 0, -0.0f, 0.5f, 1e-40f, __builtin_nanf(""), __builtin_inff(), -__builtin_inff() };
    for (int i = 0; i < c->num_tensors && logits->ndim == 2 && logits->dtype == TGL_F32; i++) {
        const case_tensor *mask = &c->tensors[i];
        if (!mask->name || mask->dtype != TGL_BOOL || mask->ndim != 1 || mask->strides[0] != 1) continue;
        const int is_excluded = !strcmp(mask->name, "fix_routing_mask");
        const int64_t rows = mask->shape[0] < logits->shape[0] ? mask->shape[0] : logits->shape[0];
        for (int64_t row = 0; row < rows; row++)
            for (int64_t e = 0; mask->data[row] == is_excluded && e < logits->shape[1]; e++)
                *(float *)case_element(logits, (int64_t[]){ row, e }) =
                    alike[(seed + (uint64_t)row) % (sizeof alike / sizeof *alike)];
    }
}

/* With any values, an expand may write a row twice, or write it and clear it as padding. No mapping says
 * that, so those rows are left open. */
static void open_disputed_rows(case_problem *c)
{
    static bool is_open[MAX_ELEMENTS_OF_SOME], is_claimed[MAX_ELEMENTS_OF_SOME];
    const case_tensor *to_pos = NULL, *to_expert = NULL;
    for (int i = 0; i < c->num_tensors; i++) {
        case_tensor *t = &c->tensors[i];
        if (t->name && !strcmp(t->name, "token_topk_to_pos")) to_pos = t;
        if (t->name && !strcmp(t->name, "pos_to_expert")) to_expert = t;
        if (t->name && t->role != CASE_IN) t->open_rows = is_open;
    }
    memset(is_open, 0, sizeof is_open);
    memset(is_claimed, 0, sizeof is_claimed);
    if (!to_pos || !to_expert || to_pos->ndim != 2 || to_expert->ndim != 1) return;
    if (to_pos->dtype != TGL_I32 || to_expert->dtype != TGL_I32) return;
    for (int64_t i = 0; i < to_pos->shape[0] * to_pos->shape[1]; i++) {
        const int64_t at[] = { i / to_pos->shape[1], i % to_pos->shape[1] };
        const int64_t p = *(const int32_t *)case_element(to_pos, at);
        if (p < 0 || p >= to_expert->shape[0]) continue;
        is_open[p] |= is_claimed[p] || *(const int32_t *)case_element(to_expert, &p) < 0;
        is_claimed[p] = true;
    }
}

static tgl_status load(case_problem *c, void *context)
{
    const input *in = context;
    for (int i = 0; i < c->num_tensors; i++) {
        case_tensor *t = &c->tensors[i];
        const size_t size = (size_t)(t->slots * t->element_bytes);
        const uint64_t seed = in->seed + (uint64_t)i;
        if (!t->name) continue;
        if (t->role != CASE_OUT) {
            /* the table draws logits until they suit its oracle, which takes only good parameters */
            const bool is_tabled = in->values == AS_TABLED && strcmp(t->name, "logits");
            if (is_tabled && t->fill) t->fill(c, t, seed);
            else if (is_tabled || (in->values == BITS && t->dtype != TGL_BOOL)) case_fill_bits(c, t, seed);
            else
                for (int64_t k = 0; k < t->slots; k++) put_number(t, k, in->values != SMALL, case_random(seed, k));
            if (!strcmp(t->name, "logits") && in->seed / 16 % 2) exclude_tokens(c, t, seed);
            for (int64_t k = 0; k < t->slots && !is_tabled && !strcmp(t->name, "slots"); k++) /* distinct */
                memcpy(t->storage + k * t->element_bytes, (int64_t[]){ k, 0 }, (size_t)t->element_bytes);
        }
        if (t->initial) memcpy(t->initial, t->storage, size);
        if (in->cpu && t->role != CASE_IN) memcpy(t->storage, in->cpu->problem.tensors[i].storage, size);
    }
    if (in->op->may_write_twice && in->values != AS_TABLED) open_disputed_rows(c);
    return TGL_OK;
}

/* ---- one call ---- */

typedef struct { unsigned char *before[CASE_MAX_TENSORS], *after[CASE_MAX_TENSORS]; } images;

static void read_memory(const case_instance *k, unsigned char *images_of[CASE_MAX_TENSORS])
{
    for (int i = 0; i < k->problem.num_tensors; i++) {
        images_of[i] = malloc(k->memory_bytes[i] + 1);
        INSIST(images_of[i]);
        if (k->memory[i]) INSIST(backend_download(k->on, images_of[i], k->memory[i], k->memory_bytes[i]) == TGL_OK);
    }
}

static void free_images(const case_instance *k, images *m)
{
    for (int i = 0; i < k->problem.num_tensors; i++) free(m->before[i]), free(m->after[i]);
}

static tgl_status call(case_instance *k, const input *in, int round, images *m)
{
    DLTensor *t = &k->tensors[in->which];
    const DLTensor was = *t;
    const size_t workspace_bytes = k->arguments.workspace_bytes;
    INSIST(case_poison(k, round) == TGL_OK);
    read_memory(k, m->before);
    if (in->what == ADDRESS) t->byte_offset++;
    if (in->what == DEVICE) t->device.device_type = (DLDeviceType)(backend_is_cpu(k->on) ? TGL_DL_CUDA : TGL_DL_CPU);
    if (in->what == WORKSPACE && workspace_bytes) k->arguments.workspace_bytes -= 1 + in->seed % workspace_bytes;
    const tgl_status status = case_call(k);
    *t = was;
    k->arguments.workspace_bytes = workspace_bytes;
    INSIST(backend_wait(k->on, k->arguments.stream) == TGL_OK);
    read_memory(k, m->after);
    return status;
}

static void check_refusal(const case_instance *k, const images *m, tgl_status status)
{
    INSIST(status == TGL_ERR_ARGUMENT || (status == TGL_ERR_WORKSPACE && k->arguments.workspace_bytes));
    INSIST(strstr(tgl_last_error(), ", want "));
    for (int i = 0; i < k->problem.num_tensors; i++) INSIST(!memcmp(m->before[i], m->after[i], k->memory_bytes[i]));
}

static bool has_to_fail(const case_instance *k, const input *in)
{
    return in->what == DEVICE || (in->what == ADDRESS && k->tensors[in->which].data);
}

/* With TEGULA_FUZZ_SHOW every input is printed before it is tried, so that one sees which one crashed. */
static bool is_shown(void) { return getenv("TEGULA_FUZZ_SHOW") != NULL; }

static void show_case(const case_op *op, const case_params *params)
{
    char text[CASE_LABEL];
    if (!is_shown()) return;
    case_params_text(op, params, text, sizeof text);
    fprintf(stderr, "%s %s\n", op->name, text);
}

static void show_values(const input *in)
{
    static const char *const faults[NUM_FAULTS] = { "none",    "size",    "stride", "dtype",    "ndim",
                                                    "missing", "address", "device", "workspace" };
    static const char *const values[] = { "as tabled", "small", "hard", "any bits" };
    if (!is_shown()) return;
    fprintf(stderr, "values %s; fault %s of tensor %d\n", values[in->values], faults[in->what], in->which);
}

static void insist_passed(const case_instance *k, const case_report *report)
{
    if (report->result == CASE_PASSED) return;
    fprintf(stderr, "%s on %s: %s\n", k->problem.label, k->on->name, report->text);
    abort();
}

/* Makes the outputs of these calls the wanted ones: what both wrote, to the bit; what neither wrote, as it
 * was before the second. */
static void settle(case_instance *k, const images *first, const images *second)
{
    for (int i = 0; i < k->problem.num_tensors; i++) {
        case_tensor *t = &k->problem.tensors[i];
        if (!t->name || t->role == CASE_IN) continue;
        t->compare = (case_compare){ .mode = CASE_BITS, .nan_payload = true };
        const size_t size = (size_t)t->element_bytes, end = size * (size_t)t->slots;
        const size_t front =
            (size_t)((char *)k->tensors[i].data - k->memory[i]) * !!t->slots + (size_t)t->offset * size;
        for (size_t at = 0; at < end; at += size) {
            const size_t from = front + at;
            const bool is_left = !memcmp(first->before[i] + from, first->after[i] + from, size) &&
                                 !memcmp(second->before[i] + from, second->after[i] + from, size);
            memcpy(t->storage + at, (is_left ? second : first)->after[i] + from, size);
        }
    }
}

static tgl_status try_cpu(case_instance *k, const input *in)
{
    images first, second;
    case_report report;
    const tgl_status status = call(k, in, 0, &first);
    if (status != TGL_OK) {
        check_refusal(k, &first, status);
    } else {
        INSIST(!has_to_fail(k, in));
        INSIST(call(k, in, 1, &second) == TGL_OK);
        if (has_oracle(in)) {
            k->has_answers = false;
            INSIST(case_verify(k, 1, &report, NULL) == TGL_OK);
            if (report.result == CASE_UNDECIDED) { /* no answer for these values: two calls are compared, as below */
                k->problem.is_undecided = false;
            } else {
                insist_passed(k, &report);
                inputs.by_oracle++;
            }
        }
        settle(k, &first, &second);
        INSIST(case_verify(k, 1, &report, NULL) == TGL_OK);
        insist_passed(k, &report);
        free_images(k, &second);
    }
    free_images(k, &first);
    return status;
}

static void try_device(input *in, const backend *on, tgl_status wanted, const char *sentence)
{
    case_instance *k;
    images m;
    case_report report;
    tgl_set_jit_mode(tgl_compile_count() < max_compiles ? TGL_JIT_AUTO : TGL_JIT_NEVER);
    INSIST(case_open_problem(in->op, &in->problem, load, in, on, &k) == TGL_OK);
    const tgl_status status = call(k, in, 1, &m);
    if (status == TGL_OK && wanted == TGL_OK) {
        INSIST(!(in->what == WORKSPACE && k->arguments.workspace_bytes));
        if (!is_portable(in, on)) settle(k, &m, &m); /* then there is nothing to compare */
        INSIST(case_verify(k, 1, &report, NULL) == TGL_OK);
        insist_passed(k, &report);
        inputs.on_device++;
    } else if (status != TGL_ERR_COMPILE) {
        check_refusal(k, &m, status);
        if (status != TGL_ERR_WORKSPACE) INSIST(status == wanted);
        if (wanted != TGL_OK && in->what != DEVICE) INSIST(!strcmp(tgl_last_error(), sentence));
    } else {
        INSIST(wanted == TGL_OK);
        inputs.not_compiled++;
    }
    free_images(k, &m);
    case_close(k);
}

/* The device that tests run on, beside the CPU; NULL: there is none. */
static const backend *device_of_tests(void)
{
    for (int i = 0; i < 2; i++) {
        const backend *b = backend_of_tests(i);
        if (b && !backend_is_cpu(b)) return b;
    }
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static backend cpu;
    static int num_ops;
    if (!num_ops) {
        INSIST(backend_open("cpu", &cpu) == TGL_OK);
        while (case_op_at(num_ops)) num_ops++;
    }
    bytes b = { data, data + size };
    input in = { .op = case_op_at((int)take_below(&b, num_ops)) };
    case_params params;
    case_instance *k;
    char sentence[512] = "";
    in.seed = take_word(&b);
    const unsigned values = take(&b);
    bytes of_fault = b; /* before the parameters, which take all that there is */
    for (int i = 0; i < 4; i++) take(&b);
    take_params(&b, in.op, &params);
    show_case(in.op, &params);
    inputs.no_case++;
    if (!is_one_op(&params) || !case_is_small(in.op, &params, max_elements(in.seed))) return 0;
    if (case_make_problem(in.op, &params, &in.problem) != TGL_OK) return 0;
    take_fault(&of_fault, &in);
    in.values = values % 4;
    if (in.values == AS_TABLED && in.what >= SIZE && in.what <= MISSING) in.values = SMALL;
    if (!is_small(&in.problem, in.seed)) return 0;
    if (in.op->may_write_twice && in.values != AS_TABLED) {
        if (BACKEND_HAS_TSAN) return 0;                  /* rows that are written twice are a race */
        for (int i = 0; i < in.problem.num_tensors; i++) /* rows without a token stay as they were */
            if (in.problem.tensors[i].role == CASE_OUT) in.problem.tensors[i].role = CASE_INOUT;
    }
    if (case_open_problem(in.op, &in.problem, load, &in, &cpu, &k) != TGL_OK) return 0;
    inputs.no_case--;
    show_values(&in);
    const tgl_status status = try_cpu(k, &in);
    *(status == TGL_OK ? &inputs.done : &inputs.refused) += 1;
    if (status != TGL_OK) snprintf(sentence, sizeof sentence, "%s", tgl_last_error());
    in.cpu = k;
    if (device_of_tests()) try_device(&in, device_of_tests(), status, sentence);
    case_close(k);
    return 0;
}
