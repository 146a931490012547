/* offload/engine/engine_internal.h - the engine's internal state, for engine*.c only.
 *
 * Threads.  The swap's thread completes transfers: it finishes the op (dispatch.h), then wakes the caller through `wake`.  On a
 * device whose calls are done when they return, the caller's thread runs every op of the compute, upload, download and update
 * lanes itself, one at a time across the workers.  On one with queues of its own (device.h, notify) the caller only hands ops
 * out: to the device's queues, and the host's work to one host thread, the only one that runs the workers then.  Both complete
 * ops in the same way as the swap's thread (engine_async.c). */
#ifndef OFFLOAD_ENGINE_ENGINE_INTERNAL_H
#define OFFLOAD_ENGINE_ENGINE_INTERNAL_H

#include "core/base/error.h"
#include "core/system/arena.h"
#include "core/system/workers.h"
#include "core/trace/trace.h"
#include "offload/comm/comm.h"
#include "offload/device/device_timed.h"
#include "offload/engine/early_chance.h"
#include "offload/engine/engine.h"
#include "offload/engine/train_state.h"
#include "offload/program/dispatch.h"
#include "offload/program/tables.h"

#include <pthread.h>
#include <stdatomic.h>

_Static_assert(sizeof(_Atomic bool) == 1, "planned");

/* A transfer of one I/O op, or a synchronous one. */
struct st_engine_io {
    struct st_transfer transfer;
    struct st_engine *engine;
    uint32_t op;                    /* ST_NO_OP: synchronous */
    struct st_trace_record *record; /* NULL: not traced; ended before the op is finished */
    bool check;                     /* check the data that arrives before the op counts as done */
    bool finished;                  /* only for synchronous ones; guarded by lock */
    bool apart;                     /* the same; a failure is its own, not the engine's */
    uint32_t rest;                  /* page whose frozen part is moved next, to or from the memory behind; ST_NO_PAGE: none */
};

/* An op in flight on a queue of the device or on the host thread. */
struct st_engine_job {
    struct st_engine *engine;
    uint32_t op;
    bool saves;                     /* its cycle does */
    bool left;                      /* its caller has done with it, and what the caller's stream has of it remains */
    uint64_t issued_ns;             /* of one that was left, entered */
    struct st_trace_record *record; /* NULL: not traced */
    struct st_engine_job *next;     /* in a queue of the host thread */
};
struct st_engine_queue {
    struct st_engine_job *first, *last;
};

/* The host thread, and the time that lanes were busy; guarded by the engine's lock. */
struct st_engine_async {
    struct st_engine_job *jobs; /* [op_count] */
    uint8_t *check_phases;      /* [op_count] for reads: phases in which the data is checked as soon as it arrives */
    pthread_t host;
    bool host_runs, stop;
    pthread_cond_t work;                   /* a queue is not empty, or stop */
    struct st_engine_queue follow;         /* work that must follow a transfer; goes before updates */
    struct st_engine_queue update;         /* ops of the update lane, in order */
    uint32_t lane_jobs[STRATA_LANE_COUNT]; /* under way */
    uint64_t lane_end_ns[STRATA_LANE_COUNT], lane_busy_ns[STRATA_LANE_COUNT], forward_ns, backward_ns;
};

/* What an exchange is given: made before each one, in memory taken at create. */
struct st_engine_peers {
    struct st_comm_peer *peers; /* [ranks]; NULL: one rank */
    struct st_comm_part *parts; /* [ranks][ST_GROUPS_MAX] */
};

/* What a rank says of something that all do. */
struct st_engine_answer {
    int32_t status;
    char sentence[ST_COMM_REASON_BYTES];
};

/* Of a parameter set.  No padding: ranks compare its checksum. */
struct st_set_numbers {
    double lr, weight_decay, beta1, beta2;
};

/* beta^step of a set's last update. */
struct st_set_powers {
    uint64_t step;
    double beta1, beta2, beta1_power, beta2_power;
};

