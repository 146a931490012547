/* alloc_counter - preloaded: counts malloc, mmap and open calls that the main program's own code makes.
 *
 * A call counts when its return address lies in the executable (strata is linked statically into the test); what a library
 * allocates inside a call is its own business.  Counting starts and stops by alloc_counter_arm(). */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT void alloc_counter_arm(int on);
EXPORT uint64_t alloc_counter_total(void);
EXPORT uint64_t alloc_counter_total_all(void);

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t align, size_t bytes);

static atomic_bool armed;
static _Atomic uint64_t ours, all;
static uintptr_t text_start, text_end;

/* The first object of the list is the executable. */
static int find_executable(struct dl_phdr_info *info, size_t size, void *ctx)
{
    (void)size;
    (void)ctx;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];

        if (p->p_type == PT_LOAD && (p->p_flags & PF_X) != 0) {
            text_start = info->dlpi_addr + p->p_vaddr;
            text_end = text_start + p->p_memsz;
        }
    }
    return 1;
}

void alloc_counter_arm(int on)
{
    if (text_start == 0)
        dl_iterate_phdr(find_executable, NULL);
    atomic_store(&armed, on != 0);
}

uint64_t alloc_counter_total(void)
{
    return atomic_load(&ours);
}

uint64_t alloc_counter_total_all(void)
{
    return atomic_load(&all);
}

static void count(const void *caller)
{
    if (!atomic_load_explicit(&armed, memory_order_relaxed))
        return;
    atomic_fetch_add(&all, 1);
    if ((uintptr_t)caller >= text_start && (uintptr_t)caller < text_end)
        atomic_fetch_add(&ours, 1);
}

EXPORT void *malloc(size_t bytes)
{
    count(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

EXPORT void *calloc(size_t n, size_t bytes)
{
    count(__builtin_return_address(0));
    return __libc_calloc(n, bytes);
}

EXPORT void *realloc(void *old, size_t bytes)
{
    count(__builtin_return_address(0));
    return __libc_realloc(old, bytes);
}

EXPORT void *aligned_alloc(size_t align, size_t bytes)
{
    count(__builtin_return_address(0));
    return __libc_memalign(align, bytes);
}

EXPORT int posix_memalign(void **out, size_t align, size_t bytes)
{
    count(__builtin_return_address(0));
    *out = __libc_memalign(align, bytes);
    return *out == NULL ? 12 : 0;
}

EXPORT void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    static void *(*next)(void *, size_t, int, int, int, off_t);

    count(__builtin_return_address(0));
    if (next == NULL)
        next = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
    return next(at, bytes, prot, flags, fd, offset);
}

static mode_t mode_of(int flags, va_list *args)
{
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(*args, mode_t) : 0;
}

EXPORT int open(const char *path, int flags, ...)
{
    static int (*next)(const char *, int, ...);
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = mode_of(flags, &args);
    va_end(args);
    count(__builtin_return_address(0));
    if (next == NULL)
        next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    return next(path, flags, mode);
}

EXPORT int openat(int dir, const char *path, int flags, ...)
{
    static int (*next)(int, const char *, int, ...);
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = mode_of(flags, &args);
    va_end(args);
    count(__builtin_return_address(0));
    if (next == NULL)
        next = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat");
    return next(dir, path, flags, mode);
}
