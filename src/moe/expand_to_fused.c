/* SPDX-License-Identifier: MIT
 * expand_to_fused.c - tgl_moe_expand_to_fused and tgl_moe_expand_to_fused_with_sf: copies every token's row,
 * and its scale factors, to the token's positions; padding gets zeros. */
#include "moe/expand_to_fused.h"

#include <inttypes.h>

#include "core/log_indices.h"
#include "core/math.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "tegula/moe.h"

/* args come first: most functions below take the problem for them. */
typedef struct {
    expand_args args;
    tgl_shape bulk; /* the launch if the device has no room for clusters */
    tgl_other_launch otherwise;
} problem;

/* ---- CPU ---- */

static void cpu_padding(const void *context, int64_t begin, int64_t end) /* positions */
{
    const expand_args *a = context;
    for (int64_t at = begin; at < end; at++) {
        if (a->pos_to_expert[at] >= 0) continue;
        memset(a->out + at * a->row_bytes, 0, (size_t)a->row_bytes);
        for (int64_t i = 0; i < a->num_sf; i++) a->out_sf[at * a->out_sf_row + i * a->out_sf_col] = 0;
    }
}

/* Rows are scattered over pages that miss the TLB: prefetching the next row's before copying this one saves a
 * tenth of the time (rows of 14 KB, 256 experts, Neoverse-N1). */
static void prefetch(const expand_args *a, int64_t position)
{
    enum { PAGE_BYTES = 4096 };
    if (position < 0 || position >= a->num_positions) return;
    const uint8_t *row = a->out + position * a->row_bytes;
    for (int64_t i = 0; i < a->row_bytes; i += PAGE_BYTES) __builtin_prefetch(row + i, 1, 0);
}

static void cpu_tokens(const void *context, int64_t begin, int64_t end)
{
    const expand_args *a = context;
    for (int64_t t = begin; t < end; t++) {
        const int32_t *positions = a->token_topk_to_pos + t * a->num_topk;
        const int64_t known = t + 1 < end ? a->num_topk + 1 : a->num_topk;
        const uint8_t *row = a->x + t * a->x_stride;
        const uint32_t *sf = a->num_sf ? a->x_sf + t * a->x_sf_row : NULL;
        for (int64_t k = 0; k < a->num_topk; k++) {
            const int64_t at = positions[k];
            if (k + 1 < known) prefetch(a, positions[k + 1]);
            if (at < 0 || at >= a->num_positions || a->pos_to_expert[at] < 0) continue;
            memcpy(a->out + at * a->row_bytes, row, (size_t)a->row_bytes);
            for (int64_t i = 0; i < a->num_sf; i++)
                a->out_sf[at * a->out_sf_row + i * a->out_sf_col] = sf[i * a->x_sf_col];
        }
    }
}

static tgl_status cpu(const void *context)
{
    const expand_args *a = context;
    const int64_t bytes = a->row_bytes + 4 * a->num_sf;
    TGL_TRY(tgl_parallel_rows(a->num_positions, bytes, cpu_padding, a));
    if (a->num_tokens == 0 || a->num_topk == 0) return TGL_OK;
    return tgl_parallel_rows(a->num_tokens, tgl_saturating_product(bytes, a->num_topk + 1), cpu_tokens, a);
}

/* ---- signatures ---- */

tgl_signature tgl_moe_expand_to_fused_signature =
    TGL_SIGNATURE("moe_expand_to_fused(x: any[num_tokens, hidden] rows,"
                  " token_topk_to_pos: i32[num_tokens, num_topk], pos_to_expert: i32[num_positions])"
                  " -> out: x[num_positions, hidden]",
                  NULL);

tgl_signature tgl_moe_expand_to_fused_with_sf_signature =
    TGL_SIGNATURE("moe_expand_to_fused_with_sf(x: any[num_tokens, hidden] rows,"
                  " x_sf: f32|i32[num_tokens, num_sf] strided, token_topk_to_pos: i32[num_tokens, num_topk],"
                  " pos_to_expert: i32[num_positions], num_per_channels: int >= 1)"
                  " -> out: x[num_positions, hidden], out_sf: x_sf[num_positions, num_sf] strided",
                  NULL);

/* One scale factor per num_per_channels values; an i32 holds four factors. A byte may hold two values,
 * e2m1x2 does. */
