/* SPDX-License-Identifier: MIT
 * hash_gate.h - what host and kernels of hash_gate agree on. */
#ifndef TEGULA_MOE_HASH_GATE_H
#define TEGULA_MOE_HASH_GATE_H

#include "moe/common/gate.h"

#define HASH_GATE_WARPS 4 /* per block; 1 up to HASH_GATE_FEW_WARPS, to use all SMs */
#define HASH_GATE_FEW_WARPS 512
#define HASH_GATE_WIDE_THREADS 128 /* per block, which has one token */

typedef struct {
    tgl_gate gate;
    const void *input_ids, *tid2eid;
    int64_t vocabulary;
    int32_t id_bytes, table_bytes; /* macros in kernels */
} hash_gate_args;

#ifdef __CUDACC__
#include "moe/common/index.cuh"

template <int BYTES> DEV i64 load_index(const void *indices, i64 i)
{
    static_assert(BYTES == 4 || BYTES == 8, "indices have 4 or 8 bytes");
    return BYTES == 4 ? ((const i32 *)indices)[i] : ((const i64 *)indices)[i];
}

/* A number that topk_idx cannot hold is no expert. */
DEV index_type as_index(i64 e) { return e == (index_type)e ? (index_type)e : -1; }
#endif

#endif
