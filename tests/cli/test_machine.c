/* tests/cli/test_machine.c - capacities from budgets, machine files, and probes that fail one by one. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/json/json.h"
#include "core/system/topology.h"
#include "nvme/swap/swap.h"
#include "offload/config/config_options.h"
#include "offload/machine/machine.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

struct fixture {
    struct st_topology *topology;
    struct st_config config;
    struct st_workload workload;
    struct st_page page;
};

static strata_status here(struct st_machine *m, const struct st_config *config, const struct st_topology *topology)
{
    struct st_machine_opts opts;

    st_config_machine_opts(&opts, config);
    opts.topology = topology;
    return st_machine_here(m, &opts);
}

static strata_status measure(struct st_machine *m, const struct fixture *f, const struct st_compute *compute,
                             const struct st_config *config, unsigned what)
{
    struct st_machine_opts opts;

    st_config_machine_opts(&opts, config);
    opts.topology = f->topology;
    return st_machine_measure(m, &f->workload, compute, &opts, what);
}

static int setup(void **state)
{
    static struct fixture f;
    struct st_config_source *source = NULL;
    const struct st_config_opts opts = {0};

    f = (struct fixture){0};
    assert_int_equal(st_topology_load(&f.topology, NULL), STRATA_OK);
    assert_int_equal(st_config_load(&f.config, &source, &opts), STRATA_OK);
    st_config_source_free(source);
    assert_int_equal(scratch_create(NULL), 0);
    f.page = (struct st_page){0};
    (void)st_page_add(&f.page, ST_GROUP_DECAY, STRATA_BF16, 65536);
    f.workload = (struct st_workload){.name = "probe",
                                      .dtype = STRATA_BF16,
                                      .vocab = 256,
                                      .hidden = 64,
                                      .seq = 32,
                                      .micro_batch = 1,
                                      .grad_accum = 1,
                                      .params = 65536,
                                      .pages = &f.page,
                                      .page_count = 1};
    kept_log_begin(ST_LOG_WARN);
    st_fault_arm(&(struct st_fault_spec){.site = "machine.patience"}); /* rates are there; what they are is nobody's business */
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    st_fault_disarm();
    kept_log_end();
    st_topology_destroy(f->topology);
    return scratch_remove_empty(state); /* fails where something was left behind */
}

TEST_SETUP(budgets_are_capacities, setup, teardown)
{
    struct fixture *f = *state;
    struct st_machine m;

    f->config.device_memory = 3 * MIB;
    f->config.host_memory = 5 * MIB;
    f->config.threads = 2;
    assert_int_equal(here(&m, &f->config, f->topology), STRATA_OK);
    assert_int_equal(m.capacity.bytes[STRATA_TIER_DEVICE], 3 * MIB);
    assert_int_equal(m.capacity.bytes[STRATA_TIER_HOST], 5 * MIB);
    assert_int_equal(m.capacity.bytes[STRATA_TIER_NVME], 0);
    assert_int_equal(m.capacity.workers, 2);
    assert_true(m.capacity.device_is_host);
    assert_true(m.rates.matmul_flops == 0);
}

/* In a small control group half for the device would leave the host nothing. */
TEST(little_memory_is_for_device_and_host)
{
    for (uint64_t mib = 121; mib < 4096; mib++) {
        const uint64_t device = st_machine_device_budget(mib * MIB), host = st_machine_host_budget(mib * MIB, device);

        assert_true(device > 0 && device <= mib * MIB / 2);
        assert_true(4 * host >= st_machine_host_budget(mib * MIB, 0));
        assert_true(mib < 720 || device == mib * MIB / 2);
    }
    assert_int_equal(st_machine_device_budget(100 * MIB), 0);
}

