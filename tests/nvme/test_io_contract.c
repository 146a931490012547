/* tests/nvme/test_io_contract.c - the contract in nvme/io.h, run against every I/O method this machine has.
 * A method that fails here is wrong even if the engine happens to work with it. */
#include "core/clock.h"
#include "core/fault.h"
#include "core/log.h"
#include "core/rng.h"
#include "io_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define RETRIES 16u /* refusals of one request that are absorbed */

static const struct st_io_ops *ops_of(void **state)
{
    return *state;
}

static void what_was_written_is_read(void **state)
{
    static const uint32_t depths[] = {1, 2, 7, 64};

    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
        for (uint32_t block = BLOCK; block <= 16 * BLOCK; block *= 16) {
            struct io_fixture f;

            assert_int_equal(io_fixture_open(&f, ops_of(state), 33, block, depths[i]), STRATA_OK);
            assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
            assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
            io_fixture_assert_data(&f);
            for (uint32_t k = 0; k < f.block_count; k++)
                assert_int_equal(f.done_of[k], 1);
            io_fixture_close(&f);
        }
    }
}

/* A transfer that moves too little goes on from its last whole block; 5000 bytes leave a part of a block to do again. */
static void short_transfers_are_continued(void **state)
{
    static const int64_t moved[] = {4096, 5000, 3 * 4096, 7 * 4096 + 1};

    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, ops_of(state), 8, 8 * BLOCK, 4), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = 3, .result = moved[i]});
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        assert_int_equal(st_fault_disarm(), 3);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = 3, .result = moved[i]});
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        assert_int_equal(st_fault_disarm(), 3);
        io_fixture_assert_data(&f);
        io_fixture_close(&f);
    }
}

static void transient_refusals_are_repeated(void **state)
{
    static const int64_t refusals[] = {-EAGAIN, -EINTR};

    for (size_t i = 0; i < 2; i++) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, ops_of(state), 1, BLOCK, 4), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = RETRIES, .result = refusals[i]});
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        assert_int_equal(st_fault_disarm(), RETRIES);
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        io_fixture_assert_data(&f);
        io_fixture_close(&f);
    }
}

static void refusals_without_end_fail(void **state)
{
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, ops_of(state), 1, BLOCK, 4), STRATA_OK);
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .result = -EAGAIN});
    assert_int_equal(io_fixture_read_all(&f), STRATA_E_IO);
    assert_int_equal(st_fault_disarm(), RETRIES + 1);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .result = 100});
    assert_int_equal(io_fixture_write_all(&f), STRATA_E_IO);
    st_fault_disarm();
    assert_int_equal(io_fixture_read_all(&f), STRATA_OK); /* and the io is as good as before */
    io_fixture_assert_data(&f);
    io_fixture_close(&f);
}

static void errors_have_their_status_and_sentence(void **state)
{
    static const struct {
        int64_t result;
        strata_status st;
        const char *text;
    } rows[] = {
        {-EIO, STRATA_E_IO, "dmesg"},        {-ENOSPC, STRATA_E_NOSPC, "free space"},    {-EDQUOT, STRATA_E_NOSPC, "free space"},
        {-ENOMEM, STRATA_E_NOMEM, "memory"}, {-EINVAL, STRATA_E_IO, "Invalid argument"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, ops_of(state), 4, BLOCK, 1), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 2, .count = 1, .result = rows[i].result});
        assert_int_equal(io_fixture_write_all(&f), rows[i].st);
        st_fault_disarm();
        assert_non_null(strstr(f.sentence, "write of 4096 bytes at offset 8192"));
        assert_non_null(strstr(f.sentence, rows[i].text));
        assert_int_equal(f.done_count, 4);
        io_fixture_close(&f);
    }
}

static void a_file_one_byte_short_is_truncated(void **state)
{
    struct io_fixture f;

    assert_int_equal(io_fixture_open_sized(&f, ops_of(state), 8, 2 * BLOCK, 4, 16 * BLOCK - 1), STRATA_OK);
    assert_int_equal(io_fixture_read_all(&f), STRATA_E_TRUNC);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(f.status[i], i < 7 ? STRATA_OK : STRATA_E_TRUNC);
    assert_non_null(strstr(f.sentence, "the file ends before"));
    io_fixture_close(&f);

    assert_int_equal(io_fixture_open_sized(&f, ops_of(state), 4, BLOCK, 4, 0), STRATA_OK);
    assert_int_equal(io_fixture_read_all(&f), STRATA_E_TRUNC);
    io_fixture_close(&f);
}

