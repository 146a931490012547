/* test_steps - several optimizer steps through the engine against the papers' formulae in double: norm, clip factor, rates,
 * betas that move, bias correction, decay, masters and moments.
 *
 * The exactness matrix compares runs with each other; what is wrong in all of them shows here.  Gradients are given, some bits
 * wide and so small that the 1e-6 of the clip factor is a tenth of it; their sizes change, so that some steps are clipped. */
#include "given.h"
#include "tests/common/test.h"

#include "core/base/rng.h"
#include "offload/optim/lr_schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS     9u
#define CLIP      5e-6
#define TOLERANCE 4e-6 /* of what moved: some roundings to fp32 a step */

static const char *const rule_names[] = {"AdamW", "Adam", "Adagrad", "Lion", "SGD"};
static const char *const dtype_names[] = {"?", "fp32", "bf16", "fp16"};
static const char *const update_names[] = {"auto", "serial", "gated", "in_backward"};

/* An odd number of 1/64 below 1, times a power of two of the step: norms of about 12e-6, 6e-6 and 3e-6. */
static double gradient(uint32_t page, uint64_t elem, uint64_t step)
{
    const uint64_t bits = st_rng_u64(5, page, elem + (step << 32));

    return ldexp((double)(bits % 64 | 1) / 64, -22 - (int)(step % 3)) * (bits & 64 ? 1 : -1);
}

/* --- the reference --- */

/* One element, and the sums of magnitudes that its numbers were made of: what roundings are measured by. */
struct element {
    double p, m, v, p_path, m_path, v_path;
};

struct scalars {
    uint64_t step;
    double lr, beta1, beta2, divisor;
};

static void reference_adam(struct element *e, double g, const struct st_config *c, const struct scalars *s)
{
    const double correct1 = c->optimizer.bias_correction ? 1 - pow(s->beta1, (double)s->step) : 1;
    const double correct2 = c->optimizer.bias_correction ? 1 - pow(s->beta2, (double)s->step) : 1;

    e->m = s->beta1 * e->m + (1 - s->beta1) * g;
    e->v = s->beta2 * e->v + (1 - s->beta2) * g * g;
    e->p -= s->lr * (e->m / correct1) / (sqrt(e->v / correct2) + c->optimizer.eps);
}

static void reference_lion(struct element *e, double g, const struct scalars *s)
{
    const double direction = s->beta1 * e->m + (1 - s->beta1) * g;

    e->p -= direction > 0 ? s->lr : direction < 0 ? -s->lr : 0;
    e->m = s->beta2 * e->m + (1 - s->beta2) * g;
}

static void reference_sgd(struct element *e, double g, const struct st_config *c, const struct scalars *s)
{
    e->m = s->step == 1 ? g : s->beta1 * e->m + (1 - c->optimizer.dampening) * g;
    e->p -= s->lr * (c->optimizer.nesterov ? g + s->beta1 * e->m : e->m);
}

static void reference_step(struct element *e, double gradient_sum, bool decays, const struct st_config *c,
                           const struct scalars *s)
{
    const bool decoupled = c->optimizer.type == STRATA_ADAMW || c->optimizer.type == STRATA_LION;
    const double decay = decays ? c->optimizer.weight_decay : 0, before = e->p;
    const double g = gradient_sum / s->divisor + (decoupled ? 0 : decay * e->p);
    const double size = fabs(gradient_sum) / s->divisor + (decoupled ? 0 : decay * fabs(e->p));

    if (decoupled)
        e->p -= s->lr * decay * e->p;
    switch (c->optimizer.type) {
    case STRATA_ADAMW:
    case STRATA_ADAM:
        reference_adam(e, g, c, s);
        break;
    case STRATA_ADAGRAD:
        e->m += g * g;
        e->p -= s->lr * g / (sqrt(e->m) + c->optimizer.eps);
        break;
    case STRATA_LION:
        reference_lion(e, g, s);
        break;
    case STRATA_SGD:
        reference_sgd(e, g, c, s);
        break;
    }
    e->p_path += fabs(e->p - before) + fabs(e->p) / 32; /* and the rounding of the master itself, once a step */
    e->m_path += c->optimizer.type == STRATA_ADAGRAD ? size * size : size;
    e->v_path += size * size;
}

/* --- what the engine has --- */

