/* extents_merge.c - the rows of several ranks' files as those of one.
 *
 * All rows are in memory, sorted; the sums, of which there are many times more, are copied from file to file.  Each file's sums
 * are taken in their own order, so that its checksum is compared on the way. */
#include "offload/checkpoint/extents_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_SUMS (UINT64_C(1) << 17)

struct part {
    const char *path; /* borrowed */
    int fd;
    uint64_t row_count, sum_count, offset; /* offset: of what is read next */
    struct st_digest *digest;              /* of all before it */
};

/* A row, and the part that it is of. */
struct item {
    struct st_extent_row row;
    uint32_t part;
};

struct st_extents_merge {
    struct part *parts;
    uint32_t part_count;
    struct item *items; /* [merged.row_count] sorted as the rows */
    struct st_extents merged;
    uint64_t *buffer; /* [BUFFER_SUMS] */
};

/* --- reading --- */

static strata_status open_part(struct part *p)
{
    struct st_file_identity identity;
    struct st_extents_header h;
    strata_status st;

    if ((st = st_file_open(&p->fd, &identity, p->path, STRATA_E_CORRUPT)) != STRATA_OK ||
        (st = st_digest_create(&p->digest)) != STRATA_OK)
        return st;
    if (identity.bytes < ST_EXTENTS_HEADER + ST_EXTENTS_TRAILER)
        return st_extents_damaged(p->path, "it is too short");
    st = st_extents_read_part(p->digest, p->fd, &h, sizeof(h), &p->offset, p->path);
    if (st == STRATA_OK)
        st = st_extents_check_header(&h, identity.bytes, p->path);
    if (st != STRATA_OK)
        return st;
    p->row_count = h.row_count;
    p->sum_count = h.sum_count;
    return STRATA_OK;
}

/* Reads a part's rows to the end of the items. */
static strata_status read_rows(struct st_extents_merge *m, uint32_t part, const uint64_t space_bytes[ST_SPACE_COUNT])
{
    struct part *p = &m->parts[part];
    struct st_extents own = {.row_count = p->row_count, .sum_count = p->sum_count};
    strata_status st;

    own.rows = st_fault("extents.alloc", 0) < 0 ? NULL : malloc(own.row_count * sizeof(*own.rows) + 1);
    if (own.rows == NULL)
        return st_nomem(own.row_count * sizeof(*own.rows) + 1);
    st = st_extents_read_part(p->digest, p->fd, own.rows, own.row_count * sizeof(*own.rows), &p->offset, p->path);
    if (st == STRATA_OK)
        st = st_extents_check_rows(&own, p->path);
    for (uint64_t i = 0; i < own.row_count && st == STRATA_OK; i++) {
        own.rows[i].offset += part * space_bytes[own.rows[i].space];
        m->items[m->merged.row_count++] = (struct item){.row = own.rows[i], .part = part};
    }
    free(own.rows);
    return st;
}

static int compare(const void *a, const void *b)
{
    const struct st_extent_row *x = &((const struct item *)a)->row, *y = &((const struct item *)b)->row;

    if (x->page != y->page)
        return x->page < y->page ? -1 : 1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->plane != y->plane)
        return x->plane < y->plane ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

static strata_status read_all(struct st_extents_merge *m, const uint64_t space_bytes[ST_SPACE_COUNT])
{
    uint64_t rows = 0, sums = 0;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < m->part_count && st == STRATA_OK; i++) {
        st = open_part(&m->parts[i]);
        rows += m->parts[i].row_count;
    }
    if (st != STRATA_OK)
        return st;
    m->items = st_fault("extents.alloc", 0) < 0 ? NULL : malloc(rows * sizeof(*m->items) + 1);
    m->merged.rows = st_fault("extents.alloc", 0) < 0 ? NULL : malloc(rows * sizeof(*m->merged.rows) + 1);
    m->buffer = st_fault("extents.alloc", 0) < 0 ? NULL : malloc(BUFFER_SUMS * sizeof(*m->buffer));
    if (m->items == NULL || m->merged.rows == NULL || m->buffer == NULL)
        return st_nomem(0);
    for (uint32_t i = 0; i < m->part_count && st == STRATA_OK; i++)
        st = read_rows(m, i, space_bytes);
    if (st != STRATA_OK)
        return st;
    qsort(m->items, rows, sizeof(*m->items), compare);
    for (uint64_t i = 0; i < rows; i++) {
        m->merged.rows[i] = m->items[i].row;
        m->merged.rows[i].sum_first = sums;
        sums += m->items[i].row.sum_count;
    }
    m->merged.sum_count = sums;
    return st_extents_check_rows(&m->merged, "the ranks' rows together");
}