static void a_full_queue_takes_none(void **state)
{
    struct st_io_req *reqs[5];
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, ops_of(state), 5, BLOCK, 4), STRATA_OK);
    for (uint32_t i = 0; i < 5; i++)
        reqs[i] = io_fixture_prepare(&f, i, ST_IO_WRITE);
    assert_int_equal(f.ops->submit(f.io, reqs, 5), STRATA_E_BUSY);
    assert_int_equal(f.ops->reap(f.io, 5), STRATA_OK);
    assert_int_equal(f.done_count, 0);

    assert_int_equal(f.ops->submit(f.io, reqs, 3), STRATA_OK);
    assert_int_equal(f.ops->submit(f.io, reqs + 3, 2), STRATA_E_BUSY);
    assert_int_equal(f.ops->submit(f.io, reqs + 3, 1), STRATA_OK);
    assert_int_equal(f.ops->submit(f.io, reqs + 4, 1), STRATA_E_BUSY);
    assert_int_equal(f.ops->reap(f.io, 4), STRATA_OK);
    assert_int_equal(f.done_count, 4);
    assert_int_equal(f.done_of[4], 0);
    assert_int_equal(f.ops->submit(f.io, reqs + 4, 1), STRATA_OK);
    assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
    assert_int_equal(f.done_of[4], 1);
    io_fixture_close(&f);
}

static void a_refused_submit_starts_nothing(void **state)
{
    struct io_fixture f;
    struct st_io_req *req;

    assert_int_equal(io_fixture_open(&f, ops_of(state), 1, BLOCK, 4), STRATA_OK);
    req = io_fixture_prepare(&f, 0, ST_IO_WRITE);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.submit", .count = 1, .result = -EIO});
    assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_E_IO);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
    assert_int_equal(f.done_count, 0);
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    io_fixture_close(&f);
}

static void reap_waits_for_no_more_than_there_is(void **state)
{
    struct st_io_req *reqs[3];
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, ops_of(state), 3, BLOCK, 8), STRATA_OK);
    assert_int_equal(f.ops->reap(f.io, 0), STRATA_OK);
    assert_int_equal(f.ops->reap(f.io, 100), STRATA_OK);
    assert_int_equal(f.ops->submit(f.io, reqs, 0), STRATA_OK);
    for (uint32_t i = 0; i < 3; i++)
        reqs[i] = io_fixture_prepare(&f, i, ST_IO_WRITE);
    assert_int_equal(f.ops->submit(f.io, reqs, 3), STRATA_OK);
    assert_int_equal(f.ops->reap(f.io, 100), STRATA_OK);
    assert_int_equal(f.done_count, 3);
    io_fixture_close(&f);
}

static void done_may_submit(void **state)
{
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, ops_of(state), 4, BLOCK, 4), STRATA_OK);
    f.resubmit = 500;
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    assert_int_equal(f.done_count, 504);
    assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
    io_fixture_assert_data(&f);
    io_fixture_close(&f);
}

struct waker {
    const struct st_io_ops *ops;
    struct st_io *io;
    atomic_bool stop;
};

static void *wake_main(void *arg)
{
    struct waker *w = arg;

    do
        w->ops->wake(w->io);
    while (!atomic_load(&w->stop));
    return NULL;
}

static void wakes_lose_nothing(void **state)
{
    struct io_fixture f;
    struct waker w;
    pthread_t thread;

    assert_int_equal(io_fixture_open(&f, ops_of(state), 32, 4 * BLOCK, 5), STRATA_OK);
    w = (struct waker){.ops = f.ops, .io = f.io};
    assert_int_equal(pthread_create(&thread, NULL, wake_main, &w), 0);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        io_fixture_assert_data(&f);
    }
    atomic_store(&w.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    io_fixture_close(&f);
}

static bool is_method(const struct st_io_ops *ops, const char *name)
{
    return strcmp(ops->name, name) == 0;
}

/* A file of one block whose read does not end by itself: a pipe that nobody writes to, or a low rate.  False: this method has
 * none.  pread() takes no pipe, and aio waits for one in submit(). */
