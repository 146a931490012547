/* tests/layers/test_outside.c - the built-in decoder driven from outside has the weights and the state of strata's own run, to
 * the bit, and the same ones wherever they are. */
#include "api/handles.h"
#include "strata/checkpoint.h"
#include "tests/common/assert_status.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/layers/outside.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS       3
#define RANKS_MOST  4u
#define DEADLINE_NS UINT64_C(60000000000)

#define CONFIG(precision, more)                                                                                                  \
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 4, " precision                                     \
    " \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3, \"weight_decay\": 0.1}},"      \
    " \"strata\": {\"threads\": 2, \"accumulation\": \"horizontal\"" more "}}"

static const char fp32[] = CONFIG("", ", \"leaves\": 1"), bf16[] = CONFIG("\"bf16\": {\"enabled\": true},", ", \"leaves\": 1"),
                  fp16[] = CONFIG("\"fp16\": {\"enabled\": true, \"initial_scale_power\": 10},", ", \"leaves\": 1"),
                  leaves[] = CONFIG("\"bf16\": {\"enabled\": true},", ", \"leaves\": 4");

/* Tokens and targets of a step, [rows]. */
static void draw(int32_t *tokens, int32_t *targets, uint64_t step, uint32_t first, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++) {
        const uint64_t at = step * 100003 + first + i;

        tokens[i] = (int32_t)(at * at % 251);
        targets[i] = (int32_t)((at * 7 + step) % 256);
    }
}

static void both(char text[80], struct strata_engine *e)
{
    char weights[33], moments[33];

    if (strata_engine_digest(e, weights, moments) != STRATA_OK)
        fail_msg("digest: %s", strata_last_error());
    snprintf(text, 80, "%s %s", weights, moments);
}

/* strata's own run. */
static void run_native(const char *preset, const char *text, char digest[80], double losses[STEPS])
{
    struct strata_config_opts c = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts m = STRATA_MODEL_OPTS_INIT;
    struct strata_config *config = NULL;
    struct strata_model *model = NULL;
    struct strata_plan *plan = NULL;
    struct strata_engine *engine = NULL;
    struct strata_model_info is = STRATA_MODEL_INFO_INIT;
    int32_t *tokens, *targets;

    c.text = text;
    m.model = preset;
    m.seq_len = OUTSIDE_SEQ;
    assert_ok(strata_config_open(&config, &c));
    assert_ok(strata_model_open(&model, config, &m));
    assert_ok(strata_model_get_info(model, &is));
    assert_ok(strata_plan_make(&plan, model, NULL));
    assert_ok(strata_engine_create(&engine, plan, NULL));
    assert_ok(strata_engine_load(engine));
    tokens = calloc((size_t)is.step_sequences * OUTSIDE_SEQ, sizeof(*tokens));
    targets = calloc((size_t)is.step_sequences * OUTSIDE_SEQ, sizeof(*targets));
    assert_true(tokens != NULL && targets != NULL);
    for (uint64_t step = 0; step < STEPS; step++) {
        struct strata_step r = STRATA_STEP_INIT;

        draw(tokens, targets, step, 0, is.step_sequences * OUTSIDE_SEQ);
        assert_ok(strata_engine_step(engine, tokens, targets, NULL, &r));
        losses[step] = r.loss;
    }
    both(digest, engine);
    free(tokens);
    free(targets);
    strata_engine_destroy(engine);
    strata_plan_destroy(plan);
    strata_model_close(model);
    strata_config_close(config);
}

/* --- from outside --- */

struct rank {
    struct outside_opts opts;
    struct strata_comm comm;
    uint64_t first, end; /* steps */
    const char *resume;  /* a checkpoint, before them */
    bool saves;          /* one, after them */
    char digest[80], sentence[512];
    double losses[STEPS];
    strata_status st;
    pthread_t thread;
};

static strata_status begin(struct rank *r, struct outside **o)
{
    struct strata_checkpoint *saved = NULL;
    strata_status st = outside_open(o, &r->opts);

    if (st != STRATA_OK || r->resume == NULL || (st = strata_checkpoint_open(&saved, r->resume)) != STRATA_OK)
        return st;
    st = strata_engine_resume(outside_engine(*o), saved, NULL);
    strata_checkpoint_close(saved);
    return st;
}

static strata_status go(struct rank *r, struct outside *o)
{
    const uint32_t rows = outside_rows(o);
    int32_t *tokens = calloc(rows, sizeof(*tokens)), *targets = calloc(rows, sizeof(*targets));
    struct strata_saved saved = STRATA_SAVED_INIT;
    strata_status st = tokens != NULL && targets != NULL ? STRATA_OK : STRATA_E_NOMEM;

    for (uint64_t step = r->first; step < r->end && st == STRATA_OK; step++) {
        struct strata_step result = STRATA_STEP_INIT;

        draw(tokens, targets, step, r->opts.rank * rows, rows);
        st = outside_step(o, tokens, targets, &result);
        r->losses[step] = result.loss;
    }
    if (st == STRATA_OK && r->saves && (st = strata_engine_save(outside_engine(o), NULL)) == STRATA_OK)
        st = strata_engine_saved(outside_engine(o), true, &saved);
    free(tokens);
    free(targets);
    return st;
}

static void *run_rank(void *ctx)
{
    struct rank *r = ctx;
    struct outside *o = NULL;
    char weights[33], moments[33];

    if ((r->st = begin(r, &o)) == STRATA_OK && (r->st = go(r, o)) == STRATA_OK &&
        (r->st = strata_engine_digest(outside_engine(o), weights, moments)) == STRATA_OK)
        snprintf(r->digest, sizeof(r->digest), "%s %s", weights, moments);
    else
        snprintf(r->sentence, sizeof(r->sentence), "%s", strata_last_error());
    outside_close(o);
    return NULL;
}

