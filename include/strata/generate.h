/* strata/generate.h - a model that continues texts: how it chooses tokens, and the tokens one after another.
 *
 *     strata_model_sampling(model, &sampling, NULL);              what the model's files say
 *     strata_generation_open(&generation, engine, &sampling, NULL);
 *     strata_generation_begin(generation, ids, count);            the prompt
 *     while ((st = strata_generation_next(generation, &token)) == STRATA_OK && token >= 0)
 *         ... strata_stream_push(stream, token, &text, &bytes) ...
 *
 * Another text may begin at any time; what it has in common with the one before is not computed again. */
#ifndef STRATA_GENERATE_H
#define STRATA_GENERATE_H

#include "strata/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STRATA_TEMPERATURE_MOST 1e6 /* beyond these limits texts do not change any more, or logits leave the range of fp32 */
#define STRATA_REPETITION_LEAST 1e-6
#define STRATA_REPETITION_MOST  1e6
#define STRATA_END_TOKENS_MAX   64u

/** How tokens are chosen. */
struct strata_sampling {
    size_t sampling_size;      /**< sizeof(struct strata_sampling), set by the caller */
    bool sample;               /**< false: always the likeliest token */
    double temperature;        /**< logits are divided by it, 0 to STRATA_TEMPERATURE_MOST; 0: the likeliest token */
    double top_p;              /**< of those only the smallest set with this probability, above 0 to 1; 1: all */
    double repetition_penalty; /**< divides the logits of tokens already in the text if they are above 0, else multiplies them;
                                    sampling or not; STRATA_REPETITION_LEAST to STRATA_REPETITION_MOST; 1: none */
    uint64_t seed;             /**< the same gives the same text */
    uint32_t top_k;            /**< only the k likeliest, and those as likely as the last of them; 0: all */
    uint32_t end_count;
    uint32_t end_tokens[STRATA_END_TOKENS_MAX]; /**< [end_count] any of them ends the text */
    char from[32];                              /**< name of the file that says so; "": none, of a preset */
};
#define STRATA_SAMPLING_INIT STRATA_INIT(strata_sampling, sampling_size)

/** What is asked in place of what the model's files say.  Begin with STRATA_SAMPLING_OPTS_INIT; 0 and NULL: what they say. */
struct strata_sampling_opts {
    size_t opts_size;          /**< sizeof(struct strata_sampling_opts) */
    const double *temperature; /**< this and the next two ask for sampling, too.  Borrowed during the call */
    double top_p;
    uint32_t top_k;
    double repetition_penalty;
    uint64_t seed;
};
#define STRATA_SAMPLING_OPTS_INIT STRATA_INIT(strata_sampling_opts, opts_size)

/**
 * How a model's tokens are chosen, by generation_config.json, else config.json, as transformers' generate takes them. Unsupported
 * features that these ask for, and end tokens that the vocabulary lacks, are notices.
 *
 * @param sampling  out
 * @param opts      NULL: what the files say
 *
 * @return STRATA_E_INVAL  an argument is NULL, or a size is another one
 *         STRATA_E_INPUT  a file is missing or wrong; the sentence names it and the key
 *         STRATA_E_NOMEM, STRATA_E_IO
 */
STRATA_API strata_status strata_model_sampling(const struct strata_model *model, struct strata_sampling *sampling,
                                               const struct strata_sampling_opts *opts);

/** One more token that ends the text, such as strata_chat_end(): unless it does already, there are STRATA_END_TOKENS_MAX, or the
 *  vocabulary lacks it, which is a notice.  Below 0: none.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or its size is another one */
STRATA_API strata_status strata_sampling_end_at(struct strata_sampling *sampling, const struct strata_model *model,
                                                int32_t token);

struct strata_sampler; /**< chooses tokens from logits that the caller has, as a generation does from a model's */

/**
 * Open a sampler.
 *
 * @param sampler   out, returned: closed by strata_sampler_close()
 * @param vocab     logits of a token
 * @param sampling  copied
 *
 * @return STRATA_E_INVAL  an argument is NULL or out of its range, or sampling_size is another one
 *         STRATA_E_NOMEM
 *
 * Thread  one call at a time on one sampler, from any thread.
 */
STRATA_API strata_status strata_sampler_open(struct strata_sampler **sampler, uint32_t vocab,
                                             const struct strata_sampling *sampling);

/** Tokens that are part of the text, for the repetition penalty: the prompt's, and those that were chosen.
 *
 *  @param tokens  [count] int32; NULL: another text begins
 *
 *  @return STRATA_E_INVAL  sampler is NULL
 *          STRATA_E_INPUT  a token outside the vocabulary: those before it count */
STRATA_API strata_status strata_sampler_see(struct strata_sampler *sampler, const int32_t *tokens, size_t count);

