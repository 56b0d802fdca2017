/* SPDX-License-Identifier: MIT
 * test_log_calls.c - TEGULA_LOG=call: every op logs its call, with each tensor of the case under its name. */
#include "cases/case.h"
#include "cases/random.h"
#include "child.h"

static const case_op *op;
static case_params params;
static char text[CHILD_TEXT];

static bool calls(void) { return CHECK_THAT(case_is_legal(op, &params), "%s: %s", op->name, tgl_last_error()); }

TEST(every_op)
{
    static case_problem c;
    for (int i = 0; (op = case_op_at(i)); i++) {
        char call[128];
        const int64_t last = case_count(op->lists[CASE_CHECK]) - 1;
        REQUIRE(CHECK_OK(case_at(op, op->lists[CASE_CHECK], last, &params)));
        REQUIRE(CHECK_OK(case_make_problem(op, &params, &c)));
        CHECK(in_child(ENVIRONMENT("TEGULA_LOG=call"), calls, text));
        snprintf(call, sizeof call, "tegula: tgl_%s(", op->name);
        REQUIRE(CHECK_THAT(!strncmp(text, call, strlen(call)), "%s logs \"%s\"", op->name, text));
        text[strcspn(text, "\n")] = 0; /* an op may call another, which logs too */
        for (int k = 0; k < c.num_tensors; k++) {
            const case_tensor *t = &c.tensors[k];
            char want[128];
            int n = snprintf(want, sizeof want, "%s %s [", t->name, t->name ? tgl_dtype_name(t->dtype) : "");
            /* Its case has one tensor for all layers; the op takes one for each, and logs the first's. */
            const int first = k > 0 && !strcmp(op->name, "mhc_multilayer_recompute");
            for (int d = first; t->name && d < t->ndim; d++)
                n += snprintf(want + n, sizeof want - (size_t)n, "%s%" PRId64, d > first ? ", " : "", t->shape[d]);
            if (t->name) CHECK_THAT(strstr(text, want), "want \"%s]\", is \"%s\"", want, text);
        }
    }
}
