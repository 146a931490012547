/* dialog_turns.c - where the answers of a rendered conversation stand, and where what is trained of each begins: the rule is in
 * dialog.h. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "text/data/dialog/dialog_internal.h"

#include <stdlib.h>
#include <string.h>

/* What is rendered again of a conversation to see where its answers begin; for later ones the generation prompt is looked for. */
#define RENDER_BYTES_MAX ((size_t)64 << 20)

/* A message's bytes in the text. */
struct extent {
    size_t first, last;
    uint8_t fields; /* a bit for each enum st_origin */
};

static bool has_text(const st_json *n)
{
    if (n == NULL || st_json_type(n) != ST_JSON_STRING)
        return n != NULL && (st_json_type(n) == ST_JSON_ARRAY || st_json_type(n) == ST_JSON_OBJECT) && st_json_first(n) != NULL;
    return st_json_string(n)[strspn(st_json_string(n), " \t\r\n")] != '\0';
}

/* Thoughts between tags of the content, as rows have them that were made of plain texts. */
static bool thinks_in_content(const st_json *message)
{
    const st_json *content = st_json_get(message, "content");
    const char *text = content != NULL && st_json_type(content) == ST_JSON_STRING ? st_json_string(content) : "";
    const char *end = strstr(text, "</think>"), *begin = strstr(text, "<think>");

    text = begin != NULL && end != NULL && begin < end ? begin + strlen("<think>") : text;
    return end != NULL && text + strspn(text, " \t\r\n") < end;
}

static bool has_calls(const st_json *message)
{
    const st_json *calls = st_json_get(message, "tool_calls"), *call = st_json_get(message, "function_call");

    return (calls != NULL && st_json_type(calls) == ST_JSON_ARRAY && st_json_first(calls) != NULL) ||
           (call != NULL && st_json_type(call) == ST_JSON_OBJECT);
}

static bool has_field(const struct extent *x, enum st_origin field)
{
    return (x->fields >> field & 1) != 0;
}

static void note_extents(struct extent *extents, const struct st_rendered *r)
{
    for (size_t i = 0; i < r->bytes; i++) {
        struct extent *x = &extents[st_origin_message(r->origins[i])];

        if (x->fields == 0)
            x->first = i;
        x->last = i;
        x->fields |= (uint8_t)(1u << (r->origins[i] & ST_ORIGIN_FIELD));
    }
}

/* The answers, from the first message on. */
static void list_turns(struct st_turns *out, const struct extent *extents, const struct st_dialog_text *text,
                       struct st_dialog_counts *counts)
{
    const struct st_rendered *r = &text->rendered;
    uint32_t number = 0;

    for (const st_json *m = st_json_first(text->input->messages); m != NULL; m = st_json_next(m)) {
        const struct extent *x = &extents[++number];
        struct st_turn turn = {.message = number, .first = x->first, .last = x->last, .gap = x->first};

        if (!st_template_is_answer(m)) {
            counts->unseen += has_text(st_json_get(m, "content")) && !has_field(x, ST_ORIGIN_CONTENT);
            continue;
        }
        turn.excluded = st_template_message_excluded(m);
        turn.thoughts = has_text(st_template_reasoning(m));
        counts->calls += has_calls(m) && !has_field(x, ST_ORIGIN_CALL) && !turn.excluded;
        counts->unwritten += x->fields == 0 && !turn.excluded;
        if (x->fields == 0)
            continue;
        counts->thoughtless += turn.thoughts && !has_field(x, ST_ORIGIN_REASONING) && !turn.excluded;
        turn.thoughts = turn.thoughts || thinks_in_content(m);
        while (turn.gap > 0 && st_origin_message(r->origins[turn.gap - 1]) == 0)
            turn.gap--;
        turn.begin = turn.first;
        out->at[out->count++] = turn;
    }
}

static size_t common_prefix(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t same = 0;

    while (same < a_bytes && same < b_bytes && a[same] == b[same])
        same++;
    return same;
}

