/* test_integrity - a byte that changes on NVMe is found before it is used, whichever it is: in every plane of every layout, in
 * the first, a middle and the last tile of a chunk, and the sentence names plane and place.  What lies between planes is not
 * read. */
#include "given.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_PARAMS (3 * ST_TILE_ELEMS + 1000u) /* four tiles, the last one short */

static const char *const plane_names[ST_PLANE_COUNT] = {"master", "moment1", "moment2", "weight"};

struct layout {
    strata_dtype dtype;
    enum strata_optimizer rule;
    enum st_moment_format moments;
    strata_tier state, weights; /* for whole runs */
};
#define NVME STRATA_TIER_NVME
#define HOST STRATA_TIER_HOST

/* A split master, a full one, none; two moments or one; each format; either of state and weights in memory. */
static const struct layout layouts[] = {
    {STRATA_BF16, STRATA_ADAMW, ST_MOMENTS_F32, NVME, NVME},  {STRATA_BF16, STRATA_ADAMW, ST_MOMENTS_BF16, HOST, NVME},
    {STRATA_BF16, STRATA_ADAMW, ST_MOMENTS_8BIT, NVME, HOST}, {STRATA_BF16, STRATA_LION, ST_MOMENTS_F32, NVME, NVME},
    {STRATA_F16, STRATA_ADAMW, ST_MOMENTS_F32, HOST, NVME},   {STRATA_F32, STRATA_ADAMW, ST_MOMENTS_F32, NVME, HOST},
    {STRATA_F32, STRATA_SGD, ST_MOMENTS_8BIT, NVME, NVME},
};
#define LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))

static strata_status run_step(struct given *g)
{
    const strata_status st = given_step(g, NULL);

    return st != STRATA_OK ? st : st_engine_flush(g->eng, NULL);
}

/* All state and weights on NVMe, moments included: an update has written them. */
static void open_layout(struct given *g, const struct layout *layout)
{
    struct given_opts opts = {
        .config = given_config(layout->dtype, STRATA_TIER_NVME), .block_params = BLOCK_PARAMS, .smallest = true};

    opts.config.optimizer.type = layout->rule;
    opts.config.moments = layout->moments;
    given_open(g, &opts);
    assert_int_equal(run_step(g), STRATA_OK);
}

/* --- planes --- */

struct plane {
    uint32_t extent;
    uint64_t offset, bytes; /* of the chunk's part, from the extent's start; 0 bytes: the layout has no such plane */
    uint64_t tile_bytes;    /* of a whole tile */
};

static struct plane plane_of(const struct st_plan *plan, uint32_t c, enum st_plane which)
{
    const struct st_chunk *chunk = &plan->program.chunks[c];
    const uint64_t width = strata_dtype_bytes(plan->program.workload.dtype), master = st_master_width(chunk->master);

    switch (which) {
    case ST_PLANE_MASTER:
        return (struct plane){chunk->region, 0, chunk->elems * master, ST_TILE_ELEMS * master};
    case ST_PLANE_MOMENT1:
        return (struct plane){chunk->region, chunk->moment1_offset, st_moment_bytes(plan->program.moment_format, chunk->elems),
                              st_moment_bytes(plan->program.moment_format, ST_TILE_ELEMS)};
    case ST_PLANE_MOMENT2:
        return (struct plane){chunk->region, chunk->moment2_offset,
                              plan->program.moments == 2 ? st_moment_bytes(plan->program.moment_format, chunk->elems) : 0,
                              st_moment_bytes(plan->program.moment_format, ST_TILE_ELEMS)};
    default:
        return (struct plane){plan->program.pages[chunk->page].home_region, chunk->first * width, chunk->elems * width,
                              ST_TILE_ELEMS * width};
    }
}

