/* engine_ops.c - what each op of an executing lane does.  Accesses are in the order that enum st_op_kind states. */
#include "offload/engine_state.h"

#include "core/error.h"

#include <assert.h>
#include <string.h>

static void *at(const struct st_engine *eng, const struct st_op *op, uint32_t access)
{
    assert(access < op->access_count);
    return st_engine_pointer(eng, eng->plan->accesses[op->access_first + access].buffer);
}

static uint32_t rows_of(const struct st_engine *eng)
{
    return eng->plan->workload.micro_batch * eng->plan->workload.seq;
}

/* Rows whose embedding is looked up: those of a generating call, else all. */
static uint32_t rows_to_gather(const struct st_engine *eng)
{
    return eng->generate_rows != 0 ? eng->generate_rows : rows_of(eng);
}

/* --- copies --- */

static strata_status upload(struct st_engine *eng, void *to, const void *from, uint64_t bytes)
{
    eng->result.bytes.upload += bytes;
    return eng->device->ops->upload(eng->device, to, from, bytes);
}

static strata_status download(struct st_engine *eng, void *to, const void *from, uint64_t bytes)
{
    eng->result.bytes.download += bytes;
    return eng->device->ops->download(eng->device, to, from, bytes);
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

/* Weights that came from disk and were not updated since are checked before their first use. */
static strata_status check_weights(struct st_engine *eng, const struct st_op *op, uint32_t access)
{
    const uint32_t buffer = eng->plan->accesses[op->access_first + access].buffer;
    strata_status st;

    if (eng->plan->pages[op->page].weight_home != STRATA_TIER_NVME || eng->verified[buffer])
        return STRATA_OK;
    st = st_engine_verify_weights(eng, op->page, st_engine_pointer(eng, buffer));
    eng->verified[buffer] = st == STRATA_OK;
    return st;
}

static strata_status upload_weight(struct st_engine *eng, const struct st_op *op)
{
    strata_status st = check_weights(eng, op, 0);

    return st != STRATA_OK ? st : upload(eng, at(eng, op, 1), at(eng, op, 0), op->bytes);
}

/* So is state that the device updates; an update on the host checks each tile itself. */
static strata_status check_state(struct st_engine *eng, const struct st_op *op, uint32_t access)
{
    const uint32_t buffer = eng->plan->accesses[op->access_first + access].buffer;
    strata_status st;

    if (eng->plan->chunks[op->chunk].tier != STRATA_TIER_NVME || eng->verified[buffer])
        return STRATA_OK;
    st = st_engine_verify_state(eng, op->chunk, st_engine_pointer(eng, buffer));
    eng->verified[buffer] = st == STRATA_OK;
    return st;
}

static strata_status upload_state(struct st_engine *eng, const struct st_op *op)
{
    const strata_status st = check_state(eng, op, 0);

    return st != STRATA_OK ? st : upload(eng, at(eng, op, 1), at(eng, op, 0), op->bytes);
}

/* Checkpoints on NVMe are checked when they are back, before their first use. */
static strata_status check_act(struct st_engine *eng, const struct st_op *op, uint32_t access)
{
    const struct st_access *a = &eng->plan->accesses[op->access_first + access];
    strata_status st;

    if (eng->act_checksums == NULL || eng->verified[a->buffer])
        return STRATA_OK;
    st = st_engine_verify_act(eng, a->index, at(eng, op, access));
    eng->verified[a->buffer] = st == STRATA_OK;
    return st;
}

static strata_status upload_act(struct st_engine *eng, const struct st_op *op)
{
    const strata_status st = check_act(eng, op, 0);

    return st != STRATA_OK ? st : upload(eng, at(eng, op, 1), at(eng, op, 0), op->bytes);
}

static strata_status upload_rows(struct st_engine *eng, const struct st_op *op)
{
    return upload(eng, at(eng, op, 1), (const unsigned char *)at(eng, op, 0) + op->micro * op->bytes, op->bytes);
}

static strata_status update(struct st_engine *eng, const struct st_op *op)
{
    const struct st_page_place *place = &eng->plan->pages[op->page];
    strata_status st = st_engine_update_chunk(eng, op->chunk, at(eng, op, 0), at(eng, op, 1), at(eng, op, 2));

    if (st == STRATA_OK && op->chunk + 1 == place->chunk_first + place->chunk_count)
        eng->verified[eng->plan->accesses[op->access_first + 1].buffer] = true;
    return st;
}

/* --- the embedding on the host --- */

#define GATHER_ROWS 64u

struct gather {
    const struct st_page *page;
    const unsigned char *table;
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
        const uint32_t row = (uint32_t)g->tokens[r] - g->page->row_first;

        if (row < g->page->row_count)
            memcpy(g->rows + r * g->row_bytes, g->table + row * g->row_bytes, g->row_bytes);
    }
}

