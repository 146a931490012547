/* checkpoint.c - see checkpoint.h. */
#include "offload/checkpoint/checkpoint.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "nvme/method/direct.h"
#include "offload/checkpoint/store.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOKS 8u /* at a directory whose checkpoints go while they are looked at */

/* --- whether rows are those of a model --- */

/* Whether a row's bytes lie in one part of its space. */
static bool fits(const struct st_manifest *m, const struct st_extent_row *row)
{
    const uint64_t bytes = m->space_bytes[row->space];

    return bytes > 0 && row->offset / bytes < st_manifest_parts(m) && row->bytes <= bytes - row->offset % bytes;
}

/* Rows of one plane of one group, from *at on: they must cover it, and nothing else. */
static strata_status check_plane(const struct st_manifest *m, const struct st_extents *e, const struct st_extent_row *want,
                                 strata_dtype format, uint64_t elems, uint64_t *at, const char *name)
{
    uint64_t covered = 0;

    while (covered < elems) {
        const struct st_extent_row *row = *at < e->row_count ? &e->rows[*at] : NULL;

        if (row == NULL || row->page != want->page || row->group != want->group || row->plane != want->plane ||
            row->first != covered || row->elems > elems - covered)
            return st_error(STRATA_E_CORRUPT,
                            "%s: plane %s of page %u, group %u is not covered from element %llu on: this checkpoint is damaged",
                            name, st_plane_name((enum st_plane)want->plane), want->page, want->group,
                            (unsigned long long)covered);
        if (row->format != want->format ||
            row->bytes != st_plane_bytes((enum st_plane)want->plane, format, m->moment_format, row->elems) || !fits(m, row))
            return st_error(STRATA_E_CORRUPT,
                            "%s: plane %s of page %u, group %u lies where it cannot: this checkpoint is damaged", name,
                            st_plane_name((enum st_plane)want->plane), want->page, want->group);
        covered += row->elems;
        ++*at;
    }
    return STRATA_OK;
}

strata_status st_checkpoint_check(const struct st_manifest *m, const struct st_extents *e, const char *name)
{
    uint64_t at = 0;

    for (uint32_t i = 0, group = 0; i < m->group_count; i++) {
        const struct st_manifest_group *g = &m->groups[i];

        group = i > 0 && g->page == m->groups[i - 1].page ? group + 1 : 0;
        for (uint32_t p = 0; p < ST_PLANE_COUNT; p++) {
            const enum st_plane plane = (enum st_plane)p;
            const struct st_extent_row want = {.page = g->page,
                                               .group = (uint8_t)group,
                                               .plane = (uint8_t)p,
                                               .format = st_extent_format(plane, g->format, m->moment_format)};
            strata_status st;

            if (st_manifest_has_plane(m, g, plane) &&
                (st = check_plane(m, e, &want, g->format, g->elems, &at, name)) != STRATA_OK)
                return st;
        }
    }
    return at == e->row_count ? STRATA_OK
                              : st_error(STRATA_E_CORRUPT,
                                         "%s: has rows of planes that the model does not have: this checkpoint is damaged", name);
}

/* --- opening --- */

/* Whether a checkpoint that was there has been removed: it loses its name before a file of it goes, so that one which lacks a
 * file is damaged. */
static bool is_gone(const char *path)
{
    bool there = true;

    return st_file_find(&there, path) == STRATA_OK && !there;
}

/* Whether another checkpoint has its name: then its rows, or the checksums of their tiles, are others. */
static bool is_replaced(const struct st_checkpoint *ck)
{
    char path[ST_PATH_MAX];
    struct st_manifest there;
    bool replaced;

    if (st_path_join(path, ck->path, ST_MANIFEST_NAME) != STRATA_OK || st_manifest_read(&there, path) != STRATA_OK)
        return false;
    replaced = strcmp(there.extents_digest, ck->manifest.extents_digest) != 0;
    st_manifest_fini(&there);
    return replaced;
}

