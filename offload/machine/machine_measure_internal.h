/* offload/machine/machine_measure_internal.h - the parts of st_machine_measure(); not for users of offload/machine/machine.h. */
#ifndef OFFLOAD_MACHINE_MACHINE_MEASURE_INTERNAL_H
#define OFFLOAD_MACHINE_MACHINE_MEASURE_INTERNAL_H

#include "core/system/arena.h"
#include "core/system/workers.h"
#include "offload/device/device.h"
#include "offload/machine/machine.h"

#define ST_MEASURE_COPY_BYTES_MIN (UINT64_C(4) << 20)

/* Resources of the probes. The host buffer holds normal values of the workload's dtype: the power that a GPU draws, and so its
 * clock rate, depends on the bits that it multiplies. */
struct st_prober {
    strata_dtype dtype;
    struct st_workers *workers;
    const struct st_kernels *kernels;
    const struct st_device_ops *ops;
    uint32_t index;
    uint64_t deadline_ns; /* of the device */
    uint64_t device_most; /* limit on the bytes of a probe's arena: less than half of the free memory of a device with its own */
    struct st_device *device;
    struct st_staged staged; /* of `host` */
    struct st_arena host;    /* pinned while a device that pins memory is open */
};

/* Runs the measured work `count` times, and waits once for all of it. */
typedef strata_status st_measure_fn(struct st_prober *m, void *ctx, uint32_t count);

/** Seconds of one run: the minimum over repeats that take about `limit` seconds (at least one), after one to warm up. On a device
 *  with queues a repeat has as many runs as take some milliseconds, so that neither enqueueing nor waiting counts; on others it
 *  is one run. */
strata_status st_measure_best(struct st_prober *m, st_measure_fn *fn, void *ctx, double limit, double *seconds);
/** Seconds for the probes of this device: short if work is queued, since such a device's times are reproducible. */
double st_measure_limit(const struct st_prober *m);
/** The seconds to spend on repeats; 0 if a test sets fault site machine.patience to 0, since one repeat shows that a probe
 *  works. */
double st_measure_patience(double seconds);

/** Workers, kernels, the device's table and the host buffer of `bytes`, less if the device has no room for as many.
 *  E_INVAL (names), E_NOMEM, E_NOSYS, E_NOFIT.  Call st_measure_close() after an error, too. */
strata_status st_measure_open(struct st_prober *m, strata_dtype dtype, const struct st_machine_opts *opts, uint64_t bytes);
void st_measure_close(struct st_prober *m);
strata_status st_measure_open_device(struct st_prober *m, uint64_t arena_bytes);
void st_measure_close_device(struct st_prober *m); /* allowed if none is open */
/** Fill the first `bytes` of the device's arena from the host buffer, piece by piece. */
strata_status st_measure_fill(struct st_prober *m, uint64_t bytes);

/* machine_measure_compute.c.  The device is open, with st_measure_matmul_bytes() at least. */
uint64_t st_measure_matmul_bytes(const struct st_prober *m, const struct st_workload *w);
strata_status st_measure_matmul(struct st_prober *m, const struct st_workload *w, double *flops);
/* No device is open on entry; one may be open on return.  A block or head that is too large for a probe, or would take too long
 * at the machine's rate of matmuls, is not measured: block_flops or head_flops stays unchanged, and the next coarser rate is
 * used. */
strata_status st_measure_block(struct st_prober *m, const struct st_workload *w, const struct st_compute *compute,
                               struct st_machine *machine);
/* Of a layer of experts all slices: experts_flops. */
strata_status st_measure_experts(struct st_prober *m, const struct st_workload *w, const struct st_compute *compute,
                                 struct st_machine *machine);
/* The first slice, which is the largest: norm, statistics, and the gradient with recomputed logits. */
strata_status st_measure_head(struct st_prober *m, const struct st_workload *w, const struct st_compute *compute,
                              struct st_machine *machine);

/* machine_measure_handover.c */
/** Seconds from one thread's signal until it is answered by another: what the engine's thread and the others' pass on. */
strata_status st_measure_handover(struct st_prober *m, double *seconds);
/** Of a device with queues, which is open: from an op's end until the next one has begun, where its notice was waited for; and of
 *  each op where it was not. */
strata_status st_measure_queue(struct st_prober *m, double *handover, double *launch);

/** Rates of the directories: of each alone if there are several, and of all together.  E_NOSPC, I/O errors. */
strata_status st_machine_measure_disk(struct st_machine *m, const struct st_nvme_opts *nvme);

#endif
