/* core/json/json_scan.h - checks that text is strict JSON, or Hjson, and finds places in it; used by json.c and json_writer.c. */
#ifndef CORE_JSON_JSON_SCAN_H
#define CORE_JSON_JSON_SCAN_H

#include "core/json/json.h"

#define ST_JSON_DEPTH_MAX 64

/** Where a scan stopped and why. */
struct st_json_place {
    uint32_t line, column; /* from 1; columns count bytes */
    const char *problem;   /* static text; NULL: the text is good */
};

/** Check the whole text (RFC 8259, depth at most ST_JSON_DEPTH_MAX, UTF-8); true if good. */
bool st_json_scan(struct st_json_place *place, const char *text, size_t bytes);

/** The same for a row (st_json_parse_row()): good, too, is what *odd tells of, and control characters in strings.  The text is
 *  changed only if all of it is good. */
bool st_json_scan_row(struct st_json_place *place, struct st_json_odd *odd, char *text, size_t bytes);

/** Check the whole text as Hjson (core/json/json.h says which parts of it), and write what it says as JSON.
 *  @param json        [ST_HJSON_BYTES(bytes)] out
 *  @param json_bytes  out */
#define ST_HJSON_BYTES(bytes) (2 * (bytes) + 8)
bool st_hjson_scan(struct st_json_place *place, const char *text, size_t bytes, char *json, size_t *json_bytes);

/** Find the line and column of member name number `ordinal` (0-based, in document order) of good text. */
void st_json_find_key(struct st_json_place *place, const char *text, size_t bytes, bool hjson, uint64_t ordinal);

#endif