struct st_engine {
    const struct st_program *program;
    struct st_training_opts training;
    struct st_set_numbers sets[ST_SETS_MAX];     /* of the following updates, by parameter set (struct st_group) */
    struct st_set_powers powers[ST_SETS_MAX];    /* of sets whose betas are not those of set 0, which st_train_state has */
    struct st_update_coef coefs[ST_SETS_MAX][2]; /* of the update that is made or pending: without and with decay */
    struct {                                     /* of the step's early updates (engine_early.c) */
        struct st_update_coef coefs[ST_SETS_MAX][2];
        struct st_set_numbers sets[ST_SETS_MAX]; /* from which they follow, with */
        double divisor;
        uint64_t overflowed; /* weights that they rounded to infinity */
        uint64_t written;    /* bytes that they wrote to NVMe */
        bool made;           /* there are any */
        bool holds;          /* they are what the step's update is: the next step takes them into force */
        double most;         /* chance up to which there are any, see st_engine_set_early() */
        double logs[ST_EARLY_STEPS]; /* of the last `steps` steps, the oldest first (early_chance.h) */
        uint32_t steps;
        struct st_early_counts counts;
    } early;
    struct st_compute compute;
    const char *const *layer_names; /* NULL: numbers say which layer */
    const struct st_kernels *kernels;
    enum st_fetch fetch;
    struct st_workers *workers;
    struct st_device *device;
    unsigned char *device_base;
    struct st_arena host;
    struct st_staged staged; /* of `host` */
    struct st_swap *swap;
    struct st_patience patience; /* of swaps opened later */

    uint64_t *checksums[ST_PLANE_COUNT];  /* [tile_count] of data on NVMe, or NULL */
    uint64_t *act_checksums;              /* [boundaries][pieces] of activation checkpoints on NVMe, or NULL */
    uint64_t *grad_checksums;             /* [tile_count] of gradients on NVMe, or NULL */
    bool *verified;                       /* [buffer_count]: host weight slots whose contents were checked or computed here */
    uint64_t *early_sums[ST_PLANE_COUNT]; /* the same of what lies in the other places, or NULL */
    bool *turned;                         /* [buffer_count]: what is in force is in the other place; NULL: no update is early */
    _Atomic bool *left_out;               /* [page_count]: of the dispatcher's; NULL: every cycle has all pages */
    bool *fresh;                          /* [chunk_count]: on NVMe its moments were never written, see below */
    uint32_t *volumes;                    /* [buffer_count]: of the swap, that holds an extent's data now; NULL: its only one */
    uint32_t set;                         /* of the swap's sets, that updates write */
    bool base_saved;                      /* the base holds all that is frozen, what lives in memory, too */
    bool adopted;                         /* what lies on NVMe was left in the checkpoint that the run resumed from */
    unsigned char *bounce;                /* ST_BOUNCE_COUNT of ST_BOUNCE_BYTES, for saves and resuming; NULL: none yet */
    float *scratch;                       /* [workers][ST_SCRATCH_ELEMS] f32, load and export; staging follows it */
    unsigned char *staging;               /* [workers][ST_SCRATCH_ELEMS * 4] */
    double *block_sums;                   /* host norms of pages with host accumulators: largest page / ST_NORM_BLOCK + 1 */

    /* program state */
    struct st_dispatch dispatch;
    struct st_engine_io *io; /* [I/O ops], by lane: st_dispatch_io() */
    bool in_backward;        /* the last op that computed is one of backward: copies that the caller makes count as it does */

    pthread_mutex_t lock; /* guards events, in_flight, the statuses and errors, st_engine_io.finished */
    pthread_cond_t wake;
    uint64_t events;
    uint32_t in_flight;
    strata_status io_status, apart_status; /* apart: of transfers whose failure is their own */
    struct st_sentence io_error, apart_error;
    atomic_int cancelled;
    bool state_ends;  /* updates leave state on NVMe as it was: st_engine_end_training() */
    bool has_moments; /* a cycle or a resume may have written some: until then the arenas hold zeros where loads want them */
    strata_status poisoned;

