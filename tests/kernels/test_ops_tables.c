/* Every op of every table against the scalar table by memcmp: short rows, primes, all dtypes, all alignments, memory
 * that ends where the data do. */
#include "kernels/ops/ops.h"
#include "tests/common/test.h"
#include "tests/kernels/kernel_fixture.h"
#include <math.h>
#include <string.h>

#define ROWS      5u
#define COLS_MAX  1031u
#define IN_COUNT  4u
#define OUT_COUNT 3u
#define OUT_ROWS  (ROWS + 2)

/* What a case may use: inputs of the tensor's dtype and of fp32, outputs that start as some numbers.  All [ROWS, cols] or more.
 */
struct call {
    const struct st_ops *ops;
    uint32_t cols;
    strata_dtype dt;
    const void *x[IN_COUNT];  /* dt */
    const float *f[IN_COUNT]; /* f32, the same numbers */
    void *out[OUT_COUNT];     /* room for OUT_ROWS rows of fp32 */
    const float *stats;       /* [ROWS][2] */
    const int32_t *tokens;    /* [ROWS], in and out of the range, one negative */
};

typedef void case_fn(const struct call *c);

static const enum st_activation activations[] = {ST_GELU_TANH, ST_GELU_ERF, ST_SILU};

static void run_activation_forward(const struct call *c)
{
    for (uint32_t i = 0; i < 3; i++)
        c->ops->activation_forward(activations[i], c->out[i], c->x[0], (size_t)ROWS * c->cols, c->dt);
}

static void run_activation_backward(const struct call *c)
{
    for (uint32_t i = 0; i < 3; i++)
        c->ops->activation_backward(activations[i], c->out[i], c->x[0], c->x[1], (size_t)ROWS * c->cols, c->dt);
}

static void run_add(const struct call *c)
{
    c->ops->add(c->out[0], c->x[0], c->x[1], (size_t)ROWS * c->cols, c->dt);
}

static void run_scale(const struct call *c)
{
    c->ops->scale(c->out[0], c->x[0], 1.7f, (size_t)ROWS * c->cols, c->dt);
}

static void run_round(const struct call *c)
{
    c->ops->round_rows(c->out[0], c->cols, c->f[0], c->cols, ROWS, c->cols, c->dt);
    c->ops->widen_rows(c->out[1], c->cols, c->x[1], c->cols, ROWS, c->cols, c->dt);
}

/* From the last of three rows of a sequence on. */
static void run_dropout(const struct call *c)
{
    struct st_dropout d = {.rows = ROWS,
                           .cols = c->cols,
                           .first = 2,
                           .seq = 3,
                           .sequence = UINT32_MAX,
                           .key = 77,
                           .limit = UINT32_MAX / 3,
                           .scale = 1.5f,
                           .from = c->dt};

    c->ops->dropout_rows(&d, c->out[0], c->x[0], 0, ROWS);
    d.add = true;
    c->ops->dropout_rows(&d, c->out[1], c->x[1], 1, ROWS - 1);
}

static void run_dot(const struct call *c)
{
    c->ops->dot_rows(c->out[0], c->x[0], c->cols, c->x[1], c->cols, ROWS, c->cols, c->dt);
}

/* Few columns of a Q that is stored transposed; few k, to rounded rows. */
static void run_thin(const struct call *c)
{
    const uint32_t few = c->cols < 3 ? c->cols : 3;
    struct st_thin t = {.rows = ROWS,
                        .cols = few,
                        .k = c->cols,
                        .ldp = c->cols,
                        .ldq = c->cols,
                        .ldc = few,
                        .trans_q = true,
                        .scale = 1.7f,
                        .p = c->dt,
                        .q = STRATA_F32};

    c->ops->thin(&t, c->out[0], NULL, c->x[0], c->f[1]);
    t = (struct st_thin){.rows = few,
                         .cols = c->cols,
                         .k = ROWS,
                         .ldp = c->cols,
                         .ldq = c->cols,
                         .ldc = c->cols,
                         .ld_to = c->cols,
                         .trans_p = true,
                         .add = true,
                         .scale = 1,
                         .p = STRATA_F32,
                         .q = STRATA_F32,
                         .to = c->dt};
    c->ops->thin(&t, c->out[1], c->out[2], c->f[2], c->f[3]);
}

