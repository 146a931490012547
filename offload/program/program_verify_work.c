/* program_verify_work.c - see program_verify.h.
 *
 * The replays prove what an op finds, not that the op is there: without it the next one would find what an earlier step has left.
 * So each piece of a step's work has a place in a list, which each cycle must mark once.  Backward needs none: a gradient is only
 * made of a sum that has all micro-batches. */
#include "offload/program/program_verify.h"

#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>

/* Cycles that do it. */
enum when { ALWAYS_BUT_A_FLUSH, STEPS, UPDATES }; /* UPDATES: what is made early is made again where it was not kept */

/* What it is done for, each once. */
enum each {
    EACH_STEP,
    EACH_SCALARS,
    EACH_MICRO,
    EACH_WORLD_MICRO,
    EACH_BLOCK,
    EACH_CHOICE,
    EACH_SLICE,
    EACH_TABLE,
    EACH_STAYING,
    EACH_PAGE,
    EACH_CHUNK,
    EACH_EARLY,
    EACH_ROWS
};

/* What of it a program may do without. */
enum unless {
    ALL,
    WITHOUT_TOKENS,
    WITHOUT_LOOKUP,
    WITHOUT_LOSSES,
    WITHOUT_POSITIONS,
    WITHOUT_HOST_ROWS,
    WITHOUT_SHARED_ROWS,
    WITHOUT_SHARED_TOKENS,
    WITHOUT_RANKS,
    WITHOUT_CUTS,
    WITHOUT_WHOLE_RANKS,
    WITHOUT_CALLER
};

static const struct work {
    enum st_op_kind kinds[3]; /* that do it; the first one again where there are fewer */
    enum each each;
    enum when when;
    enum unless unless;
} works[] = {
#define BY(kind)                                                                                                                 \
    {                                                                                                                            \
        ST_OP_##kind, ST_OP_##kind, ST_OP_##kind                                                                                 \
    }
#define BY_EITHER(a, b)                                                                                                          \
    {                                                                                                                            \
        ST_OP_##a, ST_OP_##b, ST_OP_##b                                                                                          \
    }
    {BY(GATHER_TOKENS), EACH_STEP, ALWAYS_BUT_A_FLUSH, WITHOUT_SHARED_TOKENS},
    {BY(UPLOAD_TOKENS), EACH_STEP, ALWAYS_BUT_A_FLUSH, WITHOUT_TOKENS},
    {BY(GATHER_HOST), EACH_TABLE, ALWAYS_BUT_A_FLUSH, WITHOUT_HOST_ROWS},
    {BY(EXCHANGE_ROWS), EACH_TABLE, ALWAYS_BUT_A_FLUSH, WITHOUT_SHARED_ROWS},
    {BY_EITHER(GATHER_DEVICE, UPLOAD_ROWS), EACH_MICRO, ALWAYS_BUT_A_FLUSH, WITHOUT_LOOKUP},
    {BY(EMBED_FORWARD), EACH_MICRO, ALWAYS_BUT_A_FLUSH, WITHOUT_POSITIONS},
    {BY(PAGE_USE), EACH_STAYING, ALWAYS_BUT_A_FLUSH, ALL},
    {{ST_OP_BLOCK_FORWARD, ST_OP_LAYER_FORWARD, ST_OP_ROUTE_END}, EACH_BLOCK, ALWAYS_BUT_A_FLUSH, ALL},
    {BY(DOWNLOAD_CHOICE), EACH_CHOICE, ALWAYS_BUT_A_FLUSH, ALL},
    {BY(GATHER_CHOICE), EACH_CHOICE, ALWAYS_BUT_A_FLUSH, WITHOUT_CUTS},
    {BY(CHOOSE), EACH_CHOICE, ALWAYS_BUT_A_FLUSH, ALL},
    {BY(CALLER_END), EACH_STEP, ALWAYS_BUT_A_FLUSH, WITHOUT_CALLER},
    {BY(HEAD_NORM), EACH_MICRO, ALWAYS_BUT_A_FLUSH, WITHOUT_LOSSES},
    {BY(HEAD_STATS), EACH_SLICE, ALWAYS_BUT_A_FLUSH, ALL},
    {BY(HEAD_LOSS), EACH_MICRO, ALWAYS_BUT_A_FLUSH, WITHOUT_LOSSES},
    {BY(DOWNLOAD_SCALARS), EACH_SCALARS, ALWAYS_BUT_A_FLUSH, ALL},
    {BY(GATHER_SCALARS), EACH_STEP, ALWAYS_BUT_A_FLUSH, WITHOUT_RANKS},
    {BY(END), EACH_STEP, ALWAYS_BUT_A_FLUSH, ALL},
    {BY(EXCHANGE_DACT), EACH_WORLD_MICRO, STEPS, WITHOUT_RANKS},
    {{ST_OP_SCATTER_DEVICE, ST_OP_SCATTER_HOST, ST_OP_SCATTER_MICRO}, EACH_ROWS, STEPS, ALL},
    {BY_EITHER(FINISH_GRAD, FINISH_HOST), EACH_PAGE, STEPS, ALL},
    {BY(GATHER_GRAD), EACH_PAGE, STEPS, WITHOUT_WHOLE_RANKS},
    {BY_EITHER(UPDATE, UPDATE_DEVICE), EACH_CHUNK, UPDATES, ALL},
    {BY(UPDATE), EACH_EARLY, STEPS, ALL},
#undef BY
#undef BY_EITHER
};
#define WORK_COUNT (sizeof(works) / sizeof(works[0]))

