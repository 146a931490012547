/* Experts: the choice against a naive one, its gradient and those of gates against central differences in fp64, products and sums
 * against fp64; slices of one expert against all at once, bit for bit.  Ties, an expert without rows, all rows to one. */
#include "tests/common/test.h"
#include "tests/offload/device_fixture.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- the choice --- */

/* One row of a route in fp64. */
struct row {
    const struct st_route *route;
    double *logits, *dweights; /* [experts], [k] */
    const int32_t *ids;        /* chosen */
    const int64_t *counts;     /* NULL: none */
    double aux;                /* the auxiliary loss times this */
};

/* The rows that have such counts. */
static double rows_counted(const struct st_route *route, const int64_t *counts)
{
    int64_t choices = 0;

    for (uint32_t e = 0; e < route->experts; e++)
        choices += counts[e];
    return (double)(choices / route->k);
}

static double prob_of(const struct row *row, uint32_t e)
{
    double top = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < row->route->experts; i++)
        top = fmax(top, row->logits[i]);
    for (uint32_t i = 0; i < row->route->experts; i++)
        sum += exp(row->logits[i] - top);
    return exp(row->logits[e] - top) / sum;
}

static double weight_of(const struct row *row, uint32_t j)
{
    double sum = 0;

    if (!row->route->divided && !row->route->after)
        return prob_of(row, (uint32_t)row->ids[j]);
    for (uint32_t i = 0; i < row->route->k; i++) /* both are softmax over the chosen */
        sum += exp(row->logits[row->ids[i]] - row->logits[row->ids[j]]);
    return 1 / sum;
}

static double row_loss(void *of)
{
    const struct row *row = of;
    double loss = 0;

    for (uint32_t j = 0; j < row->route->k; j++)
        loss += row->dweights[j] * weight_of(row, j);
    for (uint32_t e = 0; e < row->route->experts && row->counts != NULL; e++)
        loss += row->aux * row->route->experts * (double)row->counts[e] * prob_of(row, e) /
                pow(rows_counted(row->route, row->counts), 2);
    return loss;
}

/* Takes the largest logit k times, of equal ones the first. */
static void assert_chosen(const int32_t *ids, const double *logits, const struct st_route *route)
{
    bool *taken = calloc(route->experts, sizeof(*taken));

    for (uint32_t j = 0; j < route->k; j++) {
        uint32_t best = UINT32_MAX;

        for (uint32_t e = 0; e < route->experts; e++)
            if (!taken[e] && (best == UINT32_MAX || logits[e] > logits[best]))
                best = e;
        assert_int_equal(ids[j], best);
        taken[best] = true;
    }
    free(taken);
}

/* Every third row is padding. */
static int32_t *padded(struct df_device *d, uint32_t rows)
{
    int32_t *targets = df_alloc(d, rows, STRATA_F32);

    for (uint32_t r = 0; r < rows; r++)
        targets[r] = r % 3 == 1 ? STRATA_TARGET_PADDING : r % 3 == 2 ? -1 : 7;
    return targets;
}

static bool is_padding(const struct st_route *route, uint64_t row)
{
    return route->targets != NULL && row % 3 == 1;
}

