/* test_save - a run that saves has the bits of one that does not, and a run that resumes has the bits of one that never ended,
 * wherever the one and the other keep their bytes. */
#include "core/base/fault.h"
#include "core/system/file.h"
#include "offload/checkpoint/extents.h"
#include "offload/engine/train_state.h"
#include "rig.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEPS 5u
#define SAVED 2u /* steps before the save */
#define SETS  3u

/* What a checkpoint has, without its manifest. */
struct saved {
    struct st_extents extents;
    struct st_train_state train;
    struct st_stripe stripe;
    uint64_t bytes[ST_SPACE_COUNT];
};

static struct rig_cell in_memory(void)
{
    return (struct rig_cell){.grad_accum = 2,
                             .act_tier = STRATA_TIER_COUNT,
                             .io_method = "auto",
                             .isa = "auto",
                             .threads = 2,
                             .clip = RIG_CLIP_SOMETIMES,
                             .dtype = STRATA_BF16,
                             .cache = 0,
                             .update = ST_UPDATE_SERIAL,
                             .sets = SETS};
}

static struct rig_cell on_drives(void)
{
    struct rig_cell cell = in_memory();

    cell.device = cell.host = RIG_SMALLEST;
    cell.optimizer = cell.param = STRATA_TIER_NVME;
    cell.update = ST_UPDATE_GATED;
    cell.activations = ST_ACT_RECOMPUTED;
    return cell;
}

/* --- steps --- */

struct rigged {
    struct rig_cell cell;
    struct st_model *model;
    struct st_plan *plan;
    struct rig_engine rig;
};

#define assert_ok(call)                                                                                                          \
    do {                                                                                                                         \
        if ((call) != STRATA_OK)                                                                                                 \
            fail_msg("%s: %s", #call, strata_last_error());                                                                      \
    } while (0)

static void rigged_open(struct rigged *r, const struct rig_cell *cell)
{
    char text[RIG_TEXT];

    r->cell = *cell;
    assert_ok(rig_model(&r->model, cell));
    if (rig_plan(&r->plan, r->model, cell) != STRATA_OK)
        fail_msg("%s: %s", rig_cell_text(text, cell), strata_last_error());
    assert_ok(st_plan_verify(r->plan));
    assert_ok(rig_engine_start(&r->rig, r->model, r->plan, cell, scratch_dir));
}

static void rigged_close(struct rigged *r)
{
    rig_engine_stop(&r->rig);
    st_plan_destroy(r->plan);
    st_model_destroy(r->model);
}

static void run_steps(struct rigged *r, uint32_t from, uint32_t to)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    struct st_step_result result;

    for (uint32_t i = from; i < to; i++) {
        rig_tokens(tokens, targets, &r->cell, i);
        assert_ok(st_engine_step(r->rig.engine, tokens, targets, NULL, &result));
    }
}

struct digests {
    char weights[33], state[33];
};

static struct digests digests_of(struct rigged *r)
{
    struct digests d;

    assert_ok(st_engine_digest(r->rig.engine, d.weights, d.state));
    return d;
}

static void assert_digests(const struct digests *is, const struct digests *should_be, const struct rig_cell *cell)
{
    char text[RIG_TEXT];

    if (strcmp(is->weights, should_be->weights) != 0 || strcmp(is->state, should_be->state) != 0)
        fail_msg("%s: weights %s and state %s, expected %s and %s", rig_cell_text(text, cell), is->weights, is->state,
                 should_be->weights, should_be->state);
}

/* --- what is saved --- */

