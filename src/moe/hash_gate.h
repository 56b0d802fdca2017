/* SPDX-License-Identifier: MIT
 * hash_gate.h - what the kernels of hash_gate and the code that launches them agree on. */
#ifndef TEGULA_MOE_HASH_GATE_H
#define TEGULA_MOE_HASH_GATE_H

#include "moe/gate.h"

#endif
