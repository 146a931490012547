/* model/tensors.c - the tensors of a model, their names and initial values, and their places in pages.
 *
 * Page order is parameter order: table slices, positions, blocks, final norm, head slices.  Inside a page the decayed matrices
 * come first, then norms and biases, then frozen tensors, of each kind those of one format together, each group a dense run of
 * its tensors in list order.  Experts of a page are alike, so that each begins as far behind the one before it. */
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/rng.h"
#include "model/layout.h"
#include <assert.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INIT_STD 0.02

enum init { INIT_NORMAL, INIT_RESIDUAL, INIT_ONE, INIT_ZERO };

/* Rows and columns of a block's matrix as a product sees it, or the length of a vector (in is 0). */
struct shape {
    uint64_t in, out;
};

/* A fused matrix has the columns of all its parts. */
static struct shape shape_of(const struct st_model *m, enum st_block_role role, bool sparse)
{
    const char *const *names = st_family_of(m->config.family)->tensors;
    const uint32_t hidden = m->config.hidden, ffn = sparse ? m->config.shared_ffn : m->config.ffn;
    const bool per_head = m->config.qk_norm == ST_QK_NORM_HEAD;

    switch (role) {
    case ST_ROLE_Q_WEIGHT:
    case ST_ROLE_Q_BIAS:
        return (struct shape){role == ST_ROLE_Q_WEIGHT ? hidden : 0,
                              names[ST_ROLE_K_WEIGHT] != NULL ? m->width.attention : m->width.qkv};
    case ST_ROLE_K_WEIGHT:
    case ST_ROLE_V_WEIGHT:
        return (struct shape){hidden, m->width.kv};
    case ST_ROLE_K_BIAS:
    case ST_ROLE_V_BIAS:
        return (struct shape){0, m->width.kv};
    case ST_ROLE_PROJ_WEIGHT:
        return (struct shape){m->width.attention, hidden};
    case ST_ROLE_GATE_WEIGHT:
    case ST_ROLE_GATE_BIAS:
        return (struct shape){role == ST_ROLE_GATE_WEIGHT ? hidden : 0, names[ST_ROLE_UP_WEIGHT] != NULL ? ffn : m->width.fc};
    case ST_ROLE_UP_WEIGHT:
        return (struct shape){hidden, ffn};
    case ST_ROLE_UP_BIAS:
        return (struct shape){0, ffn};
    case ST_ROLE_DOWN_WEIGHT:
        return (struct shape){ffn, hidden};
    case ST_ROLE_SHARED_GATE_WEIGHT:
        return (struct shape){hidden, 1};
    case ST_ROLE_ROUTER_WEIGHT:
    case ST_ROLE_ROUTER_BIAS:
        return (struct shape){role == ST_ROLE_ROUTER_WEIGHT ? hidden : 0, m->config.experts};
    case ST_ROLE_SINKS:
        return (struct shape){0, m->config.heads};
    case ST_ROLE_Q_NORM:
        return (struct shape){0, per_head ? m->config.head_dim : m->width.attention};
    case ST_ROLE_K_NORM:
        return (struct shape){0, per_head ? m->config.head_dim : m->width.kv};
    default:
        return (struct shape){0, hidden};
    }
}

/* A norm that begins as one. */
static enum init norm_init(const struct st_model *m)
{
    return m->config.norm == ST_NORM_RMSNORM_FROM_1 ? INIT_ZERO : INIT_ONE;
}

static enum init init_of(const struct st_model *m, enum st_block_role role)
{
    switch (role) {
    case ST_ROLE_PROJ_WEIGHT:
    case ST_ROLE_DOWN_WEIGHT:
        return st_family_of(m->config.family)->residual_init ? INIT_RESIDUAL : INIT_NORMAL;
    case ST_ROLE_NORM1_WEIGHT:
    case ST_ROLE_NORM2_WEIGHT:
    case ST_ROLE_POST1_WEIGHT:
    case ST_ROLE_POST2_WEIGHT:
    case ST_ROLE_Q_NORM:
    case ST_ROLE_K_NORM:
        return norm_init(m);
    case ST_ROLE_ROUTER_BIAS: /* as in transformers; all other biases begin as 0 */
        return INIT_NORMAL;
    default:
        return role < ST_ROLE_NORM1_WEIGHT ? INIT_NORMAL : INIT_ZERO;
    }
}

