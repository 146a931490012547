/* device_timed.c - the ring of calls whose stamps are not read yet, and what the device's own table does; device_timed_tensors.c
 * has the ops of models. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "offload/device/device_timed_internal.h"

#include <stdlib.h>

#define ANCHOR 0u /* the stamp that is set on empty queues together with the clock */

static uint32_t room_of(enum st_queue queue)
{
    return queue == ST_QUEUE_COMPUTE ? ST_TIMED_COMPUTE : ST_TIMED_OTHER;
}

static bool has_queues(const struct timed_device *t)
{
    return t->inner->ops->notify != NULL;
}

/* --- stamps --- */

static uint32_t stamp_of(const struct timed_device *t, enum st_queue queue, uint64_t n)
{
    return ANCHOR + 1 + 2 * (t->rings[queue].first + (uint32_t)(n % room_of(queue)));
}

static strata_status set_anchor(struct timed_device *t)
{
    t->anchor_ns = st_clock_ns();
    return t->inner->ops->stamp(t->inner, ST_QUEUE_COMPUTE, ANCHOR);
}

/* Read the stamps of the queue's oldest call. */
static strata_status take_oldest(struct timed_device *t, enum st_queue queue)
{
    struct timed_ring *ring = &t->rings[queue];
    const struct timed_waiting *w = &t->waiting[ring->first + ring->taken % room_of(queue)];
    const uint32_t begin = stamp_of(t, queue, ring->taken);
    uint64_t since_ns = 0, ns = 0;
    strata_status st = t->inner->ops->stamp_ns(t->inner, begin, begin + 1, &ns);

    if (st == STRATA_OK)
        st = t->inner->ops->stamp_ns(t->inner, ANCHOR, begin, &since_ns);
    if (st != STRATA_OK)
        return st;
    st_op_times_took(t->times, w->class, w->op, t->anchor_ns + since_ns, ns);
    ring->taken++;
    return STRATA_OK;
}

strata_status st_device_timed_collect(struct st_device *device)
{
    struct timed_device *t = timed_of(device);
    strata_status st = STRATA_OK;

    if (!has_queues(t))
        return STRATA_OK;
    for (uint32_t q = 0; q < ST_QUEUE_COUNT && st == STRATA_OK; q++)
        st = t->inner->ops->finish(t->inner, (enum st_queue)q);
    for (uint32_t q = 0; q < ST_QUEUE_COUNT; q++)
        while (st == STRATA_OK && t->rings[q].taken < t->rings[q].added)
            st = take_oldest(t, (enum st_queue)q);
    return st == STRATA_OK ? set_anchor(t) : st;
}

/* --- a call --- */

static strata_status mark_begin(struct timed_device *t, enum st_queue queue)
{
    const struct timed_ring *ring = &t->rings[queue];
    strata_status st = STRATA_OK;

    if (ring->added - ring->taken == room_of(queue))
        st = take_oldest(t, queue);
    return st == STRATA_OK ? t->inner->ops->stamp(t->inner, queue, stamp_of(t, queue, ring->added)) : st;
}

struct timed_call st_timed_begin(struct st_device *dev, enum st_queue queue, const struct st_op_shape *shape)
{
    struct timed_device *t = timed_of(dev);
    struct timed_call c = {
        .t = t, .inner = t->inner, .ops = t->inner->ops, .tensors = t->inner->ops->tensors, .queue = queue, .st = STRATA_OK};

    if (st_fault("device.call", 0) < 0) { /* where tests make any device refuse a call */
        c.st = st_error(STRATA_E_IO, "the device refuses %s", st_device_op_rows[shape->op].name);
        return c;
    }
    c.records = t->op != ST_NO_CLASS && st_op_times_records(t->times);
    if (!c.records)
        return c;
    c.class = st_op_times_call(t->times, queue, shape);
    if (has_queues(t))
        c.st = mark_begin(t, queue);
    else
        c.start_ns = st_clock_ns();
    return c;
}

/* st: of the call. */
strata_status st_timed_end(const struct timed_call *c, strata_status st)
{
    struct timed_device *t = c->t;
    struct timed_ring *ring = &t->rings[c->queue];

    if (!c->records || st != STRATA_OK)
        return st;
    if (!has_queues(t)) {
        st_op_times_took(t->times, c->class, t->op, c->start_ns, st_clock_ns() - c->start_ns);
        return STRATA_OK;
    }
    st = c->ops->stamp(c->inner, c->queue, stamp_of(t, c->queue, ring->added) + 1);
    if (st != STRATA_OK)
        return st;
    t->waiting[ring->first + ring->added % room_of(c->queue)] = (struct timed_waiting){c->class, t->op};
    ring->added++;
    return STRATA_OK;
}

