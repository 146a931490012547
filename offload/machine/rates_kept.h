/* offload/machine/rates_kept.h - rates that this machine was measured to have less than an hour ago.
 *
 * A measurement takes seconds, and a short run less.  What one run has measured the next ones take, if all is the same that the
 * measurement depends on: a checksum of that names the file.  Rates choose among plans of the same bits, so that those of a
 * machine that has become slower meanwhile cost a wrong prediction and nothing else. */
#ifndef OFFLOAD_MACHINE_RATES_KEPT_H
#define OFFLOAD_MACHINE_RATES_KEPT_H

#include "offload/machine/machine.h"

#define ST_RATES_KEPT_SECONDS 3600

/* The file of one measurement. */
struct st_rates_kept {
    char path[ST_PATH_MAX];
    uint64_t key; /* of what the measurement depends on */
    unsigned what;
};

/** Name the file of what st_machine_measure() would measure with these arguments.
 *  @param dir  need not be there
 *  E_INVAL: the name is too long. */
strata_status st_rates_kept_name(struct st_rates_kept *kept, const char *dir, const struct st_machine *machine,
                                 const struct st_workload *workload, const struct st_machine_opts *opts, unsigned what);
/** Whether it is there: whole, of the last hour, a file of this user that no other one can write to.
 *  @param age  out: seconds */
bool st_rates_kept_read(const struct st_rates_kept *kept, struct st_rates *rates, uint64_t *age);
/** Write it, for this user alone, and remove those of its directory that are older than an hour.  Rates of which one could not be
 *  measured are not kept.
 *  @param written  out: there is a file
 *  E_INPUT, E_IO, E_NOSPC: as st_new_file_create() and st_new_file_commit(). */
strata_status st_rates_kept_write(const struct st_rates_kept *kept, const struct st_rates *rates, bool *written);

#endif
