/* SPDX-License-Identifier: MIT
 * stream.c - streams, events, captures, graphs. All streams of all devices are one queue, in the order of the calls,
 * which is one of the orders that a program must expect. A launch runs at once, or (EMU_LAZY) at the next
 * synchronisation. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#include "scheduler.h"

typedef struct {
    double time;
    struct capture *capture;
} event;
typedef struct {
    void *data;
    void (*destroy)(void *);
    unsigned references;
} user_object;
typedef struct held {
    user_object *object;
    unsigned count;
    struct held *next;
} held;
typedef struct graph {
    work_list list;
    int references;
    held *held;
} graph;
typedef struct { graph *graph; } graph_exec;
typedef struct capture {
    graph *graph;
    stream *origin;
    int mode, invalid;
    uint64_t id;
    pthread_t thread;
    struct capture *next;
} capture;
enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };
enum { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_INVALID };

static work_list queue; /* EMU_LAZY: everything not yet run */
static capture *captures;
static stream **streams; /* those created, to find which ones belong to a capture */
static int num_streams, streams_capacity;
static __thread int thread_mode = MODE_GLOBAL;

/* ---- work ---- */
void emu_free_work(work *w)
{
    free(w->params);
    free(w->launch.args);
    free(w);
}
static void append(work_list *list, work *w)
{
    if (list->last) list->last->next = w;
    else list->first = w;
    list->last = w;
}
static void fill(const work *w)
{
    if (w->width == 1) memset(w->to, (int)w->value, w->bytes);
    for (size_t i = 0; w->width > 1 && i < w->bytes; i++)
        memcpy((char *)w->to + i * w->width, &w->value, w->width); /* little-endian */
}
static void run_copy(const work *w) /* the two sides may be on two devices */
{
    for (int d = 0; d < emu_config.devices; d++) emu_open_memory(d, 1);
    memmove(w->to, w->from, w->bytes);
    for (int d = 0; d < emu_config.devices; d++) emu_open_memory(d, 0);
}
static void run_work(const work *w)
{
    context *ctx = w->ctx;
    if (ctx->sticky) return;
    switch (w->kind) {
    case WORK_LAUNCH:
        if (emu_fail("kernel")) {
            emu_report_text("fault", w->launch.entry->name, "injected (EMU_FAIL)");
            ctx->sticky = LAUNCH_FAILED;
            return;
        }
        if (emu_run(&w->launch)) ctx->sticky = LAUNCH_FAILED;
        break;
    case WORK_COPY: run_copy(w); break;
    case WORK_FILL:
        emu_open_memory(ctx->device, 1);
        fill(w);
        emu_open_memory(ctx->device, 0);
        break;
    case WORK_HOST: w->host(w->data); break;
    }
}
result emu_drain(context *ctx)
{
    while (queue.first) {
        work *w = queue.first;
        queue.first = w->next;
        if (!queue.first) queue.last = NULL;
        run_work(w);
        emu_free_work(w);
    }
    return ctx->sticky;
}
stream *emu_stream(stream *s) { return s && s != (stream *)1 && s != (stream *)2 ? s : &emu_current()->legacy; }
/* The legacy stream waits for all blocking ones, which a capture cannot express: work on it fails and
 * spoils the capture. */
