/* Every op once, on devices that differ in number of workers, table of kernels and addresses: the bytes they leave must
 * be the same. */
#include "tests/common/test.h"
#include "tests/offload/attention_reference.h"
#include "tests/offload/device_fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FFN = 140,
    SEQ = 150,
    BATCH = 2,
    ROWS = SEQ * BATCH,
    HEADS = 4,
    HEAD_DIM = 24,
    COLS = HEADS * HEAD_DIM,
    QKV = 3 * COLS,
    VOCAB = 301
};

struct tensors {
    void *x, *w, *b, *y, *z, *dx, *qkv, *dqkv, *wide, *weight, *grad, *keys, *values, *expanded, *dexpanded;
    float *angles, *master, *stats, *f0, *f1, *lse, *acc, *moment1, *moment2, *dtable, *logits, *xent;
    double *sums, *scalars; /* norm2, loss */
    uint64_t *counts;       /* nonfinite, overflowed */
    int32_t *tokens, *positions;
    int16_t *low_half;
    void *workspace;
};

static void create_tensors(struct df_device *d, struct tensors *t, strata_dtype dt, uint32_t workers,
                           const struct st_attention *at)
{
    t->x = df_random(d, ROWS * COLS, dt, 1, 1, 0.1);
    t->w = df_random(d, QKV * COLS, dt, 2, 1, 0);
    t->b = df_random(d, QKV, dt, 3, 1, 0);
    t->y = df_alloc(d, ROWS * COLS, dt);
    t->z = df_alloc(d, ROWS * COLS, dt);
    t->dx = df_random(d, ROWS * COLS, dt, 4, 1, 0);
    t->qkv = df_alloc(d, ROWS * QKV, dt);
    t->dqkv = df_alloc(d, ROWS * QKV, dt);
    t->wide = df_alloc(d, ROWS * QKV, dt);
    t->expanded = df_alloc(d, ROWS * QKV, dt);
    t->dexpanded = df_alloc(d, ROWS * QKV, dt);
    t->stats = df_alloc(d, ROWS * 2, STRATA_F32);
    t->f0 = df_alloc(d, QKV * COLS, STRATA_F32);
    t->f1 = df_alloc(d, QKV, STRATA_F32);
    t->lse = df_alloc(d, ROWS * HEADS, STRATA_F32);
    t->dtable = df_alloc(d, VOCAB * COLS, STRATA_F32);
    t->logits = df_alloc(d, ROWS * VOCAB, STRATA_F32);
    t->xent = df_alloc(d, ROWS * 3, STRATA_F32);
    t->weight = df_random(d, QKV * COLS * 4, dt, 5, 1, 0);
    t->grad = df_alloc(d, QKV * COLS * 4, dt);
    t->acc = df_random(d, QKV * COLS * 4, STRATA_F32, 6, 1, 0);
    t->moment1 = df_random(d, QKV * COLS * 4, STRATA_F32, 8, 0.1, 0);
    t->moment2 = df_random(d, QKV * COLS * 4, STRATA_F32, 9, 0.1, 0.1);
    t->low_half = df_alloc(d, QKV * COLS * 4, STRATA_BF16);
    t->sums = df_alloc(d, 128, STRATA_F32);
    t->scalars = df_alloc(d, 4, STRATA_F32);
    t->counts = df_alloc(d, 4, STRATA_F32);
    t->keys = df_alloc(d, SEQ * COLS, dt);
    t->values = df_alloc(d, SEQ * COLS, dt);
    t->angles = df_random(d, (SEQ + 1) * HEAD_DIM, STRATA_F32, 10, 1, 0);
    t->master = df_random(d, QKV * COLS * 4, STRATA_F32, 5, 1, 0);
    t->tokens = df_alloc(d, ROWS, STRATA_F32);
    for (uint32_t i = 0; i < ROWS; i++)
        t->tokens[i] = (int32_t)(df_bits(7, i) % VOCAB);
    t->positions = df_alloc(d, ROWS, STRATA_F32);
    ar_documents(t->positions, BATCH, SEQ, 3);
    t->workspace = df_alloc(d, d->tensors->attention_workspace(at, workers) / 4 + 1, STRATA_F32);
}

