/* cli/session.h - what train, plan and eval share: configuration, model, machine, plan and engine, in this order.
 *
 * Each step needs the ones before it and may fail; cli_session_close takes a session in any state. */
#ifndef CLI_SESSION_H
#define CLI_SESSION_H

#include "cli/args.h"
#include "core/topology.h"
#include "model/model.h"
#include "model/tokens.h"
#include "offload/config/config.h"
#include "offload/engine.h"
#include "offload/machine.h"
#include "offload/plan.h"

struct cli_progress; /* cli/progress.h */

struct cli_session {
    const struct cli_args *args; /* borrowed */
    struct st_config config;
    struct st_config_source *source;
    struct st_topology *topology;
    struct st_model *model;
    uint32_t seq;           /* of a call, at most */
    uint32_t prompt_tokens; /* generate: set before cli_session_model */
    uint32_t context;       /* generate: tokens the cache holds, prompt and new ones */
    bool model_is_dir;
    struct st_hf_reader *reader; /* weights of a directory */
    struct st_model_init init;   /* weights of a preset */
    struct st_machine file;      /* --machine; zeros: none */
    struct st_machine machine;
    bool rates_known; /* at least one rate */
    struct st_plan *plan;
    struct st_engine *engine;
    struct st_trace *trace;        /* --trace; NULL: off */
    struct cli_progress *progress; /* borrowed; told of work that takes its time; NULL: nobody watches */
};

/** Configuration and topology; prints notices about keys without meaning here. */
strata_status cli_session_configure(struct cli_session *s, const struct cli_args *args);
/** Model config, pages and workload; `args->model` is a preset or a directory, whose weights are opened and checked
 *  (but for plan, which needs its config.json alone). */
strata_status cli_session_model(struct cli_session *s);
/** Open a token set for this model and sequence length. */
strata_status cli_session_tokens(const struct cli_session *s, struct st_token_set **out, const char *const *paths,
                                 uint32_t count);
/** Capacities and plan.  On E_NOFIT s->plan is set and says what is lacking. */
strata_status cli_session_plan(struct cli_session *s);
/** Rates from --machine, or measured; bounds of the plan follow.  Measures nothing unless `measure`. */
strata_status cli_session_rates(struct cli_session *s, bool measure);
/** The engine, with its weights loaded.  A disk without room is E_NOFIT here: nothing has been trained yet. */
strata_status cli_session_start(struct cli_session *s);
void cli_session_close(struct cli_session *s);

/** Sequences of one step, and room for their tokens and targets. */
struct cli_batch {
    uint32_t sequences, seq;
    int32_t *tokens, *targets; /* [sequences * seq] */
};
strata_status cli_batch_create(struct cli_batch *b, const struct cli_session *s);
void cli_batch_destroy(struct cli_batch *b);

/* Forward over a whole token set. */
struct cli_eval_result {
    double loss; /* mean over targets */
    double perplexity;
    double bits_per_byte;      /* NaN: source bytes unknown */
    uint64_t targets, windows; /* that were looked at */
};
/** Every window once, in order; what is missing of the last batch has targets of -1.  Flushes pending updates.
 *  *out holds what was done even after an error.  E_CANCELLED: a signal came. */
strata_status cli_evaluate(struct cli_session *s, const struct st_token_set *set, struct cli_batch *batch,
                           struct cli_eval_result *out);

/** loss * tokens / (bytes * ln 2); NaN if the bytes per token are unknown. */
double cli_bits_per_byte(double loss, const struct st_token_set *set);

#endif
