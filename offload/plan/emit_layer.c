/* emit_layer.c - the forward and the backward of layers: their ops, with the pages that they use.
 *
 * A layer is a list of parts; a part is one op forward and one backward for each micro-batch, with all pages of the layer at
 * once, with one of them, or with none.  A part of slices has as many of those as there are slices: each is a unit.  Backward
 * goes through the parts from the last to the first, and through slices in order.  A new kind of layer is a row here, and the
 * rows of its ops (op_table.c). */
#include "offload/plan/emit_internal.h"

enum pages { NO_PAGES, ALL_PAGES, FIRST_PAGE, ADDED_PAGE, EACH_SLICE, AGAIN };

#define PARTS_MAX 3u

static const struct part {
    uint8_t forward, backward; /* st_op_kind; NONE: there is no such op, or the lookup emits it (emit_lookup.c) */
    uint8_t pages;             /* AGAIN: the first one, for a backward that makes internals again; else none */
} parts[][PARTS_MAX] = {
#define NONE ST_OP_KIND_COUNT
    [ST_LAYER_BLOCK] = {{ST_OP_BLOCK_FORWARD, ST_OP_BLOCK_BACKWARD, ALL_PAGES}, {NONE, NONE, 0}, {NONE, NONE, 0}},
    [ST_LAYER_LOOKUP] = {{NONE, ST_OP_EMBED_BACKWARD, ADDED_PAGE}, {NONE, NONE, 0}, {NONE, NONE, 0}},
    [ST_LAYER_LOSS] = {{ST_OP_HEAD_NORM, ST_OP_HEAD_BACKWARD, FIRST_PAGE},
                       {ST_OP_HEAD_STATS, ST_OP_HEAD_GRAD, EACH_SLICE},
                       {ST_OP_HEAD_LOSS, NONE, NO_PAGES}},
    [ST_LAYER_RESIDENT] = {{NONE, NONE, 0}, {NONE, NONE, 0}, {NONE, NONE, 0}}, /* emit_caller.c */
    [ST_LAYER_EXPERTS] = {{ST_OP_ROUTE_FORWARD, ST_OP_ROUTE_BACKWARD, FIRST_PAGE},
                          {ST_OP_EXPERTS_FORWARD, ST_OP_EXPERTS_BACKWARD, EACH_SLICE},
                          {ST_OP_ROUTE_END, ST_OP_ROUTE_AGAIN, AGAIN}},
};
/* A block that the caller computes. */
static const struct part called = {ST_OP_LAYER_FORWARD, ST_OP_LAYER_BACKWARD, ALL_PAGES};

/* --- units --- */

static const struct part *part_of(const struct st_workload *w, uint32_t layer, uint32_t part)
{
    if (st_workload_opaque(w) && w->layers[layer].kind == ST_LAYER_BLOCK && part == 0)
        return &called;
    return &parts[w->layers[layer].kind][part];
}

static uint32_t unit_count(const struct st_workload *w, uint32_t layer, uint32_t part)
{
    const enum pages pages = (enum pages)part_of(w, layer, part)->pages;

    if (pages == EACH_SLICE)
        return st_layer_slices(&w->layers[layer]);
    return pages != ADDED_PAGE || w->layers[layer].use_count > w->gathered_count;
}

static bool makes_internals_again(const struct st_emitter *e, uint32_t layer)
{
    return layer < st_block_end(&e->program->workload) - e->plan->decided.kept_blocks;
}

static struct st_unit unit_of(const struct st_emitter *e, uint32_t layer, uint32_t part, uint32_t slice, bool backward)
{
    const struct st_workload *w = &e->program->workload;
    const enum pages pages = (enum pages)part_of(w, layer, part)->pages;
    struct st_unit u = {.layer = layer, .part = part, .slice = slice, .use = w->layers[layer].use_first, .count = 1};

    if (pages == ALL_PAGES || pages == NO_PAGES)
        u.count = pages == ALL_PAGES ? w->layers[layer].use_count : 0;
    else if (pages == AGAIN)
        u.count = backward && makes_internals_again(e, layer);
    else if (pages != FIRST_PAGE)
        u.use += pages == EACH_SLICE ? 1 + slice : w->gathered_count;
    return u;
}

