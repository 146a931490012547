/* tests/api/layers_net.c - see layers_net.h. */
#include "tests/api/layers_net.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define W NET_WIDTH

const char net_config[] = "{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 2,"
                          " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2, \"weight_decay\": 0.1}},"
                          " \"gradient_clipping\": 1.0, \"strata\": {\"threads\": 2}}";

/* --- what it is --- */

static char names[NET_TENSORS][32], layer_names[NET_LAYERS][32];

static void fill_names(void)
{
    snprintf(names[0], sizeof(names[0]), "table");
    snprintf(layer_names[0], sizeof(layer_names[0]), "embedding");
    for (uint32_t b = 0; b < NET_BLOCKS; b++) {
        snprintf(layer_names[1 + b], sizeof(layer_names[0]), "block.%u", b);
        snprintf(names[1 + 3 * b], sizeof(names[0]), "block.%u.weight", b);
        snprintf(names[2 + 3 * b], sizeof(names[0]), "block.%u.bias", b);
        snprintf(names[3 + 3 * b], sizeof(names[0]), "block.%u.scale", b);
    }
    snprintf(names[NET_TENSORS - 1], sizeof(names[0]), "gain");
    snprintf(layer_names[NET_LAYERS - 1], sizeof(layer_names[0]), "norm");
}

static struct strata_layer_tensor tensor(const char *name, uint32_t group, uint64_t rows, uint64_t cols)
{
    struct strata_layer_tensor t = {.name = name, .rank = cols > 0 ? 2 : 1, .group = group, .shape = {rows, cols}};

    return t;
}

static strata_status open_model(struct net *n)
{
    const struct strata_param_group groups[] = {
        {.name = "decayed"},
        {.name = "plain", .lr_scale = n->opts.lr_scale != 0 ? n->opts.lr_scale : 2, .own_weight_decay = true}};
    struct strata_layers_opts o = STRATA_LAYERS_OPTS_INIT;
    struct strata_layer_tensor table = tensor("table", 0, NET_VOCAB, W), gain, blocks[NET_BLOCKS][3];
    struct strata_layer layers[NET_LAYERS] = {{0}};

    fill_names();
    gain = tensor(names[NET_TENSORS - 1], 1, W, 0);
    layers[0] = (struct strata_layer){.name = layer_names[0], .tensors = &table, .tensor_count = 1, .resident = true};
    for (uint32_t b = 0; b < NET_BLOCKS; b++) {
        blocks[b][0] = tensor(names[1 + 3 * b], 0, W, W);
        blocks[b][1] = tensor(names[2 + 3 * b], 1, W, 0);
        blocks[b][2] = tensor(names[3 + 3 * b], STRATA_FROZEN, W, 0);
        blocks[b][1].dtype = STRATA_F32; /* in all precisions */
        layers[1 + b] = (struct strata_layer){.name = layer_names[1 + b],
                                              .tensors = blocks[b],
                                              .tensor_count = 3,
                                              .boundary_bytes = NET_ROWS * W * sizeof(float),
                                              .forward_flops = n->opts.unknown ? 0 : 2.0 * NET_ROWS * W * W,
                                              .backward_flops = n->opts.unknown ? 0 : 6.0 * NET_ROWS * W * W};
    }
    layers[NET_LAYERS - 1] = (struct strata_layer){
        .name = layer_names[NET_LAYERS - 1], .tensors = &gain, .tensor_count = 1, .boundary_bytes = NET_ROWS * W * sizeof(float)};
    for (uint32_t l = 0; l < NET_LAYERS && n->opts.resident; l++) {
        layers[l].resident = true;
        layers[l].boundary_bytes = 0;
    }
    if (n->opts.renamed)
        layers[2].name = "another";
    if (n->opts.reshaped)
        blocks[1][2] = tensor(names[6], STRATA_FROZEN, 1, W);
    if (n->opts.regrouped)
        blocks[1][1].group = 0;
    o.name = "net";
    o.layers = layers;
    o.layer_count = NET_LAYERS;
    o.groups = groups;
    o.group_count = 2;
    o.use = n->opts.use;
    o.caller_threads = 1;
    o.caller_host_bytes = n->opts.caller_host_bytes;
    o.scales_loss = strstr(n->opts.text, "fp16") != NULL && !n->opts.unscaled;
    o.comm = n->opts.comm;
    return strata_layers_open(&n->model, n->config, &o);
}

