/* SPDX-License-Identifier: MIT
 * map_check.c - the checks of a mapping's tensors. */
#include "moe/common/map_check.h"

#include <inttypes.h>
#include <string.h>

#include "cuda/driver.h"
#include "moe/common/map_bound.h"

void tgl_map_tensors(const tgl_moe_mapping *mapping, tgl_named out[TGL_MAP_TENSORS])
{
    const tgl_named all[TGL_MAP_TENSORS] = {
        { "pos_to_expert", mapping->pos_to_expert },
        { "pos_to_token", mapping->pos_to_token },
        { "pos_to_token_topk", mapping->pos_to_token_topk },
        { "token_topk_to_pos", mapping->token_topk_to_pos },
        { "expert_start", mapping->expert_start },
        { "expert_end", mapping->expert_end },
        { "num_tokens_per_expert", mapping->num_tokens_per_expert },
        { "count", mapping->count },
        { "psum_end", mapping->psum_end },
        { "num_tokens_per_expert_host", mapping->num_tokens_per_expert_host },
    };
    memcpy(out, all, sizeof all);
}

void tgl_map_list(const tgl_moe_mapping *mapping, const DLTensor *out[TGL_MAP_TENSORS])
{
    tgl_named all[TGL_MAP_TENSORS] = { { NULL, NULL } };
    if (mapping) tgl_map_tensors(mapping, all);
    for (int i = 0; i < TGL_MAP_TENSORS; i++) out[i] = all[i].t;
}

tgl_status tgl_map_check_struct(const tgl_moe_mapping *mapping)
{
    if (!mapping) return tgl_fail(TGL_ERR_ARGUMENT, "mapping: is NULL, want a struct");
    return tgl_expect_reserved(mapping->reserved);
}

enum { NUM_TENSORS = 1 + TGL_MAP_TENSORS };     /* topk_idx and the mapping's */

/* Packed outputs are intervals of memory: in order of address it is enough to look at neighbours. Where that
 * finds something, the tensors are compared one by one, which says which they are, and is exact for strided
 * rows. */
static tgl_status check_overlap(const tgl_named all[NUM_TENSORS])
{
    struct { uintptr_t begin, end; } at[NUM_TENSORS];
    int n = 0;
    bool is_apart = true;
    for (int i = 0; i < NUM_TENSORS; i++) {
        const DLTensor *t = all[i].t;
        if (!t || tgl_is_empty(t) || !t->data) continue;
        const uintptr_t begin = (uintptr_t)tgl_data(t), bytes = (uintptr_t)tgl_dtype_bits(t->dtype) / 8;
        uintptr_t last = 0;                     /* its last element */
        for (int d = 0; d < t->ndim; d++) last += (uintptr_t)((t->shape[d] - 1) * tgl_stride(t, d));
        int to = n++;
        for (; to > 0 && at[to - 1].begin > begin; to--) at[to] = at[to - 1];
        at[to].begin = begin;
        at[to].end = begin + (last + 1) * bytes;
    }
    for (int i = 1; i < n; i++) is_apart &= at[i - 1].end <= at[i].begin;
    if (is_apart) return TGL_OK;
    for (int i = 1; i < NUM_TENSORS; i++)
        for (int j = 0; j < i; j++)
            if (all[i].t && all[j].t)
                TGL_TRY(tgl_expect_no_overlap(all[i].name, all[i].t, all[j].name, all[j].t));
    return TGL_OK;
}

tgl_status tgl_map_check_total(int64_t num_pairs, int64_t num_experts, int64_t alignment)
{
    const int64_t total = tgl_map_max_positions(num_pairs, num_experts, alignment);
    return total <= INT32_MAX ? TGL_OK : tgl_fail(TGL_ERR_ARGUMENT, TGL_MAP_TOO_LARGE(total));
}

