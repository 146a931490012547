/* tests/common/lost_memory.c - each group of tests gives back the memory that it took.
 *
 * The linker puts these in the place of malloc and its kin (--wrap), for all code that is linked into a test program, the
 * library's and the test's own; what a shared library takes is its own business.  Memory that one call loses hurts nobody until a
 * million calls have been made, so no test would miss it.  Builds with a sanitizer have their own means.
 *
 * Blocks that the program holds are in a table; what frees a block that is not in it (getline's, say) goes through.
 */
#include "tests/common/lost_memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS     (1u << 14)
#define BLOCKS_MAX  (1u << 18) /* held at once; those beyond go unseen */
#define STREAMS_MAX 64u
#define SAID_MAX    8u

/* One block that the program holds. */
struct held {
    struct held *next;
    void *block;
    size_t bytes;
    const void *caller; /* where it was taken */
    uint64_t number;    /* of blocks taken until then */
};

/* A stream into memory. */
struct stream {
    FILE *file; /* NULL: a free place */
    char **text;
    const void *caller;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;         /* guards all below */
static struct held nodes[BLOCKS_MAX], *buckets[BUCKETS], *spare; /* spare: nodes that were used */
static uint32_t fresh;                                           /* of nodes: those before it were used */
static uint64_t taken;
static struct stream streams[STREAMS_MAX];

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
int __real_posix_memalign(void **out, size_t align, size_t bytes);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t bytes);
void __real_free(void *block);
FILE *__real_open_memstream(char **text, size_t *bytes);
int __real_fclose(FILE *file);
char *__real_realpath(const char *path, char *resolved);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
int __wrap_posix_memalign(void **out, size_t align, size_t bytes);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t bytes);
void __wrap_free(void *block);
FILE *__wrap_open_memstream(char **text, size_t *bytes);
int __wrap_fclose(FILE *file);
char *__wrap_realpath(const char *path, char *resolved);
int __wrap_asprintf(char **out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void hold_lock(void)
{
    pthread_mutex_lock(&lock);
}

static void release_lock(void)
{
    pthread_mutex_unlock(&lock);
}

static void make_lock(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* A child that is forked while another thread takes memory finds the lock free. */
__attribute__((constructor)) static void keep_over_fork(void)
{
    if (pthread_atfork(hold_lock, release_lock, make_lock) != 0)
        abort();
}

static struct held **bucket_of(const void *block)
{
    return &buckets[((uintptr_t)block >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 50];
}

static void *hold(void *block, size_t bytes, const void *caller)
{
    struct held *h = NULL, **bucket = bucket_of(block);

    if (block == NULL)
        return NULL;
    hold_lock();
    if (spare != NULL) {
        h = spare;
        spare = h->next;
    } else if (fresh < BLOCKS_MAX) {
        h = &nodes[fresh++];
    }
    if (h != NULL) {
        *h = (struct held){.next = *bucket, .block = block, .bytes = bytes, .caller = caller, .number = ++taken};
        *bucket = h;
    }
    release_lock();
    return block;
}

static void let_go(const void *block)
{
    hold_lock();
    for (struct held **at = bucket_of(block); *at != NULL; at = &(*at)->next)
        if ((*at)->block == block) {
            struct held *h = *at;

            *at = h->next;
            h->next = spare;
            spare = h;
            break;
        }
    release_lock();
}

void *__wrap_malloc(size_t bytes)
{
    return hold(__real_malloc(bytes), bytes, __builtin_return_address(0));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return hold(__real_calloc(count, bytes), count * bytes, __builtin_return_address(0));
}

void *__wrap_realloc(void *old, size_t bytes)
{
    void *block;

    let_go(old); /* before another thread is given it */
    block = __real_realloc(old, bytes);
    if (block == NULL && bytes > 0)
        hold(old, 0, __builtin_return_address(0));
    return hold(block, bytes, __builtin_return_address(0));
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return hold(__real_aligned_alloc(align, bytes), bytes, __builtin_return_address(0));
}

int __wrap_posix_memalign(void **out, size_t align, size_t bytes)
{
    const int rc = __real_posix_memalign(out, align, bytes);

    if (rc == 0)
        hold(*out, bytes, __builtin_return_address(0));
    return rc;
}

char *__wrap_strdup(const char *text)
{
    return hold(__real_strdup(text), strlen(text) + 1, __builtin_return_address(0));
}

char *__wrap_strndup(const char *text, size_t bytes)
{
    return hold(__real_strndup(text, bytes), bytes + 1, __builtin_return_address(0));
}

void __wrap_free(void *block)
{
    let_go(block);
    __real_free(block);
}

/* --- what the C library takes for its caller --- */

FILE *__wrap_open_memstream(char **text, size_t *bytes)
{
    FILE *const file = __real_open_memstream(text, bytes);

    hold_lock();
    for (uint32_t i = 0; file != NULL && i < STREAMS_MAX; i++)
        if (streams[i].file == NULL) {
            streams[i] = (struct stream){file, text, __builtin_return_address(0)};
            break;
        }
    release_lock();
    return file;
}

/* A stream's text is its owner's from here on. */
int __wrap_fclose(FILE *file)
{
    struct stream closed = {0};
    int rc;

    hold_lock();
    for (uint32_t i = 0; i < STREAMS_MAX; i++)
        if (streams[i].file == file) {
            closed = streams[i];
            streams[i].file = NULL;
        }
    release_lock();
    rc = __real_fclose(file);
    if (closed.file != NULL)
        hold(*closed.text, 0, closed.caller);
    return rc;
}

char *__wrap_realpath(const char *path, char *resolved)
{
    char *const text = __real_realpath(path, resolved);

    return resolved == NULL ? hold(text, 0, __builtin_return_address(0)) : text;
}

int __wrap_asprintf(char **out, const char *fmt, ...)
{
    va_list args;
    int length;

    va_start(args, fmt);
    length = vasprintf(out, fmt, args);
    va_end(args);
    if (length >= 0)
        hold(*out, (size_t)length + 1, __builtin_return_address(0));
    return length;
}

uint64_t memory_mark(void)
{
    uint64_t mark;

    hold_lock();
    mark = taken;
    release_lock();
    return mark;
}

uint32_t memory_lost(const char *name, uint64_t mark)
{
    extern const char __executable_start;
    uint32_t count = 0;

    hold_lock();
    for (uint32_t i = 0; i < BUCKETS; i++)
        for (const struct held *h = buckets[i]; h != NULL; h = h->next)
            if (h->number > mark && count++ < SAID_MAX)
                fprintf(stderr, "%s: %zu bytes were not freed, taken before 0x%tx (addr2line -fie %s)\n", name, h->bytes,
                        (const char *)h->caller - &__executable_start, program_invocation_name);
    release_lock();
    return count;
}

#ifdef __SANITIZE_ADDRESS__
/* malloc() of more than can be is refused, as the system's is. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
#endif
