/* test_generate - forward with a key-value cache: the same bits wherever the weights lie, and the numbers of evaluation.  Of
 * experts only those move that were chosen. */
#include "chosen.h"
#include "rig.h"
#include "tests/common/golden.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "core/base/rng.h"
#include "offload/engine/engine_internal.h"
#include "tests/common/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VOCAB   8500u /* several slices of the table */
#define CONTEXT 40u
#define PROMPT  19u
#define AMPLE   (1ull << 40)

struct setting {
    bool llama;
    const char *dir; /* of a model with experts; NULL: one that is made up */
    uint64_t slice_elems;
    strata_dtype dtype;
    strata_tier param;
    bool smallest; /* device budget */
    uint32_t threads, rows;
    const char *io_method;
};

/* A model and an engine of one setting; generation, or evaluation of one sequence. */
struct bench {
    struct st_model *model;
    struct st_plan *plan;
    struct st_engine *engine;
    struct st_hf_reader *reader; /* NULL: weights are drawn */
    uint32_t vocab;
};

static void model_config(struct st_model_config *out, bool llama)
{
    *out = (struct st_model_config){.name = "generate",
                                    .blocks = 3,
                                    .hidden = 32,
                                    .heads = 4,
                                    .ffn = 96,
                                    .vocab = VOCAB,
                                    .context = CONTEXT,
                                    .norm_eps = 1e-5f};
    if (!llama)
        return;
    out->family = ST_FAMILY_LLAMA;
    out->norm = ST_NORM_RMSNORM;
    out->activation = ST_ACTIVATION_SWIGLU;
    out->positions = ST_POSITION_ROTARY;
    out->biases = ST_BIAS_NONE;
    out->kv_heads = 2;
    out->rope_base = 10000.0f;
    out->out_in = true;
    out->untied = true;
    out->logit_cap = 1.5f;
}

static void engine_config(struct st_config *out, const struct setting *s)
{
    const struct rig_cell cell = {.optimizer = STRATA_TIER_DEVICE,
                                  .param = s->param,
                                  .grad_accum = 1,
                                  .act_tier = STRATA_TIER_COUNT,
                                  .io_method = s->io_method != NULL ? s->io_method : "auto",
                                  .isa = "auto",
                                  .threads = s->threads,
                                  .dtype = s->dtype,
                                  .cache = s->smallest ? 0 : ST_AUTO_BYTES};

    rig_config(out, &cell, scratch_dir);
}

static strata_status make_plan(struct bench *b, const struct setting *s, const struct st_config *config, uint64_t device)
{
    const struct st_machine machine = {.name = "generate",
                                       .capacity = {.bytes = {device, AMPLE, s->param == STRATA_TIER_NVME ? AMPLE : 0},
                                                    .workers = s->threads,
                                                    .device_is_host = true}};
    struct st_policy policy;

    st_config_policy(&policy, config);
    policy.forward_only = true;
    policy.activations = ST_ACT_KEPT;
    st_plan_destroy(b->plan);
    b->plan = NULL;
    return st_plan_make(&b->plan, st_model_workload(b->model), &machine.capacity, &policy);
}

/* The least device memory that plans. */
static void smallest_plan(struct bench *b, const struct setting *s, const struct st_config *config)
{
    uint64_t low = 0, high = UINT64_C(1) << 32;

    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;

        if (make_plan(b, s, config, middle) == STRATA_OK)
            high = middle;
        else
            low = middle;
    }
    assert_int_equal(make_plan(b, s, config, high), STRATA_OK);
}

static void bench_open(struct bench *b, const struct setting *s, bool generate)
{
    const struct st_model_batch batch = {.micro_batch = 1,
                                         .seq = s->rows,
                                         .grad_accum = 1,
                                         .dtype = s->dtype,
                                         .workers = s->threads,
                                         .generate = generate,
                                         .slice_elems = s->slice_elems,
                                         .context = generate ? CONTEXT : 0};
    struct st_engine_opts opts;
    struct st_model_init init = {.seed = 42};
    struct st_model_config config;
    struct st_weight_source source;
    struct st_config here;

    *b = (struct bench){0};
    if (s->dir != NULL)
        assert_int_equal(st_model_config_read(&config, s->dir), STRATA_OK);
    else
        model_config(&config, s->llama);
    b->vocab = config.vocab;
    assert_int_equal(st_model_create(&b->model, &config, &batch), STRATA_OK);
    engine_config(&here, s);
    if (s->smallest)
        smallest_plan(b, s, &here);
    else
        assert_int_equal(make_plan(b, s, &here, AMPLE), STRATA_OK);
    assert_int_equal(st_plan_verify(b->plan), STRATA_OK);
    st_config_engine_opts(&opts, &here);
    opts.nvme.fake_seed = 3;
    opts.nvme.fake_latency_us = 50;
    opts.program = &b->plan->program;
    opts.compute = st_model_compute(b->model);
    assert_int_equal(st_engine_create(&b->engine, &opts), STRATA_OK);
    init.model = b->model;
    source = st_model_init_source(&init);
    if (s->dir != NULL) {
        assert_int_equal(st_hf_reader_open(&b->reader, b->model, s->dir), STRATA_OK);
        source = st_hf_reader_source(b->reader);
    }
    assert_int_equal(st_engine_load(b->engine, source.read, source.ctx), STRATA_OK);
}

