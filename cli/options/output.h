/* cli/options/output.h - output files that options name: refused at once if the name is taken (unless --overwrite), and always if
 * it is a file that the command reads. */
#ifndef CLI_OPTIONS_OUTPUT_H
#define CLI_OPTIONS_OUTPUT_H

#include "cli/options/args.h"
#include "core/system/file.h"

/** Check that `path` can be created, before anything is; the error begins with the option.  NULL: no output is requested. */
strata_status cli_output_check(const char *option, const char *path, const struct cli_args *args);
/** The same for a directory that a model is written to; it may be the one that --model names. */
strata_status cli_output_check_dir(const char *option, const char *dir, const struct cli_args *args);
/** E_INPUT if --overwrite replaces the tokenizer there, and the command reads one of its files for something else. */
strata_status cli_output_check_replaced(const char *option, const char *dir, const struct cli_args *args);
/** E_INPUT if a file that is there, and is to be changed, lies in a checkpoint. */
strata_status cli_output_check_place(const char *option, const char *path);
/** Begin to write it.  NULL: `file` is not touched. */
strata_status cli_output_create(struct st_new_file *file, const char *option, const char *path, const struct cli_args *args);

/** E_INPUT if a directory for checkpoints, or for something else that is new, is a checkpoint, or lies in one. */
strata_status cli_output_check_save(const char *option, const char *dir);

/** Rename what an earlier attempt of the job left under the name; a notice says how it is called now. */
strata_status cli_output_set_aside(const char *option, const char *path);

#endif
