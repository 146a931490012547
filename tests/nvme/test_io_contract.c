/* tests/nvme/test_io_contract.c - the contract in nvme/io.h, run against every I/O method this machine has.
 * A method that fails here is wrong even if the engine happens to work with it. */
#include "core/fault.h"
#include "core/rng.h"
#include "io_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* A request that does not end by itself: a pipe that nobody writes to, or a long latency.  pread() takes no pipe, so the
 * threads have none. */
static void wake_ends_a_blocked_reap(void **state)
{
    const struct st_io_ops *ops = ops_of(state);
    const bool fake = strcmp(ops->name, "fake") == 0;
    struct waker w = {.ops = ops, .stop = true};
    struct io_fixture f;
    struct st_io_req *req;
    pthread_t thread;
    int ends[2];

    if (strcmp(ops->name, "threads") == 0) {
        print_message("threads: no file that a pread() blocks on; see wakes_lose_nothing\n");
        skip();
    }
    assert_int_equal(io_fixture_open(&f, ops, 1, BLOCK, 4), STRATA_OK);
    ops->close(f.io);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(ops->open(&f.io, &(struct st_io_opts){.queue_depth = 4, .fake_bytes_per_second = fake ? 1 << 12 : 0}),
                     STRATA_OK);
    assert_int_equal(ops->add_file(f.io, ends[0], BLOCK, &f.file), STRATA_OK);
    req = io_fixture_prepare(&f, 0, ST_IO_READ);
    assert_int_equal(ops->submit(f.io, &req, 1), STRATA_OK);
    w.io = f.io;
    assert_int_equal(pthread_create(&thread, NULL, wake_main, &w), 0);
    assert_int_equal(ops->reap(f.io, 1), STRATA_OK);
    assert_int_equal(f.done_count, 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (!fake)
        assert_int_equal(write(ends[1], f.want, BLOCK), BLOCK);
    while (f.done_count == 0)
        assert_int_equal(ops->reap(f.io, 1), STRATA_OK);
    close(ends[0]);
    close(ends[1]);
    io_fixture_close(&f);
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

static void depth_is_bounded(void **state)
{
    const struct st_io_ops *ops = ops_of(state);
    struct st_io *io;

    assert_int_equal(ops->open(&io, &(struct st_io_opts){.queue_depth = 0}), STRATA_E_INVAL);
    assert_int_equal(ops->open(&io, &(struct st_io_opts){.queue_depth = 4097}), STRATA_E_INVAL);
    assert_int_equal(ops->open(&io, &(struct st_io_opts){.queue_depth = 4096}), STRATA_OK);
    ops->close(io);
    ops->close(NULL);
}

static void registered_memory_works_as_any(void **state)
{
    const struct st_io_ops *ops = ops_of(state);
    struct io_fixture f;

    if (ops->register_region == NULL)
        skip();
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

/* Fail the 1st, 2nd, 3rd... fault site passed, until a run passes none: every error path is taken once, and none of them may
 * lose a request or a byte. */
static void every_single_failure_is_clean(void **state)
{
    uint32_t fired = 1, failed = 0;

    for (uint32_t nth = 0; fired > 0; nth++) {
        struct io_fixture f;
        strata_status st;

        st_fault_arm(&(struct st_fault_spec){.after = nth, .count = 1, .result = -EIO});
        st = io_fixture_open(&f, ops_of(state), 16, 2 * BLOCK, 4);
        if (st == STRATA_OK)
            st = io_fixture_write_all(&f);
        if (st == STRATA_OK)
            st = io_fixture_read_all(&f);
        fired = st_fault_disarm();
        if (fired == 0)
            assert_int_equal(st, STRATA_OK);
        if (st == STRATA_OK) /* a benign fault was absorbed: then the data must be right */
            io_fixture_assert_data(&f);
        else
            failed++;
        assert_int_equal(f.done_count, f.submit_count);
        io_fixture_close(&f);
    }
    assert_true(failed >= 32); /* each completion, at least */
}

#define contract_test(ops, test) cmocka_unit_test_prestate(test, (void *)(uintptr_t)(ops))

static int run_contract(const struct st_io_ops *ops)
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
        contract_test(ops, files_are_sixteen_at_most),
        contract_test(ops, depth_is_bounded),
        contract_test(ops, registered_memory_works_as_any),
        contract_test(ops, random_operations_match_a_model),
        contract_test(ops, every_single_failure_is_clean),
    };

    return cmocka_run_group_tests_name(ops->name, tests, NULL, NULL);
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

    for (size_t i = 0; st_io_methods[i] != NULL; i++)
        if (is_usable(st_io_methods[i]))
            failed += run_contract(st_io_methods[i]);
    return failed;
}
