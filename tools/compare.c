/* SPDX-License-Identifier: MIT
 * compare.c - are our rows as fast as they must be? docs/benchmarking.md has the rules in words. */
#include <math.h>
#include <string.h>

#include "results.h"

/* Two passes of one program agree within 3 %, within 7 % on rows below 20 us. */
static double not_slower_limit(double other_us) { return other_us < 20 ? 1.07 : 1.03; }
static const double faster_limit = 0.97;
static const double copy_limit = 1.05; /* of a plain copy's time: at the copy rate */

tool_verdict tool_judge(const tool_row *ours, const tool_row *theirs)
{
    const double ratio = ours->cold_us / theirs->cold_us;
    tool_verdict v = { .ratio = "-" };
    if (!isnan(ratio)) snprintf(v.ratio, sizeof v.ratio, "%.3f", ratio);
    v.text = strcmp(ours->device, theirs->device) ? "another device" : isnan(ratio) ? "not timed" : NULL;
    if (v.text) return v;
    const bool not_slower = ratio <= not_slower_limit(theirs->cold_us), faster = ratio <= faster_limit;
    const bool is_copy = ours->cold_us <= copy_limit * ours->copy_us; /* false if no copy was timed */
    if (!theirs->peer[0]) { /* an earlier run of ours, which must not be faster */
        v.text = faster ? "faster" : not_slower ? "same" : "slower";
        v.is_met = not_slower;
    } else {
        v.text = faster        ? "met: faster"
                 : !not_slower ? "not met: slower"
                 : is_copy     ? "met: not slower, at the copy rate"
                               : "not met: not faster";
        v.is_met = faster || (not_slower && is_copy);
    }
    v.is_missed = !v.is_met;
    return v;
}

const char *tool_goal(const tool_row *theirs)
{
    return theirs->peer[0] ? "faster, or not slower and at the copy rate" : "not slower";
}

int tool_compare(const tool_rows *rows, const tool_rows *other, const char *other_name)
{
    static const char *const heads[] = { "row", ">cold us", ">theirs", ">ratio", ">of copy", "verdict" };
    tool_table *table = tool_table_new(6, heads);
    int compared = 0, missed = 0, num_ratios = 0, other_devices = 0, unseen = 0;
    double sum_of_logs = 0;
    const tool_row *some = NULL, *foreign = NULL;
    for (int i = 0; i < rows->count; i++) {
        const tool_row *ours = &rows->rows[i], *theirs = tool_rows_find(other, ours->row);
        if (!theirs || tool_row_is_copy(ours)) continue;
        const tool_verdict v = tool_judge(ours, theirs);
        const double ratio = ours->cold_us / theirs->cold_us;
        some = theirs;
        compared++;
        missed += v.is_missed;
        if (strcmp(ours->device, theirs->device)) foreign = theirs, other_devices++;
        if (ratio > 0) sum_of_logs += log(ratio), num_ratios++;
        const char *color = v.is_missed ? tool_red() : v.is_met ? tool_green() : tool_dim();
        tool_table_row(table, (const char *const[]){
                                  ours->row, tool_number(ours->cold_us), tool_number(theirs->cold_us), v.ratio,
                                  tool_percent(ours->copy_share), tool_text("%s%s%s", color, v.text, tool_plain()) });
    }
    printf("\n%sagainst %s%s%s%s%s\n", tool_bold(), other_name, some && some->peer[0] ? ": " : "",
           some && some->peer[0] ? some->peer : "", some ? "" : " (no row in common)", tool_plain());
    tool_table_print(table);
    printf("%s compared, %d not met", tool_count(compared, "row"), missed);
    if (num_ratios)
        printf(", geometric mean of the ratios %.3f (below 1: ours is faster)", exp(sum_of_logs / num_ratios));
    printf("\n");
    const int alone = tool_rows_of_ops(rows) - compared;
    if (alone) printf("note: %d of our rows are not in %s\n", alone, other_name);
    for (int i = 0; i < other->count; i++)
        unseen += !tool_row_is_copy(&other->rows[i]) && !tool_rows_find(rows, other->rows[i].row);
    if (unseen) printf("note: %d rows of %s were not run here\n", unseen, other_name);
    if (foreign)
        printf("note: %d rows are from another device (%s), so the ratio says nothing about the code\n", other_devices,
               foreign->device);
    return missed;
}
