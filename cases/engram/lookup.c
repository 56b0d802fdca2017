/* SPDX-License-Identifier: MIT */
#include <stdlib.h>

#include "cases/engram/common/engram.h"
#include "core/status.h"

/* Parameters:
 *   sf       none, e8m0 (u8), ue8m0 (the dtype), one (f32), record (u8, in the table, behind the codes of a row)
 *   out      bf16, same (as the table), packed, gemm (codes, and factors as a GEMM takes them)
 *   indices  valid      rows of the table, each as likely
 *            zipf       some far more often than others
 *            equal      one row
 *            some       a third is foreign: negative, below row_begin, past the last
 *            foreign    all are
 *            bits       any
 *            none       no tensor
 *            sorted     as valid, in ascending order
 *   at       device, host: where the table is; huge: in host memory, in huge pages
 *   index_layout, out_layout   tc, ct: which dimension is the outer one
 *   gap, sf_gap      between rows of the table, and of its factors
 *   index_gap, out_gap, out_sf_gap   between rows of these, or tokens
 *   values   bits, normal    of the table; factors are any bytes, or around 1 */
enum { TABLE, TABLE_SF, INDICES, OUT, OUT_SF };

/* ---- inputs ---- */

/* Rank k of n with a probability of about 1 / k, the ranks scattered over the rows. */
static int64_t zipf(uint64_t random, int64_t n)
{
    int bits = 0;
    while (bits < 62 && (int64_t)1 << (bits + 1) <= n) bits++;
    const int64_t below = (int64_t)1 << (random % (uint64_t)(bits + 1)); /* an octave, and a rank in it */
    const int64_t rank = below - 1 + (int64_t)(random >> 8) % below;
    return (int64_t)((uint64_t)(rank % n) * 0x9e3779b97f4a7c15u % (uint64_t)n);
}

static void fill_indices(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int kind = case_word(c, "indices", "valid zipf equal some foreign bits sorted");
    const int64_t rows = c->tensors[TABLE].shape[0];
    const int64_t begin = strtoll(case_text(c, "row_begin"), NULL, 10);
    for (int64_t i = 0; i < t->slots; i++) {
        const uint64_t random = case_random(seed, i);
        int64_t row = begin + case_random_below(seed, i, rows);
        if (kind == 1 && rows) row = begin + zipf(random, rows);
        if (kind == 2) row = begin + rows / 2;
        if (kind == 4 || (kind == 3 && random % 3 == 0) || rows == 0) {
            const int64_t any[] = { -1,        INT32_MIN, begin - 1, begin + rows, begin + rows + 1000,
                                    INT32_MAX, INT64_MIN, INT64_MAX };
            row = any[(random >> 8) % (t->element_bytes == 4 ? 6 : 8)];
        }
        if (kind == 5) row = (int64_t)random;
        if (kind == 6 && rows > 0) row = begin + (int64_t)((double)i / (double)t->slots * (double)rows);
        if (t->element_bytes == 4) ((int32_t *)(void *)t->storage)[i] = (int32_t)row;
        else ((int64_t *)(void *)t->storage)[i] = row;
    }
}

static void fill_factors(const case_problem *c, case_tensor *t, uint64_t seed)
{
    for (int64_t i = 0; i < t->slots; i++) t->storage[i] = (char)(120 + case_random_below(seed, i, 12));
}

