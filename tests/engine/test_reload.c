/* test_reload - one engine, two runs: loading weights again starts afresh, with whatever the first run left under way.
 *
 * The first run ends without a flush: updates are pending, state is read ahead and written back.  The second must have the first
 * one's losses, norms, counts and digests, bit for bit. */
#include "offload/engine/engine_internal.h"
#include "rig.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <string.h>

#define STEPS 3u

struct run {
    double losses[STEPS], norms[STEPS], scales[STEPS];
    uint64_t overflowed[STEPS], steps_done, steps_skipped;
};

static void train(struct run *out, struct st_engine *eng, const struct rig_cell *cell)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    struct st_engine_info info;

    for (uint32_t i = 0; i < STEPS; i++) {
        struct st_step_result r;

        rig_tokens(tokens, targets, cell, i);
        assert_int_equal(st_engine_step(eng, tokens, targets, NULL, &r), STRATA_OK);
        out->losses[i] = r.loss;
        out->norms[i] = r.grad_norm;
        out->scales[i] = r.loss_scale;
        out->overflowed[i] = r.weights_overflowed;
        st_engine_info(eng, &info); /* while the step's writes go on */
        assert_int_equal(r.skipped, info.skipped_steps - (i > 0 ? out->steps_skipped : 0));
        assert_true(r.lr == (r.skipped ? 0 : 1e-2));
        out->steps_done = info.steps_done;
        out->steps_skipped = info.skipped_steps;
        assert_int_equal(info.sequences_done, (i + 1) * 2 * cell->grad_accum); /* of skipped steps, too */
    }
}

/* Trains, loads again, trains; what differs between the two runs fails.  *skipped: updates that each left out. */
static void twice(const struct rig_cell *cell, const char *dir, uint64_t *skipped)
{
    char weights[2][33], state[2][33];
    struct run runs[2] = {0};
    struct st_model *model;
    struct st_plan *plan;
    struct rig_engine rig;
    struct st_model_init init = {.seed = 42};
    struct st_weight_source source;

    assert_int_equal(rig_model(&model, cell), STRATA_OK);
    assert_int_equal(rig_plan(&plan, model, cell), STRATA_OK);
    init.model = model;
    source = st_model_init_source(&init);
    assert_int_equal(rig_engine_start(&rig, model, plan, cell, dir), STRATA_OK);
    train(&runs[0], rig.engine, cell);
    assert_int_equal(st_engine_load(rig.engine, source.read, source.ctx), STRATA_OK);
    train(&runs[1], rig.engine, cell);
    assert_memory_equal(&runs[0], &runs[1], sizeof(runs[0]));
    assert_int_equal(st_engine_digest(rig.engine, weights[1], state[1]), STRATA_OK);
    rig_engine_stop(&rig);

    assert_int_equal(rig_engine_start(&rig, model, plan, cell, dir), STRATA_OK);
    train(&runs[1], rig.engine, cell);
    assert_int_equal(st_engine_digest(rig.engine, weights[0], state[0]), STRATA_OK);
    rig_engine_stop(&rig);
    assert_string_equal(weights[0], weights[1]);
    assert_string_equal(state[0], state[1]);
    *skipped = runs[0].steps_skipped;
    st_plan_destroy(plan);
    st_model_destroy(model);
}

TEST(pending_updates_are_forgotten)
{
    const struct rig_cell cell = rig_swapped();
    uint64_t skipped;

    twice(&cell, scratch_dir, &skipped);
    assert_int_equal(skipped, 0);
}

TEST(so_are_steps_and_powers_of_every_policy)
{
    static const enum st_update_policy policies[] = {ST_UPDATE_SERIAL, ST_UPDATE_IN_BACKWARD};
    struct rig_cell cell = rig_swapped();
    uint64_t skipped;

    for (size_t i = 0; i < 2; i++) {
        cell.update = policies[i];
        twice(&cell, scratch_dir, &skipped);
    }
}

/* The first steps overflow: the scale shrinks, and a second run starts with the first one's. */
TEST(so_are_the_loss_scale_and_skipped_steps)
{
    struct rig_cell cell = rig_swapped();
    uint64_t skipped;

    cell.dtype = STRATA_F16;
    twice(&cell, scratch_dir, &skipped);
    assert_true(skipped > 0);
}

