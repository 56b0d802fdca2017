/* SPDX-License-Identifier: MIT
 * grid.cuh - what all blocks of a cooperative launch do together. */
#ifndef TEGULA_GRID_CUH
#define TEGULA_GRID_CUH

#include "device/ptx.cuh"

/* All threads of num_blocks blocks wait for each other. `word` is 0 before, and not from then on: every barrier of a
 * launch has its own. What was stored before it may be read behind it, of other blocks by load_relaxed_*. */
DEV void grid_barrier(u32 *word, u32 num_blocks)
{
    __syncthreads();
    if (num_blocks == 1) return;
    if (threadIdx.x == 0) {
        atomic_inc_acq_rel(word, 0xffffffffu);
        while (load_acquire_u32(word) < num_blocks) { }
    }
    __syncthreads();
}

#endif
