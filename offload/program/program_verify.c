/* program_verify.c - proves a program sound without running it.
 *
 * Seven parts.  Buffers: inside the bytes of their tier or space, disjoint; what is updated early has two.  Extents: a set holds
 * everything trained, once.  Ops: lane, indices and operands match the kind's row, so that the function that runs an op finds
 * each operand by its role.  Work: each cycle does each piece of a step's once.  Order: for every two conflicting accesses of a
 * buffer, over two cycles, the waits alone force the later to come after the earlier, so no legal execution can race. Content:
 * when the list is replayed phase by phase, everything that an op reads is there and is the latest version. Because of the proven
 * order, the replay stands for all executions.  It keeps early updates apart from what is in force, and goes through steps that
 * are kept and steps that are not. Sums: of which micro-batches each has the gradients. */
#include "offload/program/program_verify.h"

#include "core/base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- ops --- */

static strata_status malformed(const struct st_program *program, const struct st_op *op, const char *what)
{
    return st_error(STRATA_E_INTERNAL, "verify: op %u (%s): %s", (unsigned)(op - program->ops),
                    st_op_name((enum st_op_kind)op->kind), what);
}

static strata_status operand_error(const struct st_program *program, const struct st_op *op, const struct st_operand *operand)
{
    return st_error(STRATA_E_INTERNAL, "verify: op %u (%s): its operand \"%s\" is not there, or is not used as its kind uses it",
                    (unsigned)(op - program->ops), st_op_name((enum st_op_kind)op->kind),
                    st_role_name((enum st_role)operand->role));
}

static bool carries(const struct st_op_row *row, uint8_t index, bool there)
{
    return ((row->indices & index) != 0) == there;
}

/* How many micro-batches an op may be one of: with several ranks those of the others, too, where gradients of rows are added. */
static uint32_t micros_of(const struct st_program *program, const struct st_op *op)
{
    const uint32_t g = program->workload.grad_accum;
    const bool rows = op->kind == ST_OP_EXCHANGE_DACT || op->kind == ST_OP_SCATTER_MICRO || op->kind == ST_OP_DOWNLOAD_DACT ||
                      op->kind == ST_OP_SCATTER_HOST;

    return rows && program->ranks > 1 ? g + program->ranks * g : g;
}

/* Whether indices that the kind carries name something and the others are unset. */
static bool indices_match(const struct st_program *program, const struct st_op *op, const struct st_op_row *row)
{
    const struct st_workload *w = &program->workload;
    const bool block = (row->indices & ST_INDEX_BLOCK) != 0, slice = (row->indices & ST_INDEX_SLICE) != 0;
    const uint32_t own = st_op_in_parts((enum st_op_kind)op->kind) ? ST_LAYER_EXPERTS : ST_LAYER_BLOCK,
                   number = slice ? 1 + op->slice : 0;

    if (op->layer >= (block || row->work == ST_WORK_CALL ? w->layer_count : 1))
        return false;
    if (op->slice >= (!slice ? 1 : block ? st_layer_slices(&w->layers[op->layer]) : st_slice_count(w)))
        return false;
    if (block ? op->page != (w->layers[op->layer].use_count > number ? st_layer_page(w, op->layer, number) : ST_NO_PAGE)
              : !carries(row, ST_INDEX_PAGE, op->page != ST_NO_PAGE) || (op->page != ST_NO_PAGE && op->page >= w->page_count))
        return false;
    if ((row->indices & ST_INDEX_CHUNK) != 0 ? op->chunk >= program->chunk_count || program->chunks[op->chunk].page != op->page
                                             : op->chunk != 0)
        return false;
    return op->top == (op->kind == ST_OP_BLOCK_BACKWARD && op->layer + 1 == w->layer_count) &&
           (!block || w->layers[op->layer].kind == own) &&
           op->micro < ((row->indices & ST_INDEX_MICRO) != 0 ? micros_of(program, op) : 1);
}

