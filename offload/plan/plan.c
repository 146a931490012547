/* plan.c - makes a plan from workload, machine and policy: chunks, the smallest placement that the policy allows, and refusals.
 *
 * plan_choose.c decides what to do with the memory that is left. */
#include "offload/optim/optimizer.h"
#include "offload/plan/plan_predicates.h"
#include "offload/program/tables.h"
#include "offload/simulate/simulate.h"

#include "core/base/error.h"
#include "core/base/size.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Code, libraries, oneDNN's code and scratch, thread stacks. */
#define FIXED_BYTES_DEFAULT (96ull << 20)
#define CHUNK_ELEMS_DEFAULT (4ull << 20)
#define OPS_MAX             (1u << 20)

/* --- chunks --- */

/* The largest multiple of `unit` that is at most `elems`, but at least one unit. */
static uint64_t whole_units(uint64_t elems, uint64_t unit)
{
    return elems > unit ? elems - elems % unit : unit;
}

/* The chunk size; depends only on the workload and what the policy says. */
static uint64_t chunk_size(const struct st_workload *w, const struct st_policy *policy)
{
    uint64_t elems = CHUNK_ELEMS_DEFAULT;

    if (policy->chunk_elems != 0)
        return whole_units(policy->chunk_elems, ST_TILE_ELEMS);
    while (w->params / elems >= ST_CHUNKS_MOST)
        elems *= 2;
    return policy->chunk_most != 0 && elems > policy->chunk_most ? whole_units(policy->chunk_most, ST_TILE_ELEMS) : elems;
}

/* Elements of the page's chunks, but for the last of each group. */
static uint64_t page_chunk(const struct st_workload *w, uint32_t page, uint64_t elems)
{
    return whole_units(elems, st_shard_unit(w, page));
}

static uint32_t count_chunks(const struct st_program *program, uint64_t chunk_elems)
{
    uint64_t count = 0;

    for (uint32_t p = 0; p < program->workload.page_count; p++) {
        const uint64_t most = page_chunk(&program->workload, p, chunk_elems);

        for (uint32_t i = 0; i < program->shards[p].group_count; i++)
            count += (program->shards[p].groups[i].elems + most - 1) / most;
    }
    return (uint32_t)count;
}

