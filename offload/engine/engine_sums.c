/* engine_sums.c - what becomes of a page's sums: those of leaves and of ranks are added up, and what a rank keeps is rounded
 * once, with its norms. */
#include "offload/engine/engine_internal.h"

#include <string.h>

strata_status st_engine_reduce_sum(struct st_engine *eng, const struct st_op *op)
{
    return eng->device->ops->reduce(eng->device, st_engine_operand(eng, op, ST_ROLE_SUM),
                                    st_engine_operand(eng, op, ST_ROLE_ADDEND), STRATA_F32,
                                    eng->program->workload.pages[op->page].trained_elems);
}

/* --- rounding --- */

/* Goes through what a rank rounds of a page: its groups, or with several ranks the runs of tiles of its slices of them, each of
 * which has a norm. */
struct finish {
    const struct st_program *program;
    uint32_t page, group;
    bool cut;           /* the sum is of only the shard */
    uint64_t tile, end; /* of the group: the next run's first, the slice's end */
    struct st_slice slice;
    /* out */
    strata_dtype format;      /* of the group */
    uint64_t from, to, elems; /* elements from the sum's start, bytes from the gradient's; how many elements */
    uint32_t norm;            /* its index among the step's */
    bool opens;               /* it is the first that counts for this norm */
};

static void finish_open(struct finish *f, const struct st_engine *eng, uint32_t page, bool cut)
{
    *f = (struct finish){.program = eng->program, .page = page, .group = UINT32_MAX, .cut = cut, .opens = true};
    f->norm = eng->program->norm_first[page];
}

static bool finish_next_group(struct finish *f)
{
    const struct st_program *program = f->program;
    const struct st_page *page = &program->workload.pages[f->page];
    uint32_t runs;

    do
        f->group++;
    while (f->group < page->group_count && page->groups[f->group].kind == ST_GROUP_FROZEN);
    if (f->group >= page->group_count)
        return false;
    f->slice = st_slice_of(&program->workload, f->page, f->group, program->ranks, program->rank);
    f->tile = f->slice.first / ST_TILE_ELEMS;
    f->end = f->slice.elems == 0 ? f->tile : (f->slice.first + f->slice.elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS;
    if (program->ranks > 1)
        f->norm = st_norms_of(program, f->page, f->group, program->rank, &runs) - 1;
    return true;
}

static bool finish_next(struct finish *f)
{
    const struct st_program *program = f->program;
    const struct st_page *page = &program->workload.pages[f->page], *shard = &program->shards[f->page];
    const bool first = f->group == UINT32_MAX;
    const struct st_page *to = st_program_cuts(program) > 1 ? shard : page;
    uint64_t tiles, at, own;

    while (f->tile == f->end)
        if (!finish_next_group(f))
            return false;
    tiles = program->ranks > 1 ? st_norm_run(f->tile, f->end) : f->end - f->tile;
    at = f->tile * ST_TILE_ELEMS - f->slice.first;
    f->elems = tiles * ST_TILE_ELEMS < f->slice.elems - at ? tiles * ST_TILE_ELEMS : f->slice.elems - at;
    f->tile += tiles;
    f->from = f->cut ? shard->groups[f->group].offset + at : page->groups[f->group].offset + f->slice.first + at;
    own = to == shard ? at : f->slice.first + at;
    f->format = page->groups[f->group].format;
    f->to = to->groups[f->group].at + st_format_bytes(f->format, own);
    f->opens = first || program->ranks > 1;
    f->norm += program->ranks > 1;
    return true;
}

struct finish_job {
    const struct st_kernels *kernels;
    strata_dtype dt;
    const float *acc;
    unsigned char *out;
    uint64_t elems;
    double *sums;
    _Atomic uint64_t nonfinite;
};

static void finish_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    struct finish_job *j = ctx;
    const uint64_t first = tile * ST_TILE_ELEMS, left = j->elems - first;
    const uint64_t elems = left < ST_TILE_ELEMS ? left : ST_TILE_ELEMS;
    const uint64_t bad = j->kernels->grad_finish(j->out + first * strata_dtype_bytes(j->dt), j->dt, j->acc + first, elems,
                                                 j->sums + first / ST_NORM_BLOCK);

    (void)worker;
    if (bad != 0)
        atomic_fetch_add(&j->nonfinite, bad);
}

