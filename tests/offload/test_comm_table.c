/* tests/offload/test_comm_table.c - what ranks that meet are told of each other: where each is found, wherever it is read. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "offload/comm/comm_tcp_internal.h"
#include "strata/strata.h"
#include "tests/common/test.h"
#include "tests/offload/comm_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACES_MAX 16u
#define SECOND_NS  UINT64_C(1000000000)

static union st_address address_of(const char *text, uint32_t scope)
{
    union st_address at = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_scope_id = scope}};

    if (strchr(text, ':') == NULL) {
        at = (union st_address){.v4 = {.sin_family = AF_INET, .sin_port = htons(9)}};
        assert_int_equal(inet_pton(AF_INET, text, &at.v4.sin_addr), 1);
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &at.v6.sin6_addr), 1);
    }
    return at;
}

/* What a rank hears of another one's address is what it connects to: link-local addresses with their interface, and an IPv4
 * address as such whatever socket saw it. */
TEST(addresses_survive_the_table)
{
    static const struct {
        const char *address, *as; /* as: NULL: itself */
        uint32_t scope;
        bool loopback;
    } rows[] = {
        {"192.0.2.7", NULL, 0, false},
        {"127.0.0.1", NULL, 0, true},
        {"127.1.2.3", NULL, 0, true},
        {"128.0.0.1", NULL, 0, false},
        {"2001:db8::7", NULL, 0, false},
        {"fe80::1234", NULL, 3, false},
        {"::ffff:192.0.2.9", "192.0.2.9", 0, false},
        {"::ffff:127.0.0.1", "127.0.0.1", 0, true},
        {"::1", NULL, 0, true},
    };
    enum { PLACES = sizeof(rows) / sizeof(rows[0]) };
    struct st_place places[PLACES] = {{0}}, back[PLACES];
    uint8_t *table = malloc(ST_TABLE_BYTES);
    uint64_t cookie;

    for (uint32_t i = 0; i < PLACES; i++) {
        const union st_address at = address_of(rows[i].address, rows[i].scope);

        assert_int_equal(st_address_is_loopback(&at), rows[i].loopback);
        places[i].port = (uint16_t)(4000 + i);
        st_address_to_place(&places[i], &at);
    }
    assert_true(st_table_get(&cookie, back, PLACES, table, st_table_put(table, 77, places, PLACES)));
    assert_int_equal(cookie, 77);
    for (uint32_t i = 0; i < PLACES; i++) {
        const union st_address at = st_address_of_place(&back[i]);
        const bool v4 = at.any.sa_family == AF_INET;
        char text[64];

        assert_non_null(inet_ntop(at.any.sa_family, v4 ? (const void *)&at.v4.sin_addr : &at.v6.sin6_addr, text, sizeof(text)));
        assert_string_equal(text, rows[i].as != NULL ? rows[i].as : rows[i].address);
        assert_int_equal(ntohs(v4 ? at.v4.sin_port : at.v6.sin6_port), 4000 + i);
        assert_int_equal(v4 ? 0 : at.v6.sin6_scope_id, rows[i].scope);
    }
    free(table);
}

/* --- what rank 0 tells, and what the others read: the test plays the other side --- */

/* Where the next one who asks finds the other side of a connection; NULL: where it is. */
static const union st_address *_Atomic seen;

int __real_st_socket_peer(union st_address *out, int fd);
int __wrap_st_socket_peer(union st_address *out, int fd);

int __wrap_st_socket_peer(union st_address *out, int fd)
{
    const union st_address *at = atomic_load(&seen);

    if (at == NULL)
        return __real_st_socket_peer(out, fd);
    *out = *at;
    return 0;
}

/* One rank that meets the others, and does not go on to connect with them. */
struct comer {
    struct st_comm_tcp_opts opts;
    struct st_meeting meeting;
    struct st_place places[PLACES_MAX];
    pthread_t thread;
    strata_status status;
    char error[1024];
};

static void *comer_main(void *arg)
{
    struct comer *comer = arg;

    comer->status = st_meet(&comer->meeting);
    snprintf(comer->error, sizeof(comer->error), "%s", strata_last_error());
    return NULL;
}

