/* bench/bench.c - prints rows as tables and JSON lines, and sets up and ends every bench. */
#include "bench/bench.h"
#include "bench/bench_setup.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/json/json.h"
#include "core/trace/stats.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define EXTRA_WIDTH_MIN 10

/* --- rows --- */

static double rate_of(const struct bench_row *row)
{
    return row->bytes == 0 ? NAN : (double)row->bytes / row->seconds * 1e-9;
}

static void print_json(FILE *file, const struct bench_row *row)
{
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "name", row->name);
    st_json_put_string(&w, "variant", row->variant);
    st_json_put_u64(&w, "bytes", row->bytes);
    st_json_put_double(&w, "seconds", row->seconds);
    st_json_put_double(&w, "gb_per_s", rate_of(row));
    st_json_put_double(&w, "roof_gb_per_s", row->roof_gb_per_s);
    st_json_put_double(&w, "ratio", row->ratio);
    for (uint32_t i = 0; i < row->extra_count; i++)
        st_json_put_double(&w, row->extra_names[i], row->extra[i]);
    if (row->bound_by != NULL)
        st_json_put_string(&w, "bound_by", row->bound_by);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

static int extra_width(const char *name)
{
    const int length = (int)strlen(name);

    return length > EXTRA_WIDTH_MIN ? length : EXTRA_WIDTH_MIN;
}

/* NaN is printed as a dash. */
static void print_number(FILE *file, int width, int decimals, double value)
{
    if (isnan(value))
        st_print(file, " %*s", width, "-");
    else
        st_print(file, " %*.*f", width, decimals, value);
}

/* Prints whole numbers without decimals, others with four digits. */
static void print_extra(FILE *file, const char *name, double value)
{
    const int width = extra_width(name);

    if (isnan(value))
        st_print(file, " %*s", width, "-");
    else if (value == floor(value) && fabs(value) < 1e15)
        st_print(file, " %*.0f", width, value);
    else
        st_print(file, " %*.4g", width, value);
}

static void print_heading(FILE *file, const struct bench_row *row)
{
    st_print(file, "%-15s %-15s %11s %10s %8s %8s %6s", "name", "variant", "bytes", "ms", "GB/s", "roof", "ratio");
    for (uint32_t i = 0; i < row->extra_count - row->extra_hidden; i++)
        st_print(file, " %*s", extra_width(row->extra_names[i]), row->extra_names[i]);
    st_print(file, "%s\n", row->bound_by != NULL ? " bound_by" : "");
}

static void print_line(FILE *file, const struct bench_row *row)
{
    char size[24];

    st_print(file, "%-15s %-15s %11s", row->name, row->variant, row->bytes == 0 ? "-" : st_size_text(size, row->bytes));
    print_number(file, 10, 3, row->seconds * 1e3);
    print_number(file, 8, 2, rate_of(row));
    print_number(file, 8, 2, row->roof_gb_per_s);
    print_number(file, 6, 3, row->ratio);
    for (uint32_t i = 0; i < row->extra_count - row->extra_hidden; i++)
        print_extra(file, row->extra_names[i], row->extra[i]);
    st_print(file, "%s%s\n", row->bound_by != NULL ? " " : "", row->bound_by != NULL ? row->bound_by : "");
    fflush(file);
}

void bench_print(struct bench_printer *p, const struct bench_row *row)
{
    if (p->json) {
        print_json(p->file, row);
    } else {
        if (p->rows == 0)
            print_heading(p->file, row);
        print_line(p->file, row);
    }
    p->rows++;
}

/* --- begin and end --- */

strata_status bench_setup_open(struct bench_setup *s, const struct bench_opts *opts, uint32_t repeats)
{
    strata_status st;

    *s = (struct bench_setup){.opts = opts, .repeats = opts->repeats != 0 ? opts->repeats : repeats};
    assert(s->repeats <= BENCH_REPEATS_MAX);
    st = st_topology_load(&s->topology, NULL);
    if (st != STRATA_OK)
        return st;
    st = st_workers_create(&s->workers, opts->threads, s->topology);
    if (st == STRATA_OK)
        s->threads = st_workers_count(s->workers);
    return st;
}

void bench_setup_close(struct bench_setup *s)
{
    if (s->opts != NULL)
        bench_progress(s, NULL, 0);
    st_workers_destroy(s->workers);
    st_topology_destroy(s->topology);
    *s = (struct bench_setup){0};
}

strata_status bench_check_memory(const struct bench_setup *s, uint64_t bytes, const char *remedy)
{
    const uint64_t available = st_topology_memory_available(s->topology);
    char wanted[24], have[24];

    if (bytes <= available)
        return STRATA_OK;
    return st_error(STRATA_E_NOFIT, "this bench takes %s of memory, %s are available: %s", st_size_text(wanted, bytes),
                    st_size_text(have, available), remedy);
}

void bench_progress(const struct bench_setup *s, const char *what, uint32_t repeat)
{
    FILE *const file = s->opts->hooks.progress;
    char line[160];

    if (file == NULL)
        return;
    if (what != NULL && repeat != 0)
        snprintf(line, sizeof(line), "%s, repeat %u of %u", what, repeat, s->repeats);
    else
        snprintf(line, sizeof(line), "%s", what != NULL ? what : "");
    st_print_over(file, line);
}

double bench_least(const double *values, uint32_t count)
{
    double least = values[0];

    for (uint32_t i = 1; i < count; i++)
        least = values[i] < least ? values[i] : least;
    return least;
}

double bench_median(const double *values, uint32_t count)
{
    double copy[BENCH_REPEATS_MAX];

    assert(count <= BENCH_REPEATS_MAX);
    memcpy(copy, values, count * sizeof(*copy));
    return st_stats_median(copy, count);
}
