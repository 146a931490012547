/* offload/checkpoint/reader.h - reads planes of a checkpoint in order, several transfers in flight, and compares every tile with
 * its sum before anyone sees it. */
#ifndef OFFLOAD_CHECKPOINT_READER_H
#define OFFLOAD_CHECKPOINT_READER_H

#include "offload/checkpoint/checkpoint.h"

/* Elements of a row, from the group's start.  Of moments in 8 bits: from a whole tile on. */
struct st_reader_span {
    const struct st_extent_row *row;
    uint64_t first, elems;
};

/* What differs from what was written, or could not be read. */
struct st_damage {
    const struct st_extent_row *row;
    uint64_t first, elems; /* from the group's start: a tile, or what one transfer would have brought */
    const char *path;      /* its file, */
    uint64_t offset;       /* and where it begins there */
    const char *why;       /* a clause: "its checksum is wrong" */
};

struct st_reader_sink {
    /* Elements in the order of the spans, each a whole span or as many tiles of it as came at once; NULL: nobody wants them. */
    strata_status (*data)(void *ctx, const struct st_extent_row *row, uint64_t first, uint64_t elems, const void *data);
    /* In the place of their data.  OK: go on.  NULL: the read ends with E_CORRUPT. */
    strata_status (*damaged)(void *ctx, const struct st_damage *damage);
    void *ctx;
};

struct st_reader;

/** Starts an I/O thread of its own and opens the checkpoint's files.
 *  @param ck      borrowed until close
 *  @param method  as in st_swap_opts; NULL: "auto"
 *  @return E_INVAL, E_NOSYS: the method; E_CORRUPT: a file is missing; E_NOMEM, E_IO */
strata_status st_reader_open(struct st_reader **out, const struct st_checkpoint *ck, const char *method);
void st_reader_close(struct st_reader *r); /* NULL: nothing */
/** Read spans; one caller at a time.  Both functions of the sink are called on its thread.
 *  @return the first status of the sink that is not OK; E_CORRUPT */
strata_status st_reader_read(struct st_reader *r, const struct st_reader_span *spans, uint64_t count,
                             const struct st_reader_sink *sink);
/** Spans of a plane's elements that lie side by side in one group of a page, in their order.
 *  @param out    [the returned count]; NULL: they are only counted
 *  @param first  from the page's start
 *  @return 0: they are in no group, or it has no such plane */
uint64_t st_reader_spans(struct st_reader_span *out, const struct st_checkpoint *ck, enum st_plane plane, uint32_t page,
                         uint64_t first, uint64_t elems);

#endif
