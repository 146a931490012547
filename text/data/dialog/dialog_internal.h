/* text/data/dialog/dialog_internal.h - the parts of a dialog.  Private to text/data/dialog/. */
#ifndef TEXT_DATA_DIALOG_DIALOG_INTERNAL_H
#define TEXT_DATA_DIALOG_DIALOG_INTERNAL_H

#include "text/data/dialog/dialog.h"
#include "text/template/template.h"

/* The texts of a directory's templates. */
struct st_template_texts {
    char *usual, *tools; /* owned; tools NULL: the usual one serves conversations with tools, too */
    char *name;          /* for people; owned */
    bool builtin;
};
/** Find them: st_dialog_open(). */
strata_status st_template_texts_find(struct st_template_texts *out, const struct st_tokenizer *t, const char *wanted);
void st_template_texts_free(struct st_template_texts *texts);

/* A template, and what it appends for add_generation_prompt, once that has been asked. */
struct st_dialog_template {
    struct st_template *parsed; /* owned */
    bool asked;
    char *prompt; /* [prompt_bytes]; owned; NULL: nothing */
    size_t prompt_bytes;
};

/* A rendered conversation, and what it was rendered from. */
struct st_dialog_text {
    struct st_dialog_template *template;
    const struct st_template_input *input;
    struct st_rendered rendered;
    const struct st_tokenizer *tokenizer;
    const struct st_token_ends *ends;
    bool turn_ends;
};

/* An answer in it; offsets are bytes. */
struct st_turn {
    uint32_t message;   /* its number, from 1 */
    bool excluded;      /* from training, by its row */
    bool thoughts;      /* its message has some */
    size_t gap;         /* where the template's bytes before it begin */
    size_t first, last; /* its own first and last byte */
    size_t begin;       /* of what is trained */
};
struct st_turns {
    struct st_turn *at; /* [count], owned: free() it */
    uint32_t count;
};
/** The answers of which something is written, and what is trained of each from where on; what is not as one would expect is
 *  counted in `counts`.  E_NOMEM. */
strata_status st_turns_find(struct st_turns *out, struct st_dialog_text *text, const struct st_encoding *e,
                            struct st_dialog_counts *counts);

/** Fill trained[] and counts for ids that are there: st_dialog_encode().  E_NOMEM. */
strata_status st_dialog_mask(struct st_dialog_ids *out, struct st_dialog_text *text);

/** The first token that begins at or behind a byte; the count of tokens: none does. */
size_t st_encoding_from(const struct st_encoding *e, size_t at);
/** How many bytes of white space (blanks, tabs, line ends) a text begins with. */
size_t st_space_bytes(const char *text, size_t bytes);
/** The end of the template's bytes from `at` on. */
size_t st_template_bytes_end(const struct st_rendered *r, size_t at);

#endif
