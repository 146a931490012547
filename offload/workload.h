/* offload/workload.h - what a training step works on, as plain numbers: layers, pages, groups, bytes, FLOPs.
 *
 * Made by who computes the layers (model/), read by the planner.  No pointers into the model, no tensors.
 *
 * A workload is a list of layers in the order of forward.  A layer uses pages; one that several layers use belongs to the first
 * of them.  Pages are numbered in the order of their first use.  A page is flattened group by group; every group starts at a
 * multiple of ST_PAGE_ALIGN elements of the page.  Between a layer and the next one lies a boundary: what the one leaves for the
 * other. */
#ifndef OFFLOAD_WORKLOAD_H
#define OFFLOAD_WORKLOAD_H

#include "kernels/kernels.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#define ST_PAGE_ALIGN 128u /* elements */
#define ST_GROUPS_MAX 6u
#define ST_SETS_MAX   16u
#define ST_NO_PAGE    UINT32_MAX

enum st_group_kind { ST_GROUP_DECAY = 0, ST_GROUP_NO_DECAY = 1, ST_GROUP_FROZEN = 2 };

/* Tensors that are stored and trained alike, one behind the other. */
struct st_group {
    enum st_group_kind kind;
    strata_dtype format; /* how its weights are stored */
    uint64_t offset;     /* elements from the page's start; multiple of ST_PAGE_ALIGN */
    uint64_t elems;      /* > 0 */
    uint64_t at, bytes;  /* of its weights, from the start of the page's */
    uint32_t set;        /* whose rate and decay its updates have, below ST_SETS_MAX */
};

/* Bytes of `elems` weights that are stored so; NF4: in whole records. */
static inline uint64_t st_format_bytes(strata_dtype format, uint64_t elems)
{
    if (format == STRATA_NF4)
        return (elems + ST_NF4_ELEMS - 1) / ST_NF4_ELEMS * sizeof(struct st_nf4_block);
    return elems * strata_dtype_bytes(format);
}

/* What is special of a page, as bits. */
enum {
    ST_PAGE_GATHERED = 1, /* its rows are looked up by token, whole or not; the first pages */
    ST_PAGE_SMALL = 2,    /* it has slots of its own, so that no other page's slot waits for it */
};

struct st_page {
    uint16_t flags;
    uint16_t uses;  /* how many layers use it */
    uint32_t layer; /* the first of them */
    uint32_t group_count;
    struct st_group groups[ST_GROUPS_MAX];
    uint64_t elems;                /* extent of the page, padding included; multiple of ST_PAGE_ALIGN */
    uint64_t bytes;                /* of its weights, padding included */
    uint64_t trained_elems;        /* the same of what lies before the frozen group, */
    uint64_t trained_bytes;        /* which is what gradients, sums and updates have */
    uint64_t written_elems;        /* of the trained ones: those that the first micro-batch's products write, none is zeroed */
    uint64_t params;               /* sum of the groups' elems */
    uint32_t row_first, row_count; /* a page of whole rows of the vocabulary: which; else 0 */
};

/** Add elements behind those of the page's last group, if that is of this kind and format, else as a group of their own.
 *  Returns where they begin, in elements from the page's start. */
uint64_t st_page_add(struct st_page *page, enum st_group_kind kind, strata_dtype format, uint64_t elems);
/** The same of a parameter set. */
uint64_t st_page_add_to(struct st_page *page, uint32_t set, enum st_group_kind kind, strata_dtype format, uint64_t elems);
/** The group that an element lies in. */
const struct st_group *st_page_group(const struct st_page *page, uint64_t element);
/** Bytes from the start of the page's weights to those of an element that lies in a group. */
uint64_t st_page_at(const struct st_page *page, uint64_t element);

/** Bytes of a page's sum that a step's first micro-batch zeroes. */
static inline uint64_t st_page_zeroed_bytes(const struct st_page *page)
{
    return (page->trained_elems - page->written_elems) * sizeof(float);
}

/* A run of elements of one page. */
struct st_span {
    uint32_t page;
    uint64_t offset, elems;
};

/* Which ops compute a layer (the planner's table of parts, emit_layer.c). */
enum st_layer_kind {
    ST_LAYER_BLOCK,  /* one forward and one backward, each with all of its pages */
    ST_LAYER_LOOKUP, /* the first: rows of its gathered pages, to which another page may be added */
    ST_LAYER_LOSS,   /* the last: a small page, then pages of rows, one by one; it gives the losses */
    /* The first, where the caller computes (offload/engine/caller.h): the pages that it uses in any order, which stay on the
     * device.  Its boundary and those of the blocks are what the block above keeps for its own backward; each may be 0. */
    ST_LAYER_RESIDENT,
    /* A block in parts: its first page has all but its experts; each further one is a slice, whole experts in index order. Which
     * rows an expert gets is data; how many rows all of them get is not. */
    ST_LAYER_EXPERTS,
};

