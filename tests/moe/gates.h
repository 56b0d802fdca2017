/* SPDX-License-Identifier: MIT
 * gates.h - what the tests of the gates share: calls on data of the host, random logits, errors. */
#ifndef TEGULA_TESTS_GATES_H
#define TEGULA_TESTS_GATES_H

#include <math.h>
#include <stdlib.h>

#include "mapping.h"

/* ---- calls ---- */

/* What a gate gets; NULL: not given. With tid2eid it is a hash_gate, with a mapping a route, else a
 * top2_sum_gate. */
typedef struct {
    int64_t num_tokens, num_experts, num_topk; /* num_tokens 0 means 1 */
    const float *logits, *bias;
    const bool *mask, *fix_routing_mask;
    int64_t replicas;
    const int32_t *to_physical_map, *logical_count;
    const int64_t *unmapped_topk_idx; /* before the call */
    int64_t vocabulary;
    const int64_t *input_ids, *tid2eid;
    mapped *mapping;
    tgl_moe_gate_params params;
} gate;

enum { MAX_SLOTS = 16384 };
typedef struct {
    int64_t idx[MAX_SLOTS], unmapped[MAX_SLOTS];
    float weights[MAX_SLOTS];
} gate_result;

static inline DLTensor *place_floats(const backend *b, tensor *t, int64_t rows, int64_t cols, const float *from)
{
    if (!from) return NULL;
    return cols ? place(b, t, TGL_F32, 2, SHAPE(rows, cols), from) : place(b, t, TGL_F32, 1, &rows, from);
}

static inline DLTensor *place_flags(const backend *b, tensor *t, int64_t count, const bool *from)
{
    return from ? place(b, t, TGL_BOOL, 1, &count, from) : NULL;
}

/* i64 on the host, either dtype on the device; cols 0: one dimension. */
static inline DLTensor *place_indices(const backend *b, tensor *t, tgl_dtype dtype, int64_t rows, int64_t cols,
                                      const int64_t *from)
{
    static int32_t narrow[MAX_SLOTS];
    const int64_t count = rows * (cols ? cols : 1);
    if (!from) return NULL;
    for (int64_t i = 0; dtype == TGL_I32 && i < count; i++) narrow[i] = (int32_t)from[i];
    return place(b, t, dtype, cols ? 2 : 1, SHAPE(rows, cols), dtype == TGL_I32 ? (const void *)narrow : from);
}

static inline void take_indices(const backend *b, tensor *t, int64_t count, int64_t *to)
{
    static int32_t narrow[MAX_SLOTS];
    const bool is_narrow = t->t.dtype.bits == 32;
    const size_t bytes = (size_t)count * (is_narrow ? 4 : 8);
    CHECK_OK(backend_download(b, is_narrow ? (void *)narrow : to, t->t.data, bytes));
    for (int64_t i = 0; is_narrow && i < count; i++) to[i] = narrow[i];
    discard(b, t);
}

