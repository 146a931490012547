/* run/ranks_agree.c - see run/ranks_agree.h. */
#include "run/ranks_agree.h"
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "offload/engine/train_state.h"
#include "run/run_describe.h"
#include "strata/strata.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FACTS_MAX        128u
#define CONFIG_BYTES_MAX (UINT64_C(16) << 20)
#define SAMPLE_ELEMS     1024u
#define RATES_COUNT      14u
#define LATENCIES        5u

/* --- facts --- */

/* Texts are owned. */
struct facts {
    struct st_comm_fact items[FACTS_MAX];
    uint32_t count;
    strata_status status; /* of collecting */
};

static void add_number(struct facts *f, const char *name, uint64_t number)
{
    if (f->count == FACTS_MAX)
        f->status = st_error(STRATA_E_INTERNAL, "more than %u facts of ranks", FACTS_MAX);
    else
        f->items[f->count++] = (struct st_comm_fact){.name = name, .number = number};
}

static void add_text(struct facts *f, const char *name, const char *text)
{
    char *copy = f->status == STRATA_OK && !st_fault_refuses("run.text") ? strdup(text) : NULL;

    if (f->status == STRATA_OK && copy == NULL)
        f->status = st_nomem(0);
    add_number(f, name, 0);
    if (f->status == STRATA_OK)
        f->items[f->count - 1].text = copy;
}

strata_status st_ranks_leave_together(struct st_comm *comm, strata_status st, const char *what)
{
    struct st_sentence sentence;

    if (st == STRATA_OK || st == STRATA_E_IO)
        return st;
    st_error_keep(&sentence);
    (void)!st_comm_barrier(comm, what);
    return st_error_again(st, &sentence);
}

strata_status st_ranks_agree(struct st_comm *comm, const struct st_comm_fact *facts, uint32_t count, const char *what)
{
    return st_ranks_leave_together(comm, st_comm_agree(comm, facts, count, what), what);
}

static strata_status agree(struct facts *f, struct st_comm *comm, const char *what)
{
    strata_status st = f->status;

    if (st == STRATA_OK)
        st = st_ranks_agree(comm, f->items, f->count, what);
    for (uint32_t i = 0; i < f->count; i++)
        free((void *)(uintptr_t)f->items[i].text);
    return st;
}

/* --- the model --- */

static void add_config(struct facts *f, const struct st_config *config)
{
    char value[ST_CONFIG_VALUE_MAX];
    const char *path;

    for (uint32_t i = 0; (path = st_config_common(config, i, value)) != NULL; i++)
        add_text(f, path, value);
}

/* The text of config.json, as a number; 0: a preset. */
static strata_status hash_config(uint64_t *hash, const struct st_ranks_model *m)
{
    char path[ST_PATH_MAX], *text;
    uint64_t bytes;
    strata_status st;

    *hash = 0;
    if (!m->is_dir)
        return STRATA_OK;
    if ((st = st_path_join(path, m->name, "config.json")) != STRATA_OK ||
        (st = st_file_read_text(&text, &bytes, path, CONFIG_BYTES_MAX)) != STRATA_OK)
        return st;
    *hash = st_checksum64(text, bytes);
    free(text);
    return STRATA_OK;
}

/* The first values of every page, and some from its middle. */
static strata_status hash_weights(uint64_t *hash, const struct st_ranks_model *m)
{
    const struct st_workload *w = st_model_workload(m->model);
    float sample[SAMPLE_ELEMS];
    strata_status st = STRATA_OK;

    *hash = 0;
    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t half = 0; half < 2 && st == STRATA_OK; half++) {
            const uint64_t elems = w->pages[p].elems, first = half * (elems / 2 / SAMPLE_ELEMS) * SAMPLE_ELEMS;
            const uint64_t count = elems - first < SAMPLE_ELEMS ? elems - first : SAMPLE_ELEMS;

            st = m->source.read(m->source.ctx, p, first, count, sample);
            if (st == STRATA_OK)
                *hash = *hash * UINT64_C(0x9e3779b97f4a7c15) + st_checksum64(sample, count * sizeof(*sample));
        }
    return st;
}

