/* SPDX-License-Identifier: MIT
 * fuzz_mapping.c - counts, mapping, expand and reduce on the CPU, with shapes, indices, positions, lengths
 * and alignments made from any bytes. A libFuzzer target; without libFuzzer, test_fuzz_mapping.c runs the
 * same function.
 *
 * Every tensor is an allocation of its own, to the byte, so that a sanitizer sees a step beyond it. Every
 * call is compared with a second opinion that looks for each entry by itself: the plainest rule there is, in
 * time that grows with the square of the pairs. */
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "fuzz.h"
#include "tegula/moe.h"

/* ---- numbers from bytes ---- */

/* One of 0 .. n - 1 as a rule, else anything: just outside, far outside, the same in its lower half. */
static int64_t take_index(bytes *b, int64_t n)
{
    const unsigned v = take(b);
    const int64_t usual = n ? v % n : 0;
    if (v < 176) return usual;
    switch (v % 8) {
    case 0: return n;
    case 1: return n + 1;
    case 2: return -1;
    case 3: return (int64_t)((uint64_t)1 << 32) + usual;
    case 4: return v & 8 ? INT32_MAX : INT32_MIN;
    case 5: return v & 8 ? INT64_MAX : INT64_MIN;
    default: return (int64_t)take_word(b);
    }
}

/* ---- tensors ---- */

typedef struct { DLTensor t; int64_t shape[2], strides[2]; size_t bytes; } tensor;
enum { FRESH = 0xa5 };

/* Rows `stride` elements apart; as many bytes as there are from the first element to the last. */
static DLTensor *make(tensor *t, tgl_dtype dtype, int ndim, int64_t rows, int64_t cols, int64_t stride)
{
    const int64_t size = tgl_dtype_bits(tgl_dtype_to_dlpack(dtype)) / 8;
    *t = (tensor){ .t = { NULL, { (DLDeviceType)TGL_DL_CPU, 0 }, ndim, tgl_dtype_to_dlpack(dtype), t->shape,
                          t->strides, 0 } };
    t->shape[0] = rows, t->shape[1] = cols;
    t->strides[0] = ndim == 2 ? stride : 1, t->strides[1] = 1;
    if (ndim == 1) t->bytes = (size_t)(rows * size);
    else if (rows && cols) t->bytes = (size_t)(((rows - 1) * stride + cols) * size);
    t->t.data = malloc(t->bytes + !t->bytes);
    INSIST(t->t.data);
    memset(t->t.data, FRESH, t->bytes);
    return &t->t;
}

static bool is_fresh(const tensor *t)
{
    for (size_t i = 0; i < t->bytes; i++)
        if (((const unsigned char *)t->t.data)[i] != FRESH) return false;
    return true;
}

static int32_t at(const tensor *t, int64_t i) { return ((const int32_t *)t->t.data)[i]; }

/* ---- the mapping ---- */

enum { TO_EXPERT, TO_TOKEN, TO_TOKEN_TOPK, TO_POS, START, END, LENGTH, COUNT, PSUM, HOST, NUM_ARRAYS };

typedef struct {
    int64_t tokens, topk, experts, alignment, positions;
    tensor idx, arrays[NUM_ARRAYS], counts, fi;
    tgl_moe_mapping m;
} problem;

static int64_t index_at(const problem *p, int64_t i)
{
    const int64_t slot = i / p->topk * p->idx.strides[0] + i % p->topk;
    return p->idx.t.dtype.bits == 32 ? at(&p->idx, slot) : ((const int64_t *)p->idx.t.data)[slot];
}

static int64_t aligned(const problem *p, int64_t count)
{
    return (count + p->alignment - 1) / p->alignment * p->alignment;
}