static const void *weight_of(const struct given *g, uint32_t page)
{
    const struct st_page_place *place = &g->plan->program.pages[page];

    return st_engine_pointer(g->eng, place->home == ST_WHERE_DEVICE ? place->weight_region : place->home_region);
}

static double master_of(const struct given *g, const struct st_chunk *chunk, uint64_t i)
{
    const void *state = st_engine_pointer(g->eng, chunk->region), *weight = weight_of(g, chunk->page);
    float master;

    if (chunk->master == ST_MASTER_WEIGHT)
        return ((const float *)weight)[chunk->first + i];
    if (chunk->master == ST_MASTER_FULL)
        return ((const float *)state)[i];
    g->eng->kernels->master_join(&master, (const uint16_t *)weight + chunk->first + i, (const int16_t *)state + i, 1);
    return master;
}

static void assert_near(const struct given *g, const struct st_chunk *chunk, uint64_t i, const char *what, double got,
                        double want, double path)
{
    if (!(fabs(got - want) <= TOLERANCE * path))
        fail_msg(
            "%s, %s, %s update of state in tier %d, step %llu: %s of element %llu of page %u is %.9g, the reference has %.9g",
            rule_names[g->config.optimizer.type], dtype_names[g->config.dtype], update_names[g->config.update],
            (int)g->config.optimizer_tier, (unsigned long long)g->step, what, (unsigned long long)(chunk->first + i), chunk->page,
            got, want);
}

static void compare_chunk(const struct given *g, const struct st_chunk *chunk, const struct element *elements)
{
    const struct st_moments moments = st_engine_moments(&g->plan->program, chunk, st_engine_pointer(g->eng, chunk->region));
    const float *moment1 = moments.moment1, *moment2 = moments.moment2;

    for (uint64_t i = 0; i < chunk->elems; i++) {
        const struct element *e = &elements[chunk->first + i];

        assert_near(g, chunk, i, "master", master_of(g, chunk, i), e->p, e->p_path);
        assert_near(g, chunk, i, "moment1", moment1[i], e->m, e->m_path);
        if (moment2 != NULL)
            assert_near(g, chunk, i, "moment2", moment2[i], e->v, e->v_path);
    }
}

/* --- both, step by step --- */

struct comparison {
    struct given given;
    struct element **pages; /* [page_count][elems] */
    uint32_t clipped;
};

static void comparison_open(struct comparison *c, const struct given_opts *opts)
{
    const struct st_workload *w;

    *c = (struct comparison){.clipped = 0};
    given_open(&c->given, opts);
    w = &c->given.workload;
    c->pages = calloc(w->page_count, sizeof(*c->pages));
    assert_non_null(c->pages);
    for (uint32_t p = 0; p < w->page_count; p++) {
        c->pages[p] = calloc(w->pages[p].elems, sizeof(**c->pages));
        assert_non_null(c->pages[p]);
        for (uint64_t i = 0; i < w->pages[p].elems; i++)
            c->pages[p][i].p = given_weight(p, i);
    }
}

static void comparison_close(struct comparison *c)
{
    for (uint32_t p = 0; p < c->given.workload.page_count; p++)
        free(c->pages[p]);
    free(c->pages);
    given_close(&c->given);
}

static double reference_norm(const struct st_workload *w, uint64_t step)
{
    double sum = 0;

    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t k = 0; k < w->pages[p].group_count; k++)
            for (uint64_t i = 0; i < w->pages[p].groups[k].elems; i++)
                sum += pow(gradient(p, w->pages[p].groups[k].offset + i, step), 2);
    return sqrt(sum);
}

static void reference_all(struct comparison *c, const struct scalars *s)
{
    const struct st_workload *w = &c->given.workload;

    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t k = 0; k < w->pages[p].group_count; k++) {
            const struct st_group *group = &w->pages[p].groups[k];

            for (uint64_t i = group->offset; i < group->offset + group->elems; i++)
                reference_step(&c->pages[p][i], gradient(p, i, s->step), group->kind == ST_GROUP_DECAY, &c->given.config, s);
        }
}