static void run_block(struct df_device *d, struct tensors *t, const struct st_attention *at)
{
    const strata_dtype dt = at->dt;
    const struct st_matmul fwd = {
        .m = ROWS, .n = QKV, .k = COLS, .lda = COLS, .ldb = QKV, .ldc = QKV, .bias = true, .ab_dtype = dt, .c_dtype = dt};
    const struct st_matmul dx = {
        .m = ROWS, .n = COLS, .k = QKV, .lda = QKV, .ldb = QKV, .ldc = COLS, .trans_b = true, .ab_dtype = dt, .c_dtype = dt};
    const struct st_matmul gelu = {.m = ROWS,
                                   .n = QKV,
                                   .k = COLS,
                                   .lda = COLS,
                                   .ldb = QKV,
                                   .ldc = QKV,
                                   .bias = true,
                                   .ab_dtype = dt,
                                   .c_dtype = dt,
                                   .epilogue = ST_EPILOGUE_GELU,
                                   .aux = t->qkv};
    const struct st_matmul gelu_dx = {.m = ROWS,
                                      .n = QKV,
                                      .k = COLS,
                                      .lda = COLS,
                                      .ldb = COLS,
                                      .ldc = QKV,
                                      .trans_b = true,
                                      .ab_dtype = dt,
                                      .c_dtype = dt,
                                      .epilogue = ST_EPILOGUE_GELU_BACKWARD,
                                      .aux = t->qkv};
    const struct st_matmul dw = {.m = COLS,
                                 .n = QKV,
                                 .k = ROWS,
                                 .lda = COLS,
                                 .ldb = QKV,
                                 .ldc = QKV,
                                 .trans_a = true,
                                 .accumulate = true,
                                 .ab_dtype = dt,
                                 .c_dtype = STRATA_F32};
    const struct st_dropout dropout = {.rows = ROWS,
                                       .cols = COLS,
                                       .seq = SEQ,
                                       .limit = UINT32_MAX / 4,
                                       .scale = 4.0f / 3.0f,
                                       .add = true,
                                       .from = dt};

    df_ok(d->ops->embed_gather(d->dev, t->x, t->weight, t->tokens, ROWS, COLS, 3, VOCAB - 3, dt));
    df_ok(d->tensors->embed_add_position(d->dev, t->x, t->w, NULL, ROWS, SEQ, COLS, dt));
    df_ok(d->tensors->layernorm_forward(d->dev, t->y, t->stats, t->x, t->w, t->b, NULL, NULL, ROWS, COLS, 1e-5f, dt));
    df_ok(d->tensors->matmul(d->dev, &fwd, t->qkv, t->y, t->w, t->b));
    df_ok(d->tensors->attention_forward(d->dev, at, t->z, t->lse, t->qkv, t->workspace));
    df_ok(d->tensors->attention_backward(d->dev, at, t->dqkv, t->dx, t->z, t->lse, t->qkv, t->workspace));
    df_ok(d->tensors->activation_forward(d->dev, ST_GELU_TANH, t->wide, t->qkv, ROWS * QKV, dt));
    df_ok(d->tensors->matmul(d->dev, &gelu, t->expanded, t->y, t->w, t->b));
    df_ok(d->tensors->matmul(d->dev, &gelu_dx, t->dexpanded, t->dx, t->w, NULL));
    df_ok(d->tensors->matmul(d->dev, &dw, t->f0, t->y, t->dqkv, NULL));
    df_ok(d->tensors->bias_backward(d->dev, t->f1, t->dqkv, ROWS, QKV, dt));
    df_ok(d->tensors->matmul(d->dev, &dx, t->y, t->dqkv, t->w, NULL));
    df_ok(d->tensors->layernorm_backward(d->dev, t->dx, t->f0, t->f1, t->y, dt, t->x, t->stats, t->w, t->dx, ROWS, COLS, dt));
    df_ok(d->tensors->add(d->dev, t->z, t->z, t->dx, ROWS * COLS, dt));
    df_ok(d->tensors->dropout(d->dev, &dropout, t->f0, t->z));
}

