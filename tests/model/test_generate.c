/* tests/model/test_generate.c - next-token logits out of a key-value cache against those of the plain forward, whether the
 * sequence comes token by token or in chunks; a cache that is overrun is refused. */
#include "decoder_rig.h"
#include "tests/common/golden.h"
#include "tests/common/shape.h"
#include <math.h>

enum { LENGTH = 24 };

static void fill_tokens(int32_t *tokens, uint32_t vocab)
{
    for (uint32_t i = 0; i < LENGTH; i++)
        tokens[i] = (int32_t)(i * 2654435761u % vocab);
}

/* NULL: seeded weights. */
static void load(struct rig *r, const char *dir)
{
    if (dir != NULL)
        rig_load_dir(r, dir);
    else
        rig_load_seed(r, 11);
}

/* out[LENGTH][vocab]: the head's slices of a plain forward, taken from the workspace. */
static void plain_logits(const struct st_model_config *config, const char *dir, float *out)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = LENGTH, .grad_accum = 1, .dtype = STRATA_F32, .workers = 2};
    int32_t tokens[LENGTH];
    struct rig r;

    rig_open(&r, config, &batch, st_kernels_pick(NULL));
    load(&r, dir);
    fill_tokens(tokens, config->vocab);
    rig_forward(&r, tokens, tokens);
    for (uint32_t t = 0; t < shape_of(r.w).head_count; t++) {
        const struct st_page *page = &r.w->pages[shape_of(r.w).head_first + t];
        const float *logits = (const float *)(r.workspace + st_head_workspace_layout(r.m).logits);
        struct st_call call = rig_call(&r, ST_CALL_HEAD_STATS, shape_of(r.w).head_first + t);

        call.slice = t;
        call.internals = r.head_internals;
        rig_run(&r, &call);
        for (uint32_t row = 0; row < LENGTH; row++)
            memcpy(out + (uint64_t)row * config->vocab + page->row_first, logits + (uint64_t)row * page->row_count,
                   page->row_count * sizeof(float));
    }
    rig_close(&r);
}

static void check_row(const float *got, const float *want, uint32_t vocab, uint32_t row)
{
    for (uint32_t v = 0; v < vocab; v++) {
        if (!(fabsf(got[v] - want[v]) <= 1e-4f * fmaxf(1.0f, fabsf(want[v]))))
            fail_msg("row %u, token %u: %.9g, plain forward %.9g", row, v, (double)got[v], (double)want[v]);
    }
}

/* The sequence in runs of `chunk` tokens. */
static void check_chunks(const struct st_model_config *config, const char *dir, const float *want, uint32_t chunk)
{
    const struct st_model_batch batch = {
        .micro_batch = 1, .seq = chunk, .grad_accum = 1, .dtype = STRATA_F32, .workers = 2, .generate = true, .context = LENGTH};
    int32_t tokens[LENGTH];
    struct rig r;

    rig_open(&r, config, &batch, st_kernels_pick(NULL));
    assert_true(r.w->generate);
    load(&r, dir);
    fill_tokens(tokens, config->vocab);
    for (uint32_t at = 0; at < LENGTH; at += chunk) {
        r.position = at;
        r.rows = LENGTH - at < chunk ? LENGTH - at : chunk;
        rig_forward(&r, tokens + at, tokens + at);
        check_row((const float *)(r.head_internals + r.w->logits_offset), want + (uint64_t)(at + r.rows - 1) * config->vocab,
                  config->vocab, at + r.rows - 1);
    }
    rig_close(&r);
}

static void check_model(const struct st_model_config *config, const char *dir)
{
    static const uint32_t chunks[] = {1, 3, 7, LENGTH};
    float *want = malloc((size_t)LENGTH * config->vocab * sizeof(*want));

    assert_non_null(want);
    plain_logits(config, dir, want);
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++)
        check_chunks(config, dir, want, chunks[i]);
    free(want);
}

TEST(test_golden_models)
{
    static const char *const dirs[] = {GOLDEN_TORCH, GOLDEN_FAMILIES};

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
        struct st_model_config config;

        assert_ok(st_model_config_read(&config, dirs[i]));
        check_model(&config, dirs[i]);
    }
}

TEST(test_several_slices_and_wide_heads)
{
    struct st_model_config config = tiny_llama_config();

    config.vocab = 9000;
    config.context = LENGTH;
    config.head_dim = 12; /* attention wider than the hidden size */
    check_model(&config, NULL);
    config.untied = true;
    check_model(&config, NULL);
}

TEST(test_a_full_cache_is_refused)
{
    const struct st_model_batch batch = {
        .micro_batch = 1, .seq = 4, .grad_accum = 1, .dtype = STRATA_F32, .generate = true, .context = 8};
    const struct st_model_config config = tiny_llama_config();
    struct st_call call;
    struct rig r;

    rig_open(&r, &config, &batch, st_kernels_pick(NULL));
    call = rig_call(&r, ST_CALL_BLOCK_FORWARD, shape_of(r.w).block_first);
    call.position = 5;
    assert_refused(r.compute.run(r.compute.model, &call), STRATA_E_INVAL, "exceed the cache of 8 tokens");
    call.position = UINT32_MAX;
    assert_refused(r.compute.run(r.compute.model, &call), STRATA_E_INVAL, "exceed the cache");
    call.position = 0;
    call.rows = 5;
    assert_refused(r.compute.run(r.compute.model, &call), STRATA_E_INVAL, "5 tokens at once");
    call.rows = 0;
    assert_refused(r.compute.run(r.compute.model, &call), STRATA_E_INVAL, "0 tokens at once");
    rig_close(&r);
}

TEST(test_bad_batches_are_refused)
{
    static const struct {
        struct st_model_batch batch;
        const char *part;
    } rows[] = {
        {{.micro_batch = 2, .seq = 4, .grad_accum = 1, .dtype = STRATA_F32, .generate = true, .context = 8}, "one sequence"},
        {{.micro_batch = 1, .seq = 4, .grad_accum = 2, .dtype = STRATA_F32, .generate = true, .context = 8}, "one sequence"},
        {{.micro_batch = 1, .seq = 4, .grad_accum = 1, .dtype = STRATA_F32, .generate = true, .context = 3}, "cache of 3"},
        {{.micro_batch = 1, .seq = 4, .grad_accum = 1, .dtype = STRATA_F32, .generate = true, .context = 17}, "cache of 17"},
    };
    const struct st_model_config config = tiny_config();
    struct st_model *m = NULL;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_refused(st_model_create(&m, &config, &rows[i].batch), STRATA_E_INVAL, rows[i].part);
    assert_null(m);
}
