/* tests/nvme/test_swap.c - transfers through a swap: every method, several threads, errors, counters, close. */
#include "core/base/checksum.h"
#include "core/base/fault.h"
#include "core/base/rng.h"
#include "core/system/clock.h"
#include "swap_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB          1024u
#define BLOCK        (64 * KIB)
#define MOVES_MAX    64u
#define THREAD_COUNT 3u

/* All that this machine has. */
static const char *methods[8];
static size_t method_count;
static bool has_uring;

static struct st_swap_opts options(const char *method, uint64_t bytes)
{
    static const char *const dirs[] = {scratch_dir};

    return (struct st_swap_opts){.dirs = dirs,
                                 .dir_count = 1,
                                 .bytes = {bytes},
                                 .method = method,
                                 .block_bytes = BLOCK,
                                 .queue_depth = 7,
                                 .fake_seed = 11,
                                 .fake_latency_us = 50};
}

static unsigned char *random_buffer(uint64_t bytes, uint64_t stream)
{
    unsigned char *buf = aligned_alloc(ST_SWAP_ALIGN, bytes);

    assert_non_null(buf);
    for (uint64_t i = 0; i < bytes / 8; i++) {
        const uint64_t word = st_rng_u64(1, stream, i);

        memcpy(buf + i * 8, &word, 8);
    }
    return buf;
}

/* A thread with its own part of the swap: writes extents of many sizes at once, then reads them all. */
struct mover_thread {
    struct st_swap *swap;
    uint64_t base, stream;
    unsigned char *out, *in;
    struct move moves[MOVES_MAX];
    uint64_t bytes[MOVES_MAX];
    uint32_t wrong; /* transfers that failed, ended not once, or brought other bytes */
};

#define EXTENT_MAX (5 * BLOCK)
#define PART_BYTES ((uint64_t)MOVES_MAX * EXTENT_MAX)

static void move_all(struct mover_thread *t, enum st_io_op op, unsigned char *buf)
{
    struct latch latch = LATCH_INIT;

    for (uint32_t i = 0; i < MOVES_MAX; i++)
        t->wrong += move_start(t->swap, &t->moves[i], &latch, op, t->base + (uint64_t)i * EXTENT_MAX, t->bytes[i],
                               buf + (uint64_t)i * EXTENT_MAX) != STRATA_OK;
    latch_wait(&latch);
    for (uint32_t i = 0; i < MOVES_MAX; i++)
        t->wrong += t->moves[i].status != STRATA_OK || t->moves[i].done_count != 1;
}

static void *mover_thread_main(void *arg)
{
    struct mover_thread *t = arg;

    for (uint32_t i = 0; i < MOVES_MAX; i++)
        t->bytes[i] = (1 + st_rng_u64(2, t->stream, i) % (EXTENT_MAX / ST_SWAP_ALIGN)) * ST_SWAP_ALIGN;
    t->bytes[0] = ST_SWAP_ALIGN;
    t->bytes[1] = EXTENT_MAX;
    for (uint32_t pass = 0; pass < 3; pass++) {
        t->out[pass]++; /* other bytes each time */
        move_all(t, ST_IO_WRITE, t->out);
        memset(t->in, 0, PART_BYTES);
        move_all(t, ST_IO_READ, t->in);
        for (uint32_t i = 0; i < MOVES_MAX; i++)
            t->wrong += st_checksum64(t->in + (uint64_t)i * EXTENT_MAX, t->bytes[i]) !=
                        st_checksum64(t->out + (uint64_t)i * EXTENT_MAX, t->bytes[i]);
    }
    return NULL;
}

TEST(many_transfers_from_several_threads)
{
    for (size_t k = 0; k < method_count; k++) {
        struct mover_thread *threads = calloc(THREAD_COUNT, sizeof(*threads));
        const struct st_swap_opts opts = options(methods[k], THREAD_COUNT * PART_BYTES);
        struct st_mover_counters counters;
        uint64_t expected = 0;
        pthread_t ids[THREAD_COUNT];
        struct st_swap *swap;

        assert_non_null(threads);
        assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
        for (uint32_t i = 0; i < THREAD_COUNT; i++) {
            threads[i].swap = swap;
            threads[i].base = i * PART_BYTES;
            threads[i].stream = i;
            threads[i].out = random_buffer(PART_BYTES, i);
            threads[i].in = random_buffer(PART_BYTES, 0);
            assert_int_equal(pthread_create(&ids[i], NULL, mover_thread_main, &threads[i]), 0);
        }
        for (uint32_t i = 0; i < THREAD_COUNT; i++) {
            assert_int_equal(pthread_join(ids[i], NULL), 0);
            assert_int_equal(threads[i].wrong, 0);
            for (uint32_t m = 0; m < MOVES_MAX; m++)
                expected += 3 * threads[i].bytes[m];
            free(threads[i].out);
            free(threads[i].in);
        }
        st_swap_counters(swap, &counters);
        assert_int_equal(counters.bytes_read, expected);
        assert_int_equal(counters.bytes_written, expected);
        assert_true(counters.busy_read_ns > 0);
        assert_true(counters.busy_write_ns > 0);
        st_swap_close(swap);
        free(threads);
        assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    }
}

