/* offload/machine_measure.h - the parts of st_machine_measure(); not for users of offload/machine.h. */
#ifndef OFFLOAD_MACHINE_MEASURE_H
#define OFFLOAD_MACHINE_MEASURE_H

#include "offload/machine.h"

/** Rates of the config's directories: of each alone where there are several, and of all.  E_NOSPC, I/O errors. */
strata_status st_machine_measure_disk(struct st_machine *m, const struct st_config *config);

#endif
