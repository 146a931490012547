/* model/model.h - a decoder described by numbers, the places of its tensors in pages, and its compute calls. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "offload/compute.h"
#include "offload/workload.h"
#include "strata/status.h"

#define ST_BLOCKS_MAX         4096u
#define ST_LAYER_WORDS        (ST_BLOCKS_MAX / 64u)
#define ST_LONGROPE_PAIRS_MAX 128u
#define ST_CONTEXT_MAX        (1u << 24)
#define ST_AUX_LOSS_COEF_MAX  1e3

/* The family decides tensor names and the form of config.json: a row of model/family.c. */
enum st_model_family {
    ST_FAMILY_GPT2 = 0,
    ST_FAMILY_LLAMA,
    ST_FAMILY_QWEN2,
    ST_FAMILY_MISTRAL,
    ST_FAMILY_QWEN3,
    ST_FAMILY_SMOLLM3,
    ST_FAMILY_PHI3,
    ST_FAMILY_GEMMA2,
    ST_FAMILY_GEMMA3,
    ST_FAMILY_OLMO2,
    ST_FAMILY_QWEN2_MOE,
    ST_FAMILY_QWEN3_MOE,
    ST_FAMILY_OLMOE,
    ST_FAMILY_MIXTRAL,
    ST_FAMILY_GPT_OSS,
    ST_FAMILY_COUNT
};
/* FROM_1: the stored weight is the distance from 1. */
enum st_norm_type { ST_NORM_LAYERNORM = 0, ST_NORM_RMSNORM = 1, ST_NORM_RMSNORM_FROM_1 = 2 };
/* An RMSNorm of queries and keys: none; of each head, which share a weight; of all heads together. */
enum st_qk_norm_type { ST_QK_NORM_NONE = 0, ST_QK_NORM_HEAD = 1, ST_QK_NORM_ALL = 2 };
/* SWIGLU, GEGLU: a second matrix multiplies silu's, or gelu's, values.  EXACT: of the error function, not of tanh. */
enum st_activation_type {
    ST_ACTIVATION_GELU = 0,
    ST_ACTIVATION_SWIGLU = 1,
    ST_ACTIVATION_GELU_EXACT = 2,
    ST_ACTIVATION_GEGLU = 3,
    ST_ACTIVATION_GEGLU_EXACT = 4
};
enum st_position_type { ST_POSITION_LEARNED = 0, ST_POSITION_ROTARY = 1 };
/* Which linear layers have biases: all; none; q, k, v; q, k, v and attention's output. */
enum st_bias_type { ST_BIAS_ALL = 0, ST_BIAS_NONE = 1, ST_BIAS_QKV = 2, ST_BIAS_ATTENTION = 3 };
/* What slows the turning of pairs: model/decoder/rotary.c.  DYNAMIC: nothing, up to the context. */
enum st_rope_type { ST_ROPE_DEFAULT = 0, ST_ROPE_LINEAR, ST_ROPE_LLAMA3, ST_ROPE_YARN, ST_ROPE_LONGROPE, ST_ROPE_DYNAMIC };

struct st_wrapper; /* model/family.h */

/* Zero in every option is GPT-2. */
struct st_model_config {
    char name[64];
    const struct st_wrapper *wrapper; /* the model of more than text that it is the text model of; NULL: of none.  Static */
    uint32_t blocks, hidden, heads, ffn, vocab, context;
    float norm_eps;
    float dropout; /* as in the file; not applied, and a notice says so */
    enum st_model_family family;
    enum st_norm_type norm;
    enum st_qk_norm_type qk_norm;
    enum st_activation_type activation;
    enum st_position_type positions;
    enum st_bias_type biases;
    bool mlp_bias;            /* the feed-forward of a model without all biases has them too */
    bool out_in;              /* matrices stored [out, in], not [in, out] */
    bool quantised;           /* the directory's linear weights may be bitsandbytes' nf4 */
    bool stacked;             /* the directory's files have the experts of a layer in one tensor */
    bool untied;              /* the head has a matrix of its own */
    bool embed_scaled;        /* rows of the table are multiplied by sqrt(hidden), rounded to the weights' dtype */
    bool inverse_layer_scale; /* scores of block i are divided by i + 1, too */
    uint32_t kv_heads;        /* 0: heads */
    uint32_t head_dim;        /* 0: hidden / heads */
    float query_scalar;       /* a score is q k / sqrt(query_scalar); 0: head_dim */
    float score_cap;          /* scores are cap * tanh(score / cap); 0: not capped */
    float logit_cap;          /* the same of logits */

