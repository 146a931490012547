/* offload/device/cpu/device_cpu.c - the cpu device: its arena, its copies, the last step of the gradient, and the update.
 *
 * Every call has done its work when it returns, so the three queues are always empty.  One thread calls at a time. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "kernels/reduce.h"
#include "offload/device/cpu/device_cpu_internal.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define COPY_PIECE   (256u * 1024u)        /* bytes that one item copies or clears */
#define UPDATE_PIECE (16u * ST_NORM_BLOCK) /* elements that one item adds, updates or takes norms of */

static strata_status cpu_open(struct st_device **out, const struct st_device_opts *opts)
{
    struct cpu_device *cpu = calloc(1, sizeof(*cpu));
    strata_status st;

    if (cpu == NULL)
        return st_nomem(sizeof(*cpu));
    cpu->base.ops = &st_device_cpu_ops;
    cpu->workers = opts->workers;
    cpu->kernels = opts->kernels;
    cpu->ops = opts->kernels->ops;
    cpu->upload.limit = opts->upload_limit;
    cpu->download.limit = opts->download_limit;
    st = st_arena_create_near(&cpu->arena, "device memory", opts->arena_bytes, opts->workers, opts->topology);
    if (st != STRATA_OK)
        goto fail;
    st = st_cpu_matmul_status("matmul.create", st_matmul_create(&cpu->matmul, st_workers_count(opts->workers)));
    if (st != STRATA_OK)
        goto fail;
    if (opts->widen_bf16)
        st_matmul_limit(cpu->matmul, ST_MATMUL_WIDENED);
    *out = &cpu->base;
    return STRATA_OK;

fail:
    st_device_cpu_ops.close(&cpu->base);
    return st;
}

static void cpu_close(struct st_device *dev)
{
    struct cpu_device *cpu = cpu_of(dev);

    if (cpu == NULL)
        return;
    st_matmul_destroy(cpu->matmul);
    st_arena_destroy(&cpu->arena);
    free(cpu);
}

static unsigned char *cpu_arena(struct st_device *dev)
{
    return cpu_of(dev)->arena.base;
}

/* --- bytes --- */

struct copy_job {
    unsigned char *dst;
    const unsigned char *src; /* NULL: clear */
    uint64_t bytes;
};

static void copy_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct copy_job *job = ctx;
    const struct st_run run = st_run_at(index, COPY_PIECE, job->bytes);

    (void)worker;
    if (job->src == NULL)
        memset(job->dst + run.first, 0, run.count);
    else
        memcpy(job->dst + run.first, job->src + run.first, run.count);
}

static void copy_bytes(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    struct copy_job job = {dst, src, bytes};

    st_workers_run(cpu_of(dev)->workers, copy_item, &job, st_run_count(COPY_PIECE, bytes));
}

static strata_status cpu_copy(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    copy_bytes(dev, dst, src, bytes);
    return STRATA_OK;
}

static strata_status cpu_zero(struct st_device *dev, void *dst, uint64_t bytes)
{
    return cpu_copy(dev, dst, NULL, bytes);
}

/* A copy that takes at least as long as the link would.  If the sleep overruns, the excess is subtracted from the next one, so
 * that a series of copies runs at the link's rate. */
static strata_status link_copy(struct st_device *dev, struct cpu_link *link, void *dst, const void *src, uint64_t bytes)
{
    const uint64_t start = st_clock_ns();
    uint64_t due, now;

    copy_bytes(dev, dst, src, bytes);
    if (!(link->limit > 0))
        return STRATA_OK;
    due = start + (uint64_t)ceil((double)bytes / link->limit * 1e9);
    due = due - start > link->late_ns ? due - link->late_ns : start;
    link->late_ns = 0;
    if (st_clock_ns() >= due)
        return STRATA_OK;
    st_clock_sleep_until(due);
    now = st_clock_ns();
    link->late_ns = now > due ? now - due : 0;
    return STRATA_OK;
}

static strata_status cpu_upload(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    return link_copy(dev, &cpu_of(dev)->upload, dst, src, bytes);
}

static strata_status cpu_download(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    return link_copy(dev, &cpu_of(dev)->download, dst, src, bytes);
}

static strata_status cpu_finish(struct st_device *dev, enum st_queue queue)
{
    (void)dev;
    (void)queue;
    return STRATA_OK;
}

/* --- gradient and update --- */

struct reduce_job {
    const struct st_kernels *kernels;
    float *sum;
    const void *addend;
    strata_dtype dt;
    uint64_t elems;
};

static void reduce_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct reduce_job *job = ctx;
    const struct st_run run = st_run_at(index, UPDATE_PIECE, job->elems);

    (void)worker;
    st_reduce(job->kernels, job->sum + run.first, st_elem(job->addend, run.first, job->dt), job->dt, run.count);
}

static strata_status cpu_reduce(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems)
{
    struct reduce_job job = {cpu_of(dev)->kernels, sum, addend, dt, elems};

    st_workers_run(cpu_of(dev)->workers, reduce_item, &job, st_run_count(UPDATE_PIECE, elems));
    return STRATA_OK;
}

struct finish_job {
    const struct st_kernels *kernels;
    void *out;
    const float *acc;
    double *block_sums;
    uint64_t elems;
    strata_dtype dt;
    atomic_uint_fast64_t nonfinite; /* counts are added, so the order does not matter */
};

static void finish_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct finish_job *job = ctx;
    const struct st_run run = st_run_at(index, UPDATE_PIECE, job->elems);
    const uint64_t bad = job->kernels->grad_finish(st_elem_mut(job->out, run.first, job->dt), job->dt, job->acc + run.first,
                                                   run.count, job->block_sums + run.first / ST_NORM_BLOCK);

    (void)worker;
    atomic_fetch_add_explicit(&job->nonfinite, bad, memory_order_relaxed);
}