static void link_volume(struct st_swap *swap, uint32_t volume, const char *space)
{
    const int dir = open(scratch_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct st_swap_info info;

    assert_true(dir >= 0);
    st_swap_info(swap, &info);
    for (uint32_t i = 0; i < info.dir_count; i++) {
        char name[32];
        bool crossed;

        snprintf(name, sizeof(name), "%s.%u", space, i);
        (void)unlinkat(dir, name, 0);
        assert_ok(st_swap_link(swap, volume, i, dir, name, &crossed));
        assert_false(crossed);
    }
    close(dir);
}

/* Takes the set that holds everything now. */
static void take_set(struct rigged *r, struct saved *out)
{
    struct st_swap *swap = st_engine_swap(r->rig.engine);
    const uint32_t set = st_engine_set(r->rig.engine);

    out->stripe = *st_swap_stripe(swap);
    memcpy(out->bytes, r->plan->program.space_bytes, sizeof(out->bytes));
    link_volume(swap, st_swap_volume(swap, ST_SPACE_SET, set), "set");
    link_volume(swap, st_swap_volume(swap, ST_SPACE_BASE, 0), "base");
    assert_false(st_swap_reusable(swap, set));
    assert_true(st_swap_reusable(swap, (set + 1) % SETS));
    st_engine_use_set(r->rig.engine, (set + 1) % SETS);
}

static void save(struct rigged *r, struct saved *out)
{
    assert_ok(st_engine_save(r->rig.engine, &out->extents));
    out->train = *st_engine_train_state(r->rig.engine);
    take_set(r, out);
}

/* Opens the files of one space and makes them a volume of the swap. */
static uint32_t attach(struct st_swap *swap, const struct saved *s, enum st_space space, const char *name,
                       int fds[ST_SWAP_DIRS_MAX])
{
    struct st_volume_file files[ST_SWAP_DIRS_MAX];
    char paths[ST_SWAP_DIRS_MAX][64];
    uint32_t volume;

    for (uint32_t i = 0; i < s->stripe.dir_count; i++) {
        snprintf(paths[i], sizeof(paths[i]), "%s.%u", name, i);
        fds[i] = open(scratch_path(paths[i]), O_RDONLY | O_CLOEXEC);
        assert_true(fds[i] >= 0);
        files[i] = (struct st_volume_file){.path = paths[i], .fd = fds[i]};
    }
    assert_ok(st_swap_attach(
        swap, &(struct st_volume_opts){.stripe = &s->stripe, .files = files, .bytes = s->bytes[space], .read_only = true},
        &volume));
    return volume;
}

/* The volumes stay attached; their descriptors are the caller's to close. */
static struct st_resume_opts attach_all(struct rigged *r, const struct saved *s, uint32_t volumes[ST_SPACE_COUNT],
                                        int fds[2 * ST_SWAP_DIRS_MAX])
{
    struct st_swap *swap;

    assert_ok(st_engine_reader(r->rig.engine, &swap));
    volumes[ST_SPACE_SET] = attach(swap, s, ST_SPACE_SET, "set", fds);
    volumes[ST_SPACE_BASE] = attach(swap, s, ST_SPACE_BASE, "base", fds + s->stripe.dir_count);
    return (struct st_resume_opts){.extents = &s->extents, .train = &s->train, .volumes = volumes};
}

static strata_status resume(struct rigged *r, const struct saved *s, int fds[2 * ST_SWAP_DIRS_MAX])
{
    uint32_t volumes[ST_SPACE_COUNT] = {0};
    const struct st_resume_opts opts = attach_all(r, s, volumes, fds);

    return st_engine_resume(r->rig.engine, &opts);
}

/* --- tests --- */

static struct digests run_whole(const struct rig_cell *cell)
{
    struct digests d;
    struct rigged r;

    rigged_open(&r, cell);
    run_steps(&r, 0, STEPS);
    d = digests_of(&r);
    rigged_close(&r);
    return d;
}

/* Saves after every step up to SAVED, and goes on. */
static struct digests run_saving(const struct rig_cell *cell, struct saved *saved)
{
    struct digests d;
    struct rigged r;

    rigged_open(&r, cell);
    for (uint32_t i = 0; i < SAVED; i++) {
        if (i > 0)
            st_extents_fini(&saved->extents);
        run_steps(&r, i, i + 1);
        save(&r, saved);
    }
    run_steps(&r, SAVED, STEPS);
    d = digests_of(&r);
    rigged_close(&r);
    return d;
}

/* Of a step that saves.  Where others that save follow it, it may make no update early. */
static enum st_phase phase_of(const struct rigged *r, const struct st_step_result *result)
{
    const bool late = r->plan->program.early_pages > 0 && !result->early_made;

    return (enum st_phase)(ST_PHASE_BODY_SAVE | (late ? ST_PHASE_LATE : 0));
}

/* The same by steps that save: where updates are gated, the one after what is saved, which makes its update. */
static struct digests run_saving_within(const struct rig_cell *cell, struct saved *saved)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    const uint32_t later = cell->update == ST_UPDATE_GATED;
    struct st_step_result result;
    struct st_traffic planned;
    struct digests d;
    struct rigged r;

    rigged_open(&r, cell);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct st_saved step = {.extents = &saved->extents, .train = &saved->train};

        if (i < later || i >= SAVED + later) {
            run_steps(&r, i, i + 1);
            continue;
        }
        if (i > later)
            st_extents_fini(&saved->extents);
        rig_tokens(tokens, targets, &r.cell, i);
        assert_ok(st_engine_step_saving(r.rig.engine, tokens, targets, NULL, &result, &step));
        assert_ok(step.status);
        planned = st_program_traffic(&r.plan->program, phase_of(&r, &result));
        assert_int_equal(result.bytes.write, planned.write);
        assert_int_equal(result.bytes.download, planned.download);
        assert_int_equal(saved->train.steps_applied + saved->train.steps_skipped, i + 1 - later);
        assert_false(saved->train.pending);
        take_set(&r, saved);
    }
    d = digests_of(&r);
    rigged_close(&r);
    return d;
}

