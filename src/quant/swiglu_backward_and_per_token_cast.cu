/* SPDX-License-Identifier: MIT
 * swiglu_backward_and_per_token_cast.cu - the backward pass of SwiGLU, in blocks of 8 to 256 columns, in
 * registers.
 *   computes  per element the weighted activation as bf16 and the gradients of gate and up (swiglu.h) as bf16
 *             and as e4m3 with a factor per BLOCK_COLS columns; per row the gradient of its weight
 *   launch    grid clearing_blocks + num_rows; block of sum_warps warps, or if IS_WHOLE one more than a row
 *             has steps
 *   moves     per row 12 * num_cols bytes, factors in and out (8 * num_cols / BLOCK_COLS bytes each as f32)
 *             and 4 of a map; per slot of weight_grad 12
 *   macros    IS_ROUNDED, HAS_CLAMP; BLOCK_COLS 8, 16 ... 256; X_SF_KIND and SF_KIND, TGL_SF_* of x and of
 *             x_grad_fp8; IS_WHOLE: each step of a row has a warp
 * A block has a row. With many rows its warps loop over steps, and each prefetches its next step as soon as
 * it no longer needs the data of this one. With few rows every step has a warp, and one more warp adds up the
 * sums while the others still encode. Addresses are aligned to vectors (8 codes, 8 bf16); columns of both
 * halves are below 2^31. */
#include "quant/swiglu_backward_and_per_token_cast.cuh"

static_assert(BLOCK_COLS >= 8 && BLOCK_COLS <= BACKWARD_MAX_BLOCK && (BLOCK_COLS & (BLOCK_COLS - 1)) == 0,
              "BLOCK_COLS is 8, 16 ... 256");
static_assert(X_SF_KIND >= TGL_SF_ROWS && X_SF_KIND <= TGL_SF_PACKED && SF_KIND >= TGL_SF_ROWS &&
                  SF_KIND <= TGL_SF_PACKED,
              "kinds are TGL_SF_*");
static_assert(IS_WHOLE == 0 || IS_WHOLE == 1, "IS_WHOLE is 0 or 1");

enum {
    LANES = BLOCK_COLS / VECTOR,
    /* blocks per SM that registers allow: 72 per thread; with a clamp value and blocks of one lane 96 are
     * needed, and 3 blocks would have 80 */
    RESIDENT = HAS_CLAMP && LANES == 1 ? 2 : 4
};

/* The start of a row. */
typedef struct {
    const u8 *x; /* gates; ups and their gradients are num_cols further */
    const u16 *grad_out;
    u16 *out, *x_grad;
    u8 *x_grad_fp8;
} place;

DEV place place_of(const backward_args &a, i64 row)
{
    const i64 in_out = row * a.num_cols;
    return { a.x + row * a.x_row_bytes, a.grad_out + row * a.grad_stride, a.out + in_out, a.x_grad + 2 * in_out,
             a.x_grad_fp8 + 2 * in_out };
}

/* A lane's codes and their factors. */
typedef struct {
    uint2 gates, ups;
    u32 gate_factor, up_factor; /* elements (factors.cuh) */
} inputs;

DEV void load_codes(const backward_args &a, const tgl_sf &sf, const u8 *x, u32 col, inputs &in)
{
    const u32 k = col / BLOCK_COLS;
    in.gates = load_stream_u32x2(x + col);
    in.ups = load_stream_u32x2(x + a.num_cols + col);
    in.gate_factor = load_element(sf, 0, k);
    in.up_factor = load_element(sf, 0, (u32)a.num_blocks + k);
}

DEV void decode(uint2 codes, float factor, float (&v)[VECTOR])
{
    float low[4], high[4];
    decode_e4m3x4(codes.x, low);
    decode_e4m3x4(codes.y, high);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = low[i] * factor;
        v[i + 4] = high[i] * factor;
    }
}

DEV uint4 pack_bf16x8(const float (&v)[VECTOR])
{
    return make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
}

