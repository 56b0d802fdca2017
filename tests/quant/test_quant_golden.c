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
    if (is_given(g, name) && sscanf(golden_text(g, name), "[%" SCNd64 ", %" SCNd64 "]", rows, cols) != 2)
        abort();
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

#define ARG(name) golden_arg(c, name)

/* ---- calls ---- */

static tgl_status per_token_cast(const golden_call *c)          /* with_sf_only: there is no out */
{
    const tgl_quant_params p = params_of(c->golden);
    return tgl_quant_per_token_cast(ARG("x"), ARG("x_sf"), ARG("out"), ARG("out_sf"), &p, c->call->stream);
}

static tgl_status per_token_cast_to_e5m6(const golden_call *c)
{
    tgl_quant_params p = params_of(c->golden);
    p.format = TGL_QUANT_E5M6;
    return tgl_quant_per_token_cast(ARG("x"), NULL, ARG("out"), ARG("out_sf"), &p, c->call->stream);
}

static tgl_status per_token_cast_with_precomputed_sf(const golden_call *c)
{
    const tgl_quant_params p = params_of(c->golden);
    return tgl_quant_per_token_cast_with_precomputed_sf(ARG("x"), NULL, ARG("sf"), ARG("out"), &p,
                                                        c->call->stream);
}

static tgl_status per_block_cast(const golden_call *c)
{
    const tgl_quant_params p = params_of(c->golden);
    return tgl_quant_per_block_cast(ARG("x"), ARG("out"), ARG("out_sf"), &p, c->call->stream);
}

static tgl_status per_block_cast_with_precomputed_sf(const golden_call *c)
{
    const tgl_quant_params p = params_of(c->golden);
    return tgl_quant_per_block_cast_with_precomputed_sf(ARG("x"), ARG("sf"), ARG("out"), &p, c->call->stream);
}

static tgl_status per_block_cast_lossless(const golden_call *c)
{
    const tgl_quant_params p = params_of(c->golden);
    const tgl_quant_params back = { .format = TGL_QUANT_E4M3, .x_num_per_tokens = p.num_per_tokens,
                                    .x_num_per_channels = p.num_per_channels };
    const tgl_status status = tgl_quant_per_block_cast_lossless(ARG("x"), ARG("x_sf"), ARG("out"),
                                                                ARG("out_sf"), NULL, &p, c->call->stream);
    if (status != TGL_OK) return status;
    /* what x says is what out says */
    return tgl_quant_cast_back(ARG("out"), ARG("out_sf"), ARG("dequantized"), &back, c->call->stream);
}

static tgl_status per_channel_cast(const golden_call *c)        /* fused: with x_sf, or a map, or both */
{
    tgl_quant_params p = params_of(c->golden);
    p.x_num_per_channels = p.num_per_channels;                  /* the name is that of x's blocks there */
    return tgl_quant_per_channel_cast(ARG("x"), ARG("x_sf"), ARG("pos_to_token"), ARG("out"), ARG("out_sf"),
                                      &p, c->call->stream);
}

static tgl_status per_channel_cast_and_transpose(const golden_call *c)
{
    const tgl_quant_params p = params_of(c->golden);
    return tgl_quant_per_channel_cast_and_transpose(ARG("x"), ARG("out"), ARG("out_sf"), &p, c->call->stream);
}

static tgl_status cast_back(const golden_call *c)
{
    tgl_quant_params p = params_of(c->golden);
    p.format = tgl_dtype_of(ARG("x")->dtype) == TGL_E4M3 ? TGL_QUANT_E4M3 : TGL_QUANT_E2M1;
    if (!strcmp(c->golden->op, "cast_back_e5m6")) p.format = TGL_QUANT_E5M6;
    return tgl_quant_cast_back(ARG("x"), ARG("x_sf"), ARG("out"), &p, c->call->stream);
}

static tgl_status unpack_from_e2m1fn_x2(const golden_call *c)
{
    return tgl_quant_unpack_from_e2m1fn_x2(ARG("x"), ARG("out"), c->call->stream);
}

