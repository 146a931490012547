/* tests/common/open_files.c - the program's descriptors are the same after each group of tests as before it, and its memory is
 * given back (tests/common/lost_memory.h).  None of what they start uses the user's cache.
 *
 * The linker puts this in the place of cmocka's runner in every test program (--wrap).  A descriptor that one call leaves open
 * hurts nobody until a thousand calls have been made, so no test would miss it.  The program's own files in /proc may stay open.
 */
#include "tests/common/lost_memory.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_MAX 4096 /* descriptors beyond are not looked at */

int __real__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
                                   CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
                                   CMFixtureFunction teardown);

static void look(bool open[FILES_MAX])
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;

    memset(open, 0, FILES_MAX * sizeof(*open));
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const int fd = atoi(entry->d_name);

        if (fd != dirfd(dir) && fd < FILES_MAX && entry->d_name[0] != '.')
            open[fd] = true;
    }
    if (dir != NULL)
        closedir(dir);
}

int __wrap__cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
                                   CMFixtureFunction teardown)
{
    static bool before[FILES_MAX], after[FILES_MAX];
    const uint64_t mark = memory_mark();
    int failed;

    (void)setenv("STRATA_CACHE", "", 1); /* no test finds, or leaves, anything in its user's cache */
    look(before);
    failed = __real__cmocka_run_group_tests(name, tests, count, setup, teardown);
    if (failed == 0 && memory_lost(name, mark) > 0)
        failed = 1;
    look(after);
    for (int fd = 0; failed == 0 && fd < FILES_MAX; fd++) {
        char link[32], target[256];
        ssize_t length;

        if (before[fd] == after[fd])
            continue;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        length = readlink(link, target, sizeof(target) - 1);
        target[length > 0 ? length : 0] = '\0';
        if (after[fd] && strncmp(target, "/proc/", strlen("/proc/")) == 0)
            continue;
        fprintf(stderr, "%s: descriptor %d was %s before the tests and is %s after them: %s\n", name, fd,
                before[fd] ? "open" : "closed", after[fd] ? "open" : "closed", target);
        failed = 1;
    }
    return failed;
}
