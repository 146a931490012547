/* test_moments - moments in bf16 and in 8 bits through plan, program and engine: rounding them is random, and yet no placement,
 * chunk size, schedule, thread or kernel changes a bit. */
#include "agree.h"
#include "tests/common/test.h"

#include "core/base/rng.h"
#include "offload/engine/engine_internal.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"

#include <math.h>

#include <stdlib.h>

#define STEPS 6u /* with fp16 the first three are skipped, and rounded moments show in the weights a step later */

#define FORMATS 3u

#define PLACES (AGREE_PLACES + 1) /* the last: updates in backward */

static const uint64_t chunks[PLACES] = {1u << 22, ST_TILE_ELEMS, 1u << 22, 3 * ST_TILE_ELEMS, 2 * ST_TILE_ELEMS};

/* Chunks of every size, at the place with the least memory the smallest. */
static struct rig_cell place_of(size_t place)
{
    struct rig_cell cell = agree_place(place < AGREE_PLACES ? place : 1);

    cell.chunk_elems = chunks[place];
    if (place == 1)
        cell.io_method = "fake";
    if (place == AGREE_PLACES) {
        cell.param = STRATA_TIER_NVME;
        cell.update = ST_UPDATE_IN_BACKWARD;
    }
    return cell;
}

struct variant {
    enum strata_optimizer rule;
    strata_dtype dtype;
    bool llama, paced;
};

static struct rig_cell cell_of(size_t place, const struct variant *v, enum st_moment_format moments)
{
    struct rig_cell cell = place_of(place);

    cell.rule = v->rule;
    cell.dtype = v->dtype;
    cell.llama = v->llama;
    cell.paced = v->paced;
    cell.moments = moments;
    cell.clip = RIG_CLIP_NEVER;
    if (cell.update == ST_UPDATE_IN_BACKWARD && cell.dtype == STRATA_F16)
        cell.update = ST_UPDATE_GATED; /* a step may have to be skipped */
    return cell;
}

/* The format's runs agree wherever its state lies; returns the first one's.  A sample has the first place and, in turns, two of
 * the others. */
static struct rig_result agreed(const struct variant *v, enum st_moment_format moments)
{
    static size_t turn;
    struct rig_cell cells[PLACES];
    size_t count = 0;

    for (size_t i = 0; i < PLACES; i++)
        if (i == 0 || sample_takes(i, 2, turn))
            cells[count++] = cell_of(i, v, moments);
    turn++;
    return rig_agree(cells, count, STEPS, scratch_dir);
}

/* Each format has its own bits, and a loss that is about the others': the paced device's says nothing. */
static void check_variant(const struct variant *v)
{
    struct rig_result results[FORMATS];

    for (uint32_t f = 0; f < FORMATS; f++) {
        results[f] = agreed(v, (enum st_moment_format)f);
        for (uint32_t other = 0; other < f; other++) {
            assert_string_not_equal(results[f].weights, results[other].weights);
            assert_string_not_equal(results[f].state, results[other].state);
        }
        if (v->paced)
            continue;
        print_message("rule %d dtype %d moments %u: loss %.6f, then %.6f\n", (int)v->rule, (int)v->dtype, f, results[f].losses[0],
                      results[f].losses[STEPS - 1]);
        assert_true(fabs(results[f].losses[STEPS - 1] - results[0].losses[STEPS - 1]) < 0.01);
    }
}

TEST(placement_never_changes_bits)
{
    static const struct variant variants[] = {
        {STRATA_ADAMW, STRATA_BF16, false, false},
        {STRATA_ADAMW, STRATA_F32, true, false},
        {STRATA_ADAM, STRATA_F16, false, false},
    };

    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
        check_variant(&variants[i]);
}

TEST(rules_with_one_moment)
{
    static const struct variant variants[] = {
        {STRATA_ADAGRAD, STRATA_BF16, false, false},
        {STRATA_LION, STRATA_BF16, false, false},
        {STRATA_SGD, STRATA_F32, false, false},
    };

    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
        check_variant(&variants[i]);
}

/* On a device whose lanes run by themselves, with its own gradients. */
TEST(lanes_of_their_own)
{
    check_variant(&(struct variant){STRATA_ADAMW, STRATA_BF16, false, true});
}