static struct digests run_resumed(const struct rig_cell *cell, const struct saved *saved, bool adopts)
{
    int fds[2 * ST_SWAP_DIRS_MAX];
    struct digests d;
    struct rigged r;

    rigged_open(&r, cell);
    assert_ok(resume(&r, saved, fds));
    assert_int_equal(st_engine_adopted(r.rig.engine), adopts);
    run_steps(&r, SAVED, STEPS);
    d = digests_of(&r);
    rigged_close(&r);
    for (uint32_t i = 0; i < 2 * saved->stripe.dir_count; i++)
        close(fds[i]);
    return d;
}

struct resumer {
    struct rig_cell cell;
    bool adopts;
};

static void assert_train(const struct st_train_state *is, const struct st_train_state *should_be)
{
    assert_int_equal(is->pending, should_be->pending);
    assert_int_equal(is->steps_applied, should_be->steps_applied);
    assert_int_equal(is->steps_skipped, should_be->steps_skipped);
    assert_int_equal(is->sequences, should_be->sequences);
    assert_int_equal(is->idle_in_row, should_be->idle_in_row);
    assert_true(is->beta1_power == should_be->beta1_power && is->beta2_power == should_be->beta2_power);
    assert_memory_equal(&is->scaler, &should_be->scaler, sizeof(is->scaler));
    assert_true(is->update_scale == should_be->update_scale && is->update.loss == should_be->update.loss);
    assert_int_equal(is->overflowed_host, should_be->overflowed_host);
    assert_int_equal(is->overflowed_seen, should_be->overflowed_seen);
}

/* Saves in one cell, between steps and by steps, and resumes in the others. */
static void check(const struct rig_cell *saves, const struct resumer *resumers, size_t count)
{
    struct digests never_saved, d;
    struct rig_cell plain = *saves;
    struct saved saved;

    scratch_open();
    for (uint32_t i = 0; i < 2; i++) {
        char name[16];

        snprintf(name, sizeof(name), "drive-%u", i);
        assert_int_equal(mkdir(scratch_path(name), 0700), 0);
    }
    plain.sets = 0;
    never_saved = run_whole(&plain);
    d = run_saving(saves, &saved);
    assert_digests(&d, &never_saved, saves);
    for (uint32_t within = 0; within < 2; within++) {
        if (within == 1) {
            const struct st_train_state between = saved.train;

            st_extents_fini(&saved.extents);
            d = run_saving_within(saves, &saved);
            assert_digests(&d, &never_saved, saves);
            assert_train(&saved.train, &between);
        }
        for (size_t i = 0; i < (within == 0 ? count : 1); i++) {
            d = run_resumed(&resumers[i].cell, &saved, resumers[i].adopts);
            assert_digests(&d, &never_saved, &resumers[i].cell);
        }
    }
    st_extents_fini(&saved.extents);
    scratch_close();
}

/* The same cell, everything in memory, another policy in a run that does not save, other chunks, other drives. */
TEST(test_from_drives_to_anywhere)
{
    const struct rig_cell saves = on_drives();
    struct resumer to[5];

    for (size_t i = 0; i < 5; i++)
        to[i] = (struct resumer){.cell = saves};
    to[0].adopts = true;
    to[1] = (struct resumer){.cell = in_memory(), .adopts = true};
    to[2].cell.sets = 0;
    to[2].cell.update = ST_UPDATE_SERIAL;
    to[3].cell.chunk_elems = UINT64_C(3) * ST_TILE_ELEMS;
    to[3].cell.accumulation = ST_ACCUMULATE_HORIZONTAL;
    to[4].cell.dir_count = 2;
    to[4].adopts = true;
    check(&saves, to, 5);
}

