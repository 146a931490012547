/* Calls on the paced device: seeded gradients that follow from bytes alone, waits that are no shorter than the machine's. */
#include "core/system/clock.h"
#include "offload/device/paced/device_paced.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"
#include "tests/offload/device_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 128, SEQ = 24, MICROS = 3, BLOCKS = 2, PAGES = 5, BLOCK_ELEMS = 10240 };

/* One table slice (head too), positions, two blocks (the second with a frozen group), the norm. */
static struct st_page net_pages[PAGES];

static struct st_layer net_layers[BLOCKS + 2] = {
    {.kind = ST_LAYER_LOOKUP, .use_count = 2},
    {.use_first = 2, .use_count = 1, .forward_flops = 1e6, .backward_flops = 2e6},
    {.use_first = 3, .use_count = 1, .forward_flops = 1e6, .backward_flops = 2e6},
    {.kind = ST_LAYER_LOSS, .use_first = 4, .use_count = 2, .internal_bytes = 4096, .forward_flops = 1e5, .backward_flops = 2e5}};
static uint32_t net_uses[PAGES + 1] = {0, 1, 2, 3, 4, 0};

static void net_fill_pages(strata_dtype dtype)
{
    static const uint64_t elems[PAGES][ST_GROUPS_MAX] = {
        {60 * HIDDEN}, {SEQ * HIDDEN}, {9000, 300}, {5000, 300, 4096}, {0, HIDDEN}};

    for (uint32_t p = 0; p < PAGES; p++) {
        net_pages[p] = (struct st_page){.row_count = p == 0 ? 60 : 0};
        for (uint32_t g = 0; g < ST_GROUPS_MAX; g++)
            if (elems[p][g] > 0)
                (void)st_page_add(&net_pages[p], (enum st_group_kind)g, dtype, elems[p][g]);
    }
}

struct net {
    struct df_device d;
    struct st_workload w;
    struct st_paced_model model;
    struct st_compute compute;
    unsigned char *weight[PAGES];
    float *grad[PAGES];
    unsigned char *act[MICROS][BLOCKS + 2], *dact[MICROS], *head[MICROS];
    int32_t *tokens, *targets;
    double *loss;
};

struct net_opts {
    strata_dtype dtype;
    uint64_t shift; /* bytes that everything lies further up */
    bool horizontal, recompute, frozen_table;
    double flops; /* of the machine, per second; 0: no waits */
};

static void net_open(struct net *n, const struct net_opts *o)
{
    const struct st_machine machine = {.rates.matmul_flops = o->flops};

    memset(n, 0, sizeof(*n));
    n->d = df_open_paced(&machine);
    n->d.used = o->shift;
    memset(n->d.ops->arena(n->d.dev), o->shift != 0 ? 0xa5 : 0, n->d.bytes);
    net_fill_pages(o->dtype);
    n->w = (struct st_workload){.dtype = o->dtype,
                                .vocab = 60,
                                .hidden = HIDDEN,
                                .seq = SEQ,
                                .micro_batch = 1,
                                .grad_accum = MICROS,
                                .layers = net_layers,
                                .layer_count = BLOCKS + 2,
                                .pages = net_pages,
                                .page_count = PAGES,
                                .uses = net_uses,
                                .use_count = PAGES + 1,
                                .gathered_count = 1};
    n->model = (struct st_paced_model){&n->w, machine};
    n->compute = st_paced_compute(&n->model);
}

/* What df_alloc leaves out: its memory holds what was there before. */
static void *net_alloc(struct net *n, uint64_t bytes)
{
    void *p = n->d.ops->arena(n->d.dev) + n->d.used;

    n->d.used += (bytes + 63) / 64 * 64;
    assert_true(n->d.used <= n->d.bytes);
    return p;
}

