/* test_plan_sets - plans of runs that save: what a set holds and where depends on workload and chunk size alone, so that any run
 * of the same model reads another one's; what a save costs. */
#include "offload/simulate/simulate.h"
#include "plan_fixture.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

#define WORKLOADS 50u
#define POLICIES  12u

struct case_of {
    struct st_workload w;
    struct st_policy policy;
    struct st_machine machine;
    char what[64];
};

static void draw_policy(struct case_of *c, struct plan_draws *draws)
{
    plan_random_policy(&c->policy, draws, &c->w);
    c->policy.early = 0; /* a save makes early updates again, beside its own ops */
    c->policy.forward_only = false;
    c->policy.sets = st_sets_of_keep(1 + (uint32_t)plan_draw(draws, 5));
    c->policy.part_bytes = 4096 * (c->w.params % 32);
    c->machine.capacity.device_is_host = plan_draw(draws, 2) == 0;
}

/* Between what the smallest placement needs and much more. */
static void draw_capacities(struct case_of *c, struct plan_draws *draws)
{
    struct st_plan *plan;

    memset(c->machine.capacity.bytes, 0, sizeof(c->machine.capacity.bytes));
    plan = plan_try(&c->w, &c->machine, &c->policy, c->what);
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        c->machine.capacity.bytes[t] = plan->minimum[t] + plan_draw(draws, 16 * c->w.params + 1) / (1 + plan_draw(draws, 16));
    st_plan_destroy(plan);
}

/* --- the layout --- */

static void at(const struct case_of *c, const struct st_plan *plan, uint32_t buffer, enum st_space space, uint64_t *offset,
               uint64_t bytes, const char *thing, uint32_t index)
{
    const struct st_buffer *b = &plan->program.buffers[buffer];

    if (bytes == 0 && buffer == ST_NO_BUFFER)
        return;
    if (buffer == ST_NO_BUFFER || b->tier != STRATA_TIER_NVME || b->space != space || b->offset != *offset ||
        b->bytes != (bytes + 4095) / 4096 * 4096)
        fail_msg("%s: the %s %u lie in buffer %u, and not at %llu of space %u", c->what, thing, index, buffer,
                 (unsigned long long)*offset, (unsigned)space);
    *offset += b->bytes;
}

/* The layout said once more, from the workload and the chunks: trained weights page by page, then states, each at a multiple of
 * 4096; what is frozen in the base, page by page, from the block on that it begins in. */
static void check_layout(const struct case_of *c, const struct st_plan *plan)
{
    const struct st_program *program = &plan->program;
    uint64_t set = 0, base = 0;

    for (uint32_t p = 0; p < c->w.page_count; p++) {
        const struct st_page *page = &program->shards[p];
        const struct st_page_place *place = &program->pages[p];
        const bool frozen = page->trained_bytes < page->bytes;
        const uint64_t base_at = frozen ? page->trained_bytes / 4096 * 4096 : page->bytes;
        uint64_t trained = (page->trained_bytes + 4095) / 4096 * 4096;

        trained = trained < page->bytes ? trained : page->bytes;
        at(c, plan, place->extent, ST_SPACE_SET, &set, trained, "weights of page", p);
        at(c, plan, place->base_extent, ST_SPACE_BASE, &base, page->bytes - base_at, "frozen weights of page", p);
        if (place->home == ST_WHERE_NVME)
            assert_int_equal(place->home_region, trained > 0 ? place->extent : place->base_extent);
        else
            assert_true(place->home_region == ST_NO_BUFFER ||
                        program->buffers[place->home_region].tier == (strata_tier)place->home);
    }
    for (uint32_t i = 0; i < program->chunk_count; i++) {
        const struct st_chunk *chunk = &program->chunks[i];

        at(c, plan, chunk->extent, ST_SPACE_SET, &set, chunk->group == ST_GROUP_FROZEN ? 0 : chunk->bytes, "state of chunk", i);
        if (chunk->state == ST_WHERE_NVME)
            assert_int_equal(chunk->region, chunk->extent);
        else
            assert_true(chunk->region == ST_NO_BUFFER || program->buffers[chunk->region].tier == (strata_tier)chunk->state);
    }
    assert_int_equal(program->space_bytes[ST_SPACE_SET], set);
    assert_int_equal(program->space_bytes[ST_SPACE_BASE], base);
    assert_int_equal(program->needed[STRATA_TIER_NVME], program->space_bytes[ST_SPACE_SCRATCH] + base + plan->policy.sets * set);
}

