/* test_links - what ranks cost one another and share: times of exchanges, one rank's part of a node, bounds; by hand. */
#include "core/base/error.h"
#include "offload/device/device.h"
#include "offload/machine/machine.h"
#include "offload/simulate/bounds.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void assert_near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-9 * fabs(wanted)))
        fail_msg("%.12g, not %.12g", value, wanted);
}

/* 450 bytes a second inside a node; 80 from other nodes, which its ranks share. */
static const struct st_rates links = {
    .link_node = 450, .link_nodes = 80, .latency_node = 0.25, .latency_nodes = 2, .node_ranks = 8};

TEST(bytes_inside_and_between_nodes)
{
    static const struct {
        uint32_t ranks;
        double bytes, seconds, latency;
    } rows[] = {
        {1, 900, 0, 0},         {2, 900, 2, 0.25},
        {8, 900, 2, 0.25},      {16, 1500, 80, 2}, /* 100 of each: 700 inside; 800 between for each of 8 ranks */
        {1024, 1023, 101.6, 2},                    /* 1 of each: 1016 x 8 / 80 */
    };
    struct st_rates fast = links;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_near(st_comm_seconds(&links, rows[i].ranks, rows[i].bytes), rows[i].seconds);
        assert_near(st_comm_latency(&links, rows[i].ranks), rows[i].latency);
    }
    fast.link_nodes = 80e6; /* then what comes from the node takes longer */
    assert_near(st_comm_seconds(&fast, 16, 1500), 700.0 / 450);
    fast.link_nodes = 0;
    assert_near(st_comm_seconds(&fast, 16, 1500), 700.0 / 450);
    fast.node_ranks = 0; /* all on one node */
    assert_near(st_comm_seconds(&fast, 16, 900), 2);
    fast.node_ranks = 1; /* none beside this one */
    fast.link_nodes = 80;
    assert_near(st_comm_seconds(&fast, 16, 1500), 1500.0 / 80);
    assert_near(st_comm_latency(&fast, 16), 2);
}

/* Each direction by its own copies, as far as the memory is not pinned; a staged copy is never the faster one. */
TEST(staged_memory_slows_each_direction_down)
{
    static const struct {
        uint64_t bytes, staged;
        double up, down, wanted_up, wanted_down;
    } rows[] = {
        {100, 0, 10, 20, 100, 50},    {100, 100, 10, 20, 10, 20}, {100, 50, 10, 25, 200.0 / 11, 100.0 / 3},
        {100, 100, 200, 20, 100, 20}, {100, 100, 10, 60, 10, 50}, {100, 100, 0, 0, 100, 50},
        {0, 0, 10, 20, 100, 50},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_staged staged = {.bytes = rows[i].staged, .upload = rows[i].up, .download = rows[i].down};
        struct st_rates rates = {.upload = 100, .download = 50};

        st_rates_stage(&rates, rows[i].bytes, &staged);
        assert_near(rates.upload, rows[i].wanted_up);
        assert_near(rates.download, rows[i].wanted_down);
    }
}

/* More ranks, or more of them on other nodes, never make the same bytes come sooner; faster links never later. */
TEST(times_are_monotone)
{
    for (uint32_t ranks = 2; ranks <= 1024; ranks *= 2)
        for (uint32_t here = 1; here <= ranks; here *= 2) {
            struct st_rates r = {.link_node = 300, .link_nodes = 200, .node_ranks = here};
            const double seconds = st_comm_seconds(&r, ranks, 1e6);

            assert_true(seconds >= 1e6 * (here - 1) / (ranks - 1) / 300 && seconds > 0);
            r.link_nodes *= 2;
            assert_true(st_comm_seconds(&r, ranks, 1e6) <= seconds);
            r.link_node *= 2;
            assert_near(st_comm_seconds(&r, ranks, 1e6), seconds / 2);
            assert_near(st_comm_seconds(&r, ranks, 2e6), seconds);
        }
}

static struct st_machine node(bool device_is_host)
{
    return (struct st_machine){.capacity = {.bytes = {80, 800, 8000}, .workers = 16, .device_is_host = device_is_host},
                               .rates = {.matmul_flops = 8,
                                         .block_flops = 16,
                                         .head_flops = 24,
                                         .memory = 32,
                                         .upload = 40,
                                         .download = 48,
                                         .read = 56,
                                         .write = 64,
                                         .mixed = 72,
                                         .update = 80,
                                         .checksum = 88,
                                         .dir_count = 1,
                                         .dir_rates = {96},
                                         .link_nodes = 80}};
}

