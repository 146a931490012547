/* tests/nvme/test_mover.c - the I/O thread step by step, over an I/O method that ends a request when the test says so. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "nvme/mover/mover.h"
#include "tests/common/test.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK  4096u
#define BLOCKS 8u
#define DEPTH  3u
#define DRIVES 2u

/* --- the method --- */

/* Requests end in the order of submission; reap() waits for the test's leave, or for a wake. */
struct st_io {
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct st_io_req *held[DRIVES * DEPTH];
    uint32_t depth;
    uint32_t files;
    uint32_t busy, allowed, wakes;
    uint32_t submitted;  /* requests, ever */
    uint32_t fail_after; /* requests that end well before one fails */
    uint32_t refuse;     /* submits to refuse */
    bool in_reap, woken;
    bool holds; /* on_hold() does not return */
};

static struct st_io *stepped; /* of the running test */

static strata_status stepped_open(struct st_io **out, const struct st_io_opts *opts)
{
    stepped->depth = opts->queue_depth;
    *out = stepped;
    return STRATA_OK;
}

static void stepped_close(struct st_io *io)
{
    assert_int_equal(io->busy, 0);
}

static strata_status stepped_add_file(struct st_io *io, int fd, uint64_t bytes, uint32_t *index)
{
    (void)fd;
    (void)bytes;
    *index = io->files++;
    return STRATA_OK;
}

static void stepped_remove_file(struct st_io *io, uint32_t index)
{
    (void)index;
    io->files--;
}

static strata_status stepped_submit(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    pthread_mutex_lock(&io->lock);
    assert_true(io->busy + count <= io->depth);
    if (io->refuse > 0) {
        io->refuse--;
        pthread_mutex_unlock(&io->lock);
        return st_error(STRATA_E_NOMEM, "no memory for a step");
    }
    for (uint32_t i = 0; i < count; i++)
        io->held[io->busy++] = reqs[i];
    io->submitted += count;
    pthread_cond_broadcast(&io->change);
    pthread_mutex_unlock(&io->lock);
    return STRATA_OK;
}

static struct st_io_req *take_oldest(struct st_io *io)
{
    struct st_io_req *req = io->held[0];

    io->busy--;
    memmove(io->held, io->held + 1, io->busy * sizeof(io->held[0]));
    return req;
}

static void end_request(struct st_io *io, struct st_io_req *req)
{
    if (io->fail_after > 0) {
        io->fail_after--;
        req->result = req->bytes;
        req->done(req, STRATA_OK);
        return;
    }
    req->result = -EIO;
    req->done(req, st_error(STRATA_E_IO, "stepped"));
}

/* Steps are the test's: no deadline ends its wait. */
static strata_status stepped_reap_until(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    struct st_io_req *req = NULL;

    assert_true(min_count <= 1);
    assert_true(deadline_ns > 0);
    pthread_mutex_lock(&io->lock);
    io->in_reap = min_count > 0;
    pthread_cond_broadcast(&io->change);
    while (min_count > 0 && io->allowed == 0 && !io->woken)
        pthread_cond_wait(&io->change, &io->lock);
    io->in_reap = io->woken = false;
    if (io->allowed > 0 && io->busy > 0) {
        io->allowed--;
        req = take_oldest(io);
    }
    pthread_mutex_unlock(&io->lock);
    if (req != NULL)
        end_request(io, req);
    return STRATA_OK;
}

static void stepped_wake(struct st_io *io)
{
    pthread_mutex_lock(&io->lock);
    io->wakes++;
    io->woken = true;
    pthread_cond_broadcast(&io->change);
    pthread_mutex_unlock(&io->lock);
}

static const struct st_io_ops stepped_ops = {.name = "stepped",
                                             .open = stepped_open,
                                             .close = stepped_close,
                                             .add_file = stepped_add_file,
                                             .remove_file = stepped_remove_file,
                                             .submit = stepped_submit,
                                             .reap_until = stepped_reap_until,
                                             .wake = stepped_wake};

/* The thread stands in reap() and has submitted so many requests. */
static void wait_in_reap(uint32_t submitted)
{
    pthread_mutex_lock(&stepped->lock);
    while (!stepped->in_reap || stepped->woken || stepped->submitted < submitted)
        pthread_cond_wait(&stepped->change, &stepped->lock);
    assert_int_equal(stepped->submitted, submitted);
    pthread_mutex_unlock(&stepped->lock);
}

