/* SPDX-License-Identifier: MIT
 * gate.cuh - one warp routes one token: NUM_TOPK of up to 1024 experts, in registers.
 *
 * A cheap filter of known error finds the few candidates (`values` are approximate keys); each candidate is
 * then scored exactly, one per lane, and ranked by key and index. So approximations never affect a result,
 * however close keys are. Rows that the filter cannot settle (infinite keys, more than 32 candidates) are
 * ranked exactly.
 *
 * Lane k has slot k of the token. A kernel calls load_token(), a selection and finish_token(); gate_token()
 * does all three with select_short(), the selection of lowest latency. Masked and fixed tokens are selected
 * too and the result is dropped, so that no token waits for its masks; slow, rare paths are skipped for them.
 *
 *   macros    SCORING 0 .. 3; NUM_TOPK 1 .. 32; INDEX_BYTES 4 or 8;
 *             GROUP_LANES: lanes per group of experts, 1, 2 ... 16, at most 32 / num_groups; 32: no groups;
 *             NUM_LISTS 1 .. 8: vectors per lane, ceil(group_size / (4 * GROUP_LANES)) */
#ifndef TEGULA_MOE_GATE_CUH
#define TEGULA_MOE_GATE_CUH

#include "device/reduce.cuh"
#include "moe/common/gate.h"
#include "moe/common/gate_slots.cuh"
#include "moe/common/short_keys.cuh"
#include "moe/common/topk.cuh"

static_assert(GROUP_LANES >= 1 && 32 % GROUP_LANES == 0, "GROUP_LANES is 1, 2, 4 ... 32");
static_assert(NUM_LISTS <= GATE_MAX_LISTS, "NUM_LISTS is 1 .. GATE_MAX_LISTS");
static_assert(NUM_TOPK <= 32, "NUM_TOPK is 1 .. 32");

enum {
    IS_GROUPED = GROUP_LANES < 32,
    MAX_GROUPS = 32 / GROUP_LANES,
    LANE_EXPERTS = 4 * NUM_LISTS,
    /* softmax and identity rank by logit + bias, which is as cheap as any filter */
    IS_EXACT_FILTER = SCORING == TGL_SOFTMAX || SCORING == TGL_IDENTITY
};
#define INFINITE __uint_as_float(0x7f800000)
#define MINUS_INFINITY __uint_as_float(0xff800000)
#define ABSENT __uint_as_float(0x7fffffff) /* the logit past the last expert: NaN */
#define KEY_INFINITE 0xff800000u           /* keys (numerics/rank.h) of +inf and ... */
#define KEY_FINITE 0x00800000u             /* ... the lowest finite number */

/* Of a lane. Its vector i is vector lane % GROUP_LANES + GROUP_LANES * i of its group. */
typedef struct { float x[LANE_EXPERTS]; } values;

DEV u32 lane_part(u32 lane) { return lane % GROUP_LANES; }
DEV u32 lane_group(u32 lane) { return lane / GROUP_LANES; }
DEV u32 offset_of(u32 lane, u32 i) { return 4 * (lane_part(lane) + GROUP_LANES * (i / 4)) + i % 4; }
DEV u32 expert_at(const tgl_gate &gate, u32 lane, u32 i)
{
    return (IS_GROUPED ? lane_group(lane) * gate.group_size : 0) + offset_of(lane, i);
}
DEV u32 lane_group_size(const tgl_gate &gate, u32 lane)
{
    return !IS_GROUPED || lane_group(lane) < gate.num_groups ? gate.group_size : 0;
}

template <bool IS_VECTOR>
DEV values load_values(const tgl_gate &gate, const float *from, u32 size, float absent, u32 lane)
{
    const float *group = from + (IS_GROUPED && size ? lane_group(lane) * gate.group_size : 0);
    values v;
    if (IS_VECTOR) {
#pragma unroll
        for (u32 i = 0; i < LANE_EXPERTS; i += 4) {
            float4 x = { absent, absent, absent, absent };
            if (offset_of(lane, i) < size) x = *(const float4 *)(group + offset_of(lane, i));
            v.x[i] = x.x;
            v.x[i + 1] = x.y;
            v.x[i + 2] = x.z;
            v.x[i + 3] = x.w;
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < LANE_EXPERTS; i++) v.x[i] = offset_of(lane, i) < size ? group[offset_of(lane, i)] : absent;
    }
    return v;
}

