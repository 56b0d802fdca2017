/* SPDX-License-Identifier: MIT
 * tgl_engram_ngram_windows, on every device of the tests. Written from the specification: the id of a token and of those
 * before it, newest first, within a sequence. */
#include "calls.h"
#include "replay.h"
#include "tegula/engram.h"

TESTS_OF_TABLE("engram_ngram_windows")

/* ---- examples ---- */

typedef struct {
    int64_t num_tokens, max_ngram, num_requests, vocabulary;
    const int32_t *ids, *cu_seqlens, *history, *lookup;
    tgl_engram_ngram_windows_params params;
} windows;

static void check_windows(windows w, const int32_t *want)
{
    FOR_BACKENDS(b) {
        tensor ids, cu, history, lookup, out;
        place(b, &ids, TGL_I32, 1, SHAPE(w.num_tokens), w.ids);
        if (w.cu_seqlens) place(b, &cu, TGL_I32, 1, SHAPE(w.num_requests + 1), w.cu_seqlens);
        if (w.history) place(b, &history, TGL_I32, 2, SHAPE(w.num_requests, w.max_ngram - 1), w.history);
        if (w.lookup) place(b, &lookup, TGL_I32, 1, SHAPE(w.vocabulary), w.lookup);
        place(b, &out, TGL_I32, 2, SHAPE(w.num_tokens, w.max_ngram), NULL);
        CHECK_OK(tgl_engram_ngram_windows(&ids.t, w.cu_seqlens ? &cu.t : NULL, w.history ? &history.t : NULL,
                                          w.lookup ? &lookup.t : NULL, &out.t, &w.params, b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &ids);
        if (w.cu_seqlens) discard(b, &cu);
        if (w.history) discard(b, &history);
        if (w.lookup) discard(b, &lookup);
    }
}
#define INTS(...) ((int32_t[]){ __VA_ARGS__ })

TEST(worked_example)
{
    /* doc: ngram_windows */
    const int32_t ids[] = { 5, 6, 7, 8, 9 }, cu_seqlens[] = { 0, 3, 5 };
    windows w = { .num_tokens = 5,
                  .max_ngram = 3,
                  .num_requests = 2,
                  .ids = ids,
                  .cu_seqlens = cu_seqlens,
                  .params = { .pad_id = 2 } };
    check_windows(w, INTS(5, 2, 2, /**/ 6, 5, 2, /**/ 7, 6, 5, /**/ 8, 2, 2, /**/ 9, 8, 2));
    w.history = INTS(3, 4, /**/ 0, 1); /* the ids before each sequence, oldest first */
    check_windows(w, INTS(5, 4, 3, /**/ 6, 5, 4, /**/ 7, 6, 5, /**/ 8, 1, 0, /**/ 9, 8, 1));
    /* end */
}

TEST(one_sequence)
{
    windows w = {
        .num_tokens = 3, .max_ngram = 4, .num_requests = 1, .ids = INTS(5, -1, 7), .params = { .pad_id = -3 }
    };
    check_windows(w, INTS(5, -3, -3, -3, -1, 5, -3, -3, 7, -1, 5, -3));
    w.history = INTS(1, 2, 3);
    check_windows(w, INTS(5, 3, 2, 1, -1, 5, 3, 2, 7, -1, 5, 3));
}

TEST(stop_id) /* the token itself may be one; compared before the lookup, which makes another of it */
{
    windows w = { .num_tokens = 6, .max_ngram = 3, .ids = INTS(5, 9, 2, 9, 9, 4), .params = { 0, true, 9, { 0 } } };
    check_windows(w, INTS(5, 0, 0, 9, 5, 0, 2, 0, 0, 9, 2, 0, 9, 0, 0, 4, 0, 0));
    w.lookup = INTS(0, 1, 9, 3, 4, 9, 6, 7, 8, 1), w.vocabulary = 10;
    check_windows(w, INTS(9, 0, 0, 1, 9, 0, 9, 0, 0, 1, 9, 0, 1, 0, 0, 4, 0, 0));
    w.history = INTS(9, 8), w.num_requests = 1; /* a stop in history */
    check_windows(w, INTS(9, 8, 0, 1, 9, 8, 9, 0, 0, 1, 9, 0, 1, 0, 0, 4, 0, 0));
}

TEST(lookup) /* ids that it has not stay; pad_id does not go through it */
{
    windows w = { .num_tokens = 4,
                  .max_ngram = 2,
                  .num_requests = 1,
                  .ids = INTS(2, -1, 3, INT32_MIN),
                  .lookup = INTS(7, -5, 1),
                  .vocabulary = 3,
                  .params = { .pad_id = 1 } };
    check_windows(w, INTS(1, 1, -1, 1, 3, -1, INT32_MIN, 3));
    w.history = INTS(0);
    check_windows(w, INTS(1, 7, -1, 1, 3, -1, INT32_MIN, 3));
}

TEST(boundaries) /* in no order, out of range: held to the range and to the largest before */
{
    const int32_t ids[] = { 1, 2, 3, 4, 5, 6 };
    windows w = { .num_tokens = 6, .max_ngram = 2, .num_requests = 4, .ids = ids, .params = { .pad_id = 0 } };
    w.cu_seqlens = INTS(0, 2, 2, 2, 6); /* two are empty */
    check_windows(w, INTS(1, 0, 2, 1, 3, 0, 4, 3, 5, 4, 6, 5));
    w.cu_seqlens = INTS(1, 3, 3, 4, 5); /* the first and the last token have no sequence */
    check_windows(w, INTS(0, 0, 2, 0, 3, 2, 4, 0, 5, 0, 0, 0));
    w.cu_seqlens = INTS(-7, 4, 2, 4, INT32_MAX);
    check_windows(w, INTS(1, 0, 2, 1, 3, 2, 4, 3, 5, 0, 6, 5));
}

TEST(graph) { check_replayed("engram_ngram_windows", "num_tokens=300 requests=7 history=i32 vocabulary=100", 1); }

/* ---- nothing to do ---- */

TEST(empty) /* no data and no driver */
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        const tgl_engram_ngram_windows_params params = { 0 };
        tensor ids, out;
        make(&ids, NULL, devices[d], TGL_I64, 1, SHAPE(0));
        make(&out, NULL, devices[d], TGL_I32, 2, SHAPE(0, 3));
        CHECK_OK(tgl_engram_ngram_windows(&ids.t, NULL, NULL, NULL, &out.t, &params, NULL));
    }
}

/* ---- errors ---- */

OP(engram_ngram_windows, t[0], t[1], t[2], t[3], t[4], params)
#define GOOD_CALL CALL_OF(engram_ngram_windows, "num_tokens=3 num_requests=2 max_ngram=3 vocabulary=5")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[2].shape[0] = 1, "history: shape is [1, 2], want [2, 2]");
    CHECK_ERROR(x[4].shape[1] = 2; x[4].strides = NULL, "history: shape is [2, 2], want [2, 1]");
    CHECK_ERROR(c->tensors[1] = NULL, "cu_seqlens: is NULL, want a tensor with 2 requests");
    CHECK_ERROR(x[4].shape[1] = 4097; x[4].strides = NULL, "out: shape is [3, 4097], want [3, 1..4096]");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
