/* api/question.h - which configuration a machine should train a model with: the question of strata plan.
 *
 * Each candidate is a DeepSpeed file, opened and planned as anybody's would be, so that the file that wins plans the same when it
 * is read again. */
#ifndef API_QUESTION_H
#define API_QUESTION_H

#include "offload/machine/hardware.h"
#include "strata/machine.h"
#include "strata/plan.h"

#define ST_QUESTION_TRIED_MAX 96u
#define ST_QUESTION_BATCH     131072u                    /* tokens of a step, if nothing is said and a sequence has no more */
#define ST_QUESTION_COMPARES  "comparing configurations" /* what the progress of a model's options is told */

struct st_question {
    const struct strata_model_opts *model; /* STRATA_USE_PLAN */
    const struct strata_machine_opts *machine;
    const char *const *overrides; /* of the configuration: what is said of the machine, such as budgets */
    uint32_t override_count;
    const char *nvme;        /* directories, separated by commas; NULL: none here */
    uint64_t batch_tokens;   /* of a step; 0: ST_QUESTION_BATCH */
    const char *const *data; /* token files, whose sequences are counted */
    uint32_t data_count;
};

/* Slowest tiers allowed, and what ranks share. */
struct st_tiers {
    strata_tier optimizer, param, checkpoints; /* checkpoints of activations; COUNT: device or host memory, whichever is faster */
    uint32_t stage;                            /* of ZeRO, as the file says it */
};

/* One setting, and what became of it. */
struct st_tried {
    struct st_tiers tiers;
    uint32_t micro_batch, grad_accum;
    double seconds; /* predicted; 0: rates are not known */
    bool chosen;    /* seconds are those of the plan that a run would have; false: of a draft, which is a little slower */
    bool bounded;   /* the seconds are a bound, because a step this long is not simulated, or, */
    bool lacks;     /* because a rate is missing; those of which none is come first */
};

/* What is trained: everything, or adapters of all linear layers beside weights that are frozen. */
enum st_method { ST_METHOD_FULL, ST_METHOD_LORA, ST_METHOD_LORA_NF4, ST_METHOD_COUNT };

/* Training that takes less, where full training does not fit. */
struct st_instead {
    bool fits;
    struct st_tried best;
    uint64_t needed[STRATA_TIER_COUNT]; /* by its plan, of each rank */
    char *config;                       /* its file; NULL: it does not fit */
};

enum st_change { ST_CHANGE_GPU, ST_CHANGE_RAM, ST_CHANGE_DRIVE, ST_CHANGE_COUNT };

/* The machine with one more of something. */
struct st_changed {
    bool possible; /* false: there is no more of it, or the machine is not known by its parts */
    bool fits;
    char what[256];
    struct st_tried best;
};

struct st_answer {
    uint32_t seq;            /* tokens of a sequence */
    uint32_t sequences;      /* of a step, of all ranks */
    uint32_t ranks, here;    /* here: those of a node */
    uint64_t data_sequences; /* of an epoch; 0: not known */
    uint64_t params;
    char model[64], machine[64];
    bool fp16;  /* the machine has no bf16, so that the configurations are of this */
    bool named; /* the machine is known by its parts: */
    struct st_hardware hardware;
    struct st_tried tried[ST_QUESTION_TRIED_MAX]; /* those that fit */
    uint32_t tried_count, best;
    uint32_t lowest;          /* of several ranks: the fastest with the lowest stage that fits */
    char *config;             /* the best one's file; NULL: nothing fits */
    struct strata_plan *plan; /* of it, judged at the rates; NULL like config, and then: */
    uint64_t capacity[STRATA_TIER_COUNT];
    uint64_t least[STRATA_TIER_COUNT]; /* the least of a tier with which something fits, the others as they are; 0: none does */
    uint64_t together[STRATA_TIER_COUNT];       /* several of them; 0: as it is */
    struct st_instead instead[ST_METHOD_COUNT]; /* if nothing fits; of full training nothing */
    struct st_changed changed[ST_CHANGE_COUNT]; /* of a machine known by its parts; if nothing fits, the first that does */
};

/** Answer it, on threads of its own, too; progress is told by one at a time.  E_INVAL: the batch holds no sequence; the statuses
 * of opening configurations and models and of planning, but E_NOFIT: that is an answer. */
strata_status st_question_answer(struct st_answer *out, const struct st_question *question);
void st_answer_free(struct st_answer *answer);

/** "none", "cpu", "nvme": as DeepSpeed says a tier. */
const char *st_question_tier(strata_tier tier);

#endif
