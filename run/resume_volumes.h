/* run/resume_volumes.h - the files of the checkpoint that an engine resumes from, as volumes of its swap. */
#ifndef RUN_RESUME_VOLUMES_H
#define RUN_RESUME_VOLUMES_H

#include "offload/checkpoint/checkpoint.h"
#include "offload/engine/engine.h"

struct st_resume_space {
    struct st_checkpoint_volume *files; /* NULL: closed */
    uint32_t volume;
};
struct st_resume_volumes {
    struct st_resume_space all[ST_SPACE_COUNT], own[ST_SPACE_COUNT]; /* all parts', and one part's only */
    uint32_t volumes[ST_SPACE_COUNT], own_volumes[ST_SPACE_COUNT];
};
/** @param part  that is also opened by itself; ST_CHECKPOINT_PARTS: none */
strata_status st_resume_volumes_open(struct st_resume_volumes *r, struct st_engine *engine, const struct st_checkpoint *ck,
                                     uint32_t part);
/** Close the files of what is trained: updates have written all of that elsewhere.  Else they would take their space when the
 *  checkpoint is gone, and a set of this run that they are could not be used again.  NULL is fine. */
void st_resume_volumes_drop_set(struct st_resume_volumes *r, struct st_engine *engine);
/** Close and free; the engine uses none of it any more.  NULL is fine. */
void st_resume_volumes_free(struct st_resume_volumes *r, struct st_engine *engine);

#endif
