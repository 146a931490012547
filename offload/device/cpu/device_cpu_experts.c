/* offload/device/cpu/device_cpu_experts.c - the choice of experts and the rows that go to them and back, spread over the workers;
 * their products: device_cpu_grouped.c.
 *
 * What is routed lies in host memory and is complete when a call begins, so that loops end at the rows that there are. */
#include "offload/device/cpu/device_cpu_internal.h"
#include <string.h>

/* One job type for all: the item function says what is done, and these fields hold its operands. */
struct routed_job {
    const struct st_ops *ops;
    const struct st_route *route;
    const struct st_experts *of;
    const struct st_gate *gate;
    const struct st_expert_cast *cast;
    void *y, *dx, *dlogits;
    const void *x, *d, *logits;
    float *sum, *w_out, *p_out;
    const float *weights, *dweights, *probs;
    int32_t *ids_out;
    const int32_t *ids, *order, *places, *offsets;
    int64_t *counts_out;
    const int64_t *counts;
    double *sums;
    float number; /* aux, or a limit */
    uint32_t cols, stride;
    uint64_t elems, step; /* the extent, and how much of it one item processes */
    strata_dtype dt;
};

static strata_status run(struct st_device *dev, struct routed_job *job, st_work_fn *item, uint64_t total, uint64_t step)
{
    struct cpu_device *cpu = cpu_of(dev);

    job->ops = cpu->ops;
    job->elems = total;
    job->step = step;
    st_workers_run(cpu->workers, item, job, st_run_count(step, total));
    return STRATA_OK;
}

/* --- the choice --- */

static void choose_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->route_rows(job->route, job->ids_out, job->w_out, job->p_out, job->logits, (uint32_t)r.first, (uint32_t)r.count);
}

strata_status st_cpu_route_choose(struct st_device *dev, const struct st_route *route, int32_t *ids, float *weights, float *probs,
                                  const void *logits)
{
    struct routed_job job = {.route = route, .ids_out = ids, .w_out = weights, .p_out = probs, .logits = logits};

    return run(dev, &job, choose_item, route->rows, st_rows_per_item(8 * route->experts));
}

/* A counting sort, on one thread: a part in thousands of the experts' products.  offsets[e + 1] counts e's choices, then says
 * where its next one goes, which at the end is where e + 1's begin.  A row's places are inserted where they belong. */
strata_status st_cpu_route_sort(struct st_device *dev, const struct st_route *route, int32_t *order, int32_t *places,
                                int32_t *offsets, const int32_t *ids)
{
    const uint32_t k = route->k;
    int32_t next = 0;

    (void)dev;
    memset(offsets, 0, (route->experts + 1) * sizeof(*offsets));
    for (uint64_t i = 0; i < (uint64_t)route->rows * k; i++)
        offsets[ids[i] + 1]++;
    for (uint32_t e = 0; e < route->experts; e++) {
        const int32_t count = offsets[e + 1];

        offsets[e + 1] = next;
        next += count;
    }
    for (uint64_t r = 0; r < route->rows; r++) {
        int32_t *const place = places + r * k;

        for (uint32_t j = 0; j < k; j++) {
            const int32_t at = offsets[ids[r * k + j] + 1]++;
            uint32_t i = j;

            order[at] = (int32_t)(r * k + j);
            for (; i > 0 && place[i - 1] > at; i--)
                place[i] = place[i - 1];
            place[i] = at;
        }
    }
    return STRATA_OK;
}

static void totals_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_route *route = job->route;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    for (uint64_t row = 0; row < route->rows; row++) {
        if (route->targets != NULL && route->targets[row] == STRATA_TARGET_PADDING)
            continue;
        for (uint64_t j = 0; j < route->k; j++) {
            const uint64_t e = (uint64_t)job->ids[row * route->k + j];

            if (e >= r.first && e - r.first < r.count)
                job->counts_out[e]++;
        }
        for (uint64_t e = r.first; e < r.first + r.count; e++)
            job->sums[e] += (double)job->probs[row * route->experts + e];
    }
}

strata_status st_cpu_route_totals(struct st_device *dev, const struct st_route *route, int64_t *counts, double *sums,
                                  const int32_t *ids, const float *probs)
{
    struct routed_job job = {.route = route, .counts_out = counts, .sums = sums, .ids = ids, .probs = probs};

    return run(dev, &job, totals_item, route->experts, ST_ITEM_COLUMNS);
}

