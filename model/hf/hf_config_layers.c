/* model/hf/hf_config_layers.c - which layers of a config.json attend within the window, and which are not rotated.
 *
 * Layers are named in lists, or follow from a number.  A list counts where both are there. */
#include "model/hf/hf_fields_internal.h"
#include <string.h>

#define FULL_LAYERS_DEFAULT 28u /* max_window_layers: the first layers, of which some attend to everything before them */
#define INTERVAL_DEFAULT    4u  /* no_rope_layer_interval */

/* layer_types, if the key is there: *count layers, a bit for each that slides. */
static strata_status read_layer_types(const st_json *root, uint64_t *slides, uint32_t *count, const char *where)
{
    const st_json *types = st_hf_member(root, "layer_types");

    *count = 0;
    if (types != NULL && (st_json_type(types) != ST_JSON_ARRAY || st_json_first(types) == NULL))
        return st_hf_value_fault(root, where, "layer_types", "must be a list of layers or null");
    for (const st_json *n = types != NULL ? st_json_first(types) : NULL; n != NULL; n = st_json_next(n)) {
        const char *type = st_json_type(n) == ST_JSON_STRING ? st_json_string(n) : "";

        if (strcmp(type, "full_attention") != 0 && strcmp(type, "sliding_attention") != 0)
            return st_hf_key_fault(where, "layer_types",
                                   "has layers other than full_attention and sliding_attention: not supported");
        if (*count == ST_BLOCKS_MAX)
            return st_hf_key_fault(where, "layer_types", "has more layers than a model can have");
        if (strcmp(type, "sliding_attention") == 0)
            st_layer_set(slides, *count);
        ++*count;
    }
    return STRATA_OK;
}

/* Whether a switch says if there is a window. */
static bool has_switch(enum st_window_rule rule)
{
    return rule == ST_WINDOW_FROM || rule == ST_WINDOW_NO_ROPE || rule == ST_WINDOW_SWITCH || rule == ST_WINDOW_UNTIL;
}

static bool is_of_all(enum st_window_rule rule)
{
    return rule == ST_WINDOW_ALL || rule == ST_WINDOW_SWITCH;
}

/* null: none; and 0, as transformers writes it of some. */
static strata_status read_window(const st_json *root, enum st_window_rule rule, uint32_t *window, const char *where)
{
    const st_json *said = st_json_get(root, "sliding_window");
    uint64_t value = 1;

    if (said != NULL)
        *window = 0;
    if (rule == ST_WINDOW_UNTIL && said != NULL && st_json_u64(said, &value) && value == 0)
        return STRATA_OK;
    return st_hf_read_size(root, "sliding_window", ST_HF_OPTIONAL, window, where);
}

