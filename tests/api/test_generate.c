/* tests/api/test_generate.c - strata/generate.h: which tokens follow, what ends a text, what is not computed again. */
#include "core/base/fault.h"
#include "strata/strata.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 24u

static const int32_t prompt[] = {1, 2, 3, 4, 5, 6};

static struct run started(struct strata_sampling *s, const struct strata_sampling_opts *opts)
{
    struct run r = {.use = STRATA_USE_GENERATE, .cache_tokens = ROOM};

    assert_ok(run_open(&r, NULL));
    *s = (struct strata_sampling)STRATA_SAMPLING_INIT;
    assert_ok(strata_model_sampling(r.model, s, opts));
    assert_ok(run_start(&r));
    return r;
}

/* All tokens of a text; @return how many. */
static uint32_t finish(struct strata_generation *g, int32_t *tokens)
{
    uint32_t count = 0;
    int32_t token;

    for (;;) {
        assert_ok(strata_generation_next(g, &token));
        if (token < 0)
            return count;
        assert_true(count < ROOM);
        tokens[count++] = token;
    }
}

static struct strata_generation_info info_of(const struct strata_generation *g)
{
    struct strata_generation_info info = STRATA_GENERATION_INFO_INIT;

    assert_ok(strata_generation_get_info(g, &info));
    return info;
}

/* A sampler over the logits of strata_engine_forward() gives the text of a generation. */
TEST(a_sampler_chooses_what_a_generation_does)
{
    static const double warm = 1.5;
    struct strata_sampling_opts asked = STRATA_SAMPLING_OPTS_INIT;
    struct strata_generation *g;
    struct strata_sampler *sampler;
    struct strata_sampling s;
    struct run r;
    int32_t want[ROOM], text[ROOM], outside = -1;
    float *logits;
    uint32_t count, at = sizeof(prompt) / sizeof(prompt[0]);
    bool ends = false;

    asked.temperature = &warm;
    asked.repetition_penalty = 1.3;
    asked.seed = 7;
    r = started(&s, &asked);
    assert_ok(strata_generation_open(&g, r.engine, &s, NULL));
    assert_ok(strata_generation_begin(g, prompt, at));
    count = finish(g, want);
    assert_true(count > 4);
    logits = malloc(r.shape.vocab * sizeof(*logits));
    assert_ok(strata_sampler_open(&sampler, r.shape.vocab, &s));
    assert_ok(strata_sampler_see(sampler, want, count)); /* of another text */
    assert_ok(strata_sampler_see(sampler, NULL, 0));
    assert_ok(strata_sampler_see(sampler, prompt, at));
    assert_ok(strata_engine_forward(r.engine, prompt, at, 0, logits));
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(strata_sampler_next(sampler, logits, at + i, &text[i], &ends));
        assert_int_equal(text[i], want[i]);
        assert_int_equal(ends, info_of(g).end == STRATA_TEXT_ENDED && i == count - 1);
        assert_ok(strata_sampler_see(sampler, &text[i], 1));
        if (i + 1 < count)
            assert_ok(strata_engine_forward(r.engine, &text[i], 1, at + i, logits));
    }
    assert_int_equal(strata_sampler_see(sampler, &outside, 1), STRATA_E_INPUT);
    logits[0] = NAN;
    assert_int_equal(strata_sampler_next(sampler, logits, 0, text, NULL), STRATA_E_NUMERICS);
    assert_refused(strata_sampler_next(sampler, NULL, 0, text, NULL), "logits");
    strata_sampler_close(sampler);
    strata_sampler_close(NULL);
    assert_refused(strata_sampler_open(&sampler, 0, &s), "vocabulary");
    s.top_p = 2;
    assert_refused(strata_sampler_open(&sampler, 10, &s), "top-p");
    assert_refused(strata_sampler_open(&sampler, 10, NULL), "sampling");
    st_fault_arm(&(struct st_fault_spec){.site = "api.sampler", .result = -ENOMEM});
    assert_int_equal(strata_sampler_open(&sampler, 10, &s), STRATA_E_NOMEM);
    assert_int_equal(st_fault_disarm(), 1);
    strata_generation_close(g);
    free(logits);
    run_close(&r);
}

