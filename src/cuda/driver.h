/* SPDX-License-Identifier: MIT
 * driver.h - libcuda behind dlopen: the entry points we use, with the few types of its ABI that they take. No CUDA header is needed to build.
 * Tests, tools and benches use the same table for device memory, events and graphs. */
#ifndef TEGULA_DRIVER_H
#define TEGULA_DRIVER_H

#include "core/settings.h"
#include "core/status.h"

typedef int tgl_cu_result;                 /* CUresult */
typedef uint64_t tgl_cu_pointer;           /* CUdeviceptr */
typedef int tgl_cu_device;                 /* CUdevice */
typedef struct CUctx_st *tgl_cu_context;
typedef struct CUlib_st *tgl_cu_library;
typedef struct CUkern_st *tgl_cu_kernel;   /* may stand where a CUfunction is wanted */
typedef struct CUevent_st *tgl_cu_event;
typedef struct CUgraph_st *tgl_cu_graph;
typedef struct CUgraphExec_st *tgl_cu_graph_exec;

/* X(return-less name, parameters): the table's fields are these names, the symbols are cu<Name> at API version 12.0. The owner of driver.c extends it. */
typedef struct tgl_driver_table tgl_driver_table;

/* Loads the driver and makes the table, once; the same failure (TGL_ERR_DEVICE: no driver, too old, no device, forked after cuInit) comes back on every call. */
tgl_status tgl_driver(const tgl_driver_table **table);

/* TGL_OK for 0; otherwise TGL_ERR_MEMORY for out of memory, TGL_ERR_CUDA for the rest, with "cuLibraryLoadData: CUDA_ERROR_... (text)". */
tgl_status tgl_driver_check(tgl_cu_result result, const char *call);

/* Facts of a device, read once. */
typedef struct {
    char name[128];
    int major, minor, num_sms;
    int64_t max_smem_per_sm, max_smem_per_block_optin, total_memory, l2_bytes;
    char architecture[16];                 /* what we compile for: "sm_90a" (device_architecture() has the rule) */
    bool is_emulated;                      /* the emulated device of tests/emulator */
} tgl_device;
tgl_status tgl_device_get(int device, const tgl_device **out);
tgl_status tgl_device_count(int *count);

/* Makes a context of `device` current: the current one if it is of that device, else the stream's, else the primary one. tgl_context_leave() restores
 * what was current before. */
typedef struct { bool pushed; } tgl_context_guard;
tgl_status tgl_context_enter(int device, tgl_stream stream, tgl_context_guard *guard);
void tgl_context_leave(tgl_context_guard *guard);

#endif
