/* kernels/update/moments_store.c - moments that no update has made, or that somebody wants to see. */
#include "kernels/isa/isa.h"
#include "kernels/isa/scalar.h"
#include "kernels/moment_codes.h"

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

/* The block that a part's element lies in, open. */
struct block {
    struct st_moment_block values;
    size_t first, count, at; /* of the block; the element in it */
};

static void open_block(struct block *b, const struct st_moment_part *p, size_t element)
{
    b->first = element / ST_MOMENT_BLOCK * ST_MOMENT_BLOCK;
    b->count = p->room - b->first < ST_MOMENT_BLOCK ? p->room - b->first : ST_MOMENT_BLOCK;
    b->at = element - b->first;
    st_moments_open(&b->values, p->moments, p->rule, b->first, b->count);
}

void st_moment_codes_read(float *out, const struct st_moment_part *part)
{
    struct block b;

    for (size_t i = 0, count; i < part->elems; i += count) {
        open_block(&b, part, part->first + i);
        count = b.count - b.at < part->elems - i ? b.count - b.at : part->elems - i;
        memcpy(out + i, b.values.buffer[part->which] + b.at, count * sizeof(*out));
    }
}

void st_moment_codes_write(const struct st_moment_part *part, const float *in)
{
    const struct st_update_coef coef = {.rule = part->rule};
    struct block b;

    for (size_t i = 0, count; i < part->elems; i += count) {
        float *to;

        open_block(&b, part, part->first + i);
        count = b.count - b.at < part->elems - i ? b.count - b.at : part->elems - i;
        to = b.values.buffer[part->which] + b.at;
        for (size_t k = 0; k < count; k++)
            to[k] = st_moment_is_squares(part->rule, part->which) && in[i + k] < 0 ? 0 : in[i + k];
        st_moment_close(b.values.buffer[part->which], part->moments, &coef, part->which, b.first, b.count);
    }
}
