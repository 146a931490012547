/* offload/comm/comm_host.c - rank 0's side of the meeting (comm_meet.c): who comes to its port is asked who he is; the ranks wait
 * there until all have come, and strangers are shown the door. */
#include "offload/comm/comm_tcp_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "strata/strata.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SECOND_NS   UINT64_C(1000000000)
#define STRANGER_NS (5 * SECOND_NS) /* before somebody who does not introduce himself is one */
#define REPORT_NS   (10 * SECOND_NS)
#define STRANGERS   64u /* who may stand at the door at a time */

static strata_status send_reply(int fd, const struct st_reply *reply, const void *rest, uint64_t until_ns)
{
    uint8_t frame[ST_REPLY_BYTES];
    int err;

    st_reply_put(frame, reply);
    if ((err = st_socket_send_all(fd, frame, sizeof(frame), until_ns)) == 0)
        err = st_socket_send_all(fd, rest, reply->bytes, until_ns);
    return err == 0 ? STRATA_OK : st_error_errno(-err, "the ranks meet: sending to one of them");
}

/* Somebody at the door. */
struct guest {
    int fd;        /* -1: nobody */
    bool known;    /* a rank of this meeting, which was told to wait */
    bool waits;    /* and has said that it does: only then it counts as come */
    uint32_t rank; /* if known */
    uint64_t since_ns;
    uint32_t got;    /* bytes of its hello */
    uint32_t polled; /* where of polls; 0: nowhere */
    uint8_t bytes[ST_HELLO_BYTES];
};

struct host {
    struct st_meeting *meeting;
    int listener;
    uint16_t port;
    uint32_t count, missing; /* of guests; of ranks */
    struct guest *guests;    /* [count] */
    struct pollfd *polls;    /* [1 + count] the listener, then guests that are there */
    uint64_t report_ns;
};

/* Forgets a guest; if it was a rank, that one has still to come. */
static void show_out(struct host *host, struct guest *guest)
{
    st_socket_close(&guest->fd);
    host->missing += guest->waits;
    *guest = (struct guest){.fd = -1};
}

/* "1, 3 and 7 others" into text. */
static void missing_text(const struct host *host, char *text, size_t bytes)
{
    size_t at = 0;
    uint32_t named = 0;

    text[0] = '\0';
    for (uint32_t r = 1; r < host->meeting->opts->world.ranks && named < 8; r++) {
        bool here = false;

        for (uint32_t i = 0; i < host->count && !here; i++)
            here = host->guests[i].waits && host->guests[i].rank == r;
        if (!here)
            at += (size_t)snprintf(text + at, bytes - at, "%s%" PRIu32, named++ > 0 ? ", " : "", r);
    }
    if (named < host->missing)
        snprintf(text + at, bytes - at, " and %" PRIu32 " others", host->missing - named);
}

/* The meeting is off: all who are here learn why. */
static strata_status call_off(struct host *host, strata_status st)
{
    char sentence[ST_COMM_REASON_BYTES];
    struct st_reply reply = {.type = ST_REPLY_REFUSED, .status = st};

    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    reply.bytes = (uint32_t)strlen(sentence);
    for (uint32_t i = 0; i < host->count; i++)
        if (host->guests[i].fd >= 0)
            (void)!send_reply(host->guests[i].fd, &reply, sentence, st_clock_ns() + SECOND_NS);
    return st_error(st, "%s", sentence);
}

static strata_status hear(struct host *host, struct guest *guest);

