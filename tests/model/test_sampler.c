/* tests/model/test_sampler.c - the token for a given random number, against a plain sort in fp64. */
#include "model/decoder/sampler.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "core/base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB_MOST 300u

/* --- the reference --- */

struct place {
    double logit, probability;
    int32_t token;
};

static int by_logit(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

static void normalise(struct place *places, uint32_t count)
{
    double sum = 0;

    for (uint32_t i = 0; i < count; i++)
        sum += places[i].probability;
    for (uint32_t i = 0; i < count; i++)
        places[i].probability /= sum;
}

/* *near: the random number lies so close to a border that rounding decides. */
static int32_t reference(const float *logits, uint32_t vocab, const struct st_sampler_opts *opts, double uniform, bool *near)
{
    struct place places[VOCAB_MOST];
    uint32_t count = vocab;
    double sum = 0;

    *near = false;
    for (uint32_t i = 0; i < vocab; i++)
        places[i] = (struct place){.logit = (double)logits[i], .token = (int32_t)i};
    qsort(places, vocab, sizeof(places[0]), by_logit);
    if (opts->temperature == 0)
        return places[0].token;
    for (uint32_t i = 0; i < vocab; i++)
        places[i].probability = exp((places[i].logit - places[0].logit) / opts->temperature);
    if (opts->top_k != 0 && opts->top_k < count)
        count = opts->top_k;
    while (count < vocab && places[count].logit == places[count - 1].logit)
        count++;
    normalise(places, count);
    for (uint32_t i = 0; i < count && opts->top_p < 1; i++) {
        sum += places[i].probability;
        *near |= fabs(sum - opts->top_p) < 1e-12;
        if (sum >= opts->top_p)
            count = i + 1;
    }
    normalise(places, count);
    sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += places[i].probability;
        *near |= fabs(sum - uniform) < 1e-12;
        if (sum > uniform)
            return places[i].token;
    }
    return places[0].token;
}

/* --- tests --- */

static struct st_sampler *make(uint32_t vocab, double temperature, uint32_t top_k, double top_p)
{
    const struct st_sampler_opts opts = {
        .temperature = temperature, .top_k = top_k, .top_p = top_p, .repetition_penalty = 1, .seed = 5};
    struct st_sampler *s = NULL;

    assert_int_equal(st_sampler_create(&s, vocab, &opts), STRATA_OK);
    return s;
}

static int32_t picked(struct st_sampler *s, const float *logits, double uniform)
{
    int32_t token = -1;

    assert_int_equal(st_sampler_pick(s, logits, uniform, &token), STRATA_OK);
    return token;
}

TEST(greedy_takes_the_largest_and_the_first_of_equals)
{
    const float logits[] = {1.0f, -2.0f, 7.0f, 7.0f, -INFINITY};
    struct st_sampler *s = make(5, 0, 0, 1);

    for (int i = 0; i < 10; i++)
        assert_int_equal(picked(s, logits, i * 0.0999), 2);
    st_sampler_destroy(s);
}

/* Probabilities 1/2, 1/4, 1/8, 1/8 in the order of tokens 3, 0, 1, 2: every border is exact. */
TEST(borders_are_exact)
{
    const float quarter = (float)log(0.25), eighth = (float)log(0.125);
    const float logits[] = {quarter, eighth, eighth, (float)log(0.5)};
    struct st_sampler *all = make(4, 1, 0, 1), *two = make(4, 1, 2, 1), *half = make(4, 1, 0, 0.4), *most = make(4, 1, 0, 0.8);

    assert_int_equal(picked(all, logits, 0), 3);
    assert_int_equal(picked(all, logits, 0.49), 3);
    assert_int_equal(picked(all, logits, 0.51), 0);
    assert_int_equal(picked(all, logits, 0.74), 0);
    assert_int_equal(picked(all, logits, 0.76), 1);
    assert_int_equal(picked(all, logits, 0.88), 2);
    assert_int_equal(picked(all, logits, 1 - 0x1p-53), 2);
    assert_int_equal(picked(two, logits, 0.66), 3); /* 2/3 and 1/3 */
    assert_int_equal(picked(two, logits, 0.67), 0);
    assert_int_equal(picked(two, logits, 1 - 0x1p-53), 0);
    assert_int_equal(picked(half, logits, 1 - 0x1p-53), 3); /* one token has enough */
    assert_int_equal(picked(most, logits, 0.57), 3);        /* 4/7, 2/7, 1/7 */
    assert_int_equal(picked(most, logits, 0.58), 0);
    assert_int_equal(picked(most, logits, 0.86), 1);
    st_sampler_destroy(all);
    st_sampler_destroy(two);
    st_sampler_destroy(half);
    st_sampler_destroy(most);
}

