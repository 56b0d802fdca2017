/* SPDX-License-Identifier: MIT */
#include "case.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "scrub.h"
#include "table.h"

/* ---- ops ---- */

const case_op *case_op_at(int i)
{
    int n = 0;
    while (n < i && case_ops[n]) n++;
    return case_ops[n];
}

const case_op *case_find(const char *name)
{
    for (const case_op *const *op = case_ops; *op; op++)
        if (!strcmp((*op)->name, name)) return *op;
    return NULL;
}

/* ---- lists of parameters ---- */

bool case_next_pair(const char **line, case_pair *pair)
{
    *line += strspn(*line, " ");
    if (!**line) return false;
    const int bytes = (int)strcspn(*line, " ");
    const char *equals = memchr(*line, '=', (size_t)bytes);
    pair->name = *line;
    pair->name_bytes = equals ? (int)(equals - *line) : bytes;
    pair->values = equals ? equals + 1 : *line + bytes;
    pair->values_bytes = (int)(*line + bytes - pair->values);
    *line += bytes;
    return true;
}

bool case_pair_is(const case_pair *pair, const char *name)
{
    return (int)strlen(name) == pair->name_bytes && !memcmp(pair->name, name, (size_t)pair->name_bytes);
}

bool case_pair_has(const case_pair *pair, const char *value)
{
    const char *at = pair->values, *end = at + pair->values_bytes;
    for (const size_t length = strlen(value);; at++) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const size_t bytes = (size_t)((comma ? comma : end) - at);
        if (bytes == length && !memcmp(at, value, bytes)) return true;
        if (!comma) return false;
        at = comma;
    }
}

static int64_t num_values(const case_pair *w)
{
    int64_t n = 1;
    for (int i = 0; i < w->values_bytes; i++) n += w->values[i] == ',';
    return n;
}

static int64_t count_line(const char *line)
{
    int64_t n = 1;
    for (case_pair w; case_next_pair(&line, &w);) n *= num_values(&w);
    return n;
}

int64_t case_count(const char *const *lines)
{
    int64_t n = 0;
    for (; lines && *lines; lines++) n += count_line(*lines);
    return n;
}

static tgl_status put_value(char value[CASE_WORD], const case_pair *w, int64_t choice)
{
    const char *from = w->values, *end = w->values + w->values_bytes;
    while (choice-- > 0) from = (const char *)memchr(from, ',', (size_t)(end - from)) + 1;
    const char *comma = memchr(from, ',', (size_t)(end - from));
    const int bytes = (int)((comma ? comma : end) - from);
    if (bytes == 0 || bytes >= CASE_WORD)
        return tgl_fail(TGL_ERR_ARGUMENT, "%.*s: is \"%.*s\", want a value of 1 to %d characters", w->name_bytes,
                        w->name, bytes, from, CASE_WORD - 1);
    memcpy(value, from, (size_t)bytes);
    value[bytes] = 0;
    return TGL_OK;
}

tgl_status case_at(const case_op *op, const char *const *lines, int64_t i, case_params *params)
{
    *params = (case_params){ 0 };
    const char *declared = op->params;
    for (case_pair w; case_next_pair(&declared, &w); params->count++) {
        if (params->count == CASE_MAX_PARAMS || w.name_bytes >= CASE_WORD || w.values_bytes >= CASE_WORD)
            return tgl_fail(TGL_ERR_INTERNAL, "%s: too many parameters, or too long ones", op->name);
        memcpy(params->item[params->count].name, w.name, (size_t)w.name_bytes);
        memcpy(params->item[params->count].value, w.values, (size_t)w.values_bytes);
    }
    for (; lines && *lines && i >= count_line(*lines); lines++) i -= count_line(*lines);
    if (!lines || !*lines || i < 0) return tgl_fail(TGL_ERR_ARGUMENT, "%s: no such case", op->name);
    int64_t combinations = count_line(*lines);
    const char *line = *lines;
    for (case_pair w; case_next_pair(&line, &w);) { /* the last parameter changes fastest */
        combinations /= num_values(&w);
        const int64_t choice = i / combinations % num_values(&w);
        int p = 0;
        while (p < params->count && !case_pair_is(&w, params->item[p].name)) p++;
        if (p == params->count)
            return tgl_fail(TGL_ERR_ARGUMENT, "%.*s: is no parameter of %s, want some of %s", w.name_bytes, w.name,
                            op->name, op->params);
        TGL_TRY(put_value(params->item[p].value, &w, choice));
    }
    for (int p = 0; p < params->count; p++)
        if (!params->item[p].value[0])
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: is not given, want a value", params->item[p].name);
    return TGL_OK;
}

