/* SPDX-License-Identifier: MIT
 * unpack_from_e2m1fn_x2.c - tgl_quant_unpack_from_e2m1fn_x2: pairs of e2m1 as numbers of another type. */
#include "quant/unpack_from_e2m1fn_x2.h"

#include "core/clones.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/f16.h"
#include "quant/lanes.h"
#include "tegula/quant.h"

typedef struct {
    const uint8_t *x;
    int64_t num_bytes;          /* pairs */
    void *out;
    tgl_dtype dtype;            /* of out */
    unpack_args args;
} problem;

/* ---- CPU ---- */

#define INLINE static inline __attribute__((always_inline))     /* so that dtype is a constant */

enum { PIECE = 4096 };          /* pairs, a row of the parallel loop */

INLINE void unpack(const uint8_t *restrict x, int64_t num_pairs, tgl_dtype dtype, void *restrict out)
{
    const bool has_lanes = dtype == TGL_F32 || dtype == TGL_BF16;
    int64_t i = has_lanes ? tgl_lanes_from_e2m1x2(x, 2 * num_pairs, dtype == TGL_BF16, out) / 2 : 0;
    for (; i < num_pairs; i++) {
        const uint16_t even = tgl_e2m1_to_bf16(x[i]), odd = tgl_e2m1_to_bf16(x[i] >> 4);
        if (dtype == TGL_F32) {
            ((float *)out)[2 * i] = tgl_bf16_to_f32(even);
            ((float *)out)[2 * i + 1] = tgl_bf16_to_f32(odd);
        } else if (dtype == TGL_BF16) {
            ((uint16_t *)out)[2 * i] = even;
            ((uint16_t *)out)[2 * i + 1] = odd;
        } else if (dtype == TGL_F16) {
            ((uint16_t *)out)[2 * i] = tgl_f16_from_f32(tgl_bf16_to_f32(even));
            ((uint16_t *)out)[2 * i + 1] = tgl_f16_from_f32(tgl_bf16_to_f32(odd));
        } else {
            ((uint8_t *)out)[2 * i] = tgl_e4m3_from_small_f32(tgl_bf16_to_f32(even));
            ((uint8_t *)out)[2 * i + 1] = tgl_e4m3_from_small_f32(tgl_bf16_to_f32(odd));
        }
    }
}

TGL_CLONES
static void run_pieces(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t first = begin * PIECE, stop = end * PIECE < p->num_bytes ? end * PIECE : p->num_bytes;
    const uint8_t *x = p->x + first;
    switch (p->dtype) {
    case TGL_F32: unpack(x, stop - first, TGL_F32, (float *)p->out + 2 * first); break;
    case TGL_BF16: unpack(x, stop - first, TGL_BF16, (uint16_t *)p->out + 2 * first); break;
    case TGL_F16: unpack(x, stop - first, TGL_F16, (uint16_t *)p->out + 2 * first); break;
    default: unpack(x, stop - first, TGL_E4M3, (uint8_t *)p->out + 2 * first); break;
    }
}

static tgl_status run_on_cpu(const void *context)
{
    const problem *p = context;
    const int64_t pieces = p->num_bytes / PIECE + (p->num_bytes % PIECE != 0);
    return tgl_parallel_rows(pieces, PIECE * 8, run_pieces, p);
}

tgl_signature tgl_quant_unpack_from_e2m1fn_x2_signature = TGL_SIGNATURE(
    "quant_unpack_from_e2m1fn_x2(x: e2m1[..., num_cols]) -> out: f32|bf16|f16|e4m3[..., num_cols]"
    " where num_cols < 2^59", NULL);

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
    (void)target;
    problem *p = context;
    const int x_bytes = UNPACK_X_BYTES(p->dtype == TGL_F32 ? 4 : p->dtype == TGL_E4M3 ? 1 : 2);
    const bool is_vector = (uintptr_t)p->out % 16 == 0 && (uintptr_t)p->x % (unsigned)x_bytes == 0;
    const int64_t blocks = tgl_ceil_div(tgl_ceil_div(p->num_bytes, x_bytes), UNPACK_THREADS);
    const int64_t units_each = tgl_max(1, tgl_min(blocks / UNPACK_MIN_BLOCKS, UNPACK_UNITS));
    p->args = (unpack_args){ p->x, p->num_bytes, p->out, (int32_t)units_each, is_vector };
    return (tgl_shape){ { tgl_ceil_div(blocks, units_each) }, .block = UNPACK_THREADS, TGL_ARGS(p->args) };
}

static const tgl_op OP = { run_on_cpu, plan, { { .shape = shape } } };

tgl_status tgl_quant_unpack_from_e2m1fn_x2(const DLTensor *x, DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, out };
    TGL_TRY(tgl_take(&tgl_quant_unpack_from_e2m1fn_x2_signature, tensors, NULL, NULL));
    problem p = { tgl_data(x), tgl_num_elements(x), tgl_data(out), tgl_dtype_of(out->dtype), { 0 } };
    return tgl_run(&tgl_quant_unpack_from_e2m1fn_x2_signature, &OP, tensors, &p, stream);
}
