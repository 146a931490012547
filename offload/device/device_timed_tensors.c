/* device_timed_tensors.c - the ops of models, timed: each says its shape, and calls the inner device's. */
#include "offload/device/device_timed_internal.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- products --- */

/* C and aux are the arrays of C's dtype: of GELU_INPUT only aux need be written. */
static strata_status timed_matmul(struct st_device *dev, const struct st_matmul *mm, void *out, const void *a, const void *b,
                                  const void *bias)
{
    const bool two = mm->accumulate || mm->epilogue == ST_EPILOGUE_GELU || mm->epilogue == ST_EPILOGUE_GELU_BACKWARD;
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE,
                                               &(struct st_op_shape){.op = ST_DEVICE_MATMUL,
                                                                     .dt = mm->ab_dtype,
                                                                     .other = mm->c_dtype,
                                                                     .more.others = two,
                                                                     .more.params = mm->bias,
                                                                     .trans_a = mm->trans_a,
                                                                     .trans_b = mm->trans_b,
                                                                     .accumulate = mm->accumulate,
                                                                     .epilogue = (uint8_t)mm->epilogue,
                                                                     .rows = mm->m,
                                                                     .cols = mm->n,
                                                                     .depth = mm->k});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->matmul(c.inner, mm, out, a, b, bias) : c.st);
}

static strata_status timed_bias_backward(struct st_device *dev, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                         strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_BIAS_BACKWARD, .dt = dt, .rows = rows, .cols = cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->bias_backward(c.inner, dbias, dy, rows, cols, dt) : c.st);
}

/* --- norms --- */

static strata_status timed_layernorm_forward(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                             const void *bias, const void *addend, void *sum, uint32_t rows, uint32_t cols,
                                             float eps, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){
            .op = ST_DEVICE_LAYERNORM_FORWARD, .dt = dt, .more.values = addend != NULL ? 2 : 0, .rows = rows, .cols = cols});

    return st_timed_end(
        &c, c.st == STRATA_OK ? c.tensors->layernorm_forward(c.inner, y, stats, x, weight, bias, addend, sum, rows, cols, eps, dt)
                              : c.st);
}

static strata_status timed_layernorm_backward(struct st_device *dev, void *dx, float *dweight, float *dbias, const void *dy,
                                              strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                              const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE,
                                               &(struct st_op_shape){.op = ST_DEVICE_LAYERNORM_BACKWARD,
                                                                     .dt = dt,
                                                                     .other = dy_dt,
                                                                     .more.values = residual != NULL,
                                                                     .frozen = dweight == NULL,
                                                                     .rows = rows,
                                                                     .cols = cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->layernorm_backward(c.inner, dx, dweight, dbias, dy, dy_dt, x, stats,
                                                                              weight, residual, rows, cols, dt)
                                              : c.st);
}

static strata_status timed_rmsnorm_forward(struct st_device *dev, const struct st_rmsnorm *norm, void *y, float *stats,
                                           const void *x, const void *weight, const void *addend, void *sum)
{
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE,
                                               &(struct st_op_shape){.op = ST_DEVICE_RMSNORM_FORWARD,
                                                                     .dt = norm->dt,
                                                                     .more.values = addend != NULL ? 2 : 0,
                                                                     .rows = (uint64_t)norm->rows * norm->heads,
                                                                     .cols = norm->cols});

    return st_timed_end(&c,
                        c.st == STRATA_OK ? c.tensors->rmsnorm_forward(c.inner, norm, y, stats, x, weight, addend, sum) : c.st);
}

static strata_status timed_rmsnorm_backward(struct st_device *dev, const struct st_rmsnorm *norm, void *dx, float *dweight,
                                            const void *dy, strata_dtype dy_dt, const void *x, const float *stats,
                                            const void *weight, const void *residual)
{
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE,
                                               &(struct st_op_shape){.op = ST_DEVICE_RMSNORM_BACKWARD,
                                                                     .dt = norm->dt,
                                                                     .other = dy_dt,
                                                                     .more.values = residual != NULL,
                                                                     .frozen = dweight == NULL,
                                                                     .rows = (uint64_t)norm->rows * norm->heads,
                                                                     .cols = norm->cols});

    return st_timed_end(&c, c.st == STRATA_OK
                                ? c.tensors->rmsnorm_backward(c.inner, norm, dx, dweight, dy, dy_dt, x, stats, weight, residual)
                                : c.st);
}

/* --- elements --- */

