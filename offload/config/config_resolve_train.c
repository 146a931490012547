/* config_resolve_train.c - the rules between the keys of batch, precision and optimizer. */
#include "core/base/error.h"
#include "core/base/text.h"
#include "offload/config/config_source.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define DEEPSPEED_LR  1e-3 /* DeepSpeed's lr of an optimizer without one; torch.optim.SGD's too */
#define ADAGRAD_LR    1e-2
#define ADAGRAD_EPS   1e-10
#define TORCH_DECAY   0.01
#define SKIPPED_MOST  8u /* in a row, in addition to what a loss scale needs */
#define OPTIMIZER     "optimizer.params."
#define MOMENTS       "strata.moments"
#define WIRE          "strata.wire"
#define COMMUNICATION "communication_data_type"
#define FP32_STATES   OPTIMIZER "fp32_optimizer_states"
#define BF16_STATES   "bf16.bf16_optimizer_states"

/* --- batch --- */

/* One of the three batch keys; 0 if it is to be derived. */
static uint64_t given_count(struct st_config_source *src, const char *path)
{
    const struct st_field_state *state = st_source_state(src, path);

    return state->usable ? (uint64_t)st_json_number(state->node) : 0;
}

static bool is_on(struct st_config_source *src, const char *path)
{
    const struct st_field_state *state = st_source_state(src, path);

    return state->usable && st_json_bool(state->node);
}

/* "(one rank)", or " x 4 ranks". */
static const char *ranks_text(char buf[24], uint64_t ranks)
{
    snprintf(buf, 24, ranks == 1 ? " (one rank)" : " x %" PRIu64 " ranks", ranks);
    return buf;
}

/* reference: DeepSpeed's _set_batch_related_parameters.  There is one addition: if nothing says how large a batch is, a
 * micro-batch is 1, unless a file gives only the accumulation.  And a run that goes on keeps its batch where that is open. */
static void resolve_batch(struct st_config_source *src, struct st_config *config, uint64_t ranks, uint32_t resumed)
{
    static const char *const paths[] = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
    const uint64_t train_given = given_count(src, paths[0]), micro_given = given_count(src, paths[1]);
    const uint64_t accum_given = given_count(src, paths[2]);
    const bool goes_on = resumed > 0 && train_given == 0 && (micro_given == 0 || accum_given == 0);
    uint64_t train = goes_on ? resumed : train_given, micro = micro_given, accum = accum_given;
    char text[24];

    for (int i = 0; i < 3; i++)
        if (st_source_state(src, paths[i])->verdict == ST_VERDICT_REJECTED)
            return;
    if (accum > 0 && train == 0 && micro == 0 && st_source_state(src, paths[2])->origin == ST_ORIGIN_FILE &&
        !st_source_is_auto(src, paths[0]) && !st_source_is_auto(src, paths[1])) {
        st_source_problem(src,
                          "gradient_accumulation_steps %" PRIu64
                          " alone does not say how large a batch is: give train_batch_size "
                          "or train_micro_batch_size_per_gpu",
                          accum);
        return;
    }
    if (train_given == 0 && micro == 0 && (train == 0 || accum == 0))
        micro = 1;
    if (train > 0 && micro > 0)
        accum = accum > 0 ? accum : train / micro / ranks;
    else if (train > 0)
        accum = accum > 0 ? accum : 1, micro = train / ranks / accum;
    else
        accum = accum > 0 ? accum : 1, train = micro * accum * ranks;
    if (micro == 0 || accum == 0 || train != micro * accum * ranks || train > UINT32_MAX) {
        st_source_problem(src,
                          "train_batch_size %" PRIu64 "%s is not train_micro_batch_size_per_gpu %" PRIu64
                          "%s x gradient_accumulation_steps %" PRIu64 "%s%s%s",
                          train,
                          goes_on           ? " (the checkpoint's)"
                          : train_given > 0 ? ""
                                            : " (derived)",
                          micro, micro_given > 0 ? "" : " (derived)", accum, accum_given > 0 ? "" : " (derived)",
                          ranks_text(text, ranks), train > UINT32_MAX ? ": too large" : ": change one of them, or leave one out");
        return;
    }
    if (accum > STRATA_GRAD_ACCUM_MAX) {
        st_source_problem(src,
                          "train_batch_size %" PRIu64 " in micro-batches of %" PRIu64 " is %" PRIu64
                          " micro-batches per step, and at most %u are planned: raise train_micro_batch_size_per_gpu",
                          train, micro, accum, STRATA_GRAD_ACCUM_MAX);
        return;
    }
    config->train_batch = (uint32_t)train;
    config->micro_batch = (uint32_t)micro;
    config->grad_accum = (uint32_t)accum;
    for (int i = 0; i < 3 && (goes_on || train_given + micro_given + accum_given > 0); i++)
        if (given_count(src, paths[i]) == 0)
            st_source_derive(src, paths[i], NULL);
}

