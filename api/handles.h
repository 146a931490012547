/* api/handles.h - the contents of the public handles. For api/, and for the parts of the program that still look inside
 * (tools/check_layers.sh).
 *
 * A model is shared by its plans, engines and exports, a plan by its engine: each counts its users and is freed with the last
 * one. The counts are the only data that two threads may touch at once, through two handles. */
#ifndef API_HANDLES_H
#define API_HANDLES_H

#include "advise/case.h"
#include "core/system/floats.h"
#include "core/system/topology.h"
#include "model/hf/hf_adapter.h"
#include "model/layers.h"
#include "model/model.h"
#include "offload/comm/comm.h"
#include "offload/comm/comm_measure.h"
#include "offload/comm/comm_watch.h"
#include "offload/config/config.h"
#include "offload/device/device.h"
#include "offload/engine/caller.h"
#include "offload/engine/engine.h"
#include "offload/machine/hardware.h"
#include "offload/machine/machine.h"
#include "offload/plan/plan.h"
#include "run/checkpoint_weights.h"
#include "run/losses.h"
#include "run/run.h"
#include "strata/comm.h"
#include "strata/engine.h"
#include "strata/layers.h"
#include "strata/machine.h"
#include "strata/tokenizer.h"
#include "text/data/tokens.h"
#include "text/tokenizer/tokenizer.h"
#include <stdatomic.h>
#include <stdio.h>
#include <sys/types.h>

struct strata_config {
    struct st_config values;
    struct st_config_source *source; /* its rows, and the problems of one that was only to be checked */
    char *name;                      /* of its file, for messages */
    bool nvme_named;                 /* directories were named for this run only */
    bool bf16_off;                   /* DeepSpeed's file turns bf16 off, without another precision */
    char *json;                      /* NULL: not asked for yet */
};

struct strata_comm {
    struct st_comm *comm;        /* NULL: one rank */
    struct st_comm_watch *watch; /* of its processes; NULL: none is needed */
    struct st_world world;
    struct st_topology_share share;      /* of the machine's cores and memory */
    uint16_t node_of[ST_COMM_RANKS_MAX]; /* of each rank: the first one on its machine */
    const char *source;
};

struct strata_machine {
    atomic_uint users;
    char *device;
    char *name;               /* machine file, or the option that names a card; NULL: this machine */
    bool gpu_elsewhere;       /* its device is a GPU that this build does not know; plans are made with the cpu's tensors */
    struct strata_comm *comm; /* borrowed; NULL: one rank */
    struct st_world planned;  /* a plan's, for ranks that are not there; 0 ranks: it is for those that are */
    struct st_topology *topology;
    struct st_machine given;      /* by the file, or by the names of parts; zeros: this machine */
    struct st_hardware *hardware; /* NULL: none was named */
    struct st_machine measured;   /* this machine */
    bool is_measured;
    struct st_links links; /* between ranks; none of them: they are not measured */
    char *cache_dir;       /* where rates are kept; NULL: nowhere */
    char *json;            /* as it was asked for last; NULL: never */
};

/* Where a model's initial weights are read from, and its adapter's. */
struct st_weights_from {
    struct st_hf_reader *reader; /* for a directory, until its weights are loaded */
    char *saved;                 /* the checkpoint whose model/ the directory is; NULL: none */
    struct st_checkpoint *checkpoint;
    struct st_checkpoint_weights *weights; /* of it, in place of the reader */
    struct st_model_init init;             /* for a preset, and for new adapters */
    char *adapter_dir;  /* that an adapter's values come from; NULL: the checkpoint has them, or it begins with this run */
    bool adapter_saved; /* the checkpoint has them */
    struct st_hf_adapter *adapter_files;
    struct st_hf_adapted_source adapted; /* in place of the weights' own source, of an adapter from a directory, */
    struct st_adapter_init_source fresh; /* and of one that begins with this run */
};

/* What is written beside a model's weights. */
struct st_written_beside {
    char *tokenizer;              /* in place of the directory's own; "byte": none; NULL: that */
    char *chat_template;          /* text, in place of the tokenizer's; NULL: that */
    struct st_hf_instead instead; /* files of these */
};

