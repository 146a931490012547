/* engine.c - builds an engine from a program, and runs the steps that a caller asks for. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- create and destroy --- */

static bool has_nvme(const struct st_program *program)
{
    return program->needed[STRATA_TIER_NVME] > 0;
}

_Static_assert(sizeof(struct st_engine_io) == ST_TRANSFER_RECORD_BYTES, "planned");
_Static_assert(sizeof(struct st_engine_job) == ST_JOB_RECORD_BYTES, "planned");

/* Tables have the sizes that the plan counted, plus a byte, so that none is empty.  Loads upload from the scratch. */
static strata_status create_tables(struct st_engine *eng)
{
    const size_t scratch = st_workers_count(eng->workers) * ST_SCRATCH_BYTES;
    struct st_tables t;
    bool taken = true;

    (void)st_tables_size(&t, eng->program, st_workers_count(eng->workers), eng->device->ops->notify != NULL);
    eng->verified = calloc(1, t.verified + 1);
    eng->fresh = calloc(1, t.fresh + 1);
    if (t.left_out > 0)
        taken = (eng->left_out = calloc(1, t.left_out)) != NULL && taken;
    if (t.turned > 0)
        taken = (eng->turned = calloc(1, t.turned)) != NULL && taken;
    if (t.volumes > 0)
        taken = (eng->volumes = malloc(t.volumes)) != NULL && taken;
    eng->scratch = aligned_alloc(ST_EXTENT_ALIGN, 2 * scratch);
    eng->block_sums = calloc(1, t.block_sums + 1);
    eng->io = calloc(1, t.transfers + 1);
    for (uint32_t i = 0; i < ST_PLANE_COUNT && has_nvme(eng->program); i++)
        taken = (eng->checksums[i] = calloc(1, t.checksums + 1)) != NULL && taken;
    for (uint32_t i = 0; i < ST_PLANE_COUNT && t.early_sums > 0; i++)
        taken = (eng->early_sums[i] = calloc(1, t.early_sums)) != NULL && taken;
    if (t.act_checksums > 0)
        taken = (eng->act_checksums = calloc(1, t.act_checksums)) != NULL && taken;
    if (t.grad_sums > 0)
        taken = (eng->grad_checksums = calloc(1, t.grad_sums)) != NULL && taken;
    if (!taken || eng->verified == NULL || eng->fresh == NULL || eng->scratch == NULL || eng->block_sums == NULL ||
        eng->io == NULL)
        return st_nomem(0);
    eng->staging = (unsigned char *)eng->scratch + scratch;
    st_engine_begin_volumes(eng);
    return eng->device->ops->pin != NULL ? eng->device->ops->pin(eng->device, eng->scratch, 2 * scratch, NULL) : STRATA_OK;
}

static strata_status open_swap(struct st_engine *eng, const struct st_nvme_opts *nvme)
{
    struct st_swap_opts swap = {.dirs = nvme->dirs,
                                .dir_count = nvme->dir_count,
                                .dir_rates = nvme->dir_rates,
                                .set_count = eng->program->sets,
                                .method = nvme->method,
                                .block_bytes = nvme->block_bytes,
                                .queue_depth = nvme->queue_depth,
                                .patience = nvme->patience,
                                .region = eng->host.base,
                                .region_bytes = eng->host.bytes,
                                .fake_seed = nvme->fake_seed,
                                .fake_latency_us = nvme->fake_latency_us,
                                .fake_bytes_per_second = nvme->fake_bytes_per_second};

    eng->patience = nvme->patience;
    memcpy(swap.bytes, eng->program->space_bytes, sizeof(swap.bytes));
    return has_nvme(eng->program) ? st_swap_open(&eng->swap, &swap) : STRATA_OK;
}

strata_status st_engine_reader(struct st_engine *eng, struct st_swap **out)
{
    const struct st_swap_opts nothing = {.method = "auto", .patience = eng->patience};
    const strata_status st = eng->swap != NULL ? STRATA_OK : st_swap_open(&eng->swap, &nothing);

    *out = eng->swap;
    return st;
}

