/* model/adapter/adapter_match.c - which modules of a model an adapter's settings mean.
 *
 * As peft 0.21 matches them: tuners/tuners_utils.py, check_target_module_exists(); utils/other.py, get_pattern_key() and
 * _set_trainable().  A name in a list fits a module that has it, or whose path ends with it after a dot; in modules_to_save also
 * without one, and then all that is inside the module is meant. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/word.h"
#include "model/adapter/adapter_internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A key's names, and which of them fitted a module. */
struct fits {
    const char *key;
    const struct st_adapter_names *names;
    bool *fitted; /* [names->count] */
};
enum fit_key { FIT_TARGETS, FIT_EXCLUDED, FIT_SAVED, FIT_RANKS, FIT_ALPHAS, FIT_PARAMETERS, FIT_COUNT };

struct resolver {
    const struct st_adapter_spec *spec;
    struct st_adapter_module *modules; /* [count] */
    uint32_t count;
    const char *targets;
    struct fits fits[FIT_COUNT];
    bool *layer_fitted; /* [spec->layer_count] */
    bool *fitted;       /* of all names, and behind them of layers */
};

static strata_status fault(const struct resolver *r, const char *key, const char *what)
{
    return st_error(STRATA_E_CONFIG, "%s: \"%s\" %s", r->spec->where, key, what);
}

/* --- names --- */

static bool ends_with(const char *path, size_t bytes, const char *end)
{
    const size_t length = strlen(end);

    return length <= bytes && memcmp(path + bytes - length, end, length) == 0;
}

/* Equal, or its last parts. */
static bool is_named(const char *path, const char *name, size_t name_bytes)
{
    const size_t bytes = strlen(path);

    return bytes >= name_bytes && memcmp(path + bytes - name_bytes, name, name_bytes) == 0 &&
           (bytes == name_bytes || path[bytes - name_bytes - 1] == '.');
}

/* Whether the module, or one that it is in, ends with the name. */
static bool is_inside(const char *path, const char *name)
{
    for (const char *at = path; *at != '\0'; at++)
        if ((at[1] == '.' || at[1] == '\0') && ends_with(path, (size_t)(at + 1 - path), name))
            return true;
    return false;
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL ? dot + 1 : path;
}

/* Which names of targets or exclusions fit.  *exact: one is the whole path. */
static strata_status fit_names(struct fits *f, const char *path, bool *fit, bool *exact)
{
    strata_status st;

    *fit = *exact = false;
    for (uint32_t i = 0; i < f->names->count; i++) {
        const struct st_adapter_name *name = &f->names->list[i];
        bool this_one = false;

        if (name->pattern != NULL && (st = st_adapter_pattern_match(name->pattern, path, &this_one, NULL)) != STRATA_OK)
            return st;
        if (name->pattern == NULL)
            this_one = is_named(path, name->text, strlen(name->text));
        f->fitted[i] = f->fitted[i] || this_one;
        *fit = *fit || this_one;
        *exact = *exact || (this_one && (name->pattern != NULL || strcmp(path, name->text) == 0));
    }
    return STRATA_OK;
}

/* Names of the family's usual targets, between spaces. */
static bool fits_default(const char *path, const char *targets)
{
    while (*targets != '\0') {
        const size_t length = strcspn(targets, " ");

        if (is_named(path, targets, length))
            return true;
        targets += length + (targets[length] == ' ');
    }
    return false;
}

/* --- one module --- */

/* Whether layers_to_transform holds the module's block. */
static strata_status in_layers(struct resolver *r, const char *path, bool *in)
{
    const struct st_adapter_names *patterns = &r->spec->layer_patterns;
    uint64_t layer = 0;
    bool matched = false;
    strata_status st;

    for (uint32_t i = 0; i < patterns->count && !matched; i++)
        if ((st = st_adapter_pattern_match(patterns->list[i].pattern, path, &matched, &layer)) != STRATA_OK)
            return st;
    *in = false;
    for (uint32_t i = 0; matched && i < r->spec->layer_count; i++) {
        if (r->spec->layers[i] == layer)
            *in = r->layer_fitted[i] = true;
    }
    return STRATA_OK;
}

