/* engine_ops.c - what each op of an executing lane does: a function of its kind, a copy, or a call of the model. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"
#include "kernels/widen.h"

#include <assert.h>
#include <string.h>

void *st_engine_operand(const struct st_engine *eng, const struct st_op *op, enum st_role role)
{
    const struct st_access *a = st_op_access(eng->program->accesses, op, role);

    assert(a != NULL);
    return st_engine_pointer(eng, a->buffer);
}

/* Number n of an operand that the op has for each of several slices or micro-batches. */
static void *each(const struct st_engine *eng, const struct st_op *op, enum st_role role, uint32_t n)
{
    const struct st_access *a = st_op_access(eng->program->accesses, op, role) + n;

    assert(a < eng->program->accesses + op->access_first + op->access_count && a->role == role);
    return st_engine_pointer(eng, a->buffer);
}

static uint32_t rows_of(const struct st_engine *eng)
{
    return eng->program->workload.micro_batch * eng->program->workload.seq;
}

/* A micro-batch's tokens, of this rank or another. */
static const int32_t *micro_tokens(const struct st_engine *eng, const void *tokens, uint32_t micro)
{
    const uint32_t global = st_program_global_micro(eng->program, micro), g = eng->program->workload.grad_accum;

    return st_engine_tokens(eng, tokens, global / g) + (uint64_t)(global % g) * rows_of(eng);
}

/* Elements of a page's sum where it waits for the lookup's gradients. */
static uint64_t sum_elems(const struct st_program *program, uint32_t p)
{
    return (program->pages[p].sum_cut ? program->shards : program->workload.pages)[p].trained_elems;
}

/* Rows whose embedding is looked up: those of a generation call, else all. */
static uint32_t rows_to_gather(const struct st_engine *eng)
{
    return eng->generate_rows != 0 ? eng->generate_rows : rows_of(eng);
}

/* --- copies --- */

static strata_status upload(struct st_engine *eng, void *to, const void *from, uint64_t bytes)
{
    return bytes == 0 ? STRATA_OK : eng->device->ops->upload(eng->device, to, from, bytes);
}

static strata_status download(struct st_engine *eng, void *to, const void *from, uint64_t bytes)
{
    return bytes == 0 ? STRATA_OK : eng->device->ops->download(eng->device, to, from, bytes);
}

strata_status st_engine_put(struct st_engine *eng, void *to_device, const void *from, uint64_t bytes)
{
    const strata_status st = eng->device->ops->upload(eng->device, to_device, from, bytes);

    return st != STRATA_OK ? st : eng->device->ops->finish(eng->device, ST_QUEUE_UPLOAD);
}

strata_status st_engine_get(struct st_engine *eng, void *to, const void *from_device, uint64_t bytes)
{
    const strata_status st = eng->device->ops->download(eng->device, to, from_device, bytes);

    return st != STRATA_OK ? st : eng->device->ops->finish(eng->device, ST_QUEUE_DOWNLOAD);
}

/* Whether what is accessed lives on NVMe, and has checksums. */
static bool has_checksums(const struct st_engine *eng, const struct st_access *a)
{
    switch ((enum st_content)a->content) {
    case ST_HOLDS_WEIGHT:
        return eng->program->pages[a->index].home == ST_WHERE_NVME;
    case ST_HOLDS_STATE:
        return eng->program->chunks[a->index].state == ST_WHERE_NVME;
    default:
        return a->content == ST_HOLDS_ACT && eng->act_checksums != NULL;
    }
}

/* Checks data from NVMe that was not changed since, before its first use.  An update on the host checks each tile itself. */
static strata_status check(struct st_engine *eng, const struct st_access *a)
{
    void *data = st_engine_pointer(eng, a->buffer);
    strata_status st;

    if (eng->verified[a->buffer] || !has_checksums(eng, a))
        return STRATA_OK;
    assert(st_engine_has_workers(eng)); /* what a device's queue takes was checked on arrival */
    if (a->content == ST_HOLDS_WEIGHT)
        st = st_engine_verify_weights(eng, a->index, data);
    else if (a->content == ST_HOLDS_STATE)
        st = st_engine_verify_state(eng, a->index, data);
    else
        st = st_engine_verify_act(eng, a->index, data);
    eng->verified[a->buffer] = st == STRATA_OK;
    return st;
}