strata_status st_cpu_route_loss(struct st_device *dev, const struct st_route *route, double *loss, const int64_t *counts,
                                const double *sums)
{
    int64_t choices = 0;
    double sum = 0, rows;

    (void)dev;
    for (uint32_t e = 0; e < route->experts; e++) {
        choices += counts[e];
        sum += (double)counts[e] * sums[e];
    }
    rows = (double)(choices / route->k);
    *loss = rows > 0 ? route->experts * sum / (rows * rows) : 0.0;
    return STRATA_OK;
}

static void route_backward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    job->ops->route_backward_rows(job->route, job->dlogits, job->dweights, job->probs, job->ids, job->weights, job->counts,
                                  job->number, (uint32_t)r.first, (uint32_t)r.count);
}

strata_status st_cpu_route_backward(struct st_device *dev, const struct st_route *route, void *dlogits, const float *dweights,
                                    const float *probs, const int32_t *ids, const float *weights, const int64_t *counts,
                                    float aux)
{
    struct routed_job job = {.route = route,
                             .dlogits = dlogits,
                             .dweights = dweights,
                             .probs = probs,
                             .ids = ids,
                             .weights = weights,
                             .counts = counts,
                             .number = aux};

    return run(dev, &job, route_backward_item, route->rows, st_rows_per_item(8 * route->experts));
}

/* --- rows of a slice --- */

static uint64_t rows_of(const struct st_experts *of, const int32_t *offsets)
{
    return (uint64_t)(offsets[of->first + of->count] - offsets[of->first]);
}

/* The choices of the slice's rows. */
static const int32_t *order_of(const struct routed_job *job)
{
    return job->order + job->offsets[job->of->first];
}

static void gather_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    for (uint64_t i = r.first; i < r.first + r.count; i++)
        memcpy(st_elem_mut(job->y, i * job->cols, job->dt),
               st_elem(job->x, (uint64_t)order_of(job)[i] / job->of->k * job->cols, job->dt),
               job->cols * strata_dtype_bytes(job->dt));
}

strata_status st_cpu_experts_gather(struct st_device *dev, const struct st_experts *of, void *to, const void *x,
                                    const int32_t *order, const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    struct routed_job job = {.of = of, .y = to, .x = x, .order = order, .offsets = offsets, .cols = cols, .dt = dt};

    return run(dev, &job, gather_item, rows_of(of, offsets), st_rows_per_item(cols));
}

/* Strips of columns of all experts, one after another. */
static void bias_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_experts *of = job->of;
    const uint64_t strips = st_run_count(ST_ITEM_COLUMNS, job->cols), e = index / strips;
    const struct st_run r = st_run_at(index % strips, ST_ITEM_COLUMNS, job->cols);
    const int32_t *begin = job->offsets + of->first + e;

    (void)worker;
    job->ops->sum_columns(job->sum + e * job->step + r.first,
                          st_elem(job->x, (uint64_t)(begin[0] - job->offsets[of->first]) * job->cols + r.first, job->dt),
                          job->cols, (uint32_t)(begin[1] - begin[0]), (uint32_t)r.count, job->dt);
}

strata_status st_cpu_experts_bias_backward(struct st_device *dev, const struct st_experts *of, float *dbias, uint64_t stride,
                                           const void *dy, const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct routed_job job = {
        .ops = cpu->ops, .of = of, .sum = dbias, .step = stride, .x = dy, .offsets = offsets, .cols = cols, .dt = dt};

    st_workers_run(cpu->workers, bias_item, &job, of->count * st_run_count(ST_ITEM_COLUMNS, cols));
    return STRATA_OK;
}

static void scale_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_expert_cast *c = job->cast;
    const struct st_run r = st_run_at(index, job->step, job->elems);
    void *to = st_elem_mut(job->y, r.first * c->cols, c->to);
    const void *from = st_elem(job->x, r.first * c->cols, c->from);

    (void)worker;
    job->ops->scale(to, from, c->factor, r.count * c->cols, STRATA_F32);
}