void case_params_text(const case_op *op, const case_params *params, char *text, size_t bytes)
{
    const char *declared = op->params;
    size_t n = 0;
    text[0] = 0;
    case_pair w;
    for (int p = 0; p < params->count && case_next_pair(&declared, &w); p++) {
        const char *value = params->item[p].value;
        if (case_pair_has(&w, value) || n >= bytes) continue;
        n += (size_t)snprintf(text + n, bytes - n, "%s%s=%s", n ? " " : "", params->item[p].name, value);
    }
}

/* ---- for setup ---- */

const char *case_text(const case_problem *c, const char *name)
{
    for (int p = 0; p < c->params.count; p++)
        if (case_same(c->params.item[p].name, name)) return c->params.item[p].value;
    fprintf(stderr, "%s: the table asks for a parameter \"%s\" that it does not declare\n", c->label, name);
    abort();
}

static void refuse(case_problem *c, const char *name, const char *want)
{
    if (!c->error[0]) snprintf(c->error, sizeof c->error, "%s: is \"%s\", want %s", name, case_text(c, name), want);
}

int64_t case_int(case_problem *c, const char *name)
{
    char *end;
    const int64_t value = strtoll(case_text(c, name), &end, 10);
    if (!*end) return value;
    refuse(c, name, "a whole number");
    return 0;
}

tgl_dtype case_dtype(case_problem *c, const char *name)
{
    const tgl_dtype dtype = tgl_dtype_named(case_text(c, name));
    if (!dtype) refuse(c, name, "a dtype such as bf16, e4m3, f32, i64");
    return dtype;
}

int case_word(const case_problem *c, const char *name, const char *words)
{
    const char *value = case_text(c, name);
    for (int i = 0; *words; i++) {
        const size_t bytes = strcspn(words, " ");
        if (bytes == strlen(value) && !memcmp(words, value, bytes)) return i;
        words += bytes + strspn(words + bytes, " ");
    }
    return -1;
}

tgl_status case_check_word(const case_problem *c, const char *name, const char *words)
{
    if (case_word(c, name, words) >= 0) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is \"%s\", want one of: %s", name, case_text(c, name), words);
}

case_tensor *case_add(case_problem *c, int index, const char *name, case_role role, tgl_dtype dtype, int ndim,
                      const int64_t *shape)
{
    if (index < 0 || index >= CASE_MAX_TENSORS || ndim < 0 || ndim > CASE_MAX_DIMS) abort();
    if (index >= c->num_tensors) c->num_tensors = index + 1;
    case_tensor *t = &c->tensors[index];
    *t = (case_tensor){ .name = name, .role = role, .dtype = dtype, .ndim = ndim, .compare = { .nan_payload = true } };
    uint64_t stride = 1; /* unsigned: sizes that make no sense are refused later, by layout_of() */
    for (int d = ndim - 1; d >= 0; d--) {
        t->shape[d] = shape[d];
        t->strides[d] = (int64_t)stride;
        stride *= (uint64_t)shape[d];
    }
    return t;
}

int64_t case_tensor_bytes(const case_tensor *t)
{
    int64_t n = tgl_dtype_bits(tgl_dtype_to_dlpack(t->dtype)) / 8;
    for (int d = 0; d < t->ndim; d++)
        if (t->strides[d] != 0 || t->shape[d] == 0) n *= t->shape[d];
    return n;
}

