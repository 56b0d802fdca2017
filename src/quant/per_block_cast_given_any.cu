/* SPDX-License-Identifier: MIT
 * per_block_cast_given_any.cu - values divided by given factors, if adjacent columns have different ones,
 * addresses do not allow vectors, or a size is too large for 32 bits.
 *   computes  as per_block_cast_given.cu
 *   launch    strip.h's; units of VALUES columns if is_vector, else of FEW
 *   moves     every value and code once; factors once per thread that needs them, mostly from L2
 *   macros    as per_block_cast_given.cu */
#include "quant/common/strip.cuh"
#include "quant/per_block_cast.cuh"

static_assert(X == X_BF16 || X == X_F32, "X is X_BF16 or X_F32");
static_assert(FORMAT == TGL_FORMAT_E4M3 || FORMAT == TGL_FORMAT_E2M1, "FORMAT is e4m3 or e2m1");

enum { VALUES = X_VALUES(X), X_BYTES = 16 / VALUES, FEW = FORMAT == TGL_FORMAT_E4M3 ? 1 : 2 };

/* COUNT values; FEW of them are loaded one by one. */
template <int COUNT> DEV void load_values(const u8 *from, float (&v)[COUNT])
{
    if constexpr (COUNT == VALUES) {
        vector_of<X> x;
        load_vector(from, x);
        widen(x, v);
    } else {
#pragma unroll
        for (int j = 0; j < COUNT; j++)
            v[j] =
                X == X_BF16 ? low_bf16(load_stream_u16(from + 2 * j)) : __uint_as_float(load_stream_u32(from + 4 * j));
    }
}

/* Units of COUNT columns: all loads first. */
template <int COUNT> DEV void run(const tgl_block_cast &c, const tgl_strip &s)
{
    enum { HAS_ONE = COUNT == 1 };
    const strip_place p = strip_place_of(s);
    const i64 out_bytes = tgl_code_bytes(FORMAT, s.num_cols);
    float v[STRIP_MAX_ROWS][COUNT], factor[STRIP_MAX_ROWS];
#pragma unroll
    for (int j = 0; j < STRIP_MAX_ROWS; j++) {
        if (!strip_has(s, p, j)) continue;
        load_values<COUNT>(c.x + (p.row + j * p.step) * c.x_row_bytes + p.col * X_BYTES, v[j]);
        if (HAS_ONE) factor[j] = tgl_sf_get(&c.sf, strip_block_row(s, p, j), p.k);
    }
    float factors[COUNT];
    u32 of = 0; /* the row of blocks that `factors` are of, low 32 bits */
#pragma unroll
    for (int j = 0; j < STRIP_MAX_ROWS; j++) {
        if (!strip_has(s, p, j)) continue;
        const i64 m = strip_block_row(s, p, j);
        if (!HAS_ONE && (j == 0 || of != (u32)m)) {
            of = (u32)m;
            strip_factors<COUNT>(s, p, c.sf, m, factors);
        }
        const float inv = HAS_ONE ? 1 / factor[j] : 0;
#pragma unroll
        for (int i = 0; i < COUNT; i++) v[j][i] *= HAS_ONE ? inv : 1 / factors[i];
        store_codes<FORMAT>(c.out + (p.row + j * p.step) * out_bytes + tgl_code_bytes(FORMAT, p.col), v[j]);
    }
}

extern "C" __global__ void __launch_bounds__(STRIP_THREADS) per_block_cast_given_any(const per_block_cast_given_args a)
{
    tgl_block_cast c = a.cast;
    c.sf.kind = SF_KIND;
    pdl_wait();
    if (a.is_vector) run<VALUES>(c, a.strip);
    else run<FEW>(c, a.strip);
    pdl_trigger();
}
