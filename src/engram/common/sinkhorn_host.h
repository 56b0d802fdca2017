/* SPDX-License-Identifier: MIT
 * sinkhorn_host.h - what the host code of sinkhorn_step, _step_reduce and _finalize shares. */
#ifndef TEGULA_ENGRAM_SINKHORN_HOST_H
#define TEGULA_ENGRAM_SINKHORN_HOST_H

#include "cuda/op.h"
#include "engram/common/sinkhorn.h"

/* For tensors that passed the signature. */
sinkhorn_matrix tgl_sinkhorn_matrix_of(const DLTensor *matrix, const DLTensor *row_scale, const DLTensor *col_scale);

/* The root of a row's sum of squares. */
float tgl_sinkhorn_row_norm(const sinkhorn_matrix *m, int64_t row);

/* Sums over partial rows, in ascending order, of columns begin .. end - 1. */
void tgl_sinkhorn_reduce(const void *reduce_args, int64_t begin, int64_t end);

/* Threads of a block, and vectors of a thread (0: any number), for rows of this length. */
int tgl_sinkhorn_threads(int64_t dim);
int tgl_sinkhorn_vectors(int64_t dim);

/* A kernel for these rows, and its launch shape for this many blocks of work, without arguments. */
tgl_kernel tgl_sinkhorn_kernel(const char *name, int64_t dim);
tgl_shape tgl_sinkhorn_shape(int64_t dim, int64_t blocks, const tgl_target *target);

#endif
