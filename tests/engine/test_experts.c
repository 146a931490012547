/* test_experts - layers of experts: the same bits wherever their slices lie, in whatever order micro-batches go through them, and
 * whatever the number of ranks and of experts in a slice.  On the paced device, whose parts are made up, and with a real model on
 * the cpu. */
#include "agree.h"
#include "rig.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <string.h>

#define STEPS 3u

/* What is trained of a model. */
struct trained {
    enum rig_adapters adapters; /* those, of attention and, but in nf4, of experts */
    const char *freeze;         /* all but this; NULL: all */
    bool fused;                 /* experts of gpt_oss's kind */
};

static struct rig_cell experts_of(struct rig_cell cell, bool paced, struct trained trained)
{
    cell.paced = paced;
    cell.adapters = trained.adapters;
    cell.freeze = trained.freeze;
    cell.sparse = !paced;
    cell.fused = trained.fused;
    cell.experts = paced ? 3 : 0;
    cell.slice_elems = 2 * 3 * 32 * 96; /* two experts */
    cell.aux_loss_coef = paced ? 0 : 0.3f;
    cell.grad_accum = 4;
    cell.dtype = STRATA_BF16;
    cell.io_method = "threads";
    return cell;
}

static const struct trained all, others[] = {{.freeze = "*.experts.*"},
                                             {.adapters = RIG_LORA},
                                             {.adapters = RIG_LORA_NF4},
                                             {.fused = true},
                                             {.freeze = "*.experts.*_bias", .fused = true},
                                             {.adapters = RIG_LORA, .fused = true}};
enum { OTHERS = sizeof(others) / sizeof(others[0]) };

/* Every place with every order, activations kept and made again, and one leaf or four. */
static void agree_everywhere(bool paced, struct trained trained, uint64_t every, uint64_t sample)
{
    for (uint32_t leaves = 1; leaves <= 4; leaves += 3) {
        struct rig_cell cells[AGREE_PLACES * 4];
        size_t count = 0;

        for (size_t i = 0; i < AGREE_PLACES * 4; i++) {
            struct rig_cell *cell = &cells[count];

            if (!sample_takes(i, every, sample))
                continue;
            *cell = experts_of(agree_place(i / 4), paced, trained);
            cell->leaves = leaves;
            cell->accumulation = i % 2 == 0 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL;
            cell->activations = i / 2 % 2 == 0 ? ST_ACT_RECOMPUTED : ST_ACT_KEPT;
            if (cell->activations == ST_ACT_KEPT && cell->device == RIG_SMALLEST)
                cell->device = RIG_MIDWAY;
            count++;
        }
        scratch_open();
        (void)rig_agree(cells, count, STEPS, scratch_dir);
        scratch_close();
    }
}

/* One rank with four leaves, and two and four ranks at each stage: with weights and state on drives, and on the device. */
static void agree_on_ranks(bool paced, struct trained trained, uint64_t every, uint64_t sample)
{
    struct rig_cell one = experts_of(agree_place(0), paced, trained);
    struct rig_result first;
    uint32_t number = 0;

    one.leaves = 4;
    scratch_open();
    assert_int_equal(rig_run(&first, &one, STEPS, scratch_dir), STRATA_OK);
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2)
        for (uint32_t stage = 0; stage <= 3; stage++)
            for (size_t place = 0; place < AGREE_PLACES; place += 2) {
                struct rig_cell cell = experts_of(agree_place(place), paced, trained);
                struct rig_result out[4];
                char text[RIG_TEXT];

                cell.ranks = ranks;
                cell.stage = stage;
                cell.leaves = 4 / ranks;
                if (!sample_takes(number++, every, sample))
                    continue;
                if (rig_run_ranks(out, &cell, STEPS, scratch_dir) != STRATA_OK)
                    fail_msg("%s: %s", rig_cell_text(text, &cell), strata_last_error());
                for (uint32_t r = 0; r < ranks; r++)
                    if (strcmp(out[r].weights, first.weights) != 0 || strcmp(out[r].state, first.state) != 0)
                        fail_msg("%u ranks, stage %u: other bits: %s", ranks, stage, rig_cell_text(text, &cell));
            }
    scratch_close();
}

TEST(placement_changes_no_bits)
{
    agree_everywhere(true, all, 3, 0);
}

TEST(ranks_change_no_bits)
{
    agree_on_ranks(true, all, 5, 0);
}

TEST(placement_changes_no_bits_of_a_model)
{
    agree_everywhere(false, all, 3, 0);
}

TEST(ranks_change_no_bits_of_a_model)
{
    agree_on_ranks(false, all, 7, 1);
}

/* Experts that are frozen, in the run's format and in nf4, with adapters of them or beside them; the sample has other cells of
 * each. */
TEST(placement_changes_no_bits_of_a_model_with_frozen_experts)
{
    for (size_t i = 0; i < OTHERS; i++)
        agree_everywhere(false, others[i], 11, i % 5);
}

TEST(ranks_change_no_bits_of_a_model_with_frozen_experts)
{
    for (size_t i = 0; i < OTHERS; i++)
        agree_on_ranks(false, others[i], 16, 3 * i);
}

/* One, two, four and all of a block's experts in a page, in each format, trained, frozen or adapted, activations kept and made
 * again. */
TEST(slices_change_no_bits)
{
    static const strata_dtype dtypes[] = {STRATA_BF16, STRATA_F32, STRATA_F16};

    for (size_t d = 0; d < (1 + OTHERS) * sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        const struct trained trained = d < 3 ? all : others[d / 3 - 1];
        struct rig_cell cells[4];

        for (uint32_t i = 0; i < 4; i++) {
            cells[i] = experts_of(agree_place(i), false, trained);
            cells[i].dtype = dtypes[d % 3];
            cells[i].clip = RIG_CLIP_ALWAYS;
            cells[i].slice_elems = i == 0 ? 1 : i == 3 ? 0 : i * 2 * 3 * 32 * 96;
            cells[i].activations = cells[i].device == RIG_SMALLEST ? ST_ACT_RECOMPUTED : ST_ACT_KEPT;
        }
        if (!sample_takes(d, 4, 0))
            continue;
        scratch_open();
        (void)rig_agree(cells, 4, STEPS, scratch_dir);
        scratch_close();
    }
}

TEST_GROUP(NULL, NULL);
