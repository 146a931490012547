/* model/layout.h - where tensors are placed in pages, and values in the device buffers of a block and of the head.
 *
 * Private to model/.  The same functions give the sizes that the workload reports and the offsets that the decoder uses, so they
 * cannot disagree. */
#ifndef MODEL_LAYOUT_H
#define MODEL_LAYOUT_H

#include "model/family.h"
#include "offload/device/tensor_ops.h"

#define ST_BUFFER_ALIGN 256u /* alignment of values inside internals and workspaces, in bytes */
/* Logits made at once, at most: 64 MiB in fp32.  A GPU's multiprocessors then have four tiles of 128 x 256 each; with a quarter
 * of that they wait for the slowest of a few. */
#define ST_HEAD_LOGITS  (16u << 20)
#define ST_ADAPTED_ROWS 2048u       /* rows that pass through adapters at once, widened to fp32: bounds their workspace */
#define ST_SLICE_ELEMS  (16u << 20) /* experts of a page have at most so many, unless it is one; of generation each has a page */

/* Derived widths, in elements. */
struct st_model_widths {
    uint32_t attention; /* heads * head_dim: queries, and attention's output */
    uint32_t kv;        /* kv_heads * head_dim: keys, or values */
    uint32_t qkv;       /* q, k and v side by side */
    uint32_t packed;    /* of a row that has them, followed by q and k before their norm */
    uint32_t fc;        /* before the activation: ffn, or gate and up values */
    uint32_t shared;    /* the same of a sparse block, whose ffn is shared_ffn; 0: it has none */
};

/* Tensor list: table, positions (learned), blocks, final norm, head (untied).  A block has a page; a sparse one has further
 * pages, with whole experts in the order of their numbers.  The tensors of each page follow each other, and end with its
 * adapters. */
struct st_model {
    struct st_model_config config; /* kv_heads and head_dim filled in */
    struct st_model_batch batch;   /* without the borrowed patterns */
    uint32_t value_bytes;          /* of a weight or an activation */
    struct st_model_widths width;
    struct st_workload workload; /* layers: lookup, blocks, losses; layer b + 1 is block b */
    struct st_model_pages {
        uint32_t table_count;            /* slices of the table: pages 0 .. */
        uint32_t positions;              /* or ST_NO_PAGE */
        uint32_t block_first, norm;      /* pages of blocks: block_first .. norm - 1 */
        uint32_t head_first, head_count; /* slices of the head's matrix; tied: the table's */
    } at;
    struct st_tensor *tensors; /* [tensor_count], in parameter order */
    uint32_t tensor_count;
    uint32_t *block_pages; /* [blocks + 1] the first page of each; behind the last: the final norm's */
    uint32_t
        *page_tensors; /* [norm - block_first + 1] the first tensor of each page of blocks; behind the last: the final norm's */
    uint32_t norm_tensor_count;
    struct st_model_roles {
        uint32_t of[ST_ROLE_COUNT]; /* index of the role's tensor in the list of a block's first page; ST_NO_TENSOR: absent */
    } roles[2];                     /* of blocks without experts, and of sparse ones */
    bool has[2];                    /* blocks without experts; sparse ones */
    uint32_t slice_experts;         /* of a page, at most; 0: no block is sparse */
    uint64_t attention_bytes;       /* the device's scratch for attention */
    float *rotary;                  /* [tables][positions][rotary_dim / 2][2] cos, sin; NULL: learned positions */
    uint64_t rotary_elems;          /* of one table; the second one is that of sliding layers */
    float embed_factor;             /* of the first block\'s input */
    double dropout;                 /* of the inputs of adapters */
    struct st_adapted_widths {
        uint32_t in, out, rank;
    } adapted;             /* the largest of linear layers that have adapters, experts aside; 0: none has */
    uint32_t experts_rank; /* the largest of experts' adapters; 0: none has */
};

