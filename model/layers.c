/* model/layers.c - see layers.h. */
#include "model/layers.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN_BYTES  64u
#define ELEMS_MOST   (UINT64_C(1) << 48)
#define LAYERS_MOST  (1u << 16)
#define TENSORS_MOST (1u << 18) /* as a manifest has at most */
#define NUMBER_MOST  1e3
#define BYTES_MOST   (UINT64_C(1) << 50)

/* --- what is asked --- */

static strata_status check_name(const char *name, const char *what, uint32_t index)
{
    if (name == NULL || name[0] == '\0')
        return st_error(STRATA_E_INVAL, "%s %u has no name", what, index);
    if (strlen(name) >= STRATA_LAYER_NAME_BYTES || !st_text_is_utf8(name))
        return st_error(STRATA_E_INVAL, "the name of %s %u, %.100s, is not UTF-8 of at most %u bytes", what, index, name,
                        STRATA_LAYER_NAME_BYTES - 1);
    return STRATA_OK;
}

static strata_status take_group(struct st_layers *l, const struct strata_param_group *g, double weight_decay)
{
    struct st_layers_group *to = &l->groups[l->group_count];
    strata_status st = g->name != NULL ? check_name(g->name, "parameter group", l->group_count) : STRATA_OK;

    if (st != STRATA_OK)
        return st;
    if (g->name != NULL)
        snprintf(to->name, sizeof(to->name), "%s", g->name);
    else
        snprintf(to->name, sizeof(to->name), "%u", l->group_count);
    for (uint32_t i = 0; i < l->group_count; i++)
        if (strcmp(l->groups[i].name, to->name) == 0)
            return st_error(STRATA_E_INVAL, "two parameter groups are called %s", to->name);
    to->lr_scale = g->lr_scale == 0 ? 1 : g->lr_scale;
    to->weight_decay = g->own_weight_decay ? g->weight_decay : weight_decay;
    if (!(to->lr_scale > 0 && to->lr_scale <= NUMBER_MOST) || !(to->weight_decay >= 0 && to->weight_decay <= NUMBER_MOST))
        return st_error(STRATA_E_INVAL, "parameter group %s: lr_scale %g and weight_decay %g must be 0 to %g", to->name,
                        to->lr_scale, to->weight_decay, NUMBER_MOST);
    l->group_count++;
    return STRATA_OK;
}

static strata_status take_groups(struct st_layers *l, const struct strata_layers_opts *o, double weight_decay)
{
    static const struct strata_param_group all = {.name = "all"};
    strata_status st = STRATA_OK;

    if (o->group_count > STRATA_PARAM_GROUPS_MAX || (o->group_count > 0 && o->groups == NULL))
        return st_error(STRATA_E_INVAL, "%u parameter groups: at most %u are possible, and a list of them", o->group_count,
                        STRATA_PARAM_GROUPS_MAX);
    if (o->group_count == 0)
        return take_group(l, &all, weight_decay);
    for (uint32_t i = 0; i < o->group_count && st == STRATA_OK; i++)
        st = take_group(l, &o->groups[i], weight_decay);
    return st;
}

/* Elements of a shape; 0: it is none. */
static uint64_t elems_of(const struct strata_layer_tensor *t)
{
    uint64_t elems = 1;

    for (uint32_t i = 0; i < t->rank; i++)
        if (t->shape[i] == 0 || __builtin_mul_overflow(elems, t->shape[i], &elems) || elems > ELEMS_MOST)
            return 0;
    return elems;
}

static strata_status refuse_shape(const struct strata_layer_tensor *t)
{
    char shape[STRATA_LAYER_RANK_MAX * 21 + 1] = "";
    size_t used = 0;

    for (uint32_t i = 0; i < t->rank; i++)
        used += (size_t)snprintf(shape + used, sizeof(shape) - used, i > 0 ? "x%" PRIu64 : "%" PRIu64, t->shape[i]);
    return st_error(STRATA_E_INVAL, "tensor %s has shape %s: dimensions are 1 or more, elements at most 2^48", t->name, shape);
}

