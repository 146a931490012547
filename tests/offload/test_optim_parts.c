/* Groups of tensors with parameters of their own, and steps in parts, against optimizers that take whole steps. */
#include "tests/common/assert_status.h"
#include "tests/common/child.h"
#include "tests/common/test.h"
#include "tests/offload/optim_fixture.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define GROUPS 3u

/* Of group g, of each rule something that it reads. */
static struct strata_optim_config config_of(const struct rule_case *rc, uint32_t g)
{
    struct strata_optim_config c = public_config(rc, 2, NULL);

    c.lr *= 1 + g;
    c.beta2 -= 0.1 * g;
    c.beta1 -= 0.05 * g;
    c.eps *= 1 + g;
    c.weight_decay = 0.01 * (1 + g);
    c.momentum -= rc->momentum > 0 ? 0.1 * g : 0;
    return c;
}

/* One optimizer with groups, set before the first step, against one for each group. */
TEST(groups_are_optimizers_of_their_own)
{
    for (size_t r = 0; r < RULE_CASES; r++) {
        const struct rule_case *rc = &rule_cases[r];
        const bool two = has_two_moments(rc->optimizer);
        struct strata_optim_config c[GROUPS];
        struct strata_optim *opt, *one[GROUPS];
        struct strata_optim_tensor tensors[TENSORS], others[TENSORS];

        for (uint32_t g = 0; g < GROUPS; g++) {
            c[g] = config_of(rc, g);
            one[g] = create(&c[g]);
        }
        opt = create(&c[0]);
        for (uint32_t g = 1; g < GROUPS; g++)
            assert_ok(strata_optim_set_group(opt, g, &c[g]));
        fill_start(STRATA_BF16);
        got = want = start;
        list_tensors(tensors, &got, SPLIT, STRATA_BF16, two, STRATA_OPTIM_MOMENTS_BF16);
        list_tensors(others, &want, SPLIT, STRATA_BF16, two, STRATA_OPTIM_MOMENTS_BF16);
        for (uint32_t i = 0; i < TENSORS; i++)
            tensors[i].group = i % GROUPS;
        for (uint32_t step = 0; step < STEPS; step++) {
            assert_ok(strata_optim_step(opt, tensors, TENSORS, 2, NULL));
            for (uint32_t i = 0; i < TENSORS; i++) {
                strata_optim_set_step(one[i % GROUPS], step);
                assert_ok(strata_optim_step(one[i % GROUPS], &others[i], 1, 2, NULL));
            }
        }
        assert_memory_equal(&got, &want, sizeof(got));
        for (uint32_t g = 0; g < GROUPS; g++)
            strata_optim_destroy(one[g]);
        strata_optim_destroy(opt);
    }
}

/* A schedule sets rates at each step; a beta that changes counts as if it had been so from the start; a resumed group is no
 * other. */
TEST(groups_may_change_between_steps)
{
    struct strata_optim_config c = public_config(&rule_cases[0], 2, NULL), changed = c;
    struct strata_optim *opt = create(&c), *resumed;
    struct strata_optim_tensor t, r;

    changed.beta2 = 0.9;
    changed.lr = 0.25;
    fill_start(STRATA_F32);
    got = start;
    t = tensor_at(&got, 0, 5000, SPLIT, STRATA_F32, true);
    t.group = 15;
    assert_ok(strata_optim_set_lr(opt, 0.5)); /* of group 0 */
    for (int i = 0; i < 7; i++)
        assert_ok(strata_optim_step(opt, &t, 1, 1, NULL));
    assert_ok(strata_optim_set_group(opt, 15, &changed));
    want = got;
    r = tensor_at(&want, 0, 5000, SPLIT, STRATA_F32, true);
    resumed = create(&changed);
    strata_optim_set_step(resumed, 7);
    assert_ok(strata_optim_step(opt, &t, 1, 1, NULL));
    assert_ok(strata_optim_step(resumed, &r, 1, 1, NULL));
    assert_memory_equal(&got, &want, sizeof(got));
    strata_optim_destroy(opt);
    strata_optim_destroy(resumed);
}

