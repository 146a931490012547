/* commit_small.c - what a checkpoint has beside its planes: see commit_internal.h. */
#include "offload/checkpoint/commit_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "core/system/file.h"
#include "core/system/tree.h"
#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/model_files.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void st_commit_name_file(struct st_manifest_file *f, const struct st_commit_parts *parts, uint32_t part, uint32_t dir)
{
    const char *space = f->space == ST_SPACE_BASE ? "base" : "set";

    if (parts->all > 1)
        snprintf(f->name, sizeof(f->name), "rank-%" PRIu32 ".%s.%" PRIu32, part, space, dir);
    else
        snprintf(f->name, sizeof(f->name), "%s.%" PRIu32, space, dir);
}

strata_status st_commit_name_files(struct st_manifest *m, const struct st_stripe *stripe, const struct st_commit_parts *parts)
{
    const uint32_t dirs = stripe->dir_count;

    m->stripe = *stripe;
    m->files = st_fault("commit.alloc", 0) < 0 ? NULL : calloc((size_t)parts->count * ST_SPACE_COUNT * dirs, sizeof(*m->files));
    if (m->files == NULL)
        return st_nomem(((size_t)parts->count * ST_SPACE_COUNT * dirs) * sizeof(*m->files));
    m->file_count = 0;
    for (uint32_t space = ST_SPACE_BASE; space < ST_SPACE_COUNT; space++)
        for (uint32_t i = 0; i < parts->count * dirs && m->space_bytes[space] > 0; i++) {
            struct st_manifest_file *f = &m->files[m->file_count++];

            f->space = (enum st_space)space;
            f->dir = i;
            f->bytes = st_stripe_file_bytes(stripe, i % dirs, m->space_bytes[space]);
            st_commit_name_file(f, parts, parts->first + i / dirs, i % dirs);
        }
    return STRATA_OK;
}

void st_commit_rows_name(char name[32], uint32_t part)
{
    snprintf(name, 32, "rank-%" PRIu32 ".extents", part);
}

static strata_status put_part(void *ctx, const void *part, uint64_t bytes, uint64_t offset)
{
    return st_new_file_write_at(ctx, part, bytes, offset);
}

/* Ends a file that was begun, well or not. */
static strata_status end_file(struct st_new_file *f, strata_status st)
{
    if (st == STRATA_OK)
        return st_new_file_commit(f);
    st_new_file_abort(f);
    return st;
}

strata_status st_commit_write_rows(const char *path, const struct st_extents *e, uint64_t *bytes, char digest[ST_DIGEST_TEXT])
{
    struct st_new_file f;
    const strata_status st = st_new_file_create(&f, path, 0);

    *bytes = st_extents_bytes(e);
    return st == STRATA_OK ? end_file(&f, st_extents_write(e, put_part, &f, digest)) : st;
}

static strata_status begin_file(struct st_new_file *f, const struct st_store *store, const char *name)
{
    char path[ST_PATH_MAX];
    const strata_status st = st_path_join(path, st_store_path(store), name);

    return st == STRATA_OK ? st_new_file_create(f, path, 0) : st;
}

static strata_status write_extents(const struct st_store *store, struct st_manifest *m, const struct st_extents *e)
{
    char path[ST_PATH_MAX];
    const strata_status st = st_path_join(path, st_store_path(store), ST_EXTENTS_NAME);

    return st == STRATA_OK ? st_commit_write_rows(path, e, &m->extents_bytes, m->extents_digest) : st;
}

static strata_status write_manifest(const struct st_store *store, const struct st_manifest *m)
{
    struct st_new_file f;
    uint64_t bytes;
    char *text;
    strata_status st = st_manifest_text(&text, &bytes, m);

    if (st != STRATA_OK)
        return st;
    if ((st = begin_file(&f, store, ST_MANIFEST_NAME)) == STRATA_OK)
        st = end_file(&f, st_new_file_write_at(&f, text, bytes, 0));
    free(text);
    return st;
}

/* --- the model's small files --- */

/* Makes the directory of them in another one. */
static strata_status make_model_dir(char path[ST_PATH_MAX], const char *dir, int dir_fd, const char *site)
{
    int rc = 0;
    const strata_status st = st_path_join(path, dir, ST_CHECKPOINT_MODEL);

    if (st != STRATA_OK)
        return st;
    st_cleanup_hold();
    if (st_fault_refuses(site) || mkdirat(dir_fd, ST_CHECKPOINT_MODEL, 0777) != 0)
        rc = errno;
    st_cleanup_release();
    return rc == 0 ? STRATA_OK : st_error_errno(rc, "making directory %s", path);
}