static void make_problem(problem *p, bytes *b)
{
    p->tokens = take(b) % 20, p->topk = take(b) % 10, p->experts = take(b) % 24;
    p->alignment = 1 + take(b) % 20;
    const unsigned flags = take(b);
    p->positions = flags & 1 ? (int64_t)take(b) : p->tokens * p->topk + (p->alignment - 1) * p->experts;
    make(&p->idx, flags & 2 ? TGL_I32 : TGL_I64, 2, p->tokens, p->topk,
         p->topk + (flags & 4 ? take(b) % 4 : 0));
    for (int64_t i = 0; i < p->tokens * p->topk; i++) {
        const int64_t slot = i / p->topk * p->idx.strides[0] + i % p->topk, value = take_index(b, p->experts);
        if (flags & 2) ((int32_t *)p->idx.t.data)[slot] = (int32_t)(uint32_t)(uint64_t)value;
        else ((int64_t *)p->idx.t.data)[slot] = value;
    }
    for (int i = 0; i < NUM_ARRAYS; i++)
        make(&p->arrays[i], TGL_I32, 1 + (i == TO_POS),
             i < TO_POS   ? p->positions
             : i > TO_POS ? p->experts
                          : p->tokens,
             p->topk, p->topk);
    make(&p->counts, TGL_I32, 1, p->experts, 0, 0);
    make(&p->fi, TGL_F32, 1, p->experts, 0, 0);
    DLTensor *t[NUM_ARRAYS];
    for (int i = 0; i < NUM_ARRAYS; i++) t[i] = &p->arrays[i].t;
    if (flags & 8) t[COUNT] = t[HOST] = NULL;
    if (flags & 16) t[PSUM] = NULL;
    p->m = (tgl_moe_mapping){ t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], { 0 } };
}

static void free_problem(problem *p)
{
    free(p->idx.t.data);
    free(p->counts.t.data);
    free(p->fi.t.data);
    for (int i = 0; i < NUM_ARRAYS; i++) free(p->arrays[i].t.data);
}

/* A wrong argument: the call fails, and nothing is written. */
static void try_fault(problem *p, bytes *b)
{
    problem q = *p;
    tensor other = { .bytes = 0 };
    const int which = (int)(take(b) % (HOST + 1));
    DLTensor *const *slots[] = { &q.m.pos_to_expert, &q.m.pos_to_token, &q.m.pos_to_token_topk,
                                 &q.m.token_topk_to_pos, &q.m.expert_start, &q.m.expert_end,
                                 &q.m.num_tokens_per_expert, &q.m.count, &q.m.psum_end,
                                 &q.m.num_tokens_per_expert_host };
    DLTensor **slot = (DLTensor **)(uintptr_t)slots[which];
    int64_t alignment = p->alignment;
    switch (take(b) % 6) {
    case 0: alignment = -(int64_t)(take(b) % 3); break;
    case 1:
        if (p->experts == 0) return;        /* nothing is padded */
        alignment = (int64_t)(take_word(b) >> 1 | (uint64_t)1 << 40);
        break;
    case 2: q.m.reserved[take(b) % 8] = 1; break;
    case 3: *slot = make(&other, TGL_I64, 1 + (which == TO_POS), 3, 3, 3); break;
    case 4: *slot = make(&other, TGL_I32, 2 - (which == TO_POS), 3, 3, 3); break;
    default:
        *slot = make(&other, TGL_I32, 1 + (which == TO_POS), which < TO_POS ? p->positions + 1 : 300, 30, 30);
    }
    const tgl_status status = tgl_moe_get_fused_mapping(&p->idx.t, &q.m, alignment, NULL, 0, NULL);
    INSIST(status == TGL_ERR_ARGUMENT && strstr(tgl_last_error(), ", want "));
    for (int i = 0; i < NUM_ARRAYS; i++) INSIST(is_fresh(&p->arrays[i]));
    INSIST(is_fresh(&other));
    free(other.t.data);
}

static void check_mapping(const problem *p)
{
    const tensor *a = p->arrays;
    const int64_t slots = p->tokens * p->topk;
    int64_t start = 0;
    for (int64_t e = 0; e < p->experts; e++) {
        int64_t count = 0;
        for (int64_t i = 0; i < slots; i++) count += index_at(p, i) == e;
        INSIST(at(&a[START], e) == start && at(&a[END], e) == start + aligned(p, count));
        INSIST(at(&a[LENGTH], e) == aligned(p, count));
        INSIST(p->m.count ? at(&a[COUNT], e) == count : is_fresh(&a[COUNT]));
        INSIST(p->m.psum_end ? at(&a[PSUM], e) == start + count : is_fresh(&a[PSUM]));
        INSIST(p->m.num_tokens_per_expert_host ? at(&a[HOST], e) == aligned(p, count) : is_fresh(&a[HOST]));
        INSIST(at(&p->counts, e) == count);
        const float want = p->tokens ? (float)(count * p->experts) / (float)(p->tokens * 3) : 0;
        INSIST(((const float *)p->fi.t.data)[e] == want);
        start += aligned(p, count);
    }
    int64_t taken = 0;
    for (int64_t i = 0; i < slots; i++) {
        const int64_t e = index_at(p, i);
        int64_t before = 0;
        for (int64_t j = 0; j < i; j++) before += index_at(p, j) == e;
        const bool has_place =
            e >= 0 && e < p->experts && at(&a[START], e) + before < p->positions;
        INSIST(at(&a[TO_POS], i) == (has_place ? at(&a[START], e) + before : -1));
        if (!has_place) continue;
        const int32_t place = at(&a[TO_POS], i);
        INSIST(at(&a[TO_EXPERT], place) == e && at(&a[TO_TOKEN], place) == i / p->topk);
        INSIST(at(&a[TO_TOKEN_TOPK], place) == i);
        taken++;
    }
    for (int64_t place = 0; place < p->positions; place++) {
        const bool is_empty = at(&a[TO_EXPERT], place) == -1;
        INSIST(is_empty == (at(&a[TO_TOKEN], place) == -1) &&
               is_empty == (at(&a[TO_TOKEN_TOPK], place) == -1));
        taken -= !is_empty;
    }
    INSIST(taken == 0);
}

