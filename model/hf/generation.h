/* model/hf/generation.h - what a model's files say about generation: end tokens and how to choose the next token.
 *
 * If generation_config.json exists, only it counts, else config.json, as in transformers' generate.  Missing keys have the
 * defaults of transformers 4: greedy, and when sampling, the 50 likeliest tokens at temperature 1. */
#ifndef MODEL_HF_GENERATION_H
#define MODEL_HF_GENERATION_H

#include "model/model.h"

#define ST_END_TOKENS_MAX 64u

struct st_generation {
    uint32_t end_tokens[ST_END_TOKENS_MAX]; /* [end_count] any of them ends the text */
    uint32_t end_count;
    bool ends_said;            /* the file names the end tokens; else they are those of the model's family */
    bool sample;               /* false: always the likeliest token */
    double temperature;        /* 0: the likeliest token */
    uint32_t top_k;            /* 0: all */
    double top_p;              /* 1: all */
    double repetition_penalty; /* for tokens that are already in the text, sampling or not; 1: none */
    char from[32];             /* name of the file it was read from; "": a preset */
    char ignored[256];         /* keys that ask for unsupported features: "num_beams, min_p"; "": none */
};

/** For a preset: samples from the model's own distribution; GPT-2's vocabulary has an end token. */
void st_generation_of_preset(struct st_generation *out, const struct st_model_config *config);
/** For a Hugging Face directory.  E_INPUT names file and key. */
strata_status st_generation_read(struct st_generation *out, const char *dir);
/** From a file's text; `where` is its path, for errors. */
strata_status st_generation_parse(struct st_generation *out, const char *text, uint64_t bytes, const char *where);

#endif
