/* SPDX-License-Identifier: MIT
 * Fills the disk cache with the kernels that a program will need. Needs NVRTC, but no GPU and no driver. */
#include <stdio.h>
#include <string.h>
#include <tegula/tegula.h>

/* doc: report */
static void on_compile(void *context, const char *kernel, const char *macros, const char *architecture,
                       double milliseconds)
{
    printf("compiled %s (%s) for %s in %.0f ms\n", kernel, macros, architecture, milliseconds);
}
/* end */

/* doc: prepare */
static tgl_status prepare(const char *architecture)
{
    int64_t x_shape[] = { 4096, 7168 }, out_shape[] = { 7168, 4096 };
    const DLDataType bf16 = { TGL_DL_BFLOAT, 16, 1 };
    const DLTensor x = { NULL, { kDLCUDA, 0 }, 2, bf16, x_shape, NULL, 0 }; /* nothing runs: no data */
    DLTensor out = { NULL, { kDLCUDA, 0 }, 2, bf16, out_shape, NULL, 0 };

    tgl_status status = tgl_prepare_begin(0, architecture); /* (device, NULL) also loads them there */
    if (status != TGL_OK) return status;
    status = tgl_transpose(&x, &out, NULL); /* any number of ops: each compiles what it could launch */
    tgl_prepare_end();
    return status;
}
/* end */

int main(int argc, char **argv)
{
    tgl_set_compile_callback(on_compile, NULL);
    const tgl_status status = prepare(argc > 1 ? argv[1] : "sm_90a");
    if (status != TGL_OK) {
        printf("%s: %s\n", tgl_status_name(status), tgl_last_error());
        /* a machine without NVRTC is no failure of this example */
        return !(status == TGL_ERR_COMPILE && strstr(tgl_last_error(), "libnvrtc"));
    }
    printf("%d kernels compiled, the rest was in %s\n", (int)tgl_compile_count(), tgl_get_cache_dir());

    /* doc: strict */
    tgl_set_jit_mode(TGL_JIT_NEVER); /* from here on: found in a cache, or an error that names the kernel */
    /* end */
    return prepare(argc > 1 ? argv[1] : "sm_90a") == TGL_OK || !tgl_get_cache_dir()[0] ? 0 : 1;
}
