/* row_columns.c - see row_columns.h. */
#include "text/data/rows/row_columns.h"

#include "core/base/error.h"
#include "core/base/text.h"

#include <stdio.h>
#include <string.h>

enum meaning { WISHED, PAIR, MEDIA, NONE, MEANINGS };

static const char *const refusals[MEANINGS] = {
    [WISHED] = "answers that are not wanted (KTO) are not trained: keep the rows whose label is true",
    [PAIR] = "pairs of answers are not trained: texts.dataset_info can name the wanted one as the response",
    [MEDIA] = "only text is trained: remove the column, or the rows that have it",
};

/* Names as TRL, LLaMA-Factory and ms-swift read them; and names of columns that only number rows or name their source. */
static const struct {
    const char *name;
    enum meaning meaning;
} known[] = {
    {"label", WISHED},
    {"kto_tag", WISHED},
    {"chosen", PAIR},
    {"rejected", PAIR},
    {"rejected_response", PAIR},
    {"rejected_messages", PAIR},
    {"image", MEDIA},
    {"images", MEDIA},
    {"video", MEDIA},
    {"videos", MEDIA},
    {"audio", MEDIA},
    {"audios", MEDIA},
    {"id", NONE},
    {"idx", NONE},
    {"index", NONE},
    {"uuid", NONE},
    {"prompt_id", NONE},
    {"conversation_id", NONE},
    {"source", NONE},
    {"dataset", NONE},
    {"__index_level_0__", NONE},
};

static enum meaning meaning_of(const char *name)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(name, known[i].name) == 0)
            return known[i].meaning;
    return MEANINGS;
}

const char *st_row_column_refusal(const char *name)
{
    const enum meaning meaning = meaning_of(name);

    return meaning < MEANINGS ? refusals[meaning] : NULL;
}

bool st_row_holds_something(const st_json *n)
{
    switch (st_json_type(n)) {
    case ST_JSON_NULL:
        return false;
    case ST_JSON_STRING:
        return st_json_string(n)[0] != '\0';
    case ST_JSON_ARRAY:
    case ST_JSON_OBJECT:
        return st_json_first(n) != NULL;
    default:
        return true;
    }
}

/* Words and numbers of tables that became rows. */
static bool says_no(const st_json *n)
{
    if (st_json_type(n) == ST_JSON_BOOL)
        return !st_json_bool(n);
    if (st_json_type(n) == ST_JSON_NUMBER)
        return st_json_number(n) == 0;
    return st_json_type(n) == ST_JSON_STRING && (st_text_same(st_json_string(n), "false") || strcmp(st_json_string(n), "0") == 0);
}

/* A label is a verdict if it is true or false, and not of a text: else it is a class. */
static bool is_verdict(const struct st_row_shape *shape, const st_json *n)
{
    if (strcmp(st_json_name(n), "label") != 0)
        return true;
    return shape->format != ST_ROWS_TEXT &&
           (st_json_type(n) == ST_JSON_BOOL || (st_json_type(n) == ST_JSON_STRING && (st_text_same(st_json_string(n), "true") ||
                                                                                      st_text_same(st_json_string(n), "false"))));
}

/* The kind of a message's part that is no text ("image_url", "input_audio"); NULL: there is none. */
static const char *media_part(const st_json *messages)
{
    static const char *const kinds[] = {"image", "video", "audio"};

    for (const st_json *m = st_json_first(messages); m != NULL; m = st_json_next(m)) {
        const st_json *content = st_json_type(m) == ST_JSON_OBJECT ? st_json_get(m, "content") : NULL;
        const st_json *part = content != NULL && st_json_type(content) == ST_JSON_ARRAY ? st_json_first(content) : NULL;

        for (; part != NULL; part = st_json_next(part)) {
            const st_json *type = st_json_type(part) == ST_JSON_OBJECT ? st_json_get(part, "type") : NULL;

            for (size_t i = 0; type != NULL && st_json_type(type) == ST_JSON_STRING && i < sizeof(kinds) / sizeof(kinds[0]); i++)
                if (strstr(st_json_string(type), kinds[i]) != NULL)
                    return st_json_string(type);
        }
    }
    return NULL;
}

/* A member of a message that is no text; NULL: there is none. */
static const char *media_member(const st_json *messages)
{
    for (const st_json *m = st_json_first(messages); m != NULL; m = st_json_next(m))
        for (const st_json *n = st_json_type(m) == ST_JSON_OBJECT ? st_json_first(m) : NULL; n != NULL; n = st_json_next(n))
            if (meaning_of(st_json_name(n)) == MEDIA && st_row_holds_something(n))
                return st_json_name(n);
    return NULL;
}

