/* tests/core/test_log.c - lines reach the sink whole, and only from the chosen level on. */
#include "core/base/log.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct lines {
    int count;
    enum st_log_level level;
    char last[4096];
};

static void keep_line(void *ctx, enum st_log_level level, const char *line)
{
    struct lines *lines = ctx;

    lines->count++;
    lines->level = level;
    snprintf(lines->last, sizeof(lines->last), "%s", line);
}

static void test_levels(void **state)
{
    struct lines lines = {0};

    (void)state;
    st_log_configure(keep_line, &lines, ST_LOG_NOTICE);
    st_log(ST_LOG_DEBUG, "no");
    st_log(ST_LOG_INFO, "no");
    assert_int_equal(lines.count, 0);
    st_log(ST_LOG_NOTICE, "step %d of %s", 3, "ten");
    st_log_configure(NULL, NULL, ST_LOG_INFO);
    assert_int_equal(lines.count, 1);
    assert_int_equal(lines.level, ST_LOG_NOTICE);
    assert_string_equal(lines.last, "step 3 of ten");
}

static void test_long_lines_are_cut(void **state)
{
    struct lines lines = {0};
    char text[4000];

    (void)state;
    memset(text, 'y', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    st_log_configure(keep_line, &lines, ST_LOG_DEBUG);
    st_log(ST_LOG_ERROR, "%s", text);
    st_log_configure(NULL, NULL, ST_LOG_INFO);
    assert_int_equal(strlen(lines.last), 2047);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_long_lines_are_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
