/* SPDX-License-Identifier: MIT
 * A user's program, in C: transposes a matrix on the CPU and looks at the result. */
#include <stdio.h>
#include <string.h>
#include <tegula/tegula.h>

int main(void)
{
    int32_t x[2][3] = { { 1, 2, 3 }, { 4, 5, 6 } }, out[3][2] = { { 0 } };
    int64_t x_shape[] = { 2, 3 }, out_shape[] = { 3, 2 };
    const DLTensor from = { x, { kDLCPU, 0 }, 2, { TGL_DL_INT, 32, 1 }, x_shape, NULL, 0 };
    DLTensor to = { out, { kDLCPU, 0 }, 2, { TGL_DL_INT, 32, 1 }, out_shape, NULL, 0 };

    if (tgl_transpose(&from, &to, NULL) != TGL_OK) {
        printf("%s\n", tgl_last_error());
        return 1;
    }
#if TGL_VERSION_NUMBER < 100
#error "a version below 0.1"
#endif
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", TGL_VERSION_MAJOR, TGL_VERSION_MINOR, TGL_VERSION_PATCH);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            if (out[j][i] != x[i][j]) return 2;
    printf("C, tegula %s\n", tgl_version());
    return strcmp(version, tgl_version()) ? 3 : 0;
}
