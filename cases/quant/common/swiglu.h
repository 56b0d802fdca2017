/* SPDX-License-Identifier: MIT
 * swiglu.h - for the cases of SwiGLU fused with casts.
 *
 * The last bit of exp differs between devices. So oracles compute in double, with a bound on the error of
 * f32: every operation rounds once, and exp is off by at most 2 units in the last place. Inputs are drawn
 * again until the bounds decide every code, bf16 number and power of two: outputs are then compared bit by
 * bit. Only factors that are not rounded (an activation is within 4 units of the last place, its quotient
 * within 4.5: relative 10 * 2^-24) and sums are compared within a tolerance.
 *
 * Values, parameter `values`:
 *   normal     mean 0, deviation 1
 *   mixed      a kind per row: normal, gates of up to +-120, below the floor, zeros of both signs, numbers at
 *              and next to the clamp value */
#ifndef TEGULA_CASES_SWIGLU_H
#define TEGULA_CASES_SWIGLU_H

#include <float.h>
#include <math.h>

#include "quant.h"

/* ---- numbers with a bound ---- */

/* A float is at most `bound` from `value`, and has its sign. */
typedef struct { double value, bound; } near;

static inline near exactly(double value) { return (near){ value, 0 }; }

static inline near rounded(double value, double bound)
{
    if (value == 0 && bound == 0) return exactly(value);
    return (near){ value, bound + (fabs(value) + bound) * 0x1p-24 + 0x1p-150 };
}

static inline near times(near a, near b)
{
    return rounded(a.value * b.value, fabs(a.value) * b.bound + fabs(b.value) * a.bound + a.bound * b.bound);
}

static inline near over(near a, near b)
{
    if (isinf(b.value)) return exactly(a.value / b.value);
    const double quotient = a.value / b.value;
    return rounded(quotient, (a.bound + fabs(quotient) * b.bound) / (fabs(b.value) - b.bound));
}

/* exp(-x), infinite if that is no float. */
static inline near exp_of_minus(float x)
{
    const double e = exp(-(double)x);
    if (e > (double)FLT_MAX * 1.0001) return exactly(INFINITY);
    if (e > (double)FLT_MAX * 0.9999) return (near){ e, INFINITY };
    return (near){ e, e * 0x1p-22 + 0x1p-149 };
}

static inline near one_plus(near e) { return isinf(e.value) ? e : rounded(1 + e.value, e.bound); }

/* The magnitudes that a float may have. */
static inline double min_size(near n) { return fabs(n.value) > n.bound ? fabs(n.value) - n.bound : 0; }
static inline double max_size(near n) { return fabs(n.value) + n.bound; }

static inline bool bf16_of(near n, uint16_t *code)
{
    uint16_t low, high;
    case_encode(TGL_BF16, copysign(min_size(n), n.value), &low);
    case_encode(TGL_BF16, copysign(max_size(n), n.value), &high);
    case_encode(TGL_BF16, n.value, code);
    return low == high;
}

static inline bool code_of(tgl_quant_format format, near n, unsigned *code)
{
    *code = quant_encode(format, (float)copysign(max_size(n), n.value));
    return *code == quant_encode(format, (float)copysign(min_size(n), n.value));
}

static inline near larger(near a, near b)
{
    const double low = fmax(min_size(a), min_size(b)), high = fmax(max_size(a), max_size(b));
    return (near){ (low + high) / 2, (high - low) / 2 };
}

/* The factor of a block and its inverse. False if a power of two is not decided. */
typedef struct { near sf, inv; } near_scale;
static inline bool scale_of(near amax, float largest, float floor, bool round, near_scale *scale)
{
    const near a = larger(amax, exactly(floor));
    if (a.bound == 0) { /* the floor, for example */
        const quant_scale known = quant_scale_of((float)a.value, largest, 0, round);
        *scale = (near_scale){ exactly(known.sf), exactly(known.inv) };
        return true;
    }
    scale->sf = over(a, exactly(largest));
    scale->inv = over(exactly(largest), a);
    if (!round) return true;
    const float low = quant_round_up_to_power((float)min_size(scale->sf));
    const float high = quant_round_up_to_power((float)max_size(scale->sf));
    *scale = (near_scale){ exactly(high), exactly(high == 0x1p127f ? 0 : 1 / high) };
    return low == high;
}

/* ---- the activation ---- */

typedef struct {
    bool is_clamped;
    float c;
} clamping;
static inline clamping clamping_of(const tgl_quant_params *p)
{
    return (clamping){ p->has_swiglu_clamp_value, p->swiglu_clamp_value };
}

static inline float gate(clamping k, float l) { return k.is_clamped && l > k.c ? k.c : l; }
static inline float up(clamping k, float r)
{
    if (k.is_clamped && r > k.c) return k.c;
    return k.is_clamped && r < -k.c ? -k.c : r;
}

static inline near activation(clamping k, float l, float r)
{
    l = gate(k, l);
    return times(over(exactly(l), one_plus(exp_of_minus(l))), exactly(up(k, r)));
}

/* Relative bounds of factors that are not rounded. A gradient's slope may be nearly 0: such blocks are drawn
 * again. */
#define FORWARD_BOUND 0xap-24
#define BACKWARD_BOUND 0x20p-24

static inline bool is_within(near n, double bound) { return n.bound <= bound * fabs(n.value); }

/* ---- inputs ---- */

/* A parameter that is a number or none. */
tgl_status swiglu_read_number(const case_problem *c, const char *name, bool *has, float *number);
tgl_status swiglu_check_values(const case_problem *c);

enum { SWIGLU_MAX_ATTEMPTS = 1000 }; /* one in thousands needs a second */

typedef struct {
    const case_problem *c;
    case_tensor *t;
    uint64_t seed;
    bool is_mixed;
} drawing;

/* The number at a place, at an attempt; and writes it. */
double swiglu_draw(const drawing *d, uint64_t seed, int64_t row, int64_t col, bool is_gate, int attempt);
void swiglu_put_drawn(const drawing *d, int64_t row, int64_t col, int64_t num_cols, int attempt);

static inline double swiglu_unit(uint64_t bits) { return (double)(bits & 0xffffff) * 0x1p-24; }

/* Blocks of a row. */
static inline int64_t swiglu_num_blocks(const case_problem *c, int64_t num_cols)
{
    const int64_t width = quant_params_in(c)->num_per_channels;
    return width ? quant_ceil_div(num_cols, width) : num_cols > 0;
}

#endif