static strata_status cpu_grad_finish(struct st_device *dev, void *out, strata_dtype dt, const float *acc, uint64_t elems,
                                     double *block_sums, double *norm2, uint64_t *nonfinite)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct finish_job job = {cpu->kernels, out, acc, block_sums, elems, dt, 0};

    st_workers_run(cpu->workers, finish_item, &job, st_run_count(UPDATE_PIECE, elems));
    *norm2 += st_norm_group(block_sums, st_run_count(ST_NORM_BLOCK, elems));
    *nonfinite += atomic_load_explicit(&job.nonfinite, memory_order_relaxed);
    return STRATA_OK;
}

struct update_job {
    const struct st_kernels *kernels;
    void *weight; /* the 16-bit weight beside a low half or a master; otherwise the fp32 master itself */
    int16_t *low_half;
    float *master;
    const struct st_moments *moments;
    const void *grad;
    uint64_t elems;
    strata_dtype dt; /* of the gradient */
    const struct st_update_coef *coef;
    atomic_uint_fast64_t overflowed;
};

static void update_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct update_job *job = ctx;
    const struct st_run run = st_run_at(index, UPDATE_PIECE, job->elems);
    const void *grad = st_elem(job->grad, run.first, job->dt);
    const struct st_moments moments = st_moments_at(job->moments, run.first);
    uint64_t count;

    (void)worker;
    if (job->low_half != NULL)
        count = job->kernels->update_split((uint16_t *)job->weight + run.first, job->low_half + run.first, &moments, grad,
                                           job->dt, run.count, job->coef);
    else if (job->master != NULL)
        count = job->kernels->update_master(job->master + run.first, (uint16_t *)job->weight + run.first, job->dt, &moments, grad,
                                            job->dt, run.count, job->coef);
    else
        count = job->kernels->update_master((float *)job->weight + run.first, NULL, STRATA_DTYPE_INVALID, &moments, grad, job->dt,
                                            run.count, job->coef);
    atomic_fetch_add_explicit(&job->overflowed, count, memory_order_relaxed);
}

static strata_status cpu_update(struct st_device *dev, void *weight, int16_t *low_half, float *master,
                                const struct st_moments *moments, const void *grad, strata_dtype dt, uint64_t elems,
                                const struct st_update_coef *coef, uint64_t *overflowed)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct update_job job = {cpu->kernels, weight, low_half, master, moments, grad, elems, dt, coef, 0};

    st_workers_run(cpu->workers, update_item, &job, st_run_count(UPDATE_PIECE, elems));
    *overflowed += atomic_load_explicit(&job.overflowed, memory_order_relaxed);
    return STRATA_OK;
}

const struct st_tensor_ops st_tensor_cpu_ops = {
    .zero = cpu_zero,
    .matmul = st_cpu_matmul,
    .bias_backward = st_cpu_bias_backward,
    .layernorm_forward = st_cpu_layernorm_forward,
    .layernorm_backward = st_cpu_layernorm_backward,
    .rmsnorm_forward = st_cpu_rmsnorm_forward,
    .rmsnorm_backward = st_cpu_rmsnorm_backward,
    .rope = st_cpu_rope,
    .gated_forward = st_cpu_gated_forward,
    .gated_backward = st_cpu_gated_backward,
    .activation_forward = st_cpu_activation_forward,
    .activation_backward = st_cpu_activation_backward,
    .add = st_cpu_add,
    .scale = st_cpu_scale,
    .cast = st_cpu_cast,
    .dropout = st_cpu_dropout,
    .nf4_widen = st_cpu_nf4_widen,
    .thin = st_cpu_thin,
    .attention_workspace = st_cpu_attention_workspace,
    .attention_forward = st_cpu_attention_forward,
    .attention_backward = st_cpu_attention_backward,
    .attention_sinks_backward = st_cpu_attention_sinks_backward,
    .attention_cached = st_cpu_attention_cached,
    .route_choose = st_cpu_route_choose,
    .route_sort = st_cpu_route_sort,
    .route_totals = st_cpu_route_totals,
    .route_loss = st_cpu_route_loss,
    .route_backward = st_cpu_route_backward,
    .experts_gather = st_cpu_experts_gather,
    .experts_matmul = st_cpu_experts_matmul,
    .experts_cast = st_cpu_experts_cast,
    .experts_bias_backward = st_cpu_experts_bias_backward,
    .experts_gated_forward = st_cpu_experts_gated_forward,
    .experts_gated_backward = st_cpu_experts_gated_backward,
    .experts_add = st_cpu_experts_add,
    .experts_add_backward = st_cpu_experts_add_backward,
    .shared_forward = st_cpu_shared_forward,
    .shared_backward = st_cpu_shared_backward,
    .clip = st_cpu_clip,
    .clip_backward = st_cpu_clip_backward,
    .embed_add_position = st_cpu_embed_add_position,
    .embed_position_backward = st_cpu_embed_position_backward,
    .xent_stats = st_cpu_xent_stats,
    .xent_grad = st_cpu_xent_grad,
    .xent_loss = st_cpu_xent_loss,
};

const struct st_device_ops st_device_cpu_ops = {
    .name = "cpu",
    .arena_is_host = true,
    .tensors = &st_tensor_cpu_ops,
    .open = cpu_open,
    .close = cpu_close,
    .arena = cpu_arena,
    .upload = cpu_upload,
    .download = cpu_download,
    .finish = cpu_finish,
    .zero = cpu_zero,
    .copy = cpu_copy,
    .embed_gather = st_cpu_embed_gather,
    .embed_scatter = st_cpu_embed_scatter,
    .reduce = cpu_reduce,
    .grad_finish = cpu_grad_finish,
    .update = cpu_update,
};
