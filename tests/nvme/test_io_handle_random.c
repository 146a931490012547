/* tests/nvme/test_io_handle_random.c - the public handle (strata/io.h): random mixed requests against a model in memory, and of
 * many threads, over every method, direct and buffered; exact sizes. */
#include "core/base/rng.h"
#include "io_handle_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_BYTES 700000u
#define PENDING     40u

struct pending {
    strata_io_request request;
    unsigned char *memory, *buf, *want; /* want NULL: a write */
    uint64_t bytes;
    strata_status status;
};

struct model {
    unsigned char bytes[MODEL_BYTES];
    uint64_t size, seed, drawn;
    bool at_end; /* small writes around the file's end, some of them behind it */
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
    if (write && m->at_end && m->size < MODEL_BYTES / 2) {
        offset = m->size + draw(m, 5000);
        offset -= offset < 2500 ? offset : 2500;
        p->bytes = draw(m, 900);
    }
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
            assert_int_equal(handle_size_on_disk(name), m->size);
    }
    while (m->count > 0)
        settle(io, &m->pending[--m->count]);
}

TEST_EACH_HANDLE(random_requests)
{
    const struct handle_variant *v = *state;
    const bool fake = strcmp(v->method, "fake") == 0;
    const uint32_t descriptors = scratch_entries("/proc/self/fd", NULL);

    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct strata_io *io = handle_open(v);
        struct model *m = calloc(1, sizeof(*m));
        struct strata_io_counters counters;
        struct strata_io_file *file;

        if (io == NULL) {
            free(m);
            skip();
        }
        assert_non_null(m);
        m->seed = seed;
        m->at_end = seed > 4;
        m->size = fake ? MODEL_BYTES : seed % 2 == 0 ? 54321 : 0;
        file = handle_open_new(io, "random", v->flags | STRATA_IO_TRUNCATE, m->size);
        run_model(m, io, file, 500, fake ? NULL : "random");
        strata_io_get_counters(io, &counters);
        assert_int_equal(counters.outstanding, 0);
        assert_true(counters.reads > 0 && counters.writes > 0);
        if (strata_io_file_direct(file))
            assert_true(counters.bytes_bounced > 0 && counters.blocks_merged > 0);
        assert_int_equal(strata_io_close_file(file), STRATA_OK);
        assert_int_equal(strata_io_close(io), STRATA_OK);
        if (!fake)
            handle_assert_file("random", m->bytes, m->size);
        free(m);
    }
    assert_int_equal(scratch_entries("/proc/self/fd", NULL), descriptors);
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

TEST_EACH_HANDLE(many_threads)
{
    struct strata_io *io = handle_open(*state);
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
    file = handle_open_new(io, "threads", ((const struct handle_variant *)*state)->flags | STRATA_IO_TRUNCATE,
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
        handle_assert_file("threads", whole, THREADS * STRIPS * STRIP);
    free(whole);
    free(workers);
}

TEST_GROUP(scratch_create, scratch_remove);