static uint64_t tiles_of(const struct st_chunk *chunk)
{
    return (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS;
}

/* The sentence names plane, elements, and the byte of the file that the tile begins at. */
static void assert_names(const struct given *g, uint32_t c, enum st_plane which, uint64_t tile)
{
    const struct st_plan *plan = g->plan;
    const struct st_chunk *chunk = &plan->program.chunks[c];
    const struct plane plane = plane_of(plan, c, which);
    uint64_t byte;
    char place[192];

    (void)st_swap_place(g->eng->swap, 0, plan->program.buffers[plane.extent].offset + plane.offset + tile * plane.tile_bytes,
                        &byte);
    snprintf(place, sizeof(place), "checksum mismatch in plane %s of page %u, elements from %" PRIu64 " at byte %" PRIu64 ":",
             plane_names[which], chunk->page, chunk->page_first + tile * ST_TILE_ELEMS, byte);
    if (strstr(strata_last_error(), place) == NULL)
        fail_msg("\"%s\" is not in: %s", place, strata_last_error());
}

/* --- what is read, close to the code --- */

/* A chunk as it comes from NVMe: its state, and its page's weights. */
struct copies {
    struct given *g;
    uint32_t chunk;
    unsigned char *state, *weight;
    void *grad;
};

static void transfer(struct st_engine *eng, enum st_io_op op, uint32_t extent, void *bytes)
{
    struct st_engine_io io;

    assert_int_equal(st_engine_transfer_start(eng, &io, op, extent, 0, bytes, eng->program->buffers[extent].bytes, false),
                     STRATA_OK);
    assert_int_equal(st_engine_transfer_wait(eng, &io), STRATA_OK);
}

static unsigned char *read_extent(struct st_engine *eng, uint32_t extent)
{
    unsigned char *bytes = aligned_alloc(ST_SWAP_ALIGN, eng->program->buffers[extent].bytes);

    assert_non_null(bytes);
    transfer(eng, ST_IO_READ, extent, bytes);
    return bytes;
}

static struct copies copies_open(struct given *g, uint32_t c)
{
    const struct st_chunk *chunk = &g->plan->program.chunks[c];

    return (struct copies){.g = g,
                           .chunk = c,
                           .state = read_extent(g->eng, chunk->region),
                           .weight = read_extent(g->eng, g->plan->program.pages[chunk->page].home_region),
                           .grad = calloc(g->workload.pages[chunk->page].elems, sizeof(float))};
}

static void copies_close(struct copies *c)
{
    free(c->state);
    free(c->weight);
    free(c->grad);
}

/* Each reader checks the planes it is given; an update that is skipped does nothing but check. */
static strata_status read_by_update(struct copies *c)
{
    const struct st_chunk_update u = {.chunk = c->chunk,
                                      .state = {.from = c->state, .to = c->state},
                                      .weight = {.from = c->weight, .to = c->weight},
                                      .grad = c->grad};

    c->g->eng->train.update.skip = true;
    return st_engine_update_chunk(c->g->eng, &u);
}

static strata_status read_by_verify(struct copies *c)
{
    const strata_status st = st_engine_verify_state(c->g->eng, c->chunk, c->state);

    return st != STRATA_OK ? st : st_engine_verify_weights(c->g->eng, c->g->plan->program.chunks[c->chunk].page, c->weight);
}

typedef strata_status reader_fn(struct copies *c);
static reader_fn *const readers[] = {read_by_update, read_by_verify};

static void flip_in_tile(struct copies *c, enum st_plane which, const struct plane *plane, uint64_t tile)
{
    const uint64_t first = tile * plane->tile_bytes, left = plane->bytes - first;
    const uint64_t bytes = left < plane->tile_bytes ? left : plane->tile_bytes;
    const uint64_t places[] = {first, first + bytes / 2, first + bytes - 1};

    for (size_t i = 0; i < 3; i++) {
        unsigned char *byte = (which == ST_PLANE_WEIGHT ? c->weight : c->state) + plane->offset + places[i];

        *byte ^= 0x10;
        for (size_t r = 0; r < sizeof(readers) / sizeof(readers[0]); r++) {
            assert_int_equal(readers[r](c), STRATA_E_CORRUPT);
            assert_names(c->g, c->chunk, which, tile);
        }
        *byte ^= 0x10;
    }
}

TEST(every_reader_checks_every_byte_it_uses)
{
    for (size_t l = 0; l < LAYOUTS; l++) {
        uint32_t planes = 0;
        struct given g;

        open_layout(&g, &layouts[l]);
        for (uint32_t c = 0; c < g.plan->program.chunk_count; c++) {
            struct copies copies = copies_open(&g, c);

            g.plan->program.chunks[c].page_first += c * ST_TILE_ELEMS; /* as of a rank whose slice begins there */
            for (uint32_t p = 0; p < ST_PLANE_COUNT; p++) {
                const struct plane plane = plane_of(g.plan, c, (enum st_plane)p);

                planes += plane.bytes > 0;
                for (uint64_t tile = 0; plane.bytes > 0 && tile < tiles_of(&g.plan->program.chunks[c]); tile++)
                    flip_in_tile(&copies, (enum st_plane)p, &plane, tile);
            }
            for (size_t r = 0; r < sizeof(readers) / sizeof(readers[0]); r++)
                assert_int_equal(readers[r](&copies), STRATA_OK); /* all flips are undone */
            copies_close(&copies);
        }
        assert_true(planes >=
                    3 * g.plan->program.chunk_count - (layouts[l].dtype == STRATA_F32 ? g.plan->program.chunk_count : 0));
        given_close(&g);
    }
}

/* All of an extent that belongs to no plane may hold anything. */
TEST(what_lies_between_planes_is_not_read)
{
    for (size_t l = 0; l < LAYOUTS; l++) {
        struct given g;

        open_layout(&g, &layouts[l]);
        for (uint32_t c = 0; c < g.plan->program.chunk_count; c++) {
            struct copies copies = copies_open(&g, c);
            const uint64_t bytes = g.plan->program.buffers[g.plan->program.chunks[c].region].bytes;
            uint64_t flipped = 0;

            for (uint64_t i = 0; i < bytes; i++) {
                bool used = false;

                for (uint32_t p = ST_PLANE_MASTER; p < ST_PLANE_WEIGHT; p++) {
                    const struct plane plane = plane_of(g.plan, c, (enum st_plane)p);

                    used = used || (i >= plane.offset && i < plane.offset + plane.bytes);
                }
                copies.state[i] ^= used ? 0 : 0x10;
                flipped += !used;
            }
            assert_int_equal(flipped + st_chunk_state_bytes(&g.plan->program, &g.plan->program.chunks[c]), bytes);
            for (size_t r = 0; r < sizeof(readers) / sizeof(readers[0]); r++)
                assert_int_equal(readers[r](&copies), STRATA_OK);
            copies_close(&copies);
        }
        given_close(&g);
    }
}

/* What slots still hold is not read back. */
static bool act_is_read(const struct st_program *program, uint32_t id)
{
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == ST_OP_READ_ACT && st_op_access(program->accesses, &program->ops[i], ST_ROLE_TO)->index == id)
            return true;
    return false;
}

