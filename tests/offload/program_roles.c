/* program_roles.c - see program_roles.h. */
#include "program_roles.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT 4096 /* of an op's accesses */

static const char *const contents[] = {
    [ST_HOLDS_SCRATCH] = "scratch", [ST_HOLDS_WEIGHT] = "weight", [ST_HOLDS_STATE] = "state",
    [ST_HOLDS_GRAD] = "grad",       [ST_HOLDS_ACCUM] = "sum",     [ST_HOLDS_ACT] = "act",
    [ST_HOLDS_DACT] = "dact",       [ST_HOLDS_TOKENS] = "tokens", [ST_HOLDS_ROWS] = "rows",
    [ST_HOLDS_HEAD] = "head",       [ST_HOLDS_LOGITS] = "logits", [ST_HOLDS_INTERNALS] = "internals",
    [ST_HOLDS_SCALARS] = "scalars", [ST_HOLDS_WIRE] = "wire",     [ST_HOLDS_ROUTES] = "routes",
    [ST_HOLDS_CHOICE] = "choice",
};
static const char *const modes[] = {[ST_READ] = "read", [ST_WRITE] = "write", [ST_MODIFY] = "modify"};

/* What an op does to its operands, in order, written down once more than in op_table.c, so that a wrong row is noticed; what only
 * some ops of a kind have is added below.  Of a kind that is not here the verifier alone says that ops match their row. */
static const char *const roles[ST_OP_KIND_COUNT] = {
    [ST_OP_UPLOAD_TOKENS] = " read tokens, write tokens,",
    [ST_OP_READ_WEIGHT] = " read weight, write weight,",
    [ST_OP_WRITE_WEIGHT] = " read weight, write weight,",
    [ST_OP_READ_STATE] = " read state, write state,",
    [ST_OP_WRITE_STATE] = " read state, write state,",
    [ST_OP_UPDATE] = " modify state, modify weight, read grad,",
    [ST_OP_UPLOAD_STATE] = " read state, write state,",
    [ST_OP_UPDATE_DEVICE] = " modify state, modify weight, read grad, modify scalars,",
    [ST_OP_DOWNLOAD_STATE] = " read state, write state,",
    [ST_OP_UPLOAD_WEIGHT] = " read weight, write weight,",
    [ST_OP_DOWNLOAD_WEIGHT] = " read weight, write weight,",
    [ST_OP_PLACE_WEIGHT] = " read weight, write weight,",
    [ST_OP_GATHER_DEVICE] = " write act, read tokens,",
    [ST_OP_GATHER_HOST] = " read weight, read tokens,",
    [ST_OP_UPLOAD_ROWS] = " read rows, write act,",
    [ST_OP_EMBED_FORWARD] = " modify act, read weight,",
    [ST_OP_BLOCK_FORWARD] = "",
    [ST_OP_DOWNLOAD_ACT] = " read act, write act,",
    [ST_OP_WRITE_ACT] = " read act, write act,",
    [ST_OP_READ_ACT] = " read act, write act,",
    [ST_OP_UPLOAD_ACT] = " read act, write act,",
    [ST_OP_HEAD_NORM] = " read act, read weight, write head,",
    [ST_OP_HEAD_STATS] = " modify head, read weight, read tokens, write scratch,",
    [ST_OP_HEAD_LOSS] = " read head, read tokens,",
    [ST_OP_HEAD_GRAD] = " modify head, read weight, read tokens, write scratch,",
    [ST_OP_HEAD_BACKWARD] = " read act, read weight, read head, write dact, write scratch,",
    [ST_OP_BLOCK_BACKWARD] = "",
    [ST_OP_EMBED_BACKWARD] = " read dact,",
    [ST_OP_ROUTE_FORWARD] = " read act, read weight, write internals,",
    [ST_OP_EXPERTS_FORWARD] = " read weight, modify internals, write scratch,",
    [ST_OP_DOWNLOAD_CHOICE] = " read internals, write choice,",
    [ST_OP_GATHER_CHOICE] = " modify choice,",
    [ST_OP_CHOOSE] = " modify choice,",
    [ST_OP_ROUTE_END] = " write act, read internals, write scratch,",
    [ST_OP_ROUTE_AGAIN] = "",
    [ST_OP_EXPERTS_BACKWARD] = " read weight, modify internals, read dact, write scratch,",
    [ST_OP_ROUTE_BACKWARD] = " read act, read weight, modify internals,",
    [ST_OP_PAGE_USE] = " read weight,",
    [ST_OP_PAGE_GRAD] = " read weight,",
    [ST_OP_CALLER_END] = " modify scalars,",
    [ST_OP_DOWNLOAD_ACCUM] = " read sum, write sum,",
    [ST_OP_UPLOAD_ACCUM] = " read sum, write sum,",
    [ST_OP_REDUCE_SUM] = " modify sum, read sum,",
    [ST_OP_SCATTER_DEVICE] = "",
    [ST_OP_DOWNLOAD_DACT] = " read dact, write dact,",
    [ST_OP_SCATTER_HOST] = " read dact, read tokens,",
    [ST_OP_FINISH_GRAD] = " read sum, write grad, modify scalars, write scratch,",
    [ST_OP_FINISH_HOST] = " read sum, write grad, modify scalars,",
    [ST_OP_DOWNLOAD_GRAD] = " read grad, write grad,",
    [ST_OP_WRITE_GRAD] = " read grad, write grad,",
    [ST_OP_READ_GRAD] = " read grad, write grad,",
    [ST_OP_DOWNLOAD_SCALARS] = " read scalars, write scalars,",
    [ST_OP_END] = " modify scalars, read scalars, read scalars,",
    [ST_OP_GATHER_TOKENS] = " modify tokens,",
    [ST_OP_EXCHANGE_ROWS] = " read weight, read tokens, modify rows,",
    [ST_OP_GATHER_WEIGHT] = " modify weight,",
    [ST_OP_GATHER_UPDATED] = " modify weight,",
    [ST_OP_ROUND_SUM] = " read sum, write wire, write scratch,",
    [ST_OP_EXCHANGE_GRAD] = " read sum, write wire,",
    [ST_OP_EXCHANGE_ROUNDED] = " modify wire,",
    [ST_OP_REDUCE_RANKS] = " modify sum, modify wire,",
    [ST_OP_GATHER_GRAD] = " modify grad,",
    [ST_OP_EXCHANGE_DACT] = "",
    [ST_OP_SCATTER_MICRO] = "",
    [ST_OP_GATHER_SCALARS] = " modify scalars, modify scalars, read scalars,",
};

