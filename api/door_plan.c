/* api/door_plan.c - strata/plan.h: describes the machine, plans for it, and plans again when its rates are known. */
#include "api/handles.h"
#include "api/plan_report.h"
#include "api/predict.h"
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MEASURING "measuring the rates of this machine"

/* --- the machine --- */

/* The plan may be for another machine: its file's capacities apply if the configuration gives none. */
static void take_capacities(struct strata_plan *p)
{
    const struct st_machine *file = &p->model->file;
    const uint64_t *from = file->capacity.bytes;
    uint64_t *capacity = p->facts.machine.capacity.bytes;

    if (p->model->config.device_memory == ST_AUTO_BYTES && from[STRATA_TIER_DEVICE] != 0)
        capacity[STRATA_TIER_DEVICE] = from[STRATA_TIER_DEVICE];
    if (p->model->config.host_memory == ST_AUTO_BYTES && from[STRATA_TIER_HOST] != 0)
        capacity[STRATA_TIER_HOST] = from[STRATA_TIER_HOST];
    if (from[STRATA_TIER_NVME] != 0)
        capacity[STRATA_TIER_NVME] = from[STRATA_TIER_NVME];
    if (p->model->config.threads == 0 && file->capacity.workers != 0)
        p->facts.machine.capacity.workers = file->capacity.workers;
    p->facts.machine.capacity.device_is_host = file->capacity.device_is_host;
    p->facts.machine.capacity.unified |= file->capacity.unified;
    p->facts.machine.capacity.lacks_bf16 |= file->capacity.lacks_bf16;
    if (file->name[0] != '\0')
        memcpy(p->facts.machine.name, file->name, sizeof(p->facts.machine.name));
}

static void take_rates(struct strata_plan *p, const struct st_rates *rates)
{
    p->facts.machine.rates = *rates;
    p->facts.rates_known = rates->matmul_flops > 0 || rates->update > 0 || rates->read > 0;
}

/* Of the directories of st_config_machine_opts(). */
static bool uses_disk(const struct strata_model *m)
{
    return st_config_uses_nvme(&m->config) || (m->config.save[0] != '\0' && !st_handle_forward_only(m));
}

/* Of the checkpoints' directory, which may not be there yet, as much as is: what a run makes below lies on the same drive. */
static strata_status existing_part(char place[ST_CONFIG_PATH_MAX], const char *dir)
{
    struct stat info;

    memcpy(place, dir, ST_CONFIG_PATH_MAX);
    while (st_fault_refuses("api.save_dir") || stat(place, &info) != 0) {
        char *slash = strrchr(place, '/');

        if (errno != ENOENT)
            return st_error_errno(errno, "strata.save (--save) %s", dir);
        if (slash == NULL)
            memcpy(place, ".", sizeof("."));
        else
            slash[slash == place] = '\0'; /* the root keeps its name */
    }
    if (S_ISDIR(info.st_mode))
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "strata.save (--save) %s: %s is not a directory", dir, place);
}

/* A plan for drives that are not here: the directories of the configuration need not be there, nor are they looked at. */
static bool has_drives_elsewhere(const struct strata_model *m)
{
    return st_handle_only_plans(m) && (m->hardware != NULL || m->file.capacity.bytes[STRATA_TIER_NVME] != 0);
}

/* Strings are borrowed from the model, and from `place`. */
static strata_status machine_opts(struct st_machine_opts *opts, const struct strata_model *m, char place[ST_CONFIG_PATH_MAX])
{
    st_config_machine_opts(opts, &m->config);
    opts->topology = m->topology;
    opts->device = m->device;
    if (m->threads != 0)
        opts->threads = m->threads;
    if (!uses_disk(m) || has_drives_elsewhere(m)) {
        opts->nvme.dir_count = 0;
    } else if (!st_config_uses_nvme(&m->config)) {
        opts->nvme.dirs[0] = place;
        return existing_part(place, m->config.save);
    }
    return STRATA_OK;
}

strata_status st_handle_check_heads(const struct strata_model *m, const struct st_capacity *capacity)
{
    const strata_dtype dtype = m->config.dtype;
    const uint32_t most = dtype == STRATA_F32 ? 64 : 128, size = st_model_config(m->model)->head_dim;

    if (!capacity->lacks_bf16 || dtype == STRATA_BF16 || st_handle_forward_only(m) || size <= most)
        return STRATA_OK;
    return st_error(STRATA_E_CONFIG, "a GPU without bf16 trains heads of at most %u in %s, and the model's have %u: %s", most,
                    strata_dtype_name(dtype), size,
                    size <= 128 ? "set fp16.enabled to true" : "take one of compute capability 8.0 or later");
}

