/* trace_read.c - one step of a trace file as lanes: the first walk through the file finds the steps and the rows, the second one
 * the spans that overlap the step, cut to it. */
#include "core/picture/trace_read.h"

#include "core/base/error.h"
#include "core/picture/trace_events_internal.h"
#include "core/system/file.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME      128u
#define NAMES_MAX 128u /* of ops; spans of others are named by their kind */

/* A row of the file: its lane, and which of the lane's it is. */
struct thread {
    uint64_t id;
    double order;
    char lane_name[NAME];
    uint32_t number, lane;
};

struct st_trace_names {
    char lanes[ST_LANES_MAX][NAME], ops[NAMES_MAX][NAME];
    const char *lane[ST_LANES_MAX];
    uint32_t op_count;
};

struct reader {
    struct st_trace_step *step;
    uint64_t wanted; /* 0: the last one */
    bool found;
    uint64_t number, least, most; /* steps */
    double start, end;            /* of the step, in microseconds */
    struct thread threads[ST_TRACE_THREADS_MAX];
    uint32_t thread_count;
    size_t span_room;
};

/* --- events --- */

static const char *text_of(const st_json *object, const char *key)
{
    const st_json *value = object != NULL ? st_json_get(object, key) : NULL;

    return value != NULL && st_json_type(value) == ST_JSON_STRING ? st_json_string(value) : "";
}

static bool is(const st_json *event, const char *phase, const char *key, const char *value)
{
    return strcmp(text_of(event, "ph"), phase) == 0 && strcmp(text_of(event, key), value) == 0;
}

static const st_json *args_of(const st_json *event)
{
    const st_json *args = st_json_get(event, "args");

    return args != NULL && st_json_type(args) == ST_JSON_OBJECT ? args : NULL;
}

static bool number_of(const st_json *object, const char *key, double *out)
{
    const st_json *value = object != NULL ? st_json_get(object, key) : NULL;

    if (value == NULL || st_json_type(value) != ST_JSON_NUMBER)
        return false;
    *out = st_json_number(value);
    return isfinite(*out);
}

static bool count_of(const st_json *object, const char *key, uint64_t *out)
{
    const st_json *value = object != NULL ? st_json_get(object, key) : NULL;

    return value != NULL && st_json_u64(value, out);
}

/* Begin and end, in microseconds. */
static bool times_of(const st_json *event, double *start, double *end)
{
    double duration;

    if (!number_of(event, "ts", start) || !number_of(event, "dur", &duration) || duration < 0)
        return false;
    *end = *start + duration;
    return isfinite(*end);
}

/* --- the first walk: steps and rows --- */

static strata_status thread_named(struct reader *r, const st_json *event, const struct st_trace_place *place, struct thread **out)
{
    uint64_t id;

    if (!count_of(event, "tid", &id))
        return st_trace_bad(place, "an event of a row lacks a whole number \"tid\"");
    for (uint32_t i = 0; i < r->thread_count; i++)
        if (r->threads[i].id == id) {
            *out = &r->threads[i];
            return STRATA_OK;
        }
    if (r->thread_count == ST_TRACE_THREADS_MAX)
        return st_trace_bad(place, "more than 1024 rows");
    *out = &r->threads[r->thread_count++];
    **out = (struct thread){.id = id, .lane = ST_NO_LANE};
    return STRATA_OK;
}

/* "write 2" is the lane "write", its second row. */
static void split_name(struct thread *t, const char *name)
{
    const char *space = strrchr(name, ' ');
    char *end = NULL;
    const unsigned long number = space != NULL ? strtoul(space + 1, &end, 10) : 0;
    const bool numbered = end != NULL && *end == '\0' && number >= 2 && number <= ST_TRACE_THREADS_MAX;

    t->number = numbered ? (uint32_t)number - 1 : 0;
    snprintf(t->lane_name, NAME, "%.*s", numbered ? (int)(space - name) : (int)strlen(name), name);
}

