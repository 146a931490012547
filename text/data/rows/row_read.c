/* row_read.c - makes a text or a conversation of a row.  Conversations are written as JSON and parsed again: trees do not change.
 */
#include "text/data/rows/row_shape.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "text/data/rows/row_columns.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOOLS_DEPTH_MAX    24 /* of the writer's 32 */
#define MESSAGES_DEPTH_MAX 28

/* What a row is read with. */
struct reading {
    const struct st_row_shape *shape;
    const st_json *row;
    const char *place;
    struct st_json_writer w;               /* the conversation that is made */
    uint32_t turns, functions;             /* functions: of the turns, calls */
    uint32_t excluded;                     /* struct st_sample */
    const char *system;                    /* messages: the system prompt before them; NULL: none */
    const char *unread[ST_ROW_UNREAD_OWN]; /* struct st_sample */
};

/* A column that is there and not null. */
static const st_json *column(const struct reading *r, const char *name)
{
    const st_json *n = name == NULL ? NULL : st_json_get(r->row, name);

    return n == NULL || st_json_type(n) == ST_JSON_NULL ? NULL : n;
}

/* A column that this format names and nothing reads of this row. */
static void pass_over(struct reading *r, const char *name)
{
    uint32_t i = 0;

    if (column(r, name) == NULL || !st_row_holds_something(column(r, name)))
        return;
    while (r->unread[i] != NULL)
        i++;
    assert(i < ST_ROW_UNREAD_OWN);
    r->unread[i] = name;
}

static strata_status missing(const struct reading *r, const char *name, const char *what)
{
    return st_error_remedy(st_error(STRATA_E_INPUT, "%s: column \"%s\" is %s", r->place, name, what), "texts.dataset_info",
                           "tokens.format names the format, texts.dataset_info the columns");
}

/* A text; NULL: absent or empty. */
static strata_status text_of(const char **out, const struct reading *r, const char *name)
{
    const st_json *n = column(r, name);

    *out = NULL;
    if (n == NULL)
        return STRATA_OK;
    if (st_json_type(n) != ST_JSON_STRING)
        return missing(r, name, "not a text");
    if (st_json_string(n)[0] != '\0')
        *out = st_json_string(n);
    return STRATA_OK;
}

/* What a turn or message says of whether it is to be trained: XTuner's "loss" and OpenAI's "weight". */
static const char *const wishes[] = {"loss", "weight"};
enum { WISHES = 2 };

/* @param turn  takes the message's wishes; NULL: they are dropped */
static void put_turn(struct reading *r, const char *role, const char *content, const st_json *turn)
{
    st_json_object_open(&r->w, NULL);
    st_json_put_string(&r->w, "role", role);
    st_json_put_string(&r->w, "content", content);
    for (size_t i = 0; turn != NULL && i < WISHES; i++)
        if (st_json_get(turn, wishes[i]) != NULL)
            st_json_put_node(&r->w, wishes[i], st_json_get(turn, wishes[i]));
    st_json_object_close(&r->w);
    r->turns++;
}

/* Messages of the row as they are.  @param excluded  none is trained */
static strata_status put_messages(struct reading *r, const st_json *messages, const char *name, bool excluded)
{
    if (st_json_depth(messages) > MESSAGES_DEPTH_MAX)
        return missing(r, name, "deeper than 28 levels");
    for (const st_json *m = st_json_first(messages); m != NULL; m = st_json_next(m)) {
        st_json_object_open(&r->w, NULL);
        for (const st_json *n = st_json_first(m); n != NULL; n = st_json_next(n))
            if (!excluded || (strcmp(st_json_name(n), wishes[0]) != 0 && strcmp(st_json_name(n), wishes[1]) != 0))
                st_json_put_node(&r->w, st_json_name(n), n);
        if (excluded)
            st_json_put_bool(&r->w, "loss", false);
        st_json_object_close(&r->w);
    }
    return STRATA_OK;
}

/* LLaMA-Factory takes a function's description with or without {"type": "function", ...} around it. */
static void put_tool(struct st_json_writer *w, const st_json *tool)
{
    const st_json *type = st_json_type(tool) == ST_JSON_OBJECT ? st_json_get(tool, "type") : NULL;

    if (type != NULL && st_json_type(type) == ST_JSON_STRING && strcmp(st_json_string(type), "function") == 0) {
        st_json_put_node(w, NULL, tool);
        return;
    }
    st_json_object_open(w, NULL);
    st_json_put_string(w, "type", "function");
    st_json_put_node(w, "function", tool);
    st_json_object_close(w);
}

