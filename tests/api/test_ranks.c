/* tests/api/test_ranks.c - models of several ranks, each on a thread of its own: what they must have alike, what becomes the
 * smallest of all, whose data is whose, turns, and who is on one machine. */
#include "api/handles.h"
#include "run/ranks_agree.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/free_port.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_MOST  4u
#define DEADLINE_NS UINT64_C(20000000000)
#define TOKENS      1000u

static const char config_text[] = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2}";

/* One rank: what it asks for, and what it got. */
struct rank {
    struct strata_comm comm;
    struct strata_comm_opts who; /* of one that meets the others at the door, */
    struct strata_comm *door;    /* and what it got there; NULL: `comm` */
    struct strata_comm *all;     /* NULL for one rank alone */
    const char *model, *override, *data;
    enum strata_use use;
    bool documents;
    uint32_t seq_len;
    uint64_t seed;
    strata_status opened, read;
    char sentence[1024];
    struct strata_model_info info;
    struct strata_config *config;
    struct strata_model *handle;
    struct strata_data *tokens;
    struct strata_plan *plan;
    pthread_t thread;
    struct rank *of; /* the first one */
};

static void keep_sentence(struct rank *r, strata_status st)
{
    snprintf(r->sentence, sizeof(r->sentence), "%s", st != STRATA_OK ? strata_last_error() : "");
}

static void *open_rank(void *ctx)
{
    struct rank *r = ctx;
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts model = STRATA_MODEL_OPTS_INIT;

    config.text = config_text;
    config.overrides = &r->override;
    config.override_count = r->override != NULL;
    model.comm = r->door != NULL ? r->door : &r->comm;
    config.ranks = model.comm->world.ranks;
    model.model = r->model != NULL ? r->model : "nano";
    model.seq_len = r->seq_len != 0 ? r->seq_len : RUN_SEQ;
    model.seed = r->seed;
    model.use = r->use;
    model.documents = r->documents;
    r->opened = strata_config_open(&r->config, &config);
    if (r->opened == STRATA_OK)
        r->opened = strata_model_open(&r->handle, r->config, &model);
    keep_sentence(r, r->opened);
    r->info = (struct strata_model_info)STRATA_MODEL_INFO_INIT;
    if (r->opened != STRATA_OK || strata_model_get_info(r->handle, &r->info) != STRATA_OK || r->data == NULL)
        return NULL;
    r->read = strata_data_open(&r->tokens, r->handle, &r->data, 1);
    keep_sentence(r, r->read);
    return NULL;
}

static void meet(struct rank *ranks, uint32_t count)
{
    struct st_comm *comms[RANKS_MOST];

    assert_ok(st_comm_threads_open(comms, count, DEADLINE_NS));
    for (uint32_t r = 0; r < count; r++) {
        ranks[r].comm = (struct strata_comm){.comm = comms[r], .world = comms[r]->world, .source = ""};
        ranks[r].of = ranks;
    }
}

static void run_ranks(struct rank *ranks, uint32_t count, void *(*work)(void *))
{
    for (uint32_t r = 0; r < count; r++)
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, work, &ranks[r]), 0);
    for (uint32_t r = 0; r < count; r++)
        pthread_join(ranks[r].thread, NULL);
}

static void part(struct rank *ranks, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++) {
        strata_data_close(ranks[r].tokens);
        strata_model_close(ranks[r].handle);
        strata_config_close(ranks[r].config);
        strata_comm_close(ranks[r].door);
        st_comm_close(ranks[r].comm.comm);
    }
}

/* --- what is alike --- */

