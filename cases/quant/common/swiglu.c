/* SPDX-License-Identifier: MIT */
#include "swiglu.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

tgl_status swiglu_read_number(const case_problem *c, const char *name, bool *has, float *number)
{
    const char *text = case_text(c, name);
    char *end;
    *has = strcmp(text, "none") != 0;
    *number = *has ? strtof(text, &end) : 0;
    if (!*has || !*end) return TGL_OK;
    return tgl_fail(TGL_ERR_ARGUMENT, "%s: is \"%s\", want a number or none", name, text);
}

tgl_status swiglu_check_values(const case_problem *c) { return case_check_word(c, "values", "normal mixed"); }

double swiglu_draw(const drawing *d, uint64_t seed, int64_t row, int64_t col, bool is_gate, int attempt)
{
    const uint64_t r = case_random(case_random(seed + (uint64_t)attempt, row), col);
    const double normal = sqrt(-2 * log(1 - swiglu_unit(r))) * cos(6.283185307179586 * swiglu_unit(r >> 24));
    const float clamp = quant_params_in(d->c)->swiglu_clamp_value;
    if (!d->is_mixed) return normal;
    switch (case_random(seed, row) % 8) {
    case 0: return is_gate ? 240 * swiglu_unit(r) - 120 : normal;
    case 1: return 1e-3 * normal;
    case 2: return r >> 60 & 1 ? -0.0 : 0.0;
    case 3:
        if (r >> 60 >= 8) return normal;
        return (r >> 57 & 1 ? -1 : 1) * (double)(r >> 60 < 4 ? nextafterf(clamp, r >> 58 & 1 ? 0 : 9) : clamp);
    case 4: return 30 * normal;
    default: return normal;
    }
}

void swiglu_put_drawn(const drawing *d, int64_t row, int64_t col, int64_t num_cols, int attempt)
{
    case_encode(d->t->dtype, swiglu_draw(d, d->seed, row, col, col < num_cols, attempt),
                case_element(d->t, (int64_t[]){ row, col }));
}
