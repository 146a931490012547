/* model/adapter/adapter_spec.c - reads the keys of an adapter's settings: a table of what each key of PEFT's LoraConfig means
 * here.
 *
 * Defaults and meanings: peft 0.21, tuners/lora/config.py. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/text.h"
#include "core/base/word.h"
#include "core/system/file.h"
#include "model/adapter/adapter_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (1u << 20)
#define DEPTH_MAX        16u

struct key;
typedef strata_status read_fn(struct st_adapter_spec *spec, const st_json *value, const struct key *key);

/* read NULL: the key says nothing about values (told), or must be off: null, false, 0 or empty. */
struct key {
    const char *name;
    read_fn *read;
    bool told;
    const char *off; /* the ability that it would switch on */
};

static strata_status fault(const struct st_adapter_spec *spec, const char *key, const char *what)
{
    return st_error(STRATA_E_CONFIG, "%s: \"%s\" %s", spec->where, key, what);
}

static bool is_string(const st_json *n)
{
    return st_json_type(n) == ST_JSON_STRING;
}

static bool is_off(const st_json *n)
{
    switch (st_json_type(n)) {
    case ST_JSON_NULL:
        return true;
    case ST_JSON_BOOL:
        return !st_json_bool(n);
    case ST_JSON_NUMBER:
        return st_json_number(n) == 0;
    case ST_JSON_STRING:
        return st_json_string(n)[0] == '\0';
    case ST_JSON_ARRAY:
    case ST_JSON_OBJECT:
        return st_json_first(n) == NULL;
    }
    return false;
}

/* --- values --- */

static strata_status want_word(const struct st_adapter_spec *spec, const st_json *value, const struct key *key, const char *word,
                               const char *what)
{
    return is_string(value) && strcmp(st_json_string(value), word) == 0 ? STRATA_OK : fault(spec, key->name, what);
}

static strata_status read_type(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    return want_word(spec, value, key, "LORA", "must be \"LORA\": other kinds of adapters are not supported");
}

static strata_status read_task(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    return want_word(spec, value, key, "CAUSAL_LM", "must be \"CAUSAL_LM\" or null: other tasks are not supported");
}

static strata_status read_bias(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    return want_word(spec, value, key, "none",
                     "must be \"none\": biases are not trained beside adapters; name their layers in modules_to_save");
}

static strata_status read_rank(uint64_t *out, const struct st_adapter_spec *spec, const st_json *value, const char *key)
{
    char text[80];

    if (st_json_u64(value, out) && *out >= 1 && *out <= ST_ADAPTER_RANK_MAX)
        return STRATA_OK;
    snprintf(text, sizeof(text), "must be a whole number from 1 to %u", ST_ADAPTER_RANK_MAX);
    return fault(spec, key, text);
}

static strata_status read_alpha_value(double *out, const struct st_adapter_spec *spec, const st_json *value, const char *key)
{
    *out = st_json_type(value) == ST_JSON_NUMBER ? st_json_number(value) : 0;
    return *out > 0 && *out <= ST_ADAPTER_ALPHA_MAX ? STRATA_OK : fault(spec, key, "must be a number above 0, at most 1e6");
}

static strata_status read_r(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    return read_rank(&spec->r, spec, value, key->name);
}

static strata_status read_alpha(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    return read_alpha_value(&spec->alpha, spec, value, key->name);
}

static strata_status read_dropout(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    spec->dropout = st_json_type(value) == ST_JSON_NUMBER ? st_json_number(value) : -1;
    return spec->dropout >= 0 && spec->dropout <= 1 ? STRATA_OK : fault(spec, key->name, "must be a number from 0 to 1");
}

static strata_status read_rslora(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    if (st_json_type(value) != ST_JSON_BOOL)
        return fault(spec, key->name, "must be true or false");
    spec->rslora = st_json_bool(value);
    return STRATA_OK;
}

static strata_status read_init(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    spec->gaussian = is_string(value) && strcmp(st_json_string(value), "gaussian") == 0;
    if (spec->gaussian || (st_json_type(value) == ST_JSON_BOOL && st_json_bool(value)))
        return STRATA_OK;
    return fault(spec, key->name,
                 "must be true or \"gaussian\": others change the model's weights; PEFT converts: save_pretrained(..., "
                 "path_initial_model_for_weight_conversion=...)");
}

/* --- names and patterns --- */

static strata_status grow(struct st_adapter_names *names, const struct st_adapter_spec *spec, const char *key)
{
    struct st_adapter_name *list;

    if (names->count == ST_ADAPTER_NAMES_MAX)
        return fault(spec, key, "holds more than 4096 names");
    if ((names->count & (names->count - 1)) != 0) /* room for the next power of two is there */
        return STRATA_OK;
    list = st_fault("adapter.alloc", 0) < 0
               ? NULL
               : realloc(names->list, (names->count == 0 ? 1 : 2 * (size_t)names->count) * sizeof(*list));
    if (list == NULL)
        return st_nomem((names->count == 0 ? 1 : 2 * (size_t)names->count) * sizeof(*list));
    names->list = list;
    return STRATA_OK;
}

