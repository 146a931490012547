/* scratch.c - see scratch.h. */
#include "core/base/scratch.h"

#include <stdlib.h>

void *st_scratch_take(struct st_scratch *scratch, size_t bytes)
{
    if (bytes <= scratch->size && scratch->bytes != NULL)
        return scratch->bytes;
    free(scratch->bytes);
    scratch->bytes = malloc(bytes > 0 ? bytes : 1);
    scratch->size = scratch->bytes != NULL ? bytes : 0;
    return scratch->bytes;
}

void st_scratch_free(struct st_scratch *scratch)
{
    free(scratch->bytes);
    *scratch = (struct st_scratch){0};
}
