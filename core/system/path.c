/* core/system/path.c - see path.h. */
#include "core/system/path.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include <stdio.h>
#include <string.h>

/* The first `length` bytes of `path`, then the rest. */
static strata_status put(char out[ST_PATH_MAX], const char *path, size_t length, const char *between, const char *name)
{
    const int bytes = length < ST_PATH_MAX ? snprintf(out, ST_PATH_MAX, "%.*s%s%s", (int)length, path, between, name) : -1;

    if (bytes < 0 || bytes >= ST_PATH_MAX)
        return st_error(STRATA_E_INVAL, "path too long: %s%s%s", path, name[0] != '\0' ? "/" : "", name);
    return STRATA_OK;
}

const char *st_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

size_t st_path_length(const char *path)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

strata_status st_path_copy(char out[ST_PATH_MAX], const char *path)
{
    return put(out, path, strlen(path), "", "");
}

strata_status st_path_join(char path[ST_PATH_MAX], const char *dir, const char *name)
{
    return put(path, dir, strlen(dir), "/", name);
}

strata_status st_path_dir(char dir[ST_PATH_MAX], const char *path)
{
    const size_t length = (size_t)(st_path_name(path) - path);

    if (length == 0)
        return put(dir, ".", 1, "", "");
    return put(dir, path, length == 1 ? 1 : length - 1, "", "");
}

strata_status st_path_beside(char out[ST_PATH_MAX], const char *path, const char *name)
{
    return put(out, path, (size_t)(st_path_name(path) - path), "", name);
}

bool st_path_ends(const char *path, const char *end)
{
    const size_t length = strlen(path), end_length = strlen(end);

    return length >= end_length && st_text_same(path + length - end_length, end);
}