static strata_status judge(struct host *host, const struct st_hello *hello)
{
    const struct st_world *world = &host->meeting->opts->world;
    strata_status st;

    if (strcmp(hello->version, strata_version()) != 0)
        return st_error(STRATA_E_CONFIG, "rank %" PRIu32 " runs version %s, rank 0 runs %s", hello->rank, hello->version,
                        strata_version());
    if (hello->ranks != world->ranks)
        return st_error(STRATA_E_CONFIG,
                        "rank %" PRIu32 " was started in a world of %" PRIu32 " ranks, rank 0 in one of %" PRIu32, hello->rank,
                        hello->ranks, world->ranks);
    if (hello->rank >= world->ranks)
        return st_error(STRATA_E_CONFIG, "a process calls itself rank %" PRIu32 " of %" PRIu32, hello->rank, world->ranks);
    for (uint32_t i = 0; i < host->count; i++) {
        struct guest *same = &host->guests[i];

        if (!same->known || same->rank != hello->rank)
            continue;
        if ((st = hear(host, same)) != STRATA_OK)
            return st;
        if (same->known) /* else it had not waited yet, and has come again */
            return st_error(STRATA_E_CONFIG,
                            "two processes call themselves rank %" PRIu32
                            ", or two runs share MASTER_PORT %u: give each rank its number, each run its port",
                            hello->rank, host->meeting->opts->port);
    }
    return STRATA_OK;
}

/* Another rank 0 of the same MASTER_PORT: its ranks and these would find either of the two.  This meeting goes on. */
static strata_status turn_away(struct host *host, struct guest *guest)
{
    const struct st_comm_tcp_opts *opts = host->meeting->opts;
    char sentence[ST_COMM_REASON_BYTES];
    struct st_reply reply = {.type = ST_REPLY_REFUSED, .status = STRATA_E_CONFIG};

    snprintf(sentence, sizeof(sentence),
             "another rank 0, of %" PRIu32
             ", waits at port %u for the same MASTER_PORT %u: take another, or end what an earlier attempt left",
             opts->world.ranks, host->port, opts->port);
    reply.bytes = (uint32_t)strlen(sentence);
    (void)!send_reply(guest->fd, &reply, sentence, st_clock_ns() + SECOND_NS);
    show_out(host, guest);
    return STRATA_OK;
}

/* A whole hello has come. */
static strata_status introduce(struct host *host, struct guest *guest)
{
    struct st_hello hello;
    struct st_place *place;
    union st_address address;
    strata_status st;
    int err;

    if (!st_hello_get(&hello, guest->bytes) || hello.key != st_meet_key(host->meeting->opts->port)) {
        show_out(host, guest);
        return STRATA_OK;
    }
    if (hello.rank == 0)
        return turn_away(host, guest);
    if ((st = judge(host, &hello)) != STRATA_OK)
        return call_off(host, st);
    if ((err = st_socket_peer(&address, guest->fd)) != 0 ||
        send_reply(guest->fd, &(struct st_reply){.type = ST_REPLY_WAIT}, NULL, st_clock_ns() + SECOND_NS) != STRATA_OK) {
        show_out(host, guest); /* it is gone already, or tries again */
        return STRATA_OK;
    }
    place = &host->meeting->places[hello.rank];
    *place = (struct st_place){.host = hello.host, .port = hello.port};
    snprintf(place->local, sizeof(place->local), "%s", hello.local);
    st_address_to_place(place, &address);
    if (st_address_is_loopback(&address))
        place->family = 0; /* on rank 0's node: whoever reached rank 0 has its address */
    guest->known = true;
    guest->rank = hello.rank;
    return STRATA_OK;
}

/* A rank had come, and its connection has ended: nobody waits for it any longer.  n: 0, or negative errno. */
static strata_status lose(struct host *host, struct guest *guest, int64_t n)
{
    const strata_status st =
        n == 0 || n == -ECONNRESET
            ? st_comm_gone(guest->rank, "the meeting of the ranks")
            : st_error_errno((int)-n, "the connection with rank %" PRIu32 " (during the meeting of the ranks)", guest->rank);

    show_out(host, guest);
    return call_off(host, st);
}