static capture *captured_behind(const stream *s)
{
    if (s != &s->ctx->legacy) return NULL;
    capture *c = captures;
    while (c && (c->invalid || c->origin->ctx != s->ctx || (c->origin->flags & 1))) c = c->next;
    return c;
}
static result spoils_capture(const stream *s)
{
    capture *c = captured_behind(s);
    if (!c) return SUCCESS;
    c->invalid = 1;
    return CAPTURE_IMPLICIT;
}
result emu_submit(stream *s, work *w)
{
    result r = spoils_capture(s);
    if (!r && s->capture && s->capture->invalid) r = CAPTURE_INVALIDATED;
    if (r) {
        emu_free_work(w);
        return r;
    }
    if (s->capture) {
        append(&s->capture->graph->list, w);
    } else if (emu_config.lazy) {
        append(&queue, w);
    } else {
        run_work(w); /* a fault surfaces at the next synchronisation */
        emu_free_work(w);
    }
    return SUCCESS;
}
API result cuLaunchHostFunc(stream *s, void (*host)(void *), void *data)
{
    ENTER();
    s = emu_stream(s);
    work *w = calloc(1, sizeof *w);
    if (!w) return OUT_OF_MEMORY;
    *w = (work){ .kind = WORK_HOST, .ctx = s->ctx, .host = host, .data = data };
    return emu_submit(s, w);
}

/* ---- streams ---- */
API result cuStreamCreate(stream **out, unsigned flags)
{
    ENTER();
    if (num_streams == streams_capacity) {
        stream **more = realloc(streams, (size_t)(streams_capacity * 2 + 16) * sizeof *more);
        if (!more) return OUT_OF_MEMORY;
        streams = more;
        streams_capacity = streams_capacity * 2 + 16;
    }
    stream *s = calloc(1, sizeof *s);
    if (!s) return OUT_OF_MEMORY;
    s->ctx = emu_current();
    s->flags = flags;
    streams[num_streams++] = s;
    emu_alive.streams++;
    *out = s;
    return SUCCESS;
}
API result cuStreamCreateWithPriority(stream **out, unsigned flags, int priority) { return cuStreamCreate(out, flags); }
static int find_stream(const stream *s)
{
    for (int i = 0; i < num_streams; i++)
        if (streams[i] == s) return i;
    return -1;
}
API result cuStreamDestroy_v2(stream *s)
{
    ENTER();
    const int i = find_stream(s);
    if (i < 0) return INVALID_HANDLE;
    emu_drain(s->ctx);
    streams[i] = streams[--num_streams];
    emu_alive.streams--;
    free(s);
    return SUCCESS;
}
API result cuStreamGetCtx(stream *s, context **c)
{
    ENTER();
    *c = emu_stream(s)->ctx;
    return SUCCESS;
}
API result cuStreamGetFlags(stream *s, unsigned *flags)
{
    ENTER();
    *flags = emu_stream(s)->flags;
    return SUCCESS;
}
uint64_t emu_id(uint64_t *id)
{
    static uint64_t ids;
    if (!*id) *id = ++ids;
    return *id;
}
API result cuStreamGetId(stream *s, unsigned long long *id)
{
    static __thread uint64_t per_thread; /* its work is the legacy stream's, but it is another one */
    ENTER();
    if (emu_stream(s)->capture) return CAPTURE_UNSUPPORTED;
    *id = emu_id(s == (stream *)2 ? &per_thread : &emu_stream(s)->id);
    return SUCCESS;
}
API result cuStreamSynchronize(stream *s)
{
    ENTER();
    s = emu_stream(s);
    const result r = spoils_capture(s);
    if (r) return r;
    if (s->capture) {
        s->capture->invalid = 1;
        return CAPTURE_UNSUPPORTED;
    }
    return emu_drain(s->ctx);
}
API result cuStreamQuery(stream *s)
{
    ENTER();
    s = emu_stream(s);
    return queue.first ? 600 : s->ctx->sticky;
}
API result cuStreamWaitEvent(stream *s, event *e, unsigned flags)
{
    ENTER();
    s = emu_stream(s);
    if (e->capture && !s->capture) s->capture = e->capture; /* it joins: what follows belongs to the graph */
    return SUCCESS;
}

