/* SPDX-License-Identifier: MIT
 * cast_back.cu - codes times their factors, as f32 or bf16; VALUES adjacent columns share a factor.
 *   computes  out[i][j] = decode(x[i][j]) * sf(i / block_rows, j / block_cols), rounded to f32, then bf16
 *   launch    strip.h's, units of VALUES columns; addresses allow vectors, the strip is short
 *   moves     every code and value once; factors once per thread that needs them, mostly from L2
 *   macros    cast_back.cuh's, and ROWS, which is s.rows: 1, 2, STRIP_MAX_ROWS
 *
 * ROWS is a macro because a small matrix mostly waits for instructions: the kernel has the code of one
 * ROWS. */
#include "quant/cast_back.cuh"

static_assert(ROWS == 1 || ROWS == 2 || ROWS == STRIP_MAX_ROWS, "ROWS is 1, 2 or STRIP_MAX_ROWS");

/* All loads first. */
DEV void run(const cast_back_args &a, const tgl_sf &sf)
{
    const tgl_strip &s = a.strip;
    const short_place p = short_place_of<VALUES, ROWS>(s);
    if (!short_has(s, p, 0)) return;
    u32 w[ROWS][3];
    float factor[ROWS];
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        const u32 row = short_row(s, p, j);
        load_codes<VALUES>(a.x + row * a.row_bytes, p.col, w[j]);
        factor[j] = tgl_sf_get(&sf, tgl_divide(row, s.by_block_rows), p.k);
    }
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        float v[VALUES];
        decode<VALUES>(w[j], v);
#pragma unroll
        for (int i = 0; i < VALUES; i++) v[i] *= factor[j];
        if (j == 0 || short_has(s, p, j))
            store_values<VALUES, true>(a.out + (short_row(s, p, j) * (i64)s.num_cols + p.col) * OUT_BYTES, v);
    }
}

extern "C" __global__ void __launch_bounds__(STRIP_THREADS, 6) cast_back(const cast_back_args a)
{
    pdl_wait();
    pdl_trigger();
    run(a, factors_of_kind<SF_KIND>(a.sf));
}
