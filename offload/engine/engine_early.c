/* engine_early.c - updates that are made in backward, before the step's end says what it is worth.
 *
 * They use the coefficients that the step's update has if it is neither clipped nor skipped, and leave a second version: in the
 * other place of each buffer that has one (program.h).  At the step's end the real coefficients are known.  Are they the same to
 * the bit, then the next step begins by taking the second version into force: one flag of each buffer turns.  Else, and before a
 * flush or a save, it is forgotten, and the gate makes the update from the version in force, into the first place.  So nothing is
 * ever in force there between a flush and the next step, and whoever reads or writes planes then knows of one place alone. */
#include "offload/engine/engine_internal.h"

#include <string.h>

static bool has_early(const struct st_engine *eng)
{
    return eng->program->early_pages > 0;
}

void st_engine_early_start(struct st_engine *eng)
{
    if (eng->turned != NULL)
        memset(eng->turned, 0, eng->program->buffer_count * sizeof(*eng->turned));
    eng->early.holds = false;
    eng->early.overflowed = 0;
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

void st_engine_early_judge(struct st_engine *eng, double divisor)
{
    eng->early.holds = has_early(eng) && memcmp(&divisor, &eng->early.divisor, sizeof(divisor)) == 0 &&
                       memcmp(eng->early.sets, eng->sets, sizeof(eng->early.sets)) == 0;
}

void st_engine_early_drop(struct st_engine *eng)
{
    eng->early.holds = false;
}

enum st_phase st_engine_early_phase(const struct st_engine *eng)
{
    return has_early(eng) && !eng->early.holds ? ST_PHASE_BODY_REDO : ST_PHASE_BODY;
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

void st_engine_early_decide(struct st_engine *eng, enum st_phase phase)
{
    if (!has_early(eng))
        return;
    if (phase == ST_PHASE_BODY)
        take(eng);
    eng->result.early_kept = phase == ST_PHASE_BODY;
    eng->result.early_redone = phase != ST_PHASE_BODY && (phase & ST_PHASE_BODY) != 0;
    eng->early.overflowed = 0;
}
