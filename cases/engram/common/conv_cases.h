/* SPDX-License-Identifier: MIT
 * conv_cases.h - what the cases of the short convolution's two directions share: inputs, and rows as they are defined.
 *
 *   norm, conv   dtypes of the weights; bias none, or its dtype
 *   values   normal   mean 0, deviation 1
 *            special  and one element of x in 300 is an infinity, a NaN or a zero; one row in 5 is zeros
 *            large    normal times 1e4
 *   layout   packed
 *            gaps     every row of every tensor is `gap` elements longer than it need be
 *            outside  streams lie outside of tokens
 * Rows of masked tokens are NaN in x. */
#ifndef TEGULA_CASES_ENGRAM_CONV_H
#define TEGULA_CASES_ENGRAM_CONV_H

#include "cases/engram/common/requests.h"

#define CONV_CASE                                                                                         \
    "num_tokens= num_streams=4 hidden= kernel_size=4 dilation=3 norm=bf16 conv=bf16 bias=none mask=none " \
    "activation=1 add_input=1 zero_centered=0 eps=default values=normal layout=packed gap=3 offset=0 " ENGRAM_REQUESTS
enum {
    CONV_MASK,
    CONV_CU,
    CONV_START,
    CONV_SLOTS,
    CONV_RING,
    CONV_X,
    CONV_NORM,
    CONV_WEIGHT,
    CONV_BIAS,
    CONV_NUM_INPUTS
};
tgl_status conv_add_inputs(case_problem *c);
case_tensor *conv_add_rows(case_problem *c, int index, const char *name, case_role role);
void conv_fill_rows(const case_problem *c, case_tensor *t, uint64_t seed);
/* A ring with start_pos and slots, as past, start and slots of the case say, at these places. */
tgl_status conv_add_ring(case_problem *c, int start, int slots, int ring);
tgl_engram_short_conv_params conv_params(case_problem *c);
int64_t conv_dilation(const case_problem *c); /* 0: 3 */

/* ---- for oracles ---- */

/* A batch is four tensors of a case: cu_seqlens, at place `batch`, and start_pos, slots and ring behind it. The request of
 * a token, with its start_pos, at least 0, and its row in the ring; -1: none. */
typedef struct {
    engram_request r;
    int64_t start, slot;
} conv_request;
conv_request conv_request_of(const case_problem *c, int batch, int64_t num_tokens, int64_t token);

/* The row that the ring had `before` tokens before the chunk; false: none. */
bool conv_row_before(const case_problem *c, int batch, const conv_request *q, int64_t before, int64_t h, float *row);

/* Its entry for a token of the chunk. */
int64_t conv_entry_of(const case_problem *c, int batch, const conv_request *q, int64_t token);

/* The traffic of a ring whose rows have token_bytes per token: each token of a decode reads kernel_size - 1 and writes
 * one. */
int64_t conv_ring_bytes(const case_problem *c, int batch, int64_t token_bytes, int64_t num_tokens, int64_t kernel_size);

bool conv_is_masked(const case_problem *c, int64_t token);
float conv_at(const case_tensor *t, int64_t token, int64_t stream, int64_t i); /* of rows */
float conv_norm_of(const case_problem *c, int64_t stream, int64_t i);          /* plus 1 if stored minus 1 */
float conv_tap_of(const case_problem *c, int64_t stream, int64_t i, int64_t j);
float conv_bias_of(const case_problem *c, int64_t stream, int64_t i);     /* 0 without */
float conv_rstd_of(const case_problem *c, int64_t token, int64_t stream); /* from x */
float conv_sigmoid_of(float z);                                           /* as docs/engram.md says */
float conv_result_of(float z, bool has_activation, bool is_rounded, const float *added,
                     int count);                                   /* of z; x and residual are added, in this order */
float conv_tree(const float *values, int count, int step);         /* a tree over 32 sums */
float conv_bf16(double v);                                         /* rounded */
void conv_put(case_tensor *t, const int64_t *index, double value); /* with the one NaN of ops */

#endif
