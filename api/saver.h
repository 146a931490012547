/* api/saver.h - makes checkpoints of an engine's run, one at a time: chooses sets, hands over what the engine has brought into
 * one, and keeps what became of it. */
#ifndef API_SAVER_H
#define API_SAVER_H

#include "api/handles.h"
#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/commit.h"
#include "strata/checkpoint.h"

struct st_saver;

/** Begin to save into the configuration's directory, which is made if it is missing.
 *  @param overwrite  checkpoints that have the names of new ones are replaced
 *  @return E_INPUT: it cannot be one, or another run saves into it; E_NOSPC, E_IO, E_NOMEM */
strata_status st_saver_open(struct st_saver **out, const struct strata_model *model, bool overwrite);
/** Waits for a save in progress; the swap of `engine` must be there still.  NULL is fine. */
void st_saver_close(struct st_saver *s);
/** Start once the engine's swap is there. */
strata_status st_saver_start(struct st_saver *s, struct strata_engine *e);
/** 16 hex digits: of the run, which a resumed one goes on with. */
const char *st_saver_run(const struct st_saver *s);

/** Save: waits for the save before, has the engine write what lives in memory, hands over, and gives the engine another set.
 *  @param m  taken, also on failure */
strata_status st_saver_save(struct st_saver *s, struct strata_engine *e, struct st_manifest *m);
/** How the last save went; its failure, once. */
strata_status st_saver_ask(struct st_saver *s, bool wait, struct strata_saved *out);
/** The engine goes on from this. */
strata_status st_saver_resumed(struct st_saver *s, struct strata_engine *e, const struct st_checkpoint *ck);

/* The checkpoint that an engine resumed from, as volumes of its swap: until it has adopted nothing of them. */
struct st_resumed {
    struct st_checkpoint_volume *set, *base; /* NULL: closed */
    uint32_t volumes[ST_SPACE_COUNT];
};
strata_status st_resumed_open(struct st_resumed *r, struct st_engine *engine, const struct st_checkpoint *ck);
void st_resumed_close(struct st_resumed *r, struct st_engine *engine);

#endif
