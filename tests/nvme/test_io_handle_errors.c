/* tests/nvme/test_io_handle_errors.c - the public handle (strata/io.h): errors to their waiters, single failures, deadline,
 * cancel. */
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "io_handle_fixture.h"
#include "nvme/handle/io_handle_internal.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Any errno, at any site a request passes, goes to the waiter of that request and to nobody else. */
TEST_EACH_HANDLE(errors_reach_their_waiter)
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
    const struct handle_variant *v = *state;
    struct strata_io *io = handle_open(v);
    struct strata_io_file *file;
    unsigned char *buf = aligned_alloc(4096, 8 * 4096);

    if (io == NULL) {
        free(buf);
        skip();
    }
    memset(buf, 1, 8 * 4096);
    file = handle_open_new(io, "errors", v->flags, 1 << 20);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const uint64_t begin_ns = st_clock_ns();
        strata_io_request good, bad, late;
        struct strata_io_counters counters;
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
        assert_true(result.seconds > 0 && result.seconds <= (double)(st_clock_ns() - begin_ns) * 1e-9);
        strata_io_get_counters(io, &counters);
        assert_int_equal(counters.failed, i + 1);
        assert_int_equal(counters.outstanding, 0);
        assert_non_null(strstr(strata_last_error(), "errors: write of 4096 bytes at offset 8192"));
        assert_non_null(strstr(strata_last_error(), rows[i].text));
    }
    /* Of a request that nobody waits for: wait_all() says it, once. */
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.submit", .count = 1, .result = -EAGAIN});
    assert_int_equal(strata_io_write(file, 0, buf, 4096, NULL), STRATA_OK);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_E_IO); /* busy would say that it goes on */
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
    /* Of several the first, whose consequences the others may be.  The read waits for the write that it overlaps. */
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .result = -EIO});
    assert_int_equal(strata_io_write(file, 8192, buf, 4096, NULL), STRATA_OK);
    assert_int_equal(strata_io_read(file, 8192, buf, 4096, NULL), STRATA_OK);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_E_IO);
    assert_true(st_fault_disarm() >= 2);
    assert_non_null(strstr(strata_last_error(), "errors: write of 4096 bytes at offset 8192"));
    /* And of one whose status nobody took: closing. */
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = 1, .result = -EIO});
    assert_int_equal(strata_io_read(file, 4096, buf, 4096, &(strata_io_request){0}), STRATA_OK);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
    st_fault_disarm();
    assert_int_equal(strata_io_close(io), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), "read of 4096 bytes at offset 4096"));
    free(buf);
}

/* Of failures that nobody has taken closing names the one that began first, whichever records they have: the others may follow
 * from it. */
TEST(closing_names_the_first_that_failed)
{
    struct strata_io_opts opts = {sizeof(opts), .method = "fake"};
    unsigned char *buf = aligned_alloc(4096, 4096);
    strata_io_request requests[4];
    struct strata_io_file *file;
    struct strata_io *io;

    assert_int_equal(strata_io_open(&io, &opts), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &file, "first", STRATA_IO_READ, 4 * 4096), STRATA_OK);
    assert_int_equal(strata_io_read(file, 0, buf, 4096, &requests[0]), STRATA_OK);
    assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .result = -EIO});
    for (uint32_t i = 1; i < 4; i++) {
        assert_int_equal(strata_io_read(file, i * 4096, buf, 4096, &requests[i]), STRATA_OK);
        assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
        if (i == 1) /* the next one gets a record before this one's */
            assert_int_equal(strata_io_wait(io, requests[0], -1, NULL), STRATA_OK);
    }
    assert_int_equal(st_fault_disarm(), 3);
    assert_int_equal(strata_io_close(io), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), "first: read of 4096 bytes at offset 4096: "));
    free(buf);
}

/* The kernel refuses a call for good: what is in flight and what comes after ends, and the handle closes. */
/* One piece in flight: where the first fails, no other is issued. */
TEST(a_failure_stops_the_rest_of_its_request)
{
    enum { PIECES = 16 };
    struct strata_io_opts opts = {sizeof(opts), .method = "fake", .queue_depth = 1, .block_bytes = 4096};
    struct strata_io_file *file;
    struct st_fault_tally tally;
    strata_io_request request;
    struct strata_io *io;
    uint32_t passed = 0;
    char *buf = calloc(PIECES, 4096);

    assert_int_equal(strata_io_open(&io, &opts), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &file, "rest", STRATA_IO_READ | STRATA_IO_WRITE, PIECES * 4096), STRATA_OK);
    for (int64_t broken = 0; broken <= 1; broken++) {
        st_fault_arm(&(struct st_fault_spec){.site = broken ? "nvme.cqe" : "none", .count = 1, .result = -EIO});
        assert_int_equal(strata_io_write(file, 0, buf, PIECES * 4096, &request), STRATA_OK);
        assert_int_equal(strata_io_wait(io, request, -1, NULL), broken ? STRATA_E_IO : STRATA_OK);
        for (uint32_t i = 0; st_fault_tally_at(&tally, i); i++)
            if (strcmp(tally.site, "nvme.cqe") == 0)
                passed = tally.passed;
        assert_int_equal(passed, broken ? 1 : PIECES);
        st_fault_disarm();
    }
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(buf);
}

