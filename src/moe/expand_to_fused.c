/* SPDX-License-Identifier: MIT
 * expand_to_fused.c - tgl_moe_expand_to_fused, tgl_moe_expand_to_fused_with_sf: every token's row, and its
 * scale factors, to the token's positions; zeros to the padding. */
#include "moe/expand_to_fused.h"

#include <inttypes.h>

#include "core/log.h"
#include "core/math.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "tegula/moe.h"

/* ---- CPU ---- */

static void cpu_padding(const void *context, int64_t begin, int64_t end)        /* positions */
{
    const expand_problem *p = context;
    for (int64_t at = begin; at < end; at++) {
        if (p->pos_to_expert[at] >= 0) continue;
        memset(p->out + at * p->row_bytes, 0, (size_t)p->row_bytes);
        for (int64_t i = 0; i < p->num_sf; i++) p->out_sf[at * p->out_sf_row + i * p->out_sf_col] = 0;
    }
}

/* Rows are scattered over pages that are not in the TLB: to ask for those of the next row before this one is
 * copied saves a tenth of the time (rows of 14 KB, 256 experts, Neoverse-N1). */
static void prefetch(const expand_problem *p, int64_t position)
{
    enum { PAGE_BYTES = 4096 };
    if (position < 0 || position >= p->num_positions) return;
    const uint8_t *row = p->out + position * p->row_bytes;
    for (int64_t i = 0; i < p->row_bytes; i += PAGE_BYTES) __builtin_prefetch(row + i, 1, 0);
}

static void cpu_tokens(const void *context, int64_t begin, int64_t end)
{
    const expand_problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        const int32_t *positions = p->token_topk_to_pos + t * p->num_topk;
        const int64_t known = t + 1 < end ? p->num_topk + 1 : p->num_topk;
        const uint8_t *row = p->x + t * p->x_stride;
        const uint32_t *sf = p->num_sf ? p->x_sf + t * p->x_sf_row : NULL;
        for (int64_t k = 0; k < p->num_topk; k++) {
            const int64_t at = positions[k];
            if (k + 1 < known) prefetch(p, positions[k + 1]);
            if (at < 0 || at >= p->num_positions || p->pos_to_expert[at] < 0) continue;
            memcpy(p->out + at * p->row_bytes, row, (size_t)p->row_bytes);
            for (int64_t i = 0; i < p->num_sf; i++)
                p->out_sf[at * p->out_sf_row + i * p->out_sf_col] = sf[i * p->x_sf_col];
        }
    }
}

static tgl_status run_on_cpu(const expand_problem *p)
{
    const int64_t bytes = p->row_bytes + 4 * p->num_sf;
    TGL_TRY(tgl_parallel_rows(p->num_positions, bytes, cpu_padding, p));
    if (p->num_tokens == 0 || p->num_topk == 0) return TGL_OK;
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(bytes, p->num_topk + 1), cpu_tokens, p);
}

/* ---- checks ---- */

static tgl_status check_rows(const DLTensor *x, const DLTensor *token_topk_to_pos,
                             const DLTensor *pos_to_expert, const DLTensor *out)
{
    TGL_TRY(tgl_expect("x", x, TGL_ANY, 2, TGL_ROWS));
    TGL_TRY(tgl_expect("token_topk_to_pos", token_topk_to_pos, TGL_I32, 2, TGL_PACKED));
    TGL_TRY(tgl_expect("pos_to_expert", pos_to_expert, TGL_I32, 1, TGL_PACKED));
    TGL_TRY(tgl_expect("out", out, TGL_ANY, 2, TGL_PACKED));
    TGL_TRY(tgl_expect_same_dtype("out", out, "x", x));
    TGL_TRY(tgl_expect_same_device("token_topk_to_pos", token_topk_to_pos, x));
    TGL_TRY(tgl_expect_same_device("pos_to_expert", pos_to_expert, x));
    TGL_TRY(tgl_expect_same_device("out", out, x));
    const int64_t num_tokens = x->shape[0], num_topk = token_topk_to_pos->shape[1];
    const int64_t num_positions = pos_to_expert->shape[0], hidden = x->shape[1];
    TGL_TRY(tgl_expect_shape("token_topk_to_pos", token_topk_to_pos,
                             (tgl_dim[]){ { num_tokens, num_tokens }, { num_topk, num_topk } }));
    TGL_TRY(tgl_expect_shape("out", out,
                             (tgl_dim[]){ { num_positions, num_positions }, { hidden, hidden } }));
    TGL_TRY(tgl_expect_no_overlap("out", out, "x", x));
    TGL_TRY(tgl_expect_no_overlap("out", out, "token_topk_to_pos", token_topk_to_pos));
    return tgl_expect_no_overlap("out", out, "pos_to_expert", pos_to_expert);
}

