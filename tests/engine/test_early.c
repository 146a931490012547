/* test_early - updates that are made in backward as if no step were clipped, kept or made again: the bits of serial ones.  A
 * sample of the patterns and cells; with --all every one. */
#include "agree.h"
#include "sound.h"
#include "tests/common/test.h"

#include "core/base/rng.h"
#include "offload/engine/early_chance.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define STEPS    6u
#define PATTERNS (1u << STEPS)

static struct rig_cell cell_of(strata_tier optimizer, strata_tier param)
{
    struct rig_cell cell = rig_swapped();

    cell.host = RIG_ALL;
    cell.optimizer = optimizer;
    cell.param = param;
    cell.early = ST_EARLY_PARTS;
    cell.fake_latency_us = 1;
    cell.clip = RIG_CLIP_NEVER;
    return cell;
}

static struct rig_result run(const struct rig_cell *cell, uint32_t steps)
{
    struct rig_result r;
    char text[RIG_TEXT];

    if (rig_run(&r, cell, steps, scratch_dir) != STRATA_OK || !r.planned)
        fail_msg("%s drops=%x: %s", rig_cell_text(text, cell), cell->drops, strata_last_error());
    assert_memory_equal(&r.planned_bytes, &r.moved_bytes, sizeof(r.moved_bytes));
    return r;
}

static void assert_same(const struct rig_cell *cell, const struct rig_result *a, const struct rig_result *b)
{
    char text[RIG_TEXT];

    if (memcmp(a->losses, b->losses, sizeof(a->losses)) != 0 || strcmp(a->weights, b->weights) != 0 ||
        strcmp(a->state, b->state) != 0)
        fail_msg("other bits: %s drops=%x", rig_cell_text(text, cell), cell->drops);
}

TEST(every_pattern_of_drops_has_the_bits_of_serial)
{
    static const strata_tier tiers[][2] = {
        {STRATA_TIER_NVME, STRATA_TIER_NVME}, {STRATA_TIER_NVME, STRATA_TIER_HOST}, {STRATA_TIER_HOST, STRATA_TIER_HOST}};

    for (size_t t = 0; t < sizeof(tiers) / sizeof(tiers[0]); t++) {
        struct rig_cell cell = cell_of(tiers[t][0], tiers[t][1]), serial = cell;
        struct rig_result want;

        serial.update = ST_UPDATE_SERIAL;
        serial.early = 0;
        want = run(&serial, STEPS);
        for (cell.drops = 0; cell.drops < PATTERNS; cell.drops += 2) {
            struct rig_result r;

            if (!sample_takes(cell.drops / 2 + t, 4, 0))
                continue;
            r = run(&cell, STEPS);
            assert_true(r.early_pages > 0);
            assert_int_equal(r.redone, __builtin_popcount(cell.drops));
            assert_int_equal(r.kept + r.redone, STEPS - 1);
            assert_same(&cell, &want, &r);
        }
    }
}

/* Steps that make updates early and steps that make none, kept and made again, one after the other in any order. */
TEST(every_alternation_has_the_bits_of_serial)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct rig_cell cell =
            cell_of(i % 3 < 2 ? STRATA_TIER_NVME : STRATA_TIER_HOST, i % 3 < 1 ? STRATA_TIER_NVME : STRATA_TIER_HOST);
        struct rig_cell serial = cell;
        struct rig_result want, r;

        if (!sample_takes(i / 3, 2, 0))
            continue;
        cell.lates = (uint32_t)st_rng_u64(11, 1, i) % PATTERNS;
        cell.drops = (uint32_t)st_rng_u64(11, 2, i) % PATTERNS & ~1u;
        cell.flush_after = i % 4;
        serial.flush_after = cell.flush_after;
        serial.update = ST_UPDATE_SERIAL;
        serial.early = 0;
        want = run(&serial, STEPS);
        r = run(&cell, STEPS);
        assert_int_equal(r.late, __builtin_popcount(cell.lates));
        assert_true(r.kept + r.redone + r.late <= STEPS);
        assert_true(r.redone > 0 ? r.redone_bytes > 0 && (r.wasted_bytes > 0) == (i % 3 < 2)
                                 : r.redone_bytes + r.wasted_bytes == 0);
        assert_same(&cell, &want, &r);
    }
}

