/* SPDX-License-Identifier: MIT
 * timer_cuda.c - GPU time of a call.
 *
 * A pass enqueues, for every call: a flush of the L2 (cold passes), a marker kernel, the call. With CUPTI
 * the time of a call is the sum of the durations of what it launched: all records after its marker and
 * before the next flush or marker. Without CUPTI, and of calls with host functions, which it does not see, it is
 * the time between two events, which includes about one launch; the empty kernel is timed the same way and shows
 * how much that is. Durations are taken without programmatic launch, with which they would contain the wait for
 * the previous kernel's end (0.15 to 0.35 us on an H200). Graph and host times are taken with the user's settings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/driver.h"
#include "cupti.h"
#include "timer.h"

enum { FLUSH_BYTES = 384 << 20 }; /* several times any L2 */
enum { DROPPED = 5, CALLS = 35, QUICK_CALLS = 11, MAX_CALLS = DROPPED + CALLS };

/* As PTX, which every driver compiles: timing needs neither NVRTC nor the cache. The store of the read kernel
 * never happens; it keeps the loads alive. Of the gather a warp has a row at a time, a lane 8 bytes of it
 * and one of its factors. */
static const char marker_name[] = "tegula_marker", empty_name[] = "tegula_empty", read_name[] = "tegula_read",
                  gather_name[] = "tegula_gather";
static const char ptx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry tegula_marker() { ret; }\n"
    ".visible .entry tegula_empty() { ret; }\n"
    ".visible .entry tegula_read(.param .u64 buffer, .param .u64 quads) {\n"
    "    .reg .u64 %at, %i, %n, %step, %t; .reg .u32 %a, %b, %c, %d, %sum, %x, %y; .reg .pred %p;\n"
    "    ld.param.u64 %at, [buffer]; ld.param.u64 %n, [quads]; cvta.to.global.u64 %at, %at;\n"
    "    mov.u32 %x, %ctaid.x; mov.u32 %y, %ntid.x; mul.wide.u32 %i, %x, %y;\n"
    "    mov.u32 %x, %tid.x; cvt.u64.u32 %t, %x; add.u64 %i, %i, %t;\n"
    "    mov.u32 %x, %nctaid.x; mul.wide.u32 %step, %x, %y; mov.u32 %sum, 0;\n"
    "loop:\n"
    "    setp.ge.u64 %p, %i, %n; @%p bra done;\n"
    "    shl.b64 %t, %i, 4; add.u64 %t, %t, %at; ld.global.v4.u32 { %a, %b, %c, %d }, [%t];\n"
    "    xor.b32 %a, %a, %b; xor.b32 %c, %c, %d; xor.b32 %a, %a, %c; add.u32 %sum, %sum, %a;\n"
    "    add.u64 %i, %i, %step; bra loop;\n"
    "done:\n"
    "    setp.ne.u32 %p, %sum, 0x9e3779b9; @%p bra end; st.global.u32 [%at], %sum;\n"
    "end: ret;\n"
    "}\n"
    ".visible .entry tegula_gather(.param .u64 table, .param .u64 factors, .param .u64 indices,\n"
    "                               .param .u64 count, .param .u64 row_bytes, .param .u64 factor_bytes) {\n"
    "    .reg .u64 %at, %sf, %to, %i, %n, %step, %t, %lane, %byte, %row, %bytes, %few;\n"
    "    .reg .u32 %a, %b, %c, %sum, %x, %y; .reg .s32 %index; .reg .pred %p;\n"
    "    ld.param.u64 %at, [table]; ld.param.u64 %sf, [factors]; ld.param.u64 %to, [indices];\n"
    "    ld.param.u64 %n, [count]; ld.param.u64 %bytes, [row_bytes]; ld.param.u64 %few, [factor_bytes];\n"
    "    cvta.to.global.u64 %at, %at; cvta.to.global.u64 %sf, %sf; cvta.to.global.u64 %to, %to;\n"
    "    mov.u32 %x, %ctaid.x; mov.u32 %y, %ntid.x; mul.wide.u32 %i, %x, %y;\n"
    "    mov.u32 %x, %tid.x; cvt.u64.u32 %t, %x; add.u64 %i, %i, %t; and.b64 %byte, %i, 31; shl.b64 %lane, %byte, 3;\n"
    "    shr.u64 %i, %i, 5; mov.u32 %x, %nctaid.x; mul.wide.u32 %step, %x, %y; shr.u64 %step, %step, 5;\n"
    "    mov.u32 %sum, 0;\n"
    "rows:\n"
    "    setp.ge.u64 %p, %i, %n; @%p bra over;\n"
    "    shl.b64 %t, %i, 2; add.u64 %t, %t, %to; ld.global.s32 %index, [%t]; cvt.s64.s32 %row, %index;\n"
    "    mul.lo.u64 %t, %row, %few; add.u64 %t, %t, %sf; add.u64 %t, %t, %byte;\n"
    "    mul.lo.u64 %row, %row, %bytes; add.u64 %row, %row, %at; add.u64 %row, %row, %lane; mov.u32 %a, 0;\n"
    "    mov.u32 %b, 0; setp.lt.u64 %p, %lane, %bytes; @%p ld.global.v2.u32 { %a, %b }, [%row];\n"
    "    mov.u32 %c, 0; setp.lt.u64 %p, %byte, %few; @%p ld.global.u8 %c, [%t]; xor.b32 %b, %b, %c;\n"
    "    xor.b32 %a, %a, %b; add.u32 %sum, %sum, %a; add.u64 %i, %i, %step; bra rows;\n"
    "over:\n"
    "    setp.ne.u32 %p, %sum, 0x9e3779b9; @%p bra last; st.global.u32 [%to], %sum;\n"
    "last: ret;\n"
    "}\n";