TEST(parts_of_the_data_are_the_whole)
{
    static int32_t whole[RANKS_MOST * 4 * RUN_SEQ], whole_targets[RANKS_MOST * 4 * RUN_SEQ];
    static int32_t part_tokens[4 * RUN_SEQ], part_targets[4 * RUN_SEQ];
    static const enum strata_data_order orders[] = {STRATA_DATA_SHUFFLED, STRATA_DATA_IN_ORDER, STRATA_DATA_EPOCHS};
    struct rank ranks[3] = {0};

    scratch_open();
    for (uint32_t r = 0; r < 3; r++)
        ranks[r].data = run_tokens("data.bin", TOKENS);
    meet(ranks, 3);
    run_ranks(ranks, 3, open_rank);
    for (uint32_t r = 0; r < 3; r++) {
        if (ranks[r].opened != STRATA_OK || ranks[r].read != STRATA_OK)
            fail_msg("rank %u: %s", r, ranks[r].sentence);
        assert_int_equal(ranks[r].info.rank, r);
        assert_int_equal(ranks[r].info.ranks, 3);
        assert_int_equal(ranks[r].info.step_sequences, 4);
        assert_int_equal(ranks[r].info.world_sequences, 12);
    }
    for (size_t o = 0; o < 3; o++)
        for (uint64_t first = 0; first < 72; first += 12) { /* beyond the end of the data, too */
            assert_ok(strata_data_read(ranks[0].tokens, orders[o], 7, first, 12, whole, whole_targets, NULL));
            for (uint32_t r = 0; r < 3; r++) {
                assert_ok(
                    strata_data_read_part(ranks[r].tokens, orders[o], 7, first, 12, r * 4, 4, part_tokens, part_targets, NULL));
                assert_memory_equal(part_tokens, whole + (size_t)r * 4 * RUN_SEQ, sizeof(part_tokens));
                assert_memory_equal(part_targets, whole_targets + (size_t)r * 4 * RUN_SEQ, sizeof(part_targets));
            }
        }
    assert_refused(strata_data_read_part(ranks[0].tokens, STRATA_DATA_SHUFFLED, 0, 0, 4, 1, 4, part_tokens, part_targets, NULL),
                   "sequences 1 to 5 of 4");
    assert_refused(
        strata_data_read_part(ranks[0].tokens, STRATA_DATA_SHUFFLED, 0, 0, 2, UINT32_MAX, 1, part_tokens, part_targets, NULL),
        "sequences 4294967295 to 4294967296 of 2");
    part(ranks, 3);
    scratch_close();
}

/* Every rank says the same, and what: rank 1 is the one that differs. */
TEST(what_differs_is_named)
{
    static const struct {
        struct rank odd;
        const char *words[3];
    } rows[] = {
        {{.seed = 9}, {"model.seed differs", "rank 0 has 0", "rank 1 has 9"}},
        {{.use = STRATA_USE_EVAL}, {"the use of the model differs"}},
        {{.documents = true}, {"whether sequences hold several documents differs", "rank 0 has false", "rank 1 has true"}},
        {{.seq_len = 8}, {"model.seq_len differs", "rank 1 has 8"}},
        {{.model = "mini"}, {"the model's number of blocks differs", "rank 0 has", "rank 1 has"}},
        {{.override = "optimizer.params.lr=0.5"}, {"optimizer.params.lr differs", "rank 1 has 0.5"}},
        {{.override = "zero_optimization.stage=3"}, {"zero_optimization.stage differs", "rank 0 has 0", "rank 1 has 3"}},
        {{.override = "strata.cache=0"}, {"strata.cache differs", "rank 0 has auto"}},
        {{.override = "fp16.enabled=true"}, {"fp16.enabled differs"}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rank ranks[2] = {[1] = rows[i].odd};

        meet(ranks, 2);
        run_ranks(ranks, 2, open_rank);
        for (uint32_t r = 0; r < 2; r++) {
            assert_status(ranks[r].opened, STRATA_E_CONFIG, rows[i].words[0]);
            for (size_t w = 0; w < 3 && rows[i].words[w] != NULL; w++)
                if (strstr(ranks[r].sentence, rows[i].words[w]) == NULL)
                    fail_msg("\"%s\" lacks \"%s\"", ranks[r].sentence, rows[i].words[w]);
        }
        assert_string_equal(ranks[0].sentence, ranks[1].sentence);
        part(ranks, 2);
    }
}

static void in_scratch(const char *command)
{
    char line[512];

    snprintf(line, sizeof(line), "cd %s && %s", scratch_dir, command);
    assert_int_equal(system(line), 0);
}

/* What rank 1 has differs from what rank 0 has by what a command of the shell does to it. */
struct difference {
    const char *command, *says;
};

static void check_difference(struct rank ranks[2], const struct difference *d, bool opened)
{
    meet(ranks, 2);
    run_ranks(ranks, 2, open_rank);
    for (uint32_t r = 0; r < 2; r++) {
        assert_status(opened ? ranks[r].read : ranks[r].opened, d->says == NULL ? STRATA_OK : STRATA_E_CONFIG, d->command);
        if (d->says != NULL && strstr(ranks[r].sentence, d->says) == NULL)
            fail_msg("\"%s\" lacks \"%s\"", ranks[r].sentence, d->says);
    }
    part(ranks, 2);
}

TEST(other_data_is_refused)
{
    static const struct difference rows[] = {
        {"cp one.bin two.bin", NULL},
        {"cp one.bin two.bin && printf '\\001\\000\\002\\000' | dd of=two.bin bs=1 seek=2900 conv=notrunc 2>/dev/null",
         "the hash of samples of the data"},
        {"cp more.bin two.bin", "sequences of the data"},
    };
    char one[64], two[64];

    scratch_open();
    snprintf(one, sizeof(one), "%s", run_tokens("one.bin", TOKENS));
    snprintf(two, sizeof(two), "%s", scratch_path("two.bin"));
    (void)run_tokens("more.bin", TOKENS + RUN_SEQ);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        in_scratch(rows[i].command);
        check_difference((struct rank[2]){{.data = one}, {.data = two}}, &rows[i], true);
    }
    scratch_close();
}

