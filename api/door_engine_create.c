/* api/door_engine_create.c - strata/engine.h: creates an engine of a plan, loads its weights, destroys it. */
#include "advise/predict.h"
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/cleanup.h"
#include "core/trace/trace.h"
#include "model/nf4.h"
#include "offload/comm/comm_nccl.h"
#include "offload/config/config_options.h"
#include "offload/device/op_times.h"
#include "run/checkpoint_weights.h"
#include "run/checkpointer.h"
#include "run/ranks_agree.h"
#include "run/resume_volumes.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- create and destroy --- */

/* The directories' rates, for parts in proportion, if they are known and each directory has room for its part; else NULL: equal
 * parts, for which the plan has found room.  Ranks that save take equal parts where one of them does. */
static strata_status find_dir_rates(const double **out, const struct strata_plan *p, const struct st_nvme_opts *nvme)
{
    const struct strata_model *m = p->model;
    const struct st_rates *r = &p->facts.machine.rates;
    const bool known = nvme->dir_count >= 2 && r->dir_count == nvme->dir_count;
    bool fits = false;
    uint64_t room = 0;
    strata_status st = STRATA_OK;

    *out = NULL;
    if (p->facts.plan->program.needed[STRATA_TIER_NVME] == 0)
        return STRATA_OK;
    if (known)
        fits = st_swap_room(nvme->dirs, nvme->dir_count, r->dir_rates, nvme->block_bytes, &room, NULL) == STRATA_OK &&
               room / st_topology_memory_shares(p->on->topology) >= p->facts.plan->program.needed[STRATA_TIER_NVME];
    if (st_handle_saves(m))
        st = st_ranks_all(st_handle_comm(m), &fits, "the room of the nvme directories");
    if (known && !fits)
        st_log(ST_LOG_NOTICE,
               "the nvme directories take equal parts: one of them lacks space for a part in proportion to its speed");
    if (fits)
        *out = r->dir_rates;
    return st;
}

/* Launchers set OMP_NUM_THREADS to 1 for every program; strata does not obey it, and says so. */
static void log_omp_threads(const struct strata_plan *p)
{
    const char *text = getenv("OMP_NUM_THREADS");
    const uint32_t workers = p->facts.workload.workers;
    unsigned long asked;
    char *end;

    if (text == NULL || p->model->config.threads != 0)
        return;
    asked = strtoul(text, &end, 10);
    if (end != text && asked != workers)
        st_log(ST_LOG_NOTICE, "OMP_NUM_THREADS %lu is ignored: %u %s; strata.threads sets their number", asked, workers,
               workers == 1 ? "worker" : "workers");
}

/* Ranks exchange what GPUs hold by NCCL, and all else as they have met. */
static strata_status take_comms(struct strata_engine *e, struct st_engine_opts *opts)
{
    const struct strata_plan *p = e->plan;
    const struct st_device_ops *device = st_device_find(p->on->device);
    strata_status st = STRATA_OK;

    opts->comm = opts->device_comm = st_handle_comm(p->model);
    if (opts->comm == NULL || device == NULL || device->memory == NULL)
        return STRATA_OK;
    st = st_comm_nccl_open(&e->device_comm, opts->comm, st_device_index(p->on->device));
    opts->device_comm = e->device_comm;
    return st;
}

static strata_status create_engine(struct strata_engine *e, const struct strata_engine_opts *o)
{
    const struct strata_plan *p = e->plan;
    const struct strata_model *m = p->model;
    struct st_engine_opts opts;
    fenv_t floats;
    strata_status st;

    st_floats_plain(&floats);
    st_config_engine_opts(&opts, &m->config);
    opts.program = &p->facts.plan->program;
    opts.compute = m->layers != NULL ? (struct st_compute){0} : st_model_compute(m->model);
    opts.layer_names = m->layers != NULL ? m->layers->ordered : NULL;
    if (opts.fetch == ST_FETCH_AUTO && p->facts.machine.rates.update_even)
        opts.fetch = ST_FETCH_EVEN;
    if (p->threads != 0)
        opts.threads = p->threads;
    opts.early_most = st_predict_early_most(&p->facts);
    opts.topology = p->on->topology;
    opts.device = p->on->device;
    opts.nvme.fake_seed = o->fake_seed;
    opts.nvme.fake_latency_us = o->fake_latency_us;
    opts.nvme.patience.hangs = o->hangs;
    opts.nvme.patience.ctx = o->hangs_ctx;
    opts.trace = e->trace;
    opts.op_times = e->op_times;
    st = find_dir_rates(&opts.nvme.dir_rates, p, &opts.nvme);
    if (st == STRATA_OK)
        st = take_comms(e, &opts);
    if (st == STRATA_OK)
        st = st_engine_create(&e->run.engine, &opts);
    if (st == STRATA_OK)
        st_handle_stage(e->plan, st_engine_staged(e->run.engine));
    st_floats_restore(&floats);
    return st_error_at_start(st); /* after this the space is allocated, and a disk that fills is an I/O failure */
}

