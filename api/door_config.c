/* api/door_config.c - strata/config.h: opens a configuration and logs at once what its user should know about it. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/json/json_build.h"
#include "core/system/owned_dir.h"
#include "model/adapter/adapter.h"
#include "nvme/swap/swap.h"
#include "offload/checkpoint/store.h"
#include "offload/config/config_options.h"
#include "recipes/recipe.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IDLE_NAMED_MOST 4u /* at most this many keys without effect are named */

static bool is_idle(const struct st_config_row *row)
{
    return row->verdict == ST_VERDICT_NOTICE && !row->announced &&
           (row->origin == ST_ORIGIN_FILE || row->origin == ST_ORIGIN_COMMAND_LINE || row->origin == ST_ORIGIN_ENVIRONMENT);
}

/* For something that is not done. */
static bool asks(const struct st_config_row *row)
{
    return row->changes == ST_CHANGES_RESULTS || row->changes == ST_CHANGES_OUTPUT;
}

/* Names the keys that ask for something that is not done first; the rest are only counted. */
static void log_idle_keys(const struct st_config_source *source)
{
    char text[512] = "";
    size_t length = 0;
    uint32_t count = 0, named = 0;

    for (uint32_t i = 0; i < 2 * st_config_row_count(source); i++) {
        const struct st_config_row *row = st_config_row_at(source, i % st_config_row_count(source));
        const bool first = i < st_config_row_count(source);

        if (!is_idle(row) || asks(row) != first)
            continue;
        count++;
        if (named < IDLE_NAMED_MOST && length < sizeof(text)) {
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%.64s", named == 0 ? "" : ", ", row->path);
            named++;
        }
    }
    if (count > named)
        snprintf(text + length, sizeof(text) - length, " and %u more", count - named);
    if (count > 0)
        st_log(ST_LOG_NOTICE, "%u %s no effect here, strata check says why: %s", count, count == 1 ? "key has" : "keys have",
               text);
}

/* One line for each value that the user may not expect, all of which concern the update, and one line for all keys that have no
 * meaning here. */
static void log_notices(const struct st_config_source *source, bool forward_only)
{
    for (uint32_t i = 0; !forward_only && i < st_config_row_count(source); i++)
        if (st_config_row_at(source, i)->announced)
            st_log(ST_LOG_NOTICE, "%s: %s", st_config_row_at(source, i)->path, st_config_row_at(source, i)->reason);
    log_idle_keys(source);
}

static void log_other_problems(const struct st_config_source *source)
{
    for (uint32_t i = 1; source != NULL && i < st_config_problem_count(source); i++)
        st_log(ST_LOG_ERROR, "%s", st_config_problem_at(source, i));
}

/* What set a key; DEFAULT: nothing did. */
static enum st_config_origin origin_of(const struct st_config_source *source, const char *path)
{
    for (uint32_t i = 0; i < st_config_row_count(source); i++)
        if (strcmp(st_config_row_at(source, i)->path, path) == 0)
            return st_config_row_at(source, i)->origin;
    return ST_ORIGIN_DEFAULT;
}

/* The adapter's keys, but for what depends on the model. */
static strata_status check_lora(struct strata_config *c)
{
    struct st_adapter_spec *spec = NULL;
    char sentence[1024];
    strata_status st = STRATA_OK;

    if (c->values.lora[0] != '\0')
        st = st_adapter_spec_parse(&spec, c->values.lora, strlen(c->values.lora), "strata.lora");
    st_adapter_spec_destroy(spec);
    if (st != STRATA_E_CONFIG)
        return st;
    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    st = st_config_refuse(c->source, "strata.lora", sentence);
    return st == STRATA_E_CONFIG ? st_error(st, "%s: %s", c->name, sentence) : st;
}

static strata_status load(struct strata_config *c, const struct strata_config_opts *o)
{
    const struct st_config_opts opts = {
        .file = o->file,
        .overrides = o->overrides,
        .override_count = o->override_count,
        .allow_unknown = o->allow_unknown,
        .max_steps = o->max_steps,
        .steps_later = o->steps_later,
        .any_length = o->forward_only,
        .ranks = o->ranks,
        .train_batch = o->train_batch,
        .leaves = o->leaves,
    };
    strata_status st = st_handle_text(&c->name, o->file != NULL                      ? o->file
                                                : o->recipe != NULL                  ? st_recipe_path(o->recipe)
                                                : o->text != NULL && o->name != NULL ? o->name
                                                                                     : "the configuration");

    if (st != STRATA_OK)
        return st;
    st = o->text == NULL ? st_recipe_config(&c->values, &c->source, &opts, o->recipe, o->variables)
                         : st_recipe_config_text(&c->values, &c->source, o->text, c->name, &opts, o->variables);
    return st == STRATA_OK ? check_lora(c) : st;
}

