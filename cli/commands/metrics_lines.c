/* cli/commands/metrics_lines.c - see metrics_lines.h. */
#include "cli/commands/metrics_lines.h"
#include "cli/commands/commands.h"

#include "cli/options/output.h"
#include "cli/report/metrics.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/print.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>
#include <unistd.h>

#define COPIED_BYTES 65536u

/* Bytes of whole lines among the first `most` of a file. */
static strata_status whole_lines(uint64_t *out, int fd, const char *path, uint64_t most)
{
    char byte = '\0';
    strata_status st = STRATA_OK;

    for (*out = most; *out > 0 && st == STRATA_OK; --*out)
        if ((st = st_file_read_at(fd, &byte, 1, *out - 1, path)) == STRATA_OK && byte == '\n')
            break;
    return st;
}

static strata_status copy_lines(struct cli_lines *lines, int fd, const char *path, uint64_t bytes)
{
    char buf[COPIED_BYTES];
    strata_status st = STRATA_OK;

    for (uint64_t at = 0; at < bytes && st == STRATA_OK; at += COPIED_BYTES) {
        const uint64_t left = bytes - at, count = left < COPIED_BYTES ? left : COPIED_BYTES;

        if ((st = st_file_read_at(fd, buf, count, at, path)) == STRATA_OK)
            st = st_new_file_write_at(&lines->metrics, buf, count, at);
    }
    if (st == STRATA_OK && (st_fault_refuses("metrics.seek") || lseek(lines->metrics.fd, (off_t)bytes, SEEK_SET) < 0))
        st = st_error_errno(errno, "%s", path);
    lines->metrics_bytes = (off_t)bytes;
    return st;
}

/* Whether bytes [at, end) of a file begin with a text, as far as there are any. */
static strata_status begins_with(bool *out, const char *text, int fd, const char *path, uint64_t at, uint64_t end)
{
    char buf[64];
    const size_t length = strlen(text), count = end - at < length ? (size_t)(end - at) : length;
    strata_status st = STRATA_OK;

    assert(length <= sizeof(buf));
    if (count > 0)
        st = st_file_read_at(fd, buf, count, at, path);
    *out = st == STRATA_OK && memcmp(buf, text, count) == 0;
    return st;
}

/* Every run's metrics begin with its header, which names the run. */
static strata_status find_other_header(const char **why, int fd, const char *path, uint64_t have, const char *run)
{
    char of_run[48];
    bool is = true;
    strata_status st = begins_with(&is, CLI_METRICS_ID, fd, path, 0, have);

    if (st == STRATA_OK && !is)
        *why = "it does not begin with the header of a run";
    if (st != STRATA_OK || !is)
        return st;
    snprintf(of_run, sizeof(of_run), CLI_METRICS_ID "\"%.16s\"", run);
    if ((st = begins_with(&is, of_run, fd, path, 0, have)) == STRATA_OK && !is)
        *why = "its header names another run";
    return st;
}

/* What a file shows of being another run's; NULL: nothing.  Of the checkpoint's run `bytes` were there before its summary, so
 * that fewer which have one are of a run that has ended. */
static strata_status find_foreign(const char **why, int fd, const char *path, uint64_t have, uint64_t bytes, uint64_t whole,
                                  const char *run)
{
    uint64_t last = 0;
    bool is = true;
    strata_status st;

    *why = NULL;
    if ((st = find_other_header(why, fd, path, have, run)) != STRATA_OK || *why != NULL || have >= bytes || whole == 0 ||
        (st = whole_lines(&last, fd, path, whole - 1)) != STRATA_OK)
        return st;
    st = begins_with(&is, "{\"summary\":", fd, path, last, whole);
    if (st == STRATA_OK && is)
        *why = "it has the summary of a shorter run";
    return st;
}

/* Puts the lines of the run's earlier part into the new file.  What came after the checkpoint comes again; a power cut may have
 * taken lines that came before it. */
static strata_status continue_file(struct cli_lines *lines, const char *path, uint64_t bytes, const char *run)
{
    struct st_file_identity file;
    const char *foreign = NULL;
    uint64_t whole = 0;
    int fd;
    strata_status st = st_file_open(&fd, &file, path, STRATA_E_INPUT);

    if (st != STRATA_OK)
        return st;
    if ((st = whole_lines(&whole, fd, path, file.bytes < bytes ? file.bytes : bytes)) == STRATA_OK)
        st = find_foreign(&foreign, fd, path, file.bytes, bytes, whole, run);
    if (st == STRATA_OK && (foreign != NULL || (file.bytes >= bytes && whole != bytes)) && lines->overwrite) {
        whole = 0; /* another run's: it is replaced */
        lines->continued = false;
    } else if (st == STRATA_OK && file.bytes >= bytes && whole != bytes) {
        st = st_error(STRATA_E_INPUT,
                      "%s is not what the checkpoint's run wrote, as no line ends at byte %llu: name another, or add --overwrite",
                      path, (unsigned long long)bytes);
    } else if (st == STRATA_OK && foreign != NULL) {
        st = st_error(STRATA_E_INPUT, "%s is not what the checkpoint's run wrote, as %s: name another, or add --overwrite", path,
                      foreign);
    }
    if (st == STRATA_OK && lines->continued && file.bytes < bytes)
        st_log(ST_LOG_NOTICE, "--metrics %s: keeping %llu of %llu bytes of the run's earlier part", path,
               (unsigned long long)whole, (unsigned long long)bytes);
    if (st == STRATA_OK)
        st = copy_lines(lines, fd, path, whole);
    close(fd);
    return st;
}

