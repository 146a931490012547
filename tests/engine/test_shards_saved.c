/* test_shards_saved - a checkpoint that ranks make together is what one rank would have made of the same run, and any number of
 * ranks resumes from one of any number. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/checkpoint/verify.h"
#include "offload/comm/comm.h"
#include "rig.h"
#include "run/checkpointer.h"
#include "run/resume_volumes.h"
#include "run/run_describe.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define RANKS_MOST  4u
#define SETS        3u
#define MICROS      4u /* of a step, of all ranks */
#define SAVED_AFTER 2u
#define WORLDS      3u /* one goes on from the other */
#define DEADLINE_NS UINT64_C(60000000000)

/* One rank, from its plan to its end: what it is to do, and what came of it. */
struct rank {
    struct rig_cell cell;
    const char *from; /* the checkpoint that it resumes from; NULL: it trains first */
    uint64_t step;    /* that it saves; 0: none */
    bool twice;       /* and the step after that, too */
    uint32_t trains;  /* steps of a run in all, that saves after the second; 0: no such run */
    char dir[64];
    pthread_t thread;

    strata_status status, saved, saved_first; /* first: of two */
    char sentence[1024], first_sentence[1024], weights[33], state[33], path[ST_PATH_MAX];
    bool adopted;
    uint64_t overflowed; /* weights of its own, at the end */

    struct st_model *st_model;
    struct st_plan *st_plan;
    struct st_config config;
    struct st_run run;
    struct rig_engine rig;
};

static struct rig_cell cell_of(strata_tier param, strata_tier optimizer)
{
    struct rig_cell cell = rig_swapped();

    cell.device = cell.host = RIG_ALL;
    cell.param = param;
    cell.optimizer = optimizer;
    cell.io_method = "threads"; /* rings of several threads, mapped where others were, are a race to the thread sanitizer */
    cell.update = ST_UPDATE_SERIAL;
    cell.sets = SETS;
    return cell;
}

static strata_status open_rank(struct rank *r)
{
    strata_status st = rig_model(&r->st_model, &r->cell);

    if (st == STRATA_OK)
        st = rig_plan(&r->st_plan, r->st_model, &r->cell);
    if (st != STRATA_OK || (st = rig_engine_start(&r->rig, r->st_model, r->st_plan, &r->cell, r->dir)) != STRATA_OK)
        return st;
    rig_config(&r->config, &r->cell, r->dir);
    snprintf(r->config.save, sizeof(r->config.save), "%s/save", scratch_dir);
    r->config.keep = 2;
    r->config.leaves = 1;
    r->run =
        (struct st_run){.config = &r->config, .model = r->st_model, .program = &r->st_plan->program, .engine = r->rig.engine};
    return STRATA_OK;
}

static void close_rank(struct rank *r)
{
    st_checkpointer_stop(r->run.checkpointer);
    if (r->rig.engine != NULL)
        st_resume_volumes_free(r->run.resumed, r->rig.engine);
    rig_engine_stop(&r->rig);
    st_checkpointer_close(r->run.checkpointer);
    st_plan_destroy(r->st_plan);
    st_model_destroy(r->st_model);
    r->run = (struct st_run){0};
}

static strata_status train(struct rank *r)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    struct st_step_result result;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < r->step && st == STRATA_OK; i++) {
        rig_tokens(tokens, targets, &r->cell, i);
        st = st_engine_step(r->rig.engine, tokens, targets, NULL, &result);
    }
    return st;
}

static strata_status resume(struct rank *r)
{
    const uint32_t cuts = st_program_cuts(&r->st_plan->program);
    struct st_resume_opts opts = {0};
    struct st_checkpoint *ck;
    strata_status st = st_checkpoint_open(&ck, r->from);
    bool own;

    if (st != STRATA_OK)
        return st;
    own = cuts > 1 && st_manifest_parts(&ck->manifest) == cuts;
    r->run.resumed = calloc(1, sizeof(*r->run.resumed));
    st = st_resume_volumes_open(r->run.resumed, r->rig.engine, ck, own ? r->cell.rank : ST_CHECKPOINT_PARTS);
    opts.extents = &ck->extents;
    opts.train = &ck->manifest.train;
    opts.volumes = r->run.resumed->volumes;
    opts.own = own ? r->run.resumed->own_volumes : NULL;
    opts.part_bytes = ck->manifest.space_bytes;
    if (st == STRATA_OK)
        st = st_engine_resume(r->rig.engine, &opts);
    if (st == STRATA_OK)
        r->adopted = st_engine_adopted(r->rig.engine);
    if (!r->adopted) {
        st_resume_volumes_free(r->run.resumed, r->rig.engine);
        r->run.resumed = NULL;
    }
    if (st == STRATA_OK && r->run.checkpointer != NULL)
        st = st_checkpointer_begin(r->run.checkpointer, ck);
    st_checkpoint_close(ck);
    return st;
}