int64_t case_all_bytes(const case_problem *c)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name) bytes += case_tensor_bytes(&c->tensors[i]);
    return bytes;
}

void *case_memory(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    if (!memory) abort();
    return memory;
}

/* ---- memory ---- */

/* An allocation: guard bytes, `offset` elements that count as guard too, the slots, guard bytes. Guards show
 * writes beyond a tensor. There are none under ASan, which shows reads too, also in kernels on the emulated
 * device; nor with TEGULA_TEST_GUARDS=0, for compute-sanitizer. */
static int64_t guard_bytes(void)
{
    static int64_t bytes = -1;
    const char *wanted = getenv("TEGULA_TEST_GUARDS");
    if (bytes < 0) bytes = BACKEND_HAS_ASAN || (wanted && !strcmp(wanted, "0")) ? 0 : 4096;
    return bytes;
}

int case_num_rounds(void) { return scrub_is_on() ? SCRUB_PATTERNS : 2; }

/* Guards of inputs and of the workspace hold the poison of this round in all rounds: bytes that differ, so
 * that zeros written over them show. */
static int lasting_round(void) { return case_num_rounds() - 1; }

/* First all ones, which is NaN in every float format, then bytes that differ from their neighbours; or the
 * patterns of scrub.h. An unwritten element, or a guard overwritten with the poison of one round, shows in
 * the other. */
static unsigned char poison(int64_t i, int round)
{
    if (scrub_is_on()) return scrub_byte((scrub_pattern)round, i);
    return (unsigned char)(round == 0 ? 0xff : i * 157 + 59);
}

static int64_t front_bytes(const case_tensor *t) { return guard_bytes() + t->offset * t->element_bytes; }
static int64_t slot_bytes(const case_tensor *t) { return t->slots * t->element_bytes; }
static int64_t allocation_bytes(const case_tensor *t) { return front_bytes(t) + slot_bytes(t) + guard_bytes(); }

/* Slots, and where among them element [0, 0, ...] is. */
static tgl_status layout_of(case_tensor *t, int64_t *first)
{
    int64_t low = 0, high = 0, bytes;
    bool is_empty = false, fits = true;
    t->element_bytes = tgl_dtype_bits(tgl_dtype_to_dlpack(t->dtype)) / 8;
    if (t->offset < 0) return tgl_fail(TGL_ERR_ARGUMENT, "%s: offset is %" PRId64 ", want >= 0", t->name, t->offset);
    for (int d = 0; d < t->ndim; d++) {
        int64_t reach = 0;
        if (t->shape[d] < 0)
            return tgl_fail(TGL_ERR_ARGUMENT, "%s: size %d is %" PRId64 ", want >= 0", t->name, d, t->shape[d]);
        is_empty |= t->shape[d] == 0;
        fits &= !__builtin_mul_overflow(t->shape[d] - 1, t->strides[d], &reach);
        fits &= !__builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high);
    }
    if (is_empty) low = 0, high = -1;
    fits &= !__builtin_sub_overflow(high, low, &t->slots) && !__builtin_add_overflow(t->slots, 1, &t->slots);
    fits &= !__builtin_mul_overflow(t->slots, t->element_bytes, &bytes) && bytes < (int64_t)1 << 60;
    if (!is_empty && !fits) return tgl_fail(TGL_ERR_ARGUMENT, "%s: is too large", t->name);
    *first = -low;
    return TGL_OK;
}

static int64_t free_host_bytes(void)
{
    int64_t kilobytes = INT64_MAX / 1024; /* unknown: malloc decides */
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNd64, &kilobytes) == 1) break;
    if (f) fclose(f);
    return kilobytes * 1024;
}