static tgl_status check_num_sf(const DLTensor *x, const DLTensor *x_sf, int64_t num_per_channels)
{
    const int64_t hidden = x->shape[1], per_word = tgl_dtype_is(x_sf->dtype, TGL_I32) ? 4 : 1;
    int64_t pairs = 0; /* 2 * hidden may overflow if there are no tokens */
    const bool may_be_pairs =
        tgl_dtype_is(x->dtype, TGL_I8 | TGL_U8 | TGL_E2M1X2) && !__builtin_mul_overflow(hidden, 2, &pairs);
    pairs = tgl_ceil_div(tgl_ceil_div(pairs, num_per_channels), per_word);
    const bool are_pairs = may_be_pairs && tgl_dtype_is(x->dtype, TGL_E2M1X2);
    const int64_t single = are_pairs ? pairs : tgl_ceil_div(tgl_ceil_div(hidden, num_per_channels), per_word);
    const int64_t num_tokens = x->shape[0], num_sf = x_sf->shape[1];
    if (num_sf == single || (may_be_pairs && num_sf == pairs)) return TGL_OK;
    if (may_be_pairs && pairs != single)
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "x_sf: shape is [%" PRId64 ", %" PRId64 "], want [%" PRId64 ", %" PRId64 "] or [%" PRId64
                        ", %" PRId64 "]",
                        num_tokens, num_sf, num_tokens, single, num_tokens, pairs);
    return tgl_expect_shape("x_sf", x_sf, (tgl_dim[]){ { num_tokens, num_tokens }, { single, single } });
}

/* Row-major and packed, or column-major without overlap. */
static tgl_status check_out_sf_layout(const DLTensor *out_sf)
{
    const int64_t rows = out_sf->shape[0], cols = out_sf->shape[1];
    const int64_t row = tgl_stride(out_sf, 0), col = tgl_stride(out_sf, 1);
    const bool is_packed = (rows == 1 || row == cols) && (cols == 1 || col == 1);
    const bool is_col_major = (rows == 1 || row == 1) && (cols == 1 || col >= rows);
    if (tgl_is_empty(out_sf) || is_packed || is_col_major) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT,
                    "out_sf: strides are [%" PRId64 ", %" PRId64 "], want [%" PRId64 ", 1] or [1, >= %" PRId64 "]", row,
                    col, cols, rows);
}

/* ---- launch ---- */

/* The device, sizes, strides and addresses of a call choose the kernel. */
enum { COLUMNS, BULK, PLAIN, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const bool has_sf = ((const expand_args *)context)->num_sf > 0;
    kernels[COLUMNS] = (tgl_kernel){ .name = has_sf ? "moe/expand_to_fused_columns" : NULL };
    kernels[BULK] = (tgl_kernel){ .name = "moe/expand_to_fused_bulk" };
    kernels[PLAIN] = (tgl_kernel){ .name = "moe/expand_to_fused" };
    return NUM_KERNELS;
}

enum { MAX_BLOCKS = 1 << 30, MAX_Y = 65535 };

static bool has_few_rows(const expand_args *a) { return a->num_tokens + a->num_positions < EXPAND_FEW_ROWS; }
static bool has_many_rows(const expand_args *a) { return a->num_tokens + a->num_positions >= EXPAND_BULK_MANY; }
static bool has_columns(const expand_args *a) { return a->num_sf > 0 && a->out_sf_row == 1; }

/* Blocks load about as much as they store. */
static bool has_few_copies(const expand_args *a) { return a->num_positions / EXPAND_BULK_COPIES < a->num_tokens; }

/* The largest power of two, up to 16, that divides all addresses of rows. */
static int64_t unit_bytes(const expand_args *a)
{
    const uint64_t bits = (uintptr_t)a->x | (uintptr_t)a->out | (uint64_t)(a->row_bytes | a->x_stride) | 16;
    return (int64_t)(bits & -bits);
}

/* Positions that a block checks for padding. */
static int64_t block_positions(const expand_args *a)
{
    return tgl_max(1, tgl_min(EXPAND_POSITIONS, a->num_positions / 1024));
}

static void divide(expand_args *a)
{
    const int64_t positions = block_positions(a);
    a->unit_bytes = (int32_t)unit_bytes(a);
    a->row_units = a->row_bytes / a->unit_bytes;
    a->positions = (int32_t)positions;
    a->padding_blocks = (int32_t)tgl_min(tgl_ceil_div(a->num_positions, positions), MAX_BLOCKS);
    a->reads_early = a->num_tokens <= tgl_max(EXPAND_EARLY_TOKENS, a->num_positions);
}

/* ---- bulk stores ---- */

/* Chunk size. Few rows are cut into smaller chunks, so that there are blocks for all SMs. So are many rows
 * with few copies: the last blocks are shorter, and all SMs together store fewer rows at a time, so that more
 * of what reaches DRAM is contiguous. But blocks that gather factors need shared memory (8 ranks: 106 us, 115
 * with less). */
