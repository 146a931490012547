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

/* *mode: of what a name leads to; 0: it leads to nothing. */
static strata_status find_mode(mode_t *mode, const char *path)
{
    struct stat info = {0};
    const int err = st_fault_refuses("hub.stat") || stat(path, &info) != 0 ? errno : 0;

    *mode = err == 0 ? info.st_mode : 0;
    return err == 0 || err == ENOENT || err == ENOTDIR ? STRATA_OK : st_error_errno(err, "%s", path);
}

/* The name that the file refs/REVISION holds. */
static strata_status read_ref(char commit[ST_HUB_WORD_MAX + 1], const char *path)
{
    char *text = NULL;
    uint64_t bytes = 0;
    size_t length;
    strata_status st = st_file_read_text(&text, &bytes, path, REF_BYTES_MAX);

    if (st != STRATA_OK)
        return st;
    length = strcspn(text, " \r\n");
    if (!st_hub_is_word(text, length) || length + strspn(text + length, " \r\n") != bytes)
        st = st_error(STRATA_E_INPUT, "%s: must hold the name of a commit, and nothing else", path);
    else
        snprintf(commit, ST_HUB_WORD_MAX + 1, "%.*s", (int)length, text);
    free(text);
    return st;
}

/* The commit that refs/REVISION names, or the revision itself, which may be one. */
static strata_status find_commit(char commit[ST_HUB_WORD_MAX + 1], const char *repository, const char *revision)
{
    char refs[ST_PATH_MAX], path[ST_PATH_MAX];
    bool there = false;
    mode_t mode;
    strata_status st;

    if ((st = st_path_join(refs, repository, "refs")) != STRATA_OK || (st = st_path_join(path, refs, revision)) != STRATA_OK ||
        (st = find_mode(&mode, path)) != STRATA_OK)
        return st;
    if (S_ISREG(mode))
        return read_ref(commit, path);
    snprintf(commit, ST_HUB_WORD_MAX + 1, "%s", revision);
    if (mode == 0 && (st = st_file_find(&there, path)) != STRATA_OK)
        return st;
    return mode == 0 && !there ? STRATA_OK : st_error(STRATA_E_INPUT, "%s: must be a file with the name of a commit", path);
}

/* *dir: "" where this cache does not have it. */
static strata_status look_in(char dir[ST_PATH_MAX], const char *root, const char *id)
{
    char repository[ST_PATH_MAX], snapshots[ST_PATH_MAX], name[2 * ST_HUB_WORD_MAX + 32], commit[ST_HUB_WORD_MAX + 1];
    char command[ST_HUB_COMMAND_MAX];
    struct st_hub_id words;
    mode_t mode;
    strata_status st;

    dir[0] = '\0';
    if (root[0] == '\0' || !st_hub_split(&words, id))
        return STRATA_OK;
    snprintf(name, sizeof(name), "models--%.*s--%.*s", (int)words.org_bytes, id, (int)words.name_bytes, words.name);
    if ((st = st_path_join(repository, root, name)) != STRATA_OK || (st = find_mode(&mode, repository)) != STRATA_OK)
        return st;
    if (!S_ISDIR(mode))
        return STRATA_OK;
    if ((st = find_commit(commit, repository, words.revision)) != STRATA_OK ||
        (st = st_path_join(snapshots, repository, "snapshots")) != STRATA_OK ||
        (st = st_path_join(dir, snapshots, commit)) != STRATA_OK || (st = find_mode(&mode, dir)) != STRATA_OK || S_ISDIR(mode))
        return st;
    st_hub_command(command, id);
    return st_error(STRATA_E_INPUT, "%s: the cache names this directory, and it is not there: \"%s\" fetches it", dir, command);
}

strata_status st_hub_find(char dir[ST_PATH_MAX], char root[ST_PATH_MAX], const char *id)
{
    const char *old = getenv("TRANSFORMERS_CACHE");
    strata_status st = find_root(root);

    if (st == STRATA_OK)
        st = look_in(dir, root, id);
    return st == STRATA_OK && dir[0] == '\0' && old != NULL ? look_in(dir, old, id) : st;
}