strata_status st_extents_merge_open(struct st_extents_merge **out, const char *const *paths, uint32_t count,
                                    const uint64_t space_bytes[ST_SPACE_COUNT])
{
    struct st_extents_merge *m = st_fault("extents.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*m));
    strata_status st;

    if (m != NULL)
        m->parts = calloc(count, sizeof(*m->parts));
    if (m == NULL || m->parts == NULL) {
        free(m);
        return st_nomem(0);
    }
    for (; m->part_count < count; m->part_count++)
        m->parts[m->part_count] = (struct part){.path = paths[m->part_count], .fd = -1};
    if ((st = read_all(m, space_bytes)) != STRATA_OK) {
        st_extents_merge_close(m);
        return st;
    }
    *out = m;
    return STRATA_OK;
}

const struct st_extents *st_extents_merged(const struct st_extents_merge *m)
{
    return &m->merged;
}

void st_extents_merge_close(struct st_extents_merge *m)
{
    if (m == NULL)
        return;
    for (uint32_t i = 0; i < m->part_count; i++) {
        if (m->parts[i].fd >= 0)
            close(m->parts[i].fd);
        st_digest_destroy(m->parts[i].digest);
    }
    free(m->parts);
    free(m->items);
    free(m->buffer);
    st_extents_fini(&m->merged);
    free(m);
}

/* --- writing --- */

/* Where the merged file's bytes go. */
struct output {
    strata_status (*put)(void *ctx, const void *part, uint64_t bytes, uint64_t offset);
    void *ctx;
    struct st_digest *digest;
    uint64_t offset;
};

static strata_status put_part(struct output *o, const void *part, uint64_t bytes)
{
    strata_status st;

    if (bytes == 0)
        return STRATA_OK;
    st_digest_update(o->digest, part, bytes);
    st = o->put(o->ctx, part, bytes, o->offset);
    o->offset += bytes;
    return st;
}

/* The sums of all rows, as many of them at a time as the buffer takes. */
static strata_status put_sums(struct st_extents_merge *m, struct output *o)
{
    strata_status st = STRATA_OK;
    uint64_t filled = 0;

    for (uint64_t i = 0; i < m->merged.row_count && st == STRATA_OK; i++) {
        struct part *p = &m->parts[m->items[i].part];
        uint64_t left = m->items[i].row.sum_count;

        while (left > 0 && st == STRATA_OK) {
            const uint64_t room = BUFFER_SUMS - filled, count = left < room ? left : room;

            st = st_extents_read_part(p->digest, p->fd, m->buffer + filled, count * sizeof(*m->buffer), &p->offset, p->path);
            filled += count;
            left -= count;
            if (st == STRATA_OK && filled == BUFFER_SUMS) {
                st = put_part(o, m->buffer, filled * sizeof(*m->buffer));
                filled = 0;
            }
        }
    }
    return st == STRATA_OK ? put_part(o, m->buffer, filled * sizeof(*m->buffer)) : st;
}

/* Whether a part, all of which has been read, is what was written. */
static strata_status check_end(struct part *p)
{
    char hex[33] = "", stored[33] = "";
    strata_status st;

    st_digest_hex(p->digest, hex);
    st = st_extents_read_part(p->digest, p->fd, stored, ST_EXTENTS_TRAILER, &p->offset, p->path);
    if (st == STRATA_OK && memcmp(hex, stored, sizeof(hex)) != 0)
        st = st_extents_damaged(p->path, "its checksum is wrong");
    return st;
}

strata_status st_extents_merge_write(struct st_extents_merge *m,
                                     strata_status (*put)(void *ctx, const void *part, uint64_t bytes, uint64_t offset),
                                     void *ctx, char digest[33])
{
    const struct st_extents_header h = st_extents_header_of(m->merged.row_count, m->merged.sum_count);
    struct output o = {.put = put, .ctx = ctx};
    strata_status st = st_digest_create(&o.digest);

    if (st != STRATA_OK)
        return st;
    st = put_part(&o, &h, sizeof(h));
    if (st == STRATA_OK)
        st = put_part(&o, m->merged.rows, m->merged.row_count * sizeof(*m->merged.rows));
    if (st == STRATA_OK)
        st = put_sums(m, &o);
    for (uint32_t i = 0; i < m->part_count && st == STRATA_OK; i++)
        st = check_end(&m->parts[i]);
    st_digest_hex(o.digest, digest);
    st_digest_destroy(o.digest);
    return st == STRATA_OK ? put(ctx, digest, ST_EXTENTS_TRAILER, o.offset) : st;
}
