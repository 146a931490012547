/* text/data/token_pack.h - which documents share a sequence. */
#ifndef TEXT_DATA_TOKEN_PACK_H
#define TEXT_DATA_TOKEN_PACK_H

#include "strata/status.h"
#include <stdint.h>

/* Sequence s holds documents order[firsts[s] .. firsts[s + 1]). */
struct st_packing {
    uint32_t *order;         /* [count] */
    uint64_t *firsts;        /* [sequences + 1] */
    uint64_t sequences, cut; /* cut: documents longer than a sequence */
};

/** Pack `count` documents, of which number i has the tokens starts[i] .. starts[i + 1], into sequences of `seq` tokens.  Within
 * each ST_PACK_BLOCK of them: the longest first, into the fullest sequence that has room; equal ones in their order.  The result
 * depends only on the lengths and seq. E_NOMEM. */
#define ST_PACK_BLOCK 4096u
strata_status st_pack_documents(struct st_packing *out, const uint64_t *starts, const uint32_t *documents, uint64_t count,
                                uint32_t seq);
void st_packing_free(struct st_packing *p);

#endif
