/* SPDX-License-Identifier: MIT
 * The activity API in four steps: hand it buffers, switch kinds of records on, run, take the buffers back.
 * Records are read at the offsets below, which hold from CUDA 11 to 13 (kernel records 5 to 10, copy records
 * 3 to 6, fill records 3 and 4 begin alike; later ones only grew at the end). If a future library moves them,
 * its times disagree with those of events, and timer_cuda.c goes back to events. */
#include "cupti.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_MEMCPY = 1, KIND_MEMSET = 2, KIND_CONCURRENT_KERNEL = 10 }; /* CUpti_ActivityKind */
enum { FLUSH_FORCED = 1, NO_MORE_RECORDS = 12 };                        /* CUPTI_ERROR_MAX_LIMIT_REACHED */
enum { AT_BYTES = 8, AT_START = 16, AT_END = 24, AT_GRID = 52, AT_BLOCK = 64, AT_NAME = 104 };
enum { BUFFER_BYTES = 1 << 20 };

typedef void (*buffer_requested)(uint8_t **buffer, size_t *bytes, size_t *max_records);
typedef void (*buffer_completed)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes);

static struct {
    int (*GetVersion)(uint32_t *version);
    int (*GetResultString)(int result, const char **text);
    int (*ActivityRegisterCallbacks)(buffer_requested requested, buffer_completed completed);
    int (*ActivityEnable)(int kind);
    int (*ActivityDisable)(int kind);
    int (*ActivityFlushAll)(uint32_t flag);
    int (*ActivityGetNextRecord)(uint8_t *buffer, size_t valid_bytes, void **record);
} cupti;

static char reason[256];
static cupti_record *records;
static int count, room;

/* ---- loading ---- */

static void *open_any(const char *pattern)
{
    if (!strchr(pattern, '/')) return dlopen(pattern, RTLD_NOW | RTLD_LOCAL);
    glob_t found;
    void *library = NULL;
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc && !library; i++)
            library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
        globfree(&found);
    }
    return library;
}

static void *open_library(void)
{
    /* By the loader; beside the toolkit; in the wheels of a Python that the environment names. */
    static const char *const places[] = {
        "libcupti.so.13",
        "libcupti.so.12",
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.1[23]",
        "/usr/local/cuda/lib64/libcupti.so.1[23]",
        "/usr/local/cuda/targets/*/lib/libcupti.so.1[23]",
        "/opt/cuda/extras/CUPTI/lib64/libcupti.so.1[23]",
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        void *library = open_any(places[i]);
        if (library) return library;
    }
    const char *roots[] = { getenv("VIRTUAL_ENV"), getenv("CONDA_PREFIX"), "/usr/local", "/usr" };
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        char pattern[4096];
        if (!roots[i] || strlen(roots[i]) > 2048) continue;
        snprintf(pattern, sizeof pattern, "%s/lib/python3*/*-packages/nvidia/*/lib/libcupti.so.1[23]", roots[i]);
        void *library = open_any(pattern);
        if (library) return library;
    }
    return NULL;
}

const char *cupti_load(uint32_t *version)
{
    static bool was_tried;
    static uint32_t number;
    if (!was_tried) {
        was_tried = true;
        void *library = open_library();
        if (!library) snprintf(reason, sizeof reason, "libcupti.so.13 or .12 was not found");
        const struct {
            void *slot;
            const char *name;
        } symbols[] = {
            { &cupti.GetVersion, "cuptiGetVersion" },
            { &cupti.GetResultString, "cuptiGetResultString" },
            { &cupti.ActivityRegisterCallbacks, "cuptiActivityRegisterCallbacks" },
            { &cupti.ActivityEnable, "cuptiActivityEnable" },
            { &cupti.ActivityDisable, "cuptiActivityDisable" },
            { &cupti.ActivityFlushAll, "cuptiActivityFlushAll" },
            { &cupti.ActivityGetNextRecord, "cuptiActivityGetNextRecord" },
        };
        for (size_t i = 0; library && i < sizeof symbols / sizeof *symbols; i++) {
            void *address = dlsym(library, symbols[i].name);
            if (!address) snprintf(reason, sizeof reason, "libcupti has no %s", symbols[i].name);
            memcpy(symbols[i].slot, &address, sizeof address); /* ISO C has no cast to a function pointer */
        }
        if (!reason[0]) cupti.GetVersion(&number);
    }
    if (version) *version = number;
    return reason[0] ? reason : NULL;
}