TEST(close_waits_for_all_that_was_submitted)
{
    for (size_t k = 0; k < method_count; k++) {
        struct move *moves = calloc(MOVES_MAX, sizeof(*moves));
        const struct st_swap_opts opts = options(methods[k], MOVES_MAX * BLOCK);
        unsigned char *buf = random_buffer(BLOCK, 0);
        struct latch latch = LATCH_INIT;
        struct st_swap *swap;

        assert_non_null(moves);
        assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
        for (uint32_t i = 0; i < MOVES_MAX; i++)
            assert_int_equal(move_start(swap, &moves[i], &latch, ST_IO_WRITE, (uint64_t)i * BLOCK, BLOCK, buf), STRATA_OK);
        st_swap_close(swap);
        assert_int_equal(latch.pending, 0);
        for (uint32_t i = 0; i < MOVES_MAX; i++) {
            assert_int_equal(moves[i].done_count, 1);
            assert_int_equal(moves[i].status, STRATA_OK);
        }
        free(buf);
        free(moves);
        assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    }
}

TEST(done_may_submit)
{
    for (size_t k = 0; k < method_count; k++) {
        const struct st_swap_opts opts = options(methods[k], 4 * BLOCK);
        unsigned char *buf = random_buffer(4 * BLOCK, 0);
        struct st_mover_counters counters;
        struct st_swap *swap;
        struct move move = {.again = 99};

        assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
        move.swap = swap;
        assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, 4 * BLOCK, buf), STRATA_OK);
        st_swap_counters(swap, &counters);
        assert_int_equal(counters.bytes_written, 400 * BLOCK);
        assert_int_equal(move_wait(swap, &move, ST_IO_READ, 0, 0, buf), STRATA_OK); /* no bytes: ends like any other */
        assert_int_equal(move.done_count, 1);
        st_swap_close(swap);
        free(buf);
    }
}

TEST(a_failed_request_fails_its_transfer_alone)
{
    for (size_t k = 0; k < method_count; k++) {
        const struct st_swap_opts opts = options(methods[k], 20 * BLOCK);
        unsigned char *buf = random_buffer(20 * BLOCK, 0), *back = random_buffer(20 * BLOCK, 1);
        struct st_mover_counters counters;
        struct st_swap *swap;
        struct move move = {0};

        assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 3, .count = 2, .result = -EIO});
        assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, 20 * BLOCK, buf), STRATA_E_IO);
        assert_int_equal(st_fault_disarm(), 2);
        assert_int_equal(move.done_count, 1);
        assert_non_null(strstr(move.sentence, "write of 65536 bytes at offset "));
        assert_non_null(strstr(move.sentence, strcmp(methods[k], "fake") == 0 ? "fake/swap-0: " : "/swap-0: "));
        st_swap_counters(swap, &counters);
        assert_true(counters.bytes_written < 20 * BLOCK); /* what was not worth issuing was not */

        st_fault_arm(&(struct st_fault_spec){.site = "nvme.submit", .count = 1, .result = -ENOMEM});
        assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, 20 * BLOCK, buf), STRATA_E_NOMEM);
        assert_int_equal(st_fault_disarm(), 1);
        assert_int_equal(move.done_count, 1);

        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 1, .count = 5, .result = 9000}); /* short ones */
        assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, 20 * BLOCK, buf), STRATA_OK);
        assert_int_equal(move_wait(swap, &move, ST_IO_READ, 0, 20 * BLOCK, back), STRATA_OK);
        assert_int_equal(st_fault_disarm(), 5);
        assert_memory_equal(buf, back, 20 * BLOCK);
        st_swap_close(swap);
        free(buf);
        free(back);
    }
}

TEST(what_cannot_be_is_refused)
{
    struct st_swap_opts opts = options("threads", 4 * BLOCK);
    unsigned char *buf = random_buffer(8 * BLOCK, 0);
    struct move move = {0};
    struct st_swap *swap;

    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, 512, BLOCK, buf), STRATA_E_INVAL);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, 0, 100, buf), STRATA_E_INVAL);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, 0, BLOCK, buf + 8), STRATA_E_INVAL);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, 4 * BLOCK, BLOCK, buf), STRATA_E_INVAL);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, 0, 4 * BLOCK + ST_SWAP_ALIGN, buf), STRATA_E_INVAL);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, UINT64_MAX - ST_SWAP_ALIGN + 1, 2 * BLOCK, buf), STRATA_E_INVAL);
    assert_int_equal(move.done_count, 0);
    st_swap_close(swap);
    free(buf);

    opts.bytes[0] = 0;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts.bytes[0] = 4 * BLOCK + 1;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts.bytes[0] = 4 * BLOCK;
    opts.block_bytes = 1000;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts.block_bytes = 0;
    opts.queue_depth = 5000;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts.queue_depth = 0;
    opts.method = "abacus";
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "abacus"));
    opts.method = "threads";
    opts.dir_count = ST_SWAP_DIRS_MAX + 1;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts.dir_count = 0;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    st_swap_close(NULL);
}

