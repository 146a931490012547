/* Attention of the CUDA device against fp64: forward, log-sum-exp and backward over shapes around the tiles' edges,
 * padded head dims, grouped heads, odd strides and addresses; nothing outside the outputs is written, nothing outside the inputs
 * is read, and bits are the same whatever the order of threads.  The key-value cache.
 *
 * Tolerances, relative to the largest magnitude of a tensor: fp32 4e-6, fp16 1.5e-3, bf16 1.2e-2; log-sum-exp 4e-6 always. */
#include "kernels/cuda/attention.h"
#include "tests/common/sample.h"
#include "tests/common/test.h"
#include "tests/cuda/cuda_fixture.h"
#ifdef ST_CUDA_EMULATOR
#include "tests/cuda/emulator/twin.h"
#endif
#include "tests/offload/attention_reference.h"
#include "tests/offload/device_values.h"
#include <stdio.h>
#include <string.h>

#define LSE_LOSS 4e-6

static uint32_t shared_most; /* of a block, as the device table asks for it */

static int allow(void **state)
{
    int most = 0;

    (void)state;
    cf_ok(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    shared_most = (uint32_t)most;
    cf_ok(st_cuda_attention_forward_allow(shared_most));
    cf_ok(st_cuda_attention_backward_allow(shared_most));
    return 0;
}

/* --- one shape --- */

/* positions: NULL, or a buffer whose device side at->positions is. */
static struct attention_reference reference_create(const struct st_attention *at, const struct cf_buffer *qkv,
                                                   const struct cf_buffer *dout, const struct cf_buffer *positions)
{
    struct attention_reference r = ar_create(at, qkv->host, dout != NULL ? dout->host : NULL);

    r.at.positions = positions != NULL ? (const int32_t *)(const void *)positions->host : NULL;
    ar_forward(&r);
    ar_backward(&r);
    return r;
}

static void assert_close(const char *what, const struct st_attention *at, const struct cf_buffer *got, strata_dtype dt,
                         const double *want, double loss)
{
    char where[160];

    snprintf(where, sizeof(where), "%s, batch %u seq %u heads %u/%u of %u, dtype %d", what, at->batch, at->seq, at->heads,
             at->kv_heads, at->head_dim, (int)at->dt);
    df_assert_close(where, got->host, dt, want, got->bytes / strata_dtype_bytes(dt), loss);
}

struct tensors {
    struct st_attention at;
    uint64_t rows;
    struct cf_buffer qkv, dout, out, lse, dqkv, workspace;
};

/* shift: every address but that of fp32 values is one element off a 16-byte group. */
static struct tensors tensors_create(const struct st_attention *at, bool shift)
{
    const size_t bytes = strata_dtype_bytes(at->dt), off = shift ? bytes : 0;
    const uint64_t rows = (uint64_t)at->batch * at->seq;
    struct tensors t = {.at = *at, .rows = rows};

    t.qkv = cf_create_random(rows * at->qkv_stride, at->dt, 1, 1.5f, off);
    t.dout = cf_create_random(rows * at->out_stride, at->dt, 2, 1, off);
    t.out = cf_create(rows * at->out_stride * bytes, off);
    t.lse = cf_create(rows * at->heads * sizeof(float), 0);
    t.dqkv = cf_create(rows * at->qkv_stride * bytes, off);
    t.workspace = cf_create(st_cuda_attention_workspace(at), 0);
    return t;
}

static void tensors_destroy(struct tensors *t)
{
    cf_destroy(&t->qkv), cf_destroy(&t->dout), cf_destroy(&t->out);
    cf_destroy(&t->lse), cf_destroy(&t->dqkv), cf_destroy(&t->workspace);
}

static void run(struct tensors *t)
{
    cf_ok(st_cuda_attention_forward(NULL, shared_most, &t->at, t->out.device, t->lse.device, t->qkv.device, t->workspace.device));
    cf_ok(st_cuda_attention_backward(NULL, shared_most, &t->at, t->dqkv.device, t->dout.device, t->out.device, t->lse.device,
                                     t->qkv.device, t->workspace.device));
    cf_ok(cudaStreamSynchronize(NULL));
    cf_download(&t->out), cf_download(&t->lse), cf_download(&t->dqkv);
}

/* Columns past `used` hold what they held; they are zeros from here on. */
static void assert_padding(struct cf_buffer *b, uint64_t rows, uint32_t stride, uint32_t used, strata_dtype dt)
{
    const size_t bytes = strata_dtype_bytes(dt);

    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t i = (r * stride + used) * bytes; i < (r + 1) * stride * bytes; i++) {
            assert_int_equal(b->host[i], CF_GUARD_BYTE);
            b->host[i] = 0;
        }
}

static struct cf_buffer positions_create(const struct st_attention *at)
{
    struct cf_buffer b = cf_create((size_t)at->batch * at->seq * sizeof(int32_t), 0);