static void check_scratch(const struct st_plan *plan)
{
    uint64_t scratch = 0;
    bool grads = false;

    for (uint32_t b = 0; b < plan->program.buffer_count; b++)
        if (plan->program.buffers[b].tier == STRATA_TIER_NVME && plan->program.buffers[b].space == ST_SPACE_SCRATCH)
            scratch += plan->program.buffers[b].bytes;
    assert_int_equal(plan->program.space_bytes[ST_SPACE_SCRATCH], scratch);
    for (uint32_t p = 0; p < plan->program.workload.page_count; p++)
        grads = grads || st_page_swaps_grad(&plan->program, p);
    assert_true((scratch > 0) == (plan->program.acts == ST_WHERE_NVME || grads));
}

/* Whatever tiers, budgets, caches, updates and orders of accumulation: with the same chunk size and moments, the same set. */
TEST(the_set_follows_from_workload_and_chunks)
{
    uint32_t planned = 0, partly = 0, in_memory = 0;

    for (uint64_t seed = 1; seed <= WORKLOADS; seed++) {
        struct plan_draws draws = {.seed = seed};
        struct case_of c = {.machine = {.name = "sets", .capacity.workers = 2}};
        uint64_t chunk_elems, spaces[2] = {0};
        enum st_moment_format format;
        uint32_t moments, ranks, rank, stage;

        snprintf(c.what, sizeof(c.what), "seed %u", (unsigned)seed);
        plan_random_training(&c.w, &draws);
        draw_policy(&c, &draws);
        chunk_elems = c.policy.chunk_elems, moments = c.policy.moments, format = c.policy.moment_format;
        ranks = c.policy.ranks, rank = c.policy.rank, stage = c.policy.stage;
        for (uint32_t i = 0; i < POLICIES; i++) {
            struct st_plan *plan;

            draw_policy(&c, &draws);
            c.policy.chunk_elems = chunk_elems, c.policy.moments = moments, c.policy.moment_format = format;
            c.policy.ranks = ranks, c.policy.rank = rank, c.policy.stage = stage;
            draw_capacities(&c, &draws);
            plan = plan_try(&c.w, &c.machine, &c.policy, c.what);
            assert_true(plan->fits);
            if (st_plan_verify(plan) != STRATA_OK)
                fail_msg("%s: %s", c.what, strata_last_error());
            check_layout(&c, plan);
            check_scratch(plan);
            if (i > 0)
                assert_memory_equal(spaces, &plan->program.space_bytes[ST_SPACE_BASE], sizeof(spaces));
            memcpy(spaces, &plan->program.space_bytes[ST_SPACE_BASE], sizeof(spaces));
            planned++;
            in_memory += c.policy.optimizer_tier != STRATA_TIER_NVME && c.policy.param_tier != STRATA_TIER_NVME;
            for (uint32_t p = 0; p < c.w.page_count; p++)
                partly += plan->program.pages[p].extent != ST_NO_BUFFER && plan->program.pages[p].base_extent != ST_NO_BUFFER;
            st_plan_destroy(plan);
        }
        st_workload_fini(&c.w);
    }
    assert_true(planned == WORKLOADS * POLICIES && partly > 0 && in_memory > planned / 10);
}

/* What a checkpoint writes by itself is what lives in memory, and no more than that; without saving there is none. */
static void check_unsaved(const struct st_plan *plan)
{
    const struct st_program *program = &plan->program;
    uint64_t bytes = program->space_bytes[ST_SPACE_SET];

    for (uint32_t p = 0; p < program->workload.page_count; p++)
        if (program->pages[p].home == ST_WHERE_NVME && program->pages[p].extent != ST_NO_BUFFER)
            bytes -= program->buffers[program->pages[p].home_region].bytes;
    for (uint32_t i = 0; i < program->chunk_count; i++)
        if (program->chunks[i].state == ST_WHERE_NVME)
            bytes -= program->chunks[i].bytes;
    assert_int_equal(st_program_unsaved(program), program->sets > 0 ? bytes : 0);
    assert_int_equal(st_program_traffic(program, ST_PHASE_SAVE).write, st_program_unsaved(program));
}

