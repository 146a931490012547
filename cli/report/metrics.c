/* cli/report/metrics.c - medians of a run's steps, and its summary. */
#include "cli/report/metrics.h"
#include "cli/report/bound_by.h"
#include "core/base/error.h"
#include "core/trace/metrics_put.h"
#include "core/trace/stats.h"
#include "core/trace/written.h"
#include "strata/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- medians --- */

strata_status cli_medians_create(struct cli_medians **out)
{
    struct cli_medians *m = malloc(sizeof(*m));

    if (m == NULL)
        return st_nomem(sizeof(*m));
    memset(m, 0xff, sizeof(*m)); /* touches the memory now, and makes all values NaN */
    memset(m->sum, 0, sizeof(m->sum));
    m->steps = m->skipped = m->pressed = 0;
    m->stride = 1;
    m->count = 0;
    memset(m->stalled_by, 0, sizeof(m->stalled_by));
    *out = m;
    return STRATA_OK;
}

/* Drops every other sample; the current step remains a sample, since the count is even. */
static void thin_out(struct cli_medians *m)
{
    for (int c = 0; c < STRATA_METRIC_COUNT; c++)
        for (uint32_t i = 0; i < CLI_SAMPLES_MAX / 2; i++)
            m->samples[c][i] = m->samples[c][2 * i];
    m->count = CLI_SAMPLES_MAX / 2;
    m->stride *= 2;
}

bool cli_medians_bound_holds(const struct cli_medians *m)
{
    return m->beaten * 4 <= m->steps;
}

void cli_medians_add(struct cli_medians *m, const struct strata_metrics *step)
{
    const bool sampled = m->steps == 0 || (m->steps - 1) % m->stride == 0;

    if (m->steps == 0)
        m->tokens_before = step->value[STRATA_METRIC_TOKENS_TOTAL] - step->value[STRATA_METRIC_TOKENS];
    if (m->steps == 1) {
        m->count = 0;
        memset(m->sum, 0, sizeof(m->sum));
        m->beaten = 0;
    }
    m->beaten += !cli_bound_holds(step->value[STRATA_METRIC_STEP_SECONDS], step->value[STRATA_METRIC_SCHEDULE_BOUND]);
    if (sampled && m->count == CLI_SAMPLES_MAX)
        thin_out(m);
    for (int c = 0; c < STRATA_METRIC_COUNT; c++) {
        if (sampled)
            m->samples[c][m->count] = step->value[c];
        if (!isnan(step->value[c]))
            m->sum[c] += step->value[c];
        if (!isnan(step->value[c]) || (c != STRATA_METRIC_EVAL_LOSS && c != STRATA_METRIC_EVAL_BITS_PER_BYTE))
            m->last[c] = step->value[c]; /* a loss that is no number is the last one, too */
    }
    m->count += sampled;
    m->steps++;
    m->skipped += step->value[STRATA_METRIC_SKIPPED] != 0;
    m->pressed += step->pressed;
    m->stalled_by[step->stalled_by < STRATA_LANE_COUNT ? step->stalled_by : STRATA_LANE_COUNT]++;
}

/* The first sample is the second step, which reads less than those after it: what no update has written yet is not read. */
double cli_medians_get(struct cli_medians *m, enum strata_metric column)
{
    const uint32_t first = column >= STRATA_METRIC_UPLOAD && column <= STRATA_METRIC_COMM && m->count > 1 ? 1 : 0;
    uint32_t count = 0;

    for (uint32_t i = first; i < m->count; i++)
        if (!isnan(m->samples[column][i]))
            m->scratch[count++] = m->samples[column][i];
    return count > 0 ? st_stats_median(m->scratch, count) : (double)NAN;
}

/* --- JSON --- */

/* Pressure over the whole run; "pressure" itself has the medians of the steps. */
static void put_pressure(struct st_json_writer *w, const struct cli_medians *medians, const struct st_pressure_verdict *run)
{
    const uint64_t moved[] = {run->moved.major_faults, run->moved.swap_bytes, run->moved.some_us, run->moved.full_us};
    const char *object, *key;
    enum strata_metric_kind kind;

    st_json_object_open(w, "pressure_total");
    for (uint32_t i = 0; i < sizeof(moved) / sizeof(moved[0]); i++) {
        key = strata_metric_name(STRATA_METRIC_MAJOR_FAULTS + i, &object, &kind);
        st_metric_put(w, key, kind,
                      moved[i] == ST_PRESSURE_UNKNOWN ? (double)NAN : (double)moved[i] * (kind == STRATA_METRIC_REAL ? 1e-3 : 1));
    }
    st_json_put_u64(w, "pressed_steps", medians->pressed);
    st_json_object_close(w);
}