/* Page number n of the op's layer, of those that are trained if `trained`; ST_NO_PAGE: it has not so many. */
static uint32_t page_of_layer(const struct st_program *program, const struct st_op *op, bool trained, uint32_t n)
{
    const struct st_workload *w = &program->workload;

    for (uint32_t i = 0; i < w->layers[op->layer].use_count; i++) {
        const uint32_t page = st_layer_page(w, op->layer, i);

        if ((!trained || program->pages[page].grad != ST_WHERE_NONE) && n-- == 0)
            return page;
    }
    return ST_NO_PAGE;
}

/* How many accesses an operand has that a layer has several or none of. */
static uint32_t layer_count(const struct st_program *program, const struct st_op *op, const struct st_operand *operand)
{
    const struct st_workload *w = &program->workload;
    uint32_t count = 0;

    switch ((enum st_role)operand->role) {
    case ST_ROLE_ACT:
        return op->layer > 0 && w->layers[op->layer - 1].boundary_bytes > 0;
    case ST_ROLE_ACT_OUT:
        return op->layer + 1 < w->layer_count;
    case ST_ROLE_DACT:
        return w->layer_count > 1;
    case ST_ROLE_INTERNALS:
        return w->layers[op->layer].internal_bytes > 0;
    case ST_ROLE_ROUTES:
        return w->routes_bytes > 0;
    default:
        while (page_of_layer(program, op, operand->role == ST_ROLE_SUM, count) != ST_NO_PAGE)
            count++;
        return count;
    }
}

/* Whether access number n of the operand is the thing that the op's own indices name. */
static bool names_its_thing(const struct st_program *program, const struct st_op *op, const struct st_operand *operand,
                            uint32_t n, const struct st_access *a)
{
    const uint32_t g = program->workload.grad_accum;
    const bool layer = operand->times == ST_OPERAND_LAYER, block = (st_op_rows[op->kind].indices & ST_INDEX_BLOCK) != 0;

    if (operand->times == ST_OPERAND_EACH) /* a gathered page, or a micro-batch */
        return a->index == n;
    switch ((enum st_content)a->content) {
    case ST_HOLDS_WEIGHT:
        return a->index == (layer ? page_of_layer(program, op, false, n) : op->page);
    case ST_HOLDS_GRAD:
    case ST_HOLDS_WIRE:
        return a->index == op->page;
    case ST_HOLDS_ACCUM: /* whatever its depth: program_verify_sums.c */
        return a->index % program->workload.page_count == (layer ? page_of_layer(program, op, true, n) : op->page);
    case ST_HOLDS_STATE:
        return a->index == op->chunk;
    case ST_HOLDS_DACT:
    case ST_HOLDS_HEAD:
    case ST_HOLDS_ROUTES:
        return a->index == op->micro;
    case ST_HOLDS_ACT:
        return !block ? a->index % g == op->micro : a->index == (uint64_t)(op->layer - (a->role == ST_ROLE_ACT)) * g + op->micro;
    case ST_HOLDS_INTERNALS:
        return a->index == (uint64_t)op->layer * g + op->micro;
    case ST_HOLDS_CHOICE:
        return a->index == program->workload.pages[op->page].layer;
    case ST_HOLDS_LOGITS:
        return a->index == (uint64_t)op->slice * g + op->micro;
    default:
        return true;
    }
}

/* Whether access number n of the operand is used as its row says; of several sums each begins when its turn comes
 * (program_verify_sums.c). */
static bool mode_fits(const struct st_operand *operand, const struct st_op *op, uint32_t n, const struct st_access *a)
{
    if (operand->times == ST_OPERAND_LAYER && operand->use == ST_OPERAND_ADD && n > 0)
        return a->mode == ST_WRITE || a->mode == ST_MODIFY;
    return a->mode == st_operand_mode(operand, op);
}

/* How many accesses from `at` on belong to this operand; UINT32_MAX: one of them is not used as the row says. */
static uint32_t count_operand(const struct st_program *program, const struct st_op *op, const struct st_operand *operand,
                              uint32_t at)
{
    uint32_t count = 0;

    for (; at < op->access_count && program->accesses[op->access_first + at].role == operand->role; at++, count++) {
        const struct st_access *a = &program->accesses[op->access_first + at];

        if (!mode_fits(operand, op, count, a) || a->content != operand->content || a->buffer >= program->buffer_count ||
            !names_its_thing(program, op, operand, count, a))
            return UINT32_MAX;
    }
    return count;
}

