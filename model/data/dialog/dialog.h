/* model/data/dialog/dialog.h - conversations become ids: the chat template of a model's directory writes them as one text, the
 * tokenizer cuts it, and a mask says what is trained.
 *
 *     st_dialog_open(&d, tokenizer, &(struct st_dialog_opts){0});
 *     st_dialog_encode(d, messages, NULL, false, &out);       ids out.encoding.ids[i], trained where out.trained[i]
 *
 * Ids are those of the whole text, with special tokens recognized and nothing added.  Trained are
 *
 * - where the template has {% generation %}: tokens that cover at least one byte inside it, and no others;
 * - else: tokens that begin in the content (or reasoning) of an assistant's message.  If the next token, apart from tokens of the
 *   template that are white space, is a special token of the template or the tokenizer's end of text, it ends the turn and is
 *   trained with the white space before it.
 *
 * An assistant's message that says `"loss": false` or `"weight": 0` is not trained, nor is the block of a {% generation %} that
 * it is written in.
 *
 * A token that stands for no byte is trained between two bytes that are. */
#ifndef MODEL_DATA_DIALOG_DIALOG_H
#define MODEL_DATA_DIALOG_DIALOG_H

#include "core/json/json.h"
#include "model/tokenizer/tokenizer.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Year 0: 1970-01-01. */
struct st_date {
    int year, month, day; /* month and day from 1 */
};
/** Parse YYYY-MM-DD, a day that exists.  False: something else. */
bool st_date_parse(struct st_date *out, const char *text);
/** The same as text. */
void st_date_text(char text[11], const struct st_date *date);
/** Today, in local time. */
struct st_date st_date_today(void);

struct st_dialog_opts {
    const char *template; /* a file, or the name of a built-in (template.h); NULL: the directory's own */
    struct st_date date;  /* what the template's strftime_now() says */
    bool turn_ends; /* white space of the template behind the token that ends an answer is trained, too: LLaMA-Factory's turns
                       end behind it */
};

/* One thread's: it has an encoder. */
struct st_dialog;

/** Beside chat_template.jinja: the template of conversations with tools. */
#define ST_DIALOG_TOOLS_NAME "additional_chat_templates/tool_use.jinja"

/** The directory's own template: chat_template.jinja (ST_DIALOG_TOOLS_NAME for conversations with tools, if it is there), else
 *  chat_template in tokenizer_config.json (a text, or a list of named ones: "default", and "tool_use" for conversations with
 *  tools), all beside the tokenizer's file.
 *  @param t  borrowed
 *  E_INPUT: there is no template (the sentence names the built-ins), or a file cannot be read.  E_CONFIG: it is not valid. */
strata_status st_dialog_open(struct st_dialog **out, const struct st_tokenizer *t, const struct st_dialog_opts *opts);
void st_dialog_close(struct st_dialog *d); /* NULL: nothing */

/** Where the template came from: a file or "built-in NAME".  Borrowed. */
const char *st_dialog_template_name(const struct st_dialog *d);
/** XXH3-64 of its text. */
uint64_t st_dialog_template_hash(const struct st_dialog *d);
/** Whether the template asks for the date. */
bool st_dialog_uses_date(const struct st_dialog *d);

/* Starts as {0}; reused from call to call; freed by its owner. */
struct st_dialog_ids {
    struct st_encoding encoding; /* ranges: of the rendered text */
    uint8_t *trained;            /* [encoding.count] 0 or 1 */
    size_t trained_capacity;
    uint32_t answers; /* runs of trained tokens */
    uint32_t unended; /* of them, those that no token ends: a model does not learn from them to stop */
    bool toolless;    /* it has tools, which the template does not write */
    uint32_t calls;   /* assistant's messages that call tools beside their content, by "tool_calls", which is not trained */
};
void st_dialog_ids_free(struct st_dialog_ids *out);

/** @param messages  array of objects with "role" and "content", as the template wants them
 *  @param variables  object of variables for the template, such as "tools"; NULL: none
 *  @param prompt  end with the beginning of an answer, for a model to continue
 *  @param out  what it holds is replaced
 *  E_INPUT: the template refuses the conversation.  E_NOSYS: the template needs what this interpreter lacks.  E_NOMEM. */
strata_status st_dialog_encode(struct st_dialog *d, const st_json *messages, const st_json *variables, bool prompt,
                               struct st_dialog_ids *out);

#endif
