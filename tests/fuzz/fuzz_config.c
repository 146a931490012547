/* fuzz_config.c - any bytes as a config: no crash, problems exactly when refused, and what is accepted is written as a
 * config that reads back to the same bits.  A first line "#PATH=VALUE" is an override. */
#include "offload/config/config.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void check(bool holds)
{
    if (!holds)
        abort();
}

static void check_rows(const struct st_config_source *source)
{
    for (uint32_t i = 0; i < st_config_row_count(source); i++) {
        const struct st_config_row *row = st_config_row_at(source, i);

        check(row->path != NULL && row->value != NULL);
        check(row->verdict == ST_VERDICT_HONOURED || row->reason != NULL);
    }
}

static void check_round_trip(const struct st_config *config)
{
    const struct st_config_opts opts = {.max_steps = 0};
    struct st_config_source *source;
    struct st_config again;
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    check(file != NULL);
    st_config_write_json(config, file);
    check(fclose(file) == 0);
    check(st_config_load_text(&again, &source, text, bytes, "again", &opts) == STRATA_OK);
    check(memcmp(config, &again, sizeof(again)) == 0);
    st_config_source_free(source);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct st_config_opts opts = {.allow_unknown = size % 2 == 0};
    const char *text = (const char *)data;
    const char *end = size > 0 && data[0] == '#' ? memchr(data, '\n', size) : NULL;
    char *override = NULL;
    struct st_config_source *source;
    struct st_config config;
    strata_status st;

    if (end != NULL) {
        override = strndup(text + 1, (size_t)(end - text - 1));
        check(override != NULL);
        opts.overrides = (const char *const *)&override;
        opts.override_count = 1;
        size -= (size_t)(end + 1 - text);
        text = end + 1;
    }
    st = st_config_load_text(&config, &source, text, size, "fuzz", &opts);
    check(st == STRATA_OK || st == STRATA_E_CONFIG);
    check((st_config_problem_count(source) > 0) == (st == STRATA_E_CONFIG));
    check_rows(source);
    if (st == STRATA_OK)
        check_round_trip(&config);
    st_config_source_free(source);
    free(override);
    return 0;
}