static bool open_stalled(struct io_fixture *f, const struct st_io_ops *ops, int *ends, uint64_t fake_bytes_per_second)
{
    struct st_io_opts opts = io_fixture_options(4);

    if (!is_method(ops, "uring") && !is_method(ops, "fake")) {
        print_message("%s: no file whose read blocks\n", ops->name);
        return false;
    }
    assert_int_equal(io_fixture_open(f, ops, 1, BLOCK, 4), STRATA_OK);
    ops->close(f->io);
    assert_int_equal(pipe(ends), 0);
    opts.fake_bytes_per_second = fake_bytes_per_second;
    assert_int_equal(ops->open(&f->io, &opts), STRATA_OK);
    assert_int_equal(ops->add_file(f->io, ends[0], BLOCK, &f->file), STRATA_OK);
    return true;
}

static void wake_ends_a_blocked_reap(void **state)
{
    const struct st_io_ops *ops = ops_of(state);
    struct waker w = {.ops = ops, .stop = true};
    struct io_fixture f;
    struct st_io_req *req;
    pthread_t thread;
    int ends[2];

    if (!open_stalled(&f, ops, ends, 1 << 12))
        skip();
    req = io_fixture_prepare(&f, 0, ST_IO_READ);
    assert_int_equal(ops->submit(f.io, &req, 1), STRATA_OK);
    w.io = f.io;
    assert_int_equal(pthread_create(&thread, NULL, wake_main, &w), 0);
    assert_int_equal(ops->reap(f.io, 1), STRATA_OK);
    assert_int_equal(f.done_count, 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (!is_method(ops, "fake"))
        assert_int_equal(write(ends[1], f.want, BLOCK), BLOCK);
    while (f.done_count == 0)
        assert_int_equal(ops->reap(f.io, 1), STRATA_OK);
    close(ends[0]);
    close(ends[1]);
    io_fixture_close(&f);
}

/* A request that does not end is left by a limit, and ends by a cancel. */
static void a_stalled_request_is_left_and_cancelled(void **state)
{
    const struct st_io_ops *ops = ops_of(state);
    struct io_fixture f;
    struct st_io_req *req;
    int ends[2];

    if (!open_stalled(&f, ops, ends, 1))
        skip();
    req = io_fixture_prepare(&f, 0, ST_IO_READ);
    assert_int_equal(ops->submit(f.io, &req, 1), STRATA_OK);
    for (uint32_t i = 0; i < 4; i++) {
        const uint64_t deadline = st_clock_ns() + 1000000;

        if (i == 3) /* a kernel whose call takes no time */
            st_fault_arm(&(struct st_fault_spec){.site = "nvme.timeout", .result = -ENOSYS});
        assert_int_equal(ops->reap_until(f.io, 1, i == 0 ? 1 : deadline), STRATA_OK);
        assert_true(i == 0 || st_clock_ns() >= deadline);
        assert_int_equal(f.done_count, 0);
    }
    st_fault_disarm();
    ops->cancel(f.io, req);
    ops->cancel(f.io, req);
    while (f.done_count == 0)
        assert_int_equal(ops->reap(f.io, 1), STRATA_OK);
    assert_int_equal(f.worst, STRATA_E_CANCELLED);
    assert_non_null(strstr(f.sentence, "read of 4096 bytes at offset 0"));
    close(ends[0]);
    close(ends[1]);
    io_fixture_close(&f);
}

/* A limit that has passed takes what is there; one that has not is no other than reap(). */
static void limits_lose_nothing(void **state)
{
    struct io_fixture f;

    for (uint32_t late = 0; late < 2; late++) {
        assert_int_equal(io_fixture_open(&f, ops_of(state), 32, BLOCK, 32), STRATA_OK);
        memcpy(f.buf, f.want, (size_t)f.block_count * f.block_bytes);
        for (uint32_t i = 0; i < 32; i++) {
            struct st_io_req *req = io_fixture_prepare(&f, i, ST_IO_WRITE);

            assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_OK);
        }
        while (f.done_count < 32)
            assert_int_equal(f.ops->reap_until(f.io, 32, late ? st_clock_ns() + 3600000000000u : 1), STRATA_OK);
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        io_fixture_assert_data(&f);
        assert_int_equal(f.ops->reap_until(f.io, 1, 0), STRATA_OK); /* nothing in flight */
        io_fixture_close(&f);
    }
}

