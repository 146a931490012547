/* api/plan_machine.c - what a plan takes of its machine: capacities within the configuration's budgets, a rank's part, and rates.
 */
#include "api/plan_machine.h"
#include "advise/predict.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/clock.h"
#include "offload/config/config_options.h"
#include "offload/machine/rates_kept.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The plan may be for another machine: its file's capacities apply if the configuration gives none. */
static void take_capacities(struct strata_plan *p)
{
    const struct st_machine *file = &p->on->given;
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

void st_handle_take_rates(struct strata_plan *p, const struct st_rates *rates)
{
    p->facts.machine.rates = *rates;
    p->facts.rates_known = rates->matmul_flops > 0 || rates->update > 0 || rates->read > 0;
}

/* Whether any directory of st_config_machine_opts() is used. */
static bool uses_disk(const struct strata_model *m)
{
    return st_config_uses_nvme(&m->config) || (m->config.save[0] != '\0' && !st_handle_forward_only(m));
}

/* The part of the checkpoints' directory that exists: what a run makes below lies on the same drive. */
static strata_status existing_part(char place[ST_CONFIG_PATH_MAX], const char *dir)
{
    struct stat info;

    memcpy(place, dir, ST_CONFIG_PATH_MAX);
    while (st_fault_refuses("api.save_dir") || stat(place, &info) != 0) {
        char *slash = strrchr(place, '/');

        if (errno != ENOENT)
            return st_error_key(st_error_errno(errno, "strata.save %s", dir), "strata.save");
        if (slash == NULL)
            memcpy(place, ".", sizeof("."));
        else
            slash[slash == place] = '\0'; /* the root keeps its name */
    }
    if (S_ISDIR(info.st_mode))
        return STRATA_OK;
    return st_error_key(st_error(STRATA_E_INPUT, "strata.save %s: %s is not a directory", dir, place), "strata.save");
}

/* A plan for drives that are not here: the directories of the configuration need not be there, nor are they looked at. */
static bool has_drives_elsewhere(const struct st_case *c, const struct strata_machine *on)
{
    return c->only_plans && (on->hardware != NULL || on->given.capacity.bytes[STRATA_TIER_NVME] != 0);
}

/* Strings are borrowed from model and machine, and from `place`. */
static strata_status machine_opts(struct st_machine_opts *opts, const struct strata_plan *p, char place[ST_CONFIG_PATH_MAX])
{
    const struct strata_model *m = p->model;

    st_config_machine_opts(opts, &m->config);
    opts->topology = p->on->topology;
    opts->device = p->on->device;
    if (p->threads != 0)
        opts->threads = p->threads;
    if (!uses_disk(m) || has_drives_elsewhere(&p->facts, p->on)) {
        opts->nvme.dir_count = 0;
    } else if (!st_config_uses_nvme(&m->config)) {
        opts->nvme.dirs[0] = place;
        return existing_part(place, m->config.save);
    }
    return STRATA_OK;
}

static strata_status too_large(const char *key, uint64_t asked, const char *whose, uint64_t has, const char *remedy)
{
    char asked_text[24], has_text[24];

    return st_error_remedy(st_error(STRATA_E_CONFIG, "%s %s: %s %s for a run", key, st_size_text(asked_text, asked), whose,
                                    st_size_text(has_text, has)),
                           key, "%s", remedy);
}

/* Budgets of more than a machine has that is not here would make plans that fit nothing one can buy. */
static strata_status check_budgets(const struct st_case *c, const struct strata_machine *on)
{
    const uint64_t *has = on->given.capacity.bytes, device = c->config->device_memory, host = c->config->host_memory;
    const bool named = on->hardware != NULL;
    char ram[80], whose[ST_CONFIG_PATH_MAX];

    if (!named && (!c->only_plans || st_handle_is_here(on) || on->given.capacity.device_is_host))
        return STRATA_OK;
    snprintf(whose, sizeof(whose), "machine file %s has", on->name);
    if (device != ST_AUTO_BYTES && has[STRATA_TIER_DEVICE] != 0 && device > has[STRATA_TIER_DEVICE]) {
        if (named)
            snprintf(whose, sizeof(whose), "card %s leaves", st_hardware_gpu_name(on->hardware->gpu));
        return too_large("strata.device_memory", device, whose, has[STRATA_TIER_DEVICE],
                         named ? "name another one (machine.gpu), or give less" : "give less, or change its device_bytes");
    }
    if (host == ST_AUTO_BYTES || has[STRATA_TIER_HOST] == 0 || host <= has[STRATA_TIER_HOST])
        return STRATA_OK;
    if (named) {
        st_hardware_ram_text(ram, sizeof(ram), on->hardware);
        snprintf(whose, sizeof(whose), "%s leave", ram);
    }
    return too_large("strata.host_memory", host, whose, has[STRATA_TIER_HOST],
                     named ? "name more (machine.ram), or give less" : "give less, or change its host_bytes");
}

/* Only the file can say how much memory a card has that is not here. */
static strata_status check_device_bytes(const struct st_case *c, const struct strata_machine *on)
{
    const bool card =
        strcmp(on->device, "cpu") == 0 && !on->given.capacity.device_is_host && c->config->device_memory == ST_AUTO_BYTES;

    if (st_handle_is_here(on) || !c->only_plans || on->given.capacity.bytes[STRATA_TIER_DEVICE] != 0 ||
        !(card || on->gpu_elsewhere))
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "machine file %s: device_bytes must say how much memory its GPU has%s", on->name,
                    card ? ": add it, or set strata.device_memory" : "");
}