static void bench_close(struct bench *b)
{
    st_engine_destroy(b->engine);
    st_hf_reader_close(b->reader);
    st_plan_destroy(b->plan);
    st_model_destroy(b->model);
}

static int32_t token_at(uint32_t i, uint32_t vocab)
{
    return (int32_t)(st_rng_u64(7, 1, i / 2 * 2) % vocab); /* neighbours repeat */
}

static void sequence(int32_t tokens[CONTEXT], uint32_t vocab)
{
    for (uint32_t i = 0; i < CONTEXT; i++)
        tokens[i] = token_at(i, vocab);
}

/* The logits are those of the head on the device, capped where the model caps them. */
static void check_logits(const struct bench *b, const float *logits)
{
    const struct st_workload *w = st_model_workload(b->model);
    const unsigned char *head = st_engine_pointer(b->engine, b->plan->program.at.head_internals);
    const float *raw = (const float *)(const void *)(head + w->logits_offset);

    for (uint32_t v = 0; v < b->vocab; v++)
        assert_true(logits[v] == (w->logit_cap > 0 ? w->logit_cap * tanhf(raw[v] / w->logit_cap) : raw[v]));
}

/* Whether a row of the last call has chosen an expert of the page, which is one of a slice. */
static bool is_chosen(const struct bench *b, uint32_t page, uint32_t rows)
{
    const struct st_program *program = &b->plan->program;
    const struct st_workload *w = &program->workload;
    const struct st_op *op = program->ops;
    uint32_t slice = 0;

    while (op->kind != ST_OP_ROUTE_FORWARD || op->layer != w->pages[page].layer)
        op++;
    while (st_layer_page(w, op->layer, 1 + slice) != page)
        slice++;
    return chosen_has(b->model, slice,
                      st_engine_pointer(b->engine, st_op_access(program->accesses, op, ST_ROLE_INTERNALS)->buffer), rows);
}

/* What the choices of a call leave of what is planned. */
static void add_moved(struct st_traffic *moved, const struct bench *b, uint32_t rows)
{
    const struct st_program *program = &b->plan->program;

    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];
        uint64_t *link = st_traffic_of(moved, op->lane);
        const bool slice = chosen_is_slice(b->model, op->page);

        if (link != NULL && (op->phases & ST_PHASE_EVAL) != 0 && (!slice || is_chosen(b, op->page, rows)))
            *link += op->bytes;
    }
}

/* What the calls have moved: what is planned, but for experts that were not chosen, and the logits. */
static void check_moved(const struct bench *b, const struct st_traffic *wanted, uint32_t calls)
{
    struct st_engine_info info;

    st_engine_info(b->engine, &info);
    assert_int_equal(info.moved.download, wanted->download + calls * b->vocab * sizeof(float));
    assert_int_equal(info.moved.read, wanted->read);
    assert_int_equal(info.moved.write, 0);
    assert_int_equal(info.moved.upload, wanted->upload);
}

/* Prompt in calls of `rows`, then token by token to the end of the context; the logits of every call, one after another.
 * *moved: by all of them. */
static uint32_t logits_and_moved(const struct setting *s, float *logits, struct st_traffic *moved)
{
    int32_t tokens[CONTEXT];
    uint32_t calls = 0;
    struct bench b;

    *moved = (struct st_traffic){0};
    bench_open(&b, s, true);
    sequence(tokens, b.vocab);
    for (uint32_t at = 0; at < CONTEXT; calls++) {
        const uint32_t rows = at >= PROMPT ? 1 : PROMPT - at < s->rows ? PROMPT - at : s->rows;

        assert_int_equal(st_engine_forward(b.engine, tokens + at, rows, at, logits + (size_t)calls * b.vocab), STRATA_OK);
        check_logits(&b, logits + (size_t)calls * b.vocab);
        add_moved(moved, &b, rows);
        at += rows;
    }
    check_moved(&b, moved, calls);
    bench_close(&b);
    return calls;
}