/* The tools, an array or a text that is one, as a variable of the template; *any false: there are none. */
static strata_status put_tools(struct reading *r, bool *any)
{
    const st_json *tools = column(r, r->shape->tools);
    st_json *parsed = NULL;
    strata_status st = STRATA_OK;

    *any = false;
    if (tools != NULL && st_json_type(tools) == ST_JSON_STRING) {
        const char *text = st_json_string(tools);

        if (text[strspn(text, " \t\r\n")] == '\0')
            return STRATA_OK;
        st = st_json_parse(&parsed, text, strlen(text), r->place);
        if (st != STRATA_OK)
            return st == STRATA_E_CONFIG ? missing(r, r->shape->tools, "a text that is not JSON") : st;
        tools = parsed;
    }
    if (tools != NULL && (st_json_type(tools) != ST_JSON_ARRAY || st_json_depth(tools) > TOOLS_DEPTH_MAX)) {
        st = missing(r, r->shape->tools, "not an array of tools (at most 24 levels deep)");
    } else if (tools != NULL && st_json_first(tools) != NULL) {
        *any = true;
        st_json_object_open(&r->w, "variables");
        st_json_array_open(&r->w, "tools");
        for (const st_json *tool = st_json_first(tools); tool != NULL; tool = st_json_next(tool))
            put_tool(&r->w, tool);
        st_json_array_close(&r->w);
        st_json_object_close(&r->w);
    }
    st_json_free(parsed);
    return st;
}

/* [[prompt, reply], ...] */
static strata_status put_history(struct reading *r)
{
    const st_json *history = column(r, r->shape->history);

    if (history == NULL || st_json_type(history) != ST_JSON_ARRAY) {
        pass_over(r, r->shape->history); /* as in LLaMA-Factory */
        return STRATA_OK;
    }
    for (const st_json *pair = st_json_first(history); pair != NULL; pair = st_json_next(pair)) {
        const st_json *prompt = st_json_type(pair) == ST_JSON_ARRAY ? st_json_first(pair) : NULL;
        const st_json *reply = prompt == NULL ? NULL : st_json_next(prompt);

        if (reply == NULL || st_json_next(reply) != NULL || st_json_type(prompt) != ST_JSON_STRING ||
            st_json_type(reply) != ST_JSON_STRING)
            return missing(r, r->shape->history, "not a list of pairs of texts");
        put_turn(r, "user", st_json_string(prompt), NULL);
        put_turn(r, "assistant", st_json_string(reply), NULL);
    }
    return STRATA_OK;
}

/* Why: strata_last_error(). */
static strata_status no_answer(const struct reading *r, enum st_row_odd *odd)
{
    const char *name = r->shape->reply == NULL ? "response" : r->shape->reply;
    const st_json *reply = st_json_get(r->row, name);

    *odd = ST_ROW_NO_ANSWER;
    (void)st_error_remedy(st_error(STRATA_E_INPUT, "column \"%s\" is %s", name,
                                   reply == NULL                         ? "missing"
                                   : st_json_type(reply) == ST_JSON_NULL ? "null"
                                                                         : "not a text"),
                          "texts.dataset_info", "texts.dataset_info can name another");
    return STRATA_OK;
}

static strata_status put_alpaca(struct reading *r, enum st_row_odd *odd)
{
    const st_json *reply = column(r, r->shape->reply);
    const char *system, *prompt, *query;
    char *both = NULL;
    strata_status st;

    if ((st = text_of(&system, r, r->shape->system)) != STRATA_OK || (st = text_of(&prompt, r, r->shape->prompt)) != STRATA_OK ||
        (st = text_of(&query, r, r->shape->query)) != STRATA_OK)
        return st;
    if (reply == NULL || st_json_type(reply) != ST_JSON_STRING)
        return no_answer(r, odd);
    if (prompt == NULL && query == NULL && r->shape->prompt != NULL && st_json_get(r->row, r->shape->prompt) == NULL)
        return missing(r, r->shape->prompt, "missing");
    if (system != NULL)
        put_turn(r, "system", system, NULL);
    if ((st = put_history(r)) != STRATA_OK)
        return st;
    if (prompt != NULL && query != NULL &&
        (st_fault("rows.alloc", 0) < 0 || asprintf(&both, "%s%s%s", prompt, r->shape->joined ? "" : "\n", query) < 0))
        return st_nomem(0);
    put_turn(r, "user", both != NULL ? both : prompt != NULL ? prompt : query != NULL ? query : "", NULL);
    put_turn(r, "assistant", st_json_string(reply), NULL);
    free(both);
    return STRATA_OK;
}