    struct st_train_state train;
    uint64_t target_count; /* of the running step */
    double divisor; /* of its gradients, beside the loss scale: 1, or what the ranks' callers give, 0 once one has dropped it */
    uint32_t generate_rows, generate_position; /* of the running st_engine_forward; else 0 */
    struct {
        st_feed_fn *fn; /* NULL: steps have their tokens */
        void *ctx;
        uint32_t taken; /* micro-batches of the running step that are there */
        double weight;  /* of the one whose backward is computed */
    } feed;

    struct st_engine_async *async; /* NULL: the device's calls are done when they return */
    struct st_engine_comm *comm;   /* NULL: one rank */
    struct st_caller *caller;      /* NULL: the engine computes the layers */
    atomic_ullong requests;        /* bits asked for and not yet in a step's result */

    struct st_comm *host_comm, *device_comm; /* NULL: one rank */
    struct st_engine_peers peers;            /* of exchanges between steps */
    struct st_engine_answer *answers;        /* [ranks] */

    struct st_op_times *op_times;        /* NULL: off; else device is a timed one */
    struct st_trace *trace;              /* NULL: off */
    struct st_trace_record *trace_cycle; /* of the running cycle, or NULL */

    struct st_step_result result; /* filled by the running cycle */
    struct st_traffic moved;      /* copies made by finished cycles; guarded by lock: bytes of transfers completed for ops */
};

/* The buffer where that is which is in force: itself, or its other place; where an op leaves what it changes of it. */
static inline bool st_engine_is_turned(const struct st_engine *eng, uint32_t buffer)
{
    return eng->turned != NULL && buffer != ST_NO_BUFFER && eng->turned[buffer];
}
static inline uint32_t st_engine_in_force(const struct st_engine *eng, uint32_t buffer)
{
    return st_engine_is_turned(eng, buffer) ? eng->program->buffers[buffer].other : buffer;
}
static inline bool st_engine_leaves_other(const struct st_engine *eng, const struct st_op *op, uint32_t buffer)
{
    return op->early && !st_engine_is_turned(eng, buffer);
}

static inline void *st_engine_pointer_at(const struct st_engine *eng, uint32_t place)
{
    const struct st_buffer *b = &eng->program->buffers[place];

    return (b->tier == STRATA_TIER_DEVICE ? eng->device_base : eng->host.base) + b->offset;
}

static inline void *st_engine_pointer(const struct st_engine *eng, uint32_t buffer)
{
    return st_engine_pointer_at(eng, st_engine_in_force(eng, buffer));
}

/* A chunk's moments, from its planes' start. */
static inline struct st_moments st_engine_moments(const struct st_program *program, const struct st_chunk *chunk, void *planes)
{
    unsigned char *base = planes;

    return (struct st_moments){.format = program->moment_format,
                               .moment1 = base + chunk->moment1_offset,
                               .moment2 = chunk->moment2_offset == 0 ? NULL : base + chunk->moment2_offset,
                               .position = chunk->position};
}

/* engine_feed.c, in a step that is fed: whether an op that is ready may run, or would ask for a micro-batch before the last one
 * is computed; what is asked for before it runs. */
