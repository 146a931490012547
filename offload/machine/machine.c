/* offload/machine/machine.c - finds the capacities of this machine from budgets, and reads and writes machine files.
 *
 * One thread calls, and nothing is kept between calls.  A machine file is an object of numbers and is read strictly: an unknown
 * key is an error. */
#include "offload/machine/machine.h"
#include "core/base/error.h"
#include "core/base/word.h"
#include "core/json/json.h"
#include "core/system/path.h"
#include "core/system/topology.h"
#include "nvme/swap/swap.h"
#include "offload/device/device.h"

#include <stdio.h>
#include <string.h>

#define MACHINE_FILE_BYTES_MAX (1u << 20)

enum field_type {
    FIELD_FLAG /* false where it is left out */,
    FIELD_TEXT,
    FIELD_BYTES,
    FIELD_COUNT,
    FIELD_BOOL,
    FIELD_RATE,
    FIELD_SECONDS,
    FIELD_DIRS
};

#define COUNT_MOST      4096u /* limit on workers, drives and ranks, since tables have an entry for each */
#define COUNT_MOST_TEXT "4096"

/* Per second, of one that is known.  With less a step takes as good as forever, and times overflow; no machine has more. */
#define RATE_LEAST 1.0
#define RATE_MOST  1e18

#define SECONDS_MOST 1.0 /* limit on a latency */

struct machine_field {
    const char *key;
    enum field_type type;
    size_t offset; /* in struct st_machine */
};

#define AT(member) offsetof(struct st_machine, member)
static const struct machine_field machine_fields[] = {
    {"name", FIELD_TEXT, AT(name)},
    {"device_bytes", FIELD_BYTES, AT(capacity.bytes[STRATA_TIER_DEVICE])},
    {"host_bytes", FIELD_BYTES, AT(capacity.bytes[STRATA_TIER_HOST])},
    {"nvme_bytes", FIELD_BYTES, AT(capacity.bytes[STRATA_TIER_NVME])},
    {"workers", FIELD_COUNT, AT(capacity.workers)},
    {"device_is_host", FIELD_BOOL, AT(capacity.device_is_host)},
    {"unified", FIELD_FLAG, AT(capacity.unified)},
    {"lacks_bf16", FIELD_FLAG, AT(capacity.lacks_bf16)},
    {"drives", FIELD_COUNT, AT(rates.drives)},
    {"matmul_flops", FIELD_RATE, AT(rates.matmul_flops)},
    {"block_flops", FIELD_RATE, AT(rates.block_flops)},
    {"experts_flops", FIELD_RATE, AT(rates.experts_flops)},
    {"head_flops", FIELD_RATE, AT(rates.head_flops)},
    {"memory", FIELD_RATE, AT(rates.memory)},
    {"upload", FIELD_RATE, AT(rates.upload)},
    {"download", FIELD_RATE, AT(rates.download)},
    {"read", FIELD_RATE, AT(rates.read)},
    {"write", FIELD_RATE, AT(rates.write)},
    {"mixed", FIELD_RATE, AT(rates.mixed)},
    {"update", FIELD_RATE, AT(rates.update)},
    {"update_even", FIELD_FLAG, AT(rates.update_even)},
    {"checksum", FIELD_RATE, AT(rates.checksum)},
    {"link_node", FIELD_RATE, AT(rates.link_node)},
    {"link_nodes", FIELD_RATE, AT(rates.link_nodes)},
    {"latency_node", FIELD_SECONDS, AT(rates.latency_node)},
    {"latency_nodes", FIELD_SECONDS, AT(rates.latency_nodes)},
    {"ranks_per_node", FIELD_COUNT, AT(rates.node_ranks)},
    {"handover", FIELD_SECONDS, AT(rates.handover)},
    {"latency_io", FIELD_SECONDS, AT(rates.latency_io)},
    {"launch", FIELD_SECONDS, AT(rates.launch)},
    {"dir_rates", FIELD_DIRS, 0},
};
#define FIELD_TOTAL (sizeof(machine_fields) / sizeof(machine_fields[0]))

uint64_t st_machine_host_budget(uint64_t available, uint64_t beside)
{
    const uint64_t have = available / 5 * 4, taken = ST_MACHINE_FIXED_BYTES + beside;

    return have > taken ? have - taken : 0;
}

