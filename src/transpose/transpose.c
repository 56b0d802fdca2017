/* SPDX-License-Identifier: MIT
 * transpose.c - tgl_transpose and tgl_batched_transpose: out[b][j][i] = x[b][i][j], bits unchanged. */
#include "tegula/transpose.h"

#include <string.h>

#include "core/math.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "transpose/transpose_cpu.h"

typedef transpose_problem problem;

static int64_t magnitude(int64_t a) { return a < 0 ? -a : a; }
static void swap(dimension *a, dimension *b)
{
    const dimension d = *a;
    *a = *b;
    *b = d;
}

/* Are a dimension and the next one, in out's order, a single one in x? */
static bool can_merge(const dimension *d, const dimension *next)
{
    return next->x_stride % d->size == 0 && next->x_stride / d->size == d->x_stride;
}

/* Should a be the columns, having the smaller stride in x? */
static bool is_closer(const dimension *a, const dimension *b)
{
    const int64_t s = magnitude(a->x_stride), t = magnitude(b->x_stride);
    return a->size > 1 && s != 0 && (t == 0 || s < t);
}

/* Drops dimensions of size 1 and merges dimensions, so that a transposed view, a single row and adjacent
 * matrices are recognised. */
static problem make_problem(const DLTensor *x, const DLTensor *out)
{
    const int64_t bytes = tgl_dtype_bits(x->dtype) / 8;
    const int axes[3] = { x->ndim - 2, x->ndim - 1, 0 };
    dimension d[3] = { { 1, bytes, bytes }, { 1, 0, 0 }, { 1, 0, 0 } };
    if (tgl_is_empty(x)) return (problem){ .element_bytes = (int)bytes }; /* its sizes may be huge */
    int64_t out_stride = bytes;
    int n = 0;
    for (int i = 0; i < x->ndim; i++) {
        const int64_t size = x->shape[axes[i]];
        if (size == 1) continue; /* its stride may be anything */
        const dimension next = { size, tgl_stride(x, axes[i]) * bytes, out_stride };
        if (n > 0 && can_merge(&d[n - 1], &next)) d[n - 1].size *= size;
        else d[n++] = next;
        out_stride *= size;
    }
    problem p = { .x = tgl_data(x),
                  .out = tgl_data(out),
                  .element_bytes = (int)bytes,
                  .is_copy = n < 2 || d[0].x_stride == bytes,
                  .rows = d[0],
                  .cols = d[1],
                  .batches = d[2] };
    if (!p.is_copy && is_closer(&p.batches, &p.cols)) swap(&p.cols, &p.batches);
    return p;
}

/* ---- CPU ---- */

static void cpu_rows(const void *context, int64_t begin, int64_t end) /* of out */
{
    const problem *p = context;
    const int e = p->element_bytes;
    for (int64_t t = begin; t < end; t++) {
        const int64_t j = t % p->cols.size, batch = t / p->cols.size;
        const char *x = p->x + j * p->cols.x_stride + batch * p->batches.x_stride;
        char *out = p->out + j * p->cols.out_stride + batch * p->batches.out_stride;
        for (int64_t i = 0; i < p->rows.size; i++) memcpy(out + i * e, x + i * p->rows.x_stride, (size_t)e);
    }
}

static tgl_status plain(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->cols.size * p->batches.size, 2 * p->element_bytes * p->rows.size, cpu_rows, p);
}

static tgl_status cpu(const void *context) { return TGL_CHOOSE(plain, tgl_transpose_tiles)(context); }

/* doc: signature */
tgl_signature tgl_transpose_signature =
    TGL_SIGNATURE("transpose(x: any[num_rows, num_cols] strided) -> out: x[num_cols, num_rows]", NULL);
tgl_signature tgl_batched_transpose_signature =
    TGL_SIGNATURE("batched_transpose(x: any[num_batches, num_rows, num_cols] strided)"
                  " -> out: x[num_batches, num_cols, num_rows]",
                  NULL);
/* end */

/* ---- launch ---- */

/* doc: plan */
enum { COPY, ALIGNED, ANY, NUM_KERNELS };
static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    const tgl_macro macro = { "ELEMENT_BYTES", p->element_bytes };
    kernels[COPY] = (tgl_kernel){ "transpose/transpose_copy", { macro } };
    kernels[ALIGNED] = (tgl_kernel){ "transpose/transpose", { macro } };
    kernels[ANY] = (tgl_kernel){ "transpose/transpose_any", { macro } };
    return NUM_KERNELS;
}
/* end */

