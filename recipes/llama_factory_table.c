/* recipes/llama_factory_table.c - the keys of LLaMA-Factory's YAML: its own, and those of transformers' Seq2SeqTrainingArguments
 * with what trainer_table.c has.
 *
 * Source: src/llamafactory/hparams of LLaMA-Factory 0.9.6.  A key without a row is an error, so that a new one is not passed
 * over. */
#include "recipes/llama_factory_internal.h"

#include "recipes/trainer_internal.h"

#define INFERENCE  "of inference: strata generate --help"
#define GENERATION "of generation: strata generate --help"
#define PICTURES   "only text is trained here"
#define BACKENDS   "another backend: remove the key"

static const struct st_choice stage_choices[] = {
    {"sft", 0, ST_VERDICT_HONOURED}, {"pt", 0, ST_VERDICT_HONOURED},  {"rm", 0, ST_VERDICT_REJECTED},
    {"ppo", 0, ST_VERDICT_REJECTED}, {"dpo", 0, ST_VERDICT_REJECTED}, {"kto", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice type_choices[] = {
    {"lora", 0, ST_VERDICT_HONOURED}, {"full", 0, ST_VERDICT_HONOURED}, {"freeze", 0, ST_VERDICT_REJECTED},
    {"oft", 0, ST_VERDICT_REJECTED},  {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice nf4_choices[] = {
    {"nf4", 0, ST_VERDICT_HONOURED},
    {"fp4", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice method_choices[] = {
    {"bnb", 0, ST_VERDICT_HONOURED},  {"bitsandbytes", 0, ST_VERDICT_HONOURED}, {"hqq", 0, ST_VERDICT_REJECTED},
    {"eetq", 0, ST_VERDICT_REJECTED}, {"gptq", 0, ST_VERDICT_REJECTED},         {"awq", 0, ST_VERDICT_REJECTED},
    {"aqlm", 0, ST_VERDICT_REJECTED}, {NULL, 0, ST_VERDICT_HONOURED},
};

/* clang-format off */
static const struct st_field model_rows[] = {
    {.path = "adapter_name_or_path", .type = ST_FIELD_TEXT, .help = "--adapter: an adapter in PEFT's format to go on with; several separated by commas are not merged here"},
    ST_RECIPE_NOTICE("hf_hub_token", "ms_hub_token om_hub_token", SECRET, NO_HUB),
    ST_RECIPE_NOTICE("cache_dir", NULL, ANY, NO_HUB),
    ST_RECIPE_OFF("adapter_folder", ANY, NULL, "name the folder itself in adapter_name_or_path"),
    ST_RECIPE_NOTICE("use_fast_tokenizer", NULL, ANY, "ids are those of the tokenizer's file"),
    ST_RECIPE_OFF("resize_vocab", BOOL, "false", "the vocabulary is that of the model's directory: save the larger model first"),
    ST_RECIPE_OFF("split_special_tokens", BOOL, "false", "special tokens in a text are tokens here"),
    ST_RECIPE_OFF("add_tokens", ANY, NULL, "tokens are not added here: save the larger tokenizer and model first"),
    ST_RECIPE_OFF("add_special_tokens", ANY, NULL, "tokens are not added here: save the larger tokenizer and model first"),
    ST_RECIPE_OFF("new_special_tokens_config", ANY, NULL, "tokens are not added here: save the larger tokenizer and model first"),
    ST_RECIPE_NOTICE("init_special_tokens", NULL, ANY, "of tokens that are added"),
    ST_RECIPE_SPEED("low_cpu_mem_usage", NULL, ANY, "weights are always read straight to their tier"),
    ST_RECIPE_OFF("rope_scaling", ANY, NULL, "config.json says how positions are scaled: set rope_scaling (rope_parameters) there"),
    ST_RECIPE_SPEED("flash_attn", "use_kv_cache use_v1_kernels enable_liger_kernel use_unsloth", ANY, KERNELS),
    ST_RECIPE_OFF("shift_attn", BOOL, "false", "shifted sparse attention is not in this version"),
    ST_RECIPE_OFF("mixture_of_depths", ANY, NULL, "mixture of depths is not in this version"),
    {.path = "moe_aux_loss_coef", .type = ST_FIELD_REAL, .min = 0, .max = 1000, .help = "strata.router_aux_loss_coef; 0, or left out: as config.json says, as there"},
    ST_RECIPE_SPEED("disable_gradient_checkpointing", "use_unsloth_gc use_reentrant_gc", ANY, PLANNED),
    ST_RECIPE_NOTICE("upcast_layernorm", "upcast_lmhead_output", ANY, "norms and the loss are always computed in fp32"),
    ST_RECIPE_OFF("train_from_scratch", BOOL, "false", "to begin with random weights name a preset as the model"),
    ST_RECIPE_NOTICE("infer_backend", "infer_dtype offload_folder print_param_status quantization_device_map", ANY, INFERENCE),
    ST_RECIPE_NOTICE("image_max_pixels", "image_min_pixels image_do_pan_and_scan crop_to_patches video_max_pixels video_min_pixels "
                     "video_fps video_maxlen use_audio_in_video audio_sampling_rate media_dir freeze_vision_tower "
                     "freeze_multi_modal_projector", ANY,
                     PICTURES),
    ST_RECIPE_OFF("freeze_language_model", BOOL, "false", "only language models are trained here"),
    ST_RECIPE_NOTICE("export_dir", "export_size export_device export_quantization_bit export_quantization_dataset "
                     "export_quantization_nsamples export_quantization_maxlen export_legacy_format export_hub_model_id", ANY,
                     "of exports: strata export --help"),
    ST_RECIPE_NOTICE("vllm_maxlen", "vllm_gpu_util vllm_enforce_eager vllm_max_lora_rank vllm_config sglang_maxlen "
                     "sglang_mem_fraction sglang_tp_size sglang_config sglang_lora_backend", ANY,
                     INFERENCE),
    ST_RECIPE_NOTICE("do_sample", "temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty "
                     "skip_special_tokens", ANY,
                     GENERATION),
    ST_RECIPE_SPEED("use_kt", NULL, BOOL, "KTransformers is another engine: strata plans by itself where experts are, and trains them as it does without"),
    ST_RECIPE_NOTICE("kt_cpu_activation", "kt_weight_path kt_non_expert_weight_path kt_expert_checkpoint_path kt_use_lora_experts "
                     "kt_lora_expert_num kt_lora_expert_intermediate_size kt_config", ANY,
                     "of KTransformers"),
};

static const struct st_field method_rows[] = {
    {.path = "stage", .type = ST_FIELD_CHOICE, .choices = stage_choices, .fallback = "\"sft\"", .reason = "this version trains texts (pt) and conversations (sft)", .help = "sft: of conversations the answers are trained; pt: texts"},
    {.path = "do_train", .type = ST_FIELD_BOOL, .fallback = "true", .help = "true; left out it is true here, as the command is train"},
    {.path = "do_eval", .type = ST_FIELD_BOOL, .help = "rows that are held out are always evaluated; without do_train there is nothing to train, which is refused"},
    {.path = "do_predict", .type = ST_FIELD_BOOL, .help = "strata eval and generate do it; without do_train it is refused"},
    {.path = "finetuning_type", .type = ST_FIELD_CHOICE, .choices = type_choices, .fallback = "\"lora\"", .reason = "full and lora are in this version; strata.freeze (--set 'strata.freeze=[...]') says by patterns which tensors are frozen", .help = "full, or an adapter (strata.lora)"},
    {.path = "lora_rank", .type = ST_FIELD_INT, .min = 1, .max = 8192, .fallback = "8", .help = "r of the adapter"},
    {.path = "lora_alpha", .type = ST_FIELD_REAL, .min = 0, .max = 1e6, .help = "lora_alpha; left out: twice the rank"},
    {.path = "lora_dropout", .type = ST_FIELD_REAL, .min = 0, .max = 1, .fallback = "0", .help = "dropout of the adapters' inputs, in training"},
    {.path = "lora_target", .type = ST_FIELD_TEXT, .fallback = "\"all\"", .help = "names of modules separated by commas; all: every linear layer but the head"},
    {.path = "additional_target", .type = ST_FIELD_TEXT, .help = "modules that are trained whole, separated by commas (modules_to_save)"},
    {.path = "use_rslora", .type = ST_FIELD_BOOL, .fallback = "false", .help = "alpha / sqrt r instead of alpha / r"},
    ST_RECIPE_OFF("use_dora", BOOL, "false", "DoRA is not in this version"),
    ST_RECIPE_OFF("pissa_init", BOOL, "false", "PiSSA is not in this version"),
    ST_RECIPE_NOTICE("pissa_iter", "pissa_convert", ANY, "of pissa_init"),
    ST_RECIPE_OFF("create_new_adapter", BOOL, "false", "merge the first adapter (strata export --merge) and begin with the result"),
    ST_RECIPE_OFF("loraplus_lr_ratio", ANY, NULL, "one learning rate for both matrices: remove it"),
    ST_RECIPE_NOTICE("loraplus_lr_embedding", NULL, ANY, "of loraplus_lr_ratio"),
    {.path = "quantization_bit", .type = ST_FIELD_INT, .min = 2, .max = 8, .help = "4: linear weights in nf4 (strata.quantization); other widths are refused"},
    {.path = "quantization_type", .type = ST_FIELD_CHOICE, .choices = nf4_choices, .fallback = "\"nf4\"", .reason = "nf4 is the one format of 4 bits", .help = "of quantization_bit 4"},
    {.path = "double_quantization", .type = ST_FIELD_BOOL, .fallback = "true", .help = "the scales quantised, too: nf4-double"},
    {.path = "quantization_method", .type = ST_FIELD_CHOICE, .choices = method_choices, .fallback = "\"bnb\"", .reason = "weights are quantised at load, to bitsandbytes' nf4: bnb", .help = "bitsandbytes' formats"},
    ST_RECIPE_NOTICE("freeze_trainable_layers", "freeze_trainable_modules freeze_extra_modules", ANY, "of finetuning_type freeze, which strata.freeze replaces"),
    ST_RECIPE_OFF("use_llama_pro", BOOL, "false", "block expansion is not in this version: strata.freeze chooses what is trained"),
    ST_RECIPE_NOTICE("module_dropout", "oft_rank oft_block_size oft_target", ANY, "of finetuning_type oft"),
    ST_RECIPE_OFF("use_galore", BOOL, "false", OPTIMIZERS),
    ST_RECIPE_OFF("use_apollo", BOOL, "false", OPTIMIZERS),
    ST_RECIPE_OFF("use_badam", BOOL, "false", OPTIMIZERS),
    ST_RECIPE_OFF("use_adam_mini", BOOL, "false", OPTIMIZERS),
    ST_RECIPE_OFF("use_muon", BOOL, "false", OPTIMIZERS),
    ST_RECIPE_NOTICE("galore_target", "galore_rank galore_update_interval galore_scale galore_proj_type galore_layerwise apollo_target "
                     "apollo_rank apollo_update_interval apollo_scale apollo_proj apollo_proj_type apollo_scale_type "
                     "apollo_layerwise apollo_scale_front badam_mode badam_start_block badam_switch_mode "
                     "badam_switch_interval badam_update_ratio badam_mask_mode badam_verbose", ANY,
                     "of an optimizer that is not in this version"),
    ST_RECIPE_NOTICE("pref_beta", "pref_ftx pref_bco_weight pref_loss dpo_label_smoothing kto_chosen_weight kto_rejected_weight "
                     "simpo_gamma ppo_buffer_size ppo_epochs ppo_score_norm ppo_target ppo_whiten_rewards ref_model "
                     "ref_model_adapters ref_model_quantization_bit reward_model reward_model_adapters "
                     "reward_model_quantization_bit reward_model_type ld_alpha", ANY,
                     "of stages that are not in this version (rm, ppo, dpo, kto)"),
    ST_RECIPE_OFF("use_dft_loss", BOOL, "false", "the loss is cross-entropy here"),
    ST_RECIPE_OFF("use_asft_loss", BOOL, "false", "the loss is cross-entropy here"),
    ST_RECIPE_OFF("use_eaft_loss", BOOL, "false", "the loss is cross-entropy here"),
    ST_RECIPE_NOTICE("asft_alpha", "eaft_alpha", ANY, "of a loss that is not in this version"),
    ST_RECIPE_OFF("use_mca", BOOL, "false", BACKENDS),
    ST_RECIPE_OFF("use_megatron_bridge", BOOL, "false", BACKENDS),
    ST_RECIPE_OFF("use_hyper_parallel", BOOL, "false", BACKENDS),
    ST_RECIPE_OFF("fp8", BOOL, "false", BACKENDS),
    ST_RECIPE_NOTICE("hyper_parallel_args", "hyper_parallel_cp_size fp8_backend fp8_enable_fsdp_float8_all_gather", ANY, "of a backend that is not in this version"),
};

static const struct st_field data_rows[] = {
    {.path = "dataset", .type = ST_FIELD_TEXT, .help = "sets of dataset_info.json, separated by commas (--dataset)"},
    {.path = "dataset_dir", .type = ST_FIELD_TEXT, .fallback = "\"data\"", .help = "directory with dataset_info.json (--dataset-info), from the working directory"},
    {.path = "template", .type = ST_FIELD_TEXT, .help = "--template: chatml, llama2, llama3, mistral, qwen, gemma, alpaca; of any other name, and left out, the model's own chat template"},
    {.path = "cutoff_len", .type = ST_FIELD_INT, .min = 2, .max = 4294967295.0, .fallback = "2048", .to = "--cutoff-len", .help = "tokens of a sequence; at most the model's context"},
    {.path = "packing", .type = ST_FIELD_BOOL, .help = "left out: true for pt, false for sft; --layout"},
    {.path = "neat_packing", .type = ST_FIELD_BOOL, .fallback = "false", .help = "documents share a sequence and do not see each other (--layout packed)"},
    {.path = "train_on_prompt", .type = ST_FIELD_BOOL, .fallback = "false", .to = "--train-on-prompt", .help = "the whole conversation is trained"},
    {.path = "mask_history", .type = ST_FIELD_BOOL, .fallback = "false", .to = "--mask-history", .help = "only the last answer of each conversation is trained"},
    {.path = "max_samples", .type = ST_FIELD_INT, .min = 1, .max = COUNT_MAX, .to = "--max-samples", .help = "the first rows of each set"},
    {.path = "val_size", .type = ST_FIELD_REAL, .min = 0, .max = COUNT_MAX, .fallback = "0", .help = "rows held out and evaluated (--val-size): a part below 1, or a number; as many as there, but not the same ones"},
    ST_RECIPE_OFF("streaming", BOOL, "false", "rows are read once, before training: remove it"),
    ST_RECIPE_OFF("mix_strategy", TEXT, "concat", "sets follow each other and are shuffled together: concat"),
    ST_RECIPE_OFF("interleave_probs", ANY, NULL, "sets follow each other and are shuffled together"),
    ST_RECIPE_SPEED("buffer_size", "overwrite_cache preprocessing_batch_size preprocessing_num_workers "
                     "data_shared_file_system", ANY,
                     PIPELINE),
    {.path = "tokenized_path", .type = ST_FIELD_TEXT, .help = "refused unless empty: there it makes tokens and stops, or reads them; strata tokens makes token files"},
    {.path = "eval_dataset", .type = ST_FIELD_TEXT, .help = "sets of dataset_info.json that are evaluated (--eval-dataset), together; not beside val_size, as there"},
    ST_RECIPE_ASKED("eval_on_each_dataset", NULL, ANY, "sets of eval_dataset are evaluated together"),
    ST_RECIPE_NOTICE("eval_num_beams", NULL, ANY, GENERATION),
    ST_RECIPE_OFF("tool_format", ANY, NULL, "the chat template says how tools and calls of them are written: remove it, or give --template a file"),
    ST_RECIPE_OFF("ignore_pad_token_for_loss", BOOL, "true", "padding is never trained"),
    ST_RECIPE_OFF("default_system", ANY, NULL, "the template says what stands in for a missing system prompt: give --template a file"),
    {.path = "enable_thinking", .type = ST_FIELD_BOOL, .fallback = "true", .help = "false: the template is told so (--chat-template-kwargs), and the empty block that it writes for thoughts is not trained"},
    ST_RECIPE_OFF("preserve_thinking", BOOL, "false", "the chat template says what becomes of thoughts: set it to false, or give --template a file"),
};

static const struct st_field output_rows[] = {
    ST_RECIPE_ASKED("plot_loss", "use_swanlab enable_torch_profiler", ANY, METRICS),
    ST_RECIPE_NOTICE("include_effective_tokens_per_second", "swanlab_project swanlab_workspace swanlab_run_name swanlab_mode swanlab_logdir "
                     "swanlab_lark_webhook_url profiler_output_dir profiler_wait_steps profiler_warmup_steps "
                     "profiler_active_steps profiler_repeat profiler_record_shapes profiler_profile_memory "
                     "profiler_with_stack profile_modules", ANY,
                     METRICS),
    ST_RECIPE_NOTICE("swanlab_api_key", "swanlab_lark_secret", SECRET, NO_HUB),
    ST_RECIPE_OFF("sortish_sampler", BOOL, "false", SHUFFLED ": set it to false"),
    ST_RECIPE_ASKED("predict_with_generate", "compute_accuracy", ANY, EVALUATION),
    ST_RECIPE_NOTICE("generation_max_length", "generation_num_beams generation_config", ANY, EVALUATION),
    {.path = "early_stopping_steps", .type = ST_FIELD_INT, .min = 1, .max = COUNT_MAX, .to = "--early-stop", .help = "evaluations in a row without a lower loss, after which the run ends"},
};

static const struct st_field train_rows[] = {
    {.path = "learning_rate", .type = ST_FIELD_REAL, .min = 0, .max = 1e3, .fallback = "5e-5", .to = "optimizer.params.lr", .help = "learning rate"},
    {.path = "bf16", .type = ST_FIELD_BOOL, .fallback = "false", .help = "bf16.enabled"},
    {.path = "pure_bf16", .type = ST_FIELD_BOOL, .fallback = "false", .help = "bf16.enabled; masters stay exact"},
    {.path = "disable_shuffling", .type = ST_FIELD_BOOL, .fallback = "false", .to = "--no-shuffle", .help = "sequences come as the sets have them"},
    ST_RECIPE_NOTICE("ray_num_workers", "ray_init_kwargs ray_scope", ANY, LAUNCH),
};
/* clang-format on */

const struct st_section st_llama_factory_sections[] = {
    {"LLaMA-Factory: model", false, ST_CHANGES_RESULTS, ST_ROWS(model_rows)},
    {"LLaMA-Factory: method", false, ST_CHANGES_RESULTS, ST_ROWS(method_rows)},
    {"LLaMA-Factory: data", false, ST_CHANGES_RESULTS, ST_ROWS(data_rows)},
    {"LLaMA-Factory: output", false, ST_CHANGES_NEITHER, ST_ROWS(output_rows)},
    {"LLaMA-Factory: training", false, ST_CHANGES_RESULTS, ST_ROWS(train_rows)},
    ST_TRAINER_SECTIONS,
    {NULL, false, ST_CHANGES_INHERITED, NULL, 0},
};