static strata_status open_device(struct st_engine *eng, const struct st_engine_opts *opts)
{
    const char *name = opts->device != NULL ? opts->device : "cpu";
    const struct st_device_opts device = {.arena_bytes = eng->program->needed[STRATA_TIER_DEVICE],
                                          .index = st_device_index(name),
                                          .workers = eng->workers,
                                          .kernels = eng->kernels,
                                          .topology = opts->topology,
                                          .upload_limit = opts->upload_limit,
                                          .download_limit = opts->download_limit,
                                          .pace = opts->pace,
                                          .deadline_ns = opts->device_deadline_ns,
                                          .joins = st_program_called(eng->program)};
    const struct st_device_ops *ops = st_device_find(name);
    strata_status st;

    if (ops == NULL)
        return st_error(STRATA_E_INVAL, "unknown device \"%s\"", name);
    st = ops->open(&eng->device, &device);
    if (st != STRATA_OK)
        return st;
    eng->device_base = ops->arena(eng->device);
    if (ops->pin != NULL && eng->host.bytes > 0)
        st = ops->pin(eng->device, eng->host.base, eng->host.bytes, &eng->staged);
    return st == STRATA_OK && eng->op_times != NULL ? st_device_timed_open(&eng->device, eng->op_times) : st;
}

/* The workload's scratch is sized for a number of workers, so there must never be more. */
static strata_status create_workers(struct st_engine *eng, const struct st_engine_opts *opts)
{
    const uint32_t most = eng->program->workload.workers;

    if (opts->threads > most)
        return st_error(STRATA_E_INVAL, "engine: %u threads asked for, but the model was made for %u", opts->threads, most);
    return st_workers_create(&eng->workers, opts->threads != 0 ? opts->threads : most, opts->topology);
}

void st_engine_start_run(struct st_engine *eng)
{
    st_train_state_start(&eng->train, st_workload_scales(&eng->program->workload) ? &eng->training.scaling : NULL);
    st_engine_set_lr(eng, eng->training.optimizer.lr);
    for (uint32_t s = 0; s < ST_SETS_MAX; s++)
        eng->sets[s].weight_decay = eng->training.optimizer.weight_decay;
    eng->divisor = 1;
    st_engine_set_betas(eng, st_optimizer_beta1(&eng->training.optimizer), eng->training.optimizer.beta2);
    st_engine_early_start(eng);
    st_engine_begin_volumes(eng); /* an earlier run may have adopted a checkpoint's */
    eng->base_saved = eng->adopted = eng->state_ends = false;
}

strata_status st_engine_create(struct st_engine **out, const struct st_engine_opts *opts)
{
    struct st_engine *eng = calloc(1, sizeof(*eng));
    strata_status st;

    if (eng == NULL)
        return st_nomem(sizeof(*eng));
    pthread_mutex_init(&eng->lock, NULL);
    st_cond_init(&eng->wake);
    eng->program = opts->program;
    eng->compute = opts->compute;
    eng->layer_names = opts->layer_names;
    eng->training = opts->training;
    eng->trace = opts->trace;
    eng->op_times = opts->op_times;
    eng->early.most = opts->early_most != 0 ? opts->early_most : ST_EARLY_MOST;
    st_engine_start_run(eng);
    eng->fetch = opts->fetch;
    eng->kernels = st_kernels_pick(opts->isa);
    if (eng->kernels == NULL) {
        st = st_error(STRATA_E_NOSYS, "strata.isa \"%s\" cannot run on this processor: use \"auto\"", opts->isa);
        goto fail;
    }
    if ((st = create_workers(eng, opts)) != STRATA_OK ||
        (st = st_arena_create_near(&eng->host, "host", eng->program->needed[STRATA_TIER_HOST], eng->workers, opts->topology)) !=
            STRATA_OK ||
        (st = open_device(eng, opts)) != STRATA_OK || (st = open_swap(eng, &opts->nvme)) != STRATA_OK ||
        (st = create_tables(eng)) != STRATA_OK || (st = st_engine_ranks_create(eng, opts)) != STRATA_OK ||
        (st = st_dispatch_init(&eng->dispatch, eng->program, eng->device->ops->notify != NULL)) != STRATA_OK ||
        (eng->device->ops->notify != NULL && (st = st_engine_async_create(eng)) != STRATA_OK) ||
        (eng->program->ranks > 1 && (st = st_engine_comm_create(eng, opts)) != STRATA_OK) ||
        (st = st_engine_caller_create(eng)) != STRATA_OK)
        goto fail;
    eng->dispatch.left_out = eng->left_out;
    *out = eng;
    return STRATA_OK;

fail:
    st_engine_destroy(eng);
    return st;
}