static void run_ranks(struct rank *ranks, uint32_t count)
{
    struct st_comm *comms[RANKS_MOST];

    if (count > 1)
        assert_ok(st_comm_threads_open(comms, count, DEADLINE_NS));
    for (uint32_t i = 0; i < count; i++) {
        ranks[i].opts.rank = i;
        ranks[i].opts.ranks = count;
        if (count > 1) {
            ranks[i].comm = (struct strata_comm){.comm = comms[i], .world = comms[i]->world, .source = ""};
            ranks[i].opts.comm = &ranks[i].comm;
        }
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < count; i++)
        pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i].st != STRATA_OK)
            fail_msg("rank %u of %u: %s: %s", i, count, strata_status_text(ranks[i].st), ranks[i].sentence);
        if (count > 1)
            st_comm_close(comms[i]);
        assert_string_equal(ranks[i].digest, ranks[0].digest);
    }
}

static void run_one(struct rank *r, const char *preset, const char *text, const char *const *overrides, uint32_t count)
{
    r->opts = (struct outside_opts){.preset = preset, .text = text, .overrides = overrides, .override_count = count};
    if (r->end == 0)
        r->end = STEPS;
    run_ranks(r, 1);
}

/* --- tests --- */

static void same_as_native(const char *preset, const char *text)
{
    double losses[STEPS];
    struct rank r = {.end = 0};
    char digest[80];

    run_native(preset, text, digest, losses);
    run_one(&r, preset, text, NULL, 0);
    if (strcmp(r.digest, digest) != 0)
        fail_msg("%s: %s from outside, %s by strata", preset, r.digest, digest);
    for (uint32_t i = 0; i < STEPS; i++)
        assert_true(r.losses[i] > losses[i] - 1e-9 && r.losses[i] < losses[i] + 1e-9);
}

TEST(the_bits_are_those_of_stratas_own_run)
{
    same_as_native("nano", fp32);
    same_as_native("nano", bf16);
    same_as_native("nano", fp16);
    same_as_native("nano-llama", bf16);
}

TEST(placement_never_changes_bits)
{
    char dirs[160];
    const char *state_on_drive[] = {"zero_optimization.offload_optimizer.device=nvme", "strata.cache=0", dirs};
    const char *all_on_drive[] = {"zero_optimization.offload_param.device=nvme",
                                  "zero_optimization.offload_optimizer.device=nvme", "strata.cache=0", dirs,
                                  "strata.activation_tier=nvme"};
    const char *host[] = {"zero_optimization.offload_param.device=cpu", "zero_optimization.offload_optimizer.device=cpu",
                          "strata.activation_tier=host"};
    const char *serial[] = {"strata.threads=1", "strata.update=serial"};
    const struct {
        const char *const *overrides;
        uint32_t count;
    } places[] = {{state_on_drive, 3}, {all_on_drive, 5}, {host, 3}, {serial, 2}};
    struct rank r = {.end = 0};
    char digest[80];

    snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", scratch_path("drive"));
    scratch_put("drive/.keep", "");
    run_one(&r, "nano", bf16, NULL, 0);
    snprintf(digest, sizeof(digest), "%s", r.digest);
    for (uint32_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        run_one(&r, "nano", bf16, places[i].overrides, places[i].count);
        if (strcmp(r.digest, digest) != 0)
            fail_msg("%s: %s, not %s", places[i].overrides[0], r.digest, digest);
    }
}

TEST(ranks_have_the_bits_of_one)
{
    static const char *const accums[] = {"", "4", "2", "", "1"};
    char digest[80] = "", accum[64];

    for (uint32_t count = 1; count <= RANKS_MOST; count *= 2)
        for (uint32_t stage = 0; stage <= (count > 1 ? 3u : 0u); stage += 3) {
            char zero[40];
            const char *overrides[] = {accum, zero, "strata.threads=1"};
            struct rank ranks[RANKS_MOST] = {{.end = STEPS}, {.end = STEPS}, {.end = STEPS}, {.end = STEPS}};

            snprintf(accum, sizeof(accum), "gradient_accumulation_steps=%s", accums[count]);
            snprintf(zero, sizeof(zero), "zero_optimization.stage=%u", stage);
            for (uint32_t i = 0; i < count; i++)
                ranks[i].opts = (struct outside_opts){
                    .preset = "nano", .text = leaves, .overrides = overrides, .override_count = 3, .leaves = true};
            run_ranks(ranks, count);
            if (digest[0] == '\0')
                snprintf(digest, sizeof(digest), "%s", ranks[0].digest);
            if (strcmp(ranks[0].digest, digest) != 0)
                fail_msg("%u ranks at stage %u: %s, not %s", count, stage, ranks[0].digest, digest);
        }
}

TEST(a_resumed_run_has_the_same_bits)
{
    char saves[160], dirs[160], digest[80];
    const char *overrides[] = {saves, "zero_optimization.offload_optimizer.device=nvme", "strata.cache=0", dirs};
    struct rank whole = {.end = STEPS}, half = {.end = 2, .saves = true},
                rest = {.first = 2, .end = STEPS, .resume = scratch_path("saves")};

    snprintf(saves, sizeof(saves), "strata.save=%s", scratch_path("saves"));
    snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", scratch_path("drive"));
    scratch_put("drive/.keep", "");
    run_one(&whole, "nano", bf16, NULL, 0);
    snprintf(digest, sizeof(digest), "%s", whole.digest);
    run_one(&half, "nano", bf16, overrides, 4);
    run_one(&rest, "nano", bf16, overrides, 4);
    assert_string_equal(rest.digest, digest);
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_ERROR);
    return test_run(scratch_create, scratch_remove);
}
