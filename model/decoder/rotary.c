/* model/decoder/rotary.c - the angles of rotary positions, computed once in double and rounded once.
 *
 * Pair i of the rotated values turns by position * f(i), where f(i) = base^(-2 i / rotary_dim) or, scaled (transformers'
 * modeling_rope_utils.py):
 *   linear    divided by `factor`.
 *   llama3    (Llama 3.1) pairs whose wavelength exceeds original / low are divided by `factor`, those below original / high stay
 *             as they are, and in between the two are interpolated.
 *   yarn      the same with a ramp over the index of the pair, from the one that turns `high` times over the original context to
 *             the one that turns `low` times.
 *   longrope  (Phi-3) each divided by its own number: one list for sequences up to the original context, another for longer
 *             ones.
 * yarn and longrope multiply cos and sin by a factor. */
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

/* The index, as a real number, of the pair that makes `turns` turns over the original context. */
static double yarn_pair(const struct st_model_config *c, double turns)
{
    return c->rotary_dim * log(c->rope_original / (turns * TWO_PI)) / (2.0 * log((double)c->rope_base));
}

static double yarn_frequency(const struct st_model_config *c, double frequency, uint32_t pair)
{
    double first = yarn_pair(c, (double)c->rope_high), last = yarn_pair(c, (double)c->rope_low), slowed;

    if (c->rope_whole_pairs) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0.0);
    last = fmin(last, c->rotary_dim - 1.0);
    if (first == last)
        last += 0.001;
    slowed = fmin(fmax((pair - first) / (last - first), 0.0), 1.0);
    return frequency / (double)c->rope_factor * slowed + frequency * (1.0 - slowed);
}

static double frequency_of(const struct st_model_config *c, uint32_t pair, uint32_t positions)
{
    const double frequency = pow((double)c->rope_base, -2.0 * pair / c->rotary_dim);

    switch (c->rope_type) {
    case ST_ROPE_DEFAULT:
    case ST_ROPE_DYNAMIC: /* within the context */
        break;
    case ST_ROPE_LINEAR:
        return frequency / (double)c->rope_factor;
    case ST_ROPE_LLAMA3:
        return llama3_frequency(c, frequency);
    case ST_ROPE_YARN:
        return yarn_frequency(c, frequency, pair);
    case ST_ROPE_LONGROPE:
        return frequency / (double)(positions > c->rope_original ? c->rope_long : c->rope_short)[pair];
    }
    return frequency;
}

void st_rotary_table(float *table, const struct st_model_config *c, uint32_t positions, bool sliding)
{
    const uint32_t pairs = c->rotary_dim / 2;
    const double scale = !sliding && c->rope_attention > 0.0f ? (double)c->rope_attention : 1.0;

    for (uint32_t i = 0; i < pairs; i++) {
        const double frequency =
            sliding ? pow((double)c->rope_local_base, -2.0 * i / c->rotary_dim) : frequency_of(c, i, positions);

        for (uint32_t p = 0; p < positions; p++) {
            float *at = table + 2 * ((uint64_t)p * pairs + i);

            at[0] = (float)(cos(p * frequency) * scale);
            at[1] = (float)(sin(p * frequency) * scale);
        }
    }
}
