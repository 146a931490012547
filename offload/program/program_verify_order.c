/* program_verify_order.c - see program_verify.h. */
#include "offload/program/program_verify.h"

#include "core/base/error.h"

#include <stdlib.h>

#define NONE UINT32_MAX

/* A node: op n % N of cycle n / N, of two cycles. */
struct reader {
    uint32_t node, next; /* of the same buffer */
};

struct last_use {
    uint32_t writer, reader; /* the newest, and those since the last write */
};

struct order {
    const struct st_program *program;
    uint32_t *stack, *seen; /* [2 * op_count] */
    uint32_t stamp;
    uint32_t *awaited;      /* [2 * op_count]: the last node that waits for this one itself; 0: none does */
    struct last_use *last;  /* [buffer_count] */
    struct reader *readers; /* [2 * access_count] */
    uint32_t reader_count;
};

/* The node that a node waits for; NONE: it would be before the first cycle. */
static uint32_t waited_for(const struct st_program *program, uint32_t node, const struct st_wait *wait)
{
    const uint32_t n = program->op_count;

    if (wait->previous)
        return node < n ? NONE : node / n * n - n + wait->op;
    return node / n * n + wait->op;
}

/* True if every execution runs `from` before `to`: mostly `to`, whose waits have been looked at last, waits for it itself. */
static bool ordered(struct order *o, uint32_t from, uint32_t to)
{
    const struct st_program *program = o->program;
    uint32_t depth = 0;

    if (o->awaited[from] == to)
        return true;
    o->stamp++;
    o->stack[depth++] = to;
    while (depth > 0) {
        const uint32_t node = o->stack[--depth];
        const struct st_op *op = &program->ops[node % program->op_count];

        for (uint32_t i = 0; i < op->wait_count; i++) {
            const uint32_t next = waited_for(program, node, &program->waits[op->wait_first + i]);

            if (next == from)
                return true;
            if (next != NONE && next > from && o->seen[next] != o->stamp) {
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

/* Each access of a node is compared with the buffer's last writer, a write with the readers since, too. */
static strata_status verify_access(struct order *o, uint32_t node, const struct st_access *a)
{
    struct last_use *last = &o->last[a->buffer];

    if (last->writer != NONE && last->writer != node && !ordered(o, last->writer, node))
        return conflict(o->program, last->writer, node, a->buffer);
    if ((a->mode & ST_WRITE) == 0) {
        o->readers[o->reader_count] = (struct reader){.node = node, .next = last->reader};
        last->reader = o->reader_count++;
        return STRATA_OK;
    }
    for (uint32_t r = last->reader; r != NONE; r = o->readers[r].next)
        if (o->readers[r].node != node && !ordered(o, o->readers[r].node, node))
            return conflict(o->program, o->readers[r].node, node, a->buffer);
    *last = (struct last_use){.writer = node, .reader = NONE};
    return STRATA_OK;
}

static strata_status verify_node(struct order *o, uint32_t node)
{
    const struct st_op *op = &o->program->ops[node % o->program->op_count];
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < op->wait_count; i++) {
        const uint32_t on = waited_for(o->program, node, &o->program->waits[op->wait_first + i]);

        if (on != NONE)
            o->awaited[on] = node;
    }
    for (uint32_t i = 0; i < op->access_count && st == STRATA_OK; i++)
        st = verify_access(o, node, &o->program->accesses[op->access_first + i]);
    return st;
}

static bool take_memory(struct order *o)
{
    const size_t nodes = 2 * (size_t)o->program->op_count + 1, accesses = 2 * (size_t)o->program->access_count + 1;

    o->stack = malloc(nodes * sizeof(*o->stack));
    o->seen = calloc(nodes, sizeof(*o->seen));
    o->awaited = calloc(nodes, sizeof(*o->awaited));
    o->last = malloc((o->program->buffer_count + 1) * sizeof(*o->last));
    o->readers = malloc(accesses * sizeof(*o->readers));
    return o->stack != NULL && o->seen != NULL && o->awaited != NULL && o->last != NULL && o->readers != NULL;
}

strata_status st_verify_order(const struct st_program *program)
{
    struct order o = {.program = program};
    strata_status st = take_memory(&o) ? STRATA_OK : st_nomem(0);

    for (uint32_t b = 0; b < program->buffer_count && st == STRATA_OK; b++)
        o.last[b] = (struct last_use){.writer = NONE, .reader = NONE};
    for (uint32_t node = 0; node < 2 * program->op_count && st == STRATA_OK; node++)
        st = verify_node(&o, node);
    free(o.stack);
    free(o.seen);
    free(o.awaited);
    free(o.last);
    free(o.readers);
    return st;
}
