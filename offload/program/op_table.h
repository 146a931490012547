/* offload/program/op_table.h - the instructions of a program, with one row for each kind.
 *
 * Code that writes, verifies, runs, prices, traces or prints a program reads the row of an op's kind.  A new kind is a name in
 * enum st_op_kind, its row, the function that runs it (engine_ops.c) and the place that emits it (emit_*.c).
 *
 * An op names the things that it touches, its operands, by their roles. In the program an operand is an access: a buffer, how it
 * is used and what it holds. An op's accesses are in the order of its row's operands, without the absent ones; the verifier
 * proves that they match. */
#ifndef OFFLOAD_PROGRAM_OP_TABLE_H
#define OFFLOAD_PROGRAM_OP_TABLE_H

#include "offload/compute.h"
#include "strata/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- lanes and phases --- */

const char *st_lane_name(enum strata_lane lane);

static inline bool st_lane_reads(uint32_t lane)
{
    return lane == STRATA_LANE_READ_STATE || lane == STRATA_LANE_READ_WEIGHT || lane == STRATA_LANE_READ_ACTIVATION;
}
/* Whether the lane's ops are transfers by the swap's thread. */
static inline bool st_lane_is_io(uint32_t lane)
{
    return st_lane_reads(lane) || lane == STRATA_LANE_WRITE;
}

/* Whether the lane's ops run on the device or on the host's workers: they are neither transfers, nor exchanges with other ranks,
 * nor the caller's. */
static inline bool st_lane_executes(uint32_t lane)
{
    return !st_lane_is_io(lane) && lane != STRATA_LANE_COMM && lane != STRATA_LANE_CALLER;
}

/* Bytes over each link.  comm: what this rank receives of the others.  Links between ranks carry both directions at once, and in
 * each exchange a rank sends as much as it receives, but for the unequal parts of small groups. */
struct st_traffic {
    uint64_t upload, download, read, write, comm;
};
/* The counter of the link over which a lane's ops move their bytes; NULL: none. */
static inline uint64_t *st_traffic_of(struct st_traffic *traffic, uint32_t lane)
{
    if (st_lane_is_io(lane))
        return st_lane_reads(lane) ? &traffic->read : &traffic->write;
    if (lane == STRATA_LANE_COMM)
        return &traffic->comm;
    return lane == STRATA_LANE_UPLOAD ? &traffic->upload : lane == STRATA_LANE_DOWNLOAD ? &traffic->download : NULL;
}

enum st_phase {
    ST_PHASE_PROLOGUE = 1,
    ST_PHASE_BODY = 2,
    ST_PHASE_EPILOGUE = 4,
    ST_PHASE_EVAL = 8,
    ST_PHASE_SAVE = 16,  /* beside one of the others */
    ST_PHASE_REDO = 32,  /* beside BODY: makes the updates that are not there early, or are not kept */
    ST_PHASE_EARLY = 64, /* of an op: not in a cycle with LATE */
    ST_PHASE_LATE = 128, /* beside PROLOGUE or BODY: makes no update early */
    /* Cycles that save: each updates every chunk. */
    ST_PHASE_BODY_SAVE = ST_PHASE_BODY | ST_PHASE_SAVE,
    ST_PHASE_EPILOGUE_SAVE = ST_PHASE_EPILOGUE | ST_PHASE_SAVE,
    ST_PHASE_BODY_REDO = ST_PHASE_BODY | ST_PHASE_REDO
};
#define ST_PHASE_COUNT 4u /* without what stands beside others */
#define ST_PHASE_BITS  8u
/* Index 0..3 of a phase; what stands beside it does not count. */
uint32_t st_phase_index(enum st_phase phase);

/* --- ops and their accesses --- */