/* What cannot be rendered says nothing about where an answer begins. */
static strata_status render_or_not(struct st_rendered *out, const struct st_template *t, const struct st_template_input *input)
{
    const strata_status st = st_template_render(out, t, input);

    if (st != STRATA_OK)
        *out = (struct st_rendered){0};
    return st == STRATA_E_INPUT || st == STRATA_E_NOSYS ? STRATA_OK : st;
}

/* By what a model is given when it has to write the answer: what follows the message before, there and here, is the same up to
 * where the answer begins.  History may be written differently in both: thoughts left out, tools elsewhere. */
static strata_status begin_by_messages(struct st_turn *turn, const struct st_dialog_text *text, bool *found)
{
    const struct st_rendered *whole = &text->rendered;
    const uint32_t before = turn->gap > 0 ? st_origin_message(whole->origins[turn->gap - 1]) : 0;
    struct st_template_input input = *text->input;
    struct st_rendered asked;
    size_t tail, same;
    strata_status st;

    input.message_count = turn->message - 1; /* above 0: else it would be all */
    input.add_generation_prompt = true;
    if ((st = render_or_not(&asked, text->template->parsed, &input)) != STRATA_OK)
        return st;
    for (tail = asked.bytes; tail > 0 && st_origin_message(asked.origins[tail - 1]) == 0;)
        tail--;
    same = asked.bytes == 0
               ? 0
               : common_prefix(asked.text + tail, asked.bytes - tail, whole->text + turn->gap, turn->first - turn->gap);
    *found = asked.bytes > 0 && (tail > 0 ? st_origin_message(asked.origins[tail - 1]) : 0) == before &&
             (same > 0 || tail == asked.bytes || turn->gap == turn->first);
    if (*found)
        turn->begin = turn->gap + same;
    st_rendered_free(&asked);
    return STRATA_OK;
}

/* What the template appends behind one question. */
static strata_status ask_prompt(struct st_dialog_template *t, const struct st_template_input *like)
{
    static const char question[] = "[{\"role\": \"user\", \"content\": \"1\"}]";
    struct st_template_input input = *like;
    struct st_rendered with = {0}, without = {0};
    st_json *messages;
    size_t at = 0;
    strata_status st = st_json_parse(&messages, question, strlen(question), "a question");

    if (st != STRATA_OK)
        return st;
    input.messages = messages;
    input.variables = NULL;
    st = render_or_not(&without, t->parsed, &input);
    input.add_generation_prompt = true;
    if (st == STRATA_OK)
        st = render_or_not(&with, t->parsed, &input);
    if (st == STRATA_OK && with.bytes > 0 && without.bytes > 0) {
        at = common_prefix(with.text, with.bytes, without.text, without.bytes);
        at += strspn(with.text + at, " \t\r\n");
        t->prompt_bytes = with.bytes - at;
        t->prompt = st_fault("dialog.alloc", 0) < 0 ? NULL : strndup(with.text + at, t->prompt_bytes);
        st = t->prompt != NULL ? STRATA_OK : st_nomem(0);
    }
    t->asked = st == STRATA_OK;
    st_rendered_free(&with);
    st_rendered_free(&without);
    st_json_free(messages);
    return st;
}

/* By the last of the longest beginnings of that prompt before the answer, unless it ends inside a token. */
static bool begin_by_prompt(struct st_turn *turn, const struct st_dialog_text *text, const struct st_encoding *e)
{
    const struct st_dialog_template *t = text->template;
    size_t longest = 1, end = 0, next;

    for (size_t at = turn->gap; at < turn->first; at++) {
        const size_t same = common_prefix(text->rendered.text + at, turn->first - at, t->prompt, t->prompt_bytes);

        if (same >= longest) {
            longest = same;
            end = at + same;
        }
    }
    if (end == 0)
        return false;
    next = st_encoding_from(e, end);
    if (next < e->count ? e->begins[next] != end && (next == 0 || e->ends[next - 1] != end) : end != text->rendered.bytes)
        return false;
    turn->begin = end;
    return true;
}

