/* SPDX-License-Identifier: MIT
 * histogram.h - how often each index occurs: the core of group_count and aux_fi. */
#ifndef TEGULA_MOE_HISTOGRAM_H
#define TEGULA_MOE_HISTOGRAM_H

#include "cuda/op.h"

/* Runs a call that passed its signature, with tensors { indices, out }. out[i] is c, the number of indices
 * equal to i; if tokens_topk > 0, it is the f32 (float)(c * num_bins) / (float)tokens_topk. Indices outside 0
 * .. num_bins - 1 do not count. */
tgl_status tgl_histogram(tgl_signature *s, const DLTensor *const tensors[2], int64_t tokens_topk, void *workspace,
                         size_t workspace_bytes, tgl_stream stream);
size_t tgl_histogram_workspace_size(const DLTensor *indices, const DLTensor *out);

#endif
