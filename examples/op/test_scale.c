/* SPDX-License-Identifier: MIT */
#include "errors.h"
#include "op/tegula_scale.h"
#include "ops.h"

TESTS_OF_TABLE("scale")

extern tgl_signature tgl_scale_signature;
static tgl_status invoke(DLTensor *const *t, const void *params) { return tgl_scale(t[0], 2, t[1], NULL); }
TEST(errors)
{
    float data[4] = { 1, -3 };
    tensor x, out;
    make(&x, data, cpu, TGL_F32, 2, SHAPE(1, 2));
    check_errors(&tgl_scale_signature, "num_rows=3 num_cols=5", invoke);
    CHECK_INT(tgl_scale(&x.t, 2, make(&out, data + 2, cpu, TGL_F32, 2, SHAPE(2, 1)), NULL), TGL_ERR_ARGUMENT);
    CHECK_TEXT(tgl_last_error(), "out: shape is [2, 1], want [1, 2]");
    CHECK(tgl_scale(&x.t, 2, &x.t, NULL) == TGL_OK && data[0] == 2 && data[1] == -6); /* in place */
}

extern const case_op scale_cases; /* the build makes this table for the library's ops */
const case_op *const case_ops[] = { &scale_cases, NULL };
