/* tests/core/test_log.c - lines reach the sink whole, and only from the chosen level on. */
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

TEST(test_levels)
{
    kept_log_begin(ST_LOG_NOTICE);
    st_log(ST_LOG_DEBUG, "no");
    st_log(ST_LOG_INFO, "no");
    assert_int_equal(kept_log.count, 0);
    st_log(ST_LOG_NOTICE, "step %d of %s", 3, "ten");
    kept_log_end();
    assert_int_equal(kept_log.count, 1);
    assert_int_equal(kept_log.level, ST_LOG_NOTICE);
    assert_string_equal(kept_log.last, "step 3 of ten");
}

TEST(test_long_lines_are_cut)
{
    char text[4000];

    memset(text, 'y', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    kept_log_begin(ST_LOG_DEBUG);
    st_log(ST_LOG_ERROR, "%s", text);
    kept_log_end();
    assert_int_equal(strlen(kept_log.last), 2047);
}
