/* test_plan_random - what every plan must be, over random workloads, machines and policies: 1500 cases, or as many as the first
 * argument says, from the seed that the second says.  A failure names its seed: `test_offload_plan_random 1 SEED` replays it.
 *
 * More memory: with the same slots, kept blocks, activation tier and device accumulators, more capacity of any tier never moves
 * more NVMe bytes, nor, with as many, more link bytes: the placement is the least of all that fit, and more fit.  Between plans
 * of different capacities that does not hold, since more memory may be spent on slots that shorten the step rather than on
 * state. */
#include "offload/plan/plan_internal.h"
#include "offload/simulate/bounds.h"
#include "offload/simulate/simulate.h"
#include "plan_fixture.h"
#include "program_roles.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t first_seed = 1, case_count = 125;

struct random_case {
    struct st_workload w;
    struct st_policy policy;
    struct st_machine machine;
    char what[64];
};

/* Capacities between what the smallest placement needs and what everything on that tier takes. */
static void tighten(struct random_case *c, struct plan_draws *draws)
{
    struct st_plan *plan = plan_try(&c->w, &c->machine, &c->policy, c->what);

    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        c->machine.capacity.bytes[t] = plan->minimum[t] + plan_draw(draws, 16 * c->w.params + 1) / (1 + plan_draw(draws, 16));
    st_plan_destroy(plan);
}

static void make_case(struct random_case *c, struct plan_draws *draws)
{
    *c = (struct random_case){.machine = {.name = "random", .capacity.workers = 2}};
    snprintf(c->what, sizeof(c->what), "seed %llu", (unsigned long long)draws->seed);
    if (draws->seed % 4 == 0)
        plan_random_layers(&c->w, draws);
    else
        plan_random_workload(&c->w, draws, false);
    plan_random_policy(&c->policy, draws, &c->w);
    if (plan_shares(&c->w) && c->w.grad_accum > 1)
        c->policy.accumulation = ST_ACCUMULATE_AUTO;
    c->machine.capacity.device_is_host = plan_draw(draws, 2) == 0;
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        c->machine.capacity.bytes[t] = (1ull << (20 + plan_draw(draws, 15))) + plan_draw(draws, 1u << 20);
    if (plan_draw(draws, 2) == 0)
        tighten(c, draws);
}

/* --- one plan --- */

static void check(bool holds, const struct random_case *c, const char *rule)
{
    if (!holds)
        fail_msg("%s: %s", c->what, rule);
}

static void check_memory(const struct st_plan *plan, const struct random_case *c)
{
    uint64_t sum[STRATA_TIER_COUNT] = {0}, spaces[ST_SPACE_COUNT] = {0}, items[STRATA_TIER_COUNT] = {0}, sized[STRATA_TIER_COUNT],
             rss;

    for (uint32_t b = 0; b < plan->program.buffer_count; b++) {
        const struct st_buffer *buffer = &plan->program.buffers[b];

        sum[buffer->tier] += buffer->bytes * (buffer->space == ST_SPACE_SET ? plan->program.sets : 1);
        spaces[buffer->space] += buffer->tier == STRATA_TIER_NVME ? buffer->bytes : 0;
    }
    check(memcmp(spaces, plan->program.space_bytes, sizeof(spaces)) == 0, c, "spaces are not the sums of their buffers");
    check(plan->program.sets == (plan->policy.forward_only ? 0 : c->policy.sets), c, "sets");
    for (uint32_t i = 0; i < plan->item_count; i++)
        items[plan->items[i].tier] += plan->items[i].bytes;
    st_plan_size(plan, sized);
    for (int t = 0; t < STRATA_TIER_COUNT; t++) {
        check(plan->program.needed[t] <= c->machine.capacity.bytes[t], c, "over capacity");
        check(plan->program.needed[t] == sum[t], c, "needed is not the sum of the buffers");
        check(plan->program.needed[t] == items[t], c, "needed is not the sum of the table's rows");
        check(plan->program.needed[t] == sized[t], c, "built and sized differ");
    }
    rss = plan->program.needed[STRATA_TIER_HOST] + plan->fixed_bytes;
    if (c->machine.capacity.device_is_host)
        rss += plan->program.needed[STRATA_TIER_DEVICE];
    check(plan->rss_bytes_max == rss, c, "rss_bytes_max");
    check(plan->fixed_bytes >= plan->program.tile_count * 32 + (c->policy.fixed_bytes > 0 ? c->policy.fixed_bytes : 1), c,
          "fixed_bytes");
}

static void check_traffic(const struct st_plan *plan, const struct random_case *c)
{
    for (uint32_t phase = 0; phase < ST_PHASE_COUNT; phase++) {
        struct st_traffic t = {0}, planned;

        for (uint32_t i = 0; i < plan->program.op_count; i++) {
            const struct st_op *op = &plan->program.ops[i];

            if ((op->phases & (1u << phase)) == 0)
                continue;
            t.upload += op->lane == STRATA_LANE_UPLOAD ? op->bytes : 0;
            t.download += op->lane == STRATA_LANE_DOWNLOAD ? op->bytes : 0;
            t.write += op->lane == STRATA_LANE_WRITE ? op->bytes : 0;
            t.comm += op->lane == STRATA_LANE_COMM ? op->bytes : 0;
            if (op->lane == STRATA_LANE_READ_STATE || op->lane == STRATA_LANE_READ_WEIGHT ||
                op->lane == STRATA_LANE_READ_ACTIVATION)
                t.read += op->bytes;
        }
        planned = st_program_traffic(&plan->program, (enum st_phase)(1u << phase));
        check(memcmp(&t, &planned, sizeof(t)) == 0, c, "traffic is not the sum over the ops");
    }
}

