/* SPDX-License-Identifier: MIT
 * swiglu_forward_and_per_token_cast_any.cu - SwiGLU, weighted and cast, for blocks of any width and data of
 * any alignment.
 *   computes  as swiglu_forward_and_per_token_cast.cu
 *   launch    any grid, block of FORWARD_ANY_WARPS warps
 *   moves     as there, but reads x twice
 *   macros    X, FORMAT, IS_ROUNDED, CLAMP
 *
 * A block has a row. Teams (team.cuh) take blocks of columns, and compute activations for the factor and
 * again for the codes. Two blocks of odd width share a byte of e2m1, so they have one team. */
#include "quant/common/team.cuh"
#include "quant/swiglu_forward_and_per_token_cast.cuh"

typedef struct {
    const forward_args *args;
    i64 row;
    float weight;
} row_of_x;

DEV float activation_at(const row_of_x &r, i64 col, bool is_counted, clamp_counts &counts)
{
    const forward_args &a = *r.args;
    const char *row = a.x + r.row * a.row_bytes;
    float gate = value_at<X>(row, col), up = value_at<X>(row, a.num_cols + col);
    if (CLAMP == FORWARD_COUNT && is_counted) count_clamped(gate, up, a.clamp, counts);
    if (CLAMP) {
        gate = tgl_swiglu_gate(gate, a.clamp);
        up = tgl_swiglu_up(up, a.clamp);
    }
    return tgl_swiglu(gate, up, tgl_swiglu_divisor(gate)) * r.weight;
}

/* Stores the factor of columns begin .. end - 1, and returns its inverse. */
DEV float scale_block(const row_of_x &r, const team &t, i64 begin, i64 end, clamp_counts &counts)
{
    const forward_args &a = *r.args;
    float m = 0;
    for (i64 col = begin + t.rank; col < end; col += t.size) m = fmaxf(m, fabsf(activation_at(r, col, true, counts)));
    const tgl_scale scale = scale_of<FORMAT, IS_ROUNDED>(max_of_team(t, m), a.floor);
    if (t.rank == 0) store_factor(a.sf, r.row, begin / a.block_cols, end == a.num_cols, scale.sf);
    return scale.inv;
}

/* Stores the codes of columns begin .. end - 1; those from `middle` on have the next factor. */
DEV void store_any_codes(const row_of_x &r, const team &t, i64 begin, i64 middle, i64 end, float inv, float next_inv,
                         clamp_counts &counts)
{
    u8 *out = r.args->out + r.row * bytes_of_codes(r.args->num_cols);
    if (FORMAT == TGL_FORMAT_E4M3) {
        for (i64 col = begin + t.rank; col < end; col += t.size)
            out[col] = (u8)encode_e4m3x4(activation_at(r, col, false, counts) * inv, 0, 0, 0);
    } else {
        for (i64 col = begin + 2 * t.rank; col < end; col += 2 * t.size) {
            const float even = activation_at(r, col, false, counts) * (col < middle ? inv : next_inv);
            const float odd = activation_at(r, col + 1, false, counts) * (col + 1 < middle ? inv : next_inv);
            out[col / 2] = (u8)(encode_e2m1(even) | encode_e2m1(odd) << 4);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * FORWARD_ANY_WARPS, 4)
    swiglu_forward_and_per_token_cast_any(const forward_args a)
{
    const bool has_pairs = FORMAT == TGL_FORMAT_E2M1 && a.block_cols % 2;
    const i64 unit = has_pairs ? 2 * a.block_cols : a.block_cols; /* columns of a team at a time */
    const team t = team_for(a.block_cols);
    clamp_counts counts = { 0, 0, 0 };
    pdl_wait();
    for (i64 row = blockIdx.x; row < a.num_rows; row += gridDim.x) {
        if (!row_counts(a, row)) continue;
        const row_of_x r = { &a, row, weight_at(a, slot_of_row(a, row)) };
        for (i64 begin = t.index * unit; begin < a.num_cols; begin += t.count * unit) {
            const i64 end = min(begin + unit, (i64)a.num_cols);
            const i64 middle = has_pairs ? min(begin + a.block_cols, (i64)a.num_cols) : end;
            const float inv = scale_block(r, t, begin, middle, counts);
            const float next_inv = middle < end ? scale_block(r, t, middle, end, counts) : inv;
            store_any_codes(r, t, begin, middle, end, inv, next_inv, counts);
        }
    }
    if (CLAMP == FORWARD_COUNT) add_counts(counts, a.clamped_count);
    pdl_trigger();
}
