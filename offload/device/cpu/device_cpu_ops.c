/* offload/device/cpu/device_cpu_ops.c - the row, column and pointwise ops of the cpu device, spread over the workers. */
#include "offload/device/cpu/device_cpu_internal.h"
#include <assert.h>
#include <string.h>

#define THIN_LEAST 64u /* rows or columns of an item of a thin product */

/* One job type for all ops: the item function says what is done, and these fields hold its operands. */
struct op_job {
    const struct st_kernels *kernels;
    const struct st_ops *ops;
    enum st_activation activation;
    void *y, *sum;
    float *f0, *f1; /* fp32 outputs: statistics or parameter gradients */
    const void *x, *a, *b, *c;
    const float *stats;
    const int32_t *tokens; /* or positions */
    uint32_t rows, cols, seq, batch, row_first, row_count;
    uint64_t elems, step;  /* the extent, and how much of it one item processes */
    float number, softcap; /* eps or scale */
    strata_dtype dt, dy_dt;
};

static void run_items(struct st_device *dev, struct op_job *job, st_work_fn *item, uint64_t total, uint64_t step)
{
    struct cpu_device *cpu = cpu_of(dev);

    job->kernels = cpu->kernels;
    job->ops = cpu->ops;
    job->elems = total;
    job->step = step;
    st_workers_run(cpu->workers, item, job, st_run_count(step, total));
}

static strata_status run(struct st_device *dev, struct op_job *job, st_work_fn *item, uint64_t total, uint64_t step)
{
    run_items(dev, job, item, total, step);
    return STRATA_OK;
}

/* --- pointwise --- */

static void activation_forward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->activation_forward(job->activation, st_elem_mut(job->y, r.first, job->dt), st_elem(job->x, r.first, job->dt),
                                 r.count, job->dt);
}

strata_status st_cpu_activation_forward(struct st_device *dev, enum st_activation activation, void *y, const void *x,
                                        uint64_t elems, strata_dtype dt)
{
    struct op_job job = {.activation = activation, .y = y, .x = x, .dt = dt};

    return run(dev, &job, activation_forward_item, elems, ST_ITEM_ELEMS);
}

static void activation_backward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->activation_backward(job->activation, st_elem_mut(job->y, r.first, job->dt), st_elem(job->a, r.first, job->dt),
                                  st_elem(job->x, r.first, job->dt), r.count, job->dt);
}

strata_status st_cpu_activation_backward(struct st_device *dev, enum st_activation activation, void *dx, const void *dy,
                                         const void *x, uint64_t elems, strata_dtype dt)
{
    struct op_job job = {.activation = activation, .y = dx, .a = dy, .x = x, .dt = dt};

    return run(dev, &job, activation_backward_item, elems, ST_ITEM_ELEMS);
}

static void add_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->add(st_elem_mut(job->y, r.first, job->dt), st_elem(job->a, r.first, job->dt), st_elem(job->b, r.first, job->dt),
                  r.count, job->dt);
}

strata_status st_cpu_add(struct st_device *dev, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt)
{
    struct op_job job = {.y = y, .a = a, .b = b, .dt = dt};

    return run(dev, &job, add_item, elems, ST_ITEM_ELEMS);
}

static void scale_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->scale(st_elem_mut(job->y, r.first, job->dt), st_elem(job->x, r.first, job->dt), job->number, r.count, job->dt);
}

strata_status st_cpu_scale(struct st_device *dev, void *y, const void *x, float factor, uint64_t elems, strata_dtype dt)
{
    struct op_job job = {.y = y, .x = x, .number = factor, .dt = dt};

    return run(dev, &job, scale_item, elems, ST_ITEM_ELEMS);
}

struct dropout_job {
    const struct st_ops *ops;
    const struct st_dropout *d;
    float *to;
    const void *from;
    uint64_t step;
};

static void dropout_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct dropout_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->d->rows);

    (void)worker;
    job->ops->dropout_rows(job->d, job->to, job->from, (uint32_t)r.first, (uint32_t)r.count);
}

