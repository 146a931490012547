/* model/hf/hf_config_rope.c - rotary positions of a config.json.
 *
 * Settings are in "rope_theta" and "rope_scaling", or all in "rope_parameters" (transformers 5), there by the type of layer where
 * sliding layers have another base.  Where transformers 4 and 5 would compute something else from the same keys, they are
 * refused. */
#include "core/base/error.h"
#include "model/hf/hf_fields_internal.h"
#include <math.h>
#include <string.h>

/* A scaling, and what lies around it. */
struct scaling {
    const st_json *object;
    const st_json *root; /* config.json, which may name the original context beside it; NULL: of one type of layer, where it
                            counts for nothing */
    bool by_both;        /* transformers 4 reads it, too: rope_scaling */
};

static const char original_key[] = "original_max_position_embeddings";

#define YARN_SLOW 1.0
#define YARN_FAST 32.0

static strata_status read_factor(const st_json *object, const char *key, float *out, const char *where)
{
    double value;
    strata_status st;

    if (st_hf_member(object, key) == NULL)
        return st_hf_key_fault(where, key, "is missing from the rotary scaling");
    if ((st = st_hf_read_single(object, key, &value, where)) == STRATA_OK)
        *out = (float)value;
    return st;
}

/* 0 would mean no scaling. */
static strata_status read_scale(struct st_model_config *c, const st_json *scaling, const char *where)
{
    const strata_status st = read_factor(scaling, "factor", &c->rope_factor, where);

    if (st == STRATA_OK && !(c->rope_factor >= 1.0f))
        return st_hf_value_fault(scaling, where, "factor", "of the rotary scaling must be 1 or more");
    return st;
}

/* Scaled positions reach `factor` times as far; files often leave max_position_embeddings at the original context. */
static void extend_context(struct st_model_config *c, uint32_t original)
{
    const double most = fmin((double)original * (double)c->rope_factor, ST_CONTEXT_MAX);

    if (most > c->context)
        c->context = (uint32_t)most;
}

/* Scaling by 1 is none.  Gemma 3's context has the factor in it. */
static strata_status read_linear(struct st_model_config *c, const st_json *scaling, uint32_t keys, const char *where)
{
    uint32_t original = c->context; /* its computation needs none, but files may say one */
    strata_status st = read_scale(c, scaling, where);

    if (st == STRATA_OK && (keys & ST_KEY_LAYER_ROPES) == 0 &&
        (st = st_hf_read_size(scaling, original_key, ST_HF_OPTIONAL, &original, where)) == STRATA_OK)
        extend_context(c, original);
    if (st == STRATA_OK && c->rope_factor == 1.0f) {
        c->rope_type = ST_ROPE_DEFAULT;
        c->rope_factor = 0.0f;
    }
    return st;
}

/* What cos and sin are multiplied by, unless the file says another number. */
static strata_status read_attention(struct st_model_config *c, const st_json *scaling, double attention, const char *where)
{
    const strata_status st = st_hf_read_single(scaling, "attention_factor", &attention, where);

    c->rope_attention = (float)attention;
    if (st == STRATA_OK && !(c->rope_attention > 0.0f && isfinite(c->rope_attention)))
        return st_hf_value_fault(scaling, where, "attention_factor", "of the rotary scaling must be above 0");
    return st;
}

/* In the scaling, or beside it; neither: the family's, or the context.  Transformers 5 takes the one beside it first.
 * Transformers 4 knows but one place, for longrope the one beside it, where a family's own is, too, else the one in the scaling.
 */
static strata_status read_original(struct st_model_config *c, const struct scaling *scaling, bool counts_beside,
                                   const char *where)
{
    const bool is_familys = c->rope_original != 0, is_within = st_hf_member(scaling->object, original_key) != NULL,
               is_beside = scaling->root != NULL && st_hf_member(scaling->root, original_key) != NULL;
    const uint32_t absent = is_familys ? c->rope_original : c->context;
    uint32_t within = absent, beside = absent;
    strata_status st;

    if ((st = st_hf_read_size(scaling->object, original_key, ST_HF_OPTIONAL, &within, where)) != STRATA_OK ||
        (is_beside && (st = st_hf_read_size(scaling->root, original_key, ST_HF_OPTIONAL, &beside, where)) != STRATA_OK))
        return st;
    if (is_within && is_beside && within != beside)
        return st_hf_key_fault(where, original_key, "differs from the one in the rotary scaling: keep one of them");
    if ((scaling->by_both || is_familys) && within != beside && is_within == counts_beside)
        return st_hf_key_fault(where, original_key,
                               counts_beside ? "of this type of rotary scaling must be beside it, not in it: transformers 4 "
                                               "does not read it there"
                                             : "of this type of rotary scaling must be in it, not beside it: transformers 4 "
                                               "does not read it there");
    c->rope_original = is_within ? within : beside;
    return STRATA_OK;
}

