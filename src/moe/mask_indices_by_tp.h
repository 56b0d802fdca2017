/* SPDX-License-Identifier: MIT
 * mask_indices_by_tp.h - the launch of mask_indices_by_tp.cu, as kernel and host see it. */
#ifndef TEGULA_MOE_MASK_INDICES_BY_TP_H
#define TEGULA_MOE_MASK_INDICES_BY_TP_H

#define MASK_THREADS 128
#define MASK_BLOCKS 2112            /* at most: as many as an H200 holds, 16 on each of 132 SMs */

#endif
