/* optim_fixture.c - tensors of odd sizes, the rules, and the kernels' own steps to compare with. */
#include "tests/offload/optim_fixture.h"
#include "offload/optim/lr_schedule.h"
#include "offload/optim/optimizer.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

const size_t sizes[TENSORS] = {4097, 0, 1, 65536, 100003, 39168};
const strata_dtype grad_dtypes[GRAD_DTYPES] = {STRATA_F32, STRATA_BF16, STRATA_F16};

const struct rule_case rule_cases[RULE_CASES] = {
    {STRATA_ADAMW, 0, 0, false, "AdamW", ""},
    {STRATA_ADAM, 0, 0, false, "Adam", ", \"adam_w_mode\": false"},
    {STRATA_ADAGRAD, 0, 0, false, "Adagrad", ""},
    {STRATA_LION, 0, 0, false, "Lion", ""},
    {STRATA_SGD, 0, 0, false, "SGD", ""},
    {STRATA_SGD, 0.875, 0.25, false, "SGD", ", \"momentum\": 0.875, \"dampening\": 0.25"},
    {STRATA_SGD, 0.875, 0, true, "SGD", ", \"momentum\": 0.875, \"nesterov\": true"},
};

struct planes start, got, want;

void fill_start(strata_dtype grad_dtype)
{
    const struct st_kernels *k = st_kernels_pick("scalar");
    static float grads[ELEMS];

    memset(&start, 0, sizeof(start));
    for (size_t i = 0; i < ELEMS; i++) {
        start.master[i] = (float)((int)(i * 2654435761u % 20011) - 10005) / 4096.0f;
        grads[i] = (float)((int)(i * 40503u % 9973) - 4986) / 65537.0f; /* squares do not add up exactly */
    }
    k->master_split(start.weight, start.low_half, start.master, ELEMS);
    if (grad_dtype == STRATA_BF16)
        k->f32_to_bf16((uint16_t *)(void *)start.grad, grads, ELEMS);
    else if (grad_dtype == STRATA_F16)
        k->f32_to_f16((uint16_t *)(void *)start.grad, grads, ELEMS);
    else
        memcpy(start.grad, grads, sizeof(grads));
}

bool has_two_moments(enum strata_optimizer optimizer)
{
    return optimizer == STRATA_ADAMW || optimizer == STRATA_ADAM;
}

struct strata_optim_tensor tensor_at(struct planes *p, size_t first, size_t elems, enum mode mode, strata_dtype grad_dtype,
                                     bool two)
{
    struct strata_optim_tensor t = {
        .layout = mode == SPLIT   ? STRATA_OPTIM_SPLIT
                  : mode == PLAIN ? STRATA_OPTIM_F32
                                  : STRATA_OPTIM_FULL,
        .moment1 = p->moment1 + first,
        .moment2 = two ? p->moment2 + first : NULL,
        .grad = (unsigned char *)p->grad + first * strata_dtype_bytes(grad_dtype),
        .grad_dtype = grad_dtype,
        .elems = elems,
        .decay = true,
    };

    if (mode == SPLIT) {
        t.weight = p->weight + first;
        t.low_half = p->low_half + first;
    } else {
        t.master = p->master + first;
    }
    if (mode == FULL_BF16 || mode == FULL_F16) {
        t.copy = p->copy + first;
        t.copy_dtype = mode == FULL_F16 ? STRATA_F16 : STRATA_BF16;
    }
    return t;
}

static size_t round_up(size_t elems)
{
    return (elems + PACK - 1) / PACK * PACK;
}

static void set_moments(struct strata_optim_tensor *t, struct planes *p, enum strata_optim_moments format, uint64_t position)
{
    t->moment_format = format;
    t->position = position;
    t->moment1 = p->moment1 + position;
    if (t->moment2 != NULL)
        t->moment2 = p->moment2 + position;
}

void list_tensors(struct strata_optim_tensor tensors[TENSORS], struct planes *p, enum mode mode, strata_dtype dt, bool two,
                  enum strata_optim_moments format)
{
    size_t first = 0, position = 0;

    for (size_t i = 0; i < TENSORS; i++) {
        tensors[i] = tensor_at(p, first, sizes[i], mode, dt, two);
        tensors[i].decay = i % 2 == 0;
        set_moments(&tensors[i], p, format, position);
        first += sizes[i];
        position += round_up(sizes[i]);
    }
    assert_int_equal(first, ELEMS);
    assert_int_equal(position, ROOM);
}

struct strata_optim_config public_config(const struct rule_case *rc, uint32_t threads, const char *isa)
{
    struct strata_optim_config c;

    strata_optim_defaults(&c, rc->optimizer);
    c.weight_decay = 0.125;
    c.momentum = rc->momentum;
    c.dampening = rc->dampening;
    c.nesterov = rc->nesterov;
    c.threads = threads;
    c.isa = isa;
    return c;
}

