/* engine_comm.c - exchanges between ranks: ops of the comm lane, each a list of parts that go to and come from every other rank.
 *
 * A comm's thread does them in program order (comm_lane.h), which is the same on every rank.  A few jobs take turns, so that the
 * thread has the next exchange when one ends; what a job needs is allocated once. */
#include "offload/comm/comm_lane.h"
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHAT_BYTES 64u

_Static_assert(sizeof(struct st_comm_peer) == ST_EXCHANGE_BYTES && sizeof(struct st_comm_part) == ST_PART_RECORD_BYTES,
               "planned");

struct comm_job {
    struct st_comm_job job;
    struct st_engine *engine;
    uint32_t op;
    bool busy; /* guarded by the engine's lock */
    uint64_t received;
    struct st_trace_record *record;
    char what[WHAT_BYTES];
    struct st_comm_peer *peers; /* [ranks] */
    struct st_comm_part *parts; /* [part_room] */
    uint32_t part_count;
};

struct st_engine_comm {
    struct st_comm *host, *device;
    struct st_comm_lane *host_lane, *device_lane; /* one and the same where the comms are */
    struct comm_job jobs[ST_EXCHANGES];
    uint32_t part_room, next;
    uint64_t busy_ns;             /* of all jobs so far; guarded by the engine's lock */
    struct st_row_range *rows;    /* [gathered_count][ranks] */
    struct st_comm_part *scalars; /* what of a step's scalars each rank has, rank after rank */
    uint32_t scalars_count;       /* of each */
};

static uint32_t rows_of(const struct st_engine *eng)
{
    return eng->program->workload.micro_batch * eng->program->workload.seq;
}

/* --- parts of a job --- */

static void add_part(struct comm_job *j, const void *data, uint64_t bytes)
{
    assert(j->part_count < j->engine->comm->part_room);
    if (bytes > 0)
        j->parts[j->part_count++] = (struct st_comm_part){.data = (void *)(uintptr_t)data, .bytes = bytes};
}

/* Ends a list that began at part `first`. */
static uint32_t listed(const struct comm_job *j, uint32_t first, const struct st_comm_part **out)
{
    *out = &j->parts[first];
    return j->part_count - first;
}

/* A rank's slices of an array; returns how many parts. */
static uint32_t add_slices(struct comm_job *j, const struct st_engine_array *a, uint32_t rank, const struct st_comm_part **out)
{
    const uint32_t first = j->part_count;

    assert(first + ST_GROUPS_MAX <= j->engine->comm->part_room);
    j->part_count += st_engine_slices(&j->parts[first], j->engine, a, rank);
    return listed(j, first, out);
}

static void gather_tokens(struct comm_job *j, const struct st_op *op)
{
    const struct st_engine *eng = j->engine;
    const void *all = st_engine_operand(eng, op, ST_ROLE_TOKENS);
    const uint64_t bytes = st_workload_tokens_bytes(&eng->program->workload);
    const struct st_comm_part *own;

    add_part(j, st_engine_tokens(eng, all, eng->program->rank), bytes);
    (void)listed(j, 0, &own);
    for (uint32_t r = 0; r < eng->program->ranks; r++) {
        const uint32_t from = j->part_count;

        if (r == eng->program->rank)
            continue;
        add_part(j, st_engine_tokens(eng, all, r), bytes);
        j->peers[r] = (struct st_comm_peer){.send = own, .send_count = 1, .recv = &j->parts[from], .recv_count = 1};
    }
}

/* To all others what this rank has chosen, and from each its own. */
static void gather_choice(struct comm_job *j, const struct st_op *op)
{
    const struct st_engine *eng = j->engine;
    const uint64_t bytes = st_workload_choice_bytes(&eng->program->workload);
    const struct st_comm_part *own;

    (void)op;
    add_part(j, st_engine_choice(eng, eng->program->rank), bytes);
    (void)listed(j, 0, &own);
    for (uint32_t r = 0; r < eng->program->ranks; r++) {
        const uint32_t from = j->part_count;

        if (r == eng->program->rank)
            continue;
        add_part(j, st_engine_choice(eng, r), bytes);
        j->peers[r] = (struct st_comm_peer){.send = own, .send_count = 1, .recv = &j->parts[from], .recv_count = 1};
    }
}

