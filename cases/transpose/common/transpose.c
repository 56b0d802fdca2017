/* SPDX-License-Identifier: MIT */
#include "transpose.h"

#include <string.h>

#include "core/status.h"

tgl_status transpose_lay_out(const char *layout, int64_t b, int64_t m, int64_t n, int64_t s[3])
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
    else
        return tgl_fail(TGL_ERR_ARGUMENT,
                        "layout: is \"%s\", want packed, half, gap, transposed, interleaved, steps, "
                        "reversed, repeated_rows, repeated_cols, repeated_batches or repeated",
                        layout);
    return TGL_OK;
}

/* Element by element, up to 64 rows of out at a time: one row alone would read a line of x per element. */
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
        if (num_rows > n - row % n) num_rows = n - row % n; /* of this matrix */
        const int64_t index[3] = { row / n, 0, row % n };
        const char *from = case_element(x, batched ? index : index + 1);
        char *to = out->data + row * m * out->element_bytes;
        switch (x->element_bytes) { /* a memcpy of a known size is a load and a store */
        case 1: COPY(1);
        case 2: COPY(2);
        case 4: COPY(4);
        case 8: COPY(8);
        case 16: COPY(16);
        }
    }
}

void transpose_oracle(case_problem *c)
{
    const case_tensor *out = &c->tensors[OUT];
    const int batched = out->ndim == 3;
    const int64_t rows = (batched ? out->shape[0] : 1) * out->shape[batched];
    case_parallel(rows, out->shape[batched + 1] * out->element_bytes, oracle_rows, c);
}