static int64_t bulk_bytes(const expand_args *a)
{
    const int64_t limit = has_few_rows(a)                          ? EXPAND_BULK_FEW_BYTES
                          : has_many_rows(a) && !has_few_copies(a) ? EXPAND_BULK_BYTES
                          : has_many_rows(a) && !has_columns(a)    ? EXPAND_BULK_SPREAD_BYTES
                                                                   : EXPAND_BULK_SOME_BYTES;
    return tgl_ceil_div(tgl_ceil_div(a->row_bytes, tgl_ceil_div(a->row_bytes, limit)), 128) * 128;
}

/* Shared memory of a block. For many rows with few copies it exceeds the chunk, to limit the blocks per SM:
 * 57 KB of chunks in flight are enough there, and more are slower (H200, 2026-11, 8192 tokens per rank, 32 of 256
 * experts: 410 us with 215 KB, 405 with 57). With more copies blocks mostly store, and more in flight is
 * better. */
static int64_t bulk_shared_bytes(const expand_args *a)
{
    const int64_t bytes = bulk_bytes(a);
    return has_many_rows(a) && has_few_copies(a) ? bytes * 7 / 2 : bytes;
}

/* Blocks, if each does both: copies a token and checks some positions for padding. */
static int64_t both_blocks(const expand_args *a)
{
    return tgl_max(a->num_tokens, tgl_ceil_div(a->num_positions, block_positions(a)));
}

static bool can_bulk(const void *context, const tgl_target *target)
{
    const expand_args *a = context;
    return target->architecture >= 90 && unit_bytes(a) == 16 && a->num_topk <= 32 && both_blocks(a) <= MAX_BLOCKS &&
           tgl_ceil_div(a->row_bytes, bulk_bytes(a)) <= MAX_Y;
}

static tgl_shape bulk_shape_of(expand_args *a, bool do_both)
{
    const int64_t bytes = bulk_bytes(a);
    divide(a);
    a->chunks = tgl_ceil_div(a->row_bytes, bytes);
    a->chunk_units = (int32_t)(bytes / 16);
    int64_t blocks = a->padding_blocks + (a->num_topk ? tgl_min(a->num_tokens, MAX_BLOCKS) : 0);
    if (do_both) {
        blocks = both_blocks(a);
        a->padding_blocks = 0;
        a->positions = (int32_t)tgl_ceil_div(a->num_positions, blocks);
    }
    const int64_t z = tgl_ceil_div(blocks, MAX_Y);
    return (tgl_shape){
        { a->chunks, tgl_ceil_div(blocks, z), z }, .block = 32, .shared_bytes = bulk_shared_bytes(a), TGL_ARGS(*a)
    };
}

static tgl_shape bulk_shape(void *context, const tgl_target *target)
{
    expand_args *a = context;
    return bulk_shape_of(a, has_many_rows(a));
}

/* ---- scale factors in columns, gathered by clusters ---- */

static int64_t columns_shared_bytes(const expand_args *a) { return tgl_max(bulk_shared_bytes(a), EXPAND_SF_MIN_BYTES); }

/* Positions of a cluster's window; at least 2 KB of shared memory remain for slots. */
static int64_t window_positions(const expand_args *a)
{
    const int64_t tile = 32 * EXPAND_SF_CLUSTER;
    const int64_t tiles = tgl_min(EXPAND_SF_TILES, tgl_ceil_div(a->num_tokens * a->num_topk, EXPAND_SF_SLOTS));
    return tile * tgl_min(tiles, (columns_shared_bytes(a) - 2048) / (4 * tile));
}

static int64_t window_blocks(const expand_args *a)
{
    return tgl_ceil_div(a->num_positions, window_positions(a)) * EXPAND_SF_CLUSTER;
}

static bool can_gather(const void *context, const tgl_target *target)
{
    const expand_args *a = context;
    int64_t slots;
    return has_columns(a) && can_bulk(context, target) && a->num_positions <= INT32_MAX &&
           !__builtin_mul_overflow(a->num_tokens, a->num_topk, &slots) && slots > 0 && slots <= MAX_BLOCKS &&
           both_blocks(a) <= MAX_BLOCKS / tgl_ceil_div(a->row_bytes, bulk_bytes(a)) && window_blocks(a) <= MAX_BLOCKS;
}

/* Scanning all slots for each window, 32 at a time, must cost less than storing each factor alone. */
static bool gathering_pays(const void *context, const tgl_target *target)
{
    const expand_args *a = context;
    return has_many_rows(a) && a->num_tokens * a->num_topk / 32 / window_positions(a) <= a->num_sf;
}

static tgl_shape columns_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    expand_args *a = &p->args;
    p->bulk = bulk_shape_of(a, true);
    p->otherwise = (tgl_other_launch){ BULK, &p->bulk };
    a->sf_blocks = (int32_t)window_blocks(a);
    a->sf_positions = (int32_t)window_positions(a);
    a->sf_words = (int32_t)(columns_shared_bytes(a) / 4);
    const int64_t clusters = tgl_ceil_div(a->sf_blocks + a->chunks * both_blocks(a), EXPAND_SF_CLUSTER);
    return (tgl_shape){ { clusters * EXPAND_SF_CLUSTER }, .block = 32,
                        .shared_bytes = 4 * a->sf_words,  .cluster = EXPAND_SF_CLUSTER,
                        .otherwise = &p->otherwise,       TGL_ARGS(*a) };
}