    enum st_rope_type rope_type;
    uint32_t rotary_dim;    /* the first values of a head that are rotated; 0: all */
    float rope_base;        /* angle = position * base^(-2 i / rotary_dim) */
    float rope_local_base;  /* of sliding layers, whose type is the default; 0: that of the others, type and all */
    float rope_factor;      /* 0: not scaled */
    float rope_low;         /* llama3: original / wavelength below it: divided by factor; yarn: beta_slow */
    float rope_high;        /* llama3: above it: unchanged; yarn: beta_fast */
    uint32_t rope_original; /* the context that the model was first trained for */
    bool rope_whole_pairs;  /* yarn: the ramp between the two begins and ends at whole pairs */
    float rope_attention;   /* yarn, longrope: cos and sin are multiplied by it; 0: not */
    float rope_short[ST_LONGROPE_PAIRS_MAX]; /* longrope: divisors of the pairs' frequencies for sequences up to `original` */
    float rope_long[ST_LONGROPE_PAIRS_MAX];  /* for longer ones */

    uint32_t window; /* tokens that a sliding layer's attention reaches back over, its own included; 0: no layer slides */
    uint64_t sliding[ST_LAYER_WORDS];   /* a bit per block */
    uint64_t unrotated[ST_LAYER_WORDS]; /* blocks whose queries and keys are not rotated */

    /* Sparse blocks have experts in place of the feed-forward: each token goes through some of them. */
    uint64_t sparse[ST_LAYER_WORDS];  /* a bit per block */
    uint32_t experts, experts_chosen; /* of a sparse block; of a token */
    uint32_t expert_ffn;
    uint32_t shared_ffn;          /* of an expert that all tokens go through; 0: there is none */
    bool experts_divided;         /* the weights of a token's experts are divided by their sum */
    float gate_alpha, gate_limit; /* of experts whose gate is gpt_oss's (struct st_gate); a limit of 0: it is the activation's */
    float qkv_clip;               /* queries, keys and values lie between -clip and clip; 0: anywhere */
    float aux_loss_coef;          /* of the experts' auxiliary loss, */
    bool aux_loss;                /* which the loss has */
};

/* The coefficient with which a loss has the auxiliary one; 0: it has none.
 * @param asked  whatever the model's configuration says of it
 * @param coef   in place of the configuration's; NaN: that one */
float st_model_aux_loss_coef(const struct st_model_config *config, bool asked, double coef);

static inline bool st_layer_bit(const uint64_t *bits, uint32_t block)
{
    return (bits[block / 64] >> (block % 64) & 1) != 0;
}

static inline void st_layer_set(uint64_t *bits, uint32_t block)
{
    bits[block / 64] |= UINT64_C(1) << (block % 64);
}

#define ST_NO_TENSOR       UINT32_MAX
#define ST_TENSOR_RANK_MAX 8u
#define ST_NO_EXPERT       UINT32_MAX

