/* config_resolve_rate.c - the rules between the keys of the learning rate: DeepSpeed's schedulers and transformers'. */
#include "core/base/error.h"
#include "offload/config/config_source.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DECAY_MAX_LR 1e-3 /* DeepSpeed's warmup_max_lr of WarmupDecayLR */
#define STEPS_END    (UINT64_C(1) << 53)
#define OPTIMIZER    "optimizer.params."
#define SCHEDULER    "scheduler.params."
#define SHAPE        "strata.lr_scheduler."

/* Arguments of other schedulers are errors, as in DeepSpeed.  They get one fixed value each, so that equal configs are equal bit
 * for bit.  Without a scheduler, arguments have no effect. */
static void clear_arguments(struct st_config_source *src, struct st_config *config)
{
    const char *type = st_choice_text(st_field_known("scheduler.type")->choices, (int)config->schedule.type);
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        if (f->lr_types == 0 || st_field_applies(f, config))
            continue;
        st_value_clear(config, f);
        if (type == NULL)
            st_source_idle(src, f->path, "not used: without scheduler.type the rate is constant");
        else if (src->fields[i].node != NULL && src->fields[i].verdict != ST_VERDICT_REJECTED)
            st_source_reject(src, f->path,
                             st_source_keep(src, "belongs to %s, and scheduler.type is %s",
                                            st_source_takers(src, "scheduler.type", f->lr_types), type));
    }
}

/* Whether the length of the scheduler is that of the run, and not known yet. */
static bool takes_steps(const struct st_config *config)
{
    return st_field_applies(st_field_known(SCHEDULER "total_num_steps"), config) && config->schedule.total_steps == 0;
}

/* The same of transformers' schedules, of which constant has no length. */
static bool shape_takes_steps(const struct st_config *config)
{
    return config->schedule.shape != ST_LR_SHAPE_NONE && config->schedule.shape != ST_LR_SHAPE_CONSTANT &&
           config->schedule.shape_steps == 0;
}

static void derive_steps(struct st_config_source *src, const char *path, const struct st_config_opts *opts)
{
    st_source_derive(src, path,
                     opts->max_steps > 0 ? "config.max_steps"
                     : opts->steps_later ? "config.steps_later of the data"
                                         : "known once config.max_steps or config.steps_later is given");
}

/* A trainer knows how long the run is, and takes no other length. */
static void check_total_steps(struct st_config_source *src, const struct st_config *config, const struct st_config_opts *opts)
{
    static const char path[] = SCHEDULER "total_num_steps";

    if (!src->has_length || !st_source_given(src, path) || config->schedule.total_steps == opts->max_steps)
        return;
    if (opts->max_steps > 0)
        st_source_reject(
            src, path,
            st_source_keep(src, "%" PRIu64 ", and the trainer's run has %" PRIu64 " steps: make them equal, or write \"auto\"",
                           config->schedule.total_steps, opts->max_steps));
    else
        st_source_announce(src, path, "it counts, whatever the length of the run is; the trainer asks for that: write \"auto\"");
}

static void resolve_total_steps(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts)
{
    check_total_steps(src, config, opts);
    if (!takes_steps(config))
        return;
    config->schedule.total_steps = opts->max_steps;
    derive_steps(src, SCHEDULER "total_num_steps", opts);
}

/* If it is left out, it is equal to the first half. */
static void resolve_second_half(struct st_config_source *src, const char *path, uint64_t *second, uint64_t first)
{
    if (st_source_given(src, path))
        return;
    *second = first;
    st_source_derive(src, path, "as on the way up");
}

/* OneCycle's momentum the given number of steps after the cycle, as in offload/optim/lr_schedule.c. */
static double momentum_after(const struct st_config *c, uint64_t steps)
{
    return c->schedule.cycle_max_mom * (1 + c->schedule.decay_mom_rate * ((double)steps / (double)c->schedule.decay_step_size));
}

/* The first optimizer step whose beta1 (SGD: momentum) is 1 or more, at which the moment would never forget; 0 if there is
 * none. */
static uint64_t first_bad_step(const struct st_config *c)
{
    uint64_t good = 0, bad = STEPS_END;

    if (!c->schedule.cycle_momentum || c->schedule.decay_step_size == 0 || momentum_after(c, bad) < 1)
        return 0;
    while (bad - good > 1) {
        const uint64_t middle = good + (bad - good) / 2;

        if (momentum_after(c, middle) < 1)
            good = middle;
        else
            bad = middle;
    }
    return c->schedule.cycle_first_step_size + c->schedule.cycle_second_step_size + bad + 1;
}

#define MOMENTUM_AT_1 "%g brings %s to 1 at step %" PRIu64 ": lower it, or set decay_step_size to 0"

