/* SPDX-License-Identifier: MIT
 * report_html.c - rows as a page: a summary and a roofline, then per op a table with bars of GB/s (ours, another library's,
 * a plain copy's) and, folded, time against size and the other times. It has no script and fetches nothing. What is
 * horizontal has its length in percent and what is text wraps, so that the page fits a phone; there a row of a table
 * becomes a paragraph in which each cell has its name (data-n). */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "results.h"

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfaf8;--card:#fff;--fg:#24231f;--soft:#6f6c64;--line:#d9d6cd;"
    "--bar:#b4552d;--copy:#3f6c8f;--warm:#d9a441;--peer:#a39d90;--good:#2f7d4f;--bad:#b3261e;"
    "--d0:#b4552d;--d1:#3f6c8f;--d2:#2f7d4f;--d3:#8a5aa8;--d4:#b28a1f;--d5:#6f6c64}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#191817;--card:#211f1d;--fg:#e9e6df;--soft:#9d998f;"
    "--line:#3a3833;--bar:#e08356;--copy:#7fb2d9;--warm:#e3bd6b;--peer:#7c776d;--good:#6cc391;--bad:#f2877d;"
    "--d0:#e08356;--d1:#7fb2d9;--d2:#6cc391;--d3:#c39ae0;--d4:#e3bd6b;--d5:#9d998f}}\n"
    "body{margin:0 auto;padding:2rem 1.2rem 4rem;max-width:76rem;background:var(--bg);color:var(--fg);"
    "font:15px/1.5 system-ui,sans-serif;overflow-wrap:break-word}\n"
    "h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.4rem 0 .6rem}p{margin:.3rem 0}\n"
    ".soft{color:var(--soft)}h2 small{font:13px ui-monospace,monospace;color:var(--soft)}\n"
    "a{color:var(--copy)}nav b{margin-right:.6em}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:1rem;margin:.8rem 0}\n"
    ".card h3{font-size:.95rem;margin:0 0 .5rem;font-weight:600}\n"
    "summary{cursor:pointer;color:var(--soft);margin-top:.6rem}\n"
    ".entry,nav a{display:inline-block;max-width:100%;margin-right:.9em}"
    ".key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.35em;vertical-align:-.05em}\n"
    "svg{display:block;width:100%;margin:.5rem 0;font:11px system-ui,sans-serif}\n"
    "svg text{fill:var(--soft)}svg .grid{stroke:var(--line)}svg .roof{stroke:var(--fg);stroke-width:1.5}\n"
    "svg .warm{fill:none;stroke:var(--warm);stroke-width:1.6}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:12.5px}\n"
    "th{font-weight:600;color:var(--soft);vertical-align:bottom}\n"
    "th,td{overflow-wrap:normal;padding:.25rem .4rem;text-align:right;border-bottom:1px solid var(--line)}\n"
    "td{white-space:nowrap}.left{text-align:left;white-space:normal}.good{color:var(--good)}.bad{color:var(--bad)}\n"
    ".plot{width:34%;text-align:left}.plot div{position:relative}\n"
    ".plot i{display:block;height:8px;border-radius:1px;margin:1px 0;background:var(--bar)}.plot .peer{background:var(--peer)}\n"
    ".plot .copy{position:absolute;top:-3px;bottom:-3px;width:2px;height:auto;margin:0;background:var(--copy)}\n"
    "@media(max-width:48rem){.wide{display:none}body{padding:1rem .6rem}.card{padding:.6rem}thead{display:none}"
    "table,tbody,tr,.plot{display:block;width:auto}tr{border-bottom:1px solid var(--line);padding:.4rem 0}"
    "td{display:inline-block;border:0;padding:0 .8em 0 0;white-space:normal}td:empty{display:none}"
    "td[data-n]::before{content:attr(data-n) ' ';color:var(--soft)}.plot{padding:.3rem 0}}\n";

/* The rows of one op. Parameters that all of them have (`common`) stand in the heading; one that half of them have is a
 * column; what else a row has is words in one more column. */
enum { MAX_COLUMNS = 6, NAME = 32 };
typedef struct {
    const tool_row **rows;
    int count, num_columns;
    char common[sizeof((tool_row *)0)->params], columns[MAX_COLUMNS][NAME];
    bool has_rest;
} selection;

/* The word of `words` ("a=1 b=2") that begins so; NULL if there is none. */
static const char *word_with(const char *words, const char *begin, size_t length)
{
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (!strncmp(at, begin, length)) return at;
    return NULL;
}

