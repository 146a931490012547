/* The public optimizers against the engine's kernels and coefficients, called plainly: the same bits for every rule, layout,
 * gradient dtype, number of threads and instruction set; norms, resuming, and what is refused. */
#include "tests/common/assert_status.h"
#include "tests/common/child.h"
#include "tests/common/fault_walk.h"
#include "tests/common/test.h"
#include "tests/offload/optim_fixture.h"

#include <fenv.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREADS 4u

TEST(steps_equal_the_kernels)
{
    struct strata_optim *opts[THREADS + 8];

    for (size_t r = 0; r < RULE_CASES; r++) {
        const size_t count = create_all(opts, &rule_cases[r], THREADS);

        for (int mode = 0; mode < MODE_COUNT; mode++)
            for (size_t d = 0; d < sizeof(grad_dtypes) / sizeof(grad_dtypes[0]); d++)
                compare_case(opts, count, &rule_cases[r], (enum mode)mode, grad_dtypes[d], STRATA_OPTIM_MOMENTS_F32);
        for (size_t i = 0; i < count; i++)
            strata_optim_destroy(opts[i]);
    }
}

/* More tensors than a wave of tiles holds, against one large one. */
TEST(many_small_tensors)
{
    static struct strata_optim_tensor parts[ELEMS / 64 + 1];
    const struct strata_optim_config c = public_config(&rule_cases[0], 3, NULL);
    struct strata_optim *opt = create(&c);
    struct strata_optim_tensor whole;
    size_t count = 0;

    fill_start(STRATA_BF16);
    got = want = start;
    for (size_t at = 0; at < ELEMS; at += 64)
        parts[count++] = tensor_at(&got, at, ELEMS - at < 64 ? ELEMS - at : 64, SPLIT, STRATA_BF16, true);
    whole = tensor_at(&want, 0, ELEMS, SPLIT, STRATA_BF16, true);
    assert_int_equal(strata_optim_step(opt, parts, count, 1, NULL), STRATA_OK);
    strata_optim_set_step(opt, 0);
    assert_int_equal(strata_optim_step(opt, &whole, 1, 1, NULL), STRATA_OK);
    assert_memory_equal(&got, &want, sizeof(got));
    strata_optim_destroy(opt);
}

TEST(resumed_bits_are_the_same)
{
    struct strata_optim_config c = public_config(&rule_cases[0], 2, NULL);
    struct strata_optim *opt, *resumed;
    struct strata_optim_tensor t, r;

    c.beta2 = 0.95;
    opt = create(&c);
    resumed = create(&c);
    fill_start(STRATA_F32);
    for (int f = STRATA_OPTIM_MOMENTS_F32; f < 4 * (STRATA_OPTIM_MOMENTS_8BIT + 1); f++) {
        static const int counts[] = {1, 2, 20, 500}; /* soon the powers matter much, and at last no more */

        got = start;
        t = tensor_at(&got, 0, 1000, SPLIT, STRATA_F32, true);
        t.moment_format = (enum strata_optim_moments)(f / 4);
        strata_optim_set_step(opt, 0);
        for (int i = 0; i < counts[f % 4]; i++)
            assert_int_equal(strata_optim_step(opt, &t, 1, 1, NULL), STRATA_OK);
        want = got;
        r = tensor_at(&want, 0, 1000, SPLIT, STRATA_F32, true);
        r.moment_format = t.moment_format;
        strata_optim_set_step(resumed, strata_optim_get_step(opt));
        for (int i = 0; i < 3; i++) {
            assert_int_equal(strata_optim_step(opt, &t, 1, 1, NULL), STRATA_OK);
            assert_int_equal(strata_optim_step(resumed, &r, 1, 1, NULL), STRATA_OK);
        }
        assert_memory_equal(&got, &want, sizeof(got));
    }
    strata_optim_set_step(resumed, UINT64_MAX / 2); /* the powers have long reached their end */
    assert_int_equal(strata_optim_get_step(resumed), UINT64_MAX / 2);
    strata_optim_set_step(resumed, UINT64_MAX); /* the count stays there: step 0 would divide by 0 */
    assert_int_equal(strata_optim_step(resumed, &r, 1, 1, NULL), STRATA_OK);
    assert_true(strata_optim_get_step(resumed) == UINT64_MAX && (want.weight[0] & 0x7f80) != 0x7f80);
    strata_optim_destroy(opt);
    strata_optim_destroy(resumed);
}

