/* SPDX-License-Identifier: MIT
 * cpu.h - which loops the CPU runs. Every op has a plain loop, the reference. If that is too slow, a file
 * *_fast.c has a second one, which gives the same bits. That file is compiled for every CPU of the
 * architecture and, on x86-64, again for AVX2 and for AVX-512 (CMakeLists.txt).
 *
 *     TGL_DECLARE_FAST(void, tgl_x, const float *x, int64_t count);    declares all versions
 *     void TGL_FAST(tgl_x)(const float *x, int64_t count) { ... }      in *_fast.c, defines or calls one
 *     TGL_CHOOSE(plain_x, tgl_x)(x, count);                            calls the one for this CPU and setting
 */
#ifndef TEGULA_CPU_H
#define TEGULA_CPU_H

#include <stdatomic.h>

/* In ascending order: a CPU with one level has all below it. TEGULA_CPU sets the highest level to use. */
typedef enum { TGL_CPU_PLAIN, TGL_CPU_BASE, TGL_CPU_AVX2, TGL_CPU_AVX512 } tgl_cpu_level;

/* For tests: sets the highest level, as TEGULA_CPU does. */
void tgl_cpu_limit(tgl_cpu_level highest);

extern atomic_int tgl_cpu_known; /* the level; -1 until settings.c has read the environment */
tgl_cpu_level tgl_cpu_read(void);
static inline tgl_cpu_level tgl_cpu(void)
{
    const int known = atomic_load_explicit(&tgl_cpu_known, memory_order_relaxed);
    return known >= 0 ? (tgl_cpu_level)known : tgl_cpu_read();
}

#ifndef TGL_CPU_LEVEL
#define TGL_CPU_LEVEL base
#endif
#define TGL_PASTE(a, b) a##_##b
#define TGL_PASTE_VALUES(a, b) TGL_PASTE(a, b)
#define TGL_FAST(name) TGL_PASTE_VALUES(name, TGL_CPU_LEVEL)

#ifdef __x86_64__
#define TGL_DECLARE_FAST(type, name, ...) \
    type name##_base(__VA_ARGS__);        \
    type name##_avx2(__VA_ARGS__);        \
    type name##_avx512(__VA_ARGS__)
#define TGL_CHOOSE(plain, name)                  \
    (tgl_cpu() == TGL_CPU_AVX512 ? name##_avx512 \
     : tgl_cpu() == TGL_CPU_AVX2 ? name##_avx2   \
     : tgl_cpu() == TGL_CPU_BASE ? name##_base   \
                                 : plain)
#else
#define TGL_DECLARE_FAST(type, name, ...) type name##_base(__VA_ARGS__)
#define TGL_CHOOSE(plain, name) (tgl_cpu() == TGL_CPU_PLAIN ? plain : name##_base)
#endif

/* For loops with constant flags: inlined, the compiler drops the branches on them. */
#define TGL_ALWAYS_INLINE static inline __attribute__((always_inline))

#endif
