/* test_recipe_environment.c - what Accelerate's launcher says in variables, beside files and overrides. */
#include "core/base/error.h"
#include "offload/config/config.h"
#include "recipes/recipe.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define NAMES_MAX 12
#define DS        "ACCELERATE_USE_DEEPSPEED=true"
#define PLUGIN    "ACCELERATE_DEEPSPEED_"

struct launched {
    const char *file;     /* NULL: none is given */
    const char *override; /* NULL: none */
    const char *variables[NAMES_MAX];
};

static struct st_config c;
static struct st_config_source *source;

static strata_status load(const struct launched *l)
{
    const struct st_config_opts opts = {.file = l->file != NULL ? scratch_path("ds.json") : NULL,
                                        .overrides = &l->override,
                                        .override_count = l->override != NULL};

    if (l->file != NULL)
        scratch_put("ds.json", l->file);
    st_config_source_free(source);
    source = NULL;
    memset(&c, 0, sizeof(c));
    return st_recipe_config(&c, &source, &opts, NULL, l->variables);
}

static void expect(const struct launched *l)
{
    if (load(l) != STRATA_OK)
        fail_msg("%s: %s", l->variables[0], strata_last_error());
}

static void expect_refused(const struct launched *l, const char *sentence)
{
    if (load(l) != STRATA_E_CONFIG || strstr(strata_last_error(), sentence) == NULL)
        fail_msg("not \"%s\": %s", sentence, strata_last_error());
}

static int close_source(void **state)
{
    st_config_source_free(source);
    source = NULL;
    return scratch_remove(state);
}

