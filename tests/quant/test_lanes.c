/* SPDX-License-Identifier: MIT
 * lanes_c.inc, the loops of casts that compilers make vectors of, next to the functions of numerics/; here on
 * machines with NEON too, which do not use them. */
#undef __ARM_NEON
#include "quant/common/lanes.h"

#include <math.h>
#include <string.h>

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "quant/lossless.h"
#include "test.h"

enum { COUNT = TGL_LANES };

/* Below 464 and 7, from where values would round to more than the largest code: casts pass on no others. */
static void check_values(const uint32_t *bits)
{
    float x[COUNT], powers[COUNT];
    uint8_t e4m3[COUNT], e2m1[COUNT / 2];
    for (int i = 0; i < COUNT; i++) {
        memcpy(&x[i], &bits[i], sizeof x[i]);
        powers[i] = ldexpf(1, -(i * 7 % COUNT) / 4); /* 1, then less, neighbours differ */
    }
    for (int has_each = 0; has_each < 2; has_each++) {
        tgl_run_to_e4m3(x, false, COUNT, 0, powers, has_each, e4m3);
        tgl_run_to_e2m1(x, false, COUNT, 0, powers, has_each, e2m1);
        for (int i = 0; i < COUNT; i++) {
            const float product = x[i] * powers[has_each ? i : 0];
            if (fabsf(x[i]) < 464)
                CHECK_THAT(e4m3[i] == tgl_e4m3_from_f32(product), "%08x gives e4m3 %02x", bits[i], e4m3[i]);
            const uint8_t code = e2m1[i / 2] >> i % 2 * 4 & 15;
            if (fabsf(x[i]) < 7) CHECK_THAT(code == tgl_e2m1_from_f32(product), "%08x gives e2m1 %x", bits[i], code);
        }
    }
}

TEST(floats) /* every 997th of both signs, and what is halfway between codes or beside that */
{
    uint32_t bits[COUNT];
    int n = 0;
    for (uint32_t u = 0; u < 0x43e80000; u += 997) { /* 464 */
        bits[n++] = u;
        bits[n++] = u | 0x80000000;
        if (n == COUNT) check_values(bits), n = 0;
    }
    n = 0;
    for (uint32_t high = 1; high <= 0x43e0; high++) {
        bits[n++] = (high << 16) - 1;
        bits[n++] = high << 16;
        bits[n++] = (high << 16) + 1;
        bits[n++] = (high << 16) + 0x8000;
        if (n == COUNT) check_values(bits), n = 0;
    }
}

TEST(bf16) /* all that are no larger than 448, scaled by one power of two or a power each */
{
    uint16_t x[COUNT];
    uint8_t e4m3[COUNT], e2m1[COUNT / 2];
    float powers[COUNT];
    for (int i = 0; i < COUNT; i++) powers[i] = ldexpf(0.5f, -(i * 7 % COUNT) / 4);
    int n = 0;
    for (uint32_t high = 0; high < 0x10000; high++) {
        if ((high & 0x7fff) > 0x43e0) continue;
        x[n++] = (uint16_t)high;
        if (n < COUNT) continue;
        n = 0;
        for (int has_each = 0; has_each < 2; has_each++) {
            tgl_run_to_e4m3(x, true, COUNT, 0, powers, has_each, e4m3);
            tgl_run_to_e2m1(x, true, COUNT, 0, powers, has_each, e2m1);
            for (int i = 0; i < COUNT; i++) {
                const float product = tgl_bf16_to_f32(x[i]) * powers[has_each ? i : 0];
                CHECK_THAT(e4m3[i] == tgl_e4m3_from_f32(product), "%04x gives e4m3 %02x", x[i], e4m3[i]);
                const uint8_t code = e2m1[i / 2] >> i % 2 * 4 & 15;
                if (fabsf(product) < 7)
                    CHECK_THAT(code == tgl_e2m1_from_f32(product), "%04x gives e2m1 %x", x[i], code);
            }
        }
    }
}

TEST(lossless) /* every pair of codes, every shift that is exact */
{
    uint8_t x[16], out[32];
    for (int shift = TGL_LOSSLESS_MIN_SHIFT; shift <= TGL_LOSSLESS_MAX_SHIFT; shift++)
        for (int first = 0; first < 256; first += 16) {
            for (int i = 0; i < 16; i++) x[i] = (uint8_t)(first + i);
            tgl_run_lossless(x, 16, shift, out);
            for (int i = 0; i < 32; i++) CHECK_INT(out[i], tgl_lossless_exact(x[i / 2] >> i % 2 * 4 & 15, shift));
        }
}