/* Logits of seven values, so that most are equal to another. */
static void check_choice(struct df_device *d, const struct st_route *of, bool ties, bool aux)
{
    struct st_route with = *of;
    const struct st_route *route = &with;
    const uint64_t all = (uint64_t)route->rows * route->experts, chosen = (uint64_t)route->rows * route->k;
    void *logits = df_random(d, all, route->dt, 1, 4, 0), *dlogits = df_random(d, all, route->dt, 9, 1, 0);
    int32_t *ids = df_alloc(d, chosen, STRATA_F32);
    float *weights = df_alloc(d, chosen, STRATA_F32), *dweights = df_random(d, chosen, STRATA_F32, 2, 1, 0);
    float *probs = df_alloc(d, all, STRATA_F32);
    int64_t *counts = df_alloc(d, 2 * route->experts, STRATA_F32);
    double *x, *want_w = malloc(chosen * sizeof(double)), *want_p = malloc(all * sizeof(double)),
               *want_d = malloc(all * sizeof(double)), *dw = df_doubles(dweights, chosen, STRATA_F32);

    for (uint64_t i = 0; i < all && ties; i++)
        df_set(logits, i, route->dt, (double)(df_bits(3, i) % 7) / 2);
    for (uint32_t e = 0; e < route->experts; e++)
        counts[e] = (int64_t)(df_bits(4, e) % 50);
    counts[0] += route->k; /* of a row at least */
    with.targets = aux && route->experts % 2 == 1 ? padded(d, route->rows) : NULL;
    x = df_doubles(logits, all, route->dt);
    df_ok(d->tensors->route_choose(d->dev, route, ids, weights, probs, logits));
    df_ok(d->tensors->route_backward(d->dev, route, dlogits, dweights, probs, ids, weights, aux ? counts : NULL, 3.0f));
    for (uint64_t r = 0; r < route->rows; r++) {
        struct row row = {route, x + r * route->experts, dw + r * route->k, ids + r * route->k,
                          aux && !is_padding(route, r) ? counts : NULL, 3.0};

        assert_chosen(row.ids, row.logits, route);
        for (uint32_t j = 0; j < route->k; j++)
            want_w[r * route->k + j] = weight_of(&row, j);
        for (uint32_t e = 0; e < route->experts; e++) {
            want_p[r * route->experts + e] = prob_of(&row, e);
            want_d[r * route->experts + e] = df_slope(row_loss, &row, &row.logits[e]);
        }
    }
    df_assert_close("weights", weights, STRATA_F32, want_w, chosen, route->round ? df_tolerance(route->dt) : 1e-6);
    df_assert_close("probs", probs, STRATA_F32, want_p, all, 1e-6);
    df_assert_close("dlogits", dlogits, route->dt, want_d, all, df_tolerance(route->dt));
    for (uint64_t i = 0; i < chosen && route->round; i++) {
        void *rounded = df_alloc(d, 1, route->dt);

        df_set(rounded, 0, route->dt, (double)weights[i]);
        assert_true(df_at(rounded, 0, route->dt) == (double)weights[i]);
        d->used -= 64;
    }
    free(x), free(dw), free(want_w), free(want_p), free(want_d);
}