static void come(struct comer *comer, uint32_t rank, uint32_t ranks)
{
    assert_in_range(ranks, 2, PLACES_MAX);
    *comer = (struct comer){.opts = {.world = {.rank = rank, .ranks = ranks}, .address = "127.0.0.1", .port = cf_port()}};
    comer->meeting = (struct st_meeting){.opts = &comer->opts,
                                         .until_ns = st_clock_ns() + 20 * SECOND_NS,
                                         .deadline_ns = 20 * SECOND_NS,
                                         .self = {.host = 70 + rank, .port = (uint16_t)(4000 + rank), .local = "here"},
                                         .places = comer->places};
    assert_int_equal(pthread_create(&comer->thread, NULL, comer_main, comer), 0);
}

static void assert_came(struct comer *comer)
{
    assert_int_equal(pthread_join(comer->thread, NULL), 0);
    if (comer->status != STRATA_OK)
        fail_msg("status %d: %s", comer->status, comer->error);
}

/* Nobody looks at the address of one that has none. */
static bool is_place(const struct st_place *place, const struct st_place *want)
{
    return place->family == want->family && place->port == want->port && place->host == want->host &&
           strcmp(place->local, want->local) == 0 &&
           (want->family == 0 || (place->scope == want->scope && memcmp(place->address, want->address, 16) == 0));
}

static void assert_place(const struct st_place *place, const struct st_place *want, const char *what)
{
    if (!is_place(place, want))
        fail_msg("%s: family %u, address %02x%02x%02x%02x..., scope %u, port %u, host %llu, '%s'; not family %u, port %u", what,
                 place->family, place->address[0], place->address[1], place->address[2], place->address[3], place->scope,
                 place->port, (unsigned long long)place->host, place->local, want->family, want->port);
}

/* Says hello as this rank, and that it waits. */
static int join_meeting(const struct st_place *place, uint32_t rank, uint32_t ranks)
{
    struct st_hello hello = {
        .rank = rank, .ranks = ranks, .key = st_meet_key(cf_port()), .host = place->host, .port = place->port};
    uint8_t bytes[ST_HELLO_BYTES], frame[ST_REPLY_BYTES], yes = 1;
    struct st_reply reply;
    int fd;

    snprintf(hello.local, sizeof(hello.local), "%s", place->local);
    snprintf(hello.version, sizeof(hello.version), "%s", strata_version());
    st_hello_put(bytes, &hello);
    fd = cf_knock(bytes, sizeof(bytes));
    assert_int_equal(st_socket_receive_all(fd, frame, sizeof(frame), UINT64_MAX), 0);
    assert_true(st_reply_get(&reply, frame) && reply.type == ST_REPLY_WAIT);
    assert_int_equal(st_socket_send_all(fd, &yes, 1, UINT64_MAX), 0);
    return fd;
}

/* Rank 0 tells where it has seen the others, so that all can connect to them.  A loopback address would lead a rank of another
 * node to itself: for one that came by such, which MASTER_ADDR may be on rank 0's node alone, the table has none. */
TEST(the_table_has_no_address_that_is_another_one_elsewhere)
{
    static const struct {
        const char *from;
        uint32_t scope;
        uint8_t family; /* in the table; 0: no address */
    } rows[] = {
        {"127.0.0.1", 0, 0},        {"127.0.1.1", 0, 0}, /* a host's own name on Debian */
        {"127.255.255.254", 0, 0},  {"::ffff:127.0.0.1", 0, 0},
        {"::ffff:127.0.1.1", 0, 0}, {"::1", 0, 0},
        {"126.255.255.255", 0, 4},  {"128.0.0.1", 0, 4},
        {"192.0.2.7", 0, 4},        {"::ffff:192.0.2.9", 0, 4},
        {"::ffff:128.0.0.1", 0, 4}, {"::2", 0, 6},
        {"2001:db8::7", 0, 6},      {"fe80::1234", 3, 6},
    };
    enum { GUESTS = sizeof(rows) / sizeof(rows[0]), PLACES = GUESTS + 1, BYTES = 8 + PLACES * ST_PLACE_BYTES };
    /* where rank 0 is, who reached it knows */
    struct st_place want[PLACES] = {{.host = 70, .port = 4000, .local = "here"}}, told[PLACES];
    uint8_t frame[ST_REPLY_BYTES], table[BYTES];
    struct comer host;
    struct st_reply reply;
    uint64_t cookie;
    int fds[PLACES];

    come(&host, 0, PLACES);
    for (uint32_t r = GUESTS; r > 0; r--) {
        const union st_address from = address_of(rows[r - 1].from, rows[r - 1].scope);

        want[r] = (struct st_place){.host = 900 + r, .port = (uint16_t)(5000 + r)};
        snprintf(want[r].local, sizeof(want[r].local), "door %u", r);
        atomic_store(&seen, &from);
        fds[r] = join_meeting(&want[r], r, PLACES);
        st_address_to_place(&want[r], &from);
        want[r].family = rows[r - 1].family;
    }
    assert_came(&host);
    atomic_store(&seen, NULL);
    for (uint32_t r = 1; r < PLACES; r++) {
        assert_int_equal(st_socket_receive_all(fds[r], frame, sizeof(frame), UINT64_MAX), 0);
        assert_true(st_reply_get(&reply, frame) && reply.type == ST_REPLY_TABLE);
        assert_int_equal(reply.bytes, BYTES);
        assert_int_equal(st_socket_receive_all(fds[r], table, BYTES, UINT64_MAX), 0);
        assert_true(st_table_get(&cookie, told, PLACES, table, BYTES));
        assert_int_equal(cookie, host.meeting.cookie);
        for (uint32_t p = 0; p < PLACES; p++)
            assert_place(&told[p], &want[p], p == 0 ? "rank 0" : rows[p - 1].from);
        close(fds[r]);
    }
}

