/* program_emit.c - writes the op list of one step, and what each op waits for.
 *
 * Ops are written in an order in which they could run one after another; each states its accesses, and the waits follow:
 * a reader waits for the last writer of a buffer, a writer for the last writer and every reader since.  The list is
 * written twice: the first round only learns who touches each buffer last, so that the second can wait for ops of the
 * previous cycle.  Nothing here knows rates or time. */
#include "offload/plan_build.h"

#include "core/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    PRO = ST_PHASE_PROLOGUE,
    BODY = ST_PHASE_BODY,
    EPI = ST_PHASE_EPILOGUE,
    EVAL = ST_PHASE_EVAL,
    FORWARD = PRO | BODY | EVAL,
    BACKWARD = PRO | BODY,
    ALWAYS = PRO | BODY | EPI | EVAL,
};

#define NOBODY UINT32_MAX

/* Who touched a buffer last. */
struct toucher {
    uint32_t op;
    bool previous;
};
struct dep_state {
    struct toucher writer; /* op NOBODY: none yet */
    struct toucher *readers;
    uint32_t reader_count, reader_room;
};

struct emitter {
    struct st_plan *plan;
    struct st_layout *lay;
    struct dep_state *deps; /* [buffer_count] */
    uint32_t op_room, access_room, wait_room;
    uint64_t tick;                           /* for least recently used */
    uint32_t tail_reads;                     /* state slots filled ahead by the previous cycle */
    uint8_t update_phases, no_update_phases; /* of the gate: when it updates, and when it passes weights through */
    bool no_memory;
};

static bool reserve(struct emitter *e, void **array, uint32_t *room, uint32_t count, size_t size)
{
    uint32_t more = *room == 0 ? 1024 : *room;
    void *grown;

    if (count <= *room)
        return true;
    while (more < count)
        more *= 2;
    grown = realloc(*array, (size_t)more * size);
    if (grown == NULL) {
        e->no_memory = true;
        return false;
    }
    *array = grown;
    *room = more;
    return true;
}

static void add_wait(struct emitter *e, struct st_op *op, struct toucher who)
{
    struct st_plan *plan = e->plan;

    if (who.op == NOBODY)
        return;
    for (uint32_t i = op->wait_first; i < plan->wait_count; i++)
        if (plan->waits[i].op == who.op && plan->waits[i].previous == who.previous)
            return;
    if (!reserve(e, (void **)&plan->waits, &e->wait_room, plan->wait_count + 1, sizeof(*plan->waits)))
        return;
    plan->waits[plan->wait_count++] = (struct st_wait){.op = who.op, .previous = who.previous};
    op->wait_count++;
}

static void add_reader(struct emitter *e, struct dep_state *d, uint32_t op)
{
    if (d->reader_count > 0 && d->readers[d->reader_count - 1].op == op && !d->readers[d->reader_count - 1].previous)
        return;
    if (d->reader_count == d->reader_room) {
        const uint32_t room = d->reader_room == 0 ? 4 : 2 * d->reader_room;
        struct toucher *grown = realloc(d->readers, room * sizeof(*grown));

        if (grown == NULL) {
            e->no_memory = true;
            return;
        }
        d->readers = grown;
        d->reader_room = room;
    }
    d->readers[d->reader_count++] = (struct toucher){.op = op};
}

/* Start an op; accesses follow, then finish(). */
static struct st_op *start(struct emitter *e, enum st_op_kind kind, enum st_lane lane, unsigned phases)
{
    struct st_plan *plan = e->plan;
    struct st_op *op;

    if (!reserve(e, (void **)&plan->ops, &e->op_room, plan->op_count + 1, sizeof(*plan->ops)))
        return NULL;
    op = &plan->ops[plan->op_count++];
    *op = (struct st_op){.kind = (uint8_t)kind,
                         .lane = (uint8_t)lane,
                         .phases = (uint8_t)phases,
                         .page = ST_NO_PAGE,
                         .access_first = plan->access_count,
                         .wait_first = plan->wait_count};
    return op;
}

static void touch(struct emitter *e, struct st_op *op, uint32_t buffer, enum st_access_mode mode, enum st_content content,
                  uint64_t index)
{
    struct st_plan *plan = e->plan;

    if (op == NULL || !reserve(e, (void **)&plan->accesses, &e->access_room, plan->access_count + 1, sizeof(*plan->accesses)))
        return;
    assert(buffer < plan->buffer_count);
    plan->accesses[plan->access_count++] =
        (struct st_access){.buffer = buffer, .mode = (uint8_t)mode, .content = (uint8_t)content, .index = (uint32_t)index};
    op->access_count++;
}

