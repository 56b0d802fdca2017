/* SPDX-License-Identifier: MIT
 * replay.h - cases of the table in other circumstances: captured in a graph, launches counted. */
#ifndef TEGULA_TEST_REPLAY_H
#define TEGULA_TEST_REPLAY_H

#include <dlfcn.h>

#include "cuda/driver.h"
#include "emulator/control.h"
#include "ops.h"

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

/* Captured once its kernels are loaded, and replayed `times` times (1 for an op that changes its inputs): a workspace
 * that is not left zero shows. A call takes as many launches as it should, eagerly and in a graph. */
static inline void check_replayed_times(const char *op_name, const char *line, int num_launches, int times)
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
            CHECK_OK(round ? backend_replay(b, call_instance, k, times) : case_call(k));
            if (b->is_emulated) CHECK_INT(launches_until_now(b) - before, (round ? times : 1) * num_launches);
            CHECK_OK(case_verify(k, round, &report, NULL));
            CHECK_THAT(report.result == CASE_PASSED, "%s: %s: %s", b->name, round ? "replayed" : "before", report.text);
        }
        case_close(k);
    }
}
static inline void check_replayed(const char *op_name, const char *line, int num_launches)
{
    check_replayed_times(op_name, line, num_launches, 2);
}

#endif