static strata_status take_row(struct reader *r, const st_json *event, const struct st_trace_place *place)
{
    const st_json *args = args_of(event);
    struct thread *t;
    strata_status st = thread_named(r, event, place, &t);

    if (st != STRATA_OK)
        return st;
    if (is(event, "M", "name", "thread_name"))
        split_name(t, text_of(args, "name"));
    else if (!number_of(args, "sort_index", &t->order))
        return st_trace_bad(place, "a thread_sort_index lacks a number \"sort_index\"");
    return STRATA_OK;
}

static strata_status take_step(struct reader *r, const st_json *event, const struct st_trace_place *place)
{
    double start, end;
    uint64_t number;

    if (!count_of(args_of(event), "step", &number) || !times_of(event, &start, &end))
        return st_trace_bad(place, "a step lacks its number \"step\", its beginning \"ts\" or its duration \"dur\"");
    if (number == 0)
        return STRATA_OK; /* a flush */
    r->least = r->most == 0 || number < r->least ? number : r->least;
    r->most = number > r->most ? number : r->most;
    if (r->wanted != 0 ? number != r->wanted : number != r->most)
        return STRATA_OK;
    r->found = true;
    r->number = number;
    r->start = start;
    r->end = end;
    return STRATA_OK;
}

static strata_status first_walk(void *ctx, const st_json *event, const struct st_trace_place *place)
{
    if (is(event, "M", "name", "thread_name") || is(event, "M", "name", "thread_sort_index"))
        return take_row(ctx, event, place);
    return is(event, "X", "cat", "step") ? take_step(ctx, event, place) : STRATA_OK;
}

