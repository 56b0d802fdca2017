/* SPDX-License-Identifier: MIT */
#include "conv_cases.h"

#include <math.h>
#include <stdlib.h>

#include "core/status.h"

/* ---- inputs ---- */

typedef struct {
    const case_problem *c;
    case_tensor *t;
    uint64_t seed;
} filling;

static void change_rows(void *context, int64_t begin, int64_t end)
{
    static const double special[] = { INFINITY, -INFINITY, NAN, 0, -0.0 };
    const filling *f = context;
    case_tensor *t = f->t;
    const int64_t streams = t->shape[1], hidden = t->shape[2];
    const bool is_special = case_is(f->c, "values", "special"), is_large = case_is(f->c, "values", "large");
    const bool is_x = t == &f->c->tensors[CONV_X];
    for (int64_t row = begin; row < end; row++) {
        const bool is_masked = is_x && conv_is_masked(f->c, row / streams);
        const bool is_zero = is_x && is_special && case_random_below(f->seed + 3, row, 5) == 0;
        if (!is_masked && !is_special && !is_large) continue;
        for (int64_t i = 0; i < hidden; i++) {
            void *at = case_element(t, (int64_t[]){ row / streams, row % streams, i });
            const int64_t n = row * hidden + i;
            const bool is_odd = is_special && case_random_below(f->seed + 1, n, 300) == 0;
            if (is_masked) *(uint16_t *)at = (uint16_t)(0x7f81 + case_random_below(f->seed, n, 100));
            else
                case_encode(t->dtype,
                            is_zero  ? 0
                            : is_odd ? special[case_random_below(f->seed + 2, n, 5)]
                                     : case_decode(t->dtype, at) * (is_large ? 1e4 : 1),
                            at);
        }
    }
}

void conv_fill_rows(const case_problem *c, case_tensor *t, uint64_t seed)
{
    case_fill_normal(c, t, seed);
    case_parallel(t->shape[0] * t->shape[1], 32 * t->shape[2], change_rows, &(filling){ c, t, seed });
}

case_tensor *conv_add_rows(case_problem *c, int index, const char *name, case_role role)
{
    const int64_t t = case_int(c, "num_tokens"), h = case_int(c, "num_streams"), d = case_int(c, "hidden");
    const int layout = case_word(c, "layout", "packed gaps outside");
    const int64_t row = d + (layout == 1 ? case_int(c, "gap") : 0);
    case_tensor *made = case_add(c, index, name, role, TGL_BF16, 3, (int64_t[]){ t, h, d });
    made->offset = case_int(c, "offset");
    made->strides[0] = layout == 2 ? row : h * row + (layout == 1 ? case_int(c, "gap") : 0);
    made->strides[1] = layout == 2 ? t * row : row;
    made->fill = conv_fill_rows;
    return made;
}

int64_t conv_dilation(const case_problem *c)
{
    const int64_t given = atoll(case_text(c, "dilation"));
    return given ? given : 3;
}

tgl_status conv_add_ring(case_problem *c, int start, int slots, int ring)
{
    TGL_TRY(case_check_word(c, "start", "none small zero large bits"));
    TGL_TRY(case_check_word(c, "slots", "none shuffled wild"));
    TGL_TRY(case_check_word(c, "past", "none ring"));
    const int64_t requests = engram_num_requests(c), reach = (case_int(c, "kernel_size") - 1) * conv_dilation(c);
    const tgl_dtype dtype = case_dtype(c, "batch_dtype");
    if (!case_is(c, "start", "none"))
        case_add(c, start, "start_pos", CASE_IN, dtype, 1, &requests)->fill = engram_fill_starts;
    if (case_is(c, "past", "none")) return TGL_OK;
    case_tensor *made = case_add(c, ring, "ring", CASE_INOUT, TGL_BF16, 4,
                                 (int64_t[]){ requests + case_int(c, "more_slots"), reach + case_int(c, "drafts"),
                                              case_int(c, "num_streams"), case_int(c, "hidden") });
    made->fill = case_fill_normal, made->offset = case_int(c, "offset");
    if (!case_is(c, "slots", "none"))
        case_add(c, slots, "slots", CASE_IN, dtype, 1, &requests)->fill = engram_fill_slots;
    return TGL_OK;
}