strata_status st_cpu_dropout(struct st_device *dev, const struct st_dropout *d, float *to, const void *from)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct dropout_job job = {.ops = cpu->ops, .d = d, .to = to, .from = from, .step = st_rows_per_item(d->cols)};

    st_workers_run(cpu->workers, dropout_item, &job, st_run_count(job.step, d->rows));
    return STRATA_OK;
}

struct cast_job {
    const struct st_ops *ops;
    const struct st_cast *cast;
    void *to;
    const void *from;
    uint64_t step;
};

static void cast_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct cast_job *job = ctx;
    const struct st_cast *c = job->cast;
    const struct st_run r = st_run_at(index, job->step, c->rows);
    void *to = st_elem_mut(job->to, r.first * c->to_stride, c->to);
    const void *from = st_elem(job->from, r.first * c->from_stride, c->from);

    (void)worker;
    if (c->to == STRATA_F32)
        job->ops->widen_rows(to, c->to_stride, from, c->from_stride, (uint32_t)r.count, c->cols, c->from);
    else
        job->ops->round_rows(to, c->to_stride, from, c->from_stride, (uint32_t)r.count, c->cols, c->to);
}

strata_status st_cpu_cast(struct st_device *dev, const struct st_cast *cast, void *to, const void *from)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct cast_job job = {.ops = cpu->ops, .cast = cast, .to = to, .from = from, .step = st_rows_per_item(cast->cols)};

    assert(cast->to == STRATA_F32 || cast->from == STRATA_F32);
    st_workers_run(cpu->workers, cast_item, &job, st_run_count(job.step, cast->rows));
    return STRATA_OK;
}

struct thin_job {
    const struct st_ops *ops;
    const struct st_thin *t;
    float *c;
    void *to;
    const void *p, *q;
    uint32_t rows, cols; /* of an item */
};

static void thin_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct thin_job *job = ctx;
    const uint64_t across = st_run_count(job->cols, job->t->cols);
    const struct st_run rows = st_run_at(index / across, job->rows, job->t->rows);
    const struct st_run cols = st_run_at(index % across, job->cols, job->t->cols);
    struct st_thin t = *job->t;
    const void *p = st_elem(job->p, rows.first * (t.trans_p ? 1 : t.ldp), t.p);
    const void *q = st_elem(job->q, cols.first * (t.trans_q ? t.ldq : 1), t.q);

    (void)worker;
    t.rows = (uint32_t)rows.count;
    t.cols = (uint32_t)cols.count;
    job->ops->thin(&t, job->c + rows.first * t.ldc + cols.first,
                   job->to != NULL ? st_elem_mut(job->to, rows.first * t.ld_to + cols.first, t.to) : NULL, p, q);
}

/* Items are narrow in one direction, and long where Q is transposed for each of them. */
strata_status st_cpu_thin(struct st_device *dev, const struct st_thin *t, float *c, void *to, const void *p, const void *q)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct thin_job job = {.ops = cpu->ops, .t = t, .c = c, .to = to, .p = p, .q = q};

    job.rows = t->cols > THIN_LEAST || t->trans_q ? 2 * THIN_LEAST : THIN_LEAST;
    job.cols = t->rows > THIN_LEAST ? 8 * THIN_LEAST : THIN_LEAST;
    st_workers_run(cpu->workers, thin_item, &job, st_run_count(job.rows, t->rows) * st_run_count(job.cols, t->cols));
    return STRATA_OK;
}

static void nf4_widen_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);
    const struct st_nf4_block *records = job->x;

    (void)worker;
    job->kernels->nf4_widen(st_elem_mut(job->y, r.first, job->dt), job->dt, records + r.first / ST_NF4_ELEMS, r.count);
}

strata_status st_cpu_nf4_widen(struct st_device *dev, void *y, const struct st_nf4_block *x, uint64_t elems, strata_dtype dt)
{
    struct op_job job = {.y = y, .x = x, .dt = dt};

    _Static_assert(ST_ITEM_ELEMS % ST_NF4_ELEMS == 0, "an item has whole records");
    return run(dev, &job, nf4_widen_item, elems, ST_ITEM_ELEMS);
}

/* --- norms --- */