struct strata_model {
    atomic_uint users;
    atomic_flag has_engine;
    struct st_config config; /* a copy with the dtype known */
    struct st_config_told told;
    st_json *origins; /* of its values that are not the default, by path */
    bool nvme_named;
    enum strata_use use;
    char *name; /* a preset or a directory */
    bool is_dir;
    bool is_file; /* a config.json: shapes without weights, for plans */
    uint64_t seed;
    struct st_call_size {
        uint32_t seq;     /* the most tokens of a call */
        uint32_t context; /* generate: tokens that the cache holds, prompt and new ones */
        bool documents;   /* a sequence may hold several */
    } size;
    struct st_handle_caller {
        uint32_t threads;                 /* that compute layers of others */
        uint64_t bytes[STRATA_TIER_NVME]; /* that the program holds there beside strata */
    } caller;
    uint32_t saved_checkpoints; /* of this run, in the directory that it saves to */
    struct strata_comm *comm;   /* borrowed; NULL: one rank */
    struct st_told_progress {
        strata_progress_fn *fn; /* NULL: none */
        void *ctx;
    } progress;
    struct st_model *model;
    struct st_layers *layers;        /* of others, in place of a model */
    struct st_adapter_spec *adapter; /* NULL: none */
    struct st_weights_from from;
    struct st_written_beside beside;
};

struct st_dialog;

struct strata_plan {
    atomic_uint users;
    struct strata_model *model;
    struct strata_machine *on;
    uint32_t threads; /* workers of every rank; 0: one rank, and the configuration says */
    struct st_case
        facts; /* with the plan itself, which is the handle's; what is borrowed there is the model's and the machine's */
    struct st_staged staged; /* of the last engine's host memory; the figures count it */
    atomic_bool has_engine;
    char *text, *json; /* NULL: not asked for yet */
};

struct strata_engine {
    pid_t pid;        /* of the process that created it: a child of fork() has none of its threads */
    atomic_flag busy; /* a call is in progress, */
    fenv_t floats;    /* and this is how its caller's thread computes */
    struct strata_plan *plan;
    struct st_comm *device_comm; /* of ranks with GPUs; NULL: none */
    struct st_run run;
    struct st_trace *trace; /* NULL: off */
    struct st_op_times *op_times;
    bool loaded;
    bool lr_set; /* the caller's learning rate counts, not the schedule's */
    double lr;
    uint32_t cached;   /* tokens that the sequence of strata_engine_forward() has */
    uint64_t forwards; /* its calls, and loads: what has changed the sequence */
    char *json;        /* NULL: not asked for yet */
    struct st_losses losses; /* of steps whose lines were asked for */

    /* A step of layers of others. */
    uint32_t micros, entered; /* micro-batches of it; the layer that is entered, or ST_HANDLE_NO_LAYER */
    enum strata_pass pass;    /* and how */
    bool evaluates;
};
#define ST_HANDLE_NO_LAYER UINT32_MAX

struct strata_data {
    struct st_token_set *set;
    uint32_t seq;
    char *texts;   /* what its one token file was made of; NULL: it was named itself */
    char date[11]; /* what the chat template took for today as YYYY-MM-DD; "": it did not ask, or nobody knows */
};

/** The sequences of one token file that messages and checkpoints call after what it was made of; as strata_data_open(). */
strata_status st_handle_data_of_texts(struct strata_data **data, const struct strata_model *model, const char *path,
                                      const char *texts);
/** What checkpoints and ranks compare of the data, all but the seed and the order; NULL: nothing.  Its files are freed by the
 *  caller.  E_IO, E_INPUT (a file shrank or changed), E_NOMEM. */
strata_status st_handle_identify(struct st_run_data *out, const struct strata_data *data);
/** Log a notice if the tokenizer that made the data has more tokens than the model has rows. */
void st_handle_note_vocab(const struct strata_data *data, const struct strata_model *model);

struct strata_export {
    struct strata_model *model;
    struct st_hf_writer *writer;          /* NULL: written, or */
    struct st_hf_adapter_writer *adapter; /* what was trained is an adapter, and only that is written */
};

struct strata_tokenizer {
    atomic_uint users;
    struct st_tokenizer *tokenizer;
    struct st_encoder *encoder;
    struct st_encoding encoding; /* what the last calls gave */
    struct st_decoded decoded;
};

/** Copy a caller's struct of options, which begins with its size, into *to; `from` NULL: all of it is 0.
 *  @return E_INVAL: another size, as a program has that was built against other headers */
