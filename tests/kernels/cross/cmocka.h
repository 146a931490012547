/* tests/kernels/cross/cmocka.h - as much of cmocka as the kernels' suites use, where cmocka itself is not built: test_neon.sh
 * compiles them against this header for a foreign processor.  A failed check ends the process with status 1. */
#ifndef TESTS_KERNELS_CROSS_CMOCKA_H
#define TESTS_KERNELS_CROSS_CMOCKA_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define fail_msg(...) (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), exit(1))
#define fail()        fail_msg("failed")
#define skip()        longjmp(cross_skip, 1)
#define print_message printf

#define assert_true(c)                   ((c) ? (void)0 : (void)fail_msg("not true: %s", #c))
#define assert_false(c)                  assert_true(!(c))
#define assert_null(p)                   assert_true((p) == NULL)
#define assert_non_null(p)               assert_true((p) != NULL)
#define assert_int_equal(a, b)           cross_equal((uint64_t)(a), (uint64_t)(b), #a, __FILE__, __LINE__)
#define assert_int_not_equal(a, b)       assert_true((uint64_t)(a) != (uint64_t)(b))
#define assert_in_range(x, min, max)     assert_true((x) >= (min) && (x) <= (max))
#define assert_ptr_equal(a, b)           assert_true((const void *)(a) == (const void *)(b))
#define assert_ptr_not_equal(a, b)       assert_true((const void *)(a) != (const void *)(b))
#define assert_string_equal(a, b)        assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, n)     assert_true(memcmp(a, b, n) == 0)
#define assert_memory_not_equal(a, b, n) assert_true(memcmp(a, b, n) != 0)

typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
};

// clang-format off
#define cmocka_unit_test(f) {#f, f}
// clang-format on
#define cmocka_run_group_tests(tests, setup, teardown)                                                                           \
    _cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                                                                \
    _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof((tests)[0]), setup, teardown)

__attribute__((weak)) jmp_buf cross_skip; /* where skip() goes, from whatever file */

static inline void cross_equal(uint64_t got, uint64_t want, const char *what, const char *file, int line)
{
    if (got == want)
        return;
    fprintf(stderr, "%s:%d: %s is %#jx, not %#jx\n", file, line, what, (uintmax_t)got, (uintmax_t)want);
    exit(1);
}

/* State is what setup left; a test leaves it as it found it, skipped or not. */
static inline int _cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
                                          CMFixtureFunction teardown)
{
    void *state = NULL;

    assert_true(setup == NULL || setup(&state) == 0);
    for (volatile size_t i = 0; i < count; i++) { /* lives through longjmp */
        const bool skipped = setjmp(cross_skip) != 0;

        if (!skipped)
            tests[i].test_func(&state);
        printf("%s: %s %s\n", group, tests[i].name, skipped ? "skipped" : "ok");
        fflush(stdout);
    }
    assert_true(teardown == NULL || teardown(&state) == 0);
    return 0;
}

#endif