static void put_bound_by(struct st_json_writer *w, const struct cli_medians *medians, const struct st_pressure_verdict *run)
{
    struct cli_bound_by bound;

    cli_bound_by(&bound, medians, run->pressed ? run->waited_fraction : 0);
    st_json_put_string(w, "bound_by", bound.resource);
    st_json_put_double(w, "bound_fraction", bound.fraction);
}

static void put_bound_holds(struct st_json_writer *w, struct cli_medians *medians)
{
    if (isnan(cli_medians_get(medians, STRATA_METRIC_SCHEDULE_BOUND)))
        st_json_put_string(w, "bound_holds", NULL);
    else
        st_json_put_bool(w, "bound_holds", cli_medians_bound_holds(medians));
}

static void put_evals(struct st_json_writer *w, const struct strata_training_info *run)
{
    if (run->evals == 0)
        return;
    st_json_put_double(w, "best_eval_loss", run->best_loss);
    st_json_put_u64(w, "best_eval_step", run->best_step);
    st_json_put_double(w, "last_eval_loss", run->last_loss);
    st_json_put_u64(w, "last_eval_step", run->last_step);
    st_json_put_bool(w, "ended_early", run->ended_early);
}

/* The rest are medians. */
static bool is_last(uint32_t metric)
{
    return metric == STRATA_METRIC_EPOCH || metric == STRATA_METRIC_LOSS_MEAN || metric == STRATA_METRIC_TOKENS_TOTAL ||
           metric == STRATA_METRIC_EVAL_LOSS || metric == STRATA_METRIC_EVAL_BITS_PER_BYTE;
}

/* Of the whole run, a flush at its end included. */
static void take_early(double *value, const struct strata_engine_info *early)
{
    value[STRATA_METRIC_EARLY_MADE] = (double)early->early_made;
    value[STRATA_METRIC_EARLY_KEPT] = (double)early->early_kept;
    value[STRATA_METRIC_EARLY_REDONE] = (double)early->early_redone;
    value[STRATA_METRIC_REDONE_BYTES] = (double)early->redone_bytes;
    value[STRATA_METRIC_WASTED_BYTES] = (double)early->wasted_bytes;
}

void cli_metrics_summary(struct st_json_writer *w, struct cli_medians *medians, const struct cli_summary *summary)
{
    double value[STRATA_METRIC_COUNT];
    struct st_written written;

    st_json_object_open(w, NULL);
    st_json_object_open(w, "summary");
    for (uint32_t i = 0; i < STRATA_METRIC_COUNT; i++)
        value[i] = is_last(i) ? medians->last[i] : cli_medians_get(medians, (enum strata_metric)i);
    if (summary->early != NULL)
        take_early(value, summary->early);
    st_metrics_put(w, value, strata_metric_name, true);
    put_pressure(w, medians, &summary->pressure);
    put_bound_holds(w, medians);
    put_bound_by(w, medians, &summary->pressure);
    st_written_counted(&written, cli_medians_get(medians, STRATA_METRIC_WRITE), summary->write_bytes, summary->seconds);
    st_written_put(&written, w);
    st_json_put_u64(w, "steps", medians->steps);
    st_json_put_u64(w, "skipped_steps", medians->skipped);
    st_json_put_double(w, "last_loss", medians->last[STRATA_METRIC_LOSS]);
    put_evals(w, &summary->run);
    st_json_put_double(w, "seconds", summary->seconds);
    st_json_put_u64(w, "peak_rss_bytes", summary->peak_rss_bytes);
    st_json_put_u64(w, "rss_bytes_max", summary->rss_bytes_max);
    st_json_put_string(w, "status", strata_status_text(summary->status));
    if (summary->weights_digest[0] != '\0') {
        st_json_put_string(w, "weights_digest", summary->weights_digest);
        st_json_put_string(w, "state_digest", summary->state_digest);
    }
    st_json_object_close(w);
    st_json_object_close(w);
    st_json_end_line(w);
}
