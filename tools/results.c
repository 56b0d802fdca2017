/* SPDX-License-Identifier: MIT */
#include "results.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

/* One table for writing and reading, in the order of a line. */
typedef struct {
    const char *name;
    size_t offset, bytes;
} field; /* bytes 0: a number */
#define TEXT(name) { #name, offsetof(tool_row, name), sizeof((tool_row *)0)->name }
#define NUMBER(name) { #name, offsetof(tool_row, name), 0 }
// clang-format off: columns of a table
static const field fields[] = {
    TEXT(op),           TEXT(row),           TEXT(params),        TEXT(device),        TEXT(backend),
    TEXT(architecture), TEXT(driver),        TEXT(nvrtc),         TEXT(library),       TEXT(commit),
    TEXT(peer),         TEXT(timer),         TEXT(flush),         NUMBER(bytes),       NUMBER(calls),
    NUMBER(cold_us),    NUMBER(cold_min_us), NUMBER(cold_p90_us), NUMBER(cold_spread), NUMBER(warm_us),
    NUMBER(graph_us),   NUMBER(host_ns),     NUMBER(gb_per_s),    NUMBER(copy_us),     NUMBER(copy_share),
    NUMBER(gather_us),  NUMBER(gather_codes_us), NUMBER(empty_us), NUMBER(threads),    NUMBER(checked),
};
// clang-format on
enum { NUM_FIELDS = sizeof fields / sizeof *fields };

static char *text_of(const tool_row *row, const field *f) { return (char *)(uintptr_t)row + f->offset; }
static double *number_of(const tool_row *row, const field *f) { return (double *)(void *)text_of(row, f); }

void tool_row_clear(tool_row *row)
{
    memset(row, 0, sizeof *row);
    for (int i = 0; i < NUM_FIELDS; i++)
        if (!fields[i].bytes) *number_of(row, &fields[i]) = NAN;
}

tool_row *tool_rows_add(tool_rows *rows, const tool_row *row)
{
    tool_row *more = realloc(rows->rows, sizeof *more * (size_t)(rows->count + 1));
    if (!more) abort();
    rows->rows = more;
    more[rows->count] = *row;
    return &more[rows->count++];
}

const tool_row *tool_rows_find(const tool_rows *rows, const char *label)
{
    const tool_row *best = NULL;
    for (int i = 0; i < rows->count; i++) {
        const tool_row *r = &rows->rows[i];
        if (!strcmp(r->row, label) && (!best || r->cold_us < best->cold_us)) best = r;
    }
    return best;
}

bool tool_row_is_copy(const tool_row *row) { return !strcmp(row->op, "copy"); }

int tool_rows_of_ops(const tool_rows *rows)
{
    int count = 0;
    for (int i = 0; i < rows->count; i++) count += !tool_row_is_copy(&rows->rows[i]);
    return count;
}

void tool_rows_free(tool_rows *rows)
{
    free(rows->rows);
    *rows = (tool_rows){ 0 };
}

/* ---- writing ---- */

static void write_text(const char *text, FILE *file)
{
    fputc('"', file);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') fputc('\\', file);
        fputc((unsigned char)*c < 0x20 ? '?' : *c, file);
    }
    fputc('"', file);
}

void tool_row_write(const tool_row *row, FILE *file)
{
    const char *before = "{";
    for (int i = 0; i < NUM_FIELDS; i++) {
        const field *f = &fields[i];
        if (f->bytes && !*text_of(row, f)) continue; /* a text that does not apply */
        fprintf(file, "%s\"%s\": ", before, f->name);
        before = ", ";
        if (f->bytes) write_text(text_of(row, f), file);
        else if (isnan(*number_of(row, f))) fputs("null", file);
        else fprintf(file, "%.15g", round(1e4 * *number_of(row, f)) / 1e4); /* times to 0.1 ns are enough */
    }
    fputs("}\n", file);
}

/* ---- reading ---- */

static const char *skip(const char *at) { return at + strspn(at, " \t"); }

/* A text at `at`, into `to` if that is not NULL. NULL if it is none or too long. */
static const char *read_text(const char *at, char *to, size_t bytes)
{
    if (*at++ != '"') return NULL;
    size_t n = 0;
    for (; *at != '"'; at++) {
        if (*at == '\\' && *++at != '"' && *at != '\\') return NULL;
        if ((unsigned char)*at < 0x20) return NULL;
        if (to && n + 1 >= bytes) return NULL;
        if (to) to[n++] = *at;
    }
    if (to) to[n] = 0;
    return at + 1;
}

static const char *read_number(const char *at, double *to)
{
    *to = NAN;
    if (!strncmp(at, "null", 4)) return at + 4;
    char *end;
    if (*at != '-' && !isdigit((unsigned char)*at)) return NULL;
    *to = strtod(at, &end);
    return end == at || !isfinite(*to) ? NULL : end;
}

/* The object in `line`; false for anything that tool_row_write() would not write. */
static bool read_row(const char *line, tool_row *row)
{
    tool_row_clear(row);
    const char *at = skip(line);
    if (*at++ != '{') return false;
    for (;;) {
        char name[64];
        at = read_text(skip(at), name, sizeof name);
        if (!at || *(at = skip(at)) != ':') return false;
        at = skip(at + 1);
        const field *f = fields, *end = fields + NUM_FIELDS;
        while (f < end && strcmp(f->name, name)) f++;
        const bool is_text = *at == '"', is_null = !strncmp(at, "null", 4);
        if (f < end && !is_null && is_text != (f->bytes != 0)) return false;
        double number;
        at = is_text ? read_text(at, f < end ? text_of(row, f) : NULL, f < end ? f->bytes : 0)
                     : read_number(at, f < end && !f->bytes ? number_of(row, f) : &number);
        if (!at) return false;
        at = skip(at);
        if (*at == '}') break;
        if (*at++ != ',') return false;
    }
    return at[1 + strspn(at + 1, " \t\r\n")] == 0 && row->row[0];
}

/* Measurements of other programs (bench/python) lie beside ours in bench/results; their lines begin so. */
static bool is_of_another_program(const char *line)
{
    const char begin[] = "{\"bench\":";
    return !strncmp(skip(line), begin, sizeof begin - 1);
}

tgl_status tool_rows_read(const char *path, tool_rows *rows)
{
    FILE *file = fopen(path, "r");
    if (!file) return tgl_fail(TGL_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    bool ok = true;
    int number = 0;
    while (ok && getline(&line, &room, file) >= 0) {
        tool_row row;
        number++;
        if (line[strspn(line, " \t\r\n")] == 0 || is_of_another_program(line)) continue;
        ok = read_row(line, &row);
        if (ok) tool_rows_add(rows, &row);
    }
    free(line);
    fclose(file);
    return ok ? TGL_OK : tgl_fail(TGL_ERR_ARGUMENT, "%s:%d: not a row as tegula bench --json writes it", path, number);
}
