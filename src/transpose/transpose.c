/* SPDX-License-Identifier: MIT
 * transpose.c - tgl_transpose and tgl_batched_transpose: out[b][j][i] = x[b][i][j], bits unchanged. */
#include "tegula/transpose.h"

#include <string.h>

#include "core/math.h"
#include "core/square.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/op.h"
#include "transpose/tile.h"

/* An array of up to three dimensions, copied to another order of strides (in bytes). `rows` is the dimension
 * along which out is contiguous, the rows of x. `cols` is the one along which x is contiguous, or as close to
 * it as it gets; `batches` is the rest. */
typedef struct { int64_t size, x_stride, out_stride; } dimension;
typedef struct {
    const char *x;
    char *out;
    int element_bytes;
    bool is_copy; /* x is contiguous along `rows` too, or has no other dimension; cols, batches: as in out */
    dimension rows, cols, batches;
    union { transpose_tile_args tiles; transpose_copy_args copy; };         /* of the kernel that is chosen */
} problem;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t magnitude(int64_t a) { return a < 0 ? -a : a; }
static void swap(dimension *a, dimension *b)
{
    const dimension d = *a;
    *a = *b;
    *b = d;
}

/* Would x hold a dimension and the next one, in out's order, as a single one? */
static bool can_merge(const dimension *d, const dimension *next)
{
    return d->size > 0 && next->x_stride % d->size == 0 && next->x_stride / d->size == d->x_stride;
}

/* Is a the better choice for the columns? */
static bool is_closer(const dimension *a, const dimension *b)
{
    const int64_t s = magnitude(a->x_stride), t = magnitude(b->x_stride);
    return a->size > 1 && s != 0 && (t == 0 || s < t);
}

/* Leaves out dimensions of size 1 and merges what can be merged, so that a transposed view, a single row or
 * matrices next to each other are seen for what they are. */
static problem make_problem(const DLTensor *x, const DLTensor *out)
{
    const int64_t bytes = tgl_dtype_bits(x->dtype) / 8;
    const int axes[3] = { x->ndim - 2, x->ndim - 1, 0 };
    dimension d[3] = { { 1, bytes, bytes }, { 1, 0, 0 }, { 1, 0, 0 } };
    int64_t out_stride = bytes;
    int n = 0;
    for (int i = 0; i < x->ndim; i++) {
        const int64_t size = x->shape[axes[i]];
        if (size == 1) continue;                        /* its stride may be anything */
        const dimension next = { size, tgl_stride(x, axes[i]) * bytes, out_stride };
        if (n > 0 && can_merge(&d[n - 1], &next)) d[n - 1].size *= size;
        else d[n++] = next;
        out_stride *= size;
    }
    problem p = { .x = tgl_data(x), .out = tgl_data(out), .element_bytes = (int)bytes,
                  .is_copy = n < 2 || d[0].x_stride == bytes, .rows = d[0], .cols = d[1], .batches = d[2] };
    if (!p.is_copy && is_closer(&p.batches, &p.cols)) swap(&p.cols, &p.batches);
    return p;
}

/* ---- CPU ----
 * Tiles are made of squares that are transposed in registers. Where rows of out lie far apart a tile goes
 * through a buffer on the stack, so that out is written in whole runs. Tiles go down the rows of x: a tile's
 * rows of out continue those of the one before, in the same pages, but every row of x is in a new page, so
 * these runs are the longer ones. On one core (Neoverse-N1) 4096x7168 of 4 bytes take 20 ms; with runs of 256
 * bytes on both sides, 60. */

enum {
    CPU_OUT_BYTES = 192,                    /* of a row of out in a tile */
    CPU_X_BYTES = 1024,                     /* of a row of x, at most ... */
    CPU_MAX_COLS = 256,                     /* ... and not more elements than this */
    CPU_BUFFER_STRIDE = CPU_OUT_BYTES,      /* a power of two would use few sets of the cache */
    CPU_NEAR_BYTES = 64 << 10,              /* rows of out that lie in so few bytes need no buffer */
    CPU_COPY_BYTES = 64 << 10               /* of a piece of a plain copy */
};
static int64_t cpu_tile_rows(int element_bytes) { return CPU_OUT_BYTES / element_bytes; }
static int64_t cpu_tile_cols(int element_bytes) { return least(CPU_X_BYTES / element_bytes, CPU_MAX_COLS); }

#define INLINE static inline __attribute__((always_inline))   /* so that e is a constant */

