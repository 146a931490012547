/* text/data/rows/tokens_kept.h - token files that a run keeps for the next one.
 *
 *     st_kept_open(&k, dir, &opts);            which file it would be: dir/KEY.bin, dir/KEY.bin.meta
 *     st_kept_find(&there, k);                 an earlier run may have made it
 *     opts.origin = st_kept_origin(k);         if not: st_tokenize() writes it there
 *
 * KEY is a digest of all that decides about the tokens: every byte of the texts, of the tokenizer's files and of the template,
 * the date where the template asks for it, the version of strata.  The file says it, too, and has digests of what is in it: it is
 * used only if both are right.  It takes its name only if everything that it was made of still is as it was when KEY was taken.
 * Nothing is removed here: a KEY that is no longer wanted stays until somebody removes it. */
#ifndef TEXT_DATA_ROWS_TOKENS_KEPT_H
#define TEXT_DATA_ROWS_TOKENS_KEPT_H

#include "text/data/rows/tokenize.h"

struct st_kept;

/** Take the key of what `opts` (borrowed, until close) would be made of: its inputs, tokenizer (NULL: one token per byte),
 * template and date; other options are not meant for it.  *out NULL: an input can be read once only (standard input, a pipe), or
 * is missing.  E_INPUT: a file cannot be read, or the tokenizer is none.  E_NOMEM, E_IO. */
strata_status st_kept_open(struct st_kept **out, const char *dir, const struct st_tokenize_opts *opts);
void st_kept_close(struct st_kept *k); /* NULL: nothing */
/** The token file.  Borrowed. */
const char *st_kept_path(const struct st_kept *k);
/** Whether the chat template that conversations would have asks for the date. */
bool st_kept_dated(const struct st_kept *k);
/** Whether it is there, whole, and of this key; one that is damaged is named in a warning, and may be written over.  E_NOMEM,
 *  E_IO. */
strata_status st_kept_find(bool *there, const struct st_kept *k);
/** For the writer of that file.  Borrowed. */
struct st_token_origin *st_kept_origin(struct st_kept *k);

#endif
