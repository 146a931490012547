/* api/door_plan.c - strata/plan.h: plans for a machine, and plans again when its rates are known. */
#include "api/handles.h"
#include "api/plan_case.h"
#include "api/plan_machine.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/clock.h"
#include "offload/config/config_options.h"
#include "offload/machine/rates_kept.h"
#include "run/ranks_agree.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* If an automatic budget follows from a ulimit, the sentence says how. */
static strata_status name_ulimit(const struct strata_plan *p, strata_status st)
{
    const struct st_config *config = &p->model->config;
    const char *ulimit = st_topology_ulimit(p->on->topology);
    char have[24], fixed[24], device[24];

    if (p->facts.only_plans || ulimit == NULL || (config->host_memory != ST_AUTO_BYTES && config->device_memory != ST_AUTO_BYTES))
        return st;
    return st_error_remedy(st_error(st, "%s; %s leaves %s of memory: a fifth stays free, the process takes %s, the device %s",
                                    strata_last_error(), ulimit, st_size_text(have, st_topology_memory_limit(p->on->topology)),
                                    st_size_text(fixed, ST_MACHINE_FIXED_BYTES),
                                    st_size_text(device, p->facts.machine.capacity.bytes[STRATA_TIER_DEVICE])),
                           "strata.host_memory", "raise %s, or give both strata.host_memory and strata.device_memory", ulimit);
}

/* The planner sees budgets, not where they come from. */
static strata_status name_budgets(const struct strata_plan *p, strata_status st)
{
    const struct st_config *config = &p->model->config;
    const struct st_capacity *capacity = &p->facts.machine.capacity;
    char device[24], have[24];

    if (st != STRATA_E_NOFIT)
        return st;
    if (!capacity->device_is_host || capacity->bytes[STRATA_TIER_HOST] != 0 || config->device_memory == ST_AUTO_BYTES ||
        config->host_memory != ST_AUTO_BYTES)
        return name_ulimit(p, st);
    return st_error_remedy(
        st_error(st, "does not fit: the device's budget of %s comes from this machine's %s and leaves none for the host",
                 st_size_text(device, config->device_memory), st_size_text(have, st_topology_memory_limit(p->on->topology))),
        "strata.device_memory", "lower strata.device_memory, or give strata.host_memory too");
}

/* Budgets may be larger than the machine: then the plan fits them, but not the actual memory. */
static strata_status check_memory(const struct strata_plan *p)
{
    const uint64_t limit = st_topology_memory_limit(p->on->topology), available = st_topology_memory_available(p->on->topology),
                   device = p->facts.plan->program.needed[STRATA_TIER_DEVICE],
                   takes = p->facts.plan->rss_bytes_max + (p->facts.plan->capacity.unified ? device : 0);
    char wanted[24], have[24];

    if (takes > limit && st_topology_ulimit(p->on->topology) != NULL)
        return st_error_remedy(
            st_error(STRATA_E_NOFIT, "the plan takes %s of memory, %s leaves %s beside the threads' stacks",
                     st_size_text(wanted, takes), st_topology_ulimit(p->on->topology), st_size_text(have, limit)),
            "strata.host_memory", "raise it, or lower strata.host_memory, strata.device_memory or strata.threads");
    if (takes > limit)
        return st_error_remedy(st_error(STRATA_E_NOFIT, "the plan takes %s of memory, this machine has %s",
                                        st_size_text(wanted, takes), st_size_text(have, limit)),
                               "strata.host_memory", "lower strata.host_memory or strata.device_memory");
    if (takes > available)
        st_log(ST_LOG_WARN, "the plan takes %s of memory, %s are free now", st_size_text(wanted, takes),
               st_size_text(have, available));
    return STRATA_OK;
}

void st_handle_note_memory(const struct strata_plan *p)
{
    const uint64_t ranks = p->on->planned.ranks > 1 ? p->on->planned.local_ranks : 1,
                   limit = st_topology_memory_limit(p->on->topology);
    char wanted[24], have[24];

    if (st_handle_is_here(p->on) && p->facts.plan->fits && p->facts.plan->rss_bytes_max > limit / ranks)
        st_log(
            ST_LOG_WARN,
            "the plan takes %s of memory%s, this machine has %s: a run here is refused (for another: machine.file, machine.gpu)",
            st_size_text(wanted, p->facts.plan->rss_bytes_max), ranks > 1 ? " for each rank" : "", st_size_text(have, limit));
}

