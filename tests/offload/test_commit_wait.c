/* What is said of a checkpoint while a run waits for it. */
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "offload/checkpoint/commit.h"
#include "tests/common/assert_status.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/offload/commit_fixture.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define HOUR_NS (UINT64_C(3600) * 1000000000)

static _Atomic uint64_t ago_ns; /* what a clock shows that is so slow */

uint64_t __real_st_clock_ns(void);
uint64_t __wrap_st_clock_ns(void);
uint64_t __wrap_st_clock_ns(void)
{
    return __real_st_clock_ns() - atomic_load(&ago_ns);
}

static struct st_committer *started(struct st_committer_opts opts)
{
    struct st_committer *c = NULL;

    opts.save = scratch_path("save");
    opts.swap = fixture_swap;
    opts.keep = 2;
    assert_ok(st_committer_start(&c, &opts));
    return c;
}

static sem_t said;
static char what_was_said[512];

static void hear(void *ctx, enum st_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    snprintf(what_was_said, sizeof(what_was_said), "%s", line);
    sem_post(&said);
}

/* As a file system that hangs, until it has been said twice, or for a minute. */
static strata_status wait_until_said(void *ctx, const char *dir)
{
    struct timespec end;
    int times = 0;

    (void)ctx;
    (void)dir;
    assert_int_equal(clock_gettime(CLOCK_REALTIME, &end), 0);
    end.tv_sec += 60;
    while (times < 2)
        if (sem_timedwait(&said, &end) == 0)
            times++;
        else if (errno != EINTR)
            return st_error(STRATA_E_IO, "it was said %d times", times);
    return STRATA_OK;
}

TEST_SETUP(a_wait_says_where_the_job_is, fixture_setup, fixture_teardown)
{
    struct st_committer *c = started((struct st_committer_opts){.model = wait_until_said, .report_ns = 20000000});
    struct st_commit job = fixture_job(1);
    struct st_commit_report report;

    assert_int_equal(sem_init(&said, 0, 0), 0);
    st_log_configure(hear, NULL, ST_LOG_WARN);
    assert_ok(st_committer_submit(c, &job));
    st_committer_wait_for(c, UINT64_C(20000000000)); /* the job ends long before: when it has been said twice */
    assert_true(st_committer_reported(c, &report));
    assert_ok(report.status);
    st_log_configure(NULL, NULL, ST_LOG_INFO);
    assert_non_null(strstr(what_was_said, "/save: the checkpoint is not complete yet: "));
    st_committer_stop(c);
    sem_destroy(&said);
}

static sem_t released;

static strata_status wait_until_released(void *ctx, const char *dir)
{
    const bool *waits = ctx;

    (void)dir;
    while (*waits && sem_wait(&released) != 0)
        assert_int_equal(errno, EINTR);
    return STRATA_OK;
}

/* Half a minute of a later wait goes by before anything is said, however long ago the last wait was. */
TEST_SETUP(a_wait_long_after_another_is_silent_at_first, fixture_setup, fixture_teardown)
{
    bool waits = false;
    struct st_committer *c = started((struct st_committer_opts){.model = wait_until_released, .ctx = &waits});
    struct st_commit job = fixture_job(1);
    struct st_commit_report report;

    assert_int_equal(sem_init(&released, 0, 0), 0);
    assert_ok(st_committer_submit(c, &job));
    while (!st_committer_reported(c, &report))
        (void)sched_yield();
    assert_ok(report.status);
    atomic_store(&ago_ns, HOUR_NS);
    st_committer_wait(c);
    atomic_store(&ago_ns, 0);

    waits = true;
    job = fixture_job(2);
    kept_log_begin(ST_LOG_WARN);
    assert_ok(st_committer_submit(c, &job));
    st_committer_wait_for(c, 1000000);
    sem_post(&released);
    st_committer_wait(c);
    kept_log_end();
    assert_int_equal(kept_log.count, 0);
    assert_true(st_committer_reported(c, &report));
    assert_ok(report.status);
    st_committer_stop(c);
    sem_destroy(&released);
}