strata_status st_checkpoint_still_there(const struct st_checkpoint *ck)
{
    if (is_gone(ck->path))
        return st_error_remedy(st_error(STRATA_E_INPUT,
                                        "%s: was removed while it was read, as a run that saves there does with its oldest",
                                        ck->path),
                               "strata.keep", "take a newer one, or raise strata.keep of that run");
    if (is_replaced(ck))
        return st_error_remedy(
            st_error(STRATA_E_INPUT, "%s: was replaced while it was read, as a run with engine.overwrite does", ck->path),
            "engine.overwrite", "open it again");
    return STRATA_OK;
}

strata_status st_checkpoint_failed(const struct st_checkpoint *ck, strata_status st)
{
    struct st_sentence sentence;

    if (st == STRATA_OK)
        return STRATA_OK;
    st_error_keep(&sentence);
    if (st != STRATA_E_CANCELLED && st_checkpoint_still_there(ck) != STRATA_OK)
        return STRATA_E_INPUT;
    return st_error_again(st, &sentence);
}

static strata_status file_damaged(const char *path, const char *what)
{
    return st_error(STRATA_E_CORRUPT, "%s: %s: this checkpoint is damaged", path, what);
}

static strata_status read_extents(struct st_checkpoint *ck)
{
    struct st_file_identity identity;
    char path[ST_PATH_MAX];
    strata_status st;
    int fd;

    if ((st = st_path_join(path, ck->path, ST_EXTENTS_NAME)) != STRATA_OK ||
        (st = st_file_open(&fd, &identity, path, STRATA_E_CORRUPT)) != STRATA_OK)
        return st;
    st = identity.bytes == ck->manifest.extents_bytes
             ? st_extents_read(&ck->extents, fd, identity.bytes, path, ck->manifest.extents_digest)
             : file_damaged(path, "its size is not what the manifest says");
    close(fd);
    return st == STRATA_OK ? st_checkpoint_check(&ck->manifest, &ck->extents, path) : st;
}

static strata_status check_sizes(const struct st_checkpoint *ck)
{
    for (uint32_t i = 0; i < ck->manifest.file_count; i++) {
        const struct st_manifest_file *f = &ck->manifest.files[i];
        char path[ST_PATH_MAX];
        struct stat info;
        strata_status st = st_path_join(path, ck->path, f->name);

        if (st != STRATA_OK)
            return st;
        if (st_fault_refuses("checkpoint.stat") || stat(path, &info) != 0)
            return errno == ENOENT ? file_damaged(path, "is missing") : st_error_errno(errno, "%s", path);
        if (!S_ISREG(info.st_mode))
            return file_damaged(path, "is no file");
        if ((uint64_t)info.st_size != f->bytes)
            return st_error(STRATA_E_CORRUPT,
                            "%s: has %llu bytes, not the %llu that the manifest says: this checkpoint is damaged", path,
                            (unsigned long long)info.st_size, (unsigned long long)f->bytes);
    }
    return STRATA_OK;
}

