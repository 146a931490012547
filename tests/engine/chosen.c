/* tests/engine/chosen.c - see chosen.h. */
#include "chosen.h"

#include "model/layout.h"

bool chosen_is_slice(const struct st_model *m, uint32_t page)
{
    return page != ST_NO_PAGE && st_model_is_slice(m, page);
}

bool chosen_has(const struct st_model *m, uint32_t slice, const void *internals, uint32_t rows)
{
    const struct st_route_values at = st_route_values_layout(m);
    const unsigned char *values = (const unsigned char *)internals + st_block_internal_bytes(m, true) - at.bytes;
    const int32_t *ids = (const int32_t *)(const void *)(values + at.ids);
    uint32_t first, count;

    st_model_slice(m, slice, &first, &count);
    for (uint32_t i = 0; i < rows * m->config.experts_chosen; i++)
        if (ids[i] >= (int32_t)first && ids[i] < (int32_t)(first + count))
            return true;
    return false;
}
