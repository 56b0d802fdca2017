/* SPDX-License-Identifier: MIT
 * lookup_host.h - what lookup.c has for lookup_staged.c. */
#ifndef TEGULA_ENGRAM_LOOKUP_HOST_H
#define TEGULA_ENGRAM_LOOKUP_HOST_H

#include "core/tensor.h"
#include "engram/lookup.h"

/* A packed lookup by the CPU. The fields of a launch are not used. It calls no driver function. is_beside: while other
 * threads go on (threads.h). */
tgl_status tgl_engram_gather_packed(const lookup_args *args, bool is_beside);

/* The address by which the device of `on` reads t, which may be in host memory, be NULL or have no data. Fails if it
 * cannot read it. */
tgl_status tgl_engram_find_address(const char *name, const DLTensor *t, const DLTensor *on, tgl_stream stream,
                                   const void **address);

#endif
