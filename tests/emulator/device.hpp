/* SPDX-License-Identifier: MIT
 * device.hpp - CUDA's built-ins for a host C++ compiler; the emulated NVRTC puts it before every kernel.
 *
 * No system header is included: it would cost compile time and bring names a kernel may use itself.
 * Whatever waits takes the place it was called from (file, line) as default arguments, for reports. Only
 * what our kernels may use is here; the rest fails to compile. */
#pragma once
#include "emulator.h"

#define __CUDACC__ 1
#define __CUDACC_RTC__ 1

typedef __SIZE_TYPE__ size_t;
extern "C" { __attribute__((visibility("hidden"))) inline const emu_runtime *emu_rt; }
extern "C" int printf(const char *, ...) __attribute__((format(printf, 1, 2)));
extern "C" void *memcpy(void *, const void *, size_t) noexcept;
extern "C" void *memset(void *, int, size_t) noexcept;

#define EMU_AT const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
#define EMU_SITE emu_site{ file_, line_ }
#ifdef EMU_TSAN                                 /* the emulator's own accesses are none of the kernel's */
#define EMU_QUIET __attribute__((no_sanitize("thread"), noinline))
#elif defined EMU_WEAK
#define EMU_QUIET __attribute__((no_sanitize("thread"), noinline))
#else
#define EMU_QUIET
#endif
/* Memory of the emulator alone, which no kernel can lead astray: a function with loops over lanes takes several times as long
 * with ASan's and UBSan's checks. */
#define EMU_UNCHECKED EMU_QUIET __attribute__((no_sanitize("address", "undefined")))
#ifdef EMU_WEAK                                 /* an access that does not pass for a plain store */
#define EMU_UNSEEN EMU_QUIET
#define EMU_AT_ONCE(p, bytes) emu_rt->at_once(p, bytes)
#define EMU_FENCE() emu_rt->fence()
#define EMU_MEETS() emu_rt->meets()
#else
#define EMU_UNSEEN
#define EMU_AT_ONCE(p, bytes) (void)(p)
#define EMU_FENCE() (void)0
#define EMU_MEETS() (void)0
#endif

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...) static_assert(false, "cluster sizes are attributes of the launch");
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ \
    static_assert(false, "declare shared memory with SHARED or SHARED_DYNAMIC (device/ptx.cuh)");
#ifndef __clang__
#define __builtin_assume(condition) ((void)0)
#endif

#define threadIdx (emu_self()->thread)
#define blockIdx (emu_self()->block)
#define blockDim (emu_self()->block_dim)
#define gridDim (emu_self()->grid_dim)
#define warpSize 32

/* What is one instruction on a device, and a function with branches here. The branches are not the kernel's, so
 * under MSan what nothing has written goes through: into the result, as through any arithmetic. */
#ifdef EMU_MSAN
extern "C" void __msan_poison(const volatile void *, size_t);
/* Where a caller leaves its arguments' shadow, each at a multiple of 8 bytes. Asking MSan's run time instead, with
 * __msan_test_shadow(), took half of the time of all kernels: it looks an address up in a table of ranges. */
extern "C" __thread unsigned long long __msan_param_tls[100] __attribute__((tls_model("initial-exec")));
#define EMU_NO_SHADOW __attribute__((no_sanitize("memory"), noinline))
template <class... A> EMU_NO_SHADOW bool emu_is_unwritten(A...)
{
    const unsigned long long *shadow = __msan_param_tls;
    return ((*shadow++ << (64 - 8 * sizeof(A)) != 0) || ...);
}
template <class R, class... A> EMU_NO_SHADOW R emu_written(R (*f)(A...), A... a) { return f(a...); }
template <class R, class... A, class... B> static inline R emu_instruction(R (*f)(A...), B... given)
{
    return [f](A... a) {
        R r = emu_written(f, a...);
        if (emu_is_unwritten(a...)) __msan_poison(&r, sizeof r);
        return r;
    }(given...);
}
#define EMU_INSTRUCTION(f, ...) emu_instruction(f, __VA_ARGS__)
#else
#define EMU_INSTRUCTION(f, ...) f(__VA_ARGS__)
#endif