/* Calls that are interrupted again and again end by the limit, too. */
static void a_limit_ends_interrupted_waits(void **state)
{
    static const char *const sites[] = {"nvme.enter", "nvme.getevents"};
    const uint64_t deadline = st_clock_ns() + 2000000;
    struct io_fixture f;
    struct st_io_req *req;

    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(io_fixture_open(&f, ops_of(state), 1, BLOCK, 1), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -EINTR});
        req = io_fixture_prepare(&f, 0, ST_IO_WRITE);
        assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_OK);
        assert_int_equal(f.ops->reap_until(f.io, 1, deadline), STRATA_OK);
        st_fault_disarm();
        while (f.done_count == 0)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        assert_int_equal(f.worst, STRATA_OK);
        io_fixture_close(&f);
    }
}

/* Whatever a cancel comes to: each request ends once, done or cancelled, and a done one has its bytes. */
static void cancelled_requests_end_once(void **state)
{
    struct io_fixture f;

    for (uint32_t round = 0; round < 20; round++) {
        assert_int_equal(io_fixture_open(&f, ops_of(state), 32, 4 * BLOCK, 32), STRATA_OK);
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        io_fixture_clear(&f);
        memset(f.buf, 0xee, (size_t)f.block_count * f.block_bytes);
        for (uint32_t i = 0; i < 32; i++) {
            struct st_io_req *req = io_fixture_prepare(&f, i, ST_IO_READ);

            assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_OK);
        }
        for (uint32_t i = 0; i < 32; i++) /* each is in flight: nothing was reaped */
            f.ops->cancel(f.io, &f.reqs[(i * 7 + round) % 32]);
        while (f.done_count < 32)
            assert_int_equal(f.ops->reap(f.io, 32), STRATA_OK);
        for (uint32_t i = 0; i < 32; i++) {
            assert_int_equal(f.done_of[i], 1);
            if (f.status[i] == STRATA_OK)
                assert_memory_equal(f.buf + (size_t)i * f.block_bytes, f.want + (size_t)i * f.block_bytes, f.block_bytes);
            else
                assert_int_equal(f.status[i], STRATA_E_CANCELLED);
        }
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        io_fixture_assert_data(&f);
        io_fixture_close(&f);
    }
}

/* What would be repeated or continued is not, after a cancel. */
static void a_cancelled_request_is_not_repeated(void **state)
{
    static const int64_t results[] = {-EAGAIN, -EINTR, BLOCK, 100, 0};

    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        struct io_fixture f;
        struct st_io_req *req;

        assert_int_equal(io_fixture_open(&f, ops_of(state), 1, 2 * BLOCK, 1), STRATA_OK);
        req = io_fixture_prepare(&f, 0, ST_IO_WRITE);
        assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .result = results[i]});
        f.ops->cancel(f.io, req);
        while (f.done_count == 0)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        assert_int_equal(st_fault_disarm(), 1);
        assert_int_equal(f.worst, STRATA_E_CANCELLED);
        io_fixture_close(&f);
    }
}

/* The kernel refuses whole batches, and goes on to. */
static void storms_of_refusals_pass(void **state)
{
    static const char *const sites[] = {"nvme.enter", "nvme.getevents", "nvme.cqe"};
    static const int64_t refusals[] = {-EAGAIN, -EINTR};

    for (size_t i = 0; i < 6; i++) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, ops_of(state), 16, BLOCK, 8), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = sites[i / 2], .after = 1, .count = RETRIES, .result = refusals[i % 2]});
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        st_fault_disarm();
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        io_fixture_assert_data(&f);
        io_fixture_close(&f);
    }
}

static void files_are_sixteen_at_most(void **state)
{
    struct io_fixture f;
    uint32_t index = 0;

    assert_int_equal(io_fixture_open(&f, ops_of(state), 2, BLOCK, 4), STRATA_OK);
    for (uint32_t i = 1; i < 16; i++) {
        assert_int_equal(f.ops->add_file(f.io, i == 15 ? io_temporary_file(0) : f.fd, 2 * BLOCK, &index), STRATA_OK);
        assert_int_equal(index, i);
    }
    assert_int_equal(f.ops->add_file(f.io, f.fd, 2 * BLOCK, &index), STRATA_E_INVAL);
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    f.file = 15;
    memset(f.buf, 0x55, 2 * BLOCK);
    assert_int_equal(io_fixture_run_all(&f, ST_IO_WRITE), STRATA_OK);
    f.file = 0;
    assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
    io_fixture_assert_data(&f);
    f.file = 15;
    assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
    assert_int_equal(f.buf[0], 0x55);
    assert_int_equal(f.buf[2 * BLOCK - 1], 0x55);
    io_fixture_close(&f);
}