strata_status st_checkpoint_open(struct st_checkpoint **out, const char *path)
{
    struct st_checkpoint *ck = st_fault("checkpoint.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*ck));
    char manifest[ST_PATH_MAX];
    strata_status st;

    if (ck == NULL)
        return st_nomem(sizeof(*ck));
    st = st_path_join(manifest, path, ST_MANIFEST_NAME);
    if (st == STRATA_OK)
        st = st_manifest_read(&ck->manifest, manifest);
    if (st == STRATA_OK) {
        snprintf(ck->path, sizeof(ck->path), "%s", path);
        st = read_extents(ck);
    }
    if (st == STRATA_OK)
        st = check_sizes(ck);
    if (st != STRATA_OK) {
        if (ck->path[0] != '\0')
            st = st_checkpoint_failed(ck, st);
        st_checkpoint_close(ck);
        return st;
    }
    *out = ck;
    return STRATA_OK;
}

void st_checkpoint_close(struct st_checkpoint *ck)
{
    if (ck == NULL)
        return;
    st_manifest_fini(&ck->manifest);
    st_extents_fini(&ck->extents);
    free(ck);
}

/* A search for the newest checkpoint that opens. */
struct search {
    void (*skipped)(void *ctx, const char *path, const char *sentence); /* NULL: nobody asks */
    void *ctx;
    uint64_t told; /* step of the oldest one that has been told of: none is told of again in another look */
    bool gone;     /* one that was listed in this look is not there any more */
};

static bool is_of_python(const char *dir)
{
    static const char *const of_python[] = {"client-0.pt", ST_STORE_LATEST};
    char path[ST_PATH_MAX];
    bool there = false;

    for (size_t i = 0; i < sizeof(of_python) / sizeof(of_python[0]) && !there; i++)
        if (st_path_join(path, dir, of_python[i]) != STRATA_OK || st_file_find(&there, path) != STRATA_OK)
            there = false;
    return there;
}

strata_status st_checkpoint_refuse_python(const char *dir)
{
    if (!is_of_python(dir))
        return STRATA_OK;
    return st_error(STRATA_E_INPUT,
                    "%s: has no checkpoint of strata's program: what strata.torch or strata.deepspeed has saved there is "
                    "exported by python -m strata export, and lies in strata/ of each of its tags",
                    dir);
}

/* What else may have been meant. */
static strata_status has_none(const char *save)
{
    const strata_status st = st_checkpoint_refuse_python(save);

    return st != STRATA_OK ? st : st_error(STRATA_E_INPUT, "%s: has no checkpoint", save);
}

/* The newest of the first `count` of a list. */
static strata_status open_newest(struct st_checkpoint **out, const char *save, const struct st_store_list *list, uint32_t count,
                                 struct search *search)
{
    search->gone = false;
    for (uint32_t i = count; i > 0; i--) {
        char path[ST_PATH_MAX], name[ST_STORE_NAME_BYTES];
        strata_status st;

        st_store_name(name, list->steps[i - 1]);
        st = st_path_join(path, save, name);
        if (st == STRATA_OK)
            st = st_checkpoint_open(out, path);
        if (st == STRATA_OK || st == STRATA_E_NOMEM)
            return st;
        if (is_gone(path)) {
            search->gone = true;
        } else if (search->skipped != NULL && list->steps[i - 1] < search->told) {
            search->told = list->steps[i - 1];
            search->skipped(search->ctx, path, strata_last_error());
        }
    }
    return count > 0 ? st_error(STRATA_E_CORRUPT, "%s: none of its checkpoints opens", save) : has_none(save);
}

strata_status st_checkpoint_newest(struct st_checkpoint **out, const char *save,
                                   void (*skipped)(void *ctx, const char *path, const char *sentence), void *ctx)
{
    struct search search = {.skipped = skipped, .ctx = ctx, .told = UINT64_MAX, .gone = true};
    strata_status st = STRATA_E_INPUT;

    for (uint32_t look = 0; look < LOOKS && search.gone && st != STRATA_OK; look++) { /* a live run has a newer one by then */
        struct st_store_list list;

        if ((st = st_store_list(&list, save)) != STRATA_OK)
            return st;
        st = open_newest(out, save, &list, list.count, &search);
        free(list.steps);
    }
    return st;
}

/* The name of a checkpoint that says its step: the one that was given, or what a link, or "." leads to. */
static bool find_step(char name[PATH_MAX], const char *path, uint64_t *step)
{
    snprintf(name, PATH_MAX, "%.*s", (int)st_path_length(path), path);
    return st_store_step(st_path_name(name), step) ||
           (!st_fault_refuses("checkpoint.realpath") && realpath(path, name) != NULL && st_store_step(st_path_name(name), step));
}

strata_status st_checkpoint_older(struct st_checkpoint **out, const char *path)
{
    struct st_store_list list;
    char name[PATH_MAX], save[ST_PATH_MAX];
    uint32_t older = 0;
    uint64_t step;
    struct search search = {.skipped = NULL};
    strata_status st;

    if (!find_step(name, path, &step))
        return st_error(STRATA_E_INPUT, "%s: its name says no step, so that none is older", path);
    if ((st = st_path_dir(save, name)) != STRATA_OK || (st = st_store_list(&list, save)) != STRATA_OK)
        return st;
    while (older < list.count && list.steps[older] < step)
        older++;
    st = older > 0 ? open_newest(out, save, &list, older, &search)
                   : st_error(STRATA_E_INPUT, "%s: none of the checkpoints beside it is older", path);
    free(list.steps);
    return st;
}

static bool is_before_in_time(struct timespec a, struct timespec b)
{
    return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec < b.tv_nsec);
}