static strata_status take_tensor(struct st_layers *l, const struct strata_layer_tensor *t, uint32_t layer)
{
    struct st_tensor *to = &l->tensors[l->tensor_count];
    const strata_dtype dtype = t->dtype == STRATA_DTYPE_INVALID ? l->workload.dtype : t->dtype;
    strata_status st = check_name(t->name, "tensor", l->tensor_count);

    if (st != STRATA_OK)
        return st;
    if (t->rank > STRATA_LAYER_RANK_MAX)
        return st_error(STRATA_E_INVAL, "tensor %s has rank %u: at most %u is possible", t->name, t->rank, STRATA_LAYER_RANK_MAX);
    if (elems_of(t) == 0)
        return refuse_shape(t);
    if (t->group != STRATA_FROZEN && t->group >= l->group_count)
        return st_error(STRATA_E_INVAL, "tensor %s: parameter group %u, and there %s %u", t->name, t->group,
                        l->group_count == 1 ? "is" : "are", l->group_count);
    if (dtype != STRATA_F32 && dtype != l->workload.dtype)
        return st_error(STRATA_E_INVAL, "tensor %s cannot be %s: a tensor is fp32, or as the model, %s", t->name,
                        strata_dtype_name(dtype), strata_dtype_name(l->workload.dtype));
    *to = (struct st_tensor){.rank = t->rank,
                             .page_count = 1,
                             .elems = elems_of(t),
                             .frozen = t->group == STRATA_FROZEN,
                             .format = dtype,
                             .adapts = ST_NO_TENSOR,
                             .adapter = ST_NO_TENSOR,
                             .layer = layer,
                             .group = t->group};
    snprintf(to->name, sizeof(to->name), "%s", t->name);
    memcpy(to->shape, t->shape, t->rank * sizeof(*to->shape));
    l->tensor_count++;
    return STRATA_OK;
}

static strata_status take_layer(struct st_layers *l, const struct strata_layer *from, uint32_t index)
{
    strata_status st = check_name(from->name, "layer", index);

    if (st != STRATA_OK)
        return st;
    if (from->tensor_count == 0 || from->tensors == NULL)
        return st_error(STRATA_E_INVAL, "layer %s has no tensor: join it to a neighbour", from->name);
    if (from->boundary_bytes > BYTES_MOST)
        return st_error(STRATA_E_INVAL, "layer %s: boundary_bytes %" PRIu64 ": at most 2^50 are possible", from->name,
                        from->boundary_bytes);
    if (!(from->forward_flops >= 0) || !(from->backward_flops >= 0) || !isfinite(from->forward_flops) ||
        !isfinite(from->backward_flops))
        return st_error(STRATA_E_INVAL, "layer %s: forward_flops %g and backward_flops %g must be finite and 0 or more",
                        from->name, from->forward_flops, from->backward_flops);
    if (from->resident && from->boundary_bytes > 0)
        return st_error(STRATA_E_INVAL, "layer %s is resident and has a boundary: only ordered layers have one", from->name);
    snprintf(l->layers[index].name, sizeof(l->layers[index].name), "%s", from->name);
    for (uint32_t i = 0; i < from->tensor_count && st == STRATA_OK; i++)
        st = take_tensor(l, &from->tensors[i], index);
    return st;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static strata_status check_unique(const char **names, uint32_t count, const char *what)
{
    qsort(names, count, sizeof(*names), by_text);
    for (uint32_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return st_error(STRATA_E_INVAL, "two %s are called %s", what, names[i]);
    return STRATA_OK;
}

/* --- pages --- */

/* The order of tensors in their page. */
static bool lies_before(const struct st_layers *l, const struct st_tensor *a, const struct st_tensor *b)
{
    if (a->frozen != b->frozen)
        return b->frozen;
    if (a->group != b->group)
        return a->group < b->group;
    return a->format != b->format && a->format == l->workload.dtype;
}

static bool lie_together(const struct st_tensor *a, const struct st_tensor *b)
{
    return a->frozen == b->frozen && a->group == b->group && a->format == b->format;
}

/* Sort a layer's tensors, which follow each other from `first` on: stable, and there are few kinds. */
static void sort_tensors(const struct st_layers *l, uint32_t *order, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && lies_before(l, &l->tensors[order[j]], &l->tensors[order[j - 1]]); j--) {
            const uint32_t t = order[j];

            order[j] = order[j - 1];
            order[j - 1] = t;
        }
}

/* While it is made. */
struct making {
    struct st_layers *l;
    const struct strata_layers_opts *opts;
    uint32_t *first; /* [layer_count] of each layer's tensors */
    uint32_t ordered;
};

static strata_status check_kinds(const struct st_layers *l, const uint32_t *order, uint32_t count, const char *layer)
{
    uint32_t kinds = 1;

    for (uint32_t i = 1; i < count; i++)
        kinds += !lie_together(&l->tensors[order[i - 1]], &l->tensors[order[i]]);
    if (kinds <= ST_GROUPS_MAX)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "layer %s has tensors of %u kinds, by parameter group and dtype: at most %u are possible",
                    layer, kinds, ST_GROUPS_MAX);
}