/* ---- vector types: aligned as on the device, so that UBSan sees a misaligned access ---- */
#define EMU_VEC(T, N, A1, A2, A4)                                         \
    struct __align__(A1) N##1 { T x; };                                   \
    struct __align__(A2) N##2 { T x, y; };                                \
    struct N##3 { T x, y, z; };                                           \
    struct __align__(A4) N##4 { T x, y, z, w; };                          \
    static inline N##1 make_##N##1(T x) { return { x }; }                 \
    static inline N##2 make_##N##2(T x, T y) { return { x, y }; }         \
    static inline N##3 make_##N##3(T x, T y, T z) { return { x, y, z }; } \
    static inline N##4 make_##N##4(T x, T y, T z, T w) { return { x, y, z, w }; }
EMU_VEC(signed char, char, 1, 2, 4)
EMU_VEC(unsigned char, uchar, 1, 2, 4)
EMU_VEC(short, short, 2, 4, 8)
EMU_VEC(unsigned short, ushort, 2, 4, 8)
EMU_VEC(int, int, 4, 8, 16)
EMU_VEC(unsigned, uint, 4, 8, 16)
EMU_VEC(float, float, 4, 8, 16)
EMU_VEC(long long, longlong, 8, 16, 16)
EMU_VEC(unsigned long long, ulonglong, 8, 16, 16)
EMU_VEC(double, double, 8, 16, 16)

/* ---- bits ---- */
template <class D, class S> static inline D emu_bits(S s)
{
    static_assert(sizeof(D) == sizeof(S));
    const union { S from; D to; } u = { s };    /* a copy of memory would be a call under MSan */
    return u.to;
}
/* what shuffles and matches take, 4 or 8 bytes, as 8; and back */
template <class T> static inline unsigned long long emu_widen(T v)
{
    static_assert(sizeof v == 4 || sizeof v == 8, "shuffles and matches take 4 or 8 bytes");
    if constexpr (sizeof v == 4) return emu_bits<unsigned>(v);
    else return emu_bits<unsigned long long>(v);
}
template <class T> static inline T emu_narrow(unsigned long long v)
{
    if constexpr (sizeof(T) == 4) return emu_bits<T>((unsigned)v);
    else return emu_bits<T>(v);
}
static inline int __float_as_int(float x) { return emu_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return emu_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emu_bits<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s)
{
    s &= 31;
    return s ? hi << s | lo >> (32 - s) : hi;
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s)
{
    s &= 31;
    return s ? lo >> s | hi << (32 - s) : lo;
}
/* prmt without its sign mode: CUDA's function ignores bit 3 of a selector (seen on an H200) */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s)
{
    const unsigned long long v = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned byte = (unsigned)(v >> 8 * (s >> 4 * i & 7)) & 255;
        r |= byte << 8 * i;
    }
    return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* ---- numbers; the kernel is compiled with -ffp-contract=off: a * b + c stays two roundings ---- */
#define EMU_MINMAX(T)                                       \
    static inline T max(T a, T b) { return a > b ? a : b; } \
    static inline T min(T a, T b) { return a < b ? a : b; }