/* When a checkpoint was made.  False: it has no manifest that can be read. */
static bool find_time(struct timespec *out, char path[ST_PATH_MAX], const char *save, uint64_t step)
{
    char name[ST_STORE_NAME_BYTES], manifest[ST_PATH_MAX];
    struct st_file_identity identity;
    int fd;

    st_store_name(name, step);
    if (st_path_join(path, save, name) != STRATA_OK || st_path_join(manifest, path, ST_MANIFEST_NAME) != STRATA_OK ||
        st_file_open(&fd, &identity, manifest, STRATA_E_INPUT) != STRATA_OK)
        return false;
    close(fd);
    *out = identity.modified;
    return true;
}

/* The last one that was made before `most` and after that of `step`.  False: there is none; `most` becomes its time. */
static bool find_last_made(char path[ST_PATH_MAX], struct timespec *most, const char *save, const struct st_store_list *list,
                           uint64_t step)
{
    char at[ST_PATH_MAX];
    struct timespec last, time;
    bool found = false;

    if (!find_time(&last, at, save, step))
        return false;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->steps[i] != step && find_time(&time, at, save, list->steps[i]) && is_before_in_time(last, time) &&
            is_before_in_time(time, *most)) {
            found = true;
            last = time;
            memcpy(path, at, sizeof(at));
        }
    *most = last;
    return found;
}

strata_status st_checkpoint_later(struct st_checkpoint **out, const char *path)
{
    struct timespec most = {.tv_sec = INT64_MAX};
    struct st_checkpoint *ck = NULL, *own = NULL;
    struct st_store_list list;
    char name[PATH_MAX], save[ST_PATH_MAX], at[ST_PATH_MAX];
    uint64_t step;
    strata_status st;

    if (!find_step(name, path, &step))
        return st_error(STRATA_E_INPUT, "%s: its name says no step, so that none was made after it", path);
    if ((st = st_checkpoint_open(&own, path)) != STRATA_OK)
        return st;
    if ((st = st_path_dir(save, name)) != STRATA_OK || (st = st_store_list(&list, save)) != STRATA_OK) {
        st_checkpoint_close(own);
        return st;
    }
    while (ck == NULL && st != STRATA_E_NOMEM && find_last_made(at, &most, save, &list, step))
        st = st_checkpoint_open(&ck, at);
    if (ck != NULL && strcmp(ck->manifest.run, own->manifest.run) == 0) {
        st_checkpoint_close(ck);
        ck = NULL;
    }
    if (ck != NULL)
        *out = ck;
    else if (st != STRATA_E_NOMEM)
        st = st_error(STRATA_E_INPUT, "%s: no other run has made a checkpoint after it", path);
    st_checkpoint_close(own);
    free(list.steps);
    return st;
}

strata_status st_checkpoint_find(struct st_checkpoint **out, const char *path,
                                 void (*skipped)(void *ctx, const char *path, const char *sentence), void *ctx)
{
    char manifest[ST_PATH_MAX];
    bool there;
    strata_status st = st_path_join(manifest, path, ST_MANIFEST_NAME);

    if (st == STRATA_OK)
        st = st_file_find(&there, manifest);
    if (st != STRATA_OK)
        return st;
    return there ? st_checkpoint_open(out, path) : st_checkpoint_newest(out, path, skipped, ctx);
}

/* --- rows --- */

