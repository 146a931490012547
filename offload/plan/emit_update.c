/* emit_update.c - weights in and out, the updates of a page, and what a checkpoint writes of it. */
#include "offload/plan/emit_internal.h"

#include <assert.h>

/* --- weights --- */

void st_emit_if_chosen(struct st_emitter *e, uint32_t p)
{
    if (st_page_is_chosen(&e->program->workload, p))
        st_emit_operand(e, ST_ROLE_CHOICE, e->lay->at.choice, e->program->workload.pages[p].layer);
}

uint32_t st_emit_host_weight(struct st_emitter *e, uint32_t p, unsigned phases)
{
    const struct st_page_place *place = &e->program->pages[p];
    uint32_t slot;

    if (place->home == ST_WHERE_HOST)
        return place->home_region;
    assert(place->home == ST_WHERE_NVME);
    slot = st_pool_find(&e->lay->host_weights, p);
    if (slot != ST_NO_BUFFER)
        return slot;
    slot = st_pool_take(&e->lay->host_weights, p);
    if (phases == 0)
        return slot;
    st_emit_copy(e, ST_OP_READ_WEIGHT, phases, place->home_region, slot, p, st_extent_bytes(st_emit_page_bytes(e, p)))->page = p;
    st_emit_if_chosen(e, p);
    return slot;
}

static struct st_pool *device_slots(struct st_emitter *e, uint32_t p)
{
    return st_place_is_small(e->plan, p) ? &e->lay->small_weights : &e->lay->weights;
}

static bool is_current(const struct st_emitter *e, uint32_t p)
{
    for (uint32_t i = 0; i < e->current.count; i++)
        if (e->program->workload.uses[e->current.use + i] == p)
            return true;
    return false;
}

/* The next slot that has no page of the unit whose ops come next. */
static uint32_t take_device_slot(struct st_emitter *e, uint32_t p)
{
    struct st_pool *pool = device_slots(e, p);

    for (uint32_t i = 0; i < pool->count && is_current(e, pool->holds[pool->next]); i++)
        pool->next = (pool->next + 1) % pool->count;
    return st_pool_take(pool, p);
}

/* The other ranks' slices follow what this one has brought or updated. */
static void gather_weight(struct st_emitter *e, enum st_op_kind kind, uint32_t p, uint32_t weight, unsigned phases)
{
    struct st_op *op;

    if (st_program_cuts(e->program) == 1)
        return;
    op = st_emit_op(e, kind, phases);
    op->page = p;
    op->bytes = st_program_gathered_bytes(e->program, p, kind == ST_OP_GATHER_UPDATED);
    st_emit_operand(e, ST_ROLE_TO, weight, p);
    if (kind == ST_OP_GATHER_WEIGHT)
        st_emit_if_chosen(e, p);
}

static void upload_weight(struct st_emitter *e, uint32_t p, uint32_t from, uint32_t to, unsigned phases, uint64_t bytes)
{
    st_emit_copy(e, ST_OP_UPLOAD_WEIGHT, phases, from, to, p, bytes)->page = p;
    st_emit_if_chosen(e, p);
}

/* The slot on the device that has the page; if none has, one to which it goes in these phases, of other ranks' slices nothing. */
static uint32_t device_shard(struct st_emitter *e, uint32_t p, unsigned phases, bool *fresh)
{
    const struct st_page_place *place = &e->program->pages[p];
    uint32_t slot, from;

    *fresh = false;

    if (place->weights == ST_WHERE_DEVICE)
        return place->weight_region;
    slot = st_pool_find(device_slots(e, p), p);
    if (slot != ST_NO_BUFFER)
        return slot;
    *fresh = true;
    if (st_page_sliced(place)) {
        slot = take_device_slot(e, p);
        st_emit_copy(e, ST_OP_PLACE_WEIGHT, phases, place->home_region, slot, p, st_emit_page_bytes(e, p))->page = p;
        st_emit_if_chosen(e, p);
        return slot;
    }
    from = st_emit_host_weight(e, p, phases);
    slot = take_device_slot(e, p);
    upload_weight(e, p, from, slot, phases, st_emit_page_bytes(e, p));
    return slot;
}

uint32_t st_emit_device_weight(struct st_emitter *e, uint32_t p, unsigned phases)
{
    bool fresh;
    const uint32_t weight = device_shard(e, p, phases, &fresh);

    if (fresh)
        gather_weight(e, ST_OP_GATHER_WEIGHT, p, weight, phases);
    return weight;
}

/* Bytes of page p's weights that an update changes; on the way to an extent the drive's blocks that they lie in. */
static uint64_t updated_bytes(const struct st_emitter *e, uint32_t p)
{
    return st_page_updated_bytes(&e->program->shards[p], e->program->pages[p].home);
}

