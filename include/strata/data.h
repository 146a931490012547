/* strata/data.h - token files (docs/data.md) cut into sequences, and the order in which training reads them.
 *
 * Files are not held in memory: each sequence is read when it is requested. */
#ifndef STRATA_DATA_H
#define STRATA_DATA_H

#include "strata/model.h"
#include "strata/status.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_data;

/**
 * Open token files as one series of sequences of the model's length.  A sequence is within one file, and ends early enough that
 * each of its tokens has a target.
 *
 * @param data   out, returned: closed by strata_data_close()
 * @param model  borrowed during the call: length of a sequence, vocabulary
 * @param paths  [count], count 1 to 65536; borrowed during the call
 *
 * @return STRATA_E_INVAL  an argument is NULL, or count is 0 or more than that
 *         STRATA_E_INPUT  a file is missing, is not a token file, has a token outside the vocabulary or less than one sequence,
 *                         has documents of which none has a target within a sequence, or documents with borders, for which the
 *                         model was not opened
 *         STRATA_E_CONFIG the ranks of the model name different data
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Cost    reads every token once, to check it.
 * Thread  any.
 */
STRATA_API strata_status strata_data_open(struct strata_data **data, const struct strata_model *model, const char *const *paths,
                                          uint32_t count);

/** What a file of data is. */
enum strata_data_kind {
    STRATA_KIND_TOKENS = 0, /**< a token file, for strata_data_open() */
    STRATA_KIND_TEXT = 1,   /**< .txt, or "-": standard input; for strata_data_open_texts(), as rows are */
    STRATA_KIND_ROWS = 2,   /**< .json, .jsonl, .ndjson */
};

/** The kind of a file, only by its name.
 *
 *  @return STRATA_E_INVAL  an argument is NULL
 *          STRATA_E_INPUT  it is a table (.parquet, .csv, ...) or compressed; the sentence says what to do */
STRATA_API strata_status strata_data_kind_of(const char *path, enum strata_data_kind *kind);

/**
 * Whether sequences of these files hold documents with borders between them: models for them are opened with
 * strata_model_opts.documents.
 *
 * @param paths  [count] as in strata_data_open()
 *
 * @return STRATA_E_INVAL  an argument is NULL, or count is 0
 *         STRATA_E_INPUT, STRATA_E_NOMEM, STRATA_E_IO  the file beside a token file is damaged or cannot be read
 */
STRATA_API strata_status strata_data_documents(const char *const *paths, uint32_t count, bool *documents);

/** How texts become tokens.  Begin with STRATA_TEXTS_OPTS_INIT, or pass NULL. */
struct strata_texts_opts {
    size_t opts_size; /**< sizeof(struct strata_texts_opts) */

    /* The tokenizer, and the template of conversations. */
    /** A directory or file with a tokenizer; "byte": one token per byte; NULL: strata_model_opts.tokenizer, else the model's
     *  directory, or bytes where that has no tokenizer and the vocabulary is 256.  One token per byte: rows are taken as they are
     * written, which a notice says, and what is set below of rows, conversations or documents is an error. */
    const char *tokenizer;
    /** Of conversations: a built-in template (chatml, llama2, ...) or a file with one; NULL: that of the tokenizer's directory.
     */
    const char *chat_template;
    /** What else the template is told: a JSON object whose members are variables of it, as apply_chat_template's
     *  chat_template_kwargs ("{\"enable_thinking\": false}"); NULL: nothing. */
    const char *chat_template_kwargs;
    const char *date; /**< what a template takes for today: "2026-07-31"; NULL: today */

    /* Which rows. */
    /** LLaMA-Factory's dataset_info.json, and data sets of it [dataset_count], which follow the texts; count 0: none. */
    const char *dataset_info;
    const char *const *datasets;
    uint32_t dataset_count;
    uint64_t max_samples; /**< rows taken of each file, the first ones; 0: all */
    bool strict; /**< a row that cannot be read is an error; else it is left out, which a notice says with the count and the first
                  */
    double val_size;              /**< below 1: this part of the rows is held out; from 1 on this number; no tokens are kept */
    uint64_t seed;                /**< which rows are held out, or drawn where dataset_info.json wants some of a set */
    struct strata_data **heldout; /**< out, returned: the rows held out; must be there where val_size is above 0 */

    /* What of a row is trained, and how sequences are made. */
    bool train_on_prompt; /**< of conversations every token is trained, not only the answers */
    bool mask_history;    /**< of conversations only the last answer is trained; excludes train_on_prompt */
    bool turn_ends;       /**< of conversations the template's white space behind the token that ends an answer is trained, too */
    /** Rows are cut and trained as TRL does it: what is longer than a sequence loses its end, and with train_on_prompt a
     * completion is trained without its prompt all the same.  Else conversations are cut turn by turn. */
    bool as_trl;
    /** How sequences are made: "concatenated", "packed" (whole documents, with borders), "rows" (a document each); NULL: packed
     * for conversations, else concatenated. */
    const char *layout;

    /** A directory in which the tokens are kept: the next call with it and the same texts, tokenizer and template finds them
     * there. Made if it is missing, with those above it; where nothing can be written, a notice says so.  NULL: they are not
     * kept. */
    const char *keep;
};
#define STRATA_TEXTS_OPTS_INIT STRATA_INIT(strata_texts_opts, opts_size)

