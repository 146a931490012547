/* test_cuda_machine.c - what offload/machine says of the cuda device over the emulator: its workers, links that are not pinned,
 * and the probes of a GPU that is lost. */
#include "core/base/fault.h"
#include "core/system/topology.h"
#include "offload/config/config_options.h"
#include "offload/device/cuda/device_cuda_internal.h"
#include "offload/machine/machine.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/cuda/emulator/twin.h"
#include "tests/engine/rig.h"

#include <stdio.h>
#include <string.h>

#define ok(call)    assert_int_equal((call), STRATA_OK)
#define DEADLINE_NS UINT64_C(500000000) /* far longer than any op of a probe that goes well */

static struct st_topology *cores(uint32_t count)
{
    char text[32];
    struct st_topology *topology;

    snprintf(text, sizeof(text), "core:%u pu:1", count);
    ok(st_topology_load_from(
        &topology, &(struct st_topology_source){.synthetic = text, .cgroup_root = "/nonexistent", .membership = "/nonexistent"}));
    return topology;
}

/* A number that was asked for counts as it is, everywhere. */
TEST(a_gpu_leaves_cores_free)
{
    static const struct {
        uint32_t cores, workers;
    } rows[] = {{1, 1}, {2, 2}, {3, 3}, {4, 3}, {5, 4}, {7, 6}, {8, 6}, {9, 7}, {64, 62}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_topology *topology = cores(rows[i].cores);
        struct st_machine_opts opts = {.topology = topology, .device = "cuda:0"};
        struct st_machine machine;

        assert_int_equal(st_machine_workers(topology, "cuda", 0), rows[i].workers);
        assert_int_equal(st_machine_workers(topology, "cuda:1", 0), rows[i].workers);
        assert_int_equal(st_machine_workers(topology, "cpu", 0), rows[i].cores);
        assert_int_equal(st_machine_workers(topology, "paced", 0), rows[i].cores);
        assert_int_equal(st_machine_workers(topology, NULL, 0), rows[i].cores);
        assert_int_equal(st_machine_workers(topology, "cuda", 5), 5);
        ok(st_machine_here(&machine, &opts));
        assert_int_equal(machine.capacity.workers, rows[i].workers);
        opts.threads = 9;
        ok(st_machine_here(&machine, &opts));
        assert_int_equal(machine.capacity.workers, 9);
        st_topology_destroy(topology);
    }
}

/* What is not pinned counts by its part of the memory.  A rate that is unknown changes nothing, nor does one above the link's. */
TEST(staged_memory_slows_the_links)
{
    static const struct {
        double upload, download;
        struct st_staged staged;
        double staged_upload, staged_download;
    } rows[] = {
        {12, 6, {0}, 12, 6},         {12, 6, {1000, 3, 2}, 3, 2},  {12, 6, {500, 4, 3}, 6, 4},
        {12, 6, {500, 0, 0}, 12, 6}, {12, 6, {500, 13, 3}, 12, 4}, {0, 6, {500, 4, 3}, 0, 4},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_rates rates = {.upload = rows[i].upload, .download = rows[i].download};

        st_rates_stage(&rates, 1000, &rows[i].staged);
        assert_float_equal(rates.upload, rows[i].staged_upload, 1e-6);
        assert_float_equal(rates.download, rows[i].staged_download, 1e-6);
        st_rates_stage(&rates, 0, &(struct st_staged){0});
        assert_float_equal(rates.upload, rows[i].staged_upload, 1e-6);
    }
}

/* --- probes --- */

static strata_status measure(struct st_machine *machine, const struct rig_cell *cell)
{
    struct st_topology *topology = cores(2);
    struct st_machine_opts opts;
    struct st_config config;
    struct st_model *model;
    struct st_compute compute;
    strata_status st;

    rig_config(&config, cell, "/nonexistent");
    st_config_machine_opts(&opts, &config);
    opts.topology = topology;
    opts.device = "cuda";
    opts.nvme.dir_count = 0;
    opts.device_memory = ST_AUTO_BYTES;
    opts.device_deadline_ns = cell->deadline_ns;
    ok(rig_model(&model, cell));
    compute = st_model_compute(model);
    ok(st_machine_here(machine, &opts));
    st = st_machine_measure(machine, st_model_workload(model), &compute, &opts, ST_MEASURE_ALL & ~ST_MEASURE_DISK);
    st_model_destroy(model);
    st_topology_destroy(topology);
    return st;
}

/* The links' rates are then those of staged copies, which one line says, though three devices are opened. */
TEST(refused_memory_is_said_once)
{
    struct rig_cell cell = rig_swapped();
    struct st_machine machine;

    cell.cuda = true;
    st_fault_arm(&(struct st_fault_spec){.site = "machine.patience"});
    kept_log_begin(ST_LOG_WARN);
    ok(measure(&machine, &cell));
    assert_false(machine.rates.staged);
    assert_true(machine.rates.launch > 0); /* so its queue was asked, not two threads */
    assert_int_equal(kept_log.count, 0);
    twin_fail("cudaHostRegister", 0, UINT64_MAX, cudaErrorNotSupported);
    ok(measure(&machine, &cell));
    kept_log_end();
    st_fault_disarm();
    assert_true(twin_disarm() > 0);
    assert_true(machine.rates.staged && machine.rates.upload > 0 && machine.rates.head_flops > 0);
    assert_int_equal(kept_log.count, 1);
    assert_non_null(strstr(kept_log.last, "copies go through"));
}

/* One sentence, that of the call: no further probe tries the GPU, or says so. */
TEST(a_lost_gpu_ends_the_probes)
{
    struct rig_cell cell = rig_swapped();
    struct st_machine machine;

    cell.cuda = true;
    cell.deadline_ns = DEADLINE_NS;
    st_fault_arm(&(struct st_fault_spec){.site = "machine.patience"}); /* one repeat */
    kept_log_begin(ST_LOG_WARN);
    for (uint64_t nth = 0;; nth += 1 + 2 * nth) {
        strata_status st;

        twin_hang(nth);
        st = measure(&machine, &cell);
        assert_int_equal(kept_log.count, 0);
        if (st == STRATA_OK)
            break;
        assert_int_equal(st, STRATA_E_IO);
        assert_non_null(strstr(strata_last_error(), "queue cuda-"));
        twin_reset();
        st_cuda_forget_loss();
    }
    kept_log_end();
    st_fault_disarm();
    twin_reset();
    assert_true(machine.rates.upload > 0 && machine.rates.block_flops > 0 && machine.rates.update > 0);
}
