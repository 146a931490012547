/* strata/layers.h - layers of others: strata keeps the state of a model that the caller computes.
 *
 * A model is a list of layers in forward order, each with named tensors.  strata plans where weights, masters, moments and
 * gradients live, moves them, updates them, saves them and shares them among ranks; the caller computes forward and backward,
 * with whatever it likes:
 *
 *     strata_layers_open(&model, config, &opts);             layers, tensors, parameter groups
 *     strata_plan_make(&plan, model, NULL);                  as for any model
 *     strata_engine_create(&engine, plan, NULL);
 *     strata_engine_load_layers(engine, &load);              files, or a function's values, or zeros
 *     for (each step) {
 *         strata_engine_begin(engine, NULL, &scale);
 *         for (each micro-batch) {
 *             for (layer = 0; layer < n; layer++) {          the plan's order
 *                 strata_engine_enter(engine, STRATA_FORWARD, layer, &view);
 *                 ... weights in view.weights; what backward needs goes to view.boundary ...
 *                 strata_engine_leave(engine);
 *             }
 *             for (layer = n; layer-- > 0;) {
 *                 strata_engine_enter(engine, STRATA_BACKWARD, layer, &view);
 *                 ... gradients of (loss x scale), added to view.sum or given to strata_engine_grad() ...
 *                 strata_engine_leave(engine);
 *             }
 *             strata_engine_micro_end(engine);
 *         }
 *         strata_engine_end(engine, &end, &result);          losses, and what gradients are divided by
 *     }
 *
 * docs/examples/layers.c is a complete program; docs/layers.md is the guide.
 *
 * Layers   A layer is ordered: entered once forward and once backward in each micro-batch, in the order of the list, its weights
 *          wherever the plan put them; or resident: always on the device, usable at any time in a step, by any number of layers.
 *          Tensors that several layers use (a tied embedding table) belong to a resident layer.
 * Pages    All tensors of a layer are one page.  A tensor begins at a multiple of 64 bytes in it; strata_engine_get_tensor() says
 *          where.  Placement changes neither layout nor bits.
 * Step     Between begin and end (or drop) other calls on the engine return STRATA_E_BUSY and change nothing, but for facts about
 *          tensors, strata_engine_request() and strata_engine_cancel(); strata_engine_destroy() ends the step that is under way.
 *          A call out of order, of a layer that is not the next, returns STRATA_E_INVAL, names what was expected, and changes
 *          nothing.  A failure of the engine, or a cancel, ends the step: every call returns the status that ended the engine.
 * Thread   Calls may come from any threads, one at a time; another one meanwhile returns STRATA_E_BUSY.  The engine moves and
 *          updates on threads of its own while the caller computes.
 * Device   "cpu": pointers are host memory.  "cuda": weights, boundaries, sums and gradients are memory of the GPU, and the
 *          caller computes on a stream that begin names.  What enter and use give is there for all that is enqueued afterwards;
 *          what was enqueued before leave and micro_end counts.  Neither waits for the stream.  enter and use wait until the
 *          memory has what they give, which may mean for earlier layers on the stream; grad adds by a kernel on it; end and drop
 *          wait for all of it.  The calling thread's current GPU becomes the engine's.
 * Ranks    Every rank opens the same layers and makes the same calls, each with its own micro-batches. */
#ifndef STRATA_LAYERS_H
#define STRATA_LAYERS_H

#include "strata/engine.h"
#include "strata/model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STRATA_LAYER_RANK_MAX   8u                   /**< dimensions of a tensor */
#define STRATA_LAYER_NAME_BYTES 96u                  /**< of a name of a tensor, layer or parameter group, with the NUL */
#define STRATA_PARAM_GROUPS_MAX 16u                  /**< of a model */
#define STRATA_FROZEN           UINT32_C(0xffffffff) /**< in place of a parameter group: no gradient, no state */

