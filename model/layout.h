/* model/layout.h - where tensors lie in pages, and values in a block's and the head's device buffers.
 *
 * Private to model/.  The sizes the workload reports and the offsets the decoder uses come from the same functions,
 * so they cannot disagree. */
#ifndef MODEL_LAYOUT_H
#define MODEL_LAYOUT_H

#include "model/model.h"

#define ST_BUFFER_ALIGN 256u  /* bytes between values inside internals and workspaces */
#define ST_HEAD_ROWS    1024u /* rows of logits made at once: bounds the head's workspace */

/* Tensors of a block in page order: matrices (decayed), then norms and biases. */
enum st_block_tensor {
    ST_BLOCK_QKV_WEIGHT,
    ST_BLOCK_PROJ_WEIGHT,
    ST_BLOCK_FC_WEIGHT,
    ST_BLOCK_OUT_WEIGHT,
    ST_BLOCK_LN1_WEIGHT,
    ST_BLOCK_LN1_BIAS,
    ST_BLOCK_QKV_BIAS,
    ST_BLOCK_PROJ_BIAS,
    ST_BLOCK_LN2_WEIGHT,
    ST_BLOCK_LN2_BIAS,
    ST_BLOCK_FC_BIAS,
    ST_BLOCK_OUT_BIAS,
    ST_BLOCK_TENSORS,
};

/* Tensor list: table, positions, blocks, final norm's weight and bias. */
enum { ST_TENSOR_TABLE = 0, ST_TENSOR_POSITIONS = 1, ST_TENSOR_BLOCKS = 2 };

struct st_model {
    struct st_model_config config;
    struct st_model_batch batch;
    struct st_workload workload;
    struct st_tensor *tensors; /* [tensor_count], in parameter order */
    uint32_t tensor_count;
    struct st_attention attention;
    uint64_t attention_bytes; /* the device's scratch for it */
};

/* Byte offsets of what backward of a block needs beside its input.  Normalised inputs and the GELU's output are made
 * again in backward: they cost a few percent of the block's time and 40 % of its memory. */
struct st_block_internals {
    uint64_t stats1;    /* [rows][2] f32 */
    uint64_t stats2;    /* [rows][2] f32 */
    uint64_t lse;       /* [batch, heads, seq] f32 */
    uint64_t qkv;       /* [rows, 3 hidden] */
    uint64_t attention; /* [rows, hidden] */
    uint64_t middle;    /* [rows, hidden] residual stream between the halves */
    uint64_t fc;        /* [rows, ffn] before the GELU */
    uint64_t bytes;
};
struct st_block_workspace {
    uint64_t narrow; /* [rows, hidden] */
    uint64_t wide;   /* [rows, max(ffn, 3 hidden)] */
    uint64_t attention;
    uint64_t bytes;
};
struct st_head_internals {
    uint64_t stats;      /* [rows][2] f32 */
    uint64_t xent;       /* [rows][3] f32 */
    uint64_t normalised; /* [rows, hidden] */
    uint64_t gradient;   /* [rows, hidden] f32, of the normalised input */
    uint64_t bytes;
};
struct st_head_workspace {
    uint64_t logits;  /* [min(rows, ST_HEAD_ROWS), tile rows] f32 */
    uint64_t dlogits; /* the same in the model's dtype */
    uint64_t bytes;
};

struct st_block_internals st_block_internals_layout(const struct st_model *m);
struct st_block_workspace st_block_workspace_layout(const struct st_model *m);
struct st_head_internals st_head_internals_layout(const struct st_model *m);
struct st_head_workspace st_head_workspace_layout(const struct st_model *m);

/** Rows of a table tile: the largest power of two with at most 4 Mi elements, within 64..4096, at most the vocabulary. */
uint32_t st_table_tile_rows(uint32_t vocab, uint32_t hidden);

/** The tensors of one page: indices *first .. *first + *count - 1. */
void st_model_page_tensors(const struct st_model *m, uint32_t page, uint32_t *first, uint32_t *count);

/* The part of a tensor inside a range of a page. */
struct st_piece {
    const struct st_tensor *tensor;
    uint64_t tensor_first; /* elements from the tensor's start */
    uint64_t range_first;  /* elements from the range's start */
    uint64_t count;        /* 0: outside the range */
};

/** Piece number i of page elements [first, first + count); false past the page's last tensor. */
bool st_model_piece(const struct st_model *m, uint32_t page, uint64_t first, uint64_t count, uint32_t i, struct st_piece *out);

/** Ranges of a model's numbers.  `st` with a sentence that starts with `where`. */
strata_status st_model_config_check(const struct st_model_config *config, strata_status st, const char *where);

/** Enqueue the device ops of one call. */
strata_status st_decoder_run(void *model, const struct st_call *call);

#endif
