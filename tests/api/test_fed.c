/* tests/api/test_fed.c - steps whose micro-batches are fed (strata_engine_step_fed()): the bits of whole steps. */
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <math.h>
#include <string.h>

#define CONFIG(more)                                                                                                             \
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},"                 \
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, \"strata\": {\"threads\": 2" more "}}"
#define HORIZONTAL ", \"accumulation\": \"horizontal\""

#define MICRO  (2 * RUN_SEQ)
#define TOKENS 2017u

struct feed {
    struct run run;
    int32_t tokens[2 * MICRO], targets[2 * MICRO];
    double weight, lr, losses[2];
    bool drop, refuse;
    uint32_t turns;
};

static strata_status answer(void *ctx, struct strata_turn *turn)
{
    static const enum strata_turn_kind order[] = {STRATA_TURN_FORWARD, STRATA_TURN_BACKWARD, STRATA_TURN_FORWARD,
                                                  STRATA_TURN_BACKWARD, STRATA_TURN_END};
    struct feed *f = ctx;

    assert_true(f->turns < 5 && turn->kind == order[f->turns]);
    assert_int_equal(turn->micro, turn->kind == STRATA_TURN_END ? 0 : f->turns / 2);
    f->turns++;
    assert_int_equal(strata_engine_flush(f->run.engine), STRATA_E_BUSY);
    switch (turn->kind) {
    case STRATA_TURN_FORWARD:
        memcpy(turn->tokens, f->tokens + turn->micro * MICRO, MICRO * sizeof(int32_t));
        memcpy(turn->targets, f->targets + turn->micro * MICRO, MICRO * sizeof(int32_t));
        assert_null(turn->positions);
        break;
    case STRATA_TURN_BACKWARD:
        f->losses[turn->micro] = turn->loss;
        turn->weight = f->weight;
        break;
    case STRATA_TURN_END:
        assert_true(isnan(turn->lr) && isnan(turn->weight_decay));
        turn->lr = f->lr;
        turn->drop = f->drop;
        break;
    }
    return f->refuse ? STRATA_E_CANCELLED : STRATA_OK;
}

static void open_run(struct run *r)
{
    assert_ok(run_open(r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(r));
}

static strata_status step(struct feed *f, uint64_t number, struct strata_step *result)
{
    assert_ok(strata_data_read(f->run.data, STRATA_DATA_SHUFFLED, 5, number * 4, 4, f->tokens, f->targets, NULL));
    f->turns = 0;
    return strata_engine_step_fed(f->run.engine, answer, f, result);
}

static void same_bits(const char *text, const char *dir)
{
    struct run whole = {.text = text, .dir = dir};
    struct feed fed = {.run = {.text = text, .dir = dir}, .lr = 1e-3, .weight = 1.0 / (2 * MICRO)};
    struct strata_step a = STRATA_STEP_INIT, b = STRATA_STEP_INIT;
    char weights[2][33], state[2][33];

    open_run(&whole);
    assert_ok(run_train(&whole, 0, RUN_STEPS, &a));
    assert_ok(strata_engine_digest(whole.engine, weights[0], state[0]));
    run_close(&whole);
    open_run(&fed.run);
    for (uint64_t i = 0; i < RUN_STEPS; i++) {
        assert_ok(step(&fed, i, &b));
        assert_int_equal(fed.turns, 5);
        assert_true(fabs((fed.losses[0] + fed.losses[1]) / (2 * MICRO) - b.loss) < 1e-12);
    }
    assert_true(b.loss == a.loss && b.grad_norm == a.grad_norm && b.lr == a.lr && b.tokens == a.tokens);
    fed.drop = true;
    assert_ok(step(&fed, RUN_STEPS, &b));
    assert_true(b.dropped && b.skipped);
    assert_ok(strata_engine_digest(fed.run.engine, weights[1], state[1]));
    assert_string_equal(weights[0], weights[1]);
    assert_string_equal(state[0], state[1]);
    run_close(&fed.run);
}

TEST_SETUP(fed_steps_have_the_bits_of_whole_ones, scratch_create, scratch_remove)
{
    same_bits(CONFIG(HORIZONTAL ", \"update\": \"serial\""), NULL);
    same_bits(CONFIG(HORIZONTAL ", \"update\": \"gated\""), scratch_path("."));
}

TEST_SETUP(a_feed_may_fail_and_some_plans_take_none, scratch_create, scratch_remove)
{
    struct strata_step result = STRATA_STEP_INIT;
    struct feed f = {.run = {.text = CONFIG(", \"accumulation\": \"vertical\"")}, .refuse = true};

    open_run(&f.run);
    assert_refused(step(&f, 0, &result), "strata.accumulation horizontal");
    assert_refused(strata_engine_step_fed(f.run.engine, NULL, NULL, NULL), "feed is NULL");
    assert_refused(strata_engine_step(f.run.engine, NULL, f.targets, NULL, NULL), "tokens is NULL");
    assert_ok(run_train(&f.run, 0, 1, &result)); /* nothing had run */
    run_close(&f.run);
    f.run = (struct run){.text = CONFIG(HORIZONTAL ", \"update\": \"serial\"")};
    open_run(&f.run);
    assert_int_equal(step(&f, 0, &result), STRATA_E_CANCELLED);
    assert_int_equal(f.turns, 1);
    assert_int_equal(step(&f, 0, &result), STRATA_E_CANCELLED); /* the engine has ended */
    assert_int_equal(f.turns, 0);
    run_close(&f.run);
}
