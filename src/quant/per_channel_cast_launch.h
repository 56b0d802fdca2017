/* SPDX-License-Identifier: MIT
 * per_channel_cast_launch.h - the launch of casts with a factor per column: the host's half of
 * channel.h. */
#ifndef TEGULA_QUANT_PER_CHANNEL_CAST_LAUNCH_H
#define TEGULA_QUANT_PER_CHANNEL_CAST_LAUNCH_H

#include "cuda/launch.h"
#include "quant/common/channel.h"

/* Macro BLOCK_ROWS: 32, 64, 128, or 0 for any other number. */
int64_t tgl_channel_block_rows(int64_t block_rows);

/* Launches a cast of which all is set but alignment and tiles. `kernel`: its first macros are
 * STRIP_LANES, STRIP_ROWS and PATCH_ROWS, of any value. `x`: macro X. `may_stage`: if there are many tiles,
 * quant/per_channel_cast_staged may be launched in place of `kernel`. */
tgl_status tgl_launch_channel_cast(tgl_channel_cast *cast, const tgl_kernel *kernel, int x, bool is_swiglu,
                                   bool is_transposed, bool may_stage, const DLTensor *on, tgl_stream stream);

#endif