bool st_engine_feed_due(const struct st_engine *eng, uint32_t op);
strata_status st_engine_feed_before(struct st_engine *eng, const struct st_op *op);
static inline bool st_engine_is_fed(const struct st_engine *eng)
{
    return eng->feed.fn != NULL && (eng->dispatch.phase & (ST_PHASE_EVAL | ST_PHASE_EPILOGUE)) == 0;
}
/* engine_ops.c: rows of the lookup's page of an op, for `count` micro-batches from `micro` on. */
strata_status st_engine_gather_host(struct st_engine *eng, const struct st_op *op, uint32_t micro, uint32_t count);
/* engine.c: as strata_engine_step() checks them. */
strata_status st_engine_take_positions(const struct st_workload *w, int32_t *into, const int32_t *positions, uint64_t count);
/* engine.c: reset to the state before the first step. */
void st_engine_start_run(struct st_engine *eng);
/* Check that every id is in the vocabulary, or, for targets (NULL: none), below 0.  E_INPUT names the first that is not. */
strata_status st_engine_check_ids(const struct st_engine *eng, const int32_t *tokens, const int32_t *targets, uint64_t count);
/* Run the cycle of a step, or any cycle, and fill eng->result's times and disk bytes; make pending updates. */
strata_status st_engine_run_step(struct st_engine *eng, struct st_step_result *result);
strata_status st_engine_run_saving(struct st_engine *eng, struct st_step_result *result, struct st_saved *saved);
strata_status st_engine_timed_cycle(struct st_engine *eng, enum st_phase phase);
strata_status st_engine_flush_now(struct st_engine *eng, struct st_step_result *result);
/* engine_caller.c: for an engine with eng->caller.  Issue the lane's ops that are ready. */
strata_status st_engine_caller_create(struct st_engine *eng);
void st_engine_caller_destroy(struct st_engine *eng);
strata_status st_engine_caller_issue(struct st_engine *eng);
/* What a queue of the device does before the op is handed over; hand it over. */
strata_status st_engine_caller_prepare(struct st_engine *eng, const struct st_op *op);
void st_engine_caller_hand(struct st_engine *eng, uint32_t op);
/* It is over. */
void st_engine_caller_left(struct st_engine *eng, uint32_t op);
/* Whether the caller waits for the engine. */
bool st_engine_caller_waits(struct st_engine *eng);
/* The caller's times of a cycle that is over. */
void st_engine_caller_times(struct st_engine *eng);
void st_engine_caller_took(struct st_engine *eng, uint32_t op,
                           uint64_t ns); /* the caller needed so long for it; under the lock */
/* What its gradients are divided by, as far as it is known at a step's begin; else 1. */
double st_engine_caller_divisor(const struct st_engine *eng);
/* The step's loss, and eng->divisor, once all ranks' scalars are on the host. */
double st_engine_caller_loss(struct st_engine *eng);
/* E_BUSY while a caller's step runs.  @param what  the call that must wait */
strata_status st_engine_outside(struct st_engine *eng, const char *what);
/* engine_ops.c: run one op of an executing lane on the caller's thread, whose calls of the device are timed as the op's; */
strata_status st_engine_run_timed(struct st_engine *eng, uint32_t op);
/* run one op of an executing lane, or enqueue it on the device; then the work that follows once its bytes have
 * arrived. */
strata_status st_engine_run_op(struct st_engine *eng, const struct st_op *op);
/* Address of the op's operand of this role, which it must have. */
void *st_engine_operand(const struct st_engine *eng, const struct st_op *op, enum st_role role);
/* engine_generate.c: ops of their kinds; a rank's part of the choice. */
strata_status st_engine_download_choice(struct st_engine *eng, const struct st_op *op);
strata_status st_engine_choose(struct st_engine *eng, const struct st_op *op);
int32_t *st_engine_choice(const struct st_engine *eng, uint32_t rank);
/* engine_sums.c: ops of their kinds. */
strata_status st_engine_reduce_sum(struct st_engine *eng, const struct st_op *op);
strata_status st_engine_finish_host(struct st_engine *eng, const struct st_op *op);
strata_status st_engine_finish_grad(struct st_engine *eng, const struct st_op *op);
strata_status st_engine_round_sum(struct st_engine *eng, const struct st_op *op);
strata_status st_engine_reduce_ranks(struct st_engine *eng, const struct st_op *op);
/* engine_ops.c. */
bool st_engine_has_follow(const struct st_engine *eng, const struct st_op *op, bool saves);
strata_status st_engine_follow_op(struct st_engine *eng, const struct st_op *op);
/* Whether the op is the update of a page's last chunk, after which all of the page has been checked.  What is frozen comes last
 * and has no update: a page with something of that has no such op. */
bool st_engine_ends_check(const struct st_engine *eng, const struct st_op *op);
/* Copies outside a step, which are done on return. */
strata_status st_engine_put(struct st_engine *eng, void *to_device, const void *from, uint64_t bytes);
strata_status st_engine_get(struct st_engine *eng, void *to, const void *from_device, uint64_t bytes);
/* Fresh chunks.  A load writes no moments to NVMe, since they are zero: until a chunk's first update is written back, a read of
 * its state moves st_chunk_fresh_bytes(), and whoever would check its moments (engine_integrity.c, engine_update.c) zeroes them.
 * Their checksums are those of zeros from the load on.  The flag is set by a load and cleared when the chunk's state is first
 * written; the program orders both with all who use the state. */