/**
 * Open texts and rows of texts or conversations (.json, .jsonl) as strata_data_open() opens the token files that `strata tokens`
 * makes of them: a text is a document, and ends with an end token; of conversations the answers have targets, and what is longer
 * than a sequence of the model is cut as `strata tokens --seq-len` cuts it.
 *
 * @param data   out, returned: closed by strata_data_close()
 * @param paths  [count]; "-": standard input; borrowed during the call.  Count 1 or more, or 0 (and paths NULL) with data sets
 * @param opts   NULL: all defaults
 *
 * @return STRATA_E_INVAL  an argument is NULL, count is 0 without data sets, the date or layout is none, options exclude each
 *                         other or miss what they need, val_size is out of range, or opts_size is another one
 *         STRATA_E_INPUT  a text is missing or cannot be read, there is no tokenizer, or the text is shorter than a sequence
 *         STRATA_E_NOMEM, STRATA_E_IO, STRATA_E_NOSPC
 *
 * Cost    writes the tokens, 2 or 4 bytes each, to a file in $TMPDIR (or /tmp) that is gone when the data is closed; with keep
 *         to one that stays, and reads the texts once more before and after.
 * Thread  any.
 */
STRATA_API strata_status strata_data_open_texts(struct strata_data **data, const struct strata_model *model,
                                                const char *const *paths, uint32_t count, const struct strata_texts_opts *opts);

/** Look up a data set of LLaMA-Factory's dataset_info.json, without a model.
 *
 *  @return STRATA_E_INPUT  strata_data_open_texts() would refuse it: there is none of this name, it is not a local file, or of a
 *                          kind that is not read */
STRATA_API strata_status strata_data_check_set(const char *dataset_info, const char *name);

/** Sequences in all files; 0 for NULL. */
STRATA_API uint64_t strata_data_count(const struct strata_data *data);

/** In which order sequences are read. */
enum strata_data_order {
    STRATA_DATA_SHUFFLED = 0, /**< each pass over the data in another order, which `seed` determines; never ends */
    /** As in the files; what is asked for after the last one is filled up: tokens are 0, targets STRATA_TARGET_PADDING. */
    STRATA_DATA_IN_ORDER = 1,
    /** Like SHUFFLED, but no call reaches into the next pass: the last `count` of each is filled up like that.  A pass is (strata_data_count() + count - 1) / count calls, as an epoch of Hugging Face's Trainer. */
    STRATA_DATA_EPOCHS = 2,
    STRATA_DATA_CYCLE = 3,           /**< each pass over the data as in the files; never ends */
    STRATA_DATA_EPOCHS_IN_ORDER = 4, /**< like EPOCHS, each pass as in the files */
};

/**
 * Read sequences.  The position is all that matters: nothing is remembered between calls, so a run can continue from any step.
 *
 * @param first    position of the first one: sequences seen so far, with those that filled a call up
 * @param count    how many; for a step: strata_model_info.step_sequences
 * @param tokens   [count * seq_len] int32, out
 * @param targets  [count * seq_len] int32, out: the token that follows each; -1 where that one is not trained; STRATA_TARGET_PADDING
 *                 where a sequence is filled up with tokens 0
 * @param positions  [count * seq_len] int32, out: each token's place in its document, for strata_engine_step(); NULL for data
 *                 without borders (strata_data_documents())
 *
 * @return STRATA_E_INVAL  an argument is NULL, positions too where data has borders, or `order` is invalid
 *         STRATA_E_INPUT  a file changed or shrank since it was opened
 *         STRATA_E_IO
 *         Unless STRATA_OK is returned, the contents of the arrays are undefined.
 *
 * Thread  any, several at once.
 */
STRATA_API strata_status strata_data_read(const struct strata_data *data, enum strata_data_order order, uint64_t seed,
                                          uint64_t first, uint32_t count, int32_t *tokens, int32_t *targets, int32_t *positions);

/**
 * Read some of the sequences that strata_data_read() would read: a rank's part of a step of all ranks.
 *
 * @param count       of the whole step: strata_model_info.world_sequences
 * @param part        the first sequence to read, counted in the step: rank * step_sequences
 * @param part_count  how many: step_sequences; what the arrays have room for
 *
 * @return STRATA_E_INVAL  also if the part does not lie in the step; otherwise as strata_data_read()
 */
STRATA_API strata_status strata_data_read_part(const struct strata_data *data, enum strata_data_order order, uint64_t seed,
                                               uint64_t first, uint32_t count, uint32_t part, uint32_t part_count,
                                               int32_t *tokens, int32_t *targets, int32_t *positions);

#define STRATA_LABEL_IGNORED (-100) /**< a label that is not counted, as PyTorch's ignore_index */

/**
 * The tokens and targets of a batch in 64-bit integers, as PyTorch and transformers have them.
 *
 * @param model      its vocabulary
 * @param ids        [sequences * length] int64
 * @param labels     the same shape, or NULL: ids.  As transformers' models take them: each token's own, or STRATA_LABEL_IGNORED;
 * the last token of a sequence gets no target
 * @param shifted    labels are targets already: of each token the one that follows it
 * @param tokens     [sequences * length] int32, out: as for strata_engine_step()
 * @param targets    the same shape, out, -1 where none is counted; NULL: not wanted, and labels is not read
 *
 * @return STRATA_E_INVAL  model, ids or tokens is NULL
 *         STRATA_E_INPUT  an id or label outside the vocabulary; the sentence has its value and place.  The contents of the
 * arrays are undefined
 *
 * Thread  any.
 */
STRATA_API strata_status strata_data_from_int64(const struct strata_model *model, const int64_t *ids, const int64_t *labels,
                                                bool shifted, uint32_t sequences, uint32_t length, int32_t *tokens,
                                                int32_t *targets);

/** Convert a mean loss per token to bits per byte of the text that the tokens were made from; NaN if the files do not say how
 *  long it was. */
STRATA_API double strata_data_bits_per_byte(const struct strata_data *data, double loss);

/** Close; NULL is fine. */
STRATA_API void strata_data_close(struct strata_data *data);

#ifdef __cplusplus
}
#endif
#endif