/* Cuts the room of a shard's group; the last chunks of a rank whose slice is smaller have fewer elements, or none. */
static void cut_group(struct st_plan *plan, uint32_t p, uint32_t i, uint64_t position)
{
    struct st_program *program = &plan->program;
    const struct st_group *room = &program->shards[p].groups[i], *whole = &program->workload.pages[p].groups[i];
    const struct st_slice slice = st_program_slice(program, p, i);
    const uint64_t most = page_chunk(&program->workload, p, plan->policy.chunk_elems);

    for (uint64_t at = 0; at < room->elems; at += most) {
        struct st_chunk *chunk = &program->chunks[program->chunk_count++];
        const uint64_t left = room->elems - at, elems = left < most ? left : most;
        const uint64_t filled = slice.elems > at ? slice.elems - at : 0;

        *chunk = (struct st_chunk){.page = p,
                                   .group = room->kind,
                                   .format = room->format,
                                   .master = st_master_of(room->format),
                                   .first = room->offset + at,
                                   .elems = filled < elems ? filled : elems,
                                   .at = room->at + st_format_bytes(room->format, at),
                                   .page_first = whole->offset + slice.first + at,
                                   .page_at = whole->at + st_format_bytes(room->format, slice.first + at),
                                   .position = position + slice.first + at,
                                   .region = ST_NO_BUFFER};
        chunk->bytes = st_chunk_layout(chunk->master, program->moments, program->moment_format, elems, &chunk->moment1_offset,
                                       &chunk->moment2_offset);
        chunk->tile_first = program->tile_count;
        program->tile_count += (elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS;
    }
}

/* Norms of a page, see st_scalars_bytes(). */
static uint32_t count_norms(const struct st_program *program, uint32_t p)
{
    const struct st_page *page = &program->workload.pages[p];
    uint32_t norms = 0;

    if (program->ranks == 1)
        return 1;
    for (uint32_t i = 0; i < page->group_count; i++)
        for (uint32_t r = 0; page->groups[i].kind != ST_GROUP_FROZEN && r < program->ranks; r++)
            norms += st_slice_runs(st_slice_of(&program->workload, p, i, program->ranks, r));
    return norms;
}

static strata_status make_shards(struct st_plan *plan)
{
    struct st_program *program = &plan->program;

    program->ranks = plan->policy.ranks;
    program->stage = plan->policy.stage;
    program->shards = calloc(program->workload.page_count, sizeof(*program->shards));
    program->norm_first = calloc((size_t)program->workload.page_count + 1, sizeof(*program->norm_first));
    if (program->shards == NULL || program->norm_first == NULL)
        return st_nomem(0);
    for (uint32_t p = 0; p < program->workload.page_count; p++) {
        st_shard_make(&program->shards[p], &program->workload, p, st_program_cuts(program));
        program->norm_first[p + 1] = program->norm_first[p] + count_norms(program, p);
    }
    return STRATA_OK;
}

static strata_status cut_chunks(struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    uint64_t position = 0;
    uint32_t count;

    plan->policy.chunk_elems = chunk_size(w, &plan->policy);
    count = count_chunks(&plan->program, plan->policy.chunk_elems);

    plan->program.pages = calloc(w->page_count, sizeof(*plan->program.pages));
    plan->program.chunks = calloc((size_t)count + 1, sizeof(*plan->program.chunks));
    if (plan->program.pages == NULL || plan->program.chunks == NULL)
        return st_nomem(0);
    for (uint32_t p = 0; p < w->page_count; p++) {
        plan->program.pages[p].chunk_first = plan->program.chunk_count;
        for (uint32_t i = 0; i < w->pages[p].group_count; i++) {
            cut_group(plan, p, i, position);
            position += (w->pages[p].groups[i].elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK * ST_NORM_BLOCK;
        }
        plan->program.pages[p].chunk_count = plan->program.chunk_count - plan->program.pages[p].chunk_first;
    }
    return STRATA_OK;
}

/* --- decisions --- */

void st_plan_size(const struct st_plan *plan, uint64_t needed[STRATA_TIER_COUNT])
{
    struct st_layout lay;

    (void)st_layout_make(&lay, (struct st_plan *)plan, false); /* sizing does not change the plan */
    memcpy(needed, lay.needed, sizeof(lay.needed));
}

static bool fits(const struct st_plan *plan)
{
    uint64_t needed[STRATA_TIER_COUNT];

    st_plan_size(plan, needed);
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        if (needed[t] > plan->capacity.bytes[t])
            return false;
    return true;
}

/* Whether weights of the page are above their configured tier. */
static bool page_promoted(const struct st_plan *plan, uint32_t p)
{
    if (plan->policy.param_tier == STRATA_TIER_DEVICE)
        return false;
    if (p < st_workload_stay(&plan->program.workload)) /* wherever it lives, it is on the device, too */
        return plan->policy.param_tier == STRATA_TIER_NVME && st_place_home(plan, p) == ST_WHERE_HOST;
    return st_place_resident(plan, p) || (plan->policy.param_tier == STRATA_TIER_NVME && st_place_home(plan, p) != ST_WHERE_NVME);
}

uint64_t st_plan_promoted(const struct st_plan *plan)
{
    uint32_t chunks = st_place_device_chunks(plan);
    uint64_t bytes = 0;

    for (uint32_t place = 0, end; place < plan->program.workload.page_count; place = end) {
        struct st_alike parts[ST_ALIKE_MAX];
        const uint32_t kinds = st_plan_alike(parts, plan, place, &end);

        for (uint32_t i = 0; i < kinds; i++) {
            const uint32_t p = parts[i].page;
            const struct st_page *of = st_place_resident(plan, p) ? plan->program.workload.pages : plan->program.shards;

            bytes += page_promoted(plan, p) ? parts[i].count * of[p].bytes : 0;
        }
    }
    if (plan->policy.optimizer_tier == STRATA_TIER_DEVICE)
        return bytes;
    if (plan->policy.optimizer_tier == STRATA_TIER_NVME && plan->decided.cached_chunks > chunks)
        chunks = plan->decided.cached_chunks;
    return bytes + st_plan_cached(plan, chunks).bytes;
}

bool st_plan_allowed(const struct st_plan *plan)
{
    return fits(plan) && (plan->policy.cache == ST_AUTO_BYTES || st_plan_promoted(plan) <= plan->policy.cache);
}

static void decide_smallest(struct st_plan *plan, enum st_accumulation order)
{
    const struct st_workload *w = &plan->program.workload;
    const struct st_policy *policy = &plan->policy;
    const bool state_stays = policy->optimizer_tier == STRATA_TIER_DEVICE && !policy->forward_only;

    plan->decided = (struct st_decisions){
        .accumulation = order,
        .activation_tier = policy->forward_only /* two boundaries used in turn */ ? STRATA_TIER_DEVICE
                           : policy->activation_tier == STRATA_TIER_COUNT         ? STRATA_TIER_HOST
                                                                                  : policy->activation_tier,
        .kept_blocks = policy->activations == ST_ACT_KEPT ? st_block_count(w) : 0,
        .device_state_pages = state_stays ? w->page_count : 0,
        .host_grad_pages = w->gathered_count, /* rounded on the host, and used before all others */
        .slots = {.weights = 1, .host_weights = 1, .states = 1, .streamed_states = 1, .acts = 2, .host_acts = 1, .grads = 1},
    };
    plan->decided.resident_pages = st_place_least_resident(plan);
}

static bool allowed_with(struct st_plan *plan, uint32_t *decision, uint32_t value)
{
    *decision = value;
    return st_plan_allowed(plan);
}

/* Often nothing more fits, or everything. */
void st_plan_raise(struct st_plan *plan, uint32_t *decision, uint32_t high)
{
    uint32_t low = *decision;

    if (low < high && allowed_with(plan, decision, low + 1)) {
        low++;
        if (low < high && allowed_with(plan, decision, high))
            low = high;
    } else {
        high = low;
    }
    while (low + 1 < high) {
        const uint32_t middle = low + (high - low) / 2;

        *(allowed_with(plan, decision, middle) ? &low : &high) = middle;
    }
    *decision = low;
}

/* --- what does not fit --- */

static const char *const tier_words[STRATA_TIER_COUNT] = {"device", "host", "nvme"};

static strata_status does_not_fit(const struct st_plan *plan)
{
    char needed[24], have[24];

    for (int t = 0; t < STRATA_TIER_COUNT; t++) {
        if (plan->program.needed[t] <= plan->capacity.bytes[t])
            continue;
        return st_error(STRATA_E_NOFIT, "does not fit: %s needs %s at least, %s allowed", tier_words[t],
                        st_size_text(needed, plan->program.needed[t]), st_size_text(have, plan->capacity.bytes[t]));
    }
    return st_error(STRATA_E_INTERNAL, "plan: no tier lacks room, yet nothing fits");
}

/* --- make --- */

/* Memory of the process: the host's arena, the device's where that is RAM, the fixed part, and tables that grow with the plan. */
static void size_process(struct st_plan *plan)
{
    struct st_tables tables;

    plan->fixed_bytes = plan->policy.fixed_bytes +
                        st_tables_size(&tables, &plan->program, plan->capacity.workers, !plan->capacity.device_is_host);
    plan->rss_bytes_max = plan->program.needed[STRATA_TIER_HOST] + plan->fixed_bytes;
    if (plan->capacity.device_is_host)
        plan->rss_bytes_max += plan->program.needed[STRATA_TIER_DEVICE];
}

/* Copies into the program what its readers need to know about the decisions. */
static void tell_program(struct st_plan *plan)
{
    plan->program.forward_only = plan->policy.forward_only;
    plan->program.update = plan->policy.update;
    plan->program.sets = plan->policy.sets;
    plan->program.part_bytes = plan->policy.part_bytes;
    plan->program.leaves = plan->policy.leaves;
    plan->program.acts = (enum st_where)plan->decided.activation_tier;
    plan->program.swaps_grads = st_place_grads_wait(plan) && !st_place_keeps_grad(plan, plan->program.workload.page_count - 1);
    plan->program.kept_blocks = plan->decided.kept_blocks;
}

/* Pools of the decided layout that nothing needs have fewer slots. */
strata_status st_plan_build(struct st_plan *plan)
{
    struct st_layout lay;
    strata_status st;

    tell_program(plan);
    st = st_layout_make(&lay, plan, true);
    if (st == STRATA_OK) {
        memcpy(plan->program.needed, lay.needed, sizeof(lay.needed));
        memcpy(plan->program.space_bytes, lay.space_bytes, sizeof(lay.space_bytes));
        plan->decided.slots = plan->program.slots = st_layout_slots(&lay, plan->sums);
        plan->program.at = lay.at;
        st = st_emit_program(plan, &lay);
    }
    st_layout_fini(&lay);
    if (st == STRATA_OK)
        size_process(plan);
    return st;
}

/* If host memory is too small for what the configuration puts there, the device may take some: the state of as few pages as will
 * do. */
static bool lift_state(struct st_plan *plan)
{
    const struct st_policy *policy = &plan->policy;
    const struct st_workload *w = &plan->program.workload;
    const uint32_t resident = plan->decided.resident_pages;

    if (policy->forward_only || policy->optimizer_tier == STRATA_TIER_DEVICE)
        return false;
    for (uint32_t pages = w->gathered_count; pages <= w->page_count; pages++) {
        plan->decided.device_state_pages = pages;
        if (!st_place_slices(plan))
            plan->decided.resident_pages = pages > resident ? pages : resident;
        if (st_plan_allowed(plan))
            return true;
    }
    plan->decided.device_state_pages = 0;
    plan->decided.resident_pages = resident;
    return false;
}

/* If the drive is too small for gradients, those of all pages wait in host memory. */
static bool keep_grads(struct st_plan *plan)
{
    const uint32_t least = plan->decided.host_grad_pages;

    plan->decided.host_grad_pages = plan->program.workload.page_count;
    if (!fits(plan))
        plan->decided.host_grad_pages = least;
    return plan->decided.host_grad_pages > least;
}

/* The smallest placement has gradients on NVMe if state is there; but they stay in host memory if all of them can. */
static bool fits_somehow(struct st_plan *plan)
{
    if (!fits(plan) && !keep_grads(plan) && !lift_state(plan))
        return false;
    st_plan_size(plan, plan->minimum);
    (void)keep_grads(plan);
    return true;
}

static uint64_t lacking(const struct st_plan *plan)
{
    uint64_t sum = 0;

    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        sum += plan->minimum[t] > plan->capacity.bytes[t] ? plan->minimum[t] - plan->capacity.bytes[t] : 0;
    return sum;
}

/* Sizes what does not fit: with gradients on NVMe, unless it lacks less with all of them in host memory. */
static void size_refused(struct st_plan *plan)
{
    const uint32_t least = plan->decided.host_grad_pages;
    uint64_t without;

    st_plan_size(plan, plan->minimum);
    without = lacking(plan);
    plan->decided.host_grad_pages = plan->program.workload.page_count;
    st_plan_size(plan, plan->minimum);
    if (lacking(plan) < without)
        return;
    plan->decided.host_grad_pages = least;
    st_plan_size(plan, plan->minimum);
}

/* Checkpoints that may be on either tier go to the host first, else to the device. */
bool st_plan_smallest(struct st_plan *plan, enum st_accumulation order)
{
    decide_smallest(plan, order);
    if (fits_somehow(plan))
        return true;
    plan->decided.activation_tier = STRATA_TIER_DEVICE;
    if (plan->policy.activation_tier == STRATA_TIER_COUNT && fits_somehow(plan))
        return true;
    decide_smallest(plan, order);
    size_refused(plan);
    return false;
}

/* Tries either order of accumulation, if that is open; if neither fits, leaves the one that lacks less. */
bool st_plan_smallest_fits(struct st_plan *plan)
{
    const enum st_accumulation asked = plan->policy.accumulation;
    uint64_t vertical;

    if (asked != ST_ACCUMULATE_AUTO)
        return st_plan_smallest(plan, asked);
    if (st_plan_smallest(plan, ST_ACCUMULATE_VERTICAL))
        return true;
    vertical = lacking(plan);
    if (st_plan_smallest(plan, ST_ACCUMULATE_HORIZONTAL))
        return true;
    if (vertical <= lacking(plan))
        (void)st_plan_smallest(plan, ST_ACCUMULATE_VERTICAL);
    return false;
}

/* Resolves "auto" where there is no choice, and drops what a forward-only run does not use. */
static void resolve_policy(struct st_policy *policy, const struct st_workload *w)
{
    if (policy->ranks == 0)
        policy->ranks = 1;
    if (policy->update == ST_UPDATE_AUTO)
        policy->update = policy->needs_norm || st_workload_opaque(w) ? ST_UPDATE_GATED : ST_UPDATE_IN_BACKWARD;
    if (policy->forward_only || (policy->accumulation == ST_ACCUMULATE_AUTO && w->grad_accum == 1))
        policy->accumulation = ST_ACCUMULATE_VERTICAL;
    if (st_workload_opaque(w)) {
        policy->accumulation = ST_ACCUMULATE_HORIZONTAL; /* the caller goes through the layers micro-batch by micro-batch */
        policy->activations = ST_ACT_RECOMPUTED;         /* and keeps what it likes */
    }
    if (policy->early == ST_EARLY_OFFERED) /* the choice takes it up, see plan_choose.c */
        policy->early = 0;
    if (policy->forward_only || policy->leaves == 0)
        policy->leaves = 1;
    if (policy->forward_only)
        policy->sets = 0;
    if (policy->sets == 0 || policy->part_bytes == 0)
        policy->part_bytes = policy->sets > 0 ? ST_PART_BYTES : 0;
}

static strata_status check_device(const struct st_plan *plan)
{
    const struct st_policy *policy = &plan->policy;
    const bool param = policy->param_tier == STRATA_TIER_HOST, state = policy->optimizer_tier == STRATA_TIER_HOST;

    if (plan->capacity.lacks_bf16 && plan->program.workload.dtype == STRATA_BF16)
        return st_machine_no_bf16();
    if (plan->capacity.unified && (param || (state && !policy->forward_only)))
        return st_error(STRATA_E_CONFIG,
                        "%s.device is cpu, but the GPU's memory is the host's, so nothing is gained: set none, or nvme",
                        param ? "zero_optimization.offload_param" : "zero_optimization.offload_optimizer");
    return STRATA_OK;
}

static strata_status check_early(const struct st_plan *plan)
{
    if (plan->policy.early == 0 || !st_workload_opaque(&plan->program.workload))
        return STRATA_OK;
    return st_error(STRATA_E_CONFIG, "strata.update is speculative, but the caller computes the layers, and may drop a step: use "
                                     "gated");
}

static strata_status check_leaves(const struct st_plan *plan)
{
    const uint32_t micros = plan->program.workload.grad_accum, leaves = plan->policy.leaves;

    if (micros % leaves == 0)
        return STRATA_OK;
    return st_error(STRATA_E_CONFIG, "strata.leaves: %u groups do not divide the %u micro-batches of a step", leaves, micros);
}

/* Each layer adds to the sum of a page that several use.  One micro-batch behind the other the order is that of every caller;
 * layer by layer it would be another one, and so would the bits. */
static strata_status check_order(struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    bool shared = false;

    for (uint32_t p = 0; p < w->page_count; p++)
        shared = shared || (st_page_adds(&w->pages[p]) > 1 && st_place_trained(plan, p));
    if (!shared || w->grad_accum == 1)
        return STRATA_OK;
    if (plan->policy.accumulation == ST_ACCUMULATE_VERTICAL)
        return st_error(STRATA_E_CONFIG, "strata.accumulation is vertical, but several layers use one page: set horizontal");
    plan->policy.accumulation = plan->asked.accumulation = ST_ACCUMULATE_HORIZONTAL;
    return STRATA_OK;
}

/* About the number of ops of its programs, whatever the placement. */
static uint64_t ops_expected(const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    const uint64_t saved = plan->policy.sets > 0 ? 2ull * plan->program.chunk_count + 2ull * w->page_count : 0;

    return saved + 3ull * plan->program.chunk_count + (7ull + plan->policy.leaves) * w->page_count +
           (6ull * st_block_count(w) + 2ull * st_slice_count(w) + 2ull * st_experts_count(w)) * w->grad_accum;
}

/* A program is written, verified and simulated op by op, so one that would take minutes is refused before any such loop. */
static strata_status check_ops(const struct st_plan *plan)
{
    const uint64_t ops = ops_expected(plan);

    if (ops <= OPS_MAX)
        return STRATA_OK;
    return st_error(STRATA_E_CONFIG,
                    "a step of %u micro-batches, %u blocks and %u chunks takes about %llu operations, over %u: lower "
                    "gradient_accumulation_steps, or raise strata.chunk_size",
                    plan->program.workload.grad_accum, st_block_count(&plan->program.workload), plan->program.chunk_count,
                    (unsigned long long)ops, OPS_MAX);
}

/* Frees what only a choice among many programs needs. */
static void settle(struct st_plan *plan)
{
    st_program_trim(&plan->program);
    st_scratch_free(&plan->scratch);
}

strata_status st_plan_take_rank(struct st_plan *plan, uint32_t rank)
{
    struct st_program *program = &plan->program;
    strata_status st;

    if (plan->policy.rank == rank)
        return STRATA_OK;
    plan->policy.rank = program->rank = rank;
    free(program->pages);
    free(program->chunks);
    st_plan_sums_free(plan->sums);
    program->pages = NULL;
    program->chunks = NULL;
    plan->sums = NULL;
    program->chunk_count = 0;
    program->tile_count = 0;
    if ((st = cut_chunks(plan)) != STRATA_OK || (st = st_plan_sums_make(plan)) != STRATA_OK ||
        (st = st_plan_build(plan)) != STRATA_OK)
        return st;
    settle(plan);
    return STRATA_OK;
}

void st_plan_leave(struct st_policy *policy, struct st_capacity *capacity, const uint64_t bytes[STRATA_TIER_NVME],
                   uint32_t threads)
{
    for (int t = 0; t < STRATA_TIER_NVME; t++) {
        policy->caller_bytes[t] = bytes[t];
        capacity->bytes[t] -= bytes[t] < capacity->bytes[t] ? bytes[t] : capacity->bytes[t];
    }
    policy->caller_threads = threads;
    capacity->workers -= threads < capacity->workers ? threads : capacity->workers - 1;
}

strata_status st_plan_make(struct st_plan **out, const struct st_workload *workload, const struct st_capacity *capacity,
                           const struct st_policy *policy)
{
    return st_plan_make_evaluated(out, workload, capacity, policy, NULL, ST_EFFORT_WHOLE);
}

strata_status st_plan_create(struct st_plan **out, const struct st_workload *workload, const struct st_capacity *capacity,
                             const struct st_policy *policy)
{
    struct st_plan *plan = calloc(1, sizeof(*plan));
    strata_status st;

    if (plan == NULL)
        return st_nomem(sizeof(*plan));
    plan->capacity = *capacity;
    plan->policy = plan->asked = *policy;
    plan->policy.rank = 0;
    plan->program.moments = policy->moments != 0 ? policy->moments : 2;
    plan->program.moment_format = policy->moment_format;
    plan->program.wire_bf16 = policy->wire == ST_WIRE_BF16;
    resolve_policy(&plan->policy, workload);
    if (capacity->unified && plan->policy.activation_tier == STRATA_TIER_COUNT)
        plan->policy.activation_tier = STRATA_TIER_DEVICE;
    if (policy->fixed_bytes == 0)
        plan->policy.fixed_bytes = FIXED_BYTES_DEFAULT;
    if ((st = st_workload_check(workload)) != STRATA_OK ||
        (st = st_workload_copy(&plan->program.workload, workload)) != STRATA_OK || (st = check_device(plan)) != STRATA_OK ||
        (st = make_shards(plan)) != STRATA_OK || (st = cut_chunks(plan)) != STRATA_OK || (st = check_leaves(plan)) != STRATA_OK ||
        (st = check_early(plan)) != STRATA_OK || (st = check_order(plan)) != STRATA_OK || (st = check_ops(plan)) != STRATA_OK ||
        (st = st_plan_sums_make(plan)) != STRATA_OK) {
        st_plan_destroy(plan);
        return st;
    }
    *out = plan;
    return STRATA_OK;
}

strata_status st_plan_fits(bool *fits, const struct st_workload *workload, const struct st_capacity *capacity,
                           const struct st_policy *policy)
{
    struct st_plan *plan = NULL;
    const strata_status st = st_plan_create(&plan, workload, capacity, policy);

    *fits = st == STRATA_OK && st_plan_smallest_fits(plan);
    st_plan_destroy(plan);
    return st;
}

strata_status st_plan_known_rates(const struct st_machine **rates, struct st_plan *plan)
{
    const struct st_decisions smallest = plan->decided;
    const strata_status st = st_plan_build(plan);

    if (st == STRATA_OK && !st_simulate_possible(&plan->program, *rates))
        *rates = NULL;
    plan->decided = smallest; /* building drops slots that nothing needs */
    return st;
}

strata_status st_plan_make_evaluated(struct st_plan **out, const struct st_workload *workload, const struct st_capacity *capacity,
                                     const struct st_policy *policy, const struct st_machine *rates, enum st_effort effort)
{
    struct st_plan *plan;
    strata_status st = st_plan_create(&plan, workload, capacity, policy);

    if (st != STRATA_OK)
        return st;
    if (!st_plan_smallest_fits(plan)) {
        st_plan_size(plan, plan->program.needed);
        tell_program(plan);
        size_process(plan); /* without a program, since there is none */
        *out = plan;
        return does_not_fit(plan);
    }
    plan->fits = true;
    if (rates != NULL && (st = st_plan_known_rates(&rates, plan)) != STRATA_OK) {
        st_plan_destroy(plan);
        return st;
    }
    if (rates == NULL && policy->streamed == ST_STREAMED_AUTO)
        plan->policy.streamed = 0;
    if ((st = st_plan_choose(&plan, rates, effort)) == STRATA_OK && (st = st_plan_take_rank(plan, policy->rank)) == STRATA_OK) {
        settle(plan);
        *out = plan;
    } else {
        st_plan_destroy(plan);
    }
    return st;
}

strata_status st_plan_evaluate(struct st_plan **plan, const struct st_machine *rates)
{
    struct st_plan *evaluated;
    const strata_status st = st_plan_make_evaluated(&evaluated, &(*plan)->program.workload, &(*plan)->capacity, &(*plan)->asked,
                                                    rates, ST_EFFORT_WHOLE);

    if (st != STRATA_OK)
        return st;
    st_plan_destroy(*plan);
    *plan = evaluated;
    return STRATA_OK;
}

strata_status st_plan_verify(const struct st_plan *plan)
{
    if (!plan->fits)
        return st_error(STRATA_E_INTERNAL, "verify: the plan does not fit");
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        if (plan->program.needed[t] > plan->capacity.bytes[t])
            return st_error(STRATA_E_INTERNAL, "verify: tier %d lacks the room that is needed", t);
    return st_program_verify(&plan->program);
}

void st_plan_destroy(struct st_plan *plan)
{
    if (plan == NULL)
        return;
    st_program_fini(&plan->program);
    st_plan_sums_free(plan->sums);
    st_scratch_free(&plan->scratch);
    free(plan);
}
