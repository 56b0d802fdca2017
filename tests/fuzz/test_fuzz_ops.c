/* SPDX-License-Identifier: MIT */
#include "fuzz_ops.c"
#include "test_fuzz.h"

TEST(random_bytes)
{
    const int64_t some = device_of_tests() ? 500 : 20000;
    if (test_slow()) max_compiles = UINT64_MAX;
    fuzz_random(test_slow() ? 100 * some : some, 128);
    printf("  %" PRId64 " calls succeeded (%" PRId64 " like an oracle, %" PRId64 " on a device too, %" PRId64
           " there without kernels), %" PRId64 " failed, %" PRId64 " inputs were no case\n",
           inputs.done, inputs.by_oracle, inputs.on_device, inputs.not_compiled, inputs.refused, inputs.no_case);
    /* or the fuzzer tests too little */
    CHECK(inputs.done > some / 4 && inputs.refused > some / 10 && inputs.by_oracle > some / 6);
}
