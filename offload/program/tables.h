/* offload/program/tables.h - memory beside the arenas that grows with the program or the model: the plan counts it, the engine
 * takes it.
 */
#ifndef OFFLOAD_PROGRAM_TABLES_H
#define OFFLOAD_PROGRAM_TABLES_H

#include "offload/program/program.h"

#include <stddef.h>

/* Records of the engine's, which asserts these sizes: of an op that is a transfer, of one under way on a queue of its own. */
#define ST_TRANSFER_RECORD_BYTES 152u
#define ST_JOB_RECORD_BYTES      40u
/* The same of what goes between this rank and another in an exchange between steps, and of an answer. */
#define ST_PEER_RECORD_BYTES   120u
#define ST_ANSWER_RECORD_BYTES 516u
/* Exchanges of a step take turns with so many lists: of an entry for each rank, and of parts, for a page's slices both ways, or a
 * row of the table for each token of every rank. */
#define ST_EXCHANGES         4u
#define ST_EXCHANGE_BYTES    24u
#define ST_PART_RECORD_BYTES 16u
uint64_t st_exchange_parts(const struct st_program *program);
/* Parts that a rank's scalars are exchanged in. */
uint64_t st_scalars_parts(const struct st_program *program);

#define ST_ACT_PIECE (256u * 1024u) /* bytes of an activation checkpoint under one checksum */
uint64_t st_act_pieces(const struct st_workload *w);

#define ST_SCRATCH_ELEMS 65536u /* of a worker, in fp32: what it loads or exports at a time; at least a tile */
#define ST_SCRATCH_BYTES (ST_SCRATCH_ELEMS * sizeof(float))

/* A row of a checkpoint's list of extents (offload/checkpoint/extents.h, which asserts the size). */
#define ST_EXTENT_ROW_BYTES 56u

/* For what moves between host memory that no arena holds and files: saving and resuming.  Of a run that saves. */
#define ST_BOUNCE_COUNT 8u
#define ST_BOUNCE_BYTES (4u << 20)

/* Bytes of each. */
struct st_tables {
    size_t program;       /* the program's own: ops, accesses, waits, buffers, pages, chunks */
    size_t dispatch;      /* lanes and turns of every op */
    size_t transfers;     /* [I/O ops] records */
    size_t jobs;          /* [ops] records; 0 where the device has no queues of its own */
    size_t ranks;         /* [ranks] peers and answers; 0, as the next: one rank */
    size_t exchanges;     /* lists of parts */
    size_t checks;        /* [ops] phases in which an arrival is checked; 0 there, too */
    size_t caller;        /* [ops] states of the caller's, and [blocks][2] times; 0: the engine computes the layers */
    size_t verified;      /* [buffers] flags */
    size_t fresh;         /* [chunks] flags */
    size_t left_out;      /* [pages] flags; 0: every cycle has all pages */
    size_t turned;        /* [buffers] flags; 0, as the next but one: no update is made early */
    size_t volumes;       /* [buffers] numbers, of a run that saves */
    size_t checksums;     /* [tiles] of one plane */
    size_t early_sums;    /* the same again, of second versions; 0, too, where none lies on NVMe */
    size_t act_checksums; /* [boundaries][pieces]; 0: no checkpoint lies on NVMe */
    size_t grad_sums;     /* [tiles], checksums of rounded gradients; 0: none waits on NVMe */
    size_t scratch;       /* [the machine's workers] of ST_SCRATCH_BYTES; there are two */
    size_t block_sums;    /* [blocks of the largest page] */
    size_t bounce;        /* [ST_BOUNCE_COUNT] of ST_BOUNCE_BYTES; 0, as the next: the run saves nothing */
    size_t extents;       /* the list of a checkpoint that is being written: rows, and sums of all planes */
};

/** Of a program; `workers`: of the machine; `queues`: the device has queues of its own.  Returns their sum: four planes of
 * checksums of either kind, two scratches. */
uint64_t st_tables_size(struct st_tables *tables, const struct st_program *program, uint32_t workers, bool queues);

#endif
