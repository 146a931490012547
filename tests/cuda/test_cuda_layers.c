/* test_cuda_layers.c - layers that a caller computes on a stream of its own, the engine's memory on the cuda device over the
 * emulator: the bits of strata's own run and of the cpu, wherever the state is, and whatever the streams put off. */
#include "offload/comm/comm_nccl.h"
#include "offload/device/cuda/device_cuda_internal.h"
#include "strata/checkpoint.h"
#include "tests/common/assert_status.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/layers/outside.h"
#ifdef ST_CUDA_EMULATOR
#include "tests/cuda/emulator/twin.h"
#include "tests/engine/net.h"
#endif

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS (sample_is_all() ? 2u : 1u)

static const char config[] =
    "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},"
    " \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3, \"weight_decay\": 0.1}},"
    " \"strata\": {\"threads\": 2, \"accumulation\": \"horizontal\", \"leaves\": 1}}";

static void draw(int32_t *tokens, int32_t *targets, uint64_t step, uint32_t rows)
{
    for (uint32_t i = 0; i < rows; i++) {
        const uint64_t at = step * 100003 + i;

        tokens[i] = (int32_t)(at * at % 251);
        targets[i] = (int32_t)((at * 7 + step) % 256);
    }
}

static void both(char text[80], struct strata_engine *e)
{
    char weights[33], moments[33];

    assert_ok(strata_engine_digest(e, weights, moments));
    snprintf(text, 80, "%s %s", weights, moments);
}

static void run_native(char digest[80])
{
    struct strata_config_opts c = STRATA_CONFIG_OPTS_INIT;
    struct strata_model_opts m = STRATA_MODEL_OPTS_INIT;
    struct strata_machine_opts on = STRATA_MACHINE_OPTS_INIT;
    struct strata_config *opened = NULL;
    struct strata_machine *machine = NULL;
    struct strata_model *model = NULL;
    struct strata_plan *plan = NULL;
    struct strata_engine *engine = NULL;
    int32_t tokens[2 * OUTSIDE_SEQ], targets[2 * OUTSIDE_SEQ];

    c.text = config;
    m.model = "nano";
    m.seq_len = OUTSIDE_SEQ;
    on.device = "cuda";
    assert_ok(strata_config_open(&opened, &c));
    assert_ok(strata_model_open(&model, opened, &m));
    assert_ok(strata_machine_open(&machine, &on));
    assert_ok(strata_plan_make(&plan, model, machine));
    assert_ok(strata_engine_create(&engine, plan, NULL));
    assert_ok(strata_engine_load(engine));
    for (uint64_t step = 0; step < STEPS; step++) {
        draw(tokens, targets, step, 2 * OUTSIDE_SEQ);
        assert_ok(strata_engine_step(engine, tokens, targets, NULL, NULL));
    }
    both(digest, engine);
    strata_engine_destroy(engine);
    strata_plan_destroy(plan);
    strata_machine_close(machine);
    strata_model_close(model);
    strata_config_close(opened);
}

/* Streams run only what somebody waits for, where they can. */
static void put_off(bool off)
{
#ifdef ST_CUDA_EMULATOR
    twin_be_lazy(off);
#else
    (void)off;
#endif
}

static void *stream_of(struct st_device *device)
{
    return cuda_of(device)->queues[ST_QUEUE_COMPUTE].stream;
}

/* The table, a resident tensor, by name; a gradient of it that is not on the GPU. */
static void check_table(struct strata_engine *e)
{
    struct strata_tensor_info info = STRATA_TENSOR_INFO_INIT;
    static float values[64];
    const struct strata_grad grad = {.tensor = 0, .dtype = STRATA_F32, .elems = 64, .values = values};
    struct strata_step dropped = STRATA_STEP_INIT;

    assert_ok(strata_engine_get_tensor(e, 0, &info));
    assert_int_equal(info.layer_index, 0);
    assert_ok(strata_engine_read_tensor(e, 0, STRATA_PLANE_WEIGHT, 0, 64, STRATA_F32, values));
    assert_true(values[0] != 0 && values[0] != values[1]);
    assert_ok(strata_engine_write_tensor(e, 0, STRATA_PLANE_WEIGHT, 0, 64, STRATA_F32, values));
    assert_ok(strata_engine_begin(e, NULL, NULL));
    assert_refused(strata_engine_grad(e, &grad, 1), STRATA_E_INVAL, "is host memory, not the GPU's");
    assert_ok(strata_engine_drop(e, &dropped));
    assert_true(dropped.dropped && dropped.skipped);
}

