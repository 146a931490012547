/* lines.c - see lines.h. */
#include "cli/commands/lines.h"

#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/print.h"

#include <errno.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <unistd.h>

strata_status cli_lines_create(struct cli_lines *lines, const struct cli_args *args)
{
    strata_status st = cli_output_create(&lines->metrics, "--metrics", args->metrics, args);

    lines->json = args->json;
    if (st != STRATA_OK || args->metrics == NULL || (st = st_new_file_stream(&lines->metrics)) != STRATA_OK)
        return st;
    st_json_begin(&lines->metrics_writer, lines->metrics.stream);
    lines->metrics_on = true;
    return STRATA_OK;
}

static void stop(bool *on, char sentence[CLI_SENTENCE_BYTES])
{
    *on = false;
    snprintf(sentence, CLI_SENTENCE_BYTES, "%s", strata_last_error());
    st_log(ST_LOG_WARN, "%s: no more lines are written there, the run goes on", sentence);
}

/* Cuts off an incomplete last line, so that a reader finds whole lines only. */
static void drop_half_line(struct cli_lines *lines)
{
    __fpurge(lines->metrics.stream);
    if (st_fault_refuses("metrics.truncate") || ftruncate(lines->metrics.fd, lines->metrics_bytes) != 0)
        st_log(ST_LOG_WARN, "--metrics %s: its last line is cut off: %s", lines->metrics.path, strerror(errno));
}

void cli_lines_write(struct cli_lines *lines, cli_line_fn *put, void *ctx)
{
    int err = 0;

    if (lines->metrics_on) {
        put(ctx, &lines->metrics_writer);
        err = (int)-st_fault("metrics.write", -st_new_file_flush(&lines->metrics));
    }
    if (err != 0) {
        (void)st_error_errno(err, "--metrics %s: cannot be written", lines->metrics.path);
        stop(&lines->metrics_on, lines->metrics_sentence);
        drop_half_line(lines);
    } else if (lines->metrics_on) {
        lines->metrics_bytes = lseek(lines->metrics.fd, 0, SEEK_CUR);
    }
    if (!lines->stdout_on)
        return;
    put(ctx, &lines->stdout_writer);
    err = st_print_flush(stdout);
    if (err != 0) {
        (void)st_error_errno(err, "cannot write to standard output");
        stop(&lines->stdout_on, lines->stdout_sentence);
    }
}

strata_status cli_lines_begin(struct cli_lines *lines, cli_line_fn *header, void *ctx)
{
    strata_status st;

    if (lines->metrics_on && (st = st_new_file_publish(&lines->metrics)) != STRATA_OK)
        return st_error_prefix(st, "--metrics");
    lines->begun = true;
    lines->stdout_on = lines->json;
    st_json_begin(&lines->stdout_writer, stdout);
    cli_lines_write(lines, header, ctx);
    return STRATA_OK;
}

void cli_lines_end(struct cli_lines *lines)
{
    if (lines->metrics_on && st_new_file_commit(&lines->metrics) != STRATA_OK)
        snprintf(lines->metrics_sentence, sizeof(lines->metrics_sentence), "--metrics %s", strata_last_error());
}

strata_status cli_lines_status(const struct cli_lines *lines)
{
    if (lines->stdout_sentence[0] != '\0')
        return st_error(STRATA_E_IO, "%s", lines->stdout_sentence);
    if (lines->metrics_sentence[0] != '\0')
        return st_error(STRATA_E_IO, "%s: the rest of the run is not in it", lines->metrics_sentence);
    return STRATA_OK;
}

void cli_lines_close(struct cli_lines *lines)
{
    st_new_file_abort(&lines->metrics);
}