/* Replaces gates and ups by their gradients, returns activations, and adds to the sum. */
template <bool IS_SMALL, bool IS_CLAMPED>
DEV void differentiate_all(float (&gates)[VECTOR], float (&ups)[VECTOR], const uint4 &grads, float weight, float clamp,
                           float (&activations)[VECTOR], float &sum)
{
    const u32 words[4] = { grads.x, grads.y, grads.z, grads.w };
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        const float grad = bf16_at(words, i);
        const tgl_swiglu_grads g = differentiate<IS_SMALL, IS_CLAMPED>(gates[i], ups[i], grad, weight, clamp);
        sum = fmaf(grad, g.activation, sum);
        activations[i] = g.activation * weight;
        gates[i] = g.gate_grad;
        ups[i] = g.up_grad;
    }
}

/* Stores the factors of two blocks, of gates and of ups, which LANES lanes have, and returns the inverses.
 * Even lanes do one block and odd lanes the other, with the same instructions. */
typedef struct { float gates, ups; } inverses;
DEV inverses store_factors(const backward_args &a, const tgl_sf &sf, u32 k, u32 gates_max, u32 ups_max)
{
    const u32 num_blocks = (u32)a.num_blocks, up_k = num_blocks + k, lane = threadIdx.x % LANES;
    const bool exists = k < num_blocks, is_last = k == num_blocks - 1;
    if (LANES == 1) {
        const tgl_scale gates = scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(gates_max));
        const tgl_scale ups = scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(ups_max));
        if (exists) {
            store_factor(sf, 0, k, false, gates.sf);
            store_factor(sf, 0, up_k, is_last, ups.sf);
        }
        return { gates.inv, ups.inv };
    }
    const bool has_ups = lane % 2;
    u32 amax = has_ups ? ups_max : gates_max;
    amax = max(amax, __shfl_xor_sync(FULL, has_ups ? gates_max : ups_max, 1));
#pragma unroll
    for (int offset = 2; offset < LANES; offset *= 2) amax = max(amax, __shfl_xor_sync(FULL, amax, offset));
    const tgl_scale scale = scale_of<TGL_FORMAT_E4M3, IS_ROUNDED>(__uint_as_float(amax));
    const float other = __shfl_xor_sync(FULL, scale.inv, 1);
    if (exists && lane < 2) store_factor(sf, 0, has_ups ? up_k : k, has_ups && is_last, scale.sf);
    return { has_ups ? other : scale.inv, has_ups ? scale.inv : other };
}

/* The codes of gates or ups. */
DEV void store_scaled(u8 *x_grad_fp8, float inv, const float (&v)[VECTOR])
{
    float s[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) s[i] = v[i] * inv;
    store_codes<TGL_FORMAT_E4M3>(x_grad_fp8, s);
}

/* Gradients and activations of a step; returns its part of the sum. The largest code times the factor bounds
 * the gates. With a clamp value, factors on both sides of it are common, so all lanes of a warp take the same
 * way. */
DEV float differentiate_step(const backward_args &a, float gate_factor, float up_factor, const uint4 &grads,
                             float weight, float (&gates)[VECTOR], float (&ups)[VECTOR], float (&activations)[VECTOR])
{
    const float max_gate = TGL_E4M3_MAX * fabsf(gate_factor), max_up = TGL_E4M3_MAX * fabsf(up_factor);
    const bool is_small = HAS_CLAMP ? __all_sync(FULL, max_gate <= SWIGLU_SMALL) : max_gate <= SWIGLU_SMALL;
    float sum = 0;
    if (is_small && !(HAS_CLAMP && __any_sync(FULL, fmaxf(max_gate, max_up) > a.clamp)))
        differentiate_all<true, false>(gates, ups, grads, weight, a.clamp, activations, sum);
    else if (HAS_CLAMP && is_small)
        differentiate_all<true, HAS_CLAMP>(gates, ups, grads, weight, a.clamp, activations, sum);
    else differentiate_all<false, HAS_CLAMP>(gates, ups, grads, weight, a.clamp, activations, sum);
    return sum;
}

/* Stores the gradients of a step as bf16, then as codes with factors: the bf16 stores fill the wait for the
 * factors. */
