/* model/model.c - from a model's numbers to tensors, pages and the workload.
 *
 * Page order is parameter order: table tiles, positions, blocks, final norm.  Inside a page the decayed matrices come
 * first, then norms and biases, each group a dense run of its tensors. */
#include "core/checksum.h"
#include "core/error.h"
#include "model/layout.h"
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_MAX  4096u
#define HIDDEN_MAX  (1u << 17)
#define FFN_MAX     (1u << 20)
#define VOCAB_MAX   (1u << 24)
#define CONTEXT_MAX (1u << 24)
#define ROWS_MAX    (1u << 24)
#define SIZE_STEP   8u /* hidden and ffn: makes a block's matrices end on a page's alignment */
#define INIT_STD    0.02

strata_status st_model_config_check(const struct st_model_config *c, strata_status st, const char *where)
{
    if (c->blocks < 1 || c->blocks > BLOCKS_MAX)
        return st_error(st, "%s: %u blocks; 1 to %u are possible", where, c->blocks, BLOCKS_MAX);
    if (c->hidden < SIZE_STEP || c->hidden > HIDDEN_MAX || c->hidden % SIZE_STEP != 0)
        return st_error(st, "%s: hidden size %u; multiples of %u up to %u are possible", where, c->hidden, SIZE_STEP, HIDDEN_MAX);
    if (c->ffn < SIZE_STEP || c->ffn > FFN_MAX || c->ffn % SIZE_STEP != 0)
        return st_error(st, "%s: feed-forward size %u; multiples of %u up to %u are possible", where, c->ffn, SIZE_STEP, FFN_MAX);
    if (c->heads < 1 || c->hidden % c->heads != 0)
        return st_error(st, "%s: %u heads do not divide the hidden size %u", where, c->heads, c->hidden);
    if (c->vocab < 2 || c->vocab > VOCAB_MAX)
        return st_error(st, "%s: vocabulary of %u; 2 to %u are possible", where, c->vocab, VOCAB_MAX);
    if (c->context < 1 || c->context > CONTEXT_MAX)
        return st_error(st, "%s: context of %u tokens; 1 to %u are possible", where, c->context, CONTEXT_MAX);
    if (!(c->norm_eps > 0.0f && c->norm_eps < 1.0f))
        return st_error(st, "%s: norm epsilon %g; it must lie between 0 and 1", where, (double)c->norm_eps);
    if (!(c->dropout >= 0.0f && c->dropout <= 1.0f))
        return st_error(st, "%s: dropout %g; it must lie between 0 and 1", where, (double)c->dropout);
    return STRATA_OK;
}

static strata_status batch_check(const struct st_model_config *c, const struct st_model_batch *b)
{
    if (b->dtype != STRATA_BF16 && b->dtype != STRATA_F32)
        return st_error(STRATA_E_INVAL, "model %s: only bf16 and fp32 are trained", c->name);
    if (b->micro_batch == 0 || b->seq == 0 || b->grad_accum == 0)
        return st_error(STRATA_E_INVAL, "model %s: micro-batch %u, sequence length %u, accumulation %u: none may be 0", c->name,
                        b->micro_batch, b->seq, b->grad_accum);
    if (b->seq > c->context)
        return st_error(STRATA_E_INVAL, "sequence length %u is over the context of model %s, %u: lower --seq-len", b->seq,
                        c->name, c->context);
    if ((uint64_t)b->micro_batch * b->seq > ROWS_MAX)
        return st_error(STRATA_E_INVAL, "a micro-batch of %u x %u tokens is over %u: lower it and raise the accumulation",
                        b->micro_batch, b->seq, ROWS_MAX);
    return STRATA_OK;
}

static struct st_tensor *tensor_add(struct st_model *m, uint32_t page, const char *name, uint64_t rows, uint64_t cols)
{
    struct st_tensor *t = &m->tensors[m->tensor_count++];
    const int length = snprintf(t->name, sizeof(t->name), "transformer.%s", name);

    assert(length > 0 && (size_t)length < sizeof(t->name));
    t->rank = cols > 0 ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->elems = cols > 0 ? rows * cols : rows;
    t->page = page;
    t->page_count = 1;
    t->stream = st_checksum64(t->name, (size_t)length);
    return t;
}

static void tensor_init(struct st_tensor *t, double std, double mean)
{
    t->init_std = (float)std;
    t->init_mean = (float)mean;
}

static void page_begin(struct st_page *p, uint32_t layer)
{
    *p = (struct st_page){.layer = layer};
}

/* Open a group at the page's end; with decay_all everything stays in the first. */
static void group_begin(const struct st_model *m, struct st_page *p, enum st_group_kind kind)
{
    struct st_group *g = &p->groups[p->group_count];

    p->elems = (p->elems + ST_PAGE_ALIGN - 1) / ST_PAGE_ALIGN * ST_PAGE_ALIGN;
    if (m->batch.decay_all && p->group_count > 0) {
        assert(p->elems == p->params); /* SIZE_STEP: no gap before the norms and biases */
        return;
    }
    g->kind = m->batch.decay_all ? ST_GROUP_DECAY : kind;
    g->offset = p->elems;
    p->group_count++;
}

