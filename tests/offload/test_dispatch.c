/* test_dispatch - which op goes next: waits, turns of the cycle before, masks, queues that run in order. */
#include "offload/program/dispatch.h"
#include "tests/common/test.h"

#define ALL (ST_PHASE_PROLOGUE | ST_PHASE_BODY)

/* 0 read, 1 upload (waits for 0), 2 and 3 blocks (2 for 1, 3 for 2), 4 upload into what op 2 reads (for 2), 5 update (for
 * nothing). */
static struct st_op ops[] = {
    {.kind = ST_OP_READ_WEIGHT, .lane = STRATA_LANE_READ_WEIGHT, .phases = ALL},
    {.kind = ST_OP_UPLOAD_WEIGHT, .lane = STRATA_LANE_UPLOAD, .phases = ALL, .wait_first = 0, .wait_count = 2},
    {.kind = ST_OP_BLOCK_FORWARD, .lane = STRATA_LANE_COMPUTE, .phases = ALL, .wait_first = 2, .wait_count = 1},
    {.kind = ST_OP_BLOCK_FORWARD, .lane = STRATA_LANE_COMPUTE, .phases = ALL, .wait_first = 3, .wait_count = 1},
    {.kind = ST_OP_UPLOAD_WEIGHT, .lane = STRATA_LANE_UPLOAD, .phases = ALL, .wait_first = 4, .wait_count = 1},
    {.kind = ST_OP_UPDATE, .lane = STRATA_LANE_UPDATE, .phases = ST_PHASE_BODY},
};
static struct st_wait waits[] = {{0, false}, {4, true}, {1, false}, {2, false}, {2, false}};
static const struct st_program program = {.ops = ops, .op_count = 6, .waits = waits, .wait_count = 5};

static void start(struct st_dispatch *d, uint32_t op)
{
    assert_int_equal(st_dispatch_ready(d, ops[op].lane), op);
    st_dispatch_pass(d, ops[op].lane);
}

static void start_and_finish(struct st_dispatch *d, uint32_t op)
{
    start(d, op);
    st_dispatch_finish(d, op);
}

/* A whole cycle, one op after the other. */
static void run_cycle(struct st_dispatch *d)
{
    st_dispatch_begin(d, ST_PHASE_BODY);
    for (uint32_t op = 0; op < program.op_count; op++)
        start_and_finish(d, op);
    assert_true(st_dispatch_over(d));
}

TEST(an_op_waits_for_what_it_names)
{
    struct st_dispatch d;

    assert_int_equal(st_dispatch_init(&d, &program, false), STRATA_OK);
    st_dispatch_begin(&d, ST_PHASE_BODY);
    start(&d, 0);
    assert_int_equal(st_dispatch_head(&d, STRATA_LANE_READ_WEIGHT), ST_NO_OP); /* handed out, not done */
    assert_int_equal(st_dispatch_blocker(&d, STRATA_LANE_UPLOAD), 0);
    assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_UPLOAD), ST_NO_OP);
    st_dispatch_finish(&d, 0);
    assert_int_equal(st_dispatch_waiting(&d, 0), 1u << STRATA_LANE_UPLOAD);
    assert_int_equal(st_dispatch_waiting(&d, 3), 0);
    start_and_finish(&d, 1);
    assert_int_equal(st_dispatch_pick(&d), 2); /* the earliest that is ready, */
    assert_int_equal(st_dispatch_stall(&d, 0).op, 2);
    start(&d, 2);
    assert_int_equal(st_dispatch_pick(&d), 5); /* though earlier ones are not */
    assert_int_equal(st_dispatch_stall(&d, 0).op, 3);
    st_dispatch_finish(&d, 2);
    assert_int_equal(st_dispatch_pick(&d), 3);
    st_dispatch_fini(&d);
}

/* Through an upload that has not been handed out to the read that it waits for; not through a lane that is at work. */
TEST(a_stall_is_blamed_on_what_is_under_way)
{
    for (int queues = 0; queues <= 1; queues++) {
        struct st_dispatch d;
        struct st_stall s;

        assert_int_equal(st_dispatch_init(&d, &program, queues), STRATA_OK);
        st_dispatch_begin(&d, ST_PHASE_BODY);
        start(&d, 0);
        start(&d, 5); /* the update, which the host runs beside all this */
        st_dispatch_finish(&d, 5);
        s = st_dispatch_stall(&d, 0);
        assert_int_equal(s.op, queues ? 2 : 1); /* compute's own next op; with one executor the earliest */
        assert_int_equal(s.on, 0);
        assert_int_equal(s.lane, STRATA_LANE_READ_WEIGHT);
        s = st_dispatch_stall(&d, 1u << STRATA_LANE_UPLOAD);
        assert_int_equal(s.on, queues ? 1 : 0);
        assert_int_equal(s.lane, queues ? STRATA_LANE_UPLOAD : STRATA_LANE_READ_WEIGHT);
        st_dispatch_finish(&d, 0);
        start(&d, 1); /* handed out: compute waits for it, not for what it waited for */
        s = st_dispatch_stall(&d, 0);
        assert_int_equal(s.on, 1);
        assert_int_equal(s.lane, STRATA_LANE_UPLOAD);
        st_dispatch_finish(&d, 1);
        start_and_finish(&d, 2);
        start_and_finish(&d, 3);
        start_and_finish(&d, 4);
        s = st_dispatch_stall(&d, 0);
        assert_int_equal(s.op, ST_NO_OP);
        assert_int_equal(s.on, ST_NO_OP);
        st_dispatch_fini(&d);
    }
}

