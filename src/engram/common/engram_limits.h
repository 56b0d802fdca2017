/* SPDX-License-Identifier: MIT
 * engram_limits.h - ranges of numbers that the library checks, and the Python extension before it makes outputs. */
#ifndef TEGULA_ENGRAM_LIMITS_H
#define TEGULA_ENGRAM_LIMITS_H

#define COLUMN_MAX_NGRAM 4096
#define CONV_DILATION_BITS 24 /* dilation < 2^24: taps reach fewer than 2^30 tokens */

#endif