/* transformers removes what is less likely than the k-th, so that equal ones have equal chances whatever their numbers are. */
TEST(what_is_as_likely_as_the_last_of_top_k_stays)
{
    const float logits[] = {1.0f, 2.0f, 1.0f, 0.0f, 1.0f};
    struct st_sampler *two = make(5, 1, 2, 1), *one = make(5, 1, 1, 1);
    bool drawn[5] = {false};

    for (int i = 0; i < 100; i++)
        drawn[picked(two, logits, i / 100.0)] = true;
    assert_true(drawn[0] && drawn[1] && drawn[2] && drawn[4]);
    assert_false(drawn[3]);
    assert_int_equal(picked(one, logits, 1 - 0x1p-53), 1);
    st_sampler_destroy(two);
    st_sampler_destroy(one);
}

/* The smallest set whose probability is top-p, not the next larger one. */
TEST(a_set_with_just_the_probability_is_enough)
{
    const float equal[] = {1.0f, 1.0f, 1.0f, 1.0f};
    struct st_sampler *half = make(4, 1, 0, 0.5), *quarter = make(4, 1, 0, 0.25), *more = make(4, 1, 0, 0.51);

    assert_int_equal(picked(half, equal, 1 - 0x1p-53), 1);
    assert_int_equal(picked(quarter, equal, 1 - 0x1p-53), 0);
    assert_int_equal(picked(more, equal, 1 - 0x1p-53), 2);
    st_sampler_destroy(half);
    st_sampler_destroy(quarter);
    st_sampler_destroy(more);
}

static void logits_fill(float *logits, uint32_t vocab, uint64_t round)
{
    st_rng_normal(logits, vocab, 11, round, 0, 3.0f);
    for (uint32_t i = 0; i < vocab; i++) {
        if (round % 3 == 1)
            logits[i] = roundf(logits[i]); /* many equal ones */
        if (round % 5 == 2 && i % 4 == 1)
            logits[i] = -INFINITY;
    }
}

TEST(every_option_matches_the_reference)
{
    static const uint32_t vocabs[] = {1, 2, 3, 17, 256, 300}, top_ks[] = {0, 1, 5, 1000};
    static const double temperatures[] = {0, 0.01, 0.7, 1, 3}, top_ps[] = {1, 0.95, 0.5, 1e-9};
    float logits[VOCAB_MOST];
    uint64_t round = 0, compared = 0;

    for (size_t v = 0; v < 6; v++)
        for (size_t t = 0; t < 5; t++)
            for (size_t k = 0; k < 4; k++)
                for (size_t p = 0; p < 4; p++, round++) {
                    const struct st_sampler_opts opts = {.temperature = temperatures[t],
                                                         .top_k = top_ks[k],
                                                         .top_p = top_ps[p],
                                                         .repetition_penalty = 1,
                                                         .seed = 5};
                    struct st_sampler *s = make(vocabs[v], opts.temperature, opts.top_k, opts.top_p);

                    logits_fill(logits, vocabs[v], round);
                    for (uint64_t i = 0; i < 20; i++) {
                        const double uniform = (double)(st_rng_u64(3, round, i) >> 11) * 0x1p-53;
                        bool near;
                        const int32_t wanted = reference(logits, vocabs[v], &opts, uniform, &near);

                        if (near)
                            continue;
                        assert_int_equal(picked(s, logits, uniform), wanted);
                        compared++;
                    }
                    st_sampler_destroy(s);
                }
    assert_true(compared > 9000);
}