static uint32_t wakes_so_far(void)
{
    uint32_t count;

    pthread_mutex_lock(&stepped->lock);
    count = stepped->wakes;
    pthread_mutex_unlock(&stepped->lock);
    return count;
}

static void allow(uint32_t count)
{
    pthread_mutex_lock(&stepped->lock);
    stepped->allowed += count;
    pthread_cond_broadcast(&stepped->change);
    pthread_mutex_unlock(&stepped->lock);
}

/* --- the thread --- */

struct job {
    struct st_transfer transfer;
    uint32_t done_count;
    strata_status status;
    char sentence[256];
    struct st_mover *mover;
    struct job *then; /* done() submits it; NULL: none */
};

static unsigned char *memory; /* [BLOCKS * BLOCK] */

static void on_done(struct st_transfer *t, strata_status st)
{
    struct job *job = t->owner;

    if (job->then != NULL)
        assert_int_equal(st_mover_submit(job->mover, &job->then->transfer), STRATA_OK);
    pthread_mutex_lock(&stepped->lock);
    job->done_count++;
    job->status = st;
    snprintf(job->sentence, sizeof(job->sentence), "%s", st == STRATA_OK ? "" : strata_last_error());
    pthread_cond_broadcast(&stepped->change);
    pthread_mutex_unlock(&stepped->lock);
}

static void hold(bool on)
{
    pthread_mutex_lock(&stepped->lock);
    stepped->holds = on;
    pthread_cond_broadcast(&stepped->change);
    pthread_mutex_unlock(&stepped->lock);
}

static void on_hold(struct st_transfer *t, strata_status st)
{
    on_done(t, st);
    pthread_mutex_lock(&stepped->lock);
    while (stepped->holds)
        pthread_cond_wait(&stepped->change, &stepped->lock);
    pthread_mutex_unlock(&stepped->lock);
}

static void wait_done(const struct job *job)
{
    pthread_mutex_lock(&stepped->lock);
    while (job->done_count == 0)
        pthread_cond_wait(&stepped->change, &stepped->lock);
    pthread_mutex_unlock(&stepped->lock);
}

static void close_mover(struct st_mover *mover)
{
    st_mover_stop(mover);
    pthread_cond_destroy(&stepped->change);
    pthread_mutex_destroy(&stepped->lock);
    free(stepped);
}

static void start(struct st_mover *mover, struct job *job, enum st_io_op op, uint64_t bytes)
{
    *job =
        (struct job){.transfer = {.op = op, .bytes = bytes, .buf = memory, .done = on_done, .owner = job}, .status = STRATA_OK};
    assert_int_equal(st_mover_submit(mover, &job->transfer), STRATA_OK);
}

/* Of one file on the first drive. */
static uint32_t add_volume(struct st_mover *mover)
{
    static const struct st_volume_file file = {.path = "a/file", .fd = -1};
    struct st_stripe stripe;
    uint32_t volume;

    st_stripe_init(&stripe, 1, NULL, BLOCK);
    assert_int_equal(
        st_mover_add(mover, &(struct st_volume_opts){.stripe = &stripe, .files = &file, .bytes = BLOCKS * BLOCK}, &volume),
        STRATA_OK);
    return volume;
}

/* With one volume. */
static struct st_mover *open_drives(uint32_t drives, uint32_t fail_after)
{
    struct st_mover *mover;
    bool registered;

    stepped = calloc(1, sizeof(*stepped));
    assert_non_null(stepped);
    stepped->fail_after = fail_after;
    pthread_mutex_init(&stepped->lock, NULL);
    pthread_cond_init(&stepped->change, NULL);
    assert_int_equal(
        st_mover_start(&mover,
                       &(struct st_mover_opts){
                           .ops = &stepped_ops, .io = {.queue_depth = DEPTH}, .drive_count = drives, .block_bytes = BLOCK},
                       &registered),
        STRATA_OK);
    assert_int_equal(add_volume(mover), 0);
    return mover;
}

static struct st_mover *open_mover(uint32_t fail_after)
{
    return open_drives(1, fail_after);
}

