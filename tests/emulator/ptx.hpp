/* SPDX-License-Identifier: MIT
 * ptx.hpp - the emulator's device/ptx.cuh: the same names, in C++. The emulated NVRTC serves it where a
 * kernel includes that header. What each wrapper means is said there; here, what the emulator makes of it.
 *
 * A 32-bit shared address is an offset from the shared memory of the cluster's block 0, so mapa is an
 * addition and address arithmetic works as on the device. */
#ifndef EMU_PTX_HPP                             /* not a pragma: it is included under two names */
#define EMU_PTX_HPP

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
#define DEV static inline __attribute__((unused))
#define FULL 0xffffffffu
#ifdef EMU_TSAN
extern "C" void __tsan_acquire(void *), __tsan_release(void *);
#define EMU_ACQUIRE(p) __tsan_acquire(p)
#define EMU_RELEASE(p) __tsan_release(p)
#else
#define EMU_ACQUIRE(p) (void)(p)
#define EMU_RELEASE(p) (void)(p)
#endif

/* ---- shared memory ---- */
template <class T> struct shared_type { typedef T type; };
#define SHARED(T, name)                                                              \
    static char emu_key_##name;                                                      \
    auto &name = *(shared_type<T>::type *)emu_rt->shared(&emu_key_##name, sizeof(T), \
                                                         alignof(T) > 16 ? alignof(T) : 16)
static inline unsigned char *emu_dynamic()
{
    const emu_thread *t = emu_self();
    return t->window + t->rank * t->stride + t->dynamic;
}
#define SHARED_DYNAMIC(name, align)                                                                         \
    unsigned char *const name = emu_dynamic();  \
    static_assert((align) <= 1024, "shared memory is aligned to 1024 bytes at most")

DEV u32 shared_address(const void *p, EMU_AT)
{
    const emu_thread *t = emu_self();
    const u64 a = (u64)((const unsigned char *)p - t->window);
    if (a / t->stride != t->rank)
        emu_rt->fault(EMU_SITE, "shared_address: %p is not in this block's shared memory", p);
    return (u32)a;
}
/* A T, or that many bytes, at a shared address of this block or (REMOTE) of any block of the cluster. ASan
 * guards the gaps between static arrays; the rest is checked here. */
