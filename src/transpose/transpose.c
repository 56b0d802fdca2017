/* SPDX-License-Identifier: MIT
 * transpose.c - tgl_transpose and tgl_batched_transpose: out[b][j][i] = x[b][i][j], bits unchanged. */
#include "tegula/transpose.h"

#include <string.h>

#include "core/log.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "cuda/launch.h"
#include "transpose/tile.h"

/* An array of up to three dimensions, copied to another order of strides. Dimension 0 is contiguous in out: the rows of x. Dimension
 * 1 is the one along which x is contiguous, or as close to it as it gets: its columns. 2 is the rest. Strides are in bytes. */
typedef struct { int64_t size, x_stride, out_stride; } dimension;
typedef struct {
    const char *x;
    char *out;
    int element_bytes;
    bool is_copy; /* x is contiguous along dimension 0 too (or there is no other): dimensions 1 and 2 are in out's order */
    dimension dim[3];
} problem;

/* Leaves out dimensions of size 1 and merges neighbours (in out's order) that x holds like one, so that a transposed view, a single
 * row, or a batch of matrices next to each other is seen for what it is; then finds the columns. */
static problem make_problem(const DLTensor *x, const DLTensor *out)
{
    const int64_t bytes = tgl_dtype_bits(x->dtype) / 8;
    problem p = { .x = tgl_data(x), .out = tgl_data(out), .element_bytes = (int)bytes };
    int64_t out_stride = bytes;
    int n = 0;
    for (int i = 0; i < x->ndim; i++) {                 /* rows, columns, batches */
        const int axis = i == 0 ? x->ndim - 2 : i == 1 ? x->ndim - 1 : 0;
        const int64_t size = x->shape[axis];
        if (size == 1) continue;                        /* its stride may be anything */
        const dimension d = { size, tgl_stride(x, axis) * bytes, out_stride };
        out_stride *= size;
        if (n > 0 && d.x_stride / p.dim[n - 1].size == p.dim[n - 1].x_stride && d.x_stride % p.dim[n - 1].size == 0)
            p.dim[n - 1].size *= size;
        else
            p.dim[n++] = d;
    }
    if (n == 0) p.dim[n++] = (dimension){ 1, bytes, bytes };
    p.is_copy = n == 1 || p.dim[0].x_stride == bytes;
    for (; n < 3; n++) p.dim[n] = (dimension){ 1, 0, 0 };

    const int64_t one = p.dim[1].x_stride, two = p.dim[2].x_stride;
    const bool two_is_closer = two != 0 && (one == 0 || (two < 0 ? -two : two) < (one < 0 ? -one : one));
    if (!p.is_copy && p.dim[2].size > 1 && two_is_closer) {
        const dimension d = p.dim[1];
        p.dim[1] = p.dim[2];
        p.dim[2] = d;
    }
    return p;
}

/* ---- CPU ----
 * Tiles are made of squares that are transposed in registers. Where rows of out lie far apart a tile goes through a buffer on the
 * stack, so that out is written in whole runs. Tiles go down the rows of x: a tile's rows of out continue those of the one before,
 * in the same pages, but every row of x is in a new page, so these runs are the longer ones. */

enum {
    CPU_OUT_BYTES = 256,                                /* of a row of out in a tile */
    CPU_X_BYTES = 1024, CPU_MAX_COLS = 256,             /* of a row of x, at most */
    CPU_BUFFER_STRIDE = CPU_OUT_BYTES + 64,             /* rows a cache line off a power of two keep to sets of their own */
    CPU_NEAR_BYTES = 16 << 10                           /* rows of out that lie in so few bytes need no buffer */
};
static int64_t cpu_tile_rows(int element_bytes) { return CPU_OUT_BYTES / element_bytes; }
static int64_t cpu_tile_cols(int element_bytes)
{
    return CPU_X_BYTES / element_bytes < CPU_MAX_COLS ? CPU_X_BYTES / element_bytes : CPU_MAX_COLS;
}

typedef uint8_t vector8 __attribute__((vector_size(16)));
typedef uint16_t vector16 __attribute__((vector_size(16)));
typedef uint32_t vector32 __attribute__((vector_size(16)));
typedef uint64_t vector64 __attribute__((vector_size(16)));
#define INLINE static inline __attribute__((always_inline))