static strata_status look_at_machine(struct strata_plan *p)
{
    const bool foreign = p->facts.only_plans;
    char place[ST_CONFIG_PATH_MAX];
    struct st_machine_opts here;
    strata_status st;

    if (p->model->nvme_named && !st_config_uses_nvme(&p->model->config))
        st_log(ST_LOG_NOTICE, "strata.nvme names a directory, but the configuration puts nothing there: set "
                              "zero_optimization.offload_optimizer.device=nvme");
    if ((st = machine_opts(&here, p, place)) != STRATA_OK)
        return st;
    /* A plan for another machine whose file gives the device's bytes does not query a GPU here. */
    here.device = foreign && p->on->given.capacity.bytes[STRATA_TIER_DEVICE] != 0 ? "cpu" : p->on->device;
    st = st_machine_here(&p->facts.machine, &here);
    if (st == STRATA_E_INPUT && foreign && !st_handle_is_here(p->on) && here.nvme.dir_count > 0)
        return st_error(st, "%s; for drives that are not here set nvme_bytes in %s", strata_last_error(), p->on->name);
    if (st != STRATA_OK || st_handle_is_here(p->on))
        return st;
    if (foreign)
        take_capacities(p);
    st_handle_take_rates(p, &p->on->given.rates);
    return STRATA_OK;
}

/* What the machine has is for all its ranks: this one takes its part.  Of ranks that are there capacities are divided already,
 * and so are rates that all of them have measured at the same time. */
static void share_node(struct strata_plan *p)
{
    const struct st_world world = p->facts.world;
    const bool planned = p->on->planned.ranks > 0;
    const uint32_t of_machine = p->facts.machine.rates.node_ranks;

    if (world.ranks > 1)
        p->facts.machine.rates.node_ranks = world.local_ranks;
    p->facts.node = p->facts.machine;
    if (planned && world.local_ranks == world.ranks && of_machine > world.ranks)
        p->facts.node.rates.node_ranks = of_machine; /* it has room for more than these */
    if (world.ranks > 1 && planned)
        st_case_share(&p->facts.machine, &p->facts, world.local_ranks);
    else if (world.ranks > 1 && !st_handle_is_here(p->on))
        st_rates_share(&p->facts.machine.rates, p->facts.machine.capacity.device_is_host, world.local_ranks);
    p->facts.machine.capacity.workers = p->facts.workload.workers;
    if (st_case_spans_nodes(&p->facts))
        st_case_note_network(&p->facts);
}

strata_status st_handle_find_machine(struct strata_plan *p)
{
    strata_status st = check_budgets(&p->facts, p->on);

    if (st == STRATA_OK && p->on->hardware == NULL)
        st = check_device_bytes(&p->facts, p->on);
    if (st == STRATA_OK)
        st = look_at_machine(p);
    if (st == STRATA_OK)
        st = st_case_check_heads(&p->facts, &p->facts.machine.capacity);
    if (st != STRATA_OK)
        return st;
    if (p->threads != 0)
        p->facts.workload = st_case_workload(&p->facts, p->threads);
    share_node(p);
    st_plan_leave(&p->facts.asked, &p->facts.machine.capacity, p->model->caller.bytes, p->model->caller.threads);
    p->facts.machine.capacity.workers = p->facts.workload.workers; /* they are without the caller's threads already */
    return STRATA_OK;
}

strata_status st_handle_machine(struct st_machine *out, bool *rates_known, struct strata_model *model, struct strata_machine *on)
{
    struct strata_plan p = {.model = model, .on = on};
    strata_status st;

    st_handle_case(&p.facts, model, on);
    if ((st = st_handle_find_machine(&p)) != STRATA_OK)
        return st;
    *out = p.facts.machine;
    *rates_known = p.facts.rates_known;
    return STRATA_OK;
}

/* --- the case --- */

static enum st_saves_on find_saves(const struct st_case *c, const struct strata_machine *on)
{
    const struct st_config *config = c->config;
    char place[ST_CONFIG_PATH_MAX];
    struct stat save, drive;
    uint32_t shared = 0;

