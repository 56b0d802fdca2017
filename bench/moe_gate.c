/* SPDX-License-Identifier: MIT
 * moe_gate.c - the cases of the gates: top2_sum_gate, hash_gate, route. */
#include "moe_common.h"

const case_op moe_gate_ops[] = {
    { 0 },
};