/* Returns where in the page the elements lie. */
static uint64_t group_add(struct st_page *p, uint64_t elems)
{
    struct st_group *g = &p->groups[p->group_count - 1];
    const uint64_t at = g->offset + g->elems;

    g->elems += elems;
    p->params += elems;
    p->elems = at + elems;
    return at;
}

static void page_end(struct st_page *p)
{
    p->elems = (p->elems + ST_PAGE_ALIGN - 1) / ST_PAGE_ALIGN * ST_PAGE_ALIGN;
}

static void build_embedding(struct st_model *m)
{
    const struct st_model_config *c = &m->config;
    const uint32_t tile = st_table_tile_rows(c->vocab, c->hidden);
    struct st_workload *w = &m->workload;
    struct st_page *p = w->pages;
    struct st_tensor *t = tensor_add(m, 0, "wte.weight", c->vocab, c->hidden);

    tensor_init(t, INIT_STD, 0.0);
    t->page_count = w->table_count;
    for (uint32_t i = 0; i < w->table_count; i++, p++) {
        page_begin(p, 0);
        p->row_first = i * tile;
        p->row_count = c->vocab - p->row_first < tile ? c->vocab - p->row_first : tile;
        group_begin(m, p, ST_GROUP_DECAY);
        group_add(p, (uint64_t)p->row_count * c->hidden);
        page_end(p);
    }
    t = tensor_add(m, w->position_page, "wpe.weight", c->context, c->hidden);
    tensor_init(t, INIT_STD, 0.0);
    page_begin(p, 0);
    group_begin(m, p, ST_GROUP_DECAY);
    t->offset = group_add(p, t->elems);
    page_end(p);
}

static void block_add(struct st_model *m, uint32_t block, const char *name, uint64_t rows, uint64_t cols, double std, double mean)
{
    const uint32_t page = m->workload.block_first + block;
    char full[64];
    struct st_tensor *t;

    snprintf(full, sizeof(full), "h.%u.%s", block, name);
    t = tensor_add(m, page, full, rows, cols);
    tensor_init(t, std, mean);
    t->offset = group_add(&m->workload.pages[page], t->elems);
}

static void build_block(struct st_model *m, uint32_t block)
{
    const uint64_t hidden = m->config.hidden, ffn = m->config.ffn;
    const double residual_std = INIT_STD / sqrt(2.0 * m->config.blocks);
    struct st_page *p = &m->workload.pages[m->workload.block_first + block];

    page_begin(p, block + 1);
    group_begin(m, p, ST_GROUP_DECAY);
    block_add(m, block, "attn.c_attn.weight", hidden, 3 * hidden, INIT_STD, 0.0);
    block_add(m, block, "attn.c_proj.weight", hidden, hidden, residual_std, 0.0);
    block_add(m, block, "mlp.c_fc.weight", hidden, ffn, INIT_STD, 0.0);
    block_add(m, block, "mlp.c_proj.weight", ffn, hidden, residual_std, 0.0);
    group_begin(m, p, ST_GROUP_NO_DECAY);
    block_add(m, block, "ln_1.weight", hidden, 0, 0.0, 1.0);
    block_add(m, block, "ln_1.bias", hidden, 0, 0.0, 0.0);
    block_add(m, block, "attn.c_attn.bias", 3 * hidden, 0, 0.0, 0.0);
    block_add(m, block, "attn.c_proj.bias", hidden, 0, 0.0, 0.0);
    block_add(m, block, "ln_2.weight", hidden, 0, 0.0, 1.0);
    block_add(m, block, "ln_2.bias", hidden, 0, 0.0, 0.0);
    block_add(m, block, "mlp.c_fc.bias", ffn, 0, 0.0, 0.0);
    block_add(m, block, "mlp.c_proj.bias", hidden, 0, 0.0, 0.0);
    page_end(p);
}

static void build_final_norm(struct st_model *m)
{
    struct st_workload *w = &m->workload;
    struct st_page *p = &w->pages[w->norm_page];
    struct st_tensor *t;

    page_begin(p, w->block_count + 1);
    group_begin(m, p, ST_GROUP_NO_DECAY);
    t = tensor_add(m, w->norm_page, "ln_f.weight", m->config.hidden, 0);
    tensor_init(t, 0.0, 1.0);
    t->offset = group_add(p, t->elems);
    t = tensor_add(m, w->norm_page, "ln_f.bias", m->config.hidden, 0);
    tensor_init(t, 0.0, 0.0);
    t->offset = group_add(p, t->elems);
    page_end(p);
}

