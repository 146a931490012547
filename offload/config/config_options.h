/* offload/config/config_options.h - turns a configuration into the plain options of planner, engine and machine. */
#ifndef OFFLOAD_CONFIG_CONFIG_OPTIONS_H
#define OFFLOAD_CONFIG_CONFIG_OPTIONS_H

#include "offload/config/config.h"
#include "offload/engine/engine.h"
#include "offload/machine/machine.h"

/** Whether weights, state or activations may lie on NVMe. */
bool st_config_uses_nvme(const struct st_config *config);

/** The policy for the planner. */
void st_config_policy(struct st_policy *policy, const struct st_config *config);

/** The options of an engine.  The caller adds plan, model, device and everything else that belongs to one run.  Strings are
 *  borrowed from the configuration. */
void st_config_engine_opts(struct st_engine_opts *opts, const struct st_config *config);

/** What the run may use of this machine.  The caller adds topology and device.  Strings are borrowed from the configuration. */
void st_config_machine_opts(struct st_machine_opts *opts, const struct st_config *config);

/** Set the learning rate and betas that the configuration schedules; call it before each step of an engine. */
void st_config_set_rates(const struct st_config *config, struct st_engine *engine);

#endif
