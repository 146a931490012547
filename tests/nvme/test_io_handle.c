/* tests/nvme/test_io_handle.c - the public handle (strata/io.h): order of what overlaps, many files and requests,
 * closing, buffers, fork.  Also io_handle_random and io_handle_errors. */
#include "core/base/fault.h"
#include "io_handle_fixture.h"
#include "nvme/handle/io_handle_internal.h"
#include "tests/common/child.h"
#include "tests/common/heap_use.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Hundreds of writes to one odd range: the last one stays, and each read sees the write before it. */
TEST_EACH_HANDLE(overlapping_writes_keep_their_order)
{
    enum { ROUNDS = 300, BYTES = 6001 };
    struct strata_io *io = handle_open(*state);
    unsigned char *in = malloc(ROUNDS * BYTES), *out = malloc(ROUNDS * BYTES);
    strata_io_request reads[ROUNDS];
    struct strata_io_file *file;

    if (io == NULL) {
        free(in);
        free(out);
        skip();
    }
    file = handle_open_new(io, "order", ((const struct handle_variant *)*state)->flags, 20000);
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
TEST_EACH_HANDLE(more_files_than_a_method_takes)
{
    enum { FILES = 290, BYTES = 10001 };
    const struct handle_variant *v = *state;
    const uint32_t descriptors = scratch_entries("/proc/self/fd", NULL);
    struct strata_io *io = handle_open(v);
    struct strata_io_file *files[FILES];
    strata_io_request requests[FILES];
    unsigned char *out = malloc(BYTES), *in[FILES];
    char name[32];

    if (io == NULL || strcmp(v->method, "fake") == 0) {
        assert_int_equal(strata_io_close(io), STRATA_OK);
        free(out);
        skip();
    }
    for (uint32_t i = 0; i < FILES; i++) {
        snprintf(name, sizeof(name), "file%u", i);
        files[i] = handle_open_new(io, name, v->flags | STRATA_IO_TRUNCATE, 0);
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
    assert_int_equal(scratch_entries("/proc/self/fd", NULL), descriptors);
    free(out);
}

/* Nobody holds a file that is closed, while the handle goes on: not for another file's sake, and not for its own past. */
TEST_EACH_HANDLE(a_closed_file_is_let_go)
{
    const struct handle_variant *v = *state;
    struct strata_io *io = handle_open(v);
    const bool at_once = strcmp(v->method, "threads") == 0; /* a kernel's queue may drop it when it is next used */
    struct strata_io_file *other;
    unsigned char buf[6001] = {1};

    if (io == NULL || strcmp(v->method, "fake") == 0) {
        assert_int_equal(strata_io_close(io), STRATA_OK);
        skip();
    }
    other = handle_open_new(io, "other", v->flags, 1 << 20);
    for (uint32_t i = 0; i < 50; i++) {
        struct strata_io_file *file = handle_open_new(io, "let go", v->flags | STRATA_IO_TRUNCATE, 0);
        int fd = open(scratch_path("let go"), O_RDWR);

        assert_true(fd >= 0);
        assert_int_equal(flock(file->fd, LOCK_EX), 0); /* lives as long as any holds the open file */
        assert_int_equal(strata_io_write(other, i * 7000, buf, sizeof(buf), NULL), STRATA_OK);
        assert_int_equal(strata_io_write(file, 0, buf, sizeof(buf), NULL), STRATA_OK);
        assert_int_equal(strata_io_close_file(file), STRATA_OK);
        for (uint32_t tries = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; tries++) {
            assert_true(!at_once && tries < 1000);
            assert_int_equal(strata_io_write(other, i * 7000, buf, sizeof(buf), NULL), STRATA_OK);
            assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
        }
        assert_int_equal(close(fd), 0);
    }
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

static void open_and_close(void *io)
{
    assert_int_equal(strata_io_close_file(handle_open_new(io, "again", 0, 4096)), STRATA_OK);
}

TEST(a_closed_file_takes_no_memory)
{
    enum { FILES = 64 };
    struct strata_io *io = handle_open_default();
    const int64_t grown = heap_growth(open_and_close, io, FILES);

    if (grown >= (int64_t)FILES * 64)
        fail_msg("%u files that are closed took %lld bytes", FILES, (long long)grown);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

/* "At least this long": opened again with fewer bytes, or with more, a file keeps what it holds. */
TEST(a_file_that_is_there_keeps_its_bytes)
{
    static const uint64_t asked[] = {0, 1, 4096, 10000, 50001, 70000};
    unsigned char *data = malloc(70000), *back = calloc(1, 70000), odd = 7;
    struct strata_io *io = handle_open_default();
    struct strata_io_file *file = handle_open_new(io, "kept", 0, 0);
    strata_io_request request;

    memset(data, 3, 50001);
    memset(data + 50001, 0, 70000 - 50001);
    assert_int_equal(strata_io_write(file, 0, data, 50001, &request), STRATA_OK);
    assert_int_equal(strata_io_close_file(file), STRATA_OK);
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
        const uint64_t bytes = asked[i] > 50001 ? asked[i] : 50001;

        file = handle_open_new(io, "kept", 0, asked[i]);
        assert_int_equal(strata_io_file_bytes(file), bytes);
        assert_int_equal(strata_io_write(file, 5, &odd, 1, &request), STRATA_OK);
        assert_int_equal(strata_io_read(file, 0, back, bytes, &request), STRATA_OK);
        assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
        data[5] = odd;
        assert_memory_equal(back, data, bytes);
        assert_int_equal(strata_io_close_file(file), STRATA_OK);
        handle_assert_file("kept", data, bytes);
    }
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(data);
    free(back);
}

/* With files that have no name from the beginning, and where the file system lacks those. */
TEST(a_file_without_a_name_leaves_nothing)
{
    const uint32_t flags = STRATA_IO_READ | STRATA_IO_WRITE | STRATA_IO_UNNAMED;
    struct strata_io *io = handle_open_default();
    const uint32_t before = scratch_entries(scratch_dir, NULL);
    struct strata_io_file *files[2], *none = NULL;
    unsigned char zeros[5000], back[5000];

    memset(zeros, 0, sizeof(zeros));
    for (uint32_t i = 0; i < 2; i++) {
        const unsigned char mark = (unsigned char)(i + 1);

        if (i == 1)
            st_fault_arm(&(struct st_fault_spec){.site = "nvme.unnamed", .result = -EOPNOTSUPP});
        assert_int_equal(strata_io_open_file(io, &files[i], scratch_dir, flags, 1 << 20), STRATA_OK);
        assert_int_equal(st_fault_disarm(), i);
        assert_int_equal(strata_io_write(files[i], 5000, &mark, 1, NULL), STRATA_OK);
        assert_int_equal(strata_io_read(files[i], 0, back, 5000, NULL), STRATA_OK);
        assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
        assert_memory_equal(back, zeros, 5000);
        assert_int_equal(scratch_entries(scratch_dir, NULL), before);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(strata_io_read(files[i], 5000, back, 1, NULL), STRATA_OK);
        assert_int_equal(strata_io_wait_all(io, -1), STRATA_OK);
        assert_int_equal(back[0], i + 1);
    }
    assert_int_equal(strata_io_open_file(io, &none, scratch_dir, flags | STRATA_IO_CREATE, 0), STRATA_E_INVAL);
    assert_int_equal(strata_io_open_file(io, &none, scratch_dir, flags & ~(uint32_t)STRATA_IO_WRITE, 0), STRATA_E_INVAL);
    assert_int_equal(strata_io_open_file(io, &none, scratch_path("no/such"), flags, 0), STRATA_E_INPUT);
    assert_null(none);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

TEST(closing_finishes_what_was_started)
{
    enum { REQUESTS = 200, BYTES = 5003 };
    struct strata_io *io = handle_open_default();
    struct strata_io_file *file = handle_open_new(io, "closing", STRATA_IO_TRUNCATE, 0);
    unsigned char *buf = malloc(REQUESTS * BYTES);

    for (uint32_t i = 0; i < REQUESTS; i++) {
        memset(buf + (size_t)i * BYTES, (int)i + 1, BYTES);
        assert_int_equal(strata_io_write(file, (uint64_t)i * BYTES, buf + (size_t)i * BYTES, BYTES, NULL), STRATA_OK);
    }
    assert_int_equal(strata_io_close(io), STRATA_OK);
    handle_assert_file("closing", buf, REQUESTS * BYTES);
    free(buf);
}

/* Far more requests at once than the queue is deep. */
TEST(requests_are_without_number)
{
    enum { REQUESTS = 5000 };
    struct strata_io *io = handle_open_default();
    struct strata_io_file *file = handle_open_new(io, "many", 0, REQUESTS * 16);
    strata_io_request *requests = calloc(REQUESTS, sizeof(*requests));
    uint64_t in[2] = {1, 2}, (*out)[2] = calloc(REQUESTS, sizeof(*out));

    for (uint64_t i = 0; i < REQUESTS; i++)
        assert_int_equal(strata_io_read(file, i * 16, out[i], 16, &requests[i]), STRATA_OK);
    assert_int_equal(strata_io_write(file, 80, in, 16, NULL), STRATA_OK);
    for (uint64_t i = 0; i < REQUESTS; i++)
        assert_int_equal(strata_io_wait(io, requests[i], -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
    free(requests);
    free(out);
}

TEST(buffers_are_aligned_and_apart)
{
    struct strata_io_opts opts = {sizeof(opts), .buffer_bytes = 8u << 20};
    struct strata_io_counters counters;
    struct strata_io_file *file;
    strata_io_request request;
    struct strata_io *io;
    char *buffers[6];

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
    file = handle_open_new(io, "buffers", 0, 3u << 20);
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
    file = handle_open_new(io, "buffers", 0, 0);
    assert_int_equal(strata_io_read(file, 0, buffers[3], 3u << 20, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

/* Bytes of memory that this process has mapped. */
static uint64_t mapped_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long long pages = 0;

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &pages), 1);
    (void)fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The region, and buffers beside it, whether they are freed or closing does it. */
TEST(buffers_are_given_back)
{
    enum { ROUNDS = 32, BYTES = 4 << 20 };
    struct strata_io_opts opts = {sizeof(opts), .method = "threads", .buffer_bytes = BYTES};
    uint64_t before = 0;

    for (uint32_t i = 0; i < ROUNDS + 4; i++) {
        void *buffers[3];
        struct strata_io *io;

        before = i == 4 ? mapped_bytes() : before; /* what stays for good has come by then */
        assert_int_equal(strata_io_open(&io, &opts), STRATA_OK);
        for (uint32_t k = 0; k < 3; k++)
            assert_int_equal(strata_io_buffer_alloc(io, &buffers[k], BYTES), STRATA_OK);
        assert_int_equal(strata_io_buffer_free(io, buffers[i % 2]), STRATA_OK);
        assert_int_equal(strata_io_buffer_free(io, buffers[1 - i % 2]), STRATA_OK);
        assert_int_equal(strata_io_close(io), STRATA_OK);
    }
    assert_true(mapped_bytes() < before + ROUNDS / 2 * BYTES);
}

TEST(a_forked_child_is_told)
{
    struct strata_io *io = handle_open_default();
    struct strata_io_file *file = handle_open_new(io, "fork", 0, 4096);
    strata_io_request request;
    char byte = 0;
    pid_t pid = child_fork();

    if (pid == 0)
        _exit(strata_io_read(file, 0, &byte, 1, &request) == STRATA_E_INVAL && strstr(strata_last_error(), "process") != NULL &&
                      strata_io_close_file(file) == STRATA_E_INVAL && strata_io_close(io) == STRATA_E_INVAL
                  ? 0
                  : 1);
    assert_int_equal(child_wait(pid), 0);
    assert_int_equal(strata_io_read(file, 0, &byte, 1, &request), STRATA_OK);
    assert_int_equal(strata_io_wait(io, request, -1, NULL), STRATA_OK);
    assert_int_equal(strata_io_close(io), STRATA_OK);
}

TEST_GROUP(scratch_create, scratch_remove);
