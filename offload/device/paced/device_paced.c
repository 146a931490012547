/* device_paced.c - the paced device: its arena, its copies, the table's rows, the last step of the gradient, and the update.
 *
 * One thread adds tasks; the thread of each queue runs them.  The work is the same as the cpu device's on one thread, with the
 * same bits. */
#include "core/base/error.h"
#include "core/base/rng.h"
#include "kernels/reduce.h"
#include "kernels/ops/ops.h"
#include "offload/device/op_traffic.h"
#include "offload/device/paced/paced_internal.h"

#include <stdlib.h>
#include <string.h>

#define COPY_PIECE   (UINT64_C(1) << 20) /* bytes copied between two readings of the clock */
#define PATTERN_SEED 0x7061636564u
#define PATTERN_STD  1e-3f

static const char *const queue_names[ST_QUEUE_COUNT] = {[ST_QUEUE_COMPUTE] = "paced-compute",
                                                        [ST_QUEUE_UPDATE] = "paced-update",
                                                        [ST_QUEUE_UPLOAD] = "paced-upload",
                                                        [ST_QUEUE_DOWNLOAD] = "paced-download"};

static void make_patterns(struct paced_device *dev)
{
    st_rng_normal(dev->pattern_f32, ST_PACED_PATTERN_ELEMS, PATTERN_SEED, 0, 0, PATTERN_STD);
    dev->kernels->f32_to_bf16(dev->pattern_bf16, dev->pattern_f32, ST_PACED_PATTERN_ELEMS);
    dev->kernels->f32_to_f16(dev->pattern_f16, dev->pattern_f32, ST_PACED_PATTERN_ELEMS);
}

static strata_status paced_open(struct st_device **out, const struct st_device_opts *opts)
{
    struct paced_device *dev;
    strata_status st;

    if (opts->pace == NULL)
        return st_error_remedy(st_error(STRATA_E_INVAL, "paced device: it needs a machine to keep the pace of"), "machine.file",
                               "give machine.file FILE");
    dev = calloc(1, sizeof(*dev));
    if (dev == NULL)
        return st_nomem(sizeof(*dev));
    dev->base.ops = &st_device_paced_ops;
    dev->kernels = opts->kernels;
    dev->machine = *opts->pace;
    make_patterns(dev);
    st = st_arena_create_near(&dev->arena, "device memory", opts->arena_bytes, opts->workers, opts->topology);
    for (uint32_t i = 0; i < ST_QUEUE_COUNT; i++)
        st_paced_processor_init(&dev->processors[i]);
    for (uint32_t i = 0; i < ST_QUEUE_COUNT && st == STRATA_OK; i++)
        st = st_paced_queue_start(&dev->queues[i], dev, &dev->processors[i == ST_QUEUE_UPDATE ? ST_QUEUE_COMPUTE : i],
                                  queue_names[i]);
    if (st != STRATA_OK)
        st_device_paced_ops.close(&dev->base);
    else
        *out = &dev->base;
    return st;
}

static void paced_close(struct st_device *base)
{
    struct paced_device *dev = paced_of(base);

    if (dev == NULL)
        return;
    for (uint32_t i = 0; i < ST_QUEUE_COUNT; i++)
        st_paced_queue_stop(&dev->queues[i]);
    for (uint32_t i = 0; i < ST_QUEUE_COUNT; i++)
        st_paced_processor_fini(&dev->processors[i]);
    st_arena_destroy(&dev->arena);
    free(dev);
}

static unsigned char *paced_arena(struct st_device *dev)
{
    return paced_of(dev)->arena.base;
}

static strata_status enqueue(struct st_device *dev, enum st_queue queue, const struct paced_task *task)
{
    st_paced_queue_add(&paced_of(dev)->queues[queue], task);
    return STRATA_OK;
}

static strata_status paced_finish(struct st_device *dev, enum st_queue queue)
{
    return st_paced_queue_finish(&paced_of(dev)->queues[queue]);
}

static void launch(struct paced_device *dev, const struct paced_task *task, uint64_t index)
{
    (void)dev;
    (void)task;
    (void)index;
}

/* The engine asks for one notice of each op, so the time of its launch is spent here. */
static strata_status paced_notify(struct st_device *dev, enum st_queue queue, void (*done)(void *ctx, strata_status st),
                                  void *ctx)
{
    const double seconds = paced_of(dev)->machine.rates.launch;

    if (seconds > 0)
        (void)enqueue(dev, queue, &(struct paced_task){.work = launch, .pieces = 1, .seconds = seconds}); /* cannot fail */
    return enqueue(dev, queue, &(struct paced_task){.of.mark = {done, ctx}});
}

