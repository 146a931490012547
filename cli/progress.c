/* cli/progress.c - the progress line and the summary block.
 *
 * On a terminal the line is rewritten in place and cut to its width; elsewhere it is printed every so often. */
#include "cli/progress.h"
#include "cli/bound_by.h"
#include "cli/endurance.h"
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

static void close_line(struct cli_progress *p)
{
    if (atomic_exchange(&p->line_open, false)) {
        st_print(p->file, "\n");
        fflush(p->file);
    }
}

static void log_line(void *ctx, enum st_log_level level, const char *line)
{
    static const char *const prefixes[] = {"debug: ", "", "notice: ", "warning: ", "error: "};

    close_line(ctx);
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
        close_line(p);
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

/* Milliseconds, three digits or all before the point. */
static const char *ms_text(char buf[16], double ms)
{
    snprintf(buf, 16, ms >= 99.95 ? "%.0f" : "%.3g", ms);
    return buf;
}

static void put_times(struct text *t, const struct cli_step *step)
{
    const double *v = step->value;
    char text[16];

    put(t, " | %s ms", ms_text(text, v[CLI_STEP_SECONDS] * 1e3));
    put_known(t, " = ", v[CLI_STEP_SECONDS] / v[CLI_SCHEDULE_BOUND], 2, " x bound");
    put(t, ": fwd %s", ms_text(text, v[CLI_MS_FORWARD]));
    put(t, " bwd %s", ms_text(text, v[CLI_MS_BACKWARD]));
    put(t, " stall %s", ms_text(text, v[CLI_MS_STALL]));
    if (step->stalled_by < ST_LANE_COUNT)
        put(t, " (%s)", st_lane_name(step->stalled_by));
    put(t, " other %s", ms_text(text, v[CLI_MS_OTHER]));
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
            close_line(p);
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
    close_line(p);
    va_start(args, fmt);
    st_vprint(p->file, fmt, args);
    va_end(args);
    st_print(p->file, "\n");
    fflush(p->file);
}

/* --- the block at the end --- */

static void print_medians(struct cli_progress *p, struct cli_medians *m)
{
    const double mfu = cli_medians_get(m, CLI_MFU);
    char step[16], forward[16], backward[16], stall[16], other[16];

    st_print(p->file, "  median step   %s ms: forward %s, backward %s, stall %s, other %s; %.0f tokens/s",
             ms_text(step, cli_medians_get(m, CLI_STEP_SECONDS) * 1e3), ms_text(forward, cli_medians_get(m, CLI_MS_FORWARD)),
             ms_text(backward, cli_medians_get(m, CLI_MS_BACKWARD)), ms_text(stall, cli_medians_get(m, CLI_MS_STALL)),
             ms_text(other, cli_medians_get(m, CLI_MS_OTHER)), cli_medians_get(m, CLI_TOKENS_PER_SECOND));
    if (!isnan(mfu))
        st_print(p->file, ", MFU %.1f %%", mfu * 100);
    st_print(p->file, "\n");
}

static void print_bounds(struct cli_progress *p, const struct st_plan *plan, struct cli_medians *m)
{
    const double seconds = cli_medians_get(m, CLI_STEP_SECONDS);
    char schedule[24], hardware[24];

    if (!(plan->bounds.schedule > 0)) {
        st_print_text(p->file, "  step/bound    unknown: the machine's rates are not\n");
        return;
    }
    st_print(p->file, "  step/bound    %.2f of the schedule's %s (%s), %.2f of the hardware's %s\n",
             seconds / plan->bounds.schedule, cli_seconds_text(schedule, plan->bounds.schedule), plan->bounds.bound_by,
             seconds / plan->bounds.hardware, cli_seconds_text(hardware, plan->bounds.hardware));
}

static void print_link(FILE *file, const char *name, double counted, uint64_t planned)
{
    char have[24], want[24];

    st_print(file, "%s%s ", name[0] == 'u' ? "" : ", ", name);
    if (counted == (double)planned)
        st_print(file, "%s (as planned)", st_size_text(have, planned));
    else
        st_print(file, "%s (planned %s)", st_size_text(have, counted > 0 ? (uint64_t)counted : 0), st_size_text(want, planned));
}

/* A run of one step has no steady one. */
static void print_traffic(struct cli_progress *p, const struct st_plan *plan, struct cli_medians *m)
{
    const struct st_traffic *planned = &plan->traffic[st_phase_index(m->steps > 1 ? ST_PHASE_BODY : ST_PHASE_PROLOGUE)];

    st_print_text(p->file, "  bytes a step  ");
    print_link(p->file, "upload", cli_medians_get(m, CLI_UPLOAD), planned->upload);
    print_link(p->file, "download", cli_medians_get(m, CLI_DOWNLOAD), planned->download);
    print_link(p->file, "read", cli_medians_get(m, CLI_READ), planned->read);
    print_link(p->file, "write", cli_medians_get(m, CLI_WRITE), planned->write);
    st_print(p->file, "\n");
}

static void print_stalls(struct cli_progress *p, struct cli_medians *m)
{
    bool any = false;
    char text[16];

    st_print_text(p->file, "  stalls        ");
    for (int i = 0; i < ST_LANE_COUNT; i++) {
        const double ms = cli_medians_get(m, (enum cli_column)(CLI_STALL_MS + i));

        if (!(ms > 0.005))
            continue;
        st_print(p->file, "%s%s %s ms a step", any ? ", " : "", st_lane_name((enum st_lane)i), ms_text(text, ms));
        any = true;
    }
    st_print_text(p->file, any ? "\n" : "none\n");
}

static void print_bound_by(struct cli_progress *p, const struct cli_medians *m, const struct st_pressure_verdict *run)
{
    struct cli_bound_by bound;

    cli_bound_by(&bound, m, run->pressed ? run->waited_share : 0);
    if (bound.resource != NULL)
        st_print(p->file, "  bound by      %s\n", bound.text);
}

static void print_pressure_totals(FILE *file, const struct st_pressure_sample *moved)
{
    const char *before = "";
    char size[24];

    if (moved->major_faults != ST_PRESSURE_UNKNOWN) {
        st_print(file, "%llu major faults", (unsigned long long)moved->major_faults);
        before = ", ";
    }
    if (moved->some_us != ST_PRESSURE_UNKNOWN) {
        st_print(file, "%s%.0f ms waiting for memory", before, (double)moved->some_us * 1e-3);
        before = ", ";
    }
    if (moved->swap_bytes != ST_PRESSURE_UNKNOWN && moved->swap_bytes > 0)
        st_print(file, "%s%s in swap", before, st_size_text(size, moved->swap_bytes));
}

/* Of the run; the sentence, where it names the cause, has the totals in it. */
static void print_pressure(struct cli_progress *p, const struct cli_medians *m, const struct st_pressure_verdict *run)
{
    st_print_text(p->file, "  pressure      ");
    if (run->pressed) {
        st_print_text(p->file, run->sentence);
    } else if (run->moved.major_faults == ST_PRESSURE_UNKNOWN && run->moved.some_us == ST_PRESSURE_UNKNOWN) {
        st_print_text(p->file, "unknown: the system does not tell");
    } else {
        st_print_text(p->file, m->pressed == 0 ? "none: " : "at times: ");
        print_pressure_totals(p->file, &run->moved);
    }
    if (m->pressed > 0)
        st_print(p->file, " (memory pressure in %llu of %llu steps)", (unsigned long long)m->pressed,
                 (unsigned long long)m->steps);
    st_print(p->file, "\n");
}

void cli_progress_summary(struct cli_progress *p, const struct st_plan *plan, struct cli_medians *m,
                          const struct cli_summary *summary)
{
    struct cli_endurance endurance;
    char peak[24], planned[24];

    if (p->quiet || m->steps == 0)
        return;
    close_line(p);
    st_print(p->file, "%s: %llu steps (%llu skipped), %.0f tokens in %.1f s\n",
             summary->status == STRATA_OK ? "done" : strata_status_text(summary->status), (unsigned long long)m->steps,
             (unsigned long long)m->skipped, m->last[CLI_TOKENS_TOTAL], summary->seconds);
    print_medians(p, m);
    print_bounds(p, plan, m);
    print_traffic(p, plan, m);
    cli_endurance_counted(&endurance, m, summary->seconds);
    cli_endurance_print(&endurance, "nvme writes   ", p->file);
    print_stalls(p, m);
    print_bound_by(p, m, &summary->pressure);
    st_print(p->file, "  memory        peak %s, planned at most %s\n", st_size_text(peak, summary->peak_rss_bytes),
             st_size_text(planned, summary->rss_bytes_max));
    print_pressure(p, m, &summary->pressure);
    fflush(p->file);
}
