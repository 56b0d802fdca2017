/* SPDX-License-Identifier: MIT
 * lookup.c - tgl_engram_lookup: rows of a table by index. */
#include "engram/lookup.h"

#include <string.h>

#include "core/log_indices.h"
#include "core/math.h"
#include "core/threads.h"
#include "cuda/driver.h"
#include "cuda/op.h"
#include "engram/common/lookup_params.h"
#include "engram/lookup_host.h"

typedef struct {
    lookup_args args;
    int form, table_bytes, out_bytes; /* of an element */
    int64_t num_sms;                  /* 0: the target's */
} problem;

/* ---- CPU ---- */

static void dequantise(const uint8_t *codes, float factor, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++) out[i] = tgl_bf16_from_f32(tgl_e4m3_to_f32(codes[i]) * factor);
}

static void put_row(const problem *p, int64_t row, uint8_t *to)
{
    const lookup_args *a = &p->args;
    const uint8_t *from = a->table + row * a->table_stride, *sf = a->table_sf;
    uint16_t *out = (uint16_t *)(void *)to;
    switch (p->form) {
    case LOOKUP_PACKED:
        memcpy(to + a->dim, sf + row * a->sf_stride, (size_t)(a->dim / LOOKUP_GROUP)); /* fall through */
    case LOOKUP_COPY: memcpy(to, from, (size_t)(a->dim * p->table_bytes)); break;
    case LOOKUP_UE8M0:
        for (int64_t i = 0; i < a->dim; i += LOOKUP_GROUP)
            dequantise(from + i, lookup_factor(sf[row * a->sf_stride + i / LOOKUP_GROUP]), LOOKUP_GROUP, out + i);
        break;
    case LOOKUP_SCALED: dequantise(from, sf ? *(const float *)a->table_sf : 1, a->dim, out); break;
    case LOOKUP_F16:
        for (int64_t i = 0; i < a->dim; i++)
            out[i] = tgl_bf16_from_f32(tgl_f16_to_f32(((const uint16_t *)(const void *)from)[i]));
        break;
    default:
        for (int64_t i = 0; i < a->dim; i++) out[i] = tgl_bf16_from_f32(((const float *)(const void *)from)[i]);
    }
}

static int64_t out_row_bytes(const problem *p)
{
    return p->form == LOOKUP_PACKED ? p->args.dim + p->args.dim / LOOKUP_GROUP : p->args.dim * p->out_bytes;
}

/* The factors of a token, four in a word; those of rows that are not there, and past the last, are 0. */
static void put_factors(const lookup_args *a, int64_t token)
{
    const int64_t groups = a->dim / LOOKUP_GROUP, count = a->num_columns * groups;
    for (int64_t i = 0; i < tgl_ceil_div(count, 4); i++) {
        uint32_t word = 0;
        for (int64_t j = 4 * i; j < tgl_min(4 * i + 4, count); j++) {
            const int64_t column = j / groups, row = lookup_row(a, token * a->num_columns + column, token, column);
            if (row >= 0)
                word |= (uint32_t)((const uint8_t *)a->table_sf)[row * a->sf_stride + j % groups] << 8 * (j % 4);
        }
        a->out_sf[token + i * a->out_sf_stride] = word;
    }
}

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const lookup_args *a = &p->args;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t c = 0; c < a->num_columns; c++) {
            const int64_t row = lookup_row(a, t * a->num_columns + c, t, c);
            uint8_t *out = a->out + t * a->out_token_stride + c * a->out_column_stride;
            if (row < 0) memset(out, 0, (size_t)out_row_bytes(p));
            else put_row(p, row, out);
        }
        if (a->out_sf) put_factors(a, t);
    }
}

static int64_t token_bytes(const problem *p)
{
    return tgl_saturating_product(p->args.num_columns, 2 * out_row_bytes(p));
}
static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->args.num_tokens, token_bytes(p), run_tokens, p);
}

tgl_status tgl_engram_gather_packed(const lookup_args *args, bool is_beside)
{
    const problem p = { .args = *args, .form = LOOKUP_PACKED, .table_bytes = 1, .out_bytes = 1 };
    return is_beside ? tgl_parallel_rows_beside(args->num_tokens, token_bytes(&p), run_tokens, &p) : cpu(&p);
}

