/* SPDX-License-Identifier: MIT
 * per_token_cast.c - tgl_quant_per_token_cast, and with factors that are given: blocks of one row. */
#include <inttypes.h>

#include "core/log.h"
#include "core/math.h"
#include "cuda/launch.h"
#include "quant/cast.h"
#include "quant/common/check.h"
#include "quant/per_token_cast.h"

typedef struct {
    int64_t num_rows, num_cols;
    int x_format;               /* of the codes; VALUES: x has numbers */
    tgl_values values;
    tgl_codes codes;
    int format;
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;
    bool is_given;              /* sf is read, not written */
    bool has_out;               /* else only factors are wanted */
    uint8_t *out;
} problem;
enum { VALUES = -1 };

/* ---- CPU ---- */

static tgl_status run_on_cpu(const problem *p)
{
    const tgl_cast cast = {
        .from = p->x_format == VALUES ? tgl_read_values(&p->values) : tgl_read_codes(&p->codes),
        .num_rows = p->num_rows, .num_cols = p->num_cols, .format = p->format, .rule = p->rule,
        .block_rows = 1, .block_cols = p->blocks.cols, .sf = p->sf, .num_sf = p->blocks.num_cols,
        .is_given = p->is_given,
        .out = p->has_out ? p->out : NULL, .out_stride = tgl_code_bytes(p->format, p->num_cols)
    };
    return tgl_run_cast(&cast);
}

/* ---- checks ---- */

static tgl_status check_x(const DLTensor *x, const DLTensor *x_sf, const tgl_quant_params *params, problem *p)
{
    if (!x_sf) {
        TGL_TRY(tgl_expect_values("x", x));
        p->x_format = VALUES;
        p->num_rows = x->shape[0];
        p->num_cols = x->shape[1];
        p->values = tgl_values_of(x);
        return TGL_OK;
    }
    TGL_TRY(tgl_expect("x", x, TGL_E4M3 | TGL_E2M1X2 | TGL_I8 | TGL_U8, 2, TGL_ROWS));
    p->x_format = tgl_dtype_is(x->dtype, TGL_E4M3) ? TGL_FORMAT_E4M3 : TGL_FORMAT_E2M1;
    TGL_TRY(tgl_expect_codes("x", x, p->x_format));
    p->num_rows = x->shape[0];
    p->num_cols = tgl_num_cols(x, p->x_format);
    TGL_TRY(tgl_expect_block("x_num_per_tokens", params->x_num_per_tokens));
    TGL_TRY(tgl_expect_block("x_num_per_channels", params->x_num_per_channels));
    const tgl_blocks blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->x_num_per_tokens,
                                            params->x_num_per_channels);
    tgl_sf sf;
    TGL_TRY(tgl_expect_sf("x_sf", x_sf, blocks.num_rows, blocks.num_cols, &sf));
    p->codes = tgl_codes_of(x, p->x_format, sf, blocks);
    return TGL_OK;
}

/* sf is one of given_sf and out_sf; out may be NULL only with out_sf. */
static tgl_status check(const DLTensor *x, const DLTensor *x_sf, const DLTensor *given_sf,
                        const DLTensor *out, const DLTensor *out_sf, const tgl_quant_params *params,
                        problem *p)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_format(params->format, !x_sf));
    TGL_TRY(tgl_expect_block("num_per_channels", params->num_per_channels));
    TGL_TRY(check_x(x, x_sf, params, p));
    p->format = params->format;
    p->rule = tgl_scale_rule_of(params->format, params->round_sf);
    if (p->format == TGL_FORMAT_E5M6 && params->num_per_channels % 8)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_per_channels: is %" PRId64 ", want a multiple of 8 for e5m6",
                        params->num_per_channels);
    p->blocks = tgl_blocks_of(p->num_rows, p->num_cols, 1, params->num_per_channels);
    const int64_t num_sf = p->blocks.num_cols;
    p->has_out = out || p->is_given;
    if (p->has_out) TGL_TRY(tgl_expect_out_codes("out", out, p->format, p->num_rows, p->num_cols));
    else TGL_TRY(tgl_expect_whole_codes(p->num_cols, p->format));
    if (p->is_given) TGL_TRY(tgl_expect_sf("sf", given_sf, p->num_rows, num_sf, &p->sf));
    else TGL_TRY(tgl_expect_out_sf("out_sf", out_sf, p->num_rows, num_sf, params->round_sf, &p->sf));
    p->out = out ? tgl_data(out) : NULL;
    const tgl_named tensors[] = {
        { "x", x }, { "x_sf", x_sf }, { "sf", given_sf }, { "out", out }, { "out_sf", out_sf }
    };
    return tgl_expect_apart(tensors, 3, 5);
}