/* A P that is stored transposed. */
static void run_thin_sums(const struct call *c)
{
    const uint32_t few = c->cols < 3 ? c->cols : 3;
    const struct st_thin t = {.rows = c->cols,
                              .cols = few,
                              .k = ROWS,
                              .ldp = c->cols,
                              .ldq = c->cols,
                              .ldc = few,
                              .trans_p = true,
                              .add = true,
                              .scale = 1,
                              .p = c->dt,
                              .q = c->dt};

    c->ops->thin(&t, c->out[0], NULL, c->x[2], c->x[3]);
}

static void run_norm(const struct call *c)
{
    float *stats = c->out[1];

    c->ops->norm_forward(c->out[0], stats, c->x[0], c->x[1], c->x[2], ROWS, c->cols, 1e-5f, c->dt);
    c->ops->norm_backward_rows(c->out[2], c->x[3], c->dt, c->x[0], stats, c->x[1], c->x[2], ROWS, c->cols, c->dt);
}

static void run_norm_fp32_gradient(const struct call *c)
{
    c->ops->norm_backward_rows(c->out[0], c->f[3], STRATA_F32, c->x[0], c->stats, c->x[1], NULL, ROWS, c->cols, c->dt);
    c->ops->norm_backward_columns(c->out[1], c->out[2], c->f[3], STRATA_F32, c->x[0], c->cols, c->stats, ROWS, c->cols, c->dt);
}

static void run_norm_frozen(const struct call *c)
{
    c->ops->norm_backward_columns(c->out[0], NULL, c->x[3], c->dt, c->x[0], c->cols, c->stats, ROWS, c->cols, c->dt);
    c->ops->norm_backward_columns(NULL, c->out[1], c->x[3], c->dt, c->x[0], c->cols, c->stats, ROWS, c->cols, c->dt);
}

/* Whole rows, without an offset and with one. */
static void run_rms(const struct call *c)
{
    struct st_rmsnorm norm = {.rows = ROWS, .heads = 1, .cols = c->cols, .stride = c->cols, .eps = 1e-5f, .dt = c->dt};
    float *stats = c->out[1];

    c->ops->rms_forward(&norm, c->out[0], stats, c->x[0], c->x[1], ROWS);
    norm.offset = 1.0f;
    c->ops->rms_backward_rows(&norm, c->out[2], c->x[3], c->dt, c->x[0], stats, c->x[1], c->x[2], ROWS);
}

static void run_rms_gradients(const struct call *c)
{
    const struct st_rmsnorm norm = {.rows = ROWS, .heads = 1, .cols = c->cols, .stride = c->cols, .eps = 1e-5f, .dt = c->dt};

    c->ops->rms_backward_rows(&norm, c->out[0], c->f[3], STRATA_F32, c->x[0], c->stats, c->x[1], NULL, ROWS);
    c->ops->rms_backward_columns(&norm, c->out[1], c->f[3], STRATA_F32, c->x[0], c->stats, c->cols);
    c->ops->rms_backward_columns(&norm, c->out[2], c->x[3], c->dt, c->x[0], c->stats, c->cols);
}

/* Two heads at the start of a longer row; what is past them stays. */
static void run_rms_heads(const struct call *c)
{
    const struct st_rmsnorm norm = {.rows = ROWS,
                                    .heads = c->cols < 2 ? 1 : 2,
                                    .cols = (c->cols + 2) / 3,
                                    .stride = c->cols,
                                    .eps = 1e-5f,
                                    .offset = 1.0f,
                                    .dt = c->dt};

    c->ops->rms_forward(&norm, c->out[0], c->out[1], c->x[0], c->x[1], ROWS);
    c->ops->rms_backward_rows(&norm, c->out[2], c->x[3], c->dt, c->x[0], c->stats, c->x[1], c->x[2], ROWS);
    c->ops->rms_backward_columns(&norm, (float *)c->out[1] + 2 * ROWS, c->x[3], c->dt, c->x[0], c->stats, norm.cols);
}