static strata_status timed_rope(struct st_device *dev, const struct st_rope *rope, void *x)
{
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE,
                                               &(struct st_op_shape){.op = ST_DEVICE_ROPE,
                                                                     .dt = rope->dt,
                                                                     .rows = rope->rows,
                                                                     .cols = (uint64_t)rope->heads * rope->rotary_dim,
                                                                     .positions = least(rope->rows, rope->seq),
                                                                     .depth = rope->rotary_dim});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->rope(c.inner, rope, x) : c.st);
}

static strata_status timed_gated_forward(struct st_device *dev, enum st_activation activation, void *y, const void *gate_up,
                                         uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_GATED_FORWARD, .dt = dt, .rows = rows, .cols = ffn});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->gated_forward(c.inner, activation, y, gate_up, rows, ffn, dt) : c.st);
}

static strata_status timed_gated_backward(struct st_device *dev, enum st_activation activation, void *dgate_up, void *y,
                                          const void *dy, const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){.op = ST_DEVICE_GATED_BACKWARD, .dt = dt, .more.values = y != NULL, .rows = rows, .cols = ffn});

    return st_timed_end(
        &c, c.st == STRATA_OK ? c.tensors->gated_backward(c.inner, activation, dgate_up, y, dy, gate_up, rows, ffn, dt) : c.st);
}

static strata_status timed_activation_forward(struct st_device *dev, enum st_activation activation, void *y, const void *x,
                                              uint64_t elems, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_ACTIVATION_FORWARD, .dt = dt, .rows = 1, .cols = elems});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->activation_forward(c.inner, activation, y, x, elems, dt) : c.st);
}

static strata_status timed_activation_backward(struct st_device *dev, enum st_activation activation, void *dx, const void *dy,
                                               const void *x, uint64_t elems, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_ACTIVATION_BACKWARD, .dt = dt, .rows = 1, .cols = elems});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->activation_backward(c.inner, activation, dx, dy, x, elems, dt) : c.st);
}

static strata_status timed_cast(struct st_device *dev, const struct st_cast *cast, void *to, const void *from)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){.op = ST_DEVICE_CAST, .dt = cast->from, .other = cast->to, .rows = cast->rows, .cols = cast->cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->cast(c.inner, cast, to, from) : c.st);
}

static strata_status timed_dropout(struct st_device *dev, const struct st_dropout *d, float *to, const void *from)
{
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE,
                                               &(struct st_op_shape){.op = ST_DEVICE_DROPOUT,
                                                                     .dt = d->from,
                                                                     .other = STRATA_F32,
                                                                     .more.others = d->add,
                                                                     .rows = d->rows,
                                                                     .cols = d->cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->dropout(c.inner, d, to, from) : c.st);
}

static strata_status timed_thin(struct st_device *dev, const struct st_thin *t, float *out, void *to, const void *p,
                                const void *q)
{
    const bool rounds = to != NULL;
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE,
                                               &(struct st_op_shape){.op = ST_DEVICE_THIN,
                                                                     .dt = t->p,
                                                                     .other = rounds ? t->to : t->q,
                                                                     .more.others = rounds,
                                                                     .trans_a = t->trans_p,
                                                                     .trans_b = t->trans_q,
                                                                     .accumulate = t->add,
                                                                     .rows = t->rows,
                                                                     .cols = t->cols,
                                                                     .depth = t->k});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->thin(c.inner, t, out, to, p, q) : c.st);
}

static strata_status timed_add(struct st_device *dev, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_ADD, .dt = dt, .rows = 1, .cols = elems});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->add(c.inner, y, a, b, elems, dt) : c.st);
}

static strata_status timed_scale(struct st_device *dev, void *y, const void *x, float factor, uint64_t elems, strata_dtype dt)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_SCALE, .dt = dt, .rows = 1, .cols = elems});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->scale(c.inner, y, x, factor, elems, dt) : c.st);
}

static strata_status timed_nf4_widen(struct st_device *dev, void *y, const struct st_nf4_block *x, uint64_t elems,
                                     strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){
            .op = ST_DEVICE_NF4_WIDEN, .dt = dt, .rows = (elems + ST_NF4_ELEMS - 1) / ST_NF4_ELEMS, .cols = ST_NF4_ELEMS});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->nf4_widen(c.inner, y, x, elems, dt) : c.st);
}

/* --- attention --- */