enum st_op_kind {
    ST_OP_UPLOAD_TOKENS,
    ST_OP_READ_WEIGHT,
    ST_OP_WRITE_WEIGHT,
    ST_OP_READ_STATE,
    ST_OP_WRITE_STATE,
    ST_OP_UPDATE, /* one chunk, by the host */
    ST_OP_UPLOAD_STATE,
    ST_OP_UPDATE_DEVICE, /* one chunk, by the device */
    ST_OP_DOWNLOAD_STATE,
    ST_OP_UPLOAD_WEIGHT,
    ST_OP_DOWNLOAD_WEIGHT,
    ST_OP_PLACE_WEIGHT,  /* a shard that lives on the device, to its places in a slot for the page */
    ST_OP_GATHER_DEVICE, /* a micro-batch's rows of the table */
    ST_OP_GATHER_HOST,   /* rows of one slice, for every micro-batch */
    ST_OP_UPLOAD_ROWS,
    ST_OP_EMBED_FORWARD,
    ST_OP_BLOCK_FORWARD,
    ST_OP_DOWNLOAD_ACT,
    ST_OP_WRITE_ACT,
    ST_OP_READ_ACT,
    ST_OP_UPLOAD_ACT,
    ST_OP_ROUTE_FORWARD,   /* of a layer of experts: all but these; then slice by slice; then their sum is rounded */
    ST_OP_DOWNLOAD_CHOICE, /* generation: which experts have rows, */
    ST_OP_GATHER_CHOICE,   /* on any rank; */
    ST_OP_CHOOSE,          /* slices that have none of these, and all ops on them, are left out of the cycle */
    ST_OP_EXPERTS_FORWARD,
    ST_OP_ROUTE_END,
    ST_OP_HEAD_NORM,
    ST_OP_HEAD_STATS,
    ST_OP_HEAD_LOSS,
    ST_OP_PAGE_USE,      /* from here on the caller may use a page that stays on the device */
    ST_OP_LAYER_FORWARD, /* the caller computes a layer, between its own two calls */
    ST_OP_HEAD_GRAD,     /* this and what follows is backward; the first one begins it */
    ST_OP_HEAD_BACKWARD,
    ST_OP_BLOCK_BACKWARD,
    ST_OP_ROUTE_AGAIN, /* what the experts' backward starts from */
    ST_OP_EXPERTS_BACKWARD,
    ST_OP_ROUTE_BACKWARD,
    ST_OP_EMBED_BACKWARD,
    ST_OP_PAGE_GRAD, /* the caller adds a micro-batch's gradients of a page that stays on the device */
    ST_OP_LAYER_BACKWARD,
    ST_OP_DOWNLOAD_ACCUM,
    ST_OP_UPLOAD_ACCUM,
    ST_OP_REDUCE_SUM,     /* the sums of two neighbouring runs of leaves become one */
    ST_OP_SCATTER_DEVICE, /* every micro-batch's gradients of rows into one slice's sum */
    ST_OP_DOWNLOAD_DACT,
    ST_OP_SCATTER_HOST, /* a micro-batch's gradients of rows into every slice's sum */
    ST_OP_FINISH_GRAD,  /* rounds a page's sum and computes its norm */
    ST_OP_FINISH_HOST,
    ST_OP_DOWNLOAD_GRAD,
    ST_OP_WRITE_GRAD, /* rounded; it waits on NVMe for the update */
    ST_OP_READ_GRAD,
    ST_OP_CALLER_END,       /* the caller's losses and divisor */
    ST_OP_DOWNLOAD_SCALARS, /* the step's scalars, or the device's count of overflows */
    ST_OP_END,              /* the end of the step: loss, norm, clip factor, skip */
    /* Of a run of several ranks. */
    ST_OP_GATHER_TOKENS,    /* of all ranks */
    ST_OP_EXCHANGE_ROWS,    /* of a slice of the table, from those who have them to those who look them up */
    ST_OP_GATHER_WEIGHT,    /* the other ranks' slices of a page */
    ST_OP_GATHER_UPDATED,   /* of them, those that an update has changed: without frozen ones */
    ST_OP_ROUND_SUM,        /* to bf16, what other ranks get of a sum, where they get that */
    ST_OP_EXCHANGE_GRAD,    /* the other ranks' sums of the own slices */
    ST_OP_EXCHANGE_ROUNDED, /* the same, rounded */
    ST_OP_REDUCE_RANKS,     /* adds them up */
    ST_OP_GATHER_GRAD,      /* stage 0: the other ranks' slices of a rounded gradient */
    ST_OP_EXCHANGE_DACT,    /* a micro-batch's gradients of rows, to those who have the rows */
    ST_OP_SCATTER_MICRO,    /* the same into one slice's sum on the device */
    ST_OP_GATHER_SCALARS,
    ST_OP_KIND_COUNT
};

/* What a buffer must hold when an op reads it, or holds after the op; the verifier checks it. */
enum st_content {
    ST_HOLDS_SCRATCH,
    ST_HOLDS_WEIGHT,
    ST_HOLDS_STATE,
    ST_HOLDS_GRAD,
    ST_HOLDS_ACCUM,
    ST_HOLDS_ACT,
    ST_HOLDS_DACT,
    ST_HOLDS_TOKENS,
    ST_HOLDS_ROWS,
    ST_HOLDS_INTERNALS,
    ST_HOLDS_HEAD,
    ST_HOLDS_LOGITS,
    ST_HOLDS_ROUTES,
    ST_HOLDS_CHOICE,
    ST_HOLDS_WIRE,
    ST_HOLDS_SCALARS
};
#define ST_CONTENT_COUNT (ST_HOLDS_SCALARS + 1u)

