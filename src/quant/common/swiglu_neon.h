/* SPDX-License-Identifier: MIT
 * swiglu_neon.h - loops of SwiGLU and its backward pass in NEON's intrinsics, which give the bits of swiglu.h's
 * functions. */

/* As tgl_prefetch(), of what will be written. */
TGL_ALWAYS_INLINE void tgl_prefetch_room(const void *to, int64_t ahead, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const void *)((uintptr_t)to + (uintptr_t)(ahead + i)), 1, 3);
}

/* ---- exp ----
 * tgl_exp_small() in two steps, each in a loop of its own over 32 values. It is a chain of operations that
 * wait for each other, longer than a core looks ahead: so eight vectors are side by side, which takes few
 * registers of each. On a Neoverse N1 that is a fifth faster than one loop with four. */

#define TGL_EACH for (int k = 0; k < 8; k++)

/* Of x r and n. The product of n and the first part of ln 2 is exact, and so may be fused. */
TGL_ALWAYS_INLINE void tgl_begin_exp(float32x4_t x[8], float *r_to, float *n_to)
{
    const float32x4_t shift = vdupq_n_f32(0x1.8p23f);
    float32x4_t n[8];
    TGL_EACH n[k] = vmulq_f32(x[k], vdupq_n_f32(0x1.715476p0f));
    TGL_EACH n[k] = vaddq_f32(n[k], shift);
    TGL_EACH vst1q_f32(n_to + 4 * k, n[k]);
    TGL_EACH n[k] = vsubq_f32(n[k], shift);
    TGL_EACH x[k] = vfmsq_f32(x[k], n[k], vdupq_n_f32(0x1.63p-1f));
    TGL_EACH n[k] = vmulq_f32(n[k], vdupq_n_f32(0x1.bd0106p-13f));
    TGL_EACH x[k] = vaddq_f32(x[k], n[k]);
    TGL_EACH vst1q_f32(r_to + 4 * k, x[k]);
}
TGL_ALWAYS_INLINE void tgl_begin_exp_of_codes(const uint8_t *codes, float factor, float *x_to, float *r_to,
                                             float *n_to)
{
    const uint8x16_t zero = vdupq_n_u8(0);
    float32x4_t x[8];
    for (int k = 0; k < 8; k += 4) {
        const uint8x16_t c = vld1q_u8(codes + 4 * k);
        const tgl_f32x8 a = tgl_from_e4m3x8(vzip1q_u8(zero, c), tgl_all8(factor));
        const tgl_f32x8 b = tgl_from_e4m3x8(vzip2q_u8(zero, c), tgl_all8(factor));
        x[k] = a.low, x[k + 1] = a.high, x[k + 2] = b.low, x[k + 3] = b.high;
    }
    TGL_EACH vst1q_f32(x_to + 4 * k, x[k]);
    tgl_begin_exp(x, r_to, n_to);
}

/* 1 + exp, what is divided by. */
TGL_ALWAYS_INLINE void tgl_end_exp(const float *from_r, const float *from_n, float32x4_t p[8])
{
    const float32x4_t one = vdupq_n_f32(1);
    float32x4_t r[8];
    TGL_EACH r[k] = vld1q_f32(from_r + 4 * k);
    TGL_EACH p[k] = vmulq_f32(r[k], vdupq_n_f32(0x1.6a1a72p-10f));
    TGL_EACH p[k] = vaddq_f32(p[k], vdupq_n_f32(0x1.123fc6p-7f));
    TGL_EACH p[k] = vmulq_f32(p[k], r[k]);
    TGL_EACH p[k] = vaddq_f32(p[k], vdupq_n_f32(0x1.555916p-5f));
    TGL_EACH p[k] = vmulq_f32(p[k], r[k]);
    TGL_EACH p[k] = vaddq_f32(p[k], vdupq_n_f32(0x1.55548ap-3f));
    TGL_EACH p[k] = vmulq_f32(p[k], r[k]);
    TGL_EACH p[k] = vaddq_f32(p[k], vdupq_n_f32(0x1.fffffcp-2f));
    TGL_EACH p[k] = vmulq_f32(p[k], vmulq_f32(r[k], r[k]));
    TGL_EACH p[k] = vaddq_f32(p[k], r[k]);
    TGL_EACH p[k] = vaddq_f32(p[k], one);
    TGL_EACH
    {
        const uint32x4_t n = vshlq_n_u32(vreinterpretq_u32_f32(vld1q_f32(from_n + 4 * k)), 23);
        p[k] = vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p[k]), n));
    }
    TGL_EACH p[k] = vaddq_f32(p[k], one);
}

