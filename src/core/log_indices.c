/* SPDX-License-Identifier: MIT */
#include "core/log_indices.h"

#include "core/index.h"
#include "core/log.h"
#include "core/tensor.h"

static bool can_log(const DLTensor *indices)
{
    return tgl_log_wants(TGL_LOG_CALL) && tgl_on_cpu(indices) && !tgl_preparing() && !tgl_is_empty(indices) &&
           tgl_data(indices);
}

static int64_t columns_of(const DLTensor *indices) { return indices->ndim == 2 ? indices->shape[1] : 1; }

static int64_t index_at(const DLTensor *indices, int64_t row, int64_t col)
{
    const int64_t right = indices->ndim == 2 ? tgl_stride(indices, 1) : 0;
    return tgl_index_get(tgl_data(indices), row * tgl_stride(indices, 0) + col * right, indices->dtype.bits / 8);
}

void tgl_log_indices(const char *name, const DLTensor *indices, int64_t n)
{
    tgl_log_indices_where(name, indices, n, NULL, NULL);
}

static bool is_true(const DLTensor *flags, int64_t row)
{
    const uint8_t *flag = tgl_data_or_null(flags);
    return !flag || flag[row];
}

void tgl_log_indices_where(const char *name, const DLTensor *indices, int64_t n, const DLTensor *flags,
                           const DLTensor *more_flags)
{
    if (!can_log(indices)) return;
    const int64_t cols = columns_of(indices);
    int64_t total = 0, count = 0, first = 0, first_row = 0, first_col = 0;
    for (int64_t row = 0; row < indices->shape[0]; row++) {
        if (!is_true(flags, row) || !is_true(more_flags, row)) continue;
        for (int64_t col = 0; col < cols; col++, total++) {
            const int64_t value = index_at(indices, row, col);
            if (value >= n && count++ == 0) first = value, first_row = row, first_col = col;
        }
    }
    if (count > 0)
        tgl_log(TGL_LOG_CALL, "%s: %lld of %lld indices are out of range: [%lld, %lld] is %lld, want < %lld", name,
                (long long)count, (long long)total, (long long)first_row, (long long)first_col, (long long)first,
                (long long)n);
}

void tgl_log_foreign_indices(const char *name, const DLTensor *indices, int64_t begin, uint64_t count)
{
    if (!can_log(indices)) return;
    const int64_t rows = indices->shape[0], cols = columns_of(indices);
    const uint64_t past = (uint64_t)begin + count; /* at most 2^64 - 1: begin is not negative, count at most 2^63 */
    int64_t num_foreign = 0;
    for (int64_t i = 0; i < rows * cols; i++) {
        const int64_t index = index_at(indices, i / cols, i % cols);
        num_foreign += index < begin || (uint64_t)index >= past;
    }
    if (num_foreign > 0)
        tgl_log(TGL_LOG_CALL, "%s: %lld of %lld are foreign, not in %lld..%lld", name, (long long)num_foreign,
                (long long)(rows * cols), (long long)begin,
                past > INT64_MAX ? (long long)INT64_MAX : (long long)past - 1);
}
