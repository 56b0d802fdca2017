/* SPDX-License-Identifier: MIT
 * histogram.h - how often each index occurs: the core of group_count and aux_fi. */
#ifndef TEGULA_MOE_HISTOGRAM_H
#define TEGULA_MOE_HISTOGRAM_H

#include "core/tensor.h"

/* out[i] = c, the number of elements of `indices` that are i; or, where tokens_topk > 0, the f32
 * (float)(c * num_bins) / (float)tokens_topk. Elements outside of 0 .. num_bins - 1 are not counted. The
 * tensors have passed their checks; `out` is packed, of i32 or f32. */
tgl_status tgl_histogram(const DLTensor *indices, DLTensor *out, int64_t tokens_topk, void *workspace,
                         size_t workspace_bytes, tgl_stream stream);
size_t tgl_histogram_workspace_size(const DLTensor *indices, const DLTensor *out);

#endif