tgl_status tgl_map_check(const DLTensor *topk_idx, const tgl_moe_mapping *mapping, int64_t alignment)
{
    TGL_TRY(tgl_expect("topk_idx", topk_idx, TGL_I64 | TGL_I32, 2, TGL_ROWS));
    TGL_TRY(tgl_map_check_struct(mapping));
    if (alignment < 1) return tgl_fail(TGL_ERR_ARGUMENT, "alignment: is %" PRId64 ", want >= 1", alignment);
    tgl_named all[NUM_TENSORS] = { { "topk_idx", topk_idx } };
    tgl_named *const tensors = all + 1;
    tgl_map_tensors(mapping, tensors);
    tgl_dim sizes[2] = { { 0, 0 }, { 0, 0 } };
    for (int i = 0; i < TGL_MAP_TENSORS; i++) {
        const char *name = tensors[i].name;
        const DLTensor *t = tensors[i].t;
        if (i >= TGL_MAP_COUNT && !t) continue;
        TGL_TRY(tgl_expect(name, t, TGL_I32, i == TGL_MAP_TOKEN_TOPK_TO_POS ? 2 : 1, TGL_PACKED));
        if (i == TGL_MAP_POS_TO_EXPERT) {       /* says num_positions */
            sizes[0] = (tgl_dim){ 0, INT32_MAX };
        } else if (i == TGL_MAP_TOKEN_TOPK_TO_POS) {
            for (int d = 0; d < 2; d++) sizes[d] = (tgl_dim){ topk_idx->shape[d], topk_idx->shape[d] };
        } else if (i == TGL_MAP_EXPERT_START) { /* says num_experts */
            sizes[0] = (tgl_dim){ 0, INT32_MAX };
        } else {
            const bool is_by_position = i < TGL_MAP_TOKEN_TOPK_TO_POS;
            const DLTensor *like = is_by_position ? mapping->pos_to_expert : mapping->expert_start;
            sizes[0] = (tgl_dim){ like->shape[0], like->shape[0] };
        }
        TGL_TRY(tgl_expect_shape(name, t, sizes));
        if (i != TGL_MAP_HOST) {
            TGL_TRY(tgl_expect_same_device(name, t, topk_idx));
        } else if (!tgl_on_cpu(t)) {
            char is[128];
            tgl_describe(t, is, sizeof is);
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: is %s, want memory of the host", name, is);
        }
    }
    TGL_TRY(tgl_map_check_total(tgl_num_elements(topk_idx), mapping->expert_start->shape[0], alignment));
    return check_overlap(all);
}

static int32_t *data_of(const DLTensor *t) { return t ? tgl_data(t) : NULL; }

tgl_status tgl_map_of(const DLTensor *topk_idx, const tgl_moe_mapping *mapping, int64_t alignment,
                      tgl_stream stream, tgl_map *out)
{
    const int64_t num_pairs = tgl_num_elements(topk_idx), num_experts = mapping->expert_start->shape[0];
    const int64_t num_topk = num_pairs > 0 ? topk_idx->shape[1] : 1;
    if (num_experts == 0) alignment = 1;        /* of no segment, and may be anything */
    const int64_t unit = MAP_UNIT(alignment);
    const uintptr_t positions = (uintptr_t)data_of(mapping->pos_to_expert) |
                                (uintptr_t)data_of(mapping->pos_to_token) |
                                (uintptr_t)data_of(mapping->pos_to_token_topk);
    *out = (tgl_map){
        data_of(mapping->pos_to_expert), data_of(mapping->pos_to_token), data_of(mapping->pos_to_token_topk),
        data_of(mapping->token_topk_to_pos), data_of(mapping->expert_start), data_of(mapping->expert_end),
        data_of(mapping->num_tokens_per_expert), data_of(mapping->count), data_of(mapping->psum_end),
        data_of(mapping->num_tokens_per_expert_host), mapping->pos_to_expert->shape[0],
        (int32_t)num_pairs, (int32_t)num_topk, (int32_t)num_experts, (uint32_t)alignment,
        positions % 16 == 0, tgl_divisor_of(alignment), tgl_divisor_of(num_topk),
        (uint32_t)MAP_HIST_BEGIN(unit), MAP_PER_UNIT((uint64_t)unit),
    };
    if (tgl_on_cpu(topk_idx) || tgl_dry_run() || !out->num_tokens_per_expert_host || num_experts == 0)
        return TGL_OK;
    tgl_cu_pointer address;
    TGL_TRY(tgl_address_on_device(topk_idx->device.device_id, stream, out->num_tokens_per_expert_host,
                                  &address));
    out->num_tokens_per_expert_host = (int32_t *)(uintptr_t)address;
    if (address) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "num_tokens_per_expert_host: memory is not page-locked, want "
                    "page-locked (cuMemHostAlloc, cudaHostRegister, pin_memory)");
}