/* One scale factor for num_per_channels values, of which a byte may hold two and e2m1x2 does; four in a word
 * of i32. */
static tgl_status check_num_sf(const DLTensor *x, const DLTensor *x_sf, int64_t num_per_channels)
{
    if (num_per_channels < 1)
        return tgl_fail(TGL_ERR_ARGUMENT, "num_per_channels: is %" PRId64 ", want >= 1", num_per_channels);
    const int64_t hidden = x->shape[1], per_word = tgl_dtype_is(x_sf->dtype, TGL_I32) ? 4 : 1;
    int64_t pairs = 0;                          /* 2 * hidden may not fit where there are no tokens */
    const bool may_be_pairs = tgl_dtype_is(x->dtype, TGL_I8 | TGL_U8 | TGL_E2M1X2) &&
                              !__builtin_mul_overflow(hidden, 2, &pairs);
    pairs = tgl_ceil_div(tgl_ceil_div(pairs, num_per_channels), per_word);
    const bool are_pairs = may_be_pairs && tgl_dtype_is(x->dtype, TGL_E2M1X2);
    const int64_t single = are_pairs ? pairs : tgl_ceil_div(tgl_ceil_div(hidden, num_per_channels), per_word);
    const int64_t num_tokens = x->shape[0], num_sf = x_sf->shape[1];
    const bool fits = num_sf == single || (may_be_pairs && num_sf == pairs);
    if (x_sf->shape[0] == num_tokens && fits) return TGL_OK;
    if (may_be_pairs && pairs != single)
        return tgl_fail(TGL_ERR_ARGUMENT, "x_sf: shape is [%" PRId64 ", %" PRId64 "], want [%" PRId64
                        ", %" PRId64 "] or [%" PRId64 ", %" PRId64 "]", x_sf->shape[0], num_sf, num_tokens,
                        single, num_tokens, pairs);
    return tgl_expect_shape("x_sf", x_sf, (tgl_dim[]){ { num_tokens, num_tokens }, { single, single } });
}

/* Packed, or packed columns that do not overlap. */
static tgl_status check_out_sf_layout(const DLTensor *out_sf)
{
    const int64_t rows = out_sf->shape[0], cols = out_sf->shape[1];
    const int64_t row = tgl_stride(out_sf, 0), col = tgl_stride(out_sf, 1);
    const bool is_packed = (rows == 1 || row == cols) && (cols == 1 || col == 1);
    const bool is_col_major = (rows == 1 || row == 1) && (cols == 1 || col >= rows);
    if (tgl_is_empty(out_sf) || is_packed || is_col_major) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "out_sf: strides are [%" PRId64 ", %" PRId64 "], want [%" PRId64
                    ", 1] or [1, >= %" PRId64 "]", row, col, cols, rows);
}

