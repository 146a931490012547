/* cli/report/progress.c - the line that is rewritten on a terminal, for steps and for long work.
 *
 * Every few steps a line stays, on a terminal and elsewhere; lines about work do not stay on a terminal.  A line holds as much as
 * fits into the terminal's width, the most important first.  The training thread prints steps; any thread may report work. */
#include "cli/report/progress.h"
#include "cli/cli_signals.h"
#include "cli/options/told.h"
#include "cli/report/bound_by.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/system/clock.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#define LINES_WANTED    40u
#define LINES_AT_FIRST  3u
#define AVERAGE_WEIGHT  0.1 /* weight of the newest step */
#define WORK_REWRITE_NS UINT64_C(100000000)
#define WORK_LINE_NS    UINT64_C(30000000000) /* between lines if they cannot be rewritten, so that only long work is reported */

/* 1, 2, 5, 10, 20, 50...: the first of these that gives at most 50 lines. */
static uint64_t lines_every(uint64_t steps)
{
    static const uint64_t leads[] = {1, 2, 5};
    uint64_t power = 1;

    for (;; power *= 10)
        for (size_t i = 0; i < sizeof(leads) / sizeof(leads[0]); i++)
            if (steps / (leads[i] * power) <= LINES_WANTED)
                return leads[i] * power;
}

void cli_progress_close_line(struct cli_progress *p)
{
    switch (atomic_exchange(&p->line, CLI_LINE_NONE)) {
    case CLI_LINE_STEP:
        st_print(p->file, "\n");
        fflush(p->file);
        return;
    case CLI_LINE_WORK:
        st_print_over(p->file, "");
        return;
    default:
        return;
    }
}

static void log_line(void *ctx, enum st_log_level level, const char *line)
{
    cli_progress_close_line(ctx);
    cli_told_log(NULL, level, line);
}

void cli_progress_init(struct cli_progress *p, FILE *file, bool quiet, uint64_t steps_total, uint64_t every)
{
    *p = (struct cli_progress){.file = file, .quiet = quiet, .steps_total = steps_total};
    p->terminal = !quiet && st_print_rewrites(file);
    p->narrow = st_print_is_terminal(file);
    p->every = every != 0 ? every : lines_every(steps_total);
    p->work_every_ns = p->terminal ? WORK_REWRITE_NS : WORK_LINE_NS;
    if (p->terminal)
        st_log_configure(log_line, p, ST_LOG_INFO);
}

void cli_progress_fini(struct cli_progress *p)
{
    if (p->file != NULL)
        cli_progress_close_line(p);
    if (p->terminal)
        st_log_configure(cli_told_log, NULL, ST_LOG_INFO);
}

/* --- pieces of the line --- */

/* Pieces are added while they fit; after the first that does not, no more are. */
struct line {
    char *text;
    size_t length, most;
    bool full;
};