/* Whether a step of so many micro-batches can be cut into these leaves of equal size; each rank adds up its own, and their sum
 * must be in the tree. */
static bool can_be_leaves(uint64_t leaves, uint64_t micros, uint64_t ranks)
{
    const uint64_t own = leaves / ranks;

    return leaves > 0 && micros % leaves == 0 && (ranks == 1 || (leaves % ranks == 0 && (own & (own - 1)) == 0));
}

/* Unless the file says how many: those of the run that goes on, so that its bits stay the same, if they can be, else as many as
 * there are ranks.  Refused, with the nearest counts, if they cannot be. */
static void resolve_leaves(struct st_config_source *src, struct st_config *config, uint64_t ranks, uint32_t resumed)
{
    const uint64_t micros = config->grad_accum * ranks, leaves = config->leaves;
    uint64_t below = leaves < micros ? leaves : micros, above = leaves;
    char use[64] = "";

    if (!st_source_given(src, "strata.leaves") && (ranks > 1 || resumed > 1)) {
        config->leaves = resumed > 0 && can_be_leaves(resumed, micros, ranks) ? resumed : (uint32_t)ranks;
        st_source_derive(src, "strata.leaves", NULL);
        return;
    }
    if (micros == 0 || st_source_state(src, "strata.leaves")->verdict == ST_VERDICT_REJECTED ||
        can_be_leaves(leaves, micros, ranks))
        return;
    while (below > 0 && !can_be_leaves(below, micros, ranks))
        below--;
    while (above <= micros && !can_be_leaves(above, micros, ranks))
        above++;
    if (below > 0 && above <= micros)
        snprintf(use, sizeof(use), "%" PRIu64 " or %" PRIu64, below, above);
    else
        snprintf(use, sizeof(use), "%" PRIu64, below > 0 ? below : above);
    if (ranks == 1)
        st_source_reject(src, "strata.leaves",
                         st_source_keep(src, "%" PRIu64 " does not divide the %" PRIu64 " micro-batches of a step: use %s",
                                        leaves, micros, use));
    else
        st_source_reject(src, "strata.leaves",
                         st_source_keep(src,
                                        "%" PRIu64 " is not %" PRIu64 " ranks times a power of two that divides the %" PRIu64
                                        " micro-batches of a step: use %s",
                                        leaves, ranks, micros, use));
}

/* DeepSpeed's key chooses if strata.wire is left out; where it is given, they must not contradict each other.  Both say the same
 * from here on. */
static void resolve_wire(struct st_config_source *src, struct st_config *config)
{
    const bool given = st_source_given(src, COMMUNICATION), differs = config->communication != config->wire;

    if (!given || st_source_state(src, COMMUNICATION)->verdict == ST_VERDICT_REJECTED) {
        config->communication = config->wire;
    } else if (differs && st_source_given(src, WIRE)) {
        st_source_reject(src, COMMUNICATION, "it contradicts " WIRE ": change one of them, or leave one out");
    } else if (differs) {
        config->wire = config->communication;
        st_source_derive(src, WIRE, "from " COMMUNICATION);
    }
}

/* Ranks that share a layer or a sequence have the same samples, where ours have their own. */
static void refuse_shared_samples(struct st_config_source *src, const char *path)
{
    const struct st_field_state *state = st_source_state(src, path);

    if (state->usable && st_json_number(state->node) > 1)
        st_source_reject(
            src, path,
            st_source_keep(
                src, "%g ranks would train the same samples; here each has its own, %g times as many: write 1, or leave it out",
                st_json_number(state->node), st_json_number(state->node)));
}

