/* SPDX-License-Identifier: MIT
 * random.h - cases that nobody listed. A case of an op's list, often with what is special in another one (a
 * mask, a map, strides), in which some parameters are replaced: by any value that a list of the op has for
 * it, by a threshold of its plan (thresholds.c), by one more or one less, by any number below. A parameter
 * that is new in a table is drawn from then on. `tegula check --random`, test_random.c and fuzz_ops.c draw
 * here. */
#ifndef TEGULA_RANDOM_H
#define TEGULA_RANDOM_H

#include "case.h"

/* Where the numbers come from: a seed, or the bytes of a fuzzer. */
typedef struct {
    uint64_t (*next)(void *context);
    void *context;
} case_source;

/* May be a case that the op refuses, or too large a one. */
void case_draw(const case_op *op, const case_source *source, case_params *params);

/* Of all tensors, gaps included. */
double case_elements(const case_problem *c);

/* Does it take little time to make and to answer: has it at most max_elements? */
bool case_is_small(const case_op *op, const case_params *params, int64_t max_elements);

/* Do `setup` and the op take it? Asked of the op itself without data, on the CPU: what it says there, it
 * has to say on every device. The reason is in tgl_last_error(). */
bool case_is_legal(const case_op *op, const case_params *params);

/* The same with data: addresses count, too. For a case that another device refused. */
bool case_is_legal_with_data(const case_op *op, const case_params *params);

/* Draw number i of a seed that is small and legal; how many draws were not is added up. False: none was
 * found. */
typedef struct {
    int64_t refused;
    char reason[256];
} case_redraws;
bool case_draw_legal(const case_op *op, uint64_t seed, int64_t i, int64_t max_elements, case_params *params,
                     case_redraws *redraws);

/* ---- thresholds.c ---- */

/* Sizes at which an op's plan takes another way; ends with a row without an op. */
typedef struct {
    const char *op, *param;
    int64_t value;
} case_threshold;
extern const case_threshold case_thresholds[];

#endif