static strata_status is_target(struct resolver *r, const struct st_adapter_module *module, bool *target)
{
    const struct st_adapter_spec *spec = r->spec;
    bool exact;
    strata_status st;

    if (spec->all_linear) {
        *target = module->kind == ST_ADAPTER_LINEAR;
        return STRATA_OK;
    }
    if ((st = fit_names(&r->fits[FIT_TARGETS], module->path, target, &exact)) != STRATA_OK)
        return st;
    if (!spec->has_targets && r->targets != NULL)
        *target = fits_default(module->path, r->targets);
    if (*target && !exact && spec->layer_count > 0)
        return in_layers(r, module->path, target);
    return STRATA_OK;
}

/* Whether it is saved whole, and whether modules_to_save or exclude_modules keep it from having an adapter. */
static strata_status is_kept_out(struct resolver *r, struct st_adapter_module *module, bool *out)
{
    struct fits *saved = &r->fits[FIT_SAVED];
    bool exact, fit;
    strata_status st;

    module->saved = false;
    if ((st = fit_names(&r->fits[FIT_EXCLUDED], module->path, out, &exact)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < saved->names->count; i++) {
        const struct st_adapter_name *name = &saved->names->list[i];

        if ((st = st_adapter_pattern_match(name->pattern, module->path, &fit, NULL)) != STRATA_OK)
            return st;
        *out = *out || fit;
        if (is_inside(module->path, name->text))
            module->saved = saved->fitted[i] = true;
    }
    return STRATA_OK;
}

/* The value of the first pattern that fits; *value stays if none does.  fitted: [names->count], or NULL. */
static strata_status pattern_value(const struct st_adapter_names *names, bool *fitted, const char *path, double *value)
{
    bool found = false, fit;
    strata_status st;

    for (uint32_t i = 0; i < names->count; i++) {
        if ((st = st_adapter_pattern_match(names->list[i].pattern, path, &fit, NULL)) != STRATA_OK)
            return st;
        if (fitted != NULL)
            fitted[i] = fitted[i] || fit;
        if (fit && !found)
            *value = names->list[i].value;
        found = found || fit;
    }
    return STRATA_OK;
}

static double scale_of(const struct st_adapter_spec *spec, double rank, double alpha)
{
    return alpha / (spec->rslora ? sqrt(rank) : rank);
}

strata_status st_adapter_spec_values(const struct st_adapter_spec *spec, const char *path, uint32_t times, double *rank,
                                     double *scale)
{
    double alpha = times * spec->alpha;
    strata_status st;

    *rank = times * (double)spec->r;
    if ((st = pattern_value(&spec->ranks, NULL, path, rank)) != STRATA_OK ||
        (st = pattern_value(&spec->alphas, NULL, path, &alpha)) != STRATA_OK)
        return st;
    *scale = scale_of(spec, *rank, alpha);
    return STRATA_OK;
}

strata_status st_adapter_spec_targets(const struct st_adapter_spec *spec, const char *path, bool *fits)
{
    const struct st_adapter_pattern *expression = spec->targets.count > 0 ? spec->targets.list[0].pattern : NULL;

    *fits = true;
    return expression != NULL ? st_adapter_pattern_match(expression, path, fits, NULL) : STRATA_OK;
}

/* A parameter's name, or the weight of a module, which is one, too. */
static strata_status is_parameter(struct resolver *r, const struct st_adapter_module *module, bool *target)
{
    struct fits *f = &r->fits[FIT_PARAMETERS];
    const bool stack = module->kind == ST_ADAPTER_STACK;
    char path[sizeof(module->path) + 8];

    *target = false;
    snprintf(path, sizeof(path), "%s%s", module->path, stack ? "" : ".weight");
    for (uint32_t i = 0; i < f->names->count; i++) {
        const char *name = f->names->list[i].text;

        if (!is_named(path, name, strlen(name)))
            continue;
        if (!stack)
            return st_error(
                STRATA_E_CONFIG,
                "%s: \"target_parameters\" fits %s: only stacks of experts have adapters by it; name linear layers in "
                "target_modules",
                r->spec->where, path);
        *target = f->fitted[i] = true;
    }
    return STRATA_OK;
}

static strata_status give_adapter(struct resolver *r, struct st_adapter_module *module)
{
    static const char *const others[] = {[ST_ADAPTER_NORM] = "a norm",   [ST_ADAPTER_EMBEDDING] = "an embedding",
                                         [ST_ADAPTER_HEAD] = "the head", [ST_ADAPTER_ROUTER] = "a router",
                                         [ST_ADAPTER_EXPERT] = NULL,     [ST_ADAPTER_STACK] = NULL};
    double rank = (double)r->spec->r, alpha = r->spec->alpha;
    strata_status st;

    if (others[module->kind] != NULL)
        return st_error(STRATA_E_CONFIG,
                        "%s: \"target_modules\" fits %s, which is %s: only linear layers of blocks have adapters: name it in "
                        "exclude_modules%s",
                        r->spec->where, module->path, others[module->kind],
                        module->tied ? "" : ", or in modules_to_save to train it whole");
    if ((st = pattern_value(&r->spec->ranks, r->fits[FIT_RANKS].fitted, module->path, &rank)) != STRATA_OK ||
        (st = pattern_value(&r->spec->alphas, r->fits[FIT_ALPHAS].fitted, module->path, &alpha)) != STRATA_OK)
        return st;
    module->r = (uint32_t)rank;
    module->scale = (float)scale_of(r->spec, rank, alpha);
    return STRATA_OK;
}

static strata_status experts_saved(const struct resolver *r, const struct st_adapter_module *module)
{
    return st_error(
        STRATA_E_CONFIG,
        "%s: \"modules_to_save\" fits %s: experts are not trained whole beside adapters; leave it out, or name them in "
        "target_parameters",
        r->spec->where, module->path);
}

static strata_status resolve_module(struct resolver *r, struct st_adapter_module *module)
{
    bool kept_out, target;
    strata_status st;

    module->r = 0;
    module->scale = 0;
    module->saved = false;
    for (uint32_t i = 0; i < r->spec->saved.count && module->kind == ST_ADAPTER_STACK; i++)
        if (is_inside(module->path, r->spec->saved.list[i].text))
            return experts_saved(r, module);
    if ((st = is_parameter(r, module, &target)) != STRATA_OK || module->kind == ST_ADAPTER_STACK)
        return st == STRATA_OK && target ? give_adapter(r, module) : st;
    if ((st = is_kept_out(r, module, &kept_out)) != STRATA_OK || (st = is_target(r, module, &target)) != STRATA_OK)
        return st;
    if (module->saved && module->tied)
        return st_error(STRATA_E_CONFIG,
                        "%s: \"modules_to_save\" fits %s, which shares its matrix with the %s and cannot be trained beside "
                        "adapters: leave it out",
                        r->spec->where, module->path, module->kind == ST_ADAPTER_HEAD ? "table of tokens" : "head");
    if (module->saved && module->kind == ST_ADAPTER_EXPERT)
        return experts_saved(r, module);
    return target && !kept_out ? give_adapter(r, module) : STRATA_OK;
}

/* --- what fits nothing --- */

#define NEAR_BYTES 512

/* The last parts of the model's modules, each once, and the nearest to `name` first. */
static void list_near(char out[NEAR_BYTES], const struct resolver *r, const char *name)
{
    const char *parts[32], *wanted = last_part(name);
    uint32_t count = 0, best = 0;
    size_t used = 0;

    for (uint32_t i = 0; i < r->count && count < sizeof(parts) / sizeof(parts[0]); i++) {
        const char *part = last_part(r->modules[i].path);
        uint32_t at = 0;

        if (r->modules[i].kind == ST_ADAPTER_STACK) /* no module */
            continue;
        while (at < count && strcmp(parts[at], part) != 0)
            at++;
        if (at == count)
            parts[count++] = part;
    }
    for (uint32_t i = 1; i < count; i++)
        if (st_word_edits(parts[i], wanted) < st_word_edits(parts[best], wanted))
            best = i;
    out[0] = '\0';
    for (uint32_t i = 0; i < count && used < NEAR_BYTES; i++) {
        const char *part = parts[i == 0 ? best : i <= best ? i - 1 : i];
        const int written = snprintf(out + used, NEAR_BYTES - used, "%s%s", i > 0 ? ", " : "", part);

        used += written > 0 ? (size_t)written : 0;
    }
}

/* The parameter of a layer's experts that a name means. */
static const struct st_adapter_module *named_stack(const struct resolver *r, const char *name)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (r->modules[i].kind == ST_ADAPTER_STACK && is_named(r->modules[i].path, name, strlen(name)))
            return &r->modules[i];
    return NULL;
}

