/* offload/engine/engine.h - runs a program on real lanes: one thread for I/O, the workers for the host's part, the device's
 * queues.
 *
 * create() allocates all memory and disk space; a step allocates nothing.  All calls come from one thread.  A failed op poisons
 * the engine: in-flight I/O drains, the device's queues finish, the step returns the error, and further steps return it again. */
#ifndef OFFLOAD_ENGINE_ENGINE_H
#define OFFLOAD_ENGINE_ENGINE_H

#include "core/system/file.h"
#include "nvme/swap/swap.h"
#include "offload/compute.h"
#include "offload/optim/loss_scale.h"
#include "offload/optim/optimizer.h"
#include "offload/program/program.h"

struct st_engine;
struct st_comm;
struct st_extents;
struct st_train_state;
struct st_op_times;
struct st_topology;
struct st_trace;

/* How gradients become updates. */
struct st_training_opts {
    struct st_optimizer optimizer;  /* its lr, betas and momentum apply until st_engine_set_...() changes them */
    struct st_loss_scaling scaling; /* fp16 only */
    double clip_norm;               /* gradients with a larger norm are scaled down to it; 0: off */
    bool skip_overflow;             /* skip the update if a gradient is not finite; always so with fp16 */
    uint32_t max_skipped;           /* this many steps in a row without an update or a finite loss end a run; 0: no limit */
};

/* Pointers are borrowed during create unless stated otherwise. */
#define ST_EARLY_MOST 0.2 /* where nobody knows what a step that is made again costs */

struct st_engine_opts {
    const struct st_program *program; /* borrowed; outlives the engine */
    struct st_compute compute;        /* the model */
    const char *const *layer_names;   /* of a caller's layers in order, for sentences; borrowed until destroy; NULL: by number */
    struct st_training_opts training;
    const struct st_topology *topology;  /* may be NULL */
    const char *isa;                     /* kernels: "scalar", "avx2", "avx512", "neon"; NULL or "auto": the best */
    enum st_fetch fetch;                 /* of the host's updates */
    uint32_t threads;                    /* workers, at most as many as the workload was made for; 0: that number */
    const char *device;                  /* "cpu", "paced", "cuda", "cuda:N"; NULL: "cpu" */
    const struct st_machine *pace;       /* paced: the machine that it imitates */
    double upload_limit, download_limit; /* bytes per second, cpu device; 0: none */
    uint64_t device_deadline_ns;         /* cuda: see st_device_opts.deadline_ns */
    struct st_nvme_opts nvme;            /* read if the program uses NVMe */
    struct st_trace *trace;              /* borrowed until destroy; NULL: off */
    struct st_op_times *op_times;        /* the same: times every call of the device's ops */
    double early_most;                   /* see st_engine_set_early(); 0: ST_EARLY_MOST */
    /* For a program of several ranks, borrowed until destroy: for host memory, and for the device's arena (the same comm if that
     * is host memory). */
    struct st_comm *comm, *device_comm;
};

/* Initial values, see model/model.h: values [first, first+count) of a page as fp32 in page layout. */
typedef strata_status st_engine_fill_fn(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out);
/* Receives the weight plane: elements [first, first + count) of a page, in the format of the group that they lie in. */
typedef strata_status st_engine_sink_fn(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight);

/* Of a run so far: steps that made early updates, of these came into force, or were made again, by a flush or a save, too; what
 * that cost. */
struct st_early_counts {
    uint64_t made, kept, redone, redone_bytes, wasted_bytes;
};

struct st_step_result {
    double loss;       /* token_loss, and aux_loss_coef times the sum of the auxiliary losses */
    double token_loss; /* mean over the targets */
    double aux_loss;   /* mean over the micro-batches; NaN: the workload has none */
    double grad_norm, lr, loss_scale;
    bool skipped;                /* a gradient was not finite, or the step was dropped: no update */
    bool dropped;                /* by the caller of a rank (offload/engine/caller.h) */
    uint64_t weights_overflowed; /* bf16 weights that rounded to infinity in the last applied update */
    uint64_t tokens;
    double seconds;
    double forward_ms, backward_ms, stall_ms, other_ms; /* these add up to `seconds` */
    double busy_ms[STRATA_LANE_COUNT],
        lane_stall_ms[STRATA_LANE_COUNT]; /* stall: waiting for that lane with nothing else to run */
    struct st_traffic bytes;              /* counted where they move */
    enum strata_lane stalled_by;          /* lane with the largest stall; COUNT: none */
    bool early_made;                      /* the step has updated pages early */
    bool early_kept, early_redone;        /* what the step before it has: it came into force, or was made again */
    uint64_t redone_bytes;                /* of state and weights that were updated again */
    uint64_t wasted_bytes;                /* that their first updates had written to NVMe */
    uint64_t requests;                    /* what the ranks had asked for by the step's end, see st_engine_request() */
};