static tgl_status swiglu_forward_and_per_token_cast(const golden_call *c)
{
    const tgl_quant_params p = params_of(c->golden);
    return tgl_quant_swiglu_forward_and_per_token_cast(
        ARG("x"), ARG("pos_to_token_topk"), ARG("topk_weights"), ARG("pos_to_expert"),
        ARG("clamped_count_after"), ARG("out"), ARG("out_sf"), &p, c->call->stream);
}

static tgl_status swiglu_forward_and_per_channel_cast_and_transpose(const golden_call *c)
{
    const tgl_quant_params p = params_of(c->golden);
    return tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(ARG("x"), ARG("out"), ARG("out_sf"),
                                                                       &p, c->call->stream);
}

static tgl_status swiglu_backward_and_per_token_cast(const golden_call *c)
{
    const tgl_quant_params p = params_of(c->golden);
    return tgl_quant_swiglu_backward_and_per_token_cast(
        ARG("x"), ARG("x_sf"), ARG("grad_out"), ARG("weight"), ARG("pos_to_token_topk"),
        ARG("token_topk_to_pos"), ARG("out"), ARG("x_grad_fp8"), ARG("x_grad_sf"), ARG("x_grad"),
        ARG("weight_grad"), &p, c->call->stream);
}

/* ---- cases ---- */

static void check_recorded(const char *op, golden_run run, int want_count)
{
    int count = 0;
    for (const golden_case *g; (g = golden_at("quant", op, count)); count++)
        FOR_BACKENDS(b) {
            case_report report;
            golden_check(g, run, b, &report);
            CHECK_THAT(report.result == CASE_PASSED, "%s: %s %s: %s", b->name, g->op, g->name, report.text);
        }
    CHECK_INT(count, want_count);
}

TEST(per_token_cast) { check_recorded("per_token_cast", per_token_cast, 12); }
TEST(per_token_cast_with_sf_only) { check_recorded("per_token_cast_with_sf_only", per_token_cast, 3); }
TEST(per_token_cast_to_e5m6) { check_recorded("per_token_cast_to_e5m6", per_token_cast_to_e5m6, 8); }
TEST(per_token_cast_with_precomputed_sf)
{
    check_recorded("per_token_cast_with_precomputed_sf", per_token_cast_with_precomputed_sf, 4);
}
TEST(per_block_cast) { check_recorded("per_block_cast", per_block_cast, 6); }
TEST(per_block_cast_with_sf_only) { check_recorded("per_block_cast_with_sf_only", per_block_cast, 3); }
TEST(per_block_cast_with_precomputed_sf)
{
    check_recorded("per_block_cast_with_precomputed_sf", per_block_cast_with_precomputed_sf, 3);
}
TEST(per_block_cast_lossless) { check_recorded("per_block_cast_lossless", per_block_cast_lossless, 5); }
TEST(per_channel_cast) { check_recorded("per_channel_cast", per_channel_cast, 4); }
TEST(per_channel_cast_fused) { check_recorded("per_channel_cast_fused", per_channel_cast, 5); }
TEST(per_channel_cast_and_transpose)
{
    check_recorded("per_channel_cast_and_transpose", per_channel_cast_and_transpose, 4);
}
TEST(cast_back) { check_recorded("cast_back", cast_back, 7); }
TEST(cast_back_e5m6) { check_recorded("cast_back_e5m6", cast_back, 6); }
TEST(unpack_from_e2m1fn_x2) { check_recorded("unpack_from_e2m1fn_x2", unpack_from_e2m1fn_x2, 3); }
TEST(swiglu_forward_and_per_token_cast)
{
    check_recorded("swiglu_forward_and_per_token_cast", swiglu_forward_and_per_token_cast, 7);
}
TEST(swiglu_forward_and_per_channel_cast_and_transpose)
{
    check_recorded("swiglu_forward_and_per_channel_cast_and_transpose",
                   swiglu_forward_and_per_channel_cast_and_transpose, 5);
}
TEST(swiglu_backward_and_per_token_cast)
{
    check_recorded("swiglu_backward_and_per_token_cast", swiglu_backward_and_per_token_cast, 6);
}

TEST(all_of_it)     /* nothing is recorded that no block above reads */
{
    int recorded = 0;
    while (golden_at("quant", NULL, recorded)) recorded++;
    CHECK_INT(recorded, 91);
}