strata_status st_cpu_experts_cast(struct st_device *dev, const struct st_expert_cast *cast, void *to, const void *from,
                                  const int32_t *offsets)
{
    struct routed_job job = {.cast = cast, .y = to, .x = from};
    const uint64_t rows = rows_of(&cast->of, offsets);
    const struct st_cast plain = {.to = cast->to,
                                  .from = cast->from,
                                  .rows = (uint32_t)rows,
                                  .cols = cast->cols,
                                  .to_stride = cast->cols,
                                  .from_stride = cast->cols};

    return cast->to == cast->from ? run(dev, &job, scale_item, rows, st_rows_per_item(cast->cols))
                                  : st_cpu_cast(dev, &plain, to, from);
}

/* --- gates --- */

static void gated_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);
    const uint32_t rows = (uint32_t)r.count;
    void *const y = st_elem_mut(job->y, r.first * job->cols, job->dt);
    const void *const gate_up = st_elem(job->x, 2 * r.first * job->cols, job->dt);

    (void)worker;
    if (job->gate->limit != 0.0f)
        job->ops->clamped_forward(job->gate, y, gate_up, rows, job->cols, job->dt);
    else
        job->ops->gated_forward(job->gate->activation, y, gate_up, rows, job->cols, job->dt);
}

strata_status st_cpu_experts_gated_forward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                           void *y, const void *gate_up, const int32_t *offsets, uint32_t ffn, strata_dtype dt)
{
    struct routed_job job = {.gate = gate, .y = y, .x = gate_up, .cols = ffn, .dt = dt};

    return run(dev, &job, gated_item, rows_of(of, offsets), st_rows_per_item(ffn));
}

static void gated_backward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);
    const uint64_t i = r.first * job->cols;
    const uint32_t rows = (uint32_t)r.count;
    void *const dgate_up = st_elem_mut(job->dx, 2 * i, job->dt), *const y =
                                                                     job->y != NULL ? st_elem_mut(job->y, i, job->dt) : NULL;
    const void *const dy = st_elem(job->d, i, job->dt), *const gate_up = st_elem(job->x, 2 * i, job->dt);

    (void)worker;
    if (job->gate->limit != 0.0f)
        job->ops->clamped_backward(job->gate, dgate_up, y, dy, gate_up, rows, job->cols, job->dt);
    else
        job->ops->gated_backward(job->gate->activation, dgate_up, y, dy, gate_up, rows, job->cols, job->dt);
}

strata_status st_cpu_experts_gated_backward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                            void *dgate_up, void *y, const void *dy, const void *gate_up, const int32_t *offsets,
                                            uint32_t ffn, strata_dtype dt)
{
    struct routed_job job = {.gate = gate, .dx = dgate_up, .y = y, .d = dy, .x = gate_up, .cols = ffn, .dt = dt};

    return run(dev, &job, gated_backward_item, rows_of(of, offsets), st_rows_per_item(ffn));
}

/* --- weighing --- */

/* A row's places rise with its experts. */
static void add_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_experts *of = job->of;
    const struct st_run r = st_run_at(index, job->step, job->elems);
    const int32_t first = job->offsets[of->first], end = job->offsets[of->first + of->count];

    (void)worker;
    for (uint64_t i = r.first * of->k; i < (r.first + r.count) * of->k; i++) {
        const int32_t place = job->places[i];

        if (place >= first && place < end)
            job->ops->weigh_row(job->sum + i / of->k * job->cols, st_elem(job->x, (uint64_t)(place - first) * job->cols, job->dt),
                                job->weights != NULL ? job->weights[job->order[place]] : 1.0f, true, job->cols, job->dt);
    }
}

strata_status st_cpu_experts_add(struct st_device *dev, const struct st_experts *of, float *sum, const void *y,
                                 const float *weights, const int32_t *order, const int32_t *places, const int32_t *offsets,
                                 uint32_t cols, strata_dtype dt)
{
    struct routed_job job = {.of = of,
                             .sum = sum,
                             .x = y,
                             .weights = weights,
                             .order = order,
                             .places = places,
                             .offsets = offsets,
                             .cols = cols,
                             .dt = dt};

    return run(dev, &job, add_item, of->rows, st_rows_per_item(cols));
}

