/* SPDX-License-Identifier: MIT
 * host_cost.c - nanoseconds that the library itself spends on a warm call with CUDA tensors, for every op: the
 * driver functions that a warm launch calls do nothing here. Prints the fastest of many rounds, on the emulated device:
 *
 *     cmake --build build --target host_cost && build/tests/host_cost [op...]
 *
 * Needs TEGULA_LIBCUDA and TEGULA_LIBNVRTC as the tests have them (`ctest -N -V -R emulated/quick_set` shows them). */
#include <stdio.h>
#include <time.h>

#include "cases/case.h"
#include "cuda/driver.h"

enum { ROUNDS = 2000, CALLS = 20 };

static tgl_cu_context context;
static tgl_cu_device device; /* the first */

static tgl_cu_result launch_nothing(const tgl_cu_launch_config *c, tgl_cu_function f, void **args, void **extra)
{
    return 0;
}
static tgl_cu_result get_context(tgl_cu_context *c)
{
    *c = context;
    return 0;
}
static tgl_cu_result get_device(tgl_cu_device *d)
{
    *d = device;
    return 0;
}
static tgl_cu_result push_context(tgl_cu_context c) { return 0; }
static tgl_cu_result get_context_id(tgl_cu_context c, uint64_t *id)
{
    *id = 1;
    return 0;
}
static tgl_cu_result get_context_of_stream(tgl_stream s, tgl_cu_context *c)
{
    *c = context;
    return 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double nanoseconds(case_instance *k)
{
    double fastest = 1e18;
    for (int r = 0; r < ROUNDS; r++) {
        const double begin = now();
        for (int i = 0; i < CALLS; i++) case_call(k);
        const double each = (now() - begin) / CALLS;
        if (each < fastest) fastest = each;
    }
    return fastest;
}

static bool measure(const case_op *op, const backend *b, tgl_driver_table *cu)
{
    case_params params;
    case_instance *k;
    if (case_at(op, op->lists[CASE_KERNELS], 0, &params) || case_open(op, &params, b, &k)) return false;
    const bool is_ok = case_call(k) == TGL_OK && backend_wait(b, b->stream) == TGL_OK;
    const tgl_driver_table whole = *cu;
    cu->LaunchKernelEx = launch_nothing;
    cu->CtxGetCurrent = cu->CtxPopCurrent = get_context;
    cu->CtxGetDevice = get_device;
    cu->CtxGetId = get_context_id;
    cu->CtxPushCurrent = push_context;
    cu->StreamGetCtx = get_context_of_stream;
    if (is_ok) printf("%-60s %6.0f\n", op->name, nanoseconds(k));
    *cu = whole;
    case_close(k);
    return is_ok;
}

int main(int argc, char **argv)
{
    const tgl_driver_table *table;
    backend b;
    if (tgl_driver(&table) || backend_open("cuda", &b) ||
        tgl_driver_check(table->DevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain") ||
        tgl_driver_check(table->CtxPushCurrent(context), "cuCtxPushCurrent")) {
        fprintf(stderr, "host_cost: %s\n", tgl_last_error());
        return 1;
    }
    bool is_ok = true;
    for (int i = 0; case_op_at(i); i++) {
        bool is_wanted = argc == 1;
        for (int a = 1; a < argc; a++) is_wanted |= !strcmp(argv[a], case_op_at(i)->name);
        if (is_wanted && !case_op_at(i)->has_no_kernel) is_ok &= measure(case_op_at(i), &b, (tgl_driver_table *)table);
    }
    backend_close(&b);
    return is_ok ? 0 : 1;
}
