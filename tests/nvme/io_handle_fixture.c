/* tests/nvme/io_handle_fixture.c - see io_handle_fixture.h. */
#include "io_handle_fixture.h"
#include "core/base/checksum.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct handle_variant handle_variants[HANDLE_VARIANTS] = {
    {"uring", 0, 32, 16384, 0, 0},
    {"uring", 0, 1, 4096, 0, 0},
    {"uring", STRATA_IO_BUFFERED, 8, 16384, 0, 0},
    {"uring", 0, 8, 0, 4096, 0},
    {"aio", 0, 8, 16384, 0, 0},
    {"threads", 0, 8, 16384, 0, 2},
    {"threads", STRATA_IO_BUFFERED, 8, 16384, 0, 0},
    {"fake", 0, 8, 16384, 0, 0},
};

struct strata_io_opts handle_options(const struct handle_variant *v)
{
    return (struct strata_io_opts){.opts_size = sizeof(struct strata_io_opts),
                                   .method = v->method,
                                   .queue_depth = v->depth,
                                   .block_bytes = v->block_bytes,
                                   .buffer_bytes = v->buffer_bytes,
                                   .threads = v->threads};
}

struct strata_io *handle_open(const struct handle_variant *v)
{
    const struct strata_io_opts opts = handle_options(v);
    struct strata_io *io = NULL;
    const strata_status st = strata_io_open(&io, &opts);

    if (st == STRATA_E_NOSYS) {
        print_message("%s: not tested on this machine: %s\n", v->method, strata_last_error());
        return NULL;
    }
    assert_int_equal(st, STRATA_OK);
    return io;
}

struct strata_io *handle_open_default(void)
{
    struct strata_io *io;

    assert_int_equal(strata_io_open(&io, NULL), STRATA_OK);
    return io;
}

struct strata_io_file *handle_open_new(struct strata_io *io, const char *name, uint32_t flags, uint64_t bytes)
{
    struct strata_io_file *file;
    const strata_status st =
        strata_io_open_file(io, &file, scratch_path(name), flags | STRATA_IO_READ | STRATA_IO_WRITE | STRATA_IO_CREATE, bytes);

    if (st != STRATA_OK)
        fail_msg("%s", strata_last_error());
    return file;
}

uint64_t handle_size_on_disk(const char *name)
{
    struct stat info;

    assert_int_equal(stat(scratch_path(name), &info), 0);
    return (uint64_t)info.st_size;
}

void handle_assert_file(const char *name, const unsigned char *want, uint64_t bytes)
{
    unsigned char *have = malloc(bytes + 1);
    int fd = open(scratch_path(name), O_RDONLY);

    assert_non_null(have);
    assert_true(fd >= 0);
    assert_int_equal(read(fd, have, bytes + 1), bytes);
    assert_int_equal(st_checksum64(have, bytes), st_checksum64(want, bytes));
    close(fd);
    free(have);
}
