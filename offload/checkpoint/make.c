/* make.c - see make.h. */
#include "offload/checkpoint/make.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/commit_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Elements that are converted at a time: whole tiles. */
#define PART_ELEMS (64u * ST_TILE_ELEMS)

/* Bytes of a block of the two files; a row begins at one. */
#define UNIT_BYTES (UINT64_C(1) << 20)

struct make {
    const struct st_make_opts *opts;
    struct st_manifest *m;
    struct st_extents extents;
    const struct st_kernels *kernels;
    struct st_store *store;
    struct st_new_file files[ST_SPACE_COUNT]; /* of those that have bytes */
    float *values[2];                         /* [PART_ELEMS] as they were read: weights, or both moments */
    unsigned char *out[2];                    /* [PART_ELEMS * 4] as they are written: weights and masters, or both moments */
};

/* --- where everything lies --- */

static void add_row(struct make *k, const struct st_manifest_group *g, uint32_t group, enum st_plane plane)
{
    const struct st_manifest *m = k->m;
    const enum st_space space = g->kind == ST_GROUP_FROZEN ? ST_SPACE_BASE : ST_SPACE_SET;
    struct st_extent_row *row = &k->extents.rows[k->extents.row_count++];

    *row = (struct st_extent_row){.page = g->page,
                                  .group = (uint8_t)group,
                                  .plane = (uint8_t)plane,
                                  .space = (uint8_t)space,
                                  .format = st_extent_format(plane, g->format, m->moment_format),
                                  .elems = g->elems,
                                  .offset = m->space_bytes[space],
                                  .bytes = st_plane_bytes(plane, g->format, m->moment_format, g->elems),
                                  .sum_first = k->extents.sum_count,
                                  .sum_count = (g->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS};
    k->m->space_bytes[space] += st_extent_bytes(row->bytes);
    k->extents.sum_count += row->sum_count;
}

static strata_status lay_out(struct make *k)
{
    struct st_extents *e = &k->extents;
    struct st_stripe stripe;

    memset(k->m->space_bytes, 0, sizeof(k->m->space_bytes));
    e->rows = st_fault_refuses("make.rows") ? NULL : calloc((size_t)k->m->group_count * ST_PLANE_COUNT + 1, sizeof(*e->rows));
    if (e->rows == NULL)
        return st_nomem(((size_t)k->m->group_count * ST_PLANE_COUNT + 1) * sizeof(*e->rows));
    for (uint32_t i = 0, group = 0; i < k->m->group_count; i++) {
        const struct st_manifest_group *g = &k->m->groups[i];

        group = i > 0 && g->page == g[-1].page ? group + 1 : 0;
        for (uint32_t p = 0; p < ST_PLANE_COUNT; p++)
            if (st_manifest_has_plane(k->m, g, (enum st_plane)p))
                add_row(k, g, group, (enum st_plane)p);
    }
    e->sums = st_fault_refuses("make.sums") ? NULL : calloc(e->sum_count + 1, sizeof(*e->sums));
    if (e->sums == NULL)
        return st_nomem((e->sum_count + 1) * sizeof(*e->sums));
    st_stripe_init(&stripe, 1, NULL, UNIT_BYTES);
    return st_commit_name_files(k->m, &stripe, &(struct st_commit_parts){.all = 1, .count = 1});
}

/* --- planes --- */

/* Writes one part of a row's plane, from element `first` of its group on, and its sums. */
static strata_status put(struct make *k, const struct st_extent_row *row, const struct st_manifest_group *g, uint64_t first,
                         uint64_t elems, const void *data)
{
    const enum st_plane plane = (enum st_plane)row->plane;
    const enum st_moment_format moments = k->m->moment_format;
    uint64_t *sums = k->extents.sums + row->sum_first + first / ST_TILE_ELEMS;

    for (uint64_t at = 0; at < elems; at += ST_TILE_ELEMS) {
        const uint64_t tile = elems - at < ST_TILE_ELEMS ? elems - at : ST_TILE_ELEMS;

        *sums++ = st_checksum64((const unsigned char *)data + st_plane_bytes(plane, g->format, moments, at),
                                st_plane_bytes(plane, g->format, moments, tile));
    }
    return st_new_file_write_at(&k->files[row->space], data, st_plane_bytes(plane, g->format, moments, elems),
                                row->offset + st_plane_bytes(plane, g->format, moments, first));
}

/* Weights and what more there is of their masters, as a load makes them; a frozen weight in 16 bits is rounded to even. */
static void convert_weights(struct make *k, const struct st_manifest_group *g, uint64_t elems)
{
    if (g->format == STRATA_F32)
        memcpy(k->out[0], k->values[0], elems * sizeof(float));
    else if (g->format == STRATA_F16)
        k->kernels->f32_to_f16((uint16_t *)(void *)k->out[0], k->values[0], elems);
    else if (g->kind == ST_GROUP_FROZEN)
        k->kernels->f32_to_bf16((uint16_t *)(void *)k->out[0], k->values[0], elems);
    else
        k->kernels->master_split((uint16_t *)(void *)k->out[0], (int16_t *)(void *)k->out[1], k->values[0], elems);
    if (g->format == STRATA_F16 && g->kind != ST_GROUP_FROZEN)
        memcpy(k->out[1], k->values[0], elems * sizeof(float));
}

/* rows: [ST_PLANE_COUNT] of the group; NULL: it lacks the plane. */
static strata_status make_weights(struct make *k, const struct st_manifest_group *g, const struct st_extent_row *const *rows,
                                  uint64_t first, uint64_t elems)
{
    strata_status st = k->opts->read(k->opts->ctx, ST_PLANE_WEIGHT, g->page, g->offset + first, elems, k->values[0]);

    if (st != STRATA_OK)
        return st;
    convert_weights(k, g, elems);
    st = put(k, rows[ST_PLANE_WEIGHT], g, first, elems, k->out[0]);
    if (st == STRATA_OK && rows[ST_PLANE_MASTER] != NULL)
        st = put(k, rows[ST_PLANE_MASTER], g, first, elems, k->out[1]);
    return st;
}

static strata_status make_moments(struct make *k, const struct st_manifest_group *g, const struct st_extent_row *const *rows,
                                  uint64_t first, uint64_t elems)
{
    const struct st_moments to = {.format = k->m->moment_format,
                                  .moment1 = k->out[0],
                                  .moment2 = k->out[1],
                                  .position = rows[ST_PLANE_MOMENT1]->sum_first * ST_TILE_ELEMS + first};
    strata_status st = STRATA_OK;

    for (int i = 0; i < 2 && st == STRATA_OK; i++)
        st = k->opts->read(k->opts->ctx, (enum st_plane)(ST_PLANE_MOMENT1 + i), g->page, g->offset + first, elems, k->values[i]);
    if (st != STRATA_OK)
        return st;
    st_moments_store(&to, k->values[0], k->values[1], elems);
    st = put(k, rows[ST_PLANE_MOMENT1], g, first, elems, k->out[0]);
    return st == STRATA_OK ? put(k, rows[ST_PLANE_MOMENT2], g, first, elems, k->out[1]) : st;
}

/* *row: the group's first; out: the next group's. */
static strata_status make_group(struct make *k, const struct st_manifest_group *g, const struct st_extent_row **row)
{
    const struct st_extent_row *rows[ST_PLANE_COUNT] = {NULL};
    strata_status st = STRATA_OK;

    for (uint32_t p = 0; p < ST_PLANE_COUNT; p++)
        if (st_manifest_has_plane(k->m, g, (enum st_plane)p))
            rows[p] = (*row)++;
    for (uint64_t first = 0, elems; first < g->elems && st == STRATA_OK; first += elems) {
        elems = g->elems - first < PART_ELEMS ? g->elems - first : PART_ELEMS;
        st = make_weights(k, g, rows, first, elems);
        if (st == STRATA_OK && rows[ST_PLANE_MOMENT1] != NULL)
            st = make_moments(k, g, rows, first, elems);
        if (st == STRATA_OK && k->opts->progress != NULL)
            st = k->opts->progress(k->opts->ctx, elems);
    }
    return st;
}

/* --- the whole --- */

static strata_status begin_files(struct make *k)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < k->m->file_count && st == STRATA_OK; i++) {
        const struct st_manifest_file *f = &k->m->files[i];
        char path[ST_PATH_MAX];

        if ((st = st_path_join(path, st_store_path(k->store), f->name)) == STRATA_OK &&
            (st = st_new_file_create(&k->files[f->space], path, 0)) == STRATA_OK)
            st = st_new_file_reserve(&k->files[f->space], f->bytes);
    }
    return st_error_at_start(st);
}