/* engine_comm.c: exchanges between ranks. */
strata_status st_engine_comm_create(struct st_engine *eng, const struct st_engine_opts *opts);
/* Ends its threads; with exchanges under way, it gives up first. */
void st_engine_comm_destroy(struct st_engine *eng);
/* Start the lane's ops that are ready, as far as there are jobs for them. */
void st_engine_comm_issue(struct st_engine *eng);
/* Nanoseconds for which its exchanges have taken so far. */
uint64_t st_engine_comm_busy(struct st_engine *eng);
/* Tell the other ranks that this one has failed. */
void st_engine_comm_abort(struct st_engine *eng, strata_status st, const char *sentence);
/* The tokens of a rank's step among all ranks'. */
static inline const int32_t *st_engine_tokens(const struct st_engine *eng, const void *tokens, uint32_t rank)
{
    return (const int32_t *)tokens + rank * st_workload_tokens_bytes(&eng->program->workload) / sizeof(int32_t);
}
/* Rows of a slice of the table, counted from its first. */
struct st_row_range {
    uint32_t first, end;
};
/* The rows of one of its pages that this rank adds gradients to and, if it keeps shards, has. */
struct st_row_range st_engine_own_rows(const struct st_engine *eng, uint32_t page);
/* engine_scalars.c: did the host take page p's norm?  Only where the table has host accumulators; all others are finished on the
 * device. */
bool st_engine_finished_on_host(const struct st_program *program, uint32_t p);
/* With several ranks: the first of a rank's norms of a group, and how many it has. */
uint32_t st_norms_of(const struct st_program *program, uint32_t page, uint32_t group, uint32_t rank, uint32_t *runs);

/* engine_integrity.c: the extent that a plane of a chunk lies in, wherever it lives now, and the plane's first byte there. */
uint32_t st_engine_extent(const struct st_program *program, const struct st_chunk *chunk, enum st_plane plane, uint64_t *at);
/* Bytes of `elems` elements of a chunk's plane. */
static inline uint64_t st_chunk_plane_bytes(const struct st_program *program, const struct st_chunk *chunk, enum st_plane plane,
                                            uint64_t elems)
{
    return st_plane_bytes(plane, chunk->format, program->moment_format, elems);
}

/* Where a chunk's weights begin from the start of their home's: the device has a page whole, or its shard. */
static inline uint64_t st_chunk_home_at(const struct st_program *program, const struct st_chunk *chunk)
{
    const struct st_page_place *place = &program->pages[chunk->page];

    return place->home == ST_WHERE_DEVICE && !st_page_sliced(place) ? chunk->page_at : chunk->at;
}

/* Index of the chunk's group in its page; the chunk's first element there. */
static inline uint32_t st_chunk_group(const struct st_program *program, const struct st_chunk *chunk, uint64_t *first)
{
    const struct st_page *shard = &program->shards[chunk->page];
    uint32_t g = 0;

    while (g + 1 < shard->group_count && chunk->first >= shard->groups[g + 1].offset)
        g++;
    *first = chunk->page_first - program->workload.pages[chunk->page].groups[g].offset;
    return g;
}

/* Whether a chunk has this plane. */
static inline bool st_chunk_has_plane(const struct st_program *program, const struct st_chunk *chunk, enum st_plane plane)
{
    if (plane == ST_PLANE_WEIGHT)
        return true;
    return chunk->state != ST_WHERE_NONE && (plane != ST_PLANE_MASTER || st_master_width(chunk->master) > 0) &&
           (plane != ST_PLANE_MOMENT2 || program->moments > 1);
}

/* engine_load.c: what a load and a resumed run share.  What the device keeps beside the model: the layers' constants and the
 * count of overflows. */
