/* SPDX-License-Identifier: MIT
 * builtins.cu - every built-in and wrapper once; test_builtins.c works out what must come back. It is also
 * what the real NVRTC compiles to check that every wrapper of ptx.cuh is valid PTX on the architectures
 * that have it. */
#include "device/ptx.cuh"

extern "C" __global__ void t_index(u32 *out)
{
    const u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const u32 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block << 16 | thread;
}

extern "C" __global__ void __launch_bounds__(32) t_shuffle(int *out)
{
    const int l = threadIdx.x, v = 100 + l;
    out[l] = __shfl_sync(FULL, v, 5);
    out[32 + l] = __shfl_up_sync(FULL, v, 3);
    out[64 + l] = __shfl_down_sync(FULL, v, 3);
    out[96 + l] = __shfl_xor_sync(FULL, v, 9);
    out[128 + l] = __shfl_sync(FULL, v, 2, 8);
    out[160 + l] = (int)(__shfl_xor_sync(FULL, (u64)v << 32, 1) >> 32);
    if (l < 8) out[192 + l] = __shfl_xor_sync(0xffu, v, 7);
    else out[192 + l] = __shfl_down_sync(0xffffff00u, v, 1);
    out[224 + l] = (int)__float_as_uint(__shfl_up_sync(FULL, __uint_as_float(l), 1, 16));
}

extern "C" __global__ void __launch_bounds__(32) t_vote(u32 *out)
{
    const int l = threadIdx.x;
    int same, differs;
    const u32 equal = __match_all_sync(FULL, 7ull << 40, &same), unequal = __match_all_sync(FULL, l / 31, &differs);
    out[l] = __ballot_sync(FULL, l % 3 == 0);
    out[32 + l] = __any_sync(FULL, l == 31) * 2 + __all_sync(FULL, l < 31);
    out[64 + l] = __match_any_sync(FULL, l % 5);
    out[96 + l] = equal ^ (u32)same;
    out[128 + l] = unequal ^ (u32)differs;
    out[160 + l] = __reduce_add_sync(FULL, (u32)l);
    out[192 + l] = (u32)__reduce_min_sync(FULL, l - 16);
    out[224 + l] = (u32)__reduce_max_sync(FULL, -l);
    out[256 + l] = __reduce_xor_sync(FULL, (u32)l * 3u);
    out[288 + l] = __reduce_or_sync(FULL, 1u << (l / 2)) + __reduce_and_sync(FULL, ~0u << (l / 4));
    out[320 + l] =
        warp_max_u32((u32)(l ^ 21)) + 1000 * warp_add_u32(1) + (u32)warp_max_s32(-l) + warp_min_u32((u32)l + 5) * 100;
    out[352 + l] = lanes_below();
    out[384 + l] = __reduce_max_sync(FULL, (u32)l * 5u) + __reduce_min_sync(FULL, (u32)(l + 2)) * 1000;
}

/* from memory, so that nothing is folded at compile time */
extern "C" __global__ void t_bits(const u32 *in, u32 *out)
{
    const u32 x = in[0], one = in[1], zero = in[2], y = in[3];
    const u64 wide = (u64)x << 32 | y;
    u32 i = 0;
    out[i++] = __popc(x);
    out[i++] = __clz((int)(one * 255));
    out[i++] = __clz((int)zero);
    out[i++] = __ffs((int)(one << 7));
    out[i++] = __ffs((int)zero);
    out[i++] = __brev(one);
    out[i++] = __byte_perm(x, y, 0x7632);
    out[i++] = __byte_perm(x, y, 0x0c41); /* 0xc: bit 3 of a selector has no meaning, so byte 4 */
    out[i++] = __funnelshift_l(x, one << 31, 4);
    out[i++] = __funnelshift_l(zero, one, 31 - __clz((int)zero));
    out[i++] = __funnelshift_r(x, one * 15, 8);
    out[i++] = __umulhi(one << 31, 6);
    out[i++] = (u32)(__umul64hi(wide, wide) >> 32);
    out[i++] = __popcll(wide);
    out[i++] = __clzll((long long)one);
    out[i++] = __ffsll((long long)(wide & ~0xffull));
    out[i++] = (u32)max((int)one * 3, 7) + min(one * 3u, 7u);
    out[i++] = (u32)__float2int_rn(2.5f * one);
    out[i++] = (u32)__float2int_rz(-2.7f * one);
    out[i++] = (u32)__float2int_rn(3e9f * one);
    out[i++] = __float2uint_rz(-1.0f * one) + __float2uint_rn(2.5f * one);
    out[i++] = __float_as_uint(__uint2float_rn(one << 31)) + __float_as_uint(__int2float_rn(-(int)one));
}