/* Something came from a guest. */
static strata_status hear(struct host *host, struct guest *guest)
{
    const struct iovec rest = {.iov_base = guest->bytes + guest->got, .iov_len = ST_HELLO_BYTES - guest->got};
    uint8_t more;
    const struct iovec none = {.iov_base = &more, .iov_len = 1};
    const int64_t n = st_socket_receive(guest->fd, guest->known ? &none : &rest, 1);

    if (n == -EAGAIN)
        return STRATA_OK;
    if (n <= 0 && guest->waits)
        return lose(host, guest, n);
    if (n <= 0 || guest->waits) { /* it tries again; or is none of ours, since who waits has nothing more to say */
        show_out(host, guest);
        return STRATA_OK;
    }
    if (guest->known) {
        guest->waits = true;
        host->missing--;
        return STRATA_OK;
    }
    guest->got += (uint32_t)n;
    return guest->got == ST_HELLO_BYTES ? introduce(host, guest) : STRATA_OK;
}

/* Takes one connection; there may be more. */
static strata_status let_in(struct host *host)
{
    struct guest *guest = NULL;
    const int fd = st_socket_accept(host->listener);

    if (fd < 0)
        return fd == -EAGAIN ? STRATA_OK : st_error_errno(-fd, "rank 0 cannot take a connection at port %u", host->port);
    for (uint32_t i = 0; i < host->count && guest == NULL; i++)
        if (host->guests[i].fd < 0)
            guest = &host->guests[i];
    if (guest == NULL) { /* too many strangers: it may try again */
        int full = fd;

        st_socket_close(&full);
        return STRATA_OK;
    }
    *guest = (struct guest){.fd = fd, .since_ns = st_clock_ns()};
    return STRATA_OK;
}

static strata_status wait_for_guests(struct host *host)
{
    const uint64_t now_ns = st_clock_ns();
    const struct st_comm_tcp_opts *opts = host->meeting->opts;
    char missing[128];

    if (now_ns >= host->report_ns || now_ns >= host->meeting->until_ns)
        missing_text(host, missing, sizeof(missing));
    if (now_ns >= host->meeting->until_ns)
        return call_off(host, st_error(STRATA_E_IO, "of %" PRIu32 " ranks these did not come to port %u within %.6g seconds: %s",
                                       opts->world.ranks, host->port, (double)host->meeting->deadline_ns * 1e-9, missing));
    if (now_ns >= host->report_ns) {
        st_log(ST_LOG_NOTICE, "of %" PRIu32 " ranks these have not come to port %u yet: %s", opts->world.ranks, host->port,
               missing);
        host->report_ns = now_ns + REPORT_NS;
    }
    return STRATA_OK;
}

/* poll() takes no more entries than a process may have descriptors. */
static int poll_guests(struct host *host)
{
    uint32_t count = 0;

    host->polls[count++] = (struct pollfd){.fd = host->listener, .events = POLLIN};
    for (uint32_t i = 0; i < host->count; i++) {
        struct guest *guest = &host->guests[i];

        guest->polled = guest->fd < 0 ? 0 : count;
        if (guest->fd >= 0)
            host->polls[count++] = (struct pollfd){.fd = guest->fd, .events = POLLIN};
    }
    return st_socket_poll(host->polls, count, st_meet_tick(host->meeting));
}

static strata_status receive_guests(struct host *host)
{
    strata_status st = STRATA_OK;

    while (st == STRATA_OK && host->missing > 0 && (st = wait_for_guests(host)) == STRATA_OK &&
           (st = st_meet_cancelled(host->meeting)) == STRATA_OK) {
        const int ready = poll_guests(host);

        if (ready < 0)
            return st_error_errno(-ready, "rank 0 waits for the others");
        for (uint32_t i = 0; i < host->count && st == STRATA_OK; i++) {
            struct guest *guest = &host->guests[i];

            if (guest->fd >= 0 && guest->polled != 0 && host->polls[guest->polled].revents != 0)
                st = hear(host, guest);
            else if (guest->fd >= 0 && !guest->waits && st_clock_ns() - guest->since_ns > STRANGER_NS)
                show_out(host, guest);
        }
        if (st == STRATA_OK && host->polls[0].revents != 0)
            st = let_in(host);
    }
    return st;
}

