/* offload/comm/comm_pair.c - every two ranks are connected: those of one node by a local socket and shared memory, others by two
 * connections.
 *
 * The higher rank of two connects; whoever is still to be taken waits in the listener's queue, so that no order can block.  The
 * first words on a connection carry the meeting's cookie: strangers are turned away. */
#include "offload/comm/comm_tcp_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/system/clock.h"
#include "core/system/file.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GREET_NS UINT64_C(5000000000) /* before somebody who does not say who he is is a stranger */

/* The same for processes that can share memory: of one kernel, and one space of local names.  0: not known. */
static uint64_t host_id(void)
{
    char text[256] = {0}, space[128] = {0};
    FILE *boot = st_kernel_file_stream("/proc/sys/kernel/random/boot_id");

    if (boot == NULL)
        return 0;
    if (fgets(text, 64, boot) == NULL)
        text[0] = '\0';
    (void)fclose(boot);
    if (text[0] == '\0' || readlink("/proc/self/ns/net", space, sizeof(space) - 1) <= 0)
        return 0;
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s", space);
    return st_checksum64(text, strlen(text)) | 1;
}

strata_status st_doors_open(struct st_doors *doors, struct st_meeting *meeting)
{
    int port;

    if ((doors->any = st_socket_listen(0)) < 0)
        return st_error_errno(-doors->any, "no socket that listens for other ranks");
    if ((port = st_socket_port(doors->any)) < 0)
        return st_error_errno(-port, "a socket's port");
    meeting->self.port = (uint16_t)port;
    meeting->self.host = meeting->opts->sockets_only ? 0 : host_id();
    if (meeting->self.host == 0)
        return STRATA_OK;
    if ((doors->local = st_socket_listen_local(meeting->self.local)) < 0)
        return st_error_errno(-doors->local, "no local socket that listens for other ranks");
    return STRATA_OK;
}

static bool is_local(const struct st_meeting *meeting, uint32_t rank)
{
    return meeting->self.host != 0 && meeting->places[rank].host == meeting->self.host;
}

/* A local socket, and memory for the rings. */
static strata_status connect_local(struct st_tcp *tcp, const struct st_meeting *meeting, uint32_t rank)
{
    const struct st_greet greet = {.cookie = meeting->cookie, .rank = tcp->comm.world.rank, .kind = ST_GREET_LOCAL};
    struct st_tcp_peer *peer = &tcp->peers[rank];
    uint8_t frame[ST_GREET_BYTES];
    int memory, err;

    peer->control = st_socket_connect_local(meeting->places[rank].local);
    if (peer->control < 0)
        return st_error_errno(-peer->control, "rank %" PRIu32 " of this node cannot be reached", rank);
    if ((err = st_ring_create(&peer->rings, &memory)) != 0)
        return st_error_errno(-err, "no memory to share with rank %" PRIu32, rank);
    st_greet_put(frame, &greet);
    err = st_socket_send_descriptor(peer->control, frame, sizeof(frame), memory);
    st_socket_close(&memory);
    tcp->rings = true;
    return err == 0 ? STRATA_OK : st_error_errno(-err, "rank %" PRIu32 " of this node does not listen", rank);
}

static strata_status connect_one(const struct st_tcp *tcp, const struct st_meeting *meeting, uint32_t rank,
                                 enum st_greet_kind kind, int *fd)
{
    const union st_address address = st_address_of_place(&meeting->places[rank]);
    const struct st_greet greet = {.cookie = meeting->cookie, .rank = tcp->comm.world.rank, .kind = kind};
    uint8_t frame[ST_GREET_BYTES];
    int err;

    *fd = st_socket_connect(&address, meeting->until_ns);
    if (*fd < 0) {
        err = -*fd;
        *fd = -1;
        return st_error_errno(err, "rank %" PRIu32 " cannot be reached at port %u", rank, meeting->places[rank].port);
    }
    st_greet_put(frame, &greet);
    err = st_socket_send_all(*fd, frame, sizeof(frame), meeting->until_ns);
    return err == 0 ? STRATA_OK
                    : st_error_errno(-err, "rank %" PRIu32 " does not listen at port %u", rank, meeting->places[rank].port);
}

static strata_status connect_down(struct st_tcp *tcp, const struct st_meeting *meeting)
{
    strata_status st = STRATA_OK;

    for (uint32_t r = 0; r < tcp->comm.world.rank && st == STRATA_OK; r++)
        if (is_local(meeting, r))
            st = connect_local(tcp, meeting, r);
        else if ((st = connect_one(tcp, meeting, r, ST_GREET_CONTROL, &tcp->peers[r].control)) == STRATA_OK)
            st = connect_one(tcp, meeting, r, ST_GREET_DATA, &tcp->peers[r].data);
    return st;
}

