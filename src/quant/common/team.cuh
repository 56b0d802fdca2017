/* SPDX-License-Identifier: MIT
 * team.cuh - for kernels with blocks of columns of any width: a team of threads has a block, a warp or, if it
 * is wide, the whole thread block. */
#ifndef TEGULA_QUANT_TEAM_CUH
#define TEGULA_QUANT_TEAM_CUH

#include "device/ptx.cuh"

enum { TEAM_WIDE = 1024 }; /* columns of a warp, at most */

typedef struct {
    u32 rank, size;   /* this thread in its team, threads of the team */
    u32 index, count; /* this team in the thread block, its teams */
} team;

DEV team team_for(i64 block_cols)
{
    if (block_cols > TEAM_WIDE) return { threadIdx.x, blockDim.x, 0, 1 };
    return { threadIdx.x % 32, 32, threadIdx.x / 32, blockDim.x / 32 };
}

/* The max over a team, of values >= 0; all its threads get it. */
DEV float max_of_team(const team &t, float v)
{
    SHARED(u32, largest);
    const u32 of_warp = warp_max_u32(__float_as_uint(v));
    if (t.size == 32) return __uint_as_float(of_warp);
    if (t.rank == 0) largest = 0;
    __syncthreads();
    if (t.rank % 32 == 0) atomicMax(&largest, of_warp);
    __syncthreads();
    const u32 m = largest;
    __syncthreads(); /* all have read it before the next call */
    return __uint_as_float(m);
}

#endif
