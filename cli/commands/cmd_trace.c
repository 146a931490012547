/* cli/commands/cmd_trace.c - draws one step of a trace. */
#include "cli/commands/commands.h"
#include "cli/options/output.h"
#include "core/picture/trace_read.h"

#define WIDTH 1100.0

static void draw(struct st_trace_step *step, FILE *file, double width)
{
    struct st_svg svg;

    st_svg_begin(&svg, file, width, st_lanes_height(&step->lanes), "One training step, lane by lane",
                 "What ran when in a step of training, a row per lane, and what nothing could run for");
    st_lanes_draw(&svg, &step->lanes, 0);
    st_svg_end(&svg);
}

static strata_status write_picture(struct st_trace_step *step, const struct cli_args *args)
{
    struct st_new_file file;
    strata_status st = cli_output_create(&file, "--svg", args->svg, args);

    if (st != STRATA_OK)
        return st;
    if ((st = st_new_file_stream(&file)) != STRATA_OK) {
        st_new_file_abort(&file);
        return st;
    }
    draw(step, file.stream, args->width > 0 ? (double)args->width : WIDTH);
    return st_new_file_commit(&file);
}

int cmd_trace(const struct cli_args *args)
{
    struct st_trace_step step = {0};
    strata_status st = cli_output_check("--svg", args->svg, args);

    if (st == STRATA_OK)
        st = st_trace_step_read(&step, args->positional.items[0], args->step);
    if (st == STRATA_OK)
        st = write_picture(&step, args);
    st_trace_step_free(&step);
    return st == STRATA_OK ? 0 : cli_fail(st);
}
