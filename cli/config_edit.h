/* cli/config_edit.h - one section of a JSON configuration is replaced; every other byte of the file stays. */
#ifndef CLI_CONFIG_EDIT_H
#define CLI_CONFIG_EDIT_H

#include "core/file.h"
#include "strata/status.h"
#include <stddef.h>

/** Put the object `value` under the top-level name `key` of good JSON text: in place of what is there, else as the last member.
 *  It is indented as the text is: by what stands before the first member, or on one line.
 *  @param value  indented by four spaces, its members by eight
 *  @param out  owned by the caller; NUL-terminated
 *  E_CONFIG: the text is no good JSON object; `name` is used in errors.  E_NOMEM. */
strata_status cli_config_edit_text(char **out, const char *text, const char *name, const char *key, const char *value);

/** The same for a file, by a new one beside it that takes its name (and its mode) once it is whole.  A link is followed. */
strata_status cli_config_edit_file(const char *path, const char *key, const char *value);

/** Write and complete a file that was begun; on failure nothing of it is left. */
strata_status cli_config_write_file(struct st_new_file *file, const char *text);

#endif
