/* program_verify_order.c - see program_verify.h. */
#include "offload/program/program_verify.h"

#include "core/base/error.h"

#include <stdlib.h>

struct order {
    const struct st_program *program;
    uint32_t *stack, *seen; /* [2 * op_count] */
    uint32_t stamp;
};

/* Node n is op n % N of cycle n / N.  True if every execution runs `from` before `to`. */
static bool ordered(struct order *o, uint32_t from, uint32_t to)
{
    const struct st_program *program = o->program;
    const uint32_t n = program->op_count;
    uint32_t depth = 0;

    o->stamp++;
    o->stack[depth++] = to;
    while (depth > 0) {
        const uint32_t node = o->stack[--depth];
        const struct st_op *op = &program->ops[node % n];

        for (uint32_t i = 0; i < op->wait_count; i++) {
            const struct st_wait *wait = &program->waits[op->wait_first + i];
            uint32_t next = node / n * n + wait->op;

            if (wait->previous) {
                if (node < n)
                    continue;
                next -= n;
            }
            if (next == from)
                return true;
            if (next > from && o->seen[next] != o->stamp) {
                o->seen[next] = o->stamp;
                o->stack[depth++] = next;
            }
        }
    }
    return false;
}

static strata_status conflict(const struct st_program *program, uint32_t from, uint32_t to, uint32_t buffer)
{
    const uint32_t n = program->op_count;

    return st_error(STRATA_E_INTERNAL, "verify: op %u (%s) does not wait for op %u (%s)%s, and both use buffer %u", to % n,
                    st_op_name(program->ops[to % n].kind), from % n, st_op_name(program->ops[from % n].kind),
                    from / n != to / n ? " of the previous cycle" : "", buffer);
}

/* Accesses of one buffer over two cycles, in list order: compare each with the last writer and the readers since. */
static strata_status verify_one_order(struct order *o, uint32_t buffer, const uint32_t *nodes, const uint8_t *modes,
                                      uint32_t count)
{
    uint32_t writer = UINT32_MAX, readers_from = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (writer != UINT32_MAX && writer != nodes[i] && !ordered(o, writer, nodes[i]))
            return conflict(o->program, writer, nodes[i], buffer);
        if ((modes[i] & ST_WRITE) == 0)
            continue;
        for (uint32_t r = readers_from; r < i; r++)
            if (nodes[r] != nodes[i] && !ordered(o, nodes[r], nodes[i]))
                return conflict(o->program, nodes[r], nodes[i], buffer);
        writer = nodes[i];
        readers_from = i + 1;
    }
    return STRATA_OK;
}

strata_status st_verify_order(const struct st_program *program)
{
    const uint32_t n = program->op_count, total = 2 * program->access_count;
    struct order o = {.program = program};
    uint32_t *first = calloc(program->buffer_count + 2, sizeof(*first));
    uint32_t *nodes = malloc((total + 1) * sizeof(*nodes));
    uint8_t *modes = malloc(total + 1);
    strata_status st = STRATA_OK;

    o.stack = malloc((2 * (size_t)n + 1) * sizeof(*o.stack));
    o.seen = calloc(2 * (size_t)n + 1, sizeof(*o.seen));
    if (first == NULL || nodes == NULL || modes == NULL || o.stack == NULL || o.seen == NULL) {
        st = st_error(STRATA_E_NOMEM, "verify: no memory");
        goto out;
    }
    for (uint32_t i = 0; i < program->access_count; i++)
        first[program->accesses[i].buffer + 2] += 2;
    for (uint32_t b = 2; b < program->buffer_count + 2; b++)
        first[b] += first[b - 1];
    for (uint32_t node = 0; node < 2 * n; node++) {
        const struct st_op *op = &program->ops[node % n];

        for (uint32_t i = 0; i < op->access_count; i++) {
            const struct st_access *a = &program->accesses[op->access_first + i];
            const uint32_t at = first[a->buffer + 1]++;

            nodes[at] = node;
            modes[at] = a->mode;
        }
    }
    for (uint32_t b = 0; b < program->buffer_count && st == STRATA_OK; b++)
        st = verify_one_order(&o, b, nodes + first[b], modes + first[b], first[b + 1] - first[b]);
out:
    free(first);
    free(nodes);
    free(modes);
    free(o.stack);
    free(o.seen);
    return st;
}
