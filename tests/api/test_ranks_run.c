/* tests/api/test_ranks_run.c - two ranks that run: what one of them has is what the other has, also where it is a failure. */
#include "api/handles.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS       2u
#define DEADLINE_NS UINT64_C(20000000000)

static const char config_text[] = "{\"train_micro_batch_size_per_gpu\": 2, \"zero_optimization\": {\"stage\": 3}, "
                                  "\"bf16\": {\"enabled\": true}, \"strata\": {\"threads\": 1, \"host_memory\": \"64M\"}}";

struct rank {
    struct strata_comm comm;
    const char *machine, *ends; /* ends: the work that the progress function ends */
    int let;                    /* calls of it that go on; below 0: all */
    atomic_int calls;           /* of it */
    strata_status opened, first, second, asked;
    char sentence[1024], weights[33], state[33];
    struct strata_config *config;
    struct strata_model *model;
    struct strata_plan *plan;
    struct strata_engine *engine;
    pthread_t thread;
};

static bool ends_early(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct rank *r = ctx;

    (void)done;
    (void)total;
    return r->let < 0 || strcmp(what, r->ends) != 0 || atomic_fetch_add(&r->calls, 1) < r->let;
}

static strata_status open_rank(struct rank *r)
{
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts model = STRATA_MODEL_OPTS_INIT;
    struct strata_machine_opts given = STRATA_MACHINE_OPTS_INIT;
    struct strata_machine *machine = NULL;
    strata_status st;

    config.text = config_text;
    config.ranks = RANKS;
    model.model = "nano";
    model.seq_len = RUN_SEQ;
    given.comm = model.comm = &r->comm;
    given.file = r->machine;
    model.progress = ends_early;
    model.progress_ctx = r;
    if ((st = strata_config_open(&r->config, &config)) != STRATA_OK ||
        (st = strata_model_open(&r->model, r->config, &model)) != STRATA_OK ||
        (st = strata_machine_open(&machine, &given)) != STRATA_OK)
        return st;
    st = strata_plan_make(&r->plan, r->model, machine);
    strata_machine_close(machine);
    return st;
}

static void keep_first(struct rank *r, strata_status st)
{
    r->first = st;
    snprintf(r->sentence, sizeof(r->sentence), "%s", st != STRATA_OK ? strata_last_error() : "");
    r->let = -1;
}

static void *load_twice(void *ctx)
{
    struct rank *r = ctx;

    if ((r->opened = open_rank(r)) != STRATA_OK || (r->opened = strata_engine_create(&r->engine, r->plan, NULL)) != STRATA_OK)
        return NULL;
    keep_first(r, strata_engine_load(r->engine));
    r->second = strata_engine_load(r->engine);
    r->asked = strata_engine_digest(r->engine, r->weights, r->state);
    return NULL;
}

static void *measure_and_run(void *ctx)
{
    struct rank *r = ctx;

    if ((r->opened = open_rank(r)) != STRATA_OK)
        return NULL;
    keep_first(r, strata_plan_measure(r->plan));
    if ((r->second = strata_engine_create(&r->engine, r->plan, NULL)) == STRATA_OK &&
        (r->second = strata_engine_load(r->engine)) == STRATA_OK)
        r->asked = strata_engine_digest(r->engine, r->weights, r->state);
    return NULL;
}

static void close_rank(struct rank *r)
{
    strata_engine_destroy(r->engine);
    strata_plan_destroy(r->plan);
    strata_model_close(r->model);
    strata_config_close(r->config);
    st_comm_close(r->comm.comm);
}