static void compare_step(struct comparison *c, uint64_t step)
{
    struct given *g = &c->given;
    const double norm = reference_norm(&g->workload, step), clip = g->config.gradient_clipping;
    struct scalars s = {.step = step, .lr = st_lr_at(&g->config.schedule, &g->config.optimizer, step), .divisor = 1};
    struct st_step_result result;

    st_betas_at(&g->config.schedule, &g->config.optimizer, step, &s.beta1, &s.beta2);
    if (clip > 0)
        s.divisor = fmax(1, (norm + 1e-6) / clip);
    c->clipped += s.divisor > 1;
    assert_int_equal(given_step(g, &result), STRATA_OK);
    assert_false(result.skipped);
    if (!(fabs(result.grad_norm - norm) <= 1e-9 * norm) || result.lr != s.lr)
        fail_msg("step %llu: norm %.12g and rate %.12g, the reference has %.12g and %.12g", (unsigned long long)step,
                 result.grad_norm, result.lr, norm, s.lr);
    assert_int_equal(st_engine_flush(g->eng, NULL), STRATA_OK);
    reference_all(c, &s);
    for (uint32_t i = 0; i < g->plan->program.chunk_count; i++)
        compare_chunk(g, &g->plan->program.chunks[i], c->pages[g->plan->program.chunks[i].page]);
}

static void compare_run(const struct st_config *config)
{
    const struct given_opts opts = {.config = *config, .grad = gradient, .smallest = config->param_tier == STRATA_TIER_HOST};
    struct comparison c;

    comparison_open(&c, &opts);
    for (uint64_t step = 1; step <= STEPS; step++)
        compare_step(&c, step);
    if (config->gradient_clipping > 0)
        assert_true(c.clipped > 0 && c.clipped < STEPS);
    comparison_close(&c);
}

/* Where masters, gradients and updates are: the device or the host, after the step or, where nothing asks for its norm, within.
 */
static void compare_everywhere(const struct st_config *config)
{
    struct st_config c = *config;

    c.update = ST_UPDATE_SERIAL;
    compare_run(&c);
    c.param_tier = c.optimizer_tier = STRATA_TIER_HOST;
    c.update = ST_UPDATE_GATED;
    compare_run(&c);
    if (c.dtype == STRATA_F16)
        return;
    c.update = ST_UPDATE_IN_BACKWARD;
    c.gradient_clipping = 0;
    compare_run(&c);
}

/* A rule with decay and a clip that bites; coupled decay of about the gradients' size. */
static struct st_config config_of(enum strata_optimizer rule, strata_dtype dtype)
{
    struct st_config c = given_config(dtype, STRATA_TIER_DEVICE);

    c.optimizer.type = rule;
    c.gradient_clipping = CLIP;
    c.optimizer.weight_decay = rule == STRATA_ADAMW || rule == STRATA_LION ? 0.1 : 1e-6;
    if (rule == STRATA_SGD) {
        c.optimizer.lr = 1000;
        c.optimizer.momentum = 0.9;
        c.optimizer.dampening = 0.2;
    }
    return c;
}

static const enum strata_optimizer rules[] = {STRATA_ADAMW, STRATA_ADAM, STRATA_ADAGRAD, STRATA_LION, STRATA_SGD};

TEST(every_rule_is_its_formula)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};

    for (size_t r = 0; r < sizeof(rules) / sizeof(rules[0]); r++)
        for (size_t d = 0; d < 3; d++) {
            const struct st_config c = config_of(rules[r], dtypes[d]);

            compare_everywhere(&c);
        }
}

TEST(bias_correction_and_nesterov_are_options)
{
    struct st_config c = config_of(STRATA_ADAMW, STRATA_BF16);

    c.optimizer.bias_correction = false;
    compare_everywhere(&c);
    c = config_of(STRATA_SGD, STRATA_F32);
    c.optimizer.nesterov = true;
    c.optimizer.dampening = 0;
    compare_everywhere(&c);
    c.optimizer.nesterov = false;
    c.optimizer.momentum = 0;
    compare_everywhere(&c);
}

/* fp16 with a scale that doubles after every second good step: a step is made with the scale that its gradients have, and not
 * with the one that comes after. */
TEST(a_scale_that_grows_is_the_next_steps)
{
    for (size_t r = 0; r < sizeof(rules) / sizeof(rules[0]); r++) {
        struct st_config c = config_of(rules[r], STRATA_F16);

        c.scaling = (struct st_loss_scaling){.initial_power = 10, .window = 2, .hysteresis = 1, .min_scale = 1};
        compare_everywhere(&c);
    }
}

