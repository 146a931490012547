/* tests/nvme/test_io_handle.c - the public handle (strata/io.h): random mixed requests against a model in memory, over every
 * method, direct and buffered; order of what overlaps; exact sizes; errors to their waiters; cancel, deadline, closing, fork. */
#include "core/checksum.h"
#include "core/fault.h"
#include "core/rng.h"
#include "nvme/io_handle_parts.h"
#include "strata/strata.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL_BYTES 700000u
#define PENDING     40u

struct variant {
    const char *method;
    uint32_t flags, depth, block_bytes;
    uint64_t buffer_bytes;
    uint32_t threads;
};

static char test_dir[64];

static const char *path_of(const char *name)
{
    static _Thread_local char path[512];

    snprintf(path, sizeof(path), "%s/%s", test_dir, name);
    return path;
}

static uint32_t open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static struct strata_io_opts options(const struct variant *v)
{
    return (struct strata_io_opts){.opts_size = sizeof(struct strata_io_opts),
                                   .method = v->method,
                                   .queue_depth = v->depth,
                                   .block_bytes = v->block_bytes,
                                   .buffer_bytes = v->buffer_bytes,
                                   .threads = v->threads};
}

/* NULL: not on this machine. */
static struct strata_io *open_handle(const struct variant *v)
{
    const struct strata_io_opts opts = options(v);
    struct strata_io *io = NULL;
    const strata_status st = strata_io_open(&io, &opts);

    if (st == STRATA_E_NOSYS) {
        print_message("%s: not tested on this machine: %s\n", v->method, strata_last_error());
        return NULL;
    }
    assert_int_equal(st, STRATA_OK);
    return io;
}

static struct strata_io *open_default(void)
{
    struct strata_io *io;

    assert_int_equal(strata_io_open(&io, NULL), STRATA_OK);
    return io;
}

static struct strata_io_file *open_new(struct strata_io *io, const char *name, uint32_t flags, uint64_t bytes)
{
    struct strata_io_file *file;
    const strata_status st =
        strata_io_open_file(io, &file, path_of(name), flags | STRATA_IO_READ | STRATA_IO_WRITE | STRATA_IO_CREATE, bytes);

    if (st != STRATA_OK)
        fail_msg("%s", strata_last_error());
    return file;
}

static uint64_t size_on_disk(const char *name)
{
    struct stat info;

    assert_int_equal(stat(path_of(name), &info), 0);
    return (uint64_t)info.st_size;
}

static void assert_file_is(const char *name, const unsigned char *want, uint64_t bytes)
{
    unsigned char *have = malloc(bytes + 1);
    int fd = open(path_of(name), O_RDONLY);

    assert_non_null(have);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, have, bytes + 1), bytes);
    assert_int_equal(st_checksum64(have, bytes), st_checksum64(want, bytes));
    close(fd);
    free(have);
}

/* --- random requests against a model --- */

struct pending {
    strata_io_request request;
    unsigned char *memory, *buf, *want; /* want NULL: a write */
    uint64_t bytes;
    strata_status status;
};

struct model {
    unsigned char bytes[MODEL_BYTES];
    uint64_t size, seed, drawn;
    struct pending pending[PENDING];
    uint32_t count;
};

static uint64_t draw(struct model *m, uint64_t limit)
{
    return st_rng_u64(m->seed, 77, m->drawn++) % limit;
}

static void settle(struct strata_io *io, struct pending *p)
{
    struct strata_io_result result;
    const strata_status st = strata_io_wait(io, p->request, -1, &result);

    if (st != p->status)
        fail_msg("status %d, expected %d: %s", st, p->status, strata_last_error());
    assert_int_equal(result.status, st);
    if (st == STRATA_OK) {
        assert_int_equal(result.bytes_moved, p->bytes);
        if (p->want != NULL)
            assert_memory_equal(p->buf, p->want, p->bytes);
    }
    assert_int_equal(strata_io_poll(io, p->request, NULL), STRATA_E_INVAL); /* taken */
    free(p->memory);
    free(p->want);
}

static uint64_t draw_bytes(struct model *m)
{
    static const uint64_t limits[] = {2, 100, 5000, 5000, 70000, 300000};
    const uint64_t bytes = draw(m, limits[draw(m, 6)]);

    return draw(m, 4) == 0 ? bytes & ~(uint64_t)4095 : bytes;
}