TEST_SETUP(automatic_budgets_leave_room, setup, teardown)
{
    struct fixture *f = *state;
    struct st_machine m;

    assert_int_equal(here(&m, &f->config, f->topology), STRATA_OK);
    assert_true(m.capacity.bytes[STRATA_TIER_DEVICE] > 0);
    assert_true(m.capacity.bytes[STRATA_TIER_HOST] > 0);
    assert_true(m.capacity.bytes[STRATA_TIER_DEVICE] + m.capacity.bytes[STRATA_TIER_HOST] <
                st_topology_memory_limit(f->topology));
    assert_int_equal(m.capacity.workers, st_topology_core_count(f->topology));
    f->config.device_memory = UINT64_C(1) << 60; /* nothing is left for the host, and nothing wraps */
    assert_int_equal(here(&m, &f->config, f->topology), STRATA_OK);
    assert_int_equal(m.capacity.bytes[STRATA_TIER_HOST], 0);
}

/* A budget of the host is that of a machine: its ranks divide it, and the drives.  The device is each rank's own. */
TEST_SETUP(ranks_divide_the_machine, setup, teardown)
{
    struct fixture *f = *state;
    struct st_topology *part;
    struct st_machine all, mine;

    assert_int_equal(st_topology_load_share(&part, &(struct st_topology_share){.memory = 4}), STRATA_OK);
    f->config.device_memory = 3 * MIB;
    f->config.host_memory = 8 * MIB;
    snprintf(f->config.nvme_dirs[0], sizeof(f->config.nvme_dirs[0]), "%s", scratch_dir);
    f->config.nvme_dir_count = 1;
    assert_int_equal(here(&all, &f->config, f->topology), STRATA_OK);
    assert_int_equal(here(&mine, &f->config, part), STRATA_OK);
    assert_int_equal(mine.capacity.bytes[STRATA_TIER_DEVICE], 3 * MIB);
    assert_int_equal(mine.capacity.bytes[STRATA_TIER_HOST], 2 * MIB);
    assert_true(mine.capacity.bytes[STRATA_TIER_NVME] < all.capacity.bytes[STRATA_TIER_NVME] / 2); /* others write there, too */
    st_topology_destroy(part);
}

TEST_SETUP(a_missing_directory_is_refused, setup, teardown)
{
    struct fixture *f = *state;
    struct st_machine m;

    snprintf(f->config.nvme_dirs[0], sizeof(f->config.nvme_dirs[0]), "%s/missing", scratch_dir);
    f->config.nvme_dir_count = 1;
    assert_int_equal(strata_status_exit_code(here(&m, &f->config, f->topology)), 2);
    assert_non_null(strstr(strata_last_error(), "missing"));
}

TEST_SETUP(files_keep_every_field, setup, teardown)
{
    struct st_machine m = {.name = "a \"box\"",
                           .capacity = {.bytes = {1, UINT64_C(1) << 52, 3}, .workers = 7, .device_is_host = false},
                           .rates.drives = 4,
                           .rates.matmul_flops = 1e12 / 3,
                           .rates.block_flops = 0.3e12,
                           .rates.head_flops = 0.2e12,
                           .rates.memory = 0.1e12,
                           .rates.upload = 1e10,
                           .rates.download = 2e10,
                           .rates.read = 3e9,
                           .rates.write = 4e9,
                           .rates.mixed = 5e9,
                           .rates.update = 6e8,
                           .rates.update_even = true,
                           .rates.checksum = 7e10,
                           .rates.handover = 2e-5,
                           .rates.latency_io = 1e-4,
                           .rates.launch = 5e-6};
    struct st_machine back;
    struct st_new_file file;
    char path[128];

    snprintf(path, sizeof(path), "%s/machine.json", scratch_dir);
    assert_int_equal(st_new_file_create(&file, path, 0), STRATA_OK);
    assert_int_equal(st_machine_write(&m, &file), STRATA_OK);
    assert_int_equal(st_machine_read(&back, path), STRATA_OK);
    assert_string_equal(back.name, m.name);
    assert_memory_equal(back.capacity.bytes, m.capacity.bytes, sizeof(m.capacity.bytes));
    assert_int_equal(back.capacity.workers, 7);
    assert_false(back.capacity.device_is_host);
    assert_true(back.rates.matmul_flops == m.rates.matmul_flops && back.rates.upload == m.rates.upload &&
                back.rates.download == m.rates.download);
    assert_true(back.rates.read == m.rates.read && back.rates.write == m.rates.write && back.rates.mixed == m.rates.mixed &&
                back.rates.update == m.rates.update && back.rates.update_even);
    assert_true(back.rates.drives == 4 && back.rates.block_flops == m.rates.block_flops &&
                back.rates.checksum == m.rates.checksum);
    assert_true(back.rates.head_flops == m.rates.head_flops && back.rates.memory == m.rates.memory);
    assert_true(back.rates.handover == m.rates.handover && back.rates.latency_io == m.rates.latency_io &&
                back.rates.launch == m.rates.launch);
    unlink(path);
}

