/* strata/engine.h - training: running a plan.
 *
 *     strata_config_open(&config, &config_opts);          reads DeepSpeed's JSON
 *     strata_model_open(&model, config, &model_opts);     a preset or a directory
 *     strata_data_open(&data, model, paths, 1);           token files
 *     strata_plan_make(&plan, model, NULL);               fits, or says what is missing
 *     strata_export_open(&out, model, "trained", NULL);   reserves room for the result before hours of work
 *     strata_engine_create(&engine, plan, NULL);          takes memory and disk space
 *     strata_engine_load(engine);                         the weights
 *     for (step = 0; step < steps; step++) {
 *         strata_data_read(data, STRATA_DATA_SHUFFLED, seed, step * sequences, sequences, tokens, targets, NULL);
 *         strata_engine_step(engine, tokens, targets, NULL, &result);
 *     }
 *     strata_engine_export(engine, out);
 *     strata_engine_destroy(engine);
 *
 * docs/examples/train.c is this as a complete program; docs/api.md is the guide.
 *
 * Order   create, load, then any other call. A call out of order returns STRATA_E_INVAL and changes nothing.
 * Thread  One call at a time on one handle, from any thread; only strata_engine_cancel() may be called at any time. A call on an
 *         engine while another is in progress, from another thread or from the model's progress function, returns STRATA_E_BUSY
 *         and changes nothing. Engines are independent, each with threads of its own; running two at once is slower than one
 *         after the other.
 * Fork    A child of fork() has the memory of an engine, but none of its threads: every call on its parent's engine returns
 *         STRATA_E_INVAL, and strata_engine_destroy() does nothing. It may open a model and create an engine of its own, if no
 *         other thread was in the library at the fork; a parent that uses the GPU should fork only to exec.  As long as a child
 *         lives without exec, the parent's swap files take their space, also when its engine is destroyed; and what a parent that
 *         was killed has left counts as a live run's.
 * Errors  A call that fails while the engine runs (I/O, numerics, a cancel) ends it: transfers drain, the sentence is in
 *         strata_last_error(), further calls return the same status, and the engine can only be destroyed (and asked by
 *         strata_engine_get_info()). Where a function says that nothing has run, the engine stays usable.
 * Signals The library handles none; strata/strata.h says what a program that handles signals must do for the library's threads.
 * Exit    A process that ends without strata_engine_destroy() or strata_abandon() leaves swap files behind; the next run
 *         removes them. */
#ifndef STRATA_ENGINE_H
#define STRATA_ENGINE_H

#include "strata/data.h"
#include "strata/plan.h"
#include "strata/status.h"
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_engine;
struct strata_export; /**< a directory that a model will be written to */

/** Options of an engine.  Begin with STRATA_ENGINE_OPTS_INIT, or pass NULL. */
struct strata_engine_opts {
    size_t opts_size;         /**< sizeof(struct strata_engine_opts) */
    uint32_t trace_steps;     /**< record what ran and when in at most this many first steps; 0: nothing */
    uint32_t fake_latency_us; /**< I/O method "fake", for tests: largest latency of a transfer */
    uint64_t fake_seed;       /**< the same: determines the order in which transfers end */
    bool trace_ops;           /**< with trace_steps: also every call of the device's ops, by the device's own clock */
    bool overwrite;           /**< checkpoints that have the names of this run's are replaced */
    /** A drive has been given up (strata.io_deadline), but the kernel does not let go of the memory that it reads or writes, so
     * that no call on the engine can return.  Called once, on a thread of the engine; it may end the process.  NULL: they wait
     * on. */
    void (*hangs)(void *hangs_ctx, const char *sentence);
    void *hangs_ctx;
};
#define STRATA_ENGINE_OPTS_INIT STRATA_INIT(strata_engine_opts, opts_size)