static strata_status end_files(struct make *k)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < k->m->file_count && st == STRATA_OK; i++)
        st = st_new_file_commit(&k->files[k->m->files[i].space]);
    return st;
}

static strata_status make_planes(struct make *k)
{
    const struct st_extent_row *row = k->extents.rows;
    strata_status st = begin_files(k);

    for (uint32_t i = 0; i < k->m->group_count && st == STRATA_OK; i++)
        st = make_group(k, &k->m->groups[i], &row);
    return st == STRATA_OK ? end_files(k) : st;
}

static strata_status take_memory(struct make *k)
{
    for (int i = 0; i < 2; i++) {
        k->values[i] = st_fault_refuses("make.values") ? NULL : malloc(PART_ELEMS * sizeof(float));
        k->out[i] = malloc(st_moment_bytes(ST_MOMENTS_F32, PART_ELEMS));
        if (k->values[i] == NULL || k->out[i] == NULL)
            return st_nomem(0);
    }
    return STRATA_OK;
}

/* A directory has the checkpoints of one run: --resume auto would take a later one than this one's. */
static strata_status check_names(const struct make *k)
{
    const struct st_make_opts *o = k->opts;
    struct st_store_list list;
    char name[ST_STORE_NAME_BYTES];
    bool there = false;
    uint64_t newest = 0;
    const strata_status st = st_store_list_there(&list, o->save);

    for (uint32_t i = 0; i < list.count; i++) { /* ascending */
        newest = list.steps[i];
        there = there || newest == k->m->step;
    }
    free(list.steps);
    if (st != STRATA_OK)
        return st;
    st_store_name(name, newest);
    if (newest > k->m->step)
        return st_error_remedy(
            st_error(STRATA_E_INPUT, "%s has checkpoints of later steps already (%s), of another attempt", o->save, name), o->key,
            "name another directory with %s", o->key);
    st_store_name(name, k->m->step);
    if (there && !o->overwrite)
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s/%s exists already, and is kept", o->save, name), o->key,
                               "replace it with import.overwrite, or name another directory with %s", o->key);
    return STRATA_OK;
}

