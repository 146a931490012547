/* config_table_train.c - rows of the field table: batch, optimizer, scheduler, precision, gradients, top level.
 *
 * The order matters for two reasons: a key that mutes a section comes before the section's members, and rows of one section are
 * adjacent, because the effective config is written in this order. */
#include "offload/config/config_table.h"

#define EXCHANGED  "strata plans what ranks exchange: sums in fp32, added in one order, of whole layers"
#define NO_BUCKETS "exchanges are planned page by page, so there are no buckets"
#define U32_MAX    4294967295.0
#define COUNT_MAX  9007199254740992.0 /* 2^53: whole numbers are exact up to here */
#define STEPS_MAX  1099511627776.0    /* 2^40: sums of two stay exact, and products with stairs almost */
#define BETA_MAX   0.9999999
#define SCALE_MIN  1e-30 /* loss scales and their inverses must be fp32 numbers */
#define SCALE_MAX  1e30

static const struct st_choice optimizer_choices[] = {
    {"AdamW", STRATA_ADAMW, ST_VERDICT_HONOURED},
    {"Adam", STRATA_ADAM, ST_VERDICT_HONOURED},
    {"Adagrad", STRATA_ADAGRAD, ST_VERDICT_HONOURED},
    {"Lion", STRATA_LION, ST_VERDICT_HONOURED},
    {"SGD", STRATA_SGD, ST_VERDICT_HONOURED},
    {"Lamb", 0, ST_VERDICT_REJECTED},
    {"OneBitAdam", 0, ST_VERDICT_REJECTED},
    {"ZeroOneAdam", 0, ST_VERDICT_REJECTED},
    {"OneBitLamb", 0, ST_VERDICT_REJECTED},
    {"MuAdam", 0, ST_VERDICT_REJECTED},
    {"MuAdamW", 0, ST_VERDICT_REJECTED},
    {"MuSGD", 0, ST_VERDICT_REJECTED},
    {"Muon", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice scheduler_choices[] = {
    {"WarmupLR", ST_LR_WARMUP, ST_VERDICT_HONOURED},
    {"WarmupDecayLR", ST_LR_WARMUP_DECAY, ST_VERDICT_HONOURED},
    {"WarmupCosineLR", ST_LR_WARMUP_COSINE, ST_VERDICT_HONOURED},
    {"OneCycle", ST_LR_ONE_CYCLE, ST_VERDICT_HONOURED},
    {"LRRangeTest", ST_LR_RANGE_TEST, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice warmup_choices[] = {
    {"log", 1, ST_VERDICT_HONOURED},
    {"linear", 0, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice dtype_choices[] = {
    {"fp32", 0, ST_VERDICT_HONOURED},
    {"fp16", 1, ST_VERDICT_HONOURED},
    {"bf16", 2, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice wire_choices[] = {
    {"fp32", ST_WIRE_F32, ST_VERDICT_HONOURED},
    {"fp16", 0, ST_VERDICT_REJECTED},
    {"bf16", ST_WIRE_BF16, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice accum_dtype_choices[] = {
    {"fp32", 0, ST_VERDICT_HONOURED},
    {"float32", 0, ST_VERDICT_HONOURED},
    {"fp16", 1, ST_VERDICT_REJECTED},
    {"bf16", 2, ST_VERDICT_REJECTED},
    {"float16", 1, ST_VERDICT_REJECTED},
    {"bfloat16", 2, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

/* As data_types has them: PyTorch's names, too. */
static const struct st_choice torch_dtype_choices[] = {
    {"fp32", 0, ST_VERDICT_HONOURED},
    {"fp16", 1, ST_VERDICT_HONOURED},
    {"bf16", 2, ST_VERDICT_HONOURED},
    {"float32", 0, ST_VERDICT_HONOURED},
    {"float16", 1, ST_VERDICT_HONOURED},
    {"bfloat16", 2, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice reduce_choices[] = {
    {"mean", 0, ST_VERDICT_HONOURED},
    {"sum", 1, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

/* clang-format off */
static const struct st_field batch_rows[] = {
    {.path = "train_batch_size", .type = ST_FIELD_INT, ST_BOUND(U32, train_batch), .min = 1, .max = U32_MAX, .fallback = "1",
     .help = "samples per optimizer step of all ranks: micro-batch x accumulation x ranks; if some of the three are missing, they are derived"},
    {.path = "train_micro_batch_size_per_gpu", .type = ST_FIELD_INT, ST_BOUND(U32, micro_batch), .min = 1, .max = U32_MAX,
     .fallback = "1", .help = "samples per forward and backward"},
    {.path = "gradient_accumulation_steps", .type = ST_FIELD_INT, ST_BOUND(U32, grad_accum), .min = 1,
     .max = STRATA_GRAD_ACCUM_MAX,
     .fallback = "1", .help = "micro-batches per optimizer step"},
    ST_ROW_PLAIN("managed_gradient_accumulation", BOOL, "true", "no client calls step(): the engine knows the boundary",
                 "false: the client marks the accumulation boundary itself"),
};

#define ADAMS      (1u << STRATA_ADAMW | 1u << STRATA_ADAM)
#define ADAGRAD    (1u << STRATA_ADAGRAD)
#define LION       (1u << STRATA_LION)
#define SGD        (1u << STRATA_SGD)
#define OPTIMIZERS "this version has AdamW, Adam, Adagrad, Lion and SGD"
#define MUON(path_, type_) ST_ROW_REJECT("optimizer.params." path_, type_, NULL, "belongs to Muon; " OPTIMIZERS, "Muon")

static const struct st_field optimizer_rows[] = {
    ST_ROW_SECTION("optimizer", "left out: AdamW, betas 0.9 and 0.999, eps 1e-8, no decay, lr 5e-5"),
    {.path = "optimizer.type", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, optimizer.type), .choices = optimizer_choices,
     .fallback = "\"AdamW\"", .reason = OPTIMIZERS "; strata.wire spares a slow network", .mutes = "optimizer.params",
     .help = "Adam also means AdamW unless adam_w_mode is false"},
    {.path = "optimizer.legacy_fusion", .type = ST_FIELD_BOOL, .fallback = "false", .changes = ST_CHANGES_NEITHER,
     .verdict = ST_VERDICT_NOTICE, .reason = "chooses between wrappers of DeepSpeed; strata has one", .help = "older fused wrapper"},
    ST_ROW_SECTION("optimizer.params", "arguments of the optimizer"),
    {.path = "optimizer.params.lr", .type = ST_FIELD_REAL, ST_BOUND(F64, optimizer.lr), .min = 0, .max = 1e3, .fallback = "5e-5",
     .help = "learning rate; 1e-3 (Adagrad: 1e-2), as in DeepSpeed, when the file names a type and no lr"},
    {.path = "optimizer.params.betas", .type = ST_FIELD_PAIR, ST_BOUND(BETAS, optimizer.beta1), .min = 0, .max = BETA_MAX,
     .optimizers = ADAMS | LION, .fallback = "[0.9,0.999]",
     .help = "decay of the two moments; below 1. With Lion the first weights the gradient in the sign, the second in the moment"},
    {.path = "optimizer.params.eps", .type = ST_FIELD_REAL, ST_BOUND(F64, optimizer.eps), .min = 1e-30, .max = 1,
     .optimizers = ADAMS | ADAGRAD, .fallback = "1e-8",
     .help = "added to the root of the second moment (Adagrad: of the sum of squares, default 1e-10); not 0, since a zero "
             "gradient would then give 0/0"},
    {.path = "optimizer.params.weight_decay", .type = ST_FIELD_REAL, ST_BOUND(F64, optimizer.weight_decay), .min = 0, .max = 1e3,
     .fallback = "0", .help = "decoupled (AdamW, Lion) or added to the gradient (Adam, Adagrad, SGD: L2); strata.decay_all "
                              "says whether biases and norm weights decay too. Adagrad works as in PyTorch: accumulator and step use the "
                              "decayed gradient, while DeepSpeed's CPU kernel uses the raw one for the step"},
    {.path = "optimizer.params.bias_correction", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, optimizer.bias_correction),
     .optimizers = ADAMS, .fallback = "true", .help = "divide the moments by 1 - beta^t"},
    {.path = "optimizer.params.momentum", .type = ST_FIELD_REAL, ST_BOUND(F64, optimizer.momentum), .min = 0, .max = BETA_MAX,
     .optimizers = SGD, .fallback = "0", .help = "fraction of the moment that is kept; below 1"},
    {.path = "optimizer.params.dampening", .type = ST_FIELD_REAL, ST_BOUND(F64, optimizer.dampening), .min = 0, .max = 1,
     .optimizers = SGD, .fallback = "0",
     .help = "from step 2 on the gradient is multiplied by 1 - this before it enters the moment, as in PyTorch; it has no effect without momentum"},
    {.path = "optimizer.params.nesterov", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, optimizer.nesterov), .optimizers = SGD,
     .fallback = "false", .help = "look one step ahead; needs momentum above 0 and dampening 0"},
    {.path = "optimizer.params.adam_w_mode", .aliases = "adamw_mode", .type = ST_FIELD_BOOL, ST_BOUND(ADAM_W_MODE, optimizer.type),
     .optimizers = ADAMS, .fallback = "true", .help = "decoupled decay; false with type Adam: decay is added to the gradient (L2)"},
    {.path = "optimizer.params.torch_adam", .type = ST_FIELD_BOOL, .optimizers = ADAMS, .fallback = "false",
     .verdict = ST_VERDICT_NOTICE, .reason = "strata has one Adam, bit-equal on every tier and kernel; if weight_decay is left out, it is then 0.01, as in PyTorch's AdamW",
     .help = "use PyTorch's Adam instead of DeepSpeed's"},
    {.path = "optimizer.params.amsgrad", .type = ST_FIELD_BOOL, .optimizers = ADAMS | ADAGRAD, .fallback = "false",
     .plain = "false", .verdict = ST_VERDICT_REJECTED, .reason = "AMSGrad is not in this version: set it to false",
     .help = "keep the largest second moment"},
    {.path = "optimizer.params.fp32_optimizer_states", .type = ST_FIELD_BOOL, .optimizers = ADAMS | ADAGRAD | LION,
     .fallback = "true", .help = "moments in fp32; false means strata.moments bf16, unless that is given"},
    ST_ROW_REJECT("optimizer.params.max_grad_norm", REAL, NULL, "use the top-level gradient_clipping, as DeepSpeed demands too",
                  "clipping inside the optimizer"),
    MUON("muon_lr", REAL),
    MUON("adam_lr", REAL),
    MUON("ns_method", TEXT),
    ST_ROW_NOTICE("optimizer.params.foreach", BOOL, NULL, "how PyTorch's Adam goes through tensors; strata has one Adam", "of torch_adam"),
    ST_ROW_NOTICE("optimizer.params.set_grad_none", BOOL, "true", "gradients are never cleared: the first one overwrites",
                  "drop gradients instead of clearing them"),
    {.path = "zero_allow_untested_optimizer", .type = ST_FIELD_BOOL, .fallback = "false", .changes = ST_CHANGES_NEITHER,
     .verdict = ST_VERDICT_NOTICE, .reason = "strata has no list of untested optimizers",
     .help = "allow optimizers outside DeepSpeed's tested list"},
    {.path = "zero_force_ds_cpu_optimizer", .type = ST_FIELD_BOOL, .fallback = "true", .changes = ST_CHANGES_NEITHER,
     .verdict = ST_VERDICT_NOTICE, .reason = "there are no client optimizers: strata does the update on every tier",
     .help = "refuse a client optimizer under CPU offload"},
};

#define WARMUPS   (1u << ST_LR_WARMUP | 1u << ST_LR_WARMUP_DECAY)
#define TOTALS    (1u << ST_LR_WARMUP_DECAY | 1u << ST_LR_WARMUP_COSINE)
#define COSINE    (1u << ST_LR_WARMUP_COSINE)
#define ONE_CYCLE (1u << ST_LR_ONE_CYCLE)
#define RANGE     (1u << ST_LR_RANGE_TEST)

static const struct st_field scheduler_rows[] = {
    ST_ROW_SECTION("scheduler", "left out: the learning rate is constant"),
    {.path = "scheduler.type", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, schedule.type), .choices = scheduler_choices,
     .mutes = "scheduler.params", .help = "stepped once per optimizer step that was not skipped"},
    ST_ROW_SECTION("scheduler.params", "arguments of the scheduler"),
    {.path = "scheduler.params.warmup_min_lr", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.warmup_min_lr), .min = 0, .max = 1e3,
     .lr_types = WARMUPS, .fallback = "0", .help = "where warm-up starts; also where decay ends"},
    {.path = "scheduler.params.warmup_max_lr", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.warmup_max_lr), .min = 0, .max = 1e3,
     .lr_types = WARMUPS,
     .help = "where warm-up ends; left out: the optimizer's lr with WarmupLR, 1e-3 with WarmupDecayLR, as in DeepSpeed; "
             "\"auto\": the optimizer's lr"},
    {.path = "scheduler.params.warmup_num_steps", .type = ST_FIELD_INT, ST_BOUND(U64, schedule.warmup_steps), .min = 0, .max = COUNT_MAX,
     .lr_types = WARMUPS | COSINE, .fallback = "1000", .auto_text = "0",
     .help = "optimizer steps of warm-up; fewer than 2 count as 2"},
    {.path = "scheduler.params.warmup_type", .type = ST_FIELD_CHOICE, ST_BOUND(BOOL, schedule.warmup_log), .choices = warmup_choices,
     .lr_types = WARMUPS | COSINE, .fallback = "\"log\"", .help = "shape of the warm-up"},
    {.path = "scheduler.params.total_num_steps", .type = ST_FIELD_INT, ST_BOUND(STEPS, schedule.total_steps), .min = 1, .max = COUNT_MAX,
     .lr_types = TOTALS, .help = "the step at which decay has ended; left out or \"auto\": the steps of the run"},
    {.path = "scheduler.params.last_batch_iteration", .type = ST_FIELD_INT, .min = -1, .max = COUNT_MAX, .fallback = "-1",
     .plain = "-1", .verdict = ST_VERDICT_REJECTED, .reason = "a run knows its position in the schedule: leave it out",
     .help = "where the schedule resumes"},
    {.path = "scheduler.params.warmup_min_ratio", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.warmup_min_ratio), .min = 0, .max = 1,
     .lr_types = COSINE, .fallback = "0", .help = "where warm-up starts, as a fraction of the optimizer's lr"},
    {.path = "scheduler.params.cos_min_ratio", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.cos_min_ratio), .min = 0, .max = 1,
     .lr_types = COSINE, .fallback = "1e-4", .help = "where the cosine ends, as a fraction of the optimizer's lr"},
    {.path = "scheduler.params.cycle_min_lr", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.cycle_min_lr), .min = 0, .max = 1e3,
     .lr_types = ONE_CYCLE, .auto_text = "0", .help = "rate at both ends of the cycle; required"},
    {.path = "scheduler.params.cycle_max_lr", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.cycle_max_lr), .min = 0, .max = 1e3,
     .lr_types = ONE_CYCLE, .help = "rate at the top of the cycle; required; \"auto\": the optimizer's lr"},
    {.path = "scheduler.params.decay_lr_rate", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.decay_lr_rate), .min = 0, .max = 1e6,
     .lr_types = ONE_CYCLE, .fallback = "0", .help = "after the cycle: cycle_min_lr / (1 + this x decay intervals)"},
    {.path = "scheduler.params.cycle_first_step_size", .type = ST_FIELD_INT, ST_BOUND(U64, schedule.cycle_first_step_size), .min = 1,
     .max = STEPS_MAX, .lr_types = ONE_CYCLE, .fallback = "2000", .help = "optimizer steps in which the rate rises"},
    {.path = "scheduler.params.cycle_second_step_size", .type = ST_FIELD_INT, ST_BOUND(U64, schedule.cycle_second_step_size), .min = 0,
     .max = STEPS_MAX, .lr_types = ONE_CYCLE, .help = "optimizer steps in which the rate falls; left out: as many as it rises"},
    {.path = "scheduler.params.cycle_first_stair_count", .type = ST_FIELD_INT, ST_BOUND(U64, schedule.cycle_first_stair_count), .min = 0,
     .max = U32_MAX, .lr_types = ONE_CYCLE, .fallback = "0", .help = "stairs while the rate rises; 0: it changes with every step"},
    {.path = "scheduler.params.cycle_second_stair_count", .type = ST_FIELD_INT, ST_BOUND(U64, schedule.cycle_second_stair_count), .min = 0,
     .max = U32_MAX, .lr_types = ONE_CYCLE, .help = "stairs while the rate falls; left out: as many as while it rises"},
    {.path = "scheduler.params.decay_step_size", .type = ST_FIELD_INT, ST_BOUND(U64, schedule.decay_step_size), .min = 0, .max = STEPS_MAX,
     .lr_types = ONE_CYCLE, .fallback = "0", .help = "optimizer steps of one decay interval; 0: no decay"},
    {.path = "scheduler.params.cycle_momentum", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, schedule.cycle_momentum), .lr_types = ONE_CYCLE,
     .fallback = "true",
     .help = "betas become (momentum, 0.99), and momentum runs opposite to the rate; SGD: its momentum does. Adagrad has none"},
    {.path = "scheduler.params.cycle_min_mom", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.cycle_min_mom), .min = 0, .max = BETA_MAX,
     .lr_types = ONE_CYCLE, .fallback = "0.8", .help = "momentum at the top of the cycle"},
    {.path = "scheduler.params.cycle_max_mom", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.cycle_max_mom), .min = 0, .max = BETA_MAX,
     .lr_types = ONE_CYCLE, .fallback = "0.9", .help = "momentum at the ends of the cycle"},
    {.path = "scheduler.params.decay_mom_rate", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.decay_mom_rate), .min = 0, .max = 1e6,
     .lr_types = ONE_CYCLE, .fallback = "0",
     .help = "after the cycle: cycle_max_mom x (1 + this x decay intervals); a run that would bring it to 1 is refused"},
    {.path = "scheduler.params.lr_range_test_min_lr", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.range_min_lr), .min = 0, .max = 1e3,
     .lr_types = RANGE, .fallback = "1e-3", .help = "first rate"},
    {.path = "scheduler.params.lr_range_test_step_size", .type = ST_FIELD_INT, ST_BOUND(U64, schedule.range_step_size), .min = 1,
     .max = STEPS_MAX, .lr_types = RANGE, .fallback = "2000", .help = "optimizer steps of one interval"},
    {.path = "scheduler.params.lr_range_test_step_rate", .type = ST_FIELD_REAL, ST_BOUND(F64, schedule.range_step_rate), .min = 0,
     .max = 1e6, .lr_types = RANGE, .fallback = "1.0", .help = "growth per interval, in units of the first rate"},
    {.path = "scheduler.params.lr_range_test_staircase", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, schedule.range_staircase),
     .lr_types = RANGE, .fallback = "false", .help = "grow only at the end of an interval"},
};

