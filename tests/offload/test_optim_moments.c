/* Moments of the public optimizers in 16 and 8 bits: the scalar kernels' bits for every rule, threads 1 to 8 and every table,
 * however tensors are cut; what their rounding follows, and how codes lie in memory. */
#include "tests/common/test.h"
#include "tests/offload/optim_fixture.h"

#include <math.h>
#include <string.h>

#define THREADS 8u

/* The split and one other layout; gradients in turn. */
TEST(low_bit_steps_equal_the_kernels)
{
    struct strata_optim *opts[THREADS + 8];

    for (size_t r = 0; r < RULE_CASES; r++) {
        const size_t count = create_all(opts, &rule_cases[r], THREADS);
        const enum mode other = (enum mode)(FULL_BF16 + r % 3);

        for (int f = STRATA_OPTIM_MOMENTS_BF16; f <= STRATA_OPTIM_MOMENTS_8BIT; f++) {
            compare_case(opts, count, &rule_cases[r], SPLIT, grad_dtypes[(r + (size_t)f) % 3], (enum strata_optim_moments)f);
            compare_case(opts, count, &rule_cases[r], other, grad_dtypes[(r + (size_t)f + 1) % 3], (enum strata_optim_moments)f);
        }
        for (size_t i = 0; i < count; i++)
            strata_optim_destroy(opts[i]);
    }
}

/* A tensor from element `first` of `whole` on. */
static struct strata_optim_tensor part_of(const struct strata_optim_tensor *whole, size_t first, size_t elems)
{
    const uint64_t bytes = strata_optim_moment_bytes(whole->moment_format, first);
    struct strata_optim_tensor t = *whole;

    t.weight += first;
    t.low_half += first;
    t.moment1 = (char *)t.moment1 + bytes;
    t.moment2 = (char *)t.moment2 + bytes;
    t.grad = (const char *)t.grad + first * strata_dtype_bytes(t.grad_dtype);
    t.elems = elems;
    t.position += first;
    return t;
}

static size_t cut_in_parts(struct strata_optim_tensor *parts, const struct strata_optim_tensor *whole)
{
    size_t count = 0;

    for (size_t at = 0, elems; at < whole->elems; at += elems) {
        elems = (1 + count % 5) * PACK;
        elems = whole->elems - at < elems ? whole->elems - at : elems;
        parts[count++] = part_of(whole, at, elems);
    }
    return count;
}

TEST(a_cut_changes_nothing)
{
    static struct strata_optim_tensor parts[ELEMS / PACK + 1];
    const struct strata_optim_config c = public_config(&rule_cases[0], 3, NULL);
    struct strata_optim *opt = create(&c);

    for (int f = STRATA_OPTIM_MOMENTS_F32; f <= STRATA_OPTIM_MOMENTS_8BIT; f++) {
        struct strata_optim_tensor whole = tensor_at(&want, 0, ELEMS, SPLIT, STRATA_BF16, true), cut = whole;
        size_t count;

        fill_start(STRATA_BF16);
        got = want = start;
        whole.moment_format = (enum strata_optim_moments)f;
        whole.position = 10 * PACK;
        cut = tensor_at(&got, 0, ELEMS, SPLIT, STRATA_BF16, true);
        cut.moment_format = whole.moment_format;
        cut.position = whole.position;
        count = cut_in_parts(parts, &cut);
        for (int step = 0; step < 3; step++) {
            strata_optim_set_step(opt, (uint64_t)step);
            assert_int_equal(strata_optim_step(opt, &whole, 1, 1, NULL), STRATA_OK);
            strata_optim_set_step(opt, (uint64_t)step);
            assert_int_equal(strata_optim_step(opt, parts, count, 1, NULL), STRATA_OK);
        }
        assert_memory_equal(&got, &want, sizeof(got));
    }
    strata_optim_destroy(opt);
}

/* One step of plain SGD, whose moment is the gradient, into `p` from `start`. */
static void sgd_step(struct planes *p, enum strata_optim_moments format, uint64_t step, uint64_t position)
{
    const struct strata_optim_config c = public_config(&rule_cases[4], 2, NULL);
    struct strata_optim *opt = create(&c);
    struct strata_optim_tensor t;

    *p = start;
    t = tensor_at(p, 0, ELEMS, PLAIN, STRATA_F32, false);
    t.decay = false;
    t.moment_format = format;
    t.position = position;
    strata_optim_set_step(opt, step);
    assert_int_equal(strata_optim_step(opt, &t, 1, 1, NULL), STRATA_OK);
    strata_optim_destroy(opt);
}

