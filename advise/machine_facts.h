/* advise/machine_facts.h - what this machine has and lacks, for people and for programs; once it is measured, its rates. */
#ifndef ADVISE_MACHINE_FACTS_H
#define ADVISE_MACHINE_FACTS_H

#include "core/json/json.h"
#include "core/system/topology.h"
#include "offload/comm/comm_measure.h"
#include "offload/config/config.h"
#include "offload/machine/machine.h"

struct st_machine_facts {
    const struct st_topology *topology;
    uint32_t workers;                  /* of a run on it */
    const struct st_config *dirs;      /* whose NVMe directories are looked at; NULL: none */
    const struct st_machine *measured; /* NULL: it is not */
    const struct st_links *links;      /* between ranks; NULL: they are not measured */
};

/** Some lines for each part.  GPUs are asked: no device may be open. */
void st_machine_facts_print(const struct st_machine_facts *of, FILE *file);
/** The same as members of an object that is open. */
void st_machine_facts_put(const struct st_machine_facts *of, struct st_json_writer *w);

/** The lines of rates, of any machine. */
void st_machine_rates_print(const struct st_rates *rates, FILE *file);

#endif
