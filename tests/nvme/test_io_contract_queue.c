/* tests/nvme/test_io_contract_queue.c - the contract in nvme/method/io.h: what is taken and refused, waits and what ends them,
 * cancels.
 */
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "io_fixture.h"
#include "tests/common/test.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

TEST(a_full_queue_takes_none)
{
    struct st_io_req *reqs[5];
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 5, BLOCK, 4), STRATA_OK);
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

TEST(a_refused_submit_starts_nothing)
{
    struct io_fixture f;
    struct st_io_req *req;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 1, BLOCK, 4), STRATA_OK);
    req = io_fixture_prepare(&f, 0, ST_IO_WRITE);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.submit", .count = 1, .result = -EIO});
    assert_int_equal(f.ops->submit(f.io, &req, 1), STRATA_E_IO);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
    assert_int_equal(f.done_count, 0);
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    io_fixture_close(&f);
}

TEST(reap_waits_for_no_more_than_there_is)
{
    struct st_io_req *reqs[3];
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 3, BLOCK, 8), STRATA_OK);
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

TEST(done_may_submit)
{
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 4, BLOCK, 4), STRATA_OK);
    f.resubmit = 500;
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    assert_int_equal(f.done_count, 504);
    io_fixture_assert_reads(&f);
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

TEST(wakes_lose_nothing)
{
    struct io_fixture f;
    struct waker w;
    pthread_t thread;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 32, 4 * BLOCK, 5), STRATA_OK);
    w = (struct waker){.ops = f.ops, .io = f.io};
    assert_int_equal(pthread_create(&thread, NULL, wake_main, &w), 0);
    for (uint32_t i = 0; i < 20; i++) {
        io_fixture_assert_works(&f);
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

/* Each of several, one after the other. */
TEST(wake_ends_a_blocked_reap)
{
    const struct st_io_ops *ops = io_method_of(state);
    struct waker w = {.ops = ops, .stop = true};
    struct st_io_req *req;
    struct io_fixture f;
    pthread_t thread;
    int ends[2];

    if (!open_stalled(&f, ops, ends, 1))
        skip();
    req = io_fixture_start(&f, 0, ST_IO_READ);
    w.io = f.io;
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&thread, NULL, wake_main, &w), 0);
        assert_int_equal(ops->reap(f.io, 1), STRATA_OK);
        assert_int_equal(f.done_count, 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    if (is_method(ops, "fake"))
        ops->cancel(f.io, req);
    else
        assert_int_equal(write(ends[1], f.want, BLOCK), BLOCK);
    io_fixture_reap(&f, 1);
    close(ends[0]);
    close(ends[1]);
    io_fixture_close(&f);
}

/* A request that does not end is left by a limit, and ends by a cancel. */
TEST(a_stalled_request_is_left_and_cancelled)
{
    const struct st_io_ops *ops = io_method_of(state);
    struct io_fixture f;
    struct st_io_req *req;
    int ends[2];

    if (!open_stalled(&f, ops, ends, 1))
        skip();
    req = io_fixture_start(&f, 0, ST_IO_READ);
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
    io_fixture_reap(&f, 1);
    assert_int_equal(f.worst, STRATA_E_CANCELLED);
    assert_non_null(strstr(f.sentence, "read of 4096 bytes at offset 0"));
    close(ends[0]);
    close(ends[1]);
    io_fixture_close(&f);
}

/* A limit that has passed takes what is there; one that has not is no other than reap(). */
TEST(limits_lose_nothing)
{
    struct io_fixture f;

    for (uint32_t late = 0; late < 2; late++) {
        assert_int_equal(io_fixture_open(&f, io_method_of(state), 32, BLOCK, 32), STRATA_OK);
        memcpy(f.buf, f.want, (size_t)f.block_count * f.block_bytes);
        for (uint32_t i = 0; i < 32; i++)
            io_fixture_start(&f, i, ST_IO_WRITE);
        while (f.done_count < 32)
            assert_int_equal(f.ops->reap_until(f.io, 32, late ? st_clock_ns() + 3600000000000u : 1), STRATA_OK);
        io_fixture_assert_reads(&f);
        assert_int_equal(f.ops->reap_until(f.io, 1, 0), STRATA_OK); /* nothing in flight */
        io_fixture_close(&f);
    }
}

/* Calls that are interrupted again and again end by the limit, too. */
TEST(a_limit_ends_interrupted_waits)
{
    static const char *const sites[] = {"nvme.enter", "nvme.getevents"};
    const uint64_t deadline = st_clock_ns() + 2000000;
    struct io_fixture f;

    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(io_fixture_open(&f, io_method_of(state), 1, BLOCK, 1), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -EINTR});
        io_fixture_start(&f, 0, ST_IO_WRITE);
        assert_int_equal(f.ops->reap_until(f.io, 1, deadline), STRATA_OK);
        st_fault_disarm();
        io_fixture_reap(&f, 1);
        assert_int_equal(f.worst, STRATA_OK);
        io_fixture_close(&f);
    }
}