static void start_one(struct model *m, struct strata_io_file *file)
{
    struct pending *p = &m->pending[m->count++];
    const bool write = draw(m, 2) == 0;
    uint64_t offset = draw(m, write ? MODEL_BYTES - 300000 : m->size + 2000);
    uint32_t shift = draw(m, 2) == 0 ? 0 : (uint32_t)draw(m, 4096);

    if (draw(m, 4) == 0)
        offset &= ~(uint64_t)4095;
    *p = (struct pending){.bytes = draw_bytes(m)};
    if (posix_memalign((void **)&p->memory, 4096, p->bytes + shift + 1) != 0)
        fail_msg("no memory");
    p->buf = p->memory + shift;
    if (write) {
        for (uint64_t i = 0; i < p->bytes; i++)
            p->buf[i] = (unsigned char)(st_rng_u64(m->seed, m->drawn, i / 8) >> (i % 8 * 8));
        memcpy(m->bytes + offset, p->buf, p->bytes);
        if (p->bytes > 0 && offset + p->bytes > m->size)
            m->size = offset + p->bytes;
        assert_int_equal(strata_io_write(file, offset, p->buf, p->bytes, &p->request), STRATA_OK);
        return;
    }
    p->want = malloc(p->bytes + 1);
    assert_non_null(p->want);
    if (p->bytes > 0 && offset + p->bytes > m->size)
        p->status = STRATA_E_TRUNC;
    else
        memcpy(p->want, m->bytes + offset, p->bytes);
    assert_int_equal(strata_io_read(file, offset, p->buf, p->bytes, &p->request), STRATA_OK);
}

static void run_model(struct model *m, struct strata_io *io, struct strata_io_file *file, uint32_t rounds, const char *name)
{
    for (uint32_t i = 0; i < rounds; i++) {
        if (m->count == PENDING || (m->count > 0 && draw(m, 3) == 0)) {
            const uint32_t at = (uint32_t)draw(m, m->count);

            settle(io, &m->pending[at]);
            m->pending[at] = m->pending[--m->count];
        } else {
            start_one(m, file);
        }
        if (i % 64 != 63)
            continue;
        assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
        assert_int_equal(strata_io_file_bytes(file), m->size);
        if (name != NULL)
            assert_int_equal(size_on_disk(name), m->size);
    }
    while (m->count > 0)
        settle(io, &m->pending[--m->count]);
}

static void random_requests(void **state)
{
    const struct variant *v = *state;
    const bool fake = strcmp(v->method, "fake") == 0;
    const uint32_t descriptors = open_descriptors();

    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct strata_io *io = open_handle(v);
        struct model *m = calloc(1, sizeof(*m));
        struct strata_io_counters counters;
        struct strata_io_file *file;

        if (io == NULL) {
            free(m);
            skip();
        }
        assert_non_null(m);
        m->seed = seed;
        m->size = fake ? MODEL_BYTES : seed % 2 == 0 ? 54321 : 0;
        file = open_new(io, "random", v->flags | STRATA_IO_TRUNCATE, m->size);
        run_model(m, io, file, 500, fake ? NULL : "random");
        strata_io_get_counters(io, &counters);
        assert_int_equal(counters.outstanding, 0);
        assert_true(counters.reads > 0 && counters.writes > 0);
        if (strata_io_file_direct(file))
            assert_true(counters.bytes_bounced > 0 && counters.blocks_merged > 0);
        assert_int_equal(strata_io_close_file(file), STRATA_OK);
        assert_int_equal(strata_io_close(io), STRATA_OK);
        if (!fake)
            assert_file_is("random", m->bytes, m->size);
        free(m);
    }
    assert_int_equal(open_descriptors(), descriptors);
}

/* --- many threads --- */

#define THREADS 4u
#define STRIP   997u /* bytes: strips of different threads share blocks */
#define STRIPS  150u

struct worker {
    pthread_t thread;
    struct strata_io *io;
    struct strata_io_file *file;
    uint32_t index;
    unsigned char want[STRIPS][STRIP];
    uint32_t wrong;
};

