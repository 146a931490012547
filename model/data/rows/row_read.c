/* row_read.c - makes a text or a conversation of a row.  Conversations are written as JSON and parsed again: trees do not change.
 */
#include "model/data/rows/row_shape.h"

#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TOOLS_DEPTH_MAX 24 /* of the writer's 32 */

/* What a row is read with. */
struct reading {
    const struct st_row_shape *shape;
    const st_json *row;
    const char *place;
    struct st_json_writer w;   /* the conversation that is made */
    uint32_t turns, functions; /* functions: of the turns, calls */
};

/* A column that is there and not null. */
static const st_json *column(const struct reading *r, const char *name)
{
    const st_json *n = name == NULL ? NULL : st_json_get(r->row, name);

    return n == NULL || st_json_type(n) == ST_JSON_NULL ? NULL : n;
}

static strata_status missing(const struct reading *r, const char *name, const char *what)
{
    return st_error(STRATA_E_INPUT, "%s: column \"%s\" is %s: --format names the format, --dataset-info the columns", r->place,
                    name, what);
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

static void put_turn(struct reading *r, const char *role, const char *content)
{
    st_json_object_open(&r->w, NULL);
    st_json_put_string(&r->w, "role", role);
    st_json_put_string(&r->w, "content", content);
    st_json_object_close(&r->w);
    r->turns++;
}

static bool deeper_than(const st_json *n, uint32_t depth)
{
    if (depth == 0)
        return true;
    for (const st_json *child = st_json_first(n); child != NULL; child = st_json_next(child))
        if (deeper_than(child, depth - 1))
            return true;
    return false;
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
    if (tools != NULL && (st_json_type(tools) != ST_JSON_ARRAY || deeper_than(tools, TOOLS_DEPTH_MAX))) {
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

    if (history == NULL || st_json_type(history) != ST_JSON_ARRAY)
        return STRATA_OK;
    for (const st_json *pair = st_json_first(history); pair != NULL; pair = st_json_next(pair)) {
        const st_json *prompt = st_json_type(pair) == ST_JSON_ARRAY ? st_json_first(pair) : NULL;
        const st_json *reply = prompt == NULL ? NULL : st_json_next(prompt);

        if (reply == NULL || st_json_next(reply) != NULL || st_json_type(prompt) != ST_JSON_STRING ||
            st_json_type(reply) != ST_JSON_STRING)
            return missing(r, r->shape->history, "not a list of pairs of texts");
        put_turn(r, "user", st_json_string(prompt));
        put_turn(r, "assistant", st_json_string(reply));
    }
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
    if (reply == NULL || st_json_type(reply) != ST_JSON_STRING) {
        *odd = ST_ROW_NO_ANSWER;
        return STRATA_OK;
    }
    if (prompt == NULL && query == NULL && r->shape->prompt != NULL && st_json_get(r->row, r->shape->prompt) == NULL)
        return missing(r, r->shape->prompt, "missing");
    if (system != NULL)
        put_turn(r, "system", system);
    if ((st = put_history(r)) != STRATA_OK)
        return st;
    if (prompt != NULL && query != NULL && (st_fault("rows.alloc", 0) < 0 || asprintf(&both, "%s\n%s", prompt, query) < 0))
        return st_error(STRATA_E_NOMEM, "%s: no memory", r->place);
    put_turn(r, "user", both != NULL ? both : prompt != NULL ? prompt : query != NULL ? query : "");
    put_turn(r, "assistant", st_json_string(reply));
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

/* The usual one of two names, of which a data set may have one alone. */
static const char *name_of(const char *usual, const char *other)
{
    return usual != NULL ? usual : other != NULL ? other : "";
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
        system = content[0] == '\0' ? NULL : content;
        turn = st_json_next(turn);
        first = 2;
    } else if ((st = text_of(&system, r, r->shape->system)) != STRATA_OK) {
        return st;
    }
    if (system != NULL)
        put_turn(r, "system", system);
    for (; turn != NULL; turn = st_json_next(turn), place++) {
        if ((st = read_turn(r, turn, &tag, &content)) != STRATA_OK)
            return st;
        if (role_at(r->shape, tag, place) == NULL)
            break;
        put_turn(r, role_at(r->shape, tag, place), content);
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

/* What a message says of its being trained: XTuner's "loss", true or false, and OpenAI's "weight", 0 or 1.  Answers alone can be.
 */
static strata_status check_wish(const struct reading *r, const st_json *message, bool answer)
{
    const st_json *loss = st_json_get(message, "loss"), *weight = st_json_get(message, "weight");
    const char *what = NULL;

    if (loss != NULL && st_json_type(loss) != ST_JSON_NULL && st_json_type(loss) != ST_JSON_BOOL)
        what = "a \"loss\" that is neither true nor false";
    else if (loss != NULL && st_json_type(loss) == ST_JSON_BOOL && st_json_bool(loss) && !answer)
        what = "a \"loss\" that is true of another's message than the assistant's, and answers alone are trained (or, with "
               "--train-on-prompt, all): remove it";
    else if (answer && weight != NULL && st_json_type(weight) != ST_JSON_NULL &&
             (st_json_type(weight) != ST_JSON_NUMBER || (st_json_number(weight) != 0 && st_json_number(weight) != 1)))
        what = "a \"weight\" that is neither 0 nor 1";
    return what == NULL ? STRATA_OK
                        : st_error(STRATA_E_INPUT, "%s: column \"%s\" has a message with %s", r->place, r->shape->messages, what);
}

static strata_status check_messages(const struct reading *r, const st_json *messages, enum st_row_odd *odd)
{
    if (messages == NULL || st_json_type(messages) != ST_JSON_ARRAY)
        return missing(r, r->shape->messages, messages == NULL ? "missing" : "not a list");
    if (st_json_first(messages) == NULL)
        *odd = ST_ROW_EMPTY;
    for (const st_json *m = st_json_first(messages); m != NULL; m = st_json_next(m)) {
        const st_json *role = st_json_type(m) == ST_JSON_OBJECT ? st_json_get(m, "role") : NULL;
        strata_status st;

        if (role == NULL || st_json_type(role) != ST_JSON_STRING)
            return missing(r, r->shape->messages, "not a list of objects with a \"role\" each");
        if ((st = check_wish(r, m, strcmp(st_json_string(role), "assistant") == 0)) != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

/* Writes {"messages": [...], "variables": {...}} and parses it. */
static strata_status make(struct reading *r, struct st_sample *out, enum st_row_odd *odd)
{
    const bool own = r->shape->format == ST_ROWS_MESSAGES;
    char *text = NULL;
    size_t bytes = 0;
    bool tools = false;
    FILE *file = st_fault("rows.alloc", 0) < 0 ? NULL : open_memstream(&text, &bytes);
    strata_status st = STRATA_OK;

    if (file == NULL)
        return st_error(STRATA_E_NOMEM, "%s: no memory", r->place);
    st_json_begin(&r->w, file);
    st_json_object_open(&r->w, NULL);
    st_json_array_open(&r->w, "messages");
    if (!own)
        st = r->shape->format == ST_ROWS_ALPACA ? put_alpaca(r, odd) : put_sharegpt(r, odd);
    st_json_array_close(&r->w);
    if (st == STRATA_OK && *odd == ST_ROW_FINE)
        st = put_tools(r, &tools);
    if (st == STRATA_OK)
        st_json_object_close(&r->w);
    if (fclose(file) != 0 && st == STRATA_OK)
        st = st_error(STRATA_E_NOMEM, "%s: no memory", r->place);
    if (st == STRATA_OK && *odd == ST_ROW_FINE)
        st = st_json_parse(&out->made, text, bytes, r->place);
    free(text);
    if (st != STRATA_OK || *odd != ST_ROW_FINE)
        return st;
    out->variables = tools ? st_json_get(out->made, "variables") : NULL;
    out->functions = r->functions;
    if (!own)
        out->messages = st_json_get(out->made, "messages");
    return STRATA_OK;
}

strata_status st_row_read(struct st_sample *out, enum st_row_odd *odd, const struct st_row_shape *shape, const st_json *row,
                          const char *place)
{
    struct reading r = {.shape = shape, .row = row, .place = place};
    strata_status st;

    *out = (struct st_sample){0};
    *odd = ST_ROW_FINE;
    if (st_json_type(row) != ST_JSON_OBJECT)
        return st_error(STRATA_E_INPUT, "%s: not an object with columns", place);
    if (shape->format == ST_ROWS_AUTO) {
        *odd = ST_ROW_EMPTY;
        return STRATA_OK;
    }
    if (shape->format == ST_ROWS_TEXT) {
        if (column(&r, shape->text) == NULL)
            return missing(&r, shape->text, "missing");
        st = text_of(&out->text, &r, shape->text);
        *odd = out->text == NULL ? ST_ROW_EMPTY : ST_ROW_FINE;
        return st;
    }
    if (shape->format == ST_ROWS_MESSAGES) {
        out->messages = column(&r, shape->messages);
        if ((st = check_messages(&r, out->messages, odd)) != STRATA_OK || *odd != ST_ROW_FINE || column(&r, shape->tools) == NULL)
            return st;
    }
    return make(&r, out, odd);
}

void st_sample_free(struct st_sample *s)
{
    st_json_free(s->made);
    *s = (struct st_sample){0};
}
