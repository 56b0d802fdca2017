/* SPDX-License-Identifier: MIT
 * tgl_transpose and tgl_batched_transpose against recorded data. */
#include "golden.h"
#include "tegula/transpose.h"
#include "test.h"

/* doc: golden */
static tgl_status run(const golden_call *c)
{
    tgl_status (*op)(const DLTensor *, DLTensor *, tgl_stream) =
        !strcmp(c->golden->op, "transpose") ? tgl_transpose : tgl_batched_transpose;
    return op(golden_arg(c, "x"), golden_arg(c, "out"), c->call->stream);
}

TEST(recorded)
{
    int count = 0;
    for (const golden_case *g; (g = golden_at("transpose", NULL, count)); count++)
        for (int b = 0; backend_of_tests(b); b++) {
            case_report report;
            golden_check(g, run, backend_of_tests(b), &report);
            CHECK_THAT(report.result == CASE_PASSED, "%s: %s %s: %s", backend_of_tests(b)->name, g->op, g->name,
                       report.text);
        }
    CHECK_INT(count, 13);
}
/* end */

/* The test of this test: a copy in place of a transpose must be seen wherever it is not the same. */
static tgl_status copy(const golden_call *c)
{
    const DLTensor *x = golden_arg(c, "x"), *out = golden_arg(c, "out");
    size_t bytes = x->dtype.bits / 8u;
    for (int d = 0; d < x->ndim; d++) bytes *= (size_t)x->shape[d];
    if (bytes) memcpy((char *)out->data + out->byte_offset, (const char *)x->data + x->byte_offset, bytes);
    return TGL_OK;
}

TEST(a_wrong_result_is_seen)
{
    int num_wrong = 0;
    backend cpu;
    CHECK_OK(backend_open("cpu", &cpu));
    const golden_case *g;
    for (int i = 0; (g = golden_at("transpose", NULL, i)); i++) {
        const golden_tensor *x = g->tensors;
        case_report report;
        const bool is_wrong = x->shape[x->ndim - 1] > 1 && x->shape[x->ndim - 2] > 1;
        CHECK_INT(golden_check(g, copy, &cpu, &report), is_wrong ? CASE_FAILED : CASE_PASSED);
        num_wrong += is_wrong;
    }
    CHECK_INT(num_wrong, 10);
}