/* A driver call of timer t by its name in the table, as a status with a message. */
#define CU(name, ...) tgl_driver_check(t->cu->name(__VA_ARGS__), "cu" #name)

typedef struct {
    timer base;
    const tgl_driver_table *cu;
    const tgl_device *device;
    tgl_context_guard guard;
    tgl_cu_library library;
    tgl_cu_kernel marker, empty, read, gather;
    tgl_cu_pointer flush, copy_from, copy_to;
    int64_t copy_room;
    tgl_cu_event events[2 * MAX_CALLS];
    bool use_cupti;
    uint32_t grid[3], block[3]; /* of the last kernel seen */
} cuda_timer;

static tgl_status launch(cuda_timer *t, tgl_cu_kernel kernel, const uint32_t grid[3], const uint32_t block[3],
                         void **args)
{
    const tgl_cu_launch_config config = { grid[0],  grid[1],  grid[2], block[0],
                                          block[1], block[2], 0,       t->base.on->stream,
                                          NULL,     0 };
    return CU(LaunchKernelEx, &config, (tgl_cu_function)(void *)kernel, args, NULL);
}

static tgl_status flush(cuda_timer *t)
{
    if (!t->base.options.flush_reads) return CU(MemsetD32Async, t->flush, 0, FLUSH_BYTES / 4, t->base.on->stream);
    uint64_t quads = FLUSH_BYTES / 16;
    void *args[] = { &t->flush, &quads };
    return launch(t, t->read, (uint32_t[]){ 8 * (uint32_t)t->device->num_sms, 1, 1 }, (uint32_t[]){ 256, 1, 1 }, args);
}

static tgl_status wait(cuda_timer *t) { return CU(StreamSynchronize, t->base.on->stream); }

static tgl_status record(cuda_timer *t, int i) { return CU(EventRecord, t->events[i], t->base.on->stream); }

/* Between events i and i + 1, of which both have happened. */
static tgl_status elapsed_us(cuda_timer *t, int i, double *us)
{
    float ms = 0;
    const tgl_status status = CU(EventElapsedTime, &ms, t->events[i], t->events[i + 1]);
    *us = 1e3 * (double)ms;
    return status;
}

/* ---- one pass ---- */

static bool is_flush(const cupti_record *r)
{
    return (r->kind == CUPTI_FILL && r->bytes == FLUSH_BYTES) ||
           (r->kind == CUPTI_KERNEL && !strcmp(r->name, read_name));
}

