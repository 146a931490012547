/* strata/machine.h - what there is to run on: capacities, rates, drives, ranks and nodes.
 *
 *     struct strata_machine_opts opts = STRATA_MACHINE_OPTS_INIT;
 *     struct strata_machine *machine;
 *
 *     opts.gpu = "4090";
 *     opts.ram = "128GB:2xDDR5-5600";
 *     st = strata_machine_open(&machine, &opts);
 *
 * A machine is this one, the one that a file describes, or one that is named by its parts.  How much of it a run may take, its
 * configuration says (strata.device_memory, strata.host_memory, strata.threads). */
#ifndef STRATA_MACHINE_H
#define STRATA_MACHINE_H

#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_comm;
struct strata_config;
struct strata_model;
struct strata_machine; /**< lives as long as its plans and engines do, even if it is closed before them */

/** Which machine.  Begin with STRATA_MACHINE_OPTS_INIT; texts are copied. */
struct strata_machine_opts {
    size_t opts_size;   /**< sizeof(struct strata_machine_opts) */
    const char *device; /**< "cpu", "cuda" or "cuda:N": where forward and backward run; NULL: "cpu".  With `file` or `gpu` no GPU
                             need be here, nor a build that knows them, until a model is trained on it */
    /** Machine file (`strata info --measure --out FILE`): its rates are used instead of measuring; for a model that is only
     *  planned (STRATA_USE_PLAN) its capacities, too.  NULL: none. */
    const char *file;
    /** In place of `file`, for plans: a card (its name or an alias, such as "4090"), memory ("128GB" or "128GB:2xDDR5-5600";
     *  NULL: assumed) and drives ("7GB/s:2TB", "gen4:2TBx2", or one "none").  NULL: none. */
    const char *gpu, *ram;
    const char *const *drives; /**< [drive_count] */
    uint32_t drive_count;
    /** The ranks of the run, borrowed until the machine, its plans and engines are gone: cores and memory of this machine are
     *  shared among those that are here.  NULL: one rank. */
    struct strata_comm *comm;
    /** For plans: ranks of the run that is planned, 1024 at most, and machines that they are on, with equally many on each.
     *  Capacities and rates are those of one machine.  0: one rank; as many nodes as the machine file's ranks_per_node makes of
     *  them, without it one. */
    uint32_t ranks, nodes;
    /** A directory for this user's caches, made where it is missing: strata_plan_measure() keeps there what it measures and takes
     *  it again for an hour, if it is of the same machine, model, budgets and directories.  Several ranks measure each time.
     *  NULL: nothing is kept. */
    const char *cache_dir;
};
#define STRATA_MACHINE_OPTS_INIT STRATA_INIT(strata_machine_opts, opts_size)

/**
 * Open a machine.  Nothing is measured yet; of this one cores, caches and memory are looked at.
 *
 * @param machine  out, returned: closed by strata_machine_close()
 * @param opts     copied; NULL: this machine, on the CPU, for one rank
 *
 * @return STRATA_E_INVAL  an argument is out of range: no such device, card or drive; ranks that are no whole number of nodes
 *         STRATA_E_INPUT  a machine file is missing or wrong; the sentence names file and key
 *         STRATA_E_NOSYS  this build or machine lacks the device
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Thread  any.
 */
STRATA_API strata_status strata_machine_open(struct strata_machine **machine, const struct strata_machine_opts *opts);

/** Facts about a machine. */
struct strata_machine_info {
    size_t info_size;            /**< sizeof(struct strata_machine_info), set by the caller */
    bool named;                  /**< by its parts (`gpu`) */
    uint32_t rank, ranks;        /**< this process and all of the run, or of the planned one */
    uint32_t local_ranks, nodes; /**< ranks on this machine; machines */
};
#define STRATA_MACHINE_INFO_INIT STRATA_INIT(strata_machine_info, info_size)

/** Fill `info`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or info_size is another one */
STRATA_API strata_status strata_machine_get_info(const struct strata_machine *machine, struct strata_machine_info *info);

/**
 * Measure this machine's rates with a model, in about three seconds: matmuls, a block and the head, with the threads and kernels
 * of its configuration; updates, copies, and the directories that an override of strata.nvme names.  The machine's text, JSON and
 * file have them; a plan measures with its own model (strata_plan_measure()), or takes such a file.
 *
 * @return STRATA_E_INVAL  an argument is NULL; the machine is not this one; threads or kernels are not available
 *         STRATA_E_CANCELLED  the model's progress function, which is asked once at the beginning
 *         STRATA_E_INPUT  a directory is missing, or is none
 *         STRATA_E_NOSYS  the device cannot be opened
 *         STRATA_E_NOMEM, STRATA_E_IO
 */
STRATA_API strata_status strata_machine_measure(struct strata_machine *machine, struct strata_model *model);

/** Measure the links between the ranks of `comm`, from main memory to main memory.  All of them call this.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or there is one rank, or more than 16
 *          STRATA_E_NOSYS  the machine's device is a GPU, whose links are not measured
 *          errors of an exchange; STRATA_E_NOMEM */
STRATA_API strata_status strata_machine_measure_links(struct strata_machine *machine, struct strata_comm *comm);

/**
 * Print the machine for people.  Of this machine: what it has and lacks, and what was measured; of a machine file: its rates; of
 * named parts: each with the source of its figures.  Lines are as wide as `file` is, if that is a terminal.
 *
 * @param config  whose threads are told, and whose directories, if an override of strata.nvme names them; NULL: the default
 *
 * @return STRATA_E_INVAL  machine or file is NULL
 *
 * GPUs are asked, so that no engine on one may be open.
 */
STRATA_API strata_status strata_machine_print(const struct strata_machine *machine, const struct strata_config *config,
                                              FILE *file);

/**
 * The machine for programs: the line of JSON that `strata info --json` prints (docs/json.md); of a machine that is not this one
 * only the key `machine`.
 *
 * @param json  out, borrowed until it is asked for again or the machine is closed
 *
 * @return STRATA_E_NOMEM; otherwise as strata_machine_print()
 */
STRATA_API strata_status strata_machine_json(struct strata_machine *machine, const struct strata_config *config,
                                             const char **json);

/** Print what strata_machine_opts.gpu, ram and drives can name: a table, or a line of JSON.
 *
 *  @return STRATA_E_INVAL  file is NULL */
STRATA_API strata_status strata_machine_print_names(bool json, FILE *file);

/** Write a machine file: strata_machine_opts.file of other machines.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or this machine is not measured
 *          STRATA_E_INPUT  the name is taken (`overwrite`: by something else than a file), or its directory cannot be written to
 *          STRATA_E_NOSPC, STRATA_E_IO, STRATA_E_NOMEM */
STRATA_API strata_status strata_machine_write(const struct strata_machine *machine, const char *path, bool overwrite);

/** Close; plans and engines made from it stay valid.  NULL is fine. */
STRATA_API void strata_machine_close(struct strata_machine *machine);

/** Whether models can be run on a device of this name.
 *
 *  @return STRATA_E_INVAL  no such name
 *          STRATA_E_NOSYS  this build has no support for it */
STRATA_API strata_status strata_device_check(const char *device);

#ifdef __cplusplus
}
#endif
#endif
