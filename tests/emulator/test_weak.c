/* SPDX-License-Identifier: MIT
 * test_weak.c - weak memory (EMU_WEAK): a message from block to block arrives with all seeds if fences say so, and
 * otherwise with some seeds does not. */
#include "host.h"

static const struct { const char *entry; bool is_ordered; } messages[] = {
    { "relaxed", false }, { "fenced", true }, { "released", true }, { "fenced_for_the_block_only", false },
    { "of_a_block", true }, { "of_a_block_unfenced", false }, { "of_a_block_without_barrier", false },
    { "of_a_warp", true }, { "reduced", true }, { "reduced_relaxed", false }, { "own_stores", true },
};

static int arrived(void *library, const char *entry, uint64_t first_seed, uint64_t num_seeds)
{
    static const uint32_t zeros[256];
    int count = 0;
    for (uint64_t seed = first_seed; seed < first_seed + num_seeds; seed++) {
        emu.Seed(seed);
        dptr memory = device_copy(zeros, sizeof zeros), out = device_copy(zeros, 4);
        void *args[] = { &memory, &out };
        CHECK_INT(launch(kernel_of(library, entry), 2, 64, 1, COOPERATIVE, 0, args), 0);
        CU(CtxSynchronize());
        uint32_t *seen = host_copy(out, 4);
        count += seen[0] == 64;
        free(seen);
        CU(MemFree(memory));
        CU(MemFree(out));
    }
    return count;
}

TEST(messages)
{
    load();
    if (!emu.Seed) SKIP("only for the emulated device");
    if (dlsym(RTLD_DEFAULT, "__asan_poison_memory_region") || dlsym(RTLD_DEFAULT, "__tsan_create_fiber") ||
        dlsym(RTLD_DEFAULT, "__msan_poison"))
        SKIP("kernels have the sanitizer of the process, not weak memory");
    char *cubin, *log, *source = read_text("weak.cu");
    size_t bytes;
    void *library;
    const int num_seeds = test_slow() ? 1000 : 60;
    setenv("EMU_WEAK", "1", 1);
    REQUIRE(CHECK_INT(compile_text(source, "weak.cu", "sm_90a", &cubin, &bytes, &log), 0));
    start();
    CU(LibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        const int n = arrived(library, messages[i].entry, 1, (uint64_t)num_seeds);
        CHECK_THAT(messages[i].is_ordered ? n == num_seeds : n < num_seeds, "%s: %d of %d messages arrive",
                   messages[i].entry, n, num_seeds);
        CHECK_INT(arrived(library, messages[i].entry, 0, 1), 1);        /* in order: all of them */
    }
    free(cubin);
    free(log);
    free(source);
}