/* Sums the durations of each call of a pass. False if not every call has the same number of records. */
static bool sum_records(cuda_timer *t, const cupti_record *records, int count, double *us, int calls)
{
    int call = -1;
    bool is_open = false;
    int members[MAX_CALLS] = { 0 };
    for (int i = 0; i < count; i++) {
        const cupti_record *r = &records[i];
        if (r->kind == CUPTI_KERNEL && !strcmp(r->name, marker_name)) {
            if (++call >= calls) return false;
            is_open = true;
            us[call] = 0;
        } else if (is_flush(r)) {
            is_open = false;
        } else if (is_open) {
            us[call] += 1e-3 * (double)(r->end - r->start);
            members[call]++;
            if (r->kind == CUPTI_KERNEL) {
                memcpy(t->grid, r->grid, sizeof t->grid);
                memcpy(t->block, r->block, sizeof t->block);
            }
        }
    }
    if (call + 1 != calls) return false;
    for (int i = 0; i < calls; i++)
        if (members[i] == 0 || members[i] != members[0]) return false;
    return true;
}

static tgl_status enqueue(cuda_timer *t, timer_call call, void *context, bool is_cold, bool with_events, int calls)
{
    static const uint32_t one[3] = { 1, 1, 1 }, warp[3] = { 32, 1, 1 };
    for (int i = 0; i < calls; i++) {
        if (is_cold) TGL_TRY(flush(t));
        TGL_TRY(launch(t, t->marker, one, warp, NULL));
        if (with_events) TGL_TRY(record(t, 2 * i));
        TGL_TRY(call(context));
        if (with_events) TGL_TRY(record(t, 2 * i + 1));
    }
    return wait(t);
}

static tgl_status pass(cuda_timer *t, timer_call call, void *context, bool is_cold, timer_stats *out)
{
    double us[MAX_CALLS];
    const int calls = DROPPED + (t->base.options.quick ? QUICK_CALLS : CALLS);
    TGL_TRY(call(context));
    TGL_TRY(wait(t));
    if (t->use_cupti && !t->base.has_host_work) {
        const cupti_record *records;
        int count;
        if (cupti_start()) {
            const bool pdl = tgl_get_pdl();
            tgl_set_pdl(false);
            const tgl_status status = enqueue(t, call, context, is_cold, false, calls);
            tgl_set_pdl(pdl);
            const bool stopped = cupti_stop(&records, &count);
            TGL_TRY(status);
            if (stopped && sum_records(t, records, count, us, calls)) {
                *out = timer_stats_of(us + DROPPED, calls - DROPPED);
                return TGL_OK;
            }
        }
        t->use_cupti = false;
        snprintf(t->base.name, sizeof t->base.name, "events");
        snprintf(t->base.note, sizeof t->base.note, "CUPTI gave up (%s), so times are between events around a call",
                 cupti_reason()[0] ? cupti_reason() : "its records do not match the calls");
    }
    TGL_TRY(enqueue(t, call, context, is_cold, true, calls));
    for (int i = 0; i < calls; i++) TGL_TRY(elapsed_us(t, 2 * i, &us[i]));
    *out = timer_stats_of(us + DROPPED, calls - DROPPED);
    return TGL_OK;
}

static tgl_status cold(timer *base, timer_call call, void *context, int64_t bytes, timer_stats *out)
{
    return pass((cuda_timer *)base, call, context, true, out);
}

static tgl_status warm(timer *base, timer_call call, void *context, timer_stats *out)
{
    return pass((cuda_timer *)base, call, context, false, out);
}

/* ---- chains, host time ---- */

static tgl_status capture(cuda_timer *t, timer_call call, void *context, int calls, tgl_cu_graph_exec *exec)
{
    tgl_cu_graph graph = NULL;
    tgl_status status = TGL_OK;
    TGL_TRY(CU(StreamBeginCapture, t->base.on->stream, TGL_CU_CAPTURE_THREAD_LOCAL));
    for (int i = 0; i < calls && status == TGL_OK; i++) status = call(context);
    const tgl_cu_result ended = t->cu->StreamEndCapture(t->base.on->stream, &graph); /* in any case */
    if (status == TGL_OK) status = tgl_driver_check(ended, "cuStreamEndCapture");
    if (status == TGL_OK) status = CU(GraphInstantiateWithFlags, exec, graph, 0);
    if (graph) t->cu->GraphDestroy(graph);
    return status;
}

