/* SPDX-License-Identifier: MIT
 * grad_w_reduce_cpu.h - the loop of grad_w_reduce, which is plain in the op's file, fast in grad_w_reduce_fast.c. */
#ifndef TEGULA_ENGRAM_GRAD_W_REDUCE_CPU_H
#define TEGULA_ENGRAM_GRAD_W_REDUCE_CPU_H

#include "core/cpu.h"
#include "engram/grad_w_reduce.h"

/* Columns begin .. end - 1 of all streams. */
TGL_DECLARE_FAST(void, tgl_grad_w_columns, const grad_w_reduce_args *p, int64_t begin, int64_t end);

#endif