static uint32_t page_of(const struct st_emitter *e, const struct st_unit *u, uint32_t i)
{
    return e->program->workload.uses[u->use + i];
}

/* The unit whose weights backward brings after those of u; false: none.  Parts come from the last to the first, slices in order.
 */
static bool next_below(const struct st_emitter *e, const struct st_unit *u, struct st_unit *next)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t low = e->plan->sums->lowest_layer;
    uint32_t layer = u->layer, part = u->part;

    if (u->slice + 1 < unit_count(w, layer, part)) {
        *next = unit_of(e, layer, part, u->slice + 1, true);
        return true;
    }
    while (part > 0 || layer > low) {
        layer -= part == 0;
        part = part > 0 ? part - 1 : PARTS_MAX - 1;
        if (part_of(w, layer, part)->backward == NONE || unit_count(w, layer, part) == 0)
            continue;
        *next = unit_of(e, layer, part, 0, true);
        return st_operand_of((enum st_op_kind)part_of(w, layer, part)->backward, ST_ROLE_WEIGHT) != NULL;
    }
    return false;
}

/* --- one op --- */

static void add_logits(struct st_emitter *e, const struct st_unit *u, uint32_t m)
{
    const uint64_t id = (uint64_t)u->slice * e->program->workload.grad_accum + m;

    if (u->slice < e->plan->decided.kept_slices)
        st_emit_operand(e, ST_ROLE_LOGITS, e->lay->logits[id], id);
}

static void add_internals(struct st_emitter *e, const struct st_unit *u, uint32_t m)
{
    const uint64_t id = (uint64_t)u->layer * e->program->workload.grad_accum + m;
    const bool last = e->program->workload.layers[u->layer].kind == ST_LAYER_LOSS;

    if (e->program->workload.layers[u->layer].internal_bytes > 0)
        st_emit_operand(e, ST_ROLE_INTERNALS, e->lay->internals[id], last ? m : id);
}

static void add_sums(struct st_emitter *e, const struct st_unit *u, const struct st_open_sum *sums, uint32_t m)
{
    bool first = false, any = false;

    for (uint32_t i = 0; i < u->count; i++) {
        if (sums[i].buffer == ST_NO_BUFFER)
            continue;
        st_emit_add(e, &sums[i], m);
        first = any ? first : e->op->first;
        any = true;
    }
    e->op->first = first;
}

/* Whether backward makes what forward left again. */
static bool makes_again(const struct st_emitter *e, const struct st_unit *u, enum st_op_kind kind)
{
    if (kind == ST_OP_HEAD_GRAD)
        return u->slice >= e->plan->decided.kept_slices;
    return (kind == ST_OP_BLOCK_BACKWARD || kind == ST_OP_ROUTE_AGAIN) && makes_internals_again(e, u->layer);
}

