/* SPDX-License-Identifier: MIT
 * table.h - inputs of many GiB, whose values repeat after a period: cases of a bench make them in seconds, and the next
 * case that has the same table takes it over. */
#ifndef TEGULA_CASE_TABLE_H
#define TEGULA_CASE_TABLE_H

#include "case.h"

/* The table of this tensor, which has a period and no gaps: its values on the host, where all periods are the same
 * memory, and its memory on the device, or page-locked; on the CPU both are one. The last eight tables are kept;
 * an instance must be closed before its table is replaced. */
tgl_status case_table(const backend *on, const case_tensor *t, const case_problem *c, char **storage, char **memory);

#endif
