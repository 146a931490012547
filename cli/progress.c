/* cli/progress.c - the progress line.
 *
 * On a terminal the line is rewritten in place and cut to its width; elsewhere it is printed every so often. */
#include "cli/progress.h"
#include "cli/plan_table.h"
#include "core/log.h"
#include "core/print.h"
#include "core/size.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#define LINES_WANTED   40u
#define LINES_AT_FIRST 3u
#define AVERAGE_WEIGHT 0.1 /* of the newest step */

/* 1, 2, 5, 10, 20, 50...: the first that gives at most 50 lines. */
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
    if (atomic_exchange(&p->line_open, false)) {
        st_print(p->file, "\n");
        fflush(p->file);
    }
}

static void log_line(void *ctx, enum st_log_level level, const char *line)
{
    static const char *const prefixes[] = {"debug: ", "", "notice: ", "warning: ", "error: "};

    cli_progress_close_line(ctx);
    st_print(stderr, "strata: %s%s\n", prefixes[level], line);
}

void cli_progress_init(struct cli_progress *p, FILE *file, bool quiet, uint64_t steps_total, uint64_t every)
{
    *p = (struct cli_progress){.file = file, .quiet = quiet, .steps_total = steps_total};
    p->terminal = st_print_rewrites(file);
    p->every = every != 0 ? every : lines_every(steps_total);
    if (p->terminal)
        st_log_configure(log_line, p, ST_LOG_INFO);
}

void cli_progress_fini(struct cli_progress *p)
{
    if (p->file != NULL)
        cli_progress_close_line(p);
    if (p->terminal)
        st_log_configure(NULL, NULL, ST_LOG_INFO);
}

/* --- pieces of the line --- */

struct text {
    char *at;
    size_t left;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *fmt, ...)
{
    va_list args;
    int used;

    va_start(args, fmt);
    used = vsnprintf(t->at, t->left, fmt, args);
    va_end(args);
    if (used < 0)
        return;
    used = (size_t)used < t->left ? used : (int)(t->left > 0 ? t->left - 1 : 0);
    t->at += used;
    t->left -= (size_t)used;
}

static void put_known(struct text *t, const char *fmt_before, double value, int digits, const char *after)
{
    if (!isnan(value))
        put(t, "%s%.*f%s", fmt_before, digits, value, after);
}

static void put_times(struct text *t, const struct cli_step *step)
{
    const double *v = step->value;
    char text[16];

    put(t, " | %s ms", cli_ms_text(text, v[CLI_STEP_SECONDS] * 1e3));
    put_known(t, " = ", v[CLI_STEP_SECONDS] / v[CLI_SCHEDULE_BOUND], 2, " x bound");
    put(t, ": fwd %s", cli_ms_text(text, v[CLI_MS_FORWARD]));
    put(t, " bwd %s", cli_ms_text(text, v[CLI_MS_BACKWARD]));
    put(t, " stall %s", cli_ms_text(text, v[CLI_MS_STALL]));
    if (step->stalled_by < ST_LANE_COUNT)
        put(t, " (%s)", st_lane_name(step->stalled_by));
    put(t, " other %s", cli_ms_text(text, v[CLI_MS_OTHER]));
}

/* Early in the line, since terminals cut it. */
static void put_pressure(struct text *t, const struct cli_step *step)
{
    const double *v = step->value;
    char size[24];

    if (!step->pressed)
        return;
    put(t, " | MEMORY PRESSURE");
    put_known(t, ", ", v[CLI_PSI_SOME], 0, " ms waiting");
    if (v[CLI_MAJOR_FAULTS] > 0)
        put(t, ", %.0f major faults", v[CLI_MAJOR_FAULTS]);
    if (v[CLI_SWAP_BYTES] > 0)
        put(t, ", %s in swap", st_size_text(size, (uint64_t)v[CLI_SWAP_BYTES]));
}

