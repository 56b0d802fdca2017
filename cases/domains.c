/* SPDX-License-Identifier: MIT
 * domains.c - the tables of all domains. A new domain adds a line here; a new op only a row in its domain's
 * table. */
#include <string.h>

#include "case.h"

/* Each ends with a row without a name. */
extern const case_op moe_ops[], moe_gate_ops[], moe_mapping_ops[];
extern const case_op quant_ops[], quant_back_ops[], quant_swiglu_ops[];
extern const case_op transpose_ops[];

static const case_op *const domains[] = {
    transpose_ops,
    moe_ops,
    moe_gate_ops,
    moe_mapping_ops,
    quant_ops,
    quant_back_ops,
    quant_swiglu_ops,
};

const case_op *case_op_at(int i)
{
    for (size_t d = 0; d < sizeof domains / sizeof *domains; d++)
        for (const case_op *op = domains[d]; op->name; op++)
            if (i-- == 0) return op;
    return NULL;
}

const case_op *case_find(const char *name)
{
    const case_op *op;
    for (int i = 0; (op = case_op_at(i)); i++)
        if (!strcmp(op->name, name)) return op;
    return NULL;
}
