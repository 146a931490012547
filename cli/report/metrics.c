/* cli/report/metrics.c - the column table and the loops over it. */
#include "cli/report/metrics.h"
#include "cli/report/bound_by.h"
#include "core/base/error.h"
#include "core/trace/stats.h"
#include "core/trace/written.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum column_type { COLUMN_REAL, COLUMN_WHOLE, COLUMN_FLAG, COLUMN_RARE /* left out if unknown */ };
enum column_end { END_NONE, END_MEDIAN, END_LAST }; /* what the summary shows */

struct column {
    const char *object; /* it stands in, NULL: top level; columns of an object stand together */
    const char *key;    /* NULL: `count` columns for lanes or tiers, named by number */
    enum column_type type;
    enum column_end end;
    enum cli_column first;
    uint32_t count;
};

static const struct column columns[] = {
    {NULL, "step", COLUMN_WHOLE, END_NONE, CLI_STEP, 1},
    {NULL, "epoch", COLUMN_REAL, END_LAST, CLI_EPOCH, 1},
    {NULL, "loss", COLUMN_REAL, END_MEDIAN, CLI_LOSS, 1},
    {NULL, "loss_mean20", COLUMN_REAL, END_LAST, CLI_LOSS_MEAN, 1},
    {NULL, "bits_per_byte", COLUMN_REAL, END_MEDIAN, CLI_BITS_PER_BYTE, 1},
    {NULL, "grad_norm", COLUMN_REAL, END_MEDIAN, CLI_GRAD_NORM, 1},
    {NULL, "lr", COLUMN_REAL, END_MEDIAN, CLI_LR, 1},
    {NULL, "loss_scale", COLUMN_REAL, END_MEDIAN, CLI_LOSS_SCALE, 1},
    {NULL, "skipped", COLUMN_FLAG, END_NONE, CLI_SKIPPED, 1},
    {NULL, "weights_overflowed", COLUMN_WHOLE, END_MEDIAN, CLI_WEIGHTS_OVERFLOWED, 1},
    {NULL, "tokens", COLUMN_WHOLE, END_MEDIAN, CLI_TOKENS, 1},
    {NULL, "tokens_total", COLUMN_WHOLE, END_LAST, CLI_TOKENS_TOTAL, 1},
    {NULL, "tokens_per_second", COLUMN_REAL, END_MEDIAN, CLI_TOKENS_PER_SECOND, 1},
    {NULL, "mfu", COLUMN_REAL, END_MEDIAN, CLI_MFU, 1},
    {NULL, "step_seconds", COLUMN_REAL, END_MEDIAN, CLI_STEP_SECONDS, 1},
    {NULL, "hardware_bound_seconds", COLUMN_REAL, END_MEDIAN, CLI_HARDWARE_BOUND, 1},
    {NULL, "schedule_bound_seconds", COLUMN_REAL, END_MEDIAN, CLI_SCHEDULE_BOUND, 1},
    {NULL, "eval_loss", COLUMN_RARE, END_LAST, CLI_EVAL_LOSS, 1},
    {NULL, "eval_bits_per_byte", COLUMN_RARE, END_LAST, CLI_EVAL_BITS_PER_BYTE, 1},
    {"time_ms", "forward", COLUMN_REAL, END_MEDIAN, CLI_MS_FORWARD, 1},
    {"time_ms", "backward", COLUMN_REAL, END_MEDIAN, CLI_MS_BACKWARD, 1},
    {"time_ms", "stall", COLUMN_REAL, END_MEDIAN, CLI_MS_STALL, 1},
    {"time_ms", "other", COLUMN_REAL, END_MEDIAN, CLI_MS_OTHER, 1},
    {"busy_ms", NULL, COLUMN_REAL, END_MEDIAN, CLI_BUSY_MS, STRATA_LANE_COUNT},
    {"stall_ms", NULL, COLUMN_REAL, END_MEDIAN, CLI_STALL_MS, STRATA_LANE_COUNT},
    {"bytes", "upload", COLUMN_WHOLE, END_MEDIAN, CLI_UPLOAD, 1},
    {"bytes", "download", COLUMN_WHOLE, END_MEDIAN, CLI_DOWNLOAD, 1},
    {"bytes", "read", COLUMN_WHOLE, END_MEDIAN, CLI_READ, 1},
    {"bytes", "write", COLUMN_WHOLE, END_MEDIAN, CLI_WRITE, 1},
    {"bytes", "comm", COLUMN_WHOLE, END_MEDIAN, CLI_COMM, 1},
    {"resident", NULL, COLUMN_WHOLE, END_MEDIAN, CLI_RESIDENT, STRATA_TIER_COUNT},
    {"pressure", "major_faults", COLUMN_WHOLE, END_MEDIAN, CLI_MAJOR_FAULTS, 1},
    {"pressure", "swap_bytes", COLUMN_WHOLE, END_MEDIAN, CLI_SWAP_BYTES, 1},
    {"pressure", "psi_some_ms", COLUMN_REAL, END_MEDIAN, CLI_PSI_SOME, 1},
    {"pressure", "psi_full_ms", COLUMN_REAL, END_MEDIAN, CLI_PSI_FULL, 1},
};
#define COLUMN_ROWS (sizeof(columns) / sizeof(columns[0]))

