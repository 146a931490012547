/* cli/report/summary.c - the block at the end of a run: medians, bounds, traffic, stalls, memory. */
#include "cli/report/bound_by.h"
#include "cli/report/progress.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/base/wrap.h"
#include "core/trace/written.h"

#include <inttypes.h>
#include <math.h>

const char *cli_ms_text(char buf[16], double ms)
{
    snprintf(buf, 16, ms >= 99.95 ? "%.0f" : "%.3g", ms);
    return buf;
}

static void print_medians(FILE *file, struct cli_medians *m)
{
    const double mfu = cli_medians_bound_holds(m) ? cli_medians_get(m, STRATA_METRIC_MFU) : (double)NAN;
    char step[16], forward[16], backward[16], stall[16], other[16];

    st_print(file, "  median step   %s ms: forward %s, backward %s, stall %s, other %s; %.0f tokens/s",
             cli_ms_text(step, cli_medians_get(m, STRATA_METRIC_STEP_SECONDS) * 1e3),
             cli_ms_text(forward, cli_medians_get(m, STRATA_METRIC_MS_FORWARD)),
             cli_ms_text(backward, cli_medians_get(m, STRATA_METRIC_MS_BACKWARD)),
             cli_ms_text(stall, cli_medians_get(m, STRATA_METRIC_MS_STALL)),
             cli_ms_text(other, cli_medians_get(m, STRATA_METRIC_MS_OTHER)), cli_medians_get(m, STRATA_METRIC_TOKENS_PER_SECOND));
    if (!isnan(mfu))
        st_print(file, ", MFU %.1f %%", mfu * 100);
    st_print(file, "\n");
}

