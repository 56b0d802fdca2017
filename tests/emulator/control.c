/* SPDX-License-Identifier: MIT
 * control.c - what tests ask beyond CUDA, see control.h. */
#include "control.h"

#include <string.h>

#include "driver.h"

#define LOCKED __attribute__((cleanup(emu_unlock), unused)) int locked_ = emu_lock()

API const char *emuFail(const char *list)
{
    LOCKED;
    return emu_fail_set(list);
}
API uint64_t emuCalls(const char *entry)
{
    LOCKED;
    return emu_fail_calls(entry);
}
API void emuResetCalls(void)
{
    LOCKED;
    emu_calls_reset();
}
API const char *emuLastReport(void) { return emu_report; }
API void emuSeed(uint64_t seed)
{
    LOCKED;
    emu_set_seed(seed);
}
API void emuStats(emu_statistics *out)
{
    LOCKED;
    *out = (emu_statistics){ emu_stats.launches, emu_stats.threads, emu_stats.switches, emu_stats.faults,
                             emu_stats.seconds };
}
API void emuLive(emu_live_objects *out)
{
    LOCKED;
    *out = (emu_live_objects){ emu_alive.allocations, emu_alive.host_allocations, emu_alive.libraries,
                               emu_alive.streams,     emu_alive.events,           emu_alive.graphs };
}
API int emuAdopt(void *p, size_t bytes)
{
    LOCKED;
    return emu_adopt(p, bytes);
}
API void emuReset(void)
{
    LOCKED;
    emu_report[0] = 0;
    emu_clear_errors();
}
