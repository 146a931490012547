/* cli/commands/config_edit.h - one section of a JSON configuration is replaced; every other byte of the file stays. */
#ifndef CLI_COMMANDS_CONFIG_EDIT_H
#define CLI_COMMANDS_CONFIG_EDIT_H

#include "core/system/file.h"
#include "strata/status.h"
#include <stddef.h>

/** st_json_edit() of a file, by a new one beside it that takes its name (and its mode) once it is whole.  A link is followed. */
strata_status cli_config_edit_file(const char *path, const char *key, const char *value);

/** Write and complete a file that was begun; on failure nothing of it is left. */
strata_status cli_config_write_file(struct st_new_file *file, const char *text);

#endif