/**
 * Allocate all memory and disk space that the plan names, and start the threads. Later only libraries allocate, inside
 * their calls: oneDNN makes the code of a matmul at the first use of its shape, in the first steps and evaluations. Memory that
 * is refused there ends the call with STRATA_E_NOMEM if oneDNN says so.
 *
 * @param engine  out, returned: destroyed by strata_engine_destroy()
 * @param plan    shared: may be destroyed from here on.  One engine at a time for a model
 * @param opts    copied; NULL: all defaults
 *
 * @return STRATA_E_INVAL       an argument is NULL, the plan does not fit or was made for another use (STRATA_USE_PLAN),
 *                              the model has an engine, or opts_size is another one
 *         STRATA_E_NOFIT       a disk lacks the space
 *         STRATA_E_NOMEM       the system does not give the memory, or no thread
 *         STRATA_E_DEVICE_OOM  the device does not give the memory
 *         STRATA_E_INPUT       a directory for swap files is missing, or is none; with strata.save ranks do not share that
 *                              directory
 *         STRATA_E_CONFIG      ranks that save have other numbers of directories for swap files
 *         STRATA_E_NOSYS       this machine lacks an I/O method or instruction set that the configuration names
 *         STRATA_E_IO          the drive, or a directory for swap files that cannot be written
 */
STRATA_API strata_status strata_engine_create(struct strata_engine **engine, struct strata_plan *plan,
                                              const struct strata_engine_opts *opts);

/**
 * Read the model's weights, or draw a preset's from its seed, to where the plan places them; optimizer state becomes zero. A
 * second call starts a new run, from the model's files as they are then: whether they are those of the first call is not
 * compared, since an export may have replaced them.  It runs no update: the run before ends with its save made, or none.
 *
 * @return STRATA_E_INVAL      engine is NULL, or a save waits for the next step: strata_engine_saved() with `wait` makes it
 *                             before.  Nothing has changed
 *         STRATA_E_INPUT      a file of the model is damaged, or changed since the model was opened
 *         STRATA_E_CANCELLED  the model's progress function or strata_engine_cancel() requested it
 *         STRATA_E_IO, STRATA_E_NOSPC, STRATA_E_NOMEM, STRATA_E_NUMERICS
 *         After a failure nothing is loaded.
 */
STRATA_API strata_status strata_engine_load(struct strata_engine *engine);

/** The result of a step.  Its time is forward_ms + backward_ms + stall_ms + other_ms. */
struct strata_step {
    size_t step_size;            /**< sizeof(struct strata_step), set by the caller */
    double loss;                 /**< mean over the targets that are not below 0; NaN without any, a step whose gradient is 0.
                                      With strata.router_aux_loss_coef: that times the sum of the micro-batches' auxiliary losses
                                      is in it */
    double grad_norm;            /**< of all gradients, before clipping */
    double lr, loss_scale;       /**< of this step; lr is 0 if it was skipped, loss_scale is 1 except with fp16 */
    bool skipped;                /**< gradients were not finite, or the step was dropped: the weights stayed the same */
    bool dropped;                /**< layers of others: strata_engine_drop() by any rank */
    uint64_t weights_overflowed; /**< 16-bit weights that rounded to infinity in the last update */
    uint64_t tokens;
    double seconds;
    double forward_ms, backward_ms; /**< of all micro-batches, whatever their order */
    double stall_ms;                /**< compute waited */
    double other_ms;
    double busy_ms[STRATA_LANE_COUNT];       /**< time that each lane worked */
    double lane_stall_ms[STRATA_LANE_COUNT]; /**< time that compute waited for it */
    uint32_t stalled_by;                     /**< lane that compute waited for longest; STRATA_LANE_COUNT: it did not wait */
    uint64_t upload_bytes, download_bytes;   /**< moved between host and device */
    uint64_t read_bytes, write_bytes;        /**< from and to NVMe */
    uint64_t comm_bytes;                     /**< received of other ranks */
    uint32_t requests; /**< bits of strata_engine_request() by any rank: every rank gets them from the same step */
    double aux_loss;   /**< auxiliary loss of the experts, mean over the micro-batches with tokens; NaN: the loss has none */
    double token_loss; /**< loss without it */
    /* Of a plan with early updates (strata.update: speculative). */
    bool early_made;               /**< this step has updated pages early */
    bool early_kept, early_redone; /**< what the step before it has updated early came into force, or was updated again */
    uint64_t redone_bytes;         /**< of weights and state that were updated again */
    uint64_t wasted_bytes;         /**< that their first updates had written to NVMe */
};
#define STRATA_STEP_INIT STRATA_INIT(strata_step, step_size)

