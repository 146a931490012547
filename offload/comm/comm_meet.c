/* offload/comm/comm_meet.c - all ranks find each other.
 *
 * Launchers name one address and one port, MASTER_ADDR and MASTER_PORT; torchrun's own store listens there while the ranks run.
 * So rank 0 takes the first free one of the ports behind it, MASTER_PORT + 1 to MASTER_PORT + 8; the others try these in turn
 * until somebody answers in our words, and knows the same MASTER_PORT.  They say where they can be reached, wait until all have
 * come, and get the table of all, with a number that nobody else knows.  Whoever comes with other words is shown the door. */
#include "offload/comm/comm_tcp_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "strata/strata.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define SECOND_NS    UINT64_C(1000000000)
#define ANSWER_NS    (2 * SECOND_NS) /* before somebody who does not answer is a stranger */
#define STRANGER_NS  (5 * SECOND_NS) /* before somebody who does not introduce himself is one */
#define REPORT_NS    (10 * SECOND_NS)
#define TICK_NS      (SECOND_NS / 20)
#define STRANGERS    64u /* who may stand at the door at a time */
#define PAUSE_MIN_NS (SECOND_NS / 100)
#define PAUSE_MAX_NS (SECOND_NS / 2)

uint16_t st_meet_port(uint16_t port, uint32_t index)
{
    return (uint16_t)(port <= UINT16_MAX - ST_MEET_PORTS ? port + 1 + index : port - 1 - index);
}

uint64_t st_meet_tick(const struct st_meeting *meeting)
{
    const uint64_t tick_ns = st_clock_ns() + TICK_NS;

    return meeting->opts->cancelled == NULL || tick_ns > meeting->until_ns ? meeting->until_ns : tick_ns;
}

strata_status st_meet_cancelled(const struct st_meeting *meeting)
{
    if (meeting->opts->cancelled == NULL || !atomic_load(meeting->opts->cancelled))
        return STRATA_OK;
    return st_error(STRATA_E_CANCELLED, "cancelled while the ranks met");
}

uint64_t st_meet_key(uint16_t port)
{
    char text[32];

    snprintf(text, sizeof(text), "strata meets by %u", port);
    return st_checksum64(text, strlen(text));
}

static strata_status send_reply(int fd, const struct st_reply *reply, const void *rest, uint64_t until_ns)
{
    uint8_t frame[ST_REPLY_BYTES];
    int err;

    st_reply_put(frame, reply);
    if ((err = st_socket_send_all(fd, frame, sizeof(frame), until_ns)) == 0)
        err = st_socket_send_all(fd, rest, reply->bytes, until_ns);
    return err == 0 ? STRATA_OK : st_error_errno(-err, "the ranks meet: sending to one of them");
}

/* --- rank 0 --- */

/* Somebody at the door. */
struct guest {
    int fd;        /* -1: nobody */
    bool known;    /* a rank of this meeting, which was told to wait */
    bool waits;    /* and has said that it does: only then it counts as come */
    uint32_t rank; /* if known */
    uint64_t since_ns;
    uint32_t got; /* bytes of its hello */
    uint8_t bytes[ST_HELLO_BYTES];
};

struct host {
    struct st_meeting *meeting;
    int listener;
    uint16_t port;
    uint32_t count, missing; /* of guests; of ranks */
    struct guest *guests;    /* [count] */
    struct pollfd *polls;    /* [count + 1] */
    uint64_t report_ns;
};

