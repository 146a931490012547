/* core/system/workers.h - a fixed pool of threads that runs one parallel loop at a time.
 *
 * The calling thread takes part as worker 0; threads 1..count-1 are bound by hwloc to the cores the
 * process may use (affinity and cgroup quota obeyed).  Items are handed out dynamically, so what an item
 * computes must depend only on its index, never on the worker.  No allocation after creation. */
#ifndef CORE_SYSTEM_WORKERS_H
#define CORE_SYSTEM_WORKERS_H

#include "strata/status.h"
#include <stdint.h>

struct st_workers;
struct st_topology;

typedef void st_work_fn(void *ctx, uint64_t index, uint32_t worker);

/** @param count  1..256 workers, the caller included; 0: one per usable core.
 *  @param topo   borrowed during the call; NULL: threads are not bound. */
strata_status st_workers_create(struct st_workers **out, uint32_t count, const struct st_topology *topo);
void st_workers_destroy(struct st_workers *w); /* NULL is fine */
uint32_t st_workers_count(const struct st_workers *w);

/** Run fn(ctx, i, worker) for every i in 0..items-1 and wait.  One caller at a time, which is asserted; fn never calls this. */
void st_workers_run(struct st_workers *w, st_work_fn *fn, void *ctx, uint64_t items);

/** Run such a loop on threads that exist only for it: one per usable core, no more than items.  Where the system gives no
 *  threads, the caller's does all.  Returns the status of the first item that failed, with its sentence; or E_NOMEM. */
typedef strata_status st_work_try_fn(void *ctx, uint64_t index);
strata_status st_workers_once(st_work_try_fn *fn, void *ctx, uint64_t items);

#endif
