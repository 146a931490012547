/* tests/cuda/ops_fixture.c - see ops_fixture.h. */
#include "tests/cuda/ops_fixture.h"

#include "tests/common/sample.h"
#include "tests/common/test.h"
#include "tests/offload/device_values.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN   64u /* bytes before and after each output that must stay */
#define LAUNCHES 2u  /* the emulator orders blocks and threads differently each time */
#define SLACK    64u /* elements of a buffer beyond 2 rows cols + 8 cols */

void *ops_out(struct ops_call *c, uint32_t which, enum ops_kind kind, uint64_t elems, double ulps, double slack)
{
    struct ops_output *const o = &c->out[which];

    *o = (struct ops_output){.start = o->start, .kind = kind, .elems = elems, .ulps = ulps, .slack = slack};
    return o->start;
}

void *ops_in_place(struct ops_call *c, uint32_t which, const void *from, uint64_t elems, double ulps, double slack)
{
    void *const to = ops_out(c, which, OPS_OWN_DTYPE, elems, ulps, slack);

    if (c->device)
        cf_ok(cudaMemcpyAsync(to, from, elems * strata_dtype_bytes(c->dt), cudaMemcpyDeviceToDevice, c->stream));
    else
        memcpy(to, from, elems * strata_dtype_bytes(c->dt));
    return to;
}

/* --- operands --- */

/* Seeds of operands: of x[k], f[k] and the rest. */
static uint64_t seed_of(const struct ops_call *c, uint64_t operand)
{
    return ((uint64_t)c->rows << 32 | c->cols) * 16 + operand;
}

static void fill_few(struct ops_memory *m, const struct ops_call *c)
{
    int32_t *const tokens = (int32_t *)(void *)m->tokens.host, *const positions = (int32_t *)(void *)m->positions.host;

    for (uint32_t i = 0; i < c->rows * 3; i++)
        df_set(m->stats.host, i, STRATA_F32, 0.6 + 0.2 * df_uniform(seed_of(c, 14), i));
    for (uint32_t i = 0; i < c->rows; i++)
        tokens[i] = (int32_t)(df_bits(seed_of(c, 15), i) % (i % 2 == 0 ? 5 : c->rows + 5)) - 1;
    for (uint32_t i = 0; i < c->rows; i++)
        positions[i] = i % 3 == 0 || i % 5 == 0 ? 0 : positions[i - 1] + 1;
    cf_upload(&m->stats);
    cf_upload(&m->tokens);
    cf_upload(&m->positions);
}

void ops_open(struct ops_memory *m, struct ops_call *c, uint32_t shift)
{
    const size_t elems = 2 * (size_t)c->rows * c->cols + 8 * (size_t)c->cols + SLACK + shift;
    const size_t shifts[OPS_OUTPUTS] = {strata_dtype_bytes(c->dt), sizeof(float), sizeof(double)};

    cf_ok(cudaStreamCreate(&c->stream));
    m->shift = shift;
    for (uint32_t k = 0; k < OPS_INPUTS; k++) {
        m->x[k] = cf_create_random(elems, c->dt, seed_of(c, k), 2, 0);
        m->f[k] = cf_create_random(elems, STRATA_F32, seed_of(c, OPS_INPUTS + k), k == 1 ? 16 : 2, 0);
    }
    m->stats = cf_create(c->rows * 3 * sizeof(float), 0);
    m->tokens = cf_create(c->rows * sizeof(int32_t), 0);
    m->positions = cf_create(c->rows * sizeof(int32_t), 0);
    m->scratch = cf_create(c->rows * 2 * sizeof(float), 0);
    m->workspace = cf_create((size_t)c->rows * c->cols * 8, 0);
    fill_few(m, c);
    for (uint32_t k = 0; k < OPS_OUTPUTS; k++) {
        m->out[k] = cf_create(2 * MARGIN + elems * sizeof(float), 0);
        m->out_at[k] = MARGIN + shift * shifts[k];
        m->got[k] = malloc(m->out[k].bytes);
        m->more[k] = malloc(m->out[k].bytes);
        assert_true(m->got[k] != NULL && m->more[k] != NULL);
    }
}

void ops_close(struct ops_memory *m, struct ops_call *c)
{
    for (uint32_t k = 0; k < OPS_INPUTS; k++) {
        cf_destroy(&m->x[k]);
        cf_destroy(&m->f[k]);
    }
    for (uint32_t k = 0; k < OPS_OUTPUTS; k++) {
        cf_destroy(&m->out[k]);
        free(m->got[k]);
        free(m->more[k]);
    }
    cf_destroy(&m->stats);
    cf_destroy(&m->tokens);
    cf_destroy(&m->positions);
    cf_destroy(&m->scratch);
    cf_destroy(&m->workspace);
    cf_ok(cudaStreamDestroy(c->stream));
}

static void *side(const struct cf_buffer *b, bool device, size_t offset)
{
    return (device ? (unsigned char *)b->device : b->host) + offset;
}

