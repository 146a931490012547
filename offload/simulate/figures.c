/* figures.c - see figures.h. */
#include "offload/simulate/figures.h"

#include <math.h>

/* Bytes of a page's weights, without the padding between its groups: all of them, or those that an update changes. */
static uint64_t weights_of(const struct st_page *page, bool updated)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < page->group_count; i++)
        bytes += updated && page->groups[i].kind == ST_GROUP_FROZEN ? 0 : page->groups[i].bytes;
    return bytes;
}

/* What reads and writes of state, weights and gradients would be without the padding to whole blocks of a drive. */
static uint64_t parameter_bytes(const struct st_program *program, const struct st_traffic *body)
{
    uint64_t padded = 0, plain = 0;

    for (uint32_t c = 0; c < program->chunk_count; c++) {
        if (program->chunks[c].state != ST_WHERE_NVME)
            continue;
        padded += 2 * program->chunks[c].bytes;
        plain += 2 * st_chunk_state_bytes(program, &program->chunks[c]);
    }
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];

        const bool weights = op->kind == ST_OP_READ_WEIGHT || op->kind == ST_OP_WRITE_WEIGHT;
        const bool grads = op->kind == ST_OP_READ_GRAD || op->kind == ST_OP_WRITE_GRAD;

        if (!(weights || grads) || (op->phases & ST_PHASE_BODY) == 0)
            continue;
        padded += op->bytes;
        plain += weights_of(&program->shards[op->page], op->kind != ST_OP_READ_WEIGHT);
    }
    return body->read + body->write - (padded - plain);
}

void st_figures_make(struct st_figures *out, const struct st_program *program, const struct st_machine *machine)
{
    *out = (struct st_figures){.machine = *machine};
    for (uint32_t i = 0; i < ST_PHASE_COUNT; i++)
        out->traffic[i] = st_program_traffic(program, (enum st_phase)(1u << i));
    for (uint32_t i = 0; i < 2; i++)
        out->fresh[i] = st_program_fresh_traffic(program, i);
    out->parameter_bytes_nvme = parameter_bytes(program, &out->traffic[st_phase_index(ST_PHASE_BODY)]);
    out->save_bytes = st_program_unsaved(program);
    if (out->save_bytes > 0)
        out->save_seconds = machine->rates.write > 0 ? (double)out->save_bytes / machine->rates.write : (double)NAN;
    st_bounds_make(&out->bounds, program, machine);
}
