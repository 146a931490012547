/* model/tensors.c - the tensors of a model, their names and initial values, and their places in pages.
 *
 * Page order is parameter order: table slices, positions, blocks, final norm, head slices.  Inside a page the decayed matrices
 * come first, then norms and biases, then frozen tensors, each group a dense run of its tensors in list order. */
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "model/layout.h"
#include <assert.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INIT_STD 0.02

enum dim { DIM_NONE, DIM_HIDDEN, DIM_ATTENTION, DIM_KV, DIM_QKV, DIM_FFN };
enum init { INIT_NORMAL, INIT_RESIDUAL, INIT_ONE, INIT_ZERO };

struct block_tensor {
    enum st_block_role role;
    const char *name;
    enum dim rows, cols;
    enum init init;
};

static const struct block_tensor gpt2_block[] = {
    {ST_ROLE_Q_WEIGHT, "attn.c_attn.weight", DIM_HIDDEN, DIM_QKV, INIT_NORMAL},
    {ST_ROLE_PROJ_WEIGHT, "attn.c_proj.weight", DIM_HIDDEN, DIM_HIDDEN, INIT_RESIDUAL},
    {ST_ROLE_GATE_WEIGHT, "mlp.c_fc.weight", DIM_HIDDEN, DIM_FFN, INIT_NORMAL},
    {ST_ROLE_DOWN_WEIGHT, "mlp.c_proj.weight", DIM_FFN, DIM_HIDDEN, INIT_RESIDUAL},
    {ST_ROLE_NORM1_WEIGHT, "ln_1.weight", DIM_HIDDEN, DIM_NONE, INIT_ONE},
    {ST_ROLE_NORM1_BIAS, "ln_1.bias", DIM_HIDDEN, DIM_NONE, INIT_ZERO},
    {ST_ROLE_Q_BIAS, "attn.c_attn.bias", DIM_QKV, DIM_NONE, INIT_ZERO},
    {ST_ROLE_PROJ_BIAS, "attn.c_proj.bias", DIM_HIDDEN, DIM_NONE, INIT_ZERO},
    {ST_ROLE_NORM2_WEIGHT, "ln_2.weight", DIM_HIDDEN, DIM_NONE, INIT_ONE},
    {ST_ROLE_NORM2_BIAS, "ln_2.bias", DIM_HIDDEN, DIM_NONE, INIT_ZERO},
    {ST_ROLE_GATE_BIAS, "mlp.c_fc.bias", DIM_FFN, DIM_NONE, INIT_ZERO},
    {ST_ROLE_DOWN_BIAS, "mlp.c_proj.bias", DIM_HIDDEN, DIM_NONE, INIT_ZERO},
};

static const struct block_tensor llama_block[] = {
    {ST_ROLE_Q_WEIGHT, "self_attn.q_proj.weight", DIM_ATTENTION, DIM_HIDDEN, INIT_NORMAL},
    {ST_ROLE_K_WEIGHT, "self_attn.k_proj.weight", DIM_KV, DIM_HIDDEN, INIT_NORMAL},
    {ST_ROLE_V_WEIGHT, "self_attn.v_proj.weight", DIM_KV, DIM_HIDDEN, INIT_NORMAL},
    {ST_ROLE_PROJ_WEIGHT, "self_attn.o_proj.weight", DIM_HIDDEN, DIM_ATTENTION, INIT_NORMAL},
    {ST_ROLE_GATE_WEIGHT, "mlp.gate_proj.weight", DIM_FFN, DIM_HIDDEN, INIT_NORMAL},
    {ST_ROLE_UP_WEIGHT, "mlp.up_proj.weight", DIM_FFN, DIM_HIDDEN, INIT_NORMAL},
    {ST_ROLE_DOWN_WEIGHT, "mlp.down_proj.weight", DIM_HIDDEN, DIM_FFN, INIT_NORMAL},
    {ST_ROLE_NORM1_WEIGHT, "input_layernorm.weight", DIM_HIDDEN, DIM_NONE, INIT_ONE},
    {ST_ROLE_Q_BIAS, "self_attn.q_proj.bias", DIM_ATTENTION, DIM_NONE, INIT_ZERO},
    {ST_ROLE_K_BIAS, "self_attn.k_proj.bias", DIM_KV, DIM_NONE, INIT_ZERO},
    {ST_ROLE_V_BIAS, "self_attn.v_proj.bias", DIM_KV, DIM_NONE, INIT_ZERO},
    {ST_ROLE_PROJ_BIAS, "self_attn.o_proj.bias", DIM_HIDDEN, DIM_NONE, INIT_ZERO},
    {ST_ROLE_NORM2_WEIGHT, "post_attention_layernorm.weight", DIM_HIDDEN, DIM_NONE, INIT_ONE},
};

