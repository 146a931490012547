/* tests/nvme/test_io_contract_files.c - the contract in nvme/method/io.h: files of an io come and go. */
#include "io_fixture.h"
#include "tests/common/child.h"
#include "tests/common/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define LAST (ST_IO_FILES_DEFAULT - 1)

TEST(files_are_256_at_most)
{
    const int last = io_temporary_file(0);
    struct io_fixture f;
    uint32_t index = 0;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 2, BLOCK, 4), STRATA_OK);
    for (uint32_t i = 1; i <= LAST; i++) {
        assert_int_equal(f.ops->add_file(f.io, i == LAST ? last : f.fd, 2 * BLOCK, &index), STRATA_OK);
        assert_int_equal(index, i);
    }
    assert_int_equal(f.ops->add_file(f.io, f.fd, 2 * BLOCK, &index), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "256 files"));
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    f.file = LAST;
    memset(f.buf, 0x55, 2 * BLOCK);
    assert_int_equal(io_fixture_run_all(&f, ST_IO_WRITE), STRATA_OK);
    f.file = 0;
    io_fixture_assert_reads(&f);
    f.file = LAST;
    assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
    assert_int_equal(f.buf[0], 0x55);
    assert_int_equal(f.buf[2 * BLOCK - 1], 0x55);
    io_fixture_close(&f);
    close(last);
}

/* Those behind the first 256 are in no table of the kernel's. */
TEST(more_files_are_taken_where_asked)
{
    struct st_io_opts opts = io_fixture_options(4);
    const int last = io_temporary_file(0);
    struct io_fixture f;
    uint32_t index = 0;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 2, BLOCK, 4), STRATA_OK);
    f.ops->close(f.io);
    opts.files = ST_IO_FILES_DEFAULT + 2;
    assert_int_equal(f.ops->open(&f.io, &opts), STRATA_OK);
    for (uint32_t i = 0; i < opts.files; i++) {
        assert_int_equal(f.ops->add_file(f.io, i == LAST + 2 ? last : f.fd, 2 * BLOCK, &index), STRATA_OK);
        assert_int_equal(index, i);
    }
    assert_int_equal(f.ops->add_file(f.io, f.fd, 2 * BLOCK, &index), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "258 files"));
    f.ops->remove_file(f.io, LAST + 1);
    assert_int_equal(f.ops->add_file(f.io, f.fd, 2 * BLOCK, &index), STRATA_OK);
    assert_int_equal(index, LAST + 1);
    f.file = 0;
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    f.file = LAST + 2;
    memset(f.buf, 0x55, 2 * BLOCK);
    assert_int_equal(io_fixture_run_all(&f, ST_IO_WRITE), STRATA_OK);
    assert_int_equal(io_fixture_sync(&f), STRATA_OK);
    f.file = 0;
    io_fixture_assert_reads(&f);
    f.file = LAST + 2;
    assert_int_equal(io_fixture_read_all(&f), STRATA_OK);
    assert_int_equal(f.buf[0], 0x55);
    assert_int_equal(f.buf[2 * BLOCK - 1], 0x55);
    io_fixture_close(&f);
    close(last);
}

/* One file stays in use while others come and go, more of them than there are places. */
TEST(places_are_given_back)
{
    unsigned char *buf = aligned_alloc(BLOCK, BLOCK);
    struct io_fixture f;

    assert_non_null(buf);
    assert_int_equal(io_fixture_open(&f, io_method_of(state), 17, BLOCK, 32), STRATA_OK);
    memcpy(f.buf, f.want, 17 * BLOCK);
    for (uint32_t round = 0; round < ST_IO_FILES_DEFAULT + 4; round++) {
        const int fd = io_temporary_file(BLOCK);
        struct st_io_req *last = io_fixture_prepare(&f, 16, ST_IO_WRITE);
        uint32_t index, done;

        for (uint32_t i = 0; i < 16; i++) { /* in flight while places change */
            io_fixture_start(&f, i, ST_IO_WRITE);
        }
        assert_int_equal(f.ops->add_file(f.io, fd, BLOCK, &index), STRATA_OK);
        assert_int_not_equal(index, f.file);
        last->file = index;
        last->offset = 0;
        io_fixture_submit(&f, last);
        for (done = f.done_of[16]; f.done_of[16] == done;)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        last->op = ST_IO_READ;
        last->buf = memset(buf, 0, BLOCK);
        io_fixture_submit(&f, last);
        for (done = f.done_of[16]; f.done_of[16] == done;)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        assert_memory_equal(buf, f.want + 16 * BLOCK, BLOCK);
        f.ops->remove_file(f.io, index);
        close(fd);
        io_fixture_reap(&f, (round + 1) * 18);
    }
    assert_int_equal(f.worst, STRATA_OK);
    f.block_count = 16;
    io_fixture_assert_reads(&f);
    io_fixture_close(&f);
    free(buf);
}

/* With these a thread of the kernel may still be about to put its last request away: io_uring hands each sync to one. */
static bool lets_go_later(const struct st_io_ops *ops)
{
    return strcmp(ops->name, "aio") == 0 || strcmp(ops->name, "uring") == 0;
}

/* A lock lives as long as anybody holds the open file: also the kernel, for an io. */
TEST(a_file_given_back_is_let_go)
{
    for (uint32_t closed = 0; closed < 2; closed++) {
        struct io_fixture f;
        char path[64];
        int other;

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 8, 2 * BLOCK, 4), STRATA_OK);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", f.fd);
        assert_true((other = open(path, O_RDWR)) >= 0);
        assert_int_equal(flock(f.fd, LOCK_EX), 0);
        assert_int_equal(flock(other, LOCK_EX | LOCK_NB), -1);
        io_fixture_assert_works(&f);
        assert_int_equal(io_fixture_sync(&f), STRATA_OK); /* which a thread of the kernel may do */
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
TEST(a_busy_file_is_not_given_back)
{
    struct io_fixture f;
    pid_t pid;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 1, BLOCK, 1), STRATA_OK);
    io_fixture_start(&f, 0, ST_IO_WRITE);
    pid = child_fork();
    if (pid == 0) {
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        f.ops->remove_file(f.io, f.file);
        _exit(0);
    }
    assert_int_equal(child_wait(pid), 128 + SIGABRT);
    assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
    assert_int_equal(f.done_count, 1);
    io_fixture_close(&f);
}

TEST_MAIN(argc, argv)
{
    return io_run_variants(__FILE__);
}
