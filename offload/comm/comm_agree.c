/* offload/comm/comm_agree.c - see comm.h: what all ranks must have alike is compared by hashes; the values of the first fact that
 * differs are gathered for the sentence.  Every rank sees the same hashes, and so says the same. */
#include "offload/comm/comm.h"

#include "core/base/checksum.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE_BYTES 100u /* longer values are cut */
#define VALUE_BYTES 192u /* of a value in a sentence */

static uint64_t hash_text(const char *text)
{
    return st_checksum64(text, strlen(text));
}

static uint64_t hash_value(const struct st_comm_fact *fact)
{
    return fact->text != NULL ? hash_text(fact->text) : fact->number;
}

static void value_text(char out[VALUE_BYTES], const struct st_comm_fact *fact)
{
    if (fact->text == NULL)
        snprintf(out, VALUE_BYTES, "%" PRIu64, fact->number);
    else if (strlen(fact->text) <= WHOLE_BYTES)
        snprintf(out, VALUE_BYTES, "%s", fact->text);
    else
        snprintf(out, VALUE_BYTES, "%.80s... (%zu characters, hash %016" PRIx64 ")", fact->text, strlen(fact->text),
                 hash_text(fact->text));
}

/* The first rank whose number at `at` of its row is not rank 0's; 0: none. */
static uint32_t odd_rank(const uint64_t *rows, uint64_t row, uint32_t ranks, uint64_t at)
{
    for (uint32_t r = 1; r < ranks; r++)
        if (rows[r * row + at] != rows[at])
            return r;
    return 0;
}

/* All ranks must call it with the same number of facts under the same names, or nothing that follows can be compared. */
static strata_status same_names(struct st_comm *comm, const struct st_comm_fact *facts, uint32_t count, const char *what)
{
    uint64_t mine = count, all[ST_COMM_RANKS_MAX];
    strata_status st;
    uint32_t odd;

    for (uint32_t i = 0; i < count; i++)
        mine = mine * UINT64_C(0x9e3779b97f4a7c15) + hash_text(facts[i].name);
    if ((st = st_comm_gather(comm, &mine, sizeof(mine), all, what)) != STRATA_OK)
        return st;
    if ((odd = odd_rank(all, 1, comm->world.ranks, 0)) == 0)
        return STRATA_OK;
    return st_error(STRATA_E_CONFIG, "ranks 0 and %" PRIu32 " run different versions of the program: %s compares other things",
                    odd, what);
}

static strata_status differs(struct st_comm *comm, const struct st_comm_fact *fact, uint32_t odd, const char *what)
{
    char mine[VALUE_BYTES] = {0}, *all = malloc((size_t)comm->world.ranks * VALUE_BYTES);
    strata_status st;

    if (all == NULL)
        return st_nomem((size_t)comm->world.ranks * VALUE_BYTES);
    value_text(mine, fact);
    if ((st = st_comm_gather(comm, mine, VALUE_BYTES, all, what)) == STRATA_OK) {
        char *theirs = all + (size_t)odd * VALUE_BYTES;

        all[VALUE_BYTES - 1] = theirs[VALUE_BYTES - 1] = '\0';
        st = st_error(fact->status != STRATA_OK ? fact->status : STRATA_E_CONFIG,
                      "%s differs among the ranks: rank 0 has %s, rank %" PRIu32 " has %s%s%s", fact->name, all, odd, theirs,
                      comm->doubt != NULL ? "; " : "", comm->doubt != NULL ? comm->doubt : "");
    }
    free(all);
    return st;
}

static strata_status compare(struct st_comm *comm, const struct st_comm_fact *facts, uint32_t count, uint64_t *all,
                             const char *what)
{
    uint64_t *mine = all + (uint64_t)comm->world.rank * count;
    strata_status st;

    for (uint32_t i = 0; i < count; i++)
        mine[i] = hash_value(&facts[i]);
    st = st_comm_gather(comm, mine, count * sizeof(*mine), all, what);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        const uint32_t odd = odd_rank(all, count, comm->world.ranks, i);

        if (odd > 0)
            st = differs(comm, &facts[i], odd, what);
    }
    return st;
}

strata_status st_comm_agree(struct st_comm *comm, const struct st_comm_fact *facts, uint32_t count, const char *what)
{
    uint64_t *all;
    strata_status st;

    if (comm == NULL || (st = same_names(comm, facts, count, what)) != STRATA_OK)
        return comm == NULL ? STRATA_OK : st;
    if ((all = calloc((size_t)comm->world.ranks * count + 1, sizeof(*all))) == NULL)
        return st_nomem(((size_t)comm->world.ranks * count + 1) * sizeof(*all));
    st = compare(comm, facts, count, all, what);
    free(all);
    return st;
}