static bool wanted(const struct st_model *m, enum st_block_role role, bool sparse)
{
    const enum st_bias_type biases = m->config.biases;

    if (st_family_tensor(st_family_of(m->config.family), role, sparse) == NULL)
        return false;
    switch (role) {
    case ST_ROLE_Q_BIAS:
    case ST_ROLE_K_BIAS:
    case ST_ROLE_V_BIAS:
        return biases != ST_BIAS_NONE;
    case ST_ROLE_PROJ_BIAS:
        return biases == ST_BIAS_ALL || biases == ST_BIAS_ATTENTION;
    case ST_ROLE_GATE_BIAS:
    case ST_ROLE_UP_BIAS:
    case ST_ROLE_DOWN_BIAS:
        return biases == ST_BIAS_ALL || m->config.mlp_bias;
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

/* name: as the family has it. */
static struct st_tensor *add(struct st_model *m, const struct st_model_batch *batch, uint32_t page, const char *name,
                             uint64_t rows, uint64_t cols, enum init init)
{
    struct st_tensor *t = &m->tensors[m->tensor_count++];
    const double residual = INIT_STD / sqrt(2.0 * m->config.blocks);

    st_model_tensor_name(t->name, &m->config, name);
    t->rank = cols > 0 ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = cols;
    t->elems = cols > 0 ? rows * cols : rows;
    t->page = page;
    t->page_count = 1;
    t->init_std = (float)(init == INIT_NORMAL ? INIT_STD : init == INIT_RESIDUAL ? residual : 0.0);
    t->init_mean = init == INIT_ONE ? 1.0f : 0.0f;
    t->stream = st_checksum64(t->name, strlen(t->name));
    t->decays = t->rank == 2;
    t->frozen = matches(batch, t->name);
    t->format = batch->dtype;
    t->adapts = t->adapter = ST_NO_TENSOR;
    t->expert = ST_NO_EXPERT;
    return t;
}

/* Each begins at a multiple of ST_PAGE_ALIGN elements, so that its records are its own.  It lies there as [out, in], also where
 * files have [in, out] (model/nf4.h). */
static void store_in_nf4(struct st_tensor *t)
{
    t->frozen = true;
    t->format = STRATA_NF4;
}

/* Tensors of a block, its experts aside.  A router is never stored in nf4: a choice would depend on its rounding. */
static void list_block(struct st_model *m, const struct st_model_batch *batch, uint32_t block)
{
    const struct st_family *family = st_family_of(m->config.family);
    const bool sparse = st_model_is_sparse(m, block);
    uint32_t *roles = m->roles[sparse].of;

    for (enum st_block_role role = 0; role < ST_ROLE_COUNT; role++) {
        const struct shape shape = shape_of(m, role, sparse);
        const bool swap = shape.in > 0 && !m->config.out_in;
        char name[sizeof(m->tensors->name)];
        struct st_tensor *t;

        if (!wanted(m, role, sparse))
            continue;
        roles[role] = m->tensor_count - st_model_block_tensors(m, block);
        snprintf(name, sizeof(name), "%s.%u.%s", family->block, block, st_family_tensor(family, role, sparse));
        t = add(m, batch, m->block_pages[block], name, swap ? shape.in : shape.out, swap ? shape.out : shape.in,
                init_of(m, role));
        t->decays = t->decays || role == ST_ROLE_SINKS;
        if (batch->nf4 && shape.in > 0 && role != ST_ROLE_ROUTER_WEIGHT && role != ST_ROLE_SHARED_GATE_WEIGHT)
            store_in_nf4(t);
    }
}

static void list_expert(struct st_model *m, const struct st_model_batch *batch, uint32_t block, uint32_t page, uint32_t expert)
{
    const struct st_family *family = st_family_of(m->config.family);

    const bool fused = st_family_is_fused(family);

    for (enum st_expert_part part = 0; part < ST_EXPERT_PARTS; part++) {
        const bool down = part == ST_EXPERT_DOWN || part == ST_EXPERT_DOWN_BIAS, bias = part >= ST_EXPERT_GATE_BIAS;
        const uint64_t ffn = m->config.expert_ffn, hidden = m->config.hidden;
        const uint64_t in = down ? ffn : hidden, out = down ? hidden : fused ? 2 * ffn : ffn;
        char name[sizeof(m->tensors->name)];
        struct st_tensor *t;

        if (family->expert_tensors[part] == NULL)
            continue;
        snprintf(name, sizeof(name), "%s.%u.%s.%u.%s", family->block, block, family->experts, expert,
                 family->expert_tensors[part]);
        t = add(m, batch, page, name, fused && !bias ? in : out, bias ? 0 : fused ? out : in, bias ? INIT_ZERO : INIT_NORMAL);
        t->expert = expert;
        t->part = part;
        if (batch->nf4 && !bias)
            store_in_nf4(t);
    }
}

static void list_pages(struct st_model *m, const struct st_model_batch *batch, uint32_t block)
{
    const uint32_t first = m->block_pages[block], count = m->block_pages[block + 1] - first;

    m->page_tensors[first - m->at.block_first] = m->tensor_count;
    list_block(m, batch, block);
    for (uint32_t i = 1; i < count; i++) {
        uint32_t expert, experts;

        m->page_tensors[first + i - m->at.block_first] = m->tensor_count;
        st_model_slice(m, i - 1, &expert, &experts);
        for (uint32_t e = expert; e < expert + experts; e++)
            list_expert(m, batch, block, first + i, e);
    }
}

static void list_tensors(struct st_model *m, const struct st_model_batch *batch)
{
    const struct st_family *family = st_family_of(m->config.family);
    const struct st_model_config *c = &m->config;

    for (uint32_t i = 0; i < ST_ROLE_COUNT; i++)
        m->roles[0].of[i] = m->roles[1].of[i] = ST_NO_TENSOR;
    add(m, batch, 0, family->table, c->vocab, c->hidden, INIT_NORMAL)->page_count = m->at.table_count;
    if (c->positions == ST_POSITION_LEARNED)
        add(m, batch, m->at.positions, family->positions, c->context, c->hidden, INIT_NORMAL);
    for (uint32_t b = 0; b < c->blocks; b++)
        list_pages(m, batch, b);
    m->page_tensors[m->at.norm - m->at.block_first] = m->tensor_count;
    add(m, batch, m->at.norm, family->norm_weight, c->hidden, 0, norm_init(m));
    if (c->norm == ST_NORM_LAYERNORM)
        add(m, batch, m->at.norm, family->norm_bias, c->hidden, 0, INIT_ZERO);
    m->norm_tensor_count = m->tensor_count - m->page_tensors[m->at.norm - m->at.block_first];
    if (c->untied)
        add(m, batch, m->at.head_first, family->head, c->vocab, c->hidden, INIT_NORMAL)->page_count = m->at.head_count;
}

/* --- places --- */

static enum st_group_kind kind_of(const struct st_model *m, const struct st_tensor *t)
{
    if (t->frozen)
        return ST_GROUP_FROZEN;
    return t->decays || m->batch.decay_all ? ST_GROUP_DECAY : ST_GROUP_NO_DECAY;
}

/* The padding of NF4 is the group's. */
static void place_group(struct st_model *m, struct st_page *p, struct st_tensor *tensors, uint32_t count, enum st_group_kind kind,
                        strata_dtype format)
{
    for (uint32_t i = 0; i < count; i++) {
        struct st_tensor *t = &tensors[i];
        const uint64_t padded = (t->elems + ST_PAGE_ALIGN - 1) / ST_PAGE_ALIGN * ST_PAGE_ALIGN;

        if (kind_of(m, t) == kind && t->format == format)
            t->offset = st_page_add(p, kind, format, format == STRATA_NF4 ? padded : t->elems);
    }
}

static bool place_page(struct st_model *m, uint32_t page, unsigned flags)
{
    struct st_page *p = st_workload_add_page(&m->workload, flags);
    uint32_t first, count;

    if (p == NULL)
        return false;
    assert(page + 1 == m->workload.page_count);
    st_model_page_tensors(m, page, &first, &count);
    for (enum st_group_kind group = ST_GROUP_DECAY; group <= ST_GROUP_FROZEN; group++) {
        for (strata_dtype format = STRATA_F32; format <= STRATA_NF4; format++)
            place_group(m, p, &m->tensors[first], count, group, format);
    }
    return true;
}

static bool place_slices(struct st_model *m, const struct st_tensor *t, unsigned flags)
{
    const uint32_t vocab = m->config.vocab, slice = st_table_slice_rows(vocab, m->config.hidden);

    for (uint32_t i = 0; i < t->page_count; i++) {
        struct st_page *p = st_workload_add_page(&m->workload, flags);

        if (p == NULL)
            return false;
        p->row_first = i * slice;
        p->row_count = vocab - p->row_first < slice ? vocab - p->row_first : slice;
        (void)st_page_add(p, kind_of(m, t), t->format, (uint64_t)p->row_count * m->config.hidden);
    }
    return true;
}

static bool place_tensors(struct st_model *m)
{
    struct st_workload *w = &m->workload;

    if (!st_workload_add_layer(w, ST_LAYER_LOOKUP) || !place_slices(m, &m->tensors[0], ST_PAGE_GATHERED) ||
        (m->at.positions != ST_NO_PAGE && !place_page(m, m->at.positions, ST_PAGE_SMALL)))
        return false;
    for (uint32_t b = 0; b < m->config.blocks; b++) {
        if (!st_workload_add_layer(w, st_model_is_sparse(m, b) ? ST_LAYER_EXPERTS : ST_LAYER_BLOCK))
            return false;
        for (uint32_t p = m->block_pages[b]; p < m->block_pages[b + 1]; p++)
            if (!place_page(m, p, 0))
                return false;
    }
    if (!st_workload_add_layer(w, ST_LAYER_LOSS) || !place_page(m, m->at.norm, ST_PAGE_SMALL))
        return false;
    if (m->config.untied)
        return place_slices(m, &m->tensors[m->tensor_count - 1], 0);
    for (uint32_t i = 0; i < m->at.table_count; i++)
        if (!st_workload_add_use(w, i))
            return false;
    return true;
}

static void count_written(struct st_model *m)
{
    struct st_span runs[ST_WRITTEN_MAX];

    for (uint32_t p = 0; p < m->workload.page_count; p++) {
        for (uint32_t i = st_model_written(m, p, runs); i > 0; i--)
            m->workload.pages[p].written_elems += runs[i - 1].elems;
    }
}

/* --- freezing --- */

/* Experts of a page lie at equal distances, so none of their matrices is frozen unless all are; and so with biases. */
static strata_status check_alike(const struct st_model *m)
{
    const struct st_tensor *last[2] = {NULL, NULL};

    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i], *before;

        if (t->expert == ST_NO_EXPERT || t->adapts != ST_NO_TENSOR)
            continue;
        before = last[t->rank - 1];
        last[t->rank - 1] = t;
        if (before != NULL && t->page == before->page && t->frozen != before->frozen)
            return st_error(STRATA_E_INVAL,
                            "strata.freeze: the patterns match %s, but not %s, of the same page: freeze all experts of a layer, "
                            "or none",
                            t->frozen ? t->name : before->name, t->frozen ? before->name : t->name);
    }
    return STRATA_OK;
}