/* One file stays in use while others come and go, more of them than there are places. */
static void places_are_given_back(void **state)
{
    unsigned char *buf = aligned_alloc(BLOCK, BLOCK);
    struct io_fixture f;

    assert_non_null(buf);
    assert_int_equal(io_fixture_open(&f, ops_of(state), 17, BLOCK, 32), STRATA_OK);
    memcpy(f.buf, f.want, 17 * BLOCK);
    for (uint32_t round = 0; round < 40; round++) {
        const int fd = io_temporary_file(BLOCK);
        struct st_io_req *last = io_fixture_prepare(&f, 16, ST_IO_WRITE);
        uint32_t index, done;

        for (uint32_t i = 0; i < 16; i++) { /* in flight while places change */
            struct st_io_req *req = io_fixture_prepare(&f, i, ST_IO_WRITE);

            assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_OK);
        }
        assert_int_equal(f.ops->add_file(f.io, fd, BLOCK, &index), STRATA_OK);
        assert_int_not_equal(index, f.file);
        last->file = index;
        last->offset = 0;
        assert_int_equal(f.ops->submit(f.io, &last, 1), STRATA_OK);
        for (done = f.done_of[16]; f.done_of[16] == done;)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        last->op = ST_IO_READ;
        last->buf = memset(buf, 0, BLOCK);
        assert_int_equal(f.ops->submit(f.io, &last, 1), STRATA_OK);
        for (done = f.done_of[16]; f.done_of[16] == done;)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        assert_memory_equal(buf, f.want + 16 * BLOCK, BLOCK);
        f.ops->remove_file(f.io, index);
        close(fd);
        while (f.done_count < (round + 1) * 18)
            assert_int_equal(f.ops->reap(f.io, 100), STRATA_OK);
    }
    assert_int_equal(f.worst, STRATA_OK);
    f.block_count = 16;
    assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
    io_fixture_assert_data(&f);
    io_fixture_close(&f);
    free(buf);
}

/* With these a thread of the kernel may still be about to put its last request away. */
static bool lets_go_later(const struct st_io_ops *ops)
{
    return is_method(ops, "aio") || io_fixture_options(1).poll_kernel;
}

/* A lock lives as long as anybody holds the open file: also the kernel, for an io. */
static void a_file_given_back_is_let_go(void **state)
{
    for (uint32_t closed = 0; closed < 2; closed++) {
        struct io_fixture f;
        char path[64];
        int other;

        assert_int_equal(io_fixture_open(&f, ops_of(state), 8, 2 * BLOCK, 4), STRATA_OK);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", f.fd);
        assert_true((other = open(path, O_RDWR)) >= 0);
        assert_int_equal(flock(f.fd, LOCK_EX), 0);
        assert_int_equal(flock(other, LOCK_EX | LOCK_NB), -1);
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        io_fixture_assert_data(&f);
        if (closed) {
            f.ops->close(f.io);
            f.io = NULL;
        } else {
            f.ops->remove_file(f.io, f.file);
        }
        assert_int_equal(close(f.fd), 0);
        assert_int_equal(flock(other, lets_go_later(f.ops) ? LOCK_EX : LOCK_EX | LOCK_NB), 0);
        f.fd = other;
        io_fixture_close(&f);
    }
}

/* Our bug, not the world's: the process ends. */
static void a_busy_file_is_not_given_back(void **state)
{
    struct io_fixture f;
    struct st_io_req *req;
    int status;
    pid_t pid;

    assert_int_equal(io_fixture_open(&f, ops_of(state), 1, BLOCK, 1), STRATA_OK);
    req = io_fixture_prepare(&f, 0, ST_IO_WRITE);
    assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_OK);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        f.ops->remove_file(f.io, f.file);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
    assert_int_equal(f.done_count, 1);
    io_fixture_close(&f);
}

