/* tests/cli/test_bench_load.c - the load of strata bench io and strata tune, on a disk of the test that sees every request: how
 * many are in flight in which directory, which blocks they are for, and how a run ends. */
#include "bench/io/io_fio.h"
#include "bench/io/io_load.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define DEPTH_MAX    8u
#define SLOTS_MAX    (IO_DIRS_MAX * DEPTH_MAX)
#define KEPT_MAX     400u
#define ENDLESS      3600.0 /* seconds: the disk ends the run */
#define ONE_BURST    0.0
#define SMALL_BLOCK  4096u
#define SMALL_BLOCKS 16u

/* What a request was for. */
struct kept {
    enum st_io_op op;
    uint32_t file;
    uint64_t offset;
};

/* The one disk: it ends requests one by one, now of this directory, now of that, and takes `left` of them. */
struct st_io {
    struct st_io_opts opts;
    uint32_t files, depth; /* depth: that each file must have; 0: nobody asks */
    uint64_t file_bytes[IO_DIRS_MAX];
    uint32_t in_flight[IO_DIRS_MAX];
    struct st_io_req *reqs[SLOTS_MAX];
    uint32_t count, turn, left;
    uint32_t fail_at; /* the request that fails, from 1; 0: none */
    uint32_t ended;
    struct kept kept[KEPT_MAX];
    uint32_t kept_count;
    const void *region;
    uint64_t region_bytes;
    bool open, over;
};

static struct st_io disk;
static unsigned char memory[4u << 20]; /* nobody reads or writes it */

static strata_status disk_open(struct st_io **out, const struct st_io_opts *opts)
{
    disk.opts = *opts;
    disk.open = true;
    *out = &disk;
    return STRATA_OK;
}

static void disk_close(struct st_io *io)
{
    assert_int_equal(io->count, 0);
    io->open = false;
}

static strata_status disk_add_file(struct st_io *io, int fd, uint64_t bytes, uint32_t *index)
{
    (void)fd;
    io->file_bytes[io->files] = bytes;
    *index = io->files++;
    return STRATA_OK;
}

/* Memory that a request in flight has is no other's. */
static void take(struct st_io *io, struct st_io_req *req)
{
    const unsigned char *begin = req->buf;

    assert_true(req->file < io->files && req->offset + req->bytes <= io->file_bytes[req->file]);
    assert_true(begin >= memory && begin + req->bytes <= memory + sizeof(memory));
    for (uint32_t i = 0; i < io->count; i++) {
        const unsigned char *other = io->reqs[i]->buf;

        assert_true(begin + req->bytes <= other || other + io->reqs[i]->bytes <= begin);
    }
    assert_true(io->count < SLOTS_MAX);
    io->reqs[io->count++] = req;
    io->in_flight[req->file]++;
    if (io->kept_count < KEPT_MAX)
        io->kept[io->kept_count++] = (struct kept){.op = req->op, .file = req->file, .offset = req->offset};
}

static strata_status disk_submit(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    assert_true(io->count + count <= io->opts.queue_depth);
    if (count > io->left) {
        io->over = true;
        return st_error(STRATA_E_CANCELLED, "the disk has seen enough");
    }
    io->left -= count;
    for (uint32_t i = 0; i < count; i++)
        take(io, reqs[i]);
    return STRATA_OK;
}

static void end_one(struct st_io *io)
{
    const uint32_t i = (io->turn += 7) % io->count;
    struct st_io_req *req = io->reqs[i];
    strata_status st = STRATA_OK;

    io->reqs[i] = io->reqs[--io->count];
    io->in_flight[req->file]--;
    if (++io->ended == io->fail_at) {
        io->over = true;
        st = st_error(STRATA_E_IO, "the disk has a bad day");
    }
    req->done(req, st);
}

static strata_status disk_reap(struct st_io *io, uint32_t min_count)
{
    (void)min_count;
    for (uint32_t f = 0; f < io->files && io->depth > 0 && !io->over; f++)
        assert_int_equal(io->in_flight[f], io->depth);
    end_one(io);
    return STRATA_OK;
}

