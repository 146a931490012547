/* plan_traffic.c - computes what a placement moves in a steady step, without writing its program.
 *
 * The counts of each page follow the program's rules (emit_update.c, emit_backward.c): a pass brings a page in once for forward
 * and once for backward, and an update that runs beside such a use shares the transfer.  A test over random plans checks that the
 * sums equal those of the program. */
#include "offload/plan/plan_internal.h"

/* Transfers of one page: of all its weights, of those that an update changes, of its rounded gradient and of its fp32 sum. */
struct counts {
    uint32_t reads, writes; /* reads of all weights from NVMe and writes of updated ones to it, if the weights' home is there */
    uint32_t uploads, updated_uploads, updated_downloads;
    uint32_t grads, sum_uploads, sum_downloads;
};

struct page_facts {
    uint32_t passes, forward, backward; /* uses of the page by device ops in one pass */
    bool trained, table, gathered, resident, device_update, gated;
};

static bool is_head(const struct st_workload *w, enum st_page_kind kind)
{
    return kind == ST_PAGE_HEAD || (w->tied && kind == ST_PAGE_TABLE);
}

static struct page_facts facts_of(const struct st_plan *plan, uint32_t p)
{
    const struct st_workload *w = &plan->program.workload;
    const enum st_page_kind kind = w->pages[p].kind;
    const bool table = kind == ST_PAGE_TABLE;
    struct page_facts f = {.trained = st_place_trained(plan, p), .table = table};

    f.passes = plan->decided.accumulation == ST_ACCUMULATE_HORIZONTAL ? w->grad_accum : 1;
    f.forward = table ? is_head(w, kind) : 1;
    f.backward =
        kind == ST_PAGE_BLOCK ? p - w->block_first >= plan->sums->lowest_block : kind == ST_PAGE_NORM || is_head(w, kind);
    if (plan->policy.forward_only)
        f.backward = 0;
    f.gathered = table && !st_place_table_resident(plan);
    f.resident = st_place_resident(plan, p);
    f.device_update = f.trained && st_place_device_update(plan, p);
    f.gated = plan->policy.update == ST_UPDATE_GATED;
    return f;
}

/* Whether the update can use the copy of the page that an adjacent use has just brought in. */
static bool shares(const struct st_plan *plan, const struct page_facts *f)
{
    if (f->gated)
        return true; /* shared with the forward, or with the lookup */
    return plan->policy.update == ST_UPDATE_IN_BACKWARD && f->backward > 0 && !f->table;
}

/* Counts the weights of a page that is always on the device. */
static void count_resident(struct counts *n, const struct page_facts *f)
{
    const bool host_update = f->trained && !f->device_update;

    n->reads = host_update ? 1 : 0;
    if (f->gathered && !(f->trained && f->gated))
        n->reads++; /* by the lookup; otherwise it uses what the update has left */
    n->updated_uploads = host_update ? 1 : 0;
    n->updated_downloads = f->device_update && f->gathered ? 1 : 0;
    n->writes = host_update || n->updated_downloads > 0 ? 1 : 0;
}

static void count_streamed(struct counts *n, const struct st_plan *plan, const struct page_facts *f)
{
    const uint32_t uses = f->passes * (f->forward + f->backward);
    const bool shared = shares(plan, f);

    n->reads = uses + (f->table ? 1 : 0) + (f->trained && !shared ? 1 : 0);
    n->uploads = uses;
    if (f->device_update)
        n->uploads += !shared || f->table ? 1 : 0;
    n->updated_downloads = f->device_update ? 1 : 0;
    n->writes = f->trained ? 1 : 0;
}

static void count_gradients(struct counts *n, const struct st_plan *plan, uint32_t p, const struct page_facts *f)
{
    const uint32_t visits =
        f->table ? (plan->program.workload.tied ? f->passes : 0) : f->passes; /* uses by the ops that add to the sum */

    if (!f->trained)
        return;
    if (!f->table && !f->device_update)
        n->grads++;
    if (st_place_sum(plan, p) != ST_WHERE_HOST || visits == 0)
        return;
    n->sum_uploads = visits - 1;
    n->sum_downloads = f->table ? visits : visits - 1;
}

