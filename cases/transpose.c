/* SPDX-License-Identifier: MIT
 * transpose.c - the cases of tgl_transpose and tgl_batched_transpose.
 *
 * Layouts of x, [num_batches, num_rows, num_cols]:
 *   packed
 *   half             the left half of a matrix twice as wide, as a slice x[:, :n] gives it
 *   gap              rows 3 elements apart, matrices 5 more: alignment changes from row to row
 *   transposed       a transposed view, so that the op is a copy
 *   interleaved      a row of every matrix in turn, as x.permute(1, 0, 2) gives it
 *   steps            every second column
 *   reversed         all strides negative
 *   repeated_rows, repeated_cols, repeated_batches, repeated       that stride, or all of them, is 0 */
#include "tegula/transpose.h"

#include <string.h>

#include "case.h"
#include "core/status.h"

enum { X, OUT };

/* Sets the strides of [num_batches, num_rows, num_cols]. */
static tgl_status lay_out(const char *layout, int64_t b, int64_t m, int64_t n, int64_t s[3])
{
    if (!strcmp(layout, "packed")) s[0] = m * n, s[1] = n, s[2] = 1;
    else if (!strcmp(layout, "half")) s[0] = 2 * m * n, s[1] = 2 * n, s[2] = 1;
    else if (!strcmp(layout, "gap")) s[0] = m * (n + 3) + 5, s[1] = n + 3, s[2] = 1;
    else if (!strcmp(layout, "transposed")) s[0] = m * n, s[1] = 1, s[2] = m;
    else if (!strcmp(layout, "interleaved")) s[0] = n, s[1] = b * n, s[2] = 1;
    else if (!strcmp(layout, "steps")) s[0] = 2 * m * n + 1, s[1] = 2 * n, s[2] = 2;
    else if (!strcmp(layout, "reversed")) s[0] = -m * n, s[1] = -n, s[2] = -1;
    else if (!strcmp(layout, "repeated_rows")) s[0] = n, s[1] = 0, s[2] = 1;
    else if (!strcmp(layout, "repeated_cols")) s[0] = m, s[1] = 1, s[2] = 0;
    else if (!strcmp(layout, "repeated_batches")) s[0] = 0, s[1] = n, s[2] = 1;
    else if (!strcmp(layout, "repeated")) s[0] = s[1] = s[2] = 0;
    else return tgl_fail(TGL_ERR_ARGUMENT,
                         "layout: is \"%s\", want packed, half, gap, transposed, interleaved, steps, "
                         "reversed, repeated_rows, repeated_cols, repeated_batches or repeated", layout);
    return TGL_OK;
}

/* doc: setup */
static tgl_status setup_batched(case_problem *c)
{
    const int64_t b = case_int(c, "num_batches"), m = case_int(c, "num_rows"), n = case_int(c, "num_cols");
    const tgl_dtype dtype = case_dtype(c, "dtype");
    case_tensor *x = case_add(c, X, "x", CASE_IN, dtype, 3, (int64_t[]){ b, m, n });
    x->offset = case_int(c, "offset");
    case_add(c, OUT, "out", CASE_OUT, dtype, 3, (int64_t[]){ b, n, m })->offset = case_int(c, "out_offset");
    return lay_out(case_text(c, "layout"), b, m, n, x->strides);
}

static tgl_status run_batched(const case_arguments *a)
{
    return tgl_batched_transpose(a->arg[X], a->arg[OUT], a->stream);
}
/* end */

static tgl_status setup(case_problem *c)
{
    const int64_t m = case_int(c, "num_rows"), n = case_int(c, "num_cols");
    const tgl_dtype dtype = case_dtype(c, "dtype");
    case_tensor *x = case_add(c, X, "x", CASE_IN, dtype, 2, (int64_t[]){ m, n });
    x->offset = case_int(c, "offset");
    case_add(c, OUT, "out", CASE_OUT, dtype, 2, (int64_t[]){ n, m })->offset = case_int(c, "out_offset");
    int64_t strides[3];
    TGL_TRY(lay_out(case_text(c, "layout"), 1, m, n, strides));
    memcpy(x->strides, strides + 1, sizeof strides - sizeof *strides);
    return TGL_OK;
}

static tgl_status run(const case_arguments *a) { return tgl_transpose(a->arg[X], a->arg[OUT], a->stream); }