static void check_choices(struct df_device *d, strata_dtype dt)
{
    static const struct {
        uint32_t rows, experts, k;
    } shapes[] = {{1, 1, 1}, {7, 5, 5}, {1, 64, 8}, {40, 8, 2}, {9, 37, 4}, {3, 128, 8}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (uint32_t form = 0; form < 3; form++) {
            const struct st_route route = {.rows = shapes[i].rows,
                                           .experts = shapes[i].experts,
                                           .k = shapes[i].k,
                                           .divided = form == 1,
                                           .after = form == 2,
                                           .round = (i + form) % 2 == 0,
                                           .dt = dt};
            const uint64_t used = d->used;

            check_choice(d, &route, i % 2 == 1, (i + form) % 3 == 0);
            d->used = used;
        }
}

TEST(choices_match)
{
    df_each_dtype(check_choices);
}

/* --- the order --- */

enum kind { SPREAD, ONE_EMPTY, ALL_TO_ONE };

/* k different experts of each row: some at random; never expert 1; or, the others being shared by turns, always the last one. */
static void fill_ids(int32_t *ids, const struct st_route *route, enum kind kind)
{
    for (uint64_t r = 0; r < route->rows; r++)
        for (uint32_t j = 0; j < route->k; j++) {
            const uint32_t from = kind == ONE_EMPTY ? 2 : 0, room = route->experts - from;
            int32_t id = (int32_t)(from + (df_bits(5, r) + j) % room);

            if (kind == ALL_TO_ONE && j == 0)
                id = (int32_t)route->experts - 1;
            else if (kind == ALL_TO_ONE)
                id = (int32_t)((df_bits(5, r) + j) % (route->experts - 1));
            ids[r * route->k + j] = id;
        }
}

struct routing {
    struct st_route route;
    int32_t *ids, *order, *places, *offsets;
    float *weights;
};

static struct routing routing_create(struct df_device *d, uint32_t rows, uint32_t experts, uint32_t k, enum kind kind)
{
    const uint64_t chosen = (uint64_t)rows * k;
    struct routing g = {.route = {.rows = rows, .experts = experts, .k = k, .dt = STRATA_F32}};

    g.ids = df_alloc(d, chosen, STRATA_F32);
    g.order = df_alloc(d, chosen, STRATA_F32);
    g.places = df_alloc(d, chosen, STRATA_F32);
    g.offsets = df_alloc(d, experts + 1, STRATA_F32);
    g.weights = df_random(d, chosen, STRATA_F32, 8, 1, 0);
    fill_ids(g.ids, &g.route, kind);
    df_ok(d->tensors->route_sort(d->dev, &g.route, g.order, g.places, g.offsets, g.ids));
    return g;
}

/* What an auxiliary loss counts, and the loss: beside what counts and sums have already. */
static void check_totals(struct df_device *d, const struct routing *g, int32_t *targets)
{
    struct st_route route = g->route;
    const uint32_t rows = route.rows, experts = route.experts, k = route.k;
    float *probs = df_random(d, (uint64_t)rows * experts, STRATA_F32, 1, 0.5, 0.5);
    int64_t *counts = df_alloc(d, 2 * experts, STRATA_F32), choices = 0;
    double *sums = df_alloc(d, 2 * experts, STRATA_F32), *loss = df_alloc(d, 2, STRATA_F32), want_loss = 0;

    route.targets = targets;
    for (uint32_t e = 0; e < experts; e++) {
        counts[e] = 3 * k;
        sums[e] = 0.5;
    }
    df_ok(d->tensors->route_totals(d->dev, &route, counts, sums, g->ids, probs));
    for (uint32_t e = 0; e < experts; e++) {
        int64_t count = 3 * k;
        double sum = 0.5;

        for (uint64_t r = 0; r < rows; r++) {
            sum += is_padding(&route, r) ? 0 : (double)probs[r * experts + e];
            for (uint32_t j = 0; j < k; j++)
                count += !is_padding(&route, r) && g->ids[r * k + j] == (int32_t)e;
        }
        assert_int_equal(counts[e], count);
        assert_true(fabs(sums[e] - sum) <= 1e-12 * sum);
        choices += count;
        want_loss += (double)counts[e] * sums[e];
    }
    want_loss *= experts / pow((double)choices / k, 2);
    df_ok(d->tensors->route_loss(d->dev, &route, loss, counts, sums));
    assert_true(fabs(*loss - want_loss) <= 1e-12 * want_loss);
    memset(counts, 0, experts * sizeof(*counts));
    df_ok(d->tensors->route_loss(d->dev, &route, loss, counts, sums));
    assert_true(*loss == 0); /* of no rows */
}

static void check_sort(struct df_device *d, uint32_t rows, uint32_t experts, uint32_t k, enum kind kind)
{
    const struct routing g = routing_create(d, rows, experts, k, kind);
    int32_t at = 0;

    for (uint32_t e = 0; e < experts; e++) {
        assert_int_equal(g.offsets[e], at);
        for (uint32_t i = 0; i < rows * k; i++)
            if (g.ids[i] == (int32_t)e)
                assert_int_equal(g.order[at++], i);
    }
    assert_int_equal(g.offsets[experts], at);
    assert_int_equal(at, rows * k);
    for (uint32_t i = 0; i < rows * k; i++) {
        assert_int_equal(g.order[g.places[i]] / (int32_t)k, i / k);
        assert_true(i % k == 0 || g.places[i] > g.places[i - 1]);
    }
    check_totals(d, &g, NULL);
    check_totals(d, &g, padded(d, rows));
}

TEST(order_is_stable)
{
    struct df_device d;

    df_open(&d, &(struct df_opts){0});
    check_sort(&d, 1, 1, 1, SPREAD);
    check_sort(&d, 300, 8, 2, SPREAD);
    check_sort(&d, 300, 8, 2, ONE_EMPTY);
    check_sort(&d, 300, 8, 2, ALL_TO_ONE);
    check_sort(&d, 1, 64, 8, SPREAD);
    check_sort(&d, 50, 5, 5, SPREAD);
    check_sort(&d, 1100, 70, 4, SPREAD);
    df_close(&d);
}

/* --- rows there and back --- */

static struct st_experts slice_of(const struct st_route *route, uint32_t first, uint32_t count)
{
    return (struct st_experts){route->rows, route->experts, route->k, first, count};
}

/* All experts at once, then one after another: the same bits. */
static void check_rows(struct df_device *d, const struct routing *g, uint32_t cols, strata_dtype dt)
{
    const struct st_route *route = &g->route;
    const uint64_t rows = (uint64_t)route->rows * route->k;
    const size_t width = strata_dtype_bytes(dt);
    void *x = df_random(d, route->rows * cols, dt, 1, 1, 0), *dx = df_random(d, route->rows * cols, dt, 2, 1, 0);
    unsigned char *sorted = df_alloc(d, rows * cols, dt), *dy = df_alloc(d, rows * cols, dt);
    void *y = df_random(d, rows * cols, dt, 3, 1, 0);
    float *sum = df_random(d, route->rows * cols, STRATA_F32, 4, 1, 0), *dw = df_alloc(d, rows, STRATA_F32);
    float *plain = df_random(d, route->rows * cols, STRATA_F32, 4, 1, 0);
    float *cut = df_random(d, route->rows * cols, STRATA_F32, 4, 1, 0), *cut_dw = df_alloc(d, rows, STRATA_F32);
    double *want = df_doubles(sum, route->rows * cols, STRATA_F32), *want_plain = df_doubles(sum, route->rows * cols, STRATA_F32);
    double *want_dw = calloc(rows, sizeof(double));
    const struct st_experts all = slice_of(route, 0, route->experts);

    df_ok(d->tensors->experts_gather(d->dev, &all, sorted, x, g->order, g->offsets, cols, dt));
    df_ok(d->tensors->experts_add(d->dev, &all, sum, y, g->weights, g->order, g->places, g->offsets, cols, dt));
    df_ok(d->tensors->experts_add(d->dev, &all, plain, y, NULL, g->order, g->places, g->offsets, cols, dt));
    df_ok(d->tensors->experts_add_backward(d->dev, &all, dy, dw, dx, y, g->weights, g->order, g->offsets, cols, dt));
    for (uint64_t i = 0; i < rows; i++) {
        const uint64_t choice = (uint64_t)g->order[i], row = choice / route->k;

        assert_memory_equal(sorted + i * cols * width, (unsigned char *)x + row * cols * width, cols * width);
        for (uint64_t c = 0; c < cols; c++) {
            const double value = df_at(y, i * cols + c, dt), grad = df_at(dx, row * cols + c, dt);
            const double given = (double)g->weights[choice] * grad;

            want[row * cols + c] += (double)g->weights[choice] * value;
            want_plain[row * cols + c] += value;
            want_dw[choice] += value * grad;
            assert_true(fabs(df_at(dy, i * cols + c, dt) - given) <= df_tolerance(dt) * fabs(given) + 1e-7);
        }
    }
    df_assert_close("experts' sum", sum, STRATA_F32, want, route->rows * cols, 2e-6);
    df_assert_close("rows' sum", plain, STRATA_F32, want_plain, route->rows * cols, 2e-6);
    df_assert_close("dweights", dw, STRATA_F32, want_dw, rows, 2e-6);
    for (uint32_t e = 0; e < route->experts; e++) {
        const struct st_experts one = slice_of(route, e, 1);
        const uint64_t first = (uint64_t)g->offsets[e] * cols * width;
        const uint64_t bytes = (uint64_t)(g->offsets[e + 1] - g->offsets[e]) * cols * width;
        unsigned char *const at = df_random(d, route->rows * cols, dt, 6, 1, 0);
        unsigned char *const same = df_random(d, route->rows * cols, dt, 6, 1, 0);

        memcpy(at, (unsigned char *)y + first, bytes);
        df_ok(d->tensors->experts_add(d->dev, &one, cut, at, g->weights, g->order, g->places, g->offsets, cols, dt));
        df_ok(d->tensors->experts_add_backward(d->dev, &one, at, cut_dw, dx, at, g->weights, g->order, g->offsets, cols, dt));
        memcpy(same, dy + first, bytes);
        assert_memory_equal(at, same, route->rows * cols * width); /* nothing behind the expert's rows */
        df_ok(d->tensors->experts_gather(d->dev, &one, at, x, g->order, g->offsets, cols, dt));
        memcpy(same, sorted + first, bytes);
        assert_memory_equal(at, same, route->rows * cols * width);
    }
    assert_memory_equal(cut, sum, route->rows * cols * sizeof(float));
    assert_memory_equal(cut_dw, dw, rows * sizeof(float));
    free(want), free(want_plain), free(want_dw);
}

static void check_all_rows(struct df_device *d, strata_dtype dt)
{
    static const struct {
        uint32_t rows, experts, k, cols;
        enum kind kind;
    } shapes[] = {{1, 1, 1, 5, SPREAD}, {20, 6, 2, 67, ONE_EMPTY}, {20, 6, 2, 24, ALL_TO_ONE}, {9, 4, 4, 130, SPREAD}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const uint64_t used = d->used;
        const struct routing g = routing_create(d, shapes[i].rows, shapes[i].experts, shapes[i].k, shapes[i].kind);

        check_rows(d, &g, shapes[i].cols, dt);
        d->used = used;
    }
}

TEST(rows_match)
{
    df_each_dtype(check_all_rows);
}

/* --- products --- */

/* Of an expert's rows: y = x op(W) + bias, and W's gradient. */
static void check_products(struct df_device *d, const struct routing *g, uint32_t n, uint32_t k, bool trans, bool accumulate,
                           strata_dtype dt)
{
    const struct st_route *route = &g->route;
    const uint64_t rows = (uint64_t)route->rows * route->k, matrix = (uint64_t)n * k, stride = matrix + 7, bias_stride = n + 3;
    const uint32_t ldc = n + 5;
    void *x = df_random(d, rows * k, dt, 1, 1, 0), *w = df_random(d, route->experts * stride, dt, 2, 1, 0);
    void *bias = df_random(d, route->experts * bias_stride, dt, 3, 1, 0), *y = df_alloc(d, rows * ldc, dt);
    unsigned char *cut = df_alloc(d, rows * ldc, dt);
    float *dw = df_random(d, route->experts * stride, STRATA_F32, 4, 1, 0),
          *cut_dw = df_random(d, route->experts * stride, STRATA_F32, 4, 1, 0);
    float *db = df_random(d, route->experts * bias_stride, STRATA_F32, 5, 1, 0);
    struct st_expert_matmul mm = {.of = slice_of(route, 0, route->experts),
                                  .n = n,
                                  .k = k,
                                  .lda = k,
                                  .ldb = trans ? k : n,
                                  .ldc = ldc,
                                  .trans_b = trans,
                                  .bias = true,
                                  .stride = stride,
                                  .bias_stride = bias_stride,
                                  .ab_dtype = dt,
                                  .c_dtype = dt};
    struct st_expert_matmul back = {.of = mm.of,
                                    .m = k,
                                    .n = n,
                                    .lda = k,
                                    .ldb = n,
                                    .ldc = n,
                                    .accumulate = accumulate,
                                    .stride = stride,
                                    .ab_dtype = dt,
                                    .c_dtype = STRATA_F32};
    void *dy = df_random(d, rows * n, dt, 6, 1, 0);
    double *want = calloc(rows * ldc, sizeof(double)), *want_dw = df_doubles(dw, route->experts * stride, STRATA_F32);
    double *want_db = df_doubles(db, route->experts * bias_stride, STRATA_F32);

    for (uint32_t e = 0; e < route->experts; e++) {
        for (uint64_t i = 0; i < matrix && !accumulate; i++)
            want_dw[e * stride + i] = 0;
        for (uint64_t r = (uint64_t)g->offsets[e]; r < (uint64_t)g->offsets[e + 1]; r++)
            for (uint64_t c = 0; c < n; c++) {
                const double given = df_at(dy, r * n + c, dt);
                double sum = df_at(bias, e * bias_stride + c, dt);

                for (uint64_t i = 0; i < k; i++) {
                    const double at = df_at(x, r * k + i, dt);

                    sum += at * df_at(w, e * stride + (trans ? c * k + i : i * n + c), dt);
                    want_dw[e * stride + i * n + c] += at * given;
                }
                want[r * ldc + c] = sum;
                want_db[e * bias_stride + c] += given;
            }
    }
    df_ok(d->tensors->experts_matmul(d->dev, &mm, y, x, w, bias, g->offsets));
    df_ok(d->tensors->experts_matmul(d->dev, &back, dw, x, dy, NULL, g->offsets));
    df_ok(d->tensors->experts_bias_backward(d->dev, &mm.of, db, bias_stride, dy, g->offsets, n, dt));
    df_assert_close("experts' y", y, dt, want, rows * ldc, df_tolerance(dt));
    df_assert_close("experts' dW", dw, STRATA_F32, want_dw, route->experts * stride, 1e-5);
    df_assert_close("experts' dbias", db, STRATA_F32, want_db, route->experts * bias_stride, 1e-5);
    for (uint32_t e = 0; e < route->experts; e++) {
        const uint64_t first = (uint64_t)g->offsets[e];

        mm.of = back.of = slice_of(route, e, 1);
        df_ok(d->tensors->experts_matmul(d->dev, &mm, cut + first * ldc * strata_dtype_bytes(dt),
                                         (char *)x + first * k * strata_dtype_bytes(dt),
                                         (char *)w + e * stride * strata_dtype_bytes(dt),
                                         (char *)bias + e * bias_stride * strata_dtype_bytes(dt), g->offsets));
        df_ok(d->tensors->experts_matmul(d->dev, &back, cut_dw + e * stride, (char *)x + first * k * strata_dtype_bytes(dt),
                                         (char *)dy + first * n * strata_dtype_bytes(dt), NULL, g->offsets));
    }
    assert_memory_equal(cut, y, rows * ldc * strata_dtype_bytes(dt));
    assert_memory_equal(cut_dw, dw, route->experts * stride * sizeof(float));
    free(want), free(want_dw), free(want_db);
}

static void check_all_products(struct df_device *d, strata_dtype dt)
{
    static const struct {
        uint32_t rows, experts, k, n, depth;
        enum kind kind;
    } shapes[] = {{1, 1, 1, 3, 5, SPREAD},
                  {300, 3, 1, 40, 24, ALL_TO_ONE},
                  {75, 5, 2, 32, 20, ONE_EMPTY},
                  {7, 4, 2, 530, 9, SPREAD},
                  {40, 3, 1, 10, 270, SPREAD}};

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        for (uint32_t form = 0; form < 2; form++) {
            const uint64_t used = d->used;
            const struct routing g = routing_create(d, shapes[i].rows, shapes[i].experts, shapes[i].k, shapes[i].kind);

            check_products(d, &g, shapes[i].n, shapes[i].depth, form == 0, (i + form) % 2 == 0, dt);
            d->used = used;
        }
}

TEST(products_match)
{
    df_each_dtype(check_all_products);
}

/* Two products into one fp32 sum. */
TEST(products_are_added)
{
    struct df_device d;

    df_open(&d, &(struct df_opts){0});
    {
        const struct routing g = routing_create(&d, 30, 4, 2, SPREAD);
        float *x = df_random(&d, 60 * 8, STRATA_F32, 1, 1, 0), *w = df_random(&d, 4 * 64, STRATA_F32, 2, 1, 0);
        float *y = df_alloc(&d, 60 * 8, STRATA_F32), *twice = df_alloc(&d, 60 * 8, STRATA_F32);
        struct st_expert_matmul mm = {.of = slice_of(&g.route, 0, 4),
                                      .n = 8,
                                      .k = 8,
                                      .lda = 8,
                                      .ldb = 8,
                                      .ldc = 8,
                                      .stride = 64,
                                      .ab_dtype = STRATA_F32,
                                      .c_dtype = STRATA_F32};
        double want[60 * 8];

        df_ok(d.tensors->experts_matmul(d.dev, &mm, y, x, w, NULL, g.offsets));
        df_ok(d.tensors->experts_matmul(d.dev, &mm, twice, x, w, NULL, g.offsets));
        mm.accumulate = true;
        df_ok(d.tensors->experts_matmul(d.dev, &mm, twice, x, w, NULL, g.offsets));
        for (uint32_t i = 0; i < 60 * 8; i++)
            want[i] = 2 * (double)y[i];
        df_assert_close("sum of two", twice, STRATA_F32, want, 60 * 8, 1e-6);
    }
    df_close(&d);
}

/* --- gates --- */

struct gated {
    const struct st_gate *gate;
    double g, u;
};

static double gated_value(void *of)
{
    const struct gated *x = of;
    const double limit = (double)x->gate->limit, g = fmin(x->g, limit), u = fmax(-limit, fmin(x->u, limit));

    if (x->gate->limit != 0.0f)
        return g / (1 + exp(-(double)x->gate->alpha * g)) * (u + 1);
    return x->g / (1 + exp(-x->g)) * x->u;
}

/* The slice's rows alone; gradients lie where the operands were. */
static void check_gate(struct df_device *d, const struct st_gate *gate, uint32_t ffn, strata_dtype dt)
{
    const struct routing g = routing_create(d, 20, 6, 2, ONE_EMPTY);
    const struct st_experts of = slice_of(&g.route, 1, 3);
    const uint64_t most = 20 * 2 * (uint64_t)ffn, rows = (uint64_t)(g.offsets[4] - g.offsets[1]);
    void *in = df_random(d, 2 * most, dt, 1, 3, 0), *y = df_random(d, most, dt, 2, 1, 0), *dy = df_random(d, most, dt, 3, 1, 0);
    double *x = df_doubles(in, 2 * most, dt), *given = df_doubles(dy, most, dt);
    double *want = df_doubles(in, 2 * most, dt), *want_y = df_doubles(y, most, dt), *after_y = df_doubles(dy, most, dt);

    assert_true(rows > 0 && rows < 40);
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < ffn; c++) {
            const bool alternate = gate->limit != 0.0f;
            const uint64_t g_at = 2 * r * ffn + (alternate ? 2 * c : c), u_at = g_at + (alternate ? 1 : ffn);
            struct gated at = {gate, x[g_at], x[u_at]};

            want_y[r * ffn + c] = after_y[r * ffn + c] = gated_value(&at);
            want[g_at] = given[r * ffn + c] * df_slope(gated_value, &at, &at.g);
            want[u_at] = given[r * ffn + c] * df_slope(gated_value, &at, &at.u);
        }
    df_ok(d->tensors->experts_gated_forward(d->dev, &of, gate, y, in, g.offsets, ffn, dt));
    df_ok(d->tensors->experts_gated_backward(d->dev, &of, gate, in, dy, dy, in, g.offsets, ffn, dt));
    df_assert_close("gated y", y, dt, want_y, most, df_tolerance(dt));
    df_assert_close("gated gradients", in, dt, want, 2 * most, df_tolerance(dt));
    df_assert_close("gated y again", dy, dt, after_y, most, df_tolerance(dt));
    free(x), free(given), free(want), free(want_y), free(after_y);
}

