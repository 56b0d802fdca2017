/* SPDX-License-Identifier: MIT
 * get_fused_mapping.c - tgl_moe_get_fused_mapping: a stable counting sort of the pairs by expert. */
#include "moe/get_fused_mapping.h"

#include <string.h>

#include "core/cpu.h"
#include "core/index.h"
#include "core/log.h"
#include "core/log_indices.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "moe/common/map_host.h"

_Static_assert(MAP_SMALL_PAIRS <= MAP_MAX_PAIRS, "map_write() takes all pairs");

typedef struct {
    get_fused_mapping_args args;
    int64_t num_tokens, num_topk;
    int index_bytes;
    bool has_workspace; /* as get_fused_mapping_large needs it */

    /* On the CPU, tokens are cut into chunks. A cursor per chunk and expert: first the number of pairs, then
     * the position of the next pair. */
    int64_t num_chunks, chunk_tokens;
    int32_t *cursors;
} problem;

/* ---- CPU ---- */

/* The cursors of all chunks are on the stack. If the experts do not fit there, one chunk has its cursors in
 * an output: nothing is allocated. A chunk is large enough to pay for a thread. */
enum { MAX_CURSORS = 8192, MAX_CHUNKS = 32, MIN_CHUNK_BYTES = 64 << 10 };

static int64_t first_token(const problem *p, int64_t chunk) { return tgl_min(chunk * p->chunk_tokens, p->num_tokens); }

TGL_ALWAYS_INLINE void count(const problem *p, int64_t chunk, int index_bytes)
{
    int32_t *cursor = p->cursors + chunk * p->args.map.num_experts;
    const uint64_t num_experts = (uint64_t)p->args.map.num_experts;
    const int64_t end = first_token(p, chunk + 1);
    memset(cursor, 0, num_experts * sizeof *cursor);
    for (int64_t t = first_token(p, chunk); t < end; t++) {
        const void *row = (const char *)p->args.topk_idx + t * p->args.row_stride * index_bytes;
        for (int64_t k = 0; k < p->num_topk; k++) {
            const uint64_t expert = (uint64_t)tgl_index_get(row, k, index_bytes);
            if (expert < num_experts) cursor[expert]++;
        }
    }
}

TGL_ALWAYS_INLINE void place(const problem *p, int64_t chunk, int index_bytes)
{
    const tgl_map m = p->args.map; /* a copy, which stores cannot alias */
    int32_t *cursor = p->cursors + chunk * m.num_experts;
    const int64_t begin = first_token(p, chunk), end = first_token(p, chunk + 1);
    int32_t pair = (int32_t)(begin * p->num_topk);
    for (int64_t t = begin; t < end; t++) {
        const void *row = (const char *)p->args.topk_idx + t * p->args.row_stride * index_bytes;
        for (int64_t k = 0; k < p->num_topk; k++, pair++) {
            const uint64_t expert = (uint64_t)tgl_index_get(row, k, index_bytes);
            int32_t position = -1;
            if (expert < (uint64_t)m.num_experts) {
                position = cursor[expert]++;
                if (position < m.num_positions) {
                    m.pos_to_expert[position] = (int32_t)expert;
                    m.pos_to_token[position] = (int32_t)t;
                    m.pos_to_token_topk[position] = pair;
                } else {
                    position = -1;
                }
            }
            m.token_topk_to_pos[pair] = position;
        }
    }
}

/* Marks the chunk's share of the positions as empty, before pairs are placed. */
static void clear(const problem *p, int64_t chunk)
{
    const tgl_map *m = &p->args.map;
    const int64_t each = tgl_ceil_div(m->num_positions, p->num_chunks), begin = chunk * each;
    const int64_t positions = tgl_min(m->num_positions - begin, each);
    if (positions <= 0) return;
    const size_t bytes = (size_t)positions * sizeof(int32_t);
    memset(m->pos_to_expert + begin, -1, bytes);
    memset(m->pos_to_token + begin, -1, bytes);
    memset(m->pos_to_token_topk + begin, -1, bytes);
}

static void count_chunks(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t i = begin; i < end; i++) {
        clear(p, i);
        if (p->index_bytes == 4) count(p, i, 4);
        else count(p, i, 8);
    }
}

static void place_chunks(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t i = begin; i < end; i++) {
        if (p->index_bytes == 4) place(p, i, 4);
        else place(p, i, 8);
    }
}

/* Turns counts into cursors and writes the arrays by expert, except expert_end, which may hold the
 * cursors. */
