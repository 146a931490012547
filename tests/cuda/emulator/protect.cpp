/* tests/cuda/emulator/protect.cpp - see protect.h. */
#include "tests/cuda/emulator/protect.h"
#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/world.h"
#include <algorithm>
#include <pthread.h>
#include <set>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace twin
{
namespace
{

constexpr size_t POISON_BYTES = 2u << 20;

size_t page_bytes()
{
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

/* What a call that never fails says if it does. */
void check(int rc, const char *call)
{
    if (rc == 0)
        return;
    perror(call);
    abort();
}

/* --- rights --- */

/* A thread has no rights to a key before it is given some; a new thread has those of the one that makes it. */
int take_key()
{
#if defined(PKEY_DISABLE_ACCESS) && !defined(__SANITIZE_ADDRESS__)
    return pkey_alloc(0, PKEY_DISABLE_ACCESS);
#else
    return -1;
#endif
}

enum twin_protection best(int key)
{
#ifdef __SANITIZE_ADDRESS__
    (void)key;
    return TWIN_PROTECT_NONE;
#else
    return key >= 0 ? TWIN_PROTECT_BY_KEYS : TWIN_PROTECT_BY_PAGES;
#endif
}

const int key = take_key();
enum twin_protection method = best(key);
thread_local bool is_device_thread; /* has rights */

std::mutex pages_lock;       /* BY_PAGES: guards the two below; taken before the world's */
uint32_t working;            /* threads with rights */
std::set<uintptr_t> touched; /* allocations that are open since one of them touched them */

void set_pages(uintptr_t at, size_t bytes, int protection)
{
    const uintptr_t first = at / page_bytes() * page_bytes();
    void *const pages = reinterpret_cast<void *>(first);

#ifdef PKEY_DISABLE_ACCESS
    if (method == TWIN_PROTECT_BY_KEYS)
        return check(pkey_mprotect(pages, at + bytes - first, protection, key), "emulator: pkey_mprotect");
#endif
    check(mprotect(pages, at + bytes - first, protection), "emulator: mprotect");
}

void open_allocation(uintptr_t at, size_t bytes)
{
    const std::lock_guard<std::mutex> guard(pages_lock);

    touched.insert(at);
    set_pages(at, bytes, PROT_READ | PROT_WRITE);
}

/* Those that are still there. */
void close_allocations()
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    for (const uintptr_t at : touched) {
        const auto found = the_world.device.find(at);

        if (found != the_world.device.end())
            set_pages(at, found->second.bytes, PROT_NONE);
    }
    touched.clear();
}

void count_worker(bool granted)
{
    const std::lock_guard<std::mutex> guard(pages_lock);

    working = granted ? working + 1 : working - 1;
    if (working == 0)
        close_allocations();
}

void set_rights(bool granted)
{
    if (granted == is_device_thread)
        return;
    is_device_thread = granted;
#ifdef PKEY_DISABLE_ACCESS
    if (method == TWIN_PROTECT_BY_KEYS)
        check(pkey_set(key, granted ? 0 : PKEY_DISABLE_ACCESS), "emulator: pkey_set");
#endif
    if (method == TWIN_PROTECT_BY_PAGES)
        count_worker(granted);
}

/* --- faults --- */

struct sigaction handler_before;

/* The allocation that an address is in, or less than a page behind. */
bool find_allocation(uintptr_t at, uintptr_t *first, range *found)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);
    auto next = the_world.device.upper_bound(at);

    if (next == the_world.device.begin())
        return false;
    --next;
    *first = next->first;
    *found = next->second;
    return at < next->first + next->second.bytes + page_bytes();
}

const char *verb_of(const void *context)
{
#ifdef __x86_64__
    const greg_t error = static_cast<const ucontext_t *>(context)->uc_mcontext.gregs[REG_ERR];

    return (error & 2) != 0 ? "writes" : "reads";
#else
    (void)context;
    return "touches";
#endif
}