/* Documents are not known here: each sequence counts as one. */
static struct st_op_shape attention_shape(enum st_device_op op, const struct st_attention *at, uint64_t first, uint64_t seq)
{
    return (struct st_op_shape){.op = op,
                                .dt = at->dt,
                                .heads = at->heads,
                                .kv_cols = (uint64_t)at->kv_heads * at->head_dim,
                                .rows = at->batch * seq,
                                .cols = (uint64_t)at->heads * at->head_dim,
                                .positions = at->window > 0 ? least(first + seq, at->window + seq - 1) : first + seq,
                                .depth = st_op_causal_depth(first, seq, at->window)};
}

static strata_status timed_attention_forward(struct st_device *dev, const struct st_attention *at, void *out, float *lse,
                                             const void *qkv, void *workspace)
{
    const struct st_op_shape s = attention_shape(ST_DEVICE_ATTENTION_FORWARD, at, 0, at->seq);
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE, &s);

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->attention_forward(c.inner, at, out, lse, qkv, workspace) : c.st);
}

static strata_status timed_attention_backward(struct st_device *dev, const struct st_attention *at, void *dqkv, const void *dout,
                                              const void *out, const float *lse, const void *qkv, void *workspace)
{
    const struct st_op_shape s = attention_shape(ST_DEVICE_ATTENTION_BACKWARD, at, 0, at->seq);
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE, &s);

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->attention_backward(c.inner, at, dqkv, dout, out, lse, qkv, workspace)
                                              : c.st);
}

static strata_status timed_attention_sinks_backward(struct st_device *dev, const struct st_attention *at, float *dsinks,
                                                    const void *dout, const void *out, const float *lse)
{
    const struct st_op_shape s = attention_shape(ST_DEVICE_ATTENTION_SINKS_BACKWARD, at, 0, at->seq);
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE, &s);

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->attention_sinks_backward(c.inner, at, dsinks, dout, out, lse) : c.st);
}

static strata_status timed_attention_cached(struct st_device *dev, const struct st_attention *at, void *out, void *keys,
                                            void *values, const void *qkv, uint32_t first, uint32_t rows, void *workspace)
{
    const struct st_op_shape s = attention_shape(ST_DEVICE_ATTENTION_CACHED, at, first, rows);
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE, &s);

    return st_timed_end(
        &c, c.st == STRATA_OK ? c.tensors->attention_cached(c.inner, at, out, keys, values, qkv, first, rows, workspace) : c.st);
}

/* --- experts --- */

/* The rows of a slice, were those of all experts equal: how many there are is not known here. */
static uint64_t rows_of(const struct st_experts *of)
{
    return (uint64_t)of->rows * of->k * of->count / of->experts;
}

/* The other experts' matrices are state_bytes: once read, written, or both. */
static struct st_op_shape expert_product_shape(const struct st_expert_matmul *mm)
{
    const bool matrix = mm->k == 0;
    const uint64_t rows = matrix ? mm->m : rows_of(&mm->of), depth = matrix ? rows_of(&mm->of) : mm->k;
    const uint64_t bytes = matrix ? rows * strata_dtype_bytes(mm->c_dtype) : depth * strata_dtype_bytes(mm->ab_dtype);

    return (struct st_op_shape){.op = ST_DEVICE_EXPERTS_MATMUL,
                                .dt = mm->ab_dtype,
                                .other = mm->c_dtype,
                                .more.others = mm->accumulate,
                                .more.params = mm->bias,
                                .trans_a = matrix,
                                .trans_b = mm->trans_b,
                                .accumulate = mm->accumulate,
                                .rows = rows,
                                .cols = mm->n,
                                .depth = (double)depth,
                                .state_bytes = (mm->of.count - 1) * bytes * mm->n / (matrix && mm->accumulate ? 1 : 2)};
}

static strata_status timed_route_choose(struct st_device *dev, const struct st_route *route, int32_t *ids, float *weights,
                                        float *probs, const void *logits)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){
            .op = ST_DEVICE_ROUTE_CHOOSE, .rows = route->rows, .cols = route->experts, .heads = route->k, .dt = route->dt});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->route_choose(c.inner, route, ids, weights, probs, logits) : c.st);
}

static strata_status timed_route_sort(struct st_device *dev, const struct st_route *route, int32_t *order, int32_t *places,
                                      int32_t *offsets, const int32_t *ids)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_ROUTE_SORT, .rows = route->rows, .heads = route->k});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->route_sort(c.inner, route, order, places, offsets, ids) : c.st);
}

static strata_status timed_route_totals(struct st_device *dev, const struct st_route *route, int64_t *counts, double *sums,
                                        const int32_t *ids, const float *probs)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){.op = ST_DEVICE_ROUTE_TOTALS, .rows = route->rows, .cols = route->experts, .heads = route->k});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->route_totals(c.inner, route, counts, sums, ids, probs) : c.st);
}