/* --- bytes and updates --- */

static strata_status timed_upload(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_UPLOAD, &(struct st_op_shape){.op = ST_DEVICE_UPLOAD, .rows = 1, .cols = bytes});

    return st_timed_end(&c, c.st == STRATA_OK ? c.ops->upload(c.inner, dst, src, bytes) : c.st);
}

static strata_status timed_download(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_DOWNLOAD, &(struct st_op_shape){.op = ST_DEVICE_DOWNLOAD, .rows = 1, .cols = bytes});

    return st_timed_end(&c, c.st == STRATA_OK ? c.ops->download(c.inner, dst, src, bytes) : c.st);
}

static strata_status timed_zero(struct st_device *dev, void *dst, uint64_t bytes)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_ZERO, .rows = 1, .cols = bytes});

    return st_timed_end(&c, c.st == STRATA_OK ? c.ops->zero(c.inner, dst, bytes) : c.st);
}

static strata_status timed_copy(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_COPY, .rows = 1, .cols = bytes});

    return st_timed_end(&c, c.st == STRATA_OK ? c.ops->copy(c.inner, dst, src, bytes) : c.st);
}

/* Which rows are in the slice is known to the device alone: so many as its part of the table lets expect. */
static uint64_t rows_in_slice(struct st_device *dev, uint32_t rows, uint32_t row_count)
{
    const uint64_t all = st_op_times_table_rows(timed_of(dev)->times);

    return (uint64_t)rows * row_count / (all > row_count ? all : row_count);
}

static strata_status timed_embed_gather(struct st_device *dev, void *out, const void *table, const int32_t *tokens, uint32_t rows,
                                        uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    const uint64_t found = rows_in_slice(dev, rows, row_count);
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_EMBED_GATHER, .dt = dt, .rows = found, .cols = cols});

    return st_timed_end(
        &c, c.st == STRATA_OK ? c.ops->embed_gather(c.inner, out, table, tokens, rows, cols, row_first, row_count, dt) : c.st);
}

static strata_status timed_embed_scatter(struct st_device *dev, float *dtable, const void *dx, const int32_t *tokens,
                                         uint32_t rows, uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    const uint64_t found = rows_in_slice(dev, rows, row_count);
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE,
                                               &(struct st_op_shape){.op = ST_DEVICE_EMBED_SCATTER,
                                                                     .dt = dt,
                                                                     .rows = found,
                                                                     .cols = cols,
                                                                     .positions = found < row_count ? found : row_count});

    return st_timed_end(
        &c, c.st == STRATA_OK ? c.ops->embed_scatter(c.inner, dtable, dx, tokens, rows, cols, row_first, row_count, dt) : c.st);
}

static strata_status timed_reduce(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_REDUCE, .dt = dt, .rows = 1, .cols = elems});

    return st_timed_end(&c, c.st == STRATA_OK ? c.ops->reduce(c.inner, sum, addend, dt, elems) : c.st);
}

static strata_status timed_grad_finish(struct st_device *dev, void *out, strata_dtype dt, const float *acc, uint64_t elems,
                                       double *block_sums, double *norm2, uint64_t *nonfinite)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_GRAD_FINISH, .dt = dt, .rows = 1, .cols = elems});

    return st_timed_end(&c, c.st == STRATA_OK ? c.ops->grad_finish(c.inner, out, dt, acc, elems, block_sums, norm2, nonfinite)
                                              : c.st);
}

/* A weight with a low half is one master of 4 bytes, like a full one; beside a full one the weight is written alone. */
static strata_status timed_update(struct st_device *dev, void *weight, int16_t *low_half, float *master,
                                  const struct st_moments *moments, const void *grad, strata_dtype dt, uint64_t elems,
                                  const struct st_update_coef *coef, uint64_t *overflowed)
{
    const uint64_t moment = st_moment_bytes(moments->format, elems);
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_UPDATE,
                       &(struct st_op_shape){.op = ST_DEVICE_UPDATE,
                                             .dt = dt,
                                             .other = master != NULL ? dt : STRATA_DTYPE_INVALID,
                                             .more.others = master != NULL,
                                             .rows = 1,
                                             .cols = elems,
                                             .state_bytes = elems * sizeof(float) + (moments->moment2 != NULL ? 2 : 1) * moment});

    return st_timed_end(&c, c.st == STRATA_OK
                                ? c.ops->update(c.inner, weight, low_half, master, moments, grad, dt, elems, coef, overflowed)
                                : c.st);
}

