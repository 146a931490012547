/* offload/device/device_timed_internal.h - the timed device's internals, for device_timed*.c only. */
#ifndef OFFLOAD_DEVICE_DEVICE_TIMED_INTERNAL_H
#define OFFLOAD_DEVICE_DEVICE_TIMED_INTERNAL_H

#include "offload/device/device_timed.h"
#include "offload/device/tensor_ops.h"

/* Calls of a queue whose stamps can wait to be read; most are of models.  Many times what the engine hands out ahead
 * (ST_JOBS_AHEAD), so the oldest has long run when it is read to make room. */
#define ST_TIMED_COMPUTE 4096u
#define ST_TIMED_OTHER   256u /* of each other queue */
#define ST_TIMED_ALL     (ST_TIMED_COMPUTE + (ST_QUEUE_COUNT - 1) * ST_TIMED_OTHER)

struct timed_waiting {
    uint32_t class, op;
};

struct timed_ring {
    uint32_t first;        /* place of the ring in `waiting` */
    uint64_t added, taken; /* call n is at n % room */
};

struct timed_device {
    struct st_device base;
    struct st_device_ops ops; /* the inner device's, with ours in place of what takes the device */
    struct st_tensor_ops tensors;
    struct st_device *inner;
    struct st_op_times *times;
    uint32_t op; /* of the calls that come, or ST_NO_CLASS */
    uint64_t anchor_ns;
    struct timed_ring rings[ST_QUEUE_COUNT];
    struct timed_waiting waiting[ST_TIMED_ALL];
};

static inline struct timed_device *timed_of(struct st_device *dev)
{
    return (struct timed_device *)(void *)dev;
}

/* A call under way. */
struct timed_call {
    struct timed_device *t;
    struct st_device *inner;
    const struct st_device_ops *ops;
    const struct st_tensor_ops *tensors;
    enum st_queue queue;
    strata_status st; /* of marking its begin; if it fails, the call is not made */
    bool records;
    uint32_t class;
    uint64_t start_ns; /* of a device without queues */
};

/* Begin and end of a call; st: of the call itself. */
struct timed_call st_timed_begin(struct st_device *dev, enum st_queue queue, const struct st_op_shape *shape);
strata_status st_timed_end(const struct timed_call *c, strata_status st);

/* device_timed_tensors.c: but zero, which is the device's, and attention_workspace. */
extern const struct st_tensor_ops st_timed_tensor_ops;

#endif
