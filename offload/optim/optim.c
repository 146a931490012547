/* optim.c - the public optimizers (strata/optim.h): apply the engine's rules, coefficients and kernels to the caller's arrays.
 *
 * Work is cut into tiles, each inside one tensor.  A wave is a list of tiles that the workers share.  The list has a fixed size,
 * so that nothing is allocated after creation, however many tensors there are. */
#include "offload/optim/optim_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "core/system/floats.h"
#include "core/system/topology.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRIED_TILES 4096u /* about 30 ms on two cores */
#define TRIED_LEAST 64u   /* of a wave: what is smaller fits caches */
/* The ranges of offload/config/config_table_train.c. */
#define LR_MAX    1e3
#define BETA_MAX  0.9999999
#define EPS_MIN   1e-30
#define DECAY_MAX 1e3

static_assert((int)STRATA_OPTIM_MOMENTS_F32 == ST_MOMENTS_F32 && (int)STRATA_OPTIM_MOMENTS_BF16 == ST_MOMENTS_BF16 &&
                  (int)STRATA_OPTIM_MOMENTS_8BIT == ST_MOMENTS_8BIT && STRATA_OPTIM_PACK == ST_NORM_BLOCK,
              "public and internal formats of moments have the same values and packs");
static_assert(ST_TILE_ELEMS % ST_NORM_BLOCK == 0, "tiles begin where moments may be cut");

/* --- creation --- */

void strata_optim_defaults(struct strata_optim_config *config, enum strata_optimizer optimizer)
{
    const bool adagrad = optimizer == STRATA_ADAGRAD;

    if (config == NULL)
        return;
    *config = (struct strata_optim_config){
        .optimizer = optimizer,
        .lr = adagrad ? 1e-2 : 1e-3,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = adagrad ? 1e-10 : 1e-8,
        .bias_correction = true,
    };
}

static strata_status check_range(const char *name, double value, double min, double max)
{
    if (value >= min && value <= max) /* false for NaN, too */
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "optimizer: %s is %g: it must be from %g to %.7g", name, value, min, max);
}

/* Checks and copies what the optimizer reads; the rest stays 0. */
static strata_status take_config(struct st_optimizer *to, const struct strata_optim_config *from)
{
    const bool adam = from->optimizer == STRATA_ADAMW || from->optimizer == STRATA_ADAM;
    const struct {
        const char *name;
        double value, min, max;
        double *to;
        bool read;
    } rows[] = {
        {"lr", from->lr, 0, LR_MAX, &to->lr, true},
        {"weight_decay", from->weight_decay, 0, DECAY_MAX, &to->weight_decay, true},
        {"beta1", from->beta1, 0, BETA_MAX, &to->beta1, adam || from->optimizer == STRATA_LION},
        {"beta2", from->beta2, 0, BETA_MAX, &to->beta2, adam || from->optimizer == STRATA_LION},
        {"eps", from->eps, EPS_MIN, 1, &to->eps, adam || from->optimizer == STRATA_ADAGRAD},
        {"momentum", from->momentum, 0, BETA_MAX, &to->momentum, from->optimizer == STRATA_SGD},
        {"dampening", from->dampening, 0, 1, &to->dampening, from->optimizer == STRATA_SGD},
    };
    strata_status st;

    if ((unsigned)from->optimizer > STRATA_SGD)
        return st_error(STRATA_E_INVAL, "optimizer: %d is unknown: AdamW, Adam, Adagrad, Lion and SGD are 0 to 4",
                        (int)from->optimizer);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!rows[i].read)
            continue;
        if ((st = check_range(rows[i].name, rows[i].value, rows[i].min, rows[i].max)) != STRATA_OK)
            return st;
        *rows[i].to = rows[i].value;
    }
    to->type = from->optimizer;
    to->bias_correction = adam && from->bias_correction;
    to->nesterov = from->optimizer == STRATA_SGD && from->nesterov;
    if (to->nesterov && (to->momentum == 0 || to->dampening != 0))
        return st_error(STRATA_E_INVAL, "optimizer: nesterov needs momentum above 0 and dampening 0, not %g and %g", to->momentum,
                        to->dampening);
    return STRATA_OK;
}

