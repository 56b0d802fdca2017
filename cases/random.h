/* SPDX-License-Identifier: MIT
 * random.h - cases that nobody listed: a listed case, often with options of another one (a mask, a map,
 * strides), in which some parameters are replaced by another listed value, by a threshold of the op's plan
 * (thresholds.c), by one more or one less, or by any smaller number. A new parameter of a table is drawn
 * at once. `tegula check --random`, test_random.c and fuzz_ops.c draw here. */
#ifndef TEGULA_RANDOM_H
#define TEGULA_RANDOM_H

#include "case.h"

/* Where the numbers come from: a seed, or the bytes of a fuzzer. */
typedef struct {
    uint64_t (*next)(void *context);
    void *context;
} case_source;

/* The op may refuse the case, or it may be too large. */
void case_draw(const case_op *op, const case_source *source, case_params *params);

/* Elements of all tensors, gaps included. */
double case_elements(const case_problem *c);

/* Has it at most max_elements, so that fills and oracle are fast? */
bool case_is_small(const case_op *op, const case_params *params, int64_t max_elements);

/* Do `setup` and the op take it? The op itself is asked, on the CPU and without data: it must give the same
 * answer on every device. The reason is in tgl_last_error(). */
bool case_is_legal(const case_op *op, const case_params *params);

/* The same with data, so that addresses count too: for a case that another device refused. */
bool case_is_legal_with_data(const case_op *op, const case_params *params);

/* Draw number i of a seed, among small and legal ones; counts the others. False: found none. */
typedef struct {
    int64_t refused;
    char reason[256];
} case_redraws;
bool case_draw_legal(const case_op *op, uint64_t seed, int64_t i, int64_t max_elements, case_params *params,
                     case_redraws *redraws);

/* ---- thresholds.c ---- */

/* Sizes at which an op's plan changes; ends with a row without an op. */
typedef struct {
    const char *op, *param;
    int64_t values[8]; /* up to the first 0 */
} case_threshold;
extern const case_threshold case_thresholds[];

#endif