static void put_tiers(struct text *t, const double *value)
{
    char size[24];

    put(t, " |");
    for (int i = 0; i < STRATA_TIER_COUNT; i++)
        if (value[CLI_RESIDENT + i] > 0)
            put(t, " %s %s", cli_tier_name((strata_tier)i), st_size_text(size, (uint64_t)value[CLI_RESIDENT + i]));
}

/* Averages over the step. */
static void put_links(struct text *t, const double *value)
{
    static const char *const names[] = {"up", "down", "read", "write"};
    static const enum cli_column bytes[] = {CLI_UPLOAD, CLI_DOWNLOAD, CLI_READ, CLI_WRITE};
    bool any = false;

    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        if (!(value[bytes[i]] > 0) || !(value[CLI_STEP_SECONDS] > 0))
            continue;
        put(t, "%s %s %.2f", any ? "" : " |", names[i], value[bytes[i]] / value[CLI_STEP_SECONDS] * 1e-9);
        any = true;
    }
    if (any)
        put(t, " GB/s");
}

static void put_time_left(struct text *t, const struct cli_progress *p, double step)
{
    const double seconds = p->seconds_per_step * ((double)p->steps_total - step);
    const uint64_t left = seconds > 0 ? (uint64_t)(seconds + 0.5) : 0;

    if (left >= 3600)
        put(t, " (ETA %llu:%02u:%02u)", (unsigned long long)(left / 3600), (unsigned)(left / 60 % 60), (unsigned)(left % 60));
    else
        put(t, " (ETA %u:%02u)", (unsigned)(left / 60), (unsigned)(left % 60));
}

static void make_line(struct cli_progress *p, const struct cli_step *step)
{
    struct text t = {p->line, sizeof(p->line)};
    const double *v = step->value;

    put(&t, "step %.0f/%llu", v[CLI_STEP], (unsigned long long)p->steps_total);
    put_time_left(&t, p, v[CLI_STEP]);
    put(&t, " | loss %.4f", v[CLI_LOSS]);
    put_known(&t, " | ", v[CLI_BITS_PER_BYTE], 4, " b/B");
    put(&t, " | norm %.4g | lr %.3g", v[CLI_GRAD_NORM], v[CLI_LR]);
    put_times(&t, step);
    put_pressure(&t, step);
    put(&t, " | %.0f tok/s", v[CLI_TOKENS_PER_SECOND]);
    put_known(&t, " | MFU ", v[CLI_MFU] * 100, 1, " %");
    put_tiers(&t, v);
    put_links(&t, v);
    if (v[CLI_SKIPPED] != 0)
        put(&t, " | SKIPPED: a gradient is not finite");
    if (v[CLI_WEIGHTS_OVERFLOWED] > 0)
        put(&t, " | %.0f weights are infinite in bf16", v[CLI_WEIGHTS_OVERFLOWED]);
}

/* --- printing --- */

static bool line_due(const struct cli_progress *p, uint64_t step, bool skipped)
{
    return skipped || step <= LINES_AT_FIRST || step == p->steps_total || step % p->every == 0;
}

void cli_progress_step(struct cli_progress *p, const struct cli_step *step)
{
    const double seconds = step->value[CLI_STEP_SECONDS];
    const bool skipped = step->value[CLI_SKIPPED] != 0;

    p->seconds_per_step += (seconds - p->seconds_per_step) * (p->seconds_per_step > 0 ? AVERAGE_WEIGHT : 1);
    if (p->quiet)
        return;
    if (p->terminal) {
        make_line(p, step);
        st_print_over(p->file, p->line);
        atomic_store(&p->line_open, true);
        if (skipped)
            cli_progress_close_line(p);
    } else if (line_due(p, (uint64_t)step->value[CLI_STEP], skipped)) {
        make_line(p, step);
        st_print(p->file, "%s\n", p->line);
    }
    fflush(p->file);
}

void cli_progress_note(struct cli_progress *p, const char *fmt, ...)
{
    va_list args;

    if (p->quiet)
        return;
    cli_progress_close_line(p);
    va_start(args, fmt);
    st_vprint(p->file, fmt, args);
    va_end(args);
    st_print(p->file, "\n");
    fflush(p->file);
}