static strata_status disk_register(struct st_io *io, void *base, uint64_t bytes)
{
    io->region = base;
    io->region_bytes = bytes;
    return STRATA_OK;
}

static const struct st_io_ops ops = {.name = "a test's",
                                     .open = disk_open,
                                     .close = disk_close,
                                     .add_file = disk_add_file,
                                     .submit = disk_submit,
                                     .reap = disk_reap,
                                     .register_region = disk_register};

/* Runs with as much memory as is promised to be enough. */
static strata_status run(struct io_sample *sample, struct io_case c, uint32_t dirs, uint64_t blocks, double seconds)
{
    const struct io_files files = {.count = dirs, .bytes = blocks * c.block_bytes};
    const struct st_arena buffers = {.base = memory, .bytes = (uint64_t)c.queue_depth * dirs * c.block_bytes};
    strata_status st;

    assert_true(buffers.bytes <= sizeof(memory));
    c.method = &ops;
    st = io_run(sample, NULL, &files, &c, &buffers, seconds);
    assert_int_equal(disk.count, 0);
    assert_false(disk.open);
    assert_int_equal(disk.files, dirs);
    assert_int_equal(disk.opts.queue_depth, c.queue_depth * dirs);
    if (!c.unregistered)
        assert_true(disk.region == memory && disk.region_bytes == buffers.bytes);
    return st;
}

/* --- depth --- */

static const uint32_t dir_counts[] = {1, 2, 3, IO_DIRS_MAX};
static const uint32_t depths[] = {1, 2, 5, DEPTH_MAX};
#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* However many directories there are, and whichever of them ends a request first. */
TEST(every_directory_has_the_whole_depth)
{
    struct io_sample sample;

    for (size_t d = 0; d < COUNT(dir_counts); d++)
        for (size_t q = 0; q < COUNT(depths); q++) {
            disk = (struct st_io){.left = 300, .depth = depths[q]};
            assert_int_equal(run(&sample,
                                 (struct io_case){.pattern = (enum io_pattern)((d + q) % IO_PATTERNS),
                                                  .block_bytes = SMALL_BLOCK,
                                                  .queue_depth = depths[q]},
                                 dir_counts[d], SMALL_BLOCKS, ENDLESS),
                             STRATA_E_CANCELLED);
            assert_int_equal(disk.ended, 300);
        }
}

/* What is counted is what has been in flight. */
TEST(a_run_counts_what_has_ended)
{
    for (size_t d = 0; d < COUNT(dir_counts); d++)
        for (size_t q = 0; q < COUNT(depths); q++) {
            const uint32_t requests = dir_counts[d] * depths[q];
            struct io_sample sample = {0};
            uint64_t read = 0;

            disk = (struct st_io){.left = UINT32_MAX};
            assert_int_equal(run(&sample,
                                 (struct io_case){.pattern = IO_RANDRW, .block_bytes = SMALL_BLOCK, .queue_depth = depths[q]},
                                 dir_counts[d], SMALL_BLOCKS, ONE_BURST),
                             STRATA_OK);
            for (uint32_t i = 0; i < disk.kept_count; i++)
                read += disk.kept[i].op == ST_IO_READ;
            assert_int_equal(disk.ended, requests);
            assert_int_equal(sample.ops, requests);
            assert_int_equal(sample.bytes_read, read * SMALL_BLOCK);
            assert_int_equal(sample.bytes_written, (requests - read) * SMALL_BLOCK);
            assert_true(sample.registered);
        }
}

TEST(unregistered_memory_is_not_registered)
{
    struct io_sample sample = {0};

    disk = (struct st_io){.left = UINT32_MAX};
    assert_int_equal(run(&sample,
                         (struct io_case){.pattern = IO_READ, .block_bytes = SMALL_BLOCK, .queue_depth = 2, .unregistered = true},
                         2, SMALL_BLOCKS, ONE_BURST),
                     STRATA_OK);
    assert_null(disk.region);
    assert_true(disk.opts.unregistered && !sample.registered);
}

/* --- blocks --- */

