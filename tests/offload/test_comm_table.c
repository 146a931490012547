/* tests/offload/test_comm_table.c - what ranks that meet are told of each other: where each is found, wherever it is read. */
#include "offload/comm/comm_tcp_internal.h"
#include "tests/offload/comm_fixture.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
static void addresses_survive_the_table(void **state)
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

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_survive_the_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
