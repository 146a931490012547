/* model/layout.c - sizes and offsets: see layout.h. */
#include "model/layout.h"
#include <assert.h>
#include <math.h>

#define SLICE_ELEMS_MAX (4u << 20)
#define SLICE_ROWS_MAX  4096u
#define SLICE_ROWS_MIN  64u

/* Bytes that stay free behind each part of a buffer: some in tests, which see whether a part is overrun. */
#ifndef ST_LAYOUT_GAP
#define ST_LAYOUT_GAP 0u
#endif

static uint64_t rows_of(const struct st_model *m)
{
    return (uint64_t)m->batch.micro_batch * m->batch.seq;
}

/* Allocates `bytes` at the running end, which stays aligned. */
static uint64_t take(uint64_t *end, uint64_t bytes)
{
    const uint64_t at = *end;

    *end = at + (bytes + ST_LAYOUT_GAP + ST_BUFFER_ALIGN - 1) / ST_BUFFER_ALIGN * ST_BUFFER_ALIGN;
    return at;
}

/* Per row: rstd, and the mean if the norm has one. */
static uint64_t stats_bytes(const struct st_model *m)
{
    return rows_of(m) * (m->config.norm == ST_NORM_LAYERNORM ? 2 : 1) * sizeof(float);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

bool st_model_is_gated(const struct st_model_config *c)
{
    return c->activation != ST_ACTIVATION_GELU && c->activation != ST_ACTIVATION_GELU_EXACT;
}

enum st_activation st_model_activation(const struct st_model_config *c)
{
    static const enum st_activation activations[] = {[ST_ACTIVATION_GELU] = ST_GELU_TANH,
                                                     [ST_ACTIVATION_SWIGLU] = ST_SILU,
                                                     [ST_ACTIVATION_GELU_EXACT] = ST_GELU_ERF,
                                                     [ST_ACTIVATION_GEGLU] = ST_GELU_TANH,
                                                     [ST_ACTIVATION_GEGLU_EXACT] = ST_GELU_ERF};

    return activations[c->activation];
}

/* Scale 0 is the ops' own, 1 / sqrt(head_dim).  A window as long as the sequence counts as no window. */
struct st_attention st_block_attention(const struct st_model *m, uint32_t block)
{
    const struct st_model_config *c = &m->config;
    const double scalar = c->query_scalar > 0.0f ? (double)c->query_scalar : c->head_dim;
    const bool own = c->query_scalar == 0.0f && !c->inverse_layer_scale;
    const uint32_t seq = m->batch.generate ? m->batch.context : m->batch.seq;

    return (struct st_attention){
        .batch = m->batch.micro_batch,
        .seq = seq,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .qkv_stride = m->width.packed,
        .out_stride = m->width.attention,
        .dt = m->batch.dtype,
        .window = st_layer_bit(c->sliding, block) && c->window < seq ? c->window : 0,
        .scale = own ? 0.0f : (float)(1.0 / sqrt(scalar) / (c->inverse_layer_scale ? block + 1.0 : 1.0)),
        .softcap = c->score_cap,
    };
}

/* RMSNorm's statistics of queries and keys: one number for all heads, or one each. */
static uint64_t qk_stats_bytes(const struct st_model *m, uint32_t heads)
{
    const enum st_qk_norm_type norm = m->config.qk_norm;

    return norm == ST_QK_NORM_NONE ? 0 : rows_of(m) * (norm == ST_QK_NORM_HEAD ? heads : 1) * sizeof(float);
}

static bool has_post(const struct st_model *m)
{
    return m->roles[0].of[ST_ROLE_POST1_WEIGHT] != ST_NO_TENSOR;
}

struct st_block_values st_block_values_layout(const struct st_model *m, bool sparse)
{
    const uint64_t row = rows_of(m) * m->value_bytes; /* bytes of one column of all rows */
    const bool post = has_post(m);
    struct st_block_values l;
    uint64_t end = 0;

    l.stats[0] = take(&end, stats_bytes(m));
    l.stats[1] = take(&end, stats_bytes(m));
    l.post_stats[0] = take(&end, post ? stats_bytes(m) : 0);
    l.post_stats[1] = take(&end, post ? stats_bytes(m) : 0);
    l.qk_stats[0] = take(&end, qk_stats_bytes(m, m->config.heads));
    l.qk_stats[1] = take(&end, qk_stats_bytes(m, m->config.kv_heads));
    l.lse = take(&end, rows_of(m) * m->config.heads * sizeof(float));
    l.qkv = take(&end, row * m->width.packed);
    l.attention = take(&end, row * m->width.attention);
    l.projected = take(&end, post ? row * m->config.hidden : 0);
    l.middle = take(&end, row * m->config.hidden);
    l.fc = take(&end, row * (sparse ? m->width.shared : m->width.fc));
    l.down = take(&end, post ? row * m->config.hidden : 0);
    l.bytes = end;
    return l;
}

struct st_block_cache st_block_cache_layout(const struct st_model *m)
{
    const uint64_t bytes = (uint64_t)m->batch.context * m->width.kv * m->value_bytes;
    struct st_block_cache l;
    uint64_t end = 0;

    l.keys = take(&end, bytes);
    l.values = take(&end, bytes);
    l.bytes = end;
    return l;
}

struct st_route_values st_route_values_layout(const struct st_model *m)
{
    const struct st_model_config *c = &m->config;
    const uint64_t rows = rows_of(m), row = rows * m->value_bytes, chosen = rows * c->experts_chosen * sizeof(float);
    const bool trains = !m->batch.generate;
    struct st_route_values l;
    uint64_t end = 0;

    l.input = take(&end, row * c->hidden);
    l.probs = take(&end, rows * c->experts * sizeof(float));
    l.ids = take(&end, chosen);
    l.weights = take(&end, chosen);
    l.order = take(&end, chosen);
    l.places = take(&end, chosen);
    l.offsets = take(&end, (c->experts + (uint64_t)1) * sizeof(int32_t));
    l.sum = take(&end, rows * c->hidden * sizeof(float));
    l.dweights = take(&end, trains ? chosen : 0);
    l.shared = take(&end, c->shared_ffn > 0 ? row * c->hidden : 0);
    l.shared_gate = take(&end, c->shared_ffn > 0 ? row : 0);
    l.bytes = end;
    return l;
}

struct st_routes st_routes_layout(const struct st_model *m)
{
    struct st_routes l;
    uint64_t end = 0;

    l.counts = take(&end, m->config.experts * sizeof(int64_t));
    l.sums = take(&end, m->config.experts * sizeof(double));
    l.bytes = end;
    return l;
}

struct st_slice_workspace st_slice_workspace_layout(const struct st_model *m)
{
    const struct st_model_config *c = &m->config;
    const uint32_t most = c->experts_chosen < m->slice_experts ? c->experts_chosen : m->slice_experts;
    const uint64_t row = rows_of(m) * most * m->value_bytes;
    const uint64_t wide = m->experts_rank > 0 && m->batch.dtype != STRATA_F32 ? rows_of(m) * most * sizeof(float) : 0;
    struct st_slice_workspace l;
    uint64_t end = 0;

    l.input = take(&end, row * c->hidden);
    l.output = take(&end, row * c->hidden);
    l.fc = take(&end, row * 2 * c->expert_ffn);
    l.gated = take(&end, row * c->expert_ffn);
    l.widened = take(&end, m->batch.nf4 ? m->slice_experts * st_model_expert_elems(c) * m->value_bytes : 0);
    l.wide_in = take(&end, wide * larger(c->hidden, c->expert_ffn));
    l.wide_out = take(&end, wide * larger(c->hidden, 2 * c->expert_ffn));
    l.ranks = take(&end, (1 + ST_EXPERT_ADAPTERS) * rows_of(m) * most * m->experts_rank * sizeof(float));
    l.bytes = end;
    return l;
}

uint64_t st_block_internal_bytes(const struct st_model *m, bool sparse)
{
    const uint64_t own = m->batch.generate ? st_block_cache_layout(m).bytes : st_block_values_layout(m, sparse).bytes;

    return own + (sparse ? st_route_values_layout(m).bytes : 0);
}

/* The most that a feed-forward of the model's blocks has: before the activation, and behind it. */
static uint32_t fc_most(const struct st_model *m)
{
    return larger(m->has[0] ? m->width.fc : 0, m->has[1] ? m->width.shared : 0);
}
static uint32_t ffn_most(const struct st_model *m)
{
    return larger(m->has[0] ? m->config.ffn : 0, m->has[1] ? m->config.shared_ffn : 0);
}

/* The most that a part of a linear layer may have. */
static uint64_t widened_elems(const struct st_model *m)
{
    const struct st_model_widths *w = &m->width;

    return (uint64_t)m->config.hidden * larger(larger(w->qkv, w->attention), larger(fc_most(m), ffn_most(m)));
}

static uint64_t values_most(const struct st_model *m)
{
    const uint64_t dense = m->has[0] ? st_block_values_layout(m, false).bytes : 0,
                   sparse = m->has[1] ? st_block_values_layout(m, true).bytes : 0;

    return dense > sparse ? dense : sparse;
}

struct st_block_workspace st_block_workspace_layout(const struct st_model *m)
{
    const uint64_t row = rows_of(m) * m->value_bytes;
    const bool half = st_model_is_gated(&m->config) || has_post(m) || m->config.embed_scaled;
    const bool biases = m->config.biases != ST_BIAS_NONE || m->config.mlp_bias;
    const bool apart =
        biases && (m->batch.freeze_count > 0 || m->adapted.rank > 0 || m->experts_rank > 0 || m->width.packed != m->width.qkv);
    const uint64_t adapted = (rows_of(m) < ST_ADAPTED_ROWS ? rows_of(m) : ST_ADAPTED_ROWS) * sizeof(float);
    const uint32_t sums = m->config.mlp_bias ? larger(m->width.packed, fc_most(m)) : m->width.packed;
    struct st_block_workspace l;
    uint64_t end = 0;

    l.narrow = take(&end, row * larger(m->config.hidden, m->width.attention));
    l.wide = take(&end, row * larger(fc_most(m), m->width.packed));
    l.half = take(&end, half ? row * larger(ffn_most(m), m->config.hidden) : 0);
    l.sums = take(&end, apart ? sums * sizeof(float) : 0);
    l.adapted_in = take(&end, adapted * m->adapted.in);
    l.adapted_out = take(&end, adapted * (m->dropout > 0 ? larger(m->adapted.in, m->adapted.out) : m->adapted.out));
    l.adapted_rank[0] = take(&end, adapted * m->adapted.rank);
    l.adapted_rank[1] = take(&end, adapted * m->adapted.rank);
    l.logits = take(&end, m->has[1] ? row * m->config.experts : 0);
    l.widened = take(&end, m->batch.nf4 ? widened_elems(m) * m->value_bytes : 0);
    l.values = take(&end, m->batch.generate ? values_most(m) : 0);
    l.slice = 0;
    if (m->batch.generate && m->has[1])
        l.slice = take(&end, st_slice_workspace_layout(m).bytes);
    l.attention = take(&end, m->attention_bytes); /* last: st_model_workload_on() changes only this size */
    l.bytes = end;
    return l;
}

struct st_head_internals st_head_internals_layout(const struct st_model *m)
{
    const uint64_t rows = rows_of(m);
    const bool generate = m->batch.generate;
    struct st_head_internals l;
    uint64_t end = 0;

    l.stats = take(&end, stats_bytes(m));
    l.xent = take(&end, generate ? 0 : rows * 3 * sizeof(float));
    l.normalised = take(&end, rows * m->config.hidden * m->value_bytes);
    l.gradient = take(&end, generate ? 0 : rows * m->config.hidden * sizeof(float));
    l.logits = take(&end, generate ? m->config.vocab * sizeof(float) : 0);
    l.bytes = end;
    return l;
}

/* Generation writes its logits to their final place, so it needs no workspace for them. */
struct st_head_workspace st_head_workspace_layout(const struct st_model *m)
{
    const uint64_t slice = st_table_slice_rows(m->config.vocab, m->config.hidden);
    const uint64_t elems = m->batch.generate ? 0 : st_head_rows(m) * slice;
    struct st_head_workspace l;
    uint64_t end = 0;

    l.logits = take(&end, elems * sizeof(float));
    l.dlogits = take(&end, elems * m->value_bytes);
    l.bytes = end;
    return l;
}

uint32_t st_table_slice_rows(uint32_t vocab, uint32_t hidden)
{
    uint32_t rows = SLICE_ROWS_MAX;

    while (rows > SLICE_ROWS_MIN && (uint64_t)rows * hidden > SLICE_ELEMS_MAX)
        rows /= 2;
    return rows < vocab ? rows : vocab;
}

uint32_t st_head_rows(const struct st_model *m)
{
    const uint32_t most = ST_HEAD_LOGITS / st_table_slice_rows(m->config.vocab, m->config.hidden);

    return rows_of(m) < most ? (uint32_t)rows_of(m) : most;
}

bool st_model_is_slice(const struct st_model *m, uint32_t page)
{
    return page >= m->at.block_first && page < m->at.norm && page != m->block_pages[m->workload.pages[page].layer - 1];
}

void st_model_slice(const struct st_model *m, uint32_t slice, uint32_t *first, uint32_t *count)
{
    *first = slice * m->slice_experts;
    *count = m->config.experts - *first < m->slice_experts ? m->config.experts - *first : m->slice_experts;
}

bool st_model_is_turned(const struct st_model *m, const struct st_tensor *t)
{
    return t->expert != ST_NO_EXPERT ? st_family_is_fused(st_family_of(m->config.family)) : !m->config.out_in;
}

uint64_t st_model_expert_elems(const struct st_model_config *c)
{
    return 3 * (uint64_t)c->hidden * c->expert_ffn;
}

void st_model_page_tensors(const struct st_model *m, uint32_t page, uint32_t *first, uint32_t *count)
{
    const uint32_t *of = m->page_tensors + page - m->at.block_first;

    *count = 1;
    if (page < m->at.block_first) {
        *first = page == m->at.positions;
    } else if (page < m->at.norm) {
        *first = of[0];
        *count = of[1] - *first;
    } else if (page == m->at.norm) {
        *first = of[0];
        *count = m->norm_tensor_count;
    } else {
        *first = m->tensor_count - 1;
    }
}

bool st_model_piece(const struct st_model *m, uint32_t page, uint64_t first, uint64_t count, uint32_t i, struct st_piece *out)
{
    const struct st_page *p = &m->workload.pages[page];
    uint32_t tensor_index, tensor_count;
    uint64_t skipped, elems, begin, end;
    const struct st_tensor *t;

    st_model_page_tensors(m, page, &tensor_index, &tensor_count);
    if (i >= tensor_count)
        return false;
    t = &m->tensors[tensor_index + i];
    skipped = (uint64_t)p->row_first * m->config.hidden; /* of the table or head before this slice */
    elems = p->row_count > 0 ? (uint64_t)p->row_count * m->config.hidden : t->elems;
    begin = first > t->offset ? first : t->offset;
    end = first + count < t->offset + elems ? first + count : t->offset + elems;
    out->tensor = t;
    out->count = end > begin ? end - begin : 0;
    out->tensor_first = out->count > 0 ? skipped + begin - t->offset : 0;
    out->range_first = out->count > 0 ? begin - first : 0;
    return true;
}