static strata_status timed_route_loss(struct st_device *dev, const struct st_route *route, double *loss, const int64_t *counts,
                                      const double *sums)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_ROUTE_LOSS, .rows = route->experts});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->route_loss(c.inner, route, loss, counts, sums) : c.st);
}

static strata_status timed_route_backward(struct st_device *dev, const struct st_route *route, void *dlogits,
                                          const float *dweights, const float *probs, const int32_t *ids, const float *weights,
                                          const int64_t *counts, float aux)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){
            .op = ST_DEVICE_ROUTE_BACKWARD, .rows = route->rows, .cols = route->experts, .heads = route->k, .dt = route->dt});

    return st_timed_end(&c, c.st == STRATA_OK
                                ? c.tensors->route_backward(c.inner, route, dlogits, dweights, probs, ids, weights, counts, aux)
                                : c.st);
}

static strata_status timed_experts_gather(struct st_device *dev, const struct st_experts *of, void *to, const void *x,
                                          const int32_t *order, const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE,
                       &(struct st_op_shape){.op = ST_DEVICE_EXPERTS_GATHER, .dt = dt, .rows = rows_of(of), .cols = cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->experts_gather(c.inner, of, to, x, order, offsets, cols, dt) : c.st);
}

static strata_status timed_experts_matmul(struct st_device *dev, const struct st_expert_matmul *mm, void *out, const void *a,
                                          const void *b, const void *bias, const int32_t *offsets)
{
    const struct st_op_shape s = expert_product_shape(mm);
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE, &s);

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->experts_matmul(c.inner, mm, out, a, b, bias, offsets) : c.st);
}

static strata_status timed_experts_cast(struct st_device *dev, const struct st_expert_cast *cast, void *to, const void *from,
                                        const int32_t *offsets)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){
            .op = ST_DEVICE_EXPERTS_CAST, .dt = cast->from, .other = cast->to, .rows = rows_of(&cast->of), .cols = cast->cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->experts_cast(c.inner, cast, to, from, offsets) : c.st);
}

static strata_status timed_experts_bias_backward(struct st_device *dev, const struct st_experts *of, float *dbias,
                                                 uint64_t stride, const void *dy, const int32_t *offsets, uint32_t cols,
                                                 strata_dtype dt)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE,
                       &(struct st_op_shape){.op = ST_DEVICE_EXPERTS_BIAS_BACKWARD, .dt = dt, .rows = rows_of(of), .cols = cols});

    return st_timed_end(
        &c, c.st == STRATA_OK ? c.tensors->experts_bias_backward(c.inner, of, dbias, stride, dy, offsets, cols, dt) : c.st);
}

static strata_status timed_experts_gated_forward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                                 void *y, const void *gate_up, const int32_t *offsets, uint32_t ffn,
                                                 strata_dtype dt)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE,
                       &(struct st_op_shape){.op = ST_DEVICE_EXPERTS_GATED_FORWARD, .dt = dt, .rows = rows_of(of), .cols = ffn});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->experts_gated_forward(c.inner, of, gate, y, gate_up, offsets, ffn, dt)
                                              : c.st);
}

static strata_status timed_experts_gated_backward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                                  void *dgate_up, void *y, const void *dy, const void *gate_up,
                                                  const int32_t *offsets, uint32_t ffn, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){
            .op = ST_DEVICE_EXPERTS_GATED_BACKWARD, .dt = dt, .more.values = y != NULL, .rows = rows_of(of), .cols = ffn});

    return st_timed_end(&c, c.st == STRATA_OK
                                ? c.tensors->experts_gated_backward(c.inner, of, gate, dgate_up, y, dy, gate_up, offsets, ffn, dt)
                                : c.st);
}

static strata_status timed_experts_add(struct st_device *dev, const struct st_experts *of, float *sum, const void *y,
                                       const float *weights, const int32_t *order, const int32_t *places, const int32_t *offsets,
                                       uint32_t cols, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){
            .op = ST_DEVICE_EXPERTS_ADD, .dt = dt, .rows = rows_of(of), .cols = cols, .positions = least(of->rows, rows_of(of))});

    return st_timed_end(
        &c, c.st == STRATA_OK ? c.tensors->experts_add(c.inner, of, sum, y, weights, order, places, offsets, cols, dt) : c.st);
}

