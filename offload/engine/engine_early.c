/* engine_early.c - updates that are made in backward, before the step's end says what it is worth.
 *
 * They use the coefficients that the step's update has if it is neither clipped nor skipped, and leave a second version: in the
 * other place of each buffer that has one (program.h).  At the step's end the real coefficients are known.  Are they the same to
 * the bit, then the next step begins by taking the second version into force: one flag of each buffer turns.  Else, and before a
 * flush or a save, it is forgotten, and the gate makes the update from the version in force, into the first place.  So nothing is
 * ever in force there between a flush and the next step, and whoever reads or writes planes then knows of one place alone.
 *
 * A step that is likely to be clipped makes none, and the gate makes them all.  Which steps do follows from norms that all ranks
 * have, and from when the run is flushed or saved; bits depend on none of it, so a run that resumes begins without a history. */
#include "offload/engine/engine_internal.h"

#include <math.h>
#include <string.h>

static bool has_early(const struct st_engine *eng)
{
    return eng->program->early_pages > 0;
}

void st_engine_early_start(struct st_engine *eng)
{
    if (eng->turned != NULL)
        memset(eng->turned, 0, eng->program->buffer_count * sizeof(*eng->turned));
    eng->early.holds = eng->early.made = false;
    eng->early.overflowed = eng->early.written = 0;
    eng->early.steps = 0;
    memset(&eng->early.counts, 0, sizeof(eng->early.counts));
}

void st_engine_set_early(struct st_engine *eng, double most)
{
    eng->early.most = most;
}

void st_engine_early_begin(struct st_engine *eng, double divisor)
{
    if (!has_early(eng))
        return;
    st_engine_foresee_update(eng, divisor, eng->early.coefs);
    memcpy(eng->early.sets, eng->sets, sizeof(eng->early.sets));
    eng->early.divisor = divisor;
    eng->early.holds = false;
}

static void remember(struct st_engine *eng, double log)
{
    if (eng->early.steps == ST_EARLY_STEPS)
        memmove(eng->early.logs, eng->early.logs + 1, --eng->early.steps * sizeof(*eng->early.logs));
    eng->early.logs[eng->early.steps++] = log;
}

void st_engine_early_learn(struct st_engine *eng, double norm, bool skipped)
{
    const double clip = eng->training.clip_norm;

    remember(eng, skipped ? (double)INFINITY : clip > 0 ? log(norm / clip) : -(double)INFINITY);
}

void st_engine_early_judge(struct st_engine *eng, double divisor)
{
    eng->early.holds = eng->early.made && memcmp(&divisor, &eng->early.divisor, sizeof(divisor)) == 0 &&
                       memcmp(eng->early.sets, eng->sets, sizeof(eng->early.sets)) == 0;
}

void st_engine_early_drop(struct st_engine *eng)
{
    eng->early.holds = false;
}

enum st_phase st_engine_early_phase(const struct st_engine *eng, enum st_phase phase)
{
    unsigned with = 0;

    if (!has_early(eng))
        return phase;
    if (phase == ST_PHASE_BODY && !eng->early.holds)
        with |= ST_PHASE_REDO;
    if (!(st_early_chance(eng->early.logs, eng->early.steps) <= eng->early.most))
        with |= ST_PHASE_LATE;
    return (enum st_phase)(phase | with);
}

static void turn(struct st_engine *eng, uint32_t buffer)
{
    eng->turned[buffer] = !eng->turned[buffer];
}

/* The second version is whole by now, or on its way to its place, where whoever reads it waits for it. */
static void take(struct st_engine *eng)
{
    const struct st_program *program = eng->program;

    for (uint32_t p = 0; p < program->workload.page_count; p++)
        if (program->pages[p].early)
            turn(eng, program->pages[p].home_region);
    for (uint32_t c = 0; c < program->chunk_count; c++)
        if (program->pages[program->chunks[c].page].early) {
            turn(eng, program->chunks[c].region);
            eng->fresh[c] = false;
        }
    eng->train.overflowed_host += eng->early.overflowed;
}

/* Bytes of what has second versions. */
static uint64_t version_bytes(const struct st_program *program)
{
    uint64_t bytes = 0;

    for (uint32_t p = 0; p < program->workload.page_count; p++)
        if (program->pages[p].early)
            bytes += st_page_updated_bytes(&program->shards[p], program->pages[p].home);
    for (uint32_t c = 0; c < program->chunk_count; c++)
        if (program->pages[program->chunks[c].page].early)
            bytes += program->chunks[c].bytes;
    return bytes;
}

static void count(struct st_engine *eng, enum st_phase phase)
{
    struct st_early_counts *all = &eng->early.counts;
    struct st_step_result *r = &eng->result;
    const bool kept = eng->early.made && st_phase_keeps(phase), redone = eng->early.made && !kept;

    r->early_kept = kept;
    r->early_redone = redone;
    r->redone_bytes = redone ? version_bytes(eng->program) : 0;
    r->wasted_bytes = redone ? eng->early.written : 0;
    all->kept += kept;
    all->redone += redone;
    all->redone_bytes += r->redone_bytes;
    all->wasted_bytes += r->wasted_bytes;
}

/* A flush or a save is no better than a step that was skipped: what it forgets was of no use. */
void st_engine_early_decide(struct st_engine *eng, enum st_phase phase)
{
    if (!has_early(eng))
        return;
    if (st_phase_keeps(phase))
        take(eng);
    if ((phase & (ST_PHASE_EPILOGUE | ST_PHASE_SAVE)) != 0 && eng->early.steps > 0)
        eng->early.logs[eng->early.steps - 1] = (double)INFINITY;
    count(eng, phase);
    eng->early.made = (phase & (ST_PHASE_PROLOGUE | ST_PHASE_BODY)) != 0 && (phase & ST_PHASE_LATE) == 0;
    eng->result.early_made = eng->early.made;
    eng->early.counts.made += eng->early.made;
    eng->early.overflowed = eng->early.written = 0;
}