extern "C" __global__ void t_float(const float *in, float *out) /* in: 1.0000001, 3, 2, 0.5, 10, 7 */
{
    const float a = in[0], three = in[1], two = in[2], half = in[3], ten = in[4], seven = in[5];
    u32 i = 0;
    out[i++] = __fmaf_rn(a, a, -1.0f);
    out[i++] = __fadd_rn(__fmul_rn(a, a), -1.0f);
    out[i++] = __fdiv_rn(1.0f, three);
    out[i++] = __frcp_rn(three);
    out[i++] = __fsqrt_rn(two);
    out[i++] = __frsqrt_rn(two);
    out[i++] = __fsub_rn(a, 1.0f);
    out[i++] = __fmaf_rd(half, -half, 12582913.0f);
    out[i++] = __fmaf_rd(a, a, -1.0f);
    out[i++] = __fmaf_rd(-a, a, 1.0f);
    out[i++] = fmaxf(half, __uint_as_float(0x7fc00000));
    out[i++] = rintf(half) + floorf(-half) + ceilf(half) + truncf(-half) + copysignf(three, -half) + fabsf(-two);
    out[i++] = ldexpf(three, 5);
    out[i++] = ex2_fast(three + half);
    out[i++] = lg2_fast(ten);
    out[i++] = rcp_fast(three);
    out[i++] = sqrt_fast(two);
    out[i++] = tanh_fast(half);
    out[i++] = __expf(three * half);
    out[i++] = __fdividef(1.0f, seven);
    out[i++] = expf(two * half);
    out[i++] = rsqrtf(two * two);
    out[i++] = __logf(ten * half);
    out[i++] = __log2f(ten * half);
    out[i++] = nan_of_sum(three + half);
    out[i++] = (float)(__float_as_uint(nan_of_sum(three + __uint_as_float(0xffc12345))) >> 8);
}

extern "C" __global__ void t_atomics(u32 *out, float *sum, u64 *wide)
{
    atomicAdd(&out[0], 2u);
    atomicMax(&out[1], threadIdx.x + blockIdx.x * blockDim.x);
    atomicMin(&out[2], threadIdx.x);
    atomicOr(&out[3], 1u << (threadIdx.x & 31));
    atomicXor(&out[4], threadIdx.x);
    atomicAnd(&out[5], ~(1u << (threadIdx.x & 31)));
    atomicInc(&out[6], 9u);
    atomicDec(&out[7], 6u);
    u32 old = 0, seen;
    while ((seen = atomicCAS(&out[8], old, old + 3)) != old) old = seen;
    atomicSub(&out[9], 1u);
    if (threadIdx.x == 0) atomicExch(&out[10], 77u);
    atomic_inc_relaxed(&out[11], 6);
    atomic_inc_acq_rel(&out[12], 1000);
    atomicAdd(sum, 0.5f);
    atomicAdd(wide, 1ull << 33);
}

extern "C" __global__ void t_barriers(u32 *out) /* 256 threads */
{
    SHARED(u32[256], a);
    SHARED(u32, total);
    const u32 t = threadIdx.x;
    a[t] = t;
    if (t == 0) total = 0;
    __syncthreads();
    const u32 v = a[255 - t];
    __syncthreads();
    a[t] = v * 2;
    const int count = __syncthreads_count(t % 3 == 0), any = __syncthreads_or(t == 17),
              all = __syncthreads_and(t < 255);
    out[t] = count + 1000 * any + 2000 * all + a[(t + 1) & 255] * 10000;
    if (t < 64) {
        atomicAdd(&total, 1u);
        barrier_arrive<1>(256);
    } else {
        barrier_sync<1>(256);
        out[256 + t] = total;
    }
    if (t >= 128) {
        a[t] = t;
        barrier_sync<2>(128);
        out[t + 256] += a[128 + (t + 77) % 128] * 1000;
    }
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32) t_shared(u32 *out) /* 32 threads, 2048 bytes */
{
    SHARED_DYNAMIC(memory, 128);
    const u32 at = shared_address(memory), t = threadIdx.x;
    shared_store_u32x4(at + 16 * t, make_uint4(t, t + 1, t + 2, t + 3));
    __syncthreads();
    const uint4 v = shared_load_u32x4(at + 16 * ((t + 1) & 31));
    out[t] = v.x + v.w * 256 + shared_load_u32(at + 4 * t) * 65536;
    __syncthreads();
    shared_store_u8(at + t, t * 3);
    shared_store_u16(at + 64 + 2 * t, t * 300);
    shared_store_u32(at + 128 + 4 * t, t * 70000);
    shared_store_u64(at + 256 + 8 * t, (u64)t << 33);
    shared_store_u32x2(at + 512 + 8 * t, make_uint2(t + 7, t + 9));
    shared_store_f32(at + 1024 + 4 * t, 1.5f * t);
    shared_store_f32x2(at + 1152 + 8 * t, 1.0f, 2.0f + t);
    __syncthreads();
    const u32 o = 31 - t;
    out[32 + t] = shared_load_u8(at + o);
    out[64 + t] = shared_load_u16(at + 64 + 2 * o);
    out[96 + t] = shared_load_u32(at + 128 + 4 * o);
    out[128 + t] = (u32)(shared_load_u64(at + 256 + 8 * o) >> 33);
    const uint2 w = shared_load_u32x2(at + 512 + 8 * o);
    out[160 + t] = w.x * 1000 + w.y;
    out[192 + t] = (u32)shared_load_f32(at + 1024 + 4 * o);
    out[224 + t] = (u32)shared_load_f32x4(at + 1152 + 16 * (o / 2)).w;
    out[256 + t] = at % 128;
}