/* Directories of one shape. */
TEST(other_weights_are_refused)
{
    static const struct difference rows[] = {
        {"cp -r m0 m1", NULL},
        {"printf ' ' >>m1/config.json", "the hash of the model's config.json"},
        {"cp m0/config.json m1 && head -c 40000 /dev/zero | dd of=m1/model.safetensors bs=1000 seek=30 conv=notrunc 2>/dev/null",
         "the hash of samples of its weights"},
    };
    struct strata_export *out = NULL;
    struct run r = {0};
    char m0[64], m1[64];

    scratch_open();
    snprintf(m0, sizeof(m0), "%s", scratch_path("m0"));
    snprintf(m1, sizeof(m1), "%s", scratch_path("m1"));
    assert_ok(run_open(&r, NULL));
    assert_ok(run_start(&r));
    assert_ok(strata_export_open(&out, r.model, m0, NULL));
    assert_ok(strata_engine_export(r.engine, out));
    run_close(&r);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        in_scratch(rows[i].command);
        check_difference((struct rank[2]){{.model = m0}, {.model = m1}}, &rows[i], false);
    }
    scratch_close();
}

/* --- the smallest of all --- */

/* Plans for this machine, or for that of a file (r->model), whose rates are taken. */
static void *plan_rank(void *ctx)
{
    struct rank *r = ctx;
    struct strata_model_opts model = STRATA_MODEL_OPTS_INIT;
    struct strata_machine_opts given = STRATA_MACHINE_OPTS_INIT;
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_machine *machine = NULL;

    config.text = config_text;
    config.overrides = &r->override;
    config.override_count = 1;
    config.ranks = r->comm.world.ranks;
    model.model = "nano";
    model.seq_len = RUN_SEQ;
    given.file = r->model;
    given.comm = model.comm = &r->comm;
    r->opened = strata_config_open(&r->config, &config);
    if (r->opened == STRATA_OK)
        r->opened = strata_model_open(&r->handle, r->config, &model);
    if (r->opened == STRATA_OK)
        r->opened = strata_machine_open(&machine, &given);
    if (r->opened == STRATA_OK)
        r->opened = strata_plan_make(&r->plan, r->handle, machine);
    strata_machine_close(machine);
    if (r->opened == STRATA_OK && r->model != NULL)
        r->opened = strata_plan_measure(r->plan);
    keep_sentence(r, r->opened);
    return NULL;
}

/* What a machine has may differ: workers are as many as the rank with the fewest has. */
TEST(a_machine_may_differ)
{
    struct rank ranks[2] = {{.override = "strata.threads=3"}, {.override = "strata.threads=2"}};

    meet(ranks, 2);
    run_ranks(ranks, 2, plan_rank);
    for (uint32_t r = 0; r < 2; r++) {
        if (ranks[r].opened != STRATA_OK)
            fail_msg("rank %u: %s", r, ranks[r].sentence);
        assert_int_equal(ranks[r].plan->facts.machine.capacity.workers, 2);
        strata_plan_destroy(ranks[r].plan);
    }
    part(ranks, 2);
}