TEST(groups_that_are_refused)
{
    struct strata_optim_config c = public_config(&rule_cases[0], 1, NULL), wrong = c;
    struct strata_optim *opt = create(&c);
    struct strata_optim_tensor t;

    fill_start(STRATA_F32);
    got = want = start;
    t = tensor_at(&got, 0, 1000, SPLIT, STRATA_F32, true);
    assert_int_equal(strata_optim_set_group(opt, STRATA_OPTIM_GROUPS, &c), STRATA_E_INVAL);
    assert_int_equal(strata_optim_set_group(NULL, 0, &c), STRATA_E_INVAL);
    assert_int_equal(strata_optim_set_group(opt, 0, NULL), STRATA_E_INVAL);
    wrong.optimizer = STRATA_LION;
    assert_int_equal(strata_optim_set_group(opt, 1, &wrong), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "rule"));
    wrong = c;
    wrong.beta2 = 1;
    assert_int_equal(strata_optim_set_group(opt, 1, &wrong), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "beta2"));
    t.group = STRATA_OPTIM_GROUPS;
    assert_int_equal(strata_optim_step(opt, &t, 1, 1, NULL), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "group"));
    assert_memory_equal(&got, &want, sizeof(got));
    t.group = 1; /* which is as the optimizer was made */
    assert_ok(strata_optim_step(opt, &t, 1, 1, NULL));
    t = tensor_at(&want, 0, 1000, SPLIT, STRATA_F32, true);
    strata_optim_set_step(opt, 0);
    assert_ok(strata_optim_step(opt, &t, 1, 1, NULL));
    assert_memory_equal(&got, &want, sizeof(got));
    strata_optim_destroy(opt);
}

/* In another order, one by one; between the steps some are skipped. */
TEST(parts_make_a_step)
{
    for (size_t r = 0; r < RULE_CASES; r++) {
        const struct strata_optim_config c = public_config(&rule_cases[r], 2, NULL);
        const bool two = has_two_moments(rule_cases[r].optimizer);
        struct strata_optim *opt = create(&c), *whole = create(&c);
        struct strata_optim_tensor tensors[TENSORS], others[TENSORS];

        fill_start(STRATA_F32);
        got = want = start;
        list_tensors(tensors, &got, FULL_F16, STRATA_F32, two, STRATA_OPTIM_MOMENTS_8BIT);
        list_tensors(others, &want, FULL_F16, STRATA_F32, two, STRATA_OPTIM_MOMENTS_8BIT);
        for (uint32_t step = 0; step < STEPS; step++) {
            uint64_t overflowed = 0, sum = 0, one;

            assert_ok(strata_optim_begin(opt, 4));
            assert_ok(strata_optim_skip(opt));
            assert_int_equal(strata_optim_get_step(opt), step);
            assert_ok(strata_optim_begin(opt, 3));
            assert_ok(strata_optim_set_lr(opt, LR2)); /* of the next step */
            for (uint32_t i = TENSORS; i-- > 0;) {
                assert_ok(strata_optim_apply(opt, &tensors[i], 1, &one));
                sum += one;
            }
            assert_ok(strata_optim_end(opt));
            assert_ok(strata_optim_step(whole, others, TENSORS, 3, &overflowed));
            assert_ok(strata_optim_set_lr(whole, LR2));
            assert_int_equal(sum, overflowed);
            assert_int_equal(strata_optim_get_step(opt), step + 1);
        }
        assert_memory_equal(&got, &want, sizeof(got));
        strata_optim_destroy(opt);
        strata_optim_destroy(whole);
    }
}

TEST(parts_out_of_order_are_refused)
{
    const struct strata_optim_config c = public_config(&rule_cases[0], 1, NULL);
    struct strata_optim *opt = create(&c);
    struct strata_optim_tensor t;
    pid_t pid;

    fill_start(STRATA_F32);
    got = start;
    t = tensor_at(&got, 0, 1000, SPLIT, STRATA_F32, true);
    assert_int_equal(strata_optim_apply(opt, &t, 1, NULL), STRATA_E_INVAL);
    assert_int_equal(strata_optim_end(opt), STRATA_E_INVAL);
    assert_int_equal(strata_optim_skip(opt), STRATA_E_INVAL);
    assert_int_equal(strata_optim_begin(opt, 0), STRATA_E_INVAL);
    assert_int_equal(strata_optim_begin(opt, INFINITY), STRATA_E_INVAL);
    assert_int_equal(strata_optim_begin(NULL, 1), STRATA_E_INVAL);
    assert_ok(strata_optim_begin(opt, 1));
    assert_int_equal(strata_optim_begin(opt, 1), STRATA_E_INVAL);
    assert_int_equal(strata_optim_step(opt, &t, 1, 1, NULL), STRATA_E_INVAL);
    assert_int_equal(strata_optim_apply(opt, NULL, 1, NULL), STRATA_E_INVAL);
    t.grad = NULL;
    assert_int_equal(strata_optim_apply(opt, &t, 1, NULL), STRATA_E_INVAL);
    pid = child_fork();
    if (pid == 0)
        _exit(strata_optim_apply(opt, NULL, 0, NULL) == STRATA_E_INVAL && strata_optim_end(opt) == STRATA_E_INVAL ? 0 : 1);
    assert_int_equal(child_wait(pid), 0);
    t.grad = got.grad;
    assert_ok(strata_optim_apply(opt, &t, 1, NULL));
    assert_int_equal(strata_optim_skip(opt), STRATA_E_INVAL);
    assert_ok(strata_optim_end(opt));
    assert_int_equal(strata_optim_get_step(opt), 1);
    assert_ok(strata_optim_begin(opt, 1));
    strata_optim_set_step(opt, 5); /* forgets the step */
    assert_ok(strata_optim_step(opt, &t, 1, 1, NULL));
    assert_int_equal(strata_optim_get_step(opt), 6);
    strata_optim_destroy(opt);
}

