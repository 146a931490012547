/* tests/api/layers_net.h - a small net that a test computes, its state in an engine: strata/layers.h from outside.
 *
 * A table of rows (resident, tied: embedding and head), blocks h + relu(h W + b) s with s frozen, and a gain.  Plain fp32, so
 * that what it gives depends only on what the engine hands out. */
#ifndef TESTS_API_LAYERS_NET_H
#define TESTS_API_LAYERS_NET_H

#include "strata/strata.h"

#define NET_WIDTH   41u /* no square of it is a multiple of 16: tensors have padding between them */
#define NET_VOCAB   24u
#define NET_ROWS    4u
#define NET_BLOCKS  3u
#define NET_LAYERS  (NET_BLOCKS + 2)     /* 0 the table, then blocks, then the gain */
#define NET_TENSORS (2 + 3 * NET_BLOCKS) /* the table, W, b and s of each block, the gain */

/* What a net is run with; zeros are defaults. */
struct net_opts {
    const char *text;             /* configuration; NULL: net_config */
    const char *const *overrides; /* [override_count] */
    uint32_t override_count;
    strata_dtype grad_dtype; /* of gradients that are reported; INVALID: they are added in place */
    uint32_t micros;         /* of a step; 0: all */
    enum strata_use use;
    bool renamed, reshaped, regrouped; /* another model: a layer's name, a tensor's shape or parameter group */
    bool resident;                     /* every layer stays on the device */
    bool unknown;                      /* no layer says its FLOPs */
    uint64_t caller_host_bytes;
    double lr_scale; /* of a parameter group; 0: the net's */
    bool unscaled;   /* losses are not scaled although the configuration says fp16 */
    struct strata_comm *comm;
    uint32_t rank, ranks; /* whose micro-batches it takes; 0 ranks: one */
};

struct net {
    struct net_opts opts;
    struct strata_config *config;
    struct strata_model *model;
    struct strata_plan *plan;
    struct strata_engine *engine;
    struct strata_tensor_info info[NET_TENSORS];
    uint32_t left;     /* calls of a step that are still made; then STRATA_E_CANCELLED comes back without one.  UINT32_MAX: all */
    bool threads;      /* each call on a thread of its own */
    uint32_t sleep_us; /* in each pass of a block */
    double spoil;      /* NaN, infinity: takes the place of a gradient; 0: none */
    const struct strata_layers_step *step; /* rates of a step; NULL: the configuration's */
    const double *lr, *beta1, *beta2;      /* the same, said at its end */
    struct strata_step last;
    double losses[8];
};

extern const char net_config[]; /* fp32, two micro-batches */

strata_status net_open(struct net *n, const struct net_opts *opts);  /* model and plan */
strata_status net_start(struct net *n, const struct net_opts *opts); /* and engine and first values */
void net_close(struct net *n);
/** The first values of a tensor, as strata_load_opts.fill. */
strata_status net_fill(void *ctx, uint32_t tensor, uint64_t first, uint64_t elems, float *values);
/** One step over micro-batches that its number determines. */
strata_status net_step(struct net *n, uint64_t step);
/** An evaluation of the same; the sum of its losses. */
strata_status net_eval(struct net *n, uint64_t step, double *loss);
/** Digest of weights and state as one text. */
const char *net_digest(struct net *n, char text[80]);

#endif
