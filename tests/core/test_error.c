/* tests/core/test_error.c - sentences, status texts and exit codes. */
#include "core/base/error.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_sentence_is_kept_and_status_returned(void **state)
{
    (void)state;
    assert_int_equal(st_error(STRATA_E_NOMEM, "%d bytes short", 17), STRATA_E_NOMEM);
    assert_string_equal(strata_last_error(), "17 bytes short");
    st_error_clear();
    assert_string_equal(strata_last_error(), "");
}

static void test_prefix_goes_in_front(void **state)
{
    (void)state;
    assert_int_equal(st_error(STRATA_E_IO, "read failed"), STRATA_E_IO);
    assert_int_equal(st_error_prefix(STRATA_E_TRUNC, "layer %d", 3), STRATA_E_TRUNC);
    assert_string_equal(strata_last_error(), "layer 3: read failed");
}

static void test_sentence_may_quote_the_last_one(void **state)
{
    (void)state;
    assert_int_equal(st_error(STRATA_E_IO, "inner"), STRATA_E_IO);
    assert_int_equal(st_error(STRATA_E_IO, "outer (%s)", strata_last_error()), STRATA_E_IO);
    assert_string_equal(strata_last_error(), "outer (inner)");
}

static void test_long_sentences_are_cut(void **state)
{
    char text[4096];

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(st_error(STRATA_E_IO, "%s", text), STRATA_E_IO);
    assert_int_equal(strlen(strata_last_error()), 1023);
    assert_int_equal(st_error_prefix(STRATA_E_IO, "%s", text), STRATA_E_IO);
    assert_int_equal(strlen(strata_last_error()), 1023);
    assert_int_equal(st_error_errno(EIO, "%s", text), STRATA_E_IO);
    assert_int_equal(strlen(strata_last_error()), 1023);
}

static void test_errno_is_mapped(void **state)
{
    static const struct {
        int err;
        strata_status status;
    } rows[] = {
        {ENOSPC, STRATA_E_NOSPC}, {EDQUOT, STRATA_E_NOSPC}, {ENOMEM, STRATA_E_NOMEM},        {EIO, STRATA_E_IO},
        {ENOENT, STRATA_E_INPUT}, {EACCES, STRATA_E_INPUT}, {EROFS, STRATA_E_INPUT},         {ENOSYS, STRATA_E_NOSYS},
        {EAGAIN, STRATA_E_BUSY},  {EINVAL, STRATA_E_IO},    {ECANCELED, STRATA_E_CANCELLED}, {0, STRATA_E_INTERNAL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(st_error_errno(rows[i].err, "row %zu", i), rows[i].status);
    assert_int_equal(st_error_errno(ENOSPC, "swap"), STRATA_E_NOSPC);
    assert_string_equal(strata_last_error(), "swap: No space left on device");
}

static void test_exit_codes_and_texts(void **state)
{
    (void)state;
    assert_int_equal(strata_status_exit_code(STRATA_OK), 0);
    assert_int_equal(strata_status_exit_code(STRATA_E_CONFIG), 2);
    assert_int_equal(strata_status_exit_code(STRATA_E_NOFIT), 3);
    assert_int_equal(strata_status_exit_code(STRATA_E_IO), 4);
    assert_int_equal(strata_status_exit_code(STRATA_E_NUMERICS), 5);
    assert_int_equal(strata_status_exit_code((strata_status)-1000), 1);
    assert_string_equal(strata_status_text(STRATA_OK), "ok");
    assert_string_equal(strata_status_text((strata_status)-1000), "unknown status");
}

static void *other_thread(void *arg)
{
    (void)arg;
    assert_int_equal(st_error(STRATA_E_IO, "elsewhere"), STRATA_E_IO);
    return NULL;
}

static void test_sentences_are_per_thread(void **state)
{
    pthread_t thread;

    (void)state;
    assert_int_equal(st_error(STRATA_E_IO, "here"), STRATA_E_IO);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(strata_last_error(), "here");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentence_is_kept_and_status_returned),
        cmocka_unit_test(test_prefix_goes_in_front),
        cmocka_unit_test(test_sentence_may_quote_the_last_one),
        cmocka_unit_test(test_long_sentences_are_cut),
        cmocka_unit_test(test_errno_is_mapped),
        cmocka_unit_test(test_exit_codes_and_texts),
        cmocka_unit_test(test_sentences_are_per_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
