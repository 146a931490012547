/* bench/step/step_run.c - one case of bench step: runs an engine, and probes around it.
 *
 * A device with its own memory is probed while no engine holds that memory; the rest of the machine is also probed between the
 * steps. */
#include "bench/step/step_case.h"
#include "core/base/error.h"
#include "offload/config/config_options.h"
#include "offload/device/device.h"
#include "offload/device/paced/device_paced.h"

#include <math.h>
#include <string.h>

#define WARM_UPS   2u /* the first step has no update pending, and the second has a cold disk */
#define BETWEEN    4u /* the most probes between the steps of one run */
#define RATE_COUNT 12u

/* The i-th rate that probes measure. */
static double *rate_at(struct st_rates *r, uint32_t i)
{
    double *const rates[RATE_COUNT] = {&r->matmul_flops, &r->block_flops, &r->experts_flops, &r->head_flops,
                                       &r->upload,       &r->download,    &r->memory,        &r->update,
                                       &r->checksum,     &r->read,        &r->write,         &r->mixed};

    return rates[i];
}

static bool is_paced(const struct step_bench *b)
{
    return strcmp(b->opts->device, "paced") == 0;
}

static bool has_memory(const struct step_bench *b)
{
    return st_device_find(b->opts->device)->memory != NULL;
}

/* --- probes --- */

static unsigned host_parts(const struct step_bench *b)
{
    return b->disk ? ST_MEASURE_UPDATE | ST_MEASURE_DISK : ST_MEASURE_UPDATE;
}

static unsigned device_parts(const struct step_bench *b)
{
    return is_paced(b) ? 0 : ST_MEASURE_COMPUTE | ST_MEASURE_LINKS;
}

static struct st_machine_opts machine_opts(const struct step_bench *b)
{
    struct st_machine_opts opts;

    st_config_machine_opts(&opts, &b->config);
    opts.topology = b->of->topology;
    opts.device = is_paced(b) ? "cpu" : b->opts->device;
    return opts;
}

static strata_status probe(const struct step_bench *b, struct st_machine *machine, unsigned what)
{
    const struct st_config *c = &b->config;
    const struct st_machine_opts opts = machine_opts(b);
    const strata_status st = st_machine_measure(machine, &b->of->workload, is_paced(b) ? NULL : &b->compute, &opts, what);

    if (strcmp(c->io_method, "fake") == 0) {
        machine->rates.read = machine->rates.write = machine->rates.mixed = (double)c->io_limit;
        machine->rates.drives = 0;
        machine->rates.latency_io = 0;
    }
    if (c->upload_limit > 0 && (double)c->upload_limit < machine->rates.upload)
        machine->rates.upload = (double)c->upload_limit;
    if (c->download_limit > 0 && (double)c->download_limit < machine->rates.download)
        machine->rates.download = (double)c->download_limit;
    return st;
}

strata_status step_probe(const struct step_bench *b, struct st_machine *machine)
{
    return b->opts->device == NULL ? STRATA_OK : probe(b, machine, host_parts(b) | device_parts(b));
}

/* Adds a set of rates: probes `what` again and copies the other rates from the last set.  Does nothing once the table is full. */
static strata_status probe_again(struct step_bench *b, struct step_case *c, unsigned what)
{
    struct st_machine *m = &c->probed[c->probe_count];

    if (what == 0 || c->probe_count == STEP_PROBES)
        return STRATA_OK;
    *m = c->probe_count > 0 ? m[-1] : c->machine;
    c->probe_count++;
    return probe(b, m, what);
}

void step_median_rates(struct st_machine *out, const struct step_case *c)
{
    struct st_machine probed[STEP_PROBES];
    double values[STEP_PROBES];

    memcpy(probed, c->probed, sizeof(probed));
    *out = c->machine;
    for (uint32_t r = 0; r < RATE_COUNT && c->probe_count > 0; r++) {
        for (uint32_t i = 0; i < c->probe_count; i++)
            values[i] = *rate_at(&probed[i].rates, r);
        *rate_at(&out->rates, r) = bench_median(values, c->probe_count);
    }
    st_rates_stage(&out->rates, c->plan->program.needed[STRATA_TIER_HOST], &c->staged);
}

static strata_status measure_ceiling(struct step_bench *b)
{
    struct st_matmul_ceiling found;
    struct st_machine_opts opts;
    strata_status st;

    if (is_paced(b))
        return STRATA_OK;
    opts = machine_opts(b);
    st = st_machine_matmul_ceiling(&found, b->of->workload.dtype, &opts);
    if (st == STRATA_OK && found.flops > b->ceiling.flops)
        b->ceiling = found;
    return st;
}

/* --- steps --- */

/* Steps are dropped at equal distances, the first half of one from the start. */
static bool is_dropped(double clip_rate, uint32_t step)
{
    return floor(step * clip_rate + 0.5) > floor((step - 1) * clip_rate + 0.5);
}

uint32_t step_first_dropped(double clip_rate)
{
    uint32_t step = 1;

    while (!is_dropped(clip_rate, step))
        step++;
    return step;
}