static tgl_status setup(case_problem *c)
{
    const int64_t tokens = case_int(c, "num_tokens"), columns = case_int(c, "num_columns");
    const int64_t dim = case_int(c, "dim"), rows = case_int(c, "num_rows");
    const bool on_host = !case_is(c, "at", "device"), is_normal = case_is(c, "values", "normal");
    TGL_TRY(case_check_word(c, "at", "device host huge"));
    TGL_TRY(case_check_word(c, "values", "bits normal"));
    TGL_TRY(case_check_word(c, "sf", "none e8m0 ue8m0 one record"));
    TGL_TRY(case_check_word(c, "out", "bf16 same packed gemm"));
    TGL_TRY(case_check_word(c, "indices", "valid zipf equal some foreign bits sorted none"));
    TGL_TRY(case_check_word(c, "index_layout", "tc ct"));
    TGL_TRY(case_check_word(c, "out_layout", "tc ct"));
    tgl_engram_lookup_params *params = (void *)c->scalars;
    *params = (tgl_engram_lookup_params){ .row_begin = case_int(c, "row_begin"),
                                          .num_sms = case_int(c, "num_sms"),
                                          .constant_table = case_int(c, "constant_table") };

    const int64_t period = rows >= (int64_t)1 << 25 ? (int64_t)1 << 18 : 0; /* rows */
    const bool is_record = case_is(c, "sf", "record");
    const int64_t width_in = is_record ? dim + (dim + 31) / 32 : dim;
    case_tensor *t = case_add(c, TABLE, "table", CASE_IN, case_dtype(c, "dtype"), 2, (int64_t[]){ rows, width_in });
    t->strides[0] += case_int(c, "gap");
    t->offset = case_int(c, "offset");
    t->on_host = on_host;
    t->period = period * (is_record ? t->strides[0] : dim);
    t->has_huge_pages = case_is(c, "at", "huge");
    if (is_normal) t->fill = case_fill_normal;
    if (case_is(c, "sf", "one")) {
        t = case_add(c, TABLE_SF, "table_sf", CASE_IN, TGL_F32, 1, (int64_t[]){ 1 });
        if (is_normal) t->fill = case_fill_normal;
    } else if (!case_is(c, "sf", "none") && !is_record) {
        t = case_add(c, TABLE_SF, "table_sf", CASE_IN, case_is(c, "sf", "e8m0") ? TGL_U8 : TGL_UE8M0, 2,
                     (int64_t[]){ rows, (dim + 31) / 32 });
        t->strides[0] += case_int(c, "sf_gap");
        t->offset = case_int(c, "sf_offset");
        t->on_host = on_host;
        t->period = period * ((dim + 31) / 32);
        t->has_huge_pages = case_is(c, "at", "huge");
        if (is_normal) t->fill = fill_factors;
    }
    if (!case_is(c, "indices", "none")) {
        t = case_add(c, INDICES, "indices", CASE_IN, case_dtype(c, "index_dtype"), 2, (int64_t[]){ tokens, columns });
        t->fill = fill_indices;
        t->strides[0] += case_int(c, "index_gap");
        if (case_is(c, "index_layout", "ct")) t->strides[0] = 1, t->strides[1] = tokens + case_int(c, "index_gap");
    }
    const bool is_packed = case_is(c, "out", "packed"), has_sf = case_is(c, "out", "gemm");
    const tgl_dtype dtype = case_is(c, "out", "bf16") ? TGL_BF16 : is_packed ? TGL_U8 : case_dtype(c, "dtype");
    const int64_t width = is_packed ? dim + dim / 32 : dim;
    t = case_add(c, OUT, "out", CASE_OUT, dtype, 3, (int64_t[]){ tokens, columns, width });
    t->offset = case_int(c, "out_offset");
    t->strides[1] = width + case_int(c, "out_gap");
    t->strides[0] = t->strides[1] * columns + case_int(c, "out_token_gap");
    if (case_is(c, "out_layout", "ct")) t->strides[0] = t->strides[1], t->strides[1] *= tokens;
    if (has_sf) {
        const int64_t words = (columns * dim + 127) / 128;
        t = case_add(c, OUT_SF, "out_sf", CASE_OUT, TGL_I32, 2, (int64_t[]){ tokens, words });
        t->strides[0] = 1;
        t->strides[1] = tokens + case_int(c, "out_sf_gap");
    }
    return TGL_OK;
}

static int64_t dim_of(const case_problem *c) { return strtoll(case_text(c, "dim"), NULL, 10); }

static tgl_status run(const case_arguments *a)
{
    const DLTensor *table = a->arg[TABLE], *table_sf = a->arg[TABLE_SF];
    const int64_t dim = dim_of(a->problem), groups = (dim + 31) / 32;
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
    return tgl_engram_lookup(table, table_sf, a->arg[INDICES], a->arg[OUT], a->arg[OUT_SF],
                             (const void *)a->problem->scalars, a->stream);
}