/* Steps from `first` on, of which the last but one is saved beside the last, or a checkpoint goes before them. */
struct part {
    uint64_t first;
    const char *resume;
    bool saves;
};

static void go_on(struct outside *o, const char *path)
{
    struct strata_checkpoint *saved = NULL;

    assert_ok(strata_checkpoint_open(&saved, path));
    assert_ok(strata_engine_resume(outside_engine(o), saved, NULL));
    strata_checkpoint_close(saved);
}

static void run_outside(char digest[80], const char *const *overrides, uint32_t count, struct part part)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    const struct outside_opts opts = {.preset = "nano",
                                      .text = config,
                                      .overrides = overrides,
                                      .override_count = count,
                                      .device = "cuda",
                                      .stream_of = stream_of};
    struct outside *o = NULL;
    char here[80];
    int32_t tokens[2 * OUTSIDE_SEQ], targets[2 * OUTSIDE_SEQ];

    assert_ok(outside_open(&o, &opts));
    assert_int_equal(outside_rows(o), 2 * OUTSIDE_SEQ);
    if (part.resume != NULL)
        go_on(o, part.resume);
    for (uint64_t step = part.first; step < STEPS; step++) {
        draw(tokens, targets, step, 2 * OUTSIDE_SEQ);
        if (part.saves && step + 1 == STEPS)
            assert_ok(strata_engine_save(outside_engine(o), NULL));
        assert_ok(outside_step(o, tokens, targets, NULL));
    }
    if (part.saves)
        assert_ok(strata_engine_saved(outside_engine(o), true, &saved));
    assert_int_equal(saved.steps, part.saves ? STEPS - 1 : 0);
    both(digest, outside_engine(o));
    check_table(outside_engine(o));
    both(here, outside_engine(o));
    assert_string_equal(here, digest);
    outside_close(o);
}

/* A decoder driven from outside, on its device's own stream, has the bits of strata's own run. */
TEST(a_decoder_from_outside_has_the_bits_of_stratas_run)
{
    char dirs[160], saves[160], digest[80], here[80];
    const char *paged[] = {"zero_optimization.offload_param.device=nvme",
                           "zero_optimization.offload_optimizer.device=nvme",
                           "strata.cache=0",
                           dirs,
                           "strata.activation_tier=host",
                           saves};

    snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", scratch_path("drive"));
    snprintf(saves, sizeof(saves), "strata.save=%s", scratch_path("saves"));
    scratch_put("drive/.keep", "");
    run_native(digest);
    put_off(true);
    run_outside(here, paged, 5, (struct part){.first = 0});
    assert_string_equal(here, digest);
    if (sample_is_all()) {
        run_outside(here, paged, 6, (struct part){.saves = true});
        assert_string_equal(here, digest);
        run_outside(here, paged, 6, (struct part){.first = STEPS - 1, .resume = scratch_path("saves")});
        assert_string_equal(here, digest);
        put_off(false);
        run_outside(here, NULL, 0, (struct part){.first = 0});
        assert_string_equal(here, digest);
    }
    put_off(false);
}

#ifdef ST_CUDA_EMULATOR
/* --- a small net, all of it enqueued on a stream of the test's --- */

/* Calls of its first micro-batch: of the table and the gain use, use, use, report, report; of layers enter, leave, enter, two
 * reports, leave; the table's rows; the micro-batch's end. */
#define MICRO_CALLS (3 + 2 * 2 + NET_LAYERS * (2 + 2 + 2 * 2) + 2 + 1)

static cudaStream_t stream;

static int begin(void **state)
{
    (void)state;
    twin_reset();
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    twin_be_lazy(1);
    return 0;
}

/* Nothing is left but the stream. */
static void assert_given_back(void)
{
    const struct twin_holdings held = twin_held();

    assert_int_equal(twin_pending(), 0);
    assert_int_equal(held.device_bytes, 0);
    assert_int_equal(held.pinned_bytes, 0);
    assert_int_equal(held.streams, 1);
    assert_int_equal(held.events, 0);
}

static int end(void **state)
{
    (void)state;
    assert_given_back();
    twin_reset();
    return 0;
}

static void enqueue(void *on, void (*work)(void *data), void *data)
{
    (void)!twin_launch(on, work, data); /* a broken GPU tells the engine, too */
}

static struct net_cell cell_of(bool paged, bool cuda)
{
    const strata_tier tier = paged ? STRATA_TIER_NVME : STRATA_TIER_DEVICE;

