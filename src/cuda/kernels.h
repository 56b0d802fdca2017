/* SPDX-License-Identifier: MIT
 * kernels.h - the kernels that this process has loaded, by (kernel, macros, device): found without a lock,
 * loaded once. */
#ifndef TEGULA_KERNELS_H
#define TEGULA_KERNELS_H

#include <stdatomic.h>

#include "cuda/driver.h"
#include "cuda/kernel.h"

enum { TGL_KNOWN_PLANS = 8, TGL_KNOWN_FITTING = 16 };

/* Never freed once it can be found; after that only `context`, `fitting` and `plans` change. */
typedef struct {
    uint64_t hash;
    tgl_kernel kernel; /* with its own copies of the names */
    int device;
    tgl_cu_kernel handle;
    int64_t max_dynamic_shared;      /* max bytes of a launch */
    size_t args_bytes;               /* of its parameter; 0: unknown to the driver */
    bool has_pdl, has_clusters;      /* of the device */
    _Atomic(tgl_cu_context) context; /* where it was loaded last */
    /* 1 + how many clusters fit at once in the lowest 16 bits, above them a hash of where and of which; 0: none yet. One
     * word, since another thread may ask elsewhere. */
    _Atomic(uint64_t) fitting[TGL_KNOWN_FITTING];
    /* hashes (plan_hash()) of plans whose kernels are all loaded; 0: none */
    _Atomic(uint64_t) plans[TGL_KNOWN_PLANS];
} tgl_loaded;

/* NULL if it is not loaded yet. */
tgl_loaded *tgl_kernels_find(const tgl_kernel *kernel, int device);

/* Loads it on `device`, whose `context` is current. If several threads want the same kernel, one builds it
 * and the others wait; different kernels are built in parallel. `may_compile` false: TGL_ERR_CAPTURE if
 * the disk cache lacks it. */
tgl_status tgl_kernels_load(const tgl_kernel *kernel, int device, tgl_cu_context context, bool may_compile,
                            tgl_loaded **out);

/* The part of it that takes long and needs no context: compiles it, or finds it on disk, and gives the code to the driver. */
tgl_status tgl_kernels_build(const tgl_kernel *kernel, int device);

/* Loads it in another context of its device now, not at a launch, which may be captured. */
tgl_status tgl_kernels_enter(tgl_loaded *loaded, tgl_cu_context context);

#endif