/* Weights are pages on the device, and shards elsewhere, or where they live there in slices. */
static strata_status copy_weights(struct st_engine *eng, const struct st_op *op, unsigned char *to, const unsigned char *from)
{
    const uint64_t first = st_part_at(eng->program, op);
    struct st_shard_piece pieces[ST_GROUPS_MAX];
    const uint32_t count = st_program_pieces(pieces, eng->program, op->page, first, op->bytes);
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        const struct st_shard_piece *p = &pieces[i];

        if (op->kind == ST_OP_PLACE_WEIGHT)
            st = eng->device->ops->copy(eng->device, to + p->page_at, from + p->shard_at, p->bytes);
        else if (st_page_sliced(&eng->program->pages[op->page]))
            st = download(eng, to + p->shard_at - first, from + p->shard_at, p->bytes);
        else
            st = op->lane == STRATA_LANE_UPLOAD ? upload(eng, to + p->page_at, from + p->shard_at, p->bytes)
                                                : download(eng, to + p->shard_at - first, from + p->page_at, p->bytes);
    }
    return st;
}

/* A sum in page layout, to one of only the shard. */
static strata_status download_cut(struct st_engine *eng, const struct st_op *op, float *to, const float *from)
{
    const struct st_page *page = &eng->program->workload.pages[op->page], *shard = &eng->program->shards[op->page];
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < page->group_count && st == STRATA_OK; i++) {
        const struct st_slice s = st_program_slice(eng->program, op->page, i);

        if (page->groups[i].kind != ST_GROUP_FROZEN)
            st = download(eng, to + shard->groups[i].offset, from + page->groups[i].offset + s.first, s.elems * sizeof(float));
    }
    return st;
}

/* Bytes are counted as planned, with the room of a shard that a rank's slices may not fill. */
static strata_status copy(struct st_engine *eng, const struct st_op *op)
{
    void *to = st_engine_operand(eng, op, ST_ROLE_TO);
    const unsigned char *from = st_engine_operand(eng, op, ST_ROLE_FROM);
    strata_status st = STRATA_OK;

    if (op->kind == ST_OP_PLACE_WEIGHT)
        return copy_weights(eng, op, to, from);
    *st_traffic_of(&eng->result.bytes, op->lane) += op->bytes;
    if (st_op_rows[op->kind].checksum == ST_CHECKSUM_OPENS)
        st = check(eng, st_op_access(eng->program->accesses, op, ST_ROLE_FROM));
    if (st != STRATA_OK)
        return st;
    if (op->kind == ST_OP_UPLOAD_WEIGHT || op->kind == ST_OP_DOWNLOAD_WEIGHT)
        return copy_weights(eng, op, to, from);
    if (op->kind == ST_OP_DOWNLOAD_ACCUM && eng->program->pages[op->page].sum_cut)
        return download_cut(eng, op, to, (const float *)(const void *)from);
    assert(op->lane == STRATA_LANE_UPLOAD || op->lane == STRATA_LANE_DOWNLOAD);
    return op->lane == STRATA_LANE_UPLOAD ? upload(eng, to, from, op->bytes)
                                          : download(eng, to, from + st_part_at(eng->program, op), op->bytes);
}

static strata_status upload_rows(struct st_engine *eng, const struct st_op *op)
{
    const unsigned char *rows = st_engine_operand(eng, op, ST_ROLE_ROWS);

    eng->result.bytes.upload += op->bytes;
    return upload(eng, st_engine_operand(eng, op, ST_ROLE_ACT_OUT), rows + op->micro * op->bytes, op->bytes);
}

bool st_engine_ends_check(const struct st_engine *eng, const struct st_op *op)
{
    const struct st_page_place *place = &eng->program->pages[op->page];

    return op->kind == ST_OP_UPDATE && op->chunk + 1 == place->chunk_first + place->chunk_count;
}