/* 32 threads, 1024 bytes. Matrix m has the element 1000 m + 10 row + column (u16). What each load gives
 * goes to out: 32 words a register. */
extern "C" __global__ void __launch_bounds__(32) t_matrices(u32 *out)
{
    SHARED_DYNAMIC(memory, 128);
    const u32 at = shared_address(memory), t = threadIdx.x;
    for (u32 i = t; i < 256; i += 32) shared_store_u16(at + 2 * i, i / 64 * 1000 + i / 8 % 8 * 10 + i % 8);
    __syncthreads();
    const u32 row = at + 16 * t;
    u32 one, two[2], four[4], i = t;
    ldmatrix_x1(one, t < 8 ? row : at);
    out[i] = one, i += 32;
    ldmatrix_x1_trans(one, t < 8 ? row : at);
    out[i] = one, i += 32;
    ldmatrix_x2(two, t < 16 ? row : at);
    for (int k = 0; k < 2; k++) out[i] = two[k], i += 32;
    ldmatrix_x2_trans(two, t < 16 ? row : at);
    for (int k = 0; k < 2; k++) out[i] = two[k], i += 32;
    ldmatrix_x4(four, row);
    for (int k = 0; k < 4; k++) out[i] = four[k], i += 32;
    out[i] = movmatrix_trans(four[3]), i += 32;
#if __CUDA_ARCH__ >= 900 /* 13 registers so far; the stores, each read back row by row: 8 words a matrix */
    __syncthreads();
    const u32 to = at + 512 + 16 * t;
    const u32 pair[2] = { four[0], four[1] };
    for (int k = 0; k < 6; k++) {
        shared_store_u32x4(to, make_uint4(0, 0, 0, 0));
        __syncthreads();
        if (k == 0) stmatrix_x1(to, four[2]);
        if (k == 1) stmatrix_x1_trans(to, four[2]);
        if (k == 2) stmatrix_x2(to, pair);
        if (k == 3) stmatrix_x2_trans(to, pair);
        if (k == 4) stmatrix_x4(to, four);
        if (k == 5) stmatrix_x4_trans(to, four);
        __syncthreads();
        for (u32 j = t; j < 128; j += 32) out[13 * 32 + k * 128 + j] = shared_load_u32(at + 512 + 4 * j);
        __syncthreads();
    }
    ldmatrix_x4_trans(four, row);
    for (u32 k = 0; k < 4; k++) out[(13 + 24 + k) * 32 + t] = four[k];
#endif
}