static strata_status check_freeze(const struct st_model *m, const struct st_model_batch *batch)
{
    uint64_t frozen = 0;

    if (batch->freeze_count > 0 && batch->adapter != NULL)
        return st_error(STRATA_E_INVAL,
                        "strata.freeze beside an adapter: all that is not the adapter's or in modules_to_save is frozen already; "
                        "leave it out");
    for (uint32_t p = 0; p < batch->freeze_count; p++) {
        bool found = false;

        for (uint32_t i = 0; i < m->tensor_count && !found; i++)
            found = fnmatch(batch->freeze[p], m->tensors[i].name, 0) == 0;
        if (!found)
            return st_error(STRATA_E_INVAL, "strata.freeze: \"%.127s\" matches no tensor of model %s; a name is %s",
                            batch->freeze[p], m->config.name, m->tensors[st_model_block_tensors(m, 0)].name);
    }
    for (uint32_t i = 0; i < m->tensor_count; i++)
        frozen += m->tensors[i].frozen;
    if (frozen == m->tensor_count)
        return st_error(STRATA_E_INVAL, "strata.freeze: the patterns match every tensor of model %s: nothing is left to train",
                        m->config.name);
    return check_alike(m);
}

static strata_status check_nf4(const struct st_model *m)
{
    if (!m->batch.nf4)
        return STRATA_OK;
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];

        if (t->format == STRATA_NF4 && t->elems % ST_NF4_ELEMS != 0)
            return st_error(STRATA_E_INVAL,
                            "strata.quantization: tensor %s has %" PRIu64 " elements; nf4 stores blocks of %u: use \"none\"",
                            t->name, t->elems, ST_NF4_ELEMS);
        if (t->format == STRATA_NF4 && t->expert != ST_NO_EXPERT && t->elems % ST_PAGE_ALIGN != 0)
            return st_error(STRATA_E_INVAL,
                            "strata.quantization: tensor %s has %" PRIu64
                            " elements; nf4 stores experts of whole %u: use \"none\"",
                            t->name, t->elems, ST_PAGE_ALIGN);
    }
    return STRATA_OK;
}