static void finish(struct emitter *e, struct st_op *op)
{
    struct st_plan *plan = e->plan;
    const uint32_t self = plan->op_count - 1;

    if (op == NULL || e->no_memory)
        return;
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct st_access *a = &plan->accesses[op->access_first + i];
        struct dep_state *d = &e->deps[a->buffer];

        add_wait(e, op, d->writer);
        if ((a->mode & ST_WRITE) != 0)
            for (uint32_t r = 0; r < d->reader_count; r++)
                if (d->readers[r].op != self || d->readers[r].previous)
                    add_wait(e, op, d->readers[r]);
    }
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct st_access *a = &plan->accesses[op->access_first + i];
        struct dep_state *d = &e->deps[a->buffer];

        if ((a->mode & ST_WRITE) != 0) {
            d->writer = (struct toucher){.op = self};
            d->reader_count = 0;
        } else {
            add_reader(e, d, self);
        }
    }
}

/* --- slots --- */

static uint32_t pool_find(const struct st_pool *pool, uint32_t what)
{
    for (uint32_t i = 0; i < pool->count; i++)
        if (pool->holds[i] == what)
            return pool->buffer[i];
    return ST_NO_BUFFER;
}

static uint32_t pool_take(struct st_pool *pool, uint32_t what)
{
    const uint32_t slot = pool->next;

    assert(pool->count > 0);
    pool->next = (pool->next + 1) % pool->count;
    pool->holds[slot] = what;
    return pool->buffer[slot];
}

static void pool_forget(struct st_pool *pool)
{
    memset(pool->holds, 0xff, sizeof(pool->holds));
}

/* --- helpers over the plan --- */

static uint64_t page_bytes(const struct emitter *e, uint32_t p)
{
    return e->plan->workload.pages[p].elems * strata_dtype_bytes(e->plan->workload.dtype);
}

static uint64_t act_id(const struct emitter *e, uint32_t boundary, uint32_t micro)
{
    return (uint64_t)boundary * e->plan->workload.grad_accum + micro;
}

static struct st_op *copy_op(struct emitter *e, enum st_op_kind kind, enum st_lane lane, unsigned phases, uint32_t from,
                             uint32_t to, enum st_content content, uint64_t index, uint64_t bytes)
{
    struct st_op *op = start(e, kind, lane, phases);

    touch(e, op, from, ST_READ, content, index);
    touch(e, op, to, ST_WRITE, content, index);
    if (op != NULL)
        op->bytes = bytes;
    return op;
}

/* --- weights --- */

/* A host buffer that holds page p's weights: its home, or a slot filled from the extent in the phases named (0: the caller fills
 * it). */
static uint32_t host_weight(struct emitter *e, uint32_t p, unsigned phases)
{
    struct st_plan *plan = e->plan;
    const struct st_page_place *place = &plan->pages[p];
    struct st_op *op;
    uint32_t slot;

    if (place->weight_home == STRATA_TIER_HOST)
        return place->home_region;
    assert(place->weight_home == STRATA_TIER_NVME);
    slot = pool_find(&e->lay->host_weights, p);
    if (slot != ST_NO_BUFFER)
        return slot;
    slot = pool_take(&e->lay->host_weights, p);
    if (phases == 0)
        return slot;
    op = copy_op(e, ST_OP_READ_WEIGHT, ST_LANE_READ_WEIGHT, phases, place->home_region, slot, ST_HOLDS_WEIGHT, p,
                 plan->buffers[place->home_region].bytes);
    if (op != NULL)
        op->page = p;
    finish(e, op);
    return slot;
}

static void upload_weight(struct emitter *e, uint32_t p, uint32_t from, uint32_t to, unsigned phases)
{
    struct st_op *op = copy_op(e, ST_OP_UPLOAD_WEIGHT, ST_LANE_UPLOAD, phases, from, to, ST_HOLDS_WEIGHT, p, page_bytes(e, p));

    if (op != NULL)
        op->page = p;
    finish(e, op);
}

/* A device buffer that holds page p's weights. */
static uint32_t device_weight(struct emitter *e, uint32_t p, unsigned phases)
{
    const struct st_page_place *place = &e->plan->pages[p];
    uint32_t slot, from;

    if (place->resident)
        return place->weight_region;
    slot = pool_find(&e->lay->weights, p);
    if (slot != ST_NO_BUFFER)
        return slot;
    from = host_weight(e, p, phases);
    slot = pool_take(&e->lay->weights, p);
    upload_weight(e, p, from, slot, phases);
    return slot;
}

static void write_weight(struct emitter *e, uint32_t p, uint32_t slot)
{
    const struct st_page_place *place = &e->plan->pages[p];
    struct st_op *op;

    if (place->weight_home != STRATA_TIER_NVME)
        return;
    op = copy_op(e, ST_OP_WRITE_WEIGHT, ST_LANE_WRITE, e->update_phases, slot, place->home_region, ST_HOLDS_WEIGHT, p,
                 e->plan->buffers[place->home_region].bytes);
    if (op != NULL)
        op->page = p;
    finish(e, op);
}

/* --- the gate: updates of one page --- */

