/* SPDX-License-Identifier: MIT
 * models.h - models as rows of sizes. An op's `models` (case.h) are lines of parameters with sizes in braces,
 * "num_experts={num_experts} num_topk={num_topk}"; `tegula compile --model` reads them. A new model is a row
 * here, a new op a line or two in its cases. */
#ifndef TEGULA_CASES_MODELS_H
#define TEGULA_CASES_MODELS_H

#include "case.h"

typedef struct { const char *name, *sizes; } case_model;

/* Ends with a row without a name. */
extern const case_model case_models[];
const case_model *case_model_named(const char *name); /* NULL: there is none */

/* The line with every {name} replaced by that size. False if the model lacks a size: it does not call the op
 * in this way. */
bool case_model_line(const case_model *model, const char *line, char *out, size_t bytes);

#endif
