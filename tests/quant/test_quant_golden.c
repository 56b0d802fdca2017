/* SPDX-License-Identifier: MIT
 * The casts against recorded data. */
#include "golden.h"
#include "support.h"

/* ---- arguments ---- */

static bool is_given(const golden_case *g, const char *name)
{
    for (const golden_argument *a = g->arguments; a->name; a++)
        if (!strcmp(a->name, name)) return strcmp(a->value, "null") != 0;
    return false;
}

static void read_block(const golden_case *g, const char *name, int64_t *rows, int64_t *cols)
{
    if (is_given(g, name) && sscanf(golden_text(g, name), "[%" SCNd64 ", %" SCNd64 "]", rows, cols) != 2) abort();
}

static tgl_quant_params params_of(const golden_case *g)
{
    tgl_quant_params p = { .format = TGL_QUANT_E4M3 };
    if (is_given(g, "fmt") && !strcmp(golden_text(g, "fmt"), "e2m1")) p.format = TGL_QUANT_E2M1;
    if (is_given(g, "num_per_tokens")) p.num_per_tokens = golden_int(g, "num_per_tokens");
    if (is_given(g, "num_per_channels")) p.num_per_channels = golden_int(g, "num_per_channels");
    if (is_given(g, "round_sf")) p.round_sf = golden_bool(g, "round_sf");
    if (is_given(g, "without_transpose")) p.without_transpose = golden_bool(g, "without_transpose");
    read_block(g, "x_block_size", &p.x_num_per_tokens, &p.x_num_per_channels);
    read_block(g, "block_size", &p.num_per_tokens, &p.num_per_channels);
    read_block(g, "out_block_size", &p.num_per_tokens, &p.num_per_channels);
    p.has_swiglu_clamp_value = is_given(g, "swiglu_clamp_value");
    if (p.has_swiglu_clamp_value) p.swiglu_clamp_value = (float)golden_double(g, "swiglu_clamp_value");
    p.has_sf_clamp_min = is_given(g, "sf_clamp_min");
    if (p.has_sf_clamp_min) p.sf_clamp_min = (float)golden_double(g, "sf_clamp_min");
    return p;
}

/* ---- calls ---- */

typedef struct {
    const char *recorded;
    int count;
    tgl_signature *signature;
    errors_invoke call;
} recorded_op;
#define RECORDED(recorded, count, name) { recorded, count, &tgl_quant_##name##_signature, call_quant_##name }
static const recorded_op ops[] = {
    RECORDED("per_token_cast", 12, per_token_cast),
    RECORDED("per_token_cast_with_sf_only", 3, per_token_cast), /* there is no out */
    RECORDED("per_token_cast_to_e5m6", 8, per_token_cast),
    RECORDED("per_token_cast_with_precomputed_sf", 4, per_token_cast_with_precomputed_sf),
    RECORDED("per_block_cast", 6, per_block_cast),
    RECORDED("per_block_cast_with_sf_only", 3, per_block_cast),
    RECORDED("per_block_cast_with_precomputed_sf", 3, per_block_cast_with_precomputed_sf),
    RECORDED("per_block_cast_lossless", 5, per_block_cast_lossless),
    RECORDED("per_channel_cast", 4, per_channel_cast),
    RECORDED("per_channel_cast_fused", 5, per_channel_cast), /* with x_sf, a map, or both */
    RECORDED("per_channel_cast_and_transpose", 4, per_channel_cast_and_transpose),
    RECORDED("cast_back", 7, cast_back),
    RECORDED("cast_back_e5m6", 6, cast_back),
    RECORDED("unpack_from_e2m1fn_x2", 3, unpack_from_e2m1fn_x2),
    RECORDED("swiglu_forward_and_per_token_cast", 7, swiglu_forward_and_per_token_cast),
    RECORDED("swiglu_forward_and_per_channel_cast_and_transpose", 5, swiglu_forward_and_per_channel_cast_and_transpose),
    RECORDED("swiglu_backward_and_per_token_cast", 6, swiglu_backward_and_per_token_cast),
};

/* The arguments have the recorded names, except for clamped_count. */
static tgl_status call_op(const golden_call *c, tgl_signature *signature, errors_invoke call, const tgl_quant_params *p)
{
    const tgl_table *table = tgl_signature_table(signature);
    DLTensor *t[TGL_MAX_TENSORS];
    for (int i = 0; i < table->num_tensors; i++) {
        const char *name = table->tensors[i].name;
        t[i] = golden_arg(c, !strcmp(name, "clamped_count") ? "clamped_count_after" : name);
    }
    return call(t, p);
}

static tgl_status run(const golden_call *c)
{
    const recorded_op *op = ops;
    while (strcmp(op->recorded, c->golden->op)) op++;
    tgl_quant_params p = params_of(c->golden);
    if (op->call == call_quant_cast_back && !tgl_dtype_is(golden_arg(c, "x")->dtype, TGL_E4M3))
        p.format = TGL_QUANT_E2M1;
    if (strstr(op->recorded, "e5m6")) p.format = TGL_QUANT_E5M6;
    if (op->call == call_quant_per_channel_cast) p.x_num_per_channels = p.num_per_channels; /* so recorded */
    const tgl_status status = call_op(c, op->signature, op->call, &p);
    if (status != TGL_OK || op->call != call_quant_per_block_cast_lossless) return status;
    /* out and x are the same values */
    DLTensor *t[] = { golden_arg(c, "out"), golden_arg(c, "out_sf"), golden_arg(c, "dequantized") };
    return call_quant_cast_back(t,
                                PARAMS(.x_num_per_tokens = p.num_per_tokens, .x_num_per_channels = p.num_per_channels));
}

TEST(recorded)
{
    int num_recorded = 0, num_checked = 0;
    for (int i = 0; i < COUNT_OF(ops); i++) {
        int count = 0;
        for (const golden_case *g; (g = golden_at("quant", ops[i].recorded, count)); count++)
            FOR_BACKENDS(b) {
                case_report report;
                call_on = b;
                golden_check(g, run, b, &report);
                call_on = NULL;
                CHECK_THAT(report.result == CASE_PASSED, "%s: %s %s: %s", b->name, g->op, g->name, report.text);
            }
        CHECK_THAT(count == ops[i].count, "%s: %d cases, want %d", ops[i].recorded, count, ops[i].count);
        num_checked += count;
    }
    while (golden_at("quant", NULL, num_recorded)) num_recorded++;
    CHECK_INT(num_checked, num_recorded);
}
