/* cli/options/args_table.c - the option table, and look-ups in it: names, the nearest name, and --help. */
#include "cli/options/args_table.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/word.h"
#include "strata/config.h"
#include "strata/generate.h"
#include "strata/recipe.h"

#include <float.h>
#include <stdio.h>
#include <string.h>

#define HELP_COLUMN 28

#define BENCHES     (CLI_CMD_BENCH | CLI_CMD_BENCH_STEP | CLI_CMD_BENCH_IO)
#define AT(member)  offsetof(struct cli_args, member)
#define WHOLE_MAX   9007199254740992.0 /* 2^53 */
#define U32_LARGEST 4294967295.0
#define RANKS_MAX   1024.0 /* as strata/comm.h says */

/* clang-format off */
/* Begins a group of the help: the rows up to the next one. */
#define HEADING(title) {{NULL}, 0, VALUE_FLAG, NO_OFFSET, NULL, 0, 0, NULL, title}
/* Below an option's row: what it is for these commands, where that differs.  value NULL: as in the row. */
#define FOR(commands, value, text) {{NULL}, commands, VALUE_FLAG, NO_OFFSET, NULL, 0, 0, value, text}
/* A name of Hugging Face's Trainer, and of scripts that use it, for what is otherwise here. */
#define ELSEWHERE(instead, ...) {{__VA_ARGS__}, CONFIGURES, VALUE_ELSEWHERE, NO_OFFSET, NULL, 0, 0, instead, NULL}

