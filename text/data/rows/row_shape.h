/* text/data/rows/row_shape.h - what the columns of a row mean: a text, or a conversation for a chat template.
 *
 * Alpaca's and ShareGPT's shapes are read as LLaMA-Factory reads them, so that its dataset_info.json serves here. */
#ifndef TEXT_DATA_ROWS_ROW_SHAPE_H
#define TEXT_DATA_ROWS_ROW_SHAPE_H

#include "core/json/json.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

enum st_row_format {
    ST_ROWS_AUTO,
    ST_ROWS_TEXT,
    ST_ROWS_MESSAGES,
    ST_ROWS_ALPACA,
    ST_ROWS_SHAREGPT,
    ST_ROWS_COMPLETION,
    ST_ROWS_FORMATS
};
/** False: no format has this name ("auto", "text", "messages", "alpaca", "sharegpt", "prompt-completion"). */
bool st_row_format_find(enum st_row_format *out, const char *name);

/* Names of columns and tags; NULL: there is none, and rows are read as if it was empty.  Borrowed. */
struct st_row_shape {
    enum st_row_format format;
    bool named;                                   /* a user named the columns: each must be in some row */
    bool joined;                                  /* alpaca: query follows prompt as it is, without a line's end */
    const char *text;                             /* text */
    const char *messages, *system, *tools;        /* messages, sharegpt; the last two of alpaca, too */
    const char *prompt, *query, *reply, *history; /* alpaca; prompt and reply of prompt-completion, too */
    const char *role, *content;                   /* sharegpt: of a turn */
    const char *user, *assistant, *observation, *function, *system_role;
};
/** The usual names of a format. */
struct st_row_shape st_row_shape_of(enum st_row_format format);
/** The format of a row by its columns: "messages" or "conversations" (turns with "role", or "from"), "instruction", "prompt" with
 *  "completion", "text".
 *  ST_ROWS_AUTO: there are no turns to tell it by, and the row is empty.  E_INPUT, after `place`: none of them. */
strata_status st_row_shape_guess(struct st_row_shape *out, const st_json *row, const char *place);

/* The columns that a shape names, a bit each. */
#define ST_ROW_COLUMNS_ALL UINT32_MAX
/** Whether it is one of them. */
bool st_row_shape_reads(const struct st_row_shape *shape, const char *column);
/** The columns of `lacking` that this row does not have either. */
uint32_t st_row_columns_lacking(const struct st_row_shape *shape, const st_json *row, uint32_t lacking);
/** The first of them that has a name; NULL: none has. */
const char *st_row_column_lacking(const struct st_row_shape *shape, uint32_t lacking);

/* Why a row is left out. */
enum st_row_odd {
    ST_ROW_FINE,
    ST_ROW_BAD,       /* it cannot be read: not JSON, or a column that is missing or holds something else than it should */
    ST_ROW_EMPTY,     /* no text, or no turns */
    ST_ROW_NO_ANSWER, /* alpaca: the reply is not a text */
    ST_ROW_TURNS,     /* sharegpt: another tag than expected, or a last turn without an answer */
    ST_ROW_REFUSED,   /* the template refuses it */
    ST_ROW_UNTRAINED, /* no token would be trained */
    ST_ROW_ODDS
};
const char *st_row_odd_text(enum st_row_odd odd);
/** The same as a key of JSON. */
const char *st_row_odd_key(enum st_row_odd odd);

#define ST_ROW_UNREAD_OWN 2u

struct st_sample {
    const char *text;                      /* a text; NULL: a conversation */
    bool completes;                        /* it is a prompt and its completion, which is trained: */
    size_t prompt_bytes;                   /* of the text */
    const char *unread[ST_ROW_UNREAD_OWN]; /* columns of the shape that this row has and nothing reads; NULL behind them */
    const st_json *messages;               /* borrowed from the row or from `made` */
    const st_json *variables;              /* NULL: none */
    st_json *made;
    char *joined;
    uint32_t functions; /* sharegpt: turns that are calls */
    uint32_t excluded;  /* answers that the row itself excludes from training */
};
/** @param out  freed by st_sample_free(), also where *odd is not ST_ROW_FINE; then it has nothing
 *  @param odd  ST_ROW_TURNS, ST_ROW_NO_ANSWER: strata_last_error() has the turn that may not stand there, or the column
 *  E_INPUT, after `place`: a column is missing or holds something else than it should.  E_NOMEM. */
strata_status st_row_read(struct st_sample *out, enum st_row_odd *odd, const struct st_row_shape *shape, const st_json *row,
                          const char *place);
void st_sample_free(struct st_sample *s);

/** E_INPUT, after `place`, if a column of the shape holds what `odd` names. */
strata_status st_row_check_odd(const struct st_row_shape *shape, const st_json *row, const struct st_json_odd *odd,
                               const char *place);

#endif
