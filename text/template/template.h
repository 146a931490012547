/* text/template/template.h - chat templates: a bounded subset of Jinja that turns a conversation into one text.
 *
 *     st_template_open(&t, text, bytes, "chat_template.jinja");
 *     st_template_render(&out, t, &(struct st_template_input){.messages = messages, .add_generation_prompt = true});
 *     ... out.text [out.bytes], and where each byte came from: out.origins[i] ...
 *     st_rendered_free(&out);
 *     st_template_close(t);
 *
 * The text is what transformers' apply_chat_template gives: trim_blocks, lstrip_blocks, loop controls, `{% generation %}`,
 * `tojson`, `raise_exception`, `strftime_now`.  What is not in the subset is refused with its line: a tag when the template is
 * opened, a filter, method or function when it is reached, since most templates hold branches for tools that a conversation
 * never takes.  A template cannot change its input, read files or run for long: steps, depth, memory and output are limited. */
#ifndef TEXT_TEMPLATE_TEMPLATE_H
#define TEXT_TEMPLATE_TEMPLATE_H

#include "core/json/json.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_TEMPLATE_BYTES_MAX (1u << 20) /* of a template's text */

struct st_template; /* opaque; read only once it is open, so several threads may render it at once */

/** Parse a template.  `name` stands in errors and is copied.
 *  E_CONFIG: it is not valid, larger than ST_TEMPLATE_BYTES_MAX, not UTF-8, nested too deep, or holds a tag outside the subset;
 *  the sentence names the line.  E_NOMEM. */
strata_status st_template_open(struct st_template **out, const char *text, size_t bytes, const char *name);
void st_template_close(struct st_template *t); /* NULL: nothing */

/** The text of a built-in template (chatml, llama2, llama3, mistral, qwen, gemma, alpaca), or NULL; borrowed, static. */
const char *st_template_builtin(const char *name);
/** Name number `index`, or NULL past the last. */
const char *st_template_builtin_name(uint32_t index);

/** Whether a message says that it is not trained: `"loss": false`, as XTuner's rows do, or `"weight": 0`, as OpenAI's. */
bool st_template_message_excluded(const st_json *message);

/* Where a byte of the rendered text came from: a field, bits beside it, and above them the message's number, from 1. */
enum st_origin {
    ST_ORIGIN_TEMPLATE = 0, /* the template, or another field of a message (role, name, ...) */
    ST_ORIGIN_CONTENT = 1,
    ST_ORIGIN_REASONING = 2,
    ST_ORIGIN_CALL = 3, /* its calls of tools */
    ST_ORIGIN_FIELD = 3,
    ST_ORIGIN_GENERATION = 4, /* inside {% generation %} */
    ST_ORIGIN_EXCLUDED = 8,   /* of a message that its row excludes from training, its other fields, too */
    ST_ORIGIN_BITS = 8        /* how many bits lie below the message's number */
};
/** The number of the message that a byte's field is of; 0: the template, or another field of a message. */
static inline uint32_t st_origin_message(uint32_t origin)
{
    return (origin & ST_ORIGIN_FIELD) == 0 ? 0 : origin >> ST_ORIGIN_BITS;
}
#define ST_TEMPLATE_MESSAGES_MAX ((UINT32_C(1) << (32 - ST_ORIGIN_BITS)) - 1)

/** The reasoning of a message, whichever of its names it has ("reasoning_content", "thinking", "reasoning"), as transformers
 *  looks for it.  NULL: it has none. */
const st_json *st_template_reasoning(const st_json *message);
/** Whether its content is a list of parts, all of them texts. */
bool st_template_has_parts(const st_json *message);
/** Whether a message is the assistant's. */
bool st_template_is_answer(const st_json *message);

struct st_template_variable {
    const char *name, *text; /* borrowed */
};

struct st_template_input {
    const st_json *messages;                     /* array of objects, borrowed */
    uint32_t message_count;                      /* only the first ones; 0: all */
    bool join_parts;                             /* content that is a list of texts is one text */
    const st_json *settings;                     /* object whose members are variables (enable_thinking, ...); NULL: none */
    const st_json *variables;                    /* the same, of this conversation (tools), which come after those; NULL: none */
    const struct st_template_variable *specials; /* [special_count] bos_token, eos_token, ... */
    uint32_t special_count;
    bool add_generation_prompt;
    int year, month, day; /* what strftime_now() says, month 1..12; year 0: 1970-01-01 */
    uint64_t steps_max;   /* operations, and 64 bytes handled, count as one; 0: ST_TEMPLATE_STEPS_MAX */
};

struct st_rendered {
    char *text;          /* [bytes + 1] UTF-8, NUL at the end; owned */
    uint32_t *origins;   /* [bytes] of enum st_origin; owned */
    size_t bytes;        /* at most ST_TEMPLATE_OUTPUT_MAX */
    bool printed_parts;  /* it has content that is a list of parts as Python prints a list: the template wants a text */
    bool has_generation; /* the template has {% generation %}: its bits say what is trained */
};

#define ST_TEMPLATE_OUTPUT_MAX ((size_t)64 << 20)
#define ST_TEMPLATE_STEPS_MAX  20000000u /* about a second; a conversation of a thousand turns takes a hundredth of it */

/** Render a conversation.
 *  E_INPUT: the template refuses the conversation (raise_exception) or meets a value that it cannot use, or a limit; the sentence
 *  names template and line.  E_NOSYS: a filter, method or function outside the subset.  E_NOMEM. */
strata_status st_template_render(struct st_rendered *out, const struct st_template *t, const struct st_template_input *input);
void st_rendered_free(struct st_rendered *r);

#endif
