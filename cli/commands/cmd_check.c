/* cli/commands/cmd_check.c - every value of a configuration: where it comes from and what it means here. */
#include "cli/commands/commands.h"
#include "core/base/error.h"
#include "core/base/page.h"
#include "core/base/print.h"
#include "core/json/json.h"
#include "offload/config/config.h"

#include <stdio.h>
#include <string.h>

#define COLUMNS_AFTER 60u /* of the path: value, origin, verdict and the beginning of a reason */

static const char *origin_name(enum st_config_origin origin)
{
    static const char *const names[] = {"default", "file", "auto", "command line", "derived"};

    return names[origin];
}

static const char *verdict_name(enum st_config_verdict verdict)
{
    static const char *const names[] = {"honoured", "notice", "rejected"};

    return names[verdict];
}

static int path_width(const struct st_config_source *source)
{
    size_t width = 0;

    for (uint32_t i = 0; i < st_config_row_count(source); i++) {
        const size_t length = strlen(st_config_row_at(source, i)->path);

        width = length > width ? length : width;
    }
    return (int)width;
}

/* A line for each key, or two where the table is wider than the terminal. */
static void print_text(const struct st_config_source *source)
{
    FILE *const file = st_page_open(stdout);
    const int width = path_width(source);
    const bool narrow = file != stdout && (size_t)width + COLUMNS_AFTER > st_print_width(stdout);

    for (uint32_t i = 0; i < st_config_row_count(source); i++) {
        const struct st_config_row *row = st_config_row_at(source, i);
        const char *reason = row->reason != NULL ? row->reason : "", *before = row->reason != NULL ? ": " : "";

        if (narrow)
            st_print(file, "%s = %s\n    %s, %s%s%s\n", row->path, row->value, origin_name(row->origin),
                     verdict_name(row->verdict), before, reason);
        else
            st_print(file, "%-*s  %-14s %-12s  %s%s%s\n", width, row->path, row->value, origin_name(row->origin),
                     verdict_name(row->verdict), before, reason);
    }
    st_page_close(file, stdout);
}

static void print_json(const struct st_config_source *source, bool valid)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_bool(&w, "valid", valid);
    st_json_array_open(&w, "values");
    for (uint32_t i = 0; source != NULL && i < st_config_row_count(source); i++) {
        const struct st_config_row *row = st_config_row_at(source, i);

        st_json_object_open(&w, NULL);
        st_json_put_string(&w, "path", row->path);
        st_json_put_string(&w, "value", row->value);
        st_json_put_string(&w, "origin", origin_name(row->origin));
        st_json_put_string(&w, "verdict", verdict_name(row->verdict));
        st_json_put_string(&w, "reason", row->reason);
        st_json_object_close(&w);
    }
    st_json_array_close(&w);
    st_json_array_open(&w, "problems");
    for (uint32_t i = 0; source != NULL && i < st_config_problem_count(source); i++)
        st_json_put_string(&w, NULL, st_config_problem_at(source, i));
    st_json_array_close(&w);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

/* All problems, or the one sentence of a file that could not be read at all. */
static int print_problems(const struct st_config_source *source, strata_status st, const char *file)
{
    if (source == NULL || st_config_problem_count(source) == 0)
        return cli_fail(st);
    fflush(stdout);
    for (uint32_t i = 0; i < st_config_problem_count(source); i++) {
        const char *problem = st_config_problem_at(source, i);
        const bool named = strncmp(problem, file, strlen(file)) == 0; /* as the parser's are */

        st_page_print(stderr, "strata: error: %s%s%s\n", named ? "" : file, named ? "" : ": ", problem);
    }
    return strata_status_exit_code(st);
}

int cmd_check(const struct cli_args *args)
{
    const struct st_config_opts opts = {
        .file = args->config_file != NULL ? args->config_file : args->positional.items[0],
        .overrides = args->overrides.items,
        .override_count = args->overrides.count,
        .allow_unknown = args->allow_unknown,
        .max_steps = args->max_steps,
    };
    struct st_config_source *source = NULL;
    struct st_config config;
    const strata_status st = st_config_load(&config, &source, &opts);
    int code = 0;

    if (args->json)
        print_json(source, st == STRATA_OK);
    else if (source != NULL)
        print_text(source);
    if (st != STRATA_OK)
        code = print_problems(source, st, opts.file);
    st_config_source_free(source);
    return code;
}
