/* SPDX-License-Identifier: MIT
 * rows.c - tgl_engram_rows: from raw token ids to table rows. */
#include "engram/rows.h"

#include "core/math.h"
#include "core/threads.h"
#include "engram/common/columns_host.h"
#include "engram/common/windows_host.h"
#include "tegula/engram.h"

typedef rows_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const tgl_windows *w = &p->windows;
    int64_t window[COLUMN_MAX_NGRAM];
    tgl_span span = tgl_first_span(w);
    for (int64_t t = begin; t < end; t++) {
        while (t >= span.end) span = tgl_next_span(w, span);
        bool has_rows = tgl_is_request(w, &span);
        if (has_rows) {
            const tgl_request r = tgl_request_at(w, span.place);
            has_rows = tgl_window_of(w, &r, t, w->max_ngram, window) || w->hash_dead;
        }
        tgl_columns_put(&p->columns, t, has_rows ? window : NULL);
    }
}

static void write_ring(const void *context, const tgl_request *r, int64_t q)
{
    tgl_write_last(&((const problem *)context)->windows, r, q, 0, 1);
}

static void write_rings(const void *context, int64_t begin, int64_t end)
{
    tgl_write_rings(&((const problem *)context)->windows, begin, end, write_ring, context);
}

/* The ring behind all rows: their windows read it. */
static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const tgl_windows *w = &p->windows;
    TGL_TRY(tgl_parallel_rows(w->num_tokens, tgl_columns_token_bytes(&p->columns), run_tokens, p));
    if (!w->writes_ring) return TGL_OK;
    return tgl_parallel_rows(w->cu_seqlens ? w->num_requests : 1, 64, write_rings, p);
}

#define FIELD(name) TGL_FIELD(tgl_engram_ngram, name)
static const tgl_field FIELDS[] = { FIELD(has_stop_id), FIELD(history_newest_first), FIELD(hash_masked),
                                    FIELD(keep_ring) }; /* the numbers may be any */
static const tgl_params PARAMS = TGL_PARAMS(tgl_engram_ngram, FIELDS);
TGL_SIZES(sizes, num_tokens, num_requests, num_slots, ring_size, vocabulary, num_layers, max_ngram, num_heads);
tgl_signature tgl_engram_rows_signature =
    TGL_SIGNATURE("engram_rows(input_ids: i32|i64[num_tokens] strided, image_token_mask: bool[num_tokens]?,"
                  " history: i32|i64[num_requests, max_ngram - 1]? rows, ring: i32|i64[num_slots, ring_size]?! rows,"
                  " batch{cu_seqlens: i32|i64[num_requests + 1]?, start_pos: i32|i64[num_requests]?,"
                  " slots: i32|i64[num_requests]?}, ngram{token_map: i32[vocabulary]?, " COLUMN_TENSORS "},"
                  " has_stop_id: bool, history_newest_first: bool, hash_masked: bool, keep_ring: bool)"
                  " -> rows: i32|i64[num_layers, num_tokens, (max_ngram - 1) * num_heads] strided"
                  " where " COLUMN_RULES
                  ", num_requests < 2^31, ring_size < 2^31, ring needs start_pos, slots needs ring",
                  &PARAMS, TGL_SIZES_OF(sizes));

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] = tgl_columns_kernel(&p->columns, "engram/rows");
    tgl_add_macro(&kernels[0], "ID_BYTES", p->windows.id_bytes);
    tgl_add_macro(&kernels[0], "PAST", p->windows.past);
    tgl_add_macro(&kernels[0], "PAST_BYTES", p->windows.past_bytes);
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    const tgl_windows *w = &p->windows;
    p->more_tokens = (int32_t)(w->writes_ring ? tgl_max(0, w->max_ngram - 2) : 0);
    const int lanes = ROW_LANES(w->max_ngram);
    p->has_lanes = w->past == PAST_NONE && !w->cu_seqlens && w->max_ngram <= COLUMN_UNROLLED &&
                   w->num_tokens <= (int64_t)target->num_sms * COLUMN_ROWS_BLOCKS * COLUMN_THREADS / lanes;
    tgl_shape made = tgl_columns_shape(&p->columns, COLUMN_ROWS_BLOCKS, p->has_lanes ? lanes : 1, p->more_tokens,
                                       w->cu_seqlens ? REQUEST_SCRATCH_BYTES : 0, target);
    if (w->writes_ring) made.grid[1] = 1;
    return tgl_shape_with(made, p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_engram_rows(const DLTensor *input_ids, const DLTensor *image_token_mask, const DLTensor *history,
                           DLTensor *ring, DLTensor *rows, const tgl_engram_batch *batch, const tgl_engram_ngram *ngram,
                           tgl_stream stream)
{
    static const tgl_engram_batch one;
    if (!ngram) return tgl_fail(TGL_ERR_ARGUMENT, "ngram: is NULL, want a struct");
    const tgl_engram_batch *b = batch ? batch : &one;
    const DLTensor *tensors[] = { input_ids,          image_token_mask,   history,        ring,
                                  b->cu_seqlens,      b->start_pos,       b->slots,       ngram->token_map,
                                  ngram->multipliers, ngram->vocab_sizes, ngram->offsets, rows };
    sizes n;
    TGL_TRY(tgl_take(&tgl_engram_rows_signature, tensors, ngram, &n.num_tokens));
    if (history && ring) return tgl_fail(TGL_ERR_ARGUMENT, "history: is given, want NULL with ring");
    TGL_TRY(tgl_check_batch(batch, ring, n.num_requests, history != NULL, n.max_ngram - 1));
    TGL_TRY(tgl_expect_rows_apart("rows", rows));
    problem p = { .windows = tgl_batch_windows(b, image_token_mask, ring, ngram->keep_ring, n.num_tokens,
                                               n.num_requests, n.max_ngram - 1) };
    tgl_windows *w = &p.windows;
    w->input_ids = tgl_data(input_ids);
    w->id_stride = tgl_stride(input_ids, 0);
    w->id_bytes = tgl_bytes_of(input_ids);
    if (history) w->past = PAST_HISTORY;
    w->past_bytes = tgl_bytes_of(w->past == PAST_RING ? ring : history);
    w->history = tgl_data_or_null(history);
    w->history_stride = tgl_step_of(history, 0);
    w->ring = tgl_data_or_null(ring);
    w->ring_stride = tgl_step_of(ring, 0);
    w->token_map = tgl_data_or_null(ngram->token_map);
    static const int32_t no_entry; /* an empty map may have no data, and NULL is no map: nothing reads this */
    if (ngram->token_map && !w->token_map) w->token_map = &no_entry;
    w->vocabulary = n.vocabulary;
    w->pad_id = ngram->pad_id;
    w->has_stop_id = ngram->has_stop_id;
    w->stop_id = ngram->stop_id;
    w->is_newest_first = ngram->history_newest_first;
    w->hash_dead = ngram->hash_masked;
    TGL_TRY(tgl_columns_of(ngram->multipliers, ngram->vocab_sizes, ngram->offsets, rows, &p.columns));
    return tgl_run(&tgl_engram_rows_signature, &OP, tensors, &p, stream);
}
