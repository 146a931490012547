/* offload/comm/comm_tcp.c - see comm.h: ranks that are processes, over sockets.
 *
 * Two connections join ranks of different nodes: one for bytes, and one, control, where a rank says why it gives up, whatever the
 * other one is in the middle of; it is heard after the bytes that were sent before it.  Ranks of one node have control and two
 * rings in shared memory (comm_shared.h); who waits for a ring is woken by a byte on control, which the end of a process closes.
 * Each exchange sends every rank a header, also where no bytes follow: it holds the number and the name of the call and the bytes
 * that come, so that ranks that are not at the same call find out instead of waiting.
 *
 * exchange() belongs to one thread.  abort() comes from any: it writes to the control connections, which nobody else writes to,
 * and to `wake`, which ends the wait of this rank's own exchange. */
#include "offload/comm/comm_tcp_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PARTS_MAX 64u                  /* of one system call */
#define RUN_MAX   (UINT64_C(4) << 20)  /* bytes of one system call: all peers are served in turn */
#define LAST_NS   UINT64_C(1000000000) /* for a rank's last words, once it is gone */
#define TICK_NS   UINT64_C(2000000000) /* a wait that takes longer was no wait: the process was stopped */

#define BELL 0xdbu /* on control: look at the rings; no reply begins like this */

static bool is_gone(int64_t err)
{
    return err == -ECONNRESET || err == -EPIPE || err == -ENOTCONN;
}

/* --- what a rank says when it gives up --- */

static void tcp_abort(struct st_comm *comm, const char *sentence)
{
    struct st_tcp *tcp = (struct st_tcp *)comm;
    struct st_reply reply = {.type = ST_REPLY_REFUSED, .status = comm->status, .bytes = (uint32_t)strlen(sentence)};
    uint8_t frame[ST_REPLY_BYTES];
    const uint64_t one = 1;
    const struct iovec parts[2] = {{.iov_base = frame, .iov_len = sizeof(frame)},
                                   {.iov_base = (void *)sentence, .iov_len = reply.bytes}};
    ssize_t woken;

    st_reply_put(frame, &reply);
    for (uint32_t r = 0; r < comm->world.ranks; r++) {
        if (tcp->peers[r].control >= 0)
            (void)st_socket_send(tcp->peers[r].control, parts, 2); /* fits, or that rank is beyond hearing */
        if (tcp->peers[r].data >= 0)
            (void)shutdown(tcp->peers[r].data, SHUT_WR); /* or it is gone */
    }
    woken = st_fault_refuses("comm.wake") ? -1 : write(tcp->wake, &one, sizeof(one));
    (void)woken; /* it counts: nothing can go wrong but what a test makes; then the other ranks end the call */
}

static strata_status failed_connection(uint32_t rank, int64_t err, const char *what)
{
    return st_error_errno((int)-err, "the connection with rank %" PRIu32 " (during %s)", rank, what);
}

/* The connection of a rank has ended: because it is gone, or gave up. */
static strata_status lost(struct st_tcp *tcp, uint32_t rank, const char *what)
{
    const int control = tcp->peers[rank].control;
    const uint64_t until_ns = st_clock_ns() + LAST_NS;
    char sentence[ST_COMM_REASON_BYTES] = {0};
    uint8_t frame[ST_REPLY_BYTES] = {BELL};
    struct st_reply reply;
    int err = 0;

    while (err == 0 && frame[0] == BELL)
        err = st_socket_receive_all(control, frame, 1, until_ns);
    if (err == 0)
        err = st_socket_receive_all(control, frame + 1, sizeof(frame) - 1, until_ns);
    if (err == 0 && st_reply_get(&reply, frame) && reply.type == ST_REPLY_REFUSED &&
        (err = st_socket_receive_all(control, sentence, reply.bytes, until_ns)) == 0)
        return st_comm_aborted(rank, tcp->comm.world.rank, reply.status, what, sentence);
    return err == 0 || err == -ETIMEDOUT || is_gone(err) ? st_comm_gone(rank, what) : failed_connection(rank, err, what);
}

/* --- one exchange --- */

