/* offload/comm/comm_pair.c - every two ranks are connected.
 *
 * The higher rank of two connects; whoever is still to be taken waits in the listener's queue, so that no order can block.  The
 * first words on a connection carry the meeting's cookie: strangers are turned away. */
#include "offload/comm/comm_tcp_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>

#define GREET_NS UINT64_C(5000000000) /* before somebody who does not say who he is is a stranger */

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
        if ((st = connect_one(tcp, meeting, r, ST_GREET_CONTROL, &tcp->peers[r].control)) == STRATA_OK)
            st = connect_one(tcp, meeting, r, ST_GREET_DATA, &tcp->peers[r].data);
    return st;
}

/* The place for a connection that greets like this; NULL: a stranger. */
static int *place_of(struct st_tcp *tcp, const struct st_meeting *meeting, const struct st_greet *greet)
{
    struct st_tcp_peer *peer = &tcp->peers[greet->rank < tcp->comm.world.ranks ? greet->rank : 0];
    int *fd = greet->kind == ST_GREET_CONTROL ? &peer->control : &peer->data;

    if (greet->cookie != meeting->cookie || greet->rank <= tcp->comm.world.rank || greet->rank >= tcp->comm.world.ranks)
        return NULL;
    return *fd < 0 ? fd : NULL;
}

/* Takes one connection; *taken: it is of a rank. */
static strata_status take_one(struct st_tcp *tcp, const struct st_meeting *meeting, int listener, bool *taken)
{
    uint8_t frame[ST_GREET_BYTES];
    struct st_greet greet;
    int fd = st_socket_accept(listener), *place = NULL;

    *taken = false;
    if (fd < 0)
        return fd == -EAGAIN ? STRATA_OK : st_error_errno(-fd, "no connection can be taken from other ranks");
    if (st_socket_receive_all(fd, frame, sizeof(frame), st_clock_ns() + GREET_NS) == 0 && st_greet_get(&greet, frame))
        place = place_of(tcp, meeting, &greet);
    if (place == NULL) {
        st_socket_close(&fd);
        return STRATA_OK;
    }
    *place = fd;
    *taken = true;
    return STRATA_OK;
}

static uint32_t first_missing(const struct st_tcp *tcp)
{
    for (uint32_t r = tcp->comm.world.rank + 1; r < tcp->comm.world.ranks; r++)
        if (tcp->peers[r].control < 0 || tcp->peers[r].data < 0)
            return r;
    return 0;
}

static strata_status accept_up(struct st_tcp *tcp, const struct st_meeting *meeting, int listener)
{
    strata_status st = STRATA_OK;
    uint32_t missing;

    while (st == STRATA_OK && (missing = first_missing(tcp)) > 0) {
        struct pollfd polls = {.fd = listener, .events = POLLIN};
        const int ready = st_socket_poll(&polls, 1, meeting->until_ns);
        bool taken = ready > 0;

        if (ready < 0)
            return st_error_errno(-ready, "rank %" PRIu32 " is waited for", missing);
        while (taken && st == STRATA_OK && first_missing(tcp) > 0)
            st = take_one(tcp, meeting, listener, &taken);
        if (st == STRATA_OK && ready == 0 && st_clock_ns() >= meeting->until_ns)
            st = st_error(STRATA_E_IO, "rank %" PRIu32 " has come and does not connect: its own output says why", missing);
    }
    return st;
}

strata_status st_pair_all(struct st_tcp *tcp, const struct st_meeting *meeting, int listener)
{
    strata_status st = connect_down(tcp, meeting);

    return st == STRATA_OK ? accept_up(tcp, meeting, listener) : st;
}