/* What means something else only in a run of several ranks, or of whole epochs. */
static void resolve_run(struct st_config_source *src, const struct st_config_opts *opts)
{
    const struct st_field_state *sums = st_source_state(src, "gradient_allreduce_op");

    refuse_shared_samples(src, "tensor_parallel.autotp_size");
    refuse_shared_samples(src, "sequence_parallel_size");
    if (opts->ranks > 1 && sums->usable && st_text_same(st_json_string(sums->node), "sum"))
        st_source_reject(
            src, "gradient_allreduce_op",
            st_source_keep(src, "sum: the mean of %" PRIu32 " ranks is trained here, not their sum: write mean, or leave it out",
                           opts->ranks));
    if (opts->steps_later && is_on(src, "dataloader_drop_last"))
        st_source_reject(
            src, "dataloader_drop_last",
            "true: an epoch's last step has what is left, however little: set it to false, or give config.max_steps");
}

/* --- precision --- */

/* Reports fp16 keys that have no effect, and sets the values used in their place. */
static void clear_scaling(struct st_config_source *src, struct st_config *config)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        if (f->bind == ST_BIND_NONE || st_field_applies(f, config) || !st_field_inside(f, "fp16"))
            continue;
        st_value_clear(config, f);
        st_source_idle(src, f->path, "not used: this run does not train in fp16");
    }
    config->scaling.scale = 1;
}

static void resolve_scaling(struct st_config_source *src, struct st_config *config)
{
    static const char *const dynamic[] = {"fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis",
                                          "fp16.consecutive_hysteresis", "fp16.min_loss_scale"};

    if (config->dtype != STRATA_F16) {
        clear_scaling(src, config);
        return;
    }
    if (!config->check_grad_overflow)
        st_source_idle(src, "bf16.check_grad_overflow", "not used: fp16 always skips a step whose gradients overflow");
    config->check_grad_overflow = true;
    for (size_t i = 0; i < sizeof(dynamic) / sizeof(dynamic[0]) && config->scaling.scale > 0; i++)
        if (st_source_given(src, dynamic[i]))
            st_source_note(src, dynamic[i], "not used: fp16.loss_scale is fixed");
    if (config->scaling.scale == 0 && config->scaling.min_scale > ldexp(1, (int)config->scaling.initial_power))
        st_source_reject(src, "fp16.min_loss_scale",
                         st_source_keep(src, "%g is above the first scale, 2^%" PRIu32, config->scaling.min_scale,
                                        config->scaling.initial_power));
}

/* A launcher's variable against what a file or the command line says has been told, with both places. */
static bool differs_by_variable(struct st_config_source *src)
{
    const bool f16 = st_source_state(src, "fp16.enabled")->origin == ST_ORIGIN_ENVIRONMENT;
    const bool bf16 = st_source_state(src, "bf16.enabled")->origin == ST_ORIGIN_ENVIRONMENT;

    return f16 != bf16;
}

/* bf16 if everything is "auto" or there is no file.  A file that names no precision casts nothing, as in DeepSpeed. */
static void resolve_precision(struct st_config_source *src, struct st_config *config)
{
    const bool f16 = is_on(src, "fp16.enabled"), bf16 = is_on(src, "bf16.enabled");
    const bool bf16_off = st_source_given(src, "bf16.enabled") && !bf16;
    const bool ours = !src->has_file || st_source_is_auto(src, "bf16.enabled") ||
                      (st_source_is_auto(src, "fp16.enabled") && !st_source_given(src, "bf16.enabled"));

    if (f16 && bf16 && differs_by_variable(src)) {
        config->dtype = STRATA_F16;
    } else if (f16 && bf16) {
        st_source_reject(src, "bf16.enabled", "fp16.enabled is true too: set one of them to false");
    } else if (f16) {
        config->dtype = STRATA_F16;
        if (!bf16_off)
            st_source_derive(src, "bf16.enabled", "fp16 is on");
    } else if (bf16_off) {
        config->dtype = STRATA_F32;
    } else if (bf16 || ours) {
        config->dtype = STRATA_BF16;
    } else {
        config->dtype = STRATA_DTYPE_INVALID;
        st_source_derive(src, "bf16.enabled",
                         "neither bf16 nor fp16 is on: the dtype in which the weights are stored (presets: fp32), since "
                         "DeepSpeed casts nothing");
    }
    resolve_scaling(src, config);
}

