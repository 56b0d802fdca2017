/* SPDX-License-Identifier: MIT
 * tensor.h - checks of a call's tensors. Each returns TGL_OK, or TGL_ERR_ARGUMENT with a message "name:
 * ... is ..., want ...". They never read the data. */
#ifndef TEGULA_TENSOR_H
#define TEGULA_TENSOR_H

#include "core/dtype.h"
#include "core/status.h"

enum { TGL_MAX_DIMS = 8 };

/* More than any address space has. Sizes and offsets in bytes are below it, so that small multiples and
 * sums of them cannot overflow. */
#define TGL_MAX_BYTES ((int64_t)1 << 56)

typedef enum {
    TGL_PACKED, /* row-major without gaps; any stride for dimensions of size 1 and for empty tensors */
    TGL_ROWS,   /* the last dimension is packed; any stride >= 0 for the others */
    TGL_STRIDED /* any strides, 0 and negative ones too */
} tgl_layout;

/* Not NULL, one of `dtypes`, `ndim` dimensions, sizes >= 0, this layout, size and offsets below
 * TGL_MAX_BYTES, on a supported device; data is aligned to its element size (at most 8 bytes) and not
 * NULL, unless the thread is preparing. Strides and data of an empty tensor are ignored. */
tgl_status tgl_expect(const char *name, const DLTensor *t, tgl_dtype dtypes, int ndim, tgl_layout layout);

/* Is this thread in prepare mode, between tgl_prepare_begin() and tgl_prepare_end()? Calls then check
 * their arguments and load their kernels, and touch no data (which may be NULL). Tests set it to check a
 * CPU call without running it. */
bool tgl_preparing(void);
void tgl_set_preparing(bool on);

/* Each dimension within [low, high]. `dims` has t->ndim entries. */
typedef struct { int64_t low, high; } tgl_dim;
tgl_status tgl_expect_shape(const char *name, const DLTensor *t, const tgl_dim *dims);

tgl_status tgl_expect_same_device(const char *name, const DLTensor *t, const DLTensor *other);
tgl_status tgl_expect_same_dtype(const char *name, const DLTensor *t, const char *other_name, const DLTensor *other);

/* For a written tensor of two or three dimensions that passed tgl_expect: its rows (the last dimension) are packed and do
 * not overlap, whichever of the other dimensions has the larger stride. NULL passes. */
tgl_status tgl_expect_rows_apart(const char *name, const DLTensor *t);

/* They share no byte. Exact for packed tensors and for windows of the rows, or of the items of the first
 * dimension, of one buffer (equal strides); otherwise their address ranges are compared. */
tgl_status tgl_expect_no_overlap(const char *name, const DLTensor *t, const char *other_name, const DLTensor *other);

/* The same, but t may be the other tensor: equal address, shape and strides. */
tgl_status tgl_expect_same_or_no_overlap(const char *name, const DLTensor *t, const char *other_name,
                                         const DLTensor *other);

/* The same as predicates, for tensors that passed tgl_expect. */
bool tgl_overlaps(const DLTensor *t, const DLTensor *other);
bool tgl_is_same_memory(const DLTensor *t, const DLTensor *other);

/* The address is a multiple of `bytes`. */
tgl_status tgl_expect_aligned(const char *name, const DLTensor *t, int bytes);

/* The reserved words of a params struct are zero. */
enum { TGL_RESERVED_WORDS = 8 };
tgl_status tgl_expect_reserved(const uint64_t reserved[TGL_RESERVED_WORDS]);

/* A workspace of at least `want` bytes, aligned to TGL_WORKSPACE_ALIGNMENT; otherwise TGL_ERR_WORKSPACE.
 * With want 0, and in prepare mode, any workspace passes. */
enum { TGL_WORKSPACE_ALIGNMENT = 256 };
tgl_status tgl_expect_workspace(const void *workspace, size_t workspace_bytes, size_t want);

/* The functions below are for tensors that passed tgl_expect. */

/* In elements; that of a packed tensor if strides is NULL. */
int64_t tgl_stride(const DLTensor *t, int dim);

/* The same, but 0 where it may be anything: in a dimension of size 1, of an empty tensor, and for NULL. */
int64_t tgl_step_of(const DLTensor *t, int dim);

int64_t tgl_num_elements(const DLTensor *t);
bool tgl_is_empty(const DLTensor *t);

/* The first element. The byte_offset of an empty tensor may be invalid, so it is not added. */
static inline void *tgl_data(const DLTensor *t)
{
    if (!t->data || !t->byte_offset || tgl_is_empty(t)) return t->data;
    return (char *)t->data + t->byte_offset;
}

/* NULL for a tensor that is not given. */
static inline void *tgl_data_or_null(const DLTensor *t) { return t ? tgl_data(t) : NULL; }

static inline bool tgl_on_cpu(const DLTensor *t)
{
    return (int)t->device.device_type == TGL_DL_CPU || (int)t->device.device_type == TGL_DL_CUDA_HOST;
}

/* "bf16 [8064, 7168] strides [14336, 1] on cuda:0", for messages and the log. */
void tgl_describe(const DLTensor *t, char *text, size_t bytes);

#endif
