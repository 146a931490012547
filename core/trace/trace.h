/* core/trace/trace.h - records what ran and when, and writes it as a Chrome trace (chrome://tracing, ui.perfetto.dev).
 *
 * All memory is taken at create; recording stores into a fixed array and neither locks, allocates nor writes files.  A source
 * says what the records stand for once the run is over.  Recording stops when the array is full or the requested steps have run;
 * records that did not fit are counted.
 *
 * Threads.  One thread begins records.  st_trace_end() may run on another one, once per record; the thread that writes the file
 * must have synchronised with it by then. */
#ifndef CORE_TRACE_TRACE_H
#define CORE_TRACE_TRACE_H

#include "core/system/file.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ST_TRACE_NONE       UINT32_MAX
#define ST_TRACE_ARGS_MAX   4u
#define ST_TRACE_SERIES_MAX 4u
#define ST_TRACE_ROWS_MAX   32u
#define ST_TRACE_DETAIL     96u

struct st_trace;

enum st_trace_kind {
    ST_TRACE_CYCLE, /* item: number of the step, 0: none; cause: what st_trace_cycle() was given as `name` */
    ST_TRACE_ITEM,  /* item: ran from start to end */
    ST_TRACE_STALL, /* item: could not start; cause: the item it waited for */
    ST_TRACE_CALL   /* item: number of the call in the source's calls; cause: the item of this cycle that it is part of */
};

struct st_trace_record {
    uint64_t start_ns, end_ns; /* st_clock_ns(); end 0: never finished */
    uint32_t item, cause;
    enum st_trace_kind kind;
};

struct st_trace_opts {
    uint32_t steps_max;        /* record at most this many steps, from the first on */
    uint64_t records_per_step; /* the most in one step, the step's own record included */
    uint64_t bytes_max;        /* of the array; if it is full, fewer steps are recorded */
};

/** Allocate the array and touch it.  E_NOMEM.  Cost: at most bytes_max, or one step's records if they need more. */
strata_status st_trace_create(struct st_trace **out, const struct st_trace_opts *opts);
void st_trace_destroy(struct st_trace *t);

/** Begin a cycle.  `step`: the number of this training step in its run, 1 or more, which a run that goes on does not begin with;
 *  0: the cycle belongs to the steps before it and is recorded if they are.  `name`: index into the source's cycle names.  NULL:
 * not recorded. */
struct st_trace_record *st_trace_cycle(struct st_trace *t, uint32_t step, uint32_t name, uint64_t now_ns);
/** Stop recording until the next cycle; records that have begun may still end. */
void st_trace_pause(struct st_trace *t);
/** Begin a record of the current cycle.  NULL: not recorded.  t may be NULL. */
struct st_trace_record *st_trace_begin(struct st_trace *t, enum st_trace_kind kind, uint32_t item, uint32_t cause,
                                       uint64_t now_ns);
static inline void st_trace_end(struct st_trace_record *r, uint64_t now_ns)
{
    if (r != NULL)
        r->end_ns = now_ns;
}

struct st_trace_count {
    uint64_t steps_seen, steps_recorded, steps_max;
    uint64_t records, dropped, bytes; /* bytes: of the array */
};
void st_trace_count(const struct st_trace *t, struct st_trace_count *out);
/** i < count.records, in the order in which they began. */
const struct st_trace_record *st_trace_at(const struct st_trace *t, uint64_t i);

/* --- the file --- */

struct st_trace_arg {
    const char *key;
    uint64_t value;
};

struct st_trace_item {
    const char *name;
    uint32_t row;   /* index into the source's rows */
    uint64_t bytes; /* moved; 0: none */
    struct st_trace_arg args[ST_TRACE_ARGS_MAX];
    uint32_t arg_count;
};

/* Part of an item: shown within its span.  A call that seems to begin before the item or to end after it is cut there, as the
 * times of the two may come from different clocks; its rates are those of its whole time. */
struct st_trace_call {
    const char *name;
    char detail[ST_TRACE_DETAIL];
    double bytes, flops; /* 0: none */
};

struct st_trace_row {
    const char *name;
    uint32_t series; /* of the counter "bytes in flight"; ST_TRACE_NONE: not counted */
};

/* What the records mean.  Strings are borrowed and need not be JSON-safe. */
struct st_trace_source {
    void *ctx;
    const char *program, *version;
    uint32_t item_count;
    const struct st_trace_row *rows; /* spans of a row that overlap are spread over the rows "name 2", "name 3", ... */
    uint32_t row_count;
    const char *const *cycles; /* names: "step", "flush" */
    const char *const *series; /* names */
    uint32_t series_count;
    const struct st_trace_arg *resident; /* constant counters, in bytes */
    uint32_t resident_count;
    void (*item)(void *ctx, uint32_t item, struct st_trace_item *out);
    void (*call)(void *ctx, uint32_t call, struct st_trace_call *out); /* NULL: there are none */
    /* The n-th item that `item` waits for, of this cycle or the previous one; ST_TRACE_NONE: no more. */
    uint32_t (*wait)(void *ctx, uint32_t item, uint32_t n, bool *previous);
};

/** Write the trace; whether all of it was is for the caller to ask of the file.  E_NOMEM.  Cost    one pass over the records;
 * allocates two words per item and three per span in flight at once. */
strata_status st_trace_write(const struct st_trace *t, const struct st_trace_source *source, FILE *file);

#endif
