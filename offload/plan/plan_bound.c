/* plan_bound.c - about the least seconds of a steady step with a placement, in closed form.
 *
 * A step falls into windows: forward, backward, and what follows its end when updates are serial.  A resource must do a window's
 * work within it, but for what slots carry over its end, so each window takes at least as long as its busiest resource, and the
 * step as long as all windows, or as its busiest resource altogether.  Work that takes little (rounding, zeroing, small pages) is
 * left out, which makes the bound too low; what slots carry is an estimate, which may make it too high (ST_BOUND_SLACK). */
#include "offload/plan/plan_choose_internal.h"

#include "offload/optim/optimizer.h"
#include "offload/simulate/cost.h"

/* Seconds that each resource works in one window. */
struct load {
    double compute, upload, download, update, read, write, comm;
};

/* What a separate device's update of a parameter passes over in its memory: state and weight both ways, and the gradient. */
static double update_bytes(const struct st_plan *plan)
{
    const strata_dtype format = plan->sums->trained_f32 ? STRATA_F32 : plan->program.workload.dtype;
    const double weight = (double)strata_dtype_bytes(format);

    return 2 * ((double)st_state_bytes(&plan->program, st_master_of(format), ST_TILE_ELEMS) / ST_TILE_ELEMS + weight) + weight;
}

static double trained_params(const struct st_page *shard)
{
    double params = 0;

    for (uint32_t i = 0; i < shard->group_count; i++)
        params += shard->groups[i].kind == ST_GROUP_FROZEN ? 0 : (double)shard->groups[i].elems;
    return params;
}

/* Elements that the host's cores update, or, on a device that is the host, all; and bytes that a separate device's updates pass
 * over in its memory. */
static void add_updates(struct load loads[ST_WINDOW_COUNT], const struct st_plan *plan, const struct st_machine *m)
{
    struct load *load = &loads[st_plan_update_window(plan)];
    double host = 0, device = 0, early = 0;

    for (uint32_t place = 0, end; place < plan->program.workload.page_count; place = end) {
        struct st_alike parts[ST_ALIKE_MAX];
        const uint32_t kinds = st_plan_alike(parts, plan, place, &end);

        for (uint32_t i = 0; i < kinds; i++) {
            const uint32_t p = parts[i].page;
            const bool here = plan->capacity.device_is_host || !st_place_device_update(plan, p);

            if (st_place_trained(plan, p))
                *(st_place_early(plan, p) ? &early
                  : here                  ? &host
                                          : &device) += parts[i].count * trained_params(&plan->program.shards[p]);
        }
    }
    loads[ST_WINDOW_BACKWARD].update += st_seconds_at(early, m->rates.update);
    load->update += st_seconds_at(host, m->rates.update);
    load->compute += st_seconds_at(device * update_bytes(plan), m->rates.memory);
}

/* The same of layers of experts: their parts. */
static void add_experts(double *seconds, const struct st_layer *layer, const struct st_machine *m, bool backward, uint32_t count,
                        uint32_t kept)
{
    const double slices = st_layer_slices(layer);

    *seconds += count * st_call_seconds(layer, &m->rates, backward ? ST_CALL_ROUTE_BACKWARD : ST_CALL_ROUTE_FORWARD, false);
    *seconds +=
        count * slices * st_call_seconds(layer, &m->rates, backward ? ST_CALL_EXPERTS_BACKWARD : ST_CALL_EXPERTS_FORWARD, false);
    if (backward)
        *seconds += (count - kept) * st_call_seconds(layer, &m->rates, ST_CALL_ROUTE_AGAIN, true);
}

/* Adds the seconds of the forward, or backward, of `count` layers of one kind that all take the same time, or of slices: `kept`
 * of them do not make again what forward left. */
static void add_layers(double *seconds, const struct st_layer *layer, const struct st_machine *m, bool backward, uint32_t count,
                       uint32_t kept)
{
    const bool loss = layer->kind == ST_LAYER_LOSS;
    const enum st_call_kind forward = loss ? ST_CALL_HEAD_STATS : ST_CALL_BLOCK_FORWARD;
    const enum st_call_kind kind = !backward ? forward : loss ? ST_CALL_HEAD_GRAD : ST_CALL_BLOCK_BACKWARD;

    if (layer->kind == ST_LAYER_EXPERTS)
        add_experts(seconds, layer, m, backward, count, kept);
    if (layer->kind == ST_LAYER_LOOKUP || layer->kind == ST_LAYER_EXPERTS)
        return;
    *seconds += kept * st_call_seconds(layer, &m->rates, kind, false);
    *seconds += (count - kept) * st_call_seconds(layer, &m->rates, kind, backward);
}

/* Layers below the lowest that is trained have no backward; the top blocks' activations may be kept. */
static void add_compute(struct load loads[ST_WINDOW_COUNT], const struct st_plan *plan, const struct st_machine *m)
{
    const struct st_workload *w = &plan->program.workload;
    const uint32_t low = plan->sums->lowest_layer,
                   kept_from = /* a caller's cost is all of it */
                   st_program_called(&plan->program) ? 0 : st_block_end(w) - plan->decided.kept_blocks;
    const double micros = w->grad_accum, first = st_place_horizontal(plan) ? 1 : micros;
    double forward = 0, backward = 0;

    for (uint32_t l = 0, end; l < w->layer_count; l = end) {
        const struct st_layer *layer = &w->layers[l];
        const bool loss = layer->kind == ST_LAYER_LOSS;
        uint32_t from, kept;

        end = plan->sums->layer_end[l];
        from = low < l ? l : low < end ? low : end;
        kept = loss ? plan->decided.kept_slices : end - (kept_from < from ? from : kept_from < end ? kept_from : end);
        add_layers(&forward, layer, m, false, loss ? st_slice_count(w) : end - l, 0);
        add_layers(&backward, layer, m, true, loss ? st_slice_count(w) : end - from, kept);
    }
    loads[ST_WINDOW_FORWARD].compute += first * forward;
    if (!plan->policy.forward_only)
        loads[ST_WINDOW_BACKWARD].compute += (micros - first) * forward + micros * backward;
}