/* The layers that slide by a rule, where layer_types does not say. */
static strata_status slide_by_rule(struct st_model_config *c, const st_json *root, const struct st_family *family,
                                   const char *where)
{
    const st_json *full = st_hf_member(root, "max_window_layers");
    uint64_t full_count = FULL_LAYERS_DEFAULT;
    uint32_t period = family->window_period;
    strata_status st;

    if (full != NULL && !st_json_u64(full, &full_count))
        return st_hf_value_fault(root, where, "max_window_layers", "must be a whole number");
    if ((family->keys & ST_KEY_LAYER_ROPES) != 0 &&
        (st = st_hf_read_size(root, "sliding_window_pattern", ST_HF_OPTIONAL, &period, where)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < c->blocks && i < ST_BLOCKS_MAX; i++) {
        if (is_of_all(family->windows) || (family->windows == ST_WINDOW_FROM && i >= full_count) ||
            (family->windows == ST_WINDOW_UNTIL && i < full_count && i % 2 == 0) ||
            (family->windows == ST_WINDOW_PERIOD && (i + 1) % period != 0) ||
            (family->windows == ST_WINDOW_NO_ROPE && st_layer_bit(c->unrotated, i)))
            st_layer_set(c->sliding, i);
    }
    return STRATA_OK;
}

static bool any(const uint64_t *bits)
{
    uint64_t all = 0;

    for (uint32_t i = 0; i < ST_LAYER_WORDS; i++)
        all |= bits[i];
    return all != 0;
}

/* Layers that layer_types names need a window that is in use. */
static strata_status slide_by_types(struct st_model_config *c, const uint64_t *slides, uint32_t count, bool on, const char *where)
{
    if (count != c->blocks)
        return st_hf_key_fault(where, "layer_types", "does not name num_hidden_layers layers");
    if (any(slides) && !on)
        return st_hf_key_fault(where, "layer_types", "has sliding_attention, but no sliding_window is in use");
    memcpy(c->sliding, slides, sizeof(c->sliding));
    return STRATA_OK;
}

static strata_status read_windows(struct st_model_config *c, const st_json *root, const struct st_family *family,
                                  const char *where)
{
    const enum st_window_rule rule = family->windows;
    uint64_t slides[ST_LAYER_WORDS] = {0};
    bool on = !has_switch(rule);
    uint32_t count;
    strata_status st;

    if ((st = read_layer_types(root, slides, &count, where)) != STRATA_OK)
        return st;
    if (rule == ST_WINDOW_NONE)
        return any(slides) ? st_hf_key_fault(where, "layer_types", "has sliding_attention: a model of this type has no window")
                           : STRATA_OK;
    if (!on && (st = st_hf_read_bool(root, "use_sliding_window", &on, where)) != STRATA_OK)
        return st;
    if ((st = read_window(root, rule, &c->window, where)) != STRATA_OK)
        return st;
    on = on && c->window != 0;
    if (count > 0 && !is_of_all(rule))
        st = slide_by_types(c, slides, count, on, where);
    else if (on)
        st = slide_by_rule(c, root, family, where);
    if (st == STRATA_OK && count > 0 && on && memcmp(c->sliding, slides, sizeof(slides)) != 0)
        return st_hf_key_fault(where, "layer_types", "must be sliding_attention in all layers here: transformers 4 has them so");
    if (!any(c->sliding))
        c->window = 0;
    return st;
}

/* no_rope_layers has a 1 for each layer that *is* rotated. */
static strata_status read_rotated(struct st_model_config *c, const st_json *root, const char *where)
{
    const st_json *list = st_hf_member(root, "no_rope_layers");
    uint32_t interval = INTERVAL_DEFAULT, i = 0;
    strata_status st;

    if ((st = st_hf_read_size(root, "no_rope_layer_interval", ST_HF_OPTIONAL, &interval, where)) != STRATA_OK)
        return st;
    for (uint32_t b = 0; list == NULL && b < c->blocks && b < ST_BLOCKS_MAX; b++) {
        if ((b + 1) % interval == 0)
            st_layer_set(c->unrotated, b);
    }
    for (const st_json *n = list != NULL ? st_json_first(list) : NULL; n != NULL && i < ST_BLOCKS_MAX; n = st_json_next(n), i++) {
        uint64_t value;

        if (!st_json_u64(n, &value) || value > 1)
            return st_hf_node_fault(n, where, "no_rope_layers",
                                    "must list a 1 for each layer that is rotated, and a 0 for others");
        if (value == 0)
            st_layer_set(c->unrotated, i);
    }
    return list == NULL || i == c->blocks ? STRATA_OK
                                          : st_hf_key_fault(where, "no_rope_layers", "does not list num_hidden_layers layers");
}

strata_status st_hf_read_layers(struct st_model_config *c, const st_json *root, const struct st_family *family, const char *where)
{
    const strata_status st = (family->keys & ST_KEY_NO_ROPE_LAYERS) != 0 ? read_rotated(c, root, where) : STRATA_OK;

    return st == STRATA_OK ? read_windows(c, root, family, where) : st;
}
