/* SPDX-License-Identifier: MIT
 * fill.h - the contents of uninitialised memory: device memory after an allocation, shared memory when a block starts,
 * stack and registers when a thread does. */
#ifndef EMU_FILL_H
#define EMU_FILL_H

#include <stddef.h>
#include <stdint.h>

/* 0xff bytes; zeros; 0x7f bytes; small numbers in words of 64 bits; random words */
enum emu_fill_kind { EMU_ONES, EMU_ZEROS, EMU_7F, EMU_INDICES, EMU_RANDOM, EMU_NUM_FILLS, EMU_FILL_CHANGES = -1 };

extern int emu_forced_fill;    /* EMU_FILL; by default EMU_FILL_CHANGES */
extern uint64_t emu_num_fills; /* since the seed was set */
void emu_fill(void *p, size_t bytes);

#endif