/* A file that was written before its rate was measured: a card's memory is as fast as its products let expect, a host's is not
 * asked for. */
TEST_SETUP(a_file_without_the_memorys_rate_has_a_stated_one, setup, teardown)
{
    static const struct {
        const char *text;
        double memory;
    } files[] = {{"{\"matmul_flops\": 3e14}", 0},
                 {"{\"matmul_flops\": 3e14, \"device_is_host\": false}", 2e12},
                 {"{\"matmul_flops\": 3e14, \"device_is_host\": false, \"memory\": 1e12}", 1e12},
                 {"{\"device_is_host\": false}", 0}};
    char path[128];

    snprintf(path, sizeof(path), "%s/old.json", scratch_dir);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct st_machine m;
        FILE *file = fopen(path, "w");

        assert_non_null(file);
        fputs(files[i].text, file);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(st_machine_read(&m, path), STRATA_OK);
        assert_true(m.rates.memory == files[i].memory);
    }
    unlink(path);
}

/* What was not measured is not written: no disk, no drives. */
TEST(unknown_fields_are_left_out)
{
    const struct st_machine m = {.name = "box", .capacity = {.bytes = {1, 2, 0}, .workers = 1}, .rates.matmul_flops = 1e9};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct st_json_writer w;

    assert_non_null(file);
    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_machine_put_fields(&m, &w);
    st_json_object_close(&w);
    st_json_end_line(&w);
    fclose(file);
    assert_string_equal(text, "{\"name\":\"box\",\"device_bytes\":1,\"host_bytes\":2,\"workers\":1,\"device_is_host\":false,"
                              "\"matmul_flops\":1000000000}\n");
    free(text);
}

TEST_SETUP(every_rate_is_measured, setup, teardown)
{
    struct fixture *f = *state;
    struct st_machine m;

    memcpy(f->config.nvme_dirs[0], scratch_dir, sizeof(scratch_dir));
    f->config.nvme_dir_count = 1;
    assert_int_equal(here(&m, &f->config, f->topology), STRATA_OK);
    assert_int_equal(measure(&m, f, NULL, &f->config, ST_MEASURE_ALL), STRATA_OK);
    assert_true(m.rates.matmul_flops > 0 && m.rates.upload > 0 && m.rates.download > 0 && m.rates.update > 0);
    assert_true(m.rates.upload < 1e13 && m.rates.download < 1e13); /* no memory is as fast: something was copied */
    assert_true(m.rates.read > 0 && m.rates.write > 0 && m.rates.checksum > 0);
    assert_true(m.rates.block_flops == 0 && m.rates.head_flops == 0); /* no model, no block, no head */
    assert_true(m.rates.memory == 0);                                 /* the device is the host */
    assert_true(m.rates.handover > 0 && m.rates.latency_io > 0 && m.rates.launch == 0);
    assert_int_equal(kept_log.count, 0);
}

