/* core/trace/trace_write.c - streams the records as Chrome's JSON, in one pass, in the order in which they began.
 *
 * A row is a "thread".  Spans of one thread may not overlap in that format, so a span that begins while its row is busy goes to
 * the row's next free thread.  An arrow leads to a span from the last span it waited for, if that is on another row. */
#include "core/trace/trace.h"

#include "core/base/error.h"
#include "core/json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROCESS     1u
#define ROW_STEPS   0u /* before the source's rows */
#define ROW_STALLS  1u
#define ROWS_BEFORE 2u
#define ROWS_ALL    (ROWS_BEFORE + ST_TRACE_ROWS_MAX)
#define NO_RECORD   UINT64_MAX

/* A thread of the file, and the span that it is showing now. */
struct span_thread {
    uint32_t row, number; /* number: 0 for the row's own, then 1, 2, ... */
    uint32_t series;
    uint64_t end_ns, bytes;
    bool busy;
};

struct trace_writer {
    const struct st_trace *trace;
    const struct st_trace_source *source;
    struct st_json_writer w;
    struct span_thread *threads;
    uint32_t thread_count, thread_room;
    uint64_t *now, *before; /* [item_count]: record of the item in this and in the previous cycle */
    uint64_t *thread_of;    /* [2 * item_count], behind now and before: threads of these records */
    uint32_t step;
    uint64_t origin_ns, end_ns;
    uint64_t in_flight[ST_TRACE_SERIES_MAX];
};

/* --- events --- */

static uint32_t thread_id(uint32_t row, uint32_t number)
{
    return 1 + row + number * ROWS_ALL;
}

static double micros(const struct trace_writer *tw, uint64_t ns)
{
    return (double)(ns - tw->origin_ns) / 1e3;
}

static void event_open(struct trace_writer *tw, const char *phase, const char *name, uint32_t thread)
{
    fputc('\n', tw->w.file);
    st_json_object_open(&tw->w, NULL);
    st_json_put_string(&tw->w, "ph", phase);
    st_json_put_string(&tw->w, "name", name);
    st_json_put_u64(&tw->w, "pid", PROCESS);
    st_json_put_u64(&tw->w, "tid", thread);
}

static void span_open(struct trace_writer *tw, const char *category, const char *name, uint32_t thread,
                      const struct st_trace_record *r)
{
    event_open(tw, "X", name, thread);
    st_json_put_string(&tw->w, "cat", category);
    st_json_put_double(&tw->w, "ts", micros(tw, r->start_ns));
    st_json_put_double(&tw->w, "dur", (double)(r->end_ns - r->start_ns) / 1e3);
    st_json_object_open(&tw->w, "args");
}

static void args_and_event_close(struct trace_writer *tw)
{
    st_json_object_close(&tw->w);
    st_json_object_close(&tw->w);
}

static void put_metadata(struct trace_writer *tw, uint32_t thread, const char *what, const char *name)
{
    event_open(tw, "M", what, thread);
    st_json_object_open(&tw->w, "args");
    st_json_put_string(&tw->w, "name", name);
    args_and_event_close(tw);
}

static void put_thread(struct trace_writer *tw, uint32_t row, uint32_t number)
{
    const char *name = row == ROW_STEPS ? "step" : row == ROW_STALLS ? "stall" : tw->source->rows[row - ROWS_BEFORE].name;
    char text[128];

    if (number > 0)
        snprintf(text, sizeof(text), "%s %u", name, number + 1);
    put_metadata(tw, thread_id(row, number), "thread_name", number > 0 ? text : name);
    event_open(tw, "M", "thread_sort_index", thread_id(row, number));
    st_json_object_open(&tw->w, "args");
    st_json_put_u64(&tw->w, "sort_index", (uint64_t)row * 1000 + number);
    args_and_event_close(tw);
}

static void counter_open(struct trace_writer *tw, const char *name, uint64_t ns)
{
    event_open(tw, "C", name, thread_id(ROW_STEPS, 0));
    st_json_put_double(&tw->w, "ts", micros(tw, ns));
    st_json_object_open(&tw->w, "args");
}

static void put_in_flight(struct trace_writer *tw, uint64_t ns)
{
    counter_open(tw, "bytes in flight", ns);
    for (uint32_t i = 0; i < tw->source->series_count; i++)
        st_json_put_u64(&tw->w, tw->source->series[i], tw->in_flight[i]);
    args_and_event_close(tw);
}