/* Layer boundaries that leave the device after forward and come back for backward, but for those that slots hold. */
static void add_activations(struct st_moved *moved, const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    const uint64_t all = plan->sums->boundaries_plain * w->grad_accum;
    const uint64_t held = (plan->decided.slots.acts + w->grad_accum) * plan->sums->boundary_most;
    const uint64_t bytes = all > held ? all - held : 0;
    const enum st_window forward = st_place_horizontal(plan) ? ST_WINDOW_BACKWARD : ST_WINDOW_FORWARD;

    if (plan->policy.forward_only || plan->decided.activation_tier == STRATA_TIER_DEVICE)
        return;
    moved->in[forward].download += bytes;
    moved->in[ST_WINDOW_BACKWARD].upload += bytes;
    if (plan->decided.activation_tier != STRATA_TIER_NVME)
        return;
    moved->in[forward].write += bytes;
    moved->in[ST_WINDOW_BACKWARD].read += bytes;
}

static double longer(double a, double b)
{
    return a > b ? a : b;
}

static double less(uint64_t bytes, double held)
{
    return longer((double)bytes - held, 0);
}

/* On a device that is the host its cores compute, copy and update in turn, beside those of a caller.  A disk that reads and
 * writes does both at half the mixed rate, or one after the other. */
static double busiest(const struct load *l, const struct st_machine *m, bool called)
{
    const double others = m->capacity.device_is_host ? l->upload + l->download + l->update : 0;
    const double cores = called ? longer(l->compute, others) : l->compute + others;
    const double links = m->capacity.device_is_host ? 0 : longer(longer(l->upload, l->download), l->update);
    const double apart = l->read + l->write,
                 both = m->rates.mixed > 0 ? (l->read * m->rates.read + l->write * m->rates.write) / m->rates.mixed : apart;
    const double least = longer(l->read, l->write), disk = longer(least, both < apart ? both : apart);

    return longer(longer(cores, links), longer(disk, l->comm));
}

static void add(struct load *sum, const struct load *l)
{
    sum->compute += l->compute;
    sum->upload += l->upload;
    sum->download += l->download;
    sum->update += l->update;
    sum->read += l->read;
    sum->write += l->write;
    sum->comm += l->comm;
}

/* Bytes that slots carry over a window's end, each way. */
struct carried {
    double link, disk;
};
static struct carried carried_of(const struct st_plan *plan)
{
    const struct st_slots *slots = &plan->decided.slots;
    const double through = st_place_keeps_grad(plan, plan->program.workload.page_count - 1) ? 1 : 2; /* weights; gradients */
    double page = 0, sum = 0, chunk = (double)plan->sums->state_largest[0];

    for (uint32_t place = 0; place < plan->program.workload.page_count; place = plan->sums->kind_end[place]) {
        const struct st_page *of_kind = &plan->program.workload.pages[plan->sums->by_kind[place]];

        page = longer(page, (double)of_kind->bytes);
        sum = longer(sum, (double)of_kind->trained_elems * sizeof(float));
    }
    return (struct carried){.link = (slots->weights + 1) * page + (slots->grads + 1) * sum + slots->streamed_states * chunk,
                            .disk = slots->states * chunk + slots->host_weights * through * page};
}

double st_plan_bound(const struct st_plan *plan, const struct st_machine *m, double *work)
{
    const struct carried carried = carried_of(plan);
    struct load loads[ST_WINDOW_COUNT] = {0}, sum = {0};
    struct st_moved moved;
    double windows = 0, all;

    st_plan_moved(&moved, plan);
    add_activations(&moved, plan);
    add_compute(loads, plan, m);
    if (!plan->policy.forward_only)
        add_updates(loads, plan, m);
    for (enum st_window w = 0; w < ST_WINDOW_COUNT; w++) {
        struct load whole = loads[w];

        whole.upload = st_seconds_at((double)moved.in[w].upload, m->rates.upload);
        whole.download = st_seconds_at((double)moved.in[w].download, m->rates.download);
        whole.read = st_seconds_at((double)moved.in[w].read, m->rates.read);
        whole.write = st_seconds_at((double)moved.in[w].write, m->rates.write);
        whole.comm = st_comm_seconds(&m->rates, plan->program.ranks, (double)moved.in[w].comm);
        add(&sum, &whole);
        loads[w].upload = st_seconds_at(less(moved.in[w].upload, carried.link), m->rates.upload);
        loads[w].download = st_seconds_at(less(moved.in[w].download, carried.link), m->rates.download);
        loads[w].read = st_seconds_at(less(moved.in[w].read, carried.disk), m->rates.read);
        loads[w].write = st_seconds_at(less(moved.in[w].write, carried.disk), m->rates.write);
        windows += busiest(&loads[w], m, st_program_called(&plan->program));
    }
    all = busiest(&sum, m, st_program_called(&plan->program));
    *work = sum.compute + sum.upload + sum.download + sum.update + sum.read + sum.write + sum.comm;
    return longer(all, windows);
}
