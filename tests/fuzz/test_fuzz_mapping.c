/* SPDX-License-Identifier: MIT */
#include "fuzz_mapping.c"
#include "test_fuzz.h"

TEST(random_bytes) { fuzz_random(test_slow() ? 2000000 : 20000, 1024); }