/* One tensor of the Hugging Face layout, or of an adapter, and its place. */
struct st_tensor {
    char name[96];                      /* "transformer.h.0.attn.c_attn.weight" */
    uint32_t rank;                      /* 1 or 2; of layers of others 0 to 8 */
    uint64_t shape[ST_TENSOR_RANK_MAX]; /* as stored */
    uint32_t page;                      /* table and head span page .. page + page_count - 1, row by row */
    uint32_t page_count;
    uint64_t offset; /* elements from the page's start (0 for the table) */
    uint64_t elems;
    float init_std, init_mean; /* N(mean, std); std 0: constant */
    float init_range;          /* U(-range, range) instead, if not 0 */
    uint64_t stream;           /* rng stream: a hash of the name */
    bool decays;               /* by weight decay, beside those that decay_all adds */
    bool frozen;               /* matched by a pattern of st_model_batch.freeze, stored in NF4, or the base of an adapter */
    strata_dtype format;       /* how its weights are stored */
    uint32_t adapts;           /* A or B of an adapter: index of the tensor that it adds to; else ST_NO_TENSOR */
    uint32_t adapter;      /* index of A of its adapter, which B follows; ST_NO_TENSOR: it has none, or an up that of its gate */
    float scale;           /* of A and B: s in W x + s B (A x) */
    uint32_t layer, group; /* of layers of others (model/layers.h): indices; group UINT32_MAX: frozen */
    uint32_t expert,
        part; /* of an expert's: its number, and enum st_expert_part (model/family.h); expert ST_NO_EXPERT: of none */
};

struct st_model;
struct st_adapter_module; /* model/adapter/adapter.h */
struct st_adapter_spec;

/** Preset by name: nano, gpt2, llama-1b, ...  E_INVAL lists all presets and names the nearest match. */
strata_status st_model_preset(struct st_model_config *out, const char *name);
const char *st_model_preset_name(uint32_t i); /* NULL past the end */
/** The preset with the shapes of a published model, such as "Llama-3.2-1B" or "Qwen/Qwen2.5-7B-Instruct"; NULL: none is known. */
const char *st_model_preset_of(const char *published);
const char *st_model_family_name(enum st_model_family family);
/** Which keys of config.json bound a context that positions are scaled for, in brackets, for a sentence; "": none is scaled. */
const char *st_model_context_key(const struct st_model_config *config);
/** config.json of a Hugging Face directory (a model_type of model/family.c).  E_INPUT names file and key. */
strata_status st_model_config_read(struct st_model_config *out, const char *dir);
/** Read a file of any name: a "config.json" is called by its directory's name, another file by the file's. */
strata_status st_model_config_read_file(struct st_model_config *out, const char *path);

/** The dtype in which a directory stores its weights, by the rule of transformers' dtype="auto": config.json's "dtype" or
 *  "torch_dtype", else the first tensor's; INVALID if there are no weights either.  E_INPUT: another dtype, or files that cannot
 *  be read. */
strata_status st_hf_stored_dtype(strata_dtype *out, const char *dir);
/** The dtype that a config.json names; INVALID: it names none. */
strata_status st_hf_config_dtype(strata_dtype *out, const char *path);

struct st_tensor_ops;

struct st_model_batch {
    uint32_t micro_batch, seq, grad_accum;
    strata_dtype dtype;
    bool decay_all;
    uint32_t workers; /* workers of the device, for its attention scratch; 0: 1 */
    /* Shell patterns (fnmatch) over tensor names: tensors that match get no gradient and no state.  Borrowed during create. */
    const char (*freeze)[128];
    uint32_t freeze_count;
    bool nf4; /* the linear weights of blocks are stored in NF4, frozen; others are as without */
    /* Which linear layers have adapters: two more tensors each, A [r, in] and B [out, r], fp32, at the end of their block's list.
     * Everything but them and the modules that are saved whole is frozen.  Borrowed during create; NULL: none. */
    const struct st_adapter_spec *adapter;
    uint64_t seed;                   /* of the adapter's dropout */
    const struct st_tensor_ops *ops; /* of the device that runs it, for its attention scratch; NULL: the cpu's */
    bool documents;                  /* a sequence may hold several documents; positions and attention begin anew with each */
    bool generate;    /* generate next tokens of one sequence: micro_batch and grad_accum are 1, seq is the most rows of a call */
    uint32_t context; /* generate: length of the key-value cache */
    uint64_t slice_elems; /* the most that several experts of a page may have; 0: ST_SLICE_ELEMS (model/layout.h),
                             of generation one expert */
    float aux_loss_coef;  /* st_model_aux_loss_coef(); 0: no auxiliary loss */
};

