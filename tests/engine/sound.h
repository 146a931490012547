/* sound.h - a run that ends well, and runs of the same plan in which one thing fails: each must end with the right status and
 * leave nothing behind, or absorb the failure and have the right bits. */
#ifndef TESTS_ENGINE_SOUND_H
#define TESTS_ENGINE_SOUND_H

#include "rig.h"

struct sound {
    struct rig_cell cell;
    uint32_t steps;
    char dir[64]; /* of the swap files; empty between runs */
    struct st_model *model;
    struct st_plan *plan;
    struct rig_result want;
};

/** Everything on NVMe with as little memory as can be, two steps. */
struct rig_cell sound_cell(const char *io_method, bool paced);
/** Plan, and run it once. */
void sound_begin(struct sound *s, const struct rig_cell *cell, uint32_t steps);
void sound_end(struct sound *s);
/** Nothing is in the directory. */
void sound_is_empty(const struct sound *s);
/** A run with a fresh engine has the bits of the first. */
void sound_again(const struct sound *s);

/* Which passage of a fault site fails: the first `dense` ones each, then in growing strides, until a run passes none that does.
 */
struct sound_walk {
    const char *site; /* NULL: any */
    int64_t result;
    uint32_t dense;
    strata_status expected;                     /* of a run that does not end well; OK: any error */
    bool fatal;                                 /* no run in which it fails may end well */
    void (*failed)(const char *why, void *ctx); /* optional: called with the sentence of each failed run */
    void *ctx;
};
/** Returns the number of runs that failed, at least one. */
uint32_t sound_walk(const struct sound *s, const struct sound_walk *walk);

/* The walks that every device goes through, `paced` or not, in runs of SOUND_STEPS. */
#define SOUND_STEPS   2u
#define SOUND_METHODS 3u
extern const char *const sound_methods[SOUND_METHODS];
void sound_begin_with(struct sound *s, const char *io_method, bool paced);
/** Completions fail one by one, by every method: the error names the cause, or was absorbed and the bits are right. */
void sound_completions(bool paced, uint32_t dense);
/** One byte flips in an extent that is read, one run for each extent, or for a sample of them: the run ends and says whose byte
 * it was.  With a device that keeps no checkpoint, and one with room to stream: returns how many pages are streamed. */
uint32_t sound_flips(bool paced);
/** Any one passage fails. */
void sound_single_failures(bool paced);

#endif