static void run_gated(const struct call *c)
{
    const enum st_activation gate = activations[c->cols % 3];

    c->ops->gated_forward(gate, c->out[0], c->x[0], 2, c->cols, c->dt);
    c->ops->gated_backward(gate, c->out[1], NULL, c->x[1], c->x[0], 2, c->cols, c->dt);
    c->ops->gated_backward(gate, c->out[1], c->out[2], c->x[1], c->x[0], 2, c->cols, c->dt);
    assert_memory_equal(c->out[2], c->out[0], (size_t)2 * c->cols * strata_dtype_bytes(c->dt));
}

/* Gradients over gate and up, y over dy. */
static void run_gated_in_place(const struct call *c)
{
    const size_t bytes = (size_t)2 * c->cols * strata_dtype_bytes(c->dt);

    memcpy(c->out[0], c->x[0], 2 * bytes);
    memcpy(c->out[1], c->x[1], bytes);
    c->ops->gated_backward(activations[c->cols % 3], c->out[0], c->out[1], c->out[1], c->out[0], 2, c->cols, c->dt);
}

/* Rows 2 and on of positions 3, 1, 2, 3, 1 of the table, then of a document's; up to three heads of an even size, of which at
 * first all is rotated, then as little as a pair. */
static void run_rope(const struct call *c)
{
    static const int32_t positions[2 + ROWS] = {0, 1, 2, 3, 0, 1, 0};
    const uint32_t heads = c->cols < 6 ? 1 : 3, head_dim = c->cols / heads / 2 * 2;
    struct st_rope rope = {.rows = 2 + ROWS,
                           .stride = c->cols,
                           .heads = heads,
                           .head_dim = head_dim,
                           .rotary_dim = head_dim,
                           .seq = 3,
                           .first = 1,
                           .table = c->f[1],
                           .dt = c->dt};

    for (uint32_t i = 0; i < 3; i++) {
        const size_t bytes = c->cols * strata_dtype_bytes(c->dt);

        rope.inverse = i == 1;
        rope.positions = i == 2 ? positions : NULL;
        rope.rotary_dim = i == 2 ? head_dim / 4 * 2 : head_dim;
        memcpy((char *)c->out[i] + 2 * bytes, c->x[0], ROWS * bytes);
        c->ops->rope_rows(&rope, c->out[i], 2, ROWS);
    }
}

/* Many keys of a small head, then few of a large one. */
static void run_attention_row(const struct call *c)
{
    c->ops->attention_row(c->out[0], c->out[1], c->x[0], c->x[1], c->x[2], ROWS, c->cols, ROWS, 0.3f, 0.0f, -INFINITY, c->dt);
    c->ops->attention_row(c->out[2], c->out[1], c->x[0], c->x[1], c->x[2], c->cols, ROWS, c->cols, 0.1f, 2.0f, 1.0f, c->dt);
}

/* Experts are columns.  Gradients take what the choice gave. */
static void route(const struct call *c, bool after)
{
    static const int32_t targets[ROWS] = {3, STRATA_TARGET_PADDING, -1};
    const struct st_route route = {.rows = ROWS,
                                   .experts = c->cols,
                                   .k = c->cols < 4 ? c->cols : 4,
                                   .divided = !after,
                                   .after = after,
                                   .round = c->cols % 2 == 0,
                                   .dt = c->dt,
                                   .targets = targets};
    static int64_t counts[COLS_MAX];
    int32_t *const ids = c->out[1];
    float *const weights = (float *)c->out[1] + ROWS * route.k;

    for (uint32_t e = 0; e < c->cols; e++)
        counts[e] = kf_bits(3, e) % 1000;
    c->ops->route_rows(&route, ids, weights, c->out[0], c->x[0], 0, ROWS);
    c->ops->route_backward_rows(&route, c->out[2], c->f[1], c->out[0], ids, weights, after ? counts : NULL, 3.0f, 0, ROWS);
}

static void run_route(const struct call *c)
{
    route(c, false);
}

static void run_route_after(const struct call *c)
{
    route(c, true);
}