/* A rank's slices of a sum, one behind the other at `wire`: cut alike by who sends and who receives them, as a comm on a device
 * wants it (offload/comm/comm_nccl.h).  Returns where they end. */
static unsigned char *add_wire(struct comm_job *j, uint32_t page, uint32_t rank, unsigned char *wire)
{
    const struct st_program *program = j->engine->program;
    const struct st_page *p = &program->workload.pages[page];

    for (uint32_t i = 0; i < p->group_count; i++) {
        const uint64_t bytes =
            st_slice_of(&program->workload, page, i, program->ranks, rank).elems * st_program_wire_width(program);

        if (p->groups[i].kind == ST_GROUP_FROZEN)
            continue;
        add_part(j, wire, bytes);
        wire += bytes;
    }
    return wire;
}

/* To each rank its slices of this one's sum; from each its sum of this one's slices. */
static void exchange_grad(struct comm_job *j, const struct st_op *op)
{
    const struct st_program *program = j->engine->program;
    const bool rounded = op->kind == ST_OP_EXCHANGE_ROUNDED;
    struct st_engine_array sum = {.page = op->page, .width = sizeof(float)};
    unsigned char *wire = st_engine_operand(j->engine, op, ST_ROLE_WIRE);
    unsigned char *leaving = wire + st_program_wire_leaving(program, op->page);

    if (!rounded)
        sum.base = st_engine_operand(j->engine, op, ST_ROLE_SUM);
    for (uint32_t r = 0; r < program->ranks; r++) {
        uint32_t from = j->part_count;

        if (r == program->rank)
            continue;
        if (rounded)
            leaving = add_wire(j, op->page, r, leaving);
        else
            (void)add_slices(j, &sum, r, &j->peers[r].send);
        j->peers[r].send_count = listed(j, from, &j->peers[r].send);
        from = j->part_count;
        wire = add_wire(j, op->page, program->rank, wire);
        j->peers[r].recv_count = listed(j, from, &j->peers[r].recv);
    }
}

static void gather_scalars(struct comm_job *j)
{
    const struct st_program *program = j->engine->program;
    const struct st_engine_comm *c = j->engine->comm;
    const struct st_comm_part *own = &c->scalars[(size_t)program->rank * c->scalars_count];

    for (uint32_t r = 0; r < program->ranks; r++)
        if (r != program->rank)
            j->peers[r] = (struct st_comm_peer){.send = own,
                                                .send_count = c->scalars_count,
                                                .recv = &c->scalars[(size_t)r * c->scalars_count],
                                                .recv_count = c->scalars_count};
}

/* --- rows of the table --- */

/* The slice of the table that a token is of, and its row there. */
static uint32_t slice_of(const struct st_workload *w, int32_t token, uint32_t *row)
{
    const uint32_t rows = w->pages[0].row_count, slice = (uint32_t)token / rows;

    *row = (uint32_t)token % rows;
    return slice;
}

static bool has_row(const struct st_engine *eng, uint32_t slice, uint32_t rank, uint32_t row)
{
    const struct st_row_range *r = &eng->comm->rows[slice * eng->program->ranks + rank];

    return row >= r->first && row < r->end;
}

struct st_row_range st_engine_own_rows(const struct st_engine *eng, uint32_t page)
{
    const struct st_workload *w = &eng->program->workload;

    if (eng->comm == NULL)
        return (struct st_row_range){.end = w->pages[page].row_count};
    return eng->comm->rows[page * eng->program->ranks + eng->program->rank];
}