static strata_status read_llama3(struct st_model_config *c, const struct scaling *scaling, const char *where)
{
    strata_status st;

    if ((st = read_scale(c, scaling->object, where)) != STRATA_OK ||
        (st = read_factor(scaling->object, "low_freq_factor", &c->rope_low, where)) != STRATA_OK ||
        (st = read_factor(scaling->object, "high_freq_factor", &c->rope_high, where)) != STRATA_OK)
        return st;
    if ((st = st_hf_read_size(scaling->object, original_key, ST_HF_REQUIRED, &c->rope_original, where)) != STRATA_OK)
        return st;
    return read_original(c, scaling, false, where);
}

static double yarn_attention(double factor, double weight)
{
    return factor <= 1.0 ? 1.0 : 0.1 * weight * log(factor) + 1.0;
}

static strata_status read_yarn(struct st_model_config *c, const struct scaling *from, const char *where)
{
    const st_json *scaling = from->object;
    double slow = 0.0, fast = 0.0, weight = 0.0, weight_all = 0.0, attention;
    bool whole = true;
    strata_status st;

    if ((st = read_scale(c, scaling, where)) != STRATA_OK || (st = read_original(c, from, false, where)) != STRATA_OK ||
        (st = st_hf_read_single(scaling, "beta_slow", &slow, where)) != STRATA_OK ||
        (st = st_hf_read_single(scaling, "beta_fast", &fast, where)) != STRATA_OK ||
        (st = st_hf_read_single(scaling, "mscale", &weight, where)) != STRATA_OK ||
        (st = st_hf_read_single(scaling, "mscale_all_dim", &weight_all, where)) != STRATA_OK ||
        (st = st_hf_read_bool(scaling, "truncate", &whole, where)) != STRATA_OK)
        return st;
    attention = yarn_attention((double)c->rope_factor, 1.0);
    if (weight != 0.0 && weight_all != 0.0)
        attention = yarn_attention((double)c->rope_factor, weight) / yarn_attention((double)c->rope_factor, weight_all);
    c->rope_low = (float)(slow != 0.0 ? slow : YARN_SLOW);
    c->rope_high = (float)(fast != 0.0 ? fast : YARN_FAST);
    c->rope_whole_pairs = whole;
    extend_context(c, c->rope_original);
    return read_attention(c, scaling, attention, where);
}

/* One divisor for each pair. */
static strata_status read_divisors(float *out, const st_json *scaling, const char *key, uint32_t pairs, const char *where)
{
    const st_json *list = st_hf_member(scaling, key);
    uint32_t count = 0;

    for (const st_json *n = list != NULL ? st_json_first(list) : NULL; n != NULL; n = st_json_next(n)) {
        const double value = st_json_type(n) == ST_JSON_NUMBER ? st_json_number(n) : 0.0;

        if (!((float)value > 0.0f && value < 1e30))
            return st_hf_node_fault(n, where, key, "must list numbers above 0");
        if (count < ST_LONGROPE_PAIRS_MAX)
            out[count] = (float)value;
        count++;
    }
    if (pairs <= ST_LONGROPE_PAIRS_MAX && count == pairs)
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s: \"%s\" lists %u numbers; the %u pairs of a head need one each, at most %u are possible",
                    where, key, count, pairs, ST_LONGROPE_PAIRS_MAX);
}

/* The factor is the context's over the original one; of one that is given as well transformers 4 reads nothing where an original
 * context lies beside the scaling, or is the family's, and 5 takes it. */
