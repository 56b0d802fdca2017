/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/engram/common/requests.h"
#include "core/status.h"

enum { IDS, MASK, HISTORY, RING, CU, START, SLOTS, MAP, COLUMNS, ROWS = COLUMNS + ENGRAM_OUT };

/* What run() needs beside the tensors. */
typedef struct {
    tgl_engram_batch batch;
    tgl_engram_ngram ngram;
} settings;
_Static_assert(sizeof(settings) <= CASE_SCALARS, "settings are too large");

/* ---- tensors ---- */

static tgl_status add_past(case_problem *c, int64_t requests, int64_t n)
{
    TGL_TRY(case_check_word(c, "past", "none history newest ring"));
    TGL_TRY(case_check_word(c, "start", "none small zero large bits"));
    TGL_TRY(case_check_word(c, "slots", "none shuffled wild"));
    const tgl_dtype dtype = case_dtype(c, "past_dtype"), batch_dtype = case_dtype(c, "batch_dtype");
    if (case_is(c, "past", "history") || case_is(c, "past", "newest")) {
        case_tensor *t = case_add(c, HISTORY, "history", CASE_IN, dtype, 2, (int64_t[]){ requests, n - 1 });
        t->strides[0] += case_int(c, "gap");
        TGL_TRY(engram_choose_ids(c, t, "ids"));
    }
    if (case_is(c, "past", "ring")) {
        case_tensor *t = case_add(c, RING, "ring", CASE_INOUT, dtype, 2,
                                  (int64_t[]){ requests + case_int(c, "more_slots"), n - 1 + case_int(c, "drafts") });
        t->strides[0] += case_int(c, "gap");
        TGL_TRY(engram_choose_ids(c, t, "ids"));
        if (!case_is(c, "slots", "none"))
            case_add(c, SLOTS, "slots", CASE_IN, batch_dtype, 1, &requests)->fill = engram_fill_slots;
    }
    if (!case_is(c, "start", "none"))
        case_add(c, START, "start_pos", CASE_IN, batch_dtype, 1, &requests)->fill = engram_fill_starts;
    return TGL_OK;
}

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "max_ngram"), v = case_int(c, "vocabulary");
    const settings s = {
        .batch = { .has_null_slot = case_is(c, "slots", "wild"), .null_slot = ENGRAM_NULL_SLOT },
        .ngram = { .pad_id = case_int(c, "pad_id"),
                   .has_stop_id = !case_is(c, "stop_id", "none"),
                   .stop_id = case_is(c, "stop_id", "none") ? 5 : case_int(c, "stop_id"),
                   .history_newest_first = case_is(c, "past", "newest"),
                   .hash_masked = case_int(c, "hash_masked") != 0,
                   .keep_ring = case_int(c, "keep_ring") != 0 },
    };
    memcpy(c->scalars, &s, sizeof s);
    case_tensor *ids = case_add(c, IDS, "input_ids", CASE_IN, case_dtype(c, "id_dtype"), 1, &t);
    ids->strides[0] = case_int(c, "stride");
    TGL_TRY(engram_choose_ids(c, ids, "ids"));
    TGL_TRY(case_check_word(c, "mask", "none no all some"));
    engram_add_mask(c, MASK, "image_token_mask", t);
    TGL_TRY(add_past(c, engram_num_requests(c), n));
    TGL_TRY(engram_add_cu_seqlens(c, CU));
    if (v != 0) { /* 0: no map; -1: one without entries */
        case_tensor *map = case_add(c, MAP, "token_map", CASE_IN, TGL_I32, 1, (int64_t[]){ v > 0 ? v : 0 });
        map->fill = case_fill_uniform, map->low = 0, map->high = (double)(v * 3 / 4 + 1);
    }
    TGL_TRY(engram_add_columns(c, COLUMNS, "rows"));
    case_tensor *rows = &c->tensors[ROWS];
    const int64_t columns = rows->shape[2], apart = columns + case_int(c, "gap");
    TGL_TRY(case_check_word(c, "layout", "ltc tlc"));
    rows->strides[0] = case_is(c, "layout", "tlc") ? apart : apart * t;
    rows->strides[1] = case_is(c, "layout", "tlc") ? apart * rows->shape[0] : apart;
    rows->offset = case_int(c, "out_offset");
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    settings s;
    memcpy(&s, a->problem->scalars, sizeof s);
    s.batch.cu_seqlens = a->arg[CU], s.batch.start_pos = a->arg[START], s.batch.slots = a->arg[SLOTS];
    s.ngram.token_map = a->arg[MAP], s.ngram.multipliers = a->arg[COLUMNS + ENGRAM_MULTIPLIERS];
    s.ngram.vocab_sizes = a->arg[COLUMNS + ENGRAM_VOCAB_SIZES], s.ngram.offsets = a->arg[COLUMNS + ENGRAM_OFFSETS];
    const bool has_batch = a->arg[CU] || a->arg[START] || a->arg[SLOTS] || s.batch.has_null_slot;
    return tgl_engram_rows(a->arg[IDS], a->arg[MASK], a->arg[HISTORY], a->arg[RING], a->arg[ROWS],
                           has_batch ? &s.batch : NULL, &s.ngram, a->stream);
}