static const struct st_field fp16_rows[] = {
    ST_ROW_SECTION("fp16", "half precision with loss scaling; its keys have an effect only in a run that trains in fp16"),
    {.path = "fp16.enabled", .type = ST_FIELD_BOOL, ST_BOUND(F16, dtype), .fallback = "false",
     .help = "fp16 weights and gradients, fp32 masters; \"auto\" means false; cannot be combined with bf16"},
    ST_ROW_PLAIN("fp16.auto_cast", BOOL, "false", "inputs are token numbers: there is nothing to cast", "cast inputs to fp16"),
    {.path = "fp16.loss_scale", .type = ST_FIELD_REAL, ST_BOUND(F64, scaling.scale), .min = 0, .max = SCALE_MAX, .fallback = "0",
     .help = "0: dynamic; else fixed"},
    {.path = "fp16.initial_scale_power", .type = ST_FIELD_INT, ST_BOUND(U32, scaling.initial_power), .min = 0, .max = 126,
     .fallback = "16", .help = "first scale, as a power of two"},
    {.path = "fp16.loss_scale_window", .type = ST_FIELD_INT, ST_BOUND(U32, scaling.window), .min = 1, .max = U32_MAX,
     .fallback = "1000", .help = "good steps before the scale doubles"},
    {.path = "fp16.hysteresis", .type = ST_FIELD_INT, ST_BOUND(U32, scaling.hysteresis), .min = 0, .max = U32_MAX, .fallback = "2",
     .help = "overflows until the scale halves; 0: it never does, as in DeepSpeed"},
    {.path = "fp16.consecutive_hysteresis", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, scaling.consecutive_hysteresis), .fallback = "false",
     .help = "every good step resets the hysteresis; otherwise only a doubling does"},
    {.path = "fp16.min_loss_scale", .type = ST_FIELD_REAL, ST_BOUND(F64, scaling.min_scale), .min = SCALE_MIN, .max = SCALE_MAX,
     .fallback = "1", .help = "floor of the scale; an overflow there ends the run with exit code 5"},
    ST_ROW_OFF("fp16.fp16_master_weights_and_grads",
               "masters are fp32, and gradients accumulate in fp32: set it to false", "masters in fp16"),
};

