/* api/door_machine_told.c - strata/machine.h: measures this machine, and tells what a machine is. */
#include "advise/machine_facts.h"
#include "api/handles.h"
#include "api/plan_machine.h"
#include "core/base/error.h"
#include "core/base/wrap.h"
#include "offload/config/config_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- measuring --- */

/* Directories are those that were named for this, so that a disk can be measured that no tier is on. */
static strata_status measure(struct strata_machine *m, struct strata_model *model)
{
    const struct st_compute compute = st_model_compute(model->model);
    struct st_machine found = {0};
    struct st_machine_opts opts;
    struct st_case c;
    strata_status st;

    st_config_machine_opts(&opts, &model->config);
    opts.topology = m->topology;
    opts.device = m->device;
    if (!model->nvme_named)
        opts.nvme.dir_count = 0;
    if ((st = st_machine_here(&found, &opts)) != STRATA_OK)
        return st;
    st_handle_case(&c, model, m);
    st = st_machine_measure(&found, &c.workload, &compute, &opts,
                            opts.nvme.dir_count > 0 ? ST_MEASURE_ALL : ST_MEASURE_ALL & ~ST_MEASURE_DISK);
    if (st == STRATA_OK) { /* else what an earlier call has measured stays */
        m->measured = found;
        m->is_measured = true;
    }
    return st;
}

strata_status strata_machine_measure(struct strata_machine *machine, struct strata_model *model)
{
    fenv_t floats;
    strata_status st;

    if (machine == NULL || model == NULL)
        return st_error_missing(__func__, machine == NULL ? "machine" : "model");
    if (!st_handle_is_here(machine))
        return st_error(STRATA_E_INVAL, "%s: %s is not this machine", __func__, machine->name);
    if ((st = st_handle_check_decoder(model, __func__)) != STRATA_OK ||
        (st = st_handle_watch(model, ST_HANDLE_MEASURING, 0, 0)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    st = measure(machine, model);
    st_floats_restore(&floats);
    return st;
}

strata_status strata_machine_measure_links(struct strata_machine *machine, struct strata_comm *comm)
{
    if (machine == NULL || comm == NULL)
        return st_error_missing(__func__, machine == NULL ? "machine" : "comm");
    if (comm->comm == NULL)
        return st_error(STRATA_E_INVAL, "%s: one rank has no links", __func__);
    if (strncmp(machine->device, "cuda", 4) == 0)
        return st_error(STRATA_E_NOSYS, "links between GPUs are not measured: measure without ranks, and add link_node, "
                                        "link_nodes, latency_node and latency_nodes to the machine file");
    return st_comm_measure(&machine->links, comm->comm, comm->node_of);
}

/* --- telling --- */

/* What was measured, with the links between ranks, or what the file or the names of its parts say. */
static struct st_machine known(const struct strata_machine *m)
{
    const struct st_links *l = &m->links;
    struct st_machine known = st_handle_is_here(m) ? m->measured : m->given;

    if (!st_handle_is_here(m) || l->ranks == 0)
        return known;
    known.rates.link_node = l->link_node;
    known.rates.link_nodes = l->link_nodes;
    known.rates.latency_node = l->latency_node;
    known.rates.latency_nodes = l->latency_nodes;
    known.rates.node_ranks = l->here < l->ranks ? l->here : 0;
    return known;
}

static struct st_machine_facts facts_of(const struct strata_machine *m, const struct strata_config *config,
                                        const struct st_machine *measured)
{
    return (struct st_machine_facts){.topology = m->topology,
                                     .workers =
                                         st_machine_workers(m->topology, m->device, config != NULL ? config->values.threads : 0),
                                     .dirs = config != NULL && config->nvme_named ? &config->values : NULL,
                                     .measured = m->is_measured ? measured : NULL,
                                     .links = m->links.ranks > 0 ? &m->links : NULL};
}

strata_status strata_machine_print(const struct strata_machine *machine, const struct strata_config *config, FILE *file)
{
    struct st_machine_facts facts;
    struct st_machine m;
    FILE *wrapped;

    if (machine == NULL || file == NULL)
        return st_error_missing(__func__, machine == NULL ? "machine" : "file");
    m = known(machine);
    facts = facts_of(machine, config, &m);
    wrapped = st_wrap_open(file);
    if (machine->hardware != NULL)
        st_hardware_print(machine->hardware, wrapped);
    else if (st_handle_is_here(machine))
        st_machine_facts_print(&facts, wrapped);
    else
        st_machine_rates_print(&m.rates, wrapped);
    st_wrap_close(wrapped, file);
    return STRATA_OK;
}

static void write_json(const struct strata_machine *m, const struct strata_config *config, FILE *file)
{
    const struct st_machine machine = known(m);
    const struct st_machine_facts facts = facts_of(m, config, &machine);
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    if (st_handle_is_here(m)) {
        st_machine_facts_put(&facts, &w);
    } else {
        st_json_object_open(&w, "machine");
        st_machine_put_fields(&machine, &w);
        st_json_object_close(&w);
    }
    st_json_object_close(&w);
    st_json_end_line(&w);
}

strata_status strata_machine_json(struct strata_machine *machine, const struct strata_config *config, const char **json)
{
    struct st_kept_text t;
    strata_status st;

    if (machine == NULL || json == NULL)
        return st_error_missing(__func__, machine == NULL ? "machine" : "json");
    st_handle_text_begin(&t, &machine->json, "api.text");
    if (t.file != NULL)
        write_json(machine, config, t.file);
    if ((st = st_handle_text_end(&t, STRATA_OK)) == STRATA_OK)
        *json = machine->json;
    return st;
}

strata_status strata_machine_write(const struct strata_machine *machine, const char *path, bool overwrite)
{
    struct st_new_file file = {.fd = -1};
    struct st_machine m;
    strata_status st;

    if (machine == NULL || path == NULL)
        return st_error_missing(__func__, machine == NULL ? "machine" : "path");
    if (st_handle_is_here(machine) && !machine->is_measured)
        return st_error(STRATA_E_INVAL, "%s: this machine is not measured: strata_machine_measure() comes first", __func__);
    m = known(machine);
    st = st_new_file_create(&file, path, overwrite ? ST_NEW_FILE_OVERWRITE : 0);
    return st == STRATA_OK ? st_machine_write(&m, &file) : st;
}

strata_status strata_machine_print_names(bool json, FILE *file)
{
    if (file == NULL)
        return st_error_missing(__func__, "file");
    (json ? st_hardware_list_json : st_hardware_list)(file);
    return STRATA_OK;
}
