/* strata/plan.h - what a run will need and where everything will be placed, before anything is allocated.
 *
 * A plan states the bytes on each tier, the bytes that each link moves in a step, and, once rates are known, the shortest
 * possible step.  An engine made from it takes exactly that, to the byte; see docs/planning.md. */
#ifndef STRATA_PLAN_H
#define STRATA_PLAN_H

#include "strata/machine.h"
#include "strata/model.h"
#include "strata/status.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_plan; /**< lives as long as its engines do, even if it is destroyed before them */

/**
 * Plan a model's run on a machine.
 *
 * @param plan   out, returned: destroyed by strata_plan_destroy().  Set with STRATA_E_NOFIT as well: such a plan says what is
 *               missing, but no engine can be made from it
 * @param model    shared: may be closed from here on
 * @param machine  shared, too; NULL: this one, its CPU, with the model's ranks
 *
 * @return STRATA_E_NOFIT  a tier lacks room; the sentence names it, what is needed, what there is, and what would help
 *         STRATA_E_INVAL  an argument is NULL; the machine has other ranks than the model or the configuration; or is one to
 *                         plan for, and the model's use is another
 *         STRATA_E_NOSYS  there is no such device, with the reason
 *         STRATA_E_INPUT  a directory for swap files is missing, or is none; a machine file lacks what the plan needs
 *         STRATA_E_CONFIG budgets are larger than the named machine; ranks differ in what they plan
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Cost    milliseconds for small models, seconds for huge ones.  Nothing is written or reserved.  Of a model that is only
 *         planned a warning says if this machine has less memory than a run would take.
 * Thread  any.
 */
STRATA_API strata_status strata_plan_make(struct strata_plan **plan, struct strata_model *model, struct strata_machine *machine);

/**
 * Get the machine's rates from the machine's file, or by measuring for about two seconds, and compute the bounds; a notice
 * says what was measured, or how long ago (strata_machine_opts.cache_dir).  On a GPU
 * the plan becomes the fastest of those that fit; all of them give the same bits.  A plan also works without this call.
 *
 * @return STRATA_E_INVAL      plan is NULL, does not fit, or has an engine
 *         STRATA_E_CANCELLED  the model's progress function requested it
 *         STRATA_E_NOSYS      the device cannot be opened
 *         STRATA_E_IO         the GPU was lost meanwhile
 *         STRATA_E_NOMEM
 *         The plan stays valid in any case.
 */
STRATA_API strata_status strata_plan_measure(struct strata_plan *plan);

/** Bytes that a step moves. */
struct strata_plan_bytes {
    uint64_t upload, download; /**< host to device and back */
    uint64_t read, write;      /**< from and to NVMe */
    uint64_t comm;             /**< that this rank receives of the others; 0: it is alone */
};

/** The plan in figures.  Arrays are by enum strata_tier. */
struct strata_plan_info {
    size_t info_size; /**< sizeof(struct strata_plan_info), set by the caller */
    bool fits;
    uint64_t capacity_bytes[STRATA_TIER_COUNT]; /**< that may be used */
    uint64_t needed_bytes[STRATA_TIER_COUNT];   /**< that the run takes; at least this much if the plan does not fit */
    uint64_t least_bytes[STRATA_TIER_COUNT];    /**< that the smallest placement of this schedule needs */
    uint64_t memory_bytes;                      /**< the most main memory that the process uses, everything counted */
    struct strata_plan_bytes step;              /**< of a step; EVAL, GENERATE: of a forward pass */
    struct strata_plan_bytes first[2];          /**< of the first two steps of a run, which have less to read */
    double token_flops;                         /**< of this rank, for each token of a step of all ranks */
    double device_flops;                        /**< that this rank's device does in a second; 0: unknown */
    double hardware_bound_seconds;              /**< no schedule has shorter steps; 0: rates are unknown */
    double schedule_bound_seconds;              /**< the shortest step of this schedule; 0: rates are unknown.  Of a model of
                                                     layers, once two steps are over, by the shortest times that these took */
    const char *bound_by;                       /**< the resource that bounds it: "compute", ...; static */
    uint32_t early_pages;                       /**< that are updated in backward, and again if the step is clipped or skipped */
};
#define STRATA_PLAN_INFO_INIT STRATA_INIT(strata_plan_info, info_size)