static uint64_t slot_bytes(const struct st_plan *plan)
{
    for (uint32_t i = 0; i < plan->item_count; i++)
        if (strcmp(plan->items[i].name, "checkpoint slots") == 0)
            return plan->items[i].bytes;
    return 0;
}

/* Memory for saving is planned: 8 copies of 4 MiB, and the list of a checkpoint: of each of four planes a row a chunk and a sum a
 * tile. */
static void check_memory(const struct st_plan *saves, const struct st_plan *plain)
{
    assert_true(saves->fixed_bytes - plain->fixed_bytes >=
                (8u << 20) * 4 + 4 * (56ull * plain->program.chunk_count + 8 * plain->program.tile_count));
    assert_int_equal(saves->rss_bytes_max - plain->rss_bytes_max, saves->fixed_bytes - plain->fixed_bytes + slot_bytes(saves));
}

/* The ops of a run that saves are those of one that does not, and those that run in a cycle that saves alone. */
static void check_ops(const struct st_plan *saves, const struct st_plan *plain, const char *what)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < saves->program.op_count; i++) {
        const struct st_op *a = &saves->program.ops[i], *b = &plain->program.ops[n];

        if (a->phases == ST_PHASE_SAVE)
            continue;
        if (n == plain->program.op_count || a->kind != b->kind || a->bytes != b->bytes || a->phases != b->phases)
            fail_msg("%s: op %u (%s) is not op %u of the run that does not save", what, i, st_op_name(a->kind), n);
        n++;
    }
    assert_int_equal(n, plain->program.op_count);
}

/* Whatever is saved: with the same room, the same placement and ops; what the ops beside them write is what lives in memory. */
TEST(saving_adds_its_ops_alone)
{
    uint32_t same = 0, from_device = 0;

    for (uint64_t seed = 1; seed <= WORKLOADS; seed++) {
        struct plan_draws draws = {.seed = seed};
        struct case_of c = {.machine = {.name = "sets", .capacity.workers = 2}};
        struct st_plan *saves, *plain;

        snprintf(c.what, sizeof(c.what), "seed %u", (unsigned)seed);
        plan_random_training(&c.w, &draws);
        draw_policy(&c, &draws);
        draw_capacities(&c, &draws);
        c.machine.capacity.bytes[STRATA_TIER_NVME] = UINT64_MAX;
        saves = plan_try(&c.w, &c.machine, &c.policy, c.what);
        c.policy.sets = 0;
        c.machine.capacity.bytes[STRATA_TIER_HOST] -= slot_bytes(saves);
        plain = plan_try(&c.w, &c.machine, &c.policy, c.what);
        assert_true(saves->fits && plain->fits);
        check_unsaved(saves);
        check_unsaved(plain);
        assert_int_equal(plain->program.space_bytes[ST_SPACE_SCRATCH], plain->program.needed[STRATA_TIER_NVME]);
        from_device += st_program_traffic(&saves->program, ST_PHASE_SAVE).download > 0;
        if (memcmp(&saves->decided, &plain->decided, sizeof(plain->decided)) == 0) {
            same++;
            check_ops(saves, plain, c.what);
            check_memory(saves, plain);
            assert_int_equal(saves->program.needed[STRATA_TIER_DEVICE], plain->program.needed[STRATA_TIER_DEVICE]);
            assert_int_equal(saves->program.needed[STRATA_TIER_HOST],
                             plain->program.needed[STRATA_TIER_HOST] + slot_bytes(saves));
        }
        st_plan_destroy(saves);
        st_plan_destroy(plain);
        st_workload_fini(&c.w);
    }
    print_message("%u of %u placed alike, %u save from the device\n", same, WORKLOADS, from_device);
    assert_true(same > WORKLOADS * 9 / 10 && from_device > WORKLOADS / 10);
}

/* --- what a save costs --- */

