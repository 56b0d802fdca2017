/* SPDX-License-Identifier: MIT
 * cast_back.c - tgl_quant_cast_back: codes times their factors, as f32 or bf16. */
#include "quant/cast_back.h"

#include "core/threads.h"
#include "cuda/op.h"
#include "quant/common/cast.h"
#include "quant/common/params.h"

typedef struct {
    int64_t num_rows, num_cols;
    tgl_codes x;
    void *out;
    bool is_bf16;     /* out, else f32 */
    bool has_vectors; /* addresses allow units of 16 bytes of out */
    int unit;         /* columns of a thread at a time */
    cast_back_args args;
} problem;

/* ---- CPU ---- */

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t row_bytes = p->num_cols * (p->is_bf16 ? 2 : 4);
    for (int64_t t = begin; t < end; t++)
        tgl_decode_row(&p->x, t, p->num_cols, p->is_bf16, (char *)p->out + t * row_bytes);
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->num_rows, 4 * p->num_cols, run_rows, p);
}

TGL_SIZES(sizes, num_rows, num_cols);
tgl_signature tgl_quant_cast_back_signature =
    TGL_SIGNATURE("quant_cast_back(x: format[num_rows, num_cols] rows,"
                  " x_sf: sf[num_rows / x_num_per_tokens, num_cols / x_num_per_channels],"
                  " format: {e4m3|e2m1|e5m6}, x_num_per_tokens: int = 1, x_num_per_channels: int = num_cols)"
                  " -> out: bf16|f32[num_rows, num_cols] where num_cols < 2^59",
                  &TGL_QUANT_PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

/* Codes of e5m6 are read as words, and always aligned to them. */
static void find_unit(problem *p)
{
    const int format = p->x.format, out_bytes = p->is_bf16 ? 2 : 4, values = CAST_BACK_VALUES(out_bytes);
    const int64_t x_bytes = format == TGL_FORMAT_E5M6 ? 4 : tgl_code_bytes(format, values);
    const int64_t x_bits = (int64_t)(uintptr_t)p->x.data | p->x.row_bytes;
    p->has_vectors = p->num_cols % values == 0 && (uintptr_t)p->out % 16 == 0 && x_bits % x_bytes == 0;
    p->unit = p->has_vectors ? values : CAST_BACK_FEW(format, out_bytes);
}

/* Threads with 4, 2 or 1 rows, if adjacent columns share a factor and addresses allow vectors. */
enum { ROWS_4, ROWS_2, ROWS_1, ANY, NUM_KERNELS };

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const int out_bytes = p->is_bf16 ? 2 : 4;
    const tgl_macro format = { "FORMAT", p->x.format }, bytes = { "OUT_BYTES", out_bytes };
    const tgl_macro kind = { "SF_KIND", p->x.sf.kind };
    const bool has_runs = p->x.block_cols % CAST_BACK_VALUES(out_bytes) == 0;
    const char *name = has_runs ? "quant/cast_back" : NULL;
    kernels[ROWS_4] = (tgl_kernel){ name, { format, bytes, kind, { "ROWS", STRIP_MAX_ROWS } } };
    kernels[ROWS_2] = (tgl_kernel){ name, { format, bytes, kind, { "ROWS", 2 } } };
    kernels[ROWS_1] = (tgl_kernel){ name, { format, bytes, kind, { "ROWS", 1 } } };
    kernels[ANY] = (tgl_kernel){ "quant/cast_back_any", { format, bytes, kind } };
    return NUM_KERNELS;
}

/* If 2 rows per thread need more blocks than there are SMs and 4 rows do not, use 4: a partial second wave
 * would take as long. */
static int rows_of(const problem *p, const tgl_target *target)
{
    const int64_t m = p->num_rows, n = p->num_cols;
    const int rows = tgl_strip_rows(m, n, p->unit, target->num_sms);
    const bool fits_one_wave = tgl_strip_blocks(m, n, p->unit, STRIP_MAX_ROWS) <= target->num_sms;
    const bool is_taller = rows == 2 && fits_one_wave && tgl_strip_blocks(m, n, p->unit, 2) > target->num_sms;
    return is_taller ? STRIP_MAX_ROWS : rows;
}

static bool fits(const void *context, const tgl_target *target)
{
    const problem *p = context;
    return p->has_vectors && tgl_strip_is_short(p->num_rows, p->num_cols, p->unit);
}
static bool pays_4(const void *p, const tgl_target *target) { return rows_of(p, target) == STRIP_MAX_ROWS; }
static bool pays_2(const void *p, const tgl_target *target) { return rows_of(p, target) == 2; }

static tgl_shape shape(problem *p, int rows)
{
    const tgl_codes *x = &p->x;
    p->args = (cast_back_args){ x->data,
                                x->row_bytes,
                                x->sf,
                                p->out,
                                tgl_strip_of(p->num_rows, p->num_cols, x->block_rows, x->block_cols, p->unit, rows),
                                p->has_vectors };
    return (tgl_shape){ { tgl_strip_blocks(p->num_rows, p->num_cols, p->unit, rows) },
                        .block = STRIP_THREADS,
                        TGL_ARGS(p->args) };
}
static tgl_shape shape_4(void *p, const tgl_target *target) { return shape(p, STRIP_MAX_ROWS); }
static tgl_shape shape_2(void *p, const tgl_target *target) { return shape(p, 2); }
static tgl_shape shape_1(void *p, const tgl_target *target) { return shape(p, 1); }
static tgl_shape any_shape(void *p, const tgl_target *target) { return shape(p, rows_of(p, target)); }

static const tgl_op OP = { cpu,
                           plan,
                           {
                               [ROWS_4] = { fits, pays_4, shape_4 },
                               [ROWS_2] = { fits, pays_2, shape_2 },
                               [ROWS_1] = { fits, NULL, shape_1 },
                               [ANY] = { NULL, NULL, any_shape },
                           } };

tgl_status tgl_quant_cast_back(const DLTensor *x, const DLTensor *x_sf, DLTensor *out, const tgl_quant_params *params,
                               tgl_stream stream)
{
    const DLTensor *tensors[] = { x, x_sf, out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_quant_cast_back_signature, tensors, params, &n.num_rows));
    if (n.num_cols == 0) return TGL_OK; /* kernels need at least one column */
    const tgl_blocks blocks =
        tgl_blocks_of(n.num_rows, n.num_cols, params->x_num_per_tokens, params->x_num_per_channels);
    problem p = { .num_rows = n.num_rows,
                  .num_cols = n.num_cols,
                  .x = tgl_codes_of(x, params->format, tgl_sf_of(x_sf), blocks),
                  .out = tgl_data(out),
                  .is_bf16 = tgl_dtype_is(out->dtype, TGL_BF16) };
    if (!tgl_on_cpu(x)) find_unit(&p);
    return tgl_run(&tgl_quant_cast_back_signature, &OP, tensors, &p, stream);
}