/* --- one step --- */

static double known(double value)
{
    return value > 0 ? value : (double)NAN;
}

static void fill_times(double *value, const struct strata_step *r)
{
    value[CLI_MS_FORWARD] = r->forward_ms;
    value[CLI_MS_BACKWARD] = r->backward_ms;
    value[CLI_MS_STALL] = r->stall_ms;
    value[CLI_MS_OTHER] = r->other_ms;
    for (int i = 0; i < STRATA_LANE_COUNT; i++) {
        value[CLI_BUSY_MS + i] = r->busy_ms[i];
        value[CLI_STALL_MS + i] = r->lane_stall_ms[i];
    }
}

static void fill_bytes(double *value, const struct strata_step *r, const struct strata_plan_info *planned)
{
    value[CLI_UPLOAD] = (double)r->upload_bytes;
    value[CLI_DOWNLOAD] = (double)r->download_bytes;
    value[CLI_READ] = (double)r->read_bytes;
    value[CLI_WRITE] = (double)r->write_bytes;
    value[CLI_COMM] = (double)r->comm_bytes;
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        value[CLI_RESIDENT + t] = (double)planned->needed_bytes[t];
}

void cli_step_fill(struct cli_step *out, const struct strata_plan_info *planned, const struct strata_data *bits_per_byte_of,
                   const struct strata_step *result, uint64_t step, uint64_t tokens_total)
{
    const double tokens_per_second = result->seconds > 0 ? (double)result->tokens / result->seconds : 0;
    double *value = out->value;

    value[CLI_STEP] = (double)step;
    value[CLI_EPOCH] = (double)NAN;
    value[CLI_LOSS] = result->loss;
    value[CLI_LOSS_MEAN] = (double)NAN;
    value[CLI_BITS_PER_BYTE] = strata_data_bits_per_byte(bits_per_byte_of, result->loss);
    value[CLI_GRAD_NORM] = result->grad_norm;
    value[CLI_LR] = result->lr;
    value[CLI_LOSS_SCALE] = result->loss_scale;
    value[CLI_SKIPPED] = result->skipped;
    value[CLI_WEIGHTS_OVERFLOWED] = (double)result->weights_overflowed;
    value[CLI_TOKENS] = (double)result->tokens;
    value[CLI_TOKENS_TOTAL] = (double)tokens_total;
    value[CLI_TOKENS_PER_SECOND] = tokens_per_second;
    value[CLI_MFU] = planned->device_flops > 0 ? planned->token_flops * tokens_per_second / planned->device_flops : (double)NAN;
    value[CLI_STEP_SECONDS] = result->seconds;
    value[CLI_HARDWARE_BOUND] = known(planned->hardware_bound_seconds);
    value[CLI_SCHEDULE_BOUND] = known(planned->schedule_bound_seconds);
    value[CLI_EVAL_LOSS] = (double)NAN;
    value[CLI_EVAL_BITS_PER_BYTE] = (double)NAN;
    fill_times(value, result);
    fill_bytes(value, result, planned);
    out->stalled_by = result->stalled_by < STRATA_LANE_COUNT ? (enum strata_lane)result->stalled_by : STRATA_LANE_COUNT;
}