static tgl_status replay(cuda_timer *t, tgl_cu_graph_exec exec, int calls, double *us)
{
    enum { WARM = 2, REPLAYS = 9 };
    double times[REPLAYS];
    for (int i = 0; i < WARM + REPLAYS; i++) {
        TGL_TRY(record(t, 0));
        TGL_TRY(CU(GraphLaunch, exec, t->base.on->stream));
        TGL_TRY(record(t, 1));
        TGL_TRY(wait(t));
        TGL_TRY(elapsed_us(t, 0, &times[i < WARM ? 0 : i - WARM]));
    }
    *us = timer_stats_of(times, REPLAYS).median / calls;
    return TGL_OK;
}

static tgl_status graph(timer *base, timer_call call, void *context, double expected_us, double *us)
{
    cuda_timer *t = (cuda_timer *)base;
    /* Long enough that the first launch of a graph, some 10 us, does not show; not much more than 20 ms. */
    const int calls = expected_us < 100 ? 200 : expected_us < 1000 ? 20 : 5;
    tgl_cu_graph_exec exec;
    TGL_TRY(capture(t, call, context, calls, &exec));
    const tgl_status status = replay(t, exec, calls, us);
    t->cu->GraphExecDestroy(exec);
    return status;
}

static tgl_status host(timer *base, timer_call call, void *context, double expected_us, double *ns)
{
    cuda_timer *t = (cuda_timer *)base;
    enum { BATCHES = 15 };
    double times[BATCHES];
    /* A batch stays far below the depth of the launch queue (about a thousand), where a launch would
     * wait for the device. */
    const int calls = expected_us < 100 ? 200 : expected_us < 1000 ? (int)(20000 / expected_us) : 20;
    for (int b = -1; b < BATCHES; b++) {
        TGL_TRY(wait(t));
        const double start = tool_seconds();
        for (int i = 0; i < calls; i++) TGL_TRY(call(context));
        if (b >= 0) times[b] = (tool_seconds() - start) / calls;
    }
    TGL_TRY(wait(t));
    *ns = 1e9 * timer_stats_of(times, BATCHES).min; /* what disturbs a batch only adds */
    return TGL_OK;
}

/* ---- yardsticks ---- */

typedef struct {
    cuda_timer *t;
    int64_t bytes;
} copy_context;

static tgl_status copy_call(void *context)
{
    const copy_context *c = context;
    cuda_timer *t = c->t;
    return CU(MemcpyDtoDAsync, t->copy_to, t->copy_from, (size_t)c->bytes, t->base.on->stream);
}

static void free_copy_buffers(cuda_timer *t)
{
    if (t->copy_from) t->cu->MemFree(t->copy_from);
    if (t->copy_to) t->cu->MemFree(t->copy_to);
    t->copy_from = t->copy_to = 0;
    t->copy_room = 0;
}

static tgl_status copy_time(timer *base, int64_t bytes, timer_stats *out)
{
    cuda_timer *t = (cuda_timer *)base;
    copy_context c = { t, (bytes + 1) / 2 };
    *out = timer_stats_none;
    if (c.bytes == 0) return TGL_OK;
    if (c.bytes > t->copy_room) {
        free_copy_buffers(t);
        if (t->cu->MemAlloc(&t->copy_from, (size_t)c.bytes) || t->cu->MemAlloc(&t->copy_to, (size_t)c.bytes)) {
            free_copy_buffers(t);
            return TGL_OK;
        }
        t->copy_room = c.bytes;
        /* Not zeros: memory of zeros may be moved faster than data is. */
        TGL_TRY(CU(MemsetD32Async, t->copy_from, 0x3f8ccccd, (size_t)c.bytes / 4, t->base.on->stream));
    }
    return pass(t, copy_call, &c, true, out);
}

typedef struct {
    cuda_timer *t;
    timer_rows rows;
} gather_context;

static tgl_status gather_call(void *context)
{
    gather_context *g = context;
    timer_rows *r = &g->rows;
    void *args[] = { &r->table, &r->factors, &r->indices, &r->count, &r->row_bytes, &r->factor_bytes };
    return launch(g->t, g->t->gather, (uint32_t[]){ 4 * (uint32_t)g->t->device->num_sms, 1, 1 },
                  (uint32_t[]){ 512, 1, 1 }, args);
}

static tgl_status gather_time(timer *base, const timer_rows *rows, timer_stats *out)
{
    cuda_timer *t = (cuda_timer *)base;
    gather_context g = { t, *rows };
    return pass(t, gather_call, &g, true, out);
}

static tgl_status empty_call(void *context)
{
    cuda_timer *t = context;
    return launch(t, t->empty, t->grid, t->block, NULL);
}

