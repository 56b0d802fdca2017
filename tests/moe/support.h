/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the routing ops share beside ops.h and replay.h: errors of tensors of a given
 * dtype. */
#ifndef TEGULA_MOE_SUPPORT_H
#define TEGULA_MOE_SUPPORT_H

#include "replay.h"
#include "tegula/moe.h"

/* ---- errors ---- */

/* What every op checks of a tensor: `member` is it in `call`, `pointer` what is passed. An optional one may
 * be NULL; flags have any alignment. */
#define F32 "f32", "code 2 with 32 bits", "4"
#define I32 "i32", "code 0 with 32 bits", "4"
#define INDEX "i32 or i64", "code 0 with 64 bits", "8"      /* given as i64 */
#define FLAGS "bool", "code 6 with 8 bits"
#define TENSOR_ERRORS(member, pointer, ...)                                   \
    ERROR(c.pointer = NULL, NAME_OF(__VA_ARGS__) ": is NULL, want a tensor"); \
    OPTIONAL_ERRORS(member, __VA_ARGS__)
#define NAME_OF(name, ...) name
#define OPTIONAL_ERRORS(...) OPTIONAL_ERRORS_OF(__VA_ARGS__)
#define OPTIONAL_ERRORS_OF(member, name, rank, bytes, dtypes, dtype_text, alignment) \
    FLAG_ERRORS_OF(member, name, rank, bytes, dtypes, dtype_text);                   \
    ERROR(c.member.t.byte_offset = 1, name ": data is 1 bytes past a multiple of " alignment ", want 0")
#define FLAG_ERRORS(...) FLAG_ERRORS_OF(__VA_ARGS__)
#define FLAG_ERRORS_OF(member, name, rank, bytes, dtypes, dtype_text)                             \
    GIVEN_ERRORS(member, name, rank, bytes);                                                      \
    ERROR(c.member.t.dtype = tgl_dtype_to_dlpack(TGL_F16), name ": dtype is f16, want " dtypes);  \
    ERROR(c.member.t.dtype = tgl_dtype_to_dlpack(TGL_U8), name ": dtype is u8, want " dtypes);    \
    ERROR(c.member.t.dtype = tgl_dtype_to_dlpack(TGL_U32), name ": dtype is u32, want " dtypes);  \
    ERROR(c.member.t.dtype.lanes = 0, name ": dtype is " dtype_text " and 0 lanes, want " dtypes)

#endif
