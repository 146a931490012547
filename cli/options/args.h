/* cli/options/args.h - the command line: one table of options drives parsing, ranges and --help. */
#ifndef CLI_OPTIONS_ARGS_H
#define CLI_OPTIONS_ARGS_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Bits, so that an option can name the commands that take it. */
enum cli_command {
    CLI_CMD_TRAIN = 1,
    CLI_CMD_PLAN = 2,
    CLI_CMD_EVAL = 4,
    CLI_CMD_TOKENS = 8,
    CLI_CMD_CHECK = 16,
    CLI_CMD_INFO = 32,
    CLI_CMD_DIGEST = 64,
    CLI_CMD_GENERATE = 128,
    CLI_CMD_BENCH = 256,
    CLI_CMD_BENCH_STEP = 512, /* bench step: takes a run's options */
    CLI_CMD_BENCH_IO = 1024,  /* bench io: takes directories, and ds_io's names */
    CLI_CMD_TUNE = 2048,
    CLI_CMD_VERIFY = 4096,
    CLI_CMD_EXPORT = 8192,
    CLI_CMD_IMPORT = 16384,
    CLI_CMD_LAUNCH = 65536,
};

struct strata_recipe;

struct cli_list {
    const char **items; /* borrowed strings, except overrides */
    uint32_t count;
};

#define CLI_NOT_GIVEN UINT64_MAX
#define CLI_SIZES_MAX 16u

struct cli_sizes {
    uint64_t items[CLI_SIZES_MAX];
    uint32_t count;
};

/* Values of one call.  Strings are borrowed from argv; NULL and 0 mean not given, unless a default is stated. */
struct cli_args {
    enum cli_command command;
    struct cli_list line; /* the whole command line behind the program's name; borrowed */
    struct cli_list positional;
    struct cli_list overrides; /* "path=value" for the config, in the order of the command line; owned */
    struct cli_list data, nvme;
    struct cli_list matched;  /* files that patterns stand for; owned */
    struct cli_list adapters; /* eval: "[NAME=]DIR" */
    const char *model, *config_file, *out, *resume, *eval_data, *machine, *metrics, *trace, *tokenizer, *fault, *lora, *adapter;
    const char *device;                                                   /* default "cpu" */
    const char *prompt, *prompt_file, *prompt_tokens;                     /* exactly one of them; with chat at most one */
    const char *master_addr, *comm;                                       /* train: where ranks meet, and how */
    uint64_t rank, world_size, local_rank, local_world_size, master_port; /* CLI_NOT_GIVEN: not given */
    const char *system, *chat_template, *template_kwargs, *date;          /* chat; tokens and eval, the last two */
    uint64_t max_steps, seq_len, cutoff_len, seed, eval_every, early_stop, fake_seed, fake_latency_us;
    uint64_t max_tokens, top_k; /* max_tokens 0: strata/model.h */
    uint64_t ranks, nodes;      /* plan, like the next line; launch the first */
    const char *gpu, *ram, *tokens;
    uint64_t batch_tokens; /* 0: not given */
    struct cli_list drives;
    uint64_t context;                           /* chat */
    const char *format, *dataset_info, *layout; /* tokens and train, like the next lines */
    struct cli_list datasets, eval_datasets;
    uint64_t max_samples, show;
    double val_size;
    bool train_on_prompt, mask_history, turn_ends, as_trl, strict, no_shuffle;
    bool is_a_run;                           /* the words are LLaMA-Factory's */
    struct cli_list words;                   /* over the trainer's file; owned */
    struct cli_list word_options;            /* of those, where options stand */
    const char *recipe_file;                 /* NULL: the words are all of it */
    struct strata_recipe *recipe;            /* the trainer's file that was named; owned */
    double epochs;                           /* train; 0: max_steps is given */
    double save_part, eval_part, print_part; /* of the run, from one to the next; 0: a count of steps says it */
    bool save_epochs, eval_epochs;           /* at the end of each instead */
    double heldout, top_p, repetition_penalty;
    double temperature;               /* NaN: not given */
    uint64_t bytes, repeats, threads; /* bench; other commands turn threads into an override */
    struct cli_sizes params;          /* bench, too */
    struct cli_list layouts;          /* names, or several separated by commas */
    struct cli_list likes;
    const char *isa, *io_method;
    double load, clip_rate;              /* bench step; 0: not given */
    const char *beside;                  /* the same */
    struct cli_list budgets;             /* bench step: sizes of the device's memory, or "all" */
    const char *patterns, *write_config; /* bench io: names separated by commas; tune, plan */
    struct cli_sizes blocks, depths;     /* bench io, like the next lines */
    uint64_t size;
    double seconds;
    bool unregistered, poll_device, poll_kernel, fio, fio_job, read, write;
    bool ignored;     /* set by any flag that has no meaning here */
    bool pool, sweep; /* verify */
    bool all;         /* check */
    bool prefix;      /* launch */
    bool chat, json, quiet, verbose, digest, allow_unknown, measure, ops, scale, simulate, only, overwrite, merge, help;
};

/** Parse argv[2..] for a command.  E_INVAL: unknown option (with the nearest one), missing or bad value, or a missing required
 *  option or word.  With --help nothing is required. */
strata_status cli_args_parse(struct cli_args *args, enum cli_command command, int argc, char **argv);
/** Whether --gpu asks for the table of cards. */
bool cli_args_list_hardware(const struct cli_args *args);
void cli_args_fini(struct cli_args *args);

/** Print the options of a command, one or more lines each. */
void cli_args_print_options(enum cli_command command, FILE *file);

#endif
