/* offload/config/config_options.h - a configuration as the plain options of what a run stands on. */
#ifndef OFFLOAD_CONFIG_CONFIG_OPTIONS_H
#define OFFLOAD_CONFIG_CONFIG_OPTIONS_H

#include "offload/config/config.h"
#include "offload/engine/engine.h"
#include "offload/machine/machine.h"

/** What it asks of a plan. */
void st_config_policy(struct st_policy *policy, const struct st_config *config);

/** What it says about an engine; plan, model, device and what belongs to one run are the caller's to add.  Strings are borrowed
 * from the configuration. */
void st_config_engine_opts(struct st_engine_opts *opts, const struct st_config *config);

/** What it takes of this machine; topology and device are the caller's to add.  Strings are borrowed from the configuration. */
void st_config_machine_opts(struct st_machine_opts *opts, const struct st_config *config);

/** Before each step of an engine: its learning rate and betas, as the configuration schedules them. */
void st_config_set_rates(const struct st_config *config, struct st_engine *engine);

#endif
