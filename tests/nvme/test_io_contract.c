/* tests/nvme/test_io_contract.c - the contract in nvme/method/io.h, run against every I/O method this machine has: bytes, errors,
 * files' ends. A method that fails here is wrong even if the engine happens to work with it.  Also io_contract_queue and
 * io_contract_files. */
#include "core/base/fault.h"
#include "core/base/rng.h"
#include "core/system/clock.h"
#include "io_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <string.h>

#define RETRIES     16u /* refusals of one request that are absorbed */
#define WALK_BLOCKS 6u

TEST(what_was_written_is_read)
{
    static const uint32_t depths[] = {1, 2, 7, 64};

    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]); i++) {
        for (uint32_t block = BLOCK; block <= 16 * BLOCK; block *= 16) {
            struct io_fixture f;

            assert_int_equal(io_fixture_open(&f, io_method_of(state), 33, block, depths[i]), STRATA_OK);
            io_fixture_assert_works(&f);
            for (uint32_t k = 0; k < f.block_count; k++)
                assert_int_equal(f.done_of[k], 1);
            io_fixture_close(&f);
        }
    }
}

/* A transfer that moves too little goes on from its last whole block; 5000 bytes leave a part of a block to do again. */
TEST(short_transfers_are_continued)
{
    static const int64_t moved[] = {4096, 5000, 3 * 4096, 7 * 4096 + 1};

    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 8, 8 * BLOCK, 4), STRATA_OK);
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

TEST(transient_refusals_are_repeated)
{
    static const int64_t refusals[] = {-EAGAIN, -EINTR};

    for (size_t i = 0; i < 2; i++) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 1, BLOCK, 4), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = RETRIES, .result = refusals[i]});
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        assert_int_equal(st_fault_disarm(), RETRIES);
        io_fixture_assert_reads(&f);
        io_fixture_close(&f);
    }
}

TEST(refusals_without_end_fail)
{
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 1, BLOCK, 4), STRATA_OK);
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .result = -EAGAIN});
    assert_int_equal(io_fixture_read_all(&f), STRATA_E_IO);
    assert_int_equal(st_fault_disarm(), RETRIES + 1);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .result = 100});
    assert_int_equal(io_fixture_write_all(&f), STRATA_E_IO);
    st_fault_disarm();
    io_fixture_assert_reads(&f); /* and the io is as good as before */
    io_fixture_close(&f);
}

/* The kernel refuses whole batches, and goes on to. */
TEST(storms_of_refusals_pass)
{
    static const char *const sites[] = {"nvme.enter", "nvme.getevents", "nvme.cqe"};
    static const int64_t refusals[] = {-EAGAIN, -EINTR};

    for (size_t i = 0; i < 6; i++) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 16, BLOCK, 8), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = sites[i / 2], .after = 1, .count = RETRIES, .result = refusals[i % 2]});
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        st_fault_disarm();
        io_fixture_assert_reads(&f);
        io_fixture_close(&f);
    }
}

TEST(errors_have_their_status_and_sentence)
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

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 4, BLOCK, 1), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 2, .count = 1, .result = rows[i].result});
        assert_int_equal(io_fixture_write_all(&f), rows[i].st);
        st_fault_disarm();
        assert_non_null(strstr(f.sentence, "write of 4096 bytes at offset 8192"));
        assert_non_null(strstr(f.sentence, rows[i].text));
        assert_int_equal(f.done_count, 4);
        io_fixture_close(&f);
    }
}

TEST(a_file_one_byte_short_is_truncated)
{
    struct io_fixture f;

    assert_int_equal(io_fixture_open_sized(&f, io_method_of(state), 8, 2 * BLOCK, 4, 16 * BLOCK - 1), STRATA_OK);
    assert_int_equal(io_fixture_read_all(&f), STRATA_E_TRUNC);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(f.status[i], i < 7 ? STRATA_OK : STRATA_E_TRUNC);
    assert_non_null(strstr(f.sentence, "the file ends before"));
    io_fixture_close(&f);

    assert_int_equal(io_fixture_open_sized(&f, io_method_of(state), 4, BLOCK, 4, 0), STRATA_OK);
    assert_int_equal(io_fixture_read_all(&f), STRATA_E_TRUNC);
    io_fixture_close(&f);
}