/* Element by element, up to 64 rows of the output at a time: one alone would read a line of x per element.
 * Rows of the output, over all matrices, are shared out. */
#define COPY(size)                                                                                        \
    for (int64_t i = 0; i < m; i++)                                                                       \
        for (int64_t j = 0; j < num_rows; j++)                                                            \
            memcpy(to + (j * m + i) * (size), from + (i * row_stride + j * col_stride) * (size), (size)); \
    break

static void oracle_rows(void *context, int64_t begin, int64_t end)
{
    const case_problem *c = context;
    const case_tensor *x = &c->tensors[X], *out = &c->tensors[OUT];
    const int batched = x->ndim == 3;
    const int64_t m = x->shape[batched], n = x->shape[batched + 1];
    const int64_t row_stride = x->strides[batched], col_stride = x->strides[batched + 1];
    int64_t num_rows;
    for (int64_t row = begin; row < end; row += num_rows) {
        num_rows = end - row < 64 ? end - row : 64;
        if (num_rows > n - row % n) num_rows = n - row % n;     /* of this matrix */
        const int64_t index[3] = { row / n, 0, row % n };
        const char *from = case_element(x, batched ? index : index + 1);
        char *to = out->data + row * m * out->element_bytes;
        switch (x->element_bytes) {             /* a memcpy of a known size is a load and a store */
        case 1: COPY(1);
        case 2: COPY(2);
        case 4: COPY(4);
        case 8: COPY(8);
        case 16: COPY(16);
        }
    }
}

static void oracle(case_problem *c)
{
    const case_tensor *out = &c->tensors[OUT];
    const int batched = out->ndim == 3;
    const int64_t rows = (batched ? out->shape[0] : 1) * out->shape[batched];
    case_parallel(rows, out->shape[batched + 1] * out->element_bytes, oracle_rows, c);
}

static int64_t bytes(const case_problem *c)
{
    return case_tensor_bytes(&c->tensors[X]) + case_tensor_bytes(&c->tensors[OUT]);
}