static void write_weight(struct st_emitter *e, uint32_t p, uint32_t slot)
{
    const struct st_page_place *place = &e->program->pages[p];
    struct st_op *op;

    if (place->home != ST_WHERE_NVME)
        return;
    op = st_emit_copy(e, ST_OP_WRITE_WEIGHT, e->chunk_phases, slot, place->home_region, p, st_extent_bytes(updated_bytes(e, p)));
    op->page = p;
    op->early = e->early;
}

/* --- rounded gradients --- */

uint32_t st_emit_host_grad(struct st_emitter *e, uint32_t p)
{
    const uint32_t region = e->program->pages[p].grad_region;

    return region != ST_NO_BUFFER ? region : st_pool_take(&e->lay->host_grads, p);
}

static void move_grad(struct st_emitter *e, enum st_op_kind kind, unsigned phases, uint32_t p, uint32_t from, uint32_t to)
{
    st_emit_copy(e, kind, phases, from, to, p, st_extent_bytes(st_emit_grad_bytes(e, p)))->page = p;
}

void st_emit_store_grad(struct st_emitter *e, uint32_t p, uint32_t from)
{
    if (e->program->pages[p].grad_extent != ST_NO_BUFFER)
        move_grad(e, ST_OP_WRITE_GRAD, BACKWARD, p, from, e->program->pages[p].grad_extent);
}

/* Where page p's updates find its gradient.  From NVMe it is read even if a slot has it still: traffic follows from the decisions
 * alone. */
static uint32_t update_grad(struct st_emitter *e, uint32_t p)
{
    const struct st_page_place *place = &e->program->pages[p];
    uint32_t slot;

    if (place->grad_region != ST_NO_BUFFER)
        return place->grad_region;
    if (place->grad_extent == ST_NO_BUFFER || e->early)
        return st_pool_find(&e->lay->host_grads, p); /* it has just come down */
    slot = st_pool_take(&e->lay->host_grads, p);
    move_grad(e, ST_OP_READ_GRAD, e->chunk_phases, p, place->grad_extent, slot);
    return slot;
}

/* --- updates of one page --- */

static void move_state(struct st_emitter *e, enum st_op_kind kind, unsigned phases, uint32_t c, uint32_t from, uint32_t to)
{
    const struct st_chunk *chunk = &e->program->chunks[c];
    struct st_op *op = st_emit_copy(e, kind, phases, from, to, c, chunk->bytes);

    op->page = chunk->page;
    op->chunk = c;
    op->early = e->early && kind == ST_OP_WRITE_STATE;
}

static uint32_t state_slot(struct st_emitter *e, uint32_t c)
{
    struct st_pool *pool = &e->lay->states;
    const struct st_chunk *chunk = &e->program->chunks[c];
    uint32_t slot = st_pool_find(pool, c);

    if (slot != ST_NO_BUFFER)
        return slot;
    slot = st_pool_take(pool, c);
    move_state(e, ST_OP_READ_STATE, e->chunk_phases, c, chunk->region, slot);
    return slot;
}

/* Checkpoints' copies of what has been updated in memory; the next update waits for them.  What is on the device comes down
 * first, part by part.  page and chunk: the op's indices; index: that of the two which names the thing. */
struct saved_thing {
    enum st_op_kind download, write;
    uint32_t page, chunk, index;
    uint64_t bytes;
};

static void save_copy(struct st_emitter *e, const struct saved_thing *t, enum st_op_kind kind, uint32_t part, uint32_t from,
                      uint32_t to, uint64_t bytes)
{
    struct st_op *op = st_emit_copy(e, kind, SAVE, from, to, t->index, bytes);

    op->page = t->page;
    op->chunk = t->chunk;
    op->part = part;
}

static void save_by_slots(struct st_emitter *e, const struct saved_thing *t, uint32_t from, uint32_t extent)
{
    const uint64_t most = e->program->part_bytes;

    for (uint32_t part = 0; part * most < t->bytes; part++) {
        const uint64_t left = t->bytes - part * most, whole = st_extent_bytes(left);
        const uint32_t slot = st_pool_take(&e->lay->saves, t->index);

        save_copy(e, t, t->download, part, from, slot, left < most + ST_PART_MORE ? left : most + ST_PART_MORE);
        save_copy(e, t, t->write, part, slot, extent, whole < most ? whole : most);
    }
}

static void save_state(struct st_emitter *e, uint32_t c)
{
    const struct st_chunk *chunk = &e->program->chunks[c];
    const struct saved_thing t = {ST_OP_DOWNLOAD_STATE, ST_OP_WRITE_STATE, chunk->page, c, c, chunk->bytes};

    if (e->program->sets == 0 || chunk->state == ST_WHERE_NVME)
        return;
    if (chunk->state == ST_WHERE_DEVICE)
        save_by_slots(e, &t, chunk->region, chunk->extent);
    else
        save_copy(e, &t, t.write, 0, chunk->region, chunk->extent, t.bytes);
}

