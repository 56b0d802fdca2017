/* SPDX-License-Identifier: MIT
 * gates.h - what the tests of the gates share: calls on data of the host, random logits, errors. */
#ifndef TEGULA_TESTS_GATES_H
#define TEGULA_TESTS_GATES_H

#include <math.h>
#include <stdlib.h>

#include "support.h"

/* ---- calls ---- */

/* What a gate gets. NULL: not given. One with tid2eid is a hash_gate. */
typedef struct {
    int64_t num_tokens, num_experts, num_topk;      /* num_tokens 0: 1 */
    const float *logits, *bias;
    const bool *mask, *fix_routing_mask;
    int64_t replicas;
    const int32_t *to_physical_map, *logical_count;
    const int64_t *unmapped_topk_idx;               /* before the call */
    int64_t vocabulary;
    const int64_t *input_ids, *tid2eid;
    tgl_moe_gate_params params;
} gate;

enum { MAX_SLOTS = 16384 };
typedef struct { int64_t idx[MAX_SLOTS], unmapped[MAX_SLOTS]; float weights[MAX_SLOTS]; } gate_result;

static inline DLTensor *place_floats(const backend *b, tensor *t, int64_t rows, int64_t cols,
                                     const float *from)
{
    if (!from) return NULL;
    return cols ? place(b, t, TGL_F32, 2, SHAPE(rows, cols), from) : place(b, t, TGL_F32, 1, &rows, from);
}

static inline DLTensor *place_flags(const backend *b, tensor *t, int64_t count, const bool *from)
{
    return from ? place(b, t, TGL_BOOL, 1, &count, from) : NULL;
}

/* i64 on the host, of either dtype there; cols 0: of one dimension. */
static inline DLTensor *place_indices(const backend *b, tensor *t, tgl_dtype dtype, int64_t rows,
                                      int64_t cols, const int64_t *from)
{
    static int32_t narrow[MAX_SLOTS];
    const int64_t count = rows * (cols ? cols : 1);
    if (!from) return NULL;
    for (int64_t i = 0; dtype == TGL_I32 && i < count; i++) narrow[i] = (int32_t)from[i];
    return place(b, t, dtype, cols ? 2 : 1, SHAPE(rows, cols),
                 dtype == TGL_I32 ? (const void *)narrow : from);
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
                                   place_indices(b, &table, dtype, g->vocabulary, g->num_topk, g->tid2eid),
                                   pmask, pmap, pcount, punmapped, pidx, pweights, &g->params, b->stream);
        discard(b, &ids);
        discard(b, &table);
    } else {
        status = tgl_moe_top2_sum_gate(plogits, pbias, pmask, pfix, pmap, pcount, punmapped, pidx, pweights,
                                       &g->params, b->stream);
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

static inline void check_weights(const backend *b, const float *seen, const float *want, int64_t count,
                                 float tolerance)
{
    for (int64_t i = 0; i < count; i++)
        if (!CHECK_THAT((isnan(want[i]) && isnan(seen[i])) || seen[i] == want[i] ||
                            fabsf(seen[i] - want[i]) <= tolerance,
                        "%s: topk_weights: element %d is %.9g, want %.9g", b->name, (int)i, (double)seen[i],
                        (double)want[i]))
            return;
}

/* On every device, with indices of either dtype: experts, and weights that are known to six digits. What
 * unmapped_topk_idx becomes is in the call: g.unmapped_topk_idx is given, and `unmapped` not NULL. */
static inline void check_gate_all(gate g, const int64_t *idx, const float *weights, const int64_t *unmapped)
{
    static gate_result r;
    const int64_t n = g.num_tokens ? g.num_tokens : 1, slots = n * (g.num_topk + g.params.num_shared_experts);
    FOR_BACKENDS(b)
        for (int is_narrow = 0; is_narrow < 2; is_narrow++) {
            if (is_narrow && b->is_emulated) continue;      /* the table has enough kernels of i32 */
            if (!CHECK_OK(call_gate(b, is_narrow ? TGL_I32 : TGL_I64, &g, &r))) continue;
            check_indices(b, "topk_idx", r.idx, idx, slots);
            check_weights(b, r.weights, weights, slots, 6e-7f);
            if (unmapped) check_indices(b, "unmapped_topk_idx", r.unmapped, unmapped, n * g.num_topk);
        }
}
static inline void check_gate(gate g, const int64_t *idx, const float *weights)
{
    check_gate_all(g, idx, weights, NULL);
}

/* The same bits in `slots` slots, which in `want` begin at slot `from`. */
static inline void check_same_from(const backend *b, const char *what, const gate_result *seen,
                                   const gate_result *want, int64_t from, int64_t slots)
{
    for (int64_t i = 0; i < slots; i++) {
        const float weight = want->weights[from + i];
        if (!CHECK_THAT(seen->idx[i] == want->idx[from + i] && !memcmp(&seen->weights[i], &weight, 4),
                        "%s: %s: slot %d has expert %lld and weight %a, want %lld and %a", b->name, what,
                        (int)i, (long long)seen->idx[i], (double)seen->weights[i],
                        (long long)want->idx[from + i], (double)weight))
            return;
    }
}
static inline void check_same(const backend *b, const char *what, const gate_result *seen,
                              const gate_result *want, int64_t slots)
{
    check_same_from(b, what, seen, want, 0, slots);
}

/* ---- data ---- */

static inline float random_normal(test_random *r)   /* nearly: a sum of four uniform numbers */
{
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)test_below(r, 1 << 20) / (1 << 20);
    return (float)((sum - 2) * 1.7320508);
}

