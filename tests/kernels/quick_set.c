/* SPDX-License-Identifier: MIT
 * quick_set.c - a few cases of every op that together launch every kernel: few enough to be run under
 * compute-sanitizer (tests/sanitize). And which kernels the lists of checks launch: what only compiles is not
 * tested. */
#include "test.h"

#include <stdlib.h>

#include "cases/case.h"
#include "cuda/jit.h"
#include "wrapped_launch.h"

static const struct { const char *op, *line; } quick_set[] = {
    { "transpose", "num_rows=130 num_cols=129 dtype=e4m3,bf16" },
    { "transpose", "num_rows=64 num_cols=128 dtype=e4m3,bf16,f32 layout=packed,transposed" },
    { "batched_transpose", "num_batches=3 num_rows=64 num_cols=66 dtype=f32 layout=packed,steps" },
    { "moe_topk_gate", "num_tokens=37 num_experts=72,256 num_topk=6 values=special" },
    { "moe_topk_gate", "num_tokens=2 num_experts=4096,33 num_topk=33 values=ties" },
    { "moe_topk_sum_and_topk_group_idx",
      "num_tokens=19 num_groups=8,33 experts_per_group=9 num_topk_groups=4 layout=interleaved" },
    { "moe_mask_indices_by_tp", "num_tokens=37 num_topk=7 num_experts=256 num_ep_ranks=8 num_tp_ranks=2" },
    { "moe_normalize_weight", "num_tokens=133 num_topk=7,8,33" },
    { "moe_inplace_unique_group_indices", "num_tokens=67 num_topk=6,33 num_groups=8" },
    { "moe_top2_sum_gate", "num_tokens=21 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4" },
    { "moe_top2_sum_gate",
      "num_tokens=40 num_experts=60 num_topk=6 num_shared_experts=1 replicas=4 num_ep_ranks=8 num_tp_ranks=2 "
      "mask=some fix=some fixed=beyond unmapped=gap scoring=softmax" },
    { "moe_top2_sum_gate", "num_tokens=9 num_experts=1026 num_topk=6 layout=gap" },
    { "moe_top2_sum_gate", "num_tokens=2200 num_experts=256 num_topk=8 scoring=sqrtsoftplus" },
    { "moe_hash_gate",
      "num_tokens=40 num_experts=60 num_topk=6,33 vocabulary=100 fixed=beyond ids=beyond unmapped=gap" },
    { "moe_route",
      "num_tokens=9,129,256 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4 counts=1 "
      "alignment=16" },
    { "moe_route", "num_tokens=2,64,300 num_experts=64 num_topk=6" },
    { "moe_group_count", "num_tokens=33,4001 num_topk=6 num_groups=72 routing=garbage" },
    { "moe_aux_fi", "num_tokens=1000 num_topk=8 num_experts=256 num_aux_topk=8" },
    { "moe_get_fused_mapping",
      "num_tokens=37 num_topk=8 num_experts=32 alignment=16 routing=garbage host=1" },
    { "moe_get_fused_mapping", "num_tokens=1025,8800 num_topk=8 num_experts=256 alignment=128 counts=1" },
    { "moe_expand_to_fused",
      "num_tokens=7 num_topk=3 num_experts=5 hidden=7,576 alignment=3 routing=some_empty" },
    { "moe_expand_to_fused", "num_tokens=4100 num_topk=2 num_experts=5 hidden=64 alignment=16" },
    { "moe_expand_to_fused_with_sf",
      "num_tokens=9 num_topk=2 num_experts=4 hidden=576 alignment=16 sf_dtype=f32,i32 "
      "out_sf_layout=columns" },
    { "moe_expand_to_fused_with_sf",
      "num_tokens=1000 num_topk=8 num_experts=4 num_ranks=8 hidden=144 alignment=16 num_per_channels=8 "
      "out_sf_layout=columns" },
    { "moe_reduce_fused", "num_tokens=6 num_topk=3 num_experts=5 hidden=7,64 alignment=4 x_sf=1 sf=1.7" },
    { "moe_reduce_fused",
      "num_tokens=513 num_topk=8 num_experts=40 routing=some_empty hidden=80 alignment=4" },
    { "quant_per_token_cast",
      "num_rows=9 num_cols=576 format=e4m3,e2m1,e5m6 num_per_channels=32,0,24 round=1 values=mixed" },
    { "quant_per_token_cast", "num_rows=33 num_cols=256 dtype=e4m3 format=e2m1 round=1 sf=packed "
                              "x_num_per_tokens=32 x_num_per_channels=32 x_sf=packed values=powers" },
    { "quant_per_token_cast_with_precomputed_sf",
      "num_rows=7 num_cols=576 format=e4m3 num_per_channels=0,32" },
    { "quant_per_block_cast", "num_rows=130 num_cols=320 format=e4m3,e2m1 values=mixed" },
    { "quant_per_block_cast",
      "num_rows=40 num_cols=640 num_per_tokens=8 round=1 sf=packed_gap values=mixed" },
    { "quant_per_block_cast", "num_rows=10 num_cols=100 num_per_tokens=7 num_per_channels=5 values=mixed" },
    { "quant_per_block_cast_with_precomputed_sf",
      "num_rows=70 num_cols=192 num_per_tokens=32 num_per_channels=32 sf=col values=mixed" },
    { "quant_per_block_cast_with_precomputed_sf",
      "num_rows=10 num_cols=100 num_per_tokens=3 num_per_channels=6 format=e4m3,e2m1 values=mixed" },
    { "quant_per_block_cast_lossless",
      "num_rows=40 num_cols=320 num_per_tokens=32 num_per_channels=32,64 inexact=1" },
    { "quant_per_block_cast_lossless", "num_rows=7 num_cols=60 num_per_tokens=6 num_per_channels=30 "
                                       "x_num_per_tokens=3 x_num_per_channels=2 values=spread14" },
    { "quant_per_channel_cast", "num_rows=257 num_cols=72 values=mixed map=none,random" },
    { "quant_per_channel_cast", "num_rows=40 num_cols=192 dtype=e4m3 num_per_tokens=32 x_num_per_channels=32 "
                                "x_sf=packed_gap values=mixed" },
    { "quant_per_channel_cast", "num_rows=130 num_cols=32064" },        /* in wide strips */
    { "quant_per_channel_cast", "num_rows=3 num_cols=307200 num_tokens=4 map=random dtype=e4m3" },
    { "quant_per_channel_cast_and_transpose", "num_rows=132,257 num_cols=72 values=mixed" },
    { "quant_cast_back", "num_rows=6 num_cols=264 format=e4m3,e2m1,e5m6 values=mixed" },
    { "quant_cast_back", "num_rows=7 num_cols=130 format=e4m3,e2m1 x_num_per_channels=7 values=mixed" },
    { "quant_unpack_from_e2m1fn_x2", "num_bytes=513 dtype=f32,bf16" },
    { "quant_swiglu_forward_and_per_token_cast",
      "num_rows=9 num_cols=256 num_per_channels=128,0,48 round=1 weights=2 skip=3 clamp=0.5 values=mixed" },
    { "quant_swiglu_forward_and_per_channel_cast_and_transpose",
      "num_rows=130 num_cols=72 without_transpose=0,1 clamp=0.5 round=0,1 values=mixed" },
    { "quant_swiglu_forward_and_per_channel_cast_and_transpose",        /* in long tiles */
      "num_rows=259 num_cols=21328 num_per_tokens=64 round=1" },
    { "quant_swiglu_backward_and_per_token_cast",
      "num_rows=9 num_cols=256 num_tokens=5 num_topk=2 num_picks=6 num_per_channels=32,24 clamp=0.5 "
      "values=mixed" },
    { "quant_swiglu_backward_and_per_token_cast",       /* in a loop */
      "num_rows=2 num_cols=6152 num_tokens=3 num_topk=1 num_picks=2 clamp=0.5 values=mixed" },
    { NULL, NULL },
};