static void print_bounds(FILE *file, const struct strata_plan_info *plan, struct cli_medians *m)
{
    const double seconds = cli_medians_get(m, STRATA_METRIC_STEP_SECONDS);
    char schedule[24], hardware[24];

    if (!(plan->schedule_bound_seconds > 0)) {
        st_print_text(file, "  step/bound    unknown, as the machine's rates are\n");
        return;
    }
    if (!cli_medians_bound_holds(m)) {
        st_print(
            file,
            "  step/bound    unknown: %llu of %llu steps were faster than the rates allow, measured on a busy machine or another "
            "one. Measure again when it is quiet: strata info --measure --out FILE, then --machine FILE\n",
            (unsigned long long)m->beaten, (unsigned long long)m->steps);
        return;
    }
    st_print(file, "  step/bound    %.2f of the schedule's %s (%s), %.2f of the hardware's %s\n",
             seconds / plan->schedule_bound_seconds, st_seconds_text(schedule, plan->schedule_bound_seconds), plan->bound_by,
             seconds / plan->hardware_bound_seconds, st_seconds_text(hardware, plan->hardware_bound_seconds));
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

/* A run of one step or two has no steady step. */
static void print_traffic(FILE *file, const struct strata_plan_info *plan, struct cli_medians *m)
{
    const struct strata_plan_bytes *bytes = m->steps <= 2 ? &plan->first[m->steps > 1] : &plan->step;

    st_print_text(file, "  bytes a step  ");
    print_link(file, "upload", cli_medians_get(m, STRATA_METRIC_UPLOAD), bytes->upload);
    print_link(file, "download", cli_medians_get(m, STRATA_METRIC_DOWNLOAD), bytes->download);
    print_link(file, "read", cli_medians_get(m, STRATA_METRIC_READ), bytes->read);
    print_link(file, "write", cli_medians_get(m, STRATA_METRIC_WRITE), bytes->write);
    if (bytes->comm > 0)
        print_link(file, "comm", cli_medians_get(m, STRATA_METRIC_COMM), bytes->comm);
    st_print(file, "\n");
}

static void print_stalls(FILE *file, struct cli_medians *m)
{
    bool any = false;
    char text[16];

    st_print_text(file, "  stalls        ");
    for (int i = 0; i < STRATA_LANE_COUNT; i++) {
        const double ms = cli_medians_get(m, (enum strata_metric)(STRATA_METRIC_STALL_MS + i));

        if (!(ms > 0.005))
            continue;
        st_print(file, "%s%s %s ms a step", any ? ", " : "", strata_lane_name((uint32_t)i), cli_ms_text(text, ms));
        any = true;
    }
    st_print_text(file, any ? "\n" : "none\n");
}

static void print_bound_by(FILE *file, const struct cli_medians *m, const struct st_pressure_verdict *run)
{
    struct cli_bound_by bound;

    cli_bound_by(&bound, m, run->pressed ? run->waited_fraction : 0);
    if (bound.resource != NULL)
        st_print(file, "  bound by      %s\n", bound.text);
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

/* Memory pressure of the run; if the verdict's sentence names it as the cause, that has the totals in it. */
static void print_pressure(FILE *file, const struct cli_medians *m, const struct st_pressure_verdict *run)
{
    st_print_text(file, "  pressure      ");
    if (run->pressed) {
        st_print_keyed(file, "%s", run->sentence);
    } else if (run->moved.major_faults == ST_PRESSURE_UNKNOWN && run->moved.some_us == ST_PRESSURE_UNKNOWN) {
        st_print_text(file, "unknown: the system does not report it");
    } else {
        st_print_text(file, m->pressed == 0 ? "none: " : "at times: ");
        print_pressure_totals(file, &run->moved);
    }
    if (m->pressed > 0)
        st_print(file, " (memory pressure in %llu of %llu steps)", (unsigned long long)m->pressed, (unsigned long long)m->steps);
    st_print(file, "\n");
}

/* A resumed run has more behind it than this program has done. */
static void print_length(FILE *file, const struct cli_medians *m, double seconds)
{
    const bool whole = !(m->tokens_before > 0);
    char epochs[48] = "";

    if (!isnan(m->last[STRATA_METRIC_EPOCH]))
        snprintf(epochs, sizeof(epochs), "%.4g epochs, ", m->last[STRATA_METRIC_EPOCH]);
    st_print(file, "%s%.0f tokens in %.1f s", whole ? epochs : "",
             m->last[STRATA_METRIC_TOKENS_TOTAL] - (whole ? 0 : m->tokens_before), seconds);
    if (!whole)
        st_print(file, "; of the run so far %s%.0f tokens", epochs, m->last[STRATA_METRIC_TOKENS_TOTAL]);
    st_print_text(file, "\n");
}

static void print_evals(FILE *file, const struct strata_training_info *run)
{
    if (run->evals == 0)
        return;
    st_print(file, "  evaluations   best loss %.4f after step %" PRIu64 ", last %.4f after step %" PRIu64, run->best_loss,
             run->best_step, run->last_loss, run->last_step);
    if (run->ended_early)
        st_print(file, "; ended early: %" PRIu64 " in a row without a lower one", run->evals_worse);
    st_print_text(file, "\n");
}

#define LOST_OFTEN 0.2 /* of the steps: another plan may be the faster */

/* What was written for nothing is a part of what the run wrote.  Steps that were not kept were clipped, likely to be, or followed by
 * a flush or a save. */
static void print_early(FILE *file, const struct strata_engine_info *early, uint64_t steps)
{
    char redone[24], wasted[24];
    double lost;

    if (early == NULL)
        return;
    lost = steps > 1 ? 1 - (double)early->early_kept / (double)(steps - 1) : 0;
    st_print(file, "  early updates in %" PRIu64 " of the steps: kept in %" PRIu64 ", made again in %" PRIu64, early->early_made,
             early->early_kept, early->early_redone);
    if (early->early_redone > 0)
        st_print(file, " (after clipped or skipped steps, saves and the end: %s; %s written to nvme for nothing)", st_size_text(redone, early->redone_bytes),
                 st_size_text(wasted, early->wasted_bytes));
    if (lost > LOST_OFTEN)
        st_print(file, "; strata.clip_rate %.2g makes a plan for so few that are kept", lost);
    st_print_text(file, "\n");
}

void cli_progress_summary(struct cli_progress *p, const struct strata_plan_info *plan, struct cli_medians *m,
                          const struct cli_summary *summary)
{
    struct st_written written;
    FILE *file;
    char peak[24], planned[24];

    if (p->quiet || m->steps == 0)
        return;
    cli_progress_close_line(p);
    file = st_wrap_open(p->file);
    st_print(file, "%s: %llu steps (%llu skipped), ", summary->status == STRATA_OK ? "done" : strata_status_text(summary->status),
             (unsigned long long)m->steps, (unsigned long long)m->skipped);
    print_length(file, m, summary->seconds);
    print_evals(file, &summary->run);
    print_medians(file, m);
    print_bounds(file, plan, m);
    print_traffic(file, plan, m);
    st_written_counted(&written, cli_medians_get(m, STRATA_METRIC_WRITE), summary->write_bytes, summary->seconds);
    st_written_print(&written, "nvme writes   ", file);
    print_early(file, summary->early, m->steps);
    print_stalls(file, m);
    print_bound_by(file, m, &summary->pressure);
    st_print(file, "  memory        peak %s, planned at most %s\n", st_size_text(peak, summary->peak_rss_bytes),
             st_size_text(planned, summary->rss_bytes_max));
    print_pressure(file, m, &summary->pressure);
    st_wrap_close(file, p->file);
}
