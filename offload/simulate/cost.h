/* offload/simulate/cost.h - the time that one op takes on a machine, for the simulator.
 *
 * A rate that is 0 takes no time.  Work of a separate device other than FLOPs (rounding, lookups, updates of state in its memory)
 * takes none either: its memory is faster than anything that a program waits for. */
#ifndef OFFLOAD_SIMULATE_COST_H
#define OFFLOAD_SIMULATE_COST_H

#include "offload/compute.h"
#include "offload/machine/rates.h"
#include "offload/program/program.h"

/** Seconds of computing for an op that is a call, without anything else; 0: it is not a call. */
double st_cost_flops(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);
/** Parameters that the host's cores update for an op. */
uint64_t st_cost_updated(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);
/** Bytes per second of a lane that moves some. */
double st_cost_rate(const struct st_machine *machine, enum st_lane lane);

/** Seconds of an op on its lane, alone on the machine: compute by its call, copies by bytes, updates by parameters (with
 *  checksums if the chunk or its weights are on NVMe), host gathers and scatters by bytes at the checksum rate.  I/O ops: by
 *  bytes at the lane's own rate, read or write, as if nothing else used the disk.  Without st_cost_checksums(). */
double st_cost_op(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);

/** Seconds of the checksums that a copy brings with it: of weights and activations that were read and are used for the first
 *  time, of those that leave for NVMe.  On a cpu device they are part of the op; elsewhere work of the host's threads. */
double st_cost_checksums(const struct st_program *program, const struct st_machine *machine, const struct st_op *op);

/** The read of this cycle that filled the host buffer which `op` uploads or gathers from: ST_NO_BUFFER if it was not read, or
 *  was written since. */
uint32_t st_cost_read_of(const struct st_program *program, const struct st_op *op);

#endif
