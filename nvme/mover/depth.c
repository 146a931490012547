/* nvme/mover/depth.c - see depth.h. */
#include "nvme/mover/depth.h"

#include <string.h>

#define KEEP_LOWER   0.985 /* a smaller depth stays if the rate is at least this part of the one before */
#define KEEP_HIGHER  1.04  /* a larger depth stays if the rate is at least this multiple of it */
#define WINDOW_LEAST 64u   /* requests */
#define HOLD_MOST    64u   /* most windows between trials that keep failing */

enum { MIX_NONE, MIX_READ, MIX_WRITE, MIX_BOTH };

void st_depth_init(struct st_depth *d)
{
    memset(d, 0, sizeof(*d));
    d->depth = d->home = ST_DEPTH_START;
    d->hold = d->hold_next = 1;
}

static void move_to(struct st_depth *d, uint32_t depth)
{
    d->settle = d->depth > depth ? d->depth : depth;
    d->depth = depth;
}

static void start_trial(struct st_depth *d)
{
    const uint32_t step = d->home > 7 ? d->home / 4 : 1;

    if (d->rising && d->home + step <= ST_DEPTH_MAX)
        move_to(d, d->home + step);
    else if (!d->rising && d->home - step >= ST_DEPTH_MIN)
        move_to(d, d->home - step);
    else
        d->rising = !d->rising; /* at an end of the range: turn around from the next window on */
}

static void end_trial(struct st_depth *d, double rate)
{
    const bool keep = rate >= d->home_rate * (d->rising ? KEEP_HIGHER : KEEP_LOWER);

    if (keep) {
        d->home = d->depth;
        d->home_rate = rate > d->home_rate ? rate : d->home_rate; /* so that small losses do not add up unnoticed */
        d->hold_next = 1;
        start_trial(d);
        return;
    }
    move_to(d, d->home);
    d->rising = !d->rising;
    d->hold = d->hold_next;
    d->hold_next = d->hold_next < HOLD_MOST ? 2 * d->hold_next : HOLD_MOST;
}

static void window_end(struct st_depth *d, double rate, uint32_t mix)
{
    const bool same = mix == d->mix;

    d->mix = mix;
    if (!same) { /* not comparable: go back home and measure it again */
        move_to(d, d->home);
        d->home_rate = 0;
    } else if (d->depth != d->home) {
        end_trial(d, rate);
    } else {
        d->home_rate = rate;
        if (d->hold > 0)
            d->hold--;
        else
            start_trial(d);
    }
}

static void window_open(struct st_depth *d, uint64_t now_ns)
{
    d->requests = d->reads = 0;
    d->bytes = 0;
    d->start_ns = now_ns;
}

void st_depth_done(struct st_depth *d, uint64_t now_ns, uint32_t bytes, bool read, bool full)
{
    const uint32_t least = 2 * d->depth > WINDOW_LEAST ? 2 * d->depth : WINDOW_LEAST;

    if (!full) {
        d->start_ns = 0;
        return;
    }
    if (d->settle > 0)
        d->settle--;
    if (d->start_ns == 0 || d->settle > 0) {
        window_open(d, now_ns);
        return;
    }
    d->requests++;
    d->reads += read;
    d->bytes += bytes;
    if (d->requests < least || now_ns <= d->start_ns)
        return;
    window_end(d, (double)d->bytes / (double)(now_ns - d->start_ns),
               d->reads == d->requests ? MIX_READ
               : d->reads == 0         ? MIX_WRITE
                                       : MIX_BOTH);
    window_open(d, now_ns);
}
