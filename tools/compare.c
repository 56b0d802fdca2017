/* SPDX-License-Identifier: MIT
 * compare.c - are our rows as fast as they must be? docs/benchmarking.md has the rules in words. */
#include <math.h>
#include <string.h>

#include "results.h"

/* Two passes of one program agree within 3 %, within 7 % on rows below 20 us. */
static double not_slower_limit(double other_us) { return other_us < 20 ? 1.07 : 1.03; }
static const double faster_limit = 0.97;
static const double at_copy_rate = 1.05;       /* at most this much over a plain copy of as many bytes */

tool_verdict tool_judge(const tool_row *ours, const tool_row *other, char *text, size_t bytes)
{
    const double ratio = ours->cold_us / other->cold_us;
    if (isnan(ratio)) {
        snprintf(text, bytes, "not timed");
        return VERDICT_NONE;
    }
    const bool not_slower = ratio <= not_slower_limit(other->cold_us), faster = ratio <= faster_limit;
    const bool is_copy = ours->cold_us <= at_copy_rate * ours->copy_us; /* false where there is no copy */
    if (!other->peer[0]) {      /* an earlier run of ours must not be faster */
        snprintf(text, bytes, "%s", faster ? "faster" : not_slower ? "same" : "slower");
        return not_slower ? VERDICT_MET : VERDICT_NOT_MET;
    }
    if (faster) snprintf(text, bytes, "met: faster");
    else if (not_slower && is_copy) snprintf(text, bytes, "met: not slower, at the copy rate");
    else if (not_slower) snprintf(text, bytes, "not met: not faster");
    else snprintf(text, bytes, "not met: slower");
    return faster || (not_slower && is_copy) ? VERDICT_MET : VERDICT_NOT_MET;
}

int tool_compare(const tool_rows *rows, const tool_rows *other, const char *other_name)
{
    static const char *const heads[] = { "row", ">cold us", ">theirs", ">ratio", ">of copy", "verdict" };
    tool_table *table = tool_table_new(6, heads);
    int compared = 0, missing = 0, not_met = 0, num_ratios = 0, other_devices = 0;
    double sum_of_logs = 0;
    const tool_row *some = NULL;
    for (int i = 0; i < rows->count; i++) {
        const tool_row *ours = &rows->rows[i], *theirs = tool_rows_find(other, ours->row);
        if (!theirs) {
            missing++;
            continue;
        }
        some = theirs;
        char text[96];
        const bool same_device = !strcmp(ours->device, theirs->device);
        tool_verdict verdict = tool_judge(ours, theirs, text, sizeof text);
        if (!same_device) {
            other_devices++;
            verdict = VERDICT_NONE;
            snprintf(text, sizeof text, "another device");
        }
        not_met += verdict == VERDICT_NOT_MET;
        compared++;
        const double ratio = ours->cold_us / theirs->cold_us;
        if (ratio > 0) {
            sum_of_logs += log(ratio);
            num_ratios++;
        }
        char ratio_text[32], share_text[32] = "-", verdict_text[128];
        snprintf(ratio_text, sizeof ratio_text, "%.3f", ratio);
        if (!isnan(ours->copy_share))
            snprintf(share_text, sizeof share_text, "%.0f %%", 100 * ours->copy_share);
        snprintf(verdict_text, sizeof verdict_text, "%s%s%s",
                 verdict == VERDICT_NOT_MET ? tool_red()
                 : verdict == VERDICT_MET   ? tool_green()
                                            : tool_dim(),
                 text, tool_plain());
        tool_table_row(
            table, (const char *const[]){ ours->row, tool_number(ours->cold_us), tool_number(theirs->cold_us),
                                          isnan(ratio) ? "-" : ratio_text, share_text, verdict_text });
    }
    printf("\n%sagainst %s%s%s%s%s\n", tool_bold(), other_name, some && some->peer[0] ? ": " : "",
           some && some->peer[0] ? some->peer : "", some ? "" : " (no row in common)", tool_plain());
    tool_table_print(table);
    printf("%d rows compared, %d not met", compared, not_met);
    if (num_ratios)
        printf(", geometric mean of the ratios %.3f (below 1: ours is faster)",
               exp(sum_of_logs / num_ratios));
    printf("\n");
    if (missing) printf("note: %d of our rows are not in %s\n", missing, other_name);
    int unseen = 0;
    for (int i = 0; i < other->count; i++) unseen += !tool_rows_find(rows, other->rows[i].row);
    if (unseen) printf("note: %d rows of %s were not run here\n", unseen, other_name);
    if (other_devices)
        printf("note: %d rows are from another device (%s), so the ratio says nothing about the code\n",
               other_devices, some->device);
    return not_met;
}
