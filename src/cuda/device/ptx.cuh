/* SPDX-License-Identifier: MIT
 * ptx.cuh - all inline PTX of the kernels, and the declarations of shared memory.
 *
 * No other file has inline assembly or __shared__. So the same kernel source runs on the emulated device
 * (tests/emulator), whose ptx.hpp has the same names in plain C++; a wrapper added here is added there as
 * well (a test compares the two). Rules for kernels:
 *   - shared memory through SHARED and SHARED_DYNAMIC;
 *   - a loop that waits for another block polls with load_relaxed_* or load_acquire_*, for an mbarrier with
 *     mbar_wait: on the emulated device these let other threads run, where a plain load would hang;
 *   - no __activemask(), no CUDA header; per .cu one
 *     `extern "C" __global__ void __launch_bounds__(...) name(`.
 *
 * A shared-memory address is a u32 (shared_address); a global address is a pointer, aligned to the access.
 * Wrappers need the architecture that their section names, or sm_80. */
#ifndef TEGULA_PTX_CUH
#define TEGULA_PTX_CUH

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;

#define DEV static __device__ __forceinline__
#define FULL 0xffffffffu /* all lanes of a warp */

// clang-format off: an instruction, then its operands
/* ---- shared memory ----
 *     SHARED(u32[BINS], count);         an array or a variable, aligned to at least 16 bytes
 *     SHARED_DYNAMIC(memory, 1024);     dynamic shared memory as unsigned char *, alignment at most 1024 */
template <class T> struct shared_type { typedef T type; };
#define SHARED(T, name) __shared__ __align__(16) shared_type<T>::type name
#define SHARED_DYNAMIC(name, align) extern __shared__ __align__(align) unsigned char name[]

DEV u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

DEV u32 shared_load_u8(u32 a)
{
    u32 v;                                      /* a register has no 8-bit form: ld widens */
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
    return v;
}
DEV u32 shared_load_u16(u32 a)
{
    u16 v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(a) : "memory");
    return v;
}
DEV u32 shared_load_u32(u32 a)
{
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
    return v;
}
DEV u64 shared_load_u64(u32 a)
{
    u64 v;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(v) : "r"(a) : "memory");
    return v;
}
DEV uint2 shared_load_u32x2(u32 a)
{
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(a) : "memory");
    return v;
}
DEV uint4 shared_load_u32x4(u32 a)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(a) : "memory");
    return v;
}
DEV float shared_load_f32(u32 a)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory");
    return v;
}
DEV float4 shared_load_f32x4(u32 a)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(a) : "memory");
    return v;
}
DEV void shared_store_u8(u32 a, u32 v)
{
    asm volatile("st.shared.u8 [%0], %1;" :: "r"(a), "r"(v) : "memory");
}
DEV void shared_store_u16(u32 a, u32 v)
{
    asm volatile("st.shared.u16 [%0], %1;" :: "r"(a), "h"((u16)v) : "memory");
}
DEV void shared_store_u32(u32 a, u32 v)
{
    asm volatile("st.shared.u32 [%0], %1;" :: "r"(a), "r"(v) : "memory");
}
DEV void shared_store_u64(u32 a, u64 v)
{
    asm volatile("st.shared.u64 [%0], %1;" :: "r"(a), "l"(v) : "memory");
}
DEV void shared_store_u32x2(u32 a, uint2 v)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" :: "r"(a), "r"(v.x), "r"(v.y) : "memory");
}
DEV void shared_store_u32x4(u32 a, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEV void shared_store_f32(u32 a, float v)
{
    asm volatile("st.shared.f32 [%0], %1;" :: "r"(a), "f"(v) : "memory");
}
DEV void shared_store_f32x2(u32 a, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(a), "f"(x), "f"(y) : "memory");
}

/* ---- 8x8 matrices of 16-bit elements, by all lanes of a warp ----
 * In registers, lane l holds elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4, the first in the low half.
 * In shared memory a row is 16 bytes, aligned to 16; lane i passes the address of row i % 8 of matrix i /
 * 8 (other lanes' addresses are ignored). _trans: the matrix in registers is the transpose of the one in
 * memory. */