static strata_status save_step(struct rank *r, uint64_t step)
{
    struct strata_saved saved = {0};
    struct st_manifest m;
    strata_status st = st_run_describe(&m, &r->run, &(struct st_run_data){0});

    if (st != STRATA_OK)
        return st;
    m.step = m.train.steps_applied = step; /* a resumed run has made no step here */
    (void)st_checkpointer_save(r->run.checkpointer, &m);
    r->saved = st_checkpointer_ask(r->run.checkpointer, true, &saved);
    snprintf(r->sentence, sizeof(r->sentence), "%s", r->saved != STRATA_OK ? strata_last_error() : "");
    snprintf(r->path, sizeof(r->path), "%s", saved.path != NULL && r->saved == STRATA_OK ? saved.path : "");
    return STRATA_OK;
}

static strata_status save(struct rank *r)
{
    const strata_status st = save_step(r, r->step);

    if (st != STRATA_OK || !r->twice)
        return st;
    r->saved_first = r->saved;
    memcpy(r->first_sentence, r->sentence, sizeof(r->sentence));
    return save_step(r, r->step + 1);
}

/* Trains to the run's end, from wherever it is. */
static strata_status train_on(struct rank *r)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    struct strata_saved saved;
    struct st_step_result result;
    strata_status st = STRATA_OK;

    for (uint32_t i = (uint32_t)st_engine_train_state(r->rig.engine)->steps_applied; i < r->trains && st == STRATA_OK; i++) {
        struct st_manifest m;

        rig_tokens(tokens, targets, &r->cell, i);
        st = st_checkpointer_step(r->run.checkpointer, tokens, targets, NULL, &result);
        if (st != STRATA_OK || i + 1 != SAVED_AFTER || r->from != NULL)
            continue;
        if ((st = st_run_describe(&m, &r->run, &(struct st_run_data){0})) == STRATA_OK)
            st = st_checkpointer_save(r->run.checkpointer, &m);
    }
    if (st == STRATA_OK)
        st = st_checkpointer_ask(r->run.checkpointer, true, &saved);
    if (st == STRATA_OK)
        snprintf(r->path, sizeof(r->path), "%s", saved.path != NULL ? saved.path : "");
    return st == STRATA_OK ? st_engine_digest(r->rig.engine, r->weights, r->state) : st;
}

static strata_status live(struct rank *r)
{
    strata_status st = open_rank(r);

    if (st == STRATA_OK && (r->step > 0 || r->trains > 0) && (st = st_checkpointer_open(&r->run.checkpointer, &r->run, false)) == STRATA_OK)
        st = st_checkpointer_attach(r->run.checkpointer);
    if (st == STRATA_OK && r->from != NULL)
        st = resume(r);
    else if (st == STRATA_OK && r->trains > 0)
        st = st_checkpointer_begin(r->run.checkpointer, NULL);
    else if (st == STRATA_OK && (st = st_checkpointer_begin(r->run.checkpointer, NULL)) == STRATA_OK)
        st = train(r);
    if (st == STRATA_OK && r->trains > 0)
        return train_on(r);
    if (st == STRATA_OK)
        st = st_engine_digest(r->rig.engine, r->weights, r->state);
    return st == STRATA_OK && r->step > 0 ? save(r) : st;
}

static void *run_rank(void *arg)
{
    struct rank *r = arg;

    r->status = live(r);
    if (r->status != STRATA_OK)
        snprintf(r->sentence, sizeof(r->sentence), "%s", strata_last_error());
    if (r->rig.engine != NULL)
        r->overflowed = st_engine_train_state(r->rig.engine)->overflowed_host;
    close_rank(r);
    return NULL;
}

/* Runs all ranks of a world, and returns when all have ended. */
static void run_world(struct rank ranks[RANKS_MOST], const struct rig_cell *cell, uint32_t count, const struct rank *what)
{
    struct st_comm *comms[RANKS_MOST] = {NULL};

    memset(ranks, 0, RANKS_MOST * sizeof(*ranks));
    if (count > 1)
        assert_int_equal(st_comm_threads_open(comms, count, DEADLINE_NS), STRATA_OK);
    for (uint32_t r = 0; r < count; r++) {
        const uint32_t stage = cell->stage;

        ranks[r].cell = *cell;
        ranks[r].cell.ranks = count;
        ranks[r].cell.rank = r;
        ranks[r].cell.stage = stage;
        ranks[r].cell.comm = comms[r];
        ranks[r].from = what->from;
        ranks[r].step = what->step;
        ranks[r].twice = what->twice;
        ranks[r].trains = what->trains;
        snprintf(ranks[r].dir, sizeof(ranks[r].dir), "%s/rank-%u", scratch_dir, r);
        assert_true(mkdir(ranks[r].dir, 0700) == 0 || errno == EEXIST);
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < count; r++) {
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
        st_comm_close(comms[r]);
    }
    for (uint32_t r = 0; r < count; r++)
        if (ranks[r].status != STRATA_OK)
            fail_msg("rank %u of %u: %s", r, count, ranks[r].sentence);
}