/** Any thread: ask for something, as bits that mean nothing to the engine.  A later step's result has those of all ranks, the
 * same on each, so that all can do it after the same step. */
void st_engine_request(struct st_engine *eng, uint64_t bits);

strata_status st_engine_create(struct st_engine **out, const struct st_engine_opts *opts);
/** Drains I/O, unlinks swap files, frees all. NULL is fine. */
void st_engine_destroy(struct st_engine *eng);

/** Fill weights from `fill` (rounded or split as the program says) directly on each tier, and zero the moments.  May be called
 *  again: the next step is then the first of a new run.  Several workers call `fill` at once, each for a tile or less.
 *  E_CANCELLED: st_engine_cancel(), within the time that a chunk takes. */
strata_status st_engine_load(struct st_engine *eng, st_engine_fill_fn *fill, void *ctx);

/* What a checkpoint gives to a run that resumes from it; everything is borrowed during the call. */
struct st_resume_opts {
    const struct st_extents *extents;
    const struct st_train_state *train;
    const uint32_t *volumes; /* [ST_SPACE_COUNT] of st_engine_swap(), the checkpoint's, attached and read only */
    /* For a checkpoint of as many parts as ranks resume it: the volumes of this rank's part only, and the bytes of a part's
     * spaces.  NULL: it has one part, or is copied. */
    const uint32_t *own;
    const uint64_t *part_bytes;
    bool rescales; /* the loss scale begins at this run's first one, which another has been asked for than that of the checkpoint
                    */
    bool copies;   /* what lies on NVMe is copied, too, however alike both runs save */
    strata_status (*progress)(void *ctx, uint64_t elems); /* elements of planes that are in place now; NULL: nobody asks */
    void *ctx;
};

/** Put a checkpoint's planes where the program wants them, and go on from its state, instead of a load.  Pages and groups must be
 *  the checkpoint's (the caller has compared them).  Where both runs save and cut their planes alike, what lies on NVMe is not
 *  copied (without `copies`): it is read from the checkpoint's volumes until an update writes it, so they must stay attached.
 *  E_CORRUPT: a tile differs from its checksum; E_CANCELLED; E_IO, E_NOMEM.  After E_CORRUPT another checkpoint may be taken,
 * after another failure the engine can only be destroyed. */
strata_status st_engine_resume(struct st_engine *eng, const struct st_resume_opts *opts);
/** Read what st_engine_resume() would, and what it would adopt, and compare the sums: nothing changes, and after a failure of its
 *  own the engine goes on (st_engine_ended() says so).  Collective: one rank's failure is everyone's.  Statuses as above. */
strata_status st_engine_check_resume(struct st_engine *eng, const struct st_resume_opts *opts);
/** Whether the last resume left on NVMe what lies there. */
bool st_engine_adopted(const struct st_engine *eng);

/** Bring all that the run has learnt into the swap's set in use, and list what lies where (freed by st_extents_fini()); flushes
 *  first.  What lives on NVMe stays where the last update wrote it: where none has followed the last save, which must have failed
 *  then, the set of that one is in use again.  For a program with sets.  After a failure of its own writes or allocations (E_IO,
 * E_NOSPC, E_NOMEM) the engine goes on: st_engine_ended() says so. */