/* On the host: values, initial values, and for a device one tensor at a time to compare. */
static void footprint(const case_problem *c, const backend *on, int64_t *host, int64_t *device)
{
    int64_t largest = 0;
    *host = *device = 0;
    for (int i = 0; i < c->num_tensors; i++) {
        const case_tensor *t = &c->tensors[i];
        if (!t->name) continue;
        if (t->period) {
            *host += t->period * t->element_bytes + (t->on_host && !backend_is_cpu(on) ? slot_bytes(t) : 0);
            *device += t->on_host || backend_is_cpu(on) ? 0 : slot_bytes(t);
            continue;
        }
        *host += slot_bytes(t) * (t->role == CASE_INOUT ? 2 : 1);
        *device += allocation_bytes(t);
        if (allocation_bytes(t) > largest) largest = allocation_bytes(t);
    }
    *host += largest;
    if (backend_is_cpu(on)) *host += *device;
}

tgl_status case_make_problem(const case_op *op, const case_params *params, case_problem *c)
{
    *c = (case_problem){ .params = *params };
    const int n = snprintf(c->label, sizeof c->label, "%s ", op->name);
    case_params_text(op, params, c->label + n, sizeof c->label - (size_t)n);
    TGL_TRY(op->setup(c));
    return c->error[0] ? tgl_fail(TGL_ERR_ARGUMENT, "%s", c->error) : TGL_OK;
}

static tgl_status lay_out(case_problem *c, int64_t first[CASE_MAX_TENSORS])
{
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name) TGL_TRY(layout_of(&c->tensors[i], &first[i]));
    return TGL_OK;
}

static tgl_status allocate(case_instance *k)
{
    case_problem *c = &k->problem;
    int64_t first[CASE_MAX_TENSORS] = { 0 }, host, device;
    TGL_TRY(lay_out(c, first));
    footprint(c, k->on, &host, &device);
    if (host > free_host_bytes())
        return tgl_fail(TGL_ERR_MEMORY, "needs %.1f GB of host memory, %.1f GB are free", (double)host * 1e-9,
                        (double)free_host_bytes() * 1e-9);
    for (int i = 0; i < c->num_tensors; i++) {
        case_tensor *t = &c->tensors[i];
        if (!t->name) continue;
        if (t->period) {
            TGL_TRY(case_table(k->on, t, c, &t->storage, &k->memory[i]));
            t->data = t->storage;
            k->tensors[i] = (DLTensor){ k->memory[i],
                                        t->on_host ? backend_host(k->on) : k->on->device,
                                        t->ndim,
                                        tgl_dtype_to_dlpack(t->dtype),
                                        t->shape,
                                        t->strides,
                                        0 };
            k->arguments.arg[i] = &k->tensors[i];
            continue;
        }
        t->storage = calloc((size_t)slot_bytes(t) + 16, 1); /* never NULL for an empty one */
        if (t->role == CASE_INOUT) t->initial = malloc((size_t)slot_bytes(t) + 16);
        if (!t->storage || (t->role == CASE_INOUT && !t->initial)) return tgl_fail(TGL_ERR_MEMORY, "no host memory");
        t->data = t->storage + first[i] * t->element_bytes;
        void *memory;
        TGL_TRY((t->on_host ? backend_host_alloc : backend_alloc)(k->on, (size_t)allocation_bytes(t), &memory));
        k->memory[i] = memory;
        k->memory_bytes[i] = (size_t)allocation_bytes(t);
        /* the distance from the aligned start is a byte_offset, which ops have to honour; an empty tensor has
         * no data at all */
        k->tensors[i] = (DLTensor){ t->slots ? k->memory[i] + guard_bytes() : NULL,
                                    t->on_host ? backend_host(k->on) : k->on->device,
                                    t->ndim,
                                    tgl_dtype_to_dlpack(t->dtype),
                                    t->shape,
                                    t->strides,
                                    t->slots ? (uint64_t)((t->offset + first[i]) * t->element_bytes) : 0 };
        k->arguments.arg[i] = &k->tensors[i];
    }
    k->arguments.problem = c;
    k->arguments.stream = k->on->stream;
    return TGL_OK;
}

