/* api/door_engine_told.c - strata/engine.h: what runs, and what its first steps did, for programs. */
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "api/handles.h"
#include "api/metrics.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/trace/metrics_put.h"
#include "strata/strata.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The effective configuration is a text of several lines: parse it, and write it on one. */
static strata_status put_config(struct st_json_writer *w, const struct st_config *config)
{
    char *text = NULL;
    st_json *root = NULL;
    struct st_kept_text t;
    strata_status st;

    st_handle_text_begin(&t, &text, "api.engine_json");
    if (t.file != NULL)
        st_config_write_json(config, t.file);
    if ((st = st_handle_text_end(&t, STRATA_OK)) == STRATA_OK)
        st = st_json_parse(&root, text, t.bytes, "effective config");
    if (st == STRATA_OK)
        st_json_put_node(w, "config", root);
    st_json_free(root);
    free(text);
    return st;
}

static void put_engine(struct st_json_writer *w, const struct strata_engine_info *info)
{
    st_json_object_open(w, "engine");
    st_json_put_string(w, "device", info->device);
    st_json_put_string(w, "io_method", info->io_method);
    st_json_put_bool(w, "io_direct", info->io_direct);
    st_json_put_bool(w, "io_registered", info->io_registered);
    st_json_put_string(w, "isa", info->isa);
    st_json_put_u64(w, "workers", info->workers);
    st_json_object_close(w);
}

static strata_status put_run(struct st_json_writer *w, const struct strata_engine *engine, const struct strata_engine_info *info,
                             uint64_t steps)
{
    const struct strata_model *m = engine->plan->model;
    const struct st_case *facts = &engine->plan->facts;
    struct st_written endurance;
    strata_status st;

    st_json_object_open(w, "run");
    st_json_put_string(w, "id", info->run[0] != '\0' ? info->run : NULL); /* first: runs that go on look for it there */
    st_json_put_string(w, "version", STRATA_VERSION_STRING);
    st_json_put_string(w, "model", m->name);
    st_json_put_u64(w, "seed", m->seed);
    st_json_put_u64(w, "sequence_length", m->size.seq);
    st_json_put_u64(w, "max_steps", steps);
    st = put_config(w, &m->config);
    st_json_put_node(w, "origins", m->origins);
    st_json_object_open(w, "plan");
    st_plan_put(facts, w);
    st_endurance_planned(&endurance, facts, steps);
    st_written_put(&endurance, w);
    st_json_object_close(w);
    st_json_object_open(w, "machine");
    st_machine_put_fields(&facts->machine, w);
    st_json_object_close(w);
    put_engine(w, info);
    st_json_object_close(w);
    return st;
}

strata_status strata_engine_json(struct strata_engine *engine, uint64_t steps, const char **json)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct st_kept_text t;
    struct st_json_writer w;
    strata_status st;

    if (engine == NULL || json == NULL)
        return st_error_missing(__func__, engine == NULL ? "engine" : "json");
    if ((st = strata_engine_get_info(engine, &info)) != STRATA_OK)
        return st;
    st_handle_text_begin(&t, &engine->json, "api.engine_json");
    if (t.file != NULL) {
        st_json_begin(&w, t.file);
        st_json_object_open(&w, NULL);
        st = put_run(&w, engine, &info, steps);
        st_json_object_close(&w);
    }
    if ((st = st_handle_text_end(&t, st)) == STRATA_OK)
        *json = engine->json;
    return st;
}

static strata_status measure(struct strata_metrics *out, struct strata_engine *engine, const struct strata_step *step)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    struct strata_plan_info planned = STRATA_PLAN_INFO_INIT;
    const struct strata_model *m = engine->plan->model;
    strata_status st = strata_engine_get_info(engine, &info);
    uint64_t number;

    if (st == STRATA_OK)
        st = strata_plan_get_info(engine->plan, &planned);
    if (st != STRATA_OK)
        return st;
    number = info.steps + info.skipped_steps;
    st_metrics_fill(out, &planned, NULL, step, number, info.sequences * m->size.seq);
    out->value[STRATA_METRIC_LOSS_MEAN] = st_losses_mean(&engine->losses, step->loss);
    if (m->layers == NULL)
        return STRATA_OK;
    for (int i = STRATA_METRIC_TOKENS; i <= STRATA_METRIC_MFU; i++)
        out->value[i] = (double)NAN;
    return STRATA_OK;
}

strata_status strata_engine_step_json(struct strata_engine *engine, const struct strata_step *step, const char **json)
{
    struct strata_metrics metrics = STRATA_METRICS_INIT;
    struct st_kept_text t;
    struct st_json_writer w;
    strata_status st;

    if (engine == NULL || step == NULL || json == NULL)
        return st_error_missing(__func__, engine == NULL ? "engine" : step == NULL ? "step" : "json");
    if ((st = st_handle_room(step, sizeof(*step), "strata_step")) != STRATA_OK ||
        (st = measure(&metrics, engine, step)) != STRATA_OK)
        return st;
    st_handle_text_begin(&t, &engine->json, "api.step_json");
    if (t.file != NULL) {
        st_json_begin(&w, t.file);
        st_json_object_open(&w, NULL);
        st_metrics_put(&w, metrics.value, strata_metric_name, false);
        st_json_object_close(&w);
    }
    if ((st = st_handle_text_end(&t, STRATA_OK)) == STRATA_OK)
        *json = engine->json;
    return st;
}

strata_status strata_engine_write_trace(struct strata_engine *engine, FILE *file)
{
    strata_status st;

    if (engine == NULL || file == NULL)
        return st_error_missing(__func__, engine == NULL ? "engine" : "file");
    if ((st = st_handle_enter(engine, __func__, ST_HANDLE_EXISTS)) != STRATA_OK)
        return st;
    st = engine->trace != NULL
             ? st_engine_trace_write(engine->run.engine, file)
             : st_error(STRATA_E_INVAL, "%s: nothing is recorded: set strata_engine_opts.trace_steps", __func__);
    st_handle_leave(engine);
    return st;
}
