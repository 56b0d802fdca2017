/* SPDX-License-Identifier: MIT
 * histogram_cpu.h - what the plain loop of histogram.c and the fast one of histogram_fast.c share. */
#ifndef TEGULA_MOE_HISTOGRAM_CPU_H
#define TEGULA_MOE_HISTOGRAM_CPU_H

#include "core/cpu.h"
#include "core/status.h"
#include "moe/common/histogram_kernel.h"

typedef struct {
    histogram_args args;
    int index_bytes;
} histogram_problem;

/* The result of a bin, which may replace its count. */
TGL_ALWAYS_INLINE void histogram_put(const histogram_args *a, int64_t bin, int64_t count)
{
    if (a->tokens_topk > 0) ((float *)a->out)[bin] = (float)(count * a->num_bins) / (float)a->tokens_topk;
    else ((int32_t *)a->out)[bin] = (int32_t)count;
}

TGL_DECLARE_FAST(tgl_status, tgl_histogram_chunks, const void *problem);

#endif