static bool has_word(const char *words, const char *word, size_t length)
{
    const char *found = word_with(words, word, length);
    return found && strcspn(found, " ") == length;
}

static void add_word(char *words, const char *word, size_t length)
{
    char *end = words + strlen(words);
    if (end != words) *end++ = ' ';
    memcpy(end, word, length); /* part of a text that has the same room */
    end[length] = 0;
}

/* "num_rows=", in a static buffer. */
static const char *named(const char *column)
{
    static char begin[NAME + 1];
    const size_t length = strnlen(column, NAME - 1);
    memcpy(begin, column, length);
    memcpy(begin + length, "=", 2);
    return begin;
}

static bool is_column(const selection *s, const char *word)
{
    for (int c = 0; c < s->num_columns; c++)
        if (!strncmp(word, named(s->columns[c]), strlen(s->columns[c]) + 1)) return true;
    return false;
}

/* The value of a column, in a static buffer; "" if the row has the default. */
static const char *value_of(const tool_row *row, const char *column)
{
    static char value[sizeof row->params];
    const size_t length = strlen(column) + 1;
    const char *word = word_with(row->params, named(column), length);
    value[0] = 0;
    if (word) add_word(value, word + length, strcspn(word + length, " "));
    return value;
}

/* The parameters of a row that are neither common nor columns, in a static buffer. */
static const char *rest(const selection *s, const tool_row *row)
{
    static char words[sizeof row->params];
    words[0] = 0;
    for (const char *at = row->params; *at; at += strcspn(at, " "), at += *at == ' ')
        if (!has_word(s->common, at, strcspn(at, " ")) && !is_column(s, at)) add_word(words, at, strcspn(at, " "));
    return words;
}

static void add_column(selection *s, const char *word)
{
    const size_t length = strcspn(word, "= ");
    int count = 0;
    for (int i = 0; i < s->count; i++) count += word_with(s->rows[i]->params, word, length + 1) != NULL;
    if (word[length] != '=' || length >= NAME || 2 * count < s->count) return;
    if (s->num_columns == MAX_COLUMNS || is_column(s, word) || has_word(s->common, word, strcspn(word, " "))) return;
    char *column = s->columns[s->num_columns++];
    column[0] = 0;
    add_word(column, word, length);
}

static void sort_parameters(selection *s)
{
    s->common[0] = 0;
    s->num_columns = 0;
    s->has_rest = false;
    for (const char *at = s->rows[0]->params; s->count > 1 && *at; at += strcspn(at, " "), at += *at == ' ') {
        const size_t length = strcspn(at, " ");
        bool is_common = memchr(at, '=', length) != NULL;
        for (int i = 1; i < s->count && is_common; i++) is_common = has_word(s->rows[i]->params, at, length);
        if (is_common) add_word(s->common, at, length);
    }
    for (int i = 0; i < s->count; i++)
        for (const char *at = s->rows[i]->params; *at; at += strcspn(at, " "), at += *at == ' ') add_column(s, at);
    for (int i = 0; i < s->count; i++) s->has_rest |= *rest(s, s->rows[i]) != 0;
}

/* The same row of `other`, if it was timed on this device; else NULL. */
static const tool_row *partner(const tool_rows *other, const tool_row *row)
{
    const tool_row *theirs = other ? tool_rows_find(other, row->row) : NULL;
    return theirs && theirs->cold_us > 0 && !strcmp(theirs->device, row->device) ? theirs : NULL;
}

/* The transposes have no domain in their names. */
static const char *domain_of(const char *op)
{
    return !strcmp(op, "batched_transpose") ? "transpose" : tool_text("%.*s", (int)strcspn(op, "_"), op);
}

/* Escaped, in one of a few static buffers that hold any field of a row. */
static const char *text(const char *s)
{
    static const char specials[] = "<>&\"'", *const names[] = { "lt", "gt", "amp", "quot", "#39" };
    static char buffers[8][6 * sizeof((tool_row *)0)->row];
    static int next;
    char *out = buffers[next++ % 8], *at = out;
    for (; *s; s++) {
        const char *special = strchr(specials, *s);
        at += special ? sprintf(at, "&%s;", names[special - specials]) : sprintf(at, "%c", *s);
    }
    *at = 0;
    return out;
}