/* A lower bound alone: reads and writes share the rate. */
TEST(fake_is_no_faster_than_its_limit)
{
    const struct st_swap_opts opts = {.bytes = {8 * BLOCK}, .method = "fake", .fake_bytes_per_second = 50000000};
    unsigned char *buf = random_buffer(8 * BLOCK, 0), *back = random_buffer(8 * BLOCK, 1);
    const uint64_t start = st_clock_ns();
    struct move move = {0};
    struct st_swap *swap;

    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, 8 * BLOCK, buf), STRATA_OK);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, 0, 8 * BLOCK, back), STRATA_OK);
    assert_true((double)(st_clock_ns() - start) * 1e-9 >= 2.0 * 8 * BLOCK / 50e6);
    assert_memory_equal(buf, back, 8 * BLOCK);
    st_swap_close(swap);
    free(buf);
    free(back);
}

TEST(fake_needs_no_directory)
{
    const struct st_swap_opts opts = {.bytes = {BLOCK}, .method = "fake"};
    unsigned char *buf = random_buffer(BLOCK, 0), *back = random_buffer(BLOCK, 1);
    struct st_swap_info info;
    struct move move = {0};
    struct st_swap *swap;

    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    st_swap_info(swap, &info);
    assert_string_equal(info.method, "fake");
    assert_false(info.direct);
    assert_int_equal(info.block_bytes, 1024 * KIB);
    assert_int_equal(info.queue_depth, 32);
    assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, BLOCK, buf), STRATA_OK);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, 0, BLOCK, back), STRATA_OK);
    assert_memory_equal(buf, back, BLOCK);
    st_swap_close(swap);
    free(buf);
    free(back);
}

/* Each of the two ways to poll is asked for by its own setting: what the kernel refuses is told, and transfers continue. */
TEST(refused_polling_is_told_and_harmless)
{
    static const char *const words[] = {"SQPOLL", "IOPOLL"};
    unsigned char *buf = random_buffer(BLOCK, 0);

    if (strcmp(st_io_find("auto", NULL)->name, "uring") != 0) {
        free(buf);
        skip();
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct st_swap_opts opts = options("uring", 4 * BLOCK);
        struct move move = {0};
        struct st_swap *swap;

        opts.poll_kernel = i == 0;
        opts.poll_device = i == 1;
        kept_log_begin(ST_LOG_NOTICE);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.ring", .count = 1, .result = -EPERM});
        assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
        assert_int_equal(st_fault_disarm(), 1);
        kept_log_end();
        assert_int_equal(kept_log.count, 1);
        assert_non_null(strstr(kept_log.last, words[i]));
        assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, BLOCK, buf), STRATA_OK);
        st_swap_close(swap);
    }
    free(buf);
}

/* Only "auto" may choose. */
TEST(a_method_that_was_named_is_not_replaced)
{
    static const char *const rows[][2] = {{"uring", "nvme.ring"}, {"uring", "nvme.eventfd"}, {"aio", "nvme.context"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (uint32_t named = 0; named < 2; named++) {
            const struct st_swap_opts opts = options(named ? rows[i][0] : "auto", 4 * BLOCK);
            struct st_swap *swap;
            strata_status st;

            kept_log_begin(ST_LOG_ERROR);
            st_fault_arm(&(struct st_fault_spec){.site = rows[i][1], .result = -EMFILE});
            st = st_swap_open(&swap, &opts);
            st_fault_disarm();
            kept_log_end();
            if (st == STRATA_OK)
                st_swap_close(swap);
            assert_int_equal(st != STRATA_OK, named);
        }
}

TEST(refused_registration_is_told_and_harmless)
{
    struct st_swap_opts opts = options("uring", 4 * BLOCK);
    unsigned char *arena = random_buffer(8 * BLOCK, 0);
    struct st_swap_info info;
    struct move move = {0};
    struct st_swap *swap;

    if (strcmp(st_io_find("auto", NULL)->name, "uring") != 0)
        skip();
    opts.region = arena;
    opts.region_bytes = 8 * BLOCK;
    kept_log_begin(ST_LOG_NOTICE);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.register", .count = 1, .result = -ENOMEM});
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    assert_int_equal(st_fault_disarm(), 1);
    kept_log_end();
    assert_non_null(strstr(kept_log.last, "ulimit -l"));
    st_swap_info(swap, &info);
    assert_false(info.registered);
    assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, 4 * BLOCK, arena), STRATA_OK);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, 0, 4 * BLOCK, arena + 4 * BLOCK), STRATA_OK);
    assert_memory_equal(arena, arena + 4 * BLOCK, 4 * BLOCK);
    st_swap_close(swap);

    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK); /* 512 KiB: within any RLIMIT_MEMLOCK of today */
    st_swap_info(swap, &info);
    assert_true(info.registered);
    memset(arena + 4 * BLOCK, 0, 4 * BLOCK);
    assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, 4 * BLOCK, arena), STRATA_OK);
    assert_int_equal(move_wait(swap, &move, ST_IO_READ, 0, 4 * BLOCK, arena + 4 * BLOCK), STRATA_OK);
    assert_memory_equal(arena, arena + 4 * BLOCK, 4 * BLOCK);
    st_swap_close(swap);
    free(arena);
}

