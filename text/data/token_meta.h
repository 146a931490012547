/* text/data/token_meta.h - X.bin.meta, beside a token file X.bin: where its documents begin, which of its tokens are trained,
 * and how sequences are made of them.  docs/data.md has the format.
 *
 * Where documents begin is kept in memory, 8 bytes each; the mask stays in the file. */
#ifndef TEXT_DATA_TOKEN_META_H
#define TEXT_DATA_TOKEN_META_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_TOKEN_META_SUFFIX ".meta"

enum st_token_layout {
    ST_LAYOUT_CONCATENATED, /* one document after another; a sequence may begin and end anywhere */
    ST_LAYOUT_PACKED,       /* a sequence holds whole documents, which do not see each other */
    ST_LAYOUT_ROWS,         /* a sequence holds one document and is padded */
    ST_LAYOUT_COUNT
};
/** "concatenated", "packed", "rows". */
const char *st_token_layout_name(enum st_token_layout layout);

struct st_token_meta {
    char *path;
    int fd;
    enum st_token_layout layout;
    bool has_mask;
    uint64_t tokens, documents;
    uint64_t *starts;       /* [documents + 1]: the first token of each, then `tokens` */
    uint64_t tokenizer;     /* st_tokenizer_hash() of what made the ids; 0: unknown */
    uint32_t header_sum;    /* low bits of XXH3-64 of X.bin's header, where a run keeps it; 0: unknown */
    char inputs[33];        /* digest of what they were made of, where a run keeps them; zeros: unknown */
    char tokens_digest[33]; /* XXH3-128 of the ids in X.bin, as they are stored */
    char marks_digest[33];  /* of where documents begin and which tokens are trained, as they are stored */
};

/** Read the file beside the token file `path`; *out NULL: there is none.  Reads all of it once, for its checksum.
 *  E_INPUT: damaged, another version, or not for a file of `tokens` tokens.  E_NOMEM, E_IO. */
strata_status st_token_meta_open(struct st_token_meta **out, const char *path, uint64_t tokens);
void st_token_meta_close(struct st_token_meta *m); /* NULL: nothing */
/** targets[i] = -1 where token first + i is not trained; a file without a mask trains all.  E_IO, E_INPUT. */
strata_status st_token_meta_mask(const struct st_token_meta *m, uint64_t first, uint32_t count, int32_t *targets);
/** Whether any of the tokens first .. first + count is trained.  E_IO, E_INPUT. */
strata_status st_token_meta_trains(const struct st_token_meta *m, uint64_t first, uint64_t count, bool *any);

/** Only the layout, from the header.  E_INPUT, E_IO; ST_LAYOUT_CONCATENATED: there is no such file. */
strata_status st_token_meta_layout(enum st_token_layout *out, const char *path);

#endif
