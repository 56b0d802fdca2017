/* SPDX-License-Identifier: MIT
 * per_block_cast.c - tgl_quant_per_block_cast, and with factors that are given: blocks of any size. */
#include "quant/per_block_cast.h"

#include "core/log.h"
#include "core/math.h"
#include "cuda/op.h"
#include "quant/cast.h"
#include "quant/common/check.h"

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
    union {
        per_block_cast_args tiles;
        per_block_cast_any_args any;
        per_block_cast_given_args given;
    } args;
} problem;

static int x_of(const problem *p) { return p->x.is_bf16 ? X_BF16 : X_F32; }

/* ---- CPU ---- */

static tgl_status run_on_cpu(const void *context)
{
    const problem *p = context;
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

static tgl_block_cast cast_of(const problem *p)
{
    return (tgl_block_cast){ .x = (const uint8_t *)p->x.data, .x_row_bytes = p->x.row_bytes,
                             .out = p->has_out ? p->out : NULL, .sf = p->sf, .num_rows = p->num_rows,
                             .num_cols = p->num_cols, .num_sf = p->blocks.num_cols };
}

/* Do addresses and rows allow vectors of x, and all their codes at once? */
static bool has_vectors(const problem *p)
{
    const int values = X_VALUES(x_of(p));
    const int64_t x_bits = (int64_t)(uintptr_t)p->x.data | p->x.row_bytes, out_bits = (int64_t)(uintptr_t)p->out;
    return p->num_cols % values == 0 && x_bits % 16 == 0 && out_bits % tgl_code_bytes(p->format, values) == 0;
}

/* Factors to be found. */
enum { TILES, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro x = { "X", x_of(p) }, format = { "FORMAT", p->format };
    const bool has_tiles = BLOCK_CAST_HAS(p->blocks.rows, p->blocks.cols);
    kernels[TILES] = (tgl_kernel){ has_tiles ? "quant/per_block_cast" : NULL,
                                   { x, format, { "BLOCK_ROWS", p->blocks.rows }, { "BLOCK_COLS", p->blocks.cols },
                                     { "SF_KIND", p->sf.kind }, { "IS_ROUNDED", p->rule.is_rounded },
                                     { "HAS_OUT", p->has_out } } };
    kernels[ANY] = (tgl_kernel){ "quant/per_block_cast_any", { x, format } };
    return NUM_KERNELS;
}

static int64_t num_tiles(const problem *p)      /* side by side */
{
    return tgl_ceil_div(p->num_cols, BLOCK_CAST_TILE_COLS(x_of(p), p->blocks.rows));
}

static bool fits_tiles(const void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    const int64_t limit = TGL_DIVIDE_LIMIT - 256;       /* what a tile may be longer than the matrix */
    return has_vectors(p) && p->num_rows <= limit && p->num_cols <= limit &&
           p->blocks.num_rows <= INT32_MAX / num_tiles(p);
}

static tgl_shape shape_tiles(void *context, const tgl_target *target)
{
    (void)target;
    problem *p = context;
    const int64_t tiles = num_tiles(p);
    p->args.tiles = (per_block_cast_args){ tgl_divisor_of(tiles), (uint32_t)tiles, (uint32_t)p->num_rows, cast_of(p) };
    return (tgl_shape){ { p->blocks.num_rows * tiles }, .block = BLOCK_CAST_THREADS(p->blocks.rows),
                        TGL_ARGS(p->args.tiles) };
}

static tgl_shape shape_any(void *context, const tgl_target *target)
{
    (void)target;
    problem *p = context;
    const tgl_blocks *b = &p->blocks;
    const int span = p->format == TGL_FORMAT_E2M1 && b->cols % 2 ? 2 : 1;   /* a byte is of two blocks */
    p->args.any = (per_block_cast_any_args){
        cast_of(p), tgl_groups_of(p->num_rows, b->rows, b->cols, b->num_rows, b->num_cols, span), p->rule
    };
    return (tgl_shape){ { tgl_strided_grid(tgl_groups_grid(&p->args.any.groups), INT32_MAX) },
                        .block = 32 * GROUP_WARPS, TGL_ARGS(p->args.any) };
}

static const tgl_op OP = { run_on_cpu, plan, { [TILES] = { fits_tiles, NULL, shape_tiles }, [ANY] = { .shape = shape_any } } };

/* Factors that are given; GIVEN_RUNS if columns side by side share them. */
enum { GIVEN_RUNS, GIVEN_ANY, NUM_GIVEN };
static int plan_given(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro x = { "X", x_of(p) }, format = { "FORMAT", p->format }, kind = { "SF_KIND", p->sf.kind };
    const bool has_runs = p->blocks.cols % X_VALUES(x_of(p)) == 0;
    kernels[GIVEN_RUNS] = (tgl_kernel){ has_runs ? "quant/per_block_cast_given" : NULL, { x, format, kind } };
    kernels[GIVEN_ANY] = (tgl_kernel){ "quant/per_block_cast_given_any", { x, format, kind } };
    return NUM_GIVEN;
}

static bool fits_runs(const void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    return has_vectors(p) && tgl_strip_is_short(p->num_rows, p->num_cols, X_VALUES(x_of(p)));
}

static tgl_shape shape_given(void *context, const tgl_target *target)
{
    problem *p = context;
    const bool is_vector = has_vectors(p);
    const int unit = is_vector ? X_VALUES(x_of(p)) : p->format == TGL_FORMAT_E4M3 ? 1 : 2;
    const int rows = tgl_strip_rows(p->num_rows, p->num_cols, unit, target->num_sms);
    p->args.given = (per_block_cast_given_args){
        cast_of(p), tgl_strip_of(p->num_rows, p->num_cols, p->blocks.rows, p->blocks.cols, unit, rows), is_vector
    };
    return (tgl_shape){ { tgl_strip_blocks(p->num_rows, p->num_cols, unit, rows) }, .block = STRIP_THREADS,
                        TGL_ARGS(p->args.given) };
}

static const tgl_op GIVEN_OP = {
    run_on_cpu, plan_given, { [GIVEN_RUNS] = { fits_runs, NULL, shape_given }, [GIVEN_ANY] = { .shape = shape_given } }
};

static tgl_status run(const tgl_op *op, problem *p, const DLTensor *on, tgl_stream stream)
{
    if (p->num_cols == 0) return TGL_OK;                            /* no kernel has no columns */
    if (p->num_rows == 0 && !tgl_preparing()) return TGL_OK;        /* data may be NULL */
    return tgl_on_cpu(on) ? run_on_cpu(p) : tgl_run_on_cuda(op, p, on, stream);
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
    return run(&OP, &p, x, stream);
}

tgl_status tgl_quant_per_block_cast_with_precomputed_sf(const DLTensor *x, const DLTensor *sf, DLTensor *out,
                                                        const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_block_cast_with_precomputed_sf", "x", x, "sf", sf, "out", out, NULL);
    problem p = { .is_given = true };
    TGL_TRY(check(x, sf, out, NULL, params, &p));
    return run(&GIVEN_OP, &p, x, stream);
}