static bool count_matches(const struct st_program *program, const struct st_op *op, const struct st_operand *operand,
                          uint32_t count)
{
    switch ((enum st_operand_times)operand->times) {
    case ST_OPERAND_MAYBE:
        return count <= 1;
    case ST_OPERAND_TRAINED:
        return count == (program->pages[op->page].grad != ST_WHERE_NONE ? 1 : 0);
    case ST_OPERAND_KEPT:
        return count == (op->recompute ? 0 : 1);
    case ST_OPERAND_CHOSEN:
        return count == (st_page_is_chosen(&program->workload, op->page) ? 1 : 0);
    case ST_OPERAND_REMADE:
        return count == (op->recompute ? 1 : 0);
    case ST_OPERAND_EACH:
        return count == (operand->content == ST_HOLDS_DACT ? program->workload.grad_accum : program->workload.gathered_count);
    case ST_OPERAND_LAYER:
        return count == layer_count(program, op, operand);
    default:
        return count == 1;
    }
}

/* Bytes that a copy may move to or from what it accesses: of weights at home on NVMe those in the base, too. */
static uint64_t room_of(const struct st_program *program, const struct st_access *a)
{
    const struct st_page_place *place = a->content == ST_HOLDS_WEIGHT ? &program->pages[a->index] : NULL;
    const uint64_t bytes = program->buffers[a->buffer].bytes;

    if (place == NULL || a->buffer != place->home_region || a->buffer != place->extent || place->base_extent == ST_NO_BUFFER)
        return bytes;
    return bytes + program->buffers[place->base_extent].bytes;
}

/* Whether an op is a save's copy of state or weights. */
static bool is_save(const struct st_op *op)
{
    const enum st_content content = (enum st_content)st_op_rows[op->kind].operands[0].content;

    return op->phases == ST_PHASE_SAVE && st_op_copies((enum st_op_kind)op->kind) &&
           (content == ST_HOLDS_STATE || content == ST_HOLDS_WEIGHT);
}

/* Whether a save's copy lies in its thing, and what comes down is all of a part. */
static bool part_fits(const struct st_program *program, const struct st_op *op)
{
    const uint64_t at = st_part_at(program, op), most = program->part_bytes + ST_PART_MORE;
    uint64_t left;

    if (!is_save(op) || program->part_bytes == 0)
        return op->part == 0;
    left = st_extent_bytes(st_saved_bytes(program, op));
    if (at >= left || op->bytes > left - at)
        return false;
    left = st_saved_bytes(program, op) - at;
    return op->lane != STRATA_LANE_DOWNLOAD || op->bytes == (left < most ? left : most);
}

/* Whether an op takes a shard for a shard, and a page for a page: where a page lives on the device in slices, updates and saves
 * find those, and all others what has been placed in a slot. */
static bool takes_its_layout(const struct st_program *program, const struct st_op *op)
{
    for (uint32_t k = op->access_first; k < op->access_first + op->access_count; k++) {
        const struct st_access *a = &program->accesses[k];
        const struct st_page_place *place = &program->pages[a->content == ST_HOLDS_WEIGHT ? a->index : 0];
        const bool fills = a->role == ST_ROLE_TO && (op->kind == ST_OP_PLACE_WEIGHT || op->kind == ST_OP_UPLOAD_WEIGHT);
        const bool shard = a->role == ST_ROLE_FROM ? op->kind == ST_OP_PLACE_WEIGHT || op->kind == ST_OP_DOWNLOAD_WEIGHT
                                                   : op->kind == ST_OP_UPDATE_DEVICE;

        if (a->content != ST_HOLDS_WEIGHT)
            continue;
        if (op->kind == ST_OP_PLACE_WEIGHT && !st_page_sliced(place))
            return false;
        if (st_page_sliced(place) && (a->buffer == place->home_region) != shard)
            return false;
        if (fills && program->buffers[a->buffer].bytes < program->workload.pages[a->index].bytes)
            return false;
    }
    return true;
}

static bool may_be_early(enum st_op_kind kind)
{
    return kind == ST_OP_UPDATE || kind == ST_OP_WRITE_STATE || kind == ST_OP_WRITE_WEIGHT;
}