/* Each byte of an activation checkpoint, of each layer and micro-batch its own. */
TEST(every_byte_of_an_activation_is_checked)
{
    struct given_opts opts = {.config = given_config(STRATA_BF16, STRATA_TIER_NVME), .smallest = true};
    unsigned char *act;
    uint32_t checked = 0;
    struct given g;

    opts.config.activation_tier = STRATA_TIER_NVME;
    opts.config.activations = ST_ACT_RECOMPUTED;
    given_open(&g, &opts);
    assert_non_null(g.eng->act_checksums);
    act = calloc(1, shape_of(&g.workload).activation_bytes);
    assert_non_null(act);
    for (uint32_t id = 0; id < shape_of(&g.workload).block_count * g.workload.grad_accum; id++) {
        act[0] = (unsigned char)id;
        st_engine_hash_act(g.eng, id, act);
    }
    for (uint32_t id = 0; id < shape_of(&g.workload).block_count * g.workload.grad_accum; id++) {
        char what[96];

        if (!act_is_read(&g.plan->program, id))
            continue;
        checked++;
        act[0] = (unsigned char)id;
        assert_int_equal(st_engine_verify_act(g.eng, id, act), STRATA_OK);
        snprintf(what, sizeof(what), "the activation checkpoint of layer %u, micro-batch %u ", id / g.workload.grad_accum,
                 id % g.workload.grad_accum);
        for (uint64_t i = 0; i < shape_of(&g.workload).activation_bytes; i++) {
            act[i] ^= 0x10;
            assert_int_equal(st_engine_verify_act(g.eng, id, act), STRATA_E_CORRUPT);
            assert_non_null(strstr(strata_last_error(), what));
            act[i] ^= 0x10;
        }
    }
    assert_true(checked > 1);
    free(act);
    given_close(&g);
}