static strata_status gather_host(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->plan->workload;
    struct gather g = {.page = &w->pages[op->page],
                       .table = at(eng, op, 0),
                       .tokens = at(eng, op, 1),
                       .rows = at(eng, op, 2),
                       .row_bytes = w->hidden * strata_dtype_bytes(w->dtype),
                       .count = (uint64_t)rows_to_gather(eng) * w->grad_accum};
    strata_status st = check_weights(eng, op, 0);

    if (st == STRATA_OK)
        st_workers_run(eng->workers, gather_rows, &g, (g.count + GATHER_ROWS - 1) / GATHER_ROWS);
    return st;
}

#define SCATTER_COLUMNS 128u

struct scatter {
    const struct st_engine *eng;
    const unsigned char *dact;
    const int32_t *tokens;
};

static float *parked_row(const struct scatter *s, uint32_t token)
{
    const struct st_workload *w = &s->eng->plan->workload;
    const uint32_t tile_rows = w->pages[w->table_first].row_count;
    const uint32_t page = w->table_first + token / tile_rows;

    assert(token >= w->pages[page].row_first && token - w->pages[page].row_first < w->pages[page].row_count);
    return (float *)st_engine_pointer(s->eng, s->eng->plan->pages[page].accum_region) +
           (uint64_t)(token - w->pages[page].row_first) * w->hidden;
}

/* One range of columns, tokens in order: the sum of an element never depends on the split. */
static void scatter_columns(void *ctx, uint64_t index, uint32_t worker)
{
    const struct scatter *s = ctx;
    const struct st_workload *w = &s->eng->plan->workload;
    const struct st_kernels *k = s->eng->kernels;
    const uint32_t first = (uint32_t)index * SCATTER_COLUMNS, rows = rows_of(s->eng);
    const uint32_t count = w->hidden - first < SCATTER_COLUMNS ? w->hidden - first : SCATTER_COLUMNS;
    const size_t width = strata_dtype_bytes(w->dtype);
    float wide[SCATTER_COLUMNS];

    (void)worker;
    for (uint32_t r = 0; r < rows; r++) {
        const void *from = s->dact + ((uint64_t)r * w->hidden + first) * width;
        const float *add = from;

        if (w->dtype != STRATA_F32) {
            (w->dtype == STRATA_BF16 ? k->bf16_to_f32 : k->f16_to_f32)(wide, from, count);
            add = wide;
        }
        k->add_f32(parked_row(s, (uint32_t)s->tokens[r]) + first, add, count);
    }
}

