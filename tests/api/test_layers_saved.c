/* tests/api/test_layers_saved.c - a run of layers that is saved and goes on has the bits of one that never ended; a resume with
 * another model says by name what differs; and ranks have the bits of one. */
#include "api/handles.h"
#include "core/base/fault.h"
#include "strata/checkpoint.h"
#include "strata/verify.h"
#include "tests/api/handles_fixture.h"
#include "tests/api/layers_net.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define STEPS 6

static char save_at[160], drive[160];

/* --- saving --- */

static void open_saves(struct net_opts *o, const char *overrides[8], const char *name, bool nvme)
{
    snprintf(save_at, sizeof(save_at), "strata.save=%s", scratch_path(name));
    snprintf(drive, sizeof(drive), "strata.nvme=[\"%s\"]", scratch_path("drive"));
    scratch_put("drive/.keep", "");
    overrides[0] = save_at;
    overrides[1] = drive;
    overrides[2] = "zero_optimization.offload_optimizer.device=nvme";
    overrides[3] = "strata.cache=0";
    overrides[4] = "zero_optimization.offload_param.device=nvme";
    *o = (struct net_opts){.overrides = overrides, .override_count = nvme ? 5 : 1};
}

static strata_status resume(struct net *n, const char *name)
{
    struct strata_checkpoint *saved = NULL;
    strata_status st = strata_checkpoint_open(&saved, scratch_path(name));

    if (st == STRATA_OK)
        st = strata_engine_resume(n->engine, saved, NULL);
    strata_checkpoint_close(saved);
    return st;
}

static void save_and_go_on(const char *name, bool nvme)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    char digest[80], here[80];
    const char *overrides[8];
    struct net_opts o;
    struct net n;

    open_saves(&o, overrides, name, nvme);
    assert_ok(net_start(&n, &o));
    for (uint64_t step = 0; step < STEPS; step++) {
        assert_ok(net_step(&n, step));
        if (step == 2)
            assert_ok(strata_engine_save(n.engine, NULL)); /* the next step makes it */
    }
    assert_ok(strata_engine_saved(n.engine, true, &saved));
    assert_int_equal(saved.steps, 3);
    net_digest(&n, digest);
    net_close(&n);
    assert_ok(net_start(&n, &o));
    assert_ok(resume(&n, name));
    for (uint64_t step = 3; step < STEPS; step++)
        assert_ok(net_step(&n, step));
    assert_string_equal(net_digest(&n, here), digest);
    net_close(&n);
}

TEST(a_resumed_run_has_the_same_bits)
{
    save_and_go_on("memory", false);
    save_and_go_on("nvme", true);
}

/* --- without an engine --- */

struct told {
    struct net *net;
    uint32_t tensors;
    bool ends;
};

/* What the engine that has saved says of the same tensor. */
static bool compare(void *ctx, const struct strata_verify_tensor *tensor, uint64_t first, uint64_t count, const float *values)
{
    static float here[NET_WIDTH * NET_WIDTH];
    struct told *t = ctx;
    char shape[32];
    uint32_t index;

    assert_int_equal(first, 0);
    assert_int_equal(count, tensor->elems);
    assert_ok(strata_engine_find_tensor(t->net->engine, tensor->name, &index));
    assert_int_equal(tensor->dtype, t->net->info[index].dtype);
    snprintf(shape, sizeof(shape), "%llu", (unsigned long long)t->net->info[index].shape[0]);
    assert_int_equal(strncmp(tensor->shape, shape, strlen(shape)), 0);
    assert_ok(strata_engine_read_tensor(t->net->engine, index, STRATA_PLANE_WEIGHT, 0, count, STRATA_F32, here));
    assert_memory_equal(here, values, count * sizeof(float));
    t->tensors++;
    return !t->ends;
}

