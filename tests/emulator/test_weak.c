/* SPDX-License-Identifier: MIT
 * test_weak.c - weak memory (EMU_WEAK): a message from block to block arrives with all seeds if fences say so, and
 * otherwise with some seeds does not. */
#include "host.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

// clang-format off: pairs
static const struct { const char *entry; bool is_ordered; } messages[] = {
    { "relaxed", false }, { "fenced", true }, { "released", true }, { "fenced_for_the_block_only", false },
    { "of_a_block", true }, { "of_a_block_unfenced", false }, { "of_a_block_without_barrier", false },
    { "of_a_warp", true }, { "reduced", true }, { "reduced_relaxed", false }, { "own_stores", true },
};
// clang-format on

static int arrived(void *library, const char *entry, uint32_t num_blocks, uint64_t first_seed, uint64_t num_seeds)
{
    static const uint32_t zeros[256];
    int count = 0;
    for (uint64_t seed = first_seed; seed < first_seed + num_seeds; seed++) {
        emu.Seed(seed);
        dptr memory = device_copy(zeros, sizeof zeros), out = device_copy(zeros, 4);
        void *args[] = { &memory, &out };
        CHECK_INT(launch(kernel_of(library, entry), num_blocks, 64, 1, COOPERATIVE, 0, args), 0);
        CU(CtxSynchronize());
        uint32_t *seen = host_copy(out, 4);
        count += seen[0] == 64;
        free(seen);
        CU(MemFree(memory));
        CU(MemFree(out));
    }
    return count;
}

/* weak.cu, compiled with weak memory; NULL: kernels have the sanitizer of the process instead */
static char *compile_weak(void)
{
    if (dlsym(RTLD_DEFAULT, "__asan_poison_memory_region") || dlsym(RTLD_DEFAULT, "__tsan_create_fiber") ||
        dlsym(RTLD_DEFAULT, "__msan_poison"))
        return NULL;
    char *cubin, *log, *source = read_text("weak.cu");
    size_t bytes;
    setenv("EMU_WEAK", "1", 1);
    if (!CHECK_INT(compile_text(source, "weak.cu", "sm_90a", &cubin, &bytes, &log), 0)) exit(1);
    free(log);
    free(source);
    return cubin;
}

static void launch_in_child(const char *cubin, const char *entry)
{
    void *library;
    start();
    CU(LibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
    dptr memory = device_copy(NULL, 1024), out = device_copy(NULL, 1024);
    void *args[] = { &memory, &out };
    CHECK_INT(launch(kernel_of(library, entry), 1, 64, 1, PDL, 0, args), 0);
    _exit(cu.CtxSynchronize() == 719); /* CUDA_ERROR_LAUNCH_FAILED */
}

TEST(before_pdl_wait) /* first: a process that has called cuInit cannot be forked */
{
    static const struct {
        const char *entry;
        int fails;
    } kernels[] = {
        { "late", 0 },
        { "early_load", 1 },
        { "early_poll", 1 },
        { "early_store", 1 },
    };
    load();
    if (!emu.Seed) SKIP("only for the emulated device");
    char *cubin = compile_weak();
    if (!cubin) SKIP("kernels have the sanitizer of the process, not weak memory");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        int status;
        fflush(stdout);
        const pid_t pid = fork();
        if (!pid) {
            dup2(open("/dev/null", O_WRONLY), 2);
            launch_in_child(cubin, kernels[i].entry);
        }
        waitpid(pid, &status, 0);
        CHECK_THAT(WIFEXITED(status) && WEXITSTATUS(status) == kernels[i].fails, "%s: status %d", kernels[i].entry,
                   status);
    }
    free(cubin);
}

TEST(messages)
{
    load();
    if (!emu.Seed) SKIP("only for the emulated device");
    char *cubin = compile_weak();
    if (!cubin) SKIP("kernels have the sanitizer of the process, not weak memory");
    void *library;
    const int num_seeds = test_slow() ? 1000 : 60;
    start();
    CU(LibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        const int n = arrived(library, messages[i].entry, 2, 1, (uint64_t)num_seeds);
        CHECK_THAT(messages[i].is_ordered ? n == num_seeds : n < num_seeds, "%s: %d of %d messages arrive",
                   messages[i].entry, n, num_seeds);
        CHECK_INT(arrived(library, messages[i].entry, 2, 0, 1), 1); /* in order: all of them */
    }
    CHECK_INT(arrived(library, "one_poller", 64, 1, (uint64_t)num_seeds), num_seeds);
    free(cubin);
}
