/* SPDX-License-Identifier: MIT
 * test_fuzz.h - a fuzz target as a test program, without libFuzzer: random inputs, and inputs that libFuzzer
 * once found. Include it after the target.
 *
 *     TEGULA_FUZZ_CORPUS=FOLDER build/tests/test_fuzz_tensor corpus      replays the files of a folder */
#ifndef TEGULA_TEST_FUZZ_H
#define TEGULA_TEST_FUZZ_H

#include <dirent.h>

#include "fuzz.h"
#include "test.h"

/* `count` inputs of up to max_bytes random bytes. */
static inline void fuzz_random(int64_t count, size_t max_bytes)
{
    test_random r = test_seed("random_bytes");
    uint8_t *data = malloc(max_bytes);
    INSIST(data);
    for (int64_t i = 0; i < count; i++) {
        const size_t size = (size_t)test_below(&r, (int64_t)max_bytes + 1);
        for (size_t k = 0; k < size; k++) data[k] = (uint8_t)test_bits(&r);
        LLVMFuzzerTestOneInput(data, size);
    }
    free(data);
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

#endif