/* 32 threads; each section is copied once, of the last three what odd threads have */
extern "C" __global__ void __launch_bounds__(32) t_stream(const u8 *in, u8 *out)
{
    const u32 t = threadIdx.x;
    const u64 first = policy_evict_first(), last = policy_evict_last();
    prefetch_l2(in + 64 * t);
    store_stream_u8(out + t, load_stream_u8(in + kept_u32(t)));
    store_stream_u16(out + 64 + 2 * t, load_stream_u16(in + 64 + 2 * t));
    store_stream_u32(out + 128 + 4 * t, load_stream_u32(in + 128 + 4 * t));
    store_stream_u32x2(out + 256 + 8 * t, load_stream_u32x2(in + 256 + 8 * t));
    store_stream_u32x4(out + 512 + 16 * t, load_stream_u32x4(nth(in + 512, t, 16)));
    store_hint_u32x4(out + 1024 + 16 * t, load_hint_u32x4(in + 1024 + 16 * t, first), last);
    store_u32x4(kept_pointer(out) + 1536 + 16 * t, load_ahead_u32x4(in + 1536 + 16 * t));
    const bool is_odd = t % 2;
    const u8 *some = is_odd ? in + 2048 : (const u8 *)1;
    store_stream_u32(out + 2048 + 4 * t, load_u32_if(some + 4 * t, is_odd));
    store_stream_u32x2(out + 2176 + 8 * t, load_stream_u32x2_if(some + 128 + 8 * t, is_odd));
    store_stream_u32x4(out + 2432 + 16 * t, load_ahead_u32x4_if(some + 384 + 16 * t, is_odd));
}

/* 32 threads, 2048 bytes; cp.async in two groups */
extern "C" __global__ void __launch_bounds__(32) t_copy_async(const float *in, float *out)
{
    SHARED_DYNAMIC(memory, 128);
    const u32 at = shared_address(memory), t = threadIdx.x;
    copy_async_16(at + 16 * t, in + 4 * t);
    copy_async_commit();
    copy_async_4(at + 512 + 4 * t, in + 128 + t);
    copy_async_8(at + 640 + 8 * t, in + 160 + 2 * t);
    copy_async_zfill_16(at + 1024 + 16 * t, in, t % 5 * 4);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    const float4 v = shared_load_f32x4(at + 16 * (31 - t));
    copy_async_wait<0>();
    __syncthreads();
    const float4 z = shared_load_f32x4(at + 1024 + 16 * (31 - t));
    out[t] = v.x + v.w * 1000;
    out[32 + t] = shared_load_f32(at + 512 + 4 * (31 - t));
    out[64 + t] = shared_load_f32(at + 640 + 8 * (31 - t) + 4);
    out[96 + t] = z.x + z.y * 10 + z.z * 100 + z.w * 1000;
}

extern "C" __global__ void t_convert(const float *in, u32 *out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = pack_bf16(in[i], 2.0f);
#if __CUDA_ARCH__ >= 890
    out[n + i] = pack_e4m3(in[i], -in[i]);
    out[2 * n + i] = pack_e5m2(in[i], 1.0f);
#endif
    out[3 * n + i] = pack_f16(in[i], 2.0f);
    out[4 * n + i] = pack_f16_rz(in[i], -1.0f);
}

/* both halves of i as f16, then as e4m3 */
extern "C" __global__ void t_widen(float2 *out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    out[i] = unpack_f16((u32)(n - 1 - i) << 16 | (u32)i);
#if __CUDA_ARCH__ >= 890
    out[n + i] = unpack_e4m3((u32)i);
#endif
}

/* in: three pairs of 16-bit values for each thread */
extern "C" __global__ void t_pairs(const u32 *in, u32 *out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const u32 a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
    out[i] = max_abs_bf16x2(a & 0x7fff7fff, b);
    out[n + i] = max_abs_f16x2(a & 0x7fff7fff, b);
    out[2 * n + i] = fma_bf16x2(a, b, c);
    out[3 * n + i] = fma_f16x2(a, b, c);
#if __CUDA_ARCH__ >= 900
    out[4 * n + i] = min_u16x2(a, b);
    out[5 * n + i] = max_u16x2(a, b);
#endif
    out[6 * n + i] = __float_as_uint(low_f16(a));
    out[7 * n + i] = __float_as_uint(high_f16(a));
#if __CUDA_ARCH__ >= 890
    out[8 * n + i] = widen_e4m3(a);
    out[9 * n + i] = widen_e4m3_high(a);
#endif
    out[10 * n + i] = max_magnitude_bf16x2(a, b);
}

extern "C" __global__ void __launch_bounds__(32) t_mma(const u32 *a, const u32 *b, float *c, int tf32)
{
    const u32 l = threadIdx.x;
    const u32 av[4] = { a[l * 4], a[l * 4 + 1], a[l * 4 + 2], a[l * 4 + 3] };
    float cv[4] = { 0.5f, 0.0f, 0.0f, -1.0f };
    if (tf32) mma_tf32(cv, av, b[l * 2], b[l * 2 + 1]);
    else mma_bf16(cv, av, b[l * 2], b[l * 2 + 1]);
    for (int i = 0; i < 4; i++) c[l * 4 + i] = cv[i];
}

