/* SPDX-License-Identifier: MIT
 * histogram_kernel.h - what the kernel and the code that launches it agree on. */
#ifndef TEGULA_MOE_HISTOGRAM_KERNEL_H
#define TEGULA_MOE_HISTOGRAM_KERNEL_H

#define HISTOGRAM_SHARED_BINS 8192      /* counted in shared memory; more of them in the workspace */
#define HISTOGRAM_MAX_THREADS 1024

#endif
