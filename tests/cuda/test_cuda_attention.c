/* Attention of the CUDA device against fp64: forward, log-sum-exp and backward over shapes around the tiles' edges,
 * padded head dims, grouped heads, odd strides and addresses; nothing outside the outputs is written, nothing outside the inputs
 * is read, and bits are the same whatever the order of threads.  The key-value cache.
 *
 * Tolerances, relative to the largest magnitude of a tensor: fp32 4e-6, fp16 1.5e-3, bf16 1.2e-2; log-sum-exp 4e-6 always. */
#include "kernels/cuda/attention.h"
#include "kernels/scalar.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GUARD      256u /* bytes behind every buffer: NaN in every dtype */
#define GUARD_BYTE 0xff
#define ALIGNMENT  64u
#define LSE_LOSS   4e-6
#define STEP       1e-5 /* of a central difference */

static double tolerance(strata_dtype dt)
{
    return dt == STRATA_BF16 ? 1.2e-2 : dt == STRATA_F16 ? 1.5e-3 : 4e-6;
}

/* --- memory --- */

/* `bytes` at `p` on the host, at `device` there, then GUARD bytes; `shift` bytes off alignment. */
struct buffer {
    unsigned char *whole, *p;
    void *device_whole, *device;
    size_t bytes, whole_bytes;
};

static void must(cudaError_t err)
{
    if (err != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(err));
}

