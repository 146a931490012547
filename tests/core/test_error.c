/* tests/core/test_error.c - sentences, status texts and exit codes. */
#include "core/base/error.h"
#include "tests/common/test.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

TEST(test_sentence_is_kept_and_status_returned)
{
    assert_int_equal(st_error(STRATA_E_NOMEM, "%d bytes short", 17), STRATA_E_NOMEM);
    assert_string_equal(strata_last_error(), "17 bytes short");
    st_error_clear();
    assert_string_equal(strata_last_error(), "");
}

TEST(test_prefix_goes_in_front)
{
    assert_int_equal(st_error(STRATA_E_IO, "read failed"), STRATA_E_IO);
    assert_int_equal(st_error_prefix(STRATA_E_TRUNC, "layer %d", 3), STRATA_E_TRUNC);
    assert_string_equal(strata_last_error(), "layer 3: read failed");
}

TEST(test_remedy_is_the_end_of_the_sentence)
{
    char kept[1024];

    assert_int_equal(st_error_remedy(st_error(STRATA_E_NOMEM, "arena: %d short", 17), "strata.host_memory", "lower %s\x1b",
                                     "strata.host_memory"),
                     STRATA_E_NOMEM);
    assert_string_equal(strata_last_error(), "arena: 17 short: lower strata.host_memory\\x1b");
    assert_string_equal(strata_error_remedy(), "lower strata.host_memory\\x1b");
    assert_string_equal(strata_error_key(), "strata.host_memory");
    assert_int_equal(st_error_prefix(STRATA_E_NOMEM, "worker 3"), STRATA_E_NOMEM);
    assert_string_equal(strata_last_error(), "worker 3: arena: 17 short: lower strata.host_memory\\x1b");
    assert_string_equal(strata_error_remedy(), "lower strata.host_memory\\x1b");
    assert_string_equal(strata_error_key(), "strata.host_memory");
    snprintf(kept, sizeof(kept), "%s", strata_last_error());
    assert_int_equal(st_error(STRATA_E_IO, "%s", kept), STRATA_E_IO); /* after what had to be closed */
    assert_string_equal(strata_error_key(), "strata.host_memory");
    assert_string_equal(strata_error_remedy(), "lower strata.host_memory\\x1b");
}

static void *refuse(void *kept)
{
    assert_int_equal(st_error_remedy(st_error(STRATA_E_NOFIT, "no room"), "strata.nvme", "name a drive"), STRATA_E_NOFIT);
    st_error_keep(kept);
    return NULL;
}

TEST(test_another_threads_sentence_has_key_and_remedy)
{
    struct st_sentence kept;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, refuse, &kept), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(st_error(STRATA_E_IO, "meanwhile"), STRATA_E_IO);
    assert_int_equal(st_error_prefix(st_error_again(STRATA_E_NOFIT, &kept), "rank 1"), STRATA_E_NOFIT);
    assert_string_equal(strata_last_error(), "rank 1: no room: name a drive");
    assert_string_equal(strata_error_key(), "strata.nvme");
    assert_string_equal(strata_error_remedy(), "name a drive");
}

TEST(test_next_error_has_neither_key_nor_remedy)
{
    assert_int_equal(st_error_remedy(st_error(STRATA_E_IO, "cause"), "a.key", "remedy"), STRATA_E_IO);
    assert_int_equal(st_error(STRATA_E_IO, "another"), STRATA_E_IO);
    assert_string_equal(strata_error_key(), "");
    assert_string_equal(strata_error_remedy(), "");
    assert_int_equal(st_error_key(st_error_errno(EIO, "strata.save x"), "strata.save"), STRATA_E_IO);
    assert_string_equal(strata_error_key(), "strata.save");
    assert_string_equal(strata_error_remedy(), "");
    st_error_clear();
    assert_string_equal(strata_error_key(), "");
}

TEST(test_remedy_without_room_is_left_out)
{
    char text[1023 - 8 + 1], key[100];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    memset(key, 'k', sizeof(key) - 1);
    key[sizeof(key) - 1] = '\0';
    assert_int_equal(st_error_remedy(st_error(STRATA_E_IO, "%s", text), key, "remedy"), STRATA_E_IO);
    assert_string_equal(strata_error_remedy(), "remedy");
    assert_int_equal(strlen(strata_error_key()), 63);
    assert_int_equal(st_error_prefix(STRATA_E_IO, "prefix"), STRATA_E_IO);
    assert_string_equal(strata_error_remedy(), "");
    assert_int_equal(st_error_remedy(st_error(STRATA_E_IO, "%s", text), "key", "longer than it"), STRATA_E_IO);
    assert_string_equal(strata_last_error(), text);
    assert_string_equal(strata_error_remedy(), "");
}

TEST(test_sentence_may_quote_the_last_one)
{
    assert_int_equal(st_error(STRATA_E_IO, "inner"), STRATA_E_IO);
    assert_int_equal(st_error(STRATA_E_IO, "outer (%s)", strata_last_error()), STRATA_E_IO);
    assert_string_equal(strata_last_error(), "outer (inner)");
}

TEST(test_long_sentences_are_cut)
{
    char text[4096];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    assert_int_equal(st_error(STRATA_E_IO, "%s", text), STRATA_E_IO);
    assert_int_equal(strlen(strata_last_error()), 1023);
    assert_int_equal(st_error_prefix(STRATA_E_IO, "%s", text), STRATA_E_IO);
    assert_int_equal(strlen(strata_last_error()), 1023);
    assert_int_equal(st_error_errno(EIO, "%s", text), STRATA_E_IO);
    assert_int_equal(strlen(strata_last_error()), 1023);
}

TEST(test_errno_is_mapped)
{
    static const struct {
        int err;
        strata_status status;
    } rows[] = {
        {ENOSPC, STRATA_E_NOSPC}, {EDQUOT, STRATA_E_NOSPC}, {ENOMEM, STRATA_E_NOMEM},        {EIO, STRATA_E_IO},
        {ENOENT, STRATA_E_INPUT}, {EACCES, STRATA_E_INPUT}, {EROFS, STRATA_E_INPUT},         {ENOSYS, STRATA_E_NOSYS},
        {EAGAIN, STRATA_E_BUSY},  {EINVAL, STRATA_E_IO},    {ECANCELED, STRATA_E_CANCELLED}, {0, STRATA_E_INTERNAL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(st_error_errno(rows[i].err, "row %zu", i), rows[i].status);
    assert_int_equal(st_error_errno(ENOSPC, "swap"), STRATA_E_NOSPC);
    assert_string_equal(strata_last_error(), "swap: No space left on device");
}

TEST(test_exit_codes_and_texts)
{
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

TEST(test_sentences_are_per_thread)
{
    pthread_t thread;

    assert_int_equal(st_error(STRATA_E_IO, "here"), STRATA_E_IO);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(strata_last_error(), "here");
}

/* Where descriptors run out the limit and what to raise are in the sentence, whoever says it. */
TEST(too_many_open_files_have_a_remedy)
{
    char want[96];
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_cur == RLIM_INFINITY)
        skip();
    snprintf(want, sizeof(want), "here: Too many open files: ulimit -n allows %llu: raise it",
             (unsigned long long)limit.rlim_cur);
    assert_int_equal(st_error_errno(EMFILE, "here"), STRATA_E_IO);
    assert_string_equal(strata_last_error(), want);
    assert_int_equal(st_error_errno(ENFILE, "here"), STRATA_E_IO);
    assert_string_equal(strata_last_error(), "here: Too many open files in the system: raise sysctl fs.file-max");
}
