/* monitor.c - see monitor.h. */
#include "cli/commands/monitor.h"

#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/trace/tfevents.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CSV_BYTES_MAX (UINT64_C(1) << 30) /* of a file that goes on */

static const struct {
    const char *tag, *file, *header;
    enum strata_metric column;
} scalars[CLI_MONITOR_SCALARS] = {
    {"Train/Samples/train_loss", "Train_Samples_train_loss.csv", "step,train_loss\r\n", STRATA_METRIC_LOSS},
    {"Train/Samples/lr", "Train_Samples_lr.csv", "step,lr\r\n", STRATA_METRIC_LR},
    {"Train/Samples/grad_norm", "Train_Samples_grad_norm.csv", "step,grad_norm\r\n", STRATA_METRIC_GRAD_NORM},
    {"Train/Samples/loss_scale", "Train_Samples_loss_scale.csv", "step,loss_scale\r\n", STRATA_METRIC_LOSS_SCALE},
};

static bool is_wanted(const struct cli_monitor *m, int scalar)
{
    return m->scales || scalars[scalar].column != STRATA_METRIC_LOSS_SCALE;
}

static double now(void)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_REALTIME, &t); /* a clock that every machine has */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- beginning --- */

static strata_status place(char path[ST_PATH_MAX], const struct strata_monitor *monitor, const char *name)
{
    char dir[ST_PATH_MAX];
    strata_status st = STRATA_OK;

    if (monitor->output_path[0] == '\0')
        snprintf(dir, sizeof(dir), "%s", monitor->job_name[0] != '\0' ? monitor->job_name : ".");
    else if ((st = cli_output_check_save("output_path", monitor->output_path)) == STRATA_OK)
        st = st_path_join(dir, monitor->output_path, monitor->job_name);
    return st == STRATA_OK ? st_path_join(path, dir, name) : st;
}

static strata_status begin_file(struct cli_monitor_file *f, const char *path, bool overwrite)
{
    const strata_status st =
        st_new_file_create(&f->file, path, ST_NEW_FILE_PARENTS | (overwrite ? (unsigned)ST_NEW_FILE_OVERWRITE : 0u));

    f->on = st == STRATA_OK;
    return st;
}

/* A name that no other attempt has. */
static strata_status open_events(struct cli_monitor *m, const struct strata_monitor *monitor)
{
    char host[65] = "", name[160], path[ST_PATH_MAX];
    strata_status st;

    if (st_fault_refuses("monitor.host") || gethostname(host, sizeof(host) - 1) != 0)
        snprintf(host, sizeof(host), "host");
    snprintf(name, sizeof(name), "events.out.tfevents.%010" PRIu64 ".%s.%ld.0", (uint64_t)now(), host, (long)getpid());
    if ((st = place(path, monitor, name)) == STRATA_OK)
        st = begin_file(&m->events, path, false);
    return st == STRATA_OK ? st : st_error_prefix(st, "tensorboard");
}

static strata_status open_csv(struct cli_monitor *m, const struct strata_monitor *monitor, int scalar, bool overwrite)
{
    char path[ST_PATH_MAX];
    strata_status st = place(path, monitor, scalars[scalar].file);

    if (st == STRATA_OK)
        st = begin_file(&m->csv[scalar], path, overwrite || m->goes_on || m->again);
    return st == STRATA_OK ? st : st_error_prefix(st, "csv_monitor");
}

strata_status cli_monitor_open(struct cli_monitor *m, const struct cli_monitor_opts *opts)
{
    strata_status st = STRATA_OK;

    m->goes_on = opts->goes_on;
    m->again = opts->again;
    m->overwrite = opts->overwrite;
    m->scales = opts->scales;
    if (opts->tensorboard.enabled)
        st = open_events(m, &opts->tensorboard);
    for (int i = 0; i < CLI_MONITOR_SCALARS && st == STRATA_OK && opts->csv.enabled; i++)
        if (is_wanted(m, i))
            st = open_csv(m, &opts->csv, i, opts->overwrite);
    return st;
}

static strata_status append(struct cli_monitor_file *f, const void *bytes, size_t count)
{
    const strata_status st = st_new_file_write_at(&f->file, bytes, count, f->bytes);

    if (st == STRATA_OK)
        f->bytes += count;
    return st;
}

/* Rows of the run's earlier part, up to the checkpoint's sequences; what came after them comes again.
 * *all: there is nothing else in the file. */
