/* tests/offload/device_mirror.h - a device whose arena the host may follow: in front of one whose arena it may not.
 *
 * The arena is host memory.  Each call takes what is used of it to the real device, runs there, and brings all that back: slow,
 * and exact. */
#ifndef TESTS_OFFLOAD_DEVICE_MIRROR_H
#define TESTS_OFFLOAD_DEVICE_MIRROR_H

#include "offload/device/op_times.h"

/** Opens `inner` behind a mirror, timed if there are times; close it by its own ops.  E_NOSYS where the machine has no such
 * device. */
strata_status df_mirror_open(struct st_device **out, struct st_op_times *times, const struct st_device_ops *inner,
                             const struct st_device_opts *opts);
/** Calls move the first `bytes` of the arena from now on, none before; nothing happens on a device that is no mirror. */
void df_mirror_use(struct st_device *dev, uint64_t bytes);

#endif
