/* tests/api/test_locale.c - a program whose locale has a decimal comma: what the library writes is read by everybody, and it
 * reads what everybody writes. */
#include "strata/recipe.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/comma.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

#define TOKENS 200

/* Its config.json is read again twice: by the digest, and as a model to train. */
TEST(what_is_written_is_read)
{
    char dir[64], trained[33], trained_state[33], written[33];
    struct run r = {0}, from = {.preset = dir};
    struct strata_export *out;

    snprintf(dir, sizeof(dir), "%s", scratch_path("out"));
    assert_ok(run_open(&r, run_tokens("a.bin", TOKENS)));
    assert_ok(strata_export_open(&out, r.model, dir, NULL));
    assert_ok(run_start(&r));
    assert_ok(run_train(&r, 0, 1, NULL));
    assert_ok(strata_engine_digest(r.engine, trained, trained_state));
    assert_ok(strata_engine_export(r.engine, out));
    run_close(&r);
    assert_ok(strata_directory_digest(dir, written));
    assert_string_equal(trained, written);
    assert_ok(run_open(&from, run_tokens("a.bin", TOKENS)));
    run_close(&from);
}

/* From a text, from overrides, and back as a text. */
TEST(a_configuration_keeps_its_numbers)
{
    static const char *const overrides[] = {"optimizer.params.lr=2.5e-3", "gradient_clipping=0.5"};
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_config *config;
    const char *json;

    opts.text = "{\"bf16\":{\"enabled\":true},\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"betas\":[0.9,0.95]}}}";
    opts.overrides = overrides;
    opts.override_count = 2;
    assert_ok(strata_config_open(&config, &opts));
    assert_ok(strata_config_json(config, &json));
    assert_non_null(strstr(json, "0.0025"));
    assert_non_null(strstr(json, "0.95"));
    strata_config_close(config);
}

TEST(a_recipe_keeps_its_numbers)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_recipe *recipe;
    struct strata_config *config;
    const char *json;

    scratch_put("run.yaml", "model_name_or_path: nano\nstage: pt\nfinetuning_type: full\nlearning_rate: 2.5e-3\nbf16: true\n"
                            "warmup_ratio: 0.25\nmax_steps: 8\n");
    assert_ok(strata_recipe_open(&recipe, scratch_path("run.yaml"), false));
    opts.recipe = recipe;
    opts.max_steps = 8;
    assert_ok(strata_config_open(&config, &opts));
    assert_ok(strata_config_json(config, &json));
    assert_non_null(strstr(json, "0.0025"));
    strata_config_close(config);
    strata_recipe_close(recipe);
}

TEST_MAIN(argc, argv)
{
    return comma_result(test_run(comma_begin, comma_end));
}
