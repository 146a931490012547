/* offload/device/cpu/device_cpu_attention.c - causal attention in blocks of query rows; a worker holds the scores of one block
 * of one head at a time, against the blocks of keys that its rows see.
 *
 * A head is one item and processes its blocks in order.  Matmuls are single-threaded library calls; between them the rows pass
 * through ops->attention_*.  The backward pass recomputes the scores from q, k and the kept log-sum-exp.  If the dtype is not
 * native, the head's slices are widened once and everything runs in fp32. */
#include "core/base/error.h"
#include "offload/device/cpu/device_cpu_internal.h"
#include <assert.h>
#include <stdatomic.h>
#include <string.h>

/* Query rows of a block.  Smaller blocks waste less above the diagonal (1 part in seq / 64), larger ones need fewer calls. */
#define BLOCK_ROWS      64u
#define WORKSPACE_ALIGN 64u

enum { MM_SCORES, MM_OUT, MM_DPROBS, MM_DV, MM_DK, MM_DQ, MM_COUNT };

/* Byte offsets inside a worker's scratch, and the size of the scratch. */
struct layout {
    uint64_t scores, dprobs, probs, dscores, dk, dv, delta, q, k, v, dout, bytes;
};

struct attention_job {
    struct cpu_device *cpu;
    const struct st_attention *at;
    struct layout layout;
    const int *id;          /* [blocks][MM_COUNT] */
    unsigned char *scratch; /* [workers][layout.bytes] */
    void *out, *dqkv;
    const void *qkv, *dout, *fwd_out;
    float *lse;
    const float *kept_lse;
    strata_dtype op_dt; /* of the matmuls' operands: dt, or F32 if they are widened */
    atomic_int rc;
};

/* A matrix [seq, head_dim] inside packed rows. */
struct slice {
    const void *p;
    uint32_t ld;
};

static uint64_t take(uint64_t *end, uint64_t bytes)
{
    const uint64_t offset = *end;

    *end += (bytes + WORKSPACE_ALIGN - 1) / WORKSPACE_ALIGN * WORKSPACE_ALIGN;
    return offset;
}

/* A block of query rows of one sample, and the keys that its rows see: whole blocks from the one with the first row's first key
 * to its own. */
struct block {
    uint32_t first, rows;     /* query rows of the sequence */
    uint32_t key_first, keys; /* the same of keys */
    uint32_t id;              /* of its matmuls: row of attention_job.id */
};