TEST(nothing_is_called_with_null)
{
    struct strata_generation_info info = STRATA_GENERATION_INFO_INIT;
    struct strata_generation_opts opts = {0};
    struct strata_sampling_opts asked = {0};
    struct strata_generation *g = NULL;
    struct strata_sampling s, small = {.sampling_size = 1};
    struct run r = started(&s, NULL), trains = {0};
    int32_t token;

    assert_refused(strata_model_sampling(NULL, &s, NULL), "model is NULL");
    assert_refused(strata_model_sampling(r.model, NULL, NULL), "sampling is NULL");
    assert_refused(strata_model_sampling(r.model, &small, NULL), "struct strata_sampling ");
    assert_refused(strata_model_sampling(r.model, &s, &asked), "strata_sampling_opts");
    assert_refused(strata_sampling_end_at(NULL, r.model, 1), "sampling is NULL");
    assert_refused(strata_sampling_end_at(&s, NULL, 1), "model is NULL");
    assert_refused(strata_sampling_end_at(&small, r.model, 1), "struct strata_sampling ");
    assert_refused(strata_generation_open(NULL, r.engine, &s, NULL), "generation is NULL");
    assert_refused(strata_generation_open(&g, NULL, &s, NULL), "engine is NULL");
    assert_refused(strata_generation_open(&g, r.engine, NULL, NULL), "sampling is NULL");
    assert_refused(strata_generation_open(&g, r.engine, &s, &opts), "strata_generation_opts");
    assert_null(g);
    assert_ok(strata_generation_open(&g, r.engine, &s, NULL));
    assert_refused(strata_generation_begin(NULL, prompt, 1), "generation is NULL");
    assert_refused(strata_generation_begin(g, NULL, 1), "ids is NULL");
    assert_refused(strata_generation_next(NULL, &token), "generation is NULL");
    assert_refused(strata_generation_next(g, NULL), "token is NULL");
    assert_refused(strata_generation_next(g, &token), "no text has begun");
    assert_refused(strata_generation_get_info(NULL, &info), "generation is NULL");
    assert_refused(strata_generation_get_info(g, NULL), "info is NULL");
    strata_generation_close(g);
    strata_generation_close(NULL);
    assert_ok(run_open(&trains, NULL));
    assert_ok(run_start(&trains));
    assert_refused(strata_generation_open(&g, trains.engine, &s, NULL), "another use");
    run_close(&trains);
    run_close(&r);
}

TEST(what_is_out_of_range_is_refused)
{
    const int32_t beyond[] = {1, 256}, below[] = {1, -1};
    struct strata_generation *g = NULL;
    struct strata_sampling s, wrong;
    struct run r = started(&s, NULL);

    wrong = s;
    wrong.temperature = -1;
    assert_refused(strata_generation_open(&g, r.engine, &wrong, NULL), "the temperature is -1");
    wrong = s;
    wrong.top_p = 0;
    assert_refused(strata_generation_open(&g, r.engine, &wrong, NULL), "top-p is 0");
    wrong = s;
    wrong.repetition_penalty = 0;
    assert_refused(strata_generation_open(&g, r.engine, &wrong, NULL), "the repetition penalty is 0");
    wrong = s;
    wrong.end_count = STRATA_END_TOKENS_MAX + 1;
    assert_refused(strata_generation_open(&g, r.engine, &wrong, NULL), "65 end tokens");
    assert_ok(strata_generation_open(&g, r.engine, &s, NULL));
    assert_refused(strata_generation_begin(g, prompt, 0), "1 to 23 are possible");
    assert_refused(strata_generation_begin(g, prompt, ROOM), "1 to 23 are possible");
    assert_status(strata_generation_begin(g, beyond, 2), STRATA_E_INPUT, "a token beyond the vocabulary");
    assert_status(strata_generation_begin(g, below, 2), STRATA_E_INPUT, "a token below 0");
    strata_generation_close(g);
    run_close(&r);
}