static const struct st_field bf16_rows[] = {
    {.path = "bf16", .aliases = "bfloat16", .type = ST_FIELD_OBJECT,
     .help = "if both this and fp16 are left out of a file: the dtype in which the weights are stored; without a file: on"},
    {.path = "bf16.enabled", .type = ST_FIELD_BOOL, ST_BOUND(BF16, dtype), .fallback = "false", .auto_text = "true",
     .help = "bf16 weights and gradients, exact fp32 masters. Left out: the dtype in which the weights are stored, unless fp16 is on. False: "
             "fp32, unless fp16 is on; DeepSpeed casts nothing then, so a run prints a notice if its weights are stored in another dtype"},
    {.path = "bf16.check_grad_overflow", .type = ST_FIELD_BOOL, ST_BOUND(BOOL, check_grad_overflow), .fallback = "true",
     .help = "skip the update of a step whose gradients are not finite; honoured at every stage; fp16 always skips it"},
    ST_ROW_NOTICE("bf16.immediate_grad_update", BOOL, "false", "gradients always accumulate in fp32 as backward makes them",
                  "accumulate in the backward hook"),
    ST_ROW_OFF("bf16.bf16_master_weights_and_grads", "the master is exact fp32 (bf16 weight + 16-bit low half): set it to false",
               "masters in bf16"),
    {.path = "bf16.bf16_optimizer_states", .type = ST_FIELD_BOOL, .fallback = "false",
     .help = "moments in bf16: true means strata.moments bf16, in a run of any precision"},
};