static inline tgl_status call_gate(const backend *b, tgl_dtype dtype, const gate *g, gate_result *r)
{
    static int64_t poison[MAX_SLOTS];
    const int64_t n = g->num_tokens ? g->num_tokens : 1, s = g->params.num_shared_experts;
    const int64_t width = g->num_topk + s, rows = g->num_experts + s, m = g->replicas;
    tensor logits, bias, mask, fix, map, count, unmapped, idx, weights, ids, table;
    memset(poison, 0x5a, sizeof poison);
    const DLTensor *plogits = place_floats(b, &logits, n, g->num_experts, g->logits);
    const DLTensor *pbias = place_floats(b, &bias, g->num_experts, 0, g->bias);
    const DLTensor *pmask = place_flags(b, &mask, n, g->mask);
    const DLTensor *pfix = place_flags(b, &fix, n, g->fix_routing_mask);
    const DLTensor *pmap = m ? place(b, &map, TGL_I32, 2, SHAPE(rows, m), g->to_physical_map) : NULL;
    const DLTensor *pcount = m ? place(b, &count, TGL_I32, 1, &rows, g->logical_count) : NULL;
    DLTensor *punmapped = place_indices(b, &unmapped, dtype, n, g->num_topk, g->unmapped_topk_idx);
    DLTensor *pidx = place_indices(b, &idx, dtype, n, width, poison);
    DLTensor *pweights = place_floats(b, &weights, n, width, (const float *)poison);
    tgl_status status;
    if (g->tid2eid) {
        status = tgl_moe_hash_gate(plogits, place_indices(b, &ids, TGL_I64, n, 0, g->input_ids),
                                   place_indices(b, &table, dtype, g->vocabulary, g->num_topk, g->tid2eid), pmask, pmap,
                                   pcount, punmapped, pidx, pweights, &g->params, b->stream);
        discard(b, &ids);
        discard(b, &table);
    } else if (g->mapping) {
        tensor t[NUM_ARRAYS];
        const tgl_moe_mapping out = open_mapping(b, g->mapping, t);
        const scratch w = make_scratch(b, tgl_moe_route_workspace_size(plogits, pidx, &out));
        status = tgl_moe_route(plogits, pbias, pmask, pfix, pmap, pcount, punmapped, pidx, pweights, &out,
                               g->mapping->alignment, &g->params, w.data, w.bytes, b->stream);
        close_mapping(b, g->mapping, t);
        backend_free(b, w.data);
    } else {
        status = tgl_moe_top2_sum_gate(plogits, pbias, pmask, pfix, pmap, pcount, punmapped, pidx, pweights, &g->params,
                                       b->stream);
    }
    CHECK_OK(backend_download(b, r->weights, weights.t.data, (size_t)(n * width) * 4));
    take_indices(b, &idx, n * width, r->idx);
    if (punmapped) take_indices(b, &unmapped, n * g->num_topk, r->unmapped);
    discard(b, &logits);
    discard(b, &weights);
    if (pbias) discard(b, &bias);
    if (pmask) discard(b, &mask);
    if (pfix) discard(b, &fix);
    if (m) discard(b, &map), discard(b, &count);
    return status;
}

/* ---- checks ---- */

#define ROW(...) ((const int64_t[]){ __VA_ARGS__ })
#define WEIGHTS(...) ((const float[]){ __VA_ARGS__ })

static inline void check_indices(const backend *b, const char *name, const int64_t *seen, const int64_t *want,
                                 int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!CHECK_THAT(seen[i] == want[i], "%s: %s: element %d is %lld, want %lld", b->name, name, (int)i,
                        (long long)seen[i], (long long)want[i]))
            return;
}

static inline void check_weights(const backend *b, const float *seen, const float *want, int64_t count, float tolerance)
{
    for (int64_t i = 0; i < count; i++)
        if (!CHECK_THAT((isnan(want[i]) && isnan(seen[i])) || seen[i] == want[i] ||
                            fabsf(seen[i] - want[i]) <= tolerance,
                        "%s: topk_weights: element %d is %.9g, want %.9g", b->name, (int)i, (double)seen[i],
                        (double)want[i]))
            return;
}

/* On every device, with indices of either dtype: experts, weights to six digits (NULL: any), and
 * unmapped_topk_idx after the call (NULL: any). */
static inline void check_gate_all(gate g, const int64_t *idx, const float *weights, const int64_t *unmapped)
{
    static gate_result r;
    const int64_t n = g.num_tokens ? g.num_tokens : 1, slots = n * (g.num_topk + g.params.num_shared_experts);
    FOR_BACKENDS(b)
        for (int is_narrow = 0; is_narrow < 2; is_narrow++) {
            if (is_narrow && b->is_emulated) continue; /* the list of cases has enough kernels of i32 */
            if (!CHECK_OK(call_gate(b, is_narrow ? TGL_I32 : TGL_I64, &g, &r))) continue;
            check_indices(b, "topk_idx", r.idx, idx, slots);
            if (weights) check_weights(b, r.weights, weights, slots, 6e-7f);
            if (unmapped) check_indices(b, "unmapped_topk_idx", r.unmapped, unmapped, n * g.num_topk);
        }
}
static inline void check_gate(gate g, const int64_t *idx, const float *weights)
{
    check_gate_all(g, idx, weights, NULL);
}