static void begin(struct st_tcp *tcp, const struct st_comm_peer *peers, const char *what)
{
    tcp->sequence++;
    tcp->what_hash = st_checksum64(what, strlen(what));
    for (uint32_t r = 0; r < tcp->comm.world.ranks; r++) {
        struct st_tcp_peer *p = &tcp->peers[r];
        struct st_header header = {.sequence = tcp->sequence, .what_hash = tcp->what_hash};

        if (r == tcp->comm.world.rank)
            continue;
        header.bytes = st_comm_bytes(peers[r].send, peers[r].send_count);
        (void)!memccpy(header.what, what, '\0', sizeof(header.what) - 1);
        st_header_put(p->out_header, &header);
        p->out[0] = st_comm_cursor_at(&p->out_first, 1);
        p->in[0] = st_comm_cursor_at(&p->in_first, 1);
        p->out[1] = st_comm_cursor_at(peers[r].send, peers[r].send_count);
        p->in[1] = st_comm_cursor_at(peers[r].recv, peers[r].recv_count);
        p->out_left = ST_HEADER_BYTES + header.bytes;
        p->awaits = st_comm_bytes(peers[r].recv, peers[r].recv_count);
        p->in_left = ST_HEADER_BYTES + p->awaits;
        p->writable = p->readable = true;
        p->checked = false;
        p->silent_ns = 0;
    }
}

/* What comes next of header and parts, as one call takes it. */
static uint32_t next_parts(const struct st_comm_cursor cursors[2], struct iovec *parts)
{
    uint64_t bytes = 0;
    uint32_t count = 0;

    for (int i = 0; i < 2; i++) {
        struct st_comm_cursor at = cursors[i];
        uint64_t run;
        void *data;

        while (count < PARTS_MAX && bytes < RUN_MAX && (data = st_comm_cursor_run(&at, &run)) != NULL) {
            const uint64_t size = run < RUN_MAX - bytes ? run : RUN_MAX - bytes;

            parts[count++] = (struct iovec){.iov_base = data, .iov_len = size};
            st_comm_cursor_skip(&at, size);
            bytes += size;
        }
    }
    return count;
}

static void skip_parts(struct st_comm_cursor cursors[2], uint64_t bytes)
{
    for (int i = 0; i < 2 && bytes > 0; i++) {
        uint64_t run;

        while (bytes > 0 && st_comm_cursor_run(&cursors[i], &run) != NULL) {
            const uint64_t size = run < bytes ? run : bytes;

            st_comm_cursor_skip(&cursors[i], size);
            bytes -= size;
        }
    }
}

/* The header of rank r is here: is it at the same call? */
static strata_status check_header(const struct st_tcp *tcp, struct st_tcp_peer *peer, uint32_t r, const char *what)
{
    const uint32_t self = tcp->comm.world.rank;
    struct st_header header;

    peer->checked = true;
    if (!st_header_get(&header, peer->in_header) || header.sequence != tcp->sequence)
        return st_error(STRATA_E_IO, "rank %" PRIu32 " sends something that is no exchange (during %s)", r, what);
    if (header.what_hash != tcp->what_hash)
        return st_comm_elsewhere(r, header.what, self, what);
    return header.bytes == peer->awaits ? STRATA_OK : st_comm_sizes(r, header.bytes, self, peer->awaits, what);
}

static strata_status failed_call(struct st_tcp *tcp, uint32_t r, int64_t err, const char *what)
{
    return is_gone(err) ? lost(tcp, r, what) : failed_connection(r, err, what);
}

/* A rank waits for a ring.  It is gone where it cannot be told, which its control connection says, too. */
static void ring_bell(const struct st_tcp_peer *peer)
{
    uint8_t bell = BELL;

    (void)st_socket_send(peer->control, &(struct iovec){.iov_base = &bell, .iov_len = 1}, 1);
}

static int64_t send_parts(struct st_tcp_peer *peer, const struct iovec *parts, uint32_t count)
{
    bool wake;
    int64_t n;

    if (peer->data >= 0)
        return st_socket_send(peer->data, parts, count);
    n = st_ring_write(&peer->rings.out, parts, count, &wake);
    if (wake)
        ring_bell(peer);
    return n == -EAGAIN && peer->mute ? -EPIPE : n;
}

