/* fuzz_recipe.c - any bytes as a trainer's file, read by each trainer's table: no crash; every row has a value and, unless it is
 * honoured, a reason; a configuration with it is either whole or has problems. */
#include "core/yaml/yaml.h"
#include "recipes/recipe_internal.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_recipe(const struct strata_recipe *recipe)
{
    const struct st_config_opts opts = {0};
    const struct st_config_said *value;
    struct st_config_source *source = NULL;
    struct st_config config;
    strata_status st;

    for (uint32_t i = 0; (value = st_recipe_value_at(recipe, i)) != NULL; i++)
        check(value->to != NULL && value->from != NULL && (value->to[0] == '-' || value->text != NULL));
    st = st_recipe_config(&config, &source, &opts, recipe, NULL);
    check(st == STRATA_OK || st == STRATA_E_CONFIG || st == STRATA_E_IO);
    for (uint32_t i = 0; source != NULL && i < st_config_row_count(source); i++) {
        const struct st_config_row *row = st_config_row_at(source, i);

        check(row->path != NULL && row->value != NULL);
        check(row->verdict == ST_VERDICT_HONOURED || row->reason != NULL);
    }
    st_config_source_free(source);
}

/* The bytes as the value of each of a launcher's variables. */
static void check_variables(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"ACCELERATE_MIXED_PRECISION", "ACCELERATE_GRADIENT_CLIPPING",
                                        "ACCELERATE_DEEPSPEED_ZERO_STAGE", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "FSDP_SHARDING_STRATEGY",
                                        "FSDP_VERSION", "PARALLELISM_CONFIG_DP_SHARD_SIZE"};
    char value[128];
    const char *variables[] = {NULL, "ACCELERATE_USE_PARALLELISM_CONFIG=true", value, NULL};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct st_config_opts opts = {0};
        struct st_config_source *source = NULL;
        struct st_config config;
        strata_status st;

        variables[0] = strncmp(names[i], "ACCELERATE", 10) == 0 ? "ACCELERATE_USE_DEEPSPEED=true" : "ACCELERATE_USE_FSDP=true";
        snprintf(value, sizeof(value), "%s=%.*s", names[i], (int)(size < 64 ? size : 64), (const char *)data);
        st = st_recipe_config(&config, &source, &opts, NULL, variables);
        check(st == STRATA_OK || st == STRATA_E_CONFIG);
        st_config_source_free(source);
    }
}

/* Each line as a word of the command line: keys, mappings and values over each other. */
static void check_words(const uint8_t *data, size_t size)
{
    char text[1024], *words[32], *rest = text;
    struct st_recipe_input in = {.allow_unknown = size % 2 == 0};
    struct strata_recipe *recipe = NULL;

    snprintf(text, sizeof(text), "%.*s", (int)(size < sizeof(text) ? size : sizeof(text) - 1), (const char *)data);
    while (in.word_count < 32 && (words[in.word_count] = strsep(&rest, "\n")) != NULL)
        in.word_count++;
    in.words = (const char *const *)words;
    if (st_recipe_open(&recipe, &in) == STRATA_OK)
        check_recipe(recipe);
    st_recipe_close(recipe);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct st_recipe_input in = {.path = "fuzz.yaml", .allow_unknown = size % 2 == 0};

    check_variables(data, size);
    check_words(data, size);
    for (const struct st_recipe_trainer *const *t = st_recipe_trainers; *t != NULL; t++) {
        struct strata_recipe *recipe = NULL;
        st_json *root = NULL;

        if (st_yaml_parse(&root, (const char *)data, size, "fuzz") != STRATA_OK)
            return 0;
        (void)st_recipe_trainer_of(root);
        if (st_recipe_read(&recipe, *t, root, &in) == STRATA_OK)
            check_recipe(recipe);
        st_recipe_close(recipe);
    }
    return 0;
}