void st_emit_call(struct st_emitter *e, const struct st_unit *u, enum st_op_kind kind, unsigned phases, uint32_t m,
                  const uint32_t *weights, const struct st_open_sum *sums)
{
    const struct st_workload *w = &e->program->workload;
    const struct st_op_row *row = &st_op_rows[kind];
    const bool again = makes_again(e, u, kind);
    const uint32_t below = u->layer > 0 ? u->layer - 1 : 0; /* a lookup's rows become its boundary where they lie */
    const bool in = st_operand_of(kind, ST_ROLE_ACT) != NULL && (u->layer > 0 || w->layers[0].kind == ST_LAYER_LOOKUP) &&
                    w->layers[below].boundary_bytes > 0 && (kind != ST_OP_ROUTE_AGAIN || again);
    const bool makes_in = in && kind == ST_OP_LAYER_FORWARD; /* for its own backward */
    const bool out = st_operand_of(kind, ST_ROLE_ACT_OUT) != NULL && u->layer + 1 < w->layer_count;
    const uint32_t act = makes_in ? st_emit_act_fresh(e, below, m) : in ? st_emit_act_get(e, below, m, phases) : ST_NO_BUFFER;
    const uint32_t act_out = out ? st_emit_act_fresh(e, u->layer, m) : ST_NO_BUFFER;
    struct st_op *op = st_emit_op(e, kind, phases);

    op->layer = u->layer;
    op->page = (row->indices & ST_INDEX_PAGE) != 0 && (u->count > 0 || st_op_in_parts(kind)) ? page_of(e, u, 0) : ST_NO_PAGE;
    op->micro = m;
    op->slice = u->slice;
    op->top = kind == ST_OP_BLOCK_BACKWARD && u->layer + 1 == w->layer_count;
    op->recompute = again;
    op->first = kind == ST_OP_ROUTE_FORWARD && u->layer == e->plan->sums->experts_first;
    for (uint32_t k = 0; k < ST_OPERANDS_MAX; k++) {
        switch ((enum st_role)row->operands[k].role) {
        case ST_ROLE_ACT:
            if (in)
                st_emit_operand(e, ST_ROLE_ACT, act, st_emit_act_id(e, below, m));
            break;
        case ST_ROLE_ACT_OUT:
            if (out)
                st_emit_operand(e, ST_ROLE_ACT_OUT, act_out, st_emit_act_id(e, u->layer, m));
            break;
        case ST_ROLE_WEIGHT:
            for (uint32_t i = 0; i < u->count; i++)
                st_emit_operand(e, ST_ROLE_WEIGHT, weights[i], page_of(e, u, i));
            break;
        case ST_ROLE_INTERNALS:
            add_internals(e, u, m);
            break;
        case ST_ROLE_DACT:
            if (w->layer_count > 1)
                st_emit_operand(e, ST_ROLE_DACT, e->lay->dact[m], m);
            break;
        case ST_ROLE_TOKENS:
            st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_device, 0);
            break;
        case ST_ROLE_WORKSPACE:
            st_emit_operand(e, ST_ROLE_WORKSPACE, e->lay->workspace, 0);
            break;
        case ST_ROLE_LOGITS:
            add_logits(e, u, m);
            break;
        case ST_ROLE_ROUTES:
            if (w->routes_bytes > 0)
                st_emit_operand(e, ST_ROLE_ROUTES, e->lay->routes[m], m);
            break;
        case ST_ROLE_CHOICE:
            st_emit_if_chosen(e, op->page);
            break;
        case ST_ROLE_SCALARS:
            st_emit_operand(e, ST_ROLE_SCALARS, e->lay->at.scalars_device, 0);
            break;
        case ST_ROLE_SUM:
            add_sums(e, u, sums, m);
            break;
        default:
            break;
        }
    }
    if (out)
        st_emit_act_keep(e, u->layer, m, act_out, FORWARD);
    if (makes_in)
        st_emit_act_keep(e, below, m, act, BACKWARD);
}

/* --- weights of a unit --- */

/* A page that several layers use, or two parts of one, is brought for each of them: traffic follows from the decisions, not from
 * what slots hold. */
static void drop_shared(struct st_emitter *e, const struct st_unit *u)
{
    const bool again = part_of(&e->program->workload, u->layer, u->part)->pages == AGAIN;

    e->current = (struct st_unit){.count = 0};
    for (uint32_t i = 0; i < u->count; i++)
        if (again || st_page_adds(&e->program->workload.pages[page_of(e, u, i)]) > 1)
            st_emit_forget_page(e, page_of(e, u, i));
}

/* Whether a layer has one page, which is its alone, and slots have room for it beside those of any other layer. */
static bool has_slot_ahead(const struct st_emitter *e, uint32_t layer)
{
    const struct st_workload *w = &e->program->workload;

    return w->layers[layer].kind == ST_LAYER_BLOCK && w->layers[layer].use_count == 1 &&
           w->pages[st_layer_page(w, layer, 0)].uses == 1 && e->lay->weights.count > e->plan->sums->pages_at_once;
}

/* Whether a layer's page is in its slot before the layer below it, or the table, has been computed. */
static bool comes_ahead(const struct st_emitter *e, uint32_t layer)
{
    const struct st_workload *w = &e->program->workload;

    if (layer == st_block_first(w))
        return e->first_ahead;
    return layer < st_block_end(w) && has_slot_ahead(e, layer) && st_page_sliced(&e->program->pages[st_layer_page(w, layer, 0)]);
}

