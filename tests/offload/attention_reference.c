/* tests/offload/attention_reference.c - see attention_reference.h. */
#include "tests/offload/attention_reference.h"
#include "tests/common/test.h"
#include "tests/offload/device_values.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t ar_key_column(const struct st_attention *at)
{
    return (uint64_t)at->heads * at->head_dim;
}

uint64_t ar_value_column(const struct st_attention *at)
{
    return ar_key_column(at) + (uint64_t)at->kv_heads * at->head_dim;
}

uint64_t ar_end_column(const struct st_attention *at)
{
    return ar_value_column(at) + (uint64_t)at->kv_heads * at->head_dim;
}

/* Where in qkv and dqkv lie a head's query, and the key and value that it attends to. */
static uint64_t query_at(const struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    return (b * r->at.seq + t) * r->at.qkv_stride + h * r->at.head_dim;
}

static uint64_t key_at(const struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    return query_at(r, b, r->at.heads + h / (r->at.heads / r->at.kv_heads), t);
}

static uint64_t value_at(const struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    return key_at(r, b, h, t) + (uint64_t)r->at.kv_heads * r->at.head_dim;
}

static uint64_t out_at(const struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    return (b * r->at.seq + t) * r->at.out_stride + h * r->at.head_dim;
}

static double dot(const double *a, const double *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static void add_scaled(double *to, double factor, const double *of, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] += factor * of[i];
}

uint64_t ar_first_key(const struct st_attention *at, uint64_t b, uint64_t t)
{
    uint64_t first = at->positions != NULL ? t - (uint64_t)at->positions[b * at->seq + t] : 0;

    if (at->window > 0 && t >= at->window && first < t + 1 - at->window)
        first = t + 1 - at->window;
    return first;
}

static double scale_of(const struct st_attention *at)
{
    return at->scale != 0.0f ? (double)at->scale : 1 / sqrt((double)at->head_dim);
}

/* A score, and its slope along the scaled product of query and key. */
static double score_of(const struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t, uint64_t i, double *slope)
{
    const double cap = (double)r->at.softcap;
    const double x = scale_of(&r->at) * dot(r->qkv + query_at(r, b, h, t), r->qkv + key_at(r, b, h, i), r->at.head_dim);

    if (cap == 0) {
        *slope = 1;
        return x;
    }
    *slope = 1 - tanh(x / cap) * tanh(x / cap);
    return cap * tanh(x / cap);
}

/* p of a row's keys; its log-sum-exp. */
static double probabilities(struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    const uint64_t first = ar_first_key(&r->at, b, t);
    double top = -INFINITY, sum = 0, slope;

    for (uint64_t i = first; i <= t; i++) {
        r->p[i] = score_of(r, b, h, t, i, &slope);
        top = fmax(top, r->p[i]);
    }
    if (r->sinks != NULL) {
        top = fmax(top, r->sinks[h]);
        sum = exp(r->sinks[h] - top);
    }
    for (uint64_t i = first; i <= t; i++)
        sum += r->p[i] = exp(r->p[i] - top);
    for (uint64_t i = first; i <= t; i++)
        r->p[i] /= sum;
    return top + log(sum);
}

void ar_forward_row(struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    double *out = r->out + out_at(r, b, h, t);

    r->lse[(b * r->at.heads + h) * r->at.seq + t] = probabilities(r, b, h, t);
    memset(out, 0, r->at.head_dim * sizeof(*out));
    for (uint64_t i = ar_first_key(&r->at, b, t); i <= t; i++)
        add_scaled(out, r->p[i], r->qkv + value_at(r, b, h, i), r->at.head_dim);
}

