/* SPDX-License-Identifier: MIT
 * mhc_limits.h - ranges of numbers that the library checks, and the Python extension before it makes outputs. */
#ifndef TEGULA_MHC_LIMITS_H
#define TEGULA_MHC_LIMITS_H

#define MHC_MAX_STREAMS 8
#define PROJECTION_MAX_SEGMENTS 16

#endif