static strata_status scatter_host(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->plan->workload;
    struct scatter s = {
        .eng = eng, .dact = at(eng, op, 0), .tokens = (const int32_t *)at(eng, op, 1) + (uint64_t)op->micro * rows_of(eng)};

    for (uint32_t p = w->table_first; op->first && p < w->table_first + w->table_count; p++)
        memset(st_engine_pointer(eng, eng->plan->pages[p].accum_region), 0, w->pages[p].elems * sizeof(float));
    st_workers_run(eng->workers, scatter_columns, &s, (w->hidden + SCATTER_COLUMNS - 1) / SCATTER_COLUMNS);
    return STRATA_OK;
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

static strata_status finish_host(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->plan->workload;
    const struct st_page *page = &w->pages[op->page];
    struct st_norm *norms = at(eng, op, 2);
    struct st_norm total = {0};

    for (uint32_t i = 0; i < page->group_count; i++) {
        const struct st_group *group = &page->groups[i];
        struct finish_job j = {.kernels = eng->kernels, .dt = w->dtype, .elems = group->elems, .sums = eng->block_sums};

        if (group->kind == ST_GROUP_FROZEN)
            continue;
        j.acc = (const float *)at(eng, op, 0) + group->offset;
        j.out = (unsigned char *)at(eng, op, 1) + group->offset * strata_dtype_bytes(w->dtype);
        st_workers_run(eng->workers, finish_tile, &j, (group->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS);
        for (uint64_t b = 0; b < (group->elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK; b++)
            total.norm2 += j.sums[b];
        total.nonfinite += j.nonfinite;
    }
    norms[op->page] = total;
    return STRATA_OK;
}

/* --- the device's own --- */

static strata_status gather_device(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->plan->workload;
    const int32_t *tokens = (const int32_t *)at(eng, op, 1) + (uint64_t)op->micro * rows_of(eng);
    strata_status st = STRATA_OK;

    for (uint32_t t = 0; t < w->table_count && st == STRATA_OK; t++) {
        const struct st_page *page = &w->pages[w->table_first + t];

        st = eng->device->ops->embed_gather(eng->device, at(eng, op, 0), at(eng, op, 2 + t), tokens, rows_to_gather(eng),
                                            w->hidden, page->row_first, page->row_count, w->dtype);
    }
    return st;
}

static strata_status scatter_device(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->plan->workload;
    const struct st_page *page = &w->pages[op->page];
    const int32_t *tokens = at(eng, op, 1);
    strata_status st = STRATA_OK;

    if (op->first)
        st = eng->device->ops->zero(eng->device, at(eng, op, 0), page->elems * sizeof(float));
    for (uint32_t m = 0; m < w->grad_accum && st == STRATA_OK; m++)
        st = eng->device->ops->embed_scatter(eng->device, at(eng, op, 0), at(eng, op, 2 + m), tokens + (uint64_t)m * rows_of(eng),
                                             rows_of(eng), w->hidden, page->row_first, page->row_count, w->dtype);
    return st;
}

static strata_status finish_grad(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->plan->workload;
    const struct st_page *page = &w->pages[op->page];
    struct st_norm *norm = (struct st_norm *)at(eng, op, 2) + op->page;
    strata_status st = eng->device->ops->zero(eng->device, norm, sizeof(*norm));

    for (uint32_t i = 0; i < page->group_count && st == STRATA_OK; i++) {
        const struct st_group *group = &page->groups[i];

        if (group->kind == ST_GROUP_FROZEN)
            continue;
        st = eng->device->ops->grad_finish(
            eng->device, (unsigned char *)at(eng, op, 1) + group->offset * strata_dtype_bytes(w->dtype), w->dtype,
            (const float *)at(eng, op, 0) + group->offset, group->elems, at(eng, op, 3), &norm->norm2, &norm->nonfinite);
    }
    return st;
}

/* --- the model's --- */

static void fill_call(const struct st_engine *eng, const struct st_op *op, struct st_call *call)
{
    const struct st_workload *w = &eng->plan->workload;
    const uint64_t rows = rows_of(eng);
    const int32_t *tokens = st_engine_pointer(eng, eng->plan->at.tokens_device);
    struct st_norm *scalars = st_engine_pointer(eng, eng->plan->at.scalars_device);

    *call = (struct st_call){.block = op->block,
                             .micro = op->micro,
                             .tile = op->tile,
                             .recompute = op->recompute,
                             .device = eng->device,
                             .tokens = tokens + op->micro * rows,
                             .targets = tokens + (w->grad_accum + op->micro) * rows,
                             .loss_sum = st_scalars_losses(scalars, w->page_count) + op->micro,
                             .loss_gradient =
                                 eng->target_count > 0 ? (float)(eng->train.update_scale / (double)eng->target_count) : 0.0f,
                             .constants = w->constants_bytes > 0 ? st_engine_pointer(eng, eng->plan->at.constants) : NULL,
                             .rows = eng->generate_rows,
                             .position = eng->generate_position};
}

/* The gradient sum of a trained page; a frozen one has none. */
static float *sum_at(const struct st_engine *eng, const struct st_op *op, uint32_t access)
{
    return access < op->access_count ? at(eng, op, access) : NULL;
}

static strata_status call_model(struct st_engine *eng, const struct st_op *op)
{
    const struct st_workload *w = &eng->plan->workload;
    struct st_call c;

    fill_call(eng, op, &c);
    switch ((enum st_op_kind)op->kind) {
    case ST_OP_EMBED_FORWARD:
        c.kind = ST_CALL_EMBED_FORWARD, c.act = c.act_out = at(eng, op, 0), c.weight = at(eng, op, 1);
        break;
    case ST_OP_BLOCK_FORWARD:
        c.kind = ST_CALL_BLOCK_FORWARD, c.act = at(eng, op, 0), c.act_out = at(eng, op, 1), c.weight = at(eng, op, 2);
        c.internals = at(eng, op, 3), c.workspace = at(eng, op, 4);
        break;
    case ST_OP_HEAD_NORM:
        c.kind = ST_CALL_HEAD_NORM, c.act = at(eng, op, 0), c.weight = at(eng, op, 1), c.internals = at(eng, op, 2);
        break;
    case ST_OP_HEAD_STATS:
        c.kind = ST_CALL_HEAD_STATS, c.internals = at(eng, op, 0), c.weight = at(eng, op, 1), c.workspace = at(eng, op, 3);
        c.logits = op->access_count > 4 ? at(eng, op, 4) : NULL;
        break;
    case ST_OP_HEAD_LOSS:
        c.kind = ST_CALL_HEAD_LOSS, c.internals = at(eng, op, 0);
        break;
    case ST_OP_HEAD_GRAD:
        c.kind = ST_CALL_HEAD_GRAD, c.internals = at(eng, op, 0), c.weight = at(eng, op, 1), c.workspace = at(eng, op, 3);
        c.logits = op->recompute ? NULL : at(eng, op, 4);
        c.grad = sum_at(eng, op, op->recompute ? 4 : 5);
        break;
    case ST_OP_HEAD_BACKWARD:
        c.kind = ST_CALL_HEAD_BACKWARD, c.act = at(eng, op, 0), c.weight = at(eng, op, 1), c.internals = at(eng, op, 2);
        c.dact = at(eng, op, 3), c.workspace = at(eng, op, 4), c.grad = sum_at(eng, op, 5);
        break;
    case ST_OP_BLOCK_BACKWARD:
        c.kind = ST_CALL_BLOCK_BACKWARD, c.act = at(eng, op, 0), c.weight = at(eng, op, 1), c.internals = at(eng, op, 2);
        c.dact = at(eng, op, 3), c.workspace = at(eng, op, 4), c.grad = sum_at(eng, op, 5);
        break;
    default:
        assert(op->kind == ST_OP_EMBED_BACKWARD);
        c.kind = ST_CALL_EMBED_BACKWARD, c.dact = at(eng, op, 0), c.grad = at(eng, op, 1);
        break;
    }
    if (c.grad != NULL) {
        c.grad_elems = w->pages[op->page].elems;
        c.first = op->first;
    }
    return eng->compute.run(eng->compute.model, &c);
}

bool st_engine_has_follow(const struct st_engine *eng, const struct st_op *op)
{
    if (op->kind == ST_OP_DOWNLOAD_WEIGHT || op->kind == ST_OP_READ_WEIGHT)
        return eng->plan->pages[op->page].weight_home == STRATA_TIER_NVME;
    if (op->kind == ST_OP_DOWNLOAD_STATE || op->kind == ST_OP_READ_STATE)
        return eng->plan->pages[op->page].carried && eng->plan->chunks[op->chunk].tier == STRATA_TIER_NVME;
    return (op->kind == ST_OP_DOWNLOAD_ACT || op->kind == ST_OP_READ_ACT) && eng->act_checksums != NULL;
}

/* What leaves for NVMe gets its checksums; what came from there is checked. */
strata_status st_engine_follow_op(struct st_engine *eng, const struct st_op *op)
{
    const struct st_access *a = &eng->plan->accesses[op->access_first + 1];

    if (op->kind == ST_OP_READ_WEIGHT)
        return check_weights(eng, op, 1);
    if (op->kind == ST_OP_READ_ACT)
        return check_act(eng, op, 1);
    if (op->kind == ST_OP_READ_STATE)
        return check_state(eng, op, 1);
    if (op->kind == ST_OP_DOWNLOAD_WEIGHT)
        st_engine_hash_weights(eng, op->page, at(eng, op, 1));
    else if (op->kind == ST_OP_DOWNLOAD_STATE)
        st_engine_hash_state(eng, op->chunk, at(eng, op, 1));
    else
        st_engine_hash_act(eng, a->index, at(eng, op, 1));
    eng->verified[a->buffer] = true;
    return STRATA_OK;
}

strata_status st_engine_run_op(struct st_engine *eng, const struct st_op *op)
{
    switch ((enum st_op_kind)op->kind) {
    case ST_OP_UPLOAD_TOKENS:
    case ST_OP_UPLOAD_ACCUM:
        return upload(eng, at(eng, op, 1), at(eng, op, 0), op->bytes);
    case ST_OP_UPLOAD_WEIGHT:
        return upload_weight(eng, op);
    case ST_OP_UPLOAD_STATE:
        return upload_state(eng, op);
    case ST_OP_UPLOAD_ROWS:
        return upload_rows(eng, op);
    case ST_OP_UPLOAD_ACT:
        return upload_act(eng, op);
    case ST_OP_DOWNLOAD_STATE:
    case ST_OP_DOWNLOAD_WEIGHT:
    case ST_OP_DOWNLOAD_ACT:
    case ST_OP_DOWNLOAD_ACCUM:
    case ST_OP_DOWNLOAD_DACT:
    case ST_OP_DOWNLOAD_GRAD:
    case ST_OP_DOWNLOAD_SCALARS:
        return download(eng, at(eng, op, 1), at(eng, op, 0), op->bytes);
    case ST_OP_UPDATE:
        return update(eng, op);
    case ST_OP_UPDATE_DEVICE:
        return st_engine_update_chunk_device(eng, op);
    case ST_OP_GATHER_DEVICE:
        return gather_device(eng, op);
    case ST_OP_GATHER_HOST:
        return gather_host(eng, op);
    case ST_OP_SCATTER_DEVICE:
        return scatter_device(eng, op);
    case ST_OP_SCATTER_HOST:
        return scatter_host(eng, op);
    case ST_OP_FINISH_GRAD:
        return finish_grad(eng, op);
    case ST_OP_FINISH_HOST:
        return finish_host(eng, op);
    case ST_OP_END:
        return st_engine_end_of_step(eng);
    default:
        return call_model(eng, op);
    }
}
