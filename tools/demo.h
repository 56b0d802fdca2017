/* SPDX-License-Identifier: MIT
 * demo.h - the parts of `tegula demo`. */
#ifndef TEGULA_DEMO_H
#define TEGULA_DEMO_H

#include "timer.h"

/* demo_moe.c: four tokens over two experts; a MoE block without its experts. */
tgl_status demo_moe_small(const backend *on);
tgl_status demo_moe_block(const backend *on);

#endif