static uint32_t logits_of(const struct setting *s, float *logits)
{
    struct st_traffic moved;

    return logits_and_moved(s, logits, &moved);
}

static void same_bits_everywhere(bool llama, strata_dtype dtype)
{
    const struct setting all = {.llama = llama, .dtype = dtype, .param = STRATA_TIER_DEVICE, .threads = 2, .rows = 12};
    struct setting others[4] = {all, all, all, all};
    float *wanted = malloc(CONTEXT * VOCAB * sizeof(float)), *got = malloc(CONTEXT * VOCAB * sizeof(float));
    uint32_t calls;

    assert_non_null(wanted);
    assert_non_null(got);
    others[0].param = STRATA_TIER_NVME, others[0].smallest = true;
    others[1].param = STRATA_TIER_HOST, others[1].smallest = true, others[1].threads = 1;
    others[2].param = STRATA_TIER_NVME, others[2].smallest = true, others[2].io_method = "fake", others[2].threads = 3;
    others[3].param = STRATA_TIER_NVME;
    calls = logits_of(&all, wanted);
    assert_int_equal(calls, 2 + CONTEXT - PROMPT);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(logits_of(&others[i], got), calls);
        assert_memory_equal(got, wanted, (size_t)calls * VOCAB * sizeof(float));
    }
    free(wanted);
    free(got);
}

TEST(placement_changes_no_bit)
{
    same_bits_everywhere(false, STRATA_BF16);
    same_bits_everywhere(false, STRATA_F32);
    same_bits_everywhere(true, STRATA_BF16);
    same_bits_everywhere(true, STRATA_F32);
}

static double loss_of_row(const float *logits, int32_t target)
{
    double most = -HUGE_VAL, sum = 0;

    for (uint32_t i = 0; i < VOCAB; i++)
        most = fmax(most, (double)logits[i]);
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i] - most);
    return most + log(sum) - (double)logits[target];
}

/* Evaluation sees the whole sequence at once, without a cache: the loss of one position at a time. */
static void losses_of_evaluation(bool llama, double losses[CONTEXT])
{
    const struct setting s = {.llama = llama, .dtype = STRATA_F32, .param = STRATA_TIER_DEVICE, .threads = 2, .rows = CONTEXT};
    int32_t tokens[CONTEXT], targets[CONTEXT];
    struct bench b;

    sequence(tokens, VOCAB);
    bench_open(&b, &s, false);
    for (uint32_t i = 0; i + 1 < CONTEXT; i++) {
        uint64_t seen;

        memset(targets, 0xff, sizeof(targets));
        targets[i] = tokens[i + 1];
        losses[i] = 0;
        assert_int_equal(st_engine_eval(b.engine, tokens, targets, NULL, &losses[i], &seen), STRATA_OK);
        assert_int_equal(seen, 1);
    }
    bench_close(&b);
}

static void matches_evaluation(bool llama)
{
    static const uint32_t rows[] = {PROMPT, 7, 1};
    float *logits = malloc(CONTEXT * VOCAB * sizeof(float));
    double losses[CONTEXT];

    assert_non_null(logits);
    losses_of_evaluation(llama, losses);
    for (size_t r = 0; r < 3; r++) {
        const struct setting s = {
            .llama = llama, .dtype = STRATA_F32, .param = STRATA_TIER_DEVICE, .threads = 2, .rows = rows[r]};
        uint32_t at = 0;

        (void)logits_of(&s, logits);
        for (uint32_t call = 0; at < CONTEXT; call++) {
            at += at >= PROMPT ? 1 : PROMPT - at < s.rows ? PROMPT - at : s.rows;
            if (at < CONTEXT)
                assert_true(fabs(loss_of_row(logits + (size_t)call * VOCAB, token_at(at, VOCAB)) - losses[at - 1]) < 2e-5);
        }
    }
    free(logits);
}

TEST(logits_are_those_of_evaluation)
{
    matches_evaluation(false);
    matches_evaluation(true);
}