/* Also tears down a half-built engine: every part is NULL until it is whole. */
void st_engine_destroy(struct st_engine *eng)
{
    if (eng == NULL)
        return;
    st_engine_caller_destroy(eng);
    (void)st_engine_drain(eng);
    st_engine_comm_destroy(eng);
    st_engine_async_destroy(eng);
    st_swap_close(eng->swap);
    if (eng->device != NULL)
        eng->device->ops->close(eng->device);
    st_arena_destroy(&eng->host);
    st_workers_destroy(eng->workers);
    for (uint32_t i = 0; i < ST_PLANE_COUNT; i++) {
        free(eng->checksums[i]);
        free(eng->early_sums[i]);
    }
    st_dispatch_fini(&eng->dispatch);
    free(eng->act_checksums);
    free(eng->grad_checksums);
    free(eng->verified);
    free(eng->left_out);
    free(eng->fresh);
    free(eng->turned);
    free(eng->volumes);
    free(eng->bounce);
    free(eng->scratch); /* and staging */
    free(eng->block_sums);
    free(eng->io);
    st_engine_ranks_destroy(eng);
    pthread_cond_destroy(&eng->wake);
    pthread_mutex_destroy(&eng->lock);
    free(eng);
}

/* --- steps --- */

void st_engine_set_lr(struct st_engine *eng, double lr)
{
    for (uint32_t s = 0; s < ST_SETS_MAX; s++)
        eng->sets[s].lr = lr;
}

void st_engine_set_betas(struct st_engine *eng, double beta1, double beta2)
{
    for (uint32_t s = 0; s < ST_SETS_MAX; s++) {
        eng->sets[s].beta1 = beta1;
        eng->sets[s].beta2 = beta2;
    }
}

const struct st_staged *st_engine_staged(const struct st_engine *eng)
{
    return &eng->staged;
}

uint64_t st_engine_steps(const struct st_engine *eng)
{
    return eng->train.steps_applied;
}

static strata_status outside(const struct st_engine *eng, const char *what, int32_t id, uint64_t index)
{
    const struct st_workload *w = &eng->program->workload;

    return st_error(STRATA_E_INPUT, "%s %" PRIu64 " of sequence %" PRIu64 " is %d, the vocabulary has 0 to %u", what,
                    index % w->seq, index / w->seq, id, w->vocab - 1);
}

strata_status st_engine_check_ids(const struct st_engine *eng, const int32_t *tokens, const int32_t *targets, uint64_t count)
{
    const uint32_t vocab = eng->program->workload.vocab;

    for (uint64_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab)
            return outside(eng, "token", tokens[i], i);
        if (targets != NULL && targets[i] >= 0 && (uint32_t)targets[i] >= vocab)
            return outside(eng, "target", targets[i], i);
    }
    return STRATA_OK;
}

/* A document's first token has position 0, and each other one more than the token before; a sequence begins a document. */
strata_status st_engine_take_positions(const struct st_workload *w, int32_t *into, const int32_t *positions, uint64_t count)
{
    if (!w->documents)
        return positions == NULL ? STRATA_OK
                                 : st_error(STRATA_E_INVAL,
                                            "positions are given, and the model was not opened with strata_model_opts.documents");
    for (uint64_t i = 0; i < count; i++) {
        const bool first = i % w->seq == 0;
        const int32_t next = first ? 0 : into[i - 1] + 1;

        into[i] = positions == NULL ? next : positions[i];
        if (into[i] != 0 && into[i] != next)
            return st_error(STRATA_E_INPUT,
                            "position %" PRIu64 " of sequence %" PRIu64 " is %d: it can be 0, where a document begins, or %d",
                            i % w->seq, i / w->seq, into[i], next);
    }
    return STRATA_OK;
}