/* ---- launch ---- */

/* A configuration's kernels: one that does all, the one for its block_cols, if there is one, and that for few
 * rows; addresses, strides and the number of tokens choose. */
enum { ANY, FAST, FEW, MAX_KERNELS };
typedef struct {
    tgl_kernel kernels[MAX_KERNELS];
    int num_kernels, x, warp_cols;
    bool is_wide, is_joined;    /* FAST is */
} kernel_plan;

static int x_of(const problem *p)
{
    if (p->x_format == VALUES) return p->values.is_bf16 ? X_BF16 : X_F32;
    return p->x_format == TGL_FORMAT_E4M3 ? X_E4M3 : X_E2M1;
}

static kernel_plan plan_of(const problem *p)
{
    const int x = x_of(p);
    const int64_t cols = p->blocks.cols, values = X_VALUES(x), x_cols = p->codes.block_cols;
    const bool has_power = cols == 16 || cols == 32 || cols == 64 || cols == 128 || cols == 256;
    kernel_plan plan = { .num_kernels = 1, .x = x, .is_wide = !has_power };
    plan.warp_cols = TOKEN_WARP_COLS(x, plan.is_wide ? 0 : cols);
    plan.kernels[ANY] = (tgl_kernel){ "quant/per_token_cast_any", { { "X", x }, { "FORMAT", p->format } } };
    const bool is_wide_enough = cols == p->num_cols || cols > 256;
    const bool fits = has_power || (is_wide_enough && cols <= (int64_t)plan.warp_cols * TOKEN_MAX_WARPS);
    const bool has_vectors = cols % values == 0 && p->num_cols % values == 0 &&
                             (!X_IS_CODES(x) || x_cols % values == 0 || x_cols >= p->num_cols);
    if (!fits || !has_vectors) return plan;
    const int64_t few_cols = plan.warp_cols / 2, pair = 2 * values;
    const bool has_few = plan.is_wide ? cols <= few_cols * TOKEN_MAX_WARPS : few_cols % (4 * cols) == 0;
    plan.is_joined = has_few && !plan.is_wide && X_IS_CODES(x) && p->format == TGL_FORMAT_E2M1 &&
                     cols % pair == 0 && p->num_cols % pair == 0 &&
                     (x_cols % pair == 0 || x_cols >= p->num_cols);
    enum { IS_FEW, IS_JOINED };                                     /* places of macros */
    plan.kernels[FAST] = (tgl_kernel){
        plan.is_wide ? "quant/per_token_cast_wide" : "quant/per_token_cast",
        { [IS_FEW] = { "IS_FEW", 0 }, [IS_JOINED] = { "IS_JOINED", plan.is_joined },
          { "X", x }, { "X_SF_KIND", X_IS_CODES(x) ? p->codes.sf.kind : 0 }, { "FORMAT", p->format },
          { "SF_KIND", p->sf.kind }, { "IS_ROUNDED", p->rule.is_rounded && !p->is_given },
          { "IS_GIVEN", p->is_given }, { "HAS_OUT", p->has_out },
          { plan.is_wide ? NULL : "BLOCK_COLS", cols } }
    };
    plan.kernels[FEW] = plan.kernels[FAST];
    plan.kernels[FEW].macros[IS_FEW].value = 1;
    plan.kernels[FEW].macros[IS_JOINED].value = 0;
    plan.num_kernels = has_few ? MAX_KERNELS : FEW;
    return plan;
}

/* Do addresses and strides allow vectors, and are all numbers below 2^31? */
static bool is_fast(const problem *p, const kernel_plan *plan, const tgl_token_cast *c)
{
    if (plan->num_kernels == 1) return false;
    const int64_t x_bits = (int64_t)(uintptr_t)c->x | c->x_row_bytes;
    const int64_t vector_bytes = tgl_code_bytes(p->format, X_VALUES(plan->x));
    const int64_t store_bytes = p->format == TGL_FORMAT_E5M6 ? 4 : vector_bytes;
    return x_bits % X_VECTOR_BYTES(plan->x) == 0 && (int64_t)(uintptr_t)c->out % store_bytes == 0 &&
           p->num_rows < TGL_DIVIDE_LIMIT && p->num_cols < TGL_DIVIDE_LIMIT - plan->warp_cols;
}