static uint64_t strip_offset(uint32_t strip, uint32_t worker)
{
    return ((uint64_t)strip * THREADS + worker) * STRIP;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    strata_io_request requests[STRIPS];
    unsigned char have[STRIP];

    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t s = 0; s < STRIPS; s++) {
            for (uint32_t i = 0; i < STRIP; i++)
                w->want[s][i] = (unsigned char)st_rng_u64(w->index, round, s * STRIP + i);
            w->wrong += strata_io_write(w->file, strip_offset(s, w->index), w->want[s], STRIP, &requests[s]) != STRATA_OK;
        }
        for (uint32_t s = STRIPS; s-- > 0;)
            w->wrong += strata_io_wait(w->io, requests[s], -1, NULL) != STRATA_OK;
        for (uint32_t s = 0; s < STRIPS; s++) {
            w->wrong += strata_io_read(w->file, strip_offset(s, w->index), have, STRIP, &requests[s]) != STRATA_OK;
            while (strata_io_poll(w->io, requests[s], NULL) == STRATA_E_BUSY)
                (void)strata_io_wait_all(w->io, 10);
            w->wrong += memcmp(have, w->want[s], STRIP) != 0;
        }
    }
    return NULL;
}

static void many_threads(void **state)
{
    struct strata_io *io = open_handle(*state);
    const bool fake = io != NULL && strcmp(strata_io_get_method(io), "fake") == 0;
    struct worker *workers = calloc(THREADS, sizeof(*workers));
    unsigned char *whole = malloc(THREADS * STRIPS * STRIP);
    struct strata_io_file *file;

    assert_non_null(workers);
    assert_non_null(whole);
    if (io == NULL) {
        free(whole);
        free(workers);
        skip();
    }
    file = open_new(io, "threads", ((const struct variant *)*state)->flags | STRATA_IO_TRUNCATE,
                    fake ? THREADS * STRIPS * STRIP : 0);
    for (uint32_t t = 0; t < THREADS; t++) {
        workers[t].io = io;
        workers[t].file = file;
        workers[t].index = t;
        assert_int_equal(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (uint32_t t = 0; t < THREADS; t++) {
        pthread_join(workers[t].thread, NULL);
        assert_int_equal(workers[t].wrong, 0);
        for (uint32_t s = 0; s < STRIPS; s++)
            memcpy(whole + strip_offset(s, t), workers[t].want[s], STRIP);
    }
    assert_int_equal(strata_io_close(io), STRATA_OK); /* closes the file, too */
    if (!fake)
        assert_file_is("threads", whole, THREADS * STRIPS * STRIP);
    free(whole);
    free(workers);
}

/* Hundreds of writes to one odd range: the last one stays, and each read sees the write before it. */
static void overlapping_writes_keep_their_order(void **state)
{
    enum { ROUNDS = 300, BYTES = 6001 };
    struct strata_io *io = open_handle(*state);
    unsigned char *in = malloc(ROUNDS * BYTES), *out = malloc(ROUNDS * BYTES);
    strata_io_request reads[ROUNDS];
    struct strata_io_file *file;

    if (io == NULL) {
        free(in);
        free(out);
        skip();
    }
    file = open_new(io, "order", ((const struct variant *)*state)->flags, 20000);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        memset(in + (size_t)i * BYTES, (int)(i % 251), BYTES);
        assert_int_equal(strata_io_write(file, 1234, in + (size_t)i * BYTES, BYTES, NULL), STRATA_OK);
        assert_int_equal(strata_io_read(file, 1234, out + (size_t)i * BYTES, BYTES, &reads[i]), STRATA_OK);
    }
    for (uint32_t i = 0; i < ROUNDS; i++)
        assert_int_equal(strata_io_wait(io, reads[i], -1, NULL), STRATA_OK);
    assert_memory_equal(in, out, ROUNDS * BYTES);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(in);
    free(out);
}

/* More files at once, and more in a row, than a method takes. */
static void more_files_than_a_method_takes(void **state)
{
    enum { FILES = 40, BYTES = 10001 };
    const struct variant *v = *state;
    const uint32_t descriptors = open_descriptors();
    struct strata_io *io = open_handle(v);
    struct strata_io_file *files[FILES];
    strata_io_request requests[FILES];
    unsigned char *out = malloc(BYTES), *in[FILES];
    char name[32];

    if (io == NULL || strcmp(v->method, "fake") == 0) {
        strata_io_close(io);
        free(out);
        skip();
    }
    for (uint32_t i = 0; i < FILES; i++) {
        snprintf(name, sizeof(name), "file%u", i);
        files[i] = open_new(io, name, v->flags | STRATA_IO_TRUNCATE, 0);
        in[i] = malloc(BYTES);
        memset(in[i], (int)i + 1, BYTES);
        assert_int_equal(strata_io_write(files[i], 0, in[i], BYTES, &requests[i]), STRATA_OK);
    }
    for (uint32_t i = 0; i < FILES; i++)
        assert_int_equal(strata_io_wait(io, requests[i], -1, NULL), STRATA_OK);
    for (uint32_t i = 0; i < FILES; i++) {
        assert_int_equal(strata_io_read(files[i], 0, out, BYTES, &requests[i]), STRATA_OK);
        assert_int_equal(strata_io_wait(io, requests[i], -1, NULL), STRATA_OK);
        assert_memory_equal(in[i], out, BYTES);
        assert_int_equal(strata_io_close_file(files[i]), STRATA_OK);
        free(in[i]);
    }
    assert_int_equal(strata_io_close(io), STRATA_OK);
    assert_int_equal(open_descriptors(), descriptors);
    free(out);
}

/* Nobody holds a file that is closed, while the handle goes on: not for another file's sake, and not for its own past. */
static void a_closed_file_is_let_go(void **state)
{
    const struct variant *v = *state;
    struct strata_io *io = open_handle(v);
    struct strata_io_file *other;
    unsigned char buf[6001] = {1};

    if (io == NULL || strcmp(v->method, "fake") == 0) {
        strata_io_close(io);
        skip();
    }
    other = open_new(io, "other", v->flags, 1 << 20);
    for (uint32_t i = 0; i < 50; i++) {
        struct strata_io_file *file = open_new(io, "let go", v->flags | STRATA_IO_TRUNCATE, 0);
        int fd = open(path_of("let go"), O_RDWR);

        assert_true(fd >= 0);
        assert_int_equal(flock(file->fd, LOCK_EX), 0); /* lives as long as any holds the open file */
        assert_int_equal(strata_io_write(other, i * 7000, buf, sizeof(buf), NULL), STRATA_OK);
        assert_int_equal(strata_io_write(file, 0, buf, sizeof(buf), NULL), STRATA_OK);
        assert_int_equal(strata_io_close_file(file), STRATA_OK);
        assert_int_equal(flock(fd, strcmp(v->method, "aio") == 0 ? LOCK_EX : LOCK_EX | LOCK_NB), 0); /* aio: an instant later */
        assert_int_equal(close(fd), 0);
    }
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

/* Any errno, at any site a request passes, goes to the waiter of that request and to nobody else. */
static void errors_reach_their_waiter(void **state)
{
    static const struct {
        int64_t result;
        strata_status st;
        int err;
        const char *text;
    } rows[] = {
        {-EIO, STRATA_E_IO, EIO, "Input/output error"},
        {-ENOSPC, STRATA_E_NOSPC, ENOSPC, "No space left"},
        {-ENOMEM, STRATA_E_NOMEM, ENOMEM, "memory"},
    };
    const struct variant *v = *state;
    struct strata_io *io = open_handle(v);
    struct strata_io_file *file;
    unsigned char *buf = aligned_alloc(4096, 8 * 4096);

    if (io == NULL) {
        free(buf);
        skip();
    }
    memset(buf, 1, 8 * 4096);
    file = open_new(io, "errors", v->flags, 1 << 20);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        strata_io_request good, bad, late;
        struct strata_io_result result;

        assert_int_equal(strata_io_write(file, 0, buf, 4096, &good), STRATA_OK);
        assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = 1, .result = rows[i].result});
        assert_int_equal(strata_io_write(file, 8192, buf, 4096, &bad), STRATA_OK);
        assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK); /* none of its own failed */
        assert_int_equal(st_fault_disarm(), 1);
        assert_int_equal(strata_io_read(file, 0, buf, 4096, &late), STRATA_OK);
        assert_int_equal(strata_io_wait(io, late, -1, NULL), STRATA_OK);
        assert_int_equal(strata_io_wait(io, good, -1, NULL), STRATA_OK);
        assert_int_equal(strata_io_wait(io, bad, -1, &result), rows[i].st);
        assert_int_equal(result.system_error, rows[i].err);
        assert_int_equal(result.failed_offset, 8192);
        assert_non_null(strstr(strata_last_error(), "errors: write of 4096 bytes at offset 8192"));
        assert_non_null(strstr(strata_last_error(), rows[i].text));
    }
    /* Of a request that nobody waits for: wait_all() says it, once. */
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.submit", .count = 1, .result = -EAGAIN});
    assert_int_equal(strata_io_write(file, 0, buf, 4096, NULL), STRATA_OK);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_E_IO); /* busy would say that it goes on */
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
    /* And of one whose status nobody took: closing. */
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = 1, .result = -EIO});
    assert_int_equal(strata_io_read(file, 4096, buf, 4096, &(strata_io_request){0}), STRATA_OK);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
    st_fault_disarm();
    assert_int_equal(strata_io_close(io), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), "read of 4096 bytes at offset 4096"));
    free(buf);
}

