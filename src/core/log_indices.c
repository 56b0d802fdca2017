/* SPDX-License-Identifier: MIT */
#include "core/log_indices.h"

#include "core/index.h"
#include "core/log.h"
#include "core/tensor.h"

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
    if (!tgl_log_wants(TGL_LOG_CALL) || !tgl_on_cpu(indices) || tgl_is_empty(indices)) return;
    const void *data = tgl_data(indices);
    if (!data) return;
    const int64_t cols = indices->ndim == 2 ? indices->shape[1] : 1, stride = tgl_stride(indices, 0);
    const int index_bytes = indices->dtype.bits / 8;
    int64_t total = 0, count = 0, first = 0, first_row = 0, first_col = 0;
    for (int64_t row = 0; row < indices->shape[0]; row++) {
        if (!is_true(flags, row) || !is_true(more_flags, row)) continue;
        for (int64_t col = 0; col < cols; col++, total++) {
            const int64_t value = tgl_index_get(data, row * stride + col, index_bytes);
            if (value >= n && count++ == 0) first = value, first_row = row, first_col = col;
        }
    }
    if (count > 0)
        tgl_log(TGL_LOG_CALL, "%s: %lld of %lld indices are out of range: [%lld, %lld] is %lld, want < %lld", name,
                (long long)count, (long long)total, (long long)first_row, (long long)first_col, (long long)first,
                (long long)n);
}
