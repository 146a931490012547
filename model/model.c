/* model/model.c - from a model's numbers to the workload: checks, page counts, bytes, FLOPs. */
#include "core/base/error.h"
#include "model/layout.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define HIDDEN_MAX  (1u << 17)
#define FFN_MAX     (1u << 20)
#define VOCAB_MAX   (1u << 24)
#define ROWS_MAX    (1u << 24)
#define HEAD_MAX    4096u /* head_dim */
#define SIZE_STEP   8u    /* hidden and ffn: whole vectors */
#define EXPERTS_MAX 4096u

static strata_status heads_check(const struct st_model_config *c, strata_status st, const char *where)
{
    if (c->heads < 1 || (c->head_dim == 0 && c->hidden % c->heads != 0))
        return st_error(st, "%s: %u heads do not divide the hidden size %u", where, c->heads, c->hidden);
    if (c->head_dim > HEAD_MAX || (uint64_t)c->heads * c->head_dim > HIDDEN_MAX)
        return st_error(st, "%s: %u heads of %u values; heads of up to %u, %u values in all are possible", where, c->heads,
                        c->head_dim, HEAD_MAX, HIDDEN_MAX);
    if (c->kv_heads > c->heads || (c->kv_heads > 0 && c->heads % c->kv_heads != 0))
        return st_error(st, "%s: %u key-value heads do not divide %u heads", where, c->kv_heads, c->heads);
    return STRATA_OK;
}

static strata_status rope_type_check(const struct st_model_config *c, strata_status st, const char *where)
{
    const bool ramp = c->rope_type == ST_ROPE_LLAMA3 || c->rope_type == ST_ROPE_YARN;

    if (c->rope_type == ST_ROPE_DEFAULT)
        return STRATA_OK;
    if (c->rope_type != ST_ROPE_LONGROPE && !(c->rope_factor >= 1.0f && isfinite(c->rope_factor)))
        return st_error(st, "%s: rotary scaling factor %g; it must be 1 or more", where, (double)c->rope_factor);
    if (ramp && (!(c->rope_low > 0.0f && c->rope_high > c->rope_low && isfinite(c->rope_high)) || c->rope_original == 0))
        return st_error(st, "%s: rotary scaling from %g to %g over %u tokens; 0 < low < high and an original context are needed",
                        where, (double)c->rope_low, (double)c->rope_high, c->rope_original);
    if (!(c->rope_attention >= 0.0f && isfinite(c->rope_attention)))
        return st_error(st, "%s: rotary attention factor %g; it must be 0 or more", where, (double)c->rope_attention);
    return STRATA_OK;
}

static bool is_base(float base)
{
    return base > 1.0f && isfinite(base);
}

static strata_status rotary_check(const struct st_model_config *c, strata_status st, const char *where)
{
    const struct st_model_config *own = &st_family_of(c->family)->defaults;
    const uint32_t head_dim = c->head_dim > 0 ? c->head_dim : c->hidden / c->heads;
    const uint32_t rotary_dim = c->rotary_dim > 0 ? c->rotary_dim : head_dim;

    if (rotary_dim % 2 != 0 || rotary_dim > head_dim)
        return st_error(st, "%s: heads of %u values, of which %u are rotated: an even number is needed", where, head_dim,
                        rotary_dim);
    if (!is_base(c->rope_base) || ((c->rope_local_base != 0.0f || own->rope_local_base != 0.0f) && !is_base(c->rope_local_base)))
        return st_error(st, "%s: rotary base %g; it must be above 1", where,
                        (double)(is_base(c->rope_base) ? c->rope_local_base : c->rope_base));
    return rope_type_check(c, st, where);
}

