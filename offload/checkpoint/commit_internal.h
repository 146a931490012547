/* offload/checkpoint/commit_internal.h - the parts of the committing thread. */
#ifndef OFFLOAD_CHECKPOINT_COMMIT_INTERNAL_H
#define OFFLOAD_CHECKPOINT_COMMIT_INTERNAL_H

#include "strata/status.h"

#include <stdint.h>

/** Copy `bytes` (a multiple of 4096) from an open file, which may be open for direct I/O, to a new file, and sync that.  Takes
 *  8 MiB, and leaves about as much in the page cache at a time.
 *  @param from  its name, for sentences */
strata_status st_commit_copy(const char *to, const char *from, int from_fd, uint64_t bytes);

#endif