TEST(tensors_are_read_with_their_masters)
{
    static const char *const precisions[] = {"bf16.enabled=false", "bf16.enabled=true", "fp16.enabled=true"};

    for (uint32_t p = 0; p < 3; p++) {
        const char *overrides[8];
        struct net n;
        struct strata_saved saved = STRATA_SAVED_INIT;
        struct told told = {.net = &n};
        struct net_opts o;
        char name[32];

        snprintf(name, sizeof(name), "tensors-%u", p);
        open_saves(&o, overrides, name, true);
        overrides[o.override_count++] = precisions[p];
        assert_ok(net_start(&n, &o));
        for (uint64_t step = 0; step < 2; step++)
            assert_ok(net_step(&n, step));
        assert_ok(strata_engine_save(n.engine, NULL));
        assert_ok(strata_engine_flush(n.engine));
        assert_ok(strata_engine_saved(n.engine, true, &saved));
        assert_ok(strata_verify_tensors(scratch_path(name), NULL, compare, &told));
        assert_int_equal(told.tensors, NET_TENSORS);
        told.ends = true;
        assert_status(strata_verify_tensors(scratch_path(name), NULL, compare, &told), STRATA_E_CANCELLED, "before all of it");
        assert_status(strata_verify_export(scratch_path(name), scratch_path("out"), NULL, NULL), STRATA_E_INPUT, "of layers");
        net_close(&n);
    }
}

/* --- beside a step --- */

/* Steps before a save, the step that makes it, and the digest that it is to have. */
static void begin_save(struct net *n, struct net_opts *o, const char *overrides[8], const char *name, char digest[80])
{
    open_saves(o, overrides, name, false);
    assert_ok(net_start(n, o));
    for (uint64_t step = 0; step < 2; step++)
        assert_ok(net_step(n, step));
    net_digest(n, digest); /* makes the update */
    net_close(n);
    assert_ok(net_start(n, o));
    for (uint64_t step = 0; step < 2; step++)
        assert_ok(net_step(n, step));
    assert_true(n->last.write_bytes == 0);
    assert_ok(strata_engine_save(n->engine, NULL));
}

static void check_saved(const struct net_opts *o, const char *name, const char *digest)
{
    char here[80];
    struct net n;

    assert_ok(net_start(&n, o));
    assert_ok(resume(&n, name));
    assert_string_equal(net_digest(&n, here), digest);
    net_close(&n);
}

/* The next step writes, and ends; a drive that fails meanwhile is told when asked for, and the step has its bits. */
TEST(a_step_runs_while_the_save_is_made)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    char digest[80], after[80], here[80];
    const char *overrides[8];
    struct net_opts o;
    struct net n;

    begin_save(&n, &o, overrides, "beside", digest);
    assert_ok(strata_engine_saved(n.engine, false, &saved));
    assert_false(saved.done);
    assert_ok(net_step(&n, 2));
    assert_true(n.last.write_bytes > 0);
    assert_ok(strata_engine_saved(n.engine, true, &saved));
    assert_true(saved.done && saved.steps == 2);
    net_digest(&n, after);
    net_close(&n);
    check_saved(&o, "beside", digest);

    begin_save(&n, &o, overrides, "failed", digest);
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .count = 1, .result = -EIO});
    assert_ok(net_step(&n, 2));
    assert_int_equal(st_fault_disarm(), 1);
    assert_status(strata_engine_saved(n.engine, true, &saved), STRATA_E_IO, "a save on a drive that fails");
    assert_true(saved.done && saved.steps == 0);
    assert_string_equal(net_digest(&n, here), after);
    assert_ok(strata_engine_save(n.engine, NULL));
    assert_ok(strata_engine_saved(n.engine, true, &saved));
    assert_int_equal(saved.steps, 3);
    net_close(&n);
    check_saved(&o, "failed", after);
}

/* Wherever the step that makes it is dropped, and where the engine ends within it. */
TEST(a_dropped_step_saves)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    const char *const names[] = {"early", "late", "ended"};
    const char *overrides[8];
    char digest[80];
    struct net_opts o;
    struct net n;
    double loss;

    for (uint32_t i = 0; i < 3; i++) {
        begin_save(&n, &o, overrides, names[i], digest);
        n.left = i == 0 ? 1 : 30;
        assert_status(net_step(&n, 2), STRATA_E_CANCELLED, "a part of a step");
        n.left = UINT32_MAX;
        if (i < 2) {
            assert_ok(strata_engine_drop(n.engine, NULL));
            assert_ok(strata_engine_saved(n.engine, true, &saved));
            assert_int_equal(saved.steps, 2);
        }
        net_close(&n);
        check_saved(&o, names[i], digest);
    }
    begin_save(&n, &o, overrides, "evaluated", digest); /* whose flush makes the update */
    assert_ok(net_eval(&n, 5, &loss));
    assert_ok(net_step(&n, 2));
    assert_ok(strata_engine_saved(n.engine, true, &saved));
    net_close(&n);
    check_saved(&o, "evaluated", digest);
}

