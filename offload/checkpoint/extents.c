/* extents.c - see extents.h.  Rows and sums are written as they are in memory; the checks below refuse machines where that would
 * be another file. */
#include "offload/checkpoint/extents.h"

#include "offload/checkpoint/extents_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "nvme/swap/swap.h"
#include "offload/program/tables.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC      "strataEX"
#define VERSION    1u
#define PART_BYTES (UINT64_C(1) << 20)

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are written as they are in memory");
static_assert(sizeof(struct st_extents_header) == ST_EXTENTS_HEADER, "the file's layout");
static_assert(sizeof(struct st_extent_row) == ST_EXTENT_ROW_BYTES && offsetof(struct st_extent_row, first) == 8,
              "the file's layout");

struct st_extents_header st_extents_header_of(uint64_t row_count, uint64_t sum_count)
{
    struct st_extents_header h = {.version = VERSION, .row_bytes = sizeof(struct st_extent_row), .tile_elems = ST_TILE_ELEMS};

    memcpy(h.magic, MAGIC, sizeof(h.magic));
    h.row_count = row_count;
    h.sum_count = sum_count;
    return h;
}

uint64_t st_extents_bytes(const struct st_extents *e)
{
    return ST_EXTENTS_HEADER + e->row_count * sizeof(*e->rows) + e->sum_count * sizeof(*e->sums) + ST_EXTENTS_TRAILER;
}

/* --- writing --- */

strata_status st_extents_write(const struct st_extents *e,
                               strata_status (*put)(void *ctx, const void *part, uint64_t bytes, uint64_t offset), void *ctx,
                               char digest[33])
{
    const struct st_extents_header h = st_extents_header_of(e->row_count, e->sum_count);
    const struct {
        const void *from;
        uint64_t bytes;
    } parts[] = {{&h, sizeof(h)}, {e->rows, e->row_count * sizeof(*e->rows)}, {e->sums, e->sum_count * sizeof(*e->sums)}};
    struct st_digest *d;
    uint64_t offset = 0;
    strata_status st = st_digest_create(&d);

    if (st != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < 3 && st == STRATA_OK; i++) {
        if (parts[i].bytes == 0)
            continue;
        st_digest_update(d, parts[i].from, parts[i].bytes);
        st = put(ctx, parts[i].from, parts[i].bytes, offset);
        offset += parts[i].bytes;
    }
    st_digest_hex(d, digest);
    st_digest_destroy(d);
    return st == STRATA_OK ? put(ctx, digest, ST_EXTENTS_TRAILER, offset) : st;
}

/* --- reading --- */

strata_status st_extents_damaged(const char *path, const char *what)
{
    return st_error(STRATA_E_CORRUPT, "%s: %s: this checkpoint is damaged", path, what);
}

/* Reads a part of the file into its place and adds it to the digest. */
strata_status st_extents_read_part(struct st_digest *digest, int fd, void *to, uint64_t bytes, uint64_t *offset, const char *path)
{
    strata_status st = STRATA_OK;

    for (uint64_t at = 0; at < bytes && st == STRATA_OK; at += PART_BYTES) {
        const uint64_t part = bytes - at < PART_BYTES ? bytes - at : PART_BYTES;

        st = st_file_read_at(fd, (char *)to + at, part, *offset + at, path);
        if (st == STRATA_OK)
            st_digest_update(digest, (char *)to + at, part);
    }
    *offset += bytes;
    return st == STRATA_E_INPUT ? STRATA_E_CORRUPT : st; /* the file has been cut since it was opened */
}

static bool ascends(const struct st_extent_row *a, const struct st_extent_row *b)
{
    if (a->page != b->page)
        return a->page < b->page;
    if (a->group != b->group)
        return a->group < b->group;
    if (a->plane != b->plane)
        return a->plane < b->plane;
    return a->first < b->first && a->elems <= b->first - a->first;
}

/* Below this no sum of two such numbers wraps. */
#define NUMBER_MOST (UINT64_MAX / 4)

static bool row_is_possible(const struct st_extent_row *row)
{
    if (row->group >= ST_GROUPS_MAX || row->plane >= ST_PLANE_COUNT ||
        (row->space != ST_SPACE_BASE && row->space != ST_SPACE_SET) || row->first > NUMBER_MOST || row->elems > NUMBER_MOST ||
        row->offset > NUMBER_MOST || row->bytes > NUMBER_MOST)
        return false;
    return row->elems > 0 && row->bytes > 0 && row->first % ST_TILE_ELEMS == 0 && row->offset % ST_EXTENTS_ALIGN == 0 &&
           row->sum_count == (row->elems - 1) / ST_TILE_ELEMS + 1;
}

