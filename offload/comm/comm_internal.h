/* offload/comm/comm_internal.h - what the implementations of comm.h share. */
#ifndef OFFLOAD_COMM_COMM_INTERNAL_H
#define OFFLOAD_COMM_COMM_INTERNAL_H

#include "offload/comm/comm.h"

/** Fills in the head; 2 to ST_COMM_RANKS_MAX ranks; deadline 0: ST_COMM_DEADLINE_NS.  E_NOMEM: nothing is to be undone. */
strata_status st_comm_init(struct st_comm *comm, const struct st_comm_ops *ops, const struct st_world *world,
                           uint64_t deadline_ns);
void st_comm_fini(struct st_comm *comm);

/** Bytes of all parts. */
uint64_t st_comm_bytes(const struct st_comm_part *parts, uint32_t count);

/* Sentences, so that a failure reads the same over every wire; E_IO where nothing else is said. */
strata_status st_comm_gone(uint32_t rank, const char *what);
/** Rank `rank` told rank `self`, which says so, why it gave up; the status is that verdict's. */
strata_status st_comm_aborted(uint32_t rank, uint32_t self, strata_status st, const char *what, const char *reason);
strata_status st_comm_silent(uint32_t rank, const char *what, uint64_t deadline_ns);
/** Rank `rank` is at another call than rank `self`, which says so. */
strata_status st_comm_elsewhere(uint32_t rank, const char *theirs, uint32_t self, const char *what);
strata_status st_comm_sizes(uint32_t rank, uint64_t sends, uint32_t self, uint64_t awaits, const char *what);

/* A place in a stream of parts. */
struct st_comm_cursor {
    const struct st_comm_part *part, *end;
    uint64_t at; /* in *part */
};

struct st_comm_cursor st_comm_cursor_at(const struct st_comm_part *parts, uint32_t count);
/** The bytes that lie together next, at least one; NULL and 0 at the end. */
void *st_comm_cursor_run(struct st_comm_cursor *cursor, uint64_t *bytes);
/** Goes on by bytes, at most what st_comm_cursor_run() gave. */
void st_comm_cursor_skip(struct st_comm_cursor *cursor, uint64_t bytes);

#endif
