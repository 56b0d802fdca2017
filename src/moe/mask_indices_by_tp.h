/* SPDX-License-Identifier: MIT
 * mask_indices_by_tp.h - the launch of mask_indices_by_tp.cu, as kernel and host see it.
 *
 * Up to a wave a thread has one unit, so that as many SMs as possible share the work; beyond, it has
 * MASK_UNITS, which keeps more bytes in flight. */
#ifndef TEGULA_MOE_MASK_INDICES_BY_TP_H
#define TEGULA_MOE_MASK_INDICES_BY_TP_H

#define MASK_THREADS 128
#define MASK_UNITS 4
#define MASK_WAVE (1 << 18) /* about the threads that an H200 holds: 132 SMs of 2048 */

#endif