typedef struct {
    const float *row;
    values logits, bias;
    u32 mask, fixed; /* as loaded: nothing waits for them before their use */
} token;

DEV void load_masks(const tgl_gate &gate, i64 t, token &k)
{
    k.mask = gate.mask ? gate.mask[t] : 1;
    k.fixed = gate.fix_routing_mask ? gate.fix_routing_mask[t] : 0;
}

/* All loads are issued at once. WAITS: calls pdl_wait() as late as possible, when parameters and addresses
 * are known, and loads the masks first. Otherwise pdl_wait() was called before. */
template <bool WAITS = false> DEV token load_token(const tgl_gate &gate, i64 t, u32 lane)
{
    token k;
    const u32 size = lane_group_size(gate, lane), bias_size = gate.bias ? size : 0;
    k.row = gate.logits + t * gate.logits_stride;
    if (gate.is_vector) {
        if (WAITS) {
            pdl_wait();
            load_masks(gate, t, k);
        }
        k.logits = load_values<true>(gate, k.row, size, ABSENT, lane);
        k.bias = load_values<true>(gate, gate.bias, bias_size, 0.0f, lane);
    } else {
        if (WAITS) {
            pdl_wait();
            load_masks(gate, t, k);
        }
        k.logits = load_values<false>(gate, k.row, size, ABSENT, lane);
        k.bias = load_values<false>(gate, gate.bias, bias_size, 0.0f, lane);
    }
    if (!WAITS) load_masks(gate, t, k);
    return k;
}
DEV bool is_masked(const token &k) { return k.mask == 0; }
DEV bool is_fixed(const token &k) { return (k.fixed != 0) & (k.mask != 0); }
DEV bool is_wanted(const token &k) { return (k.fixed == 0) & (k.mask != 0); }

/* ---- the filter ----
 * filter() is score + bias (less a constant if IS_COARSE); NaN becomes -inf. It differs from the exact key by
 * at most filter_error() plus roundings of the sum, below 2^-21 of it. Where sqrtsoftplus would need more (x
 * above 88, a score above 9.4) it is +inf and settles nothing.
 *
 * Bounds, from the errors stated by the PTX ISA (device/ptx.cuh) and 2 ulp for expf and log1pf:
 *   sigmoid            ex2 of a rounded product: s (1 - s) (2^-22 + 2^-23 |x|), at most 9e-8; 1 + e and rcp
 *                      1.8e-7; the exact form 1.8e-7                          4.5e-7, taken as 1e-6
 *   coarse sigmoid     tanh: 2^-12                                            2.5e-4, taken as 3e-4
 *   coarse sqrtsoftplus    log2(1 + e) is off by 5.7e-7 for x <= 0, where it may be 0: its root by
 *                      sqrt(5.7e-7), times sqrt(ln 2); far less for x > 0     6.4e-4, taken as 8e-4
 *   sqrtsoftplus       a series for e < 2^-8, so the root is that of 2^-8 at least: 2.1e-6; for large x, 4e-7
 *                      of up to 9.4                                           3.8e-6, taken as 8e-6 */
template <bool IS_COARSE> DEV float filter(float x, float bias)
{
    const float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f, sqrt_ln_2 = 0.8325546111576977f;
    if (IS_EXACT_FILTER) return tgl_rank_score(x + bias);
    float key;
    if (SCORING == TGL_SIGMOID && IS_COARSE && !IS_GROUPED) {
        key = fmaf(0.5f, tanh_fast(0.5f * x), bias);
    } else if (SCORING == TGL_SIGMOID) {
        key = rcp_fast(1.0f + ex2_fast(x * -log2_e)) + bias;
    } else {
        const float e = ex2_fast(x * log2_e);
        const float log2_1p = fabsf(lg2_fast(1.0f + e)); /* may be just below 0 */
        if (IS_GROUPED || !IS_COARSE) {
            const float series = e * fmaf(e, fmaf(e, 0.33333333f, -0.5f), 1.0f);
            key = sqrt_fast(e < 0.00390625f ? series : ln_2 * log2_1p) + bias;
        } else {
            key = fmaf(sqrt_ln_2, sqrt_fast(log2_1p), bias);
        }
    }
    return fmaxf(key, MINUS_INFINITY);
}

