/* SPDX-License-Identifier: MIT
 * driver.h - libcuda behind dlopen: the entry points we use, with the few types of its ABI that they take.
 * No CUDA header is needed to build. Tests, tools and benches use the same table for device memory, events
 * and graphs. */
#ifndef TEGULA_DRIVER_H
#define TEGULA_DRIVER_H

#include "core/settings.h"
#include "core/status.h"

typedef int tgl_cu_result;       /* CUresult */
typedef uint64_t tgl_cu_pointer; /* CUdeviceptr */
typedef int tgl_cu_device;       /* CUdevice */
typedef struct CUctx_st *tgl_cu_context;
typedef struct CUlib_st *tgl_cu_library;
typedef struct CUkern_st *tgl_cu_kernel;
typedef struct CUfunc_st *tgl_cu_function; /* or a tgl_cu_kernel, cast */
typedef struct CUevent_st *tgl_cu_event;
typedef struct CUgraph_st *tgl_cu_graph;
typedef struct CUgraphExec_st *tgl_cu_graph_exec;
typedef struct CUuserObject_st *tgl_cu_user_object;

/* Results that the code tests for. */
enum {
    TGL_CU_INVALID_VALUE = 1,
    TGL_CU_OUT_OF_MEMORY = 2,
    TGL_CU_NOT_INITIALIZED = 3,
    TGL_CU_NO_DEVICE = 100,
    TGL_CU_INVALID_CONTEXT = 201,
    TGL_CU_COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    TGL_CU_STREAM_CAPTURE_IMPLICIT = 906,
    TGL_CU_INVALID_CLUSTER_SIZE = 912
};

/* CUdevice_attribute */
enum {
    TGL_CU_DEVICE_NUM_SMS = 16,
    TGL_CU_DEVICE_L2_BYTES = 38,
    TGL_CU_DEVICE_MAJOR = 75,
    TGL_CU_DEVICE_MINOR = 76,
    TGL_CU_DEVICE_SMEM_PER_SM = 81,
    TGL_CU_DEVICE_SMEM_PER_BLOCK_OPTIN = 97,
    TGL_CU_DEVICE_USES_HOST_PAGE_TABLES = 100,
    TGL_CU_DEVICE_CLUSTER_LAUNCH = 120
};

/* CUfunction_attribute */
enum {
    TGL_CU_KERNEL_STATIC_SHARED_BYTES = 1,
    TGL_CU_KERNEL_MAX_DYNAMIC_SHARED_BYTES = 8,
    TGL_CU_KERNEL_NON_PORTABLE_CLUSTER = 14
};

/* CUpointer_attribute, CUmemorytype, CUstreamCaptureMode, CUstreamCaptureStatus, flags of streams and
 * events */
enum { TGL_CU_POINTER_MEMORY_TYPE = 2, TGL_CU_POINTER_ON_DEVICE = 3, TGL_CU_POINTER_DEVICE = 9 };
enum { TGL_CU_MEMORY_HOST = 1, TGL_CU_MEMORY_DEVICE = 2 };
enum { TGL_CU_CAPTURE_GLOBAL = 0, TGL_CU_CAPTURE_THREAD_LOCAL = 1, TGL_CU_CAPTURE_RELAXED = 2 };
enum { TGL_CU_CAPTURE_NONE = 0, TGL_CU_CAPTURE_ACTIVE = 1 };
enum { TGL_CU_STREAM_NON_BLOCKING = 1, TGL_CU_EVENT_DISABLE_TIMING = 2 };
enum { TGL_CU_NO_DESTRUCTOR_SYNC = 1, TGL_CU_USER_OBJECT_MOVE = 1 }; /* CUuserObject_flags, _Retain_flags */

/* CUlaunchAttribute and CUlaunchConfig */
enum { TGL_CU_LAUNCH_COOPERATIVE = 2, TGL_CU_LAUNCH_CLUSTER = 4, TGL_CU_LAUNCH_PROGRAMMATIC = 6 };
typedef struct {
    uint32_t id, padding;
    union {
        int32_t value;
        struct { uint32_t x, y, z; } dim;
        unsigned char bytes[64];
    } value;
} tgl_cu_launch_attribute;
typedef struct {
    uint32_t grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    tgl_stream stream;
    tgl_cu_launch_attribute *attributes;
    uint32_t num_attributes;
} tgl_cu_launch_config;
_Static_assert(sizeof(tgl_cu_launch_attribute) == 72, "as CUlaunchAttribute");
_Static_assert(sizeof(tgl_cu_launch_config) == 56, "as CUlaunchConfig");