/** A tensor of a layer. */
struct strata_layer_tensor {
    const char *name;                      /**< unique in the model; 1 to 95 bytes of UTF-8 */
    uint32_t rank;                         /**< 0 to STRATA_LAYER_RANK_MAX; 0: one element; at most 2^48 elements */
    uint32_t group;                        /**< parameter group, or STRATA_FROZEN */
    uint64_t shape[STRATA_LAYER_RANK_MAX]; /**< [rank], each 1 or more; row-major */
    strata_dtype dtype;                    /**< of its weights: F32, or the model's; INVALID (0): the model's */
};

/** A layer.  It has at least one tensor; one without joins a neighbour. */
struct strata_layer {
    const char *name;                          /**< unique among layers; 1 to 95 bytes of UTF-8 */
    const struct strata_layer_tensor *tensors; /**< [tensor_count] */
    uint32_t tensor_count;
    bool resident;           /**< always on the device, usable in any order */
    uint64_t boundary_bytes; /**< ordered layers: the most that one micro-batch keeps from forward for backward, at most 2^50; 0:
                                  nothing */
    double forward_flops;    /**< of one micro-batch, for figures and bounds until two steps have been timed; 0: unknown */
    double backward_flops;   /**< the same, recomputation included */
};

/** Tensors that are trained alike.  Zeros: by the configuration's rate and decay. */
struct strata_param_group {
    const char *name;      /**< for checkpoints and sentences; unique; NULL: its number */
    double lr_scale;       /**< the configuration's rate is multiplied by it, 0 to 1e3; 0: 1 */
    double weight_decay;   /**< 0 to 1e3, where own_weight_decay is set */
    bool own_weight_decay; /**< weight_decay counts, not the configuration's */
};

/** A model of layers.  Begin with STRATA_LAYERS_OPTS_INIT; everything is copied. */
struct strata_layers_opts {
    size_t opts_size;                        /**< sizeof(struct strata_layers_opts) */
    const char *name;                        /**< for reports and checkpoints; NULL: "layers" */
    const struct strata_layer *layers;       /**< [layer_count] in forward order; tensors in this order are the parameter order
                                                  of digests, whichever layers are resident.  At most 65536 layers with 2^18
                                                  tensors in all */
    const struct strata_param_group *groups; /**< [group_count]; NULL: one, which the configuration describes */
    uint32_t layer_count, group_count;
    enum strata_use use;     /**< TRAIN; EVAL: forward only; PLAN: nothing is run.  Not GENERATE */
    uint32_t caller_threads; /**< cpu device: cores that the caller computes on, which the engine's workers leave free */
    uint64_t caller_device_bytes, caller_host_bytes; /**< what the caller holds beside strata, subtracted from what there is */
    bool scales_loss; /**< loss scaling as the configuration's "fp16" says, though weights are not fp16 (autocast); fp16 weights
                           always have it */
    struct strata_comm *comm;     /**< as in struct strata_model_opts */
    uint32_t saved_checkpoints;   /**< the same */
    strata_progress_fn *progress; /**< the same */
    void *progress_ctx;
};
#define STRATA_LAYERS_OPTS_INIT STRATA_INIT(strata_layers_opts, opts_size)

/**
 * Open a model of layers: for strata_plan_make() and strata_engine_create(), as strata_model_open()'s.
 *
 * Of the configuration precision, accumulation, budgets, optimizer, schedule, clipping, checkpoints and ranks apply; what
 * concerns decoders (strata.freeze, strata.lora, strata.quantization, tokens) is refused where it is set.  Functions that need a
 * decoder (strata_data_open(), strata_engine_generate(), strata_export_open(), ...) return STRATA_E_INVAL for such a model.
 *
 * @param model   out, returned: closed by strata_model_close()
 * @param config  borrowed during the call; without bf16 and fp16 weights are fp32
 *
 * @return STRATA_E_INVAL   an argument is NULL or out of its range; a name is missing, too long or taken; a layer has no
 *                          tensor, or tensors of more than six kinds (parameter group and dtype); or nothing is trained
 *         STRATA_E_CONFIG  a key of the configuration is only for decoders; or the ranks differ, and the sentence says in what
 *         STRATA_E_NOMEM
 *
 * Thread  any.
 */