template <bool IS_COARSE> DEV float filter_error(void)
{
    if (IS_EXACT_FILTER) return 0.0f;
    if (SCORING == TGL_SIGMOID) return IS_COARSE && !IS_GROUPED ? 3e-4f : 1e-6f;
    return IS_GROUPED || !IS_COARSE ? 8e-6f : 8e-4f;
}

/* An expert whose exact key is at least that of `key`'s expert has a filtered key of at least this. */
template <bool IS_COARSE> DEV float filter_floor(float key)
{
    return IS_EXACT_FILTER ? key : key - (2.0f * filter_error<IS_COARSE>() + fabsf(key) * 1e-6f);
}

DEV u32 key_of(float filtered) /* tgl_rank_key() of what is neither NaN nor -0 */
{
    const u32 bits = __float_as_uint(filtered);
    return bits ^ (0x80000000 | (u32)((i32)bits >> 31));
}
DEV float value_of(u32 key) { return tgl_rank_value((u64)key << 32); }

DEV float exact_key(const tgl_gate &gate, const float *row, u32 e)
{
    return tgl_score_key(SCORING, row[e], gate.bias ? gate.bias[e] : 0.0f);
}

/* ---- groups ---- */

DEV two best_two_of_group(two best) { return best_two_of_lanes<GROUP_LANES>(best); }

DEV float group_sum(const tgl_gate &gate, two best)
{
    return gate.group_size == 1 ? best.first : best.first + best.second;
}

/* The number of lanes in this lane's group with is_true. */
DEV u32 count_in_group(bool is_true, u32 lane)
{
    if (GROUP_LANES == 1) return is_true;
    const u32 group_mask = (1u << GROUP_LANES % 32) - 1;
    return __popc(__ballot_sync(FULL, is_true) >> lane_group(lane) * GROUP_LANES % 32 & group_mask);
}

/* Is this lane's group among the best? `sum` is the same in all lanes of a group. */
DEV bool is_best_group(const tgl_gate &gate, float sum, u32 lane)
{
    const u32 group = lane_group(lane), key = group < gate.num_groups ? tgl_rank_key(sum) : TGL_RANK_NONE;
    u32 above = 0;
#pragma unroll
    for (u32 i = 0; i < MAX_GROUPS; i += GROUP_LANES) {
        const u32 other = i + lane_part(lane), other_key = __shfl_sync(FULL, key, other * GROUP_LANES % 32);
        const bool is_above = other_key > key || (other_key == key && other < group);
        above += count_in_group(other < MAX_GROUPS && is_above, lane);
    }
    return above < gate.num_topk_groups && group < gate.num_groups;
}

/* The exact sum of a group, given its filtered best two: scores only experts that may be among the exact best
 * two, mostly none or one per lane. */
DEV float exact_group_sum(const tgl_gate &gate, const float *row, const values &f, two filtered, u32 lane)
{
    const float floor = filtered.first < INFINITE ? filter_floor<false>(filtered.second) : MINUS_INFINITY;
    u32 left = 0;
#pragma unroll
    for (u32 i = 0; i < LANE_EXPERTS; i++) left |= (u32)(f.x[i] >= floor) << i;
    two best = { MINUS_INFINITY, MINUS_INFINITY };
#pragma unroll 1
    for (; left; left &= left - 1) {
        const u32 i = __ffs((int)left) - 1;
        if (offset_of(lane, i) >= lane_group_size(gate, lane)) continue;
        const float key = exact_key(gate, row, expert_at(gate, lane, i));
        best = best_two(best, { tgl_rank_score(key), MINUS_INFINITY });
    }
    __syncwarp();
    return group_sum(gate, best_two_of_group(best));
}

