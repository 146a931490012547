/* commit_small.c - what a checkpoint has beside its planes: see commit_internal.h. */
#include "offload/checkpoint/commit_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/ending.h"
#include "core/system/file.h"
#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/model_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

strata_status st_commit_name_files(struct st_manifest *m, const struct st_stripe *stripe, const char *save)
{
    m->stripe = *stripe;
    m->files = st_fault("commit.alloc", 0) < 0 ? NULL : calloc(ST_SPACE_COUNT * ST_STRIPE_DIRS_MAX, sizeof(*m->files));
    if (m->files == NULL)
        return st_error(STRATA_E_NOMEM, "%s: no memory for a checkpoint", save);
    m->file_count = 0;
    for (uint32_t space = ST_SPACE_BASE; space < ST_SPACE_COUNT; space++)
        for (uint32_t dir = 0; dir < stripe->dir_count && m->space_bytes[space] > 0; dir++) {
            struct st_manifest_file *f = &m->files[m->file_count++];

            f->space = (enum st_space)space;
            f->dir = dir;
            f->bytes = st_stripe_file_bytes(stripe, dir, m->space_bytes[space]);
            snprintf(f->name, sizeof(f->name), "%s.%" PRIu32, space == ST_SPACE_BASE ? "base" : "set", dir);
        }
    return STRATA_OK;
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

static strata_status begin_file(struct st_new_file *f, const struct st_store *store, const char *name)
{
    char path[ST_PATH_MAX];
    const strata_status st = st_path_join(path, st_store_path(store), name);

    return st == STRATA_OK ? st_new_file_create(f, path, 0) : st;
}

static strata_status write_extents(const struct st_store *store, struct st_manifest *m, const struct st_extents *e)
{
    struct st_new_file f;
    strata_status st = begin_file(&f, store, ST_EXTENTS_NAME);

    if (st != STRATA_OK)
        return st;
    m->extents_bytes = st_extents_bytes(e);
    return end_file(&f, st_extents_write(e, put_part, &f, m->extents_digest));
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

static strata_status write_model(const struct st_store *store, struct st_manifest *m, st_commit_model_fn *model, void *ctx)
{
    char path[ST_PATH_MAX];
    int rc = 0;
    strata_status st;

    if (model == NULL)
        return STRATA_OK;
    if ((st = st_path_join(path, st_store_path(store), ST_CHECKPOINT_MODEL)) != STRATA_OK)
        return st;
    st_ending_hold();
    if (st_fault_refuses("commit.mkdir") || mkdirat(st_store_dir_fd(store), ST_CHECKPOINT_MODEL, 0777) != 0)
        rc = errno;
    st_ending_release();
    if (rc != 0)
        return st_error_errno(rc, "making directory %s", path);
    st = model(ctx, path);
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