/* A turn's role and content. */
static strata_status read_turn(const struct reading *r, const st_json *turn, const char **role, const char **content)
{
    const bool object = st_json_type(turn) == ST_JSON_OBJECT;
    const st_json *who = object && r->shape->role != NULL ? st_json_get(turn, r->shape->role) : NULL;
    const st_json *what = object && r->shape->content != NULL ? st_json_get(turn, r->shape->content) : NULL;

    if (who == NULL || what == NULL || st_json_type(who) != ST_JSON_STRING || st_json_type(what) != ST_JSON_STRING)
        return st_error(STRATA_E_INPUT, "%s: column \"%s\": a turn without \"%s\" and \"%s\", both texts", r->place,
                        r->shape->messages, r->shape->role == NULL ? "?" : r->shape->role,
                        r->shape->content == NULL ? "?" : r->shape->content);
    *role = st_json_string(who);
    *content = st_json_string(what);
    return STRATA_OK;
}

static bool is(const char *tag, const char *name)
{
    return name != NULL && strcmp(tag, name) == 0;
}

/* The role for the template; NULL: it may not stand at this place.  Of the turns after the system's, the first, third, ... are a
 * user's or a function's result, the others an answer or a call. */
static const char *role_at(const struct st_row_shape *shape, const char *tag, uint32_t place)
{
    if (place % 2 == 0)
        return is(tag, shape->user) ? "user" : is(tag, shape->observation) ? "tool" : NULL;
    return is(tag, shape->assistant) || is(tag, shape->function) ? "assistant" : NULL;
}

/* The usual one of two names; a data set may have only one of them. */
static const char *name_of(const char *usual, const char *other)
{
    return usual != NULL ? usual : other != NULL ? other : "";
}

/* The column of a system prompt; NULL: it is empty, or stands beside one (`first`) that conversations begin with. */
static strata_status find_system(struct reading *r, const char **system, const char *first)
{
    const strata_status st = text_of(system, r, r->shape->system);

    if (st != STRATA_OK || *system == NULL || first == NULL)
        return st;
    if (strcmp(*system, first) != 0)
        pass_over(r, r->shape->system);
    *system = NULL;
    return STRATA_OK;
}

/* A wish is true or false, or 0 or 1.  Only answers can be trained. */
static strata_status check_wish(struct reading *r, const st_json *message, const char *name, bool answer)
{
    const st_json *loss = st_json_get(message, "loss"), *weight = st_json_get(message, "weight");
    const char *what = NULL;

    if (loss != NULL && st_json_type(loss) != ST_JSON_NULL && st_json_type(loss) != ST_JSON_BOOL)
        what = "a \"loss\" that is neither true nor false";
    else if (loss != NULL && st_json_type(loss) == ST_JSON_BOOL && st_json_bool(loss) && !answer)
        what = "a \"loss\" that is true of another's message than the assistant's, and only answers are trained (or, with "
               "texts.train_on_prompt, all): remove it";
    else if (answer && weight != NULL && st_json_type(weight) != ST_JSON_NULL &&
             (st_json_type(weight) != ST_JSON_NUMBER || (st_json_number(weight) != 0 && st_json_number(weight) != 1)))
        what = "a \"weight\" that is neither 0 nor 1";
    r->excluded += answer && ((loss != NULL && st_json_type(loss) == ST_JSON_BOOL && !st_json_bool(loss)) ||
                              (weight != NULL && st_json_type(weight) == ST_JSON_NUMBER && st_json_number(weight) == 0));
    return what == NULL ? STRATA_OK : st_error(STRATA_E_INPUT, "%s: column \"%s\" has a message with %s", r->place, name, what);
}

