/* test_ids - tokens and targets outside the vocabulary are refused before anything runs, and the engine goes on. */
#include "offload/engine/train_state.h"
#include "rig.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

struct batch {
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
};

static void refused(struct st_engine *engine, const struct batch *b, const char *sentence)
{
    const bool pending = st_engine_train_state(engine)->pending;
    struct st_step_result result;
    double loss;
    uint64_t seen;

    assert_int_equal(st_engine_step(engine, b->tokens, b->targets, NULL, &result), STRATA_E_INPUT);
    assert_string_equal(strata_last_error(), sentence);
    assert_int_equal(st_engine_eval(engine, b->tokens, b->targets, NULL, &loss, &seen), STRATA_E_INPUT);
    assert_string_equal(strata_last_error(), sentence);
    assert_int_equal(st_engine_train_state(engine)->pending, pending);
}

static void wrong_ids_are_refused(struct st_engine *engine, const struct st_workload *w, const struct batch *good)
{
    const uint32_t last = w->seq * w->micro_batch * w->grad_accum - 1;
    char sentence[200];
    struct batch b = *good;

    b.tokens[0] = -1;
    snprintf(sentence, sizeof(sentence), "token 0 of sequence 0 is -1, the vocabulary has 0 to %u", w->vocab - 1);
    refused(engine, &b, sentence);
    b = *good;
    b.tokens[last] = (int32_t)w->vocab;
    snprintf(sentence, sizeof(sentence), "token %u of sequence %u is %u, the vocabulary has 0 to %u", w->seq - 1, last / w->seq,
             w->vocab, w->vocab - 1);
    refused(engine, &b, sentence);
    b = *good;
    b.targets[w->seq + 1] = INT32_MAX;
    snprintf(sentence, sizeof(sentence), "target 1 of sequence 1 is %d, the vocabulary has 0 to %u", INT32_MAX, w->vocab - 1);
    refused(engine, &b, sentence);
}

/* Two steps, with refused ones between them or not: the same digests. */
static void train(char weights[33], struct st_model *model, const struct st_plan *plan, const struct rig_cell *cell,
                  bool with_wrong_ids)
{
    struct st_step_result result;
    struct rig_engine rig;
    char state[33];
    struct batch b;

    assert_int_equal(rig_engine_start(&rig, model, plan, cell, ""), STRATA_OK);
    for (uint32_t step = 0; step < 2; step++) {
        rig_tokens(b.tokens, b.targets, cell, step);
        b.targets[3] = -1;
        if (with_wrong_ids)
            wrong_ids_are_refused(rig.engine, &plan->program.workload, &b);
        assert_int_equal(st_engine_step(rig.engine, b.tokens, b.targets, NULL, &result), STRATA_OK);
    }
    assert_int_equal(st_engine_digest(rig.engine, weights, state), STRATA_OK);
    rig_engine_stop(&rig);
}

TEST(ids_outside_the_vocabulary_change_nothing)
{
    struct rig_cell cell = rig_swapped();
    char with[33], without[33];
    struct st_model *model;
    struct st_plan *plan;

    cell.host = RIG_ALL;
    cell.optimizer = cell.param = STRATA_TIER_HOST; /* with the table's sum: an id is an address there */
    cell.grad_accum = 2;
    assert_int_equal(rig_model(&model, &cell), STRATA_OK);
    assert_int_equal(rig_plan(&plan, model, &cell), STRATA_OK);
    train(without, model, plan, &cell, false);
    train(with, model, plan, &cell, true);
    assert_string_equal(with, without);
    st_plan_destroy(plan);
    st_model_destroy(model);
}
