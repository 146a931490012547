/* api/door_comm.c - strata/comm.h: finds the ranks of a run and connects them. */
#include "api/handles.h"
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/kernel_text.h"
#include "core/system/launch.h"
#include "offload/comm/comm.h"
#include "offload/comm/comm_mpi.h"
#include "run/ranks_agree.h"
#include "run/ranks_turns.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#define NS_PER_SECOND UINT64_C(1000000000)

_Static_assert(ST_LAUNCH_RANKS_MAX == ST_COMM_RANKS_MAX, "what launchers may say is what can meet");
_Static_assert(ST_LAUNCH_ADDRESS_MAX == sizeof(((struct strata_comm_opts *)0)->address), "an address has room in both");

/* --- who --- */

static strata_status take_opts(struct strata_comm_opts *o, const struct strata_comm_opts *opts)
{
    return st_handle_opts(o, sizeof(*o), opts, "strata_comm_opts");
}

static strata_status check_kind(const char *kind)
{
    static const char *const kinds[] = {"auto", "mpi", "tcp"};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kind == NULL || strcmp(kind, kinds[i]) == 0)
            return STRATA_OK;
    return st_error(STRATA_E_INVAL, "ranks cannot meet by \"%s\": use auto, mpi or tcp", kind);
}

strata_status strata_comm_find(struct strata_comm_opts *opts, const char *const *variables)
{
    struct st_launch l = ST_LAUNCH_UNKNOWN;
    struct strata_comm_opts o;
    strata_status st;

    if (opts == NULL)
        return st_error_missing(__func__, "opts");
    if ((st = take_opts(&o, opts)) != STRATA_OK || (st = check_kind(o.kind)) != STRATA_OK)
        return st;
    if (o.ranks != 0)
        l.rank = o.rank, l.ranks = o.ranks;
    if (o.local_ranks != 0)
        l.local_rank = o.local_rank, l.local_ranks = o.local_ranks;
    memcpy(l.address, o.address, sizeof(l.address));
    l.port = o.port;
    if ((st = st_launch_find(&l, variables != NULL ? variables : (const char *const *)environ)) != STRATA_OK)
        return st;
    o.rank = l.rank;
    o.ranks = l.ranks;
    o.local_rank = l.local_rank != ST_LAUNCH_NONE && l.local_ranks != ST_LAUNCH_NONE ? l.local_rank : 0;
    o.local_ranks = l.local_rank != ST_LAUNCH_NONE && l.local_ranks != ST_LAUNCH_NONE ? l.local_ranks : 0;
    memcpy(o.address, l.address, sizeof(o.address));
    o.port = l.port;
    o.mpi = o.mpi || l.mpi;
    o.source = l.source;
    return st_handle_result(opts, &o, sizeof(o), "strata_comm_opts");
}

const char *strata_comm_variable(uint32_t index)
{
    return st_launch_variable(index);
}

/* --- meeting --- */

static strata_status open_tcp(struct st_comm **out, const struct strata_comm_opts *o)
{
    const struct st_comm_tcp_opts opts = {
        .world = {o->rank, o->ranks, o->local_rank, o->local_ranks},
        .address = o->address,
        .port = (uint16_t)o->port,
        .deadline_ns = o->deadline_seconds * NS_PER_SECOND,
    };

    if (o->address[0] == '\0')
        return st_error_remedy(
            st_error(STRATA_E_INVAL, "the ranks are on several machines, and the address of rank 0 is not set"), "comm.address",
            "set MASTER_ADDR and MASTER_PORT, or say comm.address and comm.port");
    return st_comm_tcp_open(out, &opts);
}