strata_status st_engine_load_constants(struct st_engine *eng);
/* The device's count of overflows becomes part of the run's state, which a checkpoint has. */
strata_status st_engine_take_overflows(struct st_engine *eng);
/* Zero what of a slot for a page's shard belongs to no chunk. */
void st_engine_zero_gaps(const struct st_engine *eng, uint32_t p, unsigned char *slot);
/* Bring a shard's weights, which are on the host, to their page's place on the device. */
strata_status st_engine_put_shard(struct st_engine *eng, uint32_t p, const unsigned char *shard);
/* engine_ranks.c */
strata_status st_engine_ranks_create(struct st_engine *eng, const struct st_engine_opts *opts);
void st_engine_ranks_destroy(struct st_engine *eng);
/* After a load or a resume: pages that the device keeps whole get every rank's slices.  Collective. */
strata_status st_engine_gather_pages(struct st_engine *eng);
strata_status st_engine_gather_page(struct st_engine *eng, uint32_t p);

/* An array of a page's elements in page layout. */
struct st_engine_array {
    uint32_t page;
    unsigned char *base;
    uint32_t width; /* of an element; 0: weights, or rounded gradients, of each group's own */
    bool frozen;    /* has frozen groups, too */
};
/** A rank's slices of it, one part each, but for empty ones; returns how many.  parts: room for ST_GROUPS_MAX. */
uint32_t st_engine_slices(struct st_comm_part *parts, const struct st_engine *eng, const struct st_engine_array *a,
                          uint32_t rank);
/** What each rank has of it, to all others, in place; returns how many parts.  peers: [ranks]; parts: room for
 * [ranks][ST_GROUPS_MAX]. */
uint32_t st_engine_gather_slices(struct st_comm_peer *peers, struct st_comm_part *parts, const struct st_engine *eng,
                                 const struct st_engine_array *a);

/* Runs of bytes that every rank names in the same order, and the one that has them gives to rank 0.  Nobody stops before rank 0
 * has told it, so that all stop at the same one; st_relay_end() has one answer for all. */
struct st_relay {
    struct st_engine *eng;
    strata_status failure; /* this rank's; on rank 0 another's, too, with no sentence */
    strata_status word;    /* rank 0's, that all have heard */
    strata_status broken;  /* of the comm itself */
    struct st_sentence sentence;
};
struct st_relay_run {
    uint32_t owner;
    const unsigned char *from; /* the owner's; may be NULL where it has failed */
    bool on_device;
    uint64_t bytes, most; /* most: at a time, at most ST_SCRATCH_BYTES */
    strata_status (*emit)(void *ctx, uint64_t at, uint64_t bytes, const void *data); /* on rank 0 */
    void *ctx;
};
void st_relay_begin(struct st_relay *relay, struct st_engine *eng);
bool st_relay_goes_on(const struct st_relay *relay);
void st_relay_fail(struct st_relay *relay, strata_status st); /* with the last error; OK: nothing */
void st_relay_run(struct st_relay *relay, const struct st_relay_run *run);
strata_status st_relay_end(struct st_relay *relay);
/* engine_save.c: before and after a cycle that saves.  What is frozen and lives in memory is written by the first of all saves.
 */
strata_status st_engine_save_base(struct st_engine *eng);
strata_status st_engine_save_ended(struct st_engine *eng, struct st_extents *out);
/* Whether the running cycle saves. */
static inline bool st_engine_saves(const struct st_engine *eng)
{
    return (eng->dispatch.phase & ST_PHASE_SAVE) != 0;
}
/* engine_ring.c.  A host slot: the one that the program's first read of this kind fills; NULL: the program has no such read. */
void *st_engine_host_slot(const struct st_engine *eng, enum st_op_kind kind);

