/* early_chance.c - see early_chance.h. */
#include "offload/engine/early_chance.h"

#include <math.h>

#define FITTED_LEAST 4u

struct fit {
    uint32_t count, above, lost;
    double x, y, xx, xy, yy; /* sums over the finite ones; of products, about the means */
};

static struct fit sums_of(const double *logs, uint32_t count)
{
    struct fit f = {0};

    for (uint32_t i = 0; i < count; i++) {
        f.lost += !(logs[i] < (double)INFINITY);
        if (!isfinite(logs[i]))
            continue;
        f.count++;
        f.above += logs[i] > 0;
        f.x += i;
        f.y += logs[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        const double dx = i - f.x / f.count, dy = logs[i] - f.y / f.count;

        if (!isfinite(logs[i]))
            continue;
        f.xx += dx * dx;
        f.xy += dx * dy;
        f.yy += dy * dy;
    }
    return f;
}

/* Of the finite ones. */
static double above(const struct fit *f, uint32_t next)
{
    const double slope = f->xy / f->xx, ahead = next - f->x / f->count, line = f->y / f->count + slope * ahead;
    const double variance = fmax(0, f->yy - slope * f->xy) / (f->count - 2) * (1 + 1.0 / f->count + ahead * ahead / f->xx);

    if (!(variance > 0))
        return line > 0;
    return 0.5 * erfc(-line / sqrt(2 * variance));
}

double st_early_chance(const double *logs, uint32_t count)
{
    const struct fit f = sums_of(logs, count);
    const double clipped = f.count >= FITTED_LEAST ? above(&f, count) * f.count : f.above;

    return count > 0 ? fmin(1, (f.lost + clipped) / count) : 0;
}