/* *out stays NULL where MPI knows of one rank only, as under an srun that starts no MPI. */
static strata_status open_mpi(struct st_comm **out, const struct strata_comm_opts *o)
{
    struct st_comm *comm = NULL;
    const strata_status st = st_comm_mpi_open(&comm, o->deadline_seconds * NS_PER_SECOND);

    if (st != STRATA_OK || comm == NULL || (comm->world.rank == o->rank && comm->world.ranks == o->ranks)) {
        *out = st == STRATA_OK ? comm : NULL;
        return st;
    }
    (void)st_error(STRATA_E_CONFIG, "MPI says rank %u of %u, but %s says %u of %u", comm->world.rank, comm->world.ranks,
                   o->source != NULL ? o->source : "the caller", o->rank, o->ranks);
    st_comm_abort_as(comm, STRATA_E_CONFIG, strata_last_error());
    st_comm_close(comm);
    return STRATA_E_CONFIG;
}

/* Each rank finds out by itself whether MPI opens: where it does only on some of them, the two kinds wait for each other. */
static strata_status open_tcp_instead(struct st_comm **out, const struct strata_comm_opts *o)
{
    char why[1024], sentence[1024];
    strata_status st;

    snprintf(why, sizeof(why), "%s", strata_last_error());
    st_log(ST_LOG_INFO, "the ranks meet by tcp, not by MPI: %s", why);
    if ((st = open_tcp(out, o)) == STRATA_OK)
        return STRATA_OK;
    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    return st_error(st, "%s; this rank uses tcp, and ranks where MPI opens wait there: MPI does not open here: %s", sentence,
                    why);
}

static strata_status open_kind(struct st_comm **out, const struct strata_comm_opts *o)
{
    const char *kind = o->kind != NULL ? o->kind : "auto";
    const bool asked = strcmp(kind, "mpi") == 0, found = strcmp(kind, "auto") == 0;
    strata_status st = STRATA_OK;

    if (asked || (found && o->mpi))
        st = open_mpi(out, o);
    if (st == STRATA_E_NOSYS && found)
        return open_tcp_instead(out, o);
    if (*out != NULL || st != STRATA_OK)
        return st;
    if (asked)
        return st_error(STRATA_E_NOSYS, "MPI sees only this process, not %u ranks: start them with mpirun", o->ranks);
    return open_tcp(out, o);
}

/* What tells the processes of one machine, and those that may use the same cores, from others. */
struct place {
    uint64_t machine, cores;
    uint64_t processes; /* which numbers of processes mean the same: a machine's, or a container's */
    uint64_t pid;
};

/* A name and the kernel's number of this start: containers of one machine have different names, and are told apart; machines
 * may have one name, and each has started by itself. */
static strata_status find_place(struct place *place)
{
    struct st_topology *topology;
    char text[4096] = "", boot[ST_KERNEL_TEXT_MAX];
    struct utsname name;
    struct stat space;
    strata_status st;
    int fd;

    if (st_fault_refuses("api.uname") || uname(&name) != 0)
        return st_error_errno(errno, "this machine's name");
    fd = st_fault_refuses("api.boot_id") ? -1 : st_kernel_text_open("/proc/sys/kernel/random", "boot_id");
    (void)st_kernel_text_read(fd, boot);
    if (fd >= 0)
        close(fd);
    snprintf(text, sizeof(text), "%s %.64s", name.nodename, boot);
    place->machine = st_checksum64(text, strlen(text));
    place->processes = 0;
    if (!st_fault_refuses("api.ns_stat") && stat("/proc/self/ns/pid", &space) == 0)
        place->processes = space.st_ino;
    place->pid = (uint64_t)getpid();
    if ((st = st_topology_load(&topology, NULL)) != STRATA_OK)
        return st;
    st_topology_units_text(topology, UINT32_MAX, UINT32_MAX, text, sizeof(text));
    place->cores = st_checksum64(text, strlen(text));
    st_topology_destroy(topology);
    return STRATA_OK;
}

/* Ranks that meet by tcp are told by their connections. */
static strata_status watch_processes(struct strata_comm *c, const struct place *all)
{
    const struct place *mine = &all[c->world.rank];
    pid_t pids[ST_COMM_RANKS_MAX] = {0};

    for (uint32_t r = 0; r < c->world.ranks; r++)
        if (mine->processes != 0 && all[r].machine == mine->machine && all[r].processes == mine->processes)
            pids[r] = (pid_t)all[r].pid;
    return st_comm_watch_open(&c->watch, c->comm, pids);
}