/* The Nth site fails, for every N, under a mix of odd requests: right data or a status that says why, nothing lost. */
static void single_failures(void **state)
{
    const struct variant *v = *state;
    const uint32_t descriptors = open_descriptors();

    for (uint32_t after = 0;; after++) {
        const struct strata_io_opts opts = options(v);
        unsigned char in[9001], out[9001] = {0};
        struct strata_io_file *file = NULL;
        strata_io_request write, read;
        struct strata_io *io = NULL;
        strata_status st, closed;

        memset(in, (int)(after % 200) + 1, sizeof(in));
        st_fault_arm(&(struct st_fault_spec){.after = after, .count = 1, .result = -EIO});
        if ((st = strata_io_open(&io, &opts)) == STRATA_OK &&
            (st = strata_io_open_file(io, &file, path_of("walk"),
                                      v->flags | STRATA_IO_READ | STRATA_IO_WRITE | STRATA_IO_CREATE | STRATA_IO_TRUNCATE,
                                      20001)) == STRATA_OK &&
            (st = strata_io_write(file, 5000, in, sizeof(in), &write)) == STRATA_OK &&
            (st = strata_io_read(file, 5000, out, sizeof(out), &read)) == STRATA_OK) {
            const strata_status written = strata_io_wait(io, write, -1, NULL);

            st = strata_io_wait(io, read, -1, NULL);
            if (written == STRATA_OK && st == STRATA_OK)
                assert_memory_equal(in, out, sizeof(in));
            st = written != STRATA_OK ? written : st;
        }
        closed = strata_io_close(io);
        assert_int_equal(open_descriptors(), descriptors);
        if (st_fault_disarm() == 0) {
            assert_int_equal(st, STRATA_OK);
            assert_int_equal(closed, STRATA_OK);
            assert_true(after > 5);
            break;
        }
        assert_true(after < 1000);
    }
}