static void lay_out(const problem *p)
{
    const tgl_map *m = &p->args.map;
    int32_t start = 0;
    for (int32_t e = 0; e < m->num_experts; e++) {
        int32_t next = start;
        for (int64_t i = 0; i < p->num_chunks; i++) {
            int32_t *cursor = &p->cursors[i * m->num_experts + e];
            const int32_t pairs = *cursor;
            *cursor = next;
            next += pairs;
        }
        const int32_t length = (int32_t)tgl_map_aligned(m, (uint32_t)(next - start));
        m->expert_start[e] = start;
        m->num_tokens_per_expert[e] = length;
        if (m->count) m->count[e] = next - start;
        if (m->psum_end) m->psum_end[e] = next;
        if (m->num_tokens_per_expert_host) m->num_tokens_per_expert_host[e] = length;
        start += length;
    }
}

static tgl_status cpu(const void *context)
{
    problem p = *(const problem *)context;
    int32_t cursors[MAX_CURSORS];
    const tgl_map *m = &p.args.map;
    const int64_t bytes = (int64_t)m->num_pairs * p.index_bytes + 12 * m->num_positions;
    const int64_t fitting = tgl_min(MAX_CHUNKS, MAX_CURSORS / tgl_max(1, m->num_experts));
    const int64_t chunks = tgl_max(1, tgl_min(fitting, bytes / MIN_CHUNK_BYTES));
    if (m->num_pairs == 0) p.num_tokens = 0; /* there may be many rows without columns */
    p.cursors = m->num_experts <= MAX_CURSORS ? cursors : m->expert_end;
    p.num_chunks = chunks;
    p.chunk_tokens = tgl_ceil_div(p.num_tokens, chunks);
    TGL_TRY(tgl_parallel_rows(chunks, bytes / chunks, count_chunks, &p));
    lay_out(&p);
    TGL_TRY(tgl_parallel_rows(chunks, 24 * (int64_t)m->num_pairs / chunks, place_chunks, &p));
    for (int32_t e = 0; e < m->num_experts; e++) m->expert_end[e] = m->expert_start[e] + m->num_tokens_per_expert[e];
    return TGL_OK;
}

TGL_SIZES(sizes, num_tokens, num_topk, num_positions, num_local_experts);
tgl_signature tgl_moe_get_fused_mapping_signature =
    TGL_SIGNATURE("moe_get_fused_mapping(topk_idx: i64|i32[num_tokens, num_topk] rows, alignment: int >= 1)"
                  " -> " TGL_MAP_TEXT("num_topk") " where " TGL_MAP_RULES,
                  NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* The number of pairs chooses; it is not part of a configuration. SINGLE is a variant of LARGE. */
enum { SMALL, SINGLE, LARGE };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    tgl_map_plan(p->index_bytes, p->args.map.num_experts, kernels);
    return TGL_MAP_KERNELS;
}

static bool can_be_small(const void *context, const tgl_target *target)
{
    const tgl_map *m = &((const problem *)context)->args.map;
    return m->num_pairs <= MAP_MAX_PAIRS && m->num_experts <= MAP_SMALL_EXPERTS;
}

static bool small_pays(const void *context, const tgl_target *target)
{
    return ((const problem *)context)->args.map.num_pairs <= MAP_SMALL_PAIRS;
}

static tgl_shape small_shape(void *context, const tgl_target *target)
{
    get_fused_mapping_args *a = &((problem *)context)->args;
    int threads;
    const int64_t blocks = tgl_map_blocks(&a->map, target->num_sms, &a->owned_bits, &threads);
    return (tgl_shape){ { blocks },
                        .block = threads,
                        TGL_ARGS(*a),
                        .shared_bytes = MAP_SHARED(a->map.num_experts, a->owned_bits, a->map.num_pairs) };
}

static int64_t large_blocks(const tgl_map *m, const tgl_target *target)
{
    const int64_t blocks = tgl_max(MAP_LARGE_MIN_BLOCKS, tgl_ceil_div(m->num_pairs, MAP_LARGE_BLOCK_PAIRS));
    return tgl_min(tgl_min(blocks, MAP_LARGE_BLOCKS), target->num_sms);
}

/* Tiles per block, and pairs per tile: all chunks are equal, in whole warps. */
static int64_t num_tiles(const tgl_map *m, int64_t blocks)
{
    return tgl_max(1, tgl_ceil_div(m->num_pairs, blocks * MAP_LARGE_TILE));
}
static int64_t tile_pairs(const tgl_map *m, int64_t blocks)
{
    return tgl_ceil_div(tgl_ceil_div(m->num_pairs, blocks * num_tiles(m, blocks)), 32) * 32;
}