static strata_status put_sharegpt(struct reading *r, enum st_row_odd *odd)
{
    const st_json *turns = column(r, r->shape->messages), *turn;
    const char *tag, *content, *system = NULL;
    uint32_t place = 0, first = 1;
    strata_status st;

    if (turns == NULL || st_json_type(turns) != ST_JSON_ARRAY)
        return missing(r, r->shape->messages == NULL ? "messages" : r->shape->messages, turns == NULL ? "missing" : "not a list");
    if ((turn = st_json_first(turns)) == NULL) {
        *odd = ST_ROW_EMPTY;
        return STRATA_OK;
    }
    if ((st = read_turn(r, turn, &tag, &content)) != STRATA_OK)
        return st;
    if (is(tag, r->shape->system_role)) {
        if ((st = find_system(r, &system, content)) != STRATA_OK)
            return st;
        system = content[0] == '\0' ? NULL : content;
        turn = st_json_next(turn);
        first = 2;
    } else if ((st = text_of(&system, r, r->shape->system)) != STRATA_OK) {
        return st;
    }
    if (system != NULL)
        put_turn(r, "system", system, NULL);
    for (; turn != NULL; turn = st_json_next(turn), place++) {
        if ((st = read_turn(r, turn, &tag, &content)) != STRATA_OK)
            return st;
        if (role_at(r->shape, tag, place) == NULL)
            break;
        if ((st = check_wish(r, turn, r->shape->messages, place % 2 == 1)) != STRATA_OK)
            return st;
        put_turn(r, role_at(r->shape, tag, place), content, place % 2 == 1 ? turn : NULL);
        r->functions += place % 2 == 1 && !is(tag, r->shape->assistant);
    }
    if (turn == NULL && place > 0 && place % 2 == 0)
        return STRATA_OK;
    *odd = place == 0 && turn == NULL ? ST_ROW_EMPTY : ST_ROW_TURNS;
    if (turn != NULL)
        (void)st_error(STRATA_E_INPUT, "turn %u is from \"%.64s\", where \"%s\" may stand", first + place, tag,
                       place % 2 == 0 ? name_of(r->shape->user, r->shape->observation)
                                      : name_of(r->shape->assistant, r->shape->function));
    else
        (void)st_error(STRATA_E_INPUT, "the last turn has no answer");
    return STRATA_OK;
}