/* ---- oracle ---- */

/* The row that belongs to (token, column), or -1: by search among the numbers of the table's rows. */
static int64_t row_of(const case_problem *c, int64_t token, int64_t column)
{
    const tgl_engram_lookup_params *params = (const void *)c->scalars;
    const int64_t rows = c->tensors[TABLE].shape[0];
    int64_t index = token * c->tensors[OUT].shape[1] + column;
    if (c->tensors[INDICES].name) index = engram_integer(&c->tensors[INDICES], (int64_t[]){ token, column });
    const __int128 row = (__int128)index - params->row_begin;
    return row >= 0 && row < rows ? (int64_t)row : -1;
}

static unsigned char exponent_at(const case_problem *c, int64_t row, int64_t group)
{
    const case_tensor *table = &c->tensors[TABLE], *sf = &c->tensors[TABLE_SF];
    if (sf->name) return *(unsigned char *)case_element(sf, (int64_t[]){ row, group });
    return *(unsigned char *)case_element(table, (int64_t[]){ row, dim_of(c) + group });
}

/* A factor as the models' code reads it: 2^(e - 127), without exceptions but the NaN. */
static double factor_of(const case_problem *c, int64_t row, int64_t i)
{
    const case_tensor *sf = &c->tensors[TABLE_SF];
    if (case_is(c, "sf", "none")) return 1;
    if (sf->name && sf->dtype == TGL_F32) return case_decode(TGL_F32, sf->data);
    const int e = exponent_at(c, row, i / 32);
    double factor = 1;
    for (int k = 127; k < e; k++) factor *= 2;
    for (int k = e; k < 127; k++) factor /= 2;
    return e == 255 ? 0 * factor * (1 / 0.0) : factor;
}

static void put_row(const case_problem *c, int64_t row, unsigned char *out)
{
    const case_tensor *table = &c->tensors[TABLE], *to = &c->tensors[OUT];
    const unsigned char *from = case_element(table, (int64_t[]){ row, 0 });
    const int64_t dim = dim_of(c);
    if (to->dtype == table->dtype || to->dtype == TGL_U8) {
        for (int64_t b = 0; b < dim * table->element_bytes; b++) out[b] = from[b];
        for (int64_t b = dim; to->dtype == TGL_U8 && b < to->shape[2]; b++) out[b] = exponent_at(c, row, b - dim);
        return;
    }
    for (int64_t i = 0; i < dim; i++) {
        /* a product of an e4m3 and a float is exact in double; the float that it is rounded to first, too */
        const double value =
            (double)(float)(case_decode(table->dtype, from + i * table->element_bytes) * factor_of(c, row, i));
        unsigned char *at = out + 2 * i;
        case_encode(TGL_BF16, value, at);
        if (value != value) at[0] = 0xff, at[1] = 0x7f;
    }
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *out = &c->tensors[OUT], *out_sf = &c->tensors[OUT_SF];
    const int64_t columns = out->shape[1], groups = dim_of(c) / 32;
    for (int64_t t = begin; t < end; t++)
        for (int64_t k = 0; k < columns; k++) {
            const int64_t row = row_of(c, t, k);
            unsigned char *to = case_element(out, (int64_t[]){ t, k, 0 });
            for (int64_t b = 0; b < out->shape[2] * out->element_bytes; b++) to[b] = 0;
            if (row >= 0) put_row(c, row, to);
            if (!out_sf->name) continue;
            for (int64_t g = 0; g < groups; g++) { /* byte k * groups + g of the token; words begin as 0 */
                const int64_t byte = k * groups + g;
                unsigned char *word = case_element(out_sf, (int64_t[]){ t, byte / 4 });
                if (row >= 0) word[byte % 4] = exponent_at(c, row, g);
            }
        }
}

