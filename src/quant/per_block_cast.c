/* SPDX-License-Identifier: MIT
 * per_block_cast.c - tgl_quant_per_block_cast, and with factors that are given: blocks of any size. */
#include "quant/per_block_cast.h"

#include "core/log.h"
#include "core/math.h"
#include "cuda/launch.h"
#include "quant/cast.h"
#include "quant/common/check.h"
#include "quant/common/group.h"
#include "quant/common/strip.h"

typedef struct {
    int64_t num_rows, num_cols;
    tgl_values x;
    int format;
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;
    bool is_given;              /* sf is read, not written */
    bool has_out;               /* else only factors are wanted */
    uint8_t *out;
} problem;

/* ---- CPU ---- */

static tgl_status run_on_cpu(const problem *p)
{
    const tgl_cast cast = {
        .from = tgl_read_values(&p->x), .num_rows = p->num_rows, .num_cols = p->num_cols,
        .format = p->format, .rule = p->rule, .block_rows = p->blocks.rows, .block_cols = p->blocks.cols,
        .sf = p->sf, .num_sf = p->blocks.num_cols,
        .is_given = p->is_given, .out = p->has_out ? p->out : NULL,
        .out_stride = tgl_code_bytes(p->format, p->num_cols)
    };
    return tgl_run_cast(&cast);
}

/* ---- checks ---- */

/* sf is one of given_sf and out_sf; out may be NULL only with out_sf. */
static tgl_status check(const DLTensor *x, const DLTensor *given_sf, const DLTensor *out,
                        const DLTensor *out_sf, const tgl_quant_params *params, problem *p)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_format(params->format, false));
    TGL_TRY(tgl_expect_block("num_per_tokens", params->num_per_tokens));
    TGL_TRY(tgl_expect_block("num_per_channels", params->num_per_channels));
    TGL_TRY(tgl_expect_values("x", x));
    p->num_rows = x->shape[0];
    p->num_cols = x->shape[1];
    p->x = tgl_values_of(x);
    p->format = params->format;
    p->rule = tgl_scale_rule_of(params->format, params->round_sf);
    p->blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->num_per_tokens, params->num_per_channels);
    const int64_t sf_rows = p->blocks.num_rows, sf_cols = p->blocks.num_cols;
    p->has_out = out || p->is_given;
    if (p->has_out) TGL_TRY(tgl_expect_out_codes("out", out, p->format, p->num_rows, p->num_cols));
    else TGL_TRY(tgl_expect_whole_codes(p->num_cols, p->format));
    if (p->is_given) TGL_TRY(tgl_expect_sf("sf", given_sf, sf_rows, sf_cols, &p->sf));
    else TGL_TRY(tgl_expect_out_sf("out_sf", out_sf, sf_rows, sf_cols, params->round_sf, &p->sf));
    p->out = out ? tgl_data(out) : NULL;
    const tgl_named tensors[] = { { "x", x }, { "sf", given_sf }, { "out", out }, { "out_sf", out_sf } };
    return tgl_expect_apart(tensors, 2, 4);
}

/* ---- launch ---- */

static tgl_block_cast arguments(const problem *p)
{
    return (tgl_block_cast){ .x = (const uint8_t *)p->x.data, .x_row_bytes = p->x.row_bytes,
                             .out = p->has_out ? p->out : NULL, .sf = p->sf, .num_rows = p->num_rows,
                             .num_cols = p->num_cols, .num_sf = p->blocks.num_cols };
}

/* Do addresses and rows allow vectors of x, and all their codes at once? */
static bool has_vectors(const problem *p)
{
    const int values = X_VALUES(p->x.is_bf16 ? X_BF16 : X_F32);
    const uintptr_t x = (uintptr_t)p->x.data | (uintptr_t)p->x.row_bytes, out = (uintptr_t)p->out;
    return p->num_cols % values == 0 && x % 16 == 0 &&
           out % (uintptr_t)tgl_code_bytes(p->format, values) == 0;
}

/* Addresses and lengths choose, where columns side by side share a factor. */
enum { GIVEN_ANY, GIVEN_RUNS, NUM_GIVEN };
static tgl_status run_given(const problem *p, const DLTensor *on, tgl_stream stream)
{
    const int values = X_VALUES(p->x.is_bf16 ? X_BF16 : X_F32);
    const tgl_macro x = { "X", p->x.is_bf16 ? X_BF16 : X_F32 }, format = { "FORMAT", p->format };
    const tgl_macro kind = { "SF_KIND", p->sf.kind };
    const tgl_kernel plan[NUM_GIVEN] = {
        [GIVEN_ANY] = { "quant/per_block_cast_given_any", { x, format, kind } },
        [GIVEN_RUNS] = { "quant/per_block_cast_given", { x, format, kind } },
    };
    const bool has_runs = p->blocks.cols % values == 0;
    const int num_kernels = has_runs ? NUM_GIVEN : GIVEN_RUNS;
    if (tgl_preparing()) return tgl_launch(plan, num_kernels, GIVEN_ANY, on, NULL, stream, NULL);
    tgl_target target;
    TGL_TRY(tgl_target_of(on, &target));
    int32_t is_vector = has_vectors(p);
    tgl_strip strip = tgl_strip_of(p->num_rows, p->num_cols, p->blocks.rows, p->blocks.cols,
                                   is_vector ? values : p->format == TGL_FORMAT_E4M3 ? 1 : 2, target.num_sms);
    tgl_block_cast c = arguments(p);
    void *args[] = { &c, &strip, &is_vector };          /* GIVEN_RUNS has no is_vector */
    const tgl_shape shape = { { tgl_strip_grid(&strip) }, .block = STRIP_THREADS };
    const int which = has_runs && is_vector && tgl_strip_is_short(&strip) ? GIVEN_RUNS : GIVEN_ANY;
    return tgl_launch(plan, num_kernels, which, on, &shape, stream, args);
}

