/* engine_feed.c - steps whose micro-batches come one by one (st_engine_feed()).
 *
 * The engine's thread asks before the first op of a micro-batch's forward, before the first of its backward, and before the end,
 * and waits for the answer.  What moves by itself goes on meanwhile.  Rows of a table on the host are looked up as they come. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static bool looks_up(const struct st_op *op)
{
    return op->kind == ST_OP_UPLOAD_ROWS || op->kind == ST_OP_GATHER_DEVICE;
}

static bool opens_backward(const struct st_op *op)
{
    return op->kind == ST_OP_HEAD_GRAD && op->slice == 0;
}

/* E_INVAL: forward of a later micro-batch comes before backward of an earlier one, or its rows from a slot that has changed. */
static strata_status check_program(const struct st_program *program)
{
    const char *why = NULL;
    uint32_t begun = 0, ended = 0;

    for (uint32_t i = 0; i < program->op_count && why == NULL; i++) {
        const struct st_op *op = &program->ops[i];
        const struct st_access *table =
            op->kind == ST_OP_GATHER_HOST ? st_op_access(program->accesses, op, ST_ROLE_WEIGHT) : NULL;

        begun += looks_up(op);
        ended += opens_backward(op);
        if (begun > ended + 1)
            why = "its micro-batches go through a layer together: set strata.accumulation horizontal";
        if (table != NULL && program->workload.grad_accum > 1 && table->buffer != program->pages[op->page].home_region)
            why = "the table of embeddings is on NVMe, which takes one micro-batch to a step";
    }
    if (program->update == ST_UPDATE_IN_BACKWARD)
        why = "its updates are made in backward: set strata.update serial";
    if (program->early_pages > 0)
        why = "some of its updates are made in backward: set strata.update gated";
    if (program->workload.routes_bytes > 0)
        why = "its model has an auxiliary loss of experts: set strata.router_aux_loss_coef 0";
    if (program->ranks > 1)
        why = "it has several ranks";
    return why == NULL ? STRATA_OK : st_error(STRATA_E_INVAL, "this plan takes no step that is fed: %s", why);
}

strata_status st_engine_feed(struct st_engine *eng, st_feed_fn *feed, void *ctx)
{
    strata_status st = STRATA_OK;

    if (feed != NULL && (eng->async != NULL || eng->caller != NULL))
        st = st_error(STRATA_E_INVAL, "this device takes no step that is fed");
    if (feed != NULL && st == STRATA_OK)
        st = check_program(eng->program);
    if (st != STRATA_OK)
        return st;
    eng->feed.fn = feed;
    eng->feed.ctx = ctx;
    return STRATA_OK;
}

static strata_status ask(struct st_engine *eng, struct st_turn *turn)
{
    return eng->feed.fn(eng->feed.ctx, turn);
}

/* To where the host looks up, and where the device reads. */
static strata_status take_micro(struct st_engine *eng, uint32_t micro)
{
    const struct st_workload *w = &eng->program->workload;
    const uint64_t rows = (uint64_t)w->micro_batch * w->seq, planes = w->documents ? 3 : 2;
    int32_t *host = st_engine_pointer(eng, eng->program->at.tokens_host);
    int32_t *device = st_engine_pointer(eng, eng->program->at.tokens_device);
    int32_t *at[3] = {NULL};
    struct st_turn turn = {.kind = ST_TURN_FORWARD, .micro = micro};
    strata_status st;

    for (uint64_t i = 0; i < planes; i++)
        at[i] = host + (i * w->grad_accum + micro) * rows;
    turn.tokens = at[0];
    turn.targets = at[1];
    turn.positions = at[2];
    if ((st = ask(eng, &turn)) == STRATA_OK && (st = st_engine_check_ids(eng, at[0], at[1], rows)) == STRATA_OK && at[2] != NULL)
        st = st_engine_take_positions(w, at[2], at[2], rows);
    for (uint64_t i = 0; i < planes && st == STRATA_OK; i++)
        st = eng->device->ops->upload(eng->device, device + (at[i] - host), at[i], rows * sizeof(*host));
    for (uint64_t i = 0; i < rows; i++)
        eng->target_count += at[1][i] >= 0;
    eng->result.tokens += rows;
    eng->feed.taken++;
    return st;
}

static strata_status look_up(struct st_engine *eng, uint32_t micro)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < eng->program->op_count && st == STRATA_OK; i++)
        if (eng->program->ops[i].kind == ST_OP_GATHER_HOST)
            st = st_engine_gather_host(eng, &eng->program->ops[i], micro, 1);
    return st;
}

static strata_status weigh_micro(struct st_engine *eng, uint32_t micro)
{
    struct st_norm *scalars = st_engine_pointer(eng, eng->program->at.scalars_device);
    struct st_turn turn = {.kind = ST_TURN_BACKWARD, .micro = micro, .loss = st_scalars_losses(eng->program, scalars)[micro]};
    const strata_status st = ask(eng, &turn);

    eng->feed.weight = turn.weight;
    return st;
}

static strata_status end(struct st_engine *eng)
{
    const double none = (double)NAN;
    struct st_turn turn = {.kind = ST_TURN_END, .lr = none, .weight_decay = none, .beta1 = none, .beta2 = none};
    const strata_status st = ask(eng, &turn);

    for (uint32_t i = 0; i < ST_SETS_MAX; i++) {
        struct st_set_numbers *set = &eng->sets[i];

        set->lr = isnan(turn.lr) ? set->lr : turn.lr;
        set->weight_decay = isnan(turn.weight_decay) ? set->weight_decay : turn.weight_decay;
        set->beta1 = isnan(turn.beta1) ? set->beta1 : turn.beta1;
        set->beta2 = isnan(turn.beta2) ? set->beta2 : turn.beta2;
    }
    if (turn.drop)
        eng->divisor = 0;
    return st;
}

bool st_engine_feed_due(const struct st_engine *eng, uint32_t op)
{
    return !looks_up(&eng->program->ops[op]) || op <= st_dispatch_head(&eng->dispatch, STRATA_LANE_COMPUTE);
}

strata_status st_engine_feed_before(struct st_engine *eng, const struct st_op *op)
{
    const bool opens = op->kind == ST_OP_GATHER_HOST && op->first;
    strata_status st = STRATA_OK;

    if (eng->feed.taken <= op->micro && (opens || looks_up(op))) {
        st = take_micro(eng, op->micro);
        if (st == STRATA_OK && op->micro > 0 && op->kind == ST_OP_UPLOAD_ROWS)
            st = look_up(eng, op->micro);
    }
    if (opens_backward(op))
        st = weigh_micro(eng, op->micro);
    if (op->kind == ST_OP_END)
        st = end(eng);
    return st;
}