/** Build pages, tensors and the workload.  E_INVAL: seq over the context, zero sizes, a freeze pattern without a match, patterns
 *  beside an adapter.  E_CONFIG: an adapter of modules that the model does not have (st_adapter_resolve). */
strata_status st_model_create(struct st_model **out, const struct st_model_config *config, const struct st_model_batch *batch);
void st_model_destroy(struct st_model *m);
const struct st_workload *st_model_workload(const struct st_model *m); /* borrowed */
/** The same on a device (NULL: the cpu) with that many workers, whose scratch differs; its arrays are the model's, borrowed. */
struct st_workload st_model_workload_on(const struct st_model *m, const struct st_tensor_ops *ops, uint32_t workers);
const struct st_model_config *st_model_config(const struct st_model *m); /* borrowed */
uint32_t st_model_tensor_count(const struct st_model *m);
const struct st_tensor *st_model_tensor(const struct st_model *m, uint32_t i);
/** The engine's view: compute.model is `m` (borrowed). One engine at a time per model. */
struct st_compute st_model_compute(struct st_model *m);

/* The modules that a model's tensors belong to, in their order, and a tied head. */
struct st_model_modules {
    struct st_adapter_module *modules; /* [count], freed by the caller */
    uint32_t count, at;                /* at: the one that was last found */
};
/** What an adapter's settings make of a model's modules (model/adapter/adapter.h); an adapter's own tensors belong to none.
 *  @param unfitted  names of the settings that fit none of them, but may fit what is beside a text model
 *  E_CONFIG, E_NOMEM. */
strata_status st_model_resolve(struct st_model_modules *out, const struct st_model *m, const struct st_adapter_spec *spec,
                               uint32_t *unfitted);
/** The module of a tensor; NULL: it is an adapter's own. */
const struct st_adapter_module *st_model_module_of(struct st_model_modules *list, const struct st_tensor *t);
/** The stack that an expert's gate or down is in; NULL: it is neither.  That of gates is that of ups, too. */
const struct st_adapter_module *st_model_stack_of(struct st_model_modules *list, const struct st_model *m,
                                                  const struct st_tensor *t);
/* How PEFT beside transformers 5 reads the file of an adapter that target_modules gives experts. */
struct st_peft_reading {
    char what[448];     /* the first thing in which its sums differ, or for which it refuses the file; "": none */
    const char *remedy; /* other settings, of which it makes the same sums */
    bool apart;         /* gates and ups have adapters of their own, which it trains as one of twice the rank */
};
/** Compare PEFT's reading with ours.  E_CONFIG: the settings do not fit the model; E_NOMEM. */
strata_status st_model_peft_reading(struct st_peft_reading *out, const struct st_model *m, const struct st_adapter_spec *spec);
/** Say in a notice what it would make otherwise. */
strata_status st_model_peft_note(const struct st_model *m, const struct st_adapter_spec *spec);
#define ST_ADAPTER_PATH_BYTES 96
/** What the adapter of an expert is called in a model, and in its checkpoints, whose stack is that in its file. */
void st_model_expert_path(char path[ST_ADAPTER_PATH_BYTES], const char *stack, uint32_t expert);

/* A source of initial values: gives values [first, first + count) of a page as fp32, in page layout (padding 0). */
struct st_weight_source {
    void *ctx;
    strata_status (*read)(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out);
};

/** Seeded initialisation: N(0, std) per tensor; a value depends only on (seed, tensor name, element index). */
struct st_model_init {
    const struct st_model *model;
    uint64_t seed;
};
struct st_weight_source st_model_init_source(struct st_model_init *init);

