/* Softmax cross-entropy over slices of the vocabulary: loss and gradient against fp64, slices against the whole, and a
 * vocabulary of 50257 in slices of 4096. */
#include "tests/common/test.h"
#include "tests/offload/device_fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEP 1e-5 /* of a central difference */

struct problem {
    uint32_t rows, vocab;
    float softcap;
    double *logits; /* [rows, vocab] */
    int32_t *targets;
};

static void problem_create(struct problem *p, uint32_t rows, uint32_t vocab)
{
    *p = (struct problem){rows, vocab, 0.0f, malloc((size_t)rows * vocab * sizeof(double)), malloc(rows * sizeof(int32_t))};
    for (uint64_t i = 0; i < (uint64_t)rows * vocab; i++)
        p->logits[i] = (double)(float)((double)(df_bits(1, i) >> 40) * 0x1p-21 - 4);
    for (uint32_t r = 0; r < rows; r++)
        p->targets[r] = r % 5 == 3 ? -1 : (int32_t)(df_bits(2, r) % vocab);
}

static void problem_destroy(struct problem *p)
{
    free(p->logits);
    free(p->targets);
}

static double capped(const struct problem *p, double x)
{
    return p->softcap != 0.0f ? (double)p->softcap * tanh(x / (double)p->softcap) : x;
}

static double row_loss(const struct problem *p, uint32_t r)
{
    const double *x = p->logits + (uint64_t)r * p->vocab;
    double top = -INFINITY, sum = 0;

    if (p->targets[r] < 0)
        return 0;
    for (uint32_t i = 0; i < p->vocab; i++)
        top = fmax(top, capped(p, x[i]));
    for (uint32_t i = 0; i < p->vocab; i++)
        sum += exp(capped(p, x[i]) - top);
    return top + log(sum) - capped(p, x[p->targets[r]]);
}

static double slope(const struct problem *p, uint32_t r, uint32_t i)
{
    double *x = p->logits + (uint64_t)r * p->vocab + i, kept = *x, up, down;

    *x = kept + STEP;
    up = row_loss(p, r);
    *x = kept - STEP;
    down = row_loss(p, r);
    *x = kept;
    return (up - down) / (2 * STEP);
}

/* Columns first .. first + cols - 1 of the logits, dense, as a head slice's matmul leaves them. */
static void fill_slice(const struct problem *p, float *slice, uint32_t first, uint32_t cols)
{
    for (uint64_t r = 0; r < p->rows; r++)
        for (uint64_t c = 0; c < cols; c++)
            slice[r * cols + c] = (float)p->logits[r * p->vocab + first + c];
}

/* Both passes over slices of `slice_cols`; dlogits [rows, vocab] as doubles (free it), the loss in *loss. */
static double *run_slices(const struct problem *p, uint32_t slice_cols, strata_dtype dt, float scale, double *loss)
{
    const uint64_t slice_elems = (uint64_t)p->rows * slice_cols;
    double *out = malloc((size_t)p->rows * p->vocab * sizeof(double)), *loss_sum;
    struct df_device d;
    float *slice, *stats;
    void *dlogits;
    int32_t *targets;

    df_open(&d, &(struct df_opts){.arena_bytes = 8 * slice_elems + (1u << 20)});
    slice = df_alloc(&d, slice_elems, STRATA_F32);
    dlogits = df_alloc(&d, slice_elems, dt);
    stats = df_random(&d, 3 * (uint64_t)p->rows, STRATA_F32, 3, 100, 0); /* the first slice starts it */
    targets = df_alloc(&d, p->rows, STRATA_F32);
    loss_sum = df_alloc(&d, 2, STRATA_F32);
    memcpy(targets, p->targets, p->rows * sizeof(int32_t));
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t first = 0; first < p->vocab; first += slice_cols) {
            const uint32_t cols = p->vocab - first < slice_cols ? p->vocab - first : slice_cols;

            fill_slice(p, slice, first, cols);
            if (pass == 0) {
                df_ok(d.tensors->xent_stats(d.dev, stats, slice, targets, p->rows, cols, first, p->softcap));
                continue;
            }
            df_ok(d.tensors->xent_grad(d.dev, dlogits, slice, stats, targets, p->rows, cols, first, scale, p->softcap, dt));
            for (uint64_t i = 0; i < (uint64_t)p->rows * cols; i++)
                out[i / cols * p->vocab + first + i % cols] = df_at(dlogits, i, dt);
        }
    }
    df_ok(d.tensors->xent_loss(d.dev, loss_sum, stats, targets, p->rows));
    *loss = *loss_sum;
    df_close(&d);
    return out;
}