/** Whether an expert's tensor is its gate, and the next one its up. */
static inline bool st_expert_is_split(const struct st_tensor *t)
{
    return t->part == ST_EXPERT_GATE && t[1].part == ST_EXPERT_UP;
}
/** Whether a matrix is stored [in, out]. */
bool st_model_is_turned(const struct st_model *m, const struct st_tensor *t);

#define ST_EXPERT_ADAPTERS 2u /* of one of an expert's layers, at most: of gate and up, or one of both */

/* A linear layer of a block: one matrix, or several tensors whose outputs are side by side.  Tensors that are adjacent in the
 * page and stored alike form one part; freezing some of them splits them, except between the last trained and the first frozen
 * one. */
enum st_linear_kind {
    ST_LINEAR_QKV,
    ST_LINEAR_QK,
    ST_LINEAR_V,
    ST_LINEAR_PROJ,
    ST_LINEAR_FC,
    ST_LINEAR_DOWN,
    ST_LINEAR_ROUTER,
    ST_LINEAR_SHARED_GATE,
    ST_LINEAR_COUNT
};
#define ST_LINEAR_PARTS_MAX 3u

struct st_linear_part {
    uint64_t weight, bias;            /* elements from the page's start */
    strata_dtype format;              /* of the weight */
    uint32_t first, count;            /* columns of the output */
    uint32_t trained, trained_biases; /* how many of the columns are trained, from the first on */
    bool adapted;                     /* some of the columns have an adapter */
};
struct st_linear_adapter {
    uint64_t a, b;         /* elements from the page's start */
    uint32_t first, count; /* columns of the output that it adds to */
    uint32_t rank;
    float scale;
    uint64_t key; /* of its dropout's masks */
};
struct st_linear {
    uint32_t in, out;
    uint32_t stride; /* elements between rows of the output */
    bool bias;
    uint32_t part_count;
    struct st_linear_part parts[ST_LINEAR_PARTS_MAX];
    uint32_t adapter_count;
    struct st_linear_adapter adapters[ST_LINEAR_PARTS_MAX];
};
struct st_linear st_block_linear(const struct st_model *m, uint32_t block, enum st_linear_kind kind);

/** The adapters of an expert's layer: gate and up, or down; the places are those of a page's first expert, those of the next
 * begin `stride` elements behind it.
 *  @param tensors  of the page */
uint32_t st_expert_adapters(const struct st_model *m, const struct st_tensor *tensors, bool down,
                            struct st_linear_adapter out[ST_EXPERT_ADAPTERS], uint64_t *stride);

/** The elements of a page's gradient of which each has a product that computes all of it, in the page's order: matrices of linear
 *  layers, experts' adapters, and of the head, as far as they are trained.  The first micro-batch's products write them, so that
 * nothing has to be zeroed but the rest: norms, biases, adapters, positions, padding.  Returns how many runs there are. */
#define ST_WRITTEN_MAX (4 * ST_LINEAR_PARTS_MAX + 2)
uint32_t st_model_written(const struct st_model *m, uint32_t page, struct st_span out[ST_WRITTEN_MAX]);

/* Byte offsets of the values that a block's backward needs beside its input.  Backward recomputes the normalised inputs and the
 * activation's output: that costs a few percent of the block's time, while keeping them would cost 40 % of its memory. */
