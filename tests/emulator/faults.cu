/* SPDX-License-Identifier: MIT
 * faults.cu - one planted fault per kernel; test_faults.c says how each must show. 256 threads; out has 256
 * words, and out[i] = i is the right result where there is one. */
#include "device/ptx.cuh"

/* ---- memory ---- */
extern "C" __global__ void global_overflow(u32 *out) { out[threadIdx.x + 1] = 1; }
extern "C" __global__ void shared_overflow(u32 *out)
{
    SHARED(u32[256], a);
    SHARED(u32[256], b);
    b[threadIdx.x] = 0;
    a[threadIdx.x + 1] = 1; /* the last one hits neither a nor b */
    out[threadIdx.x] = b[threadIdx.x];
}
extern "C" __global__ void shared_pointer_overflow(u32 *out)
{
    SHARED(u32[256], a);
    u32 *const p = a;
    p[threadIdx.x + 1] = 1;
    out[threadIdx.x] = a[threadIdx.x];
}
extern "C" __global__ void shared_address_overflow(u32 *out)
{
    SHARED_DYNAMIC(m, 16);
    shared_store_u32(shared_address(m) + 4 * threadIdx.x + 4, 1);
    out[threadIdx.x] = 0;
}
extern "C" __global__ void shared_misaligned(u32 *out)
{
    SHARED_DYNAMIC(m, 16);
    shared_store_u32(shared_address(m) + 2 * threadIdx.x, 1);
    out[threadIdx.x] = 0;
}
extern "C" __global__ void too_much_shared(u32 *out)
{
    SHARED(u32[8192], a);
    SHARED(u32[8192], b);
    a[threadIdx.x] = b[threadIdx.x] = 0;
    out[threadIdx.x] = a[threadIdx.x];
}
extern "C" __global__ void misaligned_vector(float *out)
{
    const float4 v = *(const float4 *)(out + (threadIdx.x & 7) + 1);
    out[threadIdx.x] = v.x;
}
extern "C" __global__ void misaligned_stream(u32 *out)
{
    store_stream_u32x4(out + (threadIdx.x & 31) + 1, make_uint4(0, 0, 0, 0));
}
extern "C" __global__ void undefined_shift(u32 *out) { out[threadIdx.x] = 1u << (31 - __clz((int)(threadIdx.x & 1))); }
extern "C" __global__ void division_by_zero(u32 *out) { out[threadIdx.x] = 100 / threadIdx.x; }
extern "C" __global__ void uninitialised_shared(u32 *out)
{
    SHARED(u32[256], a);
    if (threadIdx.x < 255) a[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = a[threadIdx.x];
}
extern "C" __global__ void table(u32 *out, u32 *in) { out[threadIdx.x] = in[threadIdx.x]; }

/* ---- synchronisation that is missing ---- */
/* doc: missing_syncthreads */
extern "C" __global__ void missing_syncthreads(u32 *out)
{
    SHARED(u32[256], a);
    a[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = a[threadIdx.x ^ 1] ^ 1; /* a barrier belongs before this */
}
/* end */
extern "C" __global__ void missing_syncthreads_backwards(u32 *out) /* read before overwrite */
{
    SHARED(u32[256], a);
    a[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const u32 v = a[(threadIdx.x + 64) & 255];
    a[threadIdx.x] = 99;
    out[threadIdx.x] = (v - 64) & 255;
}
extern "C" __global__ void missing_syncwarp(u32 *out)
{
    SHARED(u32[256], a);
    a[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const u32 v = a[threadIdx.x ^ 1];
    a[threadIdx.x] = 7;
    out[threadIdx.x] = v ^ 1;
}
/* out[i] = i must survive a copy through shared memory */
extern "C" __global__ void missing_copy_wait(u32 *out)
{
    SHARED_DYNAMIC(m, 16);
    const u32 at = shared_address(m), t = threadIdx.x;
    out[t] = t;
    __syncthreads();
    if (t < 64) copy_async_16(at + 16 * t, out + 4 * t);
    copy_async_commit();
    __syncthreads();
    out[t] = shared_load_u32(at + 4 * t);
    copy_async_wait<0>();
}
extern "C" __global__ void missing_mbarrier_wait(u32 *out)
{
    SHARED_DYNAMIC(m, 16);
    SHARED(u64, bar);
    const u32 at = shared_address(m), b = shared_address(&bar), t = threadIdx.x;
    out[t] = t;
    if (t == 0) mbar_init(b, 1), mbar_init_fence();
    __syncthreads();
    if (t == 0) {
        mbar_expect(b, 1024);
        bulk_load(at, out, 1024, b);
    }
    __syncthreads();
    const u32 v = shared_load_u32(at + 4 * t);
    mbar_wait(b, 0);
    out[t] = v;
}
extern "C" __global__ void bulk_store_source_overwritten(u32 *out)
{
    SHARED_DYNAMIC(m, 16);
    const u32 at = shared_address(m), t = threadIdx.x;
    shared_store_u32(at + 4 * t, t);
    bulk_fence();
    __syncthreads();
    if (t == 0) {
        bulk_store(out, at, 1024);
        bulk_commit();
    }
    __syncthreads();
    shared_store_u32(at + 4 * t, 99); /* bulk_wait_read belongs before this */
    __syncthreads();
    if (t == 0) bulk_wait<0>();
}
extern "C" __global__ void bulk_store_not_awaited(u32 *out)
{
    SHARED_DYNAMIC(m, 16);
    const u32 at = shared_address(m), t = threadIdx.x;
    shared_store_u32(at + 4 * t, t);
    __syncthreads();
    if (t == 0) {
        bulk_store(out, at, 1024);
        bulk_commit();
    }
}

/* ---- synchronisation that is wrong ---- */
/* doc: divergent_barrier */
extern "C" __global__ void divergent_barrier(u32 *out)
{
    if (threadIdx.x & 1) {
        out[threadIdx.x] = threadIdx.x;
        __syncthreads();
    } else {
        __syncthreads();
    }
}
/* end */
/* doc: barrier_not_reached */
extern "C" __global__ void barrier_not_reached(u32 *out)
{
    SHARED(u32, flag);
    if (threadIdx.x < 128) {
        if (threadIdx.x == 0) flag = 1;
        __syncthreads();
    } else {
        barrier_sync<3>(256);
    }
    out[threadIdx.x] = threadIdx.x;
}
/* end */
extern "C" __global__ void barrier_left_half(u32 *out)
{
    out[threadIdx.x] = threadIdx.x;
    if (threadIdx.x < 128) barrier_arrive<3>(256);
}
extern "C" __global__ void barrier_count(u32 *out)
{
    barrier_sync<1>(40);
    out[threadIdx.x] = 0;
}
extern "C" __global__ void mbarrier_deadlock(u32 *out)
{
    SHARED(u64, bar);
    const u32 b = shared_address(&bar);
    if (threadIdx.x == 0) mbar_init(b, 2);
    __syncthreads();
    if (threadIdx.x == 0) mbar_arrive(b);
    mbar_wait(b, 0);
    out[threadIdx.x] = threadIdx.x;
}
extern "C" __global__ void mbarrier_uninitialised(u32 *out)
{
    SHARED(u64, bar);
    mbar_wait(shared_address(&bar), 0);
    out[threadIdx.x] = threadIdx.x;
}
extern "C" __global__ void mbarrier_too_many(u32 *out)
{
    SHARED(u64, bar);
    const u32 b = shared_address(&bar);
    if (threadIdx.x == 0) {
        mbar_init(b, 1);
        mbar_expect(b, 16);
        mbar_arrive(b);
    }
    out[threadIdx.x] = threadIdx.x;
}
/* doc: spin_on_other_block */
extern "C" __global__ void spin_on_other_block(u32 *out) /* needs a cooperative launch, gets a plain one */
{
    if (blockIdx.x == 0)
        while (load_relaxed_u32x4(out).x != 5) { }
    else if (threadIdx.x == 0) store_relaxed_u32(out, 5);
}
/* end */
extern "C" __global__ void spin_forever(u32 *out)
{
    while (load_relaxed_u32x4(out + (threadIdx.x & ~3)).x != 5) { }
}
extern "C" __global__ void cluster_deadlock(u32 *out)
{
    SHARED(u64, bar);
    if (threadIdx.x == 0) mbar_init(shared_address(&bar), 1);
    if (cluster_rank() == 0 && threadIdx.x < 32) mbar_wait(shared_address(&bar), 0);
    cluster_arrive();
    cluster_wait();
    out[threadIdx.x] = threadIdx.x;
}
extern "C" __global__ void cluster_block_gone(u32 *out)
{
    SHARED(u32, word);
    if (threadIdx.x == 0) word = 0;
    cluster_arrive();
    cluster_wait();
    if (cluster_rank() == 0) return;
    for (int i = 0; i < 100; i++) __syncthreads(); /* long enough for block 0 to end */
    out[threadIdx.x] = cluster_load_u32(cluster_map(shared_address(&word), 0));
}

extern "C" __global__ void pdl_without_wait(u32 *)
{
    /* touches no memory: that is another fault */
    pdl_trigger();
}

/* ---- warp collectives ---- */
extern "C" __global__ void exited_lane(u32 *out)
{
    if ((threadIdx.x & 31) == 5) return;
    out[threadIdx.x] = __shfl_xor_sync(FULL, threadIdx.x, 1);
}
extern "C" __global__ void shuffle_outside_mask(u32 *out)
{
    out[threadIdx.x] = 0;
    if ((threadIdx.x & 31) < 16) out[threadIdx.x] = __shfl_sync(0xffffu, threadIdx.x, 20);
}
extern "C" __global__ void mask_without_caller(u32 *out) { out[threadIdx.x] = __ballot_sync(0xfffffffeu, 1); }
extern "C" __global__ void divergent_shuffle(u32 *out)
{
    if (threadIdx.x & 1) out[threadIdx.x] = __shfl_xor_sync(FULL, threadIdx.x, 1);
    else out[threadIdx.x] = __ballot_sync(FULL, 1);
}
extern "C" __global__ void trap(u32 *out)
{
    if (threadIdx.x == 77) __trap();
    out[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void __launch_bounds__(128) too_many_threads(u32 *out) { out[threadIdx.x] = 0; }

/* ---- what nothing has written decides: in an address or a branch ---- */
extern "C" __global__ void unwritten_branch(u32 *out) /* the last thread's word of a is nobody's */
{
    SHARED(u32[256], a);
    if (threadIdx.x < 255) a[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (a[threadIdx.x] > 300) out[0] = 1;
}
extern "C" __global__ void unwritten_index(u32 *out, const u32 *in)
{
    SHARED(u32[256], a);
    if (threadIdx.x < 255) a[threadIdx.x] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = in[a[threadIdx.x] & 255];
}
extern "C" __global__ void unwritten_dynamic(u32 *out)
{
    SHARED_DYNAMIC(m, 16);
    if (threadIdx.x) shared_store_u32(shared_address(m) + 4 * threadIdx.x, 1);
    if (shared_load_u32(shared_address(m) + 4 * threadIdx.x) > 300) out[0] = 1;
}
extern "C" __global__ void unwritten_global(u32 *out, u32 *in)
{
    if (threadIdx.x) in[threadIdx.x] = 0;
    if (in[threadIdx.x] > 300) out[0] = 1;
}
extern "C" __global__ void unwritten_local(u32 *out)
{
    u32 v[4];
    for (u32 i = 0; i < threadIdx.x % 5; i++) v[i] = i;
    if (v[threadIdx.x % 4] > 300) out[0] = 1;
}
extern "C" __global__ void unwritten_shuffled(u32 *out)
{
    SHARED(u32[256], a);
    if (threadIdx.x < 255) a[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (__shfl_xor_sync(FULL, a[threadIdx.x], 1) > 300) out[0] = 1;
}
extern "C" __global__ void unwritten_copied(u32 *out, const u32 *in)
{
    SHARED_DYNAMIC(m, 16);
    const u32 at = shared_address(m), t = threadIdx.x;
    if (t < 64) copy_async_16(at + 16 * t, in + 4 * t);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    shared_store_u32(at + 4 * (t & 63), 1);
    if (shared_load_u32(at + 4 * t) > 300) out[0] = 1;
}
extern "C" __global__ void unwritten_converted(u32 *out) /* through what has branches in the emulator alone */
{
    SHARED(float[256], a);
    if (threadIdx.x < 255) a[threadIdx.x] = 1;
    __syncthreads();
    if (pack_f16(1, a[threadIdx.x]) > 0x40000000) out[0] = 1;
}

/* ---- barriers and clusters, once more: documents quote the lines above ---- */
extern "C" __global__ void store_async_no_cluster(u32 *out)
{
    SHARED(u64, bar);
    SHARED(float4, word);
    if (threadIdx.x == 0) {
        mbar_init(shared_address(&bar), 1);
        mbar_init_fence();
        mbar_expect(shared_address(&bar), 16);
        cluster_store_async(shared_address(&word), make_float4(1, 2, 3, 4), shared_address(&bar));
    }
    __syncthreads();
    mbar_wait(shared_address(&bar), 0);
    out[threadIdx.x] = threadIdx.x;
}
extern "C" __global__ void mbarrier_without_fence(u32 *out)
{
    SHARED_DYNAMIC(m, 16);
    SHARED(u64, bar);
    const u32 b = shared_address(&bar), t = threadIdx.x;
    if (t == 0) {
        mbar_init(b, 1);
        mbar_expect(b, 1024);
        bulk_load(shared_address(m), out, 1024, b);
    }
    __syncthreads();
    mbar_wait(b, 0);
}
extern "C" __global__ void pdl_wait_of_some_threads(u32 *out)
{
    if (threadIdx.x >= 128) return;
    pdl_wait();
    pdl_wait();
    out[threadIdx.x] = threadIdx.x;
}
extern "C" __global__ void cluster_work_after_arrival(u32 *out) /* the barrier orders what comes before arrival */
{
    SHARED(u32[256], a);
    cluster_arrive();
    a[threadIdx.x] = threadIdx.x;
    cluster_wait();
    out[threadIdx.x ^ 128] = a[threadIdx.x ^ 128];
}

/* past the end of a thread's own array, through a pointer, whose bounds UBSan does not know */
static __device__ __noinline__ void write_five(u32 *p)
{
    for (int i = 0; i < 5; i++) p[i] = threadIdx.x;
}
extern "C" __global__ void local_overflow(u32 *out)
{
    u32 mine[4];
    write_five(mine);
    out[threadIdx.x] = mine[threadIdx.x & 3];
}

/* ---- launched to overlap the kernel before ---- */
extern "C" __global__ void pdl_early_load(u32 *out)
{
    const u32 v = threadIdx.x == 77 ? out[threadIdx.x] : 0;
    pdl_wait();
    out[threadIdx.x] = v;
}
extern "C" __global__ void pdl_early_store(u32 *out)
{
    if (threadIdx.x == 77) out[threadIdx.x] = threadIdx.x;
    pdl_wait();
}
extern "C" __global__ void pdl_early_copy(u32 *out)
{
    SHARED_DYNAMIC(m, 16);
    SHARED(u64, bar);
    const u32 b = shared_address(&bar);
    if (threadIdx.x == 0) {
        mbar_init(b, 1);
        mbar_init_fence();
        mbar_expect(b, 1024);
        bulk_load(shared_address(m), out, 1024, b);
    }
    pdl_wait();
    __syncthreads();
    mbar_wait(b, 0);
    out[threadIdx.x] = 0;
}