/* Which steps make none follows from the norms before them, and is the same on both ranks. */
TEST(the_rule_alternates_with_the_bits_of_serial)
{
    uint32_t kept = 0, redone = 0, late = 0;

    for (uint32_t i = 0; i < 6; i++) {
        struct rig_cell cell = cell_of(i % 3 < 2 ? STRATA_TIER_NVME : STRATA_TIER_HOST, STRATA_TIER_HOST), serial;
        struct rig_result want[2], r[2];

        cell.clip = RIG_CLIP_SOMETIMES;
        cell.dtype = i % 2 == 0 ? STRATA_BF16 : STRATA_F16;
        cell.ruled = true;
        cell.ranks = 2;
        cell.grad_accum = 2;
        cell.stage = i % 4;
        serial = cell;
        serial.update = ST_UPDATE_SERIAL;
        serial.early = 0;
        assert_int_equal(rig_run_ranks(want, &serial, RIG_STEPS_MAX, scratch_dir), STRATA_OK);
        if (rig_run_ranks(r, &cell, RIG_STEPS_MAX, scratch_dir) != STRATA_OK)
            fail_msg("%s", strata_last_error());
        for (uint32_t k = 0; k < 2; k++)
            assert_same(&cell, &want[k], &r[k]);
        assert_true(r[0].kept == r[1].kept && r[0].redone == r[1].redone && r[0].late == r[1].late);
        kept += r[0].kept;
        redone += r[0].redone;
        late += r[0].late;
    }
    assert_true(kept > 0 && redone > 0 && late > 0);
}

static double chance_of(const char *steps, double drift)
{
    double logs[ST_EARLY_STEPS];
    uint32_t count = 0;

    for (; steps[count] != '\0'; count++) { /* h high, l low, s skipped, n not to be clipped */
        const double about = (count % 2 == 0 ? 0.1 : -0.1) + drift * count;

        logs[count] = steps[count] == 'h'   ? 1 + about
                      : steps[count] == 'l' ? -1 + about
                      : steps[count] == 's' ? (double)INFINITY
                                            : -(double)INFINITY;
    }
    return st_early_chance(logs, count);
}

TEST(the_chance_of_a_clipped_step_follows_the_last_norms)
{
    assert_true(chance_of("", 0) == 0);
    assert_true(chance_of("h", 0) == 1 && chance_of("l", 0) == 0 && chance_of("hlh", 0) == 2.0 / 3);
    assert_true(chance_of("llllllllllllllll", 0) < 1e-6 && chance_of("hhhhhhhhhhhhhhhh", 0) > 1 - 1e-6);
    assert_true(chance_of("llllllllllllllll", 0.08) > 0.9); /* it has grown from far below to the threshold */
    assert_true(chance_of("hhhhhhhhhhhhhhhh", -0.08) < 0.1);
    assert_true(chance_of("lllllllllllllllh", 0) < ST_EARLY_MOST); /* one of sixteen is little */
    assert_true(chance_of("lhllhlllhllhllhl", 0) > ST_EARLY_MOST);
    assert_true(chance_of("nnnnnnnn", 0) == 0 && chance_of("nnnsnnns", 0) == 0.25 && chance_of("ssss", 0) == 1);
    assert_true(chance_of("llllsllllsllllsl", 0) > 3.0 / 16);
}

/* Steps that are clipped, or skipped, are found out by the engine alone. */
TEST(clipped_and_skipped_steps_are_made_again)
{
    static const strata_dtype dtypes[] = {STRATA_BF16, STRATA_F16, STRATA_F32};
    uint32_t kept = 0, redone = 0, skipped = 0;

    for (uint32_t i = 0; i < 24; i++) {
        struct rig_cell cell = cell_of(i % 2 == 0 ? STRATA_TIER_NVME : STRATA_TIER_HOST,
                                       i % 4 == 0 ? STRATA_TIER_NVME : STRATA_TIER_HOST),
                        serial;
        struct rig_result want, r;

        if (!sample_takes(i / 3 + i / 12, 2, 0))
            continue;
        cell.llama = i / 12 == 1;
        cell.dtype = dtypes[i / 4 % 3];
        cell.clip = RIG_CLIP_SOMETIMES;
        cell.grad_accum = i % 3 == 0 ? 4 : 1;
        cell.leaves = i % 3 == 0 ? 2 : 1;
        cell.accumulation = i % 2 == 0 ? ST_ACCUMULATE_HORIZONTAL : ST_ACCUMULATE_VERTICAL;
        cell.moments = (enum st_moment_format)(i % 5 % 3);
        cell.early = i % 7 == 0 ? 4 : ST_EARLY_PARTS;
        cell.host = i % 4 == 0 && i % 8 != 0 ? RIG_MIDWAY : RIG_ALL;
        cell.device = i % 8 == 3 ? RIG_MIDWAY : RIG_SMALLEST;
        cell.freeze = i % 6 == 5 ? "*.1.*" : NULL;
        cell.flush_after = i % 5;
        cell.paced = false;
        serial = cell;
        serial.update = ST_UPDATE_SERIAL;
        serial.early = 0;
        want = run(&serial, STEPS);
        r = run(&cell, STEPS);
        assert_true(r.early_pages > 0);
        assert_same(&cell, &want, &r);
        kept += r.kept;
        redone += r.redone;
        skipped += r.skipped;
    }
    assert_true(kept > 0 && redone > 0 && skipped > 0);
}