/* Which part of the machine's cores and memory is this rank's: ranks that a launcher has bound to cores keep them.
 */
static strata_status find_share(struct strata_comm *c, bool local_known)
{
    const uint32_t rank = c->world.rank;
    struct place mine, *all = st_fault_refuses("api.places") ? NULL : calloc(c->world.ranks, sizeof(*all));
    uint32_t before = 0, here = 0;
    strata_status st;

    if (all == NULL)
        return st_nomem(c->world.ranks * sizeof(*all));
    st = find_place(&mine);
    if (st == STRATA_OK)
        st = st_comm_gather(c->comm, &mine, sizeof(mine), all, "places of the ranks");
    c->share = (struct st_topology_share){0};
    for (uint32_t r = 0; r < c->world.ranks && st == STRATA_OK; r++) {
        while (all[c->node_of[r]].machine != all[r].machine)
            c->node_of[r]++;
        if (all[r].machine != mine.machine)
            continue;
        before += r < rank;
        here++;
        c->share.units += r < rank && all[r].cores == mine.cores;
        c->share.of_units += all[r].cores == mine.cores;
    }
    if (st == STRATA_OK && strcmp(c->comm->ops->name, "mpi") == 0)
        st = watch_processes(c, all);
    free(all);
    if (st != STRATA_OK)
        return st;
    if (!local_known)
        c->world.local_rank = before, c->world.local_ranks = here;
    c->share.memory = c->world.local_ranks;
    return STRATA_OK;
}

static strata_status check_opts(struct strata_comm_opts *o)
{
    if (o->ranks == 0 || o->ranks > ST_COMM_RANKS_MAX || o->rank >= o->ranks)
        return st_error(STRATA_E_INVAL, "rank %u of %u is out of range: a run has 1 to %u ranks, numbered from 0", o->rank,
                        o->ranks, ST_COMM_RANKS_MAX);
    if (o->local_ranks != 0 && o->local_rank >= o->local_ranks)
        return st_error(STRATA_E_INVAL, "local rank %u of %u is out of range: they are numbered from 0", o->local_rank,
                        o->local_ranks);
    if (o->port > UINT16_MAX)
        return st_error(STRATA_E_INVAL, "port %u is out of range: 1 to %u", o->port, UINT16_MAX);
    if (memchr(o->address, '\0', sizeof(o->address)) == NULL)
        return st_error(STRATA_E_INVAL, "the address of rank 0 is longer than %zu bytes", sizeof(o->address));
    o->port = o->port != 0 ? o->port : 29500;
    if (o->deadline_seconds == 0)
        o->deadline_seconds =
            o->config != NULL ? o->config->values.comm_deadline : (uint32_t)(ST_COMM_DEADLINE_NS / NS_PER_SECOND);
    return check_kind(o->kind); /* of one rank, too, which does not meet any */
}

static strata_status meet(struct strata_comm *c, const struct strata_comm_opts *o)
{
    strata_status st;

    c->world = (struct st_world){o->rank, o->ranks, o->local_rank, o->local_ranks != 0 ? o->local_ranks : 1};
    c->source = o->source != NULL ? o->source : "";
    if (o->ranks == 1)
        return STRATA_OK;
    if ((st = open_kind(&c->comm, o)) != STRATA_OK || (st = find_share(c, o->local_ranks != 0)) != STRATA_OK)
        return st;
    c->comm->world = c->world;
    if (strcmp(c->comm->ops->name, "tcp") == 0 && st_launch_by_hand(o->source))
        c->comm->doubt = "or ranks of two runs have met: give each run another MASTER_PORT";
    return STRATA_OK;
}