enum st_access_mode { ST_READ = 1, ST_WRITE = 2, ST_MODIFY = 3 };

enum st_role {
    ST_ROLE_NONE,
    ST_ROLE_FROM, /* of a copy */
    ST_ROLE_TO,
    ST_ROLE_STATE,
    ST_ROLE_WEIGHT,
    ST_ROLE_GRAD,      /* rounded */
    ST_ROLE_SUM,       /* fp32, of gradients */
    ST_ROLE_ADDEND,    /* a sum that is added to another one */
    ST_ROLE_ACT,       /* input of the layer */
    ST_ROLE_ACT_OUT,   /* output of the layer */
    ST_ROLE_DACT,      /* gradient at the layer's boundary */
    ST_ROLE_INTERNALS, /* values that a layer's forward keeps for its backward */
    ST_ROLE_LOGITS,
    ST_ROLE_ROUTES, /* what a micro-batch's layers of experts add up */
    ST_ROLE_CHOICE, /* which of a layer's slices the cycle is to have */
    ST_ROLE_WORKSPACE,
    ST_ROLE_TOKENS,
    ST_ROLE_ROWS,
    ST_ROLE_SCALARS,
    ST_ROLE_NORMS,     /* norms of pages whose sum the host finishes */
    ST_ROLE_WIRE,      /* sums that other ranks have sent */
    ST_ROLE_OVERFLOWS, /* count of weights that rounded to infinity on the device since the start */
    ST_ROLE_COUNT
};
const char *st_role_name(enum st_role role);

struct st_access {
    uint32_t buffer;
    uint8_t mode;    /* st_access_mode; WRITE: the old contents do not matter */
    uint8_t content; /* st_content */
    uint8_t role;    /* st_role */
    uint32_t index;  /* page, chunk, or layer-and-micro id */
};

struct st_wait {
    uint32_t op;
    bool previous; /* the op of the previous cycle */
};

struct st_op {
    uint8_t kind, lane, phases;
    bool first;     /* of a sum, rows or routes: there is nothing yet, so start it; of several sums, the first one's */
    bool recompute; /* block backward, route_again: internals; head gradient: logits */
    bool top;       /* block backward: of the last layer, above which there is no gradient */
    bool early;     /* an update that is made in backward, or a write of what it leaves: it goes to the other version */
    uint32_t layer; /* of calls */
    uint32_t page, chunk, micro, slice; /* those that the row lists; otherwise page is ST_NO_PAGE and the others are 0 */
    uint32_t access_first, access_count;
    uint32_t wait_first, wait_count;
    uint32_t part;  /* of a copy that a save makes by way of slots: which one of its thing (program.h); else 0 */
    uint64_t bytes; /* moved over the lane's link */
};

/* Whether an op of these phases does something in a cycle. */
static inline bool st_phases_run(unsigned phases, enum st_phase cycle)
{
    return (phases & cycle) != 0 && !((phases & ST_PHASE_EARLY) != 0 && (cycle & ST_PHASE_LATE) != 0);
}
static inline bool st_op_runs(const struct st_op *op, enum st_phase cycle)
{
    return st_phases_run(op->phases, cycle);
}
/* Whether a cycle finds what was updated early in force. */
static inline bool st_phase_keeps(enum st_phase cycle)
{
    return (cycle & ST_PHASE_BODY) != 0 && (cycle & (ST_PHASE_REDO | ST_PHASE_SAVE)) == 0;
}

/* --- the table --- */

/* Indices that an op has, as bits. */
enum { ST_INDEX_PAGE = 1, ST_INDEX_CHUNK = 2, ST_INDEX_BLOCK = 4, ST_INDEX_MICRO = 8, ST_INDEX_SLICE = 16 };

/* What an op does, which determines its cost (cost.c) and, unless it has its own function, what runs it (engine_ops.c). */
enum st_work {
    ST_WORK_SMALL,   /* a negligible amount, except for a sum that it starts */
    ST_WORK_COPY,    /* bytes at its lane's rate */
    ST_WORK_CALL,    /* a call of the model: FLOPs */
    ST_WORK_LAYER,   /* a layer of the caller's: the seconds or the FLOPs of such a call */
    ST_WORK_UPDATE,  /* a chunk's parameters */
    ST_WORK_REDUCE,  /* adds a page's sum to another one */
    ST_WORK_ROUND,   /* reads and rounds a page's sum */
    ST_WORK_GATHER,  /* rows of the table */
    ST_WORK_SCATTER, /* gradients of rows */
    ST_WORK_COMM,    /* bytes that arrive from other ranks */
};

