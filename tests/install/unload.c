/* SPDX-License-Identifier: MIT
 * unload.c - a program that opens the library, works on threads, closes it and goes on: the threads that OpenMP
 * keeps must not lose their code. It links nothing of the library, and so no libgomp. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tegula/tegula.h"

enum { N = 2048 };

static int fails(const char *what)
{
    printf("  %s\n0 passed, 1 failed, 0 skipped\n", what);
    return 1;
}

int main(int argc, char **argv)
{
    for (int i = 0; i < 3; i++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) return fails(dlerror());
        tgl_status (*set_num_threads)(int), (*transpose)(const DLTensor *, DLTensor *, tgl_stream);
        *(void **)&set_num_threads = dlsym(library, "tgl_set_num_threads");
        *(void **)&transpose = dlsym(library, "tgl_transpose");
        if (!set_num_threads || !transpose) return fails("the library lacks a function");
        float *x = calloc((size_t)N * N, sizeof *x), *y = calloc((size_t)N * N, sizeof *y);
        if (!x || !y) return fails("no memory");
        for (int k = 0; k < N * N; k++) x[k] = (float)k;
        int64_t shape[] = { N, N };
        const DLTensor from = { x, { kDLCPU, 0 }, 2, { TGL_DL_FLOAT, 32, 1 }, shape, NULL, 0 };
        DLTensor to = { y, { kDLCPU, 0 }, 2, { TGL_DL_FLOAT, 32, 1 }, shape, NULL, 0 };
        if (set_num_threads(4) || transpose(&from, &to, NULL)) return fails("a call failed");
        if (y[1] != x[N]) return fails("the result is wrong");
        free(x);
        free(y);
        dlclose(library);
        usleep(20000); /* the threads spin for a while, then sleep: both in libgomp */
    }
    printf("1 passed, 0 failed, 0 skipped\n");
    return 0;
}