static void add_spans(struct st_workload *w, const struct st_tensor *t)
{
    for (uint32_t p = t->page; p < t->page + t->page_count; p++)
        w->order[w->order_count++] =
            (struct st_span){.page = p, .offset = t->offset, .elems = t->page_count > 1 ? w->pages[p].params : t->elems};
}

/* Frozen tensors follow the others of their page, adapters precede them, and biases of experts follow the matrices of all; the
 * order of the parameters is still that of the list.  But adapters of experts follow what they adapt, so that the order does not
 * depend on which experts share a page. */
static strata_status order_parameters(struct st_model *m)
{
    struct st_workload *w = &m->workload;
    uint32_t room = 0;

    for (uint32_t i = 0; i < m->tensor_count; i++)
        room += m->tensors[i].page_count;
    w->order = calloc(room, sizeof(*w->order));
    if (w->order == NULL)
        return st_nomem(room * sizeof(*w->order));
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];
        const bool of_expert = t->expert != ST_NO_EXPERT;

        if (!of_expert || t->adapts == ST_NO_TENSOR)
            add_spans(w, t);
        for (uint32_t part = 0; of_expert && t->adapter != ST_NO_TENSOR && part < 2; part++)
            add_spans(w, &m->tensors[t->adapter + part]);
    }
    return STRATA_OK;
}

