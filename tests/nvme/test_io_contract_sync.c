/* tests/nvme/test_io_contract_sync.c - the contract in nvme/method/io.h: syncs. */
#include "core/base/fault.h"
#include "io_fixture.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Among transfers in flight, more than one of a file, by a done() that submits; the bytes stay what they were. */
TEST(syncs_end_once_among_transfers)
{
    for (uint32_t depth = 1; depth <= 32; depth *= 8) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 32, BLOCK, depth), STRATA_OK);
        memcpy(f.buf, f.want, (size_t)f.block_count * BLOCK);
        f.resubmit = 40;
        for (uint32_t i = 0; i < 32; i++) {
            struct st_io_req *req = io_fixture_prepare(&f, i, i % 3 == 1 ? ST_IO_SYNC : ST_IO_WRITE);
            strata_status st;

            while ((st = f.ops->submit(f.io, &req, 1)) == STRATA_E_BUSY)
                assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
            assert_int_equal(st, STRATA_OK);
            f.submit_count++;
        }
        while (f.done_count < f.submit_count)
            assert_int_equal(f.ops->reap(f.io, 1), STRATA_OK);
        assert_int_equal(f.submit_count, 72);
        assert_int_equal(f.worst, STRATA_OK);
        for (uint32_t i = 0; i < 32; i++)
            assert_true(f.reqs[i].op != ST_IO_SYNC || f.reqs[i].result == 0);
        memset(f.buf, 0xee, (size_t)f.block_count * BLOCK);
        for (uint32_t i = 0; i < 32; i++)
            if (i % 3 != 1) {
                struct st_io_req *req = io_fixture_start(&f, i, ST_IO_READ);

                io_fixture_reap(&f, ++f.submit_count);
                assert_memory_equal(req->buf, f.want + (size_t)i * BLOCK, BLOCK);
            }
        io_fixture_close(&f);
    }
}

/* The system is asked, also for a file that is open for reading alone: a pipe cannot be synced. */
TEST(the_system_is_asked)
{
    const struct st_io_ops *ops = io_method_of(state);
    struct io_fixture f;
    char path[64];
    int ends[2], reader;

    assert_int_equal(io_fixture_open(&f, ops, 2, BLOCK, 4), STRATA_OK);
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    assert_int_equal(io_fixture_sync(&f), STRATA_OK);
    ops->remove_file(f.io, f.file);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(ops->add_file(f.io, ends[0], BLOCK, &f.file), STRATA_OK);
    if (strcmp(ops->name, "fake") == 0) {
        assert_int_equal(io_fixture_sync(&f), STRATA_OK);
    } else {
        assert_int_equal(io_fixture_sync(&f), STRATA_E_IO);
        assert_int_equal(f.reqs[0].result, -EINVAL);
        assert_non_null(strstr(f.sentence, "fsync: Invalid argument"));
    }
    ops->remove_file(f.io, f.file);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", f.fd);
    assert_true((reader = open(path, O_RDONLY)) >= 0);
    assert_int_equal(ops->add_file(f.io, reader, 2 * BLOCK, &f.file), STRATA_OK);
    assert_int_equal(io_fixture_sync(&f), STRATA_OK);
    io_fixture_close(&f);
    close(reader);
    close(ends[0]);
    close(ends[1]);
}

/* Whatever it says: what a repeated sync would hide is not asked again. */
TEST(a_failed_sync_is_not_repeated)
{
    static const struct {
        int64_t result;
        strata_status st;
        const char *text;
    } rows[] = {
        {-EIO, STRATA_E_IO, "dmesg"},   {-ENOSPC, STRATA_E_NOSPC, "free space"},     {-EDQUOT, STRATA_E_NOSPC, "free space"},
        {-EINTR, STRATA_E_IO, "fsync"}, {-EAGAIN, STRATA_E_IO, "may not be on the"}, {-EOPNOTSUPP, STRATA_E_IO, "fsync"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 4, BLOCK, 4), STRATA_OK);
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.fsync", .result = rows[i].result});
        assert_int_equal(io_fixture_sync(&f), rows[i].st);
        assert_int_equal(st_fault_disarm(), 1);
        assert_int_equal(f.reqs[0].result, rows[i].result);
        assert_non_null(strstr(f.sentence, rows[i].text));
        io_fixture_assert_reads(&f); /* and the io is as good as before */
        assert_int_equal(io_fixture_sync(&f), STRATA_OK);
        io_fixture_close(&f);
    }
}

/* A queue of the kernel that is full for now has not taken the sync: that is offered again. */
TEST(a_sync_that_was_not_taken_is_offered_again)
{
    struct io_fixture f;

    assert_int_equal(io_fixture_open(&f, io_method_of(state), 1, BLOCK, 4), STRATA_OK);
    assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.enter", .count = 3, .result = -EAGAIN});
    assert_int_equal(io_fixture_sync(&f), STRATA_OK);
    st_fault_disarm();
    io_fixture_close(&f);
}

/* Done or cancelled; and where the kernel takes no more calls, done or failed. */
TEST(cancelled_and_broken_syncs_end_once)
{
    static const char *const sites[] = {NULL, "nvme.enter", "nvme.getevents"};

    for (uint32_t round = 0; round < 6; round++) {
        const char *site = sites[round / 2];
        struct io_fixture f;

        assert_int_equal(io_fixture_open(&f, io_method_of(state), 8, BLOCK, 8), STRATA_OK);
        assert_int_equal(io_fixture_write_all(&f), STRATA_OK);
        io_fixture_clear(&f);
        for (uint32_t i = 0; i < 4; i++)
            io_fixture_start(&f, i, i % 2 == 0 ? ST_IO_SYNC : ST_IO_WRITE);
        if (site != NULL)
            st_fault_arm(&(struct st_fault_spec){.site = site, .after = round % 2, .result = -EPERM});
        for (uint32_t i = 4; i < 8; i++)
            io_fixture_start(&f, i, i % 2 == 0 ? ST_IO_SYNC : ST_IO_WRITE);
        for (uint32_t i = 0; i < 8 && site == NULL; i++)
            f.ops->cancel(f.io, &f.reqs[(i * 3 + round) % 8]);
        while (f.done_count < 8)
            assert_int_equal(f.ops->reap(f.io, 8), STRATA_OK);
        st_fault_disarm();
        for (uint32_t i = 0; i < 8; i++) {
            assert_int_equal(f.done_of[i], 1);
            assert_true(f.status[i] == STRATA_OK || f.status[i] == (site == NULL ? STRATA_E_CANCELLED : STRATA_E_IO));
        }
        io_fixture_close(&f);
    }
}

TEST_MAIN(argc, argv)
{
    return io_run_variants(__FILE__);
}