static void save_weight(struct st_emitter *e, uint32_t p)
{
    const struct st_page_place *place = &e->program->pages[p];
    const struct saved_thing t = {ST_OP_DOWNLOAD_WEIGHT, ST_OP_WRITE_WEIGHT, p, 0, p, st_page_set_bytes(&e->program->shards[p])};

    if (e->program->sets == 0 || place->home == ST_WHERE_NVME)
        return;
    if (place->home == ST_WHERE_DEVICE)
        save_by_slots(e, &t, st_page_home(place), place->extent);
    else
        save_copy(e, &t, t.write, 0, place->home_region, place->extent, st_extent_bytes(t.bytes));
}

/* One chunk's update, where its page's are made.  State that the device updates and does not hold comes there, and goes back. */
static void update_chunk(struct st_emitter *e, uint32_t c, uint32_t weight, uint32_t grad)
{
    const struct st_chunk *chunk = &e->program->chunks[c];
    const struct st_page_place *place = &e->program->pages[chunk->page];
    const bool swapped = chunk->state == ST_WHERE_NVME, device = place->grad == ST_WHERE_DEVICE;
    const uint32_t home = swapped ? state_slot(e, c) : chunk->region;
    const uint32_t state = place->state == ST_WHERE_STREAMED ? st_pool_take(&e->lay->streamed_states, c) : home;
    struct st_op *op;

    if (place->state == ST_WHERE_STREAMED)
        move_state(e, ST_OP_UPLOAD_STATE, e->update_phases, c, home, state);
    op = st_emit_op(e, device ? ST_OP_UPDATE_DEVICE : ST_OP_UPDATE, e->chunk_phases);
    op->page = chunk->page;
    op->chunk = c;
    op->early = e->early;
    st_emit_operand(e, ST_ROLE_STATE, state, c);
    st_emit_operand(e, ST_ROLE_WEIGHT, weight, chunk->page);
    st_emit_operand(e, ST_ROLE_GRAD, grad, chunk->page);
    if (device)
        st_emit_operand(e, ST_ROLE_OVERFLOWS, e->lay->at.overflows_device, 0);
    if (!st_emit_in_backward(e) && !e->early) /* the norm of the whole step, its clip factor */
        st_emit_operand(e, ST_ROLE_SCALARS, e->lay->at.scalars_host, 0);
    if (place->state == ST_WHERE_STREAMED)
        move_state(e, ST_OP_DOWNLOAD_STATE, e->update_phases, c, state, home);
    if (swapped)
        move_state(e, ST_OP_WRITE_STATE, e->chunk_phases, c, home, chunk->region);
    if (!e->early)
        save_state(e, c);
}

static void update_chunks(struct st_emitter *e, uint32_t p, uint32_t weight)
{
    const struct st_page_place *place = &e->program->pages[p];
    const uint32_t grad = update_grad(e, p);

    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count; c++)
        if (e->program->chunks[c].state != ST_WHERE_NONE)
            update_chunk(e, c, weight, grad);
    if (!place->early)
        return;
    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count; c++)
        st_pool_drop(&e->lay->states, c); /* not all cycles that go on have it there */
    st_pool_drop(&e->lay->host_grads, p);
}

/* When the update must bring page p's weights in: always if the forward that follows takes them from there, else for updates
 * alone. */
static unsigned weight_phases(const struct st_emitter *e, uint32_t p)
{
    const bool gathered = st_place_is_table(e->plan, p) && st_place_gather_on_host(e->plan);

    return st_emit_gated(e) && (gathered || e->program->pages[p].weights != ST_WHERE_DEVICE) ? ALWAYS : e->update_phases;
}

static void update_on_host(struct st_emitter *e, uint32_t p)
{
    const struct st_page_place *place = &e->program->pages[p];
    const uint32_t weight = st_emit_host_weight(e, p, weight_phases(e, p));

    update_chunks(e, p, weight);
    write_weight(e, p, weight);
    if (place->weights != ST_WHERE_DEVICE || (st_place_is_table(e->plan, p) && st_emit_uploads_later(e)))
        return;
    upload_weight(e, p, weight, place->weight_region, e->update_phases, updated_bytes(e, p));
    gather_weight(e, ST_OP_GATHER_UPDATED, p, place->weight_region, e->update_phases);
}

bool st_emit_uploads_later(const struct st_emitter *e)
{
    return st_emit_gated(e) && st_place_table_resident(e->plan) && st_place_gather_on_host(e->plan) &&
           e->program->pages[0].grad != ST_WHERE_NONE;
}

