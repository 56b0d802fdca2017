/* SPDX-License-Identifier: MIT
 * top2_sum_gate_many.cu - top2_sum_gate for many tokens: the selection with the fewest instructions.
 *   computes  the bits of top2_sum_gate.cu
 *   launch    grid ceil(num_tokens / warps), block of 1 .. TOKEN_BLOCK_WARPS warps
 *   moves     as top2_sum_gate.cu
 *   macros    SCORING, NUM_TOPK, INDEX_BYTES, GROUP_LANES, NUM_LISTS: see gate.cuh
 *
 * The NUM_TOPK-th largest of the lanes' maxima is a lower bound of the NUM_TOPK-th best key; the experts
 * above it, less the error, are the candidates: one or two more than NUM_TOPK on random rows. They are
 * compacted through shared memory. A candidate's slot is the number of candidates above it. */
#include "moe/common/gate.cuh"

/* Per SM, of 256 threads: 48, 64 or 128 registers, enough without spills. */
enum { MIN_BLOCKS = NUM_LISTS <= 2 ? 5 : NUM_LISTS <= 4 ? 4 : 2 };

typedef struct __align__(16) {
    u32 key[32];
    u16 place[64];  /* of a candidate: index in the lane, and the lane */
    u32 expert[32]; /* by slot */
    float score[32];
} scratch;

DEV float best_of(const values &f)
{
    values m = f;
#pragma unroll
    for (int d = 1; d < LANE_EXPERTS; d *= 2)
#pragma unroll
        for (int i = 0; i + d < LANE_EXPERTS; i += 2 * d) m.x[i] = fmaxf(m.x[i], m.x[i + d]);
    return m.x[0];
}

/* Lists the experts above `bound` in s.place and returns their number; beyond 32 the list is incomplete. */
DEV u32 list_candidates(scratch &s, const values &f, float bound, u32 lane)
{
    u32 left = 0; /* bit LANE_EXPERTS - 1 - i: expert i of the lane is one */
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) left = __funnelshift_l(__float_as_uint(bound - f.x[i]), left, 1);
    u32 count = 0, any = __ballot_sync(FULL, left != 0);
#pragma unroll 1
    while (any && count <= 32) { /* one of every lane per turn; mostly two turns */
        if (left) {
            const u32 i = LANE_EXPERTS - __ffs((int)left);
            s.place[count + __popc(any & lanes_below())] = (u16)(i << 5 | lane);
        }
        left &= left - 1;
        count += __popc(any);
        any = __ballot_sync(FULL, left != 0);
    }
    return count;
}

DEV candidate select_dense(const tgl_gate &gate, const token &k, scratch &s, u32 lane)
{
    values f;
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) f.x[i] = filter<true>(k.logits.x[i], k.bias.x[i]);
    bool is_left = true;
    if (IS_GROUPED) {
        is_left = group_stays(gate, k, f, lane);
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; i++) f.x[i] = is_left ? f.x[i] : MINUS_INFINITY;
    }
    u32 best = key_of(best_of(f)), first = TGL_RANK_NONE, last = TGL_RANK_NONE;
#pragma unroll
    for (u32 i = 0; i < NUM_TOPK; i++) {
        last = warp_max_u32(best);
        if (i == 0) first = last;
        if (best == last) best = TGL_RANK_NONE; /* equal ones go together, which only lowers the bound */
    }
    bool is_settled = first < KEY_INFINITE && last >= KEY_FINITE;
    /* for the exact filter, > value_of(last - 1) is >= value_of(last) */
    const float bound = IS_EXACT_FILTER ? value_of(last - 1) : filter_floor<true>(value_of(last));
    u32 num_candidates = is_settled ? list_candidates(s, f, bound, lane) : 0;
    __syncwarp();
    is_settled = num_candidates >= NUM_TOPK && num_candidates <= 32;
    u32 expert = 0;
    if (is_settled) {
        const u32 place = s.place[lane];
        if (lane < num_candidates) expert = expert_at(gate, place % 32, place / 32);
    } else {
        /* If the choice is not wanted, any NUM_TOPK distinct experts: every slot must get a valid one, as it
         * is looked up in the map. There are more experts than lanes. */
        expert = is_wanted(k) ? choose_exactly(gate, k.row, is_left, lane) : lane;
        num_candidates = NUM_TOPK;
    }
    const candidate c = score_candidate(gate, k.row, expert);
    const u32 key = lane < num_candidates ? c.key : TGL_RANK_NONE;
    s.key[lane] = key;
    __syncwarp();
    u32 at = lane < num_candidates ? 0 : 32;
#pragma unroll
    for (u32 i = 0; i < 32; i += 4)
        if (i < NUM_TOPK || i < num_candidates) {
            const uint4 other = *(const uint4 *)&s.key[i];
            at += (other.x > key) + (other.y > key) + (other.z > key) + (other.w > key);
        }
    /* The sum over NUM_TOPK distinct slots. Equal keys lower it or add a lane. */
    enum { EACH = 1024, SUM = NUM_TOPK * EACH + NUM_TOPK * (NUM_TOPK - 1) / 2 };
    if (warp_add_u32(at < NUM_TOPK ? at + EACH : 0) != SUM)
#pragma unroll 1
        for (u32 i = 0; i < num_candidates; i++) {
            const u32 other = __shfl_sync(FULL, c.expert, i);
            at += s.key[i] == key && other < c.expert;
        }
    if (at < NUM_TOPK) {
        s.expert[at] = c.expert;
        s.score[at] = c.score;
    }
    __syncwarp();
    const u32 slot = min(lane, (u32)NUM_TOPK - 1); /* lanes beyond have no slot and read any */
    return { s.expert[slot], s.score[slot], 0 };
}

extern "C" __global__ void __launch_bounds__(32 * TOKEN_BLOCK_WARPS, MIN_BLOCKS)
    top2_sum_gate_many(const __grid_constant__ tgl_gate gate)
{
    SHARED(scratch[TOKEN_BLOCK_WARPS], scratches);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 t = (i64)blockIdx.x * (blockDim.x / 32) + warp;
    pdl_wait();
    if (t >= gate.num_tokens) return;
    const token k = load_token(gate, t, lane);
    const tgl_softmax softmax = softmax_of_values(k.logits);
    const candidate c = select_dense(gate, k, scratches[warp], lane);
    const auto index_of = [&](u32 expert) { return (i32)tgl_gate_index(&gate, t, expert); };
    store_slot(gate, t, finish_token(gate, t, k, c, softmax, true, lane, index_of, see_nothing), lane);
    pdl_trigger();
}