static struct buffer buffer_create(size_t bytes, size_t shift)
{
    const size_t whole = (bytes + shift + GUARD + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct buffer b = {.whole = aligned_alloc(ALIGNMENT, whole), .bytes = bytes, .whole_bytes = whole};

    assert_non_null(b.whole);
    memset(b.whole, GUARD_BYTE, whole);
    must(cudaMalloc(&b.device_whole, whole));
    must(cudaMemset(b.device_whole, GUARD_BYTE, whole));
    b.p = b.whole + shift;
    b.device = (char *)b.device_whole + shift;
    return b;
}

static void to_device(const struct buffer *b)
{
    must(cudaMemcpy(b->device_whole, b->whole, b->whole_bytes, cudaMemcpyHostToDevice));
}

static void to_host(struct buffer *b)
{
    must(cudaMemcpy(b->whole, b->device_whole, b->whole_bytes, cudaMemcpyDeviceToHost));
}

static void buffer_destroy(struct buffer *b)
{
    to_host(b);
    for (unsigned char *at = b->whole; at < b->whole + b->whole_bytes; at++) {
        if (at < b->p || at >= b->p + b->bytes)
            assert_int_equal(*at, GUARD_BYTE);
    }
    must(cudaFree(b->device_whole));
    free(b->whole);
}

static double element(const void *p, uint64_t i, strata_dtype dt)
{
    return (double)st_load_f32(p, dt, i);
}

static void element_set(void *p, uint64_t i, strata_dtype dt, float x)
{
    if (dt == STRATA_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = dt == STRATA_BF16 ? st_f32_to_bf16(x) : st_f32_to_f16(x);
}

/* Between -1 and 1, of the seed and the element alone. */
static float random_at(uint64_t seed, uint64_t i)
{
    return (float)(int32_t)st_rounding_bits(seed, i) * 0x1p-31f;
}

static struct buffer buffer_random(uint64_t elems, strata_dtype dt, uint64_t seed, float size, size_t shift)
{
    const struct buffer b = buffer_create(elems * strata_dtype_bytes(dt), shift);

    for (uint64_t i = 0; i < elems; i++)
        element_set(b.p, i, dt, size * random_at(seed, i));
    to_device(&b);
    return b;
}

static double *doubles_of(const struct buffer *b, strata_dtype dt)
{
    const uint64_t elems = b->bytes / strata_dtype_bytes(dt);
    double *x = calloc(elems, sizeof(*x));

    assert_non_null(x);
    for (uint64_t i = 0; i < elems; i++)
        x[i] = element(b->p, i, dt);
    return x;
}

static void assert_close(const char *what, const struct st_cuda_attention *at, const void *got, strata_dtype dt,
                         const double *want, uint64_t elems, double loss)
{
    double size = 0;

    for (uint64_t i = 0; i < elems; i++)
        size = fmax(size, fabs(want[i]));
    for (uint64_t i = 0; i < elems; i++) {
        if (!(fabs(element(got, i, dt) - want[i]) <= loss * size))
            fail_msg("%s, batch %u seq %u heads %u/%u of %u, dtype %d: element %llu is %.9g, not %.9g (largest %.3g)", what,
                     at->batch, at->seq, at->heads, at->kv_heads, at->head_dim, (int)at->dt, (unsigned long long)i,
                     element(got, i, dt), want[i], size);
    }
}

/* --- the reference --- */

struct reference {
    struct st_cuda_attention at;
    uint64_t rows;
    double *qkv, *dout, *out, *lse, *dqkv, *p;
};

static uint64_t query_at(const struct reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    return (b * r->at.seq + t) * r->at.qkv_stride + h * r->at.head_dim;
}

static uint64_t key_at(const struct reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    return query_at(r, b, r->at.heads + h / (r->at.heads / r->at.kv_heads), t);
}

static uint64_t value_at(const struct reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    return key_at(r, b, h, t) + (uint64_t)r->at.kv_heads * r->at.head_dim;
}

static uint64_t out_at(const struct reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    return (b * r->at.seq + t) * r->at.out_stride + h * r->at.head_dim;
}

static double dot(const double *a, const double *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void add_scaled(double *to, double factor, const double *of, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] += factor * of[i];
}

/* p[0..t] of a row; its log-sum-exp. */
static double probabilities(struct reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    const double scale = 1 / sqrt((double)r->at.head_dim);
    double top = -INFINITY, sum = 0;

    for (uint64_t i = 0; i <= t; i++) {
        r->p[i] = scale * dot(r->qkv + query_at(r, b, h, t), r->qkv + key_at(r, b, h, i), r->at.head_dim);
        top = fmax(top, r->p[i]);
    }
    for (uint64_t i = 0; i <= t; i++)
        sum += r->p[i] = exp(r->p[i] - top);
    for (uint64_t i = 0; i <= t; i++)
        r->p[i] /= sum;
    return top + log(sum);
}

static void forward_row(struct reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    double *out = r->out + out_at(r, b, h, t);

    r->lse[(b * r->at.heads + h) * r->at.seq + t] = probabilities(r, b, h, t);
    memset(out, 0, r->at.head_dim * sizeof(*out));
    for (uint64_t i = 0; i <= t; i++)
        add_scaled(out, r->p[i], r->qkv + value_at(r, b, h, i), r->at.head_dim);
}

static void backward_row(struct reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    const uint32_t d = r->at.head_dim;
    const double scale = 1 / sqrt((double)d), *dout = r->dout + out_at(r, b, h, t);
    const double delta = dot(dout, r->out + out_at(r, b, h, t), d);

    probabilities(r, b, h, t);
    for (uint64_t i = 0; i <= t; i++) {
        const double ds = scale * r->p[i] * (dot(dout, r->qkv + value_at(r, b, h, i), d) - delta);

        add_scaled(r->dqkv + query_at(r, b, h, t), ds, r->qkv + key_at(r, b, h, i), d);
        add_scaled(r->dqkv + key_at(r, b, h, i), ds, r->qkv + query_at(r, b, h, t), d);
        add_scaled(r->dqkv + value_at(r, b, h, i), r->p[i], dout, d);
    }
}

static void for_rows(struct reference *r, void (*row)(struct reference *r, uint64_t b, uint64_t h, uint64_t t))
{
    for (uint64_t b = 0; b < r->at.batch; b++)
        for (uint64_t h = 0; h < r->at.heads; h++)
            for (uint64_t t = 0; t < r->at.seq; t++)
                row(r, b, h, t);
}

static double *zeros(uint64_t elems)
{
    double *x = calloc(elems, sizeof(*x));

    assert_non_null(x);
    return x;
}

static struct reference reference_create(const struct st_cuda_attention *at, const struct buffer *qkv, const struct buffer *dout)
{
    const uint64_t rows = (uint64_t)at->batch * at->seq;
    struct reference r = {.at = *at, .rows = rows};

    r.qkv = doubles_of(qkv, at->dt);
    r.dout = dout != NULL ? doubles_of(dout, at->dt) : zeros(rows * at->out_stride);
    r.out = zeros(rows * at->out_stride);
    r.lse = zeros(rows * at->heads);
    r.dqkv = zeros(rows * at->qkv_stride);
    r.p = zeros(at->seq);
    for_rows(&r, forward_row);
    for_rows(&r, backward_row);
    return r;
}

static void reference_destroy(struct reference *r)
{
    free(r->qkv), free(r->dout), free(r->out), free(r->lse), free(r->dqkv), free(r->p);
}

/* What the gradient is of: out . dout. */
static double loss_of(struct reference *r)
{
    double loss = 0;

    for_rows(r, forward_row);
    for (uint64_t row = 0; row < r->rows; row++)
        loss += dot(r->out + row * r->at.out_stride, r->dout + row * r->at.out_stride, r->at.heads * r->at.head_dim);
    return loss;
}

/* --- one shape --- */

struct tensors {
    struct st_cuda_attention at;
    uint64_t rows;
    struct buffer qkv, dout, out, lse, dqkv, workspace;
};

/* shift: every address but that of fp32 values is one element off a 16-byte group. */
static struct tensors tensors_create(const struct st_cuda_attention *at, bool shift)
{
    const size_t bytes = strata_dtype_bytes(at->dt), off = shift ? bytes : 0;
    const uint64_t rows = (uint64_t)at->batch * at->seq;
    struct tensors t = {.at = *at, .rows = rows};

    t.qkv = buffer_random(rows * at->qkv_stride, at->dt, 1, 1.5f, off);
    t.dout = buffer_random(rows * at->out_stride, at->dt, 2, 1, off);
    t.out = buffer_create(rows * at->out_stride * bytes, off);
    t.lse = buffer_create(rows * at->heads * sizeof(float), 0);
    t.dqkv = buffer_create(rows * at->qkv_stride * bytes, off);
    t.workspace = buffer_create(st_cuda_attention_workspace(at), 0);
    return t;
}

static void tensors_destroy(struct tensors *t)
{
    buffer_destroy(&t->qkv), buffer_destroy(&t->dout), buffer_destroy(&t->out);
    buffer_destroy(&t->lse), buffer_destroy(&t->dqkv), buffer_destroy(&t->workspace);
}

static void run(struct tensors *t)
{
    must(st_cuda_attention_forward(NULL, &t->at, t->out.device, t->lse.device, t->qkv.device, t->workspace.device));
    must(st_cuda_attention_backward(NULL, &t->at, t->dqkv.device, t->dout.device, t->out.device, t->lse.device, t->qkv.device,
                                    t->workspace.device));
    must(cudaStreamSynchronize(NULL));
    to_host(&t->out), to_host(&t->lse), to_host(&t->dqkv);
}

/* Columns past `used` hold what they held; they are zeros from here on. */
static void assert_padding(struct buffer *b, uint64_t rows, uint32_t stride, uint32_t used, strata_dtype dt)
{
    const size_t bytes = strata_dtype_bytes(dt);

    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = (r * stride + used) * bytes; i < (r + 1) * stride * bytes; i++) {
            assert_int_equal(b->p[i], GUARD_BYTE);
            b->p[i] = 0;
        }
}

/* Its own padding is not part of what the reference has. */
static void clear_padding(double *x, uint64_t rows, uint32_t stride, uint32_t used)
{
    for (uint64_t r = 0; r < rows; r++)
        memset(x + r * stride + used, 0, (stride - used) * sizeof(*x));
}

static void check_shape(const struct st_cuda_attention *shape, strata_dtype dt, bool shift)
{
    struct st_cuda_attention at = *shape;
    const uint32_t out_used = at.heads * at.head_dim, qkv_used = out_used + 2 * at.kv_heads * at.head_dim;
    struct tensors t;
    struct reference r;

    at.dt = dt;
    t = tensors_create(&at, shift);
    run(&t);
    assert_padding(&t.out, t.rows, at.out_stride, out_used, dt);
    assert_padding(&t.dqkv, t.rows, at.qkv_stride, qkv_used, dt);
    r = reference_create(&at, &t.qkv, &t.dout);
    clear_padding(r.out, t.rows, at.out_stride, out_used);
    assert_close("out", &at, t.out.p, dt, r.out, t.rows * at.out_stride, tolerance(dt));
    assert_close("lse", &at, t.lse.p, STRATA_F32, r.lse, t.rows * at.heads, LSE_LOSS);
    assert_close("dqkv", &at, t.dqkv.p, dt, r.dqkv, t.rows * at.qkv_stride, tolerance(dt));
    reference_destroy(&r);
    tensors_destroy(&t);
}

static struct st_cuda_attention shape_of(uint32_t batch, uint32_t seq, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                                         uint32_t padding)
{
    return (struct st_cuda_attention){.batch = batch,
                                      .seq = seq,
                                      .heads = heads,
                                      .kv_heads = kv_heads,
                                      .head_dim = head_dim,
                                      .qkv_stride = (heads + 2 * kv_heads) * head_dim + padding,
                                      .out_stride = heads * head_dim + padding};
}

static void check_dtypes(const struct st_cuda_attention *shape, bool shift)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++)
        check_shape(shape, dt, shift);
}

