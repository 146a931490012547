/* offload/simulate/cost.h - the time that one op takes on a machine, for the simulator.
 *
 * A rate that is 0 takes no time.  A separate device's own passes (updates of state in its memory, rounding, zeroing, rows of the
 * table, calls without FLOPs) take the time of the bytes that they read and write (offload/device/op_traffic.h) at its memory's
 * rate.  On a device that is the host the workers make these passes: updates at their own rate, the rest at that of checksums. */
#ifndef OFFLOAD_SIMULATE_COST_H
#define OFFLOAD_SIMULATE_COST_H

#include "offload/compute.h"
#include "offload/machine/rates.h"
#include "offload/program/program.h"

/** Seconds of computing for an op that is a call, without anything else; 0: it is not a call. */
double st_cost_flops(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);
/* Seconds of a separate device's own passes over its memory. */
struct st_passes {
    double update; /* of state */
    double round;  /* of finished gradients */
    double reduce;   /* of leaves' sums */
    double zero;   /* of sums, before the first gradient is added: of what no product writes */
    double rows;   /* of activations, outside the products' rates: lookup, scatter, positions, the final norm, losses */
};
static inline double st_passes_sum(const struct st_passes *p)
{
    return p->update + p->round + p->reduce + p->zero + p->rows;
}
/** Of one op; all 0 on a device that is the host. */
struct st_passes st_cost_passes(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);
/** Parameters that the host's cores update for an op. */
uint64_t st_cost_updated(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);
/** By how much the host's updates take longer because state that is streamed to the device passes through the same memory
 *  meanwhile, evenly over the step.  A parameter that the host updates costs its memory state and weight both ways, its gradient
 *  as it comes and is read, and its new weight as it is stored and leaves; one that is streamed state and weight both ways. */
double st_cost_streaming(const struct st_program *program);
/** Seconds of an exchange between ranks, without its latency; 0: it is none. */
double st_cost_comm(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);
/** Bytes per second of a lane that moves some. */
double st_cost_rate(const struct st_machine *machine, enum strata_lane lane);

/** Seconds of an op on its lane, alone on the machine, with the launch of one on a device's queue: compute by its call, a
 * device's own passes by bytes, copies by bytes, the host's updates by parameters (with checksums if the chunk or its weights are
 * on NVMe), its gathers, scatters and roundings by bytes at the checksum rate, exchanges between ranks by the bytes that this one
 * receives, and their latency.  I/O ops: by bytes at the lane's own rate, read or write, as if nothing else used the disk.
 * Without st_cost_checksums(). */
double st_cost_op(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);

/** Seconds of the checksums that a copy brings with it: of weights and activations that were read and are used for the first
 *  time, of those that leave for NVMe.  On a cpu device they are part of the op; elsewhere work of the host's threads. */
double st_cost_checksums(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);

/** The read of this cycle that filled the host buffer which `op` uploads or gathers from: ST_NO_BUFFER if it was not read, or
 *  was written since. */
uint32_t st_cost_read_of(const struct st_program *program, const struct st_op *op);

#endif