/* Do they allow two vectors of codes at once? */
static bool can_join(const problem *p, const kernel_plan *plan, const tgl_token_cast *c)
{
    const int64_t x_bits = (int64_t)(uintptr_t)c->x | c->x_row_bytes;
    const int64_t out_bits = (int64_t)(uintptr_t)c->out | c->out_row_bytes;
    return x_bits % 16 == 0 && out_bits % tgl_code_bytes(p->format, 2 * X_VALUES(plan->x)) == 0;
}

/* Dynamic shared memory of a block of per_token_cast_wide: what its warps stage. With many rows it claims
 * more, so much that a block beyond TOKEN_SM_WARPS finds no room on an SM; of blocks with more than half of
 * these warps an SM has registers for two at most. */
static int64_t wide_shared_bytes(const problem *p, const kernel_plan *plan, int64_t warp_cols, int64_t warps,
                                 const tgl_target *target)
{
    const bool is_few = warp_cols < plan->warp_cols;
    const int64_t staged = warps * TOKEN_STAGED_BYTES(plan->x, p->format, is_few, warp_cols);
    if (is_few || !p->has_out || p->format != TGL_FORMAT_E5M6 || plan->x != X_F32) return staged;
    const int64_t claimed = target->max_smem_per_block / (TOKEN_SM_WARPS / warps + 1);
    return 2 * warps <= TOKEN_SM_WARPS && claimed > staged ? claimed : staged;
}

/* num_units and the launch shape of a kernel; false if it would be too large. */
static bool shape_fast(const problem *p, const kernel_plan *plan, int64_t warp_cols, const tgl_target *target,
                       tgl_token_cast *c, tgl_shape *shape)
{
    if (plan->is_wide) {
        c->num_units = c->sf.kind == TGL_SF_PACKED ? tgl_ceil_div(c->num_sf, 4) : c->num_sf;
        shape->grid[0] = c->num_rows * c->num_units;
        const int64_t warps = tgl_ceil_div(c->block_cols, warp_cols);
        shape->block = (int)(32 * warps);
        shape->shared_bytes = wide_shared_bytes(p, plan, warp_cols, warps, target);
    } else {
        c->num_units = tgl_ceil_div(c->num_cols, warp_cols);
        shape->grid[0] = tgl_ceil_div(c->num_rows, TOKEN_WARPS) * c->num_units;
        shape->block = 32 * TOKEN_WARPS;
    }
    return shape->grid[0] < TGL_DIVIDE_LIMIT;
}

/* Arguments and the launch shape of per_token_cast for few rows; false if numbers are too large for it. A
 * block has a part of a row, and no more warps than there are for each SM. */
static bool shape_few(const tgl_token_cast *c, int64_t warp_cols, const tgl_target *target, tgl_few_cast *few,
                      tgl_shape *shape)
{
    const int64_t tiles = tgl_ceil_div(c->num_cols, warp_cols);
    const int64_t sm_warps = tgl_ceil_div(c->num_rows * tiles, target->num_sms);
    const int64_t blocks = tgl_ceil_div(tiles, sm_warps < TOKEN_WARPS ? sm_warps : TOKEN_WARPS);
    *few = (tgl_few_cast){ .x = c->x, .out = c->out, .sf = c->sf.data,
                           .x_row_bytes = (uint32_t)c->x_row_bytes, .sf_stride = (uint32_t)c->sf.stride,
                           .num_cols = (uint32_t)c->num_cols, .x_sf = c->x_sf,
                           .by_x_block_rows = c->by_x_block_rows, .by_x_block_cols = c->by_x_block_cols };
    if (few->x_row_bytes != c->x_row_bytes || few->sf_stride != c->sf.stride || blocks > UINT16_MAX)
        return false;
    *shape = (tgl_shape){ { c->num_rows, blocks }, .block = (int)(32 * tgl_ceil_div(tiles, blocks)) };
    return true;
}