static double counted(uint64_t value, double unit)
{
    return value == ST_PRESSURE_UNKNOWN ? (double)NAN : (double)value * unit;
}

static void pressure_values(double *values, const struct st_pressure_sample *moved)
{
    values[CLI_MAJOR_FAULTS] = counted(moved->major_faults, 1);
    values[CLI_SWAP_BYTES] = counted(moved->swap_bytes, 1);
    values[CLI_PSI_SOME] = counted(moved->some_us, 1e-3);
    values[CLI_PSI_FULL] = counted(moved->full_us, 1e-3);
}

void cli_step_pressure(struct cli_step *out, const struct st_pressure_verdict *verdict)
{
    pressure_values(out->value, &verdict->moved);
    out->pressed = verdict->pressed;
}

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
    for (int c = 0; c < CLI_COLUMN_COUNT; c++)
        for (uint32_t i = 0; i < CLI_SAMPLES_MAX / 2; i++)
            m->samples[c][i] = m->samples[c][2 * i];
    m->count = CLI_SAMPLES_MAX / 2;
    m->stride *= 2;
}

bool cli_medians_bound_holds(const struct cli_medians *m)
{
    return m->beaten * 4 <= m->steps;
}

void cli_medians_add(struct cli_medians *m, const struct cli_step *step)
{
    const bool sampled = m->steps == 0 || (m->steps - 1) % m->stride == 0;

    if (m->steps == 0)
        m->tokens_before = step->value[CLI_TOKENS_TOTAL] - step->value[CLI_TOKENS];
    if (m->steps == 1) {
        m->count = 0;
        memset(m->sum, 0, sizeof(m->sum));
        m->beaten = 0;
    }
    m->beaten += !cli_bound_holds(step->value[CLI_STEP_SECONDS], step->value[CLI_SCHEDULE_BOUND]);
    if (sampled && m->count == CLI_SAMPLES_MAX)
        thin_out(m);
    for (int c = 0; c < CLI_COLUMN_COUNT; c++) {
        if (sampled)
            m->samples[c][m->count] = step->value[c];
        if (!isnan(step->value[c]))
            m->sum[c] += step->value[c];
        if (!isnan(step->value[c]) || (c != CLI_EVAL_LOSS && c != CLI_EVAL_BITS_PER_BYTE))
            m->last[c] = step->value[c]; /* a loss that is no number is the last one, too */
    }
    m->count += sampled;
    m->steps++;
    m->skipped += step->value[CLI_SKIPPED] != 0;
    m->pressed += step->pressed;
    m->stalled_by[step->stalled_by < STRATA_LANE_COUNT ? step->stalled_by : STRATA_LANE_COUNT]++;
}

/* The first sample is the second step, which reads less than those after it: what no update has written yet is not read. */
double cli_medians_get(struct cli_medians *m, enum cli_column column)
{
    const uint32_t first = column >= CLI_UPLOAD && column <= CLI_COMM && m->count > 1 ? 1 : 0;
    uint32_t count = 0;

    for (uint32_t i = first; i < m->count; i++)
        if (!isnan(m->samples[column][i]))
            m->scratch[count++] = m->samples[column][i];
    return count > 0 ? st_stats_median(m->scratch, count) : (double)NAN;
}

/* --- JSON lines --- */

static const char *column_key(const struct column *column, uint32_t i)
{
    if (column->key != NULL)
        return column->key;
    return column->count == STRATA_LANE_COUNT ? strata_lane_name(i) : strata_tier_name((strata_tier)i);
}