tgl_engram_short_conv_params conv_params(case_problem *c)
{
    return (tgl_engram_short_conv_params){ .dilation = case_int(c, "dilation"),
                                           .has_eps = !case_is(c, "eps", "default"),
                                           .eps = case_is(c, "eps", "half") ? 0.5f : 0,
                                           .no_activation = !case_int(c, "activation"),
                                           .add_input = case_int(c, "add_input") != 0,
                                           .zero_centered = case_int(c, "zero_centered") != 0 };
}

tgl_status conv_add_inputs(case_problem *c)
{
    TGL_TRY(case_check_word(c, "values", "normal special large"));
    TGL_TRY(case_check_word(c, "layout", "packed gaps outside"));
    TGL_TRY(case_check_word(c, "mask", "none no all some"));
    TGL_TRY(case_check_word(c, "eps", "default half zero"));
    const int64_t h = case_int(c, "num_streams"), d = case_int(c, "hidden"), k = case_int(c, "kernel_size");
    engram_add_mask(c, CONV_MASK, "mask", case_int(c, "num_tokens"));
    TGL_TRY(engram_add_cu_seqlens(c, CONV_CU));
    conv_add_rows(c, CONV_X, "x", CASE_IN);
    case_tensor *norm = case_add(c, CONV_NORM, "norm_weight", CASE_IN, case_dtype(c, "norm"), 2, (int64_t[]){ h, d });
    case_tensor *conv =
        case_add(c, CONV_WEIGHT, "conv_weight", CASE_IN, case_dtype(c, "conv"), 2, (int64_t[]){ h * d, k });
    norm->fill = conv->fill = case_fill_normal;
    norm->offset = conv->offset = case_int(c, "offset");
    if (case_is(c, "layout", "gaps")) norm->strides[0] += case_int(c, "gap");
    if (case_is(c, "bias", "none")) return TGL_OK;
    case_tensor *bias = case_add(c, CONV_BIAS, "bias", CASE_IN, case_dtype(c, "bias"), 1, (int64_t[]){ h * d });
    bias->fill = case_fill_normal, bias->offset = case_int(c, "offset");
    return TGL_OK;
}

/* ---- oracles ---- */

enum { CU, START, SLOTS, RING }; /* of a batch */

conv_request conv_request_of(const case_problem *c, int batch, int64_t num_tokens, int64_t token)
{
    const case_tensor *b = &c->tensors[batch];
    conv_request q = { engram_request_of(&b[CU], num_tokens, token), 0, -1 };
    if (q.r.number < 0) return q;
    if (b[START].name) q.start = engram_integer(&b[START], &q.r.number);
    if (q.start < 0) q.start = 0;
    if (!b[RING].name) return q;
    const int64_t slot = b[SLOTS].name ? engram_integer(&b[SLOTS], &q.r.number) : q.r.number;
    const bool is_null = case_is(c, "slots", "wild") && slot == ENGRAM_NULL_SLOT;
    if (slot >= 0 && slot < b[RING].shape[0] && !is_null) q.slot = slot;
    return q;
}

bool conv_row_before(const case_problem *c, int batch, const conv_request *q, int64_t before, int64_t h, float *row)
{
    const case_tensor *ring = &c->tensors[batch + RING];
    if (before > q->start || q->slot < 0) return false;
    const int64_t entry = (q->start - before) % ring->shape[1];
    const uint16_t *from = (const uint16_t *)(ring->initial ? ring->initial : ring->storage) +
                           ((char *)case_element(ring, (int64_t[]){ q->slot, entry, h, 0 }) - ring->storage) / 2;
    for (int64_t i = 0; i < ring->shape[3]; i++) row[i] = (float)case_decode(TGL_BF16, from + i);
    return true;
}

int64_t conv_entry_of(const case_problem *c, int batch, const conv_request *q, int64_t token)
{
    const uint64_t position = (uint64_t)q->start + (uint64_t)(token - q->r.first);
    return (int64_t)(position % (uint64_t)c->tensors[batch + RING].shape[1]);
}

int64_t conv_ring_bytes(const case_problem *c, int batch, int64_t token_bytes, int64_t num_tokens, int64_t kernel_size)
{
    const case_tensor *b = &c->tensors[batch];
    if (!b[RING].name) return 0;
    const int64_t requests = b[CU].name ? b[CU].shape[0] - 1 : 1, kept = requests * b[RING].shape[1];
    const int64_t read = num_tokens == requests ? kernel_size - 1 : 0;
    return token_bytes * (read * requests + (num_tokens < kept ? num_tokens : kept));
}