/* Rows of table page `page` that this rank has, to those whose tokens name them; rows that others have, to this rank's places. */
static void exchange_rows(struct comm_job *j, const struct st_op *op)
{
    const struct st_engine *eng = j->engine;
    const struct st_program *program = eng->program;
    const struct st_workload *w = &program->workload;
    const size_t row_bytes = w->hidden * strata_dtype_bytes(w->dtype);
    const uint64_t count = eng->generate_rows != 0 ? eng->generate_rows : (uint64_t)rows_of(eng) * w->grad_accum;
    const void *all = st_engine_operand(eng, op, ST_ROLE_TOKENS);
    const unsigned char *table = st_engine_operand(eng, op, ST_ROLE_WEIGHT);
    unsigned char *rows = st_engine_operand(eng, op, ST_ROLE_ROWS);
    const uint32_t slice = op->page, own_first = eng->comm->rows[slice * program->ranks + program->rank].first;

    for (uint32_t r = 0; r < program->ranks; r++) {
        const int32_t *mine = st_engine_tokens(eng, all, program->rank), *theirs = st_engine_tokens(eng, all, r);
        uint32_t from = j->part_count, row;

        if (r == program->rank)
            continue;
        for (uint64_t k = 0; k < count; k++)
            if (slice_of(w, theirs[k], &row) == slice && has_row(eng, slice, program->rank, row))
                add_part(j, table + (row - own_first) * row_bytes, row_bytes);
        j->peers[r].send_count = listed(j, from, &j->peers[r].send);
        from = j->part_count;
        for (uint64_t k = 0; k < count; k++)
            if (slice_of(w, mine[k], &row) == slice && has_row(eng, slice, r, row))
                add_part(j, rows + k * row_bytes, row_bytes);
        j->peers[r].recv_count = listed(j, from, &j->peers[r].recv);
    }
}

/* Rows of a micro-batch's gradients that `rank` has the rows of the table for. */
static uint32_t rows_for(struct comm_job *j, const int32_t *tokens, unsigned char *dact, uint32_t rank,
                         const struct st_comm_part **out)
{
    const struct st_engine *eng = j->engine;
    const struct st_workload *w = &eng->program->workload;
    const size_t row_bytes = w->hidden * strata_dtype_bytes(w->dtype);
    const uint32_t from = j->part_count;

    for (uint32_t k = 0; k < rows_of(eng); k++) {
        uint32_t row;
        const uint32_t slice = slice_of(w, tokens[k], &row);

        if (has_row(eng, slice, rank, row))
            add_part(j, dact + k * row_bytes, row_bytes);
    }
    return listed(j, from, out);
}

static void exchange_dact(struct comm_job *j, const struct st_op *op)
{
    const struct st_engine *eng = j->engine;
    const struct st_program *program = eng->program;
    const uint32_t global = st_program_global_micro(program, op->micro), sender = global / program->workload.grad_accum;
    const int32_t *tokens = st_engine_tokens(eng, st_engine_operand(eng, op, ST_ROLE_TOKENS), sender) +
                            (uint64_t)(global % program->workload.grad_accum) * rows_of(eng);
    unsigned char *dact = st_engine_operand(eng, op, ST_ROLE_DACT);

    if (sender != program->rank) {
        j->peers[sender].recv_count = rows_for(j, tokens, dact, program->rank, &j->peers[sender].recv);
        return;
    }
    for (uint32_t r = 0; r < program->ranks; r++)
        if (r != program->rank)
            j->peers[r].send_count = rows_for(j, tokens, dact, r, &j->peers[r].send);
}

/* --- jobs --- */

