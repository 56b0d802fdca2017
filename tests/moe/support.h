/* SPDX-License-Identifier: MIT
 * support.h - what the tests of the routing ops share beside ops.h: a captured call, launches, errors of
 * tensors of a given dtype. */
#ifndef TEGULA_MOE_SUPPORT_H
#define TEGULA_MOE_SUPPORT_H

#include <dlfcn.h>

#include "cuda/driver.h"
#include "emulator/control.h"
#include "ops.h"
#include "tegula/moe.h"

/* ---- cases of the table in other circumstances ---- */

static inline tgl_status call_instance(void *k) { return case_call(k); }

/* Of the emulated device, by all that has run; elsewhere they are not counted: 0. */
static inline int64_t launches_until_now(const backend *b)
{
    const tgl_driver_table *cu;
    emuStats_function count = NULL;
    emu_statistics stats = { 0 };
    CHECK_OK(backend_wait(b, b->stream));
    if (tgl_driver(&cu) == TGL_OK) *(void **)&count = dlsym(cu->handle, "emuStats");
    if (count) count(&stats);
    return (int64_t)stats.launches;
}

/* Captured once its kernels are loaded, and replayed: a workspace that is not left zero shows. A call takes
 * as many launches as it should, eagerly and in a graph. */
static inline void check_replayed(const char *op_name, const char *line, int num_launches)
{
    FOR_BACKENDS(b) {
        if (!backend_has_graphs(b)) {
            test_skip("%s has no graphs", b->name);
            continue;
        }
        const case_op *op = case_find(op_name);
        case_params params;
        case_instance *k;
        case_report report;
        REQUIRE(CHECK_OK(case_at(op, (const char *const[]){ line, NULL }, 0, &params)));
        REQUIRE(CHECK_OK(case_open(op, &params, b, &k)));
        for (int round = 0; round < 2; round++) {
            CHECK_OK(case_poison(k, round));
            const int64_t before = launches_until_now(b);
            CHECK_OK(round ? backend_replay(b, call_instance, k, 2) : case_call(k));
            if (b->is_emulated)
                CHECK_INT(launches_until_now(b) - before, (round ? 2 : 1) * num_launches);
            CHECK_OK(case_verify(k, round, &report, NULL));
            CHECK_THAT(report.result == CASE_PASSED, "%s: %s: %s", b->name, round ? "replayed" : "before",
                       report.text);
        }
        case_close(k);
    }
}

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