/* Cut into packs, in another order, in several sums that are merged: the same bits, and the norm that the other function finds.
 */
TEST(norms_add_up_exactly)
{
    const struct strata_optim_config c = public_config(&rule_cases[0], 3, NULL);
    struct strata_optim *opt = create(&c);

    for (size_t d = 0; d < GRAD_DTYPES; d++) {
        struct strata_optim_norm whole = {0}, parts[3] = {0};
        struct strata_optim_tensor tensors[TENSORS];
        const size_t width = strata_dtype_bytes(grad_dtypes[d]);
        double norm;

        fill_start(grad_dtypes[d]);
        got = start;
        list_tensors(tensors, &got, SPLIT, grad_dtypes[d], true, STRATA_OPTIM_MOMENTS_F32);
        assert_ok(strata_optim_norm_add(opt, tensors, TENSORS, &whole));
        for (uint32_t i = TENSORS; i-- > 0;)
            for (size_t at = tensors[i].elems / PACK * PACK + PACK; at > 0; at -= PACK) {
                struct strata_optim_tensor part = tensors[i];

                part.grad = (const char *)part.grad + (at - PACK) * width;
                part.elems = part.elems < at ? part.elems - (at - PACK) : PACK;
                assert_ok(strata_optim_norm_add(opt, &part, 1, &parts[at / PACK % 3]));
            }
        strata_optim_norm_merge(&parts[0], &parts[1]);
        strata_optim_norm_merge(&parts[2], &parts[0]);
        strata_optim_norm_merge(&parts[2], NULL);
        assert_memory_equal(&parts[2], &whole, sizeof(whole));
        assert_ok(strata_optim_grad_norm(opt, tensors, TENSORS, &norm, NULL));
        assert_true(fabs(strata_optim_norm_value(&whole) - norm) <= 1e-15 * norm);
        strata_optim_norm_merge(&whole, &whole);
        assert_true(fabs(strata_optim_norm_value(&whole) - sqrt(2) * norm) <= 1e-15 * sqrt(2) * norm);
    }
    strata_optim_destroy(opt);
}

static struct strata_optim_norm norm_of(struct strata_optim *opt, const float *grad, size_t elems)
{
    const struct strata_optim_tensor t = {.grad = grad, .grad_dtype = STRATA_F32, .elems = elems};
    struct strata_optim_norm norm = {0};

    assert_ok(strata_optim_norm_add(opt, &t, 1, &norm));
    return norm;
}

/* The least and the largest numbers, and what is lost when it is added to 1 in double. */
TEST(norms_lose_no_bit)
{
    const struct strata_optim_config c = public_config(&rule_cases[0], 1, NULL);
    struct strata_optim *opt = create(&c);
    static float one[] = {0x1p0f}, least[] = {0x1p-149f}, half[] = {0x1p-27f, 0}, big[PACK], bad[] = {1, NAN, INFINITY};
    struct strata_optim_norm sum = norm_of(opt, one, 0);

    assert_true(strata_optim_norm_value(&sum) == 0 && strata_optim_norm_value(NULL) == 0);
    sum = norm_of(opt, least, 1);
    assert_int_equal(sum.words[0], 1);
    assert_true(strata_optim_norm_value(&sum) == 0x1p-149);
    for (size_t i = 0; i < PACK; i++)
        big[i] = 0x1p127f;
    sum = norm_of(opt, big, PACK);
    assert_true(strata_optim_norm_value(&sum) == 0x1p127 * 64);
    for (int i = 0; i < 40; i++) /* as many as no run has */
        strata_optim_norm_merge(&sum, &sum);
    assert_true(strata_optim_norm_value(&sum) == 0x1p127 * 64 * 0x1p20);

    sum = norm_of(opt, one, 1);
    for (int i = 0; i < 8; i++) {
        const struct strata_optim_norm more = norm_of(opt, half, 1);

        strata_optim_norm_merge(&sum, &more);
    }
    assert_true(strata_optim_norm_value(&sum) == 1 + 0x1p-52);
    sum = norm_of(opt, bad, 3);
    assert_int_equal(sum.nonfinite, 2);
    assert_true(isinf(strata_optim_norm_value(&sum)));
    assert_int_equal(strata_optim_norm_add(opt, NULL, 1, &sum), STRATA_E_INVAL);
    assert_int_equal(strata_optim_norm_add(opt, NULL, 0, NULL), STRATA_E_INVAL);
    strata_optim_destroy(opt);
}

TEST_GROUP(NULL, NULL);
