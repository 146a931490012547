/* core/trace/trace.c - the recorder.  trace_write.c writes the file. */
#include "core/trace/trace.h"
#include "core/base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct st_trace {
    struct st_trace_record *records; /* [room] */
    uint64_t room, count, dropped;
    uint64_t steps_max, steps_seen, steps_recorded;
    bool on;
};

strata_status st_trace_create(struct st_trace **out, const struct st_trace_opts *opts)
{
    const uint64_t per_step = opts->records_per_step;
    struct st_trace *t = calloc(1, sizeof(*t));
    uint64_t steps_room;

    assert(opts->steps_max > 0 && per_step > 0);
    if (t == NULL)
        return st_nomem(sizeof(*t));
    steps_room = opts->bytes_max / sizeof(*t->records) / per_step;
    t->steps_max = opts->steps_max < steps_room ? opts->steps_max : steps_room > 0 ? steps_room : 1;
    t->room = t->steps_max * per_step;
    t->records = malloc(t->room * sizeof(*t->records));
    if (t->records == NULL) {
        const uint64_t bytes = t->room * sizeof(*t->records);

        st_trace_destroy(t);
        return st_nomem(bytes);
    }
    memset(t->records, 0xff, t->room * sizeof(*t->records)); /* touched now */
    *out = t;
    return STRATA_OK;
}

void st_trace_destroy(struct st_trace *t)
{
    if (t == NULL)
        return;
    free(t->records);
    free(t);
}

struct st_trace_record *st_trace_cycle(struct st_trace *t, uint32_t step, uint32_t name, uint64_t now_ns)
{
    t->steps_seen += step != 0;
    t->on = t->steps_seen > 0 && t->steps_seen <= t->steps_max;
    if (!t->on)
        return NULL;
    t->steps_recorded += step != 0;
    return st_trace_begin(t, ST_TRACE_CYCLE, step, name, now_ns);
}

void st_trace_pause(struct st_trace *t)
{
    t->on = false;
}

struct st_trace_record *st_trace_begin(struct st_trace *t, enum st_trace_kind kind, uint32_t item, uint32_t cause,
                                       uint64_t now_ns)
{
    struct st_trace_record *r;

    if (t == NULL || !t->on)
        return NULL;
    if (t->count == t->room) {
        t->dropped++;
        return NULL;
    }
    r = &t->records[t->count++];
    *r = (struct st_trace_record){.start_ns = now_ns, .item = item, .cause = cause, .kind = kind};
    return r;
}

void st_trace_count(const struct st_trace *t, struct st_trace_count *out)
{
    *out = (struct st_trace_count){.steps_seen = t->steps_seen,
                                   .steps_recorded = t->steps_recorded,
                                   .steps_max = t->steps_max,
                                   .records = t->count,
                                   .dropped = t->dropped,
                                   .bytes = t->room * sizeof(*t->records)};
}

const struct st_trace_record *st_trace_at(const struct st_trace *t, uint64_t i)
{
    assert(i < t->count);
    return &t->records[i];
}