/** An adapter's tensors as they begin, by `init`; all others from `base`. */
struct st_adapter_init_source {
    struct st_model_init init;
    struct st_weight_source base;
};
struct st_weight_source st_model_adapter_source(struct st_adapter_init_source *source);

/** E_NUMERICS, naming the tensor, if one of the values [first, first + count) of a page is NaN or infinite; weight: in the
 * workload's dtype.  Padding is ignored. */
strata_status st_model_check_finite(const struct st_model *m, uint32_t page, uint64_t first, uint64_t count, const void *weight);

/* model/hf/hf_reader.c: read weights of a Hugging Face directory (F32, BF16 or F16; single file or sharded index). */
struct st_hf_reader;
strata_status st_hf_reader_open(struct st_hf_reader **out, const struct st_model *m, const char *dir);
/** Open a state that only trained tensors have: frozen ones may be missing, and read as zeros. */
strata_status st_hf_reader_open_trained(struct st_hf_reader **out, const struct st_model *m, const char *dir);
void st_hf_reader_close(struct st_hf_reader *r);
/** How many tensors of the directory are not those of the text model that is read (config.wrapper). */
uint32_t st_hf_reader_beside(const struct st_hf_reader *r);
struct st_weight_source st_hf_reader_source(struct st_hf_reader *r);
/** Call it after the last read, before the weights are used.  E_INPUT: one of the files was written to since it was opened. */
strata_status st_hf_reader_check_unchanged(const struct st_hf_reader *r);

/** Whether a model can be written to `dir`: E_INPUT if it holds one and `overwrite` is false.  Creates nothing. */
strata_status st_hf_output_check(const char *dir, bool overwrite);
/** E_INPUT if another output would have the name of weights or of their index in `dir`: it would be read as such, or removed. */
strata_status st_hf_output_check_apart(const char *dir, const char *path);

/* What is written beside the weights in place of what the source has. */
struct st_hf_instead {
    const char *tokenizer;     /* a directory or a file; NULL: that of the source */
    const char *chat_template; /* text of chat_template.jinja; NULL: the tokenizer's */
    bool ends;                 /* what is generated ends at this token, too: */
    uint32_t end_token;
};

/* Writes a model: tensors arrive page by page, pages in any order, ranges in order within a page; writes new files, then renames
 * them. */
struct st_hf_writer;
/** Create the directory and all files under new names, which keeps other processes from writing them (core/system/file.h), and
 *  allocate the space of the weights, so that E_NOFIT comes at the start of a run rather than E_NOSPC at its end.  Until its end
 * no other model, adapter or tokenizer is written there (core/system/dir_lock.h).  Memory of `m` that was read from the same
 * directory stays valid.
 *  @param source  directory that `m` was read from: its config.json is copied with the new dtype, its small files unchanged
 *                 (model/hf/hf_source_internal.h); NULL: a preset, whose configs are generated
 *  @param instead  borrowed during the call; NULL: nothing */
strata_status st_hf_writer_open(struct st_hf_writer **out, const struct st_model *m, const char *dir, const char *source,
                                const struct st_hf_instead *instead, bool overwrite);
strata_status st_hf_writer_put(struct st_hf_writer *w, uint32_t page, uint64_t first, uint64_t count,
                               const void *weight); /* model dtype */
/** fsync, rename, config.json; frees w.  If the weights are on the disk but cannot take their name, they stay beside it
 *  (st_new_file_keep), without configs; the sentence says where.  E_IO, E_NOSPC; E_INPUT: something took one of the names. */
strata_status st_hf_writer_commit(struct st_hf_writer *w);
void st_hf_writer_abort(struct st_hf_writer *w); /* removes temp files; frees w */
/** Write all files of a model's directory but the weights: what st_hf_writer_open() makes beside them, complete. */
strata_status st_hf_write_small(const struct st_model *m, const char *dir, const char *source,
                                const struct st_hf_instead *instead);

/** weights_digest of a directory: XXH3-128 over the weight plane in parameter order, without padding. */
strata_status st_hf_digest(const char *dir, char hex[33]);

#endif