TEST_SETUP(each_of_several_directories_is_measured, setup, teardown)
{
    struct fixture *f = *state;
    struct st_config config = f->config;
    struct st_machine m, back;
    struct st_new_file file;
    char path[512];

    for (uint32_t i = 0; i < 2; i++) {
        snprintf(config.nvme_dirs[i], sizeof(config.nvme_dirs[i]), "%s/drive-%u", scratch_dir, i);
        assert_int_equal(mkdir(config.nvme_dirs[i], 0700), 0);
    }
    config.nvme_dir_count = 2;
    assert_int_equal(here(&m, &config, f->topology), STRATA_OK);
    assert_int_equal(measure(&m, f, NULL, &config, ST_MEASURE_DISK), STRATA_OK);
    assert_true(m.rates.read > 0 && m.rates.write > 0 && m.rates.mixed > 0);
    assert_int_equal(m.rates.dir_count, 2);
    assert_int_equal(m.rates.drives, 2);
    assert_true(m.rates.dir_rates[0] > 0 && m.rates.dir_rates[1] > 0);

    snprintf(path, sizeof(path), "%s/machine.json", scratch_dir);
    assert_int_equal(st_new_file_create(&file, path, 0), STRATA_OK);
    assert_int_equal(st_machine_write(&m, &file), STRATA_OK);
    assert_int_equal(st_machine_read(&back, path), STRATA_OK);
    assert_int_equal(back.rates.dir_count, 2);
    assert_true(back.rates.dir_rates[0] == m.rates.dir_rates[0] && back.rates.dir_rates[1] == m.rates.dir_rates[1]);
    unlink(path);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rmdir(config.nvme_dirs[i]), 0); /* nothing is left in it */
}

/* Stands for a model: notes what it is given. */
struct calls {
    uint32_t forward, backward, norm, stats, grad;
    bool failing;
};

/* The head's calls, in order: norm, statistics and gradient of the first slice, its logits made again. */
static void count_head(struct calls *calls, const struct st_call *call)
{
    assert_true(call->slice == 0 && call->internals != NULL && call->weight != NULL && call->workspace != NULL);
    if (call->kind == ST_CALL_HEAD_NORM) {
        assert_non_null(call->act);
        assert_int_equal(calls->norm++, calls->grad);
        return;
    }
    for (uint32_t row = 0; row < 32; row++)
        assert_int_equal(call->targets[row], 0);
    if (call->kind == ST_CALL_HEAD_STATS) {
        assert_int_equal(++calls->stats, calls->norm);
        return;
    }
    assert_int_equal(call->kind, ST_CALL_HEAD_GRAD);
    assert_int_equal(++calls->grad, calls->stats);
    assert_true(call->recompute && call->logits == NULL && call->grad != NULL && call->grad_elems == 16384);
    assert_true(call->loss_gradient == 1.0f / 32);
    memset(call->grad, 0, call->grad_elems * sizeof(float));
}

static strata_status count_call(void *model, const struct st_call *call)
{
    struct calls *calls = model;

    if (calls->failing)
        return st_error(STRATA_E_NOSYS, "no such layer");
    if (call->kind >= ST_CALL_HEAD_NORM) {
        count_head(calls, call);
        return STRATA_OK;
    }
    assert_int_equal(call->layer, 1);
    assert_true(call->act != NULL && call->act_out != NULL && call->weight != NULL && call->internals != NULL);
    if (call->kind == ST_CALL_BLOCK_FORWARD) {
        calls->forward++;
        return STRATA_OK;
    }
    assert_int_equal(call->kind, ST_CALL_BLOCK_BACKWARD);
    assert_true(!call->first && !call->recompute && call->grad != NULL && call->dact != NULL);
    memset(call->grad, 0, call->grad_elems * sizeof(float)); /* all of it is there */
    calls->backward++;
    return STRATA_OK;
}

/* Three layers with four uses of pages, the first of which is looked up. */
static void looks_up(struct fixture *f, struct st_page *pages, uint32_t page_count, struct st_layer *layers, uint32_t *uses)
{
    f->workload.pages = pages;
    f->workload.page_count = page_count;
    f->workload.layers = layers;
    f->workload.layer_count = 3;
    f->workload.uses = uses;
    f->workload.use_count = 4;
    f->workload.gathered_count = 1;
    f->workload.workspace_bytes = 5000;
    f->workload.workers = 256;
}