/** Name of a lane: "compute", "upload", "read_state", ...; NULL past the last.  Static. */
STRATA_API const char *strata_lane_name(uint32_t lane);

/**
 * Set the learning rate of the following steps. It replaces the configuration's schedule, which applies until this is called
 * and again after the next strata_engine_load().
 *
 * @param lr  0..1e3
 *
 * @return STRATA_E_INVAL  engine is NULL, nothing is loaded, the model was not opened for training, or lr is outside its range:
 *                         the old one stays
 *         the status that ended the engine
 */
STRATA_API strata_status strata_engine_set_lr(struct strata_engine *engine, double lr);

/**
 * One optimizer step.
 *
 * @param tokens   [step_sequences * seq_len] int32, micro-batch by micro-batch; borrowed during the call
 * @param targets  the same shape: the token that follows each; below 0: not counted; STRATA_TARGET_PADDING: nor is the row a token
 * @param positions  the same shape: each token's place in its document, 0 where one begins and one more than before elsewhere;
 *                 attention does not look across that border.  NULL: each sequence is one document.  Only for models opened with
 *                 strata_model_opts.documents
 * @param result   out, or NULL; its step_size is set
 *
 * @return STRATA_E_INPUT      a token or target outside the vocabulary, or an impossible position: nothing has run
 *         STRATA_E_INVAL      an argument is NULL, nothing is loaded, or the model was not opened for training; or the schedule
 *                             is as long as the run, and neither strata_config_opts.max_steps nor strata_model_set_steps() says
 *                             how long that is, nor strata_engine_set_lr() what the rate is: nothing has run
 *         STRATA_E_NUMERICS   gradients that are not finite when updates may not be skipped, or too many skipped steps in a row
 *         STRATA_E_CANCELLED  strata_engine_cancel()
 *         STRATA_E_IO, STRATA_E_TRUNC, STRATA_E_NOSPC  the drive; the sentence names file and offset
 *         STRATA_E_CORRUPT    data read from the drive is not what was written
 *         STRATA_E_NOMEM, STRATA_E_DEVICE_OOM, STRATA_E_NOSYS, STRATA_E_INTERNAL  the device's library failed
 *
 * Numerics  the same bits whatever the budgets, tiers, threads and I/O method.
 */
STRATA_API strata_status strata_engine_step(struct strata_engine *engine, const int32_t *tokens, const int32_t *targets,
                                            const int32_t *positions, struct strata_step *result);

/** What a step that is fed asks for (strata_engine_step_fed()). */
enum strata_turn_kind {
    STRATA_TURN_FORWARD = 0,  /**< the next micro-batch */
    STRATA_TURN_BACKWARD = 1, /**< what its loss counts: forward has been computed, backward follows */
    STRATA_TURN_END = 2,      /**< the rates of the update: all micro-batches have been computed */
};
struct strata_turn {
    enum strata_turn_kind kind;
    uint32_t micro;
    int32_t *tokens, *targets, *positions; /**< FORWARD: [micro_batch * seq_len] to be filled, as strata_engine_step() takes them;
                                                positions is NULL unless the model was opened with documents */
    double loss;                           /**< BACKWARD: the micro-batch's, summed over its targets */
    double weight; /**< BACKWARD, out: what this sum is multiplied by in what the step minimises.  0 unless set */
    double lr, weight_decay, beta1, beta2; /**< END, out: of this step's update; as the configuration says unless set.  beta1 is
                                                SGD's momentum */
    bool drop;                             /**< END, out: no update is made; the step counts as a skipped one */
};

/** Answers a turn, in its own time: the engine waits.  It may call no function of the library but strata_engine_cancel().
 *
 *  @return other than STRATA_OK: the engine ends with it
 *
 *  Thread  the one that called strata_engine_step_fed(). */
typedef strata_status strata_feed_fn(void *ctx, struct strata_turn *turn);

/**
 * One optimizer step whose micro-batches come one by one, for programs that need a micro-batch's loss before they have the next,
 * or that weight them: strata_engine_step() otherwise.  A micro-batch of no targets and weight 0 adds nothing.
 *
 * @param feed    called for each micro-batch in turn, FORWARD and then BACKWARD, and with END
 * @param result  out, or NULL; its step_size is set.  loss is the mean over all targets
 *
 * @return STRATA_E_INVAL  feed is NULL; the plan takes micro-batches together (set strata.accumulation horizontal) or updates in
 *                         backward, has its lookup's table on NVMe and several micro-batches, several ranks, an auxiliary loss
 *                         of experts, or a device with queues: nothing has run
 *         STRATA_E_INPUT  a token, target or position as strata_engine_step() refuses it: the engine has ended
 *         otherwise as strata_engine_step()
 */