strata_status st_commit_keep_model(const struct st_store *store, st_commit_model_fn *model, void *ctx)
{
    int own_fd;
    const char *own = st_store_own(store, &own_fd);
    char path[ST_PATH_MAX];
    strata_status st;

    if (model == NULL)
        return STRATA_OK;
    if ((st = make_model_dir(path, own, own_fd, "commit.keep")) != STRATA_OK)
        return st;
    if ((st = model(ctx, path)) != STRATA_OK)
        (void)st_tree_remove(own_fd, ST_CHECKPOINT_MODEL); /* what stays is swept */
    return st;
}

static strata_status copy_file(const char *to_dir, const char *from_dir, const char *name)
{
    char to[ST_PATH_MAX], from[ST_PATH_MAX];
    struct st_file_identity file;
    int fd;
    strata_status st = st_path_join(to, to_dir, name);

    if (st != STRATA_OK || (st = st_path_join(from, from_dir, name)) != STRATA_OK ||
        (st = st_file_open(&fd, &file, from, STRATA_E_IO)) != STRATA_OK)
        return st;
    st = st_commit_copy(to, from, fd, file.bytes);
    close(fd);
    return st;
}

/* Copies, since people edit them in one checkpoint. */
static strata_status copy_model(const char *to, const char *from)
{
    DIR *stream = st_fault_refuses("commit.opendir") ? NULL : opendir(from);
    const struct dirent *entry;
    strata_status st = STRATA_OK;

    if (stream == NULL)
        return st_error_errno(errno, "%s", from);
    while (st == STRATA_OK && (entry = st_dir_next(stream)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            st = copy_file(to, from, entry->d_name);
    if (st == STRATA_OK && errno != 0)
        st = st_error_errno(errno, "reading %s", from);
    closedir(stream);
    return st;
}

static strata_status write_model(const struct st_store *store, struct st_manifest *m, st_commit_model_fn *model, void *ctx)
{
    char path[ST_PATH_MAX], kept[ST_PATH_MAX];
    int own_fd;
    const char *own = st_store_own(store, &own_fd);
    bool there = false;
    strata_status st;

    if (model == NULL)
        return STRATA_OK;
    if ((st = make_model_dir(path, st_store_path(store), st_store_dir_fd(store), "commit.mkdir")) != STRATA_OK ||
        (st = st_path_join(kept, own, ST_CHECKPOINT_MODEL)) != STRATA_OK || (st = st_file_find(&there, kept)) != STRATA_OK)
        return st;
    st = there ? copy_model(path, kept) : model(ctx, path);
    return st == STRATA_OK ? st_model_files_digest(m->model_files, path) : st;
}

strata_status st_commit_write_small(const struct st_store *store, struct st_manifest *m, const struct st_extents *e,
                                    st_commit_model_fn *model, void *ctx)
{
    strata_status st = write_model(store, m, model, ctx);

    if (st == STRATA_OK)
        st = write_extents(store, m, e);
    return st == STRATA_OK ? write_manifest(store, m) : st;
}

/* --- of parts --- */

static strata_status write_joined(const struct st_store *store, struct st_manifest *m, struct st_extents_merge *merge)
{
    struct st_new_file f;
    strata_status st = st_checkpoint_check(m, st_extents_merged(merge), "what is to be saved");

    if (st != STRATA_OK || (st = begin_file(&f, store, ST_EXTENTS_NAME)) != STRATA_OK)
        return st;
    m->extents_bytes = st_extents_bytes(st_extents_merged(merge));
    return end_file(&f, st_extents_merge_write(merge, put_part, &f, m->extents_digest));
}

static strata_status join_rows(const struct st_store *store, struct st_manifest *m, char (*paths)[ST_PATH_MAX],
                               const char **names, uint32_t parts)
{
    struct st_extents_merge *merge;
    char name[32];
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < parts && st == STRATA_OK; i++) {
        st_commit_rows_name(name, i);
        st = st_path_join(paths[i], st_store_path(store), name);
        names[i] = paths[i];
    }
    if (st != STRATA_OK || (st = st_extents_merge_open(&merge, names, parts, m->space_bytes)) != STRATA_OK)
        return st;
    st = write_joined(store, m, merge);
    st_extents_merge_close(merge);
    for (uint32_t i = 0; i < parts && st == STRATA_OK; i++)
        if (st_fault_refuses("commit.unlink") || unlink(names[i]) != 0)
            st = st_error_errno(errno, "%s", names[i]);
    return st;
}

strata_status st_commit_join_small(const struct st_store *store, struct st_manifest *m, uint32_t parts, st_commit_model_fn *model,
                                   void *ctx)
{
    char(*paths)[ST_PATH_MAX] = st_fault("commit.alloc", 0) < 0 ? NULL : calloc(parts, sizeof(*paths));
    const char **names = calloc(parts, sizeof(*names));
    strata_status st = paths != NULL && names != NULL ? write_model(store, m, model, ctx) : st_nomem(0);

    if (st == STRATA_OK)
        st = join_rows(store, m, paths, names, parts);
    free(paths);
    free(names);
    return st == STRATA_OK ? write_manifest(store, m) : st;
}
