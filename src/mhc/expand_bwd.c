/* SPDX-License-Identifier: MIT
 * expand_bwd.c - tgl_mhc_expand_bwd: the sum of a token's streams. */
#include "mhc/expand_bwd.h"

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"
#include "numerics/f16.h"

typedef expand_bwd_args problem;

/* ---- CPU ---- */

TGL_INLINE float number(const uint16_t *row, int64_t i, int type)
{
    if (type == EXPAND_F32) return ((const float *)row)[i];
    return type == EXPAND_F16 ? tgl_f16_to_f32(row[i]) : tgl_bf16_to_f32(row[i]);
}
TGL_INLINE void put_number(uint16_t *row, int64_t i, int type, float value)
{
    if (type == EXPAND_F32) ((float *)row)[i] = tgl_one_nan(value);
    else row[i] = type == EXPAND_F16 ? tgl_f16_from_f32(value) : tgl_bf16_from_f32(value);
}

/* Some numbers of a row at a time, so that the inner loops are over neighbours. */
enum { CHUNK = 256 };
TGL_INLINE void sum_streams(const problem *p, int64_t t, int type)
{
    const int64_t count = type == EXPAND_F32 ? p->columns / 2 : p->columns;
    for (int64_t first = 0; first < count; first += CHUNK) {
        const int64_t width = tgl_min(CHUNK, count - first);
        float sum[CHUNK] = { 0 };
        for (int64_t i = 0; i < p->num_streams; i++) {
            const uint16_t *row = tgl_row_in(p->grad_out, t, i);
            for (int64_t c = 0; c < width; c++) sum[c] += number(row, first + c, type);
        }
        for (int64_t c = 0; c < width; c++) put_number(tgl_row_out(p->grad_x, t, 0), first + c, type, sum[c]);
    }
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++) {
        if (p->grad_type == EXPAND_BF16) sum_streams(p, t, EXPAND_BF16);
        else if (p->grad_type == EXPAND_F16) sum_streams(p, t, EXPAND_F16);
        else sum_streams(p, t, EXPAND_F32);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(4 * (1 + p->num_streams), p->columns), run_tokens,
                             p);
}

TGL_SIZES(sizes, num_tokens, num_streams, hidden);
tgl_signature tgl_mhc_expand_bwd_signature =
    TGL_SIGNATURE("mhc_expand_bwd(grad_out: bf16|f16|f32" ROWS_STREAMS_SHAPE " rows)"
                  " -> grad_x: grad_out[num_tokens, hidden] rows where " MHC_RULES,
                  NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro streams = { "STREAMS", p->num_streams }, type = { "GRAD_TYPE", p->grad_type };
    kernels[VECTORS] = (tgl_kernel){ "mhc/expand_bwd", { streams, type, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/expand_bwd", { streams, type, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->columns % ROWS_UNIT == 0 && tgl_rows_have_vectors(p->grad_out) && tgl_rows_out_have_vectors(p->grad_x);
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    return tgl_shape_with(tgl_rows_shape(p->num_tokens, p->columns), p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } } };

tgl_status tgl_mhc_expand_bwd(const DLTensor *grad_out, DLTensor *grad_x, tgl_stream stream)
{
    const DLTensor *tensors[] = { grad_out, grad_x };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_expand_bwd_signature, tensors, NULL, &n.num_tokens));
    problem p = { tgl_rows_in_halves(grad_out),
                  tgl_rows_out_halves(grad_x),
                  n.num_tokens,
                  n.num_streams,
                  tgl_saturating_product(tgl_rows_halves(grad_x), n.hidden),
                  tgl_dtype_is(grad_x->dtype, TGL_F32)   ? EXPAND_F32
                  : tgl_dtype_is(grad_x->dtype, TGL_F16) ? EXPAND_F16
                                                         : EXPAND_BF16 };
    return tgl_run(&tgl_mhc_expand_bwd_signature, &OP, tensors, &p, stream);
}
