/* test_memory - blocks that are held are counted from the mark on, however they were taken; what is freed is not. */
#include "tests/common/lost_memory.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *written(void)
{
    char *text;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    assert_non_null(f);
    assert_true(fputs("text", f) >= 0);
    fclose(f);
    return text;
}

static void *taken_by(int way)
{
    void *block = NULL;

    if (way == 0)
        block = malloc(8);
    else if (way == 1)
        block = calloc(2, 8);
    else if (way == 2)
        block = realloc(malloc(8), 100000);
    else if (way == 3)
        block = aligned_alloc(64, 64);
    else if (way == 4)
        assert_int_equal(posix_memalign(&block, 64, 64), 0);
    else if (way == 5)
        block = strdup("text");
    else if (way == 6)
        block = strndup("text", 2);
    else if (way == 7)
        block = realpath("/", NULL);
    else if (way == 8)
        assert_int_equal(asprintf((char **)&block, "%d", way), 1);
    else
        block = written();
    assert_non_null(block);
    return block;
}

TEST(what_is_held_is_counted)
{
    for (int way = 0; way <= 9; way++) {
        const uint64_t mark = memory_mark();
        void *block = taken_by(way);

        assert_int_equal(memory_lost("meant", mark), 1);
        assert_int_equal(memory_lost("", memory_mark()), 0);
        free(block);
        assert_int_equal(memory_lost("", mark), 0);
    }
}

TEST(many_are_counted)
{
    enum { COUNT = 20000 };
    static void *blocks[COUNT];
    const uint64_t mark = memory_mark();

    for (int i = 0; i < COUNT; i++)
        assert_non_null(blocks[i] = malloc(1));
    assert_int_equal(memory_lost("meant", mark), COUNT);
    for (int i = 0; i < COUNT; i++)
        free(blocks[i]);
    assert_int_equal(memory_lost("", mark), 0);
}

/* What the system's library took and left to the caller. */
TEST(a_block_of_a_library_is_freed)
{
    FILE *f = tmpfile();
    char *line = NULL;
    size_t room = 0;
    const uint64_t mark = memory_mark();

    assert_non_null(f);
    assert_true(fputs("a line\n", f) >= 0);
    rewind(f);
    assert_true(getline(&line, &room, f) > 0);
    free(line);
    fclose(f);
    assert_int_equal(memory_lost("", mark), 0);
}