STRATA_API strata_status strata_layers_open(struct strata_model **model, const struct strata_config *config,
                                            const struct strata_layers_opts *opts);

/* --- tensors --- */

/** What a tensor is, and where.  Also of the decoders of strata_model_open(). */
struct strata_tensor_info {
    size_t info_size;     /**< sizeof(struct strata_tensor_info), set by the caller */
    const char *name;     /**< borrowed from the engine's model */
    const char *layer;    /**< its layer's name, borrowed; of a decoder "" */
    uint32_t index;       /**< in parameter order, from 0 */
    uint32_t layer_index; /**< in strata_layers_opts.layers; of a decoder 0 */
    uint32_t rank;
    uint32_t group; /**< parameter group, or STRATA_FROZEN; of a decoder 0 */
    uint64_t shape[STRATA_LAYER_RANK_MAX];
    uint64_t elems;
    strata_dtype dtype; /**< of its weights */
    uint64_t weight_at; /**< bytes from strata_layer_view.weights to its first element; of a decoder 0 */
    uint64_t sum_at;    /**< elements from strata_layer_view.sum; of a decoder, and where it is frozen, 0 */
};
#define STRATA_TENSOR_INFO_INIT STRATA_INIT(strata_tensor_info, info_size)

/** How many tensors the engine's model has; 0 for NULL.  Thread: any. */
STRATA_API uint32_t strata_engine_tensor_count(const struct strata_engine *engine);

/** Fill `info` of tensor `index`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, there is no such tensor, or info_size is another one
 *
 *  Thread  any, at any time. */
STRATA_API strata_status strata_engine_get_tensor(const struct strata_engine *engine, uint32_t index,
                                                  struct strata_tensor_info *info);

/** The index of the tensor of this name.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or no tensor has the name
 *
 *  Thread  any, at any time. */
STRATA_API strata_status strata_engine_find_tensor(const struct strata_engine *engine, const char *name, uint32_t *index);

/** Which values of a tensor. */
enum strata_plane {
    STRATA_PLANE_WEIGHT = 0,  /**< the fp32 master where there is one, else the weight, as after strata_engine_end_training() */
    STRATA_PLANE_MOMENT1 = 1, /**< of a trained tensor; 0 before the first step; gone after strata_engine_end_training() */
    STRATA_PLANE_MOMENT2 = 2, /**< the same; optimizers with two moments */
};

/**
 * Read values of a tensor, wherever they are; pending updates are made first.
 *
 * @param index  tensor
 * @param plane  which values
 * @param first, elems  the part; elems 1 or more, first + elems at most the tensor's
 * @param dtype  F32, exact; BF16, F16: rounded to nearest even.  A trained bf16 weight differs from its master so rounded where
 *               that lies half-way between two: weights are rounded away from zero there
 * @param out    [elems] dtype, out; aligned to its elements
 *
 * @return STRATA_E_INVAL  an argument is NULL or out of its range, the tensor has no such plane, or nothing is loaded
 *         STRATA_E_BUSY   a step is under way
 *         STRATA_E_NOSYS  weights in nf4
 *         otherwise as strata_engine_flush()
 *
 * Cost    reads what the part's chunks have on NVMe.  No allocation.
 * Ranks   collective: every rank asks for the same part, and each gets the values.  STRATA_E_CONFIG: they ask for others.
 */
STRATA_API strata_status strata_engine_read_tensor(struct strata_engine *engine, uint32_t index, enum strata_plane plane,
                                                   uint64_t first, uint64_t elems, strata_dtype dtype, void *out);

/**
 * Write values of a tensor where they belong: master and weight, or a moment; pending updates are made first.
 *
 * @param dtype   of the values: F32, BF16, F16, widened exactly
 * @param values  [elems] dtype, in; borrowed during the call
 *
 * All else as strata_engine_read_tensor(), but STRATA_E_INVAL after strata_engine_end_training(); after a failure of the drive
 * the engine has ended.  What the run has saved stays what it is: a checkpoint after this one has the new values.
 *
 * Numerics  weights are rounded as strata_engine_load() rounds them; moments in bf16 to nearest even.  Moments of 8 bits as an
 *           update rounds them, with the rest of their block of 256 elements; of a second moment what is below 0 is 0.
 * Ranks     collective: every rank gives the same part and the same values.  STRATA_E_CONFIG: they do not; nothing is written.
 */
