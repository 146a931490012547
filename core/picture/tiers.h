/* core/picture/tiers.h - what lies where: a column for each tier, filled from below with what lies there, to scale.
 *
 * Each column has its own scale, as tiers differ by factors of a hundred; its whole height is what the tier has, or what it would
 * need if that is more: then what lacks is hatched above the line of what there is. */
#ifndef CORE_PICTURE_TIERS_H
#define CORE_PICTURE_TIERS_H

#include "core/picture/svg.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_TIER_ITEMS_MAX 32u

struct st_tier_item {
    const char *name, *paint; /* paint: fill='#...' */
    uint64_t bytes;
};

struct st_tier_column {
    const char *name;
    uint64_t capacity, needed;
    uint64_t least; /* that the smallest placement needs */
    struct st_tier_item items[ST_TIER_ITEMS_MAX];
    uint32_t count; /* 0: only the sum is known, that of the smallest placement */
};

double st_tiers_height(const struct st_tier_column *columns, uint32_t count);
/** Draw them; `y` is the upper edge. */
void st_tiers_draw(struct st_svg *svg, const struct st_tier_column *columns, uint32_t count, double y);

#endif
