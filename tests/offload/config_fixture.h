/* tests/offload/config_fixture.h - loading config text in tests: what must be good, what must be refused and why. */
#ifndef TESTS_CORE_CONFIG_FIXTURE_H
#define TESTS_CORE_CONFIG_FIXTURE_H

#include "offload/config/config.h"
#include "tests/common/test.h"

#include <stdlib.h>
#include <string.h>

static inline strata_status config_load(struct st_config *config, struct st_config_source **source, const char *text,
                                        const char *override)
{
    const struct st_config_opts opts = {.overrides = &override, .override_count = override != NULL ? 1 : 0};

    return st_config_load_text(config, source, text, strlen(text), "t", &opts);
}

static inline struct st_config load_good(const char *text, const char *override)
{
    struct st_config_source *source;
    struct st_config config;

    if (config_load(&config, &source, text, override) != STRATA_OK)
        fail_msg("%s: %s", text, strata_last_error());
    assert_int_equal(st_config_problem_count(source), 0);
    st_config_source_free(source);
    return config;
}

/* The config must be refused, and one of its problems must hold `pattern`. */
static inline void load_bad(const char *text, const char *override, const char *pattern)
{
    struct st_config_source *source;
    struct st_config config;
    bool found = false;

    assert_int_equal(config_load(&config, &source, text, override), STRATA_E_CONFIG);
    assert_non_null(source);
    assert_true(st_config_problem_count(source) > 0);
    for (uint32_t i = 0; i < st_config_problem_count(source); i++)
        found = found || strstr(st_config_problem_at(source, i), pattern) != NULL;
    if (!found)
        fail_msg("%s: no problem says \"%s\"; the first: %s", text, pattern, st_config_problem_at(source, 0));
    assert_null(st_config_problem_at(source, st_config_problem_count(source)));
    st_config_source_free(source);
}

static inline const struct st_config_row *find_row(const struct st_config_source *source, const char *path)
{
    for (uint32_t i = 0; i < st_config_row_count(source); i++)
        if (strcmp(st_config_row_at(source, i)->path, path) == 0)
            return st_config_row_at(source, i);
    return NULL;
}

#endif