typedef struct {
    unsigned char *image;
    int64_t first;
    int round;
} poisoning;

static void poison_chunk(void *context, int64_t begin, int64_t end)
{
    const poisoning *p = context;
    if (!scrub_is_on() && p->round == 0) { /* as below, in a fraction of the time */
        memset(p->image + begin, 0xff, (size_t)(end - begin));
        return;
    }
    for (int64_t b = begin; b < end; b++) p->image[b] = poison(p->first + b, p->round);
}

static tgl_status upload_bytes(const backend *on, char *to, const void *from, size_t bytes)
{
    if (on) return backend_upload(on, to, from, bytes);
    memcpy(to, from, bytes);
    return TGL_OK;
}

/* Poison in bytes begin .. end - 1 of an allocation. On the host if `on` is NULL. */
static tgl_status upload_poison(const backend *on, char *memory, int64_t begin, int64_t end, int round)
{
    if (begin >= end) return TGL_OK;
    unsigned char *image = malloc((size_t)(end - begin));
    if (!image) return tgl_fail(TGL_ERR_MEMORY, "no host memory");
    case_parallel(end - begin, 1, poison_chunk, &(poisoning){ image, begin, round });
    const tgl_status status = upload_bytes(on, memory + begin, image, (size_t)(end - begin));
    free(image);
    return status;
}

/* Poison in a whole allocation, but for `slots` (NULL: none) from `front` on. */
static tgl_status upload(const backend *on, char *memory, size_t bytes, int round, int64_t front, const void *slots,
                         int64_t slot_bytes)
{
    const int64_t end = (int64_t)bytes;
    if (!slots || slot_bytes == 0) return upload_poison(on, memory, 0, end, round);
    TGL_TRY(upload_poison(on, memory, 0, front, round));
    TGL_TRY(upload_bytes(on, memory + front, slots, (size_t)slot_bytes));
    return upload_poison(on, memory, front + slot_bytes, end, round);
}

static tgl_status upload_tensor(case_instance *k, int i, const char *slots, int round)
{
    const case_tensor *t = &k->problem.tensors[i];
    return upload(t->on_host ? NULL : k->on, k->memory[i], k->memory_bytes[i], round, front_bytes(t), slots,
                  slot_bytes(t));
}

static tgl_status upload_inputs(case_instance *k)
{
    for (int i = 0; i < k->problem.num_tensors; i++) {
        const case_tensor *t = &k->problem.tensors[i];
        if (t->name && t->role == CASE_IN && !t->period) TGL_TRY(upload_tensor(k, i, t->storage, lasting_round()));
    }
    return TGL_OK;
}

/* Zeros between guards. */
static tgl_status make_workspace(case_instance *k)
{
    case_arguments *a = &k->arguments;
    a->workspace_bytes = k->op->workspace ? k->op->workspace(a) : 0;
    if (a->workspace_bytes == 0) return TGL_OK;
    const size_t guard = (size_t)guard_bytes(), bytes = a->workspace_bytes + 2 * guard;
    void *memory;
    TGL_TRY(backend_alloc(k->on, bytes, &memory));
    k->workspace_memory = memory;
    a->workspace = k->workspace_memory + guard;
    void *zeros = case_memory((int64_t)a->workspace_bytes, 1);
    const tgl_status status =
        upload(k->on, memory, bytes, lasting_round(), (int64_t)guard, zeros, (int64_t)a->workspace_bytes);
    free(zeros);
    return status;
}

static case_instance *new_instance(const case_op *op, const backend *on)
{
    case_instance *k = calloc(1, sizeof *k);
    if (k) k->op = op, k->on = on;
    else tgl_fail(TGL_ERR_MEMORY, "no host memory");
    return k;
}

static tgl_status finish_open(case_instance *k, tgl_status status, case_instance **out)
{
    if (status == TGL_OK) status = upload_inputs(k);
    if (status == TGL_OK) status = make_workspace(k);
    if (status == TGL_OK) *out = k;
    else case_close(k);
    return status;
}

