/* test_simulate - the clock against times worked out by hand: programs of a few ops.  Also simulate_plans. */
#include "simulate_fixture.h"
#include "tests/common/test.h"

#define OPS_MAX 8u

/* --- programs by hand --- */

struct hand {
    struct st_program program;
    struct st_layer block; /* its only layer */
    struct st_op ops[OPS_MAX];
    struct st_wait waits[OPS_MAX];
};

static uint32_t add_op(struct hand *h, enum st_op_kind kind, enum strata_lane lane, uint64_t bytes)
{
    h->ops[h->program.op_count] = (struct st_op){.kind = (uint8_t)kind,
                                                 .lane = (uint8_t)lane,
                                                 .phases = ST_PHASE_PROLOGUE | ST_PHASE_BODY,
                                                 .page = ST_NO_PAGE,
                                                 .wait_first = h->program.wait_count,
                                                 .bytes = bytes};
    h->program.ops = h->ops;
    h->program.waits = h->waits;
    h->program.workload.layers = &h->block;
    h->program.workload.layer_count = 1;
    return h->program.op_count++;
}

/* For the op added last. */
static void add_wait(struct hand *h, uint32_t op, bool previous)
{
    h->waits[h->program.wait_count++] = (struct st_wait){.op = op, .previous = previous};
    h->ops[h->program.op_count - 1].wait_count++;
}

/* While both queues have work each moves at half the mixed rate, but never faster than alone. */
TEST(reads_and_writes_share_the_disk)
{
    struct st_machine m = {.capacity.device_is_host = true, .rates.read = 100, .rates.write = 50, .rates.mixed = 80};
    struct hand h = {0};
    struct st_simulation sim;

    add_op(&h, ST_OP_READ_STATE, STRATA_LANE_READ_STATE, 100);
    add_op(&h, ST_OP_WRITE_STATE, STRATA_LANE_WRITE, 100);
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 2.5); /* both at 40 */
    assert_near(sim.busy[STRATA_LANE_READ_STATE], 2.5);
    assert_near(sim.busy[STRATA_LANE_WRITE], 2.5);
    m.rates.mixed = 160; /* the write at its own 50: 2 s; the read is through after 1.25 s, at 80 */
    assert_near(simulate(&h.program, &m).seconds, 2);
    m.rates.mixed = 0;
    assert_near(simulate(&h.program, &m).seconds, 2);
    assert_near(simulate(&h.program, &m).busy[STRATA_LANE_READ_STATE], 1);
}

TEST(one_after_the_other)
{
    const struct st_machine m = {.capacity.device_is_host = true, .rates.read = 100, .rates.write = 50, .rates.mixed = 80};
    struct hand h = {0};
    struct st_simulation sim;

    add_op(&h, ST_OP_READ_STATE, STRATA_LANE_READ_STATE, 100);
    add_wait(&h, 1, true);
    add_op(&h, ST_OP_WRITE_STATE, STRATA_LANE_WRITE, 100);
    add_wait(&h, 0, false);
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 3); /* 1 s alone, 2 s alone */
    assert_near(sim.busy[STRATA_LANE_READ_STATE], 1);
    assert_near(sim.busy[STRATA_LANE_WRITE], 2);
}

/* Reads of all lanes are one queue in order of issue: the short one waits behind the long one. */
TEST(read_lanes_share_one_queue)
{
    const struct st_machine m = {
        .capacity.device_is_host = true, .rates.read = 100, .rates.write = 50, .rates.mixed = 80, .rates.upload = 100};
    struct hand h = {0};
    struct st_simulation sim;

    add_op(&h, ST_OP_READ_STATE, STRATA_LANE_READ_STATE, 300);
    add_wait(&h, 2, true);
    add_op(&h, ST_OP_READ_WEIGHT, STRATA_LANE_READ_WEIGHT, 100);
    add_wait(&h, 2, true);
    add_op(&h, ST_OP_UPLOAD_TOKENS, STRATA_LANE_UPLOAD, 200);
    add_wait(&h, 1, false);
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 6);
    assert_near(sim.stall[STRATA_LANE_READ_WEIGHT], 4);
    assert_int_equal(sim.stalled_by, STRATA_LANE_READ_WEIGHT);
    assert_near(sim.busy[STRATA_LANE_READ_STATE], 3);
    assert_near(sim.busy[STRATA_LANE_READ_WEIGHT], 1);
}