/* Whether somebody who greets like this is a rank that is waited for, by this kind of connection. */
static bool is_awaited(const struct st_tcp *tcp, const struct st_meeting *meeting, const struct st_greet *greet)
{
    const uint32_t r = greet->rank;

    if (greet->cookie != meeting->cookie || r <= tcp->comm.world.rank || r >= tcp->comm.world.ranks)
        return false;
    if (is_local(meeting, r))
        return greet->kind == ST_GREET_LOCAL && tcp->peers[r].control < 0;
    return (greet->kind == ST_GREET_CONTROL && tcp->peers[r].control < 0) ||
           (greet->kind == ST_GREET_DATA && tcp->peers[r].data < 0);
}

/* A connection becomes a rank's. */
static strata_status seat(struct st_tcp *tcp, const struct st_greet *greet, int fd, int memory)
{
    struct st_tcp_peer *peer = &tcp->peers[greet->rank];
    int err;

    *(greet->kind == ST_GREET_DATA ? &peer->data : &peer->control) = fd;
    if (greet->kind != ST_GREET_LOCAL)
        return STRATA_OK;
    tcp->rings = true;
    err = st_ring_attach(&peer->rings, memory);
    return err == 0 ? STRATA_OK : st_error_errno(-err, "rank %" PRIu32 "'s memory cannot be shared", greet->rank);
}

/* Takes one connection; *taken: there was one, be it a stranger's, who says something else, nothing, or leaves. */
static strata_status take_one(struct st_tcp *tcp, const struct st_meeting *meeting, int door, bool *taken)
{
    uint8_t frame[ST_GREET_BYTES];
    struct st_greet greet;
    int fd = st_socket_accept(door), memory = -1, err;
    strata_status st = STRATA_OK;

    *taken = fd >= 0;
    if (fd < 0)
        return fd == -EAGAIN ? STRATA_OK : st_error_errno(-fd, "no connection can be taken from other ranks");
    err = st_socket_receive_descriptor(fd, frame, sizeof(frame), &memory, st_clock_ns() + GREET_NS);
    if (err == 0 && st_greet_get(&greet, frame) && is_awaited(tcp, meeting, &greet)) {
        st = seat(tcp, &greet, fd, memory);
        fd = -1;
    } else if (err != 0 && err != -ECONNRESET && err != -ETIMEDOUT && err != -EPROTO) {
        st = st_error_errno(-err, "a connection from another rank"); /* it may be one that believes to be connected */
    }
    st_socket_close(&memory);
    st_socket_close(&fd);
    return st;
}

static uint32_t first_missing(const struct st_tcp *tcp)
{
    for (uint32_t r = tcp->comm.world.rank + 1; r < tcp->comm.world.ranks; r++)
        if (tcp->peers[r].control < 0 || (tcp->peers[r].data < 0 && tcp->peers[r].rings.memory == NULL))
            return r;
    return 0;
}

static strata_status accept_up(struct st_tcp *tcp, const struct st_meeting *meeting, const struct st_doors *doors)
{
    strata_status st = STRATA_OK;
    uint32_t missing;

    while (st == STRATA_OK && (missing = first_missing(tcp)) > 0) {
        struct pollfd polls[2] = {{.fd = doors->any, .events = POLLIN}, {.fd = doors->local, .events = POLLIN}};
        const int ready = st_socket_poll(polls, 2, st_meet_tick(meeting));

        if (ready < 0)
            return st_error_errno(-ready, "rank %" PRIu32 " is waited for", missing);
        for (int i = 0; i < 2 && st == STRATA_OK; i++)
            for (bool taken = polls[i].revents != 0; taken && st == STRATA_OK && first_missing(tcp) > 0;)
                st = take_one(tcp, meeting, polls[i].fd, &taken);
        if (st == STRATA_OK && ready == 0 && st_clock_ns() >= meeting->until_ns)
            return st_error(STRATA_E_IO, "rank %" PRIu32 " joined but opened no connection: see its output", missing);
        if (st == STRATA_OK)
            st = st_meet_cancelled(meeting);
    }
    return st;
}

strata_status st_pair_all(struct st_tcp *tcp, const struct st_meeting *meeting, const struct st_doors *doors)
{
    strata_status st = connect_down(tcp, meeting);

    return st == STRATA_OK ? accept_up(tcp, meeting, doors) : st;
}