static void make_values(case_problem *c)
{
    char name[CASE_LABEL + 64];
    for (int i = 0; i < c->num_tensors; i++) {
        case_tensor *t = &c->tensors[i];
        if (!t->name || t->role == CASE_OUT || t->period) continue;
        snprintf(name, sizeof name, "%s %s", c->label, t->name);
        (t->fill ? t->fill : case_fill_bits)(c, t, case_seed(name));
        if (t->initial) memcpy(t->initial, t->storage, (size_t)slot_bytes(t));
    }
}

tgl_status case_open(const case_op *op, const case_params *params, const backend *on, case_instance **out)
{
    case_instance *k = new_instance(op, on);
    if (!k) return TGL_ERR_MEMORY;
    tgl_status status = case_make_problem(op, params, &k->problem);
    if (status == TGL_OK) status = allocate(k);
    if (status == TGL_OK) make_values(&k->problem);
    return finish_open(k, status, out);
}

tgl_status case_open_problem(const case_op *op, const case_problem *problem,
                             tgl_status (*load)(case_problem *c, void *context), void *context, const backend *on,
                             case_instance **out)
{
    case_instance *k = new_instance(op, on);
    if (!k) return TGL_ERR_MEMORY;
    k->problem = *problem;
    k->has_answers = true;
    tgl_status status = allocate(k);
    if (status == TGL_OK) status = load(&k->problem, context);
    return finish_open(k, status, out);
}

void case_close(case_instance *k)
{
    if (!k) return;
    for (int i = 0; i < k->problem.num_tensors; i++) {
        if (k->problem.tensors[i].period) continue;
        free(k->problem.tensors[i].storage);
        free(k->problem.tensors[i].initial);
        (k->problem.tensors[i].on_host ? backend_host_free : backend_free)(k->on, k->memory[i]);
    }
    backend_free(k->on, k->workspace_memory);
    free(k);
}

tgl_status case_poison(case_instance *k, int round)
{
    if (scrub_is_on()) scrub_choose((scrub_pattern)round);
    for (int i = 0; i < k->problem.num_tensors; i++) {
        const case_tensor *t = &k->problem.tensors[i];
        if (t->name && t->role != CASE_IN) TGL_TRY(upload_tensor(k, i, t->initial, round));
    }
    return TGL_OK;
}

/* ---- verification ---- */

/* Bytes begin .. end - 1 of an allocation are still `was` (NULL: poison). Positions are counted from
 * `origin`. */
static bool is_kept(const unsigned char *image, int64_t begin, int64_t end, const void *was, int round, int64_t origin,
                    const char *where, const char *name, case_report *report)
{
    const unsigned char *bytes = was;
    if (bytes && !memcmp(image + begin, bytes, (size_t)(end - begin))) return true;
    for (int64_t b = begin; b < end; b++) {
        const unsigned char want = bytes ? bytes[b - begin] : poison(b, round);
        if (image[b] == want) continue;
        snprintf(report->text, sizeof report->text, "%s: byte %" PRId64 " %s changed: is 0x%02x, was 0x%02x", name,
                 b - origin, where, image[b], want);
        report->result = CASE_FAILED;
        return false;
    }
    return true;
}

static void mark_run(void *context, int64_t element, int64_t slot, int64_t run)
{
    memset((char *)context + slot, 1, (size_t)run);
}

/* Slots of an output that belong to no element are as they were: poison, or the initial values. */
static bool gaps_are_kept(const case_tensor *t, const unsigned char *image, int round, case_report *report)
{
    int64_t count = 1;
    for (int d = 0; d < t->ndim; d++) count *= t->shape[d];
    if (t->slots == count) return true;
    char *is_element = calloc((size_t)t->slots + 1, 1);
    if (!is_element) abort();
    case_tensor all = *t;
    all.open_rows = NULL; /* open rows may be written */
    all.is_scratch = false;
    case_runs(&all, mark_run, is_element);
    const int64_t front = front_bytes(t), size = t->element_bytes;
    bool ok = true;
    for (int64_t s = 0; ok && s < t->slots; s++) {
        if (is_element[s]) continue;
        const int64_t at = front + s * size;
        ok = is_kept(image, at, at + size, t->initial ? t->initial + s * size : NULL, round, front, "between the rows",
                     t->name, report);
    }
    free(is_element);
    return ok;
}