static void put_resident(struct trace_writer *tw, uint64_t ns)
{
    char name[128];

    for (uint32_t i = 0; i < tw->source->resident_count; i++) {
        snprintf(name, sizeof(name), "resident %s", tw->source->resident[i].key);
        counter_open(tw, name, ns);
        st_json_put_u64(&tw->w, "bytes", tw->source->resident[i].value);
        args_and_event_close(tw);
    }
}

/* --- threads --- */

/* End the spans that ended by `ns`, in order; bytes in flight fall. */
static void release_until(struct trace_writer *tw, uint64_t ns)
{
    for (;;) {
        struct span_thread *first = NULL;

        for (uint32_t i = 0; i < tw->thread_count; i++) {
            struct span_thread *t = &tw->threads[i];

            if (t->busy && t->end_ns <= ns && (first == NULL || t->end_ns < first->end_ns))
                first = t;
        }
        if (first == NULL)
            return;
        first->busy = false;
        if (first->series != ST_TRACE_NONE) {
            tw->in_flight[first->series] -= first->bytes;
            put_in_flight(tw, first->end_ns);
        }
    }
}

static strata_status grow_threads(struct trace_writer *tw)
{
    const uint32_t room = tw->thread_room == 0 ? 32 : 2 * tw->thread_room;
    struct span_thread *grown = realloc(tw->threads, room * sizeof(*grown));

    if (grown == NULL)
        return st_nomem(room * sizeof(*grown));
    tw->threads = grown;
    tw->thread_room = room;
    return STRATA_OK;
}

/* A free thread of a row, new if there is none. */
static strata_status take_thread(struct trace_writer *tw, uint32_t row, uint32_t *index)
{
    uint32_t number = 0;
    strata_status st;

    for (uint32_t i = 0; i < tw->thread_count; i++) {
        if (tw->threads[i].row != row)
            continue;
        if (!tw->threads[i].busy) {
            *index = i;
            return STRATA_OK;
        }
        number++;
    }
    if (tw->thread_count == tw->thread_room && (st = grow_threads(tw)) != STRATA_OK)
        return st;
    if (number > 0)
        put_thread(tw, row, number);
    *index = tw->thread_count++;
    tw->threads[*index] = (struct span_thread){.row = row, .number = number};
    return STRATA_OK;
}

/* --- spans --- */

