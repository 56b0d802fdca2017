/* SPDX-License-Identifier: MIT
 * report_html.c - rows as a page: a summary, then per op bars of GB/s beside the copy's rate and another library's, time
 * against size, a table. It has no script and fetches nothing. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "results.h"

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfaf8;--card:#fff;--fg:#24231f;--soft:#6f6c64;--line:#d9d6cd;"
    "--bar:#b4552d;--copy:#3f6c8f;--warm:#d9a441;--peer:#a39d90;--good:#2f7d4f;--bad:#b3261e}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#191817;--card:#211f1d;--fg:#e9e6df;--soft:#9d998f;"
    "--line:#3a3833;--bar:#e08356;--copy:#7fb2d9;--warm:#e3bd6b;--peer:#7c776d;--good:#6cc391;--bad:#f2877d}}\n"
    "body{margin:0 auto;padding:2rem 1.2rem 4rem;max-width:78rem;background:var(--bg);color:var(--fg);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.4rem 0 .6rem}p{margin:.3rem 0}\n"
    ".soft{color:var(--soft)}h2 small{font:13px ui-monospace,monospace;color:var(--soft)}\n"
    "a{color:var(--copy)}nav a{display:inline-block;margin-right:1em}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:1rem;margin:.8rem 0;"
    "overflow-x:auto}\n"
    ".card h3{font-size:.95rem;margin:0 0 .5rem;font-weight:600}\n"
    ".key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .35em 0 .9em;"
    "vertical-align:-.05em}\n"
    ".key:first-child{margin-left:0}\n"
    "svg{display:block;width:100%;height:auto;min-width:38rem;font:12px system-ui,sans-serif}\n"
    "svg text{fill:var(--fg)}svg .name{font:12px ui-monospace,monospace}svg .soft{fill:var(--soft)}\n"
    "svg .value{fill:var(--soft);paint-order:stroke;stroke:var(--card);stroke-width:5px}\n"
    "svg .grid{stroke:var(--line)}svg .axis{stroke:var(--soft)}\n"
    "svg .warm{fill:none;stroke:var(--warm);stroke-width:1.6}\n"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:12.5px}\n"
    "th{font-weight:600;color:var(--soft)}\n"
    "th,td{padding:.25rem .4rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\n"
    "th:first-child,td:first-child,.left{text-align:left}.good{color:var(--good)}.bad{color:var(--bad)}\n";

/* The rows of one op. `common` are the parameters that all of them have: they stand in the heading. */
typedef struct { const tool_row **rows; int count; char common[sizeof((tool_row *)0)->params]; } selection;

/* Is the word one of those of `words`? */
static bool has_word(const char *words, const char *word, int length)
{
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if ((int)strcspn(at, " ") == length && !memcmp(at, word, (size_t)length)) return true;
    return false;
}

static void add_word(char *words, const char *word, int length)
{
    const size_t n = strlen(words);
    sprintf(words + n, "%s%.*s", n ? " " : "", length, word);   /* part of a text that has the same room */
}

static void find_common(selection *s)
{
    s->common[0] = 0;
    const char *at = s->rows[0]->params;
    for (int length; s->count > 1 && *at; at += length, at += *at == ' ') {
        length = (int)strcspn(at, " ");
        bool is_common = memchr(at, '=', (size_t)length) != NULL;
        for (int i = 1; i < s->count && is_common; i++) is_common = has_word(s->rows[i]->params, at, length);
        if (is_common) add_word(s->common, at, length);
    }
}

/* The other parameters of a row, in a static buffer. */
static const char *rest(const selection *s, const tool_row *row)
{
    static char words[sizeof row->params];
    words[0] = 0;
    const char *at = row->params;
    for (int length; *at; at += length, at += *at == ' ') {
        length = (int)strcspn(at, " ");
        if (!has_word(s->common, at, length)) add_word(words, at, length);
    }
    return words[0] ? words : row->params;
}