TEST(test_from_memory_to_anywhere)
{
    const struct rig_cell saves = in_memory();
    struct resumer to[3] = {{saves, true}, {on_drives(), true}, {saves, false}};

    to[2].cell.optimizer = to[2].cell.param = STRATA_TIER_HOST;
    to[2].cell.device = RIG_SMALLEST;
    to[2].cell.sets = 0;
    check(&saves, to, 3);
}

/* Some of it in memory, some on two drives of different speed; a device whose memory the host does not see. */
TEST(test_from_between)
{
    static const double rates[2] = {3e9, 1e9};
    struct rig_cell saves = on_drives();
    struct resumer to[2];

    saves.device = RIG_MIDWAY;
    saves.host = RIG_ALL;
    saves.cache = ST_AUTO_BYTES;
    saves.dir_count = 2;
    saves.dir_rates = rates;
    to[0] = (struct resumer){saves, true};
    to[1] = (struct resumer){on_drives(), true};
    check(&saves, to, 2);
}

/* What is frozen lies in the base: a part of a page, all of one, all of a model but a little, or but adapters. */
TEST(test_frozen)
{
    static const char *const patterns[6] = {"*.bias", "transformer.h.1.*", "transformer.h.*.weight", "transformer.wte.weight"};

    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        struct rig_cell drives = on_drives(), memory = in_memory();

        if (!sample_takes(i, 2, 1))
            continue;

        drives.freeze = memory.freeze = patterns[i];
        drives.llama = memory.llama = i == 5;
        drives.adapters = memory.adapters = i == 4 ? RIG_LORA : i == 5 ? RIG_LORA_NF4 : RIG_NO_ADAPTERS;
        check(i % 4 == 1 ? &drives : &memory, (struct resumer[]){{drives, true}, {memory, true}}, 2);
        drives.sets = 0;
        check(&memory, (struct resumer[]){{drives, false}}, 1);
    }
}

TEST(test_formats)
{
    static const struct {
        strata_dtype dtype;
        enum st_moment_format moments;
        enum strata_optimizer rule;
    } formats[] = {{STRATA_F32, ST_MOMENTS_F32, STRATA_ADAMW},
                   {STRATA_F16, ST_MOMENTS_F32, STRATA_ADAMW},
                   {STRATA_BF16, ST_MOMENTS_8BIT, STRATA_ADAM},
                   {STRATA_BF16, ST_MOMENTS_BF16, STRATA_LION},
                   {STRATA_F16, ST_MOMENTS_8BIT, STRATA_SGD}};

    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        struct rig_cell drives = on_drives(), memory = in_memory(), chunks;

        drives.llama = memory.llama = i % 2 == 0;
        drives.dtype = memory.dtype = formats[i].dtype;
        drives.moments = memory.moments = formats[i].moments;
        drives.rule = memory.rule = formats[i].rule;
        chunks = drives;
        chunks.chunk_elems = UINT64_C(2) * ST_TILE_ELEMS;
        if (sample_takes(i, 2, 0))
            check(i % 4 == 0 ? &drives : &memory, (struct resumer[]){{drives, true}, {memory, true}, {chunks, false}}, 3);
    }
}

/* A loss scale that begins too high: the first steps are skipped, and what they save are the values they began with. */
TEST(test_skipped)
{
    struct rig_cell host = in_memory();

    host.dtype = STRATA_F16;
    host.optimizer = host.param = STRATA_TIER_HOST;
    host.device = RIG_SMALLEST;
    check(&host, (struct resumer[]){{host, true}}, 1);
    host.update = ST_UPDATE_GATED;
    check(&host, (struct resumer[]){{host, true}}, 1);
}

/* Updates in backward; a device with queues, whose memory the host does not see. */
TEST(test_policies)
{
    struct rig_cell backward = on_drives(), paced = on_drives();

    backward.update = ST_UPDATE_IN_BACKWARD;
    check(&backward, (struct resumer[]){{backward, true}}, 1);
    paced.paced = true;
    paced.host = RIG_ALL;
    paced.streamed = 1;
    check(&paced, (struct resumer[]){{paced, true}}, 1);
    paced.device = RIG_ALL;
    paced.optimizer = paced.param = STRATA_TIER_DEVICE;
    paced.ffn = 1536; /* a block's chunk is more tiles than what brings them to the host at a time */
    paced.chunk_elems = UINT64_C(8) * ST_TILE_ELEMS;
    paced.threads = 1;
    check(&paced, (struct resumer[]){{paced, true}}, 1);
}

