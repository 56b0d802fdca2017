/* SPDX-License-Identifier: MIT
 * e4m3 of bf16 by tables, on machines that have them, next to the functions of numerics/. */
#include "quant/common/lanes.h"

#include <math.h>

#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "test.h"

enum { ALL = 1 << 16 };
static uint16_t x[ALL];
static uint8_t small[ALL], any[ALL];
static tgl_tables tables;

/* `count` values of x, of which no product is past the largest code, in one block. */
static void check_small(int64_t count, float factor)
{
    tgl_table_blocks_to_e4m3(x, 0, count, 0, count, &factor, true, &tables, small);
    for (int64_t i = 0; i < count; i++)
        CHECK_THAT(small[i] == tgl_e4m3_from_f32(tgl_bf16_to_f32(x[i]) * factor), "%04x * %a gives %02x", x[i],
                   (double)factor, small[i]);
}

TEST(mantissas) /* of values all, with two exponents; of factors every 61st and those next to ties */
{
    if (!TGL_HAS_NEON) SKIP("no tables here");
    tgl_clear_tables(&tables);
    for (uint16_t i = 0; i < 256; i++) x[i] = (uint16_t)(0x3F80 + i);
    for (uint32_t mantissa = 0; mantissa < 1 << 23; mantissa += 61)
        check_small(256, tgl_f32_from_bits(0x3F800000 | mantissa));
    for (uint32_t value = 128; value < 256; value++)
        for (int tie = 17; tie < 64; tie += tie < 32 ? 2 : 4) /* halfway between codes, times 16 */
            for (uint32_t off = 0; off < 5; off++) {
                const uint32_t bits = tgl_f32_to_bits((float)tie * 8 / (float)value) + off - 2;
                check_small(256, tgl_f32_from_bits(0x3F800000 | (bits & 0x7FFFFF)));
            }
}

TEST(values) /* every one, with factors of all sizes and both signs, also such that no table is for */
{
    if (!TGL_HAS_NEON) SKIP("no tables here");
    static const float MANTISSAS[] = { 1, 1.75f, 0x1.0001p0f, 0x1.5555p0f, 0x1.FFFFFEp0f };
    tgl_clear_tables(&tables);
    for (int i = 0; i < ALL; i++) x[i] = (uint16_t)(i * 40503u); /* not sorted */
    for (int e = -149; e < 130; e += e % 9 == 0 ? 1 : 4)
        for (int m = 0; m < 5; m++) {
            const float magnitude = ldexpf(MANTISSAS[m], e), factor = e % 2 ? -magnitude : magnitude;
            tgl_table_blocks_to_e4m3(x, 0, ALL, 0, ALL, &factor, false, &tables, any);
            for (int i = 0; i < ALL; i++)
                CHECK_THAT(any[i] == tgl_e4m3_from_f32(tgl_bf16_to_f32(x[i]) * factor), "%04x * %a gives %02x", x[i],
                           (double)factor, any[i]);
        }
}

TEST(blocks) /* from the middle of one to that of another; two factors share a place for tables */
{
    if (!TGL_HAS_NEON) SKIP("no tables here");
    enum { COLS = 192, FIRST = 64, COUNT = 5 * COLS - 2 * FIRST };
    const float factors[5] = { 0x1.23456p3f, 0x1.23458p-5f, 3, 0x1.23456p1f, 1 };
    tgl_clear_tables(&tables);
    for (int i = 0; i < COUNT; i++) x[i] = (uint16_t)(i * 40503u % 0x4000);
    tgl_table_blocks_to_e4m3(x, FIRST, COUNT, 0, COLS, factors, false, &tables, any);
    for (int i = 0; i < COUNT; i++) {
        const float product = tgl_bf16_to_f32(x[i]) * factors[(FIRST + i) / COLS];
        CHECK_THAT(any[i] == tgl_e4m3_from_f32(product), "value %d gives %02x", i, any[i]);
    }
}
