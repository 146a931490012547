/* layers.c - train a net that this program computes, with its weights and its optimizer's state on a drive.
 *
 *     cc layers.c $(pkg-config --cflags --libs strata) -lm -o layers
 *     ./layers /mnt/nvme 200 saves            trains 200 steps, evaluates, saves to the directory saves
 *     ./layers /mnt/nvme 400 saves            goes on from there to step 400
 *     ./layers /mnt/nvme 400 saves optimizer.params.lr=1e-3
 *
 * Three layers of 64, 128, 64 and 10 units tell digits apart, which the program draws itself: 8 x 8 pixels, moved and noisy.  A
 * layer's backward finds its input at the boundary, where forward has left it, computes again what it needs, and adds the
 * gradients of its tensors in place. */
#include <strata/strata.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS    32 /* images of a micro-batch */
#define MICROS  2
#define LAYERS  3
#define WIDEST  128
#define DIGITS  10
#define HELDOUT 20 /* micro-batches */

static const int width[LAYERS + 1] = {64, WIDEST, 64, DIGITS};
static const char *const names[LAYERS][3] = {
    {"in", "in.weight", "in.bias"}, {"middle", "middle.weight", "middle.bias"}, {"out", "out.weight", "out.bias"}};

/* --- digits --- */

/* A row of 5 pixels a number, from the left. */
static const unsigned char font[DIGITS][7] = {
    {14, 17, 19, 21, 25, 17, 14}, {4, 12, 4, 4, 4, 4, 14},    {14, 17, 1, 2, 4, 8, 31},   {31, 2, 4, 2, 1, 17, 14},
    {2, 6, 10, 18, 31, 2, 2},     {31, 16, 30, 1, 1, 17, 14}, {6, 8, 16, 30, 17, 17, 14}, {31, 1, 2, 4, 8, 8, 8},
    {14, 17, 17, 14, 17, 17, 14}, {14, 17, 17, 15, 1, 2, 12},
};

