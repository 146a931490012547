/* api/door_machine.c - strata/machine.h: opens this machine, that of a file, or one that is named by its parts. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "offload/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE_GPUS_MOST 8u /* that a machine of any card has */

/* "cuda" or "cuda:N", whether this build knows it or not. */
static bool is_gpu(const char *device)
{
    return strncmp(device, "cuda", 4) == 0 && (device[4] == '\0' || (device[4] == ':' && st_device_is_index(device + 5)));
}

strata_status strata_device_check(const char *device)
{
    if (device == NULL)
        return st_error_missing(__func__, "device");
    if (strcmp(device, "cpu") == 0)
        return STRATA_OK;
    if (is_gpu(device))
        return st_device_find(device) != NULL
                   ? STRATA_OK
                   : st_error_remedy(st_error(STRATA_E_NOSYS,
                                              "machine.device %s: this build has no GPU support (made without CUDA: "
                                              "docs/install.md)",
                                              device),
                                     "machine.device", "use machine.device cpu");
    return st_error_remedy(st_error(STRATA_E_INVAL, "machine.device: unknown device \"%s\"", device), "machine.device",
                           "use cpu, cuda or cuda:N");
}

/* A plan for a machine that has a GPU needs none here, nor a build that knows them. */
static bool is_gpu_elsewhere(const struct strata_machine_opts *o)
{
    return (o->file != NULL || o->gpu != NULL) && o->device != NULL && is_gpu(o->device) && st_device_find("cuda") == NULL;
}

static strata_status check_drives(const struct strata_machine_opts *o)
{
    for (uint32_t i = 0; i < o->drive_count; i++)
        if (o->drives == NULL || o->drives[i] == NULL)
            return st_error_missing("strata_machine_open", o->drives == NULL ? "drives" : "one of drives");
    return STRATA_OK;
}

static strata_status check_opts(const struct strata_machine_opts *o)
{
    strata_status st;

    if (o->ranks > ST_COMM_RANKS_MAX || (o->ranks != 0 && o->comm != NULL))
        return st_error(STRATA_E_INVAL, "machine.ranks: a plan is for at most %u ranks, and takes no comm", ST_COMM_RANKS_MAX);
    if (o->nodes != 0 && o->ranks == 0)
        return st_error_remedy(st_error(STRATA_E_INVAL, "%u nodes (machine.nodes) need a number of ranks", o->nodes),
                               "machine.ranks", "say how many (machine.ranks)");
    if (o->gpu != NULL && o->file != NULL)
        return st_error(STRATA_E_INVAL, "machine.gpu %s and machine.file each name a machine: leave one out", o->gpu);
    if (o->gpu == NULL && (o->ram != NULL || o->drive_count > 0))
        return st_error(STRATA_E_INVAL, "%s needs machine.gpu NAME: it is a part of that machine",
                        o->ram != NULL ? "machine.ram" : "machine.drives");
    if ((st = check_drives(o)) != STRATA_OK)
        return st;
    return o->device == NULL || is_gpu_elsewhere(o) ? STRATA_OK : strata_device_check(o->device);
}

/* Ranks that are planned for without being there, equally many on each node. */
static strata_status plan_ranks(struct strata_machine *m, const struct strata_machine_opts *o)
{
    struct st_world *w = &m->planned;

    if (o->ranks == 0)
        return STRATA_OK;
    w->ranks = o->ranks;
    w->local_ranks = o->nodes > 0 ? o->ranks / o->nodes : st_node_ranks(&m->given.rates, o->ranks);
    if (m->hardware != NULL && o->nodes == 0 && m->given.rates.node_ranks == 0 && w->ranks > NODE_GPUS_MOST)
        st_log(ST_LOG_NOTICE,
               "%u ranks are taken to be on one machine, since no node of %s is known: machine.nodes N changes that", w->ranks,
               st_hardware_gpu_name(m->hardware->gpu));
    if (w->local_ranks * (uint64_t)o->nodes == w->ranks || (o->nodes == 0 && w->ranks % w->local_ranks == 0))
        return STRATA_OK;
    if (o->nodes == 0)
        return st_error(STRATA_E_INVAL,
                        "%u ranks do not fill nodes of %u (ranks_per_node of %s): give their number (machine.nodes N)", w->ranks,
                        w->local_ranks, m->name);
    return st_error(STRATA_E_INVAL, "%u ranks cannot be divided equally over %u nodes", w->ranks, o->nodes);
}

