/* tests/perf/bench_comm.c - how fast ranks of one machine exchange bytes.
 *
 * Every rank sends each other one as many bytes as it receives of it, from host memory to host memory, and each rank is a thread
 * of this program with its own end of the connections: the bytes go the way that they go between processes.  GB/s are what one
 * rank receives; all receive at the same time.  The roof is what one thread's memcpy moves while as many others copy, too: a copy
 * through memory that both see is two of them, one by either side.
 *
 *     bench_comm [REPEATS]      prints the median of the repeats; kinds take turns */
#include "core/base/print.h"
#include "core/system/clock.h"
#include "core/system/thread.h"
#include "offload/comm/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_MAX   4u
#define REPEATS_MAX 101u
#define BYTES_MAX   (UINT64_C(64) << 20)
#define KINDS       4u

static const char *const kinds[KINDS] = {"memcpy", "threads", "tcp", "shared"};

struct rank {
    const char *kind;
    struct st_comm *comm; /* NULL: tcp and shared open their own */
    uint32_t rank, ranks, repeats;
    uint64_t bytes;
    pthread_barrier_t *start;
    uint64_t ns[REPEATS_MAX]; /* by rank 0 */
    pthread_t thread;
};

static void give_up(const char *what)
{
    st_print(stderr, "bench_comm: %s: %s\n", what, strata_last_error());
    exit(1);
}

static void open_tcp(struct rank *r)
{
    const struct st_comm_tcp_opts opts = {.world = {r->rank, r->ranks, r->rank, r->ranks},
                                          .address = "127.0.0.1",
                                          .port = (uint16_t)(20000 + getpid() % 1000 * 10),
                                          .sockets_only = strcmp(r->kind, "tcp") == 0};

    if (st_comm_tcp_open(&r->comm, &opts) != STRATA_OK)
        give_up(r->kind);
}

static void pass(const struct rank *r, const struct st_comm_peer *peers)
{
    if (r->comm != NULL) {
        if (st_comm_exchange(r->comm, peers, "bench") != STRATA_OK)
            give_up(r->kind);
        return;
    }
    for (uint32_t p = 0; p < r->ranks; p++)
        if (p != r->rank)
            memcpy(peers[p].recv->data, peers[p].send->data, r->bytes);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    uint8_t *memory = malloc(2 * RANKS_MAX * r->bytes);
    struct st_comm_part parts[2 * RANKS_MAX];
    struct st_comm_peer peers[RANKS_MAX] = {{0}};

    if (memory == NULL)
        give_up("no memory");
    memset(memory, (int)r->rank, 2 * RANKS_MAX * r->bytes);
    if (r->comm == NULL && strcmp(r->kind, "memcpy") != 0)
        open_tcp(r);
    for (uint32_t p = 0; p < r->ranks; p++) {
        parts[2 * p] = (struct st_comm_part){.data = memory + 2 * p * r->bytes, .bytes = r->bytes};
        parts[2 * p + 1] = (struct st_comm_part){.data = memory + (2 * p + 1) * r->bytes, .bytes = r->bytes};
        if (p != r->rank)
            peers[p] = (struct st_comm_peer){&parts[2 * p], &parts[2 * p + 1], 1, 1};
    }
    pass(r, peers);
    for (uint32_t i = 0; i < r->repeats; i++) {
        uint64_t since_ns;

        pthread_barrier_wait(r->start);
        since_ns = st_clock_ns();
        pass(r, peers);
        pthread_barrier_wait(r->start);
        r->ns[i] = st_clock_ns() - since_ns;
    }
    st_comm_close(r->comm);
    free(memory);
    return NULL;
}

static int by_time(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static double run(const char *kind, uint32_t ranks, uint64_t bytes, uint32_t repeats)
{
    static struct rank rank[RANKS_MAX];
    struct st_comm *comm[RANKS_MAX] = {NULL};
    pthread_barrier_t start;

    pthread_barrier_init(&start, NULL, ranks);
    if (strcmp(kind, "threads") == 0 && st_comm_threads_open(comm, ranks, 0) != STRATA_OK)
        give_up(kind);
    for (uint32_t r = 0; r < ranks; r++) {
        rank[r] = (struct rank){
            .kind = kind, .comm = comm[r], .rank = r, .ranks = ranks, .repeats = repeats, .bytes = bytes, .start = &start};
        if (st_thread_start(&rank[r].thread, "bench-rank", rank_main, &rank[r]) != STRATA_OK)
            give_up("no thread");
    }
    for (uint32_t r = 0; r < ranks; r++)
        pthread_join(rank[r].thread, NULL);
    pthread_barrier_destroy(&start);
    qsort(rank[0].ns, repeats, sizeof(rank[0].ns[0]), by_time);
    return (double)((ranks - 1) * bytes) / (double)rank[0].ns[repeats / 2];
}

int main(int argc, char **argv)
{
    static const uint64_t sizes[] = {UINT64_C(4) << 10, UINT64_C(1) << 20, BYTES_MAX};
    const long asked = argc > 1 ? strtol(argv[1], NULL, 10) : 11;
    const uint32_t repeats = asked < 1 ? 1 : asked > (long)REPEATS_MAX ? REPEATS_MAX : (uint32_t)asked;

    st_print(stdout, "ranks   bytes to each");
    for (uint32_t k = 0; k < KINDS; k++)
        st_print(stdout, " %13s", kinds[k]);
    st_print(stdout, "   GB/s that a rank receives, median of %u\n", repeats);
    for (uint32_t ranks = 2; ranks <= RANKS_MAX; ranks += 2)
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            st_print(stdout, "%5u %15llu", ranks, (unsigned long long)sizes[s]);
            for (uint32_t k = 0; k < KINDS; k++)
                st_print(stdout, " %13.3f", run(kinds[k], ranks, sizes[s], repeats));
            st_print(stdout, "\n");
            (void)fflush(stdout);
        }
    return 0;
}
