/* SPDX-License-Identifier: MIT
 * route.h - what the kernel of route and the code that launches it agree on. */
#ifndef TEGULA_MOE_ROUTE_H
#define TEGULA_MOE_ROUTE_H

#define ROUTE_MAX_TOKENS 256
#define ROUTE_THREADS 512
#define ROUTE_GATE_WARPS 8              /* of a block, at most; the others collect */

/* The workspace: a line per token, so that no two tokens are published on one; then the ticket. */
#define ROUTE_LINE_BYTES 128
#define ROUTE_TICKET (ROUTE_LINE_BYTES * ROUTE_MAX_TOKENS)
#define ROUTE_WORKSPACE (ROUTE_TICKET + 256)

/* A token's experts in its line, and in shared memory: 16 bits a slot, in words of 16 bytes. */
#define ROUTE_WORDS(num_slots) (((num_slots) + 7) / 8)
#define ROUTE_PUBLISHED 0x8000u         /* so that what is published is not 0 */
#define ROUTE_NO_EXPERT 0x7fffu

#endif