static strata_status hand_out(struct host *host)
{
    struct st_meeting *meeting = host->meeting;
    const uint32_t ranks = meeting->opts->world.ranks;
    uint8_t *table = malloc(8 + (size_t)ranks * ST_PLACE_BYTES);
    struct st_reply reply = {.type = ST_REPLY_TABLE};
    strata_status st = STRATA_OK;

    if (table == NULL)
        return st_nomem(8 + (size_t)ranks * ST_PLACE_BYTES);
    meeting->places[0] = meeting->self;
    reply.bytes = st_table_put(table, meeting->cookie, meeting->places, ranks);
    for (uint32_t i = 0; i < host->count && st == STRATA_OK; i++)
        if (host->guests[i].waits)
            st = send_reply(host->guests[i].fd, &reply, table, meeting->until_ns);
    free(table);
    return st;
}

/* A port is taken.  By a rank 0 of the same MASTER_PORT: E_CONFIG; by anybody else: OK. */
static strata_status ask_who_is_there(const struct st_meeting *meeting, uint16_t port)
{
    const union st_address here = {.v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}}};
    strata_status st;
    int fd;

    st = st_meet_knock(meeting, &here, &fd);
    st_socket_close(&fd);
    return st == STRATA_E_CONFIG ? st : STRATA_OK;
}

static strata_status open_door(struct host *host)
{
    const struct st_meeting *meeting = host->meeting;
    const uint16_t port = meeting->opts->port;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < ST_MEET_PORTS && st == STRATA_OK; i++) {
        host->port = st_meet_port(port, i);
        host->listener = st_socket_listen(host->port);
        if (host->listener >= 0)
            return STRATA_OK;
        if (host->listener != -EADDRINUSE && host->listener != -EACCES)
            return st_error_errno(-host->listener, "rank 0 cannot listen at port %u", host->port);
        if (host->listener == -EADDRINUSE)
            st = ask_who_is_there(meeting, host->port);
    }
    if (st != STRATA_OK)
        return st;
    return st_error(STRATA_E_IO,
                    "the ports where the ranks would meet, %u to %u, are all taken: choose another MASTER_PORT than %u",
                    st_meet_port(port, 0), st_meet_port(port, ST_MEET_PORTS - 1), port);
}

strata_status st_meet_host(struct st_meeting *meeting)
{
    const uint32_t ranks = meeting->opts->world.ranks;
    struct host host = {.meeting = meeting, .listener = -1, .count = ranks + STRANGERS, .missing = ranks - 1};
    strata_status st = STRATA_OK;

    host.report_ns = st_clock_ns() + REPORT_NS;
    host.guests = calloc(host.count, sizeof(*host.guests));
    host.polls = calloc(host.count + 1, sizeof(*host.polls));
    if (host.guests == NULL || host.polls == NULL)
        st = st_nomem(0);
    for (uint32_t i = 0; host.guests != NULL && i < host.count; i++)
        host.guests[i].fd = -1;
    if (st == STRATA_OK &&
        (st_fault_refuses("comm.random") || getrandom(&meeting->cookie, sizeof(meeting->cookie), 0) != sizeof(meeting->cookie)))
        st = st_error_errno(errno, "the ranks meet: no random number");
    if (st == STRATA_OK && (st = open_door(&host)) == STRATA_OK && (st = receive_guests(&host)) == STRATA_OK)
        st = hand_out(&host);
    for (uint32_t i = 0; host.guests != NULL && i < host.count; i++)
        st_socket_close(&host.guests[i].fd);
    if (host.listener >= 0)
        st_socket_close(&host.listener);
    free(host.guests);
    free(host.polls);
    return st;
}
