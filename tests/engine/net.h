/* net.h - a small net that the test computes itself: an engine pages its layers, and knows nothing of them.  On cuda, over the
 * emulator, all that it computes is enqueued on a stream.
 *
 * Resident: an embedding that is input and output, tied, and a gain.  In order: layers h += W2 relu(W1 h + b). */
#ifndef TESTS_ENGINE_NET_H
#define TESTS_ENGINE_NET_H

#include "offload/engine/caller.h"
#include "offload/plan/plan.h"

#define NET_LAYERS    4u
#define NET_RANKS_MAX 4u
#define NET_STEPS_MAX 6u
#define NET_MICROS    4u /* of a step, all ranks' together */
#define NET_TEXT      256u

struct net_cell {
    strata_dtype dtype, grads; /* of the weights; of what is reported */
    strata_tier optimizer, param, acts;
    enum st_update_policy update;
    bool device_least, host_least; /* with as little memory as can be */
    uint32_t threads, leaves, ranks, stage;
    uint32_t sets;  /* of a run that saves; 0: none */
    uint64_t cache; /* 0 or ST_AUTO_BYTES */
    const char *io;
    bool paced;
    bool all_stay;   /* every layer is resident: none is entered */
    bool scales;     /* losses are scaled */
    bool foreign;    /* each call comes from a thread of its own */
    uint32_t frozen; /* layer that is not trained, from 1 on; 0: none */
    double clip;
    /* cuda: enqueue work on the stream; NULL: another device, and all is computed at once. */
    void (*launch)(void *stream, void (*work)(void *data), void *data);
    void *stream;
    uint64_t deadline_ns; /* of it; 0: the device's own */
    strata_status (*open_device_comm)(struct st_comm **out, struct st_comm *host);
    /* What happens in the run. */
    uint32_t fewer_at;    /* this step, from 1 on, has a micro-batch less */
    uint32_t evaluate_at; /* after this step */
    uint32_t flush_at;
    uint32_t poison_at;          /* this step's gradients are not finite */
    uint32_t drop_at, drop_call; /* this step is dropped after so many calls */
    uint32_t drop_rank;
};

struct net_result {
    double losses[NET_STEPS_MAX], norms[NET_STEPS_MAX], scales[NET_STEPS_MAX], evaluated;
    bool dropped[NET_STEPS_MAX], skipped[NET_STEPS_MAX];
    uint32_t calls[NET_STEPS_MAX]; /* of a step, those that may be followed by a drop */
    uint64_t steps_done, steps_skipped;
    char weights[33], state[33];
    struct st_traffic planned, moved; /* of steps and evaluations */
};

void net_workload(struct st_workload *w, const struct net_cell *cell);
/** A plan; fails the test if there is none. */
struct st_plan *net_plan(const struct st_workload *w, const struct net_cell *cell, uint32_t rank);

/* An engine with the net's weights. */
struct net {
    const struct net_cell *cell;
    const struct st_plan *plan;
    struct st_engine *engine;
    struct st_machine pace;
    uint32_t rank, step, calls; /* step: the one under way, from 1 on; calls: of it */
    bool stops;                 /* it is to be dropped now */
    bool wrong;                 /* a boundary was another one */
    struct net_kept *kept;      /* memory of the step */
    struct st_comm *device_comm;
};
strata_status net_open(struct net *net, const struct st_plan *plan, const struct net_cell *cell, uint32_t rank,
                       struct st_comm *comm, const char *dir);
void net_close(struct net *net);
/** One step, or an evaluation of the same micro-batches. */
strata_status net_step(struct net *net, uint32_t step, bool evaluates, struct st_step_result *result);
/** The same up to where it is to be dropped, and then nothing. */
strata_status net_begin(struct net *net, uint32_t step, struct st_step_result *result);

/** A whole run of `steps` steps on a plan. */
strata_status net_train(struct net_result *out, const struct st_plan *plan, const struct net_cell *cell, uint32_t steps,
                        const char *dir);
/** All of it, by as many ranks as the cell has; what they end with must be the same. */
void net_run(struct net_result *out, const struct net_cell *cell, uint32_t steps, const char *dir);
const char *net_text(char text[NET_TEXT], const struct net_cell *cell);

#endif
