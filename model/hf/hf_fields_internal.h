/* model/hf/hf_fields_internal.h - members of a config.json, and the readers of its families.  Private to model/hf/. */
#ifndef MODEL_HF_HF_FIELDS_INTERNAL_H
#define MODEL_HF_HF_FIELDS_INTERNAL_H

#include "core/json/json.h"
#include "model/family.h"

enum st_hf_field { ST_HF_REQUIRED, ST_HF_OPTIONAL };

/** Returns E_INPUT with the sentence `where`: "key" `what`. */
strata_status st_hf_key_fault(const char *where, const char *key, const char *what);
/** The same with a value: n, which may be NULL, or that of the key, if it is there. */
strata_status st_hf_node_fault(const st_json *n, const char *where, const char *key, const char *what);
strata_status st_hf_value_fault(const st_json *root, const char *where, const char *key, const char *what);
/** A member that exists and is not null, or NULL. */
const st_json *st_hf_member(const st_json *root, const char *key);
/** Read a whole number above 0; if it is absent and optional, *out stays. */
strata_status st_hf_read_size(const st_json *root, const char *key, enum st_hf_field kind, uint32_t *out, const char *where);
/** If the key is absent, *out stays. */
strata_status st_hf_read_real(const st_json *root, const char *key, double *out, const char *where);
/** Read a number that a model uses in single precision: it must be finite there, and 0 only if it is 0. */
strata_status st_hf_read_single(const st_json *root, const char *key, double *out, const char *where);
strata_status st_hf_read_bool(const st_json *root, const char *key, bool *out, const char *where);
/** Read a string; if the key is absent, *out stays.  Borrowed from root. */
strata_status st_hf_read_text(const st_json *root, const char *key, const char **out, const char *where);
/** Check a switch that must have, or default to, the one value that is implemented. */
strata_status st_hf_want_bool(const st_json *root, const char *key, bool want, const char *where);
/** Read a number between 0 and 1, exclusive, narrowed to float. */
strata_status st_hf_read_eps(const st_json *root, const char *key, double value, float *out, const char *where);
/** The largest of some dropout rates, each `value` when absent. */
strata_status st_hf_read_dropout(const st_json *root, const char *const *keys, size_t count, double value, float *out,
                                 const char *where);

/** Parse everything but the name from an object whose model_type is known; *c: the family's defaults. */
strata_status st_hf_gpt2_parse(struct st_model_config *c, const st_json *root, const char *where);
strata_status st_hf_llama_parse(struct st_model_config *c, const st_json *root, const struct st_family *family,
                                const char *where);
/** Whether the weights are quantised, and as nf4. */
strata_status st_hf_read_quantisation(struct st_model_config *c, const st_json *root, const char *where);
/** Which layers have experts, and which; sizes are known. */
strata_status st_hf_read_experts(struct st_model_config *c, const st_json *root, const struct st_family *family,
                                 const char *where);
/** Which layers slide, and which are not rotated. */
strata_status st_hf_read_layers(struct st_model_config *c, const st_json *root, const struct st_family *family,
                                const char *where);
/** Rotary positions; sizes and heads are known. */
strata_status st_hf_read_rope(struct st_model_config *c, const st_json *root, const struct st_family *family, const char *where);

#endif
