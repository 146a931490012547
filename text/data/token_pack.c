/* token_pack.c - best fit, longest first, block by block, so that memory and time stay in proportion to the documents. */
#include "text/data/token_pack.h"

#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdlib.h>
#include <string.h>

struct document {
    uint32_t index, length; /* length: at most seq */
};

/* One sequence that is being filled. */
struct bin {
    uint32_t room, count; /* tokens left; documents */
};

struct block {
    struct document documents[ST_PACK_BLOCK];
    uint32_t bin_of[ST_PACK_BLOCK];
    struct bin bins[ST_PACK_BLOCK];
    uint32_t next[ST_PACK_BLOCK]; /* where the next document of a bin goes */
    uint32_t count, bin_count;
};

static int longest_first(const void *a, const void *b)
{
    const struct document *x = a, *y = b;

    if (x->length != y->length)
        return x->length > y->length ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* The fullest bin with room for `length`, the first among equals; a new one if there is none. */
static uint32_t choose_bin(struct block *b, uint32_t length, uint32_t seq)
{
    uint32_t best = b->bin_count;

    for (uint32_t i = 0; i < b->bin_count; i++)
        if (b->bins[i].room >= length && (best == b->bin_count || b->bins[i].room < b->bins[best].room))
            best = i;
    if (best == b->bin_count)
        b->bins[b->bin_count++] = (struct bin){.room = seq};
    return best;
}

static void fill_bins(struct block *b, uint32_t seq)
{
    qsort(b->documents, b->count, sizeof(b->documents[0]), longest_first);
    b->bin_count = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        const uint32_t bin = choose_bin(b, b->documents[i].length, seq);

        b->bins[bin].room -= b->documents[i].length;
        b->bins[bin].count++;
        b->bin_of[i] = bin;
    }
}

/* Appends the block's sequences. */
static void take_bins(struct block *b, struct st_packing *out, uint64_t first)
{
    uint64_t at = first;

    for (uint32_t i = 0; i < b->bin_count; i++) {
        b->next[i] = (uint32_t)(at - first);
        out->firsts[out->sequences++] = at;
        at += b->bins[i].count;
    }
    for (uint32_t i = 0; i < b->count; i++)
        out->order[first + b->next[b->bin_of[i]]++] = b->documents[i].index;
}

strata_status st_pack_documents(struct st_packing *out, const uint64_t *starts, const uint32_t *documents, uint64_t count,
                                uint32_t seq)
{
    struct block *b = st_fault("token_pack.alloc", 0) < 0 ? NULL : malloc(sizeof(*b));
    struct st_packing p = {.order = st_fault("token_pack.alloc", 0) < 0 ? NULL : malloc((count + 1) * sizeof(*p.order)),
                           .firsts = st_fault("token_pack.alloc", 0) < 0 ? NULL : malloc((count + 1) * sizeof(*p.firsts))};

    if (b == NULL || p.order == NULL || p.firsts == NULL) {
        free(b);
        st_packing_free(&p);
        return st_nomem(0);
    }
    for (uint64_t first = 0; first < count; first += ST_PACK_BLOCK) {
        b->count = count - first < ST_PACK_BLOCK ? (uint32_t)(count - first) : ST_PACK_BLOCK;
        for (uint32_t i = 0; i < b->count; i++) {
            const uint32_t index = documents[first + i];
            const uint64_t length = starts[index + 1] - starts[index];

            p.cut += length > seq;
            b->documents[i] = (struct document){.index = index, .length = length > seq ? seq : (uint32_t)length};
        }
        fill_bins(b, seq);
        take_bins(b, &p, first);
    }
    p.firsts[p.sequences] = count;
    free(b);
    *out = p;
    return STRATA_OK;
}

void st_packing_free(struct st_packing *p)
{
    free(p->order);
    free(p->firsts);
    *p = (struct st_packing){0};
}
