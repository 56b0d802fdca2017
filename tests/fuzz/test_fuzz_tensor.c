/* SPDX-License-Identifier: MIT
 * fuzz_tensor.c without libFuzzer: random inputs of our own, and inputs that libFuzzer found once.
 *
 *     TEGULA_FUZZ_CORPUS=FOLDER build/tests/test_fuzz_tensor corpus      replays the files of a folder */
#include "fuzz_tensor.c"

#include <dirent.h>

#include "test.h"

TEST(random_bytes)
{
    test_random r = test_seed("random_bytes");
    const int64_t count = test_slow() ? 20000000 : 300000;
    for (int64_t i = 0; i < count; i++) {
        uint8_t data[64];
        for (size_t k = 0; k < sizeof data; k++) data[k] = (uint8_t)test_bits(&r);
        LLVMFuzzerTestOneInput(data, (size_t)test_below(&r, sizeof data + 1));
    }
}

TEST(nearly_good_calls)     /* a good call with one byte changed: faults one at a time */
{
    /* flags, then x: flags, device, dtype, shape [5, 3], place, and room for what a changed byte makes of
     * it */
    static const uint8_t good[48] = { 6, 16, 0, 1, 5, 3, 10, 16, 0, 1, 3, 5, 100 };
    int64_t far = 0;
    for (size_t at = 0; at < sizeof good; at++)
        for (int value = 0; value < 256; value++) {
            uint8_t data[sizeof good];
            memcpy(data, good, sizeof good);
            data[at] = (uint8_t)value;
            memcpy(arena, pattern, ARENA);
            LLVMFuzzerTestOneInput(data, sizeof data);
            far += memcmp(arena, pattern, ARENA) != 0;
        }
    /* or the fuzzer tests errors alone */
    CHECK_THAT(far > 1000, "only %" PRId64 " calls wrote anything", far);
}

TEST(corpus)
{
    const char *folder = getenv("TEGULA_FUZZ_CORPUS");
    if (!folder || !*folder) SKIP("TEGULA_FUZZ_CORPUS names no folder");
    DIR *d = opendir(folder);
    REQUIRE(d != NULL);
    int64_t count = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        char path[4096];
        static uint8_t data[1 << 16];
        snprintf(path, sizeof path, "%s/%.255s", folder, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!f) continue;
        const size_t size = fread(data, 1, sizeof data, f);
        fclose(f);
        printf("  %s\n", e->d_name);
        fflush(stdout);
        LLVMFuzzerTestOneInput(data, size);
        count++;
    }
    closedir(d);
    CHECK(count > 0);
}
