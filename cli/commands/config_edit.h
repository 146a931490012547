/* cli/commands/config_edit.h - replaces one section of a JSON configuration; every other byte of the file stays. */
#ifndef CLI_COMMANDS_CONFIG_EDIT_H
#define CLI_COMMANDS_CONFIG_EDIT_H

#include "core/system/file.h"
#include "strata/status.h"
#include <stddef.h>

/** st_json_edit() for a file: writes a new file beside it, which takes its name (and mode) once it is complete.  Follows a
 *  link. */
strata_status cli_config_edit_file(const char *path, const char *key, const char *value);

/** Whether that could be done: with what the same would fail.  Changes nothing. */
strata_status cli_config_edit_check(const char *path, const char *key);

/** Write a file that was begun and commit it; on failure nothing is left. */
strata_status cli_config_write_file(struct st_new_file *file, const char *text);

#endif