void ar_backward_row(struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t)
{
    const uint32_t d = r->at.head_dim;
    const double *dout = r->dout + out_at(r, b, h, t), delta = dot(dout, r->out + out_at(r, b, h, t), d);

    probabilities(r, b, h, t);
    for (uint64_t i = ar_first_key(&r->at, b, t); i <= t; i++) {
        double slope = 1, ds;

        if (r->at.softcap != 0.0f)
            (void)score_of(r, b, h, t, i, &slope);
        ds = scale_of(&r->at) * slope * r->p[i] * (dot(dout, r->qkv + value_at(r, b, h, i), d) - delta);
        add_scaled(r->dqkv + query_at(r, b, h, t), ds, r->qkv + key_at(r, b, h, i), d);
        add_scaled(r->dqkv + key_at(r, b, h, i), ds, r->qkv + query_at(r, b, h, t), d);
        add_scaled(r->dqkv + value_at(r, b, h, i), r->p[i], dout, d);
    }
}

void ar_documents(int32_t *positions, uint32_t batch, uint32_t seq, uint64_t seed)
{
    for (uint64_t b = 0; b < batch; b++)
        for (uint64_t t = 0, end = 0, begin = 0; t < seq; t++) {
            if (t == end) {
                const uint64_t bits = df_bits(seed + b, t);

                begin = t;
                end = t + 1 + (bits % 3 == 0 ? bits / 3 % 4 : bits / 3 % 90);
            }
            positions[b * seq + t] = (int32_t)(t - begin);
        }
}

static void for_rows(struct attention_reference *r,
                     void (*row)(struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t))
{
    for (uint64_t b = 0; b < r->at.batch; b++)
        for (uint64_t h = 0; h < r->at.heads; h++)
            for (uint64_t t = 0; t < r->at.seq; t++)
                row(r, b, h, t);
}

void ar_forward(struct attention_reference *r)
{
    for_rows(r, ar_forward_row);
}

void ar_backward(struct attention_reference *r)
{
    memset(r->dqkv, 0, r->qkv_elems * sizeof(*r->dqkv));
    for_rows(r, ar_backward_row);
}

static double *zeros(uint64_t elems)
{
    double *x = calloc(elems, sizeof(*x));

    assert_non_null(x);
    return x;
}

struct attention_reference ar_create(const struct st_attention *at, const void *qkv, const void *dout)
{
    const uint64_t rows = (uint64_t)at->batch * at->seq;
    struct attention_reference r = {
        .at = *at, .qkv_elems = rows * at->qkv_stride, .out_elems = rows * at->out_stride, .lse_elems = rows * at->heads};

    r.qkv = df_doubles(qkv, r.qkv_elems, at->dt);
    r.dqkv = zeros(r.qkv_elems);
    r.dout = dout != NULL ? df_doubles(dout, r.out_elems, at->dt) : zeros(r.out_elems);
    r.out = zeros(r.out_elems);
    r.lse = zeros(r.lse_elems);
    r.p = zeros(at->seq);
    r.sinks = at->sinks != NULL ? df_doubles(at->sinks, at->heads, at->dt) : NULL;
    return r;
}

void ar_destroy(struct attention_reference *r)
{
    free(r->qkv), free(r->dqkv), free(r->dout), free(r->out), free(r->lse), free(r->p), free(r->sinks);
}

/* What the gradient is of: out . dout. */
static double loss(void *of)
{
    struct attention_reference *const r = of;
    double sum = 0;

    ar_forward(r);
    for (uint64_t row = 0; row < (uint64_t)r->at.batch * r->at.seq; row++)
        sum += dot(r->out + row * r->at.out_stride, r->dout + row * r->at.out_stride, r->at.heads * r->at.head_dim);
    return sum;
}

void ar_assert_slope(struct attention_reference *r, uint64_t i)
{
    const double slope = df_slope(loss, r, &r->qkv[i]);

    if (!(fabs(slope - r->dqkv[i]) < 1e-7))
        fail_msg("reference: element %llu is %.9g, differences say %.9g", (unsigned long long)i, r->dqkv[i], slope);
}

double ar_sink_slope(struct attention_reference *r, uint32_t head)
{
    return df_slope(loss, r, &r->sinks[head]);
}
