/* offload/config/config.h - DeepSpeed JSON, strictly: one field table drives parsing, ranges, defaults, verdicts,
 * `strata check` and docs/config.md.  One thread per source; a loaded source is read-only.
 *
 * Precedence: command line > file > default.  A key left out of a file means DeepSpeed's default if it changes results, and
 * "auto" if it changes speed or placement; "auto", and a run without a file, mean strata's own default.  Every key of the table
 * is honoured, accepted with a notice and the reason, or rejected; any other key is an error with its path and the nearest
 * match. */
#ifndef OFFLOAD_CONFIG_CONFIG_H
#define OFFLOAD_CONFIG_CONFIG_H

#include "core/json/json.h"
#include "offload/optim/loss_scale.h"
#include "offload/optim/lr_schedule.h"
#include "offload/program/policy.h"
#include "strata/config.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define ST_CONFIG_PATH_MAX    512
#define ST_CONFIG_FREEZE_MAX  8
#define ST_CONFIG_PATTERN_MAX 128
#define ST_CONFIG_DIRS_MAX    8
#define ST_CONFIG_JSON_MAX    32768

/* REMOVED occurs only in the field table, for keys that DeepSpeed no longer has.  The row's verdict is then NOTICE if the key is
 * off or empty, else REJECTED. */
enum st_config_verdict { ST_VERDICT_HONOURED = 0, ST_VERDICT_NOTICE = 1, ST_VERDICT_REJECTED = 2, ST_VERDICT_REMOVED = 3 };
enum st_config_origin {
    ST_ORIGIN_DEFAULT = 0,
    ST_ORIGIN_FILE = 1,
    ST_ORIGIN_AUTO = 2, /* "auto": the default */
    ST_ORIGIN_COMMAND_LINE = 3,
    ST_ORIGIN_DERIVED = 4,     /* from other keys */
    ST_ORIGIN_ENVIRONMENT = 5, /* variables of Accelerate's launcher */
};

/* What another value would change.  If left out of a file, a key that changes results means DeepSpeed's default, any other
 * "auto". */
enum st_changes {
    ST_CHANGES_INHERITED = 0, /* as for the section that contains the key */
    ST_CHANGES_RESULTS,
    ST_CHANGES_SPEED,  /* or placement */
    ST_CHANGES_OUTPUT, /* what is told, written or uploaded beside the results */
    ST_CHANGES_NEITHER,
};

/* Scalars of each step, in output_path/job_name. */
struct st_config_monitor {
    bool enabled;
    char output_path[ST_CONFIG_PATH_MAX], job_name[ST_CONFIG_PATH_MAX];
};

/* How the linear weights of blocks are stored, which is then frozen: as the others; in NF4; in NF4 whose scales were quantised,
 * too. */
enum st_quantization { ST_QUANTIZATION_NONE, ST_QUANTIZATION_NF4, ST_QUANTIZATION_NF4_DOUBLE };

