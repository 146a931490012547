/* offload/device/cpu/device_cpu_llama.c - RMSNorm, rotary positions and SwiGLU of the cpu device, spread over the workers. */
#include "offload/device/cpu/device_cpu_internal.h"

/* --- RMSNorm --- */

struct rms_job {
    const struct st_ops *ops;
    void *y; /* or dx */
    float *stats_out, *dweight;
    const void *x, *dy, *weight, *residual;
    const float *stats;
    uint32_t rows, cols;
    float eps;
    strata_dtype dt, dy_dt;
};

static void rms_forward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct rms_job *job = ctx;
    const struct st_run r = st_run_at(index, st_rows_per_item(job->cols), job->rows);
    const uint64_t i = r.first * job->cols;

    (void)worker;
    job->ops->rms_forward(st_elem_mut(job->y, i, job->dt), job->stats_out + r.first, st_elem(job->x, i, job->dt), job->weight,
                          (uint32_t)r.count, job->cols, job->eps, job->dt);
}

strata_status st_cpu_rmsnorm_forward(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                     uint32_t rows, uint32_t cols, float eps, strata_dtype dt)
{
    struct rms_job job = {.ops = cpu_of(dev)->ops,
                          .y = y,
                          .stats_out = stats,
                          .x = x,
                          .weight = weight,
                          .rows = rows,
                          .cols = cols,
                          .eps = eps,
                          .dt = dt};

    st_workers_run(cpu_of(dev)->workers, rms_forward_item, &job, st_run_count(st_rows_per_item(cols), rows));
    return STRATA_OK;
}

static void rms_columns_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct rms_job *job = ctx;
    const struct st_run r = st_run_at(index, ST_ITEM_COLUMNS, job->cols);

    (void)worker;
    job->ops->rms_backward_columns(job->dweight + r.first, st_elem(job->dy, r.first, job->dy_dt), job->dy_dt,
                                   st_elem(job->x, r.first, job->dt), job->cols, job->stats, job->rows, (uint32_t)r.count,
                                   job->dt);
}

static void rms_rows_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct rms_job *job = ctx;
    const struct st_run r = st_run_at(index, st_rows_per_item(job->cols), job->rows);
    const uint64_t i = r.first * job->cols;
    const void *residual = job->residual != NULL ? st_elem(job->residual, i, job->dt) : NULL;

    (void)worker;
    job->ops->rms_backward_rows(st_elem_mut(job->y, i, job->dt), st_elem(job->dy, i, job->dy_dt), job->dy_dt,
                                st_elem(job->x, i, job->dt), job->stats + r.first, job->weight, residual, (uint32_t)r.count,
                                job->cols, job->dt);
}

/* Columns first, since dx may be the memory of dy. */
strata_status st_cpu_rmsnorm_backward(struct st_device *dev, void *dx, float *dweight, const void *dy, strata_dtype dy_dt,
                                      const void *x, const float *stats, const void *weight, const void *residual, uint32_t rows,
                                      uint32_t cols, strata_dtype dt)
{
    struct st_workers *const workers = cpu_of(dev)->workers;
    struct rms_job job = {.ops = cpu_of(dev)->ops,
                          .y = dx,
                          .dweight = dweight,
                          .x = x,
                          .dy = dy,
                          .weight = weight,
                          .residual = residual,
                          .stats = stats,
                          .rows = rows,
                          .cols = cols,
                          .dt = dt,
                          .dy_dt = dy_dt};

    if (dweight != NULL)
        st_workers_run(workers, rms_columns_item, &job, st_run_count(ST_ITEM_COLUMNS, cols));
    st_workers_run(workers, rms_rows_item, &job, st_run_count(st_rows_per_item(cols), rows));
    return STRATA_OK;
}

/* --- rotary positions --- */

struct rope_job {
    const struct st_ops *ops;
    void *x;
    const float *table;
    uint32_t stride, rows, seq, first, heads, head_dim;
    bool inverse;
    strata_dtype dt;
};

static void rope_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct rope_job *job = ctx;
    const struct st_run r = st_run_at(index, st_rows_per_item(job->heads * job->head_dim), job->rows);

    (void)worker;
    job->ops->rope_rows(st_elem_mut(job->x, r.first * job->stride, job->dt), job->stride, (uint32_t)r.first, (uint32_t)r.count,
                        job->seq, job->first, job->heads, job->head_dim, job->table, job->inverse, job->dt);
}

strata_status st_cpu_rope(struct st_device *dev, void *x, uint32_t stride, uint32_t rows, uint32_t seq, uint32_t first,
                          uint32_t heads, uint32_t head_dim, const float *table, bool inverse, strata_dtype dt)
{
    struct rope_job job = {cpu_of(dev)->ops, x, table, stride, rows, seq, first, heads, head_dim, inverse, dt};

    st_workers_run(cpu_of(dev)->workers, rope_item, &job, st_run_count(st_rows_per_item(heads * head_dim), rows));
    return STRATA_OK;
}

/* --- SwiGLU --- */

struct swiglu_job {
    const struct st_ops *ops;
    void *y; /* or dgate_up */
    const void *dy, *gate_up;
    uint32_t rows, ffn;
    strata_dtype dt;
};

static void swiglu_forward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct swiglu_job *job = ctx;
    const struct st_run r = st_run_at(index, st_rows_per_item(job->ffn), job->rows);

    (void)worker;
    job->ops->swiglu_forward(st_elem_mut(job->y, r.first * job->ffn, job->dt),
                             st_elem(job->gate_up, 2 * r.first * job->ffn, job->dt), (uint32_t)r.count, job->ffn, job->dt);
}

strata_status st_cpu_swiglu_forward(struct st_device *dev, void *y, const void *gate_up, uint32_t rows, uint32_t ffn,
                                    strata_dtype dt)
{
    struct swiglu_job job = {.ops = cpu_of(dev)->ops, .y = y, .gate_up = gate_up, .rows = rows, .ffn = ffn, .dt = dt};

    st_workers_run(cpu_of(dev)->workers, swiglu_forward_item, &job, st_run_count(st_rows_per_item(ffn), rows));
    return STRATA_OK;
}

static void swiglu_backward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct swiglu_job *job = ctx;
    const struct st_run r = st_run_at(index, st_rows_per_item(job->ffn), job->rows);
    const uint64_t i = r.first * job->ffn;

    (void)worker;
    job->ops->swiglu_backward(st_elem_mut(job->y, 2 * i, job->dt), st_elem(job->dy, i, job->dt),
                              st_elem(job->gate_up, 2 * i, job->dt), (uint32_t)r.count, job->ffn, job->dt);
}

strata_status st_cpu_swiglu_backward(struct st_device *dev, void *dgate_up, const void *dy, const void *gate_up, uint32_t rows,
                                     uint32_t ffn, strata_dtype dt)
{
    struct swiglu_job job = {cpu_of(dev)->ops, dgate_up, dy, gate_up, rows, ffn, dt};

    st_workers_run(cpu_of(dev)->workers, swiglu_backward_item, &job, st_run_count(st_rows_per_item(ffn), rows));
    return STRATA_OK;
}