/* A family's names; those of a block follow the number of the block. */
struct names {
    const char *table, *positions, *block, *norm_weight, *norm_bias, *head;
    const struct block_tensor *tensors;
    uint32_t count;
};

static const struct names gpt2_names = {
    .table = "transformer.wte.weight",
    .positions = "transformer.wpe.weight",
    .block = "transformer.h",
    .norm_weight = "transformer.ln_f.weight",
    .norm_bias = "transformer.ln_f.bias",
    .tensors = gpt2_block,
    .count = sizeof(gpt2_block) / sizeof(gpt2_block[0]),
};
static const struct names llama_names = {
    .table = "model.embed_tokens.weight",
    .block = "model.layers",
    .norm_weight = "model.norm.weight",
    .head = "lm_head.weight",
    .tensors = llama_block,
    .count = sizeof(llama_block) / sizeof(llama_block[0]),
};

static const struct names *names_of(const struct st_model *m)
{
    return m->config.family == ST_FAMILY_GPT2 ? &gpt2_names : &llama_names;
}

static uint64_t extent(const struct st_model *m, enum dim dim)
{
    switch (dim) {
    case DIM_NONE:
        return 0;
    case DIM_HIDDEN:
        return m->config.hidden;
    case DIM_ATTENTION:
        return m->width.attention;
    case DIM_KV:
        return m->width.kv;
    case DIM_QKV:
        return m->width.qkv;
    case DIM_FFN:
        break;
    }
    return m->config.ffn;
}

static bool wanted(const struct st_model *m, enum st_block_role role)
{
    const enum st_bias_type biases = m->config.biases;

    switch (role) {
    case ST_ROLE_Q_BIAS:
    case ST_ROLE_K_BIAS:
    case ST_ROLE_V_BIAS:
        return biases != ST_BIAS_NONE;
    case ST_ROLE_PROJ_BIAS:
        return biases == ST_BIAS_ALL || biases == ST_BIAS_ATTENTION;
    default:
        return true;
    }
}

/* --- the list --- */

static bool matches(const struct st_model_batch *batch, const char *name)
{
    for (uint32_t i = 0; i < batch->freeze_count; i++) {
        if (fnmatch(batch->freeze[i], name, 0) == 0)
            return true;
    }
    return false;
}

static struct st_tensor *add(struct st_model *m, const struct st_model_batch *batch, uint32_t page, const char *name,
                             uint64_t rows, uint64_t cols, enum init init)
{
    struct st_tensor *t = &m->tensors[m->tensor_count++];
    const double residual = INIT_STD / sqrt(2.0 * m->config.blocks);

    snprintf(t->name, sizeof(t->name), "%s", name);
    t->rank = cols > 0 ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->elems = cols > 0 ? rows * cols : rows;
    t->page = page;
    t->page_count = 1;
    t->init_std = (float)(init == INIT_NORMAL ? INIT_STD : init == INIT_RESIDUAL ? residual : 0.0);
    t->init_mean = init == INIT_ONE ? 1.0f : 0.0f;
    t->stream = st_checksum64(t->name, strlen(t->name));
    t->frozen = matches(batch, t->name);
    return t;
}

static void list_block(struct st_model *m, const struct st_model_batch *batch, uint32_t block)
{
    const struct names *names = names_of(m);

    for (uint32_t i = 0; i < names->count; i++) {
        const struct block_tensor *t = &names->tensors[i];
        char name[sizeof(m->tensors->name)];

        if (!wanted(m, t->role))
            continue;
        if (block == 0)
            m->role[t->role] = m->tensor_count - m->block_tensor_first;
        snprintf(name, sizeof(name), "%s.%u.%s", names->block, block, t->name);
        add(m, batch, m->workload.block_first + block, name, extent(m, t->rows), extent(m, t->cols), t->init);
    }
}