static void default_shape(cuda_timer *t)
{
    memcpy(t->grid, (uint32_t[]){ (uint32_t)t->device->num_sms, 1, 1 }, sizeof t->grid);
    memcpy(t->block, (uint32_t[]){ 256, 1, 1 }, sizeof t->block);
}

static tgl_status empty(timer *base, timer_stats *out)
{
    cuda_timer *t = (cuda_timer *)base;
    const tgl_status status = pass(t, empty_call, t, true, out);
    default_shape(t);
    return status;
}

static tgl_status empty_host(timer *base, double *ns) { return host(base, empty_call, base, 0, ns); }

/* ---- opening ---- */

static void close_timer(timer *base)
{
    cuda_timer *t = (cuda_timer *)base;
    free_copy_buffers(t);
    if (t->flush) t->cu->MemFree(t->flush);
    for (int i = 0; i < 2 * MAX_CALLS; i++)
        if (t->events[i]) t->cu->EventDestroy(t->events[i]);
    if (t->library) t->cu->LibraryUnload(t->library);
    tgl_context_leave(&t->guard);
    free(t);
}

static tgl_status make(cuda_timer *t)
{
    TGL_TRY(CU(LibraryLoadData, &t->library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    TGL_TRY(CU(LibraryGetKernel, &t->marker, t->library, marker_name));
    TGL_TRY(CU(LibraryGetKernel, &t->empty, t->library, empty_name));
    TGL_TRY(CU(LibraryGetKernel, &t->read, t->library, read_name));
    TGL_TRY(CU(LibraryGetKernel, &t->gather, t->library, gather_name));
    TGL_TRY(CU(MemAlloc, &t->flush, FLUSH_BYTES));
    TGL_TRY(CU(MemsetD32Async, t->flush, 0, FLUSH_BYTES / 4, t->base.on->stream));
    for (int i = 0; i < 2 * MAX_CALLS; i++) TGL_TRY(CU(EventCreate, &t->events[i], 0));
    return wait(t);
}

/* CUPTI is believed if it and the events agree about a copy of 30 us or more. Events include a launch. */
static tgl_status start_profiler(timer *base)
{
    enum { TRIAL_BYTES = 128 << 20 };
    cuda_timer *t = (cuda_timer *)base;
    timer_stats events, cupti;
    const char *refusal = cupti_load(NULL);
    if (refusal) {
        snprintf(base->note, sizeof base->note, "without CUPTI (%s), so times are between events around a call",
                 refusal);
        return TGL_OK;
    }
    TGL_TRY(copy_time(base, TRIAL_BYTES, &events));
    t->use_cupti = true;
    snprintf(base->name, sizeof base->name, "cupti");
    TGL_TRY(copy_time(base, TRIAL_BYTES, &cupti));
    if (!t->use_cupti || fabs(cupti.median - events.median) <= 0.2 * events.median + 8) return TGL_OK;
    t->use_cupti = false;
    snprintf(base->name, sizeof base->name, "events");
    snprintf(base->note, sizeof base->note,
             "CUPTI says %.1f us for a copy where events say %.1f, so times are between events around a call",
             cupti.median, events.median);
    return TGL_OK;
}

tgl_status timer_open_cuda(const backend *on, const timer_options *options, timer **out)
{
    static const timer_methods methods = { start_profiler, cold,        warm,  graph,      host,
                                           copy_time,      gather_time, empty, empty_host, close_timer };
    if (on->is_emulated)
        return tgl_fail(TGL_ERR_DEVICE, "%s: is the emulated device, which has no time worth measuring", on->name);
    cuda_timer *t = calloc(1, sizeof *t);
    if (!t) return tgl_fail(TGL_ERR_MEMORY, "no memory");
    t->base = (timer){ .methods = &methods, .on = on, .options = *options, .name = "events" };
    tgl_status status = tgl_driver(&t->cu);
    if (status == TGL_OK) status = tgl_device_get(on->device.device_id, &t->device);
    if (status == TGL_OK) status = tgl_context_enter(on->device.device_id, on->stream, &t->guard);
    if (status != TGL_OK) {
        free(t);
        return status;
    }
    default_shape(t);
    status = make(t);
    if (status != TGL_OK) {
        close_timer(&t->base);
        return status;
    }
    *out = &t->base;
    return TGL_OK;
}
