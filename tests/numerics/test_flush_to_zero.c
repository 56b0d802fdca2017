/* SPDX-License-Identifier: MIT
 * test_flush_to_zero.c - a thread that flushes subnormal floats to zero gets the same codes and the same values. */
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e5m2.h"
#include "numerics/e5m6.h"
#include "numerics/f16.h"
#include "numerics/tf32.h"
#include "numerics/ue8m0.h"

#include "test.h"

#if defined(__aarch64__)
static uint64_t flush_to_zero(void)
{
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | 1 << 24));
    return before;
}
static void restore(uint64_t before) { __asm__ volatile("msr fpcr, %0" : : "r"(before)); }
#elif defined(__SSE2__)
#include <xmmintrin.h>
static uint64_t flush_to_zero(void)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* FTZ and DAZ */
    return before;
}
static void restore(uint64_t before) { _mm_setcsr((unsigned)before); }
#else
#define NO_FLUSH
#endif

#ifndef NO_FLUSH
static uint64_t hash(uint64_t h, uint32_t word) { return (h ^ word) * 1099511628211u; }

/* One number over all results: floats up to 4 (so all that is subnormal here or there), then all codes. The
 * compiler knows nothing of the mode: volatile keeps it from working this out once, or elsewhere. */
static volatile uint32_t first;
static __attribute__((noinline)) uint64_t everything(void)
{
    uint64_t h = 14695981039346656037u;
    for (uint32_t bits = first; bits < 0x40800000; bits += 997) {
        const float value = tgl_f32_from_bits(bits);
        h = hash(h, tgl_bf16_from_f32(value));
        h = hash(h, tgl_f16_from_f32(value));
        h = hash(h, tgl_f16_from_f32_rz(value));
        h = hash(h, tgl_e4m3_from_f32(value));
        h = hash(h, tgl_e5m2_from_f32(value));
        h = hash(h, tgl_e2m1_from_f32(value));
        h = hash(h, tgl_e5m6_from_f32(value));
        h = hash(h, tgl_ue8m0_from_f32(value));
        h = hash(h, tgl_f32_to_bits(tgl_tf32_from_f32(value)));
    }
    for (uint32_t code = first; code < 0x10000; code++) {
        h = hash(h, tgl_f32_to_bits(tgl_bf16_to_f32((uint16_t)code)));
        h = hash(h, tgl_f32_to_bits(tgl_f16_to_f32((uint16_t)code)));
        h = hash(h, tgl_f32_to_bits(tgl_e5m6_to_f32((uint16_t)(code & 0xFFF))));
        h = hash(h, tgl_f32_to_bits(tgl_e4m3_to_f32((uint8_t)code)));
        h = hash(h, tgl_f32_to_bits(tgl_e5m2_to_f32((uint8_t)code)));
        h = hash(h, tgl_f32_to_bits(tgl_e2m1_to_f32((uint8_t)code)));
        h = hash(h, tgl_f32_to_bits(tgl_ue8m0_to_f32((uint8_t)code)));
    }
    return h;
}

TEST(results_do_not_depend_on_flushing)
{
    const uint64_t want = everything();
    const uint64_t before = flush_to_zero();
    volatile float tiny = 0x1p-126f;
    tiny = tiny * 0.5f;
    const volatile uint64_t seen = everything();
    restore(before);
    CHECK_INT(tgl_f32_to_bits(tiny), 0); /* or nothing was tested */
    CHECK_THAT(seen == want, "flushing changes a result");
}
#else
TEST(results_do_not_depend_on_flushing) { SKIP("no way to flush subnormals on this machine"); }
#endif
