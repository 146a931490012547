/* offload/comm/comm_meet.c - all ranks find each other.
 *
 * Launchers name one address and one port, MASTER_ADDR and MASTER_PORT; torchrun's own store listens there while the ranks run.
 * So rank 0 takes the first free one of the ports behind it, MASTER_PORT + 1 to MASTER_PORT + 8; the others try these in turn
 * until somebody answers in our words, and knows the same MASTER_PORT.  They say where they can be reached, wait until all have
 * come, and get the table of all, with a number that nobody else knows.  Whoever comes with other words is shown the door.
 * A rank 0 that finds one of the ports taken asks there, too: two of one MASTER_PORT would share out each other's ranks. */
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

#define SECOND_NS    UINT64_C(1000000000)
#define ANSWER_NS    (2 * SECOND_NS) /* before somebody who does not answer is a stranger */
#define REPORT_NS    (10 * SECOND_NS)
#define TICK_NS      (SECOND_NS / 20)
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

strata_status st_meet_knock(const struct st_meeting *meeting, const union st_address *address, int *fd)
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
            if ((st = st_meet_knock(meeting, &address, fd)) != STRATA_OK || *fd >= 0)
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
    return st_error(STRATA_E_INPUT, "the address of rank 0, '%s', is not found: %s: see MASTER_ADDR", address,
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
                          "rank 0 did not answer at %s, ports %u to %u, within %.6g seconds: see MASTER_ADDR and MASTER_PORT",
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
        return st_error(STRATA_E_IO,
                        "rank 0 sent a malformed table of ranks (%" PRIu32 " expected): do all run the same version?", ranks);
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
        return st_error(STRATA_E_IO, "rank 0 sent a malformed table of ranks: do all run the same version?");
    if (reply.type == ST_REPLY_REFUSED)
        return refused(fd, &reply);
    if ((table = malloc(reply.bytes + 1)) == NULL)
        return st_nomem(reply.bytes + 1);
    st = read_table(meeting, fd, &reply, table);
    free(table);
    return st;
}

strata_status st_meet(struct st_meeting *meeting)
{
    strata_status st;
    int fd;

    if (meeting->opts->world.rank == 0)
        return st_meet_host(meeting);
    if ((st = find_host(meeting, &fd)) == STRATA_OK)
        st = await_table(meeting, fd);
    st_socket_close(&fd);
    return st;
}