static strata_status pick_kernels(struct strata_optim *opt, const char *isa)
{
    const struct st_kernels *usable;
    char names[64] = "";

    if ((opt->kernels = st_kernels_pick(isa)) != NULL)
        return STRATA_OK;
    for (size_t i = 0; (usable = st_kernels_usable(i)) != NULL; i++) {
        const size_t used = strlen(names);

        snprintf(names + used, sizeof(names) - used, "%s%s", i > 0 ? ", " : "", usable->name);
    }
    return st_error(STRATA_E_NOSYS, "optimizer: isa \"%s\" is unknown, or this CPU lacks it: usable here are %s", isa, names);
}

/* Creates threads bound according to the topology, and the scratch that each needs. */
static strata_status start_workers(struct strata_optim *opt, uint32_t threads)
{
    struct st_topology *topo;
    size_t bytes;
    strata_status st;

    if ((st = st_topology_load(&topo, NULL)) != STRATA_OK)
        return st;
    st = st_workers_create(&opt->workers, threads, topo);
    st_topology_destroy(topo);
    if (st != STRATA_OK)
        return st;
    bytes = st_workers_count(opt->workers) * ST_NORM_BLOCK * sizeof(float);
    opt->widened = st_fault("optim.scratch", 0) < 0 ? NULL : aligned_alloc(64, bytes);
    return opt->widened != NULL ? STRATA_OK : st_nomem(bytes);
}