TEST(a_seed_gives_the_same_tokens)
{
    float logits[VOCAB_MOST];
    struct st_sampler *a = make(VOCAB_MOST, 2, 0, 0.9), *b = make(VOCAB_MOST, 2, 0, 0.9), *other;
    const struct st_sampler_opts seed6 = {.temperature = 2, .top_p = 0.9, .repetition_penalty = 1, .seed = 6};
    uint32_t differ = 0;

    assert_int_equal(st_sampler_create(&other, VOCAB_MOST, &seed6), STRATA_OK);
    logits_fill(logits, VOCAB_MOST, 0);
    for (uint64_t i = 0; i < 50; i++) {
        int32_t x, y, z;

        assert_int_equal(st_sampler_next(a, logits, i, &x), STRATA_OK);
        assert_int_equal(st_sampler_next(b, logits, 49 - i, &y), STRATA_OK); /* any order */
        assert_int_equal(st_sampler_next(b, logits, i, &y), STRATA_OK);
        assert_int_equal(st_sampler_next(other, logits, i, &z), STRATA_OK);
        assert_int_equal(x, y);
        differ += x != z;
    }
    assert_true(differ > 10);
    st_sampler_destroy(a);
    st_sampler_destroy(b);
    st_sampler_destroy(other);
}

TEST(logits_that_are_no_numbers_are_refused)
{
    float logits[4] = {0, NAN, 1, 2};
    struct st_sampler *greedy = make(4, 0, 0, 1), *warm = make(4, 1, 0, 1);
    int32_t token = -7;

    assert_int_equal(st_sampler_next(greedy, logits, 0, &token), STRATA_E_NUMERICS);
    assert_int_equal(st_sampler_next(warm, logits, 0, &token), STRATA_E_NUMERICS);
    logits[1] = INFINITY;
    assert_int_equal(st_sampler_next(warm, logits, 0, &token), STRATA_E_NUMERICS);
    for (int i = 0; i < 4; i++)
        logits[i] = -INFINITY;
    assert_int_equal(st_sampler_next(greedy, logits, 0, &token), STRATA_E_NUMERICS);
    assert_non_null(strstr(strata_last_error(), "-inf"));
    assert_int_equal(token, -7);
    st_sampler_destroy(greedy);
    st_sampler_destroy(warm);
}

/* Above 0 divided, below multiplied, and once however often a token was seen; sampling or not. */
TEST(tokens_seen_are_less_likely)
{
    static const float logits[4] = {3, 4, -1, -2}, none_above[4] = {-3, -1.5f, -2, -4};
    const struct st_sampler_opts greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1.5};
    const struct st_sampler_opts drawn = {.temperature = 1, .top_k = 1, .top_p = 1, .repetition_penalty = 1.5};
    const struct st_sampler_opts *const both[] = {&greedy, &drawn};
    int32_t token;

    for (size_t i = 0; i < 2; i++) {
        struct st_sampler *s = NULL;

        assert_int_equal(st_sampler_create(&s, 4, both[i]), STRATA_OK);
        assert_int_equal(st_sampler_pick(s, logits, 0.5, &token), STRATA_OK);
        assert_int_equal(token, 1);
        st_sampler_see(s, 1);
        st_sampler_see(s, 1);
        assert_int_equal(st_sampler_pick(s, logits, 0.5, &token), STRATA_OK); /* 3 against 4 / 1.5 */
        assert_int_equal(token, 0);
        st_sampler_see(s, 0);
        assert_int_equal(st_sampler_pick(s, logits, 0.5, &token), STRATA_OK); /* 2 against 2.667, not 1.778 */
        assert_int_equal(token, 1);
        assert_int_equal(st_sampler_pick(s, none_above, 0.5, &token), STRATA_OK); /* -1.5 * 1.5 against -2 */
        assert_int_equal(token, 2);
        st_sampler_destroy(s);
    }
}