static strata_status read_longrope(struct st_model_config *c, const struct scaling *from, const char *where)
{
    const st_json *scaling = from->object;
    const uint32_t dim = c->rotary_dim > 0 ? c->rotary_dim : c->head_dim;
    const bool is_beside = c->rope_original != 0 || (from->root != NULL && st_hf_member(from->root, original_key) != NULL);
    double implied, factor, attention;
    strata_status st;

    if ((st = read_original(c, from, true, where)) != STRATA_OK ||
        (st = read_divisors(c->rope_short, scaling, "short_factor", dim / 2, where)) != STRATA_OK ||
        (st = read_divisors(c->rope_long, scaling, "long_factor", dim / 2, where)) != STRATA_OK)
        return st;
    implied = factor = (double)c->context / c->rope_original;
    if ((st = st_hf_read_single(scaling, "factor", &factor, where)) != STRATA_OK)
        return st;
    if (!(factor > 0.0))
        return st_hf_value_fault(scaling, where, "factor", "of the rotary scaling must be above 0");
    if (from->by_both && is_beside && (float)factor != (float)implied && st_hf_member(scaling, "attention_factor") == NULL)
        return st_hf_key_fault(where, "factor",
                               "of the rotary scaling is not max_position_embeddings over original_max_position_embeddings, with "
                               "which transformers 4 computes: take it out");
    attention = factor <= 1.0 ? 1.0 : sqrt(1.0 + log(factor) / log((double)c->rope_original));
    return read_attention(c, scaling, attention, where);
}

/* One of the two keys that name a type; *out stays where it is absent.  Null means nothing to one version and an error to
 * another. */
static strata_status read_type_key(enum st_rope_type *out, const st_json *scaling, const char *type_key, const char *key,
                                   uint32_t keys, const char *where)
{
    const bool su_is_longrope = (keys & ST_KEY_SU_IS_LONGROPE) != 0, has_axes = (keys & ST_KEY_AXES) != 0;
    static const struct {
        const char *name;
        enum st_rope_type type;
    } types[] = {{"default", ST_ROPE_DEFAULT}, {"linear", ST_ROPE_LINEAR},     {"llama3", ST_ROPE_LLAMA3},
                 {"yarn", ST_ROPE_YARN},       {"longrope", ST_ROPE_LONGROPE}, {"su", ST_ROPE_LONGROPE},
                 {"dynamic", ST_ROPE_DYNAMIC}, {"mrope", ST_ROPE_DEFAULT}};
    const char *name = NULL;
    strata_status st;

    if (st_json_get(scaling, type_key) == NULL)
        return STRATA_OK;
    if ((st = st_hf_read_text(scaling, type_key, &name, where)) != STRATA_OK)
        return st;
    if (name == NULL)
        return st_error(STRATA_E_INPUT, "%s: \"%s\" has a \"%s\" of null: name the type, or \"default\" for none", where, key,
                        type_key);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(name, types[i].name) != 0 || (strcmp(name, "su") == 0 && !su_is_longrope) ||
            (strcmp(name, "mrope") == 0 && !has_axes))
            continue;
        *out = su_is_longrope && types[i].type == ST_ROPE_YARN ? ST_ROPE_LONGROPE : types[i].type;
        if (!su_is_longrope || *out == ST_ROPE_DEFAULT || *out == ST_ROPE_LONGROPE)
            return STRATA_OK;
    }
    return st_error(STRATA_E_INPUT, "%s: \"%s\" has type \"%.32s\"; %s are supported", where, key, name,
                    su_is_longrope ? "default and longrope (also called su and yarn)"
                                   : "default, linear, dynamic, llama3, yarn and longrope");
}

/* rope_type, or type in older files; both: the latter is a copy, or transformers' versions differ in which one counts. */
static strata_status read_type(enum st_rope_type *type, const st_json *scaling, const char *key, uint32_t keys, const char *where)
{
    enum st_rope_type older = ST_ROPE_DEFAULT;
    strata_status st;

    *type = ST_ROPE_DEFAULT;
    if ((st = read_type_key(&older, scaling, "type", key, keys, where)) != STRATA_OK ||
        (st = read_type_key(type, scaling, "rope_type", key, keys, where)) != STRATA_OK)
        return st;
    if (st_json_get(scaling, "rope_type") == NULL)
        *type = older;
    else if (st_json_get(scaling, "type") != NULL && *type != older)
        return st_error(STRATA_E_INPUT, "%s: \"%s\" has a \"type\" and a \"rope_type\" that differ: keep one of them", where,
                        key);
    if (st_json_get(scaling, "rope_type") == NULL && st_json_get(scaling, "type") == NULL &&
        st_hf_member(scaling, "factor") != NULL)
        return st_error(STRATA_E_INPUT, "%s: \"%s\" has a \"factor\" and no \"rope_type\"", where, key);
    return STRATA_OK;
}