static strata_status look_at_machine(struct strata_plan *p)
{
    const bool foreign = st_handle_only_plans(p->model);
    char place[ST_CONFIG_PATH_MAX];
    struct st_machine_opts here;
    strata_status st;

    if (p->model->nvme_named && !st_config_uses_nvme(&p->model->config))
        st_log(ST_LOG_NOTICE, "--nvme names a directory, but the configuration puts nothing there: set "
                              "zero_optimization.offload_optimizer.device=nvme");
    if ((st = machine_opts(&here, p->model, place)) != STRATA_OK)
        return st;
    /* A plan for another machine whose file gives the device's bytes does not query a GPU here. */
    here.device = foreign && p->model->file.capacity.bytes[STRATA_TIER_DEVICE] != 0 ? "cpu" : p->model->device;
    st = st_machine_here(&p->facts.machine, &here);
    if (st == STRATA_E_INPUT && foreign && p->model->machine != NULL && here.nvme.dir_count > 0)
        return st_error(st, "%s; of drives that are not here nvme_bytes in %s says how much they hold", strata_last_error(),
                        p->model->machine);
    if (st != STRATA_OK || p->model->machine == NULL)
        return st;
    if (foreign)
        take_capacities(p);
    take_rates(p, &p->model->file.rates);
    return STRATA_OK;
}

static strata_status find_machine(struct strata_plan *p)
{
    const strata_status st = look_at_machine(p);

    return st == STRATA_OK ? st_handle_check_heads(p->model, &p->facts.machine.capacity) : st;
}

/* What the machine has is for all its ranks: this one takes its part.  Of ranks that are there capacities are divided already,
 * and so are rates that all of them have measured at the same time. */
static void share_node(struct strata_plan *p)
{
    const struct st_world world = st_handle_world(p->model);
    const bool planned = p->model->planned.ranks > 0;
    const uint32_t of_machine = p->facts.machine.rates.node_ranks;

    if (world.ranks > 1)
        p->facts.machine.rates.node_ranks = world.local_ranks;
    p->facts.node = p->facts.machine;
    if (planned && world.local_ranks == world.ranks && of_machine > world.ranks)
        p->facts.node.rates.node_ranks = of_machine; /* it has room for more than these */
    if (world.ranks > 1 && planned)
        st_case_share(&p->facts.machine, &p->facts, world.local_ranks);
    else if (world.ranks > 1 && p->model->machine != NULL)
        st_rates_share(&p->facts.machine.rates, p->facts.machine.capacity.device_is_host, world.local_ranks);
    p->facts.machine.capacity.workers = st_handle_workers(p->model);
    if (st_case_spans_nodes(&p->facts))
        st_case_note_network(&p->facts);
}

/* If an automatic budget follows from a ulimit, the sentence says how. */
static strata_status name_ulimit(const struct strata_plan *p, strata_status st)
{
    const struct st_config *config = &p->model->config;
    const char *ulimit = st_topology_ulimit(p->model->topology);
    char have[24], fixed[24], device[24];

    if (st_handle_only_plans(p->model) || ulimit == NULL ||
        (config->host_memory != ST_AUTO_BYTES && config->device_memory != ST_AUTO_BYTES))
        return st;
    return st_error(st,
                    "%s; %s leaves %s of memory: a fifth stays free, %s are set aside for the process and %s for the device: "
                    "raise %s, or give both --host-memory and --device-memory",
                    strata_last_error(), ulimit, st_size_text(have, st_topology_memory_limit(p->model->topology)),
                    st_size_text(fixed, ST_MACHINE_FIXED_BYTES),
                    st_size_text(device, p->facts.machine.capacity.bytes[STRATA_TIER_DEVICE]), ulimit);
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
    return st_error(st,
                    "does not fit: the device's budget of %s is taken from this machine's memory of %s and leaves none for the "
                    "host: lower --device-memory, or give --host-memory too",
                    st_size_text(device, config->device_memory),
                    st_size_text(have, st_topology_memory_limit(p->model->topology)));
}