static uint32_t block_count(const struct st_attention *at)
{
    return (at->seq + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

static uint64_t id_bytes(const struct st_attention *at)
{
    uint64_t end = 0;

    take(&end, (uint64_t)block_count(at) * MM_COUNT * sizeof(int));
    return end;
}

/* The same size on every processor, since a plan must not depend on what the processor can do. */
static struct layout layout_of(const struct st_attention *at)
{
    const uint64_t rows = at->seq < BLOCK_ROWS ? at->seq : BLOCK_ROWS;
    const uint64_t block = rows * at->seq, head = (uint64_t)at->seq * at->head_dim;
    const bool narrow = at->dt != STRATA_F32;
    struct layout l = {0};

    l.scores = take(&l.bytes, 4 * block);
    l.dprobs = take(&l.bytes, 4 * block);
    l.probs = narrow ? take(&l.bytes, 2 * block) : l.scores;
    l.dscores = narrow ? take(&l.bytes, 2 * block) : l.dprobs;
    l.dk = take(&l.bytes, 4 * head);
    l.dv = take(&l.bytes, 4 * head);
    l.delta = take(&l.bytes, 4 * rows);
    l.q = take(&l.bytes, narrow ? 4 * head : 0);
    l.k = take(&l.bytes, narrow ? 4 * head : 0);
    l.v = take(&l.bytes, narrow ? 4 * head : 0);
    l.dout = take(&l.bytes, narrow ? 4 * head : 0);
    return l;
}

uint64_t st_cpu_attention_workspace(const struct st_attention *at, uint32_t workers)
{
    return id_bytes(at) + workers * layout_of(at).bytes;
}

/* --- shapes --- */

static struct st_matmul shape_of(const struct attention_job *job, uint32_t kind, uint32_t rows, uint32_t keys)
{
    const struct st_attention *at = job->at;
    const bool widened = job->op_dt != at->dt;
    const uint32_t d = at->head_dim, ld_qkv = widened ? d : at->qkv_stride, ld_dout = widened ? d : at->out_stride;
    struct st_matmul mm = {.ab_dtype = job->op_dt, .c_dtype = STRATA_F32};

    switch (kind) {
    case MM_SCORES: /* q k^T */
    case MM_DPROBS: /* dout v^T */
        mm.m = rows, mm.n = keys, mm.k = d;
        mm.lda = kind == MM_SCORES ? ld_qkv : ld_dout, mm.ldb = ld_qkv, mm.ldc = keys;
        mm.trans_b = true;
        break;
    case MM_OUT: /* p v */
    case MM_DQ:  /* ds k */
        mm.m = rows, mm.n = d, mm.k = keys;
        mm.lda = keys, mm.ldb = ld_qkv, mm.ldc = kind == MM_OUT ? at->out_stride : at->qkv_stride;
        mm.c_dtype = at->dt;
        break;
    default: /* MM_DV: p^T dout, MM_DK: ds^T q */
        mm.m = keys, mm.n = d, mm.k = rows;
        mm.lda = keys, mm.ldb = kind == MM_DV ? ld_dout : ld_qkv, mm.ldc = d;
        mm.trans_a = true;
        mm.accumulate = true;
        break;
    }
    return mm;
}

/* The first key that row `row` sees, if it is in a document that it is `position` rows into. */
static uint32_t first_key(const struct st_attention *at, uint32_t row, uint32_t position)
{
    const uint32_t reach = at->window > 0 && at->window <= position ? at->window - 1 : position;

    assert(reach <= row);
    return row - reach;
}

/* Blocks of fewer rows than the others begin with the window's first block, whatever their document, so that a shape has at most
 * as many kinds of blocks as blocks: blocks of 64 rows have their number of key blocks, and the short one has its own. */
static struct block block_at(const struct st_attention *at, uint64_t sample, uint32_t index)
{
    const struct st_run r = st_run_at(index, BLOCK_ROWS, at->seq);
    const uint32_t first = (uint32_t)r.first, rows = (uint32_t)r.count;
    const bool whole = rows == BLOCK_ROWS;
    const uint32_t position = whole && at->positions != NULL ? (uint32_t)at->positions[sample * at->seq + first] : first;
    const uint32_t key_block = first_key(at, first, position) / BLOCK_ROWS;

    return (struct block){.first = first,
                          .rows = rows,
                          .key_first = key_block * BLOCK_ROWS,
                          .keys = first + rows - key_block * BLOCK_ROWS,
                          .id = whole ? index - key_block : index};
}

static strata_status prepare_block(struct attention_job *job, int *id, const struct block *block, uint32_t first_kind,
                                   uint32_t end_kind)
{
    strata_status st = STRATA_OK;

    for (uint32_t kind = 0; kind < MM_COUNT && st == STRATA_OK; kind++) {
        const struct st_matmul mm = shape_of(job, kind, block->rows, block->keys);

        if (kind == MM_SCORES || (kind >= first_kind && kind < end_kind))
            st = st_cpu_prepare(job->cpu, &id[block->id * MM_COUNT + kind], &mm);
    }
    return st;
}

/* Every kind of block that positions may ask for. */
static strata_status prepare(struct attention_job *job, void *workspace, uint32_t first_kind, uint32_t end_kind)
{
    struct st_attention causal = *job->at;
    int *id = workspace;
    strata_status st = STRATA_OK;

    causal.positions = NULL;
    job->op_dt = st_cpu_widens(job->cpu, causal.dt) ? STRATA_F32 : causal.dt;
    job->layout = layout_of(&causal);
    job->id = id;
    job->scratch = (unsigned char *)workspace + id_bytes(&causal);
    for (uint32_t index = 0; index < block_count(&causal) && st == STRATA_OK; index++) {
        const struct block block = block_at(&causal, 0, index);

        st = prepare_block(job, id, &block, first_kind, end_kind);
    }
    return st;
}

/* --- one head --- */

static void multiply(struct attention_job *job, const struct block *block, uint32_t kind, uint32_t worker, void *c, const void *a,
                     const void *b)
{
    const int rc = st_matmul_run(job->cpu->matmul, job->id[block->id * MM_COUNT + kind], worker, c, a, b, NULL);
    int none = 0;

    if (rc != 0)
        atomic_compare_exchange_strong(&job->rc, &none, rc);
}

/* The slice that starts at element `first` of packed rows; copied into `wide` if operands are widened. */
static struct slice operand(const struct attention_job *job, const void *packed, uint64_t first, uint32_t stride, void *wide)
{
    const struct st_attention *at = job->at;
    const void *p = st_elem(packed, first, at->dt);

    if (job->op_dt == at->dt)
        return (struct slice){p, stride};
    job->cpu->ops->widen_rows(wide, at->head_dim, p, stride, at->seq, at->head_dim, at->dt);
    return (struct slice){wide, at->head_dim};
}

static const void *row_of(const struct attention_job *job, struct slice s, uint64_t row)
{
    return st_elem(s.p, row * s.ld, job->op_dt);
}

/* First element of head h (or of kv head h, from `column`) of sample b. */
static uint64_t head_at(const struct st_attention *at, uint64_t b, uint32_t stride, uint64_t column, uint64_t h)
{
    return b * at->seq * stride + column + h * at->head_dim;
}

/* *sink: the head's, if the shape has them. */
static struct st_attention_rows rows_of(const struct st_attention *at, uint64_t sample, const struct block *block,
                                        const float *sink)
{
    return (struct st_attention_rows){
        .rows = block->rows,
        .keys = block->keys,
        .first = block->first - block->key_first,
        .window = at->window,
        .positions = at->positions != NULL ? at->positions + sample * at->seq + block->first : NULL,
        .scale = st_cpu_attention_scale(at),
        .softcap = at->softcap,
        .sink = at->sinks != NULL ? sink : NULL,
    };
}

static void forward_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct attention_job *job = ctx;
    const struct st_attention *at = job->at;
    const struct layout *l = &job->layout;
    unsigned char *s = job->scratch + worker * l->bytes;
    const uint64_t b = index / at->heads, h = index % at->heads, kv = h / (at->heads / at->kv_heads);
    const uint64_t k_column = (uint64_t)at->heads * at->head_dim, v_column = k_column + (uint64_t)at->kv_heads * at->head_dim;
    const struct slice q = operand(job, job->qkv, head_at(at, b, at->qkv_stride, 0, h), at->qkv_stride, s + l->q);
    const struct slice k = operand(job, job->qkv, head_at(at, b, at->qkv_stride, k_column, kv), at->qkv_stride, s + l->k);
    const struct slice v = operand(job, job->qkv, head_at(at, b, at->qkv_stride, v_column, kv), at->qkv_stride, s + l->v);
    void *const probs = job->op_dt == STRATA_F32 ? s + l->scores : s + l->probs;
    float *const scores = (float *)(void *)(s + l->scores);
    const float sink = st_cpu_attention_sink(job->cpu->ops, at, h);

    for (uint32_t i = 0; i < block_count(at); i++) {
        const struct block block = block_at(at, b, i);
        const struct st_attention_rows rows = rows_of(at, b, &block, &sink);
        const uint64_t out_at = head_at(at, b, at->out_stride, 0, h) + (uint64_t)block.first * at->out_stride;

        multiply(job, &block, MM_SCORES, worker, scores, row_of(job, q, block.first), row_of(job, k, block.key_first));
        job->cpu->ops->attention_probs(&rows, probs, job->lse + index * at->seq + block.first, scores, job->op_dt);
        multiply(job, &block, MM_OUT, worker, st_elem_mut(job->out, out_at, at->dt), probs, row_of(job, v, block.key_first));
    }
}

strata_status st_cpu_attention_forward(struct st_device *dev, const struct st_attention *at, void *out, float *lse,
                                       const void *qkv, void *workspace)
{
    struct attention_job job = {.cpu = cpu_of(dev), .at = at, .out = out, .lse = lse, .qkv = qkv};
    strata_status st = prepare(&job, workspace, MM_OUT, MM_DPROBS);

    if (st != STRATA_OK)
        return st;
    st_workers_run(job.cpu->workers, forward_item, &job, (uint64_t)at->batch * at->heads);
    return st_cpu_matmul_status("matmul.run", atomic_load(&job.rc));
}

/* dq of head h, and its contribution to dk and dv of its kv head. */
static void backward_head(struct attention_job *job, uint32_t worker, uint64_t b, uint64_t h, struct slice k, struct slice v)
{
    const struct st_attention *at = job->at;
    const struct st_ops *ops = job->cpu->ops;
    const struct layout *l = &job->layout;
    unsigned char *s = job->scratch + worker * l->bytes;
    const uint64_t q_at = head_at(at, b, at->qkv_stride, 0, h), out_at = head_at(at, b, at->out_stride, 0, h);
    const struct slice q = operand(job, job->qkv, q_at, at->qkv_stride, s + l->q);
    const struct slice dout = operand(job, job->dout, out_at, at->out_stride, s + l->dout);
    void *const probs = job->op_dt == STRATA_F32 ? s + l->scores : s + l->probs;
    void *const dscores = job->op_dt == STRATA_F32 ? s + l->dprobs : s + l->dscores;
    float *const scores = (float *)(void *)(s + l->scores), *const dprobs = (float *)(void *)(s + l->dprobs);
    float *const delta = (float *)(void *)(s + l->delta);

    for (uint32_t i = 0; i < block_count(at); i++) {
        const struct block block = block_at(at, b, i);
        const struct st_attention_rows rows = rows_of(at, b, &block, NULL); /* lse has the sink */
        const uint64_t row_at = out_at + (uint64_t)block.first * at->out_stride,
                       sums_at = 4 * (uint64_t)block.key_first * at->head_dim;
        const void *q_rows = row_of(job, q, block.first), *dout_rows = row_of(job, dout, block.first);
        const float *lse = job->kept_lse + (b * at->heads + h) * at->seq + block.first;

        ops->dot_rows(delta, st_elem(job->dout, row_at, at->dt), at->out_stride, st_elem(job->fwd_out, row_at, at->dt),
                      at->out_stride, block.rows, at->head_dim, at->dt);
        multiply(job, &block, MM_SCORES, worker, scores, q_rows, row_of(job, k, block.key_first));
        multiply(job, &block, MM_DPROBS, worker, dprobs, dout_rows, row_of(job, v, block.key_first));
        ops->attention_grads(&rows, probs, dscores, scores, dprobs, lse, delta, job->op_dt);
        multiply(job, &block, MM_DV, worker, s + l->dv + sums_at, probs, dout_rows);
        multiply(job, &block, MM_DK, worker, s + l->dk + sums_at, dscores, q_rows);
        multiply(job, &block, MM_DQ, worker, st_elem_mut(job->dqkv, q_at + (uint64_t)block.first * at->qkv_stride, at->dt),
                 dscores, row_of(job, k, block.key_first));
    }
}

/* One kv head: processes its query heads in index order. */
static void backward_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct attention_job *job = ctx;
    const struct st_attention *at = job->at;
    const struct layout *l = &job->layout;
    unsigned char *s = job->scratch + worker * l->bytes;
    const uint64_t b = index / at->kv_heads, kv = index % at->kv_heads, group = at->heads / at->kv_heads;
    const uint64_t k_column = (uint64_t)at->heads * at->head_dim, v_column = k_column + (uint64_t)at->kv_heads * at->head_dim;
    const uint64_t k_at = head_at(at, b, at->qkv_stride, k_column, kv), v_at = head_at(at, b, at->qkv_stride, v_column, kv);
    const struct slice k = operand(job, job->qkv, k_at, at->qkv_stride, s + l->k);
    const struct slice v = operand(job, job->qkv, v_at, at->qkv_stride, s + l->v);
    const uint32_t d = at->head_dim;

    memset(s + l->dk, 0, 4 * (size_t)at->seq * d);
    memset(s + l->dv, 0, 4 * (size_t)at->seq * d);
    for (uint64_t h = kv * group; h < (kv + 1) * group; h++)
        backward_head(job, worker, b, h, k, v);
    job->cpu->ops->round_rows(st_elem_mut(job->dqkv, k_at, at->dt), at->qkv_stride, (const float *)(void *)(s + l->dk), d,
                              at->seq, d, at->dt);
    job->cpu->ops->round_rows(st_elem_mut(job->dqkv, v_at, at->dt), at->qkv_stride, (const float *)(void *)(s + l->dv), d,
                              at->seq, d, at->dt);
}

