/* SPDX-License-Identifier: MIT
 * gate_cases.h - what the cases of the gate's two directions share: inputs, and numbers of a row. */
#ifndef TEGULA_CASES_ENGRAM_GATE_H
#define TEGULA_CASES_ENGRAM_GATE_H

#include "cases/engram/common/engram.h"

/*   weights  fused    their product, f32
 *            bf16     both
 *            f32      both
 *   values   normal   mean 0, deviation 1
 *            zeros    and every third row of x, every second of k, are zeros
 *            special  and one element in 500 is an infinity, a NaN or a zero
 *            large    normal times 1e4
 *            tiny     normal times 1e-15
 *   layout   packed
 *            kv       k and v have the strides of one tensor [num_tokens, num_streams + 1, hidden]
 *            gaps     every row of every tensor is `gap` elements longer than it need be
 *            outside  streams lie outside of tokens
 * Rows of masked tokens are NaN in x, k, v and grad_out. */
#define GATE_CASE                                                                                         \
    "num_tokens= num_streams=4 hidden= weights=fused zero_centered=0 mask=none residual=1 values=normal " \
    "layout=packed gap=3 offset=0 clamp=small"
enum { GATE_MASK, GATE_X, GATE_K, GATE_V, GATE_WEIGHT_HIDDEN, GATE_WEIGHT_EMBED, GATE_NUM_INPUTS };
tgl_status gate_add_inputs(case_problem *c, const char *mask_name);

/* A tensor of rows [num_tokens, num_streams, hidden] (or without streams), laid out as the parameters say. */
case_tensor *gate_add_rows(case_problem *c, int index, const char *name, case_role role, bool has_streams);

/* For values with which `values` and the mask have to do. */
void gate_fill_rows(const case_problem *c, case_tensor *t, uint64_t seed);

/* The clamp_value of parameter `clamp`: small (1e-6), half, zero. */
float gate_clamp(const case_problem *c);
double gate_scale(const case_problem *c); /* of x, k, v */

bool gate_is_masked(const case_problem *c, int64_t token);
double gate_at(const case_tensor *t, int64_t token, int64_t stream, int64_t i); /* of rows */
double gate_weight_of(const case_problem *c, int64_t stream, int64_t i);        /* rounded to f32 */

/* The result of a tree over `count` values, `step` apart: those at even places, plus those at odd places. */
float gate_tree(const float *values, int count, int step);

/* The numbers of a row that is not masked, for the forward. */
typedef struct { double dot, gate, rstd_x, rstd_k; } gate_numbers_of_row;
gate_numbers_of_row gate_find_numbers(const case_problem *c, const tgl_engram_gate_params *p, int64_t t, int64_t h);

/* Stores with the one NaN that ops write. */
void gate_put(case_tensor *t, const int64_t *index, double value);

#endif
