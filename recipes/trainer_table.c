/* recipes/trainer_table.c - the keys of transformers' TrainingArguments that LLaMA-Factory and TRL have with one default.
 *
 * Source: training_args.py of transformers 4.57 and 5. */
#include "recipes/trainer_internal.h"

#define BY_LOSS "the loss of evaluations decides, with --keep-best and --early-stop"
static const struct st_choice save_choices[] = {
    {"no", 0, ST_VERDICT_HONOURED},   {"steps", 0, ST_VERDICT_HONOURED}, {"epoch", 0, ST_VERDICT_HONOURED},
    {"best", 0, ST_VERDICT_REJECTED}, {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice eval_choices[] = {
    {"no", 0, ST_VERDICT_HONOURED},
    {"steps", 0, ST_VERDICT_HONOURED},
    {"epoch", 0, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice scheduler_choices[] = {
    {"linear", 0, ST_VERDICT_HONOURED},
    {"cosine", 0, ST_VERDICT_HONOURED},
    {"constant", 0, ST_VERDICT_HONOURED},
    {"constant_with_warmup", 0, ST_VERDICT_HONOURED},
    {"cosine_with_restarts", 0, ST_VERDICT_REJECTED},
    {"polynomial", 0, ST_VERDICT_REJECTED},
    {"inverse_sqrt", 0, ST_VERDICT_REJECTED},
    {"reduce_lr_on_plateau", 0, ST_VERDICT_REJECTED},
    {"cosine_with_min_lr", 0, ST_VERDICT_HONOURED},
    {"cosine_warmup_with_min_lr", 0, ST_VERDICT_REJECTED},
    {"warmup_stable_decay", 0, ST_VERDICT_REJECTED},
    {"greedy", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice optim_choices[] = {
    {"adamw_torch_fused", ST_OPTIM_ADAMW, ST_VERDICT_HONOURED},
    {"adamw_torch", ST_OPTIM_ADAMW, ST_VERDICT_HONOURED},
    {"adamw_hf", ST_OPTIM_ADAMW, ST_VERDICT_HONOURED},
    {"adamw_apex_fused", ST_OPTIM_ADAMW, ST_VERDICT_HONOURED},
    {"paged_adamw", ST_OPTIM_ADAMW, ST_VERDICT_HONOURED},
    {"paged_adamw_32bit", ST_OPTIM_ADAMW, ST_VERDICT_HONOURED},
    {"adamw_bnb_8bit", ST_OPTIM_ADAMW_8BIT, ST_VERDICT_HONOURED},
    {"adamw_8bit", ST_OPTIM_ADAMW_8BIT, ST_VERDICT_HONOURED},
    {"paged_adamw_8bit", ST_OPTIM_ADAMW_8BIT, ST_VERDICT_HONOURED},
    {"sgd", ST_OPTIM_SGD, ST_VERDICT_HONOURED},
    {"adagrad", ST_OPTIM_ADAGRAD, ST_VERDICT_HONOURED},
    {"lion_32bit", ST_OPTIM_LION, ST_VERDICT_HONOURED},
    {"paged_lion_32bit", ST_OPTIM_LION, ST_VERDICT_HONOURED},
    {"adafactor", 0, ST_VERDICT_REJECTED},
    {"adamw_anyprecision", 0, ST_VERDICT_REJECTED},
    {"lion_8bit", 0, ST_VERDICT_REJECTED},
    {"rmsprop", 0, ST_VERDICT_REJECTED},
    {"galore_adamw", 0, ST_VERDICT_REJECTED},
    {"lomo", 0, ST_VERDICT_REJECTED},
    {"schedule_free_adamw", 0, ST_VERDICT_REJECTED},
    {"muon", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

/* clang-format off */
const struct st_field st_trainer_model_rows[] = {
    {.path = "model_name_or_path", .type = ST_FIELD_TEXT, .help = "--model: a Hugging Face directory, a preset, a checkpoint, or ORG/NAME in the Hugging Face cache; nothing is downloaded"},
    {.path = "model_revision", .type = ST_FIELD_TEXT, .fallback = "\"main\"", .help = "of ORG/NAME in the Hugging Face cache: --model ORG/NAME@REVISION"},
    ST_RECIPE_NOTICE("trust_remote_code", NULL, ANY, "no code of a model's directory is run"),
    ST_RECIPE_SPEED("use_liger_kernel", "liger_kernel_config use_cache", ANY, KERNELS),
    ST_RECIPE_SPEED("gradient_checkpointing", "gradient_checkpointing_kwargs activation_checkpointing activation_checkpointing_kwargs", ANY, PLANNED),
};

const struct st_field st_trainer_output_rows[] = {
    {.path = "output_dir", .type = ST_FIELD_TEXT, .to = "--out", .help = "the model, or the adapter; checkpoints are in OUTPUT_DIR.checkpoints (--save)"},
    {.path = "overwrite_output_dir", .type = ST_FIELD_BOOL, .fallback = "false", .to = "--overwrite", .help = "replace what is there"},
    {.path = "save_strategy", .type = ST_FIELD_CHOICE, .choices = save_choices, .reason = "checkpoints are saved by steps or epochs, and --keep-best N keeps the best: save_strategy epoch", .help = "epoch: at the end of each (--save-every epoch); no: no checkpoints; left out, too, unless save_steps is given"},
    {.path = "save_steps", .type = ST_FIELD_REAL, .min = 0, .max = COUNT_MAX, .help = "steps from checkpoint to checkpoint (--save, strata.save_every); below 1 a part of the run (--save-every); 0: only at the end"},
    {.path = "save_total_limit", .type = ST_FIELD_INT, .min = -1, .max = COUNT_MAX, .help = ST_TRAINER_LIMIT_HELP "below 1 or left out: 2, while Trainer keeps all, which a notice says at each start"},
    {.path = "resume_from_checkpoint", .type = ST_FIELD_ANY, .help = "true: from the newest (--resume auto); a directory"},
    {.path = "logging_steps", .type = ST_FIELD_REAL, .min = 1e-9, .max = COUNT_MAX, .help = "steps from line to line (steps_per_print); below 1 a part of the run (--logging-steps)"},
    {.path = "eval_strategy", .type = ST_FIELD_CHOICE, .choices = eval_choices, .help = "steps: every eval_steps; epoch: at the end of each (--eval-every epoch); else at the end"},
    {.path = "eval_steps", .type = ST_FIELD_REAL, .min = 0, .max = COUNT_MAX, .help = "--eval-every, where rows are held out: steps, or below 1 a part of the run; 0 or left out: logging_steps"},
    ST_RECIPE_ASKED("save_only_model", NULL, ANY, "checkpoints hold all that a run goes on with: docs/checkpoints.md"),
    ST_RECIPE_NOTICE("save_safetensors", "save_on_each_node restore_callback_states_from_checkpoint enable_jit_checkpoint", ANY, "checkpoints hold all that a run goes on with: docs/checkpoints.md"),
    ST_RECIPE_OFF("ignore_data_skip", BOOL, "false", "a run that goes on takes the rows that follow: set it to false"),
    ST_RECIPE_ASKED("report_to", NULL, ANY, METRICS),
    ST_RECIPE_NOTICE("logging_dir", "logging_strategy logging_first_step logging_nan_inf_filter log_level log_level_replica "
                     "log_on_each_node disable_tqdm run_name project trackio_space_id include_tokens_per_second "
                     "include_num_input_tokens_seen skip_memory_metrics trackio_bucket_id trackio_static_space_id", ANY,
                     METRICS),
    ST_RECIPE_NOTICE("hub_token", "push_to_hub_token", SECRET, NO_HUB),
    ST_RECIPE_ASKED("push_to_hub", NULL, ANY, NO_HUB),
    ST_RECIPE_NOTICE("hub_model_id", "hub_strategy hub_private_repo hub_always_push hub_revision push_to_hub_model_id "
                     "push_to_hub_organization", ANY,
                     NO_HUB),
    ST_RECIPE_OFF("eval_delay", REAL, "0", "the first evaluation is that of eval_steps: set it to 0"),
    ST_RECIPE_ASKED("eval_on_start", "include_for_metrics include_inputs_for_metrics bf16_full_eval fp16_full_eval", ANY, EVALUATION),
    ST_RECIPE_SPEED("per_device_eval_batch_size", "per_gpu_eval_batch_size eval_accumulation_steps jit_mode_eval", ANY,
                    "evaluations go through the same plan as steps"),
    ST_RECIPE_NOTICE("prediction_loss_only", "eval_do_concat_batches eval_use_gather_object batch_eval_metrics "
                     "use_legacy_prediction_loop past_index", ANY, EVALUATION),
    ST_RECIPE_OFF("load_best_model_at_end", BOOL, "false", "the last weights are written; --keep-best N keeps the best checkpoints, and strata export makes models of them: remove it"),
    {.path = "metric_for_best_model", .type = ST_FIELD_TEXT, .reason = BY_LOSS, .help = "eval_loss; no other with early_stopping_steps"},
    {.path = "greater_is_better", .type = ST_FIELD_BOOL, .reason = BY_LOSS, .help = "false: the lower is the better"},
};

const struct st_field st_trainer_train_rows[] = {
    {.path = "per_device_train_batch_size", .type = ST_FIELD_INT, .min = 1, .max = 4294967295.0, .fallback = "8", .to = "train_micro_batch_size_per_gpu", .help = "sequences per forward and backward"},
    {.path = "gradient_accumulation_steps", .type = ST_FIELD_INT, .min = 1, .max = STRATA_GRAD_ACCUM_MAX, .fallback = "1", .to = "gradient_accumulation_steps", .help = "micro-batches per step"},
    {.path = "num_train_epochs", .type = ST_FIELD_REAL, .min = 1e-9, .max = 1e6, .fallback = "3.0", .help = "--epochs, unless max_steps is above 0"},
    {.path = "max_steps", .type = ST_FIELD_INT, .min = -1, .max = COUNT_MAX, .fallback = "-1", .help = "--max-steps, if it is above 0: whole steps, from one epoch into the next"},
    {.path = "lr_scheduler_type", .type = ST_FIELD_CHOICE, .choices = scheduler_choices, .fallback = "\"linear\"", .reason = "strata.lr_scheduler has linear, cosine, cosine_with_min_lr, constant and constant_with_warmup; DeepSpeed's file may name others", .help = "strata.lr_scheduler.type, unless DeepSpeed's file names a scheduler"},
    {.path = "lr_scheduler_kwargs", .type = ST_FIELD_OBJECT, .help = "of cosine_with_min_lr: where it ends"},
    {.path = "lr_scheduler_kwargs.min_lr", .type = ST_FIELD_REAL, .min = 0, .max = 1e3, .help = "strata.lr_scheduler.min_lr, a rate"},
    {.path = "lr_scheduler_kwargs.min_lr_rate", .type = ST_FIELD_REAL, .min = 0, .max = 1e3, .help = "strata.lr_scheduler.min_lr_rate, a fraction of learning_rate"},
    ST_RECIPE_OFF("lr_scheduler_kwargs.num_cycles", REAL, "0.5", "the schedules are half a wave"),
    {.path = "warmup_ratio", .type = ST_FIELD_REAL, .min = 0, .max = 1, .fallback = "0.0", .help = "strata.lr_scheduler.warmup_ratio, unless warmup_steps is above 0; of DeepSpeed's scheduler, too"},
    {.path = "warmup_steps", .type = ST_FIELD_REAL, .min = 0, .max = COUNT_MAX, .fallback = "0", .help = "strata.lr_scheduler.warmup_steps, in whole ones; below 1 it is a ratio; of DeepSpeed's scheduler, too"},
    {.path = "optim", .type = ST_FIELD_CHOICE, .choices = optim_choices, .fallback = "\"adamw_torch_fused\"", .reason = OPTIMIZERS, .help = "optimizer.type, unless DeepSpeed's file names one; of 8 bits: strata.moments 8bit"},
    {.path = "weight_decay", .type = ST_FIELD_REAL, .min = 0, .max = 1e3, .fallback = "0.0", .to = "optimizer.params.weight_decay", .help = "not of biases and norms"},
    {.path = "adam_beta1", .type = ST_FIELD_REAL, .min = 0, .max = 0.9999999, .fallback = "0.9", .help = "optimizer.params.betas"},
    {.path = "adam_beta2", .type = ST_FIELD_REAL, .min = 0, .max = 0.9999999, .fallback = "0.999", .help = "optimizer.params.betas"},
    {.path = "adam_epsilon", .type = ST_FIELD_REAL, .min = 1e-30, .max = 1, .fallback = "1e-8", .help = "optimizer.params.eps"},
    {.path = "max_grad_norm", .type = ST_FIELD_REAL, .min = 0, .max = 1e30, .fallback = "1.0", .to = "gradient_clipping", .help = "0: no clipping"},
    {.path = "fp16", .type = ST_FIELD_BOOL, .fallback = "false", .help = "fp16.enabled"},
    {.path = "seed", .type = ST_FIELD_INT, .min = 0, .max = COUNT_MAX, .fallback = "42", .to = "--seed", .help = "of the order of the data, the rows held out and new adapters; the order is not Trainer's"},
    {.path = "deepspeed", .type = ST_FIELD_TEXT, .help = "DeepSpeed's file, from the working directory or this file's: values here must be \"auto\", left out or equal there"},
    {.path = "data_seed", .type = ST_FIELD_INT, .min = 0, .max = COUNT_MAX, .help = "refused unless it is seed, which decides about the order, too"},
    ST_RECIPE_OFF("group_by_length", BOOL, "false", SHUFFLED ": rows of like lengths do not share a step, set it to false"),
    ST_RECIPE_NOTICE("length_column_name", NULL, ANY, "of group_by_length"),
    ST_RECIPE_OFF("dataloader_drop_last", BOOL, "false", "the last step of an epoch has what is left"),
    ST_RECIPE_OFF("label_smoothing_factor", REAL, "0", "labels are not smoothed here"),
    ST_RECIPE_OFF("neftune_noise_alpha", ANY, NULL, "no noise is added to embeddings here"),
    ST_RECIPE_OFF("optim_args", ANY, NULL, "the keys adam_beta1, adam_beta2, adam_epsilon and weight_decay are taken"),
    ST_RECIPE_OFF("optim_target_modules", ANY, NULL, OPTIMIZERS),
    ST_RECIPE_OFF("adafactor", BOOL, "false", OPTIMIZERS),
    ST_RECIPE_OFF("auto_find_batch_size", BOOL, "false", "the plan says what fits: strata plan"),
    {.path = "fsdp", .type = ST_FIELD_ANY, .reason = "fsdp is a stage of ZeRO: --set zero_optimization.stage=3",
     .help = "true, words between spaces, or a list: full_shard and hybrid_shard are zero_optimization.stage 3, shard_grad_op and hybrid_shard_zero2 2, no_shard 0; "
             "offload: both tiers on cpu; auto_wrap: nothing"},
    ST_RECIPE_NOTICE("fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap", ANY, ST_RECIPE_FSDP_WRAP),
    ST_RECIPE_OFF("average_tokens_across_devices", BOOL, "true", "the loss is the mean over the targets of all ranks"),
    ST_RECIPE_OFF("accelerator_config", ANY, NULL, "its members change which rows a step has: remove it"),
    ST_RECIPE_OFF("parallelism_config", ANY, NULL, "each rank trains rows of its own here: remove it"),
    ST_RECIPE_NOTICE("ddp_backend", "ddp_timeout ddp_find_unused_parameters ddp_bucket_cap_mb "
                     "ddp_broadcast_buffers local_rank master_addr master_port "
                     "ddp_static_graph _n_gpu mp_parameters", ANY,
                     LAUNCH),
    ST_RECIPE_SPEED("no_cuda", "use_cpu use_mps_device tpu_num_cores tpu_metrics_debug debug", ANY, "--device says where the run is"),
    ST_RECIPE_SPEED("tf32", "torch_compile torch_compile_backend torch_compile_mode torchdynamo fp16_opt_level "
                     "half_precision_backend fp16_backend full_determinism torch_empty_cache_steps", ANY,
                     KERNELS),
    ST_RECIPE_NOTICE("remove_unused_columns", "label_names", ANY, PIPELINE),
    ST_RECIPE_OFF("per_gpu_train_batch_size", ANY, NULL, "its name is per_device_train_batch_size"),
    ST_RECIPE_SPEED("dataloader_num_workers", "dataloader_prefetch_factor dataloader_pin_memory dataloader_persistent_workers "
                    "dataloader_multiprocessing_context dataloader_in_order", ANY, PIPELINE),
    ST_RECIPE_OFF("train_sampling_strategy", TEXT, "random", SHUFFLED ": random"),
};
/* clang-format on */