/* Takes the one that comes, and tells it where all are. */
static void host_one(int listener, const struct st_place *places, uint32_t ranks)
{
    uint8_t bytes[ST_HELLO_BYTES], frame[ST_REPLY_BYTES], table[8 + PLACES_MAX * ST_PLACE_BYTES], yes;
    struct st_reply reply = {.type = ST_REPLY_WAIT};
    struct st_hello hello;
    int fd;

    while ((fd = st_socket_accept(listener)) < 0)
        assert_int_equal(fd, -EAGAIN);
    assert_int_equal(st_socket_receive_all(fd, bytes, sizeof(bytes), UINT64_MAX), 0);
    assert_true(st_hello_get(&hello, bytes));
    st_reply_put(frame, &reply);
    assert_int_equal(st_socket_send_all(fd, frame, sizeof(frame), UINT64_MAX), 0);
    assert_int_equal(st_socket_receive_all(fd, &yes, 1, UINT64_MAX), 0);
    reply = (struct st_reply){.type = ST_REPLY_TABLE, .bytes = st_table_put(table, 77, places, ranks)};
    st_reply_put(frame, &reply);
    assert_int_equal(st_socket_send_all(fd, frame, sizeof(frame), UINT64_MAX), 0);
    assert_int_equal(st_socket_send_all(fd, table, reply.bytes, UINT64_MAX), 0);
    close(fd);
}

/* The other half: who reads the table finds all of rank 0's node by the address that led to rank 0, each at its own port, and the
 * others where the table says. */
TEST(ranks_without_an_address_are_where_rank_0_is)
{
    static const struct {
        const char *reached;
        uint32_t scope;
    } rows[] = {{"198.51.100.4", 0}, {"2001:db8::1", 0}, {"fe80::1", 5}, {"127.0.0.1", 0}};
    enum { PLACES = 5 };
    const union st_address other[] = {address_of("192.0.2.7", 0), address_of("fe80::1234", 3)};
    struct st_place told[PLACES];
    int listener;

    for (uint32_t p = 0; p < PLACES; p++) {
        told[p] = (struct st_place){.host = 900 + p, .port = (uint16_t)(5000 + p)};
        snprintf(told[p].local, sizeof(told[p].local), "door %u", p);
    }
    st_address_to_place(&told[3], &other[0]);
    st_address_to_place(&told[4], &other[1]);
    listener = st_socket_listen(st_meet_port(cf_port(), 0));
    assert_true(listener >= 0);
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const union st_address reached = address_of(rows[i].reached, rows[i].scope);
        struct comer guest;

        atomic_store(&seen, &reached);
        come(&guest, 1, PLACES);
        host_one(listener, told, PLACES);
        assert_came(&guest);
        atomic_store(&seen, NULL);
        assert_int_equal(guest.meeting.cookie, 77);
        for (uint32_t p = 0; p < PLACES; p++) {
            struct st_place want = told[p];

            if (p < 3)
                st_address_to_place(&want, &reached);
            assert_place(&guest.places[p], &want, rows[i].reached);
        }
    }
    close(listener);
}
