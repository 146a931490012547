/* tests/nvme/io_fixture.c - see io_fixture.h. */
#include "io_fixture.h"
#include "tests/common/test.h"

#include "core/base/log.h"
#include "core/base/rng.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct io_fixture *active;      /* the fixture whose requests are in flight */
static struct st_io_opts options;      /* of the ios that are opened */
static const struct st_io_ops *method; /* of the variant that is tested */

static void on_done(struct st_io_req *req, strata_status st)
{
    struct io_fixture *f = active;
    const uint32_t index = (uint32_t)(req - f->reqs);

    if (f->done_count < BLOCKS_MAX)
        f->order[f->done_count] = index;
    f->done_count++;
    f->done_of[index]++;
    f->status[index] = st;
    assert_true(st != STRATA_OK || req->op == ST_IO_SYNC || req->result > 0); /* bytes of the last completion */
    if (st != STRATA_OK) {
        f->worst = st;
        snprintf(f->sentence, sizeof(f->sentence), "%s", strata_last_error());
    }
    if (f->resubmit > 0) {
        f->resubmit--;
        f->submit_count++;
        assert_int_equal(f->ops->submit(f->io, &req, 1), STRATA_OK);
    }
}

int io_temporary_file(uint64_t bytes)
{
    char path[] = "/tmp/strata-test-io-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    fcntl(fd, F_SETFL, O_RDWR | O_DIRECT); /* where it works; the contract is the same without */
    return fd;
}

void io_fixture_set_options(const struct st_io_opts *opts)
{
    options = *opts;
}

struct st_io_opts io_fixture_options(uint32_t depth)
{
    struct st_io_opts opts = options;

    opts.queue_depth = depth;
    opts.fake_seed = 3;
    return opts;
}

void io_fixture_clear(struct io_fixture *f)
{
    memset(f->done_of, 0, sizeof(f->done_of));
    f->submit_count = f->done_count = 0;
    f->worst = STRATA_OK;
    f->sentence[0] = '\0';
}

strata_status io_fixture_open_sized(struct io_fixture *f, const struct st_io_ops *ops, uint32_t blocks, uint32_t block_bytes,
                                    uint32_t depth, uint64_t file_bytes)
{
    const struct st_io_opts opts = io_fixture_options(depth);
    const size_t bytes = (size_t)blocks * block_bytes;
    strata_status st;

    memset(f, 0, sizeof(*f));
    active = f;
    f->ops = ops;
    f->block_count = blocks;
    f->block_bytes = block_bytes;
    f->fd = io_temporary_file(file_bytes);
    f->buf = aligned_alloc(BLOCK, bytes);
    f->want = aligned_alloc(BLOCK, bytes);
    assert_non_null(f->buf);
    assert_non_null(f->want);
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        const uint64_t random = st_rng_u64(7, blocks, i / sizeof(random));

        memcpy(f->want + i, &random, sizeof(random));
    }
    if ((st = ops->open(&f->io, &opts)) != STRATA_OK) {
        f->io = NULL;
        return st;
    }
    return ops->add_file(f->io, f->fd, file_bytes, &f->file);
}

strata_status io_fixture_open(struct io_fixture *f, const struct st_io_ops *ops, uint32_t blocks, uint32_t block_bytes,
                              uint32_t depth)
{
    return io_fixture_open_sized(f, ops, blocks, block_bytes, depth, (uint64_t)blocks * block_bytes);
}

void io_fixture_close(struct io_fixture *f)
{
    f->ops->close(f->io);
    close(f->fd);
    free(f->buf);
    free(f->want);
}

struct st_io_req *io_fixture_prepare(struct io_fixture *f, uint32_t index, enum st_io_op op)
{
    struct st_io_req *req = &f->reqs[index];