/* An upload of 2 s, and two blocks of 3 s that need it, before the next step's upload may begin. */
TEST(a_hand_over_comes_between_lanes_alone)
{
    struct st_machine m = {.rates.upload = 100, .rates.matmul_flops = 10, .rates.handover = 0.5};
    struct hand h = {0};
    struct st_simulation sim;

    h.block.forward_flops = 30;
    add_op(&h, ST_OP_UPLOAD_TOKENS, STRATA_LANE_UPLOAD, 200);
    add_wait(&h, 2, true);
    add_op(&h, ST_OP_BLOCK_FORWARD, STRATA_LANE_COMPUTE, 0);
    add_wait(&h, 0, false);
    add_op(&h, ST_OP_BLOCK_FORWARD, STRATA_LANE_COMPUTE, 0);
    add_wait(&h, 1, false); /* its queue has it already */
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 9);
    assert_near(sim.busy[STRATA_LANE_UPLOAD], 2);
    assert_near(sim.busy[STRATA_LANE_COMPUTE], 6);
    assert_near(sim.stall[STRATA_LANE_UPLOAD] + sim.stall[STRATA_LANE_COMPUTE],
                3);        /* the second is until the last block's notice */
    m.rates.launch = 0.25; /* of each op on a queue */
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 9.75);
    assert_near(sim.busy[STRATA_LANE_UPLOAD], 2.25);
    m.capacity.device_is_host = true; /* who waits runs the ops */
    assert_near(simulate(&h.program, &m).seconds, 8);
}

/* The host's updates end a step, so their notice does. */
TEST(a_step_ends_when_its_updates_are_known_to_have)
{
    struct st_machine m = {.rates.update = 10, .rates.handover = 0.5, .rates.launch = 4};
    struct st_chunk chunk = {.elems = 20, .state = ST_WHERE_HOST};
    struct st_page_place page = {.home = ST_WHERE_HOST};
    struct hand h = {.program = {.chunks = &chunk, .pages = &page}};

    add_op(&h, ST_OP_UPDATE, STRATA_LANE_UPDATE, 0);
    assert_near(simulate(&h.program, &m).seconds, 2.5); /* nothing is launched */
}

/* Two reads, whose latencies pass together, and an upload that needs the second. */
TEST(latencies_of_transfers_pass_beside_one_another)
{
    struct st_machine m = {.rates.read = 100, .rates.write = 100, .rates.upload = 100, .rates.latency_io = 0.5};
    struct hand h = {0};

    add_op(&h, ST_OP_READ_STATE, STRATA_LANE_READ_STATE, 100);
    add_wait(&h, 2, true);
    add_op(&h, ST_OP_READ_STATE, STRATA_LANE_READ_STATE, 100);
    add_wait(&h, 2, true);
    add_op(&h, ST_OP_UPLOAD_TOKENS, STRATA_LANE_UPLOAD, 100);
    add_wait(&h, 1, false);
    assert_near(simulate(&h.program, &m).seconds, 3.5);
    m.capacity.device_is_host = true;
    assert_near(simulate(&h.program, &m).seconds, 3.5);
    m.rates.handover = 0.25; /* a transfer's is part of its latency */
    assert_near(simulate(&h.program, &m).seconds, 3.5);
    m.capacity.device_is_host = false;
    assert_near(simulate(&h.program, &m).seconds, 3.75);
}

/* An upload of 2 s and a block of 3 s that needs it. */
TEST(lanes_overlap_where_nothing_is_reused)
{
    struct st_machine m = {.capacity.device_is_host = false, .rates.upload = 100, .rates.matmul_flops = 10};
    struct hand h = {0};
    struct st_simulation sim;

    h.block.forward_flops = 30;
    add_op(&h, ST_OP_UPLOAD_TOKENS, STRATA_LANE_UPLOAD, 200);
    add_op(&h, ST_OP_BLOCK_FORWARD, STRATA_LANE_COMPUTE, 0);
    add_wait(&h, 0, false);
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 3);
    assert_int_equal(sim.stalled_by, STRATA_LANE_COUNT);
    m.capacity.device_is_host = true; /* one executor */
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 5);
    assert_near(sim.busy[STRATA_LANE_UPLOAD], 2);
    assert_near(sim.busy[STRATA_LANE_COMPUTE], 3);
    m.rates.block_flops = 5; /* goes before matmul_flops */
    assert_near(simulate(&h.program, &m).seconds, 8);
}

TEST(a_reused_buffer_stalls_compute)
{
    const struct st_machine m = {.capacity.device_is_host = false, .rates.upload = 100, .rates.matmul_flops = 10};
    struct hand h = {0};
    struct st_simulation sim;

    h.block.forward_flops = 30;
    add_op(&h, ST_OP_UPLOAD_TOKENS, STRATA_LANE_UPLOAD, 200);
    add_wait(&h, 1, true);
    add_op(&h, ST_OP_BLOCK_FORWARD, STRATA_LANE_COMPUTE, 0);
    add_wait(&h, 0, false);
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 5);
    assert_near(sim.stall[STRATA_LANE_UPLOAD], 2);
    assert_int_equal(sim.stalled_by, STRATA_LANE_UPLOAD);
}

