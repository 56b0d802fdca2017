/* SPDX-License-Identifier: MIT
 * route.h - what the kernel of route and the code that launches it agree on. */
#ifndef TEGULA_MOE_ROUTE_H
#define TEGULA_MOE_ROUTE_H

#include "moe/common/gate.h"
#include "moe/common/map.h"

#define ROUTE_MAX_TOKENS 256
#define ROUTE_THREADS 512               /* of a block, at most */
#define ROUTE_MIN_THREADS 256           /* more take longer to start, and to meet at a barrier */
#define ROUTE_ALONE 4                   /* up to so many tokens every block routes by itself, a warp each */

/* Where there are clusters of that size: so many blocks of one route up to so many tokens. Measured on an H200. */
#define ROUTE_SMALL_CLUSTER 8
#define ROUTE_SMALL_CLUSTER_TOKENS 48
#define ROUTE_CLUSTER 16
#define ROUTE_CLUSTER_TOKENS 128

/* A token's experts, in the workspace and in shared memory: 16 bits a slot, in words of 16 bytes. Behind them
 * the workspace has a ticket. */
#define ROUTE_WORDS(num_slots) (((num_slots) + 7) / 8)
#define ROUTE_PUBLISHED 0x8000u         /* so that what is published is not 0 */
#define ROUTE_NO_EXPERT 0x7fffu
#define ROUTE_WORKSPACE(num_tokens, num_slots) (16 * ROUTE_WORDS(num_slots) * (num_tokens) + 4)

typedef struct {
    tgl_gate gate;
    tgl_map map;
    void *workspace;                    /* of route.cu alone */
    int32_t owned_bits;                 /* a block has 1 << owned_bits experts of the mapping at a time */
    uint32_t cluster_blocks;            /* of route_cluster.cu alone */
} route_args;

#endif