/* What tells models apart, before hashes, which tell nobody anything.  Directories may have other names on each machine.
 */
static void add_shape(struct facts *f, const struct st_ranks_model *m)
{
    const struct st_model_config *c = st_model_config(m->model);

    add_text(f, "the model's family", st_model_family_name(c->family));
    add_number(f, "the model's number of blocks", c->blocks);
    add_number(f, "the model's hidden size", c->hidden);
    add_number(f, "the model's number of heads", c->heads);
    add_number(f, "the model's vocabulary", c->vocab);
    add_number(f, "the model's context", c->context);
    add_text(f, "the model", m->is_dir ? "a directory" : m->name);
}

strata_status st_ranks_agree_model(struct st_comm *comm, const struct st_ranks_model *m)
{
    const struct st_workload *w = st_model_workload(m->model);
    struct facts f = {0};
    uint64_t config, weights;

    if (comm == NULL)
        return STRATA_OK;
    add_text(&f, "the version of strata", strata_version());
    add_number(&f, "the version of its numerics", ST_NUMERICS);
    add_number(&f, "the use of the model", m->use);
    add_config(&f, m->config);
    add_shape(&f, m);
    add_text(&f, "the precision", strata_dtype_name(w->dtype));
    add_number(&f, "model.seq_len", m->seq);
    add_number(&f, "model.seed", m->seed);
    add_number(&f, "the number of parameters", w->params);
    add_text(&f, "whether sequences hold several documents", m->documents ? "true" : "false");
    if (f.status == STRATA_OK)
        f.status = hash_config(&config, m);
    if (f.status == STRATA_OK)
        f.status = hash_weights(&weights, m);
    if (f.status == STRATA_OK) {
        add_number(&f, "the hash of the model's config.json", config);
        add_number(&f, "the hash of samples of its weights", weights);
    }
    return agree(&f, comm, "the start of the run");
}

/* What the caller says of its layers beside tensors: rates and decays of groups, boundaries, loss scaling. */
static uint64_t hash_layers(const struct st_layers *l)
{
    const struct st_workload *w = &l->workload;
    double values[2] = {w->scales ? 1 : 0, 0};
    uint64_t hash = st_checksum64(values, sizeof(values));

    for (uint32_t g = 0; g < l->group_count; g++) {
        values[0] = l->groups[g].lr_scale;
        values[1] = l->groups[g].weight_decay;
        hash = hash * 31 + st_checksum64(values, sizeof(values));
    }
    for (uint32_t i = 0; i < w->layer_count; i++)
        hash = hash * 31 + st_checksum64(&w->layers[i].boundary_bytes, sizeof(w->layers[i].boundary_bytes));
    return hash;
}

strata_status st_ranks_agree_layers(struct st_comm *comm, const struct st_run *run, uint32_t use)
{
    const struct st_workload *w = &run->layers->workload;
    struct st_manifest is = {0};
    struct facts f = {0};

    if (comm == NULL)
        return STRATA_OK;
    add_text(&f, "the version of strata", strata_version());
    add_number(&f, "the version of its numerics", ST_NUMERICS);
    add_number(&f, "the use of the model", use);
    add_config(&f, run->config);
    add_text(&f, "the model", w->name);
    add_text(&f, "the precision", strata_dtype_name(w->dtype));
    add_number(&f, "the number of layers", run->layers->layer_count);
    add_number(&f, "the number of tensors", run->layers->tensor_count);
    add_number(&f, "the number of parameters", w->params);
    add_number(&f, "the hash of lr_scale and weight_decay of parameter groups, boundary_bytes and scales_loss",
               hash_layers(run->layers));
    if (f.status == STRATA_OK && (f.status = st_run_describe_model(&is, run)) == STRATA_OK)
        add_text(&f, "names, shapes or parameter groups of tensors (by their digest)", is.model_shapes);
    st_manifest_fini(&is);
    return agree(&f, comm, "the start of the run");
}

/* --- the smallest of all ranks --- */

