/* api/door_metrics.c - strata/train.h: the numbers of a step, by one table of their names. */
#include "api/metrics.h"
#include "strata/strata.h"

#include <math.h>

struct row {
    const char *object; /* it stands in, NULL: the outermost one; numbers of an object stand together */
    const char *key;    /* NULL: those of lanes or tiers, with their names */
    enum strata_metric_kind kind;
    uint32_t count;
};

/* In the order of enum strata_metric. */
static const struct row rows[] = {
    {NULL, "step", STRATA_METRIC_WHOLE, 1},
    {NULL, "epoch", STRATA_METRIC_REAL, 1},
    {NULL, "loss", STRATA_METRIC_REAL, 1},
    {NULL, "loss_mean20", STRATA_METRIC_REAL, 1},
    {NULL, "aux_loss", STRATA_METRIC_RARE, 1},
    {NULL, "bits_per_byte", STRATA_METRIC_REAL, 1},
    {NULL, "grad_norm", STRATA_METRIC_REAL, 1},
    {NULL, "lr", STRATA_METRIC_REAL, 1},
    {NULL, "loss_scale", STRATA_METRIC_REAL, 1},
    {NULL, "skipped", STRATA_METRIC_FLAG, 1},
    {NULL, "weights_overflowed", STRATA_METRIC_WHOLE, 1},
    {NULL, "tokens", STRATA_METRIC_WHOLE, 1},
    {NULL, "tokens_total", STRATA_METRIC_WHOLE, 1},
    {NULL, "tokens_per_second", STRATA_METRIC_REAL, 1},
    {NULL, "mfu", STRATA_METRIC_REAL, 1},
    {NULL, "step_seconds", STRATA_METRIC_REAL, 1},
    {NULL, "hardware_bound_seconds", STRATA_METRIC_REAL, 1},
    {NULL, "schedule_bound_seconds", STRATA_METRIC_REAL, 1},
    {NULL, "eval_loss", STRATA_METRIC_RARE, 1},
    {NULL, "eval_bits_per_byte", STRATA_METRIC_RARE, 1},
    {"time_ms", "forward", STRATA_METRIC_REAL, 1},
    {"time_ms", "backward", STRATA_METRIC_REAL, 1},
    {"time_ms", "stall", STRATA_METRIC_REAL, 1},
    {"time_ms", "other", STRATA_METRIC_REAL, 1},
    {"busy_ms", NULL, STRATA_METRIC_REAL, STRATA_LANE_COUNT},
    {"stall_ms", NULL, STRATA_METRIC_REAL, STRATA_LANE_COUNT},
    {"bytes", "upload", STRATA_METRIC_WHOLE, 1},
    {"bytes", "download", STRATA_METRIC_WHOLE, 1},
    {"bytes", "read", STRATA_METRIC_WHOLE, 1},
    {"bytes", "write", STRATA_METRIC_WHOLE, 1},
    {"bytes", "comm", STRATA_METRIC_WHOLE, 1},
    {"early", "made", STRATA_METRIC_RARE, 1},
    {"early", "kept", STRATA_METRIC_RARE, 1},
    {"early", "redone", STRATA_METRIC_RARE, 1},
    {"early", "redone_bytes", STRATA_METRIC_RARE, 1},
    {"early", "wasted_bytes", STRATA_METRIC_RARE, 1},
    {"resident", NULL, STRATA_METRIC_WHOLE, STRATA_TIER_COUNT},
    {"pressure", "major_faults", STRATA_METRIC_WHOLE, 1},
    {"pressure", "swap_bytes", STRATA_METRIC_WHOLE, 1},
    {"pressure", "psi_some_ms", STRATA_METRIC_REAL, 1},
    {"pressure", "psi_full_ms", STRATA_METRIC_REAL, 1},
};

const char *strata_metric_name(uint32_t metric, const char **object, enum strata_metric_kind *kind)
{
    if (object == NULL || kind == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); metric -= rows[i++].count) {
        if (metric >= rows[i].count)
            continue;
        *object = rows[i].object;
        *kind = rows[i].kind;
        if (rows[i].key != NULL)
            return rows[i].key;
        return rows[i].count == STRATA_LANE_COUNT ? strata_lane_name(metric) : strata_tier_name((strata_tier)metric);
    }
    return NULL;
}

/* --- where they come from --- */

static double known(double value)
{
    return value > 0 ? value : (double)NAN;
}

