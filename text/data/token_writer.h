/* text/data/token_writer.h - writes a token file and what lies beside it, document by document. */
#ifndef TEXT_DATA_TOKEN_WRITER_H
#define TEXT_DATA_TOKEN_WRITER_H

#include "text/data/token_meta.h"

/* What the tokens of a file that is kept are made of.  The file is written over a damaged one, into a directory that is made. */
struct st_token_origin {
    char inputs[33];                         /* a digest of it, 32 hex digits */
    strata_status (*confirm)(void *context); /* asked when everything has been read, before the files take their names */
    void *context;
    bool refused; /* out: the files could not be begun */
};

struct st_token_writer_opts {
    uint32_t vocab;     /* ids are below it; over 65536: 32 bits each */
    uint64_t tokenizer; /* its hash; 0: unknown */
    enum st_token_layout layout;
    bool masked;                    /* some tokens are not trained */
    bool bare;                      /* only X.bin: where documents begin is not kept, nor is another's X.bin.meta */
    bool overwrite;                 /* files of these names may exist */
    struct st_token_origin *origin; /* borrowed; NULL: not to be kept */
};

struct st_token_writer;

/** E_INPUT if X.bin or X.bin.meta is the very file that `input` leads to: it would be lost. */
strata_status st_token_writer_check_apart(const char *path, const char *input);
/** Begin X.bin and, unless it is bare, X.bin.meta; they take their names in st_token_writer_finish().  E_INPUT: as
 * st_new_file_create().  E_NOMEM, E_IO, E_NOSPC. */
strata_status st_token_writer_create(struct st_token_writer **out, const char *path, const struct st_token_writer_opts *opts);
/** Add one document (count 0: nothing).  trained: [count], or NULL: all are.  E_INPUT: the file holds no more tokens (2^31 - 1);
 * E_IO, E_NOSPC, E_NOMEM. */
strata_status st_token_writer_put(struct st_token_writer *w, const uint32_t *ids, const uint8_t *trained, uint64_t count);
/** The same tokens as more of the last document: for one that is written in parts. */
strata_status st_token_writer_more(struct st_token_writer *w, const uint32_t *ids, const uint8_t *trained, uint64_t count);
uint64_t st_token_writer_tokens(const struct st_token_writer *w);
/** Complete the files of a data set, of one writer (w[1] NULL) or two; all get their names, or none.  source_bytes: of the text,
 * 0: unknown.  E_INPUT: there are no tokens.  The writers are gone either way. */
strata_status st_token_writer_finish(struct st_token_writer *const w[2], const uint64_t source_bytes[2]);
/** Remove the files; NULL: nothing. */
void st_token_writer_abort(struct st_token_writer *w);

#endif