/* While it waits for completions each transfer into the empty inbox wakes it, and starts though nothing has ended. */
TEST(new_work_wakes_a_thread_that_waits_for_old)
{
    struct st_mover *mover = open_mover(UINT32_MAX);
    struct job jobs[DEPTH];
    uint32_t first = 0;

    for (uint32_t i = 0; i < DEPTH; i++) {
        start(mover, &jobs[i], i % 2 == 0 ? ST_IO_WRITE : ST_IO_READ, BLOCK);
        first = i == 0 ? wakes_so_far() : first; /* it may have been asleep already */
        assert_true(first <= 1);
        assert_int_equal(wakes_so_far(), first + i);
        wait_in_reap(i + 1);
    }
    allow(DEPTH);
    close_mover(mover);
    for (uint32_t i = 0; i < DEPTH; i++)
        assert_int_equal(jobs[i].done_count, 1);
}

/* Once a request has ended, the thread looks for work before it waits again. */
TEST(work_that_comes_while_requests_end_needs_no_wake)
{
    struct st_mover *mover = open_mover(UINT32_MAX);
    struct job jobs[3];
    uint32_t wakes;

    jobs[0] = (struct job){.transfer = {.op = ST_IO_READ, .bytes = BLOCK, .buf = memory, .done = on_hold, .owner = &jobs[0]}};
    assert_int_equal(st_mover_submit(mover, &jobs[0].transfer), STRATA_OK);
    wait_in_reap(1);
    start(mover, &jobs[1], ST_IO_READ, BLOCK);
    wait_in_reap(2);
    wakes = wakes_so_far();
    hold(true);
    allow(1);
    wait_done(&jobs[0]);
    start(mover, &jobs[2], ST_IO_READ, BLOCK);
    assert_int_equal(wakes_so_far(), wakes);
    hold(false);
    wait_in_reap(3);
    allow(2);
    close_mover(mover);
    assert_int_equal(jobs[1].done_count + jobs[2].done_count, 2);
}

static enum st_io_op newest(void)
{
    enum st_io_op op;

    pthread_mutex_lock(&stepped->lock);
    op = stepped->held[stepped->busy - 1]->op;
    pthread_mutex_unlock(&stepped->lock);
    return op;
}

/* With the queue full of one direction, every place that falls free goes to the other one until they are even. */
TEST(neither_direction_starves_the_other)
{
    for (int first = 0; first < 2; first++) {
        const enum st_io_op op = first == 0 ? ST_IO_READ : ST_IO_WRITE, other = first == 0 ? ST_IO_WRITE : ST_IO_READ;
        struct st_mover *mover = open_mover(UINT32_MAX);
        struct job jobs[2];

        start(mover, &jobs[0], op, BLOCKS * BLOCK);
        wait_in_reap(DEPTH);
        start(mover, &jobs[1], other, BLOCKS * BLOCK);
        wait_in_reap(DEPTH); /* no place is free */
        assert_int_equal(newest(), op);
        allow(1);
        wait_in_reap(DEPTH + 1);
        assert_int_equal(newest(), other);
        allow(2 * BLOCKS);
        wait_done(&jobs[0]);
        wait_done(&jobs[1]);
        close_mover(mover);
    }
}

/* Bytes of a request that fails never moved; what comes after it is not issued. */
TEST(only_what_ended_well_is_counted)
{
    static const enum st_io_op ops[] = {ST_IO_READ, ST_IO_WRITE};

    for (uint32_t well = 0; well < 4; well++)
        for (size_t o = 0; o < 2; o++) {
            struct st_mover *mover = open_mover(well);
            struct st_mover_counters all, file;
            struct job job;

            allow(BLOCKS);
            start(mover, &job, ops[o], 4 * BLOCK);
            wait_done(&job);
            st_mover_counters(mover, &all);
            st_mover_drive_counters(mover, 0, &file);
            close_mover(mover);
            assert_int_equal(job.status, STRATA_E_IO);
            assert_int_equal(all.bytes_read, ops[o] == ST_IO_READ ? well * BLOCK : 0);
            assert_int_equal(all.bytes_written, ops[o] == ST_IO_WRITE ? well * BLOCK : 0);
            assert_int_equal(file.bytes_read, all.bytes_read);
            assert_int_equal(file.bytes_written, all.bytes_written);
        }
}

