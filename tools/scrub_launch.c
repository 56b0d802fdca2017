/* SPDX-License-Identifier: MIT
 * scrub_launch.c - tgl_launch() in the tool: the linker puts this in its place (--wrap), so that --scrub
 * costs users of the library nothing. */
#include "cases/scrub.h"
#include "cuda/launch.h"

tgl_status __wrap_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream);
tgl_status __real_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream);

tgl_status __wrap_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream)
{
    if (!tgl_preparing()) TGL_TRY(scrub_shared_memory(on->device.device_id, stream));
    return __real_tgl_launch(plan, num_kernels, which, on, shape, stream);
}