STRATA_API strata_status strata_engine_step_fed(struct strata_engine *engine, strata_feed_fn *feed, void *ctx,
                                                struct strata_step *result);

/**
 * Ask all ranks of a run for something after a step that is the same on each, such as to stop or to save. The bits mean what the
 * caller says; strata_step.requests gives them to every rank: those of this step, or where it has gone too far for that, of the
 * next one.  NULL is fine.
 *
 * Thread  any, at any time.
 */
STRATA_API void strata_engine_request(struct strata_engine *engine, uint32_t bits);

/**
 * Run updates that the schedule has deferred to the next step. Functions that read weights do so by themselves.
 *
 * @return as strata_engine_step()
 */
STRATA_API strata_status strata_engine_flush(struct strata_engine *engine);

/**
 * The same where only the weights are wanted from now on: optimizer state on NVMe is not written back. Evaluations, exports and
 * strata_engine_read_tensor() of weights may follow; strata_engine_step(), strata_engine_digest() and saves are STRATA_E_INVAL
 * until strata_engine_load().
 *
 * @return as strata_engine_step()
 */
STRATA_API strata_status strata_engine_end_training(struct strata_engine *engine);

/**
 * Run only forward over the sequences of a step; flushes first.
 *
 * @param tokens, targets, positions  as in strata_engine_step()
 * @param loss_sum         out: summed over targets that are not below 0
 * @param targets_seen     out: the number of those targets
 *
 * @return as strata_engine_step()
 */
STRATA_API strata_status strata_engine_eval(struct strata_engine *engine, const int32_t *tokens, const int32_t *targets,
                                            const int32_t *positions, double *loss_sum, uint64_t *targets_seen);

/** A model's loss on data. */
struct strata_eval {
    size_t eval_size;            /**< sizeof(struct strata_eval), set by the caller */
    double loss, perplexity;     /**< mean over targets, and e to it; NaN without any */
    double bits_per_byte;        /**< NaN: see strata_data_bits_per_byte() */
    uint64_t targets, sequences; /**< that were evaluated */
};
#define STRATA_EVAL_INIT STRATA_INIT(strata_eval, eval_size)

/**
 * Run forward over all sequences of the data, in order; flushes first.
 *
 * @param result  out; also filled after a failure, with what was evaluated by then
 *
 * @return STRATA_E_INVAL      an argument is NULL, nothing is loaded, or the data was opened for another length of sequences, or
 *                             has borders between documents, for which the model was not opened
 *         STRATA_E_CANCELLED  requested by the model's progress function (the engine stays usable) or by strata_engine_cancel()
 *                             (it does not)
 *         STRATA_E_NOMEM      no memory for the tokens of a step: nothing has run
 *         otherwise as strata_data_read() and strata_engine_eval()
 */
STRATA_API strata_status strata_engine_eval_data(struct strata_engine *engine, const struct strata_data *data,
                                                 struct strata_eval *result);

/**
 * Run forward over the next tokens of one sequence; the model must be opened with STRATA_USE_GENERATE.  Of several ranks all run
 * the same tokens.
 *
 * @param tokens    [count] int32; borrowed during the call
 * @param count     1..strata_model_info.seq_len
 * @param position  of the first one in the sequence: all tokens before it must have been given, in order, and position + count is
 *                  at most strata_model_info.cache_tokens.  A position that has been given goes back: what came from there on is
 *                  forgotten
 * @param logits    [vocab] f32, out: of the token after the last one
 *
 * @return STRATA_E_INVAL  an argument is NULL or out of range, a token before the position has not been given since
 *                         strata_engine_load() or is forgotten, nothing is loaded, or the model was opened for another use:
 *                         nothing has run
 *         STRATA_E_INPUT  a token outside the vocabulary: nothing has run
 *         otherwise as strata_engine_step()
 */
