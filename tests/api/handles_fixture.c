/* tests/api/handles_fixture.c - see handles_fixture.h. */
#include "tests/api/handles_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_TEXT                                                                                                              \
    "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"bf16\": {\"enabled\": true},"                 \
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, \"strata\": {\"threads\": 2}}"

void assert_status(strata_status st, strata_status expected, const char *call)
{
    if (st != expected)
        fail_msg("%s: %s (%s), not %s", call, strata_status_text(st), strata_last_error(), strata_status_text(expected));
}

void assert_refused(strata_status st, const char *part)
{
    if (st != STRATA_E_INVAL || strstr(strata_last_error(), part) == NULL)
        fail_msg("%s: \"%s\", not E_INVAL and \"%s\"", strata_status_text(st), strata_last_error(), part);
}

const char *run_tokens(const char *name, uint32_t count)
{
    const char *path = scratch_path(name);
    int32_t header[256] = {20240520, 1, (int32_t)count, 256};
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(header, sizeof(header), 1, file), 1);
    for (uint32_t i = 0; i < count; i++) {
        const uint16_t token = (uint16_t)((i * i / 3 + 7 * i) % 256);

        assert_int_equal(fwrite(&token, sizeof(token), 1, file), 1);
    }
    assert_int_equal(fclose(file), 0);
    return path;
}

strata_status run_configure(struct run *r)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    char dirs[160];
    const char *overrides[] = {"zero_optimization.offload_optimizer.device=nvme", "strata.cache=0", dirs};

    opts.text = r->text != NULL ? r->text : CONFIG_TEXT;
    if (r->dir != NULL) {
        snprintf(dirs, sizeof(dirs), "strata.nvme=[\"%s\"]", r->dir);
        opts.overrides = overrides;
        opts.override_count = 3;
    }
    return strata_config_open(&r->config, &opts);
}

strata_status run_open(struct run *r, const char *tokens)
{
    struct strata_model_opts opts = STRATA_MODEL_OPTS_INIT;
    strata_status st = run_configure(r);

    opts.model = r->preset != NULL ? r->preset : "nano";
    opts.seq_len = RUN_SEQ;
    opts.use = r->use;
    opts.prompt_tokens = r->prompt_tokens;
    opts.cache_tokens = r->cache_tokens;
    opts.progress = r->progress;
    opts.progress_ctx = r->progress_ctx;
    r->shape = (struct strata_model_info)STRATA_MODEL_INFO_INIT;
    if (st == STRATA_OK)
        st = strata_model_open(&r->model, r->config, &opts);
    if (st == STRATA_OK)
        st = strata_model_get_info(r->model, &r->shape);
    return st == STRATA_OK && tokens != NULL ? strata_data_open(&r->data, r->model, &tokens, 1) : st;
}

strata_status run_start(struct run *r)
{
    struct strata_engine_opts opts = STRATA_ENGINE_OPTS_INIT;
    strata_status st = strata_plan_make(&r->plan, r->model, NULL);

    if (st == STRATA_OK)
        st = strata_engine_create(&r->engine, r->plan, &opts);
    return st == STRATA_OK ? strata_engine_load(r->engine) : st;
}

strata_status run_train(struct run *r, uint64_t first, uint64_t count, struct strata_step *last)
{
    const size_t elems = (size_t)r->shape.step_sequences * r->shape.seq_len;
    int32_t *tokens = calloc(elems, sizeof(*tokens)), *targets = calloc(elems, sizeof(*targets));
    strata_status st = STRATA_OK;

    assert_true(tokens != NULL && targets != NULL);
    for (uint64_t step = first; step < first + count && st == STRATA_OK; step++) {
        st = strata_data_read(r->data, STRATA_DATA_SHUFFLED, 5, step * r->shape.step_sequences, r->shape.step_sequences, tokens,
                              targets, NULL);
        if (st == STRATA_OK)
            st = strata_engine_step(r->engine, tokens, targets, NULL, last);
    }
    free(tokens);
    free(targets);
    return st;
}

void run_close(struct run *r)
{
    strata_config_close(r->config);
    strata_model_close(r->model);
    strata_plan_destroy(r->plan);
    strata_data_close(r->data);
    strata_engine_destroy(r->engine);
    r->config = NULL;
    r->model = NULL;
    r->plan = NULL;
    r->data = NULL;
    r->engine = NULL;
}