/* The best two of a lane, by a tournament. */
DEV two best_two_of(const values &f)
{
    two best[LANE_EXPERTS / 2];
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS / 2; i++)
        best[i] = { fmaxf(f.x[2 * i], f.x[2 * i + 1]), fminf(f.x[2 * i], f.x[2 * i + 1]) };
#pragma unroll
    for (int d = 1; d < LANE_EXPERTS / 2; d *= 2)
#pragma unroll
        for (int i = 0; i + d < LANE_EXPERTS / 2; i += 2 * d) best[i] = best_two(best[i], best[i + d]);
    return best[0];
}

/* Does this lane's group stay? Filtered sums decide if every group is certainly in (few enough may be above
 * it) or certainly out (enough are above it), whatever the errors. */
DEV bool group_stays(const tgl_gate &gate, const token &k, const values &f, u32 lane)
{
    const two best = best_two_of_group(best_two_of(f));
    const float sum = group_sum(gate, best);
    if (IS_EXACT_FILTER) return is_best_group(gate, sum, lane);
    const float error = 2.0f * filter_error<false>() + (fabsf(best.first) + fabsf(best.second)) * 1e-6f;
    const bool is_there = lane_group(lane) < gate.num_groups;
    const float low = is_there ? sum - error : MINUS_INFINITY, high = is_there ? sum + error : MINUS_INFINITY;
    u32 above = 0, near = 0; /* near: including the group itself */
#pragma unroll
    for (u32 i = 0; i < MAX_GROUPS; i += GROUP_LANES) {
        const u32 other = i + lane_part(lane), from = other * GROUP_LANES % 32;
        const float other_low = __shfl_sync(FULL, low, from), other_high = __shfl_sync(FULL, high, from);
        above += count_in_group(other < MAX_GROUPS && other_low > high, lane);
        near += count_in_group(other < MAX_GROUPS && !(other_high < low), lane); /* NaN counts as near */
    }
    const bool is_in = near <= gate.num_topk_groups, is_out = above >= gate.num_topk_groups;
    if (__builtin_expect(__any_sync(FULL, (is_in == is_out) & is_wanted(k)), 0))
        return is_best_group(gate, exact_group_sum(gate, k.row, f, best, lane), lane);
    return is_in;
}

/* ---- selections: the expert of slot k, and its score, in lane k ---- */

/* The best experts of the groups that stay, by exact ranks, in lanes 0 .. NUM_TOPK - 1. */
DEV u64 best_exact_below(const tgl_gate &gate, const float *row, u64 limit, u32 lane)
{
    const u32 size = lane_group_size(gate, lane), begin = IS_GROUPED ? lane_group(lane) * gate.group_size : 0;
    u64 best = TGL_RANK_NONE;
#pragma unroll 1
    for (u32 i = lane_part(lane); i < size; i += GROUP_LANES) {
        const u64 rank = tgl_rank(exact_key(gate, row, begin + i), begin + i);
        if (rank < limit && rank > best) best = rank;
    }
    return best;
}
DEV u32 choose_exactly(const tgl_gate &gate, const float *row, bool is_left, u32 lane)
{
    u64 last = ALL_RANKS, best = is_left ? last : TGL_RANK_NONE;
    u32 expert = 0;
#pragma unroll 1
    for (u32 k = 0; k < NUM_TOPK; k++) {
        if (best == last) best = best_exact_below(gate, row, last, lane); /* its best was taken */
        last = warp_max_u64(best);
        if (lane == k) expert = tgl_rank_index(last);
    }
    return expert;
}

/* A candidate, scored exactly. For softmax, whose score is not known yet, `score` is the logit. */
typedef struct {
    u32 expert;
    float score;
    u32 key;
} candidate;

