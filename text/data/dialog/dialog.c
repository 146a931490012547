/* text/data/dialog/dialog.c - opens what a conversation needs, and encodes conversations. */
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "text/data/dialog/dialog_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct st_dialog {
    const struct st_tokenizer *tokenizer;
    struct st_encoder *encoder;
    struct st_template_texts texts;
    struct st_dialog_template usual, tools; /* tools not parsed: the usual one */
    struct st_token_ends ends;
    struct st_date date;
    st_json *settings; /* NULL: none */
    bool turn_ends;
    struct st_template_variable specials[ST_TOKEN_ROLES];
    char *special_texts[ST_TOKEN_ROLES];
    uint32_t special_count;
    uint64_t hash;
};

bool st_date_parse(struct st_date *out, const char *text)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    struct st_date d;
    int length = 0;
    bool leap;

    if (strlen(text) != 10 || strspn(text, "0123456789-") != 10 ||
        sscanf(text, "%4d-%2d-%2d%n", &d.year, &d.month, &d.day, &length) != 3 || length != 10)
        return false;
    leap = (d.year % 4 == 0 && d.year % 100 != 0) || d.year % 400 == 0;
    if (d.year < 1 || d.month < 1 || d.month > 12 || d.day < 1 || d.day > days[d.month - 1] + (d.month == 2 && leap))
        return false;
    *out = d;
    return true;
}

void st_date_text(char text[11], const struct st_date *date)
{
    (void)snprintf(text, 11, "%04u-%02u-%02u", (unsigned)date->year % 10000u, (unsigned)date->month % 100u,
                   (unsigned)date->day % 100u);
}

struct st_date st_date_today(void)
{
    const time_t now = time(NULL);
    struct tm parts = {0};

    localtime_r(&now, &parts);
    return (struct st_date){.year = parts.tm_year + 1900, .month = parts.tm_mon + 1, .day = parts.tm_mday};
}

/* A built-in template goes with any tokenizer: where no file beside that names a token, the model's files may give its id, and a
 * text need not begin with one.  An answer that nothing ends could not be told from one that goes on: that role stays undefined.
 */
static strata_status name_unnamed(struct st_dialog *d, enum st_token_role role, const char **text, size_t *bytes)
{
    uint32_t id;
    const strata_status st = st_tokenizer_role_beside(&id, d->tokenizer, role);

    if (st != STRATA_OK)
        return st;
    *text = id != ST_TOKEN_NONE ? st_tokenizer_text(d->tokenizer, id, bytes) : role == ST_TOKEN_BOS ? "" : NULL;
    d->hash ^= id != ST_TOKEN_NONE ? st_checksum64(&(uint64_t){(uint64_t)role << 32 | id}, sizeof(uint64_t)) : 0;
    return STRATA_OK;
}

static const char *const role_names[ST_TOKEN_ROLES] = {
    [ST_TOKEN_BOS] = "bos_token", [ST_TOKEN_EOS] = "eos_token", [ST_TOKEN_UNK] = "unk_token", [ST_TOKEN_PAD] = "pad_token"};

/* Templates see the texts of the tokens that begin, end and fill a text. */
static strata_status name_specials(struct st_dialog *d)
{
    for (unsigned role = 0; role < ST_TOKEN_ROLES; role++) {
        const uint32_t id = st_tokenizer_role(d->tokenizer, (enum st_token_role)role);
        size_t bytes = 0;
        const char *text = id == ST_TOKEN_NONE ? NULL : st_tokenizer_text(d->tokenizer, id, &bytes);
        strata_status st;

        if (text == NULL && d->texts.builtin && (st = name_unnamed(d, (enum st_token_role)role, &text, &bytes)) != STRATA_OK)
            return st;
        if (text == NULL)
            continue;
        d->special_texts[role] = st_fault("dialog.alloc", 0) < 0 ? NULL : strndup(text, bytes);
        if (d->special_texts[role] == NULL)
            return st_nomem(0);
        d->specials[d->special_count++] = (struct st_template_variable){role_names[role], d->special_texts[role]};
    }
    return STRATA_OK;
}

static strata_status open_templates(struct st_dialog *d, const char *wanted)
{
    strata_status st = st_template_texts_find(&d->texts, d->tokenizer, wanted);

    if (st == STRATA_OK)
        st = st_template_open(&d->usual.parsed, d->texts.usual, strlen(d->texts.usual), d->texts.name);
    if (st == STRATA_OK && d->texts.tools != NULL)
        st = st_template_open(&d->tools.parsed, d->texts.tools, strlen(d->texts.tools), d->texts.name);
    if (st == STRATA_OK)
        d->hash = st_checksum64(d->texts.usual, strlen(d->texts.usual));
    if (st == STRATA_OK && d->texts.tools != NULL)
        d->hash ^= st_checksum64(d->texts.tools, strlen(d->texts.tools));
    return st;
}

