/* core/json/json_edit.h - replaces one member of a JSON object; every other byte of the text stays. */
#ifndef CORE_JSON_JSON_EDIT_H
#define CORE_JSON_JSON_EDIT_H

#include "strata/status.h"

/** Put `value` under the top-level name `key` of valid JSON text: in place of the old value, else as the last member.  It is
 *  indented like the text, by the first member's indent, or put on one line.
 *  @param value  indented by four spaces, its members by eight
 *  @param out  owned by the caller; NUL-terminated
 *  E_CONFIG: the text is not a valid JSON object; `name` is used in errors.
 *  E_NOMEM. */
strata_status st_json_edit(char **out, const char *text, const char *name, const char *key, const char *value);

#endif