static void bias_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->sum_columns(job->f0 + r.first, st_elem(job->x, r.first, job->dt), job->cols, job->rows, (uint32_t)r.count, job->dt);
}

strata_status st_cpu_bias_backward(struct st_device *dev, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                   strata_dtype dt)
{
    struct op_job job = {.f0 = dbias, .x = dy, .rows = rows, .cols = cols, .dt = dt};

    return run(dev, &job, bias_item, cols, ST_ITEM_COLUMNS);
}

static void norm_forward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);
    const uint64_t i = r.first * job->cols;
    const void *x = job->c != NULL ? job->sum : job->x;

    (void)worker;
    if (job->c != NULL)
        job->ops->add(st_elem_mut(job->sum, i, job->dt), st_elem(job->x, i, job->dt), st_elem(job->c, i, job->dt),
                      r.count * job->cols, job->dt);
    job->ops->norm_forward(st_elem_mut(job->y, i, job->dt), job->f0 + 2 * r.first, st_elem(x, i, job->dt), job->a, job->b,
                           (uint32_t)r.count, job->cols, job->number, job->dt);
}

strata_status st_cpu_layernorm_forward(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                       const void *bias, const void *addend, void *sum, uint32_t rows, uint32_t cols, float eps,
                                       strata_dtype dt)
{
    struct op_job job = {
        .y = y, .sum = sum, .f0 = stats, .x = x, .a = weight, .b = bias, .c = addend, .cols = cols, .number = eps, .dt = dt};

    return run(dev, &job, norm_forward_item, rows, st_rows_per_item(cols));
}

static void norm_columns_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->norm_backward_columns(job->f0 != NULL ? job->f0 + r.first : NULL, job->f1 != NULL ? job->f1 + r.first : NULL,
                                    st_elem(job->a, r.first, job->dy_dt), job->dy_dt, st_elem(job->x, r.first, job->dt),
                                    job->cols, job->stats, job->rows, (uint32_t)r.count, job->dt);
}

static void norm_rows_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);
    const uint64_t i = r.first * job->cols;
    const void *residual = job->c != NULL ? st_elem(job->c, i, job->dt) : NULL;

    (void)worker;
    job->ops->norm_backward_rows(st_elem_mut(job->y, i, job->dt), st_elem(job->a, i, job->dy_dt), job->dy_dt,
                                 st_elem(job->x, i, job->dt), job->stats + 2 * r.first, job->b, residual, (uint32_t)r.count,
                                 job->cols, job->dt);
}

/* Columns first, since dx may be the memory of dy. */
strata_status st_cpu_layernorm_backward(struct st_device *dev, void *dx, float *dweight, float *dbias, const void *dy,
                                        strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                        const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    struct op_job job = {.y = dx,
                         .f0 = dweight,
                         .f1 = dbias,
                         .a = dy,
                         .b = weight,
                         .c = residual,
                         .x = x,
                         .stats = stats,
                         .rows = rows,
                         .cols = cols,
                         .dt = dt,
                         .dy_dt = dy_dt};

    if (dweight != NULL || dbias != NULL)
        run_items(dev, &job, norm_columns_item, cols, ST_ITEM_COLUMNS);
    return run(dev, &job, norm_rows_item, rows, st_rows_per_item(cols));
}

/* --- embedding --- */

static void gather_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    for (uint64_t i = r.first; i < r.first + r.count; i++) {
        const int64_t row = (int64_t)job->tokens[i] - job->row_first;

        if (row >= 0 && row < job->row_count)
            memcpy(st_elem_mut(job->y, i * job->cols, job->dt), st_elem(job->x, (uint64_t)row * job->cols, job->dt),
                   job->cols * strata_dtype_bytes(job->dt));
    }
}

strata_status st_cpu_embed_gather(struct st_device *dev, void *out, const void *table, const int32_t *tokens, uint32_t rows,
                                  uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    struct op_job job = {
        .y = out, .x = table, .tokens = tokens, .cols = cols, .row_first = row_first, .row_count = row_count, .dt = dt};

    return run(dev, &job, gather_item, rows, st_rows_per_item(cols));
}

