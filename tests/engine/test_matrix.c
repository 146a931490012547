/* test_matrix - placement never changes bits: the same run over every way of placing and scheduling it.
 *
 *   test_engine_matrix corners   the extremes of every axis (sanitizer builds run these alone)
 *   test_engine_matrix pairs     a covering array: every pair of values of every two axes, at least 160 cells that plan
 *   test_engine_matrix paced     the same covering array on the paced device, whose lanes run by themselves
 *   test_engine_matrix moments   the same covering array over the formats of moments, without clipping
 *   test_engine_matrix full [I N]  the full product, millions of cells; or every N-th of them from number I on
 *   test_engine_matrix said FILE   whether a text (docs/design.md) says how many axes and cells that are
 *
 * Cells with equal data, leaves, clipping, dtype and moments form a group: one digest each.  Different groups differ.  In every
 * cell the bytes counted on each link equal the plan's.  Cells whose config keeps on the device what a small device cannot hold
 * are refused. */
#include "rig.h"

#include "core/base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS      4u
#define AXES       18u
#define PAIR_CELLS 40u /* that plan, unless the second argument says how many: every pair of values, and some again */

enum axis {
    A_DEVICE,
    A_HOST, /* all, the smallest (rounded gradients on NVMe, if state may be there), midway (some of them) */
    A_OPTIMIZER,
    A_PARAM,
    A_UPDATE,
    A_COUNT, /* micro-batches: one, four, four in as many leaves */
    A_ORDER, /* vertical, horizontal */
    A_ACT,
    A_TIER, /* of checkpoints: auto, host, nvme */
    A_IO,
    A_ISA,
    A_THREADS,
    A_CLIP,
    A_DTYPE,
    A_MODEL,
    A_MOMENTS,  /* fp32, bf16, 8bit: beyond the first in corners and in moments */
    A_STREAMED, /* none, half, all of the blocks whose state is off the device are updated there */
    A_ADAPTERS  /* none, beside frozen weights, beside weights in nf4 */
};
static uint32_t values[AXES] = {3, 3, 3, 3, 4, 3, 2, 2, 3, 3, 3, 2, 3, 3, 2, 1, 3, 3};

struct group {
    bool seen;
    struct rig_result first;
    uint32_t first_cell[AXES];
};

#define GROUPS_OF_FORMAT (3 * 3 * 3 * 2)
#define GROUPS_OF_MODEL  (3 * GROUPS_OF_FORMAT)
#define GROUPS           (3 * GROUPS_OF_MODEL)
static struct group groups[GROUPS];
static uint32_t cells_run, cells_refused, failures;
static bool paced;
static char nvme_dir[] = "/tmp/strata-matrix-XXXXXX";

static void cell_from(struct rig_cell *cell, const uint32_t v[AXES])
{
    static const char *const io[] = {"uring", "threads", "fake"}, *const isa[] = {"scalar", "avx2", "avx512"};
    static const enum st_update_policy updates[] = {ST_UPDATE_SERIAL, ST_UPDATE_GATED, ST_UPDATE_IN_BACKWARD,
                                                    ST_UPDATE_GATED /* and early, as far as can be */};
    static const strata_dtype dtypes[] = {STRATA_BF16, STRATA_F32, STRATA_F16};
    static const strata_tier tiers[] = {STRATA_TIER_COUNT, STRATA_TIER_HOST, STRATA_TIER_NVME};
    uint64_t mix = 0;

    for (uint32_t a = 0; a < A_MOMENTS; a++)
        mix = mix * 5 + v[a];
    mix = st_rng_u64(3, 3, mix);
    *cell = (struct rig_cell){.device = (enum rig_budget)v[A_DEVICE],
                              .host = (enum rig_budget)v[A_HOST],
                              .optimizer = (strata_tier)v[A_OPTIMIZER],
                              .param = (strata_tier)v[A_PARAM],
                              .llama = v[A_MODEL] == 1,
                              .update = updates[v[A_UPDATE]],
                              .early = v[A_UPDATE] == 3 ? ST_EARLY_PARTS - (uint32_t)(mix % 2) * 4 : 0,
                              .ruled = mix / 2 % 3 == 0, /* which steps are early, and kept */
                              .lates = mix / 2 % 3 == 1 ? (uint32_t)(mix / 6 % 64) : 0,
                              .drops = mix / 2 % 3 == 1 ? (uint32_t)(mix / 384 % 64) & ~1u : 0,
                              .grad_accum = v[A_COUNT] == 0 ? 1 : 4,
                              .leaves = v[A_COUNT] == 2 ? 4 : 1,
                              .accumulation = v[A_ORDER] == 0 ? ST_ACCUMULATE_VERTICAL : ST_ACCUMULATE_HORIZONTAL,
                              .activations = v[A_ACT] == 0 ? ST_ACT_KEPT : ST_ACT_RECOMPUTED,
                              .act_tier = tiers[v[A_TIER]],
                              .io_method = io[v[A_IO]],
                              .isa = isa[v[A_ISA]],
                              .threads = v[A_THREADS] + 1,
                              .clip = (enum rig_clip)v[A_CLIP],
                              .dtype = dtypes[v[A_DTYPE]],
                              .moments = (enum st_moment_format)v[A_MOMENTS],
                              .streamed = v[A_STREAMED],
                              .adapters = (enum rig_adapters)v[A_ADAPTERS],
                              /* not axes of their own: varied from cell to cell all the same */
                              .cache = mix % 2 == 0 ? 0 : ST_AUTO_BYTES,
                              .chunk_elems = mix % 3 == 0   ? ST_TILE_ELEMS
                                             : mix % 3 == 1 ? 3 * ST_TILE_ELEMS
                                                            : 1u << 22,
                              .flush_after = mix % 5 == 0 ? 2 : 0,
                              .paced = paced};
}

