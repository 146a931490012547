/* cli/output.c - see cli/output.h. */
#include "cli/output.h"
#include "core/error.h"

strata_status cli_output_check(const char *option, const char *path, const struct cli_args *args)
{
    const strata_status st = path != NULL ? st_new_file_check(path, args->overwrite) : STRATA_OK;

    return st == STRATA_OK ? st : st_error_prefix(st, "%s", option);
}

strata_status cli_output_create(struct st_new_file *file, const char *option, const char *path, const struct cli_args *args)
{
    const strata_status st =
        path != NULL ? st_new_file_create(file, path, args->overwrite ? ST_NEW_FILE_OVERWRITE : 0) : STRATA_OK;

    return st == STRATA_OK ? st : st_error_prefix(st, "%s", option);
}