static void bring_forward(struct st_emitter *e, const struct st_micros *micros, uint32_t p)
{
    if (micros->opens && st_emit_gated(e))
        st_emit_update(e, p);
}

/* A block in slices is updated and placed ahead of the one below it, in whose queue both would wait, so that the other ranks'
 * slices come while that one is computed; the first one in parallel with the table, while the host does the look-ups. */
static void layer_ahead(struct st_emitter *e, const struct st_micros *micros, uint32_t layer)
{
    const struct st_workload *w = &e->program->workload;

    if (layer >= st_block_end(w) || !comes_ahead(e, layer))
        return;
    bring_forward(e, micros, st_layer_page(w, layer, 0));
    (void)st_emit_device_weight(e, st_layer_page(w, layer, 0), FORWARD);
}

/* --- forward --- */

static void unit_forward(struct st_emitter *e, const struct st_micros *micros, const struct st_unit *u)
{
    const struct st_workload *w = &e->program->workload;
    uint32_t weights[ST_LAYER_PAGES_MAX] = {0};

    e->current = *u;
    for (uint32_t i = 0; i < u->count; i++) {
        const uint32_t p = page_of(e, u, i);

        if (w->pages[p].layer == u->layer && !comes_ahead(e, u->layer))
            bring_forward(e, micros, p);
        weights[i] = st_emit_device_weight(e, p, FORWARD);
    }
    if (w->layers[u->layer].kind == ST_LAYER_BLOCK)
        layer_ahead(e, micros, u->layer + 1);
    for (uint32_t m = micros->first; m < micros->end; m++)
        st_emit_call(e, u, (enum st_op_kind)part_of(w, u->layer, u->part)->forward, FORWARD, m, weights, NULL);
    drop_shared(e, u);
}

static void choice_op(struct st_emitter *e, enum st_op_kind kind, uint32_t layer, uint64_t bytes)
{
    const struct st_workload *w = &e->program->workload;
    struct st_op *op = st_emit_op(e, kind, FORWARD);

    op->layer = layer;
    op->page = st_layer_page(w, layer, 0);
    op->bytes = bytes;
    if (kind == ST_OP_DOWNLOAD_CHOICE)
        st_emit_operand(e, ST_ROLE_INTERNALS, e->lay->internals[layer], layer);
    st_emit_operand(e, ST_ROLE_CHOICE, e->lay->at.choice, layer);
}

/* Once a layer has its choice, and before any of its slices comes: which of them are left out.  Generation has one micro-batch.
 */
static void choose_slices(struct st_emitter *e, uint32_t layer)
{
    const struct st_workload *w = &e->program->workload;
    const uint64_t bytes = st_workload_choice_bytes(w);
    const uint32_t cuts = st_program_cuts(e->program);

    if (w->experts == 0 || w->layers[layer].kind != ST_LAYER_EXPERTS)
        return;
    choice_op(e, ST_OP_DOWNLOAD_CHOICE, layer, bytes);
    if (cuts > 1)
        choice_op(e, ST_OP_GATHER_CHOICE, layer, (cuts - 1) * bytes);
    choice_op(e, ST_OP_CHOOSE, layer, 0);
}

/* A table that stays on the device is uploaded piece by piece; the head is the first to need it. */
static void table_after_layer(struct st_emitter *e, const struct st_micros *micros, uint32_t layer)
{
    const struct st_workload *w = &e->program->workload;
    const uint64_t slices = w->gathered_count, layers = w->layer_count > 2 ? w->layer_count - 2 : 1;
    const uint64_t at = w->layer_count > 2 ? layer - 1 : 0;

    if (!micros->opens || !st_emit_uploads_later(e) || layer + 1 == w->layer_count || (layer == 0 && w->layer_count > 2))
        return;
    for (uint64_t t = slices * at / layers; t < slices * (at + 1) / layers; t++)
        st_emit_table_slice(e, (uint32_t)t);
}