static inline void random_floats(test_random *r, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) to[i] = random_normal(r);
}

/* ---- errors ----
 * Of what all gates have, for a test whose `call` has it in member g. */

typedef struct {
    tensor logits, bias, mask, fix, map, count, unmapped, idx, weights;
    DLTensor *plogits, *pbias, *pmask, *pfix, *pmap, *pcount, *punmapped, *pidx, *pweights;
    tgl_moe_gate_params params, *pparams;
} gate_call;

/* Two of eight experts, and one shared of three replicas; in the first 2048 bytes of memory. */
static inline void valid_gate(gate_call *g, DLDevice on)
{
    g->plogits = make(&g->logits, memory + 256, on, TGL_F32, 2, SHAPE(3, 8));
    g->pbias = make(&g->bias, memory + 512, on, TGL_F32, 1, SHAPE(8));
    g->pmask = make(&g->mask, memory + 640, on, TGL_BOOL, 1, SHAPE(3));
    g->pfix = make(&g->fix, memory + 704, on, TGL_BOOL, 1, SHAPE(3));
    g->pmap = make(&g->map, memory + 768, on, TGL_I32, 2, SHAPE(9, 3));
    g->pcount = make(&g->count, memory + 1024, on, TGL_I32, 1, SHAPE(9));
    g->punmapped = make(&g->unmapped, memory + 1280, on, TGL_I64, 2, SHAPE(3, 2));
    g->pidx = make(&g->idx, memory + 1536, on, TGL_I64, 2, SHAPE(3, 3));
    g->pweights = make(&g->weights, memory + 1792, on, TGL_F32, 2, SHAPE(3, 3));
    g->params =
        (tgl_moe_gate_params){ .num_shared_experts = 1, .num_ep_ranks = 5, .num_tp_ranks = 2, .tp_rank = 1 };
    g->pparams = &g->params;
}

#define ROWS_WANT ", want 1 in the last dimension and >= 0 in the others"