static void add(char text[TEXT], const char *mode, const char *content, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++) {
        const size_t used = strlen(text);

        snprintf(text + used, TEXT - used, " %s %s,", mode, content);
    }
}

/* A page's sum begins with a leaf's first micro-batch, in the uppermost layer that uses it. */
static const char *sum_mode(const struct st_plan *plan, const struct st_op *op, uint32_t page)
{
    const struct st_workload *w = &plan->program.workload;

    if (op->kind != ST_OP_BLOCK_BACKWARD)
        return op->first ? "write" : "modify";
    for (uint32_t l = op->layer + 1; l < w->layer_count; l++)
        if (st_layer_has(w, l, page))
            return "modify";
    return op->micro % st_leaf_micros(&plan->program) == 0 ? "write" : "modify";
}

static void expected_roles(char text[TEXT], const struct st_plan *plan, const struct st_op *op)
{
    const struct st_workload *w = &plan->program.workload;
    const bool trained = op->page != ST_NO_PAGE && plan->program.pages[op->page].grad != ST_WHERE_NONE;

    snprintf(text, TEXT, "%s", roles[op->kind]);
    switch (op->kind) {
    case ST_OP_UPDATE:
    case ST_OP_UPDATE_DEVICE: /* the step's norm decides about it, unless it comes before */
        add(text, "read", "scalars", plan->policy.update != ST_UPDATE_IN_BACKWARD && !op->early);
        break;
    case ST_OP_GATHER_DEVICE:
        add(text, "read", "weight", shape_of(w).table_count);
        break;
    case ST_OP_READ_WEIGHT:
    case ST_OP_UPLOAD_WEIGHT:
    case ST_OP_PLACE_WEIGHT:
    case ST_OP_GATHER_WEIGHT:
    case ST_OP_EXPERTS_FORWARD: /* a slice waits for what is chosen; the first page of its layer chooses */
        add(text, "read", "choice",
            w->experts > 0 && w->layers[w->pages[op->page].layer].kind == ST_LAYER_EXPERTS && !st_page_leads(w, op->page));
        break;
    case ST_OP_GATHER_HOST:
        add(text, op->page == 0 ? "write" : "modify", "rows", 1);
        break;
    case ST_OP_HEAD_STATS:
        add(text, "write", "logits", op->slice < plan->decided.kept_slices);
        break;
    case ST_OP_HEAD_GRAD:
        add(text, "read", "logits", !op->recompute);
        add(text, sum_mode(plan, op, op->page), "sum", trained);
        break;
    case ST_OP_BLOCK_FORWARD:
        add(text, "read", "act", op->layer > 0);
        add(text, "write", "act", op->layer + 1 < w->layer_count);
        add(text, "read", "weight", w->layers[op->layer].use_count);
        add(text, "write", "internals", w->layers[op->layer].internal_bytes > 0);
        add(text, "write", "scratch", 1);
        break;
    case ST_OP_BLOCK_BACKWARD:
        add(text, "read", "act", op->layer > 0);
        add(text, "read", "weight", w->layers[op->layer].use_count);
        add(text, op->recompute ? "write" : "read", "internals", w->layers[op->layer].internal_bytes > 0);
        add(text, op->layer + 1 < w->layer_count ? "modify" : "write", "dact", w->layer_count > 1);
        add(text, "write", "scratch", 1);
        for (uint32_t i = 0; i < w->layers[op->layer].use_count; i++)
            if (plan->program.pages[st_layer_page(w, op->layer, i)].grad != ST_WHERE_NONE)
                add(text, sum_mode(plan, op, st_layer_page(w, op->layer, i)), "sum", 1);
        break;
    case ST_OP_HEAD_LOSS:
        add(text, "read", "routes", w->routes_bytes > 0);
        add(text, "modify", "scalars", 1);
        break;
    case ST_OP_ROUTE_FORWARD: /* the lowest layer of experts begins them */
        add(text, w->layers[op->layer - 1].kind == ST_LAYER_EXPERTS ? "modify" : "write", "routes", w->routes_bytes > 0);
        add(text, "write", "scratch", 1);
        break;
    case ST_OP_ROUTE_AGAIN:
        add(text, "read", "act", op->recompute);
        add(text, "read", "weight", op->recompute);
        add(text, op->recompute ? "write" : "modify", "internals", 1);
        add(text, "read", "dact", 1);
        add(text, "write", "scratch", 1);
        break;
    case ST_OP_ROUTE_BACKWARD:
        add(text, "read", "routes", w->routes_bytes > 0);
        add(text, "modify", "dact", 1);
        add(text, "write", "scratch", 1);
        add(text, sum_mode(plan, op, op->page), "sum", trained);
        break;
    case ST_OP_HEAD_BACKWARD:
    case ST_OP_EXPERTS_BACKWARD:
    case ST_OP_EMBED_BACKWARD:
    case ST_OP_PAGE_GRAD:
        add(text, sum_mode(plan, op, op->page), "sum", trained);
        break;
    case ST_OP_SCATTER_DEVICE:
        add(text, sum_mode(plan, op, op->page), "sum", 1);
        add(text, "read", "tokens", 1);
        add(text, "read", "dact", w->grad_accum);
        break;
    case ST_OP_SCATTER_HOST:
        add(text, sum_mode(plan, op, op->page), "sum", shape_of(w).table_count);
        break;
    case ST_OP_EXCHANGE_DACT: /* another rank's come, one's own go */
        add(text, op->micro >= w->grad_accum ? "write" : "modify", "dact", 1);
        add(text, "read", "tokens", 1);
        break;
    case ST_OP_SCATTER_MICRO:
        add(text, sum_mode(plan, op, op->page), "sum", 1);
        add(text, "read", "tokens", 1);
        add(text, "read", "dact", 1);
        break;
    default:
        break;
    }
}