TEST_SETUP(block_and_head_are_measured_where_they_fit, setup, teardown)
{
    struct fixture *f = *state;
    struct st_page pages[3] = {[0] = {.row_count = 256}, [1] = f->page};
    struct st_layer layers[3] = {{.kind = ST_LAYER_LOOKUP, .use_count = 1, .boundary_bytes = 32 * 64 * 2},
                                 {.use_first = 1,
                                  .use_count = 1,
                                  .boundary_bytes = 32 * 64 * 2,
                                  .internal_bytes = 10000,
                                  .forward_flops = 1e6,
                                  .backward_flops = 2e6},
                                 {.kind = ST_LAYER_LOSS,
                                  .use_first = 2,
                                  .use_count = 2,
                                  .internal_bytes = 3000,
                                  .forward_flops = 1e6,
                                  .backward_flops = 3e6}};
    uint32_t uses[4] = {0, 1, 2, 0};
    struct calls calls = {0};
    const struct st_compute compute = {.model = &calls, .run = count_call};
    struct st_machine m;

    (void)st_page_add(&pages[0], ST_GROUP_DECAY, STRATA_BF16, 16384);
    (void)st_page_add(&pages[2], ST_GROUP_DECAY, STRATA_BF16, 128);
    looks_up(f, pages, 3, layers, uses);
    assert_int_equal(here(&m, &f->config, f->topology), STRATA_OK);
    assert_int_equal(measure(&m, f, &compute, &f->config, ST_MEASURE_ALL & ~ST_MEASURE_DISK), STRATA_OK);
    assert_true(m.rates.block_flops > 0 && m.rates.head_flops > 0);
    assert_true(calls.forward > 1 && calls.backward == calls.forward);
    assert_true(calls.grad > 1 && calls.norm == calls.grad);
    assert_int_equal(kept_log.count, 0);

    m.rates.block_flops = m.rates.head_flops = 0;
    calls.failing = true;
    assert_int_equal(measure(&m, f, &compute, &f->config, ST_MEASURE_ALL & ~ST_MEASURE_DISK), STRATA_OK);
    assert_true(m.rates.block_flops == 0 && m.rates.head_flops == 0 && m.rates.update > 0);
    assert_int_equal(kept_log.count, 2);

    calls.failing = false;
    m.capacity.bytes[STRATA_TIER_DEVICE] = 1 << 20; /* a quarter holds the head, not the block's 262144 bytes of gradient */
    assert_int_equal(measure(&m, f, &compute, &f->config, ST_MEASURE_ALL & ~ST_MEASURE_DISK), STRATA_OK);
    assert_true(m.rates.block_flops == 0 && m.rates.head_flops > 0);
    assert_int_equal(kept_log.count, 2);
}

static strata_status count_part(void *model, const struct st_call *call)
{
    uint32_t *counts = model; /* by kind */

    assert_true(call->weight != NULL && call->internals != NULL && call->routes != NULL && call->act != NULL);
    assert_int_equal(call->opens_routes, call->kind == ST_CALL_ROUTE_FORWARD);
    assert_int_equal(call->page,
                     call->kind == ST_CALL_EXPERTS_FORWARD || call->kind == ST_CALL_EXPERTS_BACKWARD ? 2 + call->slice : 1);
    assert_int_equal(call->grad_elems, call->kind == ST_CALL_EXPERTS_BACKWARD ? 16384
                                       : call->kind == ST_CALL_ROUTE_BACKWARD ? 128
                                                                              : 0);
    counts[call->kind]++;
    return STRATA_OK;
}