/* ---- moving rows ---- */

/* Positions as they are, or as any bytes say. */
static void spoil(problem *p, bytes *b)
{
    for (int64_t i = 0; i < p->tokens * p->topk; i++)
        if (take(b) % 4 == 0) ((int32_t *)p->arrays[TO_POS].t.data)[i] = (int32_t)take_index(b, p->positions);
    for (int64_t i = 0; i < p->positions; i++)
        if (take(b) % 8 == 0) ((int32_t *)p->arrays[TO_EXPERT].t.data)[i] = (int32_t)take_word(b);
}

/* Which token a position gets its row from: -1 none, -2 more than one. */
static int64_t source_of(const problem *p, int64_t place)
{
    int64_t source = -1;
    for (int64_t i = 0; i < p->tokens * p->topk; i++)
        if (at(&p->arrays[TO_POS], i) == place) source = source == -1 ? i / p->topk : -2;
    return source;
}

static void check_row(const problem *p, int64_t place, const unsigned char *row, const unsigned char *from,
                      size_t size)
{
    const int64_t source = source_of(p, place);
    const bool is_padding = at(&p->arrays[TO_EXPERT], place) < 0;
    if (source == -2 || (source >= 0 && is_padding)) return;        /* no mapping says that */
    for (size_t i = 0; i < size; i++) INSIST(row[i] == (source >= 0 ? from[i] : is_padding ? 0 : FRESH));
}

static void try_expand(const problem *p, bytes *b)
{
    static const tgl_dtype dtypes[] = { TGL_U8,   TGL_BF16, TGL_F32,    TGL_I64,
                                        TGL_C128, TGL_E4M3, TGL_E2M1X2, TGL_I8 };
    const tgl_dtype dtype = dtypes[take(b) % 8];
    const int64_t hidden = take(b) % 40, npc = 1 + take(b) % 9, stride = hidden + take(b) % 3;
    const unsigned flags = take(b);
    const bool is_packed = flags & 1, in_columns = flags & 2;
    const int64_t factors = ((dtype == TGL_E2M1X2 ? 2 * hidden : hidden) + npc - 1) / npc;
    const int64_t num_sf = is_packed ? (factors + 3) / 4 : factors;
    tensor x, out, sf, out_sf;
    make(&x, dtype, 2, p->tokens, hidden, stride);
    make(&out, dtype, 2, p->positions, hidden, hidden);
    make(&sf, is_packed ? TGL_I32 : TGL_F32, 2, p->tokens, num_sf, num_sf + take(b) % 3);
    const int64_t apart = p->positions + take(b) % 5;
    make(&out_sf, is_packed ? TGL_I32 : TGL_F32, 2, in_columns ? num_sf : p->positions,
         in_columns ? p->positions : num_sf, in_columns ? apart : num_sf);
    if (in_columns) {
        out_sf.shape[0] = p->positions, out_sf.shape[1] = num_sf;
        out_sf.strides[0] = 1, out_sf.strides[1] = apart;
    }
    for (size_t i = 0; i < x.bytes; i++) ((unsigned char *)x.t.data)[i] = (unsigned char)(i * 31 + 1);
    for (size_t i = 0; i < sf.bytes; i++) ((unsigned char *)sf.t.data)[i] = (unsigned char)(i * 37 + 1);
    const DLTensor *to_pos = &p->arrays[TO_POS].t, *to_expert = &p->arrays[TO_EXPERT].t;
    if (flags & 4)
        INSIST(tgl_moe_expand_to_fused_with_sf(&x.t, &sf.t, to_pos, to_expert, &out.t, &out_sf.t, npc,
                                               NULL) == TGL_OK);
    else INSIST(tgl_moe_expand_to_fused(&x.t, to_pos, to_expert, &out.t, NULL) == TGL_OK);
    const size_t size = (size_t)(tgl_dtype_bits(tgl_dtype_to_dlpack(dtype)) / 8);
    for (int64_t place = 0; place < p->positions && hidden; place++) {
        const int64_t source = source_of(p, place) < 0 ? 0 : source_of(p, place);
        check_row(p, place, (unsigned char *)out.t.data + (size_t)(place * hidden) * size,
                  p->tokens ? (unsigned char *)x.t.data + (size_t)(source * stride) * size : NULL,
                  (size_t)hidden * size);
        for (int64_t i = 0; i < num_sf && (flags & 4); i++)
            check_row(p, place,
                      (unsigned char *)out_sf.t.data +
                          4 * (place * out_sf.strides[0] + i * out_sf.strides[1]),
                      p->tokens ? (unsigned char *)sf.t.data + 4 * (source * sf.strides[0] + i) : NULL, 4);
    }
    if (!(flags & 4)) INSIST(is_fresh(&out_sf));
    free(x.t.data), free(out.t.data), free(sf.t.data), free(out_sf.t.data);
}

