/* SPDX-License-Identifier: MIT
 * gates.h - what the tests of the gates share: calls on data of the host, random logits, errors of optional
 * tensors. */
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

/* ---- errors ---- */

#define I32 "i32", "code 0 with 32 bits", "4"
#define OPTIONAL_ERRORS(...) OPTIONAL_ERRORS_OF(__VA_ARGS__)
#define OPTIONAL_ERRORS_OF(member, pointer, name, rank, bytes, dtypes, dtype_text, alignment)          \
    FLAG_ERRORS_OF(member, pointer, name, rank, bytes, dtypes, dtype_text);                            \
    ERROR(c.member.t.byte_offset = 1, name ": data is 1 bytes past a multiple of " alignment ", want 0")
#define FLAGS "bool", "code 6 with 8 bits"
#define FLAG_ERRORS(...) FLAG_ERRORS_OF(__VA_ARGS__)
#define FLAG_ERRORS_OF(member, pointer, name, rank, bytes, dtypes, dtype_text)                         \
    ERROR(c.member.t.shape = NULL, name ": shape is NULL, want " rank " sizes");                       \
    ERROR(c.member.t.data = NULL, name ": data is NULL, want " bytes " bytes");                        \
    ERROR(c.member.t.ndim = 4, name ": rank is 4, want " rank);                                        \
    ERROR(c.member.t.dtype = tgl_dtype_to_dlpack(TGL_F16), name ": dtype is f16, want " dtypes);       \
    ERROR(c.member.t.dtype = tgl_dtype_to_dlpack(TGL_U8), name ": dtype is u8, want " dtypes);         \
    ERROR(c.member.t.dtype.lanes = 0, name ": dtype is " dtype_text " and 0 lanes, want " dtypes);     \
    ERROR(c.member.t.device.device_type = (DLDeviceType)7,                                             \
          name ": device is type 7, want cpu or cuda:0..63")
/* On another device than the logits; shape and strides that are not what the others ask for. */
#define DEVICE_ERROR(member, name)                                                          \
    ERROR(c.member.t.device = ((DLDevice){ (DLDeviceType)TGL_DL_CUDA, 1 }),                 \
          on_cuda ? name ": device is cuda:1, want cuda:0" : name ": device is cuda:1, want cpu")

#endif
