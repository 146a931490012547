/* plan_traffic.c - computes what a placement moves in a steady step, without writing its program.
 *
 * The counts of each page follow the program's rules (emit_update.c, emit_layer.c): a pass brings a page in once for forward
 * and once for backward, and an update that runs beside such a use shares the transfer.  A test over random plans checks that the
 * sums equal those of the program. */
#include "offload/plan/plan_predicates.h"

/* Transfers of one page in a window: of all its weights, of those that an update changes, of its rounded gradient and of its fp32
 * sum. */
struct counts {
    uint32_t reads, writes; /* reads of all weights from NVMe and writes of updated ones to it, if the weights' home is there */
    uint32_t uploads, updated_uploads, updated_downloads;
    uint32_t grads, sum_uploads, sum_downloads;
};

struct page_facts {
    uint32_t passes, forward, backward; /* uses of the page by device ops in one pass */
    bool trained, table, gathered, resident, sliced, device_update, gated, early;
    enum st_window update, leave; /* when it is updated; when what that leaves is written: early, if the update is */
};

enum st_window st_plan_update_window(const struct st_plan *plan)
{
    if (plan->policy.forward_only || plan->policy.update == ST_UPDATE_GATED)
        return ST_WINDOW_FORWARD;
    return plan->policy.update == ST_UPDATE_SERIAL ? ST_WINDOW_TAIL : ST_WINDOW_BACKWARD;
}

/* Ops of a backward with which a page comes to the device: each layer's that uses it, but a lookup's, which wants none.  Of a
 * layer of experts those that make its internals again want the first page, too. */
static uint32_t backward_uses(const struct st_plan *plan, uint32_t p)
{
    const struct st_workload *w = &plan->program.workload;
    const uint32_t block = st_block_first(w), low = plan->sums->lowest_layer;
    uint32_t uses = 0;

    if (w->pages[p].uses == 1) { /* as a rule */
        const bool again = st_page_leads(w, p) && w->pages[p].layer < st_block_end(w) - plan->decided.kept_blocks;

        return w->pages[p].layer >= block && w->pages[p].layer >= low ? 1 + again : 0;
    }
    for (uint32_t l = low > block ? low : block; l < w->layer_count; l++)
        uses += st_layer_has(w, l, p);
    return uses;
}

static struct page_facts facts_of(const struct st_plan *plan, uint32_t p)
{
    const struct st_workload *w = &plan->program.workload;
    const bool table = st_place_is_table(plan, p);
    struct page_facts f = {.trained = st_place_trained(plan, p), .table = table};