/* tgl_elements() of at most a tile. */
INLINE void tile(const problem *p, const char *x, char *out, int64_t rows, int64_t cols, char *buffer, int e)
{
    const int64_t row_stride = p->rows.x_stride, out_stride = p->cols.out_stride;
    const int64_t n = 16 / e, square_rows = rows / n * n, square_cols = cols / n * n;
    if (p->cols.x_stride != e || e == 16 || square_rows == 0 || square_cols == 0) {
        tgl_elements(x, row_stride, p->cols.x_stride, out, out_stride, rows, cols, e);
        return;
    }
    const bool is_near = out_stride * cols <= CPU_NEAR_BYTES;
    char *to = is_near ? out : buffer;
    const int64_t stride = is_near ? out_stride : CPU_BUFFER_STRIDE;
    for (int64_t i = 0; i < square_rows; i += n)
        for (int64_t j = 0; j < square_cols; j += n)
            tgl_square(x + i * row_stride + j * e, row_stride, to + j * stride + i * e, stride, e);
    const int64_t more_rows = rows - square_rows, more_cols = cols - square_cols;
    tgl_elements(x + square_cols * e, row_stride, e, to + square_cols * stride, stride, rows, more_cols, e);
    tgl_elements(x + square_rows * row_stride, row_stride, e, to + square_rows * e, stride, more_rows,
             square_cols, e);
    if (is_near) return;
    for (int64_t j = 0; j < cols; j++) {
        const char *from = buffer + j * CPU_BUFFER_STRIDE;
        if (rows * e == CPU_OUT_BYTES) memcpy(out + j * out_stride, from, CPU_OUT_BYTES);   /* inline */
        else memcpy(out + j * out_stride, from, (size_t)(rows * e));
    }
}

static void cpu_tiles(const void *context, int64_t begin, int64_t end)      /* tiles, the rows of x fastest */
{
    const problem *p = context;
    const int e = p->element_bytes;
    const int64_t tile_rows = cpu_tile_rows(e), row_tiles = tgl_ceil_div(p->rows.size, tile_rows);
    const int64_t tile_cols = cpu_tile_cols(e), col_tiles = tgl_ceil_div(p->cols.size, tile_cols);
    char buffer[CPU_MAX_COLS * CPU_BUFFER_STRIDE] __attribute__((aligned(64)));
    int64_t row_tile = begin % row_tiles, col_tile = begin / row_tiles % col_tiles;
    int64_t batch = begin / row_tiles / col_tiles;
    for (int64_t t = begin; t < end; t++) {
        const int64_t i = row_tile * tile_rows, rows = least(tile_rows, p->rows.size - i);
        const int64_t j = col_tile * tile_cols, cols = least(tile_cols, p->cols.size - j);
        const char *x = p->x + i * p->rows.x_stride + j * p->cols.x_stride + batch * p->batches.x_stride;
        char *out = p->out + i * e + j * p->cols.out_stride + batch * p->batches.out_stride;
        switch (e) {
        case 1: tile(p, x, out, rows, cols, buffer, 1); break;
        case 2: tile(p, x, out, rows, cols, buffer, 2); break;
        case 4: tile(p, x, out, rows, cols, buffer, 4); break;
        case 8: tile(p, x, out, rows, cols, buffer, 8); break;
        default: tile(p, x, out, rows, cols, buffer, 16); break;
        }
        if (++row_tile < row_tiles) continue;
        row_tile = 0;
        if (++col_tile < col_tiles) continue;
        col_tile = 0;
        batch++;
    }
}