static strata_status update(struct st_engine *eng, const struct st_op *op)
{
    strata_status st = st_engine_update_op(eng, op);

    if (st == STRATA_OK && st_engine_ends_check(eng, op))
        eng->verified[st_op_access(eng->program->accesses, op, ST_ROLE_WEIGHT)->buffer] = true;
    return st;
}

/* --- the embedding on the host --- */

#define GATHER_ROWS 64u

/* Rows of one slice: those that this rank has. */
struct gather {
    uint32_t row_first, row_count; /* of the vocabulary */
    const unsigned char *table;    /* the first of them */
    unsigned char *rows;
    const int32_t *tokens;
    size_t row_bytes;
    uint64_t count;
};

static void gather_rows(void *ctx, uint64_t index, uint32_t worker)
{
    const struct gather *g = ctx;
    const uint64_t end = (index + 1) * GATHER_ROWS < g->count ? (index + 1) * GATHER_ROWS : g->count;

    (void)worker;
    for (uint64_t r = index * GATHER_ROWS; r < end; r++) {
        const uint32_t row = (uint32_t)g->tokens[r] - g->row_first;

        if (row < g->row_count)
            memcpy(g->rows + r * g->row_bytes, g->table + row * g->row_bytes, g->row_bytes);
    }
}

strata_status st_engine_gather_host(struct st_engine *eng, const struct st_op *op, uint32_t micro, uint32_t count)
{
    const struct st_workload *w = &eng->program->workload;
    const uint64_t first = (uint64_t)micro * rows_to_gather(eng);
    const size_t row_bytes = w->hidden * strata_dtype_bytes(w->dtype);
    struct gather g = {.row_first = w->pages[op->page].row_first,
                       .row_count = w->pages[op->page].row_count,
                       .table = st_engine_operand(eng, op, ST_ROLE_WEIGHT),
                       .tokens = st_engine_tokens(eng, st_engine_operand(eng, op, ST_ROLE_TOKENS), eng->program->rank) + first,
                       .rows = (unsigned char *)st_engine_operand(eng, op, ST_ROLE_ROWS) + first * row_bytes,
                       .row_bytes = row_bytes,
                       .count = (uint64_t)rows_to_gather(eng) * count};
    strata_status st = check(eng, st_op_access(eng->program->accesses, op, ST_ROLE_WEIGHT));

    if (st_program_cuts(eng->program) > 1) {
        const struct st_row_range own = st_engine_own_rows(eng, op->page);

        g.row_first += own.first;
        g.row_count = own.end - own.first;
    }
    if (st == STRATA_OK)
        st_workers_run(eng->workers, gather_rows, &g, (g.count + GATHER_ROWS - 1) / GATHER_ROWS);
    return st;
}

/* Of a step that is fed what is there; the rest follows (engine_feed.c). */
static strata_status gather_host(struct st_engine *eng, const struct st_op *op)
{
    return st_engine_gather_host(eng, op, 0, st_engine_is_fed(eng) ? 1 : eng->program->workload.grad_accum);
}

#define SCATTER_COLUMNS 128u

struct scatter {
    const struct st_engine *eng;
    const unsigned char *dact;
    const int32_t *tokens;
};

/* NULL: another rank adds to this row. */
static float *accumulator_row(const struct scatter *s, uint32_t token)
{
    const struct st_workload *w = &s->eng->program->workload;
    const uint32_t slice_rows = w->pages[0].row_count;
    const uint32_t page = token / slice_rows, row = token % slice_rows;
    const struct st_row_range own = st_engine_own_rows(s->eng, page);
    const uint32_t first = s->eng->program->pages[page].sum_cut ? own.first : 0;

    assert(token >= w->pages[page].row_first && token - w->pages[page].row_first < w->pages[page].row_count);
    if (row < own.first || row >= own.end)
        return NULL;
    return (float *)st_engine_pointer(s->eng, s->eng->program->pages[page].accum_region) + (uint64_t)(row - first) * w->hidden;
}