/* cooperative: each block waits for the one before, in three ways */
extern "C" __global__ void t_poll(u32 *flags, u32 *data, u32 *out)
{
    if (threadIdx.x) return;
    const u32 b = blockIdx.x;
    uint4 v = make_uint4(b == 0, 0, 0, 0);
    while (v.x == 0) v = load_relaxed_u32x4(flags + 4 * b);
    out[b] = v.x;
    if (b + 1 < gridDim.x) store_relaxed_u32x4(flags + 4 * b + 4, make_uint4(v.x + 1, 0, 0, 0));
    if (b == 0) { /* publish: data, then a flag that releases it */
        data[0] = 55;
        store_release_u32(data + 4, 1);
        store_relaxed_u32(data + 8, 7);
        store_relaxed_u16((u16 *)(data + 12) + 1, 9);
        store_relaxed_u32x2(data + 14, make_uint2(3, 4));
    } else {
        while (load_acquire_u32(data + 4) == 0) { }
        out[64 + b] = data[0];
        while (load_relaxed_u32(data + 8) == 0) { }
        while (load_relaxed_u32(data + 12) == 0) { }
        uint2 two = load_relaxed_u32x2(data + 14);
        while (two.x == 0 || two.y == 0) two = load_relaxed_u32x2(data + 14);
        out[128 + b] = load_relaxed_u32(data + 12) + 16 * two.x + two.y;
    }
}

extern "C" __global__ void t_pdl(u32 *out)
{
    pdl_wait();
    out[threadIdx.x] = threadIdx.x;
    pdl_trigger();
}

/* What comes before the wait: a prefetch, and constants. */
extern "C" __global__ void t_pdl_constants(const u32 *constants, u32 *out, u32 is_constant)
{
    prefetch_l2(out + threadIdx.x);
    pdl_wait_unless_constant(is_constant);
    const u32 v = constants[threadIdx.x];
    if (is_constant) pdl_wait();
    out[threadIdx.x] = v;
}

/* Of the mantissas of d for which a step from rcp_fast(d) is not 1 / d rounded to nearest: one, and their number. */
extern "C" __global__ void t_reciprocals(u32 *out, u32 first, u32 by, int exponent)
{
    for (u32 m = first + (blockIdx.x * blockDim.x + threadIdx.x) * by; m < 1u << 23; m += gridDim.x * blockDim.x * by) {
        const float d = __uint_as_float((u32)(exponent + 127) << 23 | m), r = rcp_fast(d);
        if (fmaf(r, fmaf(-d, r, 1), r) == __frcp_rn(d)) continue;
        if (atomicAdd(&out[1], 1u) == 0) out[0] = m;
    }
}
extern "C" __global__ void t_barriers_only(u32 *out) /* 20 barriers, nothing else: the cost of a switch */
{
    for (int i = 0; i < 20; i++) __syncthreads();
    out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

#if __CUDA_ARCH__ >= 900
/* 32 threads: bulk loads, a bulk store */
extern "C" __global__ void __launch_bounds__(32) t_bulk(const float *in, float *out)
{
    SHARED_DYNAMIC(memory, 128);
    const u32 at = shared_address(memory), t = threadIdx.x, bar = at + 4096;
    if (t == 0) {
        mbar_init(bar, 1);
        mbar_init_fence();
    }
    __syncthreads();
    if (t == 0) {
        mbar_expect(bar, 1024);
        bulk_load(at, in, 512, bar);
        bulk_load(at + 512, in + 128, 512, bar);
    }
    mbar_wait(bar, 0);
    const float4 x = shared_load_f32x4(at + 32 * t);
    shared_store_u32x4(at + 2048 + 16 * t, make_uint4(__float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z),
                                                      __float_as_uint(x.w)));
    bulk_fence();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, at + 2048, 256);
        bulk_commit();
        bulk_store(out + 64, at + 2304, 256);
        bulk_commit();
        bulk_wait_read<1>();
        bulk_wait<0>();
    }
}

