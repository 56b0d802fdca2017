/* SPDX-License-Identifier: MIT
 * integers.cuh - loads of integers of 4 or 8 bytes that stay where they are written, so that many are on their way. */
#ifndef TEGULA_ENGRAM_INTEGERS_CUH
#define TEGULA_ENGRAM_INTEGERS_CUH

#include "device/ptx.cuh"

/* Element i of integers of 4 or 8 bytes, if it is there, else 0. In two steps: the compiler puts a conversion next to
 * its load, behind a branch, and the loads that follow would wait for it. */
struct loaded { u32 low, high; };
DEV loaded load_integer_if(const void *integers, i64 i, i32 bytes, bool is_there)
{
    const u8 *const at = (const u8 *)integers + i * bytes;
    return { load_u32_if(at, is_there), bytes == 8 ? load_u32_if(at + 4, is_there) : 0 };
}
DEV i64 value_of(const loaded &v, i32 bytes) { return bytes == 8 ? (i64)((u64)v.high << 32 | v.low) : (i32)v.low; }

#endif