static uint32_t state_slot(struct emitter *e, uint32_t c)
{
    struct st_pool *pool = &e->lay->states;
    const struct st_chunk *chunk = &e->plan->chunks[c];
    uint32_t slot = pool_find(pool, c);
    struct st_op *op;

    if (slot != ST_NO_BUFFER)
        return slot;
    slot = pool_take(pool, c);
    op = copy_op(e, ST_OP_READ_STATE, ST_LANE_READ_STATE, e->update_phases, chunk->region, slot, ST_HOLDS_STATE, c, chunk->bytes);
    if (op != NULL) {
        op->page = chunk->page;
        op->chunk = c;
    }
    finish(e, op);
    return slot;
}

static void update_host_chunk(struct emitter *e, uint32_t c, uint32_t weight)
{
    const struct st_chunk *chunk = &e->plan->chunks[c];
    const bool swapped = chunk->tier == STRATA_TIER_NVME;
    const uint32_t state = swapped ? state_slot(e, c) : chunk->region;
    struct st_op *op = start(e, ST_OP_UPDATE, ST_LANE_UPDATE, e->update_phases);

    touch(e, op, state, ST_MODIFY, ST_HOLDS_STATE, c);
    touch(e, op, weight, ST_MODIFY, ST_HOLDS_WEIGHT, chunk->page);
    touch(e, op, e->plan->pages[chunk->page].grad_region, ST_READ, ST_HOLDS_GRAD, chunk->page);
    touch(e, op, e->lay->scalars_host, ST_READ, ST_HOLDS_SCALARS, 0);
    if (op != NULL) {
        op->page = chunk->page;
        op->chunk = c;
    }
    finish(e, op);
    if (!swapped)
        return;
    op = copy_op(e, ST_OP_WRITE_STATE, ST_LANE_WRITE, e->update_phases, state, chunk->region, ST_HOLDS_STATE, c, chunk->bytes);
    if (op != NULL) {
        op->page = chunk->page;
        op->chunk = c;
    }
    finish(e, op);
}

static bool gated(const struct emitter *e)
{
    return e->plan->policy.update == ST_UPDATE_GATED;
}

/* When the gate must bring page p's weights in: always if the forward that follows takes them from there, else for updates alone.
 */
static unsigned gate_phases(const struct emitter *e, uint32_t p)
{
    const bool gathered = st_place_is_table(e->plan, p) && !st_place_table_resident(e->plan);

    return gated(e) && (gathered || !e->plan->pages[p].resident) ? ALWAYS : e->update_phases;
}

static void gate_host(struct emitter *e, uint32_t p)
{
    const struct st_page_place *place = &e->plan->pages[p];
    const uint32_t weight = host_weight(e, p, gate_phases(e, p));

    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count; c++)
        update_host_chunk(e, c, weight);
    write_weight(e, p, weight);
    if (place->resident)
        upload_weight(e, p, weight, place->weight_region, e->update_phases);
}

static void gate_device(struct emitter *e, uint32_t p)
{
    const struct st_page_place *place = &e->plan->pages[p];
    const uint32_t weight = device_weight(e, p, gate_phases(e, p));
    struct st_op *op;
    uint32_t host;

    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count; c++) {
        op = start(e, ST_OP_UPDATE_DEVICE, ST_LANE_COMPUTE, e->update_phases);
        touch(e, op, e->plan->chunks[c].region, ST_MODIFY, ST_HOLDS_STATE, c);
        touch(e, op, weight, ST_MODIFY, ST_HOLDS_WEIGHT, p);
        touch(e, op, place->grad_region, ST_READ, ST_HOLDS_GRAD, p);
        touch(e, op, e->lay->scalars_host, ST_READ, ST_HOLDS_SCALARS, 0);
        touch(e, op, e->lay->scalars_device, ST_MODIFY, ST_HOLDS_SCALARS, 0);
        if (op != NULL) {
            op->page = p;
            op->chunk = c;
        }
        finish(e, op);
    }
    if (place->weight_home == STRATA_TIER_DEVICE)
        return;
    host = host_weight(e, p, gate_phases(e, p) & ~(unsigned)e->update_phases); /* an update brings newer ones down */
    op =
        copy_op(e, ST_OP_DOWNLOAD_WEIGHT, ST_LANE_DOWNLOAD, e->update_phases, weight, host, ST_HOLDS_WEIGHT, p, page_bytes(e, p));
    if (op != NULL)
        op->page = p;
    finish(e, op);
    write_weight(e, p, host);
}

static void gate(struct emitter *e, uint32_t p)
{
    if (e->plan->pages[p].chunk_count == 0)
        return;
    if (e->plan->pages[p].device_update)
        gate_device(e, p);
    else
        gate_host(e, p);
}

/* --- activations --- */

