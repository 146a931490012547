/* tests/cuda/emulator/fiber.h - stacks to switch between on one thread of the host.
 *
 * x86-64 switches by hand in a few nanoseconds, others through ucontext.  Under asan and tsan every switch is announced to the
 * sanitizer. */
#ifndef TESTS_CUDA_EMULATOR_FIBER_H
#define TESTS_CUDA_EMULATOR_FIBER_H

#include <stddef.h>

namespace twin
{

#ifdef __SANITIZE_ADDRESS__
constexpr size_t FIBER_STACK = 512u << 10; /* asan's frames are several times larger */
#else
constexpr size_t FIBER_STACK = 128u << 10;
#endif

struct fiber {
    void *context; /* where it stands while it does not run: a stack pointer, or a ucontext_t */
    void *stack;   /* lowest address; null for a thread's own stack */
    size_t stack_bytes;
    void *fake_stack; /* asan's */
    void *tsan;       /* tsan's */
};

/** The calling thread's own stack as a fiber; zeroed before the first time, or another thread's before. */
void fiber_adopt(fiber *f);
/** Takes a stack [FIBER_STACK] bytes; `entry` runs at the first switch to it and never returns.  It stays. */
void fiber_create(fiber *f, void *stack, void (*entry)(void *arg), void *arg);
/** Leave `from`, which is the one that runs, for `to`; returns when something switches back. */
void fiber_switch(fiber *from, fiber *to);
/** What an entry calls first: completes the first switch to it. */
void fiber_entered(fiber *self);

} // namespace twin

#endif