/* Budgets may be larger than the machine: then the plan fits them, but not the actual memory. */
static strata_status check_memory(const struct strata_plan *p)
{
    const uint64_t limit = st_topology_memory_limit(p->model->topology),
                   available = st_topology_memory_available(p->model->topology),
                   device = p->facts.plan->program.needed[STRATA_TIER_DEVICE],
                   takes = p->facts.plan->rss_bytes_max + (p->facts.plan->capacity.unified ? device : 0);
    char wanted[24], have[24];

    if (takes > limit && st_topology_ulimit(p->model->topology) != NULL)
        return st_error(STRATA_E_NOFIT,
                        "the plan takes %s of memory, %s leaves %s beside the threads' stacks: raise it, or lower --host-memory, "
                        "--device-memory or --threads",
                        st_size_text(wanted, takes), st_topology_ulimit(p->model->topology), st_size_text(have, limit));
    if (takes > limit)
        return st_error(STRATA_E_NOFIT,
                        "the plan takes %s of memory, this machine has %s: lower --host-memory or --device-memory",
                        st_size_text(wanted, takes), st_size_text(have, limit));
    if (takes > available)
        st_log(ST_LOG_WARN, "the plan takes %s of memory, %s are free now", st_size_text(wanted, takes),
               st_size_text(have, available));
    return STRATA_OK;
}

void st_plan_note_memory(const struct strata_plan *p)
{
    const struct strata_model *m = p->model;
    const uint64_t ranks = m->planned.ranks > 1 ? m->planned.local_ranks : 1, limit = st_topology_memory_limit(m->topology);
    char wanted[24], have[24];

    if (m->machine == NULL && p->facts.plan->fits && p->facts.plan->rss_bytes_max > limit / ranks)
        st_log(ST_LOG_WARN,
               "the plan takes %s of memory%s, and this machine has %s: a run here is refused (a machine that is not here: "
               "--machine, --gpu)",
               st_size_text(wanted, p->facts.plan->rss_bytes_max), ranks > 1 ? " for each rank" : "", st_size_text(have, limit));
}

/* --- the plan --- */

static enum st_saves_on find_saves(const struct strata_model *m)
{
    const struct st_config *config = &m->config;
    char place[ST_CONFIG_PATH_MAX];
    struct stat save, drive;
    uint32_t shared = 0;

    if (!st_config_uses_nvme(config) || m->hardware != NULL)
        return ST_SAVES_ON_DRIVES;
    if (existing_part(place, config->save) != STRATA_OK || st_fault_refuses("api.save_stat") || stat(place, &save) != 0)
        return ST_SAVES_ELSEWHERE;
    for (uint32_t i = 0; i < config->nvme_dir_count; i++)
        shared += stat(config->nvme_dirs[i], &drive) == 0 ? drive.st_dev == save.st_dev : has_drives_elsewhere(m);
    return shared == config->nvme_dir_count ? ST_SAVES_ON_DRIVES : shared > 0 ? ST_SAVES_ON_SOME_DRIVES : ST_SAVES_ELSEWHERE;
}

/* The one that the step writes, and the one that is being saved: besides these, sets are those of checkpoints, of which some may
 * be there already, or lie elsewhere.  A directory has its part of every set, so that one drive of the checkpoints' file system
 * is enough to need them all. */
static uint32_t sets_of(const struct strata_model *m, enum st_saves_on saves_on, uint32_t sets)
{
    if (sets == 0 || saves_on == ST_SAVES_ELSEWHERE)
        return sets == 0 ? 0 : 2;
    return sets - (m->saved_checkpoints < sets - 2 ? m->saved_checkpoints : sets - 2);
}

void st_handle_case(struct st_case *c, const struct strata_model *m)
{
    struct st_policy *asked = &c->asked;

    *c = (struct st_case){.config = &m->config,
                          .model = m->model,
                          .world = st_handle_world(m),
                          .only_plans = st_handle_only_plans(m),
                          .topology = m->topology,
                          .file = &m->file,
                          .hardware = m->hardware,
                          .given = m->machine != NULL};
    st_config_policy(asked, &m->config);
    c->saves_on = asked->sets > 0 ? find_saves(m) : ST_SAVES_ELSEWHERE;
    asked->forward_only = st_handle_forward_only(m);
    asked->sets = sets_of(m, c->saves_on, asked->sets);
    if (m->use == STRATA_USE_GENERATE)
        asked->activations = ST_ACT_KEPT; /* the key-value cache is stored there */
    asked->ranks = c->world.ranks;
    asked->rank = c->world.rank;
    asked->stage = m->config.zero_stage;
}

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

