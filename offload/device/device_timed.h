/* offload/device/device_timed.h - a device that times every call of another one's ops, and does nothing else.
 *
 * Its tables take the place of the inner device's, so a device that is not timed pays nothing.  On a device whose calls are done
 * when they return, a call takes what the clock says.  On one with queues it is marked by two stamps on its queue (device.h),
 * which are read when the queues are empty, in collect(); if more calls wait for that than there are stamps, the oldest is read,
 * and waited for if it has not run yet.  Calls of several queues that run at once each take their own time.
 *
 * Threads: as device.h.  Memory is taken at open. */
#ifndef OFFLOAD_DEVICE_DEVICE_TIMED_H
#define OFFLOAD_DEVICE_DEVICE_TIMED_H

#include "offload/device/op_times.h"

/** Put a timed device in place of *device, which it takes.  On failure *device stays as it is.  `times` is borrowed until close.
 *  E_NOSYS: its ops cannot be timed (paced).  E_NOMEM; or what the device says. */
strata_status st_device_timed_open(struct st_device **device, struct st_op_times *times);
/** The calls that follow belong to this op of the program; calls of none (ST_NO_CLASS) are not recorded. */
void st_device_timed_op(struct st_device *device, uint32_t op);
/** Finish the queues and read the stamps of all calls made so far. */
strata_status st_device_timed_collect(struct st_device *device);

#endif