uint64_t st_machine_unified_budget(uint64_t host_budget)
{
    return (host_budget - host_budget / 8) & ~UINT64_C(4095);
}

uint64_t st_machine_device_budget(uint64_t available)
{
    const uint64_t half = available / 2, usable = st_machine_host_budget(available, 0), most = usable - usable / 4;

    return half < most ? half : most;
}

uint64_t st_machine_available(const struct st_topology *topology)
{
    const uint64_t limit = st_topology_memory_limit(topology), free_bytes = st_topology_memory_available(topology);

    return limit < free_bytes ? limit : free_bytes;
}

uint32_t st_machine_workers(const struct st_topology *topology, const char *device, uint32_t threads)
{
    const struct st_device_ops *ops = device != NULL ? st_device_find(device) : NULL;
    const uint32_t cores = st_topology_core_count(topology);

    if (threads != 0)
        return threads;
    if (ops == NULL || ops->memory == NULL || ops->notify == NULL)
        return cores;
    return cores >= 8 ? cores - 2 : cores >= 4 ? cores - 1 : cores;
}

/* Of a GPU whose memory is the host's the two budgets are parts of one; what is given is taken from the other. */
static void share_unified(uint64_t capacity[STRATA_TIER_COUNT], uint64_t available, const struct st_machine_opts *opts)
{
    const uint64_t both = st_machine_host_budget(available, ST_MACHINE_GPU_BYTES);
    uint64_t *device = &capacity[STRATA_TIER_DEVICE], *host = &capacity[STRATA_TIER_HOST];

    if (opts->device_memory == ST_AUTO_BYTES)
        *device = opts->host_memory == ST_AUTO_BYTES ? st_machine_unified_budget(both) : both > *host ? both - *host : 0;
    if (opts->host_memory == ST_AUTO_BYTES)
        *host = both > *device ? both - *device : 0;
}

strata_status st_machine_here(struct st_machine *out, const struct st_machine_opts *opts)
{
    const struct st_topology *topo = opts->topology;
    const char *device = opts->device != NULL ? opts->device : "cpu";
    const struct st_device_ops *ops = st_device_find(device);
    const bool is_host = ops == NULL || ops->memory == NULL;
    const uint64_t available = st_machine_available(topo);
    struct st_device_memory gpu = {0};
    struct st_machine m = {.capacity.device_is_host = is_host};
    uint64_t *capacity = m.capacity.bytes;
    strata_status st = is_host ? STRATA_OK : ops->memory(st_device_index(device), &gpu);

    if (st != STRATA_OK)
        return st;
    snprintf(m.name, sizeof(m.name), "%s", is_host ? st_topology_cpu_name(topo) : gpu.name);
    m.capacity.workers = st_machine_workers(topo, device, opts->threads);
    capacity[STRATA_TIER_DEVICE] = opts->device_memory != ST_AUTO_BYTES ? opts->device_memory
                                   : !is_host                           ? gpu.usable
                                   : opts->host_memory != ST_AUTO_BYTES ? available / 2
                                                                        : st_machine_device_budget(available);
    m.capacity.device_beside = gpu.beside;
    m.capacity.unified = gpu.kind == ST_MEMORY_UNIFIED;
    m.capacity.lacks_bf16 = gpu.lacks_bf16;
    capacity[STRATA_TIER_HOST] =
        opts->host_memory != ST_AUTO_BYTES
            ? opts->host_memory / st_topology_memory_shares(topo)
            : st_machine_host_budget(available, is_host ? capacity[STRATA_TIER_DEVICE] : ST_MACHINE_GPU_BYTES);
    if (m.capacity.unified)
        share_unified(capacity, available, opts);
    if (opts->nvme.dir_count > 0) {
        uint32_t tightest;

        st = st_swap_room(opts->nvme.dirs, opts->nvme.dir_count, NULL, opts->nvme.block_bytes, &capacity[STRATA_TIER_NVME],
                          &tightest);
        if (st != STRATA_OK)
            return st;
        capacity[STRATA_TIER_NVME] /= st_topology_memory_shares(topo);
        snprintf(m.capacity.nvme_tightest, sizeof(m.capacity.nvme_tightest), "%s", opts->nvme.dirs[tightest]);
    }
    *out = m;
    return STRATA_OK;
}

/* --- machine files --- */

