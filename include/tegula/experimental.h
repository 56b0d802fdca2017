/* SPDX-License-Identifier: MIT
 * experimental.h - functions that are not settled: they may change or go in any version. tegula.h does not include
 * this header. */
#ifndef TEGULA_EXPERIMENTAL_H
#define TEGULA_EXPERIMENTAL_H

#include "tegula/engram.h"

#ifdef __cplusplus
extern "C" {
#endif

/* tgl_engram_lookup_staged() - packed rows of a table in host memory, brought by the copy engine
 *   table     in   e4m3           [table_rows, dim]                         host memory; rows may be strided
 *   table_sf  in   u8 or ue8m0    [table_rows, dim / 32]                    host memory; rows may be strided
 *   indices   in   i32 or i64     [num_tokens, num_columns]                 any strides, on out's device or in host
 *                                 memory; NULL: 0, 1, 2, ... in order
 *   staging   out  u8             [>= staging_bytes]                        page-locked host memory; scratch
 *   out       out  u8             [num_tokens, num_columns, dim + dim / 32]   packed
 * The bytes of tgl_engram_lookup() with packed rows, by another way: in the order of the stream indices are copied to
 * staging (those on the device; without packed columns that takes a copy for each column), the CPU gathers rows to
 * staging, and one copy brings them to out. No SM is used. With n = num_tokens * num_columns
 *   staging_bytes = 256 * ceil(n * bytes of an index / 256) + n * (dim + dim / 32)
 * staging, the table and indices in host memory are in use until the stream has passed the call; the address of staging
 * is a multiple of 8. The table need not be page-locked. params: row_begin counts, num_sms and constant_table do not.
 * The gather runs on a thread of the driver's and others, half of tgl_get_num_threads(); host functions of other
 * streams may wait for it. The call can be captured in a graph; a replay reads indices and table of that time. It
 * allocates a few hundred bytes of host memory, freed after the gather or with the graph; they are lost if a kernel
 * before it faults. On the CPU staging is checked and not touched. dim < 2^30.
 * Exact: CPU and CUDA agree bit for bit. Since 0.1, experimental. */
TGL_API tgl_status tgl_engram_lookup_staged(const DLTensor *table, const DLTensor *table_sf, const DLTensor *indices,
                                            DLTensor *staging, DLTensor *out, const tgl_engram_lookup_params *params,
                                            tgl_stream stream);

#ifdef __cplusplus
}
#endif

#endif