/* Whom we are compared with; escaped. */
static const char *peer_of(const tool_rows *other)
{
    return other->rows[0].peer[0] ? text(other->rows[0].peer) : "an earlier run";
}

static void key(FILE *f, const char *color, const char *name)
{
    fprintf(f, "<span class='entry'><span class='key' style='background:var(--%s)'></span>%s</span> ", color, name);
}

/* ---- tables ---- */

/* "num_rows", which may be broken after its underscores. */
static void head_cell(FILE *f, const char *name)
{
    fprintf(f, "<th>");
    for (; *name; name++) {
        fputs(text((char[]){ *name, 0 }), f);
        if (*name == '_') fprintf(f, "<wbr/>");
    }
    fprintf(f, "</th>");
}

static void parameter_heads(FILE *f, const selection *s)
{
    fprintf(f, "<table><thead><tr>");
    for (int c = 0; c < s->num_columns; c++) head_cell(f, s->columns[c]);
    if (s->has_rest) fprintf(f, "<th class='left'>also</th>");
}

static void parameter_cells(FILE *f, const selection *s, const tool_row *r)
{
    fprintf(f, "<tr>");
    for (int c = 0; c < s->num_columns; c++)
        fprintf(f, "<td data-n='%s'>%s</td>", text(s->columns[c]), text(value_of(r, s->columns[c])));
    if (s->has_rest) fprintf(f, "<td class='left'>%s</td>", text(rest(s, r)));
}

static void cell(FILE *f, const char *name, double value)
{
    fprintf(f, "<td data-n='%s'>%s</td>", name, tool_number(value));
}

/* NaN without a copy; fmax() passes over that. */
static double copy_rate(const tool_row *row) { return 1e-3 * row->bytes / row->copy_us; }
static double rate_of(const tool_row *row, const tool_row *theirs) { return 1e-3 * row->bytes / theirs->cold_us; }

/* A bar each for ours and theirs, one below the other, and a mark for the copy; `end` GB/s is the whole width. */
static void bars_cell(FILE *f, const tool_row *r, const tool_row *theirs, double end)
{
    fprintf(f, "<td class='plot'><div><i style='width:%.1f%%'></i>", 100 * r->gb_per_s / end);
    if (theirs) fprintf(f, "<i class='peer' style='width:%.1f%%'></i>", 100 * rate_of(r, theirs) / end);
    if (r->copy_us > 0) fprintf(f, "<i class='copy' style='left:%.1f%%'></i>", 100 * copy_rate(r) / end);
    fprintf(f, "</div></td>");
}

static void bars(FILE *f, const selection *s, const tool_rows *other)
{
    double end = 0;
    for (int i = 0; i < s->count; i++) {
        const tool_row *r = s->rows[i], *theirs = partner(other, r);
        end = fmax(end, fmax(r->gb_per_s, copy_rate(r)));
        if (theirs) end = fmax(end, rate_of(r, theirs));
    }
    if (!(end > 0)) return;
    end *= 1.01; /* so that the mark of the fastest copy is inside */
    fprintf(f, "<p class='soft'>GB/s, caches cold (longer is better; a parameter that is blank has its default): ");
    key(f, "bar", text(s->rows[0]->op));
    if (other && other->count) key(f, "peer", peer_of(other));
    key(f, "copy", "a plain copy of as many bytes in the same run");
    fprintf(f, "</p>\n");
    parameter_heads(f, s);
    fprintf(f, "<th class='plot'></th><th>GB/s</th><th>of copy</th><th>cold us</th>%s</tr></thead><tbody>\n",
            other ? "<th>theirs us</th><th>ratio</th>" : "");
    for (int i = 0; i < s->count; i++) {
        const tool_row *r = s->rows[i], *theirs = other ? tool_rows_find(other, r->row) : NULL;
        parameter_cells(f, s, r);
        bars_cell(f, r, partner(other, r), end);
        cell(f, "GB/s", r->gb_per_s);
        fprintf(f, "<td data-n='of copy'>%s</td>", tool_percent(r->copy_share));
        cell(f, "cold us", r->cold_us);
        if (theirs) {
            const tool_verdict v = tool_judge(r, theirs);
            cell(f, "theirs us", theirs->cold_us);
            fprintf(f, "<td data-n='ratio' class='ratio%s' title='%s'>%s</td>",
                    v.is_met      ? " good"
                    : v.is_missed ? " bad"
                                  : "",
                    v.text, v.ratio);
        } else if (other) {
            fprintf(f, "<td></td><td></td>");
        }
        fprintf(f, "</tr>\n");
    }
    fprintf(f, "</tbody></table>\n");
}

