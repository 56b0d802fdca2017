/* SPDX-License-Identifier: MIT
 * demo.h - the parts of `tegula demo`. */
#ifndef TEGULA_DEMO_H
#define TEGULA_DEMO_H

#include "timer.h"

tgl_status demo_moe_small(const backend *on);   /* demo_moe.c: four tokens over two experts */
tgl_status demo_moe_block(const backend *on);   /* demo_block.c: a MoE block of a model's size */

#endif
