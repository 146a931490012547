/* offload/device/cpu/device_cpu_llama.c - RMSNorm, rotary positions and gates of the cpu device, spread over the workers. */
#include "offload/device/cpu/device_cpu_internal.h"

/* --- RMSNorm --- */

struct rms_job {
    const struct st_ops *ops;
    void *y, *sum; /* y: or dx */
    float *stats_out, *dweight;
    const void *x, *addend, *dy, *weight, *residual;
    const float *stats;
    const struct st_rmsnorm *norm;
    uint64_t step; /* rows of an item */
    strata_dtype dy_dt;
};

static struct rms_job rms_job_of(struct st_device *dev, const struct st_rmsnorm *norm)
{
    return (struct rms_job){.ops = cpu_of(dev)->ops, .norm = norm, .step = st_rows_per_item(norm->heads * norm->cols)};
}

static void rms_forward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct rms_job *job = ctx;
    const struct st_rmsnorm *norm = job->norm;
    const struct st_run r = st_run_at(index, job->step, norm->rows);
    const uint64_t i = r.first * norm->stride;
    const void *x = job->addend != NULL ? job->sum : job->x;

    (void)worker;
    for (uint64_t row = i; job->addend != NULL && row < i + r.count * norm->stride; row += norm->stride)
        job->ops->add(st_elem_mut(job->sum, row, norm->dt), st_elem(job->x, row, norm->dt), st_elem(job->addend, row, norm->dt),
                      (size_t)norm->heads * norm->cols, norm->dt);
    job->ops->rms_forward(norm, st_elem_mut(job->y, i, norm->dt), job->stats_out + r.first * norm->heads, st_elem(x, i, norm->dt),
                          job->weight, (uint32_t)r.count);
}

strata_status st_cpu_rmsnorm_forward(struct st_device *dev, const struct st_rmsnorm *norm, void *y, float *stats, const void *x,
                                     const void *weight, const void *addend, void *sum)
{
    struct rms_job job = rms_job_of(dev, norm);

    job.y = y;
    job.stats_out = stats;
    job.x = x;
    job.weight = weight;
    job.addend = addend;
    job.sum = sum;
    st_workers_run(cpu_of(dev)->workers, rms_forward_item, &job, st_run_count(job.step, norm->rows));
    return STRATA_OK;
}

static void rms_columns_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct rms_job *job = ctx;
    const struct st_run r = st_run_at(index, ST_ITEM_COLUMNS, job->norm->cols);

    (void)worker;
    job->ops->rms_backward_columns(job->norm, job->dweight + r.first, st_elem(job->dy, r.first, job->dy_dt), job->dy_dt,
                                   st_elem(job->x, r.first, job->norm->dt), job->stats, (uint32_t)r.count);
}

static void rms_rows_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct rms_job *job = ctx;
    const struct st_rmsnorm *norm = job->norm;
    const struct st_run r = st_run_at(index, job->step, norm->rows);
    const uint64_t i = r.first * norm->stride;
    const void *residual = job->residual != NULL ? st_elem(job->residual, i, norm->dt) : NULL;

    (void)worker;
    job->ops->rms_backward_rows(norm, st_elem_mut(job->y, i, norm->dt), st_elem(job->dy, i, job->dy_dt), job->dy_dt,
                                st_elem(job->x, i, norm->dt), job->stats + r.first * norm->heads, job->weight, residual,
                                (uint32_t)r.count);
}

/* Columns first, since dx may be the memory of dy. */
strata_status st_cpu_rmsnorm_backward(struct st_device *dev, const struct st_rmsnorm *norm, void *dx, float *dweight,
                                      const void *dy, strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                      const void *residual)
{
    struct st_workers *const workers = cpu_of(dev)->workers;
    struct rms_job job = rms_job_of(dev, norm);

    job.y = dx;
    job.dweight = dweight;
    job.dy = dy;
    job.dy_dt = dy_dt;
    job.x = x;
    job.stats = stats;
    job.weight = weight;
    job.residual = residual;
    if (dweight != NULL)
        st_workers_run(workers, rms_columns_item, &job, st_run_count(ST_ITEM_COLUMNS, norm->cols));
    st_workers_run(workers, rms_rows_item, &job, st_run_count(job.step, norm->rows));
    return STRATA_OK;
}

/* --- rotary positions --- */

struct rope_job {
    const struct st_ops *ops;
    const struct st_rope *rope;
    void *x;
    uint64_t step; /* rows of an item */
};

static void rope_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct rope_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->rope->rows);

    (void)worker;
    job->ops->rope_rows(job->rope, job->x, (uint32_t)r.first, (uint32_t)r.count);
}

strata_status st_cpu_rope(struct st_device *dev, const struct st_rope *rope, void *x)
{
    struct rope_job job = {cpu_of(dev)->ops, rope, x, st_rows_per_item(rope->heads * rope->head_dim)};

    st_workers_run(cpu_of(dev)->workers, rope_item, &job, st_run_count(job.step, rope->rows));
    return STRATA_OK;
}

/* --- gates --- */

struct gated_job {
    const struct st_ops *ops;
    enum st_activation activation;
    void *dgate_up, *y;
    const void *dy, *gate_up;
    uint32_t rows, ffn;
    strata_dtype dt;
};

static void gated_forward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct gated_job *job = ctx;
    const struct st_run r = st_run_at(index, st_rows_per_item(job->ffn), job->rows);

    (void)worker;
    job->ops->gated_forward(job->activation, st_elem_mut(job->y, r.first * job->ffn, job->dt),
                            st_elem(job->gate_up, 2 * r.first * job->ffn, job->dt), (uint32_t)r.count, job->ffn, job->dt);
}

strata_status st_cpu_gated_forward(struct st_device *dev, enum st_activation activation, void *y, const void *gate_up,
                                   uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    struct gated_job job = {
        .ops = cpu_of(dev)->ops, .activation = activation, .y = y, .gate_up = gate_up, .rows = rows, .ffn = ffn, .dt = dt};

    st_workers_run(cpu_of(dev)->workers, gated_forward_item, &job, st_run_count(st_rows_per_item(ffn), rows));
    return STRATA_OK;
}

static void gated_backward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct gated_job *job = ctx;
    const struct st_run r = st_run_at(index, st_rows_per_item(job->ffn), job->rows);
    const uint64_t i = r.first * job->ffn;

    (void)worker;
    job->ops->gated_backward(job->activation, st_elem_mut(job->dgate_up, 2 * i, job->dt),
                             job->y != NULL ? st_elem_mut(job->y, i, job->dt) : NULL, st_elem(job->dy, i, job->dt),
                             st_elem(job->gate_up, 2 * i, job->dt), (uint32_t)r.count, job->ffn, job->dt);
}

strata_status st_cpu_gated_backward(struct st_device *dev, enum st_activation activation, void *dgate_up, void *y, const void *dy,
                                    const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    struct gated_job job = {cpu_of(dev)->ops, activation, dgate_up, y, dy, gate_up, rows, ffn, dt};

    st_workers_run(cpu_of(dev)->workers, gated_backward_item, &job, st_run_count(st_rows_per_item(ffn), rows));
    return STRATA_OK;
}