static void run_weighed(const struct call *c)
{
    const size_t elems = (size_t)ROWS * c->cols;
    float *const numbers = (float *)c->out[0] + elems;

    c->ops->weigh_row(c->out[0], c->x[0], 0.3f, false, elems, c->dt);
    c->ops->weigh_row(c->out[0], c->x[1], -1.7f, true, elems, c->dt);
    numbers[0] = c->ops->weigh_row_backward(c->out[1], c->x[2], c->x[3], 0.6f, elems, c->dt);
    numbers[1] = c->ops->sigmoid_one(c->f[0][0]);
}

static void run_clamped(const struct call *c)
{
    const struct st_gate gate = {.alpha = 1.702f, .limit = 2.0f};
    const uint32_t rows = 2;

    c->ops->clamped_forward(&gate, c->out[0], c->x[0], rows, c->cols, c->dt);
    c->ops->clamped_backward(&gate, c->out[1], c->out[2], c->x[1], c->x[0], rows, c->cols, c->dt);
}

static void run_clip(const struct call *c)
{
    const size_t elems = (size_t)ROWS * c->cols, bytes = elems * strata_dtype_bytes(c->dt);

    memcpy(c->out[0], c->x[0], bytes);
    memcpy(c->out[1], c->x[1], bytes);
    c->ops->clip(c->out[0], 1.3f, elems, c->dt);
    c->ops->clip_backward(c->out[1], c->out[0], 1.3f, elems, c->dt);
}

static void run_columns(const struct call *c)
{
    c->ops->norm_backward_columns(c->out[0], c->out[1], c->x[3], c->dt, c->x[0], c->cols, c->stats, ROWS, c->cols, c->dt);
    c->ops->sum_columns(c->out[2], c->x[2], c->cols, ROWS, c->cols, c->dt);
}

static void run_positions(const struct call *c)
{
    static const int32_t positions[1 + ROWS] = {4, 0, 1, 2, 0, 3};

    for (uint32_t i = 0; i < 3; i += 2) {
        memcpy(c->out[i], c->x[1], (size_t)ROWS * c->cols * strata_dtype_bytes(c->dt));
        c->ops->add_position_rows(c->out[i], c->x[0], i == 2 ? positions : NULL, 1, ROWS, 3, c->cols, c->dt);
    }
    c->ops->position_backward_rows(c->out[1], c->x[2], 1, 1, 2, 2, c->cols, c->dt);
}

static void run_scatter(const struct call *c)
{
    const int32_t tokens[ROWS] = {3, 1, 3, 9, 0};

    c->ops->scatter_columns(c->out[0], c->x[0], c->cols, tokens, ROWS, c->cols, 1, 3, c->dt);
}

/* The last rows of causal attention; with `bounded` also a window, documents and soft-capping. */
static struct st_attention_rows last_rows(const struct call *c, bool bounded)
{
    static const int32_t positions[ROWS] = {1000, 7, 0, 40, 41};
    static const float sink = 0.7f;
    struct st_attention_rows at = {.rows = ROWS, .keys = c->cols, .first = c->cols > ROWS ? c->cols - ROWS : 0, .scale = 0.3f};

    if (bounded) {
        at.window = 1 + c->cols / 2;
        at.positions = positions;
        at.softcap = 1.5f;
        at.sink = &sink;
    }
    return at;
}

static void run_probs(const struct call *c)
{
    const struct st_attention_rows plain = last_rows(c, false);

    memcpy(c->out[2], c->f[0], (size_t)ROWS * c->cols * sizeof(float));
    c->ops->attention_probs(&plain, c->out[0], c->out[1], c->out[2], c->dt);
}

static void run_bounded_probs(const struct call *c)
{
    const struct st_attention_rows bounded = last_rows(c, true);

    memcpy(c->out[2], c->f[0], (size_t)ROWS * c->cols * sizeof(float));
    c->ops->attention_probs(&bounded, c->out[0], c->out[1], c->out[2], c->dt);
}

static void run_grads(const struct call *c)
{
    const struct st_attention_rows plain = last_rows(c, false);

    c->ops->attention_grads(&plain, c->out[0], c->out[1], c->f[0], c->f[1], c->f[2], c->f[3], c->dt);
}

static void run_bounded_grads(const struct call *c)
{
    const struct st_attention_rows bounded = last_rows(c, true);

    c->ops->attention_grads(&bounded, c->out[0], c->out[1], c->f[0], c->f[1], c->f[2], c->f[3], c->dt);
}