static strata_status keep_rows(struct cli_monitor_file *f, uint64_t sequences, bool *all)
{
    char *text, *line;
    bool there;
    uint64_t bytes;
    strata_status st = st_file_find(&there, f->file.path);

    *all = true;
    if (st != STRATA_OK || !there || (st = st_file_read_text(&text, &bytes, f->file.path, CSV_BYTES_MAX)) != STRATA_OK)
        return st;
    line = text;
    for (char *end; st == STRATA_OK && (end = strchr(line, '\n')) != NULL; line = end + 1) {
        char *behind;
        const unsigned long long step = strtoull(line, &behind, 10);

        if (behind > line && *behind == ',' && step <= sequences)
            st = append(f, line, (size_t)(end + 1 - line));
    }
    *all = f->bytes == bytes; /* its header and rows */
    free(text);
    return st;
}

static strata_status begin_csv(struct cli_monitor *m, int scalar, uint64_t sequences)
{
    struct cli_monitor_file *f = &m->csv[scalar];
    strata_status st = append(f, scalars[scalar].header, strlen(scalars[scalar].header));
    bool all = !m->again;

    if (st == STRATA_OK && m->goes_on)
        st = keep_rows(f, sequences, &all);
    if (st == STRATA_OK && !all && !m->overwrite) /* it may be another run's */
        st = cli_output_set_aside("csv_monitor", f->file.path);
    return st == STRATA_OK ? st_new_file_publish(&f->file) : st;
}

static strata_status begin_events(struct cli_monitor *m, uint64_t sequences)
{
    unsigned char record[ST_TF_RECORD_BYTES];
    strata_status st = append(&m->events, record, st_tf_version(record, now()));

    if (st == STRATA_OK && (m->goes_on || m->again))
        st = append(&m->events, record, st_tf_restart(record, now(), sequences + 1));
    return st == STRATA_OK ? st_new_file_publish(&m->events.file) : st;
}

strata_status cli_monitor_begin(struct cli_monitor *m, uint64_t sequences)
{
    strata_status st = m->events.on ? begin_events(m, sequences) : STRATA_OK;

    for (int i = 0; i < CLI_MONITOR_SCALARS && st == STRATA_OK; i++)
        if (m->csv[i].on)
            st = begin_csv(m, i, sequences);
    return st;
}

/* --- steps --- */

/* The first failure of a file is the last of it. */
static void write_to(struct cli_monitor *m, struct cli_monitor_file *f, const void *bytes, size_t count)
{
    if (!f->on || append(f, bytes, count) == STRATA_OK)
        return;
    f->on = false;
    if (!st_fault_refuses("monitor.cut")) /* a part of a row may be there */
        (void)!ftruncate(f->file.fd, (off_t)f->bytes);
    st_log(ST_LOG_WARN, "%s: no more is written there, the run goes on", strata_last_error());
    if (m->sentence[0] == '\0')
        snprintf(m->sentence, sizeof(m->sentence), "%s", strata_last_error());
}

/* The shortest text that is read as this number. */
static int put_number(char out[32], double value)
{
    int length = 0;

    for (int digits = 15; digits <= 17; digits++) {
        length = snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return length;
}

void cli_monitor_step(struct cli_monitor *m, const struct strata_metrics *step, uint64_t sequences)
{
    for (int i = 0; i < CLI_MONITOR_SCALARS; i++) {
        const double value = step->value[scalars[i].column];
        unsigned char record[ST_TF_RECORD_BYTES];
        char row[64], number[32];

        if (!is_wanted(m, i))
            continue;
        if (m->events.on)
            write_to(m, &m->events, record, st_tf_scalar(record, now(), sequences, scalars[i].tag, (float)value));
        put_number(number, value);
        write_to(m, &m->csv[i], row, (size_t)snprintf(row, sizeof(row), "%" PRIu64 ",%s\r\n", sequences, number));
    }
}

/* --- the end --- */

static void end_file(struct cli_monitor *m, struct cli_monitor_file *f)
{
    if (f->on && st_new_file_commit(&f->file) != STRATA_OK && m->sentence[0] == '\0')
        snprintf(m->sentence, sizeof(m->sentence), "%s", strata_last_error());
    f->on = false;
}

strata_status cli_monitor_end(struct cli_monitor *m)
{
    end_file(m, &m->events);
    for (int i = 0; i < CLI_MONITOR_SCALARS; i++)
        end_file(m, &m->csv[i]);
    return m->sentence[0] == '\0' ? STRATA_OK : st_error(STRATA_E_IO, "%s: the rest of the run is not there", m->sentence);
}

void cli_monitor_close(struct cli_monitor *m)
{
    st_new_file_abort(&m->events.file);
    for (int i = 0; i < CLI_MONITOR_SCALARS; i++)
        st_new_file_abort(&m->csv[i].file);
}
