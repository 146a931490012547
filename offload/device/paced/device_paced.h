/* offload/device/paced/device_paced.h - a device that moves real bytes and, instead of computing, waits as long as a machine
 * file says the computation takes.
 *
 * It has four threads, one per queue.  Copies are real and never faster than the machine's links.  Gradients, their rounding and
 * norm, the table's rows and updates of resident state are real, and never faster than the machine's memory.  A layer's forward
 * and backward wait for st_call_seconds().  Compute and updates take turns, as on one processor; the other queues have clocks of
 * their own, so late wake-ups do not add up.  A queue is late only if the real work takes longer than the wait.
 *
 * Gradients are seeded: those of a page in micro-batch m are computed from the page's weights and the micro-batch's tokens on the
 * device.  So digests agree across placements, and a byte that did not arrive changes the digest.
 *
 * It has no tensor ops, so it runs with the compute declared below.  It needs st_device_opts.pace, and it cannot generate. */
#ifndef OFFLOAD_DEVICE_PACED_DEVICE_PACED_H
#define OFFLOAD_DEVICE_PACED_DEVICE_PACED_H

#include "offload/compute.h"
#include "offload/device/device.h"
#include "offload/machine/rates.h"

/* Used in place of a model; its run() works only with the paced device. */
struct st_paced_model {
    const struct st_workload *workload; /* borrowed */
    struct st_machine machine;
};
struct st_compute st_paced_compute(struct st_paced_model *model);

/** Seeded initial values, small and finite, a function of page and element: an st_engine_fill_fn; ctx is unused. */
strata_status st_paced_fill(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out);

#endif
