/* tests/api/test_resume_refused.c - a resume that fails before anything is replaced leaves the run as it was: it goes on to the
 * bits of one that has not tried, on one rank and on two. */
#include "api/handles.h"
#include "core/base/fault.h"
#include "strata/checkpoint.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS       2u
#define TOKENS      1201u
#define SAVED       2u /* steps at the save */
#define LR          0.002
#define DEADLINE_NS UINT64_C(20000000000)

struct digests {
    char weights[33], state[33];
};

/* Of a run of one rank that saves there; `more`: members of "strata". */
static const char *config_of(char text[640], uint32_t threads, const char *more, const char *save)
{
    snprintf(text, 640,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},"
             " \"gradient_clipping\": 1.0, \"strata\": {\"threads\": %u, %s, \"save\": \"%s\"}}",
             threads, more, scratch_path(save));
    return text;
}

static void save_whole(struct run *r, char path[512])
{
    struct strata_saved saved = STRATA_SAVED_INIT;

    assert_ok(strata_engine_save(r->engine, NULL));
    assert_ok(strata_engine_saved(r->engine, true, &saved));
    snprintf(path, 512, "%s", saved.path);
}

static void assert_alike(const struct digests *a, const struct digests *b)
{
    assert_string_equal(a->weights, b->weights);
    assert_string_equal(a->state, b->state);
}

/* Bits of a checkpoint's planes change, in a file of its own: the run may have the one that was there. */
static void damage(const char *checkpoint)
{
    char path[512], *data;
    size_t bytes;

    snprintf(path, sizeof(path), "%s/set.0", checkpoint);
    data = read_file(path, &bytes);
    assert_int_equal(remove(path), 0);
    for (size_t at = bytes / 8; at < bytes; at += bytes / 4)
        data[at] ^= 1;
    write_file(path, data, bytes);
    free(data);
}

/* --- one rank --- */

static bool ends_early(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    const bool *ends = ctx;

    return !*ends || strcmp(what, "reading the checkpoint") != 0 || done < total / 4;
}

static void refuse(struct run *r, const char *path, bool *ends)
{
    struct strata_checkpoint *from = NULL;

    assert_ok(strata_checkpoint_open(&from, path));
    *ends = true;
    assert_status(strata_engine_resume(r->engine, from, NULL), STRATA_E_CANCELLED, "a resume that was ended");
    *ends = false;
    st_fault_arm(&(struct st_fault_spec){.site = "run.volumes", .after = 1, .count = 1, .result = -1});
    assert_status(strata_engine_resume(r->engine, from, NULL), STRATA_E_NOMEM, "without memory");
    assert_int_equal(st_fault_disarm(), 1);
    damage(path);
    for (int twice = 0; twice < 2; twice++)
        assert_status(strata_engine_resume(r->engine, from, NULL), STRATA_E_CORRUPT, "a damaged checkpoint");
    assert_non_null(strstr(strata_last_error(), "set.0: checksum mismatch in plane "));
    strata_checkpoint_close(from);
}

/* Two steps, a save, a step, what is refused, a step that makes the update of the one before, and a save. */
static void go_on(bool tries, const char *update, bool on_drive, struct digests *d)
{
    struct strata_step step = STRATA_STEP_INIT;
    char text[640], path[512];
    bool ends = false;
    struct run r = {.text = config_of(text, 2, update, tries ? "tries" : "plain"),
                    .dir = on_drive ? scratch_dir : NULL,
                    .progress = ends_early,
                    .progress_ctx = &ends};

    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, SAVED, NULL));
    save_whole(&r, path);
    assert_ok(strata_engine_set_lr(r.engine, LR));
    assert_ok(run_train(&r, SAVED, 1, NULL));
    if (tries)
        refuse(&r, path, &ends);
    assert_ok(run_train(&r, SAVED + 1, 1, &step));
    assert_true(step.lr == LR);
    assert_ok(strata_engine_digest(r.engine, d->weights, d->state));
    save_whole(&r, path);
    assert_non_null(strstr(path, "step-00000004"));
    run_close(&r);
}

TEST_SETUP(the_run_goes_on, scratch_create, scratch_remove)
{
    static const char *const updates[] = {"\"update\": \"serial\"", "\"update\": \"gated\""};

    for (int i = 0; i < 4; i++) {
        struct digests plain, d;

        go_on(false, updates[i % 2], i >= 2, &plain);
        go_on(true, updates[i % 2], i >= 2, &d);
        assert_alike(&d, &plain);
        scratch_remove(NULL);
        scratch_create(NULL);
    }
}

