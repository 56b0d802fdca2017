/* SPDX-License-Identifier: MIT
 * test_scrub.c - what `tegula check --scrub` does to shared memory. Of a GPU, a kernel that reads what it
 * has not written shows it; on the emulated device, where blocks begin with contents of their own, the
 * kernel has to run. */
#include <stdlib.h>

#include "cases/backend.h"
#include "cases/scrub.h"
#include "cuda/driver.h"
#include "cuda/jit.h"
#include "test.h"

static const backend *cuda(void)
{
    for (int i = 0; i < 2; i++) {
        const backend *b = backend_of_tests(i);
        if (b && !backend_is_cpu(b)) return b;
    }
    return NULL;
}

TEST(every_pattern_is_launched)
{
    if (!cuda()) SKIP("no CUDA device");
    for (int p = 0; p < SCRUB_PATTERNS; p++)
        CHECK_OK(scrub_launch(cuda()->device.device_id, cuda()->stream, (scrub_pattern)p));
    CHECK_OK(backend_wait(cuda(), cuda()->stream));
}

/* One block per SM, each with NUM_WORDS of shared memory that nobody has written: do all of a block's words
 * have the value of its first? And which is that? */
enum { NUM_WORDS = 48 * 1024 / 4 };
static const char probe_text[] = "extern \"C\" __global__ void probe(unsigned *first, unsigned *others)\n"
                                 "{\n"
                                 "    extern __shared__ volatile unsigned word[];\n"
                                 "    if (threadIdx.x == 0) first[blockIdx.x] = word[0];\n"
                                 "    for (int i = threadIdx.x; i < NUM_WORDS; i += blockDim.x)\n"
                                 "        if (word[i] != word[0]) others[blockIdx.x] = 1;\n"
                                 "}\n";

static tgl_status load_probe(const tgl_driver_table *cu, const tgl_device *d, tgl_cu_kernel *kernel)
{
    const tgl_source source = { "tests/probe", probe_text, 0, NULL, NULL };
    const tgl_macro macros[TGL_MAX_MACROS] = { { "NUM_WORDS", NUM_WORDS } };
    tgl_image image;
    tgl_cu_library library;
    TGL_TRY(tgl_jit_source(&source, macros, d->architecture, TGL_JIT_MAY_COMPILE, &image));
    tgl_status status =
        tgl_driver_check(cu->LibraryLoadData(&library, image.image, NULL, NULL, 0, NULL, NULL, 0), "cuLibraryLoadData");
    tgl_image_free(&image);
    if (status == TGL_OK)
        status = tgl_driver_check(cu->LibraryGetKernel(kernel, library, "probe"), "cuLibraryGetKernel");
    return status;
}

TEST(blocks_begin_with_the_pattern)
{
    static const uint32_t wanted[] = { UINT32_MAX, 0, 0x7f7f7f7f };
    const backend *b = cuda();
    if (!b) SKIP("no CUDA device");
    if (b->is_emulated) SKIP("blocks of the emulated device begin with contents of their own");
    const tgl_driver_table *cu;
    const tgl_device *d;
    tgl_context_guard guard;
    tgl_cu_kernel kernel;
    void *memory;
    REQUIRE(CHECK_OK(tgl_driver(&cu)) && CHECK_OK(tgl_device_get(b->device.device_id, &d)));
    REQUIRE(CHECK_OK(tgl_context_enter(b->device.device_id, b->stream, &guard)));
    const size_t n = (size_t)d->num_sms, bytes = 2 * n * sizeof(uint32_t);
    uint32_t *seen = malloc(bytes);
    REQUIRE(CHECK_OK(load_probe(cu, d, &kernel)) && CHECK_OK(backend_alloc(b, bytes, &memory)) && seen);
    for (int p = 0; p < 3; p++) {
        memset(seen, 0, bytes);
        REQUIRE(CHECK_OK(backend_upload(b, memory, seen, bytes)));
        uint32_t *first = memory, *others = first + n;
        void *args[] = { &first, &others };
        const tgl_cu_launch_config config = { (uint32_t)n, 1, 1, 256, 1, 1, 4 * NUM_WORDS, b->stream, NULL, 0 };
        CHECK_OK(scrub_launch(b->device.device_id, b->stream, (scrub_pattern)p));
        CHECK_OK(tgl_driver_check(cu->LaunchKernelEx(&config, (tgl_cu_function)kernel, args, NULL),
                                  "cuLaunchKernelEx"));
        REQUIRE(CHECK_OK(backend_download(b, seen, memory, bytes)));
        for (size_t i = 0; i < n; i++)
            CHECK_THAT(seen[i] == wanted[p] && !seen[n + i], "block %zu begins with 0x%08x, want 0x%08x in all words",
                       i, seen[i], wanted[p]);
    }
    backend_free(b, memory);
    free(seen);
    tgl_context_leave(&guard);
}