static int64_t receive_parts(struct st_tcp_peer *peer, const struct iovec *parts, uint32_t count)
{
    const bool mute = peer->mute; /* then all that it has sent is there */
    bool wake;
    int64_t n;

    if (peer->data >= 0)
        return st_socket_receive(peer->data, parts, count);
    n = st_ring_read(&peer->rings.in, parts, count, &wake);
    if (wake)
        ring_bell(peer);
    return n == -EAGAIN && mute ? -ECONNRESET : n;
}

/* Sends to rank r what goes at once; *moved: some did. */
static strata_status send_some(struct st_tcp *tcp, uint32_t r, const char *what, bool *moved)
{
    struct st_tcp_peer *peer = &tcp->peers[r];
    struct iovec parts[PARTS_MAX];
    int64_t n;

    if (peer->out_left == 0 || !peer->writable)
        return STRATA_OK;
    n = send_parts(peer, parts, next_parts(peer->out, parts));
    if (n == -EAGAIN)
        peer->writable = false;
    else if (n < 0)
        return failed_call(tcp, r, n, what);
    if (n <= 0)
        return STRATA_OK;
    skip_parts(peer->out, (uint64_t)n);
    peer->out_left -= (uint64_t)n;
    peer->silent_ns = 0;
    *moved = true;
    return STRATA_OK;
}

static strata_status receive_some(struct st_tcp *tcp, uint32_t r, const char *what, bool *moved)
{
    struct st_tcp_peer *peer = &tcp->peers[r];
    struct iovec parts[PARTS_MAX];
    int64_t n;

    if (peer->in_left == 0 || !peer->readable)
        return STRATA_OK;
    n = receive_parts(peer, parts, next_parts(peer->in, parts));
    if (n == -EAGAIN) {
        peer->readable = false;
        return STRATA_OK;
    }
    if (n <= 0)
        return failed_call(tcp, r, n < 0 ? n : -ECONNRESET, what);
    skip_parts(peer->in, (uint64_t)n);
    peer->in_left -= (uint64_t)n;
    peer->silent_ns = 0;
    *moved = true;
    return !peer->checked && peer->in_left <= peer->awaits ? check_header(tcp, peer, r, what) : STRATA_OK;
}

/* All ranks in turn; *left: there is more to do. */
static strata_status move_some(struct st_tcp *tcp, const char *what, bool *moved, bool *left)
{
    strata_status st = STRATA_OK;

    *moved = *left = false;
    for (uint32_t r = 0; r < tcp->comm.world.ranks && st == STRATA_OK; r++) {
        if (r == tcp->comm.world.rank)
            continue;
        if ((st = receive_some(tcp, r, what, moved)) == STRATA_OK)
            st = send_some(tcp, r, what, moved);
        *left = *left || tcp->peers[r].out_left > 0 || tcp->peers[r].in_left > 0;
    }
    return st;
}

/* --- waiting --- */

static uint32_t add_poll(struct st_tcp *tcp, int fd, short events)
{
    if (fd < 0 || events == 0)
        return 0;
    tcp->polls[tcp->polls_count] = (struct pollfd){.fd = fd, .events = events};
    return tcp->polls_count++;
}

static void fill_polls(struct st_tcp *tcp)
{
    tcp->polls_count = 0;
    (void)add_poll(tcp, tcp->wake, POLLIN);
    for (uint32_t r = 0; r < tcp->comm.world.ranks; r++) {
        struct st_tcp_peer *peer = &tcp->peers[r];
        const short events = (short)((peer->in_left > 0 ? POLLIN : 0) | (peer->out_left > 0 ? POLLOUT : 0));

        peer->control_polled = peer->mute ? 0 : add_poll(tcp, peer->control, POLLIN);
        peer->data_polled = add_poll(tcp, peer->data, events);
    }
}

static short revents_of(const struct st_tcp *tcp, uint32_t polled)
{
    return polled == 0 ? 0 : tcp->polls[polled].revents;
}