static void run_xent(const struct call *c)
{
    float *stats = c->out[0];

    const float softcap = c->cols % 2 == 0 ? 3.0f : 0.0f;

    c->ops->xent_stats(stats, c->f[0], c->tokens, ROWS, c->cols, 0, softcap);
    c->ops->xent_stats(stats, c->f[1], c->tokens, ROWS, c->cols, c->cols, softcap);
    *(double *)c->out[1] = c->ops->xent_loss(stats, c->tokens, ROWS);
    c->ops->xent_grad(c->out[2], c->f[0], stats, c->tokens, ROWS, c->cols, 0, 0.125f, softcap, c->dt);
}

static void run_math(const struct call *c)
{
    double *logs = c->out[1];

    c->ops->exp_f32(c->out[0], c->f[0], (size_t)ROWS * c->cols);
    c->ops->tanh_f32(c->out[2], c->f[0], (size_t)ROWS * c->cols);
    logs[0] = c->ops->log_f64(1.0 + (double)c->f[0][0] * (double)c->f[0][0]);
}

static const struct {
    const char *name;
    case_fn *run;
} cases[] = {
    {"activation_forward", run_activation_forward},
    {"activation_backward", run_activation_backward},
    {"add", run_add},
    {"scale", run_scale},
    {"round_rows, widen_rows", run_round},
    {"dropout_rows", run_dropout},
    {"dot_rows", run_dot},
    {"thin", run_thin},
    {"thin, sums", run_thin_sums},
    {"norm", run_norm},
    {"norm, fp32 gradient", run_norm_fp32_gradient},
    {"norm, frozen parameters", run_norm_frozen},
    {"rms", run_rms},
    {"rms, gradients", run_rms_gradients},
    {"rms, heads", run_rms_heads},
    {"gated", run_gated},
    {"gated, in place", run_gated_in_place},
    {"rope_rows", run_rope},
    {"attention_row", run_attention_row},
    {"route", run_route},
    {"route, after the choice", run_route_after},
    {"weighed rows", run_weighed},
    {"clamped", run_clamped},
    {"clip", run_clip},
    {"columns", run_columns},
    {"positions", run_positions},
    {"scatter_columns", run_scatter},
    {"attention_probs", run_probs},
    {"attention_grads", run_grads},
    {"attention_probs, bounded", run_bounded_probs},
    {"attention_grads, bounded", run_bounded_grads},
    {"xent", run_xent},
    {"exp, tanh, log", run_math},
};

struct fixture {
    struct kf_array in_x[IN_COUNT], in_f[IN_COUNT], want[OUT_COUNT], got[OUT_COUNT];
};

static void fixture_create(struct fixture *f)
{
    for (uint32_t i = 0; i < IN_COUNT; i++) {
        kf_array_create(&f->in_x[i], 4 * ROWS * COLS_MAX);
        kf_array_create(&f->in_f[i], 4 * ROWS * COLS_MAX);
    }
    for (uint32_t i = 0; i < OUT_COUNT; i++) {
        kf_array_create(&f->want[i], 4 * OUT_ROWS * COLS_MAX + 64);
        kf_array_create(&f->got[i], 4 * OUT_ROWS * COLS_MAX + 64);
    }
}

static void fixture_destroy(struct fixture *f)
{
    for (uint32_t i = 0; i < IN_COUNT; i++) {
        kf_array_destroy(&f->in_x[i]);
        kf_array_destroy(&f->in_f[i]);
    }
    for (uint32_t i = 0; i < OUT_COUNT; i++) {
        kf_array_destroy(&f->want[i]);
        kf_array_destroy(&f->got[i]);
    }
}

static void *place(struct kf_array *a, size_t elem_bytes, size_t elems, size_t shift)
{
    return shift == 0 ? kf_array_place_at_end(a, elem_bytes, elems) : kf_array_place(a, elem_bytes, elems, shift);
}

