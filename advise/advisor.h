/* advise/advisor.h - which configuration a machine should train a model with.
 *
 * Each candidate is a DeepSpeed file, opened and planned as anybody's would be, so that the file that wins plans the same when it
 * is read again. */
#ifndef ADVISE_ADVISOR_H
#define ADVISE_ADVISOR_H

#include "advise/case.h"
#include "core/json/json.h"
#include "core/trace/written.h"
#include <stdio.h>

#define ST_ADVISOR_TRIED_MAX 96u
#define ST_ADVISOR_BATCH     131072u /* tokens of a step, if nothing is said and a sequence has no more */

/* How a configuration becomes a case: as anybody's would be opened.  Called by several threads at once. */
struct st_advisor_source {
    void *ctx;
    /** *handle keeps what *out borrows; closed by close(), which takes NULL. */
    strata_status (*open)(void *ctx, struct st_case *out, void **handle, const char *config);
    void (*close)(void *handle);
    bool (*goes_on)(void *ctx, uint64_t done); /* one at a time; false: somebody wants it to stop */
};

struct st_advisor {
    struct st_advisor_source source;
    const char *nvme;                   /* directories of configurations, separated by commas */
    struct st_machine machine;          /* one rank's part */
    bool rates_known;                   /* of it, and whether */
    bool rates_evaluate;                /* they, and not a nominal one's, evaluate plans: st_case_evaluator() */
    const struct st_hardware *hardware; /* its parts; NULL: they are not known */
    uint32_t ranks, seq;                /* tokens of a sequence */
    uint64_t batch_tokens;              /* of a step; 0: ST_ADVISOR_BATCH */
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
    double drafted; /* what its draft says */
    bool chosen;    /* seconds are those of a plan; false: of a draft, which is a little slower */
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

struct st_advice {
    uint32_t seq;            /* tokens of a sequence */
    uint32_t sequences;      /* of a step, of all ranks */
    uint32_t ranks, here;    /* here: those of a node */
    uint64_t data_sequences; /* of an epoch; 0: not known */
    uint64_t params;
    char model[64], machine[64];
    bool fp16;  /* the machine has no bf16, so that the configurations are of this */
    bool named; /* the machine is known by its parts: */
    struct st_hardware hardware;
    struct st_tried tried[ST_ADVISOR_TRIED_MAX]; /* those that fit */
    uint32_t tried_count, best;
    uint32_t lowest;      /* of several ranks: the fastest with the lowest stage that fits */
    char *config;         /* the best one's file; NULL: nothing fits */
    struct st_plan *plan; /* of it, evaluated at the rates; NULL like config, and then: */
    uint64_t capacity[STRATA_TIER_COUNT];
    bool given[STRATA_TIER_COUNT];     /* the configuration says how much of it a run may take */
    uint64_t least[STRATA_TIER_COUNT]; /* the least of a tier with which something fits, the others as they are; 0: none does */
    uint64_t together[STRATA_TIER_COUNT];       /* several of them; 0: as it is */
    struct st_instead instead[ST_METHOD_COUNT]; /* if nothing fits; of full training nothing */
    struct st_changed changed[ST_CHANGE_COUNT]; /* of a machine known by its parts; if nothing fits, the first that does */

    /* What the run makes of it; not filled in by st_advisor_ask(). */
    const struct st_case *plan_of; /* the plan; NULL: nothing fits */
    double tokens;                 /* of the run; 0: not said */
    double steps;                  /* of the run; 0: as many as its tokens take */
    struct st_written written;
};

/** Answer it, on threads of its own, too.  Of *out, which is zeros but for what is known of the model, the rest is filled in.
 *  E_INVAL: the batch holds no sequence; the statuses of the source and of planning, but E_NOFIT: that is an answer. */
strata_status st_advisor_ask(struct st_advice *out, const struct st_advisor *q);
void st_advice_free(struct st_advice *advice);
/** Whether adapters fit where full training does not. */
bool st_advice_adapters_fit(const struct st_advice *advice);

/** As text, and as an object of JSON. */
void st_advice_print(const struct st_advice *a, FILE *file);
void st_advice_put(const struct st_advice *a, struct st_json_writer *w);

/** Whether tiers can be used on a machine at all. */
bool st_tiers_there(const struct st_tiers *tiers, const struct st_capacity *capacity);

/** The file of a setting.  Free *text.  E_NOMEM. */
strata_status st_advisor_config(char **text, const struct st_tried *t, const struct st_advisor *q, enum st_method method);

/** "none", "cpu", "nvme": as DeepSpeed says a tier. */
const char *st_advisor_tier(strata_tier tier);

#endif