/* Weights of the groups alone: padding keeps the arena's old bytes. */
static void net_load(struct net *n, const struct net_opts *o)
{
    const uint64_t width = strata_dtype_bytes(o->dtype), act = (uint64_t)SEQ * HIDDEN * width;
    const struct st_kernels *k = st_kernels_pick("scalar");
    float wide[BLOCK_ELEMS];

    for (uint32_t p = 0; p < PAGES; p++) {
        n->weight[p] = net_alloc(n, net_pages[p].elems * width);
        n->grad[p] = p == 0 && o->frozen_table ? NULL : net_alloc(n, net_pages[p].trained_elems * sizeof(float));
        for (uint32_t g = 0; g < net_pages[p].group_count; g++) {
            const struct st_group *group = &net_pages[p].groups[g];
            void *to = n->weight[p] + group->at;

            df_ok(st_paced_fill(NULL, p, group->offset, group->elems, wide));
            if (o->dtype == STRATA_F32)
                memcpy(to, wide, group->elems * sizeof(float));
            else
                (o->dtype == STRATA_BF16 ? k->f32_to_bf16 : k->f32_to_f16)(to, wide, group->elems);
        }
    }
    for (uint32_t m = 0; m < MICROS; m++) {
        for (uint32_t l = 0; l < BLOCKS + 2; l++)
            n->act[m][l] = net_alloc(n, act);
        n->dact[m] = net_alloc(n, act);
        n->head[m] = net_alloc(n, shape_of(&n->w).head_internal_bytes);
    }
    n->tokens = net_alloc(n, MICROS * SEQ * sizeof(int32_t));
    n->targets = net_alloc(n, MICROS * SEQ * sizeof(int32_t));
    n->loss = net_alloc(n, MICROS * sizeof(double));
    for (uint32_t i = 0; i < MICROS * SEQ; i++) {
        n->tokens[i] = (int32_t)(df_bits(11, i) % 60);
        n->targets[i] = i % 8 == 0 ? -1 : (int32_t)(df_bits(12, i) % 60);
    }
}

static void call(struct net *n, enum st_call_kind kind, uint32_t page, uint32_t m, struct st_call c)
{
    c.kind = kind;
    c.micro = m;
    c.device = n->d.dev;
    c.page = page;
    c.layer = kind >= ST_CALL_HEAD_NORM ? BLOCKS + 1 : page > 1 ? page - 1 : 0;
    if (kind != ST_CALL_EMBED_BACKWARD && kind != ST_CALL_HEAD_LOSS)
        c.weight = n->weight[page];
    if (c.grad != NULL) {
        c.grad_elems = net_pages[page].trained_elems;
        c.first = m == 0;
    }
    c.internals = n->head[m];
    c.tokens = n->tokens + m * SEQ;
    c.targets = n->targets + m * SEQ;
    c.loss_sum = n->loss + m;
    df_ok(n->compute.run(n->compute.model, &c));
}

static void forward(struct net *n, uint32_t layer, uint32_t m)
{
    if (layer == 0) {
        df_ok(n->d.ops->embed_gather(n->d.dev, n->act[m][0], n->weight[0], n->tokens + m * SEQ, SEQ, HIDDEN, 0, 60, n->w.dtype));
        call(n, ST_CALL_EMBED_FORWARD, 1, m, (struct st_call){.act = n->act[m][0], .act_out = n->act[m][0]});
    } else if (layer <= BLOCKS) {
        call(n, ST_CALL_BLOCK_FORWARD, 1 + layer, m, (struct st_call){.act = n->act[m][layer - 1], .act_out = n->act[m][layer]});
    } else {
        call(n, ST_CALL_HEAD_NORM, 4, m, (struct st_call){.act = n->act[m][BLOCKS]});
        call(n, ST_CALL_HEAD_STATS, 0, m, (struct st_call){0});
        call(n, ST_CALL_HEAD_LOSS, 4, m, (struct st_call){0});
    }
}