/* A dynamic scale may have to be halved all the way down before the first step is applied. */
static void resolve_max_skipped(struct st_config_source *src, struct st_config *config)
{
    const bool dynamic = config->dtype == STRATA_F16 && config->scaling.scale == 0;
    const uint64_t most = SKIPPED_MOST + (dynamic ? (uint64_t)config->scaling.initial_power + config->scaling.hysteresis : 0);

    if (!st_source_given(src, "strata.max_skipped"))
        config->max_skipped = most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

/* --- clipping --- */

static void resolve_clipping(struct st_config_source *src)
{
    if (src->has_file && st_source_state(src, "gradient_clipping")->node == NULL)
        st_source_announce(src, "gradient_clipping",
                           "left out of the file: 1, as in DeepSpeed since 0.19.3 (before that: 0, off)");
}

/* --- optimizer --- */

/* Whether an argument is of a recipe's optimizer, in whose place DeepSpeed's file or the command line names another. */
static bool is_left_behind(struct st_config_source *src, const struct st_config *config, const struct st_field *field)
{
    if (src->fields[st_field_index(field)].place == NULL || st_source_state(src, "optimizer.type")->place != NULL)
        return false;
    return !st_field_applies(field, config) || config->optimizer.type == STRATA_ADAGRAD; /* whose eps is another one */
}

/* Arguments of other optimizers are errors, and 0, as those of other schedulers are. */
static void clear_params(struct st_config_source *src, struct st_config *config)
{
    const char *type = st_choice_text(st_field_known("optimizer.type")->choices, (int)config->optimizer.type);
    const struct st_field *f;

    if (st_source_state(src, "optimizer.type")->verdict == ST_VERDICT_REJECTED)
        return; /* it is unknown which arguments are right */
    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        if (f->optimizers != 0 && is_left_behind(src, config, f))
            src->fields[i] = (struct st_field_state){0};
        if (f->optimizers == 0 || st_field_applies(f, config))
            continue;
        st_value_clear(config, f);
        if (src->fields[i].node != NULL && src->fields[i].verdict != ST_VERDICT_REJECTED)
            st_source_reject(src, f->path,
                             st_source_keep(src, "belongs to %s, and optimizer.type is %s",
                                            st_source_takers(src, "optimizer.type", f->optimizers), type));
    }
}

static void resolve_adam(struct st_config_source *src, struct st_config *config)
{
    const struct st_field_state *mode = st_source_state(src, OPTIMIZER "adam_w_mode");

    if (config->optimizer.type == STRATA_ADAM && !(mode->usable && !st_json_bool(mode->node))) {
        config->optimizer.type = STRATA_ADAMW;
        st_source_derive(src, "optimizer.type", "Adam with adam_w_mode, which is on by default, is AdamW");
    } else if (config->optimizer.type == STRATA_ADAMW && mode->usable && !st_json_bool(mode->node)) {
        st_source_derive(src, OPTIMIZER "adam_w_mode", "type AdamW decouples the decay, whatever this key says");
    }
}

/* What the optimizer that a file names decays: DeepSpeed passes every parameter to it, and PyTorch's AdamW has a default of its
 * own. */
static void resolve_decay(struct st_config_source *src, struct st_config *config, bool named)
{
    if (is_on(src, OPTIMIZER "torch_adam") && config->optimizer.type == STRATA_ADAMW &&
        st_source_state(src, OPTIMIZER "weight_decay")->node == NULL) {
        config->optimizer.weight_decay = TORCH_DECAY;
        st_source_derive(src, OPTIMIZER "weight_decay", "torch_adam: the default of PyTorch's AdamW");
    }
    if (named && config->optimizer.weight_decay > 0 && st_source_state(src, "strata.decay_all")->node == NULL) {
        config->decay_all = true;
        st_source_derive(src, "strata.decay_all", "the file names an optimizer, and DeepSpeed passes every parameter to it");
    }
}

