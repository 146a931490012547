/* MPI's ranks where the contract of tests/offload/test_comm.c does not reach: over a stand-in of MPI in memory, what the world
 * is, how it ends, what MPI itself refuses, and where the plugin is looked for. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/comm/comm_mpi.h"
#include "tests/common/assert_status.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/offload/comm_fixture.h"
#include "tests/offload/mpi_standin.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define LARGE (3u << 20)
#define SHORT UINT64_C(100000000)

static void run(cf_body *body, uint32_t ranks, uint64_t deadline_ns, struct cf_world *out)
{
    *out = (struct cf_world){.kind = "mpi", .ranks = ranks, .deadline_ns = deadline_ns, .body = body};
    cf_run(out);
}

/* --- the world --- */

static strata_status world_is_told(struct st_comm *comm, struct cf_world *world)
{
    const struct st_world *w = &comm->world;

    if (w->ranks != world->ranks || w->local_ranks != 2 || w->local_rank != w->rank % 2)
        return st_error(STRATA_E_CORRUPT, "rank %u: %u of %u of its node", w->rank, w->local_rank, w->local_ranks);
    return st_comm_barrier(comm, "start");
}

TEST(ranks_know_their_place_and_end_mpi_together)
{
    struct cf_world world;

    run(world_is_told, 4, 0, &world);
    cf_assert_ok(&world);
    assert_int_equal(mpi_standin_closed_whole(), 4);
}

/* MPI's threads take the mask of the one that starts them: no signal of the program's is theirs, and its own mask stays. */
TEST(mpi_starts_with_signals_blocked)
{
    struct st_comm *comm = NULL;
    sigset_t before, after;

    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &before), 0);
    assert_int_equal(sigismember(&before, SIGINT), 0);
    mpi_standin_world(1, 1);
    assert_ok(st_comm_mpi_open_over(&comm, &mpi_standin, 0));
    assert_true(mpi_standin_blocked(SIGINT) && mpi_standin_blocked(SIGTERM) && mpi_standin_blocked(SIGALRM));
    assert_false(mpi_standin_blocked(SIGSEGV));
    assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &after), 0);
    for (int number = 1; number < NSIG; number++)
        assert_int_equal(sigismember(&after, number), sigismember(&before, number));
}

TEST(a_rank_alone_has_no_comm)
{
    struct st_comm *comm = (struct st_comm *)(void *)&comm;

    mpi_standin_world(1, 1);
    assert_ok(st_comm_mpi_open_over(&comm, &mpi_standin, 0));
    assert_null(comm);
    assert_int_equal(mpi_standin_closed_whole(), 1);
}

TEST(an_mpi_for_one_thread_is_refused)
{
    struct st_comm *comm = NULL;

    mpi_standin_world(2, 2);
    mpi_standin_serialized(0);
    assert_refused(st_comm_mpi_open_over(&comm, &mpi_standin, 0), STRATA_E_NOSYS,
                   "stand-in of MPI has no MPI_THREAD_SERIALIZED support");
    mpi_standin_serialized(1);
    assert_int_equal(mpi_standin_closed_whole(), 0);
}

/* --- failures --- */

static strata_status large(struct st_comm *comm, struct cf_world *world)
{
    const size_t bytes = LARGE;
    unsigned char *all = malloc(bytes * comm->world.ranks);
    strata_status st;

    (void)world;
    memset(all + bytes * comm->world.rank, (int)comm->world.rank + 1, bytes);
    st = st_comm_gather(comm, all + bytes * comm->world.rank, bytes, all, "gather_weight of page 7");
    for (uint32_t r = 0; r < comm->world.ranks && st == STRATA_OK; r++)
        if (all[bytes * r] != r + 1 || all[bytes * r + bytes - 1] != r + 1)
            st = st_error(STRATA_E_CORRUPT, "rank %u has other bytes", r);
    free(all);
    if (st != STRATA_OK)
        st_comm_abort(comm, strata_last_error());
    return st;
}

static strata_status large_broken(struct st_comm *comm, struct cf_world *world)
{
    mpi_standin_breaks(10000);
    return large(comm, world);
}

TEST(an_error_of_mpi_names_rank_and_call)
{
    struct cf_world world;

    run(large_broken, 2, 0, &world);
    for (uint32_t r = 0; r < 2; r++)
        cf_assert_failed(&world, r, "(during gather_weight of page 7): ");
    assert_true(strstr(world.error[0], "MPI fails with rank 1 (during gather_weight of page 7): the stand-in's error 7") !=
                    NULL ||
                strstr(world.error[1], "MPI fails with rank 0 (during gather_weight of page 7): the stand-in's error 7") != NULL);
    assert_int_equal(mpi_standin_closed_whole(), 0);
}

struct stuck {
    struct st_comm *comm;
    pthread_barrier_t inside;
};

