/* bench/step/step_ops.c - prints the calls of the device's ops in the measured steps of a case.  Milliseconds and calls are those
 * of a step, on average. */
#include "bench/step/step_case.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/json/json.h"

#include <math.h>
#include <stdlib.h>

static const enum strata_lane lane_of[ST_QUEUE_COUNT] = {[ST_QUEUE_COMPUTE] = STRATA_LANE_COMPUTE,
                                                         [ST_QUEUE_UPDATE] = STRATA_LANE_UPDATE_DEVICE,
                                                         [ST_QUEUE_UPLOAD] = STRATA_LANE_UPLOAD,
                                                         [ST_QUEUE_DOWNLOAD] = STRATA_LANE_DOWNLOAD};

/* Sums over all measured steps. */
struct totals {
    double steps, step_ms;
    double ops_ms[ST_QUEUE_COUNT];
};

static struct totals totals_of(const struct step_case *c)
{
    struct totals t = {.steps = c->done};

    for (uint32_t i = 0; i < c->done; i++)
        t.step_ms += c->seconds[i] * 1e3;
    for (uint32_t i = 0; i < ST_OP_CLASSES; i++) {
        const struct st_op_class *class = st_op_times_at(c->op_times, i);

        t.ops_ms[class->queue] += (double)class->ns * 1e-6;
    }
    return t;
}

/* The other way round: the longest first. */
static int by_time(const void *a, const void *b)
{
    const struct st_op_class *const *x = a, *const *y = b;

    return ((*x)->ns < (*y)->ns) - ((*x)->ns > (*y)->ns);
}

static double rate(double amount, uint64_t ns)
{
    return amount > 0 && ns > 0 ? amount / (double)ns : NAN;
}

/* --- for people --- */

static void print_number(FILE *file, int width, int decimals, double value)
{
    if (isnan(value))
        st_print(file, " %*s", width, "-");
    else
        st_print(file, " %*.*f", width, decimals, value);
}

static void print_class(FILE *file, const struct st_op_class *class, const struct totals *t)
{
    const double ms = (double)class->ns * 1e-6;
    char text[ST_OP_SHAPE_TEXT];

    st_print(file, "  %-24s %-44s %8.4g", st_device_op_rows[class->shape.op].name, st_op_shape_text(text, &class->shape),
             (double)class->calls / t->steps);
    print_number(file, 10, 3, ms / t->steps);
    print_number(file, 9, 4, ms / (double)class->calls);
    print_number(file, 7, 1, rate(class->bytes, class->ns));
    print_number(file, 8, 3, rate(class->flops * 1e-3, class->ns));
    print_number(file, 6, 3, ms / t->step_ms);
    st_print(file, "\n");
}

static void print_sums(FILE *file, const struct step_case *c, const struct totals *t)
{
    const char *before = "  ops take";

    for (uint32_t q = 0; q < ST_QUEUE_COUNT; q++) {
        const double busy = c->busy_ms[lane_of[q]];

        if (!(busy > 0))
            continue;
        st_print(file, "%s %.3f ms of %.3f in which %s was busy (%.3f)", before, t->ops_ms[q] / t->steps, busy / t->steps,
                 st_lane_name(lane_of[q]), t->ops_ms[q] / busy);
        before = ",";
    }
    st_print(file, "; a step %.3f ms\n", t->step_ms / t->steps);
}

/* --- for programs --- */

/* The keys that all rows of benches begin with. */
static void open_row(struct st_json_writer *w, FILE *file, const char *name, const struct step_case *c, double bytes, double ns)
{
    st_json_begin(w, file);
    st_json_object_open(w, NULL);
    st_json_put_string(w, "name", name);
    st_json_put_string(w, "variant", c->name);
    st_json_put_u64(w, "bytes", (uint64_t)bytes);
    st_json_put_double(w, "seconds", ns * 1e-9);
    st_json_put_double(w, "gb_per_s", bytes > 0 && ns > 0 ? bytes / ns : NAN);
    st_json_put_double(w, "roof_gb_per_s", NAN);
    st_json_put_double(w, "ratio", NAN);
}

static void close_row(struct st_json_writer *w)
{
    st_json_object_close(w);
    st_json_end_line(w);
}

static void put_class(FILE *file, const struct step_case *c, const struct st_op_class *class, const struct totals *t)
{
    const double calls = (double)class->calls, ns = (double)class->ns;
    struct st_json_writer w;
    char text[ST_OP_SHAPE_TEXT];

    open_row(&w, file, "op", c, class->bytes / calls, ns / calls);
    st_json_put_string(&w, "op", st_device_op_rows[class->shape.op].name);
    st_json_put_string(&w, "shape", st_op_shape_text(text, &class->shape));
    st_json_put_string(&w, "lane", st_lane_name(lane_of[class->queue]));
    st_json_put_double(&w, "calls", calls / t->steps);
    st_json_put_double(&w, "ms", ns * 1e-6 / t->steps);
    st_json_put_double(&w, "tflops", rate(class->flops * 1e-3, class->ns));
    st_json_put_double(&w, "share", ns * 1e-6 / t->step_ms);
    close_row(&w);
}

static void put_sums(FILE *file, const struct step_case *c, const struct totals *t)
{
    struct st_json_writer w;
    double all = 0;

    for (uint32_t q = 0; q < ST_QUEUE_COUNT; q++)
        all += t->ops_ms[q];
    open_row(&w, file, "ops", c, 0, all * 1e6 / t->steps);
    st_json_put_double(&w, "step_ms", t->step_ms / t->steps);
    st_json_object_open(&w, "ops_ms");
    for (uint32_t q = 0; q < ST_QUEUE_COUNT; q++)
        st_json_put_double(&w, st_lane_name(lane_of[q]), t->ops_ms[q] / t->steps);
    st_json_object_close(&w);
    st_json_object_open(&w, "busy_ms");
    for (uint32_t q = 0; q < ST_QUEUE_COUNT; q++)
        st_json_put_double(&w, st_lane_name(lane_of[q]), c->busy_ms[lane_of[q]] / t->steps);
    st_json_object_close(&w);
    close_row(&w);
}

strata_status step_print_ops(const struct step_bench *b, const struct step_case *c)
{
    FILE *const file = b->printer.file;
    const struct st_op_class **list;
    struct totals t;
    uint32_t count = 0;

    if (c->op_times == NULL)
        return STRATA_OK;
    list = calloc(ST_OP_CLASSES, sizeof(*list));
    if (list == NULL)
        return st_nomem(ST_OP_CLASSES * sizeof(*list));
    for (uint32_t i = 0; i < ST_OP_CLASSES; i++)
        if (st_op_times_at(c->op_times, i)->calls > 0)
            list[count++] = st_op_times_at(c->op_times, i);
    qsort(list, count, sizeof(*list), by_time);
    t = totals_of(c);
    if (!b->printer.json)
        st_print(file, "  %-24s %-44s %8s %10s %9s %7s %8s %6s\n", "op", "shape", "calls", "ms", "ms/call", "GB/s", "TFLOP/s",
                 "share");
    for (uint32_t i = 0; i < count; i++) {
        if (b->printer.json)
            put_class(file, c, list[i], &t);
        else
            print_class(file, list[i], &t);
    }
    if (b->printer.json)
        put_sums(file, c, &t);
    else
        print_sums(file, c, &t);
    free(list);
    return STRATA_OK;
}
