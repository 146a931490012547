/* tests/common/scratch.c - see scratch.h. */
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char scratch_dir[32];

int scratch_create(void **state)
{
    (void)state;
    snprintf(scratch_dir, sizeof(scratch_dir), "/tmp/strata-test-XXXXXX");
    return mkdtemp(scratch_dir) == NULL ? -1 : 0;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

int scratch_remove(void **state)
{
    (void)state;
    return nftw(scratch_dir, remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

int scratch_remove_empty(void **state)
{
    (void)state;
    return rmdir(scratch_dir);
}

void scratch_open(void)
{
    assert_int_equal(scratch_create(NULL), 0);
}

void scratch_close(void)
{
    assert_int_equal(scratch_remove(NULL), 0);
}

static uint32_t open_at_begin;

int scratch_begin(void **state)
{
    const int result = scratch_create(state);

    open_at_begin = scratch_entries("/proc/self/fd", NULL);
    return result;
}

int scratch_end(void **state)
{
    assert_int_equal(scratch_entries("/proc/self/fd", NULL), open_at_begin);
    return scratch_remove(state);
}

const char *scratch_path(const char *name)
{
    static _Thread_local char paths[8][256];
    static _Thread_local unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, sizeof(paths[0]), "%s/%s", scratch_dir, name);
    return path;
}

void scratch_put(const char *name, const char *text)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s", scratch_dir, name);
    for (char *at = path + strlen(scratch_dir) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(path, 0755);
        *at = '/';
    }
    write_file(path, text, strlen(text));
}

void scratch_holds(const char *name, const char *text)
{
    char *have = read_file(scratch_path(name), NULL);

    assert_string_equal(have, text);
    free(have);
}

uint32_t scratch_entries(const char *dir, const char *except)
{
    DIR *stream = opendir(dir);
    uint32_t count = 0;

    assert_non_null(stream);
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
                 (except == NULL || strcmp(entry->d_name, except) != 0);
    closedir(stream);
    return count;
}

uint32_t scratch_entries_with(const char *dir, const char *part)
{
    DIR *stream = opendir(dir);
    uint32_t count = 0;

    if (stream == NULL)
        return 0;
    for (const struct dirent *entry; (entry = readdir(stream)) != NULL;)
        count += strstr(entry->d_name, part) != NULL;
    closedir(stream);
    return count;
}