/* ---- oracle: the specification, step by step ---- */

typedef struct {
    const case_problem *c;
    settings s;
    engram_request r;
    int64_t start, slot; /* slot -1: none */
} request;

static request request_at(const case_problem *c, int64_t token)
{
    request q = { .c = c, .r = engram_request_of(&c->tensors[CU], c->tensors[IDS].shape[0], token), .slot = -1 };
    memcpy(&q.s, c->scalars, sizeof q.s);
    if (q.r.number < 0) return q;
    q.start = c->tensors[HISTORY].name ? INT64_MAX : 0;
    if (c->tensors[START].name) q.start = engram_integer(&c->tensors[START], &q.r.number);
    if (q.start < 0) q.start = 0;
    if (!c->tensors[RING].name) return q;
    const int64_t slot = c->tensors[SLOTS].name ? engram_integer(&c->tensors[SLOTS], &q.r.number) : q.r.number;
    const bool is_null = q.s.batch.has_null_slot && slot == q.s.batch.null_slot;
    if (slot >= 0 && slot < c->tensors[RING].shape[0] && !is_null) q.slot = slot;
    return q;
}

/* Step 1; the ring is read as it was before the call. */
static int64_t raw(const request *q, int64_t p)
{
    const case_tensor *t = q->c->tensors, *ring = &t[RING];
    const int64_t token = q->r.first + p, a = -p;
    if (p >= 0) return t[MASK].name && engram_integer(&t[MASK], &token) ? -1 : engram_integer(&t[IDS], &token);
    if (a > q->start) return -1;
    if (t[HISTORY].name) {
        const int64_t n = t[HISTORY].shape[1];
        return engram_integer(&t[HISTORY], (int64_t[]){ q->r.number, q->s.ngram.history_newest_first ? a - 1 : n - a });
    }
    if (q->slot < 0) return -1;
    const int64_t slot = q->slot * ring->strides[0] + (q->start - a) % ring->shape[1];
    const char *before = ring->initial ? ring->initial : ring->storage;
    return ring->element_bytes == 4 ? ((const int32_t *)before)[slot] : ((const int64_t *)before)[slot];
}

static bool is_dead(const request *q, int64_t id) /* step 2 */
{
    const case_tensor *map = &q->c->tensors[MAP];
    return id < 0 || (map->name && id >= map->shape[0]);
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const int64_t n = c->tensors[COLUMNS + ENGRAM_MULTIPLIERS].shape[1];
    int64_t *window = case_memory(n, sizeof *window);
    for (int64_t t = begin; t < end; t++) {
        const request q = request_at(c, t);
        bool is_blocked = false, has_rows = q.r.number >= 0;
        for (int64_t i = 0; i < n && has_rows; i++) { /* step 3 */
            const int64_t v = raw(&q, t - q.r.first - i);
            is_blocked |= is_dead(&q, v) || (i > 0 && q.s.ngram.has_stop_id && v == q.s.ngram.stop_id);
            window[i] = is_blocked ? q.s.ngram.pad_id : c->tensors[MAP].name ? engram_integer(&c->tensors[MAP], &v) : v;
        }
        if (has_rows && is_dead(&q, raw(&q, t - q.r.first))) has_rows = q.s.ngram.hash_masked;
        engram_put_rows(c, COLUMNS, t, has_rows ? window : NULL);
    }
    free(window);
}