TEST_EACH_HANDLE(a_broken_method_ends_every_request)
{
    static const char *const sites[] = {"nvme.enter", "nvme.getevents"};
    const struct handle_variant *v = *state;
    unsigned char *buf = calloc(16, 4096);

    for (size_t i = 0; i < 2; i++) {
        struct strata_io *io = handle_open(v);
        struct strata_io_file *file;
        strata_io_request reqs[16];
        const bool breaks = strcmp(v->method, i == 0 ? "uring" : "aio") == 0;
        strata_status st;

        if (io == NULL) {
            free(buf);
            skip();
        }
        file = handle_open_new(io, "broken", v->flags, 1 << 20);
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .after = 2, .result = -EPERM});
        for (uint32_t r = 0; r < 16; r++) /* one after the other: some come when all is over */
            assert_int_equal(strata_io_write(file, 4096u * r, buf + 4096u * r, 4096, &reqs[r]), STRATA_OK);
        for (uint32_t r = 0; r < 16; r++) {
            st = strata_io_wait(io, reqs[r], -1, NULL);
            assert_true(st == STRATA_OK || st == STRATA_E_IO);
        }
        for (int late = 0; late < 2; late++) { /* the first may find it whole, the second does not */
            assert_int_equal(strata_io_write(file, 0, buf, 4096, &reqs[0]), STRATA_OK);
            st = strata_io_wait(io, reqs[0], -1, NULL);
            assert_true(st == STRATA_OK || st == STRATA_E_IO);
        }
        st_fault_disarm();
        assert_true(!breaks || st == STRATA_E_IO);
        (void)strata_io_close(io);
    }
    free(buf);
}