TEST(a_rank_has_its_part_of_a_node)
{
    struct st_machine m = node(false);

    st_machine_share(&m, 8);
    assert_true(m.capacity.bytes[STRATA_TIER_DEVICE] == 80 && m.capacity.bytes[STRATA_TIER_HOST] == 100 &&
                m.capacity.bytes[STRATA_TIER_NVME] == 1000 && m.capacity.workers == 2);
    assert_true(m.rates.matmul_flops == 8 && m.rates.block_flops == 16 && m.rates.head_flops == 24 && m.rates.memory == 32 &&
                m.rates.upload == 40 && m.rates.download == 48);
    assert_true(m.rates.read == 7 && m.rates.write == 8 && m.rates.mixed == 9 && m.rates.update == 10 && m.rates.checksum == 11 &&
                m.rates.dir_rates[0] == 12);
    assert_true(m.rates.link_node == 40 && m.rates.link_nodes == 80 && m.rates.node_ranks == 8);
    m = node(true); /* cores and memory are the device */
    st_machine_share(&m, 8);
    assert_true(m.capacity.bytes[STRATA_TIER_DEVICE] == 10 && m.capacity.bytes[STRATA_TIER_HOST] == 100);
    assert_true(m.rates.matmul_flops == 1 && m.rates.block_flops == 2 && m.rates.head_flops == 3 && m.rates.upload == 5 &&
                m.rates.download == 6);
    assert_true(m.rates.link_node == 40);
    m = node(false); /* more ranks than cores: each has a worker */
    st_machine_share(&m, 32);
    assert_int_equal(m.capacity.workers, 1);
}

/* Of an exchange and a block; the exchange counts its bytes, not its latency, and on a device that is the host, too. */
TEST(an_exchange_bounds_a_step)
{
    struct st_op ops[] = {{.kind = ST_OP_BLOCK_FORWARD, .lane = STRATA_LANE_COMPUTE, .phases = ST_PHASE_BODY, .page = ST_NO_PAGE},
                          {.lane = STRATA_LANE_COMM, .phases = ST_PHASE_BODY, .page = ST_NO_PAGE, .bytes = 1500},
                          {.lane = STRATA_LANE_COMM, .phases = ST_PHASE_EVAL, .page = ST_NO_PAGE, .bytes = 7}};
    struct st_layer block = {.forward_flops = 30};
    struct st_program program = {.ops = ops, .op_count = 3, .ranks = 16, .workload.layers = &block};
    struct st_machine m = {.rates = links};
    struct st_bounds b;

    m.rates.matmul_flops = 1;
    assert_int_equal(st_program_traffic(&program, ST_PHASE_BODY).comm, 1500);
    assert_int_equal(st_program_traffic(&program, ST_PHASE_EVAL).comm, 7);
    for (int host = 0; host < 2; host++) {
        m.capacity.device_is_host = host;
        st_bounds_make(&b, &program, &m);
        assert_near(b.comm, 80);
        assert_near(b.hardware, 80);
        assert_near(b.schedule, 80);
        assert_string_equal(b.bound_by, "comm");
    }
    program.ranks = 8; /* of one node: 1500 / 450 */
    st_bounds_make(&b, &program, &m);
    assert_near(b.comm, 1500.0 / 450);
    assert_near(b.schedule, 30);
    assert_string_equal(b.bound_by, "compute");
}

TEST(machine_files_have_links)
{
    static const struct {
        const char *text, *problem;
    } rows[] = {
        {"{\"link_node\":450e9,\"link_nodes\":4e11,\"latency_node\":1e-5,\"latency_nodes\":0,\"ranks_per_node\":8}", NULL},
        {"{\"link_node\":0.5}", "link_node must be a number per second"},
        {"{\"link_nodes\":\"fast\"}", "link_nodes must be a number per second"},
        {"{\"latency_node\":1.5}", "latency_node must be a number of seconds, 0 to 1"},
        {"{\"latency_nodes\":-1e-6}", "latency_nodes must be a number of seconds"},
        {"{\"latency_nodes\":null}", "latency_nodes must be a number of seconds"},
        {"{\"handover\":1.1}", "handover must be a number of seconds, 0 to 1"},
        {"{\"latency_io\":-1}", "latency_io must be a number of seconds"},
        {"{\"launch\":\"5us\"}", "launch must be a number of seconds"},
        {"{\"ranks_per_node\":4097}", "ranks_per_node must be a whole number, at most 4096"},
    };
    char path[] = "/tmp/strata-test-links-XXXXXX";
    const int fd = mkstemp(path);

    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const size_t bytes = strlen(rows[i].text);
        struct st_machine m;

        assert_true(ftruncate(fd, 0) == 0 && pwrite(fd, rows[i].text, bytes, 0) == (ssize_t)bytes);
        if (rows[i].problem == NULL) {
            assert_int_equal(st_machine_read(&m, path), STRATA_OK);
            assert_true(m.rates.link_node == 450e9 && m.rates.link_nodes == 4e11 && m.rates.latency_node == 1e-5 &&
                        m.rates.latency_nodes == 0 && m.rates.node_ranks == 8);
            continue;
        }
        assert_int_equal(st_machine_read(&m, path), STRATA_E_INPUT);
        if (strstr(strata_last_error(), rows[i].problem) == NULL)
            fail_msg("%s: %s", rows[i].text, strata_last_error());
    }
    close(fd);
    unlink(path);
}