/* Effective values.  Plain data: copied freely, printed by st_config_write_json. */
struct st_config {
    /* batch */
    uint32_t train_batch, micro_batch, grad_accum; /* train = micro * accum * ranks */
    uint32_t leaves;                               /* strata.leaves, of all ranks */
    /* numerics */
    strata_dtype dtype; /* STRATA_BF16, STRATA_F16 or STRATA_F32; INVALID: the dtype in which the model's weights are stored */
    double gradient_clipping;       /* 0: off */
    bool check_grad_overflow;       /* skip the update when a gradient is not finite */
    uint32_t max_skipped;           /* this many steps in a row without an update or a finite loss end a run; 0: no limit */
    struct st_loss_scaling scaling; /* fp16 (reference: DeepSpeed's fp16 section); other dtypes: scale 1 */
    struct st_optimizer optimizer;
    bool decay_all; /* strata.decay_all: decay biases and norms too */
    enum st_moment_format moments;
    struct st_lr_schedule schedule;
    /* placement */
    uint32_t zero_stage;
    strata_tier optimizer_tier; /* offload_optimizer.device: none = DEVICE, cpu = HOST, nvme = NVME */
    strata_tier param_tier;     /* offload_param.device */
    char nvme_dirs[ST_CONFIG_DIRS_MAX][ST_CONFIG_PATH_MAX];
    uint32_t nvme_dir_count;
    double update_ratio;     /* offload_optimizer.ratio: fraction of the state off the device that the host updates; NaN: auto */
    uint64_t sub_group_size; /* elements; an upper limit for the chunk */
    /* checkpoints */
    char save[ST_CONFIG_PATH_MAX]; /* directory; "": none are saved */
    char metrics[ST_CONFIG_PATH_MAX]; /* file of the run's lines; "": none */
    uint64_t save_every;           /* steps; 0: only at the end, and when a signal asks */
    uint32_t keep;                 /* of them, the newest */
    uint32_t keep_best;            /* and those of the lowest scores */
    struct st_config_monitor tensorboard, csv_monitor;
    /* aio */
    uint32_t block_bytes, queue_depth; /* depth 0: adapts to the device */
    /* strata section */
    uint64_t device_memory, host_memory; /* ST_AUTO_BYTES: from the machine */
    uint64_t cache;                      /* ST_AUTO_BYTES: spare memory; 0: nothing above its configured tier */
    uint64_t chunk_size;                 /* elements; ST_AUTO_BYTES: a function of the model, up to sub_group_size */
    enum st_update_policy update;
    enum st_accumulation accumulation;
    enum st_compute_by {
        ST_COMPUTE_TORCH,
        ST_COMPUTE_STRATA,
        ST_COMPUTE_AUTO
    } compute;                        /* a module of PyTorch's: Python reads it */
    uint32_t seq_len;                 /* of such a module; 0: not said */
    uint64_t boundary_bytes;          /* of the input of a module's layer; 0: not said */
    enum st_wire wire, communication; /* strata.wire; communication_data_type, which it follows */
    enum st_activation_mode activations;
    strata_tier activation_tier; /* slowest tier for checkpoints: DEVICE, HOST or NVME; COUNT: auto */
    char freeze[ST_CONFIG_FREEZE_MAX][ST_CONFIG_PATTERN_MAX]; /* shell patterns over tensor names: no gradient, no state */
    uint32_t freeze_count;
    char lora[ST_CONFIG_JSON_MAX]; /* JSON of an object with PEFT's keys (model/adapter/adapter.h); "": none */
    enum st_quantization quantization;
    bool output_router_logits; /* the auxiliary loss of experts counts, whatever config.json says */
    double clip_rate;          /* share of steps; NaN: not known */
    double aux_loss_coef;      /* in place of config.json's; NaN: that one */
    uint32_t threads;                                /* 0: one per usable core */
    uint32_t device_deadline;                        /* seconds */
    uint32_t io_deadline;                            /* seconds; 0: none */
    uint32_t comm_deadline;                          /* seconds */
    bool watchdog;                                   /* memory that runs out ends a training run (core/system/watchdog.h) */
    char io_method[16];                              /* "auto", "uring", "threads", "fake" */
    char isa[16];                                    /* "auto", "scalar", "avx2", "avx512" */
    enum st_fetch update_fetch;                      /* auto: as the machine was measured to be faster */
    uint64_t upload_limit, download_limit, io_limit; /* bytes per second; 0: none; io: only with io_method "fake" */
    uint32_t steps_per_print;                        /* 0: automatic */
};

/* One row of `strata check`. */
struct st_config_row {
    const char *path;  /* "zero_optimization.offload_optimizer.device"; borrowed from the config object */
    const char *value; /* as text */
    enum st_config_origin origin;
    enum st_config_verdict verdict;
    const char *reason;      /* why it has no meaning here, what is wrong, or what else to know of an honoured key ("also honoured
                                below stage 3 ..."); NULL: none.  Print it wherever it is set */
    enum st_changes changes; /* NEITHER also where this value asks for nothing that is not done anyway */
    bool follows;            /* from a key of a trainer's file, which has a row of its own */
    bool unjudged;           /* it belongs to what is rejected */
    bool announced; /* the reason is a notice at each start, since results differ from what the file's reader may expect */
};

struct st_config_source; /* parsed file + overrides + rows; owns strings */

struct st_config_opts {
    const char *file;             /* NULL: defaults only */
    const char *const *overrides; /* "path=value" strings of the command line, applied in order, the last of a key wins.
                                     Value: JSON if it parses, else a string; null: as if left out, members of a section
                                     included.  --nvme DIR...: one override strata.nvme=["DIR", ...] */
    uint32_t override_count;
    bool allow_unknown; /* unknown keys become notices */
    uint64_t max_steps; /* for total steps = "auto"; 0: unknown */
    bool steps_later;   /* then st_config_set_steps() tells them */
    bool any_length;    /* no run begins with it, as with a checkpoint's own, which is of a run that was taken, and one for
                           evaluation: nothing is evaluated by how many steps there are */
    uint32_t ranks;     /* processes that train together; 0: 1 */
    /* Of a run that goes on, kept where the configuration leaves it open: sequences of a step, leaves; 0: none. */
    uint32_t train_batch, leaves;
};