/* ---- what is launched ---- */

enum { MAX_VARIANTS = 4096 };
typedef struct { char kernel[96], macros[TGL_MACRO_TEXT_BYTES]; } variant;
typedef struct { variant at[MAX_VARIANTS]; int count; } variants;
static variants launched, planned;
static bool is_dry;

static void note(variants *set, const tgl_kernel *kernel)
{
    variant v;
    snprintf(v.kernel, sizeof v.kernel, "%s", kernel->name);
    tgl_macro_text(kernel->macros, v.macros);
    for (int i = 0; i < set->count; i++)
        if (!strcmp(set->at[i].kernel, v.kernel) && !strcmp(set->at[i].macros, v.macros)) return;
    if (set->count == MAX_VARIANTS) abort();
    set->at[set->count++] = v;
}

/* For all ops. */
tgl_status __wrap_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream, void **args)
{
    if (tgl_preparing())
        for (int i = 0; i < num_kernels; i++) note(&planned, &plan[i]);
    else if (shape->grid[0] > 0) note(&launched, &plan[which]);
    return is_dry ? TGL_OK : __real_tgl_launch(plan, num_kernels, which, on, shape, stream, args);
}

/* Any variant of a kernel; or with a macro's value, " NUM_TOPK=8 ", one that has it. */
static bool is_launched(const char *kernel, const char *value)
{
    for (int i = 0; i < launched.count; i++) {
        char macros[TGL_MACRO_TEXT_BYTES + 2];
        snprintf(macros, sizeof macros, " %s ", launched.at[i].macros);
        if (!strcmp(launched.at[i].kernel, kernel) && strstr(macros, value)) return true;
    }
    return false;
}

