/* op_times.c - the classes, chained by op. */
#include "offload/device/op_times.h"
#include "core/base/error.h"
#include "core/trace/trace.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct st_op_times {
    struct st_op_times_opts opts;
    uint32_t used;                             /* of those before the shared ones */
    uint32_t first[ST_DEVICE_OP_COUNT];        /* class, or ST_NO_CLASS */
    struct st_op_class classes[ST_OP_CLASSES]; /* those of several shapes last, in the order of the ops */
};

/* Shapes are compared by their bytes. */
_Static_assert(sizeof(struct st_op_shape) == 4 * sizeof(uint32_t) + 8 + 6 * sizeof(uint64_t), "no padding");

strata_status st_op_times_create(struct st_op_times **out, const struct st_op_times_opts *opts)
{
    struct st_op_times *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return st_nomem(sizeof(*t));
    t->opts = *opts;
    for (uint32_t op = 0; op < ST_DEVICE_OP_COUNT; op++) {
        t->first[op] = ST_NO_CLASS;
        t->classes[ST_OP_CLASSES_OWN + op].shape.op = (enum st_device_op)op;
    }
    *out = t;
    return STRATA_OK;
}

void st_op_times_destroy(struct st_op_times *t)
{
    free(t);
}

void st_op_times_record(struct st_op_times *t, bool on)
{
    t->opts.records = on;
}

bool st_op_times_records(const struct st_op_times *t)
{
    return t->opts.records;
}

uint64_t st_op_times_table_rows(const struct st_op_times *t)
{
    return t->opts.table_rows;
}

static uint32_t class_of(struct st_op_times *t, const struct st_op_shape *shape)
{
    uint32_t class = t->first[shape->op];

    while (class != ST_NO_CLASS && memcmp(&t->classes[class].shape, shape, sizeof(*shape)) != 0)
        class = t->classes[class].next;
    if (class != ST_NO_CLASS)
        return class;
    if (t->used == ST_OP_CLASSES_OWN)
        return ST_OP_CLASSES_OWN + shape->op;
    class = t->used++;
    t->classes[class] = (struct st_op_class){.shape = *shape, .next = t->first[shape->op]};
    t->first[shape->op] = class;
    return class;
}

uint32_t st_op_times_call(struct st_op_times *t, enum st_queue queue, const struct st_op_shape *shape)
{
    const struct st_op_traffic traffic = st_op_traffic(shape);
    const uint32_t class = class_of(t, shape);
    struct st_op_class *c = &t->classes[class];

    c->queue = queue;
    c->calls++;
    c->bytes += traffic.bytes;
    c->flops += traffic.flops;
    return class;
}

void st_op_times_took(struct st_op_times *t, uint32_t class, uint32_t op, uint64_t start_ns, uint64_t ns)
{
    assert(class < ST_OP_CLASSES && t->classes[class].calls > 0);
    t->classes[class].ns += ns;
    st_trace_end(st_trace_begin(t->opts.trace, ST_TRACE_CALL, class, op, start_ns), start_ns + ns);
}

const struct st_op_class *st_op_times_at(const struct st_op_times *t, uint32_t class)
{
    assert(class < ST_OP_CLASSES);
    return &t->classes[class];
}
