/* text/data/dialog/dialog.h - conversations become ids: the chat template of a model's directory writes them as one text, the
 * tokenizer cuts it, and a mask says what is trained.
 *
 *     st_dialog_open(&d, tokenizer, &(struct st_dialog_opts){0});
 *     st_dialog_encode(d, messages, NULL, false, &out);       ids out.encoding.ids[i], trained where out.trained[i]
 *
 * Ids are those of the whole text, rendered once, with special tokens recognized and nothing added.  Trained is what a model has
 * to write: where the template has {% generation %}, tokens that cover at least one byte inside it, and no others.  Else, of each
 * assistant's message of which the template writes something (content, reasoning, calls of tools):
 *
 * - It begins where what a model is given ends: the messages before it are rendered with the generation prompt, and what follows
 *   the last of them is compared with what follows it in the whole text, up to the answer.
 * - Where a template cannot render them, or writes something else there: behind the longest beginning of the generation prompt
 *   that stands before the answer; else behind the last special token there and white space; else with the message itself.  The
 *   last two are counted.
 * - It ends with the first special token, or end of text of tokenizer, generation_config.json or config.json, that follows its
 *   last byte before another message's; or with an end of text that follows this one at once.  Without any, with its last byte.
 * - A block for thoughts that the template leaves empty is trained, unless the message had thoughts.
 * - Another message inside it (Gemma 4's results of tools) interrupts it: each part ends so, and the next begins with its own
 *   bytes.  Words of a call that are written again behind an end of text name the sender of its result, and are no part of it.
 *
 * A token is trained if it overlaps that, and does not begin in another message; one that stands for no byte, if the token behind
 * it is.  An assistant's message that says `"loss": false` or `"weight": 0` is not trained, nor is the block of a {% generation
 * %} that it is written in.  Messages reach the template as transformers gives them: without members that are null, reasoning by
 * each of its names. */
#ifndef TEXT_DATA_DIALOG_DIALOG_H
#define TEXT_DATA_DIALOG_DIALOG_H

#include "core/json/json.h"
#include "strata/status.h"
#include "text/tokenizer/tokenizer.h"
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
    const char
        *kwargs;    /* a JSON object whose members are variables of the template ("{\"enable_thinking\": false}"); NULL: none */
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
 *  E_INPUT: there is no template (the sentence names the built-ins), or a file cannot be read.  E_INVAL: kwargs.  E_CONFIG: it is
 * not valid. */
strata_status st_dialog_open(struct st_dialog **out, const struct st_tokenizer *t, const struct st_dialog_opts *opts);
void st_dialog_close(struct st_dialog *d); /* NULL: nothing */

/** Where the template came from: a file or "built-in NAME".  Borrowed. */
const char *st_dialog_template_name(const struct st_dialog *d);
/** Its text, by which another reader of the directory writes the same: special tokens that no file of the tokenizer names are set
 * in it.  @param out  owned by the caller.  E_NOMEM */
strata_status st_dialog_template_text(char **out, const struct st_dialog *d);
/** XXH3-64 of its text. */
uint64_t st_dialog_template_hash(const struct st_dialog *d);
/** Whether a template has this word. */
bool st_dialog_mentions(const struct st_dialog *d, const char *word);
/** Whether the template asks for the date. */
bool st_dialog_uses_date(const struct st_dialog *d);

/* How many of the assistant's messages, excluded ones left out: */
struct st_dialog_counts {
    uint64_t answers;     /* are trained */
    uint64_t unended;     /* of them, no token ends: a model does not learn from them to stop */
    uint64_t thoughtless; /* have reasoning that the template leaves out: they are trained without */
    uint64_t unwritten;   /* the template writes nothing of: not trained */
    uint64_t calls;       /* call tools, and the template writes nothing of that */
    uint64_t guessed;     /* begin after the last special token before them: the best guess there is */
    uint64_t unseen;      /* not answers, but messages of others whose content the template does not write */
};

/* Starts as {0}; reused from call to call; freed by its owner. */
struct st_dialog_ids {
    struct st_encoding encoding; /* ranges: of the rendered text */
    uint8_t *trained;            /* [encoding.count] 0 or 1 */
    size_t trained_capacity;
    struct st_dialog_counts counts;
    bool toolless; /* it has tools, which the template does not write */
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