static void add_backward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    for (uint64_t i = r.first; i < r.first + r.count; i++) {
        const uint64_t choice = (uint64_t)order_of(job)[i], row = choice / job->of->k;

        job->w_out[choice] =
            job->ops->weigh_row_backward(st_elem_mut(job->y, i * job->cols, job->dt), st_elem(job->d, row * job->cols, job->dt),
                                         st_elem(job->x, i * job->cols, job->dt), job->weights[choice], job->cols, job->dt);
    }
}

strata_status st_cpu_experts_add_backward(struct st_device *dev, const struct st_experts *of, void *dy, float *dweights,
                                          const void *d, const void *y, const float *weights, const int32_t *order,
                                          const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    struct routed_job job = {.of = of,
                             .y = dy,
                             .w_out = dweights,
                             .d = d,
                             .x = y,
                             .weights = weights,
                             .order = order,
                             .offsets = offsets,
                             .cols = cols,
                             .dt = dt};

    return run(dev, &job, add_backward_item, rows_of(of, offsets), st_rows_per_item(cols));
}

/* --- the shared expert --- */

static float gate_of(const struct routed_job *job, uint64_t row)
{
    float logit;

    if (job->logits == NULL)
        return 1.0f;
    job->ops->widen_rows(&logit, 1, st_elem(job->logits, row, job->dt), 1, 1, 1, job->dt);
    return job->ops->sigmoid_one(logit);
}

static void shared_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    for (uint64_t i = r.first; i < r.first + r.count; i++)
        job->ops->weigh_row(job->sum + i * job->cols, st_elem(job->x, i * job->cols, job->dt), gate_of(job, i), false, job->cols,
                            job->dt);
}

strata_status st_cpu_shared_forward(struct st_device *dev, float *sum, const void *y, const void *logits, uint32_t rows,
                                    uint32_t cols, strata_dtype dt)
{
    struct routed_job job = {.sum = sum, .x = y, .logits = logits, .cols = cols, .dt = dt};

    return run(dev, &job, shared_item, rows, st_rows_per_item(cols));
}

static void shared_backward_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    for (uint64_t i = r.first; i < r.first + r.count; i++) {
        const float gate = gate_of(job, i);
        float slope =
            job->ops->weigh_row_backward(st_elem_mut(job->y, i * job->cols, job->dt), st_elem(job->d, i * job->cols, job->dt),
                                         st_elem(job->x, i * job->cols, job->dt), gate, job->cols, job->dt);

        slope *= gate * (1.0f - gate);
        if (job->dlogits != NULL)
            job->ops->round_rows(st_elem_mut(job->dlogits, i, job->dt), 1, &slope, 1, 1, 1, job->dt);
    }
}

strata_status st_cpu_shared_backward(struct st_device *dev, void *dy, void *dlogits, const void *d, const void *y,
                                     const void *logits, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    struct routed_job job = {.y = dy, .dlogits = dlogits, .d = d, .x = y, .logits = logits, .cols = cols, .dt = dt};

    return run(dev, &job, shared_backward_item, rows, st_rows_per_item(cols));
}

/* --- clipping --- */

static void clip_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct routed_job *job = ctx;
    const struct st_run r = st_run_at(index, job->step, job->elems);

    (void)worker;
    for (uint64_t i = r.first * job->stride; i < (r.first + r.count) * job->stride; i += job->stride) {
        if (job->dx != NULL)
            job->ops->clip_backward(st_elem_mut(job->dx, i, job->dt), st_elem(job->x, i, job->dt), job->number, job->cols,
                                    job->dt);
        else
            job->ops->clip(st_elem_mut(job->y, i, job->dt), job->number, job->cols, job->dt);
    }
}

strata_status st_cpu_clip(struct st_device *dev, void *x, float limit, uint32_t rows, uint32_t cols, uint32_t stride,
                          strata_dtype dt)
{
    struct routed_job job = {.y = x, .number = limit, .cols = cols, .stride = stride, .dt = dt};

    return run(dev, &job, clip_item, rows, st_rows_per_item(cols));
}

strata_status st_cpu_clip_backward(struct st_device *dev, void *dx, const void *x, float limit, uint32_t rows, uint32_t cols,
                                   uint32_t stride, strata_dtype dt)
{
    struct routed_job job = {.dx = dx, .x = x, .number = limit, .cols = cols, .stride = stride, .dt = dt};

    return run(dev, &job, clip_item, rows, st_rows_per_item(cols));
}