static void check_roles(const struct st_plan *plan, uint32_t i, const char *what)
{
    const struct st_op *op = &plan->program.ops[i];
    char want[TEXT], got[TEXT] = "";

    expected_roles(want, plan, op);
    for (uint32_t a = 0; a < op->access_count; a++) {
        const struct st_access *access = &plan->program.accesses[op->access_first + a];

        add(got, modes[access->mode], contents[access->content], 1);
    }
    if (strcmp(got, want) != 0)
        fail_msg("%s: op %u (%s) lists%s and should list%s", what, i, st_op_name(op->kind), got, want);
}

/* --- once each --- */

/* Of a page's sum. */
struct counts {
    uint32_t added, finished;
};

static bool adds_to_sum(uint8_t kind)
{
    return kind == ST_OP_HEAD_GRAD || kind == ST_OP_HEAD_BACKWARD || kind == ST_OP_BLOCK_BACKWARD ||
           kind == ST_OP_EMBED_BACKWARD || kind == ST_OP_SCATTER_DEVICE || kind == ST_OP_SCATTER_HOST ||
           kind == ST_OP_SCATTER_MICRO || kind == ST_OP_EXPERTS_BACKWARD || kind == ST_OP_ROUTE_BACKWARD ||
           kind == ST_OP_PAGE_GRAD || kind == ST_OP_LAYER_BACKWARD;
}

