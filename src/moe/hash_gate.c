/* SPDX-License-Identifier: MIT
 * hash_gate.c - tgl_moe_hash_gate: experts from a table by token id, weights from scores. */
#include "moe/hash_gate.h"

#include <string.h>

#include "core/log_indices.h"
#include "core/math.h"
#include "core/threads.h"
#include "moe/common/gate_host.h"

typedef hash_gate_args problem;

/* ---- CPU ---- */

/* The token's id, or -1 if the token is masked. */
static int64_t id_of(const problem *p, int64_t t)
{
    const int64_t id = tgl_index_get(p->input_ids, t, p->id_bytes);
    return (!p->gate.mask || p->gate.mask[t]) && id >= 0 && id < p->vocabulary ? id : -1;
}

/* Few instructions per slot, so that the CPU has loads of several tokens in flight. */
TGL_ALWAYS_INLINE bool choose_experts(const problem *p, int64_t t, int table_bytes)
{
    const tgl_gate *gate = &p->gate;
    const int64_t id = id_of(p, t), slots = (int64_t)gate->num_topk + gate->num_shared;
    if (id < 0) return false;
    if (gate->num_topk == 0) return true; /* the table may be NULL */
    const int64_t row_bytes = (int64_t)gate->num_topk * table_bytes;
    const char *row = (const char *)p->tid2eid + id * row_bytes;
    if (gate->index_bytes == table_bytes && !gate->unmapped_topk_idx)
        memcpy((char *)gate->topk_idx + t * slots * table_bytes, row, (size_t)row_bytes);
    else
        for (int64_t k = 0; k < gate->num_topk; k++) tgl_gate_choose(gate, t, k, tgl_index_get(row, k, table_bytes));
    return true;
}

static void prefetch_logits(const tgl_gate *gate, int64_t t)
{
    const int64_t slots = (int64_t)gate->num_topk + gate->num_shared;
    for (int64_t k = 0; k < gate->num_topk; k++) {
        const int64_t e = tgl_index_get(gate->topk_idx, t * slots + k, gate->index_bytes);
        if (e >= 0 && e < gate->num_experts) __builtin_prefetch(gate->logits + t * gate->logits_stride + e);
    }
}

/* Tokens begin .. end - 1, up to TGL_GATE_TOKENS of them. */
static void choose_all(const problem *p, int64_t begin, int64_t end, bool *is_routed)
{
    if (p->table_bytes == 4)
        for (int64_t t = begin; t < end; t++) is_routed[t - begin] = choose_experts(p, t, 4);
    else
        for (int64_t t = begin; t < end; t++) is_routed[t - begin] = choose_experts(p, t, 8);
    for (int64_t t = begin; t < end; t++)
        if (is_routed[t - begin]) prefetch_logits(&p->gate, t);
}

static void prefetch_row(const problem *p, int64_t t) /* its ends: rarely more than two cache lines */
{
    const int64_t id = id_of(p, t), row_bytes = p->gate.num_topk * p->table_bytes;
    if (id < 0 || row_bytes == 0) return;
    __builtin_prefetch((const char *)p->tid2eid + id * row_bytes);
    __builtin_prefetch((const char *)p->tid2eid + (id + 1) * row_bytes - 1);
}

static int64_t batch_end(int64_t begin, int64_t end) { return tgl_min(end, begin + TGL_GATE_TOKENS); }

/* The table and the logits are read at random. So while a batch of tokens is finished, the logits of the next
 * batch and the table rows of the one after it are prefetched. */
static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    bool is_routed[2][TGL_GATE_TOKENS];
    int64_t next = batch_end(begin, end), last = batch_end(next, end);
    for (int64_t t = begin; t < last; t++) prefetch_row(p, t);
    choose_all(p, begin, next, is_routed[0]);
    for (int i = 0; begin < end; i = !i) {
        choose_all(p, next, last, is_routed[!i]);
        for (int64_t t = last; t < batch_end(last, end); t++) prefetch_row(p, t);
        tgl_gate_finish(&p->gate, begin, next, is_routed[i]);
        begin = next, next = last, last = batch_end(last, end);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const bool reads_row = p->gate.scoring == TGL_SOFTMAX;
    const int64_t num_scores = reads_row ? p->gate.num_experts : p->gate.num_topk;
    return tgl_parallel_rows(p->gate.num_tokens, tgl_gate_token_bytes(&p->gate, num_scores), run_tokens, p);
}

