/* SPDX-License-Identifier: MIT
 * square.h - small transposes in registers, for the CPU loops of transposes and casts: out[j][i] = x[i][j].
 * The size of an element, e, is a constant at every call. */
#ifndef TEGULA_TRANSPOSE_SQUARE_H
#define TEGULA_TRANSPOSE_SQUARE_H

#include <stdint.h>
#include <string.h>

#include "core/cpu.h"

/* out[j][i] = x[i][j], elements of e bytes. */
TGL_ALWAYS_INLINE void tgl_elements(const char *x, int64_t row_stride, int64_t col_stride, char *out,
                                    int64_t out_stride, int64_t rows, int64_t cols, int e)
{
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++)
            memcpy(out + j * out_stride + i * e, x + i * row_stride + j * col_stride, (size_t)e);
}

#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define TGL_HAS_SHUFFLE 1
#endif
#endif

#ifdef TGL_HAS_SHUFFLE
typedef uint8_t tgl_u8s __attribute__((vector_size(16)));
typedef uint16_t tgl_u16s __attribute__((vector_size(16)));
typedef uint32_t tgl_u32s __attribute__((vector_size(16)));
typedef uint64_t tgl_u64s __attribute__((vector_size(16)));
#define TGL_ZIP(type, a, b, ...) ((tgl_u8s)__builtin_shufflevector((type)(a), (type)(b), __VA_ARGS__))

/* a0 b0 a1 b1 ... of the lower or upper halves. */
TGL_ALWAYS_INLINE tgl_u8s tgl_zip_low(tgl_u8s a, tgl_u8s b, int e)
{
    return e == 1   ? TGL_ZIP(tgl_u8s, a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
           : e == 2 ? TGL_ZIP(tgl_u16s, a, b, 0, 8, 1, 9, 2, 10, 3, 11)
           : e == 4 ? TGL_ZIP(tgl_u32s, a, b, 0, 4, 1, 5)
                    : TGL_ZIP(tgl_u64s, a, b, 0, 2);
}
TGL_ALWAYS_INLINE tgl_u8s tgl_zip_high(tgl_u8s a, tgl_u8s b, int e)
{
    return e == 1   ? TGL_ZIP(tgl_u8s, a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
           : e == 2 ? TGL_ZIP(tgl_u16s, a, b, 4, 12, 5, 13, 6, 14, 7, 15)
           : e == 4 ? TGL_ZIP(tgl_u32s, a, b, 2, 6, 3, 7)
                    : TGL_ZIP(tgl_u64s, a, b, 1, 3);
}

/* a0 a2 a4 ... b0 b2 b4 ... */
TGL_ALWAYS_INLINE tgl_u8s tgl_even_bytes(tgl_u8s a, tgl_u8s b)
{
    return TGL_ZIP(tgl_u8s, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}

/* tgl_elements() of a square, 16 bytes by 16 / e rows; e < 16. Rows i and i + half are zipped into rows 2 i
 * and 2 i + 1; log2(16 / e) such steps are the transpose. */
TGL_ALWAYS_INLINE void tgl_square(const char *x, int64_t row_stride, char *out, int64_t out_stride, int e)
{
    const int n = 16 / e;
    tgl_u8s v[16], w[16];
    for (int i = 0; i < n; i++) memcpy(&v[i], x + i * row_stride, 16);
    for (int step = 1; step < n; step *= 2) {
        for (int i = 0; i < n / 2; i++) {
            w[2 * i] = tgl_zip_low(v[i], v[i + n / 2], e);
            w[2 * i + 1] = tgl_zip_high(v[i], v[i + n / 2], e);
        }
        for (int i = 0; i < n; i++) v[i] = w[i];
    }
    for (int i = 0; i < n; i++) memcpy(out + i * out_stride, &v[i], 16);
}
#else
TGL_ALWAYS_INLINE void tgl_square(const char *x, int64_t row_stride, char *out, int64_t out_stride, int e)
{
    tgl_elements(x, row_stride, e, out, out_stride, 16 / e, 16 / e, e);
}
#endif

#endif