/* One for each kind of out and of factors. */
#define TEXT(table_types, sf, outs)                                                          \
    TGL_SIGNATURE("engram_lookup(table: " table_types "[table_rows, dim] rows anywhere, " sf \
                  " indices: i32|i64[num_tokens, num_columns]? strided,"                     \
                  " row_begin: int, num_sms: int, constant_table: bool) -> " outs,           \
                  &TGL_ENGRAM_LOOKUP_PARAMS)
#define UE8M0_FACTORS(optional) "table_sf: u8|ue8m0[table_rows, dim / 32]" optional " rows anywhere,"
tgl_signature tgl_engram_lookup_signature =
    TEXT("bf16|e4m3|f16|f32", "table_sf: f32[1]?,",
         "out: bf16|e4m3|f16|f32[num_tokens, num_columns, dim] strided where dim < 2^30");
tgl_signature tgl_engram_lookup_groups_signature = TEXT(
    "e4m3", UE8M0_FACTORS("?"),
    "out: bf16|e4m3[num_tokens, num_columns, dim] strided, out_sf: i32[num_tokens, num_columns * dim / 128]? strided"
    " where dim < 2^30, dim % 32");
tgl_signature tgl_engram_lookup_packed_signature =
    TEXT("e4m3", UE8M0_FACTORS(""),
         "out: u8[num_tokens, num_columns, dim + dim / 32] strided where dim < 2^30, dim % 32");

/* ---- launch ---- */

/* The largest unit to which all rows, of the table and of out, are aligned. A store has at most 16 bytes. If a unit
 * becomes 32, two neighbouring lanes store theirs together, so both must be of one row. */
static int unit_of(const problem *p)
{
    const lookup_args *a = &p->args;
    const uint64_t row_bytes = (uint64_t)(a->dim * p->table_bytes);
    for (int bytes = 16; bytes > p->table_bytes; bytes /= 2) {
        const int64_t out_bytes = p->out_bytes == p->table_bytes ? bytes : bytes / p->table_bytes * p->out_bytes;
        uint64_t from = (uint64_t)(uintptr_t)a->table | (uint64_t)a->table_stride | row_bytes;
        if (p->form == LOOKUP_PACKED)
            from |= (uint64_t)(uintptr_t)a->table_sf | (uint64_t)a->sf_stride | (uint64_t)(a->dim / LOOKUP_GROUP);
        const uint64_t to =
            (uint64_t)(uintptr_t)a->out | (uint64_t)a->out_token_stride | (uint64_t)a->out_column_stride;
        const bool are_pairs = out_bytes <= 16 || row_bytes % (2 * (uint64_t)bytes) == 0;
        if (LOOKUP_HAS_UNIT(p->form, bytes) && from % (uint64_t)bytes == 0 && are_pairs &&
            to % (uint64_t)tgl_min(16, out_bytes) == 0)
            return bytes;
    }
    return p->table_bytes;
}

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    kernels[0] = (tgl_kernel){ "engram/lookup", { { "FORM", p->form } } };
    return 1;
}

/* Rows of a warp's tile: as many as fit, or fewer, so that all warps have equally many, but at least a unit per lane.
 * On an H200 (2026-11), with units of 8 codes, 1, 16 and 1024 tokens x 24 rows of 256 codes took 2.3, 2.6 and 10.0 us; in
 * tiles of 4 rows 2.6, 3.1 and 10.4. */