STRATA_API strata_status strata_engine_write_tensor(struct strata_engine *engine, uint32_t index, enum strata_plane plane,
                                                    uint64_t first, uint64_t elems, strata_dtype dtype, const void *values);

/** Gives initial values of a part of a tensor; called by several of the library's threads at once.
 *
 *  @param tensor  its index in parameter order (strata_tensor_info.index)
 *  @param values  [elems] f32, out
 *
 *  @return other than STRATA_OK: the load ends with it, and the sentence names the tensor */
typedef strata_status strata_fill_fn(void *ctx, uint32_t tensor, uint64_t first, uint64_t elems, float *values);

/** Where a model's first weights come from.  Begin with STRATA_LOAD_OPTS_INIT. */
struct strata_load_opts {
    size_t opts_size;         /**< sizeof(struct strata_load_opts) */
    const char *const *files; /**< [file_count] safetensors files; or one directory with model.safetensors, or its index and
                                   shards */
    uint32_t file_count;      /**< 0: no files */
    const char *prefix;       /**< a file's tensor "PREFIXname" is the model's "name", and others are unexpected; NULL: "" */
    const char *add_prefix;   /**< a file's tensor "name" is the model's "PREFIXname"; NULL: "" */
    bool allow_missing;       /**< tensors that no file has take fill's values */
    bool allow_unexpected;    /**< files may have tensors that the model has not */
    strata_fill_fn *fill;     /**< values of tensors that come from no file; NULL: zeros */
    void *fill_ctx;
    uint32_t *missing, *unexpected; /**< out, or NULL: how many */
};
#define STRATA_LOAD_OPTS_INIT STRATA_INIT(strata_load_opts, opts_size)

/**
 * Load weights straight to their homes and begin a new run, as strata_engine_load() does, which for a model of layers loads
 * zeros.
 *
 * @param opts  copied; NULL: zeros
 *
 * @return STRATA_E_INVAL  an argument is NULL or out of its range, or the model is a decoder
 *         STRATA_E_INPUT  a file is missing or damaged, a tensor has another shape or no dtype of F32, BF16, F16, is there
 *                         twice, is missing or unexpected: the sentence names the first and counts them; nothing is loaded then
 *         STRATA_E_BUSY   a step is under way
 *         otherwise as strata_engine_load()
 *
 * Cost    each file's tensors are read once, by the workers, in pieces; never whole in memory.
 * Ranks   collective; every rank reads what it keeps.
 */
STRATA_API strata_status strata_engine_load_layers(struct strata_engine *engine, const struct strata_load_opts *opts);

/* --- a step --- */

enum strata_pass { STRATA_FORWARD = 0, STRATA_BACKWARD = 1 };

/** What a step is.  Begin with STRATA_LAYERS_STEP_INIT, or pass NULL: all defaults. */
struct strata_layers_step {
    size_t opts_size; /**< sizeof(struct strata_layers_step) */
    bool evaluates;   /**< only forward passes: no gradients, no update; pending updates are made first */
    uint32_t micros;  /**< micro-batches, at most gradient_accumulation_steps; 0: as many */
    const double *lr; /**< [groups] rates of this step's update, 0 to 1e3; NULL: the schedule's, or strata_engine_set_lr()'s,
                           times lr_scale */
    const double *weight_decay; /**< [groups] 0 to 1e3; NULL: as the groups say */
    double divisor;             /**< strata.update "in_backward" only: strata_layers_end.divisor, of all ranks together */
    void *stream;               /**< "cuda": the cudaStream_t, of the engine's GPU, that the caller computes on; NULL: the default
                                     one.  It lives until the step's end.  Elsewhere ignored */
    /** [groups] betas of this step's update, 0 to 0.9999999; SGD: beta1 is its momentum.  NULL: the configuration's and its
     *  schedule's.  Ignored by an optimizer that has none. */
    const double *beta1, *beta2;
};
#define STRATA_LAYERS_STEP_INIT STRATA_INIT(strata_layers_step, opts_size)