static void fill_job(struct comm_job *j, const struct st_op *op)
{
    const struct st_program *program = j->engine->program;
    struct st_engine_array a = {.page = op->page};

    memset(j->peers, 0, program->ranks * sizeof(*j->peers));
    j->part_count = 0;
    switch ((enum st_op_kind)op->kind) {
    case ST_OP_GATHER_TOKENS:
        gather_tokens(j, op);
        break;
    case ST_OP_GATHER_CHOICE:
        gather_choice(j, op);
        break;
    case ST_OP_EXCHANGE_ROWS:
        exchange_rows(j, op);
        break;
    case ST_OP_GATHER_WEIGHT:
    case ST_OP_GATHER_UPDATED:
        a.base = st_engine_operand(j->engine, op, ST_ROLE_TO);
        a.frozen = op->kind == ST_OP_GATHER_WEIGHT;
        j->part_count = st_engine_gather_slices(j->peers, j->parts, j->engine, &a);
        break;
    case ST_OP_EXCHANGE_GRAD:
    case ST_OP_EXCHANGE_ROUNDED:
        exchange_grad(j, op);
        break;
    case ST_OP_GATHER_GRAD:
        a.base = st_engine_operand(j->engine, op, ST_ROLE_TO); /* laid out as the trained groups' weights */
        j->part_count = st_engine_gather_slices(j->peers, j->parts, j->engine, &a);
        break;
    case ST_OP_EXCHANGE_DACT:
        exchange_dact(j, op);
        break;
    default:
        assert(op->kind == ST_OP_GATHER_SCALARS);
        st_engine_tally(j->engine);
        gather_scalars(j);
    }
}

/* Everybody's targets are known now. */
static void count_targets(struct st_engine *eng)
{
    const struct st_workload *w = &eng->program->workload;
    const uint64_t count = (uint64_t)rows_of(eng) * w->grad_accum;
    const void *all = st_engine_pointer(eng, eng->program->at.tokens_host);
    uint64_t targets = 0;

    for (uint32_t r = 0; r < eng->program->ranks; r++)
        for (uint64_t k = 0; k < count; k++)
            targets += st_engine_tokens(eng, all, r)[count + k] >= 0;
    eng->target_count = targets;
}

static void job_done(struct st_comm_job *base, strata_status st)
{
    struct comm_job *j = base->ctx;
    struct st_engine *eng = j->engine;
    const uint32_t op = j->op;

    if (st == STRATA_OK && eng->program->ops[op].kind == ST_OP_GATHER_TOKENS)
        count_targets(eng);
    st_trace_end(j->record, st_clock_ns());
    pthread_mutex_lock(&eng->lock);
    eng->comm->busy_ns += base->end_ns - base->start_ns;
    eng->moved.comm += st == STRATA_OK ? j->received : 0; /* the step that began it may be over */
    if (st != STRATA_OK && eng->io_status == STRATA_OK) {
        eng->io_status = st;
        st_error_keep(&eng->io_error);
    }
    j->busy = false;
    if (st == STRATA_OK)
        st_dispatch_finish(&eng->dispatch, op);
    eng->in_flight--;
    eng->events++;
    pthread_cond_signal(&eng->wake);
    pthread_mutex_unlock(&eng->lock);
}

static void describe(struct comm_job *j, const struct st_op *op)
{
    struct st_op_index indices[ST_OP_INDICES_MAX];
    const uint32_t count = st_op_indices(op, indices);

    if (op->kind == ST_OP_EXCHANGE_DACT) /* the ranks count their own micro-batches apart */
        snprintf(j->what, sizeof(j->what), "%s of micro %u", st_op_name((enum st_op_kind)op->kind),
                 st_program_global_micro(j->engine->program, op->micro));
    else if (count == 0)
        snprintf(j->what, sizeof(j->what), "%s", st_op_name((enum st_op_kind)op->kind));
    else
        snprintf(j->what, sizeof(j->what), "%s of %s %u", st_op_name((enum st_op_kind)op->kind), indices[0].name,
                 indices[0].value);
}

/* Whether the op's parts lie in a device's memory. */
static bool on_device(const struct st_engine *eng, const struct st_op *op)
{
    return eng->program->buffers[eng->program->accesses[op->access_first].buffer].tier == STRATA_TIER_DEVICE &&
           !eng->device->ops->arena_is_host;
}