static void check_gates(struct df_device *d, strata_dtype dt)
{
    static const struct st_gate silu = {.activation = ST_SILU},
                                clamped = {.alpha = 1.702f, .limit = 1.93f}; /* no value of 16 bits */

    check_gate(d, &silu, 37, dt);
    check_gate(d, &clamped, 70, dt);
    check_gate(d, &clamped, 37, dt);
    check_gate(d, &clamped, 64, dt);
}

TEST(gates_match)
{
    df_each_dtype(check_gates);
}

/* The slice's rows alone. */
static void check_cast(struct df_device *d, strata_dtype dt)
{
    enum { COLS = 37, MOST = 20 * 2 * COLS };
    const struct routing g = routing_create(d, 20, 6, 2, ONE_EMPTY);
    struct st_expert_cast cast = {.of = slice_of(&g.route, 1, 3), .cols = COLS, .to = STRATA_F32, .from = dt, .factor = 1.0f};
    const uint64_t elems = (uint64_t)(g.offsets[4] - g.offsets[1]) * COLS;
    void *in = df_random(d, MOST, dt, 1, 3, 0), *out = df_random(d, MOST, dt, 2, 1, 0);
    float *wide = df_random(d, MOST, STRATA_F32, 3, 1, 0);
    double *x = df_doubles(in, MOST, dt), *want = df_doubles(wide, MOST, STRATA_F32), *want_out = df_doubles(out, MOST, dt);

    for (uint64_t i = 0; i < elems; i++)
        want[i] = want_out[i] = x[i];
    df_ok(d->tensors->experts_cast(d->dev, &cast, wide, in, g.offsets));
    df_assert_close("widened", wide, STRATA_F32, want, MOST, 0);
    cast.to = dt;
    cast.from = STRATA_F32;
    df_ok(d->tensors->experts_cast(d->dev, &cast, out, wide, g.offsets));
    df_assert_close("rounded", out, dt, want_out, MOST, 0);
    cast.to = STRATA_F32;
    cast.factor = 0.5f;
    for (uint64_t i = 0; i < elems; i++)
        want[i] = x[i] / 2;
    df_ok(d->tensors->experts_cast(d->dev, &cast, wide, wide, g.offsets));
    df_assert_close("scaled", wide, STRATA_F32, want, MOST, 0);
    free(x), free(want), free(want_out);
}