strata_status st_engine_save(struct st_engine *eng, struct st_extents *out);
/** The set that updates write, and after st_engine_save() that holds everything. */
uint32_t st_engine_set(const struct st_engine *eng);
/** From the next update on, write to another set: the one in use stays as it is. */
void st_engine_use_set(struct st_engine *eng, uint32_t set);
const struct st_train_state *st_engine_train_state(const struct st_engine *eng);
/** The run's swap; NULL: it has none. */
struct st_swap *st_engine_swap(const struct st_engine *eng);
/** The same for what attaches a checkpoint: a run without one gets one that only reads.  As st_swap_open(). */
strata_status st_engine_reader(struct st_engine *eng, struct st_swap **out);

/** The same answer for all ranks: OK if all give OK; else a failure of one, its own for who has one.  Collective; with one rank
 *  `st`.  @param what  for sentences of the comm */
strata_status st_engine_agree(struct st_engine *eng, strata_status st, const char *what);

/** Every rank's `bytes` bytes, in rank order; with one rank its own.  Collective, between steps.  @param all  [ranks][bytes], out
 */
strata_status st_engine_gather(struct st_engine *eng, const void *mine, uint64_t bytes, void *all, const char *what);

/** Set the learning rate of the updates of all following steps.  The engine has no schedule: the caller evaluates one before each
 * step, for step number st_engine_steps() + 1 (offload/optim/lr_schedule.h). */
void st_engine_set_lr(struct st_engine *eng, double lr);
/** Set the betas of the same updates; SGD: beta1 is the momentum.  Adam's bias correction uses their powers by the step's
 *  number. */
void st_engine_set_betas(struct st_engine *eng, double beta1, double beta2);
/** The part of the plan's host memory that the device could not pin: see st_device_ops.pin and st_rates_stage(). */
const struct st_staged *st_engine_staged(const struct st_engine *eng);
/** Optimizer steps of this run that were applied or whose update is pending; skipped ones do not count. */
uint64_t st_engine_steps(const struct st_engine *eng);

/** One optimizer step: tokens and targets are [grad_accum][micro_batch * seq] int32, target < 0 is ignored; borrowed until
 *  return.  E_NUMERICS: gradients that are not finite when updates may not be skipped, or max_skipped steps in a row without an
 *  update or a finite loss.  E_INPUT: a token or target outside the vocabulary; nothing has run, and the engine stays usable. */
strata_status st_engine_step(struct st_engine *eng, const int32_t *tokens, const int32_t *targets, const int32_t *positions,
                             struct st_step_result *result);
/* What a step that is fed asks for: struct strata_turn of strata/engine.h, which says what is in and out. */
struct st_turn {
    enum st_turn_kind { ST_TURN_FORWARD, ST_TURN_BACKWARD, ST_TURN_END } kind;
    uint32_t micro;
    int32_t *tokens, *targets, *positions;
    double loss, weight, lr, weight_decay, beta1, beta2;
    bool drop;
};
typedef strata_status st_feed_fn(void *ctx, struct st_turn *turn);
/** Feed the following steps, whose tokens, targets and positions are then NULL; NULL: no more.  E_INVAL: this program, or device,
 *  takes whole steps. */
strata_status st_engine_feed(struct st_engine *eng, st_feed_fn *feed, void *ctx);
/* What a step has saved. */
struct st_saved {
    strata_status status; /* OK, or why nothing is saved: then the two others are empty, and the sentence is the last error */
    struct st_extents *extents;
    struct st_train_state *train; /* of the run that is saved */
};
/** The same step, whose updates all go to the swap's set in use, and what they change in memory, too: while the step computes,
 *  nothing is flushed.  Gated, what is saved is the run before this step, whose update it makes; else the run after it.  After it
 *  the caller names another set.  For a program with sets; gated: with an update pending (else st_engine_save() has nothing to
 *  wait for).  `saved`: out, its pointers are the caller's structs. */
strata_status st_engine_step_saving(struct st_engine *eng, const int32_t *tokens, const int32_t *targets,
                                    const int32_t *positions, struct st_step_result *result, struct st_saved *saved);
/** Between steps: forget what the last one has updated early; the next one makes those updates again, to the same bits.  Where a
 *  step does so by itself, it was clipped or skipped. */
void st_engine_early_drop(struct st_engine *eng);
/** Between steps: the following steps make updates early where st_early_chance() is at most this; below 0: none does.  It changes
 *  no bits. */
