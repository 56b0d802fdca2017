/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast.c - tgl_quant_swiglu_forward_and_per_token_cast: weighted activations, in
 * blocks of one row. */
#include <math.h>

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "numerics/divide.h"
#include "quant/common/activations.h"
#include "quant/common/params.h"
#include "quant/swiglu_forward_and_per_token_cast.h"

typedef struct {
    int64_t num_rows, num_cols; /* of out */
    tgl_values x;               /* twice the columns */
    bool has_weights;
    const int32_t *pos_to_token_topk;
    const float *topk_weights;
    int64_t num_weights;
    bool has_experts; /* else every row counts */
    const int32_t *pos_to_expert;
    bool has_count;
    int64_t *clamped_count;
    float clamp; /* infinite: none */
    int format;
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;
    uint8_t *out;
    /* for kernels (find_kernels) */
    enum { TILES, ROW, NONE } kind;   /* of MADE */
    int64_t block_cols, lanes, tiles; /* macros of TILES */
    int64_t lanes_for_few;
    int64_t steps; /* macro of ROW */
    forward_args args;
} problem;

/* ---- CPU ---- */

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const tgl_activations activations = { .x = p->x,
                                          .num_cols = p->num_cols,
                                          .clamp = p->clamp,
                                          .topk_weights = p->topk_weights,
                                          .pos_to_token_topk = p->has_weights ? p->pos_to_token_topk : NULL,
                                          .num_weights = p->num_weights };
    const tgl_cast cast = { .from = tgl_read_activations(&activations),
                            .num_rows = p->num_rows,
                            .num_cols = p->num_cols,
                            .format = p->format,
                            .rule = p->rule,
                            .block_rows = 1,
                            .block_cols = p->blocks.cols,
                            .sf = p->sf,
                            .num_sf = p->blocks.num_cols,
                            .out = p->out,
                            .out_stride = tgl_code_bytes(p->format, p->num_cols) };
    int64_t counts[3] = { 0 };
    TGL_LINES float kept[10 << 10];
    for (int64_t t = begin; t < end; t++) {
        if (p->has_experts && p->pos_to_expert[t] < 0) continue;
        tgl_cast_row(&cast, t, (tgl_kept){ kept, sizeof kept });
        if (p->has_count) tgl_count_clamped(&activations, t, counts);
    }
    for (int i = 0; p->has_count && i < 3; i++) __atomic_fetch_add(&p->clamped_count[i], counts[i], __ATOMIC_RELAXED);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_rows, 8 * p->num_cols, run_rows, p);
}