static int32_t likeliest(const float *logits)
{
    int32_t best = 0;

    for (int32_t i = 1; i < 256; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

TEST(the_likeliest_token_is_that_of_the_logits)
{
    const double greedy = 0;
    struct strata_sampling_opts asked = STRATA_SAMPLING_OPTS_INIT;
    struct strata_generation *g;
    struct strata_sampling s;
    int32_t got[ROOM], all[ROOM];
    float logits[256];
    struct run r;

    asked.temperature = &greedy;
    r = started(&s, &asked);
    assert_true(s.sample && s.temperature == 0);
    assert_ok(strata_generation_open(&g, r.engine, &s, NULL));
    assert_ok(strata_generation_begin(g, prompt, 6));
    assert_int_equal(finish(g, got), ROOM - 6);
    assert_int_equal(info_of(g).end, STRATA_TEXT_FULL);
    assert_int_equal(info_of(g).new_tokens, ROOM - 6);
    assert_memory_equal(info_of(g).tokens, prompt, sizeof(prompt));
    assert_memory_equal(info_of(g).tokens + 6, got, (ROOM - 6) * sizeof(*got));
    memcpy(all, prompt, sizeof(prompt));
    memcpy(all + 6, got, (ROOM - 6) * sizeof(*got));
    for (uint32_t i = 6; i < ROOM; i++) {
        assert_ok(strata_engine_forward(r.engine, i == 6 ? all : all + i - 1, i == 6 ? 6 : 1, i == 6 ? 0 : i - 1, logits));
        assert_int_equal(likeliest(logits), all[i]);
    }
    strata_generation_close(g);
    run_close(&r);
}

/* A second text has the first one's beginning in the cache, until somebody else has run the engine. */
TEST(what_is_known_is_not_computed_again)
{
    const double greedy = 0;
    const int32_t other[] = {9, 9, 9, 9}, longer[] = {1, 2, 3, 4, 7, 7, 7};
    struct strata_sampling_opts asked = STRATA_SAMPLING_OPTS_INIT;
    struct strata_generation *g;
    struct strata_sampling s;
    int32_t first[ROOM], again[ROOM], token;
    float logits[256];
    struct run r;

    asked.temperature = &greedy; /* one row and several may round otherwise, which a drawn token would show */
    r = started(&s, &asked);
    assert_ok(strata_generation_open(&g, r.engine, &s, NULL));
    assert_ok(strata_generation_begin(g, prompt, 6));
    assert_int_equal(info_of(g).cached_tokens, 0);
    (void)finish(g, first);
    assert_ok(strata_generation_begin(g, prompt, 6));
    assert_int_equal(info_of(g).cached_tokens, 5);
    (void)finish(g, again);
    assert_memory_equal(first, again, (ROOM - 6) * sizeof(*first));
    assert_ok(strata_generation_begin(g, longer, 7));
    assert_int_equal(info_of(g).cached_tokens, 4);
    assert_ok(strata_engine_forward(r.engine, other, 4, 0, logits));
    assert_ok(strata_generation_begin(g, prompt, 6));
    assert_int_equal(info_of(g).cached_tokens, 0);
    for (uint32_t i = 0; i < ROOM - 6; i++) { /* nor is a text spoilt by what runs between its tokens */
        if (i % 4 == 1)
            assert_ok(strata_engine_forward(r.engine, other, 4, 0, logits));
        assert_ok(strata_generation_next(g, &token));
        assert_int_equal(token, first[i]);
    }
    run_close(&r);
    strata_generation_close(g);
}

static int stops(void *ctx)
{
    int *left = ctx;

    return (*left)-- > 0 ? 0 : 15;
}

TEST(a_text_ends_for_a_reason)
{
    struct strata_generation_opts opts = STRATA_GENERATION_OPTS_INIT;
    struct strata_generation *g;
    struct strata_sampling s;
    struct run r = started(&s, NULL);
    int32_t all[ROOM], got[ROOM], token;
    uint32_t count;
    int left = 6;

    opts.max_tokens = 5;
    assert_ok(strata_generation_open(&g, r.engine, &s, &opts));
    assert_ok(strata_generation_begin(g, prompt, 6));
    assert_int_equal(info_of(g).end, STRATA_TEXT_GOES_ON);
    assert_int_equal(finish(g, all), 5);
    assert_int_equal(info_of(g).end, STRATA_TEXT_LONG);
    strata_generation_close(g);

    opts.stop = stops;
    opts.stop_ctx = &left;
    assert_ok(strata_generation_open(&g, r.engine, &s, &opts));
    assert_ok(strata_generation_begin(g, prompt, 6));
    for (count = 0; strata_generation_next(g, &token) == STRATA_OK; count++)
        assert_int_equal(token, all[count]);
    assert_true(count > 0 && count < 5);
    assert_true(info_of(g).end == STRATA_TEXT_GOES_ON && info_of(g).stopped == 15 && info_of(g).new_tokens == count);
    left = 1000; /* and it goes on where it was */
    assert_int_equal(finish(g, got), 5 - count);
    assert_memory_equal(got, all + count, (5 - count) * sizeof(*got));
    strata_generation_close(g);

    assert_ok(strata_sampling_end_at(&s, r.model, all[2]));
    count = s.end_count;
    assert_ok(strata_sampling_end_at(&s, r.model, all[2]));
    assert_ok(strata_sampling_end_at(&s, r.model, -1));
    assert_ok(strata_sampling_end_at(&s, r.model, 256)); /* never comes */
    assert_int_equal(s.end_count, count);
    assert_ok(strata_generation_open(&g, r.engine, &s, NULL));
    assert_ok(strata_generation_begin(g, prompt, 6));
    assert_true(finish(g, got) <= 3);
    assert_int_equal(info_of(g).end, STRATA_TEXT_ENDED);
    strata_generation_close(g);
    run_close(&r);
}

/* Two texts on one engine: while one is computed, the other cannot begin, and stays as it was. */
struct two_texts {
    struct strata_generation *second;
    int calls;
};

static int begins_another(void *ctx)
{
    static const int32_t others[] = {9, 8, 7};
    struct two_texts *t = ctx;
    int32_t token = -2;

    if (t->calls++ > 0)
        return 0;
    assert_status(strata_generation_begin(t->second, others, 3), STRATA_E_BUSY, "another begins");
    assert_status(strata_generation_next(t->second, &token), STRATA_E_BUSY, "another goes on");
    assert_int_equal(token, -2);
    return 0;
}

TEST(a_busy_engine_leaves_the_text_as_it_was)
{
    struct two_texts t = {0};
    struct strata_generation_opts opts = STRATA_GENERATION_OPTS_INIT;
    struct strata_generation *first = NULL;
    struct strata_sampling s;
    struct run r = started(&s, NULL);

    opts.stop = begins_another;
    opts.stop_ctx = &t;
    assert_ok(strata_generation_open(&t.second, r.engine, &s, NULL));
    assert_ok(strata_generation_begin(t.second, prompt, 6));
    assert_ok(strata_generation_open(&first, r.engine, &s, &opts));
    assert_ok(strata_generation_begin(first, prompt, 4));
    assert_true(t.calls > 0 && info_of(t.second).prompt_tokens == 6 && info_of(t.second).new_tokens == 0);
    assert_memory_equal(info_of(t.second).tokens, prompt, sizeof(prompt));
    strata_generation_close(first);
    strata_generation_close(t.second);
    run_close(&r);
}

TEST(missing_memory_is_said)
{
    static const char *const sites[] = {"api.generation", "generation.alloc"};
    struct strata_generation *g = NULL;
    struct strata_sampling s;
    struct run r = started(&s, NULL);

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -ENOMEM});
        assert_status(strata_generation_open(&g, r.engine, &s, NULL), STRATA_E_NOMEM, sites[i]);
        assert_int_equal(st_fault_disarm(), 1);
    }
    assert_null(g);
    run_close(&r);
}