/* ---- any rows ---- */

static tgl_shape plain_shape(void *context, const tgl_target *target)
{
    expand_args *a = context;
    divide(a);
    const bool is_few = has_few_rows(a);
    const int64_t per_thread = is_few ? 1 : EXPAND_UNITS, max_threads = is_few ? 128 : EXPAND_THREADS;
    const int64_t row_chunks = tgl_ceil_div(a->row_units, max_threads * per_thread);
    const int64_t threads = tgl_ceil_div(tgl_ceil_div(a->row_units, row_chunks * per_thread), 32) * 32;
    a->chunk_units = (int32_t)(threads * per_thread);
    a->chunks = tgl_max(row_chunks, tgl_ceil_div(a->num_sf, threads));
    a->padding_blocks = (int32_t)tgl_strided_grid(a->padding_blocks, MAX_BLOCKS);
    const int64_t token_blocks = a->num_topk ? tgl_strided_grid(a->num_tokens, MAX_BLOCKS) : 0;
    return (tgl_shape){ { a->padding_blocks + token_blocks, tgl_strided_grid(a->chunks, MAX_Y) },
                        .block = (int)threads,
                        TGL_ARGS(*a) };
}

static const tgl_op OP = { cpu,
                           plan,
                           {
                               [COLUMNS] = { can_gather, gathering_pays, columns_shape },
                               [BULK] = { can_bulk, NULL, bulk_shape },
                               [PLAIN] = { NULL, NULL, plain_shape },
                           } };

static expand_args args_of(const DLTensor *x, const DLTensor *token_topk_to_pos, const DLTensor *pos_to_expert,
                           const DLTensor *out)
{
    const int64_t element_bytes = tgl_dtype_bits(x->dtype) / 8;
    return (expand_args){
        .x = tgl_data(x),
        .out = tgl_data(out),
        .token_topk_to_pos = tgl_data(token_topk_to_pos),
        .pos_to_expert = tgl_data(pos_to_expert),
        .num_tokens = x->shape[0],
        .num_topk = token_topk_to_pos->shape[1],
        .num_positions = pos_to_expert->shape[0],
        .row_bytes = tgl_saturating_product(x->shape[1], element_bytes), /* out may be empty */
        .x_stride = tgl_step_of(x, 0) * element_bytes,
    };
}

tgl_status tgl_moe_expand_to_fused(const DLTensor *x, const DLTensor *token_topk_to_pos, const DLTensor *pos_to_expert,
                                   DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, token_topk_to_pos, pos_to_expert, out };
    TGL_TRY(tgl_take(&tgl_moe_expand_to_fused_signature, tensors, NULL, NULL));
    tgl_log_indices("token_topk_to_pos", token_topk_to_pos, out->shape[0]);
    problem p = { .args = args_of(x, token_topk_to_pos, pos_to_expert, out) };
    return tgl_run(&tgl_moe_expand_to_fused_signature, &OP, tensors, &p, stream);
}

tgl_status tgl_moe_expand_to_fused_with_sf(const DLTensor *x, const DLTensor *x_sf, const DLTensor *token_topk_to_pos,
                                           const DLTensor *pos_to_expert, DLTensor *out, DLTensor *out_sf,
                                           int64_t num_per_channels, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, x_sf, token_topk_to_pos, pos_to_expert, out, out_sf };
    TGL_TRY(tgl_take(&tgl_moe_expand_to_fused_with_sf_signature, tensors, &num_per_channels, NULL));
    TGL_TRY(check_num_sf(x, x_sf, num_per_channels));
    TGL_TRY(check_out_sf_layout(out_sf));
    tgl_log_indices("token_topk_to_pos", token_topk_to_pos, out->shape[0]);
    problem p = { .args = args_of(x, token_topk_to_pos, pos_to_expert, out) };
    p.args.x_sf = tgl_data(x_sf);
    p.args.out_sf = tgl_data(out_sf);
    p.args.num_sf = x_sf->shape[1];
    p.args.x_sf_row = tgl_stride(x_sf, 0);
    p.args.x_sf_col = tgl_stride(x_sf, 1);
    p.args.out_sf_row = tgl_stride(out_sf, 0);
    p.args.out_sf_col = tgl_stride(out_sf, 1);
    return tgl_run(&tgl_moe_expand_to_fused_with_sf_signature, &OP, tensors, &p, stream);
}