static strata_status open_door(struct host *host)
{
    const uint16_t port = host->meeting->opts->port;

    for (uint32_t i = 0; i < ST_MEET_PORTS; i++) {
        host->port = st_meet_port(port, i);
        host->listener = st_socket_listen(host->port);
        if (host->listener >= 0)
            return STRATA_OK;
        if (host->listener != -EADDRINUSE && host->listener != -EACCES)
            return st_error_errno(-host->listener, "rank 0 cannot listen at port %u", host->port);
    }
    return st_error(STRATA_E_IO,
                    "the ports where the ranks would meet, %u to %u, are all taken: choose another MASTER_PORT than %u",
                    st_meet_port(port, 0), st_meet_port(port, ST_MEET_PORTS - 1), port);
}

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
    if (hello->rank == 0 || hello->rank >= world->ranks)
        return st_error(STRATA_E_CONFIG, "a process calls itself rank %" PRIu32 " of %" PRIu32 "%s", hello->rank, world->ranks,
                        hello->rank == 0 ? ", which is here already" : "");
    for (uint32_t i = 0; i < host->count; i++) {
        struct guest *same = &host->guests[i];

        if (!same->known || same->rank != hello->rank)
            continue;
        if ((st = hear(host, same)) != STRATA_OK)
            return st;
        if (same->known) /* else it had not waited yet, and has come again */
            return st_error(STRATA_E_CONFIG, "two processes call themselves rank %" PRIu32, hello->rank);
    }
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
        return call_off(host, st_error(STRATA_E_IO, "of %" PRIu32 " ranks these did not come to port %u within %.3g seconds: %s",
                                       opts->world.ranks, host->port, (double)host->meeting->deadline_ns * 1e-9, missing));
    if (now_ns >= host->report_ns) {
        st_log(ST_LOG_NOTICE, "of %" PRIu32 " ranks these have not come to port %u yet: %s", opts->world.ranks, host->port,
               missing);
        host->report_ns = now_ns + REPORT_NS;
    }
    return STRATA_OK;
}

