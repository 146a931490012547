/* offload/engine/early_chance.h - how likely the next step is clipped or skipped, from those before it.
 *
 * A line is fitted to the logarithms of the last norms over the clipping norm, and continued by a step.  The chance is that of a
 * normal variable around it, with the variance of a prediction, to be above 0.  Steps that were skipped count by their share. */
#ifndef OFFLOAD_ENGINE_EARLY_CHANCE_H
#define OFFLOAD_ENGINE_EARLY_CHANCE_H

#include <stdint.h>

#define ST_EARLY_STEPS 16u /* that are remembered */

/** In [0, 1].  With fewer than 4 finite ones: the share that was above 0.
 *
 *  @param logs   [count] log(norm / clipping norm), the oldest first; -infinity: it could not be clipped; infinity: skipped, or
 *                what it updated early was of no use whatever its norm
 *  @param count  0: nothing is known, and the chance is 0 */
double st_early_chance(const double *logs, uint32_t count);

#endif