/**
 * Choose a token.
 *
 * @param logits  [vocab] f32
 * @param index   of the token in the text, prompt included: its random number depends on it and the seed
 * @param token   out
 * @param ends    out, or NULL: it is one of the sampling's end tokens
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_NUMERICS  the logits have a NaN or +inf, or nothing but -inf
 */
STRATA_API strata_status strata_sampler_next(struct strata_sampler *sampler, const float *logits, uint64_t index, int32_t *token,
                                             bool *ends);

/** Close; NULL is fine. */
STRATA_API void strata_sampler_close(struct strata_sampler *sampler);

struct strata_generation; /**< a text that goes on.  One call at a time, from any thread */

/** How far.  Begin with STRATA_GENERATION_OPTS_INIT, or pass NULL. */
struct strata_generation_opts {
    size_t opts_size;    /**< sizeof(struct strata_generation_opts) */
    uint32_t max_tokens; /**< new ones at most; 0: as many as the cache has room for */
    /** Asked before each forward pass: other than 0 ends the call with STRATA_E_CANCELLED, and the engine stays usable.  Of
     * several ranks each is asked, and the answer of the first with another than 0 counts for all.  The engine is busy meanwhile.
     * NULL: nothing ends it. */
    int (*stop)(void *ctx);
    void *stop_ctx; /**< passed to it; must outlive the generation */
};
#define STRATA_GENERATION_OPTS_INIT STRATA_INIT(strata_generation_opts, opts_size)

/**
 * Prepare to continue texts.
 *
 * @param generation  out, returned: closed by strata_generation_close()
 * @param engine      borrowed until the last text; its model was opened with STRATA_USE_GENERATE
 * @param sampling    copied; of several ranks the same on each
 * @param opts        NULL: all defaults
 *
 * @return STRATA_E_INVAL  an argument is NULL or out of its range, a size is another one, or the model was opened for another use
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_generation_open(struct strata_generation **generation, struct strata_engine *engine,
                                                const struct strata_sampling *sampling,
                                                const struct strata_generation_opts *opts);

/**
 * Begin a text: run the model over its prompt, less the tokens at its beginning that the cache has already.  Of several ranks all
 * give the same.
 *
 * @param ids  [count] int32, below strata_model_info.vocab; borrowed during the call
 * @param count  1..strata_model_info.cache_tokens - 1
 *
 * @return STRATA_E_INVAL  an argument is NULL, or count is out of its range
 *         STRATA_E_INPUT  a token outside the vocabulary: nothing has run
 *         STRATA_E_BUSY  another call on the engine is in progress: the text before stays
 *         STRATA_E_CANCELLED  opts.stop, or strata_engine_cancel()
 *         otherwise as strata_engine_forward()
 */
STRATA_API strata_status strata_generation_begin(struct strata_generation *generation, const int32_t *ids, uint32_t count);

/**
 * The next token, which becomes part of the text.  Of several ranks rank 0 chooses it for all.
 *
 * @param token  out; the last one is the one that ends the text, if one does; -1: the text has ended before
 *
 * @return STRATA_E_INVAL  an argument is NULL, or no text has begun
 *         STRATA_E_NUMERICS  the logits have a NaN or +inf, or nothing but -inf
 *         STRATA_E_CANCELLED  opts.stop, or strata_engine_cancel(): the text stays as it is, and the next call goes on
 *         otherwise as strata_engine_forward()
 */
STRATA_API strata_status strata_generation_next(struct strata_generation *generation, int32_t *token);

/** What has ended a text. */
enum strata_text_end {
    STRATA_TEXT_GOES_ON = 0, /**< nothing, or opts.stop or a failure did */
    STRATA_TEXT_ENDED = 1,   /**< a token that ends texts */
    STRATA_TEXT_LONG = 2,    /**< opts.max_tokens */
    STRATA_TEXT_FULL = 3,    /**< the cache has no room for more */
};

/** The text so far. */
struct strata_generation_info {
    size_t info_size;       /**< sizeof(struct strata_generation_info), set by the caller */
    const int32_t *tokens;  /**< [prompt_tokens + new_tokens] borrowed until the next call on the generation */
    uint32_t prompt_tokens; /**< that it began with */
    uint32_t cached_tokens; /**< of these, that the model had seen before and were not computed again */
    uint32_t new_tokens;
    enum strata_text_end end;
    int stopped; /**< what opts.stop said, of any rank, the last time; 0: to go on */
};
#define STRATA_GENERATION_INFO_INIT STRATA_INIT(strata_generation_info, info_size)

/** Fill `info`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or its size is another one */
STRATA_API strata_status strata_generation_get_info(const struct strata_generation *generation,
                                                    struct strata_generation_info *info);

/** Close, before or after its engine; NULL is fine. */
STRATA_API void strata_generation_close(struct strata_generation *generation);

#ifdef __cplusplus
}
#endif
#endif
