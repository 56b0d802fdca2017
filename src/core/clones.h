/* SPDX-License-Identifier: MIT
 * clones.h - loops for more than the oldest CPU. The library is compiled for every x86-64, whose vectors are
 * 16 bytes; a function marked TGL_CLONES is also compiled for those with AVX2 and those with AVX-512, and one
 * of the three is chosen when the library is loaded. Nothing is contracted, so all give the same bits.
 * (aarch64 needs no choice.) For static functions: gcc would export others, whatever their visibility.
 *
 * TGL_HAS_FMA: in the clone that runs, fmaf() is an instruction; else it would be a call. */
#ifndef TEGULA_CLONES_H
#define TEGULA_CLONES_H

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)     /* these start after ifuncs resolve */
#define TGL_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define TGL_HAS_FMA (__builtin_cpu_supports("x86-64-v3") != 0)
#else
#define TGL_CLONES
#if defined(__FMA__) || defined(__aarch64__)
#define TGL_HAS_FMA true
#else
#define TGL_HAS_FMA false
#endif
#endif

#endif
