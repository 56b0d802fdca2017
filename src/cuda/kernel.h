/* SPDX-License-Identifier: MIT
 * kernel.h - which kernel: its name and macros. */
#ifndef TEGULA_KERNEL_H
#define TEGULA_KERNEL_H

#include <stdint.h>

enum { TGL_MAX_MACROS = 12 };
typedef struct {
    const char *name;
    int64_t value;
} tgl_macro;

/* src/<name>.cu, compiled with -D<macro>=<value> for each macro with a name. The entry is the part after
 * the slash. */
typedef struct {
    const char *name;
    tgl_macro macros[TGL_MAX_MACROS];
} tgl_kernel;

/* One more macro, behind those that the kernel has. Their order is part of its key. */
static inline void tgl_add_macro(tgl_kernel *kernel, const char *name, int64_t value)
{
    tgl_macro *m = kernel->macros;
    while (m->name) m++;
    *m = (tgl_macro){ name, value };
}

#endif