/* Adds one range of columns, tokens in order, so that the sum of an element never depends on the split. */
static void scatter_columns(void *ctx, uint64_t index, uint32_t worker)
{
    const struct scatter *s = ctx;
    const struct st_workload *w = &s->eng->program->workload;
    const uint32_t first = (uint32_t)index * SCATTER_COLUMNS, rows = rows_of(s->eng);
    const uint32_t count = w->hidden - first < SCATTER_COLUMNS ? w->hidden - first : SCATTER_COLUMNS;
    const size_t width = strata_dtype_bytes(w->dtype);

    (void)worker;
    for (uint32_t r = 0; r < rows; r++) {
        const void *from = s->dact + ((uint64_t)r * w->hidden + first) * width;
        float *row = accumulator_row(s, (uint32_t)s->tokens[r]);

        if (row != NULL)
            st_widen_add(s->eng->kernels, row + first, from, w->dtype, count);
    }
}

static strata_status scatter_host(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->program->workload;
    struct scatter s = {.eng = eng,
                        .dact = st_engine_operand(eng, op, ST_ROLE_DACT),
                        .tokens = micro_tokens(eng, st_engine_operand(eng, op, ST_ROLE_TOKENS), op->micro)};

    for (uint32_t p = 0; op->first && p < w->gathered_count; p++)
        memset(st_engine_pointer(eng, eng->program->pages[p].accum_region), 0, sum_elems(eng->program, p) * sizeof(float));
    st_workers_run(eng->workers, scatter_columns, &s, (w->hidden + SCATTER_COLUMNS - 1) / SCATTER_COLUMNS);
    return STRATA_OK;
}

/* --- the device's own --- */

static strata_status gather_device(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->program->workload;
    const int32_t *tokens = micro_tokens(eng, st_engine_operand(eng, op, ST_ROLE_TOKENS), op->micro);
    void *act = st_engine_operand(eng, op, ST_ROLE_ACT_OUT);
    strata_status st = STRATA_OK;

    for (uint32_t t = 0; t < w->gathered_count && st == STRATA_OK; t++) {
        const struct st_page *page = &w->pages[t];

        st = eng->device->ops->embed_gather(eng->device, act, each(eng, op, ST_ROLE_WEIGHT, t), tokens, rows_to_gather(eng),
                                            w->hidden, page->row_first, page->row_count, w->dtype);
    }
    return st;
}

static strata_status scatter_device(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->program->workload;
    const struct st_page *page = &w->pages[op->page];
    const int32_t *tokens = st_engine_operand(eng, op, ST_ROLE_TOKENS);
    float *sum = st_engine_operand(eng, op, ST_ROLE_SUM);
    strata_status st = STRATA_OK;

    if (op->first)
        st = eng->device->ops->zero(eng->device, sum, page->trained_elems * sizeof(float));
    for (uint32_t m = 0; m < w->grad_accum && st == STRATA_OK; m++)
        st =
            eng->device->ops->embed_scatter(eng->device, sum, each(eng, op, ST_ROLE_DACT, m), tokens + (uint64_t)m * rows_of(eng),
                                            rows_of(eng), w->hidden, page->row_first, page->row_count, w->dtype);
    return st;
}

/* --- between ranks --- */

/* One micro-batch's gradients of the rows that this rank has. */
static strata_status scatter_micro(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->program->workload;
    const struct st_page *page = &w->pages[op->page];
    const struct st_row_range own = st_engine_own_rows(eng, op->page);
    float *sum = st_engine_operand(eng, op, ST_ROLE_SUM);
    strata_status st = STRATA_OK;

    if (op->first)
        st = eng->device->ops->zero(eng->device, sum, page->trained_elems * sizeof(float));
    if (st != STRATA_OK || own.end == own.first)
        return st;
    return eng->device->ops->embed_scatter(eng->device, sum + (uint64_t)own.first * w->hidden,
                                           st_engine_operand(eng, op, ST_ROLE_DACT),
                                           micro_tokens(eng, st_engine_operand(eng, op, ST_ROLE_TOKENS), op->micro), rows_of(eng),
                                           w->hidden, page->row_first + own.first, own.end - own.first, w->dtype);
}

/* --- the model's --- */

