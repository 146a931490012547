/* test_shards - ranks that each keep their own slices: what they load, save and resume is together what one rank has, whatever
 * the number of ranks and wherever they keep it. */
#include "core/base/error.h"
#include "offload/comm/comm.h"
#include "offload/engine/engine_internal.h"
#include "rig.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define RANKS_MOST  4u
#define PAGES_MOST  64u
#define FAILS_LOAD  1u /* the values that it asks for */
#define FAILS_SINK  2u /* the sink of an export, on rank 0 */
#define FAILS_READ  3u /* a tile of what it exports is another than it was */
#define DEADLINE_NS UINT64_C(60000000000)

#define assert_ok(call)                                                                                                          \
    do {                                                                                                                         \
        if ((call) != STRATA_OK)                                                                                                 \
            fail_msg("%s: %s", #call, strata_last_error());                                                                      \
    } while (0)

static struct rig_cell cell_of(strata_tier param, strata_tier optimizer)
{
    struct rig_cell cell = rig_swapped();

    cell.device = cell.host = RIG_ALL;
    cell.stage = 3;
    cell.param = param;
    cell.optimizer = optimizer;
    cell.io_method = "threads"; /* rings of several threads, mapped where others were, are a race to the thread sanitizer */
    return cell;
}

/* --- ranks as threads --- */

struct rank {
    struct rig_cell cell;
    char dir[64];
    strata_status status;
    char sentence[1024], weights[33], state[33];
    uint64_t exported;         /* weights */
    uint64_t sums[PAGES_MOST]; /* see sum_pages() */
    pthread_t thread;
    uint32_t fails; /* which of its calls, see FAILS_... */
    struct st_model *model;
    struct st_plan *plan;
    struct rig_engine rig;
};

static strata_status open_rank(struct rank *r)
{
    strata_status st = rig_model(&r->model, &r->cell);

    if (st == STRATA_OK)
        st = rig_plan(&r->plan, r->model, &r->cell);
    return st == STRATA_OK ? rig_engine_start(&r->rig, r->model, r->plan, &r->cell, r->dir) : st;
}

static void close_rank(struct rank *r)
{
    rig_engine_stop(&r->rig);
    st_plan_destroy(r->plan);
    st_model_destroy(r->model);
    r->plan = NULL;
    r->model = NULL;
}

static strata_status fill(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    const struct rank *r = ctx;

    if (r->fails == FAILS_LOAD && page > 0)
        return st_error(STRATA_E_IO, "the model's file is gone");
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)((page + first + i) % 1000) / 1000;
    return STRATA_OK;
}

static strata_status sink(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    struct rank *r = ctx;

    (void)first;
    (void)weight;
    r->exported += count;
    return r->fails == FAILS_SINK && page == 2 ? st_error(STRATA_E_NOSPC, "no room for the model") : STRATA_OK;
}

/* Loads once more, then exports. */
static void *load_and_export(void *arg)
{
    struct rank *r = arg;

    r->status = open_rank(r);
    if (r->status == STRATA_OK)
        r->status = st_engine_load(r->rig.engine, fill, r);
    if (r->status == STRATA_OK && r->fails == FAILS_READ)
        r->rig.engine->checksums[ST_PLANE_WEIGHT][0] ^= 1;
    if (r->status == STRATA_OK)
        r->status = st_engine_export(r->rig.engine, sink, r);
    if (r->status != STRATA_OK)
        snprintf(r->sentence, sizeof(r->sentence), "%s", strata_last_error());
    close_rank(r);
    return NULL;
}

/* Of each page that the device has whole, and never 0; 0 of the others: blocks may be there in slices. */
static void sum_pages(uint64_t sums[PAGES_MOST], const struct st_engine *eng)
{
    const struct st_program *program = eng->program;

    assert_true(program->workload.page_count <= PAGES_MOST);
    for (uint32_t p = 0; p < program->workload.page_count; p++) {
        const bool whole = program->pages[p].weight_region != ST_NO_BUFFER;

        sums[p] = whole;
        for (uint32_t g = 0; whole && g < program->workload.pages[p].group_count; g++) {
            const struct st_group *group = &program->workload.pages[p].groups[g];
            const unsigned char *at = (unsigned char *)st_engine_pointer(eng, program->pages[p].weight_region) + group->at;

            for (uint64_t b = 0; b < group->bytes; b++)
                sums[p] = (sums[p] * 31 + at[b]) | 1;
        }
    }
}

static void *load_and_digest(void *arg)
{
    struct rank *r = arg;

    r->status = open_rank(r);
    if (r->status == STRATA_OK)
        sum_pages(r->sums, r->rig.engine);
    if (r->status == STRATA_OK)
        r->status = st_engine_digest(r->rig.engine, r->weights, r->state);
    if (r->status != STRATA_OK)
        snprintf(r->sentence, sizeof(r->sentence), "%s", strata_last_error());
    close_rank(r);
    return NULL;
}