strata_status strata_optim_create(struct strata_optim **out, const struct strata_optim_config *config)
{
    struct strata_optim *opt;
    struct st_optim_group *first;
    strata_status st;

    if (out == NULL || config == NULL)
        return st_error_missing(__func__, out == NULL ? "opt" : "config");
    opt = st_fault("optim.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*opt));
    if (opt == NULL)
        return st_nomem(sizeof(*opt));
    opt->pid = getpid();
    first = &opt->groups[0];
    if ((st = take_config(&first->optimizer, config)) != STRATA_OK)
        goto fail;
    opt->rule = st_rule_of(first->optimizer.type);
    first->beta1 = st_optimizer_beta1(&first->optimizer);
    first->beta2 = first->optimizer.beta2;
    first->beta1_power = first->beta2_power = 1;
    for (uint32_t i = 1; i < STRATA_OPTIM_GROUPS; i++)
        opt->groups[i] = *first;
    if ((st = pick_kernels(opt, config->isa)) != STRATA_OK)
        goto fail;
    if ((st = start_workers(opt, config->threads)) != STRATA_OK)
        goto fail;
    *out = opt;
    return STRATA_OK;

fail:
    strata_optim_destroy(opt);
    return st;
}

void strata_optim_destroy(struct strata_optim *opt)
{
    if (opt == NULL || opt->pid != getpid()) /* its threads are the parent's */
        return;
    free(opt->widened);
    st_workers_destroy(opt->workers);
    free(opt);
}

/* --- waves --- */

uint32_t st_optim_next_wave(struct st_optim_job *job)
{
    uint32_t tiles = 0;

    while (tiles < ST_WAVE_TILES && job->next.tensor < job->count) {
        if (job->next.first >= job->tensors[job->next.tensor].elems) {
            job->next = (struct st_optim_tile){.tensor = job->next.tensor + 1};
            continue;
        }
        job->opt->wave[tiles++] = job->next;
        job->next.first += ST_TILE_ELEMS;
    }
    return tiles;
}

static struct st_moments moments_at(const struct strata_optim_tensor *t, size_t first)
{
    const struct st_moments whole = {(enum st_moment_format)t->moment_format, t->moment1, t->moment2, t->position};

    return st_moments_at(&whole, first);
}

/* --- step --- */

static void update_tile(void *ctx, uint64_t index, uint32_t worker)
{
    struct st_optim_job *job = ctx;
    const struct st_kernels *k = job->opt->kernels;
    const struct st_optim_tile *tile = &job->opt->wave[index];
    const struct strata_optim_tensor *t = &job->tensors[tile->tensor];
    const size_t at = tile->first, elems = st_optim_tile_elems(t->elems, at);
    const struct st_update_coef *coef = &job->opt->coef[t->group][t->decay];
    const struct st_moments moments = moments_at(t, at);
    const void *grad = st_optim_grad_at(t, at);
    uint64_t overflowed;

    (void)worker;
    if (t->layout == STRATA_OPTIM_SPLIT)
        overflowed = k->update_split(t->weight + at, t->low_half + at, &moments, grad, t->grad_dtype, elems, coef);
    else
        overflowed = k->update_master(t->master + at, t->layout == STRATA_OPTIM_FULL ? t->copy + at : NULL, t->copy_dtype,
                                      &moments, grad, t->grad_dtype, elems, coef);
    if (overflowed > 0)
        atomic_fetch_add(&job->counted, overflowed);
}

/* Both ways of fetching take turns until each has had enough tiles; then the one that took less time stays. */
static void run_wave(struct st_optim_job *job, uint32_t tiles)
{
    struct strata_optim *opt = job->opt;
    const bool enough = opt->tried[0].tiles >= TRIED_TILES && opt->tried[1].tiles >= TRIED_TILES;
    const bool even = enough ? opt->tried[1].ns * opt->tried[0].tiles < opt->tried[0].ns * opt->tried[1].tiles
                             : opt->tried[1].tiles < opt->tried[0].tiles;
    const uint64_t begin_ns = st_clock_ns();

    for (uint32_t i = 0; i < STRATA_OPTIM_GROUPS; i++)
        opt->coef[i][false].fetch_even = opt->coef[i][true].fetch_even = even;
    st_workers_run(opt->workers, update_tile, job, tiles);
    if (enough || tiles < TRIED_LEAST)
        return;
    opt->tried[even].ns += st_clock_ns() - begin_ns;
    opt->tried[even].tiles += tiles;
}

static strata_status check_open(const struct strata_optim *opt, bool open, const char *function)
{
    if (opt == NULL)
        return st_error_missing(function, "opt");
    if (opt->open == open)
        return st_optim_check_process(opt);
    return st_error(STRATA_E_INVAL, open ? "%s: no step has begun" : "%s: a step is open: end or skip it", function);
}

/* The number of the step behind those taken; the last one there is has no next. */
static uint64_t next_step(const struct strata_optim *opt)
{
    return opt->step + (opt->step < UINT64_MAX);
}

/* The coefficients of the step behind those taken.  Powers of beta grow by one multiplication per step, as the engine's do. */
static void begin_step(struct strata_optim *opt, double divisor)
{
    for (uint32_t i = 0; i < STRATA_OPTIM_GROUPS; i++) {
        const struct st_optim_group *g = &opt->groups[i];
        const struct st_step_numbers n = {.step = next_step(opt),
                                          .lr = g->optimizer.lr,
                                          .beta1 = g->beta1,
                                          .beta2 = g->beta2,
                                          .beta1_power = g->beta1_power * g->beta1,
                                          .beta2_power = g->beta2_power * g->beta2,
                                          .divisor = divisor};

        opt->coef[i][false] = st_update_coef_of(&g->optimizer, &n, false);
        opt->coef[i][true] = st_update_coef_of(&g->optimizer, &n, true);
    }
    opt->open = true;
    opt->applied = false;
}

static uint64_t apply(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count)
{
    struct st_optim_job job = {.opt = opt, .tensors = tensors, .count = count};
    uint32_t tiles;

    opt->applied = true;
    while ((tiles = st_optim_next_wave(&job)) > 0)
        run_wave(&job, tiles);
    return job.counted;
}

static void end_step(struct strata_optim *opt)
{
    opt->open = false;
    opt->step = next_step(opt);
    for (uint32_t i = 0; i < STRATA_OPTIM_GROUPS; i++) {
        opt->groups[i].beta1_power *= opt->groups[i].beta1;
        opt->groups[i].beta2_power *= opt->groups[i].beta2;
    }
}

static strata_status check_divisor(double divisor)
{
    if (divisor > 0 && isfinite(divisor))
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "optimizer: grad_divisor is %g: it must be finite and above 0", divisor);
}

