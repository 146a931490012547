/* program_trace.c - what a trace says of an op, for the engine that ran it and for the simulator. */
#include "offload/program/program_trace.h"
#include "offload/program/dispatch.h"
#include "strata/types.h"

#include <assert.h>

_Static_assert(ST_NO_OP == ST_TRACE_NONE, "no op");

static void put_arg(struct st_trace_item *out, const char *key, uint64_t value)
{
    assert(out->arg_count < ST_TRACE_ARGS_MAX);
    out->args[out->arg_count++] = (struct st_trace_arg){key, value};
}

static void describe(void *ctx, uint32_t item, struct st_trace_item *out)
{
    const struct st_op *op = &((const struct st_program_trace *)ctx)->program->ops[item];
    struct st_op_index indices[ST_OP_INDICES_MAX];

    *out = (struct st_trace_item){.name = st_op_name((enum st_op_kind)op->kind), .row = op->lane, .bytes = op->bytes};
    for (uint32_t i = 0, count = st_op_indices(op, indices); i < count; i++)
        put_arg(out, indices[i].name, indices[i].value);
}

static uint32_t wait_of(void *ctx, uint32_t item, uint32_t n, bool *previous)
{
    const struct st_program *program = ((const struct st_program_trace *)ctx)->program;
    const struct st_op *op = &program->ops[item];

    if (n == op->wait_count)
        return ST_TRACE_NONE;
    *previous = program->waits[op->wait_first + n].previous;
    return program->waits[op->wait_first + n].op;
}

void st_program_trace_init(struct st_program_trace *t, const struct st_program *program)
{
    static const char *const series[] = {"read", "write"};
    static const char *const tiers[STRATA_TIER_COUNT] = {"device", "host", "nvme"};

    *t = (struct st_program_trace){.program = program};
    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++)
        t->rows[lane] = (struct st_trace_row){.name = st_lane_name((enum strata_lane)lane),
                                              .series = !st_lane_is_io(lane) ? ST_TRACE_NONE : lane == STRATA_LANE_WRITE};
    for (uint32_t tier = 0; tier < STRATA_TIER_COUNT; tier++)
        t->resident[tier] = (struct st_trace_arg){tiers[tier], program->needed[tier]};
    t->source = (struct st_trace_source){.ctx = t,
                                         .program = "strata",
                                         .version = STRATA_VERSION_STRING,
                                         .item_count = program->op_count,
                                         .rows = t->rows,
                                         .row_count = STRATA_LANE_COUNT,
                                         .series = series,
                                         .series_count = 2,
                                         .resident = t->resident,
                                         .resident_count = STRATA_TIER_COUNT,
                                         .item = describe,
                                         .wait = wait_of};
}