static void oracle(case_problem *c)
{
    const case_tensor *out = &c->tensors[OUT];
    case_parallel(out->shape[0], out->shape[1] * out->shape[2] * 16, oracle_tokens, c);
}

/* Rows that are read, not the table. */
static int64_t bytes(const case_problem *c)
{
    const case_tensor *table = &c->tensors[TABLE], *sf = &c->tensors[TABLE_SF];
    const int64_t rows = c->tensors[OUT].shape[0] * c->tensors[OUT].shape[1];
    int64_t row_bytes = table->shape[1] * tgl_dtype_bits(tgl_dtype_to_dlpack(table->dtype)) / 8;
    if (sf->name && sf->ndim == 2) row_bytes += sf->shape[1];
    int64_t total = case_tensor_bytes(&c->tensors[OUT]) + rows * row_bytes;
    if (c->tensors[INDICES].name) total += case_tensor_bytes(&c->tensors[INDICES]);
    if (c->tensors[OUT_SF].name) total += case_tensor_bytes(&c->tensors[OUT_SF]);
    return total;
}

static bool gather(const case_problem *c, case_gathered *which)
{
    const case_tensor *sf = &c->tensors[TABLE_SF];
    *which = (case_gathered){ TABLE, sf->name && sf->ndim == 2 ? TABLE_SF : -1, INDICES };
    return c->tensors[TABLE].on_host && case_is(c, "row_begin", "0") && c->tensors[INDICES].name &&
           c->tensors[INDICES].dtype == TGL_I32 &&
           (case_is(c, "indices", "valid") || case_is(c, "indices", "zipf") || case_is(c, "indices", "sorted"));
}