/* "rope_scaling", or "rope_parameters" or a member of it for one type of layer. */
static strata_status read_scaling(struct st_model_config *c, const struct scaling *scaling, const char *key, uint32_t keys,
                                  const char *where)
{
    strata_status st;

    if (scaling->object == NULL)
        return STRATA_OK;
    if (st_json_type(scaling->object) != ST_JSON_OBJECT)
        return st_hf_key_fault(where, key, "must be an object or null");
    if ((st = read_type(&c->rope_type, scaling->object, key, keys, where)) != STRATA_OK)
        return st;
    switch (c->rope_type) {
    case ST_ROPE_DEFAULT:
        break;
    case ST_ROPE_LINEAR:
        return read_linear(c, scaling->object, keys, where);
    case ST_ROPE_DYNAMIC:
        return read_scale(c, scaling->object, where);
    case ST_ROPE_LLAMA3:
        return read_llama3(c, scaling, where);
    case ST_ROPE_YARN:
        return read_yarn(c, scaling, where);
    case ST_ROPE_LONGROPE:
        return read_longrope(c, scaling, where);
    }
    return STRATA_OK;
}

/* The fraction of a head that is rotated, in rope_parameters or beside them. */
static strata_status read_fraction(struct st_model_config *c, const st_json *root, const st_json *parameters, uint32_t keys,
                                   const char *where)
{
    static const char key[] = "partial_rotary_factor";
    double fraction = 1.0;
    strata_status st;

    if ((st = st_hf_read_single(root, key, &fraction, where)) != STRATA_OK ||
        (parameters != NULL && (st = st_hf_read_single(parameters, key, &fraction, where)) != STRATA_OK))
        return st;
    if (fraction == 1.0)
        return STRATA_OK;
    if ((keys & ST_KEY_PARTIAL_ROTARY) == 0)
        return st_hf_key_fault(where, key, "other than 1 is not supported");
    if (!(fraction > 0.0 && fraction < 1.0 && c->head_dim * fraction >= 2.0))
        return st_hf_value_fault(root, where, key, "must leave two values of a head to rotate, and be at most 1");
    c->rotary_dim = (uint32_t)(c->head_dim * fraction);
    return STRATA_OK;
}

/* A base, in rope_parameters or beside them. */
static strata_status read_base(float *out, const st_json *root, const char *key, const st_json *parameters, const char *where)
{
    double base = (double)*out, other;
    strata_status st;

    if ((st = st_hf_read_single(root, key, &base, where)) != STRATA_OK)
        return st;
    other = base;
    if (parameters != NULL && (st = st_hf_read_single(parameters, "rope_theta", &other, where)) != STRATA_OK)
        return st;
    if (other != base && st_hf_member(root, key) != NULL) /* transformers' versions differ in which one counts */
        return st_hf_key_fault(where, key, "differs from the one in rope_parameters: keep one of them");
    *out = (float)other;
    return STRATA_OK;
}

/* rope_parameters of the two types of layer. */
static strata_status read_layer_ropes(struct st_model_config *c, const st_json *root, const st_json *parameters, uint32_t keys,
                                      const char *where)
{
    const st_json *global = parameters != NULL ? st_hf_member(parameters, "full_attention") : NULL;
    const st_json *local = parameters != NULL ? st_hf_member(parameters, "sliding_attention") : NULL;
    enum st_rope_type type = ST_ROPE_DEFAULT;
    strata_status st;

    if (parameters != NULL && global == NULL && local == NULL)
        return st_hf_key_fault(where, "rope_parameters",
                               "must have full_attention and sliding_attention in a model of this type");
    if (local != NULL && st_json_type(local) != ST_JSON_OBJECT)
        return st_hf_key_fault(where, "sliding_attention", "must be an object or null");
    if ((local != NULL && (st = read_type(&type, local, "sliding_attention", 0, where)) != STRATA_OK) ||
        (st = read_scaling(c, &(struct scaling){.object = global}, "full_attention", keys, where)) != STRATA_OK ||
        (st = read_base(&c->rope_base, root, "rope_theta", global, where)) != STRATA_OK)
        return st;
    if (type != ST_ROPE_DEFAULT)
        return st_hf_key_fault(where, "sliding_attention", "has rotary scaling: only full_attention may have it");
    return read_base(&c->rope_local_base, root, "rope_local_base_freq", local, where);
}