struct st_block_values {
    uint64_t stats[2];      /* [rows] or [rows][2] f32 */
    uint64_t post_stats[2]; /* [rows] f32; of norms that the block does not have: 0 bytes, here and below */
    uint64_t qk_stats[2];   /* [rows, heads] and [rows, kv_heads], or [rows] each, f32 */
    uint64_t lse;           /* [batch, heads, seq] f32 */
    uint64_t qkv;           /* [rows, packed], rotated */
    uint64_t attention;     /* [rows, attention] */
    uint64_t projected;     /* [rows, hidden] attention's half before its post norm */
    uint64_t middle;        /* [rows, hidden] residual stream between the halves */
    uint64_t fc;            /* [rows, fc] before the activation */
    uint64_t down;          /* [rows, hidden] the feed-forward's half before its post norm */
    uint64_t bytes;
};
/* In generation the values are scratch after the workspace, and the internals are this cache. */
struct st_block_cache {
    uint64_t keys, values; /* [context, kv] */
    uint64_t bytes;
};
/* What a sparse block's calls leave each other, behind its values or its cache. */
struct st_route_values {
    uint64_t input;         /* [rows, hidden] of the experts: the second norm's output */
    uint64_t probs;         /* [rows, experts] f32 */
    uint64_t ids;           /* [rows, chosen] i32 */
    uint64_t weights;       /* [rows, chosen] f32 */
    uint64_t order, places; /* [rows * chosen] i32 */
    uint64_t offsets;       /* [experts + 1] i32 */
    uint64_t sum;           /* [rows, hidden] f32: what experts give; in backward the gradient of their input */
    uint64_t dweights;      /* [rows, chosen] f32; training */
    uint64_t shared;        /* [rows, hidden] the shared expert's output; training */
    uint64_t shared_gate;   /* [rows] what its sigmoid is taken of */
    uint64_t bytes;
};
/* In the workspace, of a call on a slice: rows in the order of experts. */
struct st_slice_workspace {
    uint64_t input;   /* [rows, hidden] */
    uint64_t output;  /* [rows, hidden], or its gradient */
    uint64_t fc;      /* [rows, 2 ffn] before the activation, or its gradient */
    uint64_t gated;   /* [rows, ffn], or its gradient */
    uint64_t widened; /* NF4: the slice's weights in the model's dtype */
    /* For adapters, f32: */
    uint64_t wide_in, wide_out; /* 16 bits: [rows, max(hidden, ffn)] a layer's input, [rows, max(hidden, 2 ffn)] its output */
    uint64_t ranks;             /* [1 + ST_EXPERT_ADAPTERS][rows, rank] s A x, and s dy B of each */
    uint64_t bytes;
};
struct st_block_workspace {
    uint64_t narrow; /* [rows, max(hidden, attention)] */
    uint64_t wide;   /* [rows, max(fc, packed)] */
    uint64_t half;   /* gated, post norms or a factor of the embedding: [rows, max(ffn, hidden)] */
    uint64_t sums;   /* [packed or fc] f32, if parts of a layer's biases may be summed apart */
    /* For adapters, f32, at most ST_ADAPTED_ROWS rows: */
    uint64_t adapted_in;      /* [rows, adapted.in] a layer's input, or its gradient */
    uint64_t adapted_out;     /* [rows, adapted.out] its output, or that's gradient; dropout: adapted.in at least */
    uint64_t adapted_rank[2]; /* [rows, adapted.rank] A x; the same backward, dy B */
    uint64_t logits;          /* [rows, experts] of a router, or their gradient */
    uint64_t attention;
    uint64_t widened; /* NF4: the weight of a part in the model's dtype, of the largest one */
    uint64_t values;  /* generation */
    uint64_t slice; /* generation: the workspace of slices, between whose calls the values stay; else that begins the workspace */
    uint64_t bytes;
};
struct st_head_internals {
    uint64_t stats;      /* [rows] or [rows][2] f32 */
    uint64_t xent;       /* training: [rows][3] f32 */
    uint64_t normalised; /* [rows, hidden] */
    uint64_t gradient;   /* training: [rows, hidden] f32, of the normalised input */
    uint64_t logits;     /* generation: [vocab] f32 */
    uint64_t bytes;
};
struct st_head_workspace {
    uint64_t logits;  /* [st_head_rows, slice rows] f32 */
    uint64_t dlogits; /* the same in the model's dtype */
    uint64_t bytes;
};

/* What the sparse blocks of a micro-batch count for the auxiliary loss: choices, and sums of probs. */
struct st_routes {
    uint64_t counts; /* [experts] i64 */
    uint64_t sums;   /* [experts] f64 */
    uint64_t bytes;
};