/* --- the plan --- */

/* Where what this rank has would do, the sentence says which rank has less. */
static strata_status name_rank(const struct strata_plan *p, const struct st_capacity *own,
                               const uint32_t least[STRATA_TIER_COUNT], strata_status st)
{
    char have[24];

    if (st != STRATA_E_NOFIT)
        return st;
    for (uint32_t t = 0; t < STRATA_TIER_COUNT; t++) {
        const uint64_t needed = p->facts.plan->program.needed[t];

        if (needed > p->facts.machine.capacity.bytes[t] && needed <= own->bytes[t])
            return st_error(st, "%s; rank %u has no more, this one has %s", strata_last_error(), least[t],
                            st_size_text(have, own->bytes[t]));
    }
    return st;
}

static strata_status new_plan(struct strata_plan **out, struct strata_model *model, struct strata_machine *on)
{
    struct strata_plan *p = st_fault_refuses("api.plan") ? NULL : calloc(1, sizeof(*p));

    if (p == NULL)
        return st_nomem(sizeof(*p));
    atomic_init(&p->users, 1);
    p->model = model;
    atomic_fetch_add(&model->users, 1);
    p->on = on;
    atomic_fetch_add(&on->users, 1);
    st_handle_case(&p->facts, model, on);
    *out = p;
    return STRATA_OK;
}

/* Whether a plan of this model can be one for this machine: another use than planning is for one that is here. */
static strata_status check_machine(const struct strata_plan *p, const struct st_comm *comm)
{
    const struct strata_machine *on = p->on;

    if ((on->comm != NULL ? on->comm->comm : NULL) != comm) /* both NULL: one rank, with a handle or not */
        return st_error(STRATA_E_INVAL, "the model and the machine are of different ranks: give both the same comm");
    if (!p->facts.only_plans) {
        if (on->hardware != NULL || on->planned.ranks > 0)
            return st_error(STRATA_E_INVAL, "the machine is only for plans: a model with another use needs this machine");
        if (on->gpu_elsewhere)
            return strata_device_check("cuda");
    }
    return st_handle_check_ranks(&p->model->config, p->facts.world.ranks, "machine");
}

/* Ranks that are here need devices of one kind, and take as many workers as the one with the fewest, since plans have scratch for
 * each.
 */
static strata_status agree_machine(struct strata_plan *p, struct st_comm *comm)
{
    const struct st_comm_fact kind = {.name = "the kind of the device",
                                      .text = strncmp(p->on->device, "cuda", 4) == 0 ? "cuda" : p->on->device};
    strata_status st;

    if (comm == NULL)
        return STRATA_OK;
    if ((st = st_ranks_agree(comm, &kind, 1, "the kind of the device")) != STRATA_OK)
        return st;
    p->threads = p->facts.workload.workers;
    return st_ranks_fewest(comm, &p->threads, "workers");
}

static strata_status make_plan(struct strata_plan *p)
{
    struct st_comm *comm = st_handle_comm(p->model);
    uint32_t least[STRATA_TIER_COUNT];
    const struct st_machine *evaluator;
    struct st_capacity own;
    strata_status st = check_machine(p, comm);

    if (st != STRATA_OK || (st = agree_machine(p, comm)) != STRATA_OK || (st = st_handle_find_machine(p)) != STRATA_OK)
        return st;
    own = p->facts.machine.capacity;
    if ((st = st_ranks_capacity(comm, &p->facts.machine.capacity, least)) != STRATA_OK ||
        (st = st_ranks_most(comm, &p->facts.asked.sets, "sets of checkpoints")) != STRATA_OK) /* by where each's drives are */
        return st;
    evaluator =
        p->facts.world.ranks == 1 ? st_case_evaluator(&p->facts, &p->facts.machine) : NULL; /* ranks agree on rates later */
    p->facts.evaluated = evaluator != NULL;
    st = st_plan_make_evaluated(&p->facts.plan, &p->facts.workload, &p->facts.machine.capacity, &p->facts.asked, evaluator,
                                ST_EFFORT_WHOLE);
    st = st_plan_advise(p->facts.plan, st);
    st = name_budgets(p, st);
    st = name_rank(p, &own, least, st);
    if (st == STRATA_E_NOFIT)
        st = st_ranks_leave_together(comm, st, "a plan that does not fit");
    if (st == STRATA_OK && (st = st_plan_verify(p->facts.plan)) == STRATA_OK)
        st_figures_make(&p->facts.figures, &p->facts.plan->program, &p->facts.machine);
    if (st == STRATA_OK)
        st = st_ranks_agree_plan(comm, &p->facts.plan->program, p->on->device);
    if (st != STRATA_OK || p->facts.only_plans)
        return st;
    st = check_memory(p);
    p->facts.too_large = st != STRATA_OK;
    return st;
}

