/* strata/model.h - a decoder to run as a configuration says: its shape, the source of its weights, the size of a step.
 *
 *     struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
 *     struct strata_model *model;
 *
 *     opts.model = "./llama-1b";
 *     opts.seq_len = 2048;
 *     st = strata_model_open(&model, config, &opts);
 *
 * Opening a model reads no weights into memory: an engine does when it loads them. */
#ifndef STRATA_MODEL_H
#define STRATA_MODEL_H

#include "strata/config.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_model; /**< lives as long as its plans and engines do, even if it is closed before them */

#define STRATA_MAX_TOKENS_DEFAULT 128u /**< tokens to generate if no number is given */

/** What a model is opened for. */
enum strata_use {
    STRATA_USE_TRAIN = 0,    /**< steps, and evaluation between them */
    STRATA_USE_EVAL = 1,     /**< only forward: no gradients, no optimizer state */
    STRATA_USE_GENERATE = 2, /**< forward over the next tokens of one sequence; a cache remembers the earlier ones */
    STRATA_USE_PLAN = 3,     /**< nothing is run: weights may be missing, and the plan may be for a machine that is not here */
};

/** Receives the progress of long work: measuring rates, loading weights, evaluating.
 *
 *  @param what   static text; new work begins with `done` 0
 *  @param done   out of `total`, in units of the work; several threads may report out of order
 *  @param total  0: not known
 *
 *  @return false: end the work early, with STRATA_E_CANCELLED
 *
 *  Thread  the caller's; while weights are loaded any of the library's, several at once.  It may call no function of the
 *          library but strata_engine_cancel(). */
typedef bool strata_progress_fn(void *ctx, const char *what, uint64_t done, uint64_t total);

struct strata_comm;

/** Which model to open, and what for.  Begin with STRATA_MODEL_OPTS_INIT; texts are copied. */
struct strata_model_opts {
    size_t opts_size; /**< sizeof(struct strata_model_opts) */

    /* The model. */
    const char *model; /**< a preset ("nano", "gpt2", "llama-1b", ...), a directory as Hugging Face writes it, or a
                            checkpoint or a directory of them: the weights of the newest one that opens.  PLAN: also only a
                            file config.json, or a published model's name, for the preset of its shapes */
    uint64_t seed;     /**< for a preset's initial weights, and new adapters' */
    /** A directory with adapter_config.json and adapter_model.safetensors, as PEFT or strata writes it: the model has this
     * adapter, and TRAIN goes on from it.  The configuration has no "strata.lora" then.  NULL: none, or as "strata.lora" says,
     * or, if `model` is a checkpoint of a run that trained one, that. */
    const char *adapter;
    /** A directory or file with a tokenizer: makes tokens of texts (strata_data_open_texts()), and is written beside the weights
     * of what the run exports and saves, in place of the model's own.  "byte": one token per byte, and nothing is written.  NULL:
     * the model's own. */
    const char *tokenizer;
    /** TRAIN: strata_texts_opts.chat_template of what it is trained on, which is written beside the weights of what the run
     * exports and saves as chat_template.jinja, in place of the model's own; a token that ends its answers is added to those of
     * generation_config.json.  NULL: the model's own. */
    const char *chat_template;

    /* What it is opened for, and how large its steps are. */
    enum strata_use use;
    uint32_t seq_len;      /**< tokens of a sequence; 0: the model's context, at most seq_len_most */
    uint32_t seq_len_most; /**< where seq_len is 0; 0: 1024 */
    bool documents; /**< TRAIN, EVAL: a sequence may hold several documents (strata_data_documents()): steps take positions */
    uint32_t prompt_tokens; /**< GENERATE: tokens of the prompt, 1 or more */
    uint32_t max_tokens; /**< GENERATE: tokens to generate; 0: STRATA_MAX_TOKENS_DEFAULT, or as many as the model has room for */
    /** GENERATE: tokens that the cache has room for, instead of prompt_tokens and max_tokens; at most the model's context is
     *  taken.  0: as many as these two ask for. */
    uint32_t cache_tokens;

    /* The run. */
    /** TRAIN, EVAL, GENERATE: the ranks of the run, borrowed until the model, its plans and engines are gone; the configuration
     * was opened for as many, and so is the machine of its plans.  NULL: one rank. */
    struct strata_comm *comm;
    /** TRAIN, for a run that will resume and save: checkpoints of it that strata.save has already (strata_checkpoint_info.kept).
     * As new ones are made these go, so the plan takes no room for them again. */
    uint32_t saved_checkpoints;
    strata_progress_fn *progress; /**< for this model's plans and engines; NULL: no progress is reported */
    void *progress_ctx;           /**< passed to it; must outlive them */
};
#define STRATA_MODEL_OPTS_INIT STRATA_INIT(strata_model_opts, opts_size)

