/* SPDX-License-Identifier: MIT
 * report_html.c - rows as a page: bars of GB/s against the copy rate, time against size, a table. No
 * script, nothing fetched. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "results.h"

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfaf8;--card:#fff;--fg:#24231f;--soft:#6f6c64;--line:#d9d6cd;"
    "--bar:#b4552d;--copy:#3f6c8f;--warm:#d9a441;--good:#2f7d4f;--bad:#b3261e}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#191817;--card:#211f1d;--fg:#e9e6df;--soft:#9d998f;"
    "--line:#3a3833;--bar:#e08356;--copy:#7fb2d9;--warm:#e3bd6b;--good:#6cc391;--bad:#f2877d}}\n"
    "body{margin:0 auto;padding:2rem 1.2rem 4rem;max-width:78rem;background:var(--bg);color:var(--fg);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.2rem;margin:2.4rem 0 .6rem}p{margin:.3rem 0}\n"
    ".soft{color:var(--soft)}\n"
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
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:12.5px}\n"
    "th{font-weight:600;color:var(--soft)}\n"
    "th,td{padding:.25rem .4rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\n"
    "th:first-child,td:first-child,.left{text-align:left}.good{color:var(--good)}.bad{color:var(--bad)}\n";

static void text(FILE *f, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') fputs("&lt;", f);
        else if (*s == '>') fputs("&gt;", f);
        else if (*s == '&') fputs("&amp;", f);
        else if (*s == '"') fputs("&quot;", f);
        else fputc(*s, f);
    }
}

/* The next round number (1, 2 or 5 times a power of ten) at or above x. */
static double round_up(double x)
{
    const double power = pow(10, floor(log10(x)));
    return x <= power ? power : x <= 2 * power ? 2 * power : x <= 5 * power ? 5 * power : 10 * power;
}

/* ---- bars ---- */

enum { WIDTH = 1160, BAR = 24, RIGHT = 150 };

static bool is_of(const tool_row *row, const char *op)
{
    return !strcmp(row->op, op) && !isnan(row->cold_us);
}
static double copy_rate(const tool_row *row) { return 1e-3 * row->bytes / row->copy_us; }

/* One row of the plot at height y; `left` is where 0 GB/s is. */
static void bar(FILE *f, const tool_row *r, double y, int left, double scale)
{
    double right = r->gb_per_s;
    fprintf(f, "<g><title>");
    text(f, r->row);
    fprintf(f, ": %s us, %s GB/s</title>", tool_number(r->cold_us), tool_number(r->gb_per_s));
    fprintf(f, "<text class='name' x='%d' y='%.1f' text-anchor='end'>", left - 8, y + 13);
    text(f, r->params);
    fprintf(f, "</text><rect x='%d' y='%.1f' width='%.1f' height='%d' rx='2' fill='var(--bar)'/>", left, y,
            r->gb_per_s * scale, BAR - 7);
    if (!isnan(r->copy_us)) {
        right = fmax(right, copy_rate(r));
        fprintf(f, "<rect x='%.1f' y='%.1f' width='3' height='%d' fill='var(--copy)'/>",
                left + copy_rate(r) * scale - 1.5, y - 2, BAR - 3);
    }
    fprintf(f, "<text class='value' x='%.1f' y='%.1f'>%s", left + right * scale + 8, y + 13,
            tool_number(r->gb_per_s));
    if (!isnan(r->copy_share)) fprintf(f, ", %.0f %% of copy", 100 * r->copy_share);
    fprintf(f, "</text></g>\n");
}

static void key(FILE *f, const char *color, const char *name)
{
    fprintf(f, "<span class='key' style='background:var(--%s)'></span>%s", color, name);
}

