/* tests/common/test.h - cmocka, and tests that collect themselves: a test file needs no table and no main().
 *
 *     TEST(a_sum_is_exact) { assert_int_equal(...); }
 *     TEST_SETUP(a_file_is_kept, scratch_create, scratch_remove) { use(*state); }
 *     TEST_GROUP(workplace_setup, workplace_teardown);      before the first and after the last test of the file
 *     TEST_MAIN(argc, argv) { ...; return test_run(NULL, NULL); }      where a file reads arguments, or a machine may lack what it tests
 *
 * Tests run in the order of their file.  A program may have many files: PROGRAM UNIT runs those of test_UNIT.c, in a process of their
 * own for ctest.  --all, last, runs the whole of a sample (tests/common/sample.h).
 */
#ifndef TESTS_COMMON_TEST_H
#define TESTS_COMMON_TEST_H

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#include <cmocka.h>
#ifdef __cplusplus
}
#endif
// clang-format on

/* What one line of a test file adds to it: a test, what its group needs, or its main(). */
struct test_entry {
    const char *file;
    int line;
    struct CMUnitTest test;
    CMFixtureFunction setup, teardown;
    int (*main)(int argc, char **argv);
};

#define TEST_ENTRY(id, ...)                                                                                                      \
    static const struct test_entry id##_entry = {__FILE__, __LINE__, __VA_ARGS__};                                               \
    static const struct test_entry *const id##_entered __attribute__((used, section("test_entries"))) = &id##_entry

#define TEST_AS(name, ...)                                                                                                       \
    static void name(void **state);                                                                                              \
    TEST_ENTRY(name, __VA_ARGS__, NULL, NULL, NULL);                                                                             \
    static void name(__attribute__((unused)) void **state)

#define TEST(name)                        TEST_AS(name, cmocka_unit_test(name))
#define TEST_SETUP(name, setup, teardown) TEST_AS(name, cmocka_unit_test_setup_teardown(name, setup, teardown))
#define TEST_GROUP(setup, teardown)       TEST_ENTRY(group, cmocka_unit_test(NULL), setup, teardown, NULL)
#define TEST_MAIN(argc, argv)                                                                                                    \
    static int unit_main(int argc, char **argv);                                                                                 \
    TEST_ENTRY(unit_main, cmocka_unit_test(NULL), NULL, NULL, unit_main);                                                        \
    static int unit_main(__attribute__((unused)) int argc, __attribute__((unused)) char **argv)

/** The tests of this file as one group; from its TEST_MAIN.  Returns how many failed. */
#define test_run(setup, teardown) test_run_file(__FILE__, NULL, setup, teardown)

#ifdef __cplusplus
extern "C"
#endif
/** The tests of `file`, as a group called `name`; NULL: as its unit. */
int test_run_file(const char *file, const char *name, CMFixtureFunction setup, CMFixtureFunction teardown);

#endif
