/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/engram/common/engram.h"
#include "core/status.h"
#include "tegula/experimental.h"

/* Parameters:
 *   sf           e8m0 (u8), ue8m0 (the dtype), record (u8, in the table, behind the codes of a row)
 *   indices      valid      rows of the table, each as likely
 *                some       a third is foreign: negative, below row_begin, past the last
 *                bits       any
 *                none       no tensor
 *   indices_at   device, host
 *   index_layout tc, ct: which dimension is the outer one
 *   gap, sf_gap, index_gap    between rows of these
 *   extra        bytes of staging that are not needed */
enum { TABLE, TABLE_SF, INDICES, STAGING, OUT };

static void fill_indices(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int kind = case_word(c, "indices", "valid some bits");
    const int64_t rows = c->tensors[TABLE].shape[0];
    const int64_t begin = strtoll(case_text(c, "row_begin"), NULL, 10);
    for (int64_t i = 0; i < t->slots; i++) {
        const uint64_t random = case_random(seed, i);
        int64_t row = begin + case_random_below(seed, i, rows);
        if (rows == 0 || (kind == 1 && random % 3 == 0))
            row = (int64_t[]){ -1, INT32_MIN, begin - 1, begin + rows, INT32_MAX }[(random >> 8) % 5];
        if (kind == 2) row = (int64_t)random;
        if (t->element_bytes == 4) ((int32_t *)(void *)t->storage)[i] = (int32_t)row;
        else ((int64_t *)(void *)t->storage)[i] = row;
    }
}

static tgl_status setup(case_problem *c)
{
    const int64_t tokens = case_int(c, "num_tokens"), columns = case_int(c, "num_columns"), dim = case_int(c, "dim");
    const int64_t rows = case_int(c, "num_rows"), groups = dim / 32, n = tokens * columns;
    const bool is_record = case_is(c, "sf", "record"), has_indices = !case_is(c, "indices", "none");
    TGL_TRY(case_check_word(c, "sf", "e8m0 ue8m0 record"));
    TGL_TRY(case_check_word(c, "indices", "valid some bits none"));
    TGL_TRY(case_check_word(c, "indices_at", "device host"));
    TGL_TRY(case_check_word(c, "index_layout", "tc ct"));
    tgl_engram_lookup_params *params = (void *)c->scalars;
    *params = (tgl_engram_lookup_params){ .row_begin = case_int(c, "row_begin") };

    const int64_t period = rows >= (int64_t)1 << 25 ? (int64_t)1 << 18 : 0; /* rows */
    case_tensor *t =
        case_add(c, TABLE, "table", CASE_IN, TGL_E4M3, 2, (int64_t[]){ rows, is_record ? dim + groups : dim });
    t->strides[0] += case_int(c, "gap");
    t->on_host = true;
    t->period = period * t->strides[0];
    if (!is_record) {
        t = case_add(c, TABLE_SF, "table_sf", CASE_IN, case_is(c, "sf", "e8m0") ? TGL_U8 : TGL_UE8M0, 2,
                     (int64_t[]){ rows, groups });
        t->strides[0] += case_int(c, "sf_gap");
        t->on_host = true;
        t->period = period * t->strides[0];
    }
    int64_t index_bytes = 0;
    if (has_indices) {
        t = case_add(c, INDICES, "indices", CASE_IN, case_dtype(c, "index_dtype"), 2, (int64_t[]){ tokens, columns });
        t->fill = fill_indices;
        t->strides[0] += case_int(c, "index_gap");
        if (case_is(c, "index_layout", "ct")) t->strides[0] = 1, t->strides[1] = tokens + case_int(c, "index_gap");
        t->on_host = case_is(c, "indices_at", "host");
        index_bytes = case_is(c, "index_dtype", "i64") ? 8 : 4;
    }
    const int64_t bytes = (n * index_bytes + 255) / 256 * 256 + n * (dim + groups) + case_int(c, "extra");
    t = case_add(c, STAGING, "staging", CASE_OUT, TGL_U8, 1, (int64_t[]){ bytes });
    t->on_host = t->is_scratch = true;
    case_add(c, OUT, "out", CASE_OUT, TGL_U8, 3, (int64_t[]){ tokens, columns, dim + groups });
    return TGL_OK;
}

static int64_t dim_of(const case_problem *c) { return strtoll(case_text(c, "dim"), NULL, 10); }

