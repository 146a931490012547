/* test_ranks - what several ranks train on the cpu device, in many layouts.  With --all: the product of numbers of ranks, stages,
 * tiers, orders and formats, of all of a model, without a block, and of adapters; rounded sums and overflow in every layout. */
#include "layouts.h"
#include "tests/common/test.h"

#include "tests/common/sample.h"
#include "tests/common/scratch.h"

TEST(test_bf16_everywhere)
{
    const struct rig_cell c = layouts_model(STRATA_BF16, false);

    layouts_check(&c, 0, 1);
}

TEST(test_fp32_untied)
{
    const struct rig_cell c = layouts_model(STRATA_F32, true);

    layouts_check(&c, 0, 4);
}

TEST(test_fp16_with_skipped_steps)
{
    const struct rig_cell c = layouts_model(STRATA_F16, false);

    layouts_check(&c, 1, 4);
}

TEST(test_updates_in_backward)
{
    struct rig_cell c = layouts_model(STRATA_BF16, true);

    c.update = ST_UPDATE_IN_BACKWARD;
    layouts_check(&c, 3, 4);
    layouts_check_slices(&c);
}

TEST(test_serial_updates_and_frozen_blocks)
{
    struct rig_cell c = layouts_model(STRATA_BF16, false);

    c.update = ST_UPDATE_SERIAL;
    c.freeze = "transformer.h.0.*";
    layouts_check(&c, 2, 4);
    layouts_check_slices(&c);
}

TEST(test_sums_rounded_for_the_wire)
{
    const struct rig_cell c = layouts_model(STRATA_BF16, false);

    layouts_check_rounded(&c, UINT32_MAX, 4);
}

TEST(test_weights_that_overflow)
{
    const struct rig_cell c = layouts_model(STRATA_BF16, false);

    layouts_check_overflow(&c);
}

TEST(test_odd_worlds)
{
    struct rig_cell c = layouts_model(STRATA_BF16, true);

    c.grad_accum = 6;
    layouts_check_odd(&c);
}

TEST(test_adapters)
{
    struct rig_cell c = layouts_model(STRATA_BF16, false);

    c.adapters = RIG_LORA;
    c.ffn = 1920; /* so that slices save memory: frozen weights have eight tiles beside those of the adapters */
    layouts_check(&c, 0, 4);
    layouts_check_slices(&c);
    c = layouts_model(STRATA_F32, true);
    c.adapters = RIG_LORA_NF4;
    c.ffn = 1920;
    layouts_check(&c, 3, 4);
    layouts_check_slices(&c);
}

static void test_the_product(void **state)
{
    static const strata_dtype dtypes[] = {STRATA_BF16, STRATA_F16, STRATA_F32};
    struct rig_cell whole;
    uint32_t cells = 0;

    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        struct rig_cell c = layouts_model(dtypes[i % 3], i >= 9); /* GPT-2's matrices are not quantised */

        c.clip = RIG_CLIP_ALWAYS;
        c.freeze = i / 3 == 1 ? "transformer.h.0.*" : NULL;
        c.adapters = i < 6 ? RIG_NO_ADAPTERS : i < 9 ? RIG_LORA : RIG_LORA_NF4;
        cells += layouts_product(&c);
    }
    print_message("%u runs\n", cells);
    whole = layouts_model(STRATA_BF16, false);
    layouts_check_rounded(&whole, UINT32_MAX, UINT32_MAX);
    layouts_check_overflow(&whole);
}

TEST_MAIN(argc, argv)
{
    const struct CMUnitTest product[] = {cmocka_unit_test(test_the_product)};

    sample_init(argc, argv);
    return sample_is_all() ? cmocka_run_group_tests(product, scratch_create, scratch_remove)
                           : test_run(scratch_create, scratch_remove);
}
