/* offload/comm/comm_tcp_internal.h - what the files of comm_tcp share. */
#ifndef OFFLOAD_COMM_COMM_TCP_INTERNAL_H
#define OFFLOAD_COMM_COMM_TCP_INTERNAL_H

#include "offload/comm/comm_frames.h"
#include "offload/comm/comm_internal.h"
#include "offload/comm/comm_shared.h"
#include "offload/comm/comm_socket.h"

/* --- comm_meet.c: all ranks find each other --- */

#define ST_MEET_PORTS 8u

struct st_meeting {
    const struct st_comm_tcp_opts *opts;
    uint64_t until_ns, deadline_ns;
    struct st_place self; /* host, port and local, by which this rank takes connections */
    /* out */
    uint64_t cookie;         /* only the ranks of this meeting know it */
    struct st_place *places; /* [ranks] by the caller */
};

/** Until when to wait now: the deadline, or the next look whether the meeting was cancelled. */
uint64_t st_meet_tick(const struct st_meeting *meeting);
/** E_CANCELLED. */
strata_status st_meet_cancelled(const struct st_meeting *meeting);
/** The ports where ranks meet: those behind the launcher's, of which the first that is free is taken. */
uint16_t st_meet_port(uint16_t port, uint32_t index);
/** What a rank says of the port that it was told, by which those of other runs are known. */
uint64_t st_meet_key(uint16_t port);
/** A connection to whoever listens there, if it is rank 0 of this meeting and waits for this rank; *fd -1: it is not.
 *  The status of its refusal; E_IO, E_NOMEM: it could not be asked. */
strata_status st_meet_knock(const struct st_meeting *meeting, const union st_address *address, int *fd);
/** Rank 0's part of st_meet() (comm_host.c). */
strata_status st_meet_host(struct st_meeting *meeting);
/** Returns when all ranks have come.  E_IO, E_CONFIG, E_INPUT: st_comm_tcp_open(). */
strata_status st_meet(struct st_meeting *meeting);

/* --- comm_tcp.c --- */

struct st_tcp_peer {
    int control; /* where it says that it gives up, or that a ring has bytes or room; and that it lives, as long as it is open */
    int data;    /* -1: by the rings */
    struct st_ring_pair rings;
    /* The exchange under way.  What goes each way is a header, then the parts. */
    uint8_t out_header[ST_HEADER_BYTES], in_header[ST_HEADER_BYTES];
    struct st_comm_part out_first, in_first; /* the headers */
    struct st_comm_cursor out[2], in[2];     /* header, parts */
    uint64_t out_left, in_left;              /* bytes of both */
    uint64_t awaits;                         /* bytes of in's parts */
    bool writable, readable;                 /* as far as is known */
    bool checked;                            /* its header */
    bool mute;                               /* it sends nothing more: its words, or its end, are what control has */
    uint64_t silent_ns;                      /* how long nothing has come or gone */
    uint32_t control_polled, data_polled;    /* where of polls; 0: nowhere */
};

struct st_tcp {
    struct st_comm comm; /* first */
    int wake;            /* an eventfd: abort() was called */
    bool rings;          /* some peer has them */
    uint32_t sequence;   /* of the exchange */
    uint64_t what_hash;
    struct st_tcp_peer *peers; /* [ranks] */
    struct pollfd *polls;      /* [1 + 2 * ranks] wake first; no more than there are descriptors, as poll() asks */
    uint32_t polls_count;
};

/* --- comm_pair.c: every two ranks are connected --- */

/* Where connections of other ranks are taken. */
struct st_doors {
    int any, local; /* listening sockets; local -1: no shared memory */
};

/** Opens them and fills in meeting->self.  E_IO; what was opened is the caller's to close. */
strata_status st_doors_open(struct st_doors *doors, struct st_meeting *meeting);
/** E_IO, E_NOMEM. */
strata_status st_pair_all(struct st_tcp *tcp, const struct st_meeting *meeting, const struct st_doors *doors);

#endif
