/* SPDX-License-Identifier: MIT
 * Loops of SwiGLU and its backward pass, on machines that have them, next to the functions of swiglu.h. */
#include "quant/common/swiglu_lanes.h"

#include <math.h>
#include <string.h>

#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "test.h"

enum { COUNT = 256 };
static uint8_t gates[COUNT], ups[COUNT];
static uint16_t grads[COUNT];

/* Results are those of swiglu.h, or none, and then no sum has changed. */
static bool check_run(float gate_sf, float up_sf, float weight, float clamp, int64_t count)
{
    static uint16_t bf16[3][COUNT];
    static float f32[2][COUNT];
    float sums[TGL_RUN_SUMS], want_sums[TGL_RUN_SUMS], want_amax[2] = { 0, 0 };
    for (int i = 0; i < TGL_RUN_SUMS; i++) sums[i] = want_sums[i] = (float)i / 3;
    tgl_backward_run run = { .gates = gates,
                             .ups = ups,
                             .gate_sf = gate_sf,
                             .up_sf = up_sf,
                             .grads = grads,
                             .weight = weight,
                             .clamp = clamp,
                             .out = bf16[0],
                             .bf16_gate_grads = bf16[1],
                             .bf16_up_grads = bf16[2],
                             .gate_grads = f32[0],
                             .up_grads = f32[1],
                             .sums = sums };
    const bool is_done = tgl_run_backward(&run, count);
    for (int64_t i = 0; is_done && i < count; i++) {
        const float gate = tgl_e4m3_to_f32(gates[i]) * gate_sf, up = tgl_e4m3_to_f32(ups[i]) * up_sf;
        const float grad = tgl_bf16_to_f32(grads[i]);
        CHECK(!(fabsf(gate) > clamp) && !(fabsf(up) > clamp));
        const tgl_swiglu_grads g = tgl_swiglu_backward(gate, up, tgl_swiglu_divisor(gate), grad, weight);
        const float want[3] = { g.activation * weight, g.gate_grad, g.up_grad };
        for (int k = 0; k < 3; k++) {
            CHECK_THAT(bf16[k][i] == tgl_bf16_from_f32(want[k]), "gate %a, up %a, grad %a: bf16 %d is %04x",
                       (double)gate, (double)up, (double)grad, k, bf16[k][i]);
            if (k == 0) continue;
            CHECK_THAT(!memcmp(&f32[k - 1][i], &want[k], 4), "gate %a, up %a, grad %a: f32 %d is %a", (double)gate,
                       (double)up, (double)grad, k, (double)f32[k - 1][i]);
            want_amax[k - 1] = fmaxf(want_amax[k - 1], fabsf(want[k]));
        }
        want_sums[i % TGL_RUN_SUMS] += grad * g.activation;
    }
    CHECK(!memcmp(sums, want_sums, sizeof sums));
    if (is_done)
        CHECK(run.amax[0] == (int32_t)tgl_f32_to_bits(want_amax[0]) &&
              run.amax[1] == (int32_t)tgl_f32_to_bits(want_amax[1]));
    return is_done;
}

/* All codes but NaN, and gradients of some exponents around 1. */
static void fill(uint32_t seed)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        gates[i] = (uint8_t)(i * 37 + seed);
        ups[i] = (uint8_t)(i * 101 + 7 * seed);
        if ((gates[i] & 0x7F) == 0x7F) gates[i] &= 0x80; /* zeros with a sign */
        if ((ups[i] & 0x7F) == 0x7F) ups[i] &= 0x80;
        grads[i] = (uint16_t)(0x3C00 + (i * 2654435761u + seed * 40503u) % 0x600) | (uint16_t)(i % 2 << 15);
    }
}