strata_status strata_optim_step(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                double grad_divisor, uint64_t *overflowed)
{
    uint64_t counted;
    fenv_t floats;
    strata_status st;

    if (opt != NULL && tensors == NULL && count > 0)
        return st_error_missing(__func__, "tensors");
    if ((st = check_open(opt, false, __func__)) != STRATA_OK || (st = check_divisor(grad_divisor)) != STRATA_OK ||
        (st = st_optim_check_tensors(opt, tensors, count, false)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    begin_step(opt, grad_divisor);
    counted = apply(opt, tensors, count);
    end_step(opt);
    st_floats_restore(&floats);
    if (overflowed != NULL)
        *overflowed = counted;
    return STRATA_OK;
}

strata_status strata_optim_begin(struct strata_optim *opt, double grad_divisor)
{
    fenv_t floats;
    strata_status st;

    if ((st = check_open(opt, false, __func__)) != STRATA_OK || (st = check_divisor(grad_divisor)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    begin_step(opt, grad_divisor);
    st_floats_restore(&floats);
    return STRATA_OK;
}

strata_status strata_optim_apply(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                 uint64_t *overflowed)
{
    uint64_t counted;
    fenv_t floats;
    strata_status st;

    if (opt != NULL && tensors == NULL && count > 0)
        return st_error_missing(__func__, "tensors");
    if ((st = check_open(opt, true, __func__)) != STRATA_OK ||
        (st = st_optim_check_tensors(opt, tensors, count, false)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    counted = apply(opt, tensors, count);
    st_floats_restore(&floats);
    if (overflowed != NULL)
        *overflowed = counted;
    return STRATA_OK;
}

strata_status strata_optim_end(struct strata_optim *opt)
{
    fenv_t floats;
    const strata_status st = check_open(opt, true, __func__);

    if (st != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    end_step(opt);
    st_floats_restore(&floats);
    return STRATA_OK;
}

strata_status strata_optim_skip(struct strata_optim *opt)
{
    const strata_status st = check_open(opt, true, __func__);

    if (st == STRATA_OK && opt->applied)
        return st_error(STRATA_E_INVAL, "strata_optim_skip: tensors were updated in this step: end it");
    if (st == STRATA_OK)
        opt->open = false;
    return st;
}

/* --- split and join --- */

struct halves {
    const struct st_kernels *kernels;
    uint16_t *weight; /* [elems] bf16; join only reads it, as it does low_half */
    int16_t *low_half;
    float *master; /* [elems] f32; split only reads it */
    size_t elems;
};

static void split_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    const struct halves *h = ctx;
    const size_t at = tile * ST_TILE_ELEMS;

    (void)worker;
    h->kernels->master_split(h->weight + at, h->low_half + at, h->master + at, st_optim_tile_elems(h->elems, at));
}

static void join_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    const struct halves *h = ctx;
    const size_t at = tile * ST_TILE_ELEMS;

    (void)worker;
    h->kernels->master_join(h->master + at, h->weight + at, h->low_half + at, st_optim_tile_elems(h->elems, at));
}

static strata_status run_halves(struct strata_optim *opt, st_work_fn *fn, struct halves *h)
{
    const struct strata_optim_tensor t = {.weight = h->weight, .low_half = h->low_half};
    fenv_t floats;
    strata_status st;

    if (opt == NULL)
        return st_error_missing(fn == split_tile ? "strata_optim_split" : "strata_optim_join", "opt");
    if ((st = st_optim_check_process(opt)) != STRATA_OK)
        return st;
    if (h->elems == 0)
        return STRATA_OK;
    if ((st = st_optim_check_master(0, &t)) != STRATA_OK ||
        (st = st_optim_check_array(0, "master", h->master, sizeof(*h->master))) != STRATA_OK)
        return st;
    h->kernels = opt->kernels;
    st_floats_plain(&floats);
    st_workers_run(opt->workers, fn, h, (h->elems - 1) / ST_TILE_ELEMS + 1);
    st_floats_restore(&floats);
    return STRATA_OK;
}

strata_status strata_optim_split(struct strata_optim *opt, uint16_t *weight, int16_t *low_half, const float *master, size_t elems)
{
    return run_halves(opt, split_tile, &(struct halves){NULL, weight, low_half, (float *)(uintptr_t)master, elems});
}

strata_status strata_optim_join(struct strata_optim *opt, float *master, const uint16_t *weight, const int16_t *low_half,
                                size_t elems)
{
    return run_halves(opt, join_tile,
                      &(struct halves){NULL, (uint16_t *)(uintptr_t)weight, (int16_t *)(uintptr_t)low_half, master, elems});
}

/* --- numbers --- */

uint64_t strata_optim_moment_bytes(enum strata_optim_moments format, uint64_t elems)
{
    return (unsigned)format < ST_MOMENTS_COUNT ? st_moment_bytes((enum st_moment_format)format, elems) : 0;
}

strata_status strata_optim_set_group(struct strata_optim *opt, uint32_t group, const struct strata_optim_config *config)
{
    struct st_optim_group next = {0}, *g;
    fenv_t floats;
    strata_status st;

    if (opt == NULL || config == NULL)
        return st_error_missing(__func__, opt == NULL ? "opt" : "config");
    if (group >= STRATA_OPTIM_GROUPS)
        return st_error(STRATA_E_INVAL, "optimizer: group is %" PRIu32 ": it must be below %u", group, STRATA_OPTIM_GROUPS);
    g = &opt->groups[group];
    if (config->optimizer != g->optimizer.type)
        return st_error(STRATA_E_INVAL, "optimizer: group %" PRIu32 " has another rule: all groups have that of the optimizer",
                        group);
    if ((st = take_config(&next.optimizer, config)) != STRATA_OK)
        return st;
    next.beta1 = st_optimizer_beta1(&next.optimizer);
    next.beta2 = next.optimizer.beta2;
    st_floats_plain(&floats);
    next.beta1_power = next.beta1 == g->beta1 ? g->beta1_power : st_beta_power(next.beta1, opt->step);
    next.beta2_power = next.beta2 == g->beta2 ? g->beta2_power : st_beta_power(next.beta2, opt->step);
    st_floats_restore(&floats);
    *g = next;
    return STRATA_OK;
}

strata_status strata_optim_set_lr(struct strata_optim *opt, double lr)
{
    const strata_status st = check_range("lr", lr, 0, LR_MAX);

    if (opt == NULL)
        return st_error_missing(__func__, "opt");
    if (st == STRATA_OK)
        opt->groups[0].optimizer.lr = lr;
    return st;
}

void strata_optim_set_step(struct strata_optim *opt, uint64_t step)
{
    const struct st_optim_group *first;
    fenv_t floats;

    if (opt == NULL)
        return;
    first = &opt->groups[0];
    st_floats_plain(&floats);
    opt->open = false;
    opt->step = step;
    for (uint32_t i = 0; i < STRATA_OPTIM_GROUPS; i++) {
        struct st_optim_group *g = &opt->groups[i];

        g->beta1_power = i > 0 && g->beta1 == first->beta1 ? first->beta1_power : st_beta_power(g->beta1, step);
        g->beta2_power = i > 0 && g->beta2 == first->beta2 ? first->beta2_power : st_beta_power(g->beta2, step);
    }
    st_floats_restore(&floats);
}

uint64_t strata_optim_get_step(const struct strata_optim *opt)
{
    return opt != NULL ? opt->step : 0;
}

uint32_t strata_optim_get_threads(const struct strata_optim *opt)
{
    return opt != NULL ? st_workers_count(opt->workers) : 0;
}

const char *strata_optim_get_isa(const struct strata_optim *opt)
{
    return opt != NULL ? opt->kernels->name : "";
}