static tgl_status run(const case_arguments *a)
{
    const DLTensor *table = a->arg[TABLE], *table_sf = a->arg[TABLE_SF];
    const int64_t dim = dim_of(a->problem), groups = dim / 32;
    int64_t codes_shape[] = { 0, dim }, factors_shape[] = { 0, groups };
    DLTensor codes, factors;
    /* two views, unless a test has changed the table */
    if (case_is(a->problem, "sf", "record") && table && table->ndim == 2 && table->shape &&
        table->shape[1] == dim + groups) {
        codes = factors = *table;
        codes_shape[0] = factors_shape[0] = table->shape[0];
        codes.shape = codes_shape;
        factors.shape = factors_shape;
        factors.dtype = tgl_dtype_to_dlpack(TGL_U8);
        factors.byte_offset += (uint64_t)dim;
        table = &codes, table_sf = &factors;
    }
    return tgl_engram_lookup_staged(table, table_sf, a->arg[INDICES], a->arg[STAGING], a->arg[OUT],
                                    (const void *)a->problem->scalars, a->stream);
}

/* By search among the numbers of the table's rows. */
static void oracle(case_problem *c)
{
    const tgl_engram_lookup_params *params = (const void *)c->scalars;
    const case_tensor *table = &c->tensors[TABLE], *sf = &c->tensors[TABLE_SF], *indices = &c->tensors[INDICES];
    const case_tensor *out = &c->tensors[OUT];
    const int64_t dim = dim_of(c);
    for (int64_t t = 0; t < out->shape[0]; t++)
        for (int64_t k = 0; k < out->shape[1]; k++) {
            __int128 row = t * out->shape[1] + k;
            if (indices->name) row = engram_integer(indices, (int64_t[]){ t, k });
            row -= params->row_begin;
            const bool is_there = row >= 0 && row < table->shape[0];
            for (int64_t i = 0; i < out->shape[2]; i++) {
                const case_tensor *from = i < dim || !sf->name ? table : sf;
                const int64_t column = from == sf ? i - dim : i;
                unsigned char *to = case_element(out, (int64_t[]){ t, k, i });
                *to = is_there ? *(unsigned char *)case_element(from, (int64_t[]){ (int64_t)row, column }) : 0;
            }
        }
}

/* As those of a lookup with packed rows: what is staged does not count. */
static int64_t bytes(const case_problem *c)
{
    const int64_t out = case_tensor_bytes(&c->tensors[OUT]);
    return 2 * out + (c->tensors[INDICES].name ? case_tensor_bytes(&c->tensors[INDICES]) : 0);
}

/* The rows that the CPU's threads read from memory, read by the GPU over the bus instead. */
static bool gather(const case_problem *c, case_gathered *which)
{
    const case_tensor *indices = &c->tensors[INDICES];
    *which = (case_gathered){ TABLE, c->tensors[TABLE_SF].name ? TABLE_SF : -1, INDICES };
    return case_is(c, "indices", "valid") && case_is(c, "row_begin", "0") && indices->dtype == TGL_I32 &&
           !indices->on_host;
}

#define FLASH "num_columns=24 dim=256 num_rows=68000000 indices=valid" /* DeepSeek-V4.1-Flash */
// clang-format off: lines of cases
const case_op lookup_staged_cases = {
    "engram_lookup_staged",
    "num_tokens= num_columns=3 dim=256 num_rows=1000 sf=e8m0 indices=some index_dtype=i32 indices_at=device "
    "index_layout=tc row_begin=0 gap=0 sf_gap=0 index_gap=0 extra=0",
    setup, run, oracle, bytes, NULL, .gather = gather,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,7,50 num_columns=0,1,24 dim=0,32,160",
        "num_tokens=9 sf=e8m0,ue8m0,record gap=0,24 sf_gap=0,3 row_begin=0,5000",
        "num_tokens=40 indices=valid,bits,none index_dtype=i32,i64 indices_at=device,host row_begin=0,7 extra=0,5",
        "num_tokens=1,13 index_gap=0,5 index_layout=tc,ct index_dtype=i32,i64 indices_at=device,host",
        "num_tokens=14 num_rows=0,1,30",
        "num_tokens=300 num_columns=24"),
    .lists[CASE_SLOW] = CASE_LINES("num_tokens=8192 num_columns=24 num_rows=9000000 index_dtype=i32,i64"),
    .lists[CASE_BENCH] = CASE_LINES("num_tokens=1,16,128,1024,8192 " FLASH,
                                    "num_tokens=128,8192 " FLASH " sf=record gap=24"),
    .has_no_kernel = true,
};
// clang-format on
