/* SPDX-License-Identifier: MIT
 * Transposes a small matrix on the CPU. With a CUDA tensor the call is the same, and is enqueued on the stream. */
#include <stdio.h>

/* doc: call */
#include <tegula/tegula.h>

static int transpose(const float *x, float *out, int64_t num_rows, int64_t num_cols)
{
    const DLTensor from = tgl_cpu_tensor(x, TGL_DTYPE_F32, 2, (int64_t[]){ num_rows, num_cols });
    DLTensor to = tgl_cpu_tensor(out, TGL_DTYPE_F32, 2, (int64_t[]){ num_cols, num_rows });

    if (tgl_transpose(&from, &to, NULL) == TGL_OK) return 0;
    fprintf(stderr, "%s\n", tgl_last_error()); /* such as "out: shape is [3, 5], want [5, 3]" */
    return 1;
}
/* end */

int main(void)
{
    const float x[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } };
    float out[3][2];
    if (transpose(&x[0][0], &out[0][0], 2, 3)) return 1;
    for (int i = 0; i < 3; i++) printf("%g %g\n", (double)out[i][0], (double)out[i][1]);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            if (out[i][j] != x[j][i]) return 1;
    return 0;
}
