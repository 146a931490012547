/* cli/config_edit.c - see cli/config_edit.h.  Text is checked by core/json.h first: the scan below meets good JSON alone. */
#include "cli/config_edit.h"
#include "core/error.h"
#include "core/json.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG_BYTES_MAX (16u << 20)
#define INDENT           "    "

/* --- the text --- */

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* From the opening quote to behind the closing one. */
static const char *skip_string(const char *at)
{
    for (at++; *at != '"'; at++)
        if (*at == '\\')
            at++;
    return at + 1;
}

/* From the first character of a value to behind its last. */
static const char *skip_value(const char *at)
{
    int depth = 0;

    if (*at == '"')
        return skip_string(at);
    if (*at != '{' && *at != '[')
        return at + strcspn(at, ",]} \t\r\n");
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        at++;
    } while (depth > 0);
    return at;
}

struct place {
    const char *begin, *end; /* of the member's value; of nothing, where it goes, if there is none */
    bool found, first;       /* first: the object has no member */
};

static struct place find_member(const char *text, const char *key)
{
    const char *at = skip_space(skip_space(text) + 1), *last = at;
    const size_t length = strlen(key);
    struct place place = {.first = *at == '}'};

    while (*at != '}') {
        const char *name = at + 1, *after = skip_string(at), *value = skip_space(skip_space(after) + 1);

        last = skip_value(value);
        if ((size_t)(after - name) == length + 1 && strncmp(name, key, length) == 0) {
            place.found = true;
            place.begin = value;
            place.end = last;
            return place;
        }
        at = skip_space(last);
        if (*at == ',')
            at = skip_space(at + 1);
    }
    place.begin = place.end = place.first ? skip_space(text) + 1 : last;
    return place;
}

static strata_status check_object(const char *text, const char *name)
{
    st_json *root = NULL;
    strata_status st = st_json_parse(&root, text, strlen(text), name);

    if (st == STRATA_OK && st_json_type(root) != ST_JSON_OBJECT)
        st = st_error(STRATA_E_CONFIG, "%s: a configuration is an object in braces", name);
    st_json_free(root);
    return st;
}

strata_status cli_config_edit_text(char **out, const char *text, const char *name, const char *key, const char *value)
{
    strata_status st = check_object(text, name);
    struct place place;
    char *edited = NULL;
    int rc;

    if (st != STRATA_OK)
        return st;
    place = find_member(text, key);
    if (place.found)
        rc = asprintf(&edited, "%.*s%s%s", (int)(place.begin - text), text, value, place.end);
    else
        rc = asprintf(&edited, "%.*s%s\n" INDENT "\"%s\": %s%s%s", (int)(place.begin - text), text, place.first ? "" : ",", key,
                      value, place.first ? "\n" : "", place.first ? skip_space(place.end) : place.end);
    if (rc < 0)
        return st_error(STRATA_E_NOMEM, "%s: no memory to edit it", name);
    if ((st = check_object(edited, name)) == STRATA_OK)
        *out = edited;
    else
        free(edited);
    return st;
}

/* --- the file --- */

static strata_status write_all(int fd, const char *text)
{
    const size_t bytes = strlen(text);

    for (size_t at = 0; at < bytes;) {
        const ssize_t moved = write(fd, text + at, bytes - at);

        if (moved < 0 && errno != EINTR)
            return st_error_errno(errno, "write");
        at += moved > 0 ? (size_t)moved : 0;
    }
    return fsync(fd) == 0 ? STRATA_OK : st_error_errno(errno, "fsync");
}

strata_status cli_config_write_file(const char *path, const char *text, unsigned mode)
{
    char temporary[PATH_MAX];
    strata_status st;
    int fd;

    if (snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path) >= (int)sizeof(temporary))
        return st_error(STRATA_E_INVAL, "%s: the name is too long", path);
    fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return st_error_errno(errno, "%s: a file cannot be made beside it", path);
    st = fchmod(fd, (mode_t)mode) == 0 ? write_all(fd, text) : st_error_errno(errno, "fchmod");
    close(fd);
    if (st == STRATA_OK && rename(temporary, path) != 0)
        st = st_error_errno(errno, "rename");
    if (st == STRATA_OK)
        return STRATA_OK;
    unlink(temporary);
    return st_error_prefix(st, "%s", path);
}

static strata_status read_file(char **out, unsigned *mode, const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    char *text;
    ssize_t got;

    if (fd < 0)
        return st_error_errno(errno, "%s", path);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > (off_t)CONFIG_BYTES_MAX) {
        close(fd);
        return st_error(STRATA_E_INPUT, "%s: no file of at most 16 MiB", path);
    }
    text = calloc(1, (size_t)info.st_size + 1);
    got = text != NULL ? pread(fd, text, (size_t)info.st_size, 0) : -1;
    close(fd);
    if (got != info.st_size || strlen(text) != (size_t)got) {
        free(text);
        return st_error(STRATA_E_INPUT, "%s: cannot be read as text", path);
    }
    *out = text;
    *mode = info.st_mode & 07777;
    return STRATA_OK;
}

strata_status cli_config_edit_file(const char *path, const char *key, const char *value)
{
    char *const real = realpath(path, NULL);
    char *text = NULL, *edited = NULL;
    unsigned mode = 0;
    strata_status st;

    if (real == NULL)
        return st_error_errno(errno, "%s", path);
    st = read_file(&text, &mode, real);
    if (st == STRATA_OK)
        st = cli_config_edit_text(&edited, text, path, key, value);
    if (st == STRATA_OK)
        st = cli_config_write_file(real, edited, mode);
    free(edited);
    free(text);
    free(real);
    return st;
}
