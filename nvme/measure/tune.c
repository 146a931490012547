/* nvme/measure/tune.c - see nvme/measure/tune.h. */
#include "nvme/measure/tune.h"

#include "core/base/error.h"
#include "core/trace/stats.h"

#include <assert.h>
#include <string.h>

#define FLAT_STEPS    2u /* the depth walk ends after this many steps without a gain */
#define FINALISTS_MAX 4u /* points of the preferred method */

struct search {
    const struct st_tune_opts *opts;
    struct st_tune_result *out;
    bool last_rounds; /* choose among the points of the last rounds, by their final rates */
    bool refused;     /* a point could not be measured here */
};

static uint64_t in_flight(const struct st_tune_point *p)
{
    return (uint64_t)p->block_bytes * p->queue_depth;
}

/* --- measuring --- */

static strata_status sample(struct search *s, const struct st_tune_point *p, double *rate)
{
    return s->opts->measure(s->opts->ctx, p->method, p->block_bytes, p->queue_depth, rate);
}

static struct st_tune_point *find(struct search *s, uint32_t method, uint32_t block, uint32_t depth)
{
    for (uint32_t i = 0; i < s->out->point_count; i++) {
        struct st_tune_point *p = &s->out->points[i];

        if (p->method == method && p->block_bytes == block && p->queue_depth == depth)
            return p;
    }
    return NULL;
}

/* Measures a point if it is new and within the limits. */
static strata_status visit(struct search *s, enum st_tune_stage stage, uint32_t method, uint32_t block, uint32_t depth)
{
    struct st_tune_point *p;
    strata_status st;

    if ((uint64_t)block * depth > s->opts->bytes_in_flight || s->out->point_count == ST_TUNE_POINTS_MAX ||
        find(s, method, block, depth) != NULL)
        return STRATA_OK;
    p = &s->out->points[s->out->point_count];
    *p = (struct st_tune_point){.method = method, .block_bytes = block, .queue_depth = depth, .stage = stage};
    st = sample(s, p, &p->rate);
    if (st == STRATA_OK)
        s->out->point_count++;
    s->refused = s->refused || st == STRATA_E_NOSYS;
    return st == STRATA_E_NOSYS ? STRATA_OK : st;
}

/* --- choosing --- */

static bool is_candidate(const struct search *s, const struct st_tune_point *p, uint32_t method)
{
    return p->method == method && (!s->last_rounds || p->sample_count > 0);
}

static double rate_of(const struct search *s, const struct st_tune_point *p)
{
    return s->last_rounds ? p->final_rate : p->rate;
}

/* Index of the method's fastest point; UINT32_MAX: it has none. */
static uint32_t fastest_of(const struct search *s, uint32_t method)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < s->out->point_count; i++) {
        const struct st_tune_point *p = &s->out->points[i];

        if (is_candidate(s, p, method) && (best == UINT32_MAX || rate_of(s, p) > rate_of(s, &s->out->points[best])))
            best = i;
    }
    return best;
}

static bool is_cheaper(const struct st_tune_point *a, const struct st_tune_point *b)
{
    return in_flight(a) != in_flight(b) ? in_flight(a) < in_flight(b) : a->block_bytes > b->block_bytes;
}

/* The cheapest point of a method within the tolerance of its best. */
static uint32_t knee_of(const struct search *s, uint32_t method)
{
    const uint32_t best = fastest_of(s, method);
    uint32_t knee = best;

    for (uint32_t i = 0; i < s->out->point_count && best != UINT32_MAX; i++) {
        const struct st_tune_point *p = &s->out->points[i];

        if (is_candidate(s, p, method) && rate_of(s, p) >= rate_of(s, &s->out->points[best]) * (1 - s->opts->tolerance) &&
            is_cheaper(p, &s->out->points[knee]))
            knee = i;
    }
    return knee;
}

/* --- stages --- */

/* Walks up the depths.  One step may be flat by chance; two in a row mean the plateau. */
static strata_status walk_depths(struct search *s)
{
    const uint32_t block = s->opts->blocks[s->opts->first_block];
    uint32_t flat = 0;
    double best = 0;

    for (uint32_t i = 0; i < s->opts->depth_count && flat < FLAT_STEPS; i++) {
        const struct st_tune_point *p;
        strata_status st = visit(s, ST_TUNE_DEPTH, 0, block, s->opts->depths[i]);

        if (st != STRATA_OK)
            return st;
        if ((p = find(s, 0, block, s->opts->depths[i])) == NULL)
            continue;
        flat = p->rate > best * (1 + s->opts->tolerance) ? 0 : flat + 1;
        best = p->rate > best ? p->rate : best;
    }
    return STRATA_OK;
}

/* The smallest depth of the list that reaches these bytes in flight, else the largest. */
static uint32_t depth_for(const struct search *s, uint64_t bytes, uint32_t block)
{
    for (uint32_t i = 0; i < s->opts->depth_count; i++)
        if ((uint64_t)s->opts->depths[i] * block >= bytes)
            return s->opts->depths[i];
    return s->opts->depths[s->opts->depth_count - 1];
}

static strata_status walk_blocks(struct search *s)
{
    const uint32_t knee = knee_of(s, 0);
    strata_status st = STRATA_OK;
    uint64_t bytes;

    if (knee == UINT32_MAX)
        return STRATA_OK;
    bytes = in_flight(&s->out->points[knee]);
    for (uint32_t i = 0; i < s->opts->block_count && st == STRATA_OK; i++)
        st = visit(s, ST_TUNE_BLOCK, 0, s->opts->blocks[i], depth_for(s, bytes, s->opts->blocks[i]));
    return st;
}

