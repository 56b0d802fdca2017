/* SPDX-License-Identifier: MIT
 * route.h - the scalars of a case of route, which a test changes between two calls. */
#ifndef TEGULA_CASES_ROUTE_H
#define TEGULA_CASES_ROUTE_H

#include "cases/case.h"
#include "tegula/moe.h"

typedef struct {
    tgl_moe_gate_params params; /* first, as gate.h has them */
    int64_t alignment;
    bool is_apart; /* top2_sum_gate and get_fused_mapping are called, not route */
} route_scalars;
_Static_assert(sizeof(route_scalars) <= CASE_SCALARS, "scalars have room");

static inline route_scalars *route_scalars_of(case_problem *c) { return (route_scalars *)(void *)c->scalars; }

#endif