/* The options of a model must be ones that its family's files can express. */
static strata_status options_check(const struct st_model_config *c, strata_status st, const char *where)
{
    const struct st_model_config *own = &st_family_of(c->family)->defaults;
    const bool rotary = c->positions == ST_POSITION_ROTARY, gpt2 = !rotary;

    if (c->norm != own->norm || c->qk_norm != own->qk_norm || st_model_is_gated(c) != st_model_is_gated(own) ||
        c->positions != own->positions || c->out_in != own->out_in || (c->biases == ST_BIAS_ALL) != (own->biases == ST_BIAS_ALL))
        return st_error(st, "%s: norm, activation, positions, biases or storage are not those of its family", where);
    if (gpt2 &&
        ((c->kv_heads != 0 && c->kv_heads != c->heads) || (c->head_dim != 0 && (uint64_t)c->head_dim * c->heads != c->hidden)))
        return st_error(st, "%s: a GPT-2 has attention as wide as its hidden size", where);
    return rotary ? rotary_check(c, st, where) : STRATA_OK;
}

static strata_status experts_check(const struct st_model_config *c, strata_status st, const char *where)
{
    bool sparse = false;

    for (uint32_t b = 0; b < c->blocks; b++)
        sparse = sparse || st_layer_bit(c->sparse, b);
    if (!sparse)
        return STRATA_OK;
    if (st_family_of(c->family)->experts == NULL)
        return st_error(st, "%s: models of its family have no experts", where);
    if (c->experts < 1 || c->experts > EXPERTS_MAX)
        return st_error(st, "%s: %u experts; 1 to %u are possible", where, c->experts, EXPERTS_MAX);
    if (c->experts_chosen < 1 || c->experts_chosen > c->experts)
        return st_error(st, "%s: %u experts of %u for a token; 1 to all are possible", where, c->experts_chosen, c->experts);
    if (c->expert_ffn < SIZE_STEP || c->expert_ffn > FFN_MAX || c->expert_ffn % SIZE_STEP != 0 || c->shared_ffn > FFN_MAX ||
        c->shared_ffn % SIZE_STEP != 0)
        return st_error(st, "%s: experts of %u and %u; multiples of %u up to %u are possible", where, c->expert_ffn,
                        c->shared_ffn, SIZE_STEP, FFN_MAX);
    if ((st_family_is_fused(st_family_of(c->family)) && c->activation != ST_ACTIVATION_SWIGLU) ||
        st_family_is_fused(st_family_of(c->family)) !=
            (c->gate_limit > 0.0f && isfinite(c->gate_limit) && c->gate_alpha > 0.0f && isfinite(c->gate_alpha)))
        return st_error(st, "%s: a gate of %g within %g, which experts of its family do not have", where, (double)c->gate_alpha,
                        (double)c->gate_limit);
    if (!(c->qkv_clip >= 0.0f && isfinite(c->qkv_clip)))
        return st_error(st, "%s: queries, keys and values within %g; it must be 0 or more", where, (double)c->qkv_clip);
    return STRATA_OK;
}

strata_status st_model_config_check(const struct st_model_config *c, strata_status st, const char *where)
{
    strata_status heads;

    if (c->blocks < 1 || c->blocks > ST_BLOCKS_MAX)
        return st_error(st, "%s: %u blocks; 1 to %u are possible", where, c->blocks, ST_BLOCKS_MAX);
    if (c->hidden < SIZE_STEP || c->hidden > HIDDEN_MAX || c->hidden % SIZE_STEP != 0)
        return st_error(st, "%s: hidden size %u; multiples of %u up to %u are possible", where, c->hidden, SIZE_STEP, HIDDEN_MAX);
    if (c->ffn < SIZE_STEP || c->ffn > FFN_MAX || c->ffn % SIZE_STEP != 0)
        return st_error(st, "%s: feed-forward size %u; multiples of %u up to %u are possible", where, c->ffn, SIZE_STEP, FFN_MAX);
    if ((heads = heads_check(c, st, where)) != STRATA_OK)
        return heads;
    if (c->vocab < 2 || c->vocab > VOCAB_MAX)
        return st_error(st, "%s: vocabulary of %u; 2 to %u are possible", where, c->vocab, VOCAB_MAX);
    if (c->context < 1 || c->context > ST_CONTEXT_MAX)
        return st_error(st, "%s: context of %u tokens; 1 to %u are possible", where, c->context, ST_CONTEXT_MAX);
    if (!(c->norm_eps > 0.0f && c->norm_eps < 1.0f))
        return st_error(st, "%s: norm epsilon %g; it must lie between 0 and 1", where, (double)c->norm_eps);
    if (!(c->dropout >= 0.0f && c->dropout <= 1.0f))
        return st_error(st, "%s: dropout %g; it must lie between 0 and 1", where, (double)c->dropout);
    if ((heads = experts_check(c, st, where)) != STRATA_OK)
        return heads;
    return options_check(c, st, where);
}