static strata_status take_tokens(struct st_engine *eng, const int32_t *tokens, const int32_t *targets, const int32_t *positions)
{
    const struct st_workload *w = &eng->program->workload;
    const uint64_t count = (uint64_t)w->micro_batch * w->seq * w->grad_accum;
    int32_t *into =
        (int32_t *)(uintptr_t)st_engine_tokens(eng, st_engine_pointer(eng, eng->program->at.tokens_host), eng->program->rank);
    strata_status st;

    if (eng->caller != NULL)
        return st_error(STRATA_E_INVAL, "the caller computes this model's layers: begin a step");
    if (tokens == NULL) { /* they are fed */
        memset(&eng->result, 0, sizeof(eng->result));
        eng->target_count = eng->feed.taken = 0;
        return STRATA_OK;
    }
    st = st_engine_check_ids(eng, tokens, targets, count);
    if (st == STRATA_OK)
        st = st_engine_take_positions(w, into + 2 * count, positions, count);
    if (st != STRATA_OK)
        return st;
    memset(&eng->result, 0, sizeof(eng->result));
    memcpy(into, tokens, count * sizeof(*into));
    memcpy(into + count, targets, count * sizeof(*into));
    eng->target_count = 0;
    for (uint64_t i = 0; i < count; i++)
        eng->target_count += targets[i] >= 0;
    eng->result.tokens = count * eng->program->ranks;
    return STRATA_OK;
}

strata_status st_engine_timed_cycle(struct st_engine *eng, enum st_phase phase)
{
    struct st_step_result *r = &eng->result;
    struct st_mover_counters before = {0}, after = {0};
    const uint64_t start = st_clock_ns(), comm_before = st_engine_comm_busy(eng);
    strata_status st;
    double most = 0;

    if (eng->swap != NULL)
        st_swap_counters(eng->swap, &before);
    eng->in_backward = false;
    st_engine_early_decide(eng, phase);
    st = st_engine_cycle(eng, phase);
    if (eng->swap != NULL)
        st_swap_counters(eng->swap, &after);
    r->seconds = (double)(st_clock_ns() - start) * 1e-9;
    r->busy_ms[STRATA_LANE_COMM] = (double)(st_engine_comm_busy(eng) - comm_before) * 1e-6;
    r->busy_ms[STRATA_LANE_READ_STATE] = (double)(after.busy_read_ns - before.busy_read_ns) * 1e-6;
    r->busy_ms[STRATA_LANE_WRITE] = (double)(after.busy_write_ns - before.busy_write_ns) * 1e-6;
    if (eng->caller != NULL)
        st_engine_caller_times(eng);
    r->other_ms = fmax(0.0, r->seconds * 1e3 - r->forward_ms - r->backward_ms - r->stall_ms);
    r->stalled_by = STRATA_LANE_COUNT;
    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        if (r->lane_stall_ms[lane] > most) {
            most = r->lane_stall_ms[lane];
            r->stalled_by = (enum strata_lane)lane;
        }
    }
    return st == STRATA_OK ? st_engine_collect_times(eng) : st; /* no part of the cycle's time */
}

/* Whether the step's cycle makes an update. */
static bool updates(const struct st_engine *eng)
{
    return !st_program_gated(eng->program) || eng->train.pending;
}

static strata_status run_phase(struct st_engine *eng, enum st_phase phase, struct st_step_result *result)
{
    const struct st_workload *w = &eng->program->workload;
    const enum st_phase with = st_engine_early_phase(eng, phase);
    strata_status st;

    st_engine_begin_step(eng);
    if ((st = st_engine_timed_cycle(eng, with)) != STRATA_OK)
        return st;
    eng->train.sequences += (uint64_t)w->micro_batch * w->grad_accum * eng->program->ranks;
    eng->train.pending = st_program_gated(eng->program);
    eng->result.loss = eng->train.update.loss;
    eng->result.grad_norm = eng->train.update.grad_norm;
    eng->result.skipped = eng->train.update.skip;
    eng->result.lr = eng->train.update.skip ? 0 : eng->train.update.lr;
    eng->result.loss_scale = eng->train.update_scale;
    eng->result.dropped = eng->divisor == 0;
    *result = eng->result;
    return STRATA_OK;
}

strata_status st_engine_run_step(struct st_engine *eng, struct st_step_result *result)
{
    return run_phase(eng, updates(eng) ? ST_PHASE_BODY : ST_PHASE_PROLOGUE, result);
}

strata_status st_engine_step(struct st_engine *eng, const int32_t *tokens, const int32_t *targets, const int32_t *positions,
                             struct st_step_result *result)
{
    const strata_status st = take_tokens(eng, tokens, targets, positions);

    return st != STRATA_OK ? st : st_engine_run_step(eng, result);
}

