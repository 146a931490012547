/* cli/options/output.h - files that options name and a command makes: refused at once where something lies there, unless
 * --overwrite, and always where it is one of the files that the command reads. */
#ifndef CLI_OPTIONS_OUTPUT_H
#define CLI_OPTIONS_OUTPUT_H

#include "cli/options/args.h"
#include "core/system/file.h"

/** Whether `path` can be made, before anything is; the sentence begins with the option.  NULL: nothing is asked for. */
strata_status cli_output_check(const char *option, const char *path, const struct cli_args *args);
/** The same of a directory that gets a model; it may be the one that --model names. */
strata_status cli_output_check_dir(const char *option, const char *dir, const struct cli_args *args);
/** Begin to make it.  NULL: `file` is left alone. */
strata_status cli_output_create(struct st_new_file *file, const char *option, const char *path, const struct cli_args *args);

#endif