strata_status st_handle_plan(struct strata_plan **plan, struct strata_model *model, struct strata_machine *on)
{
    struct strata_plan *p = NULL;
    fenv_t floats;
    strata_status st;

    st_floats_plain(&floats);
    if ((st = new_plan(&p, model, on)) == STRATA_OK)
        st = make_plan(p);
    st_floats_restore(&floats);
    if (p != NULL && p->facts.plan != NULL && (st == STRATA_OK || st == STRATA_E_NOFIT))
        *plan = p;
    else
        strata_plan_destroy(p);
    return st;
}

strata_status strata_plan_make(struct strata_plan **plan, struct strata_model *model, struct strata_machine *machine)
{
    const struct strata_machine_opts here = {.opts_size = sizeof(here), .comm = model != NULL ? model->comm : NULL};
    struct strata_machine *own = NULL;
    strata_status st;

    if (plan == NULL || model == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "model");
    if (machine == NULL && (st = strata_machine_open(&own, &here)) != STRATA_OK)
        return st;
    st = st_handle_plan(plan, model, machine != NULL ? machine : own);
    strata_machine_close(own);
    if (st == STRATA_OK && (*plan)->facts.only_plans)
        st_handle_note_memory(*plan);
    return st;
}

strata_status st_handle_adopt(struct strata_plan **out, struct strata_model *model, struct strata_machine *on,
                              struct st_plan **plan, const struct st_machine *machine, bool rates_known, bool evaluated)
{
    struct strata_plan *p = NULL;
    strata_status st = new_plan(&p, model, on);

    if (st != STRATA_OK)
        return st;
    p->facts.machine = p->facts.node = *machine;
    p->facts.rates_known = rates_known;
    p->facts.evaluated = evaluated;
    p->facts.plan = *plan;
    *plan = NULL;
    if ((st = st_plan_verify(p->facts.plan)) != STRATA_OK) {
        strata_plan_destroy(p);
        return st;
    }
    st_figures_make(&p->facts.figures, &p->facts.plan->program, &p->facts.machine);
    *out = p;
    return STRATA_OK;
}

static void forget_texts(struct strata_plan *p)
{
    free(p->text);
    free(p->json);
    p->text = p->json = NULL;
}

void st_handle_stage(struct strata_plan *p, const struct st_staged *staged)
{
    const uint64_t bytes = p->facts.plan->program.needed[STRATA_TIER_HOST];
    const double pinned_bound = p->facts.figures.bounds.schedule;
    struct st_machine machine = p->facts.machine;
    char part[24], all[24], now[24], before[24];

    if (!p->facts.rates_known || (staged->bytes == 0 && p->staged.bytes == 0))
        return;
    p->staged = *staged;
    forget_texts(p);
    st_rates_stage(&machine.rates, bytes, staged);
    st_figures_make(&p->facts.figures, &p->facts.plan->program, &machine);
    if (staged->bytes > 0)
        st_log(ST_LOG_NOTICE,
               "%s of %s of host memory are not pinned: copies at %.3g GB/s up, %.3g down; shortest step %s, planned %s",
               st_size_text(part, staged->bytes), st_size_text(all, bytes), machine.rates.upload * 1e-9,
               machine.rates.download * 1e-9, st_seconds_text(now, p->facts.figures.bounds.schedule),
               st_seconds_text(before, pinned_bound));
}

void st_handle_time_layers(struct strata_plan *p, const struct st_engine *engine)
{
    struct st_machine machine = p->facts.machine;

    if (!st_engine_caller_timed(engine, &p->facts.plan->program.workload))
        return;
    forget_texts(p);
    st_rates_stage(&machine.rates, p->facts.plan->program.needed[STRATA_TIER_HOST], &p->staged);
    st_figures_make(&p->facts.figures, &p->facts.plan->program, &machine);
}

/* Ranks choose alike, and each has times of its own. */
static void forget_times(struct st_workload *w)
{
    for (uint32_t l = 0; l < w->layer_count; l++)
        w->layers[l].forward_seconds = w->layers[l].backward_seconds = 0;
}