/* Runs all ranks of a world, and returns when all have ended. */
static void run_world(struct rank ranks[RANKS_MOST], const struct rig_cell *cell, uint32_t count, void *(*run)(void *))
{
    struct st_comm *comms[RANKS_MOST] = {NULL};

    if (count > 1)
        assert_ok(st_comm_threads_open(comms, count, DEADLINE_NS));
    for (uint32_t r = 0; r < count; r++) {
        ranks[r].cell = *cell;
        ranks[r].cell.ranks = count;
        ranks[r].cell.rank = r;
        ranks[r].cell.comm = comms[r];
        snprintf(ranks[r].dir, sizeof(ranks[r].dir), "%s/rank-%u", scratch_dir, r);
        (void)mkdir(ranks[r].dir, 0700);
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < count; r++) {
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
        st_comm_close(comms[r]);
    }
}

/* --- tests --- */

static void check_load(const struct rig_cell *cell)
{
    struct rank one[RANKS_MOST] = {0};
    char text[RIG_TEXT];

    run_world(one, cell, 1, load_and_digest);
    assert_int_equal(one[0].status, STRATA_OK);
    for (uint32_t count = 2; count <= RANKS_MOST; count++) {
        struct rank many[RANKS_MOST] = {0};

        run_world(many, cell, count, load_and_digest);
        for (uint32_t r = 0; r < count; r++) {
            if (many[r].status != STRATA_OK)
                fail_msg("%s: rank %u of %u: %s", rig_cell_text(text, cell), r, count, many[r].sentence);
            if (strcmp(many[r].weights, one[0].weights) != 0 || strcmp(many[r].state, one[0].state) != 0)
                fail_msg("%s: rank %u of %u has weights %s and state %s, one rank has %s and %s", rig_cell_text(text, cell), r,
                         count, many[r].weights, many[r].state, one[0].weights, one[0].state);
            for (uint32_t p = 0; p < PAGES_MOST; p++)
                if (many[r].sums[p] != 0 && one[0].sums[p] != 0 && many[r].sums[p] != one[0].sums[p])
                    fail_msg("%s: rank %u of %u has another page %u than one rank", rig_cell_text(text, cell), r, count, p);
        }
    }
}

static const strata_tier tiers[] = {STRATA_TIER_DEVICE, STRATA_TIER_HOST, STRATA_TIER_NVME};

TEST_SETUP(what_ranks_load_is_what_one_loads, scratch_create, scratch_remove)
{
    for (uint32_t i = 0; i < 9; i++) {
        struct rig_cell cell = cell_of(tiers[i % 3], tiers[i / 3]);

        cell.llama = i % 2 == 1;
        check_load(&cell);
        if (cell.param != STRATA_TIER_DEVICE)
            continue;
        cell.stage = 2; /* blocks are whole */
        check_load(&cell);
        cell.stage = 3;
        cell.device = RIG_LEAST; /* blocks are slices */
        check_load(&cell);
    }
}

TEST_SETUP(in_every_format, scratch_create, scratch_remove)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_F16, STRATA_BF16};

    for (uint32_t i = 0; i < 3; i++) {
        struct rig_cell cell = cell_of(tiers[i], tiers[2 - i]);

        cell.dtype = dtypes[i];
        cell.moments = (enum st_moment_format)i;
        cell.chunk_elems = (1 + i) * ST_TILE_ELEMS;
        cell.freeze = "transformer.h.1.*";
        check_load(&cell);
    }
}

/* Rank 0 gets every weight once, the others none. */
TEST_SETUP(an_export_goes_to_rank_0, scratch_create, scratch_remove)
{
    struct rig_cell cell = cell_of(STRATA_TIER_NVME, STRATA_TIER_HOST);
    struct rank one[RANKS_MOST] = {0}, many[RANKS_MOST] = {0};

    run_world(one, &cell, 1, load_and_export);
    run_world(many, &cell, 3, load_and_export);
    assert_true(one[0].exported > 100000);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(many[r].status, STRATA_OK);
        assert_int_equal(many[r].exported, r == 0 ? one[0].exported : 0);
    }
}

/* Whatever fails, and on whichever rank: all have its status and its sentence, and nobody waits. */
TEST_SETUP(what_fails_on_one_fails_on_all, scratch_create, scratch_remove)
{
    static const struct {
        uint32_t rank, fails;
        strata_status status;
        const char *says;
    } rows[] = {{0, FAILS_LOAD, STRATA_E_IO, "the model's file is gone"},
                {2, FAILS_LOAD, STRATA_E_IO, "the model's file is gone"},
                {0, FAILS_SINK, STRATA_E_NOSPC, "no room for the model"},
                {0, FAILS_READ, STRATA_E_CORRUPT, "checksum mismatch"},
                {1, FAILS_READ, STRATA_E_CORRUPT, "checksum mismatch"}};
    struct rig_cell cell = cell_of(STRATA_TIER_NVME, STRATA_TIER_HOST);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rank ranks[RANKS_MOST] = {0};

        ranks[rows[i].rank].fails = rows[i].fails;
        run_world(ranks, &cell, 3, load_and_export);
        for (uint32_t r = 0; r < 3; r++) {
            const bool names = r == rows[i].rank || strncmp(ranks[r].sentence, "rank ", 5) == 0;

            if (ranks[r].status != rows[i].status || strstr(ranks[r].sentence, rows[i].says) == NULL || !names)
                fail_msg("failure %zu: rank %u has status %d, \"%s\"", i, r, ranks[r].status, ranks[r].sentence);
        }
    }
}
