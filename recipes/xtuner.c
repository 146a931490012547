/* recipes/xtuner.c - XTuner's training arguments, where they are data: a YAML or JSON file of what its v1 command line takes.
 *
 * Source: xtuner/v1/train/arguments/arguments.py, xtuner/v1/config/optim.py. */
#include "core/system/file.h"
#include "recipes/recipe_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PYTHON    "Python files are not run: write XTuner's training arguments (load_from, dataset, lr, ...)"
#define PRECISION "XTuner trains in bf16" /* whatever DeepSpeed's file says */
#define RESUMES   "a run that goes on takes all that its checkpoint holds: set it to true, or begin again with load_from"
#define SCHEDULE  "strata.lr_scheduler."
#define SAVES     "no training argument of XTuner's: --save DIR --save-every N says it here"
#define PACKS     "conversations are packed whole, the longest first"

static const struct st_choice function_choices[] = {
    {"openai", 0, ST_VERDICT_HONOURED},
    {"ftdp", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice optim_choices[] = {
    {"AdamW", 0, ST_VERDICT_HONOURED},
    {"Muon", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice scheduler_choices[] = {
    {"cosine", 0, ST_VERDICT_HONOURED},
    {"linear", 0, ST_VERDICT_HONOURED},
    {"constant", 0, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice dtype_choices[] = {
    {"bfloat16", 0, ST_VERDICT_HONOURED}, {"torch.bfloat16", 0, ST_VERDICT_HONOURED},
    {"float16", 0, ST_VERDICT_REJECTED},  {"torch.float16", 0, ST_VERDICT_REJECTED},
    {"float32", 0, ST_VERDICT_REJECTED},  {"torch.float32", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

/* clang-format off */
static const struct st_field argument_rows[] = {
    {.path = "load_from", .type = ST_FIELD_TEXT, .to = "--model", .help = "a Hugging Face directory"},
    ST_RECIPE_OFF("model_cfg", ANY, NULL, "config.json of the model's directory says what it is"),
    {.path = "tokenizer_path", .type = ST_FIELD_TEXT, .to = "--tokenizer", .help = "a directory with a tokenizer; left out: the model's"},
    {.path = "chat_template", .type = ST_FIELD_TEXT, .help = "conversations are written by the model's own chat template"},
    {.path = "tokenize_fn", .type = ST_FIELD_CHOICE, .choices = function_choices, .reason = "rows hold \"messages\": openai", .help = "rows hold \"messages\""},
    {.path = "dataset", .type = ST_FIELD_TEXT, .help = "--data: a .jsonl file"},
    {.path = "dataloader_cfg", .type = ST_FIELD_OBJECT, .help = "members are taken at the top, too, as on the command line"},
    {.path = "dataloader_cfg.pack_max_length", .aliases = "pack_max_length", .type = ST_FIELD_INT, .fallback = "4096", .to = "--seq-len", .min = 2, .max = 4294967295.0,
     .help = "tokens of a sequence"},
    {.path = "dataloader_cfg.pack_level", .aliases = "pack_level", .type = ST_FIELD_ANY, .plain = "soft", .verdict = ST_VERDICT_REJECTED, .reason = PACKS},
    {.path = "max_length", .type = ST_FIELD_INT, .min = 1, .max = 4294967295.0,
     .help = "refused unless it is pack_max_length: a conversation is cut at the sequence's length"},
    {.path = "dataloader_cfg.pack_to_max_length", .aliases = "pack_to_max_length", .type = ST_FIELD_BOOL, .plain = "true", .verdict = ST_VERDICT_REJECTED, .reason = PACKS},
    ST_RECIPE_IDLE("dataloader_cfg.global_pack", "global_pack dataloader_cfg.group_by_length group_by_length dataloader_cfg.sampler_type sampler_type", ANY, RESULTS,
                   "seed determines the order of packs, which is not XTuner's"),
    ST_RECIPE_NOTICE("dataloader_cfg.pack_chunk_size", "pack_chunk_size dataloader_cfg.pack_workers pack_workers "
                     "dataloader_cfg.pack_extra_buffer_size pack_extra_buffer_size dataloader_cfg.num_workers num_workers "
                     "dataloader_cfg.collator collator dataloader_cfg.pad_token_id pad_token_id dataloader_cfg.tokenizer_hash tokenizer_hash "
                     "dataloader_cfg.round_up round_up", ANY, PACKS),
    ST_RECIPE_NOTICE("cache_dir", "cache_tag", ANY, "tokens are kept beside the output"),
    {.path = "lr", .type = ST_FIELD_REAL, .fallback = "6e-5", .to = "optimizer.params.lr", .min = 0, .max = 1e3, .help = "learning rate"},
    {.path = "optim", .type = ST_FIELD_CHOICE, .choices = optim_choices, .fallback = "\"AdamW\"", .reason = "this version has AdamW",
     .help = "AdamW, as XTuner sets it: betas 0.9 and 0.95, weight decay 0.01"},
    {.path = "scheduler_type", .type = ST_FIELD_CHOICE, .choices = scheduler_choices, .fallback = "\"cosine\"",
     .help = "strata.lr_scheduler.type; constant is constant_with_warmup, as there"},
    {.path = "lr_min", .type = ST_FIELD_REAL, .fallback = "1e-6", .min = 0, .max = 1e3,
     .help = "where cosine ends: strata.lr_scheduler.type cosine_with_min_lr with its min_lr; linear ends at 0 here"},
    {.path = "warmup_ratio", .type = ST_FIELD_REAL, .fallback = "0.03", .min = 0, .max = 9007199254740992.0,
     .help = "strata.lr_scheduler.warmup_ratio: warm-up as a part of the run, rounded up (there: down); 1 and more: a number of steps"},
    ST_RECIPE_NOTICE("loss_config", NULL, ANY, "the head is always computed slice by slice"),
    {.path = "total_step", .type = ST_FIELD_INT, .min = 1, .max = 9007199254740992.0, .to = "--max-steps", .help = "steps of the run"},
    {.path = "epoch_num", .type = ST_FIELD_INT, .min = 1, .max = 1e6, .help = "--epochs; left out, as total_step is: 1"},
    {.path = "work_dir", .type = ST_FIELD_TEXT, .fallback = "\"work_dir\"", .to = "--out", .help = "the trained model"},
    {.path = "global_batch_size", .type = ST_FIELD_INT, .min = 1, .max = 4294967295.0, .to = "train_batch_size", .help = "sequences of a step; left out: one of each rank"},
    {.path = "accumulative_counts", .type = ST_FIELD_INT, .min = 1, .max = STRATA_GRAD_ACCUM_MAX, .help = "gradient_accumulation_steps, over DeepSpeed's file"},
    {.path = "train_dataloader", .type = ST_FIELD_OBJECT, .help = "its batch_size"},
    {.path = "train_dataloader.batch_size", .aliases = "batch_size", .type = ST_FIELD_INT, .min = 1, .max = 4294967295.0,
     .help = "train_micro_batch_size_per_gpu, over DeepSpeed's file"},
    {.path = "clip_grad", .type = ST_FIELD_OBJECT, .help = "its max_norm"},
    {.path = "clip_grad.max_norm", .aliases = "max_norm", .type = ST_FIELD_REAL, .min = 0, .max = 1e30,
     .help = "gradient_clipping, over DeepSpeed's file; left out: what that says, else 1"},
    ST_RECIPE_OFF("load_optimizer_states", BOOL, "true", RESUMES),
    ST_RECIPE_OFF("load_optimizer_args", BOOL, "true", RESUMES),
    ST_RECIPE_OFF("load_dataset", BOOL, "true", RESUMES),
    ST_RECIPE_OFF("load_scheduler", BOOL, "true", RESUMES),
    ST_RECIPE_NOTICE("load_model", "async_checkpoint", ANY, "checkpoints hold all that a run goes on with: --save DIR, --resume DIR"),
    ST_RECIPE_OFF("seed", INT, NULL, "no training argument of XTuner's: --seed N says it here"),
    ST_RECIPE_OFF("save_interval", INT, NULL, SAVES),
    ST_RECIPE_OFF("checkpoint_interval", INT, "-1", SAVES),
    ST_RECIPE_OFF("float8_config", ANY, NULL, "this version has bf16 and fp16"),
};

#define FSDP "fsdp_config."
static const struct st_field fsdp_rows[] = {
    {.path = "fsdp_config", .type = ST_FIELD_OBJECT, .help = "which part of the model a rank keeps"},
    {.path = FSDP "reshard_after_forward", .type = ST_FIELD_BOOL, .fallback = "true", .help = "zero_optimization.stage: true 3, false 2"},
    {.path = FSDP "cpu_offload", .type = ST_FIELD_BOOL, .help = "true: offload_optimizer and offload_param to cpu; false: the plan decides"},
    {.path = FSDP "recompute_ratio", .type = ST_FIELD_REAL, .min = 0, .max = 1, .help = "1: strata.activations recomputed; below, the plan decides"},
    ST_RECIPE_OFF(FSDP "tp_size", INT, "1", "matrices are not split over ranks in this version: set it to 1"),
    ST_RECIPE_OFF(FSDP "ep_size", INT, "1", "experts are not split over ranks in this version: set it to 1"),
    {.path = FSDP "param_dtype", .type = ST_FIELD_CHOICE, .choices = dtype_choices, .reason = "XTuner's files train in bf16", .help = "bfloat16"},
    ST_RECIPE_OFF(FSDP "requires_grad", BOOL, "true", "strata.freeze says what is not trained"),
    ST_RECIPE_OFF(FSDP "fp32_lm_head", BOOL, "false", "the head is computed in the run's dtype, its loss in fp32"),
    ST_RECIPE_SPEED(FSDP "hsdp_sharding_size", NULL, ANY, "parts are split over all ranks"),
    ST_RECIPE_IDLE(FSDP "reduce_dtype", NULL, ANY, RESULTS, "communication_data_type says how gradients are summed"),
    ST_RECIPE_NOTICE(FSDP "vision_recompute_ratio", FSDP "checkpoint_preserve_rng_state " FSDP "mtp_checkpoint_use_reentrant " FSDP "torch_compile "
                     FSDP "mesh_prefix", ANY, "strata has its own kernels, and the plan decides what is recomputed"),
};
/* clang-format on */

static const struct st_section sections[] = {
    {"XTuner: training arguments", false, ST_CHANGES_RESULTS, ST_ROWS(argument_rows)},
    {"XTuner: fsdp_config", false, ST_CHANGES_RESULTS, ST_ROWS(fsdp_rows)},
    {NULL, false, ST_CHANGES_INHERITED, NULL, 0},
};

static void resolve_fsdp(struct strata_recipe *r)
{
    if (!st_recipe_given(r, "fsdp_config"))
        return;
    st_recipe_put(r, FSDP "reshard_after_forward", "zero_optimization.stage",
                  st_recipe_on(r, FSDP "reshard_after_forward") ? "3" : "2");
    if (st_recipe_on(r, FSDP "cpu_offload")) {
        st_recipe_put(r, FSDP "cpu_offload", "zero_optimization.offload_optimizer.device", "\"cpu\"");
        st_recipe_put(r, FSDP "cpu_offload", "zero_optimization.offload_param.device", "\"cpu\"");
    }
    if (st_recipe_number(r, FSDP "recompute_ratio") == 1)
        st_recipe_put(r, FSDP "recompute_ratio", "strata.activations", "\"recomputed\"");
}

/* Each schedule there begins with the warm-up, and cosine and linear end at lr_min. */
static void resolve_schedule(struct strata_recipe *r)
{
    const char *schedule = st_recipe_text(r, "scheduler_type");
    const double warmup = st_recipe_number(r, "warmup_ratio"), least = st_recipe_number(r, "lr_min");
    const bool cosine = strcmp(schedule, "cosine") == 0, constant = strcmp(schedule, "constant") == 0;

    if (warmup < 1)
        st_recipe_put(r, "warmup_ratio", SCHEDULE "warmup_ratio", "%s", st_recipe_real(r, warmup));
    else
        st_recipe_put(r, "warmup_ratio", SCHEDULE "warmup_steps", "%.0f", floor(warmup));
    if (schedule[0] == '\0') /* it is refused */
        return;
    st_recipe_put(r, "scheduler_type", SCHEDULE "type", "\"%s%s\"", schedule,
                  constant              ? "_with_warmup"
                  : cosine && least > 0 ? "_with_min_lr"
                                        : "");
    if (cosine && least > 0)
        st_recipe_put(r, "lr_min", SCHEDULE "min_lr", "%s", st_recipe_real(r, least));
    else if (constant && st_recipe_given(r, "lr_min"))
        st_recipe_idle(r, "lr_min", "not used: scheduler_type constant ends nowhere, as there");
    else if (!cosine && !constant && least > 0)
        st_recipe_announce(r, st_recipe_given(r, "lr_min") ? "lr_min" : "scheduler_type",
                           "linear ends at 0 here, and at lr_min (1e-6 where it is left out) there");
}

static void resolve(struct strata_recipe *r)
{
    static const char *const counts[][2] = {{"accumulative_counts", "gradient_accumulation_steps"},
                                            {"train_dataloader.batch_size", "train_micro_batch_size_per_gpu"}};
    const char *dataset = st_recipe_text(r, "dataset");

    if (st_recipe_given(r, "max_length") &&
        st_recipe_number(r, "max_length") != st_recipe_number(r, "dataloader_cfg.pack_max_length"))
        st_recipe_reject(r, "max_length", "a conversation is cut at the sequence's length: make it equal to pack_max_length");
    if (st_path_ends(dataset, ".py"))
        st_recipe_reject(r, "dataset", PYTHON);
    else if (dataset[0] != '\0' && !st_path_ends(dataset, ".jsonl"))
        st_recipe_reject(r, "dataset", "must be a file of rows (.jsonl): give several with --data");
    else if (dataset[0] != '\0')
        st_recipe_put(r, "dataset", "--data", "%s", st_recipe_beside(r, dataset));
    else if (st_recipe_given(r, "dataset"))
        st_recipe_reject(r, "dataset", ST_RECIPE_EMPTY);
    if (st_recipe_given(r, "chat_template"))
        st_recipe_announce(r, "chat_template",
                           "conversations are written by the model's own chat template; --template names another");
    if (!st_recipe_given(r, "total_step"))
        st_recipe_put(r, "epoch_num", "--epochs", "%.0f", st_recipe_given(r, "epoch_num") ? st_recipe_number(r, "epoch_num") : 1);
    else if (st_recipe_given(r, "epoch_num"))
        st_recipe_reject(r, "epoch_num", "excludes total_step, as there");
    resolve_fsdp(r);
    st_recipe_put(r, "optim", "optimizer.type", "\"AdamW\"");
    st_recipe_put(r, "optim", "optimizer.params.betas", "[0.9,0.95]");
    st_recipe_put(r, "optim", "optimizer.params.weight_decay", "0.01");
    if (st_recipe_given(r, "clip_grad.max_norm"))
        st_recipe_put_over(r, "clip_grad.max_norm", "gradient_clipping", "%s",
                           st_recipe_real(r, st_recipe_number(r, "clip_grad.max_norm")));
    else
        st_recipe_put_unless(r, "clip_grad.max_norm", "gradient_clipping", "gradient_clipping", "1.0");
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        if (st_recipe_given(r, counts[i][0]))
            st_recipe_put_over(r, counts[i][0], counts[i][1], "%.0f", st_recipe_number(r, counts[i][0]));
    st_recipe_put_over(r, PRECISION, "fp16.enabled", "false");
    st_recipe_put_over(r, PRECISION, "bf16.enabled", "true");
    resolve_schedule(r);
}

static const char *const marks[] = {"load_from", "tokenize_fn", "epoch_num", "total_step", "accumulative_counts", NULL};

const struct st_recipe_trainer st_recipe_xtuner = {
    .name = "XTuner",
    .sections = sections,
    .marks = marks,
    .resolve = resolve,
};