DEV void ldmatrix_x1(u32 &d, u32 a)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(d) : "r"(a) : "memory");
}
DEV void ldmatrix_x1_trans(u32 &d, u32 a)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(d) : "r"(a) : "memory");
}
DEV void ldmatrix_x2(u32 (&d)[2], u32 a)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1]) : "r"(a) : "memory");
}
DEV void ldmatrix_x2_trans(u32 (&d)[2], u32 a)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1]) : "r"(a) : "memory");
}
DEV void ldmatrix_x4(u32 (&d)[4], u32 a)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a) : "memory");
}
DEV void ldmatrix_x4_trans(u32 (&d)[4], u32 a)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a) : "memory");
}
DEV u32 movmatrix_trans(u32 v)                  /* register to register */
{
    u32 d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(v));
    return d;
}
#if __CUDA_ARCH__ >= 900
DEV void stmatrix_x1(u32 a, u32 d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: "r"(a), "r"(d) : "memory");
}
DEV void stmatrix_x1_trans(u32 a, u32 d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" :: "r"(a), "r"(d) : "memory");
}
DEV void stmatrix_x2(u32 a, const u32 (&d)[2])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
                 :: "r"(a), "r"(d[0]), "r"(d[1]) : "memory");
}
DEV void stmatrix_x2_trans(u32 a, const u32 (&d)[2])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                 :: "r"(a), "r"(d[0]), "r"(d[1]) : "memory");
}
DEV void stmatrix_x4(u32 a, const u32 (&d)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(a), "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]) : "memory");
}
DEV void stmatrix_x4_trans(u32 a, const u32 (&d)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(a), "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]) : "memory");
}
#endif

/* ---- warp reductions; all 32 lanes must call ---- */
DEV int warp_max_s32(int v)
{
    int r;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
    return r;
}
DEV u32 warp_max_u32(u32 v)
{
    u32 r;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
    return r;
}
DEV u32 warp_min_u32(u32 v)
{
    u32 r;
    asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
    return r;
}
DEV u32 warp_add_u32(u32 v)
{
    u32 r;
    asm volatile("redux.sync.add.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v));
    return r;
}
DEV u32 lanes_below(void)                       /* mask of the lanes before this one */
{
    u32 m;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(m));
    return m;
}