static uint32_t act_slot(struct emitter *e, uint32_t id)
{
    struct st_pool *pool = &e->lay->acts;
    uint32_t oldest = 0;

    for (uint32_t i = 1; i < pool->count; i++)
        if (pool->used[i] < pool->used[oldest])
            oldest = i;
    pool->holds[oldest] = id;
    pool->used[oldest] = ++e->tick;
    return pool->buffer[oldest];
}

static uint32_t act_fresh(struct emitter *e, uint32_t boundary, uint32_t micro)
{
    const uint64_t id = act_id(e, boundary, micro);
    const uint32_t region = e->lay->act_device[id];

    return region != ST_NO_BUFFER ? region : act_slot(e, (uint32_t)id);
}

/* The boundary's activation on the device, fetched from the host if it is not there. */
static uint32_t act_get(struct emitter *e, uint32_t boundary, uint32_t micro, unsigned phases)
{
    const uint64_t id = act_id(e, boundary, micro);
    struct st_pool *pool = &e->lay->acts;
    struct st_op *op;
    uint32_t slot;

    if (e->lay->act_device[id] != ST_NO_BUFFER)
        return e->lay->act_device[id];
    for (uint32_t i = 0; i < pool->count; i++) {
        if (pool->holds[i] == id) {
            pool->used[i] = ++e->tick;
            return pool->buffer[i];
        }
    }
    slot = act_slot(e, (uint32_t)id);
    op = copy_op(e, ST_OP_UPLOAD_ACT, ST_LANE_UPLOAD, phases, e->lay->act_host[id], slot, ST_HOLDS_ACT, id,
                 e->plan->workload.activation_bytes);
    if (op != NULL)
        op->micro = micro;
    finish(e, op);
    return slot;
}

/* Leave the checkpoint on the host when that is its tier. */
static void act_keep(struct emitter *e, uint32_t boundary, uint32_t micro, uint32_t slot)
{
    const uint64_t id = act_id(e, boundary, micro);
    struct st_op *op;

    if (e->lay->act_device[id] != ST_NO_BUFFER)
        return;
    op = copy_op(e, ST_OP_DOWNLOAD_ACT, ST_LANE_DOWNLOAD, FORWARD, slot, e->lay->act_host[id], ST_HOLDS_ACT, id,
                 e->plan->workload.activation_bytes);
    if (op != NULL)
        op->micro = micro;
    finish(e, op);
}

/* --- forward --- */

static void upload_tokens(struct emitter *e)
{
    const struct st_workload *w = &e->plan->workload;
    const uint64_t bytes = (uint64_t)w->micro_batch * w->seq * w->grad_accum * 2 * sizeof(int32_t);

    finish(e, copy_op(e, ST_OP_UPLOAD_TOKENS, ST_LANE_UPLOAD, FORWARD, e->lay->tokens_host, e->lay->tokens_device,
                      ST_HOLDS_TOKENS, 0, bytes));
}

static void gather_host(struct emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->plan->workload;
    struct st_op *op;
    uint32_t weight = host_weight(e, p, FORWARD);

    op = start(e, ST_OP_GATHER_HOST, ST_LANE_UPDATE, FORWARD);
    touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, p);
    touch(e, op, e->lay->tokens_host, ST_READ, ST_HOLDS_TOKENS, 0);
    touch(e, op, e->lay->rows_host, p == w->table_first ? ST_WRITE : ST_MODIFY, ST_HOLDS_ROWS, 0);
    if (op != NULL)
        op->page = p;
    finish(e, op);
}

static void embed_rows(struct emitter *e, uint32_t micro, uint32_t act)
{
    const struct st_workload *w = &e->plan->workload;
    struct st_op *op;

    if (st_place_table_resident(e->plan)) {
        op = start(e, ST_OP_GATHER_DEVICE, ST_LANE_COMPUTE, FORWARD);
        touch(e, op, act, ST_WRITE, ST_HOLDS_ACT, act_id(e, 0, micro));
        touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
        for (uint32_t p = w->table_first; p < w->table_first + w->table_count; p++)
            touch(e, op, e->plan->pages[p].weight_region, ST_READ, ST_HOLDS_WEIGHT, p);
    } else {
        op = start(e, ST_OP_UPLOAD_ROWS, ST_LANE_UPLOAD, FORWARD);
        touch(e, op, e->lay->rows_host, ST_READ, ST_HOLDS_ROWS, 0);
        touch(e, op, act, ST_WRITE, ST_HOLDS_ACT, act_id(e, 0, micro));
        if (op != NULL)
            op->bytes = w->activation_bytes;
    }
    if (op != NULL)
        op->micro = micro;
    finish(e, op);
}