static void refuse_next(void)
{
    pthread_mutex_lock(&stepped->lock);
    stepped->refuse = 1;
    pthread_mutex_unlock(&stepped->lock);
}

/* What the method says of itself, not what a drive would have said; the next transfer is none the worse. */
TEST(requests_that_are_not_taken_say_why)
{
    struct st_mover *mover = open_mover(UINT32_MAX);
    struct job job;

    refuse_next();
    start(mover, &job, ST_IO_WRITE, 2 * BLOCK);
    wait_done(&job);
    assert_int_equal(job.status, STRATA_E_NOMEM);
    assert_non_null(strstr(job.sentence, ": no memory for a step"));
    allow(2);
    start(mover, &job, ST_IO_WRITE, 2 * BLOCK);
    wait_done(&job);
    assert_int_equal(job.status, STRATA_OK);
    close_mover(mover);
}

/* A queue that has run empty is not busy: its time stands still until there is work again. */
TEST(time_stands_still_while_nothing_is_in_flight)
{
    struct st_mover *mover = open_mover(UINT32_MAX);
    struct st_mover_counters before, after;
    struct job job;

    for (uint32_t round = 0; round < 2; round++) {
        allow(1);
        start(mover, &job, round == 0 ? ST_IO_READ : ST_IO_WRITE, BLOCK);
        wait_done(&job);
        for (uint32_t of_file = 0; of_file < 2; of_file++) {
            struct st_mover_counters *const reads[] = {&before, &after};

            for (size_t i = 0; i < 2; i++)
                if (of_file)
                    st_mover_drive_counters(mover, 0, reads[i]);
                else
                    st_mover_counters(mover, reads[i]);
            assert_true(after.busy_read_ns == before.busy_read_ns);
            assert_true(after.busy_write_ns == before.busy_write_ns);
        }
    }
    close_mover(mover);
}

static void read_counters(struct st_mover *mover, bool of_drive, struct st_mover_counters *out)
{
    if (of_drive)
        st_mover_drive_counters(mover, 0, out);
    else
        st_mover_counters(mover, out);
}

/* The time of what is in flight counts as it passes, in its own direction: never more than has passed, and never less later. */
TEST(time_of_what_is_in_flight_counts)
{
    for (uint32_t round = 0; round < 4; round++) {
        const enum st_io_op op = round % 2 == 0 ? ST_IO_READ : ST_IO_WRITE;
        struct st_mover *mover = open_mover(UINT32_MAX);
        struct st_mover_counters now[3];
        const uint64_t start_ns = st_clock_ns();
        struct job job;

        start(mover, &job, op, BLOCK);
        wait_in_reap(1);
        for (uint32_t i = 0; i < 3; i++) {
            uint64_t busy_ns, passed_ns;

            if (i == 2) {
                allow(1);
                wait_done(&job);
            }
            read_counters(mover, round >= 2, &now[i]);
            passed_ns = st_clock_ns() - start_ns;
            busy_ns = op == ST_IO_READ ? now[i].busy_read_ns : now[i].busy_write_ns;
            assert_in_range(busy_ns, 1, passed_ns);
            assert_int_equal(op == ST_IO_READ ? now[i].busy_write_ns : now[i].busy_read_ns, 0);
            if (i > 0)
                assert_true(now[i].busy_read_ns + now[i].busy_write_ns >= now[i - 1].busy_read_ns + now[i - 1].busy_write_ns);
        }
        close_mover(mover);
    }
}

/* Also where it does so outside reap(): what is in flight need not end first. */
TEST(what_done_submits_is_started)
{
    struct st_mover *mover = open_mover(UINT32_MAX);
    struct job jobs[3];

    start(mover, &jobs[0], ST_IO_READ, BLOCK);
    wait_in_reap(1);
    refuse_next();
    jobs[2] = (struct job){.transfer = {.op = ST_IO_WRITE, .bytes = BLOCK, .buf = memory, .done = on_done, .owner = &jobs[2]}};
    jobs[1] = (struct job){.transfer = {.op = ST_IO_WRITE, .bytes = BLOCK, .buf = memory, .done = on_done, .owner = &jobs[1]},
                           .mover = mover,
                           .then = &jobs[2]};
    assert_int_equal(st_mover_submit(mover, &jobs[1].transfer), STRATA_OK);
    wait_done(&jobs[1]);
    assert_int_equal(jobs[1].status, STRATA_E_NOMEM);
    wait_in_reap(2);
    allow(2);
    wait_done(&jobs[2]);
    assert_int_equal(jobs[2].status, STRATA_OK);
    close_mover(mover);
    assert_int_equal(jobs[0].done_count, 1);
}