static void *take_capacity(void *ctx)
{
    struct rank *r = ctx;
    const uint64_t rank = r->comm.world.rank;
    struct st_capacity c = {.bytes = {100 - rank, 50 + rank, rank > 0 ? 7 : 9}, .device_beside = 5 + rank};
    uint32_t least[STRATA_TIER_COUNT] = {9, 9, 9};

    r->opened = st_ranks_capacity(r->comm.comm, &c, least);
    r->info.rank = least[STRATA_TIER_DEVICE] * 100 + least[STRATA_TIER_HOST] * 10 + least[STRATA_TIER_NVME];
    r->info.params = c.bytes[STRATA_TIER_DEVICE] * 1000000 + c.bytes[STRATA_TIER_HOST] * 10000 + c.bytes[STRATA_TIER_NVME] * 100 +
                     c.device_beside;
    return NULL;
}

TEST(capacities_are_the_smallest)
{
    struct rank ranks[3] = {0};

    meet(ranks, 3);
    run_ranks(ranks, 3, take_capacity);
    for (uint32_t r = 0; r < 3; r++) {
        assert_ok(ranks[r].opened);
        assert_int_equal(ranks[r].info.params, 98500707);
        assert_int_equal(ranks[r].info.rank, 201); /* of two that have as little the first */
    }
    part(ranks, 3);
}

/* --- turns --- */

static atomic_uint order_next;

struct worker {
    struct rank *rank;
    uint32_t place;
    bool fails;
};

static strata_status work(void *ctx)
{
    struct worker *w = ctx;
    const size_t none = 0; /* no version has this size */
    char nothing;

    w->place = atomic_fetch_add(&order_next, 1) + 1;
    return w->fails ? st_handle_opts(&nothing, 1, &none, "a turn") : STRATA_OK;
}

/* A file's rates are its node's, of which each rank has a part; then the slowest counts. */
TEST(rates_are_divided_and_the_lowest)
{
    static const char *const texts[2] = {
        "{\"device_is_host\":true,\"matmul_flops\":8e9,\"upload\":4e9,\"download\":4e9,\"update\":2e9,\"link_node\":3e9,"
        "\"link_nodes\":9e8,\"latency_node\":1e-5,\"latency_nodes\":3e-5,\"handover\":1e-5,\"latency_io\":2e-4}",
        "{\"device_is_host\":true,\"matmul_flops\":6e9,\"upload\":5e9,\"download\":4e9,\"update\":2e9,\"link_node\":4e9,"
        "\"link_nodes\":7e8,\"latency_node\":2e-5,\"latency_nodes\":1e-5,\"handover\":4e-5,\"launch\":3e-6}"};
    struct rank ranks[2] = {0};
    char paths[2][256];

    scratch_open();
    for (uint32_t r = 0; r < 2; r++) {
        FILE *file;

        snprintf(paths[r], sizeof(paths[r]), "%s/machine%u.json", scratch_dir, r);
        file = fopen(paths[r], "w");
        assert_true(file != NULL && fputs(texts[r], file) >= 0 && fclose(file) == 0);
        ranks[r].model = paths[r];
        ranks[r].override = "zero_optimization.stage=1";
    }
    meet(ranks, 2);
    run_ranks(ranks, 2, plan_rank);
    for (uint32_t r = 0; r < 2; r++) {
        const struct st_rates *rates;

        if (ranks[r].opened != STRATA_OK)
            fail_msg("rank %u: %s", r, ranks[r].sentence);
        rates = &ranks[r].plan->facts.machine.rates;
        assert_true(rates->matmul_flops == 3e9 && rates->upload == 2e9 && rates->download == 2e9 && rates->update == 1e9);
        assert_true(rates->link_node == 3e9 && rates->link_nodes == 7e8 && rates->node_ranks == 2);
        assert_true(rates->latency_node == 2e-5 && rates->latency_nodes == 3e-5);
        assert_true(rates->handover == 4e-5 && rates->latency_io == 2e-4 && rates->launch == 3e-6);
        assert_true(ranks[r].plan->facts.plan->program.ranks == 2 && ranks[r].plan->facts.plan->program.stage == 1);
        strata_plan_destroy(ranks[r].plan);
    }
    part(ranks, 2);
    scratch_close();
}

static void *take_turn(void *ctx)
{
    struct rank *r = ctx;
    struct worker w = {.rank = r, .fails = r->seed != 0};

    r->opened = strata_comm_take_turns(&r->comm, work, &w, "a test");
    keep_sentence(r, r->opened);
    r->info.params = w.place;
    return NULL;
}