TGL_SIZES(sizes, num_rows, num_cols, num_tokens, num_topk);
tgl_signature tgl_quant_swiglu_forward_and_per_token_cast_signature = TGL_SIGNATURE(
    "quant_swiglu_forward_and_per_token_cast(x: bf16|f32[num_rows, 2 * num_cols (gates, ups)] rows,"
    " pos_to_token_topk: i32[num_rows]?, topk_weights: f32[num_tokens, num_topk]?, pos_to_expert: i32[num_rows]?,"
    " clamped_count: i64[3]?!, format: {e4m3|e2m1}, num_per_channels: int = num_cols, round_sf: bool,"
    " " TGL_SWIGLU_CLAMP ", has_sf_clamp_min: bool, sf_clamp_min: float >= 0 with has_sf_clamp_min)"
    " -> out: format[num_rows, num_cols], out_sf: sf[num_rows, num_cols / num_per_channels]"
    " where num_cols < 2^59, pos_to_token_topk needs topk_weights, topk_weights needs pos_to_token_topk,"
    " clamped_count needs has_swiglu_clamp_value, out_sf of i32 needs round_sf",
    &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int x_of(const problem *p) { return p->x.is_bf16 ? X_BF16 : X_F32; }

static void find_kernels(problem *p)
{
    const int64_t vector = X_VALUES(x_of(p)), vectors = p->num_cols / vector;
    p->kind = NONE;
    if (p->num_cols % vector || p->num_cols > INT32_MAX / 2) return;
    int64_t width = 8; /* of a single block it may exceed num_cols */
    while (width < p->blocks.cols) width *= 2;
    const bool is_power = width == p->blocks.cols || p->blocks.num_cols == 1;
    if (is_power && width <= FORWARD_MAX_BLOCK) {
        /* blocks that count already loop over pieces, and have no registers for another loop */
        const bool has_long_parts = (p->has_weights || p->has_experts) && !p->has_count;
        p->kind = TILES;
        p->block_cols = width;
        p->lanes_for_few = width / vector; /* with a vector each */
        p->lanes = tgl_min(p->lanes_for_few, FORWARD_LANES);
        p->tiles = has_long_parts ? FORWARD_TILES : 1;
        return;
    }
    p->steps = 1;
    while (p->steps<FORWARD_ROW_VALUES / vector &&tgl_ceil_div(vectors, p->steps)> FORWARD_ROW_THREADS / 2)
        p->steps *= 2;
    if (p->blocks.num_cols == 1 && tgl_ceil_div(vectors, p->steps) <= FORWARD_ROW_THREADS) p->kind = ROW;
}

/* MADE: for these blocks, if there is such a kernel: parts of several tiles, or whole rows. FOR_FEW: for few
 * tiles; more lanes share one, and a part is one tile. FOR_SOME: for neither few nor many; a part is one
 * tile. ANY: for all other blocks, addresses and strides. */
enum { FOR_FEW, FOR_SOME, MADE, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const bool has_tiles = p->kind == TILES;
    const tgl_macro x = { "X", x_of(p) }, format = { "FORMAT", p->format };
    const tgl_macro is_rounded = { "IS_ROUNDED", p->rule.is_rounded };
    const tgl_macro clamp = { "CLAMP", p->has_count      ? FORWARD_COUNT
                                       : isinf(p->clamp) ? FORWARD_NO_CLAMP
                                                         : FORWARD_CLAMP };
    enum { LANES = 5, TILES_OF_PART = 7 }; /* places of macros */
    const tgl_kernel tiles = { has_tiles ? "quant/swiglu_forward_and_per_token_cast" : NULL,
                               { x,
                                 format,
                                 is_rounded,
                                 clamp,
                                 { "BLOCK_COLS", p->block_cols },
                                 [LANES] = { "BLOCK_LANES", p->lanes },
                                 { "SF_KIND", p->sf.kind },
                                 [TILES_OF_PART] = { "TILES", 1 } } };
    kernels[FOR_FEW] = kernels[FOR_SOME] = kernels[MADE] = tiles;
    kernels[FOR_FEW].macros[LANES].value = p->lanes_for_few;
    kernels[MADE].macros[TILES_OF_PART].value = p->tiles;
    if (p->tiles == 1) kernels[FOR_SOME].name = NULL; /* it is MADE */
    if (p->tiles == 1 && p->lanes == p->lanes_for_few) kernels[FOR_FEW].name = NULL;
    if (p->kind == ROW)
        kernels[MADE] = (tgl_kernel){ "quant/swiglu_forward_and_per_token_cast_row",
                                      { x, format, is_rounded, clamp, { "STEPS", p->steps } } };
    kernels[ANY] = (tgl_kernel){ "quant/swiglu_forward_and_per_token_cast_any", { x, format, is_rounded, clamp } };
    return NUM_KERNELS;
}

static bool fits(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const uintptr_t out_bytes = (uintptr_t)tgl_code_bytes(p->format, X_VALUES(x_of(p)));
    const int64_t row_bytes = p->num_rows > 1 ? p->x.row_bytes : 0;
    return ((uintptr_t)p->x.data | (uintptr_t)row_bytes) % 16 == 0 && (uintptr_t)p->out % out_bytes == 0 &&
           p->num_rows <= INT32_MAX;
}

static int64_t num_tiles(const problem *p)
{
    return p->num_rows * tgl_ceil_div(p->num_cols, 32 / p->lanes * p->block_cols);
}

static bool are_few(const void *p, const tgl_target *target)
{
    return num_tiles(p) < FORWARD_BLOCKS_PER_SM * target->num_sms;
}

static bool are_not_many(const void *p, const tgl_target *target)
{
    return num_tiles(p) < FORWARD_MANY_TILES * FORWARD_BLOCKS_PER_SM * target->num_sms;
}

static void set_args(problem *p)
{
    p->args = (forward_args){ .x = p->x.data,
                              .row_bytes = p->x.row_bytes,
                              .pos_to_token_topk = p->pos_to_token_topk,
                              .topk_weights = p->topk_weights,
                              .num_weights = p->num_weights,
                              .pos_to_expert = p->pos_to_expert,
                              .clamped_count = p->clamped_count,
                              .clamp = p->clamp,
                              .floor = p->rule.floor,
                              .sf = p->sf,
                              .out = p->out,
                              .num_rows = p->num_rows,
                              .num_cols = p->num_cols,
                              .block_cols = p->blocks.cols };
}

/* Parts of `tiles` tiles, in which `lanes` lanes share a block. */
static tgl_shape tiles_shape(problem *p, int64_t lanes, int64_t tiles, const tgl_target *target)
{
    forward_args *a = &p->args;
    set_args(p);
    a->num_parts = (uint32_t)tgl_ceil_div(p->num_cols, tiles * (32 / lanes * p->block_cols));
    a->by_parts = tgl_divisor_of(a->num_parts);
    /* spread few rows over all SMs */
    int64_t warps = are_few(p, target) ? 1 : FORWARD_WARPS;
    while (warps < FORWARD_WARPS && warps * target->num_sms < p->num_rows * a->num_parts) warps *= 2;
    a->num_pieces = (uint32_t)(tgl_ceil_div(p->num_rows, warps) * a->num_parts);
    /* few blocks if they count, as all add to the same words */
    const int64_t at_most = FORWARD_BLOCKS_PER_SM * target->num_sms;
    return (tgl_shape){ { p->has_count ? tgl_strided_grid(a->num_pieces, at_most) : a->num_pieces },
                        .block = (int)(32 * warps),
                        TGL_ARGS(*a) };
}

static tgl_shape few_shape(void *context, const tgl_target *target)
{
    return tiles_shape(context, ((problem *)context)->lanes_for_few, 1, target);
}

static tgl_shape some_shape(void *context, const tgl_target *target)
{
    return tiles_shape(context, ((problem *)context)->lanes, 1, target);
}

static tgl_shape made_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    if (p->kind == TILES) return tiles_shape(p, p->lanes, p->tiles, target);
    set_args(p);
    const int64_t threads = tgl_ceil_div(p->num_cols / X_VALUES(x_of(p)), p->steps);
    return (tgl_shape){ { p->num_rows }, .block = (int)(tgl_ceil_div(threads, 32) * 32), TGL_ARGS(p->args) };
}

