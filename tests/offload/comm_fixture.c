/* tests/offload/comm_fixture.c - see comm_fixture.h. */
#include "tests/common/test.h"
#include "tests/offload/comm_fixture.h"

#include "core/system/clock.h"
#include "offload/comm/comm_mpi.h"
#include "offload/comm/comm_tcp_internal.h"
#include "tests/common/assert_status.h"
#include "tests/offload/mpi_standin.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_free(uint16_t port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool is;

    assert_true(fd >= 0);
    is = bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
    close(fd);
    return is;
}

/* By the time, since tests in process numbers of their own have the same ones. */
static uint16_t choose_port(void)
{
    uint64_t turn = st_clock_ns() / 1000;

    while (!is_free((uint16_t)(10000 + turn % 1000 * 10)))
        turn++;
    return (uint16_t)(10000 + turn % 1000 * 10);
}

uint16_t cf_port(void)
{
    static _Atomic uint16_t port;
    uint16_t none = 0;

    if (atomic_load(&port) == 0)
        atomic_compare_exchange_strong(&port, &none, choose_port());
    return atomic_load(&port);
}

int cf_knock(const void *words, size_t bytes)
{
    union st_address address = {
        .v4 = {.sin_family = AF_INET, .sin_port = htons(st_meet_port(cf_port(), 0)), .sin_addr = {htonl(INADDR_LOOPBACK)}}};
    int fd;

    while ((fd = st_socket_connect(&address, UINT64_MAX)) < 0)
        assert_int_equal(fd, -ECONNREFUSED);
    assert_int_equal(st_socket_send_all(fd, words, bytes, UINT64_MAX), 0);
    return fd;
}

struct rank {
    struct cf_world *world;
    struct st_comm *comm;
    uint32_t index;
    pthread_t thread;
};

/* Other tests of this machine meet by other ports. */
static strata_status open_tcp(struct st_comm **out, const struct cf_world *world, uint32_t rank)
{
    const struct st_comm_tcp_opts opts = {
        .world = {.rank = rank, .ranks = world->ranks, .local_rank = rank, .local_ranks = world->ranks},
        .address = world->address != NULL ? world->address : "127.0.0.1",
        .port = cf_port(),
        .sockets_only = strcmp(world->kind, "tcp") == 0,
    };
    const strata_status st = st_comm_tcp_open(out, &opts);

    if (st == STRATA_OK && world->deadline_ns > 0) /* of the exchanges: meeting takes its time */
        (*out)->deadline_ns = world->deadline_ns;
    return st;
}

static void *rank_main(void *arg)
{
    struct rank *rank = arg;
    struct cf_world *world = rank->world;

    world->status[rank->index] = STRATA_OK;
    if (rank->comm == NULL)
        world->status[rank->index] = open_tcp(&rank->comm, world, rank->index);
    if (world->status[rank->index] == STRATA_OK)
        world->status[rank->index] = world->body(rank->comm, world);
    snprintf(world->error[rank->index], sizeof(world->error[0]), "%s", strata_last_error());
    st_comm_close(rank->comm);
    return NULL;
}

/* Over the stand-in: two ranks a node. */
static void open_mpi(const struct cf_world *world, struct st_comm **comm)
{
    mpi_standin_world(world->ranks, 2);
    for (uint32_t r = 0; r < world->ranks; r++)
        assert_ok(st_comm_mpi_open_over(&comm[r], &mpi_standin, world->deadline_ns));
}

static void open_paced(const struct cf_world *world, struct st_comm **comm)
{
    const struct st_comm_pace pace = {.rate = 1e12};

    assert_ok(st_comm_threads_open(comm, world->ranks, world->deadline_ns));
    for (uint32_t r = 0; r < world->ranks; r++)
        assert_ok(st_comm_paced_open(&comm[r], comm[r], &pace));
}

void cf_open(const struct cf_world *world, struct st_comm **comm)
{
    assert_in_range(world->ranks, 2, CF_RANKS_MAX);
    if (strcmp(world->kind, "mpi") == 0)
        open_mpi(world, comm);
    else if (strcmp(world->kind, "paced") == 0)
        open_paced(world, comm);
    else if (strcmp(world->kind, "tcp") == 0 || strcmp(world->kind, "shared") == 0)
        memset(comm, 0, world->ranks * sizeof(struct st_comm *)); /* each by its own thread */
    else
        assert_ok(st_comm_threads_open(comm, world->ranks, world->deadline_ns));
}

void cf_run_opened(struct cf_world *world, struct st_comm **comm)
{
    struct rank rank[CF_RANKS_MAX];

    for (uint32_t r = 0; r < world->ranks; r++) {
        rank[r] = (struct rank){.world = world, .comm = comm[r], .index = r};
        assert_int_equal(pthread_create(&rank[r].thread, NULL, rank_main, &rank[r]), 0);
    }
    for (uint32_t r = 0; r < world->ranks; r++)
        assert_int_equal(pthread_join(rank[r].thread, NULL), 0);
}

void cf_run(struct cf_world *world)
{
    struct st_comm *comm[CF_RANKS_MAX];

    cf_open(world, comm);
    cf_run_opened(world, comm);
}

void cf_assert_ok(const struct cf_world *world)
{
    for (uint32_t r = 0; r < world->ranks; r++)
        if (world->status[r] != STRATA_OK)
            fail_msg("%s: rank %u of %u: status %d: %s", world->kind, r, world->ranks, world->status[r], world->error[r]);
}

void cf_assert_failed(const struct cf_world *world, uint32_t r, const char *part)
{
    if (world->status[r] != STRATA_E_IO || strstr(world->error[r], part) == NULL)
        fail_msg("%s: rank %u of %u: status %d: '%s' without '%s'", world->kind, r, world->ranks, world->status[r],
                 world->error[r], part);
}