/* Each of two tokens, one seen: which is likelier follows from the logit that the penalty leaves, between 0 and 1, too. */
TEST(the_penalty_is_transformers)
{
    static const float values[] = {-3, -1, -0.75f, -0.25f, 0, 0.25f, 0.5f, 0.75f, 1, 1.25f, 2};
    static const double penalties[] = {0.5, 0.8, 1.25, 2};
    enum { VALUES = sizeof(values) / sizeof(values[0]) };

    for (size_t p = 0; p < sizeof(penalties) / sizeof(penalties[0]); p++) {
        const struct st_sampler_opts opts = {.temperature = 0, .top_p = 1, .repetition_penalty = penalties[p]};
        struct st_sampler *s = NULL;

        assert_int_equal(st_sampler_create(&s, 2, &opts), STRATA_OK);
        st_sampler_see(s, 1);
        for (size_t i = 0; i < VALUES * VALUES; i++) {
            const float logits[2] = {values[i / VALUES], values[i % VALUES]};
            const float left = logits[1] < 0 ? logits[1] * (float)penalties[p] : logits[1] / (float)penalties[p];

            assert_int_equal(picked(s, logits, 0.5), left > logits[0]);
        }
        st_sampler_destroy(s);
    }
}

/* With every option: what is drawn with a penalty is what is drawn without one from the logits that it leaves. */
TEST(a_penalty_changes_the_logits_alone)
{
    static const uint32_t top_ks[] = {0, 1, 5, 1000};
    static const double temperatures[] = {0, 0.7, 3}, top_ps[] = {1, 0.9, 0.3}, penalties[] = {0.7, 1.4};
    float logits[VOCAB_MOST], left[VOCAB_MOST];

    for (uint32_t round = 0; round < 4 * 3 * 3 * 2; round++) {
        const uint32_t vocab = round % 7 == 0 ? 3 : VOCAB_MOST;
        const struct st_sampler_opts opts = {.temperature = temperatures[round / 4 % 3],
                                             .top_k = top_ks[round % 4],
                                             .top_p = top_ps[round / 12 % 3],
                                             .repetition_penalty = penalties[round / 36],
                                             .seed = 5};
        struct st_sampler *s = NULL, *plain = make(vocab, opts.temperature, opts.top_k, opts.top_p);

        assert_int_equal(st_sampler_create(&s, vocab, &opts), STRATA_OK);
        logits_fill(logits, vocab, round);
        for (uint32_t i = 0; i < vocab; i++) {
            const bool seen = i % 3 == 0;

            left[i] = !seen           ? logits[i]
                      : logits[i] < 0 ? logits[i] * (float)opts.repetition_penalty
                                      : logits[i] / (float)opts.repetition_penalty;
            if (seen)
                st_sampler_see(s, (int32_t)i);
        }
        for (uint64_t i = 0; i < 20; i++) {
            const double uniform = (double)(st_rng_u64(4, round, i) >> 11) * 0x1p-53;

            assert_int_equal(picked(s, logits, uniform), picked(plain, left, uniform));
        }
        st_sampler_destroy(plain);
        st_sampler_destroy(s);
    }
}

TEST(bad_options_are_refused)
{
    static const struct st_sampler_opts bad[] = {
        {.temperature = -1, .top_p = 1, .repetition_penalty = 1},
        {.temperature = (double)NAN, .top_p = 1, .repetition_penalty = 1},
        {.temperature = HUGE_VAL, .top_p = 1, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 0, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1.01, .repetition_penalty = 1},
        {.temperature = 1, .top_p = (double)NAN, .repetition_penalty = 1},
        {.temperature = 1, .top_p = -0.5, .repetition_penalty = 1},
        {.temperature = 1, .top_p = 1, .repetition_penalty = 0},
        {.temperature = 1, .top_p = 1, .repetition_penalty = -1},
        {.temperature = 1, .top_p = 1, .repetition_penalty = (double)NAN},
    };
    const struct st_sampler_opts good = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    struct st_sampler *s = NULL;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(st_sampler_create(&s, 4, &bad[i]), STRATA_E_INVAL);
    assert_int_equal(st_sampler_create(&s, 0, &good), STRATA_E_INVAL);
    assert_null(s);
    st_sampler_destroy(NULL);
}
