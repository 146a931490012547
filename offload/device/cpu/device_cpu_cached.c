/* offload/device/cpu/device_cpu_cached.c - attention of new rows over a key-value cache, for generation.
 *
 * One item is one query head of one row, computed by vector dot products.  Its bits depend only on the row's position, not on
 * which rows share the call. */
#include "offload/device/cpu/device_cpu_internal.h"
#include <string.h>

struct cached_job {
    const struct st_ops *ops;
    const struct st_attention *at;
    void *out;
    void *keys, *values; /* [context, kv_heads * head_dim] */
    const void *qkv;
    unsigned char *scores; /* [workers] of scores_bytes: fp32 per position */
    uint64_t scores_bytes;
    uint32_t first, rows;
};

static void append_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct cached_job *job = ctx;
    const struct st_attention *at = job->at;
    const uint64_t width = (uint64_t)at->kv_heads * at->head_dim,
                   from = index * at->qkv_stride + (uint64_t)at->heads * at->head_dim;
    const uint64_t to = (job->first + index) * width;
    const size_t bytes = width * strata_dtype_bytes(at->dt);

    (void)worker;
    memcpy(st_elem_mut(job->keys, to, at->dt), st_elem(job->qkv, from, at->dt), bytes);
    memcpy(st_elem_mut(job->values, to, at->dt), st_elem(job->qkv, from + width, at->dt), bytes);
}

static void attend_item(void *ctx, uint64_t index, uint32_t worker)
{
    const struct cached_job *job = ctx;
    const struct st_attention *at = job->at;
    const uint32_t d = at->head_dim, width = at->kv_heads * d;
    const uint64_t row = index / at->heads, head = index % at->heads, position = job->first + row;
    const uint64_t keys = at->window > 0 && at->window <= position ? at->window : position + 1;
    const uint64_t kv_at = (position + 1 - keys) * width + head / (at->heads / at->kv_heads) * d;

    job->ops->attention_row(st_elem_mut(job->out, row * at->out_stride + head * d, at->dt),
                            (float *)(void *)(job->scores + worker * job->scores_bytes),
                            st_elem(job->qkv, row * at->qkv_stride + head * d, at->dt), st_elem(job->keys, kv_at, at->dt),
                            st_elem(job->values, kv_at, at->dt), width, (uint32_t)keys, d, st_cpu_attention_scale(at),
                            at->softcap, st_cpu_attention_sink(job->ops, at, head), at->dt);
}

strata_status st_cpu_attention_cached(struct st_device *dev, const struct st_attention *at, void *out, void *keys, void *values,
                                      const void *qkv, uint32_t first, uint32_t rows, void *workspace)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct cached_job job = {cpu->ops, at, out, keys, values, qkv, workspace, 0, first, rows};

    job.scores_bytes = (4 * ((uint64_t)first + rows) + 63) / 64 * 64; /* inside a worker's part of attention_workspace() */
    st_workers_run(cpu->workers, append_item, &job, rows);
    st_workers_run(cpu->workers, attend_item, &job, (uint64_t)rows * at->heads);
    return STRATA_OK;
}