TEST(casts_match)
{
    df_each_dtype(check_cast);
}

/* --- a shared expert, and clipping --- */

static void check_shared(struct df_device *d, strata_dtype dt)
{
    enum { ROWS = 7, COLS = 67 };
    void *y = df_random(d, ROWS * COLS, dt, 1, 1, 0), *up = df_random(d, ROWS * COLS, dt, 2, 1, 0);
    void *logits = df_random(d, ROWS, dt, 3, 3, 0), *dlogits = df_alloc(d, ROWS, dt),
         *plain = df_random(d, ROWS * COLS, dt, 1, 1, 0);
    float *sum = df_random(d, ROWS * COLS, STRATA_F32, 4, 1, 0), *whole = df_random(d, ROWS * COLS, STRATA_F32, 4, 1, 0);
    double want[ROWS * COLS], want_d[ROWS * COLS], want_logits[ROWS] = {0};
    double *ungated = df_doubles(y, ROWS * COLS, dt), *want_plain = df_doubles(up, ROWS * COLS, dt);

    for (uint32_t i = 0; i < ROWS * COLS; i++) {
        const double s = 1 / (1 + exp(-df_at(logits, i / COLS, dt)));

        want[i] = s * df_at(y, i, dt);
        want_d[i] = s * df_at(up, i, dt);
        want_logits[i / COLS] += s * (1 - s) * df_at(up, i, dt) * df_at(y, i, dt);
    }
    df_ok(d->tensors->shared_forward(d->dev, sum, y, logits, ROWS, COLS, dt));
    df_ok(d->tensors->shared_forward(d->dev, whole, y, NULL, ROWS, COLS, dt));
    df_ok(d->tensors->shared_backward(d->dev, y, dlogits, up, y, logits, ROWS, COLS, dt));
    df_ok(d->tensors->shared_backward(d->dev, plain, NULL, up, plain, NULL, ROWS, COLS, dt));
    df_assert_close("shared", sum, STRATA_F32, want, ROWS * COLS, 1e-6);
    df_assert_close("shared, ungated", whole, STRATA_F32, ungated, ROWS * COLS, 0);
    df_assert_close("shared dy", y, dt, want_d, ROWS * COLS, df_tolerance(dt));
    df_assert_close("shared dy, ungated", plain, dt, want_plain, ROWS * COLS, 0);
    df_assert_close("shared dlogits", dlogits, dt, want_logits, ROWS, df_tolerance(dt));
    free(ungated), free(want_plain);
}

