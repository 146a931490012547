/* text/data/rows/row_reader.h - rows of a file, one by one: a JSON array's elements, also where a .json file has it as "data" of
 * an object, or values separated by white space (JSONL).
 *
 * Memory is bounded by the largest row, and a row by ST_ROW_BYTES_MAX. */
#ifndef TEXT_DATA_ROWS_ROW_READER_H
#define TEXT_DATA_ROWS_ROW_READER_H

#include "core/json/json.h"
#include "core/system/file.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_ROW_BYTES_MAX (64u << 20)

struct st_rows;

/** "-": standard input.  E_INPUT: missing, or a directory. */
strata_status st_rows_open(struct st_rows **out, const char *path);
void st_rows_close(struct st_rows *r); /* NULL: nothing */

/** The next row, parsed; freed by the caller (st_json_free).  *out NULL: there is none, and the file was not changed meanwhile.
 *  E_INPUT: not JSON (the sentence has file, line and column), or a row over ST_ROW_BYTES_MAX.  E_IO, E_NOMEM. */
strata_status st_rows_next(struct st_rows *r, st_json **out);
/** Whether the last call refused only one row: the next call gives the one behind it. */
bool st_rows_goes_on(const struct st_rows *r);
/** What the last row has that JSON does not have. */
const struct st_json_odd *st_rows_odd(const struct st_rows *r);
/** Rows from here to the end; a bad row counts where the rows behind it can be read.  E_INPUT, E_IO, E_NOMEM. */
strata_status st_rows_count(struct st_rows *r, uint64_t *count);

/** Which file is read, in which state; borrowed. */
const struct st_file_identity *st_rows_identity(const struct st_rows *r);
/** E_INPUT: another file than that, or it was written to since.  E_IO. */
strata_status st_rows_check_same(const struct st_rows *r, const struct st_file_identity *was);
/** Whether opening the file again reads the same rows again: no pipe. */
bool st_rows_again(const struct st_rows *r);
/** "FILE:LINE: row N", of the last row; borrowed until the next call. */
const char *st_rows_place(struct st_rows *r);
/** Whether the rows are those of "data" in an object that holds something else, too; known with the last row. */
bool st_rows_beside(const struct st_rows *r);

#endif