static strata_status timed_experts_add_backward(struct st_device *dev, const struct st_experts *of, void *dy, float *dweights,
                                                const void *d, const void *y, const float *weights, const int32_t *order,
                                                const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(dev, ST_QUEUE_COMPUTE,
                                               &(struct st_op_shape){.op = ST_DEVICE_EXPERTS_ADD_BACKWARD,
                                                                     .dt = dt,
                                                                     .rows = rows_of(of),
                                                                     .cols = cols,
                                                                     .positions = least(of->rows, rows_of(of))});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->experts_add_backward(c.inner, of, dy, dweights, d, y, weights, order,
                                                                                offsets, cols, dt)
                                              : c.st);
}

static strata_status timed_shared_forward(struct st_device *dev, float *sum, const void *y, const void *logits, uint32_t rows,
                                          uint32_t cols, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_SHARED_FORWARD, .dt = dt, .rows = rows, .cols = cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->shared_forward(c.inner, sum, y, logits, rows, cols, dt) : c.st);
}

static strata_status timed_shared_backward(struct st_device *dev, void *dy, void *dlogits, const void *d, const void *y,
                                           const void *logits, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_SHARED_BACKWARD, .dt = dt, .rows = rows, .cols = cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->shared_backward(c.inner, dy, dlogits, d, y, logits, rows, cols, dt)
                                              : c.st);
}

static strata_status timed_clip(struct st_device *dev, void *x, float limit, uint32_t rows, uint32_t cols, uint32_t stride,
                                strata_dtype dt)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_CLIP, .dt = dt, .rows = rows, .cols = cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->clip(c.inner, x, limit, rows, cols, stride, dt) : c.st);
}

static strata_status timed_clip_backward(struct st_device *dev, void *dx, const void *x, float limit, uint32_t rows,
                                         uint32_t cols, uint32_t stride, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_CLIP_BACKWARD, .dt = dt, .rows = rows, .cols = cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->clip_backward(c.inner, dx, x, limit, rows, cols, stride, dt) : c.st);
}

/* --- positions and loss --- */

static strata_status timed_embed_add_position(struct st_device *dev, void *x, const void *pos, const int32_t *positions,
                                              uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){
            .op = ST_DEVICE_EMBED_ADD_POSITION, .dt = dt, .rows = rows, .cols = cols, .positions = least(rows, seq)});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->embed_add_position(c.inner, x, pos, positions, rows, seq, cols, dt)
                                              : c.st);
}

static strata_status timed_embed_position_backward(struct st_device *dev, float *dpos, const void *dx, const int32_t *positions,
                                                   uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE,
        &(struct st_op_shape){
            .op = ST_DEVICE_EMBED_POSITION_BACKWARD, .dt = dt, .rows = rows, .cols = cols, .positions = least(rows, seq)});

    return st_timed_end(
        &c, c.st == STRATA_OK ? c.tensors->embed_position_backward(c.inner, dpos, dx, positions, rows, seq, cols, dt) : c.st);
}

static strata_status timed_xent_stats(struct st_device *dev, float *stats, const float *logits, const int32_t *targets,
                                      uint32_t rows, uint32_t cols, uint32_t first, float softcap)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_XENT_STATS, .rows = rows, .cols = cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->xent_stats(c.inner, stats, logits, targets, rows, cols, first, softcap)
                                              : c.st);
}

static strata_status timed_xent_grad(struct st_device *dev, void *dlogits, const float *logits, const float *stats,
                                     const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first, float scale,
                                     float softcap, strata_dtype dt)
{
    const struct timed_call c = st_timed_begin(
        dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_XENT_GRAD, .dt = dt, .rows = rows, .cols = cols});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->xent_grad(c.inner, dlogits, logits, stats, targets, rows, cols, first,
                                                                     scale, softcap, dt)
                                              : c.st);
}

static strata_status timed_xent_loss(struct st_device *dev, double *loss_sum, const float *stats, const int32_t *targets,
                                     uint32_t rows)
{
    const struct timed_call c =
        st_timed_begin(dev, ST_QUEUE_COMPUTE, &(struct st_op_shape){.op = ST_DEVICE_XENT_LOSS, .rows = rows});

    return st_timed_end(&c, c.st == STRATA_OK ? c.tensors->xent_loss(c.inner, loss_sum, stats, targets, rows) : c.st);
}

#define ST_X(id, member, ...) .member = timed_##member,
const struct st_tensor_ops st_timed_tensor_ops = {ST_TENSOR_OPS(ST_X)};
#undef ST_X