/* Neighbour of `value` in an ascending list; the value itself at its end. */
static uint32_t step_from(const uint32_t *list, uint32_t count, uint32_t value, int by)
{
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == value && (int64_t)i + by >= 0 && (int64_t)i + by < (int64_t)count)
            return list[(int64_t)i + by];
    return value;
}

static strata_status visit_neighbours(struct search *s)
{
    const struct st_tune_opts *o = s->opts;
    const uint32_t knee = knee_of(s, 0);
    strata_status st = STRATA_OK;
    struct st_tune_point at;

    if (knee == UINT32_MAX)
        return STRATA_OK;
    at = s->out->points[knee];
    for (int by = -1; by <= 1 && st == STRATA_OK; by += 2) {
        st = visit(s, ST_TUNE_NEAR, 0, at.block_bytes, step_from(o->depths, o->depth_count, at.queue_depth, by));
        if (st == STRATA_OK)
            st = visit(s, ST_TUNE_NEAR, 0, step_from(o->blocks, o->block_count, at.block_bytes, by), at.queue_depth);
    }
    return st;
}

static strata_status visit_methods(struct search *s)
{
    const uint32_t knee = knee_of(s, 0);
    strata_status st = STRATA_OK;

    for (uint32_t m = 1; m < s->opts->method_count && st == STRATA_OK && knee != UINT32_MAX; m++)
        st = visit(s, ST_TUNE_METHOD, m, s->out->points[knee].block_bytes, s->out->points[knee].queue_depth);
    return st;
}

/* Chooses the knee, the fastest points and the best of another method: a single sample may have been good or bad luck. */
static void choose_finalists(const struct search *s, bool chosen[ST_TUNE_POINTS_MAX])
{
    uint32_t count = 1, other = UINT32_MAX;

    chosen[knee_of(s, 0)] = true;
    while (count < FINALISTS_MAX) {
        uint32_t best = UINT32_MAX;

        for (uint32_t i = 0; i < s->out->point_count; i++)
            if (s->out->points[i].method == 0 && !chosen[i] &&
                (best == UINT32_MAX || s->out->points[i].rate > s->out->points[best].rate))
                best = i;
        if (best == UINT32_MAX)
            break;
        chosen[best] = true;
        count++;
    }
    for (uint32_t i = 0; i < s->out->point_count; i++)
        if (s->out->points[i].method != 0 && (other == UINT32_MAX || s->out->points[i].rate > s->out->points[other].rate))
            other = i;
    if (other != UINT32_MAX)
        chosen[other] = true;
}

static strata_status repeat_finalists(struct search *s)
{
    bool chosen[ST_TUNE_POINTS_MAX] = {false};

    choose_finalists(s, chosen);
    for (uint32_t r = 0; r < s->opts->rounds; r++)
        for (uint32_t i = 0; i < s->out->point_count; i++) {
            struct st_tune_point *p = &s->out->points[i];
            strata_status st;

            if (!chosen[i])
                continue;
            if ((st = sample(s, p, &p->samples[p->sample_count])) != STRATA_OK)
                return st;
            p->sample_count++;
        }
    for (uint32_t i = 0; i < s->out->point_count; i++) {
        struct st_tune_point *p = &s->out->points[i];
        double copy[ST_TUNE_SAMPLES_MAX];

        memcpy(copy, p->samples, sizeof(copy));
        p->final_rate = st_stats_median(copy, p->sample_count);
    }
    s->last_rounds = true;
    return STRATA_OK;
}

static void conclude(struct search *s)
{
    struct st_tune_result *out = s->out;

    out->knee = knee_of(s, 0);
    out->fastest = fastest_of(s, 0);
    for (uint32_t m = 1; m < s->opts->method_count; m++) {
        const uint32_t best = fastest_of(s, m);

        if (best == UINT32_MAX)
            continue;
        if (out->points[best].final_rate > out->points[out->knee].final_rate * (1 + s->opts->tolerance))
            out->knee = best;
        if (out->points[best].final_rate > out->points[out->fastest].final_rate)
            out->fastest = best;
    }
}

strata_status st_tune_search(struct st_tune_result *out, const struct st_tune_opts *opts)
{
    struct search s = {.opts = opts, .out = out};
    strata_status st;

    assert(opts->block_count > 0 && opts->block_count <= ST_TUNE_SIZES_MAX && opts->first_block < opts->block_count);
    assert(opts->depth_count > 0 && opts->depth_count <= ST_TUNE_SIZES_MAX);
    assert(opts->method_count > 0 && opts->rounds > 0 && opts->rounds <= ST_TUNE_SAMPLES_MAX);
    *out = (struct st_tune_result){0};
    st = walk_depths(&s);
    if (st == STRATA_OK && out->point_count == 0 && s.refused)
        return STRATA_E_NOSYS; /* its sentence is measure()'s */
    if (st == STRATA_OK && out->point_count == 0)
        return st_error(STRATA_E_INVAL, "no pair of request size and queue depth is within the limit of bytes in flight");
    if (st == STRATA_OK)
        st = walk_blocks(&s);
    if (st == STRATA_OK)
        st = visit_neighbours(&s);
    if (st == STRATA_OK)
        st = visit_methods(&s);
    if (st == STRATA_OK)
        st = repeat_finalists(&s);
    if (st == STRATA_OK)
        conclude(&s);
    return st;
}
