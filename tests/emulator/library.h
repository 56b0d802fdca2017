/* SPDX-License-Identifier: MIT
 * library.h - what a launch asks of library.c. */
#ifndef EMU_LIBRARY_H
#define EMU_LIBRARY_H

#include "driver.h"

result emu_kernel_fits(const kernel *k, int device);
int emu_blocks_per_sm(const kernel *k, int device, int threads, size_t dynamic);

#endif
