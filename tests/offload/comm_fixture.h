/* tests/offload/comm_fixture.h - a world whose ranks are threads of the test. */
#ifndef TESTS_OFFLOAD_COMM_FIXTURE_H
#define TESTS_OFFLOAD_COMM_FIXTURE_H

#include "offload/comm/comm.h"

#include <stddef.h>

#define CF_RANKS_MAX 4u

struct cf_world;
/* What one rank does with its comm, on its own thread; assertions are for the test's thread, which sees what is returned. */
typedef strata_status cf_body(struct st_comm *comm, struct cf_world *world);

struct cf_world {
    const char *kind; /* "threads"; "paced": over these; "tcp": sockets alone; "shared": tcp with shared memory; "mpi": over its
                         stand-in */
    const char *address; /* of tcp; NULL: 127.0.0.1 */
    uint32_t ranks;
    uint64_t deadline_ns; /* 0: as long as the test may take */
    cf_body *body;
    void *ctx; /* the body's */
    /* out, by rank */
    strata_status status[CF_RANKS_MAX];
    char error[CF_RANKS_MAX][1024]; /* the last error's sentence */
};

/** Opens the world, runs the body on every rank, closes. */
void cf_run(struct cf_world *world);
/** The two halves.  comm: [ranks]; NULL: opened on the rank's thread, as ranks that have to meet are. */
void cf_open(const struct cf_world *world, struct st_comm **comm);
void cf_run_opened(struct cf_world *world, struct st_comm **comm);
/** The port by which the ranks of this process's worlds meet: no other test's. */
uint16_t cf_port(void);
/** Somebody connects to rank 0's door, once there is one, and says something.  @return the connection; the caller closes it */
int cf_knock(const void *words, size_t bytes);
/** All ranks came to a good end. */
void cf_assert_ok(const struct cf_world *world);
/** Rank r failed with a sentence that has this part. */
void cf_assert_failed(const struct cf_world *world, uint32_t r, const char *part);

#endif