static void bars(FILE *f, const tool_rows *rows, const char *op)
{
    int count = 0, longest = 0;
    double largest = 0;
    for (int i = 0; i < rows->count; i++) {
        const tool_row *r = &rows->rows[i];
        if (!is_of(r, op)) continue;
        count++;
        if ((int)strlen(r->params) > longest) longest = (int)strlen(r->params);
        largest = fmax(largest, fmax(r->gb_per_s, isnan(r->copy_us) ? 0 : copy_rate(r)));
    }
    if (!(largest > 0)) return;
    const int left = longest < 70 ? 73 * longest / 10 + 16 : 540; /* a letter is 7.3 wide, or a little less */
    const double step = round_up(largest / 6), end = step * ceil(largest / step);
    const double scale = (WIDTH - left - RIGHT) / end;
    fprintf(f, "<div class='card'><h3>GB/s, caches cold (longer is better)</h3>\n<p class='soft'>");
    key(f, "bar", op);
    key(f, "copy", "a plain copy of as many bytes in the same run");
    fprintf(f, "</p>\n<svg viewBox='0 0 %d %d' role='img' aria-label='GB/s of %s by size'>\n", WIDTH,
            BAR * count + 34, op);
    for (double v = 0; v <= end * 1.0001; v += step) {
        const double x = left + v * scale;
        fprintf(f, "<line class='%s' x1='%.1f' x2='%.1f' y1='0' y2='%d'/>", v == 0 ? "axis" : "grid", x, x,
                BAR * count + 4);
        fprintf(f, "<text class='soft' x='%.1f' y='%d' text-anchor='middle'>%g</text>\n", x, BAR * count + 22,
                v);
    }
    int n = 0;
    for (int i = 0; i < rows->count; i++)
        if (is_of(&rows->rows[i], op)) bar(f, &rows->rows[i], BAR * n++ + 3, left, scale);
    fprintf(f, "</svg></div>\n");
}

/* ---- time against size ---- */

enum { PLOT_HEIGHT = 360, MARGIN_LEFT = 64, MARGIN_BOTTOM = 44, MARGIN_TOP = 10, MARGIN_RIGHT = 30 };

typedef struct { double low, high; } range;     /* powers of ten */

static double along(const range *r, double value, double from, double to)
{
    return from + (to - from) * (log10(value) - log10(r->low)) / (log10(r->high) - log10(r->low));
}

static void widen(range *r, double value)
{
    if (!(value > 0)) return;
    r->low = fmin(r->low, value);
    r->high = fmax(r->high, value);
}

static double x_of(const range *r, double bytes)
{
    return along(r, bytes, MARGIN_LEFT, WIDTH - MARGIN_RIGHT);
}
static double y_of(const range *r, double us)
{
    return along(r, us, PLOT_HEIGHT - MARGIN_BOTTOM, MARGIN_TOP);
}