strata_status st_row_check_columns(const struct st_row_shape *shape, const st_json *row, const char *place)
{
    for (const st_json *n = st_json_type(row) == ST_JSON_OBJECT ? st_json_first(row) : NULL; n != NULL; n = st_json_next(n)) {
        const enum meaning meaning = meaning_of(st_json_name(n));
        const bool refused = meaning == MEDIA    ? st_row_holds_something(n)
                             : meaning == PAIR   ? st_row_holds_something(n) && !shape->named
                             : meaning == WISHED ? is_verdict(shape, n) && says_no(n)
                                                 : false;

        if (st_row_shape_reads(shape, st_json_name(n))) {
            if (st_json_type(n) == ST_JSON_ARRAY && media_part(n) != NULL)
                return st_error(STRATA_E_INPUT, "%s: column \"%s\": a message has a part of type \"%.32s\": only text is trained",
                                place, st_json_name(n), media_part(n));
            if (st_json_type(n) == ST_JSON_ARRAY && media_member(n) != NULL)
                return st_error(STRATA_E_INPUT, "%s: column \"%s\": a message has \"%.32s\": only text is trained", place,
                                st_json_name(n), media_member(n));
        } else if (refused)
            return st_error(STRATA_E_INPUT, "%s: column \"%s\": %s", place, st_json_name(n), refusals[meaning]);
    }
    return STRATA_OK;
}

void st_row_note_column(struct st_row_unread *u, const char *name)
{
    uint32_t i = 0;

    while (i < u->count && strncmp(u->columns[i].name, name, ST_ROW_UNREAD_NAME - 1) != 0)
        i++;
    if (i == ST_ROW_UNREAD_MAX) {
        u->others++;
        return;
    }
    if (i == u->count) {
        u->count++;
        snprintf(u->columns[i].name, ST_ROW_UNREAD_NAME, "%s", name);
    }
    u->columns[i].rows += u->columns[i].last != u->row;
    u->columns[i].last = u->row;
}

/* Note keys of turns that are not read: all but the role, the content and whether it is trained. */
static void note_turns(struct st_row_unread *u, const struct st_row_shape *shape, const st_json *turns)
{
    char name[ST_ROW_UNREAD_NAME];

    for (const st_json *turn = st_json_first(turns); turn != NULL; turn = st_json_next(turn))
        for (const st_json *n = st_json_type(turn) == ST_JSON_OBJECT ? st_json_first(turn) : NULL; n != NULL;
             n = st_json_next(n)) {
            const char *key = st_json_name(n);

            if (!st_row_holds_something(n) || strcmp(key, "loss") == 0 || strcmp(key, "weight") == 0 || meaning_of(key) == NONE ||
                (shape->role != NULL && strcmp(key, shape->role) == 0) ||
                (shape->content != NULL && strcmp(key, shape->content) == 0))
                continue;
            snprintf(name, sizeof(name), "%.24s[].%s", shape->messages, key);
            st_row_note_column(u, name);
        }
}

void st_row_note_columns(struct st_row_unread *u, const struct st_row_shape *shape, const st_json *row)
{
    u->row++;
    for (const st_json *n = st_json_first(row); n != NULL; n = st_json_next(n)) {
        const enum meaning meaning = meaning_of(st_json_name(n));

        if (shape->format == ST_ROWS_SHAREGPT && shape->messages != NULL && strcmp(st_json_name(n), shape->messages) == 0)
            note_turns(u, shape, n);
        else if (st_row_holds_something(n) && meaning != NONE && !(meaning == WISHED && is_verdict(shape, n)) &&
                 !st_row_shape_reads(shape, st_json_name(n)))
            st_row_note_column(u, st_json_name(n));
    }
}

/* What messages have beside their text: some templates write it, others need not. */
static bool is_of_message(const char *key)
{
    static const char *const keys[] = {"role",          "content",           "name",      "tool_calls", "tool_call_id",
                                       "function_call", "reasoning_content", "reasoning", "thinking",   "loss",
                                       "weight"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(key, keys[i]) == 0)
            return true;
    return meaning_of(key) == NONE;
}

void st_row_note_messages(struct st_row_unread *u, const st_json *messages, st_row_reads_fn *reads, const void *reader)
{
    char name[ST_ROW_UNREAD_NAME];

    for (const st_json *m = st_json_first(messages); m != NULL; m = st_json_next(m))
        for (const st_json *n = st_json_first(m); n != NULL; n = st_json_next(n)) {
            if (!st_row_holds_something(n) || is_of_message(st_json_name(n)) || reads(reader, st_json_name(n)))
                continue;
            snprintf(name, sizeof(name), "messages[].%s", st_json_name(n));
            st_row_note_column(u, name);
        }
}
