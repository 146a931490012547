/* tests/nvme/test_patience.c - drives that do not answer: what is said of it, and how what waits for them ends.
 *
 * The fake method answers after hours here, unless a request is cancelled. */
#include "core/base/fault.h"
#include "nvme/mover/mover.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BLOCK    4096u
#define BLOCKS   8u
#define DRIVES   2u
#define MS       UINT64_C(1000000)
#define HOURS_US UINT32_MAX
#define NAMED    "no answer for "

static _Alignas(BLOCK) unsigned char memory[BLOCKS * BLOCK];

struct job {
    struct st_transfer transfer;
    uint32_t done_count;
    strata_status status;
    char sentence[1024];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;

static void on_done(struct st_transfer *t, strata_status st)
{
    struct job *job = t->owner;

    pthread_mutex_lock(&lock);
    job->done_count++;
    job->status = st;
    snprintf(job->sentence, sizeof(job->sentence), "%s", st == STRATA_OK ? "" : strata_last_error());
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

static void start(struct st_mover *mover, struct job *job, uint32_t volume, enum st_io_op op, uint64_t offset)
{
    *job = (struct job){.transfer = {.op = op,
                                     .volume = volume,
                                     .offset = op == ST_IO_SYNC ? 0 : offset,
                                     .bytes = op == ST_IO_SYNC ? 0 : 2 * BLOCK,
                                     .buf = op == ST_IO_SYNC ? NULL : memory,
                                     .done = on_done,
                                     .owner = job,
                                     .what = "read_state"}};
    assert_int_equal(st_mover_submit(mover, &job->transfer), STRATA_OK);
}

static void wait_done(const struct job *job)
{
    pthread_mutex_lock(&lock);
    while (job->done_count == 0)
        pthread_cond_wait(&change, &lock);
    pthread_mutex_unlock(&lock);
}

/* A volume on each drive. */
static struct st_mover *open_deep(const struct st_io_ops *ops, uint32_t latency_us, struct st_patience patience, uint32_t depth)
{
    static const struct st_volume_file files[DRIVES] = {{.path = "first", .fd = -1}, {.path = "second", .fd = -1, .drive = 1}};
    struct st_stripe stripe;
    struct st_mover *mover;
    bool registered;

    st_stripe_init(&stripe, 1, NULL, BLOCK);
    assert_int_equal(st_mover_start(&mover,
                                    &(struct st_mover_opts){.ops = ops,
                                                            .io = {.queue_depth = depth, .fake_latency_us = latency_us},
                                                            .drive_count = DRIVES,
                                                            .block_bytes = BLOCK,
                                                            .patience = patience},
                                    &registered),
                     STRATA_OK);
    for (uint32_t i = 0; i < DRIVES; i++) {
        uint32_t volume;

        assert_int_equal(st_mover_add(mover,
                                      &(struct st_volume_opts){.stripe = &stripe, .files = &files[i], .bytes = BLOCKS * BLOCK},
                                      &volume),
                         STRATA_OK);
        assert_int_equal(volume, i);
    }
    return mover;
}

static struct st_mover *open_mover(const struct st_io_ops *ops, uint32_t latency_us, struct st_patience patience)
{
    return open_deep(ops, latency_us, patience, 1);
}

static const struct st_io_ops *fake(void)
{
    return st_io_find("fake", NULL);
}

/* The one that hangs, those that wait behind it, and those that come later, syncs included. */
TEST(a_drive_that_hangs_is_given_up)
{
    struct st_mover *mover;
    struct job jobs[3], late;

    kept_log_begin(ST_LOG_WARN);
    mover =
        open_mover(fake(), HOURS_US, (struct st_patience){.report_ns = 4 * MS, .repeat_ns = 10000 * MS, .deadline_ns = 40 * MS});
    for (uint32_t i = 0; i < 3; i++)
        start(mover, &jobs[i], 0, ST_IO_READ, i * BLOCK);
    for (uint32_t i = 0; i < 3; i++)
        wait_done(&jobs[i]);
    start(mover, &late, 0, ST_IO_WRITE, 0);
    wait_done(&late);
    assert_int_equal(late.status, STRATA_E_IO);
    start(mover, &late, 0, ST_IO_SYNC, 0);
    wait_done(&late);
    assert_int_equal(late.status, STRATA_E_IO);
    assert_string_equal(late.sentence, "first: sync: no answer for 0.04 s, so the drive was given up (strata.io_deadline)");
    st_mover_stop(mover);
    kept_log_end();
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(jobs[i].status, STRATA_E_IO);
        assert_int_equal(jobs[i].done_count, 1);
    }
    assert_string_equal(jobs[1].sentence,
                        "first: read of 4096 bytes at offset 4096: no answer for 0.04 s, so the drive was given up "
                        "(strata.io_deadline)");
    assert_int_equal(kept_log.count, 1); /* the warning, once */
    assert_non_null(strstr(kept_log.last, NAMED));
    assert_non_null(strstr(kept_log.last, "s to a read of 4.00 KiB at offset 0 in first (read_state); requests outstanding: 1"));
}

/* A request that the kernel keeps. */
static struct {
    struct st_io *io;
    struct st_io_req *req;
    uint32_t cancels, hangs;
    char sentence[1024];
} kept;

static void keep(struct st_io *io, struct st_io_req *req)
{
    kept.io = io;
    kept.req = req;
    kept.cancels++;
}

static void on_hang(void *ctx, const char *sentence)
{
    assert_ptr_equal(ctx, &kept);
    kept.hangs++;
    snprintf(kept.sentence, sizeof(kept.sentence), "%s", sentence);
    fake()->cancel(kept.io, kept.req);
}

static strata_status submit_and_note(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    kept.req = reqs[0];
    return fake()->submit(io, reqs, count);
}

/* Enough has been said. */
static strata_status cancel_after_three(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    if (kept_log.count == 3 && kept.req != NULL)
        fake()->cancel(io, kept.req);
    if (kept_log.count == 3)
        kept.req = NULL;
    return fake()->reap_until(io, min_count, deadline_ns);
}

TEST(without_a_deadline_it_is_said_again_and_again)
{
    struct st_io_ops ops = *fake();
    struct st_mover *mover;
    struct job job;

    ops.submit = submit_and_note;
    ops.reap_until = cancel_after_three;
    kept_log_begin(ST_LOG_WARN);
    mover = open_mover(&ops, HOURS_US, (struct st_patience){.report_ns = 4 * MS, .repeat_ns = 4 * MS});
    start(mover, &job, 0, ST_IO_SYNC, 0);
    wait_done(&job);
    st_mover_stop(mover);
    kept_log_end();
    assert_int_equal(job.status, STRATA_E_CANCELLED);
    assert_int_equal(kept_log.count, 3);
}

TEST(what_cannot_be_cancelled_is_told)
{
    struct st_io_ops stubborn = *fake();
    struct st_mover *mover;
    struct job job;

    stubborn.cancel = keep;
    kept.cancels = kept.hangs = 0;
    kept_log_begin(ST_LOG_ERROR);
    mover = open_mover(&stubborn, HOURS_US, (struct st_patience){.deadline_ns = 8 * MS, .hangs = on_hang, .ctx = &kept});
    start(mover, &job, 0, ST_IO_SYNC, 0);
    wait_done(&job);
    st_mover_stop(mover);
    kept_log_end();
    assert_int_equal(kept.cancels, 1);
    assert_int_equal(kept.hangs, 1);
    assert_non_null(strstr(kept.sentence, "s to a sync in first (read_state)"));
    assert_int_equal(job.status, STRATA_E_IO);
    assert_int_equal(kept_log.count, 0);
}

static void cancel_and_count(struct st_io *io, struct st_io_req *req)
{
    kept.cancels++;
    fake()->cancel(io, req);
}

/* It is asked itself, and given up by its own deadline. */
TEST(the_other_drive_goes_on)
{
    struct st_io_ops ops = *fake();
    struct st_mover *mover;
    struct job hung, fine;

    ops.cancel = cancel_and_count;
    kept.cancels = 0;
    kept_log_begin(ST_LOG_ERROR);
    mover = open_mover(&ops, HOURS_US, (struct st_patience){.deadline_ns = 8 * MS});
    start(mover, &hung, 0, ST_IO_READ, 0);
    wait_done(&hung);
    start(mover, &fine, 1, ST_IO_READ, 0);
    wait_done(&fine);
    st_mover_stop(mover);
    kept_log_end();
    assert_int_equal(kept.cancels, 2);
    assert_non_null(strstr(hung.sentence, "first: read of 4096 bytes at offset 0: "));
    assert_non_null(strstr(fine.sentence, "second: read of 4096 bytes at offset 0: "));
}

/* Of a volume dealt out over both drives: the file whose drive it is, in the warning and in the end. */
TEST(the_file_that_is_not_answered_is_named)
{
    static const struct st_volume_file files[DRIVES] = {{.path = "here", .fd = -1}, {.path = "there", .fd = -1, .drive = 1}};
    struct st_patience patience = {.report_ns = 4 * MS, .repeat_ns = 10000 * MS, .deadline_ns = 40 * MS};
    struct st_stripe stripe;

    st_stripe_init(&stripe, DRIVES, NULL, 2 * BLOCK);
    for (uint32_t d = 0; d < DRIVES; d++) {
        struct st_mover *mover;
        uint32_t volume;
        struct job job;

        kept_log_begin(ST_LOG_WARN);
        mover = open_mover(fake(), HOURS_US, patience);
        assert_int_equal(
            st_mover_add(mover, &(struct st_volume_opts){.stripe = &stripe, .files = files, .bytes = BLOCKS * BLOCK}, &volume),
            STRATA_OK);
        start(mover, &job, volume, ST_IO_READ, (4 + 2 * d) * BLOCK); /* the second unit of the file */
        wait_done(&job);
        st_mover_stop(mover);
        kept_log_end();
        assert_non_null(strstr(kept_log.last, d == 0 ? " at offset 8192 in here (" : " at offset 8192 in there ("));
        assert_non_null(strstr(job.sentence, d == 0 ? "here: read of 4096 bytes at offset 8192: no answer"
                                                    : "there: read of 4096 bytes at offset 8192: no answer"));
    }
}

/* The clock of the mover goes on by `pace` seconds with each look at the drive, and once by an hour, for which the process was
 * stopped. */
#define STOPPED_AT 10u

static uint64_t second, pace, looks, warned_at[8], cancelled_at;

static uint64_t invented_ns(void)
{
    return second * 1000 * MS;
}

static strata_status look_once(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    (void)min_count;
    (void)deadline_ns;
    if (kept_log.count > 0 && kept_log.count < 8 && warned_at[kept_log.count] == 0)
        warned_at[kept_log.count] = looks;
    looks++;
    second += looks == STOPPED_AT ? 3600 : pace;
    return fake()->reap_until(io, 0, 1);
}

static void cancel_and_note(struct st_io *io, struct st_io_req *req)
{
    cancelled_at = looks;
    fake()->cancel(io, req);
}

/* An hour counts as two ticks; looks that are two ticks apart, of a thread that had other things to do, count whole. */
TEST(time_of_a_stopped_process_does_not_count)
{
    struct st_io_ops ops = *fake();

    ops.reap_until = look_once;
    ops.cancel = cancel_and_note;
    for (pace = 1; pace <= 2; pace++) {
        struct st_mover *mover;
        struct job job;

        second = looks = cancelled_at = 0;
        memset(warned_at, 0, sizeof(warned_at));
        kept_log_begin(ST_LOG_WARN);
        mover = open_mover(&ops, HOURS_US, (struct st_patience){.deadline_ns = ST_PATIENCE_DEADLINE_NS, .now_ns = invented_ns});
        start(mover, &job, 0, ST_IO_SYNC, 0);
        wait_done(&job);
        st_mover_stop(mover);
        kept_log_end();
        assert_int_equal(job.status, STRATA_E_IO);
        assert_in_range(pace * warned_at[1], 28, 31); /* after 30 s */
        assert_int_equal(pace * (warned_at[2] - warned_at[1]), 60);
        assert_int_equal(pace * (warned_at[3] - warned_at[2]), 60);
        assert_in_range(pace * cancelled_at, 296, 301);
    }
}

#define DEEP 16u

static struct {
    struct st_io *io;
    struct st_io_req *reqs[DEEP];
    uint32_t count, submitted;
} all_kept;

static void keep_all(struct st_io *io, struct st_io_req *req)
{
    all_kept.io = io;
    all_kept.reqs[all_kept.count++] = req;
}

static void cancel_all(void *ctx, const char *sentence)
{
    (void)ctx;
    (void)sentence;
    for (uint32_t i = 0; i < all_kept.count; i++)
        fake()->cancel(all_kept.io, all_kept.reqs[i]);
}

static strata_status submit_and_count(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    all_kept.submitted += count;
    return fake()->submit(io, reqs, count);
}

/* Time goes on when all are there. */
static strata_status look_at_all(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    if (all_kept.submitted < DEEP)
        return fake()->reap_until(io, min_count, deadline_ns);
    second++;
    return fake()->reap_until(io, 0, 1);
}

/* Of many that hang some are listed, before what ends it. */
TEST(of_many_that_hang_some_are_listed)
{
    struct st_io_ops stubborn = *fake();
    struct job jobs[DEEP / 2];
    struct st_mover *mover;

    stubborn.submit = submit_and_count;
    stubborn.reap_until = look_at_all;
    stubborn.cancel = keep_all;
    kept_log_begin(ST_LOG_WARN);
    mover = open_deep(
        &stubborn, HOURS_US,
        (struct st_patience){
            .report_ns = UINT64_MAX / 2, .deadline_ns = ST_PATIENCE_DEADLINE_NS, .hangs = cancel_all, .now_ns = invented_ns},
        DEEP);
    for (uint32_t i = 0; i < DEEP / 2; i++) /* two requests each */
        start(mover, &jobs[i], 0, ST_IO_READ, i % 4 * BLOCK);
    for (uint32_t i = 0; i < DEEP / 2; i++)
        wait_done(&jobs[i]);
    st_mover_stop(mover);
    kept_log_end();
    assert_int_equal(all_kept.count, DEEP);
    assert_int_equal(kept_log.count, 8);
}

/* Ends the request when it has been warned of, and any other one after twenty looks. */
static strata_status answer_late(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    (void)min_count;
    (void)deadline_ns;
    second++;
    looks++;
    if (kept.req != NULL && (kept_log.count == 1 || (kept_log.count > 1 && looks > 20))) {
        fake()->cancel(io, kept.req);
        kept.req = NULL;
        looks = 0;
    }
    return fake()->reap_until(io, 0, 1);
}

/* That the drive answers again is said once, however many requests follow. */
TEST(an_answer_after_a_warning_is_said_once)
{
    struct st_io_ops ops = *fake();
    struct st_mover *mover;
    struct job job;

    ops.submit = submit_and_note;
    ops.reap_until = answer_late;
    kept_log_begin(ST_LOG_NOTICE);
    mover = open_mover(&ops, HOURS_US, (struct st_patience){.now_ns = invented_ns});
    for (uint32_t i = 0; i < 3; i++) {
        start(mover, &job, 0, ST_IO_SYNC, 0);
        wait_done(&job);
        assert_int_equal(job.status, STRATA_E_CANCELLED);
    }
    st_mover_stop(mover);
    kept_log_end();
    assert_int_equal(kept_log.count, 2);
    assert_non_null(strstr(kept_log.last, "the drive answers again"));
}

static struct {
    struct st_io_req *reqs[2]; /* NULL: answered */
    uint32_t count;
    bool said;        /* while the second one waited */
    atomic_bool late; /* the second one may come */
} two;

static strata_status submit_two(struct st_io *io, struct st_io_req **reqs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        two.reqs[two.count++] = reqs[i];
    return fake()->submit(io, reqs, count);
}

/* The second one comes 20 s after the first, which is answered once it is warned of. */
static strata_status answer_the_first(struct st_io *io, uint32_t min_count, uint64_t deadline_ns)
{
    (void)min_count;
    (void)deadline_ns;
    if (two.count == 2 || looks < 20) {
        second++;
        looks++;
    }
    atomic_store(&two.late, looks >= 20);
    if (two.count == 2 && two.reqs[0] != NULL && kept_log.count == 1) {
        fake()->cancel(io, two.reqs[0]);
        two.reqs[0] = NULL;
        looks = 0;
    } else if (two.count == 2 && two.reqs[0] == NULL && two.reqs[1] != NULL && looks == 5) {
        two.said = kept_log.count == 2;
        fake()->cancel(io, two.reqs[1]);
        two.reqs[1] = NULL;
    }
    return fake()->reap_until(io, 0, 1);
}

/* With and without a deadline. */
TEST(an_answer_is_said_while_others_wait)
{
    static const uint64_t deadlines[] = {0, ST_PATIENCE_DEADLINE_NS};

    for (size_t i = 0; i < sizeof(deadlines) / sizeof(deadlines[0]); i++) {
        struct st_io_ops ops = *fake();
        struct st_mover *mover;
        struct job jobs[2];

        two.reqs[0] = two.reqs[1] = NULL;
        two.count = 0;
        two.said = false;
        atomic_store(&two.late, false);
        looks = 0;
        ops.submit = submit_two;
        ops.reap_until = answer_the_first;
        kept_log_begin(ST_LOG_NOTICE);
        mover = open_mover(&ops, HOURS_US, (struct st_patience){.deadline_ns = deadlines[i], .now_ns = invented_ns});
        start(mover, &jobs[0], 0, ST_IO_SYNC, 0);
        while (!atomic_load(&two.late))
            usleep(1000);
        start(mover, &jobs[1], 0, ST_IO_SYNC, 0);
        for (int j = 0; j < 2; j++)
            wait_done(&jobs[j]);
        st_mover_stop(mover);
        kept_log_end();
        assert_true(two.said);
        assert_int_equal(kept_log.count, 2);
        assert_non_null(strstr(kept_log.last, "the drive answers again"));
    }
}

/* Each look is one after a tick. */
static uint64_t racing_ns(void)
{
    static uint64_t now_ns;

    return now_ns += 100 * MS;
}

/* What ends because it was cancelled is no answer. */
TEST(a_drive_that_was_given_up_does_not_answer)
{
    struct st_mover *mover;
    struct job job;

    kept_log_begin(ST_LOG_NOTICE);
    mover = open_mover(
        fake(), HOURS_US,
        (struct st_patience){.report_ns = 4 * MS, .repeat_ns = 10000 * MS, .deadline_ns = 40 * MS, .now_ns = racing_ns});
    for (uint32_t i = 0; i < 3; i++) {
        start(mover, &job, 0, ST_IO_READ, 0);
        wait_done(&job);
        assert_int_equal(job.status, STRATA_E_IO);
    }
    st_mover_stop(mover);
    kept_log_end();
    assert_int_equal(kept_log.count, 1);
    assert_non_null(strstr(kept_log.last, NAMED));
}

/* Requests that are answered soon are no news, however many. */
TEST(answers_are_no_news)
{
    struct st_mover *mover;
    struct job job;

    kept_log_begin(ST_LOG_DEBUG);
    mover = open_mover(fake(), 0, (struct st_patience){.deadline_ns = 10000 * MS});
    for (uint32_t i = 0; i < 100; i++) {
        start(mover, &job, i % DRIVES, i % 3 == 0 ? ST_IO_WRITE : ST_IO_READ, i % 4 * BLOCK);
        wait_done(&job);
        assert_int_equal(job.status, STRATA_OK);
    }
    st_mover_stop(mover);
    kept_log_end();
    assert_int_equal(kept_log.count, 0);
}
