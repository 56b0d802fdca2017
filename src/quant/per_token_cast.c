/* SPDX-License-Identifier: MIT
 * per_token_cast.c - tgl_quant_per_token_cast, with computed or given factors: blocks of one row. */
#include "core/math.h"
#include "cuda/op.h"
#include "quant/common/cast.h"
#include "quant/common/params.h"
#include "quant/per_token_cast.h"

typedef struct {
    int64_t num_rows, num_cols;
    int x_format; /* of codes; VALUES: x has values */
    tgl_values values;
    tgl_codes codes;
    int format;
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;
    bool is_given; /* sf is read, not written */
    bool has_out;  /* else only factors are wanted */
    uint8_t *out;
    /* for kernels (find_kernels) */
    int kind;               /* of x: X_* */
    int64_t warp_cols;      /* columns of a warp in FAST */
    bool is_wide;           /* FAST is per_token_cast_wide.cu, else per_token_cast.cu */
    bool has_fast, has_few; /* there are such kernels for these blocks */
    bool is_joined;         /* FAST loads two vectors of codes at once */
    union {
        tgl_token_cast cast;
        tgl_few_cast few;
    } args;
} problem;
enum { VALUES = -1 };

/* ---- CPU ---- */

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const tgl_cast cast = { .from = p->x_format == VALUES ? tgl_read_values(&p->values) : tgl_read_codes(&p->codes),
                            .num_rows = p->num_rows,
                            .num_cols = p->num_cols,
                            .format = p->format,
                            .rule = p->rule,
                            .block_rows = 1,
                            .block_cols = p->blocks.cols,
                            .sf = p->sf,
                            .num_sf = p->blocks.num_cols,
                            .is_given = p->is_given,
                            .out = p->has_out ? p->out : NULL,
                            .out_stride = tgl_code_bytes(p->format, p->num_cols) };
    return tgl_run_cast(&cast);
}

#define X                                                            \
    "x: (e4m3|e2m1 if x_sf else bf16|f32)[num_rows, num_cols] rows," \
    " x_sf: sf[num_rows / x_num_per_tokens, num_cols / x_num_per_channels]?"
#define SCALARS                                                                            \
    "format: {e4m3|e2m1} if x_sf else {e4m3|e2m1|e5m6}, num_per_channels: int = num_cols," \
    " x_num_per_tokens: int = 1 with x_sf, x_num_per_channels: int = num_cols with x_sf"
TGL_SIZES(sizes, num_rows, num_cols);
tgl_signature tgl_quant_per_token_cast_signature =
    TGL_SIGNATURE("quant_per_token_cast(" X ", " SCALARS ", round_sf: bool)"
                  " -> out: format[num_rows, num_cols]?, out_sf: sf[num_rows, num_cols / num_per_channels]"
                  " where num_cols < 2^59, num_per_channels % 8 for e5m6, out_sf of i32 needs round_sf",
                  &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));
