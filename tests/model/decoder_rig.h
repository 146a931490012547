/* tests/model/decoder_rig.h - a model on a cpu device with everything resident, run call by call. */
#ifndef DECODER_RIG_H
#define DECODER_RIG_H

#include "core/json/json.h"
#include "core/system/workers.h"
#include "model/layout.h"
#include "model_fixture.h"
#include "offload/device/device.h"

/* One model on one device. */
struct rig {
    struct st_model *m;
    const struct st_workload *w;
    struct st_workers *workers;
    struct st_device *dev;
    struct st_compute compute;
    const struct st_tensor_ops *ops; /* of every call; set by rig_open, a test may put its own in between */
    bool begins;                     /* backward finds garbage in its sums, and begins them; else it adds */
    unsigned char **guards;          /* [guard_count] after every buffer */
    uint32_t guard_count;
    uint64_t used, arena_bytes;
    unsigned char **weights;             /* [pages] */
    float **grads;                       /* [pages], of what is trained; NULL: frozen */
    unsigned char **acts;                /* [blocks + 1] */
    unsigned char **internals;           /* [blocks] */
    uint64_t spoilt_first, spoilt_bytes; /* of the internals of each block of spoilt_kind, before its backward */
    enum st_layer_kind spoilt_kind;
    bool spoilt_to_zero; /* else to NaN */
    unsigned char *head_internals, *workspace, *dact;
    int32_t *tokens, *targets;
    int32_t *positions; /* of a model with documents, else NULL; a test fills them in, on the cpu device in place */
    double *loss_sum;
    unsigned char *routes; /* of a model with an auxiliary loss, else NULL, as the loss */
    double *aux_loss;
    uint32_t target_count; /* what the loss is divided by; 0: all rows */
    float *constants;
    uint32_t rows, position; /* of every call; set by rig_open, generation changes them */
};

/** Weights are undefined, gradients zero; a frozen page has no gradient. */
void rig_open(struct rig *r, const struct st_model_config *config, const struct st_model_batch *batch,
              const struct st_kernels *kernels);
/** Checks that nothing was written past a buffer. */
void rig_close(struct rig *r);
void rig_load(struct rig *r, struct st_weight_source source);
/** From the weights of a golden directory. */
void rig_load_dir(struct rig *r, const char *dir);
/** Seeded weights. */
void rig_load_seed(struct rig *r, uint64_t seed);

/** Asserts that `got` is `want`, to 1e-5 in norm: products that are taken apart round otherwise. */
void rig_check_near(const float *got, const float *want, uint64_t elems);

/** A call on a page, its buffers filled in. */
struct st_call rig_call(struct rig *r, enum st_call_kind kind, uint32_t page);
/** Checks that no part of the call's buffers was overrun. */
void rig_run(struct rig *r, const struct st_call *call);

/** Forward, loss and backward of one micro-batch: the mean loss.  recompute: blocks' internals are spoiled first. */
double rig_step(struct rig *r, const int32_t *tokens, const int32_t *targets, bool recompute);
/** Forward alone: blocks, final norm, statistics. */
void rig_forward(struct rig *r, const int32_t *tokens, const int32_t *targets);

/** The directory's model: 2 windows of 32 tokens a micro-batch; dtype, workers and patterns from `batch`. */
void golden_open(struct rig *r, const char *dir, const struct st_model_batch *batch, const struct st_kernels *kernels);
/** Loss of the directory's first micro-batch, gradients left in the rig. */
double golden_loss(struct rig *r, const char *dir, bool recompute);
/** The first micro-batch's tokens and targets, [64] each. */
void golden_rows(const struct rig *r, const char *dir, int32_t *tokens, int32_t *targets);
/** The directory's golden.json, or another file of it. */
st_json *golden_json(const char *dir);
st_json *golden_json_of(const char *dir, const char *name);
/** Norm of a tensor's gradient. */
double golden_norm(const struct rig *r, const struct st_tensor *t);
/** A gradient against what golden.json says of it: the norm within 1e-5; values within 1e-4 of theirs, or of the tensor's typical
 *  value where that is larger. */
void golden_gradient(const struct rig *r, const struct st_tensor *t, const st_json *want);

#endif
