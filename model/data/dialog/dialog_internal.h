/* model/data/dialog/dialog_internal.h - the parts of a dialog.  Private to model/data/dialog/. */
#ifndef MODEL_DATA_DIALOG_DIALOG_INTERNAL_H
#define MODEL_DATA_DIALOG_DIALOG_INTERNAL_H

#include "model/data/dialog/dialog.h"
#include "model/template/template.h"

/* The texts of a directory's templates. */
struct st_template_texts {
    char *usual, *tools; /* owned; tools NULL: the usual one serves conversations with tools, too */
    char *name;          /* for people; owned */
    bool builtin;
};
/** Find them: st_dialog_open(). */
strata_status st_template_texts_find(struct st_template_texts *out, const struct st_tokenizer *t, const char *wanted);
void st_template_texts_free(struct st_template_texts *texts);

/** Fill trained[], answers and unended for ids that are there: st_dialog_encode().  E_NOMEM. */
strata_status st_dialog_mask(struct st_dialog_ids *out, const struct st_tokenizer *t, const struct st_rendered *text,
                             bool turn_ends);

#endif