__attribute__((format(printf, 2, 3))) static void put(struct line *l, const char *fmt, ...)
{
    const char *between = l->length > 0 ? " | " : "";
    char piece[CLI_PROGRESS_LINE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(piece, sizeof(piece), fmt, args);
    va_end(args);
    l->full = l->full || l->length + strlen(between) + strlen(piece) > l->most;
    if (!l->full)
        l->length += (size_t)snprintf(l->text + l->length, l->most + 1 - l->length, "%s%s", between, piece);
}

static const char *time_left(char buf[32], double seconds)
{
    const unsigned long long left = seconds > 0 ? (unsigned long long)(seconds + 0.5) : 0;

    if (left >= 3600)
        snprintf(buf, 32, "%llu:%02llu:%02llu", left / 3600, left / 60 % 60, left % 60);
    else
        snprintf(buf, 32, "%llu:%02llu", left / 60, left % 60);
    return buf;
}

static void put_times(struct line *l, const struct strata_metrics *step)
{
    const double *v = step->value;
    const double bound = v[STRATA_METRIC_SCHEDULE_BOUND];
    const bool stalled = step->stalled_by < STRATA_LANE_COUNT;
    char forward[16], backward[16], stall[16], other[16];

    if (!cli_bound_holds(v[STRATA_METRIC_STEP_SECONDS], bound))
        put(l, "faster than the rates allow");
    else if (!isnan(bound))
        put(l, "%.2f x bound", v[STRATA_METRIC_STEP_SECONDS] / bound);
    put(l, "fwd %s bwd %s stall %s%s%s%s other %s ms", cli_ms_text(forward, v[STRATA_METRIC_MS_FORWARD]),
        cli_ms_text(backward, v[STRATA_METRIC_MS_BACKWARD]), cli_ms_text(stall, v[STRATA_METRIC_MS_STALL]), stalled ? " (" : "",
        stalled ? strata_lane_name(step->stalled_by) : "", stalled ? ")" : "", cli_ms_text(other, v[STRATA_METRIC_MS_OTHER]));
}

static void put_pressure(struct line *l, const struct strata_metrics *step)
{
    const double *v = step->value;
    char size[24];

    if (!step->pressed)
        return;
    if (!isnan(v[STRATA_METRIC_PSI_SOME]))
        put(l, "%.0f ms waiting for memory", v[STRATA_METRIC_PSI_SOME]);
    if (v[STRATA_METRIC_MAJOR_FAULTS] > 0)
        put(l, "%.0f major faults", v[STRATA_METRIC_MAJOR_FAULTS]);
    if (v[STRATA_METRIC_SWAP_BYTES] > 0)
        put(l, "%s in swap", st_size_text(size, (uint64_t)v[STRATA_METRIC_SWAP_BYTES]));
}

static void put_tiers(struct line *l, const double *value)
{
    char size[24];

    for (int i = 0; i < STRATA_TIER_COUNT; i++)
        if (value[STRATA_METRIC_RESIDENT + i] > 0)
            put(l, "%s %s", strata_tier_name((strata_tier)i), st_size_text(size, (uint64_t)value[STRATA_METRIC_RESIDENT + i]));
}

/* Averages over the step. */
static void put_links(struct line *l, const double *value)
{
    static const char *const names[] = {"up", "down", "read", "write", "comm"};
    static const enum strata_metric bytes[] = {STRATA_METRIC_UPLOAD, STRATA_METRIC_DOWNLOAD, STRATA_METRIC_READ,
                                               STRATA_METRIC_WRITE, STRATA_METRIC_COMM};

    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++)
        if (value[bytes[i]] > 0 && value[STRATA_METRIC_STEP_SECONDS] > 0)
            put(l, "%s %.2f GB/s", names[i], value[bytes[i]] / value[STRATA_METRIC_STEP_SECONDS] * 1e-9);
}

/* What every terminal should show comes first and fits into 60 columns. */
static void make_line(struct cli_progress *p, const struct strata_metrics *step, size_t width)
{
    struct line l = {.text = p->text, .most = width < sizeof(p->text) ? width : sizeof(p->text) - 1};
    const double *v = step->value;
    char text[32];

    p->text[0] = '\0';
    put(&l, "step %.0f/%llu", v[STRATA_METRIC_STEP], (unsigned long long)p->steps_total);
    put(&l, "loss %.4f", v[STRATA_METRIC_LOSS]);
    if (v[STRATA_METRIC_SKIPPED] != 0)
        put(&l, "SKIPPED");
    if (step->pressed)
        put(&l, "MEMORY PRESSURE");
    put(&l, "%s ms", cli_ms_text(text, v[STRATA_METRIC_STEP_SECONDS] * 1e3));
    put(&l, "%.0f tok/s", v[STRATA_METRIC_TOKENS_PER_SECOND]);
    put(&l, "ETA %s", time_left(text, p->seconds_per_step * ((double)p->steps_total - v[STRATA_METRIC_STEP])));
    if (!isnan(v[STRATA_METRIC_EPOCH]))
        put(&l, "epoch %.2f", v[STRATA_METRIC_EPOCH]);
    if (v[STRATA_METRIC_SKIPPED] != 0)
        put(&l, "a gradient is not finite");
    if (v[STRATA_METRIC_WEIGHTS_OVERFLOWED] > 0)
        put(&l, "%.0f weights are infinite in 16 bits", v[STRATA_METRIC_WEIGHTS_OVERFLOWED]);
    put_pressure(&l, step);
    if (!isnan(v[STRATA_METRIC_BITS_PER_BYTE]))
        put(&l, "%.4f bits/byte", v[STRATA_METRIC_BITS_PER_BYTE]);
    put(&l, "norm %.4g", v[STRATA_METRIC_GRAD_NORM]);
    put(&l, "lr %.3g", v[STRATA_METRIC_LR]);
    if (!p->verbose)
        return;
    if (!isnan(v[STRATA_METRIC_LOSS_MEAN]))
        put(&l, "mean loss %.4f", v[STRATA_METRIC_LOSS_MEAN]);
    put_times(&l, step);
    if (!isnan(v[STRATA_METRIC_MFU]) && cli_bound_holds(v[STRATA_METRIC_STEP_SECONDS], v[STRATA_METRIC_SCHEDULE_BOUND]))
        put(&l, "MFU %.1f %%", v[STRATA_METRIC_MFU] * 100);
    put_tiers(&l, v);
    put_links(&l, v);
}