STRATA_API strata_status strata_engine_forward(struct strata_engine *engine, const int32_t *tokens, uint32_t count,
                                               uint32_t position, float *logits);

/**
 * Check whether the trained weights are worth keeping.
 *
 * @return STRATA_E_NUMERICS  every step was skipped, or the loss of the last one is not finite; the sentence says what to try
 *         STRATA_E_INVAL     engine is NULL, or nothing is loaded
 *         the status that ended the engine
 */
STRATA_API strata_status strata_engine_check(const struct strata_engine *engine);

/** Options of an export.  Begin with STRATA_EXPORT_OPTS_INIT, or pass NULL. */
struct strata_export_opts {
    size_t opts_size; /**< sizeof(struct strata_export_opts) */
    bool overwrite;   /**< replaces a model in the directory when the new one is complete; it may be the model that was opened */
};
#define STRATA_EXPORT_OPTS_INIT STRATA_INIT(strata_export_opts, opts_size)

/**
 * Whether a model could be written to a directory, as far as that is to be seen without making anything:
 * strata_export_open() begins with the same check, or, of a model with an adapter, with that of an adapter's two files.
 *
 * @return STRATA_E_INVAL  dir is NULL, or opts_size is another one
 *         STRATA_E_INPUT  it holds a model and `overwrite` is false, its name is empty or too long, or something that is no
 *                         directory, or that cannot be written, is in its way
 *         STRATA_E_NOMEM, STRATA_E_IO
 */
STRATA_API strata_status strata_export_check(const char *dir, const struct strata_export_opts *opts);

/** Whether another output may have the name `path` beside a model that is exported to `dir`: where it would be read as the
 *  model's weights, or removed, it may not.
 *
 *  @return STRATA_E_INVAL  an argument is NULL
 *          STRATA_E_INPUT  it may not; the sentence names both */
STRATA_API strata_status strata_export_check_apart(const char *dir, const char *path);

/**
 * Create a directory's files under other names and allocate their space, so that a model that cannot be written is found before a
 * long run.
 *
 * @param out    out, returned: given to strata_engine_export(), or dropped by strata_export_abort()
 * @param model  shared: may be closed from here on.  The other files of a model's directory (tokenizer, licence) are copied
 * @param dir    copied; created with all parents that are missing, which are removed again if the export is dropped
 *
 * @return STRATA_E_INVAL  an argument is NULL, or opts_size is another one
 *         STRATA_E_INPUT  as strata_export_check(), or another run writes there
 *         STRATA_E_NOFIT  the disk lacks the space
 *         STRATA_E_NOMEM, STRATA_E_IO
 */
STRATA_API strata_status strata_export_open(struct strata_export **out, struct strata_model *model, const char *dir,
                                            const struct strata_export_opts *opts);

/**
 * Write the weights in Hugging Face's format; flushes first.  All files appear together, or none.
 *
 * @param out  taken, whatever is returned but STRATA_E_BUSY; of several ranks only rank 0 writes, the others give NULL
 *
 * @return STRATA_E_NUMERICS  a weight is not finite: nothing is written.  The sentence names the tensor
 *         STRATA_E_INVAL     an argument is NULL, nothing is loaded, or `out` is another model's
 *         STRATA_E_INPUT     a file took the name of one of them meanwhile
 *         STRATA_E_IO, STRATA_E_NOSPC, STRATA_E_INPUT  what failed.  Weights that are on the disk and cannot take their name stay
 *                                                      beside it, and the sentence says where; so it does where the model is
 *                                                      whole and a power cut may take it.  A model that was to be replaced is
 *                                                      still whole, or the new one is
 *         After a failure the engine still has the weights if strata_engine_digest() gives them: another strata_export_open(),
 *         to a directory that works, and another strata_engine_export() may follow.
 */
STRATA_API strata_status strata_engine_export(struct strata_engine *engine, struct strata_export *out);

/** Remove the unfinished files; NULL is fine.  In a child of fork() the parent's files stay. */
STRATA_API void strata_export_abort(struct strata_export *out);

/**
 * Digests of weights and of optimizer state, XXH3-128, in parameter order wherever they are stored; flushes first.
 *
 * @param weights, state  [33] out: 32 hex digits and a NUL; the digest of the weights is the one that `strata digest DIR` prints
 *                        for their export
 *
 * @return STRATA_E_INVAL  an argument is NULL, or nothing is loaded
 *         otherwise as strata_engine_step()
 */