#define ST_RING_SLOTS_MAX 16u
/* Slots that take turns, each with the transfer from or to it. */
struct st_ring {
    unsigned char *slot[ST_RING_SLOTS_MAX];
    struct st_engine_io io[ST_RING_SLOTS_MAX];
    bool busy[ST_RING_SLOTS_MAX];
    bool apart; /* failures are the ring's own */
    uint32_t count, next;
};
/* Open a ring over the bounce memory's slots; allocates them if need be. */
strata_status st_ring_bounce(struct st_ring *ring, struct st_engine *eng);
/* Open a ring over the slots that the program's reads of this kind fill; none: an empty ring, which is only to be closed. */
void st_ring_open(struct st_ring *ring, const struct st_engine *eng, enum st_op_kind kind);
/* Cut each slot, of at least `bytes`, into as many of at least `part` bytes as fit: small transfers keep a drive busy as well. */
void st_ring_split(struct st_ring *ring, uint64_t bytes, uint64_t part);
/* The next slot, once its transfer is over. */
strata_status st_ring_take(struct st_ring *ring, struct st_engine *eng, unsigned char **out);
/* Start a transfer of `bytes` at `at` of an extent with the slot that was taken last. */
strata_status st_ring_start(struct st_ring *ring, struct st_engine *eng, enum st_io_op op, uint32_t extent, uint64_t at,
                            uint64_t bytes);
/* The same for the whole of a page's weights. */
strata_status st_ring_start_page(struct st_ring *ring, struct st_engine *eng, enum st_io_op op, uint32_t page);
/* The same of a volume of the swap. */
strata_status st_ring_read_volume(struct st_ring *ring, struct st_engine *eng, uint32_t volume, uint64_t offset, uint64_t bytes);
/* The slot that was started `back` turns ago (1: last), once its transfer is over. */
strata_status st_ring_wait(struct st_ring *ring, struct st_engine *eng, uint32_t back, unsigned char **out);
/* Wait for all transfers; the first failure counts. */
strata_status st_ring_close(struct st_ring *ring, struct st_engine *eng);
/* engine_update.c */
/* Where an update finds state or weights, and where it leaves them: in a slot both are the same.  Which of the two places of
 * their home has the version that it finds, and is to have the one that it leaves. */
struct st_update_ends {
    unsigned char *from, *to;
    bool from_other, to_other;
};
struct st_chunk_update {
    uint32_t chunk;
    bool early;
    struct st_update_ends state, weight; /* of a page's weights */
    const void *grad;                    /* of a page */
};
strata_status st_engine_update_chunk(struct st_engine *eng, const struct st_chunk_update *update);
strata_status st_engine_update_op(struct st_engine *eng, const struct st_op *op);
strata_status st_engine_update_chunk_device(struct st_engine *eng, const struct st_op *op);
strata_status st_engine_end_of_step(struct st_engine *eng);
/* Put what this rank says beside norms and losses where the exchange of scalars finds it. */
void st_engine_tally(struct st_engine *eng);
/** This rank's own weights that have overflowed, those of the last step's update included. */
uint64_t st_engine_overflowed(const struct st_engine *eng);
/* Set the rates of the step about to run, for updates that do not wait for its end. */
void st_engine_begin_step(struct st_engine *eng);
/* The coefficients of the step's update if its gradients are divided by `divisor` alone; nothing is counted. */
void st_engine_foresee_update(struct st_engine *eng, double divisor, struct st_update_coef coefs[ST_SETS_MAX][2]);
/* engine_early.c.  A run begins; a step begins, and ends: its norm is known, and its update divides by `divisor`; then with what
 * the next step's phase is, and what a cycle begins with. */
