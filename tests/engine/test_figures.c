/* test_figures - the figures that a step says of itself: its parts add up, each lane's time is its own and no longer than the
 * run, and what stalls is what is waited for.
 *
 * Where the caller runs every op, the clock is the test's: it stands still but for what gradients take.  Elsewhere no figure is
 * compared with a time, only with others. */
#include "core/system/clock.h"
#include "given.h"
#include "rig.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdatomic.h>

#define STEPS 8u

static atomic_ullong own_ns; /* 0: the real clock */

uint64_t __real_st_clock_ns(void);
uint64_t __wrap_st_clock_ns(void);

uint64_t __wrap_st_clock_ns(void)
{
    const uint64_t ns = atomic_load(&own_ns);

    return ns != 0 ? ns : __real_st_clock_ns();
}

/* An element's gradient takes a microsecond; nothing else takes any time. */
static double slow_gradient(uint32_t page, uint64_t elem, uint64_t step)
{
    (void)page, (void)elem, (void)step;
    atomic_fetch_add(&own_ns, 1000);
    return 0.5;
}

TEST(time_is_backwards_where_gradients_take_it)
{
    const struct given_opts opts = {.config = given_config(STRATA_BF16, STRATA_TIER_HOST), .grad = slow_gradient};
    struct given g;

    atomic_store(&own_ns, 1);
    given_open(&g, &opts);
    for (uint32_t step = 0; step < 3; step++) {
        const uint64_t begun = atomic_load(&own_ns);
        struct st_step_result r;
        double ms;

        assert_int_equal(given_step(&g, &r), STRATA_OK);
        ms = (double)(atomic_load(&own_ns) - begun) * 1e-6;
        assert_true(ms > 0);
        assert_true(fabs(r.backward_ms - ms) < 1e-9 * ms && fabs(r.seconds * 1e3 - ms) < 1e-9 * ms);
        assert_true(r.forward_ms == 0 && r.stall_ms == 0 && r.other_ms < 1e-9 * ms);
        for (int lane = 0; lane < STRATA_LANE_COUNT; lane++) {
            assert_true(lane == STRATA_LANE_COMPUTE ? r.busy_ms[lane] == r.backward_ms : r.busy_ms[lane] == 0);
            assert_true(r.lane_stall_ms[lane] == 0);
        }
        assert_int_equal(r.stalled_by, STRATA_LANE_COUNT);
    }
    given_close(&g);
    atomic_store(&own_ns, 0);
}

/* A forward call takes a microsecond; nothing else takes any time. */
static void slow_forward(const struct st_call *call)
{
    static const bool forward[] = {
        [ST_CALL_EMBED_FORWARD] = true, [ST_CALL_BLOCK_FORWARD] = true, [ST_CALL_HEAD_NORM] = true,
        [ST_CALL_HEAD_STATS] = true,    [ST_CALL_HEAD_LOSS] = true,     [ST_CALL_HEAD_BACKWARD] = false};

    if (forward[call->kind])
        atomic_fetch_add(&own_ns, 1000);
}

/* Of every micro-batch, whether or not another one's backward comes before it. */
TEST(time_is_forwards_where_calls_take_it)
{
    static const enum st_accumulation orders[] = {ST_ACCUMULATE_VERTICAL, ST_ACCUMULATE_HORIZONTAL};

    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        struct given_opts opts = {.config = given_config(STRATA_BF16, STRATA_TIER_HOST), .called = slow_forward};
        struct st_step_result r;
        struct given g;

        opts.config.accumulation = orders[i];
        atomic_store(&own_ns, 1);
        given_open(&g, &opts);
        assert_int_equal(given_step(&g, &r), STRATA_OK);
        assert_true(r.backward_ms == 0 && r.forward_ms > 0 && fabs(r.forward_ms - r.seconds * 1e3) < 1e-9 * r.forward_ms);
        given_close(&g);
        atomic_store(&own_ns, 0);
    }
}

/* `least` of it at least, but for the rounding of sums. */
static void assert_at_most(double is, double most)
{
    if (!(is <= most * (1 + 1e-9) + 1e-6))
        fail_msg("%.9g is more than %.9g", is, most);
}

