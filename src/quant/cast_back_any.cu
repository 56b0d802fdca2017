/* SPDX-License-Identifier: MIT
 * cast_back_any.cu - codes times their factors, if adjacent columns have different ones, addresses do not
 * allow vectors, or a size is too large for 32 bits.
 *   computes  as cast_back.cu
 *   launch    strip.h's; units of VALUES columns if is_vector, else of FEW
 *   moves     every code and value once; factors once per thread that needs them, mostly from L2
 *   macros    cast_back.cuh's */
#include "quant/cast_back.cuh"

enum { RESIDENT = 4 }; /* blocks per SM that registers allow */

/* Units of COUNT columns: all loads first. */
template <int COUNT, bool IS_VECTOR> DEV void run(const cast_back_args &a, const tgl_sf &sf)
{
    const tgl_strip &s = a.strip;
    enum { HAS_ONE = COUNT == 1 };
    const strip_place p = strip_place_of(s);
    u32 w[STRIP_MAX_ROWS][3];
    float factor[STRIP_MAX_ROWS];
#pragma unroll
    for (int j = 0; j < STRIP_MAX_ROWS; j++) {
        if (!strip_has(s, p, j)) continue;
        load_codes<COUNT>(a.x + (p.row + j * p.step) * a.row_bytes, p.col, w[j]);
        if (HAS_ONE) factor[j] = tgl_sf_get(&sf, strip_block_row(s, p, j), p.k);
    }
    float factors[COUNT];
    i64 of = -1; /* the row of blocks that `factors` are of */
#pragma unroll
    for (int j = 0; j < STRIP_MAX_ROWS; j++) {
        if (!strip_has(s, p, j)) continue;
        if (!HAS_ONE && of != strip_block_row(s, p, j)) {
            of = strip_block_row(s, p, j);
            strip_factors<COUNT>(s, p, sf, of, factors);
        }
        float v[COUNT];
        decode<COUNT>(w[j], v);
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[i] *= HAS_ONE ? factor[j] : factors[i];
        store_values<COUNT, IS_VECTOR>(a.out + ((p.row + j * p.step) * s.num_cols + p.col) * OUT_BYTES, v);
    }
}

extern "C" __global__ void __launch_bounds__(STRIP_THREADS, RESIDENT) cast_back_any(const cast_back_args a)
{
    const tgl_sf sf = factors_of_kind<SF_KIND>(a.sf);
    pdl_wait();
    if (a.is_vector) run<VALUES, true>(a, sf);
    else run<FEW, false>(a, sf);
    pdl_trigger();
}