/* CUDA_MEMCPY2D: `height` pieces of width_bytes, a pitch apart on each side */
typedef struct {
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    tgl_cu_pointer from_device;
    void *from_array;
    size_t from_pitch, to_x, to_y;
    int to_type;
    void *to_host;
    tgl_cu_pointer to_device;
    void *to_array;
    size_t to_pitch, width_bytes, height;
} tgl_cu_copy_2d;
_Static_assert(sizeof(tgl_cu_copy_2d) == 128, "as CUDA_MEMCPY2D");

typedef struct { _Alignas(64) uint64_t opaque[16]; } tgl_cu_tensor_map; /* CUtensorMap */

/* X(name, parameters): the table's fields are these names, the symbols are cu<name> at API version 12.0.
 * The library needs these. */
// clang-format off: a line for each function
#define TGL_DRIVER_NEEDED(X)                                                                               \
    X(Init, (unsigned flags))                                                                              \
    X(GetErrorName, (tgl_cu_result result, const char **name))                                             \
    X(GetErrorString, (tgl_cu_result result, const char **text))                                           \
    X(DeviceGetCount, (int *count))                                                                        \
    X(DeviceGet, (tgl_cu_device *device, int ordinal))                                                     \
    X(DeviceGetName, (char *name, int bytes, tgl_cu_device device))                                        \
    X(DeviceTotalMem, (size_t *bytes, tgl_cu_device device))                                               \
    X(DeviceGetAttribute, (int *value, int attribute, tgl_cu_device device))                               \
    X(DevicePrimaryCtxRetain, (tgl_cu_context *context, tgl_cu_device device))                             \
    X(CtxGetCurrent, (tgl_cu_context *context))                                                            \
    X(CtxGetDevice, (tgl_cu_device *device))                                                               \
    X(CtxGetId, (tgl_cu_context context, uint64_t *id))                                                    \
    X(CtxPushCurrent, (tgl_cu_context context))                                                            \
    X(CtxPopCurrent, (tgl_cu_context *context))                                                            \
    X(StreamGetCtx, (tgl_stream stream, tgl_cu_context *context))                                          \
    X(StreamGetId, (tgl_stream stream, uint64_t *id))                                                      \
    X(StreamIsCapturing, (tgl_stream stream, int *status))                                                 \
    X(StreamGetCaptureInfo, (tgl_stream stream, int *status, uint64_t *id, tgl_cu_graph *graph,            \
                             void *dependencies, size_t *num_dependencies))                                \
    X(StreamCreate, (tgl_stream *stream, unsigned flags))                                                  \
    X(StreamDestroy, (tgl_stream stream))                                                                  \
    X(StreamSynchronize, (tgl_stream stream))                                                              \
    X(ThreadExchangeStreamCaptureMode, (int *mode))                                                        \
    X(LibraryLoadData, (tgl_cu_library *library, const void *image, int *jit_options, void **jit_values,   \
                        unsigned num_jit_options, int *options, void **values, unsigned num_options))      \
    X(LibraryUnload, (tgl_cu_library library))                                                             \
    X(LibraryGetKernel, (tgl_cu_kernel *kernel, tgl_cu_library library, const char *name))                 \
    X(KernelGetFunction, (tgl_cu_function *function, tgl_cu_kernel kernel))                                \
    X(KernelGetAttribute, (int *value, int attribute, tgl_cu_kernel kernel, tgl_cu_device device))         \
    X(KernelSetAttribute, (int attribute, int value, tgl_cu_kernel kernel, tgl_cu_device device))          \
    X(OccupancyMaxActiveClusters,                                                                          \
      (int *clusters, tgl_cu_function function, const tgl_cu_launch_config *config))                       \
    X(LaunchKernelEx, (const tgl_cu_launch_config *config, tgl_cu_function function, void **args,          \
                       void **extra))                                                                      \
    X(PointerGetAttribute, (void *value, int attribute, tgl_cu_pointer pointer))                           \
    X(MemAlloc, (tgl_cu_pointer *pointer, size_t bytes))                                                   \
    X(MemFree, (tgl_cu_pointer pointer))                                                                   \
    X(UserObjectCreate, (tgl_cu_user_object *object, void *data, void (*destroy)(void *), unsigned count,  \
                         unsigned flags))                                                                  \
    X(UserObjectRelease, (tgl_cu_user_object object, unsigned count))                                      \
    X(GraphRetainUserObject, (tgl_cu_graph graph, tgl_cu_user_object object, unsigned count,               \
                              unsigned flags))                                                             \
    X(MemsetD8Async, (tgl_cu_pointer to, unsigned char value, size_t bytes, tgl_stream stream))            \
    X(MemcpyHtoDAsync, (tgl_cu_pointer to, const void *from, size_t bytes, tgl_stream stream))             \
    X(MemcpyDtoHAsync, (void *to, tgl_cu_pointer from, size_t bytes, tgl_stream stream))                   \
    X(Memcpy2DAsync, (const tgl_cu_copy_2d *copy, tgl_stream stream))                                      \
    X(LaunchHostFunc, (tgl_stream stream, void (*function)(void *), void *data))