struct st_config engine_config(const char *type, const char *params)
{
    struct st_config_source *source;
    struct st_config config;
    char text[256];

    snprintf(text, sizeof(text), "{\"optimizer\": {\"type\": \"%s\", \"params\": {%s}}}", type, params);
    if (st_config_load_text(&config, &source, text, strlen(text), "t", &(struct st_config_opts){0}) != STRATA_OK)
        fail_msg("%s: %s", text, strata_last_error());
    st_config_source_free(source);
    return config;
}

struct strata_optim *create(const struct strata_optim_config *c)
{
    struct strata_optim *opt = NULL;

    if (strata_optim_create(&opt, c) != STRATA_OK)
        fail_msg("%s", strata_last_error());
    return opt;
}

static double divisor_of(uint64_t step)
{
    return 0.5 * (double)step;
}

/* What the scalar kernels make of `want`, a tensor at a time. */
static void plain_steps(const struct rule_case *rc, enum mode mode, strata_dtype dt, enum strata_optim_moments format)
{
    const struct st_kernels *k = st_kernels_pick("scalar");
    char params[128];
    struct st_config config;
    struct st_step_numbers n = {.beta1_power = 1, .beta2_power = 1};
    struct strata_optim_tensor tensors[TENSORS];

    snprintf(params, sizeof(params), "\"weight_decay\": 0.125%s", rc->params);
    config = engine_config(rc->type, params);
    list_tensors(tensors, &want, mode, dt, has_two_moments(rc->optimizer), format);
    for (n.step = 1; n.step <= STEPS; n.step++) {
        n.lr = n.step == 1 ? config.optimizer.lr : LR2;
        n.divisor = divisor_of(n.step);
        st_betas_at(&config.schedule, &config.optimizer, n.step, &n.beta1, &n.beta2);
        n.beta1_power *= n.beta1;
        n.beta2_power *= n.beta2;
        for (size_t i = 0; i < TENSORS; i++) {
            const struct strata_optim_tensor *t = &tensors[i];
            const struct st_update_coef coef = st_update_coef_of(&config.optimizer, &n, t->decay);
            const struct st_moments moments = {(enum st_moment_format)format, t->moment1, t->moment2, t->position};

            if (mode == SPLIT)
                k->update_split(t->weight, t->low_half, &moments, t->grad, dt, t->elems, &coef);
            else
                k->update_master(t->master, t->copy, t->copy_dtype, &moments, t->grad, dt, t->elems, &coef);
        }
    }
}

static void api_steps(struct strata_optim *opt, const struct rule_case *rc, enum mode mode, strata_dtype dt,
                      enum strata_optim_moments format)
{
    struct strata_optim_tensor tensors[TENSORS];
    const struct strata_optim_config c = public_config(rc, 1, NULL);
    uint64_t overflowed = 99;

    list_tensors(tensors, &got, mode, dt, has_two_moments(rc->optimizer), format);
    strata_optim_set_step(opt, 0);
    assert_int_equal(strata_optim_set_lr(opt, c.lr), STRATA_OK);
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (step == 2)
            assert_int_equal(strata_optim_set_lr(opt, LR2), STRATA_OK);
        if (strata_optim_step(opt, tensors, TENSORS, divisor_of(step), &overflowed) != STRATA_OK)
            fail_msg("%s", strata_last_error());
        assert_int_equal(strata_optim_get_step(opt), step);
        assert_int_equal(overflowed, 0);
    }
}

void compare_case(struct strata_optim *const *opts, size_t count, const struct rule_case *rc, enum mode mode, strata_dtype dt,
                  enum strata_optim_moments format)
{
    fill_start(dt);
    want = start;
    plain_steps(rc, mode, dt, format);
    assert_memory_not_equal(&want, &start, sizeof(want));
    for (size_t o = 0; o < count; o++) {
        got = start;
        api_steps(opts[o], rc, mode, dt, format);
        if (memcmp(&got, &want, sizeof(got)) != 0)
            fail_msg("%s%s, mode %d, gradients %d, moments %d: %u threads, %s differ from the kernels", rc->type, rc->params,
                     (int)mode, (int)dt, (int)format, strata_optim_get_threads(opts[o]), strata_optim_get_isa(opts[o]));
    }
}

size_t create_all(struct strata_optim **opts, const struct rule_case *rc, uint32_t threads)
{
    const struct st_kernels *k;
    size_t count = 0;

    for (uint32_t i = 1; i <= threads; i++) {
        const struct strata_optim_config c = public_config(rc, i, NULL);

        opts[count] = create(&c);
        assert_int_equal(strata_optim_get_threads(opts[count++]), i);
    }
    for (size_t i = 0; (k = st_kernels_usable(i)) != NULL; i++) {
        const struct strata_optim_config c = public_config(rc, 2, k->name);

        opts[count] = create(&c);
        assert_string_equal(strata_optim_get_isa(opts[count++]), k->name);
    }
    return count;
}
