/* SPDX-License-Identifier: MIT
 * transpose_copy.cu - writes out from end to end, gathering from x: if x is a transposed view (its columns
 * are contiguous, so this is a copy), or if matrices are too small to fill tiles.
 *   computes  out[(i2 * n1 + i1) * n0 + i0] = x[i2][i1][i0], at i2 * x2_bytes + i1 * x1_bytes + i0 * x0_bytes
 *   launch    grid ceil((bytes of out + 15) / 16 / (COPY_THREADS * COPY_VECTORS)), block COPY_THREADS
 *   moves     2 * n0 * n1 * n2 * ELEMENT_BYTES bytes, each once (x more often if its columns are not
 *             contiguous and a block's part of it exceeds L1)
 *   macros    ELEMENT_BYTES 1, 2, 4, 8, 16
 *
 * A thread writes aligned blocks of 16 bytes of out, COPY_THREADS apart, with all loads before the first
 * store. A block that lies in a contiguous row of x is loaded as a vector. A block with several rows in it,
 * an end of out, or an unaligned end of a row goes element by element. (A loop over the vectors that is not
 * unrolled compiles 20 % faster, but took 13 % longer at 1x7168 bf16 on H200, 2026-11.) */
#include "device/unaligned.cuh"
#include "transpose/tile.h"

static_assert(ELEMENT_BYTES == 1 || ELEMENT_BYTES == 2 || ELEMENT_BYTES == 4 || ELEMENT_BYTES == 8 ||
                  ELEMENT_BYTES == 16,
              "ELEMENT_BYTES is 1, 2, 4, 8 or 16");

typedef part_of<ELEMENT_BYTES>::type part_type;
enum { PART_BYTES = sizeof(part_type), PARTS = 16 / PART_BYTES };

/* Indices of an element; i2 has no bound. */
typedef struct { i64 i0, i1, i2; } place;

/* The place `count` elements further on. 64-bit divisions find the thread block's first place; counts from
 * there are below 2^15, and so are the dividends here. */
DEV place place_after(place p, int count, i64 n0, i64 n1)
{
    p.i0 += count;
    if (p.i0 < n0) return p;
    p.i0 -= n0;
    p.i1++;
    if (p.i0 >= n0) {
        p.i1 += (u32)p.i0 / (u32)n0;
        p.i0 = (u32)p.i0 % (u32)n0;
    }
    if (p.i1 < n1) return p;
    p.i1 -= n1;
    p.i2++;
    if (p.i1 >= n1) {
        p.i2 += (u32)p.i1 / (u32)n1;
        p.i1 = (u32)p.i1 % (u32)n1;
    }
    return p;
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS)
    transpose_copy(const __grid_constant__ transpose_copy_args args)
{
    const u8 *x = (const u8 *)args.x;
    u8 *out = (u8 *)args.out;
    const i64 n0 = args.sizes[0], n1 = args.sizes[1], n2 = args.sizes[2];
    const i64 x0_bytes = args.x_bytes[0], x1_bytes = args.x_bytes[1], x2_bytes = args.x_bytes[2];

    /* Blocks begin -s, 16 - s, 32 - s ... bytes after out, s being its misalignment; this thread block's
     * begin at `origin`. */
    const i64 bytes = n0 * n1 * n2 * ELEMENT_BYTES;
    const i64 origin = (i64)blockIdx.x * (COPY_THREADS * COPY_VECTORS * 16) - misalignment(out);
    const u64 first = (u64)max(origin, (i64)0) / ELEMENT_BYTES, row = first / (u64)n0;
    const place start = { (i64)(first % (u64)n0), (i64)(row % (u64)n1), (i64)(row / (u64)n1) };
    pdl_wait();

    uint4 v[COPY_VECTORS];
    u32 loaded = 0; /* bit k: v[k] holds block k */
    if (x0_bytes == ELEMENT_BYTES) {
#pragma unroll
        for (int k = 0; k < COPY_VECTORS; k++) {
            const i64 begin = origin + (k * COPY_THREADS + (int)threadIdx.x) * 16;
            if (begin < 0 || begin + 16 > bytes) continue;
            const place p = place_after(start, (int)((u64)begin / ELEMENT_BYTES - first), n0, n1);
            const i64 left = p.i0 * ELEMENT_BYTES + (begin & (ELEMENT_BYTES - 1));
            const u8 *at = x + p.i2 * x2_bytes + p.i1 * x1_bytes + left;
            if (!can_load_vector(at, left, n0 * ELEMENT_BYTES - left)) continue;
            v[k] = load_vector<PART_BYTES>(at);
            loaded |= 1u << k;
        }
#pragma unroll
        for (int k = 0; k < COPY_VECTORS; k++)
            if (loaded >> k & 1) *(uint4 *)(out + origin + (k * COPY_THREADS + (int)threadIdx.x) * 16) = v[k];
    }

#pragma unroll 1
    for (int k = 0; k < COPY_VECTORS; k++) {
        const i64 begin = origin + (k * COPY_THREADS + (int)threadIdx.x) * 16;
        const int a = (int)max(-begin, (i64)0), n = (int)min(bytes - begin, (i64)16);
        if (loaded >> k & 1 || a >= n) continue;
        place p = place_after(start, (int)((u64)(begin + a) / ELEMENT_BYTES - first), n0, n1);
        const u8 *at = x + p.i2 * x2_bytes + p.i1 * x1_bytes + p.i0 * x0_bytes;
        uint4 w = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            if (j * PART_BYTES < a || j * PART_BYTES >= n) continue;
            const int half = (int)((begin + j * PART_BYTES) & (ELEMENT_BYTES - 1)) / PART_BYTES;
            set_part(w, j, ((const part_type *)at)[half]);
            if ((half + 1) * PART_BYTES < ELEMENT_BYTES) continue;
            at += x0_bytes;
            if (++p.i0 < n0) continue;
            at += x1_bytes - n0 * x0_bytes;
            p.i0 = 0;
            if (++p.i1 < n1) continue;
            at += x2_bytes - n1 * x1_bytes;
            p.i1 = 0;
        }
        if (n - a == 16) *(uint4 *)(out + begin) = w;
        else store_block<PART_BYTES>(out + begin, w, a, n);
    }
    pdl_trigger();
}