static strata_status verify_ops(const struct st_program *program)
{
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];
        const struct st_op_row *row = &st_op_rows[op->kind < ST_OP_KIND_COUNT ? op->kind : 0];
        const struct st_access *accesses = &program->accesses[op->access_first];
        uint32_t at = 0;

        if (op->kind >= ST_OP_KIND_COUNT || op->phases == 0 || op->lane != row->lane)
            return malformed(program, op, "its kind, lane or phases are wrong");
        if (!indices_match(program, op, row))
            return malformed(program, op, "its indices are not those of its kind");
        for (uint32_t k = 0; k < ST_OPERANDS_MAX && row->operands[k].role != ST_ROLE_NONE; k++) {
            const uint32_t count = count_operand(program, op, &row->operands[k], at);

            if (!count_matches(program, op, &row->operands[k], count))
                return operand_error(program, op, &row->operands[k]);
            at += count;
        }
        if (at != op->access_count)
            return malformed(program, op, "it has operands that its kind does not have");
        if (st_op_copies((enum st_op_kind)op->kind) && accesses[0].index != accesses[1].index)
            return malformed(program, op, "it would leave another thing than it finds");
        if (st_op_copies((enum st_op_kind)op->kind) &&
            (op->bytes > room_of(program, &accesses[0]) || op->bytes > room_of(program, &accesses[1])))
            return malformed(program, op, "it copies more bytes than one of its buffers has");
        if (op->early && !(may_be_early((enum st_op_kind)op->kind) && program->pages[op->page].early))
            return malformed(program, op, "it cannot be made early");
        if (!part_fits(program, op))
            return malformed(program, op, "it copies a part that is not there");
        if (!takes_its_layout(program, op))
            return malformed(program, op, "it takes a page for the rank's shard of it, or a shard for a page");
    }
    return STRATA_OK;
}

static strata_status verify_waits(const struct st_program *program)
{
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];

        for (uint32_t w = 0; w < op->wait_count; w++) {
            const struct st_wait *wait = &program->waits[op->wait_first + w];

            if (wait->op >= program->op_count || (!wait->previous && wait->op >= i))
                return st_error(STRATA_E_INTERNAL, "verify: op %u (%s) waits for op %u: it could never start", i,
                                st_op_name(op->kind), wait->op);
        }
    }
    return STRATA_OK;
}

/* --- content --- */

struct held {
    uint8_t content;
    bool part; /* only the part of a page's weights that an update changes, without frozen ones */
    bool early; /* what an early update has made of the version: it comes into force, or is forgotten, as the next cycle begins */
    bool own;  /* only what this rank has: its slices of weights on the device, its micro-batches' part of a sum */
    uint32_t index, version;
    uint64_t from, to; /* bytes of the thing that are there, the first at the buffer's start; to ST_TO_END: all from there on */
};
#define ST_TO_END UINT64_MAX

struct replay {
    const struct st_program *program;
    struct held *held;                   /* [buffer_count] */
    bool *moved;                         /* [buffer_count]: what is in force is in the other place */
    uint32_t *current[ST_CONTENT_COUNT]; /* latest version of thing i of a content */
    uint32_t version;
};

/* What a buffer holds where it is in force, and where the op writes it. */
static struct held *in_force(const struct replay *r, uint32_t buffer)
{
    return &r->held[r->moved[buffer] ? r->program->buffers[buffer].other : buffer];
}
static struct held *written_by(const struct replay *r, const struct st_op *op, uint32_t buffer)
{
    const uint32_t other = r->program->buffers[buffer].other;

    return &r->held[op->early && other != 0 && !r->moved[buffer] ? other : buffer];
}

static bool tracked(uint8_t content)
{
    return content != ST_HOLDS_SCRATCH && content != ST_HOLDS_SCALARS;
}

/* Whether it copies less than all of a page's weights. */
static bool copies_part(const struct st_program *program, const struct st_op *op)
{
    return st_op_copies((enum st_op_kind)op->kind) && st_op_rows[op->kind].operands[0].content == ST_HOLDS_WEIGHT &&
           op->bytes < program->shards[op->page].bytes;
}