static void backward(struct net *n, uint32_t layer, uint32_t m, bool recompute)
{
    if (layer > BLOCKS) {
        call(n, ST_CALL_HEAD_GRAD, 0, m, (struct st_call){.grad = n->grad[0], .recompute = true});
        call(n, ST_CALL_HEAD_BACKWARD, 4, m, (struct st_call){.act = n->act[m][BLOCKS], .dact = n->dact[m], .grad = n->grad[4]});
    } else if (layer > 0) {
        call(n, ST_CALL_BLOCK_BACKWARD, 1 + layer, m,
             (struct st_call){
                 .act = n->act[m][layer - 1], .dact = n->dact[m], .grad = n->grad[1 + layer], .recompute = recompute});
    } else {
        call(n, ST_CALL_EMBED_BACKWARD, 1, m, (struct st_call){.dact = n->dact[m], .grad = n->grad[1]});
    }
}

static void net_step(struct net *n, const struct net_opts *o)
{
    const uint32_t layers = BLOCKS + 2, outer = o->horizontal ? MICROS : 1, inner = MICROS / outer;

    for (uint32_t from = 0; from < outer; from++) {
        for (uint32_t l = 0; l < layers; l++)
            for (uint32_t m = from; m < from + inner; m++)
                forward(n, l, m);
        for (uint32_t l = layers; l-- > 0;)
            for (uint32_t m = from; m < from + inner; m++)
                backward(n, l, m, o->recompute);
    }
    for (uint32_t m = 0; m < MICROS && n->grad[0] != NULL; m++) /* when the head's gradient is whole, as the program does */
        df_ok(n->d.ops->embed_scatter(n->d.dev, n->grad[0], n->dact[m], n->tokens + m * SEQ, SEQ, HIDDEN, 0, 60, n->w.dtype));
    df_ok(n->d.ops->finish(n->d.dev, ST_QUEUE_COMPUTE));
}

/* A whole step; what it leaves, in a buffer of its own: losses, then the trained groups' gradients. */
struct outcome {
    uint64_t elems;
    double loss[MICROS];
    float grad[PAGES * BLOCK_ELEMS];
};

static void net_outcome(const struct net *n, struct outcome *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->loss, n->loss, sizeof(out->loss));
    for (uint32_t p = 0; p < PAGES; p++)
        for (uint32_t g = 0; g < net_pages[p].group_count && n->grad[p] != NULL; g++) {
            const struct st_group *group = &net_pages[p].groups[g];

            if (group->kind == ST_GROUP_FROZEN)
                continue;
            memcpy(out->grad + out->elems, n->grad[p] + group->offset, group->elems * sizeof(float));
            out->elems += group->elems;
        }
}

static struct outcome *step_with(const struct net_opts *o, void (*change)(struct net *n))
{
    struct outcome *out = malloc(sizeof(*out));
    struct net n;

    assert_non_null(out);
    net_open(&n, o);
    net_load(&n, o);
    if (change != NULL)
        change(&n);
    net_step(&n, o);
    net_outcome(&n, out);
    n.d.ops->close(n.d.dev);
    return out;
}

/* Finite, not all the same, losses where the tokens' count wants them. */
static void check_sane(const struct outcome *out)
{
    uint64_t zeros = 0;

    for (uint32_t m = 0; m < MICROS; m++)
        assert_true(out->loss[m] >= 21 && out->loss[m] < 210); /* 21 of 24 targets count */
    assert_true(out->loss[0] != out->loss[1] && out->loss[1] != out->loss[2]);
    for (uint64_t i = 0; i < out->elems; i++) {
        assert_true(isfinite(out->grad[i]) && fabsf(out->grad[i]) < 1);
        zeros += out->grad[i] == 0;
    }
    assert_true(zeros < out->elems / 2);
}

TEST(gradients_follow_from_bytes_alone)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        const struct net_opts plain = {.dtype = dt};
        const struct net_opts others[] = {
            {.dtype = dt, .shift = 4096 + 64},
            {.dtype = dt, .horizontal = true},
            {.dtype = dt, .recompute = true, .shift = 128, .flops = 1e10},
        };
        struct outcome *want = step_with(&plain, NULL);

        check_sane(want);
        for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
            struct outcome *got = step_with(&others[i], NULL);

            assert_memory_equal(got, want, sizeof(*got));
            free(got);
        }
        free(want);
    }
}

static void spoil_weight(struct net *n)
{
    n->weight[2][8990 * 2] ^= 1;
}

