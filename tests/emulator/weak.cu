/* SPDX-License-Identifier: MIT
 * weak.cu - block 0 passes a message to block 1: data, then a flag. test_weak.c says whose arrives. 64 threads;
 * memory is 256 zeros: data[64], and the flag far from it. out[0] is what block 1 found, want 64 ones. */
#include "device/ptx.cuh"

DEV bool is_receiver(const u32 *memory, u32 *out)
{
    if (blockIdx.x == 0) return false;
    if (threadIdx.x == 0) {
        while (load_relaxed_u32(memory + 128) == 0) { }
        __threadfence();
        u32 sum = 0;
        for (int i = 0; i < 64; i++) sum += memory[i];
        out[0] = sum;
    }
    return true;
}
DEV void raise(u32 *memory) /* the flag, by one thread */
{
    if (threadIdx.x == 0) store_relaxed_u32(memory + 128, 1);
}
DEV void write_all(u32 *memory) /* by that thread */
{
    for (int i = 0; threadIdx.x == 0 && i < 64; i++) memory[i] = 1;
}

/* of one thread */
extern "C" __global__ void relaxed(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    write_all(memory);
    raise(memory);
}
extern "C" __global__ void fenced(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    write_all(memory);
    __threadfence();
    raise(memory);
}
extern "C" __global__ void released(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    write_all(memory);
    if (threadIdx.x == 0) store_release_u32(memory + 128, 1);
}
extern "C" __global__ void fenced_for_the_block_only(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    write_all(memory);
    __threadfence_block();
    raise(memory);
}
/* of all threads: a barrier makes their stores known to the one that has the fence */
extern "C" __global__ void of_a_block(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    memory[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) __threadfence();
    raise(memory);
}
extern "C" __global__ void of_a_block_unfenced(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    memory[threadIdx.x] = 1;
    __syncthreads();
    raise(memory);
}
extern "C" __global__ void of_a_block_without_barrier(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    memory[63 - threadIdx.x] = 1;
    if (threadIdx.x == 0) __threadfence();
    raise(memory);
}
extern "C" __global__ void of_a_warp(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    if (threadIdx.x >= 32) return;
    memory[threadIdx.x] = memory[threadIdx.x + 32] = 1;
    __syncwarp();
    if (threadIdx.x == 0) __threadfence();
    raise(memory);
}
/* atomics whose result nobody takes, before a ticket */
extern "C" __global__ void reduced(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    atomicAdd(&memory[threadIdx.x], 1u);
    __syncthreads();
    if (threadIdx.x == 0) atomic_inc_acq_rel(memory + 128, 9);
}
extern "C" __global__ void reduced_relaxed(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    atomicAdd(&memory[threadIdx.x], 1u);
    __syncthreads();
    if (threadIdx.x == 0) atomic_inc_relaxed(memory + 128, 9);
}
/* stores to one address stay in order, and a block sees its own */
extern "C" __global__ void own_stores(u32 *memory, u32 *out)
{
    if (is_receiver(memory, out)) return;
    for (u32 i = 0; i < 5; i++) memory[threadIdx.x] = i;
    if (memory[threadIdx.x] == 4) memory[threadIdx.x] = 1;
    __threadfence();
    __syncthreads();
    raise(memory);
}

/* launched to overlap the kernel before: memory may be touched only after pdl_wait() */
extern "C" __global__ void late(u32 *memory, u32 *out)
{
    prefetch_l2(memory + threadIdx.x);
    pdl_wait();
    out[threadIdx.x] = memory[threadIdx.x];
}
extern "C" __global__ void early_load(u32 *memory, u32 *out)
{
    const u32 v = memory[threadIdx.x];
    pdl_wait();
    out[threadIdx.x] = v;
}
/* Once all others have ended, one thread polls for one store. */
extern "C" __global__ void one_poller(u32 *memory, u32 *out)
{
    if (threadIdx.x) return;
    if (blockIdx.x == 0) store_relaxed_u32(memory + 128, 1);
    if (blockIdx.x != 1) return;
    while (load_relaxed_u32(memory + 128) == 0) { }
    out[0] = 64;
}
extern "C" __global__ void early_poll(u32 *memory, u32 *out)
{
    const u32 v = load_relaxed_u32(memory);
    pdl_wait();
    out[threadIdx.x] = v;
}
extern "C" __global__ void early_store(u32 *memory, u32 *out)
{
    out[threadIdx.x] = 0;
    pdl_wait();
}