static void check_every_kernel(const char *by)
{
    int count = 0;
    for (int i = 0; i < tgl_num_embedded; i++) {
        if (strchr(tgl_embedded[i].name, '.')) continue;        /* a header */
        CHECK_THAT(is_launched(tgl_embedded[i].name, ""), "%s is launched by none of %s",
                   tgl_embedded[i].name, by);
        count++;
    }
    printf("  %d kernels, %d variants of them launched\n", count, launched.count);
    CHECK(count > 0);
}

/* Every value that the lists of kernels give a macro. Not every combination: there are too many. */
static void check_every_value(const char *by)
{
    for (int i = 0; i < planned.count; i++) {
        char text[TGL_MACRO_TEXT_BYTES], value[TGL_MACRO_TEXT_BYTES + 2], *rest = text;
        strcpy(text, planned.at[i].macros);
        for (const char *word; (word = strsep(&rest, " "));) {
            snprintf(value, sizeof value, " %s ", word);
            CHECK_THAT(is_launched(planned.at[i].kernel, value), "%s with %s is launched by none of %s",
                       planned.at[i].kernel, word, by);
        }
    }
    printf("  %d variants in the lists of kernels\n", planned.count);
    CHECK(planned.count > 0);
}

/* ---- the tests ---- */

static const backend *cuda(void)
{
    for (int i = 0; i < 2; i++) {
        const backend *b = backend_of_tests(i);
        if (b && !backend_is_cpu(b)) return b;
    }
    return NULL;
}

TEST(quick_set)
{
    if (!cuda()) SKIP("no CUDA device");
    launched.count = 0;
    const char *only = getenv("TEGULA_TEST_OP");        /* of ops whose names begin so */
    for (int i = 0; quick_set[i].op; i++) {
        if (only && strncmp(quick_set[i].op, only, strlen(only))) continue;
        const case_op *op = case_find(quick_set[i].op);
        const char *const lines[] = { quick_set[i].line, NULL };
        REQUIRE(op != NULL);
        for (int64_t k = 0; k < case_count(lines); k++) {
            case_params params;
            case_report report;
            REQUIRE(CHECK_OK(case_at(op, lines, k, &params)));
            CHECK_THAT(case_check(op, &params, cuda(), &report) == CASE_PASSED, "%s %s, case %" PRId64 ": %s",
                       op->name, quick_set[i].line, k, report.text);
        }
    }
    if (!only) check_every_kernel("the quick set");
}

static bool has_many_sms(const case_op *op)
{
    return !strcmp(op->name, "moe_route") || !strcmp(op->name, "moe_get_fused_mapping");
}

static tgl_status load_nothing(case_problem *c, void *context)
{
    (void)c, (void)context;
    return TGL_OK;
}

/* Which kernel an op takes is decided before the launch, so nothing is launched here. Only route, which has
 * clusters, and get_fused_mapping are tested with more than 4 multiprocessors. */
TEST(lists_of_checks)
{
    static case_problem problem;
    case_params params;
    case_instance *k;
    const case_op *op;
    if (!cuda()) SKIP("no CUDA device");
    if (!cuda()->is_emulated) SKIP("is asked of the emulated device: what others launch depends on them");
    launched.count = planned.count = 0;
    is_dry = true;
    for (int i = 0; (op = case_op_at(i)); i++) {
        CHECK_OK(tgl_set_num_sms(cuda()->device.device_id, has_many_sms(op) ? 0 : 4));
        for (int64_t n = 0; n < case_count(op->lists[CASE_CHECK]); n++) {
            REQUIRE(CHECK_OK(case_at(op, op->lists[CASE_CHECK], n, &params)));
            REQUIRE(CHECK_OK(case_make_problem(op, &params, &problem)));
            REQUIRE(CHECK_OK(case_open_problem(op, &problem, load_nothing, NULL, cuda(), &k)));
            CHECK_OK(case_call(k));
            case_close(k);
        }
        CHECK_OK(tgl_prepare_begin(0, "sm_90a"));
        for (int64_t n = 0; n < case_count(op->lists[CASE_KERNELS]); n++) {
            REQUIRE(CHECK_OK(case_at(op, op->lists[CASE_KERNELS], n, &params)));
            CHECK_OK(case_prepare(op, &params, 0));
        }
        CHECK_OK(tgl_prepare_end());
    }
    CHECK_OK(tgl_set_num_sms(cuda()->device.device_id, 0));
    is_dry = false;
    check_every_kernel("the lists of checks");
    check_every_value("the lists of checks");
}