static const struct machine_field *field_find(const char *key)
{
    for (size_t i = 0; i < FIELD_TOTAL; i++)
        if (strcmp(machine_fields[i].key, key) == 0)
            return &machine_fields[i];
    return NULL;
}

static strata_status unknown_key(const char *path, const char *key)
{
    const char *nearest = NULL;
    uint32_t least = st_word_edits_most(key) + 1;

    for (size_t i = 0; i < FIELD_TOTAL; i++) {
        const char *known = machine_fields[i].key;
        const uint32_t edits = strncmp(key, known, strlen(key)) == 0 ? 0 : st_word_edits(key, known);

        if (edits < least) {
            nearest = known;
            least = edits;
        }
    }
    return st_error(STRATA_E_INPUT, "machine file %s: unknown key %s%s%s (docs/planning.md, \"Machine files\", has all)", path,
                    key, nearest != NULL ? ": nearest is " : "", nearest != NULL ? nearest : "");
}

static strata_status field_error(const char *path, const char *key, const char *wanted)
{
    return st_error_remedy(st_error(STRATA_E_INPUT, "machine file %s: %s must be %s", path, key, wanted), "machine.file",
                           "write one with strata info info.measure info.out FILE");
}

/* A whole number of bytes; a float such as 1e12 is accepted if it is whole. */
static strata_status read_whole(const struct machine_field *field, const st_json *node, const char *path, uint64_t most,
                                uint64_t *value)
{
    if (!st_json_u64(node, value) || *value > most)
        return field_error(path, field->key,
                           field->type == FIELD_COUNT ? "a whole number, at most " COUNT_MOST_TEXT : "a whole number of bytes");
    return STRATA_OK;
}

static strata_status read_rate(const struct machine_field *field, const st_json *node, const char *path, double *rate)
{
    if (st_json_type(node) == ST_JSON_NULL)
        return STRATA_OK;
    if (st_json_type(node) != ST_JSON_NUMBER ||
        !(st_json_number(node) == 0 || (st_json_number(node) >= RATE_LEAST && st_json_number(node) <= RATE_MOST)))
        return field_error(path, field->key, "a number per second, 1 to 1e18 (0: not known)");
    *rate = st_json_number(node);
    return STRATA_OK;
}

static strata_status read_seconds(const struct machine_field *field, const st_json *node, const char *path, double *seconds)
{
    if (st_json_type(node) != ST_JSON_NUMBER || !(st_json_number(node) >= 0 && st_json_number(node) <= SECONDS_MOST))
        return field_error(path, field->key, "a number of seconds, 0 to 1");
    *seconds = st_json_number(node);
    return STRATA_OK;
}

static strata_status read_dir_rates(struct st_machine *m, const struct machine_field *field, const st_json *node,
                                    const char *path)
{
    strata_status st = STRATA_OK;

    if (st_json_type(node) != ST_JSON_ARRAY)
        return field_error(path, field->key, "a list of numbers per second");
    m->rates.dir_count = 0;
    for (const st_json *item = st_json_first(node); item != NULL && st == STRATA_OK; item = st_json_next(item)) {
        double rate = 0;

        st = read_rate(field, item, path, &rate);
        if (st == STRATA_OK && (m->rates.dir_count == ST_MACHINE_DIRS_MAX || !(rate > 0)))
            st = field_error(path, field->key, "a list of at most 8 numbers above 0");
        if (st == STRATA_OK)
            m->rates.dir_rates[m->rates.dir_count++] = rate;
    }
    return st;
}

static strata_status field_read(struct st_machine *m, const struct machine_field *field, const st_json *node, const char *path)
{
    char *at = (char *)m + field->offset;
    uint64_t value = 0;
    strata_status st;

    switch (field->type) {
    case FIELD_TEXT:
        if (st_json_type(node) != ST_JSON_STRING)
            return field_error(path, field->key, "text");
        snprintf(at, sizeof(m->name), "%s", st_json_string(node));
        return STRATA_OK;
    case FIELD_BYTES:
        return read_whole(field, node, path, UINT64_MAX, (uint64_t *)(void *)at);
    case FIELD_COUNT:
        st = read_whole(field, node, path, COUNT_MOST, &value);
        if (st == STRATA_OK)
            *(uint32_t *)(void *)at = (uint32_t)value;
        return st;
    case FIELD_FLAG:
    case FIELD_BOOL:
        if (st_json_type(node) != ST_JSON_BOOL)
            return field_error(path, field->key, "true or false");
        *(bool *)at = st_json_bool(node);
        return STRATA_OK;
    case FIELD_DIRS:
        return read_dir_rates(m, field, node, path);
    case FIELD_SECONDS:
        return read_seconds(field, node, path, (double *)(void *)at);
    case FIELD_RATE:
        break;
    }
    return read_rate(field, node, path, (double *)(void *)at);
}