/* Each of `count` numbers becomes the smallest that a rank has.  least: [count], the first rank that has it; or NULL. */
static strata_status take_least(struct st_comm *comm, double *numbers, uint32_t count, const char *what, uint32_t *least)
{
    const uint32_t ranks = comm->world.ranks;
    double *all = st_fault_refuses("run.least") ? NULL : calloc((size_t)ranks * count, sizeof(*all));
    strata_status st;

    if (all == NULL)
        return st_nomem(((size_t)ranks * count) * sizeof(*all));
    st = st_comm_gather(comm, numbers, count * sizeof(*numbers), all, what);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        uint32_t at = 0;

        for (uint32_t r = 1; r < ranks; r++)
            if (all[(size_t)r * count + i] < all[(size_t)at * count + i])
                at = r;
        numbers[i] = all[(size_t)at * count + i];
        if (least != NULL)
            least[i] = at;
    }
    free(all);
    return st;
}

strata_status st_ranks_fewest(struct st_comm *comm, uint32_t *number, const char *what)
{
    double n = *number;
    strata_status st;

    if (comm == NULL)
        return STRATA_OK;
    st = take_least(comm, &n, 1, what, NULL);
    *number = (uint32_t)n;
    return st;
}

strata_status st_ranks_most(struct st_comm *comm, uint32_t *number, const char *what)
{
    double n = -(double)*number;
    strata_status st;

    if (comm == NULL)
        return STRATA_OK;
    st = take_least(comm, &n, 1, what, NULL);
    *number = (uint32_t)-n;
    return st;
}

/* Bytes are below 2^53. */
strata_status st_ranks_capacity(struct st_comm *comm, struct st_capacity *capacity, uint32_t least[STRATA_TIER_COUNT])
{
    double numbers[STRATA_TIER_COUNT + 1];
    uint32_t least_of[STRATA_TIER_COUNT + 1] = {0};
    strata_status st;

    memset(least, 0, STRATA_TIER_COUNT * sizeof(*least));
    if (comm == NULL)
        return STRATA_OK;
    for (uint32_t i = 0; i < STRATA_TIER_COUNT; i++)
        numbers[i] = (double)capacity->bytes[i];
    numbers[STRATA_TIER_COUNT] = -(double)capacity->device_beside;
    st = take_least(comm, numbers, STRATA_TIER_COUNT + 1, "capacities", least_of);
    memcpy(least, least_of, STRATA_TIER_COUNT * sizeof(*least));
    for (uint32_t i = 0; i < STRATA_TIER_COUNT; i++)
        capacity->bytes[i] = (uint64_t)numbers[i];
    capacity->device_beside = (uint64_t)-numbers[STRATA_TIER_COUNT];
    return st;
}

/* Shares of a swap's directories are the rank's own, since they move no byte between tiers; but ranks that save deal them out
 * alike (st_stripe_alike()), by the lowest rates of all, or equally where their numbers differ. */
static strata_status take_dir_rates(struct st_comm *comm, struct st_rates *r)
{
    double numbers[ST_MACHINE_DIRS_MAX + 2] = {r->dir_count, -(double)r->dir_count}, *const rates = numbers + 2;
    strata_status st;

    memcpy(rates, r->dir_rates, sizeof(r->dir_rates));
    st = take_least(comm, numbers, ST_MACHINE_DIRS_MAX + 2, "rates of directories", NULL);
    if (numbers[0] != -numbers[1])
        r->dir_count = 0;
    for (uint32_t i = 0; i < r->dir_count; i++)
        r->dir_rates[i] = rates[i];
    return st;
}