EMU_MINMAX(int)
EMU_MINMAX(unsigned)
EMU_MINMAX(long)
EMU_MINMAX(unsigned long)
EMU_MINMAX(long long)
EMU_MINMAX(unsigned long long)
#define EMU_F1(f) static inline float f(float x) { return __builtin_##f(x); }
#define EMU_F2(f) static inline float f(float x, float y) { return __builtin_##f(x, y); }
#define EMU_F3(f) static inline float f(float x, float y, float z) { return __builtin_##f(x, y, z); }
EMU_F1(expf)
EMU_F1(exp2f) EMU_F1(expm1f) EMU_F1(logf) EMU_F1(log2f) EMU_F1(log1pf) EMU_F1(sqrtf) EMU_F1(tanhf)
    EMU_F1(fabsf) EMU_F1(floorf) EMU_F1(ceilf) EMU_F1(truncf) EMU_F1(rintf) EMU_F1(roundf) EMU_F1(erff)
        EMU_F1(sinf) EMU_F1(cosf) EMU_F2(powf) EMU_F2(fmodf) EMU_F2(copysignf)
            EMU_F3(fmaf) static inline float ldexpf(float x, int e)
{
    return __builtin_ldexpf(x, e);
}
/* a NaN is ignored, a signalling one too, which C's functions return */
static inline float fmaxf(float a, float b) { return a != a ? b : b != b ? a : __builtin_fmaxf(a, b); }
static inline float fminf(float a, float b) { return a != a ? b : b != b ? a : __builtin_fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline int abs(int x) { return x < 0 ? -x : x; }
static inline float rsqrtf(float x) { return (float)(1.0 / __builtin_sqrt((double)x)); }
static inline bool isnan(float x) { return x != x; }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isfinite(float x) { return __builtin_isfinite(x); }
static inline bool signbit(float x) { return __builtin_signbit(x); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float __fmaf_rd(float a, float b, float c)
{
    /* the sum in double, and what it lost, exactly (Knuth's two-sum): is the nearest float above them? */
    const double product = (double)a * b, sum = product + c, of_c = sum - product;
    const double lost = (product - (sum - of_c)) + (c - of_c);
    const float nearest = __builtin_fmaf(a, b, c);
    const bool is_above = nearest > sum || (nearest == sum && lost < 0);
    return is_above ? __builtin_nextafterf(nearest, -__builtin_inff()) : nearest;
}
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
static inline float __frsqrt_rn(float a) { return (float)(1.0 / __builtin_sqrt((double)a)); }
static inline int __float2int_rz(float x)       /* the device saturates and makes NaN 0 */
{
    if (x != x) return 0;
    return x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : (int)x;
}
static inline int __float2int_rn(float x) { return __float2int_rz(__builtin_rintf(x)); }
static inline unsigned __float2uint_rz(float x)
{
    if (!(x > 0.0f)) return 0;
    return x >= 4294967296.0f ? 4294967295u : (unsigned)x;
}
static inline unsigned __float2uint_rn(float x) { return __float2uint_rz(__builtin_rintf(x)); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }

/* An approximation is the exact value, off by up to its documented error if there is a seed: the same for
 * the same input, as on a device. */
static inline float emu_ftz(float x)
{
    return __builtin_fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.0f, x) : x;
}
static inline float emu_off_branching(double exact, double relative, float input, double absolute)
{
    if (emu_rt->seed && exact == exact && __builtin_fabs(exact) < 1e38 && exact != 0.0) {
        const unsigned long long h =
            (__float_as_uint(input) + emu_rt->seed * 0x9e3779b97f4a7c15ull) * 0xd1b54a32d192ed03ull;
        const double d = (double)(long long)(h ^ h >> 29) / 9223372036854775808.0;     /* -1 .. 1 */
        const double e = relative * __builtin_fabs(exact);
        exact += d * (e > absolute ? e : absolute);
    }
    return (float)exact;
}
static inline float emu_off(double exact, double relative, float input, double absolute = 0.0)
{
    return EMU_INSTRUCTION(emu_off_branching, exact, relative, input, absolute);
}
static inline float __expf(float x)
{
    return emu_off(__builtin_exp((double)x), 0x1p-21 + __builtin_fabs((double)x) * 0x1p-23, x);
}
static inline float __logf(float x) { return emu_off(__builtin_log((double)x), 0x1p-21, x, 0x1p-21); }
static inline float __log2f(float x) { return emu_off(__builtin_log2((double)x), 0x1p-22, x, 0x1p-22); }
static inline float __fdividef(float a, float b)
{
    if (__builtin_fabsf(b) > 0x1p126f) return __builtin_isinf(a) ? __builtin_nanf("") : 0.0f;
    return emu_off((double)a / b, 0x1p-22, b);
}

/* ---- memory ---- */
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence()
{
    EMU_FENCE();
    __threadfence_block();
}
static inline void __threadfence_system() { __threadfence(); }
static inline long long clock64()
{
    static long long t;
    return t += 100;
}
static inline void __nanosleep(unsigned, EMU_AT) { emu_rt->poll("__nanosleep", EMU_SITE); }
static inline void __trap(EMU_AT) { emu_rt->fault(EMU_SITE, "__trap"); }

template <class T> struct emu_same { typedef T type; };
#ifdef EMU_WEAK
/* Where the result is not used this is a reduction, which reaches other blocks late (weak.c). */
template <class T, T (*NOW)(T *, T)> struct emu_atomic {
    T *p, v;
    bool is_done = false;
    emu_atomic(T *to, T value) : p(to), v(value) { }
    EMU_QUIET static void apply(void *to, const void *operand) { NOW((T *)to, *(const T *)operand); }
    operator T()
    {
        is_done = true;
        emu_rt->at_once(p, sizeof v);
        return NOW(p, v);
    }
    ~emu_atomic()
    {
        if (!is_done) emu_rt->reduce(p, sizeof v, apply, &v);
    }
};
#define EMU_ATOMIC_RESULT(T, name, p, v) emu_atomic<T, name##_now<T>>(p, v)
#define EMU_ATOMIC_TYPE(T, name) emu_atomic<T, name##_now<T>>
#else
#define EMU_ATOMIC_RESULT(T, name, p, v) name##_now<T>(p, v)
#define EMU_ATOMIC_TYPE(T, name) T
#endif
#define EMU_ATOMIC(name, expr)                                                                        \
    template <class T> EMU_UNSEEN inline T name##_now(T *p, T v)                                      \
    {                                                                                                 \
        T old, now;                                                                                   \
        __atomic_load(p, &old, __ATOMIC_RELAXED);                                                     \
        do now = (expr);                                                                              \
        while (!__atomic_compare_exchange(p, &old, &now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
        return old;                                                                                   \
    }                                                                                                 \
    template <class T>                                                                                \
    static inline EMU_ATOMIC_TYPE(T, name) name(T *p, typename emu_same<T>::type v, EMU_AT)           \
    {                                                                                                 \
        emu_rt->maybe_yield(#name, EMU_SITE);                                                         \
        return EMU_ATOMIC_RESULT(T, name, p, v);                                                      \
    }
EMU_ATOMIC(atomicAdd, (T)(old + v))
EMU_ATOMIC(atomicSub, (T)(old - v))
EMU_ATOMIC(atomicMax, old > v ? old : v)
EMU_ATOMIC(atomicMin, old < v ? old : v)
EMU_ATOMIC(atomicOr, old | v)
EMU_ATOMIC(atomicAnd, old & v)
EMU_ATOMIC(atomicXor, old ^ v)
EMU_ATOMIC(atomicExch, v)
EMU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > v ? v : old - 1)
template <class T>
EMU_UNSEEN static inline T atomicCAS(T *p, typename emu_same<T>::type compare,
                                     typename emu_same<T>::type value, EMU_AT)
{
    emu_rt->maybe_yield("atomicCAS", EMU_SITE);
    EMU_AT_ONCE(p, sizeof *p);
    T want = compare, now = value;
    __atomic_compare_exchange(p, &want, &now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return want;
}

/* ---- barriers ---- */
static inline void __syncthreads(EMU_AT) { emu_rt->barrier(0, 0, 1, 0, "__syncthreads", EMU_SITE); }
static inline int __syncthreads_count(int p, EMU_AT)
{
    return (int)emu_rt->barrier(0, 0, 1, p, "__syncthreads_count", EMU_SITE);
}
static inline int __syncthreads_or(int p, EMU_AT)
{
    return emu_rt->barrier(0, 0, 1, p, "__syncthreads_or", EMU_SITE) != 0;
}
static inline int __syncthreads_and(int p, EMU_AT)
{
    return emu_rt->barrier(0, 0, 1, !p, "__syncthreads_and", EMU_SITE) == 0;
}
static inline void __syncwarp(unsigned mask = ~0u, EMU_AT)
{
    emu_rt->collective(mask, nullptr, nullptr, "__syncwarp", EMU_SITE);
}
#define __activemask() static_assert(false, "__activemask: no thread set is guaranteed; name the lanes")

/* ---- warp collectives: the last lane to come computes for all ---- */
#define EMU_LANES(l, mask) \
    for (unsigned m_ = (mask), l; m_ && (l = (unsigned)__builtin_ctz(m_), true); m_ &= m_ - 1)
template <class A>
static inline void emu_collective(unsigned mask, void (*complete)(void **, unsigned), A *arg,
                                  const char *what, emu_site site)
{
    emu_rt->collective(mask, complete, arg, what, site);
}
template <class A> static __forceinline__ A &emu_arg(void **args, unsigned lane) { return *(A *)args[lane]; }

enum emu_shuffle_kind { EMU_IDX, EMU_UP, EMU_DOWN, EMU_SWAP };
struct emu_shfl { unsigned long long value, out; int source; unsigned width, in_mask; };
template <emu_shuffle_kind KIND> EMU_UNCHECKED void emu_shfl_all(void **args, unsigned mask)
{
    EMU_LANES(l, mask) {
        emu_shfl &a = emu_arg<emu_shfl>(args, l);
        const int lane = (int)l, width = (int)a.width, first = lane & ~(width - 1), last = first + width - 1;
        int s = KIND == EMU_IDX ? first + (a.source & (width - 1))
              : KIND == EMU_UP ? lane - a.source
              : KIND == EMU_DOWN ? lane + a.source
                                 : lane ^ a.source;
        if (KIND == EMU_UP ? s < first : s > last) s = lane;
        a.in_mask = mask >> s & 1;
        a.out = a.in_mask ? emu_arg<emu_shfl>(args, (unsigned)s).value : 0xdeaddeaddeaddeadull;
    }
}
template <emu_shuffle_kind KIND, class T>
static inline T emu_shuffle(unsigned mask, T v, int source, int width, const char *what, emu_site site)
{
    if (width < 1 || width > 32 || (width & (width - 1)))
        emu_rt->fault(site, "%s: width %d is not a power of two", what, width);
    emu_shfl a = { emu_widen(v), 0, source, (unsigned)width, 0 };
    emu_collective(mask, emu_shfl_all<KIND>, &a, what, site);
    if (!a.in_mask) emu_rt->fault(site, "%s: reads a lane that the mask %08x does not name", what, mask);
    return emu_narrow<T>(a.out);
}
template <class T> static inline T __shfl_sync(unsigned m, T v, int s, int w = 32, EMU_AT)
{
    return emu_shuffle<EMU_IDX>(m, v, s, w, "__shfl_sync", EMU_SITE);
}
template <class T> static inline T __shfl_up_sync(unsigned m, T v, unsigned s, int w = 32, EMU_AT)
{
    return emu_shuffle<EMU_UP>(m, v, (int)s, w, "__shfl_up_sync", EMU_SITE);
}
template <class T> static inline T __shfl_down_sync(unsigned m, T v, unsigned s, int w = 32, EMU_AT)
{
    return emu_shuffle<EMU_DOWN>(m, v, (int)s, w, "__shfl_down_sync", EMU_SITE);
}
template <class T> static inline T __shfl_xor_sync(unsigned m, T v, int s, int w = 32, EMU_AT)
{
    return emu_shuffle<EMU_SWAP>(m, v, s, w, "__shfl_xor_sync", EMU_SITE);
}

struct emu_reduce { unsigned long long value, out; };
enum emu_reduce_op {
    EMU_BALLOT,
    EMU_MATCH_ANY,
    EMU_MATCH_ALL,
    EMU_ADD,
    EMU_MAX_U,
    EMU_MIN_U,
    EMU_MAX_S,
    EMU_MIN_S,
    EMU_AND,
    EMU_OR,
    EMU_XOR
};
template <emu_reduce_op OP> EMU_UNCHECKED void emu_reduce_all(void **args, unsigned mask)
{
    const unsigned head = (unsigned)__builtin_ctz(mask);
    const unsigned long long first = emu_arg<emu_reduce>(args, head).value;
    unsigned long long r = OP == EMU_BALLOT ? (first ? 1ull << head : 0) : OP == EMU_MATCH_ALL ? mask : first;
    EMU_LANES(l, mask & ~(1u << head)) {
        const unsigned long long v = emu_arg<emu_reduce>(args, l).value;
        if (OP == EMU_BALLOT) r |= v ? 1ull << l : 0;
        if (OP == EMU_MATCH_ALL && v != first) r = 0;
        if (OP == EMU_ADD) r += v;
        if (OP == EMU_MAX_U) r = v > r ? v : r;
        if (OP == EMU_MIN_U) r = v < r ? v : r;
        if (OP == EMU_MAX_S) r = (int)v > (int)r ? v : r;
        if (OP == EMU_MIN_S) r = (int)v < (int)r ? v : r;
        if (OP == EMU_AND) r &= v;
        if (OP == EMU_OR) r |= v;
        if (OP == EMU_XOR) r ^= v;
    }
    EMU_LANES(l, mask) {
        emu_reduce &a = emu_arg<emu_reduce>(args, l);
        if (OP == EMU_MATCH_ANY) {
            r = 0;
            EMU_LANES(k, mask) r |= emu_arg<emu_reduce>(args, k).value == a.value ? 1ull << k : 0;
        }
        a.out = r;
    }
}
template <emu_reduce_op OP>
static inline unsigned emu_reduction(unsigned mask, unsigned long long v, const char *what, emu_site site)
{
    emu_reduce a = { v, 0 };
    emu_collective(mask, emu_reduce_all<OP>, &a, what, site);
    return (unsigned)a.out;
}
#define EMU_VOTE(T, name, type, op, value, result)                       \
    static inline T name(unsigned m, type v, EMU_AT)                     \
    {                                                                    \
        const unsigned r = emu_reduction<op>(m, value, #name, EMU_SITE); \
        return result;                                                   \
    }
EMU_VOTE(unsigned, __ballot_sync, int, EMU_BALLOT, v != 0, r)
EMU_VOTE(int, __any_sync, int, EMU_BALLOT, v != 0, r != 0)
EMU_VOTE(int, __all_sync, int, EMU_BALLOT, v == 0, r == 0)
EMU_VOTE(unsigned, __reduce_add_sync, unsigned, EMU_ADD, v, r)
EMU_VOTE(unsigned, __reduce_max_sync, unsigned, EMU_MAX_U, v, r)
EMU_VOTE(unsigned, __reduce_min_sync, unsigned, EMU_MIN_U, v, r)
EMU_VOTE(int, __reduce_max_sync, int, EMU_MAX_S, (unsigned)v, (int)r)
EMU_VOTE(int, __reduce_min_sync, int, EMU_MIN_S, (unsigned)v, (int)r)
EMU_VOTE(unsigned, __reduce_and_sync, unsigned, EMU_AND, v, r)
EMU_VOTE(unsigned, __reduce_or_sync, unsigned, EMU_OR, v, r)
EMU_VOTE(unsigned, __reduce_xor_sync, unsigned, EMU_XOR, v, r)
template <class T> static inline unsigned __match_any_sync(unsigned m, T v, EMU_AT)
{
    return emu_reduction<EMU_MATCH_ANY>(m, emu_widen(v), "__match_any_sync", EMU_SITE);
}
template <class T> static inline unsigned __match_all_sync(unsigned m, T v, int *p, EMU_AT)
{
    const unsigned r = emu_reduction<EMU_MATCH_ALL>(m, emu_widen(v), "__match_all_sync", EMU_SITE);
    *p = r != 0;
    return r;
}

/* ---- weak memory: the calls with which -fsanitize=thread tells of accesses, without TSan's run time ---- */
#ifdef EMU_WEAK
#define EMU_HOOK extern "C" __attribute__((visibility("hidden"), used, noinline, no_sanitize("thread"))) inline
EMU_HOOK void __tsan_init() { }
EMU_HOOK void __tsan_func_entry(void *) { }
EMU_HOOK void __tsan_func_exit() { }
EMU_HOOK void __tsan_atomic_thread_fence(int) { }
EMU_HOOK void __tsan_vptr_update(void **, void *) { }
/* the stack is nobody else's */
#define EMU_TELL(p, n)                                                                                \
    if ((emu_u64)(p) - ((emu_u64)__builtin_frame_address(0) & ~(EMU_STACK - 1)) >= EMU_STACK) {       \
        EMU_EARLY(p);                                                                                 \
        emu_rt->store(p, n);                                                                          \
    }
#define EMU_EARLY(p) if (emu_rt->num_early) emu_rt->early((const void *)(p))
#define EMU_ACCESSES(n)                                                  \
    EMU_HOOK void __tsan_read##n(void *p) { EMU_EARLY(p); }              \
    EMU_HOOK void __tsan_unaligned_read##n(void *p) { EMU_EARLY(p); }    \
    EMU_HOOK void __tsan_volatile_read##n(void *p) { EMU_EARLY(p); }     \
    EMU_HOOK void __tsan_write##n(void *p) { EMU_TELL(p, n); }           \
    EMU_HOOK void __tsan_unaligned_write##n(void *p) { EMU_TELL(p, n); } \
    EMU_HOOK void __tsan_volatile_write##n(void *p) { EMU_TELL(p, n); }  \
    EMU_HOOK void __tsan_read_write##n(void *p) { EMU_TELL(p, n); }      \
    EMU_HOOK void __tsan_unaligned_read_write##n(void *p) { EMU_TELL(p, n); }
EMU_ACCESSES(1) EMU_ACCESSES(2) EMU_ACCESSES(4) EMU_ACCESSES(8) EMU_ACCESSES(16)
EMU_HOOK void __tsan_read_range(void *p, unsigned long) { EMU_EARLY(p); }
EMU_HOOK void __tsan_write_range(void *p, unsigned long n) { EMU_TELL(p, n); }
/* One OS thread runs all, so none of these needs an atomic instruction. clang tells of atomics in functions, too, of
 * which it is to tell nothing. */
#define EMU_ORDERED(bits, T)                                                                                  \
    EMU_HOOK T __tsan_atomic##bits##_load(const volatile void *p, int)                                        \
    {                                                                                                         \
        EMU_EARLY(p);                                                                                         \
        return *(const volatile T *)p;                                                                        \
    }                                                                                                         \
    EMU_HOOK void __tsan_atomic##bits##_store(volatile void *p, T v, int order)                               \
    {                                                                                                         \
        EMU_EARLY(p);                                                                                         \
        if (order >= __ATOMIC_RELEASE) emu_rt->fence();                                                       \
        emu_rt->store((void *)p, sizeof v);                                                                   \
        *(volatile T *)p = v;                                                                                 \
    }                                                                                                         \
    EMU_HOOK T __tsan_atomic##bits##_compare_exchange_val(volatile void *p, T compare, T v, int, int)         \
    {                                                                                                         \
        const T old = *(volatile T *)p;                                                                       \
        if (old == compare) *(volatile T *)p = v;                                                             \
        return old;                                                                                           \
    }
EMU_ORDERED(8, unsigned char) EMU_ORDERED(16, unsigned short) EMU_ORDERED(32, unsigned)
EMU_ORDERED(64, unsigned long)
#endif

/* ---- undefined behaviour: UBSan's calls, answered with the emulator's report. The layouts are those every
 * gcc and clang since 2016 passes; handlers of our own also need no UBSan runtime in the process. ---- */
struct emu_ub_type { unsigned short kind, info; char name[1]; };
struct emu_ub_place { const char *file; unsigned line, column; };
struct emu_ub_mismatch { emu_ub_place at; const emu_ub_type *type; unsigned char log_align, kind; };
struct emu_ub_bounds { emu_ub_place at; const emu_ub_type *array, *index; };
struct emu_ub_shift { emu_ub_place at; const emu_ub_type *left, *right; };
struct emu_ub_division { emu_ub_place at; const emu_ub_type *type; };
static inline long long emu_ub_value(const emu_ub_type *t, unsigned long v)  /* wider ones come by address */
{
    const int bits = 1 << (t->info >> 1);
    if (bits > 64) return 0;
    return t->info & 1 ? (long long)((unsigned long long)v << (64 - bits)) >> (64 - bits) : (long long)v;
}
#define EMU_UB extern "C" __attribute__((visibility("hidden"), used, noinline, noreturn)) inline void
EMU_UB __ubsan_handle_type_mismatch_v1_abort(void *data, void *pointer)
{
    const emu_ub_mismatch *d = (const emu_ub_mismatch *)data;
    emu_rt->fault({ d->at.file, (int)d->at.line },
                  "undefined behaviour: misaligned address %p for type %s, which wants %u bytes", pointer,
                  d->type->name, 1u << d->log_align);
    __builtin_unreachable();
}
EMU_UB __ubsan_handle_out_of_bounds_abort(void *data, void *index)
{
    const emu_ub_bounds *d = (const emu_ub_bounds *)data;
    emu_rt->fault({ d->at.file, (int)d->at.line },
                  "undefined behaviour: index %lld is out of bounds for type %s",
                  emu_ub_value(d->index, (unsigned long)index), d->array->name);
    __builtin_unreachable();
}
EMU_UB __ubsan_handle_shift_out_of_bounds_abort(void *data, void *left, void *right)
{
    const emu_ub_shift *d = (const emu_ub_shift *)data;
    emu_rt->fault({ d->at.file, (int)d->at.line }, "undefined behaviour: %lld (type %s) is shifted by %lld",
                  emu_ub_value(d->left, (unsigned long)left), d->left->name,
                  emu_ub_value(d->right, (unsigned long)right));
    __builtin_unreachable();
}
EMU_UB __ubsan_handle_divrem_overflow_abort(void *data, void *left, void *)
{
    const emu_ub_division *d = (const emu_ub_division *)data;
    emu_rt->fault({ d->at.file, (int)d->at.line }, "undefined behaviour: %lld (type %s) is divided by 0",
                  emu_ub_value(d->type, (unsigned long)left), d->type->name);
    __builtin_unreachable();
}

/* ---- the entry: void ** -> a call with its types ---- */
struct emu_bounds {
    unsigned max_threads;
    constexpr emu_bounds(unsigned threads = 1024, unsigned = 0, unsigned = 0) : max_threads(threads) { }
};
template <class T> struct emu_is_pointer { enum { value = 0 }; };
template <class T> struct emu_is_pointer<T *> { enum { value = 1 }; };
template <class T> struct emu_is_pointer<T *__restrict__> { enum { value = 1 }; };
template <unsigned... I> struct emu_list { };
template <unsigned N, unsigned... I> struct emu_count : emu_count<N - 1, N - 1, I...> { };
template <unsigned... I> struct emu_count<0, I...> { typedef emu_list<I...> type; };
static inline void emu_finish_copies();         /* ptx.hpp */
template <auto F> struct emu_kernel;
template <class... A, void (*F)(A...)> struct emu_kernel<F> {
    static constexpr unsigned bytes[] = { sizeof(A)..., 0 };
    static constexpr unsigned char pointer[] = { emu_is_pointer<A>::value..., 0 };
    static constexpr unsigned count = sizeof...(A);
    template <unsigned... I> static inline void spread(void **a, emu_list<I...>)
    {
        (void)a;
        F(*(A *)a[I]...);
    }
    static void call(void **a)
    {
        spread(a, typename emu_count<sizeof...(A)>::type());
        emu_finish_copies();
    }
};
#define EMU_ENTRY(name, ...)                                                                                \
    extern "C" __attribute__((visibility("default"))) const emu_entry emu_entry_##name = {                  \
        EMU_VERSION, #name, emu_kernel<name>::call, emu_kernel<name>::count, \
        emu_bounds(__VA_ARGS__).max_threads,                            \
        emu_kernel<name>::bytes, emu_kernel<name>::pointer, &emu_rt };