static strata_status fits_nothing(const struct resolver *r, enum fit_key key, const char *name)
{
    const struct st_adapter_module *stack = named_stack(r, name);
    char near[NEAR_BYTES];

    if (key == FIT_PARAMETERS)
        return st_error(STRATA_E_CONFIG,
                        "%s: \"target_parameters\": \"%.100s\" fits no stack of experts; a model with experts has "
                        "mlp.experts.gate_up_proj and mlp.experts.down_proj",
                        r->spec->where, name);
    if (stack != NULL)
        return st_error(STRATA_E_CONFIG, "%s: \"%s\": \"%.100s\" fits no module, but the parameter %s of a layer's experts: %s",
                        r->spec->where, r->fits[key].key, name, stack->path,
                        key == FIT_EXCLUDED ? "leave it out of target_parameters" : "name that in target_parameters");
    list_near(near, r, name);
    return st_error(STRATA_E_CONFIG, "%s: \"%s\": \"%.100s\" fits no module of the model%s; its modules end in %s, as %s does",
                    r->spec->where, r->fits[key].key, name, key == FIT_RANKS || key == FIT_ALPHAS ? " that has an adapter" : "",
                    near, r->modules[r->count > 1 ? 1 : 0].path);
}

static strata_status check_fits(const struct resolver *r, uint32_t *unfitted)
{
    for (enum fit_key k = 0; k < FIT_COUNT; k++) {
        const struct fits *f = &r->fits[k];

        for (uint32_t i = 0; i < f->names->count; i++) {
            if (!f->fitted[i] && unfitted == NULL)
                return fits_nothing(r, k, f->names->list[i].text);
            if (!f->fitted[i])
                ++*unfitted;
        }
    }
    return STRATA_OK;
}