strata_status st_engine_finish_host(struct st_engine *eng, const struct st_op *op)
{
    const float *sum = st_engine_operand(eng, op, ST_ROLE_SUM);
    unsigned char *grad = st_engine_operand(eng, op, ST_ROLE_GRAD);
    struct st_norm *norms = st_engine_operand(eng, op, ST_ROLE_NORMS);
    struct finish f;

    finish_open(&f, eng, op->page, eng->program->pages[op->page].sum_cut);
    while (finish_next(&f)) {
        struct finish_job j = {.kernels = eng->kernels,
                               .dt = f.format,
                               .acc = sum + f.from,
                               .out = grad + f.to,
                               .elems = f.elems,
                               .sums = eng->block_sums};
        struct st_norm *norm = &norms[f.norm];

        st_workers_run(eng->workers, finish_tile, &j, (f.elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS);
        if (f.opens)
            *norm = (struct st_norm){0};
        norm->norm2 += st_norm_group(j.sums, (f.elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK);
        norm->nonfinite += j.nonfinite;
    }
    return STRATA_OK;
}

strata_status st_engine_finish_grad(struct st_engine *eng, const struct st_op *op)
{
    const float *sum = st_engine_operand(eng, op, ST_ROLE_SUM);
    unsigned char *grad = st_engine_operand(eng, op, ST_ROLE_GRAD);
    struct st_norm *norms = st_engine_operand(eng, op, ST_ROLE_SCALARS);
    strata_status st = STRATA_OK;
    struct finish f;

    finish_open(&f, eng, op->page, false);
    while (st == STRATA_OK && finish_next(&f)) {
        struct st_norm *norm = &norms[f.norm];

        if (f.opens)
            st = eng->device->ops->zero(eng->device, norm, sizeof(*norm));
        if (st == STRATA_OK)
            st = eng->device->ops->grad_finish(eng->device, grad + f.to, f.format, sum + f.from, f.elems,
                                               st_engine_operand(eng, op, ST_ROLE_WORKSPACE), &norm->norm2, &norm->nonfinite);
    }
    return st;
}

/* --- between ranks --- */

strata_status st_engine_round_sum(struct st_engine *eng, const struct st_op *op)
{
    const struct st_program *program = eng->program;
    const struct st_page *page = &program->workload.pages[op->page];
    const float *sum = st_engine_operand(eng, op, ST_ROLE_SUM);
    unsigned char *wire = st_engine_operand(eng, op, ST_ROLE_WIRE), *to = wire + st_program_wire_leaving(program, op->page);
    struct st_norm *unread = (struct st_norm *)(void *)(wire + st_program_wire_slot(program, op->page) - ST_WIRE_BESIDE);
    strata_status st = STRATA_OK;

    for (uint32_t r = 0; r < program->ranks; r++)
        for (uint32_t i = 0; i < page->group_count && st == STRATA_OK; i++) {
            const struct st_slice s = st_slice_of(&program->workload, op->page, i, program->ranks, r);

            if (r == program->rank || page->groups[i].kind == ST_GROUP_FROZEN || s.elems == 0)
                continue;
            st = eng->device->ops->grad_finish(eng->device, to, STRATA_BF16, sum + page->groups[i].offset + s.first, s.elems,
                                               st_engine_operand(eng, op, ST_ROLE_WORKSPACE), &unread->norm2, &unread->nonfinite);
            to += s.elems * sizeof(uint16_t);
        }
    return st;
}

/* The ranks' sums of the own slice of one group.  Those of other ranks lie on the wire; in bf16 they are widened as they are
 * added, and a sum of two of them lies where what was sent lay. */
struct reduce {
    struct st_engine *eng;
    float *own, *spare;  /* spare: room for sums that the rank's own is not in */
    unsigned char *wire; /* of the first of the other ranks */
    uint64_t stride;     /* bytes from one of them to the next */
    uint64_t elems;
    uint32_t used; /* of spare, in sums */
    strata_status status;
};

/* What a part of the tree has come to: `sum` NULL: a rank's, still on the wire, in bf16. */
struct reduced {
    float *sum;
    const void *wire;
};

static struct reduced sum_of(const struct reduce *f, uint32_t rank)
{
    const uint32_t me = f->eng->program->rank;
    unsigned char *wire = f->wire + (rank < me ? rank : rank - 1) * f->stride;

    if (rank == me)
        return (struct reduced){.sum = f->own};
    return f->eng->program->wire_bf16 ? (struct reduced){.wire = wire} : (struct reduced){.sum = (float *)(void *)wire};
}

static void add(struct reduce *f, float *sum, const void *addend, strata_dtype dt)
{
    if (f->status == STRATA_OK && f->elems > 0)
        f->status = f->eng->device->ops->reduce(f->eng->device, sum, addend, dt, f->elems);
}

/* A place for a rank's sum that is added to. */
static float *widen(struct reduce *f, const void *wire)
{
    float *sum = f->spare + f->used++ * f->elems;

    if (f->status == STRATA_OK && f->elems > 0)
        f->status = f->eng->device->ops->zero(f->eng->device, sum, f->elems * sizeof(*sum));
    add(f, sum, wire, STRATA_BF16);
    return sum;
}

/* Adds up ranks [first, end), in a balanced tree; the sum is in the rank's own place if that is among them. */
static struct reduced reduce_tree(struct reduce *f, uint32_t first, uint32_t end)
{
    uint32_t left = 1;
    struct reduced a, b;

    if (end - first == 1)
        return sum_of(f, first);
    while (2 * left < end - first)
        left *= 2;
    a = reduce_tree(f, first, first + left);
    b = reduce_tree(f, first + left, end);
    if (b.sum == f->own) { /* a sum has the same bits either way round */
        b = a;
        a.sum = f->own;
    }
    if (a.sum == NULL)
        a.sum = widen(f, a.wire);
    if (b.sum == NULL)
        add(f, a.sum, b.wire, STRATA_BF16);
    else
        add(f, a.sum, b.sum, STRATA_F32);
    f->used -= f->eng->program->wire_bf16 && b.sum != NULL; /* the last one taken */
    return a;
}

strata_status st_engine_reduce_ranks(struct st_engine *eng, const struct st_op *op)
{
    const struct st_program *program = eng->program;
    const struct st_page *page = &program->workload.pages[op->page];
    float *sum = st_engine_operand(eng, op, ST_ROLE_SUM);
    struct reduce f = {.eng = eng,
                       .wire = st_engine_operand(eng, op, ST_ROLE_WIRE),
                       .stride = st_program_wire_bytes(program, op->page) / (program->ranks - 1)};

    f.spare = (float *)(void *)(f.wire + st_program_wire_leaving(program, op->page));
    for (uint32_t i = 0; i < page->group_count; i++) {
        const struct st_slice s = st_slice_of(&program->workload, op->page, i, program->ranks, program->rank);

        if (page->groups[i].kind == ST_GROUP_FROZEN)
            continue;
        f.own = sum + page->groups[i].offset + s.first;
        f.elems = s.elems;
        (void)reduce_tree(&f, 0, program->ranks);
        f.wire += s.elems * st_program_wire_width(program);
    }
    return f.status;
}
