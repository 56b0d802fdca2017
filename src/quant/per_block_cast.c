/* SPDX-License-Identifier: MIT
 * per_block_cast.c - tgl_quant_per_block_cast, with computed or given factors: blocks of any size. */
#include "quant/per_block_cast.h"

#include "core/math.h"
#include "cuda/op.h"
#include "quant/common/cast.h"
#include "quant/common/params.h"

typedef struct {
    int64_t num_rows, num_cols;
    tgl_values x;
    int format;
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;
    bool is_given; /* sf is read, not written */
    bool has_out;  /* else only factors are wanted */
    uint8_t *out;
    union {
        per_block_cast_args tiles;
        per_block_cast_any_args any;
        per_block_cast_given_args given;
    } args;
} problem;

static int x_of(const problem *p) { return p->x.is_bf16 ? X_BF16 : X_F32; }

/* ---- CPU ---- */

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const tgl_cast cast = { .from = tgl_read_values(&p->x),
                            .num_rows = p->num_rows,
                            .num_cols = p->num_cols,
                            .format = p->format,
                            .rule = p->rule,
                            .block_rows = p->blocks.rows,
                            .block_cols = p->blocks.cols,
                            .sf = p->sf,
                            .num_sf = p->blocks.num_cols,
                            .is_given = p->is_given,
                            .out = p->has_out ? p->out : NULL,
                            .out_stride = tgl_code_bytes(p->format, p->num_cols) };
    return tgl_run_cast(&cast);
}

TGL_SIZES(sizes, num_rows, num_cols);
tgl_signature tgl_quant_per_block_cast_signature = TGL_SIGNATURE(
    "quant_per_block_cast(x: bf16|f32[num_rows, num_cols] rows,"
    " format: {e4m3|e2m1}, num_per_tokens: int = 1, num_per_channels: int = num_cols, round_sf: bool)"
    " -> out: format[num_rows, num_cols]?, out_sf: sf[num_rows / num_per_tokens, num_cols / num_per_channels]"
    " where num_cols < 2^59, out_sf of i32 needs round_sf",
    &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));
tgl_signature tgl_quant_per_block_cast_with_precomputed_sf_signature =
    TGL_SIGNATURE("quant_per_block_cast_with_precomputed_sf(x: bf16|f32[num_rows, num_cols] rows,"
                  " sf: sf[num_rows / num_per_tokens, num_cols / num_per_channels],"
                  " format: {e4m3|e2m1}, num_per_tokens: int = 1, num_per_channels: int = num_cols)"
                  " -> out: format[num_rows, num_cols] where num_cols < 2^59",
                  &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static tgl_block_cast cast_of(const problem *p)
{
    return (tgl_block_cast){ .x = (const uint8_t *)p->x.data,
                             .x_row_bytes = p->x.row_bytes,
                             .out = p->has_out ? p->out : NULL,
                             .sf = p->sf,
                             .num_rows = p->num_rows,
                             .num_cols = p->num_cols,
                             .num_sf = p->blocks.num_cols };
}

/* Do addresses and strides allow vectors of x, and stores of all their codes? */
static bool has_vectors(const problem *p)
{
    const int values = X_VALUES(x_of(p));
    const int64_t x_bits = (int64_t)(uintptr_t)p->x.data | p->x.row_bytes, out_bits = (int64_t)(uintptr_t)p->out;
    return p->num_cols % values == 0 && x_bits % 16 == 0 && out_bits % tgl_code_bytes(p->format, values) == 0;
}

/* ---- computed factors ---- */

enum { TILES, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro x = { "X", x_of(p) }, format = { "FORMAT", p->format };
    const bool has_tiles = BLOCK_CAST_HAS(p->blocks.rows, p->blocks.cols);
    kernels[TILES] = (tgl_kernel){ has_tiles ? "quant/per_block_cast" : NULL,
                                   { x,
                                     format,
                                     { "BLOCK_ROWS", p->blocks.rows },
                                     { "BLOCK_COLS", p->blocks.cols },
                                     { "SF_KIND", p->sf.kind },
                                     { "IS_ROUNDED", p->rule.is_rounded },
                                     { "HAS_OUT", p->has_out } } };
    kernels[ANY] = (tgl_kernel){ "quant/per_block_cast_any", { x, format } };
    return NUM_KERNELS;
}

static int64_t num_tiles(const problem *p) /* across */
{
    return tgl_ceil_div(p->num_cols, BLOCK_CAST_TILE_COLS(x_of(p), p->blocks.rows));
}

static bool fits_tiles(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const int64_t limit = TGL_DIVIDE_LIMIT - 256; /* a tile may reach past the matrix by this much */
    return has_vectors(p) && p->num_rows <= limit && p->num_cols <= limit &&
           p->blocks.num_rows <= INT32_MAX / num_tiles(p);
}

static tgl_shape tiles_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t tiles = num_tiles(p);
    p->args.tiles = (per_block_cast_args){ tgl_divisor_of(tiles), (uint32_t)tiles, (uint32_t)p->num_rows, cast_of(p) };
    return (tgl_shape){ { p->blocks.num_rows * tiles },
                        .block = BLOCK_CAST_THREADS(p->blocks.rows),
                        TGL_ARGS(p->args.tiles) };
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const tgl_blocks *b = &p->blocks;
    const int span = p->format == TGL_FORMAT_E2M1 && b->cols % 2 ? 2 : 1; /* two blocks share a byte */
    p->args.any = (per_block_cast_any_args){
        cast_of(p), tgl_groups_of(p->num_rows, b->rows, b->cols, b->num_rows, b->num_cols, span), p->rule
    };
    return (tgl_shape){ { tgl_strided_grid(tgl_groups_grid(&p->args.any.groups), INT32_MAX) },
                        .block = 32 * GROUP_WARPS,
                        TGL_ARGS(p->args.any) };
}

