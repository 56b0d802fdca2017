/* SPDX-License-Identifier: MIT
 * launch.h - all that an op needs to run a kernel: which one with which macros, the launch shape, the
 * arguments, a struct that the kernel takes by value.
 *
 *     const tgl_kernel k = { "transpose/transpose", { { "ELEMENT_BYTES", 2 } } };
 *     const transpose_args args = { x, out, num_rows, ... };
 *     return tgl_launch(&k, 1, 0, tensor, &(tgl_shape){ { blocks }, .block = 256, TGL_ARGS(args) }, stream);
 */
#ifndef TEGULA_LAUNCH_H
#define TEGULA_LAUNCH_H

#include "core/tensor.h"

enum { TGL_MAX_MACROS = 12 };
typedef struct { const char *name; int64_t value; } tgl_macro;

/* src/<name>.cu, whose entry is the part of the name after the slash, compiled with -D<macro>=<value> for
 * each macro that has a name. */
typedef struct {
    const char *name;
    tgl_macro macros[TGL_MAX_MACROS];
} tgl_kernel;

typedef struct tgl_other_launch tgl_other_launch;
typedef struct {
    int64_t grid[3];        /* blocks; 0 in y or z means 1 */
    int block;              /* threads */
    int64_t shared_bytes;   /* dynamic shared memory; any size the device has */
    int cluster;            /* blocks per cluster along x; 0 or 1 means none */
    bool cooperative;       /* blocks wait for each other: all must be resident */
    const void *args;       /* the kernel's one parameter, and its size (TGL_ARGS) */
    size_t args_bytes;
    const tgl_other_launch *otherwise;  /* where the device has no room for such a cluster; or NULL */
} tgl_shape;

#define TGL_ARGS(struct_) .args = &(struct_), .args_bytes = sizeof(struct_)
static inline tgl_shape tgl_shape_with(tgl_shape shape, const void *args, size_t args_bytes)
{
    shape.args = args;
    shape.args_bytes = args_bytes;
    return shape;
}

/* Another kernel of the plan that does the same. */
struct tgl_other_launch { int which; const tgl_shape *shape; };

/* Enqueues plan[which] on `stream`, on the device of `on`. A plan has all kernels among which a configuration
 * (dtypes, flags, sizes that a model fixes) chooses by token count, strides or addresses. Warm, this is a
 * hash look-up and cuLaunchKernelEx. The first launch by a plan loads all of it, from the cache or compiled:
 * so no later call of the configuration stalls. In prepare mode that is all that happens
 * (`which` and `shape` may then be anything). A kernel without a name is left out: a plan has none
 * in that place. A grid with a zero in x is not launched. */
tgl_status tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                      const tgl_shape *shape, tgl_stream stream);

/* Blocks of a kernel that strides over its work: as many as there is work for, `most` at most. Tests put another
 * in its place (tests/launch_alone.c), so that small cases take a second trip. */
int64_t tgl_strided_grid(int64_t blocks, int64_t most);

/* Loads a plan, as the first launch by it does: in prepare mode, and for a call that launches the kernels of other
 * ops, whose plans lack some of its own. */
tgl_status tgl_load(const tgl_kernel *plan, int num_kernels, const DLTensor *on, tgl_stream stream);

/* For ops whose launch shape depends on the device: SMs to use (tgl_set_num_sms), the architecture that
 * kernels are compiled for as major * 10 + minor, shared memory a block may have. In prepare mode for an
 * architecture without a device these are that architecture's. */
typedef struct { int num_sms, architecture; int64_t max_smem_per_block; } tgl_target;
tgl_status tgl_target_of(const DLTensor *on, tgl_target *target);

/* A block for each of so many tokens, say, of which x of a grid may have too few: then y has more rows of
 * blocks, and a kernel counts by block_index() and leaves what is past the end alone. */
tgl_shape tgl_shape_of_blocks(int64_t blocks, int threads);
extern int64_t tgl_max_grid_x;      /* INT32_MAX; tests set less */

#endif
