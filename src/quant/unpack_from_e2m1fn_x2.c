/* SPDX-License-Identifier: MIT
 * unpack_from_e2m1fn_x2.c - tgl_quant_unpack_from_e2m1fn_x2: pairs of e2m1 as values of another type. */
#include "quant/unpack_from_e2m1fn_x2.h"

#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/f16.h"
#include "quant/common/cast.h"
#include "tegula/quant.h"

typedef struct {
    const uint8_t *x;
    int64_t num_bytes; /* pairs */
    void *out;
    tgl_dtype dtype; /* of out */
    unpack_args args;
} problem;

/* ---- CPU ---- */

enum { PIECE = 4096 }; /* pairs, a row of the parallel loop */

static void unpack(const uint8_t *x, int64_t num_pairs, tgl_dtype dtype, void *out)
{
    for (int64_t i = 0; i < 2 * num_pairs; i++) {
        const float value = tgl_e2m1_to_f32((uint8_t)(x[i / 2] >> i % 2 * 4));
        switch (dtype) {
        case TGL_F32: ((float *)out)[i] = value; break;
        case TGL_BF16: ((uint16_t *)out)[i] = tgl_bf16_from_f32(value); break;
        case TGL_F16: ((uint16_t *)out)[i] = tgl_f16_from_f32(value); break;
        default: ((uint8_t *)out)[i] = tgl_e4m3_from_f32(value); break;
        }
    }
}

static void run_pieces(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t first = begin * PIECE, count = tgl_min(end * PIECE, p->num_bytes) - first;
    const int64_t bytes = p->dtype == TGL_F32 ? 4 : p->dtype == TGL_E4M3 ? 1 : 2;
    TGL_CHOOSE(unpack, tgl_unpack)(p->x + first, count, p->dtype, (char *)p->out + 2 * first * bytes);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int64_t pieces = p->num_bytes / PIECE + (p->num_bytes % PIECE != 0);
    return tgl_parallel_rows(pieces, PIECE * 8, run_pieces, p);
}

tgl_signature tgl_quant_unpack_from_e2m1fn_x2_signature =
    TGL_SIGNATURE("quant_unpack_from_e2m1fn_x2(x: e2m1[..., num_cols]) -> out: f32|bf16|f16|e4m3[..., num_cols]"
                  " where num_cols < 2^59",
                  NULL);

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const tgl_dtype dtype = ((const problem *)context)->dtype;
    const int out = dtype == TGL_F32 ? 0 : dtype == TGL_BF16 ? 1 : dtype == TGL_F16 ? 2 : 3;
    kernels[0] = (tgl_kernel){ "quant/unpack_from_e2m1fn_x2", { { "OUT", out } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int x_bytes = UNPACK_X_BYTES(p->dtype == TGL_F32 ? 4 : p->dtype == TGL_E4M3 ? 1 : 2);
    const bool is_vector = (uintptr_t)p->out % 16 == 0 && (uintptr_t)p->x % (unsigned)x_bytes == 0;
    const int64_t blocks = tgl_ceil_div(tgl_ceil_div(p->num_bytes, x_bytes), UNPACK_THREADS);
    const int64_t units_each = tgl_max(1, tgl_min(blocks / UNPACK_MIN_BLOCKS, UNPACK_UNITS));
    p->args = (unpack_args){ p->x, p->num_bytes, p->out, (int32_t)units_each, is_vector };
    return (tgl_shape){ { tgl_ceil_div(blocks, units_each) }, .block = UNPACK_THREADS, TGL_ARGS(p->args) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_quant_unpack_from_e2m1fn_x2(const DLTensor *x, DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, out };
    TGL_TRY(tgl_take(&tgl_quant_unpack_from_e2m1fn_x2_signature, tensors, NULL, NULL));
    problem p = { tgl_data(x), tgl_num_elements(x), tgl_data(out), tgl_dtype_of(out->dtype), { 0 } };
    return tgl_run(&tgl_quant_unpack_from_e2m1fn_x2_signature, &OP, tensors, &p, stream);
}