/* A gradient that waits on NVMe for its update: the sentence names the tile of a chunk that may begin anywhere in its page. */
TEST(every_tile_of_a_gradient_is_checked)
{
    const struct given_opts opts = {.config = given_config(STRATA_BF16, STRATA_TIER_NVME),
                                    .block_params = BLOCK_PARAMS,
                                    .smallest = true,
                                    .little_host = true};
    uint32_t later = 0;
    struct given g;

    given_open(&g, &opts);
    assert_int_equal(run_step(&g), STRATA_OK);
    for (uint32_t c = 0; c < g.plan->program.chunk_count; c++) {
        struct st_chunk *const chunk = &g.plan->program.chunks[c];
        const uint32_t extent = g.plan->program.pages[chunk->page].grad_extent, width = sizeof(uint16_t);
        struct copies copies;

        if (!st_page_swaps_grad(&g.plan->program, chunk->page))
            continue;
        copies = copies_open(&g, c);
        chunk->page_first += c * ST_TILE_ELEMS;
        st_engine_hash_grad(g.eng, chunk->page, copies.grad);
        for (uint64_t first = 0; first < chunk->elems; first += ST_TILE_ELEMS) {
            const uint64_t end = chunk->elems - first < ST_TILE_ELEMS ? chunk->elems : first + ST_TILE_ELEMS;
            const uint64_t places[] = {first * width, end * width - 1};
            char said[192];
            uint64_t byte;

            (void)st_swap_place(g.eng->swap, 0, g.plan->program.buffers[extent].offset + chunk->at + first * width, &byte);
            snprintf(said, sizeof(said), "in the gradient of page %u, elements from %" PRIu64 " at byte %" PRIu64 ":",
                     chunk->page, chunk->page_first + first, byte);
            for (size_t i = 0; i < 2; i++) {
                unsigned char *const changed = (unsigned char *)copies.grad + chunk->at + places[i];

                *changed ^= 0x10;
                assert_int_equal(read_by_update(&copies), STRATA_E_CORRUPT);
                if (strstr(strata_last_error(), said) == NULL)
                    fail_msg("\"%s\" is not in: %s", said, strata_last_error());
                *changed ^= 0x10;
            }
            later += first > 0;
        }
        assert_int_equal(read_by_update(&copies), STRATA_OK);
        copies_close(&copies);
    }
    assert_true(later > 0);
    given_close(&g);
}

/* --- in whole runs --- */

/* A byte changes on the medium. */
static void change(struct given *g, const struct plane *plane, uint64_t at)
{
    unsigned char *bytes = read_extent(g->eng, plane->extent);

    bytes[plane->offset + at] ^= 0x10;
    transfer(g->eng, ST_IO_WRITE, plane->extent, bytes);
    free(bytes);
}

static strata_status run_digest(struct given *g)
{
    char weights[33], state[33];

    return st_engine_digest(g->eng, weights, state);
}

/* The update on the host, on the device of streamed state, and the digest: the last byte of the largest chunk's plane. */
static void a_run_ends_where_a_byte_changed(const struct layout *layout, bool streamed, strata_status (*use)(struct given *g))
{
    struct given_opts opts = {.config = given_config(layout->dtype, STRATA_TIER_NVME), .block_params = BLOCK_PARAMS};

    opts.smallest = !streamed;
    opts.config.optimizer.type = layout->rule;
    opts.config.moments = layout->moments;
    opts.config.update_ratio = streamed ? 0 : 1;
    opts.config.optimizer_tier = layout->state;
    opts.config.param_tier = layout->weights;
    for (uint32_t p = 0; p < ST_PLANE_COUNT; p++) {
        struct plane plane;
        struct given g;
        uint32_t c = 0;

        if ((p == ST_PLANE_WEIGHT ? layout->weights : layout->state) != STRATA_TIER_NVME)
            continue;
        given_open(&g, &opts);
        assert_int_equal(run_step(&g), STRATA_OK);
        for (uint32_t i = 0; i < g.plan->program.chunk_count; i++)
            c = g.plan->program.chunks[i].elems > g.plan->program.chunks[c].elems ? i : c;
        assert_int_equal(g.plan->program.pages[g.plan->program.chunks[c].page].state == ST_WHERE_STREAMED, streamed);
        plane = plane_of(g.plan, c, (enum st_plane)p);
        if (plane.bytes > 0) {
            change(&g, &plane, plane.bytes - 1);
            assert_int_equal(use(&g), STRATA_E_CORRUPT);
            assert_names(&g, c, (enum st_plane)p, tiles_of(&g.plan->program.chunks[c]) - 1);
        }
        given_close(&g);
    }
}

/* Weights change between a step and its update, which reads them first, wherever the state is. */
static void an_update_checks_the_weights_that_it_reads(const struct layout *layout)
{
    struct given_opts opts = {
        .config = given_config(layout->dtype, layout->state), .block_params = BLOCK_PARAMS, .smallest = true};
    struct plane plane;
    struct given g;

    opts.config.optimizer.type = layout->rule;
    opts.config.param_tier = layout->weights;
    if (layout->weights != STRATA_TIER_NVME)
        return;
    given_open(&g, &opts);
    assert_int_equal(given_step(&g, NULL), STRATA_OK);
    assert_int_equal(st_engine_drain(g.eng), STRATA_OK);
    plane = plane_of(g.plan, 0, ST_PLANE_WEIGHT);
    change(&g, &plane, plane.bytes - 1);
    assert_int_equal(st_engine_flush(g.eng, NULL), STRATA_E_CORRUPT);
    assert_names(&g, 0, ST_PLANE_WEIGHT, tiles_of(&g.plan->program.chunks[0]) - 1);
    given_close(&g);
}