static const struct st_field gradient_rows[] = {
    {.path = "gradient_clipping", .type = ST_FIELD_REAL, ST_BOUND(F64, gradient_clipping), .min = 0, .max = 1e30,
     .fallback = "1.0", .help = "largest global L2 norm; 0: off, DeepSpeed's default before 0.19.3"},
    ST_ROW_NOTICE("prescale_gradients", BOOL, "false", EXCHANGED, "divide before the reduction"),
    ST_ROW_NOTICE("gradient_predivide_factor", REAL, "1.0", EXCHANGED, "divide before the reduction"),
    {.path = "gradient_allreduce_op", .type = ST_FIELD_CHOICE, .choices = reduce_choices, .fallback = "\"mean\"", .plain = "mean",
     .verdict = ST_VERDICT_NOTICE, .reason = "one rank has nothing to combine; of several the mean is trained, and sum is refused", .help = "how ranks are combined"},
    {.path = "communication_data_type", .type = ST_FIELD_CHOICE, ST_BOUND(CHOICE, communication), .choices = wire_choices,
     .changes = ST_CHANGES_RESULTS, .reason = ST_NO_FP16_WIRE, .help = "dtype of reductions: means strata.wire"},
    {.path = "seq_parallel_communication_data_type", .type = ST_FIELD_CHOICE, .choices = dtype_choices, .fallback = "\"fp32\"",
     .verdict = ST_VERDICT_NOTICE, .reason = EXCHANGED, .help = "dtype of sequence-parallel traffic"},
    {.path = "seq_parallel_comm_data_type", .type = ST_FIELD_CHOICE, .choices = dtype_choices, .fallback = "\"fp32\"",
     .verdict = ST_VERDICT_NOTICE, .reason = "the old name of seq_parallel_communication_data_type, which DeepSpeed ignores; " EXCHANGED,
     .help = "dtype of sequence-parallel traffic"},
    ST_ROW_NOTICE("disable_allgather", BOOL, "false", EXCHANGED, "legacy"),
    ST_ROW_SECTION("data_types", "dtypes"),
    {.path = "data_types.grad_accum_dtype", .type = ST_FIELD_CHOICE, .choices = accum_dtype_choices, .fallback = "\"fp32\"",
     .reason = "gradients accumulate in fp32: leave it out or write fp32", .help = "dtype of the gradient accumulator"},
    {.path = "data_types.param_dtype", .type = ST_FIELD_CHOICE, .choices = torch_dtype_choices, .verdict = ST_VERDICT_NOTICE,
     .reason = "bf16.enabled and fp16.enabled decide the dtype of weights", .help = "dtype of parameters"},
    {.path = "data_types.buffer_dtype", .type = ST_FIELD_CHOICE, .choices = torch_dtype_choices, .verdict = ST_VERDICT_NOTICE,
     .reason = "the models here have no buffers beside parameters", .help = "dtype of module buffers"},
    {.path = "data_types.keep_in_fp32_modules", .type = ST_FIELD_LIST, .fallback = "\"auto\"", .plain = "[]",
     .verdict = ST_VERDICT_REJECTED, .reason = "all weights of a run have one dtype: leave it out, or write []",
     .help = "patterns of modules that stay in fp32; auto: those that the model names, and the built-in models name none"},
};

