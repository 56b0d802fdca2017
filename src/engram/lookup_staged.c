/* SPDX-License-Identifier: MIT
 * lookup_staged.c - tgl_engram_lookup_staged: rows of a table in host memory, gathered by the CPU in the order of the
 * stream and brought to the device by one copy. */
#include <stdlib.h>

#include "core/math.h"
#include "cuda/driver.h"
#include "cuda/op.h"
#include "engram/common/lookup_params.h"
#include "engram/lookup_host.h"
#include "tegula/experimental.h"

tgl_signature tgl_engram_lookup_staged_signature =
    TGL_SIGNATURE("engram_lookup_staged(table: e4m3[table_rows, dim] rows host,"
                  " table_sf: u8|ue8m0[table_rows, dim / 32] rows host,"
                  " indices: i32|i64[num_tokens, num_columns]? strided anywhere,"
                  " row_begin: int, num_sms: int, constant_table: bool)"
                  " -> staging: u8[staging_bytes] host, out: u8[num_tokens, num_columns, dim + dim / 32]"
                  " where dim < 2^30, dim % 32",
                  &TGL_ENGRAM_LOOKUP_PARAMS);

/* ---- in the order of the stream ---- */

/* What a host function works on. */
typedef struct {
    lookup_args args;
    bool is_kept; /* by a graph, which runs it again and again */
} job;

static void gather(void *data)
{
    job *j = data;
    tgl_engram_gather_packed(&j->args, true);
    if (!j->is_kept) free(j);
}

/* In a capture the graph gets the job: it is freed with the last copy of the graph. */
static tgl_status keep_in_graph(const tgl_driver_table *cu, tgl_cu_graph graph, job *j)
{
    tgl_cu_user_object object;
    const tgl_cu_result result = cu->UserObjectCreate(&object, j, free, 1, TGL_CU_NO_DESTRUCTOR_SYNC);
    if (result) {
        free(j);
        return tgl_driver_check(result, "engram_lookup_staged: cuUserObjectCreate");
    }
    const tgl_cu_result kept = cu->GraphRetainUserObject(graph, object, 1, TGL_CU_USER_OBJECT_MOVE);
    if (kept) cu->UserObjectRelease(object, 1);
    return tgl_driver_check(kept, "engram_lookup_staged: cuGraphRetainUserObject");
}

static tgl_status enqueue_gather(const tgl_driver_table *cu, const lookup_args *args, tgl_stream stream)
{
    int status = TGL_CU_CAPTURE_NONE;
    uint64_t id;
    tgl_cu_graph graph = NULL;
    TGL_TRY(tgl_driver_check(cu->StreamGetCaptureInfo(stream, &status, &id, &graph, NULL, NULL),
                             "stream: cuStreamGetCaptureInfo"));
    job *j = malloc(sizeof *j);
    if (!j) return tgl_fail(TGL_ERR_MEMORY, "no host memory for the description of a gather");
    *j = (job){ *args, status == TGL_CU_CAPTURE_ACTIVE };
    const bool is_kept = j->is_kept;
    if (is_kept) TGL_TRY(keep_in_graph(cu, graph, j));
    const tgl_cu_result result = cu->LaunchHostFunc(stream, gather, j);
    if (result && !is_kept) free(j);
    return tgl_driver_check(result, "engram_lookup_staged: cuLaunchHostFunc");
}

/* Pieces of the device's memory, one behind the other to `to`. */
static tgl_status enqueue_pieces(const tgl_driver_table *cu, uint8_t *to, tgl_cu_pointer from, int64_t width,
                                 int64_t pitch, int64_t height, tgl_stream stream)
{
    const char *const name = "indices: cuMemcpyDtoHAsync";
    if (height == 1 || pitch == width)
        return tgl_driver_check(cu->MemcpyDtoHAsync(to, from, (size_t)(width * height), stream), name);
    if (pitch > width && pitch <= INT32_MAX) {
        const tgl_cu_copy_2d copy = { .from_type = TGL_CU_MEMORY_DEVICE,
                                      .from_device = from,
                                      .from_pitch = (size_t)pitch,
                                      .to_type = TGL_CU_MEMORY_HOST,
                                      .to_host = to,
                                      .to_pitch = (size_t)width,
                                      .width_bytes = (size_t)width,
                                      .height = (size_t)height };
        return tgl_driver_check(cu->Memcpy2DAsync(&copy, stream), "indices: cuMemcpy2DAsync");
    }
    for (int64_t i = 0; i < height; i++)
        TGL_TRY(tgl_driver_check(cu->MemcpyDtoHAsync(to + i * width, from + (tgl_cu_pointer)(i * pitch), (size_t)width,
                                                     stream),
                                 name));
    return TGL_OK;
}