static void check_digests(const struct rank *ranks, uint32_t count, const struct rank *first)
{
    for (uint32_t r = 0; r < count; r++)
        if (strcmp(ranks[r].weights, first->weights) != 0 || strcmp(ranks[r].state, first->state) != 0)
            fail_msg("rank %u of %u resumed weights %s and state %s, saved were %s and %s", r, count, ranks[r].weights,
                     ranks[r].state, first->weights, first->state);
}

static void check_saved(const struct rank *ranks, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        if (ranks[r].saved != STRATA_OK)
            fail_msg("rank %u of %u saved nothing: %s", r, count, ranks[r].sentence);
}

/* What reads the checkpoint by itself finds the same in it. */
static void check_file(const char *path, const struct rank *first)
{
    char weights[ST_DIGEST_TEXT], state[ST_DIGEST_TEXT];
    struct st_checkpoint *ck;

    if (st_checkpoint_open(&ck, path) != STRATA_OK || st_verify_digest(ck, NULL, NULL, weights, state) != STRATA_OK)
        fail_msg("%s: %s", path, strata_last_error());
    assert_string_equal(weights, first->weights);
    assert_string_equal(state, first->state);
    st_checkpoint_close(ck);
}

/* --- tests --- */

/* One rank trains and saves; worlds of all sizes resume from that, save, and resume from what worlds of other sizes saved. */
static void check(const struct rig_cell *cell)
{
    struct rank first[RANKS_MOST], ranks[RANKS_MOST];
    static const uint32_t worlds[] = {3, 2, 2, 4, 1};
    char from[ST_PATH_MAX];

    scratch_open();
    run_world(first, cell, 1, &(struct rank){.step = 2});
    check_saved(first, 1);
    snprintf(from, sizeof(from), "%s", first[0].path);
    for (uint32_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        const bool again = i == 2, swapped = cell->param == STRATA_TIER_NVME || cell->optimizer == STRATA_TIER_NVME;

        /* What is adopted has to be updated before it is saved. */
        run_world(ranks, cell, worlds[i], &(struct rank){.from = from, .step = again ? 0 : 3 + i});
        check_digests(ranks, worlds[i], &first[0]);
        check_saved(ranks, worlds[i]);
        for (uint32_t r = 0; r < worlds[i] && swapped; r++)
            assert_int_equal(ranks[r].adopted, again && cell->stage > 0);
        if (again)
            continue;
        snprintf(from, sizeof(from), "%s", ranks[0].path);
        assert_true(scratch_entries_with(from, "extents") == 1); /* the parts' rows are gone */
        check_file(from, &first[0]);
    }
    scratch_close();
}

TEST(any_number_resumes_from_any)
{
    static const strata_tier tiers[] = {STRATA_TIER_NVME, STRATA_TIER_HOST, STRATA_TIER_DEVICE};

    for (uint32_t i = 0; i < 3; i++) {
        struct rig_cell cell = cell_of(tiers[i], tiers[i]);

        cell.stage = 3;
        cell.freeze = i == 1 ? NULL : "transformer.h.1.*";
        check(&cell);
    }
}

/* Each of them keeps all of it, and rank 0 saves. */
TEST(with_the_whole_on_every_rank_one_saves)
{
    struct rig_cell cell = cell_of(STRATA_TIER_HOST, STRATA_TIER_HOST);

    check(&cell);
}

/* A failure on one rank fails the checkpoint on all of them, leaves nothing of it, and the next one is made. */
TEST(what_fails_on_one_fails_on_all)
{
    static const struct {
        const char *name;
        uint32_t after; /* passages before the save */
    } sites[] = {{"commit.open", 1},  {"commit.alloc", 4},  {"commit.alloc", 7}, {"commit.unlink", 1},
                 {"commit.mkdir", 0}, {"extents.alloc", 8}, {"store.rename", 0}, {"store.mkdir", 4}};
    struct rig_cell cell = cell_of(STRATA_TIER_HOST, STRATA_TIER_HOST); /* all of it is written by each save */
    struct rank first[RANKS_MOST], ranks[RANKS_MOST];
    uint32_t fired = 0;

    cell.stage = 3;
    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        scratch_open();
        run_world(first, &cell, 1, &(struct rank){.step = 2});
        st_fault_arm(&(struct st_fault_spec){.site = sites[i].name, .after = sites[i].after, .count = 1, .result = -ENOSPC});
        run_world(ranks, &cell, 3, &(struct rank){.from = first[0].path, .step = 3, .twice = true});
        fired = st_fault_disarm();
        for (uint32_t r = 0; r < 3; r++) {
            if (fired > 0 && (ranks[r].saved_first == STRATA_OK || strstr(ranks[r].first_sentence, "rank ") == NULL))
                fail_msg("%s: rank %u of 3 says of its checkpoint: %d %s", sites[i].name, r, ranks[r].saved_first,
                         ranks[r].first_sentence);
            assert_true(fired > 0 || ranks[r].saved_first == STRATA_OK);
        }
        check_saved(ranks, 3);
        check_file(ranks[0].path, &first[0]);
        assert_true(scratch_entries_with(scratch_path("save"), "step-00000003") == (fired == 0));
        assert_int_equal(scratch_entries_with(scratch_path("save"), ".strata-save"), 0);
        print_message("%s: fired %u times: %s\n", sites[i].name, fired, ranks[1].first_sentence);
        scratch_close();
    }
}