static void embed_forward(struct emitter *e)
{
    const struct st_workload *w = &e->plan->workload;
    const bool positions = w->position_page != ST_NO_PAGE;
    uint32_t weight = ST_NO_BUFFER;

    for (uint32_t p = w->table_first; p < w->table_first + w->table_count; p++) {
        if (gated(e))
            gate(e, p);
        if (!st_place_table_resident(e->plan))
            gather_host(e, p);
    }
    if (positions && gated(e))
        gate(e, w->position_page);
    if (positions)
        weight = device_weight(e, w->position_page, FORWARD);
    for (uint32_t m = 0; m < w->grad_accum; m++) {
        const uint32_t act = act_fresh(e, 0, m);

        embed_rows(e, m, act);
        if (positions) {
            struct st_op *op = start(e, ST_OP_EMBED_FORWARD, ST_LANE_COMPUTE, FORWARD);

            touch(e, op, act, ST_MODIFY, ST_HOLDS_ACT, act_id(e, 0, m));
            touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, w->position_page);
            if (op != NULL) {
                op->page = w->position_page;
                op->micro = m;
            }
            finish(e, op);
        }
        act_keep(e, 0, m, act);
    }
}

static void block_forward(struct emitter *e, uint32_t b)
{
    const struct st_workload *w = &e->plan->workload;
    const uint32_t p = w->block_first + b;
    uint32_t weight;

    if (gated(e))
        gate(e, p);
    weight = device_weight(e, p, FORWARD);
    for (uint32_t m = 0; m < w->grad_accum; m++) {
        const uint64_t id = (uint64_t)b * w->grad_accum + m;
        const uint32_t in = act_get(e, b, m, FORWARD);
        const uint32_t out = act_fresh(e, b + 1, m);
        struct st_op *op = start(e, ST_OP_BLOCK_FORWARD, ST_LANE_COMPUTE, FORWARD);

        touch(e, op, in, ST_READ, ST_HOLDS_ACT, act_id(e, b, m));
        touch(e, op, out, ST_WRITE, ST_HOLDS_ACT, act_id(e, b + 1, m));
        touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, p);
        touch(e, op, e->lay->internals[id], ST_WRITE, ST_HOLDS_INTERNALS, id);
        touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
        if (op != NULL) {
            op->page = p;
            op->block = b;
            op->micro = m;
        }
        finish(e, op);
        act_keep(e, b + 1, m, out);
    }
}

static void head_forward(struct emitter *e)
{
    const struct st_workload *w = &e->plan->workload;
    struct st_op *op;
    uint32_t weight;

    if (gated(e))
        gate(e, w->norm_page);
    weight = device_weight(e, w->norm_page, FORWARD);
    for (uint32_t m = 0; m < w->grad_accum; m++) {
        const uint32_t act = act_get(e, w->block_count, m, FORWARD);

        op = start(e, ST_OP_HEAD_NORM, ST_LANE_COMPUTE, FORWARD);
        touch(e, op, act, ST_READ, ST_HOLDS_ACT, act_id(e, w->block_count, m));
        touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, w->norm_page);
        touch(e, op, e->lay->head[m], ST_WRITE, ST_HOLDS_HEAD, m);
        if (op != NULL) {
            op->page = w->norm_page;
            op->micro = m;
        }
        finish(e, op);
    }
    for (uint32_t t = 0; t < w->head_count; t++) {
        weight = device_weight(e, w->head_first + t, FORWARD);
        for (uint32_t m = 0; m < w->grad_accum; m++) {
            op = start(e, ST_OP_HEAD_STATS, ST_LANE_COMPUTE, FORWARD);
            touch(e, op, e->lay->head[m], ST_MODIFY, ST_HOLDS_HEAD, m);
            touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, w->head_first + t);
            touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
            touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
            if (op != NULL) {
                op->page = w->head_first + t;
                op->micro = m;
                op->tile = t;
            }
            finish(e, op);
        }
    }
    for (uint32_t m = 0; m < w->grad_accum; m++) {
        op = start(e, ST_OP_HEAD_LOSS, ST_LANE_COMPUTE, FORWARD);
        touch(e, op, e->lay->head[m], ST_READ, ST_HOLDS_HEAD, m);
        touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
        touch(e, op, e->lay->scalars_device, ST_MODIFY, ST_HOLDS_SCALARS, 0);
        if (op != NULL)
            op->micro = m;
        finish(e, op);
    }
}

/* --- backward --- */

/* The fp32 accumulator page p's gradient is summed in on the device. */
static uint32_t accumulator(struct emitter *e, uint32_t p)
{
    const struct st_page_place *place = &e->plan->pages[p];

    if (place->accum_region != ST_NO_BUFFER && !place->parked)
        return place->accum_region;
    return pool_take(&e->lay->grads, p);
}