static bool has_workspace(const void *context, const tgl_target *target)
{
    return ((const problem *)context)->has_workspace;
}

static bool can_be_single(const void *context, const tgl_target *target)
{
    const tgl_map *m = &((const problem *)context)->args.map;
    const int64_t blocks = large_blocks(m, target);
    return has_workspace(context, target) && m->num_experts <= 1 << MAP_LARGE_BITS && num_tiles(m, blocks) == 1 &&
           tile_pairs(m, blocks) <= MAP_SINGLE_VALUES * MAP_THREADS;
}

static tgl_shape large_shape(void *context, const tgl_target *target)
{
    get_fused_mapping_args *a = &((problem *)context)->args;
    const int64_t blocks = large_blocks(&a->map, target);
    a->num_tiles = (int32_t)num_tiles(&a->map, blocks);
    a->tile_pairs = (int32_t)tile_pairs(&a->map, blocks);
    return (tgl_shape){ { blocks },
                        .block = MAP_THREADS,
                        .cooperative = true,
                        TGL_ARGS(*a),
                        .shared_bytes = MAP_LARGE_SHARED(tgl_map_expert_bits(a->map.num_experts)) };
}

static const tgl_op OP = { cpu,
                           plan,
                           {
                               [SMALL] = { can_be_small, small_pays, small_shape },
                               [SINGLE] = { can_be_single, NULL, large_shape },
                               [LARGE] = { has_workspace, NULL, large_shape },
                           } };

static size_t large_workspace(int64_t num_experts)
{
    return (size_t)MAP_LARGE_WORKSPACE(tgl_map_expert_bits(num_experts));
}

static size_t workspace_size(int64_t num_pairs, int64_t num_experts)
{
    const bool is_small = num_pairs <= MAP_SMALL_PAIRS && num_experts <= MAP_SMALL_EXPERTS;
    return is_small ? 0 : large_workspace(num_experts);
}

tgl_status tgl_moe_get_fused_mapping(const DLTensor *topk_idx, const tgl_moe_mapping *mapping, int64_t alignment,
                                     void *workspace, size_t workspace_bytes, tgl_stream stream)
{
    tgl_signature *const s = &tgl_moe_get_fused_mapping_signature;
    const DLTensor *tensors[1 + TGL_MAP_TENSORS] = { topk_idx };
    sizes n;
    tgl_map_list(mapping, tensors + 1);
    tgl_log_signature(s, tensors);
    TGL_TRY(tgl_map_check_struct(mapping));
    TGL_TRY(tgl_check(s, tensors, &alignment, &n.num_tokens));
    const int64_t num_pairs = tgl_num_elements(topk_idx), num_experts = n.num_local_experts;
    TGL_TRY(tgl_map_check_total(num_pairs, num_experts, alignment));
    tgl_log_indices("topk_idx", topk_idx, num_experts);
    if (!tgl_on_cpu(topk_idx))
        TGL_TRY(tgl_expect_workspace(workspace, workspace_bytes, workspace_size(num_pairs, num_experts)));
    problem p = { { tgl_data(topk_idx), tgl_stride(topk_idx, 0), .workspace = workspace },
                  n.num_tokens,
                  n.num_topk,
                  tgl_dtype_bits(topk_idx->dtype) / 8,
                  workspace && (uintptr_t)workspace % TGL_WORKSPACE_ALIGNMENT == 0 &&
                      workspace_bytes >= large_workspace(num_experts),
                  .num_chunks = 0 };
    TGL_TRY(tgl_map_of(topk_idx, mapping, alignment, stream, &p.args.map));
    return tgl_run(s, &OP, tensors, &p, stream);
}

size_t tgl_moe_get_fused_mapping_workspace_size(const DLTensor *topk_idx, const tgl_moe_mapping *mapping)
{
    const DLTensor *experts = mapping ? mapping->expert_start : NULL;
    if (!topk_idx || topk_idx->ndim != 2 || !topk_idx->shape || !experts || experts->ndim != 1 || !experts->shape ||
        tgl_on_cpu(topk_idx))
        return 0; /* the op reports the error */
    int64_t num_pairs;
    if (__builtin_mul_overflow(topk_idx->shape[0], topk_idx->shape[1], &num_pairs)) num_pairs = INT64_MAX;
    return workspace_size(num_pairs, experts->shape[0]);
}