/* Where what an op uses of its thing ends. */
static uint64_t used_to(const struct replay *r, const struct st_op *op)
{
    const uint64_t end = st_part_at(r->program, op) + op->bytes;

    return is_save(op) && end < st_saved_bytes(r->program, op) ? end : ST_TO_END;
}

/* Whether what the op reads of it is there, where the op looks for it: at the start of a slot that has a part. */
static bool has_used(const struct replay *r, const struct st_op *op, const struct held *h)
{
    const bool down = st_op_rows[op->kind].lane == STRATA_LANE_DOWNLOAD;

    return h->from == (down ? 0 : st_part_at(r->program, op)) && used_to(r, op) <= h->to;
}

/* Whether a later part of an extent follows on those before it. */
static bool goes_on(const struct replay *r, const struct st_op *op, const struct st_access *a)
{
    const struct held *h = in_force(r, a->buffer);

    return op->part == 0 || op->lane != STRATA_LANE_WRITE ||
           (h->content == a->content && h->index == a->index && h->version == r->current[a->content][a->index] && h->from == 0 &&
            h->to == st_part_at(r->program, op));
}

/* Whether the op adds a micro-batch's gradients to a sum. */
static bool adds_gradients(enum st_op_kind kind)
{
    return st_op_rows[kind].work == ST_WORK_CALL || st_op_rows[kind].lane == STRATA_LANE_CALLER;
}

/* Whether what an op leaves is this rank's alone, which gathers and reductions end. */
static bool leaves_own(const struct replay *r, const struct st_op *op, const struct st_access *a)
{
    const struct st_program *program = r->program;
    const enum st_op_kind kind = (enum st_op_kind)op->kind;

    if (a->content == ST_HOLDS_WEIGHT)
        return st_program_cuts(program) > 1 &&
               (kind == ST_OP_UPLOAD_WEIGHT || kind == ST_OP_PLACE_WEIGHT || kind == ST_OP_UPDATE_DEVICE);
    if (a->content != ST_HOLDS_ACCUM || program->ranks == 1 || kind == ST_OP_REDUCE_RANKS)
        return false;
    if (st_op_copies(kind))
        return in_force(r, st_op_access(program->accesses, op, ST_ROLE_FROM)->buffer)->own;
    return adds_gradients(kind) || (a->mode == ST_MODIFY && in_force(r, a->buffer)->own);
}

/* Whether the op needs all ranks' part of what it reads. */
static bool needs_all(const struct st_op *op, const struct st_access *a)
{
    const enum st_op_kind kind = (enum st_op_kind)op->kind;

    if (a->content == ST_HOLDS_WEIGHT)
        return kind != ST_OP_UPDATE_DEVICE && kind != ST_OP_PLACE_WEIGHT && kind != ST_OP_DOWNLOAD_WEIGHT &&
               kind != ST_OP_GATHER_WEIGHT && kind != ST_OP_GATHER_UPDATED;
    return !adds_gradients(kind) && !st_op_copies(kind) && kind != ST_OP_REDUCE_SUM && kind != ST_OP_ROUND_SUM &&
           kind != ST_OP_EXCHANGE_GRAD && kind != ST_OP_REDUCE_RANKS;
}

static void put(struct replay *r, const struct st_op *op, const struct st_access *a, bool part)
{
    struct held *h = written_by(r, op, a->buffer);
    const bool own = leaves_own(r, op, a);

    r->moved[a->buffer] = r->moved[a->buffer] && op->early;
    *h = (struct held){.content = a->content,
                       .early = op->early,
                       .own = own,
                       .part = part && (h->content != a->content || h->index != a->index || h->part),
                       .index = a->index,
                       .version = tracked(a->content) ? r->current[a->content][a->index] : 0,
                       .from = op->lane == STRATA_LANE_WRITE ? 0 : st_part_at(r->program, op),
                       .to = used_to(r, op)};
}