static struct group *group_of(const uint32_t v[AXES])
{
    return &groups[((((v[A_ADAPTERS] * 3 + v[A_MOMENTS]) * 3 + v[A_COUNT]) * 3 + v[A_CLIP]) * 3 + v[A_DTYPE]) * 2 + v[A_MODEL]];
}

static void fail(const struct rig_cell *cell, const char *what)
{
    char text[RIG_TEXT];

    failures++;
    printf("FAIL %s\n     %s\n", rig_cell_text(text, cell), what);
}

static bool same_traffic(const struct st_traffic *a, const struct st_traffic *b)
{
    return a->upload == b->upload && a->download == b->download && a->read == b->read && a->write == b->write &&
           a->comm == b->comm;
}

static void compare(struct group *g, const struct rig_cell *cell, const uint32_t v[AXES], const struct rig_result *r)
{
    char text[RIG_TEXT];

    if (!same_traffic(&r->planned_bytes, &r->moved_bytes)) {
        snprintf(text, sizeof(text),
                 "bytes moved differ from the plan's: upload %llu/%llu download %llu/%llu read %llu/%llu write %llu/%llu",
                 (unsigned long long)r->moved_bytes.upload, (unsigned long long)r->planned_bytes.upload,
                 (unsigned long long)r->moved_bytes.download, (unsigned long long)r->planned_bytes.download,
                 (unsigned long long)r->moved_bytes.read, (unsigned long long)r->planned_bytes.read,
                 (unsigned long long)r->moved_bytes.write, (unsigned long long)r->planned_bytes.write);
        fail(cell, text);
    }
    if (!g->seen) {
        g->seen = true;
        g->first = *r;
        memcpy(g->first_cell, v, sizeof(g->first_cell));
        return;
    }
    if (memcmp(g->first.losses, r->losses, sizeof(r->losses)) != 0 || memcmp(g->first.norms, r->norms, sizeof(r->norms)) != 0)
        fail(cell, "losses or norms differ from the group's");
    else if (strcmp(g->first.weights, r->weights) != 0 || strcmp(g->first.state, r->state) != 0)
        fail(cell, "digests differ from the group's");
}

/* What a config that keeps weights or state on the device must do on a device that cannot hold them, and nobody else. */
static void judge_refusal(const struct rig_cell *cell, bool planned)
{
    const bool keeps = cell->optimizer == STRATA_TIER_DEVICE || cell->param == STRATA_TIER_DEVICE;

    if (!planned && (cell->device == RIG_ALL || !keeps))
        fail(cell, "refused, though it fits");
    if (planned && cell->device == RIG_SMALLEST && keeps)
        fail(cell, "planned, though its device is too small for what it keeps there");
}