static strata_status measure_and_evaluate(struct strata_plan *plan)
{
    struct st_comm *comm = st_handle_comm(plan->model);
    strata_status st = STRATA_OK;

    if (st_handle_is_here(plan->on))
        st = st_handle_measure(plan);
    st = st_ranks_end_alike(comm, st, ST_HANDLE_MEASURING); /* else ranks that go on would wait for one that does not */
    forget_texts(plan);
    if (st == STRATA_OK)
        st = st_ranks_rates(comm, &plan->facts.machine.rates, st_handle_saves(plan->model));
    if (comm != NULL) {
        st_handle_take_rates(plan, &plan->facts.machine.rates);
        forget_times(&plan->facts.plan->program.workload);
    }
    if (st != STRATA_OK || !plan->facts.rates_known)
        return st;
    if (!plan->facts.evaluated && st_case_evaluator(&plan->facts, &plan->facts.machine) != NULL)
        st = st_plan_evaluate(&plan->facts.plan, &plan->facts.machine);
    if (st == STRATA_OK && (st = st_plan_verify(plan->facts.plan)) == STRATA_OK)
        st_figures_make(&plan->facts.figures, &plan->facts.plan->program, &plan->facts.machine);
    return st == STRATA_OK ? st_ranks_agree_plan(comm, &plan->facts.plan->program, plan->on->device) : st;
}

strata_status strata_plan_measure(struct strata_plan *plan)
{
    fenv_t floats;
    strata_status st;

    if (plan == NULL)
        return st_error_missing(__func__, "plan");
    if (!st_handle_fits(plan) || plan->has_engine)
        return st_error(STRATA_E_INVAL, "%s: %s", __func__,
                        plan->has_engine ? "the plan has an engine" : "the plan does not fit");
    st_floats_plain(&floats);
    st = measure_and_evaluate(plan);
    st_floats_restore(&floats);
    return st;
}

/* --- its text --- */

const struct st_case *st_plan_case(const struct strata_plan *plan)
{
    return &plan->facts;
}

static struct strata_plan_bytes bytes_of(const struct st_traffic *t)
{
    return (struct strata_plan_bytes){
        .upload = t->upload, .download = t->download, .read = t->read, .write = t->write, .comm = t->comm};
}

strata_status strata_plan_get_info(const struct strata_plan *plan, struct strata_plan_info *info)
{
    struct strata_plan_info i = {0};
    const struct st_program *program;
    const struct st_rates *rates;
    enum st_phase phase;

    if (plan == NULL || info == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "info");
    program = &plan->facts.plan->program;
    rates = &plan->facts.machine.rates;
    phase = st_handle_forward_only(plan->model) ? ST_PHASE_EVAL : ST_PHASE_BODY;
    i.fits = st_handle_fits(plan);
    memcpy(i.capacity_bytes, plan->facts.machine.capacity.bytes, sizeof(i.capacity_bytes));
    memcpy(i.needed_bytes, program->needed, sizeof(i.needed_bytes));
    i.memory_bytes = plan->facts.plan->rss_bytes_max;
    memcpy(i.least_bytes, plan->facts.plan->minimum, sizeof(i.least_bytes));
    i.step = bytes_of(&plan->facts.figures.traffic[st_phase_index(phase)]);
    for (int step = 0; step < 2; step++)
        i.first[step] = bytes_of(&plan->facts.figures.fresh[step]);
    i.token_flops = program->workload.model_flops_per_token / program->ranks;
    i.device_flops = fmax(fmax(rates->matmul_flops, rates->experts_flops), fmax(rates->block_flops, rates->head_flops));
    i.bound_by = plan->facts.figures.bounds.bound_by;
    i.hardware_bound_seconds = plan->facts.figures.bounds.hardware;
    i.schedule_bound_seconds = plan->facts.figures.bounds.schedule;
    i.early_pages = program->early_pages;
    return st_handle_result(info, &i, sizeof(i), "strata_plan_info");
}

void strata_plan_destroy(struct strata_plan *plan)
{
    if (plan == NULL || atomic_fetch_sub(&plan->users, 1) > 1)
        return;
    forget_texts(plan);
    st_plan_destroy(plan->facts.plan);
    strata_machine_close(plan->on);
    strata_model_close(plan->model);
    free(plan);
}