static tgl_shape any_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    set_args(p);
    return (tgl_shape){ { tgl_strided_grid(p->num_rows, FORWARD_BLOCKS_PER_SM * target->num_sms) },
                        .block = 32 * FORWARD_ANY_WARPS,
                        TGL_ARGS(p->args) };
}

static const tgl_op OP = { cpu,
                           plan,
                           {
                               [FOR_FEW] = { fits, are_few, few_shape },
                               [FOR_SOME] = { fits, are_not_many, some_shape },
                               [MADE] = { fits, NULL, made_shape },
                               [ANY] = { .shape = any_shape },
                           } };

tgl_status tgl_quant_swiglu_forward_and_per_token_cast(const DLTensor *x, const DLTensor *pos_to_token_topk,
                                                       const DLTensor *topk_weights, const DLTensor *pos_to_expert,
                                                       DLTensor *clamped_count, DLTensor *out, DLTensor *out_sf,
                                                       const tgl_quant_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, pos_to_token_topk, topk_weights, pos_to_expert, clamped_count, out, out_sf };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_swiglu_forward_and_per_token_cast_signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0 || (n.num_rows == 0 && !tgl_preparing())) return TGL_OK; /* counts stay as they are */
    problem p = { .num_rows = n.num_rows,
                  .num_cols = n.num_cols,
                  .x = tgl_values_of(x),
                  .has_weights = topk_weights,
                  .pos_to_token_topk = topk_weights ? tgl_data(pos_to_token_topk) : NULL,
                  .topk_weights = tgl_data_or_null(topk_weights),
                  .num_weights = n.num_tokens * n.num_topk,
                  .has_experts = pos_to_expert,
                  .pos_to_expert = tgl_data_or_null(pos_to_expert),
                  .has_count = clamped_count,
                  .clamped_count = tgl_data_or_null(clamped_count),
                  .clamp = params->has_swiglu_clamp_value ? params->swiglu_clamp_value : INFINITY,
                  .format = params->format,
                  .blocks = tgl_blocks_of(n.num_rows, n.num_cols, 1, params->num_per_channels),
                  .rule = tgl_scale_rule_of(params->format, params->round_sf),
                  .sf = tgl_sf_of(out_sf),
                  .out = tgl_data(out) };
    if (params->has_sf_clamp_min) p.rule.floor = params->sf_clamp_min;
    if (!tgl_on_cpu(x)) find_kernels(&p);
    return tgl_run(&tgl_quant_swiglu_forward_and_per_token_cast_signature, &OP, tensors, &p, stream);
}