template <class T, bool REMOTE = false>
static inline T *emu_shared(u32 a, const char *what, emu_site site, u32 bytes = sizeof(T))
{
    const emu_thread *t = emu_self();
    const u64 rank = a / t->stride, offset = a % t->stride;
    if (REMOTE ? rank >= t->cluster_size : rank != t->rank)
        emu_rt->fault(site, "%s: shared address 0x%x is not in %s", what, a,
                      REMOTE ? "the cluster" : "this block");
    if (offset < 1024 || (offset >= t->dynamic && offset + bytes > t->dynamic + t->shared_bytes))
        emu_rt->fault(site, "%s: %u bytes at shared address 0x%llx (dynamic memory is 0x%x to 0x%x)", what,
                      bytes, offset, t->dynamic, t->dynamic + t->shared_bytes);
    if (REMOTE && rank != t->rank) emu_rt->remote((u32)rank, what, site);
    if (a % alignof(T))
        emu_rt->fault(site, "%s: shared address 0x%x is not aligned to %u bytes", what, a,
                      (unsigned)alignof(T));
    return (T *)(t->window + a);
}
#define EMU_SHARED_LOAD(name, T, R)                      \
    DEV R name(u32 a, EMU_AT)                            \
    {                                                    \
        emu_rt->maybe_yield(#name, EMU_SITE);            \
        return *emu_shared<const T>(a, #name, EMU_SITE); \
    }
EMU_SHARED_LOAD(shared_load_u8, u8, u32)
EMU_SHARED_LOAD(shared_load_u16, u16, u32)
EMU_SHARED_LOAD(shared_load_u32, u32, u32)
EMU_SHARED_LOAD(shared_load_u64, u64, u64)
EMU_SHARED_LOAD(shared_load_u32x2, uint2, uint2)
EMU_SHARED_LOAD(shared_load_u32x4, uint4, uint4)
EMU_SHARED_LOAD(shared_load_f32, float, float)
EMU_SHARED_LOAD(shared_load_f32x4, float4, float4)
#define EMU_SHARED_STORE(name, T, V) \
    DEV void name(u32 a, V v, EMU_AT) { *emu_shared<T>(a, #name, EMU_SITE) = (T)v; }
EMU_SHARED_STORE(shared_store_u8, u8, u32)
EMU_SHARED_STORE(shared_store_u16, u16, u32)
EMU_SHARED_STORE(shared_store_u32, u32, u32)
EMU_SHARED_STORE(shared_store_u64, u64, u64)
EMU_SHARED_STORE(shared_store_u32x2, uint2, uint2)
EMU_SHARED_STORE(shared_store_u32x4, uint4, uint4)
EMU_SHARED_STORE(shared_store_f32, float, float)
DEV void shared_store_f32x2(u32 a, float x, float y, EMU_AT)
{
    *emu_shared<float2>(a, "shared_store_f32x2", EMU_SITE) = { x, y };
}

/* ---- 8x8 matrices of 16-bit elements ---- A lane reads or writes the row it gave the address of, so a
 * race is put down to the right lane; between, the lanes exchange rows for fragments. */
struct emu_matrix { u32 row[4], fragment[4]; };
static __forceinline__ u32 emu_half(const u32 *words, u32 i)
{
    return words[i / 2] >> 16 * (i & 1) & 0xffff;
}
/* rows -> fragments of N matrices */
template <int N, bool TRANS> EMU_UNCHECKED void emu_ldmatrix_all(void **args, unsigned)
{
    for (u32 l = 0; l < 32; l++)
        for (u32 m = 0; m < N; m++) {
            u32 v = 0;
            for (u32 h = 0; h < 2; h++) {
                const u32 i = l / 4, k = l % 4 * 2 + h, row = TRANS ? k : i, column = TRANS ? i : k;
                v |= emu_half(emu_arg<emu_matrix>(args, m * 8 + row).row, column) << 16 * h;
            }
            emu_arg<emu_matrix>(args, l).fragment[m] = v;
        }
}
/* fragments of N matrices -> rows */
template <int N, bool TRANS> EMU_UNCHECKED void emu_stmatrix_all(void **args, unsigned)
{
    for (u32 l = 0; l < N * 8; l++) {
        u32 *row = emu_arg<emu_matrix>(args, l).row;
        for (u32 column = 0; column < 8; column++) {
            const u32 m = l / 8, i = TRANS ? column : l % 8, k = TRANS ? l % 8 : column;
            const u32 half = emu_arg<emu_matrix>(args, i * 4 + k / 2).fragment[m] >> 16 * (k & 1) & 0xffff;
            if (column % 2 == 0) row[column / 2] = half;
            else row[column / 2] |= half << 16;
        }
    }
}
template <int N, bool TRANS> static inline void emu_ldmatrix(u32 *d, u32 a, const char *what, emu_site site)
{
    emu_matrix m = {};
    if (emu_self()->lane < N * 8) {
        const uint4 v = *emu_shared<const uint4>(a, what, site);
        __builtin_memcpy(m.row, &v, sizeof v);
    }
    emu_collective(FULL, emu_ldmatrix_all<N, TRANS>, &m, what, site);
    for (int i = 0; i < N; i++) d[i] = m.fragment[i];
}
template <int N, bool TRANS>
static inline void emu_stmatrix(u32 a, const u32 *d, const char *what, emu_site site)
{
    emu_matrix m = {};
    for (int i = 0; i < N; i++) m.fragment[i] = d[i];
    emu_collective(FULL, emu_stmatrix_all<N, TRANS>, &m, what, site);
    if (emu_self()->lane < N * 8)
        *emu_shared<uint4>(a, what, site) = { m.row[0], m.row[1], m.row[2], m.row[3] };
}
DEV void ldmatrix_x1(u32 &d, u32 a, EMU_AT) { emu_ldmatrix<1, false>(&d, a, "ldmatrix_x1", EMU_SITE); }
DEV void ldmatrix_x1_trans(u32 &d, u32 a, EMU_AT)
{
    emu_ldmatrix<1, true>(&d, a, "ldmatrix_x1_trans", EMU_SITE);
}
DEV void ldmatrix_x2(u32 (&d)[2], u32 a, EMU_AT) { emu_ldmatrix<2, false>(d, a, "ldmatrix_x2", EMU_SITE); }
DEV void ldmatrix_x2_trans(u32 (&d)[2], u32 a, EMU_AT)
{
    emu_ldmatrix<2, true>(d, a, "ldmatrix_x2_trans", EMU_SITE);
}
DEV void ldmatrix_x4(u32 (&d)[4], u32 a, EMU_AT) { emu_ldmatrix<4, false>(d, a, "ldmatrix_x4", EMU_SITE); }
DEV void ldmatrix_x4_trans(u32 (&d)[4], u32 a, EMU_AT)
{
    emu_ldmatrix<4, true>(d, a, "ldmatrix_x4_trans", EMU_SITE);
}
/* fragment[0] of all lanes, transposed */
EMU_UNCHECKED static inline void emu_movmatrix_all(void **args, unsigned)
{
    for (u32 l = 0; l < 32; l++) {
        u32 v = 0;
        for (u32 h = 0; h < 2; h++) {
            const u32 row = l % 4 * 2 + h, column = l / 4;
            v |= (emu_arg<emu_matrix>(args, row * 4 + column / 2).fragment[0] >> 16 * (column & 1) & 0xffff)
                 << 16 * h;
        }
        emu_arg<emu_matrix>(args, l).fragment[1] = v;
    }
}
DEV u32 movmatrix_trans(u32 v, EMU_AT)
{
    emu_matrix m = {};
    m.fragment[0] = v;
    emu_collective(FULL, emu_movmatrix_all, &m, "movmatrix_trans", EMU_SITE);
    return m.fragment[1];
}
#if __CUDA_ARCH__ >= 900
DEV void stmatrix_x1(u32 a, u32 d, EMU_AT) { emu_stmatrix<1, false>(a, &d, "stmatrix_x1", EMU_SITE); }
DEV void stmatrix_x1_trans(u32 a, u32 d, EMU_AT)
{
    emu_stmatrix<1, true>(a, &d, "stmatrix_x1_trans", EMU_SITE);
}
DEV void stmatrix_x2(u32 a, const u32 (&d)[2], EMU_AT)
{
    emu_stmatrix<2, false>(a, d, "stmatrix_x2", EMU_SITE);
}
DEV void stmatrix_x2_trans(u32 a, const u32 (&d)[2], EMU_AT)
{
    emu_stmatrix<2, true>(a, d, "stmatrix_x2_trans", EMU_SITE);
}
DEV void stmatrix_x4(u32 a, const u32 (&d)[4], EMU_AT)
{
    emu_stmatrix<4, false>(a, d, "stmatrix_x4", EMU_SITE);
}
DEV void stmatrix_x4_trans(u32 a, const u32 (&d)[4], EMU_AT)
{
    emu_stmatrix<4, true>(a, d, "stmatrix_x4_trans", EMU_SITE);
}
#endif

/* ---- warp ---- */
DEV int warp_max_s32(int v, EMU_AT)
{
    return (int)emu_reduction<EMU_MAX_S>(FULL, (u32)v, "warp_max_s32", EMU_SITE);
}
DEV u32 warp_max_u32(u32 v, EMU_AT) { return emu_reduction<EMU_MAX_U>(FULL, v, "warp_max_u32", EMU_SITE); }
DEV u32 warp_min_u32(u32 v, EMU_AT) { return emu_reduction<EMU_MIN_U>(FULL, v, "warp_min_u32", EMU_SITE); }
DEV u32 warp_add_u32(u32 v, EMU_AT) { return emu_reduction<EMU_ADD>(FULL, v, "warp_add_u32", EMU_SITE); }
DEV u32 lanes_below(void) { return (1u << emu_self()->lane) - 1; }

/* ---- approximations ---- */
DEV float ex2_fast(float x) { return emu_ftz(emu_off(__builtin_exp2((double)emu_ftz(x)), 0x1p-22, x)); }
DEV float lg2_fast(float x)
{
    return emu_off(__builtin_log2((double)emu_ftz(x)), 0x1p-22, x, x > 0.5f && x < 2.0f ? 0x1p-22 : 0.0);
}
/* Off by less where that matters: one step of Newton's method from it is the reciprocal rounded to nearest, as it has to be
 * on a device, since such a step is all that nvcc adds to this instruction for 1.0f / x (but for the smallest and the
 * largest x). */
static inline float emu_rcp_branching(float x)
{
    const float r = emu_ftz(emu_off_branching(1.0 / emu_ftz(x), 0x1p-23, x, 0.0));
    const bool has_step = __builtin_fabsf(x) >= 0x1p-124f && __builtin_fabsf(x) < 0x1p125f;
    return has_step && __builtin_fmaf(r, __builtin_fmaf(-x, r, 1), r) != 1 / x ? 1 / x : r;
}
DEV float rcp_fast(float x) { return EMU_INSTRUCTION(emu_rcp_branching, x); }
DEV float sqrt_fast(float x) { return emu_off(__builtin_sqrt((double)emu_ftz(x)), 0x1p-23, x); }
DEV float tanh_fast(float x) { return emu_off(__builtin_tanh((double)x), 0x1p-11, x); }

template <class T> DEV T *kept_pointer(T *p) { return p; }
DEV u32 kept_u32(u32 v) { return v; }
DEV float nan_of_sum(float sum) { return sum != sum ? __uint_as_float(0x7fffffffu) : sum; }
DEV const u8 *nth(const u8 *first, u32 n, u32 bytes) { return first + (u64)n * bytes; }

/* ---- global memory: streaming ---- */
template <class T> static inline T *emu_aligned(const void *p, const char *what, emu_site site)
{
    if ((u64)p % alignof(T))
        emu_rt->fault(site, "%s: address %p is not aligned to %u bytes", what, p, (unsigned)alignof(T));
    return (T *)p;
}
DEV u64 policy_evict_first(void) { return 1; }
DEV u64 policy_evict_last(void) { return 2; }
static inline void emu_policy(u64 policy, const char *what, emu_site site)  /* only those made by the two */
{
    if (policy != 1 && policy != 2) emu_rt->fault(site, "%s: %llu is not a policy", what, policy);
}
/* No access that could race; but ASan sees a bad address. */
EMU_QUIET DEV void prefetch_l2(const void *p) /* its values are not seen, so it may come before pdl_wait */
{
    if (!emu_self()->is_early) (void)*(const volatile u8 *)p;
}
#define EMU_LOAD(name, T, R) \
    DEV R name(const void *p, EMU_AT) { return *emu_aligned<const T>(p, #name, EMU_SITE); }
EMU_LOAD(load_stream_u8, u8, u32)
EMU_LOAD(load_stream_u16, u16, u32)
EMU_LOAD(load_stream_u32, u32, u32)
EMU_LOAD(load_stream_u32x2, uint2, uint2)
EMU_LOAD(load_stream_u32x4, uint4, uint4)
EMU_LOAD(load_ahead_u32x4, uint4, uint4)
#define EMU_LOAD_IF(name, T) \
    DEV T name(const void *p, bool is_there, EMU_AT) \
    { \
        return is_there ? *emu_aligned<const T>(p, #name, EMU_SITE) : T(); \
    }
EMU_LOAD_IF(load_u32_if, u32)
EMU_LOAD_IF(load_stream_u32x2_if, uint2)
EMU_LOAD_IF(load_ahead_u32x4_if, uint4)
DEV uint4 load_hint_u32x4(const void *p, u64 policy, EMU_AT)
{
    emu_policy(policy, "load_hint_u32x4", EMU_SITE);
    return *emu_aligned<const uint4>(p, "load_hint_u32x4", EMU_SITE);
}
#define EMU_STORE(name, T, V) \
    DEV void name(void *p, V v, EMU_AT) { *emu_aligned<T>(p, #name, EMU_SITE) = (T)v; }
EMU_STORE(store_stream_u8, u8, u32)
EMU_STORE(store_stream_u16, u16, u32)
EMU_STORE(store_stream_u32, u32, u32)
EMU_STORE(store_stream_u32x2, uint2, uint2)
EMU_STORE(store_stream_u32x4, uint4, uint4)
EMU_STORE(store_u32x4, uint4, uint4)
DEV void store_hint_u32x4(void *p, uint4 v, u64 policy, EMU_AT)
{
    emu_policy(policy, "store_hint_u32x4", EMU_SITE);
    *emu_aligned<uint4>(p, "store_hint_u32x4", EMU_SITE) = v;
}

/* ---- global memory: between blocks. Others run before every look: a loop around a load cannot hang the
 * emulator. ---- */
DEV u32 load_relaxed_u32(const void *p, EMU_AT)
{
    emu_rt->poll("load_relaxed_u32", EMU_SITE);
    return __atomic_load_n(emu_aligned<const u32>(p, "load_relaxed_u32", EMU_SITE), __ATOMIC_RELAXED);
}
DEV uint2 load_relaxed_u32x2(const void *p, EMU_AT)
{
    emu_rt->poll("load_relaxed_u32x2", EMU_SITE);
    const u32 *a = (const u32 *)emu_aligned<const uint2>(p, "load_relaxed_u32x2", EMU_SITE);
    return { __atomic_load_n(a, __ATOMIC_RELAXED), __atomic_load_n(a + 1, __ATOMIC_RELAXED) };
}
DEV uint4 load_relaxed_u32x4(const void *p, EMU_AT)
{
    emu_rt->poll("load_relaxed_u32x4", EMU_SITE);
    const u32 *a = (const u32 *)emu_aligned<const uint4>(p, "load_relaxed_u32x4", EMU_SITE);
    return { __atomic_load_n(a, __ATOMIC_RELAXED), __atomic_load_n(a + 1, __ATOMIC_RELAXED),
             __atomic_load_n(a + 2, __ATOMIC_RELAXED), __atomic_load_n(a + 3, __ATOMIC_RELAXED) };
}
DEV u32 load_acquire_u32(const void *p, EMU_AT)
{
    emu_rt->poll("load_acquire_u32", EMU_SITE);
    return __atomic_load_n(emu_aligned<const u32>(p, "load_acquire_u32", EMU_SITE), __ATOMIC_ACQUIRE);
}
#define EMU_STORE_ORDERED(name, T, order)                                  \
    DEV void name(void *p, u32 v, EMU_AT)                                  \
    {                                                                      \
        emu_rt->maybe_yield(#name, EMU_SITE);                              \
        __atomic_store_n(emu_aligned<T>(p, #name, EMU_SITE), (T)v, order); \
    }
EMU_STORE_ORDERED(store_relaxed_u16, u16, __ATOMIC_RELAXED)
EMU_STORE_ORDERED(store_relaxed_u32, u32, __ATOMIC_RELAXED)
EMU_STORE_ORDERED(store_release_u32, u32, __ATOMIC_RELEASE)
/* 8 and 16 bytes are not one atomic access on the device either */
DEV void store_relaxed_u32x2(void *p, uint2 v, EMU_AT)
{
    u32 *a = (u32 *)emu_aligned<uint2>(p, "store_relaxed_u32x2", EMU_SITE);
    const u32 w[2] = { v.x, v.y };
    for (int i = 0; i < 2; i++) {
        emu_rt->maybe_yield("store_relaxed_u32x2", EMU_SITE);
        __atomic_store_n(a + i, w[i], __ATOMIC_RELAXED);
    }
}
DEV void store_relaxed_u32x4(void *p, uint4 v, EMU_AT)
{
    u32 *a = (u32 *)emu_aligned<uint4>(p, "store_relaxed_u32x4", EMU_SITE);
    const u32 w[4] = { v.x, v.y, v.z, v.w };
    for (int i = 0; i < 4; i++) {
        emu_rt->maybe_yield("store_relaxed_u32x4", EMU_SITE);
        __atomic_store_n(a + i, w[i], __ATOMIC_RELAXED);
    }
}
DEV u32 atomic_inc_relaxed(u32 *p, u32 last, EMU_AT) { return atomicInc(p, last, file_, line_); }
DEV u32 atomic_inc_acq_rel(u32 *p, u32 last, EMU_AT)
{
    EMU_RELEASE(p);
    EMU_FENCE();
    const u32 r = atomicInc(p, last, file_, line_);
    EMU_ACQUIRE(p);
    return r;
}

/* ---- tensor maps: where the elements of a box lie; shared by loads and stores ---- */
typedef struct { u64 opaque[16]; } tensor_map;  /* not aligned to 64 bytes: AArch64 passes no argument so */
static_assert(sizeof(emu_tensor_map) <= sizeof(tensor_map), "an emulated tensor map is a CUtensorMap's size");
struct emu_box { emu_tensor_map map; unsigned char *window; u32 shared; int at[5]; };
/* what a copy engine does: no thread's access */
EMU_QUIET static inline void emu_move(void *to, const void *from, u32 bytes)
{
#ifdef EMU_TSAN
    for (u32 i = 0; i < bytes; i++) ((volatile u8 *)to)[i] = ((const u8 *)from)[i];
#else
    __builtin_memcpy(to, from, bytes);
#endif
}
EMU_QUIET static inline u32 emu_box_bytes(const emu_tensor_map &m)
{
    u32 n = m.element_bytes;
    for (int i = 0; i < m.rank; i++) n *= m.box[i];
    return n;
}
/* The copy engine's work. The swizzle exchanges 16-byte units within 8 rows, by address bits. */
template <bool STORE> EMU_QUIET void emu_box_run(const emu_box &b)
{
    const emu_tensor_map &m = b.map;
    u32 index[5] = {}, a = b.shared;
    const u32 total = emu_box_bytes(m) / m.element_bytes;
    for (u32 n = 0; n < total; n++, a += m.element_bytes) {
        bool inside = true;
        unsigned char *element = m.base;
        for (int i = 0; i < m.rank; i++) {
            const long long c = (long long)b.at[i] + index[i];
            inside = inside && c >= 0 && c < (long long)m.dim[i];
            element += c * (long long)(i ? m.stride[i - 1] : m.element_bytes);
        }
        /* 1, 3 or 7: which address bits are exchanged */
        const u32 units = m.swizzle ? m.swizzle / 16 - 1 : 0;
        unsigned char *shared = b.window + (a ^ (a >> 3 & units << 4));
        if (STORE) {
            if (inside) EMU_AT_ONCE(element, m.element_bytes), emu_move(element, shared, m.element_bytes);
        } else if (inside) {
            emu_move(shared, element, m.element_bytes);
        } else {
            const u64 fill = m.nan_fill ? ~0ull : 0;
            emu_move(shared, &fill, m.element_bytes);
        }
        for (int i = 0; i < m.rank && ++index[i] == m.box[i]; i++) index[i] = 0;
    }
}
static inline emu_box emu_make_box(const tensor_map *map, int rank, const int *at, u32 shared,
                                   const char *what, emu_site site)
{
    emu_box b = {};
    __builtin_memcpy(&b.map, map, sizeof b.map);
    if (b.map.magic != EMU_TENSOR_MAGIC || b.map.rank != rank)
        emu_rt->fault(site, "%s: not a tensor map of %d dimensions", what, rank);
    b.window = emu_self()->window;
    b.shared = shared;
    for (int i = 0; i < rank; i++) b.at[i] = at[i];
    emu_shared<uint4, true>(shared, what, site, emu_box_bytes(b.map));
    const u32 align = b.map.swizzle ? b.map.swizzle * 8u : 128u;
    if (shared % align)
        emu_rt->fault(site, "%s: shared address 0x%x is not aligned to %u bytes", what, shared, align);
    return b;
}

/* ---- copies a thread waits for: cp.async and bulk or tensor stores ---- They happen when their thread
 * waits for them, no earlier: reading without the wait finds poison, and shared memory that is overwritten
 * too early shows in what was stored. The list is one heap block, which the driver frees after a fault. */
enum { EMU_CP_ASYNC, EMU_BULK_STORE };
struct emu_copy { void *to; const void *from; u32 bytes, zeros, group; u8 kind, is_box; emu_box box; };
struct emu_copies { u32 n, capacity, group[2]; emu_copy item[1]; };
static inline emu_copy &emu_queue(u8 kind)
{
    emu_copies *c = (emu_copies *)emu_self()->copies;
    if (!c || c->n == c->capacity) {
        const u32 capacity = c ? c->capacity * 2 : 8;
        const bool is_new = !c;
        c = (emu_copies *)__builtin_realloc(c, sizeof *c + capacity * sizeof(emu_copy));
        if (is_new) __builtin_memset(c, 0, sizeof *c);
        c->capacity = capacity;
        emu_self()->copies = c;
    }
    emu_copy &k = c->item[c->n++];
    k = {};
    k.kind = kind;
    k.group = c->group[kind];
    return k;
}
static inline void emu_commit(u8 kind)
{
    emu_copies *c = (emu_copies *)emu_self()->copies;
    if (c) c->group[kind]++;
}
static inline void emu_run_copies(u8 kind, u32 keep)        /* all but the newest `keep` groups */
{
    emu_copies *c = (emu_copies *)emu_self()->copies;
    if (!c) return;
    u32 left = 0;
    for (u32 i = 0; i < c->n; i++) {
        const emu_copy k = c->item[i];
        if (k.kind != kind || k.group + keep >= c->group[kind]) {
            c->item[left++] = k;
        } else if (k.is_box) {
            emu_box_run<true>(k.box);
        } else {
            EMU_AT_ONCE(k.to, k.bytes);
            __builtin_memcpy(k.to, k.from, k.bytes);
            __builtin_memset((char *)k.to + k.bytes, 0, k.zeros);
        }
    }
    c->n = left;
}
static inline void emu_finish_copies()                      /* at the end of a thread */
{
    emu_copies *c = (emu_copies *)emu_self()->copies;
    if (!c) return;
    u32 count[2] = {};
    for (u32 i = 0; i < c->n; i++) count[c->item[i].kind]++;
    __builtin_free(c);
    emu_self()->copies = nullptr;
    if (count[0] || count[1])
        emu_rt->fault({ "end of the kernel", 0 },
                      "a thread ends without waiting for its %u bulk stores and %u asynchronous copies",
                      count[EMU_BULK_STORE], count[EMU_CP_ASYNC]);
}

template <class T>
static inline void emu_copy_async(u32 to, const void *from, u32 bytes, const char *what, emu_site site)
{
    T *const t = emu_shared<T>(to, what, site), *const f = emu_aligned<T>(from, what, site);
    if (bytes > sizeof(T)) emu_rt->fault(site, "%s: %u bytes", what, bytes);
    if (bytes) {                                            /* ASan speaks up here, at the kernel's line */
        (void)*(volatile const char *)from;
        (void)((volatile const char *)from)[bytes - 1];
    }
    emu_copy &k = emu_queue(EMU_CP_ASYNC);
    k.to = t;
    k.from = f;
    k.bytes = bytes;
    k.zeros = (u32)sizeof(T) - bytes;
}
DEV void copy_async_4(u32 to, const void *from, EMU_AT)
{
    emu_copy_async<u32>(to, from, 4, "copy_async_4", EMU_SITE);
}
DEV void copy_async_8(u32 to, const void *from, EMU_AT)
{
    emu_copy_async<uint2>(to, from, 8, "copy_async_8", EMU_SITE);
}
DEV void copy_async_16(u32 to, const void *from, EMU_AT)
{
    emu_copy_async<uint4>(to, from, 16, "copy_async_16", EMU_SITE);
}
DEV void copy_async_zfill_16(u32 to, const void *from, u32 bytes, EMU_AT)
{
    emu_copy_async<uint4>(to, from, bytes, "copy_async_zfill_16", EMU_SITE);
}
DEV void copy_async_commit(void) { emu_commit(EMU_CP_ASYNC); }
template <int N> DEV void copy_async_wait(void) { emu_run_copies(EMU_CP_ASYNC, N); }

/* ---- named barriers, programmatic launch ---- */
template <int ID> DEV void barrier_sync(u32 threads, EMU_AT)
{
    emu_rt->barrier(ID, threads, 1, 0, "barrier_sync", EMU_SITE);
}
template <int ID> DEV void barrier_arrive(u32 threads, EMU_AT)
{
    emu_rt->barrier(ID, threads, 0, 0, "barrier_arrive", EMU_SITE);
}
DEV void pdl_wait(void) { emu_rt->pdl_wait(); }
DEV void pdl_wait_unless_constant(bool is_constant) { is_constant ? emu_rt->pdl_reads_constants() : emu_rt->pdl_wait(); }
DEV void pdl_trigger(void) { }

/* ---- pairs of 16-bit values ---- */
DEV float emu_f16_value_branching(u32 code)     /* of 16 bits; every NaN is quiet and positive */
{
    const u32 sign = code >> 15 & 1, e = code >> 10 & 31, mantissa = code & 1023;
    if (e == 31 && mantissa) return __uint_as_float(0x7fffffff);
    const double a = e == 31 ? __builtin_inf()
                     : e     ? __builtin_ldexp(1024 + mantissa, (int)e - 25)
                             : __builtin_ldexp(mantissa, -24);
    return (float)(sign ? -a : a);
}
DEV float emu_f16_value(u32 code) { return EMU_INSTRUCTION(emu_f16_value_branching, code); }
DEV float emu_bf16_value(u32 code) { return __uint_as_float(code << 16); }
/* A double to a format of `bits` mantissa bits; rint is to nearest even, trunc toward zero. */
DEV u32 emu_round_branching(double x, int bits, int bias, double (*whole)(double))
{
    const u32 sign = __builtin_signbit(x) ? 0x8000 : 0, infinite = (u32)(2 * bias + 1) << bits;
    if (x != x) return 0x7fff;
    const double a = __builtin_fabs(x);
    if (a == __builtin_inf()) return sign | infinite;
    int e = a > 0 ? __builtin_ilogb(a) : 1 - bias;
    if (e < 1 - bias) e = 1 - bias;
    const double q = whole(__builtin_ldexp(a, bits - e));
    const double code = q + __builtin_ldexp((double)(e + bias - 1), bits);
    return sign | (code < infinite ? (u32)code : infinite);
}
DEV u32 emu_round(double x, int bits, int bias, double (*whole)(double))
{
    return EMU_INSTRUCTION(emu_round_branching, x, bits, bias, whole);
}
DEV double emu_rint(double x) { return __builtin_rint(x); }
DEV double emu_trunc(double x) { return __builtin_trunc(x); }
DEV u32 emu_max_abs_branching(u32 m, u32 x, u32 infinite) /* of 16 bits */
{
    x &= 0x7fff;
    const bool m_is_nan = (m & 0x7fff) > infinite, x_is_nan = x > infinite;
    if (m_is_nan) return x_is_nan ? 0x7fff : x;
    return x_is_nan || m >> 15 ? (x_is_nan ? m : x) : m > x ? m : x;
}
DEV u32 emu_max_abs(u32 m, u32 x, u32 infinite)
{
    return EMU_INSTRUCTION(emu_max_abs_branching, m, x, infinite);
}
DEV u32 max_abs_bf16x2(u32 m, u32 x)
{
    return emu_max_abs(m & 0xffff, x & 0xffff, 0x7f80) | emu_max_abs(m >> 16, x >> 16, 0x7f80) << 16;
}
DEV u32 max_magnitude_bf16x2(u32 a, u32 b)
{
    return max_abs_bf16x2(a & 0x7fff7fff, b) | ((a ^ b) & 0x80008000);
}
DEV u32 max_abs_f16x2(u32 m, u32 x)
{
    return emu_max_abs(m & 0xffff, x & 0xffff, 0x7c00) | emu_max_abs(m >> 16, x >> 16, 0x7c00) << 16;
}
/* Products of either format are exact in double. The sum may not be, so it is made odd where it is not: then
 * the second rounding sees on which side of a tie the exact sum is. */
DEV double emu_fma_branching(double a, double b, double c)
{
    const double p = a * b, s = p + c;
    const double back = s - p, error = (p - (s - back)) + (c - back);
    if (!(error != 0.0) || s - s != 0.0) return s;
    const long long u = __double_as_longlong(s);
    return __longlong_as_double(u & 1 ? u : u + ((error > 0.0) == (s > 0.0) ? 1 : -1));
}
DEV double emu_fma(double a, double b, double c) { return EMU_INSTRUCTION(emu_fma_branching, a, b, c); }
DEV u32 fma_bf16x2(u32 a, u32 b, u32 c)
{
    u32 d = 0;
    for (int i = 0; i < 32; i += 16)
        d |= emu_round(emu_fma(emu_bf16_value(a >> i & 0xffff), emu_bf16_value(b >> i & 0xffff),
                               emu_bf16_value(c >> i & 0xffff)),
                       7, 127, emu_rint) << i;
    return d;
}
DEV u32 fma_f16x2(u32 a, u32 b, u32 c)
{
    u32 d = 0;
    for (int i = 0; i < 32; i += 16)
        d |= emu_round(emu_fma(emu_f16_value(a >> i), emu_f16_value(b >> i), emu_f16_value(c >> i)), 10, 15,
                       emu_rint) << i;
    return d;
}
#if __CUDA_ARCH__ >= 900
DEV u32 min_u16x2(u32 a, u32 b)
{
    return min(a & 0xffff, b & 0xffff) | min(a >> 16, b >> 16) << 16;
}
DEV u32 max_u16x2(u32 a, u32 b)
{
    return max(a & 0xffff, b & 0xffff) | max(a >> 16, b >> 16) << 16;
}
#endif

/* ---- conversions ---- */
DEV u32 emu_f16_rz_branching(float x)
{
    const u32 code = emu_round(x, 10, 15, emu_trunc);
    return (code & 0x7fff) == 0x7c00 && !__builtin_isinf(x) ? code - 1 : code;
}
DEV u32 emu_f16_rz(float x) { return EMU_INSTRUCTION(emu_f16_rz_branching, x); }
DEV u32 pack_f16_rz(float lo, float hi) { return emu_f16_rz(lo) | emu_f16_rz(hi) << 16; }
DEV float low_f16(u32 pair) { return emu_f16_value(pair & 0xffff); }
DEV float high_f16(u32 pair) { return emu_f16_value(pair >> 16); }
#if __CUDA_ARCH__ >= 890
DEV u32 emu_e4m3_to_f16_branching(u32 code)
{
    const u32 magnitude = code & 127, e = magnitude >> 3;
    if (magnitude == 127) return 0x7fff;
    const double a = __builtin_ldexp(e ? 8 + (magnitude & 7) : magnitude & 7, (e ? (int)e : 1) - 10);
    return emu_round(a, 10, 15, emu_rint) | (code & 128) << 8;
}
DEV u32 emu_e4m3_to_f16(u32 code) { return EMU_INSTRUCTION(emu_e4m3_to_f16_branching, code); }
DEV u32 widen_e4m3(u32 pair) { return emu_e4m3_to_f16(pair & 255) | emu_e4m3_to_f16(pair >> 8 & 255) << 16; }
DEV u32 widen_e4m3_high(u32 codes) { return widen_e4m3(codes >> 16); }
#endif
DEV u32 emu_bf16(float x)
{
    const u32 b = __float_as_uint(x);
    return x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
DEV u32 pack_bf16(float lo, float hi) { return emu_bf16(lo) | emu_bf16(hi) << 16; }
DEV u32 emu_f16_branching(float x)
{
    const u32 sign = __float_as_uint(x) >> 31 << 15;
    if (x != x) return 0x7fff;
    const double a = __builtin_fabs((double)x);
    if (a >= 65520) return sign | 0x7c00;
    int e = a > 0 ? __builtin_ilogb(a) : -14;
    if (e < -14) e = -14;
    return sign | (u32)(__builtin_rint(__builtin_ldexp(a, 10 - e)) + (e + 14) * 1024.0);
}
DEV u32 emu_f16(float x) { return EMU_INSTRUCTION(emu_f16_branching, x); }
DEV u32 pack_f16(float lo, float hi) { return emu_f16(lo) | emu_f16(hi) << 16; }
DEV float2 unpack_f16(u32 pair) { return { emu_f16_value(pair & 0xffff), emu_f16_value(pair >> 16) }; }
#if __CUDA_ARCH__ >= 890
DEV u32 emu_fp8_branching(float x, int mantissa, int bias, u32 largest, u32 nan)  /* nearest even, saturating */
{
    const u32 sign = __float_as_uint(x) >> 31 << 7;
    if (x != x) return nan;                                 /* the device's NaN has no sign */
    const double a = __builtin_fabs((double)x);
    int e = a > 0 ? __builtin_ilogb(a) : -bias - 9;
    if (e < 1 - bias) e = 1 - bias;
    const double q = __builtin_rint(__builtin_ldexp(a, mantissa - e));          /* 0 .. 2 << mantissa */
    /* subnormal, normal and carry alike */
    const double code = q + __builtin_ldexp((double)(e + bias - 1), mantissa);
    return sign | (code > largest ? largest : (u32)code);
}
DEV u32 emu_fp8(float x, int mantissa, int bias, u32 largest, u32 nan)
{
    return EMU_INSTRUCTION(emu_fp8_branching, x, mantissa, bias, largest, nan);
}
DEV u32 pack_e4m3(float lo, float hi)
{
    return emu_fp8(lo, 3, 7, 0x7e, 0x7f) | emu_fp8(hi, 3, 7, 0x7e, 0x7f) << 8;
}
DEV u32 pack_e5m2(float lo, float hi)
{
    return emu_fp8(lo, 2, 15, 0x7b, 0x7f) | emu_fp8(hi, 2, 15, 0x7b, 0x7f) << 8;
}
DEV float emu_e4m3_value_branching(u32 code)
{
    const int e = (int)(code >> 3 & 15), m = (int)(code & 7);
    if (e == 15 && m == 7) return __uint_as_float(0x7fffffff);
    const double a = __builtin_ldexp(e ? m + 8 : m, (e ? e : 1) - 10);
    return (float)(code & 0x80 ? -a : a);
}
DEV float emu_e4m3_value(u32 code) { return EMU_INSTRUCTION(emu_e4m3_value_branching, code); }
DEV float2 unpack_e4m3(u32 pair) { return { emu_e4m3_value(pair & 0xff), emu_e4m3_value(pair >> 8 & 0xff) }; }
#endif

/* ---- MMA: products exact, summed in double with c, rounded once. The device's own order and truncation
 * differ in the last bits: bounds are tested here, not bits. ---- */
struct emu_mma { float *c; const u32 *a; u32 b[2]; };
static __forceinline__ float emu_mma_value(bool tf32, u32 v, int half)
{
    return __uint_as_float(tf32 ? v & 0xffffe000u : half ? v & 0xffff0000u : v << 16);
}
template <bool TF32> EMU_UNCHECKED void emu_mma_all(void **args, unsigned)
{
    constexpr int K = TF32 ? 8 : 16, HALVES = TF32 ? 1 : 2;
    float a[16][K], b[K][8];
    for (int l = 0; l < 32; l++) {
        const emu_mma &m = emu_arg<emu_mma>(args, (unsigned)l);
        for (int h = 0; h < HALVES; h++) {
            const int k = TF32 ? l % 4 : l % 4 * 2 + h;
            for (int r = 0; r < 4; r++)
                a[l / 4 + (r & 1) * 8][k + (r >> 1) * (K / 2)] = emu_mma_value(TF32, m.a[r], h);
            for (int r = 0; r < 2; r++)
                b[k + r * (K / 2)][l / 4] = emu_mma_value(TF32, m.b[r], h);
        }
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            float &c = emu_arg<emu_mma>(args, (unsigned)l).c[i];
            const int row = l / 4 + (i >> 1) * 8, column = l % 4 * 2 + (i & 1);
            double sum = c;
            for (int k = 0; k < K; k++) sum += (double)a[row][k] * b[k][column];
            c = (float)sum;
        }
}
DEV void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, EMU_AT)
{
    emu_mma m = { c, a, { b0, b1 } };
    emu_collective(FULL, emu_mma_all<false>, &m, "mma_bf16", EMU_SITE);
}
DEV void mma_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, EMU_AT)
{
    emu_mma m = { c, a, { b0, b1 } };
    emu_collective(FULL, emu_mma_all<true>, &m, "mma_tf32", EMU_SITE);
}

#if __CUDA_ARCH__ >= 900
/* ---- clusters ---- */
DEV u32 cluster_rank(void) { return emu_self()->rank; }
DEV u32 cluster_map(u32 a, u32 rank, EMU_AT)
{
    const emu_thread *t = emu_self();
    if (rank >= t->cluster_size)
        emu_rt->fault(EMU_SITE, "cluster_map: block %u of a cluster of %u", rank, t->cluster_size);
    return a % (u32)t->stride + rank * (u32)t->stride;
}
DEV u32 cluster_load_u32(u32 a, EMU_AT)
{
    return *emu_shared<const u32, true>(a, "cluster_load_u32", EMU_SITE);
}
DEV void cluster_arrive(EMU_AT)
{
    EMU_FENCE();
    emu_rt->cluster_arrive(1, EMU_SITE);
}
DEV void cluster_arrive_relaxed(EMU_AT) { emu_rt->cluster_arrive(0, EMU_SITE); }
DEV void cluster_wait(EMU_AT) { emu_rt->cluster_wait(EMU_SITE); }

/* ---- mbarriers ---- */
struct __align__(8) emu_mbar { long long tx : 22; u64 pending : 20, expected : 20, phase : 1, is_fresh : 1; };
static_assert(sizeof(emu_mbar) == 8, "an mbarrier is 8 bytes of shared memory");
EMU_QUIET static inline emu_mbar *emu_bar(u32 bar, const char *what, emu_site site)
{
    emu_mbar *b = emu_shared<emu_mbar, true>(bar, what, site);
    if (emu_bits<u64>(*b) == ~0ull)
        emu_rt->fault(site, "%s: the mbarrier at 0x%x was never initialised", what, bar);
    return b;
}
/* One that a copy counts on: the engine does not see what its thread has initialised before mbar_init_fence. */
EMU_QUIET static inline emu_mbar *emu_copy_bar(u32 bar, const char *what, emu_site site)
{
    emu_mbar *b = emu_bar(bar, what, site);
    if (b->is_fresh) emu_rt->fault(site, "%s: no mbar_init_fence since mbar_init of the mbarrier at 0x%x", what, bar);
    return b;
}
EMU_QUIET static inline void emu_bar_done(emu_mbar *b)
{
    EMU_RELEASE(b);
    if (b->pending == 0 && b->tx == 0) {
        b->phase ^= 1;
        b->pending = b->expected;
        emu_rt->wake(b);
    }
}
EMU_QUIET static inline void emu_bar_arrive(emu_mbar *b, const char *what, emu_site site)
{
    if (b->pending == 0)
        emu_rt->fault(site, "%s: more than %u arrivals in one phase", what, (unsigned)b->expected);
    b->pending--;
    EMU_MEETS();
    emu_bar_done(b);
}
EMU_QUIET DEV void mbar_init(u32 bar, u32 count, EMU_AT)
{
    emu_thread *t = emu_self();
    const bool is_kept = t->num_fresh < EMU_MAX_FRESH;          /* else it passes for a fenced one */
    *emu_shared<emu_mbar>(bar, "mbar_init", EMU_SITE) = { 0, count, count, 0, is_kept };
    if (is_kept) t->fresh[t->num_fresh++] = bar;
}
EMU_QUIET DEV void mbar_init_fence(EMU_AT)
{
    emu_thread *t = emu_self();
    while (t->num_fresh) emu_shared<emu_mbar>(t->fresh[--t->num_fresh], "mbar_init_fence", EMU_SITE)->is_fresh = 0;
}
DEV void mbar_arrive(u32 bar, EMU_AT)
{
    emu_bar_arrive(emu_bar(bar, "mbar_arrive", EMU_SITE), "mbar_arrive", EMU_SITE);
}
EMU_QUIET DEV void mbar_expect(u32 bar, u32 bytes, EMU_AT)
{
    emu_mbar *b = emu_bar(bar, "mbar_expect", EMU_SITE);
    if (b->tx + (long long)bytes >= 1 << 20)
        emu_rt->fault(EMU_SITE, "mbar_expect: more than 2^20 - 1 bytes under way");
    b->tx += bytes;
    emu_bar_arrive(b, "mbar_expect", EMU_SITE);
}
EMU_QUIET DEV void mbar_wait(u32 bar, u32 parity, EMU_AT)
{
    emu_mbar *b = emu_bar(bar, "mbar_wait", EMU_SITE);
    while ((b->phase & 1) == parity) emu_rt->wait(b, "mbar_wait", EMU_SITE);
    EMU_ACQUIRE(b);
}
DEV void mbar_wait_cluster(u32 bar, u32 parity, EMU_AT) { mbar_wait(bar, parity, file_, line_); }

/* ---- copies counted on an mbarrier: done at some later time ---- */
struct emu_remote_store { float4 *to; float4 v; emu_mbar *bar; };
EMU_QUIET static inline void emu_remote_store_run(void *p)
{
    emu_remote_store &s = *(emu_remote_store *)p;
    emu_move(s.to, &s.v, 16);
    s.bar->tx -= 16;
    emu_bar_done(s.bar);
}
DEV void cluster_store_async(u32 addr, float4 v, u32 bar, EMU_AT)
{
    const char *what = "cluster_store_async";
    if (!emu_self()->in_cluster)                /* an illegal instruction on a GPU */
        emu_rt->fault(EMU_SITE, "%s: the launch has no cluster", what);
    const emu_remote_store s = { emu_shared<float4, true>(addr, what, EMU_SITE), v,
                                 emu_copy_bar(bar, what, EMU_SITE) };
    emu_rt->later(emu_remote_store_run, &s, sizeof s);
}
struct emu_bulk { void *to; const void *from; u32 bytes; emu_mbar *bar; };
EMU_QUIET static inline void emu_bulk_run(void *p)
{
    emu_bulk &c = *(emu_bulk *)p;
    emu_move(c.to, c.from, c.bytes);
    c.bar->tx -= c.bytes;
    emu_bar_done(c.bar);
}
DEV void bulk_load(u32 to, const void *from, u32 bytes, u32 bar, EMU_AT)
{
    const char *what = "bulk_load";
    if (bytes % 16) emu_rt->fault(EMU_SITE, "bulk_load: %u bytes is not a multiple of 16", bytes);
    const emu_bulk c = { emu_shared<uint4, true>(to, what, EMU_SITE, bytes),
                         emu_aligned<uint4>(from, what, EMU_SITE), bytes, emu_copy_bar(bar, what, EMU_SITE) };
    emu_rt->later(emu_bulk_run, &c, sizeof c);
}
DEV void bulk_store(void *to, u32 from, u32 bytes, EMU_AT)
{
    if (bytes % 16) emu_rt->fault(EMU_SITE, "bulk_store: %u bytes is not a multiple of 16", bytes);
    const void *f = emu_shared<uint4>(from, "bulk_store", EMU_SITE, bytes);
    emu_copy &k = emu_queue(EMU_BULK_STORE);
    k.to = emu_aligned<uint4>(to, "bulk_store", EMU_SITE);
    k.from = f;
    k.bytes = bytes;
}
DEV void bulk_fence(void) { }
DEV void bulk_commit(void) { emu_commit(EMU_BULK_STORE); }
template <int N> DEV void bulk_wait(void) { emu_run_copies(EMU_BULK_STORE, N); }
template <int N> DEV void bulk_wait_read(void) { emu_run_copies(EMU_BULK_STORE, N); }

/* ---- tensor copies ---- */
struct emu_tensor_load { emu_box box; emu_mbar *bar; };
EMU_QUIET static inline void emu_tensor_load_run(void *p)
{
    emu_tensor_load &t = *(emu_tensor_load *)p;
    emu_box_run<false>(t.box);
    t.bar->tx -= emu_box_bytes(t.box.map);
    emu_bar_done(t.bar);
}
DEV void tensor_prefetch(const tensor_map *map, EMU_AT)
{
    if (map->opaque[0] != EMU_TENSOR_MAGIC) emu_rt->fault(EMU_SITE, "tensor_prefetch: not a tensor map");
}
static inline void emu_load_box(const emu_box &box, u32 bar, u64 policy, const char *what, emu_site site)
{
    emu_policy(policy, what, site);
    const emu_tensor_load t = { box, emu_copy_bar(bar, what, site) };
    emu_rt->later(emu_tensor_load_run, &t, sizeof t);
}
DEV void tensor_load_2d(u32 to, const tensor_map *map, int c0, int c1, u32 bar, u64 policy, EMU_AT)
{
    const int at[] = { c0, c1 };
    emu_load_box(emu_make_box(map, 2, at, to, "tensor_load_2d", EMU_SITE), bar, policy, "tensor_load_2d",
                 EMU_SITE);
}
DEV void tensor_load_3d(u32 to, const tensor_map *map, int c0, int c1, int c2, u32 bar, u64 policy, EMU_AT)
{
    const int at[] = { c0, c1, c2 };
    emu_load_box(emu_make_box(map, 3, at, to, "tensor_load_3d", EMU_SITE), bar, policy, "tensor_load_3d",
                 EMU_SITE);
}
DEV void tensor_load_4d(u32 to, const tensor_map *map, int c0, int c1, int c2, int c3, u32 bar, u64 policy, EMU_AT)
{
    const int at[] = { c0, c1, c2, c3 };
    emu_load_box(emu_make_box(map, 4, at, to, "tensor_load_4d", EMU_SITE), bar, policy, "tensor_load_4d",
                 EMU_SITE);
}
static inline void emu_store_box(const emu_box &box)
{
    emu_copy &k = emu_queue(EMU_BULK_STORE);
    k.is_box = 1;
    k.box = box;
}
DEV void tensor_store_2d(const tensor_map *map, int c0, int c1, u32 from, EMU_AT)
{
    const int at[] = { c0, c1 };
    emu_store_box(emu_make_box(map, 2, at, from, "tensor_store_2d", EMU_SITE));
}
DEV void tensor_store_3d(const tensor_map *map, int c0, int c1, int c2, u32 from, EMU_AT)
{
    const int at[] = { c0, c1, c2 };
    emu_store_box(emu_make_box(map, 3, at, from, "tensor_store_3d", EMU_SITE));
}
template <int N> DEV void registers_up(void)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg");
}
template <int N> DEV void registers_down(void)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "setmaxnreg");
}
#endif

#endif