static void oracle(case_problem *c)
{
    const int64_t tokens = c->tensors[IDS].shape[0];
    case_tensor *ring = &c->tensors[RING];
    case_parallel(tokens, 4096, oracle_rows, c);
    for (int64_t t = 0; t < tokens && ring->name && ring->shape[1] > 0; t++) { /* step 7, token by token */
        const request q = request_at(c, t);
        if (q.r.number < 0 || q.slot < 0 || q.s.ngram.keep_ring) continue;
        int64_t id = raw(&q, t - q.r.first);
        if (is_dead(&q, id) || (ring->element_bytes == 4 && id > INT32_MAX)) id = -1;
        const uint64_t at = ((uint64_t)q.start + (uint64_t)(t - q.r.first)) % (uint64_t)ring->shape[1];
        memcpy(case_element(ring, (int64_t[]){ q.slot, (int64_t)at }), &id, (size_t)ring->element_bytes);
    }
}

/* A token: its id, its entry of the map, its rows. */
static int64_t bytes(const case_problem *c)
{
    int64_t sum = 0;
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name && i != MAP) sum += case_tensor_bytes(&c->tensors[i]);
    return sum + (c->tensors[MAP].name ? 4 * c->tensors[IDS].shape[0] : 0);
}

// clang-format off: lines of cases
const case_op rows_cases = {
    "engram_rows",
    "num_tokens= " ENGRAM_COLUMNS " " ENGRAM_REQUESTS " id_dtype=i32 ids=valid stride=1 mask=none vocabulary=0 pad_id=2 "
    "stop_id=none past=none past_dtype=i32 batch_dtype=i32 start=none slots=none more_slots=0 drafts=2 "
    "hash_masked=0 keep_ring=0 layout=ltc gap=0 out_offset=0",
    setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,31,32,33,129,300 max_ngram=2,3,4 requests=none,1,7 past=none,history",
        "num_tokens=70 max_ngram=1,2,3,4,5,8,9,40 num_heads=1,3,8 num_layers=1,2,5 requests=30 ids=small mask=some "
        "stop_id=1 past=history",
        "num_tokens=70 max_ngram=6,7 requests=30 ids=small mask=some stop_id=1",
        "num_tokens=33,96 max_ngram=5,6,7,8 requests=none ids=small mask=some stop_id=1 vocabulary=0,6 hash_masked=0,1",
        "num_tokens=96 max_ngram=4 num_heads=64 num_layers=4 requests=none ids=small",
        "num_tokens=70 max_ngram=9 requests=7 ids=small vocabulary=7 mask=some stop_id=2 past=history",
        "num_tokens=70 max_ngram=4 num_heads=0,4 requests=7 past=none,history,newest start=none,small,zero ids=small "
        "mask=none,no,all,some stop_id=none,5 hash_masked=0,1",
        "num_tokens=70 max_ngram=4 num_heads=0,4 requests=7 past=ring start=small,zero ids=small mask=none,no,all,some "
        "stop_id=none,5 hash_masked=0,1",
        "num_tokens=70 requests=none past=none,history,newest start=none,small,large batch_dtype=i64 ids=small "
        "vocabulary=0,6 mask=some",
        "num_tokens=70 requests=none past=ring start=small,large batch_dtype=i64 ids=small vocabulary=0,6 mask=some",
        "num_tokens=40 requests=none,3 past=none,ring start=small ids=small vocabulary=-1 hash_masked=0,1 max_ngram=3,9",
        "num_tokens=70 max_ngram=4 requests=7,300 cu=whole,padded,wild cu_dtype=i32,i64 ids=small vocabulary=7 "
        "past=history mask=some stop_id=2 layout=tlc",
        "num_tokens=60 num_heads=4 requests=9 vocab_dtype=i32,i64 offset_dtype=i32,i64 out_dtype=i32,i64 past=history,ring "
        "start=small ids=bits",
        "num_tokens=61 num_heads=4 requests=9 id_dtype=i32,i64 past=history,ring past_dtype=i32,i64 batch_dtype=i32,i64 "
        "start=small ids=bits,small",
        "num_tokens=0 requests=none,7 past=ring start=small keep_ring=0,1",
        /* chunks shorter and longer than the ring, all in one block, or over many */
        "num_tokens=6,40,300 max_ngram=1,2,4,7 requests=1,3,20,100 past=ring start=small drafts=0,2,6 ids=small "
        "mask=some num_layers=1",
        "num_tokens=300 max_ngram=4,9 num_heads=64 num_layers=4 requests=3,100 past=ring start=small drafts=0,3 ids=small",
        "num_tokens=70 max_ngram=4 requests=20 past=ring start=small,bits slots=none,shuffled,wild more_slots=0,3 "
        "past_dtype=i64 keep_ring=0,1 ids=small,bits vocabulary=0,9",
        "num_tokens=70 max_ngram=4 requests=20 cu=padded,wild past=ring start=small,large batch_dtype=i64 slots=shuffled "
        "drafts=0,2 ids=small mask=some stop_id=1",
        "num_tokens=40 num_heads=2,4 stride=0,3 gap=0,1,4 layout=ltc,tlc out_offset=0,1 requests=5 past=ring "
        "start=small",
        "num_tokens=70 max_ngram=4 requests=7 ids=valid,bits multipliers=small,bits moduli=thousands,edges,any,bits "
        "offsets=sums,bits vocabulary=0,90000 pad_id=-1,99091 past=history",
        "num_tokens=70 max_ngram=300 num_heads=1 num_layers=1 requests=2 past=history,ring start=small ids=small",
        "num_tokens=3 max_ngram=4096 num_heads=1 num_layers=1 requests=2 past=history,ring start=small ids=small"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=1000000 max_ngram=2,3,4,5 requests=none,300 vocabulary=129280 mask=some",
        "num_tokens=8192,65536 max_ngram=4 requests=1,2,7,300,5000 past=ring,history start=small,large batch_dtype=i64 "
        "ids=small vocabulary=7 mask=some stop_id=1 layout=ltc,tlc"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,8192,65536 max_ngram=4 vocabulary=129280",
        "num_tokens=8192,65536 max_ngram=4 vocabulary=129280 layout=tlc",
        "num_tokens=8192,65536 max_ngram=3 num_layers=1 stop_id=5",
        "num_tokens=8192 max_ngram=4 vocabulary=129280 requests=16 past=ring start=small mask=some",
        "num_tokens=128 max_ngram=4 vocabulary=129280 requests=128 past=ring start=small slots=shuffled",
        "num_tokens=768 max_ngram=4 vocabulary=129280 requests=128 past=ring start=small slots=shuffled drafts=6",
        "num_tokens=128 max_ngram=4 vocabulary=129280 requests=128 past=history"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 max_ngram=1,2,3,4,5,6,7,8,9 start=small",
        "num_tokens=64 max_ngram=2,4,8,9 past=ring start=small", "num_tokens=64 max_ngram=4,8 past=history",
        "num_tokens=64 max_ngram=3 past=history,ring past_dtype=i32,i64 id_dtype=i64 start=small",
        "num_tokens=64 max_ngram=3 num_heads=1,2,8 out_dtype=i32,i64 vocab_dtype=i32,i64",
        "num_tokens=64 max_ngram=3 out_dtype=i32,i64 offset_dtype=i64"),
    .models = CASE_LINES(
        "num_tokens=4096 max_ngram={engram_ngram} num_layers={engram_layers} num_heads={engram_heads} "
        "vocabulary={engram_vocabulary} past=none,history,ring start=small"),
};
// clang-format on