/* The blocks choose, and for those that have a kernel of their own, addresses. */
enum { ANY, TILES, NUM_KERNELS };
static tgl_status launch(const problem *p, int which, const DLTensor *on, const tgl_shape *shape,
                         tgl_stream stream, void **args)
{
    const tgl_macro x = { "X", p->x.is_bf16 ? X_BF16 : X_F32 }, format = { "FORMAT", p->format };
    const tgl_kernel plan[NUM_KERNELS] = {
        [ANY] = { "quant/per_block_cast_any", { x, format } },
        [TILES] = { "quant/per_block_cast",
                    { x, format, { "BLOCK_ROWS", p->blocks.rows }, { "BLOCK_COLS", p->blocks.cols },
                      { "SF_KIND", p->sf.kind }, { "IS_ROUNDED", p->rule.is_rounded },
                      { "HAS_OUT", p->has_out } } },
    };
    const bool has_tiles = BLOCK_CAST_HAS(p->blocks.rows, p->blocks.cols);
    return tgl_launch(plan, has_tiles ? NUM_KERNELS : TILES, which, on, shape, stream, args);
}

static tgl_status run_any(const problem *p, const DLTensor *on, tgl_stream stream)
{
    const tgl_blocks *b = &p->blocks;
    const int span = p->format == TGL_FORMAT_E2M1 && b->cols % 2 ? 2 : 1;   /* a byte is of two blocks */
    tgl_groups groups = tgl_groups_of(p->num_rows, b->rows, b->cols, b->num_rows, b->num_cols, span);
    tgl_block_cast c = arguments(p);
    tgl_scale_rule rule = p->rule;
    void *args[] = { &c, &groups, &rule };
    const tgl_shape shape = { { tgl_strided_grid(tgl_groups_grid(&groups), INT32_MAX) }, .block = 32 * GROUP_WARPS };
    return launch(p, ANY, on, &shape, stream, args);
}

static tgl_status run_on_cuda(const problem *p, const DLTensor *on, tgl_stream stream)
{
    if (p->is_given) return run_given(p, on, stream);
    const int block_rows = (int)p->blocks.rows, x = p->x.is_bf16 ? X_BF16 : X_F32;
    const int64_t tiles = tgl_ceil_div(p->num_cols, BLOCK_CAST_TILE_COLS(x, block_rows));
    const int64_t limit = TGL_DIVIDE_LIMIT - 256;       /* what a tile may be longer than the matrix */
    if (!BLOCK_CAST_HAS(p->blocks.rows, p->blocks.cols) || !has_vectors(p) ||
        p->num_rows > limit || p->num_cols > limit || p->blocks.num_rows > INT32_MAX / tiles)
        return run_any(p, on, stream);
    tgl_block_cast c = arguments(p);
    uint32_t num_tiles = (uint32_t)tiles, num_rows = (uint32_t)p->num_rows;
    tgl_divisor by_num_tiles = tgl_divisor_of(tiles);
    void *args[] = { &by_num_tiles, &num_tiles, &num_rows, &c };
    const tgl_shape shape = { { p->blocks.num_rows * tiles }, .block = BLOCK_CAST_THREADS(block_rows) };
    return launch(p, TILES, on, &shape, stream, args);
}

static tgl_status run(const problem *p, const DLTensor *on, tgl_stream stream)
{
    if (p->num_cols == 0) return TGL_OK;                            /* no kernel has no columns */
    if (p->num_rows == 0 && !tgl_preparing()) return TGL_OK;        /* data may be NULL */
    return tgl_on_cpu(on) ? run_on_cpu(p) : run_on_cuda(p, on, stream);
}

tgl_status tgl_quant_per_block_cast(const DLTensor *x, DLTensor *out, DLTensor *out_sf,
                                    const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_block_cast", "x", x, "out", out, "out_sf", out_sf, NULL);
    problem p = { .is_given = false };
    TGL_TRY(check(x, NULL, out, out_sf, params, &p));
    if (p.blocks.rows == 1 && !tgl_on_cpu(x)) {                     /* that op has kernels for them */
        const tgl_quant_params same = { .format = params->format, .round_sf = params->round_sf,
                                        .num_per_channels = params->num_per_channels };
        return tgl_quant_per_token_cast(x, NULL, out, out_sf, &same, stream);
    }
    return run(&p, x, stream);
}

tgl_status tgl_quant_per_block_cast_with_precomputed_sf(const DLTensor *x, const DLTensor *sf, DLTensor *out,
                                                        const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_block_cast_with_precomputed_sf", "x", x, "sf", sf, "out", out, NULL);
    problem p = { .is_given = true };
    TGL_TRY(check(x, sf, out, NULL, params, &p));
    return run(&p, x, stream);
}
