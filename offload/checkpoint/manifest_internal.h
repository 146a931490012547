/* offload/checkpoint/manifest_internal.h - what manifest.c and its tables share. */
#ifndef OFFLOAD_CHECKPOINT_MANIFEST_INTERNAL_H
#define OFFLOAD_CHECKPOINT_MANIFEST_INTERNAL_H

#include "core/json/json.h"
#include "offload/checkpoint/manifest.h"

/** "NAME: KEY WHAT: this checkpoint is damaged, or of another version": E_CORRUPT. */
strata_status st_manifest_damaged(const char *name, const char *key, const char *what);

/** Write the members that stand in tables into the open object. */
void st_manifest_put(struct st_json_writer *w, const struct st_manifest *m);
/** Read them: E_CORRUPT, E_NOMEM; the lists read so far are m's. */
strata_status st_manifest_get(struct st_manifest *m, const st_json *root, const char *name);
/** How many members of the whole these are. */
uint32_t st_manifest_members(void);

#endif