/* doc: table */
const case_op transpose_ops[] = {
    {
        "transpose", "num_rows= num_cols= dtype= layout=packed offset=0 out_offset=0",
        setup, run, oracle, bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_rows=1,2,37,130 num_cols=1,3,31,129 dtype=e4m3,bf16,f32,i64,c128",
            "num_rows=0,1,64 num_cols=0,64 dtype=e4m3,c128",
            "num_rows=64,65 num_cols=128 dtype=e4m3,bf16,f32,i64,c128 "
            "layout=half,gap,transposed,steps,reversed",
            "num_rows=67 num_cols=70 dtype=e4m3,bf16,f32,i64,c128 "
            "layout=repeated_rows,repeated_cols,repeated",
            "num_rows=64,66 num_cols=128 dtype=e4m3,bf16,f32,i64,c128 offset=1 out_offset=0,1",
            "num_rows=64,66 num_cols=128 dtype=e4m3,bf16,f32 out_offset=1,3",
            "num_rows=33 num_cols=65 dtype=bool,i8,u8,i16,u16,f16,i32,u32,u64,f64,c64,e5m2,ue8m0,e2m1x2",
            "num_rows=300 num_cols=1,300 dtype=e4m3,bf16",
            "num_rows=1 num_cols=300 dtype=e4m3,bf16",
            "num_rows=127 num_cols=1025 dtype=e4m3,bf16,f32",
            NULL,
        },
/* end */
        .lists[CASE_SLOW] = (const char *const[]){
            "num_rows=0,4032,8064 num_cols=576,2048,2560,3072,4096,6144,7168 dtype=e4m3,bf16,f32 "
            "layout=half",
            "num_rows=8064 num_cols=7168 dtype=i64,c128",
            "num_rows=1023 num_cols=4097 dtype=e4m3,bf16,f32,i64,c128 "
            "layout=packed,gap,transposed,steps,reversed",
            "num_rows=46349 num_cols=46351 dtype=u8",                          /* 2^31 < elements < 2^32 */
            "num_rows=1 num_cols=2147483659 dtype=u8",                         /* one size is past 2^31 */
            "num_rows=2147483659 num_cols=1 dtype=u8",
            "num_rows=65537 num_cols=32771 dtype=bf16 layout=repeated_rows",   /* 2^31 elements from few */
            NULL,
        },
        /* sizes that were measured for other libraries, then those of our own targets */
        .lists[CASE_BENCH] = (const char *const[]){
            "num_rows=128,4096,8192 num_cols=7168 dtype=bf16",
            "num_rows=8192 num_cols=8192 dtype=bf16",
            "num_rows=4096,8192 num_cols=7168 dtype=e4m3",
            "num_rows=4096 num_cols=7168 dtype=f32",
            "num_rows=8064 num_cols=7168 dtype=e4m3,bf16,f32",
            "num_rows=1,8,64 num_cols=7168 dtype=bf16",
            "num_rows=4001 num_cols=7168 dtype=e4m3,bf16 layout=packed,half",
            "num_rows=4001 num_cols=7167 dtype=e4m3,bf16,f32",
            "num_rows=4000 num_cols=7168 dtype=bf16 layout=gap,steps",
            "num_rows=8064 num_cols=7168 dtype=bf16 layout=transposed",
            "num_rows=8064 num_cols=7168 dtype=i64,c128",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_rows=64,8064 num_cols=64,7168 dtype=e4m3,bf16,f32,i64,c128",
            "num_rows=67 num_cols=70 dtype=e4m3,bf16,f32,i64,c128 layout=gap,transposed,steps",
            NULL,
        },
    },
    {
        "batched_transpose", "num_batches= num_rows= num_cols= dtype= layout=packed offset=0 out_offset=0",
        setup_batched, run_batched, oracle, bytes, NULL,
        .lists[CASE_CHECK] = (const char *const[]){
            "num_batches=1,3 num_rows=1,31,65 num_cols=1,37,64 dtype=e4m3,bf16,f32,i64,c128",
            "num_batches=0,2 num_rows=0,3 num_cols=0,5 dtype=bf16",
            "num_batches=3 num_rows=64 num_cols=66 dtype=e4m3,bf16,f32,i64,c128 "
            "layout=half,gap,transposed,interleaved,steps,reversed",
            "num_batches=3 num_rows=33 num_cols=34 dtype=e4m3,f32,c128 "
            "layout=repeated_rows,repeated_cols,repeated_batches,repeated",
            "num_batches=1 num_rows=31 num_cols=37 dtype=bf16 layout=gap",  /* a stride that nobody needs */
            "num_batches=2 num_rows=64 num_cols=64 dtype=e4m3,bf16,f32,i64,c128 offset=1 out_offset=0,1",
            "num_batches=70000 num_rows=3 num_cols=2 dtype=bf16",
            NULL,
        },
        .lists[CASE_SLOW] = (const char *const[]){
            "num_batches=8 num_rows=0,4032,8064 num_cols=576,2048,2560,3072,4096,6144,7168 "
            "dtype=e4m3,bf16,f32",
            "num_batches=32 num_rows=4032,8064 num_cols=576,7168 dtype=e4m3,bf16,f32",
            "num_batches=70000 num_rows=3 num_cols=5 dtype=e4m3,bf16,f32,i64,c128",
            "num_batches=5 num_rows=127 num_cols=129 dtype=e4m3,bf16 layout=gap,interleaved,reversed",
            "num_batches=2147483659 num_rows=1 num_cols=1 dtype=u8",
            "num_batches=3 num_rows=32771 num_cols=21847 dtype=u8,bf16 layout=repeated_batches",
            NULL,
        },
        .lists[CASE_BENCH] = (const char *const[]){
            "num_batches=8 num_rows=2048 num_cols=7168 dtype=bf16",
            "num_batches=32 num_rows=4096 num_cols=2048 dtype=bf16",
            "num_batches=32 num_rows=2048 num_cols=7168 dtype=e4m3",
            "num_batches=8 num_rows=4096 num_cols=7168 dtype=f32",
            "num_batches=8 num_rows=128 num_cols=7168 dtype=bf16",
            "num_batches=32 num_rows=8064 num_cols=7168 dtype=e4m3,bf16,f32",
            "num_batches=70000 num_rows=3 num_cols=5 dtype=bf16",
            NULL,
        },
        .lists[CASE_KERNELS] = (const char *const[]){
            "num_batches=32 num_rows=64,8064 num_cols=64,7168 dtype=e4m3,bf16,f32,i64,c128",
            NULL,
        },
    },
    { .name = NULL },
};