/* What was updated early before a save is made again by it, so that sets know of one version. */
TEST(test_early)
{
    struct rig_cell drives = on_drives(), memory = in_memory();

    drives.early = ST_EARLY_PARTS;
    check(&drives, (struct resumer[]){{drives, true}, {memory, true}}, 2);
    drives.clip = RIG_CLIP_NEVER;
    drives.paced = true;
    drives.host = RIG_ALL;
    check(&drives, (struct resumer[]){{drives, true}}, 1);
    memory.update = ST_UPDATE_GATED;
    memory.early = ST_EARLY_PARTS / 2;
    memory.clip = RIG_CLIP_NEVER;
    memory.device = RIG_SMALLEST;
    memory.optimizer = memory.param = STRATA_TIER_HOST;
    check(&memory, (struct resumer[]){{memory, true}}, 1);
}

/* Slices of experts are pages like others. */
TEST(test_experts)
{
    struct rig_cell drives = on_drives(), memory = in_memory();

    drives.paced = memory.paced = true;
    drives.experts = memory.experts = 3;
    check(&drives, (struct resumer[]){{drives, true}, {memory, true}}, 2);
    drives.paced = memory.paced = false;
    drives.experts = memory.experts = 0;
    drives.sparse = memory.sparse = true;
    drives.aux_loss_coef = memory.aux_loss_coef = 0.3f;
    check(&drives, (struct resumer[]){{drives, true}, {memory, true}}, 2);
}

/* Weights at home on drives, of which the device keeps a copy: what is adopted is read all the same. */
TEST(test_copies_on_the_device)
{
    struct rig_cell copies = on_drives();
    struct rigged r;

    copies.device = RIG_MIDWAY;
    copies.cache = ST_AUTO_BYTES;
    scratch_open();
    rigged_open(&r, &copies);
    assert_int_equal(r.plan->program.pages[0].home, ST_WHERE_NVME);
    assert_int_equal(r.plan->program.pages[0].weights, ST_WHERE_DEVICE);
    rigged_close(&r);
    scratch_close();
    check(&copies, (struct resumer[]){{copies, true}}, 1);
}

/* What is on the device comes down in parts that begin and end within planes and tiles. */
TEST(test_parts)
{
    static const uint64_t parts[] = {4096, 12288, 65536};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        struct rig_cell cell = in_memory();

        cell.part_bytes = parts[i];
        cell.paced = i == 1;
        cell.moments = i == 2 ? ST_MOMENTS_8BIT : ST_MOMENTS_F32;
        cell.update = i == 0 ? ST_UPDATE_GATED : ST_UPDATE_SERIAL;
        cell.freeze = i == 2 ? "*.bias" : NULL;
        check(&cell, (struct resumer[]){{cell, true}, {on_drives(), true}}, i == 0 ? 2 : 1);
    }
}

/* A drive that refuses what a checkpoint has to be given ends the checkpoint, and no step: the next one saves. */
TEST(test_refused)
{
    struct rig_cell cell = in_memory(), plain = cell;
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    struct digests never_saved, d;
    struct st_step_result result;
    struct rigged r;

    scratch_open();
    plain.sets = 0;
    never_saved = run_whole(&plain);
    rigged_open(&r, &cell);
    for (uint32_t i = 0; i < STEPS; i++) {
        struct saved saved = {.extents.rows = NULL};
        struct st_saved step = {.extents = &saved.extents, .train = &saved.train};

        rig_tokens(tokens, targets, &cell, i);
        if (i == 1)
            st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 2, .count = 1, .result = -EIO});
        assert_ok(st_engine_step_saving(r.rig.engine, tokens, targets, NULL, &result, &step));
        assert_int_equal(step.status, i == 1 ? STRATA_E_IO : STRATA_OK);
        assert_int_equal(st_fault_disarm(), i == 1);
        assert_true((saved.extents.rows != NULL) == (i != 1));
        st_extents_fini(&saved.extents);
    }
    d = digests_of(&r);
    assert_digests(&d, &never_saved, &cell);
    rigged_close(&r);
    scratch_close();
}

