/* SPDX-License-Identifier: MIT
 * Counts how often each expert was chosen, on a GPU where there is one: device memory, a stream and a workspace. The
 * driver's functions are loaded here so that the example builds without CUDA; a program that links CUDA calls
 * cudaMalloc() and its like instead. Prints how long the first and the second call took the host. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tegula/tegula.h>

enum { NUM_TOKENS = 4096, NUM_TOPK = 8, NUM_EXPERTS = 256 };

static double milliseconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return 1e3 * (double)t.tv_sec + 1e-6 * (double)t.tv_nsec;
}

/* doc: call */
/* topk_idx and counts are on one device. The workspace is as large as this call wants; one that is larger serves
 * other calls on the stream, too. */
static tgl_status count_experts(const DLTensor *topk_idx, DLTensor *counts, tgl_stream stream)
{
    void *workspace = NULL; /* none on the CPU */
    const size_t bytes = tgl_moe_group_count_workspace_size(topk_idx, counts);
    if (topk_idx->device.device_type == kDLCUDA) {
        const tgl_status status = tgl_workspace_get(topk_idx->device.device_id, bytes, stream, &workspace);
        if (status != TGL_OK) return status;
    }
    return tgl_moe_group_count(topk_idx, counts, workspace, bytes, stream);
}
/* end */

/* What this example needs of the driver. */
static struct {
    int (*init)(unsigned), (*retain)(void **context, int device), (*set_current)(void *context);
    int (*allocate)(void **data, size_t bytes), (*upload)(void *to, const void *from, size_t bytes);
    int (*download)(void *to, const void *from, size_t bytes), (*make_stream)(tgl_stream *, unsigned);
    int (*wait)(tgl_stream);
} cuda;

static bool find_gpu(void)
{
    const char *named = getenv("TEGULA_LIBCUDA");
    void *library = dlopen(named ? named : "libcuda.so.1", RTLD_NOW), *context;
    if (!library) return false;
    const struct {
        void *function;
        const char *name;
    } wanted[] = {
        { &cuda.init, "cuInit" },
        { &cuda.retain, "cuDevicePrimaryCtxRetain" },
        { &cuda.set_current, "cuCtxSetCurrent" },
        { &cuda.allocate, "cuMemAlloc_v2" },
        { &cuda.upload, "cuMemcpyHtoD_v2" },
        { &cuda.download, "cuMemcpyDtoH_v2" },
        { &cuda.make_stream, "cuStreamCreate" },
        { &cuda.wait, "cuStreamSynchronize" },
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!(*(void **)wanted[i].function = dlsym(library, wanted[i].name))) return false;
    return !cuda.init(0) && !cuda.retain(&context, 0) && !cuda.set_current(context);
}

int main(void)
{
    static int32_t topk_idx[NUM_TOKENS][NUM_TOPK], counts[NUM_EXPERTS];
    for (int t = 0; t < NUM_TOKENS; t++)
        for (int k = 0; k < NUM_TOPK; k++) topk_idx[t][k] = (t * t + 37 * k) % NUM_EXPERTS;

    int64_t idx_shape[] = { NUM_TOKENS, NUM_TOPK }, counts_shape[] = { NUM_EXPERTS };
    DLTensor from = tgl_cpu_tensor(topk_idx, TGL_DTYPE_I32, 2, idx_shape);
    DLTensor to = tgl_cpu_tensor(counts, TGL_DTYPE_I32, 1, counts_shape);
    tgl_stream stream = NULL;
    const bool on_gpu = find_gpu();
    if (on_gpu) {
        void *data[2];
        if (cuda.allocate(&data[0], sizeof topk_idx) || cuda.allocate(&data[1], sizeof counts) ||
            cuda.upload(data[0], topk_idx, sizeof topk_idx) || cuda.make_stream(&stream, 0))
            return 1;
        from = tgl_cuda_tensor(data[0], 0, TGL_DTYPE_I32, 2, idx_shape);
        to = tgl_cuda_tensor(data[1], 0, TGL_DTYPE_I32, 1, counts_shape);
    }

    double times[3] = { milliseconds() };
    for (int call = 1; call <= 2; call++) {
        if (count_experts(&from, &to, stream) != TGL_OK) {
            fprintf(stderr, "%s\n", tgl_last_error());
            return 1;
        }
        times[call] = milliseconds();
    }
    if (on_gpu && (cuda.wait(stream) || cuda.download(counts, to.data, sizeof counts))) return 1;

    int64_t total = 0;
    for (int e = 0; e < NUM_EXPERTS; e++) total += counts[e];
    printf("%s: %lld choices of %d experts, expert 0 has %d; first call %.2f ms, second %.3f ms\n",
           on_gpu ? "GPU" : "CPU", (long long)total, NUM_EXPERTS, counts[0], times[1] - times[0], times[2] - times[1]);
    return total != (int64_t)NUM_TOKENS * NUM_TOPK;
}
