/* SPDX-License-Identifier: MIT */
#include "cases/quant/common/quant.h"
#include "core/status.h"

enum { X, OUT };

static tgl_status setup(case_problem *c)
{
    static const char shapes[] = "1d 2d 3d";
    TGL_TRY(case_check_word(c, "shape", shapes));
    const int ndim = 1 + case_word(c, "shape", shapes);
    int64_t dims[3] = { 2, 3, case_int(c, "num_bytes") };
    case_tensor *x = case_add(c, X, "x", CASE_IN, case_dtype(c, "pairs"), ndim, dims + 3 - ndim);
    x->offset = case_int(c, "offset");
    dims[2] *= 2;
    case_tensor *out = case_add(c, OUT, "out", CASE_OUT, case_dtype(c, "dtype"), ndim, dims + 3 - ndim);
    out->offset = case_int(c, "out_offset");
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_quant_unpack_from_e2m1fn_x2(a->arg[X], a->arg[OUT], a->stream);
}

static void oracle_bytes(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *x = &c->tensors[X], *out = &c->tensors[OUT];
    for (int64_t i = begin; i < end; i++)
        for (int half = 0; half < 2; half++) {
            const unsigned code = (unsigned char)x->data[i] >> 4 * half & 15;
            case_encode(out->dtype, quant_decode(TGL_QUANT_E2M1, code),
                        out->data + (2 * i + half) * out->element_bytes);
        }
}

static void oracle(case_problem *c) { case_parallel(c->tensors[X].slots, 64, oracle_bytes, c); }

// clang-format off: lines of cases
const case_op unpack_from_e2m1fn_x2_cases = {
    "quant_unpack_from_e2m1fn_x2", "num_bytes= shape=1d dtype=f32 pairs=e2m1x2 offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_bytes=0,1,2,3,7,8,9,255,1024,5000 dtype=f32,bf16,f16,e4m3",
        "num_bytes=33 shape=1d,2d,3d dtype=f32,bf16,f16,e4m3 pairs=e2m1x2,i8,u8",
        "num_bytes=512 offset=0,1,3,8 out_offset=0,1,4 dtype=f32,bf16,e4m3"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_bytes=100000001 dtype=f32,bf16,f16,e4m3",
        "num_bytes=2147483659 dtype=e4m3"),
    .lists[CASE_BENCH] = CASE_LINES("num_bytes=458752,14680064,28675584 dtype=f32,bf16,e4m3"),
    .lists[CASE_KERNELS] = CASE_LINES("num_bytes=4096 dtype=f32,bf16,f16,e4m3 pairs=e2m1x2,i8,u8"),
};
// clang-format on