/* Where updates do not wait, a rule foretells the save, and the step before writes for it. */
TEST(a_foretold_save_is_written_beside_the_step)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    struct strata_save_rule rule = STRATA_SAVE_RULE_INIT;
    const char *overrides[8];
    char digest[80], here[80];
    struct net_opts o;
    struct net n;

    open_saves(&o, overrides, "foretold", false);
    overrides[o.override_count++] = "strata.update=serial";
    assert_ok(net_start(&n, &o));
    rule.every = 2;
    assert_ok(strata_engine_save_when(n.engine, &rule));
    assert_ok(net_step(&n, 0));
    assert_true(n.last.write_bytes == 0);
    assert_ok(net_step(&n, 1));
    assert_true(n.last.write_bytes > 0);
    assert_ok(strata_engine_save(n.engine, NULL));
    net_digest(&n, digest);
    assert_ok(net_step(&n, 2));
    assert_ok(strata_engine_saved(n.engine, true, &saved));
    assert_int_equal(saved.steps, 2);
    net_close(&n);
    assert_ok(net_start(&n, &o));
    assert_ok(resume(&n, "foretold"));
    assert_string_equal(net_digest(&n, here), digest);
    net_close(&n);
}

/* From memory to a drive. */
TEST(a_run_resumes_with_another_placement)
{
    char digest[80], here[80];
    const char *overrides[8];
    struct net_opts o;
    struct net n;

    save_and_go_on("there", false);
    open_saves(&o, overrides, "there", false);
    assert_ok(net_start(&n, &o));
    assert_ok(resume(&n, "there"));
    net_digest(&n, digest);
    net_close(&n);
    open_saves(&o, overrides, "here", true);
    assert_ok(net_start(&n, &o));
    assert_ok(resume(&n, "there"));
    assert_string_equal(net_digest(&n, here), digest);
    net_close(&n);
}

TEST(another_model_is_named)
{
    const struct net_opts others[] = {{.renamed = true}, {.reshaped = true}, {.regrouped = true}};
    const char *const parts[] = {"block.1", "block.1.scale has shape 41 there, and 1x41", "parameter group"};
    const char *overrides[8];
    struct net_opts o;
    struct net n;

    save_and_go_on("first", false);
    open_saves(&o, overrides, "second", false);
    for (uint32_t i = 0; i < 3; i++) {
        struct net_opts other = others[i];
        strata_status st;

        other.overrides = o.overrides;
        other.override_count = o.override_count;
        assert_ok(net_start(&n, &other));
        st = resume(&n, "first");
        if (st != STRATA_E_INPUT || strstr(strata_last_error(), parts[i]) == NULL)
            fail_msg("%s: %s", strata_status_text(st), strata_last_error());
        net_close(&n);
    }
}

static char told[1024];

static void tell(void *ctx, enum strata_log_level level, const char *line)
{
    (void)ctx;
    if (level == STRATA_LOG_NOTICE && strstr(line, "parameter group") != NULL)
        snprintf(told, sizeof(told), "%s", line);
}

/* As the configuration's own rates, those of a group may change, and a notice says so. */
TEST(other_rates_of_a_group_are_told)
{
    const char *overrides[8];
    struct net_opts o;
    struct net n;

    save_and_go_on("rates", false);
    open_saves(&o, overrides, "rates", false);
    for (uint32_t i = 0; i < 2; i++) {
        o.lr_scale = i == 0 ? 0 : 0.5;
        assert_ok(net_start(&n, &o));
        told[0] = '\0';
        strata_log_configure(tell, NULL, STRATA_LOG_NOTICE);
        assert_ok(resume(&n, "rates"));
        strata_log_configure(NULL, NULL, STRATA_LOG_ERROR);
        if (i == 0)
            assert_string_equal(told, "");
        else if (strstr(told, "parameter group plain: lr_scale 0.5, weight_decay 0 from here on; in") == NULL ||
                 strstr(told, "it was plain: lr_scale 2, weight_decay 0") == NULL)
            fail_msg("%s", told);
        net_close(&n);
    }
}

