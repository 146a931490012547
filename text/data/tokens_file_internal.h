/* text/data/tokens_file_internal.h - raw reads from a token file, for token_set.c.  Private to text/data/. */
#ifndef TEXT_DATA_TOKENS_FILE_INTERNAL_H
#define TEXT_DATA_TOKENS_FILE_INTERNAL_H

#include "text/data/token_meta.h"
#include "text/data/tokens.h"

/** As st_token_file_open(); messages call the file `name`. */
strata_status st_token_file_open_as(struct st_token_file **out, const char *path, const char *name, uint32_t vocab);
/** Tokens [first, first + count) as stored, into count * token_bytes bytes.  E_IO; E_INPUT: the file ends before that. */
strata_status st_token_file_read(const struct st_token_file *f, uint64_t first, uint64_t count, void *out);
/** Call it after reading.  E_INPUT: the file was written to since it was opened. */
strata_status st_token_file_check_unchanged(const struct st_token_file *f);
uint32_t st_token_file_token_bytes(const struct st_token_file *f);
/** What lies beside it; NULL: nothing does. */
const struct st_token_meta *st_token_file_meta(const struct st_token_file *f);
const char *st_token_file_path(const struct st_token_file *f);
const char *st_token_file_name(const struct st_token_file *f);
/** token_identity.c: see st_token_set_identify(). */
strata_status st_token_file_identify(const struct st_token_file *f, struct st_token_identity *out);

#endif