/* --- bytes --- */

static void copy_piece(struct paced_device *dev, const struct paced_task *task, uint64_t index)
{
    const struct paced_copy *c = &task->of.copy;
    const uint64_t first = index * COPY_PIECE, left = c->bytes - first;
    const uint64_t bytes = left < COPY_PIECE ? left : COPY_PIECE;

    (void)dev;
    if (c->src == NULL)
        memset((unsigned char *)c->dst + first, 0, bytes);
    else
        memcpy((unsigned char *)c->dst + first, (const unsigned char *)c->src + first, bytes);
}

static strata_status add_copy(struct st_device *dev, enum st_queue queue, void *dst, const void *src, uint64_t bytes, double rate)
{
    return enqueue(dev, queue,
                   &(struct paced_task){.work = copy_piece,
                                        .pieces = (bytes + COPY_PIECE - 1) / COPY_PIECE,
                                        .seconds = rate > 0 ? (double)bytes / rate : 0,
                                        .of.copy = {dst, src, bytes}});
}

static strata_status paced_upload(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    return add_copy(dev, ST_QUEUE_UPLOAD, dst, src, bytes, paced_of(dev)->machine.rates.upload);
}

static strata_status paced_download(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    return add_copy(dev, ST_QUEUE_DOWNLOAD, dst, src, bytes, paced_of(dev)->machine.rates.download);
}

/* Seconds that a pass over the device's memory takes by the machine file. */
static double pass_seconds(struct st_device *dev, const struct st_op_shape *shape)
{
    return st_seconds_at(st_op_traffic(shape).bytes, paced_of(dev)->machine.rates.memory);
}

static strata_status paced_copy(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    return add_copy(dev, ST_QUEUE_COMPUTE, dst, src, bytes, paced_of(dev)->machine.rates.memory / 2);
}

static strata_status paced_zero(struct st_device *dev, void *dst, uint64_t bytes)
{
    return add_copy(dev, ST_QUEUE_COMPUTE, dst, NULL, bytes, paced_of(dev)->machine.rates.memory);
}

/* --- the table's rows --- */

static void gather(struct paced_device *dev, const struct paced_task *task, uint64_t index)
{
    const struct paced_rows *r = &task->of.rows;
    const size_t row_bytes = r->cols * strata_dtype_bytes(r->dt);

    (void)dev;
    (void)index;
    for (uint32_t i = 0; i < r->rows; i++) {
        const int64_t row = (int64_t)r->tokens[i] - r->row_first;

        if (row >= 0 && row < r->row_count)
            memcpy((unsigned char *)r->to + i * row_bytes, (const unsigned char *)r->from + (uint64_t)row * row_bytes, row_bytes);
    }
}

/* Of the tokens, which are on the device when the op is added, those whose rows this slice of the table has. */
static uint64_t rows_within(const struct paced_rows *r)
{
    uint64_t within = 0;

    for (uint32_t i = 0; i < r->rows; i++)
        within += (int64_t)r->tokens[i] >= r->row_first && (int64_t)r->tokens[i] - r->row_first < r->row_count;
    return within;
}

static strata_status paced_embed_gather(struct st_device *dev, void *out, const void *table, const int32_t *tokens, uint32_t rows,
                                        uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    const struct paced_rows r = {out, table, tokens, rows, cols, row_first, row_count, dt};
    const struct st_op_shape shape = {.op = ST_DEVICE_EMBED_GATHER, .dt = dt, .rows = rows_within(&r), .cols = cols};

    return enqueue(dev, ST_QUEUE_COMPUTE,
                   &(struct paced_task){.work = gather, .pieces = 1, .seconds = pass_seconds(dev, &shape), .of.rows = r});
}

static void scatter(struct paced_device *dev, const struct paced_task *task, uint64_t index)
{
    const struct paced_rows *r = &task->of.rows;

    (void)index;
    dev->kernels->ops->scatter_columns(r->to, r->from, r->cols, r->tokens, r->rows, r->cols, r->row_first, r->row_count, r->dt);
}

static strata_status paced_embed_scatter(struct st_device *dev, float *dtable, const void *dx, const int32_t *tokens,
                                         uint32_t rows, uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    const struct paced_rows r = {dtable, dx, tokens, rows, cols, row_first, row_count, dt};
    const uint64_t within = rows_within(&r);
    const struct st_op_shape shape = {.op = ST_DEVICE_EMBED_SCATTER,
                                      .dt = dt,
                                      .rows = within,
                                      .cols = cols,
                                      .positions = within < row_count ? within : row_count};

    return enqueue(dev, ST_QUEUE_COMPUTE,
                   &(struct paced_task){.work = scatter, .pieces = 1, .seconds = pass_seconds(dev, &shape), .of.rows = r});
}