/* What is written by name is in the next checkpoint; what is frozen cannot change any more. */
TEST(written_values_are_saved)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    const char *overrides[8];
    float one = 1.5f, is = 0;
    struct net_opts o;
    struct net n;

    open_saves(&o, overrides, "written", true);
    assert_ok(net_start(&n, &o));
    assert_ok(net_step(&n, 0));
    assert_ok(strata_engine_write_tensor(n.engine, 3, STRATA_PLANE_WEIGHT, 0, 1, STRATA_F32, &one));
    assert_ok(net_step(&n, 1));
    assert_ok(strata_engine_save(n.engine, NULL));
    assert_ok(strata_engine_write_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 7, 1, STRATA_F32, &one)); /* makes the save first */
    assert_refused(strata_engine_write_tensor(n.engine, 3, STRATA_PLANE_WEIGHT, 0, 1, STRATA_F32, &one), "frozen");
    assert_ok(strata_engine_saved(n.engine, true, &saved));
    assert_ok(resume(&n, "written"));
    assert_ok(strata_engine_read_tensor(n.engine, 3, STRATA_PLANE_WEIGHT, 0, 1, STRATA_F32, &is));
    assert_true(is == one);
    assert_ok(strata_engine_read_tensor(n.engine, 1, STRATA_PLANE_WEIGHT, 7, 1, STRATA_F32, &is));
    assert_true(is != one);
    net_close(&n);
}

/* --- ranks --- */

#define RANKS_MOST  4u
#define DEADLINE_NS UINT64_C(20000000000)

struct rank {
    struct strata_comm comm;
    struct net_opts opts;
    struct net net;
    strata_status st, refused[3];
    bool drops;
    char sentence[512], digest[80];
    double loss;
    float value[4];
    pthread_t thread;
};

static strata_status train_rank(struct rank *r)
{
    strata_status st = net_start(&r->net, &r->opts);

    for (uint64_t step = 0; step < 3 && st == STRATA_OK; step++) {
        if (step == 1 && r->drops) {
            r->net.left = 9;
            if (net_step(&r->net, step) != STRATA_E_CANCELLED)
                return STRATA_E_INTERNAL;
            r->net.left = UINT32_MAX;
            st = strata_engine_drop(r->net.engine, NULL);
        } else {
            st = net_step(&r->net, step);
        }
    }
    r->loss = r->net.last.loss;
    if (st == STRATA_OK && r->opts.override_count > 4) { /* a checkpoint, and a step beside it */
        struct strata_saved saved = STRATA_SAVED_INIT;

        if ((st = strata_engine_save(r->net.engine, NULL)) == STRATA_OK && (st = net_step(&r->net, 3)) == STRATA_OK &&
            (st = strata_engine_saved(r->net.engine, true, &saved)) == STRATA_OK && saved.steps != 3)
            return STRATA_E_INTERNAL;
    }
    if (st == STRATA_OK)
        st = strata_engine_read_tensor(r->net.engine, 4, STRATA_PLANE_WEIGHT, 11, 4, STRATA_F32, r->value);
    return st;
}

static void *run_rank(void *ctx)
{
    struct rank *r = ctx;

    r->st = train_rank(r);
    if (r->st != STRATA_OK)
        snprintf(r->sentence, sizeof(r->sentence), "%s", strata_last_error());
    else
        net_digest(&r->net, r->digest);
    return NULL;
}

static struct rank all[RANKS_MOST];