static bool is_before(const struct st_extent_row *row, const struct st_extent_row *key)
{
    if (row->page != key->page)
        return row->page < key->page;
    if (row->group != key->group)
        return row->group < key->group;
    if (row->plane != key->plane)
        return row->plane < key->plane;
    return row->first + row->elems <= key->first;
}

static bool is_of(const struct st_extent_row *row, const struct st_extent_row *key)
{
    return row->page == key->page && row->group == key->group && row->plane == key->plane;
}

const struct st_extent_row *st_checkpoint_rows(const struct st_checkpoint *ck, uint32_t page, uint32_t group, enum st_plane plane,
                                               uint64_t first, uint64_t elems, uint64_t *count)
{
    const struct st_extents *e = &ck->extents;
    const struct st_extent_row key = {.page = page, .group = (uint8_t)group, .plane = (uint8_t)plane, .first = first};
    uint64_t low = 0, high = e->row_count, last;

    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;

        if (is_before(&e->rows[middle], &key))
            low = middle + 1;
        else
            high = middle;
    }
    for (last = low; last < e->row_count && is_of(&e->rows[last], &key) && e->rows[last].first < first + elems;)
        last++;
    if (last == low || e->rows[last - 1].first + e->rows[last - 1].elems < first + elems)
        return NULL;
    *count = last - low;
    return &e->rows[low];
}

/* --- files --- */

static strata_status open_file(struct st_checkpoint_volume *v, uint32_t i, const struct st_checkpoint *ck,
                               const struct st_manifest_file *f)
{
    struct st_file_identity identity;
    struct st_direct direct;
    strata_status st = st_path_join(v->paths[i], ck->path, f->name);

    if (st != STRATA_OK || (st = st_file_open(&v->files[i].fd, &identity, v->paths[i], STRATA_E_CORRUPT)) != STRATA_OK)
        return st;
    if (!st_fault_refuses("checkpoint.lock")) /* who cannot lock is not waited for: st_swap_reusable() */
        (void)flock(v->files[i].fd, LOCK_SH | LOCK_NB);
    st_direct_enable(&direct, v->files[i].fd);
    v->direct = v->direct && direct.works;
    return STRATA_OK;
}

strata_status st_checkpoint_volume_open(struct st_checkpoint_volume *out, const struct st_checkpoint *ck, enum st_space space,
                                        uint32_t part)
{
    const struct st_manifest *m = &ck->manifest;
    const uint32_t spaces = part == ST_CHECKPOINT_PARTS ? st_manifest_parts(m) : 1, count = spaces * m->stripe.dir_count;
    const uint32_t first = part == ST_CHECKPOINT_PARTS ? 0 : part * m->stripe.dir_count;
    strata_status st = STRATA_OK;

    *out = (struct st_checkpoint_volume){.direct = true};
    if (m->space_bytes[space] == 0)
        return STRATA_OK;
    out->files = st_fault("checkpoint.files", 0) < 0 ? NULL : calloc(count, sizeof(*out->files));
    out->paths = calloc(count, sizeof(*out->paths));
    if (out->files == NULL || out->paths == NULL) {
        st_checkpoint_volume_close(out);
        return st_nomem(0);
    }
    out->opts = (struct st_volume_opts){
        .stripe = &m->stripe, .files = out->files, .bytes = m->space_bytes[space], .spaces = spaces, .read_only = true};
    for (; out->count < count && st == STRATA_OK; out->count++) {
        out->files[out->count] = (struct st_volume_file){.path = out->paths[out->count], .fd = -1};
        st = open_file(out, out->count, ck, st_manifest_file(m, space, first + out->count));
    }
    st = st == STRATA_OK ? st_checkpoint_still_there(ck) : st_checkpoint_failed(ck, st); /* whose files they are */
    if (st != STRATA_OK)
        st_checkpoint_volume_close(out);
    return st;
}

void st_checkpoint_volume_close(struct st_checkpoint_volume *v)
{
    for (uint32_t i = 0; i < v->count; i++)
        if (v->files[i].fd >= 0)
            close(v->files[i].fd);
    free(v->files);
    free(v->paths);
    *v = (struct st_checkpoint_volume){0};
}
