/* SPDX-License-Identifier: MIT */
#include "table.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/status.h"

enum { KEPT = 8 };
typedef struct {
    char key[128];
    char *storage, *memory;
    int64_t period_bytes, num_periods;
    backend on;
    bool on_host, has_huge_pages;
} table;
static table kept[KEPT]; /* the one that was used last comes first */

static void drop(table *t)
{
    if (t->storage) munmap(t->storage, (size_t)(t->period_bytes * t->num_periods));
    if (!backend_is_cpu(&t->on)) {
        if (t->on_host) backend_pages_free(&t->on, t->memory);
        else backend_free(&t->on, t->memory);
    }
    *t = (table){ 0 };
}

/* The same pages again and again. */
static tgl_status map(table *t)
{
    const size_t bytes = (size_t)(t->period_bytes * t->num_periods);
    FILE *file = tmpfile();
    char *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    bool ok = file && at != MAP_FAILED && !ftruncate(fileno(file), t->period_bytes);
    for (int64_t i = 0; ok && i < t->num_periods; i++)
        ok = mmap(at + i * t->period_bytes, (size_t)t->period_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                  fileno(file), 0) != MAP_FAILED;
    if (file) fclose(file);
    if (at != MAP_FAILED) t->storage = at;
    return ok ? TGL_OK : tgl_fail(TGL_ERR_MEMORY, "no host memory for a table");
}

static void copy_periods(void *context, int64_t begin, int64_t end)
{
    const table *t = context;
    for (int64_t i = begin; i < end; i++) memcpy(t->memory + i * t->period_bytes, t->storage, (size_t)t->period_bytes);
}

static tgl_status fill(table *t)
{
    if (backend_is_cpu(&t->on)) {
        t->memory = t->storage;
        return TGL_OK;
    }
    const int64_t bytes = t->period_bytes * t->num_periods;
    void *memory = NULL;
    if (t->on_host) { /* written by all cores, then page-locked: the driver alone takes minutes */
        TGL_TRY(backend_pages_alloc(&t->on, (size_t)bytes, t->has_huge_pages, &memory));
        t->memory = memory;
        case_parallel(t->num_periods, t->period_bytes, copy_periods, t);
        return backend_pages_lock(&t->on, memory, (size_t)bytes);
    }
    TGL_TRY(backend_alloc(&t->on, (size_t)bytes, &memory));
    t->memory = memory;
    TGL_TRY(backend_upload(&t->on, t->memory, t->storage, (size_t)t->period_bytes));
    for (int64_t done = t->period_bytes; done < bytes; done *= 2) /* the device copies what it has */
        TGL_TRY(backend_copy(&t->on, t->memory + done, t->memory, (size_t)(done < bytes - done ? done : bytes - done)));
    return TGL_OK;
}

tgl_status case_table(const backend *on, const case_tensor *t, const case_problem *c, char **storage, char **memory)
{
    const int64_t bytes = t->period * t->element_bytes;
    table made = { .period_bytes = bytes,
                   .num_periods = (t->slots + t->period - 1) / t->period,
                   .on = *on,
                   .on_host = t->on_host,
                   .has_huge_pages = t->has_huge_pages && !backend_is_cpu(on) };
    snprintf(made.key, sizeof made.key, "%s %s %d %d %lld %lld %d %d", t->name, on->name, (int)t->dtype,
             t->fill != NULL, (long long)t->period, (long long)made.num_periods, t->on_host, t->has_huge_pages);
    int place = 0;
    while (place < KEPT - 1 && strcmp(kept[place].key, made.key)) place++;
    if (strcmp(kept[place].key, made.key)) {
        drop(&kept[place]);
        tgl_status status = map(&made);
        if (status == TGL_OK) {
            case_tensor part = *t;
            part.data = part.storage = made.storage;
            part.slots = t->period;
            (t->fill ? t->fill : case_fill_bits)(c, &part, case_seed(t->name));
            status = fill(&made);
        }
        if (status != TGL_OK) {
            drop(&made);
            return status;
        }
    } else {
        made = kept[place];
    }
    memmove(kept + 1, kept, (size_t)place * sizeof *kept);
    kept[0] = made;
    *storage = made.storage;
    *memory = made.memory;
    return TGL_OK;
}
