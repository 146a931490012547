/* bench_io - what do the I/O methods reach on a directory's disk, and which is best?
 *
 * Sequential write, read and an even mix of both over one file, through the swap as a run uses it: blocks of one size, a fixed
 * number in flight.  Bytes per row: all that was moved, once.  The roof of a row is the fastest method of the same pattern in
 * the same process; methods take turns in each repeat, so that all see the same disk.  `fake` moves memory: the cost of the
 * swap's own thread, no disk.
 *
 *     bench_io [--dir DIR] [--bytes SIZE] [--block SIZE] [--depth N] [--repeats N] [--seconds S] [--json]
 *
 * Defaults: the current directory, 512MiB, 1MiB, 32, 5 repeats of at most 10 seconds each. */
#include "core/json.h"
#include "core/size.h"
#include "core/stats.h"
#include "nvme/swap.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METHODS_MAX 8u
#define REPEATS_MAX 100u

enum pattern { WRITE, READ, MIXED, PATTERN_COUNT };

static const char *const pattern_names[PATTERN_COUNT] = {"write", "read", "mixed"};

struct bench {
    const char *dir;
    uint64_t bytes, block, depth, repeats;
    double seconds;
    bool json;
};

struct row {
    const char *method; /* NULL: not on this machine */
    double rate[PATTERN_COUNT][REPEATS_MAX];
};

static int parse_count(const char *text, uint64_t least, uint64_t most, uint64_t *out)
{
    return st_size_parse(text, out) == 0 && *out >= least && *out <= most ? 0 : -1;
}

static int parse(struct bench *b, int argc, char **argv)
{
    static const struct option options[] = {
        {"dir", required_argument, NULL, 'd'},     {"bytes", required_argument, NULL, 'b'},
        {"block", required_argument, NULL, 'k'},   {"depth", required_argument, NULL, 'q'},
        {"repeats", required_argument, NULL, 'r'}, {"seconds", required_argument, NULL, 's'},
        {"json", no_argument, NULL, 'j'},          {0},
    };
    int c, bad = 0;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 'd')
            b->dir = optarg;
        else if (c == 'b')
            bad |= parse_count(optarg, 1, UINT64_MAX, &b->bytes);
        else if (c == 'k')
            bad |= parse_count(optarg, ST_SWAP_ALIGN, 1u << 30, &b->block);
        else if (c == 'q')
            bad |= parse_count(optarg, 1, 4096, &b->depth);
        else if (c == 'r')
            bad |= parse_count(optarg, 1, REPEATS_MAX, &b->repeats);
        else if (c == 's')
            b->seconds = strtod(optarg, NULL);
        else if (c == 'j')
            b->json = true;
        else
            bad = -1;
    }
    return bad != 0 || optind != argc || !(b->seconds > 0) ? -1 : 0;
}

/* False: the method failed; it is told and left out. */
static bool run_once(const struct bench *b, struct row *row, uint32_t repeat)
{
    struct st_probe_rates rates;
    const struct st_probe_opts opts = {
        .dir = b->dir,
        .method = row->method,
        .bytes = b->bytes,
        .seconds_max = b->seconds,
        .block_bytes = (uint32_t)b->block,
        .queue_depth = (uint32_t)b->depth,
    };

    if (st_probe_run(&opts, &rates) != STRATA_OK) {
        fprintf(stderr, "bench_io: %s: %s\n", row->method, strata_last_error());
        return false;
    }
    row->rate[WRITE][repeat] = rates.write;
    row->rate[READ][repeat] = rates.read;
    row->rate[MIXED][repeat] = rates.mixed;
    return true;
}

static double fastest(const struct bench *b, const struct row *row, enum pattern pattern)
{
    double best = 0;

    for (uint32_t i = 0; i < b->repeats; i++)
        if (row->rate[pattern][i] > best)
            best = row->rate[pattern][i];
    return best;
}

static double roof_of(const struct bench *b, const struct row *rows, size_t count, enum pattern pattern)
{
    double roof = 0;

    for (size_t i = 0; i < count; i++)
        if (rows[i].method != NULL && strcmp(rows[i].method, "fake") != 0 && fastest(b, &rows[i], pattern) > roof)
            roof = fastest(b, &rows[i], pattern);
    return roof;
}

static void report_json(const struct bench *b, const struct row *row, enum pattern pattern, double median, double roof)
{
    const double best = fastest(b, row, pattern);
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "name", pattern_names[pattern]);
    st_json_put_string(&w, "variant", row->method);
    st_json_put_u64(&w, "bytes", b->bytes);
    st_json_put_double(&w, "seconds", (double)b->bytes / best);
    st_json_put_double(&w, "gb_per_s", best / 1e9);
    st_json_put_double(&w, "gb_per_s_median", median / 1e9);
    st_json_put_double(&w, "roof_gb_per_s", roof / 1e9);
    st_json_put_double(&w, "ratio", best / roof);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

static void report(const struct bench *b, struct row *rows, size_t count)
{
    if (!b->json)
        printf("%-8s %-8s %10s %10s %10s %6s\n", "pattern", "method", "best MB/s", "median", "roof", "ratio");
    for (enum pattern pattern = WRITE; pattern < PATTERN_COUNT; pattern++) {
        const double roof = roof_of(b, rows, count, pattern);

        for (size_t i = 0; i < count; i++) {
            double median, best;

            if (rows[i].method == NULL)
                continue;
            best = fastest(b, &rows[i], pattern);
            median = st_stats_median(rows[i].rate[pattern], b->repeats);
            if (b->json)
                report_json(b, &rows[i], pattern, median, roof);
            else
                printf("%-8s %-8s %10.0f %10.0f %10.0f %6.2f\n", pattern_names[pattern], rows[i].method, best / 1e6, median / 1e6,
                       roof / 1e6, best / roof);
        }
    }
}

int main(int argc, char **argv)
{
    static struct row rows[METHODS_MAX];
    struct bench b = {.dir = ".", .bytes = UINT64_C(512) << 20, .block = 1u << 20, .depth = 32, .repeats = 5, .seconds = 10};
    size_t count = 0, usable = 0;

    if (parse(&b, argc, argv) != 0) {
        fprintf(stderr,
                "usage: bench_io [--dir DIR] [--bytes SIZE] [--block SIZE] [--depth N] [--repeats N] [--seconds S] [--json]\n");
        return 2;
    }
    for (; count < METHODS_MAX && st_io_methods[count] != NULL; count++)
        rows[count].method = st_io_methods[count]->name;
    for (uint32_t repeat = 0; repeat < b.repeats; repeat++)
        for (size_t i = 0; i < count; i++)
            if (rows[i].method != NULL && !run_once(&b, &rows[i], repeat))
                rows[i].method = NULL;
    for (size_t i = 0; i < count; i++)
        usable += rows[i].method != NULL && strcmp(rows[i].method, "fake") != 0;
    if (usable == 0)
        return 4;
    report(&b, rows, count);
    return 0;
}
