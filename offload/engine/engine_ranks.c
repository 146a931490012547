/* engine_ranks.c - what ranks give each other outside a step's arithmetic: slices of pages, statuses, and, for exports and
 * digests, the bytes of planes in one order on rank 0.
 *
 * Called between steps on the caller's thread, and by the comm ops of a step on the comm's own. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct st_comm_peer) + ST_GROUPS_MAX * sizeof(struct st_comm_part) == ST_PEER_RECORD_BYTES, "planned");
_Static_assert(sizeof(struct st_engine_answer) == ST_ANSWER_RECORD_BYTES, "planned");

strata_status st_engine_ranks_create(struct st_engine *eng, const struct st_engine_opts *opts)
{
    const size_t ranks = eng->program->ranks;

    if (ranks <= 1)
        return STRATA_OK;
    assert(opts->comm != NULL && opts->device_comm != NULL && opts->comm->world.ranks == ranks &&
           opts->comm->world.rank == eng->program->rank);
    eng->host_comm = opts->comm;
    eng->device_comm = opts->device_comm;
    eng->answers = calloc(ranks, sizeof(*eng->answers));
    eng->peers.peers = calloc(ranks, sizeof(*eng->peers.peers));
    eng->peers.parts = calloc(ranks * ST_GROUPS_MAX, sizeof(*eng->peers.parts));
    if (eng->answers == NULL || eng->peers.peers == NULL || eng->peers.parts == NULL)
        return st_nomem(0);
    return STRATA_OK;
}

void st_engine_ranks_destroy(struct st_engine *eng)
{
    free(eng->answers);
    free(eng->peers.peers);
    free(eng->peers.parts);
}

/* --- slices of pages --- */

uint32_t st_engine_slices(struct st_comm_part *parts, const struct st_engine *eng, const struct st_engine_array *a, uint32_t rank)
{
    const struct st_workload *w = &eng->program->workload;
    const struct st_page *page = &w->pages[a->page];
    uint32_t count = 0;

    for (uint32_t i = 0; i < page->group_count; i++) {
        const struct st_group *g = &page->groups[i];
        const struct st_slice s = st_slice_of(w, a->page, i, eng->program->ranks, rank);

        if (s.elems == 0 || (g->kind == ST_GROUP_FROZEN && !a->frozen))
            continue;
        if (a->width == 0)
            parts[count++] =
                (struct st_comm_part){a->base + g->at + st_format_bytes(g->format, s.first), st_format_bytes(g->format, s.elems)};
        else
            parts[count++] = (struct st_comm_part){a->base + (g->offset + s.first) * a->width, s.elems * a->width};
    }
    return count;
}

uint32_t st_engine_gather_slices(struct st_comm_peer *peers, struct st_comm_part *parts, const struct st_engine *eng,
                                 const struct st_engine_array *a)
{
    const uint32_t own = st_engine_slices(parts, eng, a, eng->program->rank);
    uint32_t count = own;

    for (uint32_t r = 0; r < eng->program->ranks; r++) {
        struct st_comm_part *theirs = parts + count;

        peers[r] = (struct st_comm_peer){0};
        if (r == eng->program->rank)
            continue;
        count += st_engine_slices(theirs, eng, a, r);
        peers[r] = (struct st_comm_peer){
            .send = parts, .recv = theirs, .send_count = own, .recv_count = (uint32_t)(parts + count - theirs)};
    }
    return count;
}

strata_status st_engine_gather_page(struct st_engine *eng, uint32_t p)
{
    const struct st_engine_array weights = {
        .page = p, .base = st_engine_pointer(eng, eng->program->pages[p].weight_region), .frozen = true};
    char what[64];

    (void)st_engine_gather_slices(eng->peers.peers, eng->peers.parts, eng, &weights);
    snprintf(what, sizeof(what), "the first gather of page %u", p);
    return st_comm_exchange(eng->device_comm, eng->peers.peers, what);
}

strata_status st_engine_gather_pages(struct st_engine *eng)
{
    const struct st_program *program = eng->program;
    strata_status st = STRATA_OK;

    for (uint32_t p = 0; p < program->workload.page_count && st_program_cuts(program) > 1 && st == STRATA_OK; p++)
        if (program->pages[p].weight_region != ST_NO_BUFFER)
            st = st_engine_gather_page(eng, p);
    return st;
}

/* --- one answer for all --- */

strata_status st_engine_agree(struct st_engine *eng, strata_status st, const char *what)
{
    const uint32_t ranks = eng->program->ranks;
    struct st_engine_answer mine = {0}, *const all = eng->answers;
    struct st_sentence own;
    strata_status told;

    if (eng->host_comm == NULL)
        return st;
    st_error_keep(&own);
    if ((told = st_engine_drain(eng)) != STRATA_OK && st == STRATA_OK) { /* exchanges of the last step may be under way */
        st = told;
        st_error_keep(&own);
    }
    if (st != STRATA_OK)
        snprintf(mine.sentence, sizeof(mine.sentence), "%.*s", (int)sizeof(mine.sentence) - 1, own.text);
    mine.status = (int32_t)st;
    told = st_comm_gather(eng->host_comm, &mine, sizeof(mine), all, what);
    for (uint32_t r = 0; r < ranks && told == STRATA_OK && st == STRATA_OK; r++)
        if (all[r].status != STRATA_OK)
            told = st_error((strata_status)all[r].status, "rank %u: %s", r, all[r].sentence);
    return st != STRATA_OK ? st_error_again(st, &own) : told;
}

