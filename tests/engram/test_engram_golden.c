/* SPDX-License-Identifier: MIT
 * The Engram ops against recorded data. */
#include "golden.h"
#include "ops.h"
#include "tegula/engram.h"

static tgl_status hash(const golden_call *c)
{
    return tgl_engram_hash(golden_arg(c, "ngram_token_ids"), golden_arg(c, "multipliers"),
                           golden_arg(c, "vocab_sizes"), golden_arg(c, "offsets"), NULL, golden_arg(c, "out"),
                           c->call->stream);
}

static void check_recorded(const char *op, golden_run run, int want_count)
{
    int count = 0;
    for (const golden_case *g; (g = golden_at("engram", op, count)); count++)
        FOR_BACKENDS(b) {
            case_report report;
            golden_check(g, run, b, &report);
            CHECK_THAT(report.result == CASE_PASSED, "%s: %s %s: %s", b->name, g->op, g->name, report.text);
        }
    CHECK_INT(count, want_count);
}

TEST(engram_hash) { check_recorded("engram_hash", hash, 7); }