/* Where a file ends inside a block, what it has of it is all that can be had. */
static void so_many_bytes_are_enough(void **state)
{
    enum { END = 3 * BLOCK + 100 };
    static const struct {
        uint32_t offset, blocks, least;
        strata_status st;
        uint32_t moved;
    } rows[] = {
        {0, 4, END, STRATA_OK, END},          {0, 4, END + 1, STRATA_E_TRUNC, END},    {3 * BLOCK, 1, 100, STRATA_OK, 100},
        {3 * BLOCK, 1, 99, STRATA_OK, 100},   {3 * BLOCK, 1, 101, STRATA_E_TRUNC, 0},  {3 * BLOCK, 1, 0, STRATA_E_TRUNC, 0},
        {4 * BLOCK, 1, 1, STRATA_E_TRUNC, 0}, {0, 2, BLOCK + 7, STRATA_OK, 2 * BLOCK},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct io_fixture f;
        struct st_io_req *req;

        assert_int_equal(io_fixture_open_sized(&f, ops_of(state), 5, BLOCK, 4, END), STRATA_OK);
        f.block_count = 3;
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        io_fixture_clear(&f);
        memset(f.buf, 0xee, 5 * BLOCK);
        req = io_fixture_prepare(&f, 0, ST_IO_READ);
        req->offset = rows[i].offset;
        req->bytes = rows[i].blocks * BLOCK;
        req->bytes_least = rows[i].least;
        assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_OK);
        while (f.done_count == 0)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        assert_int_equal(f.worst, rows[i].st);
        if (rows[i].st == STRATA_OK) {
            assert_int_equal(req->bytes_done, rows[i].moved);
            assert_int_equal(req->retry_count, 0); /* the first completion is the last */
            if (rows[i].offset == 0)
                assert_memory_equal(f.buf, f.want, rows[i].moved < 3 * BLOCK ? rows[i].moved : 3 * BLOCK);
        }
        io_fixture_close(&f);
    }
}

/* What moved too little for it is continued and repeated as ever. */
static void fewer_bytes_are_not_enough(void **state)
{
    static const int64_t moved[] = {0, 99, -EAGAIN};

    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        struct io_fixture f;
        struct st_io_req *req;

        assert_int_equal(io_fixture_open_sized(&f, ops_of(state), 1, BLOCK, 4, 100), STRATA_OK);
        req = io_fixture_prepare(&f, 0, ST_IO_READ);
        req->bytes_least = 100;
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = 2, .result = moved[i]});
        assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_OK);
        while (f.done_count == 0)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        assert_int_equal(st_fault_disarm(), moved[i] == 0 ? 1 : 2);
        assert_int_equal(f.worst, moved[i] == 0 ? STRATA_E_TRUNC : STRATA_OK);
        assert_true(moved[i] == 0 || req->bytes_done == 100);
        io_fixture_close(&f);
    }
}

static void depth_is_bounded(void **state)
{
    const struct st_io_ops *ops = ops_of(state);
    const struct st_io_opts none = io_fixture_options(0), most = io_fixture_options(4096), more = io_fixture_options(4097);
    struct st_io *io;

    assert_int_equal(ops->open(&io, &none), STRATA_E_INVAL);
    assert_int_equal(ops->open(&io, &more), STRATA_E_INVAL);
    assert_int_equal(ops->open(&io, &most), STRATA_OK);
    ops->close(io);
    ops->close(NULL);
}

static void registered_memory_works_as_any(void **state)
{
    const struct st_io_ops *ops = ops_of(state);
    struct io_fixture f;

    if (ops->register_region == NULL)
        skip();
    if (io_fixture_options(1).unregistered) {
        assert_int_equal(io_fixture_open(&f, ops, 1, BLOCK, 8), STRATA_OK);
        assert_int_equal(ops->register_region(f.io, f.buf, BLOCK), STRATA_E_NOSYS);
        io_fixture_close(&f);
        return;
    }
    for (uint32_t refused = 0; refused < 2; refused++) {
        assert_int_equal(io_fixture_open(&f, ops, 32, BLOCK, 8), STRATA_OK);
        if (refused) {
            st_fault_arm(&(struct st_fault_spec){.site = "nvme.register", .count = 1, .result = -ENOMEM});
            assert_int_equal(ops->register_region(f.io, f.buf, 16 * BLOCK), STRATA_E_NOMEM);
            assert_int_equal(st_fault_disarm(), 1);
            assert_non_null(strstr(strata_last_error(), "ulimit -l"));
        } else { /* half of the buffers lie outside */
            assert_int_equal(ops->register_region(f.io, f.buf, 16 * BLOCK), STRATA_OK);
            assert_int_equal(ops->register_region(f.io, f.buf, 16 * BLOCK), STRATA_E_BUSY);
        }
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        io_fixture_assert_data(&f);
        io_fixture_close(&f);
    }
}