    f.passes = plan->decided.accumulation == ST_ACCUMULATE_HORIZONTAL ? w->grad_accum : 1;
    f.forward = st_page_adds(&w->pages[p]);
    f.backward = plan->policy.forward_only ? 0 : backward_uses(plan, p);
    f.gathered = table && !st_place_table_resident(plan);
    f.resident = st_place_resident(plan, p);
    f.sliced = !f.resident && st_place_home(plan, p) == ST_WHERE_DEVICE;
    f.device_update = f.trained && st_place_device_update(plan, p);
    f.gated = plan->policy.update == ST_UPDATE_GATED;
    f.early = st_place_early(plan, p);
    f.update = st_plan_update_window(plan);
    f.leave = f.early ? ST_WINDOW_BACKWARD : f.update;
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
static void count_resident(struct counts n[ST_WINDOW_COUNT], const struct page_facts *f)
{
    const bool host_update = f->trained && !f->device_update;
    struct counts *u = &n[f->update];

    u->reads = host_update ? 1 : 0;
    if (f->gathered && !(f->trained && f->gated))
        n[ST_WINDOW_FORWARD].reads++; /* by the lookup; otherwise it uses what the update has left */
    u->updated_uploads = host_update ? 1 : 0;
    u->updated_downloads = f->device_update && f->gathered ? 1 : 0;
    n[f->leave].writes = host_update || u->updated_downloads > 0 ? 1 : 0;
    n[ST_WINDOW_BACKWARD].reads += f->early;
}

/* The forward of all micro-batches but the first comes after a backward. */
static void count_streamed(struct counts n[ST_WINDOW_COUNT], const struct st_plan *plan, const struct page_facts *f)
{
    const uint32_t later = (f->passes - 1) * f->forward + f->passes * f->backward;
    const bool shared = shares(plan, f);
    struct counts *u = &n[f->update];

    n[ST_WINDOW_FORWARD].reads += f->forward + (f->table ? 1 : 0);
    n[ST_WINDOW_FORWARD].uploads += f->forward;
    n[ST_WINDOW_BACKWARD].reads += later;
    n[ST_WINDOW_BACKWARD].uploads += later;
    if (f->sliced)
        return; /* it is updated as it lies */
    u->reads += f->trained && !shared ? 1 : 0;
    u->uploads += f->device_update && (!shared || f->table) ? 1 : 0;
    u->updated_downloads = f->device_update ? 1 : 0;
    n[f->leave].writes = f->trained ? 1 : 0;
}

static void count_gradients(struct counts *n, const struct st_plan *plan, uint32_t p, const struct page_facts *f)
{
    const uint32_t visits = f->passes * f->forward; /* uses by the ops that add to the sum */

    if (!f->trained)
        return;
    if (!f->table && !f->device_update)
        n->grads++;
    if (st_place_sum(plan, p) != ST_WHERE_HOST || visits == 0)
        return;
    n->sum_uploads = visits - 1;
    n->sum_downloads = f->table ? visits : visits - 1;
}

static bool swaps_grad(const struct st_plan *plan, uint32_t p, const struct page_facts *f)
{
    return f->trained && !f->device_update && !st_place_keeps_grad(plan, p) && st_place_grads_wait(plan);
}

static uint64_t state_of(const struct st_plan *plan, uint32_t p)
{
    const uint32_t first = plan->program.pages[p].chunk_first;

    return plan->sums->state_bytes[first + plan->program.pages[p].chunk_count] - plan->sums->state_bytes[first];
}

/* Bytes that other ranks have of a part's pages. */
struct gathered {
    uint64_t all, updated;
};

/* Of the pages at [place, end): of all, or of those that are special as the part's first is. */
static struct gathered gathered_of(const struct st_plan *plan, const struct st_alike *part, uint32_t place, uint32_t end)
{
    const uint64_t *all = plan->sums->gathered, *updated = plan->sums->regathered;
    const bool special = st_place_special(plan, part->page);
    struct gathered sum = {all[end] - all[place], updated[end] - updated[place]};

