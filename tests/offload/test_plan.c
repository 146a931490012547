/* test_plan - the plan of given cases: equal input gives equal plans, rates decide nothing, extremes plan; how state is laid
 * out. */
#include "plan_fixture.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include "offload/plan/plan_internal.h"
#include "offload/simulate/bounds.h"

#include <stdio.h>
#include <string.h>

static const struct plan_sizes small_sizes = {.dtype = STRATA_BF16,
                                              .blocks = 8,
                                              .hidden = 256,
                                              .vocab = 4000,
                                              .slice_rows = 1024,
                                              .seq = 64,
                                              .micro_batch = 2,
                                              .grad_accum = 3,
                                              .positions = true,
                                              .tied = true};
static const struct st_policy nvme_gated = {.param_tier = STRATA_TIER_NVME,
                                            .optimizer_tier = STRATA_TIER_NVME,
                                            .activation_tier = STRATA_TIER_COUNT,
                                            .update = ST_UPDATE_GATED,
                                            .cache = ST_AUTO_BYTES,
                                            .chunk_elems = 65536};

/* A machine with what the smallest placement needs and a part of what everything takes. */
static struct st_machine tight(const struct plan_sizes *sizes, const struct st_policy *policy, uint64_t spare)
{
    struct st_machine machine = {.name = "tight", .capacity = {.bytes = {0, 0, 1ull << 40}, .workers = 2}};
    struct st_plan *plan = plan_of(sizes, &machine, policy, "given");

    assert_false(plan->fits);
    machine.capacity.bytes[STRATA_TIER_DEVICE] = plan->minimum[STRATA_TIER_DEVICE] + spare;
    machine.capacity.bytes[STRATA_TIER_HOST] = plan->minimum[STRATA_TIER_HOST] + spare;
    st_plan_destroy(plan);
    return machine;
}

static void assert_equal_programs(const struct st_program *a, const struct st_program *b)
{
    assert_int_equal(a->op_count, b->op_count);
    for (uint32_t i = 0; i < a->op_count; i++)
        assert_true(a->ops[i].kind == b->ops[i].kind && a->ops[i].bytes == b->ops[i].bytes &&
                    a->ops[i].phases == b->ops[i].phases);
    assert_int_equal(a->wait_count, b->wait_count);
    for (uint32_t i = 0; i < a->wait_count; i++)
        assert_true(a->waits[i].op == b->waits[i].op && a->waits[i].previous == b->waits[i].previous);
    assert_int_equal(a->buffer_count, b->buffer_count);
    for (uint32_t i = 0; i < a->buffer_count; i++)
        assert_true(a->buffers[i].tier == b->buffers[i].tier && a->buffers[i].offset == b->buffers[i].offset);
}

TEST(rates_decide_nothing)
{
    for (uint64_t spare = 0; spare < 8; spare++) {
        struct st_machine machine = tight(&small_sizes, &nvme_gated, spare << 20);
        struct st_plan *plain = plan_of(&small_sizes, &machine, &nvme_gated, "given"), *rated;
        struct st_bounds bounds;

        machine.rates.matmul_flops = 1e12 * (double)(1 + spare);
        machine.rates.block_flops = 1e11;
        machine.rates.upload = machine.rates.download = machine.rates.checksum = 3e9;
        machine.rates.read = machine.rates.write = machine.rates.mixed = 1e9;
        machine.rates.update = 1e8;
        rated = plan_of(&small_sizes, &machine, &nvme_gated, "given");
        assert_equal_programs(&plain->program, &rated->program);
        st_bounds_make(&bounds, &rated->program, &machine);
        assert_true(bounds.schedule > 0 && bounds.schedule >= bounds.hardware);
        st_plan_destroy(plain);
        st_plan_destroy(rated);
    }
}