DEV void store_step(const backward_args &a, const tgl_sf &sf, const place &at, u32 col, bool exists,
                    const float (&gates)[VECTOR], const float (&ups)[VECTOR])
{
    if (exists) {
        store_u32x4(at.x_grad + col, pack_bf16x8(gates));
        store_u32x4(at.x_grad + a.num_cols + col, pack_bf16x8(ups));
    }
    const u32 gates_max = exists ? amax_of<VECTOR>(gates) : 0;
    const u32 ups_max = exists ? amax_of<VECTOR>(ups) : 0;
    const inverses inv = store_factors(a, sf, col / BLOCK_COLS, gates_max, ups_max);
    if (!exists) return;
    store_scaled(at.x_grad_fp8 + col, inv.gates, gates);
    store_scaled(at.x_grad_fp8 + a.num_cols + col, inv.ups, ups);
}

/* ---- warps loop over the steps of a row ---- */

/* Computed once, not in every step. */
DEV place kept(const place &at)
{
    return { kept_pointer(at.x), kept_pointer(at.grad_out), kept_pointer(at.out), kept_pointer(at.x_grad),
             kept_pointer(at.x_grad_fp8) };
}
DEV tgl_sf kept(tgl_sf sf)
{
    sf.data = kept_pointer((u8 *)sf.data);
    return sf;
}

DEV void run_row(const backward_args &a, u32 row)
{
    const u32 stride = blockDim.x * VECTOR, num_cols = (u32)a.num_cols;
    const tgl_sf x_sf = kept(row_of_factors<X_SF_KIND>(a.x_sf, row));
    const tgl_sf sf = kept(row_of_factors<SF_KIND>(a.sf, row));
    const place at = kept(place_of(a, row));
    u32 col = threadIdx.x * VECTOR;
    inputs in = { { 0, 0 }, { 0, 0 }, 0, 0 };
    uint4 grads = { 0, 0, 0, 0 };
    i32 slot = -1; /* loaded in a branch: a uniform register would be waited for at once */
    if (col < num_cols) {
        slot = a.pos_to_token_topk[row];
        load_codes(a, x_sf, at.x, col, in);
        grads = load_stream_u32x4(at.grad_out + col);
    }
    const float weight = weight_at(a, slot);
    /* for the thread that stores the sum, and nothing else */
    const i32 its_row = threadIdx.x == 0 ? row_of_slot(a, slot) : -1;
    float sum = 0;
#pragma unroll 1
    for (; col / STEP * STEP < num_cols; col += stride) {
        const u32 k = col / BLOCK_COLS;
        const bool exists = col < num_cols, has_next = col + stride < num_cols;
        const float gate_factor = factor_of_element(x_sf, in.gate_factor, k);
        const float up_factor = factor_of_element(x_sf, in.up_factor, (u32)a.num_blocks + k);
        float gates[VECTOR], ups[VECTOR], activations[VECTOR];
        decode(in.gates, gate_factor, gates);
        decode(in.ups, up_factor, ups);
        if (has_next) load_codes(a, x_sf, at.x, col + stride, in);
        else in.gate_factor = in.up_factor = 0; /* past the end a lane must not decide the warp's way */
        const float of_step = differentiate_step(a, gate_factor, up_factor, grads, weight, gates, ups, activations);
        if (has_next) grads = load_stream_u32x4(at.grad_out + col + stride);
        if (exists) {
            sum += of_step;
            store_u32x4(at.out + col, pack_bf16x8(activations));
        }
        store_step(a, sf, at, col, exists, gates, ups);
    }
    store_weight_grad(a, slot, its_row == (i32)row, sum);
}

/* ---- a warp has one step ---- */

typedef float sums_of_steps[BACKWARD_MAX_STEPS][32]; /* of lanes */

