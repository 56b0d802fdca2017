/* SPDX-License-Identifier: MIT
 * per_block_cast_given.cu - values divided by given factors; VALUES adjacent columns share one.
 *   computes  out[i][j] = encode(x[i][j] * (1 / sf(i / block_rows, j / block_cols)))
 *   launch    strip.h's, units of VALUES columns; addresses allow vectors, the strip is short
 *   moves     every value and code once; factors once per thread that needs them, mostly from L2
 *   macros    X         X_BF16, X_F32
 *             FORMAT    TGL_FORMAT_E4M3, _E2M1
 *             SF_KIND   TGL_SF_* */
#include "quant/common/strip.cuh"
#include "quant/per_block_cast.cuh"

static_assert(X == X_BF16 || X == X_F32, "X is X_BF16 or X_F32");
static_assert(FORMAT == TGL_FORMAT_E4M3 || FORMAT == TGL_FORMAT_E2M1, "FORMAT is e4m3 or e2m1");

enum { VALUES = X_VALUES(X), RESIDENT = 5 }; /* blocks per SM that registers allow */

DEV void cast_vector(const vector_of<X> &x, float inv, u8 *to)
{
#if X == X_BF16 && FORMAT == TGL_FORMAT_E2M1 && SF_KIND == TGL_SF_PACKED && __CUDA_ARCH__ >= 900
    *(u32 *)to = encode_e2m1x8_bf16(x.w, inv); /* a power of two, 0 or infinite */
#else
    float v[VALUES];
    widen(x, v);
#pragma unroll
    for (int i = 0; i < VALUES; i++) v[i] *= inv;
    store_codes<FORMAT>(to, v);
#endif
}

/* ROWS units, all loads first. Not .nc: the compiler moves such loads between the stores of other rows. */
template <int ROWS> DEV void run(const tgl_block_cast &c, const tgl_strip &s)
{
    const short_place p = short_place_of<VALUES, ROWS>(s);
    if (!short_has(s, p, 0)) return;
    vector_of<X> x[ROWS];
    float factor[ROWS];
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        const u32 row = short_row(s, p, j);
        spread(*(const uint4 *)(c.x + row * c.x_row_bytes + (i64)p.col * (16 / VALUES)), x[j].w);
        factor[j] = tgl_sf_get(&c.sf, tgl_divide(row, s.by_block_rows), p.k);
    }
    u8 *out = c.out + tgl_code_bytes(FORMAT, p.col);
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        if (j == 0 || short_has(s, p, j))
            cast_vector(x[j], 1 / factor[j], out + short_row(s, p, j) * tgl_code_bytes(FORMAT, s.num_cols));
}

extern "C" __global__ void __launch_bounds__(STRIP_THREADS, RESIDENT) per_block_cast_given(per_block_cast_given_args a)
{
    tgl_block_cast &c = a.cast;
    c.sf.kind = SF_KIND;
    pdl_wait();
    if (a.strip.rows == STRIP_MAX_ROWS) run<STRIP_MAX_ROWS>(c, a.strip);
    else if (a.strip.rows == 2) run<2>(c, a.strip);
    else run<1>(c, a.strip);
    pdl_trigger();
}