void st_emit_forward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->program->workload;

    if (st_workload_opaque(w))
        st_emit_use_pages(e, micros);
    for (uint32_t l = 0; l < w->layer_count; l++) {
        if (w->layers[l].kind == ST_LAYER_LOOKUP) {
            layer_ahead(e, micros, 1);
            st_emit_lookup(e, micros);
            st_emit_forget_weights(e, e->first_ahead ? st_layer_page(w, 1, 0) : ST_NO_PAGE);
        }
        for (uint32_t part = 0; part < PARTS_MAX; part++) {
            if (part_of(w, l, part)->forward == NONE)
                continue;
            for (uint32_t slice = 0; slice < unit_count(w, l, part); slice++) {
                const struct st_unit u = unit_of(e, l, part, slice, false);

                unit_forward(e, micros, &u);
            }
            if (part == 0)
                choose_slices(e, l);
        }
        table_after_layer(e, micros, l);
    }
}

/* --- backward --- */

/* Brings the weights that come next ahead of this unit's exchange, behind which they would wait; not if an update that is made
 * here may want their slots. */
static void bring_ahead(struct st_emitter *e, const struct st_micros *micros, const struct st_unit *u)
{
    const uint32_t slots = e->lay->weights.count;
    struct st_unit next;

    if (e->program->ranks == 1 || !micros->closes || !next_below(e, u, &next) ||
        (slots > 0 && slots < e->plan->sums->pages_at_once + next.count))
        return;
    for (uint32_t i = 0; i < next.count; i++)
        if (!(st_emit_in_backward(e) || e->program->early_pages > 0) || st_page_sliced(&e->program->pages[page_of(e, &next, i)]))
            (void)st_emit_device_weight(e, page_of(e, &next, i), BACKWARD);
}

static void unit_backward(struct st_emitter *e, const struct st_micros *micros, const struct st_unit *u)
{
    const enum st_op_kind kind = (enum st_op_kind)part_of(&e->program->workload, u->layer, u->part)->backward;
    const bool weighs = st_operand_of(kind, ST_ROLE_WEIGHT) != NULL, horizontal = st_place_horizontal(e->plan);
    const uint32_t sum_count = st_operand_of(kind, ST_ROLE_SUM) != NULL ? u->count : 0;
    uint32_t weights[ST_LAYER_PAGES_MAX] = {0};
    struct st_open_sum sums[ST_LAYER_PAGES_MAX] = {0};

    if (!weighs && e->program->pages[page_of(e, u, 0)].grad == ST_WHERE_NONE)
        return; /* all that it does is to add */
    e->current = *u;
    for (uint32_t i = 0; weighs && i < u->count; i++)
        weights[i] = st_emit_device_weight(e, page_of(e, u, i), BACKWARD);
    for (uint32_t i = 0, number = 0; i < sum_count; i++) {
        sums[i] = st_emit_open_sum(e, page_of(e, u, i), u->layer, number, micros->first);
        number += sums[i].buffer != ST_NO_BUFFER;
    }
    for (uint32_t m = micros->first; m < micros->end; m++) {
        st_emit_call(e, u, kind, BACKWARD, m, weights, sums);
        for (uint32_t i = 0; i < sum_count && !horizontal; i++)
            st_emit_reduce(e, &sums[i], m);
    }
    if (sum_count == 0)
        bring_ahead(e, micros, u);
    for (uint32_t i = 0; i < sum_count; i++) {
        if (horizontal)
            st_emit_reduce(e, &sums[i], micros->first);
        if (i == 0)
            bring_ahead(e, micros, u);
        st_emit_close_sum(e, &sums[i], micros);
    }
    drop_shared(e, u);
}

void st_emit_backward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->program->workload;

    for (uint32_t l = w->layer_count; l-- > e->plan->sums->lowest_layer;)
        for (uint32_t part = PARTS_MAX; part-- > 0;) {
            if (part_of(w, l, part)->backward == NONE)
                continue;
            for (uint32_t slice = 0; slice < unit_count(w, l, part); slice++) {
                const struct st_unit u = unit_of(e, l, part, slice, true);

                unit_backward(e, micros, &u);
            }
        }
    if (st_workload_opaque(w))
        st_emit_close_pages(e, micros);
    st_emit_conclude(e);
}