    if (plan->program.ranks == 1 || part->count == end - place)
        return sum;
    sum = (struct gathered){0};
    for (uint32_t i = place; i < end; i++)
        if (st_place_special(plan, plan->sums->by_kind[i]) == special) {
            sum.all += all[i + 1] - all[i];
            sum.updated += updated[i + 1] - updated[i];
        }
    return sum;
}

/* A page that comes to the device is gathered after that; of one that is updated while it is whole there, what has changed. */
static void add_gathered(struct st_moved *moved, const struct st_plan *plan, const struct gathered *g, const struct page_facts *f,
                         const struct counts n[ST_WINDOW_COUNT])
{
    if (f->resident)
        moved->in[f->update].comm += (f->device_update ? 1 : n[f->update].updated_uploads) * g->updated;
    else if (f->device_update && !f->sliced && shares(plan, f) && !f->gated)
        moved->in[f->update].comm += g->updated;
    for (enum st_window w = 0; !f->resident && w < ST_WINDOW_COUNT; w++)
        moved->in[w].comm += n[w].uploads * g->all;
}

static void add_pages(struct st_moved *moved, const struct st_plan *plan, const struct st_alike *part, const struct gathered *g)
{
    const uint32_t p = part->page, times = part->count;
    const struct st_page *page = &plan->program.workload.pages[p], *shard = &plan->program.shards[p];
    const enum st_where home = st_place_home(plan, p);
    const uint64_t updated = st_page_updated_bytes(shard, home);
    const uint64_t sum = (st_place_sum_cut(plan, p) ? shard : page)->trained_elems * sizeof(float);
    const struct page_facts f = facts_of(plan, p);
    struct counts n[ST_WINDOW_COUNT] = {0};

    if (f.resident)
        count_resident(n, &f);
    else
        count_streamed(n, plan, &f);
    count_gradients(&n[ST_WINDOW_BACKWARD], plan, p, &f);
    for (enum st_window w = 0; w < ST_WINDOW_COUNT; w++) {
        struct st_traffic *t = &moved->in[w];

        if (home == ST_WHERE_NVME) {
            t->read += times * n[w].reads * st_extent_bytes(shard->bytes);
            t->write += times * n[w].writes * st_extent_bytes(updated);
        }
        t->upload +=
            times * ((f.sliced ? 0 : n[w].uploads) * shard->bytes + n[w].updated_uploads * updated + n[w].sum_uploads * sum);
        t->download += times * (n[w].updated_downloads * updated + n[w].grads * shard->trained_bytes + n[w].sum_downloads * sum);
    }
    if (swaps_grad(plan, p, &f)) {
        moved->in[ST_WINDOW_BACKWARD].write += times * st_extent_bytes(shard->trained_bytes);
        moved->in[f.update].read += f.early ? 0 : times * st_extent_bytes(shard->trained_bytes);
    }
    if (st_place_streamed(plan, p)) {
        moved->in[f.update].upload += times * state_of(plan, p);
        moved->in[f.update].download += times * state_of(plan, p);
    }
    add_gathered(moved, plan, g, &f, n);
}

/* Rows of the table that the host gathers, and gradients of rows that it scatters. */
static void add_rows(struct st_moved *moved, const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    const uint64_t bytes = w->layers[0].boundary_bytes * w->grad_accum;
    const uint64_t first = st_place_horizontal(plan) ? w->layers[0].boundary_bytes : bytes;

    if (w->gathered_count == 0)
        return;
    if (st_place_gather_on_host(plan)) {
        moved->in[ST_WINDOW_FORWARD].upload += first;
        moved->in[ST_WINDOW_BACKWARD].upload += bytes - first;
    }
    if (st_place_sum(plan, 0) == ST_WHERE_HOST) /* with several ranks all of theirs come by way of the device */
        moved->in[ST_WINDOW_BACKWARD].download += plan->program.ranks * bytes;
}

static void add_state(struct st_moved *moved, const struct st_plan *plan)
{
    const uint32_t on_device = st_place_device_chunks(plan);
    const uint32_t from = plan->decided.cached_chunks > on_device ? plan->decided.cached_chunks : on_device;
    const uint64_t early = st_plan_early_bytes(plan);
    struct st_traffic *t = &moved->in[st_plan_update_window(plan)];
    uint64_t bytes;

    if (plan->policy.forward_only || plan->policy.optimizer_tier != STRATA_TIER_NVME)
        return;
    bytes = plan->sums->state_bytes[plan->program.chunk_count] - st_plan_cached(plan, from).bytes - early;
    t->read += bytes;
    t->write += bytes;
    moved->in[ST_WINDOW_BACKWARD].read += early;
    moved->in[ST_WINDOW_BACKWARD].write += early;
}

void st_plan_moved(struct st_moved *moved, const struct st_plan *plan)
{
    *moved = (struct st_moved){0};
    for (uint32_t place = 0, end; place < plan->program.workload.page_count; place = end) {
        struct st_alike parts[ST_ALIKE_MAX];
        const uint32_t count = st_plan_alike(parts, plan, place, &end);

        for (uint32_t i = 0; i < count; i++) {
            const struct gathered g = gathered_of(plan, &parts[i], place, end);

            add_pages(moved, plan, &parts[i], &g);
        }
    }
    moved->in[ST_WINDOW_BACKWARD].comm += plan->sums->exchanged;
    add_rows(moved, plan);
    add_state(moved, plan);
}

struct st_traffic st_moved_sum(const struct st_moved *moved)
{
    struct st_traffic sum = {0};

    for (enum st_window w = 0; w < ST_WINDOW_COUNT; w++) {
        sum.upload += moved->in[w].upload;
        sum.download += moved->in[w].download;
        sum.read += moved->in[w].read;
        sum.write += moved->in[w].write;
        sum.comm += moved->in[w].comm;
    }
    return sum;
}