static void list_tensors(struct st_model *m, const struct st_model_batch *batch)
{
    const struct names *names = names_of(m);
    const struct st_model_config *c = &m->config;
    const struct st_workload *w = &m->workload;

    for (uint32_t i = 0; i < ST_ROLE_COUNT; i++)
        m->role[i] = ST_NO_TENSOR;
    add(m, batch, w->table_first, names->table, c->vocab, c->hidden, INIT_NORMAL)->page_count = w->table_count;
    if (c->positions == ST_POSITION_LEARNED)
        add(m, batch, w->position_page, names->positions, c->context, c->hidden, INIT_NORMAL);
    m->block_tensor_first = m->tensor_count;
    for (uint32_t b = 0; b < c->blocks; b++)
        list_block(m, batch, b);
    m->block_tensor_count = (m->tensor_count - m->block_tensor_first) / c->blocks;
    m->norm_tensor_first = m->tensor_count;
    add(m, batch, w->norm_page, names->norm_weight, c->hidden, 0, INIT_ONE);
    if (c->norm == ST_NORM_LAYERNORM)
        add(m, batch, w->norm_page, names->norm_bias, c->hidden, 0, INIT_ZERO);
    m->norm_tensor_count = m->tensor_count - m->norm_tensor_first;
    if (c->untied)
        add(m, batch, w->head_first, names->head, c->vocab, c->hidden, INIT_NORMAL)->page_count = w->head_count;
}

/* --- places --- */

static enum st_group_kind kind_of(const struct st_model *m, const struct st_tensor *t)
{
    if (t->frozen)
        return ST_GROUP_FROZEN;
    return t->rank == 2 || m->batch.decay_all ? ST_GROUP_DECAY : ST_GROUP_NO_DECAY;
}

static void place_page(struct st_model *m, uint32_t page, enum st_page_kind kind, uint32_t layer)
{
    static const enum st_group_kind kinds[] = {ST_GROUP_DECAY, ST_GROUP_NO_DECAY, ST_GROUP_FROZEN};
    struct st_page *p = &m->workload.pages[page];
    uint32_t first, count;

    *p = (struct st_page){.kind = kind, .layer = layer};
    st_model_page_tensors(m, page, &first, &count);
    for (uint32_t k = 0; k < ST_GROUPS_MAX; k++) {
        for (uint32_t i = first; i < first + count; i++) {
            if (kind_of(m, &m->tensors[i]) == kinds[k])
                m->tensors[i].offset = st_page_add(p, kinds[k], m->batch.dtype, m->tensors[i].elems);
        }
    }
}

static void place_slices(struct st_model *m, const struct st_tensor *t, enum st_page_kind kind, uint32_t layer)
{
    const uint32_t vocab = m->config.vocab, slice = st_table_slice_rows(vocab, m->config.hidden);

    for (uint32_t i = 0; i < t->page_count; i++) {
        struct st_page *p = &m->workload.pages[t->page + i];
        const uint32_t row = i * slice;

        *p = (struct st_page){
            .kind = kind, .layer = layer, .row_first = row, .row_count = vocab - row < slice ? vocab - row : slice};
        (void)st_page_add(p, kind_of(m, t), m->batch.dtype, (uint64_t)p->row_count * m->config.hidden);
    }
}

static void place_tensors(struct st_model *m)
{
    const struct st_workload *w = &m->workload;

    place_slices(m, &m->tensors[0], ST_PAGE_TABLE, 0);
    if (w->position_page != ST_NO_PAGE)
        place_page(m, w->position_page, ST_PAGE_POSITIONS, 0);
    for (uint32_t b = 0; b < w->block_count; b++)
        place_page(m, w->block_first + b, ST_PAGE_BLOCK, b + 1);
    place_page(m, w->norm_page, ST_PAGE_NORM, w->block_count + 1);
    if (!w->tied)
        place_slices(m, &m->tensors[m->tensor_count - 1], ST_PAGE_HEAD, w->block_count + 1);
}

/* --- freezing --- */

static strata_status check_freeze(const struct st_model *m, const struct st_model_batch *batch)
{
    uint64_t frozen = 0;

    for (uint32_t p = 0; p < batch->freeze_count; p++) {
        bool found = false;

        for (uint32_t i = 0; i < m->tensor_count && !found; i++)
            found = fnmatch(batch->freeze[p], m->tensors[i].name, 0) == 0;
        if (!found)
            return st_error(STRATA_E_INVAL, "strata.freeze: \"%.127s\" matches no tensor of model %s; a name is %s",
                            batch->freeze[p], m->config.name, m->tensors[m->block_tensor_first].name);
    }
    for (uint32_t i = 0; i < m->tensor_count; i++)
        frozen += m->tensors[i].frozen;
    if (frozen == m->tensor_count)
        return st_error(STRATA_E_INVAL, "strata.freeze: the patterns match every tensor of model %s: nothing is left to train",
                        m->config.name);
    return STRATA_OK;
}