tgl_signature tgl_quant_per_token_cast_with_precomputed_sf_signature =
    TGL_SIGNATURE("quant_per_token_cast_with_precomputed_sf(" X
                  ", sf: sf[num_rows, num_cols / num_per_channels], " SCALARS ")"
                  " -> out: format[num_rows, num_cols] where num_cols < 2^59, num_per_channels % 8 for e5m6",
                  &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* Is every vector of `values` columns in one block of out, and in one of x? */
static bool has_whole_vectors(const problem *p, int64_t values)
{
    const int64_t x_cols = p->codes.block_cols;
    return p->blocks.cols % values == 0 && p->num_cols % values == 0 &&
           (p->x_format == VALUES || x_cols % values == 0 || x_cols >= p->num_cols);
}

static void find_kernels(problem *p)
{
    const bool has_codes = p->x_format != VALUES;
    if (has_codes) p->kind = p->x_format == TGL_FORMAT_E4M3 ? X_E4M3 : X_E2M1;
    else p->kind = p->values.is_bf16 ? X_BF16 : X_F32;
    const int64_t cols = p->blocks.cols, values = X_VALUES(p->kind);
    p->is_wide = !(cols == 16 || cols == 32 || cols == 64 || cols == 128 || cols == 256);
    p->warp_cols = TOKEN_WARP_COLS(p->kind, p->is_wide ? 0 : cols);
    const bool is_row = (cols == p->num_cols || cols > 256) && cols <= p->warp_cols * TOKEN_MAX_WARPS;
    p->has_fast = (!p->is_wide || is_row) && has_whole_vectors(p, values);
    const int64_t few_cols = p->warp_cols / 2;
    p->has_few = p->has_fast && (p->is_wide ? cols <= few_cols * TOKEN_MAX_WARPS : few_cols % (4 * cols) == 0);
    p->is_joined =
        p->has_few && !p->is_wide && has_codes && p->format == TGL_FORMAT_E2M1 && has_whole_vectors(p, 2 * values);
}

/* FEW: FAST for few rows. */
enum { FEW, FAST, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro x = { "X", p->kind }, format = { "FORMAT", p->format };
    kernels[ANY] = (tgl_kernel){ "quant/per_token_cast_any", { x, format } };
    enum { IS_FEW, IS_JOINED }; /* places of macros */
    kernels[FAST] = (tgl_kernel){ !p->has_fast ? NULL
                                  : p->is_wide ? "quant/per_token_cast_wide"
                                               : "quant/per_token_cast",
                                  { [IS_FEW] = { "IS_FEW", 0 },
                                    [IS_JOINED] = { "IS_JOINED", p->is_joined },
                                    x,
                                    { "X_SF_KIND", p->x_format != VALUES ? p->codes.sf.kind : 0 },
                                    format,
                                    { "SF_KIND", p->sf.kind },
                                    { "IS_ROUNDED", p->rule.is_rounded && !p->is_given },
                                    { "IS_GIVEN", p->is_given },
                                    { "HAS_OUT", p->has_out },
                                    { p->is_wide ? NULL : "BLOCK_COLS", p->blocks.cols } } };
    kernels[FEW] = kernels[FAST];
    kernels[FEW].macros[IS_FEW].value = 1;
    kernels[FEW].macros[IS_JOINED].value = 0;
    if (!p->has_few) kernels[FEW].name = NULL;
    return NUM_KERNELS;
}

static const char *data_of(const problem *p)
{
    return p->x_format == VALUES ? p->values.data : (const char *)p->codes.data;
}

static int64_t row_bytes_of(const problem *p)
{
    return p->x_format == VALUES ? p->values.row_bytes : p->codes.row_bytes;
}

/* FAST: thread blocks per row, or per TOKEN_WARPS rows; and in all. */
static int64_t num_units(const problem *p)
{
    if (!p->is_wide) return tgl_ceil_div(p->num_cols, p->warp_cols);
    return p->sf.kind == TGL_SF_PACKED ? tgl_ceil_div(p->blocks.num_cols, 4) : p->blocks.num_cols;
}

static int64_t num_blocks(const problem *p)
{
    return (p->is_wide ? p->num_rows : tgl_ceil_div(p->num_rows, TOKEN_WARPS)) * num_units(p);
}

/* Do addresses and strides allow vectors, and are all sizes below 2^31? */
static bool fits_vectors(const problem *p)
{
    const int64_t x_bits = (int64_t)(uintptr_t)data_of(p) | row_bytes_of(p);
    const int64_t out_bytes = p->format == TGL_FORMAT_E5M6 ? 4 : tgl_code_bytes(p->format, X_VALUES(p->kind));
    return x_bits % X_VECTOR_BYTES(p->kind) == 0 && (int64_t)(uintptr_t)p->out % out_bytes == 0 &&
           p->num_rows < TGL_DIVIDE_LIMIT && p->num_cols < TGL_DIVIDE_LIMIT - p->warp_cols &&
           num_blocks(p) < TGL_DIVIDE_LIMIT;
}

/* Do they allow two vectors of codes at once, if FAST loads them so? */
static bool fits_joined(const problem *p)
{
    const int64_t x_bits = (int64_t)(uintptr_t)data_of(p) | row_bytes_of(p);
    const int64_t out_bits = (int64_t)(uintptr_t)p->out | tgl_code_bytes(p->format, p->num_cols);
    return !p->is_joined || (x_bits % 16 == 0 && out_bits % tgl_code_bytes(p->format, 2 * X_VALUES(p->kind)) == 0);
}

static bool fits_fast(const void *p, const tgl_target *target) { return fits_vectors(p) && fits_joined(p); }

/* FEW: thread blocks per row, each with a part of the row, and no more warps than an SM gets. */
static int64_t few_blocks(const problem *p, const tgl_target *target, int64_t *tiles)
{
    *tiles = tgl_ceil_div(p->num_cols, p->warp_cols / 2);
    const int64_t sm_warps = tgl_ceil_div(p->num_rows * *tiles, target->num_sms);
    return tgl_ceil_div(*tiles, tgl_min(sm_warps, TOKEN_WARPS));
}

static bool fits_few(const void *context, const tgl_target *target)
{
    const problem *p = context;
    if (!fits_vectors(p)) return false;
    int64_t tiles;
    return p->is_wide || ((uint64_t)row_bytes_of(p) <= UINT32_MAX && (uint64_t)p->sf.stride <= UINT32_MAX &&
                          few_blocks(p, target, &tiles) <= UINT16_MAX);
}

static bool pays_few(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return num_blocks(p) <= TOKEN_FEW_BLOCKS * target->num_sms || !fits_joined(p);
}

static tgl_token_cast cast_of(const problem *p, int64_t units)
{
    const bool is_codes = p->x_format != VALUES;
    const int64_t x_block_rows = is_codes ? p->codes.block_rows : 1;
    const int64_t x_block_cols = is_codes ? p->codes.block_cols : 1;
    return (tgl_token_cast){ .x = data_of(p),
                             .x_row_bytes = row_bytes_of(p),
                             .by_units = tgl_divisor_of(units),
                             .num_units = units,
                             .num_rows = p->num_rows,
                             .num_cols = p->num_cols,
                             .out = (char *)p->out,
                             .out_row_bytes = tgl_code_bytes(p->format, p->num_cols),
                             .sf = p->sf,
                             .num_sf = p->blocks.num_cols,
                             .block_cols = p->blocks.cols,
                             .x_sf = p->codes.sf,
                             .x_block_rows = x_block_rows,
                             .x_block_cols = x_block_cols,
                             .by_x_block_rows = tgl_divisor_of(x_block_rows),
                             .by_x_block_cols = tgl_divisor_of(x_block_cols),
                             .rule = p->rule,
                             .is_given = p->is_given,
                             .has_out = p->has_out };
}

/* Dynamic shared memory of a block of per_token_cast_wide: for staging. With many rows it is larger, so that
 * an SM has at most TOKEN_SM_WARPS. (If a block has more than half as many, registers limit an SM to two
 * blocks.) */
static int64_t wide_shared_bytes(const problem *p, bool is_few, int64_t warps, const tgl_target *target)
{
    const int64_t cols = is_few ? p->warp_cols / 2 : p->warp_cols;
    const int64_t staged = warps * TOKEN_STAGED_BYTES(p->kind, p->format, is_few, cols);
    if (is_few || !p->has_out || p->format != TGL_FORMAT_E5M6 || p->kind != X_F32) return staged;
    const int64_t claimed = target->max_smem_per_block / (TOKEN_SM_WARPS / warps + 1);
    return 2 * warps <= TOKEN_SM_WARPS && claimed > staged ? claimed : staged;
}

static tgl_shape wide_shape(problem *p, bool is_few, const tgl_target *target)
{
    const int64_t warps = tgl_ceil_div(p->blocks.cols, is_few ? p->warp_cols / 2 : p->warp_cols);
    p->args.cast = cast_of(p, num_units(p));
    return (tgl_shape){ { num_blocks(p) },
                        .block = (int)(32 * warps),
                        .shared_bytes = wide_shared_bytes(p, is_few, warps, target),
                        TGL_ARGS(p->args.cast) };
}

static tgl_shape fast_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    if (p->is_wide) return wide_shape(p, false, target);
    p->args.cast = cast_of(p, num_units(p));
    return (tgl_shape){ { num_blocks(p) }, .block = 32 * TOKEN_WARPS, TGL_ARGS(p->args.cast) };
}