static const char *momentum_name(const struct st_config *c)
{
    return c->optimizer.type == STRATA_SGD ? "momentum" : "beta1";
}

static void check_momentum(struct st_config_source *src, const struct st_config *c, const struct st_config_opts *opts)
{
    const uint64_t step = opts->any_length ? 0 : first_bad_step(c);

    if (step > 0 && (opts->max_steps == 0 ? !opts->steps_later : step <= opts->max_steps))
        st_source_reject(src, SCHEDULER "decay_mom_rate",
                         st_source_keep(src, MOMENTUM_AT_1, c->schedule.decay_mom_rate, momentum_name(c), step));
}

/* How the cycle changes the optimizer's momentum, if it has any. */
static void resolve_cycle_momentum(struct st_config_source *src, struct st_config *config)
{
    if (!config->schedule.cycle_momentum)
        return;
    if (config->optimizer.type == STRATA_ADAGRAD) {
        config->schedule.cycle_momentum = false;
        st_source_derive(src, SCHEDULER "cycle_momentum", "Adagrad has no momentum");
    } else if (config->optimizer.type == STRATA_SGD) {
        st_source_announce(
            src, OPTIMIZER "momentum",
            "OneCycle sets it at every step, while DeepSpeed leaves SGD's unchanged: set cycle_momentum to false for that");
    } else {
        st_source_note(src, OPTIMIZER "betas", "OneCycle sets them to (momentum, 0.99) at every step");
    }
}

static void require_rate(struct st_config_source *src, const char *path)
{
    const struct st_field_state *state = st_source_state(src, path);

    if (state->node == NULL)
        st_source_reject(src, path, "OneCycle needs it");
}

static void resolve_cycle(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts)
{
    require_rate(src, SCHEDULER "cycle_min_lr");
    require_rate(src, SCHEDULER "cycle_max_lr");
    if (st_source_is_auto(src, SCHEDULER "cycle_max_lr"))
        config->schedule.cycle_max_lr = config->optimizer.lr;
    resolve_second_half(src, SCHEDULER "cycle_second_step_size", &config->schedule.cycle_second_step_size,
                        config->schedule.cycle_first_step_size);
    resolve_second_half(src, SCHEDULER "cycle_second_stair_count", &config->schedule.cycle_second_stair_count,
                        config->schedule.cycle_first_stair_count);
    resolve_cycle_momentum(src, config);
    check_momentum(src, config, opts);
}

/* What of a schedule has no effect is told, but not of a recipe whose schedule is refused. */
static void idle_shape(struct st_config_source *src, const struct st_config *config, const char *reason)
{
    const struct {
        const char *path;
        double value;
    } keys[] = {{SHAPE "warmup_steps", (double)config->schedule.shape_warmup},
                {SHAPE "warmup_ratio", config->schedule.shape_warmup_ratio},
                {SHAPE "total_num_steps", (double)config->schedule.shape_steps}};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i].value > 0 &&
            (config->schedule.shape != ST_LR_SHAPE_NONE || st_source_state(src, keys[i].path)->place == NULL))
            st_source_idle(src, keys[i].path, reason);
}

/* Where the schedule ends, which is said once, and of one schedule alone. */
static void resolve_least(struct st_config_source *src, struct st_config *config)
{
    static const char *const keys[] = {SHAPE "min_lr", SHAPE "min_lr_rate"};
    double *const values[] = {&config->schedule.shape_min_lr, &config->schedule.shape_min_rate};

    if (config->schedule.shape != ST_LR_SHAPE_COSINE_WITH_MIN_LR) {
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
            if (*values[i] > 0)
                st_source_idle(src, keys[i], "not used: belongs to cosine_with_min_lr");
            *values[i] = 0;
        }
    } else if (*values[0] > 0 && *values[1] > 0) {
        st_source_reject(src, keys[0], "stands beside " SHAPE "min_lr_rate: keep one of them");
    } else if (!st_source_given(src, keys[0]) && !st_source_given(src, keys[1])) {
        st_source_reject(src, SHAPE "type", "cosine_with_min_lr needs " SHAPE "min_lr or min_lr_rate");
    } else if (*values[0] > config->optimizer.lr || *values[1] > 1) {
        st_source_announce(src, keys[*values[1] > 1], "is above the optimizer's rate: the rate rises after the warm-up");
    }
}

/* transformers' schedulers take their length from the run, unless it is given. */
static void resolve_shape(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts)
{
    if (config->schedule.shape == ST_LR_SHAPE_NONE) {
        idle_shape(src, config, "not used: " SHAPE "type names no schedule");
        config->schedule.shape_steps = 0;
        config->schedule.shape_warmup = 0;
        config->schedule.shape_warmup_ratio = 0;
        return;
    }
    if (config->schedule.shape == ST_LR_SHAPE_CONSTANT) {
        idle_shape(src, config, "not used: constant has no warm-up and no end, constant_with_warmup has a warm-up");
        config->schedule.shape_steps = 0;
    }
    if (config->schedule.type != ST_LR_CONSTANT)
        st_source_reject(src, SHAPE "type",
                         "scheduler sets the rate as well: keep one of them (config.overrides scheduler=null)");
    if (!shape_takes_steps(config))
        return;
    config->schedule.shape_steps = opts->max_steps;
    derive_steps(src, SHAPE "total_num_steps", opts);
}

