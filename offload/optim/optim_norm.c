/* offload/optim/optim_norm.c - norms of gradients (strata/optim.h). */
#include "offload/optim/optim_internal.h"

#include "core/base/error.h"
#include "core/system/floats.h"

#include <math.h>

/* The sum of squares of one block, widened into the worker's scratch so that the gradients stay unchanged. */
static uint64_t norm_block(const struct st_kernels *k, const struct strata_optim_tensor *t, size_t first, size_t elems,
                           float *widened, double *sum)
{
    const void *grad = st_optim_grad_at(t, first);
    const float *from = widened;

    if (t->grad_dtype == STRATA_BF16)
        k->bf16_to_f32(widened, grad, elems);
    else if (t->grad_dtype == STRATA_F16)
        k->f16_to_f32(widened, grad, elems);
    else
        from = grad;
    return k->grad_finish(widened, STRATA_F32, from, elems, sum);
}

static void norm_tile(void *ctx, uint64_t index, uint32_t worker)
{
    struct st_optim_job *job = ctx;
    const struct st_optim_tile *tile = &job->opt->wave[index];
    const struct strata_optim_tensor *t = &job->tensors[tile->tensor];
    const size_t elems = st_optim_tile_elems(t->elems, tile->first);
    float *widened = job->opt->widened + (size_t)worker * ST_NORM_BLOCK;
    uint64_t nonfinite = 0;

    for (size_t at = 0; at < elems; at += ST_NORM_BLOCK)
        nonfinite += norm_block(job->opt->kernels, t, tile->first + at, elems - at < ST_NORM_BLOCK ? elems - at : ST_NORM_BLOCK,
                                widened, &job->opt->block_sums[index][at / ST_NORM_BLOCK]);
    if (nonfinite > 0)
        atomic_fetch_add(&job->counted, nonfinite);
}

/* Adds the wave's tiles to the sum of the tensor that is under way, and tensors that are done to `sum`. */
static double add_tiles(const struct st_optim_job *job, uint32_t tiles, struct st_norm_sum *tensor, double sum)
{
    for (uint32_t i = 0; i < tiles; i++) {
        const struct st_optim_tile *tile = &job->opt->wave[i];
        const size_t elems = st_optim_tile_elems(job->tensors[tile->tensor].elems, tile->first);

        if (tile->first == 0) {
            sum += st_norm_total(tensor);
            tensor->tiles = 0;
        }
        st_norm_add(tensor, st_norm_tile(job->opt->block_sums[i], 0, (elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK));
    }
    return sum;
}

strata_status strata_optim_grad_norm(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                     double *norm, uint64_t *nonfinite)
{
    struct st_optim_job job = {.opt = opt, .tensors = tensors, .count = count};
    struct st_norm_sum tensor = {0};
    fenv_t floats;
    double sum = 0;
    uint32_t tiles;
    strata_status st;

    if (opt == NULL || norm == NULL || (tensors == NULL && count > 0))
        return st_error_missing(__func__, opt == NULL ? "opt" : norm == NULL ? "norm" : "tensors");
    if ((st = st_optim_check_process(opt)) != STRATA_OK || (st = st_optim_check_tensors(opt, tensors, count, true)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    while ((tiles = st_optim_next_wave(&job)) > 0) {
        st_workers_run(opt->workers, norm_tile, &job, tiles);
        sum = add_tiles(&job, tiles, &tensor, sum);
    }
    *norm = sqrt(sum + st_norm_total(&tensor));
    st_floats_restore(&floats);
    if (nonfinite != NULL)
        *nonfinite = job.counted;
    return STRATA_OK;
}

/* --- exact sums --- */

#define WORDS    (sizeof(((struct strata_optim_norm *)0)->words) / sizeof(uint64_t))
#define UNIT     298 /* squares of fp32 are multiples of 2^-298, and so are their sums in double */
#define MANTISSA 53

static void add_word(struct strata_optim_norm *norm, uint64_t word, size_t at)
{
    for (; word != 0 && at < WORDS; at++)
        word = __builtin_add_overflow(norm->words[at], word, &norm->words[at]);
}

static void add_block(struct strata_optim_norm *norm, double sum)
{
    uint64_t mantissa;
    int shift;

    if (!isfinite(sum)) /* its gradients are counted */
        return;
    mantissa = (uint64_t)ldexp(frexp(sum, &shift), MANTISSA);
    shift += UNIT - MANTISSA;
    if (shift < 0) { /* what is below the unit is 0 */
        mantissa >>= -shift;
        shift = 0;
    }
    add_word(norm, mantissa << shift % 64, (size_t)shift / 64);
    if (shift % 64 > 0)
        add_word(norm, mantissa >> (64 - shift % 64), (size_t)shift / 64 + 1);
}

strata_status strata_optim_norm_add(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                    struct strata_optim_norm *norm)
{
    struct st_optim_job job = {.opt = opt, .tensors = tensors, .count = count};
    fenv_t floats;
    uint32_t tiles;
    strata_status st;

    if (opt == NULL || norm == NULL || (tensors == NULL && count > 0))
        return st_error_missing(__func__, opt == NULL ? "opt" : norm == NULL ? "norm" : "tensors");
    if ((st = st_optim_check_process(opt)) != STRATA_OK || (st = st_optim_check_tensors(opt, tensors, count, true)) != STRATA_OK)
        return st;
    st_floats_plain(&floats);
    while ((tiles = st_optim_next_wave(&job)) > 0) {
        st_workers_run(opt->workers, norm_tile, &job, tiles);
        for (uint32_t i = 0; i < tiles; i++) {
            const struct st_optim_tile *tile = &opt->wave[i];
            const size_t elems = st_optim_tile_elems(tensors[tile->tensor].elems, tile->first);

            for (size_t block = 0; block * ST_NORM_BLOCK < elems; block++)
                add_block(norm, opt->block_sums[i][block]);
        }
    }
    st_floats_restore(&floats);
    norm->nonfinite += job.counted;
    return STRATA_OK;
}

void strata_optim_norm_merge(struct strata_optim_norm *norm, const struct strata_optim_norm *other)
{
    struct strata_optim_norm from;

    if (norm == NULL || other == NULL)
        return;
    from = *other; /* which may be the same one */
    for (size_t i = 0; i < WORDS; i++)
        add_word(norm, from.words[i], i);
    norm->nonfinite += from.nonfinite;
}

/* The highest 64 bits, of which the last also stands for all below, round as the whole sum does. */
double strata_optim_norm_value(const struct strata_optim_norm *norm)
{
    size_t top = WORDS;
    uint64_t bits, rest;
    fenv_t floats;
    double value;
    int shift;

    if (norm == NULL || norm->nonfinite > 0)
        return norm == NULL ? 0 : INFINITY;
    while (top > 0 && norm->words[top - 1] == 0)
        top--;
    if (top-- == 0)
        return 0;
    shift = __builtin_clzll(norm->words[top]);
    bits = norm->words[top] << shift;
    rest = top > 0 ? norm->words[top - 1] << shift : 0;
    if (top > 0 && shift > 0)
        bits |= norm->words[top - 1] >> (64 - shift);
    for (size_t i = 0; i + 1 < top; i++)
        rest |= norm->words[i];
    st_floats_plain(&floats);
    value = sqrt(ldexp((double)(bits | (rest != 0)), (int)(64 * top) - shift - UNIT));
    st_floats_restore(&floats);
    return value;
}