#define ST_LAYER_PAGES_MAX 8u /* of a layer whose ops have all at once */

/* Bytes and FLOPs of one micro-batch. */
struct st_layer {
    enum st_layer_kind kind;
    uint32_t use_first, use_count; /* its pages: workload.uses[use_first ...] */
    uint64_t boundary_bytes;       /* what it leaves for the next one; the last one leaves nothing: 0 */
    uint64_t internal_bytes; /* what its backward needs beside that of the layer below; a block's may be made again; 0: nothing */
    double forward_flops;    /* 0: unknown */
    double backward_flops;   /* without making internals again; with logits, which are made again where they are not kept */
    double forward_seconds, backward_seconds; /* a caller's, as measured; 0: by its FLOPs */
    /* Of all slices of experts together, beside the layer's other parts; backward makes what is inside an expert again. */
    double experts_forward_flops, experts_backward_flops;
};

struct st_workload {
    char name[64];
    strata_dtype dtype;                    /* of weights and activations: BF16, F16 or F32 */
    uint32_t vocab, hidden;                /* of the pages of rows: rows, elements of one; 0: there are none */
    uint32_t seq, micro_batch, grad_accum; /* a micro-batch has micro_batch * seq rows: tokens */
    uint64_t params;                       /* trained parameters, each page's once */
    struct st_layer *layers;               /* [layer_count] */
    struct st_page *pages;                 /* [page_count] */
    uint32_t *uses;                        /* [use_count] pages, layer by layer */
    uint32_t layer_count, page_count, use_count;
    uint32_t gathered_count; /* pages 0 .. gathered_count - 1 are looked up */
    struct st_span *order;   /* [order_count] parameter order of the weights, for digests; NULL: page by page, group by group */
    uint32_t order_count;

    uint64_t workspace_bytes; /* scratch on the device that any op may use */
    uint64_t routes_bytes;    /* what a micro-batch's layers of experts add up for the auxiliary loss; 0: there is none */
    double aux_loss_coef;     /* the step's loss has it times the sum of its micro-batches' auxiliary losses */
    uint64_t constants_bytes; /* device bytes of what never changes (rotary tables); 0: none */
    bool documents;           /* a sequence may hold several documents: each step says where they begin */
    bool scales;              /* losses are multiplied by a scale, though weights are not in fp16 */
    bool generate;          /* rows are the next tokens of one sequence; blocks' internals are their key-value caches and stay */
    uint64_t logits_offset; /* generate: of the last row's logits, fp32 [vocab], in the last layer's internals */
    uint32_t experts; /* generate: of each layer of experts, whose slices come only if a row has chosen one of theirs; 0: all
                         slices come */
    uint32_t slice_experts;       /* of a slice; the last one may have fewer */
    uint64_t choice_offset;       /* of int32 [experts + 1] in such a layer's internals: rows of the experts before each one */
    float logit_cap;              /* generate: logits are cap * tanh(logit / cap), once they are on the host; 0: as computed */
    uint32_t workers;             /* of the device that the workspaces are sized for; an engine may have no more */
    double model_flops_per_token; /* for MFU: 6 P + 12 L h T; 0: unknown */
};

/* The page that a layer uses, as number i of its own. */
static inline uint32_t st_layer_page(const struct st_workload *w, uint32_t layer, uint32_t i)
{
    return w->uses[w->layers[layer].use_first + i];
}
static inline bool st_layer_has(const struct st_workload *w, uint32_t layer, uint32_t page)
{
    for (uint32_t i = 0; i < w->layers[layer].use_count; i++)
        if (st_layer_page(w, layer, i) == page)
            return true;
    return false;
}

/* Slices of a layer, its pages from the second on: rows of the head, or experts. */
static inline uint32_t st_layer_slices(const struct st_layer *layer)
{
    return layer->kind == ST_LAYER_LOSS || layer->kind == ST_LAYER_EXPERTS ? layer->use_count - 1 : 0;
}