/* --- what is passed on --- */

static void timed_close(struct st_device *dev)
{
    struct timed_device *t = timed_of(dev);

    t->inner->ops->close(t->inner);
    free(t);
}

static unsigned char *timed_arena(struct st_device *dev)
{
    return timed_of(dev)->inner->ops->arena(timed_of(dev)->inner);
}

static strata_status timed_pin(struct st_device *dev, void *base, uint64_t bytes, struct st_staged *staged)
{
    return timed_of(dev)->inner->ops->pin(timed_of(dev)->inner, base, bytes, staged);
}

static strata_status timed_finish(struct st_device *dev, enum st_queue queue)
{
    return timed_of(dev)->inner->ops->finish(timed_of(dev)->inner, queue);
}

static strata_status timed_notify(struct st_device *dev, enum st_queue queue, void (*done)(void *ctx, strata_status st),
                                  void *ctx)
{
    return timed_of(dev)->inner->ops->notify(timed_of(dev)->inner, queue, done, ctx);
}

/* A caller's own work is not timed. */
static strata_status timed_join(struct st_device *dev, void *stream)
{
    return timed_of(dev)->inner->ops->join(timed_of(dev)->inner, stream);
}

static strata_status timed_reads(struct st_device *dev, const void *at)
{
    return timed_of(dev)->inner->ops->reads(timed_of(dev)->inner, at);
}

static strata_status timed_add(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems)
{
    return timed_of(dev)->inner->ops->add(timed_of(dev)->inner, sum, addend, dt, elems);
}

#define ST_X(id, member, ...) .member = timed_##member,
static const struct st_device_ops timed_ops = {.close = timed_close,
                                               .arena = timed_arena,
                                               .pin = timed_pin,
                                               .finish = timed_finish,
                                               .notify = timed_notify,
                                               .join = timed_join,
                                               .reads = timed_reads,
                                               .add = timed_add,
                                               ST_DEVICE_OPS(ST_X)};
#undef ST_X

/* --- open --- */

static void fill_tables(struct timed_device *t, const struct st_device_ops *inner)
{
    t->ops = timed_ops;
    t->ops.name = inner->name;
    t->ops.arena_is_host = inner->arena_is_host;
    t->ops.memory = inner->memory;
    t->ops.tensors = &t->tensors;
    if (inner->pin == NULL)
        t->ops.pin = NULL;
    if (inner->notify == NULL)
        t->ops.notify = NULL;
    if (inner->join == NULL)
        t->ops.join = NULL;
    t->tensors = st_timed_tensor_ops;
    t->tensors.zero = timed_zero;
    t->tensors.attention_workspace = inner->tensors->attention_workspace;
    if (inner->tensors->thin == NULL)
        t->tensors.thin = NULL;
    t->base.ops = &t->ops;
}

static void place_rings(struct timed_device *t)
{
    uint32_t first = 0;

    for (uint32_t q = 0; q < ST_QUEUE_COUNT; q++) {
        t->rings[q].first = first;
        first += room_of((enum st_queue)q);
    }
}

void st_device_timed_op(struct st_device *device, uint32_t op)
{
    timed_of(device)->op = op;
}

strata_status st_device_timed_open(struct st_device **device, struct st_op_times *times)
{
    const struct st_device_ops *inner = (*device)->ops;
    struct timed_device *t;
    strata_status st = STRATA_OK;

    if (inner->tensors == NULL || (inner->notify != NULL && inner->stamps == NULL))
        return st_error(STRATA_E_NOSYS, "device %s computes by waiting, so there are no ops to time", inner->name);
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return st_nomem(sizeof(*t));
    t->inner = *device;
    t->times = times;
    t->op = ST_NO_CLASS;
    fill_tables(t, inner);
    place_rings(t);
    if (has_queues(t))
        st = inner->stamps(*device, ANCHOR + 1 + 2 * ST_TIMED_ALL);
    if (st == STRATA_OK && has_queues(t))
        st = set_anchor(t);
    if (st != STRATA_OK)
        free(t);
    else
        *device = &t->base;
    return st;
}