static strata_status check_plan(const struct strata_plan *plan)
{
    const struct st_comm *comm = st_handle_comm(plan->model);

    if (!st_handle_fits(plan))
        return st_error(STRATA_E_INVAL, "an engine cannot be created from a plan that does not fit");
    if (st_handle_only_plans(plan->model))
        return st_error(STRATA_E_INVAL,
                        "the model was opened only for planning: set its use to STRATA_USE_TRAIN, _EVAL or _GENERATE");
    if (comm != NULL && st_comm_is_parents(comm))
        return st_error(STRATA_E_INVAL, "process %ld is rank %u, its child %ld is not: create the engine in the rank's process",
                        (long)comm->pid, comm->world.rank, (long)getpid());
    return STRATA_OK;
}

strata_status strata_engine_create(struct strata_engine **engine, struct strata_plan *plan, const struct strata_engine_opts *opts)
{
    struct strata_engine_opts o;
    struct strata_engine *e;
    strata_status st = st_handle_opts(&o, sizeof(o), opts, "strata_engine_opts");

    if (engine == NULL || plan == NULL)
        return st_error_missing(__func__, engine == NULL ? "engine" : "plan");
    if (st != STRATA_OK || (st = check_plan(plan)) != STRATA_OK)
        return st;
    if (atomic_flag_test_and_set(&plan->model->has_engine))
        return st_error(STRATA_E_INVAL, "the model has an engine already: destroy it, or open the model again");
    e = st_fault_refuses("api.engine") ? NULL : calloc(1, sizeof(*e));
    if (e == NULL) {
        atomic_flag_clear(&plan->model->has_engine);
        return st_nomem(sizeof(*e));
    }
    e->pid = getpid();
    e->entered = ST_HANDLE_NO_LAYER;
    atomic_flag_clear(&e->busy);
    e->plan = plan;
    e->run = st_handle_run(plan->model);
    e->run.program = &plan->facts.plan->program;
    atomic_fetch_add(&plan->users, 1);
    plan->has_engine = true;
    if (o.trace_steps > 0)
        st = st_engine_trace_create(&e->trace, &plan->facts.plan->program, o.trace_steps, o.trace_ops);
    if (st == STRATA_OK && e->trace != NULL && o.trace_ops)
        st = st_op_times_create(&e->op_times, &(struct st_op_times_opts){.table_rows = plan->facts.plan->program.workload.vocab,
                                                                         .trace = e->trace,
                                                                         .records = true});
    log_omp_threads(plan);
    if (st == STRATA_OK && st_handle_saves(plan->model))
        st = st_checkpointer_open(&e->run.checkpointer, &e->run, o.overwrite);
    if (st == STRATA_OK)
        st = create_engine(e, &o);
    if (st == STRATA_OK && e->run.checkpointer != NULL)
        st = st_checkpointer_attach(e->run.checkpointer);
    if (st != STRATA_OK) {
        strata_engine_destroy(e);
        return st_error_at_start(st);
    }
    *engine = e;
    return STRATA_OK;
}

/* A save that was begun ends.  Ranks are destroyed each by itself: what all would have to make together is not made. */
static void end_saves(struct strata_engine *e)
{
    const bool due = st_checkpointer_is_due(e->run.checkpointer);
    strata_status st = due ? st_engine_ended(e->run.engine) : STRATA_OK;

    if (st == STRATA_OK && due && e->run.program->ranks > 1)
        st = st_error(STRATA_E_INVAL,
                      "ranks make it together: strata_engine_saved() waits for that, strata_engine_destroy() does not");
    if (st == STRATA_OK)
        st = st_checkpointer_wait(e->run.checkpointer);
    if (st != STRATA_OK)
        st_log(ST_LOG_WARN, "the last checkpoint was not made: %s", strata_last_error());
}

/* What a step of layers waits for will not come.  It is dropped, and where it makes a save it goes on to its end for that. */
static void end_step(struct strata_engine *e)
{
    struct st_checkpointer *c = e->run.checkpointer;
    const bool due = c != NULL && st_checkpointer_is_due(c) && e->run.program->ranks == 1;
    strata_status st;

    if (!due)
        st_engine_cancel(e->run.engine);
    st = st_engine_caller_drop(e->run.engine, NULL);
    if (due && !e->evaluates)
        (void)!st_checkpointer_end_step(c, st);
}

void strata_engine_destroy(struct strata_engine *engine)
{
    fenv_t floats;

    if (engine == NULL || engine->pid != getpid()) /* its threads and files are the parent's */
        return;
    if (atomic_flag_test_and_set(&engine->busy)) {
        st_log(ST_LOG_ERROR, "%s: a call on this engine is in progress: it is not destroyed", __func__);
        return;
    }
    st_floats_plain(&floats);
    if (engine->run.engine != NULL && st_engine_caller_inside(engine->run.engine))
        end_step(engine);
    if (engine->run.checkpointer != NULL && engine->loaded)
        end_saves(engine);
    st_floats_restore(&floats);
    if (engine->run.checkpointer != NULL)
        st_checkpointer_tell(engine->run.checkpointer);
    st_checkpointer_stop(engine->run.checkpointer); /* waits for a save in progress */
    if (engine->run.engine != NULL)
        st_resume_volumes_free(engine->run.resumed, engine->run.engine);
    st_engine_destroy(engine->run.engine);
    st_checkpointer_close(engine->run.checkpointer);
    st_comm_close(engine->device_comm);
    st_op_times_destroy(engine->op_times);
    st_trace_destroy(engine->trace);
    engine->plan->has_engine = false;
    atomic_flag_clear(&engine->plan->model->has_engine);
    strata_plan_destroy(engine->plan);
    free(engine->json);
    free(engine);
}