static void draw_rates(struct st_machine *machine, struct plan_draws *draws)
{
    struct st_rates *r = &machine->rates;

    *r = (struct st_rates){.matmul_flops = 1e9, .checksum = 1e10};
    r->update = 1e6 * (double)(1 + plan_draw(draws, 1000));
    r->upload = r->download = 1e7 * (double)(1 + plan_draw(draws, 1000));
    r->read = r->write = 1e6 * (double)(1 + plan_draw(draws, 1000));
    r->mixed = r->read * (1 + (double)plan_draw(draws, 2) / 2);
}

static double seconds_of(const struct st_plan *plan, const struct st_machine *machine)
{
    struct st_simulation sim;

    assert_int_equal(st_simulate(&sim, &plan->program, machine), STRATA_OK);
    return sim.seconds;
}

/* A step that saves takes no longer than its own bytes do one after the other, and the others about as long as without saving. */
TEST(a_save_costs_its_bytes_at_most)
{
    uint32_t free_of_cost = 0, costly = 0;

    for (uint64_t seed = 1; seed <= WORKLOADS; seed++) {
        struct plan_draws draws = {.seed = seed};
        struct case_of c = {.machine = {.name = "sets", .capacity.workers = 2}};
        struct st_plan *saves, *plain;
        struct st_traffic t;
        double save, most, with, without;

        snprintf(c.what, sizeof(c.what), "seed %u", (unsigned)seed);
        plan_random_training(&c.w, &draws);
        draw_policy(&c, &draws);
        c.policy.ranks = 1; /* what ranks exchange is no cost of a save */
        draw_capacities(&c, &draws);
        draw_rates(&c.machine, &draws);
        saves = plan_try(&c.w, &c.machine, &c.policy, c.what);
        c.policy.sets = 0;
        c.machine.capacity.bytes[STRATA_TIER_HOST] -= slot_bytes(saves);
        plain = plan_try(&c.w, &c.machine, &c.policy, c.what);
        t = st_program_traffic(&saves->program, ST_PHASE_SAVE);
        assert_int_equal(st_simulate_save(&save, &saves->program, &c.machine), STRATA_OK);
        most = (double)t.write * (1 / c.machine.rates.write + 1 / c.machine.rates.mixed) +
               (double)t.download * (1 / c.machine.rates.download + 1 / c.machine.rates.checksum);
        with = seconds_of(saves, &c.machine), without = seconds_of(plain, &c.machine);
        if (save > most * (1 + 1e-6) + 1e-9)
            fail_msg("%s: a save takes %g s more, its bytes %g", c.what, save, most);
        if (with > without * 1.1) /* the memory that saving takes may make another plan the nominal machine's */
            fail_msg("%s: a step takes %g s, without saving %g", c.what, with, without);
        free_of_cost += save < most / 100;
        costly += save > most / 4;
        st_plan_destroy(saves);
        st_plan_destroy(plain);
        st_workload_fini(&c.w);
    }
    print_message("of %u saves %u cost nothing, %u much\n", WORKLOADS, free_of_cost, costly);
    assert_true(free_of_cost > WORKLOADS / 10 && costly > WORKLOADS / 10);
}

/* What comes down from the device is hashed by the host. */
TEST(a_save_costs_its_checksums)
{
    struct st_machine machine = {.name = "hashes", .capacity = {.bytes = {1u << 24, 1u << 24, 1u << 30}, .workers = 1}};
    const struct st_policy policy = {.activation_tier = STRATA_TIER_DEVICE, .update = ST_UPDATE_GATED, .sets = 4};

    machine.rates = (struct st_rates){.matmul_flops = 1e9,
                                      .checksum = 1e3,
                                      .update = 1e9,
                                      .upload = 1e9,
                                      .download = 1e9,
                                      .read = 1e9,
                                      .write = 1e9,
                                      .mixed = 1e9};
    for (uint32_t i = 0; i < 2; i++) {
        struct st_plan *plan;
        double save, hashes;

        machine.capacity.device_is_host = i == 1;
        plan = plan_of(&plan_small, &machine, &policy, "hashes");
        assert_true(plan->fits);
        hashes = (double)st_program_traffic(&plan->program, ST_PHASE_SAVE).download / machine.rates.checksum;
        assert_int_equal(st_simulate_save(&save, &plan->program, &machine), STRATA_OK);
        assert_true(hashes > 1 && save > hashes - seconds_of(plan, &machine) && save < hashes * 1.01);
        st_plan_destroy(plan);
    }
}
