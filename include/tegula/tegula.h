/* SPDX-License-Identifier: MIT
 * tegula.h - the whole public API. core.h says how calls, errors and settings work, tensor.h makes
 * tensors; then one header per domain. */
#ifndef TEGULA_TEGULA_H
#define TEGULA_TEGULA_H

#include "tegula/core.h"
#include "tegula/engram.h"
#include "tegula/mhc.h"
#include "tegula/moe.h"
#include "tegula/quant.h"
#include "tegula/tensor.h"
#include "tegula/transpose.h"

#endif