static size_t tensors_most(const struct st_model *m)
{
    size_t most = 5 + (size_t)m->config.blocks * ST_ROLE_COUNT;

    for (uint32_t b = 0; b < m->config.blocks; b++)
        most += st_model_is_sparse(m, b) ? (size_t)m->config.experts * ST_EXPERT_PARTS : 0;
    return most;
}

strata_status st_model_build_pages(struct st_model *m, const struct st_model_batch *batch)
{
    strata_status st;

    m->tensors = calloc(tensors_most(m), sizeof(*m->tensors));
    m->page_tensors = calloc((size_t)m->at.norm - m->at.block_first + 1, sizeof(*m->page_tensors));
    if (m->tensors == NULL || m->page_tensors == NULL)
        return st_nomem(tensors_most(m) * sizeof(*m->tensors));
    list_tensors(m, batch);
    if ((batch->adapter != NULL && (st = st_model_adapt(m, batch->adapter)) != STRATA_OK) || (st = check_nf4(m)) != STRATA_OK)
        return st;
    if (!place_tensors(m))
        return st_nomem(0);
    count_written(m);
    for (uint32_t i = 0; i < m->tensor_count; i++)
        m->workload.params += m->tensors[i].frozen ? 0 : m->tensors[i].elems;
    if ((batch->freeze_count > 0 || batch->nf4 || batch->adapter != NULL ||
         st_family_of(m->config.family)->expert_tensors[ST_EXPERT_GATE_BIAS] != NULL) &&
        (st = order_parameters(m)) != STRATA_OK)
        return st;
    return check_freeze(m, batch);
}