static void shape_any(tgl_token_cast *c, tgl_shape *shape)
{
    const int64_t groups = TOKEN_ANY_GROUPS / c->block_cols / 4 * 4, max_blocks = TGL_DIVIDE_LIMIT - 1;
    c->unit_groups = (int32_t)(groups ? groups : 4);
    c->num_units = tgl_ceil_div(c->num_sf, c->unit_groups);
    c->by_block_cols = tgl_divisor_of(c->block_cols);
    const int64_t units = c->num_rows * c->num_units;
    shape->grid[0] = units < max_blocks ? units : max_blocks;
    shape->grid[1] = tgl_ceil_div(units, max_blocks);
    shape->block = TOKEN_ANY_THREADS;
    shape->shared_bytes = 0;
}

static tgl_token_cast arguments_of(const problem *p)
{
    const bool is_codes = p->x_format != VALUES;
    tgl_token_cast c = {
        .x = is_codes ? (const char *)p->codes.data : p->values.data, .out = (char *)p->out,
        .sf = p->sf, .x_sf = p->codes.sf,
        .x_row_bytes = is_codes ? p->codes.row_bytes : p->values.row_bytes,
        .out_row_bytes = tgl_code_bytes(p->format, p->num_cols),
        .num_rows = p->num_rows, .num_cols = p->num_cols,
        .block_cols = p->blocks.cols, .num_sf = p->blocks.num_cols,
        .x_block_rows = is_codes ? p->codes.block_rows : 1,
        .x_block_cols = is_codes ? p->codes.block_cols : 1,
        .rule = p->rule, .is_given = p->is_given, .has_out = p->has_out
    };
    c.by_x_block_rows = tgl_divisor_of(c.x_block_rows);
    c.by_x_block_cols = tgl_divisor_of(c.x_block_cols);
    return c;
}

static tgl_status run_on_cuda(const problem *p, const DLTensor *on, tgl_stream stream)
{
    const kernel_plan plan = plan_of(p);
    if (tgl_preparing()) return tgl_launch(plan.kernels, plan.num_kernels, ANY, on, NULL, stream, NULL);
    tgl_target target;
    TGL_TRY(tgl_target_of(on, &target));
    tgl_token_cast c = arguments_of(p);
    tgl_shape shape = { .block = 0 };
    const bool can_fast = is_fast(p, &plan, &c) && shape_fast(p, &plan, plan.warp_cols, &target, &c, &shape);
    int which = can_fast ? FAST : ANY;
    const bool cannot_join = plan.is_joined && !can_join(p, &plan, &c);
    const bool is_few = shape.grid[0] <= TOKEN_FEW_BLOCKS * target.num_sms || cannot_join;
    tgl_few_cast few;
    void *args[] = { &c };
    if (which == FAST && FEW < plan.num_kernels && is_few) {
        if (plan.is_wide) {                                     /* twice the tiles: there may be too many */
            which = shape_fast(p, &plan, plan.warp_cols / 2, &target, &c, &shape) ? FEW : ANY;
        } else if (shape_few(&c, plan.warp_cols / 2, &target, &few, &shape)) {
            which = FEW;
            args[0] = &few;
        } else if (cannot_join) {
            which = ANY;
        }
    }
    if (which == ANY) shape_any(&c, &shape);
    c.by_units = tgl_divisor_of(c.num_units);
    return tgl_launch(plan.kernels, plan.num_kernels, which, on, &shape, stream, args);
}

static tgl_status run(const problem *p, const DLTensor *on, tgl_stream stream)
{
    if (p->num_cols == 0) return TGL_OK;                            /* no kernel has no columns */
    if (p->num_rows == 0 && !tgl_preparing()) return TGL_OK;        /* data may be NULL */
    return tgl_on_cpu(on) ? run_on_cpu(p) : run_on_cuda(p, on, stream);
}

tgl_status tgl_quant_per_token_cast(const DLTensor *x, const DLTensor *x_sf, DLTensor *out, DLTensor *out_sf,
                                    const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_token_cast", "x", x, "x_sf", x_sf, "out", out, "out_sf", out_sf, NULL);
    problem p = { .is_given = false };
    TGL_TRY(check(x, x_sf, NULL, out, out_sf, params, &p));
    return run(&p, x, stream);
}

tgl_status tgl_quant_per_token_cast_with_precomputed_sf(const DLTensor *x, const DLTensor *x_sf,
                                                        const DLTensor *sf, DLTensor *out,
                                                        const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_per_token_cast_with_precomputed_sf", "x", x, "x_sf", x_sf, "sf", sf,
                     "out", out, NULL);
    problem p = { .is_given = true };
    TGL_TRY(check(x, x_sf, sf, out, NULL, params, &p));
    return run(&p, x, stream);
}