/* Up in three steps, down in four, and beyond: the betas of a step are those of its bias correction, over all steps so far. */
TEST(betas_that_move)
{
    for (size_t r = 0; r < sizeof(rules) / sizeof(rules[0]); r++) {
        struct st_config c = config_of(rules[r], STRATA_BF16);

        c.schedule.type = ST_LR_ONE_CYCLE;
        c.schedule.cycle_min_lr = c.optimizer.lr / 10;
        c.schedule.cycle_max_lr = c.optimizer.lr;
        c.schedule.cycle_first_step_size = 3;
        c.schedule.cycle_second_step_size = 4;
        c.schedule.decay_step_size = 1;
        c.schedule.decay_lr_rate = 0.5;
        c.schedule.cycle_momentum = true;
        c.schedule.cycle_min_mom = 0.8;
        c.schedule.cycle_max_mom = 0.95;
        compare_everywhere(&c);
    }
}

/* A step of Lion that takes every master beyond the largest bf16, but not beyond fp32: the next step tells how many. */
TEST(overflowed_weights_are_counted)
{
    static const strata_tier tiers[] = {STRATA_TIER_DEVICE, STRATA_TIER_HOST};

    for (size_t t = 0; t < 2; t++) {
        struct given_opts opts = {
            .config = given_config(STRATA_BF16, tiers[t]), .grad = gradient, .smallest = tiers[t] == STRATA_TIER_HOST};
        struct st_step_result result;
        struct given g;

        opts.config.optimizer.type = STRATA_LION;
        opts.config.optimizer.lr = 3.4e38;
        given_open(&g, &opts);
        assert_int_equal(given_step(&g, &result), STRATA_OK);
        assert_int_equal(result.weights_overflowed, 0);
        assert_int_equal(given_step(&g, &result), STRATA_OK);
        assert_int_equal(result.weights_overflowed, g.workload.params);
        assert_int_equal(given_step(&g, &result), STRATA_OK); /* each tells of one update alone */
        assert_int_equal(result.weights_overflowed, 0);
        given_close(&g);
    }
}

/* What is asked for, and what a flush's update overflows, is the next step's to tell, though an evaluation comes between. */
TEST(an_evaluation_leaves_the_rest_to_the_next_step)
{
    static const strata_tier tiers[] = {STRATA_TIER_DEVICE, STRATA_TIER_HOST};

    for (size_t t = 0; t < 2; t++) {
        struct given_opts opts = {
            .config = given_config(STRATA_BF16, tiers[t]), .grad = gradient, .smallest = tiers[t] == STRATA_TIER_HOST};
        struct st_step_result result;
        struct given g;
        double loss = 0;
        uint64_t seen;

        opts.config.optimizer.type = STRATA_LION;
        opts.config.optimizer.lr = 3.4e38;
        given_open(&g, &opts);
        g.loss = 3;
        assert_int_equal(given_step(&g, &result), STRATA_OK);
        assert_int_equal(result.requests, 0);
        assert_int_equal(st_engine_flush(g.eng, NULL), STRATA_OK);
        st_engine_request(g.eng, 5);
        g.loss = 7;
        assert_int_equal(st_engine_eval(g.eng, g.tokens, g.tokens, NULL, &loss, &seen), STRATA_OK);
        assert_true(loss == 14); /* of two micro-batches */
        assert_true(st_engine_train_state(g.eng)->update.loss == result.loss);
        assert_int_equal(given_step(&g, &result), STRATA_OK);
        assert_int_equal(result.weights_overflowed, g.workload.params);
        assert_int_equal(result.requests, 5);
        assert_int_equal(given_step(&g, &result), STRATA_OK);
        assert_int_equal(result.requests, 0);
        given_close(&g);
    }
}

/* Gradients may be finite where the loss is not: such steps teach nothing either, and in a row they end the run. */
TEST(lost_losses_in_a_row_end_a_run)
{
    static const double losses[] = {NAN, INFINITY, 1, NAN, -INFINITY, NAN};
    struct given_opts opts = {.config = given_config(STRATA_BF16, STRATA_TIER_DEVICE), .grad = gradient};
    struct given g;

    opts.config.max_skipped = 3;
    given_open(&g, &opts);
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        g.loss = losses[i];
        assert_int_equal(given_step(&g, NULL), i < 5 ? STRATA_OK : STRATA_E_NUMERICS);
        assert_int_equal(st_engine_learnt(g.eng), i == 2 ? STRATA_OK : STRATA_E_NUMERICS);
    }
    assert_int_equal(given_step(&g, NULL), STRATA_E_NUMERICS);
    given_close(&g);
}

static uint32_t bad_from; /* pages from this one on have an element that is not finite */