#define FLASH "num_columns=24 dim=256 sf=e8m0"    /* DeepSeek-V4.1-Flash */
#define RECORD "num_columns=24 dim=256 sf=record" /* the same, codes and factors side by side */
#define QWEN "num_columns=16 dim=160"             /* Qwen3.8-Flash-Next */
// clang-format off: lines of cases
const case_op lookup_cases = {
    "engram_lookup",
    "num_tokens= num_columns=3 dim=256 num_rows=1000 dtype=e4m3 sf=none out=bf16 indices=some index_dtype=i32 "
    "row_begin=0 num_sms=0 constant_table=0 at=device index_layout=tc out_layout=tc values=bits gap=0 sf_gap=0 "
    "index_gap=0 out_gap=0 out_token_gap=0 out_sf_gap=0 offset=0 sf_offset=0 out_offset=0",
    setup, run, oracle, bytes, NULL, .gather = gather,
    .lists[CASE_CHECK] = CASE_LINES(
        /* every form */
        "num_tokens=0,1,7,50 num_columns=0,1,24 dim=32,160,256 sf=e8m0 out=bf16,same,packed,gemm",
        "num_tokens=7 num_columns=1,3 dim=0,1,31,32,48,100,160,256,2048 sf=none,one out=bf16,same",
        "num_tokens=7 num_columns=3 dim=0,1,31,33,100,160,256,2048 dtype=bf16 out=same",
        "num_tokens=7 num_columns=3 dim=1,31,33,100,160,256,2048 dtype=f16,f32 out=bf16,same",
        "num_tokens=6 num_columns=1,2,3,5 dim=32,64,96,160,2048 sf=ue8m0,e8m0 out=bf16,same,packed,gemm",
        /* indices */
        "num_tokens=40 sf=e8m0 out=bf16,packed,gemm indices=valid,zipf,equal,some,foreign,bits,none "
        "index_dtype=i32,i64 row_begin=0,5000",
        "num_tokens=40 dtype=bf16 out=same indices=bits,some,none index_dtype=i64 "
        "row_begin=3,4294967296,9000000000000000000",
        "num_tokens=41 dtype=f32 out=bf16 num_rows=0,1,2 indices=valid,some,none",
        "num_tokens=8 sf=e8m0,one out=bf16 num_rows=0,1 indices=valid,foreign,none",
        /* strides and addresses */
        "num_tokens=13 sf=e8m0 out=bf16,packed,same gap=0,8,16,1 sf_gap=0,256,280,3 num_columns=5",
        "num_tokens=14 sf=e8m0 out=bf16,packed,gemm num_columns=5 index_layout=tc,ct index_gap=0,3 out_sf_gap=0,3",
        "num_tokens=15 sf=e8m0 out=bf16,packed num_columns=1,5 out_layout=tc,ct out_gap=0,1,4,8 out_token_gap=0,8,100",
        "num_tokens=16 sf=e8m0,one out=bf16,same offset=0,1,8 out_offset=0,1,4,8 sf_offset=0,1",
        "num_tokens=17 dtype=bf16,f32,f16 out=bf16,same dim=64,100 offset=0,1,2,4 out_offset=0,1,4 gap=0,1,4",
        "num_tokens=18 sf=record out=bf16,packed,gemm num_columns=5 dim=64,256 gap=0,24,120,1 at=device,host",
        "num_tokens=300 sf=e8m0 out=bf16,packed,gemm num_sms=0,1,2,16 at=device,host",
        "num_tokens=6 num_columns=1,2,3 dim=32,64,160 sf=e8m0 out=gemm sf_gap=1,2,3",
        "num_tokens=6 num_columns=1,2,3 dim=128 sf=e8m0 out=gemm sf_offset=0,1,2",
        "num_tokens=4200 num_columns=1 dim=128 sf=e8m0 out=gemm num_sms=1 sf_gap=0,3", /* many factors for a block */
        "num_tokens=1,40 num_columns=24 dim=256 sf=e8m0 num_sms=144115188075855872,9223372036854775807", /* 2^57, 2^63 - 1 */
        "num_tokens=13 at=host dtype=bf16,f32,f16 out=bf16 constant_table=1",
        "num_tokens=13 at=host sf=one,none out=bf16,same"),
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=8192 " FLASH " num_rows=9000000 out=bf16,packed,gemm indices=valid,some index_dtype=i32,i64",
        "num_tokens=8192 " QWEN " num_rows=9000000 sf=one,none indices=zipf",
        "num_tokens=8192 " QWEN " num_rows=9000000 dtype=bf16 out=same",
        "num_tokens=200000 " FLASH " num_rows=100000",       /* 2^31 bytes of out and more */
        "num_tokens=1000 " FLASH " num_rows=68000000 at=device,host"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,16,128,1024,8192 " FLASH " num_rows=68000000 indices=valid",
        "num_tokens=8192 " FLASH " num_rows=68000000 indices=zipf",
        "num_tokens=8192 " FLASH " num_rows=68000000 out=packed,gemm indices=valid",
        "num_tokens=8192 " QWEN " num_rows=110000000 sf=one indices=valid",
        "num_tokens=8192 " QWEN " num_rows=55000000 dtype=bf16 out=same indices=valid",
        "num_tokens=1,16,128,8192 " FLASH " num_rows=68000000 indices=valid at=host num_sms=16",
        "num_tokens=8192 " FLASH " num_rows=68000000 indices=zipf at=host num_sms=16",
        "num_tokens=8192 " FLASH " num_rows=68000000 indices=sorted at=host num_sms=16",
        "num_tokens=8192 " FLASH " num_rows=68000000 indices=valid,sorted,zipf at=huge num_sms=16",
        "num_tokens=1,16,128 " FLASH " num_rows=68000000 indices=valid at=huge num_sms=16",
        "num_tokens=8192 " FLASH " num_rows=68000000 indices=valid at=host,huge num_sms=1,2,4,8,32,64,132",
        "num_tokens=1,128,8192 " RECORD " num_rows=68000000 indices=valid gap=24,120 at=host num_sms=16"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 sf=e8m0 out=bf16,packed,gemm", "num_tokens=64 sf=one,none out=bf16",
        "num_tokens=64 dtype=f16,f32 out=bf16"),
    .models = CASE_LINES(
        "num_tokens=4096 num_columns={engram_columns} dim={engram_dim} dtype={engram_dtype} sf={engram_sf} out=bf16"),
};
// clang-format on
