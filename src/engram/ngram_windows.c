/* SPDX-License-Identifier: MIT
 * ngram_windows.c - tgl_engram_ngram_windows: every token with those before it. */
#include "engram/ngram_windows.h"

#include "core/index.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "engram/common/columns_host.h"
#include "engram/common/windows_host.h"
#include "tegula/engram.h"

typedef ngram_windows_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const tgl_windows *w = &p->windows;
    const int n = w->max_ngram;
    int64_t window[COLUMN_MAX_NGRAM];
    tgl_span span = tgl_first_span(w);
    for (int64_t t = begin; t < end; t++) {
        while (t >= span.end) span = tgl_next_span(w, span);
        if (tgl_is_request(w, &span)) {
            const tgl_request r = tgl_request_at(w, span.place);
            tgl_window_of(w, &r, t, n, window);
        } else
            for (int i = 0; i < n; i++) window[i] = w->pad_id;
        for (int i = 0; i < n; i++) tgl_index_put(p->out, t * p->out_stride + i, p->out_bytes, window[i]);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->windows.num_tokens, 16 * (int64_t)p->windows.max_ngram, run_tokens, p);
}

#define FIELD(name) TGL_FIELD(tgl_engram_ngram_windows_params, name)
static const tgl_field FIELDS[] = { FIELD(has_stop_id) }; /* the numbers may be any */
static const tgl_params PARAMS = TGL_PARAMS(tgl_engram_ngram_windows_params, FIELDS);
TGL_SIZES(sizes, num_tokens, num_requests, vocabulary, max_ngram);
tgl_signature tgl_engram_ngram_windows_signature =
    TGL_SIGNATURE("engram_ngram_windows(input_ids: i32|i64[num_tokens] strided, cu_seqlens: i32|i64[num_requests + 1]?,"
                  " history: i32|i64[num_requests, max_ngram - 1]? rows, lookup: i32[vocabulary]?, has_stop_id: bool)"
                  " -> out: i32|i64[num_tokens, max_ngram] rows where " COLUMN_RULES ", num_requests < 2^31",
                  &PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const int32_t n = p->windows.max_ngram;
    kernels[0] = (tgl_kernel){ "engram/ngram_windows",
                               { { "MAX_NGRAM", n <= COLUMN_UNROLLED ? n : 0 },
                                 { "ID_BYTES", p->windows.id_bytes },
                                 { "PAST", p->windows.past },
                                 { "PAST_BYTES", p->windows.past_bytes } } };
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const int64_t window_bytes = 8 * (int64_t)p->windows.max_ngram;
    p->tile_tokens = (int32_t)tgl_min(WINDOW_THREADS, COLUMN_WINDOW_BYTES / window_bytes);
    const int64_t tiles = tgl_ceil_div(p->windows.num_tokens, p->tile_tokens);
    return (tgl_shape){ { tgl_strided_grid(tiles, 8 * (int64_t)target->num_sms) },
                        .block = WINDOW_THREADS,
                        .shared_bytes = p->tile_tokens * window_bytes,
                        TGL_ARGS(*p) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_engram_ngram_windows(const DLTensor *input_ids, const DLTensor *cu_seqlens, const DLTensor *history,
                                    const DLTensor *lookup, DLTensor *out,
                                    const tgl_engram_ngram_windows_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { input_ids, cu_seqlens, history, lookup, out };
    sizes n;
    TGL_TRY(tgl_take(&tgl_engram_ngram_windows_signature, tensors, params, &n.num_tokens));
    TGL_TRY(tgl_check_requests(cu_seqlens, n.num_requests, history != NULL));
    problem p = { .windows = { .input_ids = tgl_data(input_ids),
                               .id_stride = tgl_stride(input_ids, 0),
                               .id_bytes = tgl_bytes_of(input_ids),
                               .num_tokens = n.num_tokens,
                               .cu_seqlens = tgl_data_or_null(cu_seqlens),
                               .cu_bytes = tgl_bytes_of(cu_seqlens),
                               .num_requests = n.num_requests,
                               .history = tgl_data_or_null(history),
                               .past = history ? PAST_HISTORY : PAST_NONE,
                               .past_bytes = tgl_bytes_of(history),
                               .history_stride = tgl_step_of(history, 0),
                               .token_map = tgl_data_or_null(lookup),
                               .vocabulary = n.vocabulary,
                               .max_ngram = (int32_t)n.max_ngram,
                               .pad_id = params->pad_id,
                               .has_stop_id = params->has_stop_id,
                               .stop_id = params->stop_id,
                               .keeps_ids = true },
                  .out = tgl_data(out),
                  .out_stride = tgl_stride(out, 0),
                  .out_bytes = tgl_bytes_of(out) };
    return tgl_run(&tgl_engram_ngram_windows_signature, &OP, tensors, &p, stream);
}