strata_status st_handle_opts(void *to, size_t bytes, const void *from, const char *name);
/** The same in the other direction, into the caller's *to, whose first member stays. */
strata_status st_handle_result(void *to, const void *from, size_t bytes, const char *name);
/** Whether it will: E_INVAL for another size, before anything runs.  Writes nothing. */
strata_status st_handle_room(const void *to, size_t bytes, const char *name);
/** Copy a string; NULL stays NULL.  E_NOMEM. */
strata_status st_handle_text(char **out, const char *text);

/* A text that a handle keeps in *kept while it lends it out, in place of what was there before. */
struct st_kept_text {
    char **kept;
    size_t bytes;
    FILE *file; /* NULL: no memory */
};
/** @param site  the fault site of its memory */
void st_handle_text_begin(struct st_kept_text *t, char **kept, const char *site);
/** `st` of writing it, and E_NOMEM: then there is no text. */
strata_status st_handle_text_end(struct st_kept_text *t, strata_status st);

/** An encoding's ids, for the caller; never NULL. */
void st_handle_ids(const struct st_encoding *encoding, const int32_t **ids, size_t *count);

/* What a call needs of its engine; each includes those before it.  STEP: that a step of layers is under way; the others: none. */
enum st_handle_needs { ST_HANDLE_EXISTS, ST_HANDLE_GOES_ON, ST_HANDLE_LOADED, ST_HANDLE_TRAINS, ST_HANDLE_STEP };

/** Where the values of a configuration come from, but defaults.  NULL: no memory. */
st_json *st_handle_origins(const struct strata_config *config);

/** Begin a call on an engine; after STRATA_OK st_handle_leave() ends it.
 *
 *  @return E_INVAL: there is no engine, another process created it, nothing is loaded, or training has ended; E_BUSY: another
 *          call is in progress, or a step that the caller computes; the status that ended the engine */
strata_status st_handle_enter(struct strata_engine *e, const char *function, enum st_handle_needs needs);
void st_handle_leave(struct strata_engine *e);
/** strata_engine_forward() within such a call. */
strata_status st_handle_forward(struct strata_engine *e, const int32_t *tokens, uint32_t count, uint32_t position, float *logits);
/** What a load is besides its values, which `values` brings in.  The engine is entered. */
strata_status st_handle_load(struct strata_engine *e, const char *function,
                             strata_status (*values)(struct strata_engine *e, void *ctx), void *ctx);
/** The same for a model of layers: strata_engine_load_layers() with these options. */
strata_status st_handle_load_layers(struct strata_engine *e, void *opts);
/** E_INVAL: the model is of layers of others, and the function needs a decoder. */
strata_status st_handle_check_decoder(const struct strata_model *m, const char *function);
/** The result of a step, for the caller, whose struct has the right size. */
void st_handle_take_step(struct strata_step *out, const struct st_step_result *r);
/** E_INVAL: the schedule of rates needs a number of steps that nobody has said. */
strata_status st_handle_check_schedule(const struct strata_engine *e, const char *function);
/** Take the times of layers, if the step that has ended was the last that is timed, into the plan's figures. */
void st_handle_time_layers(struct strata_plan *p, const struct st_engine *engine);
bool st_handle_is_directory(const char *path);
/** Take the tokenizer of a model that is trained, and the template `wanted`, NULL: the tokenizer's own, for what is written
 *  beside the weights.  E_INPUT, E_CONFIG: there is no such template, or it is wrong; errors of a tokenizer. */
strata_status st_handle_take_instead(struct strata_model *m, const char *wanted);
/** The dialog of a conversation; borrowed. */
const struct st_dialog *st_handle_dialog(const struct strata_chat *chat);
/** Read the shapes of the model that its name means; a checkpoint's directory takes the name's place. */
strata_status st_handle_read_config(struct st_model_config *config, struct strata_model *m);
/** Find ORG/NAME in the Hugging Face cache, if it is no directory here: *name becomes `dir` there.  E_INPUT: the cache has
 *  it, and wrongly. */
strata_status st_handle_find_cached(char dir[ST_PATH_MAX], const char **name);
/** If *name is a checkpoint or a directory of checkpoints, it becomes `dir`, which holds its tokenizer and
 * other small files.  E_CORRUPT, E_INPUT, E_NOMEM, E_IO. */
