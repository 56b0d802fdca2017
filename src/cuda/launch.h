/* SPDX-License-Identifier: MIT
 * launch.h - all that an op needs to run a kernel: its name and macros, the launch shape, and its
 * arguments, a struct that the kernel takes by value.
 *
 *     const tgl_kernel k = { "transpose/transpose", { { "ELEMENT_BYTES", 2 } } };
 *     const transpose_copy_args args = { x, out, num_rows, ... };
 *     return tgl_launch(&k, 1, 0, tensor, &(tgl_shape){ { blocks }, .block = 256, TGL_ARGS(args) }, stream);
 */
#ifndef TEGULA_LAUNCH_H
#define TEGULA_LAUNCH_H

#include "core/tensor.h"
#include "cuda/kernel.h"

/* A tensor of 16-bit elements whose boxes the kernel copies as one (tensor_load_*), with a swizzle of 128 bytes. The
 * launch encodes it into the arguments. */
typedef struct {
    void *map; /* 128 bytes of the arguments, aligned to 64 */
    const void *data;
    int rank;
    uint64_t sizes[5], strides[4]; /* the contiguous dimension first, which has no stride; in bytes */
    uint32_t box[5];
} tgl_copied_tensor;

typedef struct tgl_other_launch tgl_other_launch;
typedef struct {
    int64_t grid[3];                 /* blocks; 0 in y or z means 1 */
    int block;                       /* threads */
    int64_t shared_bytes;            /* dynamic shared memory, up to what the device has */
    int cluster;                     /* blocks per cluster along x; 0: no cluster, where st.async is illegal */
    bool cooperative;                /* blocks wait for each other, so all must be resident */
    bool is_cut;                     /* of clusters that stride over the work: no more are launched than fit at once */
    const tgl_copied_tensor *copied; /* or NULL */
    const void *args;                /* the kernel's one parameter, and its size (TGL_ARGS) */
    size_t args_bytes;
    const tgl_other_launch *otherwise; /* if the context has no room for such a cluster or for all blocks at once
                                        * (cooperative), or the driver has no copies; or NULL */
    bool *is_refused; /* set if there is no room, and no other launch: it failed, nothing has run; or NULL. For
                       * tgl_run_on_cuda(), which then wants a shape for fewer SMs, or another kernel */
} tgl_shape;

#define TGL_ARGS(struct_) .args = &(struct_), .args_bytes = sizeof(struct_)
static inline tgl_shape tgl_shape_with(tgl_shape shape, const void *args, size_t args_bytes)
{
    shape.args = args;
    shape.args_bytes = args_bytes;
    return shape;
}

/* Another kernel of the plan that computes the same. */
struct tgl_other_launch {
    int which;
    const tgl_shape *shape;
};

/* Enqueues plan[which] on `stream`, on the device of `on`. A plan lists all kernels among which a
 * configuration (dtypes, flags, sizes fixed by the model) chooses by token count, strides or addresses;
 * entries without a name are skipped. The first launch of a plan loads all its kernels, cached or
 * compiled, so that no later call of the configuration stalls; in prepare mode nothing else happens
 * (`which` and `shape` are ignored). Later launches are a hash look-up and cuLaunchKernelEx. A grid of 0
 * in x is not launched. */
tgl_status tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on, const tgl_shape *shape,
                      tgl_stream stream);

/* Blocks of a kernel with a grid-stride loop: min(blocks, max). Tests replace it (tests/launch_alone.c),
 * so that the loop of small cases runs more than once. */
int64_t tgl_strided_grid(int64_t blocks, int64_t max);

/* Loads a plan as its first launch does: in prepare mode, and for a call that launches other ops' kernels. */
tgl_status tgl_load(const tgl_kernel *plan, int num_kernels, const DLTensor *on, tgl_stream stream);

/* For launch shapes that depend on the device: SMs to use (tgl_set_num_sms), the architecture that kernels
 * are compiled for (major * 10 + minor), max shared memory per block. When preparing for an architecture,
 * those of its largest GPU. */
typedef struct {
    int num_sms, architecture;
    int64_t max_smem_per_block;
} tgl_target;
tgl_status tgl_target_of(const DLTensor *on, tgl_target *target);

/* A grid of at least `blocks` blocks. If x cannot hold them, y is above 1; the kernel takes its number from
 * block_index() and skips numbers past the end. */
tgl_shape tgl_shape_of_blocks(int64_t blocks, int threads);
extern int64_t tgl_max_grid_x; /* INT32_MAX; tests lower it */

#endif