DEV candidate score_candidate(const tgl_gate &gate, const float *row, u32 expert)
{
    const float x = row[expert], bias = gate.bias ? gate.bias[expert] : 0.0f;
    const float score = SCORING == TGL_SOFTMAX ? x : tgl_raw_score(SCORING, x, { 0.0f, 1.0f });
    return { expert, score, tgl_rank_key(score + bias) };
}

/* Does this lane's candidate rank above that of the previous lane? */
DEV bool is_misplaced(candidate c, u32 num_candidates, u32 lane)
{
    const u32 above = __shfl_up_sync(FULL, c.key, 1), above_expert = __shfl_up_sync(FULL, c.expert, 1);
    return (lane > 0) & (lane < num_candidates) & ((above < c.key) | ((above == c.key) & (above_expert > c.expert)));
}

/* Sorts the candidates of lanes 0 .. num_candidates - 1. They are mostly in order; otherwise neighbours that
 * the filter could not tell apart are swapped. */
DEV candidate sort_candidates(candidate c, u32 num_candidates, u32 lane)
{
#pragma unroll 1
    for (;;) {
        const u32 wrong = __ballot_sync(FULL, is_misplaced(c, num_candidates, lane));
        if (wrong == 0) return c;
        const u32 down = wrong & ~(wrong << 1); /* swap with the previous lane; never two in a row */
        const u32 from = down >> lane & 1 ? lane - 1 : down >> 1 >> lane & 1 ? lane + 1 : lane;
        c.expert = __shfl_sync(FULL, c.expert, from);
        c.score = __shfl_sync(FULL, c.score, from);
        c.key = __shfl_sync(FULL, c.key, from);
    }
}

/* Short keys of the filtered keys, in sorted lists. */
DEV lists short_keys(const tgl_gate &gate, const values &f, u32 lane)
{
    lists l;
#pragma unroll
    for (u32 i = 0; i < NUM_LISTS; i++) {
        u32 (&k)[4] = l.key[i];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const u32 expert = expert_at(gate, lane, 4 * i + j);
            k[j] = short_key(key_of(f.x[4 * i + j]), expert);
        }
        sort4(k);
    }
    return l;
}

/* Adds to the NUM_TOPK picks every expert whose short key is at least `floor`. Returns the lane's candidate;
 * if there are too many, the exact choice itself. */
DEV u32 pick_more(const tgl_gate &gate, const float *row, lists &l, u32 pick, u32 floor, bool is_settled, bool is_left,
                  u32 lane, u32 &num_candidates)
{
#pragma unroll 1
    while (is_settled && __any_sync(FULL, head(l) >= floor)) {
        if (num_candidates == 32) {
            is_settled = false;
            break;
        }
        const u32 next = warp_max_u32(head(l));
        if (lane == num_candidates) pick = next;
        pop(l, next);
        num_candidates++;
    }
    if (is_settled) return lane < num_candidates ? expert_of(pick) : 0;
    num_candidates = NUM_TOPK;
    return choose_exactly(gate, row, is_left, lane);
}

/* NUM_TOPK rounds, then whatever may rank above the last pick. The shortest dependency chain, for few
 * tokens. */
DEV candidate select_short(const tgl_gate &gate, const token &k, u32 lane)
{
    values f;
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) f.x[i] = filter<false>(k.logits.x[i], k.bias.x[i]);
    lists l = short_keys(gate, f, lane);
    const bool is_left = !IS_GROUPED || group_stays(gate, k, f, lane);
    if (IS_GROUPED)
#pragma unroll
        for (int i = 0; i < LANE_EXPERTS; i++) l.key[i / 4][i % 4] = is_left ? l.key[i / 4][i % 4] : TGL_RANK_NONE;
    u32 pick = TGL_RANK_NONE, first = TGL_RANK_NONE, last = TGL_RANK_NONE;