static strata_status make_plan(struct strata_plan *p)
{
    const struct strata_model *m = p->model;
    uint32_t least[STRATA_TIER_COUNT];
    const struct st_machine *judge;
    struct st_capacity own;
    strata_status st = find_machine(p);

    if (st != STRATA_OK)
        return st;
    share_node(p);
    own = p->facts.machine.capacity;
    if ((st = st_ranks_capacity(st_handle_comm(m), &p->facts.machine.capacity, least)) != STRATA_OK ||
        (st = st_ranks_most(st_handle_comm(m), &p->facts.asked.sets, "sets of checkpoints")) !=
            STRATA_OK) /* by where each rank's drives are */
        return st;
    judge = p->facts.world.ranks == 1 ? st_case_judge(&p->facts, &p->facts.machine) : NULL; /* ranks agree on rates later */
    p->facts.judged = judge != NULL;
    st = st_plan_make_judged(&p->facts.plan, st_model_workload(m->model), &p->facts.machine.capacity, &p->facts.asked, judge);
    st = name_budgets(p, st);
    st = name_rank(p, &own, least, st);
    if (st == STRATA_E_NOFIT)
        st = st_ranks_leave_together(st_handle_comm(m), st, "a plan that does not fit");
    if (st == STRATA_OK && (st = st_plan_verify(p->facts.plan)) == STRATA_OK)
        st_figures_make(&p->facts.figures, &p->facts.plan->program, &p->facts.machine);
    if (st == STRATA_OK)
        st = st_ranks_agree_plan(st_handle_comm(m), &p->facts.plan->program);
    if (st != STRATA_OK || st_handle_only_plans(m))
        return st;
    st = check_memory(p);
    p->facts.too_large = st != STRATA_OK;
    return st;
}

strata_status strata_plan_make(struct strata_plan **plan, struct strata_model *model)
{
    struct strata_plan *p;
    fenv_t floats;
    strata_status st;

    if (plan == NULL || model == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "model");
    p = st_fault_refuses("api.plan") ? NULL : calloc(1, sizeof(*p));
    if (p == NULL)
        return st_error(STRATA_E_NOMEM, "no memory for a plan");
    atomic_init(&p->users, 1);
    p->model = model;
    atomic_fetch_add(&model->users, 1);
    st_handle_case(&p->facts, model);
    st_floats_plain(&floats);
    st = make_plan(p);
    st_floats_restore(&floats);
    if (p->facts.plan != NULL && (st == STRATA_OK || st == STRATA_E_NOFIT))
        *plan = p;
    else
        strata_plan_destroy(p);
    return st;
}

strata_status st_handle_machine(struct st_machine *out, bool *rates_known, struct strata_model *model)
{
    struct strata_plan p = {.model = model};
    strata_status st;

    st_handle_case(&p.facts, model);
    if ((st = find_machine(&p)) != STRATA_OK)
        return st;
    share_node(&p);
    *out = p.facts.machine;
    *rates_known = p.facts.rates_known;
    return STRATA_OK;
}

strata_status st_handle_adopt(struct strata_plan **out, struct strata_model *model, struct st_plan **plan,
                              const struct st_machine *machine, bool rates_known, bool judged)
{
    struct strata_plan *p = st_fault_refuses("api.plan") ? NULL : calloc(1, sizeof(*p));
    strata_status st;

    if (p == NULL)
        return st_error(STRATA_E_NOMEM, "no memory for a plan");
    atomic_init(&p->users, 1);
    p->model = model;
    atomic_fetch_add(&model->users, 1);
    st_handle_case(&p->facts, model);
    p->facts.machine = p->facts.node = *machine;
    p->facts.rates_known = rates_known;
    p->facts.judged = judged;
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
               "%s of %s of host memory are not pinned: on average copies run at %.3g GB/s up and %.3g GB/s down, and the "
               "shortest step takes %s (planned: %s)",
               st_size_text(part, staged->bytes), st_size_text(all, bytes), machine.rates.upload * 1e-9,
               machine.rates.download * 1e-9, st_seconds_text(now, p->facts.figures.bounds.schedule),
               st_seconds_text(before, pinned_bound));
}

/* Measures, and says so, since it takes longer than a short run.  kept NULL: the rates are for this run alone. */
static strata_status measure_now(struct strata_plan *p, const struct st_machine_opts *opts, unsigned what,
                                 const struct st_rates_kept *kept)
{
    const struct strata_model *m = p->model;
    const struct st_compute compute = st_model_compute(m->model);
    const uint64_t start_ns = st_clock_ns();
    strata_status st = st_machine_measure(&p->facts.machine, st_model_workload(m->model), &compute, opts, what);
    bool written = false;
    char took[24];

    if (st != STRATA_OK)
        return st;
    st_seconds_text(took, (double)(st_clock_ns() - start_ns) * 1e-9);
    if (kept != NULL && st_rates_kept_write(kept, &p->facts.machine.rates, &written) != STRATA_OK)
        st_log(ST_LOG_NOTICE, "the rates of this machine are not kept: %s", strata_last_error());
    st_log(ST_LOG_NOTICE, "the rates of this machine were measured in %s%s%s", took, written ? " and are kept for an hour: " : "",
           written ? kept->path : "");
    st_error_clear();
    return STRATA_OK;
}

