/* SPDX-License-Identifier: MIT
 * moe_mapping.c - the cases of counts, of the mapping to expert-major order, of moving rows by it. */
#include "moe_common.h"

const case_op moe_mapping_ops[] = {
    { 0 },
};