/* Attention of a window within documents, with soft-capping. */
static void run_bounded(struct df_device *d, struct tensors *t, const struct st_attention *plain)
{
    struct st_attention at = *plain;

    at.window = 70;
    at.scale = 0.2f;
    at.softcap = 3.0f;
    at.positions = t->positions;
    df_ok(d->tensors->attention_forward(d->dev, &at, t->z, t->lse, t->qkv, t->workspace));
    df_ok(d->tensors->attention_backward(d->dev, &at, t->dqkv, t->dx, t->z, t->lse, t->qkv, t->workspace));
}

/* Llama's ops over the same tensors: the sample's rows once more, then as a cache of one sequence. */
static void run_llama(struct df_device *d, struct tensors *t, const struct st_attention *at)
{
    const strata_dtype dt = at->dt;
    const struct st_rmsnorm norm = {.rows = ROWS, .heads = 1, .cols = COLS, .stride = COLS, .eps = 1e-5f, .dt = dt};
    struct st_rope rope = {.rows = ROWS,
                           .stride = QKV,
                           .heads = 2 * HEADS,
                           .head_dim = HEAD_DIM,
                           .rotary_dim = HEAD_DIM,
                           .seq = SEQ,
                           .first = 1,
                           .table = t->angles,
                           .dt = dt};

    df_ok(d->tensors->rmsnorm_forward(d->dev, &norm, t->y, t->stats, t->x, t->w, NULL, NULL));
    df_ok(d->tensors->rope(d->dev, &rope, t->qkv));
    rope.inverse = true;
    df_ok(d->tensors->rope(d->dev, &rope, t->dqkv));
    df_ok(d->tensors->gated_forward(d->dev, ST_SILU, t->z, t->qkv, ROWS / 2, COLS, dt));
    df_ok(d->tensors->gated_backward(d->dev, ST_SILU, t->wide, t->dexpanded, t->dexpanded, t->qkv, ROWS, FFN, dt));
    df_ok(d->tensors->attention_cached(d->dev, at, t->z, t->keys, t->values, t->qkv, 0, SEQ - 1, t->workspace));
    df_ok(d->tensors->attention_cached(d->dev, at, t->z, t->keys, t->values, t->qkv, SEQ - 1, 1, t->workspace));
    df_ok(d->tensors->rmsnorm_backward(d->dev, &norm, t->dx, t->f0, t->y, dt, t->x, t->stats, t->w, t->dx));
}