    ar_documents((int32_t *)(void *)b.host, at->batch, at->seq, 6);
    cf_upload(&b);
    return b;
}

static void check_shape_in(const struct st_attention *shape, strata_dtype dt, bool shift, bool documents)
{
    struct st_attention at = *shape;
    const uint32_t out_used = at.heads * at.head_dim, qkv_used = out_used + 2 * at.kv_heads * at.head_dim;
    struct cf_buffer positions = positions_create(&at);
    struct tensors t;
    struct attention_reference r;

    at.dt = dt;
    at.positions = documents ? positions.device : NULL;
    t = tensors_create(&at, shift);
    run(&t);
    assert_padding(&t.out, t.rows, at.out_stride, out_used, dt);
    assert_padding(&t.dqkv, t.rows, at.qkv_stride, qkv_used, dt);
    r = reference_create(&at, &t.qkv, &t.dout, documents ? &positions : NULL);
    assert_close("out", &at, &t.out, dt, r.out, df_tolerance(dt));
    assert_close("lse", &at, &t.lse, STRATA_F32, r.lse, LSE_LOSS);
    assert_close("dqkv", &at, &t.dqkv, dt, r.dqkv, df_tolerance(dt));
    ar_destroy(&r);
    tensors_destroy(&t);
    cf_destroy(&positions);
}

static void check_shape(const struct st_attention *shape, strata_dtype dt, bool shift)
{
    check_shape_in(shape, dt, shift, false);
}

static struct st_attention shape_of(uint32_t batch, uint32_t seq, uint32_t heads, uint32_t kv_heads, uint32_t head_dim,
                                    uint32_t padding)
{
    return (struct st_attention){.batch = batch,
                                 .seq = seq,
                                 .heads = heads,
                                 .kv_heads = kv_heads,
                                 .head_dim = head_dim,
                                 .qkv_stride = (heads + 2 * kv_heads) * head_dim + padding,
                                 .out_stride = heads * head_dim + padding};
}

static void check_dtypes(const struct st_attention *shape, bool shift)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++)
        check_shape(shape, dt, shift);
}

/* Rows of several tiles in one dtype each: a sample has other heads in each. */
TEST(lengths_match)
{
    static const uint32_t seqs[] = {1, 7, 64, 65, 130};
    static const uint32_t heads[][2] = {{1, 1}, {4, 2}, {4, 1}};

    for (size_t s = 0; s < sizeof(seqs) / sizeof(seqs[0]); s++)
        for (size_t h = 0; h < sizeof(heads) / sizeof(heads[0]); h++) {
            const struct st_attention shape = shape_of(h == 1 ? 2 : 1, seqs[s], heads[h][0], heads[h][1], 32, 0);

            for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++)
                if (seqs[s] < 64 || sample_takes(s + h, 3, dt))
                    check_shape(&shape, dt, false);
        }
}

TEST(head_dims_match)
{
    static const uint32_t dims[] = {16, 24, 64, 72, 80, 96, 120, 128, 136, 256};

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        const struct st_attention shape = shape_of(1, 35, 2, 1, dims[i], 8);

        check_dtypes(&shape, false);
    }
}

/* Tiles of every size meet more than one of themselves. */
TEST(long_rows_match)
{
    static const uint32_t dims[] = {64, 128, 192};

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        const struct st_attention shape = shape_of(1, 135, 1, 1, dims[i], 0);

        check_dtypes(&shape, false);
    }
}

/* A window, documents and soft-capping in kernels of every width, and rows of several tiles. */
TEST(bounds_match)
{
    static const uint32_t dims[][2] = {{32, 130}, {64, 135}, {80, 70}, {96, 40}, {128, 135}, {192, 40}, {256, 70}};

    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
            struct st_attention shape = shape_of(1, dims[i][1], 1 + (uint32_t)i % 2, 1, dims[i][0], 0);

            if (!sample_takes(i, 3, dt) && dims[i][0] != 128)
                continue;
            shape.window = i % 2 == 0 ? 40 : 0;
            shape.softcap = i % 3 != 0 ? 2.0f : 0.0f;
            shape.scale = 0.11f;
            check_shape_in(&shape, dt, false, i % 4 != 0);
        }
}

TEST(odd_rows_match)
{
    const struct st_attention shapes[] = {shape_of(1, 1, 1, 1, 1, 0), shape_of(2, 7, 3, 3, 5, 0), shape_of(1, 66, 4, 2, 8, 3),
                                          shape_of(2, 65, 2, 1, 33, 1), shape_of(1, 65, 2, 2, 64, 0)};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        check_dtypes(&shapes[i], true);
}