typedef struct {
    const case_tensor *t;
    const char *seen;
    uint64_t hash;
} hashing;

static void hash_run(void *context, int64_t element, int64_t slot, int64_t run)
{
    hashing *h = context;
    const char *from = h->seen + slot * h->t->element_bytes;
    for (int64_t bytes = run * h->t->element_bytes; bytes > 0; bytes -= 8, from += 8) {
        uint64_t part = 0;
        memcpy(&part, from, (size_t)(bytes < 8 ? bytes : 8));
        h->hash = (h->hash ^ part) * 0x9e3779b97f4a7c15u;
        h->hash ^= h->hash >> 29;
    }
}

static bool verify_tensor(const case_tensor *t, const unsigned char *image, int round, case_report *report,
                          uint64_t *hash)
{
    const int64_t front = front_bytes(t), back = front + slot_bytes(t), end = allocation_bytes(t);
    const int guard_round = t->role == CASE_IN ? lasting_round() : round;
    const char *seen = (const char *)image + front;
    if (!is_kept(image, 0, front, NULL, guard_round, front, "before the data", t->name, report)) return false;
    if (!is_kept(image, back, end, NULL, guard_round, back, "after the data", t->name, report)) return false;
    if (t->role == CASE_IN) return is_kept(image, front, back, t->storage, 0, front, "of the input", t->name, report);
    if (!gaps_are_kept(t, image, round, report)) return false;
    if (hash) {
        hashing h = { t, seen, *hash };
        case_runs(t, hash_run, &h);
        *hash = h.hash;
    }
    return case_compare_tensor(t, seen, report);
}

static tgl_status verify_workspace(const case_instance *k, case_report *report)
{
    const int64_t begin = guard_bytes(), back = begin + (int64_t)k->arguments.workspace_bytes;
    const int64_t end = back + guard_bytes();
    const int lasting = lasting_round();
    unsigned char *image = malloc((size_t)end);
    void *zeros = case_memory(back - begin, 1);
    tgl_status status = image ? TGL_OK : tgl_fail(TGL_ERR_MEMORY, "no host memory");
    if (status == TGL_OK) status = backend_download(k->on, image, k->workspace_memory, (size_t)end);
    if (status == TGL_OK && is_kept(image, 0, begin, NULL, lasting, begin, "before it", "workspace", report) &&
        is_kept(image, begin, back, zeros, 0, begin, "of it", "workspace", report))
        is_kept(image, back, end, NULL, lasting, back, "after it", "workspace", report);
    free(image), free(zeros);
    return status;
}

tgl_status case_verify(case_instance *k, int round, case_report *report, uint64_t *hash)
{
    *report = (case_report){ .result = CASE_PASSED };
    if (hash) *hash = case_seed(k->problem.label);
    if (!k->has_answers) k->op->oracle(&k->problem);
    k->has_answers = true;
    TGL_TRY(backend_wait(k->on, k->arguments.stream));
    if (k->problem.is_undecided) {
        report->result = CASE_UNDECIDED;
        snprintf(report->text, sizeof report->text, "the oracle has no answer: exp or log1p decides");
    }
    for (int i = 0; i < k->problem.num_tensors && report->result == CASE_PASSED; i++) {
        const case_tensor *t = &k->problem.tensors[i];
        if (!t->name || t->period) continue;
        const bool is_readable = backend_is_cpu(k->on) || t->on_host;
        unsigned char *image = is_readable ? (unsigned char *)k->memory[i] : malloc(k->memory_bytes[i]);
        if (!image) return tgl_fail(TGL_ERR_MEMORY, "no host memory");
        tgl_status status = TGL_OK;
        if (!is_readable) status = backend_download(k->on, image, k->memory[i], k->memory_bytes[i]);
        if (status == TGL_OK) verify_tensor(t, image, round, report, hash);
        if (!is_readable) free(image);
        TGL_TRY(status);
    }
    if (report->result == CASE_PASSED && k->arguments.workspace) TGL_TRY(verify_workspace(k, report));
    return TGL_OK;
}