/* The bits of `slots` slots are those of `want` from slot `from` on. */
static inline void check_same_from(const backend *b, const char *what, const gate_result *seen, const gate_result *want,
                                   int64_t from, int64_t slots)
{
    for (int64_t i = 0; i < slots; i++) {
        const float weight = want->weights[from + i];
        if (!CHECK_THAT(seen->idx[i] == want->idx[from + i] && !memcmp(&seen->weights[i], &weight, 4),
                        "%s: %s: slot %d has expert %lld and weight %a, want %lld and %a", b->name, what, (int)i,
                        (long long)seen->idx[i], (double)seen->weights[i], (long long)want->idx[from + i],
                        (double)weight))
            return;
    }
}
static inline void check_same(const backend *b, const char *what, const gate_result *seen, const gate_result *want,
                              int64_t slots)
{
    check_same_from(b, what, seen, want, 0, slots);
}

/* ---- data ---- */

static inline float random_normal(test_random *r) /* approximately: a sum of four uniform numbers */
{
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)test_below(r, 1 << 20) / (1 << 20);
    return (float)((sum - 2) * 1.7320508);
}

static inline void random_floats(test_random *r, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] = random_normal(r);
}

/* ---- errors ---- */

/* Two of eight experts, in two of four groups (not hash_gate), and one shared expert with three replicas. */
#define GATE_SAMPLE \
    "num_tokens=3 num_experts=8 num_topk=2 num_replicas=3 num_shared_experts=1 num_ep_ranks=5 num_tp_ranks=2 tp_rank=1"

#define PARAMS ((tgl_moe_gate_params *)(void *)c->params)

/* Some whole messages. Tensors are numbered as in top2_sum_gate; from the map on, as in all gates. */
#define CHECK_GATE_ERRORS()                                                                                        \
    CHECK_ERROR(x[0].shape[1] = (int64_t)1 << 31, "logits: shape is [3, 2147483648], want [3, 0..2147483646]");    \
    CHECK_ERROR(x[4].shape[1] = x[4].strides[0] = 1, "to_physical_map: shape is [9, 1], want [9, 2..2147483647]"); \
    CHECK_ERROR(x[6].strides[0] = 0, "unmapped_topk_idx: strides are [0, 1], want >= 2 between rows");             \
    CHECK_ERROR(x[7].dtype.bits = 32, "unmapped_topk_idx: dtype is i64, want i32 as topk_idx");                    \
    CHECK_ERROR(c->tensors[4] = c->tensors[5] = NULL,                                                              \
                "to_physical_map: is NULL, want a tensor with num_shared_experts");                                \
    CHECK_ERROR(PARAMS->scoring = (tgl_moe_scoring)4, "scoring: is 4, want 0..3");                                 \
    CHECK_ERROR(PARAMS->num_shared_experts = (int64_t)1 << 31,                                                     \
                "num_shared_experts: is 2147483648, want fewer than 2^31");                                        \
    CHECK_ERROR(PARAMS->num_tp_ranks = 0, "tp_rank: is 1, want 0..0");                                             \
    CHECK_ERROR(PARAMS->num_ep_ranks = 11, "num_ep_ranks: is 11, want <= 10 (experts)")

/* For top2_sum_gate and route. */
#define CHECK_GROUP_ERRORS()                                                                       \
    CHECK_ERROR(x[7].shape[1] = x[7].strides[0] = 6, "topk_idx: shape is [3, 6], want [3, 1..5]"); \
    CHECK_ERROR(PARAMS->num_groups = 3, "num_groups: is 3, want a divisor of 8 (num_experts)");    \
    CHECK_ERROR(PARAMS->num_topk_groups = 0, "num_topk_groups: is 0, want 1..4")

#endif
