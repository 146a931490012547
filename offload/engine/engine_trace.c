/* engine_trace.c - records what the engine runs and when; program_trace.h says what the records mean. */
#include "offload/engine/engine_internal.h"

#include "core/trace/trace.h"
#include "offload/program/program_trace.h"

#include <assert.h>

#define TRACE_BYTES_MAX (8ull << 20)
#define CALLS_PER_OP    64u /* of the device's ops, on average at most: the backward of a block with recompute has about 40 */

_Static_assert(ST_NO_OP == ST_NO_CLASS, "no op");
_Static_assert(ST_TRACE_DETAIL >= ST_OP_SHAPE_TEXT, "a shape in words is a detail");

static const char *const cycle_names[ST_PHASE_COUNT] = {"step", "step", "flush", "evaluation"};

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

static void describe_call(void *ctx, uint32_t call, struct st_trace_call *out)
{
    const struct st_op_class *class = st_op_times_at(((const struct st_program_trace *)ctx)->times, call);

    out->name = st_device_op_rows[class->shape.op].name;
    (void)st_op_shape_text(out->detail, &class->shape);
    out->bytes = class->bytes / (double)class->calls;
    out->flops = class->flops / (double)class->calls;
}

strata_status st_engine_trace_write(struct st_engine *eng, FILE *file)
{
    struct st_program_trace t;

    assert(eng->trace != NULL);
    (void)st_engine_drain(eng); /* the step that failed has reported it */
    st_program_trace_init(&t, eng->program);
    t.times = eng->op_times;
    t.source.cycles = cycle_names;
    t.source.call = describe_call;
    return st_trace_write(eng->trace, &t.source, file);
}
