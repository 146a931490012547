/* cli/options/name.h - names of directories that the command line hands to a configuration, where some texts are no names. */
#ifndef CLI_OPTIONS_NAME_H
#define CLI_OPTIONS_NAME_H

#include "strata/status.h"

#include <stdbool.h>

/** Whether a configuration reads the text as something else than a name: "auto", null, a list, a text in quotes. */
bool cli_name_reads_otherwise(const char *text);

/** E_INVAL, with a sentence about --nvme: a configuration cannot hold the name as one of several. */
strata_status cli_name_check_dir(const char *dir);

#endif