/* a0 b0 a1 b1 ... of the lower or the upper halves, for elements of e bytes. */
INLINE vector8 zip(vector8 a, vector8 b, int e, bool upper)
{
    switch (e) {
    case 1:
        return upper ? __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
                     : __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    case 2:
        return upper ? (vector8)__builtin_shufflevector((vector16)a, (vector16)b, 4, 12, 5, 13, 6, 14, 7, 15)
                     : (vector8)__builtin_shufflevector((vector16)a, (vector16)b, 0, 8, 1, 9, 2, 10, 3, 11);
    case 4:
        return upper ? (vector8)__builtin_shufflevector((vector32)a, (vector32)b, 2, 6, 3, 7)
                     : (vector8)__builtin_shufflevector((vector32)a, (vector32)b, 0, 4, 1, 5);
    default:
        return upper ? (vector8)__builtin_shufflevector((vector64)a, (vector64)b, 1, 3)
                     : (vector8)__builtin_shufflevector((vector64)a, (vector64)b, 0, 2);
    }
}

/* A square of 16 bytes by 16 / e rows: log2(16 / e) times, rows i and i + half are interleaved into rows 2 i and 2 i + 1. */
INLINE void square(const char *x, int64_t x_stride, char *out, int64_t out_stride, int e)
{
    const int n = 16 / e;
    vector8 v[16], w[16];
    for (int i = 0; i < n; i++) memcpy(&v[i], x + i * x_stride, 16);
    for (int step = 1; step < n; step *= 2) {
        for (int i = 0; i < n / 2; i++) {
            w[2 * i] = zip(v[i], v[i + n / 2], e, false);
            w[2 * i + 1] = zip(v[i], v[i + n / 2], e, true);
        }
        for (int i = 0; i < n; i++) v[i] = w[i];
    }
    for (int i = 0; i < n; i++) memcpy(out + i * out_stride, &v[i], 16);
}

INLINE void elements(const char *x, int64_t row_stride, int64_t col_stride, char *out, int64_t out_stride, int64_t rows,
                     int64_t cols, int e)
{
    for (int64_t j = 0; j < cols; j++)
        for (int64_t i = 0; i < rows; i++) memcpy(out + j * out_stride + i * e, x + i * row_stride + j * col_stride, (size_t)e);
}