/* Under a mix of odd requests: right data or a status that says why, nothing lost. */
TEST_EACH_HANDLE(single_failures)
{
    const struct handle_variant *v = *state;
    struct fault_walk walk = {.result = -EIO};

    while (fault_walk_next(&walk)) {
        const struct strata_io_opts opts = handle_options(v);
        unsigned char in[9001], out[9001] = {0};
        struct strata_io_file *file = NULL;
        strata_io_request write, read;
        struct strata_io *io = NULL;
        strata_status st, closed;

        memset(in, (int)(walk.after % 200) + 1, sizeof(in));
        if ((st = strata_io_open(&io, &opts)) == STRATA_OK &&
            (st = strata_io_open_file(io, &file, scratch_path("walk"),
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
        fault_walk_end(&walk, st);
        assert_true(walk.fired || closed == STRATA_OK);
        assert_true(walk.after < 1000);
    }
    assert_true(walk.after > 5);
}

TEST(opening_says_what_is_wrong)
{
    static const char *const names[] = {"nothing/here", ".", "absent"};
    struct strata_io_opts opts = {.opts_size = 1};
    struct strata_io *io = NULL;
    struct strata_io_file *file = NULL;
    strata_io_request request;
    char byte = 0, name[PATH_MAX + 1] = "";

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
    io = handle_open_default();
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(strata_io_open_file(io, &file, scratch_path(names[i]), STRATA_IO_READ, 0), STRATA_E_INPUT);
        assert_non_null(strstr(strata_last_error(), names[i]));
    }
    assert_int_equal(mkfifo(scratch_path("fifo"), 0600), 0);
    assert_int_equal(strata_io_open_file(io, &file, scratch_path("fifo"), STRATA_IO_READ, 0), STRATA_E_INPUT);
    assert_int_equal(strata_io_open_file(io, &file, scratch_path("x"), STRATA_IO_CREATE, 0), STRATA_E_INVAL);
    assert_int_equal(strata_io_open_file(io, &file, scratch_path("x"), STRATA_IO_READ | STRATA_IO_CREATE, 0), STRATA_E_INVAL);
    assert_int_equal(strata_io_open_file(io, &file, scratch_path("x"), STRATA_IO_READ, 5), STRATA_E_INVAL);
    assert_int_equal(strata_io_open_file(io, &file, scratch_path("x"), STRATA_IO_WRITE | STRATA_IO_CREATE, UINT64_MAX),
                     STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "are more than a file can hold"));
    memset(name, 'a', sizeof(name) - 1);
    for (size_t i = 0; i < 3; i++) {
        const char *const paths[] = {NULL, "", name};

        assert_int_equal(strata_io_open_file(io, &file, paths[i], STRATA_IO_WRITE | STRATA_IO_CREATE, 0), STRATA_E_INVAL);
        assert_non_null(strstr(strata_last_error(), "a path of 1 to 4095 characters is needed"));
    }
    assert_int_equal(access(scratch_path("x"), F_OK), -1);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.fallocate", .result = -ENOSPC});
    assert_int_equal(strata_io_open_file(io, &file, scratch_path("full"), STRATA_IO_WRITE | STRATA_IO_CREATE, 5000),
                     STRATA_E_NOSPC);
    st_fault_disarm();
    assert_int_equal(access(scratch_path("full"), F_OK), -1);
    assert_null(file);

    assert_int_equal(strata_io_open_file(io, &file, scratch_path("full"), STRATA_IO_WRITE | STRATA_IO_CREATE, 5000), STRATA_OK);
    assert_int_equal(handle_size_on_disk("full"), 5000);
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

/* Whatever stops it: a file that was there keeps its bytes and its size, one that was not is not left. */
TEST(a_file_that_cannot_be_opened_stays_as_it_was)
{
    static const char *const sites[] = {"nvme.open", "nvme.stat", "nvme.flags", "nvme.fallocate", "nvme.alloc"};
    static const uint32_t ways[] = {0, STRATA_IO_CREATE, STRATA_IO_CREATE | STRATA_IO_BUFFERED};
    struct strata_io *io = handle_open_default();
    struct strata_io_file *file = NULL;
    unsigned char bytes[5000];

    memset(bytes, 7, sizeof(bytes));
    write_file(scratch_path("kept"), bytes, sizeof(bytes));
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++)
        for (size_t k = 0; k < sizeof(ways) / sizeof(ways[0]); k++) {
            const uint32_t flags = ways[k] | STRATA_IO_READ | STRATA_IO_WRITE;

            st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -ENOSPC});
            assert_int_not_equal(strata_io_open_file(io, &file, scratch_path("kept"), flags, 20000), STRATA_OK);
            assert_int_not_equal(strata_io_open_file(io, &file, scratch_path("absent"), flags, 20000), STRATA_OK);
            assert_true(st_fault_disarm() > 0);
            handle_assert_file("kept", bytes, sizeof(bytes));
            assert_int_equal(access(scratch_path("absent"), F_OK), -1);
        }
    assert_null(file);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

/* Each open file has its own size: a short write through one that was opened when the file was empty would cut it to its own.  By
 * another name it is the same file. */