/* An update in backward exists where nothing has to be known before: no clipping that bites, no loss scale that may skip. */
static void normalise(uint32_t v[AXES])
{
    if (v[A_UPDATE] == 2 && v[A_DTYPE] == 2)
        v[A_UPDATE] = 1;
    if (v[A_UPDATE] == 2)
        v[A_CLIP] = 0;
    if (paced && v[A_CLIP] != 0) /* its norms hardly move: all steps clip or none does, and none under fp16's loss scale */
        v[A_CLIP] = v[A_DTYPE] == 2 ? 0 : 2;
    if (v[A_ADAPTERS] != 0 && v[A_CLIP] == 1) /* the threshold between norms is for those of whole models */
        v[A_CLIP] = 2;
}

static bool run_cell(uint32_t v[AXES])
{
    struct rig_cell cell;
    struct rig_result result;
    strata_status st;

    normalise(v);
    cell_from(&cell, v);
    if (st_kernels_pick(cell.isa) == NULL)
        return true;
    st = rig_run(&result, &cell, STEPS, nvme_dir);
    cells_run++;
    if (st != STRATA_OK) {
        fail(&cell, strata_last_error());
        return false;
    }
    judge_refusal(&cell, result.planned);
    if (!result.planned) {
        cells_refused++;
        return false;
    }
    compare(group_of(v), &cell, v, &result);
    return true;
}

/* --- corners --- */

/* device, host, optimizer, param, update, count, order, act, tier, io, isa, threads, clip, dtype, model, moments, streamed,
 * adapters */
static void run_corners(void)
{
    static uint32_t corners[][AXES] = {
        {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0},          {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0},
        {1, 1, 2, 2, 1, 0, 0, 1, 2, 0, 1, 1, 1, 0, 0},          {1, 1, 2, 2, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0},
        {1, 0, 2, 1, 1, 0, 1, 0, 0, 2, 1, 1, 1, 0, 0},          {2, 1, 1, 1, 1, 0, 0, 0, 2, 2, 2, 1, 1, 0, 0},
        {2, 0, 2, 2, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0},          {0, 1, 0, 2, 1, 0, 1, 1, 0, 0, 2, 1, 1, 0, 0},
        {0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0},          {0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 1, 0},
        {1, 1, 2, 2, 1, 1, 0, 1, 2, 2, 1, 1, 2, 1, 0},          {2, 1, 2, 2, 0, 1, 1, 0, 0, 0, 1, 0, 2, 1, 0},
        {1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0, 1, 2, 1, 0},          {0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0},
        {1, 1, 2, 2, 2, 1, 1, 0, 2, 0, 0, 1, 0, 0, 0},          {0, 0, 0, 0, 2, 1, 1, 0, 0, 0, 2, 1, 0, 0, 0},
        {1, 0, 2, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0},          {1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0},
        {0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1},          {1, 1, 2, 2, 1, 1, 1, 1, 2, 0, 2, 1, 1, 0, 1},
        {1, 1, 2, 2, 2, 1, 0, 0, 1, 2, 1, 1, 0, 1, 1},          {0, 0, 0, 0, 2, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1},
        {0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 2, 0},          {1, 1, 2, 2, 1, 1, 1, 1, 2, 1, 0, 1, 1, 2, 0},
        {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 1, 2, 2, 1},          {1, 1, 2, 2, 0, 0, 0, 1, 0, 2, 1, 1, 2, 2, 1},
        {0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1},       {1, 1, 2, 2, 1, 1, 1, 1, 2, 0, 1, 1, 1, 0, 1, 1},
        {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2},       {1, 1, 2, 2, 1, 0, 0, 1, 2, 0, 1, 1, 1, 0, 0, 2},
        {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 1, 2, 2, 1, 2},       {1, 1, 2, 2, 0, 0, 0, 1, 0, 2, 1, 1, 2, 2, 1, 2},
        {2, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 1},    {2, 0, 2, 2, 1, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 2},
        {0, 0, 2, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 2},    {2, 1, 2, 2, 2, 1, 0, 0, 1, 2, 1, 1, 0, 1, 1, 0, 1},
        {2, 0, 1, 2, 1, 0, 0, 0, 0, 0, 1, 1, 2, 2, 1, 2, 2},    {0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 1, 1, 0, 0},
        {0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1}, {1, 1, 2, 2, 1, 1, 1, 1, 2, 0, 1, 1, 2, 0, 0, 0, 0, 1},
        {0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 2, 1, 0, 0, 1, 0, 0, 2}, {1, 1, 2, 2, 2, 1, 1, 1, 1, 2, 1, 1, 0, 0, 1, 0, 0, 2},
        {2, 0, 2, 2, 1, 2, 0, 1, 0, 0, 1, 1, 2, 2, 1, 0, 2, 2}, {0, 0, 1, 1, 0, 2, 1, 0, 1, 1, 0, 0, 2, 2, 1, 0, 0, 2},
        {1, 1, 2, 2, 1, 2, 0, 1, 2, 1, 2, 1, 1, 0, 0},          {1, 1, 2, 2, 1, 2, 1, 1, 0, 0, 0, 1, 1, 0, 0},
        {0, 0, 1, 1, 0, 2, 1, 0, 1, 0, 1, 0, 2, 1, 1},          {1, 0, 2, 2, 0, 2, 1, 1, 0, 2, 1, 1, 2, 1, 1},
        {1, 2, 2, 2, 1, 2, 0, 1, 2, 1, 2, 1, 1, 0, 0},          {1, 2, 2, 1, 0, 1, 1, 1, 1, 0, 1, 1, 2, 2, 1},
    };

    for (size_t i = 0; i < sizeof(corners) / sizeof(corners[0]); i++)
        (void)run_cell(corners[i]);
}