static float loss_gradient(const struct st_engine *eng)
{
    const uint64_t targets = eng->target_count;

    if (st_engine_is_fed(eng))
        return (float)(eng->train.update_scale * eng->feed.weight);
    return targets > 0 ? (float)(eng->train.update_scale / (double)targets) : 0.0f;
}

/* An auxiliary loss counts once for each micro-batch, however many targets that has; in a step without any nothing does. */
static float aux_gradient(const struct st_engine *eng)
{
    const double coef = eng->program->workload.aux_loss_coef;

    return eng->target_count > 0 ? (float)(eng->train.update_scale * coef) : 0.0f;
}

/* Operands that the op lacks are NULL in the call. */
static strata_status call_model(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->program->workload;
    const uint64_t rows = rows_of(eng), micro = st_program_global_micro(eng->program, op->micro);
    const int32_t *tokens = st_engine_tokens(eng, st_engine_pointer(eng, eng->program->at.tokens_device), eng->program->rank);
    struct st_norm *scalars = st_engine_pointer(eng, eng->program->at.scalars_device);
    const struct st_access *accesses = &eng->program->accesses[op->access_first];
    void *at[ST_ROLE_COUNT] = {NULL};
    struct st_call call;

    for (uint32_t i = 0; i < op->access_count; i++)
        at[accesses[i].role] = st_engine_pointer(eng, accesses[i].buffer);
    call = (struct st_call){
        .kind = st_op_rows[op->kind].call,
        .layer = op->layer,
        .page = op->page,
        .micro = op->micro,
        .slice = op->slice,
        .recompute = op->recompute,
        .ops = eng->device->ops->tensors,
        .device = eng->device,
        .weight = at[ST_ROLE_WEIGHT],
        .grad = at[ST_ROLE_SUM],
        .grad_elems = at[ST_ROLE_SUM] != NULL ? w->pages[op->page].trained_elems : 0,
        .first = at[ST_ROLE_SUM] != NULL && op->first,
        .act = at[ST_ROLE_ACT],
        .act_out = op->kind == ST_OP_EMBED_FORWARD ? at[ST_ROLE_ACT] : at[ST_ROLE_ACT_OUT],
        .dact = at[ST_ROLE_DACT],
        .internals = at[ST_ROLE_INTERNALS],
        .routes = at[ST_ROLE_ROUTES],
        .opens_routes = at[ST_ROLE_SUM] == NULL && op->first,
        .logits = at[ST_ROLE_LOGITS],
        .workspace = at[ST_ROLE_WORKSPACE],
        .tokens = tokens + op->micro * rows,
        .targets = tokens + (w->grad_accum + op->micro) * rows,
        .positions = w->documents ? tokens + (2 * w->grad_accum + op->micro) * rows : NULL,
        .loss_sum = st_scalars_losses(eng->program, scalars) + micro,
        .aux_loss = w->routes_bytes > 0 ? st_scalars_aux_losses(eng->program, scalars) + micro : NULL,
        .loss_gradient = loss_gradient(eng),
        .aux_gradient = aux_gradient(eng),
        .trains = eng->dispatch.phase != ST_PHASE_EVAL,
        .sequence = eng->train.sequences + micro * w->micro_batch,
        .constants = w->constants_bytes > 0 ? st_engine_pointer(eng, eng->program->at.constants) : NULL,
        .rows = eng->generate_rows,
        .position = eng->generate_position,
    };

    return eng->compute.run(eng->compute.model, &call);
}

/* --- checksums around transfers --- */

bool st_engine_has_follow(const struct st_engine *eng, const struct st_op *op, bool saves)
{
    const struct st_op_row *row = &st_op_rows[op->kind];
    const bool saved = saves && row->checksum == ST_CHECKSUM_CLOSES;

    if (row->checksum != ST_CHECKSUM_ARRIVES && row->checksum != ST_CHECKSUM_CLOSES)
        return false;
    switch ((enum st_content)row->operands[0].content) {
    case ST_HOLDS_WEIGHT:
        return saved || eng->program->pages[op->page].home == ST_WHERE_NVME;
    case ST_HOLDS_STATE:
        return saved || (eng->program->pages[op->page].state == ST_WHERE_STREAMED &&
                         eng->program->chunks[op->chunk].state == ST_WHERE_NVME);
    case ST_HOLDS_GRAD:
        return st_page_swaps_grad(eng->program, op->page);
    default:
        return eng->act_checksums != NULL;
    }
}