/* Blocks are the layers [st_block_first(), st_block_end()). */
static inline uint32_t st_block_first(const struct st_workload *w)
{
    return w->layers[0].kind == ST_LAYER_LOOKUP || w->layers[0].kind == ST_LAYER_RESIDENT ? 1 : 0;
}
static inline uint32_t st_block_end(const struct st_workload *w)
{
    return w->layer_count - (w->layers[w->layer_count - 1].kind == ST_LAYER_LOSS ? 1 : 0);
}
static inline uint32_t st_block_count(const struct st_workload *w)
{
    return st_block_end(w) - st_block_first(w);
}
/* Slices of the loss layer. */
static inline uint32_t st_slice_count(const struct st_workload *w)
{
    return st_block_end(w) < w->layer_count ? st_layer_slices(&w->layers[w->layer_count - 1]) : 0;
}
/* Slices of experts of all layers. */
static inline uint32_t st_experts_count(const struct st_workload *w)
{
    uint32_t count = 0;

    for (uint32_t l = st_block_first(w); l < st_block_end(w); l++)
        count += st_layer_slices(&w->layers[l]);
    return count;
}
/* Whether a page is a slice of experts that a cycle does without if none of them is chosen; bytes of what says so. */
static inline bool st_page_is_chosen(const struct st_workload *w, uint32_t page)
{
    const uint32_t layer = w->pages[page].layer;

    return w->experts > 0 && w->layers[layer].kind == ST_LAYER_EXPERTS && st_layer_page(w, layer, 0) != page;
}
static inline uint64_t st_workload_choice_bytes(const struct st_workload *w)
{
    return w->experts > 0 ? (w->experts + UINT64_C(1)) * sizeof(int32_t) : 0;
}
/* Whether a page is the first one of a layer of experts, which is used twice in a backward that makes internals again. */
static inline bool st_page_leads(const struct st_workload *w, uint32_t page)
{
    return w->layers[w->pages[page].layer].kind == ST_LAYER_EXPERTS && st_layer_page(w, w->pages[page].layer, 0) == page;
}

/* Uses whose ops add to the page's sum micro-batch by micro-batch: a lookup adds after all others. */
static inline uint32_t st_page_adds(const struct st_page *page)
{
    return page->uses - ((page->flags & ST_PAGE_GATHERED) != 0 ? 1u : 0u);
}
/* How many of the first pages stay on the device whatever a plan decides: the caller uses them in any order. */
static inline uint32_t st_workload_stay(const struct st_workload *w)
{
    return w->layers[0].kind == ST_LAYER_RESIDENT ? w->layers[0].use_count : 0;
}
/* A page like those of most layers: nothing else uses it, and it may be cut anywhere. */
static inline bool st_page_is_plain(const struct st_page *page)
{
    return page->flags == 0 && page->row_count == 0 && page->uses == 1;
}

/** Bytes of a step's tokens and targets, and of positions where sequences hold documents: each [grad_accum][rows] int32.  Without
 * a vocabulary there are none. */
static inline uint64_t st_workload_tokens_bytes(const struct st_workload *w)
{
    return w->vocab == 0 ? 0 : (uint64_t)w->micro_batch * w->seq * w->grad_accum * (w->documents ? 3 : 2) * sizeof(int32_t);
}

/** Bytes of a slice's logits of one micro-batch: [rows, slice's vocabulary] fp32. */
static inline uint64_t st_workload_logits_bytes(const struct st_workload *w, uint32_t slice)
{
    return (uint64_t)w->micro_batch * w->seq * w->pages[st_layer_page(w, w->layer_count - 1, 1 + slice)].row_count *
           sizeof(float);
}

/** Append a layer; a page to the layer added last (its address holds until the next one); a use of an earlier layer's page to it.
 *  False, NULL: no memory. */
bool st_workload_add_layer(struct st_workload *w, enum st_layer_kind kind);
struct st_page *st_workload_add_page(struct st_workload *w, unsigned flags);
bool st_workload_add_use(struct st_workload *w, uint32_t page);

/** The largest boundary; 0: there is none. */
uint64_t st_workload_boundary_most(const struct st_workload *w);

/* Whether losses are multiplied by a scale that follows overflows. */
static inline bool st_workload_scales(const struct st_workload *w)
{
    return w->dtype == STRATA_F16 || w->scales;
}
/* Whether its layers are computed by whoever drives the engine. */
static inline bool st_workload_opaque(const struct st_workload *w)
{
    return w->layer_count > 0 && w->layers[0].kind == ST_LAYER_RESIDENT;
}

/** Trained elements of all pages: what `params` must be. */
uint64_t st_workload_params(const struct st_workload *w);
/** Multiple-of checks, group order, sums.  E_INTERNAL naming the first fault. */
strata_status st_workload_check(const struct st_workload *w);
/** Deep copy / free of its lists. */
strata_status st_workload_copy(struct st_workload *out, const struct st_workload *in);
void st_workload_fini(struct st_workload *w);

#endif
