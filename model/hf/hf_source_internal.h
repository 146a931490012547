/* model/hf/hf_source_internal.h - what lies beside the weights of the directory that a model was read from: it goes into the
 * directory that the run writes.
 *
 * Everything is read and copied at the start of the run, under new names, so that what cannot be read or written is known before
 * any training, and what is written is what the run began with.  config.json changes in the dtype alone; generation_config.json,
 * tokenizer, template, vocabulary, licence and the like are copied as they are.  Private to model/hf/. */
#ifndef MODEL_HF_HF_SOURCE_INTERNAL_H
#define MODEL_HF_HF_SOURCE_INTERNAL_H

#include "core/system/file.h"
#include "model/model.h"

struct st_hf_source;
struct st_hf_copies; /* files that are made in the directory to be written */

/** Read config.json of `dir`, put the dtype that will be written into it, and open what is to be copied: regular files of up to
 * 64 MiB, links followed, but no weights, indices, hidden or unfinished files.  A file that `to` (which need not exist) has under
 * the same name stays as it is there, with a notice where it is another one; the two configs are the writer's business.  E_INPUT:
 * one that cannot be read, by name.
 */
strata_status st_hf_source_open(struct st_hf_source **out, const char *dir, const char *to, strata_dtype dtype);
void st_hf_source_close(struct st_hf_source *s); /* NULL is fine */

/** Make config.json and, if there is one, generation_config.json; they get their names by st_new_file_commit(). */
strata_status st_hf_source_put_configs(const struct st_hf_source *s, struct st_new_file *config, struct st_new_file *generation,
                                       const char *to, bool overwrite);
/** Copy the others, under new names; they take their own by st_hf_copies_commit().  A failure names the file and leaves none. */
strata_status st_hf_source_copy_files(struct st_hf_copies **out, const struct st_hf_source *s, const char *to);
/** Takes them; NULL is fine.  A failure names one file; all others that can be are there. */
strata_status st_hf_copies_commit(struct st_hf_copies *copies);
void st_hf_copies_abort(struct st_hf_copies *copies); /* NULL is fine */

#endif