static uint64_t between(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* Record of the last item that `item` waited for, and its thread; NO_RECORD: none was recorded. */
static uint64_t last_cause(const struct trace_writer *tw, uint32_t item, uint32_t *thread)
{
    const uint32_t items = tw->source->item_count;
    uint64_t best = NO_RECORD, best_end = 0;
    bool previous = false;
    uint32_t on;

    for (uint32_t n = 0; (on = tw->source->wait(tw->source->ctx, item, n, &previous)) != ST_TRACE_NONE; n++) {
        const uint64_t at = previous ? tw->before[on] : tw->now[on];

        if (at == NO_RECORD || st_trace_at(tw->trace, at)->end_ns <= best_end)
            continue;
        best = at;
        best_end = st_trace_at(tw->trace, at)->end_ns;
        *thread = (uint32_t)tw->thread_of[on + (previous ? items : 0)];
    }
    return best;
}

static void put_arrow(struct trace_writer *tw, uint64_t id, const struct st_trace_record *from, uint32_t from_thread,
                      const struct st_trace_record *to, uint32_t to_thread)
{
    const uint64_t leaves = from->end_ns > from->start_ns ? from->end_ns - 1 : from->start_ns; /* inside its span */

    event_open(tw, "s", "waited for", from_thread);
    st_json_put_string(&tw->w, "cat", "wait");
    st_json_put_u64(&tw->w, "id", id);
    st_json_put_double(&tw->w, "ts", micros(tw, leaves));
    st_json_object_close(&tw->w);
    event_open(tw, "f", "waited for", to_thread);
    st_json_put_string(&tw->w, "cat", "wait");
    st_json_put_u64(&tw->w, "id", id);
    st_json_put_string(&tw->w, "bp", "e");
    st_json_put_double(&tw->w, "ts", micros(tw, to->start_ns));
    st_json_object_close(&tw->w);
}

static void put_item_args(struct trace_writer *tw, const struct st_trace_item *item, uint32_t index, uint64_t ns)
{
    st_json_put_u64(&tw->w, "step", tw->step);
    st_json_put_u64(&tw->w, "op", index);
    for (uint32_t i = 0; i < item->arg_count; i++)
        st_json_put_u64(&tw->w, item->args[i].key, item->args[i].value);
    if (item->bytes == 0)
        return;
    st_json_put_u64(&tw->w, "bytes", item->bytes);
    if (ns > 0)
        st_json_put_double(&tw->w, "GB/s", (double)item->bytes / (double)ns);
}

static strata_status put_item(struct trace_writer *tw, uint64_t at)
{
    const struct st_trace_record *r = st_trace_at(tw->trace, at);
    const struct st_trace_source *s = tw->source;
    struct st_trace_item item = {0};
    struct span_thread *t;
    uint32_t index, thread, from = 0;
    uint64_t cause;
    strata_status st;

    s->item(s->ctx, r->item, &item);
    if ((st = take_thread(tw, ROWS_BEFORE + item.row, &index)) != STRATA_OK)
        return st;
    t = &tw->threads[index];
    thread = thread_id(t->row, t->number);
    *t = (struct span_thread){.row = t->row,
                              .number = t->number,
                              .series = item.bytes > 0 ? s->rows[item.row].series : ST_TRACE_NONE,
                              .end_ns = r->end_ns,
                              .bytes = item.bytes,
                              .busy = true};
    span_open(tw, "op", item.name, thread, r);
    put_item_args(tw, &item, r->item, r->end_ns - r->start_ns);
    args_and_event_close(tw);
    if (t->series != ST_TRACE_NONE) {
        tw->in_flight[t->series] += t->bytes;
        put_in_flight(tw, r->start_ns);
    }
    cause = last_cause(tw, r->item, &from);
    if (cause != NO_RECORD && (from - 1) % ROWS_ALL != (thread - 1) % ROWS_ALL)
        put_arrow(tw, at, st_trace_at(tw->trace, cause), from, r, thread);
    tw->now[r->item] = at;
    tw->thread_of[r->item] = thread;
    return STRATA_OK;
}

/* A stall is named after the row of the item that it waited for. */
static void put_stall(struct trace_writer *tw, const struct st_trace_record *r)
{
    const struct st_trace_source *s = tw->source;
    struct st_trace_item item = {0}, cause = {0};
    char name[128] = "waits for transfers";

    if (r->cause != ST_TRACE_NONE) {
        s->item(s->ctx, r->cause, &cause);
        snprintf(name, sizeof(name), "waits for %s", s->rows[cause.row].name);
    }
    span_open(tw, "stall", name, thread_id(ROW_STALLS, 0), r);
    st_json_put_u64(&tw->w, "step", tw->step);
    if (r->item != ST_TRACE_NONE) {
        s->item(s->ctx, r->item, &item);
        st_json_put_string(&tw->w, "held", item.name);
        st_json_put_u64(&tw->w, "held_op", r->item);
    }
    if (r->cause != ST_TRACE_NONE) {
        st_json_put_string(&tw->w, "lane", s->rows[cause.row].name);
        st_json_put_string(&tw->w, "cause", cause.name);
        st_json_put_u64(&tw->w, "cause_op", r->cause);
        for (uint32_t i = 0; i < cause.arg_count; i++)
            st_json_put_u64(&tw->w, cause.args[i].key, cause.args[i].value);
    }
    st_json_object_close(&tw->w);
    st_json_put_string(&tw->w, "cname", "terrible");
    st_json_object_close(&tw->w);
}

/* On the thread of its item, if that is in the trace. */
static void put_call(struct trace_writer *tw, const struct st_trace_record *r)
{
    const struct st_trace_source *s = tw->source;
    const uint64_t at = tw->now[r->cause];
    const double ns = (double)(r->end_ns - r->start_ns);
    const struct st_trace_record *within;
    struct st_trace_call call = {0};
    struct st_trace_record cut = *r;

    if (at == NO_RECORD)
        return;
    within = st_trace_at(tw->trace, at);
    cut.start_ns = between(r->start_ns, within->start_ns, within->end_ns);
    cut.end_ns = between(r->end_ns, cut.start_ns, within->end_ns);
    s->call(s->ctx, r->item, &call);
    span_open(tw, "call", call.name, (uint32_t)tw->thread_of[r->cause], &cut);
    st_json_put_u64(&tw->w, "step", tw->step);
    st_json_put_u64(&tw->w, "op", r->cause);
    st_json_put_string(&tw->w, "shape", call.detail);
    st_json_put_double(&tw->w, "us", ns / 1e3);
    if (call.bytes > 0 && ns > 0)
        st_json_put_double(&tw->w, "GB/s", call.bytes / ns);
    if (call.flops > 0 && ns > 0)
        st_json_put_double(&tw->w, "TFLOP/s", call.flops / ns * 1e-3);
    args_and_event_close(tw);
}

static void begin_cycle(struct trace_writer *tw, const struct st_trace_record *r)
{
    const uint32_t items = tw->source->item_count;
    uint64_t *swap = tw->before;

    tw->before = tw->now;
    tw->now = swap;
    memset(tw->now, 0xff, items * sizeof(*tw->now));
    memcpy(tw->thread_of + items, tw->thread_of, items * sizeof(*tw->thread_of));
    tw->step = r->item;
}

static void put_cycle(struct trace_writer *tw, const struct st_trace_record *r)
{
    char name[128];

    if (r->item != 0)
        snprintf(name, sizeof(name), "%s %u", tw->source->cycles[r->cause], r->item);
    else
        snprintf(name, sizeof(name), "%s", tw->source->cycles[r->cause]);
    span_open(tw, "step", name, thread_id(ROW_STEPS, 0), r);
    st_json_put_u64(&tw->w, "step", r->item);
    args_and_event_close(tw);
}

static strata_status put_records(struct trace_writer *tw, uint64_t count)
{
    strata_status st = STRATA_OK;

    for (uint64_t i = 0; i < count && st == STRATA_OK; i++) {
        const struct st_trace_record *r = st_trace_at(tw->trace, i);

        if (r->kind == ST_TRACE_CYCLE)
            begin_cycle(tw, r);
        if (r->end_ns == 0)
            continue;
        if (r->end_ns > tw->end_ns)
            tw->end_ns = r->end_ns;
        release_until(tw, r->start_ns);
        if (r->kind == ST_TRACE_CYCLE)
            put_cycle(tw, r);
        else if (r->kind == ST_TRACE_STALL)
            put_stall(tw, r);
        else if (r->kind == ST_TRACE_CALL)
            put_call(tw, r);
        else
            st = put_item(tw, i);
    }
    release_until(tw, UINT64_MAX);
    return st;
}

/* --- the file --- */

static void put_other_data(struct trace_writer *tw, const struct st_trace_count *count)
{
    st_json_object_open(&tw->w, "otherData");
    st_json_put_string(&tw->w, "program", tw->source->program);
    st_json_put_string(&tw->w, "version", tw->source->version);
    st_json_put_u64(&tw->w, "steps_run", count->steps_seen);
    st_json_put_u64(&tw->w, "steps_recorded", count->steps_recorded);
    st_json_put_u64(&tw->w, "steps_recorded_at_most", count->steps_max);
    st_json_put_u64(&tw->w, "records", count->records);
    st_json_put_u64(&tw->w, "records_dropped", count->dropped);
    st_json_object_close(&tw->w);
}

static strata_status put_all(struct trace_writer *tw)
{
    struct st_trace_count count;
    strata_status st;

    st_trace_count(tw->trace, &count);
    tw->origin_ns = tw->end_ns = count.records > 0 ? st_trace_at(tw->trace, 0)->start_ns : 0;
    st_json_object_open(&tw->w, NULL);
    st_json_put_string(&tw->w, "displayTimeUnit", "ms");
    put_other_data(tw, &count);
    st_json_array_open(&tw->w, "traceEvents");
    put_metadata(tw, thread_id(ROW_STEPS, 0), "process_name", tw->source->program);
    for (uint32_t row = 0; row < ROWS_BEFORE + tw->source->row_count; row++)
        put_thread(tw, row, 0);
    put_resident(tw, tw->origin_ns);
    st = put_records(tw, count.records);
    put_resident(tw, tw->end_ns);
    st_json_array_close(&tw->w);
    st_json_object_close(&tw->w);
    st_json_end_line(&tw->w);
    return st;
}

strata_status st_trace_write(const struct st_trace *t, const struct st_trace_source *source, FILE *file)
{
    const size_t items = source->item_count > 0 ? source->item_count : 1;
    struct trace_writer tw = {.trace = t, .source = source};
    uint64_t *tables = malloc(4 * items * sizeof(*tables));
    strata_status st;

    if (tables == NULL)
        return st_nomem(4 * items * sizeof(*tables));
    memset(tables, 0xff, 4 * items * sizeof(*tables));
    tw.now = tables;
    tw.before = tables + items;
    tw.thread_of = tables + 2 * items;
    st_json_begin(&tw.w, file);
    st = put_all(&tw);
    free(tw.threads);
    free(tables);
    return st;
}