/** What a layer computes with; pointers are valid until strata_engine_leave(), a resident layer's until the step's end. */
struct strata_layer_view {
    size_t view_size;    /**< sizeof(struct strata_layer_view), set by the caller */
    const void *weights; /**< the layer's page: tensor t at weights + strata_tensor_info.weight_at bytes.  64-byte aligned */
    /** BACKWARD: [sum elements] f32, tensor t at sum + strata_tensor_info.sum_at: gradients may be added in place (+=), in an
     *  order that the caller keeps; padding stays as it is.  NULL: the layer is frozen, or FORWARD. */
    float *sum;
    void *boundary;          /**< FORWARD: [boundary_bytes] to be written; BACKWARD: what forward wrote.  NULL: an evaluation, or
                                  the layer has none */
    uint64_t boundary_bytes; /**< as the layer says; 0 where boundary is NULL */
    uint32_t layer, micro;   /**< of the call; micro-batches count from 0 */
};
#define STRATA_LAYER_VIEW_INIT STRATA_INIT(strata_layer_view, view_size)

/**
 * Begin a step; returns at once, while the engine begins to move what is needed.
 *
 * @param step        copied; NULL: all defaults
 * @param loss_scale  out, or NULL: gradients are of the loss times this; 1 without loss scaling
 *
 * @return STRATA_E_INVAL  an argument is out of its range, nothing is loaded, the model is a decoder, or was not opened to train;
 *                         "cuda": the stream is none of the engine's GPU
 *         STRATA_E_BUSY   a step is under way
 *         the status that ended the engine
 */
STRATA_API strata_status strata_engine_begin(struct strata_engine *engine, const struct strata_layers_step *step,
                                             double *loss_scale);

/**
 * Wait until an ordered layer's weights are on the device, and everything else that it needs.
 *
 * @param layer  index in strata_layers_opts.layers: forward the next ordered one, backward the one before.  A layer whose tensors
 *               are all frozen may be left out of backward
 * @param view   out; its view_size is set
 *
 * @return STRATA_E_INVAL  an argument is NULL, the layer is resident or not the next one, another is entered, or no step is under
 *                         way: nothing has changed
 *         otherwise as strata_engine_step(): the engine has ended
 */
STRATA_API strata_status strata_engine_enter(struct strata_engine *engine, enum strata_pass pass, uint32_t layer,
                                             struct strata_layer_view *view);

/** The layer that was entered is done with its view.
 *
 *  @return STRATA_E_INVAL  none is entered
 *          otherwise as strata_engine_enter() */
STRATA_API strata_status strata_engine_leave(struct strata_engine *engine);

/**
 * Wait until a resident layer's weights are current; at any time in a step, as often as wanted.
 *
 * @param pass  BACKWARD: view->sum, too, which is this micro-batch's until its end
 * @param view  out; its view_size is set.  weights is the same in all steps of an engine, and between steps with nothing pending
 *              (strata_engine_flush()) what training has made
 *
 * @return STRATA_E_INVAL  an argument is NULL, the layer is ordered, no step is under way, or BACKWARD in an evaluation
 *         otherwise as strata_engine_enter()
 */
STRATA_API strata_status strata_engine_use(struct strata_engine *engine, enum strata_pass pass, uint32_t layer,
                                           struct strata_layer_view *view);

/** A gradient, or a part of one. */
struct strata_grad {
    uint32_t tensor;    /**< index in parameter order */
    strata_dtype dtype; /**< F32, BF16, F16 */
    uint64_t first;     /**< element of the tensor that values begins with */
    uint64_t elems;     /**< 0: all from `first` on */
    const void *values; /**< [elems] dtype; borrowed during the call, aligned to its elements.  "cuda": of the GPU, read on the
                             stream, and so the caller's again for all that is enqueued there afterwards */
};

