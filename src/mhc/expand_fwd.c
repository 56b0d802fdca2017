/* SPDX-License-Identifier: MIT
 * expand_fwd.c - tgl_mhc_expand_fwd: a token's row to all of its streams. */
#include "mhc/expand_fwd.h"

#include <string.h>

#include "core/threads.h"
#include "mhc/common/mhc_host.h"
#include "mhc/common/rows_host.h"

typedef expand_fwd_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++)
        for (int64_t i = 0; i < p->num_streams; i++)
            memcpy(p->out.data + t * p->out.token + i * p->out.stream, p->x.data + t * p->x.token,
                   (size_t)p->columns * 2);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_tokens, tgl_saturating_product(4 * (1 + p->num_streams), p->columns), run_tokens,
                             p);
}

TGL_SIZES(sizes, num_tokens, hidden, num_streams);
tgl_signature tgl_mhc_expand_fwd_signature =
    TGL_SIGNATURE("mhc_expand_fwd(x: bf16|f16|f32[num_tokens, hidden] rows) -> out: x" ROWS_STREAMS_SHAPE
                  " strided where " MHC_RULES,
                  NULL, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

enum { VECTORS, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const tgl_macro streams = { "STREAMS", ((const problem *)context)->num_streams };
    kernels[VECTORS] = (tgl_kernel){ "mhc/expand_fwd", { streams, { "HAS_VECTORS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "mhc/expand_fwd", { streams, { "HAS_VECTORS", 0 } } };
    return NUM_KERNELS;
}

static bool has_vectors(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->columns % ROWS_UNIT == 0 && tgl_rows_have_vectors(p->x) && tgl_rows_out_have_vectors(p->out);
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const bool is_few = p->num_tokens <= EXPAND_FWD_FEW_TOKENS;
    const int64_t rows = is_few ? tgl_ceil_div(p->num_tokens, 2) : p->num_tokens;
    return tgl_shape_with(tgl_rows_shape_of(rows, p->columns, is_few ? EXPAND_FWD_FEW_THREADS : ROWS_COLUMN_THREADS), p,
                          sizeof *p);
}

static const tgl_op OP = { cpu, plan, { [VECTORS] = { has_vectors, NULL, shape }, [ANY] = { NULL, NULL, shape } } };

tgl_status tgl_mhc_expand_fwd(const DLTensor *x, DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_mhc_expand_fwd_signature, tensors, NULL, &n.num_tokens));
    TGL_TRY(tgl_expect_rows_apart("out", out));
    problem p = { tgl_rows_in_halves(x), tgl_rows_out_halves(out), n.num_tokens, n.num_streams,
                  tgl_saturating_product(tgl_rows_halves(x), n.hidden) };
    return tgl_run(&tgl_mhc_expand_fwd_signature, &OP, tensors, &p, stream);
}