void st_emit_table_slice(struct st_emitter *e, uint32_t t)
{
    const uint32_t p = t;
    const struct st_page_place *place = &e->program->pages[p];

    upload_weight(e, p, place->home_region, place->weight_region, e->update_phases, updated_bytes(e, p));
    gather_weight(e, ST_OP_GATHER_UPDATED, p, place->weight_region, e->update_phases);
}

static void update_on_device(struct st_emitter *e, uint32_t p)
{
    const struct st_page_place *place = &e->program->pages[p];
    bool fresh;
    uint32_t weight, host;

    if (st_page_sliced(place)) {
        update_chunks(e, p, place->home_region);
        return;
    }
    weight = device_shard(e, p, weight_phases(e, p), &fresh);
    update_chunks(e, p, weight);
    if (fresh)
        gather_weight(e, ST_OP_GATHER_WEIGHT, p, weight, weight_phases(e, p));
    else
        gather_weight(e, ST_OP_GATHER_UPDATED, p, weight, e->update_phases);
    if (place->home == ST_WHERE_DEVICE)
        return;
    host = st_emit_host_weight(e, p, weight_phases(e, p) & ~(unsigned)e->update_phases); /* an update brings newer ones down */
    st_emit_copy(e, ST_OP_DOWNLOAD_WEIGHT, e->update_phases, weight, host, p, updated_bytes(e, p))->page = p;
    write_weight(e, p, host);
}

void st_emit_update(struct st_emitter *e, uint32_t p)
{
    if (e->program->pages[p].grad == ST_WHERE_NONE)
        return;
    e->chunk_phases = e->program->pages[p].early ? REDO : e->update_phases;
    if (e->program->pages[p].grad == ST_WHERE_DEVICE)
        update_on_device(e, p);
    else
        update_on_host(e, p);
    save_weight(e, p);
}

/* What the slots of the host have then is not in force, and nobody finds it there. */
void st_emit_early(struct st_emitter *e, uint32_t p)
{
    const struct st_page_place *place = &e->program->pages[p];
    const uint32_t weight = st_emit_host_weight(e, p, EARLY);

    assert(place->grad == ST_WHERE_HOST);
    e->chunk_phases = EARLY;
    e->early = true;
    update_chunks(e, p, weight);
    write_weight(e, p, weight);
    e->early = false;
    st_emit_forget_page(e, p);
    if (--e->early_left == 0)
        st_emit_read_ahead(e, EARLY);
}

/* The i-th page in the order of updates. */
static uint32_t update_order(const struct st_emitter *e, uint32_t i)
{
    const uint32_t first = e->first_ahead ? st_layer_page(&e->program->workload, 1, 0) : 0;

    if (!e->first_ahead || i > first)
        return i;
    return i == 0 ? first : i - 1;
}

/* The block behind a lookup may go before the table where nothing in between takes its slot. */
static bool can_go_ahead(const struct st_emitter *e)
{
    const struct st_workload *w = &e->program->workload;
    uint32_t p;

    if (w->gathered_count == 0 || w->layers[1].kind != ST_LAYER_BLOCK || w->layers[1].use_count != 1)
        return false;
    p = st_layer_page(w, 1, 0);
    if (w->pages[p].uses > 1)
        return false;
    if (e->program->pages[p].weights == ST_WHERE_DEVICE)
        return true;
    return e->lay->weights.count > e->plan->sums->pages_at_once &&
           (st_place_table_resident(e->plan) || e->program->pages[0].grad != ST_WHERE_DEVICE);
}

void st_emit_order(struct st_emitter *e)
{
    const struct st_program *program = e->program;

    e->first_ahead = can_go_ahead(e);
    e->tail_reads = 0;
    for (uint32_t i = 0; st_emit_gated(e) && i < program->workload.page_count; i++) {
        const struct st_page_place *place = &program->pages[update_order(e, i)];

        for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count; c++)
            if (program->chunks[c].state == ST_WHERE_NVME && !place->early && e->tail_reads < e->lay->states.count)
                e->ahead[e->tail_reads++] = c;
    }
}

void st_emit_read_ahead(struct st_emitter *e, unsigned phases)
{
    for (uint32_t i = 0; i < e->tail_reads; i++)
        move_state(e, ST_OP_READ_STATE, phases, e->ahead[i], e->program->chunks[e->ahead[i]].region, e->lay->states.buffer[i]);
}

void st_emit_forget_page(struct st_emitter *e, uint32_t p)
{
    st_pool_drop(device_slots(e, p), p);
    st_pool_drop(&e->lay->host_weights, p);
}

void st_emit_forget_weights(struct st_emitter *e, uint32_t but)
{
    struct st_pool *pool = &e->lay->weights;

    for (uint32_t i = 0; i < pool->count; i++)
        if (but == ST_NO_PAGE || pool->holds[i] != but)
            pool->holds[i] = ST_NO_BUFFER;
    st_pool_forget(&e->lay->small_weights);
    st_pool_forget(&e->lay->host_weights);
}