TEST(whole_runs_end_with_it)
{
    for (size_t l = 0; l < LAYOUTS; l++) {
        a_run_ends_where_a_byte_changed(&layouts[l], false, run_step);
        a_run_ends_where_a_byte_changed(&layouts[l], true, run_step);
        a_run_ends_where_a_byte_changed(&layouts[l], false, run_digest);
        an_update_checks_the_weights_that_it_reads(&layouts[l]);
    }
}

/* --- chunks that no update has written --- */

static double gradient(uint32_t page, uint64_t elem, uint64_t step)
{
    return (double)((page + elem + step) % 17) / 64 - 0.125;
}

static double overflow_first(uint32_t page, uint64_t elem, uint64_t step)
{
    return step == 1 && elem == 0 ? (double)INFINITY : gradient(page, elem, step);
}

struct digests {
    char loaded[33], stepped[33], weights[33];
};

/* Loads, changes every byte of every moment on the medium if asked to, and steps twice; an overflow skips the first update. */
static struct digests run_fresh(const struct layout *layout, bool streamed, bool changed, bool skipped)
{
    struct given_opts opts = {.config = given_config(layout->dtype, STRATA_TIER_NVME),
                              .block_params = BLOCK_PARAMS,
                              .grad = skipped ? overflow_first : gradient};
    struct st_engine_info info;
    struct digests d;
    struct given g;

    opts.smallest = !streamed;
    opts.config.optimizer.type = layout->rule;
    opts.config.moments = layout->moments;
    opts.config.update_ratio = streamed ? 0 : 1;
    given_open(&g, &opts);
    g.eng->training.skip_overflow = true;
    for (uint32_t c = 0; changed && c < g.plan->program.chunk_count; c++) {
        const struct st_chunk *chunk = &g.plan->program.chunks[c];
        unsigned char *bytes = read_extent(g.eng, chunk->region);

        memset(bytes + chunk->moment1_offset, 0xa5, chunk->bytes - chunk->moment1_offset);
        transfer(g.eng, ST_IO_WRITE, chunk->region, bytes);
        free(bytes);
    }
    assert_int_equal(st_engine_digest(g.eng, d.weights, d.loaded), STRATA_OK);
    for (int step = 0; step < 2; step++)
        assert_int_equal(run_step(&g), STRATA_OK);
    st_engine_info(g.eng, &info);
    assert_int_equal(info.skipped_steps, skipped);
    assert_int_equal(st_engine_digest(g.eng, d.weights, d.stepped), STRATA_OK);
    given_close(&g);
    return d;
}

/* What the drive holds in the place of moments that were never written changes nothing: they are zero. */
TEST(moments_are_zero_until_they_are_written)
{
    for (size_t l = 0; l < LAYOUTS; l++)
        for (int way = 0; way < 4; way++) {
            const bool streamed = way % 2 == 1, skipped = way / 2 == 1;
            const struct digests want = run_fresh(&layouts[l], streamed, false, skipped);
            const struct digests got = run_fresh(&layouts[l], streamed, true, skipped);

            assert_memory_equal(&want, &got, sizeof(want));
            assert_string_not_equal(want.loaded, want.stepped);
        }
}

/* Master and weights of such chunks are checked like all others. */
TEST(what_a_load_wrote_is_checked)
{
    for (uint32_t p = 0; p < ST_PLANE_COUNT; p++) {
        struct given_opts opts = {
            .config = given_config(STRATA_BF16, STRATA_TIER_NVME), .block_params = BLOCK_PARAMS, .smallest = true};
        struct plane plane;
        struct given g;

        given_open(&g, &opts);
        plane = plane_of(g.plan, 0, (enum st_plane)p);
        change(&g, &plane, plane.bytes - 1);
        assert_int_equal(run_digest(&g), p == ST_PLANE_MOMENT1 || p == ST_PLANE_MOMENT2 ? STRATA_OK : STRATA_E_CORRUPT);
        given_close(&g);
    }
}
