/* strata/tokens.h - token files made of texts, rows and conversations (docs/data.md).
 *
 *     strata_tokens_write(&made, "rows.bin", paths, count, &opts);
 *     strata_tokens_json(made, &json);                             what became of them
 *     strata_tokens_close(made); */
#ifndef STRATA_TOKENS_H
#define STRATA_TOKENS_H

#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Some tokens of a document, all trained or none.  Borrowed during the call that shows them. */
struct strata_shown_run {
    const char *place; /**< where the document comes from, of its first run; else NULL */
    uint64_t tokens;   /**< of the document; of a file that is read in parts, of the first */
    uint64_t begin;    /**< of the document, in the token file */
    const uint32_t *ids;
    size_t count;
    bool trained, heldout, more; /**< more: the document goes on after those that are shown */
    const char *text;            /**< what the ids stand for */
    size_t bytes;
};

/** How texts become a token file.  Begin with STRATA_TOKENS_OPTS_INIT; those after `heldout` are for documents: with a tokenizer,
 *  and without `heldout`. */
struct strata_tokens_opts {
    size_t opts_size;      /**< sizeof(struct strata_tokens_opts) */
    const char *tokenizer; /**< a directory or file with one; "byte": one token per byte, and all text is one */
    bool overwrite;        /**< replaces files that are there */
    double heldout;        /**< this part of the texts, block by block, goes into a second file; 0: none */
    const char *format;    /**< of rows: "auto", "text", "messages", "alpaca", "sharegpt", "prompt-completion"; NULL: auto */
    const char *chat_template, *chat_template_kwargs, *date; /**< as in struct strata_texts_opts, like what follows */
    const char *dataset_info;
    const char *const *datasets;
    uint32_t dataset_count;
    const char *layout;
    uint32_t seq_len; /**< what is longer is cut; 0: nothing is */
    uint64_t max_samples;
    double val_size; /**< the rows held out go into a second file */
    uint64_t seed;
    bool train_on_prompt, mask_history, turn_ends, as_trl, strict;
    uint32_t show; /**< this many documents are shown, run by run */
    void (*shown)(void *ctx, const struct strata_shown_run *run);
    void (*progress)(void *ctx, uint64_t rows, uint64_t tokens); /**< now and then; at the end with 0 rows, before notices */
    void *ctx;                                                   /**< passed to both */
    bool note_dropped;                                           /**< rows that are left out are notices, too */
};
#define STRATA_TOKENS_OPTS_INIT STRATA_INIT(strata_tokens_opts, opts_size)

struct strata_tokens; /**< what was made */

/**
 * Write a token file, and what lies beside it.
 *
 * @param tokens  out, returned: closed by strata_tokens_close()
 * @param paths   [count] "-": standard input; count 1 or more, or 0 with data sets
 *
 * @return STRATA_E_INVAL   an argument is NULL, opts_size is another one, or options exclude each other or are out of range
 *         STRATA_E_INPUT   a text is missing, cannot be read, or is empty; nothing is left to train; a name is taken
 *         STRATA_E_CONFIG, STRATA_E_NOSYS  the template is wrong, or needs what is not supported
 *         STRATA_E_NOMEM, STRATA_E_IO, STRATA_E_NOSPC
 *         Unless STRATA_OK is returned, no file has its name.
 */
STRATA_API strata_status strata_tokens_write(struct strata_tokens **tokens, const char *out, const char *const *paths,
                                             uint32_t count, const struct strata_tokens_opts *opts);

/** Print what was made for people: the lines of `strata tokens`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL */
STRATA_API strata_status strata_tokens_print(const struct strata_tokens *tokens, FILE *file);

/** The same for programs: the line of `strata tokens --json` (docs/json.md).
 *
 *  @param json  out, borrowed until it is asked for again or `tokens` is closed
 *
 *  @return STRATA_E_INVAL  an argument is NULL
 *          STRATA_E_NOMEM */
STRATA_API strata_status strata_tokens_json(struct strata_tokens *tokens, const char **json);

/** Free; the files stay.  NULL is fine. */
STRATA_API void strata_tokens_close(struct strata_tokens *tokens);

/** Name of a file that strata_tokens_write() may make: 0 the token file itself, 1 what lies beside it, 2 and 3 the same of what
 * is held out.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, there is no such file, or the name is too long for `room` */
STRATA_API strata_status strata_tokens_name(char *name, size_t room, const char *out, uint32_t file);

#ifdef __cplusplus
}
#endif
#endif