static strata_tier configured(const struct st_plan *plan, const struct st_chunk *chunk)
{
    const bool none = plan->policy.forward_only || chunk->group == ST_GROUP_FROZEN;

    return none ? STRATA_TIER_COUNT : plan->policy.optimizer_tier;
}

/* Nothing below its configured tier; with a limited cache, no more above it than the limit; with none, nothing. */
static void check_tiers(const struct st_plan *plan, const struct random_case *c)
{
    uint64_t above = 0;

    for (uint32_t p = 0; p < plan->program.workload.page_count; p++) {
        const struct st_page_place *place = &plan->program.pages[p];
        const bool stays = p < st_workload_stay(&plan->program.workload), on_host = place->home == ST_WHERE_HOST;
        const bool copy = place->weights == ST_WHERE_DEVICE && plan->policy.param_tier != STRATA_TIER_DEVICE && !stays;

        check(place->home <= (enum st_where)plan->policy.param_tier || place->home == ST_WHERE_HOST, c, "weights lie too low");
        if (copy || (plan->policy.param_tier == STRATA_TIER_NVME && (stays ? on_host : place->home != ST_WHERE_NVME)))
            above += (copy ? plan->program.workload.pages : plan->program.shards)[p].bytes;
    }
    for (uint32_t i = 0; i < plan->program.chunk_count; i++) {
        const strata_tier most = configured(plan, &plan->program.chunks[i]);
        const enum st_where where = plan->program.chunks[i].state;

        check(most == STRATA_TIER_COUNT ? where == ST_WHERE_NONE : where <= (enum st_where)most, c, "state lies too low");
        above += where < (enum st_where)most && most != STRATA_TIER_COUNT ? plan->program.chunks[i].bytes : 0;
    }
    check(plan->policy.cache == ST_AUTO_BYTES || above <= plan->policy.cache, c, "more above its tier than the cache limit");
    check(above == st_plan_promoted(plan), c, "what lies above its tier");
}

static void check_moved(const struct st_plan *plan, const struct random_case *c)
{
    const struct st_traffic t = st_program_traffic(&plan->program, plan->policy.forward_only ? ST_PHASE_EVAL : ST_PHASE_BODY);
    struct st_traffic sum;
    struct st_moved moved;

    st_plan_moved(&moved, plan);
    sum = st_moved_sum(&moved);
    check(sum.read <= t.read && sum.write <= t.write && sum.upload <= t.upload && sum.download <= t.download, c,
          "closed form over the program");
    check(plan->decided.activation_tier == STRATA_TIER_NVME || (sum.read == t.read && sum.write == t.write), c,
          "closed form of NVMe bytes");
}

/* A step takes no less than its bound. */
static void check_clock(const struct st_plan *plan, const struct random_case *c)
{
    struct st_machine m = c->machine;
    struct st_simulation sim;
    struct st_bounds bounds;

    m.rates.matmul_flops = m.rates.upload = m.rates.download = m.rates.update = 1e9;
    m.rates.read = m.rates.write = m.rates.mixed = m.rates.checksum = m.rates.link_node = 1e9;
    st_bounds_make(&bounds, &plan->program, &m);
    if (st_simulate(&sim, &plan->program, &m) != STRATA_OK)
        fail_msg("%s: %s", c->what, strata_last_error());
    check(sim.seconds >= bounds.schedule * (1 - 1e-9) && sim.seconds >= bounds.hardware * (1 - 1e-9), c, "faster than its bound");
}

static void check_plan(const struct st_plan *plan, const struct random_case *c)
{
    check_clock(plan, c);
    check_memory(plan, c);
    check_traffic(plan, c);
    check_tiers(plan, c);
    check_moved(plan, c);
    program_roles_check(plan, c->what);
    if (st_plan_verify(plan) != STRATA_OK)
        fail_msg("%s: %s", c->what, strata_last_error());
}

/* A refusal names a tier that lacks, and with what it says is needed there is a plan. */
static void check_refusal(const struct st_plan *plan, const struct random_case *c)
{
    static const char *const words[STRATA_TIER_COUNT] = {"device needs", "host needs", "nvme needs"};
    const char *said = strata_last_error();
    struct random_case enough = *c;
    struct st_plan *smallest;
    bool named = false;

    for (int t = 0; t < STRATA_TIER_COUNT; t++) {
        named = named || (strstr(said, words[t]) != NULL && plan->program.needed[t] > c->machine.capacity.bytes[t]);
        enough.machine.capacity.bytes[t] = plan->program.needed[t];
    }
    check(named, c, "the refusal names no tier that lacks");
    smallest = plan_try(&enough.w, &enough.machine, &enough.policy, enough.what);
    check(smallest->fits, c, "does not fit in what it needs");
    check_plan(smallest, &enough);
    st_plan_destroy(smallest);
}

TEST(random_plans_are_sound)
{
    uint64_t planned = 0, refused = 0;

    for (uint64_t seed = first_seed; seed < first_seed + case_count; seed++) {
        struct plan_draws draws = {.seed = seed};
        struct random_case c;
        struct st_plan *plan;

        make_case(&c, &draws);
        plan = plan_try(&c.w, &c.machine, &c.policy, c.what);
        if (plan->fits)
            check_plan(plan, &c);
        else
            check_refusal(plan, &c);
        planned += plan->fits;
        refused += !plan->fits;
        st_plan_destroy(plan);
        st_workload_fini(&c.w);
    }
    print_message("%u planned, %u refused and then planned with what they asked for\n", (unsigned)planned, (unsigned)refused);
    assert_true(case_count < 100 || (planned > case_count / 10 && refused > case_count / 10));
}

TEST_MAIN(argc, argv)
{
    case_count = argc > 1 ? strtoull(argv[1], NULL, 10) : case_count;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    return test_run(NULL, NULL);
}
