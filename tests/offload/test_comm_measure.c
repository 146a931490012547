/* tests/offload/test_comm_measure.c - links between ranks are measured, each pair and together; every rank gets the same figures.
 */
#include "offload/comm/comm_measure.h"
#include "tests/common/assert_status.h"
#include "tests/offload/comm_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct nodes {
    const uint16_t *of;
    struct st_links links[CF_RANKS_MAX]; /* out, by rank */
};

static strata_status measure(struct st_comm *comm, struct cf_world *world)
{
    struct nodes *n = world->ctx;

    return st_comm_measure(&n->links[comm->world.rank], comm, n->of);
}

static void measure_world(const char *kind, struct nodes *n)
{
    struct cf_world world = {.kind = kind, .ranks = 3, .body = measure, .ctx = n};

    cf_run(&world);
    cf_assert_ok(&world);
    for (uint32_t r = 1; r < world.ranks; r++)
        assert_memory_equal(&n->links[r], &n->links[0], sizeof(n->links[0]));
    assert_int_equal(n->links[0].ranks, 3);
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t b = 0; b < 3; b++)
            assert_int_equal(n->links[0].pair[a][b] > 0, a < b);
}

static void pairs_and_nodes_are_measured(void **state)
{
    static const struct {
        const char *kind;
        uint16_t of[3];
        uint32_t here;
    } rows[] = {{"threads", {0, 0, 0}, 3}, {"shared", {0, 0, 2}, 2}, {"tcp", {0, 1, 2}, 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct nodes n = {.of = rows[i].of};
        const struct st_links *l = &n.links[0];

        measure_world(rows[i].kind, &n);
        assert_int_equal(l->here, rows[i].here);
        assert_int_equal(l->link_node > 0, rows[i].here > 1);
        assert_int_equal(l->latency_node > 0, rows[i].here > 1);
        assert_int_equal(l->link_nodes > 0, rows[i].here < 3);
        assert_int_equal(l->latency_nodes > 0, rows[i].here < 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pairs_and_nodes_are_measured)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