TEST(values) /* with factors from zero on, until gates are as large as exp allows */
{
    if (!TGL_HAS_NEON) SKIP("no loops here");
    static const float FACTORS[] = { 0, 1e-41f, 1e-30f, 1e-7f, 0.01f, 0.0625f, -0.03f, 0.19f };
    int num_done = 0, num_runs = 0;
    for (int a = 0; a < 8; a++)
        for (int b = 0; b < 8; b++)
            for (uint32_t seed = 0; seed < 200; seed++, num_runs++) {
                fill(seed);
                num_done += check_run(FACTORS[a], FACTORS[b], seed % 5 ? 0.7f * (float)seed - 20 : 0.0f, INFINITY,
                                      seed % 2 ? COUNT : 32 + seed % 8 * 32);
            }
    CHECK_THAT(num_done > num_runs * 9 / 10, "%d of %d runs", num_done, num_runs);
}

TEST(what_is_for_other_loops)
{
    if (!TGL_HAS_NEON) SKIP("no loops here");
    fill(3);
    CHECK(check_run(0.01f, 0.01f, 0.3f, INFINITY, COUNT));
    CHECK(check_run(0.01f, 0.01f, 0.3f, 448 * 0.01f, COUNT)); /* the largest code is not clamped */
    CHECK(!check_run(0.01f, 0.01f, 0.3f, 4, COUNT));
    CHECK(!check_run(0.2f, 0.01f, 0.3f, INFINITY, COUNT)); /* exp(89.6) */
    CHECK(!check_run(NAN, 0.01f, 0.3f, INFINITY, COUNT));
    CHECK(!check_run(0.01f, INFINITY, 0.3f, INFINITY, COUNT));
    CHECK(!check_run(0.01f, 0.01f, NAN, INFINITY, COUNT));
    CHECK(!check_run(0.01f, 0.01f, INFINITY, INFINITY, COUNT));
    for (int i = 0; i < COUNT; i += 51) {
        static const uint16_t GRADS[] = { 0x7F80, 0xFF80, 0x7FC0, 0xFFFF }; /* infinite, NaN */
        fill(3);
        gates[i] = 0xFF;
        CHECK(!check_run(0.01f, 0.01f, 0.3f, INFINITY, COUNT));
        fill(3);
        ups[i] = 0x7F;
        CHECK(!check_run(0.01f, 0.01f, 0.3f, INFINITY, COUNT));
        for (int k = 0; k < 4; k++) {
            fill(3);
            grads[i] = GRADS[k];
            CHECK(!check_run(0.01f, 0.01f, 0.3f, INFINITY, COUNT));
        }
        /* 1.125 * 1.03125 is 1 + 41 / 256, halfway between two bf16 */
        fill(3);
        CHECK(check_run(0.01f, 1, 1, INFINITY, COUNT));
        gates[i] = 0, ups[i] = 0x39, grads[i] = 0x3F84;
        CHECK(!check_run(0.01f, 1, 1, INFINITY, COUNT));
    }
}

TEST(activations) /* of gates of all exponents, up to where exp is no normal number */
{
    static float x[COUNT], up[COUNT], to[COUNT];
    for (uint32_t bits = 0; bits <= 0x42AE0000; bits += 9973 * COUNT / 8) { /* 87 */
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t gate = bits + i / 2 * 9973 < 0x42AE0000 ? bits + i / 2 * 9973 : 0x42AE0000;
            x[i] = tgl_f32_from_bits(gate | i % 2 << 31);
            up[i] = tgl_f32_from_bits(0x3F000000 + (i * 2654435761u + bits) % 0x1000000);
            to[i] = NAN;
        }
        CHECK(tgl_front_activate(x, up, COUNT - 1, 0, to) == COUNT / 2 && isnan(to[COUNT / 2]));
        CHECK(tgl_front_activate(x, up, COUNT, 0, to) == COUNT);
        for (int i = 0; i < COUNT; i++) {
            const float want = tgl_swiglu(x[i], up[i], tgl_swiglu_divisor(x[i]));
            CHECK_THAT(!memcmp(&to[i], &want, 4), "gate %a, up %a: %a", (double)x[i], (double)up[i], (double)to[i]);
        }
    }
}