/* Flips a bit of a row's last byte; a second time mends it. */
static void flip(const struct st_extent_row *row)
{
    const int fd = open(scratch_path("set.0"), O_RDWR | O_CLOEXEC);
    const off_t at = (off_t)(row->offset + row->bytes - 1);
    char byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void assert_damaged(strata_status st, const struct st_extent_row *row)
{
    char what[96];

    assert_int_equal(st, STRATA_E_CORRUPT);
    snprintf(what, sizeof(what), "plane %s of page %u, elements from %llu, at byte ", st_plane_name((enum st_plane)row->plane),
             row->page, (unsigned long long)(row->first + (row->elems - 1) / ST_TILE_ELEMS * ST_TILE_ELEMS));
    assert_non_null(strstr(strata_last_error(), what));
}

/* A byte of each plane changes in the checkpoint: what reads it says so. */
TEST(test_damage)
{
    const struct rig_cell cell = in_memory();
    struct saved saved;

    scratch_open();
    (void)run_saving(&cell, &saved);
    for (uint64_t i = 0; i < saved.extents.row_count; i += saved.extents.row_count / 9 + 1) {
        int fds[2 * ST_SWAP_DIRS_MAX];
        struct rigged r;

        flip(&saved.extents.rows[i]);
        rigged_open(&r, &cell);
        assert_damaged(resume(&r, &saved, fds), &saved.extents.rows[i]);
        rigged_close(&r);
        close(fds[0]);
        close(fds[1]);
        flip(&saved.extents.rows[i]);
    }
    st_extents_fini(&saved.extents);
    scratch_close();
}

/* A check finds what is damaged, or cannot be read, also where a resume would adopt it, and the run goes on to the same bits. */
TEST(test_damage_is_found_before)
{
    const struct rig_cell cells[] = {in_memory(), on_drives()};

    for (uint32_t c = 0; c < 2; c++) {
        uint32_t volumes[ST_SPACE_COUNT] = {0};
        struct digests never_resumed, d;
        int fds[2 * ST_SWAP_DIRS_MAX];
        struct st_resume_opts opts;
        struct saved saved;
        struct rigged r;

        scratch_open();
        never_resumed = run_saving(&cells[c], &saved);
        assert_int_equal(saved.stripe.dir_count, 1);
        rigged_open(&r, &cells[c]);
        run_steps(&r, 0, SAVED + 1);
        opts = attach_all(&r, &saved, volumes, fds);
        for (uint64_t i = 0; i < saved.extents.row_count; i += saved.extents.row_count / 9 + 1) {
            flip(&saved.extents.rows[i]);
            assert_damaged(st_engine_check_resume(r.rig.engine, &opts), &saved.extents.rows[i]);
            flip(&saved.extents.rows[i]);
        }
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 2, .count = 1, .result = -EIO});
        assert_int_equal(st_engine_check_resume(r.rig.engine, &opts), STRATA_E_IO);
        assert_int_equal(st_fault_disarm(), 1);
        assert_ok(st_engine_check_resume(r.rig.engine, &opts));
        run_steps(&r, SAVED + 1, STEPS);
        d = digests_of(&r);
        assert_digests(&d, &never_resumed, &cells[c]);
        rigged_close(&r);
        close(fds[0]);
        close(fds[1]);
        st_extents_fini(&saved.extents);
        scratch_close();
    }
}

/* A load after a resume that adopted a checkpoint begins a run of its own, whose base is not the checkpoint's. */
TEST(test_load_after_resume)
{
    struct rig_cell cell = on_drives();
    int fds[2 * ST_SWAP_DIRS_MAX];
    struct digests never_saved, d;
    struct st_model_init init;
    struct st_weight_source source;
    struct saved saved;
    struct rigged r;

    cell.freeze = "transformer.h.1.*";
    scratch_open();
    never_saved = run_whole(&cell);
    (void)run_saving(&cell, &saved);
    rigged_open(&r, &cell);
    assert_ok(resume(&r, &saved, fds));
    assert_true(st_engine_adopted(r.rig.engine));
    init = (struct st_model_init){.model = r.model, .seed = 42};
    source = st_model_init_source(&init);
    assert_ok(st_engine_load(r.rig.engine, source.read, source.ctx));
    assert_false(st_engine_adopted(r.rig.engine));
    run_steps(&r, 0, STEPS);
    d = digests_of(&r);
    assert_digests(&d, &never_saved, &cell);
    rigged_close(&r);
    for (uint32_t i = 0; i < 2 * saved.stripe.dir_count; i++)
        close(fds[i]);
    st_extents_fini(&saved.extents);
    scratch_close();
}
