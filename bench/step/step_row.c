/* bench/step/step_row.c - prints the results of a case of bench step as a row and, for people, as a sentence below it. */
#include "bench/step/step_case.h"
#include "core/base/print.h"
#include "core/trace/stats.h"

#include <math.h>

#define HIDDEN 14u /* numbers that are in the sentence but not in the table */

/* Numbers that are not available are NaN. */
struct figures {
    double seconds, bound, mfu, upload, download, practicality;
};

static double over(double a, double b)
{
    return b > 0 ? a / b : NAN;
}

/* The rate of a step's copies while their lane was busy, divided by the rate of the link for the same copies alone. */
static double link_ratio(uint64_t bytes, const double *busy_ms, uint32_t count, double alone)
{
    return bytes == 0 ? NAN : over(over((double)bytes, bench_median(busy_ms, count) * 1e-3), alone);
}

static struct figures compute(const struct step_bench *b, const struct step_case *c, double fastest)
{
    const bool ran = b->opts->device != NULL;
    const struct st_workload *w = &c->plan->program.workload;
    const double tokens = (double)w->micro_batch * w->seq * w->grad_accum;
    const double seconds = ran ? step_seconds(b, c) : c->forecast;
    struct figures f = {.seconds = seconds,
                        .bound = c->figures.bounds.schedule > 0 ? c->figures.bounds.schedule : NAN,
                        .mfu = over(w->model_flops_per_token * tokens / seconds, b->ceiling.flops),
                        .upload = NAN,
                        .download = NAN,
                        .practicality = fastest / seconds};

    if (ran) {
        f.upload = link_ratio(c->moved.upload, c->upload_ms, c->done, c->figures.machine.rates.upload);
        f.download = link_ratio(c->moved.download, c->download_ms, c->done, c->figures.machine.rates.download);
    }
    return f;
}

static uint32_t redone_of(const struct step_case *c)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->done; i++)
        count += c->redone[i];
    return count;
}

static void print_part(FILE *file, const char *what, double value)
{
    if (!isnan(value))
        st_print(file, ", %s %.3f", what, value);
}

static void print_sentence(const struct step_bench *b, const struct step_case *c, const struct figures *f)
{
    FILE *const file = b->printer.file;
    const uint32_t size = b->ceiling.size;

    st_print(file, "  step/hardware %.3f", f->seconds / c->figures.bounds.hardware);
    print_part(file, "model FLOPs utilisation", f->mfu);
    if (size > 0)
        st_print(file, " of %.4g TFLOP/s (matmul of %u x %u x %u)", b->ceiling.flops * 1e-12, size, size, size);
    print_part(file, "upload by link alone", f->upload);
    print_part(file, "download by link alone", f->download);
    print_part(file, "practicality", f->practicality);
    if (c->plan->program.early_pages > 0)
        st_print(file, ", %u pages updated early, again in %u of %u steps", c->plan->program.early_pages, redone_of(c), c->done);
    if (!isnan(c->beside_bytes))
        st_print(file, ", %.0f MB of the device beside the arena", c->beside_bytes * 1e-6);
    st_print(file, "\n");
    fflush(file);
}

void step_print_row(struct step_bench *b, const struct step_case *c, double fastest)
{
    static const char *const names[] = {
        "predicted_ms",     "bound_ms",     "step/bound",     "hardware_ms",   "stall_ms",     "upload_mb",
        "down_mb",          "read_mb",      "write_mb",       "step/hardware", "mfu",          "model_tflop",
        "ceiling_tflops",   "ceiling_size", "upload/link",    "download/link", "practicality", "device_mb",
        "device_beside_mb", "peak_rss_mb",  "planned_rss_mb", "early_pages",   "redone"};
    const bool ran = b->opts->device != NULL;
    const struct st_workload *w = &c->plan->program.workload;
    const struct st_traffic *moved = ran ? &c->moved : &c->figures.traffic[st_phase_index(ST_PHASE_BODY)];
    const struct figures f = compute(b, c, fastest);
    const double tokens = (double)w->micro_batch * w->seq * w->grad_accum, hardware = c->figures.bounds.hardware;
    const double extra[] = {c->forecast * 1e3,
                            f.bound * 1e3,
                            f.seconds / f.bound,
                            hardware * 1e3,
                            ran ? bench_median(c->stall_ms, c->done) : NAN,
                            (double)moved->upload * 1e-6,
                            (double)moved->download * 1e-6,
                            (double)moved->read * 1e-6,
                            (double)moved->write * 1e-6,
                            over(f.seconds, hardware),
                            f.mfu,
                            w->model_flops_per_token * tokens * 1e-12,
                            b->ceiling.flops > 0 ? b->ceiling.flops * 1e-12 : NAN,
                            b->ceiling.flops > 0 ? (double)b->ceiling.size : NAN,
                            f.upload,
                            f.download,
                            f.practicality,
                            (double)c->plan->program.needed[STRATA_TIER_DEVICE] * 1e-6,
                            c->beside_bytes * 1e-6,
                            ran ? (double)st_stats_rss_peak_bytes() * 1e-6 : NAN,
                            (double)c->plan->rss_bytes_max * 1e-6,
                            c->plan->program.early_pages,
                            ran ? (double)redone_of(c) : (double)NAN};
    const struct bench_row row = {.name = ran ? "step" : "step (predicted)",
                                  .variant = c->name,
                                  .seconds = f.seconds,
                                  .roof_gb_per_s = NAN,
                                  .ratio = f.bound / f.seconds,
                                  .extra_names = names,
                                  .extra = extra,
                                  .extra_count = sizeof(names) / sizeof(names[0]),
                                  .extra_hidden = HIDDEN,
                                  .bound_by = c->figures.bounds.bound_by};

    bench_print(&b->printer, &row);
    if (ran && !b->printer.json)
        print_sentence(b, c, &f);
}
