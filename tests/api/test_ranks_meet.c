/* tests/api/test_ranks_meet.c - the door of several ranks: whose machine is whose, and what is said where they do not meet. */
#include "core/base/fault.h"
#include "strata/strata.h"
#include "tests/api/handles_fixture.h"
#include "tests/common/free_port.h"
#include "tests/common/test.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One rank, on a thread of its own. */
struct rank {
    struct strata_comm_opts who;
    const char *fact; /* compared under the name "--seed"; NULL: none */
    strata_status status;
    char sentence[1024];
    struct strata_comm_info info;
    pthread_t thread;
};

static void *meet(void *ctx)
{
    struct rank *r = ctx;
    struct strata_comm *comm = NULL;

    r->info = (struct strata_comm_info)STRATA_COMM_INFO_INIT;
    r->status = strata_comm_open(&comm, &r->who);
    if (r->status == STRATA_OK)
        r->status = strata_comm_get_info(comm, &r->info);
    if (r->status == STRATA_OK && r->fact != NULL)
        r->status = strata_comm_agree(comm, (const char *const[]){"--seed"}, &r->fact, 1);
    snprintf(r->sentence, sizeof(r->sentence), "%s", r->status != STRATA_OK ? strata_last_error() : "");
    strata_comm_close(comm);
    return NULL;
}

static void meet_all(struct rank *ranks, uint32_t count)
{
    const uint32_t port = free_port();

    for (uint32_t r = 0; r < count; r++) {
        ranks[r].who.rank = r, ranks[r].who.ranks = count;
        ranks[r].who.port = port;
        ranks[r].who.deadline_seconds = 20;
        strcpy(ranks[r].who.address, "127.0.0.1");
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, meet, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < count; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
}

/* The kernel's number of its start tells a machine from another of the same name: here one rank has it, and one has not. */
TEST(machines_of_one_name_are_two)
{
    struct rank ranks[2] = {{.who = STRATA_COMM_OPTS_INIT}, {.who = STRATA_COMM_OPTS_INIT}};

    st_fault_arm(&(struct st_fault_spec){.site = "api.boot_id", .count = 1, .result = -EIO});
    meet_all(ranks, 2);
    assert_int_equal(st_fault_disarm(), 1);
    for (uint32_t r = 0; r < 2; r++) {
        if (ranks[r].status != STRATA_OK)
            fail_msg("rank %u: %s", r, ranks[r].sentence);
        assert_int_equal(ranks[r].info.local_rank, 0);
        assert_int_equal(ranks[r].info.local_ranks, 1);
    }
}

/* Nobody but a launcher knows which run a process is of: who starts ranks by hand is told of the other cause, too. */
TEST(a_difference_may_be_another_run)
{
    struct rank ranks[2] = {{.who = STRATA_COMM_OPTS_INIT, .fact = "1"}, {.who = STRATA_COMM_OPTS_INIT, .fact = "2"}};

    for (int by_launcher = 0; by_launcher < 2; by_launcher++) {
        ranks[0].who.source = ranks[1].who.source = by_launcher ? "torchrun" : "torch's variables";
        meet_all(ranks, 2);
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(ranks[r].status, STRATA_E_CONFIG);
            assert_non_null(strstr(ranks[r].sentence, "--seed differs among the ranks: rank 0 has 1, rank 1 has 2"));
            assert_true((strstr(ranks[r].sentence, "or ranks of two runs have met") == NULL) == (by_launcher == 1));
        }
    }
}

/* Under mpirun, where MPI opens on some ranks alone, those that it does not open on wait for the others by tcp: when they give up
 * they say why they did that. */
TEST(who_cannot_use_mpi_says_so_when_nobody_comes)
{
    struct strata_comm_opts opts = STRATA_COMM_OPTS_INIT;
    struct strata_comm *comm = NULL;

    setenv("STRATA_MPI", "/nowhere/strata_mpi.so", 1);
    opts.rank = 1, opts.ranks = 2;
    opts.mpi = true; /* and no address, so that the search ends at once */
    assert_int_equal(strata_comm_open(&comm, &opts), STRATA_E_INVAL);
    unsetenv("STRATA_MPI");
    assert_non_null(strstr(strata_last_error(), "the address of rank 0 is not set"));
    assert_non_null(strstr(strata_last_error(), "this rank uses tcp"));
    assert_non_null(strstr(strata_last_error(), "/nowhere/strata_mpi.so cannot be opened"));
}
