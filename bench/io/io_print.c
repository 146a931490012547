/* bench/io/io_print.c - prints the rows of `strata bench io` as a table, or as JSON that also has fio's names. */
#include "bench/io/io_case.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/json/json.h"

#include <math.h>

/* A row compared with the best row of its pattern and with fio; NaN: nothing to compare with. */
struct comparison {
    double roof, ratio, fio_ratio, fio_cpu_ratio;
};

static struct comparison compare(const struct io_rows *rows, const struct io_row *row)
{
    const struct io_row *fio = row->is_fio ? NULL : io_rows_fio_best(rows, row);
    const struct io_row *uring = row->is_fio ? NULL : io_rows_fio(rows, row, IO_FIO_URING);
    const double rate = io_rate(&row->median), roof = io_rate(&io_rows_best(rows, row)->median);

    return (struct comparison){.roof = roof,
                               .ratio = rate / roof,
                               .fio_ratio = fio != NULL ? rate / io_rate(&fio->median) : NAN,
                               .fio_cpu_ratio =
                                   uring != NULL ? io_cpu_per_gb(&row->median) / io_cpu_per_gb(&uring->median) : NAN};
}

static void extremes(const struct io_rows *rows, const struct io_row *row, double *least, double *most)
{
    *least = *most = io_rate(&row->repeats[0]);
    for (uint32_t i = 1; i < rows->repeats; i++) {
        const double rate = io_rate(&row->repeats[i]);

        *least = rate < *least ? rate : *least;
        *most = rate > *most ? rate : *most;
    }
}

/* --- JSON --- */

static void put_latency(struct st_json_writer *w, const struct io_measure *m)
{
    st_json_object_open(w, "clat_ns");
    st_json_put_double(w, "max", m->max_ns);
    st_json_put_double(w, "mean", m->mean_ns);
    st_json_object_open(w, "percentile");
    st_json_put_double(w, "50.000000", m->p50_ns);
    st_json_put_double(w, "99.000000", m->p99_ns);
    st_json_object_close(w);
    st_json_object_close(w);
}

static void put_setting(struct st_json_writer *w, const struct io_rows *rows, const struct io_row *row)
{
    st_json_put_u64(w, "bs", row->c.block_bytes);
    st_json_put_u64(w, "iodepth", row->c.queue_depth);
    st_json_put_u64(w, "dirs", rows->dirs);
    st_json_put_u64(w, "size", rows->bytes);
    st_json_put_u64(w, "repeats", rows->repeats);
    st_json_put_bool(w, "direct", rows->direct);
    st_json_put_bool(w, "registered", row->is_fio ? row->engine == IO_FIO_URING && !row->c.unregistered : row->registered);
}

static void print_json(const struct io_rows *rows, const struct io_row *row, FILE *out)
{
    const struct io_measure *m = &row->median;
    const struct comparison to = compare(rows, row);
    double least, most;
    struct st_json_writer w;

    extremes(rows, row, &least, &most);
    st_json_begin(&w, out);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "name", io_pattern_names[row->c.pattern]);
    st_json_put_string(&w, "variant", io_row_variant(row));
    st_json_put_u64(&w, "bytes", (uint64_t)m->bytes);
    st_json_put_double(&w, "seconds", m->seconds);
    st_json_put_double(&w, "gb_per_s", io_rate(m) * 1e-9);
    st_json_put_double(&w, "roof_gb_per_s", to.roof * 1e-9);
    st_json_put_double(&w, "ratio", to.ratio);
    put_setting(&w, rows, row);
    st_json_put_double(&w, "gb_per_s_least", least * 1e-9);
    st_json_put_double(&w, "gb_per_s_most", most * 1e-9);
    st_json_put_double(&w, "cpu_seconds_per_gb", io_cpu_per_gb(m));
    st_json_put_double(&w, "bw_bytes", io_rate(m));
    st_json_put_double(&w, "iops", m->ops / m->seconds);
    put_latency(&w, m);
    st_json_put_double(&w, "usr_cpu", m->user_seconds / m->seconds * 100);
    st_json_put_double(&w, "sys_cpu", m->sys_seconds / m->seconds * 100);
    st_json_put_double(&w, "fio_ratio", to.fio_ratio);
    st_json_put_double(&w, "fio_cpu_ratio", to.fio_cpu_ratio);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

/* --- the table --- */

static void print_ratio(FILE *out, int width, double value)
{
    if (isnan(value))
        st_print(out, " %*s", width, "-");
    else
        st_print(out, " %*.3f", width, value);
}

static bool has_fio(const struct io_rows *rows)
{
    for (uint32_t i = 0; i < rows->count; i++)
        if (rows->row[i].is_fio && !rows->row[i].dropped)
            return true;
    return false;
}

static void print_heading(FILE *out, bool fio)
{
    st_print(out, "%-10s %-13s %9s %5s %8s %6s %9s %9s %9s %9s %8s%s\n", "name", "variant", "block", "depth", "GB/s", "ratio",
             "iops", "p50 us", "p99 us", "max us", "cpu s/GB", fio ? "  of fio  cpu of fio" : "");
}

static void print_line(const struct io_rows *rows, const struct io_row *row, FILE *out, bool fio)
{
    const struct io_measure *m = &row->median;
    const struct comparison to = compare(rows, row);
    char block[24];

    st_print(out, "%-10s %-13s %9s %5u %8.3f %6.3f %9.0f %9.0f %9.0f %9.0f %8.4f", io_pattern_names[row->c.pattern],
             io_row_variant(row), st_size_text(block, row->c.block_bytes), row->c.queue_depth, io_rate(m) * 1e-9, to.ratio,
             m->ops / m->seconds, m->p50_ns * 1e-3, m->p99_ns * 1e-3, m->max_ns * 1e-3, io_cpu_per_gb(m));
    if (fio) {
        print_ratio(out, 7, to.fio_ratio);
        print_ratio(out, 11, to.fio_cpu_ratio);
    }
    st_print(out, "\n");
}

void io_rows_print(const struct io_rows *rows, bool json, FILE *out)
{
    const bool fio = has_fio(rows);

    if (!json)
        print_heading(out, fio);
    for (uint32_t i = 0; i < rows->count; i++) {
        if (rows->row[i].dropped)
            continue;
        if (json)
            print_json(rows, &rows->row[i], out);
        else
            print_line(rows, &rows->row[i], out, fio);
    }
}