/* Round once, take the norm, send it where the update will be. */
static void finish_grad(struct emitter *e, uint32_t p, uint32_t accum)
{
    struct st_plan *plan = e->plan;
    const struct st_page_place *place = &plan->pages[p];
    const bool in_place = plan->workload.dtype == STRATA_F32;
    uint32_t rounded = accum;
    struct st_op *op = start(e, ST_OP_FINISH_GRAD, ST_LANE_COMPUTE, BACKWARD);

    if (place->device_update)
        rounded = place->grad_region;
    else if (!in_place)
        rounded = pool_take(&e->lay->rounded, p);
    touch(e, op, accum, ST_READ, ST_HOLDS_ACCUM, p);
    touch(e, op, rounded, ST_WRITE, ST_HOLDS_GRAD, p);
    touch(e, op, e->lay->scalars_device, ST_MODIFY, ST_HOLDS_SCALARS, 0);
    touch(e, op, e->lay->block_sums, ST_WRITE, ST_HOLDS_SCRATCH, 0);
    if (op != NULL)
        op->page = p;
    finish(e, op);
    if (place->device_update)
        return;
    op = copy_op(e, ST_OP_DOWNLOAD_GRAD, ST_LANE_DOWNLOAD, BACKWARD, rounded, place->grad_region, ST_HOLDS_GRAD, p,
                 page_bytes(e, p));
    if (op != NULL)
        op->page = p;
    finish(e, op);
}

static void head_tile_backward(struct emitter *e, uint32_t t)
{
    const struct st_workload *w = &e->plan->workload;
    const uint32_t p = w->head_first + t;
    const uint32_t weight = device_weight(e, p, BACKWARD);
    const uint32_t accum = accumulator(e, p);
    struct st_op *op;

    for (uint32_t m = 0; m < w->grad_accum; m++) {
        op = start(e, ST_OP_HEAD_GRAD, ST_LANE_COMPUTE, BACKWARD);
        touch(e, op, e->lay->head[m], ST_MODIFY, ST_HOLDS_HEAD, m);
        touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, p);
        touch(e, op, accum, m == 0 ? ST_WRITE : ST_MODIFY, ST_HOLDS_ACCUM, p);
        touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
        touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
        if (op != NULL) {
            op->page = p;
            op->micro = m;
            op->tile = t;
            op->first = m == 0;
        }
        finish(e, op);
    }
    if (!e->plan->pages[p].parked)
        return;
    op = copy_op(e, ST_OP_DOWNLOAD_ACCUM, ST_LANE_DOWNLOAD, BACKWARD, accum, e->plan->pages[p].accum_region, ST_HOLDS_ACCUM, p,
                 w->pages[p].elems * 4);
    if (op != NULL)
        op->page = p;
    finish(e, op);
}

static void head_backward(struct emitter *e)
{
    const struct st_workload *w = &e->plan->workload;
    uint32_t weight, accum;

    for (uint32_t t = 0; t < w->head_count; t++)
        head_tile_backward(e, t);
    weight = device_weight(e, w->norm_page, BACKWARD);
    accum = accumulator(e, w->norm_page);
    for (uint32_t m = 0; m < w->grad_accum; m++) {
        const uint32_t act = act_get(e, w->block_count, m, BACKWARD);
        struct st_op *op = start(e, ST_OP_HEAD_BACKWARD, ST_LANE_COMPUTE, BACKWARD);

        touch(e, op, act, ST_READ, ST_HOLDS_ACT, act_id(e, w->block_count, m));
        touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, w->norm_page);
        touch(e, op, e->lay->head[m], ST_READ, ST_HOLDS_HEAD, m);
        touch(e, op, e->lay->dact[m], ST_WRITE, ST_HOLDS_DACT, m);
        touch(e, op, accum, m == 0 ? ST_WRITE : ST_MODIFY, ST_HOLDS_ACCUM, w->norm_page);
        touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
        if (op != NULL) {
            op->page = w->norm_page;
            op->micro = m;
            op->first = m == 0;
        }
        finish(e, op);
    }
    finish_grad(e, w->norm_page, accum);
}

static void block_backward(struct emitter *e, uint32_t b)
{
    const struct st_workload *w = &e->plan->workload;
    const uint32_t p = w->block_first + b;
    const uint32_t weight = device_weight(e, p, BACKWARD);
    const uint32_t accum = accumulator(e, p);
    const bool recompute = b < w->block_count - e->plan->kept_blocks;

    for (uint32_t m = 0; m < w->grad_accum; m++) {
        const uint64_t id = (uint64_t)b * w->grad_accum + m;
        const uint32_t act = act_get(e, b, m, BACKWARD);
        struct st_op *op = start(e, ST_OP_BLOCK_BACKWARD, ST_LANE_COMPUTE, BACKWARD);

        touch(e, op, act, ST_READ, ST_HOLDS_ACT, act_id(e, b, m));
        touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, p);
        touch(e, op, e->lay->internals[id], recompute ? ST_WRITE : ST_READ, ST_HOLDS_INTERNALS, id);
        touch(e, op, e->lay->dact[m], ST_MODIFY, ST_HOLDS_DACT, m);
        touch(e, op, accum, m == 0 ? ST_WRITE : ST_MODIFY, ST_HOLDS_ACCUM, p);
        touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
        if (op != NULL) {
            op->page = p;
            op->block = b;
            op->micro = m;
            op->first = m == 0;
            op->recompute = recompute;
        }
        finish(e, op);
    }
    finish_grad(e, p, accum);
}

