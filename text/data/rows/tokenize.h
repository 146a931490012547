/* text/data/rows/tokenize.h - texts and conversations become a token file and what lies beside it. */
#ifndef TEXT_DATA_ROWS_TOKENIZE_H
#define TEXT_DATA_ROWS_TOKENIZE_H

#include "core/system/file.h"
#include "strata/tokens.h"
#include "text/data/dialog/dialog.h"
#include "text/data/rows/row_columns.h"
#include "text/data/token_meta.h"
#include "text/data/token_writer.h"

struct st_tokenize_report {
    bool dialogs; /* conversations, and texts that complete a prompt: parts are trained; else texts */
    enum st_token_layout layout;
    uint64_t rows, truncated, replaced;
    struct st_dialog_counts answers;
    char guessed[512];  /* where the first is whose begin is guessed; "" */
    char unseen[512];   /* where the first message is of which the template writes nothing; "" */
    uint64_t toolless;  /* conversations with tools that the template does not write */
    uint64_t functions; /* calls that are written as the text of an answer */
    uint64_t overruled; /* answers that rows exclude and train_on_prompt trains all the same */
    uint64_t merged;    /* texts whose prompt ends within a token that is trained */
    struct st_row_unread unread;
    uint64_t dropped[ST_ROW_ODDS];
    uint64_t rowless;          /* files without a row */
    char no_rows[ST_PATH_MAX]; /* the first of them; "" */
    struct {
        uint64_t documents, tokens, trained, source_bytes; /* source_bytes 0: unknown */
    } parts[2];                                            /* for training; held out */
    char heldout[ST_PATH_MAX];                             /* "": nothing is */
    char template[ST_PATH_MAX];                            /* where it came from; "": none was needed */
    bool endless;                                          /* texts: no file names the token that ends one */
    bool dated;                                            /* it asked for the date */
    char first[ST_ROW_ODDS][512];                          /* of the rows dropped: where the first is, and why; "" */
};

/** Log a notice for what a model will not learn from the documents as they are. */
void st_tokenize_note(const struct st_tokenize_report *r);
/** Log a notice for each reason why rows were left out: how many, and the first. */
void st_tokenize_note_dropped(const struct st_tokenize_report *r);

/* Strings are borrowed; zero means not given. */
struct st_tokenize_opts {
    const char *const *inputs; /* [input_count] files; "-": standard input */
    uint32_t input_count;
    const char *dataset_info;    /* data sets beside them, or instead: */
    const char *const *datasets; /* [dataset_count] of that file */
    uint32_t dataset_count;
    const char *tokenizer, *template, *kwargs, *out; /* kwargs: struct st_dialog_opts */
    struct st_date date;
    enum st_row_format format;          /* of the inputs; ST_ROWS_AUTO: by their names and first rows */
    const enum st_token_layout *layout; /* NULL: packed for conversations, concatenated for texts */
    uint32_t seq_len;                   /* 0: nothing is truncated */
    uint32_t vocab;                     /* rows of the table of the model that reads the tokens; 0: unknown */
    uint64_t max_samples;               /* rows of each file; 0: all */
    double val_size;                    /* rows held out: below 1 a part of them, else a number */
    uint64_t seed;                      /* which */
    bool train_on_prompt;               /* of conversations every token is trained */
    bool turn_ends;                     /* struct st_dialog_opts */
    bool as_trl;                        /* too long: the end is cut; train_on_prompt is not of completions */
    bool last_answer_only;              /* of conversations only the last answer; the excess is taken from the first turns */
    bool strict;                        /* a row that cannot be read is an error, and not left out */
    bool overwrite;
    struct st_token_origin *origin; /* of a file that is kept; NULL: none */
    uint32_t show;                  /* documents shown */
    void (*shown)(void *context, const struct strata_shown_run *run);
    void (*progress)(void *context, const struct st_tokenize_report *so_far); /* NULL: nobody asks */
    void *context;
};

/** E_INPUT: an input is missing, is empty or has no row that is what its format says (strict: has one that is not); nothing is
 * left to train, or no file has a row; a name is taken; a token is not below opts->vocab, which the tokenizer's number of tokens
 * may be.  E_CONFIG: the template.  E_NOSYS: it needs what the interpreter lacks.  E_NOMEM, E_IO, E_NOSPC.  Unless STRATA_OK is
 * returned, no file has its name. */
strata_status st_tokenize(const struct st_tokenize_opts *opts, struct st_tokenize_report *report);

#endif