    return (struct net_cell){.dtype = paged ? STRATA_BF16 : STRATA_F32,
                             .grads = paged ? STRATA_BF16 : STRATA_F32,
                             .optimizer = tier,
                             .param = tier,
                             .acts = tier,
                             .update = paged ? ST_UPDATE_GATED : ST_UPDATE_SERIAL,
                             .device_least = paged,
                             .host_least = paged,
                             .threads = 2,
                             .leaves = NET_MICROS,
                             .clip = 1.0,
                             .io = "fake",
                             .launch = cuda ? enqueue : NULL,
                             .stream = stream};
}

static void same_bits(const struct net_result *a, const struct net_result *b, const struct net_cell *cell)
{
    char text[NET_TEXT];

    if (memcmp(a->losses, b->losses, sizeof(a->losses)) != 0 || memcmp(a->norms, b->norms, sizeof(a->norms)) != 0 ||
        strcmp(a->weights, b->weights) != 0 || strcmp(a->state, b->state) != 0 || a->evaluated != b->evaluated)
        fail_msg("%s: other bits", net_text(text, cell));
}

/* Lazy streams run what somebody waits for: a layer that is left without a mark has no gradients when they are taken. */
TEST_SETUP(a_net_has_the_bits_of_the_cpu, begin, end)
{
    for (int i = 0; i < 4; i++) {
        struct net_cell cpu = cell_of(i % 2 != 0, false), cuda = cell_of(i % 2 != 0, true);
        struct net_result want, got;

        cpu.frozen = cuda.frozen = i / 2 == 0 ? 0 : 1 + 2 * (uint32_t)(i % 2);
        cpu.fewer_at = cuda.fewer_at = 2;
        cpu.evaluate_at = cuda.evaluate_at = 1;
        cuda.foreign = i == 1;
        cpu.all_stay = cuda.all_stay = i == 2;
        net_run(&want, &cpu, 3, scratch_dir);
        net_run(&got, &cuda, 3, scratch_dir);
        same_bits(&want, &got, &cuda);
    }
}

static strata_status open_nccl(struct st_comm **out, struct st_comm *host)
{
    return st_comm_nccl_open(out, host, 0);
}

TEST_SETUP(ranks_have_the_bits_of_one, begin, end)
{
    struct net_cell cell = cell_of(true, true);
    struct net_result want, got;

    net_run(&want, &cell, 2, scratch_dir);
    cell.ranks = 2;
    cell.stage = 3;
    cell.open_device_comm = open_nccl;
    net_run(&got, &cell, 2, scratch_dir);
    same_bits(&want, &got, &cell);
}

TEST_SETUP(updates_in_backward_wait_for_the_stream, begin, end)
{
    struct net_cell cpu = cell_of(true, false), cuda = cell_of(true, true);
    struct net_result want, got;

    cpu.update = cuda.update = ST_UPDATE_IN_BACKWARD;
    cpu.clip = cuda.clip = 0;
    net_run(&want, &cpu, 2, scratch_dir);
    net_run(&got, &cuda, 2, scratch_dir);
    same_bits(&want, &got, &cuda);
}

TEST_SETUP(a_drop_leaves_the_bits_of_a_skipped_step, begin, end)
{
    struct net_cell cell = cell_of(true, true);
    struct net_result want, got;

    cell.poison_at = 2;
    net_run(&want, &cell, 3, scratch_dir);
    cell.poison_at = 0;
    cell.drop_at = 2;
    for (uint32_t at = 1; at < want.calls[0]; at += 1 + want.calls[0] / 4) {
        cell.drop_call = at;
        net_run(&got, &cell, 3, scratch_dir);
        assert_true(got.dropped[1] && got.steps_skipped == 1);
        got.losses[1] = want.losses[1];
        got.norms[1] = want.norms[1];
        same_bits(&want, &got, &cell);
        assert_given_back();
    }
}

/* --- what is refused, and what fails --- */

struct scene {
    struct st_workload w;
    struct st_plan *plan;
    struct net_cell cell;
    struct net net;
};

static void open_scene(struct scene *s, bool paged)
{
    *s = (struct scene){.cell = cell_of(paged, true)};
    net_workload(&s->w, &s->cell);
    s->plan = net_plan(&s->w, &s->cell, 0);
}

static void close_scene(struct scene *s)
{
    net_close(&s->net);
    st_plan_destroy(s->plan);
    st_workload_fini(&s->w);
}

