/* offload/device/op_times.h - how long every call of a device's ops took: a record that is filled by a timed device
 * (device_timed.h), one class for all calls of an op with the same shape.
 *
 * Memory is taken at create and does not grow: when all classes are in use, an op's further shapes share one that has no shape.
 * One thread at a time. */
#ifndef OFFLOAD_DEVICE_OP_TIMES_H
#define OFFLOAD_DEVICE_OP_TIMES_H

#include "offload/device/device.h"
#include "offload/device/op_traffic.h"

struct st_trace;

#define ST_OP_CLASSES_OWN 512u /* of one shape each */
#define ST_OP_CLASSES     (ST_OP_CLASSES_OWN + ST_DEVICE_OP_COUNT)
#define ST_NO_CLASS       UINT32_MAX

struct st_op_times;

/* Calls of one op with one shape. */
struct st_op_class {
    struct st_op_shape shape; /* neither rows nor columns: of several shapes */
    enum st_queue queue;
    uint32_t next; /* the op's next class, or ST_NO_CLASS */
    uint64_t calls, ns;
    double bytes, flops; /* of all calls together */
};

struct st_op_times_opts {
    uint64_t table_rows;    /* rows of the embedding's table: slices count by their part of it */
    struct st_trace *trace; /* borrowed: gets a record for each call; NULL: none */
    bool records;           /* as st_op_times_record() */
};

/** E_NOMEM. */
strata_status st_op_times_create(struct st_op_times **out, const struct st_op_times_opts *opts);
void st_op_times_destroy(struct st_op_times *t); /* NULL is fine */
/** Whether the calls that follow are recorded.  The sums of those before stay. */
void st_op_times_record(struct st_op_times *t, bool on);
bool st_op_times_records(const struct st_op_times *t);
uint64_t st_op_times_table_rows(const struct st_op_times *t);

/** Count a call and find its class. */
uint32_t st_op_times_call(struct st_op_times *t, enum st_queue queue, const struct st_op_shape *shape);
/** The time of a call that was counted.  op: of the program, for the trace. */
void st_op_times_took(struct st_op_times *t, uint32_t class, uint32_t op, uint64_t start_ns, uint64_t ns);

/** class < ST_OP_CLASSES; those without calls are empty. */
const struct st_op_class *st_op_times_at(const struct st_op_times *t, uint32_t class);

#endif
