/* test_ranks - what several ranks train on the cpu device, in many layouts.  With --all: the product of numbers of ranks, stages,
 * tiers, orders and formats, of all of a model, without a block, and of adapters. */
#include "layouts.h"

#include "tests/common/sample.h"
#include "tests/common/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_bf16_everywhere(void **state)
{
    const struct rig_cell c = layouts_model(STRATA_BF16, false);

    (void)state;
    layouts_check(&c, 0, 1);
}

static void test_fp32_untied(void **state)
{
    const struct rig_cell c = layouts_model(STRATA_F32, true);

    (void)state;
    layouts_check(&c, 0, 4);
}

static void test_fp16_with_skipped_steps(void **state)
{
    const struct rig_cell c = layouts_model(STRATA_F16, false);

    (void)state;
    layouts_check(&c, 1, 4);
}

static void test_updates_in_backward(void **state)
{
    struct rig_cell c = layouts_model(STRATA_BF16, true);

    (void)state;
    c.update = ST_UPDATE_IN_BACKWARD;
    layouts_check(&c, 3, 4);
    layouts_check_slices(&c);
}

static void test_serial_updates_and_frozen_blocks(void **state)
{
    struct rig_cell c = layouts_model(STRATA_BF16, false);

    (void)state;
    c.update = ST_UPDATE_SERIAL;
    c.freeze = "transformer.h.0.*";
    layouts_check(&c, 2, 4);
    layouts_check_slices(&c);
}

static void test_sums_rounded_for_the_wire(void **state)
{
    const struct rig_cell c = layouts_model(STRATA_BF16, false);

    (void)state;
    layouts_check_rounded(&c, UINT32_MAX, UINT32_MAX);
}

static void test_weights_that_overflow(void **state)
{
    const struct rig_cell c = layouts_model(STRATA_BF16, false);

    (void)state;
    layouts_check_overflow(&c);
}

static void test_odd_worlds(void **state)
{
    struct rig_cell c = layouts_model(STRATA_BF16, true);

    (void)state;
    c.grad_accum = 6;
    layouts_check_odd(&c);
}

static void test_adapters(void **state)
{
    struct rig_cell c = layouts_model(STRATA_BF16, false);

    (void)state;
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
}

int main(int argc, char **argv)
{
    const struct CMUnitTest product[] = {cmocka_unit_test(test_the_product)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_everywhere),
        cmocka_unit_test(test_fp32_untied),
        cmocka_unit_test(test_fp16_with_skipped_steps),
        cmocka_unit_test(test_updates_in_backward),
        cmocka_unit_test(test_serial_updates_and_frozen_blocks),
        cmocka_unit_test(test_sums_rounded_for_the_wire),
        cmocka_unit_test(test_weights_that_overflow),
        cmocka_unit_test(test_odd_worlds),
        cmocka_unit_test(test_adapters),
    };

    sample_init(argc, argv);
    return sample_is_all() ? cmocka_run_group_tests(product, scratch_create, scratch_remove)
                           : cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