static void other_times(FILE *f, const selection *s, const tool_rows *other)
{
    bool is_gpu = false;
    for (int i = 0; i < s->count; i++) is_gpu |= !isnan(s->rows[i]->graph_us);
    parameter_heads(f, s);
    fprintf(f, "<th>min us</th><th>90 %% us</th><th>warm us</th>%s%s</tr></thead><tbody>\n",
            is_gpu ? "<th>graph us</th><th>host us</th><th>empty us</th>" : "",
            other ? "<th class='left'>verdict</th>" : "");
    for (int i = 0; i < s->count; i++) {
        const tool_row *r = s->rows[i], *theirs = other ? tool_rows_find(other, r->row) : NULL;
        parameter_cells(f, s, r);
        cell(f, "min us", r->cold_min_us);
        cell(f, "90 % us", r->cold_p90_us);
        cell(f, "warm us", r->warm_us);
        if (is_gpu) {
            cell(f, "graph us", r->graph_us);
            cell(f, "host us", 1e-3 * r->host_ns);
            cell(f, "empty us", r->empty_us);
        }
        if (other) fprintf(f, "<td class='left'>%s</td>", theirs ? tool_judge(r, theirs).text : "");
        fprintf(f, "</tr>\n");
    }
    fprintf(f, "</tbody></table>\n");
}

/* ---- plots, both axes logarithmic; x in percent, y in pixels ---- */

enum { HEIGHT = 300, X_BEGIN = 4, X_END = 96, Y_BEGIN = HEIGHT - 26, Y_END = 18 };

/* Whole decades, low to high, drawn from `begin` to `end`. */
typedef struct { double low, high, begin, end; } axis;
static const axis empty_x = { INFINITY, 0, X_BEGIN, X_END }, empty_y = { INFINITY, 0, Y_BEGIN, Y_END };

static void widen(axis *a, double value)
{
    if (!(value > 0)) return;
    a->low = fmin(a->low, pow(10, floor(log10(value))));
    a->high = fmax(fmax(a->high, 10 * a->low), pow(10, ceil(log10(value))));
}

static double place(const axis *a, double value)
{
    return a->begin + (a->end - a->begin) * log10(value / a->low) / log10(a->high / a->low);
}

static void begin_plot(FILE *f, const axis *xs, const axis *ys, const char *unit, const char *label)
{
    bool is_odd = false; /* every other size is named only where there is room */
    fprintf(f, "<svg height='%d' role='img' aria-label='%s'>\n", HEIGHT, label);
    for (double v = xs->low; v <= xs->high * 1.001; v *= 10) {
        static const char *const names[] = { "B", "KB", "MB", "GB", "TB" };
        const int u = (int)fmin(4, fmax(0, floor(log10(v * 1.001) / 3)));
        const double x = place(xs, v);
        fprintf(f, "<line class='grid' x1='%.2f%%' x2='%.2f%%' y1='%d' y2='%d'/>", x, x, Y_END, Y_BEGIN);
        fprintf(f, "<text%s x='%.2f%%' y='%d' text-anchor='middle'>%g %s</text>\n", is_odd ? " class='wide'" : "", x,
                Y_BEGIN + 17, v / pow(1000, u), names[u]);
        is_odd = !is_odd;
    }
    for (double v = ys->low; v <= ys->high * 1.001; v *= 10) {
        const double y = place(ys, v);
        fprintf(f, "<line class='grid' x1='0' x2='100%%' y1='%.1f' y2='%.1f'/>", y, y);
        fprintf(f, "<text x='0' y='%.1f'>%.10g %s</text>\n", y - 3, v, unit);
    }
}

static void points(FILE *f, const tool_row *r, const axis *xs, const axis *ys)
{
    const double x = place(xs, r->bytes);
    fprintf(f, "<g><title>%s: cold %s us, warm %s us, copy %s us</title>", text(r->row), tool_number(r->cold_us),
            tool_number(r->warm_us), tool_number(r->copy_us));
    if (r->copy_us > 0)
        fprintf(f, "<rect x='%.2f%%' y='%.1f' width='16' height='3' transform='translate(-8)' fill='var(--copy)'/>", x,
                place(ys, r->copy_us) - 1.5);
    if (r->warm_us > 0) fprintf(f, "<circle class='warm' cx='%.2f%%' cy='%.1f' r='6.5'/>", x, place(ys, r->warm_us));
    fprintf(f, "<circle cx='%.2f%%' cy='%.1f' r='4.5' fill='var(--bar)'/></g>\n", x, place(ys, r->cold_us));
}