/* The blocks of one directory's requests of one kind, in their order; returns how many. */
static uint32_t blocks_of(uint32_t file, enum st_io_op op, uint32_t block_bytes, uint64_t blocks[KEPT_MAX])
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < disk.kept_count; i++) {
        if (disk.kept[i].file != file || disk.kept[i].op != op)
            continue;
        assert_int_equal(disk.kept[i].offset % block_bytes, 0);
        blocks[count++] = disk.kept[i].offset / block_bytes;
    }
    return count;
}

static void goes_on_from(uint32_t file, enum st_io_op op, uint32_t block_bytes, uint64_t first, uint64_t of)
{
    uint64_t blocks[KEPT_MAX];
    const uint32_t count = blocks_of(file, op, block_bytes, blocks);

    assert_true(count > of); /* past the end, and on from the beginning */
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(blocks[i], (first + i) % of);
}

#define NONE UINT64_MAX
#define MIB  (1u << 20)

/* Each directory goes through its own file, as if it were alone. */
TEST(sequences_are_those_of_each_directory)
{
    static const struct {
        enum io_pattern pattern;
        uint32_t block_bytes, blocks;
        uint64_t read, write; /* the first block */
    } rows[] = {
        {IO_READ, SMALL_BLOCK, SMALL_BLOCKS, 0, NONE},
        {IO_WRITE, SMALL_BLOCK, SMALL_BLOCKS, NONE, 0},
        {IO_RW, SMALL_BLOCK, SMALL_BLOCKS, 0, SMALL_BLOCKS / 2},
        {IO_OPTIMIZER, SMALL_BLOCK, SMALL_BLOCKS, SMALL_BLOCKS / 2, 0}, /* two extents are more than the file */
        {IO_OPTIMIZER, MIB, 90, 80, 0},
        {IO_OPTIMIZER, MIB, 80, 40, 0},
    };
    uint64_t blocks[KEPT_MAX];
    struct io_sample sample;

    for (size_t i = 0; i < COUNT(rows); i++) {
        disk = (struct st_io){.left = KEPT_MAX, .depth = 2};
        assert_int_equal(run(&sample,
                             (struct io_case){.pattern = rows[i].pattern, .block_bytes = rows[i].block_bytes, .queue_depth = 2},
                             2, rows[i].blocks, ENDLESS),
                         STRATA_E_CANCELLED);
        for (uint32_t file = 0; file < 2; file++) {
            if (rows[i].read != NONE)
                goes_on_from(file, ST_IO_READ, rows[i].block_bytes, rows[i].read, rows[i].blocks);
            else
                assert_int_equal(blocks_of(file, ST_IO_READ, rows[i].block_bytes, blocks), 0);
            if (rows[i].write != NONE)
                goes_on_from(file, ST_IO_WRITE, rows[i].block_bytes, rows[i].write, rows[i].blocks);
            else
                assert_int_equal(blocks_of(file, ST_IO_WRITE, rows[i].block_bytes, blocks), 0);
        }
    }
}

/* An update writes as much as it reads. */
TEST(the_optimizer_reads_and_writes_in_turn)
{
    uint32_t next[2] = {0};
    struct io_sample sample;

    disk = (struct st_io){.left = 100, .depth = 3};
    assert_int_equal(run(&sample, (struct io_case){.pattern = IO_OPTIMIZER, .block_bytes = SMALL_BLOCK, .queue_depth = 3}, 2,
                         SMALL_BLOCKS, ENDLESS),
                     STRATA_E_CANCELLED);
    for (uint32_t i = 0; i < disk.kept_count; i++)
        assert_int_equal(disk.kept[i].op, next[disk.kept[i].file]++ % 2 == 0 ? ST_IO_READ : ST_IO_WRITE);
}