static strata_status make(struct make *k)
{
    strata_status st = check_names(k);

    if (st == STRATA_OK)
        st = lay_out(k);
    if (st == STRATA_OK)
        st = take_memory(k);
    if (st == STRATA_OK)
        st = st_store_open_for(&k->store, k->opts->save, k->opts->key);
    if (st == STRATA_OK)
        st = st_store_begin(k->store, k->m->step);
    if (st == STRATA_OK)
        st = make_planes(k);
    if (st == STRATA_OK)
        st = st_commit_write_small(k->store, k->m, &k->extents, k->opts->model, k->opts->ctx);
    if (st == STRATA_OK)
        st = st_checkpoint_check(k->m, &k->extents, "what is to be saved");
    if (st == STRATA_OK)
        st = st_store_commit(k->store, k->opts->overwrite);
    if (st == STRATA_OK && st_store_set_latest(k->store, k->m->step) != STRATA_OK) /* that is for people */
        st_log(ST_LOG_WARN, "%s; the checkpoint of step %llu is whole", strata_last_error(), (unsigned long long)k->m->step);
    return st;
}

strata_status st_checkpoint_make(char path[ST_PATH_MAX], struct st_manifest *m, const struct st_make_opts *opts)
{
    struct make k = {.opts = opts, .m = m, .kernels = st_kernels_pick("auto")};
    char name[ST_STORE_NAME_BYTES];
    strata_status st;

    assert(m->moments == 2);
    st_store_name(name, m->step);
    if ((st = st_path_join(path, opts->save, name)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < ST_SPACE_COUNT; i++)
        k.files[i] = (struct st_new_file){.fd = -1};
    st = make(&k);
    for (uint32_t i = 0; i < ST_SPACE_COUNT; i++)
        st_new_file_abort(&k.files[i]);
    st_store_close(k.store); /* removes what is unfinished */
    st_extents_fini(&k.extents);
    for (int i = 0; i < 2; i++) {
        free(k.values[i]);
        free(k.out[i]);
    }
    return st;
}