/* ---- events ---- */
API result cuEventCreate(event **e, unsigned flags)
{
    ENTER();
    *e = calloc(1, sizeof **e);
    if (!*e) return OUT_OF_MEMORY;
    emu_alive.events++;
    return SUCCESS;
}
API result cuEventDestroy_v2(event *e)
{
    ENTER();
    free(e);
    emu_alive.events--;
    return SUCCESS;
}
API result cuEventRecord(event *e, stream *s)
{
    ENTER();
    s = emu_stream(s);
    const result r = spoils_capture(s);
    if (r) return r;
    e->capture = s->capture;
    if (s->capture) return s->capture->invalid ? CAPTURE_INVALIDATED : SUCCESS;
    emu_drain(s->ctx); /* else there is no time to note */
    e->time = emu_now();
    return SUCCESS;
}
API result cuEventSynchronize(event *e)
{
    ENTER();
    return e->capture ? CAPTURE_UNSUPPORTED : emu_drain(emu_current());
}
API result cuEventQuery(event *e)
{
    ENTER();
    return e->capture ? CAPTURE_UNSUPPORTED : emu_current()->sticky;
}
/* the host's time: it says nothing about a device's */
API result cuEventElapsedTime(float *ms, event *a, event *b)
{
    ENTER();
    if (a->time == 0 || b->time == 0) return INVALID_HANDLE;
    *ms = (float)((b->time - a->time) * 1e3);
    return SUCCESS;
}

/* ---- captures ---- */
result emu_unsafe(void)
{
    for (capture *c = captures; c; c = c->next) {
        const int mine = pthread_equal(c->thread, pthread_self());
        if (c->invalid || thread_mode == MODE_RELAXED) continue;
        if (mine ? c->mode == MODE_RELAXED : thread_mode != MODE_GLOBAL || c->mode != MODE_GLOBAL) continue;
        c->invalid = 1;
        return CAPTURE_UNSUPPORTED;
    }
    return SUCCESS;
}
API result cuThreadExchangeStreamCaptureMode(int *mode)
{
    ENTER_ANY();
    if (*mode < MODE_GLOBAL || *mode > MODE_RELAXED) return INVALID_VALUE;
    const int old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return SUCCESS;
}
API result cuStreamBeginCapture_v2(stream *s, int mode)
{
    static uint64_t ids;
    ENTER();
    if (emu_stream(s) != s) return CAPTURE_UNSUPPORTED; /* the legacy stream cannot be captured */
    if (s->capture) return ILLEGAL_STATE;
    if (mode < MODE_GLOBAL || mode > MODE_RELAXED) return INVALID_VALUE;
    capture *c = calloc(1, sizeof *c);
    graph *g = calloc(1, sizeof *g);
    if (!c || !g) {
        free(c);
        free(g);
        return OUT_OF_MEMORY;
    }
    g->references = 1;
    *c = (capture){ .graph = g, .origin = s, .mode = mode, .id = ++ids, .thread = pthread_self(), .next = captures };
    captures = c;
    s->capture = c;
    return SUCCESS;
}
static void release_object(user_object *o, unsigned count)
{
    if (o->references -= count) return;
    o->destroy(o->data);
    free(o);
}
static void release_graph(graph *g)
{
    if (--g->references) return;
    while (g->held) {
        held *h = g->held;
        g->held = h->next;
        release_object(h->object, h->count);
        free(h);
    }
    while (g->list.first) {
        work *w = g->list.first;
        g->list.first = w->next;
        emu_free_work(w);
    }
    free(g);
}
API result cuStreamEndCapture(stream *s, graph **out)
{
    ENTER();
    *out = NULL;
    capture *c = emu_stream(s)->capture;
    if (!c) return ILLEGAL_STATE;
    if (c->origin != s) return CAPTURE_UNMATCHED;
    if (c->mode != MODE_RELAXED && !pthread_equal(c->thread, pthread_self())) return CAPTURE_WRONG_THREAD;
    for (int i = 0; i < num_streams; i++) /* also those that joined */
        if (streams[i]->capture == c) streams[i]->capture = NULL;
    capture **p = &captures;
    while (*p != c) p = &(*p)->next;
    *p = c->next;
    const result r = c->invalid ? CAPTURE_INVALIDATED : SUCCESS;
    if (r) {
        release_graph(c->graph);
    } else {
        *out = c->graph;
        emu_alive.graphs++;
    }
    free(c);
    return r;
}
static int capture_status(const stream *s)
{
    return !s->capture ? CAPTURE_NONE : s->capture->invalid ? CAPTURE_INVALID : CAPTURE_ACTIVE;
}
API result cuStreamIsCapturing(stream *s, int *status)
{
    ENTER();
    s = emu_stream(s);
    *status = capture_status(s);
    return captured_behind(s) ? CAPTURE_IMPLICIT : SUCCESS; /* asking spoils nothing */
}
API result cuStreamGetCaptureInfo_v2(stream *s, int *status, uint64_t *id, graph **g, void ***dependencies, size_t *n)
{
    ENTER();
    s = emu_stream(s);
    *status = capture_status(s);
    if (id) *id = s->capture ? s->capture->id : 0;
    if (g) *g = s->capture ? s->capture->graph : NULL;
    if (dependencies) *dependencies = NULL;
    if (n) *n = 0;
    return captured_behind(s) ? CAPTURE_IMPLICIT : SUCCESS;
}

