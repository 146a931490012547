/* Random elements over every rule, format of moments, layout and gradient: every table against scalar.  2e6 of them; with --long
 * 1e9. */
#include "core/base/cpu.h"
#include "tests/common/test.h"
#include "tests/kernels/update_fixture.h"
#include <string.h>

#define COMBINATIONS ((uint64_t)UF_RULE_COUNT * ST_MOMENTS_COUNT * UF_LAYOUT_COUNT * 3)

static uint64_t elems_wanted = 2000000;

/* Call n: every combination in turn, lengths as they come, contents by turns in planes and in blocks. */
static struct uf_case case_of(uint64_t n)
{
    const uint64_t part = n % COMBINATIONS;
    struct uf_case c = {
        .rule = (enum uf_rule)(part % UF_RULE_COUNT),
        .format = (enum st_moment_format)(part / UF_RULE_COUNT % ST_MOMENTS_COUNT),
        .layout = (enum uf_layout)(part / UF_RULE_COUNT / ST_MOMENTS_COUNT % UF_LAYOUT_COUNT),
        .grad_dtype = uf_grad_dtypes[part / UF_RULE_COUNT / ST_MOMENTS_COUNT / UF_LAYOUT_COUNT],
        .elems = 1 + kf_bits(n, 1) % 20000,
        .position = (((uint64_t)kf_bits(n, 2) << 32 | kf_bits(n, 3)) >> kf_bits(n, 4) % 40) / ST_NORM_BLOCK * ST_NORM_BLOCK,
    };

    c.coef = uf_any_coef(c.rule, kf_bits(n, 5));
    return c;
}

TEST(random_elements_agree)
{
    uint64_t elems = 0;

    for (uint64_t n = 0; elems < elems_wanted || n < COMBINATIONS; n++) {
        const struct uf_case c = case_of(n);

        uf_place(*state, &c, kf_bits(n, 6) % UF_SHIFTS);
        if (n / COMBINATIONS % 2 == 0)
            uf_fill(*state, &c, n);
        else
            uf_fill_blocks(*state, &c, n);
        uf_compare(*state, &c);
        elems += c.elems;
    }
    print_message("%llu elements\n", (unsigned long long)elems);
}

TEST_MAIN(argc, argv)
{
    if (argc > 1 && strcmp(argv[1], "--long") == 0)
        elems_wanted = 1000000000;
    return test_run(uf_create, uf_destroy);
}
