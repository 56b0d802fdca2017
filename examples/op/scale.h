/* SPDX-License-Identifier: MIT
 * scale.h - what the kernel of scale, its launch and the CPU loop agree on. */
#include "numerics/bf16.h"
#include "numerics/e4m3.h"

#define SCALE_THREADS 256
typedef struct {
    const void *x;
    void *out;
    int64_t num_rows, num_cols, x_stride, out_stride; /* in elements */
    float c;
    int element_bytes; /* 1: e4m3, 2: bf16, 4: f32 */
} scale_args;

TGL_INLINE void scale_element(const scale_args *a, int64_t row, int64_t col, int element_bytes)
{
    const void *x = (const char *)a->x + (row * a->x_stride + col) * element_bytes;
    void *out = (char *)a->out + (row * a->out_stride + col) * element_bytes;
    if (element_bytes == 4) *(float *)out = tgl_one_nan(*(const float *)x * a->c);
    else if (element_bytes == 2) *(uint16_t *)out = tgl_bf16_from_f32(tgl_bf16_to_f32(*(const uint16_t *)x) * a->c);
    else *(uint8_t *)out = tgl_e4m3_from_f32(tgl_e4m3_to_f32(*(const uint8_t *)x) * a->c);
}
