/* SPDX-License-Identifier: MIT */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "tool.h"

bool tool_is_terminal(void)
{
    static int is_terminal = -1;
    if (is_terminal < 0) {
        const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
        is_terminal = isatty(STDOUT_FILENO) && !(no_color && *no_color) && !(term && !strcmp(term, "dumb"));
    }
    return is_terminal;
}

const char *tool_bold(void) { return tool_is_terminal() ? "\033[1m" : ""; }
const char *tool_dim(void) { return tool_is_terminal() ? "\033[2m" : ""; }
const char *tool_green(void) { return tool_is_terminal() ? "\033[32m" : ""; }
const char *tool_red(void) { return tool_is_terminal() ? "\033[31m" : ""; }
const char *tool_plain(void) { return tool_is_terminal() ? "\033[0m" : ""; }

void tool_progress(const char *format, ...)
{
    static bool is_shown;
    if (!isatty(STDERR_FILENO)) return;
    if (is_shown || format) fprintf(stderr, "\r\033[K");
    is_shown = format != NULL;
    if (!format) return;
    char line[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%.78s", line); /* a line that wraps could not be overwritten */
    fflush(stderr);
}

const char *tool_done(int64_t done, int64_t total, double begin)
{
    const double gone = tool_seconds() - begin, left = done > 0 ? gone * (double)(total - done) / (double)done : 0;
    if (gone < 2 || done == 0) return tool_text("[%lld/%lld]", (long long)done, (long long)total);
    if (left < 100) return tool_text("[%lld/%lld, %.0f s left]", (long long)done, (long long)total, left);
    return tool_text("[%lld/%lld, %.0f min left]", (long long)done, (long long)total, left / 60);
}

const char *tool_text(const char *format, ...)
{
    static char buffers[16][512];
    static int next;
    char *text = buffers[next++ % 16];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof *buffers, format, arguments);
    va_end(arguments);
    return text;
}

/* Decimals that make three or four significant digits. */
static int digits(double value) { return fabs(value) >= 100 ? 0 : fabs(value) >= 10 ? 1 : 2; }

const char *tool_size(double bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    int u = 0;
    for (; bytes >= 1024 && u < 4; u++) bytes /= 1024;
    return tool_text("%.*f %s", u ? digits(bytes) : 0, bytes, units[u]);
}

const char *tool_number(double value) { return isnan(value) ? "-" : tool_text("%.*f", digits(value), value); }

const char *tool_percent(double share) { return isnan(share) ? "-" : tool_text("%.0f %%", 100 * share); }

const char *tool_count(int n, const char *thing) { return tool_text("%d %s%s", n, thing, n == 1 ? "" : "s"); }

const char *tool_time(double us)
{
    const double scaled = us >= 1e6 ? us / 1e6 : us >= 1e3 ? us / 1e3 : us;
    const char *unit = us >= 1e6 ? "s" : us >= 1e3 ? "ms" : "us";
    return isnan(us) ? "-" : tool_text("%.*f %s", digits(scaled), scaled, unit);
}

double tool_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- tables ---- */

enum { MAX_COLUMNS = 16 };

struct tool_table {
    int columns, rows;
    bool is_right[MAX_COLUMNS];
    char **cells; /* rows of `columns`, the heads first */
};

static char *copy(const char *text)
{
    char *s = strdup(text);
    if (!s) abort();
    return s;
}

tool_table *tool_table_new(int columns, const char *const *heads)
{
    tool_table *t = calloc(1, sizeof *t);
    if (!t || columns > MAX_COLUMNS) abort();
    t->columns = columns;
    const char *names[MAX_COLUMNS];
    for (int c = 0; c < columns; c++) {
        t->is_right[c] = heads[c][0] == '>';
        names[c] = heads[c] + t->is_right[c];
    }
    tool_table_row(t, names);
    return t;
}

void tool_table_row(tool_table *t, const char *const *cells)
{
    char **more = realloc(t->cells, sizeof *more * (size_t)(t->rows + 1) * (size_t)t->columns);
    if (!more) abort();
    t->cells = more;
    for (int c = 0; c < t->columns; c++) t->cells[t->rows * t->columns + c] = copy(cells[c]);
    t->rows++;
}