/* Its first page's calls give the rate of blocks, those with all slices the rate of experts. */
TEST_SETUP(a_layer_of_experts_is_measured_by_parts, setup, teardown)
{
    struct fixture *f = *state;
    struct st_page pages[4] = {{.row_count = 256}};
    struct st_layer layers[3] = {{.kind = ST_LAYER_LOOKUP, .use_count = 1, .boundary_bytes = 32 * 64 * 2},
                                 {.kind = ST_LAYER_EXPERTS,
                                  .use_first = 1,
                                  .use_count = 3,
                                  .boundary_bytes = 32 * 64 * 2,
                                  .internal_bytes = 10000,
                                  .forward_flops = 1e3,
                                  .backward_flops = 2e3,
                                  .experts_forward_flops = 1e6,
                                  .experts_backward_flops = 3e6},
                                 {.kind = ST_LAYER_BLOCK, .use_first = 4}};
    uint32_t uses[4] = {0, 1, 2, 3}, counts[ST_CALL_ROUTE_BACKWARD + 1] = {0};
    const struct st_compute compute = {.model = counts, .run = count_part};
    struct st_machine m;

    for (uint32_t p = 0; p < 4; p++)
        (void)st_page_add(&pages[p], ST_GROUP_DECAY, STRATA_BF16, p == 1 ? 128 : 16384);
    looks_up(f, pages, 4, layers, uses);
    f->workload.routes_bytes = 64;
    assert_int_equal(here(&m, &f->config, f->topology), STRATA_OK);
    assert_int_equal(measure(&m, f, &compute, &f->config, ST_MEASURE_ALL & ~ST_MEASURE_DISK), STRATA_OK);
    assert_true(m.rates.block_flops > 0 && m.rates.experts_flops > 0);
    assert_true(counts[ST_CALL_ROUTE_END] > 1 && counts[ST_CALL_ROUTE_END] == counts[ST_CALL_ROUTE_BACKWARD]);
    assert_int_equal(counts[ST_CALL_EXPERTS_FORWARD], 2 * (counts[ST_CALL_ROUTE_FORWARD] - counts[ST_CALL_ROUTE_END]));
    assert_int_equal(counts[ST_CALL_EXPERTS_BACKWARD], counts[ST_CALL_EXPERTS_FORWARD]);
}

/* Else the faster one, which no test can know. */
TEST_SETUP(the_fetch_that_is_asked_for_is_measured, setup, teardown)
{
    struct fixture *f = *state;
    struct st_machine m;

    assert_int_equal(here(&m, &f->config, f->topology), STRATA_OK);
    for (int i = 0; i < 2; i++) {
        f->config.update_fetch = i == 0 ? ST_FETCH_EVEN : ST_FETCH_BURSTS;
        assert_int_equal(measure(&m, f, NULL, &f->config, ST_MEASURE_UPDATE), STRATA_OK);
        assert_true(m.rates.update > 0);
        assert_int_equal(m.rates.update_even, i == 0);
    }
}

TEST_SETUP(a_failed_disk_leaves_the_other_rates, setup, teardown)
{
    struct fixture *f = *state;
    struct st_machine m;

    memcpy(f->config.nvme_dirs[0], scratch_dir, sizeof(scratch_dir));
    f->config.nvme_dir_count = 1;
    assert_int_equal(here(&m, &f->config, f->topology), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "owned.mkdir", .result = -EIO});
    assert_int_equal(measure(&m, f, NULL, &f->config, ST_MEASURE_ALL), STRATA_OK);
    assert_true(m.rates.matmul_flops > 0 && m.rates.upload > 0 && m.rates.update > 0);
    assert_true(m.rates.read == 0 && m.rates.write == 0 && m.rates.mixed == 0);
    assert_int_equal(kept_log.count, 1);
}

TEST_SETUP(an_unknown_kernel_set_is_refused, setup, teardown)
{
    struct fixture *f = *state;
    struct st_machine m;

    snprintf(f->config.isa, sizeof(f->config.isa), "pentium");
    assert_int_equal(here(&m, &f->config, f->topology), STRATA_OK);
    assert_int_equal(measure(&m, f, NULL, &f->config, ST_MEASURE_ALL & ~ST_MEASURE_DISK), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "pentium"));
}
