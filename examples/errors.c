/* SPDX-License-Identifier: MIT
 * What a wrong call answers, and what a program may do with it. */
#include <stdio.h>
#include <string.h>
#include <tegula/tegula.h>

static const char *advice(tgl_status status)
{
    /* doc: status */
    switch (status) {
    case TGL_OK: return "done, or enqueued on the stream";
    case TGL_ERR_ARGUMENT: return "fix the call: tgl_last_error() names the argument, what it is and what was wanted";
    case TGL_ERR_DEVICE: return "use another device: there is no driver, or no such GPU";
    case TGL_ERR_COMPILE: return "install NVRTC, or fill the cache before";
    case TGL_ERR_CAPTURE: return "call the op once before the capture begins";
    default: return tgl_status_name(status);
    }
    /* end */
}

int main(void)
{
    float x[6] = { 1, 2, 3, 4, 5, 6 }, out[6] = { 0 };
    int64_t x_shape[] = { 2, 3 }, out_shape[] = { 2, 3 };
    const DLDataType f32 = { TGL_DL_FLOAT, 32, 1 };
    const DLTensor from = { x, { kDLCPU, 0 }, 2, f32, x_shape, NULL, 0 };
    DLTensor to = { out, { kDLCPU, 0 }, 2, f32, out_shape, NULL, 0 };

    const tgl_status status = tgl_transpose(&from, &to, NULL);
    printf("%s: %s\n%s\n", tgl_status_name(status), tgl_last_error(), advice(status));
    if (status != TGL_ERR_ARGUMENT || strcmp(tgl_last_error(), "out: shape is [2, 3], want [3, 2]")) return 1;
    for (int i = 0; i < 6; i++)
        if (out[i] != 0) return 2; /* a call that fails writes nothing */
    return 0;
}
