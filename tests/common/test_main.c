/* tests/common/test_main.c - see test.h: main() of the test programs, PROGRAM UNIT [ARGUMENT]...; the unit of test_gates.c is gates. */
#include "tests/common/sample.h"
#include "tests/common/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The linker gathers the entries of all files. */
extern const struct test_entry *const __start_test_entries[];
extern const struct test_entry *const __stop_test_entries[];

/* For the caller to free. */
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

/* The file of the unit that the program's first argument names, which is then taken from the arguments; or the only file there is. */
static const char *file_asked_for(int *argc, char ***argv)
{
    const char *const first = (*__start_test_entries)->file, *file = NULL, *before = NULL;
    bool only = true;

    for (const struct test_entry *const *e = __start_test_entries; e < __stop_test_entries; e++)
        only = only && strcmp((*e)->file, first) == 0;
    if (only)
        return first;
    for (const struct test_entry *const *e = __start_test_entries; e < __stop_test_entries && file == NULL; e++) {
        char *const unit = unit_of((*e)->file);

        if (*argc > 1 && unit != NULL && strcmp(unit, (*argv)[1]) == 0)
            file = (*e)->file;
        free(unit);
    }
    if (file != NULL) {
        (*argc)--, (*argv)++;
        return file;
    }
    fprintf(stderr, "usage: %s UNIT [ARGUMENT]..., of the units\n", (*argv)[0]);
    for (const struct test_entry *const *e = __start_test_entries; e < __stop_test_entries; e++)
        if (before == NULL || strcmp((*e)->file, before) != 0) {
            char *const unit = unit_of(before = (*e)->file);

            fprintf(stderr, "  %s\n", unit);
            free(unit);
        }
    return NULL;
}

int main(int argc, char **argv)
{
    const char *const file = file_asked_for(&argc, &argv);
    const struct test_entry *group = NULL;

    if (file == NULL)
        return 2;
    for (const struct test_entry *const *e = __start_test_entries; e < __stop_test_entries; e++) {
        if ((*e)->test.test_func != NULL || strcmp((*e)->file, file) != 0)
            continue;
        if ((*e)->main != NULL)
            return (*e)->main(argc, argv);
        group = *e;
    }
    sample_init(argc, argv);
    return test_run_file(file, NULL, group != NULL ? group->setup : NULL, group != NULL ? group->teardown : NULL);
}
