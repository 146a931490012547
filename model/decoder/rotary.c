/* model/decoder/rotary.c - the angles of rotary positions, computed once in double and rounded once.
 *
 * Pair i of a head turns by position * base^(-2 i / head_dim).  llama3 scaling (Llama 3.1's release): pairs whose wavelength
 * exceeds original / low are slowed by `factor`, those below original / high stay as they are, and in between the two are
 * interpolated. */
#include "model/layout.h"
#include <math.h>

#define TWO_PI 6.283185307179586476925286766559

static double llama3_frequency(const struct st_model_config *c, double frequency)
{
    const double factor = (double)c->rope_factor, low = (double)c->rope_low, high = (double)c->rope_high;
    const double turns = (double)c->rope_original * frequency / TWO_PI; /* turns over the original context */
    const double smooth = (turns - low) / (high - low);

    if (turns < low)
        return frequency / factor;
    if (turns > high)
        return frequency;
    return (1.0 - smooth) * frequency / factor + smooth * frequency;
}

void st_rotary_table(float *table, const struct st_model_config *c, uint32_t positions)
{
    const uint32_t pairs = c->head_dim / 2;

    for (uint32_t i = 0; i < pairs; i++) {
        double frequency = pow((double)c->rope_base, -2.0 * i / c->head_dim);

        if (c->rope_factor > 0.0f)
            frequency = llama3_frequency(c, frequency);
        for (uint32_t p = 0; p < positions; p++) {
            float *at = table + 2 * ((uint64_t)p * pairs + i);

            at[0] = (float)cos(p * frequency);
            at[1] = (float)sin(p * frequency);
        }
    }
}
