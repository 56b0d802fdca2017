/* SPDX-License-Identifier: MIT
 * ue8m0.h - scale factors that are powers of two: 8 exponent bits, no sign, no mantissa, bias 127, so
 * that code E is 2^(E - 127).
 *   smallest 1 = 2^-126, largest 254 = 2^127; 0 and 255 are never written
 * From f32: the smallest power of two that is not below |value|, clamped to 1..254: 0 and subnormals give
 * 1; numbers above 2^127, infinities and NaN give 254. To f32: E becomes the exponent field, so 0 reads as
 * 0 and 255 as infinity, as in TileKernels; in OCP MX, and in cvt's ue8m0x2 conversions, these two codes
 * are 2^-127 and NaN. Four codes make a 32-bit word, the one of lowest index in the least significant
 * byte. */
#ifndef TEGULA_NUMERICS_UE8M0_H
#define TEGULA_NUMERICS_UE8M0_H

#include "numerics/base.h"

TGL_INLINE uint8_t tgl_ue8m0_from_f32(float value)
{
    const uint32_t magnitude = tgl_f32_to_bits(value) & 0x7FFFFFFF;
    const uint32_t exponent = (magnitude + 0x7FFFFF) >> 23; /* any mantissa bit carries into it */
    const uint32_t at_least_1 = exponent > 1 ? exponent : 1;
    return (uint8_t)(at_least_1 < 254 ? at_least_1 : 254);
}

TGL_INLINE float tgl_ue8m0_to_f32(uint8_t code) { return tgl_f32_from_bits((uint32_t)code << 23); }

/* The factor that undoes the scale: 2^(127 - E) for E in 1..253; 0 for 254, whose inverse is subnormal. */
TGL_INLINE float tgl_ue8m0_inverse_to_f32(uint8_t code) { return tgl_f32_from_bits((uint32_t)(254 - code) << 23); }

TGL_INLINE uint32_t tgl_ue8m0x4_pack(uint8_t e0, uint8_t e1, uint8_t e2, uint8_t e3)
{
    return (uint32_t)e0 | (uint32_t)e1 << 8 | (uint32_t)e2 << 16 | (uint32_t)e3 << 24;
}

/* The code of index 0..3. */
TGL_INLINE uint8_t tgl_ue8m0x4_get(uint32_t word, int index) { return (uint8_t)(word >> (8 * index)); }

#endif