/* Inputs: uniform in [-3, 3) with zeros, tiny and larger numbers among them. */
static void place_inputs(struct fixture *f, struct call *c, size_t shift)
{
    const size_t elems = (size_t)ROWS * c->cols;

    for (uint32_t i = 0; i < IN_COUNT; i++) {
        float *wide = place(&f->in_f[i], 4, elems, shift);
        void *x = place(&f->in_x[i], strata_dtype_bytes(c->dt), elems, shift);

        for (size_t e = 0; e < elems; e++) {
            const uint32_t kind = kf_bits(i + 10, e) % 64;

            wide[e] = kind == 0 ? 0.0f : kind == 1 ? -0.0f : kind == 2 ? 1e-42f : kf_uniform(i, e) * (kind == 3 ? 40.0f : 3.0f);
        }
        st_ops_scalar.round_rows(x, elems, wide, elems, 1, (uint32_t)elems, c->dt);
        c->f[i] = wide;
        c->x[i] = x;
    }
}

static void place_outputs(struct kf_array *arrays, struct call *c, size_t shift)
{
    const size_t elems = (size_t)OUT_ROWS * c->cols + 16;

    for (uint32_t i = 0; i < OUT_COUNT; i++) {
        float *out = kf_array_place(&arrays[i], 4, elems, 2 * shift);

        for (size_t e = 0; e < elems; e++)
            out[e] = kf_uniform(20 + i, e);
        c->out[i] = out;
    }
}

static void compare(struct fixture *f, const struct st_ops *ops, uint32_t cols, strata_dtype dt, size_t shift)
{
    const int32_t tokens[ROWS] = {(int32_t)cols - 1, 0, -1, (int32_t)(cols / 2), (int32_t)(2 * cols - 1)};
    const float stats[2 * ROWS] = {0.1f, 0.9f, -0.3f, 1.1f, 0.0f, 1.3f, 2.5f, 0.4f, -1.5f, 0.7f};
    struct call c = {.cols = cols, .dt = dt, .stats = stats, .tokens = tokens};

    place_inputs(f, &c, shift);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        c.ops = &st_ops_scalar;
        place_outputs(f->want, &c, shift);
        cases[i].run(&c);
        c.ops = ops;
        place_outputs(f->got, &c, shift);
        cases[i].run(&c);
        for (uint32_t out = 0; out < OUT_COUNT; out++)
            kf_assert_same(&f->got[out], &f->want[out], cases[i].name);
    }
}

static void compare_table(struct fixture *f, const struct st_ops *ops)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        for (uint32_t cols = 1; cols <= 67; cols++)
            compare(f, ops, cols, dt, 0);
        for (size_t shift = 0; shift < 16; shift++)
            compare(f, ops, shift % 2 == 0 ? COLS_MAX : 768, dt, shift);
    }
}

/* The last one is the scalar table itself: shows that a case is a function of its inputs. */
TEST(tables_agree)
{
    struct fixture f;

    fixture_create(&f);
    for (size_t t = 0; st_kernels_usable(t) != NULL; t++)
        compare_table(&f, st_kernels_usable(t)->ops);
    fixture_destroy(&f);
}

/* The 32-column strips that the caller cuts, against the whole width at once. */
TEST(splits_do_not_show)
{
    enum { COLS = 101, STRIP = 32 };
    static float x[ROWS * COLS], stats[2 * ROWS], whole[2][COLS], cut[2][COLS];

    for (uint32_t i = 0; i < ROWS * COLS; i++)
        x[i] = kf_uniform(1, i);
    for (uint32_t i = 0; i < 2 * ROWS; i++)
        stats[i] = kf_uniform(2, i);
    for (size_t t = 0; st_kernels_usable(t) != NULL; t++) {
        const struct st_ops *ops = st_kernels_usable(t)->ops;

        memset(whole, 0, sizeof(whole));
        memset(cut, 0, sizeof(cut));
        ops->norm_backward_columns(whole[0], whole[1], x, STRATA_F32, x, COLS, stats, ROWS, COLS, STRATA_F32);
        for (uint32_t c = 0; c < COLS; c += STRIP)
            ops->norm_backward_columns(cut[0] + c, cut[1] + c, x + c, STRATA_F32, x + c, COLS, stats, ROWS,
                                       COLS - c < STRIP ? COLS - c : STRIP, STRATA_F32);
        assert_memory_equal(whole, cut, sizeof(cut));
    }
}