static void *wait_in_mpi(void *arg)
{
    struct stuck *stuck = arg;

    pthread_barrier_wait(&stuck->inside);
    return st_comm_barrier(stuck->comm, "gather_scalars") == STRATA_OK ? stuck : NULL;
}

/* One thread is in MPI and does not come back: the other one says why it gives up, and ends all ranks. */
TEST(an_mpi_that_does_not_return_is_ended)
{
    struct st_comm *comm[2] = {NULL};
    struct stuck stuck = {0};
    pthread_t thread;
    void *came_well;

    mpi_standin_world(2, 2);
    for (uint32_t r = 0; r < 2; r++)
        assert_ok(st_comm_mpi_open_over(&comm[r], &mpi_standin, SHORT));
    stuck.comm = comm[0];
    pthread_barrier_init(&stuck.inside, NULL, 2);
    mpi_standin_hang(1);
    assert_int_equal(pthread_create(&thread, NULL, wait_in_mpi, &stuck), 0);
    pthread_barrier_wait(&stuck.inside);
    mpi_standin_await_hang();
    kept_log_begin(ST_LOG_ERROR);
    st_comm_abort(comm[0], "swap: no space left on device");
    kept_log_end();
    assert_int_equal(kept_log.count, 2);
    assert_non_null(strstr(kept_log.last, "a call of MPI does not return: all ranks are ended by MPI_Abort"));
    assert_int_equal(mpi_standin_ended(), 1);
    mpi_standin_hang(0);
    assert_int_equal(pthread_join(thread, &came_well), 0);
    assert_null(came_well);
    st_comm_abort(comm[1], "ended");
    for (uint32_t r = 0; r < 2; r++)
        st_comm_close(comm[r]);
    pthread_barrier_destroy(&stuck.inside);
}

/* Each call of MPI refused, early and late in a run: every rank ends, with its data right or with a sentence. */
TEST(every_refused_call_ends_all_ranks)
{
    static const char *const sites[] = {"mpi.send", "mpi.receive", "mpi.test", "mpi.close"};

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++)
        for (uint32_t after = 0; after < 8; after += 1 + after / 2) {
            struct st_comm *comm[2];
            struct cf_world world = {.kind = "mpi", .ranks = 2, .deadline_ns = SHORT, .body = large};

            cf_open(&world, comm);
            st_fault_arm(&(struct st_fault_spec){.site = sites[i], .after = after, .count = 1, .result = -1});
            cf_run_opened(&world, comm);
            (void)st_fault_disarm();
            for (uint32_t r = 0; r < 2; r++)
                if (world.status[r] != STRATA_OK)
                    cf_assert_failed(&world, r, "(during gather_weight of page 7)");
        }
}

TEST(every_refusal_at_the_start_is_told)
{
    static const struct {
        const char *site, *part;
        strata_status st;
    } rows[] = {
        {"mpi.open", "mpi: MPI does not start", STRATA_E_IO},
        {"mpi.memory", "no memory", STRATA_E_NOMEM},
        {"mpi.receive", "mpi: MPI fails (during the start)", STRATA_E_IO},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_comm *comm = NULL;

        mpi_standin_world(2, 2);
        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .result = -1});
        assert_refused(st_comm_mpi_open_over(&comm, &mpi_standin, 0), rows[i].st, rows[i].part);
        assert_true(st_fault_disarm() > 0);
        assert_null(comm);
    }
}

/* --- the plugin --- */

static void assert_no_plugin(const char *file, const char *part)
{
    struct st_comm *comm = NULL;

    if (file != NULL)
        setenv("STRATA_MPI", file, 1);
    else
        unsetenv("STRATA_MPI");
    assert_refused(st_comm_mpi_open(&comm, 0), STRATA_E_NOSYS, part);
    assert_null(comm);
}

TEST(what_is_no_plugin_is_told)
{
    assert_no_plugin("/nonexistent/strata_mpi.so", "STRATA_MPI: mpi: /nonexistent/strata_mpi.so cannot be opened: ");
    assert_no_plugin("libm.so.6", "mpi: libm.so.6 has no strata_mpi: it is no part of strata");
    assert_no_plugin(OTHER_PLUGIN, "has interface 99 (16 bytes), this program interface 1 (");
    assert_no_plugin("", "mpi: there is no strata_mpi.so (tried: /");
    assert_no_plugin(NULL, "tests/offload/strata_mpi.so");
    st_fault_arm(&(struct st_fault_spec){.site = "mpi.plugin", .result = -1});
    assert_no_plugin(OTHER_PLUGIN, "cannot be opened: a test refuses it");
    assert_int_equal(st_fault_disarm(), 1);
    st_fault_arm(&(struct st_fault_spec){.site = "mpi.place", .result = -1});
    assert_no_plugin(NULL, "mpi: there is no strata_mpi.so (tried: )");
    assert_true(st_fault_disarm() > 0);
}