static strata_status receive_guests(struct host *host)
{
    strata_status st = STRATA_OK;

    while (st == STRATA_OK && host->missing > 0 && (st = wait_for_guests(host)) == STRATA_OK &&
           (st = st_meet_cancelled(host->meeting)) == STRATA_OK) {
        int ready;

        for (uint32_t i = 0; i < host->count; i++)
            host->polls[i] = (struct pollfd){.fd = host->guests[i].fd, .events = POLLIN};
        host->polls[host->count] = (struct pollfd){.fd = host->listener, .events = POLLIN};
        if ((ready = st_socket_poll(host->polls, host->count + 1, st_meet_tick(host->meeting))) < 0)
            return st_error_errno(-ready, "rank 0 waits for the others");
        for (uint32_t i = 0; i < host->count && st == STRATA_OK; i++) {
            struct guest *guest = &host->guests[i];

            if (guest->fd >= 0 && host->polls[i].revents != 0)
                st = hear(host, guest);
            else if (guest->fd >= 0 && !guest->waits && st_clock_ns() - guest->since_ns > STRANGER_NS)
                show_out(host, guest);
        }
        if (st == STRATA_OK && host->polls[host->count].revents != 0)
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
        return st_error(STRATA_E_NOMEM, "no memory for the table of %" PRIu32 " ranks", ranks);
    meeting->places[0] = meeting->self;
    reply.bytes = st_table_put(table, meeting->cookie, meeting->places, ranks);
    for (uint32_t i = 0; i < host->count && st == STRATA_OK; i++)
        if (host->guests[i].waits)
            st = send_reply(host->guests[i].fd, &reply, table, meeting->until_ns);
    free(table);
    return st;
}

static strata_status host_meeting(struct st_meeting *meeting)
{
    const uint32_t ranks = meeting->opts->world.ranks;
    struct host host = {.meeting = meeting, .listener = -1, .count = ranks + STRANGERS, .missing = ranks - 1};
    strata_status st = STRATA_OK;

    host.report_ns = st_clock_ns() + REPORT_NS;
    host.guests = calloc(host.count, sizeof(*host.guests));
    host.polls = calloc(host.count + 1, sizeof(*host.polls));
    if (host.guests == NULL || host.polls == NULL)
        st = st_error(STRATA_E_NOMEM, "no memory for a meeting of %" PRIu32 " ranks", ranks);
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

/* --- the other ranks --- */

static void introduction(const struct st_meeting *meeting, uint8_t out[ST_HELLO_BYTES])
{
    const struct st_world *world = &meeting->opts->world;
    struct st_hello hello = {.rank = world->rank,
                             .ranks = world->ranks,
                             .key = st_meet_key(meeting->opts->port),
                             .host = meeting->self.host,
                             .port = meeting->self.port};

    snprintf(hello.local, sizeof(hello.local), "%s", meeting->self.local);
    snprintf(hello.version, sizeof(hello.version), "%s", strata_version());
    st_hello_put(out, &hello);
}

/* Rank 0's refusal, as an error. */
static strata_status refused(int fd, const struct st_reply *reply)
{
    char sentence[ST_COMM_REASON_BYTES] = {0};

    if (st_socket_receive_all(fd, sentence, reply->bytes, st_clock_ns() + ANSWER_NS) != 0)
        return st_error(STRATA_E_IO, "rank 0 is gone (while the ranks meet): its own output says why");
    return st_error(reply->status, "%s", sentence);
}

/* Whether an error says that nobody of ours listens there: no one, somebody who does not answer, or somebody else. */
static bool is_nobody(int err)
{
    return err == -ECONNREFUSED || err == -ECONNRESET || err == -EPIPE || err == -ETIMEDOUT || err == -EHOSTUNREACH ||
           err == -ENETUNREACH || err == -EHOSTDOWN || err == -ENETDOWN || err == -EADDRNOTAVAIL || err == -EAFNOSUPPORT ||
           err == -EACCES || err == -EPERM || err == -EINVAL; /* that: an address of a link, without its scope */
}

/* Says who this is, and that it waits, where the answer is rank 0's; 0, or negative errno. */
static int talk(const struct st_meeting *meeting, int fd, struct st_reply *reply)
{
    const uint64_t until_ns = st_clock_ns() + ANSWER_NS;
    uint8_t hello[ST_HELLO_BYTES], frame[ST_REPLY_BYTES], yes = 1;
    int err;

    introduction(meeting, hello);
    if ((err = st_socket_send_all(fd, hello, sizeof(hello), until_ns)) != 0 ||
        (err = st_socket_receive_all(fd, frame, sizeof(frame), until_ns)) != 0)
        return err;
    if (!st_reply_get(reply, frame) || reply->type == ST_REPLY_TABLE)
        return -ECONNRESET;
    return reply->type == ST_REPLY_WAIT ? st_socket_send_all(fd, &yes, 1, until_ns) : 0;
}

/* A connection to whoever listens there, if it is rank 0 of this meeting; *fd -1: it is not. */
static strata_status knock(const struct st_meeting *meeting, const union st_address *address, int *fd)
{
    struct st_reply reply;
    strata_status st = STRATA_OK;
    int err = st_socket_connect(address, st_clock_ns() + ANSWER_NS);

    *fd = err >= 0 ? err : -1;
    if (err >= 0 && (err = talk(meeting, *fd, &reply)) == 0 && reply.type == ST_REPLY_WAIT)
        return STRATA_OK;
    if (err == 0)
        st = refused(*fd, &reply);
    else if (!is_nobody(err))
        st = st_error_errno(-err, "rank 0 is looked for");
    st_socket_close(fd);
    return st;
}

/* Every port at every address once. */
static strata_status knock_everywhere(const struct st_meeting *meeting, const struct addrinfo *list, int *fd)
{
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
        for (uint32_t i = 0; i < ST_MEET_PORTS && st_clock_ns() < meeting->until_ns; i++) {
            const in_port_t port = htons(st_meet_port(meeting->opts->port, i));
            union st_address address;
            strata_status st;

            if (a->ai_addrlen > sizeof(address) || (a->ai_family != AF_INET && a->ai_family != AF_INET6))
                continue;
            memcpy(&address, a->ai_addr, a->ai_addrlen);
            *(a->ai_family == AF_INET6 ? &address.v6.sin6_port : &address.v4.sin_port) = port;
            if ((st = knock(meeting, &address, fd)) != STRATA_OK || *fd >= 0)
                return st;
        }
    return STRATA_OK;
}

static strata_status look_up(const struct st_meeting *meeting, struct addrinfo **list)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const char *address = meeting->opts->address;
    const int err = st_fault_refuses("comm.lookup") ? EAI_AGAIN : getaddrinfo(address, NULL, &hints, list);

    if (err == 0)
        return STRATA_OK;
    *list = NULL;
    if (err == EAI_AGAIN || err == EAI_FAIL) /* a name server that is not up yet */
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "the address of rank 0, '%s', is none: %s: see MASTER_ADDR", address,
                    err == EAI_SYSTEM ? strerror(errno) : gai_strerror(err));
}

