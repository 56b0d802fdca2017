/* SPDX-License-Identifier: MIT */
#include "cases/case.h"
#include "op/tegula_scale.h"

static tgl_status setup(case_problem *p)
{
    const int64_t shape[] = { case_int(p, "num_rows"), case_int(p, "num_cols") };
    case_add(p, 0, "x", CASE_IN, case_dtype(p, "dtype"), 2, shape)->strides[0] += case_int(p, "gap");
    case_add(p, 1, "out", CASE_OUT, case_dtype(p, "dtype"), 2, shape)->strides[0] += 2 * case_int(p, "gap");
    return TGL_OK;
}
static tgl_status run(const case_arguments *a) { return tgl_scale(a->arg[0], 0.3f, a->arg[1], a->stream); }
static void oracle(case_problem *p) /* a product of floats is exact in double */
{
    const case_tensor *x = &p->tensors[0], *out = &p->tensors[1];
    for (int64_t i = 0; i < x->shape[0]; i++)
        for (int64_t j = 0; j < x->shape[1]; j++) {
            const double product = case_decode(x->dtype, case_element(x, (int64_t[]){ i, j })) * (double)0.3f;
            unsigned char *to = case_element(out, (int64_t[]){ i, j });
            case_encode(x->dtype, (double)(float)product, to);
            if (product == product) continue;
            memset(to, 0xff, (size_t)out->element_bytes); /* the NaN: all bits but the sign */
            to[out->element_bytes - 1] = 0x7f;
        }
}

// clang-format off: lines of cases
const case_op scale_cases = {
    "scale", "num_rows= num_cols= dtype= gap=0", setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES("num_rows=0,1,7 num_cols=0,1,255,256,257,1000 dtype=e4m3,bf16,f32 gap=0,5"),
    .lists[CASE_KERNELS] = CASE_LINES("num_rows=1 num_cols=1 dtype=e4m3,bf16,f32"),
};
// clang-format on