/* However the caller's thread rounds, when it creates an optimizer and when it calls one. */
TEST(the_callers_rounding_changes_no_bits)
{
    const struct strata_optim_config c = public_config(&rule_cases[0], 3, NULL);
    double norm[2];

    fill_start(STRATA_F32);
    for (int turn = 0; turn < 2; turn++) {
        struct strata_optim_tensor t = tensor_at(&got, 0, ELEMS, SPLIT, STRATA_F32, true);
        struct strata_optim *opt;

        got = start;
        assert_int_equal(fesetround(turn == 0 ? FE_TONEAREST : FE_UPWARD), 0);
        opt = create(&c);
        strata_optim_set_step(opt, 7);
        for (int i = 0; i < 2; i++)
            assert_int_equal(strata_optim_step(opt, &t, 1, 3, NULL), STRATA_OK);
        assert_int_equal(strata_optim_grad_norm(opt, &t, 1, &norm[turn], NULL), STRATA_OK);
        assert_int_equal(strata_optim_split(opt, got.weight, got.low_half, got.grad, 1000), STRATA_OK);
        assert_int_equal(fegetround(), turn == 0 ? FE_TONEAREST : FE_UPWARD);
        assert_int_equal(fesetround(FE_TONEAREST), 0);
        strata_optim_destroy(opt);
        if (turn == 0)
            want = got;
    }
    assert_true(norm[0] == norm[1]);
    assert_memory_equal(&got, &want, sizeof(got));
}

TEST(overflow_is_counted)
{
    const struct rule_case *sgd = &rule_cases[4];
    struct strata_optim_config c = public_config(sgd, 2, NULL);
    struct strata_optim *opt;
    struct strata_optim_tensor t;
    uint64_t overflowed = 0;

    c.lr = 0;
    opt = create(&c);
    fill_start(STRATA_F32);
    got = start;
    got.master[7] = 70000.0f; /* above fp16 */
    got.master[70000] = -1e30f;
    t = tensor_at(&got, 0, ELEMS, FULL_F16, STRATA_F32, false);
    assert_int_equal(strata_optim_step(opt, &t, 1, 1, &overflowed), STRATA_OK);
    assert_int_equal(overflowed, 2);
    assert_int_equal(got.copy[7], 0x7c00);
    assert_int_equal(got.copy[70000], 0xfc00);
    strata_optim_destroy(opt);
}

TEST(defaults_are_the_configs)
{
    for (size_t r = 0; r < 5; r++) {
        const struct rule_case *rc = &rule_cases[r];
        const struct st_optimizer e =
            engine_config(rc->type, rc->optimizer == STRATA_ADAM ? "\"adam_w_mode\": false" : "").optimizer;
        struct strata_optim_config c;

        strata_optim_defaults(&c, rc->optimizer);
        assert_int_equal((int)c.optimizer, (int)e.type);
        assert_true(c.lr == e.lr && c.weight_decay == e.weight_decay && c.momentum == e.momentum && c.dampening == e.dampening);
        assert_true(c.nesterov == e.nesterov && c.threads == 0 && c.isa == NULL);
        if (has_two_moments(rc->optimizer))
            assert_true(c.bias_correction == e.bias_correction);
        if (has_two_moments(rc->optimizer) || rc->optimizer == STRATA_LION)
            assert_true(c.beta1 == e.beta1 && c.beta2 == e.beta2);
        if (has_two_moments(rc->optimizer) || rc->optimizer == STRATA_ADAGRAD)
            assert_true(c.eps == e.eps);
    }
}