/* Takes the bells off control: 1: words are next, and stay; 0: the end; -EAGAIN: nothing else yet. */
static int64_t take_bells(int control)
{
    for (;;) {
        uint8_t bytes[64];
        uint32_t bells = 0;
        const ssize_t n = st_fault_refuses("comm.receive") ? -1 : recv(control, bytes, sizeof(bytes), MSG_PEEK | MSG_DONTWAIT);

        if (n <= 0)
            return n == 0 ? 0 : errno == EINTR ? -EAGAIN : -errno;
        while (bells < (uint32_t)n && bytes[bells] == BELL)
            bells++;
        if (bells == 0)
            return 1;
        (void)!recv(control, bytes, bells, MSG_DONTWAIT); /* they are there */
    }
}

/* What control has: bells; the end, or words, of a rank that sends nothing more.  What it sent before that still counts: this
 * exchange may need no more of it.  Else the end of its bytes (its process ends, or tcp_abort() has said so) or silence follows,
 * and the words are heard then. */
static strata_status hear_control(struct st_tcp *tcp, uint32_t r, const char *what)
{
    struct st_tcp_peer *peer = &tcp->peers[r];
    const int64_t n = take_bells(peer->control);

    if (n < 0 && n != -EAGAIN && !is_gone(n))
        return failed_connection(r, n, what);
    peer->mute = n != -EAGAIN;
    if (peer->data < 0)
        peer->readable = peer->writable = true;
    return STRATA_OK;
}

/* Tells the ranks at the other ends of rings that this one sleeps; false: there is something to do. */
static bool may_sleep(struct st_tcp *tcp)
{
    bool sleeps = true;

    for (uint32_t r = 0; r < tcp->comm.world.ranks; r++) {
        struct st_tcp_peer *peer = &tcp->peers[r];

        if (peer->rings.memory == NULL)
            continue;
        peer->readable = peer->in_left > 0 && !st_ring_wait_bytes(&peer->rings.in);
        peer->writable = peer->out_left > 0 && !st_ring_wait_room(&peer->rings.out);
        sleeps = sleeps && !peer->readable && !peer->writable;
    }
    return sleeps;
}

/* The time that has passed counts against those of whom something is awaited. */
static strata_status count_silence(struct st_tcp *tcp, uint64_t since_ns, const char *what)
{
    const uint64_t passed_ns = st_clock_ns() - since_ns, counts_ns = passed_ns < TICK_NS ? passed_ns : TICK_NS;

    for (uint32_t r = 0; r < tcp->comm.world.ranks; r++) {
        struct st_tcp_peer *peer = &tcp->peers[r];

        if (peer->in_left + peer->out_left == 0)
            continue;
        peer->silent_ns += counts_ns;
        if (peer->readable || (peer->writable && peer->out_left > 0))
            continue;
        if (peer->mute && peer->silent_ns >= LAST_NS) /* what was on its way has come */
            return lost(tcp, r, what);
        if (peer->silent_ns >= tcp->comm.deadline_ns)
            return st_comm_silent(r, what, tcp->comm.deadline_ns);
    }
    return STRATA_OK;
}

/* Until something can move, somebody has given up, or time has passed. */
static strata_status wait_some(struct st_tcp *tcp, const char *what)
{
    const uint64_t since_ns = st_clock_ns();
    strata_status st = STRATA_OK;
    int ready;

    if (tcp->rings && !may_sleep(tcp))
        return STRATA_OK;
    fill_polls(tcp);
    ready = st_socket_poll(tcp->polls, tcp->polls_count, since_ns + tcp->comm.deadline_ns);
    if (ready < 0)
        return st_error_errno(-ready, "the other ranks are waited for (during %s)", what);
    if (tcp->polls[0].revents != 0)
        return st_error(STRATA_E_IO, "given up (during %s)", what); /* abort() has said why */
    for (uint32_t r = 0; r < tcp->comm.world.ranks && st == STRATA_OK; r++) {
        struct st_tcp_peer *peer = &tcp->peers[r];
        const short data = revents_of(tcp, peer->data_polled);

        if (revents_of(tcp, peer->control_polled) != 0)
            st = hear_control(tcp, r, what);
        peer->readable = peer->readable || (data & ~POLLOUT) != 0;
        peer->writable = peer->writable || (data & ~POLLIN) != 0;
    }
    return st == STRATA_OK ? count_silence(tcp, since_ns, what) : st;
}