static void resolve_adagrad(struct st_config_source *src, struct st_config *config)
{
    if (config->optimizer.type != STRATA_ADAGRAD)
        return;
    if (!st_source_given(src, OPTIMIZER "eps")) {
        config->optimizer.eps = ADAGRAD_EPS;
        if (!st_source_is_auto(src, OPTIMIZER "eps"))
            st_source_derive(src, OPTIMIZER "eps", "Adagrad's default");
    }
    if (config->optimizer.weight_decay > 0)
        st_source_announce(
            src, OPTIMIZER "weight_decay",
            "as in PyTorch, accumulator and step use the decayed gradient; DeepSpeed's CPU kernel uses the raw one "
            "for the step");
}

static void check_nesterov(struct st_config_source *src, const struct st_config *config)
{
    if (config->optimizer.nesterov && (config->optimizer.momentum == 0 || config->optimizer.dampening != 0))
        st_source_reject(src, OPTIMIZER "nesterov",
                         st_source_keep(src, "needs momentum above 0 and dampening 0, as in PyTorch, not %g and %g",
                                        config->optimizer.momentum, config->optimizer.dampening));
}

/* A switch over moments that contradicts the format in force, which `chosen_by` asked for. */
static void check_moments(struct st_config_source *src, const struct st_config *config, const char *path,
                          enum st_moment_format when_true, const char *chosen_by)
{
    const char *format = st_choice_text(st_field_known(MOMENTS)->choices, (int)config->moments);

    if (st_source_given(src, path) && is_on(src, path) != (config->moments == when_true))
        st_source_reject(src, path,
                         st_source_keep(src, "%s, but %s asks for %s moments: change one of them, or leave one out",
                                        is_on(src, path) ? "true" : "false", chosen_by, format));
}

/* DeepSpeed's switches choose bf16 if strata.moments is left out; where it is given, they must not contradict it. */
static void resolve_moments(struct st_config_source *src, struct st_config *config)
{
    const bool not_fp32 = st_source_given(src, FP32_STATES) && !is_on(src, FP32_STATES);
    const char *chosen_by = MOMENTS;

    if (!st_source_given(src, MOMENTS) && (not_fp32 || is_on(src, BF16_STATES))) {
        chosen_by = not_fp32 ? FP32_STATES : BF16_STATES;
        config->moments = ST_MOMENTS_BF16;
        st_source_derive(src, MOMENTS, st_source_keep(src, "from %s", chosen_by));
    }
    if (not_fp32)
        st_source_note(src, FP32_STATES, "applies only to moments: masters stay exact fp32");
    if (is_on(src, BF16_STATES))
        st_source_note(src, BF16_STATES, "applies only to moments: masters stay exact fp32");
    check_moments(src, config, FP32_STATES, ST_MOMENTS_F32, chosen_by);
    check_moments(src, config, BF16_STATES, ST_MOMENTS_BF16, chosen_by);
}

static void resolve_optimizer(struct st_config_source *src, struct st_config *config)
{
    const struct st_field_state *lr = st_source_state(src, OPTIMIZER "lr");
    const bool named = st_source_given(src, "optimizer.type") && st_source_state(src, "optimizer.type")->origin == ST_ORIGIN_FILE;

    clear_params(src, config);
    resolve_adam(src, config);
    resolve_decay(src, config, named);
    resolve_adagrad(src, config);
    check_nesterov(src, config);
    resolve_moments(src, config);
    if (named && lr->spelling == NULL) {
        config->optimizer.lr = config->optimizer.type == STRATA_ADAGRAD ? ADAGRAD_LR : DEEPSPEED_LR;
        st_source_derive(src, OPTIMIZER "lr",
                         config->optimizer.type == STRATA_SGD ? "the file names an optimizer and no lr: PyTorch's default"
                                                              : "the file names an optimizer and no lr: DeepSpeed's default");
    }
}

void st_config_resolve_train(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts)
{
    resolve_batch(src, config, opts->ranks > 1 ? opts->ranks : 1, opts->train_batch);
    resolve_run(src, opts);
    resolve_wire(src, config);
    resolve_leaves(src, config, opts->ranks > 1 ? opts->ranks : 1, opts->leaves);
    resolve_precision(src, config);
    resolve_max_skipped(src, config);
    resolve_clipping(src);
    resolve_optimizer(src, config);
    st_config_resolve_rate(src, config, opts);
}