/* However many volumes lie on it: the other drive's places stay free. */
TEST(volumes_on_one_drive_share_its_queue)
{
    struct st_mover *mover = open_drives(DRIVES, UINT32_MAX);
    const uint32_t other = add_volume(mover);
    struct job jobs[2];

    start(mover, &jobs[0], ST_IO_READ, 2 * BLOCK);
    wait_in_reap(2);
    jobs[1] = (struct job){.transfer = {.op = ST_IO_WRITE, .volume = other, .bytes = BLOCKS * BLOCK, .buf = memory}};
    jobs[1].transfer.done = on_done;
    jobs[1].transfer.owner = &jobs[1];
    assert_int_equal(st_mover_submit(mover, &jobs[1].transfer), STRATA_OK);
    wait_in_reap(DEPTH);
    allow(1);
    wait_in_reap(DEPTH + 1);
    allow(2 * BLOCKS);
    wait_done(&jobs[0]);
    wait_done(&jobs[1]);
    st_mover_remove(mover, other);
    assert_int_equal(stepped->files, 1);
    close_mover(mover);
}

/* With the queue full of writes the next place that falls free is the sync's; a volume added meanwhile does not wait for it. */
TEST(a_sync_goes_before_what_waits)
{
    struct st_mover *mover = open_mover(UINT32_MAX);
    struct st_mover_counters counters;
    struct job jobs[2];

    start(mover, &jobs[0], ST_IO_WRITE, BLOCKS * BLOCK);
    wait_in_reap(DEPTH);
    jobs[1] = (struct job){.transfer = {.op = ST_IO_SYNC, .done = on_done, .owner = &jobs[1]}};
    assert_int_equal(st_mover_submit(mover, &jobs[1].transfer), STRATA_OK);
    wait_in_reap(DEPTH);
    assert_int_equal(add_volume(mover), 1);
    allow(1);
    wait_in_reap(DEPTH + 1);
    assert_int_equal(newest(), ST_IO_SYNC);
    allow(2 * BLOCKS);
    wait_done(&jobs[0]);
    wait_done(&jobs[1]);
    st_mover_counters(mover, &counters);
    assert_int_equal(counters.bytes_written, BLOCKS * BLOCK);
    assert_int_equal(counters.bytes_read, 0);
    close_mover(mover);
}

/* Also where offset and length add up to a small number. */
TEST(what_lies_outside_a_volume_is_refused)
{
    static const struct {
        uint64_t offset, bytes;
    } rows[] = {
        {BLOCKS * BLOCK, BLOCK},           {0, (BLOCKS + 1) * BLOCK},
        {(BLOCKS - 1) * BLOCK, 2 * BLOCK}, {UINT64_MAX - 4095, BLOCK},
        {UINT64_MAX - 4095, 2 * BLOCK},    {2 * BLOCK, UINT64_MAX - 4095},
        {UINT64_MAX - 8191, 8 * 4096},     {UINT64_C(1) << 63, UINT64_C(1) << 63},
    };
    struct st_mover *mover = open_mover(UINT32_MAX);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (uint32_t k = 0; k < 2; k++) {
            struct job job = {.transfer = {.op = k == 0 ? ST_IO_READ : ST_IO_WRITE,
                                           .offset = rows[i].offset,
                                           .bytes = rows[i].bytes,
                                           .buf = memory,
                                           .done = on_done}};

            job.transfer.owner = &job;
            assert_int_equal(st_mover_submit(mover, &job.transfer), STRATA_E_INVAL);
            assert_int_equal(job.done_count, 0);
        }
    close_mover(mover);
}

static int make_memory(void **state)
{
    (void)state;
    memory = aligned_alloc(ST_MOVER_ALIGN, BLOCKS * BLOCK);
    return memory == NULL;
}

static int free_memory(void **state)
{
    (void)state;
    free(memory);
    return 0;
}

TEST_GROUP(make_memory, free_memory);