TEST(with_all_memory_nothing_moves)
{
    const struct st_machine machine = {.name = "ample",
                                       .capacity = {.bytes = {1ull << 34, 1ull << 34, 1ull << 40}, .workers = 2}};
    struct st_plan *plan = plan_of(&small_sizes, &machine, &nvme_gated, "given");

    assert_int_equal(plan_steady(plan).read + plan_steady(plan).write, 0);
    assert_int_equal(plan->decided.kept_blocks, small_sizes.blocks);
    assert_int_equal(plan->program.needed[STRATA_TIER_NVME], 0);
    assert_int_equal(plan->decided.slots.states, 0); /* nothing to read ahead */
    st_plan_destroy(plan);
}

/* One block, one slice; pages of the least size; a micro-batch whose activations dwarf the weights. */
TEST(extremes_plan)
{
    struct plan_sizes sizes[4];

    for (size_t i = 0; i < 4; i++)
        sizes[i] = small_sizes;
    sizes[0].blocks = 1;
    sizes[0].slice_rows = sizes[0].vocab;
    sizes[1].hidden = 8;
    sizes[1].block_params = 16;
    sizes[1].slice_rows = 1;
    sizes[1].vocab = 3;
    sizes[2].micro_batch = 1u << 16;
    sizes[3].grad_accum = 64;
    for (size_t i = 0; i < 4; i++)
        for (int order = 0; order < 2; order++)
            for (uint64_t spare = 0; spare < 3; spare++) {
                struct st_policy policy = nvme_gated;
                struct st_machine machine;
                struct st_plan *plan;

                policy.accumulation = order == 0 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL;
                machine = tight(&sizes[i], &policy, spare * spare << 20);
                plan = plan_of(&sizes[i], &machine, &policy, "given");
                assert_true(plan->fits);
                assert_int_equal(st_plan_verify(plan), STRATA_OK);
                st_plan_destroy(plan);
            }
}

/* Bytes that the sums of all trained pages take in host memory, and that the largest takes on the device. */
static void sums_of(const struct plan_sizes *sizes, uint64_t *all, uint64_t *largest)
{
    struct st_workload w;

    plan_workload(&w, sizes, NULL);
    *all = *largest = 0;
    for (uint32_t p = 0; p < w.page_count; p++) {
        const uint64_t bytes = w.pages[p].trained_elems * sizeof(float), at = (bytes + 255) / 256 * 256;

        *all += (bytes + 4095) / 4096 * 4096;
        *largest = at > *largest ? at : *largest;
    }
    st_workload_fini(&w);
}

/* Leaves are of equal size, so that their number divides the micro-batches'. */
TEST(leaves_divide_the_micro_batches)
{
    struct plan_sizes sizes = small_sizes;
    struct st_workload w;

    sizes.grad_accum = 6;
    plan_workload(&w, &sizes, NULL);
    for (uint32_t leaves = 1; leaves <= 12; leaves++) {
        const struct st_capacity capacity = {.bytes = {UINT64_C(1) << 40, UINT64_C(1) << 40, UINT64_C(1) << 40}, .workers = 1};
        struct st_policy policy = nvme_gated;
        struct st_plan *plan = NULL;
        char sentence[80];
        strata_status st;

        policy.leaves = leaves;
        st = st_plan_make(&plan, &w, &capacity, &policy);
        assert_int_equal(st, 6 % leaves == 0 ? STRATA_OK : STRATA_E_CONFIG);
        snprintf(sentence, sizeof(sentence), "strata.leaves: %u groups do not divide the 6 micro-batches of a step", leaves);
        if (st != STRATA_OK)
            assert_string_equal(strata_last_error(), sentence);
        st_plan_destroy(plan);
    }
    st_workload_fini(&w);
}

/* For each level of the tree above the first one sum more: a slot on the device, or for each page a place in host memory, from
 * which two slots bring it back.  The links carry what they carried. */
