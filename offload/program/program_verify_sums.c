/* program_verify_sums.c - see program_verify.h.
 *
 * A replay of the ops that make sums, of a first step and a further one, with what each buffer's sum has: a run of micro-batches.
 * That an op finds the sum that it is meant to find is proven by then (program_verify.c). */
#include "offload/program/program_verify.h"

#include "core/base/error.h"

#include <stdlib.h>

/* Additions that a sum has, [first, end): each micro-batch adds as often as the page has uses that add. */
struct run {
    uint32_t first, end;
};

struct sums {
    const struct st_program *program;
    struct run *runs; /* [buffer_count] */
};

static strata_status misadded(const struct st_program *program, const struct st_op *op, const struct run *run)
{
    return st_error(STRATA_E_INTERNAL, "verify: op %u (%s): the sum of page %u has additions %u to %u, which is not its turn",
                    (unsigned)(op - program->ops), st_op_name((enum st_op_kind)op->kind), op->page, run->first, run->end);
}

static uint32_t adds_of(const struct st_program *program, uint32_t page)
{
    const uint32_t adds = st_page_adds(&program->workload.pages[page]);

    return adds > 0 ? adds : 1;
}

static bool has_all(const struct st_program *program, const struct run *run, uint32_t page)
{
    return run->first == 0 && run->end == program->workload.grad_accum * adds_of(program, page);
}

/* How many layers above the op's add to the page before it does. */
static uint32_t uses_above(const struct st_workload *w, const struct st_op *op, uint32_t page)
{
    uint32_t uses = 0;

    for (uint32_t l = op->layer + 1; l < w->layer_count && st_page_adds(&w->pages[page]) > 1; l++)
        uses += st_layer_has(w, l, page);
    return uses;
}

/* A micro-batch begins its leaf or follows on those before it, layer by layer from the top. */
static bool add_micro(struct sums *s, const struct st_op *op, const struct st_access *a)
{
    const struct st_program *program = s->program;
    const uint32_t page = a->index % program->workload.page_count, use = uses_above(&program->workload, op, page);
    const uint32_t at = op->micro * adds_of(program, page) + use;
    const bool first = op->micro % st_leaf_micros(program) == 0 && use == 0;
    struct run *run = &s->runs[a->buffer];

    if ((a->mode == ST_WRITE) != first || (!first && run->end != at))
        return false;
    *run = (struct run){first ? at : run->first, at + 1};
    return true;
}

/* Whether a tree over the leaves of both is split where the right one begins. */
static bool may_reduce(const struct st_program *program, uint32_t page, const struct run *left, const struct run *right)
{
    const uint32_t leaf = st_leaf_micros(program) * adds_of(program, page), count = (right->end - left->first) / leaf;
    uint32_t split = 1;

    while (split * 2 < count)
        split *= 2;
    return left->end == right->first && left->end > left->first && right->end > right->first && left->first % leaf == 0 &&
           right->end % leaf == 0 && left->end - left->first == split * leaf;
}

static strata_status reduce(struct sums *s, const struct st_op *op)
{
    struct run *left = &s->runs[st_op_access(s->program->accesses, op, ST_ROLE_SUM)->buffer];
    struct run *right = &s->runs[st_op_access(s->program->accesses, op, ST_ROLE_ADDEND)->buffer];

    if (!may_reduce(s->program, op->page, left, right))
        return misadded(s->program, op, right);
    left->end = right->end;
    *right = (struct run){0, 0};
    return STRATA_OK;
}

/* The lookup's gradients come after everything else; an untied table has nothing else. */
static strata_status scatter(struct sums *s, const struct st_op *op)
{
    for (uint32_t i = op->access_first; i < op->access_first + op->access_count; i++) {
        const struct st_access *a = &s->program->accesses[i];
        const uint32_t page = a->index % s->program->workload.page_count;
        struct run *run = &s->runs[a->buffer];

        if (a->role != ST_ROLE_SUM)
            continue;
        if (!op->first && !has_all(s->program, run, page))
            return misadded(s->program, op, run);
        *run = (struct run){0, s->program->workload.grad_accum * adds_of(s->program, page)};
    }
    return STRATA_OK;
}

static strata_status replay_op(struct sums *s, const struct st_op *op)
{
    const struct st_access *accesses = s->program->accesses;
    const struct st_access *sum = st_op_access(accesses, op, ST_ROLE_SUM);

    switch ((enum st_op_kind)op->kind) {
    case ST_OP_REDUCE_SUM:
        return reduce(s, op);
    case ST_OP_SCATTER_DEVICE:
    case ST_OP_SCATTER_HOST:
    case ST_OP_SCATTER_MICRO:
        return scatter(s, op);
    case ST_OP_ROUND_SUM:
    case ST_OP_EXCHANGE_GRAD:
    case ST_OP_REDUCE_RANKS:
    case ST_OP_FINISH_GRAD:
    case ST_OP_FINISH_HOST:
        return has_all(s->program, &s->runs[sum->buffer], op->page) ? STRATA_OK : misadded(s->program, op, &s->runs[sum->buffer]);
    case ST_OP_DOWNLOAD_ACCUM:
    case ST_OP_UPLOAD_ACCUM:
        s->runs[st_op_access(accesses, op, ST_ROLE_TO)->buffer] = s->runs[st_op_access(accesses, op, ST_ROLE_FROM)->buffer];
        return STRATA_OK;
    default:
        for (uint32_t i = op->access_first; i < op->access_first + op->access_count; i++)
            if (accesses[i].role == ST_ROLE_SUM && !add_micro(s, op, &accesses[i]))
                return misadded(s->program, op, &s->runs[accesses[i].buffer]);
        return STRATA_OK;
    }
}

strata_status st_verify_sums(const struct st_program *program)
{
    struct sums s = {.program = program, .runs = calloc((size_t)program->buffer_count + 1, sizeof(*s.runs))};
    strata_status st = STRATA_OK;

    if (s.runs == NULL)
        return st_nomem(((size_t)program->buffer_count + 1) * sizeof(*s.runs));
    for (size_t cycle = 0; cycle < 2; cycle++)
        for (uint32_t i = 0; i < program->op_count && st == STRATA_OK; i++)
            if ((program->ops[i].phases & (cycle == 0 ? ST_PHASE_PROLOGUE : ST_PHASE_BODY)) != 0)
                st = replay_op(&s, &program->ops[i]);
    free(s.runs);
    return st;
}