static uint64_t state_of(const struct st_plan *plan, uint32_t p)
{
    const uint32_t first = plan->program.pages[p].chunk_first;

    return plan->sums->state_bytes[first + plan->program.pages[p].chunk_count] - plan->sums->state_bytes[first];
}

/* A page that comes to the device is gathered after that; of one that is updated while it is whole there, what has changed. */
static uint64_t gathered_bytes(const struct st_plan *plan, uint32_t p, uint32_t times, const struct page_facts *f,
                               const struct counts *n)
{
    const struct st_plan_sums *sums = plan->sums;
    const uint64_t updated = sums->regathered[p + times] - sums->regathered[p];

    if (f->resident)
        return (f->device_update ? 1 : n->updated_uploads) * updated;
    return n->uploads * (sums->gathered[p + times] - sums->gathered[p]) +
           (f->device_update && shares(plan, f) && !f->gated ? updated : 0);
}

static void add_page(struct st_moved *moved, const struct st_plan *plan, uint32_t p, uint32_t times)
{
    const struct st_page *page = &plan->program.workload.pages[p], *shard = &plan->program.shards[p];
    const enum st_where home = st_place_home(plan, p);
    const uint64_t updated = st_page_updated_bytes(shard, home);
    const uint64_t sum = (st_place_sum_cut(plan, p) ? shard : page)->trained_elems * sizeof(float);
    const struct page_facts f = facts_of(plan, p);
    struct counts n = {0};
    uint64_t up;

    if (f.resident)
        count_resident(&n, &f);
    else
        count_streamed(&n, plan, &f);
    count_gradients(&n, plan, p, &f);
    if (home == ST_WHERE_NVME) {
        moved->read += times * n.reads * st_extent_bytes(shard->bytes);
        moved->nvme += times * (n.reads * st_extent_bytes(shard->bytes) + n.writes * st_extent_bytes(updated));
    }
    if (st_place_streamed(plan, p)) {
        moved->upload += times * state_of(plan, p);
        moved->link += 2 * times * state_of(plan, p);
    }
    moved->comm += gathered_bytes(plan, p, times, &f, &n);
    moved->comm += plan->sums->exchanged[p + times] - plan->sums->exchanged[p];
    up = n.uploads * shard->bytes + n.updated_uploads * updated + n.sum_uploads * sum;
    moved->upload += times * up;
    moved->link += times * (up + n.updated_downloads * updated + n.grads * shard->trained_bytes + n.sum_downloads * sum);
}

/* Rows of the table that the host gathers, and gradients of rows that it scatters. */
static void add_rows(struct st_moved *moved, const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    const uint64_t bytes = w->activation_bytes * w->grad_accum;

    if (st_place_gather_on_host(plan)) {
        moved->upload += bytes;
        moved->link += bytes;
    }
    if (st_place_sum(plan, w->table_first) == ST_WHERE_HOST)
        moved->link += plan->program.ranks * bytes; /* with several ranks all of theirs come by way of the device */
}

static void add_state(struct st_moved *moved, const struct st_plan *plan)
{
    const uint32_t on_device = st_place_device_chunks(plan);
    const uint32_t from = plan->decided.cached_chunks > on_device ? plan->decided.cached_chunks : on_device;
    uint64_t bytes;

    if (plan->policy.forward_only || plan->policy.optimizer_tier != STRATA_TIER_NVME)
        return;
    bytes = plan->sums->state_bytes[plan->program.chunk_count] - plan->sums->state_bytes[from];
    moved->read += bytes;
    moved->nvme += 2 * bytes;
}

void st_plan_moved(struct st_moved *moved, const struct st_plan *plan)
{
    *moved = (struct st_moved){0};
    for (uint32_t p = 0, end; p < plan->program.workload.page_count; p = end) {
        end = st_plan_alike_end(plan, p);
        add_page(moved, plan, p, end - p);
    }
    add_rows(moved, plan);
    add_state(moved, plan);
}