    *req = (struct st_io_req){.op = op, .file = f->file, .done = on_done};
    if (op == ST_IO_SYNC)
        return req;
    *req = (struct st_io_req){
        .op = op,
        .file = f->file,
        .bytes = f->block_bytes,
        .offset = (uint64_t)index * f->block_bytes,
        .buf = f->buf + (size_t)index * f->block_bytes,
        .done = on_done,
    };
    return req;
}

strata_status io_fixture_run_all(struct io_fixture *f, enum st_io_op op)
{
    strata_status st = STRATA_OK;

    io_fixture_clear(f);
    for (uint32_t i = 0; i < f->block_count && st == STRATA_OK; i++) {
        struct st_io_req *req = io_fixture_prepare(f, i, op);

        while ((st = f->ops->submit(f->io, &req, 1)) == STRATA_E_BUSY && f->done_count < f->submit_count)
            assert_int_equal(f->ops->reap(f->io, 1), STRATA_OK);
        if (st == STRATA_OK)
            f->submit_count++;
    }
    while (f->done_count < f->submit_count)
        assert_int_equal(f->ops->reap(f->io, f->submit_count), STRATA_OK);
    return st != STRATA_OK ? st : f->worst;
}

strata_status io_fixture_write_all(struct io_fixture *f)
{
    memcpy(f->buf, f->want, (size_t)f->block_count * f->block_bytes);
    return io_fixture_run_all(f, ST_IO_WRITE);
}

strata_status io_fixture_read_all(struct io_fixture *f)
{
    memset(f->buf, 0xee, (size_t)f->block_count * f->block_bytes);
    return io_fixture_run_all(f, ST_IO_READ);
}

void io_fixture_assert_data(const struct io_fixture *f)
{
    assert_memory_equal(f->buf, f->want, (size_t)f->block_count * f->block_bytes);
}

void io_fixture_assert_reads(struct io_fixture *f)
{
    assert_int_equal(io_fixture_read_all(f), STRATA_OK);
    io_fixture_assert_data(f);
}

void io_fixture_assert_works(struct io_fixture *f)
{
    assert_int_equal(io_fixture_write_all(f), STRATA_OK);
    io_fixture_assert_reads(f);
}

strata_status io_fixture_sync(struct io_fixture *f)
{
    struct st_io_req *req = io_fixture_prepare(f, 0, ST_IO_SYNC);
    const strata_status st = f->ops->submit(f->io, &req, 1);

    if (st != STRATA_OK)
        return st;
    io_fixture_reap(f, ++f->submit_count);
    return f->status[0];
}

void io_fixture_submit(struct io_fixture *f, struct st_io_req *req)
{
    assert_int_equal(f->ops->submit(f->io, &req, 1), STRATA_OK);
}

struct st_io_req *io_fixture_start(struct io_fixture *f, uint32_t index, enum st_io_op op)
{
    struct st_io_req *req = io_fixture_prepare(f, index, op);

    io_fixture_submit(f, req);
    return req;
}

void io_fixture_reap(struct io_fixture *f, uint32_t done_count)
{
    while (f->done_count < done_count)
        assert_int_equal(f->ops->reap(f->io, done_count), STRATA_OK); /* more than there are, perhaps */
}

/* --- variants --- */

/* A method with a set of options; those that it or the machine refuses are gone without, which must work as well. */
struct io_variant {
    const char *name, *method;
    struct st_io_opts opts;
};

static const struct io_variant variants[] = {
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

static int hand_method(void **state)
{
    *state = (void *)(uintptr_t)method;
    return 0;
}

int io_run_variants(const char *file)
{
    int failed = 0;

    st_log_configure(NULL, NULL, ST_LOG_WARN); /* what is gone without is said at each open */
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        method = st_io_find(variants[i].method, NULL);
        if (!is_usable(method))
            continue;
        io_fixture_set_options(&variants[i].opts);
        failed += test_run_file(file, variants[i].name, hand_method, NULL);
    }
    return failed;
}

const struct st_io_ops *io_method_of(void **state)
{
    return *state;
}
