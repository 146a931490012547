/* model/adapter/adapter.h - which linear layers of a model have adapters, and of which rank and scale, in PEFT's words.
 *
 * An adapter of a linear layer W [out, in] is A [r, in] and B [out, r], fp32: y = round(fp32(W x + b) + scale B (A x)).  The same
 * keys are read from the object `strata.lora` of a configuration and from PEFT's adapter_config.json, with PEFT's defaults; what
 * would mean other sums is refused by name.  Where a key names modules that the model does not have, that is an error here, where
 * PEFT says nothing. */
#ifndef MODEL_ADAPTER_ADAPTER_H
#define MODEL_ADAPTER_ADAPTER_H

#include "core/json/json.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ST_ADAPTER_RANK_MAX      8192u
#define ST_ADAPTER_ALPHA_MAX     1e6 /* as the recipes' tables have it, and the rank's */
#define ST_ADAPTER_RANK_DEFAULT  8u
#define ST_ADAPTER_ALPHA_DEFAULT 8u

#define ST_ADAPTER_CONFIG_NAME  "adapter_config.json"
#define ST_ADAPTER_WEIGHTS_NAME "adapter_model.safetensors"
#define ST_ADAPTER_PREFIX       "base_model.model." /* of the names of all tensors in it */

/** Whether a tensor is an adapter's own, by its name. */
static inline bool st_adapter_is_own(const char *name)
{
    return strncmp(name, ST_ADAPTER_PREFIX, sizeof(ST_ADAPTER_PREFIX) - 1) == 0;
}

/* How A begins; B is zero.  UNIFORM: from -1/sqrt(in) to 1/sqrt(in); GAUSSIAN: N(0, 1/r), r being the standard deviation's
 * divisor. */
enum st_adapter_init { ST_ADAPTER_INIT_UNIFORM = 0, ST_ADAPTER_INIT_GAUSSIAN };

struct st_adapter_spec;

/** Read the keys of an object.  @param where  what errors call the object: a file, or FILE: strata.lora
 *  E_CONFIG: unknown keys, values out of range, what is not supported, by name; E_NOMEM. */
strata_status st_adapter_spec_read(struct st_adapter_spec **out, const st_json *object, const char *where);
/** The same from text. */
strata_status st_adapter_spec_parse(struct st_adapter_spec **out, const char *text, size_t bytes, const char *where);
/** The same from a file of at most 1 MiB: an adapter_config.json. */
strata_status st_adapter_spec_read_file(struct st_adapter_spec **out, const char *path);
void st_adapter_spec_destroy(struct st_adapter_spec *spec); /* NULL is fine */

enum st_adapter_init st_adapter_spec_init(const struct st_adapter_spec *spec);
double st_adapter_spec_dropout(const struct st_adapter_spec *spec); /* of the inputs of all adapters, in training */
/** Whether modules are trained whole beside the adapters. */
bool st_adapter_spec_saves(const struct st_adapter_spec *spec);
/** *fits: whether target_modules, if it is an expression, matches the path. */
strata_status st_adapter_spec_targets(const struct st_adapter_spec *spec, const char *path, bool *fits);
/** Rank and scale that patterns give a path; where none fits, r and lora_alpha count so many times. */
strata_status st_adapter_spec_values(const struct st_adapter_spec *spec, const char *path, uint32_t times, double *rank,
                                     double *scale);
/** What errors call the settings. */
const char *st_adapter_spec_where(const struct st_adapter_spec *spec);
/** The object that was read.  Borrowed. */
const st_json *st_adapter_spec_object(const struct st_adapter_spec *spec);

enum st_adapter_module_kind {
    ST_ADAPTER_LINEAR,    /* a linear layer of a block: it can have an adapter */
    ST_ADAPTER_NORM,      /* has none, but can be trained and saved whole, as all can */
    ST_ADAPTER_EMBEDDING, /* of tokens or positions */
    ST_ADAPTER_HEAD,
    ST_ADAPTER_ROUTER, /* no linear layer in transformers 5 */
    ST_ADAPTER_EXPERT, /* a linear layer of an expert, if target_modules names it: "all-linear" does not mean it */
    ST_ADAPTER_STACK,  /* a parameter that has a layer's experts, as transformers 5 has them: what target_parameters names */
};
/* A module of a model: what the parts of a tensor's name before ".weight" or ".bias" say. */
struct st_adapter_module {
    char path[96]; /* "model.layers.0.self_attn.q_proj" */
    enum st_adapter_module_kind kind;
    bool tied;   /* the head, or the table, of a model that has one matrix for both */
    uint32_t r;  /* out: the rank of its adapter; 0: it has none */
    float scale; /* out */
    bool saved;  /* out: trained, and saved whole (modules_to_save) */
};

/** Say for each module of a model what it gets.
 *  @param modules  [count], in the model's order; a tied head is one of them
 *  @param targets  names between spaces that have adapters if the object has no target_modules; NULL: it must have them
 *  @param unfitted  NULL: all of the model's modules are here.  Else they are its text model's, and names that fit none of them
 *                   may be those of others: they are counted here
 *  E_CONFIG: a name or pattern that fits no module, with near ones; a target that cannot have an adapter; a tied table to save;
 *  nothing to train.  E_NOMEM. */
strata_status st_adapter_resolve(const struct st_adapter_spec *spec, struct st_adapter_module *modules, uint32_t count,
                                 const char *targets, uint32_t *unfitted);

#endif