/* --- pairs --- */

#define TRIES 6u /* refused cells with a pair before it is given up: few budgets let a midway device keep state */

struct pairs {
    bool covered[AXES][4][AXES][4]; /* in this round */
    bool ever[AXES][4][AXES][4];
    uint8_t refused[AXES][4][AXES][4]; /* cells with this pair that were refused, in this round */
};

static bool open_pair(const struct pairs *p, uint32_t a, uint32_t x, uint32_t b, uint32_t y)
{
    return !p->covered[a][x][b][y] && p->refused[a][x][b][y] < TRIES;
}

static uint32_t open_pairs(const struct pairs *p)
{
    uint32_t open = 0;

    for (uint32_t a = 0; a < AXES; a++)
        for (uint32_t b = a + 1; b < AXES; b++)
            for (uint32_t x = 0; x < values[a]; x++)
                for (uint32_t y = 0; y < values[b]; y++)
                    open += open_pair(p, a, x, b, y);
    return open;
}

/* Greedy: axes in a seeded order, each takes the value that closes most open pairs with those chosen before it. */
static void next_cell(const struct pairs *p, uint64_t seed, uint32_t v[AXES])
{
    for (uint32_t i = 0; i < AXES; i++) {
        const uint32_t a = (uint32_t)st_rng_permute(i, AXES, seed, 1);
        uint32_t best = 0, best_score = 0;

        for (uint32_t k = 0; k < values[a]; k++) {
            const uint32_t x = (uint32_t)((k + st_rng_u64(seed, 2, i)) % values[a]);
            uint32_t score = 1;

            for (uint32_t j = 0; j < i; j++) {
                const uint32_t b = (uint32_t)st_rng_permute(j, AXES, seed, 1);

                score += a < b ? open_pair(p, a, x, b, v[b]) : open_pair(p, b, v[b], a, x);
            }
            if (score > best_score) {
                best_score = score;
                best = x;
            }
        }
        v[a] = best;
    }
}

static void mark(struct pairs *p, const uint32_t v[AXES], bool planned)
{
    for (uint32_t a = 0; a < AXES; a++) {
        for (uint32_t b = a + 1; b < AXES; b++) {
            if (planned)
                p->covered[a][v[a]][b][v[b]] = p->ever[a][v[a]][b][v[b]] = true;
            else if (p->refused[a][v[a]][b][v[b]] < 255)
                p->refused[a][v[a]][b][v[b]]++;
        }
    }
}

/* Pairs no cell need have: a device smaller than all with something kept on it; what an update in backward excludes; kernels that
 * this processor lacks. */