/**
 * Add gradients to the sums of a micro-batch, widened exactly: of the layer that is entered in BACKWARD, or of resident layers at
 * any time in a training micro-batch.  What is never reported has gradient zero; what is reported twice is added twice.
 *
 * @param grads  [count] added in this order; frozen tensors are passed over
 *
 * @return STRATA_E_INVAL  an argument is NULL or out of its range, a tensor is of another layer, or "cuda": values are host
 *                         memory: nothing was added
 *         otherwise as strata_engine_enter()
 *
 * Cost      reads the gradients once, on the calling thread or, "cuda", the stream.  No allocation.
 * Numerics  one fp32 addition per element and call.  After the last micro-batch the sum is rounded once to the tensor's dtype,
 *           before divisor, norm and update: in fp16 the sum times the loss scale must stay below 65504.
 */
STRATA_API strata_status strata_engine_grad(struct strata_engine *engine, const struct strata_grad *grads, uint32_t count);

/** A micro-batch has ended, the last one, too; also in an evaluation.
 *
 *  @return STRATA_E_INVAL  a layer is entered, or one that is trained was not entered: the sentence names it
 *          otherwise as strata_engine_enter() */
STRATA_API strata_status strata_engine_micro_end(struct strata_engine *engine);

/** How a step ends.  Begin with STRATA_LAYERS_END_INIT. */
struct strata_layers_end {
    size_t opts_size; /**< sizeof(struct strata_layers_end) */
    /** [micros] sums of this rank, without loss scale; NULL: unknown, strata_step.loss is NaN.  Host memory, read once the stream
     *  has passed, which may have copied them there. */
    const double *losses;
    /** What this rank's gradients and losses are divided by: its tokens, or its micro-batches; 1e-9 to 1e18.  All ranks' are
     *  added.  0: the number of micro-batches.  in_backward: ignored, given at begin. */
    double divisor;
    const double *lr, *weight_decay; /**< [groups] as in strata_layers_step, in place of what that said; NULL: that counts.
                                          in_backward: NULL */
    const double *beta1, *beta2;     /**< the same */
};
#define STRATA_LAYERS_END_INIT STRATA_INIT(strata_layers_end, opts_size)

/**
 * End a step whose micro-batches have ended: waits until its losses and norm are known.  The update may follow in the next step.
 *
 * @param end     copied; NULL: all defaults
 * @param result  out, or NULL; its step_size is set.  `dropped`: another rank has dropped the step
 *
 * @return STRATA_E_INVAL     a micro-batch is missing or under way, no step is, or an argument is out of its range: nothing has
 *                            changed
 *         STRATA_E_NUMERICS  as strata_engine_step()
 *         STRATA_E_CONFIG    ranks have other rates, decays or betas for this step than rank 0: the engine has ended on all
 *                            of them
 *         otherwise as strata_engine_enter(): the step is over
 *
 * Ranks   collective.
 * Thread  the second step that trains makes the bounds of the engine's plan again, by the times that layers took: no call on the
 *         plan meanwhile.
 */
STRATA_API strata_status strata_engine_end(struct strata_engine *engine, const struct strata_layers_end *end,
                                           struct strata_step *result);

/**
 * End a step wherever it is: the rest of it runs without the caller, its gradients are discarded, weights and state stay as they
 * were, and the step counts as a skipped one (not against strata.max_skipped, nor for the loss scale).
 *
 * @param result  out, or NULL; its step_size is set: dropped is true, as skipped is unless it was an evaluation; loss is NaN
 *
 * @return STRATA_E_INVAL  no step is under way; or updates are made in backward, where nothing can be dropped (an evaluation can)
 *         otherwise as strata_engine_enter(): the step is over
 *
 * Ranks   where one rank drops a step the others end it, and it counts as dropped on all of them.
 */
STRATA_API strata_status strata_engine_drop(struct strata_engine *engine, struct strata_step *result);

#ifdef __cplusplus
}
#endif
#endif