/* --- once, with the best method --- */

static void opening_says_what_is_wrong(void **state)
{
    static const char *const names[] = {"nothing/here", ".", "absent"};
    struct strata_io_opts opts = {.opts_size = 1};
    struct strata_io *io = NULL;
    struct strata_io_file *file = NULL;
    strata_io_request request;
    char byte = 0;

    (void)state;
    assert_int_equal(strata_io_open(&io, &opts), STRATA_E_INVAL);
    opts = (struct strata_io_opts){sizeof(opts), .block_bytes = 4097};
    assert_int_equal(strata_io_open(&io, &opts), STRATA_E_INVAL);
    opts = (struct strata_io_opts){sizeof(opts), .queue_depth = 4097};
    assert_int_equal(strata_io_open(&io, &opts), STRATA_E_INVAL);
    opts = (struct strata_io_opts){sizeof(opts), .method = "threads", .threads = 65};
    assert_int_equal(strata_io_open(&io, &opts), STRATA_E_INVAL);
    opts = (struct strata_io_opts){sizeof(opts), .method = "pigeon"};
    assert_int_equal(strata_io_open(&io, &opts), STRATA_E_INVAL);
    assert_null(io);
    io = open_default();
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(strata_io_open_file(io, &file, path_of(names[i]), STRATA_IO_READ, 0), STRATA_E_INPUT);
        assert_non_null(strstr(strata_last_error(), names[i]));
    }
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(strata_io_open_file(io, &file, path_of("fifo"), STRATA_IO_READ, 0), STRATA_E_INPUT);
    assert_int_equal(strata_io_open_file(io, &file, path_of("x"), STRATA_IO_CREATE, 0), STRATA_E_INVAL);
    assert_int_equal(strata_io_open_file(io, &file, path_of("x"), STRATA_IO_READ | STRATA_IO_CREATE, 0), STRATA_E_INVAL);
    assert_int_equal(strata_io_open_file(io, &file, path_of("x"), STRATA_IO_READ, 5), STRATA_E_INVAL);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.fallocate", .result = -ENOSPC});
    assert_int_equal(strata_io_open_file(io, &file, path_of("full"), STRATA_IO_WRITE | STRATA_IO_CREATE, 5000), STRATA_E_NOSPC);
    st_fault_disarm();
    assert_int_equal(access(path_of("full"), F_OK), -1);
    assert_null(file);

    assert_int_equal(strata_io_open_file(io, &file, path_of("full"), STRATA_IO_WRITE | STRATA_IO_CREATE, 5000), STRATA_OK);
    assert_int_equal(size_on_disk("full"), 5000);
    assert_int_equal(strata_io_read(file, 0, &byte, 1, &request), STRATA_E_INVAL);
    assert_int_equal(strata_io_write(file, UINT64_MAX - 5, &byte, 1, &request), STRATA_E_INVAL);
    assert_int_equal(strata_io_write(file, 5, NULL, 1, &request), STRATA_E_INVAL);
    assert_int_equal(strata_io_wait(io, (strata_io_request){0}, -1, NULL), STRATA_E_INVAL);
    assert_int_equal(strata_io_cancel(io, (strata_io_request){UINT64_MAX}), STRATA_E_INVAL);
    assert_int_equal(strata_io_sync_file(file), STRATA_OK);
    assert_int_equal(strata_io_wait_all(io, 0), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    assert_int_equal(strata_io_close(NULL), STRATA_OK);
}