void strata_abandon(void)
{
    st_cleanup_begin();
    st_cleanup_run();
}

/* --- weights --- */

/* A source of weights whose progress is reported.  Several workers read at once. */
struct watched_source {
    struct st_weight_source source;
    const struct strata_model *model;
    const char *what;
    uint64_t total;
    atomic_uint_fast64_t done;
};

static strata_status read_watched(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    struct watched_source *w = ctx;
    const strata_status st = w->source.read(w->source.ctx, page, first, count, out);

    return st == STRATA_OK ? st_handle_watch(w->model, w->what, atomic_fetch_add(&w->done, count) + count, w->total) : st;
}

/* Values of a checkpoint, or of a directory that says so, have been quantised. */
static strata_status open_nf4(struct st_nf4_source **out, struct strata_model *m)
{
    const bool saved = m->from.weights != NULL, wanted = m->config.quantization != ST_QUANTIZATION_NONE;
    const bool twice = m->config.quantization == ST_QUANTIZATION_NF4_DOUBLE && !saved && !st_model_config(m->model)->quantised;

    if (saved && !st_model_config(m->model)->out_in && wanted != st_checkpoint_has_nf4(m->from.checkpoint))
        return st_error_remedy(st_error(STRATA_E_INVAL,
                                        "%s: its run stored matrices %s; in nf4 the matrices of GPT-2's family are transposed",
                                        m->from.saved, wanted ? "without nf4" : "in nf4"),
                               "strata.quantization", "say config.overrides strata.quantization=%s", wanted ? "none" : "nf4");
    return wanted ? st_nf4_source_open(out, m->model, st_handle_weights(m), saved, twice) : STRATA_OK;
}

static strata_status check_unchanged(const struct strata_model *m)
{
    strata_status st = m->from.reader != NULL ? st_hf_reader_check_unchanged(m->from.reader) : STRATA_OK;

    if (st == STRATA_OK && m->from.adapter_files != NULL)
        st = st_hf_adapter_check_unchanged(m->from.adapter_files);
    return st;
}

/* Ranks hear of what fails on one before they begin and after they end, so that each of them has loaded, or none. */
static strata_status load(struct strata_engine *e, void *none)
{
    struct strata_model *m = e->plan->model;
    struct watched_source w = {.model = m, .what = m->is_dir ? "loading weights" : "making initial weights"};
    struct st_nf4_source *nf4 = NULL;
    strata_status st = st_handle_open_weights(m);

    (void)none;
    if (st == STRATA_OK)
        st = open_nf4(&nf4, m);
    for (uint32_t p = 0; p < st_model_workload(m->model)->page_count; p++)
        w.total += st_model_workload(m->model)->pages[p].params; /* those that are frozen are loaded, too */
    if (st == STRATA_OK)
        st = st_handle_watch(m, w.what, 0, w.total);
    if ((st = st_engine_agree(e->run.engine, st, "the beginning of a load")) == STRATA_OK) {
        w.source = nf4 != NULL ? st_nf4_source_values(nf4) : st_handle_weights(m);
        st = st_engine_load(e->run.engine, read_watched, &w);
    }
    st_nf4_source_close(nf4);
    return st == STRATA_OK ? st_engine_agree(e->run.engine, check_unchanged(m), "the files of a load") : st;
}

strata_status st_handle_load(struct strata_engine *engine, const char *function,
                             strata_status (*values)(struct strata_engine *e, void *ctx), void *ctx)
{
    strata_status st = st_checkpointer_check_due(engine->run.checkpointer, function);

    if (st != STRATA_OK)
        return st;
    if ((st = st_checkpointer_settle(&engine->run)) == STRATA_OK)
        st = values(engine, ctx);
    if (st == STRATA_OK && engine->run.checkpointer != NULL)
        st = st_checkpointer_begin(engine->run.checkpointer, NULL);
    engine->loaded = st == STRATA_OK;
    engine->lr_set = false; /* a new run has the configuration's schedule, */
    engine->cached = 0;     /* and a sequence without tokens */
    engine->forwards++;
    if (!st_engine_adopted(engine->run.engine)) { /* what the run before had open of its checkpoint */
        st_resume_volumes_free(engine->run.resumed, engine->run.engine);
        engine->run.resumed = NULL;
    }
    return st;
}

strata_status strata_engine_load(struct strata_engine *engine)
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_GOES_ON);

    if (st != STRATA_OK)
        return st;
    st = st_handle_load(engine, __func__, engine->plan->model->layers != NULL ? st_handle_load_layers : load, NULL);
    st_handle_close_weights(engine->plan->model); /* its files are no longer needed */
    st_handle_leave(engine);
    return st;
}
