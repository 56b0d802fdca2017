/* SPDX-License-Identifier: MIT
 * kernels.h - the kernels that this process has loaded: found without a lock by (kernel, macros, device),
 * made once. */
#ifndef TEGULA_KERNELS_H
#define TEGULA_KERNELS_H

#include <stdatomic.h>

#include "cuda/driver.h"
#include "cuda/launch.h"

enum { TGL_KNOWN_PLANS = 8 };

/* Never freed once it can be found; only `context`, `cluster` and `plans` change then. */
typedef struct {
    uint64_t hash;
    tgl_kernel kernel;                      /* with its own copies of the names */
    int device;
    tgl_cu_kernel handle;
    int64_t max_dynamic_shared;             /* bytes a launch may ask for */
    size_t args_bytes;                      /* of its parameter; 0: the driver does not tell */
    bool has_pdl, has_clusters;             /* of the device */
    _Atomic(tgl_cu_context) context;        /* the one in which it was loaded last */
    /* a context, and in its lowest bits 1 + the logarithm of the largest cluster that has room in it; 0: not
     * asked yet. One word: another thread may ask in another context. */
    atomic_uintptr_t cluster;
    /* plans of launches, as tgl_launch() hashes them, of which all kernels are loaded; 0: none */
    _Atomic(uint64_t) plans[TGL_KNOWN_PLANS];
} tgl_loaded;

/* NULL where it is not loaded yet. */
tgl_loaded *tgl_kernels_find(const tgl_kernel *kernel, int device);

/* Loads it on `device`, whose `context` is current. Threads that want the same kernel wait for one of them
 * to make it; different kernels are made in parallel. `may_compile` false: TGL_ERR_CAPTURE where the disk
 * cache does not have it. */
tgl_status tgl_kernels_load(const tgl_kernel *kernel, int device, tgl_cu_context context, bool may_compile,
                            tgl_loaded **out);

/* Loads it in another context of its device, now and not at a launch that may be captured. */
tgl_status tgl_kernels_enter(tgl_loaded *loaded, tgl_cu_context context);

#endif