DEV void run_step(const backward_args &a, u32 row, sums_of_steps &sums)
{
    const u32 col = threadIdx.x * VECTOR, k = col / BLOCK_COLS;
    const bool exists = col < (u32)a.num_cols;
    const tgl_sf x_sf = row_of_factors<X_SF_KIND>(a.x_sf, row), sf = row_of_factors<SF_KIND>(a.sf, row);
    const place at = place_of(a, row);
    const i32 slot = a.pos_to_token_topk[row];
    inputs in = { { 0, 0 }, { 0, 0 }, 0, 0 };
    uint4 grads = { 0, 0, 0, 0 };
    if (exists) {
        load_codes(a, x_sf, at.x, col, in);
        grads = load_stream_u32x4(at.grad_out + col);
    }
    const float weight = weight_at(a, slot);
    const float gate_factor = factor_of_element(x_sf, in.gate_factor, k);
    const float up_factor = factor_of_element(x_sf, in.up_factor, (u32)a.num_blocks + k);
    float gates[VECTOR], ups[VECTOR], activations[VECTOR];
    decode(in.gates, gate_factor, gates);
    decode(in.ups, up_factor, ups);
    const float of_step = differentiate_step(a, gate_factor, up_factor, grads, weight, gates, ups, activations);
    sums[threadIdx.x / 32][threadIdx.x % 32] = exists ? of_step : 0;
    __syncwarp(); /* without a clamp value lanes may diverge; the warp must arrive as one */
    barrier_arrive<1>(blockDim.x);
    if (exists) store_u32x4(at.out + col, pack_bf16x8(activations));
    store_step(a, sf, at, col, exists, gates, ups);
}

/* The sum over all steps, in the order of `warps` warps that loop over them; warps <= MAX_WARPS. */
template <u32 MAX_WARPS> DEV float sum_of_steps(const sums_of_steps &sums, u32 num_steps, u32 warps, u32 lane)
{
    float of_warps[MAX_WARPS] = { 0 };
    for (u32 begin = 0; begin < num_steps; begin += warps)
#pragma unroll
        for (u32 w = 0; w < MAX_WARPS; w++)
            if (w < warps && begin + w < num_steps) of_warps[w] += sums[begin + w][lane];
#pragma unroll
    for (int offset = 16; offset; offset /= 2)
#pragma unroll
        for (u32 w = 0; w < MAX_WARPS; w++) of_warps[w] += __shfl_xor_sync(FULL, of_warps[w], offset);
    float sum = of_warps[0];
#pragma unroll
    for (u32 w = 1; w < MAX_WARPS; w++) sum += of_warps[w]; /* missing warps add 0 */
    return sum;
}

/* Adds up the sums of all steps and stores the weight's gradient. The block ends with this warp: for few
 * columns it has few shuffles. */
DEV void add_steps(const backward_args &a, u32 row, const sums_of_steps &sums)
{
    const u32 lane = threadIdx.x % 32, num_steps = blockDim.x / 32 - 1, warps = (u32)a.sum_warps;
    const i64 slot = a.pos_to_token_topk[row];
    const bool is_its_slot = row_of_slot(a, slot) == (i32)row;
    barrier_sync<1>(blockDim.x);
    const float sum = warps <= 2 ? sum_of_steps<2>(sums, num_steps, warps, lane)
                                 : sum_of_steps<BACKWARD_WARPS>(sums, num_steps, warps, lane);
    if (lane == 0 && is_its_slot) a.weight_grad[slot] = sum;
}

extern "C" __global__ void __launch_bounds__(IS_WHOLE ? 32 * (BACKWARD_MAX_STEPS + 1) : 32 * BACKWARD_WARPS,
                                             IS_WHOLE ? 1 : RESIDENT)
    swiglu_backward_and_per_token_cast(const backward_args a)
{
    const u32 row = blockIdx.x - (u32)a.clearing_blocks;
    pdl_wait();
    if (blockIdx.x < (u32)a.clearing_blocks) {
        clear_slots(a);
    } else if (IS_WHOLE) {
        SHARED(sums_of_steps, sums);
        if (threadIdx.x + 32 < blockDim.x) run_step(a, row, sums);
        else add_steps(a, row, sums);
    } else {
        run_row(a, row);
    }
    pdl_trigger();
}
