/* tests/offload/test_comm_lane.c - exchanges in order on a thread of their own. */
#include "offload/comm/comm.h"
#include "offload/comm/comm_lane.h"
#include "tests/common/assert_status.h"
#include "tests/common/fault_walk.h"
#include "tests/common/test.h"
#include "tests/offload/comm_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define JOBS 200u

struct pass {
    struct st_comm_job job;
    struct st_comm_part out, in;
    struct st_comm_peer peers[2];
    uint32_t send, recv;
    strata_status status;
    char error[256];
    struct pass *after; /* submitted by this one's done(); NULL: none */
    struct st_comm_lane *lane;
    uint32_t *ended, order; /* how many of the lane had ended before */
};

static void pass_done(struct st_comm_job *job, strata_status st)
{
    struct pass *p = job->ctx;

    p->status = st;
    p->order = (*p->ended)++;
    snprintf(p->error, sizeof(p->error), "%s", st == STRATA_OK ? "" : strata_last_error());
    if (p->after != NULL)
        st_comm_lane_submit(p->lane, &p->after->job);
}

/* Every other job is submitted by its predecessor's done(). */
static void prepare(struct pass *passes, struct st_comm_lane *lane, const struct st_comm *comm, uint32_t *ended)
{
    const uint32_t other = 1 - comm->world.rank;

    memset(passes, 0, JOBS * sizeof(*passes));
    for (uint32_t i = 0; i < JOBS; i++) {
        struct pass *p = &passes[i];

        p->send = i * 2 + comm->world.rank;
        p->out = (struct st_comm_part){.data = &p->send, .bytes = sizeof(p->send)};
        p->in = (struct st_comm_part){.data = &p->recv, .bytes = sizeof(p->recv)};
        p->peers[other] = (struct st_comm_peer){.send = &p->out, .recv = &p->in, .send_count = 1, .recv_count = 1};
        p->job = (struct st_comm_job){.peers = p->peers, .what = "gather_weight of page 7", .done = pass_done, .ctx = p};
        p->lane = lane;
        p->ended = ended;
    }
}

struct lanes {
    struct pass passes[2][JOBS];
    uint32_t ended[2];
    bool chained;   /* jobs 1.. are submitted by done() */
    bool one_sided; /* rank 1 submits half of the jobs, and closes */
    /* Not NULL: rank 0 aborts before it closes; rank 1 comes when it has. */
    pthread_barrier_t *given_up;
};

static strata_status run_lane(struct st_comm *comm, struct cf_world *world)
{
    struct lanes *lanes = world->ctx;
    const uint32_t rank = comm->world.rank, count = lanes->one_sided && rank == 1 ? JOBS / 2 : JOBS;
    struct pass *passes = lanes->passes[rank];
    struct st_comm_lane *lane;
    strata_status st = st_comm_lane_open(&lane, comm);

    if (st != STRATA_OK)
        return st;
    prepare(passes, lane, comm, &lanes->ended[rank]);
    if (lanes->given_up != NULL && rank == 1)
        pthread_barrier_wait(lanes->given_up);
    for (uint32_t i = 0; lanes->chained && i + 1 < count; i++)
        passes[i].after = &passes[i + 1];
    for (uint32_t i = 0; i < (lanes->chained ? 1 : count); i++)
        st_comm_lane_submit(lane, &passes[i].job);
    if (lanes->given_up != NULL && rank == 0)
        st_comm_abort(comm, "enough");
    st_comm_lane_close(lane);
    if (lanes->given_up != NULL && rank == 0)
        pthread_barrier_wait(lanes->given_up);
    return STRATA_OK;
}

static void assert_passed(const struct lanes *lanes, uint32_t rank, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        const struct pass *p = &lanes->passes[rank][i];

        assert_int_equal(p->status, STRATA_OK);
        assert_int_equal(p->order, i);
        assert_int_equal(p->recv, i * 2 + 1 - rank);
        assert_true(p->job.start_ns > 0 && p->job.end_ns >= p->job.start_ns);
        assert_true(i == 0 || p->job.start_ns >= lanes->passes[rank][i - 1].job.end_ns);
    }
}

TEST(jobs_are_done_in_order)
{
    static struct lanes lanes;
    struct cf_world world = {.kind = "threads", .ranks = 2, .body = run_lane, .ctx = &lanes};

    for (int chained = 0; chained < 2; chained++) {
        memset(&lanes, 0, sizeof(lanes));
        lanes.chained = chained;
        cf_run(&world);
        cf_assert_ok(&world);
        assert_passed(&lanes, 0, 0, JOBS);
        assert_passed(&lanes, 1, 0, JOBS);
    }
}

/* Whatever was submitted ends, once each, also when the other rank is gone. */
TEST(all_jobs_end_when_a_rank_is_gone)
{
    static struct lanes lanes;
    struct cf_world world = {.kind = "threads", .ranks = 2, .body = run_lane, .ctx = &lanes};

    memset(&lanes, 0, sizeof(lanes));
    lanes.one_sided = true;
    cf_run(&world);
    assert_passed(&lanes, 0, 0, JOBS / 2);
    assert_passed(&lanes, 1, 0, JOBS / 2);
    assert_int_equal(lanes.ended[0], JOBS);
    for (uint32_t i = JOBS / 2; i < JOBS; i++) {
        assert_int_equal(lanes.passes[0][i].status, STRATA_E_IO);
        assert_string_equal(lanes.passes[0][i].error, "rank 1 is gone (during gather_weight of page 7): its own output says why");
    }
}

TEST(closing_after_an_abort_waits_for_no_rank)
{
    static struct lanes lanes;
    struct cf_world world = {.kind = "threads", .ranks = 2, .body = run_lane, .ctx = &lanes};
    pthread_barrier_t barrier;

    memset(&lanes, 0, sizeof(lanes));
    pthread_barrier_init(&barrier, NULL, 2);
    lanes.given_up = &barrier;
    cf_run(&world);
    pthread_barrier_destroy(&barrier);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(lanes.ended[rank], JOBS);
        for (uint32_t i = 0; i < JOBS; i++) {
            assert_int_equal(lanes.passes[rank][i].status, STRATA_E_IO);
            assert_string_equal(lanes.passes[rank][i].error,
                                rank == 0 ? "enough" : "rank 0 failed (during gather_weight of page 7): enough");
        }
    }
}

TEST(a_thread_that_is_refused_is_said)
{
    struct fault_walk walk = {.result = -EAGAIN};
    struct st_comm *comm[2];

    assert_ok(st_comm_threads_open(comm, 2, 0));
    while (fault_walk_next(&walk)) {
        struct st_comm_lane *lane = NULL;

        fault_walk_end(&walk, st_comm_lane_open(&lane, comm[0]));
        st_comm_lane_close(lane);
    }
    assert_int_equal(walk.failed, 1);
    st_comm_close(comm[0]);
    st_comm_close(comm[1]);
}