static const struct cli_option options[] = {
    HEADING("Model and data"),
    {{"model", "model-name-or-path"}, LOADS | CLI_CMD_CHECK | CLI_CMD_INFO | CLI_CMD_BENCH_STEP | CLI_CMD_IMPORT | CLI_CMD_EXPORT, VALUE_TEXT, AT(model),
     "model.model merge.model", 0, 0, "PRESET|DIR", "a preset with seeded random weights (listed below), a Hugging Face directory, or a checkpoint"},
    FOR(CLI_CMD_PLAN, "PRESET|DIR|config.json",
        "a preset (listed below) or the published model that has its shapes (Llama-3.1-8B), a Hugging Face directory, only its config.json, or a checkpoint"),
    FOR(CLI_CMD_IMPORT, "DIR", "the Hugging Face directory that the run began with; its weights are read beside an adapter"),
    FOR(CLI_CMD_EXPORT, "DIR", "with --merge: the Hugging Face directory to add to; default: the one that the checkpoint's run began with"),
    {{"data"}, CLI_CMD_TRAIN | CLI_CMD_EVAL | CLI_CMD_CHECK, VALUE_LIST, AT(data), "strata_data_open_texts() strata_data_open()", 0, 0, "FILE...",
     "token files, as written by strata tokens, or texts (.txt, or - for standard input) and rows of texts or conversations (.json, .jsonl); 'data/*.jsonl', in quotes, is all that match"},
    {{"dataset-info"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN, VALUE_TEXT, AT(dataset_info), "texts.dataset_info", 0, 0, "FILE.json", "LLaMA-Factory's dataset_info.json"},
    {{"dataset"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN, VALUE_LIST, AT(datasets), "texts.datasets", 0, 0, "NAME...", "data sets of that file to read"},
    {{"tokenizer"}, CLI_CMD_TRAIN | CLI_CMD_EVAL | CLI_CMD_CHECK | CLI_CMD_GENERATE | CLI_CMD_TOKENS, VALUE_TEXT, AT(tokenizer), "texts.tokenizer", 0, 0, "DIR|FILE|byte",
     "what makes tokens of texts and rows; default: the model's own, or bytes where it has none; tokens: byte"},
    {{"format"}, CLI_CMD_TOKENS, VALUE_TEXT, AT(format), "tokens.format", 0, 0, "NAME",
     "what the files hold: text, messages, alpaca, sharegpt, prompt-completion; default auto: .json and .jsonl by their columns, others are texts"},
    {{"template"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN | CLI_CMD_EVAL | CLI_CMD_GENERATE, VALUE_TEXT, AT(chat_template), "texts.chat_template chat.chat_template", 0, 0, "NAME|FILE",
     "how conversations are written: a file with a Jinja template, or chatml, llama2, llama3, mistral, qwen, gemma, alpaca; default: the model's own"},
    {{"chat-template-kwargs"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN | CLI_CMD_EVAL | CLI_CMD_GENERATE, VALUE_TEXT, AT(template_kwargs), "texts.chat_template_kwargs", 0, 0, "JSON",
     "of conversations: what else the template is told, as {\"enable_thinking\": false}"},
    {{"date"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN | CLI_CMD_EVAL | CLI_CMD_GENERATE, VALUE_TEXT, AT(date), "texts.date tokens.date", 0, 0, "YYYY-MM-DD",
     "what chat templates take for today; default: today"},
    {{"layout"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN, VALUE_TEXT, AT(layout), "texts.layout tokens.layout", 0, 0, "NAME",
     "concatenated, packed (whole documents share a sequence, with borders) or rows (one each); default: packed for conversations, else concatenated"},
    {{"seq-len", "seq"}, RUNS | CLI_CMD_CHECK | CLI_CMD_INFO | CLI_CMD_BENCH_STEP, VALUE_COUNT, AT(seq_len), "model.seq_len", 1, U32_LARGEST, "N",
     "tokens per sequence; default: the model's context, at most 1024"},
    {{"cutoff-len"}, CLI_CMD_TRAIN | CLI_CMD_PLAN, VALUE_COUNT, AT(cutoff_len), NULL, 2, U32_LARGEST, "N", "instead: N tokens per sequence, or the model's context where that is shorter"},
    {{"seq-len"}, CLI_CMD_TOKENS, VALUE_COUNT, AT(seq_len), NULL, 2, U32_LARGEST, "N", "cut longer documents to N tokens; default: none are cut here"},
    {{"max-samples"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN, VALUE_COUNT, AT(max_samples), "texts.max_samples", 1, WHOLE_MAX, "N", "only the first N rows of each file"},
    {{"train-on-prompt"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN, VALUE_FLAG, AT(train_on_prompt), "texts.train_on_prompt tokens.train_on_prompt", 0, 0, NULL, "train all of a conversation, not only the answers"},
    {{"train-turn-ends"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN, VALUE_FLAG, AT(turn_ends), "texts.turn_ends", 0, 0, NULL,
     "also train the white space that the template writes behind an answer's end token, as LLaMA-Factory does"},
    {{"as-trl"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN, VALUE_FLAG, AT(as_trl), "texts.as_trl", 0, 0, NULL,
     "cut what is too long at its end, and with --train-on-prompt train completions without their prompts, as TRL does"},
    {{"mask-history"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN, VALUE_FLAG, AT(mask_history), "texts.mask_history tokens.mask_history", 0, 0, NULL, "train only the last answer of a conversation"},
    {{"strict"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN | CLI_CMD_EVAL, VALUE_FLAG, AT(strict), "texts.strict", 0, 0, NULL,
     "a row that cannot be read ends the run; default: it is left out, counted and named"},
    {{"no-shuffle"}, CLI_CMD_TRAIN, VALUE_FLAG, AT(no_shuffle), "train.no_shuffle", 0, 0, NULL, "sequences come as the files have them, in every pass; default: each pass in another order"},
    {{"seed"}, CLI_CMD_TRAIN | CLI_CMD_EVAL | CLI_CMD_GENERATE | CLI_CMD_TOKENS, VALUE_COUNT, AT(seed), "model.seed texts.seed resume.data_seed", 0, WHOLE_MAX, "N",
     "of a preset's weights, of new adapters and of the order of the data; default 0"},
    FOR(CLI_CMD_EVAL, NULL, "of a preset's weights; default 0"),
    FOR(CLI_CMD_GENERATE, NULL, "of the tokens drawn and of a preset's weights; default 0"),
    FOR(CLI_CMD_TOKENS, NULL, "of which rows are set aside; default 0"),
    {{"show"}, CLI_CMD_TOKENS, VALUE_COUNT, AT(show), "tokens.show", 1, 1000, "N", "print the first N documents: text, ids, and what is trained"},
    {{"heldout"}, CLI_CMD_TOKENS, VALUE_REAL, AT(heldout), "tokens.heldout", 0, 0.5, "X", "fraction of 16 KiB blocks set aside in FILE.heldout.bin, such as 0.1"},
    HEADING("Prompt and answer"),
    {{"prompt"}, CLI_CMD_GENERATE, VALUE_TEXT, AT(prompt), NULL, 0, 0, "TEXT", "text to continue; with --chat the one message to answer"},
    {{"prompt-file"}, CLI_CMD_GENERATE, VALUE_TEXT, AT(prompt_file), NULL, 0, 0, "FILE", "the same from a file; - reads standard input"},
    {{"prompt-tokens"}, CLI_CMD_GENERATE, VALUE_TEXT, AT(prompt_tokens), NULL, 0, 0, "ID,ID,...", "tokens to continue, for models without a tokenizer; gives tokens"},
    {{"chat"}, CLI_CMD_GENERATE, VALUE_FLAG, AT(chat), NULL, 0, 0, NULL,
     "a conversation: each line of standard input is a message, an empty one ends it; by the model's chat template"},
    {{"system"}, CLI_CMD_GENERATE, VALUE_TEXT, AT(system), NULL, 0, 0, "TEXT", "with --chat: the system message"},
    {{"context"}, CLI_CMD_GENERATE, VALUE_COUNT, AT(context), "model.cache_tokens", 2, U32_LARGEST, "N",
     "with --chat: tokens of the whole conversation; default 4096, or what the model has room for"},
    {{"max-tokens"}, CLI_CMD_GENERATE, VALUE_COUNT, AT(max_tokens), "model.max_tokens", 1, U32_LARGEST, "N", "tokens to generate; default: 128, with --chat as many as there is room for"},
    {{"temperature"}, CLI_CMD_GENERATE, VALUE_REAL, AT(temperature), NULL, 0, STRATA_TEMPERATURE_MOST, "T",
     "0: always the likeliest token; 1: as likely as the model says; more: flatter; default: as the model's files say"},
    {{"top-p"}, CLI_CMD_GENERATE, VALUE_REAL, AT(top_p), NULL, 1e-9, 1, "P",
     "only the likeliest tokens whose probabilities make up this together; default: as the model's files say"},
    {{"top-k"}, CLI_CMD_GENERATE, VALUE_COUNT, AT(top_k), NULL, 1, U32_LARGEST, "K", "only the K likeliest tokens; default: as the model's files say"},
    {{"repetition-penalty"}, CLI_CMD_GENERATE, VALUE_REAL, AT(repetition_penalty), NULL, STRATA_REPETITION_LEAST, STRATA_REPETITION_MOST, "X",
     "makes tokens that are already in the text less likely; 1: no change; default: as the model's files say"},
    HEADING("Steps and rates"),
    {{"max-steps", "steps"}, TRAINS | CLI_CMD_CHECK, VALUE_COUNT, AT(max_steps), "config.max_steps", 1, WHOLE_MAX, "N", "optimizer steps of the run"},
    {{"epochs", "num-train-epochs"}, CLI_CMD_TRAIN, VALUE_REAL, AT(epochs), "config.steps_later", 1e-9, 1e6, "N",
     "instead: passes over the data, such as 3 or 0.5; of each the last step is smaller, as Trainer's is"},
    {{"micro-batch", "per-device-train-batch-size"}, RUNS | CLI_CMD_CHECK | CLI_CMD_IMPORT | CLI_CMD_BENCH_STEP, VALUE_COUNT, NO_OFFSET, "train_micro_batch_size_per_gpu", 1, U32_LARGEST, "N",
     "sequences per forward and backward pass"},
    {{"grad-accum", "gradient-accumulation-steps"}, RUNS | CLI_CMD_CHECK | CLI_CMD_IMPORT | CLI_CMD_BENCH_STEP, VALUE_COUNT, NO_OFFSET, "gradient_accumulation_steps", 1, STRATA_GRAD_ACCUM_MAX, "N",
     "micro-batches per step"},
    {{"lr", "learning-rate"}, TRAINS | CLI_CMD_CHECK, VALUE_REAL, NO_OFFSET, "optimizer.params.lr", 0, DBL_MAX, "X", "learning rate"},
    {{"lr-scheduler", "lr-scheduler-type"}, TRAINS | CLI_CMD_CHECK, VALUE_TEXT, NO_OFFSET, "strata.lr_scheduler.type", 0, 0, "NAME",
     "how the rate changes, by Trainer's formulas: linear, cosine, cosine_with_min_lr, constant_with_warmup or constant, the default"},
    {{"warmup-steps"}, TRAINS | CLI_CMD_CHECK, VALUE_COUNT, NO_OFFSET, "scheduler.params.warmup_num_steps", 0, WHOLE_MAX, "N",
     "steps until the learning rate is reached"},
    {{"warmup-ratio"}, TRAINS | CLI_CMD_CHECK, VALUE_REAL, NO_OFFSET, "strata.lr_scheduler.warmup_ratio", 0, 1, "X",
     "with --lr-scheduler: the warm-up as a part of the run, such as 0.1"},
    {{"weight-decay"}, TRAINS | CLI_CMD_CHECK, VALUE_REAL, NO_OFFSET, "optimizer.params.weight_decay", 0, 1e3, "X", "of weights, not of biases and norms"},
    {{"max-grad-norm"}, TRAINS | CLI_CMD_CHECK, VALUE_REAL, NO_OFFSET, "gradient_clipping", 0, DBL_MAX, "X", "norm that gradients are scaled down to; 0: they are not"},
    {{"bf16"}, TRAINS | CLI_CMD_CHECK, VALUE_FLAG, NO_OFFSET, "bf16.enabled", 0, 0, NULL, "compute in bf16, as without it; masters stay at full precision"},
    {{"fp16"}, TRAINS | CLI_CMD_CHECK, VALUE_FLAG, NO_OFFSET, "fp16.enabled", 0, 0, NULL, "compute in fp16, with a loss scale"},
    {{"steps"}, CLI_CMD_BENCH_STEP, VALUE_COUNT, AT(max_steps), NULL, 1, 1000, "N", "steps measured of each schedule, after two; default 10"},
    HEADING("Adapters"),
    {{"lora"}, TRAINS | CLI_CMD_CHECK | CLI_CMD_BENCH_STEP, VALUE_TEXT, AT(lora), "strata.lora", 0, 0, "FILE.json",
     "train adapters as this adapter_config.json of PEFT's says, in place of strata.lora"},
    {{"adapter"}, TRAINS | CLI_CMD_GENERATE | CLI_CMD_EXPORT, VALUE_TEXT, AT(adapter), "model.adapter", 0, 0, "DIR",
     "go on training the adapter of a directory that PEFT or --out wrote"},
    FOR(CLI_CMD_GENERATE, NULL, "the model with this adapter, of a directory that PEFT or train --out wrote"),
    FOR(CLI_CMD_EXPORT, NULL, "with --merge: a directory with adapter_config.json, in place of a checkpoint"),
    {{"adapter"}, CLI_CMD_EVAL, VALUE_LIST, AT(adapters), NULL, 0, 0, "[NAME=]DIR...",
     "the model with this adapter, of a directory that PEFT or train --out wrote; several: a line for each"},
    {{"merge"}, CLI_CMD_EXPORT, VALUE_FLAG, AT(merge), "strata_adapter_merge()", 0, 0, NULL,
     "add the adapter to the weights that it was trained beside, and write those"},
    HEADING("Evaluation"),
    {{"eval-data"}, CLI_CMD_TRAIN, VALUE_TEXT, AT(eval_data), NULL, 0, 0, "FILE", "held-out token file, text or rows, evaluated at the end"},
    {{"eval-dataset"}, CLI_CMD_TRAIN, VALUE_LIST, AT(eval_datasets), NULL, 0, 0, "NAME...", "instead: data sets of --dataset-info, held out"},
    {{"val-size"}, CLI_CMD_TOKENS | CLI_CMD_TRAIN, VALUE_REAL, AT(val_size), "texts.val_size tokens.val_size", 0, WHOLE_MAX, "X",
     "held out of texts and rows: a part such as 0.1, or from 1 on a number of them; train evaluates them at the end, tokens writes FILE.heldout.bin"},
    {{"eval-every", "eval-steps"}, CLI_CMD_TRAIN, VALUE_COUNT, AT(eval_every), NULL, 1, WHOLE_MAX, "N|epoch", "evaluate every N steps as well; below 1: a part of the run; epoch: at the end of each"},
    {{"early-stop", "early-stopping-patience", "early-stopping-steps"}, CLI_CMD_TRAIN, VALUE_COUNT, AT(early_stop), NULL, 1, WHOLE_MAX, "N",
     "with --eval-every: the run ends after N evaluations in a row without a lower loss"},
    HEADING("Results and checkpoints"),
    {{"out"}, CLI_CMD_TRAIN | CLI_CMD_EXPORT | CLI_CMD_IMPORT | CLI_CMD_TOKENS | CLI_CMD_INFO | CLI_CMD_TUNE, VALUE_TEXT, AT(out), "train.out export.out import.out info.out", 0, 0, "DIR",
     "write the trained model there, as a Hugging Face directory, or the trained adapter, as PEFT's; with --overwrite it may be the one that --model names. Tokens made of texts are kept in DIR.tokens"},
    FOR(CLI_CMD_EXPORT, NULL, "write the model there"),
    FOR(CLI_CMD_IMPORT, NULL, "directory of checkpoints, as --save names one: the checkpoint is made there"),
    FOR(CLI_CMD_TOKENS, "FILE.bin", "token file to write"),
    FOR(CLI_CMD_INFO, "FILE.json", "with --measure: write a machine file"),
    FOR(CLI_CMD_TUNE, "FILE.json", "write the section to a new configuration file"),
    {{"save"}, TRAINS | CLI_CMD_CHECK, VALUE_TEXT, NO_OFFSET, "strata.save", 0, 0, "DIR",
     "save checkpoints there: at the end, when a signal ends the run or SIGUSR1 asks, and every --save-every steps"},
    {{"save-every", "save-steps"}, CLI_CMD_TRAIN | CLI_CMD_CHECK, VALUE_COUNT, NO_OFFSET, "strata.save_every", 0, WHOLE_MAX, "N|epoch",
     "with --save: a checkpoint every N steps; below 1: that part of the run; epoch: at the end of each"},
    {{"keep", "save-total-limit"}, CLI_CMD_TRAIN | CLI_CMD_CHECK, VALUE_COUNT, NO_OFFSET, "strata.keep", 1, STRATA_KEEP_MAX, "N", "with --save: how many checkpoints stay, the newest; default 2"},
    {{"keep-best"}, CLI_CMD_TRAIN | CLI_CMD_CHECK, VALUE_COUNT, NO_OFFSET, "strata.keep_best", 0, STRATA_KEEP_MAX - 1, "N",
     "with --save and --eval-every: the checkpoints of the N lowest evaluation losses stay, too; one is made where there is such a loss"},
    {{"resume"}, CLI_CMD_TRAIN, VALUE_TEXT, AT(resume), "train.resume", 0, 0, "DIR|auto",
     "go on from a checkpoint, or from the newest in a directory; auto: from the newest of --save, or begin"},
    {{"overwrite", "overwrite-output-dir"}, CLI_CMD_TRAIN | CLI_CMD_PLAN | CLI_CMD_EXPORT | CLI_CMD_IMPORT | CLI_CMD_TOKENS | CLI_CMD_INFO | CLI_CMD_TUNE, VALUE_FLAG, AT(overwrite), "export.overwrite engine.overwrite import.overwrite merge.overwrite", 0, 0, NULL,
     "replace files that have the name of an output; without it nothing is ever overwritten"},
    {{"pool"}, CLI_CMD_VERIFY, VALUE_FLAG, AT(pool), NULL, 0, 0, NULL,
     "what runs left in the directory, of checkpoints or of swap files, instead: those of live runs, and what dead ones did not remove"},
    {{"sweep"}, CLI_CMD_VERIFY, VALUE_FLAG, AT(sweep), NULL, 0, 0, NULL, "--pool, and remove what dead runs left"},
    HEADING("Configuration"),
    {{"config", "deepspeed", "deepspeed-config"}, CONFIGURES | CLI_CMD_INFO | CLI_CMD_BENCH_STEP | CLI_CMD_IMPORT, VALUE_TEXT, AT(config_file), NULL, 0, 0, "FILE.json",
     "DeepSpeed configuration (.json or .yaml), or Accelerate's config file; without one: AdamW, bf16, everything on the device"},
    {{"set"}, CONFIGURES | CLI_CMD_IMPORT | CLI_CMD_INFO | CLI_CMD_BENCH_STEP, VALUE_SET, NO_OFFSET, "config.overrides", 0, 0, "PATH=VALUE",
     "any key of the configuration, such as strata.cache=0; may be repeated"},
    {{"allow-unknown"}, CONFIGURES | CLI_CMD_IMPORT | CLI_CMD_INFO | CLI_CMD_BENCH_STEP, VALUE_FLAG, AT(allow_unknown), "config.allow_unknown", 0, 0, NULL,
     "unknown keys of the configuration are notices, not errors"},
    HEADING("Memory and place"),
    {{"device"}, LOADS | CLI_CMD_INFO | CLI_CMD_BENCH | CLI_CMD_BENCH_STEP, VALUE_TEXT, AT(device), "machine.device", 0, 0, "cpu|cuda[:N]",
     "where forward and backward run; default cpu: a GPU is used only if cuda is said"},
    FOR(CLI_CMD_INFO, NULL, "whose workers are shown, and whose rates --measure takes; default cpu"),
    FOR(CLI_CMD_BENCH, NULL, "link: where copies go; default cpu"),
    FOR(CLI_CMD_BENCH_STEP, "cpu|paced|cuda[:N]", "where forward and backward run"),
    {{"device-memory"}, CLI_CMD_BENCH_STEP, VALUE_LIST, AT(budgets), NULL, 0, 0, "SIZE|all",
     "budget of the device; several (16G all) run the configuration's own schedule in turns and are compared with the largest"},
    {{"device-memory"}, CONFIGURES, VALUE_SIZE, NO_OFFSET, "strata.device_memory", 0, 0, "SIZE",
     "budget of the device: 24G and 24GiB are 24 * 2^30 bytes, 24GB 24 * 10^9; default: half of available memory, on cuda what is free there"},
    {{"host-memory"}, CONFIGURES | CLI_CMD_BENCH_STEP, VALUE_SIZE, NO_OFFSET, "strata.host_memory", 0, 0, "SIZE",
     "budget of the host arena; default: 80 % of available memory, less what the device takes"},
    {{"nvme"}, CONFIGURES | CLI_CMD_INFO | CLI_CMD_BENCH_STEP | CLI_CMD_BENCH | CLI_CMD_BENCH_IO | CLI_CMD_TUNE, VALUE_LIST, AT(nvme), "strata.nvme", 0, 0, "DIR",
     "directory for swap files; the configuration decides what goes there"},
    FOR(CLI_CMD_BENCH, NULL, "update: directory for the state; without one it stays in memory"),
    FOR(CLI_CMD_BENCH_IO | CLI_CMD_TUNE, "DIR...", "directories, each on another drive; also accepted without --nvme"),
    {{"folder", "nvme_dir"}, CLI_CMD_BENCH_IO, VALUE_LIST, AT(nvme), NULL, 0, 0, "DIR...", "ds_io's names for --nvme"},
    {{"threads"}, CLI_CMD_BENCH, VALUE_COUNT, AT(threads), NULL, 1, 256, "N", "workers; default: one per usable core"},
    {{"threads"}, CONFIGURES | CLI_CMD_INFO | CLI_CMD_BENCH_STEP, VALUE_COUNT, NO_OFFSET, "strata.threads", 1, 256, "N",
     "workers; default: one per usable core; on cuda one or two fewer"},
    {{"machine"}, CLI_CMD_TRAIN | CLI_CMD_PLAN | CLI_CMD_BENCH_STEP, VALUE_TEXT, AT(machine), "machine.file", 0, 0, "FILE.json",
     "rates and capacities of a machine, as strata info --measure --out FILE writes them; default of train: measured in about two seconds, and kept for an hour"},
    HEADING("Questions to the planner"),
    {{"gpu"}, CLI_CMD_PLAN, VALUE_ONCE, AT(gpu), "machine.gpu", 0, 0, "NAME[:gen3]|list",
     "plan for a machine with this card, such as 4090, or 4090:gen3x8 in a slower slot; list shows those that are known"},
    {{"ram"}, CLI_CMD_PLAN, VALUE_ONCE, AT(ram), "machine.ram", 0, 0, "SIZE[:NxDDRn-SPEED]",
     "with --gpu: its memory, such as 128GB:2xDDR5-5600; default 64GB; two channels of DDR5-5600"},
    {{"drive"}, CLI_CMD_PLAN, VALUE_LIST, AT(drives), "machine.drives", 0, 0, "RATE:SIZE[xN]",
     "with --gpu: a drive, such as 7GB/s:2TB, gen4:2TB or gen4:2TBx4; may be repeated; default: none"},
    {{"tokens"}, CLI_CMD_PLAN, VALUE_TEXT, AT(tokens), NULL, 0, 0, "N", "search for a configuration, and say how long a run of N tokens (1B, 500M) takes; without --config"},
    {{"batch-tokens"}, CLI_CMD_PLAN, VALUE_SIZE, AT(batch_tokens), "plan.batch_tokens", 0, 0, "N", "search, for steps of N tokens; default 128K, which is 131072"},
    {{"write"}, CLI_CMD_PLAN | CLI_CMD_TUNE, VALUE_TEXT, AT(write_config), NULL, 0, 0, "FILE.json",
     "search, and write the configuration that is found: a file for train --config, and for DeepSpeed"},
    FOR(CLI_CMD_TUNE, "CONFIG.json", "put the section into this configuration; the rest of its text stays as it is"),
    {{"measure"}, CLI_CMD_PLAN | CLI_CMD_INFO, VALUE_FLAG, AT(measure), "info.measure plan.measure", 0, 0, NULL, "measure this machine's rates (about two seconds)"},
    {{"scale"}, CLI_CMD_PLAN, VALUE_FLAG, AT(scale), NULL, 0, 0, NULL,
     "also a table over 1, 2, 4, ... 1024 ranks: what each and a node needs, and how long a step takes"},
    HEADING("Benches"),
    {{"load"}, CLI_CMD_BENCH_STEP, VALUE_REAL, AT(load), NULL, 1e-3, 1e3, "X",
     "paced: a device that computes X times as long as the rest of the step takes; default: as fast as the file says"},
    {{"beside"}, CLI_CMD_BENCH_STEP, VALUE_TEXT, AT(beside), NULL, 0, 0, "NAME",
     "the configuration's own schedule and one with this strata.update, in turns"},
    {{"clip-rate"}, CLI_CMD_BENCH_STEP, VALUE_REAL, AT(clip_rate), NULL, 1e-3, 1, "X",
     "make a share X of the steps' early updates again, as if so many steps had been clipped; default 0"},
    {{"simulate"}, CLI_CMD_BENCH_STEP, VALUE_FLAG, AT(simulate), NULL, 0, 0, NULL, "predict, run nothing"},
    {{"only"}, CLI_CMD_BENCH_STEP, VALUE_FLAG, AT(only), NULL, 0, 0, NULL, "the configuration's own schedule; default: every one"},
    {{"params"}, CLI_CMD_BENCH, VALUE_SIZES, AT(params), NULL, 0, 0, "N,...",
     "optim: sizes of a tensor in parameters; 16M is 2^24; default 4K,64K,1M,16M; update: one number, default 32M"},
    {{"layout"}, CLI_CMD_BENCH, VALUE_LIST, AT(layouts), NULL, 0, 0, "NAME,...",
     "optim: states to update, such as split,split_bf16m,split_8bit or full, fp32, lion, adagrad_full; default: all"},
    {{"like"}, CLI_CMD_BENCH, VALUE_LIST, AT(likes), NULL, 0, 0, "NAME",
     "update: also move the state as zero-infinity (32 bytes per parameter) or mlp-offload (24) does; may be given twice"},
    {{"bytes"}, CLI_CMD_BENCH, VALUE_SIZE, AT(bytes), NULL, 0, 0, "SIZE", "link: bytes of one copy; default: 64KiB to 256MiB"},
    {{"repeats", "loops"}, CLI_CMD_BENCH | CLI_CMD_BENCH_IO, VALUE_COUNT, AT(repeats), NULL, 1, 1000, "N", "turns of each row; default 9, update 5, io 3"},
    {{"io-method"}, CLI_CMD_BENCH | CLI_CMD_BENCH_IO | CLI_CMD_TUNE, VALUE_TEXT, AT(io_method), NULL, 0, 0, "NAME",
     "uring, aio or threads; default: the best that works"},
    FOR(CLI_CMD_BENCH_IO, "NAME,...", "uring, aio and threads; default auto: the best that works"),
    {{"pattern"}, CLI_CMD_BENCH_IO, VALUE_TEXT, AT(patterns), NULL, 0, 0, "NAME,...",
     "read, write, rw (half and half), randread, randwrite, randrw, optimizer (the update's); default: all"},
    {{"block", "block_size"}, CLI_CMD_BENCH_IO, VALUE_SIZES, AT(blocks), NULL, 0, 0, "SIZE,...", "bytes of a request, multiples of 4096; default 1M"},
    {{"depth", "queue_depth"}, CLI_CMD_BENCH_IO, VALUE_COUNTS, AT(depths), NULL, 1, 1024, "N,...", "requests in flight on each directory; default 32"},
    {{"size", "io_size"}, CLI_CMD_BENCH_IO | CLI_CMD_TUNE, VALUE_SIZE, AT(size), NULL, 0, 0, "SIZE", "size of the file in each directory; default 1G; tune: 512M in all"},
    {{"seconds"}, CLI_CMD_BENCH_IO | CLI_CMD_TUNE, VALUE_REAL, AT(seconds), NULL, 0.001, 3600, "S", "length of each row and repeat; default 1; tune: 0.5"},
    {{"unregistered"}, CLI_CMD_BENCH_IO, VALUE_FLAG, AT(unregistered), NULL, 0, 0, NULL, "uring: files and buffers are not registered with the kernel"},
    {{"poll-device"}, CLI_CMD_BENCH_IO, VALUE_FLAG, AT(poll_device), NULL, 0, 0, NULL, "uring: poll for completions (IOPOLL)"},
    {{"poll-kernel"}, CLI_CMD_BENCH_IO, VALUE_FLAG, AT(poll_kernel), NULL, 0, 0, NULL, "uring: a kernel thread takes requests (SQPOLL)"},
    {{"fio"}, CLI_CMD_BENCH_IO, VALUE_FLAG, AT(fio), NULL, 0, 0, NULL, "also run the same jobs with fio (io_uring and libaio), in turns, over the same blocks"},
    {{"fio-job"}, CLI_CMD_BENCH_IO, VALUE_FLAG, AT(fio_job), NULL, 0, 0, NULL, "print the fio job file and run nothing"},
    {{"read"}, CLI_CMD_BENCH_IO, VALUE_FLAG, AT(read), NULL, 0, 0, NULL, "ds_io's name for --pattern read"},
    {{"write"}, CLI_CMD_BENCH_IO, VALUE_FLAG, AT(write), NULL, 0, 0, NULL, "--pattern write; with --read: both"},
    {{"io_parallel", "multi_process", "engine", "warmup_loops"}, CLI_CMD_BENCH_IO, VALUE_IGNORED, NO_OFFSET, NULL, 0, 0, "N", NULL},
    {{"single_submit", "sequential_requests", "validate", "include_warmup_time"}, CLI_CMD_BENCH_IO, VALUE_FLAG, AT(ignored), NULL, 0, 0, NULL, NULL},
    {{"isa"}, CLI_CMD_BENCH, VALUE_TEXT, AT(isa), NULL, 0, 0, "NAME",
     "optim, update: kernels: scalar, avx2, avx512, neon; default: optim all that work here, update the best"},
    {{"prefix"}, CLI_CMD_LAUNCH, VALUE_FLAG, AT(prefix), NULL, 0, 0, NULL, "each line begins with the number of the rank that prints it: [1]"},
    HEADING("Several processes"),
    {{"ranks", "nproc-per-node"}, CLI_CMD_PLAN | CLI_CMD_CHECK | CLI_CMD_LAUNCH, VALUE_COUNT, AT(ranks), "machine.ranks", 1, 1024, "N",
     "plan for one of N ranks, whose machines are as --machine or this one; host memory, drives and cores are a machine's, --device-memory and "
     "--threads each rank's"},
    FOR(CLI_CMD_CHECK, NULL, "check a run of N processes; default: as the launcher says"),
    FOR(CLI_CMD_LAUNCH, NULL, "-n N: processes to start on this machine"),
    {{"nodes"}, CLI_CMD_PLAN, VALUE_COUNT, AT(nodes), "machine.nodes", 1, 1024, "N",
     "with --ranks: on how many machines they are; default: by the machine file's ranks_per_node, without it one"},
    {{"rank"}, RANKED, VALUE_COUNT, AT(rank), "comm.rank", 0, RANKS_MAX - 1, "N", "which of the run's processes this is, from 0; default: as the launcher says"},
    {{"world-size"}, RANKED, VALUE_COUNT, AT(world_size), "comm.ranks", 1, RANKS_MAX, "N", "with --rank: how many processes the run has"},
    {{"local-rank"}, RANKED, VALUE_COUNT, AT(local_rank), NULL, 0, RANKS_MAX - 1, "N", "which of this machine's processes it is, from 0"},
    {{"local-world-size"}, RANKED, VALUE_COUNT, AT(local_world_size), NULL, 1, RANKS_MAX, "N", "how many processes this machine has"},
    {{"master-addr"}, RANKED, VALUE_TEXT, AT(master_addr), "comm.address", 0, 0, "HOST", "host name or address of rank 0's machine"},
    {{"master-port"}, RANKED, VALUE_COUNT, AT(master_port), "comm.port", 1, 65535, "N", "a port there where the ranks meet; default 29500"},
    {{"comm"}, RANKED, VALUE_TEXT, AT(comm), NULL, 0, 0, "auto|mpi|tcp", "how ranks exchange bytes; default auto: mpi under mpirun and srun where it opens, else tcp"},
    HEADING("Reports"),
    {{"metrics"}, CLI_CMD_TRAIN, VALUE_TEXT, AT(metrics), "train.metrics", 0, 0, "FILE.jsonl", "one JSON line per step, a header and a summary"},
    {{"trace"}, CLI_CMD_PLAN | CLI_CMD_TRAIN, VALUE_TEXT, AT(trace), NULL, 0, 0, "FILE.json",
     "what ran and when, for ui.perfetto.dev: the first 50 steps, or as many as fit into 8 MiB of memory"},
    FOR(CLI_CMD_PLAN, NULL, "write one simulated step for ui.perfetto.dev, by --machine, --gpu or --measure"),
    {{"ops"}, CLI_CMD_PLAN | CLI_CMD_BENCH_STEP | CLI_CMD_TRAIN, VALUE_FLAG, AT(ops), NULL, 0, 0, NULL,
     "print the program instead: every op of a step, what it touches and what it waits for; with --json one object per line"},
    FOR(CLI_CMD_BENCH_STEP, NULL, "below each row: calls of the device's ops by shape, with their time, rates and share of the step"),
    FOR(CLI_CMD_TRAIN, NULL, "with --trace: also every call of the device's ops"),
    {{"digest"}, CLI_CMD_TRAIN, VALUE_FLAG, AT(digest), NULL, 0, 0, NULL, "print digests of weights and optimizer state at the end"},
    {{"logging-steps"}, CLI_CMD_TRAIN | CLI_CMD_CHECK, VALUE_COUNT, NO_OFFSET, "steps_per_print", 1, WHOLE_MAX, "N", "a line of progress stays every N steps; below 1: a part of the run; default: about 40 lines of a run"},
    {{"quiet"}, CLI_CMD_TRAIN | CLI_CMD_VERIFY | CLI_CMD_EXPORT | CLI_CMD_IMPORT | CLI_CMD_GENERATE, VALUE_FLAG, AT(quiet), NULL, 0, 0, NULL,
     "no tables, no progress and no figures"},
    {{"verbose"}, CLI_CMD_TRAIN, VALUE_FLAG, AT(verbose), NULL, 0, 0, NULL,
     "lines of progress also have mean loss, step by bound, time split, MFU, bytes of each tier and rates of links"},
    {{"json"}, LOADS | CLI_CMD_CHECK | CLI_CMD_INFO | CLI_CMD_DIGEST | CLI_CMD_VERIFY | CLI_CMD_EXPORT | CLI_CMD_TOKENS | BENCHES, VALUE_FLAG, AT(json),
     NULL, 0, 0, NULL, "JSON on standard output, bench: an object for each row"},
    FOR(CLI_CMD_TRAIN, NULL, "the metrics on standard output, everything else on standard error"),
    {{"all"}, CLI_CMD_CHECK, VALUE_FLAG, AT(all), NULL, 0, 0, NULL, "also defaults, and what a trainer's keys become"},
    {{"help"}, UINT32_MAX, VALUE_FLAG, AT(help), NULL, 0, 0, NULL, "this text"},
    ELSEWHERE("the model goes to --out DIR, checkpoints to --save DIR", "output-dir"),
    ELSEWHERE("use --resume auto, or --resume DIR", "resume-from-checkpoint"),
    ELSEWHERE("use --data FILE", "train-file", "dataset-name", "dataset-path"),
    ELSEWHERE("use --eval-data FILE", "validation-file", "do-eval", "eval-file"),
    ELSEWHERE("use --eval-every N", "eval-strategy", "evaluation-strategy"),
    ELSEWHERE("use --save-every N, with --save DIR", "save-strategy"),
    ELSEWHERE("evaluations take --micro-batch N, too", "per-device-eval-batch-size", "eval-batch-size"),
    ELSEWHERE("use --micro-batch N, and --grad-accum N", "batch-size", "train-batch-size", "micro-batch-size"),
    ELSEWHERE("it belongs to strata plan; a run uses the machine that it is on, with --device cuda its GPU", "gpu", "ram", "drive"),
    ELSEWHERE("use --seq-len N", "max-seq-length", "max-length", "model-max-length", "block-size"),
    ELSEWHERE("use --seq-len N", "sequence-len", "max-seq-len"),
    ELSEWHERE("use --max-samples N", "max-train-samples"),
    ELSEWHERE("use --tokenizer DIR", "tokenizer-name", "tokenizer-name-or-path"),
    ELSEWHERE("use --template NAME", "chat-template"),
    ELSEWHERE("use --set optimizer.type=NAME", "optim", "optimizer"),
    ELSEWHERE("use --set optimizer.params.betas=[B1,B2] and optimizer.params.eps=X", "adam-beta1", "adam-beta2", "adam-epsilon"),
    ELSEWHERE("use --metrics FILE.jsonl, or the configuration's tensorboard", "report-to", "logging-dir", "run-name", "logging-strategy"),
    ELSEWHERE("use --lora FILE.json, PEFT's adapter_config.json", "use-peft", "lora-r", "lora-rank", "lora-alpha"),
    ELSEWHERE("use --lora FILE.json, PEFT's adapter_config.json", "lora-dropout", "lora-target", "lora-target-modules", "finetuning-type"),
    ELSEWHERE("leave it out: --device is cpu, unless it says otherwise", "no-cuda", "use-cpu"),
    ELSEWHERE("leave it out: blocks are recomputed where that is needed", "gradient-checkpointing"),
    ELSEWHERE("leave it out: strata train trains", "do-train", "stage"),
    ELSEWHERE("leave it out: only answers are trained, but for --train-on-prompt", "assistant-only-loss", "completion-only-loss"),
    ELSEWHERE("use --layout packed", "packing", "neat-packing", "sample-packing"),
    ELSEWHERE("use --set strata.lr_scheduler.min_lr=X", "lr-scheduler-kwargs"),
    ELSEWHERE("use --set strata.quantization=nf4, with --lora FILE.json", "load-in-4bit"),
    ELSEWHERE("use --epochs N", "num-epochs"),
    ELSEWHERE("use --val-size X", "val-set-size"),
    ELSEWHERE("leave it out: strata has its own kernels", "attn-implementation"),
    ELSEWHERE("use --bf16 or --fp16; the configuration has more", "torch-dtype", "dtype"),
    ELSEWHERE("leave it out: data are read beside training", "dataloader-num-workers"),
    {{"fault"}, LOADS | CLI_CMD_PLAN | CLI_CMD_CHECK | CLI_CMD_INFO | CLI_CMD_TOKENS | CLI_CMD_DIGEST | CLI_CMD_VERIFY | CLI_CMD_EXPORT | CLI_CMD_IMPORT | CLI_CMD_BENCH | CLI_CMD_BENCH_STEP | CLI_CMD_BENCH_IO | CLI_CMD_TUNE | CLI_CMD_LAUNCH, VALUE_TEXT, AT(fault), NULL, 0, 0, "SITE", NULL},
    {{"fake-seed"}, CLI_CMD_TRAIN | CLI_CMD_EVAL | CLI_CMD_GENERATE | CLI_CMD_BENCH_STEP, VALUE_COUNT, AT(fake_seed), NULL, 0, WHOLE_MAX, "N", NULL},
    {{"fake-latency-us"}, CLI_CMD_TRAIN | CLI_CMD_EVAL | CLI_CMD_GENERATE | CLI_CMD_BENCH_STEP, VALUE_COUNT, AT(fake_latency_us), NULL, 0, 1e6, "N", NULL},
};
/* clang-format on */
#define OPTION_COUNT (sizeof(options) / sizeof(options[0]))

/* plan and check take a whole train command line; options that have no effect there are not in their help. */
static bool option_taken(const struct cli_option *o, enum cli_command command)
{
    const bool as_train = command == CLI_CMD_PLAN || command == CLI_CMD_CHECK;
    const uint32_t bits = (uint32_t)command | (as_train ? (uint32_t)CLI_CMD_TRAIN : 0u);

    return (o->commands & bits) != 0;
}

/* Where the value's name and the help of an option stand for a command. */
static const struct cli_option *option_words(const struct cli_option *o, enum cli_command command)
{
    for (const struct cli_option *row = o + 1; row < options + OPTION_COUNT && row->names[0] == NULL && row->commands != 0; row++)
        if ((row->commands & (uint32_t)command) != 0)
            return row;
    return o;
}

const char *cli_option_value(const struct cli_option *o, enum cli_command command)
{
    const char *value = option_words(o, command)->value;

    return value != NULL ? value : o->value;
}

/* As scripts of Python write names: "_" is "-". */
static bool is_name(const char *name, const char *word)
{
    for (; *name != '\0' && *word != '\0'; name++, word++)
        if (*name != *word && !((*name == '_' || *name == '-') && (*word == '_' || *word == '-')))
            return false;
    return *name == *word;
}

const struct cli_option *cli_option_find(enum cli_command command, const char *name)
{
    for (size_t i = 0; i < OPTION_COUNT; i++)
        for (size_t k = 0; k < CLI_NAMES_MAX && options[i].names[k] != NULL; k++)
            if (option_taken(&options[i], command) && is_name(options[i].names[k], name))
                return &options[i];
    return NULL;
}

const char *cli_option_given(enum cli_command command, const char *const *names, size_t count, const struct cli_args *args)
{
    static const char none[sizeof(uint64_t)]; /* of a number, of a text, and of a list's items */

    for (size_t i = 0; i < count; i++) {
        const struct cli_option *o = cli_option_find(command, names[i]);

        if (memcmp((const char *)args + o->offset, none, o->kind == VALUE_FLAG ? sizeof(bool) : sizeof(none)) != 0)
            return names[i];
    }
    return NULL;
}

const struct cli_option *cli_option_of_key(const char *text, size_t *length)
{
    const struct cli_option *found = NULL;

    *length = 0;
    for (size_t i = 0; i < OPTION_COUNT; i++)
        for (const char *key = options[i].key; key != NULL && *key != '\0'; key += *key == ' ') {
            const size_t bytes = strcspn(key, " ");

            if (bytes > *length && strncmp(text, key, bytes) == 0) { /* strata.keep_best is not strata.keep */
                found = &options[i];
                *length = bytes;
            }
            key += bytes;
        }
    return found;
}

bool cli_option_is_key(const struct cli_option *o)
{
    return (o->offset == NO_OFFSET && o->kind != VALUE_SET) || strncmp(o->key, "strata.", strlen("strata.")) == 0;
}

strata_status cli_option_unknown(enum cli_command command, const char *name)
{
    const char *nearest = NULL, *words = (command & CONFIGURES) != 0 ? strata_recipe_words(name) : NULL;
    uint32_t edits_least = st_word_edits_most(name) + 1;

    if (words != NULL)
        return st_error(STRATA_E_INVAL, "--%s is no option here: %s", name, words);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (!option_taken(&options[i], command) || options[i].help == NULL)
            continue;
        for (size_t k = 0; k < CLI_NAMES_MAX && options[i].names[k] != NULL; k++) {
            const uint32_t edits = st_word_edits(name, options[i].names[k]);

            if (edits < edits_least) {
                edits_least = edits;
                nearest = options[i].names[k];
            }
        }
    }
    if (nearest != NULL)
        return st_error(STRATA_E_INVAL, "unknown option --%s: did you mean --%s?", name, nearest);
    return st_error(STRATA_E_INVAL, "unknown option --%s: --help lists the options", name);
}

/* --- help --- */

static void option_print(const struct cli_option *o, enum cli_command command, FILE *file)
{
    const char *value = cli_option_value(o, command);
    int width = st_print(file, "  --%s%s%s", o->names[0], value != NULL ? " " : "", value != NULL ? value : "");

    if (width >= HELP_COLUMN) {
        st_print(file, "\n");
        width = 0;
    }
    st_print(file, "%*s%s", HELP_COLUMN - width, "", option_words(o, command)->help);
    for (size_t k = 1; k < CLI_NAMES_MAX && o->names[k] != NULL; k++)
        st_print(file, "%s--%s", k == 1 ? " (also " : ", ", o->names[k]);
    st_print(file, "%s\n", o->names[1] != NULL ? ")" : "");
}

/* A command that reads a configuration has many options: they come in groups. */
void cli_args_print_options(enum cli_command command, FILE *file)
{
    const bool grouped = (command & CONFIGURES) != 0;
    const char *heading = "Options";

    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (grouped && options[i].commands == 0)
            heading = options[i].help;
        if (options[i].names[0] == NULL || (options[i].commands & (uint32_t)command) == 0 || options[i].help == NULL)
            continue;
        if (heading != NULL)
            st_print(file, "\n%s:\n", heading);
        heading = NULL;
        option_print(&options[i], command, file);
    }
}