/* Four ranks on two machines: rank 0, then 2 as the first of its machine, then the others. */
TEST(turns_go_by_machines)
{
    struct rank ranks[4] = {0};

    atomic_store(&order_next, 0);
    meet(ranks, 4);
    for (uint32_t r = 0; r < 4; r++)
        ranks[r].comm.comm->world.local_rank = r % 2;
    run_ranks(ranks, 4, take_turn);
    for (uint32_t r = 0; r < 4; r++)
        assert_ok(ranks[r].opened);
    assert_int_equal(ranks[0].info.params, 1);
    assert_int_equal(ranks[2].info.params, 2);
    assert_true(ranks[1].info.params > 2 && ranks[3].info.params > 2);
    part(ranks, 4);
}

TEST(a_failed_turn_ends_all)
{
    struct rank ranks[3] = {0};

    atomic_store(&order_next, 0);
    ranks[0].seed = 1; /* fails */
    meet(ranks, 3);
    for (uint32_t r = 0; r < 3; r++)
        ranks[r].comm.comm->world.local_rank = r;
    run_ranks(ranks, 3, take_turn);
    assert_status(ranks[0].opened, STRATA_E_INVAL, "its own status");
    for (uint32_t r = 1; r < 3; r++) {
        assert_status(ranks[r].opened, STRATA_E_INVAL, "another's verdict");
        assert_non_null(strstr(ranks[r].sentence, "a test: rank 0 failed"));
        assert_int_equal(ranks[r].info.params, 0);
    }
    part(ranks, 3);
}

/* --- the door --- */

TEST(one_rank_asks_nobody)
{
    struct strata_comm_opts opts = STRATA_COMM_OPTS_INIT;
    struct strata_comm_info info = STRATA_COMM_INFO_INIT;
    const char *const none[] = {NULL}, *const torch[] = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=n", "MASTER_PORT=7", NULL};
    const char *const names[] = {"it"}, *const texts[] = {"x"};
    struct strata_comm *comm = NULL;
    int mine = 5, all = 0;

    assert_ok(strata_comm_find(&opts, none));
    assert_true(opts.rank == 0 && opts.ranks == 1 && opts.source == NULL);
    assert_ok(strata_comm_open(&comm, &opts));
    assert_ok(strata_comm_get_info(comm, &info));
    assert_true(info.ranks == 1 && info.local_ranks == 1);
    assert_string_equal(info.kind, "none");
    assert_string_equal(info.source, "");
    assert_ok(strata_comm_gather(comm, &mine, sizeof(mine), &all, "x"));
    assert_int_equal(all, 5);
    assert_ok(strata_comm_agree(comm, names, texts, 1));
    strata_comm_abort(comm, "nobody hears it");
    strata_comm_close(comm);

    opts = (struct strata_comm_opts)STRATA_COMM_OPTS_INIT;
    assert_ok(strata_comm_find(&opts, torch));
    assert_true(opts.rank == 1 && opts.ranks == 2 && opts.port == 7 && !opts.mpi);
    assert_string_equal(opts.address, "n");
    assert_string_equal(opts.source, "torch's variables");
    assert_string_equal(strata_comm_variable(0), "RANK");
}

static void *meet_and_open(void *ctx)
{
    struct rank *r = ctx;

    r->opened = strata_comm_open(&r->door, &r->who);
    keep_sentence(r, r->opened);
    return r->opened == STRATA_OK ? open_rank(r) : NULL;
}

/* Memory is divided among those that are on the machine as a launcher says, else as the ranks find; cores, which are counted one
 * by one, among those that are there.  What the door tells is what a model plans with. */