const char *st_model_context_key(const struct st_model_config *c)
{
    switch (c->rope_type) {
    case ST_ROPE_LINEAR:
    case ST_ROPE_YARN:
        return " (by \"max_position_embeddings\" and the \"factor\" of its rotary scaling)";
    case ST_ROPE_DYNAMIC:
        return " (\"max_position_embeddings\": beyond it \"dynamic\" rotary scaling is not supported)";
    default:
        return "";
    }
}

static strata_status batch_check(const struct st_model_config *c, const struct st_model_batch *b)
{
    if (strata_dtype_bytes(b->dtype) == 0)
        return st_error(STRATA_E_INVAL, "model %s: only bf16, fp16 and fp32 can be trained", c->name);
    if (b->micro_batch == 0 || b->seq == 0 || b->grad_accum == 0)
        return st_error(STRATA_E_INVAL, "model %s: micro-batch %u, sequence length %u, accumulation %u: none may be 0", c->name,
                        b->micro_batch, b->seq, b->grad_accum);
    if (b->seq > c->context)
        return st_error_remedy(st_error(STRATA_E_INVAL, "sequence length %u is over the context of model %s, %u%s", b->seq,
                                        c->name, c->context, st_model_context_key(c)),
                               "model.seq_len", "lower model.seq_len");
    if ((uint64_t)b->micro_batch * b->seq > ROWS_MAX)
        return st_error(STRATA_E_INVAL, "a micro-batch of %u x %u tokens is over %u: lower it and raise the accumulation",
                        b->micro_batch, b->seq, ROWS_MAX);
    if (!b->generate)
        return STRATA_OK;
    if (b->micro_batch != 1 || b->grad_accum != 1)
        return st_error(STRATA_E_INVAL, "model %s: generation takes one sequence, not %u x %u", c->name, b->micro_batch,
                        b->grad_accum);
    if (b->context < b->seq || b->context > c->context)
        return st_error(STRATA_E_INVAL, "model %s: a cache of %u tokens; %u to the context, %u, are possible", c->name,
                        b->context, b->seq, c->context);
    return STRATA_OK;
}

/* sqrt(hidden), rounded to the significant bits of the dtype. */
static float embed_factor_of(const struct st_model_config *c, strata_dtype dtype)
{
    const int bits = dtype == STRATA_BF16 ? 8 : dtype == STRATA_F16 ? 11 : 24;
    int exponent;
    const float fraction = frexpf(sqrtf((float)c->hidden), &exponent);

    return c->embed_scaled ? ldexpf(nearbyintf(ldexpf(fraction, bits)), exponent - bits) : 1.0f;
}

static struct st_model_widths widths_of(const struct st_model_config *c)
{
    const uint32_t attention = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    return (struct st_model_widths){
        .attention = attention,
        .kv = kv,
        .qkv = attention + 2 * kv,
        .packed = c->qk_norm != ST_QK_NORM_NONE ? 2 * (attention + kv) + kv : attention + 2 * kv,
        .fc = st_model_is_gated(c) ? 2 * c->ffn : c->ffn,
        .shared = 2 * c->shared_ffn,
    };
}

static void workload_numbers(struct st_model *m)
{
    const struct st_model_config *c = &m->config;
    const uint32_t slice = st_table_slice_rows(c->vocab, c->hidden);
    struct st_workload *w = &m->workload;

    snprintf(w->name, sizeof(w->name), "%s", c->name);
    w->dtype = m->batch.dtype;
    w->vocab = c->vocab;
    w->hidden = c->hidden;
    w->seq = m->batch.seq;
    w->micro_batch = m->batch.micro_batch;
    w->grad_accum = m->batch.grad_accum;
    w->documents = m->batch.documents;
    w->generate = m->batch.generate;
    w->workers = m->batch.workers > 0 ? m->batch.workers : 1;
    m->at.table_count = m->at.head_count = (c->vocab + slice - 1) / slice;
    m->at.positions = c->positions == ST_POSITION_LEARNED ? m->at.table_count : ST_NO_PAGE;
    m->at.block_first = m->at.table_count + (c->positions == ST_POSITION_LEARNED ? 1 : 0);
    m->at.norm = m->block_pages[c->blocks];
    m->at.head_first = c->untied ? m->at.norm + 1 : 0;
}