/* Of the cycle before: what a wait names, and an op's own turn. */
TEST(a_cycle_follows_the_one_before)
{
    struct st_dispatch d;

    assert_int_equal(st_dispatch_init(&d, &program, false), STRATA_OK);
    run_cycle(&d);
    st_dispatch_begin(&d, ST_PHASE_BODY);
    for (uint32_t op = 0; op < 4; op++)
        start_and_finish(&d, op);
    start(&d, 4);
    start(&d, 5);
    assert_true(st_dispatch_over(&d)); /* all passed; 4 and 5 are under way */
    st_dispatch_begin(&d, ST_PHASE_BODY);
    start_and_finish(&d, 0);
    assert_int_equal(st_dispatch_blocker(&d, STRATA_LANE_UPLOAD), 4);
    assert_int_equal(st_dispatch_blocker(&d, STRATA_LANE_UPDATE), 5);
    st_dispatch_finish(&d, 4);
    st_dispatch_finish(&d, 5);
    assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_UPLOAD), 1);
    assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_UPDATE), 5);
    st_dispatch_fini(&d);
}

TEST(a_masked_op_only_waits)
{
    struct st_dispatch d;

    assert_int_equal(st_dispatch_init(&d, &program, false), STRATA_OK);
    st_dispatch_begin(&d, ST_PHASE_PROLOGUE); /* no update */
    assert_true(st_dispatch_masked(&d, 5));
    assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_UPDATE), ST_NO_OP);
    assert_int_equal(d.passed, 1);
    st_dispatch_begin(&d, ST_PHASE_EPILOGUE); /* nothing at all, yet in order */
    assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_UPLOAD), ST_NO_OP);
    assert_int_equal(st_dispatch_blocker(&d, STRATA_LANE_UPLOAD), 0);
    st_dispatch_fini(&d);
}

/* A queue brings block 3 after block 2 by itself; the upload, on another queue, still waits; and so does what is masked. */
TEST(queues_keep_their_own_order)
{
    struct st_dispatch d;

    assert_int_equal(st_dispatch_init(&d, &program, true), STRATA_OK);
    st_dispatch_begin(&d, ST_PHASE_BODY);
    start_and_finish(&d, 0);
    start_and_finish(&d, 1);
    start(&d, 2);
    assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_COMPUTE), 3);
    assert_int_equal(st_dispatch_blocker(&d, STRATA_LANE_UPLOAD), 2);
    ops[3].phases = ST_PHASE_PROLOGUE;
    st_dispatch_fini(&d);
    assert_int_equal(st_dispatch_init(&d, &program, true), STRATA_OK);
    st_dispatch_begin(&d, ST_PHASE_BODY);
    start_and_finish(&d, 0);
    start_and_finish(&d, 1);
    start(&d, 2);
    assert_int_equal(st_dispatch_blocker(&d, STRATA_LANE_COMPUTE), 2);
    ops[3].phases = ALL;
    st_dispatch_fini(&d);
}

/* 0 read, 1 and 2 blocks (2 for 1 and for 0, which decides whether page 1 is left out). */
static struct st_op chosen_ops[] = {
    {.kind = ST_OP_READ_WEIGHT, .lane = STRATA_LANE_READ_WEIGHT, .phases = ALL, .page = ST_NO_PAGE},
    {.kind = ST_OP_BLOCK_FORWARD, .lane = STRATA_LANE_COMPUTE, .phases = ALL},
    {.kind = ST_OP_BLOCK_FORWARD, .lane = STRATA_LANE_COMPUTE, .phases = ALL, .page = 1, .wait_first = 0, .wait_count = 2},
};
static struct st_wait chosen_waits[] = {{1, false}, {0, false}};
static const struct st_program chosen_program = {.ops = chosen_ops, .op_count = 3, .waits = chosen_waits, .wait_count = 2};

/* An op that its queue would bring after the one before it waits for that one, too, once its page is left out. */
TEST(an_op_on_a_page_that_is_left_out_only_waits)
{
    for (int left_out = 0; left_out <= 1; left_out++) {
        _Atomic bool pages[2] = {false, false};
        struct st_dispatch d;

        assert_int_equal(st_dispatch_init(&d, &chosen_program, true), STRATA_OK);
        d.left_out = pages;
        st_dispatch_begin(&d, ST_PHASE_BODY);
        assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_READ_WEIGHT), 0);
        st_dispatch_pass(&d, STRATA_LANE_READ_WEIGHT);
        assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_COMPUTE), 1);
        st_dispatch_pass(&d, STRATA_LANE_COMPUTE);
        assert_int_equal(st_dispatch_blocker(&d, STRATA_LANE_COMPUTE), 0); /* 1 comes first by itself */
        pages[1] = left_out != 0;
        st_dispatch_finish(&d, 0);
        assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_COMPUTE), left_out ? ST_NO_OP : 2);
        if (left_out) {
            assert_int_equal(st_dispatch_blocker(&d, STRATA_LANE_COMPUTE), 1);
            st_dispatch_finish(&d, 1);
            assert_int_equal(st_dispatch_ready(&d, STRATA_LANE_COMPUTE), ST_NO_OP);
            assert_true(st_dispatch_over(&d));
        }
        st_dispatch_fini(&d);
    }
}