strata_status st_cpu_attention_backward(struct st_device *dev, const struct st_attention *at, void *dqkv, const void *dout,
                                        const void *out, const float *lse, const void *qkv, void *workspace)
{
    struct attention_job job = {
        .cpu = cpu_of(dev), .at = at, .dqkv = dqkv, .dout = dout, .fwd_out = out, .kept_lse = lse, .qkv = qkv};
    strata_status st = prepare(&job, workspace, MM_DPROBS, MM_COUNT);

    if (st != STRATA_OK)
        return st;
    st_workers_run(job.cpu->workers, backward_item, &job, (uint64_t)at->batch * at->kv_heads);
    return st_cpu_matmul_status("matmul.run", atomic_load(&job.rc));
}

/* --- sinks --- */

struct sinks_job {
    const struct st_ops *ops;
    const struct st_attention *at;
    float *dsinks;
    const void *dout, *out;
    const float *lse;
};

/* One head: exp(sink - lse) is what its sink takes of each row, and the key that it stands for has no value. */
static void sinks_item(void *ctx, uint64_t h, uint32_t worker)
{
    const struct sinks_job *job = ctx;
    const struct st_attention *at = job->at;
    const float sink = st_cpu_attention_sink(job->ops, at, h);
    float delta[BLOCK_ROWS], taken[BLOCK_ROWS];
    double sum = 0;

    (void)worker;
    for (uint64_t b = 0; b < at->batch; b++)
        for (uint32_t first = 0; first < at->seq; first += BLOCK_ROWS) {
            const uint32_t rows = at->seq - first < BLOCK_ROWS ? at->seq - first : BLOCK_ROWS;
            const uint64_t i = head_at(at, b, at->out_stride, 0, h) + (uint64_t)first * at->out_stride;
            const float *lse = job->lse + (b * at->heads + h) * at->seq + first;

            job->ops->dot_rows(delta, st_elem(job->dout, i, at->dt), at->out_stride, st_elem(job->out, i, at->dt), at->out_stride,
                               rows, at->head_dim, at->dt);
            for (uint32_t r = 0; r < rows; r++)
                taken[r] = sink - lse[r];
            job->ops->exp_f32(taken, taken, rows);
            for (uint32_t r = 0; r < rows; r++)
                sum -= (double)taken[r] * (double)delta[r];
        }
    job->dsinks[h] += (float)sum;
}

strata_status st_cpu_attention_sinks_backward(struct st_device *dev, const struct st_attention *at, float *dsinks,
                                              const void *dout, const void *out, const float *lse)
{
    struct sinks_job job = {cpu_of(dev)->ops, at, dsinks, dout, out, lse};

    st_workers_run(cpu_of(dev)->workers, sinks_item, &job, at->heads);
    return STRATA_OK;
}
