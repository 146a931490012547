/* tests/cli/test_ranks_bound.c - ranks that a launcher has bound to cores of their own keep all of them. */
#include "tests/cli/ranks.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Workers of rank 0, as its metrics have them. */
static unsigned long workers_of(const struct workplace *w, uint32_t ranks, const cpu_set_t *sets)
{
    static const char key[] = "\"workers\":";
    struct ranks r = {0};
    unsigned long workers;
    size_t bytes;
    char *text;

    ranks_run_bound(
        w, &r, ranks,
        "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1 --machine {w}/machine.json --quiet --metrics "
        "{w}/m.jsonl",
        sets);
    ranks_free(&r);
    text = workplace_read(w, "m.jsonl", &bytes);
    assert_non_null(strstr(text, key));
    workers = strtoul(strstr(text, key) + strlen(key), NULL, 10);
    free(text);
    workplace_remove(w, "m.jsonl");
    return workers;
}

/* All ranks have as many workers as the one with the fewest, so that it takes three cores to see this. */
TEST(cores_of_ones_own_are_kept)
{
    cpu_set_t all, sets[2];
    uint32_t taken = 0;
    unsigned long alone;

    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    if (CPU_COUNT(&all) < 3)
        skip();
    CPU_ZERO(&sets[0]);
    CPU_ZERO(&sets[1]);
    for (size_t cpu = 0; taken < 3; cpu++) {
        if (!CPU_ISSET(cpu, &all))
            continue;
        if (taken < 2)
            CPU_SET(cpu, &sets[0]);
        if (taken > 0)
            CPU_SET(cpu, &sets[1]);
        taken++;
    }
    alone = workers_of(*state, 1, sets);
    if (alone < 2) /* under a quota */
        skip();
    assert_int_equal(workers_of(*state, 2, sets), alone);
    sets[1] = sets[0]; /* the same ones are divided */
    assert_int_equal(workers_of(*state, 2, sets), alone / 2);
}

TEST_GROUP(workplace_setup, workplace_teardown);