void st_engine_early_start(struct st_engine *eng);
void st_engine_early_begin(struct st_engine *eng, double divisor);
void st_engine_early_learn(struct st_engine *eng, double norm, bool skipped);
void st_engine_early_judge(struct st_engine *eng, double divisor);
enum st_phase st_engine_early_phase(const struct st_engine *eng, enum st_phase phase);
void st_engine_early_decide(struct st_engine *eng, enum st_phase phase);
/* engine_integrity.c: checksums of tiles.  Those of a chunk's plane, of what lies in one of its two places, or is in force. */
uint64_t *st_engine_sums_at(const struct st_engine *eng, const struct st_chunk *chunk, enum st_plane plane, bool other);
uint64_t *st_engine_sums(const struct st_engine *eng, const struct st_chunk *chunk, enum st_plane plane);
strata_status st_engine_verify_weights(struct st_engine *eng, uint32_t page, const void *weights);
strata_status st_engine_verify_state(struct st_engine *eng, uint32_t chunk, void *state); /* zeroes a fresh one's moments */
void st_engine_hash_weights(struct st_engine *eng, uint32_t page, const void *weights);
void st_engine_hash_updated(struct st_engine *eng, uint32_t page, const void *weights); /* all but frozen ones */
void st_engine_hash_state(struct st_engine *eng, uint32_t chunk, const void *state);
/* Hash the tiles that start in this part of a save's download. */
void st_engine_hash_part(struct st_engine *eng, const struct st_op *op, const void *data);
void st_engine_hash_master(struct st_engine *eng, uint32_t chunk, const void *state); /* only the masters */
/* Checksums of what lies on the device, which the host cannot see. */
strata_status st_engine_hash_remote_state(struct st_engine *eng, uint32_t chunk, const unsigned char *from);
strata_status st_engine_hash_remote_weights(struct st_engine *eng, uint32_t page, const unsigned char *from, bool frozen);
strata_status st_engine_tile_error(struct st_engine *eng, uint32_t chunk, enum st_plane plane, uint64_t tile);
/* Checksums of a page's rounded gradient, in the shard's layout; its updates check it. */
void st_engine_hash_grad(struct st_engine *eng, uint32_t page, const void *grad);
strata_status st_engine_grad_error(struct st_engine *eng, uint32_t chunk, uint64_t tile);
/* Checksums of an activation checkpoint (by its boundary's id): computed when it leaves, checked when it is back. */
void st_engine_hash_act(struct st_engine *eng, uint32_t id, const void *act);
strata_status st_engine_verify_act(struct st_engine *eng, uint32_t id, const void *act);
/* engine_trace.c: begin the record of a cycle; eng->trace is not NULL. */
void st_engine_trace_cycle(struct st_engine *eng, uint64_t now_ns);
/* engine_async.c: for an engine with eng->async. */
strata_status st_engine_async_create(struct st_engine *eng);
void st_engine_async_destroy(struct st_engine *eng);
strata_status st_engine_issue(struct st_engine *eng, uint32_t op);
/* On the caller's thread: the op is over once the caller's stream has passed what is on it now. */
strata_status st_engine_await_caller(struct st_engine *eng, uint32_t op, uint64_t since_ns, struct st_trace_record *record);
/* A failure that ends the running cycle. */
void st_engine_note(struct st_engine *eng, strata_status st);
/* Whether the data that op reads is checked as soon as it arrives, in the running phase.  False without eng->async. */
bool st_engine_checks_arrival(const struct st_engine *eng, uint32_t op);
/* Whether the calling thread may use the workers while ops are under way: with eng->async only the host thread may. */
bool st_engine_has_workers(const struct st_engine *eng);
/* It has arrived (called on the swap's thread): have the host thread check it and complete the op. */
void st_engine_check_arrived(struct st_engine *eng, const struct st_engine_io *io);
void st_engine_async_begin(struct st_engine *eng); /* a cycle's times */
void st_engine_async_end(struct st_engine *eng);
/* engine_run.c.  Every extent's data is in the swap's first volume of its space. */
void st_engine_begin_volumes(struct st_engine *eng);
strata_status st_engine_cycle(struct st_engine *eng, enum st_phase phase);
strata_status st_engine_drain(struct st_engine *eng);
/* The first failure of a transfer whose failure is its own, which is forgotten then. */
strata_status st_engine_apart(struct st_engine *eng);
/* Take the times of the calls of a cycle that is over; the device is idle then.  Without op_times it does nothing. */
strata_status st_engine_collect_times(struct st_engine *eng);
/* Transfers outside a step.  If `apart`, only the wait returns a failure.
 * A whole page's weights, whose frozen part may lie elsewhere: */
strata_status st_engine_page_start(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t page, void *buf);
/* Bytes of a volume of the swap: */
strata_status st_engine_volume_start(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t volume,
                                     uint64_t offset, void *buf, uint64_t bytes, bool apart);
/* Bytes of an extent from `at` on, from or to `buf`; io stays untouched until the wait is over: */
strata_status st_engine_transfer_start(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t extent,
                                       uint64_t at, void *buf, uint64_t bytes, bool apart);
strata_status st_engine_transfer_wait(struct st_engine *eng, const struct st_engine_io *io);

#endif