/** Fill `info`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or info_size is another one */
STRATA_API strata_status strata_plan_get_info(const struct strata_plan *plan, struct strata_plan_info *info);

/**
 * The plan as text for people: the lines that `strata train` prints first.
 *
 * @param text  out, borrowed until the plan is measured or destroyed, or has an engine
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_plan_text(struct strata_plan *plan, const char **text);

/** Parts of a report on a plan, or-ed together.  A plan that does not fit has only what it needs, its machine, and other numbers
 *  of ranks. */
enum strata_plan_part {
    STRATA_PLAN_BRIEF = 1,      /**< tiers, bytes of a step, decisions */
    STRATA_PLAN_FULL = 2,       /**< the same, with what lies where and the bytes of each phase; as JSON there is no difference */
    STRATA_PLAN_MACHINE = 4,    /**< its parts, where they were named */
    STRATA_PLAN_PREDICTED = 8,  /**< the shortest step, and the one that is simulated; as JSON a part of the above */
    STRATA_PLAN_WRITTEN = 16,   /**< bytes that wear out drives */
    STRATA_PLAN_SCHEDULES = 32, /**< other schedules, side by side */
    STRATA_PLAN_ONE_MORE = 64,  /**< what one more of each part would change */
    STRATA_PLAN_RANKS = 128,    /**< the same on 1, 2, 4, ... 1024 ranks */
    STRATA_PLAN_BOUNDS = 256,   /**< the shortest step */
    STRATA_PLAN_ALL = 255 - STRATA_PLAN_BRIEF - STRATA_PLAN_RANKS
};

/** What a report has.  Begin with STRATA_PLAN_REPORT_OPTS_INIT, or pass NULL. */
struct strata_plan_report_opts {
    size_t opts_size; /**< sizeof(struct strata_plan_report_opts) */
    unsigned parts;   /**< of enum strata_plan_part; 0: STRATA_PLAN_ALL */
    uint64_t steps;   /**< of the run, for the bytes that it writes to drives; 0: not known */
};
#define STRATA_PLAN_REPORT_OPTS_INIT STRATA_INIT(strata_plan_report_opts, opts_size)

/**
 * Print the plan for people: all of it is what `strata plan` prints.  Lines are as wide as `file` is, if that is a terminal.
 *
 * @param opts  NULL: the defaults
 *
 * @return STRATA_E_INVAL  an argument is NULL, or there is no such part
 *         STRATA_E_NOMEM
 *
 * Cost    schedules, one more of each, and ranks are plans of their own.
 */
STRATA_API strata_status strata_plan_print(struct strata_plan *plan, const struct strata_plan_report_opts *opts, FILE *file);

/**
 * The plan for programs: the line of JSON that `strata plan --json` prints (docs/json.md).
 *
 * @param json  out, borrowed until the plan is asked for it again, is measured or destroyed, or has an engine
 *
 * As strata_plan_print().
 */
STRATA_API strata_status strata_plan_json(struct strata_plan *plan, const struct strata_plan_report_opts *opts,
                                          const char **json);

/** Print the program, a line for each op of a step: what it touches and what it waits for.  Of a plan that does not fit, nothing.
 *
 *  @param json  an object for each op (docs/json.md), also of a plan that does not fit, as far as it was made
 *
 *  @return STRATA_E_INVAL  an argument is NULL */
STRATA_API strata_status strata_plan_print_ops(const struct strata_plan *plan, bool json, FILE *file);

/** Write one simulated step as a Chrome trace (docs/trace.md), which needs the rates of the machine.
 *
 *  @return STRATA_E_INVAL  an argument is NULL
 *          STRATA_E_INPUT  the plan does not fit, or a rate that it needs is not known
 *          STRATA_E_NOMEM */
STRATA_API strata_status strata_plan_write_trace(const struct strata_plan *plan, FILE *file);

/** "device", "host" or "nvme"; else "auto".  Static. */
STRATA_API const char *strata_tier_name(strata_tier tier);

/** Destroy; NULL is fine. */
STRATA_API void strata_plan_destroy(struct strata_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