/* ---- one case ---- */

static tgl_status one_round(case_instance *k, int round, case_report *report, uint64_t *hash)
{
    TGL_TRY(case_poison(k, round));
    TGL_TRY(case_call(k));
    return case_verify(k, round, report, hash);
}

case_result case_check(const case_op *op, const case_params *params, const backend *on, case_report *report)
{
    case_instance *k;
    uint64_t hash = 0, first_hash = 0;
    *report = (case_report){ .result = CASE_PASSED };
    tgl_status status = case_open(op, params, on, &k);
    if (status != TGL_OK) {
        report->result = status == TGL_ERR_MEMORY ? CASE_SKIPPED : CASE_FAILED;
        report->status = status;
        snprintf(report->text, sizeof report->text, "%s", tgl_last_error());
        return report->result;
    }
    const int num_rounds = case_num_rounds();
    for (int round = 0; round < num_rounds && status == TGL_OK && report->result == CASE_PASSED; round++) {
        status = one_round(k, round, report, &hash);
        if (round == 0) first_hash = hash;
        if (status == TGL_OK && report->result == CASE_PASSED && hash != first_hash) {
            report->result = CASE_FAILED;
            snprintf(report->text, sizeof report->text, "two calls gave different bits");
        }
        const size_t n = strlen(report->text);
        if (report->result == CASE_FAILED && scrub_is_on())
            snprintf(report->text + n, sizeof report->text - n, " (pattern %s)", scrub_names[round]);
    }
    if (status != TGL_OK) {
        report->result = CASE_FAILED;
        report->status = status;
        snprintf(report->text, sizeof report->text, "%s: %s", tgl_status_name(status), tgl_last_error());
    }
    case_close(k);
    return report->result;
}

tgl_status case_call_without_data(const case_op *op, const case_params *params, DLDevice device)
{
    case_problem *c = case_memory(1, sizeof *c);
    DLTensor tensors[CASE_MAX_TENSORS];
    case_arguments a = { .problem = c };
    const backend on = { .device = device };
    int64_t first[CASE_MAX_TENSORS];
    tgl_status status = case_make_problem(op, params, c);
    if (status == TGL_OK) status = lay_out(c, first);
    for (int i = 0; status == TGL_OK && i < c->num_tensors; i++) {
        case_tensor *t = &c->tensors[i];
        if (!t->name) continue;
        tensors[i] = (DLTensor){ NULL,     t->on_host ? backend_host(&on) : device,
                                 t->ndim,  tgl_dtype_to_dlpack(t->dtype),
                                 t->shape, t->strides,
                                 0 };
        a.arg[i] = &tensors[i];
    }
    if (status == TGL_OK && op->workspace) a.workspace_bytes = op->workspace(&a);
    if (status == TGL_OK) status = op->run(&a);
    free(c);
    return status;
}

tgl_status case_describe(const case_op *op, const case_params *params, const backend *on, case_facts *facts)
{
    case_problem *c = case_memory(1, sizeof *c);
    int64_t first[CASE_MAX_TENSORS];
    tgl_status status = case_make_problem(op, params, c);
    if (status == TGL_OK) status = lay_out(c, first);
    if (status == TGL_OK) {
        memcpy(facts->label, c->label, sizeof facts->label);
        facts->bytes = op->bytes(c);
        footprint(c, on, &facts->host_bytes, &facts->device_bytes);
    }
    free(c);
    return status;
}