float st_model_aux_loss_coef(const struct st_model_config *config, bool asked, double coef)
{
    if (!isnan(coef))
        return (float)coef;
    return config->aux_loss || asked ? config->aux_loss_coef : 0.0f;
}

/* How many pages, of nearly equally many experts each. */
static uint32_t slices_of(struct st_model *m)
{
    const struct st_model_config *c = &m->config;
    const uint64_t few = m->batch.generate ? 1 : ST_SLICE_ELEMS, most = m->batch.slice_elems > 0 ? m->batch.slice_elems : few;
    const uint64_t whole = most / st_model_expert_elems(c);
    const uint32_t fit = whole < 1 ? 1 : whole < c->experts ? (uint32_t)whole : c->experts, slices = (c->experts + fit - 1) / fit;

    m->slice_experts = (c->experts + slices - 1) / slices;
    return (c->experts + m->slice_experts - 1) / m->slice_experts;
}

static strata_status count_pages(struct st_model *m)
{
    const struct st_model_config *c = &m->config;
    const uint32_t slice = st_table_slice_rows(c->vocab, c->hidden);
    uint32_t page = (c->vocab + slice - 1) / slice + (c->positions == ST_POSITION_LEARNED ? 1 : 0);

    m->block_pages = calloc(c->blocks + (size_t)1, sizeof(*m->block_pages));
    if (m->block_pages == NULL)
        return st_nomem(0);
    for (uint32_t b = 0; b < c->blocks; b++) {
        const bool sparse = st_model_is_sparse(m, b);

        m->has[sparse] = true;
        m->block_pages[b] = page;
        page += 1 + (sparse ? slices_of(m) : 0);
    }
    m->block_pages[c->blocks] = page;
    return STRATA_OK;
}

/* The scratch of a block's attention, and with it of all ops, depends on the device. */
static void workload_scratch(struct st_model *m)
{
    const uint64_t head = st_head_workspace_layout(m).bytes, slice = m->has[1] ? st_slice_workspace_layout(m).bytes : 0;
    uint64_t most = st_block_workspace_layout(m).bytes;

    most = head > most ? head : most;
    m->workload.workspace_bytes = slice > most ? slice : most;
}

static void workload_bytes(struct st_model *m)
{
    struct st_workload *w = &m->workload;

    if (m->has[1] && !w->generate && m->batch.aux_loss_coef > 0.0f) {
        w->routes_bytes = st_routes_layout(m).bytes;
        w->aux_loss_coef = (double)m->batch.aux_loss_coef;
    }
    for (uint32_t l = 0; l + 1 < w->layer_count; l++) {
        w->layers[l].boundary_bytes = (uint64_t)w->micro_batch * w->seq * w->hidden * m->value_bytes;
        w->layers[l].internal_bytes = l > 0 ? st_block_internal_bytes(m, st_model_is_sparse(m, l - 1)) : 0;
    }
    w->layers[w->layer_count - 1].internal_bytes = st_head_internals_layout(m).bytes;
    w->logit_cap = w->generate ? m->config.logit_cap : 0.0f;
    if (w->generate && m->has[1]) {
        w->experts = m->config.experts;
        w->slice_experts = m->slice_experts;
        w->choice_offset = st_block_internal_bytes(m, true) - st_route_values_layout(m).bytes + st_route_values_layout(m).offsets;
    }
    w->logits_offset = w->generate ? st_head_internals_layout(m).logits : 0;
    workload_scratch(m);
}

/* Fraction of the model's own matrices in pages first .. first + count - 1, experts' or others, that get no gradient. */
static double frozen_fraction(const struct st_model *m, uint32_t first, uint32_t count, bool experts)
{
    double frozen = 0.0, all = 0.0;

    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];

        if (t->page >= first && t->page < first + count && t->adapts == ST_NO_TENSOR && t->rank == 2 &&
            (t->expert != ST_NO_EXPERT) == experts) {
            frozen += t->frozen ? (double)t->elems : 0.0;
            all += (double)t->elems;
        }
    }
    return frozen / all;
}

