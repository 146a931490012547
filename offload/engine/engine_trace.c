/* engine_trace.c - the meaning of trace records: items are ops of the program, rows are lanes. */
#include "offload/engine/engine_internal.h"

#include "core/trace/trace.h"
#include "strata/types.h"

#include <assert.h>

#define TRACE_BYTES_MAX (8ull << 20)
#define CALLS_PER_OP    64u /* of the device's ops, on average at most: the backward of a block with recompute has about 40 */

_Static_assert(ST_NO_BUFFER == ST_TRACE_NONE && ST_NO_OP == ST_NO_CLASS, "no op");
_Static_assert(ST_TRACE_DETAIL >= ST_OP_SHAPE_TEXT, "a shape in words is a detail");

static const char *const cycle_names[ST_PHASE_COUNT] = {"step", "step", "flush", "evaluation"};
static const char *const series_names[] = {"read", "write"};

strata_status st_engine_trace_create(struct st_trace **out, const struct st_program *program, uint32_t steps_max, bool calls)
{
    const uint64_t calls_per_op = calls ? CALLS_PER_OP : 0;
    uint64_t transfers = 0;

    for (uint32_t i = 0; i < program->op_count; i++)
        transfers += st_lane_is_io(program->ops[i].lane);
    /* Every stall ends with a transfer, of this cycle or of the one before. */
    return st_trace_create(out, &(struct st_trace_opts){.steps_max = steps_max,
                                                        .records_per_step = program->op_count + 2 * transfers + 1 +
                                                                            (program->op_count - transfers) * calls_per_op,
                                                        .bytes_max = TRACE_BYTES_MAX});
}

/* The number of the step that begins, among all of the run, those before a checkpoint included.  An update in backward is counted
 * already. */
static uint32_t step_number(const struct st_engine *eng)
{
    const bool counted = eng->program->update == ST_UPDATE_IN_BACKWARD;

    return (uint32_t)(eng->train.steps_applied + eng->train.steps_skipped + !counted);
}

void st_engine_trace_cycle(struct st_engine *eng, uint64_t now_ns)
{
    const bool step = (eng->dispatch.phase & (ST_PHASE_PROLOGUE | ST_PHASE_BODY)) != 0;

    eng->trace_cycle = NULL;
    if (eng->dispatch.phase == ST_PHASE_EVAL)
        st_trace_pause(eng->trace);
    else
        eng->trace_cycle = st_trace_cycle(eng->trace, step ? step_number(eng) : 0, st_phase_index(eng->dispatch.phase), now_ns);
}

static void put_arg(struct st_trace_item *out, const char *key, uint64_t value)
{
    assert(out->arg_count < ST_TRACE_ARGS_MAX);
    out->args[out->arg_count++] = (struct st_trace_arg){key, value};
}

static void describe(void *ctx, uint32_t item, struct st_trace_item *out)
{
    const struct st_program *program = ((const struct st_engine *)ctx)->program;
    const struct st_op *op = &program->ops[item];
    struct st_op_index indices[ST_OP_INDICES_MAX];

    *out = (struct st_trace_item){.name = st_op_name((enum st_op_kind)op->kind), .row = op->lane, .bytes = op->bytes};
    for (uint32_t i = 0, count = st_op_indices(op, indices); i < count; i++)
        put_arg(out, indices[i].name, indices[i].value);
}

static void describe_call(void *ctx, uint32_t call, struct st_trace_call *out)
{
    const struct st_op_class *class = st_op_times_at(((const struct st_engine *)ctx)->op_times, call);

    out->name = st_device_op_rows[class->shape.op].name;
    (void)st_op_shape_text(out->detail, &class->shape);
    out->bytes = class->bytes / (double)class->calls;
    out->flops = class->flops / (double)class->calls;
}

static uint32_t wait_of(void *ctx, uint32_t item, uint32_t n, bool *previous)
{
    const struct st_program *program = ((const struct st_engine *)ctx)->program;
    const struct st_op *op = &program->ops[item];

    if (n == op->wait_count)
        return ST_TRACE_NONE;
    *previous = program->waits[op->wait_first + n].previous;
    return program->waits[op->wait_first + n].op;
}

strata_status st_engine_trace_write(struct st_engine *eng, FILE *file)
{
    static const char *const tiers[STRATA_TIER_COUNT] = {"device", "host", "nvme"};
    struct st_trace_row rows[STRATA_LANE_COUNT];
    struct st_trace_arg resident[STRATA_TIER_COUNT];

    assert(eng->trace != NULL);
    (void)st_engine_drain(eng); /* the step that failed has reported it */
    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++)
        rows[lane] = (struct st_trace_row){.name = st_lane_name((enum strata_lane)lane),
                                           .series = !st_lane_is_io(lane) ? ST_TRACE_NONE : lane == STRATA_LANE_WRITE};
    for (uint32_t t = 0; t < STRATA_TIER_COUNT; t++)
        resident[t] = (struct st_trace_arg){tiers[t], eng->program->needed[t]};
    return st_trace_write(eng->trace,
                          &(struct st_trace_source){.ctx = eng,
                                                    .program = "strata",
                                                    .version = STRATA_VERSION_STRING,
                                                    .item_count = eng->program->op_count,
                                                    .rows = rows,
                                                    .row_count = STRATA_LANE_COUNT,
                                                    .cycles = cycle_names,
                                                    .series = series_names,
                                                    .series_count = 2,
                                                    .resident = resident,
                                                    .resident_count = STRATA_TIER_COUNT,
                                                    .item = describe,
                                                    .call = describe_call,
                                                    .wait = wait_of},
                          file);
}