STRATA_API strata_status strata_engine_digest(struct strata_engine *engine, char weights[33], char state[33]);

/** What an engine runs on, and what it has done. */
struct strata_engine_info {
    size_t info_size;                      /**< sizeof(struct strata_engine_info), set by the caller */
    char device[16], isa[16];              /**< "cpu", "cuda"; instruction set of the host's kernels */
    char io_method[16];                    /**< "uring", "aio", "threads", "fake"; "none": nothing on NVMe */
    bool io_direct, io_registered;         /**< past the page cache; buffers registered with the kernel */
    uint32_t workers;                      /**< threads that compute and update on the host */
    uint64_t steps, skipped_steps;         /**< updates made or pending; updates skipped */
    uint64_t upload_bytes, download_bytes; /**< moved between host and device since creation */
    uint64_t read_bytes, write_bytes;      /**< from and to NVMe */
    uint64_t comm_bytes;                   /**< received of other ranks since creation */
    uint64_t sequences;                    /**< of the data that steps have taken, skipped ones too: where the next begins */
    char run[17];                          /**< of the run, which its checkpoints have, once it is loaded; "": it saves none */
    double loss_scale;                     /**< of the next step; 1 except with fp16 */
    uint64_t early_made;                   /**< steps since the weights were loaded that updated pages early, */
    uint64_t early_kept, early_redone;     /**< of these kept, or made again, by a flush or a save, too; */
    uint64_t redone_bytes, wasted_bytes;   /**< as in struct strata_step */
};
#define STRATA_ENGINE_INFO_INIT STRATA_INIT(strata_engine_info, info_size)

/** Fill `info`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or info_size is another one */
STRATA_API strata_status strata_engine_get_info(struct strata_engine *engine, struct strata_engine_info *info);

/**
 * What runs, for programs: the first line of a run's metrics (docs/json.md), with its model, configuration, plan, machine and
 * engine.
 *
 * @param steps  of the run; 0: nobody knows
 * @param json   out, borrowed until the next call or the engine's end
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_engine_json(struct strata_engine *engine, uint64_t steps, const char **json);

/**
 * A step of this engine as a line of a run's metrics (docs/json.md), behind that of strata_engine_json().  What the engine does not
 * know is null: epochs, evaluations, source bytes and memory pressure, and of a model of layers its tokens.
 *
 * @param step  how the last step went, not a dropped one; each once, since loss_mean20 is of those that were asked for
 * @param json  out, borrowed until the next call, also of strata_engine_json(), or the engine's end
 *
 * @return STRATA_E_INVAL  an argument is NULL, or step_size is another one
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_engine_step_json(struct strata_engine *engine, const struct strata_step *step, const char **json);

/**
 * Write what the first steps did, op by op, as a Chrome trace (docs/trace.md); drains I/O first.
 *
 * @param file  is written to and stays open; whether all of it was is for the caller to ask (ferror())
 *
 * @return STRATA_E_INVAL  an argument is NULL, or the engine was created without strata_engine_opts.trace_steps
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_engine_write_trace(struct strata_engine *engine, FILE *file);

/** Make the call in progress, or the next one, end with STRATA_E_CANCELLED; after that the engine can only be destroyed.  A
 * step's wait for another rank ends, too; what ranks exchange between steps (a save, digests, values of tensors) comes to its end
 * first.
 *
 *  Thread  any, at any time between creation and destruction, and in signal handlers. */
STRATA_API void strata_engine_cancel(struct strata_engine *engine);

/** Drain I/O, remove swap files, end threads, free; NULL is fine. While another call on the engine is in progress, and in a child
 *  of fork(), it does nothing; the first is logged as an error. */
STRATA_API void strata_engine_destroy(struct strata_engine *engine);

/** Remove the swap files and unfinished exports of all engines of this process (not of its parent), for one that ends at once:
 *  call _exit() right after it, without any other call of the library.
 *
 *  Thread  any, while other threads are in the library.  Not in a signal handler: it waits a few seconds at most for files
 *          that are being created. */
STRATA_API void strata_abandon(void);

#ifdef __cplusplus
}
#endif
#endif