/* --- gradient and update --- */

static void reduce(struct paced_device *dev, const struct paced_task *task, uint64_t index)
{
    const struct paced_reduce *f = &task->of.reduce;

    (void)index;
    st_reduce(dev->kernels, f->sum, f->addend, f->dt, f->elems);
}

static strata_status paced_reduce(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems)
{
    const struct st_op_shape shape = {.op = ST_DEVICE_REDUCE, .dt = dt, .rows = 1, .cols = elems};

    return enqueue(dev, ST_QUEUE_COMPUTE,
                   &(struct paced_task){
                       .work = reduce, .pieces = 1, .seconds = pass_seconds(dev, &shape), .of.reduce = {sum, addend, dt, elems}});
}

static void finish_grad(struct paced_device *dev, const struct paced_task *task, uint64_t index)
{
    const struct paced_finish *f = &task->of.finish;

    (void)index;
    *f->nonfinite += dev->kernels->grad_finish(f->out, f->dt, f->acc, f->elems, f->block_sums);
    *f->norm2 += st_norm_group(f->block_sums, (f->elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK);
}

static strata_status paced_grad_finish(struct st_device *dev, void *out, strata_dtype dt, const float *acc, uint64_t elems,
                                       double *block_sums, double *norm2, uint64_t *nonfinite)
{
    const struct st_op_shape shape = {.op = ST_DEVICE_GRAD_FINISH, .dt = dt, .rows = 1, .cols = elems};

    return enqueue(dev, ST_QUEUE_COMPUTE,
                   &(struct paced_task){.work = finish_grad,
                                        .pieces = 1,
                                        .seconds = pass_seconds(dev, &shape),
                                        .of.finish = {out, acc, elems, block_sums, norm2, nonfinite, dt}});
}

static void update(struct paced_device *dev, const struct paced_task *task, uint64_t index)
{
    const struct paced_update *a = &task->of.update;
    const struct st_kernels *k = dev->kernels;
    const bool own_master = a->master == NULL; /* the weight is its own master */

    (void)index;
    if (a->low_half != NULL)
        *a->overflowed += k->update_split(a->weight, a->low_half, &a->moments, a->grad, a->dt, a->elems, &a->coef);
    else
        *a->overflowed +=
            k->update_master(own_master ? a->weight : a->master, own_master ? NULL : a->weight,
                             own_master ? STRATA_DTYPE_INVALID : a->dt, &a->moments, a->grad, a->dt, a->elems, &a->coef);
}

static strata_status paced_update(struct st_device *dev, void *weight, int16_t *low_half, float *master,
                                  const struct st_moments *moments, const void *grad, strata_dtype dt, uint64_t elems,
                                  const struct st_update_coef *coef, uint64_t *overflowed)
{
    const bool copied = master != NULL;
    const uint64_t planes = st_moment_bytes(moments->format, elems) * (moments->moment2 != NULL ? 2 : 1) +
                            (low_half != NULL ? elems * sizeof(*low_half) : 0) +
                            elems * (copied ? sizeof(*master) : strata_dtype_bytes(dt));
    const struct st_op_shape shape = {
        .op = ST_DEVICE_UPDATE, .dt = dt, .other = dt, .rows = 1, .cols = elems, .state_bytes = planes, .more.others = copied};

    return enqueue(dev, ST_QUEUE_UPDATE,
                   &(struct paced_task){.work = update,
                                        .pieces = 1,
                                        .seconds = pass_seconds(dev, &shape),
                                        .of.update = {.weight = weight,
                                                      .low_half = low_half,
                                                      .master = master,
                                                      .moments = *moments,
                                                      .grad = grad,
                                                      .elems = elems,
                                                      .overflowed = overflowed,
                                                      .coef = *coef,
                                                      .dt = dt}});
}

const struct st_device_ops st_device_paced_ops = {
    .name = "paced",
    .open = paced_open,
    .close = paced_close,
    .arena = paced_arena,
    .upload = paced_upload,
    .download = paced_download,
    .finish = paced_finish,
    .notify = paced_notify,
    .zero = paced_zero,
    .copy = paced_copy,
    .embed_gather = paced_embed_gather,
    .embed_scatter = paced_embed_scatter,
    .reduce = paced_reduce,
    .grad_finish = paced_grad_finish,
    .update = paced_update,
};