// clang-format on

/* For ops with tensor maps, tests, tools and benches; NULL if the driver (old or emulated) lacks it. */
// clang-format off: a line for each function
#define TGL_DRIVER_MORE(X)                                                                                 \
    X(KernelGetParamInfo, (tgl_cu_kernel kernel, size_t place, size_t *offset, size_t *bytes))             \
    X(DeviceGetPCIBusId, (char *text, int bytes, tgl_cu_device device))                                    \
    X(DevicePrimaryCtxRelease, (tgl_cu_device device))                                                     \
    X(CtxSetCurrent, (tgl_cu_context context))                                                             \
    X(CtxSynchronize, (void))                                                                              \
    X(MemGetInfo, (size_t *free_bytes, size_t *total_bytes))                                               \
    X(MemAllocManaged, (tgl_cu_pointer *pointer, size_t bytes, unsigned flags))                            \
    X(MemHostAlloc, (void **pointer, size_t bytes, unsigned flags))                                        \
    X(MemFreeHost, (void *pointer))                                                                        \
    X(MemHostRegister, (void *pointer, size_t bytes, unsigned flags))                                      \
    X(MemHostUnregister, (void *pointer))                                                                  \
    X(MemsetD8, (tgl_cu_pointer to, unsigned char value, size_t bytes))                                    \
    X(MemsetD32Async, (tgl_cu_pointer to, unsigned value, size_t words, tgl_stream stream))                \
    X(MemcpyHtoD, (tgl_cu_pointer to, const void *from, size_t bytes))                                     \
    X(MemcpyDtoH, (void *to, tgl_cu_pointer from, size_t bytes))                                           \
    X(MemcpyDtoD, (tgl_cu_pointer to, tgl_cu_pointer from, size_t bytes))                                  \
    X(MemcpyDtoDAsync, (tgl_cu_pointer to, tgl_cu_pointer from, size_t bytes, tgl_stream stream))          \
    X(StreamQuery, (tgl_stream stream))                                                                    \
    X(StreamWaitEvent, (tgl_stream stream, tgl_cu_event event, unsigned flags))                            \
    X(StreamBeginCapture, (tgl_stream stream, int mode))                                                   \
    X(StreamEndCapture, (tgl_stream stream, tgl_cu_graph *graph))                                          \
    X(EventCreate, (tgl_cu_event *event, unsigned flags))                                                  \
    X(EventDestroy, (tgl_cu_event event))                                                                  \
    X(EventRecord, (tgl_cu_event event, tgl_stream stream))                                                \
    X(EventSynchronize, (tgl_cu_event event))                                                              \
    X(EventElapsedTime, (float *milliseconds, tgl_cu_event begin, tgl_cu_event end))                       \
    X(GraphInstantiateWithFlags, (tgl_cu_graph_exec *exec, tgl_cu_graph graph, unsigned long long flags))  \
    X(GraphLaunch, (tgl_cu_graph_exec exec, tgl_stream stream))                                            \
    X(GraphExecDestroy, (tgl_cu_graph_exec exec))                                                          \
    X(GraphDestroy, (tgl_cu_graph graph))                                                                  \
    X(OccupancyMaxActiveBlocksPerMultiprocessor,                                                           \
      (int *blocks, tgl_cu_function function, int threads, size_t shared_bytes))                           \
    X(TensorMapEncodeTiled,                                                                                \
      (tgl_cu_tensor_map *map, int type, uint32_t rank, void *address, const uint64_t *dims,               \
       const uint64_t *strides, const uint32_t *box, const uint32_t *element_strides, int interleave,      \
       int swizzle, int l2_promotion, int out_of_bounds_fill))