static void check_bits_repeat(const struct st_attention *shape)
{
    struct tensors t = tensors_create(shape, false), again = tensors_create(shape, false);

    run(&t), run(&again);
    assert_memory_equal(t.out.host, again.out.host, t.out.bytes);
    assert_memory_equal(t.lse.host, again.lse.host, t.lse.bytes);
    assert_memory_equal(t.dqkv.host, again.dqkv.host, t.dqkv.bytes);
    tensors_destroy(&t), tensors_destroy(&again);
}

/* The emulator runs threads and blocks in another order each time. */
TEST(bits_repeat)
{
    struct st_attention at = shape_of(2, 130, 2, 1, 64, 0), pairs = shape_of(1, 70, 2, 1, 128, 0);

    for (at.dt = STRATA_F32; at.dt <= STRATA_F16; at.dt++)
        check_bits_repeat(&at);
    pairs.dt = STRATA_BF16; /* in the backward, warps of wide heads pass values to each other */
    check_bits_repeat(&pairs);
}

/* --- gradients: the reference's own, by central differences --- */

static void check_slopes(const struct st_attention *shape)
{
    struct st_attention at = *shape;
    struct tensors t;
    struct attention_reference r;

    at.dt = STRATA_F32;
    t = tensors_create(&at, false);
    r = reference_create(&at, &t.qkv, &t.dout, NULL);
    for (uint64_t i = 0; i < r.qkv_elems; i += 7)
        ar_assert_slope(&r, i);
    ar_destroy(&r);
    tensors_destroy(&t);
}

TEST(reference_is_the_gradient)
{
    const struct st_attention grouped = shape_of(2, 9, 4, 2, 8, 0), shared = shape_of(1, 5, 4, 1, 16, 0);

    check_slopes(&grouped);
    check_slopes(&shared);
}

/* --- how rows lie does not change bits --- */

/* The same values at another stride and address. */
static void restride(struct cf_buffer *to, uint32_t to_stride, const struct cf_buffer *from, uint32_t from_stride, uint64_t rows,
                     uint32_t columns, size_t bytes)
{
    for (uint64_t r = 0; r < rows; r++)
        memcpy(to->host + r * to_stride * bytes, from->host + r * from_stride * bytes, columns * bytes);
    cf_upload(to);
}

static void assert_rows_equal(const struct cf_buffer *a, uint32_t a_stride, const struct cf_buffer *b, uint32_t b_stride,
                              uint64_t rows, uint32_t columns, size_t bytes)
{
    for (uint64_t r = 0; r < rows; r++)
        assert_memory_equal(a->host + r * a_stride * bytes, b->host + r * b_stride * bytes, columns * bytes);
}

TEST(strides_do_not_matter)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        struct st_attention even = shape_of(1, 70, 2, 1, 64, 0), odd = shape_of(1, 70, 2, 1, 64, 5);
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
        assert_memory_equal(a.lse.host, b.lse.host, a.lse.bytes);
        tensors_destroy(&a), tensors_destroy(&b);
    }
}

/* --- the key-value cache --- */

struct cached {
    struct cf_buffer out, keys, values;
};

/* All rows in calls of `group` rows. */
static struct cached run_cached(const struct tensors *t, uint32_t group)
{
    const struct st_attention *at = &t->at;
    const size_t bytes = strata_dtype_bytes(at->dt), cache = (size_t)at->seq * at->kv_heads * at->head_dim * bytes;
    struct cached c = {cf_create(t->out.bytes, 0), cf_create(cache, 0), cf_create(cache, 0)};

    for (uint32_t first = 0; first < at->seq; first += group) {
        const uint32_t rows = at->seq - first < group ? at->seq - first : group;

        cf_ok(st_cuda_attention_cached(NULL, at, (char *)c.out.device + (size_t)first * at->out_stride * bytes, c.keys.device,
                                       c.values.device, (const char *)t->qkv.device + (size_t)first * at->qkv_stride * bytes,
                                       first, rows, NULL));
    }
    cf_ok(cudaStreamSynchronize(NULL));
    cf_download(&c.out), cf_download(&c.keys), cf_download(&c.values);
    return c;
}

static void cached_destroy(struct cached *c)
{
    cf_destroy(&c->out), cf_destroy(&c->keys), cf_destroy(&c->values);
}