/* Each on a thread of its own. */
static void start_ranks(uint32_t ranks, const char *const *overrides, uint32_t count, uint64_t deadline_ns, void *(*work)(void *))
{
    struct st_comm *comms[RANKS_MOST];

    if (ranks > 1)
        assert_ok(st_comm_threads_open(comms, ranks, deadline_ns));
    for (uint32_t i = 0; i < ranks; i++) {
        const bool drops = all[i].drops;

        all[i] = (struct rank){.drops = drops};
        all[i].opts = (struct net_opts){.overrides = overrides, .override_count = count, .rank = i, .ranks = ranks};
        if (ranks > 1) {
            all[i].comm = (struct strata_comm){.comm = comms[i], .world = comms[i]->world, .source = ""};
            all[i].opts.comm = &all[i].comm;
        }
        assert_int_equal(pthread_create(&all[i].thread, NULL, work, &all[i]), 0);
    }
}

static void join_ranks(uint32_t ranks)
{
    for (uint32_t i = 0; i < ranks; i++)
        pthread_join(all[i].thread, NULL);
}

static void close_ranks(uint32_t ranks)
{
    for (uint32_t i = 0; i < ranks; i++) {
        net_close(&all[i].net);
        if (ranks > 1)
            st_comm_close(all[i].comm.comm);
    }
}

/* `ranks` of them, each with its part of four micro-batches, at a stage; drops: the one that drops its second step. */
static void run_ranks(uint32_t ranks, const char *stage, uint32_t drops, const char *save, char digest[80], double *loss)
{
    static const char *const accums[] = {"", "4", "2", "", "1"};
    char accum[64];
    const char *overrides[] = {accum, "strata.leaves=4", stage, "strata.threads=1", save};

    snprintf(accum, sizeof(accum), "gradient_accumulation_steps=%s", accums[ranks]);
    for (uint32_t i = 0; i < ranks; i++)
        all[i].drops = i == drops;
    start_ranks(ranks, overrides, save != NULL ? 5 : 4, DEADLINE_NS, run_rank);
    join_ranks(ranks);
    for (uint32_t i = 0; i < ranks; i++) {
        if (all[i].st != STRATA_OK)
            fail_msg("rank %u of %u, %s: %s: %s", i, ranks, stage, strata_status_text(all[i].st), all[i].sentence);
        assert_string_equal(all[i].digest, all[0].digest);
        assert_memory_equal(all[i].value, all[0].value, sizeof(all[0].value));
    }
    snprintf(digest, 80, "%s", all[0].digest);
    *loss = all[0].loss;
    close_ranks(ranks);
}

TEST(ranks_have_the_bits_of_one)
{
    static const char *const stages[] = {"zero_optimization.stage=0", "zero_optimization.stage=2", "zero_optimization.stage=3"};
    char digest[80], here[80];
    double loss, other;

    run_ranks(1, stages[0], RANKS_MOST, NULL, digest, &loss);
    for (uint32_t s = 0; s < 3; s++)
        for (uint32_t ranks = 2; ranks <= RANKS_MOST; ranks *= 2) {
            run_ranks(ranks, stages[s], RANKS_MOST, NULL, here, &other);
            if (strcmp(here, digest) != 0)
                fail_msg("%u ranks, %s: %s, not %s", ranks, stages[s], here, digest);
        }
}

/* Where one drops a step, all have dropped it. */
TEST(a_drop_is_everybodys)
{
    char digest[80], here[80];
    double loss, other;

    run_ranks(1, "zero_optimization.stage=0", 0, NULL, digest, &loss);
    run_ranks(2, "zero_optimization.stage=0", 1, NULL, here, &other);
    assert_string_equal(here, digest);
    run_ranks(2, "zero_optimization.stage=3", 0, NULL, here, &other);
    assert_string_equal(here, digest);
}

/* What two ranks save beside their step one resumes from. */
TEST(ranks_save_beside_a_step)
{
    char first[160], second[160], digest[80], here[80];
    const char *one[] = {"gradient_accumulation_steps=4", "strata.leaves=4"};
    const struct net_opts o = {.overrides = one, .override_count = 2};
    struct net n;
    double loss;

    snprintf(first, sizeof(first), "strata.save=%s", scratch_path("of_one"));
    snprintf(second, sizeof(second), "strata.save=%s", scratch_path("of_two"));
    run_ranks(1, "zero_optimization.stage=0", RANKS_MOST, first, digest, &loss);
    run_ranks(2, "zero_optimization.stage=3", RANKS_MOST, second, here, &loss);
    assert_string_equal(here, digest);
    assert_ok(net_start(&n, &o));
    assert_ok(resume(&n, "of_two"));
    assert_ok(net_step(&n, 3));
    assert_string_equal(net_digest(&n, here), digest);
    net_close(&n);
}