// clang-format on

typedef struct {
    void *handle;              /* of dlopen, for functions that are not in the table */
    char path[TGL_PATH_BYTES]; /* the file that was loaded */
    int version;               /* 12040: the newest CUDA that the driver supports */
#define TGL_DRIVER_FIELD(name, parameters) tgl_cu_result(*name) parameters;
    TGL_DRIVER_NEEDED(TGL_DRIVER_FIELD)
    TGL_DRIVER_MORE(TGL_DRIVER_FIELD)
#undef TGL_DRIVER_FIELD
} tgl_driver_table;

/* Loads the driver, calls cuInit and fills the table, once; a failure (TGL_ERR_DEVICE: no driver, too old,
 * no device, forked after cuInit) is returned by every later call. Once loaded, it costs one atomic load. */
tgl_status tgl_driver(const tgl_driver_table **table);

/* The newest CUDA that the driver supports, as 12040; 0 without a driver. Does not call cuInit. */
int tgl_driver_version(void);

/* TGL_OK for 0; otherwise TGL_ERR_MEMORY for out of memory, TGL_ERR_CUDA for the rest, with
 * "cuLibraryLoadData: CUDA_ERROR_... (text)". `call` says what failed: "cuMemAlloc". */
tgl_status tgl_driver_check(tgl_cu_result result, const char *call);

/* Did an earlier kernel, of anyone, fault? Such an error stays until the context is destroyed. */
bool tgl_driver_is_sticky(tgl_cu_result result);

/* Properties of a device, read once. */
typedef struct {
    char name[128];
    int major, minor, num_sms;
    int64_t max_smem_per_sm, max_smem_per_block_optin, total_memory, l2_bytes;
    char architecture[16];   /* what we compile for: "sm_90a" (rule: tgl_jit_architecture()) */
    int architecture_number; /* 90 for "sm_90a" and for "compute_90" */
    bool is_emulated;        /* the emulated device of tests/emulator */
    bool has_clusters;
    bool uses_host_page_tables; /* reads any host memory, by its address */
    tgl_cu_device handle;
} tgl_device;
tgl_status tgl_device_get(int device, const tgl_device **out);
tgl_status tgl_device_count(int *count);

/* Makes a context of `device` current: keeps the current one if it is of that device, else takes the
 * stream's, else the primary one. `context` is the one in use. tgl_context_leave() restores the previous
 * one. */
typedef struct {
    tgl_cu_context context;
    bool pushed;
} tgl_context_guard;
tgl_status tgl_context_enter(int device, tgl_stream stream, tgl_context_guard *guard);
void tgl_context_leave(tgl_context_guard *guard);

/* Loading and allocating are forbidden while this thread captures (in global mode: any thread), and
 * invalidate the capture. Between these two calls they are allowed. */
enum { TGL_CU_CAPTURE_UNCHANGED = -1 };
int tgl_capture_relax(const tgl_driver_table *cu);
void tgl_capture_restore(const tgl_driver_table *cu, int mode);

/* The device address of page-locked host memory, or of any host memory if the device uses the host's page tables.
 * TGL_ERR_ARGUMENT for other memory; `name` is the argument that has it. */
tgl_status tgl_address_on_device(const char *name, int device, tgl_stream stream, const void *host,
                                 tgl_cu_pointer *address);

#endif
