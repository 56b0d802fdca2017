/* SPDX-License-Identifier: MIT
 * golden.h - recorded inputs and expected outputs, tests/golden/<domain>. Its README has the format; table.py makes the
 * table of cases at build time.
 *
 *     const golden_case *g;
 *     for (int i = 0; (g = golden_at("transpose", NULL, i)); i++) golden_check(g, run, backend, &report);
 */
#ifndef TEGULA_GOLDEN_H
#define TEGULA_GOLDEN_H

#include "cases/case.h"

typedef struct {
    const char *name;
    case_role role;
    tgl_dtype dtype;
    int ndim;
    int64_t shape[CASE_MAX_DIMS], strides[CASE_MAX_DIMS];
    case_compare compare;
    const char *updates;      /* an output that is the input of this name after the call; NULL: a new tensor */
    int64_t file_offset;      /* of the data in its .npy file */
    const int64_t *open_rows; /* rows whose contents the op leaves open */
    int num_open_rows;
} golden_tensor;

typedef struct { const char *name, *value; } golden_argument; /* value: null, true, 3, 0.5, bf16, [1, 128] */

typedef struct {
    const char *domain, *op, *name;
    const golden_argument *arguments; /* both lists end with a NULL name */
    const golden_tensor *tensors;
} golden_case;

extern const golden_case golden_cases[]; /* ends with a NULL domain */
extern const char golden_folder[];

/* Case i of a domain, of one op where that is not NULL; NULL past the end. */
const golden_case *golden_at(const char *domain, const char *op, int i);

/* Scalar arguments. A name that the case has not is a mistake in the test and aborts. */
const char *golden_text(const golden_case *g, const char *name);
int64_t golden_int(const golden_case *g, const char *name);
double golden_double(const golden_case *g, const char *name);
bool golden_bool(const golden_case *g, const char *name);
bool golden_is_null(const golden_case *g, const char *name);

/* Puts the inputs on the device as the manifest lays them out, calls `run` twice with different poison and compares the
 * outputs as the manifest says; guard bytes, gaps and inputs as case_check() does. An output that `updates` an input is
 * one tensor, under the output's name. */
typedef struct {
    const golden_case *golden;
    const case_arguments *call;
} golden_call;
typedef tgl_status (*golden_run)(const golden_call *c);
case_result golden_check(const golden_case *g, golden_run run, const backend *on, case_report *report);

/* The same for an op that wants a workspace: this many bytes, which c->call then has. */
typedef size_t (*golden_workspace)(const golden_call *c);
case_result golden_check_with_workspace(const golden_case *g, golden_run run, golden_workspace workspace,
                                        const backend *on, case_report *report);

/* For run: a tensor by name; NULL where the case does not give it. */
DLTensor *golden_arg(const golden_call *c, const char *name);

#endif