/* The lookup's share of the table's gradient, and its one rounding. */
static void table_backward_device(struct emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->plan->workload;
    const uint32_t accum = e->plan->pages[p].accum_region;
    struct st_op *op = start(e, ST_OP_SCATTER_DEVICE, ST_LANE_COMPUTE, BACKWARD);

    touch(e, op, accum, ST_MODIFY, ST_HOLDS_ACCUM, p);
    touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
    for (uint32_t m = 0; m < w->grad_accum; m++)
        touch(e, op, e->lay->dact[m], ST_READ, ST_HOLDS_DACT, m);
    if (op != NULL)
        op->page = p;
    finish(e, op);
    finish_grad(e, p, accum);
}

static void table_backward_host(struct emitter *e)
{
    const struct st_workload *w = &e->plan->workload;
    const uint32_t end = w->table_first + w->table_count;
    struct st_op *op;

    for (uint32_t m = 0; m < w->grad_accum; m++) {
        op = copy_op(e, ST_OP_DOWNLOAD_DACT, ST_LANE_DOWNLOAD, BACKWARD, e->lay->dact[m], e->lay->dact_host, ST_HOLDS_DACT, m,
                     w->activation_bytes);
        if (op != NULL)
            op->micro = m;
        finish(e, op);
        op = start(e, ST_OP_SCATTER_HOST, ST_LANE_UPDATE, BACKWARD);
        touch(e, op, e->lay->dact_host, ST_READ, ST_HOLDS_DACT, m);
        touch(e, op, e->lay->tokens_host, ST_READ, ST_HOLDS_TOKENS, 0);
        for (uint32_t p = w->table_first; p < end; p++)
            touch(e, op, e->plan->pages[p].accum_region, ST_MODIFY, ST_HOLDS_ACCUM, p);
        if (op != NULL)
            op->micro = m;
        finish(e, op);
    }
    for (uint32_t p = w->table_first; p < end; p++) {
        op = start(e, ST_OP_FINISH_HOST, ST_LANE_UPDATE, BACKWARD);
        touch(e, op, e->plan->pages[p].accum_region, ST_READ, ST_HOLDS_ACCUM, p);
        touch(e, op, e->plan->pages[p].grad_region, ST_WRITE, ST_HOLDS_GRAD, p);
        touch(e, op, e->lay->norms_host, ST_MODIFY, ST_HOLDS_SCALARS, 1);
        if (op != NULL)
            op->page = p;
        finish(e, op);
    }
}

static void embed_backward(struct emitter *e)
{
    const struct st_workload *w = &e->plan->workload;

    if (w->position_page != ST_NO_PAGE) {
        const uint32_t accum = accumulator(e, w->position_page);

        for (uint32_t m = 0; m < w->grad_accum; m++) {
            struct st_op *op = start(e, ST_OP_EMBED_BACKWARD, ST_LANE_COMPUTE, BACKWARD);

            touch(e, op, e->lay->dact[m], ST_READ, ST_HOLDS_DACT, m);
            touch(e, op, accum, m == 0 ? ST_WRITE : ST_MODIFY, ST_HOLDS_ACCUM, w->position_page);
            if (op != NULL) {
                op->page = w->position_page;
                op->micro = m;
                op->first = m == 0;
            }
            finish(e, op);
        }
        finish_grad(e, w->position_page, accum);
    }
    if (e->plan->pages[w->table_first].parked) {
        table_backward_host(e);
        return;
    }
    for (uint32_t p = w->table_first; p < w->table_first + w->table_count; p++)
        table_backward_device(e, p);
}

static void end_of_step(struct emitter *e)
{
    const struct st_workload *w = &e->plan->workload;
    struct st_op *op;

    finish(e, copy_op(e, ST_OP_DOWNLOAD_SCALARS, ST_LANE_DOWNLOAD, FORWARD, e->lay->scalars_device, e->lay->scalars_host,
                      ST_HOLDS_SCALARS, 0, st_scalars_bytes(w->page_count, w->grad_accum)));
    op = start(e, ST_OP_END, ST_LANE_UPDATE, FORWARD);
    touch(e, op, e->lay->scalars_host, ST_MODIFY, ST_HOLDS_SCALARS, 0);
    touch(e, op, e->lay->norms_host, ST_READ, ST_HOLDS_SCALARS, 1);
    finish(e, op);
}