static int by_bytes(const void *a, const void *b)
{
    const tool_row *x = *(const tool_row *const *)a, *y = *(const tool_row *const *)b;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static void decades(FILE *f, const range *xs, const range *ys)
{
    const int top = MARGIN_TOP, bottom = PLOT_HEIGHT - MARGIN_BOTTOM, left = MARGIN_LEFT,
              right = WIDTH - MARGIN_RIGHT;
    for (double v = xs->low; v <= xs->high * 1.001; v *= 10) {
        static const char *const names[] = { "B", "KB", "MB", "GB", "TB" };
        const int unit = (int)fmin(4, fmax(0, floor(log10(v * 1.001) / 3)));
        const double x = x_of(xs, v);
        fprintf(f, "<line class='grid' x1='%.1f' x2='%.1f' y1='%d' y2='%d'/>", x, x, top, bottom);
        fprintf(f, "<text class='soft' x='%.1f' y='%d' text-anchor='middle'>%g %s</text>\n", x, bottom + 17,
                v / pow(1000, unit), names[unit]);
    }
    for (double v = ys->low; v <= ys->high * 1.001; v *= 10) {
        const double y = y_of(ys, v);
        fprintf(f, "<line class='grid' x1='%d' x2='%d' y1='%.1f' y2='%.1f'/>", left, right, y, y);
        fprintf(f, "<text class='soft' x='%d' y='%.1f' text-anchor='end'>%.10g</text>\n", left - 7, y + 4, v);
    }
}

static void points(FILE *f, const tool_row *r, const range *xs, const range *ys)
{
    const double x = x_of(xs, r->bytes);
    fprintf(f, "<g><title>");
    text(f, r->row);
    fprintf(f, ": cold %s us, warm %s us, copy %s us</title>", tool_number(r->cold_us),
            tool_number(r->warm_us), tool_number(r->copy_us));
    if (r->warm_us > 0)
        fprintf(f,
                "<circle cx='%.1f' cy='%.1f' r='6.5' fill='none' stroke-width='1.6' stroke='var(--warm)'/>",
                x, y_of(ys, r->warm_us));
    fprintf(f, "<circle cx='%.1f' cy='%.1f' r='4.5' fill='var(--bar)'/></g>\n", x, y_of(ys, r->cold_us));
}

/* The smallest range of whole decades that holds it. */
static range whole_decades(range r)
{
    const double low = pow(10, floor(log10(r.low)));
    return (range){ low, fmax(pow(10, ceil(log10(r.high))), 10 * low) };
}

static void latency(FILE *f, const tool_rows *rows, const char *op)
{
    const tool_row **sorted = malloc(sizeof *sorted * (size_t)(rows->count + 1));
    if (!sorted) abort();
    int count = 0;
    range xs = { INFINITY, 0 }, ys = { INFINITY, 0 };
    for (int i = 0; i < rows->count; i++) {
        const tool_row *r = &rows->rows[i];
        if (!is_of(r, op) || !(r->bytes > 0)) continue;
        sorted[count++] = r;
        widen(&xs, r->bytes);
        widen(&ys, r->cold_us);
        widen(&ys, r->warm_us);
        widen(&ys, r->copy_us);
    }
    if (count >= 2) {
        qsort(sorted, (size_t)count, sizeof *sorted, by_bytes);
        xs = whole_decades(xs);
        ys = whole_decades(ys);
        fprintf(
            f,
            "<div class='card'><h3>Time of a call in us against bytes moved (both axes logarithmic)</h3>\n");
        fprintf(f, "<p class='soft'>");
        key(f, "bar", "cold");
        key(f, "warm", "warm");
        key(f, "copy", "plain copy, cold");
        fprintf(f, "</p>\n<svg viewBox='0 0 %d %d' role='img' aria-label='time of %s against bytes'>\n",
                WIDTH, PLOT_HEIGHT, op);
        decades(f, &xs, &ys);
        fprintf(f, "<polyline fill='none' stroke='var(--copy)' stroke-width='2' points='");
        for (int i = 0; i < count; i++)
            if (sorted[i]->copy_us > 0)
                fprintf(f, "%.1f,%.1f ", x_of(&xs, sorted[i]->bytes), y_of(&ys, sorted[i]->copy_us));
        fprintf(f, "'/>\n");
        for (int i = 0; i < count; i++) points(f, sorted[i], &xs, &ys);
        fprintf(f, "<text class='soft' x='%d' y='%d' text-anchor='end'>bytes moved</text></svg></div>\n",
                WIDTH - MARGIN_RIGHT, PLOT_HEIGHT - 8);
    }
    free(sorted);
}

/* ---- the table ---- */

static void cell(FILE *f, double value) { fprintf(f, "<td>%s</td>", tool_number(value)); }

static void verdict_cells(FILE *f, const tool_row *ours, const tool_row *theirs)
{
    if (!theirs) {
        fprintf(f, "<td>-</td><td>-</td><td class='left'>-</td>");
        return;
    }
    char verdict[96] = "another device";
    tool_verdict v = VERDICT_NONE;
    if (!strcmp(ours->device, theirs->device)) v = tool_judge(ours, theirs, verdict, sizeof verdict);
    cell(f, theirs->cold_us);
    fprintf(f, "<td>%.3f</td><td class='left%s'>%s</td>", ours->cold_us / theirs->cold_us,
            v == VERDICT_MET ? " good" : v == VERDICT_NOT_MET ? " bad" : "", verdict);
}

static void table(FILE *f, const tool_rows *rows, const tool_rows *other, const char *op)
{
    bool has_gpu_columns = false;
    for (int i = 0; i < rows->count; i++)
        has_gpu_columns |= is_of(&rows->rows[i], op) && !isnan(rows->rows[i].graph_us);
    fprintf(
        f, "<div class='card'><table><tr><th>parameters</th><th>cold us</th><th>GB/s</th><th>of copy</th>");
    if (other) fprintf(f, "<th>theirs us</th><th>ratio</th><th class='left'>verdict</th>");
    fprintf(f, "<th>min</th><th>90 %%</th><th>warm us</th>%s</tr>\n",
            has_gpu_columns ? "<th>graph us</th><th>host us</th><th>empty us</th>" : "");
    for (int i = 0; i < rows->count; i++) {
        const tool_row *r = &rows->rows[i];
        if (!is_of(r, op)) continue;
        fprintf(f, "<tr><td>");
        text(f, r->params);
        fprintf(f, "</td>");
        cell(f, r->cold_us);
        cell(f, r->gb_per_s);
        if (isnan(r->copy_share)) fprintf(f, "<td>-</td>");
        else fprintf(f, "<td>%.0f %%</td>", 100 * r->copy_share);
        if (other) verdict_cells(f, r, tool_rows_find(other, r->row));
        cell(f, r->cold_min_us);
        cell(f, r->cold_p90_us);
        cell(f, r->warm_us);
        if (has_gpu_columns) {
            cell(f, r->graph_us);
            cell(f, 1e-3 * r->host_ns);
            cell(f, r->empty_us);
        }
        fprintf(f, "</tr>\n");
    }
    fprintf(f, "</table></div>\n");
}

/* ---- the page ---- */

static bool is_first_of_op(const tool_rows *rows, int i)
{
    for (int j = 0; j < i; j++)
        if (!strcmp(rows->rows[j].op, rows->rows[i].op)) return false;
    return true;
}

static void labelled(FILE *f, const char *label, const char *value)
{
    fprintf(f, "%s", label);
    text(f, value);
}

static void head(FILE *f, const tool_rows *rows, const tool_rows *other)
{
    const tool_row *first = &rows->rows[0];
    fprintf(f, "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'/><meta name='viewport' "
               "content='width=device-width'/><title>tegula bench: ");
    text(f, first->device);
    fprintf(f, "</title><style>\n%s</style></head><body>\n<h1>", style);
    text(f, first->device);
    fprintf(f, "</h1>\n<p class='soft'>tegula %s", first->library);
    if (first->commit[0]) labelled(f, ", commit ", first->commit);
    if (first->driver[0]) labelled(f, ", driver ", first->driver);
    if (first->nvrtc[0]) labelled(f, ", NVRTC ", first->nvrtc);
    if (!isnan(first->threads)) fprintf(f, ", %.0f threads", first->threads);
    fprintf(f, "; timer: %s; caches flushed by a %s before each cold call</p>\n", first->timer, first->flush);
    for (int i = 0; i < rows->count; i++) {
        const tool_row *r = &rows->rows[i];
        if (strcmp(r->op, "copy")) continue;
        fprintf(f, "<p>A plain copy, ");
        text(f, r->params);
        fprintf(f, ": %s, <strong>%s GB/s</strong> (bytes read plus bytes written).</p>\n",
                tool_time(r->cold_us), tool_number(r->gb_per_s));
    }
    if (other && other->count) {
        fprintf(f, "<p>Compared with ");
        text(f, other->rows[0].peer[0] ? other->rows[0].peer : "an earlier run");
        fprintf(f, " on ");
        text(f, other->rows[0].device);
        fprintf(f, "; a ratio below 1 means that ours is faster.</p>\n");
    }
}

tgl_status tool_report_html(const char *path, const tool_rows *rows, const tool_rows *other)
{
    FILE *f = fopen(path, "w");
    if (!f) return tgl_fail(TGL_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
    head(f, rows, other);
    for (int i = 0; i < rows->count; i++) {
        const char *op = rows->rows[i].op;
        if (!strcmp(op, "copy") || !is_first_of_op(rows, i)) continue;
        fprintf(f, "<h2>%s</h2>\n", op);
        bars(f, rows, op);
        latency(f, rows, op);
        table(f, rows, other, op);
    }
    fprintf(f, "</body></html>\n");
    return fclose(f) == 0 ? TGL_OK : tgl_fail(TGL_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
}