/* What a copy or the lookup does with checksums if its weights, state, gradients or activations are on NVMe. */
enum st_checksum_mode {
    ST_CHECKSUM_NONE,
    ST_CHECKSUM_ARRIVES, /* reads data from NVMe, which may be checked as soon as it arrives, */
    ST_CHECKSUM_OPENS,   /* or else by the first op that uses it */
    ST_CHECKSUM_CLOSES   /* brings data that goes to NVMe next: its checksums are computed */
};

/* How an operand is used: a fixed mode, or one decided by a flag of the op. */
enum st_operand_use {
    ST_OPERAND_READ = ST_READ,
    ST_OPERAND_WRITE = ST_WRITE,
    ST_OPERAND_MODIFY = ST_MODIFY,
    ST_OPERAND_ADD,    /* written by the first op, modified by the others */
    ST_OPERAND_REMAKE, /* written by an op that recomputes, else read */
    ST_OPERAND_REOPEN, /* written by an op that recomputes, else modified */
    ST_OPERAND_CARRY   /* written by the last layer's op, modified by the others' */
};
/* How many accesses an operand has. */
enum st_operand_times {
    ST_OPERAND_ONE,
    ST_OPERAND_MAYBE,   /* one or none, as the plan decides */
    ST_OPERAND_TRAINED, /* one, or none if the op's page is frozen */
    ST_OPERAND_KEPT,    /* one, or none if the op recomputes */
    ST_OPERAND_REMADE,  /* one if it does, else none */
    ST_OPERAND_CHOSEN,  /* one if the op's page may be left out, else none */
    ST_OPERAND_LAYER,   /* as many as its layer has: boundaries, internals, pages, trained ones, routes */
    ST_OPERAND_EACH     /* one for each slice of the table, or gradients of each micro-batch */
};

struct st_operand {
    uint8_t role, use, content, times; /* st_role, st_operand_use, st_content, st_operand_times */
};

#define ST_OPERANDS_MAX 7u

struct st_op_row {
    const char *name;
    enum strata_lane lane;
    uint8_t indices;
    enum st_work work;
    enum st_checksum_mode checksum;
    enum st_call_kind call;                      /* of ST_WORK_CALL, ST_WORK_LAYER */
    struct st_operand operands[ST_OPERANDS_MAX]; /* up to the first without a role */
};
extern const struct st_op_row st_op_rows[ST_OP_KIND_COUNT];

const char *st_op_name(enum st_op_kind kind);
/* Of kinds that compute: whether it is one of backward, which begins again with each micro-batch where accumulation is
 * horizontal.
 */
static inline bool st_op_is_backward(enum st_op_kind kind)
{
    return kind >= ST_OP_HEAD_GRAD;
}
/* Whether it is one of a layer of experts, which has several. */
static inline bool st_op_in_parts(enum st_op_kind kind)
{
    return (kind >= ST_OP_ROUTE_FORWARD && kind <= ST_OP_ROUTE_END) ||
           (kind >= ST_OP_ROUTE_AGAIN && kind <= ST_OP_ROUTE_BACKWARD);
}
/* Whether the bytes of this kind follow from a step's tokens: a program has what is expected if all rows are named equally
 * often. */
static inline bool st_op_estimated(enum st_op_kind kind)
{
    return kind == ST_OP_EXCHANGE_ROWS || kind == ST_OP_EXCHANGE_DACT;
}

struct st_op_index {
    const char *name;
    uint32_t value;
};
#define ST_OP_INDICES_MAX 5u
/* The indices that an op has, the widest first; returns how many. */
uint32_t st_op_indices(const struct st_op *op, struct st_op_index out[ST_OP_INDICES_MAX]);

/* Whether this kind copies ST_ROLE_FROM to ST_ROLE_TO unchanged. */
bool st_op_copies(enum st_op_kind kind);
/* The row's operand of this role; NULL: it has none. */
const struct st_operand *st_operand_of(enum st_op_kind kind, enum st_role role);
enum st_access_mode st_operand_mode(const struct st_operand *operand, const struct st_op *op);
/* The op's (first) access of this role, of the program's accesses; NULL: it has none. */
const struct st_access *st_op_access(const struct st_access *accesses, const struct st_op *op, enum st_role role);

#endif