static bool is_on_line(const struct st_field_state *state)
{
    return state->usable && state->origin == ST_ORIGIN_COMMAND_LINE && state->place == NULL;
}

/* The command line's ratio stands instead of steps that a file says, and alone asks for the one schedule that is a warm-up. */
static void take_ratio(struct st_config_source *src, struct st_config *config)
{
    struct st_field_state *steps = st_source_state(src, SHAPE "warmup_steps");

    if (!is_on_line(st_source_state(src, SHAPE "warmup_ratio")) || config->schedule.shape_warmup_ratio == 0)
        return;
    if (config->schedule.shape == ST_LR_SHAPE_NONE) {
        config->schedule.shape = ST_LR_SHAPE_CONSTANT_WITH_WARMUP;
        st_source_derive(src, SHAPE "type", "the command line asks for a warm-up");
    }
    if (is_on_line(steps))
        return;
    config->schedule.shape_warmup = 0;
    *steps = (struct st_field_state){0};
}

/* The command line's warm-up is that of the schedule in force: transformers' where one is named, and none of DeepSpeed's. */
static void take_warmup(struct st_config_source *src, struct st_config *config)
{
    struct st_field_state *warmup = st_source_state(src, SCHEDULER "warmup_num_steps");

    if (st_source_given(src, "scheduler.type"))
        return;
    config->schedule.type = ST_LR_CONSTANT;
    take_ratio(src, config);
    if (!is_on_line(warmup))
        return;
    if (config->schedule.shape != ST_LR_SHAPE_NONE) {
        config->schedule.shape_warmup = config->schedule.warmup_steps;
        config->schedule.shape_warmup_ratio = 0;
        *st_source_state(src, SHAPE "warmup_ratio") = (struct st_field_state){0};
        *st_source_state(src, SHAPE "warmup_steps") = *warmup;
        st_source_state(src, SHAPE "warmup_steps")->spelling = SHAPE "warmup_steps";
        *warmup = (struct st_field_state){0};
    } else if (config->schedule.warmup_steps > 0) {
        config->schedule.type = ST_LR_WARMUP;
        st_source_derive(src, "scheduler.type", "the command line asks for a warm-up");
    }
}

/* A trainer's warm-up where DeepSpeed's scheduler has one: it fills "auto", and differs from no number.  The command line's ratio
 * counts in any case. */
static void fill_warmup(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts)
{
    static const char there[] = SCHEDULER "warmup_num_steps";
    struct st_lr_schedule *s = &config->schedule;
    struct st_field_state *here = st_source_state(src, s->shape_warmup > 0 ? SHAPE "warmup_steps" : SHAPE "warmup_ratio");
    const uint64_t steps = st_lr_warmup(s->shape_warmup, s->shape_warmup_ratio, opts->max_steps); /* 0: not known yet */

    if (!st_source_given(src, "scheduler.type") || !st_field_applies(st_field_known(there), config) ||
        (s->shape_warmup == 0 && s->shape_warmup_ratio == 0) || !(here->place != NULL || is_on_line(here)) ||
        is_on_line(st_source_state(src, there)))
        return;
    if (is_on_line(here) || st_source_is_auto(src, there)) {
        s->warmup_steps = steps;
        s->warmup_ratio = s->shape_warmup > 0 ? 0 : s->shape_warmup_ratio;
        st_source_derive(src, there, s->shape_warmup > 0 ? "from warmup_steps" : "from warmup_ratio, rounded up");
    } else if (st_source_given(src, there) && steps > 0 && steps != s->warmup_steps) {
        st_source_reject(
            src, there,
            st_source_keep(src, "%" PRIu64 ", and the trainer's warm-up is %" PRIu64 ": make them equal, or write \"auto\"",
                           s->warmup_steps, steps));
    }
    s->shape_warmup = 0;
    s->shape_warmup_ratio = 0;
    *here = (struct st_field_state){0};
}