strata_status strata_comm_open(struct strata_comm **comm, const struct strata_comm_opts *opts)
{
    struct strata_comm_opts o;
    struct strata_comm *c;
    strata_status st;

    if (comm == NULL || opts == NULL)
        return st_error_missing(__func__, comm == NULL ? "comm" : "opts");
    if ((st = take_opts(&o, opts)) != STRATA_OK || (st = check_opts(&o)) != STRATA_OK)
        return st;
    c = st_fault_refuses("api.comm") ? NULL : calloc(1, sizeof(*c));
    if (c == NULL)
        return st_nomem(sizeof(*c));
    if ((st = meet(c, &o)) != STRATA_OK) {
        strata_comm_abort_as(c, st, strata_last_error());
        strata_comm_close(c);
        return st;
    }
    *comm = c;
    return STRATA_OK;
}

void strata_comm_close(struct strata_comm *comm)
{
    if (comm == NULL)
        return;
    st_comm_watch_close(comm->watch);
    st_comm_close(comm->comm);
    free(comm);
}

/* --- questions --- */

strata_status strata_comm_get_info(const struct strata_comm *comm, struct strata_comm_info *info)
{
    struct strata_comm_info i = {0};

    if (comm == NULL || info == NULL)
        return st_error_missing(__func__, comm == NULL ? "comm" : "info");
    i.rank = comm->world.rank;
    i.ranks = comm->world.ranks;
    i.local_rank = comm->world.local_rank;
    i.local_ranks = comm->world.local_ranks;
    i.kind = comm->comm != NULL ? comm->comm->ops->name : "none";
    i.source = comm->source;
    return st_handle_result(info, &i, sizeof(i), "strata_comm_info");
}

strata_status strata_comm_gather(struct strata_comm *comm, const void *mine, size_t bytes, void *all, const char *what)
{
    if (comm == NULL || mine == NULL || all == NULL || what == NULL)
        return st_error_missing(__func__, comm == NULL ? "comm" : mine == NULL ? "mine" : all == NULL ? "all" : "what");
    if (bytes == 0)
        return st_error(STRATA_E_INVAL, "%s: bytes is 0", __func__);
    if (comm->comm != NULL)
        return st_comm_gather(comm->comm, mine, bytes, all, what);
    memcpy(all, mine, bytes);
    return STRATA_OK;
}

strata_status strata_comm_agree(struct strata_comm *comm, const char *const *names, const char *const *texts, uint32_t count)
{
    struct st_comm_fact *facts;
    strata_status st;

    if (comm == NULL || names == NULL || texts == NULL)
        return st_error_missing(__func__, comm == NULL ? "comm" : names == NULL ? "names" : "texts");
    for (uint32_t i = 0; i < count; i++)
        if (names[i] == NULL || texts[i] == NULL)
            return st_error_missing(__func__, names[i] == NULL ? "one of names" : "one of texts");
    if (comm->comm == NULL || count == 0)
        return STRATA_OK;
    facts = st_fault_refuses("api.facts") ? NULL : calloc(count, sizeof(*facts));
    if (facts == NULL)
        return st_nomem(count * sizeof(*facts));
    for (uint32_t i = 0; i < count; i++)
        facts[i] = (struct st_comm_fact){.name = names[i], .text = texts[i]};
    st = st_ranks_agree(comm->comm, facts, count, "what the ranks agree on");
    free(facts);
    return st;
}

strata_status strata_comm_take_turns(struct strata_comm *comm, strata_status (*work)(void *ctx), void *ctx, const char *what)
{
    if (work == NULL || what == NULL)
        return st_error_missing(__func__, work == NULL ? "work" : "what");
    return st_ranks_take_turns(comm != NULL ? comm->comm : NULL, work, ctx, what);
}

void strata_comm_abort_as(struct strata_comm *comm, strata_status st, const char *sentence)
{
    if (comm != NULL)
        st_comm_abort_as(comm->comm, st, sentence != NULL ? sentence : "no reason is given");
}

void strata_comm_abort(struct strata_comm *comm, const char *sentence)
{
    strata_comm_abort_as(comm, STRATA_E_IO, sentence);
}