static void workload_numbers(struct st_model *m)
{
    const struct st_model_config *c = &m->config;
    const uint32_t tile = st_table_tile_rows(c->vocab, c->hidden);
    struct st_workload *w = &m->workload;

    snprintf(w->name, sizeof(w->name), "%s", c->name);
    w->dtype = m->batch.dtype;
    w->block_count = c->blocks;
    w->vocab = c->vocab;
    w->hidden = c->hidden;
    w->seq = m->batch.seq;
    w->micro_batch = m->batch.micro_batch;
    w->grad_accum = m->batch.grad_accum;
    w->table_first = 0;
    w->table_count = (c->vocab + tile - 1) / tile;
    w->position_page = w->table_count;
    w->block_first = w->position_page + 1;
    w->norm_page = w->block_first + c->blocks;
    w->page_count = w->norm_page + 1;
    w->head_first = w->table_first;
    w->head_count = w->table_count;
    w->tied = true;
}

static void workload_bytes(struct st_model *m)
{
    struct st_workload *w = &m->workload;

    w->activation_bytes = (uint64_t)w->micro_batch * w->seq * w->hidden * strata_dtype_bytes(w->dtype);
    w->block_internal_bytes = st_block_internals_layout(m).bytes;
    w->block_workspace_bytes = st_block_workspace_layout(m).bytes;
    w->head_internal_bytes = st_head_internals_layout(m).bytes;
    w->head_workspace_bytes = st_head_workspace_layout(m).bytes;
    w->embed_workspace_bytes = 0;
}

/* Attention counts the full square, as the usual MFU formula does.  The head's backward makes the logits again. */
static void workload_flops(struct st_model *m)
{
    const double hidden = m->config.hidden, ffn = m->config.ffn, seq = m->batch.seq;
    const double rows = m->batch.micro_batch * seq;
    struct st_workload *w = &m->workload;

    w->block_forward_flops = rows * (8.0 * hidden * hidden + 4.0 * hidden * ffn + 4.0 * seq * hidden);
    w->block_backward_flops = 2.0 * w->block_forward_flops;
    w->head_forward_flops = rows * 2.0 * hidden * m->config.vocab;
    w->head_backward_flops = 3.0 * w->head_forward_flops;
    w->model_flops_per_token = 6.0 * (double)w->params + 12.0 * m->config.blocks * hidden * seq;
}

static struct st_attention attention_of(const struct st_model *m)
{
    return (struct st_attention){
        .batch = m->batch.micro_batch,
        .seq = m->batch.seq,
        .heads = m->config.heads,
        .kv_heads = m->config.heads,
        .head_dim = m->config.hidden / m->config.heads,
        .qkv_stride = 3 * m->config.hidden,
        .out_stride = m->config.hidden,
        .dt = m->batch.dtype,
    };
}

strata_status st_model_create(struct st_model **out, const struct st_model_config *config, const struct st_model_batch *batch)
{
    struct st_model *m;
    strata_status st;

    if ((st = st_model_config_check(config, STRATA_E_INVAL, config->name)) != STRATA_OK ||
        (st = batch_check(config, batch)) != STRATA_OK)
        return st;
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return st_error(STRATA_E_NOMEM, "model %s", config->name);
    m->config = *config;
    m->batch = *batch;
    workload_numbers(m);
    m->workload.pages = calloc(m->workload.page_count, sizeof(*m->workload.pages));
    m->tensors = calloc(ST_TENSOR_BLOCKS + (size_t)config->blocks * ST_BLOCK_TENSORS + 2, sizeof(*m->tensors));
    if (m->workload.pages == NULL || m->tensors == NULL) {
        st_model_destroy(m);
        return st_error(STRATA_E_NOMEM, "pages of model %s", config->name);
    }
    build_embedding(m);
    for (uint32_t b = 0; b < config->blocks; b++)
        build_block(m, b);
    build_final_norm(m);
    for (uint32_t i = 0; i < m->workload.page_count; i++)
        m->workload.params += m->workload.pages[i].params;
    m->attention = attention_of(m);
    m->workload.workers = batch->workers > 0 ? batch->workers : 1;
    m->attention_bytes = st_device_cpu_ops.attention_workspace(&m->attention, m->workload.workers);
    workload_bytes(m);
    workload_flops(m);
    if ((st = st_workload_check(&m->workload)) != STRATA_OK) {
        st_model_destroy(m);
        return st;
    }
    *out = m;
    return STRATA_OK;
}

void st_model_destroy(struct st_model *m)
{
    if (m == NULL)
        return;
    free(m->tensors);
    st_workload_fini(&m->workload);
    free(m);
}

const struct st_workload *st_model_workload(const struct st_model *m)
{
    return &m->workload;
}

const struct st_model_config *st_model_config(const struct st_model *m)
{
    return &m->config;
}

uint32_t st_model_tensor_count(const struct st_model *m)
{
    return m->tensor_count;
}

const struct st_tensor *st_model_tensor(const struct st_model *m, uint32_t i)
{
    return i < m->tensor_count ? &m->tensors[i] : NULL;
}

struct st_compute st_model_compute(struct st_model *m)
{
    return (struct st_compute){.model = m, .run = st_decoder_run};
}