static void latency(FILE *f, const selection *s)
{
    axis xs = empty_x, ys = empty_y;
    for (int i = 0; i < s->count; i++) {
        const tool_row *r = s->rows[i];
        if (!(r->bytes > 0)) return;
        widen(&xs, r->bytes);
        widen(&ys, r->cold_us);
        widen(&ys, r->warm_us);
        widen(&ys, r->copy_us);
    }
    if (s->count < 2) return;
    fprintf(f, "<h3>Time of a call against bytes moved (both axes logarithmic)</h3>\n<p class='soft'>");
    key(f, "bar", "cold");
    key(f, "warm", "warm");
    key(f, "copy", "plain copy, cold");
    fprintf(f, "</p>\n");
    begin_plot(f, &xs, &ys, "us", "time against bytes");
    for (int i = 0; i < s->count; i++) points(f, s->rows[i], &xs, &ys);
    fprintf(f, "</svg>\n");
}

/* ---- the roofline ---- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The roof at one size: the median rate of copies that are at most an eighth of a decade off. NaN without any. */
static double roof_at(const tool_rows *rows, double bytes, double *rates)
{
    int count = 0;
    for (int i = 0; i < rows->count; i++)
        if (fabs(log10(rows->rows[i].bytes / bytes)) <= 0.125 && rows->rows[i].copy_us > 0)
            rates[count++] = copy_rate(&rows->rows[i]);
    qsort(rates, (size_t)count, sizeof *rates, compare_doubles);
    return count ? rates[count / 2] : (double)NAN;
}

static void roof(FILE *f, const tool_rows *rows, const axis *xs, const axis *ys)
{
    double *rates = case_memory(rows->count, sizeof *rates), last_bytes = 0, last = 0;
    for (double bytes = xs->low; bytes <= xs->high * 1.001; bytes *= pow(10, 0.25)) {
        const double rate = roof_at(rows, bytes, rates);
        if (isnan(rate)) continue;
        if (last_bytes > 0)
            fprintf(f, "<line class='roof' x1='%.2f%%' y1='%.1f' x2='%.2f%%' y2='%.1f'/>\n", place(xs, last_bytes),
                    place(ys, last), place(xs, bytes), place(ys, rate));
        last_bytes = bytes;
        last = rate;
    }
    free(rates);
}

enum { MAX_DOMAINS = 6 }; /* as many colours as the style has; the last is that of all others */

/* The domains in the order of their first rows; gives their number. */
static int find_domains(const tool_rows *rows, char domains[MAX_DOMAINS][NAME])
{
    int count = 0;
    for (int i = 0; i < rows->count && count < MAX_DOMAINS; i++) {
        int d = 0;
        while (d < count && strncmp(domains[d], domain_of(rows->rows[i].op), NAME - 1)) d++;
        if (d == count && !tool_row_is_copy(&rows->rows[i]))
            snprintf(domains[count++], NAME, "%.31s", domain_of(rows->rows[i].op));
    }
    return count;
}

/* Rows for which a gather over the bus was timed. */
static bool has_host_tables(const tool_rows *rows)
{
    for (int i = 0; i < rows->count; i++)
        if (!isnan(rows->rows[i].gather_us)) return true;
    return false;
}

