/* SPDX-License-Identifier: MIT
 * requests.h - ragged batches of the Engram cases: cu_seqlens, ids before a chunk, windows.
 *
 *   requests     none     no cu_seqlens: one request
 *                N        so many, of random lengths, some of them empty
 *   cu           whole    all tokens have a request
 *                even     and all requests are of one length
 *                padded   a fifth has none, at the end
 *                wild     entries in no order, some out of range */
#ifndef TEGULA_CASES_REQUESTS_H
#define TEGULA_CASES_REQUESTS_H

#include "cases/engram/common/engram.h"

#define ENGRAM_REQUESTS "requests=none cu=whole cu_dtype=i32"

int64_t engram_num_requests(case_problem *c);
tgl_status engram_add_cu_seqlens(case_problem *c, int index);

/* The request of a token, and its first and last tokens; -1: it has none. */
typedef struct { int64_t number, first, last; } engram_request;
engram_request engram_request_of(const case_tensor *cu_seqlens, int64_t num_tokens, int64_t token);

/* Values of start_pos, as parameter `start` says: small (-1 .. 6), zero, large (2^40 and a little), bits. Slots: distinct
 * rows of tensor "ring", shuffled; where parameter `slots` is wild, a third of them are none, or ENGRAM_NULL_SLOT. */
enum { ENGRAM_NULL_SLOT = 3 };
void engram_fill_starts(const case_problem *c, case_tensor *t, uint64_t seed);
void engram_fill_slots(const case_problem *c, case_tensor *t, uint64_t seed);

#endif