/* A kernel, or a copy, comes here only behind an allocation. */
[[noreturn]] void stop_fault(uintptr_t at, uintptr_t first, const range &found, const void *context)
{
    const char *kernel = kernel_of_thread(), *place = at < first + found.bytes ? "" : "behind ";
    char thread[16] = "";

    (void)pthread_getname_np(pthread_self(), thread, sizeof(thread));
    fflush(stdout);
    fprintf(stderr, "emulator: %s %s %sdevice memory\n  address 0x%zx, byte %zu of %zu allocated on device %d; thread %s\n",
            kernel != nullptr  ? kernel
            : is_device_thread ? "a copy"
                               : "the host",
            verb_of(context), place, at, at - first, found.bytes, found.device, thread);
    abort();
}

void on_fault(int, siginfo_t *info, void *context)
{
    const uintptr_t at = address(info->si_addr);
    uintptr_t first;
    range found;

    if (!find_allocation(at, &first, &found))
        (void)sigaction(SIGSEGV, &handler_before, nullptr); /* to which the same instruction comes again */
    else if (method == TWIN_PROTECT_BY_PAGES && is_device_thread && at < first + found.bytes)
        open_allocation(first, found.bytes);
    else
        stop_fault(at, first, found, context);
}

} // namespace

void watch_faults()
{
    struct sigaction now, ours = {};

    if (method == TWIN_PROTECT_NONE)
        return;
    check(sigaction(SIGSEGV, nullptr, &now), "emulator: sigaction");
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault)
        return;
    handler_before = now;
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO;
    check(sigaction(SIGSEGV, &ours, nullptr), "emulator: sigaction");
}

rights::rights(bool granted) : before(is_device_thread)
{
    set_rights(granted);
}

rights::~rights()
{
    set_rights(before);
}

/* --- memory --- */

#ifndef __SANITIZE_ADDRESS__
/* A file of POISON.  Mapped privately, it costs memory and time only where it is written. */
static int make_poison()
{
    const std::string bytes(POISON_BYTES, static_cast<char>(POISON));
    const int file = memfd_create("poison", MFD_CLOEXEC);

    check(file < 0 || write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()), "emulator: memfd");
    return file;
}

static const int poison_file = make_poison(); /* open before tests count what is */

/* Pages that hold so many bytes. */
static size_t whole_pages(size_t bytes)
{
    return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

static void poison(char *pages, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += POISON_BYTES)
        check(mmap(pages + at, std::min(bytes - at, POISON_BYTES), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file, 0) == MAP_FAILED,
              "emulator: mmap");
}

/* It ends where its pages end. */
void *device_pages(size_t bytes)
{
    const size_t whole = whole_pages(bytes);
    void *const pages = mmap(nullptr, whole + page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (pages == MAP_FAILED)
        return nullptr;
    poison(static_cast<char *>(pages), whole);
    if (method != TWIN_PROTECT_NONE)
        set_pages(address(pages), whole, method == TWIN_PROTECT_BY_KEYS ? PROT_READ | PROT_WRITE : PROT_NONE);
    return static_cast<char *>(pages) + whole - bytes;
}

void device_pages_free(void *at, size_t bytes)
{
    const size_t whole = whole_pages(bytes);

    check(munmap(static_cast<char *>(at) + bytes - whole, whole + page_bytes()), "emulator: munmap");
}

#else

void *device_pages(size_t bytes)
{
    void *const at = aligned_alloc(DEVICE_ALIGN, bytes);

    if (at != nullptr)
        memset(at, POISON, bytes);
    return at;
}

void device_pages_free(void *at, size_t)
{
    free(at);
}

#endif

} // namespace twin

enum twin_protection twin_protection(void)
{
    return twin::method;
}

void twin_protect(enum twin_protection how)
{
    const std::lock_guard<std::mutex> guard(twin::the_world.lock);

    if (!twin::the_world.device.empty() || (how == TWIN_PROTECT_BY_KEYS && twin::key < 0))
        abort();
    twin::method = how;
}