strata_status st_engine_run_saving(struct st_engine *eng, struct st_step_result *result, struct st_saved *saved)
{
    strata_status st;

    assert(eng->program->sets > 0 && updates(eng));
    *saved->train = eng->train;
    saved->train->pending = false;
    saved->status = st_engine_save_base(eng);
    if ((st = run_phase(eng, saved->status == STRATA_OK ? ST_PHASE_BODY_SAVE : ST_PHASE_BODY, result)) != STRATA_OK)
        return st;
    if (saved->status == STRATA_OK)
        saved->status = st_engine_save_ended(eng, saved->extents);
    if (!st_program_gated(eng->program))
        *saved->train = eng->train;
    else /* by the update that the step made */
        saved->train->overflowed_host = st_engine_overflowed(eng);
    return STRATA_OK;
}

strata_status st_engine_step_saving(struct st_engine *eng, const int32_t *tokens, const int32_t *targets,
                                    const int32_t *positions, struct st_step_result *result, struct st_saved *saved)
{
    const strata_status st = take_tokens(eng, tokens, targets, positions);

    return st != STRATA_OK ? st : st_engine_run_saving(eng, result, saved);
}

strata_status st_engine_flush_now(struct st_engine *eng, struct st_step_result *result)
{
    strata_status st = STRATA_OK;

    memset(&eng->result, 0, sizeof(eng->result));
    if (eng->train.pending)
        st = st_engine_timed_cycle(eng, ST_PHASE_EPILOGUE);
    if (st == STRATA_OK)
        st = st_engine_drain(eng);
    if (st != STRATA_OK)
        return st;
    eng->train.pending = false;
    if (result != NULL)
        *result = eng->result;
    return STRATA_OK;
}

strata_status st_engine_flush(struct st_engine *eng, struct st_step_result *result)
{
    const strata_status st = st_engine_outside(eng, "flush");

    return st != STRATA_OK ? st : st_engine_flush_now(eng, result);
}

strata_status st_engine_end_training(struct st_engine *eng)
{
    const strata_status st = st_engine_outside(eng, "end_training");

    if (st != STRATA_OK)
        return st;
    eng->state_ends = true;
    return st_engine_flush_now(eng, NULL);
}

bool st_engine_trains(const struct st_engine *eng)
{
    return !eng->state_ends;
}

strata_status st_engine_eval(struct st_engine *eng, const int32_t *tokens, const int32_t *targets, const int32_t *positions,
                             double *loss_sum, uint64_t *targets_seen)
{
    strata_status st = take_tokens(eng, tokens, targets, positions); /* what is refused runs nothing, a pending update neither */
    const double *losses;

    if (st != STRATA_OK || (st = st_engine_flush(eng, NULL)) != STRATA_OK)
        return st;
    memset(&eng->result, 0, sizeof(eng->result)); /* the flush's */
    if ((st = st_engine_timed_cycle(eng, ST_PHASE_EVAL)) != STRATA_OK)
        return st;
    losses = st_scalars_losses(eng->program, st_engine_pointer(eng, eng->program->at.scalars_host));
    for (uint32_t m = 0; m < eng->program->ranks * eng->program->workload.grad_accum; m++)
        *loss_sum += losses[m];
    *targets_seen = eng->target_count;
    return STRATA_OK;
}

void st_engine_cancel(struct st_engine *eng)
{
    atomic_store_explicit(&eng->cancelled, 1, memory_order_relaxed);
}

void st_engine_info(struct st_engine *eng, struct st_engine_info *out)
{
    struct st_swap_info swap = {.method = "none"};

    memset(out, 0, sizeof(*out));
    if (eng->swap != NULL)
        st_swap_info(eng->swap, &swap);
    snprintf(out->io_method, sizeof(out->io_method), "%s", swap.method);
    snprintf(out->isa, sizeof(out->isa), "%s", eng->kernels->name);
    snprintf(out->device, sizeof(out->device), "%s", eng->device->ops->name);
    out->io_direct = swap.direct;
    out->io_registered = swap.registered;
    out->workers = st_workers_count(eng->workers);
    out->steps_done = eng->train.steps_applied;
    out->sequences_done = eng->train.sequences;
    out->skipped_steps = eng->train.steps_skipped;
    out->loss_scale = eng->train.scaler.scale;
    out->early = eng->early.counts;
    pthread_mutex_lock(&eng->lock); /* writes of the last step may still be in flight */
    out->moved = eng->moved;
    pthread_mutex_unlock(&eng->lock);
}