/* A number of 0..1 that depends only on `seed`. */
static float noise(uint64_t seed)
{
    seed = (seed ^ seed >> 31) * UINT64_C(0x9e3779b97f4a7c15);
    seed = (seed ^ seed >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    return (float)((seed ^ seed >> 32) >> 40 & 0xffffff) * 0x1p-24f;
}

/* Micro-batch number `batch`: images [ROWS][64] and which digits they are. */
static void draw(uint64_t batch, float *images, int *digits)
{
    for (uint64_t row = 0; row < ROWS; row++) {
        const uint64_t seed = (batch * ROWS + row) * 1000003;
        const int left = (int)(noise(seed + 1) * 4), top = (int)(noise(seed + 2) * 2);

        digits[row] = (int)(noise(seed) * DIGITS);
        for (int i = 0; i < 64; i++) {
            const int y = i / 8 - top, x = i % 8 - left;
            const int ink = y >= 0 && y < 7 && x >= 0 && x < 5 ? font[digits[row]][y] >> (4 - x) & 1 : 0;

            images[row * 64 + (uint64_t)i] = (float)ink + noise(seed + 10 + (uint64_t)i) - 0.5f;
        }
    }
}

/* --- the net --- */

/* A layer's weight [out][in] and bias [out], and their gradients. */
struct layer {
    int in, out, last;
    const float *weight, *bias;
    float *weight_grad, *bias_grad;
};

/* y [ROWS][out] = x weight + bias, and what is below 0 becomes 0 but in the last layer. */
static void forward(const struct layer *l, const float *x, float *y)
{
    for (int row = 0; row < ROWS; row++)
        for (int o = 0; o < l->out; o++) {
            float sum = l->bias[o];

            for (int i = 0; i < l->in; i++)
                sum += x[row * l->in + i] * l->weight[o * l->in + i];
            y[row * l->out + o] = sum > 0 || l->last ? sum : 0;
        }
}

/* dx [ROWS][in] from dy [ROWS][out]; y is made again for it. */
static void backward(const struct layer *l, const float *x, const float *dy, float *dx)
{
    static float y[ROWS * WIDEST];

    forward(l, x, y);
    memset(dx, 0, (size_t)ROWS * (size_t)l->in * sizeof(*dx));
    for (int row = 0; row < ROWS; row++)
        for (int o = 0; o < l->out; o++) {
            const float d = y[row * l->out + o] > 0 || l->last ? dy[row * l->out + o] : 0;

            l->bias_grad[o] += d;
            for (int i = 0; i < l->in; i++) {
                l->weight_grad[o * l->in + i] += d * x[row * l->in + i];
                dx[row * l->in + i] += d * l->weight[o * l->in + i];
            }
        }
}

/* The loss of all rows and its gradient times `scale`; returns the loss, counts what is right. */
static double judge(const float *y, const int *digits, double scale, float *dy, int *right)
{
    double loss = 0;

    for (int row = 0; row < ROWS; row++) {
        const float *logits = y + row * DIGITS;
        float most = logits[0];
        double sum = 0;
        int best = 0;

        for (int d = 1; d < DIGITS; d++)
            if (logits[d] > most) {
                most = logits[d];
                best = d;
            }
        for (int d = 0; d < DIGITS; d++)
            sum += exp((double)(logits[d] - most));
        for (int d = 0; d < DIGITS; d++)
            dy[row * DIGITS + d] = (float)(scale * (exp((double)(logits[d] - most)) / sum - (d == digits[row])));
        loss += log(sum) - (double)(logits[digits[row]] - most);
        *right += best == digits[row];
    }
    return loss;
}

/* --- with strata --- */

struct run {
    struct strata_config *config;
    struct strata_model *model;
    struct strata_plan *plan;
    struct strata_engine *engine;
    struct strata_tensor_info tensor[LAYERS][2]; /* weight and bias: where they are in their layer's page */
};

/* Weights begin as noise, biases as 0. */
static strata_status first_values(void *ctx, uint32_t tensor, uint64_t first, uint64_t elems, float *values)
{
    const float range = sqrtf(6.0f / (float)width[tensor / 2]);

    (void)ctx;
    for (uint64_t i = 0; i < elems; i++)
        values[i] = tensor % 2 != 0 ? 0 : (2 * noise((first + i) * 16 + tensor) - 1) * range;
    return STRATA_OK;
}

static strata_status open_model(struct run *r, const char *drive, const char *saves, char **words, uint32_t count)
{
    static const char text[] =
        "{\"train_micro_batch_size_per_gpu\": 32, \"gradient_accumulation_steps\": 2,"
        " \"gradient_clipping\": 1.0, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-3, \"weight_decay\": 0.01}},"
        " \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\"},"
        "  \"offload_param\": {\"device\": \"nvme\"}}, \"strata\": {\"cache\": 0}}";
    struct strata_config_opts config = STRATA_CONFIG_OPTS_INIT;
    struct strata_layers_opts opts = STRATA_LAYERS_OPTS_INIT;
    struct strata_layer_tensor tensors[LAYERS][2] = {{{0}}};
    struct strata_layer layers[LAYERS] = {{0}};
    char nvme[1100], save[1100];
    const char *overrides[64] = {nvme, save};
    strata_status st;

    snprintf(nvme, sizeof(nvme), "strata.nvme=[\"%s\"]", drive);
    snprintf(save, sizeof(save), "strata.save=%s", saves);
    for (uint32_t i = 0; i < count && i < 62; i++)
        overrides[2 + i] = words[i];
    config.text = text;
    config.overrides = overrides;
    config.override_count = 2 + (count < 62 ? count : 62);
    for (int l = 0; l < LAYERS; l++) {
        const uint64_t in = (uint64_t)width[l], out = (uint64_t)width[l + 1];

        tensors[l][0] = (struct strata_layer_tensor){.name = names[l][1], .rank = 2, .shape = {out, in}};
        tensors[l][1] = (struct strata_layer_tensor){.name = names[l][2], .rank = 1, .shape = {out}};
        layers[l] = (struct strata_layer){.name = names[l][0],
                                          .tensors = tensors[l],
                                          .tensor_count = 2,
                                          .boundary_bytes = ROWS * in * sizeof(float),
                                          .forward_flops = 2.0 * ROWS * (double)(in * out),
                                          .backward_flops = 6.0 * ROWS * (double)(in * out)};
    }
    opts.name = "digits";
    opts.layers = layers;
    opts.layer_count = LAYERS;
    opts.caller_threads = 1;
    if ((st = strata_config_open(&r->config, &config)) != STRATA_OK)
        return st;
    return strata_layers_open(&r->model, r->config, &opts);
}

/* What was saved, or the first values. */
static strata_status start(struct run *r, const char *saves)
{
    struct strata_load_opts load = STRATA_LOAD_OPTS_INIT;
    struct strata_checkpoint *saved = NULL;
    strata_status st;

    if ((st = strata_plan_make(&r->plan, r->model, NULL)) != STRATA_OK ||
        (st = strata_engine_create(&r->engine, r->plan, NULL)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < 2 * LAYERS; i++) {
        r->tensor[i / 2][i % 2] = (struct strata_tensor_info)STRATA_TENSOR_INFO_INIT;
        if ((st = strata_engine_get_tensor(r->engine, i, &r->tensor[i / 2][i % 2])) != STRATA_OK)
            return st;
    }
    load.fill = first_values;
    st = strata_checkpoint_open(&saved, saves);
    if (st == STRATA_E_INPUT) /* there is none; one that is damaged ends the program */
        return strata_engine_load_layers(r->engine, &load);
    if (st == STRATA_OK)
        st = strata_engine_resume(r->engine, saved, NULL);
    strata_checkpoint_close(saved);
    return st;
}

/* A layer's pointers in the view that strata gives. */
static struct layer look(const struct run *r, int l, const struct strata_layer_view *view)
{
    const struct strata_tensor_info *weight = &r->tensor[l][0], *bias = &r->tensor[l][1];
    const char *page = view->weights;
    struct layer layer = {.in = width[l], .out = width[l + 1], .last = l + 1 == LAYERS};

    layer.weight = (const float *)(const void *)(page + weight->weight_at);
    layer.bias = (const float *)(const void *)(page + bias->weight_at);
    layer.weight_grad = view->sum != NULL ? view->sum + weight->sum_at : NULL;
    layer.bias_grad = view->sum != NULL ? view->sum + bias->sum_at : NULL;
    return layer;
}

/* One micro-batch, forward and, where a step trains, backward. */
static strata_status one_batch(struct run *r, uint64_t batch, bool trains, double scale, double *loss, int *right)
{
    static float x[LAYERS + 1][ROWS * WIDEST], dy[2][ROWS * WIDEST];
    struct strata_layer_view view = STRATA_LAYER_VIEW_INIT;
    int digits[ROWS];
    strata_status st;

    draw(batch, x[0], digits);
    for (uint32_t l = 0; l < LAYERS; l++) {
        if ((st = strata_engine_enter(r->engine, STRATA_FORWARD, l, &view)) != STRATA_OK)
            return st;
        const struct layer layer = look(r, (int)l, &view);

        forward(&layer, x[l], x[l + 1]);
        if (view.boundary != NULL)
            memcpy(view.boundary, x[l], view.boundary_bytes);
        if ((st = strata_engine_leave(r->engine)) != STRATA_OK)
            return st;
    }
    *loss = judge(x[LAYERS], digits, scale, dy[LAYERS % 2], right);
    for (uint32_t l = LAYERS; trains && l-- > 0;) {
        if ((st = strata_engine_enter(r->engine, STRATA_BACKWARD, l, &view)) != STRATA_OK)
            return st;
        const struct layer layer = look(r, (int)l, &view);

        backward(&layer, view.boundary, dy[(l + 1) % 2], dy[l % 2]);
        if ((st = strata_engine_leave(r->engine)) != STRATA_OK)
            return st;
    }
    return strata_engine_micro_end(r->engine);
}

/* Up to this many steps; *made: out, whether there were any. */
static strata_status train(struct run *r, uint64_t steps, int *made)
{
    struct strata_engine_info info = STRATA_ENGINE_INFO_INIT;
    strata_status st = strata_engine_get_info(r->engine, &info);

    *made = info.steps < steps;
    if (st == STRATA_OK && !*made)
        printf("the run has made %llu steps already: give more to go on\n", (unsigned long long)info.steps);
    for (uint64_t step = info.steps; step < steps && st == STRATA_OK; step++) {
        struct strata_layers_end end = STRATA_LAYERS_END_INIT;
        struct strata_step result = STRATA_STEP_INIT;
        double scale, losses[MICROS];
        int right = 0;

        st = strata_engine_begin(r->engine, NULL, &scale);
        for (uint64_t m = 0; m < MICROS && st == STRATA_OK; m++)
            st = one_batch(r, HELDOUT + step * MICROS + m, true, scale, &losses[m], &right);
        end.losses = losses;
        end.divisor = ROWS * MICROS; /* the gradient of the mean */
        if (st == STRATA_OK)
            st = strata_engine_end(r->engine, &end, &result);
        if (st == STRATA_OK && (step % 50 == 0 || step + 1 == steps))
            printf("step %llu: loss %.4f, gradient norm %.3f, %d of %d right, %.0f KB read\n", (unsigned long long)step + 1,
                   result.loss, result.grad_norm, right, ROWS * MICROS, (double)result.read_bytes * 1e-3);
    }
    return st;
}

/* Images that no step has seen. */
static strata_status evaluate(struct run *r)
{
    struct strata_layers_step step = STRATA_LAYERS_STEP_INIT;
    double loss = 0, sum = 0;
    int right = 0;
    strata_status st = STRATA_OK;

    step.evaluates = true;
    step.micros = 1;
    for (uint64_t batch = 0; batch < HELDOUT && st == STRATA_OK; batch++) {
        if ((st = strata_engine_begin(r->engine, &step, NULL)) == STRATA_OK &&
            (st = one_batch(r, batch, false, 1, &loss, &right)) == STRATA_OK)
            st = strata_engine_end(r->engine, NULL, NULL);
        sum += loss;
    }
    if (st == STRATA_OK)
        printf("held out: loss %.4f, %d of %d right\n", sum / (HELDOUT * ROWS), right, HELDOUT * ROWS);
    return st;
}

static strata_status save(struct run *r)
{
    struct strata_saved saved = STRATA_SAVED_INIT;
    char weights[33], state[33];
    strata_status st = strata_engine_digest(r->engine, weights, state);

    if (st == STRATA_OK)
        printf("weights %s, state %s\n", weights, state);
    if (st != STRATA_OK || (st = strata_engine_save(r->engine, NULL)) != STRATA_OK ||
        (st = strata_engine_saved(r->engine, true, &saved)) != STRATA_OK)
        return st;
    printf("saved as %s\n", saved.path);
    return STRATA_OK;
}

int main(int argc, char **argv)
{
    struct run r = {0};
    int made = 0;
    strata_status st;

    if (argc < 4) {
        fprintf(stderr, "usage: layers DRIVE STEPS SAVES [KEY=VALUE...]\n");
        return 2;
    }
    st = open_model(&r, argv[1], argv[3], argv + 4, (uint32_t)argc - 4);
    if (st == STRATA_OK)
        st = start(&r, argv[3]);
    if (st == STRATA_OK)
        st = train(&r, strtoull(argv[2], NULL, 10), &made);
    if (st == STRATA_OK)
        st = evaluate(&r);
    if (st == STRATA_OK && made)
        st = save(&r);
    if (st != STRATA_OK)
        fprintf(stderr, "layers: %s: %s\n", strata_status_text(st), strata_last_error());
    strata_engine_destroy(r.engine);
    strata_plan_destroy(r.plan);
    strata_model_close(r.model);
    strata_config_close(r.config);
    return strata_status_exit_code(st);
}