static void try_reduce(const problem *p, bytes *b)
{
    const int64_t hidden = take(b) % 12, stride = hidden + take(b) % 3, out_stride = hidden + take(b) % 3;
    const unsigned flags = take(b);
    tensor x, x_sf, weights, sf, out;
    make(&x, TGL_F32, 2, p->positions, hidden, stride);
    make(&x_sf, TGL_F32, 1, p->positions, 0, 0);
    make(&weights, TGL_F32, 2, p->tokens, p->topk, p->topk + take(b) % 3);
    make(&sf, TGL_F32, 1, 1, 0, 0);
    make(&out, TGL_F32, 2, p->tokens, hidden, out_stride);
    tensor *const inputs[] = { &x, &x_sf, &weights, &sf };
    for (int i = 0; i < 4; i++)
        for (size_t k = 0; k < inputs[i]->bytes / 4; k++) {
            const uint32_t bits = take(b) * 0x01030507u ^ take(b) << 24;        /* all signs and exponents */
            memcpy((char *)inputs[i]->t.data + 4 * k, &bits, 4);
        }
    INSIST(tgl_moe_reduce_fused(&x.t, flags & 1 ? &x_sf.t : NULL, flags & 2 ? &weights.t : NULL,
                                &p->arrays[TO_POS].t, flags & 4 ? &sf.t : NULL, &out.t, NULL) == TGL_OK);
    for (int64_t t = 0; t < p->tokens; t++)
        for (int64_t i = 0; i < hidden; i++) {
            float want = 0, seen = ((const float *)out.t.data)[t * out_stride + i];
            for (int64_t k = 0; k < p->topk; k++) {
                const int32_t place = at(&p->arrays[TO_POS], t * p->topk + k);
                if (place < 0 || place >= p->positions) continue;
                float factor = flags & 2 ? ((const float *)weights.t.data)[t * weights.strides[0] + k] : 1;
                if (flags & 1) factor *= ((const float *)x_sf.t.data)[place];
                want = fmaf(((const float *)x.t.data)[place * stride + i], factor, want);
            }
            if (flags & 4) want *= *(const float *)sf.t.data;
            INSIST(isnan(want) ? isnan(seen) : !memcmp(&want, &seen, 4));
        }
    for (int64_t t = 0; t + 1 < p->tokens; t++)
        for (int64_t i = hidden; i < out_stride && hidden; i++)
            INSIST(((const uint32_t *)out.t.data)[t * out_stride + i] == 0xa5a5a5a5);
    free(x.t.data), free(x_sf.t.data), free(weights.t.data), free(sf.t.data), free(out.t.data);
}

/* ---- one input ---- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes b = { data, data + size };
    problem p;
    const unsigned flags = take(&b);
    make_problem(&p, &b);
    if (flags % 8 == 7) try_fault(&p, &b);
    INSIST(tgl_moe_get_fused_mapping(&p.idx.t, &p.m, p.alignment, NULL, 0, NULL) == TGL_OK);
    INSIST(tgl_moe_group_count(&p.idx.t, &p.counts.t, NULL, 0, NULL) == TGL_OK);
    INSIST(tgl_moe_aux_fi(&p.idx.t, &p.fi.t, 3, NULL, 0, NULL) == TGL_OK);
    check_mapping(&p);
    if (flags & 16) spoil(&p, &b);
    try_expand(&p, &b);
    try_reduce(&p, &b);
    free_problem(&p);
    return 0;
}
