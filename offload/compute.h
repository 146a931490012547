/* offload/compute.h - what the engine asks of a model: one call per compute op of the program.
 *
 * The engine guarantees that everything named is resident and ordered; the model only enqueues device ops.  All pointers are
 * device addresses unless said otherwise.  Gradient buffers accumulate (+=) in fp32; a call with `first` finds garbage in its
 * buffer and starts the sum: by writing, or by zeroing and adding, so that every element of it has a value afterwards. */
#ifndef OFFLOAD_COMPUTE_H
#define OFFLOAD_COMPUTE_H

#include "offload/workload.h"

struct st_device;     /* offload/device/device.h: a model only passes it on */
struct st_tensor_ops; /* offload/device/tensor_ops.h */

enum st_call_kind {
    ST_CALL_EMBED_FORWARD,  /* act (holds gathered rows) += positions            weight: position page */
    ST_CALL_EMBED_BACKWARD, /* grad of positions += from dact                    grad: position page */
    ST_CALL_BLOCK_FORWARD,  /* act -> act_out, internals filled                  weight: block page */
    ST_CALL_BLOCK_BACKWARD, /* dact: gradient of the output in, of the input out; with `recompute` fills internals first */
    ST_CALL_HEAD_NORM,      /* act -> internals (normalised input); its gradient accumulator zeroed   weight: norm page */
    ST_CALL_HEAD_STATS,     /* one slice: logits, running softmax statistics      weight: slice page */
    ST_CALL_HEAD_LOSS,      /* loss_sum = sum over rows of -log p(target); aux_loss, from routes */
    ST_CALL_HEAD_GRAD,      /* one slice: logits, again if `recompute`; dlogits; grad: slice page +=; internals' accumulator += */
    ST_CALL_HEAD_BACKWARD,  /* norm backward: act (head input), internals -> dact; grad: norm page +=  weight: norm page */
    /* Of a layer of experts. Internals are this micro-batch's from the first of its calls to the last, kept or not. */
    ST_CALL_ROUTE_FORWARD,   /* act -> internals: all but the experts, the choice; their sum opened; routes +=  weight: first page
                              */
    ST_CALL_EXPERTS_FORWARD, /* one slice: its experts' rows, weighted, are added to the sum                   weight: slice page
                              */
    ST_CALL_ROUTE_END,       /* internals -> act_out */
    ST_CALL_ROUTE_AGAIN, /* opens internals' gradients; with `recompute` fills internals first, from act   weight: first page */
    ST_CALL_EXPERTS_BACKWARD, /* one slice: dact, internals -> internals' gradients +=; grad: slice page +=     weight: slice page
                               */
    ST_CALL_ROUTE_BACKWARD,   /* act, internals, routes; dact as of a block; grad: first page +=                weight: first page
                               */
};

struct st_call {
    enum st_call_kind kind;
    uint32_t layer, page, micro; /* page: the op's, or ST_NO_PAGE */
    uint32_t slice;              /* of the head or of the layer's experts, 0-based */
    bool recompute;              /* BLOCK_BACKWARD, ROUTE_AGAIN: internals are not filled yet; HEAD_GRAD: there are no logits */
    const struct st_tensor_ops *ops; /* the device's; NULL: paced */
    struct st_device *device;
    const void *weight;  /* page of this call, dtype; NULL if the page is absent */
    float *grad;         /* fp32 accumulator of that page, page layout up to its frozen group; NULL: everything is frozen */
    uint64_t grad_elems; /* of the accumulator, padding included */
    bool first;          /* grad holds garbage: leave this call's gradient in all of it, 0 in the padding */
    const void *act;     /* [rows, hidden] input of the layer (EMBED_FORWARD: in and out) */
    void *act_out;       /* [rows, hidden] output of the block */
    void *dact;          /* [rows, hidden] gradient at the layer's boundary, in and out */
    void *internals;     /* the layer's, of this micro-batch */
    void *routes;        /* workload.routes_bytes of this micro-batch, of all layers; HEAD_LOSS has them, too; NULL: none */
    bool opens_routes;   /* ROUTE_FORWARD: they hold garbage: start them */
    float *logits;       /* [rows, slice's vocabulary]: HEAD_STATS writes them for HEAD_GRAD; NULL: not kept */
    void *workspace;     /* workload.workspace_bytes */
    const int32_t *tokens, *targets; /* [rows], device */
    const int32_t *positions;        /* [rows], device: in its document, as in st_attention; NULL: a sequence is one document */
    double *loss_sum;                /* device */
    double *aux_loss;                /* device: of this micro-batch; NULL: there is none */
    float loss_gradient;   /* derivative of the scaled mean loss with respect to a token's loss: loss scale / target tokens of the
                              step */
    float aux_gradient;    /* derivative of the scaled loss with respect to aux_loss */
    bool trains;           /* of a step: dropout is on; else of an evaluation or a generation */
    uint64_t sequence;     /* how many sequences the run's steps have used before the first one of this micro-batch */
    const void *constants; /* the model's constants (compute.constants) on the device */
    uint32_t rows, position; /* generation: rows of this call and the first one's position; else 0 */
};

struct st_compute {
    void *model;           /* borrowed */
    const void *constants; /* [workload.constants_bytes], host, borrowed: copied to the device once, at load; NULL if none */
    strata_status (*run)(void *model, const struct st_call *call);
};

#endif
