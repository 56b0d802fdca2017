/* SPDX-License-Identifier: MIT
 * map.c - what the ops that make a mapping share on the host. */
#include "moe/common/map_host.h"

#include <string.h>

#include "core/math.h"
#include "cuda/driver.h"
#include "moe/common/map_bound.h"
#include "moe/get_fused_mapping.h"

void tgl_map_list(const tgl_moe_mapping *mapping, const DLTensor *out[TGL_MAP_TENSORS])
{
    const tgl_moe_mapping none = { 0 }, *m = mapping ? mapping : &none;
    const DLTensor *all[TGL_MAP_TENSORS] = {
        m->pos_to_expert,
        m->pos_to_token,
        m->pos_to_token_topk,
        m->token_topk_to_pos,
        m->expert_start,
        m->expert_end,
        m->num_tokens_per_expert,
        m->count,
        m->psum_end,
        m->num_tokens_per_expert_host,
    };
    memcpy(out, all, sizeof all);
}

tgl_status tgl_map_check_struct(const tgl_moe_mapping *mapping)
{
    if (!mapping) return tgl_fail(TGL_ERR_ARGUMENT, "mapping: is NULL, want a struct");
    return tgl_expect_reserved(mapping->reserved);
}

tgl_status tgl_map_check_total(int64_t num_pairs, int64_t num_experts, int64_t alignment)
{
    const int64_t total = tgl_map_max_positions(num_pairs, num_experts, alignment);
    return total <= INT32_MAX ? TGL_OK : tgl_fail(TGL_ERR_ARGUMENT, TGL_MAP_TOO_LARGE(total));
}

tgl_status tgl_map_of(const DLTensor *topk_idx, const tgl_moe_mapping *mapping, int64_t alignment, tgl_stream stream,
                      tgl_map *out)
{
    const int64_t num_pairs = tgl_num_elements(topk_idx), num_experts = mapping->expert_start->shape[0];
    const int64_t num_topk = num_pairs > 0 ? topk_idx->shape[1] : 1;
    if (num_experts == 0) alignment = 1; /* without segments it may be anything */
    const int64_t unit = MAP_UNIT(alignment);
    const uintptr_t positions = (uintptr_t)tgl_data_or_null(mapping->pos_to_expert) |
                                (uintptr_t)tgl_data_or_null(mapping->pos_to_token) |
                                (uintptr_t)tgl_data_or_null(mapping->pos_to_token_topk);
    *out = (tgl_map){
        tgl_data_or_null(mapping->pos_to_expert),
        tgl_data_or_null(mapping->pos_to_token),
        tgl_data_or_null(mapping->pos_to_token_topk),
        tgl_data_or_null(mapping->token_topk_to_pos),
        tgl_data_or_null(mapping->expert_start),
        tgl_data_or_null(mapping->expert_end),
        tgl_data_or_null(mapping->num_tokens_per_expert),
        tgl_data_or_null(mapping->count),
        tgl_data_or_null(mapping->psum_end),
        tgl_data_or_null(mapping->num_tokens_per_expert_host),
        mapping->pos_to_expert->shape[0],
        (int32_t)num_pairs,
        (int32_t)num_topk,
        (int32_t)num_experts,
        (uint32_t)alignment,
        positions % 16 == 0,
        tgl_divisor_of(alignment),
        tgl_divisor_of(num_topk),
        (uint32_t)MAP_HIST_BEGIN(unit),
        MAP_PER_UNIT((uint64_t)unit),
    };
    if (tgl_on_cpu(topk_idx) || tgl_preparing() || !out->num_tokens_per_expert_host || num_experts == 0) return TGL_OK;
    tgl_cu_pointer address;
    TGL_TRY(tgl_address_on_device("num_tokens_per_expert_host", topk_idx->device.device_id, stream,
                                  out->num_tokens_per_expert_host, &address));
    out->num_tokens_per_expert_host = (int32_t *)(uintptr_t)address;
    return TGL_OK;
}

int tgl_map_expert_bits(int64_t num_experts)
{
    int bits = 1;
    while (bits < MAP_LARGE_BITS && (int64_t)1 << bits < num_experts) bits++;
    return bits;
}

void tgl_map_plan(int index_bytes, int64_t num_experts, tgl_kernel plan[TGL_MAP_KERNELS])
{
    const tgl_macro index = { "INDEX_BYTES", index_bytes }, bits = { "EXPERT_BITS", tgl_map_expert_bits(num_experts) };
    plan[0] = (tgl_kernel){ "moe/get_fused_mapping", { index } };
    plan[1] = (tgl_kernel){ "moe/get_fused_mapping_large", { index, bits, { "VALUES", MAP_SINGLE_VALUES } } };
    plan[2] = (tgl_kernel){ "moe/get_fused_mapping_large", { index, bits, { "VALUES", MAP_LARGE_VALUES } } };
}

int64_t tgl_map_blocks(const tgl_map *m, int num_sms, int32_t *owned_bits, int *threads)
{
    int bits = 0;
    while (bits < MAP_OWNED_BITS && m->num_experts >> (bits + 1) >= MAP_SMALL_BLOCKS) bits++;
    *owned_bits = bits;
    const bool are_few = m->num_pairs <= MAP_AT_ONCE * MAP_SMALL_THREADS;
    *threads = are_few && 32 << bits <= MAP_SMALL_THREADS ? MAP_SMALL_THREADS : MAP_THREADS;
    const int64_t blocks =
        tgl_max(tgl_ceil_div(m->num_experts, (int64_t)1 << bits), tgl_ceil_div(m->num_positions, MAP_FILL_POSITIONS));
    return tgl_max(1, tgl_min(blocks, num_sms));
}