strata_status net_open(struct net *n, const struct net_opts *opts)
{
    struct strata_config_opts c = STRATA_CONFIG_OPTS_INIT;
    struct strata_machine_opts m = STRATA_MACHINE_OPTS_INIT;
    struct strata_machine *machine = NULL;
    strata_status st;

    *n = (struct net){.left = UINT32_MAX};
    if (opts != NULL)
        n->opts = *opts;
    if (n->opts.text == NULL)
        n->opts.text = net_config;
    if (n->opts.ranks == 0)
        n->opts.ranks = 1;
    c.text = n->opts.text;
    c.overrides = n->opts.overrides;
    c.override_count = n->opts.override_count;
    c.ranks = n->opts.ranks;
    m.comm = n->opts.comm;
    if ((st = strata_config_open(&n->config, &c)) != STRATA_OK || (st = open_model(n)) != STRATA_OK ||
        (st = strata_machine_open(&machine, &m)) != STRATA_OK)
        return st;
    st = strata_plan_make(&n->plan, n->model, machine);
    strata_machine_close(machine);
    return st;
}

strata_status net_fill(void *ctx, uint32_t t, uint64_t first, uint64_t elems, float *values)
{
    (void)ctx;
    for (uint64_t i = 0; i < elems; i++) {
        const uint64_t x = ((first + i) * 31 + t) * UINT64_C(0x9e3779b97f4a7c15);
        const float u = (float)(x >> 40) * 0x1p-24f - 0.5f;

        values[i] = t == NET_TENSORS - 1 ? 1 : t % 3 == 0 && t > 0 ? 0.5f : t % 3 == 2 ? 0 : u * 0.3f;
    }
    return STRATA_OK;
}

strata_status net_start(struct net *n, const struct net_opts *opts)
{
    struct strata_load_opts load = STRATA_LOAD_OPTS_INIT;
    strata_status st = net_open(n, opts);

    load.fill = net_fill;
    if (st == STRATA_OK)
        st = strata_engine_create(&n->engine, n->plan, NULL);
    for (uint32_t i = 0; i < NET_TENSORS && st == STRATA_OK; i++) {
        n->info[i] = (struct strata_tensor_info)STRATA_TENSOR_INFO_INIT;
        st = strata_engine_get_tensor(n->engine, i, &n->info[i]);
    }
    return st == STRATA_OK ? strata_engine_load_layers(n->engine, &load) : st;
}

void net_close(struct net *n)
{
    strata_engine_destroy(n->engine);
    strata_plan_destroy(n->plan);
    strata_model_close(n->model);
    strata_config_close(n->config);
    *n = (struct net){0};
}

const char *net_digest(struct net *n, char text[80])
{
    char weights[33], state[33];

    if (strata_engine_digest(n->engine, weights, state) != STRATA_OK)
        snprintf(text, 80, "none: %.70s", strata_last_error());
    else
        snprintf(text, 80, "%s %s", weights, state);
    return text;
}

/* --- calls, each on a thread of its own if asked for, and no more than `left` --- */

enum call { BEGIN, ENTER, LEAVE, USE, GRAD, MICRO_END, END };

struct one {
    struct net *n;
    enum call call;
    enum strata_pass pass;
    uint32_t layer;
    struct strata_layer_view *view;
    const struct strata_layers_step *step;
    const struct strata_grad *grad;
    const struct strata_layers_end *end;
    double *scale;
    strata_status st;
};

static void *make(void *ctx)
{
    struct one *o = ctx;
    struct strata_engine *e = o->n->engine;

    switch (o->call) {
    case BEGIN:
        o->st = strata_engine_begin(e, o->step, o->scale);
        break;
    case ENTER:
        o->st = strata_engine_enter(e, o->pass, o->layer, o->view);
        break;
    case LEAVE:
        o->st = strata_engine_leave(e);
        break;
    case USE:
        o->st = strata_engine_use(e, o->pass, o->layer, o->view);
        break;
    case GRAD:
        o->st = strata_engine_grad(e, o->grad, 1);
        break;
    case MICRO_END:
        o->st = strata_engine_micro_end(e);
        break;
    case END:
        o->n->last = (struct strata_step)STRATA_STEP_INIT;
        o->st = strata_engine_end(e, o->end, &o->n->last);
        break;
    }
    return NULL;
}