#define GATE_TENSOR_ERRORS()                                                     \
    TENSOR_ERRORS(g.logits, g.plogits, "logits", "2", "96", F32);                \
    TENSOR_ERRORS(g.idx, g.pidx, "topk_idx", "2", "72", INDEX);                  \
    TENSOR_ERRORS(g.weights, g.pweights, "topk_weights", "2", "36", F32);        \
    FLAG_ERRORS(g.mask, "mask", "1", "3", FLAGS);                                \
    OPTIONAL_ERRORS(g.map, "to_physical_map", "2", "108", I32);                  \
    OPTIONAL_ERRORS(g.count, "logical_count", "1", "36", I32);                   \
    OPTIONAL_ERRORS(g.unmapped, "unmapped_topk_idx", "2", "48", INDEX);          \
    OTHER_DEVICE(g.idx, "topk_idx");                                             \
    OTHER_DEVICE(g.weights, "topk_weights");                                     \
    OTHER_DEVICE(g.mask, "mask");                                                \
    OTHER_DEVICE(g.map, "to_physical_map");                                      \
    OTHER_DEVICE(g.count, "logical_count");                                      \
    OTHER_DEVICE(g.unmapped, "unmapped_topk_idx")

#define GATE_LAYOUT_ERRORS()                                                                           \
    ERROR(c.g.logits.strides[1] = 2, "logits: strides are [8, 2]" ROWS_WANT);                          \
    ERROR(c.g.logits.strides[0] = -8, "logits: strides are [-8, 1]" ROWS_WANT);                        \
    ERROR(c.g.unmapped.strides[1] = 2, "unmapped_topk_idx: strides are [2, 2]" ROWS_WANT);             \
    ERROR(c.g.mask.strides[0] = 2, "mask: strides are [2], want [1]");                                 \
    ERROR(c.g.map.strides[0] = 4, "to_physical_map: strides are [4, 1], want [3, 1]");                 \
    ERROR(c.g.count.strides[0] = 2, "logical_count: strides are [2], want [1]");                       \
    ERROR(c.g.idx.strides[0] = 4, "topk_idx: strides are [4, 1], want [3, 1]");                        \
    ERROR(c.g.weights.strides[0] = 4, "topk_weights: strides are [4, 1], want [3, 1]");                \
    /* rows that are written must not overlap */                                                       \
    ERROR(c.g.unmapped.strides[0] = 1, "unmapped_topk_idx: strides are [1, 1], want >= 2 between rows"); \
    ERROR(c.g.unmapped.strides[0] = 0, "unmapped_topk_idx: strides are [0, 1], want >= 2 between rows")

/* `slots`: how many topk_idx may have. */
#define GATE_SHAPE_ERRORS(slots)                                                                        \
    ERROR(c.g.logits.shape[0] = -1, "logits: shape is [-1, 8], want sizes >= 0");                       \
    ERROR(c.g.logits.shape[1] = (int64_t)1 << 31,                                                       \
          "logits: shape is [3, 2147483648], want [3, 0..2147483646]");                                 \
    ERROR(c.g.mask.shape[0] = 2, "mask: shape is [2], want [3]");                                       \
    ERROR(c.g.map.shape[0] = 8, "to_physical_map: shape is [8, 3], want [9, 2..2147483647]");           \
    ERROR(c.g.map.shape[1] = c.g.map.strides[0] = 1,                                                    \
          "to_physical_map: shape is [9, 1], want [9, 2..2147483647]");                                 \
    ERROR(c.g.count.shape[0] = 8, "logical_count: shape is [8], want [9]");                             \
    ERROR(c.g.unmapped.shape[0] = 2, "unmapped_topk_idx: shape is [2, 2], want [3, 2]");                \
    ERROR(c.g.unmapped.shape[1] = c.g.unmapped.strides[0] = 3,                                          \
          "unmapped_topk_idx: shape is [3, 3], want [3, 2]");                                           \
    ERROR(c.g.idx.shape[0] = 2, "topk_idx: shape is [2, 3], want [3, " slots "]");                      \
    ERROR(c.g.weights.shape[0] = 4, "topk_weights: shape is [4, 3], want [3, 3]");                      \
    ERROR(c.g.weights.shape[1] = c.g.weights.strides[0] = 2,                                            \
          "topk_weights: shape is [3, 2], want [3, 3]");                                                \
    ERROR(c.g.unmapped.t.dtype.bits = 32, "unmapped_topk_idx: dtype is i32, want i64 as topk_idx");     \
    ERROR(c.g.idx.t.dtype.bits = 32, "unmapped_topk_idx: dtype is i64, want i32 as topk_idx");          \
    ERROR(c.g.pcount = NULL, "logical_count: is NULL, want a tensor with to_physical_map");             \
    ERROR(c.g.pmap = NULL, "to_physical_map: is NULL, want a tensor with logical_count");               \
    ERROR(c.g.pmap = c.g.pcount = NULL, "to_physical_map: is NULL, want a tensor with num_shared_experts")

