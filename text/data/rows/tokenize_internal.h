/* text/data/rows/tokenize_internal.h - one call of st_tokenize().  Private to text/data/rows/. */
#ifndef TEXT_DATA_ROWS_TOKENIZE_INTERNAL_H
#define TEXT_DATA_ROWS_TOKENIZE_INTERNAL_H

#include "text/data/rows/dataset_info.h"
#include "text/data/rows/tokenize.h"
#include "text/data/token_writer.h"

struct st_tokenizing {
    const struct st_tokenize_opts *opts;
    struct st_tokenize_report *report;
    struct st_tokenizer *tokenizer;
    struct st_encoder *encoder;
    struct st_dialog *dialog;           /* once there is a conversation */
    struct st_token_writer *writers[2]; /* for training; held out.  NULL before the first document */
    uint64_t rows_all, rows_aside;      /* with val_size: rows that there are, and how many of them are held out */
    struct st_dialog_ids ids;
    struct st_encoding text;
    struct st_decoded decoded;
    uint32_t shown;
    bool text_cut; /* some text was truncated: bytes per token are unknown */
};

/** One document each; row: its number among all.  The place is for people. */
strata_status st_tokenize_text(struct st_tokenizing *j, uint64_t row, const char *text, size_t bytes, const char *place);
strata_status st_tokenize_completion(struct st_tokenizing *j, uint64_t row, const struct st_sample *s, const char *place);
strata_status st_tokenize_dialog(struct st_tokenizing *j, uint64_t row, const struct st_sample *s, const char *place);
/** Count a row that is left out, and keep where the first one is.  @param place  NULL: why says it, too
 *  @param why  NULL: no more is known than `odd` says */
void st_tokenize_drop(struct st_tokenizing *j, enum st_row_odd odd, const char *place, const char *why);
/** A whole file. */
strata_status st_tokenize_file(struct st_tokenizing *j, uint64_t row, const char *path);

#endif