TEST_SETUP(what_a_launcher_names_is_taken, scratch_create, close_source)
{
    expect(&(struct launched){.variables = {"ACCELERATE_MIXED_PRECISION=fp16", DS, PLUGIN "ZERO_STAGE=2",
                                            "ACCELERATE_GRADIENT_CLIPPING=0.5", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=10",
                                            PLUGIN "OFFLOAD_OPTIMIZER_DEVICE=cpu", PLUGIN "OFFLOAD_PARAM_DEVICE=none"}});
    assert_int_equal(c.dtype, STRATA_F16);
    assert_int_equal(c.zero_stage, 2);
    assert_true(c.gradient_clipping == 0.5);
    assert_int_equal(c.grad_accum, 10);
    assert_int_equal(c.optimizer_tier, STRATA_TIER_HOST);
    assert_int_equal(c.param_tier, STRATA_TIER_DEVICE);

    /* As its file without these keys. */
    expect(&(struct launched){.variables = {"ACCELERATE_MIXED_PRECISION=bf16", DS}});
    assert_int_equal(c.dtype, STRATA_BF16);
    assert_int_equal(c.zero_stage, 2);
    assert_true(c.gradient_clipping == 1);

    expect(&(struct launched){.override = "zero_optimization.stage=3", .variables = {DS}});
    assert_int_equal(c.zero_stage, 3); /* nobody has named another */

    /* The plugin's variables are not read without it, the accumulation is. */
    expect(&(struct launched){.variables = {PLUGIN "ZERO_STAGE=3", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4"}});
    assert_int_equal(c.zero_stage, 0);
    assert_int_equal(c.grad_accum, 4);
}

/* The launcher sets it where nobody asks for a precision, too; its own programs train in fp32 then. */
TEST_SETUP(no_precision_is_that_of_a_file_without_one, scratch_create, close_source)
{
    expect(&(struct launched){.variables = {"ACCELERATE_MIXED_PRECISION=no"}});
    assert_int_equal(c.dtype, 0); /* that of the weights */
    expect(&(struct launched){.file = "{\"bf16\": {\"enabled\": true}}", .variables = {"ACCELERATE_MIXED_PRECISION=no", DS}});
    assert_int_equal(c.dtype, STRATA_BF16);
    expect(&(struct launched){.override = "bf16.enabled=true", .variables = {"ACCELERATE_MIXED_PRECISION=no"}});
    assert_int_equal(c.dtype, STRATA_BF16);
}

TEST_SETUP(what_nobody_asked_for_says_nothing, scratch_create, close_source)
{
    struct strata_recipe *r;
    static const char *const variables[] = {"PATH=/bin", "ACCELERATE_USE_DEEPSPEED=false", "ACCELERATE_GRADIENT_CLIPPING=", NULL};

    assert_int_equal(st_recipe_environment(&r, variables), STRATA_OK);
    assert_null(r);
    assert_int_equal(st_recipe_environment(&r, NULL), STRATA_OK);
    assert_null(r);
}

TEST_SETUP(files_and_overrides_must_agree, scratch_create, close_source)
{
    expect(&(struct launched){.file = "{\"gradient_clipping\": 0.5, \"fp16\": {\"enabled\": true}, \"train_batch_size\": 1}",
                              .variables = {"ACCELERATE_MIXED_PRECISION=fp16", DS, "ACCELERATE_GRADIENT_CLIPPING=0.5"}});
    assert_int_equal(c.zero_stage, 0); /* what follows from no name is the file's to say */
    expect(&(struct launched){.file = "{\"gradient_clipping\": \"auto\", \"train_batch_size\": 1}",
                              .variables = {DS, "ACCELERATE_GRADIENT_CLIPPING=0.25"}});
    assert_true(c.gradient_clipping == 0.25);
    expect_refused(&(struct launched){.file = "{\"gradient_clipping\": 0.75, \"train_batch_size\": 1}",
                                      .variables = {DS, "ACCELERATE_GRADIENT_CLIPPING=0.25"}},
                   "environment: ACCELERATE_GRADIENT_CLIPPING asks for gradient_clipping = 0.25, and it is 0.75 in /");
    expect_refused(&(struct launched){.file = "{\"bf16\": {\"enabled\": true}, \"train_batch_size\": 1}",
                                      .variables = {"ACCELERATE_MIXED_PRECISION=fp16"}},
                   "ACCELERATE_MIXED_PRECISION asks for bf16.enabled = false, and it is true in /");
    assert_null(strstr(strata_last_error(), "more")); /* no file has fp16 beside it */
    expect_refused(&(struct launched){.override = "zero_optimization.stage=1", .variables = {DS, PLUGIN "ZERO_STAGE=3"}},
                   "environment: " PLUGIN "ZERO_STAGE asks for zero_optimization.stage = 3, and it is 1 on the command line");
}

TEST_SETUP(bad_values_name_their_variable, scratch_create, close_source)
{
    expect_refused(&(struct launched){.variables = {"ACCELERATE_MIXED_PRECISION=fp8"}},
                   "environment: ACCELERATE_MIXED_PRECISION: fp8: 8-bit matmuls are not in this version");
    expect_refused(&(struct launched){.variables = {DS, PLUGIN "ZERO_STAGE=4"}},
                   "environment: " PLUGIN "ZERO_STAGE: 4 is out of range: 0 to 3");
    expect_refused(&(struct launched){.variables = {DS, PLUGIN "ZERO_STAGE=two"}}, PLUGIN "ZERO_STAGE: must be");
    expect_refused(&(struct launched){.variables = {"ACCELERATE_USE_MEGATRON_LM=true"}},
                   "ACCELERATE_USE_MEGATRON_LM: MEGATRON_LM: ");
    expect_refused(&(struct launched){.variables = {"ACCELERATE_MIXED_PRECISION=\xff"}},
                   "environment: ACCELERATE_MIXED_PRECISION: the value is not UTF-8");
}

TEST_SETUP(the_file_of_deepspeed_that_it_names, scratch_create, close_source)
{
    char named[512];

    snprintf(named, sizeof(named), PLUGIN "CONFIG_FILE=%s", scratch_path("ds.json"));
    scratch_put("ds.json", "{\"train_batch_size\": 3, \"gradient_clipping\": 2}");
    expect(&(struct launched){.variables = {DS, named}});
    assert_int_equal(c.train_batch, 3);
    assert_true(c.gradient_clipping == 2);
    expect(&(struct launched){.file = "{\"train_batch_size\": 5}", .variables = {DS, named}});
    assert_int_equal(c.train_batch, 5);
    scratch_put("other.json", "{}");
    snprintf(named, sizeof(named), PLUGIN "CONFIG_FILE=%s", scratch_path("other.json"));
    expect_refused(&(struct launched){.file = "{\"train_batch_size\": 5}", .variables = {DS, named}},
                   "environment: " PLUGIN "CONFIG_FILE names ");
    expect_refused(&(struct launched){.variables = {DS, PLUGIN "CONFIG_FILE=/nowhere/ds.json"}}, "/nowhere/ds.json");
}

TEST_SETUP(single_failure_walk, scratch_create, close_source)
{
    struct fault_walk walk = {.result = -EIO};

    while (fault_walk_next(&walk)) {
        const strata_status st =
            load(&(struct launched){.variables = {"ACCELERATE_MIXED_PRECISION=fp16", DS, PLUGIN "ZERO_STAGE=2"}});

        fault_walk_end(&walk, st);
    }
    assert_true(walk.runs >= 20);
}
