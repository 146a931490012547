/* tests/cli/test_their_files.c - configuration files in the manner of those that people have, of other programs: strata check takes
 * each, with so many notices, or refuses it with a sentence that names the key and what to do.  tests/golden/their_files/table.tsv
 * says which; every file there is a row. */
#include "tests/cli/program.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIR_PATH     "tests/golden/their_files"
#define FILES_LEAST  40u
#define ERRORS_MOST  6u
#define NOTICE       "\"origin\":\"file\",\"verdict\":\"notice\""
#define ERROR_PREFIX "strata: error: "

static unsigned count(const char *text, const char *what)
{
    unsigned found = 0;

    for (; (text = strstr(text, what)) != NULL; text += strlen(what))
        found++;
    return found;
}

static bool matches(const char *pattern, const char *text)
{
    regex_t regex;
    bool found;

    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    found = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return found;
}

static bool is_as_told(const struct program *p, int code, const char *told)
{
    if (p->code != code)
        return false;
    if (code == 0)
        return count(p->out, NOTICE) == (unsigned)atoi(told);
    return matches(told, p->err) && count(p->err, ERROR_PREFIX) <= ERRORS_MOST;
}

static unsigned check_file(const char *name, int code, const char *told)
{
    char path[256];
    const char *words[] = {"check", path, "--json", NULL};
    struct program p;
    unsigned faults = 0;

    snprintf(path, sizeof(path), DIR_PATH "/%s", name);
    program_run(&p, words, NULL);
    if (!is_as_told(&p, code, told) && ++faults > 0)
        fprintf(stderr, "%s: exit code %d, %u notices, expected %d, %s\n%s", name, p.code, count(p.out, NOTICE), code, told, p.err);
    program_free(&p);
    return faults;
}

/* Files there but for the table. */
static unsigned files_there(void)
{
    unsigned found = 0;
    DIR *dir = opendir(DIR_PATH);

    assert_non_null(dir);
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        found += entry->d_name[0] != '.' && strcmp(entry->d_name, "table.tsv") != 0;
    closedir(dir);
    return found;
}

TEST(each_is_taken_or_refused_as_told)
{
    FILE *file = fopen(DIR_PATH "/table.tsv", "re");
    unsigned rows = 0, faults = 0;
    size_t capacity = 0;
    char *line = NULL;

    assert_non_null(file);
    while (getline(&line, &capacity, file) > 0) {
        char *at = line, *name = strsep(&at, "\t"), *code = strsep(&at, "\t");

        if (line[0] == '#')
            continue;
        assert_non_null(at);
        at[strcspn(at, "\n")] = '\0';
        faults += check_file(name, atoi(code), at);
        rows++;
    }
    free(line);
    fclose(file);
    assert_int_equal(rows, files_there());
    assert_true(rows >= FILES_LEAST);
    assert_int_equal(faults, 0);
}

TEST_MAIN(argc, argv)
{
    setenv("HF_HUB_CACHE", DIR_PATH "/no-cache", 1); /* names of the Hub are found on no machine */
    return test_run(NULL, NULL);
}
