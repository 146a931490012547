/* offload/comm/comm_frames.h - what comm_tcp.c says on its sockets, as bytes.
 *
 * Whatever a get function reads may come from a stranger: it accepts what a put function of this version writes, and nothing
 * else. Numbers are little-endian, as is every machine that this runs on. */
#ifndef OFFLOAD_COMM_COMM_FRAMES_H
#define OFFLOAD_COMM_COMM_FRAMES_H

#include "offload/comm/comm.h"

/* --- the meeting: a rank introduces itself to rank 0, which answers --- */

#define ST_HELLO_BYTES  112u
#define ST_REPLY_BYTES  16u
#define ST_PLACE_BYTES  56u
#define ST_TABLE_BYTES  (8u + ST_COMM_RANKS_MAX * ST_PLACE_BYTES) /* at most */
#define ST_GREET_BYTES  24u
#define ST_HEADER_BYTES 64u

struct st_hello {
    uint32_t rank, ranks;
    uint64_t key;     /* which meeting it wants: st_meet_key() */
    uint64_t host;    /* the same for processes that can share memory */
    uint16_t port;    /* where it listens */
    char local[16];   /* its name among local sockets; "": none */
    char version[32]; /* strata_version() */
};

void st_hello_put(uint8_t out[ST_HELLO_BYTES], const struct st_hello *hello);
/** False: not one. */
bool st_hello_get(struct st_hello *out, const uint8_t in[ST_HELLO_BYTES]);

enum st_reply_type {
    ST_REPLY_NONE,
    ST_REPLY_WAIT,    /* you are expected; the table comes */
    ST_REPLY_REFUSED, /* a sentence follows */
    ST_REPLY_TABLE,   /* the table follows */
};

struct st_reply {
    enum st_reply_type type;
    strata_status status; /* of a refusal */
    uint32_t bytes;       /* that follow: none, less than ST_COMM_REASON_BYTES, at most ST_TABLE_BYTES */
};

void st_reply_put(uint8_t out[ST_REPLY_BYTES], const struct st_reply *reply);
bool st_reply_get(struct st_reply *out, const uint8_t in[ST_REPLY_BYTES]);

/* Where a rank is found. */
struct st_place {
    uint64_t host;
    uint8_t family; /* 4 or 6; 0: on rank 0's node, whose address they have who reached it */
    uint8_t address[16];
    uint32_t scope; /* of IPv6 */
    uint16_t port;
    char local[16];
};

/** @return bytes written to out [ST_TABLE_BYTES] */
uint32_t st_table_put(uint8_t *out, uint64_t cookie, const struct st_place *places, uint32_t ranks);
bool st_table_get(uint64_t *cookie, struct st_place *places, uint32_t ranks, const uint8_t *in, uint32_t bytes);

/* --- between two ranks --- */

enum st_greet_kind { ST_GREET_NONE, ST_GREET_CONTROL, ST_GREET_DATA, ST_GREET_LOCAL };

/* The first words on a connection. */
struct st_greet {
    uint64_t cookie; /* of the table */
    uint32_t rank;
    enum st_greet_kind kind;
};

void st_greet_put(uint8_t out[ST_GREET_BYTES], const struct st_greet *greet);
bool st_greet_get(struct st_greet *out, const uint8_t in[ST_GREET_BYTES]);

/* Goes before the bytes of one exchange. */
struct st_header {
    uint64_t bytes;
    uint32_t sequence;
    char what[40];      /* cut */
    uint64_t what_hash; /* of all of it */
};

void st_header_put(uint8_t out[ST_HEADER_BYTES], const struct st_header *header);
bool st_header_get(struct st_header *out, const uint8_t in[ST_HEADER_BYTES]);

#endif
