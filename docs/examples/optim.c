/* optim.c - one of strata's CPU optimizers alone: AdamW moves a bf16 weight with a split master to a target.
 *
 *     cc optim.c $(pkg-config --cflags --libs strata) && ./a.out */
#include <strata/strata.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ELEMS    100000
#define STEPS    200
#define MAX_NORM 10.0

static float from_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return value;
}

/* The loss sum of (w - target)^2 / 2, and its gradient w - target; targets go from -1 to 1. */
static double loss_and_grad(float *grad, const uint16_t *weight)
{
    double loss = 0;

    for (size_t i = 0; i < ELEMS; i++) {
        const float target = 2.0f * (float)i / ELEMS - 1;

        grad[i] = from_bf16(weight[i]) - target;
        loss += 0.5 * grad[i] * grad[i];
    }
    return loss;
}

static strata_status train(struct strata_optim *opt, const struct strata_optim_tensor *t, float *grad, double *first,
                           double *last)
{
    for (int step = 1; step <= STEPS; step++) {
        double norm;
        strata_status st;

        *last = loss_and_grad(grad, t->weight);
        if (step == 1)
            *first = *last;
        if ((st = strata_optim_grad_norm(opt, t, 1, &norm, NULL)) != STRATA_OK ||
            (st = strata_optim_step(opt, t, 1, norm > MAX_NORM ? norm / MAX_NORM : 1.0, NULL)) != STRATA_OK)
            return st;
        if (step % 50 == 0)
            printf("step %3d: loss %12.5g, gradient norm %10.4g\n", step, *last, norm);
    }
    return STRATA_OK;
}

int main(void)
{
    struct strata_optim_config config;
    struct strata_optim *opt = NULL;
    float *grad = calloc(ELEMS, sizeof(*grad));
    struct strata_optim_tensor t = {
        .layout = STRATA_OPTIM_SPLIT,
        .weight = calloc(ELEMS, sizeof(uint16_t)), /* bf16 zeros */
        .low_half = calloc(ELEMS, sizeof(int16_t)),
        .moment1 = calloc(ELEMS, sizeof(float)),
        .moment2 = calloc(ELEMS, sizeof(float)),
        .grad = grad,
        .grad_dtype = STRATA_F32,
        .elems = ELEMS,
        .decay = true,
    };
    double first = 0, last = 0;
    strata_status st;

    strata_optim_defaults(&config, STRATA_ADAMW);
    config.lr = 1e-2;
    config.weight_decay = 1e-4;
    st = strata_optim_create(&opt, &config);
    if (st == STRATA_OK) {
        printf("AdamW on %u threads, %s\n", (unsigned)strata_optim_get_threads(opt), strata_optim_get_isa(opt));
        st = train(opt, &t, grad, &first, &last);
    }
    if (st != STRATA_OK)
        fprintf(stderr, "optim: %s\n", strata_last_error());
    strata_optim_destroy(opt);
    free(t.weight);
    free(t.low_half);
    free(t.moment1);
    free(t.moment2);
    free(grad);
    return st != STRATA_OK ? strata_status_exit_code(st) : last < 0.01 * first ? 0 : 1;
}