/* What transformers 5 takes from rope_scaling, too, and 4 passes over there. */
static strata_status check_scaling(const struct st_model_config *c, const st_json *scaling, const char *where)
{
    const uint32_t rotated = c->rotary_dim > 0 ? c->rotary_dim : c->head_dim;
    double base = (double)c->rope_base, fraction = c->head_dim > 0 ? (double)rotated / (double)c->head_dim : 1;
    strata_status st;

    if (scaling == NULL)
        return STRATA_OK;
    if ((st = st_hf_read_single(scaling, "rope_theta", &base, where)) != STRATA_OK ||
        (st = st_hf_read_single(scaling, "partial_rotary_factor", &fraction, where)) != STRATA_OK)
        return st;
    if ((float)base != c->rope_base)
        return st_hf_key_fault(where, "rope_theta", "in rope_scaling counts only for transformers 5: put it beside");
    if (!(fraction >= 0 && fraction <= 1) || (uint32_t)(c->head_dim * fraction + 0.5) != rotated)
        return st_hf_key_fault(where, "partial_rotary_factor", "in rope_scaling counts only for transformers 5: put it beside");
    return STRATA_OK;
}

/* A family may have a scaling of its own, which another one replaces whole.  Transformers 4 takes a null of it for none, 5 for
 * its own. */
static strata_status leave_own(struct st_model_config *c, const st_json *root, const char *where)
{
    static const char key[] = "rope_scaling";

    if (c->rope_type == ST_ROPE_DEFAULT)
        return STRATA_OK;
    if (st_json_get(root, key) != NULL && st_hf_member(root, key) == NULL)
        return st_hf_key_fault(where, key, "is null, which transformers 4 and 5 read differently here: take it out");
    if (st_hf_member(root, key) == NULL && st_hf_member(root, "rope_parameters") == NULL) {
        extend_context(c, c->rope_original);
        return STRATA_OK;
    }
    c->rope_type = ST_ROPE_DEFAULT;
    c->rope_factor = c->rope_low = c->rope_high = c->rope_attention = 0.0f;
    c->rope_original = 0;
    return STRATA_OK;
}

strata_status st_hf_read_rope(struct st_model_config *c, const st_json *root, const struct st_family *family, const char *where)
{
    const st_json *parameters = st_hf_member(root, "rope_parameters");
    const struct scaling both = {.object = st_hf_member(root, "rope_scaling"), .root = root, .by_both = true},
                         newer = {.object = parameters, .root = root};
    const uint32_t keys = family->keys | (c->wrapper != NULL ? (uint32_t)ST_KEY_AXES : 0);
    const bool layers = (keys & ST_KEY_LAYER_ROPES) != 0;
    strata_status st;

    if (parameters != NULL && st_json_type(parameters) != ST_JSON_OBJECT)
        return st_hf_key_fault(where, "rope_parameters", "must be an object or null");
    if (parameters != NULL && both.object != NULL)
        return st_hf_key_fault(where, "rope_scaling", "is there beside rope_parameters: keep one of them");
    if (parameters != NULL && !layers && st_hf_member(parameters, "full_attention") != NULL)
        return st_hf_key_fault(where, "rope_parameters", "has full_attention: layers of this type do not differ in it");
    if ((st = leave_own(c, root, where)) != STRATA_OK ||
        (st = read_fraction(c, root, layers ? NULL : parameters, keys, where)) != STRATA_OK ||
        (st = read_scaling(c, &both, "rope_scaling", keys, where)) != STRATA_OK)
        return st;
    if (layers)
        st = read_layer_ropes(c, root, parameters, keys, where);
    else if ((st = read_scaling(c, &newer, "rope_parameters", keys, where)) == STRATA_OK)
        st = read_base(&c->rope_base, root, "rope_theta", parameters, where);
    return st == STRATA_OK ? check_scaling(c, both.object, where) : st;
}
