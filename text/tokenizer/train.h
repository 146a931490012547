/* text/tokenizer/train.h - a small vocabulary of one's own: byte-level BPE with GPT-2's pattern, as a tokenizer.json. */
#ifndef TEXT_TOKENIZER_TRAIN_H
#define TEXT_TOKENIZER_TRAIN_H

#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_TRAIN_VOCAB_MIN 257u /* the bytes and <|endoftext|> */
#define ST_TRAIN_VOCAB_MAX 1048576u

/* Counts words, then merges the most frequent pair of neighbours again and again; among equals the one with the lower ids.  The
 * same texts give the same files, in any order of texts. */
struct st_train;
strata_status st_train_create(struct st_train **out);
void st_train_destroy(struct st_train *t);
/** Part of a text.  E_NOMEM; E_INPUT: too many different words for 32 bits. */
strata_status st_train_feed(struct st_train *t, const char *text, size_t bytes);
strata_status st_train_end_text(struct st_train *t);

struct st_train_report {
    uint32_t vocab; /* less than asked for where no pair occurs twice that gives a token of at most 65536 bytes */
    uint64_t words, different_words;
};
/** Write tokenizer.json and tokenizer_config.json into `dir`, which is made.  E_INPUT: no text, or a file is there and
 * `overwrite` is false; E_INVAL: vocab out of range. */
strata_status st_train_write(struct st_train *t, uint32_t vocab, const char *dir, bool overwrite, struct st_train_report *report);

#endif