/* --- linear layers --- */

static const struct st_tensor *role_tensor(const struct st_model *m, uint32_t block, enum st_block_role role)
{
    const uint32_t at = role < ST_ROLE_COUNT ? st_model_roles(m, block)[role] : ST_NO_TENSOR;

    return at != ST_NO_TENSOR ? &m->tensors[st_model_block_tensors(m, block) + at] : NULL;
}

static void add_part(struct st_linear *l, const struct st_tensor *weight, const struct st_tensor *bias, uint32_t count)
{
    struct st_linear_part part = {
        .weight = weight->offset, .bias = bias != NULL ? bias->offset : 0, .format = weight->format, .first = l->out};
    struct st_linear_part *last = l->part_count > 0 ? &l->parts[l->part_count - 1] : NULL;

    part.adapted = weight->adapter != ST_NO_TENSOR;
    part.trained = weight->frozen ? 0 : count;
    part.trained_biases = bias == NULL || bias->frozen ? 0 : count;
    l->bias = bias != NULL;
    l->out += count;
    if (last != NULL && last->format == part.format && last->weight + (uint64_t)last->count * l->in == part.weight &&
        (!l->bias || last->bias + last->count == part.bias)) {
        last->count += count;
        last->trained += part.trained;
        last->trained_biases += part.trained_biases;
        last->adapted = last->adapted || part.adapted;
        return;
    }
    part.count = count;
    l->parts[l->part_count++] = part;
}

/* The masks' key is of a stream beside that of A's first values. */
static void add_adapter(struct st_linear *l, const struct st_tensor *a, uint32_t count, uint64_t seed)
{
    const struct st_tensor *b = a + 1;

    l->adapters[l->adapter_count++] = (struct st_linear_adapter){.a = a->offset,
                                                                 .b = b->offset,
                                                                 .first = l->out,
                                                                 .count = count,
                                                                 .rank = (uint32_t)a->shape[0],
                                                                 .scale = a->scale,
                                                                 .key = st_rng_u64(seed, ~a->stream, 0)};
}