/* On a device with queues of its own, whose gradients are its own, too. */
TEST(a_device_with_queues_has_the_bits_of_serial)
{
    for (uint32_t i = 0; i < 6; i++) {
        struct rig_cell cell = cell_of(i % 3 < 2 ? STRATA_TIER_NVME : STRATA_TIER_HOST,
                                       i % 3 < 1 ? STRATA_TIER_NVME : STRATA_TIER_HOST),
                        serial;
        struct rig_result want, r;

        if (!sample_takes(i + i / 3, 2, 0))
            continue;
        cell.paced = true;
        cell.io_method = "threads";
        cell.grad_accum = 2;
        cell.accumulation = i < 3 ? ST_ACCUMULATE_HORIZONTAL : ST_ACCUMULATE_VERTICAL;
        cell.drops = i == 0 ? 0 : 0x14;
        serial = cell;
        serial.update = ST_UPDATE_SERIAL;
        serial.early = serial.drops = 0;
        want = run(&serial, STEPS);
        r = run(&cell, STEPS);
        assert_true(r.early_pages > 0 && r.kept > 0);
        assert_same(&cell, &want, &r);
    }
}

TEST(ranks_take_the_same_verdict)
{
    for (uint32_t i = 0; i < 8; i++) {
        struct rig_cell cell = cell_of(i % 2 == 0 ? STRATA_TIER_NVME : STRATA_TIER_HOST, STRATA_TIER_HOST), serial;
        struct rig_result want[2], r[2];

        if (!sample_takes(i + i / 2, 2, 0))
            continue;
        cell.ranks = 2;
        cell.stage = i / 2;
        cell.grad_accum = 4;
        cell.accumulation = i % 2 == 0 ? ST_ACCUMULATE_HORIZONTAL : ST_ACCUMULATE_VERTICAL;
        cell.clip = i < 4 ? RIG_CLIP_SOMETIMES : RIG_CLIP_NEVER;
        serial = cell;
        serial.update = ST_UPDATE_SERIAL;
        serial.early = 0;
        assert_int_equal(rig_run_ranks(want, &serial, STEPS, scratch_dir), STRATA_OK);
        if (rig_run_ranks(r, &cell, STEPS, scratch_dir) != STRATA_OK)
            fail_msg("stage %u: %s", cell.stage, strata_last_error());
        for (uint32_t k = 0; k < 2; k++) {
            assert_true(r[k].early_pages > 0 && r[k].kept + r[k].redone == STEPS - 1);
            assert_int_equal(r[k].planned_bytes.read, r[k].moved_bytes.read);
            assert_int_equal(r[k].planned_bytes.write, r[k].moved_bytes.write);
            assert_same(&cell, &want[k], &r[k]);
        }
        assert_int_equal(r[0].kept, r[1].kept);
    }
}

/* A step whose early updates are kept, and one whose are made again, in a failing world. */
TEST(any_one_failure_is_clean)
{
    struct rig_cell cell = sound_cell("fake", false);
    const struct sound_walk flips = {
        .site = "engine.corrupt_state", .result = -1, .dense = 4, .expected = STRATA_E_CORRUPT, .fatal = true};
    const struct sound_walk walk = {.result = -EIO, .dense = 2};
    struct sound s;

    cell.early = ST_EARLY_PARTS;
    cell.clip = RIG_CLIP_NEVER;
    cell.streamed = 0;
    cell.drops = 2;
    sound_begin(&s, &cell, 3);
    assert_true(s.want.early_pages > 0 && s.want.kept == 1 && s.want.redone == 1);
    print_message("%u failures, %u flips\n", sound_walk(&s, &walk), sound_walk(&s, &flips));
    sound_again(&s);
    sound_end(&s);
}

TEST_GROUP(scratch_create, scratch_remove);