static strata_status find_host(const struct st_meeting *meeting, int *fd)
{
    const struct st_comm_tcp_opts *opts = meeting->opts;
    const uint16_t first = st_meet_port(opts->port, 0), last = st_meet_port(opts->port, ST_MEET_PORTS - 1);
    uint64_t pause_ns = PAUSE_MIN_NS, report_ns = st_clock_ns() + REPORT_NS;
    strata_status st = STRATA_OK;

    for (*fd = -1; st == STRATA_OK && *fd < 0;) {
        struct addrinfo *list;

        if ((st = look_up(meeting, &list)) == STRATA_OK && list != NULL) {
            st = knock_everywhere(meeting, list, fd);
            freeaddrinfo(list);
        }
        if (st != STRATA_OK || *fd >= 0 || (st = st_meet_cancelled(meeting)) != STRATA_OK)
            break;
        if (st_clock_ns() >= meeting->until_ns)
            st = st_error(STRATA_E_IO,
                          "rank 0 did not answer at %s, ports %u to %u, within %.3g seconds: see MASTER_ADDR and MASTER_PORT",
                          opts->address, first, last, (double)meeting->deadline_ns * 1e-9);
        if (st_clock_ns() >= report_ns) {
            st_log(ST_LOG_NOTICE, "rank 0 does not answer at %s, ports %u to %u, yet", opts->address, first, last);
            report_ns += REPORT_NS;
        }
        st_clock_sleep_until(st_clock_ns() + pause_ns);
        pause_ns = pause_ns * 2 < PAUSE_MAX_NS ? pause_ns * 2 : PAUSE_MAX_NS;
    }
    return st;
}

/* The table's places, with the address of rank 0 where this rank reached it. */
static strata_status read_table(struct st_meeting *meeting, int fd, const struct st_reply *reply, uint8_t *table)
{
    const uint32_t ranks = meeting->opts->world.ranks;
    union st_address address;
    int err = st_socket_receive_all(fd, table, reply->bytes, meeting->until_ns);

    if (err == 0)
        err = st_socket_peer(&address, fd);
    if (err != 0)
        return st_error_errno(-err, "rank 0 did not tell where the ranks are");
    if (!st_table_get(&meeting->cookie, meeting->places, ranks, table, reply->bytes))
        return st_error(STRATA_E_IO, "rank 0 told something that is no table of %" PRIu32 " ranks", ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        struct st_place at = meeting->places[r];

        if (at.family != 0)
            continue;
        st_address_to_place(&at, &address);
        meeting->places[r] = at;
    }
    return STRATA_OK;
}

/* Until rank 0 says something. */
static strata_status await_answer(const struct st_meeting *meeting, int fd)
{
    const uint64_t until_ns = meeting->until_ns + ANSWER_NS; /* rank 0 keeps the time, and says who is missing */
    struct pollfd polls = {.fd = fd, .events = POLLIN};
    strata_status st = STRATA_OK;
    int ready = 0;

    while (ready == 0 && st_clock_ns() < until_ns && (st = st_meet_cancelled(meeting)) == STRATA_OK)
        ready = st_socket_poll(&polls, 1, meeting->opts->cancelled != NULL ? st_clock_ns() + TICK_NS : until_ns);
    if (ready < 0)
        return st_error_errno(-ready, "rank 0 is waited for");
    return st != STRATA_OK || ready > 0 ? st : st_comm_silent(0, "the meeting of the ranks", meeting->deadline_ns);
}

static strata_status await_table(struct st_meeting *meeting, int fd)
{
    uint8_t frame[ST_REPLY_BYTES], *table;
    struct st_reply reply;
    strata_status st;
    int err;

    if ((st = await_answer(meeting, fd)) != STRATA_OK)
        return st;
    err = st_socket_receive_all(fd, frame, sizeof(frame), st_clock_ns() + ANSWER_NS);
    if (err == -ECONNRESET)
        return st_comm_gone(0, "the meeting of the ranks");
    if (err != 0)
        return st_error_errno(-err, "rank 0 did not tell where the ranks are");
    if (!st_reply_get(&reply, frame) || reply.type == ST_REPLY_WAIT)
        return st_error(STRATA_E_IO, "rank 0 told something that is no table of ranks");
    if (reply.type == ST_REPLY_REFUSED)
        return refused(fd, &reply);
    if ((table = malloc(reply.bytes + 1)) == NULL)
        return st_error(STRATA_E_NOMEM, "no memory for a table of ranks");
    st = read_table(meeting, fd, &reply, table);
    free(table);
    return st;
}

strata_status st_meet(struct st_meeting *meeting)
{
    strata_status st;
    int fd;

    if (meeting->opts->world.rank == 0)
        return host_meeting(meeting);
    if ((st = find_host(meeting, &fd)) == STRATA_OK)
        st = await_table(meeting, fd);
    st_socket_close(&fd);
    return st;
}
