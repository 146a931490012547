/* test_formats - pages whose groups are stored in several formats: adapters in fp32, which train, in a frozen model of 16 bits
 * whose matrices may be quantised.  Wherever all that lies the bits are the same, and frozen weights stay what they were. */
#include "given.h"
#include "tests/common/test.h"

#include "core/base/rng.h"

#include <stdlib.h>
#include <string.h>

#define STEPS   4u
#define ADAPTER 70000u  /* elements of a block's: several tiles */
#define MATRIX  150000u /* of a block's matrices: no whole number of records */

/* Small and exact. */
static double gradient(uint32_t page, uint64_t elem, uint64_t step)
{
    return (double)(st_rng_u64(5, page, elem + (step << 32)) % 64) / 64 - 0.5;
}

struct layout {
    strata_tier tier;
    bool smallest;
    enum st_update_policy update;
    double ratio;
};
static const struct layout layouts[] = {
    {STRATA_TIER_DEVICE, false, ST_UPDATE_SERIAL, 1},   {STRATA_TIER_HOST, true, ST_UPDATE_GATED, 1},
    {STRATA_TIER_HOST, false, ST_UPDATE_GATED, 0},      {STRATA_TIER_NVME, true, ST_UPDATE_GATED, 1},
    {STRATA_TIER_NVME, true, ST_UPDATE_IN_BACKWARD, 1},
};
#define LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))

static void open_layout(struct given *g, const struct layout *l, strata_dtype dtype, bool quantised)
{
    struct given_opts opts = {.config = given_config(dtype, l->tier),
                              .grad = gradient,
                              .smallest = l->smallest,
                              .block_params = MATRIX,
                              .adapter_params = ADAPTER,
                              .quantised = quantised};

    opts.config.update = l->update;
    opts.config.update_ratio = l->ratio;
    opts.config.optimizer.weight_decay = 0.1;
    opts.config.scaling.scale = 1;
    opts.config.cache = l->tier == STRATA_TIER_NVME ? 0 : ST_AUTO_BYTES;
    given_open(g, &opts);
}

/* --- what is stored --- */

struct seen {
    const struct given *g;
    uint64_t changed, rounded; /* of adapters: elements that differ from the initial ones, that 16 bits could hold */
    uint64_t frozen[STRATA_NF4 + 1];
};

static void see_adapter(struct seen *s, uint32_t page, uint64_t first, uint64_t count, const float *weights)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;

        memcpy(&bits, &weights[i], sizeof(bits));
        s->changed += weights[i] != given_weight(page, first + i);
        s->rounded += (bits & 0xffff) == 0;
    }
}

static void see_frozen(struct seen *s, uint32_t page, uint64_t first, uint64_t count, strata_dtype format, const void *weights)
{
    const struct st_kernels *k = st_kernels_pick("scalar");
    float *values = malloc(count * sizeof(*values));
    unsigned char *want = calloc(1, st_format_bytes(format, count));

    assert_true(values != NULL && want != NULL);
    for (uint64_t i = 0; i < count; i++)
        values[i] = given_weight(page, first + i);
    if (format == STRATA_BF16)
        k->f32_to_bf16((uint16_t *)(void *)want, values, count);
    else if (format == STRATA_F16)
        k->f32_to_f16((uint16_t *)(void *)want, values, count);
    else
        k->nf4_quantise((struct st_nf4_block *)(void *)want, values, count);
    assert_memory_equal(weights, want, st_format_bytes(format, count));
    s->frozen[format] += count;
    free(values);
    free(want);
}

static strata_status see(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    struct seen *s = ctx;
    const struct st_group *group = st_page_group(&s->g->workload.pages[page], first);

    if (group->kind != ST_GROUP_FROZEN)
        see_adapter(s, page, first, count, weight);
    else
        see_frozen(s, page, first, count, group->format, weight);
    return STRATA_OK;
}

static void check_weights(const struct given *g, bool quantised)
{
    struct seen s = {.g = g};

    assert_int_equal(st_engine_export(g->eng, see, &s), STRATA_OK);
    assert_true(s.changed > 2 * ADAPTER * 99 / 100 && s.rounded < 2 * ADAPTER / 100);
    assert_true(s.frozen[g->workload.dtype] > 0);
    assert_true(quantised ? s.frozen[STRATA_NF4] >= 2 * MATRIX : s.frozen[STRATA_NF4] == 0);
}

/* --- tests --- */

TEST(placement_does_not_change_bits)
{
    static const strata_dtype dtypes[] = {STRATA_BF16, STRATA_F16};

    for (size_t i = 0; i < 2 * sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        const bool quantised = i % 2 == 1;
        char weights[33], planes[33], want_weights[33] = "", want_planes[33] = "";

        for (size_t l = 0; l < LAYOUTS; l++) {
            struct given g;

            open_layout(&g, &layouts[l], dtypes[i / 2], quantised);
            for (uint32_t step = 0; step < STEPS; step++)
                assert_int_equal(given_step(&g, NULL), STRATA_OK);
            assert_int_equal(st_engine_digest(g.eng, weights, planes), STRATA_OK);
            check_weights(&g, quantised);
            given_close(&g);
            if (l == 0) {
                memcpy(want_weights, weights, sizeof(weights));
                memcpy(want_planes, planes, sizeof(planes));
            }
            assert_string_equal(weights, want_weights);
            assert_string_equal(planes, want_planes);
        }
    }
}

/* Adapters have moments, and no more: the weight is its own master. */
TEST(adapters_have_two_moments)
{
    struct given g;
    uint64_t bytes = 0;

    open_layout(&g, &layouts[0], STRATA_BF16, true);
    for (uint32_t c = 0; c < g.plan->program.chunk_count; c++) {
        const struct st_chunk *chunk = &g.plan->program.chunks[c];

        assert_true((chunk->group == ST_GROUP_FROZEN) == (chunk->state == ST_WHERE_NONE));
        if (chunk->state != ST_WHERE_NONE)
            bytes += st_chunk_state_bytes(&g.plan->program, chunk);
    }
    assert_int_equal(bytes, 2 * ADAPTER * 8);
    given_close(&g);
}

static strata_status fill_infinite(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    (void)ctx;
    for (uint64_t i = 0; i < count; i++)
        out[i] = page == 4 && first + i == 100000 ? 1.0f / 0.0f : given_weight(page, first + i);
    return STRATA_OK;
}

/* A record has one scale: an infinity would take the other 63 elements with it. */
TEST(what_is_not_finite_is_not_quantised)
{
    struct given g;

    open_layout(&g, &layouts[1], STRATA_BF16, true);
    assert_int_equal(st_engine_load(g.eng, fill_infinite, NULL), STRATA_E_NUMERICS);
    assert_non_null(strstr(strata_last_error(), "page 4, element 100000"));
    given_close(&g);
}