/* Points the call to one side; outputs begin as numbers, the same ones each time: some ops add to them. */
static void aim(struct ops_call *c, const struct ops_memory *m, bool device)
{
    c->device = device;
    for (uint32_t k = 0; k < OPS_INPUTS; k++) {
        c->x[k] = side(&m->x[k], device, m->shift * strata_dtype_bytes(c->dt));
        c->f[k] = side(&m->f[k], device, m->shift * sizeof(float));
    }
    c->stats = side(&m->stats, device, 0);
    c->tokens = side(&m->tokens, device, 0);
    c->positions = side(&m->positions, device, 0);
    c->scratch = side(&m->scratch, device, 0);
    c->workspace = side(&m->workspace, device, 0);
    for (uint32_t k = 0; k < OPS_OUTPUTS; k++) {
        for (size_t i = 0; i < m->out[k].bytes / sizeof(float); i++)
            df_set(m->out[k].host, i, STRATA_F32, 2 * df_uniform(k, i));
        cf_upload(&m->out[k]);
        c->out[k] = (struct ops_output){.start = side(&m->out[k], device, m->out_at[k])};
    }
}

/* --- comparing --- */

static size_t element_bytes(const struct ops_call *c, enum ops_kind kind)
{
    return kind == OPS_DOUBLE ? sizeof(double) : kind == OPS_SINGLE ? sizeof(float) : strata_dtype_bytes(c->dt);
}

static double element(const struct ops_call *c, enum ops_kind kind, const void *from, size_t i)
{
    if (kind == OPS_DOUBLE)
        return ((const double *)from)[i];
    return df_at(from, i, kind == OPS_SINGLE ? STRATA_F32 : c->dt);
}

double ops_ulp(double x, strata_dtype dt)
{
    const int digits = dt == STRATA_F32 ? 23 : dt == STRATA_BF16 ? 7 : 10, lowest = dt == STRATA_F16 ? -14 : -126;
    int e;

    frexp(x, &e);
    return ldexp(1.0, (e - 1 > lowest ? e - 1 : lowest) - digits);
}

static bool is_close(double got, double want, double ulps, double slack, strata_dtype dt)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (isinf(want) || isinf(got))
        return got == want;
    return fabs(got - want) <= ulps * ops_ulp(want, dt) + slack;
}

/* What the device wrote against what the scalar table has just written; around it, nothing. */
static void compare_outputs(const struct ops_call *c, const struct ops_memory *m, const char *name)
{
    for (uint32_t k = 0; k < OPS_OUTPUTS; k++) {
        const struct ops_output *const o = &c->out[k];
        const size_t before = m->out_at[k], end = before + o->elems * element_bytes(c, o->kind);
        const strata_dtype dt = o->kind == OPS_OWN_DTYPE ? c->dt : STRATA_F32;

        if (o->kind == OPS_NOT_USED)
            continue;
        for (size_t i = 0; i < o->elems; i++) {
            const double got = element(c, o->kind, m->got[k] + before, i), want = element(c, o->kind, o->start, i);

            if (!is_close(got, want, o->ulps, o->slack, dt))
                fail_msg("%s output %u [%u, %u] dtype %d at %zu: %.9g, scalar %.9g", name, k, c->rows, c->cols, (int)c->dt, i,
                         got, want);
        }
        assert_memory_equal(m->got[k], m->out[k].host, before);
        assert_memory_equal(m->got[k] + end, m->out[k].host + end, m->out[k].bytes - end);
    }
}

static void run_on_device(struct ops_call *c, const struct ops_memory *m, ops_case_fn *run, unsigned char *const got[OPS_OUTPUTS])
{
    aim(c, m, true);
    run(c);
    cf_ok(cudaStreamSynchronize(c->stream));
    for (uint32_t k = 0; k < OPS_OUTPUTS; k++)
        cf_ok(cudaMemcpy(got[k], m->out[k].device, m->out[k].bytes, cudaMemcpyDeviceToHost));
}

void ops_compare(struct ops_call *c, const struct ops_memory *m, ops_case_fn *run, const char *name)
{
    run_on_device(c, m, run, m->got);
    for (uint32_t i = 1; i < LAUNCHES; i++) {
        run_on_device(c, m, run, m->more);
        for (uint32_t k = 0; k < OPS_OUTPUTS; k++)
            assert_memory_equal(m->got[k], m->more[k], m->out[k].bytes);
    }
    aim(c, m, false);
    run(c);
    compare_outputs(c, m, name);
}

void ops_check(ops_case_fn *run, const char *name, const uint32_t shapes[][2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
            for (uint32_t shift = 0; shift < 2; shift++) {
                struct ops_call c = {.rows = shapes[i][0], .cols = shapes[i][1], .dt = dt};
                struct ops_memory m;

                if (!sample_takes(2 * i + shift, 3, dt))
                    continue;
                ops_open(&m, &c, shift);
                ops_compare(&c, &m, run, name);
                ops_close(&m, &c);
            }
        }
    }
}
