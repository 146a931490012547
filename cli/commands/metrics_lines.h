/* cli/commands/metrics_lines.h - a run's JSON lines as they are written: to the file of --metrics and, with --json, to standard output.
 *
 * The file grows from its header on, so that it can be watched.  Lines that cannot be written do not end the run: no more are
 * written there, with a warning at once, and the run ends with what ended them. */
#ifndef CLI_COMMANDS_METRICS_LINES_H
#define CLI_COMMANDS_METRICS_LINES_H

#include "cli/options/args.h"
#include "core/json/json.h"
#include "core/system/file.h"
#include <sys/types.h>

#define CLI_SENTENCE_BYTES 1024

struct cli_lines {
    struct st_new_file metrics;
    off_t metrics_bytes;        /* of whole lines */
    bool metrics_on, stdout_on; /* whether lines are still written there */
    bool json;
    bool overwrite;
    bool continued; /* --metrics has the lines of the run's earlier part, and no other header */
    bool again;     /* --metrics has the lines of an attempt that saved nothing: they get another name */
    bool begun;     /* there is a header, so a summary must follow */
    char metrics_sentence[CLI_SENTENCE_BYTES], stdout_sentence[CLI_SENTENCE_BYTES]; /* the errors that ended this */
    struct st_json_writer metrics_writer, stdout_writer;
};
#define CLI_LINES_NONE ((struct cli_lines){.metrics = {.fd = -1}})

/* Writes one line. */
typedef void cli_line_fn(void *ctx, struct st_json_writer *w);

/** Whether --metrics can be written; creates nothing.
 *  @param earlier  bytes that a run which resumes had written there when it was saved: a file that exists goes on behind them;
 *                  0: none
 *  @param again    no line there is of the run that begins or goes on, perhaps not for the first time: a file that exists is set
 *                  aside */
strata_status cli_lines_check(const struct cli_args *args, uint64_t earlier, bool again);
/** Begin --metrics under a temporary name, which keeps other runs from writing it.
 *  @param run  name of the run whose lines `earlier` counts */
strata_status cli_lines_create(struct cli_lines *lines, const struct cli_args *args, uint64_t earlier, const char *run,
                               bool again);
/** Before that: of the lines of the earlier part only those that were written when an older checkpoint was saved. */
strata_status cli_lines_cut(struct cli_lines *lines, uint64_t earlier);
/** Give --metrics its name and write the header. */
strata_status cli_lines_begin(struct cli_lines *lines, cli_line_fn *header, void *ctx);
void cli_lines_write(struct cli_lines *lines, cli_line_fn *put, void *ctx);
/** After the last line. */
void cli_lines_end(struct cli_lines *lines);
/** E_IO with the sentence of what could not be written, standard output first. */
strata_status cli_lines_status(const struct cli_lines *lines);
void cli_lines_close(struct cli_lines *lines);

#endif