static int32_t tile_rows_of(const lookup_args *a, int64_t tile, int64_t num_sms)
{
    const int64_t max_rows = tgl_max(1, tile / a->row_units);
    const int64_t min_rows = tgl_min(max_rows, tgl_ceil_div(32, a->row_units));
    const int64_t warps = num_sms * (LOOKUP_THREADS / 32), rounds = tgl_ceil_div(a->num_positions, warps * max_rows);
    return (int32_t)tgl_max(min_rows, tgl_ceil_div(a->num_positions, tgl_max(1, warps * rounds)));
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    lookup_args *a = &p->args;
    const int64_t num_sms = p->num_sms ? tgl_min(p->num_sms, INT32_MAX) : target->num_sms;
    const bool has_flat_indices = !a->indices || a->index_token_stride == a->num_columns * a->index_column_stride;
    const bool has_flat_out = a->out_token_stride == a->num_columns * a->out_column_stride;
    a->num_positions = a->num_tokens * a->num_columns;
    a->is_flat = a->num_tokens == 1 || (has_flat_indices && has_flat_out);
    a->unit_bytes = unit_of(p);
    const int64_t tile = 32 * LOOKUP_UNITS(p->form, a->unit_bytes, target->architecture); /* units of a warp */
    a->row_units = (int32_t)((p->form == LOOKUP_PACKED ? out_row_bytes(p) : a->dim * p->table_bytes) / a->unit_bytes);
    a->tile_rows = tile_rows_of(a, tile, num_sms);
    a->row_tiles = (int32_t)tgl_ceil_div(a->row_units, tile);
    a->lane_units = (int32_t)tgl_ceil_div(tgl_min(tile, (int64_t)a->tile_rows * a->row_units), 32);
    a->num_tiles = a->row_tiles > 1 ? a->num_positions * a->row_tiles : tgl_ceil_div(a->num_positions, a->tile_rows);
    a->has_factor_words =
        a->dim / LOOKUP_GROUP % 4 == 0 && ((uint64_t)(uintptr_t)a->table_sf | (uint64_t)a->sf_stride) % 4 == 0;
    a->by_row_units = tgl_divisor_of(a->row_units);
    a->by_columns = tgl_divisor_of(a->num_columns);
    a->by_groups = tgl_divisor_of(tgl_max(1, a->dim / LOOKUP_GROUP));
    a->by_tokens = tgl_divisor_of(a->num_tokens);
    const int64_t warps = tgl_min(LOOKUP_THREADS / 32, tgl_ceil_div(a->num_tiles, num_sms));
    return (tgl_shape){ { tgl_strided_grid(tgl_ceil_div(a->num_tiles, warps), num_sms) },
                        .block = (int)(32 * warps),
                        TGL_ARGS(*a) };
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

/* ---- checks ---- */

static tgl_status check_dtypes(const DLTensor *table, const DLTensor *table_sf, const DLTensor *out,
                               const DLTensor *out_sf)
{
    const tgl_dtype from = tgl_dtype_of(table->dtype), to = tgl_dtype_of(out->dtype);
    if (table_sf && from != TGL_E4M3)
        return tgl_fail(TGL_ERR_ARGUMENT, "table_sf: is given, want NULL for a table of %s", tgl_dtype_name(from));
    if (to != from && to != TGL_BF16)
        return tgl_fail(TGL_ERR_ARGUMENT, "out: dtype is %s, want bf16 or that of table, %s", tgl_dtype_name(to),
                        tgl_dtype_name(from));
    if (out_sf && (to != TGL_E4M3 || !table_sf || tgl_dtype_is(table_sf->dtype, TGL_F32)))
        return tgl_fail(TGL_ERR_ARGUMENT, "out_sf: is given, want NULL unless out is e4m3 and table_sf UE8M0");
    return TGL_OK;
}

static tgl_status check_factors(const DLTensor *out, const DLTensor *out_sf)
{
    if (!out_sf || tgl_is_empty(out_sf)) return TGL_OK;
    const int64_t down = tgl_stride(out_sf, 0), right = tgl_stride(out_sf, 1), rows = out_sf->shape[0];
    if ((rows > 1 && down != 1) || (out_sf->shape[1] > 1 && right < rows))
        return tgl_fail(TGL_ERR_ARGUMENT, "out_sf: strides are [%lld, %lld], want [1, >= %lld]", (long long)down,
                        (long long)right, (long long)rows);
    if (out->shape[1] > 1 && tgl_stride(out, 1) != out->shape[2])
        return tgl_fail(TGL_ERR_ARGUMENT, "out: columns are %lld elements apart, want %lld with out_sf",
                        (long long)tgl_stride(out, 1), (long long)out->shape[2]);
    return TGL_OK;
}

tgl_status tgl_engram_find_address(const char *name, const DLTensor *t, const DLTensor *on, tgl_stream stream,
                                   const void **address)
{
    *address = tgl_data_or_null(t);
    if (!*address || tgl_preparing() || tgl_on_cpu(on) || !tgl_on_cpu(t)) return TGL_OK;
    tgl_cu_pointer there;
    TGL_TRY(tgl_address_on_device(name, on->device.device_id, stream, *address, &there));
    *address = (const void *)(uintptr_t)there;
    return TGL_OK;
}

static int form_of(const DLTensor *table, const DLTensor *table_sf, const DLTensor *out)
{
    if (tgl_dtype_is(out->dtype, TGL_U8)) return LOOKUP_PACKED;
    if (tgl_dtype_of(out->dtype) == tgl_dtype_of(table->dtype)) return LOOKUP_COPY;
    if (tgl_dtype_is(table->dtype, TGL_F16)) return LOOKUP_F16;
    if (tgl_dtype_is(table->dtype, TGL_F32)) return LOOKUP_F32;
    return table_sf && table_sf->ndim == 2 ? LOOKUP_UE8M0 : LOOKUP_SCALED;
}

tgl_status tgl_engram_lookup(const DLTensor *table, const DLTensor *table_sf, const DLTensor *indices, DLTensor *out,
                             DLTensor *out_sf, const tgl_engram_lookup_params *params, tgl_stream stream)
{
    const DLTensor *tensors[] = { table, table_sf, indices, out, out_sf };
    const bool is_packed = out && tgl_dtype_is(out->dtype, TGL_U8);
    const bool has_groups = table_sf && !tgl_dtype_is(table_sf->dtype, TGL_F32);
    tgl_signature *s = is_packed    ? &tgl_engram_lookup_packed_signature
                       : has_groups ? &tgl_engram_lookup_groups_signature
                                    : &tgl_engram_lookup_signature;
    TGL_TRY(tgl_take(s, tensors, params, NULL));
    if (!is_packed) TGL_TRY(check_dtypes(table, table_sf, out, out_sf));
    else if (out_sf) return tgl_fail(TGL_ERR_ARGUMENT, "out_sf: is given, want NULL where out is packed");
    TGL_TRY(tgl_expect_rows_apart("out", out));
    TGL_TRY(check_factors(out, out_sf));

    problem p = { .form = form_of(table, table_sf, out),
                  .table_bytes = tgl_dtype_bits(table->dtype) / 8,
                  .out_bytes = tgl_dtype_bits(out->dtype) / 8,
                  .num_sms = params->num_sms };
    lookup_args *a = &p.args;
    *a = (lookup_args){ .indices = tgl_data_or_null(indices),
                        .out = tgl_data(out),
                        .out_sf = tgl_data_or_null(out_sf),
                        .row_begin = params->row_begin,
                        .num_rows = table->shape[0],
                        .num_tokens = out->shape[0],
                        .num_columns = out->shape[1],
                        .dim = table->shape[1],
                        .index_bytes = indices ? tgl_dtype_bits(indices->dtype) / 8 : 0 };
    if (tgl_is_empty(out)) return tgl_run(s, &OP, tensors, &p, stream);
    const void *address;
    TGL_TRY(tgl_engram_find_address("table", table, out, stream, &address));
    a->table = address;
    TGL_TRY(tgl_engram_find_address("table_sf", table_sf, out, stream, &a->table_sf));
    a->table_stride = tgl_step_of(table, 0) * p.table_bytes;
    a->sf_stride = has_groups ? tgl_step_of(table_sf, 0) : 0;
    a->index_token_stride = tgl_step_of(indices, 0);
    a->index_column_stride = tgl_step_of(indices, 1);
    a->out_token_stride = tgl_step_of(out, 0) * p.out_bytes;
    a->out_column_stride = tgl_step_of(out, 1) * p.out_bytes;
    a->out_sf_stride = tgl_step_of(out_sf, 1);
    if (indices) tgl_log_foreign_indices("indices", indices, a->row_begin, (uint64_t)a->num_rows);
    return tgl_run(s, &OP, tensors, &p, stream);
}