/* Random reads and writes with many in flight, never two of one block, against a copy in memory. */
static void random_operations_match_a_model(void **state)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        const uint32_t blocks = 24;
        struct io_fixture f;
        bool reading[BLOCKS_MAX] = {false};

        assert_int_equal(io_fixture_open(&f, ops_of(state), blocks, 2 * BLOCK, 9), STRATA_OK);
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        io_fixture_clear(&f);
        memset(f.done_of, 1, sizeof(f.done_of)); /* not 0: free */
        for (uint64_t step = 0; step < 600; step++) {
            const uint64_t random = st_rng_u64(seed, 1, step);
            const uint32_t at = (uint32_t)(random % blocks);
            struct st_io_req *req = &f.reqs[at];
            strata_status st;

            if (f.done_of[at] == 0) {
                assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
                continue;
            }
            if (reading[at])
                assert_memory_equal(f.buf + (size_t)at * f.block_bytes, f.want + (size_t)at * f.block_bytes, f.block_bytes);
            reading[at] = (random >> 32 & 1) != 0;
            req = io_fixture_prepare(&f, at, reading[at] ? ST_IO_READ : ST_IO_WRITE);
            memset(req->buf, (int)(random >> 40 & 0xff), f.block_bytes);
            while ((st = f.ops->submit(f.io, &req, 1)) == STRATA_E_BUSY)
                assert_int_equal(f.ops->reap(f.io, 1 + (uint32_t)(random >> 48 & 3)), STRATA_OK);
            assert_int_equal(st, STRATA_OK);
            f.submit_count++;
            f.done_of[at] = 0;
            if (!reading[at])
                memset(f.want + (size_t)at * f.block_bytes, (int)(random >> 40 & 0xff), f.block_bytes);
        }
        while (f.done_count < f.submit_count)
            assert_int_equal(f.ops->reap(f.io, 100), STRATA_OK);
        assert_int_equal(f.worst, STRATA_OK);
        assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
        io_fixture_assert_data(&f);
        io_fixture_close(&f);
    }
}

/* Every function of a method; the worst status of a request that was not cancelled, or what submit() said. */
static strata_status walk(struct io_fixture *f)
{
    struct st_io_req *req = io_fixture_prepare(f, 0, ST_IO_WRITE);
    strata_status st;

    if (f->ops->register_region != NULL)
        (void)f->ops->register_region(f->io, f->buf, 8 * BLOCK); /* it goes on without */
    if ((st = f->ops->submit(f->io, &req, 1)) != STRATA_OK)
        return st;
    f->submit_count++;
    f->ops->cancel(f->io, req);
    f->ops->wake(f->io);
    while (f->done_count == 0)
        assert_int_equal(f->ops->reap_until(f->io, 1, st_clock_ns() + 1000000000), STRATA_OK);
    if (f->worst != STRATA_OK && f->worst != STRATA_E_CANCELLED)
        return f->worst;
    f->ops->remove_file(f->io, f->file);
    if ((st = f->ops->add_file(f->io, f->fd, (uint64_t)f->block_count * f->block_bytes, &f->file)) != STRATA_OK)
        return st;
    if ((st = io_fixture_write_all(f)) != STRATA_OK)
        return st;
    return io_fixture_read_all(f);
}

/* Fail the 1st, 2nd, 3rd... fault site passed, until a run passes none: every error path is taken once, and none of them may
 * lose a request or a byte. */