/* A scheduler that has a rate of its own does not look at the optimizer's; a trainer's must be the same. */
static void check_lr(struct st_config_source *src, const struct st_config *config)
{
    static const char *const own[] = {[ST_LR_WARMUP] = "warmup_max_lr",
                                      [ST_LR_WARMUP_DECAY] = "warmup_max_lr",
                                      [ST_LR_ONE_CYCLE] = "cycle_max_lr",
                                      [ST_LR_RANGE_TEST] = "lr_range_test_min_lr"};
    const double rates[] = {[ST_LR_WARMUP] = config->schedule.warmup_max_lr,
                            [ST_LR_WARMUP_DECAY] = config->schedule.warmup_max_lr,
                            [ST_LR_ONE_CYCLE] = config->schedule.cycle_max_lr,
                            [ST_LR_RANGE_TEST] = config->schedule.range_min_lr};
    const enum st_lr_type type = config->schedule.type;
    const char *reason;

    if (!st_source_given(src, OPTIMIZER "lr") || (size_t)type >= sizeof(own) / sizeof(own[0]) || own[type] == NULL ||
        isnan(rates[type]) || rates[type] == config->optimizer.lr)
        return;
    reason = st_source_keep(src, "not used: scheduler.params.%s, %g, says what the rate is", own[type], rates[type]);
    if (st_source_state(src, OPTIMIZER "lr")->place != NULL && st_source_given(src, SCHEDULER "warmup_max_lr"))
        st_source_reject(src, SCHEDULER "warmup_max_lr",
                         st_source_keep(src, "%g, and the trainer's learning rate is %g: make them equal, or write \"auto\"",
                                        rates[type], config->optimizer.lr));
    else if (st_source_state(src, OPTIMIZER "lr")->origin == ST_ORIGIN_COMMAND_LINE)
        st_source_announce(src, OPTIMIZER "lr", reason);
    else
        st_source_note(src, OPTIMIZER "lr", reason);
}

/* A recipe's schedule goes where the command line names one of DeepSpeed's. */
static void leave_shape(struct st_config_source *src, struct st_config *config)
{
    static const char *const keys[] = {SHAPE "type",   SHAPE "warmup_steps", SHAPE "warmup_ratio", SHAPE "total_num_steps",
                                       SHAPE "min_lr", SHAPE "min_lr_rate"};

    if (!st_source_given(src, "scheduler.type") || st_source_state(src, "scheduler.type")->origin != ST_ORIGIN_COMMAND_LINE ||
        st_source_state(src, SHAPE "type")->place == NULL)
        return;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        *st_source_state(src, keys[i]) = (struct st_field_state){0};
    config->schedule.shape = ST_LR_SHAPE_NONE;
    config->schedule.shape_steps = 0;
    config->schedule.shape_warmup = 0;
    config->schedule.shape_warmup_ratio = 0;
    config->schedule.shape_min_lr = 0;
    config->schedule.shape_min_rate = 0;
}

void st_config_resolve_rate(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts)
{
    leave_shape(src, config);
    fill_warmup(src, config, opts);
    take_warmup(src, config);
    clear_arguments(src, config);
    if (st_field_applies(st_field_known(SCHEDULER "warmup_max_lr"), config) && !st_source_given(src, SCHEDULER "warmup_max_lr"))
        config->schedule.warmup_max_lr =
            config->schedule.type == ST_LR_WARMUP_DECAY && !st_source_is_auto(src, SCHEDULER "warmup_max_lr") ? DECAY_MAX_LR
                                                                                                              : NAN;
    resolve_total_steps(src, config, opts);
    resolve_shape(src, config, opts);
    resolve_least(src, config);
    if (config->schedule.type == ST_LR_ONE_CYCLE)
        resolve_cycle(src, config, opts);
    check_lr(src, config);
}

bool st_config_lacks_steps(const struct st_config *config)
{
    const struct st_lr_schedule *s = &config->schedule;
    const bool warms_up_alone =
        s->shape == ST_LR_SHAPE_CONSTANT_WITH_WARMUP && (s->shape_warmup > 0 || s->shape_warmup_ratio == 0);

    return takes_steps(config) || (s->warmup_ratio > 0 && s->warmup_steps == 0) || (shape_takes_steps(config) && !warms_up_alone);
}

strata_status st_config_set_steps(struct st_config *config, uint64_t steps, struct st_config_told *told)
{
    const uint64_t bad = config->schedule.type == ST_LR_ONE_CYCLE ? first_bad_step(config) : 0;

    if (bad > 0 && bad <= steps)
        return st_error(STRATA_E_CONFIG, SCHEDULER "decay_mom_rate: " MOMENTUM_AT_1, config->schedule.decay_mom_rate,
                        momentum_name(config), bad);
    if (config->schedule.warmup_ratio > 0)
        config->schedule.warmup_steps = st_lr_warmup(0, config->schedule.warmup_ratio, steps);
    told->total = told->total || takes_steps(config);
    told->shape = told->shape || shape_takes_steps(config);
    if (told->total)
        config->schedule.total_steps = steps;
    if (told->shape)
        config->schedule.shape_steps = steps;
    return STRATA_OK;
}
