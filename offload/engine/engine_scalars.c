/* engine_scalars.c - a step's scalars: norm, clip factor, loss scale, skip, and the coefficients of its update.
 *
 * A gated or serial update follows the step's end and uses the scalars found there. An update in backward runs before the end, so
 * its coefficients are computed when the step begins, and it cannot be skipped. */
#include "offload/engine/engine_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/log.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* beta^step, computed from the previous step's power if beta has not changed, which gives the same bits. */
static double power(double beta, uint64_t step, double beta_before, double power_before)
{
    return beta == beta_before ? power_before * beta : st_beta_power(beta, step);
}

void st_train_state_start(struct st_train_state *state, const struct st_loss_scaling *scaling)
{
    *state = (struct st_train_state){.beta1_power = 1.0, .beta2_power = 1.0, .update_scale = 1.0};
    st_loss_scaler_init(&state->scaler, scaling);
}

/* The powers of set 0 are the run's, and in its checkpoints; the others' begin at set 0's or are computed. */
static void take_powers(struct st_engine *eng, uint32_t set, struct st_step_numbers *n)
{
    struct st_train_state *train = &eng->train;
    struct st_set_powers *of = &eng->powers[set];

    n->beta1 = eng->sets[set].beta1;
    n->beta2 = eng->sets[set].beta2;
    if (set == 0 || of->step + 1 != n->step)
        *of = (struct st_set_powers){0, train->beta1, train->beta2, train->beta1_power, train->beta2_power};
    n->beta1_power = power(n->beta1, n->step, of->beta1, of->beta1_power);
    n->beta2_power = power(n->beta2, n->step, of->beta2, of->beta2_power);
    *of = (struct st_set_powers){n->step, n->beta1, n->beta2, n->beta1_power, n->beta2_power};
}

/* Counts another optimizer step and computes its coefficients; gradients are divided by `divisor`. */
static void prepare_update(struct st_engine *eng, double divisor)
{
    struct st_optimizer o = eng->training.optimizer;
    struct st_train_state *train = &eng->train;
    struct st_update_scalars *u = &train->update;
    struct st_step_numbers n = {.step = ++train->steps_applied, .divisor = divisor};

    u->step = n.step;
    u->lr = eng->sets[0].lr;
    for (uint32_t s = ST_SETS_MAX; s-- > 0;) { /* set 0 last: it ends the powers that the others begin at */
        take_powers(eng, s, &n);
        n.lr = eng->sets[s].lr;
        o.weight_decay = eng->sets[s].weight_decay;
        for (uint32_t decays = 0; decays < 2; decays++) {
            eng->coefs[s][decays] = st_update_coef_of(&o, &n, decays != 0);
            eng->coefs[s][decays].fetch_even = eng->fetch == ST_FETCH_EVEN;
        }
    }
    train->beta1 = n.beta1;
    train->beta2 = n.beta2;
    train->beta1_power = n.beta1_power;
    train->beta2_power = n.beta2_power;
    u->no_decay = eng->coefs[0][false];
    u->decay = eng->coefs[0][true];
}

/* As prepare_update() will find them; the pending update of the step before has its own until then. */
void st_engine_foresee_update(struct st_engine *eng, double divisor, struct st_update_coef coefs[ST_SETS_MAX][2])
{
    const struct st_train_state train = eng->train;
    struct st_set_powers powers[ST_SETS_MAX];
    struct st_update_coef pending[ST_SETS_MAX][2];

    memcpy(powers, eng->powers, sizeof(powers));
    memcpy(pending, eng->coefs, sizeof(pending));
    prepare_update(eng, divisor);
    memcpy(coefs, eng->coefs, sizeof(pending));
    memcpy(eng->coefs, pending, sizeof(pending));
    memcpy(eng->powers, powers, sizeof(powers));
    eng->train = train;
}

void st_engine_begin_step(struct st_engine *eng)
{
    eng->train.update_scale = eng->train.scaler.scale;
    eng->divisor = eng->caller != NULL ? st_engine_caller_divisor(eng) : 1;
    st_engine_early_begin(eng, eng->train.update_scale * eng->divisor);
    if (eng->program->update != ST_UPDATE_IN_BACKWARD)
        return;
    eng->train.update.skip = false;
    prepare_update(eng, eng->train.update_scale * eng->divisor);
}

