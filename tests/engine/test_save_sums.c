/* test_save_sums - what a step saves has the checksums of its bytes, wherever weights and state live, whether its update is made
 * or skipped. */
#include "core/base/checksum.h"
#include "offload/checkpoint/extents.h"
#include "offload/engine/engine_internal.h"
#include "rig.h"
#include "tests/common/assert_status.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <stdlib.h>

struct rigged {
    struct rig_cell cell;
    struct st_model *model;
    struct st_plan *plan;
    struct rig_engine rig;
    uint32_t steps;
};

static void rigged_open(struct rigged *r, const struct rig_cell *cell)
{
    *r = (struct rigged){.cell = *cell};
    assert_ok(rig_model(&r->model, cell));
    assert_ok(rig_plan(&r->plan, r->model, cell));
    assert_ok(rig_engine_start(&r->rig, r->model, r->plan, cell, scratch_dir));
}

static void rigged_close(struct rigged *r)
{
    rig_engine_stop(&r->rig);
    st_plan_destroy(r->plan);
    st_model_destroy(r->model);
}

/* A step, which saves if `saved` is not NULL. */
static void step(struct rigged *r, struct st_saved *saved)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    struct st_step_result result;

    rig_tokens(tokens, targets, &r->cell, r->steps++);
    if (saved == NULL) {
        assert_ok(st_engine_step(r->rig.engine, tokens, targets, NULL, &result));
        return;
    }
    assert_ok(st_engine_step_saving(r->rig.engine, tokens, targets, NULL, &result, saved));
    assert_ok(saved->status);
}

/* All of a space of what was saved; free(). */
static unsigned char *read_space(const struct rigged *r, enum st_space space)
{
    struct st_engine *eng = r->rig.engine;
    const uint64_t bytes = r->plan->program.space_bytes[space];
    unsigned char *all = aligned_alloc(ST_MOVER_ALIGN, bytes);
    struct st_engine_io io;

    assert_non_null(all);
    assert_ok(st_engine_volume_start(eng, &io, ST_IO_READ, st_swap_volume(st_engine_swap(eng), space, st_engine_set(eng)), 0, all,
                                     bytes, false));
    assert_ok(st_engine_transfer_wait(eng, &io));
    return all;
}

static uint64_t plane_bytes(const struct st_extent_row *row, uint64_t elems)
{
    if (row->plane == ST_PLANE_WEIGHT)
        return st_format_bytes((strata_dtype)row->format, elems);
    if (row->plane == ST_PLANE_MASTER)
        return elems * st_master_width((enum st_master)row->format);
    return st_moment_bytes((enum st_moment_format)row->format, elems);
}

static void assert_sums(const struct rigged *r, const struct st_extents *e)
{
    unsigned char *spaces[ST_SPACE_COUNT] = {
        [ST_SPACE_BASE] = read_space(r, ST_SPACE_BASE), [ST_SPACE_SET] = read_space(r, ST_SPACE_SET)};
    char text[RIG_TEXT];

    assert_true(e->row_count > 0);
    for (uint64_t i = 0; i < e->row_count; i++) {
        const struct st_extent_row *row = &e->rows[i];
        const unsigned char *bytes = spaces[row->space] + row->offset;

        for (uint64_t tile = 0; tile < row->sum_count; tile++) {
            const uint64_t first = tile * ST_TILE_ELEMS, left = row->elems - first;
            const uint64_t at = plane_bytes(row, first), elems = left < ST_TILE_ELEMS ? left : ST_TILE_ELEMS;

            if (e->sums[row->sum_first + tile] != st_checksum64(bytes + at, plane_bytes(row, elems)))
                fail_msg("%s: step %u, plane %s of page %u, element %llu: not its checksum", rig_cell_text(text, &r->cell),
                         r->steps, st_plane_name((enum st_plane)row->plane), row->page, (unsigned long long)(row->first + first));
        }
    }
    for (uint32_t i = 0; i < ST_SPACE_COUNT; i++)
        free(spaces[i]);
}

/* Saves, then makes an update that no save sees, then saves in a step that makes the next update or skips it.  The first save has
 * made all checksums: any that the second one does not make anew are of bytes before that update. */
static void check_saved_sums(struct rigged *r, bool skipped)
{
    struct st_extents extents = {0};
    struct st_train_state train;
    struct st_saved saved = {.extents = &extents, .train = &train};

    step(r, NULL);
    assert_ok(st_engine_save(r->rig.engine, &extents));
    assert_sums(r, &extents);
    st_extents_fini(&extents);
    if (skipped)
        st_engine_set_lr(r->rig.engine, 3.4e38); /* leaves no weight finite, and so no later gradient */
    step(r, NULL);
    if (r->cell.update == ST_UPDATE_GATED)
        step(r, NULL); /* makes the update of the one before */
    step(r, &saved);
    assert_int_equal(train.steps_applied, skipped ? 2 : 3);
    assert_int_equal(train.steps_skipped, skipped ? 1 : 0);
    assert_sums(r, &extents);
    st_extents_fini(&extents);
}

/* A part of each page is frozen: that is saved once, and its checksums stay. */
TEST(what_is_saved_has_its_checksums)
{
    static const struct {
        strata_tier param, optimizer;
    } homes[] = {{STRATA_TIER_DEVICE, STRATA_TIER_DEVICE},
                 {STRATA_TIER_HOST, STRATA_TIER_HOST},
                 {STRATA_TIER_HOST, STRATA_TIER_NVME},
                 {STRATA_TIER_NVME, STRATA_TIER_HOST},
                 {STRATA_TIER_NVME, STRATA_TIER_NVME}};
    static const enum st_update_policy updates[] = {ST_UPDATE_SERIAL, ST_UPDATE_GATED};

    scratch_open();
    for (size_t i = 0; i < 4 * sizeof(homes) / sizeof(homes[0]); i++) {
        const struct rig_cell cell = {.grad_accum = 1,
                                      .act_tier = STRATA_TIER_COUNT,
                                      .io_method = "fake",
                                      .isa = "auto",
                                      .threads = 2,
                                      .dtype = STRATA_BF16,
                                      .update = updates[i / 2 % 2],
                                      .param = homes[i / 4].param,
                                      .optimizer = homes[i / 4].optimizer,
                                      .device = homes[i / 4].param == STRATA_TIER_DEVICE ? RIG_ALL : RIG_SMALLEST,
                                      .freeze = "*.bias",
                                      .fake_latency_us = 1,
                                      .sets = 1};
        struct rigged r;

        rigged_open(&r, &cell);
        assert_int_equal(r.plan->program.pages[0].home, cell.param);
        assert_int_equal(r.plan->program.chunks[0].state, cell.optimizer);
        check_saved_sums(&r, i % 2 == 1);
        rigged_close(&r);
    }
    scratch_close();
}