/* Add a name; before NULL: it is no pattern. */
static strata_status add(struct st_adapter_names *names, const struct st_adapter_spec *spec, const char *key, const char *text,
                         const char *before, const char *after, bool whole)
{
    struct st_adapter_name name = {.text = text};
    strata_status st;

    if (text[0] == '\0')
        return fault(spec, key, "holds an empty name");
    if ((st = grow(names, spec, key)) != STRATA_OK ||
        (before != NULL &&
         (st = st_adapter_pattern_create(&name.pattern, before, text, after, whole, spec->where, key)) != STRATA_OK))
        return st;
    names->list[names->count++] = name;
    return STRATA_OK;
}

static strata_status add_list(struct st_adapter_names *names, const struct st_adapter_spec *spec, const st_json *value,
                              const char *key, const char *before, const char *after)
{
    strata_status st;

    if (st_json_type(value) != ST_JSON_ARRAY)
        return fault(spec, key, "must be a list of names");
    for (const st_json *n = st_json_first(value); n != NULL; n = st_json_next(n)) {
        if (!is_string(n))
            return fault(spec, key, "must be a list of names");
        if ((st = add(names, spec, key, st_json_string(n), before, after, false)) != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

static strata_status read_targets(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    spec->has_targets = true;
    if (!is_string(value)) {
        return add_list(&spec->targets, spec, value, key->name, NULL, "");
    }
    spec->all_linear = st_text_same(st_json_string(value), "all-linear");
    return spec->all_linear ? STRATA_OK : add(&spec->targets, spec, key->name, st_json_string(value), "", "", true);
}

static strata_status read_parameters(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    return add_list(&spec->parameters, spec, value, key->name, NULL, "");
}

static strata_status read_excluded(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    if (is_string(value))
        return st_json_string(value)[0] == '\0' ? STRATA_OK
                                                : add(&spec->excluded, spec, key->name, st_json_string(value), "", "", true);
    return add_list(&spec->excluded, spec, value, key->name, NULL, "");
}

static strata_status read_saved(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    return add_list(&spec->saved, spec, value, key->name, "(^|.*\\.)", "($|\\..*)");
}

static strata_status read_layers(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    const bool list = st_json_type(value) == ST_JSON_ARRAY;
    uint32_t count = list ? 0 : 1;

    for (const st_json *n = list ? st_json_first(value) : NULL; n != NULL; n = st_json_next(n))
        count++;
    if (count > ST_ADAPTER_NAMES_MAX)
        return fault(spec, key->name, "holds more than 4096 numbers");
    if (count == 0)
        return STRATA_OK;
    spec->layers = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(count, sizeof(*spec->layers));
    if (spec->layers == NULL)
        return st_nomem(count * sizeof(*spec->layers));
    for (const st_json *n = list ? st_json_first(value) : value; spec->layer_count < count; n = st_json_next(n))
        if (!st_json_u64(n, &spec->layers[spec->layer_count++]))
            return fault(spec, key->name, "must be a block's number, from 0, or a list of them");
    return STRATA_OK;
}

static strata_status read_layers_pattern(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    static const char before[] = "(?:^|.*?\\.)", after[] = "\\.(\\d+)\\.";

    if (is_string(value))
        return st_json_string(value)[0] == '\0'
                   ? STRATA_OK
                   : add(&spec->layer_patterns, spec, key->name, st_json_string(value), before, after, false);
    return add_list(&spec->layer_patterns, spec, value, key->name, before, after);
}

static strata_status read_pattern_values(struct st_adapter_names *names, const struct st_adapter_spec *spec, const st_json *value,
                                         const char *key, bool ranks)
{
    strata_status st;

    if (st_json_type(value) != ST_JSON_OBJECT)
        return fault(spec, key, "must be an object of patterns and numbers");
    for (const st_json *n = st_json_first(value); n != NULL; n = st_json_next(n)) {
        uint64_t rank = 0;
        double number = 0;

        st = ranks ? read_rank(&rank, spec, n, key) : read_alpha_value(&number, spec, n, key);
        if (st != STRATA_OK || (st = add(names, spec, key, st_json_name(n), "(.*\\.)?(", ")$", false)) != STRATA_OK)
            return st;
        names->list[names->count - 1].value = ranks ? (double)rank : number;
    }
    return STRATA_OK;
}

static strata_status read_ranks(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    return read_pattern_values(&spec->ranks, spec, value, key->name, true);
}

static strata_status read_alphas(struct st_adapter_spec *spec, const st_json *value, const struct key *key)
{
    return read_pattern_values(&spec->alphas, spec, value, key->name, false);
}

/* --- keys --- */

static const struct key keys[] = {
    {"peft_type", read_type, false, NULL},
    {"task_type", read_task, false, NULL},
    {"r", read_r, false, NULL},
    {"lora_alpha", read_alpha, false, NULL},
    {"use_rslora", read_rslora, false, NULL},
    {"target_modules", read_targets, false, NULL},
    {"target_parameters", read_parameters, false, NULL},
    {"exclude_modules", read_excluded, false, NULL},
    {"layers_to_transform", read_layers, false, NULL},
    {"layers_pattern", read_layers_pattern, false, NULL},
    {"rank_pattern", read_ranks, false, NULL},
    {"alpha_pattern", read_alphas, false, NULL},
    {"modules_to_save", read_saved, false, NULL},
    {"init_lora_weights", read_init, false, NULL},
    {"lora_dropout", read_dropout, false, NULL},
    {"bias", read_bias, false, NULL},

    /* How matrices are stored follows from the model, as PEFT corrects it; the others are of beginnings that are refused above.
     */
    {"fan_in_fan_out", NULL, true, NULL},
    {"inference_mode", NULL, true, NULL},
    {"base_model_name_or_path", NULL, true, NULL},
    {"revision", NULL, true, NULL},
    {"auto_mapping", NULL, true, NULL},
    {"peft_version", NULL, true, NULL},
    {"megatron_core", NULL, true, NULL},
    {"qalora_group_size", NULL, true, NULL},
    {"runtime_config", NULL, true, NULL},
    {"loftq_config", NULL, true, NULL},
    {"eva_config", NULL, true, NULL},
    {"corda_config", NULL, true, NULL},
    {"lora_ga_config", NULL, true, NULL},

    {"use_dora", NULL, false, "DoRA"},
    {"lora_bias", NULL, false, "a bias of B"},
    {"use_qalora", NULL, false, "QALoRA"},
    {"use_bdlora", NULL, false, "BD-LoRA"},
    {"arrow_config", NULL, false, "Arrow"},
    {"kasa_config", NULL, false, "KaSA"},
    {"velora_config", NULL, false, "VeLoRA"},
    {"monteclora_config", NULL, false, "Monteclora"},
    {"alora_invocation_tokens", NULL, false, "aLoRA"},
    {"layer_replication", NULL, false, "a model whose layers are repeated"},
    {"megatron_config", NULL, false, "Megatron's parallel layers"},
    {"trainable_token_indices", NULL, false, "training of single rows of the table"},
    {"ensure_weight_tying", NULL, false, "an adapter that the table and the head share"},
};

#define KEYS (sizeof(keys) / sizeof(keys[0]))

static strata_status unknown(const struct st_adapter_spec *spec, const char *name)
{
    const char *near = NULL;
    uint32_t least = st_word_edits_most(name) + 1;

    for (size_t i = 0; i < KEYS; i++) {
        const uint32_t edits = st_word_edits(name, keys[i].name);

        if (edits < least) {
            least = edits;
            near = keys[i].name;
        }
    }
    return st_error(STRATA_E_CONFIG, "%s: \"%.100s\" is no key of PEFT's LoraConfig that is known here%s%s%s", spec->where, name,
                    near != NULL ? "; did you mean \"" : "", near != NULL ? near : "", near != NULL ? "\"?" : "");
}

/* What is off is as if it were not there, whatever it is: PEFT writes all keys that it knows. */
static strata_status read_key(struct st_adapter_spec *spec, const st_json *member)
{
    const char *name = st_json_name(member);

    for (size_t i = 0; i < KEYS; i++) {
        if (strcmp(name, keys[i].name) != 0)
            continue;
        if (keys[i].read != NULL)
            return st_json_type(member) == ST_JSON_NULL ? STRATA_OK : keys[i].read(spec, member, &keys[i]);
        if (keys[i].told || is_off(member))
            return STRATA_OK;
        return st_error(STRATA_E_CONFIG, "%s: \"%s\": %s is not supported; leave it out", spec->where, name, keys[i].off);
    }
    return is_off(member) ? STRATA_OK : unknown(spec, name);
}

/* As PEFT checks them. */
static strata_status check_together(struct st_adapter_spec *spec)
{
    const bool pattern = spec->all_linear || (spec->targets.count == 1 && spec->targets.list[0].pattern != NULL);
    static const char any[] = ".*?\\.[^.]*";

    if (spec->has_targets && !spec->all_linear && spec->targets.count == 0 && spec->parameters.count == 0)
        return fault(spec, "target_modules", "is an empty list: nothing would have an adapter");
    if (spec->parameters.count > 0 && spec->dropout > 0)
        return fault(spec, "lora_dropout", "must be 0 beside target_parameters, as in PEFT: experts' inputs are not dropped");
    if (pattern && spec->layer_count > 0)
        return fault(spec, "layers_to_transform", "needs a list of names in target_modules, not one text");
    if (spec->layer_patterns.count > 0 && spec->layer_count == 0)
        return fault(spec, "layers_pattern", "needs layers_to_transform, too");
    if (spec->layer_count > 0 && spec->layer_patterns.count == 0)
        return add(&spec->layer_patterns, spec, "layers_to_transform", any, "", "\\.(\\d+)\\.", false);
    return STRATA_OK;
}

static strata_status too_deep(const char *where)
{
    return st_error(STRATA_E_CONFIG, "%s is nested more than %u levels deep", where, DEPTH_MAX);
}

static strata_status read_object(struct st_adapter_spec *spec)
{
    strata_status st;

    if (st_json_type(spec->object) != ST_JSON_OBJECT)
        return st_error(STRATA_E_CONFIG, "%s must be an object with the keys of PEFT's LoraConfig", spec->where);
    if (st_json_depth(spec->object) > DEPTH_MAX)
        return too_deep(spec->where);
    for (const st_json *n = st_json_first(spec->object); n != NULL; n = st_json_next(n))
        if ((st = read_key(spec, n)) != STRATA_OK)
            return st;
    return check_together(spec);
}

strata_status st_adapter_spec_parse(struct st_adapter_spec **out, const char *text, size_t bytes, const char *where)
{
    struct st_adapter_spec *spec = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*spec));
    strata_status st;

    if (spec == NULL)
        return st_nomem(sizeof(*spec));
    spec->r = ST_ADAPTER_RANK_DEFAULT;
    spec->alpha = ST_ADAPTER_ALPHA_DEFAULT;
    spec->where = strdup(where);
    if (spec->where == NULL)
        st = st_nomem(0);
    else if ((st = st_json_parse(&spec->object, text, bytes, where)) == STRATA_OK)
        st = read_object(spec);
    if (st != STRATA_OK) {
        st_adapter_spec_destroy(spec);
        return st;
    }
    *out = spec;
    return STRATA_OK;
}

strata_status st_adapter_spec_read(struct st_adapter_spec **out, const st_json *object, const char *where)
{
    struct st_json_writer w;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file;
    strata_status st;

    if (st_json_depth(object) > DEPTH_MAX)
        return too_deep(where);
    file = st_fault("adapter.alloc", 0) < 0 ? NULL : open_memstream(&text, &bytes);
    if (file == NULL)
        return st_nomem(0);
    st_json_begin(&w, file);
    st_json_put_node(&w, NULL, object);
    st = fclose(file) == 0 ? st_adapter_spec_parse(out, text, bytes, where) : st_nomem(0);
    free(text);
    return st;
}

strata_status st_adapter_spec_read_file(struct st_adapter_spec **out, const char *path)
{
    uint64_t bytes;
    strata_status st;
    char *text;

    if ((st = st_file_read_text(&text, &bytes, path, CONFIG_BYTES_MAX)) != STRATA_OK)
        return st;
    st = st_adapter_spec_parse(out, text, bytes, path);
    free(text);
    return st;
}

static void names_fini(struct st_adapter_names *names)
{
    for (uint32_t i = 0; i < names->count; i++)
        st_adapter_pattern_destroy(names->list[i].pattern);
    free(names->list);
}

void st_adapter_spec_destroy(struct st_adapter_spec *spec)
{
    if (spec == NULL)
        return;
    names_fini(&spec->targets);
    names_fini(&spec->parameters);
    names_fini(&spec->excluded);
    names_fini(&spec->saved);
    names_fini(&spec->ranks);
    names_fini(&spec->alphas);
    names_fini(&spec->layer_patterns);
    free(spec->layers);
    st_json_free(spec->object);
    free(spec->where);
    free(spec);
}

enum st_adapter_init st_adapter_spec_init(const struct st_adapter_spec *spec)
{
    return spec->gaussian ? ST_ADAPTER_INIT_GAUSSIAN : ST_ADAPTER_INIT_UNIFORM;
}

bool st_adapter_spec_saves(const struct st_adapter_spec *spec)
{
    return spec->saved.count > 0;
}

double st_adapter_spec_dropout(const struct st_adapter_spec *spec)
{
    return spec->dropout;
}

const char *st_adapter_spec_where(const struct st_adapter_spec *spec)
{
    return spec->where;
}

const st_json *st_adapter_spec_object(const struct st_adapter_spec *spec)
{
    return spec->object;
}