tgl_signature tgl_moe_hash_gate_signature =
    TGL_SIGNATURE("moe_hash_gate(logits: f32[num_tokens, num_experts] rows, input_ids: i64|i32[num_tokens],"
                  " tid2eid: i64|i32[vocabulary, num_topk], mask: bool[num_tokens]?, " GATE_MAP ", " GATE_SCALARS ")"
                  " -> unmapped_topk_idx: topk_idx[num_tokens, num_topk]? rows, " GATE_OUTPUTS
                  " where num_groups == 0, num_topk_groups == 0, num_topk < 2^31, " GATE_RULES,
                  &TGL_GATE_PARAMS);

/* ---- launch ---- */

static int64_t num_slots(const tgl_gate *gate) { return (int64_t)gate->num_topk + gate->num_shared; }

static int64_t token_lanes(const tgl_gate *gate)
{
    const bool takes_warp = gate->scoring == TGL_SOFTMAX; /* to sum the row */
    return takes_warp || num_slots(gate) > 16 ? 32 : num_slots(gate) > 8 ? 16 : 8;
}

/* The model decides which. */
enum { LANES, WIDE, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_gate *gate = &p->gate;
    const tgl_macro scoring = { "SCORING", gate->scoring }, index = { "INDEX_BYTES", gate->index_bytes };
    if (num_slots(gate) == 0) return 0;
    const tgl_macro id = { "ID_BYTES", p->id_bytes }, table = { "TABLE_BYTES", p->table_bytes };
    if (gate->num_topk > 0 && num_slots(gate) <= GATE_MAX_SLOTS) {
        kernels[LANES] = (tgl_kernel){
            "moe/hash_gate",
            { { "TOKEN_LANES", token_lanes(gate) }, { "NUM_TOPK", gate->num_topk }, scoring, index, id, table }
        };
        return LANES + 1;
    }
    kernels[LANES].name = NULL;
    kernels[WIDE] = (tgl_kernel){ "moe/hash_gate_wide", { scoring, index, id, table } };
    return NUM_KERNELS;
}

static tgl_shape lanes_shape(void *context, const tgl_target *target)
{
    const problem *p = context;
    const int64_t all_warps = tgl_ceil_div(p->gate.num_tokens * token_lanes(&p->gate), 32);
    const int warps = all_warps <= HASH_GATE_FEW_WARPS ? 1 : HASH_GATE_WARPS;
    return (tgl_shape){ { tgl_ceil_div(all_warps, warps) }, .block = 32 * warps, TGL_ARGS(*p) };
}

static tgl_shape wide_shape(void *context, const tgl_target *target)
{
    const problem *p = context;
    return tgl_shape_with(tgl_shape_of_blocks(p->gate.num_tokens, HASH_GATE_WIDE_THREADS), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [LANES] = { .shape = lanes_shape }, [WIDE] = { .shape = wide_shape } } };

tgl_status tgl_moe_hash_gate(const DLTensor *logits, const DLTensor *input_ids, const DLTensor *tid2eid,
                             const DLTensor *mask, const DLTensor *to_physical_map, const DLTensor *logical_count,
                             DLTensor *unmapped_topk_idx, DLTensor *topk_idx, DLTensor *topk_weights,
                             const tgl_moe_gate_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { logits,        input_ids,         tid2eid,  mask,        to_physical_map,
                                  logical_count, unmapped_topk_idx, topk_idx, topk_weights };
    TGL_TRY(tgl_take(&tgl_moe_hash_gate_signature, tensors, params, NULL));
    const DLTensor *of_gate[] = { logits,   NULL,        mask, NULL, to_physical_map, logical_count, unmapped_topk_idx,
                                  topk_idx, topk_weights };
    problem p = { .input_ids = tgl_data(input_ids),
                  .tid2eid = tgl_data(tid2eid),
                  .vocabulary = tid2eid->shape[0],
                  .id_bytes = tgl_dtype_bits(input_ids->dtype) / 8,
                  .table_bytes = tgl_dtype_bits(tid2eid->dtype) / 8 };
    TGL_TRY(tgl_gate_of(of_gate, params, &p.gate));
    tgl_log_indices_where("input_ids", input_ids, p.vocabulary, mask, NULL);
    tgl_log_indices("tid2eid", tid2eid, p.gate.num_experts);
    return tgl_run(&tgl_moe_hash_gate_signature, &OP, tensors, &p, stream);
}
