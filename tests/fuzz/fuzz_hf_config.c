/* fuzz_hf_config.c - any bytes as a model's config.json: no crash; what is accepted is written as a config that reads back
 * the same, and makes a model whose workload holds together.  The same bytes as a generation_config.json: settings in their
 * ranges. */
#include "model/hf/generation.h"
#include "model/hf/hf_config_internal.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_round_trip(const struct st_model_config *config)
{
    struct st_model_config again = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    check(file != NULL);
    st_model_config_write(config, STRATA_F32, file);
    check(fclose(file) == 0);
    check(st_model_config_parse(&again, text, bytes, "again") == STRATA_OK);
    check(memcmp(config, &again, sizeof(again)) == 0);
    free(text);
}

static void check_model(const struct st_model_config *config)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = STRATA_BF16};
    struct st_model *m;

    check(st_model_create(&m, config, &batch) == STRATA_OK); /* checks its workload itself */
    st_model_destroy(m);
}

static void check_generation(const uint8_t *data, size_t size)
{
    struct st_generation g;
    const strata_status st = st_generation_parse(&g, (const char *)data, size, "fuzz");

    check(st == STRATA_OK || st == STRATA_E_INPUT);
    check(st != STRATA_OK || (g.end_count <= ST_END_TOKENS_MAX && g.temperature >= 0 && g.top_p > 0 && g.top_p <= 1 &&
                              g.repetition_penalty > 0 && strlen(g.ignored) < sizeof(g.ignored)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_model_config config = {0};
    const strata_status st = st_model_config_parse(&config, (const char *)data, size, "fuzz");

    check(st == STRATA_OK || st == STRATA_E_INPUT);
    check_generation(data, size);
    if (st != STRATA_OK)
        return 0;
    config.wrapper = NULL; /* the text model alone */
    check_round_trip(&config);
    if (config.blocks <= 16 && config.vocab <= 1u << 16)
        check_model(&config);
    return 0;
}