/* Operations of a row in the adapters of a block, on average: A x, B (A x); backward A x and dy B for the gradients of B and A,
 * dy B again, and what it adds to the gradient of the input. */
static void adapter_flops(const struct st_model *m, double *forward, double *backward)
{
    *forward = *backward = 0.0;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];

        if (t->adapts == ST_NO_TENSOR || t->expert != ST_NO_EXPERT)
            continue;
        *forward += 2.0 * (double)t->elems / m->config.blocks;
        *backward += 6.0 * (double)t->elems / m->config.blocks;
    }
}

/* Parameters that a token does not use: those of the experts that it has not chosen. */
struct idle {
    double params, trained;
};

static struct idle idle_of(const struct st_model *m)
{
    const double left = m->has[1] ? 1.0 - (double)m->config.experts_chosen / m->config.experts : 0.0;
    struct idle idle = {0};

    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];

        if (t->expert == ST_NO_EXPERT)
            continue;
        idle.params += left * (double)t->elems;
        idle.trained += t->frozen ? 0.0 : left * (double)t->elems;
    }
    return idle;
}

/* Columns of a block's products beside attention's, experts aside, as if all had the hidden size as their other side. */
static double feed_forward_columns(const struct st_model *m, bool sparse)
{
    if (!sparse)
        return m->width.fc + (double)m->config.ffn;
    return m->width.shared + (double)m->config.shared_ffn + m->config.experts + (m->config.shared_ffn > 0 ? 1.0 : 0.0);
}

/* Of the adapters of an expert, on average. */
static double expert_adapter_elems(const struct st_model *m)
{
    double elems = 0, experts = 0;

    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];

        if (t->expert == ST_NO_EXPERT)
            continue;
        elems += t->adapts != ST_NO_TENSOR ? (double)t->elems : 0.0;
        experts += t->adapts == ST_NO_TENSOR && t->part == ST_EXPERT_GATE ? 1.0 : 0.0;
    }
    return elems / experts;
}

/* Backward makes what is inside an expert again. */
static void experts_flops(const struct st_model *m, struct st_layer *l, double rows)
{
    const double frozen = frozen_fraction(m, m->at.block_first, m->at.norm - m->at.block_first, true);

    const double adapters = expert_adapter_elems(m);

    l->experts_forward_flops = 2.0 * rows * m->config.experts_chosen * (double)st_model_expert_elems(&m->config);
    l->experts_backward_flops = (3.0 - frozen) * l->experts_forward_flops;
    l->experts_forward_flops += 2.0 * rows * m->config.experts_chosen * adapters;
    l->experts_backward_flops += 8.0 * rows * m->config.experts_chosen * adapters;
}

/* Attention counts the full square, as the usual MFU formula does.  The head's backward recomputes the logits. A frozen matrix's
 * backward has no product for its weights; all blocks get the mean over the blocks. */
static void workload_flops(struct st_model *m)
{
    const double hidden = m->config.hidden, attention = m->width.attention;
    const double seq = m->batch.generate ? m->batch.context : m->batch.seq;
    const double rows = (double)m->batch.micro_batch * m->batch.seq;
    const double frozen = frozen_fraction(m, m->at.block_first, m->at.norm - m->at.block_first, false);
    const struct idle idle = idle_of(m);
    struct st_workload *w = &m->workload;
    struct st_layer *head = &w->layers[w->layer_count - 1];
    double params = -idle.params, adapters_forward, adapters_backward;

    adapter_flops(m, &adapters_forward, &adapters_backward);
    for (uint32_t i = 0; i < w->page_count; i++)
        params += (double)w->pages[i].params;
    for (struct st_layer *l = &w->layers[1]; l < head; l++) {
        const bool sparse = l->kind == ST_LAYER_EXPERTS;
        const double linear = 2.0 * hidden * (m->width.qkv + attention + feed_forward_columns(m, sparse));

        l->forward_flops = rows * (linear + 4.0 * seq * attention);
        l->backward_flops = 2.0 * l->forward_flops - rows * linear * frozen;
        l->forward_flops += rows * adapters_forward;
        l->backward_flops += rows * adapters_backward;
        if (sparse)
            experts_flops(m, l, rows);
    }
    head->forward_flops = (w->generate ? 1.0 : rows) * 2.0 * hidden * m->config.vocab;
    head->backward_flops = (3.0 - frozen_fraction(m, m->at.head_first, m->at.head_count, false)) * head->forward_flops;
    w->model_flops_per_token =
        4.0 * params + 2.0 * ((double)w->params - idle.trained) + 12.0 * m->config.blocks * attention * seq;
}