/* Computes the checksums of data that leaves for NVMe, and checks data that came from there. */
strata_status st_engine_follow_op(struct st_engine *eng, const struct st_op *op)
{
    const struct st_access *a = st_op_access(eng->program->accesses, op, ST_ROLE_TO);
    const void *data = st_engine_pointer(eng, a->buffer);

    if (st_op_rows[op->kind].checksum == ST_CHECKSUM_ARRIVES)
        return check(eng, a);
    if (op->phases == ST_PHASE_SAVE)
        st_engine_hash_part(eng, op, data);
    else if (a->content == ST_HOLDS_WEIGHT)
        st_engine_hash_updated(eng, a->index, data);
    else if (a->content == ST_HOLDS_STATE)
        st_engine_hash_state(eng, a->index, data);
    else if (a->content == ST_HOLDS_GRAD)
        st_engine_hash_grad(eng, a->index, data);
    else
        st_engine_hash_act(eng, a->index, data);
    eng->verified[a->buffer] = true;
    return STRATA_OK;
}

/* --- dispatch --- */

static strata_status end_of_step(struct st_engine *eng, const struct st_op *op)
{
    (void)op;
    return st_engine_end_of_step(eng);
}

typedef strata_status run_fn(struct st_engine *eng, const struct st_op *op);

/* Kinds that have a function. */
static run_fn *const functions[ST_OP_KIND_COUNT] = {
    [ST_OP_UPDATE] = update,
    [ST_OP_UPDATE_DEVICE] = st_engine_update_chunk_device,
    [ST_OP_GATHER_DEVICE] = gather_device,
    [ST_OP_GATHER_HOST] = gather_host,
    [ST_OP_UPLOAD_ROWS] = upload_rows,
    [ST_OP_DOWNLOAD_CHOICE] = st_engine_download_choice,
    [ST_OP_CHOOSE] = st_engine_choose,
    [ST_OP_REDUCE_SUM] = st_engine_reduce_sum,
    [ST_OP_SCATTER_DEVICE] = scatter_device,
    [ST_OP_SCATTER_HOST] = scatter_host,
    [ST_OP_FINISH_GRAD] = st_engine_finish_grad,
    [ST_OP_FINISH_HOST] = st_engine_finish_host,
    [ST_OP_END] = end_of_step,
    [ST_OP_ROUND_SUM] = st_engine_round_sum,
    [ST_OP_REDUCE_RANKS] = st_engine_reduce_ranks,
    [ST_OP_SCATTER_MICRO] = scatter_micro,
    [ST_OP_PAGE_USE] = st_engine_caller_prepare,
    [ST_OP_LAYER_FORWARD] = st_engine_caller_prepare,
    [ST_OP_PAGE_GRAD] = st_engine_caller_prepare,
    [ST_OP_LAYER_BACKWARD] = st_engine_caller_prepare,
    [ST_OP_CALLER_END] = st_engine_caller_prepare,
};

strata_status st_engine_run_op(struct st_engine *eng, const struct st_op *op)
{
    run_fn *run = functions[op->kind];

    if (st_engine_is_fed(eng)) {
        const strata_status st = st_engine_feed_before(eng, op);

        if (st != STRATA_OK)
            return st;
    }
    if (run == NULL)
        run = st_op_copies((enum st_op_kind)op->kind) ? copy : call_model;
    return run(eng, op);
}

strata_status st_engine_run_timed(struct st_engine *eng, uint32_t op)
{
    strata_status st;

    if (eng->op_times == NULL)
        return st_engine_run_op(eng, &eng->program->ops[op]);
    st_device_timed_op(eng->device, op);
    st = st_engine_run_op(eng, &eng->program->ops[op]);
    st_device_timed_op(eng->device, ST_NO_OP);
    return st;
}
