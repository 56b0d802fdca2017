/* SPDX-License-Identifier: MIT
 * fill.c - the contents of uninitialised memory. Reading them must not go unnoticed, and no single pattern shows every
 * such read: as an index, ones are -1, which a kernel takes for "none"; zeros are what a sum starts with; an address from
 * 0x7f7f7f7f faults at once, one from a small number silently reads another row. So the pattern changes from launch to
 * launch, starting with one that the seed chooses. */
#include "fill.h"

#include "grid.h"
#include "settings.h"

__attribute__((weak)) void __msan_poison(const volatile void *, size_t);

int emu_forced_fill = EMU_FILL_CHANGES;
uint64_t emu_num_fills;

static int kind_now(void)
{
    if (emu_forced_fill != EMU_FILL_CHANGES) return emu_forced_fill;
    /* Mixed, or of five kernels launched in turn each would always have the same pattern. */
    uint64_t mixed = (emu_launches_of_seed - 1) * 0x9e3779b97f4a7c15ull;
    mixed ^= mixed >> 32;
    return (int)((emu_rt.seed % EMU_NUM_FILLS + mixed % EMU_NUM_FILLS) % EMU_NUM_FILLS);
}

void emu_fill(void *p, size_t bytes)
{
    /* a word is (random & some) | always; EMU_INDICES reads as 0 to 15, as 32 or 64 bits */
    static const struct {
        uint64_t some, always;
    } words[EMU_NUM_FILLS] = {
        [EMU_ONES] = { 0, ~0ull }, [EMU_ZEROS] = { 0, 0 },      [EMU_7F] = { 0, 0x7f7f7f7f7f7f7f7full },
        [EMU_INDICES] = { 15, 0 }, [EMU_RANDOM] = { ~0ull, 0 },
    };
    const int kind = kind_now();
    const uint64_t some = words[kind].some, always = words[kind].always;
    uint64_t random = (emu_rt.seed + ++emu_num_fills) * 0x9e3779b97f4a7c15ull;
    /* Volatile stores, not memset: TSan would take that for an access of the kernel's. Two words at a time: every thread's
     * stack begins with a fill, which would otherwise take a tenth of the time of small kernels. */
    typedef volatile uint64_t __attribute__((aligned(1), may_alias)) word;
    typedef uint64_t pair __attribute__((vector_size(16)));
    typedef volatile pair __attribute__((aligned(1), may_alias)) word_pair;
    size_t i = 0;
    const pair both = { always, always };
    for (; !some && i + 64 <= bytes; i += 64) {
        word_pair *to = (word_pair *)((char *)p + i);
        to[0] = both, to[1] = both, to[2] = both, to[3] = both;
    }
    for (; i + 8 <= bytes; i += 8) {
        if (some) random = random * 6364136223846793005ull + 1442695040888963407ull;
        *(word *)((char *)p + i) = ((random ^ random >> 32) & some) | always;
    }
    for (; i < bytes; i++) ((volatile unsigned char *)p)[i] = (unsigned char)((random >> 8 * (i & 7) & some) | always);
    if (__msan_poison) __msan_poison(p, bytes); /* a branch or an address that depends on it is a report */
}