static int by_order(const void *left, const void *right)
{
    const struct thread *a = left, *b = right;

    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

/* Lanes in the order of their first rows; the row of the steps itself is none. */
static strata_status make_lanes(struct reader *r, const char *path)
{
    struct st_lanes *lanes = &r->step->lanes;
    struct st_trace_names *names = r->step->names;

    qsort(r->threads, r->thread_count, sizeof(r->threads[0]), by_order);
    lanes->names = names->lane;
    lanes->stalls = ST_NO_LANE;
    for (uint32_t i = 0; i < r->thread_count; i++) {
        struct thread *t = &r->threads[i];
        uint32_t lane = 0;

        if (t->lane_name[0] == '\0' || strcmp(t->lane_name, "step") == 0)
            continue;
        while (lane < lanes->count && strcmp(names->lane[lane], t->lane_name) != 0)
            lane++;
        if (lane == ST_LANES_MAX)
            return st_error(STRATA_E_INPUT, "%s: more than %u lanes", path, ST_LANES_MAX);
        if (lane == lanes->count) {
            memcpy(names->lanes[lane], t->lane_name, NAME);
            names->lane[lane] = names->lanes[lane];
            lanes->count++;
        }
        if (strcmp(t->lane_name, "stall") == 0)
            lanes->stalls = lane;
        t->lane = lane;
    }
    return STRATA_OK;
}

static strata_status choose(struct reader *r, const char *path)
{
    struct st_trace_step *step = r->step;

    if (r->most == 0)
        return st_error(STRATA_E_INPUT, "%s: no step is recorded in this trace", path);
    if (!r->found)
        return st_error(STRATA_E_INPUT, "%s: step %llu is not recorded; there are %llu to %llu", path,
                        (unsigned long long)r->wanted, (unsigned long long)r->least, (unsigned long long)r->most);
    step->number = r->number;
    step->lanes.seconds = fmax((r->end - r->start) * 1e-6, 1e-9);
    snprintf(step->title, sizeof(step->title), "step %llu", (unsigned long long)r->number);
    step->lanes.title = step->title;
    return make_lanes(r, path);
}

/* --- the second walk: spans --- */

static const char *name_of(struct st_trace_names *names, const char *name)
{
    for (uint32_t i = 0; i < names->op_count; i++)
        if (strncmp(names->ops[i], name, NAME - 1) == 0)
            return names->ops[i];
    if (names->op_count == NAMES_MAX)
        return NULL;
    snprintf(names->ops[names->op_count], NAME, "%s", name);
    return names->ops[names->op_count++];
}

static strata_status add_span(struct reader *r, const struct st_lane_span *span, const struct st_trace_place *place)
{
    struct st_lanes *lanes = &r->step->lanes;
    struct st_lane_span *grown;

    if (lanes->span_count == ST_TRACE_SPANS_MAX)
        return st_trace_bad(place, "the step has more than 2097152 spans");
    if (lanes->span_count == r->span_room) {
        r->span_room = r->span_room == 0 ? 1024 : 2 * r->span_room;
        if ((grown = realloc(lanes->spans, r->span_room * sizeof(*grown))) == NULL)
            return st_nomem(r->span_room * sizeof(*grown));
        lanes->spans = grown;
    }
    lanes->spans[lanes->span_count++] = *span;
    return STRATA_OK;
}

static uint32_t lane_called(const struct st_lanes *lanes, const char *name)
{
    for (uint32_t i = 0; i < lanes->count; i++)
        if (strcmp(lanes->names[i], name) == 0)
            return i;
    return ST_NO_LANE;
}

/* What the span is of: an op, or a stall with its cause. */
static void describe(struct reader *r, const st_json *event, bool stall, struct st_lane_span *span)
{
    const struct st_lanes *lanes = &r->step->lanes;
    const char *name = stall ? text_of(args_of(event), "lane") : text_of(event, "name");

    span->cause = stall ? lane_called(lanes, name) : ST_NO_LANE;
    span->kind = stall ? st_span_kind_of_lane(name) : st_span_kind_of(lanes->names[span->lane], name);
    span->name = stall ? NULL : name_of(r->step->names, name);
}

static strata_status second_walk(void *ctx, const st_json *event, const struct st_trace_place *place)
{
    const bool stall = is(event, "X", "cat", "stall");
    struct reader *r = ctx;
    struct st_lane_span span = {.count = 1};
    double start, end;
    struct thread *t;
    strata_status st;

    if (!stall && !is(event, "X", "cat", "op"))
        return STRATA_OK;
    if (!times_of(event, &start, &end))
        return st_trace_bad(place, "a span lacks its beginning \"ts\" or its duration \"dur\"");
    start = fmax(start, r->start);
    end = fmin(end, r->end);
    if (start >= end)
        return STRATA_OK;
    if ((st = thread_named(r, event, place, &t)) != STRATA_OK)
        return st;
    if (t->lane == ST_NO_LANE)
        return st_trace_bad(place, "a span lies in a row without a name");
    span.start = (start - r->start) * 1e-6;
    span.end = (end - r->start) * 1e-6;
    span.ran = span.end - span.start;
    span.lane = t->lane;
    span.thread = t->number;
    describe(r, event, stall, &span);
    return add_span(r, &span, place);
}

/* --- the file --- */

static strata_status read_step(struct reader *r, int fd, const struct st_file_identity *was, const char *path)
{
    strata_status st = st_trace_events(fd, was->bytes, path, first_walk, r);

    if (st == STRATA_OK)
        st = choose(r, path);
    if (st == STRATA_OK)
        st = st_trace_events(fd, was->bytes, path, second_walk, r);
    return st == STRATA_OK ? st_file_check_unchanged(fd, was, path) : st;
}

strata_status st_trace_step_read(struct st_trace_step *out, const char *path, uint64_t number)
{
    struct reader *r = calloc(1, sizeof(*r));
    struct st_file_identity was;
    strata_status st;
    int fd = -1;

    *out = (struct st_trace_step){.names = calloc(1, sizeof(*out->names))};
    if (r == NULL || out->names == NULL) {
        st = st_nomem(0);
    } else {
        r->step = out;
        r->wanted = number;
        st = st_file_open(&fd, &was, path, STRATA_E_INPUT);
    }
    if (st == STRATA_OK)
        st = read_step(r, fd, &was, path);
    if (fd >= 0)
        close(fd);
    free(r);
    if (st != STRATA_OK)
        st_trace_step_free(out);
    return st;
}

void st_trace_step_free(struct st_trace_step *step)
{
    free(step->lanes.spans);
    free(step->names);
    *step = (struct st_trace_step){0};
}
