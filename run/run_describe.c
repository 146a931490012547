/* run/run_describe.c - see run/run_describe.h. */
#include "run/run_describe.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "offload/engine/train_state.h"
#include "offload/optim/optimizer.h"
#include "run/checkpointer.h"
#include "strata/strata.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static strata_status put_name(char *to, size_t bytes, const char *what, const char *name)
{
    if ((size_t)snprintf(to, bytes, "%s", name) < bytes)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "the name of the %s is longer than the %zu bytes that a checkpoint has for it", what,
                    bytes - 1);
}

static strata_status put_groups(struct st_manifest *m, const struct st_workload *w)
{
    m->page_count = w->page_count;
    m->groups = calloc((size_t)w->page_count * ST_GROUPS_MAX + 1, sizeof(*m->groups));
    if (m->groups == NULL)
        return st_nomem(((size_t)w->page_count * ST_GROUPS_MAX + 1) * sizeof(*m->groups));
    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < w->pages[p].group_count; i++) {
            const struct st_group *g = &w->pages[p].groups[i];

            m->groups[m->group_count++] = (struct st_manifest_group){
                .page = p, .kind = g->kind, .format = g->format, .offset = g->offset, .elems = g->elems};
        }
    return STRATA_OK;
}

/* What only layers of others have. */
static void put_layer(struct st_manifest_tensor *to, const struct st_layers *layers, const struct st_tensor *t)
{
    size_t length = 0;

    snprintf(to->layer, sizeof(to->layer), "%s", layers->layers[t->layer].name);
    snprintf(to->group, sizeof(to->group), "%s", t->frozen ? "frozen" : layers->groups[t->group].name);
    for (uint32_t i = 0; i < t->rank; i++)
        length += (size_t)snprintf(to->shape + length, sizeof(to->shape) - length, "%s%" PRIu64, i > 0 ? "x" : "", t->shape[i]);
}

/* The table and the head span pages, row by row. */
static void put_tensor(struct st_manifest *m, const struct st_run *run, const struct st_tensor *t)
{
    const struct st_workload *w = st_run_workload(run);
    uint64_t left = t->elems;

    for (uint32_t i = 0; i < t->page_count; i++) {
        const uint64_t there = t->page_count > 1 ? (uint64_t)w->pages[t->page + i].row_count * w->hidden : left;
        struct st_manifest_tensor *to = &m->tensors[m->tensor_count++];

        *to = (struct st_manifest_tensor){.page = t->page + i, .offset = t->offset, .elems = there < left ? there : left};
        snprintf(to->name, sizeof(to->name), "%s", t->name);
        if (run->layers != NULL)
            put_layer(to, run->layers, t);
        left -= to->elems;
    }
}

static strata_status put_tensors(struct st_manifest *m, const struct st_run *run)
{
    uint64_t parts = 0;

    for (uint32_t i = 0; i < st_run_tensor_count(run); i++)
        parts += st_run_tensor(run, i)->page_count;
    m->tensors = calloc(parts + 1, sizeof(*m->tensors));
    if (m->tensors == NULL)
        return st_nomem((parts + 1) * sizeof(*m->tensors));
    for (uint32_t i = 0; i < st_run_tensor_count(run); i++)
        put_tensor(m, run, st_run_tensor(run, i));
    return STRATA_OK;
}

/* The digest of the tables of groups and tensors. */
static strata_status digest_shapes(struct st_manifest *m)
{
    struct st_digest *d;
    char line[512];
    const strata_status st = st_digest_create(&d);

    if (st != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < m->group_count; i++) {
        const struct st_manifest_group *g = &m->groups[i];

        snprintf(line, sizeof(line), "%u %d %d %" PRIu64 " %" PRIu64 "\n", g->page, (int)g->kind, (int)g->format, g->offset,
                 g->elems);
        st_digest_update(d, line, strlen(line));
    }
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_manifest_tensor *t = &m->tensors[i];

        snprintf(line, sizeof(line), "%s %u %" PRIu64 " %" PRIu64 "\n", t->name, t->page, t->offset, t->elems);
        st_digest_update(d, line, strlen(line));
        snprintf(line, sizeof(line), "%s %s %s\n", t->layer, t->group, t->shape);
        if (t->layer[0] != '\0')
            st_digest_update(d, line, strlen(line));
    }
    st_digest_hex(d, m->model_shapes);
    st_digest_destroy(d);
    return STRATA_OK;
}

/* A line for each parameter group, for who resumes. */
static void put_rates(struct st_manifest *m, const struct st_layers *layers)
{
    size_t used = 0;

    for (uint32_t g = 0; g < layers->group_count; g++)
        used += (size_t)snprintf(m->group_rates + used, sizeof(m->group_rates) - used, "%s: lr_scale %.9g, weight_decay %.9g\n",
                                 layers->groups[g].name, layers->groups[g].lr_scale, layers->groups[g].weight_decay);
    assert(used < sizeof(m->group_rates));
}

