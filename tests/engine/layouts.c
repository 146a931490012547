/* layouts.c - see layouts.h. */
#include "layouts.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"

#include <string.h>

#define RANKS_MOST 4u
#define RANKS_ROOM 6u
#define STEPS      3u
#define MICROS     8u /* of all ranks, */
#define LEAVES     4u /* in so many leaves */

/* How a run is laid out, which must not matter. */
struct layout {
    uint32_t ranks, stage;
    strata_tier optimizer, param;
    enum rig_budget device;
    enum st_accumulation accumulation;
    uint64_t cache;
    uint32_t streamed, flush_after;
};
#define NONE STRATA_TIER_DEVICE
#define CPU  STRATA_TIER_HOST
#define NVME STRATA_TIER_NVME

static const struct layout layouts[] = {
    {1, 0, NONE, NONE, RIG_ALL, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 0, 0},
    {2, 0, NONE, NONE, RIG_ALL, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 0, 0},
    {2, 0, NVME, NVME, RIG_SMALLEST, ST_ACCUMULATE_HORIZONTAL, 0, 0, 0},
    {2, 1, CPU, NONE, RIG_ALL, ST_ACCUMULATE_VERTICAL, 0, 0, 0},
    {2, 1, NONE, NONE, RIG_ALL, ST_ACCUMULATE_HORIZONTAL, ST_AUTO_BYTES, 0, 2},
    {2, 2, NVME, CPU, RIG_SMALLEST, ST_ACCUMULATE_VERTICAL, 0, 0, 0},
    {2, 2, CPU, CPU, RIG_MIDWAY, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 1, 0},
    {2, 3, CPU, CPU, RIG_SMALLEST, ST_ACCUMULATE_HORIZONTAL, ST_AUTO_BYTES, 0, 0},
    {2, 3, NVME, NVME, RIG_SMALLEST, ST_ACCUMULATE_VERTICAL, 0, 0, 2},
    {2, 3, NONE, NONE, RIG_LEAST, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 0, 2},
    {2, 3, CPU, NONE, RIG_LEAST, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 0, 0},
    {2, 3, NVME, NONE, RIG_LEAST, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 2, 0},
    {4, 0, CPU, NONE, RIG_ALL, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 0, 0},
    {4, 1, NVME, NONE, RIG_ALL, ST_ACCUMULATE_VERTICAL, 0, 0, 0},
    {4, 3, NVME, NVME, RIG_MIDWAY, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 2, 0},
    {4, 3, NONE, NONE, RIG_LEAST, ST_ACCUMULATE_VERTICAL, 0, 0, 0},
    {4, 3, NVME, NONE, RIG_LEAST, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 2, 0},
    {4, 3, NONE, CPU, RIG_ALL, ST_ACCUMULATE_VERTICAL, ST_AUTO_BYTES, 0, 1},
};

static struct rig_cell cell_of(const struct rig_cell *model, const struct layout *l, uint32_t leaves)
{
    struct rig_cell c = *model;

    c.ranks = l->ranks;
    c.leaves = leaves / l->ranks;
    c.stage = l->stage;
    c.optimizer = l->optimizer;
    c.param = l->param;
    c.device = l->device;
    c.device_more = l->device == RIG_LEAST && l->streamed > 0 ? 1u << 19 : 0; /* for state that comes and goes */
    c.host = l->device == RIG_SMALLEST || l->device == RIG_LEAST ? RIG_SMALLEST : RIG_ALL;
    c.accumulation = l->accumulation;
    c.cache = l->cache;
    c.streamed = l->streamed;
    c.flush_after = l->flush_after;
    return c;
}

/* What an exchange of rows moves depends on the tokens: nothing, or, where one rank has every row, what is expected of all. */
static void check_bytes(const struct rig_result *r, uint32_t ranks, bool trains_table, const char *text)
{
    struct st_traffic planned = r->planned_bytes, moved = r->moved_bytes;
    const uint64_t sure = planned.comm - r->estimated_comm;

    if (moved.comm < sure || moved.comm > sure + ranks * r->estimated_comm || (r->estimated_comm == 0 && trains_table))
        fail_msg("%s: %llu bytes came from other ranks, where %llu are planned and %llu expected beside them", text,
                 (unsigned long long)moved.comm, (unsigned long long)sure, (unsigned long long)r->estimated_comm);
    planned.comm = moved.comm = 0;
    if (memcmp(&planned, &moved, sizeof(moved)) != 0)
        fail_msg("%s: what was moved is not what was planned", text);
}