TEST(shared_matches)
{
    df_each_dtype(check_shared);
}

static void check_clip(struct df_device *d, strata_dtype dt)
{
    enum { ROWS = 5, COLS = 19, STRIDE = 23 };
    void *x = df_random(d, ROWS * STRIDE, dt, 1, 2, 0), *dx = df_random(d, ROWS * STRIDE, dt, 2, 1, 0);
    double *want = df_doubles(x, ROWS * STRIDE, dt), *want_d = df_doubles(dx, ROWS * STRIDE, dt);

    for (uint32_t i = 0; i < ROWS * STRIDE; i++)
        if (i % STRIDE < COLS && fabs(want[i]) > (double)1.1f) {
            want[i] = want[i] > 0 ? (double)1.1f : -(double)1.1f;
            want_d[i] = 0;
        }
    df_ok(d->tensors->clip(d->dev, x, 1.1f, ROWS, COLS, STRIDE, dt));
    df_ok(d->tensors->clip_backward(d->dev, dx, x, 1.1f, ROWS, COLS, STRIDE, dt));
    df_assert_close("clipped", x, dt, want, ROWS * STRIDE, dt == STRATA_F32 ? 0 : df_tolerance(dt));
    df_assert_close("gradient of what is not", dx, dt, want_d, ROWS * STRIDE, 0);
    free(want), free(want_d);
}

TEST(clip_matches)
{
    df_each_dtype(check_clip);
}
