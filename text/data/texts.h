/* text/data/texts.h - text files, read one after another. */
#ifndef TEXT_DATA_TEXTS_H
#define TEXT_DATA_TEXTS_H

#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_TEXTS_PART_BYTES 16384u

/* Receives texts: `part` is called any number of times for each text, then `end`. */
struct st_texts {
    const char *const *paths; /* [count] "-": standard input; texts may be pipes */
    uint32_t count;
    strata_status (*part)(void *context, const char *text, size_t bytes); /* at most ST_TEXTS_PART_BYTES */
    strata_status (*end)(void *context);
    void *context;
    bool keep_mark; /* a byte order mark that a text begins with is part of it */
};
/** What messages call them: "a.txt", "standard input", "a.txt and 2 more". */
void st_texts_name(char *out, size_t room, const char *const *paths, uint32_t count);
/** Whether a file of this name holds rows, as JSON. */
bool st_texts_are_rows(const char *path);
/** E_INPUT if its name says that it is a table (.parquet, .csv, ...) or compressed: the sentence says what to do. */
strata_status st_texts_check_kind(const char *path);
/** Rows, too, are read as they are written, which a notice says of each file.
 *  E_INPUT: a file is missing, cannot be read, or changed while it was read; else what `part` and `end` returned. */
strata_status st_texts_read(const struct st_texts *t);

#endif