/* The random bits are of the step and the position, and a step uses its moments before they are rounded. */
TEST(rounding_follows_step_and_position)
{
    fill_start(STRATA_F32);
    for (int f = STRATA_OPTIM_MOMENTS_BF16; f <= STRATA_OPTIM_MOMENTS_8BIT; f++) {
        const enum strata_optim_moments format = (enum strata_optim_moments)f;

        sgd_step(&want, format, 7, PACK);
        sgd_step(&got, format, 7, PACK);
        assert_memory_equal(&got, &want, sizeof(got));
        sgd_step(&got, format, 8, PACK);
        assert_memory_not_equal(got.moment1, want.moment1, sizeof(got.moment1));
        assert_memory_equal(got.master, want.master, sizeof(got.master));
        sgd_step(&got, format, 7, 0);
        assert_memory_not_equal(got.moment1, want.moment1, sizeof(got.moment1));
        assert_memory_equal(got.master, want.master, sizeof(got.master));
        sgd_step(&got, STRATA_OPTIM_MOMENTS_F32, 7, 5);
        assert_memory_equal(got.master, want.master, sizeof(got.master));
    }
}

/* Code and scale of element i, as strata/optim.h has them. */
static uint8_t code_at(const void *plane, size_t i, float *scale)
{
    const unsigned char *pack =
        (const unsigned char *)plane + strata_optim_moment_bytes(STRATA_OPTIM_MOMENTS_8BIT, i / PACK * PACK);

    memcpy(scale, pack + i % PACK / 256 * 4, 4);
    return pack[64 + i % PACK];
}

static double code_value(unsigned count, float scale, bool squares)
{
    return scale * ldexp(ldexp(1 + count % 16 / 16.0, (int)(count / 16)) - 1, squares ? -15 : -7);
}

/* Every code is one of the two beside the fp32 moment, up to fp32's own rounding, and the errors have no common sign. */
static void check_codes(const void *codes, const float *moments, bool squares)
{
    const unsigned most = squares ? 255 : 127;
    double error = 0, size = 0;

    for (size_t i = 0; i < ELEMS; i++) {
        const double mag = fabs((double)moments[i]);
        float scale;
        const uint8_t code = code_at(codes, i, &scale);
        const unsigned count = code & most;
        const double below = count > 0 ? code_value(count - 1, scale, squares) : 0;
        const double here = code_value(count, scale, squares), above = code_value(count + 1, scale, squares);

        if (mag < below - 1e-4 * (here - below) || (count < most && mag > above + 1e-4 * (above - here)))
            fail_msg("%zu: code %u, %g, %g, %g, of moment %g", i, count, below, here, above, mag);
        assert_true(squares || code < 128 || moments[i] <= 0);
        assert_true(mag > 0 || count == (unsigned)squares);
        error += here - mag;
        size += mag;
    }
    assert_true(size > 0 && fabs(error) < 1e-3 * size);
}

TEST(codes_lie_as_stated)
{
    const struct strata_optim_config c = public_config(&rule_cases[0], 1, NULL);
    struct strata_optim *opt = create(&c);
    struct strata_optim_tensor t;

    fill_start(STRATA_F32);
    got = want = start;
    t = tensor_at(&want, 0, ELEMS, SPLIT, STRATA_F32, true);
    assert_int_equal(strata_optim_step(opt, &t, 1, 1, NULL), STRATA_OK);
    t = tensor_at(&got, 0, ELEMS, SPLIT, STRATA_F32, true);
    t.moment_format = STRATA_OPTIM_MOMENTS_8BIT;
    strata_optim_set_step(opt, 0);
    assert_int_equal(strata_optim_step(opt, &t, 1, 1, NULL), STRATA_OK);
    check_codes(got.moment1, want.moment1, false);
    check_codes(got.moment2, want.moment2, true);
    strata_optim_destroy(opt);
}

TEST(bytes_of_moments)
{
    assert_int_equal(strata_optim_moment_bytes(STRATA_OPTIM_MOMENTS_F32, 4097), 4 * 4097);
    assert_int_equal(strata_optim_moment_bytes(STRATA_OPTIM_MOMENTS_BF16, 4097), 2 * 4097);
    assert_int_equal(strata_optim_moment_bytes(STRATA_OPTIM_MOMENTS_8BIT, 0), 0);
    assert_int_equal(strata_optim_moment_bytes(STRATA_OPTIM_MOMENTS_8BIT, 1), 65);
    assert_int_equal(strata_optim_moment_bytes(STRATA_OPTIM_MOMENTS_8BIT, 4096), 4160);
    assert_int_equal(strata_optim_moment_bytes(STRATA_OPTIM_MOMENTS_8BIT, 4097), 4160 + 65);
    assert_int_equal(strata_optim_moment_bytes((enum strata_optim_moments)3, 4097), 0);
}