/* Whole paths have adapters in any block: beside such a target it is enough that the block is there. */
static strata_status check_layers(struct resolver *r)
{
    const struct st_adapter_names *targets = &r->spec->targets;
    bool exact = false, in;
    char what[96];
    strata_status st;

    for (uint32_t t = 0; t < targets->count; t++)
        exact = exact || strchr(targets->list[t].text, '.') != NULL;
    for (uint32_t i = 0; exact && i < r->count; i++)
        if ((st = in_layers(r, r->modules[i].path, &in)) != STRATA_OK)
            return st;
    for (uint32_t i = 0; i < r->spec->layer_count; i++) {
        if (!r->layer_fitted[i]) {
            snprintf(what, sizeof(what), "names block %llu, in which the model has no such layer",
                     (unsigned long long)r->spec->layers[i]);
            return fault(r, "layers_to_transform", what);
        }
    }
    return STRATA_OK;
}

static strata_status check_any(const struct resolver *r)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (r->modules[i].r > 0)
            return STRATA_OK;
    return fault(r, "target_modules", "leaves no module that has an adapter: see exclude_modules and modules_to_save");
}

strata_status st_adapter_resolve(const struct st_adapter_spec *spec, struct st_adapter_module *modules, uint32_t count,
                                 const char *targets, uint32_t *unfitted)
{
    struct resolver r = {.spec = spec, .modules = modules, .count = count, .targets = targets};
    const struct fits fits[FIT_COUNT] = {[FIT_TARGETS] = {"target_modules", &spec->targets, NULL},
                                         [FIT_EXCLUDED] = {"exclude_modules", &spec->excluded, NULL},
                                         [FIT_SAVED] = {"modules_to_save", &spec->saved, NULL},
                                         [FIT_RANKS] = {"rank_pattern", &spec->ranks, NULL},
                                         [FIT_ALPHAS] = {"alpha_pattern", &spec->alphas, NULL},
                                         [FIT_PARAMETERS] = {"target_parameters", &spec->parameters, NULL}};
    strata_status st = STRATA_OK;
    size_t names = 0;

    if (!spec->has_targets && targets == NULL && spec->parameters.count == 0)
        return fault(&r, "target_modules",
                     "is missing, and PEFT knows no usual ones of this family: give names, or \"all-linear\"");
    for (uint32_t k = 0; k < FIT_COUNT; k++)
        names += fits[k].names->count;
    r.fitted = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(names + spec->layer_count + 1, sizeof(*r.fitted));
    if (r.fitted == NULL)
        return st_nomem((names + spec->layer_count + 1) * sizeof(*r.fitted));
    r.layer_fitted = r.fitted + names;
    names = 0;
    for (uint32_t k = 0; k < FIT_COUNT; k++) {
        r.fits[k] = fits[k];
        r.fits[k].fitted = r.fitted + names;
        names += fits[k].names->count;
    }
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = resolve_module(&r, &modules[i]);
    if (st == STRATA_OK && (st = check_fits(&r, unfitted)) == STRATA_OK && (st = check_layers(&r)) == STRATA_OK)
        st = check_any(&r);
    free(r.fitted);
    return st;
}