/* What the file or the names of its parts say. */
static strata_status read_machine(struct strata_machine *m, const struct strata_machine_opts *o)
{
    const struct st_hardware_choice choice = {.gpu = o->gpu, .ram = o->ram, .drives = o->drives, .drive_count = o->drive_count};
    strata_status st;

    if (o->gpu == NULL)
        return st_handle_is_here(m) ? STRATA_OK : st_machine_read(&m->given, m->name);
    m->hardware = st_fault_refuses("api.hardware") ? NULL : calloc(1, sizeof(*m->hardware));
    if (m->hardware == NULL)
        return st_nomem(sizeof(*m->hardware));
    if ((st = st_hardware_parse(m->hardware, &choice)) == STRATA_OK)
        st_hardware_machine(&m->given, m->hardware);
    return st;
}

/* Each rank of a machine has another GPU, unless the name says which one. */
static strata_status take_device(struct strata_machine *m, const struct strata_machine_opts *o)
{
    const struct st_world world = st_handle_world(m);
    const char *device = o->device == NULL || m->gpu_elsewhere ? "cpu" : o->device; /* whose tensors a plan is made with */
    char own[32];

    if (strcmp(device, "cuda") != 0 || world.ranks == 1)
        return st_handle_text(&m->device, device);
    snprintf(own, sizeof(own), "cuda:%u", world.local_rank);
    return st_handle_text(&m->device, own);
}

static strata_status open_machine(struct strata_machine *m, const struct strata_machine_opts *o)
{
    strata_status st;

    atomic_init(&m->users, 1);
    m->comm = o->comm;
    m->gpu_elsewhere = is_gpu_elsewhere(o);
    st = st_handle_text(&m->cache_dir, o->cache_dir);
    if (st == STRATA_OK)
        st = st_handle_text(&m->name, o->gpu != NULL ? "machine.gpu" : o->file);
    if (st == STRATA_OK)
        st = st_topology_load_share(&m->topology, m->comm != NULL ? &m->comm->share : NULL);
    if (st == STRATA_OK)
        st = read_machine(m, o);
    if (st == STRATA_OK)
        st = plan_ranks(m, o);
    return st == STRATA_OK ? take_device(m, o) : st;
}

strata_status strata_machine_open(struct strata_machine **machine, const struct strata_machine_opts *opts)
{
    struct strata_machine_opts o;
    struct strata_machine *m;
    fenv_t floats;
    strata_status st = st_handle_opts(&o, sizeof(o), opts, "strata_machine_opts");

    if (machine == NULL)
        return st_error_missing(__func__, "machine");
    if (st != STRATA_OK || (st = check_opts(&o)) != STRATA_OK)
        return st;
    m = st_fault_refuses("api.machine") ? NULL : calloc(1, sizeof(*m));
    if (m == NULL)
        return st_nomem(sizeof(*m));
    st_floats_plain(&floats);
    st = open_machine(m, &o);
    st_floats_restore(&floats);
    if (st != STRATA_OK) {
        strata_machine_close(m);
        return st;
    }
    *machine = m;
    return STRATA_OK;
}

strata_status strata_machine_get_info(const struct strata_machine *machine, struct strata_machine_info *info)
{
    struct strata_machine_info i = {0};
    struct st_world world;

    if (machine == NULL || info == NULL)
        return st_error_missing(__func__, machine == NULL ? "machine" : "info");
    world = st_handle_world(machine);
    i.named = machine->hardware != NULL;
    i.rank = world.rank;
    i.ranks = world.ranks;
    i.local_ranks = world.local_ranks;
    i.nodes = world.ranks / world.local_ranks;
    return st_handle_result(info, &i, sizeof(i), "strata_machine_info");
}

void strata_machine_close(struct strata_machine *machine)
{
    if (machine == NULL || atomic_fetch_sub(&machine->users, 1) > 1)
        return;
    st_topology_destroy(machine->topology);
    free(machine->hardware);
    free(machine->cache_dir);
    free(machine->device);
    free(machine->name);
    free(machine->json);
    free(machine);
}
