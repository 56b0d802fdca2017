/* SPDX-License-Identifier: MIT */
#include "cases/engram/common/requests.h"
#include "core/status.h"

enum { IDS, CU, HISTORY, LOOKUP, WINDOWS };

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "max_ngram"), v = case_int(c, "vocabulary");
    const tgl_engram_ngram_windows_params params = { .pad_id = case_int(c, "pad_id"),
                                                     .has_stop_id = !case_is(c, "stop_id", "none"),
                                                     .stop_id =
                                                         case_is(c, "stop_id", "none") ? 5 : case_int(c, "stop_id") };
    memcpy(c->scalars, &params, sizeof params);
    case_tensor *ids = case_add(c, IDS, "input_ids", CASE_IN, case_dtype(c, "id_dtype"), 1, &t);
    ids->strides[0] = case_int(c, "stride");
    TGL_TRY(engram_choose_ids(c, ids, "ids"));
    TGL_TRY(engram_add_cu_seqlens(c, CU));
    if (!case_is(c, "history", "none")) {
        case_tensor *history = case_add(c, HISTORY, "history", CASE_IN, case_dtype(c, "history"), 2,
                                        (int64_t[]){ engram_num_requests(c), n - 1 });
        history->strides[0] += case_int(c, "gap");
        TGL_TRY(engram_choose_ids(c, history, "ids"));
    }
    if (v > 0) case_add(c, LOOKUP, "lookup", CASE_IN, TGL_I32, 1, &v);
    case_tensor *out = case_add(c, WINDOWS, "out", CASE_OUT, case_dtype(c, "out_dtype"), 2, (int64_t[]){ t, n });
    out->strides[0] += case_int(c, "gap");
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_engram_ngram_windows(a->arg[IDS], a->arg[CU], a->arg[HISTORY], a->arg[LOOKUP], a->arg[WINDOWS],
                                    (const void *)a->problem->scalars, a->stream);
}

/* The id of a slot, or where it is pad: from the oldest slot to the newest, each by itself. */
static bool has_id(const case_problem *c, const engram_request *r, int64_t token, int64_t i, int64_t *id)
{
    const case_tensor *history = &c->tensors[HISTORY];
    const int64_t at = token - i, before = r->first - at;
    if (at >= r->first) *id = engram_integer(&c->tensors[IDS], &at);
    else if (!history->name) return false;
    else *id = engram_integer(history, (int64_t[]){ r->number, history->shape[1] - before });
    return true;
}

static void oracle(case_problem *c)
{
    tgl_engram_ngram_windows_params params;
    memcpy(&params, c->scalars, sizeof params);
    const case_tensor *out = &c->tensors[WINDOWS], *lookup = &c->tensors[LOOKUP];
    for (int64_t t = 0; t < out->shape[0]; t++) {
        const engram_request r = engram_request_of(&c->tensors[CU], out->shape[0], t);
        for (int64_t i = 0; i < out->shape[1]; i++) {
            int64_t id = 0;
            bool is_there = r.number >= 0 && has_id(c, &r, t, i, &id);
            for (int64_t k = 1, other; k <= i && is_there && params.has_stop_id; k++)
                is_there = has_id(c, &r, t, k, &other) && other != params.stop_id;
            if (is_there && lookup->name && id >= 0 && id < lookup->shape[0]) id = engram_integer(lookup, &id);
            if (!is_there) id = params.pad_id;
            memcpy(case_element(out, (int64_t[]){ t, i }), &id, (size_t)out->element_bytes);
        }
    }
}

/* A token: its id, its entry of the map, its window. */
static int64_t bytes(const case_problem *c)
{
    int64_t sum = 0;
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name && i != LOOKUP) sum += case_tensor_bytes(&c->tensors[i]);
    return sum + (c->tensors[LOOKUP].name ? 4 * c->tensors[IDS].shape[0] : 0);
}

// clang-format off: lines of cases
const case_op ngram_windows_cases = {
    "engram_ngram_windows",
    "num_tokens= max_ngram=3 " ENGRAM_REQUESTS " ids=valid id_dtype=i32 stride=1 history=none vocabulary=0 pad_id=2 "
    "stop_id=none out_dtype=i32 gap=0",
    setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,31,33,255,256,257,600 max_ngram=1,2,3,4 requests=none,1,7 history=none,i32",
        "num_tokens=70 max_ngram=1,2,3,4,5,6,7,8,9,40 requests=none,2,30,300 history=none,i64 ids=small stop_id=none,1",
        "num_tokens=71 max_ngram=3,9 requests=none,20 ids=valid,small,bits id_dtype=i32,i64 vocabulary=0,5,100000 "
        "out_dtype=i32,i64 history=i32,i64",
        "num_tokens=70,300 max_ngram=4 requests=7,260,1023,1024,1025,2300 cu=whole,padded,wild cu_dtype=i32,i64 ids=small "
        "stop_id=1 history=i32",
        "num_tokens=600 max_ngram=3 requests=0,1,3,40 cu=whole,padded,wild stop_id=7",
        "num_tokens=40 stride=0,1,3 gap=0,1 requests=none,5 history=i32 pad_id=-1,0,7 stop_id=-1,5 ids=small vocabulary=9",
        "num_tokens=3,300 max_ngram=4095,4096,1500 requests=none,2 ids=small stop_id=none history=i32"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=1000000 max_ngram=3,4 requests=none,40 vocabulary=129280"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,8192,65536 max_ngram=4 vocabulary=129280",
        "num_tokens=8192 max_ngram=4 vocabulary=129280 requests=16",
        "num_tokens=128 max_ngram=4 vocabulary=129280 requests=128 history=i32"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 max_ngram=1,2,3,4,5,6,7,8,9", "num_tokens=64 max_ngram=3 history=i32,i64 id_dtype=i64"),
    .models = CASE_LINES("num_tokens=64 max_ngram={engram_ngram}"),
};
// clang-format on
