/* api/handles.h - what the public handles hold.  For api/, and for what of the program still looks inside
 * (tools/check_layers.sh).
 *
 * A model is shared by its plans, engines and exports, a plan by its engine: each counts who uses it and goes with the last.  The
 * counts are the one thing that two threads may touch at once, by way of two handles. */
#ifndef API_HANDLES_H
#define API_HANDLES_H

#include "core/system/topology.h"
#include "model/data/tokens.h"
#include "model/model.h"
#include "offload/config/config.h"
#include "offload/engine/engine.h"
#include "offload/machine/machine.h"
#include "offload/plan/plan.h"
#include "offload/simulate/figures.h"
#include "strata/engine.h"
#include <stdatomic.h>

struct strata_config {
    struct st_config values;
    struct st_config_source *source; /* its rows, and the problems of one that was only to be checked */
    char *name;                      /* of its file, for sentences */
    bool nvme_named;                 /* directories were named for this run alone */
    bool bf16_off;                   /* its file turns bf16 off, without another precision */
    char *json;                      /* NULL: not asked for yet */
};

struct strata_model {
    atomic_uint users;
    atomic_flag has_engine;
    struct st_config config; /* a copy, its dtype known */
    enum strata_use use;
    char *name; /* preset or directory */
    char *device;
    char *machine; /* machine file; NULL: none */
    bool nvme_named;
    uint64_t seed;
    strata_progress_fn *progress;
    void *progress_ctx;
    struct st_topology *topology;
    struct st_machine file; /* what the machine file says; zeros: none */
    struct st_model *model;
    uint32_t seq;     /* of a call, at most */
    uint32_t context; /* generate: tokens the cache holds, prompt and new ones */
    bool is_dir;
    struct st_hf_reader *reader; /* of a directory, until its weights are loaded */
    struct st_model_init init;   /* of a preset */
};

struct strata_plan {
    atomic_uint users;
    struct strata_model *model;
    struct st_machine machine;
    bool rates_known; /* at least one rate */
    atomic_bool has_engine;
    struct st_plan *plan;
    struct st_figures figures; /* of a plan that fits, at the rates that are known */
    char *text, *json;         /* NULL: not asked for yet */
};

struct strata_engine {
    struct strata_plan *plan;
    struct st_engine *engine;
    struct st_trace *trace; /* NULL: off */
    bool loaded;
    bool lr_set; /* the caller's learning rate counts, not the schedule's */
    double lr;
};

struct strata_data {
    struct st_token_set *set;
    uint32_t seq;
};

struct strata_export {
    struct strata_model *model;
    struct st_hf_writer *writer; /* NULL: written */
};

/** What a function needs and was not given: E_INVAL naming both. */
strata_status st_handle_missing(const char *function, const char *what);
/** A caller's struct of options, which begins with its size, into *to, which has the library's: what the caller's lacks is 0.
 *  `from` NULL: all of it.
 *  @param first  bytes of the struct's first version
 *  @return E_INVAL: a size that no version has, or something set that this version does not know */
strata_status st_handle_opts(void *to, size_t bytes, size_t first, const void *from, const char *name);
/** The same the other way: *to, the caller's, gets what it has room for.  Its size stays. */
strata_status st_handle_result(void *to, size_t first, const void *from, size_t bytes, const char *name);
/** A copy of a text; NULL stays NULL.  E_NOMEM. */
strata_status st_handle_text(char **out, const char *text);

/** E_INVAL, naming the function: no engine, or nothing is loaded yet. */
strata_status st_handle_loaded(const struct strata_engine *e, const char *function);
/** Tell who watches the model's work; E_CANCELLED: they want no more of it. */
strata_status st_handle_watch(const struct strata_model *m, const char *what, uint64_t done, uint64_t total);
/** Nothing is run: the plan may be for another machine. */
static inline bool st_handle_only_plans(const struct strata_model *m)
{
    return m->use == STRATA_USE_PLAN;
}
static inline bool st_handle_forward_only(const struct strata_model *m)
{
    return m->use == STRATA_USE_EVAL || m->use == STRATA_USE_GENERATE;
}
/** Threads, for each of which the device has scratch: those of the machine that the model is planned for. */
uint32_t st_handle_workers(const struct strata_model *m);

#endif
