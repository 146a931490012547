/* cut_alike.c - see cut_alike.h. */
#include "tests/engine/cut_alike.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "offload/comm/comm_internal.h"

#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 8u

struct cut_alike {
    struct st_comm base;
    struct st_comm *under;
};

/* The ops whose parts lie on the device, where there is one. */
static bool on_device(const char *what)
{
    static const char *const starts[] = {"gather_weight", "gather_grad", "exchange_grad", "exchange_rounded",
                                         "the first gather of page"};

    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++)
        if (strncmp(what, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static uint64_t cuts_of(const struct st_comm_part *parts, uint32_t count)
{
    uint64_t hash[2] = {0};

    for (uint32_t i = 0; i < count; i++)
        if ((hash[1] = parts[i].bytes) > 0)
            hash[0] = st_checksum64(hash, sizeof(hash));
    return hash[0];
}

static strata_status compare(struct cut_alike *c, const struct st_comm_peer *peers, const char *what)
{
    const uint32_t ranks = c->base.world.ranks, rank = c->base.world.rank;
    uint64_t mine[RANKS_MAX] = {0}, all[RANKS_MAX][RANKS_MAX];
    strata_status st;

    for (uint32_t r = 0; r < ranks; r++)
        mine[r] = cuts_of(peers[r].send, peers[r].send_count);
    st = st_comm_gather(c->under, mine, sizeof(mine), all, "cuts");
    for (uint32_t r = 0; r < ranks && st == STRATA_OK; r++)
        if (r != rank && all[r][rank] != cuts_of(peers[r].recv, peers[r].recv_count))
            st = st_error(STRATA_E_INTERNAL, "%s: rank %u cuts what it sends otherwise than rank %u what it receives", what, r,
                          rank);
    return st;
}

static strata_status cut_alike_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what)
{
    struct cut_alike *c = (struct cut_alike *)(void *)comm;
    strata_status st = on_device(what) ? compare(c, peers, what) : STRATA_OK;

    return st == STRATA_OK ? st_comm_exchange(c->under, peers, what) : st;
}

static void cut_alike_abort(struct st_comm *comm, const char *sentence)
{
    st_comm_abort_as(((struct cut_alike *)(void *)comm)->under, comm->status, sentence);
}

static void cut_alike_close(struct st_comm *comm)
{
    struct cut_alike *c = (struct cut_alike *)(void *)comm;

    st_comm_close(c->under);
    st_comm_fini(&c->base);
    free(c);
}

static const struct st_comm_ops cut_alike_ops = {
    .name = "cut_alike", .exchange = cut_alike_exchange, .abort = cut_alike_abort, .close = cut_alike_close};

strata_status cut_alike_open(struct st_comm **out, struct st_comm *under)
{
    struct cut_alike *c = calloc(1, sizeof(*c));

    if (c == NULL || under->world.ranks > RANKS_MAX)
        return st_error(STRATA_E_NOMEM, "no memory for a comm");
    *out = &c->base;
    c->under = under;
    return st_comm_init(&c->base, &cut_alike_ops, &under->world, under->deadline_ns);
}
