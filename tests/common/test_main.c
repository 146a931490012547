/* tests/common/test_main.c - see test.h: main() of the test programs. */
#include "tests/common/sample.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The linker gathers the entries of all files. */
extern const struct test_entry *const __start_test_entries[];
extern const struct test_entry *const __stop_test_entries[];

/* "gates" of .../test_gates.c; for the caller to free. */
static char *unit_of(const char *file)
{
    const char *base = strrchr(file, '/');

    base = base != NULL ? base + 1 : file;
    if (strncmp(base, "test_", strlen("test_")) == 0)
        base += strlen("test_");
    return strndup(base, strcspn(base, "."));
}

static int by_line(const void *a, const void *b)
{
    const struct test_entry *const *const x = a, *const *const y = b;

    return ((*x)->line > (*y)->line) - ((*x)->line < (*y)->line);
}

int test_run_file(const char *file, const char *name, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    const size_t most = (size_t)(__stop_test_entries - __start_test_entries);
    const struct test_entry **const entries = calloc(most, sizeof(*entries));
    struct CMUnitTest *const tests = calloc(most, sizeof(*tests));
    char *const unit = unit_of(file);
    size_t count = 0;
    int failed = 1;

    if (entries != NULL && tests != NULL && unit != NULL) {
        for (size_t i = 0; i < most; i++)
            if (__start_test_entries[i]->test.test_func != NULL && strcmp(__start_test_entries[i]->file, file) == 0)
                entries[count++] = __start_test_entries[i];
        qsort(entries, count, sizeof(*entries), by_line);
        for (size_t i = 0; i < count; i++)
            tests[i] = entries[i]->test;
        failed = _cmocka_run_group_tests(name != NULL ? name : unit, tests, count, setup, teardown);
    }
    free(unit);
    free(tests);
    free(entries);
    return failed;
}

int main(int argc, char **argv)
{
    const struct test_entry *group = *__start_test_entries;

    for (const struct test_entry *const *e = __start_test_entries; e < __stop_test_entries; e++) {
        if ((*e)->main != NULL)
            return (*e)->main(argc, argv);
        if ((*e)->test.test_func == NULL)
            group = *e;
    }
    sample_init(argc, argv);
    return test_run_file(group->file, NULL, group->setup, group->teardown);
}
