/* SPDX-License-Identifier: MIT
 * unpack_from_e2m1fn_x2.cu - pairs of e2m1 as values of another type.
 *   computes  out[2 * i] = the low nibble of x[i], out[2 * i + 1] = the high one
 *   launch    grid ceil(units / (UNPACK_THREADS * units_each)), block UNPACK_THREADS
 *   moves     num_bytes * (1 + 2 * OUT_BYTES), each once
 *   macros    OUT  OUT_F32, OUT_BF16, OUT_F16, OUT_E4M3
 *
 * A unit is 16 bytes of out, from 2, 4 or 8 bytes of x; a thread has units_each <= UNPACK_UNITS of them. If x
 * or out is not aligned, and at the end, it goes byte by byte. */
#define OUT_F32 0
#define OUT_BF16 1
#define OUT_F16 2
#define OUT_E4M3 3
static_assert(OUT >= OUT_F32 && OUT <= OUT_E4M3, "OUT is 0 (f32), 1 (bf16), 2 (f16) or 3 (e4m3)");

#include "quant/common/decode.cuh"
#include "quant/common/encode.cuh"
#include "quant/unpack_from_e2m1fn_x2.h"

enum { OUT_BYTES = OUT == OUT_F32 ? 4 : OUT == OUT_E4M3 ? 1 : 2, X_BYTES = UNPACK_X_BYTES(OUT_BYTES) };

/* Eight codes to values of OUT, in 8, 16 or 32 bytes. */
DEV void unpack(u32 codes, u32 (&w)[8])
{
    if (OUT == OUT_F16) {
        u32 pairs[4];
        e2m1x8_to_f16x2(codes, pairs);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            w[j] = __byte_perm(pairs[2 * j], pairs[2 * j + 1], 0x5410);
            w[j + 2] = __byte_perm(pairs[2 * j], pairs[2 * j + 1], 0x7632);
        }
        return;
    }
    float v[8];
    decode_e2m1x8(codes, v);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (OUT == OUT_F32) w[j] = __float_as_uint(v[j]);
        if (OUT == OUT_BF16 && j % 2 == 0) w[j / 2] = pack_bf16(v[j], v[j + 1]);
        if (OUT == OUT_E4M3 && j % 4 == 0) w[j / 4] = encode_e4m3x4(v[j], v[j + 1], v[j + 2], v[j + 3]);
    }
}

DEV uint2 load_unit(const u8 *from)
{
    if (X_BYTES == 8) return load_stream_u32x2(from);
    return make_uint2(X_BYTES == 4 ? load_stream_u32(from) : load_stream_u16(from), 0);
}

DEV void store_unit(u8 *to, uint2 codes)
{
    u32 w[8], second[8];
    unpack(codes.x, w);
    if (X_BYTES == 8) {
        unpack(codes.y, second);
        w[2] = second[0];
        w[3] = second[1];
    }
    *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
}

DEV void run_byte(u32 pair, u8 *to)
{
    u32 w[8];
    unpack(pair, w);
    if (OUT == OUT_F32) {
        ((u32 *)to)[0] = w[0];
        ((u32 *)to)[1] = w[1];
    } else if (OUT == OUT_E4M3) {
        to[0] = (u8)w[0];
        to[1] = (u8)(w[0] >> 8);
    } else {
        ((u16 *)to)[0] = (u16)w[0];
        ((u16 *)to)[1] = (u16)(w[0] >> 16);
    }
}

extern "C" __global__ void __launch_bounds__(UNPACK_THREADS)
    unpack_from_e2m1fn_x2(const __grid_constant__ unpack_args a)
{
    const u8 *x = a.x;
    u8 *out = a.out;
    const i64 num_bytes = a.num_bytes;
    const i32 units_each = a.units_each;
    const i64 first = (i64)blockIdx.x * (UNPACK_THREADS * units_each) + threadIdx.x;
    uint2 codes[UNPACK_UNITS];
    u32 is_whole = 0; /* bit k: codes[k] is loaded */
    pdl_wait();
#pragma unroll
    for (int k = 0; k < UNPACK_UNITS; k++) {
        const i64 at = (first + k * UNPACK_THREADS) * X_BYTES;
        if (k >= units_each || !a.is_vector || at + X_BYTES > num_bytes) continue;
        codes[k] = load_unit(x + at);
        is_whole |= 1u << k;
    }
#pragma unroll
    for (int k = 0; k < UNPACK_UNITS; k++)
        if (is_whole >> k & 1) store_unit(out + (first + k * UNPACK_THREADS) * 16, codes[k]);

#pragma unroll 1
    for (int k = 0; k < units_each; k++) {
        const i64 begin = (first + k * UNPACK_THREADS) * X_BYTES;
        const i64 end = is_whole >> k & 1 ? begin : min(begin + X_BYTES, num_bytes);
#pragma unroll 1
        for (i64 i = begin; i < end; i++) run_byte(x[i], out + i * (2 * OUT_BYTES));
    }
    pdl_trigger();
}