TEST(a_file_that_is_written_is_opened_once)
{
    const uint32_t both = STRATA_IO_READ | STRATA_IO_WRITE;
    struct strata_io *io = handle_open_default();
    struct strata_io_file *first = NULL, *second = NULL;
    unsigned char bytes[20000];

    memset(bytes, 3, sizeof(bytes));
    write_file(scratch_path("once"), bytes, sizeof(bytes));
    assert_int_equal(symlink("once", scratch_path("alias")), 0);
    assert_int_equal(strata_io_open_file(io, &first, scratch_path("once"), both, 0), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &second, scratch_path("once"), STRATA_IO_READ, 0), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "once: is open in this handle already"));
    assert_int_equal(strata_io_open_file(io, &second, scratch_path("alias"), both | STRATA_IO_TRUNCATE, 0), STRATA_E_INVAL);
    assert_null(second);
    assert_int_equal(strata_io_close_file(first), STRATA_OK);
    handle_assert_file("once", bytes, sizeof(bytes));

    assert_int_equal(strata_io_open_file(io, &first, scratch_path("once"), STRATA_IO_READ, 0), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &second, scratch_path("alias"), STRATA_IO_READ, 0), STRATA_OK);
    assert_int_equal(strata_io_close_file(second), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &second, scratch_path("alias"), both | STRATA_IO_CREATE | STRATA_IO_TRUNCATE, 0),
                     STRATA_E_INVAL);
    assert_int_equal(strata_io_close_file(first), STRATA_OK);
    handle_assert_file("once", bytes, sizeof(bytes));
    assert_int_equal(strata_io_open_file(io, &second, scratch_path("alias"), both, 0), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

/* Another thread may hold the handle's lock at the moment of the fork; in the child nobody ever releases it. */
TEST(a_child_waits_for_no_lock)
{
    struct strata_io *io = handle_open_default();
    struct strata_io_file *file = handle_open_new(io, "locked", 0, 6);
    struct strata_io_counters counters;
    int status = -1;
    pid_t pid;

    assert_int_equal(strata_io_file_bytes(file), 6);
    fflush(NULL);
    pthread_mutex_lock(&io->lock);
    pid = fork();
    if (pid == 0) {
        alarm(10);
        counters.outstanding = 1;
        strata_io_get_counters(io, &counters);
        _exit(counters.outstanding == 0 && strata_io_file_bytes(file) == 0 && strata_io_sync_file(file) == STRATA_E_INVAL &&
                      strata_io_close_file(file) == STRATA_E_INVAL && strata_io_close(io) == STRATA_E_INVAL
                  ? 0
                  : 1);
    }
    pthread_mutex_unlock(&io->lock);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

TEST(reads_past_the_end_say_how_long_the_file_is)
{
    struct strata_io *io = handle_open_default();
    struct strata_io_file *file = handle_open_new(io, "short", STRATA_IO_TRUNCATE, 0);
    strata_io_request request;
    char buf[5000] = {0};

    assert_int_equal(strata_io_write(file, 0, buf, 4999, NULL), STRATA_OK);
    assert_int_equal(strata_io_read(file, 0, buf, 4999, &request), STRATA_OK); /* waits for the write */
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_read(file, 0, buf, 5000, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_E_TRUNC);
    assert_non_null(strstr(strata_last_error(), "short: read of 5000 bytes at offset 0: the file ends before that: it has 4999"));
    assert_int_equal(truncate(scratch_path("short"), 6000), 0); /* by others */
    assert_int_equal(strata_io_read(file, 0, buf, 5000, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

/* A size that cannot be seen is not 0: the read is not one past the end, and the write is not cut off. */
TEST(a_size_that_cannot_be_seen_is_an_error)
{
    struct strata_io *io = handle_open_default();
    struct strata_io_file *file = handle_open_new(io, "unseen", STRATA_IO_TRUNCATE, 0);
    strata_io_request request;
    char buf[5000] = {0};

    assert_int_equal(strata_io_write(file, 0, buf, 5000, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.look", .result = -EIO});
    assert_int_equal(strata_io_read(file, 0, buf, 6000, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), "unseen: the file's size cannot be seen: Input/output error"));
    assert_null(strstr(strata_last_error(), "unseen: /")); /* its path once */
    st_fault_disarm();
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

TEST(deadline_names_the_oldest)
{
    uint64_t begin_ns;
    struct strata_io_opts opts = {sizeof(opts), .method = "fake", .queue_depth = 4};
    struct strata_io *io;
    struct strata_io_file *file;
    struct strata_io_result result;
    strata_io_request first, second;
    char buf[8192];

    assert_int_equal(st_handle_open(&io, &opts, &(struct st_io_opts){.fake_bytes_per_second = 100}), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &file, "slow", STRATA_IO_READ | STRATA_IO_WRITE, 1 << 20), STRATA_OK);
    assert_int_equal(strata_io_read(file, 4096, buf, 4096, &first), STRATA_OK); /* 41 s each, were they not cancelled */
    assert_int_equal(strata_io_read(file, 8192, buf + 4096, 4096, &second), STRATA_OK);
    begin_ns = st_clock_ns();
    assert_int_equal(strata_io_wait(io, second, 0.001, &result), STRATA_E_BUSY);
    assert_true(st_clock_ns() - begin_ns >= 1000000); /* parts of a second count */
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

/* Requests take the records of those that were cancelled before, more often than there are records. */
TEST(what_was_cancelled_can_be_cancelled_anew)
{
    struct strata_io_opts opts = {sizeof(opts), .method = "fake", .queue_depth = 2};
    struct strata_io_file *file;
    struct strata_io *io;
    char buf[4096];

    assert_int_equal(st_handle_open(&io, &opts, &(struct st_io_opts){.fake_bytes_per_second = 40}), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &file, "slow", STRATA_IO_READ | STRATA_IO_WRITE, 1 << 20), STRATA_OK);
    for (int i = 0; i < 300; i++) {
        strata_io_request request;

        assert_int_equal(strata_io_read(file, 4096, buf, sizeof(buf), &request), STRATA_OK); /* 100 s */
        assert_int_equal(strata_io_cancel(io, request), STRATA_OK);
        assert_int_equal(strata_io_wait(io, request, 30, NULL), STRATA_E_CANCELLED);
    }
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

/* What was started before a sync has ended when it returns. */
TEST(a_sync_waits_for_what_was_started)
{
    enum { REQUESTS = 8 };
    struct strata_io_opts opts = {sizeof(opts), .method = "fake", .queue_depth = 2};
    char *buf = calloc(REQUESTS, 4096);
    strata_io_request requests[REQUESTS];
    struct strata_io_file *file;
    struct strata_io *io;

    assert_int_equal(st_handle_open(&io, &opts, &(struct st_io_opts){.fake_bytes_per_second = 2000000}), STRATA_OK);
    assert_int_equal(strata_io_open_file(io, &file, "slow", STRATA_IO_READ | STRATA_IO_WRITE, 1 << 20), STRATA_OK);
    for (uint32_t i = 0; i < REQUESTS; i++) /* 2 ms each */
        assert_int_equal(strata_io_write(file, i * 4096, buf + (size_t)i * 4096, 4096, &requests[i]), STRATA_OK);
    assert_int_equal(strata_io_sync_file(file), STRATA_OK);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_int_equal(strata_io_poll(io, requests[i], NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(buf);
}

TEST(cancelled_requests_end_as_such)
{
    enum { REQUESTS = 64, BYTES = 20000 };
    struct strata_io_opts opts = {sizeof(opts), .method = "fake", .queue_depth = 2, .block_bytes = 4096};
    struct strata_io_counters counters;
    strata_io_request requests[REQUESTS];
    struct strata_io_file *file;
    struct strata_io *io;
    uint32_t cancelled = 0;
    char *buf = malloc(REQUESTS * BYTES);

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
    assert_int_equal(counters.failed, 0);
    assert_int_equal(counters.outstanding, 0);
    assert_int_equal(strata_io_write(file, 1, buf, BYTES, &requests[0]), STRATA_OK); /* and the handle is as good as before */
    assert_int_equal(strata_io_wait(io, requests[0], -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(buf);
}

/* A handle's thread does not come along to a child, whose calls are refused and change nothing. */
/* A close that a signal interrupts has closed the file; one that fails says of which file its bytes may be lost, once. */
TEST(closing_a_file_says_whether_it_failed)
{
    static const struct {
        int64_t result;
        const char *said; /* NULL: it has not failed */
    } rows[] = {{0, NULL}, {-EINTR, NULL}, {-EIO, "closing: closing it: Input/output error"}, {-EDQUOT, "closing: closing it: "}};
    struct strata_io *io = handle_open_default();

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strata_io_file *file = handle_open_new(io, "closing", STRATA_IO_TRUNCATE, 0);
        strata_status st;

        st_fault_arm(&(struct st_fault_spec){.site = "nvme.close", .count = 1, .result = rows[i].result});
        st = strata_io_close_file(file);
        st_fault_disarm();
        assert_int_equal(st == STRATA_OK, rows[i].said == NULL);
        if (rows[i].said != NULL)
            assert_non_null(strstr(strata_last_error(), rows[i].said));
    }
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

TEST(a_child_opens_its_own)
{
    struct strata_io *io = handle_open_default(), *own = NULL;
    struct strata_io_file *file = NULL, *other = NULL;
    struct strata_io_opts opts = {.opts_size = sizeof(opts)};
    char bytes[] = "parent";
    strata_io_request request;
    int status = -1;
    pid_t pid;

    assert_int_equal(
        strata_io_open_file(io, &file, scratch_path("forked"), STRATA_IO_READ | STRATA_IO_WRITE | STRATA_IO_CREATE, 6),
        STRATA_OK);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char others[] = "child!";
        const bool refused =
            strata_io_write(file, 0, others, 6, &request) == STRATA_E_INVAL &&
            strstr(strata_last_error(), "was opened by process") != NULL &&
            strata_io_open_file(io, &other, scratch_path("other"), STRATA_IO_WRITE | STRATA_IO_CREATE, 1) == STRATA_E_INVAL &&
            strata_io_wait_all(io, -1) == STRATA_E_INVAL && strata_io_sync_file(file) == STRATA_E_INVAL &&
            access(scratch_path("other"), F_OK) != 0;

        _exit(refused && strata_io_open(&own, &opts) == STRATA_OK && strata_io_close(own) == STRATA_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(strata_io_write(file, 0, bytes, 6, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    scratch_holds("forked", "parent");
}

TEST_GROUP(scratch_create, scratch_remove);