/* --- printing --- */

static bool line_due(const struct cli_progress *p, uint64_t step, bool skipped)
{
    return skipped || step <= LINES_AT_FIRST || step == p->steps_total || step % p->every == 0;
}

void cli_progress_step(struct cli_progress *p, const struct strata_metrics *step)
{
    const double seconds = step->value[STRATA_METRIC_STEP_SECONDS];
    const bool skipped = step->value[STRATA_METRIC_SKIPPED] != 0;

    p->seconds_per_step += (seconds - p->seconds_per_step) * (p->seconds_per_step > 0 ? AVERAGE_WEIGHT : 1);
    if (p->quiet)
        return;
    make_line(p, step, p->narrow ? st_print_width(p->file) - 1 : CLI_PROGRESS_LINE_MAX);
    if (p->terminal) {
        st_print_over(p->file, p->text);
        atomic_store(&p->line, CLI_LINE_STEP);
    }
    if (line_due(p, (uint64_t)step->value[STRATA_METRIC_STEP], skipped)) {
        if (!p->terminal)
            st_print(p->file, "%s", p->text);
        atomic_store(&p->line, CLI_LINE_STEP);
        cli_progress_close_line(p);
    }
}

void cli_progress_note(struct cli_progress *p, const char *fmt, ...)
{
    va_list args;
    FILE *wrapped;

    if (p->quiet)
        return;
    cli_progress_close_line(p);
    va_start(args, fmt);
    wrapped = st_wrap_open(p->file);
    st_vprint(wrapped, fmt, args);
    va_end(args);
    st_print(wrapped, "\n");
    st_wrap_close(wrapped, p->file);
}

/* --- long work --- */

static void show_work(struct cli_progress *p, uint64_t now_ns)
{
    const uint64_t done = atomic_load(&p->work_done);
    const double fraction = p->work_total > 0 ? fmin(1, (double)done / (double)p->work_total) : 0;
    char line[128], left[32];

    if (fraction > 0)
        snprintf(line, sizeof(line), "%s: %.0f %%, ETA %s", p->work, 100 * fraction,
                 time_left(left, (double)(now_ns - p->work_start_ns) * 1e-9 * (1 - fraction) / fraction));
    else
        snprintf(line, sizeof(line), "%s", p->work);
    if (!p->terminal) {
        st_print(p->file, "%s\n", line);
        fflush(p->file);
        return;
    }
    st_print_over(p->file, line);
    atomic_store(&p->line, CLI_LINE_WORK);
}

static void begin_work(struct cli_progress *p, const char *what, uint64_t total)
{
    cli_progress_close_line(p);
    p->work = what;
    p->work_total = total;
    p->work_start_ns = st_clock_ns();
    atomic_store(&p->work_done, 0);
    atomic_store(&p->work_shown_ns, p->work_start_ns);
    if (p->terminal)
        show_work(p, p->work_start_ns);
}

static void go_on(struct cli_progress *p, uint64_t done)
{
    uint64_t shown, now;

    atomic_store(&p->work_done, done);
    shown = atomic_load(&p->work_shown_ns);
    now = st_clock_ns();
    if (now - shown >= p->work_every_ns && atomic_compare_exchange_strong(&p->work_shown_ns, &shown, now))
        show_work(p, now);
}

bool cli_progress_watch(void *progress, const char *what, uint64_t done, uint64_t total)
{
    struct cli_progress *p = progress;

    if (!p->quiet && done == 0)
        begin_work(p, what, total);
    else if (!p->quiet)
        go_on(p, done);
    return p->patient || cli_signals_pending() == 0;
}

void cli_progress_work_end(struct cli_progress *p)
{
    if (!p->quiet && atomic_load(&p->line) == CLI_LINE_WORK)
        cli_progress_close_line(p);
}