/* The choice was right when it was made, but the ring of full depth is refused. */
TEST(auto_goes_on_with_the_next_best)
{
    static const struct {
        const char *site, *text, *method;
        int64_t result;
        uint32_t fired;
    } rows[] = {
        {"nvme.ring", "ulimit -l", "aio", -ENOMEM, 1},
        {"nvme.eventfd", "ulimit -n", "threads", -EMFILE, 2}, /* of which aio has one, too */
    };
    const struct st_swap_opts opts = options("auto", 4 * BLOCK);
    unsigned char *buf = random_buffer(4 * BLOCK, 0);
    struct st_swap_info info;
    struct move move = {0};
    struct st_swap *swap;

    if (!has_uring)
        skip();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        kept_log_begin(ST_LOG_NOTICE);
        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .after = 1, .result = rows[i].result});
        assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
        assert_int_equal(st_fault_disarm(), rows[i].fired);
        kept_log_end();
        assert_non_null(strstr(kept_log.last, rows[i].text));
        assert_non_null(strstr(kept_log.last, rows[i].method));
        st_swap_info(swap, &info);
        assert_string_equal(info.method, rows[i].method);
        assert_int_equal(move_wait(swap, &move, ST_IO_WRITE, 0, 4 * BLOCK, buf), STRATA_OK);
        st_swap_close(swap);
    }
    free(buf);
}

static strata_status use_swap(const struct st_swap_opts *opts, unsigned char *buf, unsigned char *back, struct move *move)
{
    struct st_swap *swap;
    strata_status st = st_swap_open(&swap, opts);

    if (st != STRATA_OK)
        return st;
    st = move_wait(swap, move, ST_IO_WRITE, 0, 4 * BLOCK, buf);
    if (st == STRATA_OK)
        st = move_wait(swap, move, ST_IO_READ, 0, 4 * BLOCK, back);
    st_swap_close(swap);
    return st;
}

/* As in test_io_contract.c, with the scratch_dir, the file and the thread.  Nothing stays behind; where the unlink itself was
 * made to fail, the next run's sweep finds it. */
TEST(every_single_failure_is_clean)
{
    unsigned char *buf = random_buffer(4 * BLOCK, 0), *back = random_buffer(4 * BLOCK, 1);

    kept_log_begin(ST_LOG_NOTICE);
    for (size_t k = 0; k < method_count; k++) {
        const struct st_swap_opts opts = options(methods[k], 4 * BLOCK);
        struct fault_walk walk = {.result = -EIO};

        while (fault_walk_next(&walk)) {
            struct move move = {0};
            strata_status st;

            memset(back, 0, 4 * BLOCK);
            st = use_swap(&opts, buf, back, &move);
            fault_walk_end(&walk, st);
            if (st == STRATA_OK)
                assert_memory_equal(buf, back, 4 * BLOCK);
            st_swap_sweep(scratch_dir);
            assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
        }
        assert_true(walk.failed >= 8); /* each completion, at least */
    }
    kept_log_end();
    free(buf);
    free(back);
}

TEST_MAIN(argc, argv)
{
    for (const struct st_io_ops *const *ops = st_io_methods; *ops != NULL; ops++) {
        struct st_io *io;

        if ((*ops)->open(&io, &(struct st_io_opts){.queue_depth = 1}) != STRATA_OK) {
            print_message("%s: not tested on this machine: %s\n", (*ops)->name, strata_last_error());
            continue;
        }
        (*ops)->close(io);
        methods[method_count++] = (*ops)->name;
        has_uring = has_uring || strcmp((*ops)->name, "uring") == 0;
    }
    return test_run(scratch_create, scratch_remove);
}
