/* offload/simulate/simulate.h - runs a program on a clock instead of on lanes.
 *
 * The same ops, waits and lane order as the engine's; what an op costs follows from the machine's rates
 * (offload/simulate/cost.h).  A pure function: no threads, no I/O, nothing measured.
 *
 * Lanes issue in program order.  On a device that is the host, one executor runs every op that is not I/O, the earliest ready
 * one first, and hands out I/O between two of them, as the engine does; else compute, upload, download and update each run on
 * their own, and the checksums of what was read or leaves for NVMe take their turn with the updates.  The disk is one server
 * of two queues, reads and writes, each in order of issue: alone, a queue moves at the machine's read or write rate; while both
 * have work each moves at half the mixed rate, never faster than alone.  Exchanges between ranks run one after the other in order
 * of issue, beside everything else, on a device that is the host, too: the thread that makes them mostly waits.  All ranks are
 * taken to arrive at an exchange together.  What waits for an op that a queue, another thread or the disk has ended begins a
 * hand-over later, or a transfer's latency; lanes go on meanwhile.  The next step begins when all ops of this one are issued. */
#ifndef OFFLOAD_SIMULATE_SIMULATE_H
#define OFFLOAD_SIMULATE_SIMULATE_H

#include "core/base/scratch.h"
#include "offload/machine/rates.h"
#include "offload/program/dispatch.h"
#include "offload/program/program.h"

struct st_simulation {
    double seconds;                  /* of one steady step */
    double busy[STRATA_LANE_COUNT];  /* seconds of that step in which an op of the lane was being worked on */
    double stall[STRATA_LANE_COUNT]; /* seconds in which compute stood still, by the lane that it waited for */
    enum strata_lane stalled_by;     /* lane with the largest stall; COUNT: none */
};

/** Simulate until steps repeat, one by one or in a period of a few, and report their mean.  Rates that are 0 cost nothing.  With
 *  latencies a step is never shorter than without: of the two simulations the longer one counts.
 *  E_NOMEM; E_INTERNAL: the program cannot proceed (a deadlock the verifier missed).
 *  Cost    O(steps * (ops + waits)), 2 steps as a rule, 24 at most; allocations of O(ops). */
strata_status st_simulate(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine);
/** The seconds of such a step alone, sooner, in memory that is kept for the next simulation.  Where they are more than `limit`,
 *  *seconds may be any number between the two.  E_NOMEM, E_INTERNAL: as above. */
strata_status st_simulate_seconds(double *seconds, const struct st_program *program, const struct st_machine *machine,
                                  double limit, struct st_scratch *scratch);

/* Is told what runs when, in pieces: an op that goes on while another one begins or ends is told again.  Times are seconds since
 * the step began; the pieces of a lane add up to its `busy`, those of the stalls to `stall`. */
struct st_simulation_watch {
    void *ctx;
    void (*began)(void *ctx); /* a step: what was told before is of earlier ones */
    void (*ran)(void *ctx, uint32_t lane, uint32_t op, double start, double seconds);
    void (*stalled)(void *ctx, const struct st_stall *stall, double start, double seconds);
};

/** The same, watched: *out is the last step that was simulated, which is the one whose pieces were told last. */
strata_status st_simulate_watched(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine,
                                  const struct st_simulation_watch *watch);

/** Simulate steady steps, one that saves and those after it: the seconds by which they are longer together.  The checksums of
 *  what the host has updated in its own memory cost nothing.  As st_simulate(). */
strata_status st_simulate_save(double *seconds, const struct st_program *program, const struct st_machine *machine);

/** The same of a step that makes the updates again which the step before it made early: a program with some is meant. */
strata_status st_simulate_redo(double *seconds, const struct st_program *program, const struct st_machine *machine);

/** The seconds of a steady step of a run whose steps are BODY and this: REDO, LATE, both.  Memory as of st_simulate_seconds(). */
strata_status st_simulate_beside(double *seconds, const struct st_program *program, const struct st_machine *machine,
                                 enum st_phase beside, struct st_scratch *scratch);

/** Are all rates known that this program needs?  mixed, block_flops, checksum and those between ranks may
 *  be missing. */
bool st_simulate_possible(const struct st_program *program, const struct st_machine *machine);

#endif
