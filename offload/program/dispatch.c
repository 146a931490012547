/* dispatch.c - see dispatch.h. */
#include "offload/program/dispatch.h"

#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>

#define STALL_HOPS_MAX 64u

uint64_t st_dispatch_bytes(uint64_t ops)
{
    return ops * (sizeof(uint32_t) + sizeof(_Atomic uint32_t));
}

/* The lane moves on to another op. */
static void begin_op(struct st_dispatch *d, uint32_t lane)
{
    d->lanes[lane].waits_met = 0;
    d->lanes[lane].ready = false;
    d->lanes[lane].on = ST_NO_OP;
}

/* Each lane's first op. */
static void rewind_lanes(struct st_dispatch *d)
{
    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        d->lanes[lane].next = lane == 0 ? 0 : d->lanes[lane - 1].end;
        begin_op(d, lane);
    }
}

strata_status st_dispatch_init(struct st_dispatch *d, const struct st_program *program, bool queues)
{
    void *memory = malloc(st_dispatch_bytes(program->op_count) + 1);

    if (memory == NULL) {
        *d = (struct st_dispatch){0};
        return st_nomem(st_dispatch_bytes(program->op_count) + 1);
    }
    st_dispatch_place(d, program, queues, memory);
    return STRATA_OK;
}

void st_dispatch_place(struct st_dispatch *d, const struct st_program *program, bool queues, void *memory)
{
    *d = (struct st_dispatch){.program = program, .queues = queues, .done = memory};
    memset(memory, 0, program->op_count * sizeof(*d->done));
    d->lane_ops = (uint32_t *)(void *)(d->done + program->op_count);
    for (uint32_t i = 0; i < program->op_count; i++)
        d->lanes[program->ops[i].lane].end++;
    for (uint32_t lane = 1; lane < STRATA_LANE_COUNT; lane++)
        d->lanes[lane].end += d->lanes[lane - 1].end;
    rewind_lanes(d);
    for (uint32_t i = 0; i < program->op_count; i++)
        d->lane_ops[d->lanes[program->ops[i].lane].next++] = i;
}

void st_dispatch_fini(struct st_dispatch *d)
{
    free(d->done);
    d->done = NULL;
    d->lane_ops = NULL;
}

void st_dispatch_begin(struct st_dispatch *d, enum st_phase phase)
{
    d->cycle++;
    d->phase = phase;
    d->passed = 0;
    rewind_lanes(d);
}

/* The cycle in which the op was last done. */
static uint32_t done_in(const struct st_dispatch *d, uint32_t op)
{
    return atomic_load_explicit(&d->done[op], memory_order_acquire);
}

/* A queue that runs in order puts an op after earlier ones of its own lane by itself.  A caller does so, too, but another queue
 * zeroes the sums that its ops begin, so these wait for whatever may have a sum.  A masked op is not handed out, so it must wait.
 */
static bool comes_by_itself(const struct st_dispatch *d, const struct st_op *op, uint32_t on)
{
    const struct st_op *before = &d->program->ops[on];

    return d->queues && before->lane == op->lane && !st_dispatch_masked(d, (uint32_t)(op - d->program->ops)) &&
           (op->lane == STRATA_LANE_COMPUTE || op->lane == STRATA_LANE_UPDATE || op->lane == STRATA_LANE_UPDATE_DEVICE ||
            before->kind == ST_OP_LAYER_FORWARD);
}

/* The op's first wait from number `met` on that is not met; wait_count: all are. */
static uint32_t first_unmet(const struct st_dispatch *d, const struct st_op *op, uint32_t met)
{
    const struct st_wait *waits = &d->program->waits[op->wait_first];

    while (met < op->wait_count &&
           (done_in(d, waits[met].op) + waits[met].previous >= d->cycle || comes_by_itself(d, op, waits[met].op)))
        met++;
    return met;
}

uint32_t st_dispatch_look(struct st_dispatch *d, uint32_t lane)
{
    const uint32_t index = st_dispatch_head(d, lane);
    const struct st_op *op = &d->program->ops[index];
    uint32_t met = first_unmet(d, op, d->lanes[lane].waits_met);
    uint32_t on = ST_NO_OP, on_done = d->cycle - 1;

    if (met == op->wait_count && st_dispatch_left_out(d, index)) /* not known when its queue's own ops were passed over */
        met = first_unmet(d, op, 0);
    d->lanes[lane].waits_met = met;
    if (met < op->wait_count) {
        on = d->program->waits[op->wait_first + met].op;
        on_done = d->cycle - d->program->waits[op->wait_first + met].previous;
    } else if (done_in(d, index) < on_done) {
        on = index;
    }
    d->lanes[lane].on = on;
    d->lanes[lane].on_done = on_done;
    d->lanes[lane].ready = on == ST_NO_OP;
    return on;
}

void st_dispatch_pass(struct st_dispatch *d, uint32_t lane)
{
    const uint32_t op = st_dispatch_head(d, lane);

    if (st_dispatch_masked(d, op))
        st_dispatch_finish(d, op);
    d->lanes[lane].next++;
    begin_op(d, lane);
    d->passed++;
}

uint32_t st_dispatch_pick(struct st_dispatch *d)
{
    uint32_t best = ST_NO_OP;

    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        const uint32_t op = st_lane_executes(lane) ? st_dispatch_head(d, lane) : ST_NO_OP;

        if (op < best && st_dispatch_blocker(d, lane) == ST_NO_OP)
            best = op;
    }
    return best;
}

/* The lane that stands for compute: the caller's, its own, or with one executor that of the earliest op, of those that it does
 * not run where nothing else is left. */
static uint32_t stalled_lane(const struct st_dispatch *d)
{
    uint32_t lane = STRATA_LANE_COUNT;

    if (st_dispatch_head(d, STRATA_LANE_CALLER) != ST_NO_OP)
        return STRATA_LANE_CALLER;
    if (d->queues && st_dispatch_head(d, STRATA_LANE_COMPUTE) != ST_NO_OP)
        return STRATA_LANE_COMPUTE;
    for (uint32_t i = 0; i < STRATA_LANE_COUNT; i++)
        if (st_dispatch_head(d, i) != ST_NO_OP &&
            (lane == STRATA_LANE_COUNT || st_lane_executes(lane) < st_lane_executes(i) ||
             (st_lane_executes(lane) == st_lane_executes(i) && st_dispatch_head(d, i) < st_dispatch_head(d, lane))))
            lane = i;
    return lane;
}

struct st_stall st_dispatch_stall(struct st_dispatch *d, uint32_t busy)
{
    struct st_stall s = {.op = ST_NO_OP, .on = ST_NO_OP, .lane = STRATA_LANE_WRITE};
    uint32_t lane = stalled_lane(d);

    if (lane == STRATA_LANE_COUNT)
        return s;
    s.op = st_dispatch_head(d, lane);
    for (uint32_t hops = 0; hops < STALL_HOPS_MAX; hops++) {
        const uint32_t on = st_dispatch_blocker(d, lane);

        if (on == ST_NO_OP)
            break;
        s.on = on;
        lane = d->program->ops[on].lane;
        if (st_lane_is_io(lane) || st_dispatch_head(d, lane) == ST_NO_OP || on < st_dispatch_head(d, lane) ||
            (busy >> lane & 1) != 0)
            break;
    }
    s.lane = (enum strata_lane)lane;
    return s;
}
