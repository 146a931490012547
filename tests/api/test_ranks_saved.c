/* tests/api/test_ranks_saved.c - engines of two ranks, each on a thread of its own, that go on from a checkpoint: from the same
 * one, or not at all. */
#include "api/handles.h"
#include "strata/checkpoint.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS       2u
#define TOKENS      1201u
#define DEADLINE_NS UINT64_C(20000000000)

#define QUIET " \"bf16\": {\"enabled\": true}, \"gradient_clipping\": 1.0," /* what has a notice where it is left out */

/* The sequences of a step are as many of one rank as of two. */
static const char one_format[] = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2," QUIET
                                 " \"strata\": {\"threads\": 1, \"save\": \"%s\"}}";
static const char two_text[] =
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 1," QUIET " \"strata\": {\"threads\": 1}}";

struct saved {
    char path[256];
    char weights[33];
};

static struct saved first, second, other; /* of one run, and of another one at the first's step */

struct rank {
    struct strata_comm comm;
    const struct saved *from;
    strata_status st;
    char sentence[1024], weights[33];
    pthread_t thread;
};

static void save_step(struct run *r, uint64_t step, struct saved *out)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    char state[33];

    assert_ok(run_train(r, step, 1, NULL));
    assert_ok(strata_engine_digest(r->engine, out->weights, state));
    assert_ok(strata_engine_save(r->engine, NULL));
    assert_ok(strata_engine_saved(r->engine, true, &saved));
    snprintf(out->path, sizeof(out->path), "%s", saved.path);
}

static void make_saved(const char *dir, uint64_t data_step, struct saved *a, struct saved *b)
{
    char text[640];
    struct run r = {.text = text};

    snprintf(text, sizeof(text), one_format, scratch_path(dir));
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    save_step(&r, data_step, a);
    if (b != NULL)
        save_step(&r, data_step + 1, b);
    run_close(&r);
}

static int make_all(void **state)
{
    if (scratch_create(state) != 0)
        return -1;
    make_saved("one", 0, &first, &second);
    make_saved("two", 7, &other, NULL);
    return 0;
}

static strata_status resume(struct rank *r, struct run *run)
{
    struct strata_model_opts model = STRATA_MODEL_OPTS_INIT;
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_checkpoint *from = NULL;
    char state[33];
    strata_status st;

    config.text = two_text;
    config.ranks = RANKS;
    model.model = "nano";
    model.seq_len = RUN_SEQ;
    model.comm = &r->comm;
    if ((st = strata_config_open(&run->config, &config)) != STRATA_OK ||
        (st = strata_model_open(&run->model, run->config, &model)) != STRATA_OK ||
        (st = strata_plan_make(&run->plan, run->model, NULL)) != STRATA_OK ||
        (st = strata_engine_create(&run->engine, run->plan, NULL)) != STRATA_OK ||
        (st = strata_checkpoint_open(&from, r->from->path)) != STRATA_OK)
        return st;
    st = strata_engine_resume(run->engine, from, NULL);
    strata_checkpoint_close(from);
    return st == STRATA_OK ? strata_engine_digest(run->engine, r->weights, state) : st;
}

static void *resume_rank(void *ctx)
{
    struct rank *r = ctx;
    struct run run = {0};

    r->st = resume(r, &run);
    snprintf(r->sentence, sizeof(r->sentence), "%s", r->st != STRATA_OK ? strata_last_error() : "");
    run_close(&run);
    return NULL;
}

static void resume_both(struct rank ranks[RANKS], const struct saved *a, const struct saved *b)
{
    struct st_comm *comms[RANKS];

    assert_ok(st_comm_threads_open(comms, RANKS, DEADLINE_NS));
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.comm = {.comm = comms[r], .world = comms[r]->world, .source = ""}, .from = r == 0 ? a : b};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, resume_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(ranks[r].thread, NULL);
    for (uint32_t r = 0; r < RANKS; r++)
        st_comm_close(comms[r]);
}

TEST(the_same_checkpoint_is_gone_on_from)
{
    const struct saved *const each[] = {&first, &second, &other};

    for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
        struct rank ranks[RANKS];

        resume_both(ranks, each[i], each[i]);
        for (uint32_t r = 0; r < RANKS; r++) {
            if (ranks[r].st != STRATA_OK)
                fail_msg("rank %u: %s", r, ranks[r].sentence);
            assert_string_equal(ranks[r].weights, each[i]->weights);
        }
    }
}

/* Steps of one run differ, and so do runs at one step. */
TEST(others_are_refused_on_all_ranks)
{
    static const struct {
        const struct saved *a, *b;
        const char *of_1, *of_0;
    } rows[] = {
        {&first, &second, "rank 1 resumes from step 2 of run ", ", rank 0 from step 1 of run "},
        {&second, &first, "rank 1 resumes from step 1 of run ", ", rank 0 from step 2 of run "},
        {&first, &other, "rank 1 resumes from step 1 of run ", ", rank 0 from step 1 of run "},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rank ranks[RANKS];

        resume_both(ranks, rows[i].a, rows[i].b);
        for (uint32_t r = 0; r < RANKS; r++)
            if (ranks[r].st != STRATA_E_INPUT || strstr(ranks[r].sentence, rows[i].of_1) == NULL ||
                strstr(ranks[r].sentence, rows[i].of_0) == NULL ||
                strstr(ranks[r].sentence, ": give all the same checkpoint") == NULL)
                fail_msg("row %zu, rank %u: %s: %s", i, r, strata_status_text(ranks[r].st), ranks[r].sentence);
    }
}

TEST_GROUP(make_all, scratch_remove);