static void put_value(struct st_json_writer *w, const char *key, enum column_type type, double value)
{
    switch (type) {
    case COLUMN_FLAG:
        st_json_put_bool(w, key, value != 0);
        return;
    case COLUMN_WHOLE:
        if (value >= 0 && value == floor(value)) {
            st_json_put_u64(w, key, (uint64_t)value);
            return;
        }
        break;
    case COLUMN_RARE:
        if (isnan(value))
            return;
        break;
    case COLUMN_REAL:
        break;
    }
    st_json_put_double(w, key, value);
}

typedef double column_value_fn(void *ctx, const struct column *column, uint32_t i);

/* All columns that `wanted` takes. */
static void put_columns(struct st_json_writer *w, column_value_fn *value, void *ctx, bool summary)
{
    const char *open = NULL;

    for (size_t row = 0; row < COLUMN_ROWS; row++) {
        const struct column *column = &columns[row];

        if (summary && column->end == END_NONE)
            continue;
        if (open != NULL && (column->object == NULL || strcmp(open, column->object) != 0)) {
            st_json_object_close(w);
            open = NULL;
        }
        if (open == NULL && column->object != NULL) {
            st_json_object_open(w, column->object);
            open = column->object;
        }
        for (uint32_t i = 0; i < column->count; i++)
            put_value(w, column_key(column, i), column->type, value(ctx, column, i));
    }
    if (open != NULL)
        st_json_object_close(w);
}

static double step_value(void *ctx, const struct column *column, uint32_t i)
{
    const struct cli_step *step = ctx;

    return step->value[(uint32_t)column->first + i];
}

static double summary_value(void *ctx, const struct column *column, uint32_t i)
{
    struct cli_medians *m = ctx;
    const enum cli_column at = (enum cli_column)((uint32_t)column->first + i);

    return column->end == END_LAST ? m->last[at] : cli_medians_get(m, at);
}

void cli_metrics_step(struct st_json_writer *w, const struct cli_step *step)
{
    struct cli_step copy = *step;

    st_json_object_open(w, NULL);
    put_columns(w, step_value, &copy, false);
    st_json_object_close(w);
    st_json_end_line(w);
}

void cli_metrics_eval(struct st_json_writer *w, uint64_t step, const struct strata_eval *eval)
{
    st_json_object_open(w, NULL);
    st_json_put_u64(w, "step", step);
    st_json_put_double(w, "eval_loss", eval->loss);
    if (!isnan(eval->bits_per_byte))
        st_json_put_double(w, "eval_bits_per_byte", eval->bits_per_byte);
    st_json_object_close(w);
    st_json_end_line(w);
}

/* Pressure over the whole run; "pressure" itself has the medians of the steps. */
static void put_pressure(struct st_json_writer *w, const struct cli_medians *medians, const struct st_pressure_verdict *run)
{
    struct cli_step total;

    pressure_values(total.value, &run->moved);
    st_json_object_open(w, "pressure_total");
    for (size_t row = 0; row < COLUMN_ROWS; row++)
        if (columns[row].first >= CLI_MAJOR_FAULTS)
            put_value(w, columns[row].key, columns[row].type, total.value[columns[row].first]);
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
    if (isnan(cli_medians_get(medians, CLI_SCHEDULE_BOUND)))
        st_json_put_string(w, "bound_holds", NULL);
    else
        st_json_put_bool(w, "bound_holds", cli_medians_bound_holds(medians));
}

void cli_metrics_summary(struct st_json_writer *w, struct cli_medians *medians, const struct cli_summary *summary)
{
    struct st_written written;

    st_json_object_open(w, NULL);
    st_json_object_open(w, "summary");
    put_columns(w, summary_value, medians, true);
    put_pressure(w, medians, &summary->pressure);
    put_bound_holds(w, medians);
    put_bound_by(w, medians, &summary->pressure);
    st_written_counted(&written, cli_medians_get(medians, CLI_WRITE), summary->write_bytes, summary->seconds);
    st_written_put(&written, w);
    st_json_put_u64(w, "steps", medians->steps);
    st_json_put_u64(w, "skipped_steps", medians->skipped);
    st_json_put_double(w, "last_loss", medians->last[CLI_LOSS]);
    if (summary->evals != NULL)
        cli_evals_put(summary->evals, w);
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
