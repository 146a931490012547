/* text/data/rows/row_columns.h - columns that a format does not read: what their names mean, and how many rows have them. */
#ifndef TEXT_DATA_ROWS_ROW_COLUMNS_H
#define TEXT_DATA_ROWS_ROW_COLUMNS_H

#include "text/data/rows/row_shape.h"

#define ST_ROW_UNREAD_MAX  16u
#define ST_ROW_UNREAD_NAME 64u /* with its end; longer names are cut */

/* Columns that hold something which nothing reads.  Starts as {0}. */
struct st_row_unread {
    struct {
        char name[ST_ROW_UNREAD_NAME];
        uint64_t rows, last; /* last: row that was counted for it */
    } columns[ST_ROW_UNREAD_MAX];
    uint32_t count;
    uint64_t others; /* further columns that did not fit */
    uint64_t row;    /* the current one, from 1 */
};

/** False: null, an empty text, list or object. */
bool st_row_holds_something(const st_json *column);
/** Why no column of this name is trained: pictures, pairs of answers, answers that are not wanted.  NULL: nothing is known. */
const char *st_row_column_refusal(const char *name);
/** E_INPUT, after `place`: the row has something in such a column, which the shape does not read, or a message of one that it
 * reads has a picture or a sound as a part.  A label that is true passes; of a shape whose columns somebody named, so do pairs.
 */
strata_status st_row_check_columns(const struct st_row_shape *shape, const st_json *row, const char *place);
/** Count a row, and its columns (of ShareGPT's turns the keys, as "conversations[].key") that hold something and are neither read
 *  nor known to mean nothing for training. */
void st_row_note_columns(struct st_row_unread *u, const struct st_row_shape *shape, const st_json *row);
/** Whether something else reads a key of messages. */
typedef bool st_row_reads_fn(const void *reader, const char *key);
/** Count the keys of messages in the row that was counted last, as "messages[].key". */
void st_row_note_messages(struct st_row_unread *u, const st_json *messages, st_row_reads_fn *reads, const void *reader);
/** Count one more column of the row that was counted last. */
void st_row_note_column(struct st_row_unread *u, const char *name);

#endif