static void cpu_copy(const void *context, int64_t begin, int64_t end)       /* pieces of the rows of out */
{
    const problem *p = context;
    const int e = p->element_bytes;
    const int64_t piece = CPU_COPY_BYTES / e, pieces = tgl_ceil_div(p->rows.size, piece);
    const int64_t stride = p->rows.x_stride;
    for (int64_t t = begin; t < end; t++) {
        const int64_t i = t % pieces * piece, count = least(piece, p->rows.size - i);
        const int64_t j = t / pieces % p->cols.size, batch = t / pieces / p->cols.size;
        const char *x = p->x + i * stride + j * p->cols.x_stride + batch * p->batches.x_stride;
        char *out = p->out + i * e + j * p->cols.out_stride + batch * p->batches.out_stride;
        if (stride == e) {
            memcpy(out, x, (size_t)(count * e));
            continue;
        }
        switch (e) {                                    /* there is one row only, not contiguous in x */
        case 1: tgl_elements(x, stride, 0, out, 0, count, 1, 1); break;
        case 2: tgl_elements(x, stride, 0, out, 0, count, 1, 2); break;
        case 4: tgl_elements(x, stride, 0, out, 0, count, 1, 4); break;
        case 8: tgl_elements(x, stride, 0, out, 0, count, 1, 8); break;
        default: tgl_elements(x, stride, 0, out, 0, count, 1, 16); break;
        }
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    const int e = p->element_bytes;
    const int64_t rows = p->rows.size, cols = p->cols.size, batches = p->batches.size;
    if (p->is_copy) {
        const int64_t pieces = tgl_ceil_div(rows, CPU_COPY_BYTES / e);
        return tgl_parallel_rows(pieces * cols * batches, 2 * e * (rows / pieces), cpu_copy, p);
    }
    const int64_t tiles = tgl_ceil_div(rows, cpu_tile_rows(e)) * tgl_ceil_div(cols, cpu_tile_cols(e));
    return tgl_parallel_rows(tiles * batches, 2 * e * (rows * cols / tiles), cpu_tiles, p);
}

/* doc: signature */
tgl_signature tgl_transpose_signature = TGL_SIGNATURE(
    "transpose(x: any[num_rows, num_cols] strided) -> out: x[num_cols, num_rows]", NULL);
tgl_signature tgl_batched_transpose_signature = TGL_SIGNATURE(
    "batched_transpose(x: any[num_batches, num_rows, num_cols] strided)"
    " -> out: x[num_batches, num_cols, num_rows]", NULL);
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

/* Where less than a sixteenth of the tiles would be filled, the copy's gather does better. */
static bool copy_pays(const void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    const int64_t rows = TILE_ROWS(p->element_bytes, 0), cols = TILE_COLS(p->element_bytes);
    const int64_t tiles = tgl_ceil_div(p->rows.size, rows) * tgl_ceil_div(p->cols.size, cols);
    return p->is_copy || p->rows.size * p->cols.size < tiles * (rows * cols / 16);
}

static tgl_shape copy_shape(void *context, const tgl_target *target)
{
    (void)target;
    problem *p = context;
    dimension *r = &p->rows, *c = &p->cols, *b = &p->batches;
    if (b->size > 1 && b->out_stride < c->out_stride) swap(b, c);           /* back to out's order */
    p->copy = (transpose_copy_args){ p->x, p->out, { r->size, c->size, b->size },
                                     { r->x_stride, c->x_stride, b->x_stride } };
    const int64_t bytes = r->size * c->size * b->size * p->element_bytes;
    const int64_t blocks = tgl_ceil_div(bytes + 15, 16);   /* of 16 bytes; out may begin inside one */
    return (tgl_shape){ { tgl_ceil_div(blocks, COPY_THREADS * COPY_VECTORS) }, .block = COPY_THREADS,
                        TGL_ARGS(p->copy) };
}

/* Are all rows of out aligned to 16 bytes? Then the lowest four of these bits are 0. */
static int64_t out_bits(const problem *p)
{
    return (int64_t)(uintptr_t)p->out | p->cols.out_stride | p->batches.out_stride;
}

static bool is_aligned(const void *context, const tgl_target *target)
{
    (void)target;
    const problem *p = context;
    const int64_t e = p->element_bytes;
    const int64_t x_bits = (int64_t)(uintptr_t)p->x | p->rows.x_stride | p->batches.x_stride;
    return !p->is_copy && p->cols.x_stride == e &&
           ((x_bits | out_bits(p) | p->rows.size * e | p->cols.size * e) & 15) == 0;
}

static bool is_no_copy(const void *context, const tgl_target *target)
{
    (void)target;
    return !((const problem *)context)->is_copy;
}

static tgl_shape tile_shape(problem *p, bool any)
{
    const dimension *r = &p->rows, *c = &p->cols, *b = &p->batches;
    const int e = p->element_bytes;
    /* With a halo, a row of out may begin up to 31 bytes into its first tile (transpose_any.cu). */
    const uint32_t halo = out_bits(p) & 15 ? TILE_HALO_VECTORS : 0;
    const int64_t halo_rows = halo * 16 / e;
    const int64_t row_tiles = tgl_ceil_div(r->size + halo_rows, TILE_ROWS(e, any) - halo_rows);
    const int64_t col_tiles = tgl_ceil_div(c->size, TILE_COLS(e));
    const int64_t col_slices = tgl_ceil_div(col_tiles, TILE_MAX_GRID);
    const int64_t batch_slices = tgl_ceil_div(b->size, TILE_MAX_GRID);
    p->tiles = (transpose_tile_args){ p->x, p->out, r->size, c->size, b->size, r->x_stride, c->x_stride, b->x_stride,
                                      c->out_stride, b->out_stride, (uint32_t)row_tiles, (uint32_t)col_slices, halo };
    return (tgl_shape){ { row_tiles * col_slices * batch_slices, tgl_ceil_div(col_tiles, col_slices),
                          tgl_ceil_div(b->size, batch_slices) },
                        .block = TILE_THREADS(e, any), TGL_ARGS(p->tiles) };
}
static tgl_shape aligned_shape(void *p, const tgl_target *target) { (void)target; return tile_shape(p, false); }
static tgl_shape any_shape(void *p, const tgl_target *target) { (void)target; return tile_shape(p, true); }

static const tgl_op OP = {
    cpu, plan,
    {
        [COPY] = { NULL, copy_pays, copy_shape },
        [ALIGNED] = { is_aligned, NULL, aligned_shape },
        [ANY] = { is_no_copy, NULL, any_shape },
    }
};

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