bool st_engine_finished_on_host(const struct st_program *program, uint32_t p)
{
    return program->pages[p].sum == ST_WHERE_HOST && p < program->workload.gathered_count;
}

uint32_t st_norms_of(const struct st_program *program, uint32_t page, uint32_t group, uint32_t rank, uint32_t *runs)
{
    const struct st_workload *w = &program->workload;
    uint32_t first = program->norm_first[page];

    for (uint32_t i = 0; i <= group; i++)
        for (uint32_t s = 0; w->pages[page].groups[i].kind != ST_GROUP_FROZEN && s < program->ranks; s++) {
            const uint32_t owner = st_slice_rank(page, i, program->ranks, s);

            *runs = st_slice_runs(st_slice_of(w, page, i, program->ranks, owner));
            if (i == group && owner == rank)
                return first;
            first += *runs;
        }
    return first;
}

/* Adds a page's norm up from those of the ranks' runs of tiles, slice by slice, so that it is what one rank finds. */
static struct st_norm page_norm(const struct st_program *program, uint32_t p, const struct st_norm *norms)
{
    const struct st_workload *w = &program->workload;
    const struct st_norm *n = &norms[program->norm_first[p]];
    struct st_norm page = {0};

    if (program->ranks == 1)
        return *n;
    for (uint32_t i = 0; i < w->pages[p].group_count; i++) {
        struct st_norm_sum sum = {.tiles = 0};

        if (w->pages[p].groups[i].kind == ST_GROUP_FROZEN)
            continue;
        for (uint32_t s = 0; s < program->ranks; s++) {
            const struct st_slice slice = st_slice_of(w, p, i, program->ranks, st_slice_rank(p, i, program->ranks, s));
            const uint64_t end = (slice.first + slice.elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS;

            for (uint64_t tile = slice.first / ST_TILE_ELEMS, tiles; slice.elems > 0 && tile < end; tile += tiles, n++) {
                tiles = st_norm_run(tile, end);
                st_norm_add_run(&sum, n->norm2, tiles);
                page.nonfinite += n->nonfinite;
            }
        }
        page.norm2 += st_norm_total(&sum);
    }
    return page;
}

/* Sums over pages in index order, as each page's own is over its groups. */
static void sum_norms(const struct st_engine *eng, const struct st_norm *device, const struct st_norm *host, double *norm2,
                      uint64_t *nonfinite, uint32_t *first_bad)
{
    *norm2 = 0;
    *nonfinite = 0;
    *first_bad = ST_NO_PAGE;
    for (uint32_t p = 0; p < eng->program->workload.page_count; p++) {
        struct st_norm n;

        if (eng->program->pages[p].grad == ST_WHERE_NONE)
            continue;
        n = page_norm(eng->program, p, st_engine_finished_on_host(eng->program, p) ? host : device);
        *norm2 += n.norm2;
        *nonfinite += n.nonfinite;
        if (n.nonfinite > 0 && *first_bad == ST_NO_PAGE)
            *first_bad = p;
    }
}

static bool scales(const struct st_engine *eng)
{
    return st_workload_scales(&eng->program->workload);
}

static bool may_skip(const struct st_engine *eng)
{
    return eng->program->update != ST_UPDATE_IN_BACKWARD && (eng->training.skip_overflow || scales(eng));
}

static strata_status skip_update(struct st_engine *eng, uint64_t nonfinite, uint32_t first_bad)
{
    eng->train.update.skip = true;
    if (!may_skip(eng))
        return st_error(STRATA_E_NUMERICS,
                        "%" PRIu64 " gradient values are not finite, the first in page %u: lower lr, or set "
                        "bf16.check_grad_overflow true and strata.update \"gated\"",
                        nonfinite, first_bad);
    eng->train.steps_skipped++;
    st_log(ST_LOG_WARN, "update skipped: %" PRIu64 " gradient values are not finite, the first in page %u; loss scale %g",
           nonfinite, first_bad, eng->train.update_scale);
    return STRATA_OK;
}

/* Advice for a run that learns nothing: it never did, or it has diverged. */
static const char *advice(const struct st_engine *eng)
{
    if (eng->train.steps_applied > 0)
        return "the run has diverged: begin again from the source with a lower learning rate or a longer warm-up";
    return scales(eng)
               ? "the weights it began with are not finite, or too large for fp16: train in bf16, and see what strata eval says "
                 "of them"
               : "the weights it began with are not finite, or too large: see what strata eval says of them";
}

/* Without a target there is none, and a caller may not say it. */
static bool has_loss(const struct st_engine *eng)
{
    return eng->caller != NULL ? !isnan(eng->train.update.loss) : eng->target_count > 0;
}

/* Counts steps in a row that were skipped or whose loss is not finite; a few may be chance. */
static strata_status count_idle(struct st_engine *eng)
{
    struct st_train_state *train = &eng->train;
    const uint32_t most = eng->training.max_skipped;

    train->loss_lost = has_loss(eng) && !isfinite(train->update.loss);
    train->idle_in_row = train->update.skip || train->loss_lost ? train->idle_in_row + 1 : 0;
    if (most == 0 || train->idle_in_row < most)
        return STRATA_OK;
    return st_error(STRATA_E_NUMERICS,
                    "%" PRIu64 " steps in a row had gradients or a loss that are not finite (strata.max_skipped): %s",
                    train->idle_in_row, advice(eng));
}

strata_status st_engine_learnt(const struct st_engine *eng)
{
    const struct st_train_state *train = &eng->train;

    if (train->steps_applied == 0 && train->steps_skipped > 0 && train->scaler.dynamic)
        return st_error(
            STRATA_E_NUMERICS,
            "no update was made in %" PRIu64
            " steps, as fp16's loss scale fell only from 2^%u to %g: give more steps, or lower fp16.initial_scale_power",
            train->steps_skipped, eng->training.scaling.initial_power, train->scaler.scale);
    if (train->steps_applied == 0 && train->steps_skipped > 0)
        return st_error(STRATA_E_NUMERICS, "no update was made in %" PRIu64 " steps, as their gradients are not finite: %s",
                        train->steps_skipped, advice(eng));
    if (train->loss_lost)
        return st_error(STRATA_E_NUMERICS, "the loss of the last step is not finite: %s", advice(eng));
    return STRATA_OK;
}

static strata_status close_training_step(struct st_engine *eng, const struct st_norm *device, const struct st_norm *host)
{
    struct st_update_scalars *u = &eng->train.update;
    const double clip = eng->training.clip_norm;
    uint64_t nonfinite;
    uint32_t first_bad;
    double norm2;
    strata_status st;

    sum_norms(eng, device, host, &norm2, &nonfinite, &first_bad);
    u->grad_norm = sqrt(norm2) / (eng->train.update_scale * eng->divisor);
    u->skip = false;
    st_engine_early_learn(eng, u->grad_norm, nonfinite > 0);
    if (nonfinite > 0 && (st = skip_update(eng, nonfinite, first_bad)) != STRATA_OK)
        return st;
    if ((st = st_loss_scaler_step(&eng->train.scaler, u->skip)) != STRATA_OK || (st = count_idle(eng)) != STRATA_OK || u->skip)
        return st;
    if (eng->program->update != ST_UPDATE_IN_BACKWARD) {
        const double divisor =
            eng->train.update_scale * eng->divisor * (clip > 0 ? fmax(1.0, (u->grad_norm + 1e-6) / clip) : 1.0);

        prepare_update(eng, divisor);
        st_engine_early_judge(eng, divisor);
    }
    return STRATA_OK;
}

/* The sums of a step that was dropped are of no use, and say nothing about its scale. */
static strata_status close_dropped_step(struct st_engine *eng)
{
    eng->train.update.skip = true;
    eng->train.update.grad_norm = (double)NAN;
    eng->train.steps_skipped++;
    return STRATA_OK;
}

uint64_t st_engine_overflowed(const struct st_engine *eng)
{
    return eng->train.overflowed_host + *(const uint64_t *)st_engine_pointer(eng, eng->program->at.overflows_host);
}

void st_engine_tally(struct st_engine *eng)
{
    const struct st_program *program = eng->program;
    struct st_tally *tallies = st_scalars_tallies(program, st_engine_pointer(eng, program->at.scalars_host));
    const bool evaluates = eng->dispatch.phase == ST_PHASE_EVAL; /* has no result that tells of requests */

    tallies[program->rank] = (struct st_tally){.overflowed = st_engine_overflowed(eng),
                                               .requests = evaluates ? 0 : atomic_exchange(&eng->requests, 0),
                                               .rates = st_checksum64(eng->sets, sizeof(eng->sets))};
}

/* What the ranks say beside norms and losses.  @param overflowed  out: the weights that have, which at stage 0 all of them count
 */
static strata_status take_tallies(struct st_engine *eng, const struct st_tally *tallies, uint64_t *overflowed)
{
    *overflowed = 0;
    for (uint32_t r = 0; r < eng->program->ranks; r++) {
        if (tallies[r].rates != tallies[0].rates)
            return st_error(
                STRATA_E_CONFIG,
                "rank %u has other learning rates, weight decays or betas for this step than rank 0: give all the same", r);
        eng->result.requests |= tallies[r].requests;
        *overflowed += eng->program->stage > 0 || r == eng->program->rank ? tallies[r].overflowed : 0;
    }
    return STRATA_OK;
}

/* Of all ranks' micro-batches, in order. */
static double sum_of(const struct st_engine *eng, const double *losses)
{
    double sum = 0;

    for (uint32_t m = 0; m < eng->program->ranks * eng->program->workload.grad_accum; m++)
        sum += losses[m];
    return sum;
}

/* The loss per target, and the auxiliary losses beside it, undivided.  A micro-batch of nothing but padding has 0. */
static void take_losses(struct st_engine *eng, struct st_norm *scalars)
{
    const struct st_workload *w = &eng->program->workload;
    const double *aux = st_scalars_aux_losses(eng->program, scalars);
    struct st_step_result *result = &eng->result;
    uint32_t count = 0;
    double sum;

    result->aux_loss = (double)NAN;
    result->token_loss = (double)NAN;
    if (eng->caller != NULL)
        result->token_loss = st_engine_caller_loss(eng);
    else if (eng->target_count > 0)
        result->token_loss = sum_of(eng, st_scalars_losses(eng->program, scalars)) / (double)eng->target_count;
    eng->train.update.loss = result->token_loss;
    if (aux == NULL)
        return;
    sum = sum_of(eng, aux);
    for (uint32_t m = 0; m < eng->program->ranks * w->grad_accum; m++)
        count += aux[m] > 0;
    result->aux_loss = count > 0 ? sum / count : 0;
    eng->train.update.loss += w->aux_loss_coef * sum;
}

strata_status st_engine_end_of_step(struct st_engine *eng)
{
    struct st_norm *device = st_engine_pointer(eng, eng->program->at.scalars_host);
    const struct st_norm *host = st_engine_pointer(eng, eng->program->at.norms_host);
    strata_status st = STRATA_OK;
    uint64_t overflowed;

    if (eng->dispatch.phase == ST_PHASE_EVAL) /* its losses are the caller's to add up; all else is the next step's to tell */
        return STRATA_OK;
    take_losses(eng, device);
    overflowed = st_engine_overflowed(eng);
    if (eng->program->ranks > 1)
        st = take_tallies(eng, st_scalars_tallies(eng->program, device), &overflowed);
    else
        eng->result.requests = atomic_exchange(&eng->requests, 0);
    if (st != STRATA_OK)
        return st;
    eng->result.weights_overflowed = overflowed - eng->train.overflowed_seen;
    eng->train.overflowed_seen = overflowed;
    return eng->divisor > 0 ? close_training_step(eng, device, host) : close_dropped_step(eng);
}