/* What another file, or a launcher's variable, says. */
struct st_config_said {
    const char *to;     /* an option ("--seq-len"), or a path of the configuration ("optimizer.params.lr") */
    const char *text;   /* of an option: its word, NULL: it has none; of a path: JSON */
    const char *from;   /* the other file's key; `weak` and `over`: what the trainer does, whatever its file says */
    const char *unless; /* a path: nothing if DeepSpeed's file gives it; NULL: always */
    uint32_t line;      /* of the key in that file; 0: it has none */
    bool on_line;       /* the command line says it */
    bool weak;          /* follows from no key that was given */
    bool over;          /* a path: it counts over DeepSpeed's file, which is said; false: they must be equal */
};

/* Another source of values: they stand beside those of DeepSpeed's file, in place of what is left out or "auto" there. */
struct st_config_other {
    const char *path;                    /* for people */
    const struct st_config_said *values; /* [count] */
    uint32_t count;
    bool has_length;                                            /* it says how long the run is */
    const void *of;                                             /* for the functions: */
    const char *(*spelling)(const void *of, const char *key);   /* a key as its user knows it */
    void (*tell)(const void *of, struct st_config_source *src); /* its rows and problems become the configuration's, too */
};

/* What a configuration is made from. */
struct st_config_inputs {
    const char *name;                     /* for people */
    const char *file;                     /* DeepSpeed's, that was read; NULL: none */
    st_json *root;                        /* its tree; NULL: none */
    const struct st_config_other *others; /* [other_count], the later ones after the earlier */
    uint32_t other_count;
    const struct st_config_other *environment; /* after all else: fills what is left open, and must agree with the rest; NULL */
};

/** Check everything, resolve; as st_config_load().  Takes in->root, also on failure. */
strata_status st_config_make(struct st_config *config, struct st_config_source **source, const struct st_config_inputs *in,
                             const struct st_config_opts *opts);
/** The tree of DeepSpeed's file, or of XTuner's of that name.  E_CONFIG: it is neither JSON nor YAML. */
strata_status st_config_parse_file(st_json **root, const char *path);
/** A file that cannot be read as one: `st`, whose sentence is the only problem of *source where it is E_CONFIG. */
strata_status st_config_unread(struct st_config_source **source, strata_status st);

/**
 * Read, check everything, resolve.
 *
 * @param config  out; written on success only
 * @param source  out; free with st_config_source_free.  Set on success and on E_CONFIG: all problems are collected; its
 *                rows hold every value in force and every key given.  NULL after any other error.
 * @param opts    borrowed during the call
 *
 * @return STRATA_OK, or E_CONFIG: strata_last_error() is the first problem with the count of the others; E_NOMEM; the status of
 *   reading the file. */
strata_status st_config_load(struct st_config *config, struct st_config_source **source, const struct st_config_opts *opts);
void st_config_source_free(struct st_config_source *source);
/* Which lengths st_config_set_steps() has told, and may tell again. */
struct st_config_told {
    bool total, shape; /* of the scheduler; of transformers' schedule */
};
/** Resolve what depends on the number of steps, of a config that was loaded with steps_later.  E_CONFIG: OneCycle's momentum
 *  would reach 1.
 *  @param told  in and out; zeros at first */
strata_status st_config_set_steps(struct st_config *config, uint64_t steps, struct st_config_told *told);
/** Whether the rate depends on a number of steps that nobody has told: it would be 0, or have no warm-up. */
bool st_config_lacks_steps(const struct st_config *config);
uint32_t st_config_row_count(const struct st_config_source *source);
const struct st_config_row *st_config_row_at(const struct st_config_source *source, uint32_t i);
uint32_t st_config_problem_count(const struct st_config_source *source);
const char *st_config_problem_at(const struct st_config_source *source, uint32_t i);
/** Add a problem, which whoever reads the value of `path` found in it.  E_CONFIG, or E_NOMEM. */
strata_status st_config_refuse(struct st_config_source *source, const char *path, const char *reason);

#define ST_CONFIG_VALUE_MAX ST_CONFIG_JSON_MAX
/** Value `index`, from 0, of those that all ranks of a run must have alike; the others concern a rank's machine alone.
 *  @param value  [ST_CONFIG_VALUE_MAX] out, as text
 *  @return its path, static; NULL: past the last */
const char *st_config_common(const struct st_config *config, uint32_t index, char *value);

/** Write the effective config as one JSON object that st_config_load accepts and, given the same max_steps, resolves to the same
 *  values. */
void st_config_write_json(const struct st_config *config, FILE *file);
/** The generated part of docs/config.md: one table per section from the field table. */
void st_config_write_markdown(FILE *file);
/** Fuzz and test entry: parse a buffer instead of a file. */
strata_status st_config_load_text(struct st_config *config, struct st_config_source **source, const char *text, size_t bytes,
                                  const char *name, const struct st_config_opts *opts);

#endif