TEST(leaves_take_a_sum_for_each_level)
{
    struct plan_sizes sizes = small_sizes;
    uint64_t all, largest;

    sizes.grad_accum = 8;
    sums_of(&sizes, &all, &largest);
    for (uint32_t order = 0; order < 2; order++) {
        struct st_policy policy = nvme_gated;
        struct st_capacity plain = {0};
        struct st_traffic moved = {0};

        policy.cache = 0;
        policy.accumulation = order == 0 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL;
        for (uint32_t depth = 0; depth <= 3; depth++) {
            struct st_machine machine;
            struct st_traffic t;
            struct st_plan *plan;

            policy.leaves = 1u << depth;
            machine = tight(&sizes, &policy, 0);
            plan = plan_of(&sizes, &machine, &policy, "leaves");
            t = st_program_traffic(&plan->program, ST_PHASE_BODY);
            if (depth == 0) {
                plain = machine.capacity;
                moved = t;
            }
            assert_int_equal(machine.capacity.bytes[STRATA_TIER_DEVICE] - plain.bytes[STRATA_TIER_DEVICE],
                             (order == 1 && depth > 2 ? 2 : depth) * largest);
            assert_int_equal(machine.capacity.bytes[STRATA_TIER_HOST] - plain.bytes[STRATA_TIER_HOST], order * depth * all);
            assert_memory_equal(&t, &moved, sizeof(t));
            st_plan_destroy(plan);
        }
    }
}

struct layout_row {
    enum st_master master;
    uint32_t moments;
    enum st_moment_format format;
    uint64_t elems, moment1, moment2, bytes;
};

/* Planes at multiples of 64 bytes, in all a multiple of 4096; moments of 1 MiB and more begin two pages and a line further. */
TEST(state_is_laid_out)
{
    static const struct layout_row rows[] = {
        {ST_MASTER_SPLIT, 2, ST_MOMENTS_F32, 4096, 8192, 24576, 40960},
        {ST_MASTER_SPLIT, 2, ST_MOMENTS_BF16, 4096, 8192, 16384, 24576},
        {ST_MASTER_SPLIT, 2, ST_MOMENTS_8BIT, 4096, 8192, 8192 + 4160, 20480},
        {ST_MASTER_SPLIT, 1, ST_MOMENTS_8BIT, 8192, 16384, 0, 28672},
        {ST_MASTER_FULL, 2, ST_MOMENTS_BF16, 4096, 16384, 24576, 32768},
        {ST_MASTER_WEIGHT, 2, ST_MOMENTS_8BIT, 4096, 0, 4160, 12288},
        {ST_MASTER_SPLIT, 2, ST_MOMENTS_F32, 33, 128, 128 + 192, 4096},
        {ST_MASTER_SPLIT, 2, ST_MOMENTS_BF16, 33, 128, 256, 4096},
        {ST_MASTER_SPLIT, 2, ST_MOMENTS_8BIT, 33, 128, 128 + 128, 4096}, /* 64 of scales, 33 of codes */
        {ST_MASTER_SPLIT, 2, ST_MOMENTS_F32, 1u << 18, (1u << 19) + 8256, (1u << 19) + (1u << 20) + 2 * 8256, 2650112},
        {ST_MASTER_SPLIT, 2, ST_MOMENTS_BF16, 1u << 18, 1u << 19, 1u << 20, 3u << 19},
        {ST_MASTER_SPLIT, 2, ST_MOMENTS_8BIT, 1u << 22, (1u << 23) + 8256, (1u << 23) + (1u << 22) + (1u << 16) + 2 * 8256,
         16936960},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct layout_row *r = &rows[i];
        uint64_t moment1, moment2;
        const uint64_t bytes = st_chunk_layout(r->master, r->moments, r->format, r->elems, &moment1, &moment2);

        if (bytes != r->bytes || moment1 != r->moment1 || moment2 != r->moment2)
            fail_msg("row %zu: moments at %llu and %llu, %llu bytes", i, (unsigned long long)moment1, (unsigned long long)moment2,
                     (unsigned long long)bytes);
    }
}