strata_status st_engine_gather(struct st_engine *eng, const void *mine, uint64_t bytes, void *all, const char *what)
{
    if (eng->host_comm != NULL)
        (void)st_engine_drain(eng); /* exchanges of the last step may be under way; a failure is the next step's to tell */
    return st_comm_gather(eng->host_comm, mine, bytes, all, what);
}

/* --- planes on their way to rank 0 --- */

void st_relay_begin(struct st_relay *relay, struct st_engine *eng)
{
    *relay = (struct st_relay){.eng = eng};
}

bool st_relay_goes_on(const struct st_relay *relay)
{
    if (relay->failure != STRATA_OK && st_program_cuts(relay->eng->program) == 1)
        return false; /* nobody waits for rank 0 */
    return relay->broken == STRATA_OK && relay->word == STRATA_OK;
}

void st_relay_fail(struct st_relay *relay, strata_status st)
{
    if (st == STRATA_OK || relay->failure != STRATA_OK)
        return;
    relay->failure = st;
    st_error_keep(&relay->sentence);
}

/* Everybody tells rank 0 how it goes, the owner with the bytes behind that; rank 0 tells everybody what it knew before. */
static void exchange(struct st_relay *relay, uint32_t owner, const void *data, uint64_t bytes)
{
    struct st_engine *eng = relay->eng;
    const uint32_t rank = eng->program->rank, ranks = eng->program->ranks;
    struct st_comm_part *own = eng->peers.parts + (size_t)rank * ST_GROUPS_MAX;
    int32_t word = (int32_t)relay->failure;

    own[0] = (struct st_comm_part){.data = &word, .bytes = sizeof(word)};
    own[1] = (struct st_comm_part){.data = (void *)(uintptr_t)data, .bytes = bytes}; /* only read */
    for (uint32_t r = 0; r < ranks; r++) {
        struct st_comm_part *theirs = eng->peers.parts + (size_t)r * ST_GROUPS_MAX;

        eng->peers.peers[r] = (struct st_comm_peer){0};
        if (r == rank || (rank != 0 && r != 0))
            continue;
        theirs[0] = (struct st_comm_part){.data = &eng->answers[r].status, .bytes = sizeof(word)};
        theirs[1] = (struct st_comm_part){.data = eng->staging, .bytes = bytes};
        eng->peers.peers[r] = (struct st_comm_peer){
            .send = own, .recv = theirs, .send_count = rank == owner ? 2 : 1, .recv_count = r == owner && rank == 0 ? 2 : 1};
    }
    relay->broken = st_comm_exchange(eng->host_comm, eng->peers.peers, "planes on their way to rank 0");
    relay->word = (strata_status)(rank == 0 ? word : eng->answers[0].status);
    for (uint32_t r = 1; r < ranks && rank == 0 && relay->failure == STRATA_OK && relay->broken == STRATA_OK; r++)
        relay->failure = (strata_status)eng->answers[r].status; /* whose sentence follows at the end */
}

/* The next bytes of an owner's run, on the host; where it has failed, any. */
static const void *bring(struct st_relay *relay, const unsigned char *from, bool on_device, uint64_t bytes)
{
    if (relay->failure != STRATA_OK)
        return relay->eng->staging;
    if (!on_device)
        return from;
    st_relay_fail(relay, st_engine_get(relay->eng, relay->eng->staging, from, bytes));
    return relay->eng->staging;
}

void st_relay_run(struct st_relay *relay, const struct st_relay_run *run)
{
    const uint32_t rank = relay->eng->program->rank;

    for (uint64_t at = 0; at < run->bytes && st_relay_goes_on(relay); at += run->most) {
        const uint64_t left = run->bytes - at, bytes = left < run->most ? left : run->most;
        const void *data = relay->eng->staging;

        if (rank == run->owner)
            data = bring(relay, run->from + at, run->on_device, bytes);
        if (run->owner != 0)
            exchange(relay, run->owner, data, bytes);
        if (rank == 0 && relay->failure == STRATA_OK && relay->broken == STRATA_OK)
            st_relay_fail(relay, run->emit(run->ctx, at, bytes, run->owner == 0 ? data : relay->eng->staging));
    }
}

strata_status st_relay_end(struct st_relay *relay)
{
    strata_status st = relay->failure;

    if (relay->broken != STRATA_OK)
        return relay->broken;
    if (st != STRATA_OK && relay->sentence.text[0] == '\0')
        st = STRATA_OK; /* another rank's, which says it itself */
    return st_engine_agree(relay->eng, st == STRATA_OK ? STRATA_OK : st_error_again(st, &relay->sentence), "the end of planes");
}
