/* core/json/json.h - strict JSON over cJSON (its one home), the part of Hjson that DeepSpeed's files have, and a writer that
 * allocates nothing.
 *
 * Strict: trailing bytes, duplicate keys, depth over 64, NaN and comments are errors that name the line and column. */
#ifndef CORE_JSON_JSON_H
#define CORE_JSON_JSON_H

#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct cJSON st_json; /* a node; opaque outside json.c */

enum st_json_type { ST_JSON_NULL, ST_JSON_BOOL, ST_JSON_NUMBER, ST_JSON_STRING, ST_JSON_ARRAY, ST_JSON_OBJECT };

/** Parse `bytes` of text. `name` is used in errors.  Source errors: E_CONFIG.  Free with st_json_free. */
strata_status st_json_parse(st_json **out, const char *text, size_t bytes, const char *name);
/** Read a file (at most max_bytes) and parse it; it may begin with a byte order mark.  Missing file, too large, bad JSON:
 * E_CONFIG. */
strata_status st_json_parse_file(st_json **out, const char *path, size_t max_bytes);
/** The same for text that begins at a line and column of a file: errors count from there. */
strata_status st_json_parse_at(st_json **out, const char *text, size_t bytes, const char *name, uint64_t line, uint64_t column);
/** The same for what DeepSpeed reads with hjson: a byte order mark; comments (# and // to the end of a line, or between two
 *  signs as in C); a comma before } or ], and none at the end of a line; names without quotes (letters, digits, _ - .);
 *  'strings'.  Infinity is a number, as in Python's json.  Of Hjson the rest is refused, by its name: strings without quotes or
 *  of several lines, and a text without braces around it. */
strata_status st_hjson_parse(st_json **out, const char *text, size_t bytes, const char *name);
strata_status st_hjson_parse_file(st_json **out, const char *path, size_t max_bytes);

/* What a row has that Python writes and JSON does not have: NaN and Infinity, numbers that are too large or too long for ours,
 * \u0000, halves of surrogate pairs. */
struct st_json_odd {
    uint64_t members;    /* of the outermost object, which have some: bit i is the i-th, the last bit any from the 64th on */
    const char *problem; /* with the first; NULL: there is none */
    bool whole;          /* out: the text is one value to its end, if perhaps with a name twice */
};
/** Parse a row of many, as st_json_parse_at() does, but read as those who wrote it do: control characters may stand in strings,
 *  and what *odd tells of is no error: members that have some hold other values then, and must not be used.
 *  @param out  NULL: the text is only checked, but for duplicate names
 *  @param text  changed where it is odd */
strata_status st_json_parse_row(st_json **out, struct st_json_odd *odd, char *text, size_t bytes, const char *name, uint64_t line,
                                uint64_t column);
void st_json_free(st_json *root);

enum st_json_type st_json_type(const st_json *n);
/** The line on which a value of another notation (core/yaml) stands, from 1; 0: not known, as in JSON. */
uint32_t st_json_line(const st_json *n);
const char *st_json_name(const st_json *n);                    /* key of this member, NULL in arrays */
const st_json *st_json_first(const st_json *n);                /* first child of object or array, or NULL */
const st_json *st_json_next(const st_json *n);                 /* next sibling, or NULL */
const st_json *st_json_get(const st_json *n, const char *key); /* member or NULL */
bool st_json_bool(const st_json *n);
double st_json_number(const st_json *n);
/** How a number was written whose value does not say it: a whole one with a point or exponent (1.0), or an integer from 2^53 on.
 *  NULL: another number. */
const char *st_json_number_text(const st_json *n);
const char *st_json_string(const st_json *n);
/** Levels of objects and arrays, this one included; 0: n is neither.  At most 64. */
uint32_t st_json_depth(const st_json *n);
/** 1 and *out set if n is a number that is a whole value in 0..2^53. */
int st_json_u64(const st_json *n, uint64_t *out);

/** A finite number in the fewest digits that are read back as the same. */
const char *st_json_double_text(char buf[32], double value);

/* Writer: writes into a FILE, handles commas and quoting, allocates nothing, depth at most 32. */
struct st_json_writer {
    FILE *file;
    uint32_t depth;
    uint32_t has_item; /* bit per depth */
};
void st_json_begin(struct st_json_writer *w, FILE *file);
void st_json_object_open(struct st_json_writer *w, const char *key); /* key NULL at top level and in arrays */
void st_json_object_close(struct st_json_writer *w);
void st_json_array_open(struct st_json_writer *w, const char *key);
void st_json_array_close(struct st_json_writer *w);
void st_json_put_string(struct st_json_writer *w, const char *key, const char *value);             /* NULL value: null */
void st_json_put_bytes(struct st_json_writer *w, const char *key, const char *text, size_t bytes); /* a string */
void st_json_put_double(struct st_json_writer *w, const char *key, double value);                  /* non-finite: null */
void st_json_put_real(struct st_json_writer *w, const char *key, double value); /* the same, whole numbers with .0 */
void st_json_put_u64(struct st_json_writer *w, const char *key, uint64_t value);
void st_json_put_bool(struct st_json_writer *w, const char *key, bool value);
/** A whole tree, which is less than 32 - w->depth levels deep. */
void st_json_put_node(struct st_json_writer *w, const char *key, const st_json *node);
/** A value that is JSON text already. */
void st_json_put_text(struct st_json_writer *w, const char *key, const char *json);
void st_json_end_line(struct st_json_writer *w); /* newline and flush */

#endif