/* The sum of `want`'s tensors by the scalar kernel, in order; checked against a plain sum. */
static double plain_norm(strata_dtype dt)
{
    const struct st_kernels *k = st_kernels_pick("scalar");
    static double sums[ELEMS / ST_NORM_BLOCK + 1];
    static float wide[ELEMS];
    double sum = 0, plain = 0;
    size_t first = 0;

    for (size_t i = 0; i < TENSORS; i++) {
        const uint16_t *narrow = (const uint16_t *)(const void *)want.grad + first;

        if (dt == STRATA_F32)
            memcpy(wide, want.grad + first, sizes[i] * 4);
        else
            (dt == STRATA_BF16 ? k->bf16_to_f32 : k->f16_to_f32)(wide, narrow, sizes[i]);
        k->grad_finish(wide, STRATA_F32, wide, sizes[i], sums);
        sum += st_norm_group(sums, (sizes[i] + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK);
        for (size_t e = 0; e < sizes[i]; e++)
            plain += (double)wide[e] * wide[e];
        first += sizes[i];
    }
    assert_true(fabs(sum - plain) <= 1e-12 * plain);
    return sqrt(sum);
}

TEST(norm_is_the_same_everywhere)
{
    const struct st_kernels *k;

    for (size_t i = 0; (k = st_kernels_usable(i)) != NULL; i++) {
        for (uint32_t threads = 1; threads <= THREADS; threads++) {
            const struct strata_optim_config c = public_config(&rule_cases[0], threads, k->name);
            struct strata_optim *opt = create(&c);

            for (size_t d = 0; d < sizeof(grad_dtypes) / sizeof(grad_dtypes[0]); d++) {
                struct strata_optim_tensor tensors[TENSORS];
                uint64_t nonfinite = 99;
                double norm = -1;

                fill_start(grad_dtypes[d]);
                got = want = start;
                list_tensors(tensors, &got, SPLIT, grad_dtypes[d], true, STRATA_OPTIM_MOMENTS_F32);
                assert_int_equal(strata_optim_grad_norm(opt, tensors, TENSORS, &norm, &nonfinite), STRATA_OK);
                assert_true(norm > 0 && norm == plain_norm(grad_dtypes[d]));
                assert_int_equal(nonfinite, 0);
                assert_memory_equal(&got, &start, sizeof(got));
            }
            strata_optim_destroy(opt);
        }
    }
}

/* Workers take 4096 tiles at a time: where between its tiles a tensor is cut so does not show. */
TEST(norm_of_many_tensors)
{
    enum { MOST = 4096, LEAST = MOST - (ELEMS - 1) / ST_TILE_ELEMS };
    static double sums[ELEMS / ST_NORM_BLOCK + 1];
    static struct strata_optim_tensor tensors[MOST + 1];
    const struct strata_optim_config c = public_config(&rule_cases[0], 2, NULL);
    struct strata_optim *opt = create(&c);
    double before = 0, norm = -1;

    fill_start(STRATA_F32);
    st_kernels_pick("scalar")->grad_finish(got.grad, STRATA_F32, start.grad, ELEMS, sums);
    for (size_t i = 0; i <= MOST; i++) {
        if (i >= LEAST) { /* so many of one element before it */
            tensors[i] = (struct strata_optim_tensor){.grad = start.grad, .grad_dtype = STRATA_F32, .elems = ELEMS};
            assert_int_equal(strata_optim_grad_norm(opt, tensors, i + 1, &norm, NULL), STRATA_OK);
            assert_true(norm == sqrt(before + st_norm_group(sums, sizeof(sums) / sizeof(sums[0]))));
        }
        tensors[i] = (struct strata_optim_tensor){.grad = start.grad + i, .grad_dtype = STRATA_F32, .elems = 1};
        before += (double)start.grad[i] * start.grad[i];
    }
    strata_optim_destroy(opt);
}

TEST(norm_counts_what_is_not_finite)
{
    const struct strata_optim_config c = public_config(&rule_cases[0], 2, NULL);
    struct strata_optim *opt = create(&c);
    struct strata_optim_tensor t = {.grad = got.grad, .grad_dtype = STRATA_F32, .elems = ELEMS};
    uint64_t nonfinite = 0;
    double norm = -1;

    fill_start(STRATA_F32);
    got = start;
    got.grad[5] = INFINITY;
    got.grad[70001] = -INFINITY;
    assert_int_equal(strata_optim_grad_norm(opt, &t, 1, &norm, &nonfinite), STRATA_OK);
    assert_true(nonfinite == 2 && isinf(norm));
    got.grad[ELEMS - 1] = NAN;
    assert_int_equal(strata_optim_grad_norm(opt, &t, 1, &norm, &nonfinite), STRATA_OK);
    assert_true(nonfinite == 3 && isnan(norm));
    assert_int_equal(strata_optim_grad_norm(opt, NULL, 0, &norm, NULL), STRATA_OK);
    assert_true(norm == 0);
    strata_optim_destroy(opt);
}

TEST(split_and_join)
{
    const struct strata_optim_config c = public_config(&rule_cases[0], 3, NULL);
    struct strata_optim *opt = create(&c);

    fill_start(STRATA_F32);
    memset(&got, 0, sizeof(got));
    assert_int_equal(strata_optim_split(opt, got.weight, got.low_half, start.master, ELEMS), STRATA_OK);
    assert_memory_equal(got.weight, start.weight, sizeof(got.weight));
    assert_memory_equal(got.low_half, start.low_half, sizeof(got.low_half));
    assert_int_equal(strata_optim_join(opt, got.master, start.weight, start.low_half, ELEMS), STRATA_OK);
    assert_memory_equal(got.master, start.master, sizeof(got.master));
    assert_int_equal(strata_optim_split(opt, NULL, NULL, NULL, 0), STRATA_OK);
    assert_int_equal(strata_optim_join(opt, NULL, got.weight, got.low_half, 1), STRATA_E_INVAL);
    strata_optim_destroy(opt);
}

/* --- refusals --- */

TEST(bad_configs)
{
#define BAD(optimizer_, member, value, status_, sentence_)                                                                       \
    do {                                                                                                                         \
        struct strata_optim *opt = NULL;                                                                                         \
        struct strata_optim_config c;                                                                                            \
        strata_optim_defaults(&c, optimizer_);                                                                                   \
        c.member = value;                                                                                                        \
        assert_refused(strata_optim_create(&opt, &c), status_, sentence_);                                                       \
        assert_null(opt);                                                                                                        \
    } while (0)
    BAD(STRATA_ADAMW, threads, 257, STRATA_E_INVAL, "257 threads asked for, at most 256");
    BAD(STRATA_ADAMW, isa, "sse9", STRATA_E_NOSYS, "isa \"sse9\" is unknown, or this CPU lacks it: usable here are ");
    for (size_t i = 0; st_kernels_usable(i) != NULL; i++)
        BAD(STRATA_ADAMW, isa, "sse9", STRATA_E_NOSYS, st_kernels_usable(i)->name);
    BAD(STRATA_ADAMW, lr, NAN, STRATA_E_INVAL, "lr is nan: it must be from 0 to 1000");
    BAD(STRATA_ADAMW, lr, -1, STRATA_E_INVAL, "lr is -1");
    BAD(STRATA_LION, beta2, 1, STRATA_E_INVAL, "beta2 is 1: it must be from 0 to 0.9999999");
    BAD(STRATA_ADAGRAD, eps, 0, STRATA_E_INVAL, "eps is 0: it must be from 1e-30 to 1");
    BAD(STRATA_SGD, weight_decay, INFINITY, STRATA_E_INVAL, "weight_decay is inf");
    BAD(STRATA_SGD, nesterov, true, STRATA_E_INVAL, "nesterov needs momentum above 0 and dampening 0, not 0 and 0");
    BAD((enum strata_optimizer)5, lr, 1, STRATA_E_INVAL, "5 is unknown: AdamW, Adam, Adagrad, Lion and SGD are 0 to 4");
#undef BAD
}

TEST(ignores_what_the_rule_does_not_read)
{
    struct strata_optim_config c = public_config(&rule_cases[4], 1, "auto");
    struct strata_optim *opt;

    c.beta1 = 7;
    c.eps = -1;
    opt = create(&c);
    strata_optim_destroy(opt);
    strata_optim_destroy(NULL);
}

TEST(bad_tensors)
{
#define BAD(change, sentence)                                                                                                    \
    do {                                                                                                                         \
        struct strata_optim_tensor t[2] = {good, good};                                                                          \
        change;                                                                                                                  \
        assert_refused(strata_optim_step(opt, t, 2, 1, NULL), STRATA_E_INVAL, sentence);                                         \
    } while (0)
    const struct strata_optim_config adamw = public_config(&rule_cases[0], 1, NULL),
                                     lion = public_config(&rule_cases[3], 1, NULL);
    struct strata_optim *opt = create(&adamw);
    struct strata_optim_tensor good;
    double norm = -1;

    fill_start(STRATA_BF16);
    got = start;
    good = tensor_at(&got, 0, 100, SPLIT, STRATA_BF16, true);
    BAD(t[1].moment2 = NULL, "tensor 1: moment2 is NULL, and its rule and layout need it");
    BAD(t[1].moment1 = NULL, "tensor 1: moment1 is NULL");
    BAD(t[1].weight = NULL, "tensor 1: weight is NULL");
    BAD(t[1].low_half = NULL, "tensor 1: low_half is NULL");
    BAD(t[1].grad = NULL, "tensor 1: grad is NULL");
    BAD(t[1].grad = (char *)got.grad + 1, "tensor 1: grad is not aligned to 2 bytes");
    BAD(t[1].grad_dtype = STRATA_DTYPE_INVALID, "tensor 1: grad_dtype is 0: it must be F32, BF16 or F16");
    BAD(t[1].layout = STRATA_OPTIM_F32, "tensor 1: master is NULL");
    BAD(t[1].layout = STRATA_OPTIM_FULL, "tensor 1: copy_dtype is 0: it must be BF16 or F16");
    BAD((t[1].layout = STRATA_OPTIM_FULL, t[1].copy_dtype = STRATA_F16), "tensor 1: copy is NULL");
    BAD(t[1].moment1 = (char *)got.moment1 + 2, "tensor 1: moment1 is not aligned to 4 bytes");
    BAD(t[1].moment_format = (enum strata_optim_moments)3, "tensor 1: moment_format is 3: it must be F32, BF16 or 8BIT");
    BAD((t[1].moment_format = STRATA_OPTIM_MOMENTS_BF16, t[1].position = 100),
        "tensor 1: position is 100: with moments that are not fp32 it must be a multiple of 4096");
    BAD((t[1].moment_format = STRATA_OPTIM_MOMENTS_8BIT, t[1].position = 4097), "tensor 1: position is 4097");
    BAD((t[1].moment_format = STRATA_OPTIM_MOMENTS_BF16, t[1].moment1 = (char *)got.moment1 + 1),
        "tensor 1: moment1 is not aligned to 2 bytes");
    BAD((t[1].moment_format = STRATA_OPTIM_MOMENTS_8BIT, t[1].moment2 = (char *)got.moment2 + 2),
        "tensor 1: moment2 is not aligned to 4 bytes");
    BAD(t[1].layout = (enum strata_optim_layout)9, "tensor 1: layout is 9: it must be SPLIT, FULL or F32");
    assert_refused(strata_optim_step(opt, &good, 1, 0, NULL), STRATA_E_INVAL, "grad_divisor is 0: it must be finite and above 0");
    assert_refused(strata_optim_step(opt, &good, 1, NAN, NULL), STRATA_E_INVAL, "grad_divisor is nan");
    assert_refused(strata_optim_set_lr(opt, -1), STRATA_E_INVAL, "lr is -1");
    good.grad = NULL;
    assert_refused(strata_optim_grad_norm(opt, &good, 1, &norm, NULL), STRATA_E_INVAL, "tensor 0: grad is NULL");
    assert_true(norm == -1);
    assert_int_equal(strata_optim_get_step(opt), 0);
    assert_memory_equal(&got, &start, sizeof(got));
    assert_int_equal(strata_optim_step(opt, &(struct strata_optim_tensor){0}, 1, 1, NULL), STRATA_OK); /* elems 0 */
    assert_int_equal(strata_optim_step(opt, NULL, 0, 1, NULL), STRATA_OK);
    assert_int_equal(strata_optim_get_step(opt), 2);
    strata_optim_destroy(opt);

    opt = create(&lion);
    good = tensor_at(&got, 0, 100, SPLIT, STRATA_BF16, true);
    BAD((void)t, "tensor 0: moment2 is given, but Lion has one moment: set it to NULL");
    strata_optim_destroy(opt);
#undef BAD
}

TEST(every_single_failure_is_clean)
{
    const struct strata_optim_config c = public_config(&rule_cases[0], 3, NULL);
    struct fault_walk walk = {.result = -12};

    while (fault_walk_next(&walk)) {
        struct strata_optim *opt = NULL;
        const strata_status st = strata_optim_create(&opt, &c);

        fault_walk_end(&walk, st);
        assert_true((st == STRATA_OK) == (opt != NULL));
        strata_optim_destroy(opt);
    }
    assert_true(walk.failed >= 3);
}

static bool is_anothers(strata_status st)
{
    return st == STRATA_E_INVAL && strstr(strata_last_error(), "was created by process") != NULL;
}

/* What a child of fork() does with its parent's optimizer; 0, or which call was wrong. */
static int call_in_child(struct strata_optim *opt)
{
    float master = 1, grad = 1, moment1 = 0, moment2 = 0;
    const struct strata_optim_tensor t = {.layout = STRATA_OPTIM_F32,
                                          .master = &master,
                                          .moment1 = &moment1,
                                          .moment2 = &moment2,
                                          .grad = &grad,
                                          .grad_dtype = STRATA_F32,
                                          .elems = 1};
    const struct strata_optim_config c = public_config(&rule_cases[0], 1, NULL);
    struct strata_optim *own = NULL;
    uint16_t weight = 0;
    int16_t low_half = 0;
    double norm;

    if (!is_anothers(strata_optim_step(opt, &t, 1, 1, NULL)) || master != 1)
        return 1;
    if (!is_anothers(strata_optim_grad_norm(opt, &t, 1, &norm, NULL)))
        return 2;
    if (!is_anothers(strata_optim_split(opt, &weight, &low_half, &master, 1)))
        return 3;
    if (!is_anothers(strata_optim_join(opt, &master, &weight, &low_half, 1)))
        return 4;
    strata_optim_destroy(opt);
    if (strata_optim_create(&own, &c) != STRATA_OK || strata_optim_step(own, &t, 1, 1, NULL) != STRATA_OK)
        return 5;
    strata_optim_destroy(own);
    return 0;
}

TEST(a_child_leaves_its_parents_threads_alone)
{
    const struct strata_optim_config c = public_config(&rule_cases[0], THREADS, NULL);
    struct strata_optim *opt = create(&c);
    pid_t child;

    child = child_fork();
    if (child == 0)
        _exit(call_in_child(opt));
    assert_int_equal(child_wait(child), 0);
    strata_optim_destroy(opt);
}