#define GATE_PARAMS_ERRORS()                                                                       \
    ERROR(c.g.pparams = NULL, "params: is NULL, want a struct");                                   \
    ERROR(c.g.params.scoring = (tgl_moe_scoring)4, "scoring: is 4, want 0..3");                    \
    ERROR(c.g.params.scoring = (tgl_moe_scoring)-1, "scoring: is -1, want 0..3");                  \
    ERROR(c.g.params.num_groups = -4, "num_groups: is -4, want >= 0");                             \
    ERROR(c.g.params.num_topk_groups = -1, "num_topk_groups: is -1, want >= 0");                   \
    ERROR(c.g.params.num_shared_experts = -1, "num_shared_experts: is -1, want >= 0");             \
    ERROR(c.g.params.num_shared_experts = (int64_t)1 << 31,                                        \
          "num_shared_experts: is 2147483648, want fewer than 2^31");                              \
    ERROR(c.g.params.ep_rank = -1, "ep_rank: is -1, want >= 0");                                   \
    ERROR(c.g.params.num_ep_ranks = -1, "num_ep_ranks: is -1, want >= 0");                         \
    ERROR(c.g.params.num_ep_ranks = 11, "num_ep_ranks: is 11, want at most 10 (experts)");         \
    ERROR(c.g.params.num_tp_ranks = -2, "num_tp_ranks: is -2, want >= 0");                         \
    ERROR(c.g.params.tp_rank = 2, "tp_rank: is 2, want 0..1");                                     \
    ERROR(c.g.params.tp_rank = -1, "tp_rank: is -1, want 0..1");                                   \
    ERROR(c.g.params.num_tp_ranks = 0, "tp_rank: is 1, want 0..0");                                \
    ERROR(c.g.params.reserved[0] = 1, "reserved[0]: is 1, want 0");                                \
    ERROR(c.g.params.reserved[7] = 5, "reserved[7]: is 5, want 0")

#define SHARED(out, name, in, in_name) \
    ERROR(c.out.t.data = c.in.t.data, name ": memory is shared with " in_name ", want no overlap")
#define GATE_OVERLAP_ERRORS()                                                   \
    SHARED(g.idx, "topk_idx", g.logits, "logits");                              \
    SHARED(g.weights, "topk_weights", g.logits, "logits");                      \
    SHARED(g.unmapped, "unmapped_topk_idx", g.logits, "logits");                \
    SHARED(g.weights, "topk_weights", g.mask, "mask");                          \
    SHARED(g.idx, "topk_idx", g.map, "to_physical_map");                        \
    SHARED(g.unmapped, "unmapped_topk_idx", g.map, "to_physical_map");          \
    SHARED(g.weights, "topk_weights", g.count, "logical_count");                \
    SHARED(g.idx, "topk_idx", g.unmapped, "unmapped_topk_idx");                 \
    SHARED(g.weights, "topk_weights", g.unmapped, "unmapped_topk_idx");         \
    ERROR(c.g.weights.t.data = (char *)c.g.idx.t.data + 36,                     \
          "topk_weights: memory is shared with topk_idx, want no overlap")

#endif