static void lengths_match(void **state)
{
    static const uint32_t seqs[] = {1, 7, 64, 65, 130};
    static const uint32_t heads[][2] = {{1, 1}, {4, 2}, {4, 1}};

    (void)state;
    for (size_t s = 0; s < sizeof(seqs) / sizeof(seqs[0]); s++)
        for (size_t h = 0; h < sizeof(heads) / sizeof(heads[0]); h++) {
            const struct st_cuda_attention shape = shape_of(h == 1 ? 2 : 1, seqs[s], heads[h][0], heads[h][1], 32, 0);

            check_dtypes(&shape, false);
        }
}

static void head_dims_match(void **state)
{
    static const uint32_t dims[] = {16, 24, 64, 72, 80, 96, 120, 128, 136, 256};

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        const struct st_cuda_attention shape = shape_of(1, 35, 2, 1, dims[i], 8);

        check_dtypes(&shape, false);
    }
}

/* Tiles of every size meet more than one of themselves. */
static void long_rows_match(void **state)
{
    static const uint32_t dims[] = {64, 128, 192};

    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        const struct st_cuda_attention shape = shape_of(1, 135, 1, 1, dims[i], 0);

        check_dtypes(&shape, false);
    }
}

static void odd_rows_match(void **state)
{
    const struct st_cuda_attention shapes[] = {shape_of(1, 1, 1, 1, 1, 0), shape_of(2, 7, 3, 3, 5, 0),
                                               shape_of(1, 66, 4, 2, 8, 3), shape_of(2, 65, 2, 1, 33, 1),
                                               shape_of(1, 65, 2, 2, 64, 0)};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_dtypes(&shapes[i], true);
}