/* ---- graphs ---- */
API result cuGraphInstantiateWithFlags(graph_exec **out, graph *g, unsigned long long flags)
{
    ENTER();
    graph_exec *x = calloc(1, sizeof *x);
    if (!x) return OUT_OF_MEMORY;
    x->graph = g;
    g->references++;
    emu_alive.graphs++;
    *out = x;
    return SUCCESS;
}
API result cuGraphLaunch(graph_exec *x, stream *s)
{
    ENTER();
    s = emu_stream(s);
    const result r = spoils_capture(s);
    if (r) return r;
    if (s->capture) return NOT_SUPPORTED; /* a graph within a graph: not written */
    emu_drain(s->ctx);
    for (work *w = x->graph->list.first; w; w = w->next) run_work(w);
    return SUCCESS;
}
API result cuGraphExecDestroy(graph_exec *x)
{
    ENTER();
    emu_drain(emu_current());
    release_graph(x->graph);
    free(x);
    emu_alive.graphs--;
    return SUCCESS;
}
API result cuGraphDestroy(graph *g)
{
    ENTER();
    release_graph(g);
    emu_alive.graphs--;
    return SUCCESS;
}
enum { NO_DESTRUCTOR_SYNC = 1, MOVE = 1 };
API result cuUserObjectCreate(user_object **out, void *data, void (*destroy)(void *), unsigned count, unsigned flags)
{
    ENTER();
    if (!out || !destroy || !count || flags != NO_DESTRUCTOR_SYNC) return INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    if (!*out) return OUT_OF_MEMORY;
    **out = (user_object){ data, destroy, count };
    return SUCCESS;
}
API result cuUserObjectRelease(user_object *o, unsigned count)
{
    ENTER();
    if (!o || !count || count > o->references) return INVALID_VALUE;
    release_object(o, count);
    return SUCCESS;
}
API result cuGraphRetainUserObject(graph *g, user_object *o, unsigned count, unsigned flags)
{
    ENTER();
    if (!g || !o || !count || flags > MOVE) return INVALID_VALUE;
    held *h = calloc(1, sizeof *h);
    if (!h) return OUT_OF_MEMORY;
    *h = (held){ o, count, g->held };
    g->held = h;
    if (flags != MOVE) o->references += count; /* else the caller's own become the graph's */
    return SUCCESS;
}
API result cuGraphGetNodes(graph *g, void **nodes, size_t *n)
{
    ENTER();
    size_t count = 0;
    for (work *w = g->list.first; w; w = w->next, count++)
        if (nodes && count < *n) nodes[count] = w;
    *n = count;
    return SUCCESS;
}
