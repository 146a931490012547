/* offload/checkpoint/extents_internal.h - the parts of extents.bin, for those who read several at once. */
#ifndef OFFLOAD_CHECKPOINT_EXTENTS_INTERNAL_H
#define OFFLOAD_CHECKPOINT_EXTENTS_INTERNAL_H

#include "core/base/checksum.h"
#include "offload/checkpoint/extents.h"

struct st_extents_header {
    char magic[8];
    uint32_t version, row_bytes;
    uint64_t row_count, sum_count, tile_elems;
    uint64_t zero[3];
};

struct st_extents_header st_extents_header_of(uint64_t row_count, uint64_t sum_count);
/* E_CORRUPT: "<path>: <what>: this checkpoint is damaged". */
strata_status st_extents_damaged(const char *path, const char *what);
/* Whether `h` can begin a file of `bytes`, which has room for header and trailer. */
strata_status st_extents_check_header(const struct st_extents_header *h, uint64_t bytes, const char *path);
/* Read bytes of the file from *offset on, which moves, and add them to the digest. */
strata_status st_extents_read_part(struct st_digest *digest, int fd, void *to, uint64_t bytes, uint64_t *offset,
                                   const char *path);
/* Whether rows are possible and in order, and have all the sums. */
strata_status st_extents_check_rows(const struct st_extents *e, const char *path);

#endif