static double bad_gradient(uint32_t page, uint64_t elem, uint64_t step)
{
    return page >= bad_from && elem == 3 ? (double)NAN : gradient(page, elem, step);
}

/* How many there are, and in which page the first, whether the run ends with it or the update is left out. */
TEST(the_first_page_with_bad_gradients_is_named)
{
    struct given_opts opts = {.config = given_config(STRATA_BF16, STRATA_TIER_HOST), .grad = bad_gradient};
    uint32_t pages = 1;

    for (bad_from = 0; bad_from < pages; bad_from++) {
        char sentence[96];
        struct given g;

        given_open(&g, &opts);
        pages = g.workload.page_count;
        assert_int_equal(given_step(&g, NULL), STRATA_E_NUMERICS);
        snprintf(sentence, sizeof(sentence), "%u gradient values are not finite, the first in page %u: ", pages - bad_from,
                 bad_from);
        assert_int_equal(strncmp(strata_last_error(), sentence, strlen(sentence)), 0);
        given_close(&g);
    }
    assert_true(pages > 4);
}

static strata_status zeros(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    (void)ctx, (void)page, (void)first;
    memset(out, 0, count * sizeof(*out));
    return STRATA_OK;
}

/* What the caller sets holds for every step from then on; a load begins with the options' rates once more. */
TEST(a_rate_holds_until_a_load)
{
    static const double want[] = {1e-2, 0.25, 0.25};
    const struct given_opts opts = {.config = given_config(STRATA_BF16, STRATA_TIER_HOST), .grad = gradient};
    struct st_step_result result;
    struct given g;

    given_open(&g, &opts);
    for (int run = 0; run < 2; run++) {
        for (uint64_t i = 0; i < 3; i++) {
            assert_int_equal(st_engine_steps(g.eng), i);
            if (i == 1)
                st_engine_set_lr(g.eng, 0.25);
            g.step = i + 1;
            assert_int_equal(st_engine_step(g.eng, g.tokens, g.tokens, NULL, &result), STRATA_OK);
            assert_true(result.lr == want[i]);
        }
        assert_int_equal(st_engine_load(g.eng, zeros, NULL), STRATA_OK);
    }
    given_close(&g);
}

static void add_traffic(struct st_traffic *to, const struct st_traffic *more)
{
    to->upload += more->upload;
    to->download += more->download;
    to->read += more->read;
    to->write += more->write;
    to->comm += more->comm;
}

/* What an engine moved is the sum over its cycles, each of them what the plan says of its phase; the first two are spared the
 * moments that no update has written yet. */
static void check_bytes_moved(enum st_update_policy update)
{
    const enum st_phase phases[] = {update == ST_UPDATE_GATED ? ST_PHASE_PROLOGUE : ST_PHASE_BODY, ST_PHASE_BODY, ST_PHASE_BODY,
                                    ST_PHASE_EPILOGUE};
    struct given_opts opts = {.config = given_config(STRATA_BF16, STRATA_TIER_NVME), .grad = gradient, .smallest = true};
    struct st_traffic sum = {0};
    struct st_engine_info info;
    struct given g;

    opts.config.update = update;
    given_open(&g, &opts);
    for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
        const struct st_traffic planned = st_program_traffic(&g.plan->program, phases[i]);
        struct st_step_result result;

        assert_int_equal(i < 3 ? given_step(&g, &result) : st_engine_flush(g.eng, &result), STRATA_OK);
        assert_int_equal(result.bytes.upload, planned.upload);
        assert_int_equal(result.bytes.download, planned.download);
        assert_int_equal(result.bytes.read, i < 2 ? st_program_fresh_traffic(&g.plan->program, (uint32_t)i).read : planned.read);
        add_traffic(&sum, &planned);
    }
    assert_true(st_program_spared(&g.plan->program) > 0);
    sum.read -= st_program_spared(&g.plan->program);
    assert_true(sum.upload > 0 && sum.download > 0 && sum.read > 0 && sum.write > 0);
    st_engine_info(g.eng, &info);
    assert_memory_equal(&info.moved, &sum, sizeof(sum));
    given_close(&g);
}

TEST(bytes_moved_add_up)
{
    check_bytes_moved(ST_UPDATE_GATED);
    check_bytes_moved(ST_UPDATE_SERIAL);
    check_bytes_moved(ST_UPDATE_IN_BACKWARD);
}