static strata_status check_messages(struct reading *r, const st_json *messages, const char *name)
{
    if (messages == NULL || st_json_type(messages) != ST_JSON_ARRAY)
        return missing(r, name, messages == NULL ? "missing" : "not a list");
    for (const st_json *m = st_json_first(messages); m != NULL; m = st_json_next(m)) {
        const st_json *role = st_json_type(m) == ST_JSON_OBJECT ? st_json_get(m, "role") : NULL;
        strata_status st;

        if (role == NULL || st_json_type(role) != ST_JSON_STRING)
            return missing(r, name, "not a list of objects with a \"role\" each");
        if ((st = check_wish(r, m, name, strcmp(st_json_string(role), "assistant") == 0)) != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

/* What a system says at their beginning; NULL: none begins them. */
static const char *system_of(const st_json *messages)
{
    const char *role = st_json_string(st_json_get(st_json_first(messages), "role"));
    const st_json *content = st_json_get(st_json_first(messages), "content");

    if (strcmp(role, "system") != 0 && strcmp(role, "developer") != 0)
        return NULL;
    return content != NULL && st_json_type(content) == ST_JSON_STRING ? st_json_string(content) : "";
}

static strata_status read_messages(struct reading *r, struct st_sample *out, enum st_row_odd *odd)
{
    const st_json *messages = column(r, r->shape->messages);
    const strata_status st = check_messages(r, messages, r->shape->messages);

    if (st != STRATA_OK)
        return st;
    out->messages = messages;
    if (st_json_first(messages) != NULL)
        return find_system(r, &r->system, system_of(messages));
    *odd = ST_ROW_EMPTY;
    return STRATA_OK;
}

/* A text of both, where they are texts. */
static strata_status read_completion(struct reading *r, struct st_sample *out, enum st_row_odd *odd)
{
    const st_json *prompt = column(r, r->shape->prompt), *reply = column(r, r->shape->reply);

    if (prompt == NULL)
        return missing(r, r->shape->prompt, "missing");
    if (reply == NULL)
        return st_json_get(r->row, r->shape->reply) != NULL ? no_answer(r, odd) : missing(r, r->shape->reply, "missing");
    if (st_json_type(prompt) != st_json_type(reply) ||
        (st_json_type(prompt) != ST_JSON_STRING && st_json_type(prompt) != ST_JSON_ARRAY))
        return missing(r, r->shape->reply, "not of the prompt's kind, a text or a list of messages");
    out->completes = true;
    if (st_json_type(prompt) == ST_JSON_ARRAY) {
        const strata_status st = check_messages(r, prompt, r->shape->prompt);

        return st != STRATA_OK ? st : find_system(r, &r->system, st_json_first(prompt) != NULL ? system_of(prompt) : NULL);
    }
    out->prompt_bytes = strlen(st_json_string(prompt));
    if (st_fault("rows.alloc", 0) < 0 || asprintf(&out->joined, "%s%s", st_json_string(prompt), st_json_string(reply)) < 0) {
        out->joined = NULL;
        return st_nomem(0);
    }
    out->text = out->joined;
    pass_over(r, r->shape->system);
    pass_over(r, r->shape->tools);
    *odd = out->text[0] == '\0' ? ST_ROW_EMPTY : ST_ROW_FINE;
    return STRATA_OK;
}

/* Prompt and completion are one conversation, of which the completion is trained. */
static strata_status put_completion(struct reading *r)
{
    const char *const names[] = {r->shape->prompt, r->shape->reply};
    strata_status st = STRATA_OK;

    if (r->system != NULL)
        put_turn(r, "system", r->system, NULL);
    r->excluded = 0; /* the prompt is looked at again */
    for (size_t i = 0; i < 2 && st == STRATA_OK; i++) {
        st = check_messages(r, column(r, names[i]), names[i]);
        if (st == STRATA_OK)
            st = put_messages(r, column(r, names[i]), names[i], i == 0);
    }
    return st;
}

static strata_status put_all(struct reading *r, const struct st_sample *out, enum st_row_odd *odd)
{
    switch (r->shape->format) {
    case ST_ROWS_ALPACA:
        return put_alpaca(r, odd);
    case ST_ROWS_SHAREGPT:
        return put_sharegpt(r, odd);
    case ST_ROWS_COMPLETION:
        return put_completion(r);
    default:
        if (r->system == NULL)
            return STRATA_OK; /* they are the row's own */
        put_turn(r, "system", r->system, NULL);
        return put_messages(r, out->messages, r->shape->messages, false);
    }
}

/* Writes {"messages": [...], "variables": {...}} and parses it. */
static strata_status make(struct reading *r, struct st_sample *out, enum st_row_odd *odd)
{
    char *text = NULL;
    size_t bytes = 0;
    bool tools = false;
    FILE *file = st_fault("rows.alloc", 0) < 0 ? NULL : open_memstream(&text, &bytes);
    strata_status st;

    if (file == NULL)
        return st_nomem(0);
    st_json_begin(&r->w, file);
    st_json_object_open(&r->w, NULL);
    st_json_array_open(&r->w, "messages");
    st = put_all(r, out, odd);
    st_json_array_close(&r->w);
    if (st == STRATA_OK && *odd == ST_ROW_FINE)
        st = put_tools(r, &tools);
    if (st == STRATA_OK)
        st_json_object_close(&r->w);
    if (fclose(file) != 0 && st == STRATA_OK)
        st = st_nomem(0);
    if (st == STRATA_OK && *odd == ST_ROW_FINE)
        st = st_json_parse(&out->made, text, bytes, r->place);
    free(text);
    if (st != STRATA_OK || *odd != ST_ROW_FINE)
        return st;
    out->variables = tools ? st_json_get(out->made, "variables") : NULL;
    out->functions = r->functions;
    if (out->messages == NULL || r->system != NULL)
        out->messages = st_json_get(out->made, "messages");
    return STRATA_OK;
}

static strata_status read_text(struct reading *r, struct st_sample *out, enum st_row_odd *odd)
{
    strata_status st;

    if (column(r, r->shape->text) == NULL)
        return missing(r, r->shape->text, "missing");
    st = text_of(&out->text, r, r->shape->text);
    *odd = out->text == NULL ? ST_ROW_EMPTY : ST_ROW_FINE;
    return st;
}

strata_status st_row_read(struct st_sample *out, enum st_row_odd *odd, const struct st_row_shape *shape, const st_json *row,
                          const char *place)
{
    struct reading r = {.shape = shape, .row = row, .place = place};
    strata_status st = STRATA_OK;

    *out = (struct st_sample){0};
    *odd = shape->format == ST_ROWS_AUTO ? ST_ROW_EMPTY : ST_ROW_FINE;
    if (st_json_type(row) != ST_JSON_OBJECT)
        return st_error(STRATA_E_INPUT, "%s: not an object with columns", place);
    if (shape->format == ST_ROWS_TEXT)
        st = read_text(&r, out, odd);
    else if (shape->format == ST_ROWS_MESSAGES)
        st = read_messages(&r, out, odd);
    else if (shape->format == ST_ROWS_COMPLETION)
        st = read_completion(&r, out, odd);
    if (st == STRATA_OK && *odd == ST_ROW_FINE && out->text == NULL &&
        (out->messages == NULL || r.system != NULL || column(&r, shape->tools) != NULL))
        st = make(&r, out, odd);
    out->excluded = r.excluded;
    memcpy(out->unread, r.unread, sizeof(r.unread));
    return st;
}

void st_sample_free(struct st_sample *s)
{
    st_json_free(s->made);
    free(s->joined);
    *s = (struct st_sample){0};
}
