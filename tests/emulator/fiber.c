/* SPDX-License-Identifier: MIT */
#include "fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fill.h"

fiber emu_main_fiber;
fiber *emu_running = &emu_main_fiber;
static const void *main_bottom; /* the caller's stack, as ASan tells it */
static size_t main_size;
static int tells_all; /* ASan of every switch, not only of those to another chunk of stacks */
static int is_told;   /* of the switch under way */

/* ---- sanitizers ---- */
__attribute__((weak)) void __sanitizer_start_switch_fiber(void **, const void *, size_t);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
__attribute__((weak)) void *__asan_get_current_fake_stack(void);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void *, size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *, size_t);
__attribute__((weak)) void *__tsan_create_fiber(unsigned);
__attribute__((weak)) void *__tsan_get_current_fiber(void);
__attribute__((weak)) void __tsan_switch_to_fiber(void *, unsigned);
__attribute__((weak)) void __tsan_acquire(void *);
__attribute__((weak)) void __tsan_release(void *);

int emu_has_asan(void) { return __asan_poison_memory_region != 0; }
void emu_poison(const void *p, size_t n)
{
    if (__asan_poison_memory_region) __asan_poison_memory_region(p, n);
}
void emu_unpoison(const void *p, size_t n)
{
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(p, n);
}
void emu_acquire(const void *p)
{
    if (__tsan_acquire) __tsan_acquire((void *)p);
}
void emu_release(const void *p)
{
    if (__tsan_release) __tsan_release((void *)p);
}

/* ---- stacks: taken 1024 at a time, never given back; only touched pages cost memory. The first 16,384 lie on huge pages, at
 * most 1 GB: a switch to one of many threads is a miss of the TLB otherwise ---- */
enum { CHUNK_STACKS = 1024, MAX_CHUNKS = 256, HUGE_CHUNKS = 16 };
static fiber *chunks[MAX_CHUNKS];
static int num_chunks;