static void start_job(struct comm_job *j, uint32_t index)
{
    struct st_engine *eng = j->engine;
    const struct st_op *op = &eng->program->ops[index];

    j->op = index;
    fill_job(j, op);
    describe(j, op);
    j->received = 0;
    for (uint32_t r = 0; r < eng->program->ranks; r++)
        for (uint32_t k = 0; k < j->peers[r].recv_count; k++)
            j->received += j->peers[r].recv[k].bytes;
    eng->result.bytes.comm += j->received;
    j->record = st_trace_begin(eng->trace, ST_TRACE_ITEM, index, ST_TRACE_NONE, st_clock_ns());
    j->job = (struct st_comm_job){.peers = j->peers, .what = j->what, .done = job_done, .ctx = j};
    st_comm_lane_submit(on_device(eng, op) ? eng->comm->device_lane : eng->comm->host_lane, &j->job);
}

static struct comm_job *take_job(struct st_engine *eng)
{
    struct comm_job *j = &eng->comm->jobs[eng->comm->next];

    pthread_mutex_lock(&eng->lock);
    if (j->busy) {
        j = NULL;
    } else {
        j->busy = true;
        eng->in_flight++;
        eng->comm->next = (eng->comm->next + 1) % ST_EXCHANGES;
    }
    pthread_mutex_unlock(&eng->lock);
    return j;
}

void st_engine_comm_issue(struct st_engine *eng)
{
    struct st_dispatch *d = &eng->dispatch;
    struct comm_job *j;

    for (uint32_t op; (op = st_dispatch_ready(d, STRATA_LANE_COMM)) != ST_NO_OP && (j = take_job(eng)) != NULL;) {
        start_job(j, op);
        st_dispatch_pass(d, STRATA_LANE_COMM);
    }
}

/* --- create and destroy --- */

/* Lists what each rank has of the pages' norms, the losses, the auxiliary ones and the tallies, if the host has it. */
static void list_scalars(struct st_engine *eng, struct st_comm_part *parts, uint32_t rank)
{
    const struct st_program *program = eng->program;
    struct st_norm *scalars = st_engine_pointer(eng, program->at.scalars_host);
    const uint32_t g = program->workload.grad_accum;
    uint32_t count = 0;

    for (uint32_t p = 0; p < program->workload.page_count; p++) {
        for (uint32_t i = 0; i < program->workload.pages[p].group_count; i++) {
            struct st_norm *norms =
                st_engine_finished_on_host(program, p) ? st_engine_pointer(eng, program->at.norms_host) : scalars;
            uint32_t runs = 0, first;

            if (program->pages[p].grad == ST_WHERE_NONE || program->workload.pages[p].groups[i].kind == ST_GROUP_FROZEN)
                continue;
            first = st_norms_of(program, p, i, rank, &runs);
            parts[count++] = (struct st_comm_part){.data = norms + first, .bytes = runs * sizeof(struct st_norm)};
        }
    }
    parts[count++] =
        (struct st_comm_part){.data = st_scalars_losses(program, scalars) + (uint64_t)rank * g, .bytes = g * sizeof(double)};
    if (st_scalars_aux_losses(program, scalars) != NULL)
        parts[count++] = (struct st_comm_part){.data = st_scalars_aux_losses(program, scalars) + (uint64_t)rank * g,
                                               .bytes = g * sizeof(double)};
    if (st_program_called(program))
        parts[count++] =
            (struct st_comm_part){.data = st_scalars_divisors(program, scalars) + rank, .bytes = sizeof(double)};
    parts[count] = (struct st_comm_part){.data = st_scalars_tallies(program, scalars) + rank, .bytes = sizeof(struct st_tally)};
}