static void fill_times(double *value, const struct strata_step *r)
{
    value[STRATA_METRIC_MS_FORWARD] = r->forward_ms;
    value[STRATA_METRIC_MS_BACKWARD] = r->backward_ms;
    value[STRATA_METRIC_MS_STALL] = r->stall_ms;
    value[STRATA_METRIC_MS_OTHER] = r->other_ms;
    for (int i = 0; i < STRATA_LANE_COUNT; i++) {
        value[STRATA_METRIC_BUSY_MS + i] = r->busy_ms[i];
        value[STRATA_METRIC_STALL_MS + i] = r->lane_stall_ms[i];
    }
}

static void fill_bytes(double *value, const struct strata_step *r, const struct strata_plan_info *planned)
{
    value[STRATA_METRIC_UPLOAD] = (double)r->upload_bytes;
    value[STRATA_METRIC_DOWNLOAD] = (double)r->download_bytes;
    value[STRATA_METRIC_READ] = (double)r->read_bytes;
    value[STRATA_METRIC_WRITE] = (double)r->write_bytes;
    value[STRATA_METRIC_COMM] = (double)r->comm_bytes;
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        value[STRATA_METRIC_RESIDENT + t] = (double)planned->needed_bytes[t];
}

static void fill_early(double *value, const struct strata_step *r)
{
    value[STRATA_METRIC_EARLY_MADE] = r->early_made;
    value[STRATA_METRIC_EARLY_KEPT] = r->early_kept;
    value[STRATA_METRIC_EARLY_REDONE] = r->early_redone;
    value[STRATA_METRIC_REDONE_BYTES] = (double)r->redone_bytes;
    value[STRATA_METRIC_WASTED_BYTES] = (double)r->wasted_bytes;
}

void st_metrics_fill(struct strata_metrics *out, const struct strata_plan_info *planned, const struct strata_data *data,
                     const struct strata_step *result, uint64_t step, uint64_t tokens_total)
{
    const double tokens_per_second = result->seconds > 0 ? (double)result->tokens / result->seconds : 0;
    double *value = out->value;

    for (int i = 0; i < STRATA_METRIC_COUNT; i++)
        value[i] = (double)NAN;
    value[STRATA_METRIC_STEP] = (double)step;
    value[STRATA_METRIC_LOSS] = result->loss;
    value[STRATA_METRIC_AUX_LOSS] = result->aux_loss;
    value[STRATA_METRIC_BITS_PER_BYTE] = strata_data_bits_per_byte(data, result->token_loss);
    value[STRATA_METRIC_GRAD_NORM] = result->grad_norm;
    value[STRATA_METRIC_LR] = result->lr;
    value[STRATA_METRIC_LOSS_SCALE] = result->loss_scale;
    value[STRATA_METRIC_SKIPPED] = result->skipped;
    value[STRATA_METRIC_WEIGHTS_OVERFLOWED] = (double)result->weights_overflowed;
    value[STRATA_METRIC_TOKENS] = (double)result->tokens;
    value[STRATA_METRIC_TOKENS_TOTAL] = (double)tokens_total;
    value[STRATA_METRIC_TOKENS_PER_SECOND] = tokens_per_second;
    if (planned->device_flops > 0)
        value[STRATA_METRIC_MFU] = planned->token_flops * tokens_per_second / planned->device_flops;
    value[STRATA_METRIC_STEP_SECONDS] = result->seconds;
    value[STRATA_METRIC_HARDWARE_BOUND] = known(planned->hardware_bound_seconds);
    value[STRATA_METRIC_SCHEDULE_BOUND] = known(planned->schedule_bound_seconds);
    fill_times(value, result);
    fill_bytes(value, result, planned);
    if (planned->early_pages > 0)
        fill_early(value, result);
    out->stalled_by = result->stalled_by < STRATA_LANE_COUNT ? result->stalled_by : STRATA_LANE_COUNT;
    out->pressed = false;
}

static double counted(uint64_t value, double unit)
{
    return value == ST_PRESSURE_UNKNOWN ? (double)NAN : (double)value * unit;
}

void st_metrics_press(struct strata_metrics *out, const struct st_pressure_verdict *verdict)
{
    out->value[STRATA_METRIC_MAJOR_FAULTS] = counted(verdict->moved.major_faults, 1);
    out->value[STRATA_METRIC_SWAP_BYTES] = counted(verdict->moved.swap_bytes, 1);
    out->value[STRATA_METRIC_PSI_SOME] = counted(verdict->moved.some_us, 1e-3);
    out->value[STRATA_METRIC_PSI_FULL] = counted(verdict->moved.full_us, 1e-3);
    out->pressed = verdict->pressed;
}
