/* SPDX-License-Identifier: MIT
 * requests.h - ragged batches of the Engram cases: cu_seqlens, ids before a chunk, windows.
 *
 *   requests     none     no cu_seqlens: one request
 *                N        so many, of random lengths, some of them empty
 *   cu           whole    all tokens have a request
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

#endif