/* A read of 1 s, 2 s to check what it brought, an upload of 1 s; one slot. */
TEST(what_was_read_is_checked_first)
{
    struct st_machine m = {.capacity.device_is_host = false, .rates.upload = 100, .rates.read = 100, .rates.checksum = 100};
    struct st_page page = {.elems = 50, .bytes = 200};
    struct st_access accesses[3] = {
        {.buffer = 0, .role = ST_ROLE_FROM}, {.buffer = 1, .role = ST_ROLE_TO}, {.buffer = 1, .role = ST_ROLE_FROM}};
    struct hand h = {0};
    struct st_simulation sim;

    h.program.workload.pages = &page;
    h.program.workload.dtype = STRATA_F32;
    h.program.accesses = accesses;
    h.ops[add_op(&h, ST_OP_READ_WEIGHT, STRATA_LANE_READ_WEIGHT, 100)].access_count = 2;
    add_wait(&h, 1, true);
    add_op(&h, ST_OP_UPLOAD_WEIGHT, STRATA_LANE_UPLOAD, 100);
    add_wait(&h, 0, false);
    h.ops[1].page = 0;
    h.ops[1].access_first = 2;
    h.ops[1].access_count = 1;
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 4);
    assert_near(sim.busy[STRATA_LANE_UPDATE], 2); /* the host's threads */
    assert_near(sim.busy[STRATA_LANE_UPLOAD], 1);
    m.capacity.device_is_host = true;
    sim = simulate(&h.program, &m);
    assert_near(sim.seconds, 4);
    assert_near(sim.busy[STRATA_LANE_UPLOAD], 3); /* with the check */
}

/* A masked op takes no time and still keeps the order. */
TEST(masked_ops_only_wait)
{
    const struct st_machine m = {
        .capacity.device_is_host = true, .rates.upload = 100, .rates.read = 100, .rates.matmul_flops = 10};
    struct hand h = {0};

    h.block.forward_flops = 30;
    add_op(&h, ST_OP_READ_STATE, STRATA_LANE_READ_STATE, 100);
    add_wait(&h, 2, true);
    add_op(&h, ST_OP_UPLOAD_TOKENS, STRATA_LANE_UPLOAD, 200);
    h.ops[1].phases = ST_PHASE_EVAL;
    add_wait(&h, 0, false);
    add_op(&h, ST_OP_BLOCK_FORWARD, STRATA_LANE_COMPUTE, 0);
    add_wait(&h, 1, false);
    assert_near(simulate(&h.program, &m).seconds, 4); /* read, then the block */
}

/* Exchanges run one after the other beside everything else, on a device that is the host, too; each costs its bytes and a
 * latency. */
TEST(exchanges_are_a_lane_of_their_own)
{
    struct st_machine m = {
        .capacity.device_is_host = true, .rates.matmul_flops = 10, .rates.link_node = 100, .rates.latency_node = 0.5};
    struct hand h = {0};
    struct st_simulation sim;

    h.program.ranks = 4;
    h.block.forward_flops = 30;
    add_op(&h, 0, STRATA_LANE_COMM, 150);
    add_wait(&h, 1, true);
    add_op(&h, ST_OP_BLOCK_FORWARD, STRATA_LANE_COMPUTE, 0);
    add_op(&h, 0, STRATA_LANE_COMM, 100);
    add_wait(&h, 1, true);
    for (int host = 0; host < 2; host++) {
        m.capacity.device_is_host = host;
        sim = simulate(&h.program, &m);
        assert_near(sim.busy[STRATA_LANE_COMM], 3.5); /* 1.5 + 1, twice 0.5 */
        assert_near(sim.busy[STRATA_LANE_COMPUTE], 3);
        assert_near(sim.seconds, 3.5);
    }
    m.rates.link_node = 0; /* as fast as the link to the device; not known either: only the latency */
    m.rates.upload = 50;
    assert_near(simulate(&h.program, &m).busy[STRATA_LANE_COMM], 6);
    m.rates.upload = 0;
    assert_near(simulate(&h.program, &m).busy[STRATA_LANE_COMM], 1);
}

/* A block that needs what an exchange brings waits for it, and the stall is the comm lane's. */
TEST(compute_waits_for_an_exchange)
{
    struct st_machine m = {.rates.matmul_flops = 10, .rates.link_node = 100};
    struct hand h = {0};
    struct st_simulation sim;

    h.program.ranks = 2;
    h.block.forward_flops = 30;
    add_op(&h, 0, STRATA_LANE_COMM, 200);
    add_wait(&h, 1, true);
    add_op(&h, ST_OP_BLOCK_FORWARD, STRATA_LANE_COMPUTE, 0);
    add_wait(&h, 0, false);
    for (int host = 0; host < 2; host++) {
        m.capacity.device_is_host = host;
        sim = simulate(&h.program, &m);
        assert_near(sim.seconds, 5);
        assert_near(sim.stall[STRATA_LANE_COMM], 2);
        assert_int_equal(sim.stalled_by, STRATA_LANE_COMM);
    }
}