void st_engine_set_early(struct st_engine *eng, double most);
/** Run pending updates (epilogue).  result may be NULL. */
strata_status st_engine_flush(struct st_engine *eng, struct st_step_result *result);
/** The same for the last time: state on NVMe is not written back, so that neither steps nor saves nor digests may follow until
 *  weights are loaded again; the caller sees to that. */
strata_status st_engine_end_training(struct st_engine *eng);
/** Whether state is whole: st_engine_end_training() did not come after the last load. */
bool st_engine_trains(const struct st_engine *eng);
/** The status and sentence of the failure or cancel that ended the engine; OK: it goes on. */
strata_status st_engine_ended(const struct st_engine *eng);
/** The same without a sentence: after a call that failed, whether it was only refused. */
bool st_engine_goes_on(const struct st_engine *eng);
/** E_NUMERICS: every step was skipped, or the last one's loss is not finite; the sentence says what to try. */
strata_status st_engine_learnt(const struct st_engine *eng);
/** Run only forward over one step's micro-batches; flushes first.  The losses of all ranks' micro-batches are added to *loss_sum
 * one by one, so that what is added up does not depend on how many a step has; *targets_seen: out, their targets.  E_INPUT as in
 * a step. */
strata_status st_engine_eval(struct st_engine *eng, const int32_t *tokens, const int32_t *targets, const int32_t *positions,
                             double *loss_sum, uint64_t *targets_seen);

/** Forward over the next `count` (1..workload.seq) tokens of one sequence, the first at `position`; a program with
 *  workload.generate and every block's internals kept.  logits: out, [vocab] f32, of the last token; host.  The earlier tokens
 * are in the cache; positions beyond it are a bug in the caller (the model asserts). E_INVAL: another program, more tokens than
 * planned for.  E_INPUT: a token outside the vocabulary. */
strata_status st_engine_forward(struct st_engine *eng, const int32_t *tokens, uint32_t count, uint32_t position, float *logits);

/** Write the weight plane page by page, group by group; flushes first.  Collective, as the digests are: rank 0's sink gets all of
 *  it, and no other's is called.  What fails on one rank fails on all. */
strata_status st_engine_export(struct st_engine *eng, st_engine_sink_fn *sink, void *ctx);
/** Digests over weight and state planes in parameter order (flushes first): 32 hex digits each, the same on every rank and for
 *  every number of ranks. */
strata_status st_engine_digest(struct st_engine *eng, char weights[33], char state[33]);

/* A part of a page, which lies in one group; not of NF4, nor moments of 8 bits. */
struct st_values {
    uint32_t page;
    enum st_plane plane; /* WEIGHT: the fp32 masters where there are any; MOMENT1, MOMENT2: of a trained group */
    uint64_t first, elems;
    strata_dtype dtype; /* of the caller's array */
};
/** Read or write it; flushes first.  Collective, all ranks alike; a read gives all of it to each.  What is written is rounded as
 * a load rounds it.  E_INVAL: what is frozen is in a checkpoint of this run already. */
strata_status st_engine_read_values(struct st_engine *eng, const struct st_values *what, void *out);
strata_status st_engine_write_values(struct st_engine *eng, const struct st_values *what, const void *in);

/** Create a recorder for the first steps_max steps of this program, or fewer if more would take over 8 MiB (but at least one).
 *  calls: with room for those of the device's ops, too. */
strata_status st_engine_trace_create(struct st_trace **out, const struct st_program *program, uint32_t steps_max, bool calls);
/** Drain I/O and write the records as a Chrome trace: see core/trace/trace.h. */
strata_status st_engine_trace_write(struct st_engine *eng, FILE *file);

/** Make the current step return E_CANCELLED at the next op; async-signal-safe. */
void st_engine_cancel(struct st_engine *eng);

struct st_engine_info {
    char io_method[16], isa[16], device[16];
    bool io_direct, io_registered;
    uint32_t workers;
    uint64_t steps_done, skipped_steps; /* optimizer steps applied or pending; skipped */
    uint64_t sequences_done;            /* sequences of the data that all steps used */
    double loss_scale;                  /* of the next step */
    struct st_traffic moved;            /* bytes moved by steps, flushes and evaluations: copies as made, disk as completed */
    struct st_early_counts early;
};
void st_engine_info(struct st_engine *eng, struct st_engine_info *out);

#endif