static void run_ends(struct df_device *d, struct tensors *t, strata_dtype dt)
{
    const struct st_matmul head = {.m = ROWS,
                                   .n = VOCAB,
                                   .k = COLS,
                                   .lda = COLS,
                                   .ldb = COLS,
                                   .ldc = VOCAB,
                                   .trans_b = true,
                                   .ab_dtype = dt,
                                   .c_dtype = STRATA_F32};
    const struct st_update_coef coef = {.grad_scale = 0.5f,
                                        .beta1 = 0.9f,
                                        .one_minus_beta1 = 0.1f,
                                        .beta2 = 0.99f,
                                        .one_minus_beta2 = 0.01f,
                                        .eps = 1e-8f,
                                        .step_size = 1e-2f,
                                        .vhat_scale = 3.0f,
                                        .decay = 0.999f};
    const struct st_moments moments = {.moment1 = t->moment1, .moment2 = t->moment2};

    df_ok(d->tensors->matmul(d->dev, &head, t->logits, t->z, t->weight, NULL));
    df_ok(d->tensors->xent_stats(d->dev, t->xent, t->logits, t->tokens, ROWS, VOCAB, 0, 0.0f));
    df_ok(d->tensors->xent_loss(d->dev, &t->scalars[1], t->xent, t->tokens, ROWS));
    df_ok(d->tensors->xent_grad(d->dev, t->wide, t->logits, t->xent, t->tokens, ROWS, QKV, 0, 0.01f, 0.0f, dt));
    df_ok(d->ops->embed_scatter(d->dev, t->dtable, t->dx, t->tokens, ROWS, COLS, 0, VOCAB, dt));
    df_ok(d->tensors->embed_position_backward(d->dev, t->dtable, t->dx, NULL, ROWS, SEQ, COLS, dt));
    df_ok(d->ops->grad_finish(d->dev, t->grad, dt, t->acc, QKV * COLS * 4, t->sums, &t->scalars[0], &t->counts[0]));
    df_ok(d->ops->update(d->dev, t->weight, dt == STRATA_BF16 ? t->low_half : NULL, dt == STRATA_F16 ? t->master : NULL, &moments,
                         t->grad, dt, QKV * COLS * 4, &coef, &t->counts[1]));
}

/* Everything before the workspace, whose content is nobody's. */
static unsigned char *run_all(strata_dtype dt, bool widen, uint32_t workers, const char *kernels, uint64_t shift, uint64_t *bytes)
{
    const struct st_attention at = {.batch = BATCH,
                                    .seq = SEQ,
                                    .heads = HEADS,
                                    .kv_heads = HEADS,
                                    .head_dim = HEAD_DIM,
                                    .qkv_stride = QKV,
                                    .out_stride = COLS,
                                    .dt = dt};
    struct df_device d;
    struct tensors t;
    unsigned char *out;

    df_open(&d, &(struct df_opts){.workers = workers, .kernels = kernels, .widen_bf16 = widen});
    d.used = shift;
    create_tensors(&d, &t, dt, workers, &at);
    for (uint32_t repeat = 0; repeat < 2; repeat++) {
        run_block(&d, &t, &at);
        run_bounded(&d, &t, &at);
        run_llama(&d, &t, &at);
        run_ends(&d, &t, dt);
    }
    assert_true(isfinite(t.scalars[0]) && isfinite(t.scalars[1]) && t.scalars[1] > 0); /* equal NaNs would prove nothing */
    *bytes = (uint64_t)((unsigned char *)t.workspace - (unsigned char *)t.x);
    out = malloc(*bytes);
    assert_non_null(out);
    memcpy(out, t.x, *bytes);
    df_close(&d);
    return out;
}

static void check_bits(strata_dtype dt, bool widen)
{
    static const uint32_t workers[] = {1, 2, 5};
    uint64_t want_bytes, bytes;
    unsigned char *want = run_all(dt, widen, 1, "scalar", 0, &want_bytes);

    for (size_t w = 0; w < sizeof(workers) / sizeof(workers[0]); w++) {
        for (size_t k = 0; st_kernels_usable(k) != NULL; k++) {
            const char *const kernels = st_kernels_usable(k)->name;
            unsigned char *got = run_all(dt, widen, workers[w], kernels, 64 * w + 8 * k, &bytes);

            assert_int_equal(bytes, want_bytes);
            for (uint64_t i = 0; i < bytes; i++)
                if (got[i] != want[i])
                    fail_msg("%u workers, kernels %s, dtype %d: byte %llu of %llu differs", workers[w], kernels, dt,
                             (unsigned long long)i, (unsigned long long)bytes);
            free(got);
        }
    }
    free(want);
}

TEST(fp32_bits)
{
    check_bits(STRATA_F32, false);
}

TEST(bf16_bits)
{
    check_bits(STRATA_BF16, false);
}

TEST(widened_bits)
{
    check_bits(STRATA_BF16, true);
}

TEST(fp16_bits)
{
    check_bits(STRATA_F16, false);
}