static strata_status replay_op(struct replay *r, uint32_t index)
{
    const struct st_program *program = r->program;
    const struct st_op *op = &program->ops[index];
    const struct st_access *accesses = &program->accesses[op->access_first];
    const bool part = copies_part(program, op);

    if (part && !is_save(op) && op->bytes < program->shards[op->page].trained_bytes)
        return malformed(program, op, "it leaves behind some of what an update changes");

    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct st_access *a = &accesses[i];
        const struct held *h = in_force(r, a->buffer);

        if ((a->mode & ST_READ) == 0 || !tracked(a->content))
            continue;
        if (h->early ? !op->early : op->early && st_op_copies((enum st_op_kind)op->kind))
            return malformed(program, op, "it takes what is in force for what was updated early, or the other way round");
        if (h->content != a->content || h->index != a->index)
            return st_error(STRATA_E_INTERNAL, "verify: op %u (%s) expects content %u of %u in buffer %u, which holds %u of %u",
                            index, st_op_name(op->kind), a->content, a->index, a->buffer, h->content, h->index);
        if (h->part && !part)
            return st_error(STRATA_E_INTERNAL,
                            "verify: op %u (%s) would read frozen weights of page %u in buffer %u, which lacks them", index,
                            st_op_name(op->kind), a->index, a->buffer);
        if (h->own && needs_all(op, a))
            return st_error(STRATA_E_INTERNAL,
                            "verify: op %u (%s) would read content %u of %u in buffer %u without what other ranks have of it",
                            index, st_op_name(op->kind), a->content, a->index, a->buffer);
        if (h->version != r->current[a->content][a->index])
            return st_error(STRATA_E_INTERNAL, "verify: op %u (%s) would read a stale copy of content %u of %u in buffer %u",
                            index, st_op_name(op->kind), a->content, a->index, a->buffer);
        if (!has_used(r, op, h))
            return malformed(program, op, "it reads a part that is not there");
    }
    for (uint32_t i = 0; i < op->access_count; i++) {
        const struct st_access *a = &accesses[i];

        if ((a->mode & ST_WRITE) == 0)
            continue;
        if (!goes_on(r, op, a))
            return malformed(program, op, "it leaves out a part");
        if (tracked(a->content) && a->role != ST_ROLE_TO && !op->early)
            r->current[a->content][a->index] = ++r->version;
        put(r, op, a, part);
    }
    return STRATA_OK;
}

static void replay_start(struct replay *r)
{
    const struct st_program *program = r->program;

    for (uint32_t p = 0; p < program->workload.page_count; p++) {
        const struct st_page_place *place = &program->pages[p];
        const struct held weight = {.content = ST_HOLDS_WEIGHT, .index = p, .to = ST_TO_END};

        if (place->weight_region != ST_NO_BUFFER)
            r->held[place->weight_region] = weight;
        if (place->home_region != ST_NO_BUFFER)
            r->held[place->home_region] = weight;
        if (st_page_sliced(place))
            r->held[place->home_region].own = true;
    }
    for (uint32_t c = 0; c < program->chunk_count; c++)
        if (program->chunks[c].region != ST_NO_BUFFER)
            r->held[program->chunks[c].region] = (struct held){.content = ST_HOLDS_STATE, .index = c, .to = ST_TO_END};
    if (program->at.tokens_host != ST_NO_BUFFER)
        r->held[program->at.tokens_host] = (struct held){.content = ST_HOLDS_TOKENS, .to = ST_TO_END};
}

/* Whether an extent of a set has the thing's latest version. */
static bool is_saved(const struct replay *r, uint32_t extent, enum st_content content, uint32_t index)
{
    const struct held *h = extent == ST_NO_BUFFER ? NULL : &r->held[extent];

    return h == NULL || (!r->moved[extent] && h->content == content && h->index == index &&
                         h->version == r->current[content][index] && h->from == 0 && h->to == ST_TO_END);
}

/* A cycle that saves has left a whole set: what every page and chunk was after its update. */
static strata_status verify_saved(const struct replay *r)
{
    const struct st_program *program = r->program;

    for (uint32_t p = 0; p < program->workload.page_count; p++)
        if (!is_saved(r, program->pages[p].extent, ST_HOLDS_WEIGHT, p))
            return st_error(STRATA_E_INTERNAL, "verify: a save leaves the weights of page %u behind", p);
    for (uint32_t c = 0; c < program->chunk_count; c++)
        if (!is_saved(r, program->chunks[c].extent, ST_HOLDS_STATE, c))
            return st_error(STRATA_E_INTERNAL, "verify: a save leaves the state of chunk %u behind", c);
    return STRATA_OK;
}