/* Indices that are on the device: rows of them, or a column after the other. */
static tgl_status enqueue_indices(const tgl_driver_table *cu, lookup_args *a, uint8_t *to, tgl_stream stream)
{
    const tgl_cu_pointer from = (tgl_cu_pointer)(uintptr_t)a->indices;
    const int64_t bytes = a->index_bytes, pitch = a->index_token_stride * bytes;
    a->indices = to;
    if (a->num_columns == 1 || a->index_column_stride == 1) {
        a->index_token_stride = a->num_columns;
        return enqueue_pieces(cu, to, from, a->num_columns * bytes, pitch, a->num_tokens, stream);
    }
    for (int64_t c = 0; c < a->num_columns; c++)
        TGL_TRY(enqueue_pieces(cu, to + c * a->num_tokens * bytes,
                               from + (tgl_cu_pointer)(c * a->index_column_stride * bytes), bytes, pitch, a->num_tokens,
                               stream));
    a->index_token_stride = 1;
    a->index_column_stride = a->num_tokens;
    return TGL_OK;
}

static tgl_status enqueue(lookup_args *a, bool has_indices_there, uint8_t *staging, int64_t rows_at, size_t out_bytes,
                          tgl_stream stream)
{
    const tgl_driver_table *cu;
    TGL_TRY(tgl_driver(&cu));
    const tgl_cu_pointer out = (tgl_cu_pointer)(uintptr_t)a->out;
    if (has_indices_there) TGL_TRY(enqueue_indices(cu, a, staging, stream));
    a->out = staging + rows_at;
    TGL_TRY(enqueue_gather(cu, a, stream));
    return tgl_driver_check(cu->MemcpyHtoDAsync(out, a->out, out_bytes, stream), "out: cuMemcpyHtoDAsync");
}

tgl_status tgl_engram_lookup_staged(const DLTensor *table, const DLTensor *table_sf, const DLTensor *indices,
                                    DLTensor *staging, DLTensor *out, const tgl_engram_lookup_params *params,
                                    tgl_stream stream)
{
    const DLTensor *tensors[] = { table, table_sf, indices, staging, out };
    TGL_TRY(tgl_take(&tgl_engram_lookup_staged_signature, tensors, params, NULL));
    const int64_t tokens = out->shape[0], columns = out->shape[1], row_bytes = out->shape[2];
    const int64_t index_bytes = indices ? tgl_dtype_bits(indices->dtype) / 8 : 0;
    if (tgl_is_empty(out)) return TGL_OK;
    const int64_t n = tokens * columns; /* a row has more bytes than an index: this product is no larger */
    const int64_t rows_at = tgl_ceil_div(n * index_bytes, 256) * 256, rows_bytes = n * row_bytes;
    const int64_t need = rows_at > INT64_MAX - rows_bytes ? INT64_MAX : rows_at + rows_bytes;
    if (staging->shape[0] < need)
        return tgl_fail(TGL_ERR_ARGUMENT, "staging: shape is [%lld], want [>= %lld]", (long long)staging->shape[0],
                        (long long)need);
    TGL_TRY(tgl_expect_aligned("staging", staging, 8));
    const void *address;
    TGL_TRY(tgl_engram_find_address("staging", staging, out, stream, &address));
    if (tgl_preparing()) return TGL_OK;

    lookup_args a = { .table = tgl_data(table),
                      .table_sf = tgl_data(table_sf),
                      .indices = tgl_data_or_null(indices),
                      .out = tgl_data(out),
                      .row_begin = params->row_begin,
                      .num_rows = table->shape[0],
                      .table_stride = tgl_step_of(table, 0),
                      .sf_stride = tgl_step_of(table_sf, 0),
                      .num_tokens = tokens,
                      .num_columns = columns,
                      .dim = table->shape[1],
                      .index_bytes = (int32_t)index_bytes,
                      .index_token_stride = tgl_step_of(indices, 0),
                      .index_column_stride = tgl_step_of(indices, 1),
                      .out_token_stride = columns * row_bytes,
                      .out_column_stride = row_bytes };
    if (tgl_on_cpu(out)) return tgl_engram_gather_packed(&a, false);
    tgl_context_guard guard;
    TGL_TRY(tgl_context_enter(out->device.device_id, stream, &guard));
    const bool has_indices_there = indices && !tgl_on_cpu(indices);
    const tgl_status status = enqueue(&a, has_indices_there, tgl_data(staging), rows_at, (size_t)rows_bytes, stream);
    tgl_context_leave(&guard);
    return status;
}