TEST(memory_is_divided_among_those_here)
{
    static const struct {
        uint32_t ranks;
        uint32_t said[3][2]; /* local rank and ranks of each; zeros: nobody says */
        uint32_t here[3][2]; /* as they must come out */
    } rows[] = {
        {2, {{0}}, {{0, 2}, {1, 2}}},
        {3, {{0}}, {{0, 3}, {1, 3}, {2, 3}}},
        {2, {{0, 2}, {1, 2}}, {{0, 2}, {1, 2}}},
        {2, {{0, 1}, {0, 1}}, {{0, 1}, {0, 1}}}, /* machines of one name */
        {3, {{0, 2}, {1, 2}, {0, 1}}, {{0, 2}, {1, 2}, {0, 1}}},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const uint32_t count = rows[i].ranks, port = free_port();
        struct rank ranks[3] = {0};

        for (uint32_t r = 0; r < count; r++) {
            ranks[r].who = (struct strata_comm_opts)STRATA_COMM_OPTS_INIT;
            ranks[r].who.rank = r, ranks[r].who.ranks = count;
            ranks[r].who.local_rank = rows[i].said[r][0], ranks[r].who.local_ranks = rows[i].said[r][1];
            ranks[r].who.port = port;
            ranks[r].who.deadline_seconds = DEADLINE_NS / 1000000000;
            strcpy(ranks[r].who.address, "127.0.0.1");
        }
        run_ranks(ranks, count, meet_and_open);
        for (uint32_t r = 0; r < count; r++) {
            struct strata_comm_info info = STRATA_COMM_INFO_INIT;

            if (ranks[r].opened != STRATA_OK)
                fail_msg("row %zu, rank %u: %s", i, r, ranks[r].sentence);
            assert_ok(strata_comm_get_info(ranks[r].door, &info));
            assert_int_equal(info.local_rank, rows[i].here[r][0]);
            assert_int_equal(info.local_ranks, rows[i].here[r][1]);
            assert_int_equal(ranks[r].door->comm->world.local_rank, info.local_rank); /* turns go by it */
            assert_int_equal(ranks[r].door->share.memory, rows[i].here[r][1]);
            assert_true(ranks[r].door->share.units == r && ranks[r].door->share.of_units == count);
        }
        part(ranks, count);
    }
}

TEST(mistakes_of_the_door)
{
    struct strata_comm_opts opts = STRATA_COMM_OPTS_INIT;
    struct strata_comm_info info = STRATA_COMM_INFO_INIT;
    struct strata_config_opts config_opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts model_opts = STRATA_MODEL_OPTS_INIT;
    struct strata_config *config = NULL;
    struct strata_model *model = NULL;
    struct strata_comm *comm = NULL;

    assert_refused(strata_comm_find(NULL, NULL), "opts is NULL");
    assert_refused(strata_comm_open(NULL, &opts), "comm is NULL");
    assert_refused(strata_comm_open(&comm, NULL), "opts is NULL");
    assert_refused(strata_comm_open(&comm, &opts), "rank 0 of 0");
    assert_refused(strata_comm_get_info(NULL, &info), "comm is NULL");
    assert_refused(strata_comm_gather(NULL, &opts, 1, &opts, "x"), "comm is NULL");
    assert_refused(strata_comm_agree(NULL, NULL, NULL, 0), "comm is NULL");
    opts.rank = opts.ranks = 2;
    assert_refused(strata_comm_open(&comm, &opts), "rank 2 of 2");
    opts.rank = 0, opts.ranks = 5000;
    assert_refused(strata_comm_open(&comm, &opts), "1 to 1024 ranks");
    opts.ranks = 2, opts.local_rank = 3, opts.local_ranks = 2;
    assert_refused(strata_comm_open(&comm, &opts), "local rank 3 of 2");
    opts.local_rank = 0, opts.port = 65536;
    assert_refused(strata_comm_open(&comm, &opts), "port 65536");
    opts.port = 1, opts.kind = "pigeons";
    assert_refused(strata_comm_open(&comm, &opts), "\"pigeons\"");
    opts.ranks = 1; /* that meets nobody */
    assert_refused(strata_comm_open(&comm, &opts), "\"pigeons\"");
    opts.ranks = 2, opts.kind = NULL;
    assert_refused(strata_comm_open(&comm, &opts), "MASTER_ADDR");
    memset(opts.address, 'a', sizeof(opts.address));
    assert_refused(strata_comm_open(&comm, &opts), "is longer than");
    assert_null(comm);
    strata_comm_abort(NULL, NULL);
    strata_comm_close(NULL);

    config_opts.ranks = 2; /* and a model of one */
    assert_ok(strata_config_open(&config, &config_opts));
    model_opts.model = "nano";
    assert_refused(strata_model_open(&model, config, &model_opts), "opened for 2 ranks, the model for 1");
    strata_config_close(config);
}
