/* program_wait.c - computes what each op waits for.
 *
 * The waits follow from the accesses: a reader waits for the last writer of a buffer, a writer for the last writer and every
 * reader since.  The list is walked twice: the first walk only finds the last ops that touch each buffer, so that in the second
 * an op can wait for ops of the previous cycle. */
#include "offload/program/program.h"

#include "core/base/error.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* An op of this cycle (below op_count) or of the previous one (from there on). */
struct reader {
    uint32_t who;
    uint32_t next; /* of the same buffer; NONE: the last */
};

struct last_touch {
    uint32_t writer;                    /* NONE: no writer yet */
    uint32_t first_reader, last_reader; /* since then, in order */
};

struct waiter {
    struct st_program *program;
    struct last_touch *last; /* [buffer_count] */
    struct reader *readers;  /* [2 * access_count] */
    uint32_t reader_count;
    uint32_t *seen; /* [2 * op_count]: op + 1 of an op that already waits for it */
};

static bool add_wait(struct waiter *k, uint32_t op, uint32_t who)
{
    struct st_program *program = k->program;
    const uint32_t n = program->op_count;

    if (who == NONE || who == op || k->seen[who] == op + 1)
        return true;
    k->seen[who] = op + 1;
    if (program->wait_count == program->wait_room) {
        const uint32_t room = program->wait_room == 0 ? 1024 : 2 * program->wait_room;
        struct st_wait *grown = realloc(program->waits, room * sizeof(*grown));

        if (grown == NULL)
            return false;
        program->waits = grown;
        program->wait_room = room;
    }
    program->waits[program->wait_count++] = (struct st_wait){.op = who < n ? who : who - n, .previous = who >= n};
    program->ops[op].wait_count++;
    return true;
}

static bool add_waits(struct waiter *k, uint32_t index)
{
    struct st_program *program = k->program;
    struct st_op *op = &program->ops[index];
    bool ok = true;

    op->wait_first = program->wait_count;
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct st_access *a = &program->accesses[op->access_first + i];
        const struct last_touch *last = &k->last[a->buffer];

        ok = add_wait(k, index, last->writer) && ok;
        if ((a->mode & ST_WRITE) == 0)
            continue;
        for (uint32_t r = last->first_reader; r != NONE; r = k->readers[r].next)
            ok = add_wait(k, index, k->readers[r].who) && ok;
    }
    return ok;
}

static void add_reader(struct waiter *k, struct last_touch *last, uint32_t op)
{
    if (last->last_reader != NONE && k->readers[last->last_reader].who == op)
        return;
    k->readers[k->reader_count] = (struct reader){.who = op, .next = NONE};
    if (last->last_reader == NONE)
        last->first_reader = k->reader_count;
    else
        k->readers[last->last_reader].next = k->reader_count;
    last->last_reader = k->reader_count++;
}

static void touch(struct waiter *k, uint32_t index)
{
    const struct st_op *op = &k->program->ops[index];

    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct st_access *a = &k->program->accesses[op->access_first + i];
        struct last_touch *last = &k->last[a->buffer];

        if ((a->mode & ST_WRITE) != 0)
            *last = (struct last_touch){.writer = index, .first_reader = NONE, .last_reader = NONE};
        else
            add_reader(k, last, index);
    }
}

/* Makes the cycle just walked the previous one. */
static void remember_as_previous(struct waiter *k)
{
    const uint32_t n = k->program->op_count;

    for (uint32_t b = 0; b < k->program->buffer_count; b++)
        if (k->last[b].writer != NONE)
            k->last[b].writer += n;
    for (uint32_t r = 0; r < k->reader_count; r++)
        k->readers[r].who += n;
}

static bool take_memory(struct waiter *k, struct st_scratch *scratch)
{
    const size_t buffers = k->program->buffer_count, readers = 2 * (size_t)k->program->access_count,
                 ops = 2 * (size_t)k->program->op_count;

    k->last = st_scratch_take(scratch, buffers * sizeof(*k->last) + readers * sizeof(*k->readers) + ops * sizeof(*k->seen));
    if (k->last == NULL)
        return false;
    k->readers = (struct reader *)(void *)(k->last + buffers);
    k->seen = (uint32_t *)(void *)(k->readers + readers);
    memset(k->seen, 0, ops * sizeof(*k->seen));
    return true;
}

strata_status st_program_wait(struct st_program *program, struct st_scratch *scratch)
{
    struct waiter k = {.program = program};
    bool ok = take_memory(&k, scratch);

    program->wait_count = 0;
    for (uint32_t b = 0; ok && b < program->buffer_count; b++)
        k.last[b] = (struct last_touch){.writer = NONE, .first_reader = NONE, .last_reader = NONE};
    for (uint32_t i = 0; ok && i < program->op_count; i++)
        touch(&k, i);
    if (ok)
        remember_as_previous(&k);
    for (uint32_t i = 0; ok && i < program->op_count; i++) {
        ok = add_waits(&k, i);
        touch(&k, i);
    }
    return ok ? STRATA_OK : st_nomem(0);
}