static tgl_shape few_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    if (p->is_wide) return wide_shape(p, true, target);
    int64_t tiles;
    const int64_t blocks = few_blocks(p, target, &tiles);
    p->args.few = (tgl_few_cast){ .x = data_of(p),
                                  .out = (char *)p->out,
                                  .sf = p->sf.data,
                                  .x_row_bytes = (uint32_t)row_bytes_of(p),
                                  .sf_stride = (uint32_t)p->sf.stride,
                                  .num_cols = (uint32_t)p->num_cols,
                                  .x_sf = p->codes.sf,
                                  .by_x_block_rows = tgl_divisor_of(p->x_format != VALUES ? p->codes.block_rows : 1),
                                  .by_x_block_cols = tgl_divisor_of(p->x_format != VALUES ? p->codes.block_cols : 1) };
    return (tgl_shape){ { p->num_rows, blocks },
                        .block = (int)(32 * tgl_ceil_div(tiles, blocks)),
                        TGL_ARGS(p->args.few) };
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t groups = tgl_max(4, TOKEN_ANY_GROUPS / p->blocks.cols / 4 * 4);
    const int64_t units = tgl_ceil_div(p->blocks.num_cols, groups), max_blocks = TGL_DIVIDE_LIMIT - 1;
    p->args.cast = cast_of(p, units);
    p->args.cast.unit_groups = (int32_t)groups;
    p->args.cast.by_block_cols = tgl_divisor_of(p->blocks.cols);
    return (tgl_shape){ { tgl_min(p->num_rows * units, max_blocks), tgl_ceil_div(p->num_rows * units, max_blocks) },
                        .block = TOKEN_ANY_THREADS,
                        TGL_ARGS(p->args.cast) };
}