/* A leaf's first micro-batch begins a sum; after the step's last one the lookup adds to what is there. */
static bool begins_sum(const struct st_plan *plan, const struct st_op *op, uint32_t page, uint32_t added)
{
    const uint32_t adds = st_page_adds(&plan->program.workload.pages[page]);
    const uint32_t micros = plan->program.workload.grad_accum;
    const bool lookup = op->kind == ST_OP_SCATTER_DEVICE || op->kind == ST_OP_SCATTER_HOST || op->kind == ST_OP_SCATTER_MICRO;

    return added == 0 || (!lookup && added % (micros / plan->program.leaves * adds) == 0);
}

/* A sum begins with the first op of each leaf that adds to it, and with no other; it is finished after the last. */
static void count_sums(struct counts *counts, const struct st_plan *plan, uint32_t i, const char *what)
{
    const struct st_op *op = &plan->program.ops[i];

    for (uint32_t a = 0; a < op->access_count; a++) {
        const struct st_access *access = &plan->program.accesses[op->access_first + a];
        struct counts *c = &counts[access->index % plan->program.workload.page_count];

        if (access->content != ST_HOLDS_ACCUM)
            continue;
        if (adds_to_sum(op->kind)) {
            const bool begins = access->mode == ST_WRITE;

            if (begins != begins_sum(plan, op, access->index % plan->program.workload.page_count, c->added) || c->finished > 0)
                fail_msg("%s: op %u (%s) %s the sum of page %u, %u ops have added to it", what, i, st_op_name(op->kind),
                         begins ? "begins" : "adds to", access->index, c->added);
            c->added++;
        } else if (op->kind == ST_OP_FINISH_GRAD || op->kind == ST_OP_FINISH_HOST) {
            c->finished++;
        }
    }
}

/* Every micro-batch adds to a page's sum; to the table's the lookup does, too, on the device once for all; with several ranks
 * those of all of them. */
static uint32_t additions(const struct st_plan *plan, uint32_t p)
{
    const struct st_workload *w = &plan->program.workload;
    const bool table = p < w->gathered_count;

    if (plan->program.pages[p].grad == ST_WHERE_NONE)
        return 0;
    if (!table)
        return w->grad_accum * st_page_adds(&w->pages[p]);
    if (plan->program.ranks > 1)
        return (shape_of(w).tied ? w->grad_accum : 0) + plan->program.ranks * w->grad_accum;
    return (shape_of(w).tied ? w->grad_accum : 0) + (plan->program.pages[p].sum == ST_WHERE_HOST ? w->grad_accum : 1);
}

static void check_sums(const struct st_plan *plan, const char *what)
{
    struct counts *counts = calloc(plan->program.workload.page_count, sizeof(*counts));

    assert_non_null(counts);
    for (uint32_t i = 0; i < plan->program.op_count; i++)
        count_sums(counts, plan, i, what);
    for (uint32_t p = 0; p < plan->program.workload.page_count && !plan->policy.forward_only; p++) {
        const uint32_t want = additions(plan, p);

        if (counts[p].added != want || counts[p].finished != (want > 0))
            fail_msg("%s: page %u: %u ops add to its sum, %u finish it; %u should", what, p, counts[p].added, counts[p].finished,
                     want);
    }
    free(counts);
}

/* Every chunk with state is updated once, after the step's end where that decides about it. */
static void check_updates(const struct st_plan *plan, const char *what)
{
    uint32_t *updates = calloc(plan->program.chunk_count + 1, sizeof(*updates));

    assert_non_null(updates);
    for (uint32_t i = 0; i < plan->program.op_count; i++) {
        const struct st_op *op = &plan->program.ops[i];
        const struct st_access *last = &plan->program.accesses[op->access_first + op->access_count - 1];

        if (op->kind != ST_OP_UPDATE && op->kind != ST_OP_UPDATE_DEVICE)
            continue;
        if (op->early)
            continue;
        updates[op->chunk]++;
        if (plan->policy.update != ST_UPDATE_IN_BACKWARD && last->buffer != plan->program.at.scalars_host)
            fail_msg("%s: op %u updates chunk %u without the scalars that END leaves", what, i, op->chunk);
    }
    for (uint32_t c = 0; c < plan->program.chunk_count; c++)
        if (updates[c] != (plan->program.chunks[c].state != ST_WHERE_NONE))
            fail_msg("%s: chunk %u is updated %u times", what, c, updates[c]);
    free(updates);
}

void program_roles_check(const struct st_plan *plan, const char *what)
{
    for (uint32_t i = 0; i < plan->program.op_count; i++)
        if (roles[plan->program.ops[i].kind] != NULL)
            check_roles(plan, i, what);
    check_sums(plan, what);
    check_updates(plan, what);
}