/* Both have heard of what rank 1 ends, and what follows it is alike on both. */
static void run_both(struct rank ranks[RANKS], void *(*work)(void *))
{
    struct st_comm *comms[RANKS];

    assert_ok(st_comm_threads_open(comms, RANKS, DEADLINE_NS));
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i].comm = (struct strata_comm){.comm = comms[i], .world = comms[i]->world, .source = ""};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, work, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct strata_plan_info info = STRATA_PLAN_INFO_INIT;

        assert_status(ranks[i].opened, STRATA_OK, "two ranks");
        assert_ok(strata_plan_get_info(ranks[i].plan, &info));
        assert_int_equal(info.capacity_bytes[STRATA_TIER_HOST], UINT64_C(64) << 20); /* divided once, where ranks meet */
        assert_status(ranks[i].first, STRATA_E_CANCELLED, "what rank 1 ends");
        if (strstr(ranks[i].sentence, ranks[1].ends) == NULL || strstr(ranks[i].sentence, "was cancelled") == NULL)
            fail_msg("rank %u: %s", i, ranks[i].sentence);
        assert_status(ranks[i].second, STRATA_OK, "what follows it");
        assert_status(ranks[i].asked, STRATA_OK, "digests");
        assert_string_equal(ranks[i].weights, ranks[0].weights);
        assert_string_equal(ranks[i].state, ranks[0].state);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        close_rank(&ranks[i]);
}

/* Whenever one of them asks for its end, none has loaded, and both load again. */
TEST(a_load_that_ends_on_one_ends_on_all)
{
    for (int let = 0; let < 3; let++) {
        struct rank ranks[RANKS] = {{.let = -1}, {.let = let, .ends = "making initial weights"}};

        run_both(ranks, load_twice);
    }
}

/* The other one has nothing to measure. */
TEST(measuring_ends_on_all)
{
    struct rank ranks[RANKS] = {{.let = -1, .machine = "tests/machines/two-cores.json"},
                                {.ends = "measuring the rates of this machine"}};

    run_both(ranks, measure_and_run);
}

static atomic_bool steps;

/* Rank 0 makes a step, rank 1 does not. */
static void *step_alone(void *ctx)
{
    static int32_t tokens[4 * RUN_SEQ];
    struct rank *r = ctx;

    if ((r->opened = open_rank(r)) != STRATA_OK || (r->opened = strata_engine_create(&r->engine, r->plan, NULL)) != STRATA_OK ||
        (r->opened = strata_engine_load(r->engine)) != STRATA_OK || r->comm.world.rank != 0)
        return NULL;
    atomic_store(&steps, true);
    r->first = strata_engine_step(r->engine, tokens, tokens, NULL, NULL);
    return NULL;
}

/* A cancel ends the wait for it, long before the deadline, which the test does not live to see. */
TEST(a_wait_for_a_silent_rank_is_cancelled)
{
    struct rank ranks[RANKS] = {{.let = -1}, {.let = -1}};
    struct st_comm *comms[RANKS];

    assert_ok(st_comm_threads_open(comms, RANKS, ST_COMM_DEADLINE_NS));
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i].comm = (struct strata_comm){.comm = comms[i], .world = comms[i]->world, .source = ""};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, step_alone, &ranks[i]), 0);
    }
    while (!atomic_load(&steps))
        sched_yield();
    for (uint32_t i = 0; i < 1000; i++) /* until it waits, or nearly so */
        sched_yield();
    strata_engine_cancel(ranks[0].engine);
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    assert_ok(ranks[0].opened);
    assert_ok(ranks[1].opened);
    assert_status(ranks[0].first, STRATA_E_CANCELLED, "a cancelled wait");
    for (uint32_t i = 0; i < RANKS; i++)
        close_rank(&ranks[i]);
}

static void *only_opens(void *ctx)
{
    struct rank *r = ctx;

    r->opened = open_rank(r);
    return NULL;
}

/* The connections of the ranks are their processes'. */
TEST(a_child_of_a_rank_creates_no_engine)
{
    struct rank ranks[RANKS] = {{.let = -1}, {.let = -1}};
    struct st_comm *comms[RANKS];
    int status = 0;
    pid_t pid;

    assert_ok(st_comm_threads_open(comms, RANKS, DEADLINE_NS));
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i].comm = (struct strata_comm){.comm = comms[i], .world = comms[i]->world, .source = ""};
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, only_opens, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        _exit(strata_engine_create(&ranks[0].engine, ranks[0].plan, NULL) != STRATA_E_INVAL ||
              strstr(strata_last_error(), "its child") == NULL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (uint32_t i = 0; i < RANKS; i++)
        close_rank(&ranks[i]);
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_WARN);
    return test_run(NULL, NULL);
}