static strata_status check_opts(const struct strata_config_opts *o)
{
    if (o->text != NULL && o->recipe != NULL)
        return st_error(STRATA_E_INVAL, "a text of a configuration and a recipe are given: one of them must be NULL");
    if (o->file != NULL && o->text != NULL)
        return st_error(STRATA_E_INVAL, "a file and a text of a configuration are given: one of them must be NULL");
    if (o->max_steps > ST_STORE_STEP_MOST)
        return st_error(STRATA_E_INVAL, "max_steps: %" PRIu64 ": at most 2^53 are possible, and 0 says that it is not known",
                        o->max_steps);
    for (uint32_t i = 0; i < o->override_count; i++)
        if (o->overrides == NULL || o->overrides[i] == NULL)
            return st_error(STRATA_E_INVAL, "override %u of a configuration is NULL", i);
    return STRATA_OK;
}

/* *config is set where there is something to say of it. */
static strata_status open_any(struct strata_config **config, struct strata_config_opts *o, const struct strata_config_opts *opts)
{
    struct strata_config *c;
    fenv_t floats;
    strata_status st = st_handle_opts(o, sizeof(*o), opts, "strata_config_opts");

    if (st != STRATA_OK || (st = check_opts(o)) != STRATA_OK)
        return st;
    c = st_fault_refuses("api.config") ? NULL : calloc(1, sizeof(*c));
    if (c == NULL)
        return st_nomem(sizeof(*c));
    st_floats_plain(&floats);
    st = load(c, o);
    st_floats_restore(&floats);
    if (c->source != NULL)
        *config = c;
    else
        strata_config_close(c);
    return st;
}

strata_status strata_config_open(struct strata_config **config, const struct strata_config_opts *opts)
{
    struct strata_config *c = NULL;
    struct strata_config_opts o;
    strata_status st;

    if (config == NULL)
        return st_error_missing(__func__, "config");
    st = open_any(&c, &o, opts);
    if (st != STRATA_OK) {
        log_other_problems(c != NULL ? c->source : NULL);
        strata_config_close(c);
        return st;
    }
    c->nvme_named = origin_of(c->source, "strata.nvme") == ST_ORIGIN_COMMAND_LINE;
    c->bf16_off =
        c->values.dtype == STRATA_F32 && st_recipe_value_of(o.recipe, "bf16.enabled") == NULL &&
        (origin_of(c->source, "bf16.enabled") == ST_ORIGIN_FILE || origin_of(c->source, "bfloat16.enabled") == ST_ORIGIN_FILE);
    log_notices(c->source, o.forward_only);
    *config = c;
    return STRATA_OK;
}

/* --- to be read --- */

strata_status strata_config_check(struct strata_config **config, const struct strata_config_opts *opts)
{
    struct strata_config_opts o;

    return config != NULL ? open_any(config, &o, opts) : st_error_missing(__func__, "config");
}

strata_status strata_config_check_nvme(const struct strata_config *config)
{
    struct st_machine_opts opts;
    uint64_t room;
    strata_status st;

    if (config == NULL)
        return st_error_missing(__func__, "config");
    if (!st_config_uses_nvme(&config->values))
        return STRATA_OK;
    st_config_machine_opts(&opts, &config->values);
    st = st_swap_room(opts.nvme.dirs, opts.nvme.dir_count, NULL, opts.nvme.block_bytes, &room, NULL);
    for (uint32_t i = 0; i < opts.nvme.dir_count && st == STRATA_OK; i++)
        if (st_fault_refuses("config.nvme") || access(opts.nvme.dirs[i], W_OK | X_OK) != 0)
            st = st_owned_dir_error(errno, "cannot write to", opts.nvme.dirs[i], "strata.nvme");
    return st;
}

uint32_t strata_config_row_count(const struct strata_config *config)
{
    return config != NULL ? st_config_row_count(config->source) : 0;
}

static const char *const origin_names[] = {"default", "file", "auto", "command line", "derived", "environment"};

st_json *st_handle_origins(const struct strata_config *config)
{
    st_json *origins = st_fault_refuses("api.origins") ? NULL : st_json_new_object();

    for (uint32_t i = 0; i < st_config_row_count(config->source) && origins != NULL; i++) {
        const struct st_config_row *row = st_config_row_at(config->source, i);

        if (row->origin == ST_ORIGIN_DEFAULT || st_json_add(origins, row->path, st_json_new_string(origin_names[row->origin])))
            continue;
        st_json_free(origins);
        origins = NULL;
    }
    return origins;
}