static const struct {
    enum st_phase phase;
    const char *name;
} cycles[] = {{ST_PHASE_PROLOGUE, "the prologue"},
              {ST_PHASE_BODY, "the body"},
              {ST_PHASE_EPILOGUE, "the epilogue"},
              {ST_PHASE_EVAL, "an evaluation"},
              {ST_PHASE_BODY_REDO, "a body that makes updates again"},
              {ST_PHASE_PROLOGUE | ST_PHASE_LATE, "a prologue without early updates"},
              {ST_PHASE_BODY | ST_PHASE_LATE, "a body without early updates"},
              {ST_PHASE_BODY_REDO | ST_PHASE_LATE, "a body that makes updates again, and none early"}};
#define CYCLES_COMMON 4u /* the others are of programs with early updates */

static uint32_t world_micros(const struct st_program *program)
{
    return program->ranks * program->workload.grad_accum;
}

/* How many places it has. */
static uint32_t place_count(const struct st_program *program, enum each each)
{
    const struct st_workload *w = &program->workload;

    switch (each) {
    case EACH_STEP:
    case EACH_SCALARS:
        return 1;
    case EACH_WORLD_MICRO:
        return world_micros(program);
    case EACH_MICRO:
        return w->grad_accum;
    case EACH_BLOCK:
        return st_block_count(w) * w->grad_accum;
    case EACH_CHOICE:
        return w->experts > 0 ? w->layer_count : 0;
    case EACH_SLICE:
        return st_slice_count(w) * w->grad_accum;
    case EACH_TABLE:
        return w->gathered_count;
    case EACH_STAYING:
        return st_workload_stay(w);
    case EACH_PAGE:
        return w->page_count;
    case EACH_CHUNK:
    case EACH_EARLY:
        return program->chunk_count;
    case EACH_ROWS: /* of each slice of the table those of each micro-batch, of all ranks */
        return w->gathered_count * world_micros(program);
    }
    return 0;
}

/* Places that an op marks: `count` from `first` on, `apart` from each other. */
struct marks {
    uint32_t first, count, apart;
};

static struct marks rows_of(const struct st_program *program, const struct st_op *op)
{
    const uint32_t micros = world_micros(program), slice = op->page;
    const uint32_t micro = st_program_global_micro(program, op->micro);

    switch ((enum st_op_kind)op->kind) {
    case ST_OP_SCATTER_DEVICE:
        return (struct marks){slice * micros, micros, 1};
    case ST_OP_SCATTER_HOST:
        return (struct marks){micro, program->workload.gathered_count, micros};
    default:
        return (struct marks){slice * micros + micro, 1, 1};
    }
}

static struct marks marks_of(const struct st_program *program, const struct st_op *op, enum each each)
{
    const uint32_t g = program->workload.grad_accum;
    uint32_t to;

    switch (each) {
    case EACH_STEP:
        return (struct marks){0, 1, 1};
    case EACH_SCALARS: /* the same kind also brings the device's overflows */
        to = st_op_access(program->accesses, op, ST_ROLE_TO)->buffer;
        return (struct marks){0, to == program->at.scalars_host ? 1 : 0, 1};
    case EACH_WORLD_MICRO:
        return (struct marks){st_program_global_micro(program, op->micro), 1, 1};
    case EACH_MICRO:
        return (struct marks){op->micro, 1, 1};
    case EACH_BLOCK:
        return (struct marks){(op->layer - st_block_first(&program->workload)) * g + op->micro, 1, 1};
    case EACH_CHOICE:
        return (struct marks){op->layer, 1, 1};
    case EACH_SLICE:
        return (struct marks){op->slice * g + op->micro, 1, 1};
    case EACH_TABLE:
    case EACH_STAYING:
        return (struct marks){op->page, 1, 1};
    case EACH_PAGE:
        return (struct marks){op->page, 1, 1};
    case EACH_CHUNK:
    case EACH_EARLY:
        return (struct marks){op->chunk, 1, 1};
    case EACH_ROWS:
        return rows_of(program, op);
    }
    return (struct marks){0, 0, 1};
}

