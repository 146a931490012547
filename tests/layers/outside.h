/* tests/layers/outside.h - the built-in decoder driven from outside: its own kernels (st_model_compute()) on a device of its own,
 * its state in an engine that knows only layers (strata/layers.h).
 *
 * A page of the model is a layer: those of the table and the positions are resident, blocks and the final norm are in order. */
#ifndef TESTS_LAYERS_OUTSIDE_H
#define TESTS_LAYERS_OUTSIDE_H

#include "strata/strata.h"

#define OUTSIDE_SEQ 32u

struct st_device;

struct outside_opts {
    const char *preset, *text;    /* of a model without a head of its own; configuration */
    const char *const *overrides; /* [override_count] */
    uint32_t override_count;
    bool leaves; /* each micro-batch is a leaf (strata.leaves); else all are one */
    struct strata_comm *comm;
    uint32_t rank, ranks;                         /* 0 ranks: one */
    const char *device;                           /* of both; NULL: cpu */
    void *(*stream_of)(struct st_device *device); /* that its kernels run on; NULL: none */
};

struct outside;

/** Open, plan, create, and load what the preset begins with. */
strata_status outside_open(struct outside **out, const struct outside_opts *opts);
void outside_close(struct outside *o); /* NULL is fine */
/** A step over tokens and targets [grad_accum][micro_batch * OUTSIDE_SEQ]. */
strata_status outside_step(struct outside *o, const int32_t *tokens, const int32_t *targets, struct strata_step *result);
struct strata_engine *outside_engine(struct outside *o);
/** Rows of a step of this rank. */
uint32_t outside_rows(const struct outside *o);

#endif