/* Frozen tensors follow the others of their page; the order of the parameters is still that of the list. */
static strata_status order_parameters(struct st_model *m)
{
    struct st_workload *w = &m->workload;
    uint32_t room = 0;

    for (uint32_t i = 0; i < m->tensor_count; i++)
        room += m->tensors[i].page_count;
    w->order = calloc(room, sizeof(*w->order));
    if (w->order == NULL)
        return st_error(STRATA_E_NOMEM, "pages of model %s", m->config.name);
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];

        for (uint32_t p = t->page; p < t->page + t->page_count; p++)
            w->order[w->order_count++] =
                (struct st_span){.page = p, .offset = t->offset, .elems = t->page_count > 1 ? w->pages[p].params : t->elems};
    }
    return STRATA_OK;
}

strata_status st_model_build_pages(struct st_model *m, const struct st_model_batch *batch)
{
    strata_status st;

    m->workload.pages = calloc(m->workload.page_count, sizeof(*m->workload.pages));
    m->tensors = calloc(5 + (size_t)m->config.blocks * names_of(m)->count, sizeof(*m->tensors));
    if (m->workload.pages == NULL || m->tensors == NULL)
        return st_error(STRATA_E_NOMEM, "pages of model %s", m->config.name);
    list_tensors(m, batch);
    place_tensors(m);
    for (uint32_t i = 0; i < m->tensor_count; i++)
        m->workload.params += m->tensors[i].frozen ? 0 : m->tensors[i].elems;
    if (batch->freeze_count > 0 && (st = order_parameters(m)) != STRATA_OK)
        return st;
    return check_freeze(m, batch);
}

/* --- linear layers --- */

static const struct st_tensor *role_tensor(const struct st_model *m, uint32_t block, enum st_block_role role)
{
    const uint32_t first = m->block_tensor_first + block * m->block_tensor_count;

    return m->role[role] != ST_NO_TENSOR ? &m->tensors[first + m->role[role]] : NULL;
}

static void add_part(struct st_linear *l, const struct st_tensor *weight, const struct st_tensor *bias, uint32_t count)
{
    struct st_linear_part part = {.weight = weight->offset, .bias = bias != NULL ? bias->offset : 0, .first = l->out};
    struct st_linear_part *last = l->part_count > 0 ? &l->parts[l->part_count - 1] : NULL;

    part.trained = weight->frozen ? 0 : count;
    part.trained_biases = bias == NULL || bias->frozen ? 0 : count;
    l->bias = bias != NULL;
    l->out += count;
    if (last != NULL && last->weight + (uint64_t)last->count * l->in == part.weight &&
        (!l->bias || last->bias + last->count == part.bias)) {
        last->count += count;
        last->trained += part.trained;
        last->trained_biases += part.trained_biases;
        return;
    }
    part.count = count;
    l->parts[l->part_count++] = part;
}

struct st_linear st_block_linear(const struct st_model *m, uint32_t block, enum st_linear_kind kind)
{
    static const struct {
        enum st_block_role weight, bias;
    } roles[][ST_LINEAR_PARTS_MAX] = {
        [ST_LINEAR_QKV] = {{ST_ROLE_Q_WEIGHT, ST_ROLE_Q_BIAS},
                           {ST_ROLE_K_WEIGHT, ST_ROLE_K_BIAS},
                           {ST_ROLE_V_WEIGHT, ST_ROLE_V_BIAS}},
        [ST_LINEAR_PROJ] = {{ST_ROLE_PROJ_WEIGHT, ST_ROLE_PROJ_BIAS}},
        [ST_LINEAR_FC] = {{ST_ROLE_GATE_WEIGHT, ST_ROLE_GATE_BIAS}, {ST_ROLE_UP_WEIGHT, ST_ROLE_GATE_BIAS}},
        [ST_LINEAR_DOWN] = {{ST_ROLE_DOWN_WEIGHT, ST_ROLE_DOWN_BIAS}},
    };
    static const uint32_t counts[] = {[ST_LINEAR_QKV] = 3, [ST_LINEAR_PROJ] = 1, [ST_LINEAR_FC] = 2, [ST_LINEAR_DOWN] = 1};
    const uint32_t out_at = m->config.out_in ? 0 : 1;
    struct st_linear l = {0};

    for (uint32_t i = 0; i < counts[kind]; i++) {
        const struct st_tensor *weight = role_tensor(m, block, roles[kind][i].weight);

        if (weight == NULL)
            continue;
        l.in = (uint32_t)weight->shape[1 - out_at];
        add_part(&l, weight, role_tensor(m, block, roles[kind][i].bias), (uint32_t)weight->shape[out_at]);
    }
    return l;
}