static bool may_be_refused(uint32_t a, uint32_t x, uint32_t b, uint32_t y)
{
    if (paced && ((b == A_CLIP && y == 1) || (a == A_CLIP && (x == 1 || (x == 2 && b == A_DTYPE && y == 2)))))
        return true;
    if (b == A_ADAPTERS && a == A_CLIP && x == 1 && y != 0)
        return true;
    if (a == A_UPDATE && x == 2 && ((b == A_CLIP && y != 0) || (b == A_DTYPE && y == 2)))
        return true;
    if ((a == A_ISA && x == 2) || (b == A_ISA && y == 2))
        return st_kernels_pick("avx512") == NULL;
    return a == A_DEVICE && x != 0 && (b == A_OPTIMIZER || b == A_PARAM) && y == 0;
}

/* Pairs that some planned cell should have had, and none has. */
static uint32_t uncovered_pairs(const struct pairs *p, bool print)
{
    uint32_t uncovered = 0;

    for (uint32_t a = 0; a < AXES; a++)
        for (uint32_t b = a + 1; b < AXES; b++)
            for (uint32_t x = 0; x < values[a]; x++)
                for (uint32_t y = 0; y < values[b]; y++)
                    if (!p->ever[a][x][b][y] && !may_be_refused(a, x, b, y)) {
                        uncovered++;
                        if (print)
                            printf("FAIL no planned cell has axis %u = %u with axis %u = %u\n", a, x, b, y);
                    }
    return uncovered;
}

static void run_pairs(uint64_t wanted)
{
    static struct pairs p;
    uint64_t seed = 1;

    while (cells_run - cells_refused < wanted || (uncovered_pairs(&p, false) > 0 && cells_run < 8 * wanted)) {
        uint32_t v[AXES];
        bool planned;

        next_cell(&p, seed++, v);
        planned = run_cell(v);
        mark(&p, v, planned);      /* as normalised */
        if (open_pairs(&p) == 0) { /* once more, with other cells */
            memset(p.covered, 0, sizeof(p.covered));
            memset(p.refused, 0, sizeof(p.refused));
        }
    }
    failures += uncovered_pairs(&p, true);
}

/* --- full --- */

static uint64_t full_product(void)
{
    uint64_t total = 1;

    for (uint32_t a = 0; a < AXES; a++)
        total *= values[a];
    return total;
}

/* An axis of one value is none. */
static bool is_said(const char *path)
{
    char *text = NULL, axes[32], cells[48];
    FILE *file = fopen(path, "re");
    size_t capacity = 0;
    uint32_t count = 0;
    bool said;

    for (uint32_t a = 0; a < AXES; a++)
        count += values[a] > 1;
    snprintf(axes, sizeof(axes), "%u axes", count);
    snprintf(cells, sizeof(cells), "%.1f million cells", (double)full_product() * 1e-6);
    said =
        file != NULL && getdelim(&text, &capacity, '\0', file) > 0 && strstr(text, axes) != NULL && strstr(text, cells) != NULL;
    if (!said)
        printf("FAIL %s does not say \"%s\" and \"%s\"\n", path, axes, cells);
    if (file != NULL)
        fclose(file);
    free(text);
    return said;
}

/* Every `slices`-th cell from number `slice` on. */
static void run_full(uint64_t slice, uint64_t slices)
{
    const uint64_t total = full_product();
    uint64_t done = 0;

    for (uint64_t i = slice; i < total; i += slices) {
        uint32_t v[AXES];
        uint64_t rest = i;

        for (uint32_t a = 0; a < AXES; a++) {
            v[a] = (uint32_t)(rest % values[a]);
            rest /= values[a];
        }
        (void)run_cell(v);
        if (++done % 500 == 0) {
            printf("%llu of %llu cells\n", (unsigned long long)done, (unsigned long long)((total - slice + slices - 1) / slices));
            fflush(stdout);
        }
    }
}

static void print_group(uint32_t i)
{
    static const char *const dtypes[] = {"bf16", "fp32", "fp16"}, *const clips[] = {"never", "sometimes", "always"};
    static const char *const moments[] = {"fp32", "bf16", "8bit"}, *const adapters[] = {"", " lora", " lora nf4"};
    const struct rig_result *r = &groups[i].first;

    printf("group %s%s g=%u in %u leaves, clip %s %s, moments %s: clipped %u, skipped %u of %u steps, loss %.6f -> %.6f, weights "
           "%s state %s\n",
           i % 2 == 0 ? "gpt2" : "llama", adapters[i / GROUPS_OF_MODEL], i / 18 % 3 == 0 ? 1 : 4, i / 18 % 3 == 2 ? 4 : 1,
           clips[i / 6 % 3], dtypes[i / 2 % 3], moments[i / GROUPS_OF_FORMAT % 3], r->clipped, r->skipped, STEPS, r->losses[0],
           r->losses[STEPS - 1], r->weights, r->state);
}

