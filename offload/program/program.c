/* program.c - see program.h. */
#include "offload/program/program.h"

#include <stdlib.h>

void st_program_fini(struct st_program *program)
{
    st_workload_fini(&program->workload);
    free(program->pages);
    free(program->chunks);
    free(program->buffers);
    free(program->ops);
    free(program->accesses);
    free(program->waits);
}

uint32_t st_program_backward(const struct st_program *program)
{
    uint32_t first = 0;

    while (first < program->op_count && program->ops[first].kind != ST_OP_HEAD_GRAD)
        first++;
    return first;
}

struct st_traffic st_program_traffic(const struct st_program *program, enum st_phase phase)
{
    struct st_traffic traffic = {0};

    for (uint32_t i = 0; i < program->op_count; i++) {
        uint64_t *link = st_traffic_of(&traffic, program->ops[i].lane);

        if ((program->ops[i].phases & phase) != 0 && link != NULL)
            *link += program->ops[i].bytes;
    }
    return traffic;
}