/* Where a file ends inside a block, what it has of it is all that can be had. */
TEST(so_many_bytes_are_enough)
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

        assert_int_equal(io_fixture_open_sized(&f, io_method_of(state), 5, BLOCK, 4, END), STRATA_OK);
        f.block_count = 3;
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        io_fixture_clear(&f);
        memset(f.buf, 0xee, 5 * BLOCK);
        req = io_fixture_prepare(&f, 0, ST_IO_READ);
        req->offset = rows[i].offset;
        req->bytes = rows[i].blocks * BLOCK;
        req->bytes_least = rows[i].least;
        io_fixture_submit(&f, req);
        io_fixture_reap(&f, 1);
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
TEST(fewer_bytes_are_not_enough)
{
    static const int64_t moved[] = {0, 99, -EAGAIN};

    for (size_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        struct io_fixture f;
        struct st_io_req *req;

        assert_int_equal(io_fixture_open_sized(&f, io_method_of(state), 1, BLOCK, 4, 100), STRATA_OK);
        req = io_fixture_prepare(&f, 0, ST_IO_READ);
        req->bytes_least = 100;
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = 2, .result = moved[i]});
        io_fixture_submit(&f, req);
        io_fixture_reap(&f, 1);
        assert_int_equal(st_fault_disarm(), moved[i] == 0 ? 1 : 2);
        assert_int_equal(f.worst, moved[i] == 0 ? STRATA_E_TRUNC : STRATA_OK);
        assert_true(moved[i] == 0 || req->bytes_done == 100);
        io_fixture_close(&f);
    }
}

TEST(depth_is_bounded)
{
    const struct st_io_ops *ops = io_method_of(state);
    const struct st_io_opts none = io_fixture_options(0), most = io_fixture_options(4096), more = io_fixture_options(4097);
    struct st_io *io;

    assert_int_equal(ops->open(&io, &none), STRATA_E_INVAL);
    assert_int_equal(ops->open(&io, &more), STRATA_E_INVAL);
    assert_int_equal(ops->open(&io, &most), STRATA_OK);
    ops->close(io);
    ops->close(NULL);
}

#define REGISTERED (15 * BLOCK)

TEST(registered_memory_works_as_any)
{
    const struct st_io_ops *ops = io_method_of(state);
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
        assert_int_equal(io_fixture_open(&f, ops, 16, 2 * BLOCK, 8), STRATA_OK);
        if (refused) {
            st_fault_arm(&(struct st_fault_spec){.site = "nvme.register", .count = 1, .result = -ENOMEM});
            assert_int_equal(ops->register_region(f.io, f.buf, REGISTERED), STRATA_E_NOMEM);
            assert_int_equal(st_fault_disarm(), 1);
            assert_non_null(strstr(strata_last_error(), "ulimit -l"));
        } else { /* half of the buffers lie outside, and one across the end */
            assert_int_equal(ops->register_region(f.io, f.buf, REGISTERED), STRATA_OK);
            assert_int_equal(ops->register_region(f.io, f.buf, REGISTERED), STRATA_E_BUSY);
        }
        io_fixture_assert_works(&f);
        io_fixture_close(&f);
    }
}

/* Random reads and writes with many in flight, never two of one block, against a copy in memory. */
TEST(random_operations_match_a_model)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        const uint32_t blocks = 24;
        struct io_fixture f;
        bool reading[BLOCKS_MAX] = {false};

        assert_int_equal(io_fixture_open(&f, io_method_of(state), blocks, 2 * BLOCK, 9), STRATA_OK);
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
        io_fixture_reap(&f, f.submit_count);
        assert_int_equal(f.worst, STRATA_OK);
        io_fixture_assert_reads(&f);
        io_fixture_close(&f);
    }
}

/* Every function of a method; the worst status of a request that was not cancelled, or what submit() said. */
static strata_status walk(struct io_fixture *f)
{
    struct st_io_req *req = io_fixture_prepare(f, 0, ST_IO_WRITE);
    strata_status st;

    if (f->ops->register_region != NULL)
        (void)f->ops->register_region(f->io, f->buf, WALK_BLOCKS * BLOCK); /* half of it; it goes on without */
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
    if ((st = io_fixture_write_all(f)) != STRATA_OK || (st = io_fixture_sync(f)) != STRATA_OK)
        return st;
    return io_fixture_read_all(f);
}

/* None may lose a request or a byte.  More blocks than may be in flight. */
TEST(every_single_failure_is_clean)
{
    struct fault_walk faults = {.result = -EIO};

    while (fault_walk_next(&faults)) {
        struct io_fixture f;
        strata_status st = io_fixture_open(&f, io_method_of(state), WALK_BLOCKS, 2 * BLOCK, 4);

        if (st == STRATA_OK)
            st = walk(&f);
        fault_walk_end(&faults, st);
        if (st == STRATA_OK) /* a benign fault was absorbed: then the data must be right */
            io_fixture_assert_data(&f);
        assert_int_equal(f.done_count, f.submit_count);
        io_fixture_close(&f);
    }
    assert_true(faults.failed >= 2 * WALK_BLOCKS); /* each completion, at least */
}

TEST_MAIN(argc, argv)
{
    return io_run_variants(__FILE__);
}
