/* strata/plan.h - what a run will need and where everything will lie, before anything is taken.
 *
 * A plan holds bytes on each tier, bytes that each link moves in a step, and, once rates are known, the shortest step that is
 * possible.  What it says is what an engine made from it takes, to the byte; docs/planning.md has the rest. */
#ifndef STRATA_PLAN_H
#define STRATA_PLAN_H

#include "strata/model.h"
#include "strata/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct strata_plan; /**< lives as long as its engines do, even if it is destroyed before them */

/**
 * Plan a model's run on this machine, or on that of its machine file (STRATA_USE_PLAN).
 *
 * @param plan   out, returned: destroyed by strata_plan_destroy().  Set with STRATA_E_NOFIT as well: such a plan says what is
 *               lacking, and makes no engine
 * @param model  shared: may be closed from here on
 *
 * @return STRATA_E_NOFIT  a tier lacks room; the sentence names it, both figures and what would help
 *         STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_NOSYS  there is no such device, with the reason
 *         STRATA_E_INPUT  a directory for swap files that cannot be used
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Cost    milliseconds for small models, seconds for huge ones.  Nothing is written or reserved.
 * Thread  any.
 */
STRATA_API strata_status strata_plan_make(struct strata_plan **plan, struct strata_model *model);

/**
 * Learn how fast the machine is: from the model's machine file, or by measuring for about two seconds.  Bounds follow; on a GPU
 * the plan becomes the fastest of those that fit, all of which give the same bits.  A plan works without, too.
 *
 * @return STRATA_E_INVAL      plan is NULL, does not fit, or has an engine
 *         STRATA_E_CANCELLED  the model's progress function asked for it
 *         STRATA_E_NOSYS      the device cannot be opened
 *         STRATA_E_NOMEM
 *         The plan is a valid one in any case.
 */
STRATA_API strata_status strata_plan_measure(struct strata_plan *plan);

/** The plan in figures.  Arrays are by enum strata_tier. */
struct strata_plan_info {
    size_t info_size; /**< sizeof(struct strata_plan_info), set by the caller */
    bool fits;
    uint64_t capacity_bytes[STRATA_TIER_COUNT]; /**< that may be used */
    uint64_t needed_bytes[STRATA_TIER_COUNT];   /**< that are taken; of a plan that does not fit: at least */
    uint64_t memory_bytes;                      /**< of main memory that the process holds at most, everything counted */
    uint64_t upload_bytes, download_bytes;      /**< of a step, host to device and back */
    uint64_t read_bytes, write_bytes;           /**< of a step, from and to NVMe */
    double hardware_bound_seconds;              /**< no schedule has shorter steps; 0: rates are not known */
    double schedule_bound_seconds;              /**< nor has this one; 0: rates are not known */
};
#define STRATA_PLAN_INFO_INIT STRATA_INIT(strata_plan_info, info_size)

/** Fill `info` as far as its info_size reaches.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or info_size is none of any version */
STRATA_API strata_status strata_plan_get_info(const struct strata_plan *plan, struct strata_plan_info *info);

/**
 * The plan for people: the lines that `strata train` begins with.
 *
 * @param text  out, borrowed until the plan is measured or destroyed
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_plan_text(struct strata_plan *plan, const char **text);

/** The plan for programs: one JSON object, its keys those of `strata plan --json` (docs/json.md).  As strata_plan_text(). */
STRATA_API strata_status strata_plan_json(struct strata_plan *plan, const char **json);

/** Destroy; NULL is fine. */
STRATA_API void strata_plan_destroy(struct strata_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
