/* offload/simulate/simulate_internal.h - the parts of the simulator.
 *
 * simulate.c        steps until they repeat; set up
 * simulate_clock.c  starts what can start, and advances to the next completion */
#ifndef OFFLOAD_SIMULATE_SIMULATE_INTERNAL_H
#define OFFLOAD_SIMULATE_SIMULATE_INTERNAL_H

#include "offload/program/dispatch.h"
#include "offload/simulate/simulate.h"

#define ST_CLOCK_ALL_LANES ((1u << STRATA_LANE_COUNT) - 1)

enum { ST_CLOCK_READ = 0, ST_CLOCK_WRITE = 1, ST_CLOCK_DIRECTIONS = 2 };
enum { ST_CLOCK_OF_EXECUTORS = 0, ST_CLOCK_OF_DISK = 1, ST_CLOCK_NOTICES = 2 };

/* Each op is in a queue at most once. */
struct st_clock_queue {
    uint32_t *ops; /* [op_count], a ring */
    uint32_t first, count;
};

struct st_clock {
    const struct st_program *program;
    const struct st_machine *machine;
    double *cost;  /* [op_count] seconds on its executor; unused for I/O */
    double *after; /* [op_count] seconds of checksums that the host computes before the op counts as done */
    struct st_dispatch dispatch;

    uint32_t ahead[STRATA_LANE_COUNT][ST_JOBS_AHEAD]; /* handed out and not running yet, in order; a ring */
    uint32_t ahead_first[STRATA_LANE_COUNT], ahead_count[STRATA_LANE_COUNT];
    uint32_t look;                       /* lanes (bits) for which something has changed since they were last looked at */
    uint32_t busy;                       /* executors (bits) that run an op: */
    uint32_t running[STRATA_LANE_COUNT]; /* which, */
    uint32_t row[STRATA_LANE_COUNT];     /* for which lane, */
    double end[STRATA_LANE_COUNT];       /* and when it ends */
    bool checking;                       /* the update executor works on checksums of its op */
    struct st_clock_queue io[ST_CLOCK_DIRECTIONS], comm, caller, checks;
    double left[ST_CLOCK_DIRECTIONS];  /* bytes of the queue's head still to move, */
    double alone[ST_CLOCK_DIRECTIONS]; /* bytes per second if only this queue has work, */
    double both[ST_CLOCK_DIRECTIONS];  /* if both have */

    /* Ops that have ended while what waits for them cannot start yet, in order. */
    struct st_clock_queue notices[ST_CLOCK_NOTICES];
    double delay[ST_CLOCK_NOTICES]; /* for so many seconds each: */
    double *seen;                   /* [op_count] until then */
    uint32_t unseen;                /* of them the host's updates */

    double now, begun;                       /* begun: when the running cycle began */
    struct st_simulation step;               /* of the running cycle: */
    bool unaccounted;                        /* its seconds alone */
    enum st_phase beside;                    /* BODY, of steady steps */
    const struct st_simulation_watch *watch; /* NULL: nobody watches */
};

/* Index of the queue's op number i. */
static inline uint32_t st_clock_at(const struct st_clock *s, const struct st_clock_queue *q, uint32_t i)
{
    const uint32_t index = q->first + i, count = s->program->op_count;

    return index < count ? index : index - count;
}

/* Start everything that can start now. */
void st_clock_dispatch(struct st_clock *s);
/* Advance to the next completion.  False: there is none. */
bool st_clock_advance(struct st_clock *s);

#endif