static strata_status call(struct one o)
{
    pthread_t thread;

    if (o.n->left == 0)
        return STRATA_E_CANCELLED;
    o.n->left -= o.n->left != UINT32_MAX;
    if (!o.n->threads)
        make(&o);
    else if (pthread_create(&thread, NULL, make, &o) != 0 || pthread_join(thread, NULL) != 0)
        return STRATA_E_NOMEM;
    return o.st;
}

/* --- the arithmetic --- */

static float half_of(uint16_t h)
{
    const float sign = h & 0x8000 ? -1.0f : 1.0f, mantissa = (float)(h & 1023);
    const int exponent = h >> 10 & 31;

    return exponent == 0 ? sign * ldexpf(mantissa, -24) : sign * ldexpf(1024 + mantissa, exponent - 25);
}

static float weight(const struct net *n, uint32_t t, const struct strata_layer_view *v, uint64_t i)
{
    const unsigned char *at = (const unsigned char *)v->weights + n->info[t].weight_at;
    uint32_t bits;
    uint16_t half;
    float f;

    if (n->info[t].dtype == STRATA_F32) {
        memcpy(&f, at + 4 * i, 4);
        return f;
    }
    memcpy(&half, at + 2 * i, 2);
    if (n->info[t].dtype == STRATA_F16)
        return half_of(half);
    bits = (uint32_t)half << 16;
    memcpy(&f, &bits, 4);
    return f;
}

static uint16_t bf16_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16); /* cut off: what is reported is what counts */
}

/* Gradients [elems] of a tensor: added in place, or reported in two parts. */
static strata_status report(struct net *n, uint32_t t, const struct strata_layer_view *v, float *grad, uint64_t elems)
{
    static _Thread_local uint16_t halves[NET_WIDTH * NET_WIDTH];
    strata_status st = STRATA_OK;

    if (n->spoil != 0)
        grad[elems / 2] = (float)n->spoil;
    if (n->opts.grad_dtype == STRATA_DTYPE_INVALID) {
        for (uint64_t i = 0; i < elems; i++)
            v->sum[n->info[t].sum_at + i] += grad[i];
        return st;
    }
    for (uint64_t i = 0; i < elems; i++)
        halves[i] = bf16_of(grad[i]);
    for (uint64_t part = 0; part < 2 && st == STRATA_OK; part++) {
        const uint64_t first = part * (elems / 2 + 1);
        const struct strata_grad g = {.tensor = t,
                                      .dtype = n->opts.grad_dtype,
                                      .first = first,
                                      .elems = part == 0 ? elems / 2 + 1 : 0,
                                      .values = n->opts.grad_dtype == STRATA_BF16 ? (const void *)(halves + first)
                                                                                  : (const void *)(grad + first)};

        st = call((struct one){.n = n, .call = GRAD, .grad = &g});
    }
    return st;
}

static void rest(const struct net *n)
{
    const struct timespec time = {.tv_nsec = n->sleep_us * 1000};

    if (n->sleep_us > 0)
        (void)nanosleep(&time, NULL);
}

static strata_status block_forward(const struct net *n, uint32_t b, const struct strata_layer_view *v, const float *x, float *y)
{
    for (uint32_t r = 0; r < NET_ROWS; r++)
        for (uint32_t o = 0; o < W; o++) {
            float z = weight(n, 2 + 3 * b, v, o);

            for (uint32_t i = 0; i < W; i++)
                z += x[r * W + i] * weight(n, 1 + 3 * b, v, o * W + i);
            y[r * W + o] = x[r * W + o] + (z > 0 ? z * weight(n, 3 + 3 * b, v, o) : 0);
        }
    return STRATA_OK;
}

static strata_status block_backward(struct net *n, uint32_t b, const struct strata_layer_view *v, float *dy)
{
    static _Thread_local float y[NET_ROWS * W], dw[W * W], db[W], dx[NET_ROWS * W];
    const float *x = v->boundary;
    strata_status st;

    memset(dw, 0, sizeof(dw));
    memset(db, 0, sizeof(db));
    memcpy(dx, dy, sizeof(dx));
    (void)block_forward(n, b, v, x, y);
    for (uint32_t r = 0; r < NET_ROWS; r++)
        for (uint32_t o = 0; o < W; o++) {
            const float d = y[r * W + o] > x[r * W + o] ? dy[r * W + o] * weight(n, 3 + 3 * b, v, o) : 0;

            db[o] += d;
            for (uint32_t i = 0; i < W; i++) {
                dw[o * W + i] += d * x[r * W + i];
                dx[r * W + i] += d * weight(n, 1 + 3 * b, v, o * W + i);
            }
        }
    memcpy(dy, dx, sizeof(dx));
    if ((st = report(n, 1 + 3 * b, v, dw, W * W)) == STRATA_OK)
        st = report(n, 2 + 3 * b, v, db, W);
    return st;
}