/* Whether a place must be marked in a cycle that does this work: of what is not trained none. */
static bool is_due(const struct st_program *program, enum each each, uint32_t place, enum st_phase phase)
{
    if (each == EACH_EARLY || (each == EACH_CHUNK && program->pages[program->chunks[place].page].early && st_phase_keeps(phase)))
        return each == EACH_EARLY && program->pages[program->chunks[place].page].early && (phase & ST_PHASE_LATE) == 0;
    if (each == EACH_CHOICE)
        return program->workload.layers[place].kind == ST_LAYER_EXPERTS;
    if (each == EACH_PAGE)
        return program->pages[place].grad != ST_WHERE_NONE;
    if (each == EACH_ROWS || each == EACH_WORLD_MICRO)
        return program->workload.gathered_count > 0 && program->pages[0].grad != ST_WHERE_NONE;
    return each != EACH_CHUNK || program->chunks[place].state != ST_WHERE_NONE;
}

static bool is_done_in(const struct st_program *program, enum when when, enum st_phase phase)
{
    switch (when) {
    case STEPS:
        return (phase & (ST_PHASE_PROLOGUE | ST_PHASE_BODY)) != 0;
    case UPDATES:
        return (phase & (ST_PHASE_BODY | (st_program_gated(program) ? ST_PHASE_EPILOGUE : ST_PHASE_PROLOGUE))) != 0;
    default:
        return phase != ST_PHASE_EPILOGUE;
    }
}

static bool has_kind(const struct st_program *program, enum st_op_kind kind)
{
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].kind == kind)
            return true;
    return false;
}

static bool is_needed(const struct st_program *program, enum unless unless)
{
    const struct st_workload *w = &program->workload;

    switch (unless) {
    case WITHOUT_CALLER:
        return st_program_called(program);
    case WITHOUT_TOKENS:
        return w->vocab > 0;
    case WITHOUT_SHARED_TOKENS:
        return w->vocab > 0 && program->ranks > 1;
    case WITHOUT_LOOKUP:
        return w->gathered_count > 0;
    case WITHOUT_LOSSES:
        return st_slice_count(w) > 0;
    case WITHOUT_POSITIONS:
        return w->gathered_count > 0 && w->layers[0].use_count > w->gathered_count;
    case WITHOUT_HOST_ROWS:
        return has_kind(program, ST_OP_UPLOAD_ROWS);
    case WITHOUT_SHARED_ROWS:
        return has_kind(program, ST_OP_UPLOAD_ROWS) && st_program_cuts(program) > 1;
    case WITHOUT_RANKS:
        return program->ranks > 1;
    case WITHOUT_CUTS:
        return st_program_cuts(program) > 1;
    case WITHOUT_WHOLE_RANKS: /* of which each updates all */
        return program->ranks > 1 && st_program_cuts(program) == 1;
    default:
        return true;
    }
}

static bool does(const struct work *work, const struct st_op *op)
{
    return (op->kind == work->kinds[0] || op->kind == work->kinds[1] || op->kind == work->kinds[2]) &&
           op->early == (work->each == EACH_EARLY);
}

/* marks: room for all places. */
static strata_status verify_cycle(const struct st_program *program, const struct work *work, size_t cycle, uint32_t *marks)
{
    const uint32_t count = place_count(program, work->each);
    const bool done = is_needed(program, work->unless) && is_done_in(program, work->when, cycles[cycle].phase);

    memset(marks, 0, count * sizeof(*marks));
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];
        struct marks m;

        if (!does(work, op) || !st_op_runs(op, cycles[cycle].phase))
            continue;
        m = marks_of(program, op, work->each);
        for (uint32_t k = 0; k < m.count; k++)
            if (m.first + k * m.apart < count)
                marks[m.first + k * m.apart]++;
    }
    for (uint32_t i = 0; i < count; i++)
        if (marks[i] != (done && is_due(program, work->each, i, cycles[cycle].phase) ? 1 : 0))
            return st_error(STRATA_E_INTERNAL, "verify: %s number %u is done %u times in %s, not %s", st_op_name(work->kinds[0]),
                            i, marks[i], cycles[cycle].name, marks[i] == 0 ? "once" : "as often as it is due");
    return STRATA_OK;
}

