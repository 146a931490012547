/* offload/machine/machine_measure_internal.h - the parts of st_machine_measure(); not for users of offload/machine/machine.h. */
#ifndef OFFLOAD_MACHINE_MACHINE_MEASURE_INTERNAL_H
#define OFFLOAD_MACHINE_MACHINE_MEASURE_INTERNAL_H

#include "core/system/arena.h"
#include "core/system/workers.h"
#include "offload/device/device.h"
#include "offload/machine/machine.h"

#define ST_MEASURE_COPY_BYTES_MIN (UINT64_C(4) << 20)

/* What probes stand on.  The host buffer holds normal values of the workload's dtype: what a GPU draws, and so how fast its clock
 * may run, depends on the bits that it multiplies. */
struct st_prober {
    strata_dtype dtype;
    struct st_workers *workers;
    const struct st_kernels *kernels;
    const struct st_device_ops *ops;
    uint32_t index;
    uint64_t device_most; /* bytes of an arena that a probe may take: of a device's own memory not half of what is free */
    struct st_device *device;
    struct st_arena host; /* pinned while a device is open, where it does that */
};

/* Do `count` times what is measured, and wait for all of it once. */
typedef strata_status st_measure_fn(struct st_prober *m, void *ctx, uint32_t count);

/** Seconds of one, the least of the repeats of about `limit` seconds (one at least), after one that warms up.  On a device with
 * queues a repeat is as many as take some milliseconds, so that neither enqueueing nor waiting counts; on others it is one. */
strata_status st_measure_best(struct st_prober *m, st_measure_fn *fn, void *ctx, double limit, double *seconds);
/** Seconds of the probes of this device: short where work is queued, since such a device repeats itself. */
double st_measure_limit(const struct st_prober *m);
/** So many seconds for repeats; none where a test makes fault site machine.patience 0: one repeat says that a probe works. */
double st_measure_patience(double seconds);

/** Workers, kernels, the device's table and the host buffer of `bytes`, less where the device has no room for as many.
 *  E_INVAL (names), E_NOMEM, E_NOSYS, E_NOFIT.  After an error, too: st_measure_close(). */
strata_status st_measure_open(struct st_prober *m, strata_dtype dtype, const struct st_machine_opts *opts, uint64_t bytes);
void st_measure_close(struct st_prober *m);
strata_status st_measure_open_device(struct st_prober *m, uint64_t arena_bytes);
void st_measure_close_device(struct st_prober *m); /* none open is fine */
/** The first `bytes` of the device's arena from the host buffer, piece by piece. */
strata_status st_measure_fill(struct st_prober *m, uint64_t bytes);

/* machine_measure_compute.c.  The device is open, with st_measure_matmul_bytes() at least. */
uint64_t st_measure_matmul_bytes(const struct st_prober *m, const struct st_workload *w);
strata_status st_measure_matmul(struct st_prober *m, const struct st_workload *w, double *flops);
/* No device is open; one may be afterwards.  What is too large for a probe, or would take too long at the machine's rate of
 * matmuls, is not measured: block_flops or head_flops stays as it is, and the next coarser rate stands for it. */
strata_status st_measure_block(struct st_prober *m, const struct st_workload *w, const struct st_compute *compute,
                               struct st_machine *machine);
/* The first slice, which is as large as any: norm, statistics, gradient with the logits made again. */
strata_status st_measure_head(struct st_prober *m, const struct st_workload *w, const struct st_compute *compute,
                              struct st_machine *machine);

/** Rates of the directories: of each alone where there are several, and of all.  E_NOSPC, I/O errors. */
strata_status st_machine_measure_disk(struct st_machine *m, const struct st_nvme_opts *nvme);

#endif