/**
 * Open a model.  For a directory this reads config.json and checks the headers of the weights (except with STRATA_USE_PLAN).
 *
 * @param model   out, returned: closed by strata_model_close()
 * @param config  borrowed during the call: precision, micro-batch, accumulation, frozen tensors, budgets, directories
 *
 * @return STRATA_E_INVAL   an argument is NULL or out of range: no such preset, a sequence over the
 *                          model's context, a pattern of frozen tensors that names none
 *         STRATA_E_INPUT   a directory is missing or wrong; the sentence names file and key
 *         STRATA_E_CONFIG  the adapter's settings are wrong, or do not fit the model; the configuration names no precision, and
 *                          the weights are stored in fp16; or the ranks differ in configuration, model or version, and the
 *                          sentence says in what
 *         STRATA_E_CORRUPT a checkpoint is damaged, and none of the directory is whole
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Thread  any.
 */
STRATA_API strata_status strata_model_open(struct strata_model **model, const struct strata_config *config,
                                           const struct strata_model_opts *opts);

/** Whether a name is that of a directory, or of ORG/NAME on the Hugging Face hub, that is not on this machine:
 * strata_model_open() would find nothing.  False for presets, for what is here, and for what it refuses for another reason; and
 * for NULL. */
STRATA_API bool strata_model_is_away(const char *model);

/** Facts about a model, and the size of its step. */
struct strata_model_info {
    size_t info_size; /**< sizeof(struct strata_model_info), set by the caller */
    char name[64];
    strata_dtype dtype;       /**< of weights and activations */
    bool adapter;             /**< an adapter beside its weights is trained, or goes with them */
    uint64_t params;          /**< trained and frozen, tied ones once */
    uint32_t blocks, hidden;  /**< transformer blocks; width of the residual stream */
    uint32_t vocab;           /**< tokens are 0..vocab - 1 */
    uint32_t context;         /**< the most positions that the model supports */
    uint32_t seq_len;         /**< tokens of a sequence; GENERATE: the most tokens of one forward pass */
    uint32_t cache_tokens;    /**< GENERATE: prompt and new tokens that the cache has room for; else 0 */
    uint32_t micro_batch;     /**< sequences of a forward and backward pass */
    uint32_t grad_accum;      /**< micro-batches of a step */
    uint32_t step_sequences;  /**< sequences that this rank gives to a step: micro_batch * grad_accum */
    uint32_t rank, ranks;     /**< this process and all of the run */
    uint32_t world_sequences; /**< sequences of a step, of all ranks: rank r has r * step_sequences and those that follow */
};
#define STRATA_MODEL_INFO_INIT STRATA_INIT(strata_model_info, info_size)

/** Fill `info`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or info_size is another one */
STRATA_API strata_status strata_model_get_info(const struct strata_model *model, struct strata_model_info *info);

/**
 * Say how many steps the run has, where the configuration was opened with strata_config_opts.steps_later: the number may depend
 * on data, and data on the model.  Schedules whose length is "auto" get theirs; a second call replaces the first one's number.
 *
 * @param steps  1 to 2^53
 *
 * @return STRATA_E_INVAL   model is NULL, or steps is out of its range
 *         STRATA_E_CONFIG  the schedule cannot be so long: OneCycle's momentum would reach 1
 *
 * Thread  any, before an engine is created.
 */
STRATA_API strata_status strata_model_set_steps(struct strata_model *model, uint64_t steps);

/** Close; plans, engines and exports made from it stay valid.  NULL is fine. */
STRATA_API void strata_model_close(struct strata_model *model);

/**
 * Digest of the weights of a Hugging Face directory, in the order of parameters: what strata_engine_digest() says of them.
 *
 * @param dir     directory with config.json and weights
 * @param digest  [33] out: 32 hex digits and a NUL.  XXH3-128
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_INPUT  a file is missing, damaged, or of a model that is not known
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Cost    reads the weights once.
 * Thread  any.
 */
STRATA_API strata_status strata_directory_digest(const char *dir, char digest[33]);

/** Name of preset `index`, from 0; NULL past the last.  Static. */
STRATA_API const char *strata_preset_name(uint32_t index);

#ifdef __cplusplus
}
#endif
#endif
