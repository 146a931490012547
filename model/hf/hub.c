/* hub.c - see hub.h.  Names of the cache are made of checked words, so that no file in it leads out of it by its text. */
#include "model/hf/hub.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define REF_BYTES_MAX 256u /* of a file that holds a commit's name */
#define WORD_MAX      96u  /* bytes of an organisation, a name, a revision, as the hub has them */

/* A word of a name there: no separator, and no way up. */
static bool is_word(const char *text, size_t length)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

    return length > 0 && length <= WORD_MAX && text[0] != '.' && strspn(text, set) >= length;
}

/* ORG/NAME@REVISION in its words. */
static bool split(const char *id, size_t *org, size_t *name, const char **revision)
{
    const char *at = strchr(id, '@'), *slash = strchr(id, '/');

    if (slash == NULL || (at != NULL && at < slash))
        return false;
    *org = (size_t)(slash - id);
    *name = at != NULL ? (size_t)(at - slash - 1) : strlen(slash + 1);
    *revision = at != NULL ? at + 1 : "main";
    return is_word(id, *org) && is_word(slash + 1, *name) && is_word(*revision, strlen(*revision));
}

bool st_hub_is_id(const char *name)
{
    const char *revision;
    size_t org, bytes;

    return split(name, &org, &bytes, &revision);
}

/* "": no variable says where it is. */
static strata_status find_root(char root[ST_PATH_MAX])
{
    static const struct {
        const char *variable, *below;
    } places[] = {
        {"HF_HUB_CACHE", NULL},
        {"HUGGINGFACE_HUB_CACHE", NULL},
        {"HF_HOME", "hub"},
        {"XDG_CACHE_HOME", "huggingface/hub"},
        {"HOME", ".cache/huggingface/hub"},
    };

    root[0] = '\0';
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const char *value = getenv(places[i].variable);

        if (value != NULL && value[0] != '\0')
            return places[i].below != NULL ? st_path_join(root, value, places[i].below) : st_path_copy(root, value);
    }
    return STRATA_OK;
}

/* The commit that refs/REVISION names, or the revision itself, which may be one. */
static strata_status read_commit(char commit[WORD_MAX + 1], const char *repository, const char *revision)
{
    char refs[ST_PATH_MAX], path[ST_PATH_MAX], *text = NULL;
    struct stat info;
    uint64_t bytes = 0;
    size_t length;
    strata_status st;

    if ((st = st_path_join(refs, repository, "refs")) != STRATA_OK || (st = st_path_join(path, refs, revision)) != STRATA_OK)
        return st;
    snprintf(commit, WORD_MAX + 1, "%s", revision);
    if (!st_fault_refuses("hub.stat") && lstat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return STRATA_OK;
    if (st_fault_refuses("hub.stat") || stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return st_error(STRATA_E_INPUT, "%s: must be a file with the name of a commit", path);
    if ((st = st_file_read_text(&text, &bytes, path, REF_BYTES_MAX)) != STRATA_OK)
        return st;
    length = strcspn(text, " \r\n");
    if (!is_word(text, length) || length + strspn(text + length, " \r\n") != bytes)
        st = st_error(STRATA_E_INPUT, "%s: must hold the name of a commit, and nothing else", path);
    else
        snprintf(commit, WORD_MAX + 1, "%.*s", (int)length, text);
    free(text);
    return st;
}

static bool is_directory(const char *path)
{
    struct stat info;

    return !st_fault_refuses("hub.stat") && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* *dir: "" where this cache does not have it. */
static strata_status look_in(char dir[ST_PATH_MAX], const char *root, const char *id)
{
    char repository[ST_PATH_MAX], snapshots[ST_PATH_MAX], name[2 * WORD_MAX + 32], commit[WORD_MAX + 1];
    const char *revision;
    size_t org, bytes;
    strata_status st;

    dir[0] = '\0';
    if (root[0] == '\0' || !split(id, &org, &bytes, &revision))
        return STRATA_OK;
    snprintf(name, sizeof(name), "models--%.*s--%.*s", (int)org, id, (int)bytes, id + org + 1);
    if ((st = st_path_join(repository, root, name)) != STRATA_OK)
        return st;
    if (!is_directory(repository))
        return STRATA_OK;
    if ((st = read_commit(commit, repository, revision)) != STRATA_OK ||
        (st = st_path_join(snapshots, repository, "snapshots")) != STRATA_OK ||
        (st = st_path_join(dir, snapshots, commit)) != STRATA_OK)
        return st;
    if (is_directory(dir))
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s: the cache names this directory, and it is not there: \"hf download %.*s\" fetches it",
                    dir, (int)(org + 1 + bytes), id);
}

strata_status st_hub_find(char dir[ST_PATH_MAX], char root[ST_PATH_MAX], const char *id)
{
    const char *old = getenv("TRANSFORMERS_CACHE");
    strata_status st = find_root(root);

    if (st == STRATA_OK)
        st = look_in(dir, root, id);
    return st == STRATA_OK && dir[0] == '\0' && old != NULL ? look_in(dir, old, id) : st;
}