/* The emulator runs threads and blocks in another order each time. */
static void bits_repeat(void **state)
{
    struct st_cuda_attention at = shape_of(2, 130, 2, 1, 64, 0);

    (void)state;
    for (at.dt = STRATA_F32; at.dt <= STRATA_F16; at.dt++) {
        struct tensors t = tensors_create(&at, false), again = tensors_create(&at, false);

        run(&t), run(&again);
        assert_memory_equal(t.out.p, again.out.p, t.out.bytes);
        assert_memory_equal(t.lse.p, again.lse.p, t.lse.bytes);
        assert_memory_equal(t.dqkv.p, again.dqkv.p, t.dqkv.bytes);
        tensors_destroy(&t), tensors_destroy(&again);
    }
}

/* --- gradients: the reference's own, by central differences --- */

static void check_slopes(const struct st_cuda_attention *shape)
{
    struct st_cuda_attention at = *shape;
    struct tensors t;
    struct reference r;

    at.dt = STRATA_F32;
    t = tensors_create(&at, false);
    r = reference_create(&at, &t.qkv, &t.dout);
    for (uint64_t i = 0; i < t.rows * at.qkv_stride; i += 7) {
        const double kept = r.qkv[i];
        double up, down;

        r.qkv[i] = kept + STEP, up = loss_of(&r);
        r.qkv[i] = kept - STEP, down = loss_of(&r);
        r.qkv[i] = kept;
        assert_true(fabs((up - down) / (2 * STEP) - r.dqkv[i]) < 1e-7);
    }
    reference_destroy(&r);
    tensors_destroy(&t);
}