/* Whatever a step's figures are, they fit each other. */
static void check_step(const struct st_step_result *r, const struct rig_cell *cell)
{
    double stalls = 0, most = 0, run = 0;

    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        assert_true(r->busy_ms[lane] >= 0 && r->lane_stall_ms[lane] >= 0);
        stalls += r->lane_stall_ms[lane];
        most = fmax(most, r->lane_stall_ms[lane]);
        run += st_lane_executes((uint32_t)lane) ? r->busy_ms[lane] : 0;
    }
    assert_true(fabs(stalls - r->stall_ms) <= 1e-9 * stalls);
    assert_true(most > 0 ? r->stalled_by < STRATA_LANE_COUNT && r->lane_stall_ms[r->stalled_by] == most
                         : r->stalled_by == STRATA_LANE_COUNT);
    assert_true(r->busy_ms[STRATA_LANE_COMM] == 0 && r->lane_stall_ms[STRATA_LANE_COMM] == 0);
    if (cell->paced) {
        assert_true(fabs(r->busy_ms[STRATA_LANE_COMPUTE] - r->forward_ms - r->backward_ms) <=
                    1e-9 * r->busy_ms[STRATA_LANE_COMPUTE]);
    } else {
        assert_at_most(run + r->stall_ms, r->seconds * 1e3);
        assert_true(fabs(run - r->busy_ms[STRATA_LANE_UPDATE] - r->busy_ms[STRATA_LANE_UPDATE_DEVICE] - r->forward_ms -
                         r->backward_ms) <= 1e-9 * run);
        assert_true(fabs(r->forward_ms + r->backward_ms + r->stall_ms + r->other_ms - r->seconds * 1e3) <=
                    1e-6 * r->seconds * 1e3);
    }
}

static void add(double busy[STRATA_LANE_COUNT], double stalls[STRATA_LANE_COUNT], const struct st_step_result *r)
{
    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        busy[lane] += r->busy_ms[lane];
        stalls[lane] += r->lane_stall_ms[lane];
    }
}

/* Compute waits for itself, or who runs all ops for one of them, only where what it waits for comes as it looks. */
static void check_stalls(const double stalls[STRATA_LANE_COUNT], bool paced)
{
    double itself = 0, others = 0;

    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++)
        *(lane == STRATA_LANE_COMPUTE || (!paced && st_lane_executes((uint32_t)lane)) ? &itself : &others) += stalls[lane];
    assert_true(others > itself);
}

/* A run whose first step has nothing to write yet. */
static void check_run(const struct rig_cell *cell)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    double busy[STRATA_LANE_COUNT] = {0}, stalls[STRATA_LANE_COUNT] = {0}, sum = 0;
    struct st_step_result r;
    struct rig_engine rig;
    struct st_model *model;
    struct st_plan *plan;
    uint64_t begun, seen;

    assert_int_equal(rig_model(&model, cell), STRATA_OK);
    assert_int_equal(rig_plan(&plan, model, cell), STRATA_OK);
    assert_int_equal(rig_engine_start(&rig, model, plan, cell, ""), STRATA_OK);
    begun = st_clock_ns();
    for (uint32_t step = 0; step < STEPS; step++) {
        rig_tokens(tokens, targets, cell, step);
        assert_int_equal(st_engine_step(rig.engine, tokens, targets, NULL, &r), STRATA_OK);
        check_step(&r, cell);
        add(busy, stalls, &r);
        if (step == 0)
            assert_true(r.bytes.write == 0 && r.busy_ms[STRATA_LANE_WRITE] == 0 && r.busy_ms[STRATA_LANE_READ_STATE] > 0);
    }
    assert_int_equal(st_engine_flush(rig.engine, &r), STRATA_OK);
    assert_true(r.backward_ms == 0); /* it only updates */
    check_step(&r, cell);
    add(busy, stalls, &r);
    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++)
        assert_at_most(busy[lane], (double)(st_clock_ns() - begun) * 1e-6);
    assert_int_equal(st_engine_eval(rig.engine, tokens, targets, NULL, &sum, &seen), STRATA_OK);
    assert_true(!cell->paced || (rig.engine->result.forward_ms > 0 && rig.engine->result.backward_ms == 0));
    assert_true(busy[STRATA_LANE_COMPUTE] > 0 && busy[STRATA_LANE_UPDATE] > 0 && busy[STRATA_LANE_WRITE] > 0);
    check_stalls(stalls, cell->paced);
    rig_engine_stop(&rig);
    st_plan_destroy(plan);
    st_model_destroy(model);
}

TEST(parts_add_up)
{
    atomic_store(&own_ns, 0); /* even where the test before has failed */
    for (int paced = 0; paced < 2; paced++) {
        struct rig_cell cell = rig_swapped();

        cell.host = RIG_ALL; /* gradients wait there */
        cell.act_tier = STRATA_TIER_HOST;
        cell.paced = paced == 1;
        check_run(&cell);
    }
}