/* Columns that a terminal shows: escape sequences and the later bytes of UTF-8 have no width. */
static int width_of(const char *text)
{
    int width = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '\033') {
            while (*c && *c != 'm') c++;
            if (!*c) break;
        } else if (((unsigned char)*c & 0xc0) != 0x80) {
            width++;
        }
    }
    return width;
}

int tool_width(void)
{
    struct winsize size;
    const bool is_known = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    return is_known ? size.ws_col : INT_MAX;
}

/* Bytes of the text's first line of `width` columns: up to a space, else up to the end of a part of a name, else as much as
 * fits. A text with escape sequences is one line. */
static int first_line(const char *text, int width)
{
    if (width_of(text) <= width || strchr(text, '\033')) return (int)strlen(text);
    const char *end = text, *space = NULL, *part = NULL;
    for (int w = 0; w < width || ((unsigned char)*end & 0xc0) == 0x80; end++) {
        w += ((unsigned char)*end & 0xc0) != 0x80;
        if (end > text && *end == ' ') space = end;
        if (strchr("_=,", *end) && w <= width) part = end + 1;
    }
    return (int)((*end == ' ' ? end : space ? space : part ? part : end) - text);
}

static void print_wrapped(const char *text, int column, int end)
{
    enum { MIN_WIDTH = 16 };
    const int room = end - column, width = room > MIN_WIDTH ? room : MIN_WIDTH;
    int indent = 0;
    for (int length; *text; text += length, text += *text == ' ') {
        length = first_line(text, width);
        printf("%*s%.*s\n", indent, "", length, text);
        indent = column;
    }
}

void tool_print_wrapped(const char *text, int column) { print_wrapped(text, column, tool_width()); }

void tool_print_help(const char *text, int column)
{
    enum { MAX_WIDTH = 80 };
    print_wrapped(text, column, tool_width() < MAX_WIDTH ? tool_width() : MAX_WIDTH);
}

/* Makes the widest columns narrower, as far as they may be, until a line fits. Numbers and colours stay whole. */
static void fit(const tool_table *t, int width[MAX_COLUMNS])
{
    enum { MIN_WIDTH = 16 };
    int total = 2 * (t->columns - 1);
    for (int c = 0; c < t->columns; c++) total += width[c];
    while (total > tool_width()) {
        int widest = -1;
        for (int c = 0; c < t->columns; c++)
            if (!t->is_right[c] && width[c] > MIN_WIDTH && (widest < 0 || width[c] > width[widest])) widest = c;
        if (widest < 0) return;
        width[widest]--;
        total--;
    }
}

/* A row, in as many lines as its longest cell takes. */
static void print_table_row(const tool_table *t, char *const *cells, const int width[MAX_COLUMNS])
{
    const char *rest[MAX_COLUMNS];
    for (int c = 0; c < t->columns; c++) rest[c] = cells[c];
    for (bool is_more = true; is_more;) {
        is_more = false;
        int gap = 0; /* not printed yet, so that no line ends in blanks */
        for (int c = 0; c < t->columns; c++) {
            const int length = t->is_right[c] ? (int)strlen(rest[c]) : first_line(rest[c], width[c]);
            const int blanks = width[c] - width_of(tool_text("%.*s", length, rest[c]));
            if (length) printf("%*s%.*s", gap + (t->is_right[c] ? blanks : 0), "", length, rest[c]);
            gap = (length ? t->is_right[c] ? 0 : blanks : gap + width[c]) + 2;
            rest[c] += length;
            rest[c] += *rest[c] == ' ';
            is_more |= *rest[c] != 0;
        }
        if (is_more) printf("\n");
    }
}

void tool_table_print(tool_table *t)
{
    if (t->rows == 1) t->rows = 0;
    int width[MAX_COLUMNS] = { 0 };
    for (int i = 0; i < t->rows * t->columns; i++) {
        const int w = width_of(t->cells[i]);
        if (w > width[i % t->columns]) width[i % t->columns] = w;
    }
    fit(t, width);
    for (int r = 0; r < t->rows; r++) {
        printf("%s", r == 0 ? tool_dim() : "");
        print_table_row(t, t->cells + r * t->columns, width);
        printf("%s\n", r == 0 ? tool_plain() : "");
        for (int c = 0; c < t->columns; c++) free(t->cells[r * t->columns + c]);
    }
    free(t->cells);
    free(t);
}