/* The loss of a row, its target's logit among all; dlogits. */
static double judge(float logits[NET_VOCAB], uint32_t target, float scale)
{
    double sum = 0, loss;

    for (uint32_t v = 0; v < NET_VOCAB; v++)
        sum += exp((double)logits[v]);
    loss = log(sum) - (double)logits[target];
    for (uint32_t v = 0; v < NET_VOCAB; v++)
        logits[v] = scale * ((float)(exp((double)logits[v]) / sum) - (v == target ? 1 : 0));
    return loss;
}

static uint32_t token(uint64_t micro, uint32_t row)
{
    return (uint32_t)((micro * 7 + row * 5 + micro * row) % NET_VOCAB);
}

/* --- steps --- */

static strata_status enter(struct net *n, enum strata_pass pass, uint32_t layer, struct strata_layer_view *v)
{
    static _Thread_local float kept[NET_LAYERS][NET_ROWS * W]; /* boundaries of layers that stay */
    strata_status st;

    if (n->opts.resident) {
        st = call((struct one){.n = n, .call = USE, .pass = pass, .layer = layer, .view = v});
        v->boundary = kept[layer];
        return st;
    }
    return call((struct one){.n = n, .call = ENTER, .pass = pass, .layer = layer, .view = v});
}

static strata_status leave(struct net *n)
{
    return n->opts.resident ? STRATA_OK : call((struct one){.n = n, .call = LEAVE});
}

static strata_status use(struct net *n, enum strata_pass pass, struct strata_layer_view *v)
{
    return call((struct one){.n = n, .call = USE, .pass = pass, .layer = 0, .view = v});
}

/* The head: of h [rows][W] with the gain, over the table's rows; dh takes h's place. */
static strata_status head(struct net *n, uint64_t micro, bool trains, float scale, float *h, double *loss)
{
    static _Thread_local float z[NET_ROWS * W], logits[NET_ROWS][NET_VOCAB], dgain[W], dtable[NET_VOCAB * W];
    struct strata_layer_view gain = STRATA_LAYER_VIEW_INIT, table = STRATA_LAYER_VIEW_INIT;
    strata_status st;

    if ((st = enter(n, STRATA_FORWARD, NET_LAYERS - 1, &gain)) != STRATA_OK || (st = use(n, STRATA_FORWARD, &table)) != STRATA_OK)
        return st;
    for (uint32_t r = 0; r < NET_ROWS; r++) {
        for (uint32_t i = 0; i < W; i++)
            z[r * W + i] = h[r * W + i] * weight(n, NET_TENSORS - 1, &gain, i);
        for (uint32_t v = 0; v < NET_VOCAB; v++) {
            logits[r][v] = 0;
            for (uint32_t i = 0; i < W; i++)
                logits[r][v] += z[r * W + i] * weight(n, 0, &table, v * W + i);
        }
        *loss += judge(logits[r], (token(micro, r) + 1) % NET_VOCAB, scale);
    }
    if (gain.boundary != NULL)
        memcpy(gain.boundary, h, sizeof(z));
    if ((st = leave(n)) != STRATA_OK || !trains)
        return st;
    if ((st = enter(n, STRATA_BACKWARD, NET_LAYERS - 1, &gain)) != STRATA_OK ||
        (st = use(n, STRATA_BACKWARD, &table)) != STRATA_OK)
        return st;
    memset(dgain, 0, sizeof(dgain));
    memset(dtable, 0, sizeof(dtable));
    for (uint32_t r = 0; r < NET_ROWS; r++)
        for (uint32_t i = 0; i < W; i++) {
            const float x = ((const float *)gain.boundary)[r * W + i];
            float dz = 0;

            for (uint32_t v = 0; v < NET_VOCAB; v++) {
                dz += logits[r][v] * weight(n, 0, &table, v * W + i);
                dtable[v * W + i] += logits[r][v] * z[r * W + i];
            }
            dgain[i] += dz * x;
            h[r * W + i] = dz * weight(n, NET_TENSORS - 1, &gain, i);
        }
    if ((st = report(n, NET_TENSORS - 1, &gain, dgain, W)) != STRATA_OK ||
        (st = report(n, 0, &table, dtable, NET_VOCAB * W)) != STRATA_OK)
        return st;
    return leave(n);
}