static void reference_is_the_gradient(void **state)
{
    const struct st_cuda_attention grouped = shape_of(2, 9, 4, 2, 8, 0), shared = shape_of(1, 5, 4, 1, 16, 0);

    (void)state;
    check_slopes(&grouped);
    check_slopes(&shared);
}

/* --- how rows lie does not change bits --- */

/* The same values at another stride and address. */
static void restride(struct buffer *to, uint32_t to_stride, const struct buffer *from, uint32_t from_stride, uint64_t rows,
                     uint32_t columns, size_t bytes)
{
    for (uint64_t r = 0; r < rows; r++)
        memcpy(to->p + r * to_stride * bytes, from->p + r * from_stride * bytes, columns * bytes);
    to_device(to);
}

static void assert_rows_equal(const struct buffer *a, uint32_t a_stride, const struct buffer *b, uint32_t b_stride, uint64_t rows,
                              uint32_t columns, size_t bytes)
{
    for (uint64_t r = 0; r < rows; r++)
        assert_memory_equal(a->p + r * a_stride * bytes, b->p + r * b_stride * bytes, columns * bytes);
}

static void strides_do_not_matter(void **state)
{
    (void)state;
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        struct st_cuda_attention even = shape_of(1, 70, 2, 1, 64, 0), odd = shape_of(1, 70, 2, 1, 64, 5);
        const uint32_t out_used = even.out_stride, qkv_used = even.qkv_stride;
        const size_t bytes = strata_dtype_bytes(dt);
        struct tensors a, b;

        even.dt = odd.dt = dt;
        a = tensors_create(&even, false), b = tensors_create(&odd, true);
        restride(&b.qkv, odd.qkv_stride, &a.qkv, even.qkv_stride, a.rows, qkv_used, bytes);
        restride(&b.dout, odd.out_stride, &a.dout, even.out_stride, a.rows, out_used, bytes);
        run(&a), run(&b);
        assert_rows_equal(&a.out, even.out_stride, &b.out, odd.out_stride, a.rows, out_used, bytes);
        assert_rows_equal(&a.dqkv, even.qkv_stride, &b.dqkv, odd.qkv_stride, a.rows, qkv_used, bytes);
        assert_memory_equal(a.lse.p, b.lse.p, a.lse.bytes);
        tensors_destroy(&a), tensors_destroy(&b);
    }
}

/* --- the key-value cache --- */

struct cached {
    struct buffer out, keys, values;
};

/* All rows in calls of `group` rows. */
static struct cached run_cached(const struct tensors *t, uint32_t group)
{
    const struct st_cuda_attention *at = &t->at;
    const size_t bytes = strata_dtype_bytes(at->dt), cache = (size_t)at->seq * at->kv_heads * at->head_dim * bytes;
    struct cached c = {buffer_create(t->out.bytes, 0), buffer_create(cache, 0), buffer_create(cache, 0)};

    for (uint32_t first = 0; first < at->seq; first += group) {
        const uint32_t rows = at->seq - first < group ? at->seq - first : group;

        must(st_cuda_attention_cached(NULL, at, (char *)c.out.device + (size_t)first * at->out_stride * bytes, c.keys.device,
                                      c.values.device, (const char *)t->qkv.device + (size_t)first * at->qkv_stride * bytes,
                                      first, rows, NULL));
    }
    must(cudaStreamSynchronize(NULL));
    to_host(&c.out), to_host(&c.keys), to_host(&c.values);
    return c;
}

static void cached_destroy(struct cached *c)
{
    buffer_destroy(&c->out), buffer_destroy(&c->keys), buffer_destroy(&c->values);
}