static void spoil_table_end(struct net *n)
{
    n->weight[0][60 * HIDDEN * 2 - 1] ^= 1;
}

static void spoil_token(struct net *n)
{
    n->tokens[2 * SEQ + 11] ^= 1;
}

static void spoil_norm(struct net *n)
{
    n->weight[4][0] ^= 1;
}

static void spoil_padding(struct net *n)
{
    n->weight[2][9010 * 2] ^= 1;
}

TEST(a_byte_that_differs_shows)
{
    const struct net_opts o = {.dtype = STRATA_BF16};
    void (*const spoilers[])(struct net * n) = {spoil_weight, spoil_table_end, spoil_token, spoil_norm};
    struct outcome *want = step_with(&o, NULL), *got;

    for (size_t i = 0; i < sizeof(spoilers) / sizeof(spoilers[0]); i++) {
        got = step_with(&o, spoilers[i]);
        check_sane(got);
        assert_memory_not_equal(got->loss, want->loss, sizeof(got->loss));
        assert_memory_not_equal(got->grad, want->grad, sizeof(got->grad));
        free(got);
    }
    got = step_with(&o, spoil_padding);
    assert_memory_equal(got, want, sizeof(*got));
    free(got);
    free(want);
}

/* The first micro-batch clears all that no group covers; a page without gradients is only waited for. */
TEST(the_first_call_defines_the_page)
{
    const struct net_opts o = {.dtype = STRATA_BF16, .shift = 64, .frozen_table = true};
    struct net n;

    net_open(&n, &o);
    net_load(&n, &o);
    net_step(&n, &o);
    for (uint64_t i = 9000; i < 9088; i++)
        assert_true(n.grad[2][i] == 0);
    for (uint64_t i = 9388; i < net_pages[2].elems; i++)
        assert_true(n.grad[2][i] == 0);
    for (uint64_t i = 5420; i < net_pages[3].trained_elems; i++)
        assert_true(n.grad[3][i] == 0);
    n.d.ops->close(n.d.dev);
}

TEST(calls_take_their_time)
{
    const struct net_opts o = {.dtype = STRATA_BF16, .recompute = true, .flops = 1e9};
    const double block = 1e-3 + 3e-3, head = 1e-4 + 2e-4;
    struct net n;
    uint64_t start;

    net_open(&n, &o);
    net_load(&n, &o);
    assert_float_equal(st_call_seconds(&net_layers[1], &n.model.machine.rates, ST_CALL_BLOCK_BACKWARD, true), 3e-3, 1e-9);
    start = st_clock_ns();
    net_step(&n, &o);
    assert_true((double)(st_clock_ns() - start) * 1e-9 >= MICROS * (BLOCKS * block + head));
    n.d.ops->close(n.d.dev);
}

TEST(calls_that_cannot_run)
{
    struct df_device cpu;
    struct net n;
    struct st_call c = {.kind = ST_CALL_HEAD_LOSS};

    df_open(&cpu, &(struct df_opts){0});
    net_open(&n, &(struct net_opts){.dtype = STRATA_BF16});
    c.device = cpu.dev;
    assert_int_equal(n.compute.run(n.compute.model, &c), STRATA_E_INVAL);
    c.device = n.d.dev;
    n.w.generate = true;
    assert_int_equal(n.compute.run(n.compute.model, &c), STRATA_E_NOSYS);
    n.d.ops->close(n.d.dev);
    df_close(&cpu);
}

TEST(initial_values_depend_on_page_and_element)
{
    float whole[300], part[100], other[300];

    df_ok(st_paced_fill(NULL, 3, 1000, 300, whole));
    df_ok(st_paced_fill(NULL, 3, 1100, 100, part));
    df_ok(st_paced_fill(NULL, 4, 1000, 300, other));
    assert_memory_equal(whole + 100, part, sizeof(part));
    assert_memory_not_equal(whole, other, sizeof(whole));
    for (uint32_t i = 0; i < 300; i++)
        assert_true(isfinite(whole[i]) && fabsf(whole[i]) < 1);
}