static void every_single_failure_is_clean(void **state)
{
    const uint32_t descriptors = io_open_descriptors();
    uint32_t fired = 1, failed = 0;

    for (uint32_t nth = 0; fired > 0; nth++) {
        struct io_fixture f;
        strata_status st;

        st_fault_arm(&(struct st_fault_spec){.after = nth, .count = 1, .result = -EIO});
        st = io_fixture_open(&f, ops_of(state), 16, 2 * BLOCK, 4);
        if (st == STRATA_OK)
            st = walk(&f);
        fired = st_fault_disarm();
        if (fired == 0)
            assert_int_equal(st, STRATA_OK);
        if (st == STRATA_OK) /* a benign fault was absorbed: then the data must be right */
            io_fixture_assert_data(&f);
        else
            failed++;
        assert_int_equal(f.done_count, f.submit_count);
        io_fixture_close(&f);
        assert_int_equal(io_open_descriptors(), descriptors);
    }
    assert_true(failed >= 32); /* each completion, at least */
}

#define contract_test(ops, test) cmocka_unit_test_prestate(test, (void *)(uintptr_t)(ops))

/* A method with a set of options; those that it or the machine refuses are gone without, which must work as well. */
static const struct variant {
    const char *name, *method;
    struct st_io_opts opts;
} variants[] = {
    {"uring", "uring", {0}},
    {"uring, unregistered", "uring", {.unregistered = true}},
    {"uring, start in reap", "uring", {.start_in_reap = true}},
    {"uring, device polled", "uring", {.poll_device = true}},
    {"uring, device polled, unregistered, start in reap",
     "uring",
     {.poll_device = true, .unregistered = true, .start_in_reap = true}},
    {"uring, kernel thread", "uring", {.poll_kernel = true}},
    {"uring, all", "uring", {.poll_kernel = true, .poll_device = true, .unregistered = true, .start_in_reap = true}},
    {"aio", "aio", {0}},
    {"aio, start in reap", "aio", {.start_in_reap = true}},
    {"threads", "threads", {0}},
    {"fake", "fake", {0}},
};

static int run_contract(const struct variant *v, const struct st_io_ops *ops)
{
    const struct CMUnitTest tests[] = {
        contract_test(ops, what_was_written_is_read),
        contract_test(ops, short_transfers_are_continued),
        contract_test(ops, transient_refusals_are_repeated),
        contract_test(ops, refusals_without_end_fail),
        contract_test(ops, errors_have_their_status_and_sentence),
        contract_test(ops, a_file_one_byte_short_is_truncated),
        contract_test(ops, a_full_queue_takes_none),
        contract_test(ops, a_refused_submit_starts_nothing),
        contract_test(ops, reap_waits_for_no_more_than_there_is),
        contract_test(ops, done_may_submit),
        contract_test(ops, wakes_lose_nothing),
        contract_test(ops, wake_ends_a_blocked_reap),
        contract_test(ops, a_stalled_request_is_left_and_cancelled),
        contract_test(ops, limits_lose_nothing),
        contract_test(ops, a_limit_ends_interrupted_waits),
        contract_test(ops, cancelled_requests_end_once),
        contract_test(ops, a_cancelled_request_is_not_repeated),
        contract_test(ops, storms_of_refusals_pass),
        contract_test(ops, files_are_sixteen_at_most),
        contract_test(ops, places_are_given_back),
        contract_test(ops, a_file_given_back_is_let_go),
        contract_test(ops, a_busy_file_is_not_given_back),
        contract_test(ops, so_many_bytes_are_enough),
        contract_test(ops, fewer_bytes_are_not_enough),
        contract_test(ops, depth_is_bounded),
        contract_test(ops, registered_memory_works_as_any),
        contract_test(ops, random_operations_match_a_model),
        contract_test(ops, every_single_failure_is_clean),
    };

    io_fixture_set_options(&v->opts);
    return cmocka_run_group_tests_name(v->name, tests, NULL, NULL);
}

static bool is_usable(const struct st_io_ops *ops)
{
    struct st_io *io;

    if (ops->open(&io, &(struct st_io_opts){.queue_depth = 1}) != STRATA_OK) {
        print_message("%s: not tested on this machine: %s\n", ops->name, strata_last_error());
        return false;
    }
    ops->close(io);
    return true;
}

int main(void)
{
    int failed = 0;

    st_log_configure(NULL, NULL, ST_LOG_WARN); /* what is gone without is said at each open */
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        const struct st_io_ops *ops = st_io_find(variants[i].method, NULL);

        if (is_usable(ops))
            failed += run_contract(&variants[i], ops);
    }
    return failed;
}