static void check_close(const double *got, const double *want, uint64_t elems, double tolerance)
{
    double size = 0;

    for (uint64_t i = 0; i < elems; i++)
        size = fmax(size, fabs(want[i]));
    for (uint64_t i = 0; i < elems; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * size))
            fail_msg("dlogits[%llu] is %.9g, not %.9g", (unsigned long long)i, got[i], want[i]);
}

static void check_softcap(float softcap)
{
    static const uint32_t slices[] = {1, 7, 16, 64, 101};
    const float scale = 0.125f;
    struct problem p;
    double *want, want_loss = 0;

    problem_create(&p, 11, 101);
    p.softcap = softcap;
    want = malloc((size_t)p.rows * p.vocab * sizeof(double));
    for (uint32_t r = 0; r < p.rows; r++) {
        want_loss += row_loss(&p, r);
        for (uint32_t i = 0; i < p.vocab; i++)
            want[r * p.vocab + i] = slope(&p, r, i) * (double)scale;
    }
    for (size_t t = 0; t < sizeof(slices) / sizeof(slices[0]); t++) {
        for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
            double loss, *got = run_slices(&p, slices[t], dt, scale, &loss);

            assert_true(fabs(loss - want_loss) <= 1e-6 * want_loss);
            check_close(got, want, (uint64_t)p.rows * p.vocab, dt == STRATA_BF16 ? 0x1p-8 : dt == STRATA_F16 ? 0x1p-11 : 1e-6);
            free(got);
        }
    }
    free(want);
    problem_destroy(&p);
}

TEST(loss_and_gradient_match)
{
    check_softcap(0.0f);
    check_softcap(3.0f);
}

/* GPT-2's head: 13 slices of at most 4096 columns; a slice of 1024 rows is 16 MiB. */
TEST(large_vocabulary)
{
    struct problem p;
    double sliced_loss, whole_loss, want_loss = 0, *sliced, *whole;

    assert_true(UINT64_C(1024) * 4096 * sizeof(float) <= 64u << 20);
    problem_create(&p, 8, 50257);
    sliced = run_slices(&p, 4096, STRATA_F32, 1, &sliced_loss);
    whole = run_slices(&p, 50257, STRATA_F32, 1, &whole_loss);
    for (uint32_t r = 0; r < p.rows; r++)
        want_loss += row_loss(&p, r);
    assert_true(fabs(sliced_loss - want_loss) <= 1e-6 * want_loss);
    assert_true(fabs(whole_loss - want_loss) <= 1e-6 * want_loss);
    check_close(sliced, whole, (uint64_t)p.rows * p.vocab, 1e-6);
    for (uint32_t r = 0; r < p.rows; r++) {
        double sum = 0; /* of softmax - onehot */

        for (uint32_t i = 0; i < p.vocab; i++)
            sum += sliced[(uint64_t)r * p.vocab + i];
        assert_true(fabs(sum) < 1e-5);
    }
    free(sliced);
    free(whole);
    problem_destroy(&p);
}

/* A logit that is not a number must reach the loss. */
TEST(nan_is_seen)
{
    struct problem p;
    double loss, *got;

    problem_create(&p, 4, 50);
    p.logits[2 * 50 + 7] = (double)NAN;
    got = run_slices(&p, 16, STRATA_F32, 1, &loss);
    assert_true(isnan(loss));
    assert_true(isnan(got[2 * 50 + 1]));
    assert_true(got[1 * 50 + 1] > 0);
    free(got);
    problem_destroy(&p);
}