/* What becomes of a key without effect; NULL: it has one, or is rejected. */
static const char *effect_of(const struct st_config_row *row)
{
    if (row->verdict != ST_VERDICT_NOTICE)
        return NULL;
    if (row->unjudged)
        return "not looked at";
    if (asks(row))
        return "asked for and not done";
    return row->changes == ST_CHANGES_SPEED ? "would change speed" : "changes nothing";
}

strata_status strata_config_get_row(const struct strata_config *config, uint32_t index, struct strata_config_row *row)
{
    static const char *const verdicts[] = {"honoured", "notice", "rejected"};
    struct strata_config_row r = {0};
    const struct st_config_row *from;

    if (config == NULL || row == NULL)
        return st_error_missing(__func__, config == NULL ? "config" : "row");
    if (index >= st_config_row_count(config->source))
        return st_error(STRATA_E_INVAL, "row %u of a configuration of %u", index, st_config_row_count(config->source));
    from = st_config_row_at(config->source, index);
    r.path = from->path;
    r.value = from->value;
    r.origin = origin_names[from->origin];
    r.verdict = verdicts[from->verdict];
    r.reason = from->reason;
    r.effect = effect_of(from);
    r.follows = from->follows;
    return st_handle_result(row, &r, sizeof(r), "strata_config_row");
}

const char *strata_config_problem(const struct strata_config *config, uint32_t index)
{
    return config != NULL && index < st_config_problem_count(config->source) ? st_config_problem_at(config->source, index) : NULL;
}

static struct strata_monitor monitor_of(const struct st_config_monitor *m)
{
    return (struct strata_monitor){.enabled = m->enabled, .output_path = m->output_path, .job_name = m->job_name};
}

strata_status strata_config_get_info(const struct strata_config *config, struct strata_config_info *info)
{
    struct strata_config_info i = {0};

    if (config == NULL || info == NULL)
        return st_error_missing(__func__, config == NULL ? "config" : "info");
    i.save = config->values.save;
    i.save_every = config->values.save_every;
    i.keep_best = config->values.keep_best;
    i.steps_per_print = config->values.steps_per_print;
    i.watchdog = config->values.watchdog;
    i.tensorboard = monitor_of(&config->values.tensorboard);
    i.csv = monitor_of(&config->values.csv_monitor);
    i.metrics = config->values.metrics;
    return st_handle_result(info, &i, sizeof(i), "strata_config_info");
}

strata_status strata_config_get_rates(const struct strata_config *config, uint64_t step, struct strata_config_rates *rates)
{
    struct strata_config_rates r = {0};

    if (config == NULL || rates == NULL)
        return st_error_missing(__func__, config == NULL ? "config" : "rates");
    if (step == 0)
        return st_error(STRATA_E_INVAL, "%s: steps are counted from 1", __func__);
    if (strata_config_problem(config, 0) != NULL)
        return st_error(STRATA_E_INVAL, "%s: the configuration has problems: %s", __func__, strata_config_problem(config, 0));
    if (st_config_lacks_steps(&config->values))
        return st_error(STRATA_E_INVAL, "%s: the schedule needs the number of steps: set strata_config_opts.max_steps", __func__);
    r.lr = st_lr_at(&config->values.schedule, &config->values.optimizer, step);
    st_betas_at(&config->values.schedule, &config->values.optimizer, step, &r.beta1, &r.beta2);
    return st_handle_result(rates, &r, sizeof(r), "strata_config_rates");
}

strata_status strata_config_json(struct strata_config *config, const char **json)
{
    struct st_kept_text t;
    strata_status st = STRATA_OK;

    if (config == NULL || json == NULL)
        return st_error_missing(__func__, config == NULL ? "config" : "json");
    if (strata_config_problem(config, 0) != NULL)
        return st_error(STRATA_E_INVAL, "%s: the configuration has problems: %s", __func__, strata_config_problem(config, 0));
    if (config->json == NULL) {
        st_handle_text_begin(&t, &config->json, "api.config_json");
        if (t.file != NULL)
            st_config_write_json(&config->values, t.file);
        st = st_handle_text_end(&t, STRATA_OK);
    }
    if (st == STRATA_OK)
        *json = config->json;
    return st;
}

void strata_config_close(struct strata_config *config)
{
    if (config == NULL)
        return;
    st_config_source_free(config->source);
    free(config->json);
    free(config->name);
    free(config);
}
