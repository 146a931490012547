/* offload/workload.h - what a training step works on, as plain numbers: pages, groups, bytes, FLOPs.
 *
 * Made by model/, read by the planner.  No pointers into the model, no tensors.
 *
 * A layer (embedding, blocks, head) is split in pages: a block is one page; the embedding table is cut in slices
 * of whole rows, one page each, followed by one page for what else the embedding has (positions; may be absent).
 * A page is flattened group by group; every group starts at a multiple of ST_PAGE_ALIGN elements of the page. */
#ifndef OFFLOAD_WORKLOAD_H
#define OFFLOAD_WORKLOAD_H

#include "kernels/kernels.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#define ST_PAGE_ALIGN 128u /* elements */
#define ST_GROUPS_MAX 6u
#define ST_NO_PAGE    UINT32_MAX

enum st_group_kind { ST_GROUP_DECAY = 0, ST_GROUP_NO_DECAY = 1, ST_GROUP_FROZEN = 2 };

/* Tensors that are stored and trained alike, one behind the other. */
struct st_group {
    enum st_group_kind kind;
    strata_dtype format; /* how its weights are stored */
    uint64_t offset;     /* elements from the page's start; multiple of ST_PAGE_ALIGN */
    uint64_t elems;      /* > 0 */
    uint64_t at, bytes;  /* of its weights, from the start of the page's */
};

/* Bytes of `elems` weights that are stored so; NF4: in whole records. */
static inline uint64_t st_format_bytes(strata_dtype format, uint64_t elems)
{
    if (format == STRATA_NF4)
        return (elems + ST_NF4_ELEMS - 1) / ST_NF4_ELEMS * sizeof(struct st_nf4_block);
    return elems * strata_dtype_bytes(format);
}

enum st_page_kind {
    ST_PAGE_TABLE, /* a slice of the embedding table: whole rows */
    ST_PAGE_POSITIONS,
    ST_PAGE_BLOCK,
    ST_PAGE_NORM, /* the final one */
    ST_PAGE_HEAD  /* a slice of a head's matrix that is not the table's */
};

struct st_page {
    enum st_page_kind kind;
    uint32_t layer;
    uint32_t group_count;
    struct st_group groups[ST_GROUPS_MAX];
    uint64_t elems;                /* extent of the page, padding included; multiple of ST_PAGE_ALIGN */
    uint64_t bytes;                /* of its weights, padding included */
    uint64_t trained_elems;        /* the same of what lies before the frozen group, */
    uint64_t trained_bytes;        /* which is what gradients, sums and updates have */
    uint64_t written_elems;        /* of the trained ones: those that the first micro-batch's products write, none is zeroed */
    uint64_t params;               /* sum of the groups' elems */
    uint32_t row_first, row_count; /* table slices: rows of the vocabulary; else 0 */
};

/** Add elements behind those of the page's last group, if that is of this kind and format, else as a group of their own.
 *  Returns where they begin, in elements from the page's start. */
uint64_t st_page_add(struct st_page *page, enum st_group_kind kind, strata_dtype format, uint64_t elems);
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

/* Layer indices: 0 embedding, 1..block_count blocks, block_count + 1 head. */
struct st_workload {
    char name[64];
    strata_dtype dtype; /* of weights and activations: BF16, F16 or F32 */
    uint32_t block_count;
    uint32_t vocab, hidden, seq, micro_batch, grad_accum;
    uint64_t params; /* trained parameters, tied ones once */

    struct st_page *pages; /* [page_count], in parameter order: table slices, positions, blocks, final norm */
    uint32_t page_count;
    uint32_t table_first, table_count; /* embedding table slices */
    uint32_t position_page;            /* or ST_NO_PAGE */
    uint32_t block_first;              /* block b is page block_first + b */
    uint32_t norm_page;                /* final norm */
    uint32_t head_first, head_count;   /* slices of the head's matrix; tied: the table's */
    bool tied;
    struct st_span *order; /* [order_count] parameter order of the weights, for digests; NULL: page by page, group by group */
    uint32_t order_count;

    /* Bytes on the device, for one micro-batch of rows = micro_batch * seq tokens. */
    uint64_t activation_bytes;      /* one layer boundary: rows * hidden * dtype */
    uint64_t block_internal_bytes;  /* what backward of a block needs beside its input; kept or recomputed */
    uint64_t block_workspace_bytes; /* scratch of a block's forward or backward, beside the above */
    uint64_t head_internal_bytes;   /* per micro-batch: normalised input, statistics, its gradient */
    uint64_t head_workspace_bytes;  /* logits slice and the like */
    uint64_t embed_workspace_bytes;
    uint64_t constants_bytes; /* device bytes of what never changes (rotary tables); 0: none */
    bool documents;           /* a sequence may hold several documents: each step says where they begin */
    bool generate;            /* rows are the next tokens of one sequence; block internals are its key-value cache and stay */
    uint64_t logits_offset;   /* generate: of the last row's logits, fp32 [vocab], in the head's internals */
    float logit_cap;          /* generate: logits are cap * tanh(logit / cap), once they are on the host; 0: as computed */
    uint32_t workers;         /* of the device that the workspaces are sized for; an engine may have no more */

    /* FLOPs of one micro-batch; backward of a block excludes recomputation, that of the head includes the logits, which it makes
     * again where they are not kept. */
    double block_forward_flops, block_backward_flops, head_forward_flops, head_backward_flops;
    double model_flops_per_token; /* for MFU: 6 P + 12 L h T */
};

/** Bytes of a head slice's logits of one micro-batch: [rows, slice's vocabulary] fp32. */
/** Bytes of a step's tokens and targets, and of positions where sequences hold documents: each [grad_accum][rows] int32. */
static inline uint64_t st_workload_tokens_bytes(const struct st_workload *w)
{
    return (uint64_t)w->micro_batch * w->seq * w->grad_accum * (w->documents ? 3 : 2) * sizeof(int32_t);
}

static inline uint64_t st_workload_logits_bytes(const struct st_workload *w, uint32_t slice)
{
    return (uint64_t)w->micro_batch * w->seq * w->pages[w->head_first + slice].row_count * sizeof(float);
}

/** Multiple-of checks, group order, sums.  E_INTERNAL naming the first fault. */
strata_status st_workload_check(const struct st_workload *w);
/** Deep copy / free of `pages` and `order`. */
strata_status st_workload_copy(struct st_workload *out, const struct st_workload *in);
void st_workload_fini(struct st_workload *w);

#endif
