/* cli/commands/plan_picture.c - see plan_picture.h. */
#include "cli/commands/plan_picture.h"
#include "cli/options/output.h"
#include "strata/plan.h"

strata_status cli_plan_picture(const struct strata_plan *plan, const struct cli_args *args)
{
    struct st_new_file file;
    strata_status st;

    if (args->svg == NULL)
        return STRATA_OK;
    if ((st = cli_output_create(&file, "--svg", args->svg, args)) != STRATA_OK)
        return st;
    if ((st = st_new_file_stream(&file)) == STRATA_OK)
        st = strata_plan_draw(plan, file.stream);
    if (st == STRATA_OK)
        return st_new_file_commit(&file);
    st_new_file_abort(&file);
    return st;
}