static strata_status tcp_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what)
{
    struct st_tcp *tcp = (struct st_tcp *)comm;
    bool moved, left = true;
    strata_status st = STRATA_OK;

    begin(tcp, peers, what);
    while (st == STRATA_OK && left) {
        st = move_some(tcp, what, &moved, &left);
        if (st == STRATA_OK && left && !moved)
            st = wait_some(tcp, what);
    }
    return st;
}

/* --- the table --- */

/* Also of one that is half built. */
static void tcp_close(struct st_comm *comm)
{
    struct st_tcp *tcp = (struct st_tcp *)comm;

    for (uint32_t r = 0; tcp->peers != NULL && r < comm->world.ranks; r++) {
        st_socket_close(&tcp->peers[r].control);
        st_socket_close(&tcp->peers[r].data);
        st_ring_detach(&tcp->peers[r].rings);
    }
    st_socket_close(&tcp->wake);
    st_comm_fini(comm);
    free(tcp->peers);
    free(tcp->polls);
    free(tcp);
}

static const struct st_comm_ops tcp_ops = {
    .name = "tcp",
    .exchange = tcp_exchange,
    .abort = tcp_abort,
    .close = tcp_close,
};

static strata_status new_tcp(struct st_tcp **out, const struct st_comm_tcp_opts *opts)
{
    const uint32_t ranks = opts->world.ranks;
    struct st_tcp *tcp = calloc(1, sizeof(*tcp));
    strata_status st;

    if (tcp == NULL)
        return st_nomem(sizeof(*tcp));
    if ((st = st_comm_init(&tcp->comm, &tcp_ops, &opts->world, opts->deadline_ns)) != STRATA_OK) {
        free(tcp);
        return st;
    }
    tcp->wake = -1;
    tcp->peers = calloc(ranks, sizeof(*tcp->peers));
    tcp->polls = calloc(1 + 2 * (size_t)ranks, sizeof(*tcp->polls));
    for (uint32_t r = 0; tcp->peers != NULL && r < ranks; r++) {
        struct st_tcp_peer *peer = &tcp->peers[r];

        peer->control = peer->data = -1;
        peer->out_first = (struct st_comm_part){.data = peer->out_header, .bytes = ST_HEADER_BYTES};
        peer->in_first = (struct st_comm_part){.data = peer->in_header, .bytes = ST_HEADER_BYTES};
    }
    if (tcp->peers == NULL || tcp->polls == NULL)
        st = st_nomem(0);
    else if ((tcp->wake = st_fault_refuses("comm.wake") ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        st = st_error_errno(errno, "comm: no event descriptor");
    if (st == STRATA_OK)
        *out = tcp;
    else
        tcp_close(&tcp->comm);
    return st;
}

/* Meets the others, and connects with each. */
static strata_status join_world(struct st_tcp *tcp, const struct st_comm_tcp_opts *opts, struct st_place *places)
{
    struct st_meeting meeting = {.opts = opts, .deadline_ns = tcp->comm.deadline_ns, .places = places};
    struct st_doors doors = {.any = -1, .local = -1};
    strata_status st;

    meeting.until_ns = st_clock_ns() + meeting.deadline_ns;
    if ((st = st_doors_open(&doors, &meeting)) == STRATA_OK && (st = st_meet(&meeting)) == STRATA_OK &&
        (st = st_pair_all(tcp, &meeting, &doors)) == STRATA_OK)
        st = st_comm_barrier(&tcp->comm, "the start");
    st_socket_close(&doors.any);
    st_socket_close(&doors.local);
    return st;
}

strata_status st_comm_tcp_open(struct st_comm **out, const struct st_comm_tcp_opts *opts)
{
    struct st_place *places = calloc(opts->world.ranks, sizeof(*places));
    struct st_tcp *tcp = NULL;
    strata_status st;

    if (places == NULL)
        return st_nomem(opts->world.ranks * sizeof(*places));
    if ((st = new_tcp(&tcp, opts)) == STRATA_OK && (st = join_world(tcp, opts, places)) == STRATA_OK)
        *out = &tcp->comm;
    else if (tcp != NULL)
        tcp_close(&tcp->comm);
    free(places);
    return st;
}