#define KWARGS "texts.chat_template_kwargs"

/* Variables for the template, under the names that other tools use. */
static strata_status take_kwargs(struct st_dialog *d, const char *text)
{
    static const char *const taken[] = {"messages", "tools", "documents", "add_generation_prompt"};
    strata_status st;

    if (text == NULL)
        return STRATA_OK;
    st = st_json_parse(&d->settings, text, strlen(text), KWARGS);
    if (st != STRATA_OK)
        return st == STRATA_E_CONFIG ? STRATA_E_INVAL : st;
    if (st_json_type(d->settings) != ST_JSON_OBJECT)
        return st_error_key(st_error(STRATA_E_INVAL, KWARGS " %s: not a JSON object such as {\"enable_thinking\": false}", text),
                            KWARGS);
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        if (st_json_get(d->settings, taken[i]) != NULL)
            return st_error_key(st_error(STRATA_E_INVAL, KWARGS ": \"%s\" comes from each conversation: leave it out", taken[i]),
                                KWARGS);
    return STRATA_OK;
}

strata_status st_dialog_open(struct st_dialog **out, const struct st_tokenizer *t, const struct st_dialog_opts *opts)
{
    struct st_dialog *d = st_fault("dialog.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*d));
    strata_status st;

    if (d == NULL)
        return st_nomem(sizeof(*d));
    d->tokenizer = t;
    d->date = opts->date;
    d->turn_ends = opts->turn_ends;
    st = open_templates(d, opts->template);
    if (st == STRATA_OK)
        st = name_specials(d);
    if (st == STRATA_OK)
        st = take_kwargs(d, opts->kwargs);
    if (st == STRATA_OK)
        st = st_tokenizer_ends(&d->ends, t);
    if (st == STRATA_OK)
        st = st_encoder_create(&d->encoder, t);
    if (st != STRATA_OK) {
        st_dialog_close(d);
        return st;
    }
    *out = d;
    return STRATA_OK;
}

void st_dialog_close(struct st_dialog *d)
{
    if (d == NULL)
        return;
    st_encoder_destroy(d->encoder);
    st_template_close(d->usual.parsed);
    st_template_close(d->tools.parsed);
    st_json_free(d->settings);
    free(d->usual.prompt);
    free(d->tools.prompt);
    st_template_texts_free(&d->texts);
    for (unsigned role = 0; role < ST_TOKEN_ROLES; role++)
        free(d->special_texts[role]);
    free(d);
}

const char *st_dialog_template_name(const struct st_dialog *d)
{
    return d->texts.name;
}

/* A text in quotes, as templates write it.  NULL: no memory. */
static char *literal_of(const char *text)
{
    char *out = st_fault("dialog.alloc", 0) < 0 ? NULL : malloc(2 * strlen(text) + 3), *at = out;

    if (out == NULL)
        return NULL;
    *at++ = '"';
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            *at++ = '\\';
        *at++ = *text;
    }
    *at++ = '"';
    *at = '\0';
    return out;
}

/* Puts a variable before the text. */
static strata_status set_before(char **text, const char *name, const char *value)
{
    char *literal = literal_of(value), *longer = NULL;

    if (literal == NULL || asprintf(&longer, "{%%- set %s = %s %%}%s", name, literal, *text) < 0)
        longer = NULL;
    free(literal);
    free(*text);
    *text = longer;
    return longer != NULL ? STRATA_OK : st_nomem(0);
}

strata_status st_dialog_template_text(char **out, const struct st_dialog *d)
{
    strata_status st = STRATA_OK;

    *out = st_fault("dialog.alloc", 0) < 0 ? NULL : strdup(d->texts.usual);
    if (*out == NULL)
        return st_nomem(0);
    for (unsigned role = 0; role < ST_TOKEN_ROLES && st == STRATA_OK; role++)
        if (d->special_texts[role] != NULL && st_tokenizer_role(d->tokenizer, (enum st_token_role)role) == ST_TOKEN_NONE &&
            strstr(d->texts.usual, role_names[role]) != NULL)
            st = set_before(out, role_names[role], d->special_texts[role]);
    return st;
}

uint64_t st_dialog_template_hash(const struct st_dialog *d)
{
    return d->hash;
}

static bool has_word(const char *text, const char *word)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const size_t bytes = strlen(word);

    for (const char *at = text; bytes > 0 && at != NULL && (at = strstr(at, word)) != NULL; at++)
        if ((at == text || strchr(letters, at[-1]) == NULL) && (at[bytes] == '\0' || strchr(letters, at[bytes]) == NULL))
            return true;
    return false;
}