/* 4 bytes per parameter less in bf16, 6 less the scales' 1/32 in 8 bits, read and written. */
TEST(fewer_bytes_move)
{
    static const double spared[FORMATS] = {0, 4, 6 - 1.0 / 32};
    const struct variant v = {STRATA_ADAMW, STRATA_BF16, false, false};
    struct rig_result r[FORMATS];
    struct st_model *model;

    for (uint32_t f = 0; f < FORMATS; f++) {
        struct rig_cell cell = cell_of(1, &v, (enum st_moment_format)f);

        cell.chunk_elems = 1u << 22; /* small ones are mostly padding */
        assert_int_equal(rig_run(&r[f], &cell, STEPS, scratch_dir), STRATA_OK);
        if (f == 0)
            assert_int_equal(rig_model(&model, &cell), STRATA_OK);
    }
    /* Every step but the first reads and writes all state, the flush after the last does, too. */
    const double params = (double)st_model_workload(model)->params * STEPS;

    for (uint32_t f = 1; f < FORMATS; f++) {
        const double less = (double)(r[0].moved_bytes.write - r[f].moved_bytes.write);

        if (less < spared[f] * params * 0.95 || less > spared[f] * params * 1.05)
            fail_msg("format %u: %g bytes less per parameter, not %g", f, less / params, spared[f]);
        assert_true(r[f].moved_bytes.read < r[f].moved_bytes.write); /* the first time without moments */
        assert_int_equal(r[f].moved_bytes.read, r[f].planned_bytes.read);
    }
    st_model_destroy(model);
}

/* --- checksums --- */

static void assert_found(struct st_engine *eng, uint32_t c, unsigned char *planes, uint64_t at)
{
    planes[at] ^= 1;
    if (st_engine_verify_state(eng, c, planes) != STRATA_E_CORRUPT)
        fail_msg("chunk %u of %llu elements: byte %llu is in no checksum", c, (unsigned long long)eng->program->chunks[c].elems,
                 (unsigned long long)at);
    planes[at] ^= 1;
}

/* First, last and some bytes between of every plane of a chunk. */
static void check_chunk(struct st_engine *eng, uint32_t c)
{
    const struct st_program *program = eng->program;
    const struct st_chunk *chunk = &program->chunks[c];
    const uint64_t moment = st_moment_bytes(program->moment_format, chunk->elems);
    const uint64_t bytes[3] = {chunk->elems * st_master_width(chunk->master), moment, moment};
    const uint64_t offsets[3] = {0, chunk->moment1_offset, chunk->moment2_offset};
    unsigned char *planes = malloc(chunk->bytes);

    assert_non_null(planes);
    for (uint64_t i = 0; i < chunk->bytes; i++)
        planes[i] = (unsigned char)(i * 37 >> 3);
    eng->fresh[c] = false; /* as these planes are, written by an update */
    st_engine_hash_state(eng, c, planes);
    assert_int_equal(st_engine_verify_state(eng, c, planes), STRATA_OK);
    for (uint32_t p = 0; p < 3; p++) {
        assert_found(eng, c, planes, offsets[p]);
        assert_found(eng, c, planes, offsets[p] + bytes[p] - 1);
        for (uint64_t i = 0; i < 8; i++)
            assert_found(eng, c, planes, offsets[p] + st_rng_u64(c, p, i) % bytes[p]);
    }
    free(planes);
}

TEST(checksums_cover_every_byte)
{
    const struct variant v = {STRATA_ADAMW, STRATA_BF16, true, false};

    for (uint32_t f = 0; f < FORMATS; f++) {
        struct rig_cell cell = cell_of(1, &v, (enum st_moment_format)f);
        struct rig_engine rig;
        struct st_model *model;
        struct st_plan *plan;
        uint64_t most = 0;

        cell.chunk_elems = 1u << 22;
        assert_int_equal(rig_model(&model, &cell), STRATA_OK);
        assert_int_equal(rig_plan(&plan, model, &cell), STRATA_OK);
        assert_int_equal(rig_engine_start(&rig, model, plan, &cell, scratch_dir), STRATA_OK);
        for (uint32_t c = 0; c < plan->program.chunk_count; c++) {
            if (plan->program.chunks[c].state != ST_WHERE_NVME)
                continue;
            check_chunk(rig.engine, c);
            most = plan->program.chunks[c].elems > most ? plan->program.chunks[c].elems : most;
        }
        assert_true(most > ST_TILE_ELEMS); /* more than a tile */
        rig_engine_stop(&rig);
        st_plan_destroy(plan);
        st_model_destroy(model);
    }
}

TEST_GROUP(scratch_create, scratch_remove_empty);