/* --- ranks that differ --- */

static bool differ_in_betas;

/* Rank 1 writes another value, then asks for another part, and takes another rate, or other betas. */
static void *differ(void *ctx)
{
    const double rates[] = {1e-2, 1e-2}, others[] = {1e-2, 2e-2}, betas[] = {0.9, 0.8};
    struct strata_layers_step step = STRATA_LAYERS_STEP_INIT;
    struct rank *r = ctx;
    const float one = (float)r->opts.rank;
    float got;

    if ((r->st = net_start(&r->net, &r->opts)) != STRATA_OK)
        return NULL;
    r->refused[0] = strata_engine_write_tensor(r->net.engine, 4, STRATA_PLANE_WEIGHT, 11, 1, STRATA_F32, &one);
    r->refused[1] = strata_engine_read_tensor(r->net.engine, 4, STRATA_PLANE_WEIGHT, r->opts.rank, 1, STRATA_F32, &got);
    r->st = strata_engine_read_tensor(r->net.engine, 4, STRATA_PLANE_WEIGHT, 11, 1, STRATA_F32, r->value);
    step.lr = r->opts.rank == 0 || differ_in_betas ? rates : others;
    step.beta1 = r->opts.rank == 1 && differ_in_betas ? betas : NULL;
    r->net.step = &step;
    r->refused[2] = net_step(&r->net, 0);
    snprintf(r->sentence, sizeof(r->sentence), "%s", strata_last_error());
    return NULL;
}

TEST(what_ranks_give_must_be_alike)
{
    static const char *const stages[] = {"zero_optimization.stage=0", "zero_optimization.stage=3"};

    for (uint32_t s = 0; s < 2; s++) {
        const char *overrides[] = {"strata.threads=1", stages[s]};
        float first;

        assert_ok(net_fill(NULL, 4, 11, 1, &first));
        differ_in_betas = s == 1;
        start_ranks(2, overrides, 2, DEADLINE_NS, differ);
        join_ranks(2);
        for (uint32_t i = 0; i < 2; i++) {
            assert_ok(all[i].st);
            assert_true(all[i].value[0] == first); /* nothing was written */
            for (uint32_t k = 0; k < 3; k++)
                assert_status(all[i].refused[k], STRATA_E_CONFIG, "what differs");
            if (strstr(all[i].sentence, "rank 1 has other learning rates") == NULL)
                fail_msg("rank %u: %s", i, all[i].sentence);
        }
        close_ranks(2);
    }
}

/* --- a rank that never comes --- */

static atomic_bool waits;

/* Rank 0 makes a step, rank 1 does not. */
static void *step_alone(void *ctx)
{
    struct rank *r = ctx;

    if ((r->st = net_start(&r->net, &r->opts)) == STRATA_OK && r->opts.rank == 0) {
        atomic_store(&waits, true);
        r->st = net_step(&r->net, 0);
    }
    return NULL;
}

/* A cancel ends the wait, long before the deadline, which the test does not live to see. */
TEST(a_wait_for_a_silent_rank_is_cancelled)
{
    const char *overrides[] = {"strata.threads=1", "zero_optimization.stage=3"};

    start_ranks(2, overrides, 2, ST_COMM_DEADLINE_NS, step_alone);
    while (!atomic_load(&waits))
        sched_yield();
    for (uint32_t i = 0; i < 1000; i++) /* until it waits, or nearly so */
        sched_yield();
    strata_engine_cancel(all[0].net.engine);
    join_ranks(2);
    assert_status(all[0].st, STRATA_E_CANCELLED, "a cancelled wait");
    assert_ok(all[1].st);
    close_ranks(2);
}

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_ERROR);
    return test_run(scratch_create, scratch_remove);
}