static strata_status put_model(struct st_manifest *m, const struct st_run *run)
{
    const struct st_workload *w = st_run_workload(run);
    strata_status st;

    m->dtype = w->dtype;
    st = put_name(m->model, sizeof(m->model), "model", w->name);
    if (st == STRATA_OK && run->directory != NULL)
        st = put_name(m->model_source, sizeof(m->model_source), "model's directory", run->directory);
    if (st == STRATA_OK)
        st = put_groups(m, w);
    if (run->layers != NULL)
        put_rates(m, run->layers);
    if (st == STRATA_OK)
        st = put_tensors(m, run);
    return st == STRATA_OK ? digest_shapes(m) : st;
}

static strata_status put_data(struct st_manifest *m, const struct st_run_data *data)
{
    strata_status st = STRATA_OK;

    m->data = calloc(data->file_count, sizeof(*m->data));
    if (m->data == NULL)
        return st_nomem(data->file_count * sizeof(*m->data));
    m->data_seed = data->seed;
    m->data_order = data->order;
    m->data_seq = data->seq;
    memcpy(m->data_date, data->date, sizeof(m->data_date));
    m->data_sequences = data->sequences;
    for (uint32_t i = 0; i < data->file_count && st == STRATA_OK; i++) {
        const struct st_run_file *file = &data->files[i];
        struct st_manifest_data *d = &m->data[m->data_count++];

        st = put_name(d->path, sizeof(d->path), "token file", file->path);
        d->bytes = file->bytes;
        memcpy(d->header, file->header, sizeof(d->header));
        memcpy(d->windows, file->windows, sizeof(d->windows));
        memcpy(d->marks, file->marks, sizeof(d->marks));
    }
    return st;
}

static strata_status put_config(struct st_manifest *m, const struct st_config *config)
{
    size_t bytes = 0;
    FILE *memory = open_memstream(&m->config, &bytes);

    if (memory != NULL)
        st_config_write_json(config, memory);
    if (memory == NULL || fclose(memory) != 0 || m->config == NULL)
        return st_nomem(0);
    return STRATA_OK;
}

/* What bits are promised for. */
static void put_place(struct st_manifest *m, struct st_engine *engine)
{
    struct st_engine_info info;

    st_engine_info(engine, &info);
    snprintf(m->device, sizeof(m->device), "%s", info.device);
    snprintf(m->isa, sizeof(m->isa), "%s", info.isa);
    st_run_matmul_library(m->matmul, info.device);
}

void st_run_matmul_library(char name[ST_MATMUL_LIBRARY_BYTES], const char *device)
{
    if (strncmp(device, "cuda", 4) == 0)
        snprintf(name, ST_MATMUL_LIBRARY_BYTES, "cuBLASLt");
    else
        st_matmul_library(name);
}

strata_status st_run_draw_name(char run[17])
{
    uint64_t number;

    if (st_fault_refuses("run.run") || getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number))
        return st_error_errno(errno, "no random number for the name of a run");
    snprintf(run, 17, "%016" PRIx64, number);
    return STRATA_OK;
}

strata_status st_run_describe_model(struct st_manifest *out, const struct st_run *run)
{
    struct st_manifest m = {.world = 1, .leaves = run->config->leaves, .numerics = ST_NUMERICS};
    strata_status st;

    snprintf(m.version, sizeof(m.version), "%s", strata_version());
    m.moments = st_rule_moments(st_rule_of(run->config->optimizer.type));
    m.moment_format = run->config->moments;
    snprintf(m.optimizer, sizeof(m.optimizer), "%s", st_optimizer_name(run->config->optimizer.type));
    st = put_model(&m, run);
    if (st == STRATA_OK)
        st = put_config(&m, run->config);
    if (st != STRATA_OK)
        st_manifest_fini(&m);
    else
        *out = m;
    return st;
}

strata_status st_run_describe(struct st_manifest *out, const struct st_run *run, const struct st_run_data *data)
{
    const struct st_program *program = run->program;
    struct st_manifest m;
    strata_status st = st_run_describe_model(&m, run);

    if (st != STRATA_OK)
        return st;
    snprintf(m.run, sizeof(m.run), "%s", run->checkpointer != NULL ? st_checkpointer_run(run->checkpointer) : "0000000000000000");
    m.world = program->ranks;
    m.train = *st_engine_train_state(run->engine);
    m.step = m.train.steps_applied + m.train.steps_skipped;
    m.data_position = m.train.sequences;
    m.space_bytes[ST_SPACE_BASE] = program->space_bytes[ST_SPACE_BASE];
    m.space_bytes[ST_SPACE_SET] = program->space_bytes[ST_SPACE_SET];
    put_place(&m, run->engine);
    if (data->file_count > 0)
        st = put_data(&m, data);
    if (st != STRATA_OK)
        st_manifest_fini(&m);
    else
        *out = m;
    return st;
}

const char *st_run_began_with(const struct st_manifest *m)
{
    return m->model_source[0] != '\0' ? m->model_source : m->model;
}
