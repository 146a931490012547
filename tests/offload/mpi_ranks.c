/* mpi_ranks.c - one rank under mpirun, over the real strata_mpi.so:
 *
 *     mpi_ranks exchange   bytes of many sizes and cuts arrive, and MPI is ended
 *     mpi_ranks speed      GB/s of each rank, sent and received
 *     mpi_ranks sizes | elsewhere | abort | hang
 *
 * In the last four the last rank does otherwise, the others print what they are told, and mpirun ends those that stay when the
 * first one leaves, as the last rank does. Exit code: 0, or that of the failure's status. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "offload/comm/comm_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS    6u
#define PARTS_MAX 700u
#define HANG_NS   UINT64_C(300000000)

struct rank {
    struct st_comm *comm;
    struct st_comm_peer *peers;
    struct st_comm_part *send, *recv; /* [ranks][PARTS_MAX] */
    unsigned char **out, **in;        /* [ranks] */
};

static unsigned char byte_of(uint32_t from, uint32_t to, uint64_t i)
{
    return (unsigned char)((i * 2654435761u >> 9) + from * 31 + to * 17);
}

static uint32_t cut(struct st_comm_part *parts, unsigned char *data, uint64_t bytes, uint64_t each)
{
    uint32_t count = 0;

    for (uint64_t at = 0; at < bytes; count++) {
        const uint64_t left = bytes - at, size = count + 1 < PARTS_MAX && each < left ? each : left;

        parts[count] = (struct st_comm_part){data + at, size};
        at += size;
    }
    return count;
}

static void prepare(struct rank *k, uint64_t bytes, uint64_t each)
{
    const struct st_world *w = &k->comm->world;

    for (uint32_t r = 0; r < w->ranks; r++) {
        if (r == w->rank)
            continue;
        k->out[r] = malloc(bytes + 1);
        k->in[r] = calloc(bytes + 1, 1);
        for (uint64_t i = 0; i < bytes; i++)
            k->out[r][i] = byte_of(w->rank, r, i);
        k->peers[r].send = &k->send[r * PARTS_MAX];
        k->peers[r].recv = &k->recv[r * PARTS_MAX];
        k->peers[r].send_count = cut(&k->send[r * PARTS_MAX], k->out[r], bytes, each);
        k->peers[r].recv_count = cut(&k->recv[r * PARTS_MAX], k->in[r], bytes, each + 13 * w->rank);
    }
}

static strata_status check_and_free(struct rank *k, uint64_t bytes)
{
    const struct st_world *w = &k->comm->world;
    strata_status st = STRATA_OK;

    for (uint32_t r = 0; r < w->ranks; r++) {
        for (uint64_t i = 0; r != w->rank && i < bytes && st == STRATA_OK; i++)
            if (k->in[r][i] != byte_of(r, w->rank, i))
                st = st_error(STRATA_E_CORRUPT, "byte %llu of rank %u", (unsigned long long)i, r);
        free(k->out[r]);
        free(k->in[r]);
        k->out[r] = k->in[r] = NULL;
    }
    return st;
}

static strata_status exchange(struct rank *k)
{
    static const uint64_t sizes[] = {0, 5, 3900, 4096, 70001, 1 << 20, 5000011};
    const struct st_world *w = &k->comm->world;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < ROUNDS * 7 && st == STRATA_OK; i++) {
        const uint64_t bytes = sizes[i % 7], each = i % 3 == 0 ? bytes + 1 : 8192 + i;

        prepare(k, bytes, each);
        st = st_comm_exchange(k->comm, k->peers, "exchange_rows of page 0");
        if (st == STRATA_OK)
            st = check_and_free(k, bytes);
    }
    if (st == STRATA_OK)
        printf("rank %u of %u, %u of %u of its node: all bytes are right\n", w->rank, w->ranks, w->local_rank, w->local_ranks);
    return st;
}

static strata_status fail(struct rank *k, const char *how)
{
    const struct st_world *w = &k->comm->world;
    const bool odd = w->rank + 1 == w->ranks;
    unsigned char mine[16] = {0}, *all = calloc(w->ranks, sizeof(mine));
    strata_status st;

    if (odd && strcmp(how, "hang") == 0)
        pause();
    if (odd && strcmp(how, "abort") == 0)
        st_comm_abort(k->comm, "swap: no space left on device");
    st = st_comm_gather(k->comm, mine, odd && strcmp(how, "sizes") == 0 ? 8 : 16, all,
                        odd && strcmp(how, "elsewhere") == 0 ? "gather_grad of page 7" : "gather_weight of page 7");
    free(all);
    if (odd)
        pause();
    return st;
}

/* Each rank sends `bytes` in all and receives as many: of a page that is gathered by N ranks, (N - 1) / N. */
static strata_status speed_of(struct rank *k, uint64_t bytes, uint64_t each, const char *kind)
{
    const struct st_world *w = &k->comm->world;
    const uint64_t to_each = bytes / (w->ranks - 1);
    const uint32_t rounds = (uint32_t)((UINT64_C(1) << 30) / bytes);
    uint64_t since = 0;
    strata_status st = STRATA_OK;

    prepare(k, to_each, each < to_each ? each : to_each);
    for (uint32_t i = 0; i < rounds + 3 && st == STRATA_OK; i++) {
        since = i == 3 ? st_clock_ns() : since;
        st = st_comm_exchange(k->comm, k->peers, "speed");
    }
    if (st == STRATA_OK && w->rank == 0)
        printf("%u ranks, %4.0f MiB a rank%s: %.2f GB/s sent and as much received\n", w->ranks, (double)bytes / 1048576, kind,
               (double)to_each * (w->ranks - 1) * rounds / (double)(st_clock_ns() - since));
    return st == STRATA_OK ? check_and_free(k, to_each) : st;
}

static strata_status speed(struct rank *k)
{
    strata_status st = speed_of(k, 1 << 20, UINT64_MAX, "");

    if (st == STRATA_OK)
        st = speed_of(k, 64 << 20, UINT64_MAX, "");
    if (st == STRATA_OK)
        st = speed_of(k, 2 << 20, 4096, ", in parts of 4 KiB");
    return st == STRATA_OK ? speed_of(k, 4 << 20, 16384, ", in parts of 16 KiB") : st;
}

static strata_status run(struct rank *k, const char *what)
{
    const uint32_t ranks = k->comm->world.ranks;
    strata_status st;

    k->peers = calloc(ranks, sizeof(*k->peers));
    k->send = calloc(ranks * PARTS_MAX, sizeof(*k->send));
    k->recv = calloc(ranks * PARTS_MAX, sizeof(*k->recv));
    k->out = calloc(ranks, sizeof(*k->out));
    k->in = calloc(ranks, sizeof(*k->in));
    st = strcmp(what, "exchange") == 0 ? exchange(k) : strcmp(what, "speed") == 0 ? speed(k) : fail(k, what);
    free(k->peers);
    free(k->send);
    free(k->recv);
    free(k->out);
    free(k->in);
    return st;
}

int main(int argc, char **argv)
{
    struct rank k = {0};
    strata_status st = st_comm_mpi_open(&k.comm, argc > 1 && strcmp(argv[1], "hang") == 0 ? HANG_NS : 0);

    if (st == STRATA_OK && k.comm == NULL)
        printf("a rank alone\n");
    else if (st == STRATA_OK)
        st = run(&k, argc > 1 ? argv[1] : "exchange");
    if (st != STRATA_OK)
        printf("told: %s\n", strata_last_error());
    fflush(stdout);
    st_comm_close(k.comm);
    return strata_status_exit_code(st);
}