fiber *emu_fiber_slot(emu_u32 i)
{
    while (i / CHUNK_STACKS >= (emu_u32)num_chunks) {
        if (num_chunks == MAX_CHUNKS) return NULL;
        const size_t bytes = CHUNK_STACKS * EMU_STACK + EMU_STACK; /* one more, to align */
        char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        fiber *f = aligned_alloc(64, CHUNK_STACKS * sizeof *f);
        if (p == MAP_FAILED || !f) return NULL;
        madvise(p, bytes, num_chunks < HUGE_CHUNKS ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        const uintptr_t first = ((uintptr_t)p + EMU_STACK - 1) & ~(EMU_STACK - 1);
        for (uintptr_t k = 0; k < CHUNK_STACKS; k++)
            f[k] = (fiber){ .chunk = (char *)first, .thread = emu_thread_on(first + k * EMU_STACK) };
        chunks[num_chunks++] = f;
    }
    return &chunks[i / CHUNK_STACKS][i % CHUNK_STACKS];
}
static char *stack_low(const fiber *f) { return (char *)((uintptr_t)f->thread & ~(EMU_STACK - 1)); }

static void overflowed(void)
{
    fprintf(stderr, "emulator: a thread's stack overflowed (EMU_STACK, %lu bytes)\n", EMU_STACK);
    abort();
}
/* At a thread's end; its neighbour's overflow would have changed it. */
void emu_fiber_check(const fiber *f)
{
    if (f->thread->canary != (uintptr_t)f->thread) overflowed();
}

void emu_fiber_abandon(fiber *f, const void *sync)
{
    emu_unpoison(stack_low(f), EMU_STACK);
    if (__tsan_switch_to_fiber) { /* in its name, as it will not: what it did happened before what follows */
        __tsan_switch_to_fiber(f->tsan, 1);
        emu_release(sync);
        __tsan_switch_to_fiber(emu_main_fiber.tsan, 1);
    }
    emu_acquire(sync);
    free(f->thread->copies);
    f->thread->copies = NULL;
}

/* ---- the switch ---- emu_switch(save, load): pushes what the ABI says a call keeps, stores the stack
 * pointer in *save, takes `load` for it and pops the same from there; so it returns to where `load` was
 * saved. A new fiber's stack holds such a frame whose return address is its entry. Floating-point control
 * registers are not switched: all fibers share the caller's. */
void emu_switch(void **save, void *load);
#if defined __aarch64__
/* x19-x30 and d8-d15 in 160 bytes; where to return to; 8 spare. That is x30 but for a new fiber, whose x30 is
 * 0 so that an unwinder stops at its entry. */
enum { FRAME = 176, FRAME_POINTER = 80, FRAME_RETURN = 160 };
__asm__(".text\n"
        ".globl emu_switch\n"
        ".hidden emu_switch\n"
        ".type emu_switch,%function\n"
        "emu_switch:\n"
        "  sub sp, sp, #176\n"
        "  stp x19, x20, [sp]\n"
        "  stp x21, x22, [sp, #16]\n"
        "  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n"
        "  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n"
        "  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  str x30, [sp, #160]\n"
        "  mov x9, sp\n"
        "  str x9, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n"
        "  ldp x21, x22, [sp, #16]\n"
        "  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n"
        "  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n"
        "  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  ldr x9, [sp, #160]\n"
        "  add sp, sp, #176\n"
        "  ret x9\n"
        ".size emu_switch,.-emu_switch\n");
#elif defined __x86_64__
/* Six registers, the return address at 48, and a word of 0 so that the entry starts as after a call: its stack
 * pointer, past the return address, is 8 more than a multiple of 16. endbr64 for processes with indirect
 * branch tracking; a shadow stack (CET) is not supported. */
enum { FRAME = 64, FRAME_POINTER = 40, FRAME_RETURN = 48 };
__asm__(".text\n"
        ".globl emu_switch\n"
        ".hidden emu_switch\n"
        ".type emu_switch,@function\n"
        "emu_switch:\n"
        "  endbr64\n"
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  ret\n"
        ".size emu_switch,.-emu_switch\n");
#else
#error "emu_switch: save the callee-saved registers of this machine"
#endif

/* Of a new thread's stack. The frames of most kernels' first calls lie in it, so that a local or a register
 * nobody has set holds what shared memory does. All of a stack would cost more than running the thread. */
enum { FILLED_STACK = 1024 };

void emu_fiber_start(fiber *f, void (*entry)(void))
{
    char *top = (char *)f->thread - 64, *sp = (char *)((uintptr_t)(top - FRAME) & ~(uintptr_t)15);
    emu_fill(sp - FILLED_STACK, FILLED_STACK + FRAME);
    /* a frame pointer and, as the return address of the entry (x30, or the frame's last word), zeros end the
     * backtraces of debuggers and sanitizers */
    memset(sp + FRAME_POINTER, 0, 3 * sizeof(void *));
    memcpy(sp + FRAME_RETURN, &entry, sizeof entry);
    f->sp = sp;
    f->thread->canary = (uintptr_t)f->thread;
    if (__tsan_create_fiber && !f->tsan) f->tsan = __tsan_create_fiber(0);
}

void emu_fiber_group(void)
{
    main_bottom = NULL;
    tells_all = __asan_get_current_fake_stack && __asan_get_current_fake_stack();
    if (__tsan_get_current_fiber) emu_main_fiber.tsan = __tsan_get_current_fiber();
}

void emu_fiber_entered(void)
{
    if (!is_told) return;
    if (main_bottom) __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
    else
        __sanitizer_finish_switch_fiber(NULL, &main_bottom,
                                        &main_size); /* the first one comes from the caller's stack */
}

enum { LOWEST = 4096 }; /* bytes of its stack that a thread must leave */

/* To ASan all stacks of a chunk are one, so that it hears of few switches: telling it takes as long as the rest of one. With
 * its stacks of fake frames (detect_stack_use_after_return) each fiber needs its own. */
void emu_fiber_switch(fiber *from, fiber *to, int dying)
{
    emu_running = to;
    if (((uintptr_t)__builtin_frame_address(0) & (EMU_STACK - 1)) < LOWEST && from != &emu_main_fiber) overflowed();
    is_told = __sanitizer_start_switch_fiber && (tells_all || to->chunk != from->chunk);
    if (is_told) {
        void **fake = dying ? NULL : &from->fake;
        if (to == &emu_main_fiber) __sanitizer_start_switch_fiber(fake, main_bottom, main_size);
        else if (tells_all) __sanitizer_start_switch_fiber(fake, stack_low(to), EMU_STACK);
        else __sanitizer_start_switch_fiber(fake, to->chunk, CHUNK_STACKS * EMU_STACK);
    }
    if (__tsan_switch_to_fiber) __tsan_switch_to_fiber(to->tsan, 1); /* 1: the switch orders nothing */
    emu_switch(&from->sp, to->sp);
    if (is_told) __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
}
