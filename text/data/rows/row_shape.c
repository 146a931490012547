/* row_shape.c - formats by name, their usual columns, and which one a row has. */
#include "text/data/rows/row_shape.h"

#include "core/base/error.h"

#include <string.h>

static const char *const names[ST_ROWS_FORMATS] = {"auto", "text", "messages", "alpaca", "sharegpt", "prompt-completion"};

bool st_row_format_find(enum st_row_format *out, const char *name)
{
    for (unsigned i = 0; i < ST_ROWS_FORMATS; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum st_row_format)i;
            return true;
        }
    return false;
}

static const struct {
    const char *text, *key;
} odds[ST_ROW_ODDS] = {
    [ST_ROW_FINE] = {"fine", "fine"},
    [ST_ROW_BAD] = {"not readable", "bad"},
    [ST_ROW_EMPTY] = {"empty", "empty"},
    [ST_ROW_NO_ANSWER] = {"without an answer", "no_answer"},
    [ST_ROW_TURNS] = {"turns out of order", "turns"},
    [ST_ROW_REFUSED] = {"refused by the template", "refused"},
    [ST_ROW_UNTRAINED] = {"nothing to train", "untrained"},
};

const char *st_row_odd_text(enum st_row_odd odd)
{
    return odds[odd].text;
}

const char *st_row_odd_key(enum st_row_odd odd)
{
    return odds[odd].key;
}

struct st_row_shape st_row_shape_of(enum st_row_format format)
{
    switch (format) {
    case ST_ROWS_TEXT:
        return (struct st_row_shape){.format = format, .text = "text"};
    case ST_ROWS_MESSAGES:
        return (struct st_row_shape){.format = format, .messages = "messages", .system = "system", .tools = "tools"};
    case ST_ROWS_ALPACA:
        return (struct st_row_shape){.format = format,
                                     .prompt = "instruction",
                                     .query = "input",
                                     .reply = "output",
                                     .system = "system",
                                     .history = "history",
                                     .tools = "tools"};
    case ST_ROWS_SHAREGPT:
        return (struct st_row_shape){.format = format,
                                     .messages = "conversations",
                                     .system = "system",
                                     .tools = "tools",
                                     .role = "from",
                                     .content = "value",
                                     .user = "human",
                                     .assistant = "gpt",
                                     .observation = "observation",
                                     .function = "function_call",
                                     .system_role = "system"};
    case ST_ROWS_COMPLETION:
        return (struct st_row_shape){
            .format = format, .prompt = "prompt", .reply = "completion", .system = "system", .tools = "tools"};
    default:
        return (struct st_row_shape){.format = ST_ROWS_AUTO};
    }
}

#define COLUMNS 8u

static const char *column_at(const struct st_row_shape *s, unsigned i)
{
    const char *const columns[COLUMNS] = {s->text, s->messages, s->system, s->tools, s->prompt, s->query, s->reply, s->history};

    return columns[i];
}

bool st_row_shape_reads(const struct st_row_shape *shape, const char *column)
{
    for (unsigned i = 0; i < COLUMNS; i++)
        if (column_at(shape, i) != NULL && strcmp(column_at(shape, i), column) == 0)
            return true;
    return false;
}

uint32_t st_row_columns_lacking(const struct st_row_shape *shape, const st_json *row, uint32_t lacking)
{
    for (unsigned i = 0; i < COLUMNS; i++) {
        const char *name = column_at(shape, i);

        if (name != NULL && st_json_type(row) == ST_JSON_OBJECT && st_json_get(row, name) != NULL)
            lacking &= ~(UINT32_C(1) << i);
    }
    return lacking;
}

const char *st_row_column_lacking(const struct st_row_shape *shape, uint32_t lacking)
{
    const char *name = NULL;

    for (unsigned i = 0; i < COLUMNS && name == NULL; i++)
        name = (lacking >> i & 1) != 0 ? column_at(shape, i) : NULL;
    return name;
}

strata_status st_row_check_odd(const struct st_row_shape *shape, const st_json *row, const struct st_json_odd *odd,
                               const char *place)
{
    uint64_t member = 0;

    for (const st_json *n = st_json_first(row); odd->problem != NULL && n != NULL; n = st_json_next(n), member++)
        if ((odd->members >> (member < 63 ? member : 63) & 1) != 0 && st_json_name(n) != NULL &&
            st_row_shape_reads(shape, st_json_name(n)))
            return st_error(STRATA_E_INPUT, "%s: column \"%s\": %s", place, st_json_name(n), odd->problem);
    return STRATA_OK;
}

static const st_json *turns_of(const st_json *row, const char *column)
{
    const st_json *turns = st_json_get(row, column);

    return turns != NULL && st_json_type(turns) == ST_JSON_ARRAY ? turns : NULL;
}

/* The format of the turns in this column; ST_ROWS_AUTO: there are none. */
static enum st_row_format guess_turns(const st_json *row, const char *column)
{
    const st_json *turns = turns_of(row, column), *first = turns != NULL ? st_json_first(turns) : NULL;

    if (first == NULL || st_json_type(first) != ST_JSON_OBJECT)
        return ST_ROWS_AUTO;
    if (st_json_get(first, "role") != NULL)
        return ST_ROWS_MESSAGES;
    return st_json_get(first, "from") != NULL ? ST_ROWS_SHAREGPT : ST_ROWS_AUTO;
}

/* A row without a column that tells its format. */
static strata_status guess_none(struct st_row_shape *out, const st_json *row, const char *place, const char *const columns[2])
{
    for (size_t i = 0; st_json_type(row) == ST_JSON_OBJECT && i < 2; i++) {
        const st_json *turns = turns_of(row, columns[i]);

        if (turns != NULL && st_json_first(turns) != NULL)
            return st_error(STRATA_E_INPUT, "%s: column \"%s\" is not a list of turns with \"role\" (or \"from\") each", place,
                            columns[i]);
        if (turns != NULL) {
            *out = st_row_shape_of(ST_ROWS_AUTO);
            return STRATA_OK;
        }
    }
    return st_error_remedy(
        st_error(STRATA_E_INPUT,
                 "%s: neither \"messages\", \"conversations\", \"instruction\", \"prompt\" with \"completion\" nor \"text\" "
                 "is a column",
                 place),
        "texts.dataset_info", "name the columns in a file for texts.dataset_info");
}

strata_status st_row_shape_guess(struct st_row_shape *out, const st_json *row, const char *place)
{
    static const char *const columns[] = {"messages", "conversations"};
    const bool object = st_json_type(row) == ST_JSON_OBJECT;

    for (size_t i = 0; object && i < sizeof(columns) / sizeof(columns[0]); i++) {
        const enum st_row_format format = guess_turns(row, columns[i]);

        if (format == ST_ROWS_AUTO)
            continue;
        *out = st_row_shape_of(format);
        out->messages = columns[i];
        return STRATA_OK;
    }
    *out = st_row_shape_of(!object                                                                        ? ST_ROWS_TEXT
                           : st_json_get(row, "instruction") != NULL                                      ? ST_ROWS_ALPACA
                           : st_json_get(row, "prompt") != NULL && st_json_get(row, "completion") != NULL ? ST_ROWS_COMPLETION
                                                                                                          : ST_ROWS_TEXT);
    if (out->format == ST_ROWS_TEXT && (!object || st_json_get(row, "text") == NULL))
        return guess_none(out, row, place, columns);
    return STRATA_OK;
}