static void roofline(FILE *f, const tool_rows *rows)
{
    char domains[MAX_DOMAINS][NAME];
    const int num_domains = find_domains(rows, domains);
    axis xs = empty_x, ys = empty_y;
    int count = 0;
    for (const tool_row *r = rows->rows; r < rows->rows + rows->count; r++) {
        if (tool_row_is_copy(r) || !(r->bytes > 0) || !(r->gb_per_s > 0)) continue;
        widen(&xs, r->bytes);
        widen(&ys, r->gb_per_s);
        widen(&ys, copy_rate(r));
        count++;
    }
    if (count < 2) return;
    fprintf(f,
            "<div class='card'><h3>Roofline: GB/s against bytes moved (both axes logarithmic)</h3>\n<p class='soft'>");
    key(f, "fg", "the roof, a plain copy of as many bytes: launch cost limits it on the left, memory on the right");
    for (int d = 0; d < num_domains; d++) key(f, tool_text("d%d", d), text(domains[d]));
    if (has_host_tables(rows))
        fprintf(
            f,
            "<br/>Rows that read a table in host memory (at=host, at=huge) are far below the roof: the bus limits them.");
    fprintf(f, "</p>\n");
    begin_plot(f, &xs, &ys, "GB/s", "GB/s against bytes");
    for (const tool_row *r = rows->rows; r < rows->rows + rows->count; r++) {
        if (tool_row_is_copy(r) || !(r->bytes > 0) || !(r->gb_per_s > 0)) continue;
        int d = 0;
        while (d < num_domains - 1 && strncmp(domains[d], domain_of(r->op), NAME - 1)) d++;
        fprintf(f,
                "<a href='#%s'><title>%s: %s us, %s GB/s, %s of copy</title>"
                "<circle class='row' cx='%.2f%%' cy='%.1f' r='3.5' fill='var(--d%d)' fill-opacity='.75'/></a>\n",
                text(r->op), text(r->row), tool_number(r->cold_us), tool_number(r->gb_per_s),
                tool_percent(r->copy_share), place(&xs, r->bytes), place(&ys, r->gb_per_s), d);
    }
    roof(f, rows, &xs, &ys);
    fprintf(f, "</svg></div>\n");
}

/* ---- the page ---- */

static void labelled(FILE *f, const char *label, const char *value)
{
    if (*value) fprintf(f, ", %s %s", label, text(value));
}

/* Files of record are not all of one commit. */
static void commits(FILE *f, const tool_rows *rows)
{
    for (int i = 0; i < rows->count; i++) {
        int j = 0;
        while (j < i && strcmp(rows->rows[j].commit, rows->rows[i].commit)) j++;
        if (j == i) labelled(f, i ? "" : "commit", rows->rows[i].commit);
    }
}

/* One line for the copies of all runs. */
static void copies(FILE *f, const tool_rows *rows)
{
    double low = INFINITY, high = 0;
    const tool_row *some = NULL;
    for (const tool_row *r = rows->rows; r < rows->rows + rows->count; r++) {
        if (!tool_row_is_copy(r) || !(r->gb_per_s > 0)) continue;
        some = r;
        low = fmin(low, r->gb_per_s);
        high = fmax(high, r->gb_per_s);
    }
    if (!some) return;
    fprintf(f, "<p>A plain copy, %s: <strong>%s", text(some->params), tool_number(low));
    if (high > low) fprintf(f, " to %s", tool_number(high));
    fprintf(f, " GB/s</strong> (read plus written).</p>\n");
}

static void head(FILE *f, const tool_rows *rows, const tool_rows *other)
{
    const tool_row *first = &rows->rows[0];
    fprintf(f,
            "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'/><meta name='viewport' "
            "content='width=device-width'/><title>tegula on %s</title><style>\n%s</style></head>\n"
            "<body><h1>%s</h1>\n<p class='soft'>tegula %s",
            text(first->device), style, text(first->device), text(first->library));
    commits(f, rows);
    labelled(f, "driver", first->driver);
    labelled(f, "NVRTC", first->nvrtc);
    if (!isnan(first->threads)) fprintf(f, ", %.0f threads", first->threads);
    fprintf(f, "; timer: %s; caches flushed by a %s before each cold call</p>\n", text(first->timer),
            text(first->flush));
    copies(f, rows);
    if (other && other->count)
        fprintf(f, "<p>Compared with %s on %s; a ratio below 1 means that ours is faster.</p>\n", peer_of(other),
                text(other->rows[0].device));
}

static bool is_first_of_op(const tool_rows *rows, int i)
{
    if (tool_row_is_copy(&rows->rows[i])) return false;
    for (int j = 0; j < i; j++)
        if (!strcmp(rows->rows[j].op, rows->rows[i].op)) return false;
    return true;
}