static void add_position_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->add_position_rows(st_elem_mut(job->y, r.first * job->cols, job->dt), job->x, job->tokens, (uint32_t)r.first,
                                (uint32_t)r.count, job->seq, job->cols, job->dt);
}

strata_status st_cpu_embed_add_position(struct st_device *dev, void *x, const void *pos, const int32_t *positions, uint32_t rows,
                                        uint32_t seq, uint32_t cols, strata_dtype dt)
{
    struct op_job job = {.y = x, .x = pos, .tokens = positions, .seq = seq, .cols = cols, .dt = dt};

    return run(dev, &job, add_position_item, rows, st_rows_per_item(cols));
}

static void position_backward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->position_backward_rows(job->f0, job->x, (uint32_t)r.first, (uint32_t)r.count, job->batch, job->seq, job->cols,
                                     job->dt);
}

static void scatter_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->scatter_columns(job->f0 + r.first, st_elem(job->x, r.first, job->dt), job->cols, job->tokens, job->rows,
                              (uint32_t)r.count, job->row_first, job->row_count, job->dt);
}

strata_status st_cpu_embed_scatter(struct st_device *dev, float *dtable, const void *dx, const int32_t *tokens, uint32_t rows,
                                   uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    struct op_job job = {.f0 = dtable,
                         .x = dx,
                         .tokens = tokens,
                         .rows = rows,
                         .cols = cols,
                         .row_first = row_first,
                         .row_count = row_count,
                         .dt = dt};

    return run(dev, &job, scatter_item, cols, 2 * ST_ITEM_COLUMNS);
}

/* Rows are added in order either way: the same bits where positions are r % seq. */
strata_status st_cpu_embed_position_backward(struct st_device *dev, float *dpos, const void *dx, const int32_t *positions,
                                             uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt)
{
    struct op_job job = {.f0 = dpos, .x = dx, .seq = seq, .batch = rows / seq, .cols = cols, .dt = dt};
    const uint64_t step = st_rows_per_item(cols) / (job.batch > 0 ? job.batch : 1);

    if (positions != NULL)
        return st_cpu_embed_scatter(dev, dpos, dx, positions, rows, cols, 0, seq, dt);
    return run(dev, &job, position_backward_item, seq, step > 0 ? step : 1);
}

/* --- cross-entropy --- */

static void xent_stats_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->xent_stats(job->f0 + 3 * r.first, (const float *)job->x + r.first * job->cols, job->tokens + r.first,
                         (uint32_t)r.count, job->cols, job->row_first, job->softcap);
}

strata_status st_cpu_xent_stats(struct st_device *dev, float *stats, const float *logits, const int32_t *targets, uint32_t rows,
                                uint32_t cols, uint32_t first, float softcap)
{
    struct op_job job = {.f0 = stats, .x = logits, .tokens = targets, .cols = cols, .row_first = first, .softcap = softcap};

    return run(dev, &job, xent_stats_item, rows, st_rows_per_item(cols));
}

static void xent_grad_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct op_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);
    const uint64_t i = r.first * job->cols;

    (void)worker;
    job->ops->xent_grad(st_elem_mut(job->y, i, job->dt), (const float *)job->x + i, job->stats + 3 * r.first,
                        job->tokens + r.first, (uint32_t)r.count, job->cols, job->row_first, job->number, job->softcap, job->dt);
}

strata_status st_cpu_xent_grad(struct st_device *dev, void *dlogits, const float *logits, const float *stats,
                               const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first, float scale, float softcap,
                               strata_dtype dt)
{
    struct op_job job = {.y = dlogits,
                         .x = logits,
                         .stats = stats,
                         .tokens = targets,
                         .cols = cols,
                         .row_first = first,
                         .number = scale,
                         .softcap = softcap,
                         .dt = dt};

    return run(dev, &job, xent_grad_item, rows, st_rows_per_item(cols));
}

strata_status st_cpu_xent_loss(struct st_device *dev, double *loss_sum, const float *stats, const int32_t *targets, uint32_t rows)
{
    *loss_sum = cpu_of(dev)->ops->xent_loss(stats, targets, rows);
    return STRATA_OK;
}