/* A page's gradients are open until the caller ends the micro-batch, so nothing that waits for them may come before its last
 * layer. */
static strata_status verify_open(const struct st_program *program)
{
    for (uint32_t m = 0; st_program_called(program) && m < program->workload.grad_accum; m++) {
        uint32_t last = 0;

        for (uint32_t i = 0; i < program->op_count; i++)
            if (st_op_rows[program->ops[i].kind].work == ST_WORK_LAYER && program->ops[i].micro == m)
                last = i;
        for (uint32_t i = 0; i < last; i++)
            for (uint32_t k = 0; k < program->ops[i].wait_count; k++) {
                const struct st_wait *wait = &program->waits[program->ops[i].wait_first + k];
                const struct st_op *on = &program->ops[wait->op];

                if (!wait->previous && on->kind == ST_OP_PAGE_GRAD && on->micro == m)
                    return st_error(STRATA_E_INTERNAL,
                                    "verify: op %u (%s) waits for gradients of page %u, which are open until micro-batch %u ends",
                                    i, st_op_name((enum st_op_kind)program->ops[i].kind), on->page, m);
            }
    }
    return STRATA_OK;
}

/* Which slice of a layer's experts is next with a micro-batch, and whether in backward. */
struct turn {
    uint32_t layer, slice;
    bool backward;
};

/* False: it is not this op's turn. */
static bool take_turn(const struct st_program *program, struct turn *turn, const struct st_op *op)
{
    const bool backward = st_op_is_backward((enum st_op_kind)op->kind);
    const bool same = turn->layer == op->layer && turn->backward == backward;

    switch ((enum st_op_kind)op->kind) {
    case ST_OP_ROUTE_FORWARD:
    case ST_OP_ROUTE_AGAIN:
        *turn = (struct turn){.layer = op->layer, .backward = backward};
        return true;
    case ST_OP_DOWNLOAD_CHOICE:
    case ST_OP_GATHER_CHOICE:
    case ST_OP_CHOOSE:
        return same && turn->slice == 0;
    case ST_OP_EXPERTS_FORWARD:
    case ST_OP_EXPERTS_BACKWARD:
        return same && turn->slice++ == op->slice;
    default:
        return same && turn->slice == st_layer_slices(&program->workload.layers[op->layer]);
    }
}

/* The parts of a layer of experts follow one another, its slices in ascending order, in which their experts add. */
static strata_status verify_parts(const struct st_program *program)
{
    const uint32_t g = program->workload.grad_accum;
    struct turn *turns = calloc(g, sizeof(*turns));
    strata_status st = STRATA_OK;

    if (turns == NULL)
        return st_nomem(g * sizeof(*turns));
    for (size_t cycle = 0; cycle < sizeof(cycles) / sizeof(cycles[0]); cycle++)
        for (uint32_t i = 0; i < program->op_count && st == STRATA_OK; i++) {
            const struct st_op *op = &program->ops[i];

            if (st_op_in_parts((enum st_op_kind)op->kind) && st_op_runs(op, cycles[cycle].phase) &&
                !take_turn(program, &turns[op->micro], op))
                st = st_error(STRATA_E_INTERNAL, "verify: op %u (%s) of layer %u, micro-batch %u is out of turn", i,
                              st_op_name((enum st_op_kind)op->kind), op->layer, op->micro);
        }
    free(turns);
    return st;
}

strata_status st_verify_work(const struct st_program *program)
{
    uint32_t most = 0, *marks;
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < WORK_COUNT; i++)
        if (place_count(program, works[i].each) > most)
            most = place_count(program, works[i].each);
    if ((marks = malloc((most + 1) * sizeof(*marks))) == NULL)
        return st_nomem((most + 1) * sizeof(*marks));
    for (size_t i = 0; i < WORK_COUNT; i++)
        for (size_t cycle = 0; cycle < sizeof(cycles) / sizeof(cycles[0]) && st == STRATA_OK; cycle++)
            if (program->early_pages > 0 || cycle < CYCLES_COMMON)
                st = verify_cycle(program, &works[i], cycle, marks);
    free(marks);
    if (st == STRATA_OK)
        st = verify_parts(program);
    return st == STRATA_OK ? verify_open(program) : st;
}
