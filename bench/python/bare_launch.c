/* SPDX-License-Identifier: MIT
 * bare_launch.c - what the driver alone takes for a launch: cuLaunchKernelEx of an empty kernel with eight
 * arguments, in a loop. host_cost.py compiles it on the fly and subtracts it. */
#include <dlfcn.h>
#include <stdint.h>
#include <stddef.h>
#include <time.h>

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    void *attributes;
    unsigned num_attributes;
} launch_config;
typedef struct {
    int id;
    char pad[4];
    union {
        char bytes[64];
        int number;
    } value;
} launch_attribute;
enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6 };

static int (*launch)(const launch_config *, void *function, void **args, void **extra);
static void *function;

static const char kernel[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                             ".visible .entry empty(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d,"
                             " .param .u64 e, .param .u64 f, .param .u64 g, .param .u64 h) { ret; }\n";

/* Needs a current context. NULL, or what went wrong. */
const char *bare_launch_init(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW), *module;
    if (!lib) return "no libcuda.so.1";
    int (*load)(void **, const void *), (*get)(void **, void *, const char *);
    *(void **)&load = dlsym(lib, "cuModuleLoadData");
    *(void **)&get = dlsym(lib, "cuModuleGetFunction");
    *(void **)&launch = dlsym(lib, "cuLaunchKernelEx");
    if (!load || !get || !launch) return "a driver older than CUDA 12";
    if (load(&module, kernel)) return "the empty kernel did not load";
    return get(&function, module, "empty") ? "the empty kernel has no entry" : NULL;
}

/* Nanoseconds per launch; less than 0 if one failed. */
double bare_launch_ns(int count, void *stream, int pdl)
{
    uint64_t zero = 0;
    void *args[8];
    for (int i = 0; i < 8; i++) args[i] = &zero;
    launch_attribute attribute = { .id = PROGRAMMATIC_STREAM_SERIALIZATION, .value.number = 1 };
    const launch_config config = { { 1, 1, 1 }, { 128, 1, 1 }, 0, stream, &attribute, pdl ? 1 : 0 };
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < count; i++)
        if (launch(&config, function, args, NULL)) return -1;
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) / count;
}