/* Directories do not move in step: requests at the same place of several drives would be a pattern. */
TEST(random_blocks_are_anywhere)
{
    static const struct {
        enum io_pattern pattern;
        bool reads, writes;
    } rows[] = {{IO_RANDREAD, true, false}, {IO_RANDWRITE, false, true}, {IO_RANDRW, true, true}};
    struct io_sample sample;

    for (size_t i = 0; i < COUNT(rows); i++) {
        uint64_t blocks[2][KEPT_MAX];

        disk = (struct st_io){.left = KEPT_MAX, .depth = 1};
        assert_int_equal(run(&sample, (struct io_case){.pattern = rows[i].pattern, .block_bytes = SMALL_BLOCK, .queue_depth = 1},
                             2, SMALL_BLOCKS, ENDLESS),
                         STRATA_E_CANCELLED);
        for (int write = 0; write < 2; write++) {
            uint32_t counts[2], equal = 0;
            bool seen[SMALL_BLOCKS] = {false};

            for (uint32_t file = 0; file < 2; file++) {
                counts[file] = blocks_of(file, write ? ST_IO_WRITE : ST_IO_READ, SMALL_BLOCK, blocks[file]);
                assert_int_equal(counts[file] > 0, write ? rows[i].writes : rows[i].reads);
            }
            if (counts[0] == 0)
                continue;
            for (uint32_t k = 0; k < counts[0]; k++) {
                seen[blocks[0][k]] = true;
                equal += k < counts[1] && blocks[0][k] == blocks[1][k];
            }
            for (uint32_t b = 0; b < SMALL_BLOCKS; b++)
                assert_true(seen[b]);
            assert_true(equal < counts[0] / 2);
        }
    }
}

/* --- the end --- */

/* Whatever is in flight has ended before the run does; the first failure is the run's. */
TEST(a_failed_request_ends_the_run)
{
    struct io_sample sample;

    for (uint32_t fail_at = 1; fail_at < 20; fail_at += 6) {
        disk = (struct st_io){.left = UINT32_MAX, .depth = 3, .fail_at = fail_at};
        assert_int_equal(run(&sample, (struct io_case){.pattern = IO_RANDRW, .block_bytes = SMALL_BLOCK, .queue_depth = 3}, 2,
                             SMALL_BLOCKS, ENDLESS),
                         STRATA_E_IO);
        assert_non_null(strstr(strata_last_error(), "a bad day"));
        assert_int_equal(disk.ended, fail_at + 5); /* the others in flight, and no new ones */
    }
}

/* A disk that takes not even the first burst has nothing to be waited for. */
TEST(a_disk_that_takes_nothing_ends_the_run)
{
    struct io_sample sample;

    disk = (struct st_io){.left = 3};
    assert_int_equal(run(&sample, (struct io_case){.pattern = IO_READ, .block_bytes = SMALL_BLOCK, .queue_depth = 2}, 2,
                         SMALL_BLOCKS, ENDLESS),
                     STRATA_E_CANCELLED);
    assert_int_equal(disk.ended, 0);
}

/* One directory that takes no direct I/O, and one that may. */
TEST(files_are_all_direct_or_none_is)
{
    static const char *const dirs[] = {"/tmp", "/tmp"};
    struct io_files files;

    kept_log_begin(ST_LOG_WARN);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.direct", .count = 1, .result = -EINVAL});
    assert_int_equal(io_files_open(&files, dirs, 2, IO_ALIGN), STRATA_OK);
    st_fault_disarm();
    kept_log_end();
    assert_true(kept_log.count >= 1);
    assert_false(files.direct);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(fcntl(files.fds[i], F_GETFL) & O_DIRECT, 0);
    io_files_close(&files);
}

/* Where ours come from the page cache, fio does not empty it first. */
TEST(fio_finds_what_we_find)
{
    const struct io_case c = {.pattern = IO_READ, .block_bytes = SMALL_BLOCK, .queue_depth = 1};

    for (int direct = 0; direct < 2; direct++) {
        char job[1024] = "";
        FILE *file = fmemopen(job, sizeof(job), "w");

        assert_non_null(file);
        io_fio_write_job(file, "job", "name", 1, SMALL_BLOCK, direct != 0, &c, IO_FIO_LIBAIO, 1);
        fclose(file);
        assert_non_null(strstr(job, direct != 0 ? "direct=1\n" : "direct=0\n"));
        assert_true((strstr(job, "invalidate=0\n") != NULL) == (direct == 0));
    }
}