strata_status st_ranks_rates(struct st_comm *comm, struct st_rates *r, bool saves)
{
    double *const rates[RATES_COUNT] = {&r->matmul_flops, &r->block_flops, &r->experts_flops, &r->head_flops, &r->memory,
                                        &r->upload,       &r->download,    &r->read,          &r->write,      &r->mixed,
                                        &r->update,       &r->checksum,    &r->link_node,     &r->link_nodes};
    double *const latencies[LATENCIES] = {&r->latency_node, &r->latency_nodes, &r->handover, &r->latency_io, &r->launch};
    double numbers[RATES_COUNT + LATENCIES + 1], *const others =
                                                     numbers +
                                                     RATES_COUNT; /* the longest latencies, the fewest ranks of a node */
    strata_status st;

    if (comm == NULL)
        return STRATA_OK;
    for (uint32_t i = 0; i < RATES_COUNT; i++)
        numbers[i] = *rates[i];
    for (uint32_t i = 0; i < LATENCIES; i++)
        others[i] = -*latencies[i];
    others[LATENCIES] = r->node_ranks;
    st = take_least(comm, numbers, RATES_COUNT + LATENCIES + 1, "rates", NULL);
    for (uint32_t i = 0; i < RATES_COUNT; i++)
        *rates[i] = numbers[i];
    for (uint32_t i = 0; i < LATENCIES; i++)
        *latencies[i] = fabs(others[i]);
    r->node_ranks = (uint32_t)others[LATENCIES];
    return st == STRATA_OK && saves ? take_dir_rates(comm, r) : st;
}

strata_status st_ranks_all(struct st_comm *comm, bool *all, const char *what)
{
    uint32_t number = *all;
    const strata_status st = st_ranks_fewest(comm, &number, what);

    *all = number > 0;
    return st;
}

/* --- the plan, and the data --- */

strata_status st_ranks_agree_plan(struct st_comm *comm, const struct st_program *program, const char *device)
{
    char library[ST_MATMUL_LIBRARY_BYTES];
    struct facts f = {0};
    uint64_t hash = 0;

    if (comm == NULL)
        return STRATA_OK;
    st_run_matmul_library(library, device);
    add_text(&f, "the matmul library and its instruction set (DNNL_MAX_CPU_ISA lowers it)", library);
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];
        const uint64_t words[] = {op->kind, op->phases, op->page};

        if (op->lane == STRATA_LANE_COMM)
            hash = hash * UINT64_C(0x9e3779b97f4a7c15) + st_checksum64(words, sizeof(words));
    }
    add_number(&f, "the number of the plan's ops", program->op_count);
    add_number(&f, "the hash of what the plan's ranks exchange", hash);
    for (uint32_t i = 0; i < STRATA_TIER_COUNT; i++)
        add_number(&f,
                   i == 0   ? "the plan's bytes of the device"
                   : i == 1 ? "the plan's bytes of the host"
                            : "the plan's bytes of the drives",
                   program->needed[i]);
    return agree(&f, comm, "the plan");
}

strata_status st_ranks_agree_data(struct st_comm *comm, const struct st_run_data *d)
{
    struct facts f = {0};
    uint64_t hash = 0;

    if (comm == NULL)
        return STRATA_OK;
    for (uint32_t i = 0; i < d->file_count; i++) {
        const struct st_run_file *file = &d->files[i];

        hash = hash * UINT64_C(0x9e3779b97f4a7c15) + st_checksum64(file->header, strlen(file->header)) +
               st_checksum64(file->windows, strlen(file->windows)) * 3 + st_checksum64(file->marks, strlen(file->marks)) * 5;
    }
    add_number(&f, "the number of token files", d->file_count);
    add_number(&f, "the number of sequences of the data", d->sequences);
    add_number(&f, "the hash of samples of the data", hash);
    return agree(&f, comm, "the data");
}

/* --- work --- */

strata_status st_ranks_end_alike(struct st_comm *comm, strata_status st, const char *what)
{
    int32_t mine = (int32_t)st, all[ST_COMM_RANKS_MAX];
    struct st_sentence sentence;
    strata_status told;

    if (comm == NULL)
        return st;
    st_error_keep(&sentence);
    told = st_comm_gather(comm, &mine, sizeof(mine), all, what);
    if (st != STRATA_OK)
        return st_error_again(st, &sentence);
    for (uint32_t r = 0; r < comm->world.ranks && told == STRATA_OK; r++)
        if (all[r] != STRATA_OK)
            told = st_error((strata_status)all[r],
                            all[r] == STRATA_E_CANCELLED ? "%s was cancelled by rank %u" : "%s: rank %u failed: see its log",
                            what, r);
    return told;
}
