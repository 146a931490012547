/* test_answers - what ranks agree on: who has failed gets its own failure back, all others that of the first who has. */
#include "offload/engine/engine_internal.h"
#include "tests/common/test.h"

#include "core/base/error.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define RANKS 3u

struct rank {
    struct st_engine eng; /* as much of it as this needs */
    struct st_program program;
    struct st_engine_answer answers[RANKS];
    strata_status says, told;
    char sentence[256];
    pthread_t thread;
};

static void *agree(void *arg)
{
    struct rank *r = arg;
    strata_status st = r->says;

    if (st != STRATA_OK)
        st = st_error(st, "it is %u's", r->program.rank);
    r->told = st_engine_agree(&r->eng, st, "an answer");
    snprintf(r->sentence, sizeof(r->sentence), "%s", r->told == STRATA_OK ? "" : strata_last_error());
    return NULL;
}

/* failed: ranks, as bits. */
static void check(struct st_comm *const comms[RANKS], uint32_t failed)
{
    static struct rank ranks[RANKS];

    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.program = {.ranks = RANKS, .rank = r},
                                 .says = (failed >> r & 1) == 0 ? STRATA_OK
                                         : r == 1               ? STRATA_E_CORRUPT
                                                                : STRATA_E_IO};
        ranks[r].eng.program = &ranks[r].program;
        ranks[r].eng.host_comm = comms[r];
        ranks[r].eng.answers = ranks[r].answers;
        pthread_mutex_init(&ranks[r].eng.lock, NULL);
        pthread_cond_init(&ranks[r].eng.wake, NULL);
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, agree, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        const uint32_t first = failed != 0 ? (uint32_t)__builtin_ctz(failed) : 0, own = (failed >> r & 1) != 0 ? r : first;
        char sentence[64] = "";

        if (failed != 0 && own == r)
            snprintf(sentence, sizeof(sentence), "it is %u's", r);
        else if (failed != 0)
            snprintf(sentence, sizeof(sentence), "rank %u: it is %u's", first, first);
        assert_int_equal(ranks[r].told, ranks[own].says);
        assert_string_equal(ranks[r].sentence, sentence);
        pthread_cond_destroy(&ranks[r].eng.wake);
        pthread_mutex_destroy(&ranks[r].eng.lock);
    }
}

TEST(one_answer_for_all)
{
    struct st_comm *comms[RANKS];

    assert_int_equal(st_comm_threads_open(comms, RANKS, ST_COMM_DEADLINE_NS), STRATA_OK);
    for (uint32_t failed = 0; failed < 1u << RANKS; failed++)
        check(comms, failed);
    for (uint32_t r = 0; r < RANKS; r++)
        st_comm_close(comms[r]);
}