static const struct st_field toplevel_rows[] = {
    {.path = "steps_per_print", .type = ST_FIELD_INT, ST_BOUND(U32, steps_per_print), .min = 0, .max = U32_MAX, .near = 1, .fallback = "0",
     .help = "optimizer steps between progress lines; 0: automatic; Infinity, which Accelerate writes: hardly ever"},
    ST_ROW_NOTICE("wall_clock_breakdown", BOOL, "false", "the metrics show how the time is divided",
                  "print the time split"),
    ST_ROW_NOTICE("memory_breakdown", BOOL, "false", "the plan and the metrics show the memory of each tier",
                  "print memory use"),
    ST_ROW_NOTICE("dump_state", BOOL, "false", "strata check prints every value with its origin", "print the engine's state"),
    {.path = "dataloader_drop_last", .type = ST_FIELD_BOOL, .fallback = "false", .plain = "false", .changes = ST_CHANGES_RESULTS,
     .verdict = ST_VERDICT_NOTICE, .reason = "steps of config.max_steps are whole batches, from one epoch into the next; with config.steps_later true is refused",
     .help = "drop the last short batch"},
    ST_ROW_NOTICE("disable_python_gc", BOOL, "false", "there is no Python here", "collect garbage between steps"),
    ST_ROW_NOTICE("log_level", TEXT, NULL, "messages go to stderr at one level", "level of DeepSpeed's logger"),
    ST_ROW_NOTICE("vocabulary_size", INT, NULL, "the vocabulary comes with the model", "warns when not a multiple of 8"),
    ST_ROW_SECTION("timers", "timers"),
    ST_ROW_SECTION("timers.throughput", "throughput timer"),
    ST_ROW_NOTICE("timers.throughput.enabled", BOOL, "true", "throughput is always measured", "throughput timer"),
    ST_ROW_NOTICE("timers.throughput.synchronized", BOOL, "true", "steps are timed at their end, without extra synchronisation",
                  "synchronise the device for the timer"),
    ST_ROW_SECTION("comms_logger", "log of collectives"),
    ST_ROW_ASKED("comms_logger.enabled", BOOL, "false", EXCHANGED, "log collectives"),
    ST_ROW_NOTICE("comms_logger.verbose", BOOL, "false", EXCHANGED, "log collectives"),
    ST_ROW_NOTICE("comms_logger.prof_all", BOOL, "true", EXCHANGED, "log collectives"),
    ST_ROW_NOTICE("comms_logger.debug", BOOL, "false", EXCHANGED, "log collectives"),
    ST_ROW_NOTICE("comms_logger.prof_ops", LIST, "[]", EXCHANGED, "log collectives"),
    {.path = "torch_autocast", .type = ST_FIELD_OBJECT, .changes = ST_CHANGES_RESULTS, .help = "PyTorch autocast"},
    ST_ROW_OFF("torch_autocast.enabled", "PyTorch is not used here: set it to false and use bf16", "PyTorch autocast"),
    {.path = "torch_autocast.dtype", .type = ST_FIELD_TEXT, .changes = ST_CHANGES_NEITHER, .verdict = ST_VERDICT_NOTICE, .reason = "PyTorch is not used here",
     .help = "PyTorch autocast"},
    {.path = "torch_autocast.lower_precision_safe_modules", .type = ST_FIELD_LIST, .changes = ST_CHANGES_NEITHER, .verdict = ST_VERDICT_NOTICE, .reason = "PyTorch is not used here",
     .help = "PyTorch autocast"},
    {.path = "compile", .type = ST_FIELD_OPEN, .changes = ST_CHANGES_SPEED, .verdict = ST_VERDICT_NOTICE, .reason = "nothing is compiled at run time here",
     .help = "DeepCompile"},
    ST_ROW_NOTICE("compile.deepcompile", BOOL, "false", "nothing is compiled at run time here", "DeepCompile"),
    ST_ROW_NOTICE("compile.offload_parameters", BOOL, "false", "use zero_optimization.offload_param", "DeepCompile"),
    ST_ROW_NOTICE("compile.offload_activation", BOOL, "false", "use strata.activation_tier", "DeepCompile"),
    ST_ROW_NOTICE("compile.offload_opt_states", BOOL, "false", "use zero_optimization.offload_optimizer", "DeepCompile"),
    ST_ROW_NOTICE("compile.double_buffer", BOOL, "true", "the plan decides how far ahead things are read", "DeepCompile"),
    {.path = "hybrid_engine", .type = ST_FIELD_OPEN, .changes = ST_CHANGES_RESULTS, .verdict = ST_VERDICT_NOTICE, .reason = "belongs to DeepSpeed's RLHF engine",
     .help = "training and generation in turn"},
    ST_ROW_OFF("hybrid_engine.enabled", "DeepSpeed's RLHF engine has no counterpart here: set it to false",
               "training and generation in turn"),
};
#define RANKS_SHARE "experts are pages, and ranks share them as they share all pages"
#define GONE       "removed in DeepSpeed 0.19, and not here: "