/* Where a page's element lies in the model does not depend on how chunks are cut, and no two elements lie in one place. */
TEST(positions_are_the_models)
{
    struct st_policy policy = nvme_gated;
    const struct st_machine machine = {.name = "ample",
                                       .capacity = {.bytes = {1ull << 34, 1ull << 34, 1ull << 40}, .workers = 2}};
    struct st_plan *large, *small;

    policy.chunk_elems = 1u << 22;
    large = plan_of(&small_sizes, &machine, &policy, "given");
    policy.chunk_elems = ST_TILE_ELEMS;
    small = plan_of(&small_sizes, &machine, &policy, "given");
    assert_true(small->program.chunk_count > large->program.chunk_count);
    for (uint32_t c = 0, s = 0; c < large->program.chunk_count; c++) {
        const struct st_chunk *whole = &large->program.chunks[c];

        assert_int_equal(whole->position % ST_NORM_BLOCK, 0);
        if (c > 0)
            assert_true(whole->position >= whole[-1].position + whole[-1].elems);
        for (; s < small->program.chunk_count && small->program.chunks[s].page == whole->page &&
               small->program.chunks[s].group == whole->group;
             s++)
            assert_int_equal(small->program.chunks[s].position - whole->position, small->program.chunks[s].first - whole->first);
    }
    st_plan_destroy(large);
    st_plan_destroy(small);
}

/* The chunks of one group, from chunk `c` on: `most` elements each but for the last one, tiles counted on from the group's start.
 */
static uint32_t check_group(const struct st_program *program, uint32_t c, const struct st_group *group, uint64_t most)
{
    const uint64_t tiles_before = program->chunks[c].tile_first;
    uint64_t at = 0;

    for (; at < group->elems; at += program->chunks[c++].elems) {
        const struct st_chunk *chunk = &program->chunks[c];

        assert_int_equal(chunk->first, group->offset + at);
        assert_int_equal(chunk->elems, group->elems - at < most ? group->elems - at : most);
        assert_int_equal(at % ST_TILE_ELEMS, 0);
        assert_int_equal(chunk->tile_first, tiles_before + at / ST_TILE_ELEMS);
    }
    assert_int_equal(at, group->elems);
    return c;
}

/* Chunks are cut at whole tiles from their group's start, those of the table and the head at whole rows, too, if need be beyond
 * the size that is asked for. */
TEST(chunks_are_whole_tiles)
{
    static const struct {
        uint32_t hidden;
        uint64_t asked, most, rows_most;
    } rows[] = {
        {256, ST_TILE_ELEMS, ST_TILE_ELEMS, ST_TILE_ELEMS},
        {256, 1, ST_TILE_ELEMS, ST_TILE_ELEMS},
        {256, 20480, ST_TILE_ELEMS, ST_TILE_ELEMS},
        {256, 3 * ST_TILE_ELEMS + 4096, 3 * ST_TILE_ELEMS, 3 * ST_TILE_ELEMS},
        {96, 4 * ST_TILE_ELEMS, 4 * ST_TILE_ELEMS, 3 * ST_TILE_ELEMS},
        {96, 8 * ST_TILE_ELEMS - 1, 7 * ST_TILE_ELEMS, 6 * ST_TILE_ELEMS},
        {40, 2 * ST_TILE_ELEMS, 2 * ST_TILE_ELEMS, 5 * ST_TILE_ELEMS},
        {33, 4 * ST_TILE_ELEMS, 4 * ST_TILE_ELEMS, 33 * ST_TILE_ELEMS}, /* more than a slice */
        {2 * ST_TILE_ELEMS, ST_TILE_ELEMS, ST_TILE_ELEMS, 2 * ST_TILE_ELEMS},
    };
    const struct st_machine machine = {.name = "ample",
                                       .capacity = {.bytes = {1ull << 40, 1ull << 40, 1ull << 44}, .workers = 2}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct plan_sizes sizes = small_sizes;
        struct st_policy policy = nvme_gated;
        struct st_plan *plan;
        uint32_t c = 0;

        sizes.hidden = rows[i].hidden;
        sizes.vocab = 20000;
        sizes.slice_rows = 8192;
        sizes.tied = i % 2 == 0;
        sizes.block_params = 10 * ST_TILE_ELEMS + 1000;
        policy.chunk_elems = rows[i].asked;
        plan = plan_of(&sizes, &machine, &policy, "given");
        assert_int_equal(plan->policy.chunk_elems, rows[i].most);
        for (uint32_t p = 0; p < plan->program.workload.page_count; p++) {
            const struct st_page *page = &plan->program.workload.pages[p];
            const bool whole_rows = page->row_count > 0;

            assert_int_equal(plan->program.pages[p].chunk_first, c);
            for (uint32_t g = 0; g < page->group_count; g++)
                c = check_group(&plan->program, c, &page->groups[g], whole_rows ? rows[i].rows_most : rows[i].most);
        }
        assert_int_equal(c, plan->program.chunk_count);
        st_plan_destroy(plan);
    }
}