static void says(strata_status st, strata_status with, const char *word)
{
    assert_int_equal(st, with);
    if (strstr(strata_last_error(), word) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", strata_last_error(), word);
}

TEST_SETUP(a_stream_and_gradients_are_of_the_gpu, begin, end)
{
    struct scene s;
    const struct st_caller_step step = {.micros = 0, .stream = stream}, none = {.stream = &s};
    float host = 0;
    double scale;
    void *device;

    open_scene(&s, false);
    assert_ok(net_open(&s.net, s.plan, &s.cell, 0, NULL, scratch_dir));
    says(st_engine_caller_begin(s.net.engine, &none, &scale), STRATA_E_INVAL, "is none of this GPU's");
    assert_false(st_engine_caller_inside(s.net.engine));
    assert_ok(st_engine_caller_begin(s.net.engine, &step, &scale));
    says(st_engine_caller_reads(s.net.engine, &host), STRATA_E_INVAL, "host memory");
    assert_int_equal(cudaMalloc(&device, 64), cudaSuccess);
    assert_ok(st_engine_caller_reads(s.net.engine, device));
    assert_int_equal(cudaFree(device), cudaSuccess);
    close_scene(&s); /* within the step */
}

/* The stream's first work waits for this. */
static sem_t gate;

static void wait_at_gate(void *data)
{
    (void)data;
    while (sem_wait(&gate) != 0)
        ;
}

/* Where all is resident no call of a micro-batch waits for the stream. */
TEST_SETUP(the_caller_runs_ahead_of_its_stream, begin, end)
{
    struct st_step_result result;
    struct scene s;

    open_scene(&s, false);
    s.cell.deadline_ns = 2000000000; /* of a call that waits all the same */
    assert_ok(net_open(&s.net, s.plan, &s.cell, 0, NULL, scratch_dir));
    sem_init(&gate, 0, 0);
    enqueue(stream, wait_at_gate, NULL);
    s.cell.drop_at = 1;
    s.cell.drop_call = MICRO_CALLS;
    assert_int_equal(net_begin(&s.net, 1, &result), STRATA_E_CANCELLED);
    assert_true(twin_pending() > 0);
    sem_post(&gate);
    assert_ok(st_engine_caller_drop(s.net.engine, &result));
    assert_true(result.dropped);
    close_scene(&s);
    sem_destroy(&gate);
}

/* Wherever the caller stops, what it has enqueued is over before the memory goes. */
TEST_SETUP(a_caller_that_dies_leaves_nothing_behind, begin, end)
{
    struct scene s;

    for (uint32_t left = 1; left < 60; left += 9) {
        struct st_step_result result;

        open_scene(&s, left % 2 != 0);
        assert_ok(net_open(&s.net, s.plan, &s.cell, 0, NULL, scratch_dir));
        s.cell.drop_at = 1; /* and the drop itself is left out */
        s.cell.drop_call = left;
        assert_int_equal(net_begin(&s.net, 1, &result), STRATA_E_CANCELLED);
        close_scene(&s);
        assert_given_back();
    }
}

TEST_SETUP(a_call_that_fails_ends_the_step, begin, end)
{
    static const char *const calls[] = {"cudaEventRecord", "cudaLaunchKernel"};
    struct net_result result;
    struct scene s;

    for (uint32_t i = 0; i < 2; i++)
        for (uint64_t nth = 3, struck = 1; struck > 0; nth += nth) {
            strata_status st;

            open_scene(&s, true);
            twin_fail(calls[i], nth, 1, cudaErrorUnknown);
            st = net_train(&result, s.plan, &s.cell, 2, scratch_dir);
            struck = twin_disarm();
            if (struck > 0 && st != STRATA_OK)
                says(st, STRATA_E_INTERNAL, "cudaErrorUnknown");
            close_scene(&s);
            assert_given_back();
        }
}

/* What never ends on the caller's stream is told as what it is.  What is enqueued behind it runs before its memory goes. */
TEST(a_stream_that_hangs_ends_the_run)
{
    struct st_step_result result;
    struct scene s;

    (void)begin(NULL);
    sem_init(&gate, 0, 0);
    open_scene(&s, false);
    s.cell.deadline_ns = 300000000;
    assert_ok(net_open(&s.net, s.plan, &s.cell, 0, NULL, scratch_dir));
    enqueue(stream, wait_at_gate, NULL);
    says(net_begin(&s.net, 1, &result), STRATA_E_IO, "queue cuda-caller has made no progress");
    sem_post(&gate);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    close_scene(&s);
    twin_reset();
    st_cuda_forget_loss();
    sem_destroy(&gate);
}

#endif

TEST_MAIN(argc, argv)
{
    strata_log_configure(NULL, NULL, STRATA_LOG_ERROR);
    return test_run(scratch_create, scratch_remove);
}
