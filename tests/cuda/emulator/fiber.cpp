/* tests/cuda/emulator/fiber.cpp - see fiber.h. */
#include "tests/cuda/emulator/fiber.h"
#include <pthread.h>
#include <stdint.h>
#include <ucontext.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace
{

/* What a switch tells the sanitizers, before and after. */
void announce(twin::fiber *from, twin::fiber *to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    (void)from;
    (void)to;
}

void announce_arrival(twin::fiber *self)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
#endif
    (void)self;
}

} // namespace

#ifdef __x86_64__

/* Saves what a call must keep, stores the stack pointer at *save, and goes on where `load` was stored. */
extern "C" void twin_stack_switch(void **save, void *load);
extern "C" void twin_stack_start();
asm(R"(
    .text
    .globl twin_stack_switch
    .type twin_stack_switch, @function
twin_stack_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size twin_stack_switch, .-twin_stack_switch
    .globl twin_stack_start
    .type twin_stack_start, @function
twin_stack_start:
    movq %r13, %rdi
    callq *%r12
    ud2
    .size twin_stack_start, .-twin_stack_start
)");

static void context_create(twin::fiber *f, void (*entry)(void *arg), void *arg)
{
    void **top = reinterpret_cast<void **>(static_cast<char *>(f->stack) + f->stack_bytes);

    *--top = nullptr; /* keeps the entry's stack aligned */
    *--top = nullptr; /* no caller */
    *--top = reinterpret_cast<void *>(twin_stack_start);
    *--top = nullptr;                         /* rbp */
    *--top = nullptr;                         /* rbx */
    *--top = reinterpret_cast<void *>(entry); /* r12 */
    *--top = arg;                             /* r13 */
    *--top = nullptr;                         /* r14 */
    *--top = nullptr;                         /* r15 */
    f->context = top;
}

static void context_switch(twin::fiber *from, twin::fiber *to)
{
    twin_stack_switch(&from->context, to->context);
}

static void context_adopt(twin::fiber *)
{
}

#else

struct context {
    ucontext_t at;
    void (*entry)(void *arg);
    void *arg;
};

static void context_enter(unsigned high, unsigned low)
{
    context *c = reinterpret_cast<context *>(static_cast<uintptr_t>(high) << 16 << 16 | low);

    c->entry(c->arg);
}

static void context_create(twin::fiber *f, void (*entry)(void *arg), void *arg)
{
    context *c = new context{{}, entry, arg};
    const uintptr_t bits = reinterpret_cast<uintptr_t>(c);

    getcontext(&c->at);
    c->at.uc_stack.ss_sp = f->stack;
    c->at.uc_stack.ss_size = f->stack_bytes;
    c->at.uc_link = nullptr;
    makecontext(&c->at, reinterpret_cast<void (*)()>(context_enter), 2, static_cast<unsigned>(bits >> 16 >> 16),
                static_cast<unsigned>(bits));
    f->context = c;
}

static void context_switch(twin::fiber *from, twin::fiber *to)
{
    swapcontext(&static_cast<context *>(from->context)->at, &static_cast<context *>(to->context)->at);
}

static void context_adopt(twin::fiber *f)
{
    if (f->context == nullptr)
        f->context = new context{};
}

#endif

namespace twin
{

void fiber_adopt(fiber *f)
{
    pthread_attr_t attr;

    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &f->stack, &f->stack_bytes);
        pthread_attr_destroy(&attr);
    }
#ifdef __SANITIZE_THREAD__
    f->tsan = __tsan_get_current_fiber();
#endif
    context_adopt(f);
}

void fiber_create(fiber *f, void *stack, void (*entry)(void *arg), void *arg)
{
    *f = {};
    f->stack = stack;
    f->stack_bytes = FIBER_STACK;
#ifdef __SANITIZE_THREAD__
    f->tsan = __tsan_create_fiber(0);
#endif
    context_create(f, entry, arg);
}

void fiber_switch(fiber *from, fiber *to)
{
    announce(from, to);
    context_switch(from, to);
    announce_arrival(from);
}

void fiber_entered(fiber *self)
{
    announce_arrival(self);
}

} // namespace twin