/* cluster of 4, 64 threads: neighbours' memory, mbarriers across blocks */
extern "C" __global__ void t_cluster(u32 *out)
{
    SHARED(u32[64], a);
    SHARED_DYNAMIC(memory, 128);
    const u32 rank = cluster_rank(), t = threadIdx.x, at = shared_address(memory), bar = at + 1024;
    a[t] = rank * 100 + t;
    if (t == 0) {
        mbar_init(bar, 2);
        mbar_init_fence();
    }
    cluster_arrive();
    cluster_wait();
    const u32 next = (rank + 1) & 3, v = cluster_load_u32(cluster_map(shared_address(&a[63 - t]), next));
    if (t < 8) cluster_store_async(cluster_map(at + 16 * t, next), make_float4(rank, t, 0, 1), cluster_map(bar, next));
    if (t == 0) mbar_expect(bar, 128);
    if (t == 1) mbar_arrive(bar);
    mbar_wait_cluster(bar, 0);
    const float4 f = shared_load_f32x4(at + 16 * (t & 7));
    out[blockIdx.x * 64 + t] = v + 1000 * (u32)f.x + 10000 * (u32)f.y;
    cluster_arrive_relaxed();
    cluster_wait();
}

/* A box of 2 x 8 x 64 u16 with a 128-byte swizzle, loaded at (c0, c1, c2); each element goes to out, and
 * the box is stored to the other map at (s0, s1, s2), every element plus one. */
extern "C" __global__ void t_tensor_3d(const __grid_constant__ tensor_map map, const __grid_constant__ tensor_map to,
                                       u32 *out, int c0, int c1, int c2, int s0, int s1, int s2)
{
    SHARED_DYNAMIC(memory, 1024);
    const u32 at = shared_address(memory), bar = at + 2048, t = threadIdx.x;
    if (t == 0) {
        tensor_prefetch(&map);
        mbar_init(bar, 1);
        mbar_init_fence();
    }
    __syncthreads();
    if (t == 0) {
        mbar_expect(bar, 2048);
        tensor_load_3d(at, &map, c0, c1, c2, bar, policy_evict_first());
    }
    mbar_wait(bar, 0);
    /* element i: row i / 64, its 16-byte unit exchanged with u ^ (row & 7) */
    for (u32 i = t; i < 1024; i += blockDim.x) {
        const u32 row = i / 64, unit = i % 64 / 8, within = i % 8,
                  a = at + row * 128 + ((unit ^ (row & 7)) << 4) + within * 2;
        out[i] = shared_load_u16(a);
        shared_store_u16(a, out[i] + 1);
    }
    bulk_fence();
    __syncthreads();
    if (t == 0) {
        tensor_store_3d(&to, s0, s1, s2, at);
        bulk_commit();
        bulk_wait<0>();
    }
}
/* A box of 2 x 2 x 4 x 64 u16, likewise. */
extern "C" __global__ void t_tensor_4d(const __grid_constant__ tensor_map map, u32 *out, int c0, int c1, int c2, int c3)
{
    SHARED_DYNAMIC(memory, 1024);
    const u32 at = shared_address(memory), bar = at + 2048, t = threadIdx.x;
    if (t == 0) {
        mbar_init(bar, 1);
        mbar_init_fence();
    }
    __syncthreads();
    if (t == 0) {
        mbar_expect(bar, 2048);
        tensor_load_4d(at, &map, c0, c1, c2, c3, bar, policy_evict_first());
    }
    mbar_wait(bar, 0);
    for (u32 i = t; i < 1024; i += blockDim.x) {
        const u32 row = i / 64, unit = i % 64 / 8;
        out[i] = shared_load_u16(at + row * 128 + ((unit ^ (row & 7)) << 4) + i % 8 * 2);
    }
}
extern "C" __global__ void t_tensor_2d(const __grid_constant__ tensor_map map, const __grid_constant__ tensor_map to,
                                       int c0, int c1)
{ /* a box of 8 x 32 floats, no swizzle: to at (c0, c1) = map at (c0, c1) */
    SHARED_DYNAMIC(memory, 1024);
    const u32 at = shared_address(memory), bar = at + 1024, t = threadIdx.x;
    if (t == 0) {
        mbar_init(bar, 1);
        mbar_init_fence();
    }
    __syncthreads();
    if (t == 0) {
        mbar_expect(bar, 1024);
        tensor_load_2d(at, &map, c0, c1, bar, policy_evict_last());
    }
    mbar_wait(bar, 0);
    if (t == 0) {
        tensor_store_2d(&to, c0, c1, at);
        bulk_commit();
        bulk_wait<0>();
    }
}
/* two warp groups trade registers */
extern "C" __global__ void __launch_bounds__(256, 1) t_registers(u32 *out)
{
    if (threadIdx.x < 128) registers_down<40>();
    else registers_up<160>();
    out[threadIdx.x] = threadIdx.x;
}
#endif
