/* SPDX-License-Identifier: MIT
 * wrapped_launch.h - tgl_launch(), tgl_load() in programs that the linker gives others in their place (--wrap):
 * theirs, and the library's. */
#ifndef TEGULA_TEST_WRAPPED_LAUNCH_H
#define TEGULA_TEST_WRAPPED_LAUNCH_H

#include "cuda/launch.h"

tgl_status __wrap_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream);
tgl_status __real_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream);
tgl_status __wrap_tgl_load(const tgl_kernel *plan, int num_kernels, const DLTensor *on, tgl_stream stream);

#endif