/* In memory, too: an arena holds zeros only before the first run. */
TEST(moments_in_memory_are_zero_again)
{
    static const strata_tier tiers[] = {STRATA_TIER_DEVICE, STRATA_TIER_HOST};
    uint64_t skipped;

    for (size_t i = 0; i < 2; i++) {
        struct rig_cell cell = rig_swapped();

        cell.optimizer = cell.param = tiers[i];
        cell.device = i == 0 ? RIG_ALL : RIG_SMALLEST;
        cell.host = RIG_ALL;
        twice(&cell, scratch_dir, &skipped);
    }
}

/* --- uploads that are as late as they may be --- */

/* What was handed to the device and not waited for. */
static struct {
    const struct st_device_ops *real;
    struct {
        void *to;
        const void *from;
        uint64_t bytes;
    } uploads[16];
    uint32_t count;
} late;

static strata_status upload_late(struct st_device *dev, void *to, const void *from, uint64_t bytes)
{
    (void)dev;
    assert_true(late.count < sizeof(late.uploads) / sizeof(late.uploads[0]));
    late.uploads[late.count].to = to;
    late.uploads[late.count].from = from;
    late.uploads[late.count++].bytes = bytes;
    return STRATA_OK;
}

static strata_status finish_late(struct st_device *dev, enum st_queue queue)
{
    for (uint32_t i = 0; queue == ST_QUEUE_UPLOAD && i < late.count; i++)
        assert_int_equal(late.real->upload(dev, late.uploads[i].to, late.uploads[i].from, late.uploads[i].bytes), STRATA_OK);
    late.count = queue == ST_QUEUE_UPLOAD ? 0 : late.count;
    return late.real->finish(dev, queue);
}

/* Some pages are filled where they lie, in host memory, and others through buffers: these hold their values until the upload from
 * them is waited for.  State on NVMe, then in the memory of device and host. */
TEST(a_load_leaves_what_an_upload_reads_alone)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};

    for (size_t i = 0; i < 2 * sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        struct rig_cell cell = rig_swapped();
        char weights[2][33], states[2][33];
        struct st_model_init init = {.seed = 42};
        struct st_weight_source source;
        struct st_device_ops ops;
        struct st_model *model;
        struct st_plan *plan;
        struct rig_engine rig;

        cell.paced = true;
        cell.dtype = dtypes[i / 2];
        cell.param = STRATA_TIER_DEVICE;
        cell.optimizer = i % 2 == 0 ? STRATA_TIER_NVME : STRATA_TIER_HOST;
        cell.cache = i % 2 == 0 ? 0 : ST_AUTO_BYTES;
        cell.device = i % 2 == 0 ? RIG_ALL : RIG_MIDWAY;
        cell.host = RIG_ALL;
        cell.streamed = 1; /* so that some blocks' weights have their home on the device, and others in host memory */
        assert_int_equal(rig_model(&model, &cell), STRATA_OK);
        assert_int_equal(rig_plan(&plan, model, &cell), STRATA_OK);
        init.model = model;
        source = st_model_init_source(&init);
        assert_int_equal(rig_engine_start(&rig, model, plan, &cell, scratch_dir), STRATA_OK);
        late.real = rig.engine->device->ops;
        late.count = 0;
        ops = *late.real;
        ops.upload = upload_late;
        ops.finish = finish_late;
        for (uint32_t turn = 0; turn < 2; turn++) {
            rig.engine->device->ops = turn == 0 ? late.real : &ops;
            assert_int_equal(st_engine_load(rig.engine, source.read, source.ctx), STRATA_OK);
            rig.engine->device->ops = late.real;
            assert_int_equal(st_engine_digest(rig.engine, weights[turn], states[turn]), STRATA_OK);
        }
        assert_int_equal(late.count, 0);
        assert_string_equal(weights[0], weights[1]);
        assert_string_equal(states[0], states[1]);
        rig_engine_stop(&rig);
        st_plan_destroy(plan);
        st_model_destroy(model);
    }
}

TEST_GROUP(scratch_create, scratch_remove_empty);
