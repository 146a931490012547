/* optim.c - the public optimizers (strata/optim.h): apply the engine's rules, coefficients and kernels to the caller's arrays.
 *
 * Work is cut into tiles, each inside one tensor.  A wave is a list of tiles that the workers share.  The list has a fixed size,
 * so that nothing is allocated after creation, however many tensors there are. */
#include "strata/optim.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "core/system/floats.h"
#include "core/system/topology.h"
#include "core/system/workers.h"
#include "offload/optim/optimizer.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define WAVE_TILES  4096u /* 64 Mi elements of large tensors, so that the wait at a wave's end is short beside the work */
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

struct tile {
    size_t tensor, first; /* elements first .. first + ST_TILE_ELEMS - 1, or up to the tensor's end */
};

struct strata_optim {
    pid_t pid; /* of the process that created it: a child of fork() has none of its threads */
    struct st_optimizer optimizer;
    enum st_rule rule;
    double beta1, beta2;
    uint64_t step;                    /* steps taken */
    double beta1_power, beta2_power;  /* beta^step */
    const struct st_kernels *kernels; /* static */
    struct st_workers *workers;
    struct {
        uint64_t ns, tiles;
    } tried[2]; /* fetching in bursts and evenly */
    struct tile wave[WAVE_TILES];
    double block_sums[WAVE_TILES][ST_TILE_BLOCKS];
    float *widened; /* [workers][ST_NORM_BLOCK] f32 */
};

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
    strata_status st;

    if (out == NULL || config == NULL)
        return st_error_missing(__func__, out == NULL ? "opt" : "config");
    opt = st_fault("optim.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*opt));
    if (opt == NULL)
        return st_nomem(sizeof(*opt));
    opt->pid = getpid();
    if ((st = take_config(&opt->optimizer, config)) != STRATA_OK)
        goto fail;
    opt->rule = st_rule_of(opt->optimizer.type);
    opt->beta1 = st_optimizer_beta1(&opt->optimizer);
    opt->beta2 = opt->optimizer.beta2;
    strata_optim_set_step(opt, 0);
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

/* --- checks of the caller's arguments --- */

static strata_status check_process(const struct strata_optim *opt)
{
    if (opt->pid == getpid())
        return STRATA_OK;
    return st_error(STRATA_E_INVAL,
                    "this optimizer was created by process %ld, where its threads run: process %ld must create its own",
                    (long)opt->pid, (long)getpid());
}

static const char *const names_of_rules[ST_RULE_COUNT] = {"Adam", "Adagrad", "Lion", "SGD"};

static strata_status check_array(size_t tensor, const char *name, const void *array, size_t align)
{
    if (array == NULL)
        return st_error(STRATA_E_INVAL, "tensor %zu: %s is NULL, and its rule and layout need it", tensor, name);
    if ((uintptr_t)array % align != 0)
        return st_error(STRATA_E_INVAL, "tensor %zu: %s is not aligned to %zu bytes", tensor, name, align);
    return STRATA_OK;
}

static strata_status check_grad(size_t i, const struct strata_optim_tensor *t)
{
    const size_t width = strata_dtype_bytes(t->grad_dtype);

    if (width == 0)
        return st_error(STRATA_E_INVAL, "tensor %zu: grad_dtype is %d: it must be F32, BF16 or F16", i, (int)t->grad_dtype);
    return check_array(i, "grad", t->grad, width);
}

static strata_status check_master(size_t i, const struct strata_optim_tensor *t)
{
    strata_status st;

    switch (t->layout) {
    case STRATA_OPTIM_SPLIT:
        st = check_array(i, "weight", t->weight, sizeof(*t->weight));
        return st != STRATA_OK ? st : check_array(i, "low_half", t->low_half, sizeof(*t->low_half));
    case STRATA_OPTIM_FULL:
        if (t->copy_dtype != STRATA_BF16 && t->copy_dtype != STRATA_F16)
            return st_error(STRATA_E_INVAL, "tensor %zu: copy_dtype is %d: it must be BF16 or F16", i, (int)t->copy_dtype);
        st = check_array(i, "copy", t->copy, sizeof(*t->copy));
        return st != STRATA_OK ? st : check_array(i, "master", t->master, sizeof(*t->master));
    case STRATA_OPTIM_F32:
        return check_array(i, "master", t->master, sizeof(*t->master));
    }
    return st_error(STRATA_E_INVAL, "tensor %zu: layout is %d: it must be SPLIT, FULL or F32", i, (int)t->layout);
}

static strata_status check_format(size_t i, const struct strata_optim_tensor *t)
{
    if ((unsigned)t->moment_format >= ST_MOMENTS_COUNT)
        return st_error(STRATA_E_INVAL, "tensor %zu: moment_format is %d: it must be F32, BF16 or 8BIT", i,
                        (int)t->moment_format);
    if (t->moment_format != STRATA_OPTIM_MOMENTS_F32 && t->position % STRATA_OPTIM_PACK != 0)
        return st_error(STRATA_E_INVAL,
                        "tensor %zu: position is %" PRIu64 ": with moments that are not fp32 it must be a multiple of %u", i,
                        t->position, STRATA_OPTIM_PACK);
    return STRATA_OK;
}

static strata_status check_moments(const struct strata_optim *opt, size_t i, const struct strata_optim_tensor *t)
{
    const size_t align = t->moment_format == STRATA_OPTIM_MOMENTS_BF16 ? sizeof(uint16_t) : sizeof(float);
    strata_status st;

    if ((st = check_format(i, t)) != STRATA_OK || (st = check_array(i, "moment1", t->moment1, align)) != STRATA_OK)
        return st;
    if (st_rule_moments(opt->rule) == 2)
        return check_array(i, "moment2", t->moment2, align);
    if (t->moment2 != NULL)
        return st_error(STRATA_E_INVAL, "tensor %zu: moment2 is given, but %s has one moment: set it to NULL", i,
                        names_of_rules[opt->rule]);
    return STRATA_OK;
}

static strata_status check_tensors(const struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                   bool grads_alone)
{
    strata_status st;

    for (size_t i = 0; i < count; i++) {
        if (tensors[i].elems == 0)
            continue;
        if ((st = check_grad(i, &tensors[i])) != STRATA_OK)
            return st;
        if (grads_alone)
            continue;
        if ((st = check_master(i, &tensors[i])) != STRATA_OK || (st = check_moments(opt, i, &tensors[i])) != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

/* --- waves --- */

/* One call's work, shared by its waves. */
struct job {
    struct strata_optim *opt;
    const struct strata_optim_tensor *tensors; /* [count] */
    size_t count;
    struct tile next;              /* where the next wave begins */
    struct st_update_coef coef[2]; /* by `decay` */
    _Atomic uint64_t counted;      /* masters that overflowed, or gradients that are not finite */
};

/* Lists the next tiles; returns 0 when all have been listed. */
static uint32_t next_wave(struct job *job)
{
    uint32_t tiles = 0;

    while (tiles < WAVE_TILES && job->next.tensor < job->count) {
        if (job->next.first >= job->tensors[job->next.tensor].elems) {
            job->next = (struct tile){.tensor = job->next.tensor + 1};
            continue;
        }
        job->opt->wave[tiles++] = job->next;
        job->next.first += ST_TILE_ELEMS;
    }
    return tiles;
}

static size_t tile_elems(size_t elems, size_t first)
{
    return elems - first < ST_TILE_ELEMS ? elems - first : ST_TILE_ELEMS;
}

static const void *grad_at(const struct strata_optim_tensor *t, size_t first)
{
    return (const unsigned char *)t->grad + first * strata_dtype_bytes(t->grad_dtype);
}

static struct st_moments moments_at(const struct strata_optim_tensor *t, size_t first)
{
    const struct st_moments whole = {(enum st_moment_format)t->moment_format, t->moment1, t->moment2, t->position};

    return st_moments_at(&whole, first);
}

/* --- step --- */

static void update_tile(void *ctx, uint64_t index, uint32_t worker)
{
    struct job *job = ctx;
    const struct st_kernels *k = job->opt->kernels;
    const struct tile *tile = &job->opt->wave[index];
    const struct strata_optim_tensor *t = &job->tensors[tile->tensor];
    const size_t at = tile->first, elems = tile_elems(t->elems, at);
    const struct st_update_coef *coef = &job->coef[t->decay];
    const struct st_moments moments = moments_at(t, at);
    const void *grad = grad_at(t, at);
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
static void run_wave(struct job *job, uint32_t tiles)
{
    struct strata_optim *opt = job->opt;
    const bool enough = opt->tried[0].tiles >= TRIED_TILES && opt->tried[1].tiles >= TRIED_TILES;
    const bool even = enough ? opt->tried[1].ns * opt->tried[0].tiles < opt->tried[0].ns * opt->tried[1].tiles
                             : opt->tried[1].tiles < opt->tried[0].tiles;
    const uint64_t begin_ns = st_clock_ns();

    job->coef[false].fetch_even = job->coef[true].fetch_even = even;
    st_workers_run(opt->workers, update_tile, job, tiles);
    if (enough || tiles < TRIED_LEAST)
        return;
    opt->tried[even].ns += st_clock_ns() - begin_ns;
    opt->tried[even].tiles += tiles;
}

/* Counts one more step and computes its coefficients.  The powers grow by one multiplication per step, as the engine's do. */
static void begin_step(struct strata_optim *opt, double divisor, struct st_update_coef coef[2])
{
    struct st_step_numbers n = {.lr = opt->optimizer.lr, .beta1 = opt->beta1, .beta2 = opt->beta2, .divisor = divisor};

    n.step = ++opt->step;
    n.beta1_power = opt->beta1_power *= opt->beta1;
    n.beta2_power = opt->beta2_power *= opt->beta2;
    coef[false] = st_update_coef_of(&opt->optimizer, &n, false);
    coef[true] = st_update_coef_of(&opt->optimizer, &n, true);
}

strata_status strata_optim_step(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                double grad_divisor, uint64_t *overflowed)
{
    struct job job = {.opt = opt, .tensors = tensors, .count = count};
    fenv_t floats;
    uint32_t tiles;
    strata_status st;

    if (opt == NULL || (tensors == NULL && count > 0))
        return st_error_missing(__func__, opt == NULL ? "opt" : "tensors");
    if ((st = check_process(opt)) != STRATA_OK)
        return st;
    if (!(grad_divisor > 0 && isfinite(grad_divisor)))
        return st_error(STRATA_E_INVAL, "optimizer: grad_divisor is %g: it must be finite and above 0", grad_divisor);
    if ((st = check_tensors(opt, tensors, count, false)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    begin_step(opt, grad_divisor, job.coef);
    while ((tiles = next_wave(&job)) > 0)
        run_wave(&job, tiles);
    st_floats_restore(&floats);
    if (overflowed != NULL)
        *overflowed = job.counted;
    return STRATA_OK;
}

/* --- norm --- */

/* The sum of squares of one block, widened into the worker's scratch so that the gradients stay unchanged. */
static uint64_t norm_block(const struct st_kernels *k, const struct strata_optim_tensor *t, size_t first, size_t elems,
                           float *widened, double *sum)
{
    const void *grad = grad_at(t, first);
    const float *from = widened;

    if (t->grad_dtype == STRATA_BF16)
        k->bf16_to_f32(widened, grad, elems);
    else if (t->grad_dtype == STRATA_F16)
        k->f16_to_f32(widened, grad, elems);
    else
        from = grad;
    return k->grad_finish(widened, STRATA_F32, from, elems, sum);
}

static void norm_tile(void *ctx, uint64_t index, uint32_t worker)
{
    struct job *job = ctx;
    const struct tile *tile = &job->opt->wave[index];
    const struct strata_optim_tensor *t = &job->tensors[tile->tensor];
    const size_t elems = tile_elems(t->elems, tile->first);
    float *widened = job->opt->widened + (size_t)worker * ST_NORM_BLOCK;
    uint64_t nonfinite = 0;

    for (size_t at = 0; at < elems; at += ST_NORM_BLOCK)
        nonfinite += norm_block(job->opt->kernels, t, tile->first + at, elems - at < ST_NORM_BLOCK ? elems - at : ST_NORM_BLOCK,
                                widened, &job->opt->block_sums[index][at / ST_NORM_BLOCK]);
    if (nonfinite > 0)
        atomic_fetch_add(&job->counted, nonfinite);
}

/* Adds the wave's tiles to the sum of the tensor that is under way, and tensors that are done to `sum`. */
static double add_tiles(const struct job *job, uint32_t tiles, struct st_norm_sum *tensor, double sum)
{
    for (uint32_t i = 0; i < tiles; i++) {
        const struct tile *tile = &job->opt->wave[i];
        const size_t elems = tile_elems(job->tensors[tile->tensor].elems, tile->first);

        if (tile->first == 0) {
            sum += st_norm_total(tensor);
            tensor->tiles = 0;
        }
        st_norm_add(tensor, st_norm_tile(job->opt->block_sums[i], 0, (elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK));
    }
    return sum;
}

strata_status strata_optim_grad_norm(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                     double *norm, uint64_t *nonfinite)
{
    struct job job = {.opt = opt, .tensors = tensors, .count = count};
    struct st_norm_sum tensor = {0};
    fenv_t floats;
    double sum = 0;
    uint32_t tiles;
    strata_status st;

    if (opt == NULL || norm == NULL || (tensors == NULL && count > 0))
        return st_error_missing(__func__, opt == NULL ? "opt" : norm == NULL ? "norm" : "tensors");
    if ((st = check_process(opt)) != STRATA_OK || (st = check_tensors(opt, tensors, count, true)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    while ((tiles = next_wave(&job)) > 0) {
        st_workers_run(opt->workers, norm_tile, &job, tiles);
        sum = add_tiles(&job, tiles, &tensor, sum);
    }
    *norm = sqrt(sum + st_norm_total(&tensor));
    st_floats_restore(&floats);
    if (nonfinite != NULL)
        *nonfinite = job.counted;
    return STRATA_OK;
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
    h->kernels->master_split(h->weight + at, h->low_half + at, h->master + at, tile_elems(h->elems, at));
}

static void join_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    const struct halves *h = ctx;
    const size_t at = tile * ST_TILE_ELEMS;

    (void)worker;
    h->kernels->master_join(h->master + at, h->weight + at, h->low_half + at, tile_elems(h->elems, at));
}

static strata_status run_halves(struct strata_optim *opt, st_work_fn *fn, struct halves *h)
{
    const struct strata_optim_tensor t = {.weight = h->weight, .low_half = h->low_half};
    fenv_t floats;
    strata_status st;

    if (opt == NULL)
        return st_error_missing(fn == split_tile ? "strata_optim_split" : "strata_optim_join", "opt");
    if ((st = check_process(opt)) != STRATA_OK)
        return st;
    if (h->elems == 0)
        return STRATA_OK;
    if ((st = check_master(0, &t)) != STRATA_OK || (st = check_array(0, "master", h->master, sizeof(*h->master))) != STRATA_OK)
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

strata_status strata_optim_set_lr(struct strata_optim *opt, double lr)
{
    const strata_status st = check_range("lr", lr, 0, LR_MAX);

    if (opt == NULL)
        return st_error_missing(__func__, "opt");
    if (st == STRATA_OK)
        opt->optimizer.lr = lr;
    return st;
}

void strata_optim_set_step(struct strata_optim *opt, uint64_t step)
{
    fenv_t floats;

    if (opt == NULL)
        return;
    st_floats_plain(&floats);
    opt->step = step;
    opt->beta1_power = st_beta_power(opt->beta1, step);
    opt->beta2_power = st_beta_power(opt->beta2, step);
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