/* If less than a sixteenth of the tiles would be filled, the copy's gather is faster; no measurement is on record. */
static bool copy_pays(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const int64_t rows = TILE_ROWS(p->element_bytes, 0), cols = TILE_COLS(p->element_bytes);
    const int64_t tiles = tgl_ceil_div(p->rows.size, rows) * tgl_ceil_div(p->cols.size, cols);
    return p->is_copy || p->rows.size * p->cols.size < tiles * (rows * cols / 16);
}

static tgl_shape copy_shape(void *context, const tgl_target *target)
{
    problem *p = context;
    dimension *r = &p->rows, *c = &p->cols, *b = &p->batches;
    if (b->size > 1 && b->out_stride < c->out_stride) swap(b, c); /* back to out's order */
    p->copy =
        (transpose_copy_args){ p->x, p->out, { r->size, c->size, b->size }, { r->x_stride, c->x_stride, b->x_stride } };
    const int64_t bytes = r->size * c->size * b->size * p->element_bytes;
    const int64_t blocks = tgl_ceil_div(bytes + 15, 16); /* of 16 bytes; out may begin inside one */
    return (tgl_shape){ { tgl_ceil_div(blocks, COPY_THREADS * COPY_VECTORS) },
                        .block = COPY_THREADS,
                        TGL_ARGS(p->copy) };
}

/* The lowest four bits are 0 if all rows of out are aligned to 16 bytes. */
static int64_t out_bits(const problem *p)
{
    return (int64_t)(uintptr_t)p->out | p->cols.out_stride | p->batches.out_stride;
}

static bool is_aligned(const void *context, const tgl_target *target)
{
    const problem *p = context;
    const int64_t e = p->element_bytes;
    const int64_t x_bits = (int64_t)(uintptr_t)p->x | p->rows.x_stride | p->batches.x_stride;
    return !p->is_copy && p->cols.x_stride == e &&
           ((x_bits | out_bits(p) | p->rows.size * e | p->cols.size * e) & 15) == 0;
}

static bool is_no_copy(const void *p, const tgl_target *target) { return !((const problem *)p)->is_copy; }

static tgl_shape tile_shape(problem *p, bool any)
{
    const dimension *r = &p->rows, *c = &p->cols, *b = &p->batches;
    const int e = p->element_bytes;
    /* with a halo, a row of out begins up to 31 bytes into its first tile (transpose_any.cu) */
    const uint32_t halo = out_bits(p) & 15 ? TILE_HALO_VECTORS : 0;
    const int64_t halo_rows = halo * 16 / e;
    const int64_t row_tiles = tgl_ceil_div(r->size + halo_rows, TILE_ROWS(e, any) - halo_rows);
    const int64_t col_tiles = tgl_ceil_div(c->size, TILE_COLS(e));
    const int64_t col_slices = tgl_ceil_div(col_tiles, TILE_MAX_GRID);
    const int64_t batch_slices = tgl_ceil_div(b->size, TILE_MAX_GRID);
    p->tiles = (transpose_tile_args){ p->x,
                                      p->out,
                                      r->size,
                                      c->size,
                                      b->size,
                                      r->x_stride,
                                      c->x_stride,
                                      b->x_stride,
                                      c->out_stride,
                                      b->out_stride,
                                      (uint32_t)row_tiles,
                                      (uint32_t)col_slices,
                                      halo };
    return (tgl_shape){ { row_tiles * col_slices * batch_slices, tgl_ceil_div(col_tiles, col_slices),
                          tgl_ceil_div(b->size, batch_slices) },
                        .block = TILE_THREADS(e, any),
                        TGL_ARGS(p->tiles) };
}
static tgl_shape aligned_shape(void *p, const tgl_target *target) { return tile_shape(p, false); }
static tgl_shape any_shape(void *p, const tgl_target *target) { return tile_shape(p, true); }

static const tgl_op OP = { cpu,
                           plan,
                           {
                               [COPY] = { NULL, copy_pays, copy_shape },
                               [ALIGNED] = { is_aligned, NULL, aligned_shape },
                               [ANY] = { is_no_copy, NULL, any_shape },
                           } };

static tgl_status run(tgl_signature *signature, const DLTensor *x, DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { x, out };
    TGL_TRY(tgl_take(signature, tensors, NULL, NULL));
    problem p = make_problem(x, out);
    return tgl_run(signature, &OP, tensors, &p, stream);
}

tgl_status tgl_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream)
{
    return run(&tgl_transpose_signature, x, out, stream);
}

tgl_status tgl_batched_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream)
{
    return run(&tgl_batched_transpose_signature, x, out, stream);
}