static const tgl_op OP = { cpu,
                           plan,
                           {
                               [FEW] = { fits_few, pays_few, few_shape },
                               [FAST] = { fits_fast, NULL, fast_shape },
                               [ANY] = { .shape = any_shape },
                           } };

static problem problem_of(const DLTensor *x, const DLTensor *x_sf, const DLTensor *sf, const DLTensor *out,
                          const tgl_quant_params *params, const sizes *n)
{
    problem p = { .num_rows = n->num_rows,
                  .num_cols = n->num_cols,
                  .x_format = VALUES,
                  .format = params->format,
                  .blocks = tgl_blocks_of(n->num_rows, n->num_cols, 1, params->num_per_channels),
                  .rule = tgl_scale_rule_of(params->format, params->round_sf),
                  .sf = tgl_sf_of(sf),
                  .has_out = out,
                  .out = tgl_data_or_null(out) };
    if (!x_sf) {
        p.values = tgl_values_of(x);
    } else {
        p.x_format = tgl_dtype_is(x->dtype, TGL_E4M3) ? TGL_FORMAT_E4M3 : TGL_FORMAT_E2M1;
        p.codes =
            tgl_codes_of(x, p.x_format, tgl_sf_of(x_sf),
                         tgl_blocks_of(n->num_rows, n->num_cols, params->x_num_per_tokens, params->x_num_per_channels));
    }
    return p;
}

tgl_status tgl_quant_per_token_cast(const DLTensor *x, const DLTensor *x_sf, DLTensor *out, DLTensor *out_sf,
                                    const tgl_quant_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, x_sf, out, out_sf };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_per_token_cast_signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0) return TGL_OK; /* kernels need at least one column */
    problem p = problem_of(x, x_sf, out_sf, out, params, &n);
    if (!tgl_on_cpu(x)) find_kernels(&p);
    return tgl_run(&tgl_quant_per_token_cast_signature, &OP, tensors, &p, stream);
}

tgl_status tgl_quant_per_token_cast_with_precomputed_sf(const DLTensor *x, const DLTensor *x_sf, const DLTensor *sf,
                                                        DLTensor *out, const tgl_quant_params *params,
                                                        tgl_stream stream)
{
    const DLTensor *tensors[] = { x, x_sf, sf, out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_per_token_cast_with_precomputed_sf_signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0) return TGL_OK; /* kernels need at least one column */
    problem p = problem_of(x, x_sf, sf, out, params, &n);
    p.is_given = true;
    if (!tgl_on_cpu(x)) find_kernels(&p);
    return tgl_run(&tgl_quant_per_token_cast_with_precomputed_sf_signature, &OP, tensors, &p, stream);
}
