/* text/data/tokens.h - token files (llm.c's format) and the order in which training reads them. */
#ifndef TEXT_DATA_TOKENS_H
#define TEXT_DATA_TOKENS_H

#include "core/system/file.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>
#include <stdint.h>

/* Header: 256 little-endian int32: [0] 20240520, [1] 1, [2] token count; strata adds [3] vocabulary (0: unknown), [4..5] source
 * bytes as u64 (0: unknown).  Then uint16 tokens; size exactly 1024 + 2 * count. (20240801/7: uint32 tokens.) See docs/data.md.
 */
struct st_token_file;
struct st_token_header {
    uint32_t token_bytes; /* 2 or 4 */
    uint32_t vocab;       /* 0: unknown */
    uint64_t count;
    uint64_t source_bytes; /* 0: unknown */
};
#define ST_TOKEN_HEADER_BYTES 1024u
/** Parse the header of a file of file_bytes whose first `bytes` are in memory.  E_INPUT names `name`; an impossible number of
 *  source bytes is E_INPUT, too. */
strata_status st_token_header_parse(struct st_token_header *out, const void *header, uint64_t bytes, uint64_t file_bytes,
                                    const char *name);

/** The header of such a file; 32-bit tokens if token_bytes is 4. */
void st_token_header_write(unsigned char out[ST_TOKEN_HEADER_BYTES], const struct st_token_header *header);

/** Open and check one file; reads every token once.  E_INPUT: missing, wrong magic, size mismatch, a token beyond `vocab` (0:
 *  not checked) or the header's vocabulary, which may itself be larger than `vocab`. */
strata_status st_token_file_open(struct st_token_file **out, const char *path, uint32_t vocab);
void st_token_file_close(struct st_token_file *f);
uint64_t st_token_file_count(const struct st_token_file *f);
uint64_t st_token_file_source_bytes(const struct st_token_file *f);
uint32_t st_token_file_vocab(const struct st_token_file *f);
/** Digest of what the tokens were made of, as st_token_origin has it; "": nothing beside the file says. */
const char *st_token_file_inputs(const struct st_token_file *f);

/* Several files as one sequence of windows.  Without X.bin.meta, or where that says "concatenated", a window has seq + 1 tokens
 * of one file and overlaps its neighbour only by the target token.  "packed": a window holds whole documents, in an order that
 * depends only on their lengths and seq; "rows": it holds one.  There the last token of a document has no target, a document
 * over seq tokens is cut, one without a target is left out, and what is left of a window is tokens 0 and targets
 * STRATA_TARGET_PADDING. */
struct st_token_set;
#define ST_TOKEN_SET_FILES_MAX 65536u /* of which a checkpoint has an account */
/** E_INVAL: no file, or more than that. */
strata_status st_token_set_open(struct st_token_set **out, const char *const *paths, uint32_t count, uint32_t vocab,
                                uint32_t seq);
/** Open one file as a set; messages call it `name`, as the texts are called that it was made of. */
strata_status st_token_set_open_as(struct st_token_set **out, const char *path, const char *name, uint32_t vocab, uint32_t seq);
void st_token_set_close(struct st_token_set *s);
uint64_t st_token_set_windows(const struct st_token_set *s);
/** Whether a window may hold several documents with borders between them. */
bool st_token_set_documents(const struct st_token_set *s);
/** Tokens of the longest text that a window holds, whose positions begin at 0: at most seq. */
uint32_t st_token_set_longest(const struct st_token_set *s);
/** The largest vocabulary of its files' headers, and the file that has it; 0: no header names one. */
uint32_t st_token_set_vocab(const struct st_token_set *s, const char **name);
double st_token_set_bytes_per_token(const struct st_token_set *s); /* 0: unknown */
/** Window `position` of the seeded per-epoch permutation (position = samples seen so far; shuffle false: in order). tokens,
 * targets: [seq]; positions: [seq] or NULL, each token's place in its document.  It reads from the file instead of mapping it, so
 * that the resident set stays flat.  E_IO, E_INPUT (the file shrank or changed).  Any thread. */
strata_status st_token_set_window(const struct st_token_set *s, uint64_t position, uint64_t seed, bool shuffle, int32_t *tokens,
                                  int32_t *targets, int32_t *positions);

/* What identifies a token file; its name does not count. */
struct st_token_identity {
    const char *path; /* borrowed from the set */
    uint64_t bytes;   /* of the file */
    char header[33];  /* digest of its header, and of the meta file's account of documents, mask and tokenizer, if there is one */
    char windows[33]; /* digest of 64 samples of 4096 bytes, evenly spread from the first token to the last */
    char marks[33];   /* digest of where documents begin and which tokens are trained; "": nothing says so */
};
uint32_t st_token_set_files(const struct st_token_set *s);
/** Fill in the identity of one file.  E_IO, E_INPUT (the file shrank or changed), E_NOMEM. */
strata_status st_token_set_identify(const struct st_token_set *s, uint32_t file, struct st_token_identity *out);

/** "dir/kjv.bin" -> "dir/kjv.heldout.bin".  E_INVAL: too long. */
strata_status st_tokens_heldout_path(char out[ST_PATH_MAX], const char *path);
/** "dir/kjv.bin" -> "dir/kjv.bin.meta".  E_INPUT: too long. */
strata_status st_tokens_meta_path(char out[ST_PATH_MAX], const char *path);

/* Text files -> one token file, by a tokenizer or, where it is NULL, one token per byte; heldout > 0 puts every (1/heldout)-th
 * block of 16 KiB into a second file, PATH with ".heldout" before the extension ("kjv.bin" -> "kjv.heldout.bin"). "-" reads
 * standard input; texts may be pipes.  With a tokenizer each text is a document, between what the post-processor adds and an end
 * token. E_INPUT: one of the two names is taken and `overwrite` is false, it is one of the texts, or another process is writing
 * it. */
struct st_tokenizer;
struct st_tokens_report {
    uint64_t tokens, source_bytes, heldout_tokens, heldout_bytes;
    uint64_t replaced; /* U+FFFD in the place of what was not UTF-8 */
    char heldout_path[ST_PATH_MAX];
};
strata_status st_tokens_from_text(const struct st_tokenizer *tokenizer, const char *const *texts, uint32_t count, const char *out,
                                  double heldout, bool overwrite, struct st_tokens_report *report);
/* By bytes, with X.bin.meta, as one document; a file to be kept (token_writer.h). */
struct st_token_origin;
strata_status st_tokens_from_bytes(const char *const *texts, uint32_t count, const char *out, struct st_token_origin *origin);

#endif
