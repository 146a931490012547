/* run/checkpointer_rounds.c - ranks that make a checkpoint together: what they tell each other between steps, which ends each
 * round. */
#include "run/checkpointer_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TELL_NS UINT64_C(1000000000) /* ranks that wait for others' parts hear of them so often, well within any deadline */

/* What the checkpoint says of the run. */
static void take_train(struct st_checkpointer *s, const struct st_train_state *train)
{
    s->due.train = *train;
    for (uint32_t r = 0; r < s->ranks && s->parts > 1; r++)
        s->due.train.overflowed_host += r != s->rank ? s->offers[r].overflowed : 0;
}

strata_status st_checkpointer_offer(struct st_checkpointer *s, strata_status st, const struct st_train_state *train)
{
    struct st_save_offer *mine = &s->offers[s->rank], failed = {0};
    struct st_sentence sentence;
    strata_status told;

    *mine = (struct st_save_offer){0};
    if (st == STRATA_OK && s->rank == 0 && s->parts > 1)
        st = st_committer_begin(s->committer, s->due.step, mine->dir);
    mine->status = (int32_t)st;
    mine->stripe = *st_swap_stripe(st_engine_swap(s->run->engine));
    if (st == STRATA_OK)
        mine->overflowed = train->overflowed_host;
    else
        snprintf(mine->sentence, sizeof(mine->sentence), "%s", strata_last_error());
    told = st_engine_gather(s->run->engine, mine, sizeof(*mine), s->offers, "what ranks have to save");
    for (uint32_t r = 0; r < s->ranks && told == STRATA_OK; r++) {
        failed = s->offers[r];
        if (failed.status != STRATA_OK)
            told = st_error((strata_status)failed.status, "rank %u: %s", r, failed.sentence);
        else if (s->parts > 1 && !st_stripe_alike(&failed.stripe, &s->offers[0].stripe))
            told = st_error(STRATA_E_CONFIG,
                            "rank %u stripes its swap otherwise than rank 0: give all equally many, equally fast directories, "
                            "and one aio.block_size",
                            r);
    }
    if (told != STRATA_OK && s->rank == 0 && s->parts > 1) {
        st_error_keep(&sentence);
        st_committer_end(s->committer, s->due.step, false);
        told = st_error_again(told, &sentence);
    }
    if (told == STRATA_OK)
        take_train(s, train);
    return told;
}

/* Rank 0 has made a directory in SAVE: it is there for the others, too. */
static strata_status see(const struct st_checkpointer *s, const char *dir)
{
    if (!st_fault_refuses("run.save_seen") && access(dir, R_OK | W_OK) == 0)
        return STRATA_OK;
    return st_error_remedy(st_error(errno == ENOENT || errno == EACCES ? STRATA_E_INPUT : STRATA_E_IO,
                                    "strata.save %s: rank 0 has begun to save there, and this rank does not see it (%s)", s->save,
                                    strerror(errno)),
                           "strata.save", "it must be on a file system that all ranks share");
}

strata_status st_checkpointer_rehearse(struct st_checkpointer *s)
{
    const struct st_train_state none = {0};
    struct st_sentence sentence;
    strata_status st = st_checkpointer_offer(s, STRATA_OK, &none);

    if (st != STRATA_OK)
        return st;
    st = st_engine_agree(s->run->engine, see(s, s->offers[0].dir), "whether the ranks share the directory of checkpoints");
    if (s->rank != 0)
        return st;
    st_error_keep(&sentence);
    st_committer_end(s->committer, s->due.step, false);
    return st == STRATA_OK ? STRATA_OK : st_error_again(st, &sentence);
}

/* Something that this rank could not even begin: it is told as what has ended so. */
static void report_failure(struct st_checkpointer *s, strata_status st)
{
    s->report = (struct st_commit_report){.status = st, .step = s->step};
    st_error_keep(&s->report.sentence);
    s->reported = true;
}