static void check_cached(const struct st_cuda_attention *shape, strata_dtype dt, bool shift)
{
    static const uint32_t groups[] = {1, 2, 7, 64};
    struct st_cuda_attention at = *shape;
    const uint32_t width = at.kv_heads * at.head_dim, column = at.heads * at.head_dim;
    const size_t bytes = strata_dtype_bytes(dt);
    struct tensors t;
    struct cached whole;
    struct reference r;

    at.dt = dt;
    t = tensors_create(&at, shift);
    whole = run_cached(&t, at.seq);
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        struct cached cut = run_cached(&t, groups[g]);

        assert_memory_equal(cut.out.p, whole.out.p, whole.out.bytes);
        assert_memory_equal(cut.keys.p, whole.keys.p, whole.keys.bytes);
        assert_memory_equal(cut.values.p, whole.values.p, whole.values.bytes);
        cached_destroy(&cut);
    }
    for (uint64_t row = 0; row < at.seq; row++) {
        const unsigned char *k = t.qkv.p + (row * at.qkv_stride + column) * bytes;

        assert_memory_equal(whole.keys.p + row * width * bytes, k, width * bytes);
        assert_memory_equal(whole.values.p + row * width * bytes, k + width * bytes, width * bytes);
    }
    assert_padding(&whole.out, t.rows, at.out_stride, column, dt);
    r = reference_create(&at, &t.qkv, NULL);
    assert_close("cached", &at, whole.out.p, dt, r.out, t.rows * at.out_stride, tolerance(dt));
    reference_destroy(&r);
    cached_destroy(&whole);
    tensors_destroy(&t);
}

static void cached_rows_match(void **state)
{
    const struct st_cuda_attention shapes[] = {shape_of(1, 1, 1, 1, 64, 0), shape_of(1, 7, 3, 3, 5, 2),
                                               shape_of(1, 131, 2, 1, 128, 8), shape_of(1, 66, 4, 2, 40, 0),
                                               shape_of(1, 34, 2, 1, 200, 0)};

    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++)
            check_cached(&shapes[i], dt, i % 2 == 1);
}

/* --- what is refused, and what is nothing to do --- */

static cudaError_t forward_of(struct st_cuda_attention at)
{
    return st_cuda_attention_forward(NULL, &at, NULL, NULL, NULL, NULL);
}

static void shapes_are_checked(void **state)
{
    struct st_cuda_attention at = shape_of(1, 4, 4, 2, 64, 0), bad;

    (void)state;
    at.dt = STRATA_BF16;
    bad = at, bad.kv_heads = 3;
    assert_int_equal(forward_of(bad), cudaErrorInvalidValue);
    bad = at, bad.heads = 0;
    assert_int_equal(forward_of(bad), cudaErrorInvalidValue);
    bad = at, bad.qkv_stride--;
    assert_int_equal(forward_of(bad), cudaErrorInvalidValue);
    bad = at, bad.out_stride--;
    assert_int_equal(forward_of(bad), cudaErrorInvalidValue);
    bad = at, bad.dt = STRATA_DTYPE_INVALID;
    assert_int_equal(forward_of(bad), cudaErrorInvalidValue);
    bad = shape_of(1, 4, 1, 1, ST_CUDA_HEAD_MAX + 8, 0), bad.dt = STRATA_BF16;
    assert_int_equal(forward_of(bad), cudaErrorNotSupported);
    bad = at, bad.batch = 2;
    assert_int_equal(st_cuda_attention_cached(NULL, &bad, NULL, NULL, NULL, NULL, 0, 1, NULL), cudaErrorInvalidValue);
    bad = at, bad.seq = 0;
    assert_int_equal(forward_of(bad), cudaSuccess);
    assert_int_equal(st_cuda_attention_cached(NULL, &at, NULL, NULL, NULL, NULL, 0, 0, NULL), cudaSuccess);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_is_the_gradient), cmocka_unit_test(lengths_match),     cmocka_unit_test(head_dims_match),
        cmocka_unit_test(long_rows_match),           cmocka_unit_test(odd_rows_match),    cmocka_unit_test(bits_repeat),
        cmocka_unit_test(strides_do_not_matter),     cmocka_unit_test(cached_rows_match), cmocka_unit_test(shapes_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