    if (!st_config_uses_nvme(config) || on->hardware != NULL)
        return ST_SAVES_ON_DRIVES;
    if (existing_part(place, config->save) != STRATA_OK || st_fault_refuses("api.save_stat") || stat(place, &save) != 0)
        return ST_SAVES_ELSEWHERE;
    for (uint32_t i = 0; i < config->nvme_dir_count; i++)
        shared += stat(config->nvme_dirs[i], &drive) == 0 ? drive.st_dev == save.st_dev : has_drives_elsewhere(c, on);
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

/* Workers of one rank, for each of which the device has scratch. */
static uint32_t workers_of(const struct st_case *c, const struct strata_model *m, const struct strata_machine *on)
{
    const bool foreign = c->only_plans && on->given.capacity.workers != 0;
    const uint32_t all = foreign ? on->given.capacity.workers : st_machine_workers(on->topology, on->device, 0);
    const uint32_t share = on->planned.ranks > 1 ? on->planned.local_ranks : 1, own = all > share ? all / share : 1;

    if (c->config->threads != 0)
        return c->config->threads; /* of each rank */
    return own > m->caller.threads ? own - m->caller.threads : 1;
}

void st_handle_case(struct st_case *c, const struct strata_model *m, const struct strata_machine *on)
{
    struct st_policy *asked = &c->asked;

    *c = (struct st_case){.config = &m->config,
                          .model = m->model,
                          .layers = m->layers,
                          .world = st_handle_world(on),
                          .only_plans = st_handle_only_plans(m),
                          .tensors = st_device_find(on->device)->tensors,
                          .topology = on->topology,
                          .file = &on->given,
                          .hardware = on->hardware,
                          .given = !st_handle_is_here(on)};
    c->workload = st_case_workload(c, workers_of(c, m, on));
    st_config_policy(asked, &m->config);
    c->saves_on = asked->sets > 0 ? find_saves(c, on) : ST_SAVES_ELSEWHERE;
    asked->forward_only = st_handle_forward_only(m);
    asked->sets = sets_of(m, c->saves_on, asked->sets);
    if (m->use == STRATA_USE_GENERATE)
        asked->activations = ST_ACT_KEPT; /* the key-value cache is stored there */
    asked->ranks = c->world.ranks;
    asked->rank = c->world.rank;
    asked->stage = m->config.zero_stage;
}

/* --- rates --- */

/* Whether other work fills the processors: rates measured then are too low for later runs.  A test that measures once asks not.
 */
static bool is_busy(void)
{
    double load;

    return getloadavg(&load, 1) == 1 && load > (double)sysconf(_SC_NPROCESSORS_ONLN) && !st_fault_refuses("machine.patience");
}

/* Measures, and says so, since it takes longer than a short run.  kept NULL: the rates are only for this run. */
static strata_status measure_now(struct strata_plan *p, const struct st_machine_opts *opts, unsigned what,
                                 const struct st_rates_kept *kept)
{
    const struct strata_model *m = p->model;
    const struct st_compute compute = m->layers != NULL ? (struct st_compute){0} : st_model_compute(m->model);
    const uint64_t start_ns = st_clock_ns();
    const bool busy = kept != NULL && is_busy();
    strata_status st = st_machine_measure(&p->facts.machine, &p->facts.workload, &compute, opts, what);
    bool written = false;
    char took[24];

    if (st != STRATA_OK)
        return st;
    st_seconds_text(took, (double)(st_clock_ns() - start_ns) * 1e-9);
    if (kept != NULL && !busy && st_rates_kept_write(kept, &p->facts.machine.rates, &written) != STRATA_OK)
        st_log(ST_LOG_NOTICE, "the rates of this machine are not kept: %s", strata_last_error());
    st_log(ST_LOG_NOTICE, "the rates of this machine were measured in %s%s%s", took,
           busy      ? ", beside other work: the next run measures again"
           : written ? " and are kept for an hour: "
                     : "",
           written ? kept->path : "");
    st_error_clear();
    return STRATA_OK;
}

/* The rates that a run has kept, or new ones.  Ranks measure at the same time, and share what there is: theirs are not kept. */
strata_status st_handle_measure(struct strata_plan *p)
{
    const struct strata_model *m = p->model;
    const bool disk = p->facts.plan->program.needed[STRATA_TIER_NVME] > 0;
    const unsigned not = (disk ? 0 : ST_MEASURE_DISK) | (m->layers != NULL ? ST_MEASURE_COMPUTE : 0),
                   what = ST_MEASURE_ALL & ~not ;
    const bool keeps = p->on->cache_dir != NULL && m->comm == NULL;
    struct st_rates_kept kept;
    char place[ST_CONFIG_PATH_MAX];
    struct st_machine_opts opts;
    uint64_t age = 0;
    strata_status st = st_handle_watch(m, ST_HANDLE_MEASURING, 0, 0);

    if (st != STRATA_OK || (st = machine_opts(&opts, p, place)) != STRATA_OK)
        return st;
    if (p->on->planned.ranks > 0)
        p->facts.machine = p->facts.node;
    if (keeps)
        st = st_rates_kept_name(&kept, p->on->cache_dir, &p->facts.machine, &p->facts.workload, &opts, what);
    if (st == STRATA_OK && keeps && st_rates_kept_read(&kept, &p->facts.machine.rates, &age))
        st_log(ST_LOG_NOTICE, "the rates of this machine were measured within the last %" PRIu64 " min: %s", age / 60 + 1,
               kept.path);
    else if (st == STRATA_OK)
        st = measure_now(p, &opts, what, keeps ? &kept : NULL);
    st_handle_take_rates(p, &p->facts.machine.rates);
    share_node(p);
    return st;
}