/* State that the next cycle's gate needs first is read during this cycle's backward. */
static void read_ahead(struct emitter *e)
{
    struct st_plan *plan = e->plan;
    struct st_pool *pool = &e->lay->states;
    uint32_t slot = 0;

    for (uint32_t c = 0; c < plan->chunk_count && slot < e->tail_reads; c++) {
        const struct st_chunk *chunk = &plan->chunks[c];
        struct st_op *op;

        if (chunk->tier != STRATA_TIER_NVME)
            continue;
        op = copy_op(e, ST_OP_READ_STATE, ST_LANE_READ_STATE, BACKWARD, chunk->region, pool->buffer[slot++], ST_HOLDS_STATE, c,
                     chunk->bytes);
        if (op != NULL) {
            op->page = chunk->page;
            op->chunk = c;
        }
        finish(e, op);
    }
}

static void forget_weights(struct emitter *e)
{
    pool_forget(&e->lay->weights);
    pool_forget(&e->lay->host_weights);
}

/* At a cycle's start the state slots hold what the previous backward read ahead; nothing else is known to be anywhere. */
static void forget_slots(struct emitter *e)
{
    struct st_pool *states = &e->lay->states;
    uint32_t slot = 0;

    forget_weights(e);
    pool_forget(&e->lay->grads);
    pool_forget(&e->lay->rounded);
    pool_forget(&e->lay->acts);
    pool_forget(states);
    e->lay->weights.next = e->lay->host_weights.next = e->lay->grads.next = e->lay->rounded.next = states->next = 0;
    memset(e->lay->acts.used, 0, sizeof(e->lay->acts.used));
    for (uint32_t c = 0; c < e->plan->chunk_count && slot < e->tail_reads; c++)
        if (e->plan->chunks[c].tier == STRATA_TIER_NVME)
            states->holds[slot++] = c;
    states->next = states->count == 0 ? 0 : slot % states->count;
}

static void emit_cycle(struct emitter *e)
{
    const struct st_workload *w = &e->plan->workload;

    e->plan->op_count = e->plan->access_count = e->plan->wait_count = 0;
    forget_slots(e);
    upload_tokens(e);
    embed_forward(e);
    forget_weights(e);
    for (uint32_t b = 0; b < w->block_count; b++)
        block_forward(e, b);
    head_forward(e);
    /* A step's traffic is the schedule's, not what slots happen to hold: each pass brings its weights in. */
    forget_weights(e);
    if (gated(e))
        read_ahead(e);
    head_backward(e);
    for (uint32_t b = w->block_count; b-- > 0;)
        block_backward(e, b);
    embed_backward(e);
    end_of_step(e);
    if (gated(e))
        return;
    forget_weights(e);
    for (uint32_t p = 0; p < w->page_count; p++)
        gate(e, p);
}

static void remember_as_previous(struct emitter *e)
{
    for (uint32_t b = 0; b < e->plan->buffer_count; b++) {
        struct dep_state *d = &e->deps[b];

        d->writer.previous = d->writer.op != NOBODY;
        for (uint32_t r = 0; r < d->reader_count; r++)
            d->readers[r].previous = true;
    }
}

static void add_traffic(struct st_plan *plan)
{
    memset(plan->traffic, 0, sizeof(plan->traffic));
    for (uint32_t i = 0; i < plan->op_count; i++) {
        const struct st_op *op = &plan->ops[i];

        for (uint32_t phase = 0; phase < ST_PHASE_COUNT; phase++) {
            struct st_traffic *t = &plan->traffic[phase];

            if ((op->phases & (1u << phase)) == 0)
                continue;
            if (op->lane == ST_LANE_UPLOAD)
                t->upload += op->bytes;
            else if (op->lane == ST_LANE_DOWNLOAD)
                t->download += op->bytes;
            else if (op->lane == ST_LANE_WRITE)
                t->write += op->bytes;
            else if (op->lane == ST_LANE_READ_STATE || op->lane == ST_LANE_READ_WEIGHT || op->lane == ST_LANE_READ_ACTIVATION)
                t->read += op->bytes;
        }
    }
}

strata_status st_program_emit(struct st_plan *plan, struct st_layout *lay)
{
    struct emitter e = {.plan = plan, .lay = lay};

    e.deps = calloc(plan->buffer_count, sizeof(*e.deps));
    if (e.deps == NULL)
        return st_error(STRATA_E_NOMEM, "plan: no memory for the program");
    for (uint32_t b = 0; b < plan->buffer_count; b++)
        e.deps[b].writer.op = NOBODY;
    e.update_phases = gated(&e) ? BODY | EPI : BODY | PRO;
    e.tail_reads = 0;
    if (gated(&e))
        for (uint32_t c = 0; c < plan->chunk_count && e.tail_reads < lay->states.count; c++)
            e.tail_reads += plan->chunks[c].tier == STRATA_TIER_NVME;
    emit_cycle(&e);
    remember_as_previous(&e);
    emit_cycle(&e);
    for (uint32_t b = 0; b < plan->buffer_count; b++)
        free(e.deps[b].readers);
    free(e.deps);
    if (e.no_memory)
        return st_error(STRATA_E_NOMEM, "plan: no memory for the program");
    add_traffic(plan);
    return STRATA_OK;
}