void st_checkpointer_begin_round(struct st_checkpointer *s, struct st_extents *extents)
{
    struct st_commit job = {
        .what = s->parts > 1 ? ST_COMMIT_PART : ST_COMMIT_ALL, .extents = *extents, .set = st_engine_set(s->run->engine)};
    strata_status st = STRATA_OK;

    s->round = ST_SAVE_ROUND_PARTS;
    s->copied_bytes = 0;
    s->report = (struct st_commit_report){.step = s->step};
    s->reported = s->committer == NULL;
    if (s->parts > 1) {
        job.manifest.step = s->step;
        memcpy(job.manifest.space_bytes, s->due.space_bytes, sizeof(job.manifest.space_bytes));
        memcpy(job.dir, s->offers[0].dir, sizeof(job.dir));
        s->joined = s->due; /* rank 0's is used */
    } else {
        job.manifest = s->due;
    }
    s->due = (struct st_manifest){0};
    if (s->committer != NULL && (st = st_committer_submit(s->committer, &job)) != STRATA_OK)
        report_failure(s, st);
    st_manifest_fini(&job.manifest); /* taken, but for a failure, and where nothing is to be done */
    st_extents_fini(&job.extents);
}

/* All parts are there. */
static void begin_join(struct st_checkpointer *s)
{
    struct st_commit job = {.what = ST_COMMIT_JOIN, .manifest = s->joined};
    strata_status st;

    s->round = ST_SAVE_ROUND_JOIN;
    s->reported = s->rank != 0;
    if (s->rank != 0)
        return;
    if ((st = st_committer_submit(s->committer, &job)) != STRATA_OK)
        report_failure(s, st);
    s->joined = job.manifest;
}

/* The checkpoint has ended so, as rank `r` says. */
static void end_rounds(struct st_checkpointer *s, uint32_t r)
{
    const struct st_save_ballot *b = &s->ballots[r];
    struct st_commit_report report = {
        .status = (strata_status)b->status, .committed = b->committed, .step = s->step, .copied_bytes = s->copied_bytes};

    if (b->status != STRATA_OK)
        snprintf(report.sentence.text, sizeof(report.sentence.text), "rank %u: %s", r, b->sentence);
    s->round = ST_SAVE_ROUND_NONE;
    if (s->parts > 1)
        st_committer_end(s->committer, s->step, b->committed);
    st_manifest_fini(&s->joined);
    s->joined = (struct st_manifest){0};
    st_checkpointer_keep_report(s, &report);
}

/* Everybody says how it is; true: the round has ended on all of them. */
static bool all_ended(const struct st_checkpointer *s, uint32_t *failed)
{
    bool ended = true;

    *failed = s->ranks;
    for (uint32_t r = s->ranks; r > 0; r--) {
        ended = ended && s->ballots[r - 1].ended;
        if (s->ballots[r - 1].status != STRATA_OK)
            *failed = r - 1;
    }
    return ended;
}

strata_status st_checkpointer_take_rounds(struct st_checkpointer *s, bool wait)
{
    strata_status st = STRATA_OK;
    bool again = true;

    while (s->round != ST_SAVE_ROUND_NONE && again && st == STRATA_OK) {
        struct st_save_ballot mine = {0};
        uint32_t failed;

        if (wait && s->committer != NULL)
            st_committer_wait_for(s->committer, TELL_NS);
        if (!s->reported)
            s->reported = st_committer_reported(s->committer, &s->report);
        if (s->reported) {
            mine = (struct st_save_ballot){.ended = true,
                                           .status = (int32_t)s->report.status,
                                           .committed = s->report.committed,
                                           .copied_bytes = s->report.copied_bytes};
            snprintf(mine.sentence, sizeof(mine.sentence), "%.*s", (int)sizeof(mine.sentence) - 1, s->report.sentence.text);
        }
        st = st_engine_gather(s->run->engine, &mine, sizeof(mine), s->ballots, "how far ranks have saved");
        again = wait;
        if (st != STRATA_OK || !all_ended(s, &failed))
            continue;
        for (uint32_t r = 0; r < s->ranks && s->round == ST_SAVE_ROUND_PARTS; r++)
            s->copied_bytes += s->ballots[r].copied_bytes;
        if (s->round == ST_SAVE_ROUND_PARTS && failed == s->ranks && s->parts > 1)
            begin_join(s);
        else
            end_rounds(s, failed < s->ranks ? failed : 0);
    }
    return st;
}

strata_status st_checkpointer_share_run(struct st_checkpointer *s)
{
    struct st_save_ballot mine = {0};
    strata_status st;

    snprintf(mine.sentence, sizeof(mine.sentence), "%s", s->name);
    st = st_engine_gather(s->run->engine, &mine, sizeof(mine), s->ballots, "the name of a run");
    snprintf(s->name, sizeof(s->name), "%.16s", s->ballots[0].sentence);
    return st;
}