/* ---- activations ---- */

/* tgl_swiglu() of whole steps of 128, where every exp is a normal number; returns how many values. */
TGL_ALWAYS_INLINE int64_t tgl_front_activate(const float *gates, const float *ups, int64_t count,
                                            int64_t ahead, float *to)
{
    enum { STEP = 128, BYTES = STEP * 4 };
    TGL_LINES float r[STEP];
    TGL_LINES float n[STEP];
    int64_t done = 0;
    for (; done + STEP <= count; done += STEP) {
        tgl_prefetch(gates + done, ahead, BYTES);
        tgl_prefetch(ups + done, ahead, BYTES);
        for (int64_t i = 0; i < STEP; i += 32) {
            float32x4_t x[8];
            TGL_EACH x[k] = vnegq_f32(vld1q_f32(gates + done + i + 4 * k));
            tgl_begin_exp(x, r + i, n + i);
        }
        for (int64_t i = 0; i < STEP; i += 32) {
            float32x4_t y[8];
            tgl_end_exp(r + i, n + i, y);
            TGL_EACH y[k] = vdivq_f32(vld1q_f32(gates + done + i + 4 * k), y[k]);
            TGL_EACH y[k] = vmulq_f32(y[k], vld1q_f32(ups + done + i + 4 * k));
            TGL_EACH vst1q_f32(to + done + i + 4 * k, y[k]);
        }
    }
    return done;
}

/* ---- gradients ---- */

/* To bf16, ties away from zero, which is one operation for four values; ties to even are two more. `least`
 * is the least of their lower halves as signed numbers, INT16_MIN where there was a tie: that is seldom. */
TGL_ALWAYS_INLINE uint16x8_t tgl_nearest_bf16x8(const float32x4_t v[2], int16x8_t *least)
{
    const uint32x4_t zero = vdupq_n_u32(0);
    *least = vminq_s16(*least, vreinterpretq_s16_u16(tgl_low_halves((tgl_f32x8){ v[0], v[1] })));
    const uint32x4_t a = vreinterpretq_u32_f32(v[0]), b = vreinterpretq_u32_f32(v[1]);
    return vraddhn_high_u32(vraddhn_u32(a, zero), b, zero);
}

/* The largest magnitude of codes times the factor; NaN if one is. */
TGL_ALWAYS_INLINE float tgl_amax_of_codes(const uint8_t *codes, int64_t count, float factor)
{
    uint8x16_t largest = vdupq_n_u8(0);
    for (int64_t i = 0; i < count; i += 16)
        largest = vmaxq_u8(largest, vandq_u8(vld1q_u8(codes + i), vdupq_n_u8(0x7F)));
    return tgl_e4m3_to_f32(vmaxvq_u8(largest)) * fabsf(factor);
}

/* 1 / divisor and x / divisor, of eight. */
typedef struct { float32x4_t sigmoid[2], silu[2]; } tgl_quotients;
TGL_ALWAYS_INLINE tgl_quotients tgl_divide8(const float *x, const float *divisors)
{
    tgl_quotients q;
    for (int k = 0; k < 2; k++) {
        const float32x4_t divisor = vld1q_f32(divisors + 4 * k);
        q.sigmoid[k] = vdivq_f32(vdupq_n_f32(1), divisor);
        q.silu[k] = vdivq_f32(vld1q_f32(x + 4 * k), divisor);
    }
    /* where they are, since compilers would move them to where they are needed */
    __asm__ volatile("" : "+w"(q.sigmoid[0]), "+w"(q.sigmoid[1]), "+w"(q.silu[0]), "+w"(q.silu[1]));
    return q;
}

/* Returns false where results would not be those of swiglu.h: a value is clamped, exp is no normal number, a
 * result is infinite or NaN, or halfway between two bf16. Then `sums` are as before.
 *
 * Gates, ups and the weight are the negatives of what they are, as exp wants it: each product has two. */
