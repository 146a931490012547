/* cli/commands/config_edit.c - see cli/commands/config_edit.h. */
#include "cli/commands/config_edit.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/json/json_edit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_BYTES_MAX (16u << 20)

strata_status cli_config_write_file(struct st_new_file *file, const char *text)
{
    const strata_status st = st_new_file_write_at(file, text, strlen(text), 0);

    if (st == STRATA_OK)
        return st_new_file_commit(file);
    st_new_file_abort(file);
    return st;
}

/* Replaces the file by a new one with the same mode. */
static strata_status replace(const char *path, const char *text)
{
    struct st_new_file file = {.fd = -1};
    struct stat info;
    strata_status st = st_new_file_create(&file, path, ST_NEW_FILE_OVERWRITE);

    if (st != STRATA_OK)
        return st;
    if (!st_fault_refuses("config.mode") && stat(path, &info) == 0 && fchmod(file.fd, info.st_mode & 07777) == 0)
        return cli_config_write_file(&file, text);
    st = st_error_errno(errno, "%s: its mode", path);
    st_new_file_abort(&file);
    return st;
}

/* The file's text with the section.  @param edited  owned by the caller */
static strata_status edit(char **edited, const char *real, const char *path, const char *key, const char *value)
{
    char *text = NULL;
    uint64_t bytes;
    strata_status st = st_file_read_text(&text, &bytes, real, CONFIG_BYTES_MAX);

    if (st == STRATA_OK && strlen(text) != bytes)
        st = st_error(STRATA_E_INPUT, "%s: cannot be read as text", path);
    if (st == STRATA_OK)
        st = st_json_edit(edited, text, path, key, value);
    free(text);
    return st == STRATA_E_CONFIG ? st_error_prefix(st, "only a file in strict JSON is changed") : st;
}

static strata_status edit_file(const char *path, const char *key, const char *value, bool writes)
{
    char *const real = st_fault_refuses("config.realpath") ? NULL : realpath(path, NULL);
    char *edited = NULL;
    strata_status st;

    if (real == NULL)
        return st_error_errno(errno, "%s", path);
    st = edit(&edited, real, path, key, value);
    if (st == STRATA_OK)
        st = writes ? replace(real, edited) : st_new_file_check(real, true);
    free(edited);
    free(real);
    return st;
}

strata_status cli_config_edit_check(const char *path, const char *key)
{
    return edit_file(path, key, "{}", false);
}

strata_status cli_config_edit_file(const char *path, const char *key, const char *value)
{
    return edit_file(path, key, value, true);
}
