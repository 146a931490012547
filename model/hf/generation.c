/* model/hf/generation.c - see generation.h.  Keys and defaults: transformers' GenerationConfig. */
#include "model/hf/generation.h"
#include "core/base/error.h"
#include "core/system/file.h"
#include "model/decoder/sampler.h"
#include "model/hf/hf_fields_internal.h"
#include "model/hf/hf_output_internal.h"
#include "model/layout.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (1u << 20)
#define TOP_K_DEFAULT  50u

/* --- unsupported keys --- */

/* Keys that change what is generated, and the number with which they have no effect; null, false, "" and [] never have one. */
static const struct {
    const char *key;
    double none;
} others[] = {
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"penalty_alpha", 0},
    {"min_p", 0},
    {"typical_p", 1},
    {"top_h", 0},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"no_repeat_ngram_size", 0},
    {"encoder_no_repeat_ngram_size", 0}, /* of the prompt, where there is no encoder */
    {"encoder_repetition_penalty", 1},
    {"token_healing", 0},
    {"dola_layers", 0},
    {"min_length", 0},
    {"min_new_tokens", 0},
    {"guidance_scale", 1},
    {"bad_words_ids", 0},
    {"force_words_ids", 0},
    {"constraints", 0},
    {"sequence_bias", 0},
    {"forced_bos_token_id", -1},
    {"forced_eos_token_id", -1},
    {"suppress_tokens", 0},
    {"begin_suppress_tokens", 0},
    {"exponential_decay_length_penalty", 0},
    {"stop_strings", 0},
    {"watermarking_config", 0},
};

static bool asks(const st_json *n, double none)
{
    switch (st_json_type(n)) {
    case ST_JSON_NULL:
        return false;
    case ST_JSON_BOOL:
        return st_json_bool(n);
    case ST_JSON_NUMBER:
        return st_json_number(n) != none;
    case ST_JSON_STRING:
        return st_json_string(n)[0] != '\0';
    default:
        return st_json_first(n) != NULL;
    }
}

static void list_ignored(struct st_generation *g, const st_json *root)
{
    size_t length = 0;

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        const st_json *n = st_json_get(root, others[i].key);

        if (n != NULL && asks(n, others[i].none) && length < sizeof(g->ignored))
            length += (size_t)snprintf(g->ignored + length, sizeof(g->ignored) - length, "%s%s", length == 0 ? "" : ", ",
                                       others[i].key);
    }
}

/* --- end tokens --- */

static strata_status add_end(struct st_generation *g, const st_json *n, const char *where)
{
    uint64_t id;

    if (!st_json_u64(n, &id) || id > INT32_MAX)
        return st_hf_key_fault(where, "eos_token_id", "must be a token's number, a list of them, or null");
    if (g->end_count == ST_END_TOKENS_MAX)
        return st_error(STRATA_E_INPUT, "%s: \"eos_token_id\" lists more than %u tokens", where, ST_END_TOKENS_MAX);
    g->end_tokens[g->end_count++] = (uint32_t)id;
    return STRATA_OK;
}

/* If config.json lacks the key, the family's end token applies. */
static void add_default_end(struct st_generation *g, const st_json *root)
{
    const st_json *type = st_json_get(root, "model_type");
    const struct st_family *family =
        type != NULL && st_json_type(type) == ST_JSON_STRING ? st_family_named(st_json_string(type)) : NULL;

    if (family != NULL && family->end_token != 0)
        g->end_tokens[g->end_count++] = family->end_token;
}

/* A model of more than text may name its end tokens only in the settings of its text model. */
static strata_status read_ends(struct st_generation *g, const st_json *root, const char *where)
{
    const st_json *ends = st_json_get(root, "eos_token_id"), *text = st_hf_member(root, "text_config");
    strata_status st = STRATA_OK;

    if (ends == NULL && text != NULL && st_json_type(text) == ST_JSON_OBJECT) {
        root = text;
        ends = st_json_get(text, "eos_token_id");
    }
    if (ends == NULL) {
        add_default_end(g, root);
        return STRATA_OK;
    }
    g->ends_said = true;
    if (st_json_type(ends) == ST_JSON_NULL)
        return STRATA_OK;
    if (st_json_type(ends) != ST_JSON_ARRAY)
        return add_end(g, ends, where);
    for (const st_json *n = st_json_first(ends); n != NULL && st == STRATA_OK; n = st_json_next(n))
        st = add_end(g, n, where);
    return st;
}