static tgl_status check_sf(const DLTensor *x, const DLTensor *x_sf, const DLTensor *token_topk_to_pos,
                           const DLTensor *pos_to_expert, const DLTensor *out, const DLTensor *out_sf,
                           int64_t num_per_channels)
{
    TGL_TRY(tgl_expect("x_sf", x_sf, TGL_F32 | TGL_I32, 2, TGL_STRIDED));
    TGL_TRY(tgl_expect("out_sf", out_sf, TGL_F32 | TGL_I32, 2, TGL_STRIDED));
    TGL_TRY(tgl_expect_same_dtype("out_sf", out_sf, "x_sf", x_sf));
    TGL_TRY(tgl_expect_same_device("x_sf", x_sf, x));
    TGL_TRY(tgl_expect_same_device("out_sf", out_sf, x));
    TGL_TRY(check_num_sf(x, x_sf, num_per_channels));
    const int64_t num_positions = pos_to_expert->shape[0], num_sf = x_sf->shape[1];
    TGL_TRY(tgl_expect_shape("out_sf", out_sf,
                             (tgl_dim[]){ { num_positions, num_positions }, { num_sf, num_sf } }));
    TGL_TRY(check_out_sf_layout(out_sf));
    TGL_TRY(tgl_expect_no_overlap("out", out, "x_sf", x_sf));
    TGL_TRY(tgl_expect_no_overlap("out_sf", out_sf, "x", x));
    TGL_TRY(tgl_expect_no_overlap("out_sf", out_sf, "x_sf", x_sf));
    TGL_TRY(tgl_expect_no_overlap("out_sf", out_sf, "token_topk_to_pos", token_topk_to_pos));
    TGL_TRY(tgl_expect_no_overlap("out_sf", out_sf, "pos_to_expert", pos_to_expert));
    return tgl_expect_no_overlap("out_sf", out_sf, "out", out);
}

/* ---- launch ---- */

