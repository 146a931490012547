/* test_optimizers - every update rule through plan, program and engine: placement never changes bits, and each rule is its own.
 *
 * Rules with one moment have smaller extents, so layout, checksums, load and digests all differ from Adam's. */
#include "agree.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#define STEPS 4u

static const enum strata_optimizer rules[] = {STRATA_ADAMW, STRATA_ADAM, STRATA_ADAGRAD, STRATA_LION, STRATA_SGD};
#define RULES (sizeof(rules) / sizeof(rules[0]))

static struct rig_cell cell_of(size_t place, enum strata_optimizer rule, strata_dtype dtype)
{
    struct rig_cell cell = agree_place(place);

    cell.rule = rule;
    cell.dtype = dtype;
    cell.clip = RIG_CLIP_SOMETIMES;
    return cell;
}

/* The rule's runs agree wherever its state lies; returns the first one's. */
static struct rig_result agreed(enum strata_optimizer rule, strata_dtype dtype)
{
    struct rig_cell cells[AGREE_PLACES];

    for (size_t i = 0; i < AGREE_PLACES; i++)
        cells[i] = cell_of(i, rule, dtype);
    return rig_agree(cells, AGREE_PLACES, STEPS, scratch_dir);
}

TEST(placement_never_changes_bits)
{
    static const strata_dtype dtypes[] = {STRATA_BF16, STRATA_F32, STRATA_F16};

    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        struct rig_result results[RULES];

        for (size_t r = 0; r < RULES; r++) {
            const bool taken = d == 0 || sample_takes(r, 2, d);

            if (taken)
                results[r] = agreed(rules[r], dtypes[d]);
            for (size_t other = 0; other < r && d == 0; other++)
                assert_string_not_equal(results[r].weights, results[other].weights);
        }
    }
}

/* One moment less is 4 bytes per parameter less, read and written. */
TEST(one_moment_moves_less)
{
    const struct rig_cell adam = cell_of(1, STRATA_ADAMW, STRATA_BF16), lion = cell_of(1, STRATA_LION, STRATA_BF16);
    struct rig_result a, l;
    struct st_model *model;

    assert_int_equal(rig_run(&a, &adam, STEPS, scratch_dir), STRATA_OK);
    assert_int_equal(rig_run(&l, &lion, STEPS, scratch_dir), STRATA_OK);
    assert_int_equal(rig_model(&model, &adam), STRATA_OK);
    /* Every step but the first reads and writes all state, the flush after the last does, too; extents are padded. */
    const uint64_t params = st_model_workload(model)->params, spared = a.moved_bytes.write - l.moved_bytes.write;

    assert_true(spared >= 4 * params * STEPS * 95 / 100 && spared <= 4 * params * STEPS * 105 / 100);
    st_model_destroy(model);
}

TEST_GROUP(scratch_create, scratch_remove_empty);