/* Resident, from host memory and from NVMe, with an expert in a page and with several. */
static void experts_come_where_chosen(const char *dir, strata_dtype dtype)
{
    const struct setting all = {.dir = dir, .dtype = dtype, .param = STRATA_TIER_DEVICE, .threads = 2, .rows = 12};
    const size_t room = CONTEXT * VOCAB * sizeof(float);
    float *wanted = calloc(1, room), *got = malloc(room); /* a model has fewer logits */
    struct st_traffic one = {0}, several, none;
    const uint32_t calls = logits_and_moved(&all, wanted, &none);

    for (uint32_t i = 0; i < 5; i++) {
        struct setting other = all;

        other.param = i == 0 ? STRATA_TIER_HOST : STRATA_TIER_NVME;
        other.smallest = i < 4;
        other.slice_elems = i == 3 ? UINT64_MAX : 0;
        other.io_method = i == 1 ? "fake" : NULL;
        other.threads = 1 + i % 3;
        memset(got, 0, room);
        assert_int_equal(logits_and_moved(&other, got, i == 3 ? &several : i == 4 ? &none : &one), calls);
        assert_memory_equal(got, wanted, room);
        assert_int_equal(one.read > 0, i > 0);
    }
    assert_true(several.read > one.read);
    free(wanted);
    free(got);
}

TEST(experts_that_no_row_chose_do_not_move)
{
    static const char *const dirs[] = {GOLDEN_EXPERTS};

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
        experts_come_where_chosen(dirs[i], i % 2 == 0 ? STRATA_F32 : STRATA_BF16);
}

/* A layer whose router gives all rows to one expert has one page moved, whatever the number of rows. */
TEST(one_expert_that_all_rows_choose_moves_once)
{
    const struct setting s = {.dir = "tests/golden/experts/qwen3_moe_one",
                              .dtype = STRATA_F32,
                              .param = STRATA_TIER_NVME,
                              .smallest = true,
                              .threads = 2,
                              .rows = PROMPT};
    int32_t tokens[CONTEXT];
    float *logits = malloc(VOCAB * sizeof(float));
    uint64_t expected = 0;
    uint32_t slices = 0;
    struct st_engine_info info;
    struct bench b;

    bench_open(&b, &s, true);
    sequence(tokens, b.vocab);
    assert_int_equal(st_model_config(b.model)->experts_chosen, 1);
    assert_int_equal(st_engine_forward(b.engine, tokens, PROMPT, 0, logits), STRATA_OK);
    for (uint32_t i = 0; i < b.plan->program.op_count; i++) {
        const struct st_op *op = &b.plan->program.ops[i];
        const bool slice = chosen_is_slice(b.model, op->page);

        if (op->kind != ST_OP_READ_WEIGHT)
            continue;
        slices += slice;
        if (!slice || is_chosen(&b, op->page, PROMPT))
            expected += op->bytes;
        else
            slices--;
    }
    assert_int_equal(slices, st_model_config(b.model)->blocks);
    st_engine_info(b.engine, &info);
    assert_int_equal(info.moved.read, expected);
    bench_close(&b);
    free(logits);
}

TEST(what_is_not_planned_is_refused)
{
    const struct setting s = {.dtype = STRATA_BF16, .param = STRATA_TIER_DEVICE, .threads = 1, .rows = 4};
    const int32_t tokens[5] = {1, 2, 3, 4, 5}, high = VOCAB, negative = -1;
    float *logits = malloc(VOCAB * sizeof(float));
    struct bench b;

    assert_non_null(logits);
    bench_open(&b, &s, true);
    assert_int_equal(st_engine_forward(b.engine, tokens, 0, 0, logits), STRATA_E_INVAL);
    assert_int_equal(st_engine_forward(b.engine, tokens, 5, 0, logits), STRATA_E_INVAL);
    assert_int_equal(st_engine_forward(b.engine, &high, 1, 0, logits), STRATA_E_INPUT);
    assert_int_equal(st_engine_forward(b.engine, &negative, 1, 0, logits), STRATA_E_INPUT);
    assert_int_equal(st_engine_forward(b.engine, tokens, 4, 0, logits), STRATA_OK); /* none of these broke it */
    st_engine_cancel(b.engine);
    assert_int_equal(st_engine_forward(b.engine, tokens, 1, 4, logits), STRATA_E_CANCELLED);
    bench_close(&b);
    bench_open(&b, &s, false);
    assert_int_equal(st_engine_forward(b.engine, tokens, 1, 0, logits), STRATA_E_INVAL);
    bench_close(&b);
    free(logits);
}

TEST_GROUP(scratch_create, scratch_remove_empty);