/* rows x cols elements, at most a tile. */
INLINE void tile(const problem *p, const char *x, char *out, int64_t rows, int64_t cols, char *buffer, int e)
{
    const int64_t row_stride = p->dim[0].x_stride, col_stride = p->dim[1].x_stride, out_stride = p->dim[1].out_stride;
    const int64_t n = 16 / e, whole_rows = col_stride == e && e < 16 ? rows / n * n : 0, whole_cols = cols / n * n;
    if (whole_rows == 0 || whole_cols == 0) {
        elements(x, row_stride, col_stride, out, out_stride, rows, cols, e);
        return;
    }
    const bool is_near = out_stride * cols <= CPU_NEAR_BYTES;
    char *to = is_near ? out : buffer;
    const int64_t to_stride = is_near ? out_stride : CPU_BUFFER_STRIDE;
    for (int64_t i = 0; i < whole_rows; i += n)
        for (int64_t j = 0; j < whole_cols; j += n)
            square(x + i * row_stride + j * e, row_stride, to + j * to_stride + i * e, to_stride, e);
    elements(x + whole_cols * e, row_stride, e, to + whole_cols * to_stride, to_stride, whole_rows, cols - whole_cols, e);
    elements(x + whole_rows * row_stride, row_stride, e, to + whole_rows * e, to_stride, rows - whole_rows, cols, e);
    if (is_near) return;
    for (int64_t j = 0; j < cols; j++) {
        if (rows * e == CPU_OUT_BYTES) memcpy(out + j * out_stride, buffer + j * CPU_BUFFER_STRIDE, CPU_OUT_BYTES);
        else memcpy(out + j * out_stride, buffer + j * CPU_BUFFER_STRIDE, (size_t)(rows * e));
    }
}

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static void cpu_tiles(const void *context, int64_t begin, int64_t end)  /* tiles, the rows of x fastest */
{
    const problem *p = context;
    char buffer[CPU_MAX_COLS * CPU_BUFFER_STRIDE] __attribute__((aligned(64)));
    const int64_t tile_rows = cpu_tile_rows(p->element_bytes), tile_cols = cpu_tile_cols(p->element_bytes);
    const int64_t row_tiles = divide_up(p->dim[0].size, tile_rows), col_tiles = divide_up(p->dim[1].size, tile_cols);
    int64_t row_tile = begin % row_tiles, col_tile = begin / row_tiles % col_tiles, batch = begin / row_tiles / col_tiles;
    for (int64_t t = begin; t < end; t++) {
        const int64_t i = row_tile * tile_rows, j = col_tile * tile_cols;
        const char *x = p->x + i * p->dim[0].x_stride + j * p->dim[1].x_stride + batch * p->dim[2].x_stride;
        char *out = p->out + i * p->element_bytes + j * p->dim[1].out_stride + batch * p->dim[2].out_stride;
        const int64_t rows = p->dim[0].size - i < tile_rows ? p->dim[0].size - i : tile_rows;
        const int64_t cols = p->dim[1].size - j < tile_cols ? p->dim[1].size - j : tile_cols;
        switch (p->element_bytes) {
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

/* Pieces of CPU_COPY_BYTES of the rows of out, which are contiguous in x (or there is one row only). */
enum { CPU_COPY_BYTES = 64 << 10 };

static void cpu_copy(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    const int64_t piece = CPU_COPY_BYTES / p->element_bytes, pieces = divide_up(p->dim[0].size, piece);
    for (int64_t t = begin; t < end; t++) {
        const int64_t first = t % pieces * piece, row = t / pieces, i1 = row % p->dim[1].size, i2 = row / p->dim[1].size;
        const int64_t count = p->dim[0].size - first < piece ? p->dim[0].size - first : piece;
        const char *x = p->x + first * p->dim[0].x_stride + i1 * p->dim[1].x_stride + i2 * p->dim[2].x_stride;
        char *out = p->out + first * p->element_bytes + i1 * p->dim[1].out_stride + i2 * p->dim[2].out_stride;
        const int64_t stride = p->dim[0].x_stride;
        if (stride == p->element_bytes) memcpy(out, x, (size_t)(count * p->element_bytes));
        else switch (p->element_bytes) {
        case 1: elements(x, stride, 0, out, 0, count, 1, 1); break;
        case 2: elements(x, stride, 0, out, 0, count, 1, 2); break;
        case 4: elements(x, stride, 0, out, 0, count, 1, 4); break;
        case 8: elements(x, stride, 0, out, 0, count, 1, 8); break;
        default: elements(x, stride, 0, out, 0, count, 1, 16); break;
        }
    }
}

static tgl_status run_on_cpu(const problem *p)
{
    const int64_t e = p->element_bytes, rows = p->dim[0].size, cols = p->dim[1].size, batches = p->dim[2].size;
    if (p->is_copy) {
        const int64_t piece = CPU_COPY_BYTES / e < rows ? CPU_COPY_BYTES / e : rows;
        return tgl_parallel_rows(divide_up(rows, CPU_COPY_BYTES / e) * cols * batches, 2 * piece * e, cpu_copy, p);
    }
    const int64_t tiles = divide_up(rows, cpu_tile_rows(p->element_bytes)) * divide_up(cols, cpu_tile_cols(p->element_bytes));
    return tgl_parallel_rows(tiles * batches, 2 * (rows * cols / tiles) * e, cpu_tiles, p);
}

/* ---- checks ---- */

static tgl_status check(const DLTensor *x, const DLTensor *out, int ndim)
{
    TGL_TRY(tgl_expect("x", x, TGL_ANY, ndim, TGL_STRIDED));
    TGL_TRY(tgl_expect("out", out, TGL_ANY, ndim, TGL_PACKED));
    TGL_TRY(tgl_expect_same_dtype("out", out, "x", x));
    TGL_TRY(tgl_expect_same_device("out", out, x));
    const int64_t batches = x->shape[0], rows = x->shape[ndim - 2], cols = x->shape[ndim - 1];
    const tgl_dim want[3] = { { batches, batches }, { cols, cols }, { rows, rows } };
    TGL_TRY(tgl_expect_shape("out", out, want + 3 - ndim));
    return tgl_expect_no_overlap("out", out, "x", x);
}

/* ---- launch ---- */

/* The kernels of a configuration; the sizes, strides and addresses of a call choose one. */
enum { ALIGNED, ANY, COPY, NUM_KERNELS };
static tgl_kernel plan(int which, int element_bytes)
{
    static const char *const names[NUM_KERNELS] = { "transpose/transpose", "transpose/transpose_any", "transpose/transpose_copy" };
    return (tgl_kernel){ names[which], { { "ELEMENT_BYTES", element_bytes } } };
}

static tgl_status prepare(const DLTensor *x, tgl_stream stream)
{
    for (int i = 0; i < NUM_KERNELS; i++) {
        const tgl_kernel kernel = plan(i, tgl_dtype_bits(x->dtype) / 8);
        TGL_TRY(tgl_launch(&kernel, x, &(tgl_shape){ .block = 1 }, stream, NULL));
    }
    return TGL_OK;
}

static bool is_multiple_of_16(int64_t a, int64_t b, int64_t c) { return (a | b | c) % 16 == 0; }

static tgl_status launch_copy(problem *p, const DLTensor *on, tgl_stream stream)
{
    dimension *d = p->dim;
    if (d[2].size > 1 && d[2].out_stride < d[1].out_stride) {   /* back to out's order */
        const dimension swap = d[1];
        d[1] = d[2];
        d[2] = swap;
    }
    const int64_t bytes = d[0].size * d[1].size * d[2].size * p->element_bytes;
    const int64_t blocks = divide_up(bytes + 15, 16);           /* of 16 bytes: one more if out is not aligned */
    const tgl_kernel kernel = plan(COPY, p->element_bytes);
    const tgl_shape shape = { .grid = { divide_up(blocks, COPY_THREADS * COPY_VECTORS) }, .block = COPY_THREADS };
    void *args[] = { &p->x, &p->out, &d[0].size, &d[1].size, &d[2].size, &d[0].x_stride, &d[1].x_stride, &d[2].x_stride };
    return tgl_launch(&kernel, on, &shape, stream, args);
}

static tgl_status launch_tiles(problem *p, const DLTensor *on, tgl_stream stream)
{
    dimension *d = p->dim;
    const int e = p->element_bytes;
    const bool is_out_aligned = is_multiple_of_16((int64_t)(uintptr_t)p->out, d[1].out_stride, d[2].out_stride);
    const bool is_x_aligned = is_multiple_of_16((int64_t)(uintptr_t)p->x, d[0].x_stride, d[2].x_stride) && d[1].x_stride == e;
    const bool any = !is_out_aligned || !is_x_aligned || d[0].size * e % 16 != 0 || d[1].size * e % 16 != 0;

    uint32_t halo = is_out_aligned ? 0 : TILE_HALO_VECTORS;     /* with it a row of out may begin up to 31 bytes into its first tile */
    const int64_t rows_apart = TILE_ROWS(e, any) - halo * 16 / e;
    const int64_t row_tiles = divide_up(d[0].size + halo * 16 / e, rows_apart);
    const int64_t col_tiles = divide_up(d[1].size, TILE_COLS(e));
    const int64_t col_slices = divide_up(col_tiles, TILE_MAX_GRID), batch_slices = divide_up(d[2].size, TILE_MAX_GRID);
    const tgl_shape shape = { .grid = { row_tiles * col_slices * batch_slices, divide_up(col_tiles, col_slices),
                                        divide_up(d[2].size, batch_slices) },
                              .block = TILE_THREADS(e, any) };
    const tgl_kernel kernel = plan(any ? ANY : ALIGNED, e);
    uint32_t num_row_tiles = (uint32_t)row_tiles, num_col_slices = (uint32_t)col_slices;
    if (!any) {
        void *args[] = { &p->x, &p->out, &d[0].size, &d[1].size, &d[2].size, &d[0].x_stride, &d[2].x_stride, &d[1].out_stride,
                         &d[2].out_stride, &num_row_tiles, &num_col_slices };
        return tgl_launch(&kernel, on, &shape, stream, args);
    }
    void *args[] = { &p->x, &p->out, &d[0].size, &d[1].size, &d[2].size, &d[0].x_stride, &d[1].x_stride, &d[2].x_stride,
                     &d[1].out_stride, &d[2].out_stride, &num_row_tiles, &num_col_slices, &halo };
    return tgl_launch(&kernel, on, &shape, stream, args);
}

static tgl_status run_on_cuda(problem *p, const DLTensor *on, tgl_stream stream)
{
    /* Where less than a sixteenth of the tiles would be filled, the copy's gather does better. */
    const int64_t rows = TILE_ROWS(p->element_bytes, 0), cols = TILE_COLS(p->element_bytes);
    const int64_t tiles = divide_up(p->dim[0].size, rows) * divide_up(p->dim[1].size, cols);
    const bool fills_tiles = p->dim[0].size * p->dim[1].size >= tiles * rows * cols / 16;
    return p->is_copy || !fills_tiles ? launch_copy(p, on, stream) : launch_tiles(p, on, stream);
}

static tgl_status run(const char *op, const DLTensor *x, DLTensor *out, int ndim, tgl_stream stream)
{
    if (tgl_log_wants(TGL_LOG_CALL)) tgl_log_call(op, "x", x, "out", out, NULL);
    TGL_TRY(check(x, out, ndim));
    if (tgl_preparing()) return tgl_on_cpu(x) ? TGL_OK : prepare(x, stream);
    if (tgl_is_empty(x)) return TGL_OK;                 /* data may be NULL */
    problem p = make_problem(x, out);
    return tgl_on_cpu(x) ? run_on_cpu(&p) : run_on_cuda(&p, x, stream);
}

tgl_status tgl_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream)
{
    return run("tgl_transpose", x, out, 2, stream);
}

tgl_status tgl_batched_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream)
{
    return run("tgl_batched_transpose", x, out, 3, stream);
}
