/* SPDX-License-Identifier: MIT
 * Kernels with a block per token take more tokens than gridDim.x allows: the launch shape, and every such
 * kernel with a limit that a few tokens exceed. */
#include "cuda/launch.h"
#include "support.h"

static void check_shape(int64_t blocks, int64_t x, int64_t y)
{
    const tgl_shape s = tgl_shape_of_blocks(blocks, 128);
    CHECK_INT(s.grid[0], x);
    CHECK_INT(s.grid[1], y);
    CHECK_INT(s.grid[2], 0);
    CHECK_INT(s.block, 128);
}

TEST(shapes)
{
    const int64_t most = INT32_MAX;
    check_shape(0, 0, 0);
    check_shape(1, 1, 1);
    check_shape(most, most, 1);
    check_shape(most + 1, (int64_t)1 << 30, 2);
    check_shape(2 * most, most, 2);
    check_shape(2 * most + 1, (2 * most + 1) / 3, 3);
    check_shape(65535 * most, most, 65535);
}

TEST(tokens_in_rows_of_blocks)
{
    static const struct {
        const char *op, *line;
    } wide[] = {
        { "moe_topk_gate", "num_tokens=1,3,4,7 num_experts=1025 num_topk=3 dtype=i64" },
        { "moe_topk_sum_and_topk_group_idx", "num_tokens=1,3,4,7 num_groups=33 experts_per_group=3 num_topk_groups=2" },
        { "moe_top2_sum_gate",
          "num_tokens=1,3,4,7 num_experts=1026 num_topk=3 replicas=3 num_shared_experts=1 mask=some" },
        { "moe_hash_gate",
          "num_tokens=1,3,4,7 num_experts=64 num_topk=33 vocabulary=40 replicas=3 mask=some ids=beyond" },
    };
    FOR_BACKENDS(b) {
        if (backend_is_cpu(b)) continue;
        tgl_max_grid_x = 3;
        for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
            check_lines(wide[i].op, (const char *const[]){ wide[i].line, NULL }, b);
        tgl_max_grid_x = INT32_MAX;
    }
}
