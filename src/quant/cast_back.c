/* SPDX-License-Identifier: MIT
 * cast_back.c - tgl_quant_cast_back: codes times their factors, as f32 or bf16. */
#include "quant/cast_back.h"

#include "core/log.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "quant/cast.h"
#include "quant/common/check.h"
#include "quant/common/strip.h"

typedef struct {
    int64_t num_rows, num_cols;
    tgl_codes x;
    void *out;
    bool is_bf16;               /* out, else f32 */
} problem;

/* ---- CPU ---- */

static void run_rows(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    for (int64_t t = begin; t < end; t++)
        if (p->is_bf16) tgl_decode_to_bf16(&p->x, t, 0, p->num_cols, (uint16_t *)p->out + t * p->num_cols);
        else tgl_decode(&p->x, t, 0, p->num_cols, (float *)p->out + t * p->num_cols);
}

/* ---- checks ---- */

static tgl_status check(const DLTensor *x, const DLTensor *x_sf, const DLTensor *out,
                        const tgl_quant_params *params, problem *p)
{
    TGL_TRY(tgl_expect_params(params));
    TGL_TRY(tgl_expect_format(params->format, true));
    TGL_TRY(tgl_expect_block("x_num_per_tokens", params->x_num_per_tokens));
    TGL_TRY(tgl_expect_block("x_num_per_channels", params->x_num_per_channels));
    TGL_TRY(tgl_expect_codes("x", x, params->format));
    p->num_rows = x->shape[0];
    p->num_cols = tgl_num_cols(x, params->format);
    const tgl_blocks blocks = tgl_blocks_of(p->num_rows, p->num_cols, params->x_num_per_tokens,
                                            params->x_num_per_channels);
    tgl_sf sf;
    TGL_TRY(tgl_expect_sf("x_sf", x_sf, blocks.num_rows, blocks.num_cols, &sf));
    TGL_TRY(tgl_expect_matrix("out", out, TGL_BF16 | TGL_F32, p->num_rows, p->num_cols));
    p->x = tgl_codes_of(x, params->format, sf, blocks);
    p->out = tgl_data(out);
    p->is_bf16 = tgl_dtype_is(out->dtype, TGL_BF16);
    return tgl_expect_apart((tgl_named[]){ { "x", x }, { "x_sf", x_sf }, { "out", out } }, 2, 3);
}

/* ---- launch ---- */

/* Few rows: where threads of STRIP_MAX_ROWS make a block an SM at most and those of two rows more, some SMs
 * would have two blocks and others one, which are no sooner done than one of twice the rows. */
static void make_one_wave(tgl_strip *strip, int num_sms)
{
    tgl_strip taller = *strip;
    taller.rows = STRIP_MAX_ROWS;
    if (strip->rows == 2 && tgl_strip_grid(strip) > num_sms && tgl_strip_grid(&taller) <= num_sms)
        strip->rows = STRIP_MAX_ROWS;
}

/* Addresses and lengths choose, where columns side by side share a factor. */
enum { ANY, RUNS_OF_1, RUNS_OF_2, RUNS_OF_4, NUM_KERNELS };
static tgl_status run_on_cuda(const problem *p, const DLTensor *on, tgl_stream stream)
{
    const tgl_codes *x = &p->x;
    const int out_bytes = p->is_bf16 ? 2 : 4, values = CAST_BACK_VALUES(out_bytes);
    const tgl_macro format = { "FORMAT", x->format }, bytes = { "OUT_BYTES", out_bytes };
    const tgl_macro kind = { "SF_KIND", x->sf.kind };
    const tgl_kernel plan[NUM_KERNELS] = {
        [ANY] = { "quant/cast_back_any", { format, bytes, kind } },
        [RUNS_OF_1] = { "quant/cast_back", { format, bytes, kind, { "ROWS", 1 } } },
        [RUNS_OF_2] = { "quant/cast_back", { format, bytes, kind, { "ROWS", 2 } } },
        [RUNS_OF_4] = { "quant/cast_back", { format, bytes, kind, { "ROWS", STRIP_MAX_ROWS } } }
    };
    const bool has_runs = x->block_cols % values == 0;
    const int num_kernels = has_runs ? NUM_KERNELS : 1;
    if (tgl_preparing()) return tgl_launch(plan, num_kernels, ANY, on, NULL, stream, NULL);
    tgl_target target;
    TGL_TRY(tgl_target_of(on, &target));
    /* e5m6 is read in words, to which it is always aligned */
    const bool is_e5m6 = x->format == TGL_FORMAT_E5M6;
    const uintptr_t unit_bytes = is_e5m6 ? 4 : (uintptr_t)tgl_code_bytes(x->format, values);
    const uintptr_t x_bits = (uintptr_t)x->data | (uintptr_t)x->row_bytes;
    int32_t is_vector = p->num_cols % values == 0 && (uintptr_t)p->out % 16 == 0 && x_bits % unit_bytes == 0;
    tgl_strip strip = tgl_strip_of(p->num_rows, p->num_cols, x->block_rows, x->block_cols,
                                   is_vector ? values : CAST_BACK_FEW(x->format, out_bytes), target.num_sms);
    make_one_wave(&strip, target.num_sms);
    void *args[] = { (void *)&x->data, (void *)&x->row_bytes, (void *)&x->sf, (void *)&p->out, &strip,
                     &is_vector };      /* only ANY has is_vector */
    const tgl_shape shape = { { tgl_strip_grid(&strip) }, .block = STRIP_THREADS };
    const int runs = strip.rows == 1 ? RUNS_OF_1 : strip.rows == 2 ? RUNS_OF_2 : RUNS_OF_4;
    const int which = has_runs && is_vector && tgl_strip_is_short(&strip) ? runs : ANY;
    return tgl_launch(plan, num_kernels, which, on, &shape, stream, args);
}

tgl_status tgl_quant_cast_back(const DLTensor *x, const DLTensor *x_sf, DLTensor *out,
                               const tgl_quant_params *params, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL))
        tgl_log_call("tgl_quant_cast_back", "x", x, "x_sf", x_sf, "out", out, NULL);
    problem p;
    TGL_TRY(check(x, x_sf, out, params, &p));
    if (p.num_cols == 0) return TGL_OK;                             /* no kernel has no columns */
    if (p.num_rows == 0 && !tgl_preparing()) return TGL_OK;         /* data may be NULL */
    if (!tgl_on_cpu(x)) return run_on_cuda(&p, x, stream);
    return tgl_parallel_rows(p.num_rows, 4 * p.num_cols, run_rows, &p);
}