/* Runs that one world begins and another goes on with end as the run of one rank that never stopped. */
static void check_run(const struct rig_cell *cell, const uint32_t worlds[WORLDS])
{
    struct rank whole[RANKS_MOST], began[RANKS_MOST], went_on[RANKS_MOST];
    struct rig_cell c = *cell;

    c.leaves = MICROS;
    c.grad_accum = MICROS;
    scratch_open();
    run_world(whole, &c, 1, &(struct rank){.trains = 5});
    scratch_close();
    for (uint32_t i = 0; i + 1 < WORLDS; i++) {
        scratch_open();
        c.leaves = c.grad_accum = MICROS / worlds[i];
        run_world(began, &c, worlds[i], &(struct rank){.trains = 4});
        c.leaves = c.grad_accum = MICROS / worlds[i + 1];
        run_world(went_on, &c, worlds[i + 1], &(struct rank){.trains = 5, .from = began[0].path});
        check_digests(went_on, worlds[i + 1], &whole[0]);
        for (uint32_t r = 0; r < worlds[i + 1]; r++)
            assert_int_equal(went_on[r].adopted, c.stage > 0 ? worlds[i] == worlds[i + 1] : true);
        scratch_close();
    }
}

TEST(a_run_goes_on_in_another_world)
{
    static const struct {
        uint32_t worlds[WORLDS];
        strata_tier param, optimizer;
        enum st_update_policy update;
        uint32_t stage;
        const char *freeze;
    } rows[] = {
        {{1, 2, 2}, STRATA_TIER_NVME, STRATA_TIER_NVME, ST_UPDATE_GATED, 3, "transformer.h.1.*"},
        {{2, 4, 1}, STRATA_TIER_HOST, STRATA_TIER_HOST, ST_UPDATE_GATED, 3, NULL},
        {{4, 2, 1}, STRATA_TIER_DEVICE, STRATA_TIER_HOST, ST_UPDATE_SERIAL, 2, NULL},
        {{2, 2, 4}, STRATA_TIER_DEVICE, STRATA_TIER_DEVICE, ST_UPDATE_GATED, 1, "transformer.h.1.*"},
        {{1, 2, 4}, STRATA_TIER_HOST, STRATA_TIER_NVME, ST_UPDATE_GATED, 0, NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rig_cell cell = cell_of(rows[i].param, rows[i].optimizer);

        cell.update = rows[i].update;
        cell.stage = rows[i].stage;
        cell.freeze = rows[i].freeze;
        check_run(&cell, rows[i].worlds);
    }
}

/* Each rank counts the weights of its own part that became infinite: a checkpoint has the counts of all, and who resumes from it
 * tells of each once. */
TEST(overflows_of_all_ranks_are_saved)
{
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct rank began[RANKS_MOST], went_on[RANKS_MOST];
        struct rig_cell cell = cell_of(STRATA_TIER_HOST, STRATA_TIER_HOST);
        struct st_checkpoint *ck;
        uint64_t all = 0;

        cell.stage = stage;
        cell.rule = STRATA_LION;
        cell.lr = 3.4e38;
        scratch_open();
        run_world(began, &cell, 2, &(struct rank){.step = 1});
        check_saved(began, 2);
        for (uint32_t r = 0; r < 2; r++) {
            assert_true(began[r].overflowed > 0);
            all += stage > 0 || r == 0 ? began[r].overflowed : 0; /* else both have counted all of them */
        }
        assert_int_equal(st_checkpoint_open(&ck, began[0].path), STRATA_OK);
        assert_int_equal(ck->manifest.train.overflowed_host - ck->manifest.train.overflowed_seen, all);
        st_checkpoint_close(ck);
        run_world(went_on, &cell, 2, &(struct rank){.from = began[0].path});
        assert_int_equal(went_on[0].overflowed, all);
        assert_int_equal(went_on[1].overflowed, stage > 0 ? 0 : all);
        scratch_close();
    }
}
