/* model/hf/hf_source_internal.h - the other files of the directory that a model was read from, which are copied to the directory
 * that the run writes.
 *
 * Everything is read and copied at the start of the run, under new names, so that a file that cannot be read or written is found
 * before training, and the copies are of the files that the run began with.  Only the dtype changes in config.json;
 * generation_config.json, tokenizer, template, vocabulary, licence and the like are copied unchanged.  Private to model/hf/. */
#ifndef MODEL_HF_HF_SOURCE_INTERNAL_H
#define MODEL_HF_HF_SOURCE_INTERNAL_H

#include "core/system/file.h"
#include "model/model.h"

struct st_hf_source;
struct st_hf_copies; /* files that are being written in the output directory */

/** Read config.json of `dir`, put the dtype that will be written into it (INVALID: leave it as it is), and open the files to
 * copy: regular files of up to 64 MiB, following links, but no weights, indices, hidden or unfinished files.  If `to` (which need
 * not exist) has a file of the same name, that file stays as it is, with a notice if it differs; the caller writes the two
 * configs.  A tokenizer's files are one thing: where `to` has others of them, they are replaced or removed with `overwrite`, and
 * refused without.  E_INPUT names such a file, or one that cannot be read.
 *  @param dir        NULL: there are no files but the tokenizer's, and no configs
 *  @param tokenizer  a directory or a file whose tokenizer is copied in place of that of `dir`; NULL: that of `dir` */
strata_status st_hf_source_open(struct st_hf_source **out, const char *dir, const char *tokenizer, const char *to, bool overwrite,
                                strata_dtype dtype);
void st_hf_source_close(struct st_hf_source *s); /* NULL is fine */

/** Write config.json and, if there is one, generation_config.json; st_new_file_commit() gives them their names. */
strata_status st_hf_source_put_configs(const struct st_hf_source *s, struct st_new_file *config, struct st_new_file *generation,
                                       const char *to, bool overwrite);
/** Copy the other files under new names; st_hf_copies_commit() gives them their own.  A failure names the file and leaves
 *  none. */
strata_status st_hf_source_copy_files(struct st_hf_copies **out, const struct st_hf_source *s, const char *to);
/** Give the copies their names, and then remove what was found of another tokenizer; frees `copies`; NULL is fine.  A failure
 * names one file; all others that could be renamed are in place. */
strata_status st_hf_copies_commit(struct st_hf_copies *copies);
void st_hf_copies_abort(struct st_hf_copies *copies); /* NULL is fine */

#endif