static const struct st_field feature_rows[] = {
    ST_ROW_OPEN("autotuning", NOTICE, OUTPUT, "the planner needs no trial runs: strata plan shows what it chose, strata tune finds the aio section",
                "trial runs that choose batch size and stage"),
    ST_ROW_OPEN("data_efficiency", REJECTED, RESULTS, "curricula, random-LTD and dynamic batches are not in this version: set enabled to false",
                "which data is drawn, and which tokens the layers see"),
    ST_ROW_OPEN("weight_quantization", REJECTED, RESULTS, "quantised weights are not in this version: set enabled to false", "for inference"),
    ST_ROW_OPEN("tensor_parallel", NOTICE, SPEED, EXCHANGED, "layers split over ranks"),
    {.path = "tensor_parallel.autotp_size", .type = ST_FIELD_INT, .fallback = "0", .changes = ST_CHANGES_RESULTS, .verdict = ST_VERDICT_NOTICE,
     .reason = "below 2 nothing is split; from 2 on it is refused, since ranks that share a layer have the same samples", .help = "ranks that share a layer"},
    ST_ROW_OPEN("pipeline", NOTICE, SPEED, EXCHANGED, "layers distributed over ranks"),
    ST_ROW_OPEN("expert_parallel", NOTICE, SPEED, RANKS_SHARE, "experts distributed over ranks"),
    ST_ROW_NOTICE("use_data_before_expert_parallelism", BOOL, "false", RANKS_SHARE, "order of ranks"),
    {.path = "sequence_parallel_size", .type = ST_FIELD_INT, .fallback = "1", .changes = ST_CHANGES_RESULTS, .verdict = ST_VERDICT_NOTICE,
     .reason = "below 2 nothing is split; from 2 on it is refused, since ranks that share a sequence have the same samples", .help = "ranks that share a sequence"},
    ST_ROW_NOTICE("allgather_size", INT, "5e8", NO_BUCKETS, "from configs older than the zero_optimization section"),
    ST_ROW_REMOVED("amp", OPEN, NULL, GONE "use bf16", "Apex mixed precision"),
    ST_ROW_REMOVED("elasticity", OPEN, NULL, GONE "give the batch sizes", "choose batch sizes for a range of GPU counts"),
    ST_ROW_REMOVED("curriculum_learning", OPEN, NULL, GONE "prepare the data in the order you want", "sequences that grow"),
    ST_ROW_REMOVED("progressive_layer_drop", OPEN, NULL, GONE "every layer runs in every step", "skip layers at random"),
    ST_ROW_REMOVED("compression_training", OPEN, NULL, GONE "train first, then compress the result with another tool", "pruning and quantisation"),
    ST_ROW_REMOVED("quantize_training", OPEN, NULL, GONE "train first, then quantise the result with another tool", "quantisation that grows"),
    ST_ROW_REMOVED("eigenvalue", OPEN, NULL, GONE "nothing here needs eigenvalues", "of layers, for quantize_training"),
    ST_ROW_REMOVED("sparse_attention", OPEN, NULL, GONE "attention is dense and exact", "block-sparse attention"),
    ST_ROW_REMOVED("sparse_gradients", BOOL, "false", GONE "gradients are sent whole", "sparse reduction of embedding gradients"),
    ST_ROW_REMOVED("graph_harvesting", BOOL, "false", GONE "remove it", "CUDA graphs of the steps"),
};
/* clang-format on */

const struct st_section st_sections_train[] = {
    {"Batch size", true, ST_CHANGES_RESULTS, ST_ROWS(batch_rows)},
    {"Optimizer", true, ST_CHANGES_RESULTS, ST_ROWS(optimizer_rows)},
    {"Scheduler", true, ST_CHANGES_RESULTS, ST_ROWS(scheduler_rows)},
    {"fp16", true, ST_CHANGES_RESULTS, ST_ROWS(fp16_rows)},
    {"bf16", true, ST_CHANGES_RESULTS, ST_ROWS(bf16_rows)},
    {"Gradients and dtypes", true, ST_CHANGES_RESULTS, ST_ROWS(gradient_rows)},
    {"Other top-level keys", true, ST_CHANGES_NEITHER, ST_ROWS(toplevel_rows)},
    {"Other features", true, ST_CHANGES_SPEED, ST_ROWS(feature_rows)},
    {NULL, false, ST_CHANGES_INHERITED, NULL, 0},
};
