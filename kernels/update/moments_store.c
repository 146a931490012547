/* kernels/update/moments_store.c - moments that no update has made. */
#include "kernels/isa/isa.h"

#include <string.h>

void st_moments_store(const struct st_moments *to, const float *moment1, const float *moment2, size_t elems)
{
    const struct st_update_coef coef = {.rule = ST_RULE_ADAM};

    for (size_t first = 0; first < elems; first += ST_MOMENT_BLOCK) {
        const size_t count = elems - first < ST_MOMENT_BLOCK ? elems - first : ST_MOMENT_BLOCK;
        struct st_moment_block o;

        if (to->format == ST_MOMENTS_F32) {
            memcpy((float *)to->moment1 + first, moment1 + first, count * sizeof(float));
            memcpy((float *)to->moment2 + first, moment2 + first, count * sizeof(float));
            continue;
        }
        memcpy(o.buffer[0], moment1 + first, count * sizeof(float));
        memcpy(o.buffer[1], moment2 + first, count * sizeof(float));
        o.moment1 = o.buffer[0];
        o.moment2 = o.buffer[1];
        st_moments_close(&o, to, &coef, first, count);
    }
}
