/* unsaved.c - see unsaved.h. */
#include "cli/commands/unsaved.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/json/json.h"
#include "core/system/file.h"
#include "strata/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES_MAX 4096u
#define PIECE_BYTES    (UINT64_C(1) << 20)

static const struct {
    const char *key;
    size_t offset;
} texts[] = {
    {"run", offsetof(struct cli_unsaved, run)},
    {"weights_digest", offsetof(struct cli_unsaved, weights)},
    {"state_digest", offsetof(struct cli_unsaved, state)},
    {"out_digest", offsetof(struct cli_unsaved, out)},
};
#define TEXTS (sizeof(texts) / sizeof(texts[0]))

void cli_unsaved_read(struct cli_unsaved *u, const char *save)
{
    char path[ST_PATH_MAX];
    st_json *root = NULL;
    bool good = st_path_join(path, save, CLI_UNSAVED) == STRATA_OK &&
                st_json_parse_file(&root, path, FILE_BYTES_MAX) == STRATA_OK && st_json_type(root) == ST_JSON_OBJECT;

    *u = (struct cli_unsaved){0};
    for (size_t i = 0; i < TEXTS && good; i++) {
        const st_json *text = st_json_get(root, texts[i].key);

        good = text != NULL && st_json_type(text) == ST_JSON_STRING && strlen(st_json_string(text)) < sizeof(u->run);
        if (good)
            memcpy((char *)u + texts[i].offset, st_json_string(text), strlen(st_json_string(text)) + 1);
    }
    u->there = good && st_json_get(root, "step") != NULL && st_json_get(root, "steps") != NULL &&
               st_json_u64(st_json_get(root, "step"), &u->step) && st_json_u64(st_json_get(root, "steps"), &u->steps);
    st_json_free(root);
    st_error_clear();
}

/* Somebody may have a file of that name there. */
static strata_status check_own(const char *path, const char *save)
{
    struct cli_unsaved have;
    bool there;
    const strata_status st = st_file_find(&there, path);

    if (st != STRATA_OK || !there)
        return st;
    cli_unsaved_read(&have, save);
    return have.there ? STRATA_OK : st_error(STRATA_E_INPUT, "%s exists, and no run wrote it", path);
}

strata_status cli_unsaved_write(const struct cli_unsaved *u, const char *save)
{
    struct st_json_writer w;
    struct st_new_file file;
    char path[ST_PATH_MAX];
    strata_status st = st_path_join(path, save, CLI_UNSAVED);

    if (st != STRATA_OK || (st = check_own(path, save)) != STRATA_OK ||
        (st = st_new_file_create(&file, path, ST_NEW_FILE_OVERWRITE | ST_NEW_FILE_PARENTS)) != STRATA_OK)
        return st;
    if ((st = st_new_file_stream(&file)) == STRATA_OK) {
        st_json_begin(&w, file.stream);
        st_json_object_open(&w, NULL);
        st_json_put_u64(&w, "step", u->step);
        st_json_put_u64(&w, "steps", u->steps);
        for (size_t i = 0; i < TEXTS; i++)
            st_json_put_string(&w, texts[i].key, (const char *)u + texts[i].offset);
        st_json_object_close(&w);
        st_json_end_line(&w);
        st = st_new_file_commit(&file);
    }
    st_new_file_abort(&file);
    return st;
}

void cli_unsaved_remove(const char *save)
{
    struct cli_unsaved have;
    char path[ST_PATH_MAX];

    cli_unsaved_read(&have, save);
    if (have.there && st_path_join(path, save, CLI_UNSAVED) == STRATA_OK && !st_fault_refuses("unsaved.remove"))
        (void)unlink(path);
}

/* --- digests --- */

static strata_status digest_file(char digest[33], const char *path)
{
    struct st_file_identity was;
    struct st_digest *d = NULL;
    char *piece = NULL;
    strata_status st;
    int fd;

    if ((st = st_file_open(&fd, &was, path, STRATA_E_INPUT)) != STRATA_OK)
        return st;
    if ((st = st_digest_create(&d)) == STRATA_OK && (piece = malloc(PIECE_BYTES)) == NULL)
        st = st_nomem(PIECE_BYTES);
    for (uint64_t at = 0, n; at < was.bytes && st == STRATA_OK; at += n) {
        n = was.bytes - at < PIECE_BYTES ? was.bytes - at : PIECE_BYTES;
        if ((st = st_file_read_at(fd, piece, n, at, path)) == STRATA_OK)
            st_digest_update(d, piece, n);
    }
    if (st == STRATA_OK)
        st_digest_hex(d, digest);
    free(piece);
    st_digest_destroy(d);
    close(fd);
    return st;
}

strata_status cli_unsaved_digest(char digest[33], const char *out, bool adapter)
{
    char path[ST_PATH_MAX];
    strata_status st;

    if (!adapter)
        return strata_directory_digest(out, digest);
    st = st_path_join(path, out, "adapter_model.safetensors");
    return st == STRATA_OK ? digest_file(digest, path) : st;
}
