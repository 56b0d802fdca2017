/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/engram/common/engram.h"
#include "core/status.h"

enum { IDS, COLUMNS, MASK = COLUMNS + ENGRAM_NUM_COLUMN_TENSORS };

static tgl_status setup(case_problem *c)
{
    const int64_t t = case_int(c, "num_tokens");
    case_tensor *ids = case_add(c, IDS, "ngram_token_ids", CASE_IN, case_dtype(c, "id_dtype"), 2,
                                (int64_t[]){ t, case_int(c, "max_ngram") });
    ids->strides[0] += case_int(c, "gap");
    ids->offset = case_int(c, "offset");
    TGL_TRY(engram_choose_ids(c, ids, "ids"));
    TGL_TRY(engram_add_columns(c, COLUMNS, "out"));
    c->tensors[COLUMNS + ENGRAM_OUT].offset = case_int(c, "out_offset");
    TGL_TRY(case_check_word(c, "mask", "none no all some"));
    engram_add_mask(c, MASK, "image_token_mask", t);
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    return tgl_engram_hash(a->arg[IDS], a->arg[COLUMNS + ENGRAM_MULTIPLIERS], a->arg[COLUMNS + ENGRAM_VOCAB_SIZES],
                           a->arg[COLUMNS + ENGRAM_OFFSETS], a->arg[MASK], a->arg[COLUMNS + ENGRAM_OUT], a->stream);
}

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *ids = &c->tensors[IDS];
    int64_t *window = case_memory(ids->shape[1], sizeof *window);
    for (int64_t t = begin; t < end; t++) {
        const bool is_masked = c->tensors[MASK].name && engram_integer(&c->tensors[MASK], &t);
        for (int64_t i = 0; i < ids->shape[1]; i++) window[i] = engram_integer(ids, (int64_t[]){ t, i });
        engram_put_rows(c, COLUMNS, t, is_masked ? NULL : window);
    }
    free(window);
}

static void oracle(case_problem *c) { case_parallel(c->tensors[IDS].shape[0], 4096, oracle_rows, c); }

// clang-format off: lines of cases
const case_op hash_cases = {
    "engram_hash", "num_tokens= " ENGRAM_COLUMNS " id_dtype=i32 ids=valid mask=none gap=0 offset=0 out_offset=0",
    setup, run, oracle, case_all_bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,31,32,33,127,128,129,300 max_ngram=2,3,4 mask=none,some",
        "num_tokens=35 max_ngram=1,2,3,4,5,8,9,20 num_heads=0,1,2,3,4,5,6,8,16 num_layers=1,2,7",
        "num_tokens=35 max_ngram=6,7 ids=bits multipliers=bits mask=some",
        "num_tokens=33 max_ngram=3,4 num_layers=0,1,5 num_heads=8 out_dtype=i32,i64 vocab_dtype=i32,i64 "
        "offset_dtype=i32,i64 id_dtype=i32,i64 mask=no",
        "num_tokens=40 max_ngram=2,4 num_heads=1,2,8 ids=valid,small,bits multipliers=small,model,bits "
        "moduli=thousands,millions,edges,any,bits id_dtype=i32,i64",
        "num_tokens=40 max_ngram=3 num_heads=1,2,4 ids=bits multipliers=bits moduli=edges,any,bits "
        "offsets=sums,bits vocab_dtype=i64 out_dtype=i32,i64 offset_dtype=i32,i64",
        "num_tokens=70 max_ngram=3 num_heads=4 mask=no,all,some out_dtype=i32,i64 ids=bits",
        "num_tokens=70 num_heads=2,4,8 gap=0,1,5 offset=0,1 out_offset=0,1,2,3 mask=some",
        "num_tokens=70 num_heads=2 gap=1 out_offset=1 out_dtype=i64 id_dtype=i64",
        /* more units than a block has threads; windows that are few in a tile; and one alone */
        "num_tokens=5 max_ngram=9,4 num_heads=33,64 num_layers=7",
        "num_tokens=70 max_ngram=100,300 num_heads=1,4 num_layers=1",
        "num_tokens=3 max_ngram=4095,4096 num_heads=1 num_layers=1",
        "num_tokens=2500 max_ngram=2 num_heads=1,8 num_layers=1 mask=some",
        "num_tokens=1200 max_ngram=4 num_heads=3 num_layers=28"),      /* more tiles than blocks */
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=1000000 max_ngram=2,3,4,5 num_heads=8 mask=some",
        "num_tokens=4001,8001,65536 max_ngram=2,3,4,5,8 num_heads=1,3,5,16 num_layers=1,7 multipliers=bits ids=bits",
        "num_tokens=100000 max_ngram=3 num_heads=64 num_layers=2 moduli=edges,any ids=bits vocab_dtype=i32,i64",
        "num_tokens=40000000 max_ngram=3 num_heads=16 num_layers=2"),     /* 2^31 elements and more */
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096,8192,65536 max_ngram=3",
        "num_tokens=1,8192,65536 max_ngram=4",
        "num_tokens=8192,65536 max_ngram=3 mask=some",
        "num_tokens=8192,65536 max_ngram=3 vocab_dtype=i64 offset_dtype=i64 out_dtype=i64 id_dtype=i64"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 max_ngram=2,4,5,6,7,8,9 num_heads=8",
        "num_tokens=64 max_ngram=3 num_heads=1,2,8 out_dtype=i32,i64 vocab_dtype=i32,i64",
        "num_tokens=64 max_ngram=3 out_dtype=i32,i64 offset_dtype=i64"),
    .models = CASE_LINES(
        "num_tokens=4096 max_ngram={engram_ngram} num_layers={engram_layers} num_heads={engram_heads}"),
};
// clang-format on