/* A group is what it says: clips some steps and not others; skips some fp16 steps and applies others.  Gradients of adapters are
 * fp32, and need not overflow. */
static void judge_group(uint32_t i)
{
    const struct rig_result *r = &groups[i].first;
    const uint32_t applied = STEPS - r->skipped;

    if (paced) /* seeded gradients neither shrink nor overflow */
        return;
    if (i / 6 % 3 == 1 && i / 2 % 3 != 2 && (r->clipped == 0 || r->clipped == STEPS)) {
        failures++;
        printf("FAIL group %u was to clip some steps and not others\n", i);
    }
    if (i / 2 % 3 == 2 ? ((r->skipped == 0 && i < GROUPS_OF_MODEL) || applied == 0) : r->skipped != 0) {
        failures++;
        printf("FAIL group %u skipped %u of %u steps\n", i, r->skipped, STEPS);
    }
}

/* Leaves change a sum's last bits, of which the roundings of a few steps to 16 bits may show none in the weights, and those of
 * moments to fewer bits none in the few that adapters have. */
static bool differ_in_leaves(uint32_t i, uint32_t j)
{
    return i % 18 == j % 18 && i / GROUPS_OF_FORMAT == j / GROUPS_OF_FORMAT && i / 18 % 3 == 1 && j / 18 % 3 == 2;
}

/* Moments are used in full by the step that makes them: groups that differ in their format have the weights of one step. */
static bool share_weights(uint32_t i, uint32_t j)
{
    return differ_in_leaves(i, j) || (i % GROUPS_OF_FORMAT == j % GROUPS_OF_FORMAT &&
                                      i / GROUPS_OF_MODEL == j / GROUPS_OF_MODEL && STEPS - groups[i].first.skipped == 1);
}

static bool share_state(uint32_t i, uint32_t j)
{
    return differ_in_leaves(i, j) && i >= GROUPS_OF_MODEL && i / GROUPS_OF_FORMAT % 3 > 0;
}

static void compare_groups(void)
{
    uint32_t seen = 0;

    for (uint32_t i = 0; i < GROUPS; i++) {
        seen += groups[i].seen;
        for (uint32_t j = i + 1; j < GROUPS && groups[i].seen; j++) {
            const bool weights = strcmp(groups[i].first.weights, groups[j].first.weights) == 0;
            const bool held = strcmp(groups[i].first.state, groups[j].first.state) == 0;

            if (groups[j].seen && ((weights && !share_weights(i, j)) || (held && (weights || !share_state(i, j))))) {
                failures++;
                printf("FAIL groups %u and %u have equal digests\n", i, j);
            }
        }
        if (groups[i].seen) {
            print_group(i);
            judge_group(i);
        }
    }
    printf("cells %u, refused %u, groups %u, distinct digests per group %s\n", cells_run, cells_refused, seen,
           failures == 0 ? "1" : "not 1");
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "corners";

    if (strcmp(mode, "said") == 0)
        return argc > 2 && is_said(argv[2]) ? 0 : 1;
    paced = strcmp(mode, "paced") == 0;
    if (strcmp(mode, "moments") == 0) {
        values[A_MOMENTS] = 3;
        values[A_CLIP] = 1; /* as many groups as pairs has */
    }
    if (mkdtemp(nvme_dir) == NULL) {
        perror("mkdtemp");
        return 1;
    }
    if (strcmp(mode, "full") == 0)
        run_full(argc > 3 ? strtoull(argv[2], NULL, 10) : 0, argc > 3 ? strtoull(argv[3], NULL, 10) : 1);
    else if (strcmp(mode, "pairs") == 0 || strcmp(mode, "moments") == 0 || paced)
        run_pairs(argc > 2 ? strtoull(argv[2], NULL, 10) : PAIR_CELLS);
    else
        run_corners();
    compare_groups();
    if (rmdir(nvme_dir) != 0) {
        printf("FAIL the swap directory is not empty after the runs\n");
        failures++;
    }
    printf("%u passed, %u failed\n", cells_run - (failures < cells_run ? failures : cells_run), failures);
    return failures == 0 ? 0 : 1;
}