#pragma unroll
    for (u32 i = 0; i < NUM_TOPK; i++) {
        last = warp_max_u32(head(l));
        if (i == 0) first = last;
        if (lane == i) pick = last;
        pop(l, last);
    }
    /* Short keys round down, so the floor does too. -inf and absent experts are no candidates. */
    const u32 low = last & ~EXPERT_MASK;
    const u32 bound = IS_EXACT_FILTER ? low : key_of(filter_floor<false>(value_of(low))) & ~EXPERT_MASK;
    const u32 floor = max(bound, KEY_FINITE);
    const bool is_settled = first < KEY_INFINITE && last >= KEY_FINITE;
    u32 expert = pick >= KEY_FINITE ? expert_of(pick) : 0, num_candidates = NUM_TOPK;
    const bool is_open = !is_settled | (head(l) >= floor); /* | does not branch, || does */
    if (__builtin_expect(__any_sync(FULL, is_open & is_wanted(k)), 0))
        expert = pick_more(gate, k.row, l, pick, floor, is_settled, is_left, lane, num_candidates);
    candidate c = score_candidate(gate, k.row, expert);
    if (__builtin_expect(__any_sync(FULL, is_misplaced(c, num_candidates, lane)), 0))
        c = sort_candidates(c, num_candidates, lane);
    return c;
}

/* ---- a token ---- */

/* Of the logits in registers, for chosen and fixed slots alike; its latency overlaps with the selection. */
DEV tgl_softmax softmax_of_values(const values &logits)
{
    if (SCORING != TGL_SOFTMAX) return { 0.0f, 1.0f };
    float best = MINUS_INFINITY;
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) best = fmaxf(best, logits.x[i]); /* ignores NaN */
    tgl_softmax s = { value_of(warp_max_u32(tgl_rank_key(best))), 0.0f };
    /* NaN becomes -inf and adds 0; if the max is -inf, all scores are NaN anyway */
#pragma unroll
    for (int i = 0; i < LANE_EXPERTS; i++) s.sum += expf(fmaxf(logits.x[i], MINUS_INFINITY) - s.max);
    s.sum = lanes_sum_by_halves<32>(s.sum);
    return s;
}

/* Turns candidates into slots; see gate_token(). */
template <class INDEX_OF, class SEE>
DEV slot finish_token(const tgl_gate &gate, i64 t, const token &k, candidate c, tgl_softmax softmax, bool is_writer,
                      u32 lane, const INDEX_OF &index_of, const SEE &see)
{
    choice chosen = { (i32)c.expert, c.score };
    if (SCORING == TGL_SOFTMAX) chosen.score = tgl_raw_score(SCORING, c.score, softmax);
    if (!(chosen.score == chosen.score)) chosen.score = 0.0f;
    if (gate.unmapped_topk_idx) {
        index_type *const unmapped = (index_type *)gate.unmapped_topk_idx + t * gate.unmapped_stride;
        if (__builtin_expect(is_fixed(k), 0))
            chosen = choose_slot(gate, k.row, lane < NUM_TOPK ? unmapped[lane] : -1, softmax);
        else if (is_writer && lane < NUM_TOPK) unmapped[lane] = is_masked(k) ? -1 : (index_type)c.expert;
    }
    const slot s =
        finish_slot<32>(gate, chosen, lane, is_writer, index_of, [&](i32 index) { see(is_masked(k) ? -1 : index); });
    return { is_masked(k) ? -1 : s.index, is_masked(k) ? 0.0f : s.weight };
}

/* Called by a whole warp: returns slot k of token t in lane k < num_topk + num_shared. Only the writer gets
 * weights and writes unmapped_topk_idx. see(index) is called as soon as a lane's index is known, before the
 * weights. WAITS as in load_token(); the next kernel is triggered once loads are in flight. */
template <bool WAITS = false, class SEE>
DEV slot gate_token(const tgl_gate &gate, i64 t, bool is_writer, u32 lane, const SEE &see)
{
    const token k = load_token<WAITS>(gate, t, lane);
    if (WAITS) pdl_trigger();
    const tgl_softmax softmax = softmax_of_values(k.logits);
    const candidate c = select_short(gate, k, lane);
    const auto index_of = [&](u32 expert) { return (i32)tgl_gate_index(&gate, t, expert); };
    return finish_token(gate, t, k, c, softmax, is_writer, lane, index_of, see);
}

#endif
