/* run/checkpointer_internal.h - the contents of a checkpointer, for the files run/checkpointer*.c. */
#ifndef RUN_CHECKPOINTER_INTERNAL_H
#define RUN_CHECKPOINTER_INTERNAL_H

#include "core/base/error.h"
#include "run/checkpointer.h"

#include "core/system/cleanup.h"
#include "offload/checkpoint/store.h"

/* Ranks make a checkpoint together, round by round; what ends one they tell each other between steps. */
enum st_save_round {
    ST_SAVE_ROUND_NONE,
    ST_SAVE_ROUND_PARTS, /* every rank makes its part; at stage 0 rank 0 makes the whole */
    ST_SAVE_ROUND_JOIN,  /* rank 0 makes the checkpoint of the parts */
};

/* What a rank says before the first round, */
struct st_save_offer {
    int32_t status;
    char sentence[512], dir[ST_PATH_MAX]; /* dir: rank 0's, for the parts */
    struct st_stripe stripe;
    uint64_t overflowed; /* its weights */
};
/* and in each. */
struct st_save_ballot {
    int32_t status;
    bool ended, committed;
    uint64_t copied_bytes; /* of its part */
    char sentence[512];
};

struct st_checkpointer {
    struct st_run *run;                                  /* borrowed */
    char save[ST_PATH_MAX], path[ST_PATH_MAX], name[17]; /* path: of the last checkpoint; name: of the run */
    bool overwrite, made;                                /* made: the directory was */
    struct st_cleanup cleanup;
    struct st_committer *committer; /* NULL: there is no engine yet */
    uint64_t steps; /* applied and skipped, at the last save that did not fail, or when the run began or resumed */
    uint64_t begun_ns;
    bool is_due; /* the next step saves, or whoever waits for it */
    struct st_manifest due;
    struct strata_save_rule rule;     /* when saves are due */
    bool held;                        /* the last step has written what one needs: */
    struct st_extents held_extents;   /* where, */
    struct st_train_state held_train; /* and the run's state with it */
    bool comes;                       /* of the step that is under way: a save may follow it */
    struct st_saved saved;            /* what it saves, where, and the run's state with it */
    struct st_extents extents;
    struct st_train_state train;
    struct strata_saved last;
    strata_status status; /* of the last save, until it is asked for */
    bool told;            /* whoever began that save has its status */
    bool whole;           /* its checkpoint is there, and what came after failed */
    struct st_sentence sentence;

    uint32_t rank, ranks, parts; /* from attach on: of the program; parts: of a checkpoint */
    enum st_save_round round;    /* the same on every rank */
    uint64_t step;               /* that is being saved */
    bool reported;               /* this rank's part of the round has ended, so: */
    struct st_commit_report report;
    uint64_t copied_bytes;          /* of all parts */
    struct st_manifest joined;      /* on rank 0, for the second round */
    struct st_save_offer *offers;   /* [ranks] */
    struct st_save_ballot *ballots; /* [ranks] */
};

/** Keep how the save in progress has ended. */
void st_checkpointer_keep_report(struct st_checkpointer *s, const struct st_commit_report *r);

/* --- what ranks tell each other, run/checkpointer_rounds.c --- */

/** Tell the others whether this rank's set is complete, and rank 0 where the parts go; the same answer on every rank.
 *  @param train  of the run that is saved, which becomes that of the checkpoint that is due; where each rank has a part of the
 *                weights, its overflows are those of all */
strata_status st_checkpointer_offer(struct st_checkpointer *s, strata_status st, const struct st_train_state *train);
/** What would fail at every save fails at the start: ranks that deal their swaps out unlike, or do not share the directory.
 *  E_CONFIG, E_INPUT, E_IO; with several parts. */
strata_status st_checkpointer_rehearse(struct st_checkpointer *s);
/** Begin to make the checkpoint that is due.  Takes the extents. */
void st_checkpointer_begin_round(struct st_checkpointer *s, struct st_extents *extents);
/** Hear how far the others are; `wait`: until the checkpoint has ended. */
strata_status st_checkpointer_take_rounds(struct st_checkpointer *s, bool wait);
/** Every rank's run has rank 0's name. */
strata_status st_checkpointer_share_run(struct st_checkpointer *s);

#endif