/* The rows that a reader looks at first: slowest against theirs. */
static void worst(FILE *f, const tool_rows *rows, const tool_rows *other)
{
    enum { NUM_WORST = 5 };
    fprintf(f, "<p>Slowest against theirs:</p>\n<ol>");
    double last = INFINITY;
    for (int n = 0; n < NUM_WORST; n++) {
        const tool_row *found = NULL;
        double ratio = 0;
        for (int i = 0; i < rows->count; i++) {
            const tool_row *r = &rows->rows[i], *theirs = partner(other, r);
            if (!theirs || !(r->cold_us / theirs->cold_us < last) || r->cold_us / theirs->cold_us <= ratio) continue;
            found = r;
            ratio = r->cold_us / theirs->cold_us;
        }
        if (!found) break;
        fprintf(f, "<li>%.2f: <a href='#%s'>%s</a></li>\n", ratio, text(found->op), text(found->row));
        last = ratio;
    }
    fprintf(f, "</ol>\n");
}

/* Ops by domain, as links. */
static void contents(FILE *f, const tool_rows *rows)
{
    char domain[NAME] = "";
    fprintf(f, "<nav>");
    for (int i = 0; i < rows->count; i++) {
        const char *op = rows->rows[i].op;
        if (!is_first_of_op(rows, i)) continue;
        if (strncmp(domain, domain_of(op), NAME - 1)) {
            snprintf(domain, sizeof domain, "%.31s", domain_of(op));
            fprintf(f, "<p><b>%s</b></p>\n", text(domain));
        }
        fprintf(f, "<a href='#%s'>%s</a>\n", text(op), text(op));
    }
    fprintf(f, "</nav>\n");
}

static void summary(FILE *f, const tool_rows *rows, const tool_rows *other)
{
    int num_ops = 0, num_rows = 0, num_shares = 0, num_compared = 0, num_met = 0;
    double sum_of_logs = 0, *shares = case_memory(rows->count, sizeof *shares);
    for (int i = 0; i < rows->count; i++) {
        const tool_row *r = &rows->rows[i], *theirs = partner(other, r);
        if (tool_row_is_copy(r)) continue;
        num_ops += is_first_of_op(rows, i);
        num_rows++;
        if (!isnan(r->copy_share)) shares[num_shares++] = r->copy_share;
        if (!theirs || !(r->cold_us > 0)) continue;
        num_compared++;
        num_met += tool_judge(r, theirs).is_met;
        sum_of_logs += log(theirs->cold_us / r->cold_us);
    }
    fprintf(f, "<div class='card'><h3>Summary</h3>\n<p>%s of %s", tool_count(num_rows, "row"),
            tool_count(num_ops, "op"));
    qsort(shares, (size_t)num_shares, sizeof *shares, compare_doubles);
    if (num_shares)
        fprintf(f, "; half of them at %s of a plain copy's rate or more", tool_percent(shares[num_shares / 2]));
    fprintf(f, ".</p>\n");
    free(shares);
    if (num_compared) {
        fprintf(f,
                "<p>Against %s: <strong>%.2f</strong> times as fast (geometric mean of %s); %d met the goal (%s), "
                "%d did not.</p>\n",
                peer_of(other), exp(sum_of_logs / num_compared), tool_count(num_compared, "row"), num_met,
                tool_goal(&other->rows[0]), num_compared - num_met);
        worst(f, rows, other);
    }
    contents(f, rows);
    fprintf(f, "</div>\n");
}

tgl_status tool_report_html(const char *path, const tool_rows *rows, const tool_rows *other)
{
    FILE *f = fopen(path, "w");
    if (!f) return tgl_fail(TGL_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
    selection s = { .rows = case_memory(rows->count, sizeof *s.rows) };
    head(f, rows, other);
    summary(f, rows, other);
    roofline(f, rows);
    for (int i = 0; i < rows->count; i++) {
        const char *op = rows->rows[i].op;
        if (!is_first_of_op(rows, i)) continue;
        s.count = 0;
        for (const tool_row *r = &rows->rows[i]; r < rows->rows + rows->count; r++)
            if (!strcmp(r->op, op) && !isnan(r->cold_us)) s.rows[s.count++] = r;
        if (s.count == 0) continue;
        sort_parameters(&s);
        fprintf(f, "<h2 id='%s'>%s <small>%s</small></h2>\n", text(op), text(op), text(s.common));
        fprintf(f, "<div class='card'>");
        bars(f, &s, other);
        fprintf(f, "<details><summary>time against size; other times%s</summary>\n", other ? ", verdicts" : "");
        latency(f, &s);
        other_times(f, &s, other);
        fprintf(f, "</details></div>\n");
    }
    fprintf(f, "</body></html>\n");
    free(s.rows);
    return fclose(f) == 0 ? TGL_OK : tgl_fail(TGL_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
}
