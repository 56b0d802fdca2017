/* SPDX-License-Identifier: MIT
 * fuzz_mapping.c without libFuzzer: random inputs of our own, and inputs that libFuzzer found once.
 *
 *     TEGULA_FUZZ_CORPUS=FOLDER build/tests/test_fuzz_mapping corpus     replays the files of a folder */
#include "fuzz_mapping.c"

#include <dirent.h>

#include "test.h"

TEST(random_bytes)
{
    enum { MAX_BYTES = 1024 };
    test_random r = test_seed("random_bytes");
    const int64_t count = test_slow() ? 2000000 : 20000;
    for (int64_t i = 0; i < count; i++) {
        uint8_t data[MAX_BYTES];
        const size_t size = (size_t)test_below(&r, MAX_BYTES + 1);
        for (size_t k = 0; k < size; k++) data[k] = (uint8_t)test_bits(&r);
        LLVMFuzzerTestOneInput(data, size);
    }
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