strata_status st_handle_find_files(char dir[ST_PATH_MAX], const char **name);
/** E_INPUT: what is wrong with a model's name that is no directory. */
strata_status st_handle_no_such_model(const char *name);
/** E_INPUT: a directory that has no config.json, but something else that is known, such as an adapter. */
strata_status st_handle_check_directory(const char *dir);
/** Open what the model's initial weights are read from; a preset has nothing to open. */
strata_status st_handle_open_weights(struct strata_model *m);
void st_handle_close_weights(struct strata_model *m);
/** Where the model's initial weights are read from, once it is open. */
struct st_weight_source st_handle_weights(struct strata_model *m);
/** Report the model's progress to its callback; E_CANCELLED: the callback asked to stop. */
strata_status st_handle_watch(const struct strata_model *m, const char *what, uint64_t done, uint64_t total);
/** Whether the machine is this one, and not that of a file or of names. */
static inline bool st_handle_is_here(const struct strata_machine *on)
{
    return on->name == NULL;
}
/** True if nothing is run: the plan may be for another machine. */
static inline bool st_handle_only_plans(const struct strata_model *m)
{
    return m->use == STRATA_USE_PLAN;
}
static inline bool st_handle_forward_only(const struct strata_model *m)
{
    return m->use == STRATA_USE_EVAL || m->use == STRATA_USE_GENERATE;
}
/** A run of the model, without an engine. */
static inline struct st_run st_handle_run(const struct strata_model *m)
{
    return (struct st_run){.config = &m->config,
                           .model = m->model,
                           .layers = m->layers,
                           .directory = m->is_dir ? m->name : NULL,
                           .instead = &m->beside.instead};
}
static inline const struct st_workload *st_handle_workload(const struct strata_model *m)
{
    return m->layers != NULL ? &m->layers->workload : st_model_workload(m->model);
}
/** Whether its runs make checkpoints. */
static inline bool st_handle_saves(const struct strata_model *m)
{
    return m->use == STRATA_USE_TRAIN && m->config.save[0] != '\0';
}
/** Whether an engine can be made of the plan. */
static inline bool st_handle_fits(const struct strata_plan *p)
{
    return st_case_fits(&p->facts);
}
/** Make the figures count what of the host memory an engine could not pin; a log line says what that costs. */
void st_handle_stage(struct strata_plan *p, const struct st_staged *staged);
/** The model's ranks; NULL: one. */
static inline struct st_comm *st_handle_comm(const struct strata_model *m)
{
    return m->comm != NULL ? m->comm->comm : NULL;
}
/** This rank and all of a comm's; NULL: one. */
static inline struct st_world st_handle_ranks(const struct strata_comm *comm)
{
    return comm != NULL ? comm->world : (struct st_world){.ranks = 1, .local_ranks = 1};
}
/** This rank and all of the run, or of the planned one. */
static inline struct st_world st_handle_world(const struct strata_machine *on)
{
    return on->planned.ranks > 0 ? on->planned : st_handle_ranks(on->comm);
}
/** What the model, its configuration and the machine's ranks ask of a plan: all that a case has before the machine is looked at.
 */
void st_handle_case(struct st_case *c, const struct strata_model *m, const struct strata_machine *on);
/** What a plan of this model takes of the machine, for one rank, without measuring.  E_INVAL, E_CONFIG, E_INPUT: it cannot be. */
strata_status st_handle_machine(struct st_machine *out, bool *rates_known, struct strata_model *model, struct strata_machine *on);
/** strata_plan_make() without a warning. */
strata_status st_handle_plan(struct strata_plan **plan, struct strata_model *model, struct strata_machine *on);
/** Warn where a plan for this machine takes more memory than it has: budgets may be those of a machine that is not here. */
void st_handle_note_memory(const struct strata_plan *of);
/** Make a plan of one that is made already, of this model for this machine.  `evaluated`: by its rates.  *plan is taken. E_NOMEM,
 *  E_INTERNAL: it is unsound. */
strata_status st_handle_adopt(struct strata_plan **out, struct strata_model *model, struct strata_machine *on,
                              struct st_plan **plan, const struct st_machine *machine, bool rates_known, bool evaluated);
/** E_INVAL: the configuration's batches count another number of ranks. */
strata_status st_handle_check_ranks(const struct st_config *values, uint32_t ranks, const char *whose);

#endif