TGL_ALONE bool tgl_run_backward(tgl_backward_run *run, int64_t count)
{
    enum { AHEAD = 256, N = TGL_RUN_SUMS / 4 };     /* bytes: a block of 128 columns */
    TGL_LINES float gates[TGL_MAX_RUN + 8];
    TGL_LINES float divisors[TGL_MAX_RUN + 8];
    TGL_LINES float r[TGL_MAX_RUN];
    TGL_LINES float n[TGL_MAX_RUN];
    const tgl_backward_run to = *run;
    if (!tgl_is_below(to.gate_sf, 0x1p7f) || !tgl_is_below(to.up_sf, 0x1p7f) ||
        !tgl_is_below(to.weight, 0x1p60f))
        return false;
    const float gate_amax = tgl_amax_of_codes(to.gates, count, to.gate_sf);
    const float up_amax = tgl_amax_of_codes(to.ups, count, to.up_sf);
    if (!(gate_amax <= TGL_EXP_SMALL && gate_amax <= to.clamp && up_amax <= to.clamp)) return false;
    for (int64_t i = 0; i < count; i += 32) {
        tgl_prefetch_room(to.out + i, AHEAD, 64);
        tgl_prefetch_room(to.bf16_gate_grads + i, AHEAD, 64);
        tgl_prefetch_room(to.bf16_up_grads + i, AHEAD, 64);
        tgl_begin_exp_of_codes(to.gates + i, to.gate_sf * -0x1p120f, gates + i, r + i, n + i);
    }
    for (int64_t i = 0; i < count; i += 32) {
        float32x4_t each[8];
        tgl_end_exp(r + i, n + i, each);
        TGL_EACH vst1q_f32(divisors + i + 4 * k, each[k]);
    }
    for (int64_t i = count; i < count + 8; i++) gates[i] = divisors[i] = 1;

    const float32x4_t one = vdupq_n_f32(1), weight = vdupq_n_f32(to.weight), minus = vnegq_f32(weight);
    const tgl_f32x8 up_by = tgl_all8(to.up_sf * -0x1p120f);
    const uint8x16_t zero = vdupq_n_u8(0);
    int32x4_t most_gate = vdupq_n_s32(0), most_up = most_gate;
    int16x8_t least = vdupq_n_s16(0);
    float32x4_t sums[N];
    for (int k = 0; k < N; k++) sums[k] = vld1q_f32(to.sums + 4 * k);
    tgl_quotients next = tgl_divide8(gates, divisors);
    for (int64_t i = 0; i < count; i += 16) {
        const uint8x16_t codes = vld1q_u8(to.ups + i);
        for (int half = 0; half < 2; half++) {
            const int64_t j = i + 8 * half;
            const tgl_quotients q = next;
            next = tgl_divide8(gates + j + 8, divisors + j + 8);        /* long before they are needed */
            const tgl_f32x8 grad = tgl_load8(to.grads, true, j);
            const uint8x16_t each = half ? vzip2q_u8(zero, codes) : vzip1q_u8(zero, codes);
            const tgl_f32x8 up = tgl_from_e4m3x8(each, up_by);
            float32x4_t out[2], gate_grad[2], up_grad[2];
            for (int k = 0; k < 2; k++) {
                const float32x4_t g = k ? grad.high : grad.low, u = k ? up.high : up.low;
                const float32x4_t gate = vld1q_f32(gates + j + 4 * k), activation = vmulq_f32(q.silu[k], u);
                const float32x4_t weighted = vmulq_f32(vmulq_f32(g, minus), q.sigmoid[k]);
                const float32x4_t slope = vfmsq_f32(one, gate, vsubq_f32(one, q.sigmoid[k]));
                out[k] = vmulq_f32(activation, weight);
                gate_grad[k] = vmulq_f32(vmulq_f32(weighted, u), slope);
                up_grad[k] = vmulq_f32(weighted, gate);
                sums[2 * half + k] = vaddq_f32(sums[2 * half + k], vmulq_f32(g, activation));
                most_gate = vmaxq_s32(most_gate, vreinterpretq_s32_f32(vabsq_f32(gate_grad[k])));
                most_up = vmaxq_s32(most_up, vreinterpretq_s32_f32(vabsq_f32(up_grad[k])));
                vst1q_f32(to.gate_grads + j + 4 * k, gate_grad[k]);
                vst1q_f32(to.up_grads + j + 4 * k, up_grad[k]);
            }
            vst1q_u16(to.bf16_gate_grads + j, tgl_nearest_bf16x8(gate_grad, &least));
            vst1q_u16(to.bf16_up_grads + j, tgl_nearest_bf16x8(up_grad, &least));
            vst1q_u16(to.out + j, tgl_nearest_bf16x8(out, &least));
        }
    }
    run->amax[0] = vmaxvq_s32(most_gate);
    run->amax[1] = vmaxvq_s32(most_up);
    if (run->amax[0] >= 0x7F800000 || run->amax[1] >= 0x7F800000 || vminvq_s16(least) == INT16_MIN)
        return false;
    for (int k = 0; k < N; k++) vst1q_f32(to.sums + 4 * k, sums[k]);
    return true;
}
#undef TGL_EACH
