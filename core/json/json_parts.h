/* core/json/json_parts.h - a text whose largest members are read a part at a time: as a tree they would take ten times the memory
 * of their text.
 *
 *     struct st_json_large large[] = {{.key = "model.vocab"}, {.key = "model.merges"}};
 *     st = st_json_parse_large(&root, large, 2, text, bytes, path);
 *     while ((st = st_json_next_part(&part, &large[0])) == STRATA_OK && part != NULL)
 *         ...st_json_free(part);
 */
#ifndef CORE_JSON_JSON_PARTS_H
#define CORE_JSON_JSON_PARTS_H

#include "core/json/json.h"

struct st_json_large {
    const char *key;  /* names from the root, as the text writes them, with points between */
    const char *name; /* of the text, in errors; this and what follows is set by st_json_parse_large() */
    char *at;         /* what comes before the next part: the opening bracket, or a comma.  NULL: nothing is left */
    char open, close;
    uint64_t line, column; /* of `at` */
};

/** Parse a text as st_json_parse() does, but for some of its members: those that are objects or lists, and not empty, are empty
 * in the tree, and st_json_next_part() reads them.
 *  @param large  [count] at most 8; borrow the text and the name
 *  @param text  ends with a NUL; changed while it is read, and has to outlive `large`'s last part */
strata_status st_json_parse_large(st_json **out, struct st_json_large *large, uint32_t count, char *text, size_t bytes,
                                  const char *name);
/** The next members or elements, some thousand, as a tree.  *out NULL: none are left.  E_CONFIG: a name is there twice in it. */
strata_status st_json_next_part(st_json **out, struct st_json_large *large);
/** How many members or elements are left. */
uint64_t st_json_count_left(const struct st_json_large *large);

#endif
