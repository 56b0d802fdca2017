/* SPDX-License-Identifier: MIT
 * per_block_cast.cuh - what all kernels of per_block_cast include. */
#ifndef TEGULA_QUANT_PER_BLOCK_CAST_CUH
#define TEGULA_QUANT_PER_BLOCK_CAST_CUH

#include "quant/common/decode.cuh"
#include "quant/common/encode.cuh"
#include "quant/common/factors.cuh"
#include "quant/per_block_cast.h"

#endif