const char *cupti_reason(void) { return reason; }

static bool accept(int result, const char *call)
{
    if (result == 0) return true;
    const char *text = NULL;
    cupti.GetResultString(result, &text);
    snprintf(reason, sizeof reason, "%s: %s (%d)", call, text ? text : "unknown error", result);
    return false;
}

/* ---- records ---- */

static void request(uint8_t **buffer, size_t *bytes, size_t *max_records)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *bytes = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0; /* as many as fit */
}

static void keep(const uint8_t *record)
{
    uint32_t kind;
    memcpy(&kind, record, sizeof kind);
    if (kind != KIND_CONCURRENT_KERNEL && kind != KIND_MEMCPY && kind != KIND_MEMSET) return;
    if (count == room) {
        room = room ? 2 * room : 1024;
        cupti_record *more = realloc(records, sizeof *more * (size_t)room);
        if (!more) abort();
        records = more;
    }
    cupti_record *r = &records[count++];
    *r = (cupti_record){ .kind = CUPTI_KERNEL };
    if (kind == KIND_MEMCPY) r->kind = CUPTI_COPY;
    if (kind == KIND_MEMSET) r->kind = CUPTI_FILL;
    memcpy(&r->start, record + AT_START, sizeof r->start);
    memcpy(&r->end, record + AT_END, sizeof r->end);
    if (r->kind != CUPTI_KERNEL) {
        memcpy(&r->bytes, record + AT_BYTES, sizeof r->bytes);
        return;
    }
    const char *name;
    memcpy(r->grid, record + AT_GRID, sizeof r->grid);
    memcpy(r->block, record + AT_BLOCK, sizeof r->block);
    memcpy(&name, record + AT_NAME, sizeof name);
    if (name) snprintf(r->name, sizeof r->name, "%s", name);
}

static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid_bytes)
{
    void *record = NULL;
    while (valid_bytes && cupti.ActivityGetNextRecord(buffer, valid_bytes, &record) == 0) keep(record);
    free(buffer);
}

static int by_start(const void *a, const void *b)
{
    const cupti_record *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static const int kinds[] = { KIND_CONCURRENT_KERNEL, KIND_MEMCPY, KIND_MEMSET };
enum { NUM_KINDS = sizeof kinds / sizeof *kinds };

bool cupti_start(void)
{
    static bool is_registered;
    count = 0;
    if (!is_registered && !accept(cupti.ActivityRegisterCallbacks(request, complete), "cuptiActivityRegisterCallbacks"))
        return false;
    is_registered = true;
    for (int i = 0; i < NUM_KINDS; i++) {
        if (accept(cupti.ActivityEnable(kinds[i]), "cuptiActivityEnable")) continue;
        while (i > 0) cupti.ActivityDisable(kinds[--i]);
        return false;
    }
    return true;
}

bool cupti_stop(const cupti_record **out, int *out_count)
{
    bool ok = accept(cupti.ActivityFlushAll(FLUSH_FORCED), "cuptiActivityFlushAll");
    for (int i = 0; i < NUM_KINDS; i++) ok &= accept(cupti.ActivityDisable(kinds[i]), "cuptiActivityDisable");
    if (count) qsort(records, (size_t)count, sizeof *records, by_start);
    *out = records;
    *out_count = count;
    return ok;
}
