/* core/base/scratch.h - memory that is kept from one use to the next, for work that is done many times. */
#ifndef CORE_BASE_SCRATCH_H
#define CORE_BASE_SCRATCH_H

#include <stddef.h>

struct st_scratch {
    void *bytes; /* of malloc; NULL: none yet */
    size_t size;
};

/** At least `bytes` bytes, aligned as malloc's, with any contents; valid until the next call.  NULL: no memory. */
void *st_scratch_take(struct st_scratch *scratch, size_t bytes);
void st_scratch_free(struct st_scratch *scratch);

#endif