static void find_rows(struct st_engine *eng)
{
    const struct st_program *program = eng->program;
    const struct st_workload *w = &program->workload;

    for (uint32_t t = 0; t < w->gathered_count; t++)
        for (uint32_t r = 0; r < program->ranks; r++) {
            const struct st_slice s = st_slice_of(w, t, 0, program->ranks, r);

            eng->comm->rows[t * program->ranks + r] =
                (struct st_row_range){(uint32_t)(s.first / w->hidden), (uint32_t)((s.first + s.elems) / w->hidden)};
        }
}

static strata_status create_jobs(struct st_engine *eng)
{
    const uint32_t ranks = eng->program->ranks;
    struct st_engine_comm *c = eng->comm;

    c->part_room = (uint32_t)st_exchange_parts(eng->program);
    for (uint32_t i = 0; i < ST_EXCHANGES; i++) {
        c->jobs[i].engine = eng;
        c->jobs[i].peers = calloc(ranks, sizeof(*c->jobs[i].peers));
        c->jobs[i].parts = malloc(c->part_room * sizeof(*c->jobs[i].parts));
        if (c->jobs[i].peers == NULL || c->jobs[i].parts == NULL)
            return st_nomem(0);
    }
    return STRATA_OK;
}

strata_status st_engine_comm_create(struct st_engine *eng, const struct st_engine_opts *opts)
{
    const struct st_program *program = eng->program;
    const uint32_t scalars = (uint32_t)st_scalars_parts(program);
    struct st_engine_comm *c = calloc(1, sizeof(*c));
    strata_status st;

    if ((eng->comm = c) == NULL)
        return st_nomem(sizeof(*c));
    assert(opts->comm != NULL && opts->device_comm != NULL && opts->comm->world.ranks == program->ranks &&
           opts->comm->world.rank == program->rank);
    c->host = opts->comm;
    c->device = opts->device_comm;
    c->rows = malloc((size_t)program->workload.gathered_count * program->ranks * sizeof(*c->rows));
    c->scalars = malloc((size_t)program->ranks * scalars * sizeof(*c->scalars));
    c->scalars_count = scalars;
    if (c->rows == NULL || c->scalars == NULL)
        return st_nomem(0);
    find_rows(eng);
    for (uint32_t r = 0; r < program->ranks; r++)
        list_scalars(eng, &c->scalars[r * scalars], r);
    if ((st = create_jobs(eng)) != STRATA_OK || (st = st_comm_lane_open(&c->host_lane, c->host)) != STRATA_OK)
        return st;
    if (c->device == c->host)
        c->device_lane = c->host_lane;
    else
        st = st_comm_lane_open(&c->device_lane, c->device);
    return st;
}

void st_engine_comm_destroy(struct st_engine *eng)
{
    struct st_engine_comm *c = eng->comm;

    if (c == NULL)
        return;
    if (c->device_lane != c->host_lane)
        st_comm_lane_close(c->device_lane);
    st_comm_lane_close(c->host_lane);
    for (uint32_t i = 0; i < ST_EXCHANGES; i++) {
        free(c->jobs[i].peers);
        free(c->jobs[i].parts);
    }
    free(c->rows);
    free(c->scalars);
    free(c);
    eng->comm = NULL;
}

void st_engine_comm_abort(struct st_engine *eng, strata_status st, const char *sentence)
{
    st_comm_abort_as(eng->comm->host, st, sentence);
    if (eng->comm->device != eng->comm->host)
        st_comm_abort_as(eng->comm->device, st, sentence);
}

uint64_t st_engine_comm_busy(struct st_engine *eng)
{
    uint64_t ns = 0;

    pthread_mutex_lock(&eng->lock);
    if (eng->comm != NULL)
        ns = eng->comm->busy_ns;
    pthread_mutex_unlock(&eng->lock);
    return ns;
}

void st_engine_request(struct st_engine *eng, uint64_t bits)
{
    atomic_fetch_or(&eng->requests, bits);
}