static strata_status one_micro(struct net *n, uint64_t micro, bool trains, float scale, double *loss)
{
    static _Thread_local float h[NET_ROWS * W], next[NET_ROWS * W], dtable[NET_VOCAB * W];
    struct strata_layer_view v = STRATA_LAYER_VIEW_INIT, table = STRATA_LAYER_VIEW_INIT;
    strata_status st = use(n, STRATA_FORWARD, &table);

    *loss = 0;
    for (uint32_t i = 0; i < NET_ROWS * W && st == STRATA_OK; i++)
        h[i] = weight(n, 0, &table, token(micro, i / W) * W + i % W);
    for (uint32_t b = 0; b < NET_BLOCKS && st == STRATA_OK; b++) {
        if ((st = enter(n, STRATA_FORWARD, 1 + b, &v)) != STRATA_OK)
            return st;
        (void)block_forward(n, b, &v, h, next);
        rest(n);
        if (v.boundary != NULL)
            memcpy(v.boundary, h, sizeof(h));
        memcpy(h, next, sizeof(h));
        st = leave(n);
    }
    if (st == STRATA_OK)
        st = head(n, micro, trains, scale, h, loss);
    for (uint32_t b = NET_BLOCKS; b-- > 0 && trains && st == STRATA_OK;) {
        if ((st = enter(n, STRATA_BACKWARD, 1 + b, &v)) != STRATA_OK || (st = block_backward(n, b, &v, h)) != STRATA_OK)
            return st;
        rest(n);
        st = leave(n);
    }
    if (st == STRATA_OK && trains && (st = use(n, STRATA_BACKWARD, &table)) == STRATA_OK) {
        memset(dtable, 0, sizeof(dtable));
        for (uint32_t i = 0; i < NET_ROWS * W; i++)
            dtable[token(micro, i / W) * W + i % W] += h[i];
        st = report(n, 0, &table, dtable, NET_VOCAB * W);
    }
    return st == STRATA_OK ? call((struct one){.n = n, .call = MICRO_END}) : st;
}

static uint32_t micros_of(const struct net *n)
{
    struct strata_model_info info = STRATA_MODEL_INFO_INIT;

    if (n->opts.micros != 0 || strata_model_get_info(n->model, &info) != STRATA_OK)
        return n->opts.micros;
    return info.grad_accum;
}

static strata_status run(struct net *n, uint64_t step, bool trains)
{
    struct strata_layers_step s = STRATA_LAYERS_STEP_INIT;
    struct strata_layers_end end = STRATA_LAYERS_END_INIT;
    const uint32_t micros = micros_of(n);
    double scale = 1;
    strata_status st;

    if (n->step != NULL)
        s = *n->step;
    s.evaluates = !trains;
    s.micros = n->opts.micros;
    s.divisor = (double)(NET_ROWS * micros * n->opts.ranks); /* only updates in backward look at it */
    st = call((struct one){.n = n, .call = BEGIN, .step = &s, .scale = &scale});
    for (uint32_t m = 0; m < micros && st == STRATA_OK; m++)
        st = one_micro(n, (step * n->opts.ranks + n->opts.rank) * micros + m, trains, (float)scale, &n->losses[m]);
    end.losses = n->losses;
    end.divisor = (double)(NET_ROWS * micros);
    end.lr = n->lr;
    end.beta1 = n->beta1;
    end.beta2 = n->beta2;
    return st == STRATA_OK ? call((struct one){.n = n, .call = END, .end = &end}) : st;
}

strata_status net_step(struct net *n, uint64_t step)
{
    return run(n, step, true);
}

strata_status net_eval(struct net *n, uint64_t step, double *loss)
{
    const strata_status st = run(n, step, false);

    *loss = 0;
    for (uint32_t m = 0; m < micros_of(n) && st == STRATA_OK; m++)
        *loss += n->losses[m];
    return st;
}