struct st_block_values st_block_values_layout(const struct st_model *m, bool sparse);
struct st_block_cache st_block_cache_layout(const struct st_model *m);
struct st_block_workspace st_block_workspace_layout(const struct st_model *m);
struct st_route_values st_route_values_layout(const struct st_model *m);
struct st_routes st_routes_layout(const struct st_model *m);
struct st_slice_workspace st_slice_workspace_layout(const struct st_model *m);
/** Bytes of a layer's internals. */
uint64_t st_block_internal_bytes(const struct st_model *m, bool sparse);
struct st_head_internals st_head_internals_layout(const struct st_model *m);
struct st_head_workspace st_head_workspace_layout(const struct st_model *m);

/** Rows of a table slice: the largest power of two with at most 4 Mi elements, within 64..4096, at most the vocabulary. */
uint32_t st_table_slice_rows(uint32_t vocab, uint32_t hidden);

/** Rows whose logits of a slice are made at once: a function of the model's shapes and of a micro-batch's rows. */
uint32_t st_head_rows(const struct st_model *m);

static inline bool st_model_is_sparse(const struct st_model *m, uint32_t block)
{
    return st_layer_bit(m->config.sparse, block);
}
static inline const uint32_t *st_model_roles(const struct st_model *m, uint32_t block)
{
    return m->roles[st_model_is_sparse(m, block)].of;
}
/** The first tensor of a block. */
static inline uint32_t st_model_block_tensors(const struct st_model *m, uint32_t block)
{
    return m->page_tensors[m->block_pages[block] - m->at.block_first];
}
/** Behind its last one. */
static inline uint32_t st_model_block_end(const struct st_model *m, uint32_t block)
{
    return m->page_tensors[m->block_pages[block + 1] - m->at.block_first];
}
/** Whether a page holds experts. */
bool st_model_is_slice(const struct st_model *m, uint32_t page);
/** The experts of slice number `slice` of a sparse block: *first .. *first + *count - 1. */
void st_model_slice(const struct st_model *m, uint32_t slice, uint32_t *first, uint32_t *count);
/** Elements of an expert's matrices. */
uint64_t st_model_expert_elems(const struct st_model_config *config);

/** The tensors of one page: indices *first .. *first + *count - 1. */
void st_model_page_tensors(const struct st_model *m, uint32_t page, uint32_t *first, uint32_t *count);

/* The part of a tensor that is inside a range of a page. */
struct st_piece {
    const struct st_tensor *tensor;
    uint64_t tensor_first; /* elements from the tensor's start */
    uint64_t range_first;  /* elements from the range's start */
    uint64_t count;        /* 0: outside the range */
};

/** Piece number i of page elements [first, first + count); false past the page's last tensor. */
bool st_model_piece(const struct st_model *m, uint32_t page, uint64_t first, uint64_t count, uint32_t i, struct st_piece *out);

/** Add an adapter's tensors to the list of the model's own, and freeze what it freezes.  E_CONFIG, E_NOMEM. */
strata_status st_model_adapt(struct st_model *m, const struct st_adapter_spec *spec);

/** Pages, groups and tensors of a model whose workload's counts are known.  E_INVAL: a pattern that matches nothing, or
 *  everything frozen; E_CONFIG: as st_model_adapt(); E_NOMEM. */
strata_status st_model_build_pages(struct st_model *m, const struct st_model_batch *batch);

/** Cosines and sines of `positions` positions: table [positions][rotary_dim / 2][2]; sliding: of sliding layers. */
void st_rotary_table(float *table, const struct st_model_config *config, uint32_t positions, bool sliding);

/** Attention of a block. */
struct st_attention st_block_attention(const struct st_model *m, uint32_t block);

/** Whether a second matrix multiplies the activation's values. */
bool st_model_is_gated(const struct st_model_config *config);
/** The activation's function, for ops. */
enum st_activation st_model_activation(const struct st_model_config *config);

/** Check the ranges of a model's numbers, and that its family's files can express its options.  On failure returns `st`, with a
 *  sentence that starts with `where`. */
strata_status st_model_config_check(const struct st_model_config *config, strata_status st, const char *where);

/** Enqueue the tensor ops of one call. */
strata_status st_decoder_run(void *model, const struct st_call *call);

#endif