strata_status st_extents_check_rows(const struct st_extents *e, const char *path)
{
    uint64_t sums = 0;

    for (uint64_t i = 0; i < e->row_count; i++) {
        const struct st_extent_row *row = &e->rows[i];

        if (!row_is_possible(row) || row->sum_first != sums || row->sum_count > e->sum_count - sums)
            return st_extents_damaged(path, "numbers of a row are impossible");
        if (i > 0 && !ascends(row - 1, row))
            return st_extents_damaged(path, "its rows are out of order");
        sums += row->sum_count;
    }
    return sums == e->sum_count ? STRATA_OK : st_extents_damaged(path, "it has checksums that belong to no row");
}

strata_status st_extents_check_header(const struct st_extents_header *h, uint64_t bytes, const char *path)
{
    const struct st_extents_header want = st_extents_header_of(h->row_count, h->sum_count);
    const uint64_t room = bytes - ST_EXTENTS_HEADER - ST_EXTENTS_TRAILER;

    if (memcmp(h, &want, sizeof(want)) != 0)
        return st_extents_damaged(path, "its header is not one that this version writes");
    if (h->row_count > room / sizeof(struct st_extent_row) || h->sum_count > room / sizeof(uint64_t) ||
        h->row_count * sizeof(struct st_extent_row) + h->sum_count * sizeof(uint64_t) != room)
        return st_extents_damaged(path, "its size is not what its header promises");
    return STRATA_OK;
}

static strata_status read_body(struct st_extents *e, struct st_digest *d, int fd, uint64_t offset, const char *path,
                               const char *digest)
{
    char hex[33] = "", stored[33] = "";
    strata_status st;

    e->rows = st_fault("extents.alloc", 0) < 0 ? NULL : malloc(e->row_count * sizeof(*e->rows) + 1);
    e->sums = st_fault("extents.alloc", 0) < 0 ? NULL : malloc(e->sum_count * sizeof(*e->sums) + 1);
    if (e->rows == NULL || e->sums == NULL)
        return st_nomem(0);
    st = st_extents_read_part(d, fd, e->rows, e->row_count * sizeof(*e->rows), &offset, path);
    if (st == STRATA_OK)
        st = st_extents_read_part(d, fd, e->sums, e->sum_count * sizeof(*e->sums), &offset, path);
    st_digest_hex(d, hex);
    if (st == STRATA_OK)
        st = st_extents_read_part(d, fd, stored, ST_EXTENTS_TRAILER, &offset, path);
    if (st != STRATA_OK)
        return st;
    if (memcmp(hex, stored, sizeof(hex)) != 0)
        return st_extents_damaged(path, "its checksum is wrong");
    if (digest != NULL && strcmp(hex, digest) != 0)
        return st_extents_damaged(path, "it is not the one that the manifest names");
    return st_extents_check_rows(e, path);
}

strata_status st_extents_read(struct st_extents *out, int fd, uint64_t bytes, const char *path, const char *digest)
{
    struct st_extents e = {0};
    struct st_digest *d;
    struct st_extents_header h;
    uint64_t offset = 0;
    strata_status st;

    if (bytes < ST_EXTENTS_HEADER + ST_EXTENTS_TRAILER)
        return st_extents_damaged(path, "it is too short");
    if ((st = st_digest_create(&d)) != STRATA_OK)
        return st;
    st = st_extents_read_part(d, fd, &h, sizeof(h), &offset, path);
    if (st == STRATA_OK)
        st = st_extents_check_header(&h, bytes, path);
    if (st == STRATA_OK) {
        e.row_count = h.row_count;
        e.sum_count = h.sum_count;
        st = read_body(&e, d, fd, offset, path, digest);
    }
    st_digest_destroy(d);
    if (st != STRATA_OK) {
        st_extents_fini(&e);
        return st;
    }
    *out = e;
    return STRATA_OK;
}

/* Whether a row comes after the place of an element. */
static bool comes_after(const struct st_extent_row *row, uint32_t page, uint32_t group, uint32_t plane, uint64_t element)
{
    if (row->page != page)
        return row->page > page;
    if (row->group != group)
        return row->group > group;
    return row->plane != plane ? row->plane > plane : row->first > element;
}

const struct st_extent_row *st_extents_row(const struct st_extents *e, uint32_t page, uint32_t group, uint32_t plane,
                                           uint64_t element)
{
    uint64_t low = 0, high = e->row_count; /* rows before low come not after it, rows from high on do */
    const struct st_extent_row *row;

    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;

        if (comes_after(&e->rows[middle], page, group, plane, element))
            high = middle;
        else
            low = middle + 1;
    }
    row = low > 0 ? &e->rows[low - 1] : NULL;
    return row != NULL && row->page == page && row->group == group && row->plane == plane && element - row->first < row->elems
               ? row
               : NULL;
}

void st_extents_fini(struct st_extents *e)
{
    free(e->rows);
    free(e->sums);
    *e = (struct st_extents){0};
}