static void check_layout_of(const struct rig_cell *model, const struct layout *l, uint32_t leaves, struct rig_result *first)
{
    const struct rig_cell c = cell_of(model, l, leaves);
    struct rig_result r[RANKS_ROOM];
    char text[RIG_TEXT];

    rig_cell_text(text, &c);
    if ((c.ranks == 1 ? rig_run : rig_run_ranks)(r, &c, STEPS, scratch_dir) != STRATA_OK)
        fail_msg("%u ranks, stage %u, %s: %s", c.ranks, c.stage, text, strata_last_error());
    if (!r[0].planned)
        fail_msg("%u ranks, stage %u, %s: not planned: %s", c.ranks, c.stage, text, strata_last_error());
    if (l->device == RIG_LEAST && l->optimizer == NONE && r[0].sliced == 0)
        fail_msg("%u ranks, stage %u, %s: no page is in slices", c.ranks, c.stage, text);
    if (first->weights[0] == '\0')
        *first = r[0];
    for (uint32_t rank = 0; rank < l->ranks; rank++) {
        if (strcmp(r[rank].weights, first->weights) != 0 || strcmp(r[rank].state, first->state) != 0 ||
            memcmp(r[rank].losses, first->losses, STEPS * sizeof(double)) != 0 ||
            memcmp(r[rank].norms, first->norms, STEPS * sizeof(double)) != 0)
            fail_msg("rank %u of %u, stage %u, %s: other bits than the first run", rank, c.ranks, c.stage, text);
        if (r[rank].skipped != first->skipped || r[rank].overflowed != first->overflowed || r[rank].tokens != first->tokens ||
            r[rank].steps_done != first->steps_done || r[rank].sequences != first->sequences)
            fail_msg(
                "rank %u of %u, stage %u, %s: other counts than the first run: %llu weights overflowed, %llu tokens, %llu steps, "
                "%llu sequences",
                rank, c.ranks, c.stage, text, (unsigned long long)r[rank].overflowed, (unsigned long long)r[rank].tokens,
                (unsigned long long)r[rank].steps_done, (unsigned long long)r[rank].sequences);
        if (r[rank].requests != (l->flush_after > 0 ? (UINT64_C(1) << l->ranks) - 1 : 0))
            fail_msg("rank %u of %u, stage %u, %s: what was asked for before an evaluation, no step told", rank, c.ranks, c.stage,
                     text);
        if (c.ranks > 1)
            check_bytes(&r[rank], c.ranks, c.adapters == RIG_NO_ADAPTERS, text);
    }
}

static void check_layout(const struct rig_cell *model, const struct layout *l, struct rig_result *first)
{
    check_layout_of(model, l, LEAVES, first);
}

void layouts_check(const struct rig_cell *model, uint32_t first, uint32_t step)
{
    struct rig_result result = {0};

    check_layout(model, &layouts[0], &result); /* one rank */
    for (size_t i = 1 + first; i < sizeof(layouts) / sizeof(layouts[0]); i += step)
        check_layout(model, &layouts[i], &result);
    assert_true(model->dtype != STRATA_F16 || result.skipped > 0);
}

void layouts_check_slices(const struct rig_cell *model)
{
    struct rig_result result = {0};

    check_layout(model, &layouts[0], &result);
    for (size_t i = 1; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        if (layouts[i].device == RIG_LEAST)
            check_layout(model, &layouts[i], &result);
}

void layouts_check_overflow(const struct rig_cell *model)
{
    struct rig_cell c = *model;
    struct rig_result result = {0};

    c.rule = STRATA_LION;
    c.lr = 3.4e38; /* masters stay finite, and their bf16 does not */
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i += sample_is_all() ? 1 : 4)
        check_layout(&c, &layouts[i], &result);
    assert_true(result.overflowed > 0 && result.skipped > 0);
}

/* A tree over the ranks is one over all leaves where these are no power of two, either. */
void layouts_check_odd(const struct rig_cell *model)
{
    static const uint32_t worlds[] = {1, 3, 6};
    struct rig_result result = {0};

    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        struct layout l = layouts[i == 0 ? 0 : 5 + i];

        l.ranks = worlds[i];
        check_layout_of(model, &l, 6, &result);
    }
}

void layouts_check_rounded(const struct rig_cell *model, uint32_t ranks_most, uint32_t most)
{
    struct rig_cell exact = *model, rounded = *model;
    struct rig_result whole = {0};

    exact.wire = ST_WIRE_F32;
    rounded.wire = ST_WIRE_BF16;
    check_layout(&exact, &layouts[0], &whole);
    for (uint32_t ranks = 2; ranks <= RANKS_MOST && ranks <= ranks_most; ranks *= 2) {
        struct rig_result first = {0};
        uint32_t count = 0;

        for (size_t i = 1; i < sizeof(layouts) / sizeof(layouts[0]); i++)
            if (layouts[i].ranks == ranks && count++ < most)
                check_layout(&rounded, &layouts[i], &first);
        assert_string_not_equal(first.weights, whole.weights);
    }
}

uint32_t layouts_product(const struct rig_cell *model)
{
    static const enum rig_budget budgets[] = {[NONE] = RIG_ALL, [CPU] = RIG_MIDWAY, [NVME] = RIG_SMALLEST};
    struct rig_result first = {0};
    uint32_t cells = 0;

    for (uint32_t ranks = 1; ranks <= RANKS_MOST; ranks *= 2)
        for (uint32_t stage = 0; stage <= 3; stage++)
            for (uint32_t tier = NONE; tier <= NVME; tier++)
                for (uint32_t order = 0; order < 2; order++) {
                    const struct layout l = {
                        .ranks = ranks,
                        .stage = stage,
                        .optimizer = (strata_tier)tier,
                        .param = (strata_tier)tier,
                        .device = budgets[tier],
                        .accumulation = order == 0 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL,
                        .cache = tier == NVME ? 0 : ST_AUTO_BYTES,
                    };

                    check_layout(model, &l, &first);
                    cells++;
                }
    assert_true(first.clipped > 0);
    if (model->dtype != STRATA_F16)
        assert_int_equal(first.skipped, 0);
    else /* gradients of adapters are fp32, and need not overflow */
        assert_true(first.skipped > 0 || model->adapters != RIG_NO_ADAPTERS);
    return cells;
}

struct rig_cell layouts_model(strata_dtype dtype, bool llama)
{
    struct rig_cell c = rig_swapped();

    c.llama = llama;
    c.dtype = dtype;
    c.grad_accum = MICROS;
    c.threads = 1;
    c.ffn = 960; /* blocks of GPT-2 have four tiles, so that two ranks have halves of them */
    return c;
}