static void check_cached(const struct st_attention *shape, strata_dtype dt, bool shift)
{
    static const uint32_t groups[] = {1, 2, 7, 64};
    struct st_attention at = *shape;
    const uint32_t width = at.kv_heads * at.head_dim, column = at.heads * at.head_dim;
    const size_t bytes = strata_dtype_bytes(dt);
    struct tensors t;
    struct cached whole;
    struct attention_reference r;

    at.dt = dt;
    t = tensors_create(&at, shift);
    whole = run_cached(&t, at.seq);
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        struct cached cut = run_cached(&t, groups[g]);

        assert_memory_equal(cut.out.host, whole.out.host, whole.out.bytes);
        assert_memory_equal(cut.keys.host, whole.keys.host, whole.keys.bytes);
        assert_memory_equal(cut.values.host, whole.values.host, whole.values.bytes);
        cached_destroy(&cut);
    }
    for (uint64_t row = 0; row < at.seq; row++) {
        const unsigned char *k = t.qkv.host + (row * at.qkv_stride + column) * bytes;

        assert_memory_equal(whole.keys.host + row * width * bytes, k, width * bytes);
        assert_memory_equal(whole.values.host + row * width * bytes, k + width * bytes, width * bytes);
    }
    assert_padding(&whole.out, t.rows, at.out_stride, column, dt);
    r = reference_create(&at, &t.qkv, NULL, NULL);
    assert_close("cached", &at, &whole.out, dt, r.out, df_tolerance(dt));
    ar_destroy(&r);
    cached_destroy(&whole);
    tensors_destroy(&t);
}

/* More keys than one turn takes, and rows of keys that are wider. */
TEST(cached_rows_match)
{
    const struct st_attention shapes[] = {shape_of(1, 1, 1, 1, 64, 0),    shape_of(1, 7, 3, 3, 5, 2),
                                          shape_of(1, 131, 2, 1, 128, 8), shape_of(1, 66, 4, 2, 40, 0),
                                          shape_of(1, 34, 2, 1, 200, 0),  shape_of(1, 5, 5, 5, 112, 0)};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++)
            if (sample_takes(i, 3, dt))
                check_cached(&shapes[i], dt, i % 2 == 1);
}

/* --- what is refused, and what is nothing to do --- */

static cudaError_t forward_of(struct st_attention at)
{
    return st_cuda_attention_forward(NULL, shared_most, &at, NULL, NULL, NULL, NULL);
}

TEST(shapes_are_checked)
{
    struct st_attention at = shape_of(1, 4, 4, 2, 64, 0), bad;

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

#ifdef ST_CUDA_EMULATOR

static void check_smaller_blocks(const struct st_attention *shape, uint32_t bytes)
{
    struct tensors large = tensors_create(shape, false), small = tensors_create(shape, false);

    run(&large);
    twin_set_shared(bytes);
    allow(NULL); /* what a block cannot have is not asked for */
    run(&small);
    assert_memory_equal(small.out.host, large.out.host, large.out.bytes);
    assert_memory_equal(small.dqkv.host, large.dqkv.host, large.dqkv.bytes);
    twin_set_shared(UINT32_MAX);
    allow(NULL);
    tensors_destroy(&large), tensors_destroy(&small);
}

/* Blocks of 64 KiB, as on capability 7.5: the same bits, in fp16 with heads up to 128, in fp32 up to 64; else a refusal. */
TEST(smallest_blocks_give_the_same_bits)
{
    static const uint32_t halves[] = {32, 64, 80, 96, 128};
    struct st_attention at = shape_of(1, 135, 2, 1, 64, 0);

    at.dt = STRATA_F32;
    check_smaller_blocks(&at, 64u << 10);
    for (uint32_t bound = 0; bound < 2; bound++)
        for (size_t i = 0; i < sizeof(halves) / sizeof(halves[0]); i++) {
            if (!sample_takes(i, 2, bound))
                continue;
            at = shape_of(1, 135, 2, 1, halves[i], 0);
            at.dt = STRATA_F16;
            at.window = bound * 40;
            check_smaller_blocks(&at, 64u << 10);
        }
}

/* Blocks of 99 KiB, as on consumers' GPUs: the same bits, or for wide heads in fp32 a refusal. */
TEST(smaller_blocks_give_the_same_bits)
{
    struct st_attention at = shape_of(1, 135, 2, 1, 128, 0), wide = shape_of(1, 70, 2, 1, 256, 0);
    struct tensors t;

    at.dt = wide.dt = STRATA_BF16;
    check_smaller_blocks(&at, 99u << 10);
    check_smaller_blocks(&wide, 99u << 10);
    wide.window = 40, wide.softcap = 2.0f;
    check_smaller_blocks(&wide, 99u << 10);
    wide.head_dim = 192, wide.dt = STRATA_F16;
    check_smaller_blocks(&wide, 99u << 10);
    wide.dt = STRATA_F32;
    t = tensors_create(&wide, false);
    twin_set_shared(99u << 10);
    allow(NULL);
    assert_int_equal(st_cuda_attention_backward(NULL, shared_most, &wide, t.dqkv.device, t.dout.device, t.out.device,
                                                t.lse.device, t.qkv.device, t.workspace.device),
                     cudaErrorNotSupported);
    twin_set_shared(UINT32_MAX);
    allow(NULL);
    tensors_destroy(&t);
}

#endif

TEST_GROUP(allow, NULL);