static void fill_page(struct st_layers *l, uint32_t p, const uint32_t *order, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct st_tensor *t = &l->tensors[order[i]];
        const uint64_t unit = ALIGN_BYTES / strata_dtype_bytes(t->format), whole = (t->elems + unit - 1) / unit * unit;
        const bool last = i + 1 == count || !lie_together(t, &l->tensors[order[i + 1]]);

        t->page = p;
        t->offset = st_page_add_to(&l->workload.pages[p], t->frozen ? 0 : t->group, t->frozen ? ST_GROUP_FROZEN : ST_GROUP_DECAY,
                                   t->format, last ? t->elems : whole);
    }
}

/* A page of the workload's last layer. */
static strata_status add_page(struct making *m, uint32_t index)
{
    struct st_layers *l = m->l;
    const struct strata_layer *from = &m->opts->layers[index];
    const uint32_t p = l->workload.page_count;
    uint32_t *order = l->placed + l->placed_first[p];
    strata_status st;

    if (st_workload_add_page(&l->workload, 0) == NULL)
        return st_nomem(0);
    l->layers[index].page = p;
    l->layers[index].ordered = from->resident ? ST_LAYERS_RESIDENT : m->ordered++;
    l->by_page[p] = index;
    l->placed_first[p + 1] = l->placed_first[p] + from->tensor_count;
    for (uint32_t i = 0; i < from->tensor_count; i++)
        order[i] = m->first[index] + i;
    sort_tensors(l, order, from->tensor_count);
    if ((st = check_kinds(l, order, from->tensor_count, from->name)) == STRATA_OK)
        fill_page(l, p, order, from->tensor_count);
    return st;
}

/* The boundary that a layer leaves for its backward is that between it and the layer below. */
static strata_status add_ordered(struct making *m, uint32_t index)
{
    struct st_workload *w = &m->l->workload;
    const struct strata_layer *from = &m->opts->layers[index];

    m->l->ordered[m->ordered] = m->l->layers[index].name;
    w->layers[w->layer_count - 1].boundary_bytes = from->boundary_bytes;
    if (!st_workload_add_layer(w, ST_LAYER_BLOCK))
        return st_nomem(0);
    w->layers[w->layer_count - 1].forward_flops = from->forward_flops;
    w->layers[w->layer_count - 1].backward_flops = from->backward_flops;
    return add_page(m, index);
}

/* --- all of it --- */

static strata_status take_lists(struct making *m)
{
    struct st_layers *l = m->l;
    const struct strata_layers_opts *o = m->opts;
    uint64_t tensors = 0;

    if (o->layer_count == 0 || o->layers == NULL || o->layer_count > LAYERS_MOST)
        return st_error(STRATA_E_INVAL, "a model has 1 to %u layers, not %u", LAYERS_MOST, o->layer_count);
    for (uint32_t i = 0; i < o->layer_count; i++)
        tensors += o->layers[i].tensor_count;
    if (tensors > TENSORS_MOST)
        return st_error(STRATA_E_INVAL, "a model has at most %u tensors, not %" PRIu64, TENSORS_MOST, tensors);
    l->layer_count = o->layer_count;
    m->first = st_fault_refuses("model.layers") ? NULL : calloc(o->layer_count, sizeof(*m->first));
    l->layers = calloc(o->layer_count, sizeof(*l->layers));
    l->by_page = calloc(o->layer_count, sizeof(*l->by_page));
    l->ordered = calloc(o->layer_count, sizeof(*l->ordered));
    l->placed_first = calloc((size_t)o->layer_count + 1, sizeof(*l->placed_first));
    l->tensors = calloc(tensors + 1, sizeof(*l->tensors));
    l->placed = calloc(tensors + 1, sizeof(*l->placed));
    l->names = calloc(tensors + o->layer_count, sizeof(*l->names));
    l->workload.order = calloc(tensors + 1, sizeof(*l->workload.order));
    if (m->first == NULL || l->layers == NULL || l->by_page == NULL || l->ordered == NULL || l->placed_first == NULL ||
        l->tensors == NULL || l->placed == NULL || l->names == NULL || l->workload.order == NULL)
        return st_nomem(tensors * sizeof(*l->tensors));
    return STRATA_OK;
}

static strata_status take_layers(struct making *m)
{
    struct st_layers *l = m->l;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < l->layer_count && st == STRATA_OK; i++) {
        m->first[i] = l->tensor_count;
        st = take_layer(l, &m->opts->layers[i], i);
    }
    for (uint32_t i = 0; i < l->layer_count && st == STRATA_OK; i++)
        l->names[i] = l->layers[i].name;
    if (st == STRATA_OK)
        st = check_unique(l->names, l->layer_count, "layers");
    for (uint32_t i = 0; i < l->tensor_count && st == STRATA_OK; i++)
        l->names[i] = l->tensors[i].name;
    return st == STRATA_OK ? check_unique(l->names, l->tensor_count, "tensors") : st;
}

