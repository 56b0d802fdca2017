/* SPDX-License-Identifier: MIT
 * route.h - what host and kernels of route agree on. */
#ifndef TEGULA_MOE_ROUTE_H
#define TEGULA_MOE_ROUTE_H

#include "moe/common/gate.h"
#include "moe/common/map.h"

/* None of these has a measurement on record. */
#define ROUTE_MAX_TOKENS 256
#define ROUTE_THREADS 512     /* max per block */
#define ROUTE_MIN_THREADS 256 /* more take longer to start and to pass a barrier */
#define ROUTE_ALONE 4         /* up to this many tokens every block routes all, a warp each */

/* Blocks per cluster, and max tokens for a cluster of that size. Measured on an H200 (2026-11). */
#define ROUTE_SMALL_CLUSTER 8
#define ROUTE_SMALL_CLUSTER_TOKENS 48
#define ROUTE_CLUSTER 16
#define ROUTE_CLUSTER_TOKENS 128

/* A token's experts, in the workspace and in shared memory: 16 bits per slot, in words of 16 bytes. In the
 * workspace a ticket follows. */
#define ROUTE_WORDS(num_slots) (((num_slots) + 7) / 8)
#define ROUTE_PUBLISHED 0x8000u /* set in every published slot, which is then not 0 */
#define ROUTE_NO_EXPERT 0x7fffu
#define ROUTE_WORKSPACE(num_tokens, num_slots) (16 * ROUTE_WORDS(num_slots) * (num_tokens) + 4)

typedef struct {
    tgl_gate gate;
    tgl_map map;
    void *workspace;         /* route.cu only */
    int32_t owned_bits;      /* a block has 1 << owned_bits experts of the mapping at a time */
    uint32_t cluster_blocks; /* route_cluster.cu only */
} route_args;

#endif
