/* SPDX-License-Identifier: MIT */
#include "fuzz_ops.c"
#include "test_fuzz.h"

TEST(random_bytes)
{
    const int64_t some = device_of_tests() ? 500 : 5000;
    if (test_slow()) max_compiles = UINT64_MAX;
    fuzz_random(test_slow() ? 100 * some : some, 128);
    printf("  %" PRId64 " calls succeeded, %" PRId64 " of them on a device too (%" PRId64 " wanted other "
           "kernels), %" PRId64 " failed, %" PRId64 " inputs were no case\n",
           inputs.done, inputs.on_device, inputs.not_compiled, inputs.refused, inputs.no_case);
    CHECK(inputs.done > some / 4 && inputs.refused > some / 10);    /* or the fuzzer tests too little */
}