bool conv_is_masked(const case_problem *c, int64_t token)
{
    return c->tensors[CONV_MASK].name && engram_integer(&c->tensors[CONV_MASK], &token);
}

float conv_at(const case_tensor *t, int64_t token, int64_t stream, int64_t i)
{
    return (float)case_decode(t->dtype, case_element(t, (int64_t[]){ token, stream, i }));
}

float conv_norm_of(const case_problem *c, int64_t stream, int64_t i)
{
    const case_tensor *t = &c->tensors[CONV_NORM];
    const float w = (float)case_decode(t->dtype, case_element(t, (int64_t[]){ stream, i }));
    return case_is(c, "zero_centered", "0") ? w : 1 + w;
}

float conv_tap_of(const case_problem *c, int64_t stream, int64_t i, int64_t j)
{
    const case_tensor *t = &c->tensors[CONV_WEIGHT];
    return (float)case_decode(t->dtype, case_element(t, (int64_t[]){ stream * c->tensors[CONV_X].shape[2] + i, j }));
}

float conv_bias_of(const case_problem *c, int64_t stream, int64_t i)
{
    const case_tensor *t = &c->tensors[CONV_BIAS];
    const int64_t at = stream * c->tensors[CONV_X].shape[2] + i;
    return t->name ? (float)case_decode(t->dtype, case_element(t, &at)) : 0;
}

float conv_tree(const float *values, int count, int step)
{
    if (count == 1) return *values;
    return conv_tree(values, count / 2, 2 * step) + conv_tree(values + step, count / 2, 2 * step);
}

float conv_rstd_of(const case_problem *c, int64_t token, int64_t stream)
{
    enum { VECTOR = 8, GROUP = 32 };
    const case_tensor *x = &c->tensors[CONV_X];
    const int64_t count = x->shape[2];
    float total = 0;
    for (int64_t group = 0; group < count; group += GROUP * VECTOR) {
        float sums[GROUP] = { 0 };
        for (int v = 0; v < GROUP; v++)
            for (int64_t i = group + v * VECTOR; i < group + (v + 1) * VECTOR && i < count; i++) {
                const float at = conv_at(x, token, stream, i);
                sums[v] = fmaf(at, at, sums[v]);
            }
        total += conv_tree(sums, GROUP, 1);
    }
    const float eps = case_is(c, "eps", "default") ? 1e-5f : case_is(c, "eps", "half") ? 0.5f : 0;
    const float mean = total / (float)count;
    return (float)(1 / sqrtl((long double)(mean + eps)));
}

float conv_sigmoid_of(float z)
{
    const float to_log2 = 0x1.715476p0f, ln_2 = 0x1.62e43p-1f;
    const float terms[] = { 1, -0x1.fffff6p-1f, 0x1.fffdc2p-2f, -0x1.555a72p-3f, 0x1.573b84p-5f, -0x1.0fa752p-7f };
    const float c = z < -80 ? -80 : z < 80 ? z : 80;
    const double n = nearbyint((double)c * -(double)to_log2); /* the product is exact */
    const float r = fmaf(ln_2, (float)n, c);
    float power = terms[5];
    for (int i = 4; i >= 0; i--) power = fmaf(power, r, terms[i]);
    return 1 / (1 + ldexpf(power, (int)n));
}

float conv_result_of(float z, bool has_activation, bool is_rounded, const float *added, int count)
{
    const float v = is_rounded ? conv_bf16(z) : z, sigmoid = has_activation ? conv_sigmoid_of(v) : 1;
    const float bounded = has_activation && v < -80 ? -80 : v;
    float y = bounded * sigmoid;
    for (int i = 0; i < count; i++) {
        if (is_rounded) y = conv_bf16(y) + added[i];
        else y = i == 0 ? fmaf(bounded, sigmoid, added[i]) : y + added[i];
    }
    return y;
}

float conv_bf16(double v)
{
    uint16_t code;
    case_encode(TGL_BF16, v, &code);
    return v == v ? (float)case_decode(TGL_BF16, &code) : NAN;
}

void conv_put(case_tensor *t, const int64_t *index, double value)
{
    unsigned char *to = case_element(t, index);
    case_encode(t->dtype, value, to);
    if (value == value) return;
    memset(to, 0xff, (size_t)t->element_bytes);
    to[t->element_bytes - 1] = 0x7f;
}
