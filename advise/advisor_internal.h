/* advise/advisor_internal.h - shared by the two parts of the advisor.
 *
 * advisor.c         the advice, what would fit, one more of a part
 * advisor_search.c  the candidates' files, and the fastest of them on one machine */
#ifndef ADVISE_ADVISOR_INTERNAL_H
#define ADVISE_ADVISOR_INTERNAL_H

#include "advise/advisor.h"
#include <pthread.h>

#define ST_TIERS_MAX 12u

/* A configuration, opened. */
struct st_opened {
    struct st_case facts;
    void *handle; /* NULL: not open */
};

struct st_scene {
    const struct st_advisor *q;
    uint32_t sequences;           /* of a rank's step */
    const struct st_tiers *tiers; /* [tiers_count], from the fastest to the slowest */
    uint32_t tiers_count;
    enum st_method method; /* that is looked for now */
    pthread_mutex_t lock;  /* of what progress is told: */
    uint64_t done;
    struct st_opened smallest[ST_TIERS_MAX]; /* micro-batches of one sequence */
};

struct st_found {
    struct st_tried tried[ST_ADVISOR_TRIED_MAX];
    uint32_t count, best;
    struct st_plan *plan; /* owned: the best one's; NULL: nothing fits */
};

/** Sets s->tiers for its ranks; weights are never on a slower tier than the state. */
void st_advisor_tiers(struct st_scene *s);

/** Open the file of a setting. */
strata_status st_advisor_open(struct st_opened *out, const struct st_scene *s, const struct st_tried *t);
void st_advisor_close(struct st_opened *opened, const struct st_scene *s);

/** The settings that fit a machine, drafted, and the fastest of them by plans that are compared: `choices` at most, or as many as
 * it takes until no draft is faster.  chunk_elems: of the plans where the file does not say it; 0: whatever is fastest, which
 * takes twice as long to find.  now: a setting whose seconds are known on a lesser machine, which is chosen, too, where the
 * others are no faster; NULL: none.  Destroy out->plan. */
strata_status st_advisor_search(struct st_found *out, struct st_scene *s, const struct st_machine *machine, uint32_t choices,
                                uint64_t chunk_elems, const struct st_tried *now);

/** Plans the best one as a run on the machine of the question does.  E_NOMEM, and what planning says. */
strata_status st_advisor_settle(struct st_found *found, struct st_scene *s);

#endif
