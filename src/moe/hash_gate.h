/* SPDX-License-Identifier: MIT
 * hash_gate.h - what host and kernels of hash_gate agree on. */
#ifndef TEGULA_MOE_HASH_GATE_H
#define TEGULA_MOE_HASH_GATE_H

#include "moe/common/gate.h"
#include "numerics/integer.h"

/* None of these has a measurement on record. */
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

static_assert((ID_BYTES == 4 || ID_BYTES == 8) && (TABLE_BYTES == 4 || TABLE_BYTES == 8), "ids have 4 or 8 bytes");

/* A number that topk_idx cannot hold is no expert. */
DEV index_type as_index(i64 e) { return e == (index_type)e ? (index_type)e : -1; }
#endif

#endif
