/* cli/report/bound_by.c - adds up the steps' time by resource and names the largest. */
#include "cli/report/bound_by.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SECOND_NAMED 0.05 /* the next resource is named from this fraction on */
#define LANE_NAMED   0.01
#define HOLDS_FROM   0.95 /* of the bound */

enum resource { COMPUTE, UPDATE, NVME_READ, NVME_WRITE, UPLOAD, DOWNLOAD, NETWORK, RESOURCE_COUNT };

static const char *const names[] = {"compute", "update", "nvme read", "nvme write", "upload", "download", "network"};

static const enum resource resource_of[STRATA_LANE_COUNT] = {
    [STRATA_LANE_COMPUTE] = COMPUTE,       [STRATA_LANE_UPLOAD] = UPLOAD,
    [STRATA_LANE_DOWNLOAD] = DOWNLOAD,     [STRATA_LANE_UPDATE] = UPDATE,
    [STRATA_LANE_UPDATE_DEVICE] = UPDATE,  [STRATA_LANE_READ_STATE] = NVME_READ,
    [STRATA_LANE_READ_WEIGHT] = NVME_READ, [STRATA_LANE_READ_ACTIVATION] = NVME_READ,
    [STRATA_LANE_WRITE] = NVME_WRITE,      [STRATA_LANE_COMM] = NETWORK,
    [STRATA_LANE_CALLER] = COMPUTE,
};

struct fractions {
    double used[RESOURCE_COUNT];   /* part of the step in which it ran */
    double waited[RESOURCE_COUNT]; /* part of the step in which compute waited for it */
    double lane[STRATA_LANE_COUNT];
};

static void divide(struct fractions *s, const double *sum)
{
    static const enum strata_lane others[] = {STRATA_LANE_UPDATE, STRATA_LANE_UPDATE_DEVICE, STRATA_LANE_UPLOAD,
                                              STRATA_LANE_DOWNLOAD};
    const double whole = sum[STRATA_METRIC_STEP_SECONDS] * 1e3;
    double busy = 0;

    *s = (struct fractions){.used[COMPUTE] = (sum[STRATA_METRIC_MS_FORWARD] + sum[STRATA_METRIC_MS_BACKWARD]) / whole};
    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        s->lane[lane] = sum[STRATA_METRIC_STALL_MS + lane] / whole;
        s->waited[resource_of[lane]] += s->lane[lane];
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        busy += sum[STRATA_METRIC_BUSY_MS + others[i]];
    for (size_t i = 0; busy > 0 && i < sizeof(others) / sizeof(others[0]); i++)
        s->used[resource_of[others[i]]] += sum[STRATA_METRIC_MS_OTHER] / whole * sum[STRATA_METRIC_BUSY_MS + others[i]] / busy;
}

/* The largest resource except `not`. */
static int largest(const struct fractions *s, int not )
{
    int best = -1;

    for (int r = 0; r < RESOURCE_COUNT; r++)
        if (r != not &&(best < 0 || s->used[r] + s->waited[r] > s->used[best] + s->waited[best]))
            best = r;
    return best;
}

static size_t put_lanes(char *text, size_t bytes, const struct fractions *s, int resource)
{
    size_t length = 0;

    for (int lane = 0; lane < STRATA_LANE_COUNT; lane++)
        if ((int)resource_of[lane] == resource && s->lane[lane] >= LANE_NAMED)
            length +=
                (size_t)snprintf(text + length, bytes - length, "%s%s", length > 0 ? ", " : "", strata_lane_name((uint32_t)lane));
    return length;
}

/* Writes "62 % of the step waited for read_state", or the resource that ran that long. */
static void describe(char *text, size_t bytes, const struct fractions *s, int resource)
{
    const double used = s->used[resource], waited = s->waited[resource];
    char lanes[128] = "";

    if (waited <= used || put_lanes(lanes, sizeof(lanes), s, resource) == 0)
        snprintf(text, bytes, "%.0f %% of the step went into %s", (used + waited) * 100,
                 resource == COMPUTE ? "forward and backward" : names[resource]);
    else
        snprintf(text, bytes, "%.0f %% of the step waited for %s", (used + waited) * 100, lanes);
}

static void name_memory(struct cli_bound_by *out, double fraction)
{
    out->resource = "memory pressure";
    out->fraction = fraction;
    snprintf(out->text, sizeof(out->text), "memory pressure: %.0f %% of the time waiting for memory", fraction * 100);
}

void cli_bound_by(struct cli_bound_by *out, const struct cli_medians *m, double memory_fraction)
{
    char text[CLI_BOUND_TEXT_MAX / 3], more[CLI_BOUND_TEXT_MAX / 3];
    struct fractions s;
    int first, second;

    *out = (struct cli_bound_by){.fraction = (double)NAN};
    if (!(m->sum[STRATA_METRIC_STEP_SECONDS] > 0))
        return;
    divide(&s, m->sum);
    first = largest(&s, -1);
    second = largest(&s, first);
    out->resource = names[first];
    out->fraction = s.used[first] + s.waited[first];
    if (2 * memory_fraction > out->fraction) {
        name_memory(out, memory_fraction);
        return;
    }
    describe(text, sizeof(text), &s, first);
    describe(more, sizeof(more), &s, second);
    if (s.used[second] + s.waited[second] < SECOND_NAMED)
        snprintf(out->text, sizeof(out->text), "%s: %s", names[first], text);
    else
        snprintf(out->text, sizeof(out->text), "%s: %s; then %s: %s", names[first], text, names[second], more);
}

bool cli_bound_holds(double step_seconds, double bound_seconds)
{
    return !(step_seconds < HOLDS_FROM * bound_seconds);
}