static bool fits_in(const struct st_machine *machine, const struct st_policy *policy)
{
    struct st_plan *plan = plan_of(&small_sizes, machine, policy, "given");
    const bool fits = plan->fits;

    if (fits)
        assert_int_equal(st_plan_verify(plan), STRATA_OK);
    st_plan_destroy(plan);
    return fits;
}

/* State that host memory has no room for lies on the device, unless no cache is allowed; the least that this needs is enough. */
TEST(the_device_takes_what_host_memory_lacks)
{
    const struct st_policy in_ram = {.param_tier = STRATA_TIER_DEVICE,
                                     .optimizer_tier = STRATA_TIER_HOST,
                                     .activation_tier = STRATA_TIER_HOST,
                                     .update = ST_UPDATE_GATED,
                                     .cache = ST_AUTO_BYTES,
                                     .chunk_elems = 65536};
    struct st_policy uncached = in_ram;
    struct st_machine machine = tight(&small_sizes, &in_ram, 0);
    struct st_plan *plan;
    uint64_t least;

    uncached.cache = 0;
    assert_true(fits_in(&machine, &uncached));
    machine.capacity.bytes[STRATA_TIER_DEVICE] += 64 << 20;
    machine.capacity.bytes[STRATA_TIER_HOST] -= 1 << 20;
    assert_false(fits_in(&machine, &uncached));
    plan = plan_of(&small_sizes, &machine, &in_ram, "given");
    assert_true(plan->fits);
    assert_int_equal(st_plan_verify(plan), STRATA_OK);
    assert_true(plan->decided.device_state_pages >= shape_of(&plan->program.workload).table_count);
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        assert_true(plan->minimum[t] <= machine.capacity.bytes[t]);
    memcpy(machine.capacity.bytes, plan->minimum, sizeof(machine.capacity.bytes));
    least = machine.capacity.bytes[STRATA_TIER_DEVICE];
    st_plan_destroy(plan);
    assert_true(fits_in(&machine, &in_ram));
    machine.capacity.bytes[STRATA_TIER_DEVICE] = least - 4096;
    assert_false(fits_in(&machine, &in_ram));
}

/* Checkpoints that host memory has no room for lie on the device, with no more pages kept there than before. */
TEST(checkpoints_go_where_there_is_room)
{
    struct st_policy on_device = nvme_gated, on_host = nvme_gated;
    struct st_machine machine;

    assert_int_equal(nvme_gated.activation_tier, STRATA_TIER_COUNT);
    on_device.activation_tier = STRATA_TIER_DEVICE;
    on_host.activation_tier = STRATA_TIER_HOST;
    machine = tight(&small_sizes, &on_device, 0);
    assert_true(fits_in(&machine, &on_device));
    assert_false(fits_in(&machine, &on_host));
    assert_true(fits_in(&machine, &nvme_gated));
}
