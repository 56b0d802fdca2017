/* SPDX-License-Identifier: MIT */
#include "fuzz_tensor.c"
#include "test_fuzz.h"

TEST(random_bytes) { fuzz_random(test_slow() ? 20000000 : 300000, 64); }

TEST(nearly_good_calls) /* a good call with one byte changed: faults one at a time */
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
