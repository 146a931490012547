/* kernels/moment_codes.h - the values of moments in 8BIT (kernels.h), which share scales block by block. */
#ifndef KERNELS_MOMENT_CODES_H
#define KERNELS_MOMENT_CODES_H

#include "kernels/kernels.h"

/* Elements [first, first + elems) of one moment of `rule`, 0 or 1, of an array of `room` elements in 8BIT. */
struct st_moment_part {
    const struct st_moments *moments;
    enum st_rule rule;
    int which;
    size_t first, elems, room;
};
/** Their values. */
void st_moment_codes_read(float *out, const struct st_moment_part *part);
/** Store others, as an update stores new ones; of a block that they fill in part the rest is rounded again.  A sum of squares
 *  below 0 counts as 0. */
void st_moment_codes_write(const struct st_moment_part *part, const float *in);

#endif