/* ---- approximations; all but tanh flush subnormals; max errors from the PTX ISA ---- */
DEV float ex2_fast(float x)                     /* relative 2^-22 */
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEV float lg2_fast(float x)                     /* relative 2^-22; absolute 2^-22 for x in (0.5, 2) */
{
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEV float rcp_fast(float x)                     /* relative 2^-23 */
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEV float sqrt_fast(float x)                    /* relative 2^-23 */
{
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
DEV float tanh_fast(float x)                    /* relative 2^-11 */
{
    float r;
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Keeps a computed pointer in a register: the compiler might recompute the sum at every use. If it is the
 * same in all threads of a warp, it is kept in uniform registers. */
template <class T> DEV T *kept_pointer(T *p)
{
    u64 address = __cvta_generic_to_global(p);
    asm volatile("" : "+l"(address));
    return (T *)__cvta_global_to_generic(address);
}

/* A sum that is NaN has all bits set but the sign: GPUs add so. */
DEV float nan_of_sum(float sum) { return sum; }

/* Hides a number from the compiler, so that computations with it stay in their branch. */
DEV u32 kept_u32(u32 v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* The address of element n, in one instruction: hides from the compiler that `first` is a sum, which it would
 * rearrange. Not volatile: it may be moved or dropped. */
DEV const u8 *nth(const u8 *first, u32 n, u32 bytes)
{
    asm("" : "+l"(first));
    return first + (u64)n * bytes;
}

/* ---- global memory: streaming ----
 * load_stream_*: read once, and constant while the kernel runs (.nc); not kept in L1.
 * store_stream_*: not read again soon; evicted first from L2.
 * load_ahead_*: L2 prefetches the 256 bytes around it, which other threads read.
 * load_*_if: predicated, no branch; zeros if is_there is false (p may then be invalid).
 * load_hint_* and store_hint_* take an L2 policy of policy_*.
 * store_u32x4: one store; the compiler may split an assignment in four. */
DEV u64 policy_evict_first(void)
{
    u64 p;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
DEV u64 policy_evict_last(void)
{
    u64 p;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
    return p;
}
DEV void prefetch_l2(const void *p)             /* the line of p */
{
    asm volatile("prefetch.global.L2 [%0];" :: "l"(p));
}
DEV u32 load_stream_u8(const void *p)
{
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEV u32 load_stream_u16(const void *p)
{
    u16 v;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
}
DEV u32 load_stream_u32(const void *p)
{
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEV uint2 load_stream_u32x2(const void *p)
{
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}
DEV uint4 load_stream_u32x4(const void *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEV uint4 load_ahead_u32x4(const void *p)
{
    uint4 v;
    asm volatile("ld.global.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
DEV u32 load_u32_if(const void *p, bool is_there)
{
    u32 v = 0;
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %2, 0; @q ld.global.u32 %0, [%1]; }"
                 : "+r"(v) : "l"(p), "r"((u32)is_there) : "memory");
    return v;
}
DEV uint2 load_stream_u32x2_if(const void *p, bool is_there)
{
    uint2 v = make_uint2(0, 0);
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %3, 0;\n\t"
                 "@q ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2]; }"
                 : "+r"(v.x), "+r"(v.y) : "l"(p), "r"((u32)is_there));
    return v;
}
DEV uint4 load_ahead_u32x4_if(const void *p, bool is_there)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %5, 0;\n\t"
                 "@q ld.global.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p), "r"((u32)is_there) : "memory");
    return v;
}
DEV uint4 load_hint_u32x4(const void *p, u64 policy)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
    return v;
}
DEV void store_stream_u8(void *p, u32 v)
{
    asm volatile("st.global.cs.u8 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
DEV void store_stream_u16(void *p, u32 v)
{
    asm volatile("st.global.cs.u16 [%0], %1;" :: "l"(p), "h"((u16)v) : "memory");
}
DEV void store_stream_u32(void *p, u32 v)
{
    asm volatile("st.global.cs.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
DEV void store_stream_u32x2(void *p, uint2 v)
{
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" :: "l"(p), "r"(v.x), "r"(v.y) : "memory");
}
DEV void store_stream_u32x4(void *p, uint4 v)
{
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEV void store_u32x4(void *p, uint4 v)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEV void store_hint_u32x4(void *p, uint4 v, u64 policy)
{
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;"
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy) : "memory");
}

/* ---- global memory: between blocks ----
 * Relaxed accesses go to L2, never to a stale L1 line, and order nothing else. 8 bytes are two atomic
 * words, 16 are four. atomic_inc_* returns the old value and wraps to 0 after `last`, so that a counter is
 * 0 again when all have arrived. */
DEV u32 load_relaxed_u32(const void *p)
{
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEV uint2 load_relaxed_u32x2(const void *p)
{
    uint2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}
DEV uint4 load_relaxed_u32x4(const void *p)
{
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}
DEV u32 load_acquire_u32(const void *p)
{
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEV void store_relaxed_u16(void *p, u32 v)
{
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" :: "l"(p), "h"((u16)v) : "memory");
}
DEV void store_relaxed_u32(void *p, u32 v)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
DEV void store_relaxed_u32x2(void *p, uint2 v)
{
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" :: "l"(p), "r"(v.x), "r"(v.y) : "memory");
}
DEV void store_relaxed_u32x4(void *p, uint4 v)
{
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEV void store_release_u32(void *p, u32 v)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(p), "r"(v) : "memory");
}
/* If the last to arrive reads what others wrote, the increment must be acq_rel (unless all accesses are
 * relaxed). Lanes that get its result by a shuffle need a __syncwarp() after it: a shuffle does not order
 * memory. */
DEV u32 atomic_inc_relaxed(u32 *p, u32 last)
{
    u32 r;
    asm volatile("atom.inc.relaxed.gpu.global.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(last) : "memory");
    return r;
}
DEV u32 atomic_inc_acq_rel(u32 *p, u32 last)
{
    u32 r;
    asm volatile("atom.inc.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(last) : "memory");
    return r;
}

/* ---- cp.async: global to shared memory, in groups; the data is visible after the wait and, to other
 * threads, after a barrier. copy_async_zfill_16 copies `bytes` (0 .. 16) and fills the rest with zeros.
 * ---- */
DEV void copy_async_4(u32 to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(from) : "memory");
}
DEV void copy_async_8(u32 to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" :: "r"(to), "l"(from) : "memory");
}
DEV void copy_async_16(u32 to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}
DEV void copy_async_zfill_16(u32 to, const void *from, u32 bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
DEV void copy_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEV void copy_async_wait(void)  /* until at most the newest N groups are in flight */
{
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* ---- named barriers 1 .. 15 (0 is that of __syncthreads); `threads` counts all that sync or arrive, in
 * whole warps ---- */
template <int ID> DEV void barrier_sync(u32 threads)
{
    asm volatile("bar.sync %0, %1;" :: "n"(ID), "r"(threads) : "memory");
}
template <int ID> DEV void barrier_arrive(u32 threads)
{
    asm volatile("bar.arrive %0, %1;" :: "n"(ID), "r"(threads) : "memory");
}

/* ---- programmatic dependent launch: no effect in a launch without the attribute, and below sm_90.
 * pdl_wait waits for the end of the previous kernel, wherever that one triggers. So a short kernel may trigger right
 * after its wait, and the next kernel is on the SMs before this one ends ---- */
#if __CUDA_ARCH__ >= 900
DEV void pdl_wait(void) { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEV void pdl_trigger(void) { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEV void pdl_wait(void) { }
DEV void pdl_trigger(void) { }
#endif
/* If what is read next is constant, the wait may come after it. */
DEV void pdl_wait_unless_constant(bool is_constant)
{
    if (!is_constant) pdl_wait();
}

/* ---- pairs of 16-bit values in a register, subnormals kept. max_abs_*: max(m, |x|), ignoring a NaN (two
 * give a NaN). The integer ones need sm_90. ---- */
DEV u32 max_abs_bf16x2(u32 m, u32 x)
{
    u32 d;
    asm("{ .reg .b32 a; abs.bf16x2 a, %2; max.bf16x2 %0, %1, a; }" : "=r"(d) : "r"(m), "r"(x));
    return d;
}
/* The larger magnitude of each half, with an undefined sign; NaN as above. */
DEV u32 max_magnitude_bf16x2(u32 a, u32 b)
{
#if __CUDA_ARCH__ >= 860
    u32 d;
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return max_abs_bf16x2(a & 0x7FFF7FFF, b);
#endif
}
DEV u32 max_abs_f16x2(u32 m, u32 x)
{
    u32 d;
    asm("{ .reg .b32 a; abs.f16x2 a, %2; max.f16x2 %0, %1, a; }" : "=r"(d) : "r"(m), "r"(x));
    return d;
}
DEV u32 fma_bf16x2(u32 a, u32 b, u32 c)
{
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEV u32 fma_f16x2(u32 a, u32 b, u32 c)
{
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
#if __CUDA_ARCH__ >= 900
DEV u32 min_u16x2(u32 a, u32 b)
{
    u32 d;
    asm("min.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
DEV u32 max_u16x2(u32 a, u32 b)
{
    u32 d;
    asm("max.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
#endif

/* ---- conversions, to nearest even, with _rz toward zero; those to FP8 saturate and need sm_89. lo goes
 * to the low half. A NaN becomes 0x7fff, in FP8 0x7f. ---- */
DEV u32 pack_bf16(float lo, float hi)
{
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
DEV u32 pack_f16(float lo, float hi)
{
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
DEV float2 unpack_f16(u32 pair)                 /* x is the low half; exact */
{
    float2 v;
    asm("{ .reg .b16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }"
        : "=f"(v.x), "=f"(v.y) : "r"(pair));
    return v;
}
DEV u32 pack_f16_rz(float lo, float hi)         /* finite stays finite */
{
    u32 d;
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
    return d;
}
DEV float low_f16(u32 pair)                     /* exact */
{
    float d;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(d) : "r"(pair));
    return d;
}
DEV float high_f16(u32 pair)
{
    float d;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(d) : "r"(pair));
    return d;
}
#if __CUDA_ARCH__ >= 890
DEV u32 widen_e4m3(u32 pair)                    /* two codes in the low half to two f16, exact */
{
    u32 d;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"((u16)pair));
    return d;
}
DEV u32 widen_e4m3_high(u32 codes)              /* those in the high half */
{
    u32 d;
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.rn.f16x2.e4m3x2 %0, h; }" : "=r"(d) : "r"(codes));
    return d;
}
DEV u32 pack_e4m3(float lo, float hi)
{
    u16 d;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
    return d;
}
DEV u32 pack_e5m2(float lo, float hi)
{
    u16 d;
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(d) : "f"(hi), "f"(lo));
    return d;
}
DEV float2 unpack_e4m3(u32 pair)                /* of the low 16 bits; x is the lower; exact */
{
    u32 halves;                                 /* every e4m3 is an f16 */
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)pair));
    return unpack_f16(halves);
}
#endif

/* ---- c += a b on a 16x8 tile; a is 16 x K by rows, b K x 8 by columns; K is 16 for bf16, 8 for tf32 ---- */
DEV void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void mma_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if __CUDA_ARCH__ >= 900
/* ---- clusters: arrive, then wait, by every thread of the cluster ---- */
DEV u32 cluster_rank(void)
{
    u32 r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
DEV u32 cluster_map(u32 a, u32 rank)            /* the same address in block `rank` of the cluster */
{
    u32 r;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(rank));
    return r;
}
DEV u32 cluster_load_u32(u32 a)
{
    u32 v;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
    return v;
}
DEV void cluster_arrive(void) { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
/* Enough to publish initialised mbarriers; a release would wait for all of the thread's global stores. */
DEV void cluster_arrive_relaxed(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEV void cluster_wait(void) { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/* ---- mbarriers: 8 bytes of shared memory; a phase ends when `count` arrivals and all expected bytes have
 * come ---- */
DEV void mbar_init(u32 bar, u32 count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
DEV void mbar_init_fence(void)  /* makes initialised mbarriers visible to the copy engine and the cluster */
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEV void mbar_arrive(u32 bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
DEV void mbar_expect(u32 bar, u32 bytes)        /* one arrival, and this many bytes to come */
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
DEV void mbar_wait(u32 bar, u32 parity)         /* until the phase of that parity (0 first) has ended */
{
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
}
/* The same for stores of other blocks of the cluster (cluster_store_async). An acquire of cluster scope
 * would invalidate L1; this fence is restricted to shared memory and costs nothing. NVRTC before 12.8
 * lacks it: there the scope is the block, as in mbar_wait. */
DEV void mbar_wait_cluster(u32 bar, u32 parity)
{
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
#else
    mbar_wait(bar, parity);
#endif
}
/* 16 bytes into another block, counted on its mbarrier */
DEV void cluster_store_async(u32 addr, float4 v, u32 bar)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(addr), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(bar) : "memory");
}

/* ---- bulk copies: addresses and bytes are multiples of 16. Loads are counted on an mbarrier; stores come
 * in groups. bulk_fence makes this thread's writes to shared memory visible to bulk and tensor stores (a
 * barrier follows). bulk_wait<N> waits until all but the newest N groups are done, bulk_wait_read<N> until
 * they have read their shared memory. ---- */
DEV void bulk_load(u32 to, const void *from, u32 bytes, u32 bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
DEV void bulk_store(void *to, u32 from, u32 bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
DEV void bulk_fence(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV void bulk_commit(void) { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEV void bulk_wait(void)
{
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(N) : "memory");
}
template <int N> DEV void bulk_wait_read(void)
{
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}

/* ---- tensor copies: a box of a tensor map (a `const __grid_constant__ tensor_map` parameter), c0 along
 * the contiguous dimension. Shared memory is aligned to 128 bytes, with a swizzle to 8 times its width.
 * Loads fill with zeros outside the tensor (which count as bytes); stores skip what is outside, and are
 * awaited
 * like bulk stores. ---- */
typedef struct __align__(64) { u64 opaque[16]; } tensor_map;   /* CUtensorMap */
DEV void tensor_prefetch(const tensor_map *map)                /* the map itself, before its first use */
{
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}
DEV void tensor_load_2d(u32 to, const tensor_map *map, int c0, int c1, u32 bar, u64 policy)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(to), "l"(map), "r"(c0), "r"(c1), "r"(bar), "l"(policy) : "memory");
}
DEV void tensor_load_3d(u32 to, const tensor_map *map, int c0, int c1, int c2, u32 bar, u64 policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;"
                 :: "r"(to), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(bar), "l"(policy) : "memory");
}
DEV void tensor_load_4d(u32 to, const tensor_map *map, int c0, int c1, int c2, int c3, u32 bar, u64 policy)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;"
                 :: "r"(to), "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(bar), "l"(policy) : "memory");
}
DEV void tensor_store_2d(const tensor_map *map, int c0, int c1, u32 from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(map), "r"(c0), "r"(c1), "r"(from) : "memory");
}
DEV void tensor_store_3d(const tensor_map *map, int c0, int c1, int c2, u32 from)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
                 :: "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(from) : "memory");
}

/* ---- registers of a warp group (all four warps call): sm_90a, sm_100a ...; without effect in PTX for any device of
 * an architecture ---- */
#if defined __CUDA_ARCH_FEAT_SM90_ALL || defined __CUDA_ARCH_FEAT_SM100_ALL || defined __CUDA_ARCH_FEAT_SM103_ALL || \
    defined __CUDA_ARCH_FEAT_SM110_ALL || defined __CUDA_ARCH_FEAT_SM120_ALL || defined __CUDA_ARCH_FEAT_SM121_ALL
template <int N> DEV void registers_up(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}
template <int N> DEV void registers_down(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}
#else
template <int N> DEV void registers_up(void) { }
template <int N> DEV void registers_down(void) { }
#endif
#endif
// clang-format on

#endif