/* Resident layers are the workload's first one, with a page for each. */
static strata_status add_layers(struct making *m)
{
    struct st_layers *l = m->l;
    strata_status st = st_workload_add_layer(&l->workload, ST_LAYER_RESIDENT) ? STRATA_OK : st_nomem(0);

    for (uint32_t i = 0; i < l->layer_count && st == STRATA_OK; i++)
        if (m->opts->layers[i].resident)
            st = add_page(m, i);
    for (uint32_t i = 0; i < l->layer_count && st == STRATA_OK; i++)
        if (!m->opts->layers[i].resident)
            st = add_ordered(m, i);
    for (uint32_t i = 0; i < l->tensor_count && st == STRATA_OK; i++)
        l->workload.order[l->workload.order_count++] =
            (struct st_span){.page = l->tensors[i].page, .offset = l->tensors[i].offset, .elems = l->tensors[i].elems};
    return st;
}

static strata_status make(struct making *m, const struct st_layers_batch *batch)
{
    struct st_workload *w = &m->l->workload;
    const char *name = m->opts->name != NULL ? m->opts->name : "layers";
    strata_status st;

    if (strlen(name) >= sizeof(w->name) || !st_text_is_utf8(name))
        return st_error(STRATA_E_INVAL, "the model's name, %.100s, is not UTF-8 of at most %zu bytes", name, sizeof(w->name) - 1);
    snprintf(w->name, sizeof(w->name), "%s", name);
    w->dtype = batch->dtype;
    w->seq = 1;
    w->micro_batch = batch->micro_batch;
    w->grad_accum = batch->grad_accum;
    w->workers = batch->workers;
    w->scales = m->opts->scales_loss;
    if ((st = take_lists(m)) != STRATA_OK || (st = take_groups(m->l, m->opts, batch->weight_decay)) != STRATA_OK ||
        (st = take_layers(m)) != STRATA_OK || (st = add_layers(m)) != STRATA_OK)
        return st;
    w->params = st_workload_params(w); /* with what lies between tensors and stays 0 */
    return st_workload_check(w);
}

strata_status st_layers_create(struct st_layers **out, const struct strata_layers_opts *opts, const struct st_layers_batch *batch)
{
    struct making m = {.l = st_fault_refuses("model.layers") ? NULL : calloc(1, sizeof(*m.l)), .opts = opts};
    strata_status st = m.l != NULL ? make(&m, batch) : st_nomem(sizeof(*m.l));

    free(m.first);
    if (st == STRATA_OK)
        *out = m.l;
    else
        st_layers_destroy(m.l);
    return st;
}

void st_layers_destroy(struct st_layers *l)
{
    if (l == NULL)
        return;
    st_workload_fini(&l->workload);
    free(l->tensors);
    free(l->layers);
    free(l->placed);
    free(l->placed_first);
    free(l->by_page);
    free(l->ordered);
    free(l->names);
    free(l);
}

/* --- looking up --- */

uint32_t st_layers_find(const struct st_layers *l, const char *name)
{
    const char *const *found = bsearch(&name, l->names, l->tensor_count, sizeof(*l->names), by_text);

    if (found == NULL)
        return ST_NO_TENSOR;
    return (uint32_t)((const struct st_tensor *)(const void *)(*found - offsetof(struct st_tensor, name)) - l->tensors);
}

bool st_layers_piece(struct st_layers_piece *out, const struct st_layers *l, uint32_t page, uint64_t first, uint64_t count,
                     uint32_t *next)
{
    uint32_t low = *next != 0 ? *next : l->placed_first[page], high = l->placed_first[page + 1];
    const struct st_tensor *t;
    uint64_t begin, end;

    while (*next == 0 && low < high) { /* the first that ends behind `first` */
        const uint32_t middle = low + (high - low) / 2;

        t = &l->tensors[l->placed[middle]];
        if (t->offset + t->elems <= first)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == l->placed_first[page + 1] || l->tensors[l->placed[low]].offset >= first + count)
        return false;
    t = &l->tensors[l->placed[low]];
    begin = t->offset > first ? t->offset : first;
    end = t->offset + t->elems < first + count ? t->offset + t->elems : first + count;
    *out = (struct st_layers_piece){
        .tensor = l->placed[low], .tensor_first = begin - t->offset, .count = end - begin, .range_first = begin - first};
    *next = low + 1;
    return true;
}