/* The same row of `other`, if it was timed on this device; else NULL. */
static const tool_row *partner(const tool_rows *other, const tool_row *row)
{
    const tool_row *theirs = other ? tool_rows_find(other, row->row) : NULL;
    return theirs && theirs->cold_us > 0 && !strcmp(theirs->device, row->device) ? theirs : NULL;
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

static void key(FILE *f, const char *color, const char *name)
{
    fprintf(f, "<span class='key' style='background:var(--%s)'></span>%s", color, name);
}

/* ---- bars ---- */

enum { WIDTH = 1160, BAR = 24, RIGHT = 150 };

/* The next round number (1, 2 or 5 times a power of ten) at or above x. */
static double round_up(double x)
{
    const double power = pow(10, floor(log10(x)));
    return x <= power ? power : x <= 2 * power ? 2 * power : x <= 5 * power ? 5 * power : 10 * power;
}

/* NaN without a copy; fmax() passes over that. */
static double copy_rate(const tool_row *row) { return 1e-3 * row->bytes / row->copy_us; }

/* The bar whose top is at y; `left` is where 0 GB/s is. Theirs, if there is one, is a thinner one below. */
static void bar(FILE *f, const selection *s, const tool_row *r, const tool_row *theirs, double y, int left, double scale)
{
    fprintf(f, "<g><title>%s: %s us, %s GB/s</title>", text(r->row), tool_number(r->cold_us),
            tool_number(r->gb_per_s));
    fprintf(f, "<text class='name' x='%d' y='%.1f' text-anchor='end'>%s</text>", left - 8, y + 13,
            text(rest(s, r)));
    fprintf(f, "<rect x='%d' y='%.1f' width='%.1f' height='%d' rx='2' fill='var(--bar)'/>", left, y,
            r->gb_per_s * scale, theirs ? BAR - 12 : BAR - 7);
    if (theirs)
        fprintf(f, "<rect x='%d' y='%.1f' width='%.1f' height='4' rx='1' fill='var(--peer)'/>", left, y + BAR - 11,
                1e-3 * r->bytes / theirs->cold_us * scale);
    if (!isnan(r->copy_us))
        fprintf(f, "<rect x='%.1f' y='%.1f' width='3' height='%d' fill='var(--copy)'/>",
                left + copy_rate(r) * scale - 1.5, y - 2, BAR - 3);
    fprintf(f, "<text class='value' x='%.1f' y='%.1f'>%s", left + fmax(r->gb_per_s, copy_rate(r)) * scale + 8,
            y + 13, tool_number(r->gb_per_s));
    if (!isnan(r->copy_share)) fprintf(f, ", %.0f %% of copy", 100 * r->copy_share);
    fprintf(f, "</text></g>\n");
}

static void bars(FILE *f, const selection *s, const tool_rows *other)
{
    const char *op = text(s->rows[0]->op);
    const int height = BAR * s->count;
    int longest = 0;
    double largest = 0;
    for (int i = 0; i < s->count; i++) {
        const tool_row *theirs = partner(other, s->rows[i]);
        longest = (int)fmax(longest, (double)strlen(rest(s, s->rows[i])));
        largest = fmax(largest, fmax(s->rows[i]->gb_per_s, copy_rate(s->rows[i])));
        if (theirs) largest = fmax(largest, 1e-3 * s->rows[i]->bytes / theirs->cold_us);
    }
    if (!(largest > 0)) return;
    const int left = longest < 70 ? 73 * longest / 10 + 16 : 540;   /* a letter is at most 7.3 wide */
    const double step = round_up(largest / 6), end = step * ceil(largest / step);
    const double scale = (WIDTH - left - RIGHT) / end;
    fprintf(f, "<div class='card'><h3>GB/s, caches cold (longer is better)</h3>\n<p class='soft'>");
    key(f, "bar", op);
    key(f, "copy", "a plain copy of as many bytes in the same run");
    if (other && other->count) key(f, "peer", other->rows[0].peer[0] ? text(other->rows[0].peer) : "the earlier run");
    fprintf(f, "</p>\n<svg viewBox='0 0 %d %d' role='img' aria-label='GB/s of %s by size'>\n", WIDTH,
            height + 34, op);
    for (double v = 0; v <= end * 1.0001; v += step) {
        const double x = left + v * scale;
        fprintf(f, "<line class='%s' x1='%.1f' x2='%.1f' y1='0' y2='%d'/>", v == 0 ? "axis" : "grid", x, x,
                height + 4);
        fprintf(f, "<text class='soft' x='%.1f' y='%d' text-anchor='middle'>%g</text>\n", x, height + 22, v);
    }
    for (int i = 0; i < s->count; i++)
        bar(f, s, s->rows[i], partner(other, s->rows[i]), BAR * i + 3, left, scale);
    fprintf(f, "</svg></div>\n");
}

/* ---- time against size, both logarithmic ---- */

enum { HEIGHT = 360, X_BEGIN = 64, X_END = WIDTH - 30, Y_BEGIN = HEIGHT - 44, Y_END = 10 };

/* Whole decades, low to high, drawn from `begin` to `end`. */
typedef struct { double low, high, begin, end; } axis;

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

static void decades(FILE *f, const axis *xs, const axis *ys)
{
    for (double v = xs->low; v <= xs->high * 1.001; v *= 10) {
        static const char *const names[] = { "B", "KB", "MB", "GB", "TB" };
        const int unit = (int)fmin(4, fmax(0, floor(log10(v * 1.001) / 3)));
        const double x = place(xs, v);
        fprintf(f, "<line class='grid' x1='%.1f' x2='%.1f' y1='%d' y2='%d'/>", x, x, Y_END, Y_BEGIN);
        fprintf(f, "<text class='soft' x='%.1f' y='%d' text-anchor='middle'>%g %s</text>\n", x, Y_BEGIN + 17,
                v / pow(1000, unit), names[unit]);
    }
    for (double v = ys->low; v <= ys->high * 1.001; v *= 10) {
        const double y = place(ys, v);
        fprintf(f, "<line class='grid' x1='%d' x2='%d' y1='%.1f' y2='%.1f'/>", X_BEGIN, X_END, y, y);
        fprintf(f, "<text class='soft' x='%d' y='%.1f' text-anchor='end'>%.10g</text>\n", X_BEGIN - 7, y + 4,
                v);
    }
    fprintf(f, "<text class='soft' x='%d' y='%d' text-anchor='end'>bytes moved</text>\n", X_END, HEIGHT - 8);
}

static void points(FILE *f, const tool_row *r, const axis *xs, const axis *ys)
{
    const double x = place(xs, r->bytes);
    fprintf(f, "<g><title>%s: cold %s us, warm %s us, copy %s us</title>", text(r->row),
            tool_number(r->cold_us), tool_number(r->warm_us), tool_number(r->copy_us));
    if (r->copy_us > 0)
        fprintf(f, "<rect x='%.1f' y='%.1f' width='16' height='3' fill='var(--copy)'/>", x - 8,
                place(ys, r->copy_us) - 1.5);
    if (r->warm_us > 0)
        fprintf(f, "<circle class='warm' cx='%.1f' cy='%.1f' r='6.5'/>", x, place(ys, r->warm_us));
    fprintf(f, "<circle cx='%.1f' cy='%.1f' r='4.5' fill='var(--bar)'/></g>\n", x, place(ys, r->cold_us));
}

static void latency(FILE *f, const selection *s)
{
    axis xs = { INFINITY, 0, X_BEGIN, X_END }, ys = { INFINITY, 0, Y_BEGIN, Y_END };
    for (int i = 0; i < s->count; i++) {
        const tool_row *r = s->rows[i];
        if (!(r->bytes > 0)) return;
        widen(&xs, r->bytes);
        widen(&ys, r->cold_us);
        widen(&ys, r->warm_us);
        widen(&ys, r->copy_us);
    }
    if (s->count < 2) return;
    fprintf(f, "<div class='card'><h3>Time of a call in us against bytes moved (both axes logarithmic)</h3>\n"
               "<p class='soft'>");
    key(f, "bar", "cold");
    key(f, "warm", "warm");
    key(f, "copy", "plain copy, cold");
    fprintf(f, "</p>\n<svg viewBox='0 0 %d %d' role='img' aria-label='time of %s against bytes'>\n", WIDTH,
            HEIGHT, text(s->rows[0]->op));
    decades(f, &xs, &ys);
    for (int i = 0; i < s->count; i++) points(f, s->rows[i], &xs, &ys);
    fprintf(f, "</svg></div>\n");
}

/* ---- the table ---- */

static void cells(FILE *f, int count, const double *values)
{
    for (int i = 0; i < count; i++) fprintf(f, "<td>%s</td>", tool_number(values[i]));
}

static void verdict_cells(FILE *f, const tool_row *ours, const tool_row *theirs)
{
    tool_verdict v = { .text = "-", .ratio = "-" };
    if (theirs) v = tool_judge(ours, theirs);
    const double their_us = theirs ? theirs->cold_us : (double)NAN;
    fprintf(f, "<td>%s</td><td>%s</td><td class='left%s'>%s</td>", tool_number(their_us), v.ratio,
            v.is_met ? " good" : v.is_missed ? " bad" : "", v.text);
}

static void table(FILE *f, const selection *s, const tool_rows *other)
{
    bool is_gpu = false;
    for (int i = 0; i < s->count; i++) is_gpu |= !isnan(s->rows[i]->graph_us);
    fprintf(f, "<div class='card'><table><tr><th>parameters</th><th>cold us</th><th>GB/s</th><th>of copy</th>"
               "%s<th>min</th><th>90 %%</th><th>warm us</th>%s</tr>\n",
            other ? "<th>theirs us</th><th>ratio</th><th class='left'>verdict</th>" : "",
            is_gpu ? "<th>graph us</th><th>host us</th><th>empty us</th>" : "");
    for (int i = 0; i < s->count; i++) {
        const tool_row *r = s->rows[i];
        fprintf(f, "<tr><td>%s</td>", text(rest(s, r)));
        cells(f, 2, (double[]){ r->cold_us, r->gb_per_s });
        fprintf(f, "<td>%s</td>", tool_percent(r->copy_share));
        if (other) verdict_cells(f, r, tool_rows_find(other, r->row));
        cells(f, 3, (double[]){ r->cold_min_us, r->cold_p90_us, r->warm_us });
        if (is_gpu) cells(f, 3, (double[]){ r->graph_us, 1e-3 * r->host_ns, r->empty_us });
        fprintf(f, "</tr>\n");
    }
    fprintf(f, "</table></div>\n");
}

/* ---- the page ---- */

static void labelled(FILE *f, const char *label, const char *value)
{
    if (*value) fprintf(f, ", %s %s", label, text(value));
}

static void head(FILE *f, const tool_rows *rows, const tool_rows *other)
{
    const tool_row *first = &rows->rows[0];
    fprintf(f, "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'/><meta name='viewport' "
               "content='width=device-width'/><title>tegula bench: %s</title><style>\n%s</style></head>\n"
               "<body><h1>%s</h1>\n<p class='soft'>tegula %s",
            text(first->device), style, text(first->device), text(first->library));
    labelled(f, "commit", first->commit);
    labelled(f, "driver", first->driver);
    labelled(f, "NVRTC", first->nvrtc);
    if (!isnan(first->threads)) fprintf(f, ", %.0f threads", first->threads);
    fprintf(f, "; timer: %s; caches flushed by a %s before each cold call</p>\n", text(first->timer),
            text(first->flush));
    for (const tool_row *r = first; r < first + rows->count; r++)
        if (!strcmp(r->op, "copy"))
            fprintf(f, "<p>A plain copy, %s: %s, <strong>%s GB/s</strong> (read plus written).</p>\n",
                    text(r->params), tool_time(r->cold_us), tool_number(r->gb_per_s));
    if (other && other->count)
        fprintf(f, "<p>Compared with %s on %s; a ratio below 1 means that ours is faster.</p>\n",
                other->rows[0].peer[0] ? text(other->rows[0].peer) : "an earlier run",
                text(other->rows[0].device));
}

static bool is_first_of_op(const tool_rows *rows, int i)
{
    if (!strcmp(rows->rows[i].op, "copy")) return false;
    for (int j = 0; j < i; j++)
        if (!strcmp(rows->rows[j].op, rows->rows[i].op)) return false;
    return true;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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

static void summary(FILE *f, const tool_rows *rows, const tool_rows *other)
{
    int num_ops = 0, num_rows = 0, num_shares = 0, num_compared = 0, num_met = 0;
    double sum_of_logs = 0, *shares = case_memory(rows->count, sizeof *shares);
    for (int i = 0; i < rows->count; i++) {
        const tool_row *r = &rows->rows[i], *theirs = partner(other, r);
        if (!strcmp(r->op, "copy")) continue;
        num_ops += is_first_of_op(rows, i);
        num_rows++;
        if (!isnan(r->copy_share)) shares[num_shares++] = r->copy_share;
        if (!theirs || !(r->cold_us > 0)) continue;
        num_compared++;
        num_met += tool_judge(r, theirs).is_met;
        sum_of_logs += log(theirs->cold_us / r->cold_us);
    }
    fprintf(f, "<div class='card'><h3>Summary</h3>\n<p>%d rows of %d ops", num_rows, num_ops);
    qsort(shares, (size_t)num_shares, sizeof *shares, compare_doubles);
    if (num_shares) fprintf(f, "; half of them at %s of a plain copy's rate or more", tool_percent(shares[num_shares / 2]));
    fprintf(f, ".</p>\n");
    free(shares);
    if (num_compared) {
        fprintf(f, "<p>Against the other: <strong>%.2f</strong> times as fast (geometric mean of %d rows); %d rows met their "
                   "goal, %d did not.</p>\n",
                exp(sum_of_logs / num_compared), num_compared, num_met, num_compared - num_met);
        worst(f, rows, other);
    }
    fprintf(f, "<nav>");
    for (int i = 0; i < rows->count; i++)
        if (is_first_of_op(rows, i))
            fprintf(f, "<a href='#%s'>%s</a>\n", text(rows->rows[i].op), text(rows->rows[i].op));
    fprintf(f, "</nav></div>\n");
}

tgl_status tool_report_html(const char *path, const tool_rows *rows, const tool_rows *other)
{
    FILE *f = fopen(path, "w");
    if (!f) return tgl_fail(TGL_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
    selection s = { case_memory(rows->count, sizeof *s.rows), 0, "" };
    head(f, rows, other);
    summary(f, rows, other);
    for (int i = 0; i < rows->count; i++) {
        const char *op = rows->rows[i].op;
        if (!is_first_of_op(rows, i)) continue;
        s.count = 0;
        for (const tool_row *r = &rows->rows[i]; r < rows->rows + rows->count; r++)
            if (!strcmp(r->op, op) && !isnan(r->cold_us)) s.rows[s.count++] = r;
        if (s.count == 0) continue;
        find_common(&s);
        fprintf(f, "<h2 id='%s'>%s <small>%s</small></h2>\n", text(op), text(op), text(s.common));
        bars(f, &s, other);
        latency(f, &s);
        table(f, &s, other);
    }
    fprintf(f, "</body></html>\n");
    free(s.rows);
    return fclose(f) == 0 ? TGL_OK : tgl_fail(TGL_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
}