/* Behind the last special token before it. */
static void begin_by_token(struct st_turn *turn, const struct st_dialog_text *text, const struct st_encoding *e)
{
    for (size_t i = st_encoding_from(e, turn->gap); i < e->count && e->ends[i] <= turn->first; i++)
        if (st_tokenizer_is_special(text->tokenizer, e->ids[i]))
            turn->begin = e->ends[i];
    turn->begin += st_space_bytes(text->rendered.text + turn->begin, turn->first - turn->begin);
}

/* Whether `close` ends what `open` begins: <think> </think>, [THINK] [/THINK], <|START_THINKING|> <|END_THINKING|>. */
static bool closes(const char *open, size_t open_bytes, const char *close, size_t close_bytes)
{
    static const char begins[] = "<|START_", ends[] = "<|END_";
    const size_t b = strlen(begins), e = strlen(ends);

    if (close_bytes == open_bytes + 1 && close[0] == open[0] && close[1] == '/')
        return memcmp(close + 2, open + 1, open_bytes - 1) == 0;
    return open_bytes > b && close_bytes == open_bytes - b + e && memcmp(open, begins, b) == 0 && memcmp(close, ends, e) == 0 &&
           memcmp(open + b, close + e, open_bytes - b) == 0;
}

static size_t tag_bytes(const char *text, size_t bytes)
{
    const char end = bytes > 0 && text[0] == '<' ? '>' : ']';
    const char *found = bytes > 0 && (text[0] == '<' || text[0] == '[') ? memchr(text, end, bytes) : NULL;

    return found == NULL ? 0 : (size_t)(found - text) + 1;
}

/* Behind a block for thoughts that the template leaves empty although there were some. */
static size_t pass_empty_thoughts(const char *text, size_t from, size_t to)
{
    for (size_t at = from; at < to; at++) {
        const size_t open = tag_bytes(text + at, to - at), inner = at + open + st_space_bytes(text + at + open, to - at - open);
        const size_t close = open > 0 ? tag_bytes(text + inner, to - inner) : 0;

        if (close > 0 && closes(text + at, open, text + inner, close))
            return inner + close + st_space_bytes(text + inner + close, to - inner - close);
    }
    return from;
}

static strata_status find_begin(struct st_turn *turn, struct st_dialog_text *text, const struct st_encoding *e, bool render,
                                struct st_dialog_counts *counts)
{
    bool found = false;
    strata_status st = render && turn->message > 1 ? begin_by_messages(turn, text, &found) : STRATA_OK;

    if (st == STRATA_OK && !found && !text->template->asked)
        st = ask_prompt(text->template, text->input);
    if (st != STRATA_OK)
        return st;
    if (!found && !begin_by_prompt(turn, text, e)) {
        begin_by_token(turn, text, e);
        counts->guessed++;
    }
    if (turn->thoughts)
        turn->begin = pass_empty_thoughts(text->rendered.text, turn->begin, turn->first);
    return STRATA_OK;
}

strata_status st_turns_find(struct st_turns *out, struct st_dialog_text *text, const struct st_encoding *e,
                            struct st_dialog_counts *counts)
{
    struct extent *extents = NULL;
    size_t messages = 1;
    strata_status st = STRATA_OK;

    *out = (struct st_turns){0};
    for (const st_json *m = st_json_first(text->input->messages); m != NULL; m = st_json_next(m))
        messages++;
    if (st_fault("dialog.alloc", 0) < 0 || (extents = calloc(messages, sizeof(*extents))) == NULL ||
        (out->at = calloc(messages, sizeof(*out->at))) == NULL) {
        free(extents);
        return st_nomem(0);
    }
    note_extents(extents, &text->rendered);
    list_turns(out, extents, text, counts);
    free(extents);
    for (uint32_t i = 0; i < out->count && st == STRATA_OK && !text->rendered.has_generation; i++)
        st = find_begin(&out->at[i], text, e, (i + 1) * text->rendered.bytes <= RENDER_BYTES_MAX, counts);
    if (st != STRATA_OK) {
        free(out->at);
        *out = (struct st_turns){0};
    }
    return st;
}