/* Whether the file's lines go on. */
static strata_status finds_earlier(bool *out, const struct cli_args *args, uint64_t earlier)
{
    *out = false;
    return args->metrics == NULL || earlier == 0 ? STRATA_OK : st_file_find(out, args->metrics);
}

strata_status cli_lines_check(const struct cli_args *args, uint64_t earlier, bool again)
{
    struct cli_args going_on = *args;
    bool found;
    const strata_status st = finds_earlier(&found, args, earlier);

    going_on.overwrite = args->overwrite || found || again;
    return st != STRATA_OK ? st : cli_output_check("--metrics", args->metrics, &going_on);
}

strata_status cli_lines_create(struct cli_lines *lines, const struct cli_args *args, uint64_t earlier, const char *run,
                               bool again)
{
    struct cli_args going_on = *args;
    strata_status st = finds_earlier(&lines->continued, args, earlier);

    lines->json = args->json;
    lines->overwrite = args->overwrite;
    lines->again = again && !args->overwrite;
    going_on.overwrite = args->overwrite || lines->continued || again;
    if (st == STRATA_OK)
        st = cli_output_create(&lines->metrics, "--metrics", args->metrics, &going_on);
    if (st == STRATA_OK && lines->continued && (st = continue_file(lines, args->metrics, earlier, run)) != STRATA_OK)
        st = st_error_prefix(st, "--metrics");
    if (st != STRATA_OK || args->metrics == NULL || (st = st_new_file_stream(&lines->metrics)) != STRATA_OK)
        return st;
    st_json_begin(&lines->metrics_writer, lines->metrics.stream);
    lines->metrics_on = true;
    return STRATA_OK;
}

strata_status cli_lines_cut(struct cli_lines *lines, uint64_t earlier)
{
    const bool cut = lines->continued && (uint64_t)lines->metrics_bytes > earlier;

    lines->continued = lines->continued && earlier > 0 && lines->metrics_bytes > 0; /* else it begins anew, with its header */
    if (!cut)
        return STRATA_OK;
    if (st_fault_refuses("metrics.cut") || ftruncate(lines->metrics.fd, (off_t)earlier) != 0 ||
        lseek(lines->metrics.fd, (off_t)earlier, SEEK_SET) < 0)
        return st_error_errno(errno, "--metrics %s cannot be truncated", lines->metrics.path);
    lines->metrics_bytes = (off_t)earlier;
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

static void write_metrics(struct cli_lines *lines, cli_line_fn *put, void *ctx)
{
    int err;

    if (!lines->metrics_on)
        return;
    put(ctx, &lines->metrics_writer);
    err = (int)-st_fault("metrics.write", -st_new_file_flush(&lines->metrics));
    if (err == 0) {
        lines->metrics_bytes = lseek(lines->metrics.fd, 0, SEEK_CUR);
        return;
    }
    (void)st_error_errno(err, "--metrics %s cannot be written", lines->metrics.path);
    stop(&lines->metrics_on, lines->metrics_sentence);
    drop_half_line(lines);
}

static void write_stdout(struct cli_lines *lines, cli_line_fn *put, void *ctx)
{
    int err;

    if (!lines->stdout_on)
        return;
    put(ctx, &lines->stdout_writer);
    if ((err = st_print_flush(stdout)) == 0)
        return;
    (void)st_error_errno(err, CLI_STDOUT_FAILS);
    stop(&lines->stdout_on, lines->stdout_sentence);
}

void cli_lines_write(struct cli_lines *lines, cli_line_fn *put, void *ctx)
{
    write_metrics(lines, put, ctx);
    write_stdout(lines, put, ctx);
}

strata_status cli_lines_begin(struct cli_lines *lines, cli_line_fn *header, void *ctx)
{
    strata_status st;

    if (lines->metrics_on && lines->again && (st = cli_output_set_aside("--metrics", lines->metrics.path)) != STRATA_OK)
        return st;
    if (lines->metrics_on && (st = st_new_file_publish(&lines->metrics)) != STRATA_OK)
        return st_error_prefix(st, "--metrics");
    lines->begun = true;
    lines->stdout_on = lines->json;
    st_json_begin(&lines->stdout_writer, stdout);
    if (!lines->continued)
        write_metrics(lines, header, ctx);
    write_stdout(lines, header, ctx);
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
