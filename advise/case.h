/* advise/case.h - what reports and advice need to know of a run: its plan, the machine that it is for, and what was asked.
 *
 * Everything here is borrowed by those who read it.  Whoever plans fills it in and keeps what it points to. */
#ifndef ADVISE_CASE_H
#define ADVISE_CASE_H

#include "core/system/topology.h"
#include "model/layers.h"
#include "model/model.h"
#include "offload/comm/comm.h"
#include "offload/config/config.h"
#include "offload/machine/hardware.h"
#include "offload/machine/machine.h"
#include "offload/plan/plan.h"
#include "offload/simulate/figures.h"

/* Where checkpoints lie: a drive of their own file system holds what they share of its sets, and that of another is copied. */
enum st_saves_on { ST_SAVES_ELSEWHERE, ST_SAVES_ON_SOME_DRIVES, ST_SAVES_ON_DRIVES };

struct st_case {
    /* What is asked. */
    const struct st_config *config;
    struct st_model *model;
    const struct st_layers *layers; /* of others, in place of a model */
    struct st_policy asked;         /* of a plan, by configuration and ranks */
    enum st_saves_on saves_on;
    struct st_world world;       /* this rank and all of the run, or of the planned one */
    struct st_workload workload; /* of the model on the machine: its scratch is that of so many workers */
    bool only_plans;             /* nothing is run: the plan may be for another machine */

    /* The machine. */
    const struct st_tensor_ops *tensors; /* of its device */
    const struct st_topology *topology;  /* of this one */
    const struct st_machine *file;       /* contents of the machine file, or the machine of the hardware; zeros: none */
    const struct st_hardware *hardware;  /* NULL: none was named */
    bool given;                          /* there is such a file, or such hardware: its rates are not measured here */
    struct st_machine machine;           /* one rank's part */
    struct st_machine node;              /* of this: what all its ranks have, where a plan is for ranks that are not there */
    bool rates_known;                    /* at least one rate is known */

    /* The plan. */
    struct st_plan *plan;
    struct st_figures figures; /* for a plan that fits, at the known rates */
    bool too_large;            /* budgets hold it, but this machine's memory does not */
    bool evaluated;            /* the plan is the one that they find the fastest */
};

/** The workload with scratch for that many workers of the machine's device; its arrays are the model's. */
static inline struct st_workload st_case_workload(const struct st_case *c, uint32_t workers)
{
    struct st_workload w;

    if (c->layers == NULL)
        return st_model_workload_on(c->model, c->tensors, workers);
    w = c->layers->workload;
    w.workers = workers;
    return w;
}
/** Whether an engine can be made of the plan. */
static inline bool st_case_fits(const struct st_case *c)
{
    return c->plan->fits && !c->too_large;
}

/** The machine by whose rates plans are evaluated: the given one, with some of its own changed perhaps; NULL: a nominal one,
 * since its rates are not known, or because those that are measured here change a little from run to run and gain the least on a
 * cpu device. */
const struct st_machine *st_case_evaluator(const struct st_case *c, const struct st_machine *machine);

/** Turn what a node has into what a run's ranks there have: an equal part each, but what strata.device_memory and strata.threads
 *  give is each one's own, and an automatic budget of this machine is what a rank here would take of its part. */
void st_case_share(struct st_machine *node, const struct st_case *c, uint32_t ranks);

/** E_CONFIG: a run that trains has heads too large for the GPU that the capacity is of.  One without bf16 has capability 7.5,
 *  whose blocks have 64 KiB of shared memory (kernels/cuda/attention.h). */
strata_status st_case_check_heads(const struct st_case *c, const struct st_capacity *capacity);

/** Whether the run's ranks are on several nodes. */
bool st_case_spans_nodes(const struct st_case *c);
/** Says what is not known of the network between them. */
void st_case_note_network(const struct st_case *c);

#endif