double step_seconds(const struct step_bench *b, const struct step_case *c)
{
    double kept[BENCH_REPEATS_MAX], redone[BENCH_REPEATS_MAX];
    uint32_t kept_count = 0, redone_count = 0;

    for (uint32_t i = 0; i < c->done; i++)
        if (c->redone[i])
            redone[redone_count++] = c->seconds[i];
        else
            kept[kept_count++] = c->seconds[i];
    if (kept_count == 0 || redone_count == 0)
        return bench_median(c->seconds, c->done);
    return (1 - b->opts->clip_rate) * bench_median(kept, kept_count) + b->opts->clip_rate * bench_median(redone, redone_count);
}

static void take_result(struct step_case *c, const struct st_step_result *result)
{
    c->redone[c->done] = result->early_redone;
    c->seconds[c->done] = result->seconds;
    c->stall_ms[c->done] = result->stall_ms;
    c->upload_ms[c->done] = result->busy_ms[STRATA_LANE_UPLOAD];
    c->download_ms[c->done++] = result->busy_ms[STRATA_LANE_DOWNLOAD];
    c->moved = result->bytes;
    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++)
        c->busy_ms[lane] += result->busy_ms[lane];
}

/* Uses the learning rates of a real run: they do not affect the time, but a schedule may be needed to keep the losses finite. */
static strata_status run_step(const struct step_bench *b, struct st_engine *engine, struct st_step_result *result)
{
    st_config_set_rates(&b->config, engine);
    return st_engine_step(engine, b->tokens, b->targets, NULL, result);
}

static strata_status measured_steps(struct step_bench *b, struct step_case *c, struct st_engine *engine, uint32_t until)
{
    const uint32_t between = (until - c->done + BETWEEN - 1) / BETWEEN, begin = c->done;
    const unsigned what = host_parts(b) | (has_memory(b) ? 0 : device_parts(b));
    struct st_step_result result;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < WARM_UPS && st == STRATA_OK; i++)
        st = run_step(b, engine, &result);
    if (c->op_times != NULL)
        st_op_times_record(c->op_times, true);
    while (st == STRATA_OK && c->done < until) {
        st = run_step(b, engine, &result);
        if (st != STRATA_OK)
            break;
        take_result(c, &result);
        if (is_dropped(b->opts->clip_rate, c->done))
            st_engine_early_drop(engine);
        bench_progress(&b->setup, "step", c->done);
        if ((c->done - begin) % between == 0)
            st = probe_again(b, c, what);
    }
    if (c->op_times != NULL)
        st_op_times_record(c->op_times, false);
    return st;
}

/* --- an engine --- */

/* Free device memory; NaN: the device uses host memory. */
static double free_memory(const struct step_bench *b)
{
    struct st_device_memory memory;

    if (!has_memory(b) || st_device_find(b->opts->device)->memory(st_device_index(b->opts->device), &memory) != STRATA_OK)
        return NAN;
    return (double)memory.free;
}

static strata_status open_engine(struct step_bench *b, struct step_case *c)
{
    const struct bench_step_opts *o = b->opts;
    struct st_engine_opts opts;
    strata_status st;

    b->paced = (struct st_paced_model){.workload = &c->plan->program.workload, .machine = c->machine};
    b->free_before = free_memory(b);
    st_config_engine_opts(&opts, &b->config);
    opts.program = &c->plan->program;
    opts.compute = is_paced(b) ? st_paced_compute(&b->paced) : b->compute;
    opts.topology = b->of->topology;
    opts.device = o->device;
    opts.pace = &c->machine;
    opts.op_times = c->op_times;
    opts.nvme.fake_seed = o->fake_seed;
    opts.nvme.fake_latency_us = o->fake_latency_us;
    st = st_engine_create(&b->engine, &opts);
    bench_progress(&b->setup, "loading the state", 0);
    if (st == STRATA_OK)
        c->staged = *st_engine_staged(b->engine);
    if (st == STRATA_OK)
        st = is_paced(b) ? st_engine_load(b->engine, st_paced_fill, NULL)
                         : st_engine_load(b->engine, b->weights.read, b->weights.ctx);
    return st;
}

static void close_engine(struct step_bench *b)
{
    st_engine_destroy(b->engine);
    b->engine = NULL;
}

/* Before its engine exists. */
static strata_status measure_first(struct step_bench *b, struct step_case *c)
{
    strata_status st;

    bench_progress(&b->setup, "measuring the device", 0);
    st = measure_ceiling(b);
    return st == STRATA_OK ? probe_again(b, c, host_parts(b) | device_parts(b)) : st;
}

strata_status step_run(struct step_bench *b, struct step_case *c, uint32_t until, bool keep)
{
    strata_status st = STRATA_OK;

    if (b->engine == NULL && (st = measure_first(b, c)) == STRATA_OK)
        st = open_engine(b, c);
    if (st == STRATA_OK)
        st = measured_steps(b, c, b->engine, until);
    if (st == STRATA_OK)
        c->beside_bytes =
            fmax(c->beside_bytes, b->free_before - free_memory(b) - (double)c->plan->program.needed[STRATA_TIER_DEVICE]);
    bench_progress(&b->setup, NULL, 0);
    if (st == STRATA_OK && keep)
        return STRATA_OK;
    close_engine(b);
    if (st == STRATA_OK && has_memory(b))
        st = probe_again(b, c, device_parts(b));
    return st;
}