struct st_linear st_block_linear(const struct st_model *m, uint32_t block, enum st_linear_kind kind)
{
    static const struct {
        enum st_block_role weight, bias;
    } roles[][ST_LINEAR_PARTS_MAX] = {
        [ST_LINEAR_QKV] = {{ST_ROLE_Q_WEIGHT, ST_ROLE_Q_BIAS},
                           {ST_ROLE_K_WEIGHT, ST_ROLE_K_BIAS},
                           {ST_ROLE_V_WEIGHT, ST_ROLE_V_BIAS}},
        [ST_LINEAR_QK] = {{ST_ROLE_Q_WEIGHT, ST_ROLE_Q_BIAS}, {ST_ROLE_K_WEIGHT, ST_ROLE_K_BIAS}},
        [ST_LINEAR_V] = {{ST_ROLE_V_WEIGHT, ST_ROLE_V_BIAS}},
        [ST_LINEAR_PROJ] = {{ST_ROLE_PROJ_WEIGHT, ST_ROLE_PROJ_BIAS}},
        [ST_LINEAR_FC] = {{ST_ROLE_GATE_WEIGHT, ST_ROLE_GATE_BIAS}, {ST_ROLE_UP_WEIGHT, ST_ROLE_UP_BIAS}},
        [ST_LINEAR_DOWN] = {{ST_ROLE_DOWN_WEIGHT, ST_ROLE_DOWN_BIAS}},
        [ST_LINEAR_ROUTER] = {{ST_ROLE_ROUTER_WEIGHT, ST_ROLE_ROUTER_BIAS}},
        [ST_LINEAR_SHARED_GATE] = {{ST_ROLE_SHARED_GATE_WEIGHT, ST_ROLE_COUNT}},
    };
    static const uint32_t counts[] = {
        [ST_LINEAR_QKV] = 3, [ST_LINEAR_QK] = 2,   [ST_LINEAR_V] = 1,      [ST_LINEAR_PROJ] = 1,
        [ST_LINEAR_FC] = 2,  [ST_LINEAR_DOWN] = 1, [ST_LINEAR_ROUTER] = 1, [ST_LINEAR_SHARED_GATE] = 1};
    const uint32_t out_at = m->config.out_in ? 0 : 1;
    struct st_linear l = {0};

    for (uint32_t i = 0; i < counts[kind]; i++) {
        const struct st_tensor *weight = role_tensor(m, block, roles[kind][i].weight);

        if (weight == NULL)
            continue;
        l.in = (uint32_t)weight->shape[1 - out_at];
        if (weight->adapter != ST_NO_TENSOR)
            add_adapter(&l, &m->tensors[weight->adapter], (uint32_t)weight->shape[out_at], m->batch.seed);
        add_part(&l, weight, role_tensor(m, block, roles[kind][i].bias), (uint32_t)weight->shape[out_at]);
    }
    l.stride = kind == ST_LINEAR_QKV || kind == ST_LINEAR_QK || kind == ST_LINEAR_V ? m->width.packed : l.out;
    return l;
}

/* Matrices of the slice's experts, or of their adapters, as far as they follow each other. */
static uint64_t slice_written(const struct st_model *m, uint32_t page)
{
    uint32_t first, count;
    uint64_t end = 0;

    st_model_page_tensors(m, page, &first, &count);
    for (uint32_t i = first; i < first + count; i++) {
        const struct st_tensor *t = &m->tensors[i];

        if (t->expert != ST_NO_EXPERT && t->rank == 2 && !t->frozen && t->offset == end)
            end += t->elems;
    }
    return end;
}

uint32_t st_model_written(const struct st_model *m, uint32_t page, struct st_span out[ST_WRITTEN_MAX])
{
    static const enum st_linear_kind kinds[] = {ST_LINEAR_QKV,  ST_LINEAR_PROJ,        ST_LINEAR_FC,
                                                ST_LINEAR_DOWN, ST_LINEAR_SHARED_GATE, ST_LINEAR_ROUTER};
    const struct st_page *p = &m->workload.pages[page];
    const bool slice = st_model_is_slice(m, page), block = page >= m->at.block_first && page < m->at.norm && !slice;
    uint32_t count = 0;

    if (page >= m->at.head_first && page < m->at.head_first + m->at.head_count && p->trained_elems > 0)
        out[count++] = (struct st_span){.page = page, .elems = p->params};
    if (slice && slice_written(m, page) > 0)
        out[count++] = (struct st_span){.page = page, .elems = slice_written(m, page)};
    for (uint32_t k = 0; block && k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const struct st_linear l = st_block_linear(m, p->layer - 1, kinds[k]);

        for (uint32_t i = 0; i < l.part_count; i++) {
            if (l.parts[i].trained > 0)
                out[count++] =
                    (struct st_span){.page = page, .offset = l.parts[i].weight, .elems = (uint64_t)l.parts[i].trained * l.in};
        }
    }
    return count;
}
