/* model/hf/generation.h - how a model's files say that text is made with it: end tokens and how the next token is chosen.
 *
 * generation_config.json alone counts where it exists, else config.json, as in transformers' generate.  What a file does not say
 * has the defaults of transformers 4: greedy, and when sampling, the 50 likeliest tokens at temperature 1. */
#ifndef MODEL_HF_GENERATION_H
#define MODEL_HF_GENERATION_H

#include "model/model.h"

#define ST_END_TOKENS_MAX 64u

struct st_generation {
    uint32_t end_tokens[ST_END_TOKENS_MAX]; /* [end_count] any of them ends the text */
    uint32_t end_count;
    bool ends_said;            /* by the file; else those of the model's family */
    bool sample;               /* else the likeliest token, always */
    double temperature;        /* 0: the likeliest */
    uint32_t top_k;            /* 0: all */
    double top_p;              /* 1: all */
    double repetition_penalty; /* of tokens that stand in the text already, sampling or not; 1: none */
    char from[32];             /* file name that it was read from; "": a preset */
    char ignored[256];         /* keys that ask for what is not done here: "num_beams, min_p"; "": none */
};

/** Of a preset: every token as likely as the model says; GPT-2's vocabulary has an end token. */
void st_generation_of_preset(struct st_generation *out, const struct st_model_config *config);
/** Of a Hugging Face directory.  E_INPUT names file and key. */
strata_status st_generation_read(struct st_generation *out, const char *dir);
/** Of a file's text; `where` is its path, for errors. */
strata_status st_generation_parse(struct st_generation *out, const char *text, uint64_t bytes, const char *where);

#endif
