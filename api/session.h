/* api/session.h - what train, plan and eval share: configuration, model, machine, plan and engine, in this order.
 *
 * Each step needs the ones before it and may fail; st_session_close takes a session in any state.  It knows nothing of a command
 * line: cli/run.h makes its options from one. */
#ifndef API_SESSION_H
#define API_SESSION_H

#include "core/system/topology.h"
#include "model/data/tokens.h"
#include "model/model.h"
#include "offload/config/config.h"
#include "offload/engine.h"
#include "offload/figures.h"
#include "offload/machine.h"
#include "offload/plan.h"

/* What a session is for. */
enum st_use {
    ST_USE_TRAIN = 0,
    ST_USE_EVAL,     /* forward alone */
    ST_USE_GENERATE, /* forward over the next tokens of one sequence, behind those that a cache remembers */
    ST_USE_PLAN,     /* nothing is run: the plan may be for another machine, and the model's weights may be missing */
    ST_USE_REHEARSE, /* a bench runs the plan with weights of its own: another machine, too, and the paced device */
};

/** Told of work that takes its time: `done` of `total` (0: unknown); done 0 begins another piece of work, `what` is static. False
 *  ends it early, with E_CANCELLED.  Any thread, several at once. */
typedef bool st_watch_fn(void *ctx, const char *what, uint64_t done, uint64_t total);

#define ST_MAX_TOKENS_DEFAULT 128u

/* All borrowed until the session is closed. */
struct st_session_opts {
    enum st_use use;
    struct st_config_opts config;
    const char *model;      /* a preset or a directory */
    const char *device;     /* "cpu", "cuda", "cuda:N", "paced" */
    const char *machine;    /* machine file; NULL: none */
    uint32_t seq_len;       /* 0: the model's context or window, at most 1024 */
    uint32_t prompt_tokens; /* generate: of the prompt */
    uint32_t max_tokens;    /* generate: new ones; 0: ST_MAX_TOKENS_DEFAULT, or as many as the model holds */
    uint64_t seed;          /* of a preset's weights */
    bool nvme_named;        /* directories were named for this run alone */
    bool trace;             /* the first steps are recorded */
    uint64_t fake_seed;     /* fake io: order and latency */
    uint32_t fake_latency_us;
    st_watch_fn *watch; /* NULL: nobody watches */
    void *watch_ctx;
};

struct st_session {
    struct st_session_opts opts;
    struct st_config config;
    struct st_config_source *source;
    struct st_topology *topology;
    struct st_model *model;
    uint32_t seq;     /* of a call, at most */
    uint32_t context; /* generate: tokens the cache holds, prompt and new ones */
    bool model_is_dir;
    struct st_hf_reader *reader; /* weights of a directory */
    struct st_model_init init;   /* weights of a preset */
    struct st_machine file;      /* --machine; zeros: none */
    struct st_machine machine;
    bool rates_known; /* at least one rate */
    struct st_plan *plan;
    struct st_figures figures; /* of a plan that fits, at the rates that are known */
    struct st_engine *engine;
    struct st_trace *trace; /* NULL: off */
};

/** Configuration and topology; prints notices about keys without meaning here. */
strata_status st_session_configure(struct st_session *s, const struct st_session_opts *opts);
/** Model config, pages and workload; the weights of a directory are opened and checked (but for PLAN and REHEARSE, which need its
 *  config.json alone). */
strata_status st_session_model(struct st_session *s);
/** Open a token set for this model and sequence length. */
strata_status st_session_tokens(const struct st_session *s, struct st_token_set **out, const char *const *paths, uint32_t count);
/** Capacities and plan.  On E_NOFIT s->plan is set and says what is lacking. */
strata_status st_session_plan(struct st_session *s);
/** Rates from --machine, or measured; bounds of the plan follow.  Measures nothing unless `measure`. */
strata_status st_session_rates(struct st_session *s, bool measure);
/** The engine, with its weights loaded.  A disk without room is E_NOFIT here: nothing has been trained yet. */
strata_status st_session_start(struct st_session *s);
void st_session_close(struct st_session *s);

/** Tell who watches; E_CANCELLED: they want no more of it. */
strata_status st_session_watch(const struct st_session *s, const char *what, uint64_t done, uint64_t total);

/** Sequences of one step, and room for their tokens and targets. */
struct st_batch {
    uint32_t sequences, seq;
    int32_t *tokens, *targets; /* [sequences * seq] */
};
strata_status st_batch_create(struct st_batch *b, const struct st_session *s);
void st_batch_destroy(struct st_batch *b);

/* Forward over a whole token set. */
struct st_eval_result {
    double loss; /* mean over targets */
    double perplexity;
    double bits_per_byte;      /* NaN: source bytes unknown */
    uint64_t targets, windows; /* that were looked at */
};
/** Every window once, in order; what is missing of the last batch has targets of -1.  Flushes pending updates.
 *  *out holds what was done even after an error.  E_CANCELLED: who watches wants no more. */
strata_status st_evaluate(struct st_session *s, const struct st_token_set *set, struct st_batch *batch,
                          struct st_eval_result *out);

/** loss * tokens / (bytes * ln 2); NaN if the bytes per token are unknown. */
double st_bits_per_byte(double loss, const struct st_token_set *set);

#endif
