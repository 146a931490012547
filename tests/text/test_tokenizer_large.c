/* tests/text/test_tokenizer_large.c - a vocabulary and merges of many parts (core/json/json_parts.h): all of them are read, and
 * opening takes little more memory than the file and the tables that are made of it. */
#include "text/tokenizer/tokenizer.h"
#include "tests/text/text_fixture.h"
#include "tests/common/child.h"
#include "tests/common/large_tokenizer.h"
#include "tests/common/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define LETTERS   16u
#define DATA_MOST (26u << 20) /* tables of 13 MiB and a file of 3; as a tree alone that file would take 50 */

/* Private memory that this process may write, as the limit counts it. */
static uint64_t data_bytes(void)
{
    unsigned long data;
    FILE *file = fopen("/proc/self/statm", "r");

    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %*u %*u %*u %*u %lu", &data), 1);
    fclose(file);
    return (uint64_t)data * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The first: memory that was used before would be used again. */
TEST(test_opening_takes_little_memory)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* they take memory of their own */
#else
    pid_t child;

    large_tokenizer_put(scratch_path("tokenizer.json"), LETTERS);
    child = child_fork();
    if (child == 0) {
        const struct rlimit limit = {data_bytes() + DATA_MOST, RLIM_INFINITY};
        struct st_tokenizer *t;

        if (setrlimit(RLIMIT_DATA, &limit) != 0)
            _exit(2);
        _exit(st_tokenizer_open(&t, scratch_path("tokenizer.json")) == STRATA_OK ? 0 : 1);
    }
    assert_int_equal(child_wait(child), 0);
#endif
}

TEST(test_all_parts_are_read)
{
    static const char text[] = "pabp"; /* ab, the first of all its merges, then one of three letters, then one of four */
    struct st_encoding out = {0};
    struct st_tokenizer *t;
    struct st_encoder *e;
    uint32_t id = 0;

    large_tokenizer_put(scratch_path("tokenizer.json"), LETTERS);
    assert_ok(st_tokenizer_open(&t, scratch_path("tokenizer.json")));
    for (uint32_t length = 1; length <= LARGE_TOKENIZER_LENGTH; length++)
        for (uint32_t i = 0; i < large_tokenizer_tokens(LETTERS, length); i++, id++) {
            char name[LARGE_TOKENIZER_LENGTH + 1];

            large_tokenizer_text(name, LETTERS, length, i);
            assert_int_equal(st_tokenizer_find(t, name), id);
        }
    assert_int_equal(st_tokenizer_vocab(t), id);
    assert_ok(st_encoder_create(&e, t));
    assert_ok(st_encode(e, text, sizeof(text) - 1, NULL, &out));
    assert_int_equal(out.count, 1);
    assert_int_equal(out.ids[0], st_tokenizer_find(t, text));
    st_encoding_free(&out);
    st_encoder_destroy(e);
    st_tokenizer_close(t);
}

TEST_GROUP(scratch_create, scratch_remove);