static void reads_past_the_end_say_how_long_the_file_is(void **state)
{
    struct strata_io *io = open_default();
    struct strata_io_file *file = open_new(io, "short", STRATA_IO_TRUNCATE, 0);
    strata_io_request request;
    char buf[5000] = {0};

    (void)state;
    assert_int_equal(strata_io_write(file, 0, buf, 4999, NULL), STRATA_OK);
    assert_int_equal(strata_io_read(file, 0, buf, 4999, &request), STRATA_OK); /* waits for the write */
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_read(file, 0, buf, 5000, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_E_TRUNC);
    assert_non_null(strstr(strata_last_error(), "short: read of 5000 bytes at offset 0: the file ends before that: it has 4999"));
    assert_int_equal(truncate(path_of("short"), 6000), 0); /* by others */
    assert_int_equal(strata_io_read(file, 0, buf, 5000, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

static void deadline_names_the_oldest(void **state)
{
    struct strata_io_opts opts = {sizeof(opts), .method = "fake", .queue_depth = 4};
    struct strata_io *io;
    struct strata_io_file *file;
    struct strata_io_result result;
    strata_io_request first, second;
    char buf[8192];

    (void)state;
    assert_int_equal(st_handle_open(&io, &opts, &(struct st_io_opts){.fake_bytes_per_second = 100}), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &file, "slow", STRATA_IO_READ | STRATA_IO_WRITE, 1 << 20), STRATA_OK);
    assert_int_equal(strata_io_read(file, 4096, buf, 4096, &first), STRATA_OK); /* 41 s each, were they not cancelled */
    assert_int_equal(strata_io_read(file, 8192, buf + 4096, 4096, &second), STRATA_OK);
    assert_int_equal(strata_io_wait(io, second, 0.001, &result), STRATA_E_BUSY);
    assert_int_equal(result.status, STRATA_E_BUSY);
    assert_non_null(strstr(strata_last_error(), "read of 4096 bytes at offset 4096 of slow"));
    assert_int_equal(strata_io_wait_all(io, 0), STRATA_E_BUSY);
    assert_int_equal(strata_io_poll(io, second, NULL), STRATA_E_BUSY);
    assert_int_equal(strata_io_cancel(io, first), STRATA_OK);
    assert_int_equal(strata_io_cancel(io, second), STRATA_OK);
    assert_int_equal(strata_io_wait(io, second, -1, NULL), STRATA_E_CANCELLED);
    assert_int_equal(strata_io_wait(io, first, -1, NULL), STRATA_E_CANCELLED);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

static void cancelled_requests_end_as_such(void **state)
{
    enum { REQUESTS = 64, BYTES = 20000 };
    struct strata_io_opts opts = {sizeof(opts), .method = "fake", .queue_depth = 2, .block_bytes = 4096};
    struct strata_io_counters counters;
    strata_io_request requests[REQUESTS];
    struct strata_io_file *file;
    struct strata_io *io;
    uint32_t cancelled = 0;
    char *buf = malloc(REQUESTS * BYTES);

    (void)state;
    assert_int_equal(st_handle_open(&io, &opts, &(struct st_io_opts){.fake_bytes_per_second = 200000}), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &file, "slow", STRATA_IO_READ | STRATA_IO_WRITE, 1 << 21), STRATA_OK);
    for (uint32_t i = 0; i < REQUESTS; i++) /* odd writes that overlap; all kinds of pieces are under way */
        assert_int_equal(
            strata_io_write(file, (uint64_t)(i / 2) * 20001, memset(buf + (size_t)i * BYTES, 1, BYTES), BYTES, &requests[i]),
            STRATA_OK);
    for (uint32_t i = REQUESTS; i-- > 0;)
        assert_int_equal(strata_io_cancel(io, requests[i]), STRATA_OK);
    assert_int_equal(strata_io_cancel(io, requests[REQUESTS - 1]), STRATA_OK);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct strata_io_result result;
        const strata_status st = strata_io_wait(io, requests[i], -1, &result);

        assert_true(st == STRATA_E_CANCELLED || st == STRATA_OK);
        assert_true(st == STRATA_OK ? result.bytes_moved == BYTES : result.bytes_moved < BYTES);
        cancelled += st == STRATA_E_CANCELLED;
    }
    assert_true(cancelled > REQUESTS / 2);
    strata_io_get_counters(io, &counters);
    assert_int_equal(counters.cancelled, cancelled);
    assert_int_equal(strata_io_write(file, 1, buf, BYTES, &requests[0]), STRATA_OK); /* and the handle is as good as before */
    assert_int_equal(strata_io_wait(io, requests[0], -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(buf);
}

static void closing_finishes_what_was_started(void **state)
{
    enum { REQUESTS = 200, BYTES = 5003 };
    struct strata_io *io = open_default();
    struct strata_io_file *file = open_new(io, "closing", STRATA_IO_TRUNCATE, 0);
    unsigned char *buf = malloc(REQUESTS * BYTES);

    (void)state;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        memset(buf + (size_t)i * BYTES, (int)i + 1, BYTES);
        assert_int_equal(strata_io_write(file, (uint64_t)i * BYTES, buf + (size_t)i * BYTES, BYTES, NULL), STRATA_OK);
    }
    assert_int_equal(strata_io_close(io), STRATA_OK);
    assert_file_is("closing", buf, REQUESTS * BYTES);
    free(buf);
}

/* Far more requests at once than the queue is deep. */
static void requests_are_without_number(void **state)
{
    enum { REQUESTS = 5000 };
    struct strata_io *io = open_default();
    struct strata_io_file *file = open_new(io, "many", 0, REQUESTS * 16);
    strata_io_request *requests = calloc(REQUESTS, sizeof(*requests));
    uint64_t in[2] = {1, 2}, (*out)[2] = calloc(REQUESTS, sizeof(*out));

    (void)state;
    for (uint64_t i = 0; i < REQUESTS; i++)
        assert_int_equal(strata_io_read(file, i * 16, out[i], 16, &requests[i]), STRATA_OK);
    assert_int_equal(strata_io_write(file, 80, in, 16, NULL), STRATA_OK);
    for (uint64_t i = 0; i < REQUESTS; i++)
        assert_int_equal(strata_io_wait(io, requests[i], -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(requests);
    free(out);
}

static void buffers_are_aligned_and_apart(void **state)
{
    struct strata_io_opts opts = {sizeof(opts), .buffer_bytes = 8u << 20};
    struct strata_io_counters counters;
    struct strata_io_file *file;
    strata_io_request request;
    struct strata_io *io;
    char *buffers[6];

    (void)state;
    assert_int_equal(strata_io_open(&io, &opts), STRATA_OK);
    for (uint32_t i = 0; i < 6; i++) { /* the last two are not of the region */
        const uint64_t bytes = i % 2 == 0 ? 100 : 3u << 20;

        assert_int_equal(strata_io_buffer_alloc(io, (void **)&buffers[i], bytes), STRATA_OK);
        assert_int_equal((uintptr_t)buffers[i] % (bytes >= 2u << 20 ? 2u << 20 : 4096), 0);
        memset(buffers[i], (int)i, bytes);
    }
    for (uint32_t i = 0; i < 6; i++)
        for (uint64_t k = 0; k < (i % 2 == 0 ? 100 : 3u << 20); k++)
            if (buffers[i][k] != (char)i)
                fail_msg("buffer %u is not its own", i);
    file = open_new(io, "buffers", 0, 3u << 20);
    for (uint32_t i = 1; i < 6; i += 2) {
        assert_int_equal(strata_io_write(file, 0, buffers[i], 3u << 20, &request), STRATA_OK);
        assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    }
    strata_io_get_counters(io, &counters);
    assert_int_equal(counters.bytes_bounced, 0);
    assert_int_equal(counters.bytes_written, 9u << 20);
    assert_int_equal(strata_io_buffer_free(io, buffers[1]), STRATA_OK);
    assert_int_equal(strata_io_buffer_free(io, buffers[1]), STRATA_E_INVAL);
    assert_int_equal(strata_io_buffer_free(io, NULL), STRATA_OK);
    assert_int_equal(strata_io_buffer_alloc(io, (void **)&buffers[0], 2u << 20), STRATA_OK);
    assert_ptr_equal(buffers[0], buffers[1]);
    assert_int_equal(strata_io_buffer_alloc(io, (void **)&buffers[0], 0), STRATA_E_INVAL);
    assert_int_equal(strata_io_close_file(file), STRATA_OK); /* registered files are given back, and the next is served */
    file = open_new(io, "buffers", 0, 0);
    assert_int_equal(strata_io_read(file, 0, buffers[3], 3u << 20, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

static void a_forked_child_is_told(void **state)
{
    struct strata_io *io = open_default();
    struct strata_io_file *file = open_new(io, "fork", 0, 4096);
    strata_io_request request;
    char byte = 0;
    int status;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(strata_io_read(file, 0, &byte, 1, &request) == STRATA_E_INVAL && strstr(strata_last_error(), "process") != NULL &&
                      strata_io_close_file(file) == STRATA_E_INVAL && strata_io_close(io) == STRATA_E_INVAL
                  ? 0
                  : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(strata_io_read(file, 0, &byte, 1, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

static int make_dir(void **state)
{
    (void)state;
    snprintf(test_dir, sizeof(test_dir), "/tmp/strata-test-handle-XXXXXX");
    return mkdtemp(test_dir) == NULL ? -1 : 0;
}

static int remove_dir(void **state)
{
    DIR *dir = opendir(test_dir);
    const struct dirent *entry;

    (void)state;
    while (dir != NULL && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.')
            unlink(path_of(entry->d_name));
    if (dir != NULL)
        closedir(dir);
    return rmdir(test_dir);
}

static struct variant variants[] = {
    {"uring", 0, 32, 16384, 0, 0},
    {"uring", 0, 1, 4096, 0, 0},
    {"uring", STRATA_IO_BUFFERED, 8, 16384, 0, 0},
    {"uring", 0, 8, 0, 4096, 0},
    {"aio", 0, 8, 16384, 0, 0},
    {"threads", 0, 8, 16384, 0, 2},
    {"threads", STRATA_IO_BUFFERED, 8, 16384, 0, 0},
    {"fake", 0, 8, 16384, 0, 0},
};

#define EACH(test)                                                                                                               \
    cmocka_unit_test_prestate(test, &variants[0]), cmocka_unit_test_prestate(test, &variants[1]),                                \
        cmocka_unit_test_prestate(test, &variants[2]), cmocka_unit_test_prestate(test, &variants[3]),                            \
        cmocka_unit_test_prestate(test, &variants[4]), cmocka_unit_test_prestate(test, &variants[5]),                            \
        cmocka_unit_test_prestate(test, &variants[6]), cmocka_unit_test_prestate(test, &variants[7])

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(random_requests),
        EACH(many_threads),
        EACH(overlapping_writes_keep_their_order),
        EACH(more_files_than_a_method_takes),
        EACH(a_closed_file_is_let_go),
        EACH(errors_reach_their_waiter),
        EACH(single_failures),
        cmocka_unit_test(opening_says_what_is_wrong),
        cmocka_unit_test(reads_past_the_end_say_how_long_the_file_is),
        cmocka_unit_test(deadline_names_the_oldest),
        cmocka_unit_test(cancelled_requests_end_as_such),
        cmocka_unit_test(closing_finishes_what_was_started),
        cmocka_unit_test(requests_are_without_number),
        cmocka_unit_test(buffers_are_aligned_and_apart),
        cmocka_unit_test(a_forked_child_is_told),
    };

    return cmocka_run_group_tests_name("io handle", tests, make_dir, remove_dir);
}