strata_status st_machine_read(struct st_machine *out, const char *path)
{
    struct st_machine m = {.capacity.device_is_host = true};
    st_json *root = NULL;
    strata_status st = st_json_parse_file(&root, path, MACHINE_FILE_BYTES_MAX);

    if (st != STRATA_OK)
        return st_error_prefix(st == STRATA_E_CONFIG ? STRATA_E_INPUT : st, "machine file");
    if (st_json_type(root) != ST_JSON_OBJECT)
        st = st_error(STRATA_E_INPUT, "machine file %s: must be one JSON object", path);
    snprintf(m.name, sizeof(m.name), "%s", st_path_name(path)); /* until it says another */
    for (const st_json *node = st == STRATA_OK ? st_json_first(root) : NULL; node != NULL && st == STRATA_OK;
         node = st_json_next(node)) {
        const struct machine_field *field = field_find(st_json_name(node));

        st = field != NULL ? field_read(&m, field, node, path) : unknown_key(path, st_json_name(node));
    }
    st_json_free(root);
    if (m.rates.memory <= 0 && !m.capacity.device_is_host && m.rates.matmul_flops > 0) {
        const double usual = m.rates.matmul_flops / ST_MACHINE_FLOPS_PER_BYTE;

        m.rates.memory = usual > RATE_LEAST ? usual : RATE_LEAST;
    }
    if (st == STRATA_OK)
        *out = m;
    return st;
}

/* 0 means unknown, as for a key that is absent. */
static bool field_known(const struct machine_field *field, const struct st_machine *m)
{
    const void *at = (const char *)m + field->offset;

    switch (field->type) {
    case FIELD_BYTES:
        return *(const uint64_t *)at != 0;
    case FIELD_COUNT:
        return *(const uint32_t *)at != 0;
    case FIELD_RATE:
    case FIELD_SECONDS:
        return *(const double *)at > 0;
    case FIELD_DIRS:
        return m->rates.dir_count != 0;
    case FIELD_FLAG:
        return *(const bool *)at;
    case FIELD_TEXT:
    case FIELD_BOOL:
        break;
    }
    return true;
}

static void field_write(struct st_json_writer *w, const struct machine_field *field, const struct st_machine *m)
{
    const char *at = (const char *)m + field->offset;

    switch (field->type) {
    case FIELD_TEXT:
        st_json_put_string(w, field->key, at);
        return;
    case FIELD_BYTES:
        st_json_put_u64(w, field->key, *(const uint64_t *)(const void *)at);
        return;
    case FIELD_COUNT:
        st_json_put_u64(w, field->key, *(const uint32_t *)(const void *)at);
        return;
    case FIELD_FLAG:
    case FIELD_BOOL:
        st_json_put_bool(w, field->key, *(const bool *)at);
        return;
    case FIELD_RATE:
    case FIELD_SECONDS:
        st_json_put_double(w, field->key, *(const double *)(const void *)at);
        return;
    case FIELD_DIRS:
        st_json_array_open(w, field->key);
        for (uint32_t i = 0; i < m->rates.dir_count; i++)
            st_json_put_double(w, NULL, m->rates.dir_rates[i]);
        st_json_array_close(w);
    }
}

void st_machine_put_fields(const struct st_machine *machine, struct st_json_writer *w)
{
    for (size_t i = 0; i < FIELD_TOTAL; i++)
        if (field_known(&machine_fields[i], machine))
            field_write(w, &machine_fields[i], machine);
}

strata_status st_machine_write(const struct st_machine *machine, struct st_new_file *file)
{
    struct st_json_writer w;
    strata_status st = st_new_file_stream(file);

    if (st != STRATA_OK) {
        st_new_file_abort(file);
        return st;
    }
    st_json_begin(&w, file->stream);
    st_json_object_open(&w, NULL);
    st_machine_put_fields(machine, &w);
    st_json_object_close(&w);
    st_json_end_line(&w);
    return st_new_file_commit(file);
}