/* --- sampling --- */

/* A number's key, its range, and the value that null stands for, which switches it off. */
struct number {
    const char *key;
    double least, most, none;
};

/* If the key is absent, *out stays. */
static strata_status read_number(const st_json *root, const struct number *number, double *out, const char *where)
{
    const st_json *n = st_json_get(root, number->key);
    double value = n != NULL && st_json_type(n) == ST_JSON_NULL ? number->none : *out;
    const strata_status st = st_hf_read_real(root, number->key, &value, where);

    if (st != STRATA_OK)
        return st;
    if (!(value >= number->least && value <= number->most))
        return st_error(STRATA_E_INPUT, "%s: \"%s\" is %g: it must be from %g to %.10g", where, number->key, value, number->least,
                        number->most);
    *out = value;
    return STRATA_OK;
}

static strata_status read_sampling(struct st_generation *g, const st_json *root, const char *where)
{
    static const struct number temperature = {"temperature", 0, STRATA_TEMPERATURE_MOST, 1},
                               largest_k = {"top_k", 0, UINT32_MAX, 0}, top_p = {"top_p", 0, 1, 1},
                               penalty = {"repetition_penalty", STRATA_REPETITION_LEAST, STRATA_REPETITION_MOST, 1};
    double top_k = TOP_K_DEFAULT;
    strata_status st;

    if ((st = st_hf_read_bool(root, "do_sample", &g->sample, where)) != STRATA_OK ||
        (st = read_number(root, &temperature, &g->temperature, where)) != STRATA_OK ||
        (st = read_number(root, &largest_k, &top_k, where)) != STRATA_OK ||
        (st = read_number(root, &top_p, &g->top_p, where)) != STRATA_OK ||
        (st = read_number(root, &penalty, &g->repetition_penalty, where)) != STRATA_OK)
        return st;
    if (top_k != floor(top_k))
        return st_hf_key_fault(where, "top_k", "must be a whole number");
    g->top_k = (uint32_t)top_k;
    g->top_p = fmax(g->top_p, DBL_MIN); /* with 0 the likeliest token is left */
    return STRATA_OK;
}

/* --- whole files --- */

strata_status st_generation_parse(struct st_generation *out, const char *text, uint64_t bytes, const char *where)
{
    struct st_generation g = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    st_json *root;
    strata_status st = st_json_parse(&root, text, bytes, where);

    if (st != STRATA_OK)
        return st == STRATA_E_NOMEM ? st : st_error_prefix(STRATA_E_INPUT, "generation config");
    if (st_json_type(root) != ST_JSON_OBJECT)
        st = st_error(STRATA_E_INPUT, "%s: not a JSON object", where);
    else if ((st = read_ends(&g, root, where)) == STRATA_OK && (st = read_sampling(&g, root, where)) == STRATA_OK)
        list_ignored(&g, root);
    st_json_free(root);
    if (st == STRATA_OK)
        *out = g;
    return st;
}

strata_status st_generation_read(struct st_generation *out, const char *dir)
{
    const char *name = ST_HF_GENERATION_NAME;
    char path[ST_PATH_MAX];
    uint64_t bytes;
    bool there;
    char *text;
    strata_status st;

    if ((st = st_path_join(path, dir, name)) != STRATA_OK || (st = st_file_find(&there, path)) != STRATA_OK)
        return st;
    if (!there) {
        name = ST_HF_CONFIG_NAME;
        if ((st = st_path_join(path, dir, name)) != STRATA_OK)
            return st;
    }
    if ((st = st_file_read_text(&text, &bytes, path, FILE_BYTES_MAX)) != STRATA_OK)
        return st;
    st = st_generation_parse(out, text, bytes, path);
    free(text);
    if (st == STRATA_OK)
        snprintf(out->from, sizeof(out->from), "%s", name);
    return st;
}

void st_generation_of_preset(struct st_generation *out, const struct st_model_config *config)
{
    *out = (struct st_generation){.sample = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
    if (config->family == ST_FAMILY_GPT2 && config->vocab == ST_GPT2_VOCAB)
        out->end_tokens[out->end_count++] = ST_GPT2_END_OF_TEXT;
}