/* A run that has adopted a checkpoint's files has them still when it is refused another one. */
TEST_SETUP(a_run_that_has_resumed_goes_on, scratch_create, scratch_remove)
{
    struct digests ends[2];
    char path[512];

    for (int tries = 0; tries < 2; tries++) {
        struct strata_checkpoint *from = NULL;
        char text[640], last[512];
        bool stops = false;
        struct run r = {.text = config_of(text, 2, "\"keep\": 9", tries ? "tries" : "plain"),
                        .dir = scratch_dir,
                        .progress = ends_early,
                        .progress_ctx = &stops};

        assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
        assert_ok(run_start(&r));
        assert_ok(run_train(&r, 0, 1, NULL));
        save_whole(&r, path);
        assert_ok(run_train(&r, 1, 1, NULL));
        save_whole(&r, last);
        assert_ok(strata_checkpoint_open(&from, last));
        assert_ok(strata_engine_resume(r.engine, from, NULL));
        assert_true(st_engine_adopted(r.engine->run.engine));
        strata_checkpoint_close(from);
        if (tries)
            refuse(&r, path, &stops);
        assert_ok(run_train(&r, 2, 1, NULL));
        assert_ok(strata_engine_digest(r.engine, ends[tries].weights, ends[tries].state));
        run_close(&r);
    }
    assert_alike(&ends[1], &ends[0]);
}

/* --- two ranks --- */

struct rank {
    struct strata_comm comm;
    const char *from; /* NULL: none */
    struct run run;
    strata_status st, refused;
    char sentence[1024];
    struct digests d;
    pthread_t thread;
};

static strata_status start(struct rank *r)
{
    struct strata_model_opts model = STRATA_MODEL_OPTS_INIT;
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    const char *tokens = scratch_path("a.bin");
    strata_status st;

    config.text = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 1, \"bf16\": {\"enabled\": true},"
                  " \"gradient_clipping\": 1.0, \"zero_optimization\": {\"stage\": 2}, \"strata\": {\"threads\": 1}}";
    config.ranks = RANKS;
    model.model = "nano";
    model.seq_len = RUN_SEQ;
    model.comm = &r->comm;
    r->run.shape = (struct strata_model_info)STRATA_MODEL_INFO_INIT;
    if ((st = strata_config_open(&r->run.config, &config)) != STRATA_OK ||
        (st = strata_model_open(&r->run.model, r->run.config, &model)) != STRATA_OK ||
        (st = strata_model_get_info(r->run.model, &r->run.shape)) != STRATA_OK ||
        (st = strata_data_open(&r->run.data, r->run.model, &tokens, 1)) != STRATA_OK ||
        (st = strata_plan_make(&r->run.plan, r->run.model, NULL)) != STRATA_OK ||
        (st = strata_engine_create(&r->run.engine, r->run.plan, NULL)) != STRATA_OK)
        return st;
    return strata_engine_load(r->run.engine);
}

static strata_status train_and_try(struct rank *r)
{
    struct strata_checkpoint *from = NULL;
    strata_status st = start(r);

    if (st == STRATA_OK)
        st = run_train(&r->run, 0, 1, NULL);
    if (st == STRATA_OK && r->from != NULL && (st = strata_checkpoint_open(&from, r->from)) == STRATA_OK) {
        r->refused = strata_engine_resume(r->run.engine, from, NULL);
        snprintf(r->sentence, sizeof(r->sentence), "%s", strata_last_error());
        strata_checkpoint_close(from);
    }
    if (st == STRATA_OK)
        st = run_train(&r->run, 1, 1, NULL);
    return st == STRATA_OK ? strata_engine_digest(r->run.engine, r->d.weights, r->d.state) : st;
}

static void *run_rank(void *ctx)
{
    struct rank *r = ctx;

    if ((r->st = train_and_try(r)) != STRATA_OK)
        snprintf(r->sentence, sizeof(r->sentence), "%s", strata_last_error());
    run_close(&r->run);
    return NULL;
}

static void run_both(struct rank ranks[RANKS], const char *from)
{
    struct st_comm *comms[RANKS];

    assert_ok(st_comm_threads_open(comms, RANKS, DEADLINE_NS));
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.comm = {.comm = comms[r], .world = comms[r]->world, .source = ""}, .from = from};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(ranks[r].thread, NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        st_comm_close(comms[r]);
        if (ranks[r].st != STRATA_OK)
            fail_msg("rank %u: %s", r, ranks[r].sentence);
    }
}

/* Each rank reads its own part: what one finds, all refuse. */
TEST_SETUP(damage_that_one_rank_reads_is_refused_by_all, scratch_create, scratch_remove)
{
    struct rank plain[RANKS], tries[RANKS];
    char text[640], path[512];
    struct run one = {.text = config_of(text, 1, "\"keep\": 1", "save")};

    assert_ok(run_open(&one, run_tokens("a.bin", TOKENS)));
    assert_ok(run_start(&one));
    assert_ok(run_train(&one, 0, 1, NULL));
    save_whole(&one, path);
    run_close(&one);
    damage(path);
    run_both(plain, NULL);
    run_both(tries, path);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(tries[r].refused, STRATA_E_CORRUPT);
        assert_alike(&tries[r].d, &plain[r].d);
    }
}