/* What an early update has left becomes the latest version.  False: it is not there. */
static bool comes_into_force(struct replay *r, uint32_t buffer, enum st_content content, uint32_t index)
{
    const uint32_t other = r->program->buffers[buffer].other;
    struct held *h = &r->held[r->moved[buffer] ? buffer : other];

    if (!h->early || h->content != content || h->index != index || h->version != r->current[content][index])
        return false;
    r->moved[buffer] = !r->moved[buffer];
    h->version = r->current[content][index] = ++r->version;
    h->early = false;
    return true;
}

/* A BODY takes what was updated early into force; any other cycle, and one that makes those updates again, does not. */
static strata_status decide(struct replay *r, enum st_phase phase)
{
    const struct st_program *program = r->program;

    for (uint32_t c = 0; c < program->chunk_count && st_phase_keeps(phase); c++)
        if (program->pages[program->chunks[c].page].early && !comes_into_force(r, program->chunks[c].region, ST_HOLDS_STATE, c))
            return st_error(STRATA_E_INTERNAL, "verify: a step leaves no second version of the state of chunk %u", c);
    for (uint32_t p = 0; p < program->workload.page_count && st_phase_keeps(phase); p++)
        if (program->pages[p].early && !comes_into_force(r, program->pages[p].home_region, ST_HOLDS_WEIGHT, p))
            return st_error(STRATA_E_INTERNAL, "verify: a step leaves no second version of the weights of page %u", p);
    for (uint32_t b = 0; b < program->buffer_count; b++)
        if (r->held[b].early)
            r->held[b] = (struct held){.content = ST_HOLDS_SCRATCH};
    return STRATA_OK;
}

static strata_status replay_cycle(struct replay *r, enum st_phase phase)
{
    strata_status st = r->program->early_pages > 0 ? decide(r, phase) : STRATA_OK;

    for (uint32_t i = 0; i < r->program->op_count && st == STRATA_OK; i++)
        if (st_op_runs(&r->program->ops[i], phase))
            st = replay_op(r, i);
    return st == STRATA_OK && (phase & ST_PHASE_SAVE) != 0 && r->program->sets > 0 ? verify_saved(r) : st;
}

static strata_status replay_phases(struct replay *r)
{
    const char *at = st_verify_walk(r->program->early_pages > 0);
    strata_status st = STRATA_OK;

    while (*at != '\0' && st == STRATA_OK)
        st = replay_cycle(r, st_verify_walk_phase(*at++));
    return st;
}

static strata_status verify_content(const struct st_program *program)
{
    uint32_t things[ST_CONTENT_COUNT] = {0};
    struct replay r = {.program = program};
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < program->access_count; i++)
        if (program->accesses[i].index >= things[program->accesses[i].content])
            things[program->accesses[i].content] = program->accesses[i].index + 1;
    r.held = calloc(program->buffer_count + 1, sizeof(*r.held));
    r.moved = calloc(program->buffer_count + 1, sizeof(*r.moved));
    for (uint32_t c = 0; c < ST_CONTENT_COUNT; c++) {
        r.current[c] = calloc(things[c] + 1, sizeof(uint32_t));
        if (r.current[c] == NULL || r.held == NULL || r.moved == NULL)
            st = st_nomem(0);
    }
    if (st == STRATA_OK)
        replay_start(&r);
    if (st == STRATA_OK)
        st = replay_phases(&r);
    free(r.held);
    free(r.moved);
    for (uint32_t c = 0; c < ST_CONTENT_COUNT; c++)
        free(r.current[c]);
    return st;
}

strata_status st_program_verify(const struct st_program *program)
{
    strata_status st;

    if (program->op_count == 0)
        return st_error(STRATA_E_INTERNAL, "verify: there is no program");
    if ((st = st_verify_places(program)) != STRATA_OK || (st = verify_ops(program)) != STRATA_OK ||
        (st = st_verify_work(program)) != STRATA_OK || (st = verify_waits(program)) != STRATA_OK ||
        (st = st_verify_order(program)) != STRATA_OK)
        return st;
    return (st = verify_content(program)) == STRATA_OK ? st_verify_sums(program) : st;
}