/* Without a limit on the wait they end, too, as where the kernel refuses them for good. */
TEST(calls_that_are_interrupted_for_ever_end)
{
    static const char *const sites[] = {"nvme.enter", "nvme.getevents"};
    const bool is_ring = strcmp(io_method_of(state)->name, "uring") == 0;
    struct io_fixture f;

    for (size_t i = is_ring ? 0 : 1; i < 2; i++) { /* io_submit's are refusals like others: two seconds */
        assert_int_equal(io_fixture_open(&f, io_method_of(state), 1, BLOCK, 1), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -EINTR});
        io_fixture_start(&f, 0, ST_IO_WRITE);
        while (f.done_count < 1)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        if (st_fault_disarm() > 0)
            assert_true(f.status[0] == STRATA_OK || f.status[0] == STRATA_E_IO);
        io_fixture_close(&f);
    }
}

/* The kernel refuses a call for good, with requests in its hands, in the queue, or both: each ends once, with an error or done,
 * and nothing more is taken. */
TEST(a_broken_method_ends_its_requests)
{
    static const char *const sites[] = {"nvme.enter", "nvme.getevents"};
    const struct st_io_ops *ops = io_method_of(state);

    for (uint32_t i = 0; i < 6; i++) {
        struct io_fixture f;
        uint32_t fired;

        assert_int_equal(io_fixture_open(&f, ops, 16, 4 * BLOCK, 16), STRATA_OK);
        for (uint32_t b = 0; b < 8; b++)
            io_fixture_start(&f, b, ST_IO_WRITE);
        st_fault_arm(&(struct st_fault_spec){.site = sites[i % 2], .after = i / 2, .result = -EPERM});
        for (uint32_t b = 8; b < 16; b++)
            io_fixture_start(&f, b, ST_IO_WRITE);
        while (f.done_count < 16)
            assert_int_equal(ops->reap(f.io, 16), STRATA_OK);
        fired = st_fault_disarm();
        for (uint32_t b = 0; b < 16; b++) {
            assert_int_equal(f.done_of[b], 1);
            assert_true(f.status[b] == STRATA_OK || f.status[b] == STRATA_E_IO);
        }
        if (f.worst != STRATA_OK) {
            struct st_io_req *req = io_fixture_prepare(&f, 0, ST_IO_WRITE);

            assert_true(fired > 0);
            assert_non_null(strstr(f.sentence, "Operation not permitted"));
            if (strcmp(ops->name, "aio") != 0 || i % 2 == 1) /* aio's io_submit fails what it is asked for alone */
                assert_int_equal(ops->submit(f.io, &req, 1), STRATA_E_IO);
            assert_int_equal(ops->reap(f.io, 1), STRATA_OK);
        }
        io_fixture_close(&f);
    }
}

/* A kernel that lacks memory or room for a while, longer than a refusal that stays would be asked again. */
TEST(a_lack_that_passes_is_waited_out)
{
    static const char *const sites[] = {"nvme.enter", "nvme.getevents"};
    static const int64_t lacks[] = {-EAGAIN, -EBUSY, -ENOMEM};
    const bool is_ring = strcmp(io_method_of(state)->name, "uring") == 0;

    for (size_t i = 0; i < sizeof(lacks) / sizeof(lacks[0]); i++) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 4, BLOCK, 4), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = sites[is_ring ? 0 : 1], .count = 25, .result = lacks[i]});
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        st_fault_disarm();
        io_fixture_assert_reads(&f);
        io_fixture_close(&f);
    }
}

/* Whatever a cancel comes to: each request ends once, done or cancelled, and a done one has its bytes.  In turn all are cancelled
 * when they are in flight, and some as the newest, behind which others are started. */
TEST(cancelled_requests_end_once)
{
    struct io_fixture f;

    for (uint32_t round = 0; round < 20; round++) {
        assert_int_equal(io_fixture_open(&f, io_method_of(state), 32, 4 * BLOCK, 32), STRATA_OK);
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        io_fixture_clear(&f);
        memset(f.buf, 0xee, (size_t)f.block_count * f.block_bytes);
        for (uint32_t i = 0; i < 32; i++) {
            struct st_io_req *req = io_fixture_start(&f, i, ST_IO_READ);

            if (round % 2 == 1 && i % 3 == 2)
                f.ops->cancel(f.io, req);
        }
        for (uint32_t i = 0; i < 32 && round % 2 == 0; i++) /* each is in flight: nothing was reaped */
            f.ops->cancel(f.io, &f.reqs[(i * 7 + round) % 32]);
        io_fixture_reap(&f, 32);
        for (uint32_t i = 0; i < 32; i++) {
            assert_int_equal(f.done_of[i], 1);
            if (f.status[i] == STRATA_OK)
                assert_memory_equal(f.buf + (size_t)i * f.block_bytes, f.want + (size_t)i * f.block_bytes, f.block_bytes);
            else
                assert_int_equal(f.status[i], STRATA_E_CANCELLED);
        }
        io_fixture_assert_reads(&f);
        io_fixture_close(&f);
    }
}

/* What would be repeated or continued is not, after a cancel. */
TEST(a_cancelled_request_is_not_repeated)
{
    static const int64_t results[] = {-EAGAIN, -EINTR, BLOCK, 100, 0};

    for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++) {
        struct io_fixture f;
        struct st_io_req *req;

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 1, 2 * BLOCK, 1), STRATA_OK);
        req = io_fixture_start(&f, 0, ST_IO_WRITE);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .result = results[i]});
        f.ops->cancel(f.io, req);
        io_fixture_reap(&f, 1);
        assert_int_equal(st_fault_disarm(), 1);
        assert_int_equal(f.worst, STRATA_E_CANCELLED);
        io_fixture_close(&f);
    }
}

TEST_MAIN(argc, argv)
{
    return io_run_variants(__FILE__);
}