bool st_dialog_mentions(const struct st_dialog *d, const char *word)
{
    return has_word(d->texts.usual, word) || has_word(d->texts.tools, word);
}

bool st_dialog_uses_date(const struct st_dialog *d)
{
    return strstr(d->texts.usual, "strftime_now") != NULL ||
           (d->texts.tools != NULL && strstr(d->texts.tools, "strftime_now") != NULL);
}

void st_dialog_ids_free(struct st_dialog_ids *out)
{
    st_encoding_free(&out->encoding);
    free(out->trained);
    *out = (struct st_dialog_ids){0};
}

static bool has_tools(const st_json *variables)
{
    const st_json *tools = variables != NULL ? st_json_get(variables, "tools") : NULL;

    return tools != NULL && st_json_type(tools) != ST_JSON_NULL;
}

/* The directory's template for tools serves conversations that have some. */
static struct st_dialog_template *choose(struct st_dialog *d, const st_json *variables)
{
    return d->tools.parsed != NULL && has_tools(variables) ? &d->tools : &d->usual;
}

static bool have_parts(const st_json *messages)
{
    for (const st_json *m = messages == NULL ? NULL : st_json_first(messages); m != NULL; m = st_json_next(m))
        if (st_template_has_parts(m))
            return true;
    return false;
}

/* Whether the text lacks a message whose content is in parts. */
static strata_status find_missing_parts(bool *missing, const st_json *messages, const struct st_rendered *r)
{
    uint32_t count = 0, number = 0;
    bool *written;

    for (const st_json *m = st_json_first(messages); m != NULL; m = st_json_next(m))
        count++;
    written = st_fault("dialog.alloc", 0) < 0 ? NULL : calloc(count + 1, sizeof(*written));
    if (written == NULL)
        return st_nomem((count + 1) * sizeof(*written));
    for (size_t i = 0; i < r->bytes; i++)
        if ((r->origins[i] & ST_ORIGIN_FIELD) == ST_ORIGIN_CONTENT)
            written[st_origin_message(r->origins[i])] = true;
    *missing = false;
    for (const st_json *m = st_json_first(messages); m != NULL; m = st_json_next(m))
        *missing |= !written[++number] && st_template_has_parts(m);
    free(written);
    return STRATA_OK;
}

/* Refuse parts that are no texts. */
static strata_status refuse_printed(struct st_rendered *r)
{
    if (!r->printed_parts)
        return STRATA_OK;
    st_rendered_free(r);
    return st_error(STRATA_E_INPUT, "the template prints content that is a list of parts: make it a text");
}

/* Many templates want content to be a text: they refuse a list of parts, print it with its brackets, or pass over it. */
static strata_status render(struct st_rendered *out, const struct st_template *t, struct st_template_input *input)
{
    strata_status st = st_template_render(out, t, input);
    bool again = st == STRATA_E_INPUT || out->printed_parts;

    if ((st != STRATA_OK && st != STRATA_E_INPUT) || !have_parts(input->messages))
        return st == STRATA_OK ? refuse_printed(out) : st;
    if (!again)
        st = find_missing_parts(&again, input->messages, out);
    if (st == STRATA_OK && !again)
        return STRATA_OK;
    st_rendered_free(out);
    if (st == STRATA_E_NOMEM)
        return st;
    input->join_parts = true;
    st = st_template_render(out, t, input);
    return st == STRATA_OK ? refuse_printed(out) : st;
}

strata_status st_dialog_encode(struct st_dialog *d, const st_json *messages, const st_json *variables, bool prompt,
                               struct st_dialog_ids *out)
{
    struct st_template_input input = {.messages = messages,
                                      .settings = d->settings,
                                      .variables = variables,
                                      .specials = d->specials,
                                      .special_count = d->special_count,
                                      .add_generation_prompt = prompt,
                                      .year = d->date.year,
                                      .month = d->date.month,
                                      .day = d->date.day};
    struct st_dialog_text text = {.template = choose(d, variables),
                                  .input = &input,
                                  .tokenizer = d->tokenizer,
                                  .ends = &d->ends,
                                  .turn_ends = d->turn_ends};
    strata_status st = render(&text.rendered, text.template->parsed, &input);

    if (st != STRATA_OK)
        return st;
    out->encoding.count = 0;
    st = st_encode(d->encoder, text.rendered.text, text.rendered.bytes, NULL, &out->encoding);
    if (st == STRATA_OK)
        st = st_dialog_mask(out, &text);
    out->toolless = has_tools(variables) && d->tools.parsed == NULL && strstr(d->texts.usual, "tools") == NULL;
    st_rendered_free(&text.rendered);
    return st;
}