static strata_status make_rotary(struct st_model *m)
{
    const struct st_model_config *c = &m->config;
    const uint32_t positions = m->batch.generate ? m->batch.context : m->batch.seq;
    const uint32_t tables = c->rope_local_base > 0.0f ? 2 : 1;

    if (c->positions != ST_POSITION_ROTARY)
        return STRATA_OK;
    m->rotary_elems = (uint64_t)positions * c->rotary_dim;
    m->workload.constants_bytes = tables * m->rotary_elems * sizeof(float);
    m->rotary = malloc(m->workload.constants_bytes);
    if (m->rotary == NULL)
        return st_nomem(m->workload.constants_bytes);
    st_rotary_table(m->rotary, c, positions, false);
    if (tables == 2)
        st_rotary_table(m->rotary + m->rotary_elems, c, positions, true);
    return STRATA_OK;
}

/* The device's scratch: the most that a block's attention needs. */
static uint64_t attention_bytes(const struct st_model *m)
{
    const struct st_tensor_ops *ops = m->batch.ops != NULL ? m->batch.ops : &st_tensor_cpu_ops;
    uint64_t bytes = 0;

    for (uint32_t b = 0; b < m->config.blocks; b++) {
        const struct st_attention at = st_block_attention(m, b);
        const uint64_t own = ops->attention_workspace(&at, m->workload.workers);

        bytes = own > bytes ? own : bytes;
    }
    return bytes;
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
        return st_nomem(sizeof(*m));
    m->config = *config;
    m->config.kv_heads = config->kv_heads > 0 ? config->kv_heads : config->heads;
    m->config.head_dim = config->head_dim > 0 ? config->head_dim : config->hidden / config->heads;
    m->config.rotary_dim = config->rotary_dim > 0 ? config->rotary_dim : m->config.head_dim;
    m->batch = *batch;
    m->batch.freeze = NULL;
    m->batch.adapter = NULL;
    m->value_bytes = (uint32_t)strata_dtype_bytes(batch->dtype);
    m->width = widths_of(&m->config);
    m->embed_factor = embed_factor_of(&m->config, batch->dtype);
    if ((st = count_pages(m)) != STRATA_OK)
        goto fail;
    workload_numbers(m);
    if ((st = st_model_build_pages(m, batch)) != STRATA_OK || (st = make_rotary(m)) != STRATA_OK)
        goto fail;
    m->attention_bytes = attention_bytes(m);
    workload_bytes(m);
    workload_flops(m);
    if ((st = st_workload_check(&m->workload)) != STRATA_OK)
        goto fail;
    *out = m;
    return STRATA_OK;

fail:
    st_model_destroy(m);
    return st;
}

void st_model_destroy(struct st_model *m)
{
    if (m == NULL)
        return;
    free(m->tensors);
    free(m->block_pages);
    free(m->page_tensors);
    free(m->rotary);
    st_workload_fini(&m->workload);
    free(m);
}

const struct st_workload *st_model_workload(const struct st_model *m)
{
    return &m->workload;
}

struct st_workload st_model_workload_on(const struct st_model *m, const struct st_tensor_ops *ops, uint32_t workers)
{
    struct st_model other = *m; /* nothing of it is owned */

    other.batch.ops = ops;
    other.workload.workers = workers;
    other.attention_bytes = attention_bytes(&other);
    workload_scratch(&other);
    return other.workload;
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
    return (struct st_compute){.model = m, .constants = m->rotary, .run = st_decoder_run};
}