/* The device, sizes, strides and addresses of a call choose between the kernels. */
enum { PLAIN, BULK, COLUMNS, NUM_KERNELS };
static tgl_status launch(int which, bool has_sf, const DLTensor *on, const tgl_shape *shape,
                         tgl_stream stream, void **args)
{
    static const tgl_kernel plan[NUM_KERNELS] = { [PLAIN] = { .name = "moe/expand_to_fused" },
                                                  [BULK] = { .name = "moe/expand_to_fused_bulk" },
                                                  [COLUMNS] = { .name = "moe/expand_to_fused_columns" } };
    return tgl_launch(plan, has_sf ? NUM_KERNELS : COLUMNS, which, on, shape, stream, args);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

enum { MAX_BLOCKS = 1 << 30, MAX_Y = 65535 };

static bool has_many_rows(const expand_problem *p)
{
    return p->num_tokens + p->num_positions >= EXPAND_BULK_MANY;
}

/* Whether blocks load about as much as they store. */
static bool has_few_copies(const expand_problem *p)
{
    return p->num_positions / EXPAND_BULK_COPIES < p->num_tokens;
}

static bool has_columns(const expand_problem *p) { return p->num_sf > 0 && p->out_sf_row == 1; }

/* Few rows are cut into more chunks, so that there are blocks for all SMs. So are many rows with few copies:
 * blocks at the end are shorter, and all SMs store fewer rows at a time, so that more of what reaches DRAM is
 * next to each other. But blocks that gather factors need shared memory (8 ranks: 106 us, 115 with less). */
static int64_t bulk_bytes(const expand_problem *p)
{
    const bool is_few = p->num_tokens + p->num_positions < EXPAND_FEW_ROWS;
    const int64_t limit = is_few                                   ? EXPAND_BULK_FEW_BYTES
                          : has_many_rows(p) && !has_few_copies(p) ? EXPAND_BULK_BYTES
                          : has_many_rows(p) && !has_columns(p)    ? EXPAND_BULK_SPREAD_BYTES
                                                                   : EXPAND_BULK_SOME_BYTES;
    return tgl_ceil_div(tgl_ceil_div(p->row_bytes, tgl_ceil_div(p->row_bytes, limit)), 128) * 128;
}

/* Shared memory of a block, whose chunk is `bytes`. Of many rows with few copies it is more than the chunk,
 * so that fewer blocks are on an SM: 57 KB of chunks under way there are enough, and more are slower (H200,
 * 8192 tokens a rank, 32 of 256 experts: 410 us with 215 KB, 405 with 57). With more copies blocks mostly
 * store, and all of it counts. */
static int64_t bulk_shared_bytes(const expand_problem *p, int64_t bytes)
{
    return has_many_rows(p) && has_few_copies(p) ? bytes * 7 / 2 : bytes;
}

/* Whether scale factors are in columns and there are so many that they are gathered, by blocks that have so
 * much shared memory. If so, fills in how. */
static bool cut_columns(const expand_problem *p, int64_t shared_bytes, expand_shape *s)
{
    int64_t slots;
    if (!has_columns(p) || !has_many_rows(p) || p->num_positions > INT32_MAX ||
        __builtin_mul_overflow(p->num_tokens, p->num_topk, &slots) || slots == 0 || slots > MAX_BLOCKS)
        return false;
    const int64_t tile = 32 * EXPAND_SF_CLUSTER;        /* positions; 2 KB at least are for slots */
    const int64_t positions = tile * least(least(EXPAND_SF_TILES, tgl_ceil_div(slots, EXPAND_SF_SLOTS)),
                                           (shared_bytes - 2048) / (4 * tile));
    const int64_t blocks = tgl_ceil_div(p->num_positions, positions) * EXPAND_SF_CLUSTER;
    /* to look at all slots for each window, in lines of 32, must be less than to store each factor alone */
    if (slots / 32 / positions > p->num_sf || blocks > MAX_BLOCKS) return false;
    s->sf_blocks = (int32_t)blocks;
    s->sf_positions = (int32_t)positions;
    s->sf_words = (int32_t)(shared_bytes / 4);
    return true;
}

/* Fills in chunks and returns the threads of a block. */
static int64_t cut_rows(const expand_problem *p, expand_shape *s)
{
    const bool is_few = p->num_tokens + p->num_positions < EXPAND_FEW_ROWS;
    const int64_t per_thread = is_few ? 1 : EXPAND_UNITS, threads_limit = is_few ? 128 : EXPAND_THREADS;
    const int64_t row_chunks = tgl_ceil_div(s->row_units, threads_limit * per_thread);
    const int64_t threads = tgl_ceil_div(tgl_ceil_div(s->row_units, row_chunks * per_thread), 32) * 32;
    s->chunk_units = (int32_t)(threads * per_thread);
    s->chunks = most(row_chunks, tgl_ceil_div(p->num_sf, threads));
    return threads;
}

static tgl_status run_on_cuda(expand_problem *p, const DLTensor *on, tgl_stream stream)
{
    tgl_target target;
    TGL_TRY(tgl_target_of(on, &target));
    /* the largest power of two, up to 16, that divides all addresses of rows */
    const uint64_t bits = (uintptr_t)p->x | (uintptr_t)p->out | (uint64_t)(p->row_bytes | p->x_stride) | 16;
    const int64_t unit = (int64_t)(bits & -bits);
    const int64_t positions = most(1, least(EXPAND_POSITIONS, p->num_positions / 1024));
    expand_shape s = {
        .row_units = p->row_bytes / unit,
        .unit_bytes = (int32_t)unit,
        .positions = (int32_t)positions,
        .padding_blocks = (int32_t)least(tgl_ceil_div(p->num_positions, positions), MAX_BLOCKS),
        .reads_early = p->num_tokens <= most(EXPAND_EARLY_TOKENS, p->num_positions),
    };
    int64_t blocks = s.padding_blocks + (p->num_topk ? least(p->num_tokens, MAX_BLOCKS) : 0);
    const int64_t both_blocks = most(p->num_tokens, tgl_ceil_div(p->num_positions, positions));
    const int64_t bytes = bulk_bytes(p), bulk_chunks = tgl_ceil_div(p->row_bytes, bytes);
    void *args[] = { p, &s };
    if (target.architecture >= 90 && unit == 16 && p->num_topk <= 32 && both_blocks <= MAX_BLOCKS &&
        bulk_chunks <= MAX_Y) {
        s.chunks = bulk_chunks;
        s.chunk_units = (int32_t)(bytes / unit);
        if (has_many_rows(p)) {
            blocks = both_blocks;
            s.padding_blocks = 0;
            s.positions = (int32_t)tgl_ceil_div(p->num_positions, both_blocks);
        }
        const int64_t shared_bytes = bulk_shared_bytes(p, bytes);
        const int64_t columns_bytes = most(shared_bytes, EXPAND_SF_MIN_BYTES);
        const int64_t z = tgl_ceil_div(blocks, MAX_Y);
        const tgl_shape shape = { { bulk_chunks, tgl_ceil_div(blocks, z), z }, .block = 32,
                                  .shared_bytes = shared_bytes };
        if (blocks <= MAX_BLOCKS / bulk_chunks && cut_columns(p, columns_bytes, &s)) {
            const int64_t clusters = tgl_ceil_div(s.sf_blocks + bulk_chunks * blocks, EXPAND_SF_CLUSTER);
            const tgl_other_launch other = { BULK, &shape, args };
            const tgl_shape clustered = { { clusters * EXPAND_SF_CLUSTER }, .block = 32,
                                          .shared_bytes = columns_bytes, .cluster = EXPAND_SF_CLUSTER,
                                          .otherwise = &other };
            return launch(COLUMNS, true, on, &clustered, stream, args);
        }
        return launch(BULK, p->num_sf > 0, on, &shape, stream, args);
    }
    const int64_t threads = cut_rows(p, &s);
    s.padding_blocks = (int32_t)tgl_strided_grid(s.padding_blocks, MAX_BLOCKS);
    blocks = s.padding_blocks + (p->num_topk ? tgl_strided_grid(p->num_tokens, MAX_BLOCKS) : 0);
    const tgl_shape shape = { { blocks, tgl_strided_grid(s.chunks, MAX_Y) }, .block = (int)threads };
    return launch(PLAIN, p->num_sf > 0, on, &shape, stream, args);
}

/* x_sf and out_sf are NULL, or checked. */
static tgl_status run(const DLTensor *x, const DLTensor *x_sf, const DLTensor *token_topk_to_pos,
                      const DLTensor *pos_to_expert, const DLTensor *out, const DLTensor *out_sf,
                      tgl_stream stream)
{
    tgl_log_indices("token_topk_to_pos", token_topk_to_pos, out->shape[0]);
    if (tgl_preparing() && !tgl_on_cpu(x)) return launch(PLAIN, x_sf, x, NULL, stream, NULL);
    if (tgl_is_empty(out)) return TGL_OK;               /* data may be NULL; without rows there are no sf */
    const int64_t element_bytes = tgl_dtype_bits(x->dtype) / 8;
    expand_problem p = {
        .x = tgl_data(x), .out = tgl_data(out), .token_topk_to_pos = tgl_data(token_topk_to_pos),
        .pos_to_expert = tgl_data(pos_to_expert), .num_tokens = x->shape[0],
        .num_topk = token_topk_to_pos->shape[1], .num_positions = pos_to_expert->shape[0],
        .row_bytes = x->shape[1] * element_bytes,
        .x_stride = x->shape[0] > 1 ? tgl_stride(x, 0) * element_bytes : 0,
    };
    if (x_sf) {
        p.x_sf = tgl_data(x_sf);
        p.out_sf = tgl_data(out_sf);
        p.num_sf = x_sf->shape[1];
        p.x_sf_row = tgl_stride(x_sf, 0);
        p.x_sf_col = tgl_stride(x_sf, 1);
        p.out_sf_row = tgl_stride(out_sf, 0);
        p.out_sf_col = tgl_stride(out_sf, 1);
    }
    return tgl_on_cpu(x) ? run_on_cpu(&p) : run_on_cuda(&p, x, stream);
}

tgl_status tgl_moe_expand_to_fused(const DLTensor *x, const DLTensor *token_topk_to_pos,
                                   const DLTensor *pos_to_expert, DLTensor *out, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_expand_to_fused", "x", x, "token_topk_to_pos", token_topk_to_pos,
                     "pos_to_expert", pos_to_expert, "out", out, NULL);
    TGL_TRY(check_rows(x, token_topk_to_pos, pos_to_expert, out));
    return run(x, NULL, token_topk_to_pos, pos_to_expert, out, NULL, stream);
}

tgl_status tgl_moe_expand_to_fused_with_sf(const DLTensor *x, const DLTensor *x_sf,
                                           const DLTensor *token_topk_to_pos, const DLTensor *pos_to_expert,
                                           DLTensor *out, DLTensor *out_sf, int64_t num_per_channels,
                                           tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_moe_expand_to_fused_with_sf", "x", x, "x_sf", x_sf, "token_topk_to_pos",
                     token_topk_to_pos, "pos_to_expert", pos_to_expert, "out", out, "out_sf", out_sf, NULL);
    TGL_TRY(check_rows(x, token_topk_to_pos, pos_to_expert, out));
    TGL_TRY(check_sf(x, x_sf, token_topk_to_pos, pos_to_expert, out, out_sf, num_per_channels));
    return run(x, x_sf, token_topk_to_pos, pos_to_expert, out, out_sf, stream);
}