/* The rates that a run has kept, or new ones.  Ranks measure at the same time, and share what there is: theirs are not kept. */
static strata_status measure(struct strata_plan *p)
{
    const struct strata_model *m = p->model;
    const bool disk = p->facts.plan->program.needed[STRATA_TIER_NVME] > 0;
    const unsigned what = disk ? ST_MEASURE_ALL : ST_MEASURE_ALL & ~ST_MEASURE_DISK;
    const bool keeps = m->cache_dir != NULL && m->comm == NULL;
    struct st_rates_kept kept;
    char place[ST_CONFIG_PATH_MAX];
    struct st_machine_opts opts;
    uint64_t age = 0;
    strata_status st = st_handle_watch(m, MEASURING, 0, 0);

    if (st != STRATA_OK || (st = machine_opts(&opts, m, place)) != STRATA_OK)
        return st;
    if (m->planned.ranks > 0)
        p->facts.machine = p->facts.node;
    if (keeps)
        st = st_rates_kept_name(&kept, m->cache_dir, &p->facts.machine, st_model_workload(m->model), &opts, what);
    if (st == STRATA_OK && keeps && st_rates_kept_read(&kept, &p->facts.machine.rates, &age))
        st_log(ST_LOG_NOTICE, "the rates of this machine were measured within the last %" PRIu64 " min: %s", age / 60 + 1,
               kept.path);
    else if (st == STRATA_OK)
        st = measure_now(p, &opts, what, keeps ? &kept : NULL);
    take_rates(p, &p->facts.machine.rates);
    share_node(p);
    return st;
}

static strata_status measure_and_judge(struct strata_plan *plan)
{
    struct st_comm *comm = st_handle_comm(plan->model);
    strata_status st = STRATA_OK;

    if (plan->model->machine == NULL)
        st = measure(plan);
    st = st_ranks_end_alike(comm, st, MEASURING); /* else ranks that go on would wait for one that does not */
    forget_texts(plan);
    if (st == STRATA_OK)
        st = st_ranks_rates(comm, &plan->facts.machine.rates, st_handle_saves(plan->model));
    if (comm != NULL)
        take_rates(plan, &plan->facts.machine.rates);
    if (st != STRATA_OK || !plan->facts.rates_known)
        return st;
    if (!plan->facts.judged && st_case_judge(&plan->facts, &plan->facts.machine) != NULL)
        st = st_plan_judge(&plan->facts.plan, &plan->facts.machine);
    if (st == STRATA_OK && (st = st_plan_verify(plan->facts.plan)) == STRATA_OK)
        st_figures_make(&plan->facts.figures, &plan->facts.plan->program, &plan->facts.machine);
    return st == STRATA_OK ? st_ranks_agree_plan(comm, &plan->facts.plan->program) : st;
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
    st = measure_and_judge(plan);
    st_floats_restore(&floats);
    return st;
}

/* --- its text --- */

const struct st_case *st_plan_case(const struct strata_plan *plan)
{
    return &plan->facts;
}

strata_status strata_plan_get_info(const struct strata_plan *plan, struct strata_plan_info *info)
{
    struct strata_plan_info i = {0};
    const struct st_traffic *body;

    if (plan == NULL || info == NULL)
        return st_error_missing(__func__, plan == NULL ? "plan" : "info");
    body = &plan->facts.figures.traffic[st_phase_index(st_handle_forward_only(plan->model) ? ST_PHASE_EVAL : ST_PHASE_BODY)];
    i.fits = st_handle_fits(plan);
    memcpy(i.capacity_bytes, plan->facts.machine.capacity.bytes, sizeof(i.capacity_bytes));
    memcpy(i.needed_bytes, plan->facts.plan->program.needed, sizeof(i.needed_bytes));
    i.memory_bytes = plan->facts.plan->rss_bytes_max;
    i.upload_bytes = body->upload;
    i.download_bytes = body->download;
    i.read_bytes = body->read;
    i.write_bytes = body->write;
    i.comm_bytes = body->comm;
    i.hardware_bound_seconds = plan->facts.figures.bounds.hardware;
    i.schedule_bound_seconds = plan->facts.figures.bounds.schedule;
    return st_handle_result(info, sizeof(i), &i, sizeof(i), "strata_plan_info");
}

void strata_plan_destroy(struct strata_plan *plan)
{
    if (plan == NULL || atomic_fetch_sub(&plan->users, 1) > 1)
        return;
    forget_texts(plan);
    st_plan_destroy(plan->facts.plan);
    strata_model_close(plan->model);
    free(plan);
}