static const tgl_op OP = { cpu,
                           plan,
                           { [TILES] = { fits_tiles, NULL, tiles_shape }, [ANY] = { NULL, NULL, any_shape } } };

/* ---- given factors; GIVEN_RUNS: adjacent columns share them ---- */

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
    const problem *p = context;
    return has_vectors(p) && tgl_strip_is_short(p->num_rows, p->num_cols, X_VALUES(x_of(p)));
}

static tgl_shape given_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const bool is_vector = has_vectors(p);
    const int unit = is_vector ? X_VALUES(x_of(p)) : p->format == TGL_FORMAT_E4M3 ? 1 : 2;
    const int rows = tgl_strip_rows(p->num_rows, p->num_cols, unit, target->num_sms);
    p->args.given = (per_block_cast_given_args){
        cast_of(p), tgl_strip_of(p->num_rows, p->num_cols, p->blocks.rows, p->blocks.cols, unit, rows), is_vector
    };
    return (tgl_shape){ { tgl_strip_blocks(p->num_rows, p->num_cols, unit, rows) },
                        .block = STRIP_THREADS,
                        TGL_ARGS(p->args.given) };
}

static const tgl_op GIVEN_OP = {
    cpu, plan_given, { [GIVEN_RUNS] = { fits_runs, NULL, given_shape }, [GIVEN_ANY] = { NULL, NULL, given_shape } }
};

static problem problem_of(const DLTensor *x, const DLTensor *sf, const DLTensor *out, const tgl_quant_params *params,
                          const sizes *n)
{
    return (problem){ .num_rows = n->num_rows,
                      .num_cols = n->num_cols,
                      .x = tgl_values_of(x),
                      .format = params->format,
                      .blocks =
                          tgl_blocks_of(n->num_rows, n->num_cols, params->num_per_tokens, params->num_per_channels),
                      .rule = tgl_scale_rule_of(params->format, params->round_sf),
                      .sf = tgl_sf_of(sf),
                      .has_out = out,
                      .out = tgl_data_or_null(out) };
}

tgl_status tgl_quant_per_block_cast(const DLTensor *x, DLTensor *out, DLTensor *out_sf, const tgl_quant_params *params,
                                    tgl_stream stream)
{
    const DLTensor *tensors[] = { x, out, out_sf };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_per_block_cast_signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0) return TGL_OK;                  /* kernels need at least one column */
    if (params->num_per_tokens <= 1 && !tgl_on_cpu(x)) { /* per_token_cast has kernels for blocks of one row */
        const tgl_quant_params same = { .format = params->format,
                                        .round_sf = params->round_sf,
                                        .num_per_channels = params->num_per_channels };
        return tgl_quant_per_token_cast(x, NULL, out, out_sf, &same, stream);
    }
    problem p = problem_of(x, out_sf, out, params, &n);
    return tgl_run(&tgl_quant_per_block_cast_signature, &OP, tensors, &p, stream);
}

tgl_status tgl_quant_per_block_cast_with_precomputed_sf(const DLTensor *x, const DLTensor *sf, DLTensor *out,
                                                        const tgl_quant_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, sf, out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_per_block_cast_with_precomputed_sf_signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0) return TGL_OK; /* kernels need at least one column */
    problem p = problem_of(x, sf, out, params, &n);
    p.is_given = true;
    return tgl_run(&tgl_quant_per_block_cast_with_precomputed_sf_signature, &GIVEN_OP, tensors, &p, stream);
}
